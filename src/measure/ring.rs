use std::os::fd::OwnedFd;

use super::control::{BODY, Control};
use crate::checksum::crc32;
use crate::layout::{LINE, WORD};
use crate::memory::MemoryError;

/// The bare stream for comparison with logs: a ring of values of one length in shared memory, with one writer and one reader,
/// read and written whole, checked only on request. The writer waits for the reader.
///
/// Each end keeps the other's count, and loads it again only when there is nothing left to read or no place to write. A reader that
/// calls [`Self::release_part`] after each value stores its own count once in an eighth of the ring. A reader that pauses after an
/// empty poll leaves the writer's line to the writer meanwhile.
#[derive(Debug)]
pub struct Ring {
    control: Control,
    /// Words of a value.
    words: usize,
    /// Values that the ring holds.
    room: u64,
    /// Values sent by a writer, or received by a reader, published or not.
    done: u64,
    told: u64,
    /// The last known limit for this end.
    until: u64,
}

/// The offset of the writer's count.
const SENT: usize = BODY;
/// The offset of the reader's count.
const RELEASED: usize = SENT + 2 * LINE;
/// The part of the ring that is released at once.
const RELEASE_PARTS: u64 = 8;
/// Words of a value's CRC-32.
const CHECK_WORDS: usize = 1;
/// The offset of the values.
const VALUES: usize = RELEASED + 2 * LINE;

impl Ring {
    /// Creates a ring of about this many bytes, at least two values, for values of `len` bytes, rounded up to whole words.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when memory cannot be allocated.
    pub fn create(len: usize, capacity: usize) -> Result<Self, MemoryError> {
        let (words, room) = Self::sizes(len, capacity);
        Ok(Self::new(Control::create(Self::region_len(words, room))?, words, room))
    }

    /// Opens the ring that another process has created with these sizes.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when the file is not a ring of these sizes.
    pub fn open(file: OwnedFd, len: usize, capacity: usize) -> Result<Self, MemoryError> {
        let (words, room) = Self::sizes(len, capacity);
        Ok(Self::new(Control::open(file, Self::region_len(words, room))?, words, room))
    }

    /// Returns the control lines of the processes.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Writes a value if the ring is not full. It becomes visible by [`Self::commit`].
    ///
    /// # Panics
    ///
    /// When the value does not have the agreed length.
    #[inline]
    pub fn try_send(&mut self, value: &[u64]) -> bool {
        assert_eq!(value.len(), self.words, "a ring is measured with values of one length");
        if !self.has_room() {
            return false;
        }
        self.control.region().copy_in(self.offset(), value);
        self.done += 1;
        true
    }

    /// Does the same as [`Self::try_send`], and stores the value's CRC-32.
    ///
    /// # Panics
    ///
    /// When the value does not have the agreed length.
    #[inline]
    pub fn try_send_checked(&mut self, value: &[u64]) -> bool {
        if !self.has_room() {
            return false;
        }
        let crc = crc32(bytemuck::cast_slice(value));
        self.control.region().store(self.check_offset(), crc.into());
        self.try_send(value)
    }

    /// Makes the sent values visible.
    #[inline]
    pub fn commit(&mut self) {
        if self.told != self.done {
            self.told = self.done;
            // Release: a reader of the number sees the values. Pairs with the Acquire load in `try_receive`.
            self.control.region().store_release(SENT, self.done);
        }
    }

    /// Returns whether the reader has released everything sent.
    pub fn is_drained(&self) -> bool {
        self.control.region().load_acquire(RELEASED) == self.done
    }

    /// Reads the next value, if there is one.
    ///
    /// # Panics
    ///
    /// When the buffer does not have the agreed length.
    #[inline]
    pub fn try_receive(&mut self, value: &mut [u64]) -> bool {
        assert_eq!(value.len(), self.words, "a ring is measured with values of one length");
        if self.done == self.until {
            // Acquire: pairs with the Release store in `commit`.
            self.until = self.control.region().load_acquire(SENT);
            if self.done == self.until {
                return false;
            }
        }
        self.control.region().copy_out(self.offset(), value);
        self.done += 1;
        true
    }

    /// Does the same as [`Self::try_receive`] for values with a CRC-32. Returns whether the value matches it, or `None` without a
    /// value.
    ///
    /// # Panics
    ///
    /// When the buffer does not have the agreed length.
    #[inline]
    pub fn try_receive_checked(&mut self, value: &mut [u64]) -> Option<bool> {
        let check = self.check_offset();
        let is_there = self.try_receive(value);
        let is_right = || u64::from(crc32(bytemuck::cast_slice(value))) == self.control.region().load(check);
        is_there.then(is_right)
    }

    /// Returns how many values this end has sent or received.
    #[inline]
    pub fn count(&self) -> u64 {
        self.done
    }

    /// Lets the writer overwrite the received values.
    #[inline]
    pub fn release(&mut self) {
        if self.told != self.done {
            self.told = self.done;
            // Release: what was read before may be overwritten. Pairs with the Acquire load in `try_send`.
            self.control.region().store_release(RELEASED, self.done);
        }
    }

    /// Does the same when an eighth of the ring is to be released, and otherwise nothing.
    #[inline]
    pub fn release_part(&mut self) {
        if self.done - self.told >= self.room / RELEASE_PARTS {
            self.release();
        }
    }

    fn new(control: Control, words: usize, room: u64) -> Self {
        Self { control, words, room, done: 0, told: 0, until: 0 }
    }

    fn sizes(len: usize, capacity: usize) -> (usize, u64) {
        let words = len.div_ceil(WORD).max(1);
        // A power of two, so that positions need no division.
        let room = (capacity / (words * WORD)).max(2);
        (words, 1 << room.ilog2())
    }

    fn region_len(words: usize, room: u64) -> usize {
        VALUES - BODY + (words + CHECK_WORDS) * WORD * usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Whether the next value can be written.
    #[inline]
    fn has_room(&mut self) -> bool {
        if self.done == self.until {
            // Acquire: what was read may be overwritten. Pairs with the Release store in `release`.
            self.until = self.control.region().load_acquire(RELEASED) + self.room;
        }
        self.done != self.until
    }

    /// The position of the next value, in values.
    #[inline]
    fn place(&self) -> usize {
        // Less than the number of values, which fits a `usize`.
        usize::try_from(self.done & (self.room - 1)).unwrap_or(0)
    }

    #[inline]
    fn offset(&self) -> usize {
        VALUES + self.place() * self.words * WORD
    }

    /// The offset of the next value's CRC-32: after all values, which so have the same places with and without.
    #[inline]
    fn check_offset(&self) -> usize {
        let values = usize::try_from(self.room).unwrap_or(0) * self.words;
        VALUES + (values + self.place() * CHECK_WORDS) * WORD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_order_and_wait_for_room() {
        let mut writer = Ring::create(20, 1000).unwrap();
        let mut reader = Ring::open(writer.control().file().unwrap(), 20, 1000).unwrap();
        let (mut sent, mut received, mut value) = (0_u64, 0_u64, [0; 3]);
        while received < 1000 {
            while writer.try_send(&[sent; 3]) {
                sent += 1;
            }
            assert!(!reader.try_receive(&mut value) && sent <= received + 32);
            writer.commit();
            while reader.try_receive(&mut value) {
                assert_eq!(value, [received; 3]);
                received += 1;
            }
            assert!(!writer.is_drained());
            reader.release();
            assert!(writer.is_drained());
        }
        assert_eq!((sent, writer.count(), reader.count()), (received, received, received));
    }

    #[test]
    fn an_eighth_of_the_ring_is_released_at_once() {
        let mut writer = Ring::create(24, 1000).unwrap();
        let mut reader = Ring::open(writer.control().file().unwrap(), 24, 1000).unwrap();
        while writer.try_send(&[7; 3]) {}
        writer.commit();
        let part = writer.room / RELEASE_PARTS;
        for received in 1..=2 * part {
            assert!(reader.try_receive(&mut [0; 3]));
            reader.release_part();
            assert_eq!(writer.try_send(&[8; 3]), received % part == 0, "value {received}");
            while writer.try_send(&[8; 3]) {}
        }
    }

    #[test]
    fn a_value_is_compared_with_its_checksum() {
        let mut writer = Ring::create(24, 1000).unwrap();
        let mut reader = Ring::open(writer.control().file().unwrap(), 24, 1000).unwrap();
        let mut value = [0; 3];
        assert_eq!(reader.try_receive_checked(&mut value), None);
        for round in 0..100 {
            while writer.try_send_checked(&[writer.count(); 3]) {}
            // One word of each round's value changes; the last value's checksum is at the end of the memory.
            let place = round % usize::try_from(writer.room).unwrap();
            let (first, wrong) = (reader.count(), VALUES + place * 3 * WORD);
            writer.control().region().store(wrong, !writer.control().region().load(wrong));
            writer.commit();
            let outcomes: Vec<_> = std::iter::from_fn(|| reader.try_receive_checked(&mut value)).collect();
            assert_eq!(outcomes.len() as u64, writer.room);
            let expected = (first..reader.count()).map(|number| number & (writer.room - 1) != place as u64);
            assert_eq!(outcomes, expected.collect::<Vec<_>>());
            reader.release();
        }
    }
}
