//! The fabric's connections and listeners over verbs.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::channel::Channels;
use super::endpoint::Endpoint;
use super::error::VerbsError;
use super::handshake::{ExchangedLink, TcpAcceptor};
use super::link::QpLink;
use super::manager::{CmListener, ManagedLink};
use super::opened::{Devices, ip_addresses};
use super::service::Service;
use super::session::{Session, SessionArrivals};
use crate::clock::{Clock, SystemClock};
use crate::fabric::several::together;
use crate::fabric::{
    Acceptor, Address, ArrivalSource, Capabilities, ChannelReceiver, ChannelSender, Connection, Datagrams,
    FabricError, PeerAddress, Prepared, Received, Registration, Sent, UnicastSender,
};

/// Attempts to find a port that is free for both connection methods.
const PORTS_TRIED_MAX: u32 = 16;

/// The error of a connection without channels.
const NO_CHANNEL: VerbsError = VerbsError::NoChannel { why: "it is not between IPv4 addresses" };

/// One end of a session.
#[derive(Debug)]
pub(super) struct VerbsConnection {
    session: Arc<Session>,
    service: Arc<Service>,
    channels: Arc<Channels>,
}

impl VerbsConnection {
    /// Creates the connection that owns this session.
    pub(super) fn new(session: Arc<Session>, service: &Arc<Service>, channels: &Arc<Channels>) -> Self {
        service.attend(&session);
        Self { session, service: Arc::clone(service), channels: Arc::clone(channels) }
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

    fn capabilities(&self) -> Capabilities {
        self.session.capabilities()
    }

    fn binding(&self) -> Result<Vec<u8>, FabricError> {
        self.session.binding()
    }

    fn peer_address(&self) -> PeerAddress {
        self.session.peer_address().map_or(PeerAddress::Unknown, PeerAddress::Network)
    }

    fn prepare(&self, registration: &Arc<Registration>) -> Result<Prepared, FabricError> {
        self.session.prepare(registration)
    }

    fn withdraw(&mut self, registration: &Registration) {
        self.session.withdraw(registration);
    }

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        Some(self)
    }

    fn arrivals(&self) -> Option<Arc<dyn ArrivalSource>> {
        Some(Arc::new(SessionArrivals::new(&self.session, &self.service)))
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.session.wait_handle()
    }
}

impl Datagrams for VerbsConnection {
    fn channel_sender(&self) -> Result<Option<Arc<dyn ChannelSender>>, FabricError> {
        let Some((near, _)) = self.session.addresses()? else { return Ok(None) };
        Ok(self.channels.sender(near)?.map(|sender| sender as _))
    }

    fn unicast_sender(&self, return_ticket: &[u8]) -> Result<Arc<dyn UnicastSender>, FabricError> {
        let addresses = self.session.addresses()?.ok_or(NO_CHANNEL)?;
        Ok(Arc::new(self.channels.unicast(return_ticket, addresses)?))
    }

    fn join_channel(&self, ticket: &[u8]) -> Result<Box<dyn ChannelReceiver>, FabricError> {
        let addresses = self.session.addresses()?.ok_or(NO_CHANNEL)?;
        Ok(Box::new(self.channels.join(ticket, addresses)?))
    }
}

impl Drop for VerbsConnection {
    fn drop(&mut self) {
        self.session.close(SystemClock.monotonic_ns());
        self.service.attend(&self.session);
    }
}

/// Where a node listens: for peers that connect by the connection manager, and, on the same TCP port, for those that
/// connect by an exchange.
#[derive(Debug)]
pub(super) struct VerbsListener {
    reception: CmListener,
    counter: TcpAcceptor,
    /// Readable when either listener is.
    readable: OwnedFd,
    /// Whether the TCP listener is polled first the next time, so that neither starves the other.
    counter_is_next: bool,
    devices: Arc<Devices>,
    service: Arc<Service>,
    channels: Arc<Channels>,
}

impl VerbsListener {
    /// Listens at a local address.
    pub(super) fn open(
        at: &SocketAddr,
        devices: &Arc<Devices>,
        service: &Arc<Service>,
        channels: &Arc<Channels>,
    ) -> Result<Self, FabricError> {
        let (reception, counter) = listen_both(at, devices)?;
        let readable = together(&[reception.channel.as_fd(), counter.wait_handle()])?;
        service.start()?;
        let (devices, service, channels) = (Arc::clone(devices), Arc::clone(service), Arc::clone(channels));
        Ok(Self { reception, counter, readable, counter_is_next: false, devices, service, channels })
    }

    fn accept_managed(&self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        while let Some(request) = self.reception.next()? {
            let accepted = ManagedLink::accept(request, &self.devices, SystemClock.monotonic_ns())?;
            if let Some((link, endpoint)) = accepted {
                return self.connection(Box::new(link), Some(endpoint)).map(Some);
            }
        }
        Ok(None)
    }

    fn accept_exchanged(&self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        let Some(socket) = self.counter.next()? else { return Ok(None) };
        let link = ExchangedLink::accept(socket, SystemClock.monotonic_ns())?;
        self.connection(Box::new(link), None).map(Some)
    }

    fn connection(
        &self,
        link: Box<dyn QpLink>,
        endpoint: Option<Arc<Endpoint>>,
    ) -> Result<Box<dyn Connection>, FabricError> {
        let session = Session::new(&self.devices, link, endpoint)?;
        Ok(Box::new(VerbsConnection::new(session, &self.service, &self.channels)))
    }
}

/// Listens for both methods on one port; if it is 0, on a port that is free for both.
pub(super) fn listen_both(
    at: &SocketAddr,
    devices: &Devices,
) -> Result<(CmListener, TcpAcceptor), FabricError> {
    for _ in 0..PORTS_TRIED_MAX {
        let reception = CmListener::open(at, devices)?;
        let port = reception.address().unwrap_or(*at).port();
        if let Some(counter) = TcpAcceptor::open(&SocketAddr::new(at.ip(), port))? {
            return Ok((reception, counter));
        }
        if at.port() != 0 {
            break;
        }
    }
    Err(FabricError::AddressInUse { address: Address::rdma(*at) })
}

/// The addresses at which peers reach a listener.
pub(super) fn addresses(listener: &CmListener) -> Vec<Address> {
    let Some(at) = listener.address() else { return Vec::new() };
    let rdma = |ip| Address::rdma(SocketAddr::new(ip, at.port()));
    if at.ip().is_unspecified() {
        return ip_addresses().into_iter().map(rdma).collect();
    }
    vec![rdma(at.ip())]
}

impl Acceptor for VerbsListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        self.counter_is_next = !self.counter_is_next;
        let accepted = if self.counter_is_next { self.accept_managed() } else { self.accept_exchanged() };
        match accepted? {
            None if self.counter_is_next => self.accept_exchanged(),
            None => self.accept_managed(),
            accepted => Ok(accepted),
        }
    }

    fn addresses(&self) -> Vec<Address> {
        addresses(&self.reception)
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
