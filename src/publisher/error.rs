use std::fmt;
use std::time::Duration;

use super::slow_subscriber::SlowSubscriber;
use crate::fabric::FabricError;
use crate::id::{Sequence, TopicName};
use crate::layout::GeometryError;
use crate::limits;
use crate::memory::{MemoryError, RepositoryFileError};
use crate::payload::{EncodeError, SchemaError};
use crate::repository::TooLong;

/// Why a publisher did not finish: see [`Publisher::finish`](super::Publisher::finish). The topic has ended all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FinishError {
    /// Subscribers have not received the end.
    #[error(
        "{subscribers} {have} not received everything up to {published}, the last sequence, and the end: keep the node open for them, or \
         see whether they still receive",
        have = if *subscribers == 1 { "subscriber has" } else { "subscribers have" }
    )]
    Unfinished {
        /// How many.
        subscribers: u64,
        /// The last sequence.
        published: Sequence,
    },
    /// The thread of the node has panicked, so that subscribers are not notified.
    #[error("the thread of the node has panicked: open another node")]
    NodeFailed,
}

/// Why a value was not published. The newest value of the topic is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The value is longer than the topic's declared maximum.
    #[error(
        "{limit} takes {length} bytes, over this topic's maximum of {max}: declare a larger {setting}",
        length = Length(*len, *max),
        setting = limit.setting()
    )]
    TooLong {
        /// Its length, bytes, if known; otherwise it is longer than `max`.
        len: Option<usize>,
        /// The declared maximum, bytes.
        max: usize,
        /// The setting that declares it.
        limit: LenLimit,
    },
    /// The value could not be encoded. [`EncodeError::TooLong`] is [`PublishError::TooLong`] instead.
    #[error(transparent)]
    Encode(EncodeError),
    /// The key is longer than the table's declared maximum.
    #[error(
        "a key has {length} bytes, over this table's maximum of {max}: declare a larger key_len_max",
        length = Length(*len, *max)
    )]
    KeyTooLong {
        /// Its length in encoded form, bytes, if known; otherwise it is longer than `max`.
        len: Option<usize>,
        /// The declared maximum, bytes.
        max: usize,
    },
    /// The key is new, and the table has as many keys as it declared.
    #[error(
        "the table is full: it has {capacity} keys; remove some and commit, or declare a larger capacity"
    )]
    Full {
        /// The declared keys.
        capacity: usize,
    },
    /// The feed has no value of the key, which only an update adds.
    #[error("the feed has no value of this key: give it one with update, instead of record or remove")]
    UnknownKey,
    /// The value of the key is damaged in the feed's memory, so that a record cannot leave it as it is.
    #[error(
        "the value of this key is damaged in this process's memory: give it a value with update, and check the program and the host's \
         memory"
    )]
    DamagedValue,
    /// The records of the event take more than a quarter of the ring of the feed's log.
    #[error(
        "an event of {len} bytes is over this feed's maximum of {max}: declare a larger log_capacity, or split the event"
    )]
    EventTooLong {
        /// The bytes of its records so far, with this one and their headers.
        len: usize,
        /// The maximum, bytes.
        max: usize,
    },
    /// The next record would overwrite one that a subscriber with [`SlowPolicy::Block`](crate::SlowPolicy::Block) has not read: the
    /// timeout of [`Gating`](crate::Gating) is over, or the publisher does not wait.
    #[error(
        "the ring is full, and holds records that subscriber {slowest} has not read: have it read faster, try again later, publish with a \
         larger capacity, or, for calls that wait, declare a longer timeout of Gating"
    )]
    Blocked {
        /// The slowest of these subscribers.
        slowest: SlowSubscriber,
    },
    /// The node's thread has panicked and serves no subscribers. Its last event and log record give the reason.
    #[error(
        "the node's thread has panicked and serves no subscribers: see its NodeFailed event, and open another node"
    )]
    NodeFailed,
}

impl PublishError {
    /// The name of its counter.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "value too long",
            Self::KeyTooLong { .. } => "key too long",
            Self::Full { .. } => "table full",
            Self::UnknownKey => "unknown key",
            Self::DamagedValue => "damaged value",
            Self::EventTooLong { .. } => "event too long",
            Self::Encode(_) => "value not encodable",
            Self::Blocked { .. } => "blocked",
            Self::NodeFailed => "node failed",
        }
    }
}

impl From<TooLong> for PublishError {
    fn from(TooLong { len, max }: TooLong) -> Self {
        Self::TooLong { len: Some(len), max, limit: LenLimit::Value }
    }
}

/// Why a value was not published, with the value.
///
/// ```
/// use fabricast::{Node, TryPublishError};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let mut names = node.log_publisher::<String>("names").payload_len_max(16).open()?;
/// let TryPublishError { value, error, .. } = names.try_publish("x".repeat(20)).unwrap_err();
/// assert_eq!(value.len(), 20);
/// assert!(error.to_string().contains("payload_len_max"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct TryPublishError<V> {
    /// The value that was not published.
    pub value: V,
    /// Why.
    pub error: PublishError,
}

impl<V> TryPublishError<V> {
    /// Returns whether a later attempt may succeed: a subscriber that the publisher waits for has not read what the value would
    /// overwrite.
    pub fn is_blocked(&self) -> bool {
        matches!(self.error, PublishError::Blocked { .. })
    }
}

/// A declared maximum of encoded lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LenLimit {
    /// `payload_len_max` of a table: of a value and its key.
    Entry,
    /// `value_len_max` of a feed: of a value and its key.
    FeedValue,
    /// `record_len_max` of a feed: of a record and its key.
    Record,
    /// `payload_len_max` of a state or a log: of a value.
    Value,
}

impl LenLimit {
    /// Returns the name of the setting, for example `payload_len_max`.
    pub const fn setting(self) -> &'static str {
        match self {
            Self::Entry | Self::Value => "payload_len_max",
            Self::FeedValue => "value_len_max",
            Self::Record => "record_len_max",
        }
    }

    /// The error of a geometry whose largest payload this setting declares.
    pub(super) fn contradicted(self, error: GeometryError) -> PublisherError {
        match error {
            GeometryError::KeyLen { found: key_len_max, payload_len_max: max } if key_len_max >= max => {
                PublisherError::KeyLenMax { key_len_max, max, limit: self }
            }
            error => error.into(),
        }
    }

    /// The error of a value that did not fit into `max` bytes, or did not encode.
    #[cold]
    pub(super) fn refused(self, error: EncodeError, max: usize) -> PublishError {
        match error {
            EncodeError::TooLong { .. } => PublishError::TooLong { len: None, max, limit: self },
            error => PublishError::Encode(error),
        }
    }
}

/// Names what the limit is of: `a value`.
impl fmt::Display for LenLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Entry | Self::FeedValue => "a value with its key",
            Self::Record => "a record with its key",
            Self::Value => "a value",
        })
    }
}

/// A length that is over a maximum, if it is known.
struct Length(Option<usize>, usize);

impl fmt::Display for Length {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(Some(len), _) => write!(out, "{len}"),
            Self(None, max) => write!(out, "more than {max}"),
        }
    }
}

/// Why a publisher could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublisherError {
    /// The node already publishes a topic of this name.
    #[error("this node already publishes {topic}: drop that publisher first, or choose another name")]
    TopicTaken {
        /// The topic.
        topic: TopicName,
    },
    /// The sequence after which the topic begins is too high.
    #[error("a topic cannot begin after sequence {after}: the greatest is {max}", max = limits::SEQUENCE_AFTER_MAX)]
    AfterTooHigh {
        /// The sequence.
        after: Sequence,
    },
    /// The lease of [`Gating`](crate::Gating) is shorter than nodes can keep it.
    #[error(
        "a lease of {lease:?} is too short: nodes show only from time to time that they run; declare at least {least:?}",
        least = Duration::from_nanos(limits::GATING_LEASE_MIN_NS)
    )]
    LeaseTooShort {
        /// The declared lease.
        lease: Duration,
    },
    /// The node publishes the maximum of topics.
    #[error(
        "this node publishes {max} topics, which is the limit: drop publishers that are not needed, \
         or open another node for more",
        max = limits::TOPICS_MAX
    )]
    TooManyTopics,
    /// The node's thread has panicked and serves no subscribers.
    #[error(
        "the node's thread has panicked and serves no subscribers: see its NodeFailed event, and open another node"
    )]
    NodeFailed,
    /// The name is not a valid topic name.
    #[error(transparent)]
    Name(#[from] crate::id::NameError),
    /// The slots and the largest payload do not form a repository.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The payload type cannot be described.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// All values of the payload type have one length, which is over the declared maximum.
    #[error(
        "values of this type have {len} bytes, over the declared payload_len_max of {max}: declare a larger one"
    )]
    PayloadLenMax {
        /// The length of every value, bytes.
        len: usize,
        /// The declared maximum, bytes.
        max: usize,
    },
    /// Even the shortest value of the payload type is over the declared maximum.
    #[error(
        "{limit} takes at least {len} bytes, over the declared {setting} of {max}: declare a larger one",
        setting = limit.setting()
    )]
    PayloadLenMin {
        /// The length of the shortest value, bytes; of a table or a feed, that of the shortest key with it.
        len: usize,
        /// The declared maximum, bytes.
        max: usize,
        /// The setting that declares it.
        limit: LenLimit,
    },
    /// Even the shortest key is over the declared maximum.
    #[error(
        "a key of this type has at least {len} bytes, over the declared key_len_max of {max}: declare a larger one"
    )]
    KeyLenMin {
        /// The length of the shortest key, bytes.
        len: usize,
        /// The declared maximum, bytes.
        max: usize,
    },
    /// Keys of the declared maximum leave no byte for a value.
    #[error(
        "keys of {key_len_max} bytes do not fit into the declared {setting} of {max}, which counts key and value: declare a \
         smaller key_len_max, or a larger {setting}",
        setting = limit.setting()
    )]
    KeyLenMax {
        /// The declared maximum of a key, bytes.
        key_len_max: usize,
        /// The declared maximum of key and value, bytes.
        max: usize,
        /// The setting that declares it.
        limit: LenLimit,
    },
    /// The repository file cannot be used: see [`PublisherBuilder::warm`](crate::PublisherBuilder::warm).
    #[error(transparent)]
    File(#[from] RepositoryFileError),
    /// Memory for the repository could not be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The fabric could not register the repository.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}
