//! Waiting on file descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

#[cfg(feature = "verbs")]
use rustix::event::epoll;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::error::FabricError;
use super::one_sided::{Completion, RemoteRead};
use crate::clock::Clock;
use crate::memory::ByteRange;

/// The longest wait for a read before the deadline is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Pause between polls of a read without a wait handle.
const PAUSE: Duration = Duration::from_micros(50);

/// Waits until one of the first handles is readable, one of the second writable, any is closed or broken, or the timeout
/// expires.
pub(crate) fn wait(
    readable: &[BorrowedFd<'_>],
    writable: &[BorrowedFd<'_>],
    timeout: Duration,
) -> Result<(), FabricError> {
    let reads = readable.iter().map(|handle| PollFd::from_borrowed_fd(*handle, PollFlags::IN));
    let writes = writable.iter().map(|handle| PollFd::from_borrowed_fd(*handle, PollFlags::OUT));
    let mut polled: Vec<PollFd<'_>> = reads.chain(writes).collect();
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(FabricError::system("wait for peers")(errno)),
    }
}

/// Returns a handle that is readable when any of these is.
#[cfg(feature = "verbs")]
pub(super) fn together(handles: &[BorrowedFd<'_>]) -> Result<OwnedFd, FabricError> {
    let failed = FabricError::system("wait for several handles");
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?;
    for handle in handles {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&set, handle, data, epoll::EventFlags::IN).map_err(&failed)?;
    }
    Ok(set)
}

/// Reads one range of a peer's region, and waits for up to `timeout_ns`; then returns [`Completion::Pending`]. Not for use
/// while a batch is in flight.
pub(crate) fn read_now(
    remote: &mut dyn RemoteRead,
    range: ByteRange,
    clock: &dyn Clock,
    timeout_ns: u64,
) -> Result<Completion, FabricError> {
    let completion = remote.post(&[range])?;
    finish(remote, completion, clock, timeout_ns)
}

/// Waits for a batch of reads to complete, like [`read_now`].
pub(crate) fn finish(
    remote: &mut dyn RemoteRead,
    mut completion: Completion,
    clock: &dyn Clock,
    timeout_ns: u64,
) -> Result<Completion, FabricError> {
    let deadline_ns = clock.monotonic_ns().saturating_add(timeout_ns);
    while completion == Completion::Pending && clock.monotonic_ns() < deadline_ns {
        // If the system refuses to wait, the batch is still in flight: only polling it may fail.
        let handle = remote.wait_handle().ok().flatten();
        let has_waited = handle.is_some_and(|handle| wait(&[handle], &[], CHECK_INTERVAL).is_ok());
        completion = remote.poll()?;
        if completion == Completion::Pending && !has_waited {
            clock.pause(PAUSE);
        }
    }
    Ok(completion)
}

/// Wakes another thread from its wait.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
}

impl Waker {
    /// Creates an unused waker.
    pub(crate) fn new() -> Result<Self, FabricError> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self { event: event.map_err(FabricError::system("make an event"))? })
    }

    /// Makes the handle readable until [`Self::reset`].
    pub(crate) fn wake(&self) {
        // It fails only if the counter is full, and then the handle is readable anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_le_bytes());
    }

    /// Makes the handle unreadable.
    pub(crate) fn reset(&self) {
        // It fails only if `wake` was not called, and then there is nothing to reset.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Readable after [`Self::wake`].
    pub(crate) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn a_wait_ends_by_a_waker_or_by_time() {
        let waker = Waker::new().unwrap();
        let start = SystemClock.monotonic_ns();
        wait(&[waker.wait_handle()], &[], Duration::from_millis(5)).unwrap();
        assert!(SystemClock.monotonic_ns() - start >= 5_000_000);
        waker.wake();
        waker.wake();
        wait(&[waker.wait_handle()], &[], Duration::from_secs(60)).unwrap();
        waker.reset();
        wait(&[waker.wait_handle()], &[], Duration::from_millis(1)).unwrap();
        assert!(SystemClock.monotonic_ns() - start < 30_000_000_000);
    }
}
