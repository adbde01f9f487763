//! The rounds of the driving end, and how long they take.

use super::end::{End, Seen};
use super::error::ProgramError;
use super::figures::{Durations, Figures};
use super::plan::ProgramPlan;
use crate::clock::{Clock, SystemClock};

/// After which time a block of an unreliable connection counts as lost.
pub(super) const LOST_NS: u64 = 250_000_000;
/// How many of those in a row mean that the peer does not answer.
const LOST_MAX: u32 = 40;

/// The rounds of the driving end.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) durations: Durations,
    iterations: u64,
    time_ns: u64,
    begun_ns: u64,
    last_ns: u64,
    number: u64,
    lost_in_a_row: u32,
}

impl Rounds {
    pub(super) fn begin(plan: &ProgramPlan) -> Self {
        let iterations = plan.iterations.unwrap_or(u64::MAX);
        let time_ns = plan.timed_ns();
        let durations = Durations::new();
        let now_ns = SystemClock.monotonic_ns();
        Self {
            durations,
            iterations,
            time_ns,
            begun_ns: now_ns,
            last_ns: now_ns,
            number: 0,
            lost_in_a_row: 0,
        }
    }

    /// The number of the next round, if there is one.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u64> {
        if self.number == self.iterations || self.last_ns - self.begun_ns >= self.time_ns {
            return None;
        }
        self.number += 1;
        Some(self.number)
    }

    /// Takes the time of the round that has just ended, which is also the beginning of the next.
    #[inline]
    pub(super) fn done(&mut self) {
        let now_ns = SystemClock.monotonic_ns();
        self.durations.record(now_ns - self.last_ns);
        self.last_ns = now_ns;
        self.lost_in_a_row = 0;
    }

    /// Counts a round without an answer, and begins the next. Fails if there were too many of them in a row.
    pub(super) fn lost(&mut self, seen: &mut Seen) -> Result<(), ProgramError> {
        seen.lost += 1;
        self.lost_in_a_row += 1;
        self.restart_clock();
        if self.lost_in_a_row > LOST_MAX { Err(ProgramError::NoAnswer) } else { Ok(()) }
    }

    /// Begins the next round now, after work that is not timed.
    pub(super) fn restart_clock(&mut self) {
        self.last_ns = SystemClock.monotonic_ns();
    }
}

impl End<'_> {
    /// Goes through the rounds of the plan: does `round`, which is timed, and then compares. `compare` returns whether it took so long
    /// that the next round begins after it.
    pub(super) fn run_rounds(
        &mut self,
        mut round: impl FnMut(&mut Self, u64) -> Result<(), ProgramError>,
        mut compare: impl FnMut(&mut Self, u64) -> Result<bool, ProgramError>,
    ) -> Result<Figures, ProgramError> {
        let mut rounds = Rounds::begin(&self.plan);
        while let Some(number) = rounds.next() {
            round(self, number)?;
            rounds.done();
            if compare(self, number)? {
                rounds.restart_clock();
            }
            self.check(number)?;
        }
        Ok(rounds.durations.figures())
    }
}
