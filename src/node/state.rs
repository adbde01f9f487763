//! State topics at a node.

use super::{ListenerBuilder, Node, SubscriberBuilder};
use crate::fabric::Target;
use crate::id::TopicName;
use crate::payload::Payload;
use crate::subscriber::{StateSubscriber, SubscriberError};

impl Node {
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
