//! The first lines of every region, whatever its kind: the static header and the hot line.
//!
//! ```text
//! static header                          hot line
//! 00  u64  magic "FBCREPO1"              80  u64  newest sequence (0: none)
//! 08  u16  layout version                88       of the kind
//! 0a  u8   check (1: CRC-32)             90  u64  heartbeat, ns since the Unix epoch
//! 0b  u8   kind (1: state, 2: table, 3: log)       98  u64  epoch, again
//! 0c  u32  largest payload, bytes        a0  u64  time of the newest value, ns since the Unix epoch
//! 10  u64  epoch                         a8       of the kind
//! 18  u64  topic
//! 20  u64  schema hash
//! 28  u64  region length, bytes
//! 30  4 × u64  parameters of the kind
//! 50  5 × u64  zero; a reader ignores them
//! 78  u32  CRC-32 of 00..78
//! 7c  u32  zero
//! ```

use super::{GeometryNumbers, LINE, WORD, halves, joined};
use crate::checksum::crc32;
use crate::id::{Epoch, Kind, TopicId};
use crate::limits;

/// The offset of the static header.
pub(crate) const STATIC_OFFSET: usize = 0;
/// The offset of the hot line.
pub(crate) const HOT_OFFSET: usize = STATIC_OFFSET + 2 * LINE;
/// The newest sequence, in the hot line.
pub(crate) const HOT_SEQUENCE: usize = HOT_OFFSET;
/// A word of the hot line whose meaning depends on the kind.
pub(crate) const HOT_KIND: usize = HOT_SEQUENCE + WORD;
/// The last heartbeat of the publisher's process, in the hot line.
pub(crate) const HOT_HEARTBEAT: usize = HOT_KIND + WORD;
/// The epoch, repeated in the hot line.
pub(crate) const HOT_EPOCH: usize = HOT_HEARTBEAT + WORD;
/// The publish time of the newest value, in the hot line.
pub(crate) const HOT_PUBLISHED: usize = HOT_EPOCH + WORD;
/// The offset of the part of the hot line that depends on the kind.
pub(crate) const HOT_KIND_REST: usize = HOT_PUBLISHED + WORD;
/// The offset of the counters, after the clock line.
pub(crate) const COUNTERS_OFFSET: usize = HOT_OFFSET + 2 * LINE;
/// Bytes of the counters.
pub(crate) const COUNTERS_LEN: usize = 32 * LINE;
/// The offset of the part that depends on the kind of topic.
pub(crate) const BODY_OFFSET: usize = COUNTERS_OFFSET + COUNTERS_LEN;

/// `FBCREPO1`, in memory order.
const MAGIC: u64 = u64::from_le_bytes(*b"FBCREPO1");
/// The version of the whole region. It changes with the meaning of any byte.
pub(crate) const LAYOUT_VERSION: u16 = 3;
/// The only kind of check.
const CHECK_CRC32: u8 = 1;

const _: () = assert!(HOT_KIND_REST <= HOT_OFFSET + LINE);
const _: () = assert!(BODY_OFFSET == 0x900 && BODY_OFFSET.is_multiple_of(2 * LINE));

/// The static header: identity and geometry of a region. Written once, before other processes can see the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaticHeader {
    /// What the region holds.
    pub(crate) kind: Kind,
    /// The incarnation.
    pub(crate) epoch: Epoch,
    /// The topic.
    pub(crate) topic: TopicId,
    /// The hash of the payload's schema.
    pub(crate) schema_hash: u64,
    /// Its geometry.
    pub(crate) numbers: GeometryNumbers,
}

/// An error of parsing a static header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The region is not a repository.
    #[error("this memory is not a repository: it begins with {found:016x}")]
    Magic {
        /// The first word.
        found: u64,
    },
    /// The repository has another layout version.
    #[error(
        "the repository has layout version {found}, this program reads {LAYOUT_VERSION}: use the same release on both sides"
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// The header's checksum is wrong.
    #[error("the repository's header is damaged: its checksum is {found:08x}, its bytes give {expected:08x}")]
    Checksum {
        /// The checksum of its bytes.
        expected: u32,
        /// The stored checksum.
        found: u32,
    },
    /// A field has an impossible value.
    #[error("the repository's header has an impossible {field}: {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}

impl StaticHeader {
    /// Words of the header.
    pub(crate) const WORDS: usize = 2 * LINE / WORD;
    /// The last word, which holds the checksum of the others.
    const CHECK: usize = Self::WORDS - 1;

    /// Encodes the header.
    pub(crate) fn emit(&self) -> [u64; Self::WORDS] {
        let GeometryNumbers { payload_len_max, region_len, parameters } = self.numbers;
        let kind = u32::from(number_of(self.kind));
        let identity = u32::from(LAYOUT_VERSION) | u32::from(CHECK_CRC32) << 16 | kind << 24;
        let mut words = [0; Self::WORDS];
        let fields = [
            MAGIC,
            joined(identity, payload_len_max),
            self.epoch.get(),
            self.topic.get(),
            self.schema_hash,
            region_len,
        ];
        words.iter_mut().zip(fields.into_iter().chain(parameters)).for_each(|(word, field)| *word = field);
        words[Self::CHECK] = joined(checksum(&words), 0);
        words
    }

    /// Decodes the header, and checks everything that depends on it only.
    pub(crate) fn parse(words: &[u64; Self::WORDS]) -> Result<Self, HeaderError> {
        let [magic, identity, epoch, topic, schema_hash, region_len, parameters @ .., _, _, _, _, _, check] =
            *words;
        if magic != MAGIC {
            return Err(HeaderError::Magic { found: magic });
        }
        let [version_low, version_high, check_kind, kind, ..] = identity.to_le_bytes();
        let version = u16::from_le_bytes([version_low, version_high]);
        if version != LAYOUT_VERSION {
            return Err(HeaderError::Version { found: version });
        }
        let (found, padding) = halves(check);
        let expected = checksum(words);
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
        let (_, payload_len_max) = halves(identity);
        let numbers = GeometryNumbers { payload_len_max, region_len, parameters };
        Ok(Self { kind, epoch, topic: TopicId::new(topic), schema_hash, numbers })
    }
}

fn checksum(words: &[u64; StaticHeader::WORDS]) -> u32 {
    let (checked, _) = words.split_at(StaticHeader::CHECK);
    crc32(bytemuck::cast_slice(checked))
}

fn number_of(kind: Kind) -> u8 {
    match kind {
        Kind::State => 1,
        Kind::Table => 2,
        Kind::Log => 3,
    }
}

fn kind_of(number: u8) -> Option<Kind> {
    match number {
        1 => Some(Kind::State),
        2 => Some(Kind::Table),
        3 => Some(Kind::Log),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> StaticHeader {
        StaticHeader {
            kind: Kind::State,
            epoch: Epoch::new(0x1122_3344_5566_7788).unwrap(),
            topic: TopicId::new(0x99),
            schema_hash: 0xabcd,
            numbers: GeometryNumbers { payload_len_max: 64, region_len: 4096, parameters: [8, 128, 0, 7] },
        }
    }

    #[test]
    fn golden_bytes() {
        let words = header().emit();
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        assert_eq!(&bytes[..8], b"FBCREPO1");
        assert_eq!(bytes[8..0x10], [3, 0, 1, 1, 64, 0, 0, 0]);
        assert_eq!(bytes[0x10..0x18], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(words[3..15], [0x99, 0xabcd, 4096, 8, 128, 0, 7, 0, 0, 0, 0, 0]);
        assert_eq!(words[15], 0x8397_1325);
    }

    #[test]
    fn spare_words_are_checked_and_ignored() {
        let mut words = header().emit();
        words[14] = 0x1234;
        assert!(matches!(StaticHeader::parse(&words), Err(HeaderError::Checksum { .. })));
        words[StaticHeader::CHECK] = joined(checksum(&words), 0);
        assert_eq!(StaticHeader::parse(&words), Ok(header()));
    }

    #[test]
    fn round_trip() {
        assert_eq!(StaticHeader::parse(&header().emit()), Ok(header()));
    }

    #[test]
    fn every_flipped_bit_is_an_error() {
        for word in 0..StaticHeader::WORDS {
            for bit in 0..64 {
                let mut words = header().emit();
                words[word] ^= 1 << bit;
                assert!(StaticHeader::parse(&words).is_err(), "word {word} bit {bit}");
            }
        }
    }

    #[test]
    fn zeroed_memory_is_not_a_repository() {
        assert_eq!(StaticHeader::parse(&[0; 16]), Err(HeaderError::Magic { found: 0 }));
    }
}
