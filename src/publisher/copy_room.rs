use crate::limits;
use crate::sync::atomic::{AtomicU64, Ordering};

/// All of it, bytes: one batch of full length uses it up.
const LEN: u64 = limits::LOG_COPY_LEN_MAX as u64 / 2;

/// How much the thread of a node may still copy of logs to landing regions before everything else has its turn: see
/// [`limits::LOG_COPY_LEN_MAX`].
#[derive(Debug)]
pub(crate) struct CopyRoom(AtomicU64);

impl CopyRoom {
    /// All of it.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(LEN))
    }

    /// Makes it as much as it was at first.
    pub(crate) fn refill(&self) {
        self.set(LEN);
    }

    /// Whether nothing is left of it: something more may have to be copied.
    pub(crate) fn is_used_up(&self) -> bool {
        self.left() == 0
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> u64 {
        // Relaxed: only one thread uses it at a time.
        self.0.load(Ordering::Relaxed)
    }

    /// Takes note of what is left.
    pub(super) fn set(&self, left: u64) {
        // Relaxed: see `left`.
        self.0.store(left, Ordering::Relaxed);
    }
}
