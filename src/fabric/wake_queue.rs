//! Notifies a thread which of its sources have changed.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{FabricError, Waker};
use crate::limits;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Entries that a queue holds without allocating.
const CAPACITY: usize = limits::TOPICS_MAX + 2 * limits::SESSIONS_MAX;

/// The keys of changed sources, queued by other threads.
#[derive(Debug)]
pub(crate) struct WakeQueue {
    waker: Waker,
    woken: Mutex<Vec<Arc<WakeEntry>>>,
}

/// Wakes a thread for one of its sources.
#[derive(Clone, Debug)]
pub(crate) struct KeyedWaker {
    queue: Arc<WakeQueue>,
    entry: Arc<WakeEntry>,
}

#[derive(Debug)]
struct WakeEntry {
    key: u64,
    is_queued: AtomicBool,
}

impl WakeQueue {
    /// Creates an empty queue.
    pub(crate) fn new() -> Result<Self, FabricError> {
        Self::with_capacity(CAPACITY)
    }

    /// Creates an empty queue that allocates beyond this many keys.
    pub(crate) fn with_capacity(capacity: usize) -> Result<Self, FabricError> {
        Ok(Self { waker: Waker::new()?, woken: Mutex::new(Vec::with_capacity(capacity)) })
    }

    /// Returns a waker for the source with this key.
    pub(crate) fn keyed(self: &Arc<Self>, key: u64) -> KeyedWaker {
        let entry = Arc::new(WakeEntry { key, is_queued: AtomicBool::new(false) });
        KeyedWaker { queue: Arc::clone(self), entry }
    }

    /// Wakes the thread without a key.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Takes the queued keys.
    pub(crate) fn take(&self, into: &mut BTreeSet<u64>) {
        // First, so that a key added afterwards ends the next wait.
        self.waker.reset();
        for entry in self.woken.lock().drain(..) {
            // AcqRel: what happened before a `wake` that found the key queued is visible to the caller. Pairs with `KeyedWaker::wake`.
            entry.is_queued.swap(false, Ordering::AcqRel);
            into.insert(entry.key);
        }
    }

    /// Readable while the thread has been woken.
    pub(crate) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.waker.wait_handle()
    }
}

impl KeyedWaker {
    /// Queues the key and wakes the thread. Makes a system call unless the key is already queued; does not allocate.
    pub(crate) fn wake(&self) {
        // AcqRel: see `WakeQueue::take`.
        if !self.entry.is_queued.swap(true, Ordering::AcqRel) {
            self.queue.woken.lock().push(Arc::clone(&self.entry));
            self.queue.waker.wake();
        }
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> u64 {
        self.entry.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_once_however_often_it_was_queued() {
        let queue = Arc::new(WakeQueue::new().unwrap());
        let [one, other] = [7, 8].map(|key| queue.keyed(key));
        let take = || {
            let mut taken = BTreeSet::new();
            queue.take(&mut taken);
            taken.into_iter().collect::<Vec<_>>()
        };
        assert!(take().is_empty());
        (0..3).for_each(|_| one.wake());
        other.clone().wake();
        assert_eq!(queue.woken.lock().len(), 2);
        assert_eq!(take(), [7, 8]);
        assert!(take().is_empty());
        one.wake();
        assert_eq!(take(), [7]);
    }
}
