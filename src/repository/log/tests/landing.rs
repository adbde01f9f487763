//! Landing regions with invalid frames: how long they are waited for, and which records they cost.

use super::*;
use crate::layout::header::HOT_OFFSET;
use crate::layout::log::{HEADER_LEN, HOT_END, frame_len};
use crate::layout::{LINE, WORD};
use crate::limits::ARRIVAL_SETTLED_NS;

/// Bytes of every payload here.
const LEN: usize = 16;

/// A landing region, the repository that is written to it, and its reader.
struct Landing {
    writer: LogWriter,
    region: Region,
    reader: LogReader,
}

impl Landing {
    /// A landing region with this many records.
    fn new(count: u64) -> Self {
        let writer = writer(1 << 16, LEN);
        let region = Region::allocate(writer.region().len(), Protection::PeersWrite).unwrap();
        let reader = reader(&writer, LogStart::At(Sequence::new(1)));
        let mut landing = Self { writer, region, reader };
        landing.write(count);
        landing
    }

    /// Writes more records to it: frames, then the hot line.
    fn write(&mut self, count: u64) {
        let from = self.writer.committed_end();
        for _ in 0..count {
            let sequence = self.writer.last().get() + 1;
            self.writer.append(&[sequence.to_le_bytes()[0]; LEN], sequence).unwrap();
            self.writer.commit(sequence);
        }
        let frames = self.writer.geometry().range([from, self.writer.committed_end()]).unwrap();
        let line = HOT_OFFSET..HOT_OFFSET + LINE;
        for offset in (frames.offset..frames.offset + frames.len).chain(line).step_by(WORD) {
            self.region.store(offset, self.writer.region().load(offset));
        }
    }

    /// Changes a word of this record's frame.
    fn damage(&self, sequence: u64, word: usize) {
        let offset = self.writer.geometry().offset((sequence - 1) * frame_len(LEN) as u64) + word;
        self.region.store(offset, self.region.load(offset) ^ 0x100);
    }

    /// What its reader takes at this time: the records, and the number of damaged ones, with the first of them.
    fn take(&mut self, now_ns: u64) -> (Vec<u64>, Vec<(u64, u64)>) {
        let (mut received, mut damaged) = (Vec::new(), Vec::new());
        loop {
            let held = self.reader.take_held().map(Ok);
            let follow = || self.reader.follow(&self.region, WriteOrder::Writes, || now_ns).transpose();
            let Some(taken) = held.or_else(follow) else { break };
            match came(&self.reader, taken) {
                Next::Record(record) => received.push(record.meta.sequence.get()),
                Next::Lost(Lost { first, count, reason }) => {
                    assert_eq!(reason, LossReason::Damaged);
                    damaged.push((first.get(), count));
                }
            }
        }
        (received, damaged)
    }
}

#[test]
fn an_invalid_frame_is_waited_for_once_and_costs_no_later_record() {
    let mut landing = Landing::new(10);
    // A damaged frame, followed by one of another round: nothing shows where the next one begins.
    landing.damage(4, HEADER_LEN);
    landing.damage(5, 0);
    assert_eq!(landing.take(0), (vec![1, 2, 3], vec![]));
    landing.write(5);
    assert_eq!(landing.take(ARRIVAL_SETTLED_NS - 1), (vec![], vec![]));
    assert_eq!(landing.take(ARRIVAL_SETTLED_NS), ((11..=15).collect(), vec![(4, 7)]));
}

#[test]
fn invalid_frames_found_together_settle_together() {
    let mut landing = Landing::new(10);
    landing.damage(4, HEADER_LEN);
    landing.damage(8, HEADER_LEN);
    assert_eq!(landing.take(0), (vec![1, 2, 3], vec![]));
    landing.write(2);
    landing.damage(12, HEADER_LEN);
    // The last one came later.
    let settled = ([5, 6, 7, 9, 10, 11].to_vec(), vec![(4, 1), (8, 1)]);
    assert_eq!(landing.take(ARRIVAL_SETTLED_NS), settled);
    landing.write(1);
    assert_eq!(landing.take(2 * ARRIVAL_SETTLED_NS - 1), (vec![], vec![]));
    assert_eq!(landing.take(2 * ARRIVAL_SETTLED_NS), (vec![13], vec![(12, 1)]));
}

#[test]
fn a_frame_corrected_in_time_costs_nothing() {
    let mut landing = Landing::new(10);
    landing.damage(4, HEADER_LEN);
    assert_eq!(landing.take(0), (vec![1, 2, 3], vec![]));
    landing.damage(4, HEADER_LEN);
    assert_eq!(landing.take(ARRIVAL_SETTLED_NS - 1), ((4..=10).collect(), vec![]));
    assert_eq!(landing.region.load(HOT_END), landing.writer.committed_end());
}
