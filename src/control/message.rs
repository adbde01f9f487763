//! The messages between the two ends of a session. Types bound every text and list, so any
//! value can be sent, and the lengths of a received one need no further check.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

pub(crate) use super::attachment::AttachmentId;
use super::bytes::Bytes;
use super::error::{ControlError, RefuseReason};
use super::list::List;
use super::notices::{Heard, Notices, WakeBy, WakeSlot};
use super::progress::{LetGo, ListSubscribers, Subscribers};
use super::proof::Prove;
use super::text::Text;
use crate::id::{
    Delivery, Epoch, Incarnation, Kind, KindOptions, NodeName, Sequence, SlowPolicy, TopicId, TopicName,
};
use crate::keyring::Challenge;
use crate::layout::GeometryNumbers;
use crate::limits;

/// The protocol version of this program. It changes with any message, the frame, the codec, the kinds
/// of topic and the ways of delivery.
pub(crate) const VERSION: u16 = 6;

/// Hands all messages to a macro: the kind of each, its body, and its number, which is that of `Refuse` in every version.
///
/// Those that say nothing but which attachment they are about: `Expose` comes with its landing region; `Exposed` says that this fits, and
/// that values will be written to it; `Listen` asks, at most once, for notices of what the topic publishes.
macro_rules! each_message {
    ($into:ident) => {
        $into! {
            Refuse(Refuse) = 1,
            Hello(Hello) = 2,
            ListTopics(ListTopics) = 3,
            Topics(Topics) = 4,
            Attach(Attach) = 5,
            Granted(Grant) = 6,
            Refused(Refused) = 7,
            Expose(AttachmentId) = 8,
            Exposed(AttachmentId) = 9,
            Detach(Detach) = 10,
            Detached(Detached) = 11,
            TopicEnded(TopicEnded) = 12,
            End(EndSummary) = 13,
            Invite(Invite) = 14,
            Listen(AttachmentId) = 15,
            Notices(Notices) = 16,
            Heard(Heard) = 17,
            ListSubscribers(ListSubscribers) = 18,
            Subscribers(Subscribers) = 19,
            WakeBy(WakeBy) = 20,
            WakeSlot(WakeSlot) = 21,
            LetGo(LetGo) = 22,
            Prove(Prove) = 23,
        }
    };
}
pub(super) use each_message;

macro_rules! messages {
    ($($kind:ident($body:ty) = $number:literal,)*) => {
        /// One message of the control channel.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Message {
            $($kind($body),)*
        }

        /// The kinds of message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum MessageKind {
            $($kind,)*
        }

        impl Message {
            /// Returns its kind.
            pub(crate) fn kind(&self) -> MessageKind {
                match self {
                    $(Self::$kind(_) => MessageKind::$kind,)*
                }
            }

            /// Returns the name of its kind.
            pub(crate) fn name(&self) -> &'static str {
                self.kind().name()
            }
        }

        impl MessageKind {
            /// Returns the number in the header.
            pub(crate) const fn number(self) -> u16 {
                match self {
                    $(Self::$kind => $number,)*
                }
            }

            /// Returns the kind with this number, if known.
            pub(crate) const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// Returns its name.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                }
            }
        }
    };
}

each_message!(messages);

impl Message {
    /// Checks that as many regions came with it as belong to it.
    pub(super) fn check_regions(&self, expected: usize, found: usize) -> Result<(), ControlError> {
        let message = self.name();
        if found == expected { Ok(()) } else { Err(ControlError::WrongRegions { message, expected, found }) }
    }
}

/// Refuses the whole session, which is then over. Either side may send it at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refuse {
    /// The version that the sender speaks, from the header.
    pub(crate) version: u16,
    /// The reason, as a number.
    pub(crate) reason: RefuseReason,
    /// The reason, in words.
    pub(crate) text: Text<{ limits::REASON_LEN_MAX }>,
}

impl Refuse {
    /// Creates a refusal by this program.
    pub(crate) fn new(reason: RefuseReason, text: &str) -> Self {
        Self { version: VERSION, reason, text: Text::cut(text) }
    }

    /// Returns the refusal to send to a peer that caused this error; `None` if the peer is gone, silent,
    /// or has refused itself.
    pub(crate) fn because(error: &ControlError) -> Option<Self> {
        let reason = match error {
            ControlError::Version { .. } => RefuseReason::VersionUnsupported,
            ControlError::TooShort { .. }
            | ControlError::TooLong { .. }
            | ControlError::BadMagic { .. }
            | ControlError::LengthMismatch { .. }
            | ControlError::BadChecksum { .. }
            | ControlError::UnknownKind { .. }
            | ControlError::Malformed { .. } => RefuseReason::Malformed,
            ControlError::Unexpected { .. }
            | ControlError::WrongRegions { .. }
            | ControlError::WrongAttachment { .. }
            | ControlError::WrongAnswer { .. } => RefuseReason::Unexpected,
            // Without the detail: a stranger learns nothing from it.
            ControlError::Unauthenticated { .. } => {
                return Some(Self::new(RefuseReason::NotAuthenticated, ""));
            }
            _ => return None,
        };
        Some(Self::new(reason, &error.to_string()))
    }

    /// Returns what this refusal means to its receiver.
    pub(crate) fn into_error(self) -> ControlError {
        if self.reason == RefuseReason::VersionUnsupported && self.version != VERSION {
            ControlError::Version { theirs: self.version, ours: VERSION }
        } else {
            ControlError::Refused { reason: self.reason, text: self.text.into() }
        }
    }
}

/// The identity of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Its node.
    pub(crate) node: NodeName,
    /// Its process ID on its host.
    pub(crate) process: u32,
    /// Its host; may be empty.
    pub(crate) host: Text<{ limits::HOST_NAME_LEN_MAX }>,
    /// When its node started, nanoseconds since the Unix epoch.
    pub(crate) started_ns: u64,
}

/// Asks the dialled node to subscribe: what a publisher's node that dials sends after hellos and proofs. From then on
/// the session proceeds as if the peer had dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Invite {
    /// The topic.
    pub(crate) topic: TopicName,
}

/// The first message of each side, first of the one that dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// A random number of the sender.
    pub(crate) nonce: NonZeroU64,
    /// The nonce of the hello that this one answers; `None` in the first one.
    pub(crate) answers: Option<NonZeroU64>,
    /// The sender.
    pub(crate) identity: Identity,
    /// The sender has dialled to publish, and will send an invitation.
    pub(crate) invites: bool,
    /// The sender has keys: it proves them, and demands that the receiver does.
    pub(crate) challenge: Option<Challenge>,
}

/// Requests a page of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListTopics {
    /// The last name of the previous page; `None` for the first page.
    pub(crate) after: Option<TopicName>,
}

/// A page of the directory, in the order of the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Topics {
    /// The topics.
    pub(crate) page: Page,
    /// Whether more topics follow.
    pub(crate) more: bool,
}

/// A topic in the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopicEntry {
    /// Its name.
    pub(crate) name: TopicName,
    /// What its repository holds.
    pub(crate) kind: Kind,
    /// The name of its payload type.
    pub(crate) type_name: Text<{ limits::TYPE_NAME_LEN_MAX }>,
    /// The sequence of its newest value, 0 for none.
    pub(crate) sequence: u64,
    /// Its publish time, nanoseconds since the Unix epoch, 0 if none.
    pub(crate) published_ns: u64,
    /// The time since then by its node's clock, nanoseconds, 0 if none.
    pub(crate) published_age_ns: u64,
    /// The age of its node's last heartbeat, nanoseconds.
    pub(crate) heartbeat_age_ns: u64,
    /// Its epoch.
    pub(crate) epoch: Epoch,
    /// Its pull subscribers.
    pub(crate) pull_subscribers: u32,
    /// Its push subscribers.
    pub(crate) push_subscribers: u32,
    /// By how many records the slowest subscriber that reports its progress is behind.
    pub(crate) lag_max: Option<u64>,
    /// Its largest payload, bytes.
    pub(crate) payload_len_max: u64,
}

/// Entries of the directory.
pub(crate) type Page = List<TopicEntry, { limits::DIRECTORY_PAGE_LEN_MAX }>;

/// A schema in its JSON form.
pub(crate) type SchemaJson = Bytes<{ limits::SCHEMA_LEN_MAX }>;

/// Requests a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attach {
    /// The number for the attachment.
    pub(crate) attachment: AttachmentId,
    /// The topic.
    pub(crate) topic: TopicName,
    /// How its values are to travel.
    pub(crate) delivery: Delivery,
    /// The subscriber's schema; `None` for a subscriber that decodes by the topic's own.
    pub(crate) schema_hash: Option<u64>,
    /// The subscription's options for the topic's kind.
    pub(crate) options: KindOptions,
    /// The subscriber's policy, if it reports its progress: then its progress slot comes with the message. Only logs have one; for
    /// other kinds it is ignored.
    pub(crate) progress: Option<SlowPolicy>,
}

/// Grants an attachment, with everything that the subscriber needs. For pull it carries the repository's region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// The topic's number in its region.
    pub(crate) topic_id: TopicId,
    /// What the repository holds.
    pub(crate) kind: Kind,
    /// The epoch of its values.
    pub(crate) epoch: Epoch,
    /// The incarnation of the topic: those of the log and the table of a feed are the same.
    pub(crate) incarnation: Incarnation,
    /// The geometry of the repository, unchecked here: the subscriber that maps the region checks the numbers against each other and
    /// the region.
    pub(crate) geometry: GeometryNumbers,
    /// The payload's schema.
    pub(crate) schema: SchemaJson,
    /// The key of the repository's region, for inspectors; unused on the same host.
    pub(crate) key: u64,
    /// The address of the repository's region, like the key.
    pub(crate) address: u64,
    /// The newest sequence at the time of the grant: a subscriber that starts with the next one misses none.
    pub(crate) newest: Sequence,
    /// The sequence before that of the repository's first value.
    pub(crate) after: Sequence,
    /// How long its values are valid, nanoseconds; 0 for ever.
    pub(crate) lifespan_ns: u64,
}

/// Refuses one attachment, or the landing region exposed for it; the session continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// The reason, as a number.
    pub(crate) reason: RefuseReason,
    /// The reason, in words.
    pub(crate) text: Text<{ limits::REASON_LEN_MAX }>,
}

/// A subscriber's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SubscriberCounts {
    /// Values received.
    pub(crate) received: u64,
    /// Values replaced before the subscriber read them.
    pub(crate) conflated: u64,
    /// Repeated reads.
    pub(crate) torn_retries: u64,
    /// Invalid values.
    pub(crate) rejected: u64,
    /// Records overwritten before the subscriber read them, and values that it could not read before the end.
    pub(crate) lost: u64,
}

/// Ends an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detach {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// Its counts.
    pub(crate) counts: SubscriberCounts,
}

/// The attachment is gone; the publisher no longer accesses its landing region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detached {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// The topic's sequence at the end.
    pub(crate) published: u64,
}

/// The topic's publisher was dropped properly. The subscriber answers with `Detach` at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopicEnded {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// The topic's sequence at the end.
    pub(crate) published: u64,
}

/// Why a session ended in good order, and what was counted in it: said once by each side, and the last thing that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndSummary {
    /// The reason.
    pub(crate) reason: EndReason,
    /// The subscriber's counts, summed over all attachments of the session; the publisher returns those it
    /// received, or zeros if it ends the session itself.
    pub(crate) counts: SubscriberCounts,
}

/// Why a session ended properly, as a number. Later versions may have others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndReason(pub(super) u16);

impl EndReason {
    /// The subscriber no longer needs it.
    pub(crate) const DONE: Self = Self(1);
    /// The node, or its process, shuts down.
    pub(crate) const SHUTDOWN: Self = Self(2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_numbers_correspond() {
        let named = (0..=u16::MAX).filter_map(MessageKind::from_number).collect::<Vec<_>>();
        assert_eq!(named.len(), 23);
        for kind in named {
            assert_eq!(MessageKind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(MessageKind::Refuse.number(), 1, "frozen for all versions");
    }
}
