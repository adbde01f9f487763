use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use crate::fabric::verbs::sys::CompletionChannel;
use crate::fabric::wait::together;
use crate::fabric::{FabricError, Waker};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Set with a token, which may be 0.
const WAKES: u64 = 1 << 32;

/// The state of one owner's one-sided operations. Accessed only under the endpoint's lock.
#[derive(Debug, Default)]
pub(in crate::fabric::verbs) struct BatchTracker {
    /// Incomplete batches.
    pub(super) batches: AtomicU64,
    /// A batch failed.
    pub(super) failed: AtomicBool,
    /// New batches are refused.
    pub(super) revoked: AtomicBool,
    /// The number with which each batch wakes the peer, and [`WAKES`]; 0 if it does not.
    token: AtomicU64,
    /// A batch was posted whose wake-up was not sent.
    pub(super) owes: AtomicBool,
    /// It is among those for which the endpoint may owe a wake-up.
    pub(super) is_owing: AtomicBool,
    /// Wake-ups in flight that were sent by themselves.
    pub(super) wakes: AtomicU64,
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
    /// The number with which each batch wakes the peer.
    #[inline]
    pub(super) fn token(&self) -> Option<u32> {
        let token = self.token.load(Ordering::Relaxed);
        u32::try_from(token & !WAKES).ok().filter(|_| token & WAKES != 0)
    }

    pub(super) fn set_token(&self, token: u32) {
        self.token.store(u64::from(token) | WAKES, Ordering::Relaxed);
    }

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
