//! The end of a session.

use super::Served;
use crate::chain::ErrorChain;
use crate::control::{ControlError, EndSummary, RefuseReason};
use crate::event::Event;
use crate::fabric::FabricError;
use crate::id::NodeName;
use crate::limits;
use crate::node::core::NodeCore;
use crate::node::serving::Serving;

/// Messages received from a peer that is gone: as many as one that ended in good order may leave queued.
const LAST_MESSAGES_MAX: usize = limits::OUTBOUND_MESSAGES_MAX + limits::ATTACHMENTS_PER_SESSION_MAX;

impl Served {
    /// Reports how the session ended.
    pub(super) fn close(&mut self, core: &NodeCore, result: Result<EndSummary, ControlError>) {
        self.attachments.clear();
        self.preparing.clear();
        self.beginning.clear();
        self.ending.clear();
        self.leaving.clear();
        self.withdraw_all_revoked();
        self.ended.clear();
        self.closing = true;
        if let Some(invitation) = self.invitation.take() {
            invitation.closed(result.as_ref().err());
        }
        let (orderly, peer) = (result.is_ok(), self.peer.take());
        // A peer that is known and gone has done nothing wrong. One that never connected gave this attempt up, and the notice of
        // that may be lost.
        let is_connecting = self.connection.capabilities().is_connecting;
        let is_innocent = match result {
            Err(ControlError::Disconnected | ControlError::Broken { .. }) => peer.is_some() || is_connecting,
            Err(ControlError::Deadline { .. }) => is_connecting,
            Err(ControlError::Rejected { reason: RefuseReason::Idle }) => true,
            _ => false,
        };
        if let Err(error) = result
            && !is_innocent
        {
            let place = self.connection.place().ok().flatten();
            let reason = match place.map(|place| place.peer().to_string()) {
                Some(whose) => format!("{whose}: {error}"),
                None => error.to_string(),
            };
            core.tell(&Event::PeerRejected { reason });
        }
        if let Some(peer) = peer {
            core.tell(&Event::SessionClosed { peer, orderly });
        }
    }

    /// Ends a session whose connection cannot be watched.
    pub(in crate::node) fn abandon(&mut self, core: &NodeCore) {
        let why = "its connection cannot be watched".to_owned();
        self.close(core, Err(ControlError::Broken { why }));
        self.over = true;
    }

    /// Sends queued messages.
    pub(super) fn flush(&mut self, serving: &mut Serving) {
        let flushed = self.outbox.flush(self.connection.as_mut());
        match &flushed {
            Ok(_) => {}
            Err(FabricError::Closed) => {
                self.receive_rest(serving);
                if self.connection.held_back_until_ns().is_some() {
                    // The rest is received later.
                    self.over |= self.closing;
                    return;
                }
            }
            Err(error) => {
                let peer = self.peer.as_ref().map_or("a peer", NodeName::as_str);
                let reason = format!("cannot send to {peer}: {}", ErrorChain(error));
                serving.core.tell(&Event::PeerRejected { reason });
            }
        }
        // The peer takes nothing, or is gone: it is not waited for.
        if !matches!(flushed, Ok(true)) {
            self.session.on_disconnected();
            self.act(serving, None);
            self.closing = true;
            self.attachments.clear();
            self.ended.clear();
        }
        self.over |= self.closing;
    }

    /// Receives what a peer sent before it was gone, possibly the end of the session.
    fn receive_rest(&mut self, serving: &mut Serving) {
        for _ in 0..LAST_MESSAGES_MAX {
            if self.closing || self.over || self.is_invited() || !self.receive(serving) {
                return;
            }
        }
    }
}
