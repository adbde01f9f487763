//! The wait handles of a simulated network.

use std::os::fd::BorrowedFd;

use crate::fabric::{FabricError, Interest, Poller, Waker};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The wait handle of a listener or of one end of a link. It is never writable, like that of a queue pair.
#[derive(Debug)]
pub(super) struct Readiness {
    waker: Waker,
    poller: Poller,
    is_ready: AtomicBool,
}

impl Readiness {
    /// An unreadable handle.
    pub(super) fn new() -> Result<Self, FabricError> {
        let (waker, poller) = (Waker::new()?, Poller::new()?);
        poller.watch(0, waker.wait_handle(), Some(Interest::Read))?;
        Ok(Self { waker, poller, is_ready: AtomicBool::new(false) })
    }

    /// Makes the handle readable, or unreadable.
    pub(super) fn set(&self, is_ready: bool) {
        match (self.is_ready.swap(is_ready, Ordering::Relaxed), is_ready) {
            (false, true) => self.waker.wake(),
            (true, false) => self.waker.reset(),
            (true, true) | (false, false) => {}
        }
    }

    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.poller.wait_handle()
    }
}
