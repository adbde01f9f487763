//! State topics at a node.

use super::{ListenerBuilder, Node, PublisherBuilder, SubscriberBuilder};
use crate::fabric::Target;
use crate::id::TopicName;
use crate::payload::Payload;
use crate::repository::state::StateTopic;
use crate::subscriber::{StateSubscriber, SubscriberError};

impl Node {
    /// Begins to set up a publisher of a state topic of this name.
    pub fn state_publisher<T: Payload>(&self, topic: &str) -> PublisherBuilder<'_, StateTopic, T> {
        PublisherBuilder::new(self, topic)
    }

    /// Begins to set up a subscriber of the state topic at this address, for example `shm:NODE/TOPIC`.
    pub fn state_subscriber<T: Payload>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> SubscriberBuilder<'_, StateSubscriber<T>> {
        SubscriberBuilder::new(self, target)
    }

    /// Begins to set up a listener for publishers of this state topic, whose nodes dial this one. The node needs a name.
    pub fn state_listener<T: Payload>(
        &self,
        topic: impl TryInto<TopicName, Error: Into<SubscriberError>>,
    ) -> ListenerBuilder<'_, StateSubscriber<T>> {
        SubscriberBuilder::new(self, topic)
    }
}

impl<T: Payload> PublisherBuilder<'_, StateTopic, T> {
    /// Slots of the repository: a power of two from 2 to 65,536, by default 8. A reader has as long to copy a
    /// value as the publisher takes for this many less one; more slots help large and hot topics.
    pub fn slots(mut self, slot_count: u32) -> Self {
        self.options = slot_count;
        self
    }
}
