use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use crate::fabric::FabricError;

/// Turns of a poll, so that a peer that wakes without end cannot keep the thread.
const TURNS_MAX: u32 = 64;

/// Why a task cannot wait. Requires the cargo feature `tokio`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AsyncError {
    /// Nothing would wake the task.
    #[error("no tokio runtime here: call this in a task, or while a guard of Runtime::enter exists")]
    NoRuntime,
    /// The runtime does not wait: it shuts down, or is out of descriptors.
    #[error("the tokio runtime does not wait for it")]
    Runtime {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The operating system refused.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// What has a descriptor that the runtime watches. Deregistered before it is dropped.
#[derive(Debug)]
pub(crate) struct Registered<T: AsFd>(AsyncFd<Watched<T>>);

/// Gives its descriptor by number, as the runtime wants it.
#[derive(Debug)]
struct Watched<T>(T);

impl<T: AsFd> Registered<T> {
    /// Registers it with the runtime of the present task.
    #[track_caller]
    pub(crate) fn new(of: T) -> Result<Self, AsyncError> {
        if Handle::try_current().is_err() {
            return Err(AsyncError::NoRuntime);
        }
        #[allow(
            deprecated,
            reason = "what replaces it, in recent versions, is unsafe: it wants the promise that the descriptor stays open and the \
                      same, which `Watched` keeps, as it owns what has it and never changes it"
        )]
        let watched = AsyncFd::with_interest(Watched(of), Interest::READABLE);
        watched.map(Self).map_err(|source| AsyncError::Runtime { source })
    }

    pub(crate) fn get(&self) -> &T {
        &self.0.get_ref().0
    }

    /// Waits until this check succeeds, which is made again whenever the descriptor has become readable. The check leaves nothing at the
    /// descriptor that it has seen: the runtime hears only of what comes after.
    pub(crate) fn poll_until<E: Into<AsyncError>>(
        &self,
        cx: &mut Context<'_>,
        mut check: impl FnMut(&T) -> Result<bool, E>,
    ) -> Poll<Result<(), AsyncError>> {
        for _ in 0..TURNS_MAX {
            if check(self.get()).map_err(Into::into)? {
                return Poll::Ready(Ok(()));
            }
            // Before the next check: what comes in between makes it readable again.
            ready!(self.poll_clear(cx))?;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits until the descriptor becomes readable after this was done.
    pub(crate) fn poll_after<E: Into<AsyncError>>(
        &self,
        cx: &mut Context<'_>,
        act: impl FnOnce(&T) -> Result<(), E>,
    ) -> Poll<Result<(), AsyncError>> {
        if let Poll::Ready(cleared) = self.poll_clear(cx) {
            cleared?;
        }
        act(self.get()).map_err(Into::into)?;
        let readable = ready!(self.0.poll_read_ready(cx));
        Poll::Ready(readable.map(drop).map_err(|source| AsyncError::Runtime { source }))
    }

    /// Waits until the descriptor is readable, and forgets that it was.
    fn poll_clear(&self, cx: &mut Context<'_>) -> Poll<Result<(), AsyncError>> {
        let readable = ready!(self.0.poll_read_ready(cx));
        readable.map_err(|source| AsyncError::Runtime { source })?.clear_ready();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsFd> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
