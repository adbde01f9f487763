//! The repository of a state topic: the newest value, in a ring of slots (see [`crate::layout::state`]).

mod arbiter;
#[cfg(test)]
pub(crate) mod forgery;
#[cfg(loom)]
#[expect(clippy::unwrap_used, reason = "a model fails by a panic, as a test does")]
pub mod models;
mod reader;
mod recovery;
mod staged;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use reader::StateReader;
pub(crate) use staged::StagedValue;
pub(crate) use writer::{Committed, StateWriter};

/// The kind of a topic that holds its newest value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StateTopic;
