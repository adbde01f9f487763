use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::Node;
use crate::fabric::Target;
use crate::id::{Delivery, Kind, TopicName};
use crate::limits;
use crate::subscriber::{Subscribed, SubscriberError};

/// What a subscriber asks for, whichever side has dialled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<O> {
    /// What the topic has to be; `None` for whatever it is.
    pub(super) kind: Option<Kind>,
    pub(super) delivery: Delivery,
    /// What topics of that kind may be asked for besides.
    pub(super) options: O,
    /// How long each answer may take.
    pub(super) timeout: Duration,
    pub(super) region_len_max: usize,
    /// Whether the publisher is to notify it of what it publishes.
    pub(super) notices: bool,
}

/// Sets up a subscriber `S`, at a [`Target`].
///
/// [`Node::state_subscriber`], [`Node::log_subscriber`] and [`Node::any_subscriber`] begin one. A [`ListenerBuilder`] has the
/// same settings. Those of one kind of topic are only there for its subscribers.
#[must_use = "a builder does nothing until it is opened"]
pub struct SubscriberBuilder<'a, S: Subscribed, P = Target> {
    pub(super) node: &'a Node,
    /// Where the topic is, or which one is listened for.
    pub(super) place: Result<P, SubscriberError>,
    pub(super) terms: Terms<S::Options>,
    pub(super) samples: Vec<String>,
    handle: PhantomData<fn() -> S>,
}

/// Sets up a [`Listener`](crate::Listener): as a subscriber, of a topic of this name.
pub type ListenerBuilder<'a, S> = SubscriberBuilder<'a, S, TopicName>;

impl<'a, S: Subscribed, P> SubscriberBuilder<'a, S, P> {
    /// What is asked for unless more is said.
    pub(super) fn new(node: &'a Node, place: impl TryInto<P, Error: Into<SubscriberError>>) -> Self {
        let terms = Terms {
            kind: S::KIND,
            delivery: Delivery::Pull,
            options: S::Options::default(),
            timeout: Duration::from_nanos(limits::ANSWER_DEADLINE_NS),
            region_len_max: limits::SUBSCRIBED_LEN_MAX_DEFAULT,
            notices: false,
        };
        let place = place.try_into().map_err(Into::into);
        Self { node, place, terms, samples: Vec::new(), handle: PhantomData }
    }

    /// Names a value that the payload type takes, for a type that checks its values: it is tried first wherever the type
    /// reads a text, bytes or a character, or a number if it is one. Call it once for each such type inside the payload
    /// type. See [`Payload`](crate::Payload#types-that-check-their-values) for an example.
    pub fn sample(mut self, sample: impl Into<String>) -> Self {
        self.samples.push(sample.into());
        self
    }

    /// Reads the publisher's repository one-sidedly. This is the default; it costs the publisher nothing.
    pub fn pull(self) -> Self {
        self.delivery(Delivery::Pull)
    }

    /// Gives the publisher a landing region of the repository's size, to which it writes its values.
    pub fn push(self) -> Self {
        self.delivery(Delivery::Push)
    }

    /// How values travel.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.terms.delivery = delivery;
        self
    }

    /// Has the publisher notify this subscriber of what it publishes, so that waiting costs little. On one host the publisher wakes
    /// it. Over RDMA the publisher sends notices by multicast, with small payloads in them, and this subscriber reads the
    /// repository only when a notice says that there is something new, or when its own timer does
    /// (every 250 milliseconds, and every millisecond while no notices arrive). A lost notice costs time, and
    /// never a value. Without this the subscriber reads whenever it polls. A subscriber by push over RDMA gets no notices, because
    /// its values are written to it ([`NoticePath::None`](crate::NoticePath::None)). Asking for notices takes one more round trip
    /// to the publisher's node.
    pub fn notices(mut self) -> Self {
        self.terms.notices = true;
        self
    }

    /// How long each answer of the publisher's node may take; by default [`limits::ANSWER_DEADLINE_NS`]. A session that exists
    /// already keeps its own. The resolver of host names, if the target has one, is not bound by this.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.terms.timeout = timeout;
        self
    }

    /// The largest repository to map, and landing region to make, bytes; by default [`limits::SUBSCRIBED_LEN_MAX_DEFAULT`]. The
    /// publisher's slots and largest payload, or the capacity of its log, say how large they are.
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
