//! The progress of subscribers, as their node shows it to publishers, and as publishers report that of all.

use std::sync::Arc;

use super::{Attached, Link, LinkAttachment, LinkError, LinkState, Ticket};
use crate::control::{ControlError, LetGo, LetGoReason, RegionKind, SubscriberPage};
use crate::event::Event;
use crate::fabric::{Exposure, Registration};
use crate::id::{Sequence, SlowPolicy, TopicName};
use crate::layout::progress::{PROGRESS_LEN, SEEN};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::node::outbox::Enclosure;
use crate::subscriber::{Granted, ProgressReport, TopicEnd};
use crate::sync::atomic::Ordering;

impl Link {
    /// Allocates a progress slot.
    pub(super) fn allocate_slot(&self) -> Result<Arc<Registration>, LinkError> {
        let region = Region::allocate(PROGRESS_LEN, Protection::PeersRead);
        let region = region.map_err(|error| LinkError::Fabric(error.into()))?;
        let registered = self.core.fabric.register(&Arc::new(region), Exposure::Read);
        registered.map(Arc::new).map_err(LinkError::Fabric)
    }

    /// The subscribers of a topic of the peer; `None` if it has no such topic.
    pub(in crate::node) fn subscribers(
        &self,
        topic: &TopicName,
    ) -> Result<Option<SubscriberPage>, LinkError> {
        let ticket = self.state.lock().draw_ticket();
        self.wait_for("subscribers of a topic", |state| {
            if state.listing_subscribers.is_none() {
                if let Err(error) = state.session.list_subscribers(topic.clone()) {
                    return Some(Err(error));
                }
                (state.listing_subscribers, state.subscribers) = (Some(ticket), None);
            }
            if state.listing_subscribers != Some(ticket) {
                return None;
            }
            let found = state.subscribers.take()?;
            state.listing_subscribers = None;
            Some(Ok(found))
        })
    }
}

impl LinkAttachment {
    /// What reports the subscriber's progress, if it does.
    pub(in crate::node) fn progress(&self, granted: &Granted) -> Option<ProgressReport> {
        // Only logs have it; an answer of another kind ignores the request.
        granted.geometry.log()?;
        let (slot, policy) = self.attached.progress.as_ref()?;
        Some(ProgressReport::new(Arc::clone(slot.region()), *policy))
    }
}

impl LinkState {
    /// Draws the number of a request.
    pub(super) fn draw_ticket(&mut self) -> Ticket {
        let ticket = self.ticket_next;
        self.ticket_next = Ticket(ticket.0.wrapping_add(1));
        ticket
    }

    /// Shows in all progress slots that this node runs, if that is due.
    pub(super) fn show_life(&mut self, now_ns: u64) {
        if now_ns < self.life_due_ns {
            return;
        }
        self.life_due_ns = now_ns.saturating_add(limits::PROGRESS_SEEN_NS);
        for (slot, _) in self.attachments.values().filter_map(|attached| attached.progress.as_ref()) {
            slot.region().store(SEEN, now_ns);
        }
    }

    /// When to do so again.
    pub(super) fn life_due_ns(&self) -> Option<u64> {
        let is_shown = |attached: &Arc<Attached>| attached.progress.is_some();
        (self.failure.is_none() && self.attachments.values().any(is_shown)).then_some(self.life_due_ns.max(1))
    }

    /// Records that the publisher takes an attachment into account no more.
    pub(super) fn take_let_go(&mut self, LetGo { attachment, reason, .. }: LetGo, now_ns: u64) {
        let Some(attached) = self.attachments.get(&attachment) else { return };
        attached.gating.store(false, Ordering::Relaxed);
        if reason == LetGoReason::Revoked {
            // A READ of what was revoked would end the session for all attachments.
            attached.shut.store(true, Ordering::Release);
        }
        let topic = attached.topic.clone();
        let revoked = ControlError::Revoked { topic: topic.clone() };
        if let Some(peer) = self.peer.as_ref().map(|peer| peer.node.clone()) {
            self.told.push_back(match reason {
                LetGoReason::Unseen => Event::LetGo { peer, topic },
                LetGoReason::Overtaken => Event::Overtaken { peer, topic },
                LetGoReason::Revoked => Event::Revoked { peer, topic },
            });
        }
        match reason {
            LetGoReason::Unseen => {}
            LetGoReason::Overtaken => {
                self.finish(attachment, TopicEnd::Overtaken { last: Sequence::NONE }, now_ns);
            }
            LetGoReason::Revoked => self.finish(attachment, TopicEnd::Gone { error: revoked }, now_ns),
        }
    }
}

impl Attached {
    /// What of this kind it sends.
    pub(super) fn enclosure(&self, kind: RegionKind) -> Option<Enclosure> {
        let region = match kind {
            RegionKind::Progress => self.progress.as_ref().map(|(slot, _)| Arc::clone(slot)),
            RegionKind::Values | RegionKind::WakeWord => self.inbox.lock().landing.clone(),
            RegionKind::Socket => return self.inbox.lock().socket.clone().map(Enclosure::Socket),
        };
        region.map(Enclosure::Region)
    }

    /// Whether the publisher is to take a subscriber with this policy into account.
    pub(super) fn gates(progress: Option<SlowPolicy>) -> bool {
        progress.is_some_and(SlowPolicy::is_critical)
    }
}
