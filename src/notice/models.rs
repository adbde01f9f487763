//! Models of a wake word. No time passes in them: a lost wake-up leaves a thread asleep, which loom reports as a deadlock.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::Notify;
use loom::thread;

use super::wake_word::{WAKE_WORD_LEN, WakeWord};
use crate::memory::{Protection, Region};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::model::{Preemptions, check};

/// A wake word, with or without barriers issued by sleepers, and what is published.
fn world(has_barriers: bool) -> (WakeWord, WakeWord, Arc<AtomicU64>) {
    let memory = Arc::new(Region::allocate(WAKE_WORD_LEN, Protection::PeersWrite).unwrap());
    let open = if has_barriers { WakeWord::of_publisher } else { WakeWord::new };
    let waking = open(Arc::clone(&memory));
    (waking, WakeWord::new(memory), Arc::new(AtomicU64::new(0)))
}

/// Sleeps until this is published.
fn await_value(wake_word: &WakeWord, published: &AtomicU64, wanted: u64) {
    while published.load(Ordering::Acquire) < wanted {
        wake_word.sleep(Duration::MAX, || published.load(Ordering::Acquire) >= wanted);
    }
}

fn check_sleepers(has_barriers: bool, sleepers: u64, publishes: u64, preemptions: Preemptions) {
    check(preemptions, move || {
        let (waking, sleeping, published) = world(has_barriers);
        loom::explore();
        let sleeping: Vec<_> = (0..sleepers)
            .map(|_| {
                let (wake_word, published) = (sleeping.clone(), Arc::clone(&published));
                thread::spawn(move || await_value(&wake_word, &published, publishes))
            })
            .collect();
        for value in 1..=publishes {
            published.store(value, Ordering::Release);
            waking.wake();
        }
        sleeping.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Two threads: a sleeper, and two publishes. Both sides have fences.
pub fn sleeper_misses_no_publish() {
    check_sleepers(false, 1, 2, Preemptions { quick: Some(4), long: None });
}

/// Two threads: a sleeper that issues the barrier, and two publishes.
pub fn sleeper_with_a_barrier_misses_no_publish() {
    check_sleepers(true, 1, 2, Preemptions { quick: Some(4), long: None });
}

/// Three threads: two sleepers and one publish. A wake reaches one sleeper (four outside of models), which wakes the other.
pub fn wake_reaches_every_sleeper() {
    check_sleepers(false, 2, 1, Preemptions { quick: Some(3), long: None });
}

/// Two threads: a subscriber waits at a socket, twice, while two values are published. Its slot says so.
pub fn subscriber_at_a_socket_misses_no_publish() {
    check(Preemptions { quick: Some(4), long: None }, || {
        const SLOT: u32 = 0;
        let (waking, waiting, published) = world(false);
        let socket = Arc::new(Notify::new());
        loom::explore();
        let subscriber = thread::spawn({
            let (published, socket) = (Arc::clone(&published), Arc::clone(&socket));
            move || {
                while published.load(Ordering::Acquire) < 2 {
                    waiting.arm(SLOT);
                    WakeWord::settle(waiting.is_demanding());
                    if published.load(Ordering::Acquire) < 2 {
                        socket.wait();
                    }
                }
            }
        });
        for value in 1..=2 {
            published.store(value, Ordering::Release);
            if waking.wake() && waking.disarm(SLOT) {
                socket.notify();
            }
        }
        subscriber.join().unwrap();
    });
}
