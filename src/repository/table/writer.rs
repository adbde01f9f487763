use std::collections::VecDeque;
use std::sync::Arc;

use super::directory::Directory;
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::header::{HOT_EPOCH, HOT_PUBLISHED, HOT_SEQUENCE, STATIC_OFFSET, StaticHeader};
use crate::layout::table::{
    ABSENT, ENTRY_WORD, EntryCheck, EntryHeader, HEADER_WORDS, HOT_KEYS, LEAD_WORDS, PAGE_CELLS, PRESENT,
    SLOT_CRC, SLOT_RUN, Stamp, TableGeometry, entry_words, slot_len,
};
use crate::memory::{Region, set_quad};
use crate::repository::Writer;
use crate::sync::atomic::{Ordering, fence};

/// Tables of fewer bytes are likely to be in the cache of the writer's processor.
const PREFETCHED_FROM: usize = 1 << 20;
/// Bytes of a slot to prefetch for writing.
const PREFETCHED_LEN: usize = 512;

/// The only writer of a table repository. Putting does not allocate, block or make system calls.
///
/// Entries are staged, and become visible together with [`Self::commit`]. A staged entry occupies the older slot of its cell.
#[derive(Debug)]
pub(crate) struct TableWriter {
    region: Arc<Region>,
    geometry: TableGeometry,
    check: EntryCheck,
    last: Sequence,
    /// The sequence of what is staged next, and of the next commit.
    next: Sequence,
    directory: Directory,
    cells: Box<[Cell]>,
    /// The cells that the next commit changes.
    staged: Vec<u32>,
    /// Bytes of the staged entries.
    staged_len: u64,
    /// Of those, the ones whose key was removed.
    removed: Vec<u32>,
    /// Cells without keys, to be reused in this order.
    free: VecDeque<u32>,
    /// Cells from here on have never had a key.
    unused: usize,
    /// A run of the checksum in private memory: cell, stamp, header, entry.
    scratch: Box<[u64]>,
}

/// The newest entry of a cell, committed or staged.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Its slot and sequence, and the revision of the last entry written to the cell.
    stamp: Stamp,
    number: u64,
    /// The commit that added its key; none if it was removed.
    added: Sequence,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableCommit {
    /// Its sequence.
    pub(crate) sequence: Sequence,
    /// The sequence of the commit before it.
    pub(crate) previous: Sequence,
    /// Its publish time, nanoseconds since the Unix epoch.
    pub(crate) published_ns: u64,
    /// The changed cell, if it is the only one.
    pub(crate) cell: Option<usize>,
    /// Bytes of the staged entries.
    pub(crate) len: u64,
}

/// Why a key has no cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The key is longer than declared.
    KeyTooLong,
    /// Every cell has a key.
    Full,
}

impl Writer for TableWriter {
    type Geometry = TableGeometry;

    fn new(region: Arc<Region>, geometry: TableGeometry, line: &StaticHeader) -> Self {
        assert!(region.len() >= geometry.region_len(), "a region shorter than its geometry");
        region.copy_in(STATIC_OFFSET, &line.emit());
        region.store(HOT_EPOCH, line.epoch.get());
        let capacity = geometry.capacity();
        Self {
            region,
            geometry,
            check: EntryCheck::new(line.topic, line.epoch),
            last: Sequence::NONE,
            next: Sequence::NONE.next(),
            directory: Directory::new(capacity, geometry.key_len_max()),
            cells: vec![Cell::default(); capacity].into(),
            staged: Vec::with_capacity(capacity),
            staged_len: 0,
            removed: Vec::with_capacity(capacity),
            free: VecDeque::with_capacity(capacity),
            unused: 0,
            scratch: vec![0; ENTRY_WORD + entry_words(geometry.payload_len_max())].into(),
        }
    }

    fn begin_after(&mut self, sequence: Sequence) {
        (self.last, self.next) = (sequence, sequence.next());
    }

    fn last(&self) -> Sequence {
        self.last
    }

    #[inline]
    fn room(&mut self) -> &mut [u8] {
        let (_, room) = self.scratch.split_at_mut(ENTRY_WORD);
        let room: &mut [u8] = bytemuck::cast_slice_mut(room);
        room.split_at_mut(self.geometry.payload_len_max()).0
    }

    #[inline]
    fn held(&self) -> &[u8] {
        bytemuck::cast_slice(self.scratch.split_at(ENTRY_WORD).1)
    }
}

impl TableWriter {
    /// Takes over a cell of a writer that is gone, in order: the stamp that its next entry continues, the header of its newest entry, and
    /// the key that it has. Returns false if another cell has that key.
    pub(super) fn adopt(
        &mut self,
        cell: usize,
        stamp: Stamp,
        header: Option<&EntryHeader>,
        key: Option<&[u8]>,
    ) -> bool {
        let Some(adopted) = self.cells.get_mut(cell) else { return false };
        let (number, added) = header.map_or((0, Sequence::NONE), |header| (header.number, header.added));
        *adopted = Cell { stamp, number, added: if key.is_some() { added } else { Sequence::NONE } };
        if header.is_none() && stamp == Stamp::NONE {
            return true;
        }
        // Cells before it without a key are free. A capacity has 24 bits.
        let from = self.unused;
        self.unused = cell + 1;
        let free = from..cell + usize::from(key.is_none());
        self.free.extend(free.filter_map(|cell| u32::try_from(cell).ok()));
        let is_new = key.is_none_or(|key| self.directory.find(key).is_none());
        key.into_iter().filter(|_| is_new).for_each(|key| self.directory.insert(cell, key));
        is_new
    }

    /// Returns its geometry.
    pub(crate) fn geometry(&self) -> TableGeometry {
        self.geometry
    }

    /// Sets the sequence of later staged entries and of the next commit, which must not be less than that of anything staged.
    /// Without this call each commit has the next sequence.
    #[inline]
    pub(crate) fn set_next(&mut self, next: Sequence) {
        debug_assert!(next > self.last, "sequences of a table grow");
        self.next = next;
    }

    /// Returns the number of keys, those of staged entries included.
    pub(crate) fn keys(&self) -> usize {
        self.directory.len()
    }

    /// Returns whether it has this key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.directory.find(key).is_some()
    }

    /// Returns whether [`Self::prefetch`] is worth its cost.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.geometry.region_len() >= PREFETCHED_FROM
    }

    /// Prepares to stage an entry of the key in the first `key_len` bytes of [`Self::room`]: fetches what that will write. Returns the
    /// key's cell.
    #[inline]
    pub(crate) fn prefetch(&self, key_len: usize) -> Option<usize> {
        let cell = self.directory.find(self.held().get(..key_len)?)?;
        let Cell { stamp, .. } = self.cells.get(cell)?;
        let slot = self.geometry.slot_offset(cell, stamp.other());
        self.region.expect_writes(slot, PREFETCHED_LEN.min(slot_len(self.geometry.payload_len_max())));
        self.region.expect_writes(self.geometry.version_offset(cell), WORD);
        Some(cell)
    }

    /// Stages the entry in [`Self::room`]: a key of `key_len` bytes, one byte that is overwritten, and a value, together
    /// `entry_len` bytes. The key's cell is probably `expected`. Leaves everything as it was if the key has no cell.
    ///
    /// # Panics
    ///
    /// If the room has fewer bytes.
    #[inline]
    pub(crate) fn stage_filled(
        &mut self,
        (key_len, entry_len): (usize, usize),
        expected: Option<usize>,
        now_ns: u64,
    ) -> Result<(), Unplaced> {
        let entry: &mut [u8] = bytemuck::cast_slice_mut(self.scratch.split_at_mut(ENTRY_WORD).1);
        let (key, rest) = entry.split_at_mut(key_len);
        if let Some(presence) = rest.first_mut() {
            *presence = PRESENT;
        }
        if key_len > self.geometry.key_len_max() {
            return Err(Unplaced::KeyTooLong);
        }
        let Self { directory, cells, .. } = self;
        let has_key = |cell: &Cell| cell.added != Sequence::NONE;
        let is_key = |cell: &usize| directory.key(*cell) == key && cells.get(*cell).is_some_and(has_key);
        let found = expected.filter(is_key).or_else(|| directory.find(key));
        let cell = match found {
            Some(cell) => cell,
            None => self.place(key_len)?,
        };
        self.write(cell, (key_len, entry_len), now_ns);
        Ok(())
    }

    /// Stages the newest value of the key in the first `key_len` bytes of [`Self::room`] again, with the next number. Returns
    /// false if the table does not have the key, or its entry is damaged.
    pub(crate) fn stage_again(&mut self, key_len: usize, now_ns: u64) -> bool {
        let Some(cell) = self.held().get(..key_len).and_then(|key| self.directory.find(key)) else {
            return false;
        };
        let stamp = self.cells.get(cell).map_or(Stamp::NONE, |cell| cell.stamp);
        let entry_len = self.header(cell, stamp).entry_len as usize;
        if entry_len > self.geometry.payload_len_max() {
            return false;
        }
        let (run, _) = self.scratch.split_at_mut(ENTRY_WORD + entry_words(entry_len));
        let (lead, held) = run.split_at_mut(LEAD_WORDS);
        let slot = self.geometry.slot_offset(cell, stamp);
        lead.copy_from_slice(&[cell as u64, self.region.load(slot)]);
        self.region.copy_out(slot + SLOT_RUN, held);
        if u64::from(self.check.of_run(run)) != self.region.load(slot + SLOT_CRC) {
            return false;
        }
        self.write(cell, (key_len, entry_len), now_ns);
        true
    }

    /// Damages the newest entry of the key in the first `key_len` bytes of [`Self::room`].
    #[cfg(test)]
    pub(crate) fn damage(&self, key_len: usize) {
        let (cell, _) = self.find(key_len).expect("the table has the key");
        let slot = self.geometry.slot_offset(cell, self.cells[cell].stamp);
        self.region.store(slot + SLOT_CRC, !self.region.load(slot + SLOT_CRC) & u64::from(u32::MAX));
    }

    /// Pretends in the hot line that this commit is the newest.
    #[cfg(test)]
    pub(crate) fn pretend(&self, newest: Sequence) {
        self.region.store(HOT_SEQUENCE, newest.get());
    }

    /// Pretends that this commit is the newest, and has changed every page.
    #[cfg(test)]
    pub(crate) fn pretend_everywhere(&self, newest: Sequence) {
        self.pretend(newest);
        let pages = (0..self.geometry.page_count()).map(|page| self.geometry.page_offset(page));
        pages.for_each(|page| self.region.store(page, newest.get()));
    }

    /// Finds the key in the first `key_len` bytes of [`Self::room`]. Returns its cell, and the sequence of its newest entry, staged or
    /// committed.
    #[inline]
    pub(crate) fn find(&self, key_len: usize) -> Option<(usize, Sequence)> {
        let cell = self.directory.find(self.held().get(..key_len)?)?;
        Some((cell, self.cells.get(cell)?.stamp.sequence()))
    }

    /// Stages the removal of the key in the first `key_len` bytes of [`Self::room`]. Returns whether the table has it.
    pub(crate) fn stage_removal(&mut self, key_len: usize, now_ns: u64) -> bool {
        let entry: &mut [u8] = bytemuck::cast_slice_mut(self.scratch.split_at_mut(ENTRY_WORD).1);
        let (key, rest) = entry.split_at_mut(key_len);
        let (Some(cell), Some(presence)) = (self.directory.find(key), rest.first_mut()) else { return false };
        *presence = ABSENT;
        self.write(cell, (key_len, key_len + 1), now_ns);
        self.directory.remove(cell);
        if let Some(cell) = self.cells.get_mut(cell) {
            cell.added = Sequence::NONE;
        }
        self.removed.extend(u32::try_from(cell));
        true
    }

    /// Makes all staged entries visible. `None` if there are none.
    #[inline]
    pub(crate) fn commit(&mut self, now_ns: u64) -> Option<TableCommit> {
        let (first, others) = self.staged.split_first()?;
        let cell = others.is_empty().then_some(*first as usize);
        let (previous, sequence) = (self.last, self.next);
        // Release: a reader that sees the version of a cell sees its slot. Pairs with the Acquire loads of versions in readers.
        fence(Ordering::Release);
        for cell in self.staged.drain(..) {
            let cell = cell as usize;
            let Cell { stamp, added, .. } = self.cells.get(cell).copied().unwrap_or_default();
            self.region.store(self.geometry.version_offset(cell), stamp.get());
            let page = self.geometry.page_offset(cell / PAGE_CELLS);
            self.region.store(page, sequence.get());
            if added > previous || added == Sequence::NONE {
                self.region.store(page + WORD, sequence.get());
            }
        }
        self.region.store(HOT_KEYS, self.directory.len() as u64);
        self.region.store(HOT_PUBLISHED, now_ns);
        // Release: a reader that sees the sequence sees everything that the commit changed. Pairs with the Acquire loads of the
        // hot line in readers.
        self.region.store_release(HOT_SEQUENCE, sequence.get());
        (self.last, self.next) = (sequence, sequence.next());
        let len = std::mem::take(&mut self.staged_len);
        self.free.extend(self.removed.drain(..));
        Some(TableCommit { sequence, previous, published_ns: now_ns, cell, len })
    }

    /// Drops everything that is staged: each key has the value of the last commit again.
    #[cold]
    pub(crate) fn discard(&mut self) {
        let mut staged = std::mem::take(&mut self.staged);
        // The last one first: a key that was removed and added again leaves its new cell before it returns to the old one.
        for cell in staged.drain(..).rev() {
            let index = cell as usize;
            let stamp = self.committed(index);
            let header = self.header(index, stamp);
            let key_len = header.key_len as usize;
            // Only damaged memory names a longer key.
            let is_possible = stamp != Stamp::NONE && key_len <= self.geometry.key_len_max();
            let had_key = is_possible && self.is_present(index, stamp, key_len);
            let (number, added) = if had_key { (header.number, header.added) } else { (0, Sequence::NONE) };
            if let Some(cell) = self.cells.get_mut(index) {
                *cell = Cell { stamp: stamp.after_discarding(cell.stamp), number, added };
            }
            let has_key = self.directory.has(index);
            if had_key && !has_key {
                self.directory.restore(index);
            } else if !had_key {
                self.directory.remove(index);
                self.free.push_front(cell);
            }
        }
        self.staged = staged;
        self.removed.clear();
        (self.staged_len, self.next) = (0, self.last.next());
    }

    /// Returns the stamp of the committed entry of a cell that has a staged one; NONE if there is none. That is the version, or the stamp
    /// of the other slot if the version is damaged. If both are, it names the last commit: the next entry must not take that slot.
    fn committed(&self, cell: usize) -> Stamp {
        let other = self.cells.get(cell).map_or(Stamp::NONE, |cell| cell.stamp.other());
        let is_possible = |stamp: Stamp| stamp.slot() == other.slot() && stamp.sequence() <= self.last;
        let version = Stamp::new(self.region.load(self.geometry.version_offset(cell)));
        let held = Stamp::new(self.region.load(self.geometry.slot_offset(cell, other)));
        match version {
            version if version != Stamp::NONE && is_possible(version) => version,
            _ if is_possible(held) => held,
            _ => other.again(self.last),
        }
    }

    /// Returns the header of an entry of the table.
    fn header(&self, cell: usize, stamp: Stamp) -> EntryHeader {
        let mut header = [0; HEADER_WORDS];
        self.region.copy_out(self.geometry.slot_offset(cell, stamp) + SLOT_RUN, &mut header);
        EntryHeader::parse(header)
    }

    /// Returns whether an entry of the table has a value.
    fn is_present(&self, cell: usize, stamp: Stamp, key_len: usize) -> bool {
        let entry = self.geometry.slot_offset(cell, stamp) + SLOT_RUN + HEADER_WORDS * WORD;
        let word = self.region.load(entry + key_len / WORD * WORD).to_le_bytes();
        word.get(key_len % WORD) == Some(&PRESENT)
    }

    /// Gives a cell to the key in the first bytes of the room.
    #[cold]
    fn place(&mut self, key_len: usize) -> Result<usize, Unplaced> {
        let cell = match self.free.pop_front() {
            Some(cell) => cell as usize,
            None if self.unused < self.geometry.capacity() => {
                self.unused += 1;
                self.unused - 1
            }
            None => return Err(Unplaced::Full),
        };
        let entry: &[u8] = bytemuck::cast_slice(self.scratch.split_at(ENTRY_WORD).1);
        self.directory.insert(cell, entry.split_at(key_len).0);
        if let Some(cell) = self.cells.get_mut(cell) {
            (cell.number, cell.added) = (0, self.next);
        }
        Ok(cell)
    }

    /// Writes the entry in the room to the older slot of this cell.
    #[inline]
    fn write(&mut self, cell: usize, (key_len, entry_len): (usize, usize), now_ns: u64) {
        let Some(Cell { stamp, number, added }) = self.cells.get_mut(cell) else { return };
        if stamp.sequence() > self.last {
            *stamp = stamp.again(self.next);
        } else {
            *stamp = stamp.next(self.next);
            // A capacity has 24 bits.
            self.staged.push(u32::try_from(cell).unwrap_or(u32::MAX));
        }
        // Damaged memory may have named any, when staged entries were discarded.
        *number = number.saturating_add(1);
        self.staged_len += entry_len as u64;
        let len = |len| u32::try_from(len).unwrap_or(u32::MAX);
        let (entry_len_word, key_len) = (len(entry_len), len(key_len));
        let header = EntryHeader {
            entry_len: entry_len_word,
            key_len,
            number: *number,
            added: *added,
            published_ns: now_ns,
        };
        let stamp = *stamp;

        let words = ENTRY_WORD + entry_words(entry_len);
        let (run, _) = self.scratch.split_at_mut(words);
        let Some((head, entry)) = run.split_first_chunk_mut::<ENTRY_WORD>() else {
            unreachable!("a run has a header")
        };
        let [lens, number, added, published_ns] = header.emit();
        let Some((first, rest)) = head.split_first_chunk_mut() else {
            unreachable!("a run begins with four words")
        };
        set_quad(first, [cell as u64, stamp.get(), lens, number]);
        rest.copy_from_slice(&[added, published_ns]);
        let entry: &mut [u8] = bytemuck::cast_slice_mut(entry);
        entry.iter_mut().skip(entry_len).for_each(|padding| *padding = 0);
        let crc = self.check.of_run(run);

        let slot = self.geometry.slot_offset(cell, stamp);
        // Release: a reader that sees the slot without a stamp, or a word of the new entry, also sees the version that names the
        // other slot, and the missing stamp. Pairs with the Acquire fences of readers.
        fence(Ordering::Release);
        self.region.store(slot, Stamp::NONE.get());
        fence(Ordering::Release);
        self.region.copy_in(slot + SLOT_RUN, run.split_at(LEAD_WORDS).1);
        self.region.store(slot + SLOT_CRC, crc.into());
        self.region.store_release(slot, stamp.get());
        debug_assert!(
            slot_len(entry_len) >= SLOT_RUN + (words - LEAD_WORDS) * WORD,
            "a slot holds its entry"
        );
    }
}
