//! The beginning of a session, the same at both ends and for subscribers and publishers that dial: hellos, and, where a node has
//! keys, proofs.
//!
//! ```text
//! the end that dialled                      the other end
//!   Hello, with a challenge ------------->                          no challenge: refused
//!         <------------------------------- Hello, with a challenge
//!   Prove, for each key ----------------->                          no known key, or a wrong tag: refused
//!         <------------------------------- Prove, for the known ones
//! ```

use std::num::NonZeroU64;
use std::sync::Arc;

use super::codec::Outgoing;
use super::error::{ControlError, Unproven};
use super::message::{Hello, Identity, Message};
use super::proof::{Proof, Prove};
use crate::id::{NodeName, TopicName};
use crate::keyring::{Authority, Challenge, Key, KeyName, Keys, Right, Transcript};

/// What a node proves to its peers, and demands of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    keys: Option<(Arc<Keys>, Challenge)>,
    /// Whether a peer that this node dialled may do without keys, because the medium vouches for it.
    trusts_dialled: bool,
}

/// How an end introduces itself.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    pub(super) identity: Identity,
    pub(super) nonce: NonZeroU64,
    credentials: Credentials,
}

/// A peer that may invite this side, and has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invited {
    /// The peer.
    pub(crate) identity: Identity,
    /// The topic.
    pub(crate) topic: TopicName,
}

/// The handshake of one end.
#[derive(Debug)]
pub(super) struct Handshake {
    greeting: Greeting,
    is_dialling: bool,
    /// What the end that dialled needs at the other.
    purpose: Right,
    /// The own hello, as sent.
    own: Vec<u8>,
    /// What the fabric connects, once known.
    binding: Option<Vec<u8>>,
    /// Set while proofs are pending.
    transcript: Option<Transcript>,
    /// What the peer may do, once that is known.
    authority: Option<Authority>,
}

/// What follows from a peer's hello.
#[derive(Debug)]
pub(super) enum Greeted {
    /// Nothing is to be proven.
    Done,
    /// The peer's proofs are awaited.
    Proving,
}

impl Credentials {
    /// Proves these keys with this challenge, which must be new, and demands proofs.
    pub(crate) fn new(keys: Arc<Keys>, challenge: Challenge, trusts_dialled: bool) -> Self {
        Self { keys: Some((keys, challenge)), trusts_dialled }
    }
}

impl Greeting {
    /// The greeting of this node, with a random number.
    pub(crate) fn new(identity: Identity, nonce: NonZeroU64, credentials: Credentials) -> Self {
        Self { identity, nonce, credentials }
    }
}

impl Handshake {
    /// The handshake of the end that dialled, to subscribe or to publish, and its hello.
    pub(super) fn dialling(greeting: Greeting, purpose: Right) -> (Self, Outgoing) {
        let mut handshake = Self::new(greeting, true);
        handshake.purpose = purpose;
        let hello = handshake.hello(None);
        (handshake, hello)
    }

    /// The handshake of the end that was dialled.
    pub(super) fn dialled(greeting: Greeting) -> Self {
        Self::new(greeting, false)
    }

    /// A handshake that is over: the other end of it was part of another session on the same connection.
    pub(super) fn over(greeting: Greeting, purpose: Right, authority: Authority) -> Self {
        Self { purpose, authority: Some(authority), ..Self::new(greeting, false) }
    }

    fn new(greeting: Greeting, is_dialling: bool) -> Self {
        Self {
            greeting,
            is_dialling,
            purpose: Right::Read,
            own: Vec::new(),
            binding: None,
            transcript: None,
            authority: None,
        }
    }

    /// Whether what the fabric connects has to be known before the next message.
    pub(super) fn needs_binding(&self) -> bool {
        self.greeting.credentials.keys.is_some() && self.binding.is_none() && self.authority.is_none()
    }

    /// Sets what the fabric connects.
    pub(super) fn bind(&mut self, binding: Vec<u8>) {
        self.binding = Some(binding);
    }

    /// What the peer may do. Nothing, before the handshake is over.
    pub(super) fn authority(&self) -> Authority {
        self.authority.clone().unwrap_or(Authority::Proven(Vec::new()))
    }

    /// Whether the keys that the peer has proven cover this topic, for what the end that dialled needs.
    pub(super) fn permits(&self, topic: &TopicName) -> bool {
        self.authority.as_ref().is_some_and(|authority| authority.permits(self.purpose, topic))
    }

    /// Compares what this peer has proven with the keys that are in force now: those with other secrets, or for other nodes, count no more,
    /// and what is proven from now on is compared with the new ones. Returns whether the peer has proven one that is left, or has not
    /// yet, or needs none.
    pub(super) fn renew_keys(&mut self, peer: Option<&NodeName>, keys: &Arc<Keys>) -> bool {
        if let Some((known, _)) = &mut self.greeting.credentials.keys {
            *known = Arc::clone(keys);
        }
        let Some(Authority::Proven(proven)) = &mut self.authority else { return true };
        let is_left = |key: &&Arc<Key>| key.gives(self.purpose) && peer.is_none_or(|peer| key.is_for(peer));
        *proven = proven.iter().filter_map(|key| keys.with(key.id()).filter(is_left).cloned()).collect();
        !proven.is_empty()
    }

    /// Whether what the peer proves, or has proven, was compared with these keys; always if it needs none.
    pub(super) fn uses(&self, keys: &Arc<Keys>) -> bool {
        self.greeting.credentials.keys.as_ref().is_none_or(|(known, _)| Arc::ptr_eq(known, keys))
    }

    /// Checks that they cover it.
    pub(super) fn check(&self, topic: &TopicName) -> Result<(), ControlError> {
        if self.permits(topic) { Ok(()) } else { Err(ControlError::NotCovered { topic: topic.clone() }) }
    }

    /// The key that covers this topic.
    pub(super) fn key_for(&self, topic: &TopicName) -> Option<KeyName> {
        self.authority.as_ref()?.key_for(self.purpose, topic).cloned()
    }

    /// Takes the answer of the peer that this end dialled, and returns the proofs to be sent, if any are.
    pub(super) fn take_answer(&mut self, hello: &Hello, bytes: &[u8]) -> Result<Option<Prove>, ControlError> {
        if hello.answers != Some(self.greeting.nonce) {
            return Err(wrong_hello("it answers another hello"));
        }
        let Some((keys, _)) = self.greeting.credentials.keys.clone() else {
            self.authority = Some(Authority::Anyone);
            return Ok(None);
        };
        if hello.challenge.is_none() {
            if !self.greeting.credentials.trusts_dialled {
                return Err(Unproven::DialledWithoutKeys.into());
            }
            self.authority = Some(Authority::Anyone);
            return Ok(None);
        }
        let transcript = self.transcript_with(bytes)?;
        let proofs = Prove::cut(keys.giving(self.purpose).map(|key| proof_of(key, &transcript)));
        if proofs.items().is_empty() {
            return Err(Unproven::NoKeyWithRight { right: self.purpose }.into());
        }
        self.transcript = Some(transcript);
        Ok(Some(proofs))
    }

    /// Takes the first hello of a peer that dialled. This end's hello is to be sent next.
    pub(super) fn take_hello(
        &mut self,
        hello: &Hello,
        bytes: &[u8],
    ) -> Result<(Greeted, Outgoing), ControlError> {
        if hello.answers.is_some() {
            return Err(wrong_hello("no hello was requested"));
        }
        self.purpose = if hello.invites { Right::Publish } else { Right::Read };
        let has_keys = self.greeting.credentials.keys.is_some();
        if has_keys && hello.challenge.is_none() {
            return Err(Unproven::WithoutKeys.into());
        }
        let answer = self.hello(Some(hello.nonce));
        if !has_keys {
            self.authority = Some(Authority::Anyone);
            return Ok((Greeted::Done, answer));
        }
        self.transcript = Some(self.transcript_with(bytes)?);
        Ok((Greeted::Proving, answer))
    }

    /// Takes the peer's proofs. If it dialled, returns those of this end, which are to be sent.
    pub(super) fn take_proofs(
        &mut self,
        peer: &NodeName,
        prove: &Prove,
    ) -> Result<Option<Prove>, ControlError> {
        let (Some(transcript), Some((keys, _))) = (self.transcript.take(), &self.greeting.credentials.keys)
        else {
            return Err(Unproven::NoKnownKey.into());
        };
        let mut proven: Vec<Arc<Key>> = Vec::new();
        for Proof { key, tag } in prove.items() {
            let Some(key) = keys.with(*key).filter(|key| key.gives(self.purpose)) else { continue };
            if !transcript.is_peers(key, tag) {
                return Err(Unproven::WrongTag.into());
            }
            // Its name is part of the transcript.
            if key.is_for(peer) && !proven.iter().any(|known| known.id() == key.id()) {
                proven.push(Arc::clone(key));
            }
        }
        if proven.is_empty() {
            return Err(Unproven::NoKnownKey.into());
        }
        let answer =
            (!self.is_dialling).then(|| Prove::cut(proven.iter().map(|key| proof_of(key, &transcript))));
        self.authority = Some(Authority::Proven(proven));
        Ok(answer)
    }

    /// This end's hello.
    fn hello(&mut self, answers: Option<NonZeroU64>) -> Outgoing {
        let Greeting { identity, nonce, credentials } = &self.greeting;
        let hello = Outgoing::of(&Message::Hello(Hello {
            nonce: *nonce,
            answers,
            identity: identity.clone(),
            invites: self.is_dialling && self.purpose == Right::Publish,
            challenge: credentials.keys.as_ref().map(|(_, challenge)| *challenge),
        }));
        self.own.clone_from(&hello.bytes);
        hello
    }

    fn transcript_with(&self, peers: &[u8]) -> Result<Transcript, ControlError> {
        let binding = self.binding.as_ref().ok_or(Unproven::Unbound)?;
        Ok(Transcript::new(self.is_dialling, &self.own, peers, binding))
    }
}

fn proof_of(key: &Key, transcript: &Transcript) -> Proof {
    Proof { key: key.id(), tag: transcript.tag(key) }
}

fn wrong_hello(detail: &'static str) -> ControlError {
    ControlError::WrongAnswer { message: "Hello", detail }
}
