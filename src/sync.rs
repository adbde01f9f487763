//! The one source of atomics, and of what the protocols wait by, so that a model checker can replace them: with `--cfg loom`
//! they are those of loom, and [`crate::memory`] keeps regions in its atomics, on the heap.

#[cfg(loom)]
pub(crate) mod model;
#[cfg(loom)]
mod modelled;

#[cfg(loom)]
pub(crate) use modelled::{Mutex, atomic, barrier, futex};
#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;

#[cfg(not(loom))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
}

/// Sleeping until a word of memory changes, across processes (futex(2)).
#[cfg(not(loom))]
pub(crate) mod futex {
    use std::num::NonZeroU32;

    use rustix::io::Errno;
    use rustix::thread::futex;
    pub(crate) use rustix::thread::futex::Timespec;

    use super::atomic::AtomicU32;

    /// Sleeps as long as this word is `seen`, until a wake of one of these bits, or this time of the monotonic clock. An error is another
    /// word, a signal or the time.
    #[inline]
    pub(crate) fn wait_bitset(
        word: &AtomicU32,
        seen: u32,
        until: Option<&Timespec>,
        bits: NonZeroU32,
    ) -> Result<(), Errno> {
        futex::wait_bitset(word, futex::Flags::empty(), seen, until, bits)
    }

    /// Wakes up to so many threads that sleep at this word with one of these bits.
    #[inline]
    pub(crate) fn wake_bitset(word: &AtomicU32, count: u32, bits: NonZeroU32) {
        // Fails only on an invalid address.
        let _ = futex::wake_bitset(word, futex::Flags::empty(), count, bits);
    }

    /// Wakes up to so many threads that sleep at this word.
    #[inline]
    pub(crate) fn wake(word: &AtomicU32, count: u32) {
        // Fails only on an invalid address.
        let _ = futex::wake(word, futex::Flags::empty(), count);
    }
}

/// Barriers that one thread issues for others, across processes (membarrier(2)).
#[cfg(not(loom))]
pub(crate) mod barrier {
    use rustix::thread::{MembarrierCommand, membarrier};

    /// Has [`issue`] reach the threads of this process, too. Returns whether the process may ask for that.
    pub(crate) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    }

    /// Makes a compiler fence of the threads of registered processes one of the processor. Returns whether the process may do that.
    pub(crate) fn issue() -> bool {
        membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }
}
