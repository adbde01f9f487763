//! The time stamps of a node.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Clock, Timeline};
use crate::limits;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Attempts to read two clocks at the same moment.
const MEASUREMENTS: u32 = 4;

/// Gives a node's time stamps: nanoseconds since the Unix epoch by the host's clock, that never leave the [`Timeline`] of the node.
///
/// The host's monotonic clock drives them, so they are not affected when its real-time clock is set; a clock that is only disciplined
/// runs at the same rate as the monotonic one. If it was set, the stamps follow: forward by [`limits::CLOCK_LEAP_NS`] or more at once,
/// otherwise by one in [`limits::CLOCK_SLEW_PARTS`] of the time that passes, so they never step back. The time for which the host was
/// suspended has passed for them, too.
#[derive(Debug)]
pub(crate) struct Timekeeper {
    clock: Arc<dyn Clock>,
    /// The anchor of the timeline, for those who only make stamps.
    anchor_ns: AtomicU64,
    steered: Mutex<Steered>,
}

/// The state of a timekeeper.
#[derive(Clone, Copy, Debug)]
struct Steered {
    timeline: Timeline,
    /// When it was last compared with the host's clock, by the monotonic one.
    at_ns: u64,
    /// For how long the host had been suspended by then.
    suspended_ns: u64,
    /// The user knows that it differs from the host's clock.
    is_reported: bool,
}

/// The clocks of a host at one moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    monotonic_ns: u64,
    realtime_ns: u64,
    suspended_ns: u64,
    /// By how much they may differ from another moment.
    uncertain_ns: u64,
}

/// A change of the timeline, before stamps follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Correction {
    pub(crate) timeline: Timeline,
    /// The host was suspended: all stamps before are older by that time.
    pub(crate) was_suspended: bool,
    /// The host's clock was set: how far it is ahead, nanoseconds. Once for each time.
    pub(crate) news_ns: Option<i64>,
}

impl Timekeeper {
    /// Begins with the host's clock.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let steered = Steered::begin(&measure(clock.as_ref()));
        let anchor_ns = AtomicU64::new(steered.timeline.anchor_ns);
        Self { clock, anchor_ns, steered: Mutex::new(steered) }
    }

    /// The host's clock.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The stamp of this moment.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        // Relaxed: a stamp may be from just before a correction.
        self.anchor_ns.load(Ordering::Relaxed).wrapping_add(self.clock.monotonic_ns())
    }

    /// The timeline of the stamps. Locks briefly.
    pub(crate) fn timeline(&self) -> Timeline {
        self.steered.lock().timeline
    }

    /// The age of a stamp, nanoseconds. Locks briefly.
    pub(crate) fn age_ns(&self, stamp_ns: u64) -> u64 {
        let age_ns = self.timeline().age_ns(stamp_ns, self.clock.monotonic_ns());
        u64::try_from(age_ns).unwrap_or(0)
    }

    /// Begins anew with the host's clock, if no stamps are in use.
    pub(crate) fn restart(&self) {
        self.adopt_steered(Steered::begin(&measure(self.clock.as_ref())));
    }

    /// Begins with the stamps of an earlier process on this host, if no stamps are in use, and follows the host's clock from there. Stamps
    /// that are more than [`limits::CLOCK_ADOPTED_NS`] ahead of that are not believed.
    pub(crate) fn adopt(&self, timeline: Timeline) {
        let moment = measure(self.clock.as_ref());
        let ahead_ns = timeline.stamp_ns(moment.monotonic_ns).wrapping_sub(moment.realtime_ns).cast_signed();
        if ahead_ns > limits::CLOCK_ADOPTED_NS {
            return;
        }
        let mut steered = Steered { timeline, ..Steered::begin(&moment) };
        // A clock that is far ahead is followed at once.
        let _ = steered.steer(&moment);
        self.adopt_steered(Steered { is_reported: false, ..steered });
    }

    /// Compares the stamps with the host's clock. `correct` gets the correction that is due, and makes it known to those who read
    /// stamps; only after that stamps follow it.
    pub(crate) fn steer(&self, correct: impl FnOnce(&Correction)) {
        let mut steered = *self.steered.lock();
        if let Some(correction) = steered.steer(&measure(self.clock.as_ref())) {
            correct(&correction);
        }
        self.adopt_steered(steered);
    }

    fn adopt_steered(&self, steered: Steered) {
        *self.steered.lock() = steered;
        self.anchor_ns.store(steered.timeline.anchor_ns, Ordering::Relaxed);
    }
}

impl Steered {
    fn begin(moment: &Moment) -> Self {
        let timeline = Timeline::new(moment.monotonic_ns, moment.realtime_ns);
        let Moment { monotonic_ns: at_ns, suspended_ns, .. } = *moment;
        Self { timeline, at_ns, suspended_ns, is_reported: false }
    }

    /// Follows the host's clock. `None` if nothing changes.
    fn steer(&mut self, moment: &Moment) -> Option<Correction> {
        let Moment { monotonic_ns, realtime_ns, suspended_ns, uncertain_ns } = *moment;
        if uncertain_ns > limits::CLOCK_COMPARISON_NS {
            return None;
        }
        let before = self.timeline;
        let span_ns = monotonic_ns.saturating_sub(self.at_ns).min(limits::CLOCK_SLEW_SPAN_NS);
        self.at_ns = monotonic_ns;
        let slept_ns = suspended_ns.saturating_sub(self.suspended_ns);
        let was_suspended = slept_ns >= limits::CLOCK_SUSPENDED_NS;
        if was_suspended {
            self.timeline.shift(slept_ns.cast_signed());
            self.suspended_ns = suspended_ns;
        }
        // Clocks are at most some hundred years apart.
        let ahead_ns = realtime_ns.wrapping_sub(self.timeline.stamp_ns(monotonic_ns)).cast_signed();
        let max_ns = (span_ns / limits::CLOCK_SLEW_PARTS).cast_signed();
        let is_off = ahead_ns.unsigned_abs() >= limits::CLOCK_LEAP_NS;
        if is_off && ahead_ns > 0 {
            self.timeline.leap(monotonic_ns, ahead_ns.unsigned_abs());
        } else if ahead_ns.unsigned_abs() > limits::CLOCK_TOLERANCE_NS.max(uncertain_ns) {
            self.timeline.shift(ahead_ns.clamp(-max_ns, max_ns));
        }
        let news_ns = (is_off && !self.is_reported).then_some(ahead_ns);
        // A leap has corrected it.
        self.is_reported = is_off && ahead_ns < 0;
        let correction = Correction { timeline: self.timeline, was_suspended, news_ns };
        (self.timeline != before || news_ns.is_some()).then_some(correction)
    }
}

/// Reads all clocks as close to one moment as possible.
fn measure(clock: &dyn Clock) -> Moment {
    let attempt = |_| {
        let began_ns = clock.monotonic_ns();
        let (realtime_ns, suspended_ns) = (clock.realtime_ns(), clock.suspended_ns());
        let uncertain_ns = clock.monotonic_ns().saturating_sub(began_ns);
        Moment { monotonic_ns: began_ns + uncertain_ns / 2, realtime_ns, suspended_ns, uncertain_ns }
    };
    let mut best = attempt(0);
    for number in 1..MEASUREMENTS {
        if best.uncertain_ns <= limits::CLOCK_TOLERANCE_NS {
            break;
        }
        let next = attempt(number);
        if next.uncertain_ns < best.uncertain_ns {
            best = next;
        }
    }
    best
}
