//! Connections that are being established.

use crate::fabric::{Address, Connection, FabricError};

/// A connection that is being established.
#[derive(Debug)]
pub(super) struct Connecting {
    /// The address that was dialled.
    address: Address,
    /// How long the peer has for its hello afterwards, ns.
    pub(super) timeout_ns: u64,
}

impl Connecting {
    /// What is awaited of this connection; nothing if it is established.
    pub(super) fn begin(connection: &dyn Connection, address: &Address, timeout_ns: u64) -> Option<Self> {
        let is_connecting = connection.capabilities().is_connecting;
        is_connecting.then(|| Self { address: address.clone(), timeout_ns })
    }

    /// It was not established in time. Whether a process runs there is not known.
    pub(super) fn no_answer(self) -> FabricError {
        FabricError::NoAnswer { address: self.address }
    }
}
