use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::core::NodeCore;
use super::link::LinkUse;
use crate::control::{ControlError, RefuseReason};
use crate::event::Event;
use crate::fabric::{FabricError, Waker};
use crate::id::TopicName;

/// The topics for which a node listens.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    by_topic: Mutex<BTreeMap<TopicName, Arc<Backlog>>>,
}

/// Publishers that have dialled for one topic and wait to be accepted, in order of arrival.
#[derive(Debug)]
pub(super) struct Backlog {
    /// The timeout of each of their answers.
    pub(super) timeout_ns: u64,
    /// `None` once the listener is dropped.
    waiting: Mutex<Option<VecDeque<LinkUse>>>,
    /// Wakes those who wait to accept: somebody may be ready.
    pub(super) ready: Waker,
}

impl Backlogs {
    /// Begins to listen for a topic, with this timeout for each answer. `None` if it has a listener already.
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

    /// Stops listening. The node's thread ends the waiting sessions.
    pub(super) fn close(&self, topic: &TopicName, backlog: &Backlog) {
        self.by_topic.lock().remove(topic);
        let waiting = backlog.waiting.lock().take();
        drop(waiting);
    }

    /// Wakes the threads that accept, because no further publisher can arrive.
    pub(super) fn wake_all(&self) {
        self.by_topic.lock().values().for_each(|backlog| backlog.ready.wake());
    }

    /// The backlog for publishers that dial for this topic.
    pub(super) fn of(&self, topic: &TopicName) -> Result<Arc<Backlog>, RefuseReason> {
        self.by_topic.lock().get(topic).cloned().ok_or(RefuseReason::NobodyWaits)
    }
}

impl Backlog {
    /// Adds a publisher. If the listener is gone, the session is unused and ends.
    pub(super) fn push(&self, link: LinkUse) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.push_back(link);
        }
    }

    /// Wakes threads that can accept, and drops publishers whose session is over. Returns whether the publisher of the session with
    /// this key still waits.
    pub(super) fn tend(&self, core: &NodeCore, key: u64) -> bool {
        let (mut failures, mut still_waits) = (Vec::new(), false);
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.retain(|link| {
                let failure = link.failure();
                let goes_on = failure.is_none();
                failures.extend(failure);
                goes_on
            });
            still_waits = waiting.iter().any(|link| link.key() == key);
            self.wake_for(waiting);
        }
        for failure in &failures {
            // A publisher that closed in good order gave up: not an error.
            if !matches!(failure, ControlError::Closed { .. }) {
                core.tell(&Event::PeerRejected { reason: failure.to_string() });
            }
        }
        still_waits
    }

    /// The first publisher that has said hello. The others delay no one.
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

    /// Wakes the threads that accept if one of these is ready.
    fn wake_for(&self, waiting: &VecDeque<LinkUse>) {
        if waiting.iter().any(|link| link.is_ready()) {
            self.ready.wake();
        }
    }
}
