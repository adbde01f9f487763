//! A table topic's body: a summary of pages, a version for each cell, and the cells, each with two slots.
//!
//! A cell holds the newest entry of one key: the key, a presence byte, and the value. Its two slots alternate, so the newest entry
//! stays whole while the next one is written. The sequence of an entry is after the last commit before its own and not after its
//! own: in the table of a feed it is that of the record with which it was published, otherwise that of its commit. The static
//! header's parameters are the number of cells, the length of the longest key, and the distance between two slots, in bytes.
//!
//! ```text
//! hot line, in addition to the common fields
//! 88  u64  keys in the table
//!
//! 900  pages     two words for every PAGE_CELLS cells
//!      00  u64  the last commit that changed a cell of the page
//!      08  u64  the last commit that added or removed a key of the page
//!      versions  one word for each cell: the stamp of its newest entry, or 0
//!      cells     two slots for each cell
//!
//! stamp, a word
//! bit 0         the slot
//! bits 1 to 7   how often the slot had been rewritten with this sequence, modulo 128
//! bits 8 to 63  the sequence
//!
//! slot
//! 00  u64  stamp; 0 while the slot is written
//! 08  u32  CRC-32 of the topic (u64), the epoch (u64), the cell (u64), the stamp, and from 10 to the end of the padding
//!     u32  zero
//! 10  u32  length of the entry, bytes
//! 14  u32  length of its key, bytes
//! 18  u64  number: how often the key changed since it was added, this change included
//! 20  u64  the sequence with which the key was added
//! 28  u64  time of publishing, ns since the Unix epoch
//! 30  entry, padded with zeros to 16 bytes: the key; 1 and the value, or 0 if the key was removed
//! ```
//!
//! # Consistency
//!
//! The writer zeroes the stamp of the older slot, writes the slot, and stores the stamp. A commit then stores the versions of
//! the cells it changed, the words of their pages, and at last the sequence of the hot line. A copy of a slot is valid if its stamp
//! is the cell's version and the checksum agrees; it is committed if the hot line has reached its sequence. A version beyond the
//! hot line whose slot has its stamp belongs to a commit in progress, and the cell's other slot holds the entry before it.

use super::header::{BODY_OFFSET, HOT_KIND};
use super::numbers::{Fact, GeometryError, PARAMETERS};
use super::{ByteRange, LINE, WORD, halves, joined};
use crate::checksum::{Crc32, crc32};
use crate::id::{Epoch, Sequence, TopicId};
use crate::limits;
use crate::memory::Region;

/// The number of keys, in the hot line.
pub(crate) const HOT_KEYS: usize = HOT_KIND;
/// Cells of a page.
pub(crate) const PAGE_CELLS: usize = 512;
/// Bytes of the summary of a page.
const PAGE_LEN: usize = 2 * WORD;
/// The offset of the pages.
pub(crate) const PAGES_OFFSET: usize = BODY_OFFSET;
/// Words of a slot before the part that is copied in one run.
const STAMP_WORDS: usize = 2;
/// The offset of that part, which begins with the lengths.
pub(crate) const SLOT_RUN: usize = STAMP_WORDS * WORD;
/// The offset of the checksum in a slot.
pub(crate) const SLOT_CRC: usize = WORD;
/// Words of a slot's header in that part.
pub(crate) const HEADER_WORDS: usize = 4;
/// Words before that part in a run of the checksum: the cell and the stamp.
pub(crate) const LEAD_WORDS: usize = 2;
/// The offset of an entry in a run of the checksum, words.
pub(crate) const ENTRY_WORD: usize = LEAD_WORDS + HEADER_WORDS;
/// The presence byte of a value.
pub(crate) const PRESENT: u8 = 1;
/// The presence byte of a removed key.
pub(crate) const ABSENT: u8 = 0;
/// Bits of a stamp below the sequence.
const SEQUENCE_SHIFT: u32 = 8;
/// The unit of the revision in a stamp.
const REVISION: u64 = 2;
/// The bits of a stamp that count the entries written to its cell: those that were discarded count, and their sequences are used again,
/// so that without them two entries could have the same stamp.
const REVISION_MASK: u64 = ((1 << SEQUENCE_SHIFT) - 1) & !1;

/// The geometry of a table region, always valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableGeometry {
    capacity: usize,
    key_len_max: usize,
    slot_stride: usize,
    payload_len_max: usize,
}

impl TableGeometry {
    /// Creates the geometry of a table with this many cells, for keys of up to `key_len_max` bytes. `payload_len_max` is the length
    /// of the longest entry: a key, the presence byte, and a value.
    pub(crate) fn new(
        capacity: usize,
        key_len_max: usize,
        payload_len_max: usize,
    ) -> Result<Self, GeometryError> {
        if payload_len_max > limits::PAYLOAD_LEN_MAX {
            return Err(GeometryError::PayloadLen { found: payload_len_max });
        }
        if !(1..=limits::TABLE_CAPACITY_MAX).contains(&capacity) {
            return Err(GeometryError::Cells { found: capacity });
        }
        if key_len_max > limits::KEY_LEN_MAX || key_len_max >= payload_len_max {
            return Err(GeometryError::KeyLen { found: key_len_max, payload_len_max });
        }
        let slot_stride = slot_len(payload_len_max).next_multiple_of(LINE);
        let geometry = Self { capacity, key_len_max, slot_stride, payload_len_max };
        if geometry.region_len() > limits::REGION_LEN_MAX {
            return Err(GeometryError::TableLen { capacity, payload_len_max });
        }
        Ok(geometry)
    }

    /// Derives the geometry from a static header's parameters, which are untrusted.
    pub(super) fn of(
        [capacity, key_len_max, ..]: [u64; PARAMETERS],
        payload_len_max: usize,
    ) -> Result<Self, GeometryError> {
        let number = |word| usize::try_from(word).unwrap_or(usize::MAX);
        Self::new(number(capacity), number(key_len_max), payload_len_max)
    }

    /// Returns its parameters for a static header.
    pub(super) fn parameters(&self) -> [u64; PARAMETERS] {
        [self.capacity as u64, self.key_len_max as u64, self.slot_stride as u64, 0]
    }

    /// Returns its parameters by name.
    pub(super) fn facts(&self) -> [Fact; 3] {
        let [capacity, key_len_max, slot_len, _] = self.parameters();
        [
            Fact { name: "capacity", value: capacity },
            Fact { name: "key_len_max", value: key_len_max },
            Fact { name: "slot_len", value: slot_len },
        ]
    }

    /// Returns what the hot line reports about the content.
    pub(super) fn held(memory: &Region) -> [Fact; 1] {
        [Fact { name: "keys", value: memory.load(HOT_KEYS) }]
    }

    /// Returns the number of cells.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the length of the longest key, bytes.
    #[inline]
    pub(crate) fn key_len_max(&self) -> usize {
        self.key_len_max
    }

    /// Returns the length of the longest entry, bytes.
    #[inline]
    pub(crate) fn payload_len_max(&self) -> usize {
        self.payload_len_max
    }

    /// Returns the number of pages.
    #[inline]
    pub(crate) fn page_count(&self) -> usize {
        self.capacity.div_ceil(PAGE_CELLS)
    }

    /// Returns the range of all pages.
    pub(crate) fn pages(&self) -> ByteRange {
        ByteRange { offset: PAGES_OFFSET, len: self.page_count() * PAGE_LEN }
    }

    /// Returns the cells of a page.
    #[inline]
    pub(crate) fn cells_of(&self, page: usize) -> std::ops::Range<usize> {
        page * PAGE_CELLS..((page + 1) * PAGE_CELLS).min(self.capacity)
    }

    /// Returns the offset of the word with the last commit that changed this page. The next word is that of its keys.
    #[inline]
    pub(crate) fn page_offset(&self, page: usize) -> usize {
        PAGES_OFFSET + page * PAGE_LEN
    }

    /// Returns the offset of a cell's version.
    #[inline]
    pub(crate) fn version_offset(&self, cell: usize) -> usize {
        self.versions_offset() + cell * WORD
    }

    /// Returns the offset of the slot that this stamp names, of its two in a cell.
    #[inline]
    pub(crate) fn slot_offset(&self, cell: usize, stamp: Stamp) -> usize {
        self.cells_offset() + (2 * cell + stamp.slot()) * self.slot_stride
    }

    /// Returns the range of both slots of a cell.
    pub(crate) fn cell_range(&self, cell: usize) -> ByteRange {
        ByteRange { offset: self.cells_offset() + 2 * cell * self.slot_stride, len: 2 * self.slot_stride }
    }

    /// Returns the length of the region, bytes.
    pub(crate) fn region_len(&self) -> usize {
        self.cells_offset() + 2 * self.capacity * self.slot_stride
    }

    #[inline]
    fn versions_offset(&self) -> usize {
        (PAGES_OFFSET + self.page_count() * PAGE_LEN).next_multiple_of(LINE)
    }

    #[inline]
    fn cells_offset(&self) -> usize {
        (self.versions_offset() + self.capacity * WORD).next_multiple_of(LINE)
    }
}

/// Returns the bytes that a slot uses for an entry of this length.
#[inline]
pub(crate) fn slot_len(entry_len: usize) -> usize {
    SLOT_RUN + (HEADER_WORDS + entry_words(entry_len)) * WORD
}

/// Returns the words of an entry of this length, with its padding: registers of 16 bytes, without a rest for the checksum.
#[inline]
pub(crate) fn entry_words(entry_len: usize) -> usize {
    2 * entry_len.div_ceil(2 * WORD)
}

/// The stamp of a slot, and the version of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

impl Stamp {
    /// No entry.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the stamp in this word.
    #[inline]
    pub(crate) fn new(word: u64) -> Self {
        Self(word)
    }

    /// Returns the word.
    #[inline]
    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// Returns the sequence.
    #[inline]
    pub(crate) fn sequence(self) -> Sequence {
        Sequence::new(self.0 >> SEQUENCE_SHIFT)
    }

    /// Returns a stamp that is not less than any of this commit or earlier ones.
    #[inline]
    pub(crate) fn last_of(sequence: Sequence) -> Self {
        Self(sequence.get() << SEQUENCE_SHIFT | ((1 << SEQUENCE_SHIFT) - 1))
    }

    /// Returns the slot in its cell: 0 or 1.
    #[inline]
    pub(crate) fn slot(self) -> usize {
        usize::from(self.0 & 1 == 1)
    }

    /// Returns the stamp of the next entry of the cell, for this sequence: in the other slot.
    #[inline]
    pub(crate) fn next(self, sequence: Sequence) -> Self {
        Self(self.again(sequence).0 ^ 1)
    }

    /// Returns the stamp of the next entry of the cell, for this sequence: in the same slot, because no commit has the one before.
    #[inline]
    pub(crate) fn again(self, sequence: Sequence) -> Self {
        let revision = self.0.wrapping_add(REVISION) & REVISION_MASK;
        Self(sequence.get() << SEQUENCE_SHIFT | revision | self.0 & 1)
    }

    /// Returns the stamp of an entry that is the newest again, because those up to this stamp were discarded. The next one has a
    /// revision after theirs.
    pub(crate) fn after_discarding(self, discarded: Self) -> Self {
        Self(self.0 & !REVISION_MASK | discarded.0 & REVISION_MASK)
    }

    /// Returns the stamp of an entry that is the newest again, because the next ones are lost, the last of them with this stamp. The next
    /// one has a revision after theirs. If that is none, nobody knows how many there were: the next one has a revision that theirs are far
    /// from, unless two publishers were killed before that: after the third, the stamp of a lost entry may come again.
    pub(crate) fn after_lost(self, lost: Self) -> Self {
        if lost != Self::NONE {
            return self.after_discarding(lost);
        }
        Self(self.0 & !REVISION_MASK | self.0.wrapping_add(REVISION_MASK / 2 + REVISION / 2) & REVISION_MASK)
    }

    /// Returns a stamp of the same sequence that its cell has never had.
    pub(crate) fn unlike(self) -> Self {
        Self(self.0 ^ 1)
    }

    /// Returns a stamp without a sequence that names the other slot.
    #[inline]
    pub(crate) fn other(self) -> Self {
        Self(self.0 & 1 ^ 1)
    }
}

/// The header of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    /// Bytes of the entry.
    pub(crate) entry_len: u32,
    /// Bytes of its key.
    pub(crate) key_len: u32,
    /// How often the key changed since it was added.
    pub(crate) number: u64,
    /// The commit that added the key.
    pub(crate) added: Sequence,
    /// The publish time, ns since the Unix epoch.
    pub(crate) published_ns: u64,
}

impl EntryHeader {
    /// Encodes the header.
    #[inline]
    pub(crate) fn emit(&self) -> [u64; HEADER_WORDS] {
        [joined(self.entry_len, self.key_len), self.number, self.added.get(), self.published_ns]
    }

    /// Decodes a header without checking it.
    #[inline]
    pub(crate) fn parse([lens, number, added, published_ns]: [u64; HEADER_WORDS]) -> Self {
        let (entry_len, key_len) = halves(lens);
        Self { entry_len, key_len, number, added: Sequence::new(added), published_ns }
    }

    /// Returns the length of the entry in the word of the lengths, bytes.
    #[inline]
    pub(crate) fn entry_len(lens: u64) -> usize {
        halves(lens).0 as usize
    }
}

/// The check of the entries of one incarnation of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryCheck {
    seed: u32,
}

impl EntryCheck {
    /// Creates the check for the entries of this topic and epoch.
    pub(crate) fn new(topic: TopicId, epoch: Epoch) -> Self {
        Self { seed: crc32(bytemuck::cast_slice(&[topic.get().to_le(), epoch.get().to_le()])) }
    }

    /// Returns the checksum of a run: the cell, the stamp, the header and the padded entry.
    #[inline]
    pub(crate) fn of_run(self, run: &[u64]) -> u32 {
        let mut crc = Crc32::resume(self.seed);
        crc.update(bytemuck::cast_slice(run));
        crc.finish()
    }
}

/// The state of a table after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableHead {
    /// The commit.
    pub(crate) sequence: Sequence,
    /// The keys in the table.
    pub(crate) keys: u64,
    /// The publish time, ns since the Unix epoch.
    pub(crate) published_ns: u64,
}

/// Returns the hot line as words.
#[inline]
pub(crate) fn hot_line(head: &TableHead, epoch: Epoch) -> [u64; LINE / WORD] {
    let TableHead { sequence, keys, published_ns } = *head;
    [sequence.get(), keys, published_ns, epoch.get(), published_ns, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::super::header::{HOT_EPOCH, HOT_HEARTBEAT, HOT_OFFSET, HOT_PUBLISHED, HOT_SEQUENCE};
    use super::*;

    #[test]
    fn hot_line_fields_are_at_their_constants() {
        let head = TableHead { sequence: Sequence::new(1), keys: 2, published_ns: 4 };
        let line = hot_line(&head, Epoch::new(3).unwrap());
        let at = |offset: usize| line[(offset - HOT_OFFSET) / WORD];
        let words = [HOT_SEQUENCE, HOT_KEYS, HOT_EPOCH, HOT_PUBLISHED, HOT_HEARTBEAT].map(at);
        assert_eq!(words, [1, 2, 3, 4, 4]);
    }

    #[test]
    fn golden_bytes_of_an_entry() {
        let header = EntryHeader {
            entry_len: 5,
            key_len: 2,
            number: 3,
            added: Sequence::new(4),
            published_ns: 0x1122,
        };
        assert_eq!(header.emit(), [0x2_0000_0005, 3, 4, 0x1122]);
        assert_eq!(EntryHeader::parse(header.emit()), header);
        let stamp = Stamp::NONE.next(Sequence::new(7));
        assert_eq!(stamp.get(), 0x703);
        let run = [9, stamp.get(), 0x2_0000_0005, 3, 4, 0x1122, u64::from_le_bytes(*b"ab\x01xy\0\0\0"), 0];
        let check = EntryCheck::new(TopicId::new(0x99), Epoch::new(0x55).unwrap());
        let bytes: Vec<u8> =
            [0x99, 0x55].iter().chain(&run).flat_map(|word: &u64| word.to_le_bytes()).collect();
        assert_eq!(check.of_run(&run), crc32(&bytes));
        assert_eq!([0, 1, 16, 17].map(entry_words), [0, 2, 2, 4]);
    }

    #[test]
    fn stamps_alternate_slots_and_count_entries() {
        let first = Stamp::NONE.next(Sequence::new(1));
        let second = first.next(Sequence::new(2));
        assert_eq!([first.slot(), second.slot(), second.next(Sequence::new(9)).slot()], [1, 0, 1]);
        assert_eq!(second.other().slot(), 1);
        let mut again = second;
        for revision in 1..=300_u64 {
            again = again.again(Sequence::new(2));
            assert_eq!((again.sequence(), again.slot()), (second.sequence(), second.slot()));
            assert_eq!(again == second, revision % 128 == 0);
        }
        // The one after a discarded entry has its slot and its sequence, but not its stamp.
        let discarded = second.next(Sequence::new(3));
        let later = second.after_discarding(discarded).next(Sequence::new(3));
        assert_eq!((later.sequence(), later.slot()), (discarded.sequence(), discarded.slot()));
        assert_ne!(later, discarded);
        // So has the one after a lost entry, and after some that nobody knows.
        for lost in [second.next(Sequence::new(3)), second.after_lost(Stamp::NONE).next(Sequence::new(3))] {
            let later = second.after_lost(lost).next(Sequence::new(3));
            assert_eq!(later, lost.again(Sequence::new(3)));
            assert_ne!(second.after_lost(Stamp::NONE).next(Sequence::new(3)), later);
        }
    }

    #[test]
    fn parts_of_a_region_do_not_overlap() {
        for (capacity, key_len_max, payload_len_max) in
            [(1, 0, 1), (1, 8, 73), (511, 64, 200), (512, 8, 73), (513, 8, 73), (10_000, 16, 4096)]
        {
            let geometry = TableGeometry::new(capacity, key_len_max, payload_len_max).unwrap();
            let pages = geometry.pages();
            let (first, last) = (geometry.version_offset(0), geometry.version_offset(capacity));
            assert!(pages.offset + pages.len <= first && first.is_multiple_of(LINE));
            assert!(
                last <= geometry.cell_range(0).offset && geometry.cell_range(0).offset.is_multiple_of(LINE)
            );
            let cell = geometry.cell_range(capacity - 1);
            assert_eq!(cell.offset + cell.len, geometry.region_len());
            let slots = [Stamp::new(0), Stamp::new(1)].map(|stamp| geometry.slot_offset(capacity - 1, stamp));
            assert_eq!(slots, [cell.offset, cell.offset + cell.len / 2]);
            assert!(slot_len(payload_len_max) <= cell.len / 2);
            assert_eq!(geometry.cells_of(geometry.page_count() - 1).end, capacity);
        }
    }

    #[test]
    fn impossible_tables_are_refused() {
        let is_refused = |capacity, key_len_max, len| TableGeometry::new(capacity, key_len_max, len).is_err();
        assert!(is_refused(0, 8, 64) && is_refused(limits::TABLE_CAPACITY_MAX + 1, 8, 64));
        assert!(is_refused(8, limits::KEY_LEN_MAX + 1, 1 << 20) && is_refused(8, 64, 64));
        assert!(is_refused(8, 8, limits::PAYLOAD_LEN_MAX + 1));
        assert!(is_refused(limits::TABLE_CAPACITY_MAX, 8, 1 << 20));
    }
}
