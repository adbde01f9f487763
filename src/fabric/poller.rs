//! Waiting on many handles at a cost proportional to the ready ones.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::FabricError;

/// Handles reported by one wait; the next wait reports the others first.
const REPORTED_MAX: usize = 256;
/// What a refusal of the operating system keeps from being done.
const WAIT: &str = "wait for peers";

/// The handles that one thread waits on.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    watched: Mutex<BTreeMap<u64, Interest>>,
}

/// The events to wait for on a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Readable, closed or broken.
    Read,
    /// Readable, closed, broken or writable.
    ReadOrWrite,
    /// Readable, closed or broken, reported once. Watching it again asks for one more report; its handle may be closed, or another one.
    ReadOnce,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::ReadOrWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Self::ReadOnce => epoll::EventFlags::IN | epoll::EventFlags::ONESHOT,
        }
    }
}

impl Poller {
    /// Creates a poller without handles.
    pub(crate) fn new() -> Result<Self, FabricError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(FabricError::system(WAIT))?;
        Ok(Self { epoll, watched: Mutex::default() })
    }

    /// Sets the interest in the handle with this key, which must always be the same handle; `None` removes it, which is
    /// required before the handle is closed. Calls the system only if the interest changes. Another thread may wait meanwhile.
    pub(crate) fn watch(
        &self,
        key: u64,
        handle: BorrowedFd<'_>,
        interest: Option<Interest>,
    ) -> Result<(), FabricError> {
        let mut watched = self.watched.lock();
        let known = watched.get(&key).copied();
        let data = epoll::EventData::new_u64(key);
        match (known, interest) {
            (known, interest) if known == interest && interest != Some(Interest::ReadOnce) => return Ok(()),
            (_, None) => epoll::delete(&self.epoll, handle),
            (None, Some(interest)) => match epoll::add(&self.epoll, handle, data, interest.flags()) {
                // It was forgotten under another key, and is still open.
                Err(Errno::EXIST) => epoll::modify(&self.epoll, handle, data, interest.flags()),
                added => added,
            },
            (Some(_), Some(interest)) => match epoll::modify(&self.epoll, handle, data, interest.flags()) {
                // The handle before was closed.
                Err(Errno::NOENT) => epoll::add(&self.epoll, handle, data, interest.flags()),
                modified => modified,
            },
        }
        .map_err(FabricError::system(WAIT))?;
        match interest {
            None => watched.remove(&key),
            Some(interest) => watched.insert(key, interest),
        };
        Ok(())
    }

    /// Forgets a handle: it was closed, or what becomes of it concerns nobody until it is watched again.
    pub(crate) fn forget(&self, key: u64) {
        self.watched.lock().remove(&key);
    }

    /// Readable while a handle is ready.
    pub(crate) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Waits until a handle is ready or the time is over, rounded up to milliseconds. Adds the keys of the ready handles.
    pub(crate) fn wait(&self, timeout: Duration, ready: &mut BTreeSet<u64>) -> Result<(), FabricError> {
        let timeout =
            Duration::from_millis(timeout.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX));
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); REPORTED_MAX];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok((events, _)) => {
                ready.extend(events.iter().map(|event| event.data.u64()));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(FabricError::system(WAIT)(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Waker;

    #[test]
    fn ready_handles_are_reported_by_key_while_watched() {
        let poller = Poller::new().unwrap();
        let wakers = [(); 3].map(|()| Waker::new().unwrap());
        for (key, waker) in (0..).zip(&wakers) {
            poller.watch(key, waker.wait_handle(), Some(Interest::Read)).unwrap();
        }
        let ready = |poller: &Poller| {
            let mut ready = BTreeSet::new();
            poller.wait(Duration::ZERO, &mut ready).unwrap();
            ready.into_iter().collect::<Vec<_>>()
        };
        assert!(ready(&poller).is_empty());
        wakers[0].wake();
        wakers[2].wake();
        assert_eq!(ready(&poller), [0, 2]);
        wakers[0].reset();
        poller.watch(1, wakers[1].wait_handle(), Some(Interest::ReadOrWrite)).unwrap();
        assert_eq!(ready(&poller), [1, 2], "an event takes more");
        poller.watch(1, wakers[1].wait_handle(), None).unwrap();
        poller.watch(2, wakers[2].wait_handle(), None).unwrap();
        assert!(ready(&poller).is_empty());
    }
}
