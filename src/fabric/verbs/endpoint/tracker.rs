use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use crate::fabric::several::together;
use crate::fabric::verbs::sys::CompletionChannel;
use crate::fabric::{FabricError, Waker};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The state of one owner's one-sided operations. Accessed only under the endpoint's lock.
#[derive(Debug, Default)]
pub(in crate::fabric::verbs) struct BatchTracker {
    /// Incomplete batches.
    pub(super) batches: AtomicU64,
    /// A batch failed.
    pub(super) failed: AtomicBool,
    /// New batches are refused.
    pub(super) revoked: AtomicBool,
    /// The owner waits for a batch, or is about to.
    pub(super) waits: AtomicBool,
    /// The owner was woken.
    woken: AtomicBool,
    /// The owner's wait handle, created on first use.
    waiter: OnceLock<Waiter>,
}

/// Wakes one owner.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Readable when either is: the completion channel of sends, or the waker, set by a thread that polls the owner's
    /// completion.
    pub(super) handle: OwnedFd,
    waker: Waker,
}

impl BatchTracker {
    /// Counts one of its batches as complete.
    pub(super) fn land(&self) {
        self.batches.fetch_sub(1, Ordering::Relaxed);
        if self.waits.load(Ordering::Relaxed)
            && let Some(waiter) = self.waiter.get()
        {
            self.woken.store(true, Ordering::Relaxed);
            waiter.waker.wake();
        }
    }

    /// Resets the wake-up: the owner polls.
    pub(super) fn end_wait(&self) {
        self.waits.store(false, Ordering::Relaxed);
        if self.woken.swap(false, Ordering::Relaxed)
            && let Some(waiter) = self.waiter.get()
        {
            waiter.waker.reset();
        }
    }

    pub(super) fn waiter(&self, channel: &CompletionChannel) -> Result<&Waiter, FabricError> {
        if let Some(waiter) = self.waiter.get() {
            return Ok(waiter);
        }
        let waker = Waker::new()?;
        let handle = together(&[channel.as_fd(), waker.wait_handle()])?;
        Ok(self.waiter.get_or_init(|| Waiter { handle, waker }))
    }
}
