//! A reader that keeps up goes by the next frame's sequence, and not by the hot line: what it finds in place of a sequence must never
//! mislead it.

use super::*;
use crate::layout::WORD;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::{
    FrameCheck, FrameHeader, HEADER_LEN, HOT_END, HOT_START, HOT_START_SEQUENCE, frame_len,
};

/// More polls than a reader makes before it reads the hot line.
const MANY_POLLS: usize = 10_000;

/// A writer whose records have payloads given by the test, and a reader that has received all of them.
struct Pair {
    writer: LogWriter,
    reader: LogReader,
}

impl Pair {
    fn new(capacity: usize, payload_len_max: usize) -> Self {
        let writer = writer(capacity, payload_len_max);
        let reader = reader(&writer, LogStart::At(Sequence::new(1)));
        Self { writer, reader }
    }

    fn append(&mut self, payload: &[u8]) {
        self.writer.append(payload, 1).unwrap();
    }

    fn publish(&mut self, payload: &[u8]) -> [u64; 2] {
        self.append(payload);
        self.writer.commit(1).unwrap().positions
    }

    /// What the reader takes: the payload, or the missing records.
    fn take(&mut self) -> Option<Result<Vec<u8>, Lost>> {
        match poll(&mut self.reader, self.writer.region())? {
            Next::Record(record) => Some(Ok(record.payload.to_vec())),
            Next::Lost(lost) => Some(Err(lost)),
        }
    }

    /// Publishes until the next frame begins at or past this offset in the ring, and receives everything.
    fn advance_to(&mut self, place: u64, payload: &[u8]) {
        let capacity = self.writer.geometry().capacity() as u64;
        while self.writer.committed_end() % capacity < place {
            self.publish(payload);
            assert_eq!(self.take(), Some(Ok(payload.to_vec())));
        }
    }

    fn is_segment_start(&self) -> bool {
        self.writer.committed_end().is_multiple_of(self.writer.geometry().segment_len() as u64)
    }
}

/// A frame that is right in every respect, but was never published.
fn forged(sequence: Sequence, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    let header = FrameHeader { sequence, payload_len: len, crc: 0, published_ns: 1 };
    let crc = FrameCheck::new(TOPIC, Epoch::FIRST).of(&header, payload);
    let mut bytes: Vec<u8> = bytemuck::cast_slice(&FrameHeader { crc, ..header }.emit()).to_vec();
    bytes.extend(payload);
    bytes.resize(frame_len(payload.len()), 0);
    bytes
}

/// The hot line is of no use to it, except where a segment begins.
#[test]
fn a_reader_that_keeps_up_does_not_read_the_hot_line() {
    let mut pair = Pair::new(1 << 14, 40);
    pair.publish(&[1; 40]);
    assert!(pair.take().is_some() && pair.take().is_none());
    for number in 2..5000_u64 {
        let needs_hot_line = pair.is_segment_start()
            || pair.writer.geometry().rest(pair.writer.committed_end()) < frame_len(40);
        let payload = [number.to_le_bytes()[0]; 40];
        pair.publish(&payload);
        let words = [HOT_SEQUENCE, HOT_END, HOT_START, HOT_START_SEQUENCE];
        let before = words.map(|offset| pair.writer.region().load(offset));
        if !needs_hot_line {
            words.iter().for_each(|offset| pair.writer.region().store(*offset, 0));
        }
        assert_eq!(pair.take(), Some(Ok(payload.to_vec())), "record {number}");
        words.iter().zip(before).for_each(|(offset, word)| pair.writer.region().store(*offset, word));
        assert_eq!(pair.take(), None);
    }
}

/// Zeros in place of a sequence mean that there is no frame yet.
#[test]
fn records_of_zeros_are_received_like_any_others() {
    each_seed(30, |seed| {
        let mut random = Random::new(seed);
        let len_max = 8 + random.index(300);
        let mut pair = Pair::new(1 << (11 + random.below(4)), len_max);
        let mut unread = 0;
        for _ in 0..3000 {
            let len = random.index(len_max + 1);
            pair.append(&vec![0; len]);
            unread += 1;
            if random.below(3) == 0 {
                continue;
            }
            pair.writer.commit(1).unwrap();
            while unread > 0 {
                match pair.take() {
                    Some(Ok(payload)) => assert!(payload.iter().all(|byte| *byte == 0)),
                    other => panic!("seed {seed}: {other:?}"),
                }
                unread -= 1;
            }
            assert_eq!(pair.take(), None, "seed {seed}");
        }
    });
}

/// Wherever the next frame will begin, an earlier payload may have left one that is right in every respect.
#[test]
fn a_frame_forged_by_an_earlier_payload_is_never_taken() {
    let mut random = Random::new(1);
    let mut pair = Pair::new(1 << 14, 200);
    let memory = Arc::clone(pair.writer.region());
    let mut cleared = 0;
    for _ in 0..2000 {
        let payload = vec![5; random.index(201)];
        let (geometry, next) = (pair.writer.geometry(), pair.writer.last().next());
        // Where the frame after the next one would be, with and without a skip of the rest of the ring.
        for begin in [pair.writer.committed_end(), 0] {
            let offset = geometry.offset(begin + frame_len(payload.len()) as u64);
            let frame = forged(next.next(), &[66; 16]);
            let words = frame.as_chunks::<WORD>().0.iter().map(|word| u64::from_le_bytes(*word));
            let within = (offset..geometry.region_len()).step_by(WORD);
            within.zip(words).for_each(|(offset, word)| memory.store(offset, word));
        }
        let [_, end] = pair.publish(&payload);
        assert_eq!(pair.take(), Some(Ok(payload)));
        assert_eq!(pair.take(), None, "the record after {next} was not published");
        cleared += u64::from(memory.load(geometry.offset(end)) == 0);
    }
    assert!(cleared > 1700, "{cleared}");
}

/// Its place is in the middle of a later payload, whose bytes look like a frame that is not there yet, or like the next one.
#[test]
fn a_lapped_reader_notices_at_once_whatever_lies_in_its_place() {
    for is_forged in [false, true] {
        let mut pair = Pair::new(1 << 13, 1000);
        pair.advance_to(1000, &[1; 96]);
        let place = pair.writer.committed_end() % pair.writer.geometry().capacity() as u64;
        let next = pair.reader.next_sequence();
        assert_eq!(pair.take(), None);
        // Publishes until a payload covers the place, a round later.
        let mut covering = 0;
        while covering == 0 {
            let begin = pair.writer.committed_end() + HEADER_LEN as u64;
            let capacity = pair.writer.geometry().capacity() as u64;
            let mut payload = vec![0; 1000];
            let from = (capacity + place).wrapping_sub(begin);
            if let Some(space) = usize::try_from(from).ok().and_then(|from| payload.get_mut(from..))
                && is_forged
            {
                let frame = forged(next, &[66; 16]);
                let len = frame.len().min(space.len());
                space[..len].copy_from_slice(&frame[..len]);
            }
            let [_, end] = pair.publish(&payload);
            covering = u64::from(end >= capacity + place + 64);
        }
        let offset = pair.writer.geometry().offset(place);
        let expected = if is_forged { next.get() } else { 0 };
        assert_eq!(pair.writer.region().load(offset), expected, "the test has put it there");
        let Some(Err(lost)) = pair.take() else { panic!("a lapped reader") };
        assert_eq!((lost.first, lost.reason), (next, LossReason::Lapped));
    }
}

#[test]
fn a_batch_becomes_visible_at_once_to_a_reader_that_polls() {
    let mut pair = Pair::new(1 << 12, 100);
    for round in 1..500_usize {
        let count = 1 + round % 9;
        for index in 0..count {
            pair.append(&vec![7; (round * 13 + index * 29) % 101]);
            assert_eq!(pair.take(), None, "record {index} of batch {round} is not committed");
        }
        pair.writer.commit(1);
        for index in 0..count {
            assert_eq!(pair.take(), Some(Ok(vec![7; (round * 13 + index * 29) % 101])));
        }
        assert_eq!(pair.take(), None);
    }
}

/// Nothing would ever be stored there again. After the end of the topic, the next poll finds it.
#[test]
fn a_record_whose_sequence_was_damaged_to_zero_is_reported() {
    for has_ended in [false, true] {
        let mut pair = Pair::new(1 << 14, 40);
        pair.advance_to(100, &[1; 40]);
        let damaged = pair.writer.last().next();
        let [from, _] = pair.publish(&[2; 40]);
        pair.writer.region().store(pair.writer.geometry().offset(from), 0);
        pair.publish(&[3; 40]);
        assert_eq!(pair.take(), None);
        if has_ended {
            pair.reader.look_closely();
        }
        let polls = if has_ended { 1 } else { MANY_POLLS };
        let found = (0..polls).find_map(|_| pair.take());
        let found = found.or_else(|| {
            // Nothing shows where the next record begins, before there is one.
            pair.publish(&[4; 40]);
            (0..MANY_POLLS).find_map(|_| pair.take())
        });
        let Some(Err(Lost { first, reason, .. })) = found else { panic!("{found:?}") };
        assert_eq!((first, reason), (damaged, LossReason::Damaged));
    }
}

#[test]
fn a_reader_polls_records_of_a_numbering_that_continues() {
    let mut writer = writer(1 << 12, 40);
    let after = Sequence::new(u64::MAX / 2);
    writer.begin_after(after);
    let mut reader = reader(&writer, LogStart::At(after.next()));
    for number in 1..1000 {
        assert!(poll(&mut reader, writer.region()).is_none());
        writer.append(&[8; 40], 1).unwrap();
        writer.commit(1);
        let Some(Next::Record(record)) = poll(&mut reader, writer.region()) else {
            panic!("record {number}")
        };
        assert_eq!(record.meta.sequence.get(), after.get() + number);
    }
}

/// Payloads long enough to be copied and checked in pieces, with every length near a multiple of a piece.
#[test]
fn long_records_are_received_whole_and_each_flipped_bit_is_noticed() {
    let len_max = 3 * 8192 + 16;
    let mut pair = Pair::new(1 << 18, len_max);
    pair.publish(&[1; 40]);
    assert!(pair.take().is_some());
    for len in (1..=3).flat_map(|pieces| pieces * 8192 - 12..=pieces * 8192 + 12) {
        let payload: Vec<u8> = (0..len).map(|index| (index * 7 % 251_usize).to_le_bytes()[0]).collect();
        pair.publish(&payload);
        assert_eq!(pair.take(), Some(Ok(payload)), "{len} bytes");
        assert_eq!(pair.take(), None);
    }
    for word in (1..len_max / WORD).step_by(97) {
        let [_, end] = pair.publish(&vec![3; len_max - 16]);
        let begin = end - frame_len(len_max - 16) as u64;
        let offset = pair.writer.geometry().offset(begin) + word * WORD;
        pair.writer.region().store(offset, pair.writer.region().load(offset) ^ 1 << (word % 64));
        pair.publish(&[4; 8]);
        let taken: Vec<_> = std::iter::from_fn(|| pair.take()).collect();
        assert!(!taken.iter().any(|taken| *taken == Ok(vec![3; len_max - 16])), "word {word}");
    }
}

/// Two threads, a writer that never pauses, and records of any length, one or several to a commit.
#[test]
fn records_of_any_length_are_intact_beside_a_hot_writer() {
    let mut writer = writer(1 << 19, 20_000);
    let mut reader = reader(&writer, LogStart::At(Sequence::new(1)));
    let len = writer.geometry().region_len();
    let memory = Region::import(writer.region().file(), len, Access::Read).unwrap();
    let count = amount(10_000, 200_000);
    let writing = std::thread::spawn(move || {
        for sequence in 1..=count {
            writer.append(&payload(sequence, 20_000), sequence).unwrap();
            if sequence % 5 != 2 || sequence == count {
                writer.commit(sequence);
            }
        }
        writer
    });
    let (mut received, mut lost) = (0, 0);
    while received + lost < count {
        let (more, gone) = drain(&mut reader, &memory, 20_000);
        (received, lost) = (received + more, lost + gone);
    }
    writing.join().unwrap();
    assert_eq!((received + lost, reader.counts().rejected), (count, 0));
}

/// Written in pieces of any length, after appended records, some of them given up.
#[test]
fn a_staged_record_is_received_like_an_appended_one() {
    each_seed(20, |seed| {
        let mut random = Random::new(seed);
        let len_max = 1 + random.index(40_000);
        let mut pair = Pair::new(1 << (12 + random.below(7)), len_max);
        for _ in 0..200 {
            let mut expected = Vec::new();
            for _ in 0..random.below(3) {
                expected.push(payload(pair.writer.last().get() + expected.len() as u64, len_max));
                pair.append(expected.last().unwrap());
            }
            let (mut staged, mut bytes) = (pair.writer.stage(1), Vec::new());
            while random.below(8) > 0 {
                let piece = vec![random.next().to_le_bytes()[0]; random.index(len_max / 4 + 2)];
                match staged.append(&piece) {
                    Ok(()) => bytes.extend(&piece),
                    Err(TooLong { len, max }) => {
                        assert_eq!((len, max), (bytes.len() + piece.len(), len_max));
                        assert_eq!((staged.len(), staged.remaining()), (bytes.len(), max - bytes.len()));
                    }
                }
            }
            if random.below(4) > 0 {
                staged.finish(1);
                expected.push(bytes);
            }
            pair.writer.commit(1);
            for payload in expected {
                assert_eq!(pair.take(), Some(Ok(payload)), "seed {seed}");
            }
            assert_eq!(pair.take(), None, "seed {seed}");
        }
    });
}

/// The header of a damaged record still says where the next one is.
#[test]
fn several_damaged_records_in_a_row_cost_only_themselves() {
    for (first, count) in [(3_u8, 1_u8), (3, 2), (3, 5), (2, 9)] {
        let mut pair = Pair::new(1 << 14, 40);
        assert_eq!(pair.take(), None);
        let places: Vec<[u64; 2]> = (1..=12).map(|number| pair.publish(&[number; 40])).collect();
        for [from, _] in places.iter().skip(usize::from(first) - 1).take(count.into()) {
            let offset = pair.writer.geometry().offset(*from) + HEADER_LEN;
            pair.writer.region().store(offset, 0);
        }
        pair.reader.look_closely();
        let last = first + count - 1;
        for number in (1..first).chain(last + 1..=12) {
            if number == last + 1 {
                let Some(Err(lost)) = pair.take() else { panic!("{count} from {first}") };
                assert_eq!((lost.first.get(), lost.count), (first.into(), count.into()));
                assert_eq!(lost.reason, LossReason::Damaged);
            }
            assert_eq!(pair.take(), Some(Ok(vec![number; 40])));
        }
        assert_eq!(pair.take(), None);
        assert!(!pair.reader.ends_damaged());
    }
}

/// A damaged length may lead to a payload that looks like a skip of the rest of the ring.
#[test]
fn what_only_looks_like_a_skip_holds_nothing_up() {
    for is_first_word in [false, true] {
        let mut pair = Pair::new(1 << 14, 40);
        assert_eq!(pair.take(), None);
        let [from, _] = pair.publish(&[0xFF; 40]);
        (2..=6).for_each(|number| _ = pair.publish(&[number; 40]));
        let offset = pair.writer.geometry().offset(from);
        if is_first_word {
            pair.writer.region().store(offset, u64::MAX);
        } else {
            // The frame now ends before its payload does.
            let word = pair.writer.region().load(offset + WORD);
            pair.writer.region().store(offset + WORD, (word & !0xFFFF_FFFF) | 8);
        }
        pair.reader.look_closely();
        let found = (0..MANY_POLLS).find_map(|_| pair.take());
        let found = found.or_else(|| {
            // Nothing shows where the next record begins, before there is one.
            pair.publish(&[7; 40]);
            (0..MANY_POLLS).find_map(|_| pair.take())
        });
        let Some(Err(Lost { first, reason, .. })) = found else { panic!("{is_first_word}: {found:?}") };
        assert_eq!((first.get(), reason), (1, LossReason::Damaged));
    }
}

#[test]
fn records_that_are_damaged_at_the_end_of_a_topic_are_not_cut_off() {
    for damaged in 0..3_u8 {
        let mut pair = Pair::new(1 << 14, 40);
        assert_eq!(pair.take(), None);
        let places: Vec<[u64; 2]> = (1..=5).map(|number| pair.publish(&[number; 40])).collect();
        for [from, _] in places.iter().skip(5 - usize::from(damaged)) {
            pair.writer.region().store(pair.writer.geometry().offset(*from) + HEADER_LEN, 0);
        }
        pair.reader.look_closely();
        for number in 1..=5 - damaged {
            assert_eq!(pair.take(), Some(Ok(vec![number; 40])));
        }
        assert_eq!(pair.take(), None);
        assert_eq!(pair.reader.ends_damaged(), damaged > 0);
        // Of eight, the last three were never there.
        let given_up = pair.reader.give_up(Sequence::new(8)).map(|(first, count)| (first.get(), count));
        assert_eq!(given_up, Some((6 - u64::from(damaged), 3 + u64::from(damaged))));
        let counts = pair.reader.counts();
        let expected = if damaged > 0 { (3 + u64::from(damaged), 0) } else { (0, 3) };
        assert_eq!((counts.rejected, counts.cut_off), expected);
    }
}
