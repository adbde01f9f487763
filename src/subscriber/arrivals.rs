//! A push subscriber over RDMA, which the publisher's writes wake.

use std::sync::Arc;
use std::time::Duration;

use super::waiter::Condition;
use crate::chain::ErrorChain;
use crate::clock::Clock;
use crate::fabric::{ArrivalSignal, ArrivalSource, KeyedWaker};
use crate::id::Sequence;
use crate::limits;

/// How long after the last write a subscriber checks once more, nanoseconds: what was wrong for so long counts as damaged.
const SETTLED_NS: u64 = limits::ARRIVAL_SETTLED_NS + limits::ARRIVAL_SETTLED_NS / 10;
/// The pause where waiting fails.
const PAUSE: Duration = Duration::from_nanos(limits::WAITER_POLL_NS);

/// The wake-ups of one subscription.
#[derive(Debug)]
pub(crate) struct ArrivalSubscription {
    source: Arc<dyn ArrivalSource>,
    signal: Arc<ArrivalSignal>,
    /// The last value received when it last had nothing new.
    last: Option<Sequence>,
    /// When to check once more although nothing was written, ns of the monotonic clock.
    settled_ns: Option<u64>,
}

impl ArrivalSubscription {
    /// The subscription to the wake-ups with this token.
    pub(crate) fn new(source: Arc<dyn ArrivalSource>, token: u32) -> Self {
        let signal = source.signal(token);
        Self { source, signal, last: None, settled_ns: None }
    }

    /// Waits for a write, or for `left`. If that fails, it pauses briefly.
    pub(super) fn wait(&self, clock: &dyn Clock, left: Duration) {
        if let Err(error) = self.source.wait(&self.signal, clock, left) {
            tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "writes cannot be waited for");
            clock.pause(left.min(PAUSE));
        }
    }

    /// How to see that something was written since nothing new was found after `last`. `None` if something was: check again.
    pub(super) fn rest(
        &mut self,
        last: Sequence,
        now_ns: u64,
        waker: Option<KeyedWaker>,
    ) -> Option<Condition> {
        if self.signal.lower() {
            // What arrives wakes it once. If it is found wrong, only time shows whether it stays so.
            self.settled_ns = Some(now_ns.saturating_add(SETTLED_NS));
            return None;
        }
        if self.last.replace(last) != Some(last) {
            self.settled_ns = Some(now_ns.saturating_add(SETTLED_NS));
        }
        self.settled_ns.take_if(|settled_ns| *settled_ns <= now_ns);
        self.signal.expect(waker);
        Some(Condition::Arrivals {
            source: Arc::clone(&self.source),
            signal: Arc::clone(&self.signal),
            due_ns: self.settled_ns,
        })
    }
}
