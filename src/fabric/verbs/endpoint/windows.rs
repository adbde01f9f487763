//! The windows through which the peer of an endpoint reads regions: with a key for this connection, which is revoked without touching
//! the other peers or the other regions.

use std::sync::Arc;

use super::{Endpoint, EndpointState, Posted, Work};
use crate::fabric::FabricError;
use crate::fabric::verbs::error::VerbsError;
use crate::fabric::verbs::sys::{MemoryRegion, MemoryWindow, Operation};
use crate::limits::verbs::SENDS_RESERVED;

/// The windows of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Windows {
    all: Vec<OpenWindow>,
    /// The session is over: there are no more.
    is_closed: bool,
}

#[derive(Debug)]
struct OpenWindow {
    window: Arc<MemoryWindow>,
    use_: WindowUse,
}

/// What a window is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowUse {
    /// Nothing yet: its key is known.
    Prepared,
    /// Its region is exposed to the peer.
    Exposed,
    /// The peer may read through it.
    Bound,
}

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
        let mut windows = self.windows.lock();
        if windows.is_closed {
            return Err(FabricError::Closed);
        }
        if let Some(known) = windows.all.iter().find(|open| Arc::ptr_eq(open.window.region(), region)) {
            return Ok(Arc::clone(&known.window));
        }
        let window = Arc::new(MemoryWindow::allocate(region)?);
        windows.all.push(OpenWindow { window: Arc::clone(&window), use_: WindowUse::Prepared });
        Ok(window)
    }

    /// Has the peer read this region through its window: what is sent after this arrives after it may. [`Posted::NoRoom`] if it is
    /// to be repeated.
    pub(in crate::fabric::verbs) fn open_window(
        &self,
        region: &Arc<MemoryRegion>,
    ) -> Result<Posted, FabricError> {
        self.window(region)?;
        let mut state = self.state.lock();
        let mut windows = self.windows.lock();
        let exposed = windows.all.iter_mut().find(|open| Arc::ptr_eq(open.window.region(), region));
        exposed
            .into_iter()
            .filter(|open| open.use_ == WindowUse::Prepared)
            .for_each(|open| open.use_ = WindowUse::Exposed);
        drop(windows);
        if state.is_open { self.bind_exposed(&mut state) } else { Ok(Posted::Yes) }
    }

    /// Binds the windows of exposed regions.
    pub(super) fn bind_exposed(&self, state: &mut EndpointState) -> Result<Posted, FabricError> {
        let mut windows = self.windows.lock();
        for open in windows.all.iter_mut().filter(|open| open.use_ == WindowUse::Exposed) {
            if let Some(failure) = state.failure {
                return Err(failure.into());
            }
            if state.work.free_len() <= SENDS_RESERVED {
                self.poll_sends(state);
            }
            if state.work.free_len() <= SENDS_RESERVED {
                return Ok(Posted::NoRoom);
            }
            let work = Work::Bind { _window: Arc::clone(&open.window) };
            let id = state.work.begin(1, work).ok_or(VerbsError::PartlyPosted)?;
            self.post_one(state, id, Operation::Bind { window: &open.window })?;
            open.use_ = WindowUse::Bound;
        }
        Ok(Posted::Yes)
    }

    /// Revokes the peer's window to this region, if it has one: from now on its key opens nothing.
    pub(in crate::fabric::verbs) fn close_window(&self, region: &Arc<MemoryRegion>) {
        self.windows.lock().all.retain(|open| !Arc::ptr_eq(open.window.region(), region));
    }

    /// Revokes all windows, for good.
    pub(super) fn close_windows(&self) {
        *self.windows.lock() = Windows { all: Vec::new(), is_closed: true };
    }
}
