//! A node: one process's end of a fabric. It owns topics, sessions, and a thread that serves the control plane. The data path
//! never passes through that thread.

mod admission;
mod agenda;
#[cfg(feature = "tokio")]
mod asynchronous;
mod backlog;
mod builder;
mod core;
mod dial;
mod directory;
mod driver;
mod event_log;
mod events;
mod feed;
mod invitation;
mod lines;
mod link;
mod links;
mod listener;
mod log;
mod notices;
mod outbox;
mod peer_limits;
mod persistent;
mod publish;
#[cfg(feature = "verbs")]
mod requests;
mod revocation;
mod seeking;
mod served;
mod serving;
mod shared;
mod state;
mod subscribe;
mod subscribers;
mod table;
mod terms;
mod topics;
mod wakers;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use admission::Admission;
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncListener;
pub use builder::{NodeBuilder, NodeError};
pub use directory::{Directory, DirectoryError, TopicListing};
pub use events::EventQueue;
pub use feed::{FeedPublisherBuilder, FeedSubscriberBuilder, PersistentFeedBuilder};
pub use invitation::DialError;
pub use lines::{FeedLinesBuilder, LinesBuilder};
pub use listener::Listener;
pub use peer_limits::PeerLimits;
pub use persistent::PersistentBuilder;
pub use publish::PublisherBuilder;
pub use subscribers::{ProgressListing, SubscriberList, SubscriberListing};
pub use terms::{ListenerBuilder, SubscriberBuilder};

use self::backlog::Backlogs;
use self::core::NodeCore;
use self::driver::DriverThread;
use self::links::Links;
use self::shared::Shared;
use crate::clock::saturate;
use crate::control::Peer;
use crate::fabric::{Address, NodeListing};
use crate::id::NodeName;
use crate::limits;
use crate::publisher::PublisherError;

/// One process's end of a fabric: publishes topics, subscribes to those of others.
///
/// A node publishes and subscribes to states ([publisher](Self::state_publisher), [subscriber](Self::state_subscriber)), logs
/// ([publisher](Self::log_publisher), [subscriber](Self::log_subscriber)), tables ([publisher](Self::table_publisher),
/// [subscriber](Self::table_subscriber)) and feeds ([publisher](Self::feed_publisher), [subscriber](Self::feed_subscriber)).
///
/// A node with a name can be found, and subscribed to; one without subscribes to others, and [dials](Self::dial_subscriber)
/// subscribers that listen for its topics ([states](Self::state_listener), [logs](Self::log_listener),
/// [tables](Self::table_listener)). Publishers, subscribers and listeners keep their node alive, so the `Node` may be dropped first.
/// Cheap to clone.
///
/// Dropping the last handle ([`Node`], publisher, subscriber or listener) stops the node: it joins the node's thread and may block
/// for up to 250 ms while peers end their sessions. Over RDMA it may take a second more if a peer does not receive what was sent.
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
///
/// Send and Sync: several threads may use it at once.
#[derive(Clone)]
pub struct Node {
    inner: Arc<NodeInner>,
}

/// A node and its thread. Dropping the last reference stops the thread.
#[derive(Debug)]
pub(crate) struct NodeInner {
    shared: Shared,
    /// Joined on drop. A simulation drives its nodes itself.
    _driver: Option<DriverThread>,
}

impl Node {
    /// Returns the name. A node opened without one gets a generated name.
    pub fn name(&self) -> &NodeName {
        &self.inner.shared.core.identity.node
    }

    /// Returns the first of [`Self::addresses`]: the one on this host, unless the node listens only elsewhere.
    pub fn address(&self) -> Option<Address> {
        self.addresses().first().cloned()
    }

    /// Returns every address at which other nodes find this node. Empty without a name.
    pub fn addresses(&self) -> &[Address] {
        &self.inner.shared.core.addresses
    }

    /// Returns what its peers may take of it. Of what [`NodeBuilder::peer_limits`] set, sessions may be fewer: no more than the limits of
    /// open files and locked memory afforded when it was opened.
    pub fn peer_limits(&self) -> PeerLimits {
        self.inner.shared.core.guard.limits
    }

    /// Dials the node at this address, where a [`Listener`] waits for this topic of this node. On return a subscriber there is
    /// attached and receives the next publish. This node needs no name.
    ///
    /// Blocks until the listener has accepted, at most for `timeout`. Resolving a host name in the address is not bound by it. If
    /// the timeout expires, no subscriber is attached. Allocates.
    ///
    /// # Errors
    ///
    /// [`DialError`] when this node does not publish the topic, the other node cannot be reached or refuses, it has no listener
    /// for the topic or accepts too late, or the subscriber does not fit the topic.
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
    /// let timeout = Duration::from_secs(5);
    ///
    /// let error = node.dial_subscriber("tokyo", "shm:desk", timeout).unwrap_err();
    /// assert!(matches!(error, DialError::Refused { reason: RefuseReason::NobodyWaits, .. }));
    ///
    /// let listener = desk.state_listener::<String>("tokyo").open()?;
    /// let accepting = std::thread::spawn(move || listener.accept_timeout(timeout));
    /// node.dial_subscriber("tokyo", "shm:desk", timeout)?;
    /// publisher.publish(&"sunny".to_owned())?;
    ///
    /// let accepted = accepting.join().expect("accepting does not panic")?;
    /// let mut subscriber = accepted.ok_or("no publisher dialled")?;
    /// assert_eq!(subscriber.try_receive()?.map(|sample| sample.value).as_deref(), Some("sunny"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn dial_subscriber(
        &self,
        topic: &str,
        address: impl TryInto<Address, Error: Into<DialError>>,
        timeout: Duration,
    ) -> Result<(), DialError> {
        let address = address.try_into().map_err(Into::into)?;
        self.inner.shared.dialled.dial(self.core(), topic, &address, timeout)
    }

    /// Revokes the access of these subscribers to a topic of this node, now: their subscriptions end with
    /// [`ControlError::Revoked`](crate::ControlError::Revoked), and those of others go on. Revoking a feed revokes its log and its table.
    /// Returns how many subscriptions ended; a subscriber of a feed may have one to each. To keep a subscriber away, also have the
    /// [admission](NodeBuilder::admission) refuse it, for the log and the table of a feed, or remove its key from the keyring: otherwise
    /// it may subscribe again.
    ///
    /// On return nothing is written to the landing regions of these subscribers any more, and over RDMA the repository is unreadable for
    /// them, whatever their programs do: their memory windows are closed. Their nodes have a second to stop reading before that, so that
    /// their other subscriptions go on. Where the device has no memory windows, the whole session with the subscriber's node ends, and
    /// its key for the topic opens the memory again in another session. A subscriber on this host can keep what it has mapped, until the
    /// topic ends, if it ignores the end; one of this library does not.
    ///
    /// Blocks until the node's thread has done it: less than a millisecond on this host, over RDMA up to 200 ms, at most a second for
    /// subscribers that go on reading, and as long as a value takes that is being written to them. A subscription to a topic that has
    /// ended is not affected: its subscriber may read the last values for 10 s. The node's thread calls `is_revoked`, and revokes a
    /// subscriber at which it panics. Not to be called on that thread: by an admission, or an event sink. Allocates.
    ///
    /// # Errors
    ///
    /// [`PublisherError`] when the name is malformed, or the node's thread has panicked.
    ///
    /// ```
    /// use fabricast::Node;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
    /// let publisher = node.state_publisher::<u64>("EURUSD").open()?;
    /// let desk = Node::builder().name("desk")?.runtime_dir(dir.path()).open()?;
    /// let mut subscriber = desk.state_subscriber::<u64>("shm:quotes/EURUSD").open()?;
    ///
    /// assert_eq!(node.revoke("EURUSD", |peer| peer.node.as_str() == "desk")?, 1);
    /// while subscriber.try_receive().is_ok() {}
    /// assert_eq!(publisher.pull_subscribers(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn revoke(
        &self,
        topic: &str,
        is_revoked: impl Fn(&Peer) -> bool + Send + 'static,
    ) -> Result<usize, PublisherError> {
        let core = self.core();
        let revoked = (topic.parse()?, Box::new(is_revoked) as _);
        core.revocations.revoke(revoked, &core.queue, || core.check_runs())
    }

    /// Lists the nodes of this host and user, including dead ones that left a trace. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`DirectoryError`] when the runtime directory cannot be read.
    pub fn nodes(&self) -> Result<Vec<NodeListing>, DirectoryError> {
        directory::nodes(&self.inner.shared.core)
    }

    /// Lists the topics that the node at this address publishes. Blocks for a round trip; each page of the answer may take up to
    /// [`limits::ANSWER_DEADLINE_NS`], and connecting over RDMA up to 3 s besides.
    ///
    /// # Errors
    ///
    /// [`DirectoryError`] when the node cannot be reached, or does not answer.
    pub fn directory(
        &self,
        address: impl TryInto<Address, Error: Into<DirectoryError>>,
    ) -> Result<Directory, DirectoryError> {
        self.directory_timeout(address, Duration::from_nanos(limits::ANSWER_DEADLINE_NS))
    }

    /// Does the same as [`Self::directory`], with a timeout for each answer, and for connecting over RDMA, which takes 3 s at most. An
    /// existing session with the node keeps its own timeout.
    ///
    /// # Errors
    ///
    /// As [`Self::directory`].
    pub fn directory_timeout(
        &self,
        address: impl TryInto<Address, Error: Into<DirectoryError>>,
        timeout: Duration,
    ) -> Result<Directory, DirectoryError> {
        let address = address.try_into().map_err(Into::into)?;
        directory::query(self.links(), &address, saturate(timeout))
    }

    pub(crate) fn core(&self) -> &Arc<NodeCore> {
        &self.inner.shared.core
    }

    /// Begins to dial, as [`Self::dial_subscriber`] does.
    #[cfg(test)]
    fn invite(
        &self,
        topic: crate::id::TopicName,
        address: &Address,
        deadline_ns: u64,
    ) -> Result<Arc<invitation::Invitation>, DialError> {
        self.inner.shared.dialled.invite(self.core(), topic, address, deadline_ns)
    }

    fn links(&self) -> &Links {
        &self.inner.shared.links
    }

    fn backlogs(&self) -> &Backlogs {
        &self.inner.shared.backlogs
    }

    /// Returns a reference that keeps the node alive.
    pub(crate) fn hold(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::<NodeInner>::clone(&self.inner)
    }

    fn new(shared: Shared, driver: Option<DriverThread>) -> Self {
        Self { inner: Arc::new(NodeInner { shared, _driver: driver }) }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Node").field("name", self.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
