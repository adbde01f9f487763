//! Establishment and shutdown of a connection by the connection manager (librdmacm).

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::endpoint::Endpoint;
use super::error::VerbsError;
use super::greeting::{Greeting, Rejection, Showing};
use super::link::{LinkEvent, QpEnd, QpEnds, QpLink};
use super::opened::{Devices, OpenDevice, ip_addresses};
use super::sys::{
    CmEvent, CmEventKind, CmId, ConnectParameters, Context, EventChannel, PortSpace, QueuePairKind,
    QueuePairPlan, SysError,
};
use crate::fabric::rdma::SCHEME;
use crate::fabric::{Address, FabricError};
use crate::limits;

/// The provider's name.
const NAME: &str = "verbs";
/// Retransmissions of a packet: as many as can be asked for. soft-RoCE then never gives up, adapters do after eight timeouts.
pub(super) const RETRY_COUNT: u8 = 7;
/// Retransmissions of a frame for which the peer had no receive.
pub(super) const RNR_RETRY_COUNT: u8 = 6;
/// The reason of a rejection: no node listens.
const REJECTED_NO_LISTENER: i32 = 8;
/// The reason of a rejection: the peer chose it, or has exited.
const REJECTED_BY_PEER: i32 = 28;
const NS_PER_MS: u64 = 1_000_000;

/// The destination of a dial.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    /// The address as requested.
    pub(super) address: Address,
    /// The resolved address: names are resolved once.
    pub(super) target: SocketAddr,
}

impl Destination {
    /// Resolves an address.
    pub(super) fn resolve(address: &Address) -> Result<Self, FabricError> {
        Ok(Self { address: address.clone(), target: resolve(address)? })
    }
}

/// One end of a connection made by the connection manager.
#[derive(Debug)]
pub(super) struct ManagedLink {
    id: CmId,
    channel: Arc<EventChannel>,
    phase: CmPhase,
    /// The destination, at the dialling end.
    dialled: Option<Destination>,
    greeting: Greeting,
    /// What the dialling end shows.
    showing: Option<Showing>,
    /// The deadline of the establishment.
    deadline_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CmPhase {
    /// Resolving the address to a device.
    Resolving,
    /// Resolving the route.
    Routing,
    /// Waiting for the peer to accept.
    Connecting,
    /// Waiting for the peer's confirmation.
    Accepting,
    /// Established.
    Standing,
    /// Shutdown was sent to the peer.
    Leaving,
    /// Closed.
    Over,
}

impl ManagedLink {
    /// Starts connecting to a node.
    pub(super) fn dial(
        dialled: &Destination,
        writes: bool,
        devices: &Devices,
        now_ns: u64,
    ) -> Result<Self, FabricError> {
        Context::note_removals();
        let source = devices.source(&dialled.target)?;
        let channel = EventChannel::create().map_err(super::device::explain)?;
        let id = CmId::create(&channel, PortSpace::Connections)?;
        let greeting = Greeting::new(writes)?;
        let timeout_ms = i32::try_from(limits::verbs::CONNECT_DEADLINE_NS / NS_PER_MS).unwrap_or(i32::MAX);
        let begun =
            id.resolve_address(source.as_ref(), &dialled.target, timeout_ms).map_err(VerbsError::from);
        begun.map_err(|error| not_reached(dialled, error))?;
        let deadline_ns = now_ns.saturating_add(limits::verbs::CONNECT_DEADLINE_NS);
        let dialled = Some(dialled.clone());
        let phase = CmPhase::Resolving;
        Ok(Self { id, channel, phase, dialled, greeting, showing: None, deadline_ns })
    }

    /// Shows this with the request.
    pub(super) fn showing(self, showing: Showing) -> Self {
        Self { showing: Some(showing), ..self }
    }

    /// Accepts a peer's connection request. `None` if it was rejected, because the peer is not a node, or if the peer has given it up:
    /// one that has no answer soon makes another.
    pub(super) fn accept(
        request: CmEvent,
        devices: &Devices,
        now_ns: u64,
    ) -> Result<Option<(Self, Arc<Endpoint>)>, FabricError> {
        let Some(id) = request.new_id else { return Ok(None) };
        let greeting = match Greeting::parse(&request.private_data) {
            Ok(greeting) => greeting,
            Err(rejection) => {
                tracing::debug!(target: "fabricast", ?rejection, peer = ?id.peer_address(), "a connection was rejected");
                // It fails if the peer is gone already.
                let _ = id.reject(&rejection.emit());
                return Ok(None);
            }
        };
        let (reads_served, reads) = (request.responder_resources, request.initiator_depth);
        let accepted = Self::accept_with(&id, devices, greeting, (reads_served, reads));
        let (channel, endpoint) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // A request that was given up accepts nothing, not even that it is rejected.
                let is_gone = id.reject(&Rejection::NoRoom.emit()).is_err() && is_invalid(&error);
                return if is_gone { Ok(None) } else { Err(error) };
            }
        };
        let deadline_ns = now_ns.saturating_add(limits::verbs::CONNECT_DEADLINE_NS);
        let (phase, dialled, showing) = (CmPhase::Accepting, None, None);
        Ok(Some((Self { id, channel, phase, dialled, greeting, showing, deadline_ns }, endpoint)))
    }

    fn accept_with(
        id: &CmId,
        devices: &Devices,
        greeting: Greeting,
        (reads_served, reads): (u8, u8),
    ) -> Result<(Arc<EventChannel>, Arc<Endpoint>), FabricError> {
        let channel = EventChannel::create()?;
        id.migrate(&channel)?;
        let device = device_of(id, devices)?;
        device.prepare(id)?;
        let domain = device.domain_for(greeting.writes)?;
        let make = |plan: &QueuePairPlan<'_>| id.create_queue_pair(&domain, plan);
        let endpoint = Endpoint::create(&device, &domain, QueuePairKind::Rc, make)?;
        endpoint.begin_to_receive()?;
        id.accept(&ConnectParameters {
            private_data: &greeting.emit(),
            responder_resources: reads_served.min(device.reads_served_max),
            initiator_depth: reads.min(device.reads_max),
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY_COUNT,
        })?;
        endpoint.open()?;
        Ok((channel, endpoint))
    }

    fn take_events(&mut self, devices: &Devices, now_ns: u64) -> Result<Option<LinkEvent>, FabricError> {
        while let Some(event) = self.channel.next()? {
            if let Some(change) = self.take(&event, devices)? {
                return Ok(Some(change));
            }
        }
        match (self.deadline_ns(), &self.dialled) {
            (Some(deadline_ns), _) if now_ns < deadline_ns => Ok(None),
            (Some(_), Some(dialled)) => Err(FabricError::NoAnswer { address: dialled.address.clone() }),
            (Some(_), None) => Ok(Some(self.end())),
            (None, _) => Ok(None),
        }
    }

    fn take(&mut self, event: &CmEvent, devices: &Devices) -> Result<Option<LinkEvent>, FabricError> {
        match (event.kind, self.phase) {
            (CmEventKind::AddressResolved, CmPhase::Resolving) => self.on_address(devices).map(Some),
            (CmEventKind::RouteResolved, CmPhase::Routing) => self.on_route(devices).map(|()| None),
            (CmEventKind::Established, CmPhase::Connecting) => {
                if Greeting::parse(&event.private_data) != Ok(self.greeting) {
                    return Err(VerbsError::NotANode.into());
                }
                self.phase = CmPhase::Standing;
                Ok(Some(LinkEvent::Established))
            }
            (CmEventKind::Established, CmPhase::Accepting) => {
                self.phase = CmPhase::Standing;
                Ok(Some(LinkEvent::Established))
            }
            (CmEventKind::Rejected, CmPhase::Connecting) => self.on_rejection(event).map(Some),
            (CmEventKind::Disconnected | CmEventKind::Rejected, _) => Ok(Some(self.end())),
            (CmEventKind::DeviceRemoval, _) => {
                self.id.lose_device();
                Err(VerbsError::DeviceGone.into())
            }
            (
                CmEventKind::AddressError
                | CmEventKind::RouteError
                | CmEventKind::ConnectError
                | CmEventKind::Unreachable,
                _,
            ) => match &self.dialled {
                Some(dialled) => {
                    let event_name = format!("{:?}", event.kind);
                    let error = VerbsError::NotConnected { event: event_name, status: event.status };
                    Err(not_reached(dialled, error))
                }
                None => Ok(Some(self.end())),
            },
            _ => Ok(None),
        }
    }

    /// Handles the resolved address: the device is known, so the endpoint can be made.
    fn on_address(&mut self, devices: &Devices) -> Result<LinkEvent, FabricError> {
        let device = device_of(&self.id, devices)?;
        let domain = device.domain_for(true)?;
        let make = |plan: &QueuePairPlan<'_>| self.id.create_queue_pair(&domain, plan);
        let endpoint = Endpoint::create(&device, &domain, QueuePairKind::Rc, make)?;
        endpoint.begin_to_receive()?;
        device.prepare(&self.id)?;
        let timeout_ms = i32::try_from(limits::verbs::CONNECT_DEADLINE_NS / NS_PER_MS).unwrap_or(i32::MAX);
        self.id.resolve_route(timeout_ms)?;
        self.phase = CmPhase::Routing;
        Ok(LinkEvent::Endpoint(endpoint))
    }

    fn on_route(&mut self, devices: &Devices) -> Result<(), FabricError> {
        let device = device_of(&self.id, devices)?;
        self.id.connect(&ConnectParameters {
            private_data: &self.greeting.emit_request(&self.shown()),
            responder_resources: device.reads_served_max,
            initiator_depth: device.reads_max,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY_COUNT,
        })?;
        self.phase = CmPhase::Connecting;
        Ok(())
    }

    /// What is shown with the request. Nothing, if the identifier has no addresses.
    fn shown(&self) -> Vec<u8> {
        let addresses = self.id.local_address().zip(self.id.peer_address());
        let shown =
            self.showing.as_ref().zip(addresses).map(|(showing, addresses)| {
                showing.of(self.greeting.intent(), &self.greeting.emit(), addresses)
            });
        shown.unwrap_or_default()
    }

    fn on_rejection(&mut self, event: &CmEvent) -> Result<LinkEvent, FabricError> {
        match (event.status, Rejection::parse(&event.private_data), &self.dialled) {
            (REJECTED_NO_LISTENER, _, Some(dialled)) => {
                Err(FabricError::NoSuchNode { address: dialled.address.clone() })
            }
            (REJECTED_BY_PEER, Some(why), _) => Err(why.into()),
            // A node that ends says nothing.
            (REJECTED_BY_PEER, None, _) if event.private_data.iter().any(|byte| *byte != 0) => {
                Err(VerbsError::NotANode.into())
            }
            (REJECTED_BY_PEER, None, _) => Ok(self.end()),
            (status, ..) => {
                let event = format!("{:?}", event.kind);
                Err(VerbsError::NotConnected { event, status }.into())
            }
        }
    }

    fn end(&mut self) -> LinkEvent {
        self.phase = CmPhase::Over;
        LinkEvent::Over
    }
}

/// Whether an argument of a call was out of range, as an object is that is in no state for the call.
fn is_invalid(error: &FabricError) -> bool {
    let FabricError::Verbs(VerbsError::Call { source, .. }) = error else { return false };
    source.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

impl QpLink for ManagedLink {
    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn deadline_ns(&self) -> Option<u64> {
        let begins = matches!(
            self.phase,
            CmPhase::Resolving | CmPhase::Routing | CmPhase::Connecting | CmPhase::Accepting
        );
        begins.then_some(self.deadline_ns)
    }

    fn next(&mut self, devices: &Devices, now_ns: u64) -> Result<Option<LinkEvent>, FabricError> {
        if self.phase == CmPhase::Over {
            return Ok(None);
        }
        let change = self.take_events(devices, now_ns);
        if change.is_err() {
            self.phase = CmPhase::Over;
        }
        change
    }

    fn confirm(&mut self) {
        if self.phase != CmPhase::Accepting {
            return;
        }
        self.phase = CmPhase::Standing;
        if let Err(error) = self.id.establish() {
            // The event has confirmed it already.
            tracing::trace!(target: "fabricast", %error, "nothing to be established");
        }
    }

    fn leave(&mut self) {
        let stands = matches!(self.phase, CmPhase::Standing | CmPhase::Accepting);
        self.disconnect();
        self.phase = if stands { CmPhase::Leaving } else { CmPhase::Over };
    }

    fn is_leaving(&self) -> bool {
        self.phase == CmPhase::Leaving
    }

    fn disconnect(&self) {
        if let Err(error) = self.id.disconnect() {
            // Not connected yet, or the peer disconnected first.
            tracing::trace!(target: "fabricast", %error, "nothing to disconnect");
        }
    }

    fn is_dialled_to_write(&self) -> bool {
        self.dialled.is_none() && self.greeting.writes
    }

    fn ends(&self, queue_pair: u32) -> Result<QpEnds, FabricError> {
        let route = self.id.route()?;
        let gid = match route.gid_index {
            Some(index) => {
                let context = self.id.context()?.ok_or(VerbsError::DeviceGone)?;
                let gids = context.gids(route.port)?;
                gids.iter().find(|gid| gid.index == u32::from(index)).ok_or(VerbsError::DeviceGone)?.bytes
            }
            None => [0; 16],
        };
        let near = QpEnd { gid, queue_pair, packet_sequence: route.first_sent };
        let far = QpEnd {
            gid: route.peer_gid,
            queue_pair: route.peer_queue_pair,
            packet_sequence: route.first_received,
        };
        Ok(QpEnds::new(near, far, self.dialled.is_some()))
    }

    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        Some((self.id.local_address()?.ip(), self.id.peer_address()?.ip()))
    }
}

/// The listener for peers that connect by the connection manager.
#[derive(Debug)]
pub(super) struct CmListener {
    id: CmId,
    /// Its events.
    pub(super) channel: Arc<EventChannel>,
}

impl CmListener {
    /// Listens at a local address.
    pub(super) fn open(at: &SocketAddr, devices: &Devices) -> Result<Self, FabricError> {
        let in_use = |error: SysError| {
            if error.is_address_in_use() {
                return FabricError::AddressInUse { address: Address::rdma(*at) };
            }
            let explained = if error.is_no_address() { super::device::no_device_at(at.ip()) } else { None };
            explained.map_or_else(|| error.into(), FabricError::from)
        };
        let channel = EventChannel::create().map_err(super::device::explain)?;
        let id = CmId::create(&channel, PortSpace::Connections)?;
        id.bind(at).map_err(in_use)?;
        id.listen(limits::verbs::BACKLOG).map_err(in_use)?;
        match id.context()? {
            Some(context) => drop(devices.open(&context)?),
            // The wildcard address has no device until a connection request arrives.
            None => devices.open_all()?,
        }
        Ok(Self { id, channel })
    }

    /// Returns the next connection request. An error once the device of its address was removed; then there are no more.
    pub(super) fn next(&self) -> Result<Option<CmEvent>, FabricError> {
        while let Some(event) = self.channel.next()? {
            match event.kind {
                CmEventKind::ConnectRequest => return Ok(Some(event)),
                CmEventKind::DeviceRemoval => {
                    self.id.lose_device();
                    let address = self.address().map_or_else(String::new, |at| Address::rdma(at).to_string());
                    return Err(VerbsError::NotListening { address }.into());
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Returns the listening address.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// Returns the addresses at which peers reach it.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let Some(at) = self.address() else { return Vec::new() };
        let rdma = |ip| Address::rdma(SocketAddr::new(ip, at.port()));
        if at.ip().is_unspecified() {
            return ip_addresses().into_iter().map(rdma).collect();
        }
        vec![rdma(at.ip())]
    }
}

/// Resolves a host, preferring IPv4, which every RDMA interface has.
pub(super) fn resolve(address: &Address) -> Result<SocketAddr, FabricError> {
    let Some(host) = address.host().filter(|_| address.part(&SCHEME).is_some()) else {
        return Err(FabricError::Unreachable { address: address.clone(), fabric: NAME });
    };
    let unknown = |source| VerbsError::UnknownHost { host: host.to_owned(), source };
    let place = (host, address.port().unwrap_or_default());
    let found: Vec<SocketAddr> = place.to_socket_addrs().map_err(unknown)?.collect();
    let chosen = found.iter().find(|address| address.is_ipv4()).or_else(|| found.first());
    chosen.copied().ok_or_else(|| unknown(std::io::ErrorKind::NotFound.into()).into())
}

fn device_of(id: &CmId, devices: &Devices) -> Result<Arc<OpenDevice>, FabricError> {
    let context = id.context()?.ok_or(VerbsError::DeviceGone)?;
    devices.open(&context)
}

/// Why an address cannot be reached, as the fabric's error where there is one.
pub(super) fn not_reached(dialled: &Destination, error: VerbsError) -> FabricError {
    use rustix::io::Errno;
    let address = &dialled.address;
    let number = match &error {
        VerbsError::NotConnected { status, .. } => status.saturating_neg(),
        VerbsError::Call { source, .. } => source.raw_os_error().unwrap_or(0),
        _ => 0,
    };
    let is = |errno: Errno| errno.raw_os_error() == number;
    if is(Errno::NODEV) || is(Errno::ADDRNOTAVAIL) {
        super::device::no_way(address, &dialled.target).map_or_else(
            || FabricError::Unreachable { address: address.clone(), fabric: NAME },
            FabricError::from,
        )
    } else if is(Errno::HOSTUNREACH) || is(Errno::NETUNREACH) || is(Errno::TIMEDOUT) {
        FabricError::NoAnswer { address: address.clone() }
    } else {
        error.into()
    }
}
