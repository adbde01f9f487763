use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::core::NodeCore;
use super::invitation::{DialError, Invitation, Pending};
use super::served::Served;
use crate::clock::saturate;
use crate::fabric::{Address, Intent};
use crate::id::TopicName;

/// Sessions with subscribers that the node has dialled and its thread does not serve yet.
#[derive(Debug, Default)]
pub(super) struct Dialled(Mutex<Vec<Served>>);

impl Dialled {
    /// Dials the node at this address, and waits until a subscriber there attaches to the topic.
    pub(super) fn dial(
        &self,
        core: &NodeCore,
        topic: &str,
        address: &Address,
        timeout: Duration,
    ) -> Result<(), DialError> {
        let clock = &core.clock;
        let deadline_ns = clock.monotonic_ns().saturating_add(saturate(timeout));
        let invitation = self.invite(core, topic.parse()?, address, deadline_ns)?;
        loop {
            let left_ns = deadline_ns.saturating_sub(clock.monotonic_ns());
            if let Some(outcome) = invitation.outcome(left_ns > 0) {
                // Ends a session whose dial failed at once.
                invitation.wake();
                return match outcome {
                    // A session that was lost with the node's thread says nothing of the peer.
                    Err(DialError::Session { .. }) => check_runs(core, &invitation.topic).and(outcome),
                    outcome => outcome,
                };
            }
            clock.pause_until(invitation.wait_handle(), Duration::from_nanos(left_ns));
        }
    }

    /// Begins to dial the node at this address.
    pub(super) fn invite(
        &self,
        core: &NodeCore,
        topic: TopicName,
        address: &Address,
        deadline_ns: u64,
    ) -> Result<Arc<Invitation>, DialError> {
        check_runs(core, &topic)?;
        if core.topic(&topic).is_none() {
            return Err(DialError::NoSuchTopic { topic });
        }
        let timeout = Duration::from_nanos(deadline_ns.saturating_sub(core.clock.monotonic_ns()));
        let connection = match core.fabric.dial(address, Intent::Write, timeout) {
            Ok(connection) => connection,
            Err(source) => return Err(DialError::Unreachable { topic, source }),
        };
        let invitation = Invitation::new(address, topic, core.keyed_waker())?;
        let pending = Pending::new(&invitation);
        let served = Served::inviting(core, connection, deadline_ns, pending).map_err(|source| {
            let topic = invitation.topic.clone();
            DialError::Unreachable { topic, source }
        })?;
        self.0.lock().push(served);
        // The node's thread may have failed since, and have dropped the sessions that it knew of.
        if let Err(error) = check_runs(core, &invitation.topic) {
            self.fail();
            return Err(error);
        }
        invitation.wake();
        Ok(invitation)
    }

    /// Takes the sessions to be served.
    pub(super) fn take(&self) -> Vec<Served> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Fails the dials whose sessions are not served yet.
    pub(super) fn fail(&self) {
        drop(self.take());
    }
}

/// Fails once the thread of this node has panicked.
fn check_runs(core: &NodeCore, topic: &TopicName) -> Result<(), DialError> {
    core.check_runs().map_err(|source| DialError::NodeFailed { topic: topic.clone(), source })
}
