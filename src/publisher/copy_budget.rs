use std::cell::Cell;

use crate::limits;

/// The full budget, bytes: one batch of full length uses it up.
const LEN: u64 = limits::LOG_COPY_LEN_MAX as u64 / 2;

/// The budget of the node's thread for one turn: how many bytes it may copy to landing regions before other work (see
/// [`limits::LOG_COPY_LEN_MAX`]), and the time.
#[derive(Debug)]
pub(crate) struct CopyBudget {
    left: Cell<u64>,
    /// When the turn began, ns of the node's clock.
    now_ns: Cell<u64>,
    /// This turn tends everything, due or not.
    is_beat: Cell<bool>,
}

impl CopyBudget {
    /// The full budget, for a turn that tends everything.
    pub(crate) const fn new() -> Self {
        Self { left: Cell::new(LEN), now_ns: Cell::new(0), is_beat: Cell::new(true) }
    }

    /// Begins a turn at this time; `is_beat` when the node shows that it is alive.
    pub(crate) fn begin(&self, now_ns: u64, is_beat: bool) {
        self.now_ns.set(now_ns);
        self.is_beat.set(is_beat);
        self.refill();
    }

    /// When the turn began, ns of the node's clock.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// When to tend again what is unfinished, ns of the node's clock.
    pub(crate) fn soon_ns(&self) -> u64 {
        self.now_ns().saturating_add(limits::LANDING_TENDED_NS)
    }

    /// Whether this turn tends everything, due or not.
    pub(crate) fn is_beat(&self) -> bool {
        self.is_beat.get()
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
        self.left.get()
    }

    /// Sets the bytes left.
    pub(super) fn set(&self, left: u64) {
        self.left.set(left);
    }
}
