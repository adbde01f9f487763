use std::time::Instant;

use fabricast::{LogSubscriber, Raw, ReceiveError, limits};

use super::super::clock::now;
use super::super::failure::Failure;
use super::super::interrupt::Interrupt;
use super::arguments::{Arguments, Contents, FabricName};
use super::line::Seen;
use super::probe::{AnswerWait, LOOKS, rest};
use super::trouble::Trouble;

/// The topic of the records.
pub(super) const TOPIC: &str = "stream";
/// Default bytes of a batch.
const BATCH_LEN: usize = 16 * 1024;
/// The same over a wire, where each batch costs a request: as much as a pull subscriber reads at a time.
const WIRE_BATCH_LEN: usize = 64 * 1024;
/// The most records of a batch by default.
const BATCH_MAX: usize = 64;
/// Default bytes of the ring.
const CAPACITY: usize = 256 * 1024;
/// The same over a wire, where more is in flight: the default of a publisher.
const WIRE_CAPACITY: usize = limits::LOG_CAPACITY_DEFAULT;
/// The fewest records that a ring holds.
const RECORDS_MIN: usize = 8;
/// Bytes of a record besides its payload.
const RECORD_OVERHEAD: usize = 24;
/// Bytes published between two checks of the time.
const LOOK_EVERY_LEN: usize = 64 * 1024;

/// The sizes of a stream, and what its records hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamSizes {
    pub(super) size: u32,
    /// Bytes of a record's payload.
    pub(super) len: usize,
    /// Records of a batch.
    pub(super) batch: usize,
    /// Bytes of the ring.
    pub(super) capacity: usize,
    /// What is written and compared.
    pub(super) contents: Contents,
}

/// The receivers of a stream.
pub(super) trait Receivers {
    /// The newest record that all of them have received or reported lost.
    fn progress(&mut self) -> Result<u64, Trouble>;

    /// Counts an empty poll. Fails when there are too many, or a receiver is gone.
    fn empty_poll(&mut self, wait: &mut AnswerWait) -> Result<(), Trouble>;
}

/// Takes and compares records until told otherwise (false), or the topic ends (true). Shows how far it is after so many of them,
/// and when there are no more.
pub(super) fn receive(
    (subscriber, in_place, contents): (&mut LogSubscriber<Raw>, bool, Contents),
    seen: &mut Seen,
    show_every: usize,
    is_over: impl Fn() -> bool,
    mut show: impl FnMut(&LogSubscriber<Raw>, Seen) -> Result<(), Trouble>,
) -> Result<bool, Trouble> {
    let len = subscriber.payload_len_max();
    let (mut looks, mut unshown) = (0_u32, 0);
    loop {
        let taken = match in_place {
            true => take_in_place(subscriber, len, contents),
            false => take(subscriber, len, contents),
        };
        match taken {
            Ok(Some(is_right)) => {
                match is_right {
                    true => seen.verified += 1,
                    false => seen.rejected += 1,
                }
                unshown += 1;
                if unshown < show_every {
                    continue;
                }
            }
            Ok(None) => {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(LOOKS) && is_over() {
                    return Ok(false);
                }
                if unshown == 0 {
                    rest();
                    continue;
                }
            }
            Err(
                ReceiveError::Lapped { .. }
                | ReceiveError::DamagedRecords { .. }
                | ReceiveError::CutOff { .. },
            ) => {}
            Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => return Ok(true),
            Err(error) => return Err(Failure::from(error).into()),
        }
        show(subscriber, *seen)?;
        unshown = 0;
        if is_over() {
            return Ok(false);
        }
    }
}

/// Takes the next record, and says whether it is right.
#[inline]
fn take(
    subscriber: &mut LogSubscriber<Raw>,
    len: usize,
    contents: Contents,
) -> Result<Option<bool>, ReceiveError> {
    let record = subscriber.try_receive_ref()?;
    Ok(record.map(|record| contents.is_right(record.bytes, len, record.meta.sequence.get())))
}

/// Does the same in place, if the library does.
#[inline]
fn take_in_place(
    subscriber: &mut LogSubscriber<Raw>,
    len: usize,
    contents: Contents,
) -> Result<Option<bool>, ReceiveError> {
    let Some(view) = subscriber.try_receive_view()? else { return Ok(None) };
    let number = view.meta.sequence.get();
    let (mut chunks, mut offset, mut is_right) = (view.chunks(), 0, view.len() == len);
    while let Some(chunk) = chunks.next_chunk() {
        is_right &= contents.is_right_from(offset, chunk, number);
        offset += chunk.len();
    }
    Ok(Some(is_right && view.is_intact()))
}

impl StreamSizes {
    /// The sizes of a stream of records of this size, by the arguments.
    pub(super) fn of(arguments: &Arguments, size: u32) -> Result<Self, Failure> {
        let (len, options) = (size as usize, &arguments.stream);
        // The address of a running process determines its fabric.
        let fabric = arguments.connect.as_ref().map_or_else(|| arguments.fabric(), FabricName::of);
        let (batch_len, capacity) = match fabric {
            FabricName::Shm => (BATCH_LEN, CAPACITY),
            FabricName::Verbs => (WIRE_BATCH_LEN, WIRE_CAPACITY),
        };
        let batch = (batch_len / len.max(1)).clamp(1, BATCH_MAX);
        let batch = options.batch.map_or(batch, |batch| batch as usize);
        let room = len.next_multiple_of(size_of::<u64>()) + RECORD_OVERHEAD;
        let capacity = options.capacity.map_or(capacity, |len| usize::try_from(len).unwrap_or(usize::MAX));
        let shape = Self {
            size,
            len,
            batch,
            capacity: capacity.max(room.saturating_mul(RECORDS_MIN)),
            contents: options.contents,
        };
        if shape.window() < batch {
            let sentence = format!(
                "{batch} records of {size} bytes take more than half of a ring of {} bytes: use a larger --capacity",
                shape.capacity
            );
            return Err(Failure::usage(sentence));
        }
        Ok(shape)
    }

    /// Records that may be in flight without overwriting an unread one.
    pub(super) fn window(&self) -> usize {
        let room = self.len.next_multiple_of(size_of::<u64>()) + RECORD_OVERHEAD;
        self.capacity / 2 / room
    }

    /// Records between two reports of a reader.
    pub(super) fn show_every(&self) -> usize {
        (self.window() / 8).max(1)
    }

    /// Whether to continue after so many batches. Does not check the time after each.
    pub(super) fn goes_on(&self, batches: u64, end: Option<Instant>, interrupt: &Interrupt) -> bool {
        let look_every = (LOOK_EVERY_LEN / (self.len * self.batch).max(1)).clamp(1, 64) as u64;
        let is_over = || end.is_some_and(|end| now() >= end) || interrupt.came();
        !batches.is_multiple_of(look_every) || !is_over()
    }
}
