use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::Node;
use crate::fabric::Target;
use crate::id::{Delivery, Kind, SlowPolicy, TopicName};
use crate::limits;
use crate::subscriber::{IdleStrategy, Subscribed, SubscriberError};

/// What a subscriber requests, whichever side dialled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<O> {
    /// The required kind of topic; `None` for any.
    pub(super) kind: Option<Kind>,
    pub(super) delivery: Delivery,
    /// The options of that kind.
    pub(super) options: O,
    /// How long each answer may take.
    pub(super) timeout: Duration,
    pub(super) region_len_max: usize,
    /// Whether the publisher notifies the subscriber.
    pub(super) notices: bool,
    /// After which time without a value that is reported.
    pub(super) deadline: Option<Duration>,
    /// How it waits.
    pub(super) idle: IdleStrategy,
    /// What happens when it is slow.
    pub(super) slow: SlowPolicy,
    /// Whether it reports its progress even if nothing depends on it.
    pub(super) progress: bool,
}

/// Sets up a subscriber `S`, at a [`Target`].
///
/// [`Node::state_subscriber`], [`Node::log_subscriber`], [`Node::table_subscriber`] and [`Node::any_subscriber`] begin one. A
/// [`ListenerBuilder`] has the same settings, and a [`FeedSubscriberBuilder`](crate::FeedSubscriberBuilder) those that apply to a
/// feed. Settings of one kind are available only to subscribers of that kind.
///
/// Send and Sync.
#[must_use = "a builder does nothing until it is opened"]
pub struct SubscriberBuilder<'a, S: Subscribed, P = Target> {
    pub(super) node: &'a Node,
    /// The topic's address, or the name to listen for.
    pub(super) place: Result<P, SubscriberError>,
    pub(super) terms: Terms<S::Options>,
    pub(super) samples: Vec<String>,
    handle: PhantomData<fn() -> S>,
}

/// Sets up a [`Listener`](crate::Listener) for topics of this name, with the settings of a subscriber.
pub type ListenerBuilder<'a, S> = SubscriberBuilder<'a, S, TopicName>;

impl<'a, S: Subscribed, P> SubscriberBuilder<'a, S, P> {
    /// The default terms.
    pub(super) fn new(node: &'a Node, place: impl TryInto<P, Error: Into<SubscriberError>>) -> Self {
        let terms = Terms {
            kind: S::KIND,
            delivery: Delivery::Pull,
            options: S::Options::default(),
            timeout: Duration::from_nanos(limits::ANSWER_DEADLINE_NS),
            region_len_max: limits::SUBSCRIBED_LEN_MAX_DEFAULT,
            notices: false,
            deadline: None,
            idle: IdleStrategy::default(),
            slow: SlowPolicy::Lap,
            progress: false,
        };
        Self::with(node, place.try_into().map_err(Into::into), (terms, Vec::new()))
    }

    /// A builder with these settings: terms and samples.
    pub(super) fn with(
        node: &'a Node,
        place: Result<P, SubscriberError>,
        (terms, samples): (Terms<S::Options>, Vec<String>),
    ) -> Self {
        Self { node, place, terms, samples, handle: PhantomData }
    }

    /// Gives an example value for a payload type that validates its values. Schema tracing tries it first wherever a type reads
    /// text, bytes or a character, or a number if the sample is one. Call this once for each such type inside the payload type.
    /// See [`Payload`](crate::Payload#types-that-check-their-values) for an example.
    pub fn sample(mut self, sample: impl Into<String>) -> Self {
        self.samples.push(sample.into());
        self
    }

    /// Reads the publisher's repository with one-sided reads. This is the default; it costs the publisher nothing.
    pub fn pull(self) -> Self {
        self.delivery(Delivery::Pull)
    }

    /// Exposes a landing region of the repository's size, which the publisher writes.
    pub fn push(self) -> Self {
        self.delivery(Delivery::Push)
    }

    /// Sets how values reach the subscriber.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.terms.delivery = delivery;
        self
    }

    /// Has the publisher notify this subscriber of each publish from the beginning. Otherwise it asks for that when it first waits. On
    /// one host the publisher wakes the subscriber. Over RDMA the publisher multicasts notices that carry small payloads, and the
    /// subscriber reads the repository only when a notice announces a value or its timer expires (every 250 milliseconds, or every
    /// millisecond while no notices arrive). A lost notice costs time, never a value. A push subscriber over RDMA is woken by the
    /// publisher's writes ([`NoticePath::Immediate`](crate::NoticePath::Immediate)), unless the connection is an unreliable one. Opening
    /// takes one more round trip to the publisher's node.
    pub fn notices(mut self) -> Self {
        self.terms.notices = true;
        self
    }

    /// Sets a deadline: when no value has come for this long, the next receive returns [`ReceiveError::Overdue`](crate::ReceiveError),
    /// once, and again after another value and another such silence. A receive that waits returns at the deadline. The time counts from
    /// the last value that was received, at first from the opening, by the monotonic clock. Losses are no values. By default there is
    /// no deadline.
    ///
    /// A [persistent](crate::Persistent) subscriber and one of several [lines](crate::Lines) have one deadline, which also counts while no
    /// publisher is attached. With a deadline each value costs a read of the clock.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use fabricast::{Node, ReceiveError};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
    /// let mut publisher = node.state_publisher::<f64>("EURUSD").open()?;
    /// let builder = node.state_subscriber::<f64>("shm:quotes/EURUSD");
    /// let mut quotes = builder.deadline(Duration::from_millis(20)).open()?;
    /// let timeout = Duration::from_secs(5);
    /// assert!(matches!(quotes.receive_timeout(timeout), Err(ReceiveError::Overdue { .. })));
    /// publisher.publish(&1.0841)?;
    /// assert!(quotes.receive_timeout(timeout)?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.terms.deadline = Some(deadline);
        self
    }

    /// Sets how a receive that waits uses its processor until there is a value; by default it polls for 20 microseconds and then sleeps.
    /// It has no effect on subscribers that are awaited or that a [`WaitSet`](crate::WaitSet) waits for.
    pub fn idle(mut self, idle: IdleStrategy) -> Self {
        self.terms.idle = idle;
        self
    }

    /// Sets how long each answer of the publisher's node may take; by default [`limits::ANSWER_DEADLINE_NS`]. An existing session
    /// keeps its own timeout. Resolving a host name in the target is not bound by it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.terms.timeout = timeout;
        self
    }

    /// Sets the largest repository to map and the largest landing region to allocate, in bytes; by default
    /// [`limits::SUBSCRIBED_LEN_MAX_DEFAULT`]. The publisher's slots and largest payload, or the capacity of its log or table,
    /// determine the size.
    pub fn region_len_max(mut self, region_len_max: usize) -> Self {
        self.terms.region_len_max = region_len_max;
        self
    }
}

impl<S: Subscribed, P: fmt::Debug> fmt::Debug for SubscriberBuilder<'_, S, P> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SubscriberBuilder")
            .field("place", &self.place)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
