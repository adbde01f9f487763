//! The records of a feed, and the values of keys that lack records.
//!
//! A reader joins, and recovers from a loss, in the same way. It reads the table as of one event (the *cut*), goes on with the log
//! up to the same event, and compares the two there: the keys whose entries have another sequence than the last record received
//! lack records, and their values are received in place of them. Until then records of such keys are left out.

use std::hash::Hash;

use super::keys::{Keys, RecordLink};
use super::source::{CutReading, FeedSource, KnownCut};
use super::update::{Advance, EventEnd, FeedUpdate, RecordUpdate, Updates, ValueUpdate};
use crate::id::{Incarnation, Meta, Sequence};
use crate::limits;
use crate::repository::feed::FeedRecord;
use crate::subscriber::table::SnapshotEntry;
use crate::subscriber::{ReceiveError, Sample};

/// Passes over the table after the feed has ended, when nothing changes it.
const PASSES_LAST: u32 = 64;

/// Cuts of tables that only seemed to have reached an event, until that is an error.
const WRONG_CUTS_MAX: u32 = 8;

/// How much of the time between two looks counts as waiting, ns: for all that was there meanwhile, nobody may have looked.
const LOOK_GAP_MAX_NS: u64 = 1_000_000_000;

/// The log moves on towards a cut if, each time the deadline passes, it has come closer by this part of the way.
const APPROACH_PARTS: u64 = 64;

/// Records and losses left out in one call, until it says that there may be more.
const LEFT_OUT_MAX: u32 = 1 << 16;

/// A reader of a feed's records.
pub(super) struct Records<K, V> {
    keys: Keys<K>,
    cut: Cut<K, V>,
    /// The event of the last cut that was compared.
    compared: Sequence,
    /// The first cut was received.
    has_joined: bool,
    /// The log has ended, and all its records were received.
    is_over: bool,
    /// Values of the last cut could not be read, maybe of unknown keys.
    has_unreadable: bool,
    /// It has ended before the first cut, which was reported.
    is_cut_off: bool,
    /// The feed has ended, and its table cannot be read.
    is_table_given_up: bool,
    /// The table was given up while any key might lack records: all of them are returned as suspects. Their records are not left out for
    /// that.
    is_any_suspect: bool,
    /// The publisher ended in the middle of an event, and nothing else is missing. The values in place of that event are not needed if the
    /// next publisher continues it.
    is_event_open: bool,
    /// Nothing of the current event is missing so far.
    is_whole: bool,
    /// A part of the current event was received.
    has_begun: bool,
    /// When the newest record received was published, ns since the Unix epoch.
    published_ns: u64,
    /// A record is being decoded: if that panics, nothing else shows that it was lost.
    is_decoding: bool,
    /// The table or the log is waited for.
    wait: Option<Wait>,
    /// Records and losses left out since there was something to return.
    left_out: u32,
    /// The last call has left out as many as one may: there may be more.
    is_cut_short: bool,
}

/// A wait for table and log to reach the same event.
#[derive(Clone, Copy)]
struct Wait {
    /// The last look, ns of the node's clock.
    seen_ns: u64,
    /// How long nothing has come of what is waited for, ns.
    waited_ns: u64,
    /// How many records the log was before the event when that began.
    distance: u64,
    /// Cuts of tables that were not at that event.
    wrong_cuts: u32,
}

/// A cut through the feed.
enum Cut<K, V> {
    /// None is needed.
    None,
    /// One of this event or a later one, to be read from the table.
    Due {
        at_least: Sequence,
        /// Any key may lack records; otherwise only those that are suspect.
        is_for_all: bool,
        reading: CutReading<K, V>,
    },
    /// It is known, and the log is read up to the same event.
    Ahead {
        cut: KnownCut<K, V>,
        /// Records up to the cut and after it are lost: another one is needed behind it.
        is_overtaken: bool,
        /// Records before it are lost: their keys are suspect from the next receive on.
        has_lost: bool,
    },
}

impl<K, V> Records<K, V>
where
    K: Eq + Hash + Clone,
{
    /// Has received nothing of a feed. The log was received up to this record.
    pub(super) fn new(last: Sequence) -> Self {
        let mut records = Self {
            keys: Keys::new(),
            cut: Cut::None,
            compared: Sequence::NONE,
            has_joined: false,
            is_over: false,
            has_unreadable: false,
            is_cut_off: false,
            is_table_given_up: false,
            is_any_suspect: false,
            is_event_open: false,
            is_whole: true,
            has_begun: false,
            published_ns: 0,
            is_decoding: false,
            wait: None,
            left_out: 0,
            is_cut_short: false,
        };
        records.compare_again(last, true);
        records
    }

    /// Returns the suspect keys.
    pub(super) fn suspects(&self) -> Vec<K> {
        if self.is_any_suspect { self.keys.all() } else { self.keys.suspects() }
    }

    /// Returns the last record whose effect is in the values that were received.
    pub(super) fn compared(&self) -> Sequence {
        self.compared
    }

    /// Continues with the next subscription of the feed, of the same epoch, after this record.
    pub(super) fn renew(&mut self, last: Sequence) {
        // A cut that was due was not read.
        let was_given_up = std::mem::take(&mut self.is_table_given_up);
        (self.is_over, self.is_cut_off, self.wait) = (false, false, None);
        self.is_any_suspect = false;
        if std::mem::take(&mut self.is_event_open) {
            (self.cut, self.has_begun) = (Cut::None, true);
        } else if !self.has_joined || self.has_unreadable || was_given_up || self.keys.has_suspects() {
            self.compare_again(last, true);
        }
    }

    /// Requests a cut after this record, if the last one had values that could not be read.
    pub(super) fn compare_unreadable(&mut self, last: Sequence) {
        if self.has_unreadable {
            self.compare_again(last, true);
        }
    }

    /// Returns whether the table has to be read.
    pub(super) fn is_cut_due(&self) -> bool {
        matches!(self.cut, Cut::Due { .. })
    }

    /// Returns whether the last call has left out so many records that there may be more.
    pub(super) fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// Returns whether the log and the table have to be compared.
    pub(super) fn is_recovering(&self) -> bool {
        !matches!(self.cut, Cut::None)
    }

    /// Forgets the keys that are not wanted, and requests the values of those that were not wanted before.
    pub(super) fn change_interest(&mut self, last: Sequence, is_wanted: impl Fn(&K) -> bool) {
        self.is_whole &= !self.has_begun;
        self.compare_again(last, true);
        self.keys.retain(is_wanted);
    }

    /// Adds the next updates, or returns the only one.
    pub(super) fn advance<R>(
        &mut self,
        source: &mut impl FeedSource<K, R, V>,
        is_wanted: impl Fn(&K) -> bool,
        updates: &mut Updates<K, R, V>,
    ) -> Result<Advance<K, R, V>, ReceiveError> {
        if std::mem::take(&mut self.is_decoding) {
            self.is_whole = false;
            self.compare_again(source.last(), true);
        }
        self.is_cut_short = false;
        if self.left_out >= LEFT_OUT_MAX {
            (self.left_out, self.is_cut_short) = (0, true);
            return self.check_deadline(source).map(|()| Advance::Nothing);
        }
        self.suspect_lost(source.last());
        match &self.cut {
            Cut::Due { .. } => {
                return match self.read_cut(source) {
                    // A loss, which the cut has to be after.
                    Err(error @ ReceiveError::Missing { .. }) => self.fail(source, error, updates),
                    read => read.map(Advance::from),
                };
            }
            Cut::Ahead { cut, .. } if source.last() >= cut.sequence || self.is_over => {
                return self.reach_cut(source, updates);
            }
            Cut::None | Cut::Ahead { .. } => {}
        }
        self.is_decoding = true;
        let advanced = match source.try_record() {
            Ok(Some(sample)) => {
                if !self.keys.has_room() {
                    // Asked for only now: a publisher that was found meanwhile may have more keys.
                    self.keys.make_room(source.capacity());
                }
                Ok(self.take(source.last(), sample, is_wanted, updates))
            }
            Ok(None) => {
                self.left_out = 0;
                self.check_deadline(source).map(|()| Advance::Nothing)
            }
            Err(error) => self.fail(source, error, updates),
        };
        self.is_decoding = false;
        advanced
    }

    /// Compares the table with the log, which has reached the cut, or has ended.
    fn reach_cut<R>(
        &mut self,
        source: &mut impl FeedSource<K, R, V>,
        updates: &mut Updates<K, R, V>,
    ) -> Result<Advance<K, R, V>, ReceiveError> {
        let Cut::Ahead { cut, is_overtaken, .. } = &self.cut else { return Ok(Advance::More) };
        let (is_overtaken, sequence) = (*is_overtaken, cut.sequence);
        if source.last() < sequence && self.is_cut_wrong(source) {
            return self.check_deadline(source).map(|()| Advance::Nothing);
        }
        // The log has ended before the cut: its last records never come, only their values.
        if let Some((first_lost, count)) = source.give_up(sequence)
            && self.has_joined
        {
            return Err(ReceiveError::CutOff { first_lost, count });
        }
        self.compare(source, updates);
        if is_overtaken {
            self.is_whole = false;
            self.compare_again(source.last(), true);
        }
        Ok(Advance::More)
    }

    /// Suspects the keys whose last records were lost before the cut. Not at once: the loss is reported first.
    fn suspect_lost(&mut self, last: Sequence) {
        let Cut::Ahead { cut, has_lost, .. } = &mut self.cut else { return };
        if std::mem::take(has_lost) {
            let lost = cut.entries.iter().filter(|entry| entry.meta.sequence <= last);
            lost.for_each(|entry| self.keys.suspect_unless(&entry.key, entry.meta.sequence));
        }
    }

    /// Takes a record.
    #[inline]
    fn take<R>(
        &mut self,
        last: Sequence,
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
                None => self.miss(last),
            }
        }
        self.left_out = if update.is_none() { self.left_out + 1 } else { 0 };
        if !ends_event {
            update.into_iter().for_each(|update| updates.add(update));
            return Advance::More;
        }
        let end = EventEnd { sequence: meta.sequence, is_whole: std::mem::replace(&mut self.is_whole, true) };
        updates.end_with(update, end).map_or(Advance::More, Advance::Update)
    }

    /// Leaves out a record whose key lacks records before it.
    #[cold]
    fn miss(&mut self, last: Sequence) {
        self.is_whole = false;
        if matches!(self.cut, Cut::None) && !self.is_table_given_up {
            self.compare_again(last, false);
        }
    }

    /// Handles a failure of the log. Returns whether there may be more updates.
    #[cold]
    fn fail<R>(
        &mut self,
        source: &impl FeedSource<K, R, V>,
        error: ReceiveError,
        updates: &mut Updates<K, R, V>,
    ) -> Result<Advance<K, R, V>, ReceiveError> {
        use ReceiveError::{Contradicted, CutOff, Ended, Gone, Overtaken, Restarted};
        let last = source.last();
        match error {
            // After a restart nothing of this is needed any more.
            Restarted { .. } => return Err(error),
            // Final: nothing is received any more but the last record taken.
            Overtaken { .. } => {
                self.is_whole &= !std::mem::take(&mut self.has_begun);
                updates.fail(Some(error));
                return Ok(Advance::More);
            }
            error if error.loses_nothing() => return Err(error),
            Ended { .. } | Gone { .. } if self.is_over && matches!(self.cut, Cut::None) => {
                let (first_lost, count) = (Sequence::NONE.next(), last.get());
                let is_lost = !self.has_joined && !self.is_cut_off && count > 0;
                self.is_cut_off |= is_lost;
                return Err(if is_lost { CutOff { first_lost, count } } else { error });
            }
            Ended { .. } | Gone { .. } => {
                self.is_over = true;
                let has_begun = std::mem::take(&mut self.has_begun);
                self.is_whole &= !has_begun;
                if has_begun && matches!(self.cut, Cut::None) {
                    // This publisher does not complete the event: its values are requested instead.
                    let lacks_values = !self.has_joined || self.is_table_given_up || self.has_unreadable;
                    self.compare_again(last, true);
                    self.is_event_open = !lacks_values && !self.keys.has_suspects();
                }
                updates.fail(None);
                return Ok(Advance::More);
            }
            Contradicted { first, .. } => self.keys.suspect_from(first),
            _ => {}
        }
        (self.is_whole, self.has_begun) = (false, false);
        self.left_out += 1;
        // Checked here, too: a reader that is always behind finds no time without records.
        let is_ahead = matches!(&self.cut, Cut::Ahead { cut, .. } if last < cut.sequence);
        let is_overdue = (is_ahead || self.is_cut_wrong(source)) && self.leave_cut(source);
        let has_joined = self.has_joined;
        match &mut self.cut {
            // The cut has what was lost.
            Cut::Ahead { cut, has_lost, .. } if last <= cut.sequence => *has_lost = has_joined,
            Cut::Ahead { is_overtaken, .. } => {
                *is_overtaken = true;
                if !has_joined {
                    // What was lost after the cut is reported after its values.
                    self.compare(source, updates);
                    self.is_whole = false;
                    self.compare_again(last, true);
                    updates.fail(Some(error));
                    return Ok(Advance::More);
                }
            }
            Cut::None | Cut::Due { .. } => self.compare_again(last, true),
        }
        // What was lost before the first cut is part of it.
        updates.fail(Some(error).filter(|_| has_joined));
        if is_overdue {
            updates.fail(Some(ReceiveError::Contended { attempts: 1 }));
        }
        Ok(Advance::More)
    }

    /// Whether the table only seemed to be at the event of the cut, because its newest sequence was damaged.
    fn is_cut_wrong<R>(&self, source: &impl FeedSource<K, R, V>) -> bool {
        let Cut::Ahead { cut, .. } = &self.cut else { return false };
        source.is_attached() && source.is_before(cut.sequence)
            || self.is_over && source.is_beyond_end(cut.sequence)
    }

    /// Fails if the log does not reach the cut, although a publisher is attached.
    fn check_deadline<R>(&mut self, source: &impl FeedSource<K, R, V>) -> Result<(), ReceiveError> {
        if self.leave_cut(source) { Err(ReceiveError::Contended { attempts: 1 }) } else { Ok(()) }
    }

    /// Requests another cut if that is wrong, or the log does not reach it. Returns whether that is an error.
    fn leave_cut<R>(&mut self, source: &impl FeedSource<K, R, V>) -> bool {
        let Cut::Ahead { cut, .. } = &self.cut else { return false };
        let (of, sequence, is_wrong) = (cut.of, cut.sequence, self.is_cut_wrong(source));
        let is_overdue = self.is_overdue(source, sequence, is_wrong);
        if is_wrong || is_overdue {
            self.is_whole &= !self.has_begun;
            self.compare_again(source.last(), true);
            self.avoid(is_overdue.then_some(of));
        }
        is_overdue
    }

    /// Whether the log and the table have not both reached this event for long, or after many wrong cuts, although a publisher is
    /// attached. Tells it once.
    fn is_overdue<R>(&mut self, source: &impl FeedSource<K, R, V>, event: Sequence, is_wrong: bool) -> bool {
        if !source.is_attached() {
            self.wait = None;
            return false;
        }
        let (now_ns, distance) = (source.now_ns(), event.get().saturating_sub(source.last().get()));
        let begun = Wait { seen_ns: now_ns, waited_ns: 0, distance, wrong_cuts: 0 };
        let wait = self.wait.get_or_insert(begun);
        wait.wrong_cuts += u32::from(is_wrong);
        wait.waited_ns += now_ns.saturating_sub(wait.seen_ns).min(LOOK_GAP_MAX_NS);
        wait.seen_ns = now_ns;
        // It is on its way to the event if it may have that already.
        let is_closer = distance.saturating_add((wait.distance / APPROACH_PARTS).max(1)) <= wait.distance;
        if is_closer && source.newest().is_none_or(|newest| newest >= event) {
            (wait.waited_ns, wait.distance) = (0, distance);
        }
        let is_overdue = wait.waited_ns >= limits::ANSWER_DEADLINE_NS || wait.wrong_cuts >= WRONG_CUTS_MAX;
        if is_overdue {
            self.wait = Some(begun);
        }
        is_overdue
    }

    /// Requests a cut of the last record or a later event. One that was requested of another table still is.
    fn compare_again(&mut self, at_least: Sequence, is_for_all: bool) {
        let avoided = match &self.cut {
            Cut::Due { reading, .. } => reading.avoided,
            Cut::None | Cut::Ahead { .. } => None,
        };
        self.cut = Cut::Due { at_least, is_for_all, reading: CutReading::new() };
        self.is_event_open = false;
        self.avoid(avoided);
    }

    /// Has the requested cut be of another table than this one, if there are others.
    fn avoid(&mut self, of: Option<Incarnation>) {
        if let Cut::Due { reading, .. } = &mut self.cut {
            reading.avoided = of;
        }
    }

    /// Reads the cut. Returns false if the table has not reached it.
    fn read_cut<R>(&mut self, source: &mut impl FeedSource<K, R, V>) -> Result<bool, ReceiveError> {
        let Cut::Due { at_least, is_for_all, reading } = &mut self.cut else { return Ok(true) };
        // Loaded before the table is read: it is complete at its end.
        let has_ended = source.has_ended();
        let is_given_up = match source.read_cut(*at_least, has_ended, reading) {
            // The table has ended with a wrong one.
            Ok(Some(cut)) if has_ended && self.is_over && source.is_beyond_end(cut.sequence) => true,
            Ok(Some(cut)) if cut.sequence >= *at_least => {
                self.keys.make_room(source.capacity());
                // Keys whose last record was lost.
                let is_lost =
                    |entry: &&SnapshotEntry<K, V>| self.has_joined && entry.meta.sequence <= *at_least;
                let lost = cut.entries.iter().filter(is_lost);
                lost.for_each(|entry| self.keys.suspect_unless(&entry.key, entry.meta.sequence));
                if let Some(wait) = &mut self.wait {
                    let distance = cut.sequence.get().saturating_sub(source.last().get());
                    (wait.seen_ns, wait.waited_ns, wait.distance) = (source.now_ns(), 0, distance);
                }
                self.cut = Cut::Ahead { cut, is_overtaken: false, has_lost: false };
                self.is_event_open = false;
                return Ok(true);
            }
            Ok(Some(_)) => has_ended,
            Ok(None) => has_ended && reading.passes() >= PASSES_LAST,
            // The feed has ended meanwhile: the log is received to its end first.
            Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. })
                if !has_ended && source.has_ended() =>
            {
                false
            }
            Err(error) if !has_ended => return Err(error),
            Err(_) => true,
        };
        if is_given_up {
            self.is_any_suspect |= *is_for_all;
            (self.cut, self.is_table_given_up, self.wait) = (Cut::None, true, None);
            return Ok(true);
        }
        let (attempts, at_least) = (reading.passes().max(1), *at_least);
        if self.is_overdue(source, at_least, false) {
            self.avoid(None);
            Err(ReceiveError::Contended { attempts })
        } else {
            Ok(false)
        }
    }

    /// Compares the cut with what was received up to the same event, and adds the values of the keys that lack records.
    fn compare<R>(&mut self, source: &impl FeedSource<K, R, V>, updates: &mut Updates<K, R, V>) {
        let Some(epoch) = source.epoch() else { return };
        let Cut::Ahead { cut, .. } = std::mem::replace(&mut self.cut, Cut::None) else { return };
        let KnownCut { sequence, entries, unreadable, unreadable_keys, .. } = cut;
        self.wait = None;
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
        let published_ns = self.published_ns;
        for (key, number) in self.keys.end_comparison() {
            let meta = Meta { sequence, epoch, published_ns };
            updates.add(FeedUpdate::Value(ValueUpdate { key, value: None, meta, number, ends_event: false }));
        }
        updates.end(EventEnd { sequence, is_whole: unreadable == 0 });
        self.has_unreadable = unreadable > 0;
        if self.has_unreadable {
            updates.fail(Some(ReceiveError::UnreadableValues { count: unreadable }));
        }
        (self.has_joined, self.is_whole, self.compared) = (true, true, sequence);
        self.is_any_suspect = false;
    }
}

#[cfg(test)]
mod tests;
