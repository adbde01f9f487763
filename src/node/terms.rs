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
    /// Whether it takes values that other subscribers of the topic could have made.
    pub(super) trusts_fellows: bool,
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
            trusts_fellows: false,
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

    /// Reads the publisher's repository with one-sided reads. This is the default; the publisher has no work for it.
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
    /// one host the publisher wakes the subscriber. Over RDMA the publisher multicasts notices, and the subscriber reads the repository
    /// only when one announces a value or its timer expires (every 250 milliseconds, or every millisecond while no notices arrive).
    /// Notices carry small payloads, which are received as [`Self::trust_fellow_subscribers`] says. A lost notice costs time, never a
    /// value. A push subscriber over RDMA is woken by the publisher's writes ([`NoticePath::Immediate`](crate::NoticePath::Immediate)),
    /// unless the connection is an unreliable one. Opening takes one more round trip to the publisher's node.
    pub fn notices(mut self) -> Self {
        self.terms.notices = true;
        self
    }

    /// Takes small values that came with multicast notices before the publisher's memory has confirmed them, also where nodes have a
    /// [`Keyring`](crate::Keyring).
    ///
    /// All subscribers of a topic have the key of its multicast notices, and any of them can make one. So where keys tell peers apart,
    /// such a notice is only a hint by default: the subscriber reads the value from the publisher's memory, which costs a READ for each
    /// notice. With this option it receives the value from the notice, and compares it with the publisher's memory afterwards, within 250
    /// milliseconds. It thereby trusts every other subscriber of the topic not to send values in the publisher's name, also of a state
    /// topic that another value replaces before they are compared. A value that the memory contradicts is reported
    /// ([`ReceiveError::Contradicted`](crate::ReceiveError::Contradicted)), and none is taken from a notice from then on.
    ///
    /// It saves a READ for each value: about 500 of 1,800 microseconds in the soft-RoCE machine, and presumably some microseconds with
    /// adapters, where it was not measured.
    ///
    /// Without effect where peers prove no keys: there values always come with notices. Notices by unicast are made with a key of the
    /// session, which no other subscriber knows, and bring values either way. On one host and by push, notices bring none.
    /// [`inline_values`](crate::Subscriber::inline_values) returns what is in force.
    ///
    /// ```no_run
    /// use fabricast::{Keyring, Node};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = Node::builder().keys(Keyring::open("/etc/quotes/keys")?).open()?;
    /// let builder = node.state_subscriber::<f64>("rdma://10.0.0.1/EURUSD");
    /// let quotes = builder.notices().trust_fellow_subscribers().open()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn trust_fellow_subscribers(mut self) -> Self {
        self.terms.trusts_fellows = true;
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

    /// Sets how long each answer of the publisher's node may take; by default [`limits::ANSWER_DEADLINE_NS`]. Connecting over RDMA
    /// may take up to this time more, 3 s at most. An existing session keeps its own timeout. Resolving a host name in the target is
    /// not bound by it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.terms.timeout = timeout;
        self
    }

    /// Sets the largest repository to map and the largest landing region to allocate, in bytes; by default
    /// [`limits::SUBSCRIBED_LEN_MAX_DEFAULT`]. The publisher's slots and largest payload, or the capacity of its log or table,
    /// determine the size. So many bytes of landing regions may also be left over from earlier push subscriptions until the publisher's
    /// node confirms that it writes them no more; where there are more, opening waits for that, up to the [timeout](Self::timeout).
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
