use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::KeyedWaker;
use crate::id::{TopicId, TopicName};
use crate::limits;
use crate::publisher::{PublishedTopic, PublisherError};

/// The topics of a node.
#[derive(Debug, Default)]
pub(super) struct Topics(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    /// By name. A name without a topic is reserved by a publisher that is being opened.
    by_name: BTreeMap<TopicName, Option<Arc<PublishedTopic>>>,
    /// The names, by the identifiers that regions hold.
    names: HashMap<TopicId, TopicName>,
    /// The topics whose end the node's thread has not processed yet.
    by_key: BTreeMap<u64, Arc<PublishedTopic>>,
    /// The node's thread has panicked.
    is_orphaned: bool,
}

/// A reserved name, until its topic is open or opening it has failed.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    topics: &'a Topics,
    name: TopicName,
    pub(super) waker: KeyedWaker,
    /// The node had no other topics when it was reserved.
    pub(super) began: bool,
    filled: bool,
}

/// The name of a feed's table.
pub(super) fn table_of(feed: &str) -> String {
    format!("{feed}/table")
}

impl Topics {
    /// Reserves a name. The waker wakes the node's thread for its topic.
    pub(super) fn reserve(
        &self,
        name: &TopicName,
        waker: KeyedWaker,
    ) -> Result<Reserved<'_>, PublisherError> {
        let registry = &mut *self.0.lock();
        let id = TopicId::of(name);
        // Two names with one identifier would accept each other's values.
        if let Some(known) = registry.names.get(&id) {
            // A topic whose publisher was dropped frees its name at once, even before its subscribers are notified.
            let has_ended =
                |topic: &Option<Arc<PublishedTopic>>| topic.as_ref().is_some_and(|it| it.has_ended());
            if !registry.by_name.get(known).is_none_or(has_ended) {
                return Err(PublisherError::TopicTaken { topic: name.clone() });
            }
            registry.by_name.remove(known);
        }
        if registry.by_name.len() >= limits::TOPICS_MAX {
            return Err(PublisherError::TooManyTopics);
        }
        registry.by_name.insert(name.clone(), None);
        registry.names.insert(id, name.clone());
        Ok(Reserved { topics: self, name: name.clone(), waker, began: false, filled: false })
    }

    /// The topic of this name, if its publisher has not been dropped.
    pub(super) fn named(&self, name: &TopicName) -> Option<Arc<PublishedTopic>> {
        self.0.lock().by_name.get(name)?.clone().filter(|topic| !topic.has_ended())
    }

    /// The table of the feed of this name, if it is a feed: its log and its table are of one incarnation.
    pub(super) fn table_of_feed(&self, feed: &TopicName) -> Option<TopicName> {
        let table = table_of(feed.as_str()).parse().ok()?;
        let (records, values) = (self.named(feed)?, self.named(&table)?);
        (records.incarnation == values.incarnation).then_some(table)
    }

    /// Up to `count` topics after this name that are `shown`, in order of name.
    pub(super) fn after(
        &self,
        name: Option<&TopicName>,
        count: usize,
        shown: impl Fn(&TopicName) -> bool,
    ) -> Vec<Arc<PublishedTopic>> {
        let after = name.map_or(Bound::Unbounded, Bound::Excluded);
        let registry = self.0.lock();
        let behind = registry.by_name.range::<TopicName, _>((after, Bound::Unbounded));
        let topics = behind.filter(|(name, _)| shown(name)).filter_map(|(_, topic)| topic.clone());
        topics.filter(|topic| !topic.has_ended()).take(count).collect()
    }

    /// The topic with this key, unless dropped from the registry.
    pub(super) fn keyed(&self, key: u64) -> Option<Arc<PublishedTopic>> {
        self.0.lock().by_key.get(&key).cloned()
    }

    /// Removes a topic that has ended.
    pub(super) fn forget(&self, topic: &PublishedTopic) {
        let registry = &mut *self.0.lock();
        registry.by_key.remove(&topic.key());
        let named = registry.by_name.get(&topic.name).and_then(Option::as_ref);
        if named.is_some_and(|named| named.key() == topic.key()) {
            registry.remove(&topic.name);
        }
    }

    /// Notifies all publishers, present and future, that the node's thread has panicked.
    pub(super) fn orphan(&self) {
        let registry = &mut *self.0.lock();
        registry.is_orphaned = true;
        registry.by_key.values().for_each(|topic| topic.orphan());
    }
}

impl Registry {
    fn remove(&mut self, name: &TopicName) {
        self.by_name.remove(name);
        self.names.remove(&TopicId::of(name));
    }
}

impl Reserved<'_> {
    pub(super) fn name(&self) -> &TopicName {
        &self.name
    }

    /// Whether the node has no other topics.
    pub(super) fn is_first(&self) -> bool {
        let registry = self.topics.0.lock();
        registry.names.len() == 1 && registry.by_key.is_empty()
    }

    /// Opens the topic to subscribers.
    pub(super) fn fill(mut self, topic: Arc<PublishedTopic>) {
        let registry = &mut *self.topics.0.lock();
        registry.by_name.insert(self.name.clone(), Some(Arc::clone(&topic)));
        if registry.is_orphaned {
            topic.orphan();
        }
        registry.by_key.insert(topic.key(), topic);
        self.filled = true;
        // From now on its heart beats.
        self.waker.wake();
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.topics.0.lock().remove(&self.name);
        }
    }
}
