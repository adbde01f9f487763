//! Models of landing regions: the publisher and its node write them, and their subscribers read them.

mod handover;
mod landings;

pub use handover::*;
pub use landings::*;

use std::sync::Arc;

use super::handover::{ExposedLanding, Repository};
use crate::fabric::{
    Completion, Exposure, FabricError, NothingToRevoke, Placement, Registered, Registration, RemoteWrite,
    Revocation, Write,
};
use crate::id::{Epoch, KindOptions, Sequence, TopicId};
use crate::memory::{Protection, Region};

const TOPIC: TopicId = TopicId::new(77);

/// The repository in this memory.
fn repository<G>(region: &Arc<Region>, geometry: G) -> Repository<G> {
    let registration = Arc::new(Registration::new(Arc::clone(region), Exposure::Read, Known));
    Repository { registration, geometry, epoch: Epoch::FIRST, after: Sequence::NONE }
}

/// A landing region for it, and how it is exposed.
fn landing(len: usize, options: KindOptions, granted: Sequence) -> (Arc<Region>, ExposedLanding) {
    let target = Arc::new(Region::allocate(len, Protection::PeerSeals).unwrap());
    let remote = Box::new(MappedLanding(Arc::clone(&target)));
    (target, ExposedLanding { remote, closed: Arc::default(), options, granted, subscriber: None })
}

#[derive(Debug)]
struct Known;

impl Registered for Known {}

/// A landing region in the same host's memory.
#[derive(Debug)]
struct MappedLanding(Arc<Region>);

impl RemoteWrite for MappedLanding {
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        writes.iter().for_each(|write| write.place(source.region(), &self.0));
        Ok(Completion::Done)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(0)
    }

    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        Ok(Some(self.0.load_acquire(offset)))
    }

    fn placement(&self) -> Placement {
        Placement::Words
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(NothingToRevoke)
    }
}
