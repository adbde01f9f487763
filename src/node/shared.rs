use std::any::Any;
use std::sync::Arc;

use super::backlog::{Backlog, Backlogs};
use super::core::NodeCore;
use super::dial::Dialled;
use super::links::Links;
use super::seeking::Seeking;
use crate::control::RefuseReason;
use crate::event::Event;
use crate::fabric::PeerId;
use crate::id::TopicName;
use crate::limits;

/// What the handles of a node and its thread share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(super) core: Arc<NodeCore>,
    /// The sessions in which it subscribes.
    pub(super) links: Arc<Links>,
    /// The topics for which it listens.
    pub(super) backlogs: Arc<Backlogs>,
    /// Sessions with dialled subscribers that its thread does not serve yet.
    pub(super) dialled: Arc<Dialled>,
    /// The subscriptions that it seeks.
    pub(super) seeking: Arc<Seeking>,
}

impl Shared {
    /// A node without topics and sessions.
    pub(super) fn new(core: NodeCore) -> Self {
        let core = Arc::new(core);
        let links = Arc::new(Links::new(&core));
        let seeking = Seeking::new(Arc::clone(&core.clock), core.identity.started_ns);
        Self { core, links, backlogs: Arc::default(), dialled: Arc::default(), seeking: Arc::new(seeking) }
    }

    /// The backlog for a publisher that dials for this topic, if it has a listener and capacity left. Each peer leaves as many places as it
    /// has.
    pub(super) fn admit(
        &self,
        topic: &TopicName,
        peer: Option<PeerId>,
    ) -> Result<Arc<Backlog>, RefuseReason> {
        let backlog = self.backlogs.of(topic)?;
        let free = limits::INVITED_SESSIONS_MAX.saturating_sub(self.links.invited_count());
        if free <= peer.map_or(0, |peer| self.links.invited_by(peer)) {
            Err(RefuseReason::TooManySessions)
        } else {
            Ok(backlog)
        }
    }

    /// Records that the node's thread has panicked, and notifies all handles.
    pub(super) fn fail(&self, panic: &(dyn Any + Send)) {
        let reason = self.core.fail(panic);
        if let Err(error) = self.core.check_runs() {
            self.links.fail(&error);
        }
        self.backlogs.wake_all();
        self.dialled.fail();
        self.core.tell(&Event::NodeFailed { reason: reason.to_owned() });
    }
}
