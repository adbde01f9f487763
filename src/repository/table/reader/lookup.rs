//! Reading the entry of one key, whether or not it has changed.

use super::TableReader;
use crate::id::{Meta, Sequence};
use crate::layout::table::ENTRY_WORD;
use crate::layout::{ByteRange, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::HOT_LINE;
use crate::repository::table::entry::{CellMemory, Choice, Entry, committed};
use crate::repository::table::scan::{Goal, Left, PassEnd, Scan, Scanned};
use crate::repository::{ReadFailure, Taken};

/// The result of a lookup in a cell.
#[derive(Debug)]
pub(crate) enum Looked {
    /// The key's entry.
    Found(Taken),
    /// The key was removed from the cell.
    Removed,
    /// The cell has another key.
    Elsewhere,
    /// The cell kept changing.
    Contended,
}

impl TableReader {
    /// Returns the cell of a key, as far as keys are known.
    pub(crate) fn cell_of(&self, key: &[u8]) -> Option<usize> {
        self.directory.find(key)
    }

    /// Returns what to fetch before [`Self::look_up`], first the cell's version.
    pub(crate) fn ranges_of(&self, cell: usize) -> [ByteRange; 3] {
        let version = ByteRange { offset: self.geometry.version_offset(cell), len: WORD };
        [version, self.geometry.cell_range(cell), HOT_LINE]
    }

    /// Takes the newest committed entry of a cell, if it has this key. That does not count as received. `is_arriving` if the rest of
    /// a rejected entry may be in flight: then only one that is known to be damaged is an error.
    pub(crate) fn look_up(
        &mut self,
        at: CellMemory<'_>,
        (cell, key): (usize, &[u8]),
        is_arriving: bool,
    ) -> Result<Looked, ReadFailure> {
        let (memory, mut rejected) = (at.region(), None);
        for _ in 0..limits::TORN_RETRIES_MAX {
            let stamp = match self.copy.choose(at, cell, Default::default()) {
                Choice::Nothing => return Ok(Looked::Elsewhere),
                Choice::Later => continue,
                Choice::Slot(stamp) => stamp,
            };
            let taken = self.copy.take(memory, cell, stamp);
            if let Ok(entry) = &taken
                && self.is_suspect(cell)
            {
                self.note(cell, entry);
            }
            match taken {
                Ok(entry) if entry.is_present && self.copy.key(&entry) == key => {
                    let Entry { header, .. } = entry;
                    let meta = Meta {
                        sequence: stamp.sequence(),
                        epoch: self.epoch,
                        published_ns: header.published_ns,
                    };
                    let taken =
                        Taken { meta, conflated: 0, begin: ENTRY_WORD, len: header.entry_len as usize };
                    return Ok(Looked::Found(taken));
                }
                Ok(entry) if self.copy.key(&entry) == key => return Ok(Looked::Removed),
                Ok(_) => return Ok(Looked::Elsewhere),
                Err(rejection) => rejected = Some((stamp, rejection)),
            }
        }
        let may_arrive = is_arriving && !self.is_suspect(cell);
        match rejected.filter(|_| !may_arrive) {
            Some((stamp, rejection))
                if memory.load_acquire(self.geometry.version_offset(cell)) == stamp.get() =>
            {
                self.suspects.insert(cell);
                // A damaged version may name a commit that does not exist.
                Err(rejection.failure(stamp.sequence().min(committed(memory))))
            }
            _ => Ok(Looked::Contended),
        }
    }

    /// Begins to learn the keys that are unknown yet, in the steps of this scan.
    pub(crate) fn begin_keys(&self, scan: &mut Scan) {
        scan.reset();
        scan.plan(&self.keys_goal());
    }

    /// Continues to learn keys after the fetch of a step, into a mirror unless `is_mapped`. Returns once it is over whether all keys
    /// are known that were committed when this began.
    pub(crate) fn step_keys(&mut self, scan: &mut Scan, memory: &Region, is_mapped: bool) -> Option<bool> {
        self.forget_later_keys(committed(memory));
        let keys_done = self.keys_done;
        // Of a cell whose entry was reported as damaged, nothing more is known before it has another one.
        let is_refused = |cell: usize, version| {
            self.cells.get(cell).is_some_and(|known| known.is_refused && known.version == version)
        };
        let scanned = scan.advance(memory, &self.keys_goal(), |cell, version| {
            version.sequence() > keys_done && !is_refused(cell, version)
        });
        let end = match scanned {
            Scanned::Nothing | Scanned::Ahead => return Some(true),
            Scanned::More => return None,
            Scanned::Over(end) => Some(end),
            Scanned::Cells => {
                while let Some((cell, version)) = scan.next_cell() {
                    let at = if is_mapped {
                        CellMemory::Mapped(memory)
                    } else {
                        CellMemory::Mirror(memory, version)
                    };
                    let is_known = self.learn_cell(at, cell);
                    scan.leave(Left { has_changing: !is_known, has_rejected: false });
                }
                scan.plan(&self.keys_goal())
            }
        };
        let PassEnd { until, left, .. } = end?;
        if !left.has_changing {
            self.keys_done = self.keys_done.max(until);
        }
        Some(!left.has_changing)
    }

    /// Learns the key of a cell. Returns whether that succeeded.
    fn learn_cell(&mut self, at: CellMemory<'_>, cell: usize) -> bool {
        for _ in 0..limits::TORN_RETRIES_MAX {
            match self.copy.choose(at, cell, Default::default()) {
                Choice::Nothing => return true,
                Choice::Later => {}
                Choice::Slot(stamp) => {
                    if let Ok(entry) = self.copy.take(at.region(), cell, stamp) {
                        self.note(cell, &entry);
                        return true;
                    }
                }
            }
        }
        false
    }

    fn keys_goal(&self) -> Goal<'_> {
        let Self { geometry, wanted, keys_done, .. } = self;
        let (floor, keys_done): (Sequence, Sequence) = (*keys_done, *keys_done);
        Goal { geometry, wanted, floor, keys_done, is_for_keys: true }
    }
}
