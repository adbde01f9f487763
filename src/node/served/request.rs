//! What peers ask for, and why that is refused.

use crate::control::{Attach, RefuseReason};
use crate::fabric::FabricError;
use crate::id::NodeName;
use crate::publisher::{NotAdmitted, ProgressSlot, PublishedTopic, TopicSubscriber};

/// A peer's request to attach.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) attach: Attach,
    /// The peer's progress slot, if it reports its progress.
    pub(super) slot: Option<ProgressSlot>,
}

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct Objection {
    pub(super) reason: RefuseReason,
    /// An explanation; may be empty.
    pub(super) text: String,
}

impl Asked {
    /// The subscriber that this peer asks to be, if the topic's publisher permits it.
    pub(super) fn subscriber(
        &mut self,
        topic: &PublishedTopic,
        peer: (NodeName, u32),
    ) -> Result<TopicSubscriber, Objection> {
        let Attach { delivery, progress, .. } = self.attach;
        // Other kinds conflate.
        let mut progress = progress.zip(self.slot.take()).filter(|_| topic.is_log());
        if let Some((policy, _)) = &progress {
            match topic.subscribers.check(*policy) {
                // Nothing depends on the progress of one that may be lapped.
                Ok(()) => {}
                Err(NotAdmitted::TooMany { .. }) if !policy.is_critical() => progress = None,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(TopicSubscriber::new(peer, delivery, progress))
    }
}

impl Objection {
    pub(super) fn new(reason: RefuseReason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    /// An objection for this reason, unless the error is a shortage of this node, for which the peer is not at fault.
    pub(super) fn over(error: &FabricError, reason: RefuseReason, text: impl Into<String>) -> Self {
        Self::new(if error.is_shortage() { RefuseReason::Shortage } else { reason }, text)
    }
}

impl From<NotAdmitted> for Objection {
    fn from(error: NotAdmitted) -> Self {
        match error {
            NotAdmitted::Forbidden => Self::new(
                RefuseReason::GatingNotPermitted,
                "open the publisher with PublisherBuilder::gating, or subscribe with SlowPolicy::Lap",
            ),
            NotAdmitted::TooMany { max } => Self::new(
                RefuseReason::TooManySubscribers,
                format!(
                    "{max} for which its publisher waits, or that it disconnects; close one of them, or raise \
                     Gating::subscribers_max"
                ),
            ),
        }
    }
}
