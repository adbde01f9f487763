//! Numbers that describe a region, and why they may be none of one.

use serde::{Deserialize, Serialize};

use crate::limits;

/// Words of the static header that describe what is particular to the kind.
pub(crate) const PARAMETERS: usize = 4;

/// The numbers that describe a region, as its static header and a grant have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GeometryNumbers {
    /// Largest payload, bytes.
    pub(crate) payload_len_max: u32,
    /// The whole region, bytes.
    pub(crate) region_len: u64,
    /// What else describes it, by its kind.
    pub(crate) parameters: [u64; PARAMETERS],
}

/// A number that describes a repository, beside those that repositories of every kind have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fact {
    /// What it is, as in `slot_count`. One that ends with `_len` counts bytes.
    pub name: &'static str,
    /// The number.
    pub value: u64,
}

/// Why numbers are not the geometry of a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// The number of slots is not one that a repository can have.
    #[error(
        "{found} slots are not possible: use a power of two from {min} to {max}",
        min = limits::SLOT_COUNT_MIN,
        max = limits::SLOT_COUNT_MAX
    )]
    SlotCount {
        /// Slots asked for.
        found: u32,
    },
    /// The largest payload is beyond the limit.
    #[error("payloads of {found} bytes are not possible: the limit is {max}", max = limits::PAYLOAD_LEN_MAX)]
    PayloadLen {
        /// Bytes asked for.
        found: usize,
    },
    /// The region would be too large.
    #[error(
        "{slot_count} slots of {payload_len_max} bytes make a region of more than {max} bytes: \
         use fewer slots or smaller payloads",
        max = limits::REGION_LEN_MAX
    )]
    RegionLen {
        /// Slots asked for.
        slot_count: u32,
        /// Largest payload asked for.
        payload_len_max: usize,
    },
    /// The region of a log would be too large.
    #[error(
        "a log of {capacity} bytes makes a region of more than {max} bytes: use a smaller capacity or smaller records",
        max = limits::REGION_LEN_MAX
    )]
    Capacity {
        /// Bytes of the ring.
        capacity: usize,
    },
    /// A region's header and what its publisher granted do not describe the same memory.
    #[error("the repository's header and the publisher's grant disagree on the {field}")]
    Mismatch {
        /// The field.
        field: &'static str,
    },
}
