use std::collections::VecDeque;
use std::sync::Arc;

use super::{BatchTracker, Endpoint, EndpointState, Work};
use crate::fabric::FabricError;
use crate::fabric::verbs::error::{Failure, VerbsError};
use crate::fabric::verbs::message::Malformed;
use crate::fabric::verbs::sys::{Operation, SendChain, SendRequest};
use crate::limits::verbs::{FRAMES_RESERVED, WAKE_RECEIVES};
use crate::sync::atomic::Ordering;

/// The wake-ups that an endpoint sends its peer.
///
/// Each takes one of the peer's receives, of which the credits are a count. A batch that is posted without credit *owes* its wake-up, which
/// is sent by itself once there is credit again. Batches to the same region share the wake-up that they owe.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct OutgoingWakes {
    credits: u16,
    /// The trackers of regions whose writes may owe a wake-up, each once.
    owing: VecDeque<Arc<BatchTracker>>,
}

impl OutgoingWakes {
    pub(in crate::fabric::verbs) fn new() -> Self {
        Self { credits: WAKE_RECEIVES, owing: VecDeque::new() }
    }

    /// The number with which the last write of the next batch wakes the peer, if it can.
    #[inline]
    pub(in crate::fabric::verbs) fn immediate(&self, tracker: &BatchTracker) -> Option<u32> {
        tracker.token().filter(|_| self.credits > 0)
    }

    /// Records a batch as posted, whose last write wakes the peer or not.
    #[inline]
    pub(in crate::fabric::verbs) fn posted(&mut self, tracker: &Arc<BatchTracker>, wakes: bool) {
        if wakes {
            self.credits -= 1;
            // It is behind all batches that owe one.
            tracker.owes.store(false, Ordering::Relaxed);
        } else if tracker.token().is_some() {
            self.owe(tracker);
        }
    }

    /// Owes a wake-up for what was posted until now.
    pub(in crate::fabric::verbs) fn owe(&mut self, tracker: &Arc<BatchTracker>) {
        tracker.owes.store(true, Ordering::Relaxed);
        if !tracker.is_owing.swap(true, Ordering::Relaxed) {
            self.owing.push_back(Arc::clone(tracker));
        }
    }

    /// Forgets what a region's writes owe: nothing is written to it any more.
    fn forget(&mut self, tracker: &Arc<BatchTracker>) {
        if tracker.is_owing.swap(false, Ordering::Relaxed) {
            self.owing.retain(|owing| !Arc::ptr_eq(owing, tracker));
        }
    }

    /// Takes the next wake-up to be sent by itself, with its credit: the number, and for which region.
    pub(in crate::fabric::verbs) fn next(&mut self) -> Option<(u32, Arc<BatchTracker>)> {
        while self.credits > 0 {
            let tracker = self.owing.pop_front()?;
            tracker.is_owing.store(false, Ordering::Relaxed);
            let token = tracker.token().filter(|_| tracker.owes.swap(false, Ordering::Relaxed));
            if let Some(token) = token {
                self.credits -= 1;
                return Some((token, tracker));
            }
        }
        None
    }

    /// Whether [`Self::next`] may return something.
    pub(in crate::fabric::verbs) fn is_due(&self) -> bool {
        self.credits > 0 && !self.owing.is_empty()
    }

    /// Adds the credits that a peer's frame returns.
    pub(in crate::fabric::verbs) fn credit(&mut self, credits: u16) -> Result<(), Malformed> {
        let sum = self.credits.saturating_add(credits);
        if sum > WAKE_RECEIVES {
            return Err(Malformed("it returns more credits for wake-ups than it owes"));
        }
        self.credits = sum;
        Ok(())
    }
}

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

    fn send_wakes_locked(&self, state: &mut EndpointState) {
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

#[cfg(test)]
mod tests;
