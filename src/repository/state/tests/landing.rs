//! What a reader accepts from a landing region where writes become visible whole and in order.

use super::*;
use crate::layout::ByteRange;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::slot_len;
use crate::limits::{self, ARRIVAL_SETTLED_NS};

const LEN_MAX: usize = 72;

/// A landing region, the repository of its values, and its reader.
struct Landed {
    writer: StateWriter,
    region: Region,
    reader: StateReader,
    now_ns: u64,
    state: u64,
}

/// The result of a read.
type Read = Result<Option<(u64, u64)>, ReadFailure>;

impl Landed {
    fn new(slot_count: u32) -> Self {
        let writer = writer(slot_count, LEN_MAX);
        let len = writer.geometry().region_len();
        let region = Region::allocate(len, Protection::PeersWrite).unwrap();
        let reader = reader(&writer);
        Self { writer, region, reader, now_ns: 0, state: 0x5eed }
    }

    fn random(&mut self, below: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % below.max(1)
    }

    /// Publishes the next value without writing it.
    fn publish(&mut self) -> Committed {
        let sequence = self.writer.last().next().get();
        self.writer.publish(&payload(sequence, LEN_MAX), 1, sequence).unwrap()
    }

    /// The offsets of the words of a value, in random order.
    fn words_of(&mut self, committed: &Committed) -> Vec<usize> {
        let ByteRange { offset, len } = committed.slot;
        let mut words: Vec<usize> = (offset..offset + len).step_by(8).collect();
        for end in (1..words.len()).rev() {
            let other = self.random(end + 1);
            words.swap(end, other);
        }
        words
    }

    fn bring(&self, offset: usize) {
        self.region.store(offset, self.writer.region().load(offset));
    }

    /// Publishes the next value and writes all of it.
    fn write(&mut self) -> u64 {
        let committed = self.publish();
        self.words_of(&committed).into_iter().for_each(|offset| self.bring(offset));
        committed.sequence.get()
    }

    fn write_all(&mut self, count: u64) {
        for _ in 0..count {
            self.write();
        }
    }

    /// Publishes values without writing them.
    fn pass_over(&mut self, count: u64) {
        for _ in 0..count {
            self.publish();
        }
    }

    /// Makes the hot line name this value.
    fn name(&self, sequence: u64) {
        self.region.store(HOT_SEQUENCE, sequence);
    }

    fn slot(&self, sequence: u64) -> usize {
        self.writer.geometry().slot_offset(Sequence::new(sequence))
    }

    /// Receives once: the sequence, and how many values were skipped before it.
    fn receive(&mut self) -> Read {
        let now_ns = self.now_ns;
        let accepted = self.reader.follow(&self.region, WriteOrder::Writes, || now_ns)?;
        Ok(accepted.map(|accepted| {
            let verified = self.reader.verified(accepted);
            let sequence = verified.meta.sequence.get();
            assert_eq!(verified.payload, payload(sequence, LEN_MAX));
            (sequence, verified.conflated)
        }))
    }

    /// Checks that this is reported once, and only after it has lasted long enough.
    fn expect_report(&mut self, sequence: u64, expected: impl Fn(&ReadFailure) -> bool) {
        for _ in 0..100 {
            assert!(matches!(self.receive(), Ok(None) | Err(ReadFailure::Contended { .. })));
            assert!(self.reader.last().get() < sequence);
            self.now_ns += ARRIVAL_SETTLED_NS / 101;
        }
        self.now_ns += ARRIVAL_SETTLED_NS / 50;
        let failure = self.receive().unwrap_err();
        assert!(expected(&failure), "{failure:?}");
        assert_eq!(self.reader.last().get(), sequence);
        self.now_ns += 2 * ARRIVAL_SETTLED_NS;
        assert_eq!(self.receive(), Ok(None));
        self.now_ns += 2 * ARRIVAL_SETTLED_NS;
        assert_eq!(self.receive(), Ok(None));
    }
}

#[test]
fn values_are_found_from_slot_to_slot_without_the_hot_line() {
    for slot_count in [2, 4, 8] {
        let mut landed = Landed::new(slot_count);
        assert_eq!(landed.receive(), Ok(None));
        landed.write();
        landed.name(1);
        assert_eq!(landed.receive(), Ok(Some((1, 0))));
        for sequence in 2..100 {
            landed.write();
            assert_eq!(landed.receive(), Ok(Some((sequence, 0))));
            assert_eq!(landed.receive(), Ok(None));
        }
        assert_eq!(landed.reader.counts(), SubscriberStats { received: 99, ..SubscriberStats::default() });
    }
}

#[test]
fn the_first_value_of_a_late_reader_is_found_by_the_hot_line() {
    let mut landed = Landed::new(8);
    landed.pass_over(20);
    landed.write();
    assert_eq!(landed.receive(), Ok(None));
    landed.name(21);
    assert_eq!(landed.receive(), Ok(Some((21, 0))));
}

/// Words arrive one by one in any order: the value is received only after the last one, and then at once. Earlier values are
/// received meanwhile.
#[test]
fn an_arriving_value_is_waited_for() {
    let mut landed = Landed::new(4);
    landed.write();
    landed.name(1);
    for round in 0..500 {
        // The newest complete value is returned first.
        let whole = landed.random(3) as u64;
        let last = landed.reader.last().get();
        landed.write_all(whole);
        let mut expected = (whole > 0).then(|| (last + whole, whole - 1));
        if last == 0 {
            expected = Some((1 + whole, 0));
        }
        let arriving = landed.publish();
        let source = landed.writer.region().clone();
        for offset in landed.words_of(&arriving) {
            if landed.region.load(offset) == source.load(offset) {
                continue;
            }
            assert_eq!(landed.receive(), Ok(expected.take()), "round {round}");
            landed.bring(offset);
            landed.now_ns += ARRIVAL_SETTLED_NS / 100;
        }
        let conflated = expected.map_or(0, |(_, conflated)| conflated + 1);
        assert_eq!(landed.receive(), Ok(Some((arriving.sequence.get(), conflated))), "round {round}");
    }
    assert_eq!((landed.reader.counts().torn_retries, landed.reader.counts().rejected), (0, 0));
}

/// Readers start anywhere, and the region holds a lap of arbitrary values before the newest; the hot line is old.
#[test]
fn a_reader_that_was_overtaken_finds_the_newest_value_at_once() {
    for slot_count in [2, 4, 16, 64] {
        let mut landed = Landed::new(slot_count);
        landed.write();
        landed.name(1);
        assert_eq!(landed.receive(), Ok(Some((1, 0))));
        let mut conflated = 0;
        for _ in 0..300 {
            let last = landed.reader.last().get();
            let ahead = 1 + landed.random(5 * slot_count as usize) as u64;
            landed.write_all(ahead);
            if landed.random(10) == 0 {
                landed.name(last + 1 + landed.state % ahead);
            }
            assert_eq!(landed.receive(), Ok(Some((last + ahead, ahead - 1))));
            conflated += ahead - 1;
        }
        let expected = SubscriberStats { received: 301, conflated, ..SubscriberStats::default() };
        assert_eq!(landed.reader.counts(), expected);
    }
}

/// The publisher skips values, and the slot that the reader reads next shows it.
#[test]
fn skipped_values_are_counted() {
    let mut landed = Landed::new(4);
    landed.write();
    landed.name(1);
    assert_eq!(landed.receive(), Ok(Some((1, 0))));
    for _ in 0..200 {
        let last = landed.reader.last().get();
        let more = landed.random(3) as u64;
        landed.write_all(more);
        let passed_over = 1 + landed.random(9) as u64;
        landed.pass_over(passed_over);
        let newest = landed.write();
        landed.name(newest);
        // The stamp is the last word of the batch, and may not have arrived yet.
        if landed.random(2) == 0 {
            landed.region.store(landed.slot(last + more + 1), newest);
        }
        assert_eq!(landed.receive(), Ok(Some((newest, newest - last - 1))));
        assert_eq!(landed.receive(), Ok(None));
    }
}

/// However the reader found an arriving value, it takes the complete one before it.
#[test]
fn the_value_before_an_arriving_one_is_taken() {
    let arrives = |landed: &mut Landed| {
        let arriving = landed.publish();
        landed.bring(arriving.slot.offset);
        arriving
    };
    // From slot to slot; by an overwritten slot; by an overwritten one while the hot line names the value before.
    for (ahead, passed_over, named) in
        [(1, 0, false), (4, 0, false), (3, 0, false), (2, 1, true), (2, 2, true)]
    {
        let mut landed = Landed::new(4);
        landed.write();
        landed.name(1);
        assert_eq!(landed.receive(), Ok(Some((1, 0))));
        landed.write_all(ahead);
        let whole = landed.writer.last().get();
        if named {
            landed.name(whole);
        }
        landed.pass_over(passed_over);
        let arriving = arrives(&mut landed);
        let case = (ahead, passed_over, named);
        assert_eq!(landed.receive(), Ok(Some((whole, whole - 2))), "{case:?}");
        assert_eq!(landed.receive(), Ok(None), "{case:?}");
        landed.words_of(&arriving).into_iter().for_each(|offset| landed.bring(offset));
        if passed_over > 0 {
            landed.name(arriving.sequence.get());
        }
        assert_eq!(landed.receive(), Ok(Some((arriving.sequence.get(), passed_over))), "{case:?}");
    }
}

#[test]
fn damage_is_reported_once_it_has_settled() {
    type Spoil = fn(&Landed, usize);
    type Expected = fn(&ReadFailure) -> bool;
    let spoils: [(Spoil, Expected); 5] = [
        (
            |landed, slot| landed.region.store(slot + 32, landed.region.load(slot + 32) ^ 1),
            |failure| matches!(failure, ReadFailure::Damaged { .. }),
        ),
        (
            |landed, slot| {
                let len = slot_len(landed.region.load(slot + 16) as u32 as usize);
                landed.region.store(slot + len - 8, 0);
            },
            |failure| matches!(failure, ReadFailure::BrokenStamps { .. }),
        ),
        (
            |landed, slot| landed.region.store(slot + 16, 1 << 20),
            |failure| matches!(failure, ReadFailure::ImpossibleLen { len: 0x10_0000, .. }),
        ),
        (
            |landed, slot| landed.region.store(slot, 0),
            |failure| matches!(failure, ReadFailure::BrokenStamps { .. }),
        ),
        (
            |landed, slot| landed.region.store(slot + 24, 0),
            |failure| matches!(failure, ReadFailure::Damaged { .. }),
        ),
    ];
    for (index, (spoil, expected)) in spoils.into_iter().enumerate() {
        for passed_over in 0..3 {
            let mut landed = Landed::new(8);
            landed.write();
            landed.name(1);
            assert_eq!(landed.receive(), Ok(Some((1, 0))));
            landed.pass_over(passed_over);
            let wrong = landed.write();
            landed.name(wrong);
            spoil(&landed, landed.slot(wrong));
            landed.expect_report(wrong, expected);
            let counts = landed.reader.counts();
            assert_eq!((counts.received, counts.conflated, counts.rejected), (1, passed_over, 1));
            // Values skipped before it are reported with the next value.
            landed.write();
            assert_eq!(landed.receive(), Ok(Some((wrong + 1, passed_over))), "way {index}");
        }
    }
}

#[test]
fn values_of_another_epoch_are_reported_and_never_accepted() {
    let mut landed = Landed::new(4);
    landed.reader = StateReader::new(landed.writer.geometry(), Epoch::new(1).unwrap(), TOPIC);
    landed.write();
    landed.name(1);
    let foreign = |failure: &ReadFailure| matches!(failure, ReadFailure::ForeignEpoch { found: 0xfeed, .. });
    landed.expect_report(1, foreign);
    // While more arrive, the damaged one could be overwritten each time.
    landed.write_all(5);
    assert_eq!(landed.receive(), Err(ReadFailure::Contended { attempts: limits::TORN_RETRIES_MAX }));
    landed.expect_report(6, foreign);
    assert_eq!(
        landed.reader.counts(),
        SubscriberStats { conflated: 4, rejected: 2, ..SubscriberStats::default() }
    );
}

/// A value that is never completed does not delay later ones.
#[test]
fn an_incomplete_value_is_skipped_when_the_next_one_has_arrived() {
    let mut landed = Landed::new(4);
    landed.write();
    landed.name(1);
    assert_eq!(landed.receive(), Ok(Some((1, 0))));
    for _ in 0..50 {
        let incomplete = landed.publish();
        landed.bring(incomplete.slot.offset);
        assert_eq!(landed.receive(), Ok(None));
        landed.now_ns += ARRIVAL_SETTLED_NS / 2;
        let sequence = landed.write();
        assert_eq!(landed.receive(), Ok(Some((sequence, 1))));
    }
    assert_eq!(landed.reader.counts().rejected, 0);
}

/// Its first packet has arrived, and a network is slow: the newest value of a topic is not hidden for good.
#[test]
fn value_whose_rest_arrives_after_it_was_reported_is_received() {
    let mut landed = Landed::new(4);
    landed.write();
    landed.name(1);
    assert_eq!(landed.receive(), Ok(Some((1, 0))));
    let ByteRange { offset, len } = landed.publish().slot;
    assert!(len > 64);
    (offset..offset + 64).step_by(8).for_each(|word| landed.bring(word));
    landed.expect_report(2, |failure| matches!(failure, ReadFailure::BrokenStamps { .. }));
    (offset + 64..offset + len).step_by(8).for_each(|word| landed.bring(word));
    assert_eq!(landed.receive(), Ok(Some((2, 0))));
    // The last word to arrive is one of the payload.
    let ByteRange { offset, len } = landed.publish().slot;
    let late = offset + 40;
    (offset..offset + len).step_by(8).filter(|word| *word != late).for_each(|word| landed.bring(word));
    landed.expect_report(3, |failure| matches!(failure, ReadFailure::Damaged { .. }));
    landed.bring(late);
    let received = (0..=limits::EMPTY_POLLS_MAX).find_map(|_| landed.receive().unwrap());
    assert_eq!(received, Some((3, 0)));
    assert_eq!((landed.reader.counts().conflated, landed.reader.counts().rejected), (0, 2));
}

/// The hot line was lost on an unreliable connection: the stamp over the slot of the skipped value names one that is there.
#[test]
fn skipped_values_are_noticed_without_the_hot_line() {
    let mut landed = Landed::new(8);
    landed.write();
    landed.name(1);
    assert_eq!(landed.receive(), Ok(Some((1, 0))));
    // A whole round of the slots, too.
    for passed_over in 1..20 {
        let last = landed.reader.last().get();
        landed.pass_over(passed_over);
        let newest = landed.write();
        landed.region.store(landed.slot(last + 1), newest);
        assert_eq!(landed.receive(), Ok(Some((newest, passed_over))));
    }
}

/// The hot line stays as it is until the publisher writes it again.
#[test]
fn reader_goes_back_from_a_number_that_no_value_has() {
    const FAR: u64 = 1 << 40;
    for lead in [1, 3, 9] {
        let mut landed = Landed::new(8);
        landed.write();
        landed.name(1);
        assert_eq!(landed.receive(), Ok(Some((1, 0))));
        // A head stamp that nothing else speaks for is not followed.
        let slot = landed.slot(2);
        landed.region.store(slot, landed.region.load(slot) ^ (FAR + 2));
        for _ in 0..10 {
            landed.now_ns += ARRIVAL_SETTLED_NS;
            assert_eq!(landed.receive(), Ok(None));
        }
        landed.name(FAR);
        landed.expect_report(FAR, |failure| matches!(failure, ReadFailure::BrokenStamps { .. }));
        landed.write_all(lead);
        let newest = 1 + lead;
        assert_eq!(landed.receive(), Ok(Some((newest, lead - 1))));
        landed.write();
        assert_eq!(landed.receive(), Ok(Some((newest + 1, 0))));
        assert_eq!(landed.reader.counts().conflated, lead - 1);
    }
}

/// Whatever a publisher writes, a read ends, accepts no invalid value, and advances.
#[test]
fn hostile_memory_never_verifies_and_never_stalls_a_read() {
    for slot_count in [2, 4, 64] {
        for _ in 0..300 {
            let mut landed = Landed::new(slot_count);
            let len = landed.region.len();
            let pattern = landed.random(4);
            landed.state ^= u64::from(slot_count) << 40 | pattern as u64;
            for offset in (0..len).step_by(8) {
                let word = match landed.random(6) {
                    0 => u64::MAX,
                    1 => offset as u64 / 128,
                    2 => landed.random(9) as u64,
                    3 => u64::MAX - landed.random(9) as u64,
                    _ => landed.state,
                };
                landed.region.store(offset, word);
            }
            let mut last = 0;
            for _ in 0..200 {
                landed.now_ns += ARRIVAL_SETTLED_NS / 3;
                match landed.receive() {
                    Ok(value) => assert_eq!(value, None),
                    Err(ReadFailure::Contended { .. }) => {}
                    Err(_) => {
                        let now = landed.reader.last().get();
                        assert!(now > last);
                        last = now;
                    }
                }
            }
        }
    }
}
