use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::site::Site;
use crate::fabric::verbs::error::VerbsError;
use crate::fabric::verbs::sys::{
    CmEvent, CmEventKind, CmId, EventChannel, JoinedGroup, Membership, SysError,
};

/// The status of an event when the library could not attach the queue pair to the group.
const NOT_ATTACHED: i32 = -1;

/// Whether a queue pair can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It can.
    Well,
    /// A work request has failed: it gives back what it has, and is then started again.
    Failing,
    /// It could not be started again.
    Broken,
}

/// The membership of a queue pair in a group. Dropped before the queue pair: one that is attached cannot be destroyed.
#[derive(Debug)]
pub(super) struct Member {
    id: CmId,
    events: Arc<EventChannel>,
    group: Ipv4Addr,
    membership: Membership,
    phase: Phase,
    /// Why it is no member, until that was told.
    failure: Option<VerbsError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The network was asked.
    Joining,
    /// It is a member.
    Joined,
    /// It is none.
    Out,
}

impl Member {
    /// Begins to join. Failures are told by [`Self::take_failure`].
    pub(super) fn begin(site: &Site, group: Ipv4Addr, membership: Membership) -> Self {
        let (id, events) = (site.id.clone(), Arc::clone(&site.events));
        let mut this = Self { id, events, group, membership, phase: Phase::Joining, failure: None };
        let begun = this.id.join(group, membership);
        if let Err(error) = begun {
            this.fall_back(error.into());
        }
        this
    }

    /// Readable when [`Self::next`] may have something.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether the network has yet to answer, or a failure is to be told.
    pub(super) fn is_unsettled(&self) -> bool {
        self.phase == Phase::Joining || self.has_failure()
    }

    /// Whether it is none, and never will be.
    pub(super) fn is_out(&self) -> bool {
        self.phase == Phase::Out
    }

    /// Whether a failure is to be told.
    pub(super) fn has_failure(&self) -> bool {
        self.failure.is_some()
    }

    /// Why it is no member, once.
    pub(super) fn take_failure(&mut self) -> Option<VerbsError> {
        self.failure.take()
    }

    /// Takes what the network says: the group, once it is joined.
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
            CmEventKind::MulticastJoin if self.phase == Phase::Joining => {
                self.phase = Phase::Joined;
                tracing::debug!(target: "fabricast", %group, membership = ?self.membership, "a group was joined");
                return event.joined;
            }
            CmEventKind::MulticastError => self.fall_back(match event.status {
                NOT_ATTACHED => VerbsError::GroupFull { group },
                status => VerbsError::NotJoined { group, status },
            }),
            CmEventKind::DeviceRemoval => self.fail(VerbsError::DeviceGone),
            kind => tracing::debug!(target: "fabricast", %group, ?kind, "an event of a group"),
        }
        None
    }

    /// A device that knows no members who only send may take full ones.
    fn fall_back(&mut self, error: VerbsError) {
        if self.phase != Phase::Joining || self.membership == Membership::Full {
            return self.fail(error);
        }
        tracing::debug!(target: "fabricast", group = %self.group, %error, "joined as a full member, only to send");
        self.leave();
        self.membership = Membership::Full;
        if let Err(error) = self.id.join(self.group, Membership::Full) {
            self.fail(error.into());
        }
    }

    /// Is none from now on, although it was joined. The caller tells why.
    pub(super) fn give_up(&mut self, error: &SysError) {
        tracing::warn!(target: "fabricast", group = %self.group, %error, "a multicast group cannot be sent to");
        self.phase = Phase::Out;
    }

    fn fail(&mut self, error: VerbsError) {
        tracing::warn!(target: "fabricast", group = %self.group, %error, "a multicast group is not joined");
        self.phase = Phase::Out;
        self.failure = Some(error);
    }

    fn leave(&self) {
        if let Err(error) = self.id.leave(self.group) {
            tracing::trace!(target: "fabricast", group = %self.group, %error, "nothing to be left");
        }
    }
}

#[cfg(test)]
impl Member {
    /// What a network does that carries no multicast.
    pub(super) fn lose(&mut self) {
        self.fail(VerbsError::NotJoined { group: self.group, status: -110 });
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}
