use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use serde::{Serialize, de::DeserializeOwned};

use super::assembly::Assembly;
use super::records::Records;
use super::source::{CutReading, CutScan, FeedSource, KnownCut, read_cut};
use super::update::{FeedEvent, FeedUpdate};
use super::{KeyPredicate, event_len_max};
use crate::fabric::FabricError;
use crate::id::{Epoch, Kind, Sequence};
use crate::payload::Payload as _;
use crate::repository::feed::FeedRecord;
use crate::repository::{Arbiter, Arrival, Verdict};
use crate::subscriber::deadline::{judged, within};
use crate::subscriber::iterate::endlessly;
use crate::subscriber::lines::{LineReport, LineSet, LineSource, Waiting};
use crate::subscriber::offer::Offer;
use crate::subscriber::subscription::PAUSE;
use crate::subscriber::table::{TableSubscriber, with_pattern, with_prefix};
use crate::subscriber::waiter::Membership;
use crate::subscriber::{
    Deadline, LogSubscriber, Position, ReceiveError, Renewable, RenewableHandle, Sample, SubscriberError,
};

/// Passes over the table of a line whose entries may be intact, before a cut with damaged ones is taken of another line.
const PASSES_AWAITED: u32 = 64;

/// A subscriber of several publishers of the same feed, its lines: see [`Lines`](crate::Lines). It receives each record once, from the
/// line that brings it first. [`lines`](crate::FeedSubscriberBuilder::lines) begins one.
///
/// It receives like a [`FeedSubscriber`](crate::FeedSubscriber), and never ends. Records are lost only if no line has them
/// ([`ReceiveError::Missing`]); the values of their keys then follow, from whichever line has reached the same event.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::{Epoch, FeedUpdate, Node};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// // Epochs are shown in hexadecimal: this is the 23rd of November 2026.
/// let today = Epoch::new(0x2026_1123).ok_or("zero")?;
/// let a = Node::builder().name("a")?.runtime_dir(dir.path()).open()?;
/// let b = Node::builder().name("b")?.runtime_dir(dir.path()).open()?;
/// let mut feed_a = a.feed_publisher::<String, u64, u64>("trades").epoch(today).open()?;
/// let mut feed_b = b.feed_publisher::<String, u64, u64>("trades").epoch(today).open()?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let builder = node.feed_subscriber::<String, u64, u64>("shm:a/trades").lines(["shm:b/trades"]);
/// let mut subscriber = builder.open()?;
/// assert!(subscriber.try_update()?.is_none());
/// feed_a.publish("AAPL", &100, &100)?;
/// drop((feed_a, a));
/// feed_b.publish("AAPL", &100, &100)?;
/// feed_b.publish("AAPL", &50, &150)?;
/// for expected in [100, 50] {
///     let update = subscriber.update_timeout(Duration::from_secs(5))?;
///     let Some(FeedUpdate::Record(trade)) = update else { return Err("not a record".into()) };
///     assert_eq!(trade.record, expected);
/// }
/// # Ok(())
/// # }
/// ```
///
/// Send, not Sync: it may be sent to another thread, and receives on one at a time.
pub struct FeedLines<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    pub(in crate::subscriber) set: LineSet<FeedLine<K, R, V>>,
    /// What was received; from the first publisher on.
    records: Option<Records<K, V>>,
    /// How often lines had attached when the tables were last read.
    attachments: u64,
    /// All keys by default.
    interest: Option<KeyPredicate<K>>,
    assembly: Assembly<K, R, V>,
    deadline: Option<Deadline>,
}

/// The log and the table of one line.
pub(crate) struct FeedLine<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    log: LogSubscriber<FeedRecord<K, R>>,
    table: TableSubscriber<K, V>,
}

impl<K, R, V> FeedLine<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// A line of this log and this table. The log was opened first.
    pub(crate) fn new(log: LogSubscriber<FeedRecord<K, R>>, table: TableSubscriber<K, V>) -> Self {
        Self { log, table }
    }

    /// Continues to read the table. Returns a cut without damaged entries, and keeps one with them; records that the table may still
    /// have an intact one. Fails if its publisher is gone, and has left nothing of the kind: then the line seeks the next one.
    fn read_cut(
        &mut self,
        at_least: Sequence,
        reading: &mut CutReading<K, V>,
        is_awaited: &mut bool,
    ) -> Result<Option<KnownCut<K, V>>, ReceiveError> {
        let of = self.table.incarnation();
        if reading.is_damaged(of) || reading.avoided == Some(of) {
            return Ok(None);
        }
        // Loaded before the table is read: it is complete at its end.
        let has_ended = self.table.core.subscription.has_ended();
        // A landing region may be behind, and so may a publisher.
        let is_before = self.table.core.is_before(at_least);
        let cut = if is_before { None } else { read_cut(&mut self.table, &mut reading.scans)? };
        match cut.filter(|cut| cut.sequence >= at_least) {
            Some(cut) if cut.unreadable == 0 => return Ok(Some(cut)),
            Some(cut) => reading.keep_damaged(of, cut),
            None => {
                let scan = reading.scans.iter().find(|scan| scan.of == of);
                let may_come =
                    !is_before && scan.is_some_and(|CutScan { scan, .. }| scan.passes() < PASSES_AWAITED);
                *is_awaited |= may_come;
                if has_ended && !may_come {
                    self.table.core.subscription.check_end()?;
                }
            }
        }
        Ok(None)
    }
}

impl<K, R, V> FeedLines<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    pub(crate) fn new(set: LineSet<FeedLine<K, R, V>>, deadline: Option<Duration>) -> Self {
        let deadline = Deadline::begin(deadline, set.clock());
        Self { set, records: None, attachments: 0, interest: None, assembly: Assembly::new(), deadline }
    }

    /// Receives the next update, if a line has it, like [`FeedSubscriber::try_update`](crate::FeedSubscriber::try_update).
    ///
    /// # Errors
    ///
    /// Those of the same method there, except [`ReceiveError::Ended`] and [`ReceiveError::Gone`]; [`ReceiveError::Missing`] in place of
    /// other losses, [`ReceiveError::OutOfStep`], [`ReceiveError::Restarted`] and [`ReceiveError::NotResumed`].
    pub fn try_update(&mut self) -> Result<Option<FeedUpdate<K, R, V>>, ReceiveError> {
        let received = self.next_update();
        if let (Ok(None), Some(deadline)) = (&received, &self.deadline) {
            self.set.each_line(|line| line.rest_until(deadline.left_ns()));
        }
        judged(&mut self.deadline, received)
    }

    fn next_update(&mut self) -> Result<Option<FeedUpdate<K, R, V>>, ReceiveError> {
        let Some((records, set, interest, assembly)) = self.parts()? else {
            self.set.rest(false);
            return Ok(None);
        };
        let is_wanted = |key: &K| interest.is_none_or(|wants| wants(key));
        let update = assembly.try_update(|updates| records.advance(set, is_wanted, updates));
        self.renew_after(update)
    }

    /// Receives the next update, waiting up to `timeout` for it, or for a publisher and it; `None` when it expires.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_update`].
    pub fn update_timeout(&mut self, timeout: Duration) -> Result<Option<FeedUpdate<K, R, V>>, ReceiveError> {
        self.wait_for(timeout, Self::try_update)
    }

    /// Receives the next event, if all of it is available, like [`FeedSubscriber::try_event`](crate::FeedSubscriber::try_event).
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_update`].
    pub fn try_event(&mut self) -> Result<Option<FeedEvent<K, R, V>>, ReceiveError> {
        let received = self.next_event();
        if let (Ok(None), Some(deadline)) = (&received, &self.deadline) {
            self.set.each_line(|line| line.rest_until(deadline.left_ns()));
        }
        judged(&mut self.deadline, received)
    }

    fn next_event(&mut self) -> Result<Option<FeedEvent<K, R, V>>, ReceiveError> {
        let Some((records, set, interest, assembly)) = self.parts()? else {
            self.set.rest(false);
            return Ok(None);
        };
        let is_wanted = |key: &K| interest.is_none_or(|wants| wants(key));
        let event = assembly.try_event(
            set,
            |set, updates| records.advance(set, is_wanted, updates),
            |set| {
                set.subscribers().map(|line| event_len_max(Some(&line.log), &line.table)).max().unwrap_or(0)
            },
        );
        self.renew_after(event)
    }

    /// Receives the next event, waiting up to `timeout` for it, or for a publisher and it; `None` when it expires.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_update`].
    pub fn event_timeout(&mut self, timeout: Duration) -> Result<Option<FeedEvent<K, R, V>>, ReceiveError> {
        self.wait_for(timeout, Self::try_event)
    }

    /// Returns an iterator over all further updates, which waits for each without a timeout. It yields losses as errors and continues
    /// after them. It never ends.
    pub fn updates(&mut self) -> impl Iterator<Item = Result<FeedUpdate<K, R, V>, ReceiveError>> + '_ {
        endlessly(|| self.update_timeout(Duration::MAX))
    }

    /// Returns an iterator over all further events, like [`Self::updates`].
    pub fn events(&mut self) -> impl Iterator<Item = Result<FeedEvent<K, R, V>, ReceiveError>> + '_ {
        endlessly(|| self.event_timeout(Duration::MAX))
    }

    /// Receives only these keys from now on: see [`FeedSubscriber::only_keys`](crate::FeedSubscriber::only_keys).
    pub fn only_keys(&mut self, keys: impl IntoIterator<Item = impl Into<K>>)
    where
        K: Sync,
    {
        let keys: HashSet<K> = keys.into_iter().map(Into::into).collect();
        self.only(move |key| keys.contains(key));
    }

    /// Receives only the keys for which this returns true, from now on: see [`FeedSubscriber::only`](crate::FeedSubscriber::only).
    pub fn only(&mut self, wants: impl Fn(&K) -> bool + Send + Sync + 'static) {
        let wants: KeyPredicate<K> = Arc::new(wants);
        self.interest = Some(Arc::clone(&wants));
        let of_tables = Arc::clone(&wants);
        self.set.configure(move |line| {
            let wants = Arc::clone(&of_tables);
            line.table.only(move |key| wants(key));
        });
        self.assembly.retain(|key| wants(key));
        if let Some(records) = &mut self.records {
            records.change_interest(self.set.last(), |key| wants(key));
        }
    }

    /// Receives only the keys that begin with this text, from now on: see [`Self::only_keys`].
    pub fn only_prefix(&mut self, prefix: &str)
    where
        K: AsRef<str>,
    {
        self.only(with_prefix(prefix));
    }

    /// Receives only the keys that match this pattern, from now on: see
    /// [`FeedSubscriber::only_glob`](crate::FeedSubscriber::only_glob).
    pub fn only_glob(&mut self, pattern: &str)
    where
        K: AsRef<str>,
    {
        self.only(with_pattern(pattern));
    }

    /// Receives all keys from now on: see [`Self::only_keys`].
    pub fn all_keys(&mut self) {
        self.interest = None;
        self.set.configure(|line| line.table.all_keys());
        if let Some(records) = &mut self.records {
            records.change_interest(self.set.last(), |_| true);
        }
    }

    /// Returns the keys that are known to lack records: see [`FeedSubscriber::suspects`](crate::FeedSubscriber::suspects). Allocates.
    pub fn suspects(&self) -> Vec<K> {
        self.records.as_ref().map(Records::suspects).unwrap_or_default()
    }

    /// Returns whether values in place of missing records are still to come: see
    /// [`FeedSubscriber::is_recovering`](crate::FeedSubscriber::is_recovering).
    pub fn is_recovering(&self) -> bool {
        self.records.as_ref().is_none_or(Records::is_recovering) || self.assembly.begins_with_a_value()
    }

    /// Returns what is known of each line, in the order in which they were given. Allocates.
    pub fn report(&self) -> Vec<LineReport> {
        self.set.report()
    }

    /// Returns why the publisher of a line was not found when this was opened: see [`Lines::open_error`](crate::Lines::open_error).
    pub fn open_error(&self, index: usize) -> Option<&SubscriberError> {
        self.set.line(index)?.open_error()
    }

    /// Returns the sequence of the last record that was received, reported missing, or left out.
    pub fn last(&self) -> Sequence {
        self.set.last()
    }

    /// Returns the epoch that is received; `None` before the first publisher was found.
    pub fn epoch(&self) -> Option<Epoch> {
        self.set.epoch()
    }

    /// Returns how many records were reported missing.
    pub fn missing(&self) -> u64 {
        self.set.missing()
    }

    /// Returns what receives; `None` before the first publisher is found.
    #[expect(clippy::type_complexity, reason = "they are borrowed apart")]
    fn parts(
        &mut self,
    ) -> Result<
        Option<(
            &mut Records<K, V>,
            &mut LineSet<FeedLine<K, R, V>>,
            Option<&KeyPredicate<K>>,
            &mut Assembly<K, R, V>,
        )>,
        ReceiveError,
    > {
        let Self { set, records, attachments, interest, assembly, .. } = self;
        if records.is_none() {
            set.seek()?;
            if set.current().is_none() {
                return Ok(None);
            }
            *records = Some(Records::new(set.last()));
        }
        if let Some(records) = records.as_mut().filter(|records| !records.is_recovering()) {
            // A publisher that was found since may have the values that none could read.
            let before = std::mem::replace(attachments, set.attachments());
            if before != *attachments {
                records.compare_unreadable(set.last());
            }
        }
        Ok(records.as_mut().map(|records| (records, set, interest.as_ref(), assembly)))
    }

    /// Begins again if the publishers have. Rests where nothing was received.
    fn renew_after<T>(
        &mut self,
        received: Result<Option<T>, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        if matches!(received, Ok(None)) && !self.is_cut_short() {
            self.set.rest(self.records.as_ref().is_some_and(Records::is_cut_due));
        }
        if matches!(received, Err(ReceiveError::Restarted { .. })) {
            (self.records, self.assembly) = (None, Assembly::new());
        }
        received
    }

    /// Whether the last receive has left out so many records that there may be more.
    fn is_cut_short(&self) -> bool {
        self.records.as_ref().is_some_and(Records::is_cut_short)
    }

    /// Repeats a poll until it returns something, for up to `timeout`.
    fn wait_for<T>(
        &mut self,
        timeout: Duration,
        poll: impl Fn(&mut Self) -> Result<Option<T>, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        let mut waiting = Waiting::new(self.set.clock(), timeout);
        loop {
            let received = poll(self);
            if !matches!(received, Ok(None)) {
                return received;
            }
            let Some(waited_ns) = waiting.waited_ns() else { return received };
            let timeout = within(self.deadline.as_ref(), waited_ns, timeout);
            if self.is_cut_short() {
                continue;
            }
            if self.set.is_attached() && self.records.as_ref().is_some_and(Records::is_cut_due) {
                // Nothing notifies of the table.
                self.set.clock().pause(PAUSE.min(timeout));
            } else {
                self.set.wait(waited_ns, timeout)?;
            }
        }
    }
}

/// The lines that have or had a publisher of the epoch that is received.
fn same_epoch<K, R, V>(set: &LineSet<FeedLine<K, R, V>>) -> impl Iterator<Item = &FeedLine<K, R, V>>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    set.subscribers().filter(|line| Some(line.table.epoch()) == set.epoch())
}

impl<K, R, V> FeedSource<K, R, V> for LineSet<FeedLine<K, R, V>>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn last(&self) -> Sequence {
        self.last()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.epoch()
    }

    fn now_ns(&self) -> u64 {
        self.clock().monotonic_ns()
    }

    fn capacity(&self) -> usize {
        self.subscribers().map(|line| line.table.core.reader.geometry().capacity()).max().unwrap_or(0)
    }

    fn try_record(&mut self) -> Result<Option<Sample<FeedRecord<K, R>>>, ReceiveError> {
        self.try_next()
    }

    fn newest(&self) -> Option<Sequence> {
        let newest = same_epoch(self).map(|line| line.log.core.newest());
        newest.reduce(|one, other| Some(one?.max(other?))).flatten()
    }

    /// Also of lines whose publishers are gone: the cut may be of one of them, and the others still before it.
    fn is_before(&self, sequence: Sequence) -> bool {
        same_epoch(self).all(|line| line.table.core.is_before(sequence))
    }

    fn is_beyond_end(&self, _: Sequence) -> bool {
        false
    }

    fn give_up(&mut self, _: Sequence) -> Option<(Sequence, u64)> {
        None
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn is_attached(&self) -> bool {
        self.is_attached()
    }

    /// Takes a cut without damaged entries of whichever line has one first. If the tables of all lines that have reached the event have
    /// damaged entries, it takes the cut with the fewest of them.
    fn read_cut(
        &mut self,
        at_least: Sequence,
        _: bool,
        reading: &mut CutReading<K, V>,
    ) -> Result<Option<KnownCut<K, V>>, ReceiveError> {
        self.seek()?;
        if self.in_step().len() < 2 {
            reading.avoided = None;
        }
        let mut is_awaited = false;
        let answer = self.ask(|line| line.read_cut(at_least, reading, &mut is_awaited));
        if matches!(answer, Ok(Some(_))) {
            return answer;
        }
        self.begin_again()?;
        match reading.damaged.take_if(|_| !is_awaited) {
            Some(damaged) => Ok(Some(damaged)),
            None => answer,
        }
    }
}

impl<K, R, V> LineSource for FeedLine<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    type Item = FeedRecord<K, R>;

    const VALUES_COME_FIRST: bool = true;

    fn arbiter(&self) -> Box<dyn Arbiter> {
        self.log.arbiter()
    }

    fn kind(&self) -> Kind {
        self.log.kind()
    }

    #[inline]
    fn try_offer(
        &mut self,
        judge: impl FnOnce(&Arrival<'_>) -> Verdict,
    ) -> Result<Option<Offer<FeedRecord<K, R>>>, ReceiveError> {
        self.log.core.try_offer(judge, |bytes, _| FeedRecord::<K, R>::decode(bytes))
    }

    fn check_end(&self) -> Result<(), ReceiveError> {
        self.log.core.subscription.check_end()
    }

    fn complete(&self) -> Sequence {
        self.log.last()
    }

    fn has_key(&self, _: &[u8]) -> bool {
        true
    }
}

impl<K, R, V> Renewable for FeedLine<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
}

impl<K, R, V> RenewableHandle for FeedLine<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn wait(&mut self, waited_ns: u64, timeout: Duration) -> Result<(), FabricError> {
        self.log.core.wait(waited_ns, timeout)
    }

    fn position(&self) -> Position {
        self.log.position()
    }

    fn leave(&mut self) {
        self.log.leave();
        self.table.leave();
    }

    fn renew(&mut self, next: Self, is_same_epoch: bool) {
        self.log.renew(next.log, is_same_epoch);
        self.table.renew(next.table, is_same_epoch);
    }

    fn join(&mut self, membership: Option<Arc<Membership>>) {
        self.log.join(membership);
    }
}

impl<K, R, V> fmt::Debug for FeedLines<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("FeedLines").field("lines", &self.report()).finish_non_exhaustive()
    }
}
