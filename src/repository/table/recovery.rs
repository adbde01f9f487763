//! Continues the repository of a writer that is gone.

use std::sync::Arc;

use super::entry::{Entry, EntryCopy};
use super::writer::TableWriter;
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::header::{HOT_PUBLISHED, HOT_SEQUENCE, StaticHeader};
use crate::layout::table::{EntryCheck, HOT_KEYS, SLOT_RUN, Stamp, TableGeometry};
use crate::memory::Region;
use crate::repository::{Continued, Damage, Recover, Writer};

impl Recover for TableWriter {
    /// Continues after the last commit that the hot line names, and checks the newest entry of every key.
    ///
    /// A writer that ended within a commit has written entries to the slots that no committed version names, and perhaps their versions.
    /// No reader takes those before the hot line names their commit, so each cell gets its last committed version again.
    fn recover(
        region: Arc<Region>,
        geometry: TableGeometry,
        line: &StaticHeader,
        continued: &Continued,
    ) -> Result<Self, Damage> {
        let last = continued.check_newest(Sequence::new(region.load(HOT_SEQUENCE)), HOT_SEQUENCE)?;
        let copy = EntryCopy::new(geometry, EntryCheck::new(line.topic, line.epoch));
        let (newest, published_ns) = (continued.after, None);
        let (memory, restored) = (Arc::clone(&region), Vec::new());
        let mut cells = Cells { region: memory, geometry, last, copy, newest, published_ns, restored };
        let mut writer = Self::new(region, geometry, line);
        writer.begin_after(last);
        for cell in 0..geometry.capacity() {
            let (stamp, entry) = cells.committed(cell)?;
            let key = entry.as_ref().filter(|entry| entry.is_present).map(|entry| cells.copy.key(entry));
            let header = entry.map(|entry| entry.header);
            if !writer.adopt(cell, stamp, header.as_ref(), key) {
                let offset = geometry.version_offset(cell);
                return Err(Damage { what: "a key that two cells have", offset });
            }
        }
        // Each commit changes a cell, and that keeps its last committed version.
        if cells.newest != last {
            return Err(Damage { what: "the newest sequence", offset: HOT_SEQUENCE });
        }
        cells.finish(writer.keys());
        Ok(writer)
    }
}

/// The cells of a repository that nobody writes.
struct Cells {
    region: Arc<Region>,
    geometry: TableGeometry,
    /// The last commit.
    last: Sequence,
    copy: EntryCopy,
    /// The newest commit that an entry has.
    newest: Sequence,
    /// When the newest entry was published.
    published_ns: Option<u64>,
    /// The offsets of versions of a lost commit, with the last committed ones. They are stored once all cells were checked.
    restored: Vec<(usize, Stamp)>,
}

impl Cells {
    /// Finds the last committed version of a cell. Returns the stamp that the next entry continues, and the entry of that version, `None`
    /// if the cell has none.
    fn committed(&mut self, cell: usize) -> Result<(Stamp, Option<Entry>), Damage> {
        let offset = self.geometry.version_offset(cell);
        let damage = Damage { what: "an entry of the table", offset };
        let version = Stamp::new(self.region.load(offset));
        let other = self.stamp_in(cell, version.other());
        let committed = match version {
            Stamp::NONE => Stamp::NONE,
            version if version.sequence() <= self.last => version,
            // A version is stored after its entry.
            version if self.stamp_in(cell, version) != version => return Err(damage),
            // Of a commit that is lost. The other slot has not been touched by it.
            _ if other == Stamp::NONE => Stamp::NONE,
            _ if other.slot() == version.slot() || other.sequence() > self.last => return Err(damage),
            _ => other,
        };
        if committed != version {
            self.restored.push((offset, committed));
        }
        if committed == Stamp::NONE {
            // A cell that never had a key begins with slot 1, and is untouched unless its first entry is lost, perhaps while it was written
            // over another lost one.
            let first = Stamp::NONE.other();
            let lost = self.stamp_in(cell, first);
            let lens = self.region.load(self.geometry.slot_offset(cell, first) + SLOT_RUN);
            let is_untouched = lost == Stamp::NONE && version == Stamp::NONE && lens == 0;
            return Ok((if is_untouched { Stamp::NONE } else { Stamp::NONE.after_lost(lost) }, None));
        }
        let entry = self.copy.take(&self.region, cell, committed).map_err(|_| damage)?;
        self.newest = self.newest.max(committed.sequence());
        self.published_ns = self.published_ns.max(Some(entry.header.published_ns));
        let lost = self.stamp_in(cell, committed.other());
        let is_whole = lost != Stamp::NONE && lost.sequence() <= self.last;
        Ok((if is_whole { committed } else { committed.after_lost(lost) }, Some(entry)))
    }

    /// The stamp in the slot that this one names.
    fn stamp_in(&self, cell: usize, slot: Stamp) -> Stamp {
        Stamp::new(self.region.load(self.geometry.slot_offset(cell, slot)))
    }

    /// Makes the versions, and the words of the pages and of the hot line, those of the last commit.
    fn finish(&self, keys: usize) {
        for (offset, version) in &self.restored {
            self.region.store_release(*offset, version.get());
        }
        for page in 0..self.geometry.page_count() {
            let cells = self.geometry.cells_of(page);
            let version = |cell| Stamp::new(self.region.load(self.geometry.version_offset(cell)));
            let newest = cells.map(|cell| version(cell).sequence().get()).max().unwrap_or(0);
            let page = self.geometry.page_offset(page);
            // A damaged word of a page that says less would hide these entries.
            for (word, least) in [(page, newest), (page + WORD, 0)] {
                let found = self.region.load(word);
                let right = found.max(least).min(self.last.get());
                if found != right {
                    self.region.store(word, right);
                }
            }
        }
        self.region.store(HOT_KEYS, keys as u64);
        if let Some(published_ns) = self.published_ns {
            self.region.store_release(HOT_PUBLISHED, published_ns);
        }
    }
}
