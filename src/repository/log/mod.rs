//! The repository of a log topic: ordered records in a ring of bytes (see [`crate::layout::log`]).

mod places;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use reader::{LogCounts, LogStart};

pub(crate) use places::{end_between, head, next_end, place_behind, place_between, place_of};
pub(crate) use reader::{Brought, Contradiction, LogFetch, LogReader, LossReason, Lost, Next, Record, Taken};
pub(crate) use writer::{Appended, LogWriter, RecordTooLong};
