//! The records of a feed, and the values of keys that lack records.
//!
//! A reader joins, and recovers from a loss, in the same way. It reads the table as of one event (the *cut*), goes on with the log
//! up to the same event, and compares the two there: the keys whose entries have another sequence than the last record received
//! lack records, and their values are received in place of them. Until then records of such keys are left out.

use std::hash::Hash;

use serde::{Serialize, de::DeserializeOwned};

use super::keys::{Keys, RecordLink};
use super::update::{Advance, EventEnd, FeedUpdate, RecordUpdate, Updates, ValueUpdate};
use crate::id::{Meta, Sequence};
use crate::limits;
use crate::payload::Payload as _;
use crate::repository::feed::FeedRecord;
use crate::repository::table::{SnapshotEntry as SnapshotBytes, SnapshotScan};
use crate::subscriber::table::{SnapshotEntry, TableSubscriber};
use crate::subscriber::{LogSubscriber, ReceiveError, RenewableHandle as _, Sample};

/// Passes over the table after the feed has ended, when nothing changes it.
const PASSES_LAST: u32 = 64;

/// A reader of a feed's records.
pub(super) struct Records<K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    pub(super) log: LogSubscriber<FeedRecord<K, R>>,
    keys: Keys<K>,
    cut: Cut<K, V>,
    /// The event of the last cut that was compared.
    compared: Sequence,
    /// The first cut was received.
    has_joined: bool,
    /// The log has ended, and all its records were received.
    is_over: bool,
    /// It has ended before the first cut, which was reported.
    is_cut_off: bool,
    /// The feed has ended, and its table cannot be read.
    is_table_given_up: bool,
    /// Nothing of the current event is missing so far.
    is_whole: bool,
    /// A part of the current event was received.
    has_begun: bool,
    /// When the newest record received was published, ns since the Unix epoch.
    published_ns: u64,
    /// A record is being decoded: if that panics, nothing else shows that it was lost.
    is_decoding: bool,
}

/// A cut through the feed.
enum Cut<K, V> {
    /// None is needed.
    None,
    /// One of this event or a later one, to be read from the table.
    Due {
        at_least: Sequence,
        /// When it was first read in vain, ns of the node's clock.
        since_ns: Option<u64>,
        /// Any key may lack records; otherwise only those that are suspect.
        is_for_all: bool,
        scan: Option<SnapshotScan>,
    },
    /// It is known, and the log is read up to the same event.
    Ahead {
        cut: KnownCut<K, V>,
        /// Since when, ns of the node's clock, the log has not moved on from this record.
        since: Option<(Sequence, u64)>,
        /// Records up to the cut and after it are lost: another one is needed behind it.
        is_overtaken: bool,
        /// Records before it are lost: their keys are suspect from the next receive on.
        has_lost: bool,
    },
}

/// The entries of the table as of one event.
struct KnownCut<K, V> {
    sequence: Sequence,
    entries: Vec<SnapshotEntry<K, V>>,
    /// How many are damaged, or not of the type.
    unreadable: usize,
    /// Those of them whose keys are known.
    unreadable_keys: Vec<K>,
}

impl<K, R, V> Records<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    pub(super) fn new(log: LogSubscriber<FeedRecord<K, R>>, capacity: usize) -> Self {
        let mut records = Self {
            log,
            keys: Keys::new(capacity),
            cut: Cut::None,
            compared: Sequence::NONE,
            has_joined: false,
            is_over: false,
            is_cut_off: false,
            is_table_given_up: false,
            is_whole: true,
            has_begun: false,
            published_ns: 0,
            is_decoding: false,
        };
        records.compare_again(true);
        records
    }

    /// Returns the suspect keys.
    pub(super) fn suspects(&self) -> Vec<K> {
        self.keys.suspects()
    }

    /// Returns the last record that was received, or whose effect is in the values that were.
    pub(super) fn covered(&self) -> Sequence {
        self.log.last().max(self.compared)
    }

    /// Continues with the next subscription of the log. Of the same epoch, it begins after [`Self::covered`].
    pub(super) fn renew(&mut self, next: Self, is_same_epoch: bool) {
        let Self { log, keys, .. } = next;
        self.log.renew(log, is_same_epoch);
        (self.is_over, self.is_cut_off, self.is_table_given_up) = (false, false, false);
        if !is_same_epoch {
            (self.keys, self.compared) = (keys, Sequence::NONE);
            (self.has_joined, self.has_begun, self.is_whole) = (false, false, true);
        }
        if !self.has_joined || self.keys.has_suspects() {
            self.compare_again(true);
        }
    }

    /// Returns whether the table has to be read.
    pub(super) fn is_cut_due(&self) -> bool {
        matches!(self.cut, Cut::Due { .. })
    }

    /// Returns whether the log and the table have to be compared.
    pub(super) fn is_recovering(&self) -> bool {
        !matches!(self.cut, Cut::None)
    }

    /// Forgets the keys that are not wanted, and requests the values of those that were not wanted before.
    pub(super) fn change_interest(&mut self, is_wanted: impl Fn(&K) -> bool) {
        self.is_whole &= !self.has_begun;
        self.compare_again(true);
        self.keys.retain(is_wanted);
    }

    /// Adds the next updates, or returns the only one.
    pub(super) fn advance(
        &mut self,
        table: &mut TableSubscriber<K, V>,
        is_wanted: impl Fn(&K) -> bool,
        updates: &mut Updates<K, R, V>,
    ) -> Result<Advance<K, R, V>, ReceiveError> {
        if std::mem::take(&mut self.is_decoding) {
            self.is_whole = false;
            self.compare_again(true);
        }
        self.suspect_lost();
        match &self.cut {
            Cut::Due { .. } => return self.read_cut(table).map(Advance::from),
            Cut::Ahead { cut, is_overtaken, .. } if self.log.last() >= cut.sequence || self.is_over => {
                let is_overtaken = *is_overtaken;
                self.compare(updates);
                if is_overtaken {
                    self.is_whole = false;
                    self.compare_again(true);
                }
                return Ok(Advance::More);
            }
            Cut::None | Cut::Ahead { .. } => {}
        }
        self.is_decoding = true;
        let received = self.log.core.try_receive_decoded(|bytes, _| FeedRecord::<K, R>::decode(bytes));
        let advanced = match received {
            Ok(Some(sample)) => Ok(self.take(sample, is_wanted, updates)),
            Ok(None) => self.check_deadline().map(|()| Advance::Nothing),
            Err(error) => self.fail(error, updates),
        };
        self.is_decoding = false;
        advanced
    }

    /// Suspects the keys whose last records were lost before the cut. Not at once: the loss is reported first.
    fn suspect_lost(&mut self) {
        let Cut::Ahead { cut, has_lost, .. } = &mut self.cut else { return };
        if std::mem::take(has_lost) {
            let last = self.log.last();
            let lost = cut.entries.iter().filter(|entry| entry.meta.sequence <= last);
            lost.for_each(|entry| self.keys.suspect_unless(&entry.key, entry.meta.sequence));
        }
    }

    /// Takes a record.
    #[inline]
    fn take(
        &mut self,
        sample: Sample<FeedRecord<K, R>>,
        is_wanted: impl Fn(&K) -> bool,
        updates: &mut Updates<K, R, V>,
    ) -> Advance<K, R, V> {
        let Sample { value: FeedRecord { previous, ends_event, removes_key, key, value }, meta, .. } = sample;
        self.published_ns = meta.published_ns;
        self.has_begun = !ends_event;
        let mut update = None;
        if self.has_joined && is_wanted(&key) {
            let link = RecordLink { sequence: meta.sequence, previous: Sequence::new(previous), removes_key };
            match self.keys.take(&key, link) {
                Some(number) => {
                    let record = RecordUpdate { key, record: value, meta, number, removes_key, ends_event };
                    update = Some(FeedUpdate::Record(record));
                }
                None => self.miss(),
            }
        }
        if !ends_event {
            update.into_iter().for_each(|update| updates.add(update));
            return Advance::More;
        }
        let end = EventEnd { sequence: meta.sequence, is_whole: std::mem::replace(&mut self.is_whole, true) };
        updates.end_with(update, end).map_or(Advance::More, Advance::Update)
    }

    /// Leaves out a record whose key lacks records before it.
    #[cold]
    fn miss(&mut self) {
        self.is_whole = false;
        if matches!(self.cut, Cut::None) && !self.is_table_given_up {
            self.compare_again(false);
        }
    }

    /// Handles a failure of the log. Returns whether there may be more updates.
    #[cold]
    fn fail(
        &mut self,
        error: ReceiveError,
        updates: &mut Updates<K, R, V>,
    ) -> Result<Advance<K, R, V>, ReceiveError> {
        use ReceiveError::{Contended, Contradicted, CutOff, Ended, Fabric, Gone};
        match error {
            Contended { .. } | Fabric(_) => return Err(error),
            Ended { .. } | Gone { .. } if self.is_over && matches!(self.cut, Cut::None) => {
                let (first_lost, count) = (Sequence::NONE.next(), self.log.last().get());
                let is_lost = !self.has_joined && !self.is_cut_off && count > 0;
                self.is_cut_off |= is_lost;
                return Err(if is_lost { CutOff { first_lost, count } } else { error });
            }
            Ended { .. } | Gone { .. } => {
                self.is_over = true;
                if std::mem::take(&mut self.has_begun) && matches!(self.cut, Cut::None) {
                    // The event will not be complete: its values are, or none counts as such.
                    self.is_whole = false;
                    self.compare_again(true);
                }
                updates.fail(None);
                return Ok(Advance::More);
            }
            Contradicted { first, .. } => self.keys.suspect_from(first),
            _ => {}
        }
        (self.is_whole, self.has_begun) = (false, false);
        let has_joined = self.has_joined;
        match &mut self.cut {
            // The cut has what was lost.
            Cut::Ahead { cut, has_lost, .. } if self.log.last() <= cut.sequence => *has_lost = has_joined,
            Cut::Ahead { is_overtaken, .. } => {
                *is_overtaken = true;
                if !has_joined {
                    // What was lost after the cut is reported after its values.
                    self.compare(updates);
                    self.is_whole = false;
                    self.compare_again(true);
                    updates.fail(Some(error));
                    return Ok(Advance::More);
                }
            }
            Cut::None | Cut::Due { .. } => self.compare_again(true),
        }
        // What was lost before the first cut is part of it.
        updates.fail(Some(error).filter(|_| has_joined));
        Ok(Advance::More)
    }

    /// Fails if the log has not reached the cut for long.
    fn check_deadline(&mut self) -> Result<(), ReceiveError> {
        let Cut::Ahead { since, .. } = &mut self.cut else { return Ok(()) };
        let now_ns = self.log.core.subscription.clock.monotonic_ns();
        let last = self.log.last();
        let (_, since_ns) = *since.filter(|(at, _)| *at == last).as_ref().unwrap_or(&(last, now_ns));
        *since = Some((last, since_ns));
        if now_ns.saturating_sub(since_ns) < limits::ANSWER_DEADLINE_NS {
            return Ok(());
        }
        *since = Some((last, now_ns));
        Err(ReceiveError::Contended { attempts: 1 })
    }

    /// Requests a cut of the last record or a later event.
    fn compare_again(&mut self, is_for_all: bool) {
        let at_least = self.log.last();
        self.cut = Cut::Due { at_least, since_ns: None, is_for_all, scan: None };
    }

    /// Reads the cut. Returns false if the table has not reached it.
    fn read_cut(&mut self, table: &mut TableSubscriber<K, V>) -> Result<bool, ReceiveError> {
        let Cut::Due { at_least, since_ns, is_for_all, scan } = &mut self.cut else { return Ok(true) };
        // Loaded before the table is read: both are complete at their end.
        let has_ended = self.log.core.subscription.has_ended() && table.core.subscription.has_ended();
        // Taken away meanwhile: a panic in a predicate leaves it in the middle of a cell.
        let mut current = scan.take().unwrap_or_else(|| SnapshotScan::new(&table.core.reader));
        // A landing region may be behind.
        let is_behind = !has_ended && table.core.is_before(*at_least);
        let read = if is_behind { Ok(None) } else { read_cut(table, &mut current) };
        let is_given_up = match read {
            Ok(Some(cut)) if cut.sequence >= *at_least => {
                // Keys whose last record was lost.
                let is_lost =
                    |entry: &&SnapshotEntry<K, V>| self.has_joined && entry.meta.sequence <= *at_least;
                let lost = cut.entries.iter().filter(is_lost);
                lost.for_each(|entry| self.keys.suspect_unless(&entry.key, entry.meta.sequence));
                self.cut = Cut::Ahead { cut, since: None, is_overtaken: false, has_lost: false };
                return Ok(true);
            }
            Ok(Some(_)) => has_ended,
            Ok(None) => {
                let is_given_up = has_ended && current.passes() >= PASSES_LAST;
                *scan = Some(current);
                is_given_up
            }
            Err(error) if !has_ended => return Err(error),
            Err(_) => true,
        };
        if is_given_up {
            if *is_for_all {
                // Nothing tells which keys lack records: none counts as complete.
                self.keys.suspect_from(Sequence::NONE);
            }
            (self.cut, self.is_table_given_up) = (Cut::None, true);
            return Ok(true);
        }
        let clock = &self.log.core.subscription.clock;
        let now_ns = clock.monotonic_ns();
        let waited_ns = now_ns.saturating_sub(*since_ns.get_or_insert(now_ns));
        if waited_ns < limits::ANSWER_DEADLINE_NS {
            return Ok(false);
        }
        *since_ns = Some(now_ns);
        Err(ReceiveError::Contended { attempts: scan.as_ref().map_or(1, SnapshotScan::passes) })
    }

    /// Compares the cut with what was received up to the same event, and adds the values of the keys that lack records.
    fn compare(&mut self, updates: &mut Updates<K, R, V>) {
        let Cut::Ahead { cut, .. } = std::mem::replace(&mut self.cut, Cut::None) else { return };
        let KnownCut { sequence, entries, unreadable, unreadable_keys } = cut;
        self.keys.begin_comparison();
        for entry in entries {
            let (last, number) = (entry.meta.sequence, entry.number);
            if self.keys.compare(&entry.key, last, number) {
                let (key, value, meta) = (entry.key, Some(entry.value), entry.meta);
                updates.add(FeedUpdate::Value(ValueUpdate { key, value, meta, number, ends_event: false }));
            }
        }
        let has_unknown = unreadable > unreadable_keys.len();
        unreadable_keys.into_iter().for_each(|key| self.keys.keep_suspect(key));
        if has_unknown {
            // One of them may have any key that was not found.
            self.keys.keep_absent();
        }
        let (epoch, published_ns) = (self.log.epoch(), self.published_ns);
        for (key, number) in self.keys.end_comparison() {
            let meta = Meta { sequence, epoch, published_ns };
            updates.add(FeedUpdate::Value(ValueUpdate { key, value: None, meta, number, ends_event: false }));
        }
        updates.end(EventEnd { sequence, is_whole: unreadable == 0 });
        if unreadable > 0 {
            updates.fail(Some(ReceiveError::UnreadableValues { count: unreadable }));
        }
        (self.has_joined, self.is_whole, self.compared) = (true, true, sequence);
    }
}

/// Continues to read the table, for one pass. `None` if it is not complete yet.
fn read_cut<K, V>(
    table: &mut TableSubscriber<K, V>,
    scan: &mut SnapshotScan,
) -> Result<Option<KnownCut<K, V>>, ReceiveError>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    let Some(sequence) = table.core.continue_snapshot(scan)? else { return Ok(None) };
    let (mut entries, mut unreadable, mut unreadable_keys) = (Vec::new(), scan.damaged(), Vec::new());
    for entry in scan.entries(&table.core.reader) {
        let SnapshotBytes { bytes, key_len, number, meta } = entry;
        match <(K, Option<V>)>::decode(bytes) {
            Ok((key, Some(value))) => entries.push(SnapshotEntry { key, value, meta, number }),
            Ok((_, None)) | Err(_) => {
                unreadable += 1;
                unreadable_keys.extend(bytes.get(..key_len).and_then(|key| K::decode(key).ok()));
            }
        }
    }
    Ok(Some(KnownCut { sequence, entries, unreadable, unreadable_keys }))
}
