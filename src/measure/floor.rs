use std::io;
use std::os::fd::OwnedFd;

use crate::layout::{LINE, WORD};
use crate::memory::{Access, MemoryError, Protection, Region};
use crate::sync::atomic::{Ordering, fence};

/// The bare exchange that deliveries are compared with: for each direction one seqlock in shared memory, the stamp
/// beside the bytes, written and read whole, nothing checked but the stamp. It also carries a word by which one
/// process tells the other what to do.
#[derive(Debug)]
pub struct Floor {
    region: Region,
    words: usize,
}

/// Where the word stands that tells what to do.
const PHASE: usize = 0;
/// Where the lines stand that a probe passes to and fro, one for each direction.
const PROBE: usize = 2 * LINE;
/// Where the directions begin.
const BODY: usize = PROBE + 4 * LINE;

impl Floor {
    /// A floor for values of `len` bytes, rounded up to whole words.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when memory cannot be had.
    pub fn create(len: usize) -> Result<Self, MemoryError> {
        let words = len.div_ceil(WORD);
        Ok(Self { region: Region::allocate(BODY + 2 * stride(words), Protection::PeersWrite)?, words })
    }

    /// The floor that another process has created with this length.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when the file is not that of a floor of this length.
    pub fn open(file: OwnedFd, len: usize) -> Result<Self, MemoryError> {
        let words = len.div_ceil(WORD);
        Ok(Self { region: Region::import(file, BODY + 2 * stride(words), Access::Write)?, words })
    }

    /// The memory, to be handed to the other process.
    ///
    /// # Errors
    ///
    /// When the process has too many open files.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.region.file().try_clone_to_owned()
    }

    /// What the other process was told to do.
    pub fn phase(&self) -> u64 {
        self.region.load_acquire(PHASE)
    }

    /// Tells the other process what to do.
    pub fn set_phase(&self, phase: u64) {
        self.region.store_release(PHASE, phase);
    }

    /// Stores a number in the line of this direction (0 or 1).
    #[inline]
    pub fn pass(&self, direction: usize, number: u64) {
        self.region.store_release(PROBE + (direction & 1) * 2 * LINE, number);
    }

    /// The number in the line of this direction.
    #[inline]
    pub fn passed(&self, direction: usize) -> u64 {
        self.region.load_acquire(PROBE + (direction & 1) * 2 * LINE)
    }

    /// Writes a value into this direction (0 or 1), with a stamp that is larger than the one before.
    ///
    /// # Panics
    ///
    /// When the value is not as long as was agreed.
    #[inline]
    pub fn send(&self, direction: usize, stamp: u64, value: &[u64]) {
        assert_eq!(value.len(), self.words, "a floor is measured with values of one length");
        let offset = self.offset(direction);
        self.region.copy_in(offset + WORD, value);
        // Release: publishes the value. Pairs with the Acquire load in `try_receive`.
        self.region.store_release(offset, stamp);
    }

    /// Reads the value of this stamp from this direction, if it is there.
    ///
    /// # Panics
    ///
    /// When the room is not as long as was agreed.
    #[inline]
    pub fn try_receive(&self, direction: usize, stamp: u64, value: &mut [u64]) -> bool {
        assert_eq!(value.len(), self.words, "a floor is measured with values of one length");
        let offset = self.offset(direction);
        // Acquire: pairs with the Release store in `send`.
        if self.region.load_acquire(offset) != stamp {
            return false;
        }
        self.region.copy_out(offset + WORD, value);
        // Acquire: the stamp is looked at again after the value.
        fence(Ordering::Acquire);
        self.region.load(offset) == stamp
    }

    fn offset(&self, direction: usize) -> usize {
        BODY + (direction & 1) * stride(self.words)
    }
}

/// Bytes from one direction to the other: never in one pair of cache lines.
fn stride(words: usize) -> usize {
    ((words + 1) * WORD).next_multiple_of(2 * LINE) + 2 * LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ends_exchange_values() {
        let one = Floor::create(100).unwrap();
        let other = Floor::open(one.file().unwrap(), 100).unwrap();
        let (ping, pong) = ([1; 13], [2; 13]);
        let mut got = [0; 13];
        one.send(0, 1, &ping);
        assert!(!other.try_receive(1, 1, &mut got) && other.try_receive(0, 1, &mut got));
        assert_eq!(got, ping);
        other.send(1, 1, &pong);
        assert!(one.try_receive(1, 1, &mut got));
        assert_eq!(got, pong);
        other.set_phase(3);
        assert_eq!(one.phase(), 3);
    }
}
