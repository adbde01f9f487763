//! Registered memory: regions of whole pages that other processes or devices may access at any time.
//!
//! A [`Region`] is a mapping of a memory file (`memfd`) or of a repository file in a tmpfs, so it can be passed to another process and
//! registered with an RDMA device. Only this module touches region memory: it offers no
//! references, only bounds-checked word access and copies, all of them atomic per aligned 64-bit word
//! and relaxed unless named otherwise. A copy may tear between words; the reader must
//! detect that.
//!
//! This module holds the crate's pointer arithmetic.

#![expect(unsafe_code, reason = "mappings and word access to them require raw pointers")]

#[cfg(not(loom))]
mod copy;
mod file;
mod file_limit;
#[cfg(test)]
pub(crate) mod kill;
mod quad;
mod region;
#[cfg_attr(loom, path = "modelled.rs")]
mod words;

pub(crate) use file::{FileBytes, Opened, WarmFile};
pub use file::{FileHolder, RepositoryFileError};
pub(crate) use file_limit::check_file_limit;
pub(crate) use quad::set_quad;
pub use region::MemoryError;
pub(crate) use region::{Access, Protection, Region};

/// Bytes of one word, the unit of all region access.
pub(crate) const WORD: usize = size_of::<u64>();
/// Bytes of one cache line.
pub(crate) const LINE: usize = 64;

/// A range of bytes of a region; both numbers are multiples of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    /// Its offset, bytes from the start of the region.
    pub(crate) offset: usize,
    /// Its length, bytes.
    pub(crate) len: usize,
}
