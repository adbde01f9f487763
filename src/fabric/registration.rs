use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::memory::Region;

/// A region registered with one provider, or several: it can be sent to the peers of each of them.
#[derive(Debug)]
pub(crate) struct Registration {
    region: Arc<Region>,
    exposure: Exposure,
    /// What each provider keeps.
    entries: Vec<Box<dyn Registered>>,
}

/// What one provider keeps of a registered region. Dropping it withdraws the region from the provider's peers.
pub(crate) trait Registered: Any + Debug + Send + Sync {}

/// How a registered region may be used by the peers it is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// They may read it.
    Read,
    /// They may write it, and fetch words from it.
    Write,
}

/// What stands for a region at peers. Knowing it gives no access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteKey {
    /// The key.
    pub(crate) key: u64,
    /// The address of its first byte.
    pub(crate) address: u64,
}

impl Registration {
    /// The registration of this region with one provider.
    pub(crate) fn new(region: Arc<Region>, exposure: Exposure, entry: impl Registered) -> Self {
        Self { region, exposure, entries: vec![Box::new(entry)] }
    }

    /// One registration of these, which are all of the same region.
    pub(crate) fn joined(region: Arc<Region>, exposure: Exposure, parts: Vec<Self>) -> Self {
        let entries = parts.into_iter().flat_map(|part| part.entries).collect();
        Self { region, exposure, entries }
    }

    /// The region.
    #[inline]
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// How peers may use it.
    pub(crate) fn exposure(&self) -> Exposure {
        self.exposure
    }

    /// What the providers that keep entries of this type have kept.
    #[inline]
    pub(crate) fn entries<R: Registered>(&self) -> impl Iterator<Item = &R> {
        self.entries.iter().filter_map(|entry| (entry.as_ref() as &dyn Any).downcast_ref())
    }
}
