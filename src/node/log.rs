//! Log topics at a node.

use super::{ListenerBuilder, Node, PublisherBuilder, SubscriberBuilder};
use crate::fabric::Target;
use crate::id::{Sequence, TopicName};
use crate::payload::Payload;
use crate::repository::log::{LogStart, LogTopic};
use crate::subscriber::{LogSubscriber, Subscribed, SubscriberError, SubscriberHandle};

impl Node {
    /// Returns a builder for a publisher of a log topic of this name.
    pub fn log_publisher<T: Payload>(&self, topic: &str) -> PublisherBuilder<'_, LogTopic, T> {
        PublisherBuilder::new(self, topic)
    }

    /// Returns a builder for a subscriber of the log topic at this address, for example `shm:NODE/TOPIC`.
    pub fn log_subscriber<T: Payload>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> SubscriberBuilder<'_, LogSubscriber<T>> {
        SubscriberBuilder::new(self, target)
    }

    /// Returns a builder for a listener: publishers of this log topic dial this node, which needs a name.
    pub fn log_listener<T: Payload>(
        &self,
        topic: impl TryInto<TopicName, Error: Into<SubscriberError>>,
    ) -> ListenerBuilder<'_, LogSubscriber<T>> {
        SubscriberBuilder::new(self, topic)
    }
}

/// Settings of a [`LogSubscriber`]. An [`AnySubscriber`](crate::AnySubscriber) ignores them for other kinds of topic.
#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<S, P> SubscriberBuilder<'_, S, P>
where
    S: Subscribed + SubscriberHandle<Options = LogStart>,
{
    /// Begins with the oldest record still in the publisher's ring.
    pub fn earliest(self) -> Self {
        self.start(LogStart::Earliest)
    }

    /// Begins with the next record published. This is the default.
    pub fn newest(self) -> Self {
        self.start(LogStart::Newest)
    }

    /// Begins with this record. Records from it on that are already overwritten are reported lost.
    pub fn at(self, sequence: Sequence) -> Self {
        self.start(LogStart::At(sequence))
    }

    /// Begins `count` records before the next one at the time of the publisher's grant, or with the oldest of them still in the
    /// ring. Records published since the grant are received or reported lost.
    pub fn back(self, count: u64) -> Self {
        self.start(LogStart::Back(count))
    }

    /// Sets where to begin. Opening fixes the position, by [`open`](SubscriberBuilder::open) or
    /// [`accept_timeout`](crate::Listener::accept_timeout): the subscriber receives everything published later. For an accepted
    /// subscriber the next record is the first one published after [`Node::dial_subscriber`] returns.
    pub fn start(mut self, start: LogStart) -> Self {
        self.terms.options = start;
        self
    }
}

impl<T: Payload> PublisherBuilder<'_, LogTopic, T> {
    /// Sets the minimum size of the ring that holds the records, in bytes; by default
    /// [`limits::LOG_CAPACITY_DEFAULT`](crate::limits::LOG_CAPACITY_DEFAULT). Each record takes its payload, rounded up to 8
    /// bytes, and 24 bytes more. The ring bounds how late a subscriber may join or read without losing records. It always holds
    /// at least four of the largest records.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.options = capacity;
        self
    }
}
