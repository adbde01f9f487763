use std::sync::Arc;

use super::core::NodeCore;
use super::notices::NoticeSenders;
use crate::limits;
use crate::publisher::CopyBudget;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What the served sessions share. Only the node's thread uses it.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) core: Arc<NodeCore>,
    /// The channels of the node's notices.
    pub(super) senders: NoticeSenders,
    /// What this turn may still copy to landing regions.
    pub(super) budget: CopyBudget,
    /// Bytes of the landing regions of all sessions.
    pub(super) landings: Arc<AtomicU64>,
    /// A buffer for one message.
    pub(super) buffer: Vec<u8>,
}

/// The bytes of one landing region, counted until this is dropped.
#[derive(Debug)]
pub(super) struct LandingShare {
    landings: Arc<AtomicU64>,
    len: u64,
}

impl LandingShare {
    /// Counts so many bytes more, unless that is more than `max`.
    pub(super) fn take(landings: &Arc<AtomicU64>, len: usize, max: usize) -> Option<Self> {
        let (len, max) = (len as u64, max as u64);
        // Relaxed: only the node's thread uses the number.
        let held = landings.load(Ordering::Relaxed);
        landings.store(held.checked_add(len).filter(|sum| *sum <= max)?, Ordering::Relaxed);
        Some(Self { landings: Arc::clone(landings), len })
    }
}

impl Drop for LandingShare {
    fn drop(&mut self) {
        self.landings.fetch_sub(self.len, Ordering::Relaxed);
    }
}

impl Serving {
    /// Nothing is served yet.
    pub(super) fn new(core: &Arc<NodeCore>) -> Self {
        let (senders, budget) = (NoticeSenders::default(), CopyBudget::new());
        let (landings, buffer) = (Arc::default(), vec![0; limits::CONTROL_MESSAGE_LEN_MAX]);
        Self { core: Arc::clone(core), senders, budget, landings, buffer }
    }
}
