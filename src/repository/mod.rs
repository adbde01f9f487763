//! Repositories: for each kind of topic, a writer that owns the repository's memory, and a reader that accepts
//! only verified values. This module does no networking: the caller supplies the bytes.

pub(crate) mod feed;
pub(crate) mod log;
pub(crate) mod state;
pub(crate) mod table;

mod arbiter;
mod pieces;
mod reader;
mod recovery;
mod writer;

pub(crate) use arbiter::{Arbiter, Arrival, ChangedKey, GoneKey, Verdict};
pub use reader::SubscriberStats;
pub(crate) use reader::{
    DamagedEntry, Fetch, Finding, GrantedAt, LossReason, Lost, ReadFailure, Reader, Taken, Verified,
    WriteOrder,
};
pub(crate) use recovery::{Continued, Damage, Recover};
pub(crate) use writer::Writer;

/// A payload exceeds the topic's declared maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong {
    /// Its length in bytes, or a lower bound.
    pub(crate) len: usize,
    /// The declared maximum, bytes.
    pub(crate) max: usize,
}
