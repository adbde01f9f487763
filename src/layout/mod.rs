//! Byte formats of repository regions and of notice datagrams: the offset of each field, and the encoding of
//! headers and slots.
//!
//! This module knows no transport. All data is little-endian, consists of 64-bit words, and is parsed from a private
//! copy. A region begins with a static header, a hot line and the counters; the rest depends on the kind of
//! topic.
//!
//! ```text
//! 0x000  static header  identity and geometry, never changes         (header)
//! 0x080  hot line       newest sequence, heartbeat                   (header)
//! 0x0c0  clock line     how times follow from the host's monotonic clock   (clock)
//! 0x100  counters       32 described lines of 64 bytes               (module metrics)
//! 0x900  slots          state: a ring of slots                       (state)
//!        records        log: an index, then a ring of framed records (log)
//!        cells          table: pages, versions, cells (table)
//! ```

pub(crate) mod clock;
pub(crate) mod description;
mod geometry;
pub(crate) mod header;
pub(crate) mod log;
pub(crate) mod notice;
mod numbers;
pub(crate) mod progress;
pub(crate) mod state;
pub(crate) mod table;

pub(crate) use crate::memory::{ByteRange, LINE, WORD};
pub(crate) use geometry::Geometry;
pub(crate) use numbers::GeometryNumbers;
pub use numbers::{Fact, GeometryError};

/// The low and the high half of a word.
pub(crate) fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// Joins the low and the high half of a word.
pub(crate) fn joined(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}
