//! Waiting on many handles, at a cost that follows those that are ready.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::FabricError;

/// Handles that are reported in one wait: the others are in the next one, before these again.
const REPORTED_MAX: usize = 256;

/// Handles that one thread waits for.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    watched: BTreeMap<u64, Interest>,
}

/// What a handle is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Until it is readable, closed or broken.
    Read,
    /// Until it takes more, too.
    ReadOrWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::ReadOrWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

impl Poller {
    /// Waits for nothing yet.
    pub(crate) fn new() -> Result<Self, FabricError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        Ok(Self { epoll, watched: BTreeMap::new() })
    }

    /// Waits for this from now on of the handle with this key, always the same one, or no longer for anything: that has to be
    /// said before it is closed. Calls the system if that is something else than before.
    pub(crate) fn watch(
        &mut self,
        key: u64,
        handle: BorrowedFd<'_>,
        interest: Option<Interest>,
    ) -> Result<(), FabricError> {
        let known = self.watched.get(&key).copied();
        let data = epoll::EventData::new_u64(key);
        match (known, interest) {
            (known, interest) if known == interest => return Ok(()),
            (_, None) => epoll::delete(&self.epoll, handle),
            (None, Some(interest)) => epoll::add(&self.epoll, handle, data, interest.flags()),
            (Some(_), Some(interest)) => epoll::modify(&self.epoll, handle, data, interest.flags()),
        }
        .map_err(failed)?;
        match interest {
            None => self.watched.remove(&key),
            Some(interest) => self.watched.insert(key, interest),
        };
        Ok(())
    }

    /// Waits until one of them is ready, or the time is over, rounded up to milliseconds. Adds the keys of those that are.
    pub(crate) fn wait(&mut self, timeout: Duration, ready: &mut BTreeSet<u64>) -> Result<(), FabricError> {
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
            Err(errno) => Err(failed(errno)),
        }
    }
}

fn failed(errno: Errno) -> FabricError {
    FabricError::System { what: "wait for peers", source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Waker;

    #[test]
    fn those_that_are_ready_are_told_by_their_keys_as_long_as_they_are_watched() {
        let mut poller = Poller::new().unwrap();
        let wakers = [(); 3].map(|()| Waker::new().unwrap());
        for (key, waker) in (0..).zip(&wakers) {
            poller.watch(key, waker.wait_handle(), Some(Interest::Read)).unwrap();
        }
        let ready = |poller: &mut Poller| {
            let mut ready = BTreeSet::new();
            poller.wait(Duration::ZERO, &mut ready).unwrap();
            ready.into_iter().collect::<Vec<_>>()
        };
        assert!(ready(&mut poller).is_empty());
        wakers[0].wake();
        wakers[2].wake();
        assert_eq!(ready(&mut poller), [0, 2]);
        wakers[0].reset();
        poller.watch(1, wakers[1].wait_handle(), Some(Interest::ReadOrWrite)).unwrap();
        assert_eq!(ready(&mut poller), [1, 2], "an event takes more");
        poller.watch(1, wakers[1].wait_handle(), None).unwrap();
        poller.watch(2, wakers[2].wait_handle(), None).unwrap();
        assert!(ready(&mut poller).is_empty());
    }
}
