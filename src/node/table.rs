//! Table topics at a node.

use serde::{Serialize, de::DeserializeOwned};

use super::{ListenerBuilder, Node, PublisherBuilder, SubscriberBuilder};
use crate::fabric::Target;
use crate::id::TopicName;
use crate::payload::Payload;
use crate::repository::table::TableTopic;
use crate::subscriber::{SubscriberError, TableSubscriber};

impl Node {
    /// Returns a builder for a publisher of a table topic of this name: keys of type `K`, values of type `V`.
    pub fn table_publisher<K, V>(&self, topic: &str) -> PublisherBuilder<'_, TableTopic, (K, Option<V>)>
    where
        K: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        PublisherBuilder::new(self, topic)
    }

    /// Returns a builder for a subscriber of the table topic at this address, for example `shm:NODE/TOPIC`.
    pub fn table_subscriber<K, V>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> SubscriberBuilder<'_, TableSubscriber<K, V>>
    where
        K: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        SubscriberBuilder::new(self, target)
    }

    /// Returns a builder for a listener: publishers of this table topic dial this node, which needs a name.
    pub fn table_listener<K, V>(
        &self,
        topic: impl TryInto<TopicName, Error: Into<SubscriberError>>,
    ) -> ListenerBuilder<'_, TableSubscriber<K, V>>
    where
        K: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        SubscriberBuilder::new(self, topic)
    }
}

impl<T: Payload> PublisherBuilder<'_, TableTopic, T> {
    /// Sets the number of keys that the table may have, up to
    /// [`limits::TABLE_CAPACITY_MAX`](crate::limits::TABLE_CAPACITY_MAX); by default
    /// [`limits::TABLE_CAPACITY_DEFAULT`](crate::limits::TABLE_CAPACITY_DEFAULT). The repository reserves two slots for each key, and
    /// each slot 48 bytes, the [largest payload](Self::payload_len_max), and up to 64 bytes more.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.options.capacity = capacity;
        self
    }

    /// Sets the longest key, in bytes of its encoded form: 8 and its length for a text, 8 for a `u64`. Up to
    /// [`limits::KEY_LEN_MAX`](crate::limits::KEY_LEN_MAX); by default
    /// [`limits::KEY_LEN_MAX_DEFAULT`](crate::limits::KEY_LEN_MAX_DEFAULT), if the largest payload is longer. A payload is key and value
    /// together, and one byte between them.
    pub fn key_len_max(mut self, key_len_max: usize) -> Self {
        self.options.key_len_max = Some(key_len_max);
        self
    }
}
