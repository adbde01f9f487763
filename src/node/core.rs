use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::control::{ControlError, Identity};
use crate::event::{Event, EventSink};
use crate::fabric::{Address, Connection, Fabric, FabricError, Waker};
use crate::id::{TopicId, TopicName};
use crate::limits;
use crate::publisher::{PublishedTopic, PublisherError};

/// What the threads of a node share.
#[derive(Debug)]
pub(crate) struct NodeCore {
    fabric: Arc<dyn Fabric>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn EventSink>,
    identity: Identity,
    /// Where others find this node.
    addresses: Vec<Address>,
    waker: Arc<Waker>,
    /// The topics of this node. A name without a topic is reserved by a publisher that is being opened.
    topics: Mutex<BTreeMap<TopicName, Option<Arc<PublishedTopic>>>>,
    /// Why its thread has ended before its time.
    failure: OnceLock<String>,
}

/// A topic's name, taken until its topic is there or opening it has failed.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    core: &'a NodeCore,
    name: TopicName,
    filled: bool,
}

impl NodeCore {
    pub(super) fn new(
        fabric: Arc<dyn Fabric>,
        clock: Arc<dyn Clock>,
        events: Arc<dyn EventSink>,
        identity: Identity,
        addresses: Vec<Address>,
    ) -> Result<Self, FabricError> {
        let waker = Arc::new(Waker::new()?);
        let (topics, failure) = (Mutex::default(), OnceLock::new());
        Ok(Self { fabric, clock, events, identity, addresses, waker, topics, failure })
    }

    /// What moves this node's bytes.
    pub(crate) fn fabric(&self) -> &dyn Fabric {
        self.fabric.as_ref()
    }

    /// Dials the node at this address, and waits for up to `patience_ns` until it takes more connections. The connection, and how
    /// much of the time is left.
    pub(super) fn dial(
        &self,
        address: &Address,
        patience_ns: u64,
    ) -> Result<(Box<dyn Connection>, u64), FabricError> {
        let began_ns = self.clock.monotonic_ns();
        let connection = self.fabric.dial_patiently(address, false, Duration::from_nanos(patience_ns))?;
        let elapsed_ns = self.clock.monotonic_ns().saturating_sub(began_ns);
        Ok((connection, patience_ns.saturating_sub(elapsed_ns)))
    }

    /// Where its time comes from.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Who it is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Where others find it.
    pub(super) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Ends the wait of its thread.
    pub(super) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// Tells what happened. A sink that panics costs its event.
    pub(super) fn tell(&self, event: &Event) {
        let told = catch_unwind(AssertUnwindSafe(|| self.events.event(event)));
        if let Err(panic) = told {
            let reason = panic_message(panic.as_ref());
            tracing::error!(target: "fabricast", ?event, reason, "the event sink panicked: the event is lost");
        }
    }

    /// Records that its thread has panicked, and notifies its publishers. What it gave as the reason.
    pub(super) fn fail(&self, panic: &(dyn Any + Send)) -> &str {
        let reason = self.failure.get_or_init(|| panic_message(panic).to_owned());
        self.topics.lock().values().flatten().for_each(|topic| topic.orphan());
        reason
    }

    /// An error once its thread has panicked.
    pub(super) fn check_runs(&self) -> Result<(), ControlError> {
        self.failure.get().map_or(Ok(()), |reason| Err(ControlError::Broken { why: thread_failed(reason) }))
    }

    /// A number that no peer can guess.
    pub(super) fn nonce(&self) -> Result<NonZeroU64, std::io::Error> {
        Ok(NonZeroU64::new(crate::random::number()?).unwrap_or(NonZeroU64::MIN))
    }

    /// Takes a topic's name.
    pub(super) fn reserve(&self, name: &TopicName) -> Result<Reserved<'_>, PublisherError> {
        self.check_runs().map_err(|_| PublisherError::NodeFailed)?;
        let mut topics = self.topics.lock();
        // A topic whose publisher was dropped makes room at once, even if its subscribers have yet to be told.
        let taken =
            |topic: &Option<Arc<PublishedTopic>>| topic.as_ref().is_none_or(|topic| !topic.has_ended());
        // Different names with one identifier would accept each other's values.
        let identical = |other: &TopicName| TopicId::of(other) == TopicId::of(name);
        if topics.iter().any(|(other, topic)| taken(topic) && identical(other)) {
            return Err(PublisherError::TopicTaken { topic: name.clone() });
        }
        if topics.len() >= limits::TOPICS_MAX && !topics.contains_key(name) {
            return Err(PublisherError::TooManyTopics);
        }
        topics.insert(name.clone(), None);
        Ok(Reserved { core: self, name: name.clone(), filled: false })
    }

    /// The topic of this name, if its publisher has not been dropped.
    pub(super) fn topic(&self, name: &TopicName) -> Option<Arc<PublishedTopic>> {
        self.topics.lock().get(name)?.clone().filter(|topic| !topic.has_ended())
    }

    /// Up to `count` topics behind this name, in the order of their names.
    pub(super) fn topics_after(&self, name: Option<&TopicName>, count: usize) -> Vec<Arc<PublishedTopic>> {
        let after = name.map_or(Bound::Unbounded, Bound::Excluded);
        let topics = self.topics.lock();
        let behind = topics.range::<TopicName, _>((after, Bound::Unbounded));
        behind.filter_map(|(_, topic)| topic.clone()).filter(|topic| !topic.has_ended()).take(count).collect()
    }

    /// All topics, after those have been forgotten whose publishers were dropped.
    pub(super) fn living_topics(&self) -> Vec<Arc<PublishedTopic>> {
        let mut topics = self.topics.lock();
        topics.retain(|_, topic| topic.as_ref().is_none_or(|topic| !topic.has_ended()));
        topics.values().flatten().cloned().collect()
    }
}

impl Reserved<'_> {
    /// Opens the topic to subscribers.
    pub(super) fn fill(mut self, topic: Arc<PublishedTopic>) {
        let mut topics = self.core.topics.lock();
        topics.insert(self.name.clone(), Some(Arc::clone(&topic)));
        if self.core.failure.get().is_some() {
            topic.orphan();
        }
        drop(topics);
        self.filled = true;
        // From now on its heart beats.
        self.core.waker.wake();
    }
}

/// What a panic said.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it gave no reason")
}

fn thread_failed(reason: &str) -> String {
    format!("the thread of this node has panicked ({reason}): open another node")
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.core.topics.lock().remove(&self.name);
        }
    }
}
