//! Feeds at a node.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use super::persistent::{Reopen, persistent};
use super::publish::Beginning;
use super::terms::Terms;
use super::topics::table_of;
use super::{Node, PublisherBuilder, SubscriberBuilder};
use crate::fabric::Target;
use crate::id::{Delivery, Epoch, SlowPolicy, TopicName};
use crate::memory::RepositoryFileError;
use crate::publisher::{
    FeedPublisher, Gating, LenLimit, Place, PublisherError, TopicMemory, fresh_incarnation,
};
use crate::repository::feed::FeedRecord;
use crate::repository::log::{LogStart, LogTopic};
use crate::repository::table::TableTopic;
use crate::subscriber::{
    FeedSubscriber, GrantError, IdleStrategy, LogSubscriber, Persistent, Position, Subscribed,
    SubscriberError, TableSubscriber,
};

/// Attempts to open log and table of one incarnation.
const ATTEMPTS_MAX: u32 = 4;

impl Node {
    /// Returns a builder for a publisher of a feed of this name: keys of type `K`, records of type `R`, values of type `V`.
    pub fn feed_publisher<K, R, V>(&self, feed: &str) -> FeedPublisherBuilder<'_, K, R, V>
    where
        K: Serialize + DeserializeOwned + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        let mut log = PublisherBuilder::new(self, feed);
        log.limit = LenLimit::Record;
        let mut table = PublisherBuilder::new(self, &table_of(feed));
        table.limit = LenLimit::FeedValue;
        FeedPublisherBuilder { feed: feed.to_owned(), log, table }
    }

    /// Returns a builder for a subscriber of the feed at this address, for example `shm:NODE/FEED`.
    pub fn feed_subscriber<K, R, V>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> FeedSubscriberBuilder<'_, K, R, V>
    where
        K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        let settings = SubscriberBuilder::new(self, target);
        FeedSubscriberBuilder { settings, interval: None, record: PhantomData }
    }
}

/// Sets up a [`FeedPublisher`].
///
/// Send and Sync.
#[must_use = "a builder does nothing until it is opened"]
pub struct FeedPublisherBuilder<'a, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    feed: String,
    log: PublisherBuilder<'a, LogTopic, FeedRecord<K, R>>,
    table: PublisherBuilder<'a, TableTopic, (K, Option<V>)>,
}

impl<K, R, V> FeedPublisherBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Sets the number of keys that the feed may have: see the capacity of a
    /// [table](PublisherBuilder::capacity).
    pub fn capacity(self, capacity: usize) -> Self {
        Self { table: self.table.capacity(capacity), ..self }
    }

    /// Sets the longest key, in bytes of its encoded form: see [`PublisherBuilder::key_len_max`].
    pub fn key_len_max(self, key_len_max: usize) -> Self {
        Self { table: self.table.key_len_max(key_len_max), ..self }
    }

    /// Sets the longest value together with its key, in bytes of their encoded form, and one byte between them; by default 4 KiB. The
    /// table reserves this much twice for each key.
    pub fn value_len_max(self, value_len_max: usize) -> Self {
        Self { table: self.table.payload_len_max(value_len_max), ..self }
    }

    /// Sets the longest record together with its key, in bytes of their encoded form, and 10 bytes more; by default 4 KiB. A record
    /// takes only its own length.
    pub fn record_len_max(self, record_len_max: usize) -> Self {
        Self { log: self.log.payload_len_max(record_len_max), ..self }
    }

    /// Sets the minimum size of the ring that holds the records, in bytes, as that of a log: how far a subscriber may fall behind
    /// without losing records. An event takes at most a quarter of it.
    pub fn log_capacity(self, log_capacity: usize) -> Self {
        Self { log: self.log.capacity(log_capacity), ..self }
    }

    /// Permits subscribers that the publisher waits for, or disconnects, before it overwrites records that they have not read: see
    /// [`PublisherBuilder::gating`]. Adding a record to an event waits, not the commit. The table conflates: nobody holds it up.
    pub fn gating(self, gating: Gating) -> Self {
        Self { log: self.log.gating(gating), ..self }
    }

    /// Gives an example value for types that validate their values: see [`PublisherBuilder::sample`].
    pub fn sample(self, sample: impl Into<String>) -> Self {
        let sample = sample.into();
        Self { log: self.log.sample(sample.clone()), table: self.table.sample(sample), ..self }
    }

    /// Names the epoch, instead of a random one: see [`PublisherBuilder::epoch`]. A restarted publisher
    /// publishes all events of the epoch again, from the first one on; subscribers receive those that they do not have yet.
    pub fn epoch(self, epoch: Epoch) -> Self {
        Self { log: self.log.epoch(epoch), table: self.table.epoch(epoch), ..self }
    }

    /// Keeps log and table in files that outlive the publisher: see [`PublisherBuilder::warm`]. The log is in the file at this path, the
    /// table in one with `.table` after its name. A restarted publisher continues with the event after the last one, and with the values of
    /// all keys; [`FeedPublisher::newest`] says which event that was.
    pub fn warm(self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let table = table_file_of(&path);
        Self { log: self.log.warm(path), table: self.table.warm(table), ..self }
    }

    /// Creates log and table, and opens the feed to subscribers. Allocates; does not block, unless they are [kept](Self::warm): then it
    /// reads and checks their files.
    ///
    /// # Errors
    ///
    /// Those of [`PublisherBuilder::open`], for the feed's name, or that name and `/table`.
    pub fn open(self) -> Result<FeedPublisher<K, R, V>, PublisherError> {
        let Self { log, table, .. } = self;
        // The name of the log, which is the feed's, first: an error names the feed.
        let (log_name, table_name) = (log.reserve()?, table.reserve()?);
        let [log_place, table_place] =
            places([(log.place()?, log_name.name()), (table.place()?, table_name.name())])?;
        let incarnation = fresh_incarnation()?;
        let is_first = log_name.began;
        let is_kept = log_place.found().is_some();
        // Both have the epoch of the log's file, or a new one.
        table_place.check_epoch(log_place.epoch())?;
        // The table first: a subscriber that finds the log finds the table, and what the table has committed the log follows.
        let memory = TopicMemory { place: table_place, is_first, until: None };
        let table = table.open_reserved(table_name, Beginning { incarnation, memory })?;
        let memory =
            TopicMemory { place: log_place, is_first: false, until: is_kept.then(|| table.newest()) };
        Ok(FeedPublisher::new(log.open_reserved(log_name, Beginning { incarnation, memory })?, table))
    }
}

/// Sets up a [`FeedSubscriber`].
///
/// Send and Sync.
#[must_use = "a builder does nothing until it is opened"]
pub struct FeedSubscriberBuilder<'a, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Those of its table, at the feed's address.
    settings: SubscriberBuilder<'a, TableSubscriber<K, V>>,
    /// The interval of conflation.
    interval: Option<Duration>,
    record: PhantomData<fn() -> R>,
}

impl<'a, K, R, V> FeedSubscriberBuilder<'a, K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Reads the publisher's memory with one-sided reads. This is the default; the publisher has no work for it.
    pub fn pull(self) -> Self {
        self.delivery(Delivery::Pull)
    }

    /// Exposes landing regions of the sizes of log and table, which the publisher writes.
    pub fn push(self) -> Self {
        self.delivery(Delivery::Push)
    }

    /// Sets how records and values reach the subscriber.
    pub fn delivery(self, delivery: Delivery) -> Self {
        Self { settings: self.settings.delivery(delivery), ..self }
    }

    /// Has the publisher notify this subscriber of each event: see [`SubscriberBuilder::notices`].
    pub fn notices(self) -> Self {
        Self { settings: self.settings.notices(), ..self }
    }

    /// Takes records that came with multicast notices before the publisher's memory has confirmed them: see
    /// [`SubscriberBuilder::trust_fellow_subscribers`].
    pub fn trust_fellow_subscribers(self) -> Self {
        Self { settings: self.settings.trust_fellow_subscribers(), ..self }
    }

    /// Sets what happens when this subscriber reads more slowly than the publisher publishes: see
    /// [`slow`](SubscriberBuilder::slow) of a log. With [`SlowPolicy::Block`] it receives every record of every key. One that
    /// receives [values only](Self::conflate) cannot fall behind, and ignores it.
    pub fn slow(self, policy: SlowPolicy) -> Self {
        let mut settings = self.settings;
        settings.terms.slow = policy;
        Self { settings, ..self }
    }

    /// Reports how far this subscriber is in the records: see [`progress`](SubscriberBuilder::progress) of a log.
    pub fn progress(self) -> Self {
        let mut settings = self.settings;
        settings.terms.progress = true;
        Self { settings, ..self }
    }

    /// Receives values instead of records: of each key that has changed the newest value, once in this interval. The subscriber then
    /// reads the table only, at its own pace, and cannot fall behind. The values of one interval need not be of one event. The record
    /// type is not checked, because the subscriber does not attach to the log.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use fabricast::{FeedUpdate, Node};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// let mut feed = publishing.feed_publisher::<String, f64, f64>("trades").open()?;
    /// let node = Node::builder().runtime_dir(dir.path()).open()?;
    /// let target = "shm:exchange/trades";
    /// let mut subscriber =
    ///     node.feed_subscriber::<String, f64, f64>(target).conflate(Duration::from_millis(50)).open()?;
    ///
    /// feed.publish("AAPL", &189.25, &189.25)?;
    /// feed.publish("AAPL", &189.30, &189.30)?;
    /// let event = subscriber.event_timeout(Duration::from_secs(5))?.ok_or("nothing in time")?;
    /// let [FeedUpdate::Value(last)] = &event.updates[..] else { return Err("not one value".into()) };
    /// assert_eq!((last.key.as_str(), last.value, last.number), ("AAPL", Some(189.30), 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn conflate(self, interval: Duration) -> Self {
        Self { interval: Some(interval), ..self }
    }

    /// Sets a deadline for the next update or event: see [`SubscriberBuilder::deadline`].
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { settings: self.settings.deadline(deadline), ..self }
    }

    /// Sets how a receive that waits uses its processor: see [`SubscriberBuilder::idle`].
    pub fn idle(self, idle: IdleStrategy) -> Self {
        Self { settings: self.settings.idle(idle), ..self }
    }

    /// Sets how long each answer of the publisher's node may take: see [`SubscriberBuilder::timeout`].
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { settings: self.settings.timeout(timeout), ..self }
    }

    /// Sets the largest log or table to map, and the largest landing region to allocate, in bytes: see
    /// [`SubscriberBuilder::region_len_max`].
    pub fn region_len_max(self, region_len_max: usize) -> Self {
        Self { settings: self.settings.region_len_max(region_len_max), ..self }
    }

    /// Gives an example value for types that validate their values: see [`SubscriberBuilder::sample`].
    pub fn sample(self, sample: impl Into<String>) -> Self {
        Self { settings: self.settings.sample(sample), ..self }
    }

    /// Attaches to log and table. Blocks for the round trips of both, and allocates. The subscriber joins the feed with its first
    /// receive, and can ask for some keys before: it receives everything published after that.
    ///
    /// # Errors
    ///
    /// Those of [`SubscriberBuilder::open`], for the feed's name, or that name and `/table`. [`GrantError::Incarnation`] if the two
    /// are not of one feed.
    pub fn open(self) -> Result<FeedSubscriber<K, R, V>, SubscriberError> {
        let deadline = self.deadline_set();
        let (node, opening) = self.opening()?;
        Ok(opening.open(node)?.expect_within(deadline))
    }

    /// Makes the subscriber outlive its publishers: see [`Persistent`]. The settings apply to each of its
    /// subscriptions.
    pub fn persistent(self) -> PersistentFeedBuilder<'a, K, R, V> {
        PersistentFeedBuilder(self)
    }

    /// How it waits.
    pub(super) fn idle_set(&self) -> IdleStrategy {
        self.settings.terms.idle
    }

    /// The deadline that was set.
    pub(super) fn deadline_set(&self) -> Option<Duration> {
        self.settings.terms.deadline
    }

    pub(super) fn opening(self) -> Result<(&'a Node, FeedReopening<K, R, V>), SubscriberError> {
        let Self { settings: SubscriberBuilder { node, place, mut terms, samples, .. }, interval, .. } = self;
        // It is one of the feed, not of its parts.
        terms.deadline = None;
        let log = place?;
        let table = Target { address: log.address.clone(), topic: table_of(log.topic.as_str()).parse()? };
        let types = PhantomData;
        Ok((node, FeedReopening { log, table, terms, samples, interval, start: LogStart::Newest, types }))
    }
}

/// Sets up a [`Persistent`] subscriber of a feed.
///
/// Send and Sync.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct PersistentFeedBuilder<'a, K, R, V>(pub(super) FeedSubscriberBuilder<'a, K, R, V>)
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static;

impl<K, R, V> PersistentFeedBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Attaches to the feed, like [`FeedSubscriberBuilder::open`], or, if that is not possible at the moment, returns a subscriber that
    /// is sought in the background.
    ///
    /// # Errors
    ///
    /// Those of [`FeedSubscriberBuilder::open`] for which another attempt makes no sense: see [`SubscriberError::is_transient`].
    pub fn open(self) -> Result<Persistent<FeedSubscriber<K, R, V>>, SubscriberError> {
        let deadline = self.0.deadline_set();
        let (node, opening) = self.0.opening()?;
        Ok(persistent(node, opening)?.expect_within(deadline))
    }
}

/// What it takes to open a subscriber of a feed.
pub(super) struct FeedReopening<K, R, V> {
    log: Target,
    table: Target,
    terms: Terms<()>,
    samples: Vec<String>,
    interval: Option<Duration>,
    /// Where in the log.
    start: LogStart,
    types: Types<K, R, V>,
}

/// The types of a feed.
type Types<K, R, V> = PhantomData<fn() -> (K, R, V)>;

impl<K, R, V> Clone for FeedReopening<K, R, V> {
    fn clone(&self) -> Self {
        let Self { log, table, samples, terms, interval, start, types } = self;
        let (log, table, samples) = (log.clone(), table.clone(), samples.clone());
        Self { log, table, samples, terms: *terms, interval: *interval, start: *start, types: *types }
    }
}

impl<K, R, V> Reopen for FeedReopening<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    type Handle = FeedSubscriber<K, R, V>;

    fn target(&self) -> &Target {
        &self.log
    }

    fn open(&self, node: &Node) -> Result<FeedSubscriber<K, R, V>, SubscriberError> {
        let topic = self.log.topic.clone();
        if let Some(interval) = self.interval {
            return Ok(FeedSubscriber::of_values(topic, self.open_table(node)?, interval));
        }
        let (log, table) = self.open_both(node)?;
        Ok(FeedSubscriber::of_records(topic, log, table))
    }

    /// A feed that did not exist is joined like any other, with the values of its keys.
    fn resuming(&self, lost: Option<Position>) -> Self {
        let resumed = |Position { epoch, last, .. }| LogStart::Resume { epoch, after: last };
        let start = lost.map_or(LogStart::Newest, resumed);
        Self { start, ..self.clone() }
    }

    fn anew(&self) -> Self {
        Self { start: LogStart::First, ..self.clone() }
    }
}

impl<K, R, V> FeedReopening<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Returns the same for a feed at this address.
    pub(super) fn at(&self, log: Target) -> Result<Self, SubscriberError> {
        let table = Target { address: log.address.clone(), topic: table_of(log.topic.as_str()).parse()? };
        Ok(Self { log, table, ..self.clone() })
    }

    pub(super) fn is_conflated(&self) -> bool {
        self.interval.is_some()
    }

    fn open_table(&self, node: &Node) -> Result<TableSubscriber<K, V>, SubscriberError> {
        let notices = self.interval.is_some() && self.terms.notices;
        one::<TableSubscriber<K, V>, _>(node, &self.table, Terms { notices, ..self.terms }, &self.samples)
            .open()
    }

    /// Opens log and table of one incarnation.
    #[expect(clippy::type_complexity, reason = "the two parts of a feed")]
    pub(super) fn open_both(
        &self,
        node: &Node,
    ) -> Result<(LogSubscriber<FeedRecord<K, R>>, TableSubscriber<K, V>), SubscriberError> {
        let Self { log, terms, samples, start, .. } = self;
        for _ in 0..ATTEMPTS_MAX {
            // The log first: it has every record after the cut that the table is read for.
            let mut builder = one::<LogSubscriber<FeedRecord<K, R>>, _>(node, log, *terms, samples);
            (builder.terms.slow, builder.terms.progress) = (terms.slow, terms.progress);
            let records = builder.start(*start).open()?;
            let values = self.open_table(node)?;
            // Otherwise the publisher was replaced meanwhile.
            if records.incarnation() == values.incarnation() {
                return Ok((records, values));
            }
        }
        Err(SubscriberError::Unfit { target: log.clone(), source: GrantError::Incarnation })
    }
}

/// A subscriber of the log or the table, which nobody waits for.
fn one<'a, S: Subscribed, O>(
    node: &'a Node,
    target: &Target,
    terms: Terms<O>,
    samples: &[String],
) -> SubscriberBuilder<'a, S> {
    let mut builder = SubscriberBuilder::<S>::new(node, target.clone());
    let Terms { delivery, timeout, region_len_max, notices, trusts_fellows, .. } = terms;
    builder.terms = Terms { delivery, timeout, region_len_max, notices, trusts_fellows, ..builder.terms };
    samples.clone_into(&mut builder.samples);
    builder
}
impl<K, R, V> fmt::Debug for FeedPublisherBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { feed, log, table } = self;
        let mut fields = out.debug_struct("FeedPublisherBuilder");
        fields.field("feed", feed).field("log", log).field("table", table).finish()
    }
}

impl<K, R, V> fmt::Debug for FeedSubscriberBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, interval, .. } = self;
        let mut fields = out.debug_struct("FeedSubscriberBuilder");
        fields.field("settings", settings).field("interval", interval).finish_non_exhaustive()
    }
}

/// The repository file of a feed's table, given that of its log.
pub(super) fn table_file_of(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".table");
    name.into()
}

/// Has both files of a feed exist, or neither. A process that was killed when it had made one has published nothing.
fn places(places: [(Place, &TopicName); 2]) -> Result<[Place; 2], PublisherError> {
    let [log, table] = match places.each_ref().map(|(place, _)| place.found().is_some()) {
        [true, false] | [false, true] => {
            let [(log, log_name), (table, table_name)] = places;
            [log.renewed(log_name)?, table.renewed(table_name)?]
        }
        [true, true] | [false, false] => return Ok(places.map(|(place, _)| place)),
    };
    match (&log, &table) {
        (Place::Kept(_), Place::New(missing)) | (Place::New(missing), Place::Kept(_)) => {
            let path = log.found().or_else(|| table.found()).unwrap_or(missing).to_owned();
            Err(RepositoryFileError::Half { path, missing: missing.clone() }.into())
        }
        _ => Ok([log, table]),
    }
}
