//! State topics at a node.

use super::{ListenerBuilder, Node, PublisherBuilder, SubscriberBuilder};
use crate::fabric::Target;
use crate::id::TopicName;
use crate::payload::Payload;
use crate::repository::state::StateTopic;
use crate::subscriber::{StateSubscriber, SubscriberError};

impl Node {
    /// Returns a builder for a publisher of a state topic of this name.
    pub fn state_publisher<T: Payload>(&self, topic: &str) -> PublisherBuilder<'_, StateTopic, T> {
        PublisherBuilder::new(self, topic)
    }

    /// Returns a builder for a subscriber of the state topic at this address, for example `shm:NODE/TOPIC`.
    pub fn state_subscriber<T: Payload>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> SubscriberBuilder<'_, StateSubscriber<T>> {
        SubscriberBuilder::new(self, target)
    }

    /// Returns a builder for a listener: publishers of this state topic dial this node, which needs a name.
    pub fn state_listener<T: Payload>(
        &self,
        topic: impl TryInto<TopicName, Error: Into<SubscriberError>>,
    ) -> ListenerBuilder<'_, StateSubscriber<T>> {
        SubscriberBuilder::new(self, topic)
    }
}

impl<T: Payload> PublisherBuilder<'_, StateTopic, T> {
    /// Sets the number of slots of the repository: a power of two from 2 to 65,536, by default 8. A reader has `slots - 1`
    /// publishes to copy a value before it is overwritten. More slots help large or hot topics.
    pub fn slots(mut self, slot_count: u32) -> Self {
        self.options = slot_count;
        self
    }
}
