//! Local truth: for each kind of topic, a writer that owns the repository's memory, and a reader that accepts
//! only what it has checked. No network: where bytes come from is the caller's business.

pub(crate) mod log;
pub(crate) mod state;

mod reader;

pub use reader::SubscriberStats;
pub(crate) use reader::{Fetch, Finding, LossReason, Lost, ReadFailure, Reader, Taken, Verified, WriteOrder};

/// A payload that is longer than the topic's declared maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong {
    /// Its length, bytes, as far as it is known.
    pub(crate) len: usize,
    /// The declared maximum, bytes.
    pub(crate) max: usize,
}
