//! A node: one process's end of a fabric. It owns topics and sessions, and a thread of its own that serves the
//! control plane; the data path never passes through it.

mod builder;
mod core;
mod dial;
mod directory;
mod driver;
mod link;
mod listener;
mod outbox;
mod served;
mod subscribe;

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

pub use builder::{NodeBuilder, NodeError};
pub use dial::DialError;
pub use directory::{Directory, DirectoryError, NodeListing, TopicListing};
pub use listener::{StateListener, StateListenerBuilder};
pub use subscribe::StateSubscriberBuilder;

use self::core::NodeCore;
use self::driver::DriverThread;
use crate::clock::saturate;
use crate::fabric::Address;
use crate::id::NodeName;
use crate::limits;
use crate::payload::Payload;
use crate::publisher::{PublisherError, StateParts, StatePublisher};

/// What a node without an explicit maximum reserves for each value of a type without a fixed length, bytes.
const PAYLOAD_LEN_MAX_DEFAULT: usize = 4096;

/// One process's end of a fabric: publishes topics, subscribes to those of others.
///
/// A node with a name can be found, and subscribed to; one without subscribes to others, and
/// [dials](Self::dial_subscriber) subscribers that [listen](Self::state_listener) for its topics. Publishers, subscribers
/// and listeners keep their node going, so that it may be dropped before them. Cheap to clone.
///
/// Whichever goes last of its handles ([`Node`]s, [`StatePublisher`]s, [`StateSubscriber`](crate::StateSubscriber)s,
/// [`StateListener`]s) stops the node: that drop joins the node's thread, and may block for up to 250 ms, the time that
/// peers have to take part in the end of their sessions. Over RDMA it may take a second more, where a peer does not take what
/// was sent.
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("weather")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = node.state_publisher::<String>("tokyo").open()?;
/// publisher.publish(&"sunny".to_owned())?;
///
/// let mut subscriber = node.state_subscriber::<String>("shm:weather/tokyo").open()?;
/// assert_eq!(subscriber.try_receive()?.map(|sample| sample.value).as_deref(), Some("sunny"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Node {
    inner: Arc<NodeInner>,
}

/// A node and its thread. The last one to hold it stops the thread.
#[derive(Debug)]
pub(crate) struct NodeInner {
    core: Arc<NodeCore>,
    /// Joined on drop. A simulation drives its nodes itself.
    _driver: Option<DriverThread>,
}

impl Node {
    /// A builder with the defaults of every setting.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    /// The name. One is made up for a node that was given none.
    pub fn name(&self) -> &NodeName {
        &self.inner.core.identity().node
    }

    /// Where others find this node, if it was given a name: on this host, unless it listens elsewhere only.
    pub fn address(&self) -> Option<Address> {
        self.addresses().first().cloned()
    }

    /// Everywhere that others find this node. Empty without a name.
    pub fn addresses(&self) -> &[Address] {
        self.inner.core.addresses()
    }

    /// Begins to set up a publisher of a state topic of this name.
    pub fn state_publisher<T: Payload>(&self, topic: &str) -> StatePublisherBuilder<'_, T> {
        StatePublisherBuilder {
            node: self,
            topic: topic.to_owned(),
            slot_count: limits::SLOT_COUNT_DEFAULT,
            payload_len_max: T::fixed_len().unwrap_or(PAYLOAD_LEN_MAX_DEFAULT),
            payload: PhantomData,
        }
    }

    /// Begins to set up a subscriber of the state topic at this address, for example `shm:NODE/TOPIC`.
    pub fn state_subscriber<T: Payload>(&self, target: &str) -> StateSubscriberBuilder<'_, T> {
        StateSubscriberBuilder::new(self, target.to_owned())
    }

    /// Begins to set up a listener for publishers of this topic, whose nodes dial this one. The node needs a name.
    pub fn state_listener<T: Payload>(&self, topic: &str) -> StateListenerBuilder<'_, T> {
        StateListenerBuilder::new(self, topic.to_owned())
    }

    /// Dials the node at this address, at which a [`StateListener`] waits for this topic, one of this node's own. When
    /// it returns, a subscriber there is attached, so that the next publish reaches it. The node needs no name for that.
    ///
    /// Blocks until the listener has accepted, at most for `timeout`; the resolver of host names, if the address has one, is
    /// not bound by this. A subscription that does not come about in that time
    /// does not come about later. Allocates.
    ///
    /// # Errors
    ///
    /// [`DialError`] when this node does not publish the topic, the other one cannot be reached or refuses, nobody listens
    /// or accepts there in time, or the subscriber and the topic do not fit together.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use fabricast::{DialError, Node, RefuseReason};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let desk = Node::builder().name("desk")?.runtime_dir(dir.path()).open()?;
    /// let node = Node::builder().runtime_dir(dir.path()).open()?;
    /// let mut publisher = node.state_publisher::<String>("tokyo").open()?;
    /// let (address, timeout) = ("shm:desk".parse()?, Duration::from_secs(5));
    ///
    /// let error = node.dial_subscriber("tokyo", &address, timeout).unwrap_err();
    /// assert!(matches!(error, DialError::Refused { reason: RefuseReason::NobodyWaits, .. }));
    ///
    /// let listener = desk.state_listener::<String>("tokyo").open()?;
    /// let accepting = std::thread::spawn(move || listener.accept_timeout(timeout));
    /// node.dial_subscriber("tokyo", &address, timeout)?;
    /// publisher.publish(&"sunny".to_owned())?;
    ///
    /// let accepted = accepting.join().expect("accepting does not panic")?;
    /// let mut subscriber = accepted.ok_or("nobody dialled")?;
    /// assert_eq!(subscriber.try_receive()?.map(|sample| sample.value).as_deref(), Some("sunny"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn dial_subscriber(
        &self,
        topic: &str,
        address: &Address,
        timeout: Duration,
    ) -> Result<(), DialError> {
        dial::dial(self.core(), topic, address, timeout)
    }

    /// The nodes of this host and user, the dead ones included that have left a trace. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`DirectoryError`] when the runtime directory cannot be read.
    pub fn nodes(&self) -> Result<Vec<NodeListing>, DirectoryError> {
        directory::nodes(&self.inner.core)
    }

    /// What the node at this address publishes. Blocks for a round trip, at most the time given by
    /// [`limits::ANSWER_DEADLINE_NS`] for each page of the answer.
    ///
    /// # Errors
    ///
    /// [`DirectoryError`] when the node cannot be reached, or does not answer.
    pub fn directory(&self, address: &Address) -> Result<Directory, DirectoryError> {
        directory::query(&self.inner.core, address, limits::ANSWER_DEADLINE_NS)
    }

    /// As [`Self::directory`], with a time of one's own that each answer may take. A session with the node that
    /// exists already keeps its own.
    ///
    /// # Errors
    ///
    /// As [`Self::directory`].
    pub fn directory_timeout(
        &self,
        address: &Address,
        timeout: Duration,
    ) -> Result<Directory, DirectoryError> {
        directory::query(&self.inner.core, address, saturate(timeout))
    }

    pub(crate) fn core(&self) -> &Arc<NodeCore> {
        &self.inner.core
    }

    /// What keeps the node going.
    pub(crate) fn hold(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::<NodeInner>::clone(&self.inner)
    }

    fn new(core: Arc<NodeCore>, driver: Option<DriverThread>) -> Self {
        Self { inner: Arc::new(NodeInner { core, _driver: driver }) }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Node").field("name", self.name()).finish_non_exhaustive()
    }
}

/// Sets up a publisher of a state topic.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct StatePublisherBuilder<'a, T> {
    node: &'a Node,
    topic: String,
    slot_count: u32,
    payload_len_max: usize,
    payload: PhantomData<fn(&T)>,
}

impl<T: Payload> StatePublisherBuilder<'_, T> {
    /// Slots of the repository: a power of two from 2 to 65,536, by default 8. A reader has as long to copy a
    /// value as the publisher takes for this many less one; more slots help large and hot topics.
    pub fn slots(self, slot_count: u32) -> Self {
        Self { slot_count, ..self }
    }

    /// The longest payload, in bytes of its encoded form; up to [`limits::PAYLOAD_LEN_MAX`]. By default the
    /// length of the type if it has only one, otherwise 4 KiB. Each slot has room for it.
    pub fn payload_len_max(self, payload_len_max: usize) -> Self {
        Self { payload_len_max, ..self }
    }

    /// Makes the repository and opens the topic to subscribers. Allocates; does not block.
    ///
    /// # Errors
    ///
    /// [`PublisherError`] when the name is taken or malformed, sizes do not fit, the type cannot be described, or
    /// memory cannot be had.
    pub fn open(self) -> Result<StatePublisher<T>, PublisherError> {
        let core = self.node.core();
        let name = self.topic.parse()?;
        let reserved = core.reserve(&name)?;
        let (publisher, topic) = StatePublisher::open(StateParts {
            fabric: core.fabric(),
            clock: Arc::clone(core.clock()),
            waker: Arc::clone(core.waker()),
            node: self.node.hold(),
            host: core.identity().host.as_str(),
            name,
            slot_count: self.slot_count,
            payload_len_max: self.payload_len_max,
        })?;
        reserved.fill(topic);
        Ok(publisher)
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
