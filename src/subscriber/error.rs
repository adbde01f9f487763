use std::convert::Infallible;
use std::time::Duration;

#[cfg(feature = "tokio")]
use super::AsyncError;
use crate::control::{ControlError, RefuseReason, Unproven};
use crate::fabric::{AddressError, FabricError, Target};
use crate::id::{Epoch, Kind, NameError, NodeName, Sequence, TopicName};
use crate::layout::GeometryError;
use crate::layout::header::HeaderError;
use crate::memory::MemoryError;
use crate::payload::{DecodeError, SchemaError};
use crate::repository::{LossReason, Lost, ReadFailure};

/// Why no value was received. The subscriber stays usable, unless the error says that the topic has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The publisher overwrote the value during every attempt to read it. Of a feed also: its log and its table did not reach the same
    /// event in time. The next call tries again.
    #[error(
        "the value was overwritten during each of {attempts} reads, or log and table of a feed disagree: publish less often, or give a \
         state more slots, or a snapshot of a table more time; if a feed does not recover, check its publisher's host and program"
    )]
    Contended {
        /// The attempts.
        attempts: u32,
    },
    /// The value does not match its checksum and is not being written: the publisher's memory or program is faulty. It is
    /// skipped.
    #[error(
        "value {sequence} is damaged: its checksum is {found:08x}, its bytes have {expected:08x}; if this happens \
         again, check the publisher's program and its host's memory"
    )]
    Damaged {
        /// Its sequence.
        sequence: Sequence,
        /// The checksum of its bytes.
        expected: u32,
        /// The checksum stored with it.
        found: u32,
    },
    /// The value's stamps disagree and it is not being written. It is skipped.
    #[error(
        "value {sequence} is damaged: its stamps disagree; if this happens again, check the publisher's host"
    )]
    BrokenStamps {
        /// Its sequence.
        sequence: Sequence,
    },
    /// The value belongs to another incarnation of the topic. It is skipped.
    #[error("value {sequence} belongs to epoch {found:016x}, but this subscriber reads epoch {expected}")]
    ForeignEpoch {
        /// Its sequence.
        sequence: Sequence,
        /// The granted epoch.
        expected: Epoch,
        /// The epoch of the value.
        found: u64,
    },
    /// The value claims more than the topic's maximum length. It is skipped.
    #[error("value {sequence} claims {len} bytes, over the topic's maximum of {max}")]
    ImpossibleLen {
        /// Its sequence.
        sequence: Sequence,
        /// The claimed length, bytes.
        len: u64,
        /// The topic's maximum, bytes.
        max: usize,
    },
    /// The value is intact, but not a value of the type. It is skipped.
    #[error("value {sequence} cannot be decoded")]
    Decode {
        /// Its sequence.
        sequence: Sequence,
        /// What is wrong.
        #[source]
        source: DecodeError,
    },
    /// The publisher overwrote records of a log before this subscriber read them. The next call continues after them.
    #[error(
        "{} overwritten before {} read: read faster, or publish with a larger capacity (of a feed, log_capacity); if the publisher has let \
         this subscriber go, open it again",
        records(*first_lost, *count, "was", "were"),
        if *count == 1 { "it was" } else { "they were" }
    )]
    Lapped {
        /// The first of them.
        first_lost: Sequence,
        /// Their number.
        count: u64,
    },
    /// Records of a log do not match their checksums and are not being written. Over an unreliable queue pair this includes
    /// records lost on the wire or overwritten before they were sent. The next call continues after them.
    #[error(
        "{} damaged; if this happens again, check the publisher's program and its host's memory",
        records(*first_lost, *count, "is", "are")
    )]
    DamagedRecords {
        /// The first of them.
        first_lost: Sequence,
        /// Their number.
        count: u64,
    },
    /// Values of a feed could not be received in place of records: they are damaged in the publisher's memory, for example because it
    /// died while it wrote them, or are not values of the type. Reported once for a cut. Those of their keys that are known are
    /// suspect; the next record of such a key has its value read again.
    #[error(
        "{} damaged, or not of this type, and left out: if the publisher is alive, check its program and its host's memory",
        if *count == 1 { "1 value of the feed is".to_owned() } else { format!("{count} values of the feed are") }
    )]
    UnreadableValues {
        /// Their number.
        count: usize,
    },
    /// The topic's last values or records cannot be received any more: the connection was lost before they were read, the
    /// publisher's node stopped before it had written them, the topic's next incarnation ended meanwhile, or this pull subscriber
    /// read too late over a wire. Or the newest value of a state is damaged. The next call reports the end.
    #[error(
        "values from {first_lost} on, {count} in all, cannot be received: the topic ended, or the connection was lost, before they \
         reached this subscriber, or they are damaged"
    )]
    CutOff {
        /// The first of them.
        first_lost: Sequence,
        /// How many they are.
        count: u64,
    },
    /// Values or records received with notices differ from the publisher's memory: a program that can read the topic forged them,
    /// or they were damaged on the wire. Reported once; afterwards the subscriber ignores inline values and reads the memory. The
    /// next call continues with what the memory holds: the newest value of a state topic, every record from `first` on of a log.
    ///
    /// For a subscriber of several [lines](crate::Lines), `first` is the first such value that it has received from the line with these
    /// notices. Records from there on come again from that line, also those that another one had brought. If others had brought all
    /// values in doubt, nothing is reported: they are only counted, in the line's
    /// [`SubscriberStats::withdrawn`](crate::SubscriberStats::withdrawn).
    #[error(
        "values {first} to {told} came with notices and differ from the publisher's memory, which has reached {found}: \
         discard them and check which programs can read the topic; from now on this subscriber reads the memory"
    )]
    Contradicted {
        /// The first value in doubt; earlier ones are right. For a log, the first record that differs.
        first: Sequence,
        /// The last value that a notice announced.
        told: Sequence,
        /// The newest value in the publisher's memory when it was read.
        found: Sequence,
    },
    /// The publisher was dropped, and every value was received, replaced by a newer one, or reported lost ([`Self::CutOff`]
    /// reports the last ones).
    #[error("the topic has ended after {published} {}", if published.get() == 1 { "value" } else { "values" })]
    Ended {
        /// The last sequence.
        published: Sequence,
    },
    /// The publisher was about to overwrite records that this subscriber had not read, and has disconnected it, as it had asked with
    /// [`SlowPolicy::Disconnect`](crate::SlowPolicy::Disconnect). No record is received any more; every later receive repeats this. A
    /// [`Persistent`](crate::Persistent) subscriber reports it once, attaches again, and reports the records that it lost meanwhile. One
    /// of several [lines](crate::Lines) attaches again, too: what it lost is missing only if no other line brings it.
    #[error(
        "disconnected after record {last}: the publisher was about to overwrite records that were not read; read faster, publish with a \
         larger capacity, or choose another policy for slow subscribers"
    )]
    Overtaken {
        /// The last record that was received, reported lost, or skipped.
        last: Sequence,
    },
    /// The publisher's process is gone or unreachable, or its node does not admit this subscriber any more: see
    /// [`ControlError::denies_access`]. Every value that can still be read was received.
    #[error("{}", gone(source))]
    Gone {
        /// How this was noticed.
        #[source]
        source: ControlError,
    },
    /// Records that none of the [lines](crate::Lines) has brought: every line that was attached lost them, or a line that may still have
    /// them did not bring them in time. The last records of an epoch, if they were cut off, are reported when the next epoch begins, before
    /// [`Self::Restarted`]. The next receive continues after them.
    #[error(
        "{} missing: no line has brought {}; the report on each line says what it lost",
        records(*first_lost, *count, "is", "are"),
        if *count == 1 { "it" } else { "them" }
    )]
    Missing {
        /// The first of them.
        first_lost: Sequence,
        /// Their number.
        count: u64,
    },
    /// One of the [lines](crate::Lines) has a publisher of another epoch. Nothing is received from it while another line has the expected
    /// one. Reported once, and again if it was in step meanwhile.
    #[error("the publisher of {line} {}", out_of_step(*epoch, *expected))]
    OutOfStep {
        /// The line.
        line: Box<Target>,
        /// Its epoch.
        epoch: Epoch,
        /// That of the others.
        expected: Epoch,
    },
    /// No value has come for as long as the [`deadline`](crate::SubscriberBuilder::deadline) of the subscriber says. Reported once, and
    /// again after the next value. Nothing is lost, and the subscriber goes on.
    #[error(
        "no value has come for {waited:.1?}, over the deadline of {deadline:?}: see whether the publisher runs, and has something to \
         publish"
    )]
    Overdue {
        /// The deadline.
        deadline: Duration,
        /// How long nothing has come.
        waited: Duration,
    },
    /// A publisher of another epoch was found in place of the one lost: its sequences have nothing to do with the earlier ones. Only
    /// [`Persistent`](crate::Persistent) subscribers and those of several [lines](crate::Lines) report it, once, before the first value of
    /// that publisher.
    #[error(
        "the publisher has restarted: epoch {epoch} follows {before}, of which {last} was the last value received; discard what its \
         values added up to"
    )]
    Restarted {
        /// The epoch of the values that follow.
        epoch: Epoch,
        /// That of the values before.
        before: Epoch,
        /// The last of them that was received, reported lost, or skipped.
        last: Sequence,
    },
    /// A publisher was found in place of the one lost, or for the first time, but this subscriber cannot attach to it. Only
    /// [`Persistent`](crate::Persistent) subscribers and those of several [lines](crate::Lines) report it, once, and still seek a publisher
    /// to which they can.
    #[error(
        "cannot continue with the publisher that was found: this subscriber tries again, in case it is replaced"
    )]
    NotResumed {
        /// Why.
        #[source]
        source: Box<SubscriberError>,
    },
    /// A task cannot wait for the next value. Nothing is lost. Exists with the cargo feature `tokio`.
    #[cfg(feature = "tokio")]
    #[error(transparent)]
    Runtime(#[from] AsyncError),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// Says which end has ended the subscription.
fn gone(source: &ControlError) -> &'static str {
    if matches!(source, ControlError::Unauthenticated { why: Unproven::KeysRemoved }) {
        "this node does not admit the publisher any more"
    } else if source.denies_access() {
        "the publisher does not admit this subscriber any more"
    } else {
        "the publisher is gone"
    }
}

/// These records, and the verb for one of them or for several.
fn records(first: Sequence, count: u64, one: &str, several: &str) -> String {
    if count == 1 {
        format!("record {first} {one}")
    } else {
        format!("{count} records from {first} on {several}")
    }
}

/// How a line differs from others.
fn out_of_step(epoch: Epoch, expected: Epoch) -> String {
    if epoch == expected {
        return "has a topic of another kind than those of other lines: it is left out".to_owned();
    }
    format!(
        "has epoch {epoch}, those of other lines have {expected}: it is left out; name the same epoch for the publishers of all lines, \
         with PublisherBuilder::epoch, and stop those of earlier epochs"
    )
}

impl ReceiveError {
    /// Returns whether it has skipped one value, so that others may follow at once.
    pub(super) fn is_about_a_value(&self) -> bool {
        use ReceiveError::{BrokenStamps, Damaged, Decode, ImpossibleLen};
        matches!(self, BrokenStamps { .. } | Damaged { .. } | Decode { .. } | ImpossibleLen { .. })
    }

    /// Returns whether nothing was lost, and the next call goes on where this one did not: also in the middle of an event.
    pub(super) fn loses_nothing(&self) -> bool {
        use ReceiveError::{Contended, Fabric, NotResumed, OutOfStep, Overdue};
        matches!(self, Contended { .. } | Fabric(_) | NotResumed { .. } | OutOfStep { .. } | Overdue { .. })
    }
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

/// Why a subscription could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriberError {
    /// The text is not a topic's address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The node cannot be reached, or this process or host is short of something.
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
        /// The publisher's explanation; may be empty.
        text: String,
    },
    /// The publisher's grant is unusable.
    #[error("the publisher of {target} sent an unusable grant")]
    Unfit {
        /// The topic.
        target: Target,
        /// What is wrong.
        #[source]
        source: GrantError,
    },
    /// A publisher that dialled is unusable. The listener stays usable.
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
    /// The thread of this node has panicked.
    #[error("cannot subscribe to {topic}")]
    NodeFailed {
        /// The topic.
        topic: TopicName,
        /// Why.
        #[source]
        source: ControlError,
    },
    /// A subscriber has at most [`limits::LINES_MAX`](crate::limits::LINES_MAX) lines.
    #[error("{count} lines are more than {}: leave out lines", crate::limits::LINES_MAX)]
    Lines {
        /// How many were given.
        count: usize,
    },
    /// Two [lines](crate::Lines) of a subscriber are the same: the loss of their publisher would be that of both.
    #[error(
        "{target} is given as two lines: name another publisher of the same values, or leave out one of them"
    )]
    SameLine {
        /// The line.
        target: Target,
    },
    /// A subscriber of several lines of a feed cannot be [conflated](crate::FeedSubscriberBuilder::conflate).
    #[error(
        "lines of a feed cannot be conflated: receive the records, or subscribe to the lines of the feed's table"
    )]
    Conflated,
    /// The node has no name, so that publishers cannot dial it.
    #[error("a node without a name cannot listen: name it with NodeBuilder::name")]
    Unnamed,
    /// The node already listens for publishers of the topic.
    #[error("this node already listens for publishers of {topic}: use that listener, or drop it first")]
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
    /// Memory for the landing region could not be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A task cannot wait for it. Exists with the cargo feature `tokio`.
    #[cfg(feature = "tokio")]
    #[error(transparent)]
    Runtime(#[from] AsyncError),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl SubscriberError {
    /// Returns whether another attempt may succeed without a change of the program or the publisher's: the node cannot be reached or
    /// does not answer, has no such topic now, or serves too many subscribers.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = fabricast::Node::builder().runtime_dir(dir.path()).open()?;
    /// let error = node.state_subscriber::<f64>("shm:nobody/EURUSD").open().unwrap_err();
    /// assert!(error.is_transient());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => !matches!(
                source,
                FabricError::WithoutVerbs { .. }
                    | FabricError::Access { .. }
                    | FabricError::NotAdmitted(_)
                    | FabricError::NotOpen { .. }
            ),
            Self::Session { source, .. } => match source {
                ControlError::Version { .. }
                | ControlError::Unauthenticated { .. }
                | ControlError::NotCovered { .. } => false,
                ControlError::Refused { reason, .. } => *reason != RefuseReason::NotAuthenticated,
                _ => true,
            },
            Self::Refused { reason, .. } => reason.is_transient(),
            Self::Unfit { source, .. } => match source {
                GrantError::Unreadable | GrantError::Incarnation => true,
                // It died, or ended the topic, after the grant.
                GrantError::Fabric(error) => error.ends_connection(),
                _ => false,
            },
            Self::Fabric(_) => true,
            _ => false,
        }
    }

    /// Returns whether the topic may exist, but not at the moment.
    pub(crate) fn is_absence(&self) -> bool {
        use RefuseReason::{NoSuchTopic, TopicEnded};
        matches!(self, Self::Unreachable { .. })
            || matches!(self, Self::Refused { reason: NoSuchTopic | TopicEnded, .. })
    }
}

impl From<Infallible> for SubscriberError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Why attaching failed over an established session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The publisher refused.
    #[error("{reason}{}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// Why.
        reason: RefuseReason,
        /// The publisher's explanation; may be empty.
        text: String,
    },
    /// The session failed.
    #[error(transparent)]
    Session(#[from] ControlError),
    /// The publisher's grant is unusable.
    #[error("the grant is unusable")]
    Unfit(#[source] GrantError),
    /// Memory for the landing region could not be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl From<GrantError> for AttachError {
    fn from(error: GrantError) -> Self {
        match error {
            // A shortage of this process says nothing about the grant.
            GrantError::Fabric(source) if source.is_shortage() => Self::Fabric(source),
            error => Self::Unfit(error),
        }
    }
}

/// What is wrong with a grant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The geometry of the repository is impossible.
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
    /// The granted repository could not be read in time.
    #[error("the repository cannot be read: no completion in time; the path to the publisher may be broken")]
    Unreadable,
    /// Log and table of a feed are of different incarnations.
    #[error(
        "its log and its table are of different incarnations: publish both with one Node::feed_publisher; if they are, the \
         publisher restarted meanwhile: try again"
    )]
    Incarnation,
    /// The grant came without a region: the publisher's node violates the protocol.
    #[error("the grant came without a region: use the same release on both sides, and restart the publisher")]
    NoRegion,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_on_one_record_and_on_several_agree_with_their_number() {
        let first_lost = Sequence::new(7);
        let begins = |error: ReceiveError, begin: &str| {
            assert!(error.to_string().starts_with(begin), "{error}");
        };
        begins(
            ReceiveError::Lapped { first_lost, count: 1 },
            "record 7 was overwritten before it was read: ",
        );
        begins(
            ReceiveError::Lapped { first_lost, count: 2 },
            "2 records from 7 on were overwritten before they were read: ",
        );
        begins(ReceiveError::DamagedRecords { first_lost, count: 1 }, "record 7 is damaged; ");
        begins(ReceiveError::DamagedRecords { first_lost, count: 2 }, "2 records from 7 on are damaged; ");
        begins(
            ReceiveError::Missing { first_lost, count: 1 },
            "record 7 is missing: no line has brought it; ",
        );
        begins(
            ReceiveError::Missing { first_lost, count: 2 },
            "2 records from 7 on are missing: no line has brought them; ",
        );
        begins(
            ReceiveError::UnreadableValues { count: 1 },
            "1 value of the feed is damaged, or not of this type, and left out: ",
        );
        begins(
            ReceiveError::UnreadableValues { count: 2 },
            "2 values of the feed are damaged, or not of this type, and left out: ",
        );
    }
}
