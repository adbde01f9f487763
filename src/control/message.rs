//! What the two ends of a session say. Every text and every list in here is bounded by its type, so that a
//! message that exists can be sent, and one that was received needs no second look at its lengths.

use std::fmt;
use std::num::NonZeroU64;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

pub(crate) use super::attachment::AttachmentId;
use super::bytes::Bytes;
use super::error::{ControlError, RefuseReason};
use super::notices::{Heard, Listen, Notices};
use super::text::Text;
use crate::id::{Delivery, Epoch, Kind, KindOptions, NodeName, Sequence, TopicId, TopicName};
use crate::layout::GeometryNumbers;
use crate::limits;

/// The version that this program speaks. It changes with anything that is said here, in the frame or in the codec, the kinds
/// of topic and the ways of delivery included.
pub(crate) const VERSION: u16 = 2;

/// Hands all messages to a macro: the kind of each, its body, and its number, which is that of `Refuse` in every version.
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
            Lend(Lend) = 8,
            Lent(Lent) = 9,
            Detach(Detach) = 10,
            Detached(Detached) = 11,
            TopicEnded(TopicEnded) = 12,
            End(End) = 13,
            Invite(Invite) = 14,
            Listen(Listen) = 15,
            Notices(Notices) = 16,
            Heard(Heard) = 17,
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
            /// Which kind of message this is.
            pub(crate) fn kind(&self) -> MessageKind {
                match self {
                    $(Self::$kind(_) => MessageKind::$kind,)*
                }
            }

            /// The name of its kind.
            pub(crate) fn name(&self) -> &'static str {
                self.kind().name()
            }
        }

        impl MessageKind {
            /// The number in the header.
            pub(crate) const fn number(self) -> u16 {
                match self {
                    $(Self::$kind => $number,)*
                }
            }

            /// The kind with this number, if there is one.
            pub(crate) const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// The name, for people.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                }
            }
        }
    };
}

each_message!(messages);

/// The whole session is refused, and over. Either side, at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refuse {
    /// The version that the sender speaks, from the header.
    pub(crate) version: u16,
    /// Why, as a number.
    pub(crate) reason: RefuseReason,
    /// Why, in words.
    pub(crate) text: Text<{ limits::REASON_LEN_MAX }>,
}

impl Refuse {
    /// A refusal by this program.
    pub(crate) fn new(reason: RefuseReason, text: &str) -> Self {
        Self { version: VERSION, reason, text: Text::cut(text) }
    }

    /// What to tell a peer that caused this error; `None` if there is nobody left to tell, or if the peer's
    /// silence or its own refusal is the error.
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
            _ => return None,
        };
        Some(Self::new(reason, &error.to_string()))
    }

    /// What this refusal means to the one who receives it.
    pub(crate) fn into_error(self) -> ControlError {
        if self.reason == RefuseReason::VersionUnsupported && self.version != VERSION {
            ControlError::Version { theirs: self.version, ours: VERSION }
        } else {
            ControlError::Refused { reason: self.reason, text: self.text.into() }
        }
    }
}

/// Who a peer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Its node.
    pub(crate) node: NodeName,
    /// Its process, as numbered on its host.
    pub(crate) process: u32,
    /// Its host; may be empty.
    pub(crate) host: Text<{ limits::HOST_NAME_LEN_MAX }>,
    /// When its node started, nanoseconds since the Unix epoch.
    pub(crate) started_ns: u64,
}

/// Asks a node that was dialled to subscribe: the very first message of a publisher's node that dials. From then on
/// the session is as if the peer had dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Invite {
    /// Who invites.
    pub(crate) identity: Identity,
    /// To which of its topics.
    pub(crate) topic: TopicName,
}

/// The first message of each side (but for an invitation), the subscriber's before the publisher's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// A random number of the sender's.
    pub(crate) nonce: NonZeroU64,
    /// The nonce of the hello that this one answers; `None` in the first one.
    pub(crate) answers: Option<NonZeroU64>,
    /// Who says hello.
    pub(crate) identity: Identity,
}

/// Asks for a page of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListTopics {
    /// The last name of the page before; `None` for the first page.
    pub(crate) after: Option<TopicName>,
}

/// A page of the directory, in the order of the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Topics {
    /// The topics.
    pub(crate) page: Page,
    /// Whether there are more after the last one.
    pub(crate) more: bool,
}

/// What the directory says of one topic.
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
    /// When that was published, nanoseconds since the Unix epoch, 0 for never.
    pub(crate) published_ns: u64,
    /// How long ago its node last showed that it lives, nanoseconds.
    pub(crate) heartbeat_age_ns: u64,
    /// Its incarnation.
    pub(crate) epoch: Epoch,
    /// Subscribers that read it.
    pub(crate) pull_subscribers: u32,
    /// Subscribers that it is written to.
    pub(crate) push_subscribers: u32,
    /// Its largest payload, bytes.
    pub(crate) payload_len_max: u64,
}

/// At most [`DIRECTORY_PAGE_LEN_MAX`](limits::DIRECTORY_PAGE_LEN_MAX) entries of the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Page(Vec<TopicEntry>);

impl Page {
    /// As many of these entries as a page holds, and whether some were left over.
    pub(crate) fn cut(mut entries: Vec<TopicEntry>) -> (Self, bool) {
        let more = entries.len() > limits::DIRECTORY_PAGE_LEN_MAX;
        entries.truncate(limits::DIRECTORY_PAGE_LEN_MAX);
        (Self(entries), more)
    }

    /// The entries.
    pub(crate) fn entries(&self) -> &[TopicEntry] {
        &self.0
    }

    /// The entries, taken out.
    pub(crate) fn into_entries(self) -> Vec<TopicEntry> {
        self.0
    }
}

impl<'de> Deserialize<'de> for Page {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PageVisitor)
    }
}

/// Reads a page, and its length before the entries, so that the peer does not choose what is allocated.
struct PageVisitor;

impl<'de> Visitor<'de> for PageVisitor {
    type Value = Page;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "at most {} topics", limits::DIRECTORY_PAGE_LEN_MAX)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Page, A::Error> {
        let mut entries = Vec::new();
        if let Some(len) = seq.size_hint() {
            if len > limits::DIRECTORY_PAGE_LEN_MAX {
                return Err(A::Error::invalid_length(len, &self));
            }
            entries.reserve_exact(len);
        }
        while let Some(entry) = seq.next_element()? {
            if entries.len() == limits::DIRECTORY_PAGE_LEN_MAX {
                return Err(A::Error::invalid_length(entries.len() + 1, &self));
            }
            entries.push(entry);
        }
        Ok(Page(entries))
    }
}

/// A schema in its JSON form.
pub(crate) type SchemaJson = Bytes<{ limits::SCHEMA_LEN_MAX }>;

/// Asks for a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attach {
    /// The number that the attachment shall have.
    pub(crate) attachment: AttachmentId,
    /// The topic.
    pub(crate) topic: TopicName,
    /// How its values shall travel.
    pub(crate) delivery: Delivery,
    /// The schema that the subscriber was built with; `None` for one that decodes by the topic's own.
    pub(crate) schema_hash: Option<u64>,
    /// What the subscription asks of the topic's kind.
    pub(crate) options: KindOptions,
}

/// Everything that a subscriber has to know of a topic. For pull, the repository's region comes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// Which attachment is granted.
    pub(crate) attachment: AttachmentId,
    /// The number that the topic has in its region.
    pub(crate) topic_id: TopicId,
    /// What the repository holds.
    pub(crate) kind: Kind,
    /// The incarnation.
    pub(crate) epoch: Epoch,
    /// The shape of the repository. Only carried here: who maps the region checks that the numbers agree with each other and with
    /// the region.
    pub(crate) geometry: GeometryNumbers,
    /// The payload's schema.
    pub(crate) schema: SchemaJson,
    /// The key of the repository's region; shown by an inspector, used by nobody on the same host.
    pub(crate) key: u64,
    /// The address of the repository's region; as the key.
    pub(crate) address: u64,
    /// The newest sequence when it was granted: who begins with the next one misses none of those behind it.
    pub(crate) newest: Sequence,
}

/// One attachment, or the landing region lent for it, is refused; the session goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    /// Which one.
    pub(crate) attachment: AttachmentId,
    /// Why, as a number.
    pub(crate) reason: RefuseReason,
    /// Why, in words.
    pub(crate) text: Text<{ limits::REASON_LEN_MAX }>,
}

/// Lends the landing region that comes with this message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lend {
    /// For which attachment.
    pub(crate) attachment: AttachmentId,
}

/// The landing region fits; values will be written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lent {
    /// Of which attachment.
    pub(crate) attachment: AttachmentId,
}

/// What a subscriber counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SubscriberCounts {
    /// Values received whole.
    pub(crate) received: u64,
    /// Values that were replaced before the subscriber read them.
    pub(crate) conflated: u64,
    /// Reads that had to be repeated.
    pub(crate) torn_retries: u64,
    /// Values that were not accepted.
    pub(crate) rejected: u64,
    /// Records that were overwritten before the subscriber read them, and values that it could not read before the end.
    pub(crate) lost: u64,
}

/// Ends an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detach {
    /// Which one.
    pub(crate) attachment: AttachmentId,
    /// What was counted on it.
    pub(crate) counts: SubscriberCounts,
}

/// The attachment is no more; the publisher touches a landing region lent for it no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detached {
    /// Which one.
    pub(crate) attachment: AttachmentId,
    /// The topic's sequence at the end.
    pub(crate) published: u64,
}

/// The topic's publisher was dropped in good order. The subscriber answers with `Detach` when it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopicEnded {
    /// Which attachment this is about.
    pub(crate) attachment: AttachmentId,
    /// The topic's sequence at the end.
    pub(crate) published: u64,
}

/// Ends the session: said once by each side, and the last thing that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    /// Why and with what counts.
    pub(crate) farewell: Farewell,
}

/// Why a session ended in good order, and what was counted in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Farewell {
    /// Why.
    pub(crate) reason: EndReason,
    /// The subscriber's counts, summed over all attachments of the session; what the publisher sends is what it
    /// has received, zeros if it ends the session itself.
    pub(crate) counts: SubscriberCounts,
}

/// Why a session ends in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u16", into = "u16")]
pub(crate) enum EndReason {
    /// The subscriber needs it no longer.
    Done,
    /// The node, or its process, shuts down.
    Shutdown,
    /// A reason that this version has no name for.
    Unknown(u16),
}

impl From<u16> for EndReason {
    fn from(code: u16) -> Self {
        match code {
            1 => Self::Done,
            2 => Self::Shutdown,
            code => Self::Unknown(code),
        }
    }
}

impl From<EndReason> for u16 {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::Done => 1,
            EndReason::Shutdown => 2,
            EndReason::Unknown(code) => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_numbers_go_together() {
        let named = (0..=u16::MAX).filter_map(MessageKind::from_number).collect::<Vec<_>>();
        assert_eq!(named.len(), 17);
        for kind in named {
            assert_eq!(MessageKind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(MessageKind::Refuse.number(), 1, "frozen for all versions");
        for code in [0, 1, 2, 3, u16::MAX] {
            assert_eq!(u16::from(EndReason::from(code)), code);
        }
    }
}
