use std::convert::Infallible;

use super::core::NodeCore;
use super::link::{LinkError, LinkUse};
use super::links::Links;
use crate::clock::Timekeeper;
use crate::control::{ControlError, Identity, Text, TopicEntry};
use crate::fabric::{Address, AddressError, FabricError, NodeListing, Target};
use crate::id::{Epoch, Kind, NodeName, Sequence, TopicName};
use crate::limits;
use crate::publisher::PublishedTopic;

/// The topics of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Directory {
    /// Its name.
    pub node: NodeName,
    /// Its process.
    pub process: u32,
    /// Its host.
    pub host: String,
    /// When it started, nanoseconds since the Unix epoch.
    pub started_ns: u64,
    /// Its topics, by name.
    pub topics: Vec<TopicListing>,
}

/// A topic, as its node describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicListing {
    /// Its name.
    pub topic: TopicName,
    /// What its repository holds.
    pub kind: Kind,
    /// The name of its payload type.
    pub type_name: String,
    /// The sequence of its newest value.
    pub sequence: Sequence,
    /// When that was published, nanoseconds since the Unix epoch; 0 for never.
    pub published_ns: u64,
    /// How long ago that was, nanoseconds, by the clock of its host, whatever was set there; `None` for never.
    pub age_ns: Option<u64>,
    /// How long ago its node last showed that it is alive, nanoseconds.
    pub heartbeat_age_ns: u64,
    /// Its incarnation.
    pub epoch: Epoch,
    /// Pull subscribers, which read it.
    pub pull_subscribers: u32,
    /// Push subscribers, to which it is written.
    pub push_subscribers: u32,
    /// By how many records the slowest subscriber that [reports its progress](crate::SubscriberBuilder::progress) is behind; `None` if none
    /// does.
    pub lag_max: Option<u64>,
    /// Its largest payload, bytes.
    pub payload_len_max: u64,
}

/// Why nodes or topics could not be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The text is not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The fabric failed: no such node, or no runtime directory.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The node publishes no such topic.
    #[error("there is no topic {target}: see `fabricast list`, or start its publisher")]
    NoSuchTopic {
        /// The topic.
        target: Target,
    },
    /// The session with the node failed.
    #[error("the node at {address} does not answer")]
    Session {
        /// The node.
        address: Address,
        /// Why.
        #[source]
        source: ControlError,
    },
}

impl From<Infallible> for DirectoryError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

pub(super) fn nodes(core: &NodeCore) -> Result<Vec<NodeListing>, DirectoryError> {
    Ok(core.fabric.nodes()?)
}

pub(super) fn query(links: &Links, address: &Address, timeout_ns: u64) -> Result<Directory, DirectoryError> {
    let failed = |error| match error {
        LinkError::Fabric(source) => DirectoryError::Fabric(source),
        LinkError::Session(source) => DirectoryError::Session { address: address.clone(), source },
    };
    links.ask(address, timeout_ns, list).map_err(failed)
}

/// All topics of the node at the other end.
fn list(link: &LinkUse) -> Result<Directory, LinkError> {
    let mut topics: Vec<TopicListing> = Vec::new();
    loop {
        let after = topics.last().map(|topic| topic.topic.clone());
        let (entries, more) = link.topics(after)?;
        let room = limits::TOPICS_MAX.saturating_sub(topics.len());
        topics.extend(entries.into_iter().take(room).map(listing));
        if !more || topics.len() >= limits::TOPICS_MAX {
            break;
        }
    }
    let silent = ControlError::Closed { state: "over before the peer's hello" };
    let Identity { node, process, host, started_ns } = link.peer().ok_or(LinkError::Session(silent))?;
    Ok(Directory { node, process, host: host.as_str().to_owned(), started_ns, topics })
}

fn listing(entry: TopicEntry) -> TopicListing {
    TopicListing {
        topic: entry.name,
        kind: entry.kind,
        type_name: entry.type_name.as_str().to_owned(),
        sequence: Sequence::new(entry.sequence),
        published_ns: entry.published_ns,
        age_ns: (entry.published_ns != 0).then_some(entry.published_age_ns),
        heartbeat_age_ns: entry.heartbeat_age_ns,
        epoch: entry.epoch,
        pull_subscribers: entry.pull_subscribers,
        push_subscribers: entry.push_subscribers,
        lag_max: entry.lag_max,
        payload_len_max: entry.payload_len_max,
    }
}

/// The directory entry of a topic.
pub(super) fn entry(topic: &PublishedTopic, time: &Timekeeper) -> TopicEntry {
    let count = |gauge: &crate::metrics::Gauge| u32::try_from(gauge.value()).unwrap_or(u32::MAX);
    let published_ns = topic.published_ns();
    TopicEntry {
        name: topic.name.clone(),
        kind: topic.kind(),
        type_name: Text::cut(topic.schema.type_name()),
        sequence: topic.newest().get(),
        published_ns,
        published_age_ns: if published_ns == 0 { 0 } else { time.age_ns(published_ns) },
        heartbeat_age_ns: time.age_ns(topic.heartbeat_ns()),
        epoch: topic.epoch,
        pull_subscribers: count(&topic.pull_subscribers),
        push_subscribers: count(&topic.push_subscribers),
        lag_max: topic.subscribers.lag_max(topic.newest()),
        payload_len_max: topic.geometry.payload_len_max() as u64,
    }
}
