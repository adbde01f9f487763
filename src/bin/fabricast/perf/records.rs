use std::time::Instant;

use fabricast::limits;

use super::super::clock::now;
use super::super::failure::Failure;
use super::super::interrupt::Interrupt;
use super::arguments::{Arguments, FabricName};
use super::probe::AnswerWait;
use super::trouble::Trouble;

/// The topic of the records.
pub(super) const TOPIC: &str = "stream";
/// Bytes of a batch unless it is said how many records it has.
const BATCH_LEN: usize = 16 * 1024;
/// As [`BATCH_LEN`], over a wire, where each batch costs a request of its own: what a subscriber by pull fetches at a time.
const WIRE_BATCH_LEN: usize = 64 * 1024;
/// Records of a batch unless it is said how many it has, at most.
const BATCH_MAX: usize = 64;
/// Bytes of the ring unless it is said how many.
const CAPACITY: usize = 256 * 1024;
/// As [`CAPACITY`], over a wire, where what is under way takes its time: what a publisher has that says nothing.
const WIRE_CAPACITY: usize = limits::LOG_CAPACITY_DEFAULT;
/// Records of which a ring has room for this many at least.
const RECORDS_MIN: usize = 8;
/// Bytes that a record takes besides its payload.
const RECORD_OVERHEAD: usize = 24;
/// Bytes that are published between two looks at the time.
const LOOK_EVERY_LEN: usize = 64 * 1024;

/// The sizes of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamSizes {
    pub(super) size: u32,
    /// Bytes of a record's payload.
    pub(super) len: usize,
    /// Records of a batch.
    pub(super) batch: usize,
    /// Bytes of the ring.
    pub(super) capacity: usize,
}

/// Those who receive a stream.
pub(super) trait Receivers {
    /// The newest record that all of them have received, or were told that it is lost.
    fn progress(&mut self) -> Result<u64, Trouble>;

    /// One more look was in vain: an error when that goes on for too long, or nobody is there any more.
    fn empty_poll(&mut self, wait: &mut AnswerWait) -> Result<(), Trouble>;
}

impl StreamSizes {
    /// The sizes that the arguments give to a stream of records of this size.
    pub(super) fn of(arguments: &Arguments, size: u32) -> Result<Self, Failure> {
        let (len, options) = (size as usize, &arguments.stream);
        // Where the processes are that somebody else has started, their address says it.
        let fabric = arguments.connect.as_ref().map_or(arguments.fabric, FabricName::of);
        let (batch_len, capacity) = match fabric {
            FabricName::Shm => (BATCH_LEN, CAPACITY),
            FabricName::Verbs => (WIRE_BATCH_LEN, WIRE_CAPACITY),
        };
        let batch = (batch_len / len.max(1)).clamp(1, BATCH_MAX);
        let batch = options.batch.map_or(batch, |batch| batch as usize);
        let room = len.next_multiple_of(size_of::<u64>()) + RECORD_OVERHEAD;
        let capacity = options.capacity.map_or(capacity, |len| usize::try_from(len).unwrap_or(usize::MAX));
        let shape = Self { size, len, batch, capacity: capacity.max(room.saturating_mul(RECORDS_MIN)) };
        if shape.window() < batch {
            let sentence = format!(
                "{batch} records of {size} bytes take more than half of a ring of {} bytes: give a larger --capacity",
                shape.capacity
            );
            return Err(Failure::usage(sentence));
        }
        Ok(shape)
    }

    /// Records that may be under way so that none is overwritten before it was read.
    pub(super) fn window(&self) -> usize {
        let room = self.len.next_multiple_of(size_of::<u64>()) + RECORD_OVERHEAD;
        self.capacity / 2 / room
    }

    /// After how many records a reader tells how far it is.
    pub(super) fn show_every(&self) -> usize {
        (self.window() / 8).max(1)
    }

    /// Whether more is to be measured after so many batches. The time is not looked at after each one.
    pub(super) fn goes_on(&self, batches: u64, end: Option<Instant>, interrupt: &Interrupt) -> bool {
        let is_over = || end.is_some_and(|end| now() >= end) || interrupt.came();
        !batches.is_multiple_of(self.look_every()) || !is_over()
    }

    /// Batches between two looks at the time.
    pub(super) fn look_every(&self) -> u64 {
        (LOOK_EVERY_LEN / (self.len * self.batch).max(1)).clamp(1, 64) as u64
    }
}
