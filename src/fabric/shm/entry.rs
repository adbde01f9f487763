//! The entry that a node keeps in the runtime directory, 128 bytes, little-endian:
//!
//! ```text
//! 00  u64       magic "FBCNODE1"
//! 08  u32       entry version
//! 0c  u32       process
//! 10  u64       start time, ns since the Unix epoch
//! 18  u64       length of the name, bytes
//! 20  [u8; 64]  name, padded with zeros
//! 60  [u8; 24]  zeros
//! 78  u32       CRC-32 of 00..78
//! 7c  u32       zero
//! ```

use crate::checksum::crc32;
use crate::id::NodeName;
use crate::limits;

/// Bytes of an entry.
pub(super) const ENTRY_LEN: usize = 128;
const MAGIC: &[u8; 8] = b"FBCNODE1";
const VERSION: u32 = 1;
const NAME_OFFSET: usize = 0x20;
const CHECK_OFFSET: usize = 0x78;

const _: () = assert!(NAME_OFFSET + limits::NODE_NAME_LEN_MAX <= CHECK_OFFSET);

/// A node's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameEntry {
    /// Its name.
    pub(super) node: NodeName,
    /// Its process.
    pub(super) process: u32,
    /// When it started, ns since the Unix epoch.
    pub(super) started_ns: u64,
}

impl NameEntry {
    /// Encodes the entry.
    pub(super) fn emit(&self) -> [u8; ENTRY_LEN] {
        let name = self.node.as_str().as_bytes();
        let len = name.len() as u64;
        let fields = MAGIC
            .iter()
            .copied()
            .chain(VERSION.to_le_bytes())
            .chain(self.process.to_le_bytes())
            .chain(self.started_ns.to_le_bytes())
            .chain(len.to_le_bytes())
            .chain(name.iter().copied());
        let mut bytes = [0; ENTRY_LEN];
        bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        let (checked, check) = bytes.split_at_mut(CHECK_OFFSET);
        let crc = crc32(checked).to_le_bytes();
        check.iter_mut().zip(crc).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Decodes an entry; `None` unless the bytes are exactly one.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (checked, check) = bytes.split_at_checked(CHECK_OFFSET)?;
        let mut expected = [0; ENTRY_LEN - CHECK_OFFSET];
        let crc = crc32(checked).to_le_bytes();
        expected.iter_mut().zip(crc).for_each(|(to, from)| *to = from);
        let rest = checked.strip_prefix(MAGIC)?;
        if check != expected {
            return None;
        }
        let (version, rest) = rest.split_first_chunk()?;
        let (process, rest) = rest.split_first_chunk()?;
        let (started_ns, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        if u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (name, padding) = rest.split_at_checked(len)?;
        let node = std::str::from_utf8(name).ok()?.parse().ok()?;
        let padded = padding.iter().all(|byte| *byte == 0);
        let entry =
            Self { node, process: u32::from_le_bytes(*process), started_ns: u64::from_le_bytes(*started_ns) };
        padded.then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> NameEntry {
        NameEntry { node: "market-data".parse().unwrap(), process: 0x0102_0304, started_ns: 99 }
    }

    #[test]
    fn golden_bytes() {
        let bytes = entry().emit();
        assert_eq!(&bytes[..16], b"FBCNODE1\x01\0\0\0\x04\x03\x02\x01");
        assert_eq!(bytes[16..32], [99, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[32..43], b"market-data");
        assert_eq!(NameEntry::parse(&bytes), Some(entry()));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = entry().emit();
        for bit in 0..ENTRY_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(NameEntry::parse(&damaged), None, "bit {bit}");
        }
        for cut in 0..ENTRY_LEN {
            assert_eq!(NameEntry::parse(&bytes[..cut]), None, "cut at {cut}");
        }
        assert_eq!(NameEntry::parse(&[bytes.as_slice(), &[0]].concat()), None);
    }
}
