//! How attachments end: the peer detaches, or the topic ends.

use std::sync::Arc;

use super::Served;
use super::attachment::ServedAttachment;
use crate::control::{AttachmentId, SubscriberCounts};
use crate::event::Event;
use crate::fabric::Completion;
use crate::id::Delivery;
use crate::node::core::NodeCore;
use crate::sync::atomic::Ordering;

impl Served {
    /// Ends an attachment.
    pub(super) fn detach(
        &mut self,
        core: &NodeCore,
        id: AttachmentId,
        counts: SubscriberCounts,
    ) -> Option<ServedAttachment> {
        let attachment = self.attachments.remove(&id)?;
        attachment.closed.store(true, Ordering::Relaxed);
        let reads = |it: &ServedAttachment| {
            it.delivery == Delivery::Pull && Arc::ptr_eq(&it.topic, &attachment.topic)
        };
        if reads(&attachment) && !self.attachments.values().any(reads) {
            self.connection.withdraw(attachment.topic.registration());
        }
        if let Some(peer) = &self.peer {
            let SubscriberCounts { received, conflated, torn_retries, rejected } = counts;
            let (peer, topic) = (peer.clone(), attachment.topic.name().clone());
            core.tell(&Event::Detached { peer, topic, received, conflated, torn_retries, rejected });
        }
        Some(attachment)
    }

    /// Tells the peer of attachments that it has left and that are written no more.
    pub(super) fn tell_detached(&mut self) {
        let session = &mut self.session;
        self.leaving.retain(|id, attachment| {
            let revoked = attachment.revocation.as_ref().map(|revocation| revocation.revoke());
            let written = revoked == Some(Completion::Pending);
            if !written {
                // It fails when the session has ended meanwhile: then there is nobody to be told.
                let _ = session.detached(*id, attachment.topic.newest().get());
            }
            written
        });
    }

    /// Tells of topics that have ended: late also if not everything was written to a landing region.
    pub(super) fn tell_ended_topics(&mut self, is_late: bool) {
        for (id, attachment) in &mut self.attachments {
            if attachment.has_end_to_tell(is_late) {
                (attachment.told, attachment.listener) = (true, None);
                // It fails when the session has ended meanwhile: then there is nobody to be told.
                let _ = self.session.topic_ended(*id, attachment.topic.newest().get());
            }
        }
    }
}
