//! The repository of a log topic: ordered records in a ring of bytes (see [`crate::layout::log`]).

mod arbiter;
#[cfg(loom)]
#[expect(clippy::unwrap_used, reason = "a model fails by a panic, as a test does")]
pub mod models;
mod places;
mod reader;
mod recovery;
mod staged;
mod start;
mod writer;

#[cfg(test)]
mod tests;

pub use start::LogStart;

pub(crate) use places::{end_between, first_place_of, head, next_end, place_behind, place_between, place_of};
pub(crate) use reader::{LogReader, Viewed};
pub(crate) use staged::StagedRecord;
pub(crate) use writer::{Appended, LogWriter};

/// The kind of a topic that holds ordered records, all of which count.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LogTopic;
