//! How attachments end: the peer detaches, or the topic ends.

use std::sync::Arc;

use super::Served;
use super::attachment::{EndedAttachment, Kept, ServedAttachment};
use crate::control::{AttachmentId, LetGoReason, RefuseReason, SubscriberCounts};
use crate::event::Event;
use crate::fabric::Completion;
use crate::id::{Delivery, TopicName};
use crate::limits;
use crate::node::core::NodeCore;
use crate::publisher::PublishedTopic;
use crate::sync::atomic::Ordering;

impl Served {
    /// Ends an attachment.
    pub(super) fn detach(
        &mut self,
        core: &NodeCore,
        id: AttachmentId,
        counts: SubscriberCounts,
    ) -> Option<ServedAttachment> {
        let Some(attachment) = self.attachments.remove(&id) else { return self.take_revoked(id) };
        attachment.leave();
        attachment.closed.store(true, Ordering::Relaxed);
        if attachment.delivery == Delivery::Pull {
            self.withdraw(&attachment.topic);
        }
        if attachment.counted {
            self.tell_counts(core, &attachment.topic.name, counts);
        }
        Some(attachment)
    }

    /// Ends the rest of an attachment whose topic has ended.
    pub(super) fn detach_ended(&mut self, core: &NodeCore, id: AttachmentId, counts: SubscriberCounts) {
        if let Some(revoked) = self.take_revoked(id) {
            return self.tell_detached_counts(core, &revoked, counts);
        }
        let Some(EndedAttachment { name, counted, kept, unfinished }) = self.ended.remove(&id) else {
            return;
        };
        drop(unfinished);
        if let Some(Kept { topic, .. }) = kept {
            self.withdraw(&topic);
        }
        if counted {
            self.tell_counts(core, &name, counts);
        }
    }

    /// Withdraws a topic's repository, unless another attachment of the peer reads it.
    pub(super) fn withdraw(&mut self, topic: &Arc<PublishedTopic>) {
        let mut living = self.attachments.values().filter(|it| it.delivery == Delivery::Pull);
        let mut ended = self.ended.values().filter_map(|it| it.kept.as_ref());
        let mut revoked = self.revoked.values().filter(|it| it.is_readable).map(|it| &it.attachment);
        let is_read = living.any(|it| Arc::ptr_eq(&it.topic, topic))
            || revoked.any(|it| Arc::ptr_eq(&it.topic, topic))
            || ended.any(|kept| Arc::ptr_eq(&kept.topic, topic));
        if !is_read {
            // A peer that detaches before it has its grant would receive a key afterwards.
            self.outbox.strip(&topic.registration);
            self.connection.withdraw(&topic.registration);
        }
    }

    fn tell_detached_counts(&self, core: &NodeCore, detached: &ServedAttachment, counts: SubscriberCounts) {
        if detached.counted {
            self.tell_counts(core, &detached.topic.name, counts);
        }
    }

    fn tell_counts(&self, core: &NodeCore, topic: &TopicName, counts: SubscriberCounts) {
        if let Some(peer) = &self.peer {
            let SubscriberCounts { received, conflated, torn_retries, rejected, lost } = counts;
            let (peer, topic) = (peer.clone(), topic.clone());
            core.tell(&Event::Detached { peer, topic, received, conflated, torn_retries, rejected, lost });
        }
    }

    /// Notifies the peer of attachments whose memory is neither written nor read any more.
    pub(super) fn tell_detached(&mut self) {
        let session = &mut self.session;
        self.leaving.retain(|id, attachment| {
            let is_used = !attachment.is_revoked();
            if !is_used {
                // Fails if the session has ended meanwhile, and is not needed then.
                let _ = session.detached(*id, attachment.topic.newest().get());
            }
            is_used
        });
    }

    /// Reports topics that have ended, and releases them; `is_late` ones even with values unwritten. Memory that the peer has
    /// mapped stays with it; memory that it reads remotely is kept until it detaches.
    pub(super) fn tell_ended_topics(&mut self, now_ns: u64, is_late: bool) {
        for id in std::mem::take(&mut self.ending) {
            let Some(attachment) = self.attachments.get_mut(&id) else { continue };
            if attachment.is_overtaken() {
                // Its landing region is written no more.
                attachment.closed.store(true, Ordering::Relaxed);
            }
            if !attachment.has_end_to_tell(now_ns, is_late) {
                self.ending.insert(id);
                continue;
            }
            let Some(attachment) = self.attachments.remove(&id) else { continue };
            let topic = &attachment.topic;
            // Fails if the session has ended meanwhile, and is not needed then.
            let (published, is_overtaken) = (topic.newest().get(), attachment.is_overtaken());
            let _ = match is_overtaken && !topic.has_ended() {
                true => self.session.let_go(id, LetGoReason::Overtaken, published),
                false => self.session.topic_ended(id, published),
            };
            let is_mapped =
                self.connection.capabilities().shares_memory && !self.outbox.has(&topic.registration);
            let is_fetched = attachment.delivery == Delivery::Pull && !is_mapped;
            let until_ns = now_ns.saturating_add(limits::ENDED_GRACE_NS);
            let kept = is_fetched.then(|| Kept { topic: Arc::clone(topic), until_ns });
            let (name, counted) = (topic.name.clone(), attachment.counted);
            let unfinished = Some(topic.notified());
            self.ended.insert(id, EndedAttachment { name, counted, kept, unfinished });
        }
    }

    /// Keeps no memory for a peer that maps it, which it does as soon as the grant has arrived.
    pub(super) fn forget_mapped(&mut self) {
        if !self.connection.capabilities().shares_memory {
            return;
        }
        for ended in self.ended.values_mut() {
            ended.kept.take_if(|kept| !self.outbox.has(&kept.topic.registration));
        }
    }

    /// Ends the session with a peer that is late to detach from an ended topic. Withdrawing memory that it still reads would
    /// break the connection without a reason.
    pub(super) fn end_if_overdue(&mut self, now_ns: u64) {
        let is_overdue = |it: &&EndedAttachment| it.until_ns().is_some_and(|until_ns| until_ns <= now_ns);
        if let Some(EndedAttachment { name, .. }) = self.ended.values().find(is_overdue) {
            let seconds = limits::ENDED_GRACE_NS / 1_000_000_000;
            let text = format!("{name} has ended, and this subscriber did not detach from it in {seconds} s");
            self.session.reject(RefuseReason::TopicEnded, &text);
        }
    }
}

impl ServedAttachment {
    /// Whether writing to its landing region, and reading its progress slot, have stopped for good.
    pub(super) fn is_revoked(&self) -> bool {
        let is_written = self.revocation.as_ref().is_some_and(|it| it.revoke() == Completion::Pending);
        let is_read = self.subscriber.as_ref().is_some_and(|subscriber| !subscriber.is_unread());
        !(is_written || is_read)
    }
}
