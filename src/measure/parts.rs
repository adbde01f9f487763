use std::sync::Arc;

use crate::id::{Epoch, TopicId};
use crate::layout::state::{GeometryError, StateGeometry};
use crate::memory::{MemoryError, Protection, Region};
use crate::repository::state::{StateReader, StateWriter};

/// A state repository with its writer and a reader, without node, session or clock: the commit and the check on
/// their own.
#[derive(Debug)]
pub struct RepositoryParts {
    region: Arc<Region>,
    writer: StateWriter,
    reader: StateReader,
}

/// Why the parts could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartsError {
    /// The sizes do not fit together.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl RepositoryParts {
    /// A repository of this many slots for payloads of up to this many bytes.
    ///
    /// # Errors
    ///
    /// [`PartsError`] when the sizes do not fit together, or memory cannot be had.
    pub fn new(slot_count: u32, payload_len_max: usize) -> Result<Self, PartsError> {
        let geometry = StateGeometry::new(slot_count, payload_len_max)?;
        let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead)?);
        let (epoch, topic) = (Epoch::FIRST, TopicId::new(1));
        let writer = StateWriter::new(Arc::clone(&region), geometry, &geometry.static_line(epoch, topic, 0));
        Ok(Self { region, writer, reader: StateReader::new(geometry, epoch, topic) })
    }

    /// Commits a value. False when it is too long.
    #[inline]
    pub fn commit(&mut self, payload: &[u8]) -> bool {
        self.writer.publish(payload, 0, 0).is_ok()
    }

    /// Copies the newest value out and checks it; its length, or `None` when there is none that is newer.
    #[inline]
    pub fn check(&mut self) -> Option<usize> {
        self.reader.poll(&self.region).ok().flatten().map(|verified| verified.payload.len())
    }

    /// Copies the value that was checked last out once more and checks it as if it had not been seen; its length, or
    /// `None` when no value was checked yet. It finds the value in this processor's own cache.
    #[inline]
    pub fn recheck(&mut self) -> Option<usize> {
        self.reader.rewind();
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recheck_reads_the_memory_again() {
        let mut parts = RepositoryParts::new(4, 100).unwrap();
        assert_eq!(parts.recheck(), None);
        for number in 1..=9 {
            assert!(parts.commit(&[number; 64]));
            assert_eq!((parts.check(), parts.check()), (Some(64), None));
            assert_eq!((parts.recheck(), parts.recheck(), parts.check()), (Some(64), Some(64), None));
        }
        assert_eq!(parts.reader.counts().received, 9 * 3);
        let words = parts.region.len() / 8;
        (0..words).for_each(|word| {
            let offset = word * 8;
            let changed = parts.region.load(offset) ^ (u64::from(parts.region.load(offset) == NINES) << 63);
            parts.region.store_release(offset, changed);
        });
        assert_eq!(parts.recheck(), None, "what was changed meanwhile is found wrong");
        assert_eq!(parts.reader.counts().rejected, 1);
    }

    /// A word of the last payload.
    const NINES: u64 = u64::from_le_bytes([9; 8]);
}
