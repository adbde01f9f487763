use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::gating::Gating;
use super::progress_slot::ProgressSlot;
use crate::control::{ProgressEntry, SubscriberEntries, SubscriberEntry, SubscriberPage};
use crate::fabric::Completion;
use crate::id::{Delivery, NodeName, Sequence, SlowPolicy};
use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The subscribers of a topic, shared by its node and its publisher.
#[derive(Debug)]
pub(crate) struct TopicSubscribers {
    /// What the publisher permits.
    gating: Option<Gating>,
    /// Changes with the gating subscribers; the data path reads only this word.
    version: AtomicU64,
    /// By the numbers of session and attachment.
    all: Mutex<BTreeMap<(u64, u32), Arc<TopicSubscriber>>>,
    /// Some were let go, and their sessions do not know it yet.
    has_news: AtomicBool,
}

/// A subscriber of a topic.
#[derive(Debug)]
pub(crate) struct TopicSubscriber {
    pub(crate) node: NodeName,
    pub(crate) process: u32,
    pub(crate) delivery: Delivery,
    pub(super) reported: Option<Reported>,
}

/// A subscriber that reports its progress.
#[derive(Debug)]
pub(crate) struct Reported {
    policy: SlowPolicy,
    pub(super) slot: ProgressSlot,
    /// Frames before this position are released; only grows.
    released: AtomicU64,
    /// A [`Standing`].
    standing: AtomicU32,
    watch: Mutex<Watch>,
}

/// How the publisher takes a subscriber into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not at all.
    Lapping = 0,
    /// It waits for it, or disconnects it.
    Gating = 1,
    /// Not any more: its lease is over.
    Unseen = 2,
    /// Not any more: it was about to lose records, and is to be disconnected.
    Overtaken = 3,
}

/// Whether a subscriber's node runs.
#[derive(Debug, Default)]
struct Watch {
    /// What it showed last.
    seen: u64,
    checked_ns: u64,
    /// For how long it has shown nothing new, by this node's clock.
    still_ns: u64,
}

/// Why a subscriber is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// The publisher does not permit it.
    Forbidden,
    /// The publisher permits no more than so many.
    TooMany { max: usize },
}

impl TopicSubscribers {
    /// None yet.
    pub(super) fn new(gating: Option<Gating>) -> Self {
        let (version, has_news) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { gating, version, all: Mutex::default(), has_news }
    }

    /// What the publisher permits.
    pub(super) fn gating(&self) -> Option<Gating> {
        self.gating
    }

    /// Checks whether one more subscriber with this policy is permitted.
    pub(crate) fn check(&self, policy: SlowPolicy) -> Result<(), NotAdmitted> {
        let all = self.all.lock();
        let reported = || all.values().filter_map(|subscriber| subscriber.reported.as_ref());
        // Those that may be lapped leave as many slots to critical ones, also to such as were let go and keep theirs.
        let max =
            if policy.is_critical() { 2 * limits::PROGRESS_SLOTS_MAX } else { limits::PROGRESS_SLOTS_MAX };
        if reported().count() >= max {
            return Err(NotAdmitted::TooMany { max });
        }
        if !policy.is_critical() {
            return Ok(());
        }
        let gating = self.gating.ok_or(NotAdmitted::Forbidden)?;
        // One that was let go never gates again.
        let gates = |subscriber: &&Arc<TopicSubscriber>| subscriber.standing() == Some(Standing::Gating);
        if gating.permits_more_than(all.values().filter(gates).count()) {
            Ok(())
        } else {
            Err(NotAdmitted::TooMany { max: gating.max() })
        }
    }

    /// Adds one. The publisher waits for a critical one from now on, with all frames that it holds.
    pub(crate) fn add(&self, number: (u64, u32), subscriber: TopicSubscriber) -> Arc<TopicSubscriber> {
        let subscriber = Arc::new(subscriber);
        self.all.lock().insert(number, Arc::clone(&subscriber));
        if subscriber.standing() == Some(Standing::Gating) {
            self.change();
        }
        subscriber
    }

    /// Removes one. No read of its slot begins any more; [`TopicSubscriber::is_unread`] says when none is in flight.
    pub(crate) fn remove(&self, number: (u64, u32)) {
        let removed = self.all.lock().remove(&number);
        let Some(reported) = removed.as_ref().and_then(|removed| removed.reported.as_ref()) else { return };
        reported.slot.retire();
        if reported.policy.is_critical() {
            self.change();
        }
    }

    /// Whether any reports its progress.
    pub(crate) fn has_reported(&self) -> bool {
        self.all.lock().values().any(|subscriber| subscriber.reported.is_some())
    }

    /// Changes with the gating subscribers.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        // Acquire: a publisher that reads the number finds the subscribers behind the lock. Pairs with `Self::change`.
        self.version.load(Ordering::Acquire)
    }

    /// Replaces these by the subscribers for which the publisher waits, or that it disconnects: at most
    /// [`limits::PROGRESS_SLOTS_MAX`].
    pub(super) fn list_gating(&self, gating: &mut Vec<Arc<TopicSubscriber>>) {
        gating.clear();
        let all = self.all.lock();
        gating.extend(all.values().filter(|it| it.standing() == Some(Standing::Gating)).cloned());
    }

    /// Lets a gating subscriber go.
    pub(super) fn let_go(&self, subscriber: &TopicSubscriber, standing: Standing) {
        let Some(reported) = &subscriber.reported else { return };
        let (gating, now) = (Standing::Gating as u32, standing as u32);
        // AcqRel: the publisher and the node's thread may both let it go; one of them does.
        if reported.standing.compare_exchange(gating, now, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.has_news.store(true, Ordering::Release);
            self.change();
        }
    }

    /// Checks which subscribers' nodes run, at this time of the node's clock, and lets those go whose lease is over.
    pub(crate) fn watch(&self, now_ns: u64) {
        let lease_ns = self.gating.map_or(u64::MAX, |gating| gating.lease_ns());
        let all: Vec<_> = self.all.lock().values().cloned().collect();
        for subscriber in &all {
            let Some(reported) = &subscriber.reported else { continue };
            reported.slot.refresh();
            let still_ns = reported.watch.lock().check(reported.slot.seen(), now_ns);
            if still_ns >= lease_ns && reported.policy == SlowPolicy::Block {
                self.let_go(subscriber, Standing::Unseen);
            }
        }
    }

    /// Returns once whether some were let go.
    pub(crate) fn take_news(&self) -> bool {
        // Usually there is none: without this load the word would be written at each turn.
        self.has_news.load(Ordering::Relaxed) && self.has_news.swap(false, Ordering::AcqRel)
    }

    /// By how many records the slowest subscriber that reports its progress is behind; `None` if none does.
    pub(crate) fn lag_max(&self, newest: Sequence) -> Option<u64> {
        let all = self.all.lock();
        let reported = all.values().filter_map(|subscriber| subscriber.reported.as_ref());
        reported.map(|reported| reported.lag(newest)).max()
    }

    /// Describes them, the slowest first.
    pub(crate) fn page(&self, newest: Sequence) -> SubscriberPage {
        let all: Vec<_> = self.all.lock().values().cloned().collect();
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let mut entries: Vec<_> = all.iter().map(|subscriber| subscriber.entry(newest)).collect();
        // Those that report nothing come last.
        entries.sort_by_key(|entry| entry.progress.map_or(u64::MAX, |progress| progress.last));
        SubscriberPage { newest: newest.get(), count, entries: SubscriberEntries::cut(entries) }
    }

    fn change(&self) {
        // Release: pairs with the Acquire in `Self::version`.
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl TopicSubscriber {
    /// A subscriber of this process of this node.
    pub(crate) fn new(
        (node, process): (NodeName, u32),
        delivery: Delivery,
        progress: Option<(SlowPolicy, ProgressSlot)>,
    ) -> Self {
        let reported = progress.map(|(policy, slot)| {
            let standing = if policy.is_critical() { Standing::Gating } else { Standing::Lapping };
            Reported {
                policy,
                slot,
                released: AtomicU64::new(0),
                standing: AtomicU32::new(standing as u32),
                watch: Mutex::default(),
            }
        });
        Self { node, process, delivery, reported }
    }

    /// How the publisher takes it into account, if it reports its progress.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.reported.as_ref().map(|reported| match reported.standing.load(Ordering::Acquire) {
            1 => Standing::Gating,
            2 => Standing::Unseen,
            3 => Standing::Overtaken,
            _ => Standing::Lapping,
        })
    }

    /// Has it begin at this position: it needs no frame before.
    pub(crate) fn begin_at(&self, position: u64) {
        if let Some(reported) = &self.reported {
            // Release: as in `Progress::store`.
            reported.released.store(position, Ordering::Release);
        }
    }

    /// Has no other read of its slot begin. Returns whether none is in flight, so that its node may withdraw the slot.
    pub(crate) fn is_unread(&self) -> bool {
        self.reported.as_ref().is_none_or(|reported| reported.slot.retire() == Completion::Done)
    }

    /// Gives its slot up: its session is over.
    pub(crate) fn give_up(&self) {
        self.reported.iter().for_each(|reported| reported.slot.close());
    }

    /// Whether the publisher waits for it, rather than disconnecting it.
    pub(super) fn blocks(&self) -> bool {
        self.reported.as_ref().is_some_and(|reported| reported.policy == SlowPolicy::Block)
    }

    /// The position before which it needs no frame of a log whose committed frames end here.
    pub(super) fn released(&self, committed_end: u64) -> u64 {
        self.reported.as_ref().map_or(u64::MAX, |reported| {
            // A position that was never written releases everything: a subscriber that lies loses its own records only.
            let released = reported.slot.released().min(committed_end);
            reported.released.fetch_max(released, Ordering::AcqRel).max(released)
        })
    }

    /// Takes the last result of reading its slot on another host, and begins the next read.
    #[inline]
    pub(super) fn refresh(&self) {
        if let Some(reported) = &self.reported {
            reported.slot.refresh();
        }
    }

    /// The same, as far as the publisher has read it. The publisher overwrites nothing after it while the subscriber gates.
    pub(super) fn known_released(&self) -> u64 {
        // Acquire: pairs with the Release above.
        self.reported.as_ref().map_or(0, |reported| reported.released.load(Ordering::Acquire))
    }

    /// By how many records it is behind.
    pub(super) fn lag(&self, newest: Sequence) -> u64 {
        self.reported.as_ref().map_or(0, |reported| reported.lag(newest))
    }

    fn entry(&self, newest: Sequence) -> SubscriberEntry {
        let Self { node, process, delivery, reported } = self;
        let is_gating = self.standing() == Some(Standing::Gating);
        let progress = reported.as_ref().map(|reported| {
            let progress = reported.slot.progress();
            ProgressEntry {
                policy: reported.policy,
                is_gating,
                // Whatever it says, it cannot have more.
                last: progress.last.min(newest.get()),
                received: progress.received,
                lost: progress.lost,
                retries: progress.retries,
                rejected: progress.rejected,
                unseen_ns: reported.watch.lock().still_ns,
            }
        });
        SubscriberEntry { node: node.clone(), process: *process, delivery: *delivery, progress }
    }
}

impl Reported {
    /// By how many records it is behind, as far as it reports.
    fn lag(&self, newest: Sequence) -> u64 {
        newest.get().saturating_sub(self.slot.progress().last)
    }
}

impl Watch {
    /// Records what a node shows now. Returns for how long it has shown nothing new.
    fn check(&mut self, seen: u64, now_ns: u64) -> u64 {
        let step_ns = now_ns.saturating_sub(self.checked_ns);
        let is_first = self.checked_ns == 0;
        self.checked_ns = now_ns;
        if std::mem::replace(&mut self.seen, seen) != seen || is_first {
            self.still_ns = 0;
        } else {
            // A process that stood still itself does not take that time for the subscriber's: one check proves nothing.
            self.still_ns += step_ns.min(limits::GATING_LEASE_MIN_NS / 4);
        }
        self.still_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn node_that_shows_nothing_for_the_lease_is_noticed() {
        let mut watch = Watch::default();
        let mut now_ns = 5 * MS;
        assert_eq!(watch.check(7, now_ns), 0);
        for _ in 0..20 {
            now_ns += 100 * MS;
            watch.check(7, now_ns);
        }
        assert_eq!(watch.still_ns, 2000 * MS);
        assert_eq!(watch.check(8, now_ns + MS), 0);
    }

    /// A publisher that was stopped finds that nothing has changed since it last looked.
    #[test]
    fn own_standstill_is_not_the_subscribers() {
        let mut watch = Watch::default();
        watch.check(7, MS);
        assert!(watch.check(7, 3_600_000 * MS) < limits::GATING_LEASE_MIN_NS);
        assert_eq!(watch.check(8, 3_600_100 * MS), 0);
    }
}
