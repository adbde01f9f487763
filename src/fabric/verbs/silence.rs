//! How long a peer's host has left work unanswered.
//!
//! The device repeats what is not acknowledged, for a time that is its own affair. A session has a deadline of its own, by the
//! clock: what completes or arrives shows that the peer's host is alive, and when nothing has for a while although work is in
//! flight, the host is gone.
//!
//! What arrives does not show that the peer's host answers requests: a READ whose answer is dropped on the way would wait for ever
//! beside a peer that sends messages. So while requests are in flight, one of them must complete within a longer time.

use crate::limits::verbs::{BEAT_NS, QUIET_NS, SILENCE_NS, SILENCE_STEP_NS, UNANSWERED_NS};

/// How far the work of an endpoint is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Completed work requests, sends and receives. While the number grows, the peer's host is alive.
    pub(super) completed: u64,
    /// Those of the send queue, which the peer's host has answered.
    pub(super) answered: u64,
    /// Whether the send queue has work in flight.
    pub(super) is_asking: bool,
    /// How long one in flight may take beyond what a packet takes, nanoseconds.
    pub(super) allowance_ns: u64,
}

/// A session's view of its peer's host, from one check to the next.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Completed work requests at the last check, and those of the send queue.
    completed: u64,
    answered: u64,
    /// The time of the last check. `None` before the first one.
    checked_ns: Option<u64>,
    /// How long the host has been silent since it was probed. `None` if nothing was asked of it.
    silent_ns: Option<u64>,
    /// For how long requests have been in flight of which none completed.
    unanswered_ns: u64,
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

    /// Checks how far the work is.
    pub(super) fn check(&mut self, now_ns: u64, progress: Progress) -> SilenceCheck {
        let Progress { completed, answered, is_asking, allowance_ns } = progress;
        let step_ns = self.checked_ns.map_or(0, |checked_ns| now_ns.saturating_sub(checked_ns));
        // Not the first time: the connection was only just established.
        let has_answered = completed != self.completed || self.checked_ns.is_none();
        let is_unanswered = is_asking && answered == self.answered && self.checked_ns.is_some();
        let unanswered_ns = self.unanswered_ns.saturating_add(step_ns.min(SILENCE_STEP_NS));
        self.unanswered_ns = if is_unanswered { unanswered_ns } else { 0 };
        (self.completed, self.answered, self.checked_ns) = (completed, answered, Some(now_ns));
        // Counted from the probe, not from the last answer: an idle session was not asked.
        self.silent_ns = match self.silent_ns {
            _ if has_answered => None,
            None => Some(0),
            Some(silent_ns) => Some(silent_ns.saturating_add(step_ns.min(SILENCE_STEP_NS))),
        };
        self.due_ns = together(now_ns.saturating_add(QUIET_NS));
        if self.unanswered_ns >= UNANSWERED_NS.saturating_add(allowance_ns) {
            return SilenceCheck::Lost;
        }
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

    /// So many work requests have completed.
    fn of(completed: u64) -> Progress {
        Progress { completed, answered: completed, is_asking: true, allowance_ns: 0 }
    }

    /// Checks whenever it is due, until the verdict is that the host is lost; returns when.
    fn lost_at(silence: &mut Silence, mut now_ns: u64, progress: Progress) -> u64 {
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
            assert_eq!(silence.check(began_ns, of(7)), SilenceCheck::Answers);
            // It answers until just after this check.
            let last_ns = silence.due_ns();
            assert_eq!(silence.check(last_ns, of(8)), SilenceCheck::Answers);
            let due_ns = silence.due_ns();
            let lost_ns = lost_at(&mut silence, due_ns, of(8));
            assert!((SILENCE_NS..2_000 * MS).contains(&(lost_ns - last_ns)), "{}", lost_ns - last_ns);
        }
    }

    #[test]
    fn host_that_answers_one_probe_in_four_is_never_lost() {
        let (mut silence, mut now_ns) = (Silence::default(), 0);
        for check in 0..10_000_u64 {
            assert_ne!(silence.check(now_ns, of(check / 4)), SilenceCheck::Lost);
            now_ns = silence.due_ns();
        }
    }

    /// A process that was stopped, or a machine that was suspended, finds its own work unanswered when it continues.
    #[test]
    fn own_standstill_is_not_the_silence_of_the_peer() {
        let mut silence = Silence::default();
        silence.check(0, of(1));
        assert_eq!(silence.check(QUIET_NS, of(1)), SilenceCheck::Quiet);
        assert_eq!(silence.check(60_000 * MS, of(1)), SilenceCheck::Quiet);
        assert_eq!(silence.check(silence.due_ns(), of(2)), SilenceCheck::Answers);
    }

    /// The peer sends messages, but what this end asks is not answered.
    #[test]
    fn requests_that_are_never_answered_end_the_session_beside_messages() {
        let lost_at = |is_asking| {
            let mut silence = Silence::default();
            let mut dues = (0..).map_while(|completed| {
                let now_ns = silence.due_ns();
                let progress = Progress { completed, answered: 3, is_asking, allowance_ns: 0 };
                (silence.check(now_ns, progress) != SilenceCheck::Lost).then(|| silence.due_ns())
            });
            dues.by_ref().take(1000).last()
        };
        assert!(lost_at(false) > Some(20 * UNANSWERED_NS), "it has asked nothing");
        let lost_ns = lost_at(true).expect("a check");
        assert!((UNANSWERED_NS..UNANSWERED_NS + 2 * QUIET_NS).contains(&lost_ns), "{lost_ns}");
    }

    #[test]
    fn long_operation_has_longer() {
        let mut silence = Silence::default();
        silence.check(0, of(1));
        let lost_ns = lost_at(&mut silence, QUIET_NS, Progress { allowance_ns: 700 * MS, ..of(1) });
        assert_eq!(lost_ns, QUIET_NS + SILENCE_NS + 700 * MS);
    }
}
