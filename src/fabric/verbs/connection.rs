//! The fabric's connections and listeners over verbs.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::channel::Channels;
use super::endpoint::Endpoint;
use super::error::VerbsError;
use super::greeting::{self, Greeting, Rejection};
use super::handshake::{ExchangedLink, TcpAcceptor, turn_away};
use super::link::QpLink;
use super::manager::{CmListener, ManagedLink};
use super::opened::Devices;
use super::reception::Reception;
use super::service::Service;
use super::session::{Session, SessionArrivals};
use super::sys::{CmEvent, CmId};
use crate::clock::{Clock, SystemClock};
use crate::fabric::wait::together;
use crate::fabric::{
    Acceptor, Address, ArrivalSource, Capabilities, ChannelReceiver, ChannelSender, ConnectPolicy,
    Connection, Datagrams, FabricError, ListenerNews, NoPlace, NotAdmitted, PeerAddress, PeerId, Place,
    Places, Prepared, Received, Registration, Sent, TurnedAway, UnicastSender,
};
use crate::limits;

/// Attempts to find a port that is free for both connection methods.
const PORTS_TRIED_MAX: u32 = 16;

/// Stands for the address of a peer that has none.
const UNKNOWN: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

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

    fn place(&self) -> Result<Option<&Place>, NoPlace> {
        Ok(self.session.place())
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
    reception: Reception,
    counter: TcpAcceptor,
    /// Readable when either listener is.
    readable: OwnedFd,
    /// Whether the TCP listener is polled first the next time, so that neither starves the other.
    counter_is_next: bool,
    devices: Arc<Devices>,
    service: Arc<Service>,
    channels: Arc<Channels>,
    places: Arc<Places>,
    policy: Arc<dyn ConnectPolicy>,
}

impl VerbsListener {
    /// Listens at a local address.
    pub(super) fn open(
        at: &SocketAddr,
        (devices, service, channels): (&Arc<Devices>, &Arc<Service>, &Arc<Channels>),
        (places, policy): (&Arc<Places>, &Arc<dyn ConnectPolicy>),
    ) -> Result<Self, FabricError> {
        let (reception, counter) = listen_both(at, devices)?;
        let readable = together(&[reception.channel.as_fd(), counter.wait_handle()])?;
        let reception = Reception::new(reception, at);
        service.start()?;
        let (devices, service, channels) = (Arc::clone(devices), Arc::clone(service), Arc::clone(channels));
        let (places, policy) = (Arc::clone(places), Arc::clone(policy));
        let counter_is_next = false;
        Ok(Self { reception, counter, readable, counter_is_next, devices, service, channels, places, policy })
    }

    fn accept_managed(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        let now_ns = SystemClock.monotonic_ns();
        let stood = self.reception.wait_handle().is_some();
        let request = self.reception.next(&self.devices, &self.readable, now_ns)?;
        if stood != self.reception.wait_handle().is_some() {
            // It watches the devices that there are now.
            self.service.start()?;
        }
        let Some(request) = request else { return Ok(None) };
        let peer = request.new_id.as_ref().and_then(CmId::peer_address);
        // Before a queue pair is made.
        let reject = |why: Rejection| {
            if let Some(id) = &request.new_id {
                // It fails if the peer is gone already.
                let _ = id.reject(&why.emit());
            }
        };
        let place =
            self.seat(peer, now_ns).inspect_err(|TurnedAway { why, .. }| reject(Rejection::NoPlace(*why)));
        let place = place.map_err(turned_away)?;
        self.admit(&request).inspect_err(|why| reject(Rejection::NotAdmitted(*why)))?;
        match ManagedLink::accept(request, &self.devices, now_ns)? {
            Some((link, endpoint)) => self.connection(Box::new(link), Some(endpoint), place).map(Some),
            None => Ok(None),
        }
    }

    fn accept_exchanged(&self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        let Some(socket) = self.counter.next()? else { return Ok(None) };
        let now_ns = SystemClock.monotonic_ns();
        let peer = socket.peer_addr().ok();
        let place = match self.seat(peer, now_ns) {
            Ok(place) => place,
            Err(refused) => {
                if !refused.is_hasty {
                    turn_away(socket, Rejection::NoPlace(refused.why));
                }
                return Err(turned_away(refused));
            }
        };
        if let Err(why) = self.allow(peer) {
            turn_away(socket, Rejection::NotAdmitted(why));
            return Err(why.into());
        }
        let link = ExchangedLink::accept(socket, now_ns)?.demanding(&self.policy);
        self.connection(Box::new(link), None, place).map(Some)
    }

    /// Checks where the peer of a request is, and what it shows. A malformed request is rejected for that.
    fn admit(&self, request: &CmEvent) -> Result<(), NotAdmitted> {
        let id = request.new_id.as_ref();
        let (peer, local) = (id.and_then(CmId::peer_address), id.and_then(CmId::local_address));
        self.allow(peer)?;
        let Ok(dialled) = Greeting::parse(&request.private_data) else { return Ok(()) };
        let unknown = SocketAddr::new(UNKNOWN, 0);
        let (sent, shown) = (dialled.emit(), Greeting::shown(&request.private_data));
        let addresses = (peer.unwrap_or(unknown), local.unwrap_or(unknown));
        greeting::check(&*self.policy, (dialled.intent(), &sent, shown), addresses)
    }

    /// Checks whether a peer may connect from there.
    fn allow(&self, peer: Option<SocketAddr>) -> Result<(), NotAdmitted> {
        let address = address_of(peer);
        if self.policy.allows(address) { Ok(()) } else { Err(NotAdmitted::Address { address }) }
    }

    /// Gives the peer at this address a place, if there is one.
    fn seat(&self, peer: Option<SocketAddr>, now_ns: u64) -> Result<Place, TurnedAway> {
        let units = limits::verbs::DIAL_UNITS.saturating_add(self.policy.units());
        self.places.take(PeerId::Host(address_of(peer)), units, now_ns)
    }

    fn connection(
        &self,
        link: Box<dyn QpLink>,
        endpoint: Option<Arc<Endpoint>>,
        place: Place,
    ) -> Result<Box<dyn Connection>, FabricError> {
        let session = Session::new(&self.devices, link, endpoint)?;
        session.hold(place);
        Ok(Box::new(VerbsConnection::new(session, &self.service, &self.channels)))
    }
}

/// The address of a peer, in one form for each.
fn address_of(peer: Option<SocketAddr>) -> IpAddr {
    peer.map_or(UNKNOWN, |peer| peer.ip().to_canonical())
}

/// The error of a refusal. One that is hasty says nothing.
fn turned_away(TurnedAway { why, is_hasty }: TurnedAway) -> FabricError {
    if is_hasty { FabricError::Closed } else { why.into() }
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
        self.reception.addresses()
    }

    fn due_ns(&self) -> Option<u64> {
        self.reception.due_ns()
    }

    fn take_news(&mut self) -> Option<ListenerNews> {
        self.reception.take_news()
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
