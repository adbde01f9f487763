use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Waiter;
use crate::fabric::KeyedWaker;
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::memory::Region;
use crate::notice::WakeWord;
use crate::subscriber::subscription::Attachment;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A subscription's membership in a waiter, until the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Membership(pub(super) Arc<Member>);

/// What a waiter knows of a subscription.
pub(super) struct Member {
    waiter: Weak<Waiter>,
    token: u32,
    key: usize,
    /// Its subscription may have something new.
    is_ready: AtomicBool,
    condition: Mutex<Condition>,
}

/// How to see that a subscription has something new.
#[derive(Debug)]
pub(crate) enum Condition {
    /// Only a thread of this process says so.
    Told,
    /// At this time, ns of the monotonic clock, or when a thread of this process says so.
    At(u64),
    /// This memory has a value after `last`, or the topic has ended.
    Values { memory: Arc<Region>, last: Sequence, attachment: Arc<dyn Attachment>, by: WokenBy },
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

impl Membership {
    /// Its waiter.
    pub(crate) fn waiter(&self) -> Option<Arc<Waiter>> {
        self.0.waiter.upgrade()
    }

    /// What wakes it from other processes.
    pub(crate) fn token(&self) -> u32 {
        self.0.token
    }

    /// What wakes it from threads of this process. `None` once its waiter is gone.
    pub(crate) fn waker(&self) -> Option<KeyedWaker> {
        Some(self.waiter()?.waker(self.token()))
    }

    /// Whether its subscription may have something new.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    /// The subscription has found nothing new. `condition` says how to see that this changes.
    pub(crate) fn rest(&self, condition: Condition) {
        let Some(waiter) = self.waiter() else { return };
        let before = std::mem::replace(&mut *self.0.condition.lock(), condition);
        // Release: the condition is in place.
        if self.0.is_ready.swap(false, Ordering::AcqRel) {
            waiter.rest(Arc::clone(&self.0));
        }
        drop(before);
    }

    /// The subscription wants to be polled again at this time, ns, even if it rests because of another condition.
    pub(crate) fn rest_until(&self, due_ns: u64) {
        // Its waiter then takes it anew. A wake-up that this hides costs as long as the time takes to come.
        self.0.become_ready();
        self.rest(Condition::At(due_ns));
    }
}

impl Member {
    pub(super) fn new(waiter: Weak<Waiter>, token: u32, key: usize) -> Self {
        let condition = Mutex::new(Condition::Told);
        Self { waiter, token, key, is_ready: AtomicBool::new(true), condition }
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

    /// Tells its publisher that somebody waits. Whether that demands a barrier.
    pub(super) fn arm(&self) -> bool {
        match &*self.condition.lock() {
            Condition::Values { by: WokenBy::Slot(wake_word, slot), .. } => {
                wake_word.arm(*slot);
                wake_word.is_demanding()
            }
            Condition::Values { .. } | Condition::Told | Condition::At(_) => false,
        }
    }

    /// Whether its memory shows something new.
    pub(super) fn has_news(&self) -> bool {
        match &*self.condition.lock() {
            Condition::Values { memory, last, attachment, .. } => {
                attachment.has_ended() || memory.load_acquire(HOT_SEQUENCE) > last.get()
            }
            Condition::Told | Condition::At(_) => false,
        }
    }

    /// When to look at it, if nothing wakes it, ns.
    pub(super) fn look_ns(&self) -> Option<u64> {
        match &*self.condition.lock() {
            Condition::At(due_ns) => Some(*due_ns),
            Condition::Values { by: WokenBy::Looks { interval_ns, from_ns }, .. } => {
                Some(from_ns.saturating_add(*interval_ns))
            }
            Condition::Values { .. } | Condition::Told => None,
        }
    }

    /// What to do with it at a time at which it is looked at.
    pub(super) fn look(&self, now_ns: u64) -> Look {
        if self.is_ready() {
            return Look::Done;
        }
        let has_news = self.has_news();
        match &*self.condition.lock() {
            _ if has_news => Look::Ready,
            Condition::At(due_ns) if *due_ns <= now_ns => Look::Ready,
            Condition::At(due_ns) => Look::Again(*due_ns),
            Condition::Values { by: WokenBy::Looks { interval_ns, .. }, .. } => {
                Look::Again(now_ns.saturating_add(*interval_ns))
            }
            Condition::Values { .. } | Condition::Told => Look::Done,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter() {
            waiter.forget(self.token());
        }
        // Here, where no lock is held: this may be the last use of a session.
        drop(std::mem::replace(&mut *self.0.condition.lock(), Condition::Told));
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Member").field("key", &self.key).field("is_ready", &self.is_ready()).finish()
    }
}
