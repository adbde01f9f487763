use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock, saturate};
use crate::layout::{LINE, WORD};
use crate::memory::Region;
use crate::sync::atomic::{Ordering, compiler_fence, fence};
use crate::sync::{barrier, futex};

/// Slots of a wake word: subscribers that wait at sockets.
pub(crate) const WAKE_SLOTS: u32 = 1008;
/// The offset of the slots, a word each: not 0 while its subscriber waits.
const SLOTS: usize = 2 * LINE;
/// Bytes of a wake word's memory: two pages.
pub(crate) const WAKE_WORD_LEN: usize = SLOTS + WAKE_SLOTS as usize * WORD;
/// Not 0 while a subscriber may be asleep.
const SLEEPERS: usize = 0;
/// Not 0 if sleepers issue the barrier between the publisher's stores and its load of `SLEEPERS`.
const DEMANDED: usize = SLEEPERS + WORD;
/// Counts the wakes. The kernel compares it with what a sleeper has read.
const WAKES: usize = LINE;
/// Sleepers that the publisher wakes.
const WOKEN_FIRST: u32 = if cfg!(loom) { 1 } else { 4 };
/// Sleepers that each woken one wakes.
const WOKEN_NEXT: u32 = if cfg!(loom) { 1 } else { 2 };

const _: () = assert!(WAKES + WORD <= SLOTS && WAKE_WORD_LEN == 8192);

/// Wakes sleeping subscribers of one host, at a cost to the publisher that does not depend on their number: it wakes a few, and
/// each of them wakes more of those that slept before this wake.
///
/// All of them write its memory. Nonsense written there costs subscribers a wake-up, so that they read when their sleep times
/// out, and the publisher a system call for each publish.
#[derive(Clone, Debug)]
pub(crate) struct WakeWord {
    memory: Arc<Region>,
    /// Sleepers issue the barrier for this process (`membarrier(2)`).
    has_barriers: bool,
}

impl WakeWord {
    /// Opens the wake word in this memory, which every user maps for writing. Zeros are a fresh one.
    ///
    /// # Panics
    ///
    /// When the memory is shorter than [`WAKE_WORD_LEN`].
    pub(crate) fn new(memory: Arc<Region>) -> Self {
        assert!(memory.len() >= WAKE_WORD_LEN, "memory too short for a wake word");
        Self { memory, has_barriers: false }
    }

    /// Opens it for the publisher, which then pays the least for a wake.
    pub(crate) fn of_publisher(memory: Arc<Region>) -> Self {
        // Without that permission the publisher issues the barrier at each wake.
        let has_barriers = barrier::register();
        let wake_word = Self { has_barriers, ..Self::new(memory) };
        // Release: a sleeper that reads it knows that the process is registered. The memory is not shared yet.
        wake_word.memory.store_release(DEMANDED, has_barriers.into());
        wake_word
    }

    /// Wakes the sleepers, which then see everything published before. Makes a system call only if a subscriber may be asleep. Returns
    /// whether one may be: then those that wait at sockets are to be woken as well.
    #[inline]
    pub(crate) fn wake(&self) -> bool {
        // SeqCst: either the load below sees the sleeper, or the sleeper's check sees what was published before this. Pairs with
        // the fence in `sleep`. Where sleepers issue a barrier for this process, program order is enough here.
        if self.has_barriers {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        let has_sleepers = self.memory.load(SLEEPERS) != 0;
        if has_sleepers {
            self.wake_sleepers();
        }
        has_sleepers
    }

    /// Says that the subscriber of this slot waits at a socket. It may wait once it has called [`Self::settle`] and then found nothing
    /// new. A slot that does not exist is left alone.
    pub(crate) fn arm(&self, slot: u32) {
        let Some(offset) = slot_offset(slot) else { return };
        self.memory.store(offset, 1);
        // Release: a publisher that reads this finds the slot. Pairs with the Acquire in `disarm`.
        self.memory.store_release(SLEEPERS, 1);
    }

    /// Settles what [`Self::arm`] has said at some wake words: a publisher either sees it, or has published what the caller finds after
    /// this call. `is_demanded`: one of them demands it.
    pub(crate) fn settle(is_demanded: bool) {
        // SeqCst: pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
        if is_demanded {
            // Fails where the process lacks permission: a wake may then be missed, and the timeout ends the wait.
            barrier::issue();
        }
    }

    /// Whether the publisher relies on a barrier issued by [`Self::settle`].
    pub(crate) fn is_demanding(&self) -> bool {
        self.memory.load_acquire(DEMANDED) != 0
    }

    /// Whether the subscriber of this slot waits. Then it is to be woken, and does not wait any more.
    pub(crate) fn disarm(&self, slot: u32) -> bool {
        let Some(offset) = slot_offset(slot) else { return false };
        // Acquire: see `arm`.
        let is_armed = self.memory.load_acquire(offset) != 0;
        if is_armed {
            self.memory.store(offset, 0);
        }
        is_armed
    }

    /// Sleeps until the next wake or the timeout; not at all if `has_news`. `has_news` must check what the publisher writes
    /// before it wakes.
    pub(crate) fn sleep(&self, timeout: Duration, has_news: impl FnOnce() -> bool) {
        let wakes = self.memory.half(WAKES);
        // Acquire: `has_news` below reads nothing older.
        let seen = wakes.load(Ordering::Acquire);
        self.memory.store(SLEEPERS, 1);
        Self::settle(self.is_demanding());
        if has_news() {
            return;
        }
        let deadline_ns = SystemClock.monotonic_ns().saturating_add(saturate(timeout));
        let deadline = futex::Timespec::try_from(Duration::from_nanos(deadline_ns)).ok();
        // An error is an earlier wake, a signal or the timeout: the caller checks again in any case.
        let woken = futex::wait_bitset(wakes, seen, deadline.as_ref(), mark(seen));
        // Relaxed: only compared.
        let now = wakes.load(Ordering::Relaxed);
        if woken.is_ok() && now != seen {
            // Only those that slept before this wake: otherwise sleepers would wake one another for ever.
            let older = NonZeroU32::new(!mark(now).get()).unwrap_or(NonZeroU32::MAX);
            futex::wake_bitset(wakes, WOKEN_NEXT, older);
        }
    }

    /// Whether a subscriber may be asleep.
    #[cfg(test)]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.memory.load(SLEEPERS) != 0
    }

    #[cold]
    fn wake_sleepers(&self) {
        self.memory.store(SLEEPERS, 0);
        // A slot that is read after this was armed before, or SLEEPERS is stored again.
        fence(Ordering::SeqCst);
        let wakes = self.memory.half(WAKES);
        // Release: a woken subscriber sees what was published before.
        wakes.fetch_add(1, Ordering::Release);
        futex::wake(wakes, WOKEN_FIRST);
    }
}

/// The offset of a slot.
fn slot_offset(slot: u32) -> Option<usize> {
    (slot < WAKE_SLOTS).then_some(SLOTS + slot as usize * WORD)
}

/// The futex bit of sleepers that have read this count. It distinguishes 32 consecutive counts.
fn mark(seen: u32) -> NonZeroU32 {
    NonZeroU32::new(1_u32.rotate_left(seen % u32::BITS)).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use super::*;
    use crate::memory::{Access, Protection};
    use crate::sync::atomic::AtomicU64;

    /// Longer than any machine is busy: a sleep this long was never woken.
    const SLEEP: Duration = Duration::from_secs(600);

    fn elapsed(began_ns: u64) -> Duration {
        Duration::from_nanos(SystemClock.monotonic_ns() - began_ns)
    }

    fn wake_word() -> WakeWord {
        WakeWord::of_publisher(Arc::new(Region::allocate(WAKE_WORD_LEN, Protection::PeersWrite).unwrap()))
    }

    /// The same wake word as another process maps it.
    fn mapped_again(wake_word: &WakeWord) -> WakeWord {
        WakeWord::new(Arc::new(
            Region::import(wake_word.memory.file(), WAKE_WORD_LEN, Access::Write).unwrap(),
        ))
    }

    #[test]
    fn sleepers_never_miss_a_publish() {
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
                        assert!(elapsed(began_ns) < SLEEP, "missed a wake");
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

    /// A woken subscriber that sleeps again is woken by the next wake only: otherwise sleepers would wake one another for ever.
    #[test]
    fn woken_sleeper_stays_asleep_until_the_next_wake() {
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
            // Never woken.
            wake_word().sleep(Duration::from_millis(10), || false);
            news.store(round, Ordering::Release);
            waking.wake();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        let (looks, needed) = (looks.load(Ordering::Relaxed), sleepers * (rounds + 1));
        assert!(looks <= 2 * needed, "{looks} checks instead of {needed}");
    }

    /// The path of the memory, for a process that prints when it falls asleep.
    const MEMORY_VARIABLE: &str = "FABRICAST_TEST_WAKE_WORD";

    /// The part of the process that is killed. Does nothing as a test of its own.
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

    /// Starts a process that sleeps on this wake word, and waits until it does.
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

    /// The sleepers that a wake reaches first, and that would wake the others, die in their sleep.
    #[test]
    fn wake_reaches_all_sleepers_though_the_first_were_killed() {
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
        // They reported just before they sleep. This one is never woken.
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
        assert!(elapsed(began_ns) < SLEEP, "woken only by the timeout");
    }

    #[test]
    fn sleep_ends_at_its_timeout_and_never_begins_with_news() {
        let wake_word = wake_word();
        let began_ns = SystemClock.monotonic_ns();
        wake_word.sleep(Duration::from_millis(20), || false);
        assert!(elapsed(began_ns) >= Duration::from_millis(15));
        wake_word.sleep(Duration::from_secs(1000), || true);
        assert!(elapsed(began_ns) < Duration::from_secs(100));
    }
}
