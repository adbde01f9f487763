use std::collections::VecDeque;
use std::sync::Arc;

use crate::fabric::{Connection, FabricError, Registration, Sent};
use crate::limits;

/// Messages that the peer has not accepted yet, so that no thread waits for the peer.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<(Vec<u8>, Option<Arc<Registration>>)>,
}

impl Outbox {
    /// Adds a message, with its region if it has one.
    pub(super) fn push(&mut self, message: Vec<u8>, region: Option<Arc<Registration>>) {
        self.waiting.push_back((message, region));
    }

    /// Sends as much as the peer accepts. False when more than the limit stays queued.
    pub(super) fn flush(&mut self, connection: &mut dyn Connection) -> Result<bool, FabricError> {
        while let Some((message, region)) = self.waiting.front() {
            match connection.send(message, region.as_deref())? {
                Sent::Done => drop(self.waiting.pop_front()),
                Sent::Full => break,
            }
        }
        // The end of a topic may queue a message for every attachment, which is not the peer's fault.
        Ok(self.waiting.len() <= limits::OUTBOUND_MESSAGES_MAX + limits::ATTACHMENTS_PER_SESSION_MAX)
    }

    /// Whether a queued message carries this region.
    pub(super) fn has(&self, region: &Arc<Registration>) -> bool {
        let regions = self.waiting.iter().filter_map(|(_, region)| region.as_ref());
        regions.into_iter().any(|waiting| Arc::ptr_eq(waiting, region))
    }

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
