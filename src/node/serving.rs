use std::sync::Arc;

use super::core::NodeCore;
use super::notices::NoticeSenders;
use crate::limits;
use crate::publisher::CopyBudget;

/// What the sessions that a node serves have in common. Its thread alone uses it.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) core: Arc<NodeCore>,
    /// The channels on which the node tells of its topics.
    pub(super) senders: NoticeSenders,
    /// What may still be copied to landing regions in this turn.
    pub(super) budget: CopyBudget,
    /// Room for a message.
    pub(super) buffer: Vec<u8>,
}

impl Serving {
    /// Nothing yet.
    pub(super) fn new(core: &Arc<NodeCore>) -> Self {
        let (senders, budget) = (NoticeSenders::default(), CopyBudget::new());
        Self { core: Arc::clone(core), senders, budget, buffer: vec![0; limits::CONTROL_MESSAGE_LEN_MAX] }
    }
}
