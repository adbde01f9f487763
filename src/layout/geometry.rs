//! The geometry of a region of any kind.

use super::header::StaticHeader;
use super::log::LogGeometry;
use super::numbers::{Fact, GeometryError, GeometryNumbers};
use super::state::StateGeometry;
use super::table::TableGeometry;
use crate::id::{Epoch, Kind, TopicId};
use crate::memory::Region;

/// The geometry of a region of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Geometry {
    /// A ring of slots.
    State(StateGeometry),
    /// A ring of framed records, of which a slot is a segment.
    Log(LogGeometry),
    /// Cells of keys.
    Table(TableGeometry),
}

impl Geometry {
    /// Derives the geometry from these numbers, the only source of addresses.
    pub(crate) fn new(kind: Kind, numbers: &GeometryNumbers) -> Result<Self, GeometryError> {
        let payload_len_max = numbers.payload_len_max as usize;
        let geometry = match kind {
            Kind::State => Self::State(StateGeometry::of(numbers.parameters, payload_len_max)?),
            Kind::Log => Self::Log(LogGeometry::of(numbers.parameters, payload_len_max)?),
            Kind::Table => Self::Table(TableGeometry::of(numbers.parameters, payload_len_max)?),
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

    /// Derives the geometry from a static header.
    pub(crate) fn of(header: &StaticHeader) -> Result<Self, GeometryError> {
        Self::new(header.kind, &header.numbers)
    }

    /// Returns the numbers that describe it.
    pub(crate) fn numbers(&self) -> GeometryNumbers {
        let parameters = match self {
            Self::State(state) => state.parameters(),
            Self::Log(log) => log.parameters(),
            Self::Table(table) => table.parameters(),
        };
        GeometryNumbers {
            // It is at most `limits::PAYLOAD_LEN_MAX`.
            payload_len_max: u32::try_from(self.payload_len_max()).unwrap_or(u32::MAX),
            region_len: self.region_len() as u64,
            parameters,
        }
    }

    /// Builds the static header of a region with this geometry.
    pub(crate) fn static_header(&self, epoch: Epoch, topic: TopicId, schema_hash: u64) -> StaticHeader {
        StaticHeader { kind: self.kind(), epoch, topic, schema_hash, numbers: self.numbers() }
    }

    /// Returns its parameters by name.
    pub(crate) fn facts(&self) -> Vec<Fact> {
        match self {
            Self::State(state) => state.facts().into(),
            Self::Log(log) => log.facts().into(),
            Self::Table(table) => table.facts().into(),
        }
    }

    /// Returns what the region's hot line reports about its current content.
    pub(crate) fn held(&self, memory: &Region) -> Vec<Fact> {
        match self {
            Self::State(_) => StateGeometry::held(memory).into(),
            Self::Log(log) => log.held(memory).into(),
            Self::Table(_) => TableGeometry::held(memory).into(),
        }
    }

    /// Returns what the region holds.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::State(_) => Kind::State,
            Self::Log(_) => Kind::Log,
            Self::Table(_) => Kind::Table,
        }
    }

    /// Returns the largest payload, bytes.
    #[inline]
    pub(crate) fn payload_len_max(&self) -> usize {
        match self {
            Self::State(state) => state.payload_len_max(),
            Self::Log(log) => log.payload_len_max(),
            Self::Table(table) => table.payload_len_max(),
        }
    }

    /// Returns the length of the region, bytes.
    pub(crate) fn region_len(&self) -> usize {
        match self {
            Self::State(state) => state.region_len(),
            Self::Log(log) => log.region_len(),
            Self::Table(table) => table.region_len(),
        }
    }

    /// Returns the offset of the word that reports how far the region is written, if its kind has one: see [`super::log`].
    pub(crate) fn end_offset(&self) -> Option<usize> {
        match self {
            Self::State(_) | Self::Table(_) => None,
            Self::Log(_) => Some(super::log::HOT_END),
        }
    }

    /// Returns the geometry of a state region, if it is one.
    pub(crate) fn state(&self) -> Option<StateGeometry> {
        match self {
            Self::State(state) => Some(*state),
            Self::Log(_) | Self::Table(_) => None,
        }
    }

    /// Returns the geometry of a log region, if it is one.
    pub(crate) fn log(&self) -> Option<LogGeometry> {
        match self {
            Self::Log(log) => Some(*log),
            Self::State(_) | Self::Table(_) => None,
        }
    }

    /// Returns the geometry of a table region, if it is one.
    pub(crate) fn table(&self) -> Option<TableGeometry> {
        match self {
            Self::Table(table) => Some(*table),
            Self::State(_) | Self::Log(_) => None,
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

impl From<TableGeometry> for Geometry {
    fn from(table: TableGeometry) -> Self {
        Self::Table(table)
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
        for (capacity, key_len_max, payload_len_max) in [(1, 0, 1), (512, 8, 73), (100_000, 1024, 5000)] {
            let table = TableGeometry::new(capacity, key_len_max, payload_len_max).unwrap();
            assert_eq!(Geometry::of(&header(table)), Ok(table.into()));
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
        let table = header(TableGeometry::new(8, 16, 64).unwrap());
        let changes: [&dyn Fn(&mut GeometryNumbers); 9] = [
            &|it| it.parameters[0] += 1,
            &|it| it.parameters[0] = u64::MAX,
            &|it| it.parameters[1] = 1 << 20,
            &|it| it.parameters[2] += 64,
            &|it| it.parameters[1] = u64::MAX,
            &|it| it.parameters[3] = 1,
            &|it| it.region_len -= 1,
            &|it| it.region_len += 1,
            &|it| it.payload_len_max = u32::MAX,
        ];
        for of in [log, state, table] {
            assert!(changes.iter().all(|change| Geometry::of(&wrong(of, change)).is_err()), "{of:?}");
        }
        assert!(Geometry::of(&StaticHeader { kind: Kind::State, ..log }).is_err());
        assert!(Geometry::of(&StaticHeader { kind: Kind::Log, ..state }).is_err());
    }
}
