//! Records of a source that says what a test lets it say.

use std::collections::VecDeque;

use super::*;
use crate::id::Epoch;
use crate::subscriber::feed::assembly::Assembly;

const CAPACITY: usize = 4;
/// The most keys that are known of such a feed.
const KNOWN_MAX: usize = 4 * CAPACITY;
/// A half of the time after which a look does not count in full, ns.
const STEP_NS: u64 = 500_000_000;
/// So many steps take longer than the deadline.
const STEPS: u64 = limits::ANSWER_DEADLINE_NS / STEP_NS + 2;

type Entry = (u64, u64);

/// Log and table.
#[derive(Default)]
struct Source {
    now_ns: u64,
    last: u64,
    records: VecDeque<FeedRecord<u64, u64>>,
    /// How many records each receive without a record reports as lost.
    lost: u64,
    /// The log has ended after this record.
    ends_after: Option<u64>,
    newest: Option<u64>,
    /// The table's newest event, as its hot line has it.
    hot: u64,
    /// What a read of the table gives: an event, keys with their last records, and how many unknown keys cannot be read.
    table: Option<(u64, Vec<Entry>, usize)>,
    /// Table and hot line are five records ahead of what was received last.
    is_ahead: bool,
    /// The table has ended, too, and cannot be read any more.
    is_lost: bool,
    /// The publisher has disconnected it.
    is_overtaken: bool,
    /// The feed ends while its table is read.
    ends_in_read: bool,
    /// A cut of another table than before was requested.
    has_avoided: bool,
}

fn epoch() -> Epoch {
    Epoch::new(7).expect("not 0")
}

fn meta(sequence: u64) -> Meta {
    Meta { sequence: Sequence::new(sequence), epoch: epoch(), published_ns: 1 }
}

fn record(key: u64, previous: u64) -> FeedRecord<u64, u64> {
    FeedRecord { previous, ends_event: true, removes_key: false, key, value: 1 }
}

impl FeedSource<u64, u64, u64> for Source {
    fn last(&self) -> Sequence {
        Sequence::new(self.last)
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(epoch())
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn try_record(&mut self) -> Result<Option<Sample<FeedRecord<u64, u64>>>, ReceiveError> {
        if let Some(value) = self.records.pop_front() {
            self.last += 1;
            return Ok(Some(Sample { value, meta: meta(self.last), conflated: 0 }));
        }
        if self.lost > 0 {
            let first_lost = Sequence::new(self.last + 1);
            self.last += self.lost;
            return Err(ReceiveError::Lapped { first_lost, count: self.lost });
        }
        if self.is_overtaken {
            return Err(ReceiveError::Overtaken { last: Sequence::new(self.last) });
        }
        let published = self.ends_after.map(Sequence::new);
        published.map_or(Ok(None), |published| Err(ReceiveError::Ended { published }))
    }

    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)> {
        let (first, count) = (self.last + 1, last.get().saturating_sub(self.last));
        self.last += count;
        (count > 0).then_some((Sequence::new(first), count))
    }

    fn has_ended(&self) -> bool {
        self.ends_after.is_some()
    }

    fn is_attached(&self) -> bool {
        true
    }

    fn newest(&self) -> Option<Sequence> {
        self.newest.map(Sequence::new)
    }

    fn is_before(&self, sequence: Sequence) -> bool {
        let hot = if self.is_ahead { self.last + 5 } else { self.hot };
        hot < sequence.get()
    }

    fn is_beyond_end(&self, sequence: Sequence) -> bool {
        self.ends_after.is_some_and(|last| sequence.get() > last)
    }

    fn read_cut(
        &mut self,
        _: Sequence,
        _: bool,
        reading: &mut CutReading<u64, u64>,
    ) -> Result<Option<KnownCut<u64, u64>>, ReceiveError> {
        self.has_avoided |= reading.avoided.is_some();
        if std::mem::take(&mut self.ends_in_read) {
            (self.ends_after, self.is_lost) = (Some(self.last + self.records.len() as u64), true);
            return Err(ReceiveError::Ended { published: Sequence::new(self.last) });
        }
        if self.is_lost {
            return Err(ReceiveError::Contended { attempts: 1 });
        }
        let newest = self.last + 5;
        let current = self.is_ahead.then(|| (newest, vec![(7, newest)], 0));
        let Some((sequence, entries, unreadable)) = current.or_else(|| self.table.clone()) else {
            return Ok(None);
        };
        let entry = |(key, last)| SnapshotEntry { key, value: last, meta: meta(last), number: last };
        let (entries, unreadable_keys) = (entries.into_iter().map(entry).collect(), Vec::new());
        let (of, sequence) = (Incarnation::any_of(epoch()), Sequence::new(sequence));
        Ok(Some(KnownCut { of, sequence, entries, unreadable, unreadable_keys }))
    }
}

/// A reader of a source.
struct Reader {
    source: Source,
    records: Records<u64, u64>,
    assembly: Assembly<u64, u64, u64>,
}

impl Reader {
    fn new(source: Source) -> Self {
        let records = Records::new(Sequence::new(source.last));
        Self { source, records, assembly: Assembly::new() }
    }

    /// One that has joined a feed without keys.
    fn joined() -> Self {
        let mut reader = Self::new(Source { table: Some((0, Vec::new(), 0)), ..Source::default() });
        assert!(reader.look().unwrap().is_none() && reader.records.has_joined);
        reader
    }

    /// One that knows of a cut at this event, to which the log has not come.
    fn ahead_of(event: u64, newest: Option<u64>) -> Self {
        let table = Some((event, vec![(7, 1)], 0));
        let mut reader = Self::new(Source { last: 1, hot: event, newest, table, ..Source::default() });
        assert!(reader.look().unwrap().is_none() && !reader.records.is_cut_due());
        reader
    }

    fn look(&mut self) -> Result<Option<FeedUpdate<u64, u64, u64>>, ReceiveError> {
        let Self { source, records, assembly } = self;
        assembly.try_update(|updates| records.advance(source, |_| true, updates))
    }

    fn look_after(&mut self, ns: u64) -> Result<Option<FeedUpdate<u64, u64, u64>>, ReceiveError> {
        self.source.now_ns += ns;
        self.look()
    }

    /// Requests the values of all keys.
    fn ask_again(&mut self) {
        self.records.change_interest(self.source.last(), |_| true);
    }
}

#[test]
fn time_in_which_nobody_looks_is_not_waited() {
    let is_behind = Source { last: 1, ..Source::default() };
    for mut reader in [Reader::ahead_of(10, Some(1)), Reader::new(is_behind)] {
        reader.look().unwrap();
        for _ in 0..3 {
            assert!(reader.look_after(2 * limits::ANSWER_DEADLINE_NS).unwrap().is_none());
        }
        let error = (0..STEPS).find_map(|_| reader.look_after(STEP_NS).err());
        assert!(matches!(error, Some(ReceiveError::Contended { .. })), "{error:?}");
    }
}

/// The time that the one before has waited is not that of the next publisher.
#[test]
fn next_publisher_has_the_whole_deadline() {
    let is_behind = Source { last: 1, ..Source::default() };
    for (mut reader, is_given_up) in [(Reader::ahead_of(10, Some(1)), false), (Reader::new(is_behind), true)]
    {
        reader.look().unwrap();
        (0..STEPS - 3).for_each(|_| assert!(reader.look_after(STEP_NS).unwrap().is_none()));
        if is_given_up {
            (reader.source.ends_after, reader.source.is_lost) = (Some(1), true);
            assert!(reader.look().is_err());
        }
        (reader.source.ends_after, reader.source.is_lost, reader.source.table) = (None, false, None);
        reader.records.renew(Sequence::new(1));
        reader.look().unwrap();
        (0..STEPS - 3).for_each(|_| assert!(reader.look_after(STEP_NS).unwrap().is_none()));
    }
}

#[test]
fn log_that_hardly_moves_towards_a_cut_is_an_error() {
    for newest in [None, Some(1000)] {
        let mut reader = Reader::ahead_of(1000, newest);
        let mut errors = 0;
        for key in 0..3 * STEPS {
            reader.source.records.push_back(record(key, 0));
            errors += u32::from(reader.look_after(STEP_NS).is_err());
        }
        assert!(errors >= 2, "{newest:?}: {errors}");
    }
}

#[test]
fn keys_of_cuts_that_the_log_never_reaches_are_not_held_without_bound() {
    let mut reader = Reader::joined();
    reader.source.last = 10;
    for round in 0..100 {
        reader.ask_again();
        let keys = (0..CAPACITY as u64).map(|key| (CAPACITY as u64 * round + key, 5));
        (reader.source.table, reader.source.hot) = (Some((1000, keys.collect(), 0)), 1000);
        assert!(reader.look().unwrap().is_none());
        let suspects = reader.records.suspects().len();
        assert!((CAPACITY..=KNOWN_MAX).contains(&suspects), "{suspects}");
    }
}

#[test]
fn keys_that_a_damaged_table_may_have_are_not_held_without_bound() {
    let mut reader = Reader::joined();
    for round in 0..100 {
        reader.ask_again();
        let keys = (0..CAPACITY as u64).map(|key| (CAPACITY as u64 * round + key, 5));
        reader.source.table = Some((10, keys.collect(), 1));
        (reader.source.last, reader.source.hot) = (10, 10);
        let received = (0..1000).map_while(|_| match reader.look() {
            Ok(update) => update,
            Err(error) => panic!("{error}"),
        });
        assert!(received.take(CAPACITY).count() == CAPACITY);
        let error = std::iter::from_fn(|| Some(reader.look())).find_map(Result::err);
        assert!(matches!(error, Some(ReceiveError::UnreadableValues { count: 1 })), "{error:?}");
        let suspects = reader.records.suspects().len();
        assert!(suspects <= KNOWN_MAX, "{suspects}");
    }
}

/// A reader that is slower than its publisher returns all the same, and says that there may be more.
#[test]
fn records_before_a_cut_are_left_out_in_several_calls() {
    let mut reader = Reader::ahead_of(1 << 40, None);
    let mut updates = Updates::default();
    for (round, is_lost) in [false, true, false, true].into_iter().enumerate() {
        let steps = (1..=LEFT_OUT_MAX + 1).find(|key| {
            reader.source.lost = u64::from(is_lost);
            reader.source.records.extend((!is_lost).then(|| record(u64::from(*key), 0)));
            let advance = reader.records.advance(&mut reader.source, |_| true, &mut updates).unwrap();
            matches!(advance, Advance::Nothing)
        });
        assert_eq!(steps, Some(LEFT_OUT_MAX + 1), "{round}");
        assert!(reader.records.is_cut_short() && updates.next().unwrap().is_none());
    }
    // It has a deadline, too.
    let error = (0..STEPS).find_map(|_| {
        reader.source.now_ns += STEP_NS;
        reader.records.left_out = LEFT_OUT_MAX;
        reader.records.advance(&mut reader.source, |_| true, &mut updates).err()
    });
    assert!(matches!(error, Some(ReceiveError::Contended { .. })), "{error:?}");
}

#[test]
fn loss_shows_that_a_cut_is_wrong() {
    for has_joined in [true, false] {
        let mut reader = if has_joined { Reader::joined() } else { Reader::new(Source::default()) };
        reader.ask_again();
        (reader.source.table, reader.source.hot) = (Some((1 << 40, vec![(7, 5)], 0)), 1 << 40);
        assert!(reader.look().unwrap().is_none());
        // The publisher has repaired its newest sequence, but this one never finds the log without records.
        (reader.source.lost, reader.source.is_ahead) = (10, true);
        let mut values = 0;
        for _ in 0..10 {
            match reader.look() {
                Ok(Some(FeedUpdate::Value(_))) => values += 1,
                Ok(update) => panic!("{update:?}"),
                Err(ReceiveError::Lapped { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(values > 2, "{has_joined}: {values}");
    }
}

#[test]
fn cut_is_overdue_also_where_each_call_reports_a_loss() {
    let mut reader = Reader::joined();
    reader.ask_again();
    (reader.source.table, reader.source.hot) = (Some((1 << 40, vec![(7, 5)], 0)), 1 << 40);
    assert!(reader.look().unwrap().is_none());
    reader.source.lost = 10;
    let (mut lost, mut contended) = (0, 0);
    for _ in 0..2 * STEPS {
        match reader.look_after(STEP_NS).expect_err("nothing but losses") {
            ReceiveError::Lapped { .. } => lost += 1,
            ReceiveError::Contended { .. } => contended += 1,
            error => panic!("{error}"),
        }
    }
    assert!(lost > STEPS && contended > 0, "{lost} {contended}");
    assert!(reader.source.has_avoided);
}

#[test]
fn wrong_cut_does_not_outlive_the_log() {
    for (has_joined, is_repaired) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut reader = if has_joined { Reader::joined() } else { Reader::new(Source::default()) };
        reader.ask_again();
        (reader.source.table, reader.source.hot) = (Some((1 << 40, vec![(7, 1)], 0)), 1 << 40);
        reader.source.records.push_back(record(7, 0));
        let first = reader.look().unwrap();
        assert_eq!(first.is_some(), has_joined);
        reader.source.ends_after = Some(2);
        reader.source.records.push_back(record(7, 1));
        if is_repaired {
            (reader.source.table, reader.source.hot) = (Some((2, vec![(7, 2)], 0)), 2);
        }
        let (mut received, mut errors) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            match reader.look() {
                Ok(update) => received.extend(update.map(|update| update.meta().sequence.get())),
                Err(error) => errors.push(error),
            }
        }
        // A key that had the value of the table before has it still.
        let expected: &[u64] = if has_joined || is_repaired { &[2] } else { &[] };
        assert_eq!(received, expected, "{has_joined} {is_repaired}: {errors:?}");
        assert_eq!(reader.source.last, 2);
        assert!(reader.records.compared() <= Sequence::new(2));
        assert!(matches!(errors.pop(), Some(ReceiveError::Ended { .. })));
        let is_cut_off = matches!(errors.first(), Some(ReceiveError::CutOff { count: 2, .. }));
        assert_eq!(is_cut_off, !has_joined && !is_repaired, "{errors:?}");
        // Nothing tells whether it lacks records.
        assert_eq!(reader.records.suspects().is_empty(), !has_joined || is_repaired);
    }
}

#[test]
fn value_that_is_older_than_a_record_of_its_key_is_not_received() {
    let mut reader = Reader::joined();
    reader.source.records.extend([record(7, 0), record(8, 0), record(7, 1)]);
    (0..3).for_each(|_| assert!(reader.look().unwrap().is_some()));
    reader.ask_again();
    // The event of this cut is that of an older one, except in a bit.
    (reader.source.table, reader.source.hot) = (Some((3, vec![(7, 1), (8, 2)], 0)), 3);
    assert!(reader.look().unwrap().is_none());
    assert!(!reader.records.is_recovering() && reader.records.suspects().is_empty());
    reader.source.records.push_back(record(7, 3));
    let update = reader.look().unwrap();
    assert!(matches!(&update, Some(FeedUpdate::Record(it)) if it.number == 3), "{update:?}");
}

/// A record that does not end its event.
fn part(key: u64, previous: u64) -> FeedRecord<u64, u64> {
    FeedRecord { ends_event: false, ..record(key, previous) }
}

/// Receives until the end, and continues with the next publisher.
fn renewed(mut reader: Reader) -> Reader {
    let errors: Vec<_> = (0..10).filter_map(|_| reader.look().err()).collect();
    assert!(matches!(errors.last(), Some(ReceiveError::Ended { .. })), "{errors:?}");
    (reader.source.ends_after, reader.source.is_lost) = (None, false);
    reader.records.renew(reader.source.last());
    reader
}

#[test]
fn event_that_nothing_else_is_missing_of_goes_on_with_the_next_publisher() {
    let mut reader = Reader::joined();
    reader.source.records.extend([record(7, 0), part(8, 0)]);
    (reader.source.ends_after, reader.source.is_lost) = (Some(2), true);
    let mut reader = renewed(reader);
    assert!(!reader.records.is_recovering() && reader.records.suspects().is_empty());
    // The next one dies before it has published more: the event is still not complete.
    (reader.source.ends_after, reader.source.is_lost) = (Some(2), true);
    assert!(reader.look().is_err() && !reader.records.suspects().is_empty());
    let mut reader = renewed(reader);
    reader.source.records.extend([part(7, 1), record(8, 2)]);
    let updates: Vec<_> = (0..2).filter_map(|_| reader.look().unwrap()).collect();
    assert!(matches!(&updates[..], [FeedUpdate::Record(_), FeedUpdate::Record(last)] if last.ends_event));
}

#[test]
fn values_that_were_due_before_the_end_come_from_the_next_publisher() {
    // Before the first values.
    let mut reader = Reader::new(Source { ends_after: Some(1), is_lost: true, ..Source::default() });
    reader.source.records.push_back(part(7, 0));
    assert!(renewed(reader).records.is_cut_due());
    // After a loss, of which the records behind it show nothing.
    let mut reader = Reader::joined();
    reader.source.lost = 3;
    assert!(matches!(reader.look(), Err(ReceiveError::Lapped { count: 3, .. })));
    reader.source.records.push_back(part(8, 0));
    (reader.source.lost, reader.source.ends_after, reader.source.is_lost) = (0, Some(4), true);
    assert!(renewed(reader).records.is_cut_due());
    // After a change of interest.
    let mut reader = Reader::joined();
    reader.source.records.extend([part(8, 0), part(9, 0)]);
    assert!(reader.look().unwrap().is_some());
    reader.ask_again();
    (reader.source.ends_after, reader.source.is_lost) = (Some(2), true);
    assert!(renewed(reader).records.is_cut_due());
}

#[test]
fn records_before_the_end_are_received_although_the_table_has_ended_first() {
    let mut reader = Reader::joined();
    reader.ask_again();
    reader.source.records.extend([record(7, 0), record(8, 0)]);
    reader.source.ends_in_read = true;
    assert!(reader.look().unwrap().is_none());
    (0..2).for_each(|_| assert!(reader.look().unwrap().is_some()));
    assert!(matches!(reader.look(), Err(ReceiveError::Ended { .. })));
}

#[test]
fn last_record_before_a_reader_is_overtaken_is_received() {
    let mut reader = Reader::joined();
    reader.source.records.extend([part(7, 0), part(8, 0)]);
    reader.source.is_overtaken = true;
    (0..2).for_each(|_| assert!(reader.look().unwrap().is_some()));
    assert!(matches!(reader.look(), Err(ReceiveError::Overtaken { .. })));
    assert!(matches!(reader.look(), Err(ReceiveError::Overtaken { .. })));
}
