//! A state topic's body: a ring of slots, each holding one complete value.
//!
//! The value of sequence `s` is in slot `s mod slot_count`, so the newest value stays intact while the
//! next ones are written. The static header's parameters are the number of slots and the distance between them in bytes.
//!
//! ```text
//! hot line, in addition to the common fields
//! 88  u64  payload length of the newest value, bytes
//!
//! slot
//! 00            u64  head stamp: the sequence, written last
//! 08            u64  epoch
//! 10            u32  payload length, bytes
//! 14            u16  encoding
//! 16            u16  flags, zero
//! 18            u64  time of publishing, ns since the Unix epoch
//! 20            payload, padded with zeros to 8 bytes
//! 20 + padded   u32  CRC-32 of the topic (u64), the header (00..20) and the payload
//!               u32  zero
//! 28 + padded   u64  tail stamp: the sequence, written first
//! ```
//!
//! Header, payload and check of a value of 64 bytes take 112 bytes: two cache lines, which processors fetch as
//! a pair. The checked bytes are contiguous, so one pass of the CRC covers them.
//!
//! # Stamps
//!
//! The writer stores the tail stamp first and the head stamp last; a reader loads the head
//! first and the tail last. In mapped memory that makes the pair a seqlock: a copy between two equal stamps is
//! whole (H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012). To keep this
//! true when lengths change, the writer also overwrites the tail stamp of the slot's previous value; only a
//! payload word of a longer value at that offset that equals the stamp is left to the CRC.
//! A one-sided read over a wire has no defined order: there the stamps only detect most torn reads early, and the
//! CRC decides. Both are always checked.

use super::header::{BODY_OFFSET, HOT_KIND};
use super::numbers::{Fact, GeometryError, PARAMETERS};
use super::{ByteRange, LINE, WORD, halves, joined};
use crate::checksum::{Crc32, crc32};
use crate::id::{Epoch, Sequence, TopicId};
use crate::limits;
use crate::memory::Region;

/// The payload length of the newest value, in the hot line.
pub(crate) const HOT_LEN: usize = HOT_KIND;
/// The offset of the word with the payload's length in a slot.
pub(crate) const SLOT_SIZES: usize = 2 * WORD;
/// Words of a slot's header.
pub(crate) const HEADER_WORDS: usize = 4;
/// Bytes of a slot's header.
pub(crate) const HEADER_LEN: usize = HEADER_WORDS * WORD;
/// Words after the payload: check and tail stamp.
pub(crate) const TRAILER_WORDS: usize = 2;
/// Bytes after the payload.
const TRAILER_LEN: usize = TRAILER_WORDS * WORD;
/// Slots are aligned to pairs of lines.
const SLOT_ALIGN: usize = 2 * LINE;

/// The geometry of a state region, always valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateGeometry {
    slot_count: u32,
    slot_stride: usize,
    payload_len_max: usize,
}

impl StateGeometry {
    /// Creates the geometry of `slot_count` slots for payloads of up to `payload_len_max` bytes.
    pub(crate) fn new(slot_count: u32, payload_len_max: usize) -> Result<Self, GeometryError> {
        let counts = limits::SLOT_COUNT_MIN..=limits::SLOT_COUNT_MAX;
        if !slot_count.is_power_of_two() || !counts.contains(&slot_count) {
            return Err(GeometryError::SlotCount { found: slot_count });
        }
        if payload_len_max > limits::PAYLOAD_LEN_MAX {
            return Err(GeometryError::PayloadLen { found: payload_len_max });
        }
        let slot_stride = slot_len(payload_len_max).next_multiple_of(SLOT_ALIGN);
        let geometry = Self { slot_count, slot_stride, payload_len_max };
        if geometry.region_len() > limits::REGION_LEN_MAX {
            return Err(GeometryError::RegionLen { slot_count, payload_len_max });
        }
        Ok(geometry)
    }

    /// Derives the geometry from a static header's parameters, which are untrusted.
    pub(super) fn of(
        [slot_count, ..]: [u64; PARAMETERS],
        payload_len_max: usize,
    ) -> Result<Self, GeometryError> {
        Self::new(u32::try_from(slot_count).unwrap_or(u32::MAX), payload_len_max)
    }

    /// Returns its parameters for a static header.
    pub(super) fn parameters(&self) -> [u64; PARAMETERS] {
        [self.slot_count.into(), self.slot_stride as u64, 0, 0]
    }

    /// Returns its parameters by name.
    pub(super) fn facts(&self) -> [Fact; 2] {
        let [slot_count, slot_len, ..] = self.parameters();
        [Fact { name: "slot_count", value: slot_count }, Fact { name: "slot_len", value: slot_len }]
    }

    /// Returns what the hot line reports about the content.
    pub(super) fn held(memory: &Region) -> [Fact; 1] {
        [Fact { name: "newest_len", value: memory.load(HOT_LEN) }]
    }

    /// Returns the number of slots.
    pub(crate) fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Returns the largest payload, bytes.
    #[inline]
    pub(crate) fn payload_len_max(&self) -> usize {
        self.payload_len_max
    }

    /// Returns the length of the region, bytes.
    pub(crate) fn region_len(&self) -> usize {
        BODY_OFFSET + self.slot_count as usize * self.slot_stride
    }

    /// Returns the index of the slot for this sequence.
    #[inline]
    pub(crate) fn slot_index(&self, sequence: Sequence) -> usize {
        let mask = u64::from(self.slot_count - 1);
        // The mask has at most 16 bits, so the cast is lossless.
        usize::try_from(sequence.get() & mask).unwrap_or(0)
    }

    /// Returns the offset of the slot for this sequence, bytes from the start of the region.
    #[inline]
    pub(crate) fn slot_offset(&self, sequence: Sequence) -> usize {
        BODY_OFFSET + self.slot_index(sequence) * self.slot_stride
    }

    /// Returns the used range of the slot for this sequence, for a payload of `payload_len` bytes.
    #[inline]
    pub(crate) fn slot_range(&self, sequence: Sequence, payload_len: usize) -> ByteRange {
        ByteRange { offset: self.slot_offset(sequence), len: slot_len(payload_len.min(self.payload_len_max)) }
    }

    /// Returns the offset of the tail stamp after a payload of this length, bytes from the start of the slot.
    #[inline]
    pub(crate) fn tail_offset(payload_len: usize) -> usize {
        slot_len(payload_len) - WORD
    }
}

/// Returns the bytes that a slot uses for a payload of this length.
#[inline]
pub(crate) fn slot_len(payload_len: usize) -> usize {
    HEADER_LEN + payload_len.next_multiple_of(WORD) + TRAILER_LEN
}

/// The header of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotHeader {
    /// The sequence of the value: the head stamp.
    pub(crate) sequence: Sequence,
    /// The epoch, unchecked.
    pub(crate) epoch: u64,
    /// Bytes of the payload.
    pub(crate) payload_len: u32,
    /// The number of the payload's encoding.
    pub(crate) encoding: u16,
    /// The publish time, ns since the Unix epoch.
    pub(crate) published_ns: u64,
}

impl SlotHeader {
    /// Encodes the header.
    #[inline]
    pub(crate) fn emit(&self) -> [u64; HEADER_WORDS] {
        let sizes = joined(self.payload_len, self.encoding.into());
        [self.sequence.get(), self.epoch, sizes, self.published_ns]
    }

    /// Decodes a header without checking it.
    #[inline]
    pub(crate) fn parse(words: [u64; HEADER_WORDS]) -> Self {
        let [sequence, epoch, sizes, published_ns] = words;
        let payload_len = Self::payload_len(sizes);
        let [.., low, high, _, _] = sizes.to_le_bytes();
        let encoding = u16::from_le_bytes([low, high]);
        Self { sequence: Sequence::new(sequence), epoch, payload_len, encoding, published_ns }
    }

    /// Returns the payload length in the word at [`SLOT_SIZES`].
    #[inline]
    pub(crate) fn payload_len(sizes: u64) -> u32 {
        halves(sizes).0
    }
}

/// Returns the hot line as words, for a value published at this time.
#[inline]
pub(crate) fn hot_line(
    sequence: Sequence,
    payload_len: usize,
    epoch: Epoch,
    now_ns: u64,
) -> [u64; LINE / WORD] {
    [sequence.get(), payload_len as u64, now_ns, epoch.get(), now_ns, 0, 0, 0]
}

/// The check of one topic's values: CRC-32 of the topic, then a slot's header and payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotCheck {
    seed: u32,
}

impl SlotCheck {
    /// Creates the check for this topic's values.
    pub(crate) fn new(topic: TopicId) -> Self {
        Self { seed: crc32(&topic.get().to_le_bytes()) }
    }

    /// Returns the checksum of a contiguous header and payload.
    #[inline]
    pub(crate) fn of_run(self, checked: &[u8]) -> u32 {
        let mut crc = Crc32::resume(self.seed);
        crc.update(checked);
        crc.finish()
    }

    /// Returns the checksum of a header, to be continued with the payload.
    #[inline]
    pub(crate) fn of_header(self, header: &SlotHeader) -> Crc32 {
        let mut crc = Crc32::resume(self.seed);
        crc.update(bytemuck::cast_slice(&header.emit()));
        crc
    }
}

/// Returns the word before the tail stamp.
#[inline]
pub(crate) fn check_word(crc: u32) -> u64 {
    joined(crc, 0)
}

/// Returns the checksum in the word before the tail stamp, or `None` if the other half is not zero.
#[inline]
pub(crate) fn parse_check_word(word: u64) -> Option<u32> {
    match halves(word) {
        (crc, 0) => Some(crc),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{HOT_EPOCH, HOT_HEARTBEAT, HOT_OFFSET, HOT_PUBLISHED, HOT_SEQUENCE};
    use super::*;

    #[test]
    fn hot_line_fields_are_at_their_constants() {
        let line = hot_line(Sequence::new(1), 2, Epoch::new(3).unwrap(), 4);
        let at = |offset: usize| line[(offset - HOT_OFFSET) / WORD];
        assert_eq!([HOT_SEQUENCE, HOT_LEN, HOT_EPOCH, HOT_HEARTBEAT, HOT_PUBLISHED].map(at), [1, 2, 3, 4, 4]);
    }

    #[test]
    fn a_value_of_64_bytes_takes_two_lines() {
        let geometry = StateGeometry::new(8, 64).unwrap();
        assert_eq!(geometry.parameters(), [8, 128, 0, 0]);
        assert_eq!(geometry.slot_offset(Sequence::new(1)) % 128, 0);
    }

    #[test]
    fn every_slot_lies_inside_the_region_and_apart_from_the_others() {
        for (count, len) in [(2, 0), (2, 1), (4, 79), (8, 80), (16, 81), (64, 100_000)] {
            let geometry = StateGeometry::new(count, len).unwrap();
            for sequence in 1..=u64::from(count) * 2 {
                let range = geometry.slot_range(Sequence::new(sequence), len);
                assert!(range.offset >= BODY_OFFSET && range.offset + range.len <= geometry.region_len());
                assert!(range.len <= geometry.slot_stride);
                assert_eq!(StateGeometry::tail_offset(len) + WORD, range.len);
            }
        }
    }

    #[test]
    fn impossible_geometries_are_refused() {
        for count in [0, 1, 3, 12, 1 << 17] {
            assert_eq!(StateGeometry::new(count, 8), Err(GeometryError::SlotCount { found: count }));
        }
        assert!(matches!(StateGeometry::new(2, usize::MAX), Err(GeometryError::PayloadLen { .. })));
        assert!(matches!(StateGeometry::new(1 << 16, 1 << 30), Err(GeometryError::RegionLen { .. })));
    }

    #[test]
    fn golden_slot_header() {
        let header = SlotHeader {
            sequence: Sequence::new(5),
            epoch: 6,
            payload_len: 0x0102_0304,
            encoding: 0x0a0b,
            published_ns: 7,
        };
        assert_eq!(header.emit(), [5, 6, 0x0000_0a0b_0102_0304, 7]);
        assert_eq!(SlotHeader::parse(header.emit()), header);
    }

    #[test]
    fn pieces_and_run_have_the_same_check() {
        let header =
            SlotHeader { sequence: Sequence::new(1), epoch: 2, payload_len: 3, encoding: 1, published_ns: 4 };
        let check = SlotCheck::new(TopicId::new(11));
        let mut run: Vec<u8> = bytemuck::cast_slice(&header.emit()).to_vec();
        run.extend(b"abc");
        let mut pieces = check.of_header(&header);
        pieces.update(b"abc");
        assert_eq!(pieces.finish(), check.of_run(&run));
        assert_ne!(SlotCheck::new(TopicId::new(12)).of_run(&run), check.of_run(&run));
    }
}
