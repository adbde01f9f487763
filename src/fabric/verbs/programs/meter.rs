//! How much time, and processor time, a run takes.

use crate::clock::{Clock, SystemClock, process_cpu_ns};

/// Times of a run: while it runs, when it began; then how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    /// Processor time of this process.
    pub(super) cpu_ns: u64,
    /// Time of the clock.
    pub(super) wall_ns: u64,
}

impl Meter {
    /// Begins now.
    pub(super) fn start() -> Self {
        Self { wall_ns: SystemClock.monotonic_ns(), cpu_ns: process_cpu_ns() }
    }

    /// The times since the beginning.
    pub(super) fn stop(self) -> Self {
        let cpu_ns = process_cpu_ns().saturating_sub(self.cpu_ns);
        Self { cpu_ns, wall_ns: SystemClock.monotonic_ns().saturating_sub(self.wall_ns) }
    }
}
