//! The end of a session.

use super::Served;
use crate::control::{ControlError, EndSummary};
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
        self.ended.clear();
        self.closing = true;
        if let Some(invitation) = self.invitation.take() {
            invitation.closed(result.as_ref().err());
        }
        match (result, self.peer.take()) {
            (Ok(_), Some(peer)) => core.tell(&Event::SessionClosed { peer, orderly: true }),
            (Err(ControlError::Disconnected | ControlError::Broken { .. }), Some(peer)) => {
                core.tell(&Event::SessionClosed { peer, orderly: false });
            }
            (Err(error), Some(peer)) => {
                core.tell(&Event::PeerRejected { reason: error.to_string() });
                core.tell(&Event::SessionClosed { peer, orderly: false });
            }
            (Err(error), None) => core.tell(&Event::PeerRejected { reason: error.to_string() }),
            (Ok(_), None) => {}
        }
    }

    /// Sends queued messages.
    pub(super) fn flush(&mut self, serving: &mut Serving) {
        match self.outbox.flush(self.connection.as_mut()) {
            Ok(true) => {}
            // The peer is stalled or gone: no thread waits for it.
            outcome @ (Ok(false) | Err(_)) => {
                match outcome {
                    Err(FabricError::Closed) => self.receive_rest(serving),
                    Err(error) => {
                        let peer = self.peer.as_ref().map_or("a peer", NodeName::as_str);
                        serving
                            .core
                            .tell(&Event::Trouble { what: format!("cannot send to {peer}: {error}") });
                    }
                    Ok(_) => {}
                }
                self.session.on_disconnected();
                self.act(serving, None);
                self.closing = true;
                self.over = true;
                self.attachments.clear();
                self.ended.clear();
            }
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
