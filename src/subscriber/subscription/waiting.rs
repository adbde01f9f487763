//! A subscription among others: what waits for it, and how that is woken.

use std::sync::Arc;

use super::{Attachment, FETCH_WAIT, NoticesAsked, Source, Subscription, Waking};
use crate::clock::saturate;
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::limits;
use crate::subscriber::notices::NoticeSource;
use crate::subscriber::waiter::{Condition, Membership, WokenBy};

impl Subscription {
    /// Requests notices, if they were not. Does not block: the subscriber polls until the answer is there.
    pub(in crate::subscriber) fn tend_notices(&mut self) {
        match self.notices {
            NoticesAsked::No if self.notice_source.is_some() || !self.attachment.ask_notices() => {
                self.notices = NoticesAsked::Settled;
            }
            NoticesAsked::No => self.notices = NoticesAsked::Asked,
            NoticesAsked::Asked => {
                let is_mapped = matches!(self.source, Source::Mapped(_));
                if let Some(source) = self.attachment.take_notices(&self.granted, is_mapped) {
                    self.set_notices(source);
                    self.notices = NoticesAsked::Settled;
                }
            }
            NoticesAsked::Settled => {}
        }
    }

    /// Lets a waiter wait for this subscription, or no waiter any more.
    pub(in crate::subscriber) fn join(&mut self, membership: Option<Arc<Membership>>) {
        self.attachment.wake_with(membership.as_ref().and_then(|membership| membership.waker()));
        (self.membership, self.waking) = (membership, Waking::Unasked);
    }

    /// Whether a waiter does not know yet that nothing new was found.
    #[inline]
    pub(in crate::subscriber) fn is_reported_ready(&self) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.is_ready())
    }

    /// Tells its waiter that nothing new was found after `last`, and how to see that this changes. `last` is before values that were
    /// reported as damaged and may still come.
    #[cold]
    pub(in crate::subscriber) fn rest(&mut self, is_fetching: bool, last: Sequence) {
        self.tend_notices();
        self.tend_waking();
        let Some(membership) = &self.membership else { return };
        if let Some(deadline) = &self.deadline {
            membership.expect_within(deadline.left_ns());
        }
        let now_ns = self.clock.monotonic_ns();
        let at = |after_ns: u64| Condition::At(now_ns.saturating_add(after_ns));
        let is_awaited = self.notices == NoticesAsked::Asked || self.waking == Waking::Asked;
        let condition = match (&self.source, &self.notice_source) {
            (Source::Released(_), _) => return,
            _ if is_awaited && !is_fetching => at(limits::NOTICES_AWAITED_NS),
            (Source::Mapped(memory), source) => {
                let newest = Sequence::new(memory.load(HOT_SEQUENCE));
                let claim = Some((newest.get(), last)).filter(|_| newest != last);
                let is_known = std::mem::replace(&mut self.claim, claim) == claim;
                if is_known && newest > last {
                    // A publisher whose claim proves false must not keep the processor busy.
                    return membership.rest(at(limits::WAITER_POLL_NS));
                }
                // The last poll may not have seen it yet: then it is polled once more.
                let seen = if is_known { newest } else { last };
                let by = match (source, self.waking) {
                    (Some(NoticeSource::WakeWord(wake_word)), Waking::Slot(slot)) => {
                        WokenBy::Slot(wake_word.clone(), slot)
                    }
                    _ => WokenBy::Looks { interval_ns: limits::WAITER_POLL_NS, from_ns: now_ns },
                };
                let (memory, topic) = (Arc::clone(memory), Arc::<dyn Attachment>::clone(&self.attachment));
                Condition::Values { memory, last, seen, topic, by }
            }
            (Source::Landing { .. }, _) => match &mut self.notice_source {
                Some(NoticeSource::Immediate(arrivals)) => {
                    match arrivals.rest(last, now_ns, membership.waker()) {
                        Some(condition) => condition,
                        // It is still ready.
                        None => return,
                    }
                }
                _ => at(limits::WAITER_POLL_NS),
            },
            (Source::Remote(_), Some(NoticeSource::Channel(notices))) if !is_fetching => {
                notices.rest(last, now_ns, membership.waker())
            }
            (Source::Remote(_), _) if !is_fetching => at(limits::WAITER_POLL_NS),
            (Source::Remote(_), _) => at(saturate(FETCH_WAIT)),
        };
        if let (Source::Remote(remote), true) = (&mut self.source, is_fetching) {
            match remote.wait_handle() {
                Ok(Some(handle)) => membership.watch(handle),
                // It is complete by now, or the next poll returns the error.
                Ok(None) | Err(_) => return,
            }
        }
        membership.rest(condition);
    }

    /// Tells its waiter within how many nanoseconds the program expects a value.
    pub(in crate::subscriber) fn rest_until(&self, left_ns: Option<u64>) {
        if let Some(membership) = &self.membership {
            membership.expect_within(left_ns);
        }
    }

    /// Tells its waiter to look again after so many nanoseconds.
    pub(in crate::subscriber) fn rest_for(&self, after_ns: u64) {
        if let Some(membership) = &self.membership {
            membership.rest_anew(self.clock.monotonic_ns().saturating_add(after_ns));
        }
    }

    /// Has its publisher wake its waiter, where that is possible.
    fn tend_waking(&mut self) {
        let is_woken = matches!(self.notice_source, Some(NoticeSource::WakeWord(_)));
        let Some((membership, waiter)) =
            self.membership.as_ref().and_then(|it| it.waiter().map(|waiter| (it, waiter)))
        else {
            return;
        };
        match self.waking {
            Waking::Unasked if is_woken => {
                let is_asked = self.attachment.ask_slot(&waiter, membership.token());
                self.waking = if is_asked { Waking::Asked } else { Waking::Unavailable };
            }
            Waking::Asked => {
                if let Some(slot) = self.attachment.take_slot() {
                    self.waking = slot.map_or(Waking::Unavailable, Waking::Slot);
                }
            }
            Waking::Unasked | Waking::Slot(_) | Waking::Unavailable => {}
        }
    }
}
