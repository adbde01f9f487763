//! A log topic's body: a sparse index, then a ring of framed records.
//!
//! A record's position is the number of bytes of all frames before it, from the first one on; its offset in the ring is its
//! position modulo the ring's capacity. Records are written in order, and the oldest ones are given up to make space for new
//! ones. The static header's parameters are the number of segments of the ring and the bytes of one.
//!
//! ```text
//! hot line, in addition to the common fields
//! 88  u64  end: where the next frame will begin; all frames before it are whole
//! a8  u64  start: frames before it are given up, and may be overwritten
//! b0  u64  sequence of the first frame at or after the start
//!
//! 900  index  SEGMENT_COUNT entries: the first frame that begins in this part of the ring
//!      00  u64  its position
//!      08  u64  its sequence
//! d00  u64  start, again: in a line that changes with the start only
//! d80  ring
//! ```
//!
//! # Frames
//!
//! ```text
//! 00  u64  sequence
//! 08  u32  payload length, bytes
//! 0c  u32  CRC-32 of the topic (u64), the epoch (u64), 00..0c, 10..18 and the payload
//! 10  u64  time of publishing, ns since the Unix epoch
//! 18  payload, padded with zeros to 8 bytes
//! ```
//!
//! A frame never wraps. If the next one does not fit before the end of the ring, the rest is skipped, marked by a word
//! [`FILLER`].
//!
//! # Consistency
//!
//! The writer moves the start before it overwrites anything, and the end after it has written. A reader copies, and then
//! reads the start: frames copied from at or after it are intact. Over a wire that only holds if the
//! device reads in order, so the checksum decides.

use bytemuck::cast_slice;

use super::header::{BODY_OFFSET, COUNTERS_OFFSET, HOT_KIND, HOT_KIND_REST, STATIC_OFFSET};
use super::numbers::{Fact, GeometryError, PARAMETERS};
use super::{ByteRange, LINE, WORD, halves, joined};
use crate::checksum::Crc32;
use crate::id::{Epoch, Sequence, TopicId};
use crate::limits;
use crate::memory::{Region, set_quad};

/// The position of the next frame, in the hot line.
pub(crate) const HOT_END: usize = HOT_KIND;
/// The position up to which frames are given up, in the hot line.
pub(crate) const HOT_START: usize = HOT_KIND_REST;
/// The sequence of the first of them, in the hot line.
pub(crate) const HOT_START_SEQUENCE: usize = HOT_START + WORD;
/// The position up to which a push subscriber has consumed, in its landing region. A landing region has no static header;
/// this is the only word that the subscriber writes, and the publisher reads it.
pub(crate) const LANDING_CONSUMED: usize = STATIC_OFFSET;
/// Segments of the ring. The ring is given up segment by segment.
pub(crate) const SEGMENT_COUNT: usize = if cfg!(loom) { 8 } else { 64 };
/// The offset of the index.
pub(crate) const INDEX_OFFSET: usize = BODY_OFFSET;
/// Bytes of an entry of the index.
const ENTRY_LEN: usize = 2 * WORD;
/// The start, again, in a line of its own: readers that keep up load it with every record, and the hot line never.
pub(crate) const START_AGAIN: usize = INDEX_OFFSET + SEGMENT_COUNT * ENTRY_LEN;
/// The offset of the ring. Two lines after the start, because processors fetch lines in pairs.
pub(crate) const RING_OFFSET: usize = START_AGAIN + 2 * LINE;
/// Words of a frame's header.
pub(crate) const HEADER_WORDS: usize = 3;
/// Bytes of a frame's header.
pub(crate) const HEADER_LEN: usize = HEADER_WORDS * WORD;
/// Marks the skipped rest of the ring. No sequence is that high.
pub(crate) const FILLER: u64 = u64::MAX;

/// The index.
pub(crate) const INDEX: ByteRange = ByteRange { offset: INDEX_OFFSET, len: SEGMENT_COUNT * ENTRY_LEN };

const _: () = assert!(HOT_START_SEQUENCE + WORD <= COUNTERS_OFFSET);
const _: () = assert!((START_AGAIN == 0xd00 || cfg!(loom)) && START_AGAIN.is_multiple_of(2 * LINE));
const _: () = assert!((RING_OFFSET == 0xd80 || cfg!(loom)) && RING_OFFSET.is_multiple_of(LINE));

/// The geometry of a log region, always valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogGeometry {
    segment_len: usize,
    payload_len_max: usize,
}

impl LogGeometry {
    /// Creates the geometry of a ring of at least `capacity` bytes for payloads of up to `payload_len_max` bytes. The ring
    /// holds at least four of the largest records.
    pub(crate) fn new(capacity: usize, payload_len_max: usize) -> Result<Self, GeometryError> {
        if payload_len_max > limits::PAYLOAD_LEN_MAX {
            return Err(GeometryError::PayloadLen { found: payload_len_max });
        }
        let capacity = capacity.max(frame_len(payload_len_max) * FRAMES_MIN);
        // Checked first, so that the computations below cannot overflow.
        if capacity > limits::REGION_LEN_MAX {
            return Err(GeometryError::Capacity { capacity });
        }
        let segment_len = capacity.div_ceil(SEGMENT_COUNT).next_multiple_of(LINE);
        let geometry = Self { segment_len, payload_len_max };
        if geometry.region_len() > limits::REGION_LEN_MAX {
            return Err(GeometryError::Capacity { capacity });
        }
        Ok(geometry)
    }

    /// Derives the geometry from a static header's parameters, which are untrusted.
    pub(super) fn of(
        [segment_count, segment_len, ..]: [u64; PARAMETERS],
        payload_len_max: usize,
    ) -> Result<Self, GeometryError> {
        if segment_count != SEGMENT_COUNT as u64 {
            return Err(GeometryError::Mismatch { field: "number of segments" });
        }
        let capacity = usize::try_from(segment_len).unwrap_or(usize::MAX).saturating_mul(SEGMENT_COUNT);
        Self::new(capacity, payload_len_max)
    }

    /// Returns its parameters for a static header.
    pub(super) fn parameters(&self) -> [u64; PARAMETERS] {
        [SEGMENT_COUNT as u64, self.segment_len as u64, 0, 0]
    }

    /// Returns the length of the ring, bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.segment_len * SEGMENT_COUNT
    }

    /// Returns the length of a segment, bytes.
    pub(crate) fn segment_len(&self) -> usize {
        self.segment_len
    }

    /// Returns the largest payload, bytes.
    #[inline]
    pub(crate) fn payload_len_max(&self) -> usize {
        self.payload_len_max
    }

    /// Returns the length of the region, bytes.
    pub(crate) fn region_len(&self) -> usize {
        RING_OFFSET + self.capacity()
    }

    /// Returns the offset of this position, bytes from the start of the region.
    #[inline]
    pub(crate) fn offset(&self, position: u64) -> usize {
        RING_OFFSET + self.place(position)
    }

    /// Returns the range between two positions, unless it wraps around the end of the ring.
    pub(crate) fn range(&self, [from, until]: [u64; 2]) -> Option<ByteRange> {
        let len = usize::try_from(until.checked_sub(from)?).ok().filter(|len| *len <= self.rest(from))?;
        Some(ByteRange { offset: self.offset(from), len })
    }

    /// Returns the bytes from this position to the end of the ring.
    #[inline]
    pub(crate) fn rest(&self, position: u64) -> usize {
        self.capacity() - self.place(position)
    }

    /// Returns its parameters by name.
    pub(super) fn facts(&self) -> [Fact; 3] {
        let [segment_count, segment_len, ..] = self.parameters();
        [
            Fact { name: "ring_len", value: self.capacity() as u64 },
            Fact { name: "segment_count", value: segment_count },
            Fact { name: "segment_len", value: segment_len },
        ]
    }

    /// Returns what the hot line reports about the ring: the sequence of the oldest record, or of the next one if the ring is
    /// empty; and the bytes of the records, with their headers.
    pub(super) fn held(&self, memory: &Region) -> [Fact; 2] {
        let first = memory.load(HOT_START_SEQUENCE);
        let held = memory.load(HOT_END).saturating_sub(memory.load(HOT_START));
        let held_len = held.min(self.capacity() as u64);
        [Fact { name: "first_sequence", value: first }, Fact { name: "held_len", value: held_len }]
    }

    /// Returns the number of this position's segment, counted from the first round on.
    #[inline]
    pub(crate) fn segment(&self, position: u64) -> u64 {
        position / self.segment_len as u64
    }

    /// Returns the position up to which frames can be written without giving up more than those before this start.
    pub(crate) fn free_until(&self, start: u64) -> u64 {
        (self.segment(start) + SEGMENT_COUNT as u64) * self.segment_len as u64
    }

    /// Returns the number of a segment's entry in the index.
    #[inline]
    pub(crate) fn entry(&self, segment: u64) -> usize {
        usize::try_from(segment % SEGMENT_COUNT as u64).unwrap_or(0)
    }

    /// Returns the offset of a segment's index entry, bytes from the start of the region.
    #[inline]
    pub(crate) fn entry_offset(&self, segment: u64) -> usize {
        INDEX_OFFSET + self.entry(segment) * ENTRY_LEN
    }

    /// Returns the offset of this position in the ring, bytes.
    #[inline]
    fn place(&self, position: u64) -> usize {
        // The remainder is less than the capacity, which is a `usize`.
        usize::try_from(position % self.capacity() as u64).unwrap_or(0)
    }

    /// Returns the ranges of the frames between two positions: one, or two if they wrap around the end of the ring. The second
    /// one may be empty.
    pub(crate) fn ranges(&self, from: u64, to: u64) -> [ByteRange; 2] {
        let len = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX).min(self.capacity());
        let first = len.min(self.rest(from));
        [
            ByteRange { offset: self.offset(from), len: first },
            ByteRange { offset: RING_OFFSET, len: len - first },
        ]
    }
}

/// The state of a log after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHead {
    /// The newest record.
    pub(crate) newest: Sequence,
    /// The end of its frame.
    pub(crate) end: u64,
    /// Its publish time, ns since the Unix epoch.
    pub(crate) published_ns: u64,
}

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPlace {
    /// Its position.
    pub(crate) position: u64,
    /// Its sequence.
    pub(crate) sequence: Sequence,
}

impl LogPlace {
    /// The beginning of a log.
    pub(crate) const FIRST: Self = Self { position: 0, sequence: Sequence::NONE.next() };
}

/// The hot line as words: after this commit, with the frames before this place given up.
#[inline]
pub(crate) fn hot_line(head: &LogHead, start: &LogPlace, epoch: Epoch) -> [u64; LINE / WORD] {
    let LogHead { newest, end, published_ns } = *head;
    let LogPlace { position, sequence } = *start;
    [newest.get(), end, published_ns, epoch.get(), published_ns, position, sequence.get(), 0]
}

/// Largest records that every ring can hold.
const FRAMES_MIN: usize = 4;

/// The length of a frame, bytes.
#[inline]
pub(crate) const fn frame_len(payload_len: usize) -> usize {
    HEADER_LEN + payload_len.next_multiple_of(WORD)
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// The record's sequence.
    pub(crate) sequence: Sequence,
    /// Bytes of the payload.
    pub(crate) payload_len: u32,
    /// The checksum.
    pub(crate) crc: u32,
    /// Its publish time, ns since the Unix epoch.
    pub(crate) published_ns: u64,
}

impl FrameHeader {
    /// Encodes the header.
    #[inline]
    pub(crate) fn emit(&self) -> [u64; HEADER_WORDS] {
        [self.sequence.get(), joined(self.payload_len, self.crc), self.published_ns]
    }

    /// Decodes a header without checking it.
    #[inline]
    pub(crate) fn parse(words: [u64; HEADER_WORDS]) -> Self {
        let [sequence, sizes, published_ns] = words;
        let (payload_len, crc) = halves(sizes);
        Self { sequence: Sequence::new(sequence), payload_len, crc, published_ns }
    }
}

/// Bytes of a long payload that are copied and checksummed at a time: the processor goes on to transfer lines between the caches of
/// the two ends during a checksum.
pub(crate) const PIECE_LEN: usize = 16 * 1024;

/// The check of the records of one incarnation of a topic.
#[derive(Clone, Debug)]
pub(crate) struct FrameCheck {
    /// Has hashed the topic. Cloned for each record: creating one anew queries the processor's features.
    seed: Crc32,
    epoch: Epoch,
    /// Every record is valid: a model then finds what the checksum would hide.
    #[cfg(loom)]
    trusts: bool,
}

/// Words of the epoch and of a header.
const CHECKED_HEAD_WORDS: usize = 1 + HEADER_WORDS;

impl FrameCheck {
    /// Creates the check for the records of this topic and epoch.
    pub(crate) fn new(topic: TopicId, epoch: Epoch) -> Self {
        let mut seed = Crc32::new();
        seed.update(bytemuck::bytes_of(&topic.get().to_le()));
        Self {
            seed,
            epoch,
            #[cfg(loom)]
            trusts: false,
        }
    }

    /// Takes every record for valid from now on.
    #[cfg(loom)]
    pub(crate) fn trust(&mut self) {
        self.trusts = true;
    }

    /// Words of a run's lead.
    pub(crate) const HEAD_WORDS: usize = CHECKED_HEAD_WORDS;
    /// Words before a frame whose checksum is computed in one run.
    pub(crate) const LEAD_WORDS: usize = 1;

    /// Writes the lead of a run: the epoch, and the header without its checksum.
    #[inline]
    pub(crate) fn lead(&self, lead: &mut [u64], header: &FrameHeader) {
        if let Some(lead) = lead.first_chunk_mut() {
            set_quad(lead, self.head_words(header));
        }
    }

    /// Returns the checksum of a record behind its lead, with this many bytes of payload.
    #[inline]
    pub(crate) fn of_run(&self, run: &[u64], payload_len: usize) -> u32 {
        self.crc_of(cast_slice(run).split_at(CHECKED_HEAD_WORDS * WORD + payload_len).0)
    }

    /// Whether the record one word into this run is valid, given its header. Overwrites the lead meanwhile, and
    /// restores it.
    #[inline]
    pub(crate) fn is_right(&self, run: &mut [u64], header: &FrameHeader) -> bool {
        #[cfg(loom)]
        if self.trusts {
            return true;
        }
        let len = header.payload_len as usize;
        let Some(lead) = run.first_chunk_mut() else { return false };
        let before: [u64; CHECKED_HEAD_WORDS] = *lead;
        set_quad(lead, self.head_words(header));
        let bytes = cast_slice(run).get(..CHECKED_HEAD_WORDS * WORD + len);
        let is_right = bytes.is_some_and(|bytes| self.crc_of(bytes) == header.crc);
        if let Some(lead) = run.first_chunk_mut() {
            *lead = before;
        }
        is_right
    }

    /// Returns the checksum of a record up to its payload, which is to follow.
    #[inline]
    pub(crate) fn of_header(&self, header: &FrameHeader) -> Crc32 {
        let mut crc = self.seed.clone();
        crc.update(cast_slice(&self.head_words(header)));
        crc
    }

    /// Returns the checksum of a record.
    #[cfg(test)]
    pub(crate) fn of(&self, header: &FrameHeader, payload: &[u8]) -> u32 {
        let mut crc = self.of_header(header);
        crc.update(payload);
        crc.finish()
    }

    /// The epoch, and the header without its checksum.
    #[inline]
    fn head_words(&self, header: &FrameHeader) -> [u64; CHECKED_HEAD_WORDS] {
        let [sequence, sizes, published_ns] = FrameHeader { crc: 0, ..*header }.emit();
        [self.epoch.get().to_le(), sequence, sizes, published_ns]
    }

    #[inline]
    fn crc_of(&self, bytes: &[u8]) -> u32 {
        let mut crc = self.seed.clone();
        crc.update(bytes);
        crc.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{HOT_EPOCH, HOT_OFFSET, HOT_PUBLISHED, HOT_SEQUENCE};
    use super::*;
    use crate::checksum::crc32;

    #[test]
    fn golden_bytes() {
        let check = FrameCheck::new(TopicId::new(0x99), Epoch::new(0x1122_3344_5566_7788).unwrap());
        let header = FrameHeader { sequence: Sequence::new(7), payload_len: 3, crc: 0, published_ns: 5 };
        let crc = check.of(&header, b"abc");
        let words = FrameHeader { crc, ..header }.emit();
        assert_eq!((words[0], words[1] & 0xffff_ffff, words[2]), (7, 3, 5));
        assert_eq!(FrameHeader::parse(words), FrameHeader { crc, ..header });
        // CRC-32 of 16 bytes of identity, then 07.., 03000000 00000000, 05.., "abc".
        let mut bytes = Vec::new();
        for word in [0x99, 0x1122_3344_5566_7788, 7, 3, 5_u64] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"abc");
        assert_eq!(crc, crc32(&bytes));
    }

    #[test]
    fn hot_line_fields_are_at_their_constants() {
        let head = LogHead { newest: Sequence::new(1), end: 2, published_ns: 4 };
        let start = LogPlace { position: 5, sequence: Sequence::new(6) };
        let line = hot_line(&head, &start, Epoch::new(3).unwrap());
        let at = |offset: usize| line[(offset - HOT_OFFSET) / WORD];
        let words = [HOT_SEQUENCE, HOT_END, HOT_EPOCH, HOT_PUBLISHED, HOT_START, HOT_START_SEQUENCE].map(at);
        assert_eq!(words, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn frames_that_wrap_around_the_ring_are_two_ranges() {
        let geometry = LogGeometry::new(4096, 100).unwrap();
        let lens = |from, to| geometry.ranges(from, to).map(|range| (range.offset - RING_OFFSET, range.len));
        assert_eq!(lens(4096, 4104), [(0, 8), (0, 0)]);
        assert_eq!(lens(4000, 4096), [(4000, 96), (0, 0)]);
        assert_eq!(lens(8000, 8248), [(3904, 192), (0, 56)]);
        assert_eq!(lens(8, 8), [(8, 0), (0, 0)]);
        assert_eq!(lens(8, u64::MAX), [(8, 4088), (0, 8)]);
    }

    #[test]
    fn a_ring_holds_four_of_the_largest_records_and_the_requested_capacity() {
        for (capacity, payload_len_max) in
            [(0, 0), (1, 1), (1 << 16, 100), (1000, 100_000), (1 << 20, 1 << 18)]
        {
            let geometry = LogGeometry::new(capacity, payload_len_max).unwrap();
            assert!(geometry.capacity() >= capacity.max(4 * frame_len(payload_len_max)));
            assert!(geometry.segment_len().is_multiple_of(LINE));
            assert_eq!(geometry.offset(geometry.capacity() as u64 * 3 + 8), RING_OFFSET + 8);
            assert_eq!(geometry.rest(geometry.capacity() as u64 - 8), 8);
        }
    }
}
