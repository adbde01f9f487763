//! Time stamps that tell their age, whatever becomes of the host's clock.

use crate::limits;

/// How the time stamps of a node follow from the host's monotonic clock: a stamp is that clock plus the anchor.
///
/// The anchor changes when the host's clock was set, see [`Timekeeper`](super::Timekeeper), so the age of a stamp cannot be the
/// difference to a new one. Of large changes the timeline knows when they happened: it tells the age of stamps from before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// Nanoseconds from the monotonic clock to time stamps, modulo 2^64.
    pub(crate) anchor_ns: u64,
    /// The last leaps forward, newest first; those of length 0 are none.
    pub(crate) leaps: [Leap; limits::CLOCK_LEAPS],
}

/// A leap of a timeline's stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leap {
    /// The first stamp after it.
    pub(crate) from_ns: u64,
    /// Its length.
    pub(crate) by_ns: u64,
}

impl Timeline {
    /// The timeline on which this moment of the monotonic clock has this stamp.
    pub(crate) fn new(monotonic_ns: u64, stamp_ns: u64) -> Self {
        Self { anchor_ns: stamp_ns.wrapping_sub(monotonic_ns), leaps: [Leap::default(); limits::CLOCK_LEAPS] }
    }

    /// The stamp of a moment of the monotonic clock.
    pub(crate) fn stamp_ns(&self, monotonic_ns: u64) -> u64 {
        self.anchor_ns.wrapping_add(monotonic_ns)
    }

    /// The time from this stamp to a moment of the monotonic clock, nanoseconds; negative if the stamp is later.
    pub(crate) fn age_ns(&self, stamp_ns: u64, monotonic_ns: u64) -> i64 {
        let before = self.leaps.iter().filter(|leap| stamp_ns < leap.from_ns);
        let leapt_ns = before.fold(0_u64, |sum, leap| sum.saturating_add(leap.by_ns));
        let age_ns = i128::from(self.stamp_ns(monotonic_ns)) - i128::from(stamp_ns) - i128::from(leapt_ns);
        i64::try_from(age_ns).unwrap_or(if age_ns < 0 { i64::MIN } else { i64::MAX })
    }

    /// Moves later stamps without a trace.
    pub(super) fn shift(&mut self, by_ns: i64) {
        self.anchor_ns = self.anchor_ns.wrapping_add_signed(by_ns);
    }

    /// Moves the stamps of this moment and later ones forward, and remembers that.
    pub(super) fn leap(&mut self, monotonic_ns: u64, by_ns: u64) {
        self.anchor_ns = self.anchor_ns.wrapping_add(by_ns);
        self.leaps.rotate_right(1);
        let leap = Leap { from_ns: self.stamp_ns(monotonic_ns), by_ns };
        self.leaps.first_mut().into_iter().for_each(|newest| *newest = leap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn ages_of_stamps_survive_leaps() {
        let mut timeline = Timeline::new(1_000, 50_000);
        let first = timeline.stamp_ns(2_000);
        timeline.leap(10_000, HOUR);
        let second = timeline.stamp_ns(11_000);
        timeline.leap(20_000, 24 * HOUR);
        let third = timeline.stamp_ns(21_000);
        assert!(first < second && second < third);
        assert_eq!(
            [first, second, third].map(|stamp| timeline.age_ns(stamp, 30_000)),
            [28_000, 19_000, 9_000]
        );
        // Only so many leaps are known.
        timeline.leap(40_000, HOUR);
        assert_eq!([second, third].map(|stamp| timeline.age_ns(stamp, 50_000)), [39_000, 29_000]);
        assert_eq!(timeline.age_ns(first, 50_000), 48_000 + HOUR.cast_signed());
    }

    #[test]
    fn ages_do_not_overflow() {
        let forged = Timeline {
            anchor_ns: u64::MAX,
            leaps: [Leap { from_ns: u64::MAX, by_ns: u64::MAX }; limits::CLOCK_LEAPS],
        };
        assert_eq!(forged.age_ns(0, 0), 0);
        assert_eq!(forged.age_ns(u64::MAX - 1, 1), i64::MIN);
        assert_eq!(Timeline::new(0, 0).age_ns(0, u64::MAX), i64::MAX);
        assert_eq!(Timeline::new(0, 5).age_ns(u64::MAX, 0), i64::MIN);
    }

    /// A host whose clock begins in 1970 has run for longer than that.
    #[test]
    fn real_time_may_be_before_monotonic_time() {
        let mut timeline = Timeline::new(HOUR, 5);
        assert_eq!((timeline.stamp_ns(HOUR + 7), timeline.age_ns(5, HOUR + 7)), (12, 7));
        timeline.shift(-3);
        assert_eq!((timeline.stamp_ns(HOUR + 7), timeline.age_ns(5, HOUR + 7)), (9, 4));
    }
}
