use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::layout::LINE;
use crate::memory::{Access, MemoryError, Protection, Region};

/// Lines in shared memory by which processes that measure together tell each other what to do and how far they are, before
/// the bytes that they exchange.
#[derive(Debug)]
pub struct Control {
    region: Region,
}

/// Processes that can tell how far they are.
const READERS_MAX: usize = 64;
/// Where the word stands that tells what to do.
const PHASE: usize = 0;
/// Where the lines stand that a probe passes to and fro, one for each direction.
const PROBE: usize = 2 * LINE;
/// Where the lines stand that tell how far each reader is.
const PROGRESS: usize = PROBE + 4 * LINE;
/// Where what is exchanged begins.
pub(super) const BODY: usize = PROGRESS + READERS_MAX * 2 * LINE;

impl Control {
    /// Memory with room for this many bytes to be exchanged.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when memory cannot be had.
    pub fn create(len: usize) -> Result<Self, MemoryError> {
        Ok(Self { region: Region::allocate(BODY + len, Protection::PeersWrite)? })
    }

    /// The memory that another process has created with this length.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when the file is not of that length.
    pub fn open(file: OwnedFd, len: usize) -> Result<Self, MemoryError> {
        Ok(Self { region: Region::import(file.as_fd(), BODY + len, Access::Write)? })
    }

    /// The memory, to be handed to another process.
    ///
    /// # Errors
    ///
    /// When the process has too many open files.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.region.file().try_clone_to_owned()
    }

    /// What the other processes were told to do.
    pub fn phase(&self) -> u64 {
        self.region.load_acquire(PHASE)
    }

    /// Tells the other processes what to do.
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

    /// How far the reader of this number says it is, modulo 64.
    #[inline]
    pub fn progress(&self, reader: usize) -> u64 {
        // Acquire: what the reader has read is read. Pairs with the Release store in `set_progress`.
        self.region.load_acquire(PROGRESS + reader % READERS_MAX * 2 * LINE)
    }

    /// Tells how far the reader of this number is, modulo 64.
    #[inline]
    pub fn set_progress(&self, reader: usize, number: u64) {
        // Release: what was read before may be overwritten. Pairs with the Acquire load in `progress`.
        self.region.store_release(PROGRESS + reader % READERS_MAX * 2 * LINE, number);
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_tells_the_other_sees() {
        let one = Control::create(0).unwrap();
        let other = Control::open(one.file().unwrap(), 0).unwrap();
        one.set_phase(3);
        one.pass(0, 5);
        (0..READERS_MAX).for_each(|reader| other.set_progress(reader, 100 + reader as u64));
        assert_eq!((other.phase(), other.passed(0), other.passed(1)), (3, 5, 0));
        assert!((0..READERS_MAX).all(|reader| one.progress(reader) == 100 + reader as u64));
    }
}
