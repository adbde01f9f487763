//! What messages say of topics by kind: the shape of their memory, and where a subscriber begins.

use serde::{Deserialize, Serialize};

use crate::layout::GeometryNumbers;

/// Where a subscriber of a log begins. The publisher writes the landing region from there on; a subscriber by pull finds the place
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Start {
    /// With the oldest record that is left.
    Earliest,
    /// With the next record that is published.
    Newest,
    /// With the record of this sequence.
    At(u64),
    /// So many records before the next one.
    Back(u64),
}

/// The shape of a repository, as the publisher states it. Only carried here: who maps the region checks that
/// the numbers agree with each other and with the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GeometryWire {
    /// Slots.
    pub(crate) slot_count: u32,
    /// From one slot to the next, bytes.
    pub(crate) slot_stride: u64,
    /// Largest payload, bytes.
    pub(crate) payload_len_max: u64,
    /// The whole region, bytes.
    pub(crate) region_len: u64,
}

impl From<GeometryNumbers> for GeometryWire {
    fn from(numbers: GeometryNumbers) -> Self {
        let GeometryNumbers { slot_count, slot_stride, payload_len_max, region_len } = numbers;
        Self { slot_count, slot_stride, payload_len_max, region_len }
    }
}

impl From<GeometryWire> for GeometryNumbers {
    fn from(wire: GeometryWire) -> Self {
        let GeometryWire { slot_count, slot_stride, payload_len_max, region_len } = wire;
        Self { slot_count, slot_stride, payload_len_max, region_len }
    }
}
