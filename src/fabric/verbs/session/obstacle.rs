//! What keeps an owner from sending, and when it is woken.

use super::{Obstacle, Session, SessionState};

impl Session {
    /// Whether nothing is in the way any more of a message that could not be queued.
    pub(super) fn accepts_again(&self, state: &SessionState) -> bool {
        let Some((obstacle, endpoint)) = state.wants_to_send.zip(self.endpoint.get()) else { return false };
        state.outbound.accepts() && (obstacle == Obstacle::Queue || endpoint.binds())
    }

    /// Keeps the owner's handle readable exactly while there is something to receive, or the queue has drained.
    pub(super) fn wake_owner(&self, state: &mut SessionState) {
        let has_something = self.accepts_again(state) || !state.arrivals.is_empty() || state.end.is_some();
        if has_something && !state.awake {
            self.waker.wake();
        } else if !has_something && state.awake {
            self.waker.reset();
        }
        state.awake = has_something;
    }
}

impl SessionState {
    /// Whether the owner waits for work that completes without an event, and was not woken yet.
    pub(super) fn awaits_window(&self) -> bool {
        self.wants_to_send == Some(Obstacle::Window) && !self.awake
    }
}
