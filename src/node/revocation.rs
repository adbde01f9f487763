//! Revoking the access of subscribers while their sessions go on.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use crate::control::{ControlError, Peer};
use crate::fabric::WakeQueue;
use crate::id::TopicName;
use crate::publisher::PublisherError;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How often a thread that waits for the node's thread checks that it runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Which subscribers.
type Predicate = Box<dyn Fn(&Peer) -> bool + Send>;

/// What the node's thread is to revoke.
#[derive(Debug, Default)]
pub(super) struct Revocations(Mutex<Vec<Revocation>>, AtomicU64);

/// The subscribers of a topic that lose their access.
pub(super) struct Revocation {
    topic: TopicName,
    /// Its number, from 1.
    pub(super) serial: u64,
    is_revoked: Predicate,
    done: SyncSender<usize>,
}

impl Revocations {
    /// Has the node's thread, which this queue wakes, revoke the access of these subscribers, and waits until it has, as long as the
    /// thread runs. Returns how many there were.
    pub(super) fn revoke(
        &self,
        (topic, is_revoked): (TopicName, Predicate),
        queue: &WakeQueue,
        check_runs: impl Fn() -> Result<(), ControlError>,
    ) -> Result<usize, PublisherError> {
        let (done, count) = sync_channel(1);
        // Relaxed: the numbers only have to differ.
        let serial = self.1.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.lock().push(Revocation { topic, serial, is_revoked, done });
        queue.wake();
        loop {
            match count.recv_timeout(CHECK_INTERVAL) {
                Ok(count) => return Ok(count),
                Err(RecvTimeoutError::Disconnected) => return Err(PublisherError::NodeFailed),
                Err(RecvTimeoutError::Timeout) => check_runs().map_err(|_| PublisherError::NodeFailed)?,
            }
        }
    }

    /// What is to be revoked.
    pub(super) fn take(&self) -> Vec<Revocation> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Revocation {
    pub(super) fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// Whether this subscriber of this topic loses its access; `table` is the table of the feed, if the topic to revoke is one. A
    /// subscriber at which the program's function panics does.
    pub(super) fn covers(&self, topic: &TopicName, table: Option<&TopicName>, peer: &Peer) -> bool {
        let is_covered = self.topic == *topic || table == Some(topic);
        is_covered && catch_unwind(AssertUnwindSafe(|| (self.is_revoked)(peer))).unwrap_or(true)
    }

    /// Reports how many subscribers have lost it.
    pub(super) fn done(self, count: usize) {
        // The program may have given up.
        let _ = self.done.try_send(count);
    }
}

impl fmt::Debug for Revocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Revocation").field("topic", &self.topic).finish_non_exhaustive()
    }
}
