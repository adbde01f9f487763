use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use crate::fabric::several::together;
use crate::fabric::verbs::sys::CompletionChannel;
use crate::fabric::{FabricError, Waker};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What has become of the one-sided operations of somebody. Everything is read and written under the endpoint's lock.
#[derive(Debug, Default)]
pub(in crate::fabric::verbs) struct Flight {
    /// Batches that are not complete.
    pub(super) batches: AtomicU64,
    /// One of them failed.
    pub(super) failed: AtomicBool,
    /// None may begin any more.
    pub(super) revoked: AtomicBool,
    /// Its owner waits for the end of a batch, or is about to.
    pub(super) waits: AtomicBool,
    /// Its owner was woken.
    woken: AtomicBool,
    /// What its owner waits with, from the first time on.
    waiter: OnceLock<Waiter>,
}

/// What wakes one owner.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Readable when one of these two is: the channel of sends, and the waker, which somebody else sets who takes the
    /// completion from the queue.
    pub(super) handle: OwnedFd,
    waker: Waker,
}

impl Flight {
    /// Takes note that a batch of it is complete.
    pub(super) fn land(&self) {
        self.batches.fetch_sub(1, Ordering::Relaxed);
        if self.waits.load(Ordering::Relaxed)
            && let Some(waiter) = self.waiter.get()
        {
            self.woken.store(true, Ordering::Relaxed);
            waiter.waker.wake();
        }
    }

    /// Takes note that its owner looks.
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
