//! Numbers that describe a region, and the errors of impossible ones.

use serde::{Deserialize, Serialize};

use crate::limits;

/// Words of the static header whose meaning depends on the kind.
pub(crate) const PARAMETERS: usize = 4;

/// The numbers that describe a region, as in its static header and in a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GeometryNumbers {
    /// Largest payload, bytes.
    pub(crate) payload_len_max: u32,
    /// The whole region, bytes.
    pub(crate) region_len: u64,
    /// The parameters of its kind.
    pub(crate) parameters: [u64; PARAMETERS],
}

/// A named number that describes a repository of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fact {
    /// The name, such as `slot_count`. A name that ends with `_len` counts bytes.
    pub name: &'static str,
    /// The number.
    pub value: u64,
}

/// An error of an impossible geometry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// The number of slots is out of range.
    #[error(
        "invalid number of slots {found}: use a power of two from {min} to {max}",
        min = limits::SLOT_COUNT_MIN,
        max = limits::SLOT_COUNT_MAX
    )]
    SlotCount {
        /// The requested slots.
        found: u32,
    },
    /// The largest payload exceeds the limit.
    #[error("payloads of {found} bytes exceed the limit of {max}", max = limits::PAYLOAD_LEN_MAX)]
    PayloadLen {
        /// The requested bytes.
        found: usize,
    },
    /// The region would be too large.
    #[error(
        "{slot_count} slots of {payload_len_max} bytes make a region of more than {max} bytes: \
         use fewer slots or smaller payloads",
        max = limits::REGION_LEN_MAX
    )]
    RegionLen {
        /// The requested slots.
        slot_count: u32,
        /// The requested largest payload.
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
    /// The number of a table's cells is out of range.
    #[error("invalid capacity of {found} keys: use 1 to {max}", max = limits::TABLE_CAPACITY_MAX)]
    Cells {
        /// The requested cells.
        found: usize,
    },
    /// The longest key is out of range, or leaves no byte for a value.
    #[error(
        "keys of {found} bytes do not fit: use at most {max}, and less than the {payload_len_max} bytes of the largest key and value",
        max = limits::KEY_LEN_MAX
    )]
    KeyLen {
        /// The requested bytes.
        found: usize,
        /// The largest payload, bytes.
        payload_len_max: usize,
    },
    /// The region of a table would be too large.
    #[error(
        "{capacity} keys with entries of {payload_len_max} bytes make a region of more than {max} bytes: \
         use a smaller capacity or smaller values",
        max = limits::REGION_LEN_MAX
    )]
    TableLen {
        /// The requested keys.
        capacity: usize,
        /// The requested largest payload.
        payload_len_max: usize,
    },
    /// A repository's header contradicts the publisher's grant.
    #[error("the repository's header and the publisher's grant disagree on the {field}")]
    Mismatch {
        /// The field.
        field: &'static str,
    },
}
