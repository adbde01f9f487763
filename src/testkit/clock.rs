//! Virtual time.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::clock::{Clock, saturate};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The initial real time of a virtual clock: 14 November 2023.
const REALTIME_BASE_NS: u64 = 1_700_000_000_000_000_000;

/// A clock that advances only on demand. Shared by `Arc` within one simulation.
#[derive(Debug, Default)]
pub(crate) struct VirtualClock {
    now_ns: AtomicU64,
    /// How far real time was set, modulo 2^64.
    set_ns: AtomicU64,
    suspended_ns: AtomicU64,
}

impl VirtualClock {
    /// Lets this many nanoseconds pass.
    pub(crate) fn advance(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Sets real time forward, or back.
    pub(crate) fn set(&self, by_ns: i64) {
        self.set_ns.fetch_add(by_ns.cast_unsigned(), Ordering::Relaxed);
    }

    /// Suspends the host for this many nanoseconds.
    pub(crate) fn suspend(&self, ns: u64) {
        self.suspended_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Advances to this moment, if it is in the future.
    pub(crate) fn advance_to(&self, moment_ns: u64) {
        self.now_ns.fetch_max(moment_ns, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn monotonic_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn realtime_ns(&self) -> u64 {
        let set_ns = self.set_ns.load(Ordering::Relaxed);
        (REALTIME_BASE_NS + self.monotonic_ns() + self.suspended_ns()).wrapping_add(set_ns)
    }

    fn suspended_ns(&self) -> u64 {
        self.suspended_ns.load(Ordering::Relaxed)
    }

    fn pause(&self, duration: Duration) {
        self.advance(saturate(duration));
    }

    fn pause_until(&self, _: BorrowedFd<'_>, duration: Duration) {
        self.pause(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_on_demand() {
        let clock = VirtualClock::default();
        let base = clock.realtime_ns();
        assert_eq!(clock.monotonic_ns(), 0);
        clock.advance(5);
        clock.pause(Duration::from_nanos(7));
        assert_eq!((clock.monotonic_ns(), clock.realtime_ns()), (12, base + 12));
        clock.advance_to(20);
        clock.advance_to(15);
        assert_eq!(clock.monotonic_ns(), 20);
        clock.set(-30);
        clock.suspend(100);
        assert_eq!((clock.monotonic_ns(), clock.realtime_ns()), (20, base + 90));
    }
}
