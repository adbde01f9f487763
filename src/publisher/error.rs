use crate::fabric::FabricError;
use crate::id::TopicName;
use crate::layout::GeometryError;
use crate::limits;
use crate::memory::MemoryError;
use crate::payload::{EncodeError, SchemaError};
use crate::repository::TooLong;

/// Why a value was not published. The newest value of the topic stays what it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The value is longer than the topic's declared maximum.
    #[error("a value of {len} bytes is over this topic's maximum of {max}: declare a larger payload_len_max")]
    TooLong {
        /// Its length, bytes, as far as it is known.
        len: usize,
        /// The declared maximum, bytes.
        max: usize,
    },
    /// The value could not be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The node's thread has panicked: it serves no subscribers any more. Its last event and log record say why.
    #[error(
        "the node's thread has panicked and serves no subscribers: see its NodeFailed event, and open another node"
    )]
    NodeFailed,
}

impl PublishError {
    /// What it is counted as.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "value too long",
            Self::Encode(_) => "value not encodable",
            Self::NodeFailed => "node failed",
        }
    }
}

impl From<TooLong> for PublishError {
    fn from(TooLong { len, max }: TooLong) -> Self {
        Self::TooLong { len, max }
    }
}

/// Why a topic could not be opened for publishing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublisherError {
    /// The node already publishes a topic of this name.
    #[error("this node already publishes {topic}: drop that publisher first, or choose another name")]
    TopicTaken {
        /// The topic.
        topic: TopicName,
    },
    /// The node publishes as many topics as it may.
    #[error(
        "this node publishes {max} topics, which is the limit: drop publishers that are not needed, \
         or open another node for more",
        max = limits::TOPICS_MAX
    )]
    TooManyTopics,
    /// The node's thread has panicked: it serves no subscribers any more.
    #[error(
        "the node's thread has panicked and serves no subscribers: see its NodeFailed event, and open another node"
    )]
    NodeFailed,
    /// The name is not one a topic can have.
    #[error(transparent)]
    Name(#[from] crate::id::NameError),
    /// Slots and largest payload do not make a repository.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The payload type cannot be described.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The payload type has values of one length, and that is over the declared maximum.
    #[error("values of this type have {len} bytes, over the declared payload_len_max of {max}")]
    PayloadLenMax {
        /// The length of every value, bytes.
        len: usize,
        /// The declared maximum, bytes.
        max: usize,
    },
    /// Even the shortest value of the payload type is over the declared maximum.
    #[error(
        "a value of this type has at least {len} bytes, over the declared payload_len_max of {max}: declare a larger one"
    )]
    PayloadLenMin {
        /// The length of the shortest value, bytes.
        len: usize,
        /// The declared maximum, bytes.
        max: usize,
    },
    /// The repository's memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The fabric could not register the repository.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The operating system gave no random number.
    #[error("cannot draw a random number")]
    Random(#[source] std::io::Error),
}
