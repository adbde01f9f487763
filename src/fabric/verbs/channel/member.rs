use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::site::Site;
use crate::chain::ErrorChain;
use crate::fabric::verbs::error::VerbsError;
use crate::fabric::verbs::sys::{
    CmEvent, CmEventKind, CmId, EventChannel, JoinedGroup, Membership, SysError,
};
use crate::limits;

/// The status of an event when the library could not attach the queue pair to the group.
const NOT_ATTACHED: i32 = -1;

/// The state of a channel's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// Usable.
    Well,
    /// A work request failed: the queue pair is drained, then restarted.
    Failing,
    /// The restart failed, and is tried again at this time, ns.
    Broken { again_ns: u64 },
}

impl Health {
    /// Restarts a queue pair that is drained, if that is due.
    pub(super) fn mend(
        &mut self,
        now_ns: u64,
        restart: impl FnOnce() -> Result<(), SysError>,
    ) -> Result<(), SysError> {
        match *self {
            Self::Well => return Ok(()),
            Self::Broken { again_ns } if now_ns < again_ns => return Ok(()),
            Self::Failing | Self::Broken { .. } => {}
        }
        let restarted = restart();
        *self = match &restarted {
            Ok(()) => Self::Well,
            Err(error) => {
                tracing::warn!(target: "fabricast", %error, "an end of a channel cannot be restarted yet");
                Self::Broken { again_ns: now_ns.saturating_add(limits::verbs::RESTART_NS) }
            }
        };
        restarted
    }
}

/// The membership of a queue pair in a group. Must be dropped before the queue pair, which cannot be destroyed while attached.
#[derive(Debug)]
pub(super) struct Member {
    id: CmId,
    events: Arc<EventChannel>,
    group: Ipv4Addr,
    membership: Membership,
    phase: JoinPhase,
    /// Why it is not a member, until reported.
    failure: Option<VerbsError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinPhase {
    /// The network has not answered yet.
    Joining,
    /// Joined.
    Joined,
    /// Not a member.
    Out,
}

impl Member {
    /// Starts joining. [`Self::take_failure`] reports failures.
    pub(super) fn begin(site: &Site, group: Ipv4Addr, membership: Membership) -> Self {
        let (id, events) = (site.id.clone(), Arc::clone(&site.events));
        let mut this = Self { id, events, group, membership, phase: JoinPhase::Joining, failure: None };
        let begun = this.id.join(group, membership);
        if let Err(error) = begun {
            this.fall_back(error.into());
        }
        this
    }

    /// Readable when [`Self::next`] may have an event.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether the network has not answered yet, or a failure is unreported.
    pub(super) fn is_unsettled(&self) -> bool {
        self.phase == JoinPhase::Joining || self.has_failure()
    }

    /// Whether it is not a member and never will be.
    pub(super) fn is_out(&self) -> bool {
        self.phase == JoinPhase::Out
    }

    /// Whether a failure is unreported.
    pub(super) fn has_failure(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns once why it is not a member.
    pub(super) fn take_failure(&mut self) -> Option<VerbsError> {
        self.failure.take()
    }

    /// Polls for events; returns the group once it is joined.
    pub(super) fn next(&mut self) -> Result<Option<JoinedGroup>, SysError> {
        while let Some(event) = self.events.next()? {
            let joined = self.take(event);
            if joined.is_some() {
                return Ok(joined);
            }
        }
        Ok(None)
    }

    fn take(&mut self, event: CmEvent) -> Option<JoinedGroup> {
        let group = self.group;
        match event.kind {
            CmEventKind::MulticastJoin if self.phase == JoinPhase::Joining => {
                self.phase = JoinPhase::Joined;
                tracing::debug!(target: "fabricast", %group, membership = ?self.membership, "a group was joined");
                return event.joined;
            }
            CmEventKind::MulticastError => self.fall_back(match event.status {
                NOT_ATTACHED => VerbsError::GroupFull { group },
                status => VerbsError::NotJoined { group, status },
            }),
            CmEventKind::DeviceRemoval => {
                self.id.lose_device();
                self.fail(VerbsError::DeviceGone);
            }
            kind => tracing::debug!(target: "fabricast", %group, ?kind, "an event of a group"),
        }
        None
    }

    /// Falls back to full membership: some devices do not support send-only members.
    fn fall_back(&mut self, error: VerbsError) {
        if self.phase != JoinPhase::Joining || self.membership == Membership::Full {
            return self.fail(error);
        }
        tracing::debug!(target: "fabricast", group = %self.group, error = %ErrorChain(&error), "joined as a full member, only to send");
        self.leave();
        self.membership = Membership::Full;
        if let Err(error) = self.id.join(self.group, Membership::Full) {
            self.fail(error.into());
        }
    }

    /// Ends the membership. The caller reports why.
    pub(super) fn give_up(&mut self, error: &SysError) {
        tracing::warn!(target: "fabricast", group = %self.group, %error, "a multicast group cannot be sent to");
        self.phase = JoinPhase::Out;
    }

    fn fail(&mut self, error: VerbsError) {
        tracing::warn!(target: "fabricast", group = %self.group, error = %ErrorChain(&error), "a multicast group is not joined");
        self.phase = JoinPhase::Out;
        self.failure = Some(error);
    }

    fn leave(&self) {
        if let Err(error) = self.id.leave(self.group) {
            tracing::trace!(target: "fabricast", group = %self.group, %error, "no group to leave");
        }
    }
}

#[cfg(test)]
impl Member {
    /// A network without multicast.
    pub(super) fn lose(&mut self) {
        self.fail(VerbsError::NotJoined { group: self.group, status: -110 });
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn queue_pair_that_cannot_be_restarted_is_tried_again_after_a_pause() {
        let refused = || Err(SysError::new("ibv_modify_qp", Errno::NOMEM));
        let not_due = || -> Result<(), SysError> { panic!("it is not due") };
        let mut health = Health::Well;
        health.mend(1, not_due).unwrap();
        health = Health::Failing;
        let again_ns = 1 + limits::verbs::RESTART_NS;
        assert!(health.mend(1, refused).is_err());
        assert_eq!(health, Health::Broken { again_ns });
        health.mend(again_ns - 1, not_due).unwrap();
        assert!(health.mend(again_ns, refused).is_err());
        health.mend(again_ns + 1, not_due).unwrap();
        health.mend(again_ns + limits::verbs::RESTART_NS, || Ok(())).unwrap();
        assert_eq!(health, Health::Well);
    }
}
