//! The end of a session that still has subscriptions: they keep what they know, but not the connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::LinkState;
use crate::fabric::{
    Capabilities, Connection, Datagrams, FabricError, PeerAddress, Prepared, Received, Registration, Sent,
};

/// How long a session that is over keeps its connection, nanoseconds: the last writes of an unreliable one may still arrive, since
/// the end came another way.
const HANG_UP_NS: u64 = 500_000_000;

/// In place of the connection of a session that is over.
#[derive(Debug)]
struct Over {
    capabilities: Capabilities,
    peer_address: PeerAddress,
    handle: OwnedFd,
}

impl Connection for Over {
    fn send(&mut self, _: &[u8], _: Option<&Registration>) -> Result<Sent, FabricError> {
        Err(FabricError::Closed)
    }

    fn receive(&mut self, _: &mut [u8]) -> Result<Received, FabricError> {
        Ok(Received::Closed)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn peer_address(&self) -> PeerAddress {
        self.peer_address
    }

    fn prepare(&self, _: &Arc<Registration>) -> Result<Prepared, FabricError> {
        Err(FabricError::Closed)
    }

    fn withdraw(&mut self, _: &Registration) {}

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        None
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl LinkState {
    /// Drops the connection some time after the end of the session: a program may keep a subscription that has ended, or seek its
    /// publisher, for as long as it likes, and a device that was removed is released only when nothing uses it any more. Returns when
    /// it is due.
    pub(super) fn hang_up(&mut self, handle: &OwnedFd, now_ns: u64) -> Option<u64> {
        self.failure.as_ref()?;
        let due_ns = *self.hang_up_ns.get_or_insert_with(|| now_ns.saturating_add(HANG_UP_NS));
        if due_ns == 0 || now_ns < due_ns {
            return Some(due_ns).filter(|due_ns| *due_ns > 0);
        }
        let Ok(handle) = handle.try_clone() else {
            // Without a descriptor it keeps those of the connection, for now.
            self.hang_up_ns = Some(now_ns.saturating_add(HANG_UP_NS));
            return self.hang_up_ns;
        };
        self.hang_up_ns = Some(0);
        let (capabilities, peer_address) = (self.connection.capabilities(), self.connection.peer_address());
        self.connection = Box::new(Over { capabilities, peer_address, handle });
        self.arrivals = None;
        self.membership.take().into_iter().for_each(|membership| membership.close(now_ns));
        None
    }
}
