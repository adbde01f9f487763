//! Landing regions of push subscriptions.

use std::sync::Arc;

use super::{LinkAttachment, LinkError, LinkState};
use crate::fabric::{Exposure, Placement, Registration};
use crate::memory::Region;
use crate::subscriber::Source;

impl LinkAttachment {
    /// The source that reads the publisher's writes to this region.
    pub(in crate::node) fn landing(&self, region: Arc<Region>) -> Source {
        match self.link.state.lock().connection.capabilities().placement {
            Placement::Words => Source::Mapped(region),
            placement => Source::Landing { region, may_lose: placement == Placement::Lossy },
        }
    }

    /// Exposes a landing region to the publisher.
    pub(in crate::node) fn expose(&self, landing: Registration) -> Result<(), LinkError> {
        assert_ne!(landing.exposure(), Exposure::Read, "a landing region is written by the peer");
        let landing = Arc::new(landing);
        let mut state = self.link.lock_prepared(&landing)?;
        let asked = state.session.expose(self.id);
        asked.map_err(|error| state.explain(error))?;
        self.attached.inbox.lock().landing = Some(landing);
        state.flush();
        Ok(())
    }

    /// Waits until at most `len_max` bytes of earlier landing regions are unreleased. Without a limit, a publisher's node that releases
    /// none would have this node allocate without end.
    pub(in crate::node) fn await_released(&self, len_max: usize) -> Result<(), LinkError> {
        let is_released = |state: &mut LinkState| (state.unreleased_len() <= len_max).then_some(Ok(()));
        self.link.wait_for("end of earlier push subscriptions", is_released)
    }
}

impl LinkState {
    /// The bytes of landing regions that no subscription reads any more, and that the publisher may still write.
    fn unreleased_len(&self) -> usize {
        let inboxes = self.attachments.values().map(|attached| attached.inbox.lock());
        let landings = inboxes.filter(|inbox| inbox.has_left).filter_map(|inbox| inbox.landing.clone());
        landings.map(|landing| landing.region().len()).sum()
    }
}
