//! Log topics at a node.

use super::{ListenerBuilder, Node, PublisherBuilder, SubscriberBuilder};
use crate::fabric::Target;
use crate::id::{Sequence, TopicName};
use crate::payload::Payload;
use crate::repository::log::{LogStart, LogTopic};
use crate::subscriber::{LogSubscriber, Subscribed, SubscriberError, SubscriberHandle};

impl Node {
    /// Begins to set up a publisher of a log topic of this name.
    pub fn log_publisher<T: Payload>(&self, topic: &str) -> PublisherBuilder<'_, LogTopic, T> {
        PublisherBuilder::new(self, topic)
    }

    /// Begins to set up a subscriber of the log topic at this address, for example `shm:NODE/TOPIC`.
    pub fn log_subscriber<T: Payload>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> SubscriberBuilder<'_, LogSubscriber<T>> {
        SubscriberBuilder::new(self, target)
    }

    /// Begins to set up a listener for publishers of this log topic, whose nodes dial this one. The node needs a name.
    pub fn log_listener<T: Payload>(
        &self,
        topic: impl TryInto<TopicName, Error: Into<SubscriberError>>,
    ) -> ListenerBuilder<'_, LogSubscriber<T>> {
        SubscriberBuilder::new(self, topic)
    }
}

/// Of a [`LogSubscriber`], and of an [`AnySubscriber`](crate::AnySubscriber), where it means nothing for other kinds of topic.
#[expect(private_bounds, reason = "nothing else names the options of a subscriber")]
impl<S, P> SubscriberBuilder<'_, S, P>
where
    S: Subscribed + SubscriberHandle<Options = LogStart>,
{
    /// Begins with the oldest record that the publisher's ring still holds.
    pub fn earliest(self) -> Self {
        self.start(LogStart::Earliest)
    }

    /// Begins with the next record that is published. This is the default.
    pub fn newest(self) -> Self {
        self.start(LogStart::Newest)
    }

    /// Begins with this record. Those from it on that are overwritten already are reported lost.
    pub fn at(self, sequence: Sequence) -> Self {
        self.start(LogStart::At(sequence))
    }

    /// Begins so many records before the one that was the next when the publisher granted the topic, or with the oldest one that
    /// is left of them. What is published since then is received or reported lost.
    pub fn back(self, count: u64) -> Self {
        self.start(LogStart::Back(count))
    }

    /// Where to begin. That is settled when a subscriber is [open](SubscriberBuilder::open), or
    /// [accepted](crate::Listener::accept_timeout): what is published afterwards is not before it. Of an accepted subscriber the
    /// next record is the one after the publisher's [`Node::dial_subscriber`] has returned.
    pub fn start(mut self, start: LogStart) -> Self {
        self.terms.options = start;
        self
    }
}

impl<T: Payload> PublisherBuilder<'_, LogTopic, T> {
    /// Bytes of the ring that holds the records, at least; by default
    /// [`limits::LOG_CAPACITY_DEFAULT`](crate::limits::LOG_CAPACITY_DEFAULT). Each record takes those of its payload, rounded up to 8,
    /// and 24 more. How far it reaches back is how late a subscriber may join or look and still get everything. A ring is large enough
    /// for four of the largest records in any case.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.options = capacity;
        self
    }
}
