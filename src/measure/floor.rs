use std::os::fd::OwnedFd;

use super::control::{BODY, Control};
use crate::layout::{LINE, WORD};
use crate::memory::MemoryError;
use crate::sync::atomic::{Ordering, fence};

/// The bare exchange for comparison with deliveries: for each direction one seqlock in shared memory, read and written whole,
/// with only its stamp checked.
#[derive(Debug)]
pub struct Floor {
    control: Control,
    words: usize,
}

impl Floor {
    /// Creates a floor for values of `len` bytes, rounded up to whole words.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when memory cannot be allocated.
    pub fn create(len: usize) -> Result<Self, MemoryError> {
        let words = len.div_ceil(WORD);
        Ok(Self { control: Control::create(2 * stride(words))?, words })
    }

    /// Opens the floor that another process has created with this length.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when the file is not a floor of this length.
    pub fn open(file: OwnedFd, len: usize) -> Result<Self, MemoryError> {
        let words = len.div_ceil(WORD);
        Ok(Self { control: Control::open(file, 2 * stride(words))?, words })
    }

    /// Returns the control lines of the two processes.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Writes a value in this direction (0 or 1), with a stamp larger than the last.
    ///
    /// # Panics
    ///
    /// When the value does not have the agreed length.
    #[inline]
    pub fn send(&self, direction: usize, stamp: u64, value: &[u64]) {
        assert_eq!(value.len(), self.words, "a floor is measured with values of one length");
        let offset = self.offset(direction);
        self.control.region().copy_in(offset + WORD, value);
        // Release: publishes the value. Pairs with the Acquire load in `try_receive`.
        self.control.region().store_release(offset, stamp);
    }

    /// Reads the value with this stamp in this direction, if available.
    ///
    /// # Panics
    ///
    /// When the buffer does not have the agreed length.
    #[inline]
    pub fn try_receive(&self, direction: usize, stamp: u64, value: &mut [u64]) -> bool {
        assert_eq!(value.len(), self.words, "a floor is measured with values of one length");
        let offset = self.offset(direction);
        // Acquire: pairs with the Release store in `send`.
        if self.control.region().load_acquire(offset) != stamp {
            return false;
        }
        self.control.region().copy_out(offset + WORD, value);
        // Acquire: the stamp is read again after the value.
        fence(Ordering::Acquire);
        self.control.region().load(offset) == stamp
    }

    fn offset(&self, direction: usize) -> usize {
        BODY + (direction & 1) * stride(self.words)
    }
}

/// Bytes between the directions: they never share a pair of cache lines.
fn stride(words: usize) -> usize {
    ((words + 1) * WORD).next_multiple_of(2 * LINE) + 2 * LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ends_exchange_values() {
        let one = Floor::create(100).unwrap();
        let other = Floor::open(one.control().file().unwrap(), 100).unwrap();
        let (ping, pong) = ([1; 13], [2; 13]);
        let mut got = [0; 13];
        one.send(0, 1, &ping);
        assert!(!other.try_receive(1, 1, &mut got) && other.try_receive(0, 1, &mut got));
        assert_eq!(got, ping);
        other.send(1, 1, &pong);
        assert!(one.try_receive(1, 1, &mut got));
        assert_eq!(got, pong);
    }
}
