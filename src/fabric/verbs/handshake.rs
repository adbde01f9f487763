//! Establishment and shutdown of a connection by an exchange over TCP.
//!
//! The TCP connection stays open as long as the session: when a process closes it or dies, the session ends. Control
//! messages of reliable connections travel over the queue pair as always; those of unreliable ones over TCP.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::device::{Device, Wish, ip_of};
use super::endpoint::{Endpoint, MIN_RNR_TIMER};
use super::error::VerbsError;
use super::exchange::{EXCHANGE_LEN, QpInfo, READY, packet_sequence};
use super::greeting::{self, Rejection, Showing};
use super::link::{LinkEvent, QpEnds, QpLink};
use super::manager::{Destination, RETRY_COUNT, RNR_RETRY_COUNT, not_reached};
use super::opened::Devices;
use super::stream::{FrameStream, StreamEvent};
use super::sys::{LinkLayer, QueuePair, QueuePairKind, RemoteFlags, RtrPlan, RtsPlan, SysError};
use crate::fabric::{ConnectPolicy, FabricError, SHOWN_LEN_MAX};
use crate::limits;

/// One end of a connection made by an exchange.
#[derive(Debug)]
pub(super) struct ExchangedLink {
    stream: FrameStream,
    /// Readable when data has arrived, or the stream is connected.
    events: OwnedFd,
    phase: TcpPhase,
    kind: QueuePairKind,
    /// The dialling end is to write regions that the other one exposes.
    writes: bool,
    /// The unconnected endpoint, at the dialling end.
    near: Option<LocalEnd>,
    /// What identifies both ends, once they are connected.
    ends: Option<QpEnds>,
    /// The dialled address, at the dialling end.
    dialled: Option<Destination>,
    /// What the dialling end shows.
    showing: Option<Showing>,
    /// What the dialled end demands.
    policy: Option<Arc<dyn ConnectPolicy>>,
    /// The deadline of the establishment.
    deadline_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcpPhase {
    /// Waiting for the TCP connection.
    Connecting,
    /// Waiting for the answer of the dialled peer.
    Asking,
    /// Waiting for the request of a peer that dialled.
    Asked,
    /// Waiting for the peer to be ready.
    Accepting,
    /// Established, but the peer has not confirmed it yet.
    Heard,
    /// Established.
    Standing,
    /// Shutdown was sent to the peer.
    Leaving,
    /// Closed.
    Over,
}

/// The local end of a connection, and what it sends the peer.
#[derive(Debug)]
pub(super) struct LocalEnd {
    /// The queue pair and everything that belongs to it.
    pub(super) endpoint: Arc<Endpoint>,
    /// What the peer receives.
    pub(super) end: QpInfo,
    port: u8,
    /// The index of its address in the port's table, if packets carry addresses.
    gid_index: Option<u8>,
    /// Reads in flight at a time.
    reads_max: u8,
    /// See [`OpenDevice::ack_timeout`](super::opened::OpenDevice::ack_timeout).
    ack_timeout: u8,
    traffic_class: u8,
}

impl ExchangedLink {
    /// Starts connecting to a node.
    pub(super) fn dial(
        dialled: &Destination,
        (kind, writes): (QueuePairKind, bool),
        devices: &Devices,
        now_ns: u64,
    ) -> Result<Self, FabricError> {
        let source = devices.source(&dialled.target)?;
        let socket =
            connect(source.as_ref(), &dialled.target).map_err(|error| not_connected(dialled, error))?;
        let link = Self::new(socket, TcpPhase::Connecting, kind, Some(dialled.clone()), now_ns)?;
        Ok(Self { writes, ..link })
    }

    /// Takes a connection that a peer dialled.
    pub(super) fn accept(socket: TcpStream, now_ns: u64) -> Result<Self, FabricError> {
        Self::new(socket, TcpPhase::Asked, QueuePairKind::Rc, None, now_ns)
    }

    fn new(
        socket: TcpStream,
        phase: TcpPhase,
        kind: QueuePairKind,
        dialled: Option<Destination>,
        now_ns: u64,
    ) -> Result<Self, FabricError> {
        let stream = FrameStream::new(socket).map_err(system)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let wanted = match phase {
            TcpPhase::Connecting => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            _ => epoll::EventFlags::IN,
        };
        let added = epoll::add(&events, &stream.socket, epoll::EventData::new_u64(0), wanted);
        added.map_err(system)?;
        let deadline_ns = now_ns.saturating_add(limits::verbs::CONNECT_DEADLINE_NS);
        Ok(Self {
            stream,
            events,
            phase,
            kind,
            writes: false,
            near: None,
            ends: None,
            dialled,
            showing: None,
            policy: None,
            deadline_ns,
        })
    }

    /// Shows this with the request.
    pub(super) fn showing(self, showing: Showing) -> Self {
        Self { showing: Some(showing), ..self }
    }

    /// Demands this of the peer that dialled.
    pub(super) fn demanding(self, policy: &Arc<dyn ConnectPolicy>) -> Self {
        Self { policy: Some(Arc::clone(policy)), ..self }
    }

    fn advance(&mut self, devices: &Devices) -> Result<Option<LinkEvent>, FabricError> {
        if self.phase == TcpPhase::Connecting {
            return self.on_socket(devices);
        }
        match self.stream.receive() {
            StreamEvent::Nothing => Ok(None),
            StreamEvent::Closed => Ok(Some(self.end())),
            StreamEvent::Lost => Err(VerbsError::NoAnswer.into()),
            StreamEvent::Malformed => self.refuse(Rejection::NotANode).map(Some),
            StreamEvent::Frame(frame) => self.take(frame, devices),
        }
    }

    fn take(&mut self, frame: Vec<u8>, devices: &Devices) -> Result<Option<LinkEvent>, FabricError> {
        match (self.phase, self.kind) {
            (TcpPhase::Asking, _) => self.on_answer(&frame).map(Some),
            (TcpPhase::Asked, _) => self.on_question(&frame, devices).map(Some),
            (TcpPhase::Accepting, _) if frame == READY => {
                self.phase = TcpPhase::Standing;
                Ok(Some(LinkEvent::Established))
            }
            (TcpPhase::Heard, _) if frame == READY => {
                self.phase = TcpPhase::Standing;
                Ok(None)
            }
            (TcpPhase::Standing | TcpPhase::Leaving, QueuePairKind::Uc) => Ok(Some(LinkEvent::Frame(frame))),
            (TcpPhase::Leaving, QueuePairKind::Rc) => Ok(None),
            _ => self.refuse(Rejection::NotANode).map(Some),
        }
    }

    /// Checks whether the TCP connection is established: then the local device is known, and the endpoint can be made.
    fn on_socket(&mut self, devices: &Devices) -> Result<Option<LinkEvent>, FabricError> {
        let socket = &self.stream.socket;
        match (socket.take_error().unwrap_or_else(Some), &self.dialled) {
            // It was established, and its listener has closed it.
            (Some(error), _) if error.kind() == ErrorKind::ConnectionReset => return Ok(Some(self.end())),
            (Some(error), Some(dialled)) => return Err(not_connected(dialled, error)),
            _ => {}
        }
        if socket.peer_addr().is_err() {
            return Ok(None);
        }
        let (local, peer) = (socket.local_addr().map_err(system)?, socket.peer_addr().map_err(system)?);
        let (data, wanted) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::modify(&self.events, socket, data, wanted).map_err(system)?;
        let mut near = LocalEnd::create(local.ip(), self.kind, true, devices)?;
        near.end.writes = self.writes;
        let (end, intent) = (near.end.emit(), greeting::intent(self.writes));
        let shown = self.showing.as_ref().map(|showing| showing.of(intent, &end, (local, peer)));
        self.say(&[&end[..], &shown.unwrap_or_default()].concat());
        self.phase = TcpPhase::Asking;
        let endpoint = Arc::clone(&near.endpoint);
        self.near = Some(near);
        Ok(Some(LinkEvent::Endpoint(endpoint)))
    }

    /// Handles the answer of a dialled peer.
    fn on_answer(&mut self, frame: &[u8]) -> Result<LinkEvent, FabricError> {
        if let Some(why) = Rejection::parse(frame) {
            return Err(why.into());
        }
        let far =
            QpInfo::parse(frame).ok().filter(|far| far.kind == self.kind).ok_or(VerbsError::NotANode)?;
        let peer = self.stream.socket.peer_addr().map_err(system)?.ip();
        if let Some(near) = self.near.take() {
            near.connect(&far, peer)?;
            self.ends = Some(QpEnds::new(near.end.identity(), far.identity(), true));
        }
        self.begin_to_beat()?;
        self.say(READY);
        self.phase = TcpPhase::Standing;
        Ok(LinkEvent::Established)
    }

    /// Handles the request of a peer that dialled.
    fn on_question(&mut self, frame: &[u8], devices: &Devices) -> Result<LinkEvent, FabricError> {
        let (sent, shown) = frame.split_at(frame.len().min(EXCHANGE_LEN));
        let far = match QpInfo::parse(sent) {
            Ok(far) if shown.len() <= SHOWN_LEN_MAX => far,
            Ok(_) => return self.refuse(Rejection::NotANode),
            Err(rejection) => return self.refuse(rejection),
        };
        let addresses = self.addresses_of_sockets()?;
        let request = (greeting::intent(far.writes), sent, shown);
        if let Some(Err(why)) =
            self.policy.as_ref().map(|policy| greeting::check(&**policy, request, addresses))
        {
            self.say(&Rejection::NotAdmitted(why).emit());
            return Err(why.into());
        }
        let (peer, local) = (addresses.0.ip(), addresses.1.ip());
        let near = LocalEnd::create(local, far.kind, far.writes, devices);
        let connected = near.and_then(|near| near.connect(&far, peer).map(|()| near));
        let near = connected.inspect_err(|error| {
            let is_other = matches!(error, FabricError::Verbs(VerbsError::OtherAddress { .. }));
            let rejection = if is_other { Rejection::OtherAddress } else { Rejection::NoRoom };
            self.say(&rejection.emit());
        })?;
        self.say(&near.end.emit());
        (self.kind, self.phase, self.writes) = (far.kind, TcpPhase::Accepting, far.writes);
        self.ends = Some(QpEnds::new(near.end.identity(), far.identity(), false));
        self.begin_to_beat()?;
        Ok(LinkEvent::Endpoint(near.endpoint))
    }

    /// The addresses of the end that dialled and of this one.
    fn addresses_of_sockets(&self) -> Result<(SocketAddr, SocketAddr), FabricError> {
        let socket = &self.stream.socket;
        Ok((socket.peer_addr().map_err(system)?, socket.local_addr().map_err(system)?))
    }

    /// A reliable queue pair notices a lost host itself.
    fn begin_to_beat(&mut self) -> Result<(), FabricError> {
        if self.kind == QueuePairKind::Rc { Ok(()) } else { self.stream.begin_to_beat().map_err(system) }
    }

    /// Ends a connection with a peer that is not a node.
    fn refuse(&mut self, rejection: Rejection) -> Result<LinkEvent, FabricError> {
        if self.dialled.is_some() {
            return Err(VerbsError::NotANode.into());
        }
        let peer = self.stream.socket.peer_addr().ok();
        tracing::debug!(target: "fabricast", ?rejection, ?peer, "a connection over TCP was rejected");
        if self.phase == TcpPhase::Asked {
            self.say(&rejection.emit());
        }
        Ok(self.end())
    }

    /// Sends a frame short enough for a new connection's buffer. A broken stream is reported by reading from it.
    fn say(&mut self, frame: &[u8]) {
        if let Err(error) = self.stream.send(frame) {
            tracing::trace!(target: "fabricast", %error, "the peer cannot be notified");
        }
    }

    fn end(&mut self) -> LinkEvent {
        self.phase = TcpPhase::Over;
        LinkEvent::Over
    }

    fn shut(&self, how: Shutdown) {
        if let Err(error) = self.stream.socket.shutdown(how) {
            // Not connected yet, or the peer disconnected first.
            tracing::trace!(target: "fabricast", %error, "nothing to disconnect");
        }
    }
}

impl QpLink for ExchangedLink {
    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn deadline_ns(&self) -> Option<u64> {
        let begins = matches!(
            self.phase,
            TcpPhase::Connecting | TcpPhase::Asking | TcpPhase::Asked | TcpPhase::Accepting
        );
        begins.then_some(self.deadline_ns)
    }

    fn next(&mut self, devices: &Devices, now_ns: u64) -> Result<Option<LinkEvent>, FabricError> {
        if self.phase == TcpPhase::Over {
            return Ok(None);
        }
        let change = match (self.advance(devices), self.deadline_ns(), &self.dialled) {
            (Ok(None), Some(deadline_ns), Some(dialled)) if now_ns >= deadline_ns => {
                Err(FabricError::NoAnswer { address: dialled.address.clone() })
            }
            (Ok(None), Some(deadline_ns), None) if now_ns >= deadline_ns => Ok(Some(self.end())),
            (change, ..) => change,
        };
        if change.is_err() {
            self.phase = TcpPhase::Over;
        }
        change
    }

    fn confirm(&mut self) {
        if self.phase == TcpPhase::Accepting {
            self.phase = TcpPhase::Heard;
        }
    }

    fn leave(&mut self) {
        let stands = matches!(self.phase, TcpPhase::Standing | TcpPhase::Heard | TcpPhase::Accepting);
        self.shut(if stands { Shutdown::Write } else { Shutdown::Both });
        self.phase = if stands { TcpPhase::Leaving } else { TcpPhase::Over };
    }

    fn is_leaving(&self) -> bool {
        self.phase == TcpPhase::Leaving
    }

    fn disconnect(&self) {
        self.shut(Shutdown::Both);
    }

    fn is_dialled_to_write(&self) -> bool {
        self.dialled.is_none() && self.writes
    }

    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let socket = &self.stream.socket;
        Some((socket.local_addr().ok()?.ip(), socket.peer_addr().ok()?.ip()))
    }

    fn ends(&self, _: u32) -> Result<QpEnds, FabricError> {
        self.ends.ok_or(FabricError::Closed)
    }

    fn frames(&mut self) -> Option<&mut FrameStream> {
        (self.kind == QueuePairKind::Uc).then_some(&mut self.stream)
    }
}

impl LocalEnd {
    /// Creates an end on the device with this address. `grants_write` if the peer may be granted write access.
    pub(super) fn create(
        local: IpAddr,
        kind: QueuePairKind,
        grants_write: bool,
        devices: &Devices,
    ) -> Result<Self, FabricError> {
        let device = Device::choose(&Wish::from_environment(Some(local))?)?;
        let opened = devices.open(&device.context)?;
        let domain = opened.domain_for(grants_write)?;
        let endpoint = Endpoint::create(&opened, &domain, kind, |plan| QueuePair::create(&domain, plan))?;
        // The peer may probe this end as soon as its own is established.
        let allowed = RemoteFlags { read: false, write: endpoint.is_reliable() };
        endpoint.queue_pair.to_init(device.port, allowed)?;
        if endpoint.is_reliable() {
            endpoint.begin_to_receive()?;
        }
        let random = crate::random::number().map_err(FabricError::no_random)?;
        let end = QpInfo {
            kind,
            lid: device.port_attributes.lid,
            queue_pair: endpoint.queue_pair.number(),
            packet_sequence: packet_sequence(random),
            gid: device.gid.bytes,
            mtu: device.port_attributes.active_mtu,
            reads_max: opened.reads_served_max,
            writes: false,
        };
        let is_global = device.port_attributes.link_layer == LinkLayer::Ethernet;
        let gid_index =
            u8::try_from(device.gid.index).map_err(|_| SysError::new("ibv_modify_qp", Errno::RANGE))?;
        let gid_index = is_global.then_some(gid_index);
        let (reads_max, ack_timeout) = (opened.reads_max, opened.ack_timeout);
        let traffic_class = opened.traffic_class.unwrap_or(0);
        Ok(Self { endpoint, end, port: device.port, gid_index, reads_max, ack_timeout, traffic_class })
    }

    /// Connects the queue pair to the peer's, which is reached over TCP by this address. Where addresses are IP
    /// addresses, its device must have the same one, so that a peer cannot direct this device or the kernel at a third host.
    pub(super) fn connect(&self, far: &QpInfo, peer: IpAddr) -> Result<(), FabricError> {
        let (claimed, address) = (ip_of(far.gid), peer.to_canonical());
        if self.gid_index.is_some() && claimed != address {
            return Err(VerbsError::OtherAddress { claimed, address }.into());
        }
        let (queue_pair, mtu) = (&self.endpoint.queue_pair, self.end.mtu.min(far.mtu));
        self.endpoint.set_packet_len(mtu);
        queue_pair.to_rtr(&RtrPlan {
            mtu,
            dest_qp_num: far.queue_pair,
            rq_psn: far.packet_sequence,
            max_dest_rd_atomic: self.end.reads_max,
            min_rnr_timer: MIN_RNR_TIMER,
            port: self.port,
            dlid: far.lid,
            global: self.gid_index.map(|index| (far.gid, index)),
            traffic_class: self.traffic_class,
        })?;
        queue_pair.to_rts(&RtsPlan {
            sq_psn: self.end.packet_sequence,
            timeout: self.ack_timeout,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY_COUNT,
            max_rd_atomic: self.reads_max.min(far.reads_max),
        })?;
        Ok(())
    }
}

/// The listener for peers that connect by an exchange.
#[derive(Debug)]
pub(super) struct TcpAcceptor {
    listener: TcpListener,
}

impl TcpAcceptor {
    /// Listens at a local address. `None` if the port is in use.
    pub(super) fn open(at: &SocketAddr) -> Result<Option<Self>, FabricError> {
        let listener = match TcpListener::bind(at) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            bound => bound.map_err(system)?,
        };
        listener.set_nonblocking(true).map_err(system)?;
        Ok(Some(Self { listener }))
    }

    /// Accepts the next connection.
    pub(super) fn next(&self) -> Result<Option<TcpStream>, FabricError> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => return Ok(Some(socket)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                // The peer has already left.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(source) => return Err(FabricError::System { what: "accept a peer", source }),
            }
        }
    }

    /// Readable when a connection is waiting.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Refuses a connection: sends the reason, if that does not block, and closes it.
pub(super) fn turn_away(socket: TcpStream, why: Rejection) {
    let told = FrameStream::new(socket).and_then(|mut stream| {
        stream.send(&why.emit())?;
        // What is left unread would have the kernel reset the connection.
        let _ = stream.receive();
        stream.socket.shutdown(Shutdown::Write)
    });
    if let Err(error) = told {
        tracing::trace!(target: "fabricast", %error, "the peer cannot be notified");
    }
}

/// Starts connecting a socket, from this local address if it is of the same family.
pub(super) fn connect(source: Option<&SocketAddr>, target: &SocketAddr) -> io::Result<TcpStream> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(source) = source.filter(|source| source.is_ipv4() == target.is_ipv4()) {
        rustix::net::bind(&socket, source)?;
    }
    match rustix::net::connect(&socket, target) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Why a node was not reached, as the fabric's error where there is one.
pub(super) fn not_connected(dialled: &Destination, source: io::Error) -> FabricError {
    if source.kind() == ErrorKind::ConnectionRefused {
        return FabricError::NoSuchNode { address: dialled.address.clone() };
    }
    not_reached(dialled, VerbsError::Call { call: "connect", source })
}

/// A refusal of the operating system.
fn system(refusal: impl Into<io::Error>) -> FabricError {
    FabricError::System { what: "use a TCP connection", source: refusal.into() }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::fabric::Address;

    /// The result of a link.
    fn outcome(link: &mut ExchangedLink, now_ns: u64) -> Result<LinkEvent, FabricError> {
        let (devices, began_ns) = (Devices::new(Wish::default()), SystemClock.monotonic_ns());
        loop {
            if let Some(change) = link.next(&devices, now_ns).transpose() {
                return change;
            }
            assert!(SystemClock.monotonic_ns() - began_ns < 10_000_000_000);
        }
    }

    fn accepted() -> (TcpStream, ExchangedLink) {
        let counter = TcpAcceptor::open(&"127.0.0.1:0".parse().unwrap()).unwrap().unwrap();
        let far = TcpStream::connect(counter.listener.local_addr().unwrap()).unwrap();
        crate::fabric::wait(&[counter.wait_handle()], &[], std::time::Duration::from_secs(10)).unwrap();
        let socket = counter.next().unwrap().unwrap();
        assert!(counter.next().unwrap().is_none());
        (far, ExchangedLink::accept(socket, 0).unwrap())
    }

    #[test]
    fn peer_of_another_protocol_is_refused_and_dropped() {
        let requests: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", b"\0\x04FBCR", b"\0\0", b"\xff\xff"];
        for request in requests {
            let (mut far, mut link) = accepted();
            far.write_all(request).unwrap();
            assert!(matches!(outcome(&mut link, 0), Ok(LinkEvent::Over)));
            assert_eq!(link.next(&Devices::new(Wish::default()), u64::MAX).unwrap().map(|_| ()), None);
            let mut answer = [0; 8];
            far.read_exact(&mut answer).unwrap();
            assert_eq!(answer, *b"\0\x06FBC1\x01\x01");
        }
    }

    #[test]
    fn silent_or_leaving_peer_is_dropped() {
        let (far, mut link) = accepted();
        assert!(
            link.next(&Devices::new(Wish::default()), limits::verbs::CONNECT_DEADLINE_NS - 1)
                .unwrap()
                .is_none()
        );
        assert_eq!(link.deadline_ns(), Some(limits::verbs::CONNECT_DEADLINE_NS));
        assert!(matches!(outcome(&mut link, limits::verbs::CONNECT_DEADLINE_NS), Ok(LinkEvent::Over)));
        assert_eq!(link.deadline_ns(), None);
        drop(far);
        let (far, mut link) = accepted();
        drop(far);
        assert!(matches!(outcome(&mut link, 0), Ok(LinkEvent::Over)));
    }

    #[test]
    fn port_is_listened_at_once() {
        let counter = TcpAcceptor::open(&"127.0.0.1:0".parse().unwrap()).unwrap().unwrap();
        let at = counter.listener.local_addr().unwrap();
        assert!(TcpAcceptor::open(&at).unwrap().is_none());
        drop(counter);
        assert!(TcpAcceptor::open(&at).unwrap().is_some());
    }

    #[test]
    fn address_without_a_listener_is_reported() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = Address::rdma(free);
        let destination = Destination::resolve(&address).unwrap();
        let dialled =
            ExchangedLink::dial(&destination, (QueuePairKind::Rc, false), &Devices::new(Wish::default()), 0);
        let error = dialled.and_then(|mut link| outcome(&mut link, 0)).unwrap_err();
        assert!(matches!(&error, FabricError::NoSuchNode { address: found } if *found == address), "{error}");
    }
}
