use crate::checksum::crc32;
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::table::{
    ABSENT, ENTRY_WORD, EntryCheck, EntryHeader, LEAD_WORDS, PAGE_CELLS, PRESENT, SLOT_CRC, SLOT_RUN, Stamp,
    TableGeometry, entry_words,
};
use crate::memory::Region;
use crate::repository::ReadFailure;
use crate::sync::atomic::{Ordering, fence};

/// A private copy of one entry, and the checks that it has to pass.
#[derive(Debug)]
pub(super) struct EntryCopy {
    geometry: TableGeometry,
    check: EntryCheck,
    /// A run of the checksum: cell, stamp, header, entry.
    run: Box<[u64]>,
}

/// An entry that passed every check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) stamp: Stamp,
    pub(super) header: EntryHeader,
    /// The key has a value; otherwise it was removed.
    pub(super) is_present: bool,
}

/// Why a copy was rejected.
#[derive(Debug)]
pub(super) enum EntryRejection {
    /// It was overwritten while it was copied, or the cell has changed since.
    Torn,
    /// It is damaged, unless it is being written.
    Wrong(ReadFailure),
}

impl EntryRejection {
    /// Returns how the entry of this commit is damaged.
    pub(super) fn failure(self, sequence: Sequence) -> ReadFailure {
        match self {
            Self::Torn => ReadFailure::BrokenStamps { sequence },
            Self::Wrong(failure) => failure,
        }
    }
}

/// The entry of a cell to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// This one.
    Slot(Stamp),
    /// None that is committed and new.
    Nothing,
    /// None for now: the cell is being changed.
    Later,
}

/// A table's memory, for reading one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CellMemory<'a> {
    /// In which words appear in order.
    Mapped(&'a Region),
    /// A mirror, whose words are of different times, and the version of the cell that an earlier fetch had brought.
    Mirror(&'a Region, Stamp),
}

impl<'a> CellMemory<'a> {
    /// Returns the memory itself.
    #[inline]
    pub(super) fn region(self) -> &'a Region {
        match self {
            Self::Mapped(region) | Self::Mirror(region, _) => region,
        }
    }

    /// Returns whether the entry of this cell with this stamp was committed, given that the version of the cell names the other slot by
    /// now.
    #[inline]
    fn had(self, geometry: &TableGeometry, cell: usize, stamp: Stamp) -> bool {
        match self {
            Self::Mapped(memory) => is_shown(memory, geometry, cell, stamp),
            // Another one may have been discarded, long before.
            Self::Mirror(_, version) => stamp == version,
        }
    }
}

/// Whether the page of the cell shows a commit as new as this entry: each stores it before the newest sequence, which the caller has
/// acquired. If that is damaged, and the cell's version, too, the entry may be one that is not committed, and never will be.
#[inline]
fn is_shown(memory: &Region, geometry: &TableGeometry, cell: usize, entry: Stamp) -> bool {
    memory.load(geometry.page_offset(cell / PAGE_CELLS)) >= entry.sequence().get()
}

impl EntryCopy {
    /// Creates room for one entry.
    pub(super) fn new(geometry: TableGeometry, check: EntryCheck) -> Self {
        let words = ENTRY_WORD + entry_words(geometry.payload_len_max());
        Self { geometry, check, run: vec![0; words].into() }
    }

    /// Chooses the newest committed entry of a cell, if it is another one than `known`, and newer than `received`.
    #[inline]
    pub(super) fn choose(
        &self,
        at: CellMemory<'_>,
        cell: usize,
        (known, received): (Stamp, Sequence),
    ) -> Choice {
        let memory = at.region();
        let committed = committed(memory);
        // Acquire: pairs with the Release fence of `TableWriter::commit`.
        let version = Stamp::new(memory.load_acquire(self.geometry.version_offset(cell)));
        if version == known {
            return Choice::Nothing;
        }
        if version.sequence() <= committed {
            return Choice::Slot(version);
        }
        // Its commit is in progress, or newer.
        if let Some(choice) = self.choose_elsewhere(memory, cell, version) {
            return choice;
        }
        // Acquire: the slot is not older than its stamp.
        let other = version.other();
        let before = Stamp::new(memory.load_acquire(self.geometry.slot_offset(cell, other)));
        if before == Stamp::NONE {
            // Being overwritten; or never written, and then the key is in no commit yet.
            return Choice::Later;
        }
        match before.sequence() {
            sequence if sequence > committed || !at.had(&self.geometry, cell, before) => Choice::Later,
            // In a landing region that is behind, the other slot may hold an entry from before the known one.
            sequence if sequence <= received || before.slot() != other.slot() => Choice::Nothing,
            _ => Choice::Slot(before),
        }
    }

    /// Chooses the entry that a cell had after the commit `until`, given a version that was read after that commit.
    pub(super) fn choose_as_of(
        &mut self,
        memory: &Region,
        (cell, version): (usize, Stamp),
        until: Sequence,
    ) -> Choice {
        if version == Stamp::NONE {
            return Choice::Nothing;
        }
        if version.sequence() <= until {
            return Choice::Slot(version);
        }
        if let Some(choice) = self.choose_elsewhere(memory, cell, version) {
            // It is damaged only if the cell has not changed since.
            let is_same = memory.load(self.geometry.version_offset(cell)) == version.get();
            return if is_same { choice } else { Choice::Later };
        }
        let other = version.other();
        let before = Stamp::new(memory.load_acquire(self.geometry.slot_offset(cell, other)));
        if before == Stamp::NONE {
            // Being overwritten, or never written. The cell had no key if the next commit gave it one; a later commit may have
            // replaced a key.
            let is_added = |entry: Entry| entry.header.added == version.sequence();
            let is_new =
                version.sequence() == until.next() && self.take(memory, cell, version).is_ok_and(is_added);
            return if is_new { Choice::Nothing } else { Choice::Later };
        }
        // Read after the version, so it is the entry before it, or a later one.
        let is_before = before.sequence() <= until && before.slot() == other.slot();
        if is_before && is_shown(memory, &self.geometry, cell, before) {
            Choice::Slot(before)
        } else {
            Choice::Later
        }
    }

    /// Chooses what to do with a version past the newest commit if the slot that it names does not have its stamp. `None` if it has: then
    /// the entry before it is the newest one.
    ///
    /// A commit stores a version after the entry, whose slot gets another one only after the next version; in a landing region a later
    /// one. So a slot with an earlier stamp shows that the version is damaged: the choice of its slot is rejected. The entry before it
    /// would pass for the newest one.
    #[inline]
    fn choose_elsewhere(&self, memory: &Region, cell: usize, version: Stamp) -> Option<Choice> {
        // Acquire: what is loaded after it is not older than the stamp.
        let found = Stamp::new(memory.load_acquire(self.geometry.slot_offset(cell, version)));
        if found == version {
            return None;
        }
        let is_later = found == Stamp::NONE || found.sequence() > version.sequence();
        Some(if is_later { Choice::Later } else { Choice::Slot(version) })
    }

    /// Copies the slot with this stamp, and accepts it if it is whole and right. The only place where an entry is accepted.
    #[inline]
    pub(super) fn take(
        &mut self,
        memory: &Region,
        cell: usize,
        stamp: Stamp,
    ) -> Result<Entry, EntryRejection> {
        let slot = self.geometry.slot_offset(cell, stamp);
        // Acquire: pairs with the Release store of the stamp in `TableWriter::write`, or of the write to a landing region.
        if memory.load_acquire(slot) != stamp.get() {
            return Err(EntryRejection::Torn);
        }
        let len = EntryHeader::entry_len(memory.load(slot + SLOT_RUN));
        if len > self.geometry.payload_len_max() {
            return Err(EntryRejection::Wrong(self.impossible(stamp, len)));
        }
        let (run, _) = self.run.split_at_mut(ENTRY_WORD + entry_words(len));
        let (lead, rest) = run.split_at_mut(LEAD_WORDS);
        lead.copy_from_slice(&[cell as u64, stamp.get()]);
        memory.copy_out(slot + SLOT_RUN, rest);
        let found = memory.load(slot + SLOT_CRC);
        // Acquire: if any word copied above is of a later entry, the load below sees that the stamp is gone. Pairs with the
        // Release fence in `TableWriter::write`.
        fence(Ordering::Acquire);
        if memory.load(slot) != stamp.get() && !cfg!(fabricast_skip_check) {
            return Err(EntryRejection::Torn);
        }
        self.verify(stamp, len, found)
    }

    /// Copies the slot of this stamp, as long as the entry that it holds, and returns the checksum of the copy.
    #[cold]
    pub(super) fn checksum(&mut self, memory: &Region, cell: usize, stamp: Stamp) -> u32 {
        let slot = self.geometry.slot_offset(cell, stamp);
        let len = EntryHeader::entry_len(memory.load(slot + SLOT_RUN));
        // A run is as long as a slot: its cell and its stamp take the place of the slot's stamp and checksum.
        let words = ENTRY_WORD + entry_words(len.min(self.geometry.payload_len_max()));
        let (copy, _) = self.run.split_at_mut(words);
        memory.copy_out(slot, copy);
        crc32(bytemuck::cast_slice(copy))
    }

    /// Checks the private copy: its lengths and its checksum.
    #[inline]
    fn verify(&self, stamp: Stamp, len: usize, found: u64) -> Result<Entry, EntryRejection> {
        let (run, _) = self.run.split_at(ENTRY_WORD + entry_words(len));
        let (_, head) = run.split_at(LEAD_WORDS);
        let Some((head, _)) = head.split_first_chunk() else { return Err(EntryRejection::Torn) };
        let header = EntryHeader::parse(*head);
        if !cfg!(fabricast_skip_check) {
            if header.entry_len as usize != len {
                return Err(EntryRejection::Torn);
            }
            let expected = self.check.of_run(run);
            if found != u64::from(expected) {
                let (found, _) = crate::layout::halves(found);
                let sequence = stamp.sequence();
                return Err(EntryRejection::Wrong(ReadFailure::Damaged { sequence, expected, found }));
            }
            // No publisher writes that: a commit adds a key with its first value.
            if header.added == Sequence::NONE || header.added > stamp.sequence() {
                return Err(EntryRejection::Wrong(EntryRejection::Torn.failure(stamp.sequence())));
            }
        }
        let key_len = header.key_len as usize;
        let is_present = match bytemuck::cast_slice::<u64, u8>(&self.run).get(ENTRY_WORD * WORD + key_len) {
            Some(&PRESENT) => true,
            Some(&ABSENT) => false,
            _ => return Err(EntryRejection::Wrong(self.impossible(stamp, len))),
        };
        if key_len > self.geometry.key_len_max() || key_len >= len || (!is_present && key_len + 1 != len) {
            return Err(EntryRejection::Wrong(self.impossible(stamp, len)));
        }
        Ok(Entry { stamp, header, is_present })
    }

    #[cold]
    fn impossible(&self, stamp: Stamp, len: usize) -> ReadFailure {
        let max = self.geometry.payload_len_max();
        ReadFailure::ImpossibleLen { sequence: stamp.sequence(), len: len as u64, max }
    }

    /// Returns the key of the last entry taken.
    #[inline]
    pub(super) fn key(&self, entry: &Entry) -> &[u8] {
        self.bytes().get(..entry.header.key_len as usize).unwrap_or_default()
    }

    /// Returns the bytes of the last entry taken.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.run.split_at(ENTRY_WORD).1)
    }

    /// Writes the entry of a removed key.
    pub(super) fn set_removed(&mut self, key: &[u8]) {
        let entry: &mut [u8] = bytemuck::cast_slice_mut(self.run.split_at_mut(ENTRY_WORD).1);
        if let Some((room, rest)) = entry.split_at_mut_checked(key.len()) {
            room.copy_from_slice(key);
            rest.first_mut().into_iter().for_each(|presence| *presence = ABSENT);
        }
    }

    /// Returns the words of the run, in which the entry begins at [`ENTRY_WORD`].
    #[inline]
    pub(super) fn words(&self) -> &[u64] {
        &self.run
    }
}

/// Returns the last commit in this memory.
#[inline]
pub(super) fn committed(memory: &Region) -> Sequence {
    // Acquire: pairs with the Release store of the sequence in `TableWriter::commit`.
    Sequence::new(memory.load_acquire(HOT_SEQUENCE))
}
