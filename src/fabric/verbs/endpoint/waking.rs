use std::sync::Arc;

use super::{BatchTracker, Endpoint, EndpointState, Work};
use crate::fabric::FabricError;
use crate::fabric::verbs::error::{Failure, VerbsError};
use crate::fabric::verbs::message::Malformed;
use crate::fabric::verbs::sys::{Operation, SendChain, SendRequest};
use crate::limits::verbs::FRAMES_RESERVED;
use crate::sync::atomic::Ordering;

/// Wake-ups of the peer.
impl Endpoint {
    /// From now on the batches of this tracker wake the peer with this token. One wake-up is for those before.
    pub(in crate::fabric::verbs) fn begin_waking(&self, tracker: &Arc<BatchTracker>, token: u32) {
        let mut state = self.state.lock();
        if state.failure.is_some() || tracker.revoked.load(Ordering::Relaxed) {
            return;
        }
        tracker.set_token(token);
        state.wakes.owe(tracker);
        self.send_wakes_locked(&mut state);
    }

    /// Adds the credits for wake-ups that a peer's frame returns.
    pub(in crate::fabric::verbs) fn credit_wakes(&self, credits: u16) -> Result<(), Malformed> {
        if credits == 0 {
            return Ok(());
        }
        self.state.lock().wakes.credit(credits)
    }

    /// Sends the wake-ups that are owed, as far as there are credits for them. Returns whether some are left that a completion lets send.
    pub(in crate::fabric::verbs) fn send_wakes(&self) -> bool {
        let mut state = self.state.lock();
        self.send_wakes_locked(&mut state);
        state.failure.is_none() && state.wakes.is_due()
    }

    pub(super) fn send_wakes_locked(&self, state: &mut EndpointState) {
        while state.failure.is_none() && state.wakes.is_due() {
            if state.work.free_len() <= FRAMES_RESERVED {
                self.poll_sends(state);
            }
            if state.work.free_len() <= FRAMES_RESERVED {
                return;
            }
            let Some((token, tracker)) = state.wakes.next() else { return };
            if let Err(error) = self.send_wake(state, token, &tracker) {
                tracing::debug!(target: "fabricast", %error, "a peer cannot be woken");
                return;
            }
        }
    }

    /// Sends a wake-up by itself: a write of nothing.
    fn send_wake(
        &self,
        state: &mut EndpointState,
        token: u32,
        tracker: &Arc<BatchTracker>,
    ) -> Result<(), FabricError> {
        let work = Work::Wake { tracker: Arc::clone(tracker) };
        let id = state.work.begin(1, work).ok_or(VerbsError::PartlyPosted)?;
        tracker.wakes.fetch_add(1, Ordering::Relaxed);
        let mut chain = SendChain::default();
        let request = SendRequest { wr_id: id.request(true), operation: Operation::Probe, signaled: true };
        chain.push_with_immediate(&request, token);
        self.queue_pair.post_send(&mut chain).map_err(|refused| {
            state.cancel(id);
            self.fail_locked(state, Failure::PartlyPosted);
            FabricError::from(refused.error)
        })?;
        state.long.post(0, 1);
        Ok(())
    }
}

impl EndpointState {
    /// Ends the wake-ups by this tracker's batches. Returns whether none is in flight.
    pub(super) fn end_waking(&mut self, tracker: &Arc<BatchTracker>) -> bool {
        self.wakes.forget(tracker);
        tracker.wakes.load(Ordering::Relaxed) == 0
    }
}
