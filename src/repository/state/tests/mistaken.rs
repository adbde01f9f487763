//! Readers of memory that names a value which is not there.

use super::*;
use crate::limits::EMPTY_POLLS_MAX;

/// A damaged number: the slot is that of the number itself.
const FAR: u64 = 1 << 40;

/// A reader of a repository that is damaged.
struct Damaged {
    writer: StateWriter,
    region: Arc<Region>,
    mirror: Region,
    reader: StateReader,
    len_max: usize,
    now_ns: u64,
}

/// The result of a read: the sequence, and how many values were skipped before it.
type Read = Result<Option<(u64, u64)>, ReadFailure>;

impl Damaged {
    /// Twenty values were published in eight slots, and received.
    fn new() -> Self {
        Self::with(72)
    }

    /// The same, of values of up to so many bytes.
    fn with(len_max: usize) -> Self {
        let mut damaged = Self::after(0, len_max);
        for sequence in 1..=20 {
            damaged.publish();
            assert_eq!(damaged.poll(), Ok(Some((sequence, 0))));
        }
        damaged
    }

    /// The first value to be published is the one after this.
    fn after(last: u64, len_max: usize) -> Self {
        let mut writer = writer(8, len_max);
        writer.begin_after(Sequence::new(last));
        let (reader, region) = (reader(&writer), Arc::clone(writer.region()));
        let mirror = Region::allocate(region.len(), Protection::PeersWrite).unwrap();
        Self { writer, region, mirror, reader, len_max, now_ns: 0 }
    }

    fn publish(&mut self) {
        let sequence = self.writer.last().next().get();
        self.writer.publish(&payload(sequence, self.len_max), 1, sequence).unwrap();
    }

    /// Changes a bit of this word, or changes it back.
    fn flip(&self, offset: usize) {
        self.region.store(offset, self.region.load(offset) ^ 4);
    }

    /// Makes the hot line name this value.
    fn name(&self, sequence: u64) {
        self.region.store(HOT_SEQUENCE, sequence);
    }

    fn slot(&self, sequence: u64) -> usize {
        self.writer.geometry().slot_offset(Sequence::new(sequence))
    }

    fn taken(&self, taken: crate::repository::Taken) -> (u64, u64) {
        let verified = self.reader.verified(taken);
        let sequence = verified.meta.sequence.get();
        assert_eq!(verified.payload, payload(sequence, self.len_max));
        (sequence, verified.conflated)
    }

    fn poll(&mut self) -> Read {
        let taken = self.reader.poll(&self.region)?;
        Ok(taken.map(|taken| self.taken(taken)))
    }

    /// Polls a thousand times, and returns the failures. No value may come.
    fn poll_in_vain(&mut self) -> Vec<ReadFailure> {
        let outcomes = (0..1000).map(|_| self.poll().transpose());
        outcomes.flatten().map(|outcome| outcome.expect_err("nothing was published")).collect()
    }

    /// Fetches until something is found.
    fn fetch(&mut self) -> Read {
        let mut fetch = self.reader.plan();
        for _ in 0..1000 {
            for range in fetch.ranges() {
                let words = (range.offset..range.offset + range.len).step_by(8);
                words.for_each(|word| self.mirror.store(word, self.region.load(word)));
            }
            self.now_ns += 1_000_000;
            fetch = match self.reader.check(&self.mirror, &fetch, self.now_ns) {
                Ok(Finding::Taken(taken)) => return Ok(Some(self.taken(taken))),
                Ok(Finding::More(next)) => next,
                Ok(_) => return Ok(None),
                Err(ReadFailure::Contended { .. }) => self.reader.plan(),
                Err(failure) => return Err(failure),
            };
        }
        panic!("neither a value nor a failure");
    }
}

fn broken(sequence: u64) -> ReadFailure {
    ReadFailure::BrokenStamps { sequence: Sequence::new(sequence) }
}

/// The stamp fits the slot that holds it, but the hot line names an earlier value.
#[test]
fn damaged_head_stamp_is_not_followed() {
    let mut damaged = Damaged::new();
    let slot = damaged.slot(21);
    damaged.region.store(slot, damaged.region.load(slot) ^ FAR);
    assert_eq!(damaged.poll_in_vain(), []);
    damaged.publish();
    assert_eq!(damaged.poll(), Ok(Some((21, 0))));
    // That of a slot behind the next one, too.
    let slot = damaged.slot(23);
    damaged.region.store(slot, damaged.region.load(slot) ^ FAR);
    assert_eq!(damaged.poll_in_vain(), []);
    damaged.publish();
    assert_eq!(damaged.poll(), Ok(Some((22, 0))));
    assert_eq!((damaged.reader.counts().conflated, damaged.reader.counts().rejected), (0, 0));
}

#[test]
fn damaged_hot_line_is_not_followed_by_a_reader_that_is_behind() {
    let mut damaged = Damaged::new();
    (0..2).for_each(|_| damaged.publish());
    damaged.name(FAR);
    assert_eq!(damaged.poll(), Ok(Some((21, 0))));
    assert_eq!(damaged.poll(), Ok(Some((22, 0))));
    assert_eq!(damaged.poll_in_vain(), []);
    // It was overtaken.
    (0..20).for_each(|_| damaged.publish());
    damaged.name(FAR);
    let (sequence, _) = damaged.poll().unwrap().expect("a value");
    assert!((23..=42).contains(&sequence));
    damaged.publish();
    assert_eq!(damaged.poll().map(|read| read.map(|(sequence, _)| sequence)), Ok(Some(43)));
}

#[test]
fn damaged_hot_line_is_not_followed_by_a_reader_that_begins() {
    let mut damaged = Damaged::new();
    damaged.reader = reader(&damaged.writer);
    damaged.name(FAR);
    assert_eq!(damaged.poll_in_vain(), []);
    damaged.publish();
    assert_eq!(damaged.poll(), Ok(Some((21, 0))));
}

/// The next value may be there, and its head stamp be damaged. It is reported once, and received where it appears after all.
#[test]
fn value_that_damaged_memory_named_before_it_was_published_is_received() {
    for is_stamp in [false, true] {
        for lead in 1..=3 {
            let mut damaged = Damaged::new();
            if is_stamp {
                damaged.region.store(damaged.slot(21), 21);
            } else {
                damaged.name(21);
            }
            assert_eq!(damaged.poll_in_vain(), [broken(21)]);
            (0..lead).for_each(|_| damaged.publish());
            assert_eq!(damaged.poll(), Ok(Some((20 + lead, lead - 1))), "{is_stamp}");
            assert_eq!(damaged.reader.counts().conflated, lead - 1);
        }
    }
}

#[test]
fn fetching_reader_goes_back_from_a_damaged_hot_line() {
    let mut damaged = Damaged::new();
    damaged.reader = reader(&damaged.writer);
    assert_eq!(damaged.fetch(), Ok(Some((20, 0))));
    (0..3).for_each(|_| damaged.publish());
    assert_eq!(damaged.fetch(), Ok(Some((23, 2))));
    damaged.name(FAR);
    assert_eq!(damaged.fetch(), Err(broken(FAR)));
    (0..10).for_each(|_| assert_eq!(damaged.fetch(), Ok(None)));
    damaged.publish();
    assert_eq!(damaged.fetch(), Ok(Some((24, 0))));
    assert_eq!(damaged.fetch(), Ok(None));
    assert_eq!((damaged.reader.counts().conflated, damaged.reader.counts().rejected), (2, 1));
}

/// The hot line is right again when the slot is fetched.
#[test]
fn fetching_reader_forgets_a_number_that_the_hot_line_does_not_name_any_more() {
    let mut damaged = Damaged::new();
    damaged.reader = reader(&damaged.writer);
    let fetch = damaged.reader.plan();
    damaged.mirror.store(HOT_SEQUENCE, FAR);
    let Ok(Finding::More(_)) = damaged.reader.check(&damaged.mirror, &fetch, 1) else { panic!("a number") };
    assert_eq!(damaged.fetch(), Ok(Some((20, 0))));
    let fetch = damaged.reader.plan();
    assert_eq!(damaged.fetch(), Ok(None));
    damaged.publish();
    damaged.mirror.store(damaged.slot(21), FAR);
    let Ok(Finding::More(mut fetch)) = damaged.reader.check(&damaged.mirror, &fetch, 1) else {
        panic!("a number")
    };
    damaged.mirror.store(HOT_SEQUENCE, FAR);
    for _ in 0..2 {
        let Ok(Finding::More(next)) = damaged.reader.check(&damaged.mirror, &fetch, 1) else {
            panic!("{fetch:?}")
        };
        fetch = next;
        damaged.mirror.store(HOT_SEQUENCE, 21);
    }
    assert_eq!(damaged.fetch(), Ok(Some((21, 0))));
}

/// The values that it lacks are reported at the end.
#[test]
fn values_before_a_number_that_was_named_in_vain_are_cut_off_at_the_end() {
    let mut damaged = Damaged::new();
    damaged.reader = reader(&damaged.writer);
    damaged.name(FAR);
    assert_eq!(damaged.fetch(), Err(broken(FAR)));
    assert_eq!(damaged.reader.give_up(Sequence::new(20)), Some((Sequence::new(1), 20)));
    assert_eq!((damaged.reader.last().get(), damaged.reader.counts().cut_off), (20, 20));
}

/// The next subscription after one that has received the value 22, and had skipped one, when a number was named in vain.
fn resumed_after_a_number_in_vain(is_same_epoch: bool) -> Damaged {
    let mut damaged = Damaged::new();
    damaged.reader = reader(&damaged.writer);
    assert_eq!(damaged.fetch(), Ok(Some((20, 0))));
    (0..2).for_each(|_| damaged.publish());
    assert_eq!(damaged.fetch(), Ok(Some((22, 1))));
    damaged.name(FAR);
    assert_eq!(damaged.fetch(), Err(broken(FAR)));
    let mut next = reader(&damaged.writer);
    next.resume(&mut damaged.reader, is_same_epoch);
    damaged.reader = next;
    damaged
}

#[test]
fn number_that_was_named_in_vain_is_forgotten_by_the_next_subscription() {
    let mut damaged = resumed_after_a_number_in_vain(true);
    damaged.name(22);
    assert_eq!(damaged.fetch(), Ok(None));
    damaged.publish();
    assert_eq!(damaged.fetch(), Ok(Some((23, 0))));
    assert_eq!(damaged.reader.counts().conflated, 1);
}

/// Its skipped values are none of the next epoch's, nor of the one before.
#[test]
fn number_that_was_named_in_vain_counts_nothing_in_the_next_epoch() {
    assert_eq!(resumed_after_a_number_in_vain(false).reader.counts().conflated, 1);
}

/// What is damaged becomes right again: a word of the header is noticed at once, another one after a while.
#[test]
fn value_that_was_reported_is_received_once_it_is_right() {
    let len = payload(21, 72).len();
    let tail = StateGeometry::tail_offset(len);
    for (word, polls) in [(24, 1), (32, EMPTY_POLLS_MAX + 1), (tail - 8, 1), (tail, 1)] {
        let mut damaged = Damaged::new();
        damaged.publish();
        let word = damaged.slot(21) + word;
        damaged.flip(word);
        assert_eq!(damaged.poll_in_vain().len(), 1);
        damaged.flip(word);
        let received = (0..polls).find_map(|_| damaged.poll().unwrap());
        assert_eq!(received, Some((21, 0)), "{word}");
        assert_eq!((damaged.reader.counts().conflated, damaged.reader.counts().rejected), (0, 1));
    }
}

/// Of a long value only the header is fetched each time.
#[test]
fn fetched_value_that_was_reported_is_received_once_it_is_right() {
    for (len_max, is_long) in [(72, false), (60_000, true)] {
        for word in [24, 32] {
            let mut damaged = Damaged::with(len_max);
            damaged.publish();
            let word = damaged.slot(21) + word;
            damaged.flip(word);
            assert!(damaged.fetch().is_err());
            (0..10).for_each(|_| assert_eq!(damaged.fetch(), Ok(None)));
            let planned = damaged.reader.plan().ranges()[1].len;
            assert_eq!(planned < payload(21, len_max).len(), is_long);
            damaged.flip(word);
            let received = (0..EMPTY_POLLS_MAX + 2).find_map(|_| damaged.fetch().unwrap());
            assert_eq!(received, Some((21, 0)));
            assert_eq!((damaged.reader.counts().conflated, damaged.reader.counts().rejected), (0, 1));
        }
    }
}

/// Its old head stamp is the last word that the writer replaces.
#[test]
fn damaged_value_that_is_being_overwritten_counts_once() {
    let mut damaged = Damaged::new();
    damaged.publish();
    let slot = damaged.slot(21);
    damaged.flip(slot + 32);
    assert_eq!(damaged.poll_in_vain().len(), 1);
    (22..29).for_each(|_| damaged.publish());
    damaged.region.store(slot + 24, 29);
    assert_eq!(damaged.poll(), Ok(Some((28, 6))));
    assert_eq!((damaged.reader.counts().conflated, damaged.reader.counts().rejected), (6, 1));
}

#[test]
fn value_before_a_number_that_was_named_in_vain_is_reported_once() {
    let mut damaged = Damaged::new();
    damaged.publish();
    assert_eq!(damaged.poll(), Ok(Some((21, 0))));
    damaged.publish();
    let word = damaged.slot(22) + 32;
    damaged.flip(word);
    assert_eq!(damaged.poll_in_vain().len(), 1);
    assert_eq!((damaged.reader.last().get(), damaged.reader.brought().get()), (22, 21));
    damaged.name(23);
    assert_eq!(damaged.poll_in_vain(), [broken(23)]);
    assert_eq!((damaged.reader.last().get(), damaged.reader.brought().get()), (23, 21));
    damaged.name(22);
    assert_eq!(damaged.poll_in_vain(), []);
    // It is not forgotten.
    damaged.flip(word);
    let received = (0..=EMPTY_POLLS_MAX).find_map(|_| damaged.poll().unwrap());
    assert_eq!(received, Some((22, 0)));
    damaged.publish();
    assert_eq!(damaged.poll(), Ok(Some((23, 0))));
    assert_eq!((damaged.reader.counts().conflated, damaged.reader.counts().rejected), (0, 2));
}

/// However many are reported one after the other, none of them hides an earlier value.
#[test]
fn reader_goes_back_behind_all_numbers_that_were_named_in_vain() {
    let mut damaged = Damaged::new();
    damaged.reader = reader(&damaged.writer);
    assert_eq!(damaged.fetch(), Ok(Some((20, 0))));
    (0..2).for_each(|_| damaged.publish());
    assert_eq!(damaged.fetch(), Ok(Some((22, 1))));
    for far in 1..5 {
        damaged.name(far * FAR);
        assert_eq!(damaged.fetch(), Err(broken(far * FAR)));
        assert_eq!(damaged.reader.brought().get(), 22);
    }
    damaged.publish();
    assert_eq!(damaged.fetch(), Ok(Some((23, 0))));
    assert_eq!((damaged.reader.counts().conflated, damaged.reader.counts().rejected), (1, 4));
}

/// Its predecessor, which would confirm it, was published by nobody.
#[test]
fn first_value_with_a_damaged_head_stamp_is_reported() {
    let mut damaged = Damaged::after(20, 72);
    damaged.publish();
    let slot = damaged.slot(21);
    damaged.flip(slot);
    assert_eq!(damaged.poll_in_vain(), [broken(21)]);
    damaged.flip(slot);
    assert_eq!(damaged.poll(), Ok(Some((21, 0))));
    assert_eq!(damaged.poll_in_vain(), []);
}
