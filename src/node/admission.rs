use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::peer_limits::PeerLimits;
use crate::control::{ControlError, Peer, RefuseReason};
use crate::fabric::{FabricError, NotAdmitted};
use crate::id::TopicName;
use crate::keyring::{Keyring, Right};

/// Refuses what an admission that panics was asked.
const PANICKED: &str = "this node's admission panicked";

/// Decides which peers a node serves, after its keyring has: see [`NodeBuilder::admission`](crate::NodeBuilder::admission).
///
/// Called on the node's thread, so it must not block. What it panics at is refused.
pub trait Admission: Debug + Send + Sync {
    /// Decides whether this peer may subscribe to this topic ([`Right::Read`]), or publish it to a listener of this node
    /// ([`Right::Publish`]). It is asked whether or not there is such a topic or listener. A feed `F` has two
    /// topics, its log `F` and its table `F/table`, and it is asked about each. The peer receives the reason of a refusal.
    ///
    /// # Errors
    ///
    /// The reason of the refusal.
    fn admit(&self, peer: &Peer, topic: &TopicName, right: Right) -> Result<(), String>;
}

/// What a node demands of its peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    pub(super) keyring: Option<Keyring>,
    pub(super) limits: PeerLimits,
    pub(super) admission: Option<Arc<dyn Admission>>,
}

impl Guard {
    /// Asks the admission, if there is one.
    pub(super) fn admit(&self, peer: &Peer, topic: &TopicName, right: Right) -> Result<(), String> {
        let Some(admission) = &self.admission else { return Ok(()) };
        let admitted = catch_unwind(AssertUnwindSafe(|| admission.admit(peer, topic, right)));
        admitted.unwrap_or_else(|_| Err(PANICKED.to_owned()))
    }
}

/// The refusal of a peer that has shown no key with its request to connect: the same as of one that proves none in its session.
pub(super) fn refusal(error: &FabricError) -> Option<ControlError> {
    let is_refusal = matches!(error, FabricError::NotAdmitted(NotAdmitted::Key { .. }));
    let refused = || ControlError::Refused { reason: RefuseReason::NotAuthenticated, text: String::new() };
    is_refusal.then(refused)
}
