mod assembly;
mod conflated;
mod keys;
mod lines;
mod records;
mod source;
mod update;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use serde::{Serialize, de::DeserializeOwned};

use self::assembly::Assembly;
use self::conflated::Conflated;
pub(crate) use self::lines::FeedLine;
pub use self::lines::FeedLines;
use self::records::Records;
use self::source::{OneSource, RECORD_LEN_MIN};
use self::update::{Advance, Updates};
pub use self::update::{FeedEvent, FeedUpdate, RecordUpdate, ValueUpdate};
use super::deadline::{judged, within};
use super::iterate::until_end;
use super::subscription::PAUSE;
use super::table::{TableSubscriber, with_pattern, with_prefix};
use super::waiter::Membership;
use super::{
    Deadline, InlineValues, LogSubscriber, NoticePath, Position, PublisherClock, ReceiveError, Renewable,
    RenewableHandle, Sample,
};
use crate::clock::saturate;
use crate::fabric::FabricError;
use crate::id::{Delivery, Epoch, Sequence, TopicName};
use crate::limits;
use crate::repository::SubscriberStats;
use crate::repository::feed::FeedRecord;

/// Receives the events of a feed: at first the value of each key as of one event, and then every record published after it.
///
/// [`Self::try_update`] and [`Self::update_timeout`] receive one update after the other, [`Self::try_event`] and
/// [`Self::event_timeout`] whole events. All keys are received unless the subscriber asks for some, at any time: by
/// [key](Self::only_keys), [prefix](Self::only_prefix), [pattern](Self::only_glob) or [predicate](Self::only).
///
/// The subscriber joins the feed with its first receive. It begins with the values ([`FeedUpdate::Value`]) of the keys that the feed
/// has by then, all as of one event, and continues with the records of the next event. So a program that joins late, and one that
/// joins before the first event, receive in the same way.
///
/// # Losses
///
/// A subscriber that is too slow loses records, which is reported once ([`ReceiveError::Lapped`]). A loss affects only the keys of
/// the lost records: the records of all other keys are received without a gap. Those of the keys that lost some are left out until
/// their values are received in place of them. While [`Self::is_recovering`] returns true, more such values may follow.
/// [`Self::suspects`] lists the keys already known to lack records. The next receive reads the table and so finds every key whose last
/// record was lost; any other key is found when its next record arrives. Repeated losses end only if the subscriber keeps up on
/// average; one that does not should receive values instead, at its own pace, with
/// [`conflate`](crate::FeedSubscriberBuilder::conflate).
///
/// ```
/// use fabricast::{FeedUpdate, Node};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// // Trades (price, size), and for each symbol the volume of the day.
/// let mut feed = publishing.feed_publisher::<String, (f64, u64), u64>("trades").open()?;
/// feed.publish("AAPL", &(189.25, 100), &100)?;
/// feed.publish("AAPL", &(189.30, 50), &150)?;
///
/// // A late subscriber.
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut subscriber = node.feed_subscriber::<String, (f64, u64), u64>("shm:exchange/trades").open()?;
/// let mut volume = 0;
/// feed.publish("AAPL", &(189.35, 30), &180)?;
/// while let Some(update) = subscriber.try_update()? {
///     match update {
///         FeedUpdate::Value(known) => volume = known.value.unwrap_or(0),
///         FeedUpdate::Record(trade) => volume += trade.record.1,
///         _ => {}
///     }
/// }
/// assert_eq!(volume, 180);
/// # Ok(())
/// # }
/// ```
///
/// # Cost
///
/// A record costs a receive of a log, and a lookup in a map of the wanted keys. At first, after a loss, and when the interest changes,
/// the subscriber reads the entries of the wanted keys, and those of keys that it does not know yet. Over a wire that takes several
/// round trips. It allocates about 72 bytes for each key of the feed's capacity meanwhile, and the entries. The map grows with the
/// number of wanted keys.
///
/// Keys are compared by their `Eq` and `Hash`: two keys must be equal if and only if they encode to the same bytes.
///
/// Send, not Sync: it may be sent to another thread, and receives on one at a time.
///
/// Dropping the subscriber detaches it, like a [`Subscriber`](crate::Subscriber).
pub struct FeedSubscriber<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    topic: TopicName,
    table: TableSubscriber<K, V>,
    reception: Reception<K, R, V>,
    /// All keys by default.
    interest: Option<KeyPredicate<K>>,
    assembly: Assembly<K, R, V>,
    deadline: Option<Deadline>,
}

/// Whether a key is wanted.
type KeyPredicate<K> = Arc<dyn Fn(&K) -> bool + Send + Sync>;

/// How a subscriber receives.
enum Reception<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    Records(Box<Recorded<K, R, V>>),
    Conflated(Conflated),
}

/// The log of a feed, and what was received of it.
struct Recorded<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
{
    log: LogSubscriber<FeedRecord<K, R>>,
    records: Records<K, V>,
}

impl<K, R, V> Reception<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Adds the next updates, or returns the only one.
    #[inline]
    fn advance(
        &mut self,
        table: &mut TableSubscriber<K, V>,
        interest: Option<&KeyPredicate<K>>,
        updates: &mut Updates<K, R, V>,
    ) -> Result<Advance<K, R, V>, ReceiveError> {
        match self {
            Self::Records(recorded) => {
                let Recorded { log, records } = recorded.as_mut();
                let is_wanted = |key: &K| interest.is_none_or(|wants| wants(key));
                records.advance(&mut OneSource { log, table }, is_wanted, updates)
            }
            Self::Conflated(conflated) => conflated.advance(table, updates).map(Advance::from),
        }
    }

    /// Returns the log, unless the subscriber is conflated.
    fn log(&self) -> Option<&LogSubscriber<FeedRecord<K, R>>> {
        match self {
            Self::Records(it) => Some(&it.log),
            Self::Conflated(_) => None,
        }
    }
}

impl<K, R, V> FeedSubscriber<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Creates a subscriber of all records. The log was opened first.
    pub(crate) fn of_records(
        topic: TopicName,
        log: LogSubscriber<FeedRecord<K, R>>,
        table: TableSubscriber<K, V>,
    ) -> Self {
        let records = Records::new(log.last());
        Self::new(topic, table, Reception::Records(Box::new(Recorded { log, records })))
    }

    /// Creates a subscriber of values, once in this interval.
    pub(crate) fn of_values(topic: TopicName, table: TableSubscriber<K, V>, interval: Duration) -> Self {
        let clock = Arc::clone(&table.core.subscription.clock);
        Self::new(topic, table, Reception::Conflated(Conflated::new(saturate(interval), clock)))
    }

    fn new(topic: TopicName, table: TableSubscriber<K, V>, reception: Reception<K, R, V>) -> Self {
        Self { topic, table, reception, interest: None, assembly: Assembly::new(), deadline: None }
    }

    /// Sets after which time without an update or event that is reported, from now on.
    pub(crate) fn expect_within(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = Deadline::begin(deadline, &self.table.core.subscription.clock);
        self
    }

    /// Receives the next update, if there is one. Does not wait, except over a wire for the table: at first, after a loss, and when
    /// the interest changes.
    ///
    /// Allocates what decoding does, for keys that are received for the first time, and after a loss. Returns `None`, although there may
    /// be more, after 65,536 records in a row that are not wanted, or come before the first values.
    ///
    /// # Errors
    ///
    /// Those of [`Subscriber::try_receive`](crate::Subscriber::try_receive). After an error that reports a loss, values of the keys
    /// that lack records follow. [`ReceiveError::Contended`] if the table does not reach the log's events, or the log those of the table,
    /// within [`limits::ANSWER_DEADLINE_NS`], of which the time between two calls counts for a second at most; and if the table only
    /// seemed to have reached eight events. The next call tries again. After
    /// [`ReceiveError::Ended`] and [`ReceiveError::Gone`], [`Self::suspects`] has the keys that could not be completed.
    pub fn try_update(&mut self) -> Result<Option<FeedUpdate<K, R, V>>, ReceiveError> {
        let Self { table, reception, interest, assembly, .. } = self;
        let update = assembly.try_update(|updates| reception.advance(table, interest.as_ref(), updates));
        if matches!(update, Ok(None)) {
            self.rest();
        }
        judged(&mut self.deadline, update)
    }

    /// Receives the next update, waiting up to `timeout`; `None` when it expires. Waits like
    /// [`Subscriber::receive_timeout`](crate::Subscriber::receive_timeout).
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_update`].
    pub fn update_timeout(&mut self, timeout: Duration) -> Result<Option<FeedUpdate<K, R, V>>, ReceiveError> {
        self.wait_for(timeout, Self::try_update)
    }

    /// Receives the next event, if all of it is available. Of an event that is cut short by a loss it returns the part that was
    /// received, and then the error. Allocates the list of the event's updates.
    ///
    /// Updates of an event that [`Self::try_update`] has begun to receive are not part of it; it is then not whole.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_update`].
    pub fn try_event(&mut self) -> Result<Option<FeedEvent<K, R, V>>, ReceiveError> {
        let Self { table, reception, interest, assembly, .. } = self;
        let event = assembly.try_event(
            &mut (reception, table),
            |(reception, table), updates| reception.advance(table, interest.as_ref(), updates),
            |(reception, table)| event_len_max(reception.log(), table),
        );
        if matches!(event, Ok(None)) {
            self.rest();
        }
        judged(&mut self.deadline, event)
    }

    /// Receives the next event, waiting up to `timeout`; `None` when it expires.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_event`].
    pub fn event_timeout(&mut self, timeout: Duration) -> Result<Option<FeedEvent<K, R, V>>, ReceiveError> {
        self.wait_for(timeout, Self::try_event)
    }

    /// Returns an iterator over all further updates, which waits for each without a timeout. It yields losses as errors and continues
    /// after them. It ends with the feed, and after [`ReceiveError::Gone`] and [`ReceiveError::Overtaken`].
    pub fn updates(&mut self) -> impl Iterator<Item = Result<FeedUpdate<K, R, V>, ReceiveError>> + '_ {
        until_end(|| self.update_timeout(Duration::MAX))
    }

    /// Returns an iterator over all further events, like [`Self::updates`].
    pub fn events(&mut self) -> impl Iterator<Item = Result<FeedEvent<K, R, V>, ReceiveError>> + '_ {
        until_end(|| self.event_timeout(Duration::MAX))
    }

    /// Tells what waits for it when to look again, where it does not wait for the next value.
    fn rest(&self) {
        if let Some(deadline) = &self.deadline {
            let subscription = match &self.reception {
                Reception::Records(it) => &it.log.core.subscription,
                Reception::Conflated(_) => &self.table.core.subscription,
            };
            subscription.rest_until(deadline.left_ns());
        }
        match &self.reception {
            Reception::Records(it) if it.records.is_cut_due() && !it.records.is_cut_short() => {
                it.log.core.subscription.rest_for(limits::WAITER_POLL_NS);
            }
            Reception::Conflated(conflated) if conflated.rest_ns() > 0 => {
                self.table.core.subscription.rest_for(conflated.rest_ns());
            }
            Reception::Records(_) | Reception::Conflated(_) => {}
        }
    }

    /// Returns the newest value of a key; `None` if the feed does not have it. It includes every record received so far, unless the
    /// subscriber is pushed to, and may include later ones. Costs what
    /// [`TableSubscriber::get`](crate::TableSubscriber::get) does.
    ///
    /// # Errors
    ///
    /// Those of the same method there.
    pub fn get<Q>(&mut self, key: &Q) -> Result<Option<Sample<V>>, ReceiveError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        self.table.get(key)
    }

    /// Receives only these keys from now on. The values of those that were not received before follow. Changes to other keys are no
    /// longer received: discard what you hold of them.
    pub fn only_keys(&mut self, keys: impl IntoIterator<Item = impl Into<K>>)
    where
        K: Sync,
    {
        let keys: HashSet<K> = keys.into_iter().map(Into::into).collect();
        self.only(move |key| keys.contains(key));
    }

    /// Receives only the keys for which this returns true, from now on: see [`Self::only_keys`]. It is called for each record and
    /// each entry that is read, and must always give the same answer for a key.
    pub fn only(&mut self, wants: impl Fn(&K) -> bool + Send + Sync + 'static) {
        let wants: KeyPredicate<K> = Arc::new(wants);
        // First: if the predicate panics, records and table still agree on it.
        self.interest = Some(Arc::clone(&wants));
        let of_table = Arc::clone(&wants);
        self.table.only(move |key| of_table(key));
        self.assembly.retain(|key| wants(key));
        if let Reception::Records(it) = &mut self.reception {
            it.records.change_interest(it.log.last(), |key| wants(key));
        }
    }

    /// Receives only the keys that begin with this text, from now on: see [`Self::only_keys`].
    pub fn only_prefix(&mut self, prefix: &str)
    where
        K: AsRef<str>,
    {
        self.only(with_prefix(prefix));
    }

    /// Receives only the keys that match this pattern, from now on: see [`Self::only_keys`]. `*` stands for any characters, `?` for
    /// one; every other character stands for itself.
    pub fn only_glob(&mut self, pattern: &str)
    where
        K: AsRef<str>,
    {
        self.only(with_pattern(pattern));
    }

    /// Receives all keys from now on: see [`Self::only_keys`].
    pub fn all_keys(&mut self) {
        self.table.all_keys();
        self.interest = None;
        if let Reception::Records(it) = &mut self.reception {
            it.records.change_interest(it.log.last(), |_| true);
        }
    }

    /// Returns the keys that are known to lack records, until their values are received. After an error that reports a loss, the keys
    /// that it affects are known once the next receive has read the table. A key whose removal was lost is not among them: it is
    /// received as removed. If the feed has ended, and its table could not be read, these are all keys received so far, until a
    /// persistent subscriber is attached again. For a conflated subscriber these are the keys whose values are damaged in the
    /// publisher's memory. Allocates.
    pub fn suspects(&self) -> Vec<K> {
        match &self.reception {
            Reception::Records(it) => it.records.suspects(),
            Reception::Conflated(_) => self.table.suspects(),
        }
    }

    /// Returns whether records of some keys may be missing, and values in place of them are still to come: before the first values,
    /// after a loss, and after the interest has changed. Once the feed has ended, none follow: a persistent subscriber requests those that
    /// are missing when it is attached again.
    pub fn is_recovering(&self) -> bool {
        let is_behind = matches!(&self.reception, Reception::Records(it) if it.records.is_recovering());
        is_behind || self.assembly.begins_with_a_value()
    }

    /// Returns the sequence of the last record that was received, reported lost, or left out. For a conflated subscriber, of the
    /// last event that it has read.
    pub fn last(&self) -> Sequence {
        match &self.reception {
            Reception::Records(it) => it.log.last(),
            Reception::Conflated(_) => self.table.last(),
        }
    }

    /// Returns the counts so far: of records, those left out included; for a conflated subscriber of values.
    pub fn stats(&self) -> SubscriberStats {
        match &self.reception {
            Reception::Records(it) => it.log.stats(),
            Reception::Conflated(_) => self.table.stats(),
        }
    }

    /// Returns whether the publisher waits for this subscriber, or disconnects it, before it would lose a record: it has asked for that
    /// with [`slow`](crate::FeedSubscriberBuilder::slow), and the publisher has not let it go. One load.
    pub fn is_gating(&self) -> bool {
        match &self.reception {
            Reception::Records(it) => it.log.is_gating(),
            Reception::Conflated(_) => false,
        }
    }

    /// Returns how this subscriber is notified of new events at the moment.
    pub fn notice_path(&self) -> NoticePath {
        match &self.reception {
            Reception::Records(it) => it.log.notice_path(),
            Reception::Conflated(_) => self.table.notice_path(),
        }
    }

    /// Returns which records it receives from notices, without having read them in the publisher's memory: see
    /// [`Subscriber::inline_values`](crate::Subscriber::inline_values).
    pub fn inline_values(&self) -> InlineValues {
        match &self.reception {
            Reception::Records(it) => it.log.inline_values(),
            Reception::Conflated(_) => self.table.inline_values(),
        }
    }

    /// Returns the clock of the publisher, which tells how old records and values are.
    pub fn publisher_clock(&self) -> PublisherClock {
        self.table.publisher_clock()
    }

    /// Returns the name of the feed.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// Returns the name of the feed's table.
    pub fn table_topic(&self) -> &TopicName {
        self.table.topic()
    }

    /// Returns how records and values reach the subscriber.
    pub fn delivery(&self) -> Delivery {
        self.table.delivery()
    }

    /// Returns the epoch of the feed.
    pub fn epoch(&self) -> Epoch {
        self.table.epoch()
    }

    /// Repeats a poll until it returns something, for up to `timeout`.
    fn wait_for<T>(
        &mut self,
        timeout: Duration,
        mut poll: impl FnMut(&mut Self) -> Result<Option<T>, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        let mut outcome = poll(self);
        if !matches!(outcome, Ok(None)) {
            return outcome;
        }
        let clock = Arc::clone(&self.table.core.subscription.clock);
        let began_ns = clock.monotonic_ns();
        loop {
            let waited_ns = clock.monotonic_ns().saturating_sub(began_ns);
            if !matches!(outcome, Ok(None)) || waited_ns >= saturate(timeout) {
                return outcome;
            }
            self.wait(waited_ns, within(self.deadline.as_ref(), waited_ns, timeout))?;
            outcome = poll(self);
        }
    }
}

impl<K, R, V> Renewable for FeedSubscriber<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
}

impl<K, R, V> RenewableHandle for FeedSubscriber<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn wait(&mut self, waited_ns: u64, timeout: Duration) -> Result<(), FabricError> {
        match &mut self.reception {
            Reception::Records(it) if it.records.is_cut_short() => Ok(()),
            // The table's landing region is behind: nothing notifies of it.
            Reception::Records(it) if it.records.is_cut_due() => {
                self.table.core.subscription.clock.pause(PAUSE.min(timeout));
                Ok(())
            }
            Reception::Records(it) => it.log.core.wait(waited_ns, timeout),
            Reception::Conflated(conflated) => match conflated.rest_ns() {
                0 => self.table.core.wait(waited_ns, timeout),
                rest_ns => {
                    let left_ns = saturate(timeout).saturating_sub(waited_ns);
                    // The end is reported meanwhile.
                    let pause_ns = rest_ns.min(left_ns).min(END_CHECK_NS);
                    self.table.core.subscription.clock.pause(Duration::from_nanos(pause_ns));
                    Ok(())
                }
            },
        }
    }

    fn position(&self) -> Position {
        let last = match &self.reception {
            Reception::Records(it) => it.log.last().max(it.records.compared()),
            Reception::Conflated(_) => self.table.last(),
        };
        Position { incarnation: self.table.incarnation(), epoch: self.epoch(), last }
    }

    fn leave(&mut self) {
        self.table.leave();
        if let Reception::Records(it) = &mut self.reception {
            it.log.leave();
        }
    }

    fn renew(&mut self, next: Self, is_same_epoch: bool) {
        let Self { table, reception, .. } = next;
        self.table.renew(table, is_same_epoch);
        if let (Reception::Records(it), Reception::Records(next)) = (&mut self.reception, reception) {
            it.log.renew(next.log, is_same_epoch);
            if is_same_epoch {
                it.records.renew(it.log.last());
            } else {
                it.records = next.records;
            }
        }
        if !is_same_epoch {
            self.assembly = Assembly::new();
        }
    }

    fn join(&mut self, membership: Option<Arc<Membership>>) {
        match &mut self.reception {
            Reception::Records(it) => it.log.join(membership),
            Reception::Conflated(_) => self.table.core.subscription.join(membership),
        }
    }
}

/// The most updates of an event: as many records as fit into its part of the ring, or the values of all keys.
fn event_len_max<K, R, V>(
    log: Option<&LogSubscriber<FeedRecord<K, R>>>,
    table: &TableSubscriber<K, V>,
) -> usize
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    let records_max =
        log.map_or(0, |log| log.core.subscription.granted.geometry.region_len() / RECORD_LEN_MIN);
    // A key may be removed and added again in one reading.
    records_max.max(2 * table.core.reader.geometry().capacity())
}

/// How often a conflated subscriber checks for the end.
const END_CHECK_NS: u64 = 50_000_000;

impl<K, R, V> fmt::Debug for FeedSubscriber<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("FeedSubscriber")
            .field("topic", &self.topic)
            .field("delivery", &self.table.delivery())
            .field("is_conflated", &matches!(self.reception, Reception::Conflated(_)))
            .finish_non_exhaustive()
    }
}
