use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{MembarrierCommand, futex, membarrier};

use crate::clock::{Clock, SystemClock, saturate};
use crate::layout::{LINE, WORD};
use crate::memory::Region;
use crate::sync::atomic::{Ordering, compiler_fence, fence};

/// Bytes of the memory that a wake word needs.
pub(crate) const WAKE_WORD_LEN: usize = 2 * LINE;
/// Not 0 while somebody may be asleep.
const SLEEPERS: usize = 0;
/// Not 0 if whoever wakes leaves the barrier between its stores and its look at the sleepers to those who go to sleep.
const DEMANDED: usize = SLEEPERS + WORD;
/// Goes on with every ring. The operating system compares it with what a sleeper has seen.
const WAKES: usize = LINE;
/// Sleepers that are woken by whoever wakes.
const WOKEN_FIRST: u32 = 4;
/// Sleepers that are woken by each one that wakes.
const WOKEN_NEXT: u32 = 2;

const _: () = assert!(WAKES + WORD <= WAKE_WORD_LEN);

/// Wakes subscribers of one host that sleep, at a cost to the publisher that does not depend on how many they are: it wakes a
/// few, and each of these some more of those that slept when it rang.
///
/// It is memory that all of them write. Who writes nonsense there costs the others a wake-up, so that they look when their time is
/// over, and the publisher a system call for each publish.
#[derive(Clone, Debug)]
pub(crate) struct WakeWord {
    memory: Arc<Region>,
    /// Those who go to sleep see to it that this process has a barrier (`membarrier(2)`).
    has_barriers: bool,
}

impl WakeWord {
    /// The wake word in this memory, which all who use it map for writing. Zeros are a wake word that nobody has rung.
    ///
    /// # Panics
    ///
    /// When the memory is shorter than [`WAKE_WORD_LEN`], which is a mistake of the caller.
    pub(crate) fn new(memory: Arc<Region>) -> Self {
        assert!(memory.len() >= WAKE_WORD_LEN, "memory that is too short for a wake word");
        Self { memory, has_barriers: false }
    }

    /// As [`Self::new`], for the one who wakes: it costs least there.
    pub(crate) fn of_publisher(memory: Arc<Region>) -> Self {
        // Who may not ask for that has the barrier at each ring.
        let has_barriers = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        let wake_word = Self { has_barriers, ..Self::new(memory) };
        // Release: who sees it knows that the process is registered. Nobody has the memory yet.
        wake_word.memory.store_release(DEMANDED, has_barriers.into());
        wake_word
    }

    /// Wakes who sleeps. Everything that was published before is seen by those who wake. Calls the operating system only if
    /// somebody may be asleep.
    #[inline]
    pub(crate) fn wake(&self) {
        // SeqCst: either the load below sees that somebody goes to sleep, or that one sees what was published before this.
        // Pairs with the fence in `sleep`. Where that one has the operating system put a barrier into this process, the order of
        // the program is all that is needed here.
        if self.has_barriers {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        if self.memory.load(SLEEPERS) != 0 {
            self.wake_sleepers();
        }
    }

    /// Sleeps until the wake word is rung, or this time is over; not at all if there is news already. `has_news` must look at what
    /// the publisher writes before it wakes.
    pub(crate) fn sleep(&self, timeout: Duration, has_news: impl FnOnce() -> bool) {
        let wakes = self.memory.half(WAKES);
        // Acquire: what is looked at below is not older than this.
        let seen = wakes.load(Ordering::Acquire);
        self.memory.store(SLEEPERS, 1);
        // SeqCst: pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        if self.memory.load_acquire(DEMANDED) != 0 {
            // It fails where the process may not call it: then a ring may be missed, and the end of the time wakes this one.
            let _ = membarrier(MembarrierCommand::GlobalExpedited);
        }
        if has_news() {
            return;
        }
        let deadline_ns = SystemClock.monotonic_ns().saturating_add(saturate(timeout));
        let deadline = futex::Timespec::try_from(Duration::from_nanos(deadline_ns)).ok();
        // An error is a ring that came first, a signal, or the end of the time: the caller looks again in any case.
        let woken = futex::wait_bitset(wakes, futex::Flags::empty(), seen, deadline.as_ref(), mark(seen));
        // Relaxed: a number to be compared.
        let now = wakes.load(Ordering::Relaxed);
        if woken.is_ok() && now != seen {
            // Only those who sleep since before that ring, or who sleep again would be woken by one another for ever.
            let older = NonZeroU32::new(!mark(now).get()).unwrap_or(NonZeroU32::MAX);
            let _ = futex::wake_bitset(wakes, futex::Flags::empty(), WOKEN_NEXT, older);
        }
    }

    /// Whether somebody may be asleep.
    #[cfg(test)]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.memory.load(SLEEPERS) != 0
    }

    #[cold]
    fn wake_sleepers(&self) {
        self.memory.store(SLEEPERS, 0);
        let wakes = self.memory.half(WAKES);
        // Release: who sees the ring sees what was published before.
        wakes.fetch_add(1, Ordering::Release);
        // It fails only where the memory is no memory.
        let _ = futex::wake(wakes, futex::Flags::empty(), WOKEN_FIRST);
    }
}

/// What sleepers who have seen this many wakes are marked with: those of 32 wakes in a row are told from one another.
fn mark(seen: u32) -> NonZeroU32 {
    NonZeroU32::new(1_u32.rotate_left(seen % u32::BITS)).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use super::*;
    use crate::memory::{Access, Protection};
    use crate::sync::atomic::AtomicU64;

    /// Whoever sleeps for so long was woken by nobody: longer than any machine is busy.
    const SLEEP: Duration = Duration::from_secs(600);

    fn elapsed(began_ns: u64) -> Duration {
        Duration::from_nanos(SystemClock.monotonic_ns() - began_ns)
    }

    fn wake_word() -> WakeWord {
        WakeWord::of_publisher(Arc::new(Region::allocate(WAKE_WORD_LEN, Protection::PeersWrite).unwrap()))
    }

    /// The same wake word as another process has it.
    fn mapped_again(wake_word: &WakeWord) -> WakeWord {
        WakeWord::new(Arc::new(
            Region::import(wake_word.memory.file(), WAKE_WORD_LEN, Access::Write).unwrap(),
        ))
    }

    #[test]
    fn nobody_sleeps_over_what_was_published() {
        let (waking, value) = (wake_word(), Arc::new(AtomicU64::new(0)));
        let rounds = 20_000;
        let sleeping: Vec<_> = (0..3)
            .map(|_| {
                let (wake_word, value) = (mapped_again(&waking), Arc::clone(&value));
                std::thread::spawn(move || {
                    let mut seen = 0;
                    while seen < rounds {
                        let began_ns = SystemClock.monotonic_ns();
                        wake_word.sleep(SLEEP, || value.load(Ordering::Acquire) > seen);
                        assert!(elapsed(began_ns) < SLEEP, "slept over it");
                        seen = value.load(Ordering::Acquire);
                    }
                })
            })
            .collect();
        for round in 1..=rounds {
            value.store(round, Ordering::Release);
            waking.wake();
            if round % 64 == 0 {
                std::thread::yield_now();
            }
        }
        for thread in sleeping {
            thread.join().unwrap();
        }
    }

    #[test]
    fn one_wake_reaches_all() {
        let (waking, awake) = (wake_word(), Arc::new(AtomicU64::new(0)));
        let news = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..40)
            .map(|_| {
                let (wake_word, awake, news) = (mapped_again(&waking), Arc::clone(&awake), Arc::clone(&news));
                std::thread::spawn(move || {
                    awake.fetch_add(1, Ordering::SeqCst);
                    while news.load(Ordering::Acquire) == 0 {
                        wake_word.sleep(SLEEP, || news.load(Ordering::Acquire) > 0);
                    }
                })
            })
            .collect();
        while awake.load(Ordering::SeqCst) < 40 {
            std::thread::yield_now();
        }
        let began_ns = SystemClock.monotonic_ns();
        news.store(1, Ordering::Release);
        waking.wake();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(elapsed(began_ns) < SLEEP);
    }

    /// Who was woken, and sleeps again, is woken by the next ring and by nobody else: otherwise those who sleep would wake one
    /// another for ever.
    #[test]
    fn who_sleeps_again_stays_asleep() {
        let (waking, news, looks) = (wake_word(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (sleepers, rounds) = (16, 20);
        let threads: Vec<_> = (0..sleepers)
            .map(|_| {
                let (wake_word, news, looks) = (mapped_again(&waking), Arc::clone(&news), Arc::clone(&looks));
                std::thread::spawn(move || {
                    let mut seen = 0;
                    while seen <= rounds {
                        looks.fetch_add(1, Ordering::Relaxed);
                        wake_word.sleep(SLEEP, || news.load(Ordering::Acquire) > seen);
                        seen = news.load(Ordering::Acquire);
                    }
                })
            })
            .collect();
        for round in 1..=rounds + 1 {
            // Nobody wakes this one.
            wake_word().sleep(Duration::from_millis(10), || false);
            news.store(round, Ordering::Release);
            waking.wake();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        let (looks, needed) = (looks.load(Ordering::Relaxed), sleepers * (rounds + 1));
        assert!(looks <= 2 * needed, "{looks} looks instead of {needed}");
    }

    /// Where another process finds the memory of the wake word, and whom it tells that it goes to sleep.
    const MEMORY_VARIABLE: &str = "FABRICAST_TEST_WAKE_WORD";

    /// The part of a process that is killed; a test of its own does nothing.
    #[test]
    fn sleeper_that_is_killed() {
        let Ok(path) = std::env::var(MEMORY_VARIABLE) else { return };
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let wake_word =
            WakeWord::new(Arc::new(Region::import(file.as_fd(), WAKE_WORD_LEN, Access::Write).unwrap()));
        wake_word.sleep(SLEEP, || {
            println!("asleep");
            false
        });
        println!("awake");
    }

    /// Starts a process that sleeps at this wake word, and waits until it does.
    fn sleeper(wake_word: &WakeWord) -> std::process::Child {
        use std::io::BufRead as _;

        let path = format!("/proc/{}/fd/{}", std::process::id(), wake_word.memory.file().as_raw_fd());
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let command =
            command.args(["--exact", "--nocapture", "notice::wake_word::tests::sleeper_that_is_killed"]);
        let mut child =
            command.env(MEMORY_VARIABLE, path).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("asleep")));
        child
    }

    /// Those that a ring would wake first, and that would wake the others, die in their sleep.
    #[test]
    fn the_chain_of_wakes_does_not_break_with_those_who_are_killed_asleep() {
        let (waking, news) = (wake_word(), Arc::new(AtomicU64::new(0)));
        let killed: Vec<_> = (0..WOKEN_FIRST).map(|_| sleeper(&waking)).collect();
        let (asleep, woken) = std::sync::mpsc::channel();
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let (wake_word, news, asleep) = (mapped_again(&waking), Arc::clone(&news), asleep.clone());
                std::thread::spawn(move || {
                    while news.load(Ordering::Acquire) == 0 {
                        wake_word.sleep(SLEEP, || {
                            asleep.send(()).unwrap();
                            news.load(Ordering::Acquire) > 0
                        });
                    }
                })
            })
            .collect();
        assert_eq!(woken.iter().take(16).count(), 16);
        // They have said so just before they sleep. Nobody wakes this one.
        wake_word().sleep(Duration::from_millis(100), || false);
        for mut child in killed {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let began_ns = SystemClock.monotonic_ns();
        news.store(1, Ordering::Release);
        waking.wake();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(elapsed(began_ns) < SLEEP, "woken by their own time only");
    }

    #[test]
    fn a_sleep_ends_with_its_time_and_does_not_begin_with_news() {
        let wake_word = wake_word();
        let began_ns = SystemClock.monotonic_ns();
        wake_word.sleep(Duration::from_millis(20), || false);
        assert!(elapsed(began_ns) >= Duration::from_millis(15));
        wake_word.sleep(Duration::from_secs(1000), || true);
        assert!(elapsed(began_ns) < Duration::from_secs(100));
    }
}
