use std::time::{Duration, Instant};

use fabricast::measure::Control;

use super::super::clock::now;
use super::super::failure::Exit;
use super::super::interrupt::Interrupt;
use super::line::Durations;
use super::process::{Phase, Process};
use super::trouble::{Quiet, Trouble};

/// How long the other process has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Empty polls between two reads of the clock.
const LOOKS_WAITING: u32 = 1 << 20;
/// Empty polls of one that answers, or receives, between two checks of what is to be done.
pub(super) const LOOKS: u32 = 4096;
/// Spins of one that receives a stream, after an empty poll: some hundred nanoseconds. A poll without pause takes the
/// line that the writer is about to write.
const SPINS: u32 = 64;
/// Round trips of a probe, time permitting.
const PROBES: u64 = 20_000;
/// The longest probe: on a busy machine a round trip takes as long as other processes run.
const PROBE: Duration = Duration::from_millis(500);
/// Faster round trips show that the processors share a cache.
const NEAR_NS: u64 = 250;

/// Determines whether the processors of two processes share a cache.
#[derive(Debug, Default)]
pub(super) struct Probe {
    number: u64,
    /// The first result.
    before: Option<bool>,
}

/// Counts empty polls, and measures the wait for an answer.
#[derive(Debug, Default)]
pub(super) struct AnswerWait {
    looks: u32,
    began: Option<Instant>,
}

impl Probe {
    /// Probes before the measurement.
    pub(super) fn begin(
        &mut self,
        control: &Control,
        (process, interrupt): (&mut Process, &Interrupt),
    ) -> Result<(), Trouble> {
        self.before = Some(self.is_near(control, (process, interrupt))?);
        Ok(())
    }

    /// Probes after the measurement, and returns its placement.
    pub(super) fn end(
        &mut self,
        control: &Control,
        (process, interrupt): (&mut Process, &Interrupt),
    ) -> Result<&'static str, Trouble> {
        let after = self.is_near(control, (process, interrupt))?;
        Ok(match (self.before.unwrap_or(after), after) {
            (true, true) => "near",
            (false, false) => "far",
            _ => "mixed",
        })
    }

    fn is_near(
        &mut self,
        control: &Control,
        (process, interrupt): (&mut Process, &Interrupt),
    ) -> Result<bool, Trouble> {
        control.set_phase(Phase::Probe.number());
        let mut durations = Durations::new();
        let end = now() + PROBE;
        for _ in 0..PROBES {
            let began = now();
            if began >= end {
                break;
            }
            self.number += 1;
            control.pass(0, self.number);
            let mut wait = AnswerWait::default();
            while control.passed(1) != self.number {
                wait.empty_poll_of(process, interrupt)?;
            }
            durations.record(nanoseconds(began));
        }
        Ok(durations.median_ns() < NEAR_NS)
    }
}

/// Answers a probe until the phase changes.
pub(super) fn answer(control: &Control) {
    let mut last = control.passed(1);
    let mut looks = 0;
    loop {
        let number = control.passed(0);
        if number != last {
            last = number;
            control.pass(1, number);
        }
        looks += 1;
        if looks % LOOKS == 0 && Phase::of(control.phase()) != Phase::Probe {
            return;
        }
    }
}

impl AnswerWait {
    /// Counts an empty poll. Fails when there are too many, or when interrupted.
    #[inline]
    pub(super) fn empty_poll(&mut self, interrupt: &Interrupt) -> Result<(), Trouble> {
        self.looks = self.looks.wrapping_add(1);
        if self.is_waiting() { self.wait(interrupt) } else { Ok(()) }
    }

    /// The same, and fails when the answering process has ended.
    #[inline]
    pub(super) fn empty_poll_of(
        &mut self,
        process: &mut Process,
        interrupt: &Interrupt,
    ) -> Result<(), Trouble> {
        self.empty_poll(interrupt)?;
        if self.is_waiting() { process.check() } else { Ok(()) }
    }

    /// Whether it is time for more checks.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.looks.is_multiple_of(LOOKS_WAITING)
    }

    /// The same for a poll that took a while.
    #[cold]
    pub(super) fn wait(&mut self, interrupt: &Interrupt) -> Result<(), Trouble> {
        if interrupt.came() {
            return Err(Quiet(Exit::Interrupted).into());
        }
        if self.began.get_or_insert_with(now).elapsed() > ANSWER_TIMEOUT {
            return Err("the answering process has stopped answering".into());
        }
        Ok(())
    }
}

/// Pauses between two polls of a stream.
#[inline]
pub(super) fn rest() {
    (0..SPINS).for_each(|_| std::hint::spin_loop());
}

/// The time since this moment.
pub(super) fn nanoseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
