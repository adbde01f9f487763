//! The subscribers of a topic, as its node lists them.

use std::time::Duration;

use super::Node;
use super::directory::DirectoryError;
use super::link::{LinkError, LinkUse};
use crate::clock::saturate;
use crate::control::{ProgressEntry, SubscriberEntry, SubscriberPage};
use crate::fabric::Target;
use crate::id::{Delivery, NodeName, Sequence, SlowPolicy};
use crate::limits;
/// The subscribers of a topic: see [`Node::subscribers`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriberList {
    /// The newest sequence of the topic.
    pub newest: Sequence,
    /// How many subscribers the topic has.
    pub count: usize,
    /// Those that its node describes, at most [`limits::SUBSCRIBERS_LISTED_MAX`]: first those that report their progress, the slowest
    /// before the others.
    pub subscribers: Vec<SubscriberListing>,
}

/// A subscriber of a topic, as the topic's node describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriberListing {
    /// Its node.
    pub node: NodeName,
    /// Its process on its host.
    pub process: u32,
    /// How values reach it.
    pub delivery: Delivery,
    /// What it reports. `None` if it does not: it has asked neither for a [policy](crate::SubscriberBuilder::slow) nor to
    /// [report](crate::SubscriberBuilder::progress), the topic is not a log, or so many report theirs already.
    pub progress: Option<ProgressListing>,
}

/// How far a subscriber of a log is, by its own report. Its counts are of the last time that it looked for records that it did not hold
/// already: while it works through up to 64 KiB of records that it has copied, they stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgressListing {
    /// What happens when it is slow.
    pub policy: SlowPolicy,
    /// Whether the publisher takes it into account before it overwrites records. False with [`SlowPolicy::Lap`], and for one that was let
    /// go.
    pub is_gating: bool,
    /// The last sequence that it has received, reported lost, or skipped.
    pub last: Sequence,
    /// By how many records it is behind.
    pub lag: u64,
    /// Records received.
    pub received: u64,
    /// Records that were overwritten before it read them.
    pub lost: u64,
    /// Reads that it repeated.
    pub retries: u64,
    /// Records that it refused as damaged.
    pub rejected: u64,
    /// For how long its node has not shown that it runs, as the topic's node sees it every 100 milliseconds. Nodes show it about every 200
    /// milliseconds.
    pub unseen: Duration,
}

impl Node {
    /// Lists the subscribers of the topic at this address, the slowest first. Its node answers from memory; the progress of those on other
    /// hosts is up to 100 milliseconds old. Blocks for a round trip.
    ///
    /// ```
    /// use fabricast::Node;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// let mut trades = publishing.log_publisher::<u64>("trades").open()?;
    /// let node = Node::builder().runtime_dir(dir.path()).open()?;
    /// let mut subscriber = node.log_subscriber::<u64>("shm:exchange/trades").progress().open()?;
    /// trades.publish_batch(&[1, 2, 3])?;
    ///
    /// let list = node.subscribers("shm:exchange/trades")?;
    /// let progress = list.subscribers[0].progress.ok_or("it reports")?;
    /// assert_eq!((list.count, progress.lag), (1, 3));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`DirectoryError`] when the node cannot be reached, does not answer, or has no such topic.
    pub fn subscribers(
        &self,
        target: impl TryInto<Target, Error: Into<DirectoryError>>,
    ) -> Result<SubscriberList, DirectoryError> {
        self.subscribers_timeout(target, Duration::from_nanos(limits::ANSWER_DEADLINE_NS))
    }

    /// Does the same as [`Self::subscribers`], with a timeout for the answer, and for connecting over RDMA, which takes 3 s at most. An
    /// existing session with the node keeps its own timeout.
    ///
    /// # Errors
    ///
    /// As [`Self::subscribers`].
    pub fn subscribers_timeout(
        &self,
        target: impl TryInto<Target, Error: Into<DirectoryError>>,
        timeout: Duration,
    ) -> Result<SubscriberList, DirectoryError> {
        let target = target.try_into().map_err(Into::into)?;
        let failed = |error| match error {
            LinkError::Fabric(source) => DirectoryError::Fabric(source),
            LinkError::Session(source) => DirectoryError::Session { address: target.address.clone(), source },
        };
        let asked = |link: &LinkUse| link.subscribers(&target.topic);
        match self.links().ask(&target.address, saturate(timeout), asked).map_err(failed)? {
            Some(page) => Ok(SubscriberList::of(page)),
            None => Err(DirectoryError::NoSuchTopic { target: target.clone() }),
        }
    }
}

impl SubscriberList {
    fn of(SubscriberPage { newest, count, entries }: SubscriberPage) -> Self {
        let listing = |entry: SubscriberEntry| {
            let SubscriberEntry { node, process, delivery, progress } = entry;
            let progress = progress.map(|progress| ProgressListing::of(progress, newest));
            SubscriberListing { node, process, delivery, progress }
        };
        let subscribers = entries.into_items().into_iter().map(listing).collect();
        Self { newest: Sequence::new(newest), count: count as usize, subscribers }
    }
}

impl ProgressListing {
    fn of(entry: ProgressEntry, newest: u64) -> Self {
        let ProgressEntry { policy, is_gating, last, received, lost, retries, rejected, unseen_ns } = entry;
        let (lag, last) = (newest.saturating_sub(last), Sequence::new(last));
        let unseen = Duration::from_nanos(unseen_ns);
        Self { policy, is_gating, last, lag, received, lost, retries, rejected, unseen }
    }
}
