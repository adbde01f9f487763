//! What can go wrong on the control channel, and why a publisher refuses.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits;

/// Why a session on the control channel failed, or why a request could not be made on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The message has fewer bytes than a header.
    #[error("a control message of {len} bytes is too short to be one: the peer does not speak this protocol")]
    TooShort {
        /// Bytes that came.
        len: usize,
    },
    /// The message is larger than any may be.
    #[error("a control message of {len} bytes came, {max} are allowed", max = limits::CONTROL_MESSAGE_LEN_MAX)]
    TooLong {
        /// Bytes that came.
        len: usize,
    },
    /// The message does not begin as a control message does.
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
    /// The message is longer or shorter than its header says.
    #[error("a control message states {stated} bytes and has {found}")]
    LengthMismatch {
        /// Bytes that the header states, itself included.
        stated: u64,
        /// Bytes that came.
        found: usize,
    },
    /// The message was damaged on its way.
    #[error("a control message is damaged: its checksum is {found:#010x}, it states {stated:#010x}")]
    BadChecksum {
        /// The checksum in the header.
        stated: u32,
        /// The checksum of the bytes that came.
        found: u32,
    },
    /// The message is whole, of this version, and of a kind that this version does not have.
    #[error("the peer sent a control message of the unknown kind {kind}")]
    UnknownKind {
        /// The number of the kind.
        kind: u16,
    },
    /// The message is whole and what it holds is not allowed.
    #[error("the peer's {message} message is malformed: {detail}")]
    Malformed {
        /// The kind of message.
        message: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The peer sent a message that has no place in the conversation at this point.
    #[error("the peer sent {message} while the session was {state}")]
    Unexpected {
        /// The kind of message.
        message: &'static str,
        /// What the session was doing.
        state: &'static str,
    },
    /// More or fewer regions came with a message than it takes.
    #[error("{found} regions came with the peer's {message} message, which takes {expected}")]
    WrongRegions {
        /// The kind of message.
        message: &'static str,
        /// Regions that belong to it.
        expected: usize,
        /// Regions that came.
        found: usize,
    },
    /// The peer named an attachment that does not exist, or is not in a state for this message.
    #[error("the peer sent {message} for attachment {attachment}, which is {state}")]
    WrongAttachment {
        /// The kind of message.
        message: &'static str,
        /// The attachment's number.
        attachment: u32,
        /// How it stands with the attachment.
        state: &'static str,
    },
    /// An answer came that does not fit what was asked.
    #[error("the peer's {message} message does not fit what it was asked: {detail}")]
    WrongAnswer {
        /// The kind of message.
        message: &'static str,
        /// Where it differs.
        detail: &'static str,
    },
    /// The peer did not say what was due in time.
    #[error("the peer was silent for too long: no {awaited} came in time")]
    Deadline {
        /// What was due.
        awaited: &'static str,
    },
    /// The peer refused the whole session.
    #[error("the peer refused the session ({reason}){}", Said(.text))]
    Refused {
        /// Why, as a number that programs can match on.
        reason: RefuseReason,
        /// Why, in the peer's words; may be empty.
        text: String,
    },
    /// This program refused the whole session.
    #[error("this program refused the session ({reason})")]
    Rejected {
        /// Why.
        reason: RefuseReason,
    },
    /// The peer went away without saying goodbye.
    #[error("the peer closed the connection without ending the session: its process may have died")]
    Disconnected,
    /// The connection to the peer failed.
    #[error("the connection to the peer failed: {why}")]
    Broken {
        /// How.
        why: String,
    },
    /// More is waiting to be taken from this session than it may hold.
    #[error("closed: {max} pending actions were never processed")]
    Backlog {
        /// Actions that may wait.
        max: usize,
    },
    /// The session is not yet ready, or ending, or over; it takes no requests.
    #[error("the session takes no requests: it is {state}")]
    Closed {
        /// What the session is doing.
        state: &'static str,
    },
    /// The same request is still waiting for its answer.
    #[error("the last request of this kind still waits for its answer: {awaited}")]
    Busy {
        /// The answer that is awaited.
        awaited: &'static str,
    },
    /// This program asked for something that its own attachment is in no state for.
    #[error("attachment {attachment} is {state}")]
    NotPossible {
        /// The attachment's number.
        attachment: u32,
        /// How it stands with the attachment.
        state: &'static str,
    },
    /// The session has as many attachments as it may.
    #[error("a session may have {max} attachments: detach one, or open another session")]
    TooManyAttachments {
        /// Attachments allowed.
        max: usize,
    },
}

/// Why a publisher refused an attachment, or a whole session.
///
/// A number that this version does not know is kept as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u16", into = "u16")]
#[non_exhaustive]
pub enum RefuseReason {
    /// The node has no topic of this name.
    NoSuchTopic,
    /// The topic's values are of another type.
    SchemaMismatch,
    /// The topic is not delivered in the way that was asked for.
    DeliveryUnsupported,
    /// The topic has as many subscribers as it may.
    TooManySubscribers,
    /// The landing region that was lent is too small, or otherwise not usable.
    LandingUnfit,
    /// The node does not allow it.
    NotPermitted,
    /// The node is shutting down.
    ShuttingDown,
    /// The session has as many attachments as it may.
    TooManyAttachments,
    /// The topic's publisher was dropped in the meantime.
    TopicEnded,
    /// The peers have no version of the protocol in common.
    VersionUnsupported,
    /// A message could not be read.
    Malformed,
    /// A message had no place in the conversation.
    Unexpected,
    /// The node serves as many sessions as it may.
    TooManySessions,
    /// No hello came in time.
    HelloDeadline,
    /// The node was invited to a topic that nobody listens for there.
    NobodyWaits,
    /// A reason that this version has no name for.
    Unknown(u16),
}

impl RefuseReason {
    /// The number that stands for this reason in messages; it never changes.
    pub const fn code(self) -> u16 {
        match self {
            Self::NoSuchTopic => 1,
            Self::SchemaMismatch => 2,
            Self::DeliveryUnsupported => 3,
            Self::TooManySubscribers => 4,
            Self::LandingUnfit => 5,
            Self::NotPermitted => 6,
            Self::ShuttingDown => 7,
            Self::TooManyAttachments => 8,
            Self::TopicEnded => 9,
            Self::VersionUnsupported => 32,
            Self::Malformed => 33,
            Self::Unexpected => 34,
            Self::TooManySessions => 35,
            Self::HelloDeadline => 36,
            Self::NobodyWaits => 37,
            Self::Unknown(code) => code,
        }
    }

    /// What to tell a peer that met a limit of this node: its value, and what to do. Empty for every other reason.
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
                let (served, invited) = (limits::SESSIONS_MAX, limits::INVITED_SESSIONS_MAX);
                format!(
                    "{served} sessions, {invited} of them with publishers that dialled it; close one of them, or open \
                     another node there"
                )
            }
            _ => String::new(),
        }
    }
}

impl From<u16> for RefuseReason {
    fn from(code: u16) -> Self {
        match code {
            1 => Self::NoSuchTopic,
            2 => Self::SchemaMismatch,
            3 => Self::DeliveryUnsupported,
            4 => Self::TooManySubscribers,
            5 => Self::LandingUnfit,
            6 => Self::NotPermitted,
            7 => Self::ShuttingDown,
            8 => Self::TooManyAttachments,
            9 => Self::TopicEnded,
            32 => Self::VersionUnsupported,
            33 => Self::Malformed,
            34 => Self::Unexpected,
            35 => Self::TooManySessions,
            36 => Self::HelloDeadline,
            37 => Self::NobodyWaits,
            code => Self::Unknown(code),
        }
    }
}

impl From<RefuseReason> for u16 {
    fn from(reason: RefuseReason) -> Self {
        reason.code()
    }
}

impl fmt::Display for RefuseReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NoSuchTopic => "it has no such topic",
            Self::SchemaMismatch => "the topic's values are of another type",
            Self::DeliveryUnsupported => "the topic is not delivered in this way",
            Self::TooManySubscribers => "the topic has as many subscribers as it may",
            Self::LandingUnfit => "the landing region does not fit",
            Self::NotPermitted => "it is not permitted",
            Self::ShuttingDown => "it is shutting down",
            Self::TooManyAttachments => "the session has as many attachments as it may",
            Self::TopicEnded => "the topic has ended",
            Self::VersionUnsupported => "its version of the protocol is another",
            Self::Malformed => "it could not read a message",
            Self::Unexpected => "a message was out of turn",
            Self::TooManySessions => "it serves as many sessions as it may",
            Self::HelloDeadline => "no hello came in time",
            Self::NobodyWaits => "no subscriber waits for this topic there: start it first",
            Self::Unknown(code) => return write!(out, "reason {code}, which this version does not know"),
        })
    }
}

/// The peer's own words, quoted; nothing if it said none.
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
    fn a_refusal_by_a_limit_names_it() {
        for (reason, max) in [
            (RefuseReason::TooManySubscribers, limits::PUSH_SUBSCRIBERS_MAX),
            (RefuseReason::TooManyAttachments, limits::ATTACHMENTS_PER_SESSION_MAX),
            (RefuseReason::TooManySessions, limits::SESSIONS_MAX),
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
        assert_eq!(
            error.to_string(),
            "the peer refused the session (reason 99, which this version does not know) and says \"go away\""
        );
    }
}
