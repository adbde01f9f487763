//! The description behind the repository in a repository file: what a reader needs that has no grant.
//!
//! ```text
//! 00  u64  magic "FBCFILE1"
//! 08  u32  length of the topic's name, bytes
//! 0c  u32  length of the schema's JSON, bytes
//! 10  u64  the sequence before that of the first value
//! 18  u64  first half of the host's boot identifier
//! 20  u64  zero
//! 28  u32  CRC-32 of 00..28, the name and the schema
//! 2c  u32  zero
//! 30       name, then schema
//! ```

use std::path::Path;

use super::header::StaticHeader;
use super::{Geometry, WORD, halves, joined};
use crate::checksum::Crc32;
use crate::id::{Sequence, TopicId, TopicName};
use crate::limits;
use crate::memory::RepositoryFileError;
use crate::payload::Schema;

/// Where a description begins: at the next multiple of this many bytes behind the repository.
const ALIGN: u64 = 4096;
/// The longest pages of memory that processors of 64 bits have by default.
const PAGE_LEN_MAX: u64 = 64 * 1024;
/// `FBCFILE1`, in memory order.
const MAGIC: u64 = u64::from_le_bytes(*b"FBCFILE1");
const HEAD_WORDS: usize = 6;
const CHECK: usize = HEAD_WORDS - 1;
/// Bytes before the name.
pub(crate) const HEAD_LEN: usize = HEAD_WORDS * WORD;

/// What a repository file tells beyond its repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// The topic.
    pub(crate) name: TopicName,
    /// The schema of its values, as JSON.
    pub(crate) schema: Vec<u8>,
    /// The sequence before that of its first value.
    pub(crate) after: Sequence,
    /// The boot of the host in which the file was made; 0 if unknown. The monotonic clock of another one is another clock.
    pub(crate) boot: u64,
}

/// The first words of a description, whose lengths are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptionHead([u64; HEAD_WORDS]);

/// What a repository file describes, checked.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) header: StaticHeader,
    pub(crate) geometry: Geometry,
    pub(crate) description: Description,
    pub(crate) schema: Schema,
}

/// A description that is none, or not that of the repository before it.
#[derive(Debug, thiserror::Error)]
#[error("the description behind the repository is damaged")]
struct NoDescription;

impl Described {
    /// Reads header and description of a file of this length.
    pub(crate) fn read(
        path: &Path,
        len: u64,
        read: impl Fn(u64, &mut [u8]) -> Result<(), RepositoryFileError>,
    ) -> Result<Self, RepositoryFileError> {
        let cut = |expected| RepositoryFileError::Length { path: path.to_owned(), expected, found: len };
        let mut words = [0_u64; StaticHeader::WORDS];
        let header_len = size_of_val(&words) as u64;
        if len < header_len {
            return Err(cut(header_len));
        }
        read(0, bytemuck::cast_slice_mut(&mut words))?;
        let header = StaticHeader::parse(&words).map_err(|error| unusable(path, error))?;
        let geometry = Geometry::of(&header).map_err(|error| unusable(path, error))?;
        let begin = offset_behind(geometry.region_len());
        let mut head = [0; HEAD_LEN];
        if len < begin + HEAD_LEN as u64 {
            return Err(cut(file_len(geometry.region_len(), HEAD_LEN)));
        }
        read(begin, &mut head)?;
        let head = DescriptionHead::parse(&head).ok_or_else(|| unusable(path, NoDescription))?;
        let expected = file_len(geometry.region_len(), HEAD_LEN + head.rest_len());
        if len != expected {
            return Err(cut(expected));
        }
        let mut rest = vec![0; head.rest_len()];
        read(begin + HEAD_LEN as u64, &mut rest)?;
        let description = head.with(&rest).ok_or_else(|| unusable(path, NoDescription))?;
        let schema = Schema::from_json(&description.schema).map_err(|error| unusable(path, error))?;
        let is_consistent =
            TopicId::of(&description.name) == header.topic && schema.hash() == header.schema_hash;
        if !is_consistent || description.after.get() > limits::SEQUENCE_AFTER_MAX {
            return Err(unusable(path, NoDescription));
        }
        Ok(Self { header, geometry, description, schema })
    }
}

fn unusable(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> RepositoryFileError {
    RepositoryFileError::Header { path: path.to_owned(), source: Box::new(error) }
}

/// Returns the length of a file with a repository and a description of these lengths.
pub(crate) fn file_len(region_len: usize, description_len: usize) -> u64 {
    // Whole pages, whatever their size: a mapping of the repository ends within the file.
    (offset_behind(region_len) + description_len as u64).next_multiple_of(PAGE_LEN_MAX)
}

/// Returns where the description of a repository of this length begins.
pub(crate) fn offset_behind(region_len: usize) -> u64 {
    (region_len as u64).next_multiple_of(ALIGN)
}

impl Description {
    /// Encodes it.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let name = self.name.as_str().as_bytes();
        // Both are at most `u32::MAX` long: a longer schema is none.
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut head = [MAGIC, joined(len(name), len(&self.schema)), self.after.get(), self.boot, 0, 0];
        let check = checksum(&head, name, &self.schema);
        head.last_mut().into_iter().for_each(|word| *word = joined(check, 0));
        [bytemuck::cast_slice(&head), name, self.schema.as_slice()].concat()
    }
}

impl DescriptionHead {
    /// Decodes the first words. `None` if they are not those of a description.
    pub(crate) fn parse(bytes: &[u8; HEAD_LEN]) -> Option<Self> {
        let mut head = [0; HEAD_WORDS];
        let (chunks, _) = bytes.as_chunks();
        head.iter_mut().zip(chunks).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        let head = Self(head);
        let [magic, ..] = head.0;
        let (name, schema) = head.lens();
        let is_possible = name <= limits::TOPIC_NAME_LEN_MAX && schema <= limits::SCHEMA_LEN_MAX;
        (magic == MAGIC && is_possible).then_some(head)
    }

    /// Returns how many bytes follow.
    pub(crate) fn rest_len(&self) -> usize {
        let (name, schema) = self.lens();
        name + schema
    }

    /// Decodes the description with the bytes that follow. `None` if they are not its bytes.
    pub(crate) fn with(&self, rest: &[u8]) -> Option<Description> {
        let (name, schema) = rest.split_at_checked(self.lens().0)?;
        let [_, _, after, boot, _, check] = self.0;
        if check != joined(checksum(&self.0, name, schema), 0) {
            return None;
        }
        let name = std::str::from_utf8(name).ok()?.parse().ok()?;
        Some(Description { name, schema: schema.to_vec(), after: Sequence::new(after), boot })
    }

    fn lens(&self) -> (usize, usize) {
        let [_, lens, ..] = self.0;
        let (name, schema) = halves(lens);
        (name as usize, schema as usize)
    }
}

fn checksum(head: &[u64; HEAD_WORDS], name: &[u8], schema: &[u8]) -> u32 {
    let mut crc = Crc32::new();
    crc.update(bytemuck::cast_slice(head.split_at(CHECK).0));
    crc.update(name);
    crc.update(schema);
    crc.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        let (name, schema) = ("equities/AAPL".parse().unwrap(), b"{\"u64\":8}".to_vec());
        Description { name, schema, after: Sequence::new(7), boot: 9 }
    }

    fn parse(bytes: &[u8]) -> Option<Description> {
        let (head, rest) = bytes.split_first_chunk()?;
        let head = DescriptionHead::parse(head)?;
        head.with(rest.get(..head.rest_len())?)
    }

    #[test]
    fn golden_bytes() {
        let bytes = description().emit();
        assert_eq!(&bytes[..16], b"FBCFILE1\x0d\0\0\0\x09\0\0\0");
        assert_eq!(bytes[16..40], [7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[HEAD_LEN..], b"equities/AAPL{\"u64\":8}");
        assert_eq!(parse(&bytes), Some(description()));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = description().emit();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&damaged), None, "bit {bit}");
        }
        assert!((0..bytes.len()).all(|cut| parse(&bytes[..cut]).is_none()));
    }
}
