use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Node;
use super::core::NodeCore;
use super::link::Link;
use super::subscribe::expected;
use super::terms::{Terms, start_setters, terms_setters};
use crate::clock::saturate;
use crate::control::{ControlError, RefuseReason};
use crate::event::Event;
use crate::fabric::Waker;
use crate::id::TopicName;
use crate::limits;
use crate::payload::{Payload, Schema};
use crate::subscriber::{
    AttachError, GrantError, LogSubscriber, StateSubscriber, SubscriberError, Subscription,
};

/// Sets up a listener for publishers of a state topic.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct StateListenerBuilder<'a, T> {
    node: &'a Node,
    topic: String,
    terms: Terms,
    samples: Vec<String>,
    payload: PhantomData<fn() -> T>,
}

/// Sets up a listener for publishers of a log topic.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct LogListenerBuilder<'a, T> {
    node: &'a Node,
    topic: String,
    terms: Terms,
    samples: Vec<String>,
    payload: PhantomData<fn() -> T>,
}

/// Waits for publishers of a state topic to dial: each one that is accepted is a subscriber of its own.
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
///     node.dial_subscriber("EURUSD", &"shm:desk".parse()?, Duration::from_secs(5))?;
///     publisher.publish(&(1.0841, 1.0843))?;
///     Ok(())
/// });
///
/// let mut subscriber = listener.accept_timeout(Duration::from_secs(5))?.ok_or("nobody dialled")?;
/// let sample = subscriber.receive_timeout(Duration::from_secs(5))?.ok_or("nothing published")?;
/// assert_eq!((sample.value, sample.sequence.get()), ((1.0841, 1.0843), 1));
/// # publishing.join().expect("the publisher does not panic")?;
/// # Ok(())
/// # }
/// ```
pub struct StateListener<T> {
    listening: Listening,
    payload: PhantomData<fn() -> T>,
}

/// Waits for publishers of a log topic to dial: each one that is accepted is a subscriber of its own, with a log of its own.
///
/// As [`StateListener`], but for logs. A subscriber that begins with the next record, which is the default, has all records from
/// the first one on that was published after [`Node::dial_subscriber`] had returned.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let runtime_dir = dir.path().to_owned();
/// let desk = Node::builder().name("desk")?.runtime_dir(dir.path()).open()?;
/// let listener = desk.log_listener::<u64>("trades").earliest().open()?;
///
/// // Usually in another process:
/// let publishing = std::thread::spawn(move || -> Result<(), fabricast::Error> {
///     let node = Node::builder();
/// #   let node = node.runtime_dir(runtime_dir);
///     let node = node.open()?;
///     let mut trades = node.log_publisher::<u64>("trades").open()?;
///     trades.publish(&10)?;
///     node.dial_subscriber("trades", &"shm:desk".parse()?, Duration::from_secs(5))?;
///     trades.publish(&20)?;
///     Ok(())
/// });
///
/// let mut subscriber = listener.accept_timeout(Duration::from_secs(5))?.ok_or("nobody dialled")?;
/// for expected in [10, 20] {
///     let record = subscriber.receive_timeout(Duration::from_secs(5))?.ok_or("nothing published")?;
///     assert_eq!(record.value, expected);
/// }
/// # publishing.join().expect("the publisher does not panic")?;
/// # Ok(())
/// # }
/// ```
pub struct LogListener<T> {
    listening: Listening,
    payload: PhantomData<fn() -> T>,
}

/// A topic that a node listens for, and what it asks of those who publish it. Its fields are dropped in this order.
#[derive(Debug)]
struct Listening {
    terms: Terms,
    expected: Option<Schema>,
    topic: TopicName,
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

impl<'a, T: Payload> StateListenerBuilder<'a, T> {
    pub(super) fn new(node: &'a Node, topic: String) -> Self {
        Self {
            node,
            topic,
            terms: Terms::of(StateSubscriber::<T>::KIND),
            samples: Vec::new(),
            payload: PhantomData,
        }
    }

    terms_setters! {
        "values";
        timeout;
        /// The publisher's slots and largest payload say how large they are.
        region_len_max;
    }

    /// Begins to listen. Does not block.
    ///
    /// # Errors
    ///
    /// [`SubscriberError`] when the node has no name, listens for the topic already, the topic's name is malformed, or
    /// the type cannot be described.
    pub fn open(self) -> Result<StateListener<T>, SubscriberError> {
        let listening = Listening::open::<T>(self.node, &self.topic, self.terms, &self.samples)?;
        Ok(StateListener { listening, payload: PhantomData })
    }
}

impl<'a, T: Payload> LogListenerBuilder<'a, T> {
    pub(super) fn new(node: &'a Node, topic: String) -> Self {
        Self {
            node,
            topic,
            terms: Terms::of(LogSubscriber::<T>::KIND),
            samples: Vec::new(),
            payload: PhantomData,
        }
    }

    start_setters! {
        /// The next record is the one after the publisher's [`Node::dial_subscriber`] has returned; the other places are settled
        /// when [`LogListener::accept_timeout`] returns.
        start;
    }

    terms_setters! {
        "records";
        timeout;
        /// The publisher's capacity says how large they are.
        region_len_max;
    }

    /// Begins to listen. Does not block.
    ///
    /// # Errors
    ///
    /// [`SubscriberError`] when the node has no name, listens for the topic already, the topic's name is malformed, or
    /// the type cannot be described.
    pub fn open(self) -> Result<LogListener<T>, SubscriberError> {
        let listening = Listening::open::<T>(self.node, &self.topic, self.terms, &self.samples)?;
        Ok(LogListener { listening, payload: PhantomData })
    }
}

impl<T: Payload> StateListener<T> {
    /// A subscriber of the next publisher that has dialled for this topic; `None` when none did in time. Several
    /// threads may wait at once.
    ///
    /// Blocks until then, and for two round trips to the publisher's node besides (three for push), each for as long as
    /// [`StateListenerBuilder::timeout`] allows. Allocates.
    ///
    /// # Errors
    ///
    /// [`SubscriberError::Dialled`] when a publisher had dialled that cannot be received from, because its values are of
    /// another type, say; the error names it. The listener goes on: call this again for the next one.
    /// [`SubscriberError::NodeFailed`] when the thread of this node has panicked.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<StateSubscriber<T>>, SubscriberError> {
        self.listening.accept_timeout(timeout, StateSubscriber::new)
    }

    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.listening.topic
    }
}

impl<T: Payload> LogListener<T> {
    /// A subscriber of the next publisher that has dialled for this topic; `None` when none did in time. Several
    /// threads may wait at once.
    ///
    /// Blocks until then, and for two round trips to the publisher's node besides (three for push, and for one on another
    /// host), each for as long as [`LogListenerBuilder::timeout`] allows. Allocates.
    ///
    /// # Errors
    ///
    /// As [`StateListener::accept_timeout`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<LogSubscriber<T>>, SubscriberError> {
        let start = self.listening.terms.start;
        self.listening.accept_timeout(timeout, |subscription| LogSubscriber::open(subscription, start))
    }

    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.listening.topic
    }
}

impl Listening {
    /// Begins to listen for values of this type.
    fn open<T: Payload>(
        node: &Node,
        topic: &str,
        terms: Terms,
        samples: &[String],
    ) -> Result<Self, SubscriberError> {
        let topic: TopicName = topic.parse()?;
        let core = node.core();
        if core.addresses().is_empty() {
            return Err(SubscriberError::Unnamed);
        }
        let expected = expected::<T>(samples)?;
        check_runs(core, &topic)?;
        let backlog = core.backlogs().open(&topic, saturate(terms.patience))?;
        Ok(Self { terms, expected, topic, backlog, node: node.clone() })
    }

    /// What is made of the subscription to the next publisher that has dialled; `None` when none did in time.
    fn accept_timeout<S>(
        &self,
        timeout: Duration,
        open: impl FnOnce(Subscription) -> Result<S, GrantError>,
    ) -> Result<Option<S>, SubscriberError> {
        let clock = self.node.core().clock();
        let deadline_ns = clock.monotonic_ns().saturating_add(saturate(timeout));
        loop {
            if let Some(link) = self.backlog.take_ready() {
                return self.attach(link, open).map(Some);
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

    fn attach<S>(
        &self,
        link: Arc<Link>,
        open: impl FnOnce(Subscription) -> Result<S, GrantError>,
    ) -> Result<S, SubscriberError> {
        let Self { terms, expected, topic, node, .. } = self;
        let attached = terms.attach(node, &link, topic, expected.as_ref());
        let attached = attached.and_then(|subscription| Ok(open(subscription)?));
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

impl<T> fmt::Debug for StateListener<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StateListener").field("topic", &self.listening.topic).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for LogListener<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LogListener").field("topic", &self.listening.topic).finish_non_exhaustive()
    }
}

impl Drop for Listening {
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
