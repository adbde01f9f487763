//! What [`super`] offers, as loom models it. Threads are loom's, of one model at a time.

use loom::sync::MutexGuard;

pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    loom::lazy_static! {
        static ref MEETING: AtomicU64 = AtomicU64::new(0);
    }

    /// A compiler fence is ordered with the barriers that the other side issues (see [`super::barrier`]), which is the only use that
    /// this crate makes of one. loom has neither: here both change one word, and the thread that changes it second sees what the
    /// other did before. Two compiler fences order each other, too, which they do not on a processor.
    pub(crate) fn compiler_fence(_order: Ordering) {
        meet();
    }

    pub(super) fn meet() {
        MEETING.fetch_add(1, Ordering::AcqRel);
    }
}

/// Barriers: see [`atomic::compiler_fence`].
pub(crate) mod barrier {
    pub(crate) fn register() -> bool {
        true
    }

    pub(crate) fn issue() -> bool {
        super::atomic::meet();
        true
    }
}

/// A lock whose holders loom can interrupt.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Sleeping as the kernel has it: a lock orders the comparison of the word with the wakes. Nobody is woken by a signal, and no time
/// passes: a wake that is lost is a deadlock, which loom reports.
pub(crate) mod futex {
    use std::num::NonZeroU32;

    use loom::sync::{Condvar, Mutex};
    use rustix::io::Errno;
    pub(crate) use rustix::thread::futex::Timespec;

    use super::atomic::{AtomicU32, Ordering};

    loom::lazy_static! {
        static ref SLEEPERS: Mutex<Vec<Sleeper>> = Mutex::new(Vec::new());
        static ref WOKEN: Condvar = Condvar::new();
    }

    #[derive(Debug)]
    struct Sleeper {
        address: usize,
        bits: u32,
        is_woken: bool,
        number: usize,
    }

    fn address(word: &AtomicU32) -> usize {
        std::ptr::from_ref(word).addr()
    }

    pub(crate) fn wait_bitset(
        word: &AtomicU32,
        seen: u32,
        _until: Option<&Timespec>,
        bits: NonZeroU32,
    ) -> Result<(), Errno> {
        let mut sleepers = SLEEPERS.lock().expect("no thread panics with it");
        if word.load(Ordering::Relaxed) != seen {
            return Err(Errno::AGAIN);
        }
        let number = sleepers.iter().map(|sleeper| sleeper.number + 1).max().unwrap_or(0);
        sleepers.push(Sleeper { address: address(word), bits: bits.get(), is_woken: false, number });
        while sleepers.iter().any(|sleeper| sleeper.number == number && !sleeper.is_woken) {
            sleepers = WOKEN.wait(sleepers).expect("no thread panics with it");
        }
        sleepers.retain(|sleeper| sleeper.number != number);
        Ok(())
    }

    pub(crate) fn wake_bitset(word: &AtomicU32, count: u32, bits: NonZeroU32) {
        let mut sleepers = SLEEPERS.lock().expect("no thread panics with it");
        let those = sleepers.iter_mut().filter(|sleeper| {
            sleeper.address == address(word) && sleeper.bits & bits.get() != 0 && !sleeper.is_woken
        });
        those.take(count as usize).for_each(|sleeper| sleeper.is_woken = true);
        WOKEN.notify_all();
    }

    pub(crate) fn wake(word: &AtomicU32, count: u32) {
        wake_bitset(word, count, NonZeroU32::MAX);
    }
}
