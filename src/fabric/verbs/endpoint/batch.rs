use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::tracker::BatchTracker;
use super::{Endpoint, EndpointState, Work};
use crate::fabric::FabricError;
use crate::fabric::verbs::error::{Failure, VerbsError};
use crate::fabric::verbs::sys::{MemoryRegion, Operation, SendChain, SendRequest};
use crate::fabric::verbs::work::BatchId;
use crate::limits::verbs::{SENDS_RESERVED, SIGNAL_LEN};
use crate::sync::atomic::Ordering;

/// The result of posting a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum Posted {
    /// Posted.
    Yes,
    /// The send queue is full at the moment.
    NoRoom,
}

/// One-sided operations.
impl Endpoint {
    /// Posts a batch of operations, in order, which use this local memory.
    pub(in crate::fabric::verbs) fn post<'a>(
        &self,
        tracker: &Arc<BatchTracker>,
        region: &Arc<MemoryRegion>,
        operations: impl Iterator<Item = Operation<'a>> + Clone,
    ) -> Result<Posted, FabricError> {
        let requests = operations.clone().count();
        let max = self.batch_len_max();
        let too_long = || VerbsError::BatchTooLong { requests, max };
        let needed = u32::try_from(requests).ok().filter(|needed| *needed <= max).ok_or_else(too_long)?;
        let mut state = self.state.lock();
        if let Some(failure) = state.failure {
            return Err(failure.into());
        }
        if state.is_closed || tracker.revoked.load(Ordering::Relaxed) {
            return Err(FabricError::Closed);
        }
        if state.work.free_len() < needed + SENDS_RESERVED {
            self.poll_sends(&mut state);
        }
        if state.is_draining || state.work.free_len() < needed + SENDS_RESERVED {
            return Ok(Posted::NoRoom);
        }
        let work = Work::OneSided { tracker: Arc::clone(tracker), _region: Arc::clone(region) };
        let Some(id) = state.work.begin(needed, work) else { return Ok(Posted::NoRoom) };
        tracker.batches.fetch_add(1, Ordering::Relaxed);
        let immediate = state.wakes.immediate(tracker);
        let posted = self.post_chains(&mut state, (id, immediate), needed, operations)?;
        if posted == Posted::Yes {
            state.wakes.posted(tracker, immediate.is_some());
        }
        Ok(posted)
    }

    /// Posts these operations. The last one is a write if there is a number with which it wakes the peer.
    fn post_chains<'a>(
        &self,
        state: &mut EndpointState,
        (id, immediate): (BatchId, Option<u32>),
        requests: u32,
        operations: impl Iterator<Item = Operation<'a>>,
    ) -> Result<Posted, FabricError> {
        let (mut chain, mut is_begun) = (SendChain::default(), false);
        let (mut unsignaled_len, mut longest, mut completions) = (0, 0, 0);
        for (operation, number) in operations.zip(1..) {
            let is_last = number == requests;
            unsignaled_len += operation.len();
            longest = longest.max(operation.len());
            let signaled = is_last || unsignaled_len >= SIGNAL_LEN;
            if signaled {
                (unsignaled_len, completions) = (0, completions + 1);
            }
            let request = SendRequest { wr_id: id.request(is_last), operation, signaled };
            match immediate.filter(|_| is_last) {
                Some(immediate) => chain.push_with_immediate(&request, immediate),
                None => chain.push(&request),
            }
            if !chain.is_full() && !is_last {
                continue;
            }
            if let Err(refused) = self.queue_pair.post_send(&mut chain) {
                if is_begun || refused.posted > 0 {
                    // The last one, which would complete it, was not posted.
                    state.work.abandon(id);
                    self.fail_locked(state, Failure::PartlyPosted);
                    return Err(refused.error.into());
                }
                state.cancel(id);
                let is_full = refused.is_full();
                return if is_full { Ok(Posted::NoRoom) } else { Err(refused.error.into()) };
            }
            chain.clear();
            is_begun = true;
        }
        state.long.post(longest, completions);
        Ok(Posted::Yes)
    }

    /// Returns the number of incomplete batches of a tracker.
    pub(in crate::fabric::verbs) fn under_way(&self, tracker: &BatchTracker) -> Result<usize, FabricError> {
        let mut state = self.state.lock();
        tracker.end_wait();
        self.poll_sends(&mut state);
        // The queue may have been full when they were to be sent.
        self.send_wakes_locked(&mut state);
        let batches = usize::try_from(tracker.batches.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        match state.failure {
            Some(failure) if batches > 0 || tracker.failed.load(Ordering::Relaxed) => Err(failure.into()),
            _ => Ok(batches),
        }
    }

    /// Refuses new batches of a tracker, and returns whether none is in flight.
    pub(in crate::fabric::verbs) fn revoke(&self, tracker: &Arc<BatchTracker>) -> bool {
        let mut state = self.state.lock();
        tracker.revoked.store(true, Ordering::Relaxed);
        self.poll_sends(&mut state);
        state.end_waking(tracker) && tracker.batches.load(Ordering::Relaxed) == 0
    }

    /// Returns a handle that becomes readable when a batch of this tracker may be complete, or another one can be posted. `None`
    /// if there is nothing to wait for, or no wake-up is possible.
    pub(in crate::fabric::verbs) fn wait_for<'a>(
        &self,
        tracker: &'a BatchTracker,
    ) -> Result<Option<BorrowedFd<'a>>, FabricError> {
        let Some(channel) = &self.send_channel else { return Ok(None) };
        let waiter = tracker.waiter(channel)?;
        let mut state = self.state.lock();
        tracker.waits.store(true, Ordering::Relaxed);
        // The event taken here may be another owner's: its completions are polled right after.
        channel.drain()?;
        self.send_queue.arm()?;
        self.poll_sends(&mut state);
        if tracker.batches.load(Ordering::Relaxed) == 0 || state.failure.is_some() {
            tracker.end_wait();
            return Ok(None);
        }
        Ok(Some(waiter.handle.as_fd()))
    }
}

/// Emulated devices complete work as fast as their queues are filled.
#[cfg(test)]
impl Endpoint {
    /// Occupies the whole queue.
    pub(in crate::fabric::verbs) fn occupy(&self) -> BatchId {
        let mut state = self.state.lock();
        let room = state.work.free_len();
        state.work.begin(room, Work::Frame { buffer: None }).expect("it has room")
    }

    /// Frees it.
    pub(in crate::fabric::verbs) fn vacate(&self, id: BatchId) {
        let cancelled = self.state.lock().work.cancel(id);
        assert!(cancelled.is_some(), "it is occupied");
    }
}
