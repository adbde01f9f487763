//! The program's only reader of the operating system's clocks.
#![expect(clippy::disallowed_methods, reason = "the library's clock is its own; this is the program's")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the Unix epoch.
pub(crate) fn realtime_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// This moment, to measure from.
#[inline]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How far values may lag behind their rate and still catch up.
const CATCH_UP: Duration = Duration::from_millis(10);

/// Moments in equal distance, for as long as somebody keeps up with them.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    due: Instant,
}

/// A time that is over when a duration has passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    began: Instant,
    after: Duration,
}

impl Deadline {
    /// The time that is over in so long.
    pub(crate) fn after(after: Duration) -> Self {
        Self { began: Instant::now(), after }
    }

    /// All of it.
    pub(crate) fn whole(&self) -> Duration {
        self.after
    }

    /// What is left of it.
    pub(crate) fn left(&self) -> Duration {
        self.after.saturating_sub(self.began.elapsed())
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

impl Pace {
    /// The pace of one moment an interval, the first one now.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, due: Instant::now() }
    }

    /// How long it is until the next moment.
    pub(crate) fn left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Goes on to the next moment. Moments that were missed are not made up for, but for the last few milliseconds.
    pub(crate) fn advance(&mut self) {
        let next = self.due.checked_add(self.interval).unwrap_or(self.due);
        let earliest = Instant::now().checked_sub(CATCH_UP);
        self.due = earliest.map_or(next, |earliest| next.max(earliest));
    }
}
