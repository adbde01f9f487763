use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::{ArrivalSignal, ArrivalSource};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::memory::Region;
use crate::notice::{Mailbox, NoticeReceiver, WakeWord};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a waiter knows of a subscription.
pub(super) struct Member {
    token: u32,
    key: usize,
    /// Its subscription may have something new.
    is_ready: AtomicBool,
    condition: Mutex<Condition>,
    /// It is among those that rest and are not armed yet. Changed under the lock of the waiter.
    is_resting: AtomicBool,
    /// When it is ready at the latest, because its program expects a value by then, ns.
    expected_ns: AtomicU64,
}

/// How to see that a subscription has something new.
#[derive(Debug)]
pub(crate) enum Condition {
    /// Only a thread of this process says so.
    Told,
    /// At this time, ns of the monotonic clock, or when a thread of this process says so.
    At(u64),
    /// There is a notice of a sequence after `seen`, or it is this time, ns.
    Notices { receiver: Arc<NoticeReceiver>, mailbox: Arc<Mailbox>, seen: Sequence, due_ns: u64 },
    /// The publisher has written, or it is this time, ns.
    Arrivals { source: Arc<dyn ArrivalSource>, signal: Arc<ArrivalSignal>, due_ns: Option<u64> },
    /// This memory has a value after `last`, names another one than `seen`, or the topic has ended.
    Values { memory: Arc<Region>, last: Sequence, seen: Sequence, topic: Arc<dyn Watched>, by: WokenBy },
}

/// A topic whose end is something new.
pub(crate) trait Watched: fmt::Debug + Send + Sync {
    /// Whether the topic has ended. Every receive calls it: one load.
    fn has_ended(&self) -> bool;
}

/// What to do with a member that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It is ready.
    Ready,
    /// To be looked at again at this time, ns.
    Again(u64),
    /// It need not be looked at.
    Done,
}

/// What wakes a subscription whose memory has a new value.
#[derive(Clone, Debug)]
pub(crate) enum WokenBy {
    /// The publisher, which finds this slot of its wake word armed.
    Slot(WakeWord, u32),
    /// Nothing: its memory is looked at again after so many nanoseconds, from this time on.
    Looks { interval_ns: u64, from_ns: u64 },
}

impl Member {
    pub(super) fn new(token: u32, key: usize) -> Self {
        let (condition, expected_ns) = (Mutex::new(Condition::Told), AtomicU64::new(u64::MAX));
        let (is_ready, is_resting) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { token, key, is_ready, condition, is_resting, expected_ns }
    }

    pub(super) fn token(&self) -> u32 {
        self.token
    }

    /// Whether its subscription may have something new.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        // Acquire: pairs with the Release in `Membership::rest`.
        self.is_ready.load(Ordering::Acquire)
    }

    pub(super) fn key(&self) -> usize {
        self.key
    }

    /// Whether it was not ready before.
    pub(super) fn become_ready(&self) -> bool {
        !self.is_ready.swap(true, Ordering::AcqRel)
    }

    /// The subscription has found nothing new, and this says how to see that it changes. Whether it was ready before.
    pub(super) fn rest(&self, condition: Condition) -> bool {
        let before = std::mem::replace(&mut *self.condition.lock(), condition);
        // Release: the condition is in place.
        let was_ready = self.is_ready.swap(false, Ordering::AcqRel);
        drop(before);
        was_ready
    }

    /// Whether it was not among those that rest.
    pub(super) fn begin_rest(&self) -> bool {
        !self.is_resting.swap(true, Ordering::Relaxed)
    }

    /// It is not among them any more.
    pub(super) fn end_rest(&self) {
        self.is_resting.store(false, Ordering::Relaxed);
    }

    /// It is ready at this time at the latest, ns.
    pub(super) fn expect_by(&self, due_ns: u64) {
        // Relaxed: it is read under the lock of the waiter, which the caller takes next.
        self.expected_ns.store(due_ns, Ordering::Relaxed);
    }

    /// Lets go of what its condition holds.
    pub(super) fn clear(&self) {
        let before = std::mem::replace(&mut *self.condition.lock(), Condition::Told);
        drop(before);
    }

    /// Whether its publisher wakes it, once it is armed.
    pub(super) fn is_woken(&self) -> bool {
        matches!(&*self.condition.lock(), Condition::Values { by: WokenBy::Slot(..), .. })
    }

    /// Tells its publisher that somebody waits. Whether that demands a barrier.
    pub(super) fn arm(&self) -> bool {
        match &*self.condition.lock() {
            Condition::Values { by: WokenBy::Slot(wake_word, slot), .. } => {
                wake_word.arm(*slot);
                wake_word.is_demanding()
            }
            Condition::Values { .. }
            | Condition::Notices { .. }
            | Condition::Arrivals { .. }
            | Condition::Told
            | Condition::At(_) => false,
        }
    }

    /// Whether its memory, or a notice, shows something new.
    pub(super) fn has_news(&self) -> bool {
        match &*self.condition.lock() {
            Condition::Values { memory, last, seen, topic, .. } => {
                let newest = Sequence::new(memory.load_acquire(HOT_SEQUENCE));
                // An earlier one if a reader has followed a number that no value has.
                topic.has_ended() || newest > *last || newest != *seen
            }
            Condition::Notices { mailbox, seen, .. } => mailbox.has_news(*seen),
            Condition::Arrivals { signal, .. } => signal.is_raised(),
            Condition::Told | Condition::At(_) => false,
        }
    }

    /// When to look at it, if nothing wakes it, ns.
    pub(super) fn look_ns(&self) -> Option<u64> {
        let expected_ns = Some(self.expected_ns.load(Ordering::Relaxed)).filter(|due_ns| *due_ns < u64::MAX);
        let due_ns = match &*self.condition.lock() {
            Condition::At(due_ns) | Condition::Notices { due_ns, .. } => Some(*due_ns),
            Condition::Arrivals { due_ns, .. } => *due_ns,
            Condition::Values { by: WokenBy::Looks { interval_ns, from_ns }, .. } => {
                Some(from_ns.saturating_add(*interval_ns))
            }
            Condition::Values { .. } | Condition::Told => None,
        };
        due_ns.into_iter().chain(expected_ns).min()
    }

    /// What to do with it at a time at which it is looked at.
    pub(super) fn look(&self, now_ns: u64) -> Look {
        if self.is_ready() {
            return Look::Done;
        }
        let expected_ns = self.expected_ns.load(Ordering::Relaxed);
        let is_over = self.has_news() || expected_ns <= now_ns;
        match &*self.condition.lock() {
            _ if is_over => Look::Ready,
            Condition::At(due_ns) | Condition::Notices { due_ns, .. } if *due_ns <= now_ns => Look::Ready,
            Condition::At(due_ns) | Condition::Notices { due_ns, .. } => {
                Look::Again(expected_ns.min(*due_ns))
            }
            Condition::Arrivals { due_ns: Some(due_ns), .. } if *due_ns <= now_ns => Look::Ready,
            Condition::Arrivals { due_ns: Some(due_ns), .. } => Look::Again(expected_ns.min(*due_ns)),
            Condition::Values { by: WokenBy::Looks { interval_ns, .. }, .. } => {
                Look::Again(expected_ns.min(now_ns.saturating_add(*interval_ns)))
            }
            _ if expected_ns < u64::MAX => Look::Again(expected_ns),
            Condition::Values { .. } | Condition::Arrivals { .. } | Condition::Told => Look::Done,
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Member").field("key", &self.key).field("is_ready", &self.is_ready()).finish()
    }
}
