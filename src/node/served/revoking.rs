//! Revoking the access of a peer to a topic.

use std::sync::Arc;

use super::Served;
use super::attachment::{EndedAttachment, RevokedAttachment, ServedAttachment};
use crate::control::{AttachmentId, LetGoReason, Peer, RefuseReason};
use crate::event::Event;
use crate::id::{Delivery, TopicName};
use crate::keyring::Keys;
use crate::limits;
use crate::node::core::NodeCore;
use crate::publisher::PublishedTopic;
use crate::sync::atomic::Ordering;

/// Ends a session in which one topic cannot be withdrawn alone.
const SESSION_REVOKED: &str =
    "the access to a topic was revoked, and the device has no memory windows: the session ends";
/// Ends a session whose peer has proven no key that is left.
const KEYS_REMOVED: &str = "the keys that this peer has proven are no longer in the keyring";

impl Served {
    /// Revokes the access to these topics, as part of the revocation with this number. Returns how many attachments lose it;
    /// [`Self::is_revoking`] says until when.
    pub(in crate::node) fn revoke(
        &mut self,
        core: &NodeCore,
        serial: u64,
        is_revoked: &dyn Fn(&TopicName, &Peer) -> bool,
    ) -> usize {
        let is_revoked =
            |served: &Self, topic: &TopicName| is_revoked(topic, &served.subscriber(core, topic));
        self.revoke_those(core, serial, &is_revoked)
    }

    /// Does the same for the topics of which this is so.
    fn revoke_those(
        &mut self,
        core: &NodeCore,
        serial: u64,
        is_revoked: &dyn Fn(&Self, &TopicName) -> bool,
    ) -> usize {
        let all =
            self.attachments.iter().filter(|(_, it)| is_revoked(self, &it.topic.name)).map(|(id, _)| *id);
        let all: Vec<_> = all.collect();
        let now_ns = core.clock.monotonic_ns();
        all.iter().for_each(|id| self.revoke_one(core, *id, (serial, now_ns)));
        self.tend_revoked(now_ns);
        all.len()
    }

    /// Compares what the peer has proven with the keys that are in force now, and revokes what they do not permit.
    pub(in crate::node) fn renew_keys(&mut self, core: &NodeCore, keys: &Arc<Keys>) {
        if !self.session.renew_keys(self.peer.as_ref(), keys) {
            self.session.reject(RefuseReason::NotAuthenticated, KEYS_REMOVED);
            return;
        }
        // By the right for which the session was made: a peer that this node has dialled has proven another one.
        self.revoke_those(core, 0, &|served, topic| !served.session.permits(topic));
    }

    /// Whether what the peer proves was compared with these keys.
    pub(in crate::node) fn uses(&self, keys: &Arc<Keys>) -> bool {
        self.session.uses(keys)
    }

    /// Whether the peer may still reach what this revocation covers.
    pub(in crate::node) fn is_revoking(&self, serial: u64) -> bool {
        self.revoked.values().any(|revoked| revoked.serial == serial)
    }

    /// When it no longer may read.
    pub(super) fn revoked_due_ns(&self) -> Option<u64> {
        self.revoked.values().filter(|revoked| revoked.is_readable).map(|revoked| revoked.until_ns).min()
    }

    fn revoke_one(&mut self, core: &NodeCore, id: AttachmentId, (serial, now_ns): (u64, u64)) {
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
        let is_shared = self.connection.capabilities().shares_memory;
        let is_readable = attachment.delivery == Delivery::Pull && !is_shared;
        self.revoked
            .insert(id, RevokedAttachment { attachment, serial, is_told: false, is_readable, until_ns });
    }

    /// Notifies the peer of revoked attachments, once nothing of them is written or read, and withdraws what it does not leave in time.
    pub(super) fn tend_revoked(&mut self, now_ns: u64) {
        let (mut late, mut over) = (Vec::new(), Vec::new());
        for (id, revoked) in &mut self.revoked {
            let RevokedAttachment { attachment, is_told, is_readable, until_ns, .. } = revoked;
            if !*is_told && attachment.is_revoked() {
                // Fails if the session has ended meanwhile, and is not needed then.
                let _ = self.session.let_go(*id, LetGoReason::Revoked, attachment.topic.newest().get());
                *is_told = true;
            }
            if *is_readable && *until_ns <= now_ns {
                *is_readable = false;
                late.push(Arc::clone(&attachment.topic));
            }
            if *is_told && !*is_readable {
                over.push(*id);
            }
        }
        late.iter().for_each(|topic| self.withdraw_revoked(topic));
        for id in over {
            let Some(RevokedAttachment { attachment, .. }) = self.revoked.remove(&id) else { continue };
            let (name, counted) = (attachment.topic.name.clone(), attachment.counted);
            self.ended.insert(id, EndedAttachment { name, counted, kept: None, unfinished: None });
        }
    }

    /// Withdraws what was revoked: the session is over, and its connection may outlast it.
    pub(super) fn withdraw_all_revoked(&mut self) {
        for (_, RevokedAttachment { attachment, is_readable, .. }) in std::mem::take(&mut self.revoked) {
            if is_readable {
                self.withdraw(&attachment.topic);
            }
        }
    }

    /// Takes a revoked attachment from which the peer has detached.
    pub(super) fn take_revoked(&mut self, id: AttachmentId) -> Option<ServedAttachment> {
        let RevokedAttachment { attachment, is_readable, .. } = self.revoked.remove(&id)?;
        if is_readable {
            self.withdraw_revoked(&attachment.topic);
        }
        Some(attachment)
    }

    /// Withdraws a topic's repository, or ends the session where that is not possible alone.
    fn withdraw_revoked(&mut self, topic: &Arc<PublishedTopic>) {
        self.withdraw(topic);
        if !self.connection.capabilities().withdraws_one {
            self.session.reject(RefuseReason::NotPermitted, SESSION_REVOKED);
        }
    }
}
