//! The program's only reader of the operating system's clocks.
#![expect(clippy::disallowed_methods, reason = "the library's clock is its own; this is the program's")]

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The present moment, to measure from.
#[inline]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds of the monotonic clock, which all processes of a host share.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// How far values may lag behind their rate and still catch up.
const CATCH_UP: Duration = Duration::from_millis(10);

/// Moments at a fixed interval.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    due: Instant,
}

/// A deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    began: Instant,
    after: Duration,
}

impl Deadline {
    /// The deadline after this duration.
    pub(crate) fn after(after: Duration) -> Self {
        Self { began: Instant::now(), after }
    }

    /// The whole duration.
    pub(crate) fn whole(&self) -> Duration {
        self.after
    }

    /// The time left.
    pub(crate) fn left(&self) -> Duration {
        self.after.saturating_sub(self.began.elapsed())
    }

    /// Whether it has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

impl Pace {
    /// One moment per interval, beginning now.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, due: Instant::now() }
    }

    /// The time until the next moment.
    pub(crate) fn left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Advances to the next moment. Skips missed moments, except those of the last few milliseconds.
    pub(crate) fn advance(&mut self) {
        let next = self.due.checked_add(self.interval).unwrap_or(self.due);
        let earliest = Instant::now().checked_sub(CATCH_UP);
        self.due = earliest.map_or(next, |earliest| next.max(earliest));
    }
}
