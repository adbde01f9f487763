//! The beginning of a session with a node that this one dials.

use std::sync::Arc;

use super::connecting::Connecting;
use super::{Link, LinkError, LinkState};
use crate::control::ClientSession;
use crate::fabric::{Address, Connection};
use crate::node::core::NodeCore;

impl Link {
    /// Begins a session over this connection with the node at this address. The hello is ready to be sent. The peer's must arrive by
    /// `deadline_ns`; over a connection that is not established yet, that is the deadline of connecting, and the peer has `timeout_ns`
    /// from then on.
    pub(in crate::node) fn dialled(
        core: &Arc<NodeCore>,
        connection: Box<dyn Connection>,
        address: &Address,
        (timeout_ns, deadline_ns): (u64, u64),
    ) -> Result<Self, LinkError> {
        let greeting = core.greeting(connection.as_ref()).map_err(LinkError::Fabric)?;
        let session = ClientSession::connect(core.clock.monotonic_ns(), greeting, timeout_ns);
        let connecting = Connecting::begin(connection.as_ref(), address, timeout_ns);
        let link = Self::new(core, connection, session, timeout_ns)?;
        link.state.lock().await_connection(connecting, deadline_ns);
        Ok(Self { address: Some(address.clone()), ..link })
    }

    /// Waits for the peer's hello.
    pub(in crate::node) fn greet(&self) -> Result<(), LinkError> {
        self.wait_for("hello", |state| state.peer.is_some().then_some(Ok(())))
    }
}

impl LinkState {
    /// Begins to wait for the connection, if there is something to wait for, and for the peer's hello.
    fn await_connection(&mut self, connecting: Option<Connecting>, deadline_ns: u64) {
        self.connecting = connecting;
        self.session.expect_hello_until(deadline_ns);
    }

    /// The deadline of the hello begins when the connection is established.
    pub(super) fn follow_connection(&mut self, now_ns: u64) {
        let established = self.connecting.take_if(|_| !self.connection.capabilities().is_connecting);
        if let Some(connecting) = established {
            self.session.expect_hello_until(now_ns.saturating_add(connecting.timeout_ns));
        }
    }
}

#[cfg(test)]
mod tests;
