use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Node;
use super::backlog::Backlog;
use super::core::NodeCore;
use super::link::LinkUse;
use super::subscribe::expected;
use super::terms::{ListenerBuilder, Terms};
use crate::clock::saturate;
use crate::id::TopicName;
use crate::payload::Schema;
use crate::subscriber::{
    AttachError, Condition, Membership, Subscribed, SubscriberError, Waitable, WaitableHandle, Waiter,
};

/// Accepts publishers of a topic that dial this node with [`Node::dial_subscriber`]. Each accepted publisher yields a subscriber,
/// which behaves like one that dialled.
///
/// While the listener exists, publishers that dial for its topic wait for [`Self::accept_timeout`], up to
/// [`limits::INVITED_SESSIONS_MAX`](crate::limits::INVITED_SESSIONS_MAX) of them at a node, including accepted ones. Dropping it
/// ends waiting sessions and refuses later ones; accepted subscribers remain.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let runtime_dir = dir.path().to_owned();
/// let desk = Node::builder().name("desk")?.runtime_dir(dir.path()).open()?;
/// let listener = desk.state_listener::<(f64, f64)>("EURUSD").push().open()?;
///
/// // Usually in another process:
/// let publishing = std::thread::spawn(move || -> Result<(), fabricast::Error> {
///     let node = Node::builder();
/// #   let node = node.runtime_dir(runtime_dir);
///     let node = node.open()?;
///     let mut publisher = node.state_publisher::<(f64, f64)>("EURUSD").open()?;
///     node.dial_subscriber("EURUSD", "shm:desk", Duration::from_secs(5))?;
///     publisher.publish(&(1.0841, 1.0843))?;
///     Ok(())
/// });
///
/// let mut subscriber = listener.accept_timeout(Duration::from_secs(5))?.ok_or("nobody dialled")?;
/// let sample = subscriber.receive_timeout(Duration::from_secs(5))?.ok_or("nothing published")?;
/// assert_eq!((sample.value, sample.meta.sequence.get()), ((1.0841, 1.0843), 1));
/// # publishing.join().expect("the publisher does not panic")?;
/// # Ok(())
/// # }
/// ```
///
/// Send and Sync: several threads may accept at once.
///
/// A log subscriber with the default start receives every record published after [`Node::dial_subscriber`] returns.
pub struct Listener<S: Subscribed> {
    accepting: Accepting<S>,
    /// What waits for it among others.
    membership: Mutex<Option<Arc<Membership>>>,
    // Dropped in this order.
    backlog: Arc<Backlog>,
    node: Node,
}

/// What becomes of a publisher that has dialled.
pub(super) struct Accepting<S: Subscribed> {
    terms: Terms<S::Options>,
    expected: Option<Schema>,
    topic: TopicName,
}

impl<S: Subscribed> ListenerBuilder<'_, S> {
    /// Begins to listen. Does not block.
    ///
    /// # Errors
    ///
    /// [`SubscriberError`] when the node has no name or already listens for the topic, the topic's name is malformed, or the type
    /// cannot be described.
    pub fn open(self) -> Result<Listener<S>, SubscriberError> {
        let Self { node, terms, samples, .. } = self;
        let topic = self.place?;
        let core = node.core();
        if core.addresses.is_empty() {
            return Err(SubscriberError::Unnamed);
        }
        let expected = expected::<S::Payload>(&samples)?;
        check_runs(core, &topic)?;
        let opened = node.backlogs().open(&topic, saturate(terms.timeout))?;
        let backlog = opened.ok_or_else(|| SubscriberError::AlreadyListening { topic: topic.clone() })?;
        let accepting = Accepting { terms, expected, topic };
        Ok(Listener { accepting, membership: Mutex::default(), backlog, node: node.clone() })
    }
}

impl<S: Subscribed> Listener<S> {
    /// Returns a subscriber of the next publisher that dials for this topic; `None` after `timeout`. Several threads may call it
    /// concurrently.
    ///
    /// Blocks until a publisher dials, and then for two round trips to its node (three for push, and for a log on another host),
    /// each bounded by [`ListenerBuilder::timeout`]. Allocates.
    ///
    /// # Errors
    ///
    /// [`SubscriberError::Dialled`] when the publisher that dialled is unusable, for example because its values have another
    /// type; the error names it. The listener stays usable: call this again for the next publisher.
    /// [`SubscriberError::NodeFailed`] when the thread of this node has panicked.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<S>, SubscriberError> {
        let clock = &self.node.core().clock;
        let deadline_ns = clock.monotonic_ns().saturating_add(saturate(timeout));
        loop {
            if let Some(link) = self.take_ready()? {
                return self.accepting.attach(&self.node, &link).map(Some);
            }
            let left_ns = deadline_ns.saturating_sub(clock.monotonic_ns());
            if left_ns == 0 {
                self.rest();
                return Ok(None);
            }
            clock.pause_until(self.backlog.ready.wait_handle(), Duration::from_nanos(left_ns));
        }
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.accepting.topic
    }

    /// Returns the session with a publisher that has dialled, if there is one.
    pub(super) fn take_ready(&self) -> Result<Option<LinkUse>, SubscriberError> {
        if let Some(link) = self.backlog.take_ready() {
            return Ok(Some(link));
        }
        // After `take_ready`, which consumes the wake-up.
        if let Err(error) = check_runs(self.node.core(), &self.accepting.topic) {
            self.backlog.ready.wake();
            return Err(error);
        }
        Ok(None)
    }

    /// Tells its waiter that no publisher waits to be accepted.
    fn rest(&self) {
        if let Some(membership) = &*self.membership.lock() {
            membership.rest(Condition::Told);
            // Last: it may be readable already.
            membership.watch(self.as_fd());
        }
    }

    /// Returns what a thread needs to attach to a publisher that has dialled.
    #[cfg(feature = "tokio")]
    pub(super) fn accepting(&self) -> (Node, Accepting<S>) {
        let Accepting { terms, expected, topic } = &self.accepting;
        let (terms, expected, topic) = (*terms, expected.clone(), topic.clone());
        (self.node.clone(), Accepting { terms, expected, topic })
    }
}

impl<S: Subscribed> Accepting<S> {
    /// Attaches to a publisher that has dialled. Blocks.
    pub(super) fn attach(&self, node: &Node, link: &LinkUse) -> Result<S, SubscriberError> {
        let Self { terms, expected, topic } = self;
        let attached = terms.attach(node, link, topic, expected.as_ref());
        let attached = attached.and_then(|subscription| Ok(S::open(subscription, terms.options)?));
        let Some(peer) = link.peer() else {
            unreachable!("a backlog yields only peers that have said hello")
        };
        attached.map_err(|source: AttachError| SubscriberError::Dialled {
            node: peer.node,
            process: peer.process,
            topic: topic.clone(),
            source,
        })
    }
}

/// Fails once the thread of the node has panicked.
fn check_runs(core: &NodeCore, topic: &TopicName) -> Result<(), SubscriberError> {
    core.check_runs().map_err(|source| SubscriberError::NodeFailed { topic: topic.clone(), source })
}

/// Readable when [`Listener::accept_timeout`] may return at once. Another thread may accept first.
impl<S: Subscribed> AsFd for Listener<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backlog.ready.wait_handle()
    }
}

impl<S: Subscribed> Waitable for Listener<S> {}

impl<S: Subscribed> WaitableHandle for Listener<S> {
    fn enter(&mut self, waiter: Option<(&Arc<Waiter>, usize)>) {
        *self.membership.get_mut() = waiter.map(|(waiter, key)| waiter.add(key));
    }
}

impl<S: Subscribed> fmt::Debug for Listener<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Listener").field("topic", self.topic()).finish_non_exhaustive()
    }
}

impl<S: Subscribed> Drop for Listener<S> {
    fn drop(&mut self) {
        self.node.backlogs().close(&self.accepting.topic, &self.backlog);
    }
}
