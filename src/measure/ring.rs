use std::os::fd::OwnedFd;

use super::control::{BODY, Control};
use crate::layout::{LINE, WORD};
use crate::memory::MemoryError;

/// The bare stream that logs are compared with: a ring of values of one length in shared memory, with one writer and one
/// reader, written and read whole, nothing checked. The writer waits for the reader.
#[derive(Debug)]
pub struct Ring {
    control: Control,
    /// Words of a value.
    words: usize,
    /// Values that there is room for.
    count: u64,
    /// At the writer values sent, at the reader values received; and of those, how many the other one was told of.
    done: u64,
    told: u64,
    /// Up to where this end may go on, as far as it has looked.
    until: u64,
}

/// Where the writer tells how many values there are.
const SENT: usize = BODY;
/// Where the reader tells how many it has read.
const RELEASED: usize = SENT + 2 * LINE;
/// Where the values begin.
const VALUES: usize = RELEASED + 2 * LINE;

impl Ring {
    /// A ring of about this many bytes for values of `len` bytes, rounded up to whole words: two of them at least.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when memory cannot be had.
    pub fn create(len: usize, capacity: usize) -> Result<Self, MemoryError> {
        let (words, count) = Self::sizes(len, capacity);
        Ok(Self::new(Control::create(Self::region_len(words, count))?, words, count))
    }

    /// The ring that another process has created with these sizes.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when the file is not that of a ring of these sizes.
    pub fn open(file: OwnedFd, len: usize, capacity: usize) -> Result<Self, MemoryError> {
        let (words, count) = Self::sizes(len, capacity);
        Ok(Self::new(Control::open(file, Self::region_len(words, count))?, words, count))
    }

    /// The lines by which the processes tell each other what to do.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Writes a value, if there is room. It is seen after [`Self::commit`].
    ///
    /// # Panics
    ///
    /// When the value is not as long as was agreed.
    #[inline]
    pub fn try_send(&mut self, value: &[u64]) -> bool {
        assert_eq!(value.len(), self.words, "a ring is measured with values of one length");
        if self.done == self.until {
            // Acquire: what was read may be overwritten. Pairs with the Release store in `release`.
            self.until = self.control.region().load_acquire(RELEASED) + self.count;
            if self.done == self.until {
                return false;
            }
        }
        self.control.region().copy_in(self.offset(), value);
        self.done += 1;
        true
    }

    /// Lets what was sent be seen.
    #[inline]
    pub fn commit(&mut self) {
        if self.told != self.done {
            self.told = self.done;
            // Release: whoever sees the number sees the values. Pairs with the Acquire load in `try_receive`.
            self.control.region().store_release(SENT, self.done);
        }
    }

    /// Whether the reader has released all that was sent.
    pub fn is_drained(&self) -> bool {
        self.control.region().load_acquire(RELEASED) == self.done
    }

    /// Reads the next value, if there is one.
    ///
    /// # Panics
    ///
    /// When the room is not as long as was agreed.
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

    /// Lets the writer overwrite what was received.
    #[inline]
    pub fn release(&mut self) {
        if self.told != self.done {
            self.told = self.done;
            // Release: what was read before may be overwritten. Pairs with the Acquire load in `try_send`.
            self.control.region().store_release(RELEASED, self.done);
        }
    }

    fn new(control: Control, words: usize, count: u64) -> Self {
        Self { control, words, count, done: 0, told: 0, until: 0 }
    }

    fn sizes(len: usize, capacity: usize) -> (usize, u64) {
        let words = len.div_ceil(WORD).max(1);
        // A power of two, so that finding a place costs no division.
        let count = (capacity / (words * WORD)).max(2);
        (words, 1 << count.ilog2())
    }

    fn region_len(words: usize, count: u64) -> usize {
        VALUES - BODY + words * WORD * usize::try_from(count).unwrap_or(usize::MAX)
    }

    #[inline]
    fn offset(&self) -> usize {
        // Less than the number of values, which is a `usize`.
        VALUES + usize::try_from(self.done & (self.count - 1)).unwrap_or(0) * self.words * WORD
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
        assert_eq!(sent, received);
    }
}
