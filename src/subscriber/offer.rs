use super::{ReceiveError, Sample};
use crate::id::Meta;
use crate::repository::Verdict;

/// A value that a line offered.
pub(crate) struct Offer<V> {
    pub(super) verdict: Verdict,
    pub(super) meta: Meta,
    /// More on a change of a table: its number.
    pub(super) number: u64,
    /// The bytes of its key.
    pub(super) key_len: usize,
    /// `None` of a duplicate.
    pub(super) value: Option<Result<Sample<V>, ReceiveError>>,
}
