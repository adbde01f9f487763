use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// All of it, bytes: one batch of full length uses it up.
const LEN: u64 = limits::LOG_COPY_LEN_MAX as u64 / 2;

/// What the thread of a node has for landing regions in one turn: how much it may still copy to them before everything
/// else has its turn (see [`limits::LOG_COPY_LEN_MAX`]), and what time it is.
#[derive(Debug)]
pub(crate) struct CopyBudget {
    left: AtomicU64,
    /// When the turn began, ns of the node's clock.
    now_ns: AtomicU64,
    /// Everything is looked after in this turn, due or not.
    is_beat: AtomicBool,
}

impl CopyBudget {
    /// All of it, in a turn in which everything is looked after.
    pub(crate) const fn new() -> Self {
        let (now_ns, is_beat) = (AtomicU64::new(0), AtomicBool::new(true));
        Self { left: AtomicU64::new(LEN), now_ns, is_beat }
    }

    /// Begins a turn at this moment: one in which the node shows that it lives, or another.
    pub(crate) fn begin(&self, now_ns: u64, is_beat: bool) {
        // Relaxed: see `left`.
        self.now_ns.store(now_ns, Ordering::Relaxed);
        self.is_beat.store(is_beat, Ordering::Relaxed);
        self.refill();
    }

    /// When the turn began, ns of the node's clock.
    pub(super) fn now_ns(&self) -> u64 {
        // Relaxed: see `left`.
        self.now_ns.load(Ordering::Relaxed)
    }

    /// When what is not done is looked after again, ns of the node's clock.
    pub(crate) fn soon_ns(&self) -> u64 {
        self.now_ns().saturating_add(limits::LANDING_TENDED_NS)
    }

    /// Whether everything is looked after in this turn, due or not.
    pub(crate) fn is_beat(&self) -> bool {
        // Relaxed: see `left`.
        self.is_beat.load(Ordering::Relaxed)
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
        self.left.load(Ordering::Relaxed)
    }

    /// Takes note of what is left.
    pub(super) fn set(&self, left: u64) {
        // Relaxed: see `left`.
        self.left.store(left, Ordering::Relaxed);
    }
}
