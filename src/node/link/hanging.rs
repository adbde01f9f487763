//! What a session does to notice that its peer's node hangs, and where nothing is attached then.

use std::sync::Arc;

use super::pulse::{Heart, Pulse};
use super::{LinkAttachment, LinkState, Ticket};
use crate::control::{ControlError, TopicEntry};
use crate::event::Event;
use crate::id::{Delivery, TopicName};
use crate::layout::header::BODY_OFFSET;
use crate::subscriber::Source;

/// The request for a page that no thread waits for.
const ASKING: Ticket = Ticket(u64::MAX);
/// No topic follows this one: the page after it is empty.
const LAST: &str = "zzzzzzzzzzzzzzzz";

impl LinkAttachment {
    /// Has the node's thread read the publisher's heartbeat in this source, if it has one.
    pub(in crate::node) fn watch(&self, source: &Source) {
        let heart = match source {
            Source::Mapped(region) if self.attached.delivery == Delivery::Pull => {
                Heart::Mapped(Arc::downgrade(region))
            }
            // Without it the node asks.
            Source::Remote(remote) => match remote.headers(BODY_OFFSET) {
                Ok(Some(headers)) => Heart::Fetched(headers, false),
                Ok(None) | Err(_) => return,
            },
            _ => return,
        };
        let (id, state) = (self.id, &mut *self.link.state.lock());
        if state.failure.is_none() && state.attachments.contains_key(&id) {
            state.pulse.heart.get_or_insert((id, heart));
        }
    }
}

impl LinkState {
    /// Checks whether the peer's node runs.
    pub(super) fn check_pulse(&mut self, now_ns: u64) {
        if self.connection.held_back_until_ns().is_some() {
            // It has sent something, which this process cannot take yet.
            self.pulse.note_message();
        }
        let is_idle = self.attachments.is_empty() || !self.is_ready();
        if is_idle || !self.pulse.check(now_ns) {
            return;
        }
        // The answer to a thread of the program is as good.
        if self.listing.is_none() {
            let Ok(after) = LAST.parse::<TopicName>() else { return };
            if self.session.list(Some(after)).is_err() {
                return;
            }
            self.listing = Some(ASKING);
        }
        self.pulse.is_asked = true;
    }

    /// When to check again.
    pub(super) fn pulse_due_ns(&self) -> Option<u64> {
        (!self.attachments.is_empty() && self.is_ready()).then(|| self.pulse.due_ns())
    }

    /// Takes a page of the directory.
    pub(super) fn take_page(&mut self, entries: Vec<TopicEntry>, more: bool) {
        if self.listing == Some(ASKING) {
            self.listing = None;
        } else {
            self.page = Some((entries, more));
        }
    }

    /// The event that the peer's node hangs, or does not any more, once.
    pub(super) fn take_pulse_event(&mut self) -> Option<Event> {
        let Pulse { is_hung, is_reported, .. } = &mut self.pulse;
        if *is_hung == *is_reported || self.failure.is_some() {
            return None;
        }
        *is_reported = *is_hung;
        let identity = self.peer.as_ref()?;
        let (peer, process) = (identity.node.clone(), identity.process);
        Some(if *is_hung { Event::Hung { peer, process } } else { Event::Recovered { peer, process } })
    }

    /// Ends an unused session with a node that hangs, without waiting for its answers: as long as the connection is there, that node could
    /// write to landing regions, whenever it runs again and whoever publishes the topics by then.
    pub(super) fn part(&mut self, now_ns: u64) {
        self.end(now_ns);
        self.fail(ControlError::Closed { state: "left while the publisher's node hung" });
    }
}
