use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Node;
use super::core::NodeCore;
use super::link::Link;
use super::subscribe::expected;
use super::terms::{ListenerBuilder, Terms};
use crate::clock::saturate;
use crate::control::{ControlError, RefuseReason};
use crate::event::Event;
use crate::fabric::Waker;
use crate::id::TopicName;
use crate::limits;
use crate::payload::Schema;
use crate::subscriber::{AttachError, Subscribed, SubscriberError};

/// Waits for publishers of a topic to dial: each one that is accepted is a subscriber of its own.
///
/// This is the second way to a subscription. In the first one a subscriber dials the node of a publisher; here the
/// publisher's node dials this one, by [`Node::dial_subscriber`]. From then on there is no difference.
///
/// While the listener is there, publishers that dial for its topic wait for [`Self::accept_timeout`], up to
/// [`limits::INVITED_SESSIONS_MAX`] of them at a node, with those that were accepted. Dropping it ends those that wait,
/// and refuses those that come later; subscribers that were accepted stay.
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
/// It is `Send` and `Sync`: several threads may accept at once.
///
/// A subscriber of a log that begins with the next record, which is the default, has all records from the first one on that was
/// published after [`Node::dial_subscriber`] had returned.
pub struct Listener<S: Subscribed> {
    terms: Terms<S::Options>,
    expected: Option<Schema>,
    topic: TopicName,
    // Dropped in this order.
    backlog: Arc<Backlog>,
    node: Node,
}

/// The topics that a node listens for.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    by_topic: Mutex<BTreeMap<TopicName, Arc<Backlog>>>,
    /// Held once more by each place that is taken.
    places: Arc<()>,
}

/// The publishers that have dialled for one topic and wait to be accepted, in the order in which they came.
#[derive(Debug)]
pub(super) struct Backlog {
    /// How long each of their answers may take.
    patience_ns: u64,
    /// `None` when the listener is gone.
    waiting: Mutex<Option<VecDeque<Arc<Link>>>>,
    /// Wakes those who wait to accept: somebody may be ready.
    ready: Waker,
}

/// One of the places that a node has for publishers that dial, taken until this is dropped.
#[derive(Debug)]
pub(super) struct Place(#[expect(dead_code, reason = "it is counted while it is held")] Arc<()>);

impl<S: Subscribed> ListenerBuilder<'_, S> {
    /// Begins to listen. Does not block.
    ///
    /// # Errors
    ///
    /// [`SubscriberError`] when the node has no name, listens for the topic already, the topic's name is malformed, or
    /// the type cannot be described.
    pub fn open(self) -> Result<Listener<S>, SubscriberError> {
        let Self { node, terms, samples, .. } = self;
        let topic = self.place?;
        let core = node.core();
        if core.addresses().is_empty() {
            return Err(SubscriberError::Unnamed);
        }
        let expected = expected::<S::Payload>(&samples)?;
        check_runs(core, &topic)?;
        let backlog = core.backlogs().open(&topic, saturate(terms.patience))?;
        Ok(Listener { terms, expected, topic, backlog, node: node.clone() })
    }
}

impl<S: Subscribed> Listener<S> {
    /// A subscriber of the next publisher that has dialled for this topic; `None` when none did in time. Several
    /// threads may wait at once.
    ///
    /// Blocks until then, and for two round trips to the publisher's node besides (three for push, and for a log on another
    /// host), each for as long as [`ListenerBuilder::timeout`] allows. Allocates.
    ///
    /// # Errors
    ///
    /// [`SubscriberError::Dialled`] when a publisher had dialled that cannot be received from, because its values are of
    /// another type, say; the error names it. The listener goes on: call this again for the next one.
    /// [`SubscriberError::NodeFailed`] when the thread of this node has panicked.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<S>, SubscriberError> {
        let clock = self.node.core().clock();
        let deadline_ns = clock.monotonic_ns().saturating_add(saturate(timeout));
        loop {
            if let Some(link) = self.backlog.take_ready() {
                return self.attach(link).map(Some);
            }
            // Behind the look for who is ready, which takes the wake-up.
            if let Err(error) = check_runs(self.node.core(), &self.topic) {
                self.backlog.ready.wake();
                return Err(error);
            }
            let left_ns = deadline_ns.saturating_sub(clock.monotonic_ns());
            if left_ns == 0 {
                return Ok(None);
            }
            clock.pause_until(self.backlog.ready.wait_handle(), Duration::from_nanos(left_ns));
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    fn attach(&self, link: Arc<Link>) -> Result<S, SubscriberError> {
        let Self { terms, expected, topic, node, .. } = self;
        let attached = terms.attach(node, &link, topic, expected.as_ref());
        let attached = attached.and_then(|subscription| Ok(S::open(subscription, terms.options)?));
        let Some(peer) = link.peer() else { unreachable!("only who has said hello is taken from a backlog") };
        attached.map_err(|source: AttachError| {
            // Nobody uses the session any more: the node's thread ends it.
            drop(link);
            node.core().waker().wake();
            SubscriberError::Dialled { node: peer.node, process: peer.process, topic: topic.clone(), source }
        })
    }
}

/// An error once the thread of the node has panicked.
fn check_runs(core: &NodeCore, topic: &TopicName) -> Result<(), SubscriberError> {
    core.check_runs().map_err(|source| SubscriberError::NodeFailed { topic: topic.clone(), source })
}

impl<S: Subscribed> fmt::Debug for Listener<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Listener").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl<S: Subscribed> Drop for Listener<S> {
    fn drop(&mut self) {
        let core = self.node.core();
        core.backlogs().close(&self.topic, &self.backlog);
        core.waker().wake();
    }
}

impl Backlogs {
    fn open(&self, topic: &TopicName, patience_ns: u64) -> Result<Arc<Backlog>, SubscriberError> {
        let mut by_topic = self.by_topic.lock();
        if by_topic.contains_key(topic) {
            return Err(SubscriberError::AlreadyListening { topic: topic.clone() });
        }
        let waiting = Mutex::new(Some(VecDeque::new()));
        let backlog = Arc::new(Backlog { patience_ns, waiting, ready: Waker::new()? });
        by_topic.insert(topic.clone(), Arc::clone(&backlog));
        Ok(backlog)
    }

    fn close(&self, topic: &TopicName, backlog: &Backlog) {
        self.by_topic.lock().remove(topic);
        let waiting = backlog.waiting.lock().take();
        drop(waiting);
    }

    /// Wakes those who wait to accept, because nobody will come any more.
    pub(super) fn wake_all(&self) {
        self.by_topic.lock().values().for_each(|backlog| backlog.ready.wake());
    }

    /// A place for a publisher that has dialled for this topic, and where it is to wait.
    pub(super) fn admit(&self, topic: &TopicName) -> Result<(Arc<Backlog>, Place), RefuseReason> {
        let backlog = self.by_topic.lock().get(topic).cloned();
        let backlog = backlog.ok_or(RefuseReason::NobodyWaits)?;
        // Places are taken by the node's thread only.
        let taken = Arc::strong_count(&self.places) - 1;
        if taken >= limits::INVITED_SESSIONS_MAX {
            return Err(RefuseReason::TooManySessions);
        }
        Ok((backlog, Place(Arc::clone(&self.places))))
    }

    /// Wakes those who can accept somebody, and forgets those that wait in vain, because their session is over. True if
    /// there were some.
    pub(super) fn tend(&self, core: &NodeCore) -> bool {
        let backlogs: Vec<_> = self.by_topic.lock().values().cloned().collect();
        let mut failures = Vec::new();
        for backlog in backlogs {
            let mut waiting = backlog.waiting.lock();
            let Some(waiting) = waiting.as_mut() else { continue };
            waiting.retain(|link| {
                let failure = link.failure();
                let goes_on = failure.is_none();
                failures.extend(failure);
                goes_on
            });
            backlog.wake_for(waiting);
        }
        for failure in &failures {
            // A publisher that gave up is nobody's fault.
            if !matches!(failure, ControlError::Closed { .. }) {
                core.tell(&Event::PeerRejected { reason: failure.to_string() });
            }
        }
        !failures.is_empty()
    }
}

impl Backlog {
    /// How long each answer of those that wait may take.
    pub(super) fn patience_ns(&self) -> u64 {
        self.patience_ns
    }

    /// Lets one more wait. If the listener is gone, nobody uses the session, and it ends.
    pub(super) fn push(&self, link: Arc<Link>) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.push_back(link);
        }
    }

    /// The first one that has said hello. Those that have not keep nobody waiting.
    fn take_ready(&self) -> Option<Arc<Link>> {
        let mut waiting = self.waiting.lock();
        let waiting = waiting.as_mut()?;
        self.ready.reset();
        let ready = waiting.iter().position(|link| link.is_ready())?;
        let taken = waiting.remove(ready);
        // Another thread may wait for the next one.
        self.wake_for(waiting);
        taken
    }

    /// Wakes those who wait to accept, if one of these is ready.
    fn wake_for(&self, waiting: &VecDeque<Arc<Link>>) {
        if waiting.iter().any(|link| link.is_ready()) {
            self.ready.wake();
        }
    }
}
