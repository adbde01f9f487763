//! How long a session lasts in which nothing is attached, and how much its peer may ask for at a time.

use crate::control::ServerAction;
use crate::limits;

/// What a peer may still ask for, and how long.
#[derive(Debug, Default)]
pub(super) struct Tenure {
    /// The connection was not established at the last turn.
    pub(super) was_connecting: bool,
    /// Since when nothing is attached, ns.
    pub(super) idle_since_ns: Option<u64>,
    /// When a message was taken last although its requests wait, ns.
    pub(super) heard_ns: u64,
    /// Until when its requests wait, because the peer has asked for too much, ns.
    pub(super) waits_until_ns: Option<u64>,
}

impl Tenure {
    /// When a turn is due.
    pub(super) fn due_ns(&self) -> impl Iterator<Item = u64> {
        let idle_ns = self.idle_since_ns.map(|since_ns| since_ns.saturating_add(limits::IDLE_SESSION_NS));
        idle_ns.into_iter().chain(self.waits_until_ns)
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
