//! The first two lines of every region, whatever its kind.
//!
//! ```text
//! static line                            hot line
//! 00  u64  magic "FBCREPO1"              40  u64  newest sequence (0: none)
//! 08  u16  layout version                48  u64  its length, bytes
//! 0a  u8   check (1: CRC-32)             50  u64  heartbeat, ns since the Unix epoch
//! 0b  u8   kind (1: state, 3: log)               58  u64  epoch, again
//! 0c  u32  slot count                    60  u64  time of the newest value, ns since the Unix epoch
//! 10  u32  slot stride, lines            68       zero
//! 14  u32  largest payload, bytes
//! 18  u64  epoch
//! 20  u64  topic
//! 28  u64  schema hash
//! 30  u64  region length, bytes
//! 38  u32  CRC-32 of 00..38
//! 3c  u32  zero
//! ```

use super::{LINE, WORD, halves, joined};
use crate::checksum::crc32;
use crate::id::{Epoch, Kind, Sequence, TopicId};
use crate::limits;

/// Where the static line begins.
pub(crate) const STATIC_OFFSET: usize = 0;
/// Where the hot line begins.
pub(crate) const HOT_OFFSET: usize = STATIC_OFFSET + LINE;
/// The newest sequence, in the hot line.
pub(crate) const HOT_SEQUENCE: usize = HOT_OFFSET;
/// The length of the newest value, in the hot line.
pub(crate) const HOT_LEN: usize = HOT_SEQUENCE + WORD;
/// When the publisher's process last showed that it lives, in the hot line.
pub(crate) const HOT_HEARTBEAT: usize = HOT_LEN + WORD;
/// The epoch, repeated in the hot line.
pub(crate) const HOT_EPOCH: usize = HOT_HEARTBEAT + WORD;
/// When the newest value was published, in the hot line.
pub(crate) const HOT_PUBLISHED: usize = HOT_EPOCH + WORD;
/// Where the counters begin.
pub(crate) const COUNTERS_OFFSET: usize = HOT_OFFSET + LINE;
/// Bytes of the counters.
pub(crate) const COUNTERS_LEN: usize = 32 * LINE;
/// Where the part begins that depends on the kind of topic.
pub(crate) const BODY_OFFSET: usize = COUNTERS_OFFSET + COUNTERS_LEN;

/// `FBCREPO1`, as the bytes stand in memory.
const MAGIC: u64 = u64::from_le_bytes(*b"FBCREPO1");
/// The version of everything in a region. It changes whenever any byte of a region changes its meaning.
pub(crate) const LAYOUT_VERSION: u16 = 1;
/// The only check there is.
const CHECK_CRC32: u8 = 1;
/// Bytes of the static line that its checksum covers.
const CHECKED_LEN: usize = 0x38;

const _: () = assert!(HOT_PUBLISHED + WORD <= COUNTERS_OFFSET);
const _: () = assert!(BODY_OFFSET == 0x880 && BODY_OFFSET.is_multiple_of(2 * LINE));

/// The static line: what a region is. Written once, before anybody else can see the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaticLine {
    /// What the region holds.
    pub(crate) kind: Kind,
    /// Slots.
    pub(crate) slot_count: u32,
    /// Lines from one slot to the next.
    pub(crate) slot_stride_lines: u32,
    /// Largest payload, bytes.
    pub(crate) payload_len_max: u32,
    /// The incarnation.
    pub(crate) epoch: Epoch,
    /// The topic.
    pub(crate) topic: TopicId,
    /// The hash of the payload's schema.
    pub(crate) schema_hash: u64,
    /// Bytes of the region.
    pub(crate) region_len: u64,
}

/// Why bytes are not the static line of a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The region is no repository.
    #[error("this memory is no repository: it begins with {found:016x}")]
    Magic {
        /// The first word.
        found: u64,
    },
    /// The region was laid out by another version of the library.
    #[error(
        "the repository has layout version {found}, this program reads {LAYOUT_VERSION}: use the same release on both sides"
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// The checksum of the header is wrong.
    #[error("the repository's header is damaged: its checksum is {found:08x}, its bytes give {expected:08x}")]
    Checksum {
        /// What the bytes give.
        expected: u32,
        /// What is written.
        found: u32,
    },
    /// A field has a value that it cannot have.
    #[error("the repository's header has an impossible {field}: {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}

impl StaticLine {
    /// Words of the line.
    pub(crate) const WORDS: usize = LINE / WORD;

    /// The line as words.
    pub(crate) fn emit(&self) -> [u64; Self::WORDS] {
        let kind = u32::from(number_of(self.kind));
        let identity = u32::from(LAYOUT_VERSION) | u32::from(CHECK_CRC32) << 16 | kind << 24;
        let mut line = [
            MAGIC,
            joined(identity, self.slot_count),
            joined(self.slot_stride_lines, self.payload_len_max),
            self.epoch.get(),
            self.topic.get(),
            self.schema_hash,
            self.region_len,
            0,
        ];
        line[Self::WORDS - 1] = joined(checksum(&line), 0);
        line
    }

    /// Reads the line back, and checks it as far as it can be checked alone.
    pub(crate) fn parse(line: &[u64; Self::WORDS]) -> Result<Self, HeaderError> {
        let [magic, identity, sizes, epoch, topic, schema_hash, region_len, check] = *line;
        if magic != MAGIC {
            return Err(HeaderError::Magic { found: magic });
        }
        let [version_low, version_high, check_kind, kind, ..] = identity.to_le_bytes();
        let version = u16::from_le_bytes([version_low, version_high]);
        if version != LAYOUT_VERSION {
            return Err(HeaderError::Version { found: version });
        }
        let (found, padding) = halves(check);
        let expected = checksum(line);
        if found != expected {
            return Err(HeaderError::Checksum { expected, found });
        }
        let field = |field, found| HeaderError::Field { field, found };
        if padding != 0 {
            return Err(field("padding", padding.into()));
        }
        if check_kind != CHECK_CRC32 {
            return Err(field("check", check_kind.into()));
        }
        let kind = kind_of(kind).ok_or_else(|| field("kind", kind.into()))?;
        let epoch = Epoch::new(epoch).ok_or_else(|| field("epoch", epoch))?;
        if region_len > limits::REGION_LEN_MAX as u64 {
            return Err(field("region length", region_len));
        }
        let (_, slot_count) = halves(identity);
        let (slot_stride_lines, payload_len_max) = halves(sizes);
        let topic = TopicId::new(topic);
        Ok(Self {
            kind,
            slot_count,
            slot_stride_lines,
            payload_len_max,
            epoch,
            topic,
            schema_hash,
            region_len,
        })
    }
}

/// The hot line as words, for a value that was published at this moment.
#[inline]
pub(crate) fn hot_line(
    sequence: Sequence,
    payload_len: usize,
    epoch: Epoch,
    now_ns: u64,
) -> [u64; LINE / WORD] {
    [sequence.get(), payload_len as u64, now_ns, epoch.get(), now_ns, 0, 0, 0]
}

fn checksum(line: &[u64; StaticLine::WORDS]) -> u32 {
    let bytes: &[u8] = bytemuck::cast_slice(line);
    crc32(bytes.split_at(CHECKED_LEN).0)
}

fn number_of(kind: Kind) -> u8 {
    match kind {
        Kind::State => 1,
        Kind::Log => 3,
    }
}

fn kind_of(number: u8) -> Option<Kind> {
    match number {
        1 => Some(Kind::State),
        3 => Some(Kind::Log),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> StaticLine {
        StaticLine {
            kind: Kind::State,
            slot_count: 8,
            slot_stride_lines: 2,
            payload_len_max: 64,
            epoch: Epoch::new(0x1122_3344_5566_7788).unwrap(),
            topic: TopicId::new(0x99),
            schema_hash: 0xabcd,
            region_len: 4096,
        }
    }

    #[test]
    fn golden_bytes() {
        let words = line().emit();
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        assert_eq!(&bytes[..8], b"FBCREPO1");
        assert_eq!(bytes[8..0x18], [1, 0, 1, 1, 8, 0, 0, 0, 2, 0, 0, 0, 64, 0, 0, 0]);
        assert_eq!(bytes[0x18..0x20], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(words[4..7], [0x99, 0xabcd, 4096]);
        assert_eq!(words[7], 0xb805_871b);
    }

    #[test]
    fn round_trip() {
        assert_eq!(StaticLine::parse(&line().emit()), Ok(line()));
    }

    #[test]
    fn every_flipped_bit_is_an_error() {
        for word in 0..StaticLine::WORDS {
            for bit in 0..64 {
                let mut words = line().emit();
                words[word] ^= 1 << bit;
                assert!(StaticLine::parse(&words).is_err(), "word {word} bit {bit}");
            }
        }
    }

    #[test]
    fn the_hot_line_stands_where_its_constants_say() {
        let line = hot_line(Sequence::new(1), 2, Epoch::new(3).unwrap(), 4);
        let at = |offset: usize| line[(offset - HOT_OFFSET) / WORD];
        assert_eq!([HOT_SEQUENCE, HOT_LEN, HOT_EPOCH, HOT_HEARTBEAT, HOT_PUBLISHED].map(at), [1, 2, 3, 4, 4]);
    }

    #[test]
    fn zeroed_memory_is_no_repository() {
        assert_eq!(StaticLine::parse(&[0; 8]), Err(HeaderError::Magic { found: 0 }));
    }
}
