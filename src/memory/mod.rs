//! Registered memory: regions of whole pages that other processes, or a device, may read or write at any time.
//!
//! A [`Region`] is a mapping of a memory file (`memfd`), so that it can be handed to another process, and
//! registered with an RDMA device at once. Nothing outside this module touches region memory: there are no
//! references into it, only bounded word access and bounded copies, all of them atomic per aligned 64-bit word
//! and, but for the named exceptions, relaxed. A copy may tear between words; it is the reader's business to
//! find that out.
//!
//! This module holds the crate's only pointer arithmetic.

#![expect(unsafe_code, reason = "mappings and the word access to them are raw memory by nature")]

mod copy;
mod region;
mod shortage;

pub(crate) use copy::set_quad;
pub use region::MemoryError;
pub(crate) use region::{Access, Protection, Region};
pub(crate) use shortage::remedy;

/// Bytes of one word, the unit of all region access.
pub(crate) const WORD: usize = size_of::<u64>();
/// Bytes of one cache line.
pub(crate) const LINE: usize = 64;

/// A run of bytes of a region; both numbers are multiples of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    /// Where it begins, bytes from the start of the region.
    pub(crate) offset: usize,
    /// How long it is, bytes.
    pub(crate) len: usize,
}
