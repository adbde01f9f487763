//! Whether another process is asleep, by the word of the kernel.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use super::super::interrupt::Interrupt;
use super::trouble::{Trouble, wait};

/// Checks for a subscriber that falls asleep, before a value is published all the same.
const AWAKE_MAX: u32 = 2000;
/// The pause between two checks.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// Bytes of the file up to the state: a number, a name of up to 15 bytes in parentheses.
const STATE_BY: usize = 64;

/// The state of a process's main thread.
pub(super) struct MainThread(File);

impl MainThread {
    /// That of the process with this number.
    pub(super) fn of(process: u32) -> Result<Self, Trouble> {
        let path = format!("/proc/{process}/task/{process}/stat");
        let file = File::open(&path)
            .map_err(|error| format!("cannot tell whether a process sleeps: {path}: {error}"))?;
        Ok(Self(file))
    }

    /// Waits briefly until it sleeps. False if it does not.
    pub(super) fn await_sleep(&self, interrupt: &Interrupt) -> Result<bool, Trouble> {
        for _ in 0..AWAKE_MAX {
            if self.is_asleep()? {
                return Ok(true);
            }
            wait(interrupt, LOOK_AGAIN)?;
        }
        self.is_asleep()
    }

    fn is_asleep(&self) -> Result<bool, Trouble> {
        let mut text = [0; STATE_BY];
        let len = self.0.read_at(&mut text, 0)?;
        Ok(is_asleep(text.split_at(len.min(STATE_BY)).0))
    }
}

/// Whether the beginning of such a file shows a thread that waits for an event.
fn is_asleep(stat: &[u8]) -> bool {
    // The name may have parentheses of its own; what follows it has none.
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    name_end.and_then(|end| stat.get(end + 1..)).is_some_and(|rest| rest.starts_with(b" S"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_the_name() {
        assert!(is_asleep(b"4021 (fabricast) S 1 4021 4021 0"));
        assert!(is_asleep(b"4021 (a) R (b) S 1 4021"));
        assert!(!is_asleep(b"4021 (a) S (b) R 1 4021"));
        assert!(
            !is_asleep(b"4021 (fabricast) R 1 4021") && !is_asleep(b"4021 (fabricast)") && !is_asleep(b"")
        );
    }

    #[test]
    fn running_thread_is_not_asleep() {
        let this =
            format!("/proc/{}/task/{}/stat", std::process::id(), rustix::thread::gettid().as_raw_nonzero());
        assert!(!MainThread(File::open(this).unwrap()).is_asleep().unwrap());
    }
}
