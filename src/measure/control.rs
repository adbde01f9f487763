use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::layout::LINE;
use crate::memory::{Access, MemoryError, Protection, Region};

/// Lines in shared memory, before the exchanged bytes, by which the processes of a measurement exchange phases and progress.
#[derive(Debug)]
pub struct Control {
    region: Region,
}

/// Readers that can report progress.
const READERS_MAX: usize = 64;
/// The offset of the phase.
const PHASE: usize = 0;
/// The offset of the phase that the first reader has entered.
const ENTERED: usize = LINE;
/// The offset of the probe's lines, one for each direction.
const PROBE: usize = 2 * LINE;
/// The offset of the readers' progress.
const PROGRESS: usize = PROBE + 4 * LINE;
/// The offset of the exchanged bytes.
pub(super) const BODY: usize = PROGRESS + READERS_MAX * 2 * LINE;

impl Control {
    /// Creates memory to exchange this many bytes.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when memory cannot be allocated.
    pub fn create(len: usize) -> Result<Self, MemoryError> {
        Ok(Self { region: Region::allocate(BODY + len, Protection::PeersWrite)? })
    }

    /// Opens the memory that another process has created with this length.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when the file has another length.
    pub fn open(file: OwnedFd, len: usize) -> Result<Self, MemoryError> {
        Ok(Self { region: Region::import(file.as_fd(), BODY + len, Access::Write)? })
    }

    /// Returns the memory's file, for another process.
    ///
    /// # Errors
    ///
    /// When the process has too many open files.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.region.file().try_clone_to_owned()
    }

    /// Returns the phase.
    pub fn phase(&self) -> u64 {
        self.region.load_acquire(PHASE)
    }

    /// Sets the phase for the other processes.
    pub fn set_phase(&self, phase: u64) {
        self.region.store_release(PHASE, phase);
    }

    /// Returns the phase that the first reader has entered.
    pub fn entered(&self) -> u64 {
        self.region.load_acquire(ENTERED)
    }

    /// Reports that the first reader has entered this phase.
    pub fn enter(&self, phase: u64) {
        self.region.store_release(ENTERED, phase);
    }

    /// Stores a number in the line of this direction (0 or 1).
    #[inline]
    pub fn pass(&self, direction: usize, number: u64) {
        self.region.store_release(PROBE + (direction & 1) * 2 * LINE, number);
    }

    /// Returns the number in the line of this direction.
    #[inline]
    pub fn passed(&self, direction: usize) -> u64 {
        self.region.load_acquire(PROBE + (direction & 1) * 2 * LINE)
    }

    /// Returns the progress of this reader, modulo 64.
    #[inline]
    pub fn progress(&self, reader: usize) -> u64 {
        // Acquire: the reader has finished with these values. Pairs with the Release store in `set_progress`.
        self.region.load_acquire(PROGRESS + reader % READERS_MAX * 2 * LINE)
    }

    /// Sets the progress of this reader, modulo 64.
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
    fn one_process_sees_what_another_sets() {
        let one = Control::create(0).unwrap();
        let other = Control::open(one.file().unwrap(), 0).unwrap();
        one.set_phase(3);
        one.pass(0, 5);
        other.enter(3);
        (0..READERS_MAX).for_each(|reader| other.set_progress(reader, 100 + reader as u64));
        assert_eq!((other.phase(), one.entered(), other.passed(0), other.passed(1)), (3, 3, 5, 0));
        assert!((0..READERS_MAX).all(|reader| one.progress(reader) == 100 + reader as u64));
    }
}
