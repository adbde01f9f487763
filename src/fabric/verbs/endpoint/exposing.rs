use std::sync::Arc;

use super::{Endpoint, EndpointState, Posted, Work};
use crate::fabric::FabricError;
use crate::fabric::verbs::error::VerbsError;
use crate::fabric::verbs::sys::{MemoryRegion, MemoryWindow, Operation};

/// The windows through which the peer reads.
impl Endpoint {
    /// Whether its peer reads regions through windows.
    pub(in crate::fabric::verbs) fn has_windows(&self) -> bool {
        self.domain.has_windows() && self.is_reliable()
    }

    /// Returns the peer's window to this region, which opens nothing until the region is exposed.
    pub(in crate::fabric::verbs) fn window(
        &self,
        region: &Arc<MemoryRegion>,
    ) -> Result<Arc<MemoryWindow>, FabricError> {
        self.windows.lock().to(region)
    }

    /// Lets the peer read this region through its window: it may, by the time that it receives what is sent after this.
    /// [`Posted::NoRoom`] if this is to be repeated.
    pub(in crate::fabric::verbs) fn open_window(
        &self,
        region: &Arc<MemoryRegion>,
    ) -> Result<Posted, FabricError> {
        let mut state = self.state.lock();
        self.windows.lock().expose(region)?;
        if state.is_open { self.bind_exposed(&mut state) } else { Ok(Posted::Yes) }
    }

    /// Binds the windows of exposed regions, while nothing but bindings is in flight: when soft-RoCE (Linux 6.1) repeats a lost packet, it
    /// also repeats the bindings after it, which fail the second time and end the connection.
    pub(super) fn bind_exposed(&self, state: &mut EndpointState) -> Result<Posted, FabricError> {
        let mut windows = self.windows.lock();
        while let Some(window) = windows.exposed().map(Arc::clone) {
            if let Some(failure) = state.failure {
                return Err(failure.into());
            }
            self.poll_sends(state);
            state.is_draining = !state.may_bind();
            if state.is_draining {
                return Ok(Posted::NoRoom);
            }
            let work = Work::Bind { _window: Arc::clone(&window) };
            let id = state.work.begin(1, work).ok_or(VerbsError::PartlyPosted)?;
            state.binding += 1;
            self.post_one(state, id, Operation::Bind { window: &window })?;
            windows.bound(&window);
        }
        Ok(Posted::Yes)
    }

    /// Whether a window that had [`Posted::NoRoom`] can be bound now, or never.
    pub(in crate::fabric::verbs) fn binds(&self) -> bool {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        state.failure.is_some() || state.may_bind()
    }

    /// Revokes the peer's window to this region, if it has one: from now on its key opens nothing.
    pub(in crate::fabric::verbs) fn close_window(&self, region: &Arc<MemoryRegion>) {
        // One that is being bound stays until that is complete.
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        let mut windows = self.windows.lock();
        windows.close(region);
        state.is_draining &= windows.exposed().is_some();
    }
}

impl EndpointState {
    /// Whether nothing but bindings is in flight, which send nothing, and there is room for one more.
    fn may_bind(&self) -> bool {
        self.work.len() <= self.binding && self.work.free_len() > 0
    }
}
