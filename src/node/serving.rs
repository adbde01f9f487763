use std::sync::Arc;

use super::core::NodeCore;
use super::notices::NoticeSenders;
use crate::limits;
use crate::publisher::CopyBudget;

/// What the served sessions share. Only the node's thread uses it.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) core: Arc<NodeCore>,
    /// The channels of the node's notices.
    pub(super) senders: NoticeSenders,
    /// What this turn may still copy to landing regions.
    pub(super) budget: CopyBudget,
    /// A buffer for one message.
    pub(super) buffer: Vec<u8>,
}

impl Serving {
    /// Nothing is served yet.
    pub(super) fn new(core: &Arc<NodeCore>) -> Self {
        let (senders, budget) = (NoticeSenders::default(), CopyBudget::new());
        Self { core: Arc::clone(core), senders, budget, buffer: vec![0; limits::CONTROL_MESSAGE_LEN_MAX] }
    }
}
