//! The end of a session whose endpoint has failed.

use super::{Session, SessionEnd, SessionState};
use crate::fabric::verbs::endpoint::Endpoint;
use crate::fabric::verbs::error::Failure;
use crate::limits;

impl Session {
    /// Ends the session once its endpoint has failed. If the queue pair has only returned its work, a fault of the device may be the
    /// reason: its event, which the service thread takes, comes before or after that.
    pub(super) fn check_endpoint(&self, state: &mut SessionState, endpoint: &Endpoint, now_ns: u64) {
        if let (None, Some(failure)) = (&state.end, endpoint.failure()) {
            let until_ns = *state
                .fault_awaited_until_ns
                .get_or_insert_with(|| now_ns.saturating_add(limits::verbs::FAULT_AWAITED_NS));
            if failure == Failure::Flushed && now_ns < until_ns {
                return;
            }
            let failed = failure.error().map(|error| SessionEnd::Failed(Some(error.into())));
            self.end(state, failed.unwrap_or(SessionEnd::Closed));
        }
    }
}
