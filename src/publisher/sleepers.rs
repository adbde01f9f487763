use std::sync::Arc;

use crate::fabric::RemoteWaker;
use crate::notice::{WAKE_SLOTS, WakeWord};

/// Subscribers that a publish wakes through their sockets; the node's thread wakes the others.
const WOKEN_AT_ONCE: usize = 4;

/// The subscribers of a topic on this host that may wait: at its wake word, or at sockets.
#[derive(Clone, Debug)]
pub(super) struct Sleepers {
    wake_word: WakeWord,
    waiters: Vec<SocketWaiter>,
}

/// A subscriber that waits at a socket.
#[derive(Clone, Debug)]
struct SocketWaiter {
    /// The slot of the wake word in which it says that it waits.
    slot: u32,
    waker: Arc<dyn RemoteWaker>,
    token: u32,
}

impl Sleepers {
    /// Nobody waits at a socket yet.
    pub(super) fn new(wake_word: WakeWord) -> Self {
        Self { wake_word, waiters: Vec::new() }
    }

    /// Adds a subscriber that waits at a socket, and returns its slot. `None` if all are taken.
    pub(super) fn add(&mut self, waker: Arc<dyn RemoteWaker>, token: u32) -> Option<u32> {
        // The waiters are in the order of their slots: the first gap is free.
        let gap = |(slot, waiter): &(u32, &SocketWaiter)| waiter.slot != *slot;
        let index = (0..).zip(&self.waiters).find(gap).map_or(self.waiters.len(), |(slot, _)| slot as usize);
        let slot = u32::try_from(index).ok().filter(|slot| *slot < WAKE_SLOTS)?;
        self.wake_word.disarm(slot);
        self.waiters.insert(index, SocketWaiter { slot, waker, token });
        Some(slot)
    }

    /// Removes the subscriber of this slot.
    pub(super) fn remove(&mut self, slot: u32) {
        self.waiters.retain(|waiter| waiter.slot != slot);
    }

    /// Wakes all that wait, except those at sockets beyond the first few: true if there may be such, for [`Self::wake_others`]. Makes a
    /// system call only if somebody may wait.
    #[inline]
    pub(super) fn wake(&self) -> bool {
        self.wake_word.wake() && !self.waiters.is_empty() && self.wake_up_to(WOKEN_AT_ONCE)
    }

    /// Wakes those at sockets that [`Self::wake`] has left.
    pub(super) fn wake_others(&self) {
        self.wake_up_to(usize::MAX);
    }

    /// Wakes so many of those that wait at sockets. Whether it stopped there.
    #[cold]
    fn wake_up_to(&self, count_max: usize) -> bool {
        let mut count = 0;
        for SocketWaiter { slot, waker, token } in &self.waiters {
            if count == count_max {
                return true;
            }
            if self.wake_word.disarm(*slot) {
                // A full socket wakes its owner, which then looks everywhere; a closed one has none.
                waker.wake(*token);
                count += 1;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::fabric::Wake;
    use crate::memory::{Protection, Region};
    use crate::notice::WAKE_WORD_LEN;

    /// Keeps the tokens.
    #[derive(Debug, Default)]
    struct Woken(Mutex<Vec<u32>>);

    impl RemoteWaker for Woken {
        fn wake(&self, token: u32) -> Wake {
            self.0.lock().push(token);
            Wake::Done
        }
    }

    fn sleepers() -> (Sleepers, WakeWord, Arc<Woken>) {
        let memory = Arc::new(Region::allocate(WAKE_WORD_LEN, Protection::PeersWrite).unwrap());
        let wake_word = WakeWord::of_publisher(Arc::clone(&memory));
        (Sleepers::new(wake_word), WakeWord::new(memory), Arc::default())
    }

    #[test]
    fn each_armed_waiter_is_woken_once() {
        let (mut sleepers, wake_word, woken) = sleepers();
        for token in 10..20 {
            assert_eq!(sleepers.add(Arc::<Woken>::clone(&woken), token), Some(token - 10));
        }
        let take = || std::mem::take(&mut *woken.0.lock());
        assert!(!sleepers.wake() && take().is_empty(), "nobody waits");
        [1, 7].into_iter().for_each(|slot| wake_word.arm(slot));
        assert!(!sleepers.wake());
        assert_eq!(take(), [11, 17]);
        assert!(!sleepers.wake() && take().is_empty(), "they were woken");
        (0..10).for_each(|slot| wake_word.arm(slot));
        assert!(sleepers.wake(), "more than a publish wakes");
        assert_eq!(take(), [10, 11, 12, 13]);
        sleepers.wake_others();
        assert_eq!(take(), [14, 15, 16, 17, 18, 19]);
    }

    #[test]
    fn slots_are_used_again_and_none_is_used_twice() {
        let (mut sleepers, wake_word, woken) = sleepers();
        let add = |sleepers: &mut Sleepers| sleepers.add(Arc::<Woken>::clone(&woken), 1);
        for slot in 0..WAKE_SLOTS {
            assert_eq!(add(&mut sleepers), Some(slot));
        }
        assert_eq!(add(&mut sleepers), None);
        sleepers.remove(5);
        // What an earlier owner has left there.
        wake_word.arm(5);
        assert_eq!(add(&mut sleepers), Some(5));
        assert!(!sleepers.wake() && woken.0.lock().is_empty());
        wake_word.arm(u32::MAX);
        assert!(!sleepers.wake());
    }
}
