use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The full budget, bytes: one batch of full length uses it up.
const LEN: u64 = limits::LOG_COPY_LEN_MAX as u64 / 2;

/// The budget of the node's thread for one turn: how many bytes it may copy to landing regions before other work (see
/// [`limits::LOG_COPY_LEN_MAX`]), and the time.
#[derive(Debug)]
pub(crate) struct CopyBudget {
    left: AtomicU64,
    /// When the turn began, ns of the node's clock.
    now_ns: AtomicU64,
    /// This turn tends everything, due or not.
    is_beat: AtomicBool,
}

impl CopyBudget {
    /// The full budget, for a turn that tends everything.
    pub(crate) const fn new() -> Self {
        let (now_ns, is_beat) = (AtomicU64::new(0), AtomicBool::new(true));
        Self { left: AtomicU64::new(LEN), now_ns, is_beat }
    }

    /// Begins a turn at this time; `is_beat` when the node shows that it is alive.
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

    /// When to tend again what is unfinished, ns of the node's clock.
    pub(crate) fn soon_ns(&self) -> u64 {
        self.now_ns().saturating_add(limits::LANDING_TENDED_NS)
    }

    /// Whether this turn tends everything, due or not.
    pub(crate) fn is_beat(&self) -> bool {
        // Relaxed: see `left`.
        self.is_beat.load(Ordering::Relaxed)
    }

    /// Restores the full budget.
    pub(crate) fn refill(&self) {
        self.set(LEN);
    }

    /// Whether the budget is used up, so that bytes may be left to copy.
    pub(crate) fn is_used_up(&self) -> bool {
        self.left() == 0
    }

    /// The bytes left.
    pub(super) fn left(&self) -> u64 {
        // Relaxed: only one thread uses it at a time.
        self.left.load(Ordering::Relaxed)
    }

    /// Sets the bytes left.
    pub(super) fn set(&self, left: u64) {
        // Relaxed: see `left`.
        self.left.store(left, Ordering::Relaxed);
    }
}
