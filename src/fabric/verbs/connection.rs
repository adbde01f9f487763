//! Connections and listeners of the seam.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::manager::{Link, Reception};
use super::opened::{Devices, ip_addresses};
use super::service::Service;
use super::session::Session;
use crate::clock::{Clock, SystemClock};
use crate::fabric::{Address, Connection, FabricError, Listener, Received, Registration, RemoteKey, Sent};

/// One end of a session.
#[derive(Debug)]
pub(super) struct VerbsConnection {
    session: Arc<Session>,
    service: Arc<Service>,
}

impl VerbsConnection {
    /// The connection that owns this session.
    pub(super) fn new(session: Arc<Session>, service: &Arc<Service>) -> Self {
        service.attend(&session);
        Self { session, service: Arc::clone(service) }
    }
}

impl Connection for VerbsConnection {
    fn send(&mut self, message: &[u8], region: Option<&Registration>) -> Result<Sent, FabricError> {
        let sent = self.session.send(message, region, SystemClock.monotonic_ns());
        self.service.attend(&self.session);
        sent
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError> {
        let received = self.session.receive(into, SystemClock.monotonic_ns());
        self.service.attend(&self.session);
        received
    }

    fn writes_words_in_order(&self) -> bool {
        false
    }

    fn remote_key(&self, registration: &Registration) -> RemoteKey {
        self.session.remote_key(registration)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.session.wait_handle())
    }
}

impl Drop for VerbsConnection {
    fn drop(&mut self) {
        self.session.close(SystemClock.monotonic_ns());
        self.service.attend(&self.session);
    }
}

/// Where a node listens.
#[derive(Debug)]
pub(super) struct VerbsListener {
    reception: Reception,
    devices: Arc<Devices>,
    service: Arc<Service>,
}

impl VerbsListener {
    /// Listens at a local address.
    pub(super) fn open(
        at: &SocketAddr,
        devices: &Arc<Devices>,
        service: &Arc<Service>,
    ) -> Result<Self, FabricError> {
        let reception = Reception::open(at, devices)?;
        service.start()?;
        Ok(Self { reception, devices: Arc::clone(devices), service: Arc::clone(service) })
    }
}

impl Listener for VerbsListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        while let Some(request) = self.reception.next()? {
            let accepted = Link::accept(request, &self.devices, SystemClock.monotonic_ns())?;
            if let Some((link, endpoint)) = accepted {
                let session = Session::new(&self.devices, link, Some(endpoint))?;
                return Ok(Some(Box::new(VerbsConnection::new(session, &self.service))));
            }
        }
        Ok(None)
    }

    fn addresses(&self) -> Vec<Address> {
        let Some(at) = self.reception.address() else { return Vec::new() };
        let rdma = |ip: std::net::IpAddr| Address::Rdma { host: ip.to_string(), port: at.port() };
        if at.ip().is_unspecified() {
            return ip_addresses().into_iter().map(rdma).collect();
        }
        vec![rdma(at.ip())]
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reception.channel().as_fd())
    }
}
