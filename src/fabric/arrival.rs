//! Wake-ups that come with the one-sided writes of a peer.
//!
//! The end that writes asks for them with an [`ArrivalAnnouncer`](super::ArrivalAnnouncer): each batch of writes to a region then wakes the
//! peer once it has arrived. The end that is written has an [`ArrivalSource`] for each connection, and an [`ArrivalSignal`] for each of
//! its regions: any thread that takes wake-ups from the source raises the signals of all that arrived.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::{FabricError, KeyedWaker, Waker};
use crate::clock::Clock;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The wake-ups that come over one connection.
pub(crate) trait ArrivalSource: Debug + Send + Sync {
    /// Returns the signal that wake-ups with this token raise, until it is dropped. At first it is raised.
    fn signal(&self, token: u32) -> Arc<ArrivalSignal>;

    /// Takes what has arrived, and raises the signals. Does not block.
    fn take(&self);

    /// Has the handle become readable when a signal may have to be raised: then call [`Self::take`]. Raises the signals of what
    /// has arrived until now. `None` if another thread raises all signals, or the connection is over.
    fn arm(&self) -> Result<Option<BorrowedFd<'_>>, FabricError>;

    /// Waits until this signal is raised, up to `timeout`, and lowers it. It may return earlier.
    fn wait(&self, signal: &ArrivalSignal, clock: &dyn Clock, timeout: Duration) -> Result<(), FabricError>;
}

/// Whether the peer has written to a region since its reader last checked.
#[derive(Debug)]
pub(crate) struct ArrivalSignal {
    is_raised: AtomicBool,
    /// Its reader waits for it, or is about to.
    is_awaited: AtomicBool,
    /// The number of signals of the same connection that are awaited.
    awaited: Arc<AtomicU64>,
    /// Wakes the waiter to which its reader belongs.
    watcher: Mutex<Option<KeyedWaker>>,
    /// Wakes a thread that waits for this signal only; made when one first does.
    waker: OnceLock<Waker>,
}

impl ArrivalSignal {
    fn new(awaited: &Arc<AtomicU64>) -> Self {
        Self {
            is_raised: AtomicBool::new(true),
            is_awaited: AtomicBool::new(false),
            awaited: Arc::clone(awaited),
            watcher: Mutex::default(),
            waker: OnceLock::new(),
        }
    }

    /// Whether it is raised. One load.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        // SeqCst: see `expect`.
        self.is_raised.load(Ordering::SeqCst)
    }

    /// Lowers it, and returns whether it was raised. Check the region after this.
    pub(crate) fn lower(&self) -> bool {
        self.set_awaited(false);
        // AcqRel: what was written before it was raised is visible now. Pairs with `raise`.
        self.is_raised.swap(false, Ordering::AcqRel)
    }

    /// Has it wake this when it is raised, until it is lowered. Check whether it is raised after this, and arm the source.
    pub(crate) fn expect(&self, watcher: Option<KeyedWaker>) {
        *self.watcher.lock() = watcher;
        // SeqCst: either `raise` sees that it is awaited, or the caller sees that it is raised. Pairs with the order there.
        self.set_awaited(true);
    }

    /// The same for the calling thread, at this handle.
    pub(crate) fn expect_here(&self) -> Result<BorrowedFd<'_>, FabricError> {
        let waker = match self.waker.get() {
            Some(waker) => waker,
            None => {
                let made = Waker::new()?;
                self.waker.get_or_init(|| made)
            }
        };
        waker.reset();
        self.expect(None);
        Ok(waker.wait_handle())
    }

    /// Raises it, and wakes whatever waits for it.
    pub(crate) fn raise(&self) {
        // SeqCst: see `expect`.
        self.is_raised.store(true, Ordering::SeqCst);
        if !self.set_awaited(false) {
            return;
        }
        if let Some(watcher) = &*self.watcher.lock() {
            return watcher.wake();
        }
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Returns whether it was awaited before.
    fn set_awaited(&self, is_awaited: bool) -> bool {
        let before = self.is_awaited.swap(is_awaited, Ordering::SeqCst);
        match (before, is_awaited) {
            (false, true) => drop(self.awaited.fetch_add(1, Ordering::SeqCst)),
            (true, false) => drop(self.awaited.fetch_sub(1, Ordering::SeqCst)),
            _ => {}
        }
        before
    }
}

impl Drop for ArrivalSignal {
    fn drop(&mut self) {
        self.set_awaited(false);
    }
}

/// The signals of one connection.
#[derive(Debug, Default)]
pub(crate) struct ArrivalSignals {
    signals: Mutex<BTreeMap<u32, Weak<ArrivalSignal>>>,
    awaited: Arc<AtomicU64>,
}

impl ArrivalSignals {
    /// Adds a signal for this token, in place of an earlier one. It is raised at first.
    pub(crate) fn add(&self, token: u32) -> Arc<ArrivalSignal> {
        let signal = Arc::new(ArrivalSignal::new(&self.awaited));
        let mut signals = self.signals.lock();
        signals.retain(|_, signal| signal.strong_count() > 0);
        signals.insert(token, Arc::downgrade(&signal));
        signal
    }

    /// Whether a signal is awaited: a wake-up then has to be noticed at once.
    pub(crate) fn are_awaited(&self) -> bool {
        self.awaited.load(Ordering::SeqCst) > 0
    }

    /// Raises the signal with this token. A token without a signal is that of a subscription that has ended.
    pub(crate) fn raise(&self, token: u32) {
        // Raised without the lock, under which a signal must not be dropped.
        let signal = self.signals.lock().get(&token).and_then(Weak::upgrade);
        if let Some(signal) = signal {
            signal.raise();
        }
    }

    /// Raises all signals: the connection is over.
    pub(crate) fn raise_all(&self) {
        let signals: Vec<_> = self.signals.lock().values().filter_map(Weak::upgrade).collect();
        signals.iter().for_each(|signal| signal.raise());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fabric::{WakeQueue, wait};

    #[test]
    fn signal_wakes_what_expects_it_once() {
        let (signals, queue) = (ArrivalSignals::default(), Arc::new(WakeQueue::new().unwrap()));
        let [one, other] = [7, 8].map(|token| signals.add(token));
        let woken = || {
            let mut woken = BTreeSet::new();
            queue.take(&mut woken);
            woken.into_iter().collect::<Vec<_>>()
        };
        assert!(one.lower() && !one.lower(), "a new signal is raised, so that its reader checks once");
        one.expect(Some(queue.keyed(1)));
        other.expect(Some(queue.keyed(2)));
        assert!(signals.are_awaited());
        for token in [7, 7, 9, u32::MAX] {
            signals.raise(token);
        }
        assert_eq!((woken(), one.is_raised()), (vec![1], true));
        assert!(one.lower() && woken().is_empty());
        signals.raise(7);
        assert!(woken().is_empty() && one.is_raised(), "nobody waits for it");
        drop(other);
        assert!(!signals.are_awaited());
        signals.raise(8);
        assert!(woken().is_empty(), "its reader is gone");
    }

    #[test]
    fn thread_that_waits_is_woken_by_one_that_takes_its_wake_up() {
        let signals = ArrivalSignals::default();
        let signal = signals.add(7);
        for _ in 0..100 {
            signal.lower();
            std::thread::scope(|scope| {
                let raising = scope.spawn(|| signals.raise(7));
                while !signal.is_raised() {
                    let handle = signal.expect_here().unwrap();
                    if !signal.is_raised() {
                        wait(&[handle], &[], Duration::MAX).unwrap();
                    }
                }
                raising.join().unwrap();
            });
        }
    }

    #[test]
    fn end_of_a_connection_wakes_all() {
        let signals = ArrivalSignals::default();
        let all = [1, 2, 3].map(|token| signals.add(token));
        all.iter().for_each(|signal| assert!(signal.lower()));
        signals.raise_all();
        assert!(all.iter().all(|signal| signal.is_raised()));
    }
}
