use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use super::error::FabricError;
use crate::memory::Region;

/// A region registered with one or more providers: it can be sent to the peers of each.
#[derive(Debug)]
pub(crate) struct Registration {
    region: Arc<Region>,
    exposure: Exposure,
    /// The state of each provider.
    entries: Vec<Box<dyn Registered>>,
}

/// A provider's state for a registered region. Dropping it withdraws the region from the provider's peers.
pub(crate) trait Registered: Any + Debug + Send + Sync {}

/// What peers may do with a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// Read it.
    Read,
    /// Write it, and fetch words from it.
    Write,
}

impl Exposure {
    /// Checks that the memory of this region was made to be used so.
    pub(super) fn check(self, region: &Region) -> Result<(), FabricError> {
        match region.is_for_readers()? == (self == Self::Read) {
            true => Ok(()),
            false => Err(FabricError::Access { why: "its memory was not made for this exposure" }),
        }
    }
}

/// A region's identity at peers. It grants no access by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteKey {
    /// The key.
    pub(crate) key: u64,
    /// The address of the region's first byte.
    pub(crate) address: u64,
}

impl Registration {
    /// Creates the registration of a region with one provider.
    pub(crate) fn new(region: Arc<Region>, exposure: Exposure, entry: impl Registered) -> Self {
        Self { region, exposure, entries: vec![Box::new(entry)] }
    }

    /// Merges registrations of one region with several providers.
    pub(crate) fn joined(region: Arc<Region>, exposure: Exposure, parts: Vec<Self>) -> Self {
        let entries = parts.into_iter().flat_map(|part| part.entries).collect();
        Self { region, exposure, entries }
    }

    /// The region.
    #[inline]
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// What peers may do with it.
    pub(crate) fn exposure(&self) -> Exposure {
        self.exposure
    }

    /// The state of the providers with this type of state.
    #[inline]
    pub(crate) fn entries<R: Registered>(&self) -> impl Iterator<Item = &R> {
        self.entries.iter().filter_map(|entry| (entry.as_ref() as &dyn Any).downcast_ref())
    }
}
