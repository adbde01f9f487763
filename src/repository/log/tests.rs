use std::collections::VecDeque;
use std::sync::Arc;

mod fetched;
mod landing;
mod mapped;
mod views;

use super::*;
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::Geometry;
use crate::layout::WORD;
use crate::layout::log::{HOT_END, HOT_START, HOT_START_SEQUENCE, LogGeometry, RING_OFFSET, SEGMENT_COUNT};
use crate::memory::{Access, Protection, Region};
use crate::repository::{
    Fetch, Finding, LossReason, Lost, ReadFailure, Reader, Taken, TooLong, Verified, WriteOrder, Writer as _,
};
use crate::testkit::random::{Random, amount, each_seed};

const TOPIC: TopicId = TopicId::new(7);

fn writer(capacity: usize, payload_len_max: usize) -> LogWriter {
    let geometry = LogGeometry::new(capacity, payload_len_max).unwrap();
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    LogWriter::new(region, geometry, &Geometry::from(geometry).static_header(Epoch::FIRST, TOPIC, 0))
}

fn reader(writer: &LogWriter, start: LogStart) -> LogReader {
    LogReader::new(writer.geometry(), Epoch::FIRST, TOPIC, start)
}

/// The next record in mapped memory, or the missing ones before it.
fn poll<'a>(reader: &'a mut LogReader, memory: &Region) -> Option<Next<'a>> {
    let taken = reader.take_held().map_or_else(|| reader.poll(memory).transpose(), |taken| Some(Ok(taken)));
    Some(came(reader, taken?))
}

/// The outcome of taking a record.
#[derive(Debug)]
enum Next<'a> {
    Record(Verified<'a>),
    Lost(Lost),
}

/// The record, or the missing ones.
fn came(reader: &LogReader, taken: Result<Taken, ReadFailure>) -> Next<'_> {
    match taken {
        Ok(taken) => Next::Record(reader.verified(taken)),
        Err(ReadFailure::Lost(lost)) => Next::Lost(lost),
        Err(failure) => panic!("{failure:?}"),
    }
}

/// The payload of a record, whose length varies by sequence.
fn payload(sequence: u64, len_max: usize) -> Vec<u8> {
    let len = sequence.wrapping_mul(7919) % (len_max as u64 + 1);
    (0..len).map(|index| (index ^ sequence.wrapping_mul(31)).to_le_bytes()[0]).collect()
}

/// Takes everything; returns the counts of received and lost records, and checks that they are contiguous.
fn drain(reader: &mut LogReader, memory: &Region, len_max: usize) -> (u64, u64) {
    let (mut received, mut lost) = (0, 0);
    loop {
        let next = reader.next_sequence();
        match poll(reader, memory) {
            None => return (received, lost),
            Some(Next::Record(record)) => {
                assert!(
                    next == record.meta.sequence || received + lost == 0,
                    "{next} is followed by {}",
                    record.meta.sequence
                );
                assert_eq!(record.payload, payload(record.meta.sequence.get(), len_max));
                assert_eq!(record.meta.published_ns, record.meta.sequence.get());
                received += 1;
            }
            Some(Next::Lost(Lost { first, count, .. })) => {
                assert!((first, true) == (next, count > 0) || received + lost == 0);
                lost += count;
            }
        }
    }
}

fn append(writer: &mut LogWriter, count: u64, len_max: usize) {
    for _ in 0..count {
        let sequence = writer.last().get() + 1;
        assert_eq!(writer.append(&payload(sequence, len_max), sequence), Ok(Sequence::new(sequence)));
        writer.commit(sequence);
    }
}

#[test]
fn records_are_received_in_order_each_once_round_after_round() {
    let mut writer = writer(8 << 10, 300);
    let mut reader = reader(&writer, LogStart::Earliest);
    for round in 1..2000_u64 {
        append(&mut writer, round % 17, 300);
        assert_eq!(drain(&mut reader, writer.region(), 300), (round % 17, 0));
    }
    assert_eq!(reader.counts().received, writer.last().get());
}

#[test]
fn a_record_is_invisible_before_its_batch_is_committed() {
    let mut writer = writer(1 << 16, 100);
    let mut reader = reader(&writer, LogStart::Earliest);
    for sequence in 1..=20 {
        writer.append(&payload(sequence, 100), sequence).unwrap();
        assert!(reader.poll(writer.region()).unwrap().is_none());
    }
    let appended = writer.commit(1).unwrap();
    assert_eq!((appended.newest, appended.positions[0]), (Sequence::new(20), 0));
    assert!(writer.commit(1).is_none());
    assert_eq!(drain(&mut reader, writer.region(), 100), (20, 0));
}

#[test]
fn a_batch_of_more_than_half_of_the_ring_is_committed_in_parts() {
    let mut writer = writer(1 << 12, 50);
    let mut reader = reader(&writer, LogStart::Earliest);
    for sequence in 1..=1000 {
        writer.append(&payload(sequence, 50), sequence).unwrap();
    }
    let seen = writer.last().get();
    assert!(seen > 900 && seen < 1000);
    let (received, lost) = drain(&mut reader, writer.region(), 50);
    assert_eq!(reader.next_sequence().get(), seen + 1);
    assert!(received > 10, "{received} and {lost}");
}

#[test]
fn a_record_beyond_the_declared_maximum_is_refused_and_changes_nothing() {
    let mut writer = writer(1 << 12, 50);
    assert_eq!(writer.append(&[0; 51], 1), Err(TooLong { len: 51, max: 50 }));
    assert!(writer.commit(1).is_none());
    append(&mut writer, 3, 50);
    assert_eq!(drain(&mut reader(&writer, LogStart::Earliest), writer.region(), 50), (3, 0));
}

#[test]
fn overwritten_records_are_reported_once_with_their_exact_count() {
    let mut writer = writer(8 << 10, 120);
    let mut reader = reader(&writer, LogStart::At(Sequence::new(1)));
    let (mut received, mut lost) = (0, 0);
    for round in 1..200_u64 {
        append(&mut writer, round * 13 % 401, 120);
        let (more, gone) = drain(&mut reader, writer.region(), 120);
        (received, lost) = (received + more, lost + gone);
        assert_eq!(received + lost, writer.last().get());
    }
    assert!(received > 1000 && lost > 1000, "{received} and {lost}");
    assert_eq!(
        (reader.counts().received, reader.counts().lapped, reader.counts().rejected),
        (received, lost, 0)
    );
}

/// A lapped reader continues with records that are not given up next.
#[test]
fn a_lapped_reader_continues_with_a_margin() {
    let mut writer = writer(64 << 10, 40);
    let mut reader = reader(&writer, LogStart::At(Sequence::new(1)));
    append(&mut writer, 5000, 40);
    assert!(matches!(poll(&mut reader, writer.region()), Some(Next::Lost(_))));
    let next = reader.next_sequence();
    // As much as the margin, less a segment, is written before it reads again.
    let frames = (64 << 10) / 8 / 64;
    append(&mut writer, frames - frames / 8 - 1, 40);
    assert!(
        matches!(poll(&mut reader, writer.region()), Some(Next::Record(record)) if record.meta.sequence == next)
    );
}

#[test]
fn a_reader_begins_at_the_requested_start() {
    let mut writer = writer(64 << 10, 40);
    append(&mut writer, 5000, 40);
    let first = |start| {
        let mut reader = reader(&writer, start);
        match poll(&mut reader, writer.region()) {
            Some(Next::Record(record)) => Some((record.meta.sequence.get(), 0)),
            Some(Next::Lost(Lost { first, count, .. })) => Some((first.get(), count)),
            None => None,
        }
    };
    assert_eq!(first(LogStart::Newest), None);
    assert_eq!(first(LogStart::Back(0)), None);
    assert_eq!(first(LogStart::Back(1)), Some((5000, 0)));
    assert_eq!(first(LogStart::Back(700)), Some((4301, 0)));
    assert_eq!(first(LogStart::At(Sequence::new(4500))), Some((4500, 0)));
    assert_eq!(first(LogStart::At(Sequence::new(5001))), None);
    let (oldest, _) = first(LogStart::Earliest).unwrap();
    assert!(oldest > 1 && oldest < 4301);
    assert_eq!(first(LogStart::Back(1 << 40)), Some((oldest, 0)));
    assert_eq!(first(LogStart::At(Sequence::new(3))), Some((3, oldest - 3)));
    assert_eq!(first(LogStart::At(Sequence::NONE)), Some((1, oldest - 1)));
    let empty = self::writer(64 << 10, 40);
    for start in [LogStart::Earliest, LogStart::Newest, LogStart::Back(3), LogStart::At(Sequence::new(9))] {
        assert!(reader(&empty, start).poll(empty.region()).unwrap().is_none());
    }
}

/// A damaged record is reported with the next one, and later ones are received.
#[test]
fn each_flipped_bit_is_reported_and_costs_no_other_record() {
    for offset in frames_of_twelve() {
        for bit in 0..64 {
            let mut writer = writer(1 << 12, 24);
            append(&mut writer, 12, 24);
            let word = writer.region().load(offset);
            writer.region().store(offset, word ^ 1 << bit);
            let mut reader = reader(&writer, LogStart::At(Sequence::new(1)));
            let before = drain(&mut reader, writer.region(), 24);
            append(&mut writer, 1, 24);
            let after = drain(&mut reader, writer.region(), 24);
            let (received, lost) = (before.0 + after.0, before.1 + after.1);
            assert_eq!(received + lost, 13, "word {offset:#x} bit {bit}");
            // A wrong length hides where the next record begins, and one more may begin before the next entry.
            assert!(lost <= LOST_MAX, "word {offset:#x} bit {bit}: {lost}");
            assert_eq!((reader.counts().rejected, reader.counts().lapped), (lost, 0));
        }
    }
}

/// The offsets of the words of twelve records.
fn frames_of_twelve() -> impl Iterator<Item = usize> {
    let mut writer = writer(1 << 12, 24);
    append(&mut writer, 12, 24);
    let end = usize::try_from(writer.region().load(HOT_END)).unwrap();
    (RING_OFFSET..RING_OFFSET + end).step_by(8)
}

/// Records that one flipped bit can cost.
const LOST_MAX: u64 = 3;

#[test]
fn random_memory_ends_every_call_and_gives_no_record() {
    each_seed(200, |seed| {
        let mut random = Random::new(seed);
        let writer = writer(1 << 12, 100);
        for offset in (0..writer.region().len()).step_by(8) {
            let word = random.next();
            writer.region().store(offset, if word.is_multiple_of(3) { word % 4096 } else { word });
        }
        for start in [LogStart::Earliest, LogStart::Newest, LogStart::Back(9), LogStart::At(Sequence::new(2))]
        {
            let mut reader = reader(&writer, start);
            let mut calls = 0;
            loop {
                assert!(!matches!(poll(&mut reader, writer.region()), Some(Next::Record(_))));
                calls += 1;
                if !reader.has_more() && calls > 8 {
                    break;
                }
                assert!(calls < 1000, "seed {seed}: {start:?} does not terminate");
            }
        }
    });
}

/// Each round would be skipped anew, up to an arbitrarily distant end.
#[test]
fn a_ring_skipped_from_its_first_word_ends_every_call() {
    for end in [u64::MAX, 1 << 62, 1 << 40] {
        let mut writer = writer(1 << 12, 100);
        append(&mut writer, 1, 100);
        writer.region().store(RING_OFFSET, crate::layout::log::FILLER);
        writer.region().store(HOT_END, end);
        for start in [LogStart::Earliest, LogStart::Newest, LogStart::Back(9), LogStart::At(Sequence::new(2))]
        {
            let mut reader = reader(&writer, start);
            let mut calls = 0;
            while calls == 0 || reader.has_more() {
                assert!(poll(&mut reader, writer.region()).is_none());
                calls += 1;
                assert!(calls < 1000, "{start:?} does not terminate at {end}");
            }
        }
    }
}

/// A record always fits there.
#[test]
fn the_writer_never_skips_a_whole_ring() {
    each_seed(40, |seed| {
        let mut random = Random::new(seed);
        let len_max = random.index(1000);
        let mut writer = writer(random.index(1 << 13), len_max);
        for sequence in 1..2000 {
            let len = if random.below(3) == 0 { len_max } else { random.index(len_max + 1) };
            writer.append(&vec![7; len], sequence).unwrap();
            assert_ne!(writer.region().load(RING_OFFSET), crate::layout::log::FILLER, "seed {seed}");
        }
    });
}

#[test]
fn impossible_sequences_are_replaced_by_possible_ones() {
    for word in [0, 1, u64::MAX - 1, u64::MAX] {
        let writer = writer(1 << 12, 100);
        writer.region().store(crate::layout::header::HOT_SEQUENCE, word);
        writer.region().store(HOT_START_SEQUENCE, word);
        for start in [LogStart::Earliest, LogStart::Newest, LogStart::Back(0), LogStart::At(Sequence::NONE)] {
            let mut reader = reader(&writer, start);
            reader.settle(writer.region());
            assert!(reader.next_sequence() > Sequence::NONE, "{word:x} {start:?}");
            assert_eq!(reader.last().get(), reader.next_sequence().get() - 1);
            // The end reported by a publisher may be any number, too. It is reported once.
            let cut_off = reader.give_up(Sequence::new(u64::MAX)).expect("there are records before it");
            assert_eq!(cut_off.1, reader.counts().cut_off);
            assert_eq!(reader.give_up(Sequence::new(u64::MAX)), None);
        }
    }
}

/// The writer gives up the same records as one whose index is intact.
#[test]
fn a_damaged_index_misleads_no_writer() {
    let hot = |writer: &LogWriter| {
        [HOT_START, HOT_START_SEQUENCE, HOT_END].map(|offset| writer.region().load(offset))
    };
    for (word, bits) in [(0, u64::MAX), (0, 1 << 63), (0, 8), (0, 1), (1, u64::MAX), (1, 1 << 40), (1, 1)] {
        let [mut damaged, mut intact] = [(); 2].map(|()| writer(4 << 10, 40));
        [&mut damaged, &mut intact].into_iter().for_each(|writer| append(writer, 500, 40));
        for segment in 0..SEGMENT_COUNT as u64 {
            let offset = damaged.geometry().entry_offset(segment) + word * WORD;
            damaged.region().store(offset, damaged.region().load(offset) ^ bits);
        }
        for number in 501..1000 {
            let len = damaged.geometry().capacity() / 4;
            assert_eq!(damaged.gives_up(len), intact.gives_up(len), "{bits:x} of word {word}");
            for writer in [&mut damaged, &mut intact] {
                writer.append(&payload(number, 40), number).unwrap();
                if number % 10 == 0 {
                    writer.commit(number);
                }
            }
            assert_eq!(hot(&damaged), hot(&intact), "{bits:x} of word {word}");
        }
    }
}

/// An oracle: what the ring must still hold is received, everything else is reported lost.
#[test]
fn any_order_of_publishing_and_reading_accounts_for_every_record() {
    each_seed(12, |seed| {
        let mut random = Random::new(seed);
        let len_max = 1 + random.index(400);
        let mut writer = writer(1 << (11 + random.below(6)), len_max);
        let mut readers: Vec<(LogReader, u64)> = Vec::new();
        let mut pending: VecDeque<u64> = VecDeque::new();
        let mut appended = 0;
        for _ in 0..2000 {
            match random.below(10) {
                0..5 => {
                    for _ in 0..random.below(30) {
                        appended += 1;
                        writer.append(&payload(appended, len_max), appended).unwrap();
                        pending.push_back(appended);
                    }
                }
                5..7 => {
                    writer.commit(1);
                }
                7 if readers.len() < 4 => {
                    let start = Sequence::new(1 + random.below(appended + 1));
                    readers.push((reader(&writer, LogStart::At(start)), start.get() - 1));
                }
                _ => {
                    for (reader, told) in &mut readers {
                        let (received, lost) = drain(reader, writer.region(), len_max);
                        *told += received + lost;
                        assert!(
                            *told == writer.last().get() || received + lost == 0,
                            "{told} of {}",
                            writer.last()
                        );
                    }
                }
            }
        }
    });
}

/// Two threads, a writer that never pauses.
#[test]
fn a_hot_writer_causes_no_wrong_record_and_no_silent_loss() {
    let mut writer = writer(1 << 16, 200);
    let mut reader = reader(&writer, LogStart::At(Sequence::new(1)));
    let len = writer.geometry().region_len();
    let memory = Region::import(writer.region().file(), len, Access::Read).unwrap();
    let count = amount(100_000, 2_000_000);
    let writing = std::thread::spawn(move || {
        append(&mut writer, count, 200);
        writer
    });
    let (mut received, mut lost) = (0, 0);
    while received + lost < count {
        let (more, gone) = drain(&mut reader, &memory, 200);
        (received, lost) = (received + more, lost + gone);
    }
    let writer = writing.join().unwrap();
    // However often it is lapped, it gets the last records, which are not overwritten.
    assert_eq!((received + lost, reader.counts().rejected), (writer.last().get(), 0));
    assert!(received > 0);
}

#[test]
fn ends_of_frames_are_found_between_the_places_that_the_index_names() {
    each_seed(20, |seed| {
        let mut random = Random::new(seed);
        let mut writer = writer(8 << 10, 300);
        let memory = Arc::clone(writer.region());
        // Where each written record ends.
        let mut ends = Vec::new();
        while ends.len() < 600 {
            let sequence = writer.last().get() + 1;
            writer.append(&payload(sequence, 300), sequence).unwrap();
            ends.push(writer.commit(sequence).unwrap().positions[1]);
        }
        let (geometry, head) = (writer.geometry(), head(&memory));
        let start = memory.load(HOT_START);
        let held: Vec<u64> = ends.iter().copied().filter(|end| *end >= start).collect();
        for _ in 0..200 {
            let from = held[random.index(held.len())];
            let to = from + random.below(head.end - from + 1);
            let found = end_between(&geometry, &memory, from, to);
            let whole = held.iter().copied().filter(|end| (from..=to).contains(end)).max();
            // The skipped rest of the ring may be passed as well.
            let is_behind_rest = geometry.offset(found) == RING_OFFSET;
            assert!(
                Some(found) == whole || (is_behind_rest && Some(found) > whole && found <= to),
                "seed {seed}"
            );
        }
        assert_eq!(
            end_between(&geometry, &memory, start.saturating_sub(8), head.end),
            start.saturating_sub(8)
        );
    });
}
