//! How long an end waits for its peer.

use crate::clock::{Clock, SystemClock};

/// Parts of a time limit: this process checks the clock at least so often, unless it stands still.
const PARTS: u64 = 8;

/// A limit of the time that an end waits. While this process, or its machine, stands still, its peer may do so, too: of each such pause
/// only one part of the limit counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit {
    left_ns: u64,
    /// How much later than expected the next check may come. Anything longer is a pause.
    part_ns: u64,
    last_ns: u64,
}

impl TimeLimit {
    /// Begins to wait for so long.
    pub(super) fn begin(limit_ns: u64) -> Self {
        Self::begin_at(SystemClock.monotonic_ns(), limit_ns)
    }

    fn begin_at(now_ns: u64, limit_ns: u64) -> Self {
        Self { left_ns: limit_ns, part_ns: (limit_ns / PARTS).max(1), last_ns: now_ns }
    }

    /// What is left of it, nanoseconds. Since the last call this process has polled, or has meant to sleep for up to `slept_ns`.
    pub(super) fn left_ns(&mut self, slept_ns: u64) -> u64 {
        self.left_at(SystemClock.monotonic_ns(), slept_ns)
    }

    fn left_at(&mut self, now_ns: u64, slept_ns: u64) -> u64 {
        let gone_ns = now_ns.saturating_sub(self.last_ns);
        let stood_still = gone_ns > slept_ns.saturating_add(self.part_ns);
        self.left_ns = self.left_ns.saturating_sub(if stood_still { self.part_ns } else { gone_ns });
        self.last_ns = now_ns;
        self.left_ns
    }

    /// How long to sleep at most before the next check: a longer sleep would hide that this process stood still.
    pub(super) fn sleep_ns(&self) -> u64 {
        self.left_ns.min(self.part_ns)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_over(&mut self, slept_ns: u64) -> bool {
        self.left_ns(slept_ns) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn polling_and_sleeping_count() {
        let mut limit = TimeLimit::begin_at(5, 10 * SECOND);
        for second in 1..10 {
            assert_eq!(limit.left_at(5 + second * SECOND, 0), (10 - second) * SECOND);
        }
        assert_eq!(limit.left_at(5 + 10 * SECOND, 0), 0);
        let mut limit = TimeLimit::begin_at(5, 10 * SECOND);
        assert_eq!(limit.left_at(5 + 10 * SECOND, 10 * SECOND), 0);
        let (mut limit, mut now_ns) = (TimeLimit::begin_at(0, 10 * SECOND), 0);
        while limit.left_at(now_ns, limit.sleep_ns()) > 0 {
            now_ns += limit.sleep_ns();
        }
        assert_eq!(now_ns, 10 * SECOND);
        // The clock never goes backwards; if it did, nothing would count.
        let mut limit = TimeLimit::begin_at(5, 10 * SECOND);
        assert_eq!(limit.left_at(0, 0), 10 * SECOND);
    }

    #[test]
    fn standing_still_counts_as_one_part() {
        let mut limit = TimeLimit::begin_at(0, 8 * SECOND);
        assert_eq!(limit.left_at(3600 * SECOND, 0), 7 * SECOND);
        assert_eq!(limit.left_at(3601 * SECOND, 0), 6 * SECOND);
        // Of a sleep, too.
        assert_eq!(limit.left_at(7200 * SECOND, limit.sleep_ns()), 5 * SECOND);
        // It ends all the same, if this process stands still again and again.
        let mut limit = TimeLimit::begin_at(0, 8 * SECOND);
        let looks = (1..).find(|hour| limit.left_at(hour * 3600 * SECOND, 0) == 0);
        assert_eq!(looks, Some(PARTS));
        assert_eq!(TimeLimit::begin_at(0, 0).left_at(0, 0), 0);
    }
}
