//! The end of a session that still has subscriptions: they keep what they know, but not the connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::LinkState;
use crate::fabric::{
    Capabilities, Connection, Datagrams, FabricError, PeerAddress, Prepared, Received, Registration, Sent,
};

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
    /// Drops the connection once the session is over and nothing is left to be sent: a program may keep a subscription that has ended, or
    /// seek its publisher, for as long as it likes, and a device that was removed is released only when nothing uses it any more.
    pub(super) fn hang_up(&mut self, handle: &OwnedFd, now_ns: u64) {
        if self.failure.is_none() || self.is_hung_up || !self.outbox.is_empty() {
            return;
        }
        // Without a descriptor it keeps those of the connection.
        let Ok(handle) = handle.try_clone() else { return };
        let (capabilities, peer_address) = (self.connection.capabilities(), self.connection.peer_address());
        self.connection = Box::new(Over { capabilities, peer_address, handle });
        self.arrivals = None;
        self.membership.take().into_iter().for_each(|membership| membership.close(now_ns));
        self.is_hung_up = true;
    }
}
