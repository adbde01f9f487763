//! How long a session lasts in which nothing is attached, and how much its peer may ask for at a time.

use crate::control::ServerAction;
use crate::limits;

/// What a peer may still ask for, and how long.
#[derive(Debug, Default)]
pub(super) struct Tenure {
    /// When the last turn was, if the connection was not established then, ns.
    pub(super) connecting_ns: Option<u64>,
    /// Since when nothing is attached, ns.
    pub(super) idle_since_ns: Option<u64>,
    /// When a message was taken last although its requests wait, ns.
    pub(super) heard_ns: u64,
    /// Until when its requests wait, because the peer has asked for too much, ns.
    pub(super) waits_until_ns: Option<u64>,
}

impl Tenure {
    /// When a turn is due; `is_held_back`: the connection holds back the next message.
    pub(super) fn due_ns(&self, is_held_back: bool) -> impl Iterator<Item = u64> {
        // Nothing says that a connection is established until the peer says something.
        let established_ns = self.connecting_ns.map(|ns| ns.saturating_add(limits::CONNECTING_CHECK_NS));
        self.idle_until_ns(is_held_back).into_iter().chain(self.waits_until_ns).chain(established_ns)
    }

    /// Until when nothing has to be attached, if nothing is. What is held back may attach something.
    pub(super) fn idle_until_ns(&self, is_held_back: bool) -> Option<u64> {
        let held_ns = if is_held_back { limits::HELD_BACK_NS_MAX } else { 0 };
        Some(self.idle_since_ns?.saturating_add(limits::IDLE_SESSION_NS + held_ns))
    }
}

/// Units that an action costs the peer, besides those of its message.
pub(super) fn price(action: &ServerAction) -> u64 {
    match action {
        ServerAction::Attach(_)
        | ServerAction::Expose(_)
        | ServerAction::WakeBy(_)
        | ServerAction::Listen(_) => limits::ATTACH_UNITS,
        ServerAction::QueryTopics { .. } | ServerAction::QuerySubscribers(_) => limits::COSTLY_UNITS,
        _ => 0,
    }
}
