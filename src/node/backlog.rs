use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::core::NodeCore;
use super::link::LinkUse;
use crate::control::{ControlError, RefuseReason};
use crate::event::Event;
use crate::fabric::{FabricError, Waker};
use crate::id::TopicName;

/// The topics that a node listens for.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    by_topic: Mutex<BTreeMap<TopicName, Arc<Backlog>>>,
}

/// The publishers that have dialled for one topic and wait to be accepted, in the order in which they came.
#[derive(Debug)]
pub(super) struct Backlog {
    /// How long each of their answers may take.
    timeout_ns: u64,
    /// `None` when the listener is gone.
    waiting: Mutex<Option<VecDeque<LinkUse>>>,
    /// Wakes those who wait to accept: somebody may be ready.
    ready: Waker,
}

impl Backlogs {
    /// Begins to listen for a topic, with this patience for each answer. `None` if there is a listener already.
    pub(super) fn open(
        &self,
        topic: &TopicName,
        timeout_ns: u64,
    ) -> Result<Option<Arc<Backlog>>, FabricError> {
        let mut by_topic = self.by_topic.lock();
        if by_topic.contains_key(topic) {
            return Ok(None);
        }
        let waiting = Mutex::new(Some(VecDeque::new()));
        let backlog = Arc::new(Backlog { timeout_ns, waiting, ready: Waker::new()? });
        by_topic.insert(topic.clone(), Arc::clone(&backlog));
        Ok(Some(backlog))
    }

    /// Ends that. Those that wait are left to the node's thread.
    pub(super) fn close(&self, topic: &TopicName, backlog: &Backlog) {
        self.by_topic.lock().remove(topic);
        let waiting = backlog.waiting.lock().take();
        drop(waiting);
    }

    /// Wakes those who wait to accept, because nobody will come any more.
    pub(super) fn wake_all(&self) {
        self.by_topic.lock().values().for_each(|backlog| backlog.ready.wake());
    }

    /// Where a publisher that has dialled for this topic is to wait.
    pub(super) fn of(&self, topic: &TopicName) -> Result<Arc<Backlog>, RefuseReason> {
        self.by_topic.lock().get(topic).cloned().ok_or(RefuseReason::NobodyWaits)
    }
}

impl Backlog {
    /// How long each answer of those that wait may take.
    pub(super) fn timeout_ns(&self) -> u64 {
        self.timeout_ns
    }

    /// Lets one more wait. If the listener is gone, nobody uses the session, and it ends.
    pub(super) fn push(&self, link: LinkUse) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.push_back(link);
        }
    }

    /// Wakes those who can accept somebody, and forgets those that wait in vain, because their session is over.
    pub(super) fn tend(&self, core: &NodeCore) {
        let mut failures = Vec::new();
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.retain(|link| {
                let failure = link.failure();
                let goes_on = failure.is_none();
                failures.extend(failure);
                goes_on
            });
            self.wake_for(waiting);
        }
        for failure in &failures {
            // A publisher that gave up is nobody's fault.
            if !matches!(failure, ControlError::Closed { .. }) {
                core.tell(&Event::PeerRejected { reason: failure.to_string() });
            }
        }
    }

    /// Readable when somebody may be ready, or no one comes any more.
    pub(super) fn ready(&self) -> &Waker {
        &self.ready
    }

    /// The first one that has said hello. Those that have not keep nobody waiting.
    pub(super) fn take_ready(&self) -> Option<LinkUse> {
        let mut waiting = self.waiting.lock();
        let waiting = waiting.as_mut()?;
        self.ready.reset();
        let ready = waiting.iter().position(|link| link.is_ready())?;
        let taken = waiting.remove(ready);
        // Another thread may wait for the next one.
        self.wake_for(waiting);
        taken
    }

    /// Wakes those who wait to accept, if one of these is ready.
    fn wake_for(&self, waiting: &VecDeque<LinkUse>) {
        if waiting.iter().any(|link| link.is_ready()) {
            self.ready.wake();
        }
    }
}
