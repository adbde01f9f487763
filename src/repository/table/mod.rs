//! The repository of a table topic: the newest value of each key, in cells (see [`crate::layout::table`]).

mod arbiter;
mod directory;
mod entry;
mod interest;
mod reader;
mod recalled;
mod recovery;
mod scan;
mod snapshot;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use entry::CellMemory;
pub(crate) use interest::Interest;
pub(crate) use reader::{Looked, TableReader};
pub(crate) use scan::Scan;
pub(crate) use snapshot::{SnapshotEntry, SnapshotScan};
pub(crate) use writer::{TableCommit, TableWriter, Unplaced};

/// The kind of a topic that holds the newest value of each key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TableTopic;
