//! Models of a log: its writer, and readers of mapped memory.

use std::sync::Arc;

use loom::thread;

use super::{LogReader, LogStart, LogWriter};
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::Geometry;
use crate::layout::log::LogGeometry;
use crate::memory::{Protection, Region};
use crate::repository::{LossReason, ReadFailure, Reader as _, Writer as _};
use crate::sync::model::{Preemptions, check};

const TOPIC: TopicId = TopicId::new(7);
/// Bytes of a payload. A segment of the smallest ring, 64 bytes, then holds two frames.
const LEN: usize = 8;
/// The records that this ring holds.
pub(crate) const RING: u64 = 16;

/// A writer of the smallest ring.
pub(crate) fn writer() -> LogWriter {
    let geometry = LogGeometry::new(1, LEN).unwrap();
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    LogWriter::new(region, geometry, &Geometry::from(geometry).static_header(Epoch::FIRST, TOPIC, 0))
}

/// A reader of its records from the oldest one on, which takes what it finds.
pub(crate) struct Taking {
    reader: LogReader,
    memory: Arc<Region>,
}

fn payload(sequence: u64) -> [u8; LEN] {
    sequence.wrapping_mul(0x0101_0101_0101_0101).to_le_bytes()
}

/// Appends records, and commits so many of them at a time.
pub(crate) fn publish(writer: &mut LogWriter, count: u64, batch: u64) {
    for number in 1..=count {
        let sequence = writer.append(&payload(writer.last().get() + (number - 1) % batch + 1), 5).unwrap();
        if number % batch == 0 {
            assert_eq!(writer.commit(5).unwrap().newest, sequence);
        }
    }
}

impl Taking {
    pub(crate) fn new(writer: &LogWriter, memory: &Arc<Region>) -> Self {
        let reader = LogReader::new(writer.geometry(), Epoch::FIRST, TOPIC, LogStart::Earliest);
        Self { reader, memory: Arc::clone(memory) }
    }

    /// The same without a check of what it takes: nothing that a reader takes is damaged, unless it is lapped.
    fn trusting(writer: &LogWriter, memory: &Arc<Region>) -> Self {
        let mut taking = Self::new(writer, memory);
        taking.reader.trust();
        taking
    }

    /// Takes the next record, if there is one. It must be the next one, as it was published, or be reported lost because the writer
    /// gave it up. The first one may be any: the oldest when the reader began.
    pub(crate) fn take(&mut self, poll: impl Fn(&mut LogReader, &Region) -> Polled) -> bool {
        let next = self.reader.has_begun().then(|| self.reader.next_sequence());
        let held = self.reader.take_held().map(|taken| Ok(Some(taken)));
        match held.unwrap_or_else(|| poll(&mut self.reader, &self.memory)) {
            Ok(Some(taken)) => {
                let verified = self.reader.verified(taken);
                let sequence = verified.meta.sequence;
                assert!(
                    next.is_none_or(|next| next == sequence),
                    "{sequence} was received instead of {next:?}"
                );
                assert_eq!(verified.payload, payload(sequence.get()), "a record that was not published");
                true
            }
            Ok(None) => false,
            Err(ReadFailure::Lost(lost)) => {
                assert!(
                    next.is_none_or(|next| next == lost.first),
                    "{lost:?} was reported instead of {next:?}"
                );
                assert_eq!(lost.reason, LossReason::Lapped);
                true
            }
            Err(failure) => panic!("no record is damaged: {failure:?}"),
        }
    }

    /// Takes what is there.
    pub(crate) fn take_all(&mut self, poll: impl Fn(&mut LogReader, &Region) -> Polled) {
        while self.take(&poll) {}
    }

    /// The last record received or reported lost.
    pub(crate) fn last(&self) -> Sequence {
        self.reader.last()
    }
}

/// The outcome of a poll.
pub(crate) type Polled = Result<Option<crate::repository::Taken>, ReadFailure>;

fn mapped(reader: &mut LogReader, memory: &Region) -> Polled {
    reader.poll(memory)
}

/// A reader that has taken `taken` records of those in the ring reads while more are appended.
fn check_reads([before, taken, published, batch]: [u64; 4], reads: usize, preemptions: Preemptions) {
    check(preemptions, move || {
        let mut writer = writer();
        let is_lapped = before + published > RING;
        let taking = if is_lapped { Taking::new } else { Taking::trusting };
        let mut taking = taking(&writer, writer.region());
        publish(&mut writer, taken, 1);
        taking.take_all(mapped);
        publish(&mut writer, before - taken, 1);
        loom::explore();
        let writing = thread::spawn(move || publish(&mut writer, published, batch));
        for _ in 0..reads {
            taking.take(mapped);
        }
        writing.join().unwrap();
        taking.take_all(mapped);
        assert_eq!(taking.last().get(), before + published, "every record is received or reported lost");
    });
}

/// Two threads. The reader keeps up, so that it polls the places of the next sequences, and in the end the hot line, as a segment ends;
/// it reads three times while three records are published.
pub fn reader_that_keeps_up_takes_every_record() {
    check_reads([1, 1, 3, 1], 3, Preemptions { quick: None, long: None });
}

/// Two threads. The same with two records in one commit.
pub fn batch_is_taken_as_a_whole() {
    check_reads([1, 1, 2, 2], 2, Preemptions { quick: None, long: None });
}

/// Two threads. The ring is full, and the reader reads the oldest two records while two are published in their place.
pub fn lapped_reader_takes_whole_records_or_reports_them_lost() {
    check_reads([RING, 0, 2, 1], 2, Preemptions { quick: Some(1), long: Some(2) });
}

/// Two threads. The ring is full, and the reader polls the place of the second record's sequence while two are published, the second one
/// in that place.
pub fn polling_reader_that_is_lapped_takes_no_later_record() {
    check_reads([RING, 1, 2, 1], 2, Preemptions { quick: Some(1), long: Some(2) });
}
