//! The wake sockets that peers on this host have sent.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::fabric::{RemoteWaker, part_of_descriptors};
use crate::limits;

/// Counts the sockets through which a node wakes the waiters of its peers. Each takes a descriptor; where peers want more than a part of
/// those that the process may have, their waiters look at their topics from time to time.
#[derive(Debug)]
pub(super) struct PeerWakers {
    open: Mutex<Vec<Weak<dyn RemoteWaker>>>,
    max: usize,
}

impl PeerWakers {
    /// As many as this process can afford.
    pub(super) fn affordable() -> Self {
        let bounds = limits::WAKE_SOCKETS_MIN..=limits::WAKE_SOCKETS_MAX;
        Self::with(part_of_descriptors(limits::WAKE_SOCKETS_PARTS, bounds))
    }

    fn with(max: usize) -> Self {
        Self { open: Mutex::default(), max }
    }

    /// Adds one that this makes, which may take long; `None` if there are enough, or it makes none.
    pub(super) fn add(
        &self,
        make: impl FnOnce() -> Option<Arc<dyn RemoteWaker>>,
    ) -> Option<Arc<dyn RemoteWaker>> {
        if !self.has_room(&mut self.open.lock()) {
            return None;
        }
        let waker = make()?;
        let mut open = self.open.lock();
        // Another thread may have added one meanwhile.
        self.has_room(&mut open).then(|| {
            open.push(Arc::downgrade(&waker));
            waker
        })
    }

    /// Whether there is room for one more, once those that are closed are dropped.
    fn has_room(&self, open: &mut Vec<Weak<dyn RemoteWaker>>) -> bool {
        if open.len() >= self.max {
            open.retain(|waker| waker.strong_count() > 0);
        }
        open.len() < self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{SocketWaker, WakeSocket};

    #[test]
    fn sockets_that_are_closed_make_room_for_others() {
        let wakers = PeerWakers::with(3);
        let make = || -> Option<Arc<dyn RemoteWaker>> {
            let (_, peer) = WakeSocket::pair().unwrap();
            Some(Arc::new(SocketWaker::new(peer).unwrap()))
        };
        let mut open: Vec<_> = (0..3).map(|_| wakers.add(make).unwrap()).collect();
        assert!(wakers.add(|| panic!("nothing is made without room for it")).is_none());
        drop(open.pop());
        assert!(wakers.add(|| None).is_none(), "its descriptor cannot be used");
        open.push(wakers.add(make).unwrap());
        assert!(wakers.add(make).is_none());
        open.clear();
        // However many came and went.
        assert!((0..100).all(|_| wakers.add(make).is_some()));
    }
}
