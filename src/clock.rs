//! The only reader of the operating system's clocks. Everything else gets the time from a [`Clock`], so that a
//! simulation can own it.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the time comes from. Reads neither block nor allocate.
pub(crate) trait Clock: Debug + Send + Sync {
    /// Nanoseconds since some fixed moment; never goes back.
    fn monotonic_ns(&self) -> u64;

    /// Nanoseconds since the Unix epoch; may jump when the host's clock is set.
    fn realtime_ns(&self) -> u64;

    /// Gives the processor away for about this long. A virtual clock moves on instead.
    fn pause(&self, duration: Duration);
}

/// The operating system's clocks. On Linux both reads are answered in user space.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemClock;

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the operating system's clocks"
)]
impl Clock for SystemClock {
    #[inline]
    fn monotonic_ns(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        let start = *START.get_or_init(Instant::now);
        saturate(Instant::now().saturating_duration_since(start))
    }

    #[inline]
    fn realtime_ns(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, saturate)
    }

    fn pause(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// Nanoseconds of a duration, at most `u64::MAX` (584 years).
pub(crate) fn saturate(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_goes_on() {
        let before = SystemClock.monotonic_ns();
        SystemClock.pause(Duration::from_millis(2));
        assert!(SystemClock.monotonic_ns() - before >= 2_000_000);
    }

    #[test]
    fn realtime_is_after_2020() {
        assert!(SystemClock.realtime_ns() > 1_577_836_800_000_000_000);
    }
}
