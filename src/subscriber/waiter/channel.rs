use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use super::member::Condition;
use crate::clock::{Clock, SystemClock};
use crate::fabric::{ArrivalSource, FabricError, Interest, Poller};
use crate::notice::NoticeReceiver;

/// Turns of a channel's receiver in one wait.
const TURNS_MAX: usize = 16;

/// What receives for the members that share it.
#[derive(Debug)]
pub(super) enum Channel {
    /// Notices.
    Notices(Weak<NoticeReceiver>),
    /// Wake-ups that come with writes.
    Arrivals(Weak<dyn ArrivalSource>),
}

impl Channel {
    /// What this member needs, if anything.
    pub(super) fn of(condition: &Condition) -> Option<Self> {
        match condition {
            Condition::Notices { receiver, .. } => Some(Self::Notices(Arc::downgrade(receiver))),
            Condition::Arrivals { source, .. } => Some(Self::Arrivals(Arc::downgrade(source))),
            Condition::Told | Condition::At(_) | Condition::Values { .. } => None,
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Notices(one), Self::Notices(other)) => one.ptr_eq(other),
            (Self::Arrivals(one), Self::Arrivals(other)) => std::ptr::addr_eq(one.as_ptr(), other.as_ptr()),
            _ => false,
        }
    }

    /// Has its handle end the wait. False once it is gone.
    pub(super) fn watch(&self, key: u64, poller: &Poller) -> Result<bool, FabricError> {
        let watch = |handle: Option<BorrowedFd<'_>>| {
            handle.map_or(Ok(()), |handle| poller.watch(key, handle, Some(Interest::Read)))
        };
        match self {
            Self::Notices(receiver) => match receiver.upgrade() {
                Some(receiver) => watch(receiver.wait_handle()?).map(|()| true),
                None => Ok(false),
            },
            Self::Arrivals(source) => match source.upgrade() {
                Some(source) => watch(source.arm()?).map(|()| true),
                None => Ok(false),
            },
        }
    }

    /// Receives what has arrived.
    pub(super) fn receive(&self) {
        match self {
            Self::Notices(receiver) => {
                let Some(receiver) = receiver.upgrade() else { return };
                let now_ns = SystemClock.monotonic_ns();
                // An error is reported by the session; the members' timers still work.
                let turns = (0..TURNS_MAX).take_while(|_| receiver.turn(now_ns).unwrap_or(false));
                turns.for_each(drop);
            }
            Self::Arrivals(source) => source.upgrade().into_iter().for_each(|source| source.take()),
        }
    }
}
