//! Logs that are read over a wire: ranges are copied to a mirror word by word, in random order, while the writer
//! continues.

use super::*;
use crate::layout::log::{HOT_END, HOT_START, HOT_START_SEQUENCE};
use crate::layout::{ByteRange, WORD};
use crate::limits;

/// A reader, the mirror it fetches to, and the fetch in flight.
struct Remote {
    reader: LogReader,
    mirror: Region,
    fetching: Option<(Fetch<<LogReader as Reader>::Purpose>, Vec<usize>)>,
    random: Random,
    now_ns: u64,
    posted: Vec<Vec<ByteRange>>,
    received: u64,
    lost: u64,
    len_max: usize,
}

impl Remote {
    fn new(writer: &LogWriter, start: LogStart, seed: u64, len_max: usize) -> Self {
        let mirror = Region::allocate(writer.region().len(), Protection::PeersRead).unwrap();
        Self {
            reader: reader(writer, start),
            mirror,
            fetching: None,
            random: Random::new(seed),
            now_ns: 0,
            posted: Vec::new(),
            received: 0,
            lost: 0,
            len_max,
        }
    }

    fn post(&mut self) {
        let plan = self.reader.plan();
        self.posted.push(plan.ranges().to_vec());
        let offsets = |range: &ByteRange| (range.offset..range.offset + range.len).step_by(WORD);
        let mut words: Vec<usize> = plan.ranges().iter().flat_map(offsets).collect();
        self.random.shuffle(&mut words);
        self.fetching = Some((plan, words));
    }

    /// Copies up to this many words. Returns true if the batch is complete.
    fn bring(&mut self, writer: &LogWriter, count: usize) -> bool {
        let Some((_, words)) = &mut self.fetching else { return true };
        let left = words.split_off(words.len().min(count));
        for offset in std::mem::replace(words, left) {
            self.mirror.store(offset, writer.region().load(offset));
        }
        words.is_empty()
    }

    /// Takes everything held and fetched; returns whether there may be more.
    fn take(&mut self) -> bool {
        loop {
            let next = self.reader.next_sequence();
            let first = self.received + self.lost == 0;
            let held = self.reader.take_held().map(Ok);
            let Some(taken) = held.or_else(|| self.reader.take_fetched(&self.mirror, || 0).transpose())
            else {
                break;
            };
            match came(&self.reader, taken) {
                Next::Record(record) => {
                    assert!(
                        first || record.meta.sequence == next,
                        "{next} is followed by {}",
                        record.meta.sequence
                    );
                    assert_eq!(record.payload, payload(record.meta.sequence.get(), self.len_max));
                    assert_eq!(record.meta.published_ns, record.meta.sequence.get());
                    self.received += 1;
                }
                Next::Lost(Lost { first: missing, count, .. }) => {
                    assert!(first || (missing, true) == (next, count > 0));
                    self.lost += count;
                }
            }
        }
        let complete = self.fetching.take_if(|(_, words)| words.is_empty());
        let Some((fetched, _)) = complete else { return true };
        self.now_ns += 1_000_000;
        matches!(self.reader.check(&self.mirror, &fetched, self.now_ns), Ok(Finding::Something))
    }

    /// Reads until it has everything.
    fn drain(&mut self, writer: &LogWriter) {
        for _ in 0..100_000 {
            if self.fetching.is_none() {
                self.post();
            }
            self.bring(writer, usize::MAX);
            if !self.take() {
                return;
            }
        }
        panic!("a reader that does not come to an end");
    }
}

#[test]
fn records_are_fetched_in_order_each_once_round_after_round() {
    let mut writer = writer(16 << 10, 300);
    let mut remote = Remote::new(&writer, LogStart::Earliest, 1, 300);
    for round in 1..600_u64 {
        append(&mut writer, round % 17, 300);
        remote.drain(&writer);
        assert_eq!((remote.received, remote.lost), (writer.last().get(), 0));
    }
}

/// A reader that keeps up learns of the next record and receives it in one batch; one batch brings many records.
#[test]
fn one_batch_brings_the_next_record_and_one_many_of_them() {
    let mut writer = writer(1 << 20, 64);
    let mut remote = Remote::new(&writer, LogStart::Earliest, 1, 64);
    append(&mut writer, 3, 64);
    remote.drain(&writer);
    remote.posted.clear();
    append(&mut writer, 1, 64);
    remote.post();
    remote.bring(&writer, usize::MAX);
    assert!(remote.take());
    remote.take();
    assert_eq!((remote.received, remote.posted.len()), (4, 1));

    remote.drain(&writer);
    remote.posted.clear();
    append(&mut writer, 2000, 64);
    remote.drain(&writer);
    assert_eq!(remote.received, 2004);
    let bytes: usize = remote.posted.iter().flatten().map(|range| range.len).sum();
    assert!(remote.posted.len() <= 6, "{:?}", remote.posted);
    assert!(bytes < 2200 * 100, "{bytes}");
    // With nothing new, a check costs little.
    remote.posted.clear();
    remote.drain(&writer);
    remote.drain(&writer);
    let last: usize = remote.posted.last().unwrap().iter().map(|range| range.len).sum();
    assert!(last <= limits::FETCHED_GAP_LEN_MAX, "{last}");
}

/// A record that was appended but not committed can be fetched, but is not taken.
#[test]
fn an_uncommitted_record_is_not_taken() {
    let mut writer = writer(1 << 16, 40);
    let mut remote = Remote::new(&writer, LogStart::Earliest, 1, 40);
    append(&mut writer, 5, 40);
    remote.drain(&writer);
    for sequence in 6..=9 {
        writer.append(&payload(sequence, 40), sequence).unwrap();
        remote.drain(&writer);
        assert_eq!(remote.received, 5);
    }
    writer.commit(9);
    remote.drain(&writer);
    assert_eq!((remote.received, remote.lost), (9, 0));
}

#[test]
fn records_given_up_before_they_were_fetched_are_reported_exactly() {
    each_seed(30, |seed| {
        let mut random = Random::new(seed);
        let len_max = 1 + random.index(300);
        let mut writer = writer(1 << (12 + random.below(5)), len_max);
        let mut remote = Remote::new(&writer, LogStart::At(Sequence::new(1)), seed, len_max);
        for _ in 0..3000 {
            match random.below(6) {
                0 | 1 => append(&mut writer, random.below(40), len_max),
                2 if remote.fetching.is_none() => remote.post(),
                _ => {
                    let count = random.index(400);
                    if remote.bring(&writer, count) {
                        remote.take();
                    }
                }
            }
            assert!(remote.received + remote.lost <= writer.last().get());
        }
        remote.fetching = None;
        remote.drain(&writer);
        assert_eq!(remote.received + remote.lost, writer.last().get());
        assert_eq!(remote.reader.counts().rejected, 0, "seed {seed}");
        assert!(remote.received > 50, "{} and {}", remote.received, remote.lost);
    });
}

/// The hot line is read behind the frames: what it says was given up is dropped, whatever its checksum.
#[test]
fn records_given_up_while_they_were_fetched_are_lost_even_if_their_checksums_are_right() {
    // All that is behind fits into a batch, or more batches follow.
    for published in [3, 800] {
        let mut writer = writer(1 << 18, 200);
        let mut remote = Remote::new(&writer, LogStart::At(Sequence::new(1)), 1, 200);
        append(&mut writer, 5, 200);
        remote.drain(&writer);
        assert_eq!(remote.received, 5);
        append(&mut writer, published, 200);
        let plan = remote.reader.plan();
        copy(&writer, &remote.mirror, plan.ranges().last().unwrap());
        remote.reader.check(&remote.mirror, &plan, 0).unwrap();
        assert!(matches!(remote.reader.take_fetched(&remote.mirror, || 0), Ok(None)));

        let plan = remote.reader.plan();
        let [frames, hot_line] = plan.ranges() else { panic!("{plan:?}") };
        copy(&writer, &remote.mirror, frames);
        append(&mut writer, 4000, 200);
        copy(&writer, &remote.mirror, hot_line);
        let next = remote.reader.next_sequence();
        remote.reader.check(&remote.mirror, &plan, 0).unwrap();
        assert!(matches!(remote.reader.take_fetched(&remote.mirror, || 0), Ok(None)), "{published}");

        let outcome = (0..3).find_map(|_| {
            let plan = remote.reader.plan();
            plan.ranges().iter().for_each(|range| copy(&writer, &remote.mirror, range));
            remote.reader.check(&remote.mirror, &plan, 0).unwrap();
            remote.reader.take_fetched(&remote.mirror, || 0).transpose()
        });
        match outcome {
            Some(Err(ReadFailure::Lost(lost))) => {
                assert_eq!((lost.first, lost.reason), (next, LossReason::Lapped));
            }
            other => panic!("{published}: {other:?}"),
        }
    }
}

/// Of a frame that was fetched in part, the rest was given up.
#[test]
fn part_of_a_record_is_lost_when_its_rest_was_given_up() {
    let mut writer = writer(1 << 18, 200);
    let mut remote = Remote::new(&writer, LogStart::At(Sequence::new(1)), 1, 200);
    append(&mut writer, 1000, 200);
    remote.drain(&writer);
    append(&mut writer, 800, 200);
    // The first batch shows where the log ends, and the second one ends within a frame: 64 KiB hold no whole number of them.
    for _ in 0..2 {
        remote.post();
        remote.bring(&writer, usize::MAX);
        remote.take();
        remote.take();
    }
    assert!((1001..1799).contains(&remote.received), "{}", remote.received);
    append(&mut writer, 4000, 200);
    remote.drain(&writer);
    assert_eq!(remote.received + remote.lost, writer.last().get());
    assert_eq!((remote.reader.counts().lapped, remote.reader.counts().rejected), (remote.lost, 0));
    assert!(remote.lost > 0);
}

#[test]
fn each_flipped_bit_that_is_fetched_is_reported_and_costs_no_other_record() {
    for offset in frames_of_twelve() {
        for bit in (0..64).step_by(13) {
            let mut writer = writer(1 << 12, 24);
            append(&mut writer, 12, 24);
            let word = writer.region().load(offset);
            writer.region().store(offset, word ^ 1 << bit);
            let mut remote = Remote::new(&writer, LogStart::At(Sequence::new(1)), 1, 24);
            // Whatever is damaged, including the last record, it reaches the end.
            remote.drain(&writer);
            append(&mut writer, 1, 24);
            remote.drain(&writer);
            assert_eq!(remote.received + remote.lost, 13, "word {offset:#x} bit {bit}");
            assert!(remote.lost <= LOST_MAX, "word {offset:#x} bit {bit}: {}", remote.lost);
            assert_eq!((remote.reader.counts().rejected, remote.reader.counts().lapped), (remote.lost, 0));
        }
    }
}

/// Records published while an invalid frame is checked again are not given up with it, wherever the index continues.
#[test]
fn an_invalid_frame_costs_only_what_was_there_when_it_was_found() {
    let mut writer = writer(1 << 16, 24);
    let mut remote = Remote::new(&writer, LogStart::At(Sequence::new(1)), 1, 24);
    append(&mut writer, 5, 24);
    let wrong = writer.geometry().offset(writer.committed_end());
    append(&mut writer, 5, 24);
    // The sequence of the sixth record is that of another round.
    writer.region().store(wrong, writer.region().load(wrong) + 1000);
    while remote.now_ns < limits::DAMAGE_SETTLED_NS / 2 {
        remote.post();
        remote.bring(&writer, usize::MAX);
        remote.take();
    }
    assert_eq!((remote.received, remote.lost), (5, 0));
    // More than a segment: the next one begins after the first of these.
    append(&mut writer, 60, 24);
    remote.drain(&writer);
    assert_eq!((remote.received, remote.lost), (65, 5));
}

/// The index names where the next record will be. If it is fetched while that entry is written, the position may be the new one, and the
/// sequence that of the entry before: nothing there shows that it is wrong.
#[test]
fn place_whose_words_are_of_different_times_hides_no_record() {
    for with_both in [false, true] {
        let mut writer = writer(1 << 12, 24);
        append(&mut writer, 400, 24);
        let segment = |writer: &LogWriter| writer.geometry().segment(writer.committed_end());
        let before = segment(&writer);
        let entry = writer.geometry().entry_offset(before + 1);
        let old = writer.region().load(entry + WORD);
        while segment(&writer) == before {
            append(&mut writer, 1, 24);
        }
        assert_eq!(writer.region().load(entry), writer.committed_end(), "the place of the next record");
        let mut remote = Remote::new(&writer, LogStart::At(Sequence::new(old.max(300))), 1, 24);
        remote.post();
        remote.bring(&writer, usize::MAX);
        if !with_both {
            remote.mirror.store(entry + WORD, old);
        }
        remote.take();
        remote.drain(&writer);
        let newest = writer.last().get();
        assert_eq!(remote.received + remote.lost, newest - old.max(300) + 1, "up to {newest}");
    }
}

/// The same once later records were committed: the position is a frame's then, but not that of the wanted record.
#[test]
fn place_whose_words_are_of_different_times_skips_no_record() {
    let mut writer = writer(1 << 12, 24);
    append(&mut writer, 400, 24);
    let segment = writer.geometry().segment(writer.committed_end()) + 1;
    let entry = writer.geometry().entry_offset(segment);
    let old = writer.region().load(entry + WORD);
    while writer.geometry().segment(writer.committed_end()) <= segment {
        append(&mut writer, 1, 24);
    }
    let oldest = writer.region().load(HOT_START_SEQUENCE);
    assert!(old < oldest && writer.region().load(entry) < writer.committed_end());
    let mut remote = Remote::new(&writer, LogStart::Earliest, 1, 24);
    remote.post();
    remote.bring(&writer, usize::MAX);
    remote.mirror.store(entry + WORD, old);
    remote.take();
    remote.drain(&writer);
    assert_eq!((remote.received, remote.lost), (writer.last().get() - oldest + 1, 0));
}

/// Where the rest of the ring was skipped a round ago, a shorter record may be now: the old marker proves nothing before the
/// range is known to be whole.
#[test]
fn a_skip_of_the_previous_round_hides_no_record() {
    let mut writer = writer(1 << 12, 200);
    let mut remote = Remote::new(&writer, LogStart::Earliest, 1, 200);
    let publish = |writer: &mut LogWriter, len: usize| {
        let sequence = writer.last().next().get();
        writer.append(&vec![sequence.to_le_bytes()[0]; len], sequence).unwrap();
        writer.commit(sequence).unwrap()
    };
    // Frames of 224 bytes: eighteen, and 64 bytes are skipped. Then as many of 216 and 256 bytes as end there again.
    let rest = writer.geometry().offset(0) + 18 * 224;
    for _ in 0..19 {
        publish(&mut writer, 200);
    }
    assert_eq!(writer.region().load(rest), crate::layout::log::FILLER);
    for _ in 0..17 {
        publish(&mut writer, 200);
    }
    remote.len_max = 0;
    let take = |remote: &mut Remote| {
        let mut sequences = Vec::new();
        while let Some(taken) = remote.reader.take_fetched(&remote.mirror, || 0).transpose() {
            match came(&remote.reader, taken) {
                Next::Record(record) => sequences.push(record.meta.sequence.get()),
                Next::Lost(lost) => panic!("{lost:?}"),
            }
        }
        sequences
    };
    loop {
        let plan = remote.reader.plan();
        plan.ranges().iter().for_each(|range| copy(&writer, &remote.mirror, range));
        let brought = remote.reader.check(&remote.mirror, &plan, 0);
        take(&mut remote);
        if matches!(brought, Ok(Finding::Nothing)) {
            break;
        }
    }
    assert_eq!(remote.reader.next_sequence(), writer.last().next());
    // The first range is copied before the record exists, and the second one after.
    let plan = remote.reader.plan();
    let [frames, hot_line] = plan.ranges() else { panic!("{plan:?}") };
    assert_eq!(frames.offset, rest);
    copy(&writer, &remote.mirror, frames);
    let newest = publish(&mut writer, 30).newest;
    copy(&writer, &remote.mirror, hot_line);
    remote.reader.check(&remote.mirror, &plan, 0).unwrap();
    assert!(take(&mut remote).is_empty());
    let plan = remote.reader.plan();
    plan.ranges().iter().for_each(|range| copy(&writer, &remote.mirror, range));
    remote.reader.check(&remote.mirror, &plan, 0).unwrap();
    assert_eq!(take(&mut remote), [newest.get()]);
}

fn copy(writer: &LogWriter, mirror: &Region, range: &ByteRange) {
    let words = (range.offset..range.offset + range.len).step_by(WORD);
    words.for_each(|offset| mirror.store(offset, writer.region().load(offset)));
}

#[test]
fn random_memory_that_is_fetched_gives_no_record_and_no_range_beyond_the_region() {
    each_seed(100, |seed| {
        let mut random = Random::new(seed);
        let writer = writer(1 << 12, 100);
        let mut remote = Remote::new(&writer, LogStart::Earliest, seed, 100);
        for _ in 0..200 {
            for offset in [HOT_END, HOT_START, HOT_START_SEQUENCE] {
                let word = random.next();
                writer.region().store(offset, if word.is_multiple_of(2) { word % 8192 } else { word });
            }
            let offset = random.index(writer.region().len() / 8) * 8;
            writer.region().store(offset, random.next());
            remote.post();
            for range in remote.posted.drain(..).flatten() {
                assert!(range.offset + range.len <= writer.geometry().region_len() && range.len % 8 == 0);
            }
            remote.bring(&writer, usize::MAX);
            remote.take();
        }
        assert_eq!(remote.received, 0);
    });
}
