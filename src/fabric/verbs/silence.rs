//! How long a peer's host has left work unanswered.
//!
//! The device repeats what is not acknowledged, for a time that is its own affair. A session has a deadline of its own, by the
//! clock: what completes or arrives shows that the peer's host is alive, and when nothing has for a while although work is in
//! flight, the host is gone.

use crate::limits::verbs::{BEAT_NS, QUIET_NS, SILENCE_NS, SILENCE_STEP_NS};

/// A session's view of its peer's host, from one check to the next.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Completed work requests at the last check.
    completed: u64,
    /// The time of the last check. `None` before the first one.
    checked_ns: Option<u64>,
    /// How long the host has been silent since it was probed. `None` if nothing was asked of it.
    silent_ns: Option<u64>,
    /// When the next check is due.
    due_ns: u64,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SilenceCheck {
    /// The host has answered since the last check.
    Answers,
    /// It has not, or was not asked: probe it, unless a probe is in flight.
    Quiet,
    /// It has not answered for too long.
    Lost,
}

impl Silence {
    /// Returns when to check.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// A beat takes the place of a check; puts the next one off.
    pub(super) fn put_off(&mut self, now_ns: u64) {
        self.due_ns = together(now_ns.saturating_add(BEAT_NS));
    }

    /// Checks the number of completed work requests. One in flight may take `allowance_ns` longer than a short one.
    pub(super) fn check(&mut self, now_ns: u64, (completed, allowance_ns): (u64, u64)) -> SilenceCheck {
        let step_ns = self.checked_ns.map_or(0, |checked_ns| now_ns.saturating_sub(checked_ns));
        // Not the first time: the connection was only just established.
        let has_answered = completed != self.completed || self.checked_ns.is_none();
        (self.completed, self.checked_ns) = (completed, Some(now_ns));
        // Counted from the probe, not from the last answer: an idle session was not asked.
        self.silent_ns = match self.silent_ns {
            _ if has_answered => None,
            None => Some(0),
            Some(silent_ns) => Some(silent_ns.saturating_add(step_ns.min(SILENCE_STEP_NS))),
        };
        self.due_ns = together(now_ns.saturating_add(QUIET_NS));
        let Some(silent_ns) = self.silent_ns else { return SilenceCheck::Answers };
        let left_ns = SILENCE_NS.saturating_add(allowance_ns).saturating_sub(silent_ns);
        self.due_ns = self.due_ns.min(now_ns.saturating_add(left_ns));
        if left_ns == 0 { SilenceCheck::Lost } else { SilenceCheck::Quiet }
    }
}

/// Idle sessions are checked together, so that many of them wake the thread no more often than a few.
fn together(due_ns: u64) -> u64 {
    due_ns.checked_next_multiple_of(QUIET_NS / 4).unwrap_or(due_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Checks whenever it is due, until the verdict is that the host is lost; returns when.
    fn lost_at(silence: &mut Silence, mut now_ns: u64, progress: (u64, u64)) -> u64 {
        while silence.check(now_ns, progress) != SilenceCheck::Lost {
            assert!(silence.due_ns() > now_ns && silence.due_ns() - now_ns <= QUIET_NS * 5 / 4);
            now_ns = silence.due_ns();
        }
        now_ns
    }

    #[test]
    fn dead_host_is_noticed_within_two_seconds_of_its_last_answer() {
        for began_ns in (0..500).map(|ms| 10_000_000_000 + ms * MS) {
            let mut silence = Silence::default();
            assert_eq!(silence.check(began_ns, (7, 0)), SilenceCheck::Answers);
            // It answers until just after this check.
            let last_ns = silence.due_ns();
            assert_eq!(silence.check(last_ns, (8, 0)), SilenceCheck::Answers);
            let due_ns = silence.due_ns();
            let lost_ns = lost_at(&mut silence, due_ns, (8, 0));
            assert!((SILENCE_NS..2_000 * MS).contains(&(lost_ns - last_ns)), "{}", lost_ns - last_ns);
        }
    }

    #[test]
    fn host_that_answers_one_probe_in_four_is_never_lost() {
        let (mut silence, mut now_ns) = (Silence::default(), 0);
        for check in 0..10_000_u64 {
            assert_ne!(silence.check(now_ns, (check / 4, 0)), SilenceCheck::Lost);
            now_ns = silence.due_ns();
        }
    }

    /// A process that was stopped, or a machine that was suspended, finds its own work unanswered when it continues.
    #[test]
    fn own_standstill_is_not_the_silence_of_the_peer() {
        let mut silence = Silence::default();
        silence.check(0, (1, 0));
        assert_eq!(silence.check(QUIET_NS, (1, 0)), SilenceCheck::Quiet);
        assert_eq!(silence.check(60_000 * MS, (1, 0)), SilenceCheck::Quiet);
        assert_eq!(silence.check(silence.due_ns(), (2, 0)), SilenceCheck::Answers);
    }

    #[test]
    fn long_operation_has_longer() {
        let mut silence = Silence::default();
        silence.check(0, (1, 0));
        let lost_ns = lost_at(&mut silence, QUIET_NS, (1, 700 * MS));
        assert_eq!(lost_ns, QUIET_NS + SILENCE_NS + 700 * MS);
    }
}
