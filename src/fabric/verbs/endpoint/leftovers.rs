//! What is left of an endpoint that was dropped.
//!
//! Its queue pair has failed, so nothing reads or writes for it any more. To destroy that and its queues, and to unpin its memory, takes
//! a device up to a millisecond, and soft-RoCE several: when a thousand peers are lost together, no thread of a node may wait for all of
//! that.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::fabric::verbs::sys::{CompletionQueue, MemoryRegion, QueuePair};
use crate::fabric::verbs::work::WorkTable;
use crate::fabric::{Place, Worker};
use crate::limits;

/// Release what is left.
static RELEASERS: OnceLock<Worker> = OnceLock::new();
/// Pause between two looks whether everything is released.
const PAUSE: Duration = Duration::from_millis(1);

/// Dropped in this order: memory that the device uses outlives the queue pair, and the place of the peer is free once that is gone.
#[derive(Debug)]
#[expect(dead_code, reason = "it is only dropped")]
pub(super) struct Leftovers<W> {
    pub(super) queue_pair: Arc<QueuePair>,
    /// What is in flight.
    pub(super) work: WorkTable<W>,
    pub(super) frames: Arc<MemoryRegion>,
    pub(super) queues: [Arc<CompletionQueue>; 2],
    pub(super) place: Option<Arc<Place>>,
}

/// Releases what it holds in the background, once it is dropped.
///
/// As the last field of an endpoint it is dropped after all others, so that what it holds is held by nothing else any more: an endpoint
/// that dropped its own share later than the thread that releases would do the slow part itself, and in another order.
#[derive(Debug)]
pub(super) struct Releasing<W: Send + 'static>(pub(super) Option<Leftovers<W>>);

impl<W: Send + 'static> Drop for Releasing<W> {
    fn drop(&mut self) {
        let Some(leftovers) = self.0.take() else { return };
        #[cfg(test)]
        leftovers.count_shared();
        RELEASERS.get_or_init(Worker::default).run(move || drop(leftovers));
    }
}

/// How many leftovers were handed over while something else held a part of them.
#[cfg(test)]
pub(in crate::fabric::verbs) static SHARED: crate::sync::atomic::AtomicU64 =
    crate::sync::atomic::AtomicU64::new(0);

#[cfg(test)]
impl<W> Leftovers<W> {
    fn count_shared(&self) {
        // The queue pair holds its queues.
        let is_alone = Arc::strong_count(&self.queue_pair) == 1
            && Arc::strong_count(&self.frames) == 1
            && self.queues.iter().all(|queue| Arc::strong_count(queue) == 2);
        SHARED.fetch_add(u64::from(!is_alone), crate::sync::atomic::Ordering::Relaxed);
    }
}

/// Retries starting a thread for what could not be released for lack of one.
pub(in crate::fabric::verbs) fn tend() {
    RELEASERS.get().into_iter().for_each(Worker::tend);
}

/// What releases in the background.
#[cfg(test)]
pub(in crate::fabric::verbs) fn releasers() -> &'static Worker {
    RELEASERS.get_or_init(Worker::default)
}

/// Waits until everything is released, but not for long.
pub(in crate::fabric::verbs) fn await_release() {
    let until_ns = SystemClock.monotonic_ns().saturating_add(limits::verbs::RELEASE_NS);
    while RELEASERS.get().is_some_and(|workers| !workers.is_done()) && SystemClock.monotonic_ns() < until_ns {
        // There may be no node any more that does it.
        tend();
        SystemClock.pause(PAUSE);
    }
}
