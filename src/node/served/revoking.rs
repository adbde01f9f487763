//! Revoking the access of a peer to a topic.

use std::sync::Arc;

use super::Served;
use super::attachment::{EndedAttachment, RevokedAttachment, ServedAttachment};
use crate::control::{AttachmentId, LetGoReason, Peer, RefuseReason};
use crate::event::Event;
use crate::id::{Delivery, TopicName};
use crate::keyring::{Keys, Right};
use crate::limits;
use crate::node::core::NodeCore;
use crate::sync::atomic::Ordering;

/// Ends a session in which one topic cannot be withdrawn alone.
const SESSION_REVOKED: &str =
    "the access to a topic was revoked, and the device has no memory windows: the session ends";
/// Ends a session whose peer has proven no key that is left.
const KEYS_REMOVED: &str = "the keys that this peer has proven are no longer in the keyring";

impl Served {
    /// Revokes the access to these topics. Returns how many attachments lose it; [`Self::is_revoking`] says until when.
    pub(in crate::node) fn revoke(
        &mut self,
        core: &NodeCore,
        is_revoked: &dyn Fn(&TopicName, &Peer) -> bool,
    ) -> usize {
        let is_revoked = |topic: &TopicName| is_revoked(topic, &self.subscriber(core, topic));
        let all = self.attachments.iter().filter(|(_, it)| is_revoked(&it.topic.name)).map(|(id, _)| *id);
        let all: Vec<_> = all.collect();
        let now_ns = core.clock.monotonic_ns();
        all.iter().for_each(|id| self.revoke_one(core, *id, now_ns));
        self.tend_revoked(now_ns);
        all.len()
    }

    /// Compares what the peer has proven with the keys that are in force now, and revokes what they do not permit.
    pub(in crate::node) fn renew_keys(&mut self, core: &NodeCore, keys: &Arc<Keys>) {
        if !self.session.renew_keys(self.peer.as_ref(), keys) {
            self.session.reject(RefuseReason::NotAuthenticated, KEYS_REMOVED);
            return;
        }
        let authority = self.session.authority();
        self.revoke(core, &|topic, _| !authority.permits(Right::Read, topic));
    }

    /// Whether the peer may still reach what was revoked.
    pub(in crate::node) fn is_revoking(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// When it no longer may.
    pub(super) fn revoked_due_ns(&self) -> Option<u64> {
        self.revoked.values().map(|revoked| revoked.until_ns).min()
    }

    fn revoke_one(&mut self, core: &NodeCore, id: AttachmentId, now_ns: u64) {
        let Some(attachment) = self.attachments.remove(&id) else { return };
        attachment.leave();
        // Its landing region is written no more.
        attachment.closed.store(true, Ordering::Relaxed);
        self.beginning.remove(&id);
        self.ending.remove(&id);
        let peer = self.peer.as_ref().unwrap_or(&core.identity.node).clone();
        let (process, topic) = (self.process, attachment.topic.name.clone());
        core.tell(&Event::SubscriberRevoked { peer, process, topic });
        let until_ns = now_ns.saturating_add(limits::REVOKED_GRACE_NS);
        self.revoked.insert(id, RevokedAttachment { attachment, is_told: false, until_ns });
    }

    /// Notifies the peer of revoked attachments, once nothing of them is written or read, and withdraws what it does not leave in time.
    pub(super) fn tend_revoked(&mut self, now_ns: u64) {
        let is_shared = self.connection.capabilities().shares_memory;
        let mut over = Vec::new();
        for (id, RevokedAttachment { attachment, is_told, until_ns }) in &mut self.revoked {
            if !*is_told && attachment.is_revoked() {
                // Fails if the session has ended meanwhile, and is not needed then.
                let _ = self.session.let_go(*id, LetGoReason::Revoked, attachment.topic.newest().get());
                *is_told = true;
            }
            let reads = attachment.delivery == Delivery::Pull && !is_shared;
            if *is_told && !reads || *until_ns <= now_ns {
                over.push(*id);
            }
        }
        for id in over {
            let Some(RevokedAttachment { attachment, is_told, .. }) = self.revoked.remove(&id) else {
                continue;
            };
            self.withdraw_revoked(&attachment);
            if !is_told {
                // What is in flight still needs the attachment.
                self.leaving.insert(id, attachment);
                continue;
            }
            let (name, counted) = (attachment.topic.name.clone(), attachment.counted);
            let unfinished = attachment.topic.notified();
            self.ended.insert(id, EndedAttachment { name, counted, kept: None, unfinished });
        }
    }

    /// Takes a revoked attachment from which the peer has detached.
    pub(super) fn take_revoked(&mut self, id: AttachmentId) -> Option<ServedAttachment> {
        let RevokedAttachment { attachment, .. } = self.revoked.remove(&id)?;
        self.withdraw_revoked(&attachment);
        Some(attachment)
    }

    fn withdraw_revoked(&mut self, attachment: &ServedAttachment) {
        if attachment.delivery != Delivery::Pull {
            return;
        }
        self.withdraw(&attachment.topic);
        let capabilities = self.connection.capabilities();
        if !capabilities.withdraws_one && !capabilities.shares_memory {
            self.session.reject(RefuseReason::NotPermitted, SESSION_REVOKED);
        }
    }
}
