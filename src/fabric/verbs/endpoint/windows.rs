//! The windows through which the peer of an endpoint reads regions: with a key for this connection, which is revoked without touching
//! the other peers or the other regions.

use std::sync::Arc;

use crate::fabric::FabricError;
use crate::fabric::verbs::sys::{MemoryRegion, MemoryWindow};

/// The windows of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Windows {
    all: Vec<OpenWindow>,
    /// The session is over: there are no more.
    is_closed: bool,
}

/// A window, and how far it is.
#[derive(Debug)]
struct OpenWindow {
    window: Arc<MemoryWindow>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its key is known, and opens nothing.
    Prepared,
    /// Its region is exposed to the peer, and it is to be bound.
    Exposed,
    /// The peer may read through it.
    Bound,
}

impl Windows {
    /// Returns the window to this region, which is allocated if there is none.
    pub(super) fn to(&mut self, region: &Arc<MemoryRegion>) -> Result<Arc<MemoryWindow>, FabricError> {
        if self.is_closed {
            return Err(FabricError::Closed);
        }
        if let Some(known) = self.find(region) {
            return Ok(Arc::clone(&known.window));
        }
        let window = Arc::new(MemoryWindow::allocate(region)?);
        self.all.push(OpenWindow { window: Arc::clone(&window), stage: Stage::Prepared });
        Ok(window)
    }

    /// Has the window to this region bound, if it is not yet.
    pub(super) fn expose(&mut self, region: &Arc<MemoryRegion>) -> Result<(), FabricError> {
        self.to(region)?;
        if let Some(known) = self.find(region).filter(|known| known.stage == Stage::Prepared) {
            known.stage = Stage::Exposed;
        }
        Ok(())
    }

    /// The next window that is to be bound.
    pub(super) fn exposed(&self) -> Option<&Arc<MemoryWindow>> {
        self.all.iter().find(|known| known.stage == Stage::Exposed).map(|known| &known.window)
    }

    /// Marks this window bound.
    pub(super) fn bound(&mut self, window: &Arc<MemoryWindow>) {
        if let Some(known) = self.find(window.region()) {
            known.stage = Stage::Bound;
        }
    }

    /// Revokes the window to this region.
    pub(super) fn close(&mut self, region: &Arc<MemoryRegion>) {
        self.all.retain(|known| !Arc::ptr_eq(known.window.region(), region));
    }

    /// Revokes all windows, for good.
    pub(super) fn close_all(&mut self) {
        *self = Self { all: Vec::new(), is_closed: true };
    }

    fn find(&mut self, region: &Arc<MemoryRegion>) -> Option<&mut OpenWindow> {
        self.all.iter_mut().find(|known| Arc::ptr_eq(known.window.region(), region))
    }
}
