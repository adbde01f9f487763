use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use crate::fabric::{Connection, FabricError, Registration, Sent};
use crate::limits;

/// Messages that the peer has not accepted yet, so that no thread waits for the peer.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<(Vec<u8>, Option<Enclosure>)>,
}

/// What is sent with a message.
#[derive(Clone, Debug)]
pub(super) enum Enclosure {
    Region(Arc<Registration>),
    /// The sending end of a wake socket.
    Socket(Arc<OwnedFd>),
}

impl Outbox {
    /// Adds a message, with what is sent with it.
    pub(super) fn push(&mut self, message: Vec<u8>, enclosure: Option<Enclosure>) {
        self.waiting.push_back((message, enclosure));
    }

    /// Sends as much as the peer accepts. False when more than the limit stays queued.
    pub(super) fn flush(&mut self, connection: &mut dyn Connection) -> Result<bool, FabricError> {
        while let Some((message, enclosure)) = self.waiting.front() {
            let sent = match enclosure {
                None => connection.send(message, None),
                Some(Enclosure::Region(region)) => connection.send(message, Some(region)),
                Some(Enclosure::Socket(socket)) => connection.send_socket(message, socket.as_fd()),
            };
            match sent? {
                Sent::Done => drop(self.waiting.pop_front()),
                Sent::Full => break,
            }
        }
        // The end of a topic may queue a message for every attachment, which is not the peer's fault.
        Ok(self.waiting.len() <= limits::OUTBOUND_MESSAGES_MAX + limits::ATTACHMENTS_PER_SESSION_MAX)
    }

    /// Whether a queued message carries this region.
    pub(super) fn has(&self, region: &Arc<Registration>) -> bool {
        let is_it = |enclosure: &Enclosure| matches!(enclosure, Enclosure::Region(waiting) if Arc::ptr_eq(waiting, region));
        self.waiting.iter().filter_map(|(_, enclosure)| enclosure.as_ref()).any(is_it)
    }

    /// Keeps back this region: the messages that carry it are sent without it.
    pub(super) fn strip(&mut self, region: &Arc<Registration>) {
        for (_, enclosure) in &mut self.waiting {
            enclosure.take_if(
                |enclosure| matches!(enclosure, Enclosure::Region(waiting) if Arc::ptr_eq(waiting, region)),
            );
        }
    }

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
