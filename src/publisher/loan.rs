use std::io;

use super::PublishError;
use super::state::StatePublisher;
use crate::id::Sequence;
use crate::payload::Raw;
use crate::repository::state::StagedValue;

/// Room for the next value, lent to the application by [`StatePublisher::loan`]: what is appended goes straight
/// into the repository's idle slot. The newest value stays readable beside it. Dropping the loan publishes nothing.
#[derive(Debug)]
#[must_use = "a loan that is not committed publishes nothing"]
pub struct Loan<'a> {
    pub(super) staged: StagedValue<'a>,
    pub(super) rest: LoanRest<'a>,
}
