//! Revoking the access of a peer to a topic.

use std::sync::Arc;

use super::Served;
use super::attachment::{EndedAttachment, ServedAttachment};
use crate::control::{AttachmentId, LetGoReason, Peer, RefuseReason};
use crate::event::Event;
use crate::id::{Delivery, TopicName};
use crate::keyring::{Keys, Right};
use crate::node::core::NodeCore;
use crate::sync::atomic::Ordering;

/// Ends a session in which one topic cannot be withdrawn alone.
const SESSION_REVOKED: &str = "the access to a topic was revoked, and the publisher's device has no memory windows: its sessions end as a whole";
/// Ends a session whose peer has proven no key that is left.
const KEYS_REMOVED: &str = "the keys that this peer has proven are no longer in the keyring";

impl Served {
    /// Revokes the access to these topics. Returns how many attachments lost it.
    pub(in crate::node) fn revoke(
        &mut self,
        core: &NodeCore,
        is_revoked: &dyn Fn(&TopicName, &Peer) -> bool,
    ) -> usize {
        let is_revoked = |topic: &TopicName| is_revoked(topic, &self.subscriber(core, topic));
        let all = self.attachments.iter().filter(|(_, it)| is_revoked(&it.topic.name)).map(|(id, _)| *id);
        let all: Vec<_> = all.collect();
        all.iter().for_each(|id| self.revoke_one(core, *id));
        self.tell_revoked();
        all.len()
    }

    /// Compares what the peer has proven with the keys that are in force now, and revokes what they do not permit.
    pub(in crate::node) fn renew_keys(&mut self, core: &NodeCore, keys: &Arc<Keys>) {
        if !self.session.renew_keys(self.peer.as_ref(), keys) {
            self.session.reject(RefuseReason::NotPermitted, KEYS_REMOVED);
        }
        let authority = self.session.authority();
        self.revoke(core, &|topic, _| !authority.permits(Right::Read, topic));
    }

    fn revoke_one(&mut self, core: &NodeCore, id: AttachmentId) {
        let Some(attachment) = self.attachments.remove(&id) else { return };
        attachment.leave();
        // Its landing region is written no more.
        attachment.closed.store(true, Ordering::Relaxed);
        self.beginning.remove(&id);
        self.ending.remove(&id);
        if attachment.delivery == Delivery::Pull {
            self.withdraw(&attachment.topic);
            let capabilities = self.connection.capabilities();
            if !capabilities.withdraws_one && !capabilities.shares_memory {
                self.session.reject(RefuseReason::NotPermitted, SESSION_REVOKED);
            }
        }
        let peer = self.peer.as_ref().unwrap_or(&core.identity.node).clone();
        let (process, topic) = (self.process, attachment.topic.name.clone());
        core.tell(&Event::SubscriberRevoked { peer, process, topic });
        self.revoked.insert(id, attachment);
    }

    /// Notifies the peer of revoked attachments, once nothing of them is written or read.
    pub(super) fn tell_revoked(&mut self) {
        let (session, ended) = (&mut self.session, &mut self.ended);
        self.revoked.retain(|id, attachment| {
            if !attachment.is_revoked() {
                return true;
            }
            let topic = &attachment.topic;
            // Fails if the session has ended meanwhile, and is not needed then.
            let _ = session.let_go(*id, LetGoReason::Revoked, topic.newest().get());
            let (name, counted, unfinished) = (topic.name.clone(), attachment.counted, topic.notified());
            ended.insert(*id, EndedAttachment { name, counted, kept: None, unfinished });
            false
        });
    }

    /// Takes a revoked attachment from which the peer has detached before it was notified.
    pub(super) fn take_revoked(&mut self, id: AttachmentId) -> Option<ServedAttachment> {
        self.revoked.remove(&id)
    }
}
