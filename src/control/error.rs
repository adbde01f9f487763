//! Errors of the control channel, and the reasons of a publisher's refusal.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::TopicName;
use crate::keyring::Right;
use crate::limits;

/// An error of a session on the control channel, or of a request on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The message is shorter than a header.
    #[error("a control message of {len} bytes is too short: the peer does not speak this protocol")]
    TooShort {
        /// Bytes received.
        len: usize,
    },
    /// The message exceeds the length limit.
    #[error("a control message of {len} bytes exceeds the limit of {max}", max = limits::CONTROL_MESSAGE_LEN_MAX)]
    TooLong {
        /// Bytes received.
        len: usize,
    },
    /// The message has the wrong magic number.
    #[error("a message begins with {found:#010x}: the peer does not speak this protocol")]
    BadMagic {
        /// The first four bytes, as a number in network byte order.
        found: u32,
    },
    /// The peer speaks another version of the protocol.
    #[error("the peer speaks control version {theirs}, this program speaks {ours}: upgrade the older one")]
    Version {
        /// The peer's version.
        theirs: u16,
        /// The version of this program.
        ours: u16,
    },
    /// The message is longer or shorter than its header states.
    #[error("a control message states {stated} bytes and has {found}")]
    LengthMismatch {
        /// Bytes stated in the header, itself included.
        stated: u64,
        /// Bytes received.
        found: usize,
    },
    /// The message was damaged in transit.
    #[error("a control message is damaged: its checksum is {found:#010x}, it states {stated:#010x}")]
    BadChecksum {
        /// The checksum in the header.
        stated: u32,
        /// The checksum of the received bytes.
        found: u32,
    },
    /// The message is intact, but of an unknown kind.
    #[error("the peer sent a control message of unknown kind {kind}")]
    UnknownKind {
        /// The number of the kind.
        kind: u16,
    },
    /// The message is intact, but its content is invalid.
    #[error("the peer's {message} message is malformed: {detail}")]
    Malformed {
        /// The kind of message.
        message: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The peer sent a message out of turn.
    #[error("the peer sent {message} while the session was {state}")]
    Unexpected {
        /// The kind of message.
        message: &'static str,
        /// The state of the session.
        state: &'static str,
    },
    /// A message carried the wrong number of regions.
    #[error("the peer's {message} message carried {found} regions instead of {expected}")]
    WrongRegions {
        /// The kind of message.
        message: &'static str,
        /// The expected number of regions.
        expected: usize,
        /// The received number of regions.
        found: usize,
    },
    /// The peer named an attachment that does not exist, or is in the wrong state.
    #[error("the peer sent {message} for attachment {attachment}, which is {state}")]
    WrongAttachment {
        /// The kind of message.
        message: &'static str,
        /// The attachment's number.
        attachment: u32,
        /// The state of the attachment.
        state: &'static str,
    },
    /// An answer does not match its request.
    #[error("the peer's {message} message does not match the request: {detail}")]
    WrongAnswer {
        /// The kind of message.
        message: &'static str,
        /// The mismatch.
        detail: &'static str,
    },
    /// The peer did not answer in time.
    #[error("the peer sent no {awaited} in time")]
    Deadline {
        /// The expected message.
        awaited: &'static str,
    },
    /// The peer refused the whole session.
    #[error("the peer refused the session ({reason}){}", Said(.text))]
    Refused {
        /// The reason, as a number that programs can match on.
        reason: RefuseReason,
        /// The reason in the peer's words; may be empty.
        text: String,
    },
    /// The two nodes did not prove a key to each other.
    #[error("the peer is not authenticated: {why}")]
    Unauthenticated {
        /// What was missing.
        why: Unproven,
    },
    /// No key that the peer has proven covers the topic.
    #[error(
        "no key that both nodes have proven covers {topic}: add it to a key of the keyring, at both nodes"
    )]
    NotCovered {
        /// The topic.
        topic: TopicName,
    },
    /// The publisher's node has revoked the access of this subscriber. Values published earlier can no longer be read.
    #[error("the publisher has revoked the access to {topic}")]
    Revoked {
        /// The topic.
        topic: TopicName,
    },
    /// This program refused the whole session.
    #[error("this program refused the session ({reason})")]
    Rejected {
        /// The reason.
        reason: RefuseReason,
    },
    /// The peer disconnected without ending the session.
    #[error("the peer closed the connection without ending the session: its process may have died")]
    Disconnected,
    /// The connection to the peer failed.
    #[error("the connection to the peer failed: {why}")]
    Broken {
        /// The cause.
        why: String,
    },
    /// The owner did not process the session's pending actions.
    #[error("closed: {max} pending actions were never processed")]
    Backlog {
        /// The limit of pending actions.
        max: usize,
    },
    /// The session is not ready, or is ending or over, and accepts no requests.
    #[error("the session accepts no requests: it is {state}; try again once both nodes are running")]
    Closed {
        /// The state of the session.
        state: &'static str,
    },
    /// The previous request of this kind is unanswered.
    #[error("the previous request of this kind is unanswered: {awaited}")]
    Busy {
        /// The expected answer.
        awaited: &'static str,
    },
    /// The local attachment is in the wrong state for this request.
    #[error("attachment {attachment} is {state}")]
    NotPossible {
        /// The attachment's number.
        attachment: u32,
        /// The state of the attachment.
        state: &'static str,
    },
    /// The session has reached its limit of attachments.
    #[error("the session has reached its limit of {max} attachments: detach one, or open another session")]
    TooManyAttachments {
        /// The limit.
        max: usize,
    },
}

/// Why a peer is not authenticated. It is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unproven {
    /// A node that dialled has no keyring.
    WithoutKeys,
    /// The node that was dialled has no keyring.
    DialledWithoutKeys,
    /// This node's keyring has no key with the right that it needs.
    NoKeyWithRight {
        /// The right.
        right: Right,
    },
    /// None of the keys that it proved is in this node's keyring, with the right that is needed and for a node of its name.
    NoKnownKey,
    /// It does not have the secret of the key that it named, or is not the node that this one is connected to.
    WrongTag,
    /// The fabric does not say what it connects.
    Unbound,
    /// The keys that it proved are no longer in this node's keyring, or no longer cover a topic of the session.
    KeysRemoved,
}

impl From<Unproven> for ControlError {
    fn from(why: Unproven) -> Self {
        Self::Unauthenticated { why }
    }
}

impl fmt::Display for Unproven {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WithoutKeys => out.write_str("it has no keyring, and this node admits only peers that prove a key"),
            Self::DialledWithoutKeys => out.write_str(
                "it has no keyring, so it cannot prove that it is the node meant; give it one, or dial it without a keyring",
            ),
            Self::NoKeyWithRight { right } => {
                let right = if *right == Right::Read { "read" } else { "publish" };
                write!(out, "it demands a key with the right to {right}, and this node's keyring has none")
            }
            Self::NoKnownKey => out.write_str("it proved no key of this node's keyring that gives the right it needs"),
            Self::WrongTag => out.write_str("it named a key and does not have its secret, or passes on what others say"),
            Self::Unbound => out.write_str("this connection cannot be authenticated"),
            Self::KeysRemoved => out.write_str(
                "the keys that it proved are no longer in this node's keyring, or no longer cover a topic of the session",
            ),
        }
    }
}

/// Why a publisher refused an attachment, or a whole session.
///
/// Unknown numbers are preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u16", into = "u16")]
#[non_exhaustive]
pub enum RefuseReason {
    /// The node has no topic of this name.
    NoSuchTopic,
    /// The topic's values have another type.
    SchemaMismatch,
    /// The topic does not offer the requested delivery.
    DeliveryUnsupported,
    /// The topic has reached its limit of subscribers.
    TooManySubscribers,
    /// The exposed landing region is too small, or otherwise unusable.
    LandingUnfit,
    /// The node does not permit it.
    NotPermitted,
    /// The node is shutting down.
    ShuttingDown,
    /// The session has reached its limit of attachments.
    TooManyAttachments,
    /// The topic's publisher was dropped in the meantime.
    TopicEnded,
    /// The topic's publisher does not permit subscribers that hold it up or are disconnected when they are slow.
    GatingNotPermitted,
    /// The node's process is short of a resource: open files, memory.
    Shortage,
    /// The peers share no version of the protocol.
    VersionUnsupported,
    /// A message could not be decoded.
    Malformed,
    /// A message was out of turn.
    Unexpected,
    /// The node has reached its limit of sessions.
    TooManySessions,
    /// No hello came in time.
    HelloDeadline,
    /// The node has no listener for the topic that it was invited to.
    NobodyWaits,
    /// The peer proved no key that the node knows.
    NotAuthenticated,
    /// Nothing was attached for too long.
    Idle,
    /// A reason unknown to this version.
    Unknown(u16),
}

/// The reasons that this version knows, each with its number in messages, which never changes, and its sentence.
const KNOWN: [(RefuseReason, u16, &str); 19] = [
    (RefuseReason::NoSuchTopic, 1, "it has no such topic"),
    (RefuseReason::SchemaMismatch, 2, "the topic's values have another type"),
    (RefuseReason::DeliveryUnsupported, 3, "the topic does not offer this delivery"),
    (RefuseReason::TooManySubscribers, 4, "the topic has reached its limit of subscribers"),
    (RefuseReason::LandingUnfit, 5, "the landing region does not fit"),
    (RefuseReason::NotPermitted, 6, "it is not permitted"),
    (RefuseReason::ShuttingDown, 7, "it is shutting down"),
    (RefuseReason::TooManyAttachments, 8, "the session has reached its limit of attachments"),
    (RefuseReason::TopicEnded, 9, "the topic has ended"),
    (RefuseReason::GatingNotPermitted, 10, "the topic's publisher does not wait for subscribers"),
    (RefuseReason::Shortage, 11, "its process is short of open files or memory"),
    (RefuseReason::VersionUnsupported, 32, "its protocol version differs"),
    (RefuseReason::Malformed, 33, "it could not decode a message"),
    (RefuseReason::Unexpected, 34, "a message was out of turn"),
    (RefuseReason::TooManySessions, 35, "it has reached its limit of sessions"),
    (RefuseReason::HelloDeadline, 36, "no hello came in time"),
    (RefuseReason::NobodyWaits, 37, "no subscriber waits for this topic there: start it first"),
    (RefuseReason::NotAuthenticated, 38, "it admits only nodes that prove one of its keys"),
    (RefuseReason::Idle, 39, "the session was not used"),
];

impl ControlError {
    /// Returns whether one end does not admit the other, or not any more, to what it asked for: the keys at one of the ends have to
    /// change, or what the publisher's program revoked.
    ///
    /// ```
    /// use fabricast::{ControlError, RefuseReason};
    ///
    /// let refused = |reason| ControlError::Refused { reason, text: String::new() };
    /// assert!(refused(RefuseReason::NotAuthenticated).denies_access());
    /// // A temporary refusal: the next attempt may succeed.
    /// assert!(!refused(RefuseReason::TooManySessions).denies_access());
    /// ```
    pub fn denies_access(&self) -> bool {
        use RefuseReason::{NotAuthenticated, NotPermitted};
        match self {
            Self::Unauthenticated { .. } | Self::NotCovered { .. } | Self::Revoked { .. } => true,
            Self::Refused { reason, .. } => matches!(reason, NotAuthenticated | NotPermitted),
            _ => false,
        }
    }
}

impl RefuseReason {
    /// Returns whether the peer may grant the same request later.
    pub(crate) fn is_transient(self) -> bool {
        use RefuseReason::{
            HelloDeadline, Idle, NoSuchTopic, NobodyWaits, Shortage, ShuttingDown, TooManyAttachments,
            TooManySessions, TooManySubscribers, TopicEnded,
        };
        matches!(
            self,
            NoSuchTopic
                | TopicEnded
                | ShuttingDown
                | TooManySubscribers
                | TooManyAttachments
                | TooManySessions
                | HelloDeadline
                | Shortage
                | Idle
                | NobodyWaits
        )
    }

    /// Returns the number of this reason in messages; it never changes.
    pub fn code(self) -> u16 {
        match self {
            Self::Unknown(code) => code,
            known => KNOWN.iter().find(|(reason, ..)| *reason == known).map_or(0, |(_, code, _)| *code),
        }
    }

    /// Returns advice for a peer that met a limit of this node: its value, and what to do. Empty for other reasons.
    pub(crate) fn advice(self) -> String {
        match self {
            Self::TooManySubscribers => {
                let max = limits::PUSH_SUBSCRIBERS_MAX;
                format!("{max} push subscribers; subscribe by pull, or close one of them")
            }
            Self::TooManyAttachments => {
                let max = limits::ATTACHMENTS_PER_SESSION_MAX;
                format!("{max} attachments; detach one of them, or open another session")
            }
            Self::TooManySessions => {
                let max = limits::INVITED_SESSIONS_MAX;
                format!(
                    "{max} sessions with publishers that dialled it, of which one peer may have half; close one of them, \
                     or open another node there"
                )
            }
            _ => String::new(),
        }
    }
}

impl From<u16> for RefuseReason {
    fn from(code: u16) -> Self {
        let known = KNOWN.iter().find(|(_, known, _)| *known == code);
        known.map_or(Self::Unknown(code), |(reason, ..)| *reason)
    }
}

impl From<RefuseReason> for u16 {
    fn from(reason: RefuseReason) -> Self {
        reason.code()
    }
}

impl fmt::Display for RefuseReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KNOWN.iter().find(|(reason, ..)| reason == self) {
            Some((.., sentence)) => out.write_str(sentence),
            None => write!(out, "reason {}, unknown to this version", self.code()),
        }
    }
}

/// The peer's own words, quoted; nothing if it gave none.
struct Said<'a>(&'a str);

impl fmt::Display for Said<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(out, " and says {:?}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_for_one_reason() {
        for code in 0..=u16::MAX {
            assert_eq!(RefuseReason::from(code).code(), code);
        }
        assert_eq!(RefuseReason::from(7), RefuseReason::ShuttingDown);
        assert_eq!(RefuseReason::from(31), RefuseReason::Unknown(31));
    }

    #[test]
    fn every_reason_has_a_number_and_a_sentence() {
        // Exhaustive, so that none is forgotten in the table.
        let after = |reason| match reason {
            RefuseReason::NoSuchTopic => Some(RefuseReason::SchemaMismatch),
            RefuseReason::SchemaMismatch => Some(RefuseReason::DeliveryUnsupported),
            RefuseReason::DeliveryUnsupported => Some(RefuseReason::TooManySubscribers),
            RefuseReason::TooManySubscribers => Some(RefuseReason::LandingUnfit),
            RefuseReason::LandingUnfit => Some(RefuseReason::NotPermitted),
            RefuseReason::NotPermitted => Some(RefuseReason::ShuttingDown),
            RefuseReason::ShuttingDown => Some(RefuseReason::TooManyAttachments),
            RefuseReason::TooManyAttachments => Some(RefuseReason::TopicEnded),
            RefuseReason::TopicEnded => Some(RefuseReason::GatingNotPermitted),
            RefuseReason::GatingNotPermitted => Some(RefuseReason::Shortage),
            RefuseReason::Shortage => Some(RefuseReason::VersionUnsupported),
            RefuseReason::VersionUnsupported => Some(RefuseReason::Malformed),
            RefuseReason::Malformed => Some(RefuseReason::Unexpected),
            RefuseReason::Unexpected => Some(RefuseReason::TooManySessions),
            RefuseReason::TooManySessions => Some(RefuseReason::HelloDeadline),
            RefuseReason::HelloDeadline => Some(RefuseReason::NobodyWaits),
            RefuseReason::NobodyWaits => Some(RefuseReason::NotAuthenticated),
            RefuseReason::NotAuthenticated => Some(RefuseReason::Idle),
            RefuseReason::Idle | RefuseReason::Unknown(_) => None,
        };
        let all = std::iter::successors(Some(RefuseReason::NoSuchTopic), |reason| after(*reason));
        assert_eq!(all.clone().count(), KNOWN.len());
        for reason in all {
            assert_eq!(RefuseReason::from(reason.code()), reason);
            assert!(!reason.to_string().contains("unknown"), "{reason:?}");
        }
    }

    #[test]
    fn a_refusal_by_a_limit_names_it() {
        for (reason, max) in [
            (RefuseReason::TooManySubscribers, limits::PUSH_SUBSCRIBERS_MAX),
            (RefuseReason::TooManyAttachments, limits::ATTACHMENTS_PER_SESSION_MAX),
            (RefuseReason::TooManySessions, limits::INVITED_SESSIONS_MAX),
        ] {
            assert!(reason.advice().contains(&max.to_string()), "{reason}: {}", reason.advice());
        }
        assert!(RefuseReason::NoSuchTopic.advice().is_empty());
    }

    #[test]
    fn errors_are_sentences() {
        let error = ControlError::Version { theirs: 2, ours: 1 };
        assert_eq!(
            error.to_string(),
            "the peer speaks control version 2, this program speaks 1: upgrade the older one"
        );
        let error = ControlError::Refused { reason: RefuseReason::ShuttingDown, text: String::new() };
        assert_eq!(error.to_string(), "the peer refused the session (it is shutting down)");
        let error = ControlError::Refused { reason: RefuseReason::Unknown(99), text: "go away".into() };
        let sentence = error.to_string();
        assert!(sentence.contains("reason 99") && sentence.ends_with("\"go away\""), "{sentence}");
    }
}
