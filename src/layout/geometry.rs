//! Where things stand in a region, whatever its kind.

use serde::{Deserialize, Serialize};

use super::header::{PARAMETERS, StaticHeader};
use super::log::LogGeometry;
use super::state::StateGeometry;
use crate::id::{Epoch, Kind, TopicId};
use crate::limits;
use crate::memory::Region;

/// The geometry of a region of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Geometry {
    /// A ring of slots.
    State(StateGeometry),
    /// A ring of framed records, of which a slot is a segment.
    Log(LogGeometry),
}

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

impl Geometry {
    /// The geometry that these numbers describe: addresses are computed from it, and from nothing else.
    pub(crate) fn new(kind: Kind, numbers: &GeometryNumbers) -> Result<Self, GeometryError> {
        let payload_len_max = numbers.payload_len_max as usize;
        let geometry = match kind {
            Kind::State => Self::State(StateGeometry::of(numbers.parameters, payload_len_max)?),
            Kind::Log => Self::Log(LogGeometry::of(numbers.parameters, payload_len_max)?),
        };
        let stated = geometry.numbers();
        let mismatch = |field| Err(GeometryError::Mismatch { field });
        if numbers.parameters != stated.parameters {
            return mismatch("parameters");
        }
        if numbers.region_len != stated.region_len {
            return mismatch("region length");
        }
        Ok(geometry)
    }

    /// The geometry that a static header describes.
    pub(crate) fn of(header: &StaticHeader) -> Result<Self, GeometryError> {
        Self::new(header.kind, &header.numbers)
    }

    /// The numbers that describe it.
    pub(crate) fn numbers(&self) -> GeometryNumbers {
        let parameters = match self {
            Self::State(state) => state.parameters(),
            Self::Log(log) => log.parameters(),
        };
        GeometryNumbers {
            // It is at most `limits::PAYLOAD_LEN_MAX`.
            payload_len_max: u32::try_from(self.payload_len_max()).unwrap_or(u32::MAX),
            region_len: self.region_len() as u64,
            parameters,
        }
    }

    /// The static header of a region of this geometry.
    pub(crate) fn static_header(&self, epoch: Epoch, topic: TopicId, schema_hash: u64) -> StaticHeader {
        StaticHeader { kind: self.kind(), epoch, topic, schema_hash, numbers: self.numbers() }
    }

    /// What its parameters mean.
    pub(crate) fn facts(&self) -> Vec<Fact> {
        match self {
            Self::State(state) => state.facts().into(),
            Self::Log(log) => log.facts().into(),
        }
    }

    /// What the region's hot line says of what it holds at this moment.
    pub(crate) fn held(&self, memory: &Region) -> Vec<Fact> {
        match self {
            Self::State(_) => StateGeometry::held(memory).into(),
            Self::Log(log) => log.held(memory).into(),
        }
    }

    /// What the region holds.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::State(_) => Kind::State,
            Self::Log(_) => Kind::Log,
        }
    }

    /// Largest payload, bytes.
    #[inline]
    pub(crate) fn payload_len_max(&self) -> usize {
        match self {
            Self::State(state) => state.payload_len_max(),
            Self::Log(log) => log.payload_len_max(),
        }
    }

    /// Bytes of the region.
    pub(crate) fn region_len(&self) -> usize {
        match self {
            Self::State(state) => state.region_len(),
            Self::Log(log) => log.region_len(),
        }
    }

    /// Where the region says how far it is written, if its kind has that: see [`super::log`].
    pub(crate) fn end_offset(&self) -> Option<usize> {
        match self {
            Self::State(_) => None,
            Self::Log(_) => Some(super::log::HOT_END),
        }
    }

    /// The geometry of a state region, if it is one.
    pub(crate) fn state(&self) -> Option<StateGeometry> {
        match self {
            Self::State(state) => Some(*state),
            Self::Log(_) => None,
        }
    }

    /// The geometry of a log region, if it is one.
    pub(crate) fn log(&self) -> Option<LogGeometry> {
        match self {
            Self::State(_) => None,
            Self::Log(log) => Some(*log),
        }
    }
}

impl From<StateGeometry> for Geometry {
    fn from(state: StateGeometry) -> Self {
        Self::State(state)
    }
}

impl From<LogGeometry> for Geometry {
    fn from(log: LogGeometry) -> Self {
        Self::Log(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(geometry: impl Into<Geometry>) -> StaticHeader {
        geometry.into().static_header(Epoch::FIRST, TopicId::new(1), 2)
    }

    #[test]
    fn a_static_header_gives_the_geometry_back() {
        for (capacity, payload_len_max) in
            [(0, 0), (1, 1), (1 << 16, 100), (1000, 100_000), (1 << 20, 1 << 18)]
        {
            let log = LogGeometry::new(capacity, payload_len_max).unwrap();
            assert_eq!(Geometry::of(&header(log)), Ok(log.into()));
        }
        for (slot_count, payload_len_max) in [(2, 0), (8, 64), (64, 5000)] {
            let state = StateGeometry::new(slot_count, payload_len_max).unwrap();
            assert_eq!(Geometry::of(&header(state)), Ok(state.into()));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_together_are_not_a_geometry() {
        let wrong = |of: StaticHeader, change: &dyn Fn(&mut GeometryNumbers)| {
            let mut numbers = of.numbers;
            change(&mut numbers);
            StaticHeader { numbers, ..of }
        };
        let log = header(LogGeometry::new(1 << 16, 100).unwrap());
        let state = header(StateGeometry::new(8, 64).unwrap());
        let changes: [&dyn Fn(&mut GeometryNumbers); 9] = [
            &|it| it.parameters[0] = 7,
            &|it| it.parameters[0] = u64::MAX,
            &|it| it.parameters[1] = 0,
            &|it| it.parameters[1] += 128,
            &|it| it.parameters[1] = u64::MAX,
            &|it| it.parameters[3] = 1,
            &|it| it.region_len -= 1,
            &|it| it.region_len += 1,
            &|it| it.payload_len_max = u32::MAX,
        ];
        for of in [log, state] {
            assert!(changes.iter().all(|change| Geometry::of(&wrong(of, change)).is_err()), "{of:?}");
        }
        assert!(Geometry::of(&StaticHeader { kind: Kind::State, ..log }).is_err());
        assert!(Geometry::of(&StaticHeader { kind: Kind::Log, ..state }).is_err());
    }
}
