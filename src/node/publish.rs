use std::marker::PhantomData;
use std::sync::Arc;

use super::Node;
use crate::id::TopicName;
use crate::limits;
use crate::payload::Payload;
use crate::publisher::{
    LogParts, LogPublisher, PublishedTopic, PublisherError, StateParts, StatePublisher, TopicParts,
};

/// What a node without an explicit maximum reserves for each value of a type without a fixed length, bytes.
const PAYLOAD_LEN_MAX_DEFAULT: usize = 4096;

/// Sets up a publisher of a state topic.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct StatePublisherBuilder<'a, T> {
    settings: Settings<'a>,
    slot_count: u32,
    payload: PhantomData<fn(&T)>,
}

/// Sets up a publisher of a log topic.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct LogPublisherBuilder<'a, T> {
    settings: Settings<'a>,
    capacity: usize,
    payload: PhantomData<fn(&T)>,
}

/// What is said of a topic of any kind.
#[derive(Debug)]
struct Settings<'a> {
    node: &'a Node,
    topic: String,
    payload_len_max: usize,
    samples: Vec<String>,
}

impl<'a, T: Payload> StatePublisherBuilder<'a, T> {
    pub(super) fn new(node: &'a Node, topic: &str) -> Self {
        let slot_count = limits::SLOT_COUNT_DEFAULT;
        Self { settings: Settings::new::<T>(node, topic), slot_count, payload: PhantomData }
    }

    /// Slots of the repository: a power of two from 2 to 65,536, by default 8. A reader has as long to copy a
    /// value as the publisher takes for this many less one; more slots help large and hot topics.
    pub fn slots(self, slot_count: u32) -> Self {
        Self { slot_count, ..self }
    }

    /// The longest payload, in bytes of its encoded form; up to [`limits::PAYLOAD_LEN_MAX`]. By default the
    /// length of the type if it has only one, otherwise 4 KiB. Each slot has room for it.
    pub fn payload_len_max(mut self, payload_len_max: usize) -> Self {
        self.settings.payload_len_max = payload_len_max;
        self
    }

    /// Names a value that the payload type takes, for a type that checks its values: see
    /// [`Payload`](crate::Payload#types-that-check-their-values).
    pub fn sample(mut self, sample: impl Into<String>) -> Self {
        self.settings.samples.push(sample.into());
        self
    }

    /// Makes the repository and opens the topic to subscribers. Allocates; does not block.
    ///
    /// # Errors
    ///
    /// [`PublisherError`] when the name is taken or malformed, sizes do not fit, the type cannot be described, or
    /// memory cannot be had.
    pub fn open(self) -> Result<StatePublisher<T>, PublisherError> {
        let Self { settings, slot_count, .. } = self;
        settings.open(|topic| StatePublisher::open(StateParts { topic, slot_count }))
    }
}

impl<'a, T: Payload> LogPublisherBuilder<'a, T> {
    pub(super) fn new(node: &'a Node, topic: &str) -> Self {
        let capacity = limits::LOG_CAPACITY_DEFAULT;
        Self { settings: Settings::new::<T>(node, topic), capacity, payload: PhantomData }
    }

    /// Bytes of the ring that holds the records, at least; by default [`limits::LOG_CAPACITY_DEFAULT`]. Each record takes those
    /// of its payload, rounded up to 8, and 24 more. How far it reaches back is how late a subscriber may join or look and
    /// still get everything. A ring is large enough for four of the largest records in any case.
    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// The longest payload, in bytes of its encoded form; up to [`limits::PAYLOAD_LEN_MAX`]. By default the
    /// length of the type if it has only one, otherwise 4 KiB. A record takes only as much as it has.
    pub fn payload_len_max(mut self, payload_len_max: usize) -> Self {
        self.settings.payload_len_max = payload_len_max;
        self
    }

    /// Names a value that the payload type takes, for a type that checks its values: see
    /// [`Payload`](crate::Payload#types-that-check-their-values).
    pub fn sample(mut self, sample: impl Into<String>) -> Self {
        self.settings.samples.push(sample.into());
        self
    }

    /// Makes the repository and opens the topic to subscribers. Allocates; does not block.
    ///
    /// # Errors
    ///
    /// [`PublisherError`] when the name is taken or malformed, sizes do not fit, the type cannot be described, or
    /// memory cannot be had.
    pub fn open(self) -> Result<LogPublisher<T>, PublisherError> {
        let Self { settings, capacity, .. } = self;
        settings.open(|topic| LogPublisher::open(LogParts { topic, capacity }))
    }
}

impl<'a> Settings<'a> {
    fn new<T: Payload>(node: &'a Node, topic: &str) -> Self {
        let payload_len_max = T::fixed_len().unwrap_or(PAYLOAD_LEN_MAX_DEFAULT);
        Self { node, topic: topic.to_owned(), payload_len_max, samples: Vec::new() }
    }

    /// Opens the topic under its name.
    fn open<P>(
        self,
        open: impl FnOnce(TopicParts<'_>) -> Result<(P, Arc<PublishedTopic>), PublisherError>,
    ) -> Result<P, PublisherError> {
        let Self { node, topic, payload_len_max, samples } = self;
        let core = node.core();
        let name: TopicName = topic.parse()?;
        let reserved = core.reserve(&name)?;
        let (publisher, topic) = open(TopicParts {
            fabric: core.fabric(),
            clock: Arc::clone(core.clock()),
            waker: Arc::clone(core.waker()),
            node: node.hold(),
            host: core.identity().host.as_str(),
            name,
            payload_len_max,
            samples: &samples,
        })?;
        reserved.fill(topic);
        Ok(publisher)
    }
}
