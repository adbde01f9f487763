//! The beginning of a session: hellos, proofs, and the invitation.

use std::sync::Arc;

use super::{ServerAction, ServerSession, ServerState};
use crate::control::error::{ControlError, RefuseReason};
use crate::control::handshake::{Greeted, Invited};
use crate::control::message::{Hello, Invite, Message};
use crate::control::proof::Prove;
use crate::id::{NodeName, TopicName};
use crate::keyring::{Authority, KeyName, Keys};

/// Refuses an invitation to a topic that no proven key covers.
const NOT_COVERED: &str = "none of the keys that the publisher's node has proven covers this topic";

impl ServerSession {
    /// Whether [`bind`](Self::bind) has to be called before the next message is handled.
    pub(crate) fn needs_binding(&self) -> bool {
        self.handshake.needs_binding()
    }

    /// Sets what the fabric connects, as proofs contain it.
    pub(crate) fn bind(&mut self, binding: Vec<u8>) {
        self.handshake.bind(binding);
    }

    /// What the peer may do.
    pub(crate) fn authority(&self) -> Authority {
        self.handshake.authority()
    }

    /// Compares what the peer has proven with the keys that are in force now. Returns whether it may go on.
    pub(crate) fn renew_keys(&mut self, peer: Option<&NodeName>, keys: &Arc<Keys>) -> bool {
        // One that has yet to invite is known to this session only.
        let peer = peer.or_else(|| self.peer.as_ref().map(|peer| &peer.node));
        self.handshake.renew_keys(peer, keys)
    }

    /// Whether what the peer proves was compared with these keys.
    pub(crate) fn uses(&self, keys: &Arc<Keys>) -> bool {
        self.handshake.uses(keys)
    }

    /// Whether the peer may know of this topic, by the keys that it has proven.
    pub(crate) fn permits(&self, topic: &TopicName) -> bool {
        self.handshake.permits(topic)
    }

    /// The key that the peer has proven, and that covers this topic; `None` without keys.
    pub(crate) fn key_for(&self, topic: &TopicName) -> Option<KeyName> {
        self.handshake.key_for(topic)
    }

    /// Takes the hello of a peer that dialled.
    pub(super) fn take_hello(
        &mut self,
        hello: Hello,
        bytes: &[u8],
        deadline_ns: u64,
    ) -> Result<(), ControlError> {
        let (greeted, answer) = self.handshake.take_hello(&hello, bytes)?;
        self.actions.push_back(ServerAction::Send(answer));
        (self.peer, self.is_publisher) = (Some(hello.identity), hello.invites);
        match greeted {
            Greeted::Done => self.begin(deadline_ns),
            Greeted::Proving => self.state = ServerState::Proving { deadline_ns },
        }
        Ok(())
    }

    /// Takes the hello of a peer that this side dialled.
    pub(super) fn take_answer(
        &mut self,
        hello: Hello,
        bytes: &[u8],
        deadline_ns: u64,
    ) -> Result<(), ControlError> {
        let proofs = self.handshake.take_answer(&hello, bytes)?;
        self.peer = Some(hello.identity);
        match proofs {
            Some(proofs) => {
                self.send(&Message::Prove(proofs));
                self.state = ServerState::Proving { deadline_ns };
                Ok(())
            }
            None => self.invite(),
        }
    }

    pub(super) fn take_prove(&mut self, prove: &Prove, deadline_ns: u64) -> Result<(), ControlError> {
        let closed = self.closed();
        let peer = self.peer.as_ref().ok_or(closed)?;
        match self.handshake.take_proofs(&peer.node, prove)? {
            Some(proofs) => {
                self.send(&Message::Prove(proofs));
                self.begin(deadline_ns);
                Ok(())
            }
            None => self.invite(),
        }
    }

    pub(super) fn take_invite(&mut self, Invite { topic }: Invite) {
        // Whether or not there is a listener.
        if !self.handshake.permits(&topic) {
            return self.reject(RefuseReason::NotPermitted, NOT_COVERED);
        }
        self.state = ServerState::Invited;
        let invited = self.peer.take().map(|identity| ServerAction::Invited(Invited { identity, topic }));
        self.actions.extend(invited);
    }

    /// Begins what the peer has dialled for.
    fn begin(&mut self, deadline_ns: u64) {
        if self.is_publisher {
            self.state = ServerState::AwaitInvite { deadline_ns };
        } else {
            self.identify();
        }
    }

    /// Invites the peer that this side dialled.
    fn invite(&mut self) -> Result<(), ControlError> {
        if let Some(topic) = self.invites_to.take() {
            self.handshake.check(&topic)?;
            self.send(&Message::Invite(Invite { topic }));
        }
        self.identify();
        Ok(())
    }

    fn identify(&mut self) {
        self.state = ServerState::Ready;
        let identified = self.peer.take().map(ServerAction::PeerIdentified);
        self.actions.extend(identified);
    }
}
