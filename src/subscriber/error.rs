use std::convert::Infallible;

use crate::control::{ControlError, RefuseReason};
use crate::fabric::{AddressError, FabricError, Target};
use crate::id::{Epoch, Kind, NameError, NodeName, Sequence, TopicName};
use crate::layout::GeometryError;
use crate::layout::header::HeaderError;
use crate::memory::MemoryError;
use crate::payload::{DecodeError, SchemaError};
use crate::repository::{LossReason, Lost, ReadFailure};

/// Why no value was received. Unless it says that the topic has ended, the subscriber goes on: ask again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The publisher overwrote each value while it was read. The next call tries again.
    #[error(
        "the value was overwritten during each of {attempts} reads: publish less often, or with more slots"
    )]
    Contended {
        /// Reads.
        attempts: u32,
    },
    /// The value does not match its checksum, and nobody is writing it: the publisher's memory or program is faulty. It
    /// is passed over.
    #[error(
        "value {sequence} is damaged: its checksum is {found:08x}, its bytes give {expected:08x}; the next one is read, \
         but if this happens again, check the publisher's program and its host's memory"
    )]
    Damaged {
        /// Its position.
        sequence: Sequence,
        /// What its bytes give.
        expected: u32,
        /// What is written beside it.
        found: u32,
    },
    /// The stamps of the value do not agree, and nobody is writing it. It is passed over.
    #[error(
        "value {sequence} is damaged: its stamps do not agree; if it happens again, check the publisher's host"
    )]
    BrokenStamps {
        /// Its position.
        sequence: Sequence,
    },
    /// The value belongs to another incarnation of the topic. It is passed over.
    #[error("value {sequence} belongs to epoch {found:016x}, this subscriber reads epoch {expected}")]
    ForeignEpoch {
        /// Its position.
        sequence: Sequence,
        /// The epoch that was granted.
        expected: Epoch,
        /// The epoch of the value.
        found: u64,
    },
    /// The value claims to be longer than the topic's maximum. It is passed over.
    #[error("value {sequence} claims {len} bytes, over the topic's maximum of {max}")]
    ImpossibleLen {
        /// Its position.
        sequence: Sequence,
        /// What it claims, bytes.
        len: u64,
        /// The topic's maximum, bytes.
        max: usize,
    },
    /// The value is whole, but not one of the type. It is passed over.
    #[error("value {sequence} cannot be decoded")]
    Decode {
        /// Its position.
        sequence: Sequence,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// Records of a log that the publisher overwrote before this subscriber came to them. The next call goes on behind them.
    #[error(
        "{count} records from {first_lost} on were overwritten before they were read: read faster, or publish with a larger capacity"
    )]
    Lapped {
        /// The first of them.
        first_lost: Sequence,
        /// How many they are.
        count: u64,
    },
    /// Records of a log that do not match their checksums, and that nobody is writing. Over an unreliable queue pair also those that
    /// were lost on the way, or overwritten before they were sent. The next call goes on behind them.
    #[error(
        "{count} records from {first_lost} on are damaged; if this happens again, check the publisher's program and its host's memory"
    )]
    DamagedRecords {
        /// The first of them.
        first_lost: Sequence,
        /// How many they are.
        count: u64,
    },
    /// Values or records that were published before the topic ended and cannot be received any more: the connection was lost
    /// before they were read, the publisher's node stopped before it had written them, the topic's next incarnation ended meanwhile,
    /// or this subscriber pulls over a wire and read too late. The next call reports the end.
    #[error(
        "{count} values or records from {first_lost} on, the last ones of the topic, cannot be received any more: the publisher or the \
         connection was gone before they were"
    )]
    CutOff {
        /// The first of them.
        first_lost: Sequence,
        /// How many they are.
        count: u64,
    },
    /// Values or records that came with notices are not what the publisher's memory holds: somebody who may read the topic has
    /// forged them, or they were damaged on the way. Once for a subscriber, which from then on reads that memory and takes
    /// nothing from notices. The next call goes on with what is there: for a state topic the newest value, for a log every
    /// record from `first` on.
    #[error(
        "values {first} to {told} came with notices and are not what the publisher's memory holds, which has reached {found}: \
         discard those received; memory is read from now on, but check which programs may read the topic"
    )]
    Contradicted {
        /// The first value that is in doubt; those before it are right. For a log, the first record that differs.
        first: Sequence,
        /// The last value that came with a notice.
        told: Sequence,
        /// The newest value in the publisher's memory when it was read.
        found: Sequence,
    },
    /// The publisher of the topic was dropped, and every value that it left behind was received, replaced by a newer one, or
    /// reported as lost ([`Self::CutOff`] names the last ones).
    #[error("the topic has ended after {published} values")]
    Ended {
        /// The last sequence.
        published: Sequence,
    },
    /// The publisher's process is gone, or cannot be reached; every value was received that it left behind and that can
    /// still be read.
    #[error("the publisher is gone")]
    Gone {
        /// How that was noticed.
        #[source]
        source: ControlError,
    },
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl From<ReadFailure> for ReceiveError {
    fn from(failure: ReadFailure) -> Self {
        match failure {
            ReadFailure::Contended { attempts } => Self::Contended { attempts },
            ReadFailure::Damaged { sequence, expected, found } => Self::Damaged { sequence, expected, found },
            ReadFailure::BrokenStamps { sequence } => Self::BrokenStamps { sequence },
            ReadFailure::ForeignEpoch { sequence, expected, found } => {
                Self::ForeignEpoch { sequence, expected, found }
            }
            ReadFailure::ImpossibleLen { sequence, len, max } => Self::ImpossibleLen { sequence, len, max },
            ReadFailure::Lost(Lost { first: first_lost, count, reason }) => match reason {
                LossReason::Lapped => Self::Lapped { first_lost, count },
                LossReason::Damaged => Self::DamagedRecords { first_lost, count },
            },
            ReadFailure::Contradicted { first, told, found } => Self::Contradicted { first, told, found },
        }
    }
}

/// Why a topic could not be subscribed to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriberError {
    /// The text is not a topic's address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The node cannot be reached.
    #[error("cannot subscribe to {target}")]
    Unreachable {
        /// The topic.
        target: Target,
        /// Why.
        #[source]
        source: FabricError,
    },
    /// The session with the node failed.
    #[error("cannot subscribe to {target}")]
    Session {
        /// The topic.
        target: Target,
        /// Why.
        #[source]
        source: ControlError,
    },
    /// The publisher refused.
    #[error("cannot subscribe to {target}: {reason}{}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// The topic.
        target: Target,
        /// Why.
        reason: RefuseReason,
        /// The publisher's own words; may be empty.
        text: String,
    },
    /// What the publisher granted cannot be used.
    #[error("what the publisher of {target} granted cannot be used")]
    Unfit {
        /// The topic.
        target: Target,
        /// What is wrong.
        #[source]
        source: GrantError,
    },
    /// A publisher that had dialled could not be attached to. The listener goes on.
    #[error("cannot subscribe to {topic} of node {node} (process {process}), which dialled")]
    Dialled {
        /// The publisher's node.
        node: NodeName,
        /// Its process.
        process: u32,
        /// The topic.
        topic: TopicName,
        /// Why.
        #[source]
        source: AttachError,
    },
    /// The thread of this node has panicked: it subscribes to nothing any more.
    #[error("cannot subscribe to {topic}")]
    NodeFailed {
        /// The topic.
        topic: TopicName,
        /// Why.
        #[source]
        source: ControlError,
    },
    /// The node has no name, so that nobody can dial it.
    #[error("a node without a name cannot be dialled: give it one with NodeBuilder::name to listen")]
    Unnamed,
    /// The node listens for publishers of the topic already.
    #[error("this node listens for publishers of {topic} already: use that listener, or drop it first")]
    AlreadyListening {
        /// The topic.
        topic: TopicName,
    },
    /// The text is not a topic's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The subscriber's payload type cannot be described.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The landing region's memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The operating system gave no random number.
    #[error("cannot draw a random number")]
    Random(#[source] std::io::Error),
}

impl From<Infallible> for SubscriberError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Why a topic could not be attached to, once there was a session with its publisher's node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The publisher refused.
    #[error("{reason}{}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// Why.
        reason: RefuseReason,
        /// The publisher's own words; may be empty.
        text: String,
    },
    /// The session failed.
    #[error(transparent)]
    Session(#[from] ControlError),
    /// What the publisher granted cannot be used.
    #[error("what was granted cannot be used")]
    Unfit(#[from] GrantError),
    /// The landing region's memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// What is wrong with a grant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The shape of the repository is impossible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The topic is of another kind.
    #[error(
        "the topic is a {found}: subscribe to it with Node::{found}_subscriber, not with Node::{expected}_subscriber"
    )]
    Kind {
        /// The kind of the subscriber.
        expected: Kind,
        /// The kind of the topic.
        found: Kind,
    },
    /// The header of the repository is damaged or of another version.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The schema cannot be read.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The repository cannot be opened.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The repository, or the landing region, is larger than the subscriber allows.
    #[error("its region has {len} bytes, over the limit of {max}: raise region_len_max")]
    RegionLen {
        /// Bytes needed.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The repository was granted, but could not be read in time.
    #[error("it cannot be read: no completion came in time; the path to the publisher may be broken")]
    Unreadable,
    /// No region came with the grant: the publisher's node does not keep to the protocol.
    #[error("no region came with it: use the same release on both sides, and restart the publisher")]
    NoRegion,
}
