use std::sync::Arc;

use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::Geometry;
use crate::layout::GeometryError;
use crate::layout::header::{HeaderError, STATIC_OFFSET, StaticHeader};
use crate::layout::log::LogGeometry;
use crate::layout::state::StateGeometry;
use crate::memory::{MemoryError, Protection, Region};
use crate::repository::log::{LogReader, LogStart, LogWriter};
use crate::repository::state::{StateReader, StateWriter};
use crate::repository::{Reader as _, SubscriberStats, Writer as _};

/// A state repository with its writer and a reader, without node, session or clock, to measure commit and check.
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
    /// The sizes are inconsistent.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The region's header is damaged.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Memory could not be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl RepositoryParts {
    /// Creates a repository of this many slots for payloads of up to this many bytes.
    ///
    /// # Errors
    ///
    /// [`PartsError`] when the sizes are inconsistent, or memory cannot be allocated.
    pub fn new(slot_count: u32, payload_len_max: usize) -> Result<Self, PartsError> {
        let geometry = StateGeometry::new(slot_count, payload_len_max)?;
        let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead)?);
        let (epoch, topic) = (Epoch::FIRST, TopicId::new(1));
        let writer = StateWriter::new(
            Arc::clone(&region),
            geometry,
            &Geometry::from(geometry).static_header(epoch, topic, 0),
        );
        Ok(Self { region, writer, reader: StateReader::new(geometry, epoch, topic) })
    }

    /// Commits a value. False when it is too long.
    #[inline]
    pub fn commit(&mut self, payload: &[u8]) -> bool {
        self.writer.publish(payload, 0, 0).is_ok()
    }

    /// Copies out and checks the newest value. Returns its length, or `None` without a newer one.
    #[inline]
    pub fn check(&mut self) -> Option<usize> {
        self.reader.read(&self.region).ok().flatten().map(|verified| verified.payload.len())
    }

    /// Copies out and checks the last checked value again. Returns its length, or `None` before the first check. The value is in
    /// this processor's cache.
    #[inline]
    pub fn recheck(&mut self) -> Option<usize> {
        self.reader.rewind();
        self.check()
    }
}

/// A log repository with its writer and a reader, without node, session or clock, to measure append, commit, late join and check.
#[derive(Debug)]
pub struct LogParts {
    writer: LogWriter,
    reader: LogReader,
}

impl LogParts {
    /// Creates a ring of at least this many bytes for records of up to this many bytes, and a reader that begins with the first.
    ///
    /// # Errors
    ///
    /// [`PartsError`] when the sizes are inconsistent, or memory cannot be allocated.
    pub fn new(capacity: usize, payload_len_max: usize) -> Result<Self, PartsError> {
        let geometry = LogGeometry::new(capacity, payload_len_max)?;
        let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead)?);
        let (epoch, topic) = (Epoch::FIRST, TopicId::new(1));
        let writer =
            LogWriter::new(region, geometry, &Geometry::from(geometry).static_header(epoch, topic, 0));
        Ok(Self { writer, reader: LogReader::new(geometry, epoch, topic, LogStart::Earliest) })
    }

    /// Appends a record. False when it is too long.
    #[inline]
    pub fn append(&mut self, payload: &[u8]) -> bool {
        self.writer.append(payload, 0).is_ok()
    }

    /// Makes the appended records visible. Returns the newest sequence.
    #[inline]
    pub fn commit(&mut self) -> Sequence {
        self.writer.commit(0);
        self.writer.last()
    }

    /// Replaces the reader by a new one, as for a subscriber that joins: it reads the region's own header.
    ///
    /// # Errors
    ///
    /// [`PartsError`] when that header is damaged.
    pub fn join(&mut self, start: LogStart) -> Result<(), PartsError> {
        let mut words = [0; StaticHeader::WORDS];
        self.writer.region().copy_out(STATIC_OFFSET, &mut words);
        let line = StaticHeader::parse(&words)?;
        let mismatch = GeometryError::Mismatch { field: "kind" };
        let geometry = Geometry::of(&line)?.log().ok_or(mismatch)?;
        self.reader = LogReader::new(geometry, line.epoch, line.topic, start);
        Ok(())
    }

    /// Takes and checks the next record. Returns its sequence and payload, or `None` when none is available or some before it are
    /// lost; see [`Self::counts`].
    #[inline]
    pub fn check(&mut self) -> Option<(Sequence, &[u8])> {
        let record = self.reader.read(self.writer.region()).ok()??;
        Some((record.meta.sequence, record.payload))
    }

    /// Returns the counts of the reader.
    pub fn counts(&self) -> SubscriberStats {
        self.reader.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_records_are_received_once_committed() {
        let mut parts = LogParts::new(1 << 12, 100).unwrap();
        assert!(parts.append(&[1; 64]) && parts.append(&[2; 100]) && !parts.append(&[3; 101]));
        assert_eq!(parts.check(), None);
        assert_eq!(parts.commit().get(), 2);
        assert_eq!(parts.check(), Some((Sequence::new(1), [1; 64].as_slice())));
        assert_eq!(parts.check(), Some((Sequence::new(2), [2; 100].as_slice())));
        assert_eq!(parts.check(), None);
        for _ in 0..1000 {
            assert!(parts.append(&[4; 8]));
            parts.commit();
        }
        assert_eq!(parts.check(), None);
        assert_eq!(parts.counts().received, 2);
        let lost = parts.counts().lapped;
        assert_eq!(parts.check(), Some((Sequence::new(3 + lost), [4; 8].as_slice())));
        parts.join(LogStart::Back(5)).unwrap();
        assert_eq!(parts.check(), Some((Sequence::new(998), [4; 8].as_slice())));
    }

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
        assert_eq!(parts.recheck(), None, "a later change is detected");
        assert_eq!(parts.reader.counts().rejected, 1);
    }

    /// One word of the last payload.
    const NINES: u64 = u64::from_le_bytes([9; 8]);
}
