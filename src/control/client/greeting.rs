//! The beginning of a session: hellos and proofs.

use std::sync::Arc;

use super::{ClientEvent, ClientSession, ClientState};
use crate::control::error::ControlError;
use crate::control::message::{Hello, Message};
use crate::control::proof::Prove;
use crate::id::{NodeName, TopicName};
use crate::keyring::{Authority, KeyName, Keys};

impl ClientSession {
    /// Whether the keys that the peer has proven cover this topic.
    pub(crate) fn permits(&self, topic: &TopicName) -> bool {
        self.handshake.permits(topic)
    }

    /// Whether the peer has proven a key, so that it demands one of its other peers, too.
    pub(crate) fn is_proven(&self) -> bool {
        matches!(self.handshake.authority(), Authority::Proven(_))
    }

    /// Compares what the peer has proven with the keys that are in force now. Returns whether it may go on.
    pub(crate) fn renew_keys(&mut self, peer: Option<&NodeName>, keys: &Arc<Keys>) -> bool {
        self.handshake.renew_keys(peer, keys)
    }

    /// Whether what the peer proves was compared with these keys.
    pub(crate) fn uses(&self, keys: &Arc<Keys>) -> bool {
        self.handshake.uses(keys)
    }

    /// Whether [`bind`](Self::bind) has to be called before the next message is handled.
    pub(crate) fn needs_binding(&self) -> bool {
        self.handshake.needs_binding()
    }

    /// Sets what the fabric connects, as proofs contain it.
    pub(crate) fn bind(&mut self, binding: Vec<u8>) {
        self.handshake.bind(binding);
    }

    /// The key that the peer has proven, and that covers this topic; `None` without keys.
    pub(crate) fn key_for(&self, topic: &TopicName) -> Option<KeyName> {
        self.handshake.key_for(topic)
    }

    pub(super) fn take_hello(
        &mut self,
        hello: Hello,
        bytes: &[u8],
        deadline_ns: u64,
    ) -> Result<Option<ClientEvent>, ControlError> {
        if let Some(proofs) = self.handshake.take_answer(&hello, bytes)? {
            self.send(&Message::Prove(proofs));
            self.state = ClientState::Proving { deadline_ns };
            self.peer = Some(hello.identity);
            return Ok(None);
        }
        self.state = ClientState::Ready;
        Ok(Some(ClientEvent::Ready { peer: hello.identity }))
    }

    pub(super) fn take_prove(&mut self, prove: &Prove) -> Result<ClientEvent, ControlError> {
        let peer = self.peer.take().ok_or_else(|| self.closed())?;
        self.handshake.take_proofs(&peer.node, prove)?;
        self.state = ClientState::Ready;
        Ok(ClientEvent::Ready { peer })
    }
}
