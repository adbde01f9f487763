//! The only reader of the operating system's clocks. All other code uses a [`Clock`], so that a
//! simulation can control time.

mod keeper;
#[cfg(test)]
mod tests;
mod timeline;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};

pub(crate) use self::keeper::{Correction, Timekeeper};
pub(crate) use self::timeline::{Leap, Timeline};

/// The longest pause if the operating system is out of memory to wait with.
const PAUSE_WITHOUT_POLL: Duration = Duration::from_millis(1);
/// Nanoseconds per second.
const NS_PER_SECOND: u64 = 1_000_000_000;

/// A source of time. Reading it neither blocks nor allocates.
pub(crate) trait Clock: Debug + Send + Sync {
    /// Returns nanoseconds since a fixed moment; never decreases.
    fn monotonic_ns(&self) -> u64;

    /// Returns nanoseconds since the Unix epoch; may jump when the host's clock is set.
    fn realtime_ns(&self) -> u64;

    /// Returns for how long the host has been suspended since a fixed moment, nanoseconds: the monotonic clock stood still meanwhile.
    fn suspended_ns(&self) -> u64 {
        0
    }

    /// Sleeps for about this long. A virtual clock advances instead.
    fn pause(&self, duration: Duration);

    /// Like [`Self::pause`], but returns early once the handle is readable.
    fn pause_until(&self, readable: BorrowedFd<'_>, duration: Duration);
}

/// The operating system's clocks. On Linux both are read in user space.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn monotonic_ns(&self) -> u64 {
        nanoseconds(ClockId::Monotonic)
    }

    #[inline]
    fn realtime_ns(&self) -> u64 {
        nanoseconds(ClockId::Realtime)
    }

    fn suspended_ns(&self) -> u64 {
        nanoseconds(ClockId::Boottime).wrapping_sub(nanoseconds(ClockId::Monotonic))
    }

    #[expect(clippy::disallowed_methods, reason = "the only place that sleeps")]
    fn pause(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn pause_until(&self, readable: BorrowedFd<'_>, duration: Duration) {
        let timeout = Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let mut polled = [PollFd::from_borrowed_fd(readable, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            // The caller polls again.
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => self.pause(duration.min(PAUSE_WITHOUT_POLL)),
        }
    }
}

/// Read directly: [`std::time::SystemTime`] costs as much again as the clock.
#[inline]
fn nanoseconds(clock: ClockId) -> u64 {
    let Timespec { tv_sec, tv_nsec } = rustix::time::clock_gettime(clock);
    tv_sec.cast_unsigned().wrapping_mul(NS_PER_SECOND).wrapping_add(tv_nsec.cast_unsigned())
}

/// The processor time of all threads of this process.
#[cfg(feature = "verbs")]
pub(crate) fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// Returns a number of this boot of the host; 0 if it is unknown.
pub(crate) fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    let digits = |text: String| {
        text.bytes().filter(u8::is_ascii_hexdigit).take(16).map(char::from).collect::<String>()
    };
    let number = |text| u64::from_str_radix(&digits(text), 16).ok();
    let read =
        || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().and_then(number).unwrap_or(0);
    *BOOT.get_or_init(read)
}

/// Converts a duration to nanoseconds, at most `u64::MAX` (584 years).
pub(crate) fn saturate(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the number of this process's time namespace; 0 if it is unknown, or the kernel has none. Processes of one host with the same
/// number have the same monotonic clock (time_namespaces(7)).
pub(crate) fn namespace() -> u64 {
    static NAMESPACE: OnceLock<u64> = OnceLock::new();
    *NAMESPACE.get_or_init(|| std::fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino()))
}
