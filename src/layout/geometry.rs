//! Where things stand in a region, whatever its kind.

use super::LINE;
use super::header::StaticLine;
use super::log::LogGeometry;
use super::state::{GeometryError, StateGeometry};
use crate::id::{Epoch, Kind, TopicId};

/// The geometry of a region of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Geometry {
    /// A ring of slots.
    State(StateGeometry),
    /// A ring of framed records, of which a slot is a segment.
    Log(LogGeometry),
}

/// The numbers that describe a region, as its static line or a grant has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GeometryNumbers {
    /// Slots.
    pub(crate) slot_count: u32,
    /// From one slot to the next, bytes.
    pub(crate) slot_stride: u64,
    /// Largest payload, bytes.
    pub(crate) payload_len_max: u64,
    /// The whole region, bytes.
    pub(crate) region_len: u64,
}

impl Geometry {
    /// The geometry that these numbers describe: addresses are computed from it, and from nothing else.
    pub(crate) fn new(kind: Kind, numbers: &GeometryNumbers) -> Result<Self, GeometryError> {
        let payload_len_max = usize::try_from(numbers.payload_len_max).unwrap_or(usize::MAX);
        let geometry = match kind {
            Kind::State => Self::State(StateGeometry::new(numbers.slot_count, payload_len_max)?),
            Kind::Log => {
                Self::Log(LogGeometry::of_segments(numbers.slot_count, numbers.slot_stride, payload_len_max)?)
            }
        };
        let stated = geometry.numbers();
        let mismatch = |field| Err(GeometryError::Mismatch { field });
        if numbers.slot_stride != stated.slot_stride {
            return mismatch("slot stride");
        }
        if numbers.region_len != stated.region_len {
            return mismatch("region length");
        }
        Ok(geometry)
    }

    /// The geometry that a static line describes.
    pub(crate) fn of(line: &StaticLine) -> Result<Self, GeometryError> {
        let numbers = GeometryNumbers {
            slot_count: line.slot_count,
            slot_stride: u64::from(line.slot_stride_lines) * LINE as u64,
            payload_len_max: line.payload_len_max.into(),
            region_len: line.region_len,
        };
        Self::new(line.kind, &numbers)
    }

    /// The numbers that describe it.
    pub(crate) fn numbers(&self) -> GeometryNumbers {
        let (slot_count, slot_stride) = match self {
            Self::State(state) => (state.slot_count(), state.slot_stride()),
            Self::Log(log) => (log.segment_count(), log.segment_len()),
        };
        GeometryNumbers {
            slot_count,
            slot_stride: slot_stride as u64,
            payload_len_max: self.payload_len_max() as u64,
            region_len: self.region_len() as u64,
        }
    }

    /// The static line of a region of this geometry.
    pub(crate) fn static_line(&self, epoch: Epoch, topic: TopicId, schema_hash: u64) -> StaticLine {
        let numbers = self.numbers();
        let fits = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        StaticLine {
            kind: self.kind(),
            slot_count: numbers.slot_count,
            slot_stride_lines: fits(numbers.slot_stride / LINE as u64),
            payload_len_max: fits(numbers.payload_len_max),
            epoch,
            topic,
            schema_hash,
            region_len: numbers.region_len,
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

    fn line(geometry: impl Into<Geometry>) -> StaticLine {
        geometry.into().static_line(Epoch::FIRST, TopicId::new(1), 2)
    }

    #[test]
    fn a_static_line_gives_the_geometry_back() {
        for (capacity, payload_len_max) in
            [(0, 0), (1, 1), (1 << 16, 100), (1000, 100_000), (1 << 20, 1 << 18)]
        {
            let geometry = Geometry::from(LogGeometry::new(capacity, payload_len_max).unwrap());
            assert_eq!(
                Geometry::of(&line(LogGeometry::new(capacity, payload_len_max).unwrap())),
                Ok(geometry)
            );
            assert_eq!(Geometry::new(Kind::Log, &geometry.numbers()), Ok(geometry));
        }
        for (slot_count, payload_len_max) in [(2, 0), (8, 64), (64, 5000)] {
            let state = StateGeometry::new(slot_count, payload_len_max).unwrap();
            assert_eq!(Geometry::of(&line(state)), Ok(state.into()));
        }
    }

    #[test]
    fn a_state_geometry_survives_its_static_line() {
        let geometry = StateGeometry::new(32, 1000).unwrap();
        let line = Geometry::from(geometry).static_line(Epoch::new(7).unwrap(), TopicId::new(8), 9);
        assert_eq!(Geometry::of(&line), Ok(geometry.into()));
        let longer = StaticLine { slot_stride_lines: line.slot_stride_lines + 2, ..line };
        assert_eq!(Geometry::of(&longer), Err(GeometryError::Mismatch { field: "slot stride" }));
        let shorter = StaticLine { region_len: line.region_len - 1, ..line };
        assert_eq!(Geometry::of(&shorter), Err(GeometryError::Mismatch { field: "region length" }));
    }

    #[test]
    fn numbers_that_do_not_fit_together_are_no_geometry() {
        let log = line(LogGeometry::new(1 << 16, 100).unwrap());
        let state = line(StateGeometry::new(8, 64).unwrap());
        let wrong = [
            StaticLine { kind: Kind::State, ..log },
            StaticLine { slot_count: 32, ..log },
            StaticLine { slot_stride_lines: 0, ..log },
            StaticLine { region_len: log.region_len - 1, ..log },
            StaticLine { region_len: log.region_len + 1, ..log },
            StaticLine { payload_len_max: u32::MAX, ..log },
            StaticLine { slot_stride_lines: u32::MAX, ..log },
            StaticLine { kind: Kind::Log, ..state },
            StaticLine { slot_count: 7, ..state },
            StaticLine { slot_stride_lines: 1, ..state },
            StaticLine { region_len: 0, ..state },
        ];
        assert!(wrong.iter().all(|line| Geometry::of(line).is_err()));
    }
}
