use std::collections::VecDeque;
use std::sync::Arc;

use crate::fabric::{Connection, FabricError, Registration, Sent};
use crate::limits;

/// Messages that wait for a peer to take them, so that nobody waits for the peer.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<(Vec<u8>, Option<Arc<Registration>>)>,
}

impl Outbox {
    /// Adds a message, with the region that goes with it.
    pub(super) fn push(&mut self, message: Vec<u8>, region: Option<Arc<Registration>>) {
        self.waiting.push_back((message, region));
    }

    /// Sends as much as the peer takes. False when it takes less than what it may leave waiting.
    pub(super) fn flush(&mut self, connection: &mut dyn Connection) -> Result<bool, FabricError> {
        while let Some((message, region)) = self.waiting.front() {
            match connection.send(message, region.as_deref())? {
                Sent::Done => drop(self.waiting.pop_front()),
                Sent::Full => break,
            }
        }
        // A topic that ends may have a word for every attachment, none of which is the peer's doing.
        Ok(self.waiting.len() <= limits::OUTBOUND_MESSAGES_MAX + limits::ATTACHMENTS_PER_SESSION_MAX)
    }

    /// Whether a message waits with which this region goes.
    pub(super) fn has(&self, region: &Arc<Registration>) -> bool {
        let regions = self.waiting.iter().filter_map(|(_, region)| region.as_ref());
        regions.into_iter().any(|waiting| Arc::ptr_eq(waiting, region))
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
