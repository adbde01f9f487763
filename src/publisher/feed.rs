use std::borrow::Borrow;
use std::fmt;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use super::{FinishError, LenLimit, LogPublisher, PublishError, TablePublisher, ending, log, table};
use crate::id::{Epoch, Sequence, TopicName};
use crate::layout::log::frame_len;
use crate::payload::{Schema, encode};
use crate::repository::Writer as _;
use crate::repository::feed::{FeedRecord, RECORD_HEAD_LEN, end_event, record_head, record_schema};

/// The part of the log's ring that an event may take.
const EVENT_PARTS: usize = 4;

/// Publishes events: records of keys in a log, and the newest value of each key in a table, under one sequence.
///
/// Each [event](Self::event) has records, each of a key, and becomes visible with one commit in log and table. Its sequence is that
/// of its last record. Records have consecutive sequences from 1. A subscriber that joins late receives the value of each key as of
/// one event, and the records after it; one that loses records receives the values of the keys that it lost records of.
///
/// So a key's value must tell a subscriber what all records of that key until then would have: for an order book, its levels.
///
/// A feed occupies two topics of its node: the log has the feed's name, and the table that name and `/table`. Both can be
/// subscribed to as such, for example by a program that wants quotes only.
///
/// Publishing neither allocates (unless an event has more bytes or records than any before), nor locks, nor calls the operating
/// system on the `shm` fabric, with the exceptions that [`Publisher`](crate::Publisher) lists. Dropping the publisher ends both
/// topics.
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// // Trades (price, size), and for each symbol the last price and the volume of the day.
/// let mut feed = node.feed_publisher::<String, (f64, u32), (f64, u64)>("trades").open()?;
///
/// let mut event = feed.event();
/// event.record("AAPL", &(189.25, 100)).unwrap_err(); // has no value yet
/// event.update("AAPL", &(189.25, 100), &(189.25, 100))?;
/// event.update("IBM", &(147.50, 40), &(147.50, 40))?;
/// assert_eq!(event.commit().get(), 2);
/// # Ok(())
/// # }
/// ```
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
pub struct FeedPublisher<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    // Ended in this order: a subscriber that has received the end of the log can still read the table.
    log: LogPublisher<FeedRecord<K, R>>,
    table: TablePublisher<K, V>,
    /// The schema of the records' values.
    schema: Option<Schema>,
    /// The encoded records of the event, one after the other.
    records: Vec<u8>,
    /// The length of each.
    lens: Vec<usize>,
    /// Bytes that they take in the ring.
    event_len: usize,
    /// When the first of them was added, ns since the Unix epoch.
    began_ns: u64,
}

/// An event of a feed that is being built: see [`FeedPublisher::event`].
///
/// [`Self::commit`] publishes it. Dropping it instead publishes nothing: the feed is as it was before.
///
/// If the feed waits for subscribers ([`gating`](crate::FeedPublisherBuilder::gating)), so does each record that is added, until what the
/// event would overwrite has been read. An event of [`FeedPublisher::try_event`] does not wait.
#[must_use = "an event is published by commit"]
pub struct FeedEventBuilder<'a, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    feed: &'a mut FeedPublisher<K, R, V>,
    /// Adding a record waits for subscribers.
    may_wait: bool,
}

/// What a record does to its key.
enum Effect<'v, V> {
    /// The key has this value.
    Set(&'v V),
    /// The key keeps its value.
    Keep,
    /// The key is gone.
    Remove,
}

impl<K, R, V> FeedPublisher<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    pub(crate) fn new(log: LogPublisher<FeedRecord<K, R>>, table: TablePublisher<K, V>) -> Self {
        let schema = record_schema(&log.output.topic.schema);
        Self { log, table, schema, records: Vec::new(), lens: Vec::new(), event_len: 0, began_ns: 0 }
    }

    /// Damages the newest entry of a key in the table.
    #[cfg(test)]
    pub(crate) fn damage<Q>(&mut self, key: &Q)
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let encoded = crate::payload::encode_unchecked(key).expect("a key");
        self.table.damage(&encoded);
    }

    /// Pretends that this event is the newest of the table, until the next one.
    #[cfg(test)]
    pub(crate) fn pretend(&self, newest: u64) {
        self.table.pretend(newest);
    }

    /// Pretends that, and that it has changed every page of the table.
    #[cfg(test)]
    pub(crate) fn pretend_everywhere(&self, newest: u64) {
        self.table.pretend_everywhere(newest);
    }

    /// Begins an event. Its first record sets the publish time of all its records and values.
    pub fn event(&mut self) -> FeedEventBuilder<'_, K, R, V> {
        self.begin(true)
    }

    /// Begins an event that waits for no subscriber: adding a record fails with [`PublishError::Blocked`] where one of [`Self::event`]
    /// would wait, and the event is as it was before. Add it again later, drop the event, or commit what it has;
    /// [`FeedEventBuilder::try_commit`] does not wait either. Such a failure neither waits nor allocates.
    ///
    /// ```
    /// use fabricast::{FeedPublisher, PublishError};
    ///
    /// /// Publishes what follows a trade, or returns false: a subscriber has to read first.
    /// fn trade(feed: &mut FeedPublisher<String, f64, f64>, price: f64) -> Result<bool, PublishError> {
    ///     let mut event = feed.try_event();
    ///     let added = event.update("AAPL", &price, &price).and_then(|()| event.update("index", &price, &price));
    ///     match added.and_then(|()| event.try_commit()) {
    ///         Ok(_) => Ok(true),
    ///         Err(PublishError::Blocked { .. }) => Ok(false),
    ///         Err(error) => Err(error),
    ///     }
    /// }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let node = fabricast::Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// # let gating = fabricast::Gating::new();
    /// let mut feed = node.feed_publisher("trades").gating(gating).open()?;
    /// assert!(trade(&mut feed, 189.25)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_event(&mut self) -> FeedEventBuilder<'_, K, R, V> {
        self.begin(false)
    }

    fn begin(&mut self, may_wait: bool) -> FeedEventBuilder<'_, K, R, V> {
        // An event that was forgotten instead of dropped.
        if !self.lens.is_empty() {
            self.discard();
        }
        FeedEventBuilder { feed: self, may_wait }
    }

    /// Publishes an event of one record, after which the key has this value. Returns its sequence.
    ///
    /// # Errors
    ///
    /// Those of [`FeedEventBuilder::update`]. In these cases nothing is published.
    pub fn publish<Q>(&mut self, key: &Q, record: &R, value: &V) -> Result<Sequence, PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let mut event = self.event();
        event.update(key, record, value)?;
        Ok(event.commit())
    }

    /// Publishes an event of one record like [`Self::publish`], but fails instead of waiting for a subscriber.
    ///
    /// # Errors
    ///
    /// Those of [`Self::publish`]; [`PublishError::Blocked`], which names the slowest subscriber, where that would wait. In these cases
    /// nothing is published.
    pub fn try_publish<Q>(&mut self, key: &Q, record: &R, value: &V) -> Result<Sequence, PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let mut event = self.try_event();
        event.update(key, record, value)?;
        event.try_commit()
    }

    /// Returns the name of the feed, which is that of its log.
    pub fn topic(&self) -> &TopicName {
        self.log.topic()
    }

    /// Returns the epoch of the feed.
    pub fn epoch(&self) -> Epoch {
        self.log.epoch()
    }

    /// Returns the sequence of the newest event; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        self.log.newest()
    }

    /// Returns whether the feed has this key. The event that is being built counts.
    ///
    /// # Errors
    ///
    /// [`PublishError::Encode`] when the type of the key fails to encode.
    pub fn contains<Q>(&mut self, key: &Q) -> Result<bool, PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        self.table.contains(key)
    }

    /// Returns the number of keys. Those of the event that is being built count.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether the feed has no keys.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the number of keys that the feed may have.
    pub fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Ends the feed like a drop, and waits until every subscriber has received the last event and the end, or is gone: see
    /// [`Publisher::finish`](crate::Publisher::finish). Returns the last sequence.
    ///
    /// # Errors
    ///
    /// Those of the same method there.
    pub fn finish(self, timeout: Duration) -> Result<Sequence, FinishError> {
        let endings = [self.log.output.ending(), self.table.output.ending()];
        drop(self);
        ending::wait(&endings, timeout)
    }

    /// Returns the number of pull subscribers of its log: see [`Publisher::pull_subscribers`](crate::Publisher::pull_subscribers).
    pub fn pull_subscribers(&self) -> u64 {
        self.log.pull_subscribers()
    }

    /// Returns the number of push subscribers of its log.
    pub fn push_subscribers(&self) -> u64 {
        self.log.push_subscribers()
    }

    /// Returns the number of subscribers of its table, of either delivery; each subscriber of the feed is one of them.
    pub fn table_subscribers(&self) -> u64 {
        self.table.pull_subscribers() + self.table.push_subscribers()
    }

    /// Adds a record to the event.
    fn add<Q>(
        &mut self,
        key: &Q,
        record: &R,
        (effect, may_wait): (&Effect<'_, V>, bool),
    ) -> Result<(), PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        self.log.output.check_served()?;
        if self.lens.is_empty() {
            self.began_ns = self.log.output.realtime_ns();
        }
        let added = self.try_add(key, record, (effect, may_wait));
        added.map_err(|error| self.failed(error, may_wait))
    }

    /// Counts a failure. An attempt that does not wait may be refused again and again, which is none.
    #[cold]
    fn failed(&mut self, error: PublishError, may_wait: bool) -> PublishError {
        if !may_wait && matches!(error, PublishError::Blocked { .. }) {
            return error;
        }
        self.log.output.failed(error)
    }

    fn try_add<Q>(
        &mut self,
        key: &Q,
        record: &R,
        (effect, may_wait): (&Effect<'_, V>, bool),
    ) -> Result<(), PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let Self { log, table, schema, records, lens, event_len, began_ns } = self;
        let (now_ns, value_max) = (*began_ns, table.writer.geometry().payload_len_max());
        let [key_schema, value_schema] = table.parts.as_ref().ok_or_else(table::no_entries)?;
        let key_len = table::encode_key(&mut table.writer, key, key_schema)?;
        let found = table.writer.find(key_len);
        let previous = found.map_or(Sequence::NONE, |(_, newest)| newest);
        let removes_key = matches!(effect, Effect::Remove);
        if found.is_none() && !matches!(effect, Effect::Set(_)) {
            return Err(PublishError::UnknownKey);
        }

        // The record in the log's buffer, which holds at least its head: otherwise the log could not have been opened. The bytes of
        // the key are in the table's buffer.
        let max = log.writer.geometry().payload_len_max();
        let too_long = || PublishError::TooLong { len: None, max, limit: LenLimit::Record };
        let (head, room) = log.writer.room().split_at_mut(RECORD_HEAD_LEN);
        let (key_room, room) = room.split_at_mut_checked(key_len).ok_or_else(too_long)?;
        head.copy_from_slice(&record_head(previous.get(), removes_key));
        key_room.copy_from_slice(table.writer.held().split_at(key_len).0);
        let value_len = encode(record, schema.as_ref().ok_or_else(table::no_entries)?, room);
        let value_len = value_len.map_err(|error| LenLimit::Record.refused(error, max))?;
        let len = RECORD_HEAD_LEN + key_len + value_len;
        let (event_len_now, event_len_max) =
            (*event_len + frame_len(len), log.writer.geometry().capacity() / EVENT_PARTS);
        if event_len_now > event_len_max {
            return Err(PublishError::EventTooLong { len: event_len_now, max: event_len_max });
        }

        if log.output.gate.is_permitted() {
            // All records of the event: it is committed as a whole.
            log::admit(&mut log.writer, &mut log.output, event_len_now, (now_ns, may_wait))?;
        }

        table.writer.set_next(Sequence::new(log.writer.last().get() + lens.len() as u64 + 1));
        match effect {
            Effect::Set(value) => {
                let expected = found.map(|(cell, _)| cell);
                table::stage(&mut table.writer, (expected, now_ns), |writer| {
                    let encoded = table::encode_value(writer, key_len, *value, value_schema);
                    Ok((key_len, encoded.map_err(|error| LenLimit::FeedValue.refused(error, value_max))?))
                })?;
            }
            Effect::Keep if !table.writer.stage_again(key_len, now_ns) => {
                return Err(PublishError::DamagedValue);
            }
            Effect::Keep => {}
            Effect::Remove => _ = table.writer.stage_removal(key_len, now_ns),
        }
        records.extend_from_slice(log.writer.held().split_at(len).0);
        lens.push(len);
        *event_len = event_len_now;
        Ok(())
    }

    /// Publishes the event.
    fn commit(&mut self) -> Sequence {
        if self.lens.is_empty() {
            return self.log.newest();
        }
        let Self { log, event_len, began_ns, .. } = self;
        log::admit_again(&mut log.writer, &mut log.output, *event_len, *began_ns);
        self.commit_admitted()
    }

    /// Does the same, unless a subscriber that has joined meanwhile needs what the event overwrites.
    fn try_commit(&mut self) -> Result<Sequence, PublishError> {
        if self.lens.is_empty() {
            return Ok(self.log.newest());
        }
        let Self { log, event_len, began_ns, .. } = self;
        if log.output.gate.is_permitted() {
            let admitted = log::admit(&mut log.writer, &mut log.output, *event_len, (*began_ns, false));
            admitted.map_err(|error| self.failed(error, false))?;
        }
        Ok(self.commit_admitted())
    }

    fn commit_admitted(&mut self) -> Sequence {
        let Self { log, table, records, lens, event_len, began_ns, .. } = self;
        let began_ns = *began_ns;
        let mut rest = records.as_mut_slice();
        for (index, len) in lens.iter().enumerate() {
            let (record, behind) = rest.split_at_mut(*len);
            if index + 1 == lens.len() {
                end_event(record);
            }
            // Its length was checked, and an event is too short to be committed in parts.
            let appended = log.writer.append(record, began_ns);
            debug_assert!(appended.is_ok(), "a record of {len} bytes fits");
            log.output.add_bytes(*len);
            rest = behind;
        }
        let count = lens.len() as u64;
        records.clear();
        lens.clear();
        *event_len = 0;
        table.writer.set_next(Sequence::new(log.writer.last().get() + count));
        table::commit(&mut table.writer, &mut table.output, began_ns);
        log::commit(&mut log.writer, &mut log.output, began_ns);
        log.newest()
    }

    /// Drops the event.
    #[cold]
    fn discard(&mut self) {
        self.table.writer.discard();
        self.records.clear();
        self.lens.clear();
        self.event_len = 0;
    }
}

impl<K, R, V> FeedEventBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Adds a record, after which the key has this value; adds the key if the feed does not have it.
    ///
    /// # Errors
    ///
    /// [`PublishError::KeyTooLong`] and [`PublishError::TooLong`] when key, record or value are longer than declared,
    /// [`PublishError::Full`] when the key is new and the feed has no capacity for it, [`PublishError::EventTooLong`] when the
    /// records of the event take more than a quarter of the ring, [`PublishError::Encode`] when a type fails to encode,
    /// [`PublishError::Blocked`] when a subscriber for which the publisher waits has not read in time what the event would overwrite,
    /// [`PublishError::NodeFailed`] when the node's thread has panicked. In these cases the event is as it was before.
    pub fn update<Q>(&mut self, key: &Q, record: &R, value: &V) -> Result<(), PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        self.feed.add(key, record, (&Effect::Set(value), self.may_wait))
    }

    /// Adds a record of a key, which keeps its value.
    ///
    /// # Errors
    ///
    /// [`PublishError::UnknownKey`] when the feed does not have the key, and those of [`Self::update`].
    pub fn record<Q>(&mut self, key: &Q, record: &R) -> Result<(), PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        self.feed.add(key, record, (&Effect::Keep, self.may_wait))
    }

    /// Adds a record, after which the feed does not have the key. Its capacity is free for another one after the commit, not within
    /// this event.
    ///
    /// # Errors
    ///
    /// Those of [`Self::record`].
    pub fn remove<Q>(&mut self, key: &Q, record: &R) -> Result<(), PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        self.feed.add(key, record, (&Effect::Remove, self.may_wait))
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.feed.lens.len()
    }

    /// Returns whether the event has no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Publishes the event, and returns its sequence. An event without records is not published: this returns the sequence of the
    /// newest one.
    ///
    /// Waits only for a subscriber that has joined since the last record was added, and has yet to read what the event overwrites: up to
    /// the timeout of [`Gating`](crate::Gating). Then that subscriber is let go.
    pub fn commit(self) -> Sequence {
        self.feed.commit()
    }

    /// Publishes the event like [`Self::commit`], or fails where that would wait. The event is then as it was before: try again, or drop
    /// it. After it was published this builder has a new event, without records.
    ///
    /// # Errors
    ///
    /// [`PublishError::Blocked`] when a subscriber that has joined since the last record was added has not read yet what the event would
    /// overwrite. Nothing is published then.
    pub fn try_commit(&mut self) -> Result<Sequence, PublishError> {
        self.feed.try_commit()
    }
}

impl<K, R, V> Drop for FeedEventBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn drop(&mut self) {
        if !self.is_empty() {
            self.feed.discard();
        }
    }
}

impl<K, R, V> Drop for FeedPublisher<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn drop(&mut self) {
        // An event that was forgotten: the table would commit what is staged.
        if !self.lens.is_empty() {
            self.discard();
        }
    }
}

impl<K, R, V> fmt::Debug for FeedPublisher<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("FeedPublisher")
            .field("topic", self.topic())
            .field("newest", &self.newest())
            .field("keys", &self.len())
            .finish_non_exhaustive()
    }
}

impl<K, R, V> fmt::Debug for FeedEventBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("FeedEventBuilder").field("len", &self.len()).finish_non_exhaustive()
    }
}
