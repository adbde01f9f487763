use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::UCred;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::background::{Background, Closing, Deferred, FILES_ROOM, files};
use super::directory::Claim;
use super::one_sided::{ShmOffer, ShmRegistered};
use crate::clock::{Clock, SystemClock, saturate};
use crate::fabric::{
    Acceptor, Address, Capabilities, Connection, Datagrams, FabricError, NoPlace, Offer, PeerAddress, PeerId,
    Place, Placement, Places, Prepared, Received, Registration, RemoteKey, Sent, TurnedAway,
};
use crate::id::NodeName;
use crate::limits;

/// The backlog: one connection for each session, unless the node has more than by default, if net.core.somaxconn allows it.
const BACKLOG: i32 = 1024;
const _: () = assert!(BACKLOG as usize == limits::SESSIONS_DEFAULT);

/// A node's listening socket.
#[derive(Debug)]
pub(super) struct ShmListener {
    socket: Deferred,
    background: Background,
    places: Arc<Places>,
    node: NodeName,
    /// Removes the socket's file on drop.
    _claim: Claim,
}

/// A session's socket: `SOCK_SEQPACKET`, so that messages stay whole.
#[derive(Debug)]
pub(super) struct ShmConnection {
    socket: Deferred,
    background: Background,
    /// Whether this end dialled.
    is_dialling: bool,
    /// The place of the peer that dialled, or why there is none.
    place: Result<Option<Place>, NoPlace>,
}

impl ShmListener {
    /// Listens at the claimed name.
    pub(super) fn bind(
        claim: Claim,
        node: NodeName,
        (background, places): (&Background, &Arc<Places>),
    ) -> Result<Self, FabricError> {
        let listen = || -> Result<OwnedFd, Errno> {
            let socket = socket(SocketFlags::NONBLOCK)?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(&claim.binding_address)?)?;
            // Whatever the umask and the directory allow, only this user and the members of this group may connect.
            let mut mode = Mode::RUSR | Mode::WUSR;
            if claim.group.is_some() {
                rustix::fs::chown(&claim.binding_address, None, claim.group)?;
                mode |= Mode::RGRP | Mode::WGRP;
            }
            rustix::fs::chmod(&claim.binding_address, mode)?;
            rustix::net::listen(&socket, BACKLOG)?;
            // Not before: a member of the group that connects meanwhile would be refused.
            claim.show_socket()?;
            Ok(socket)
        };
        let socket = listen().map_err(FabricError::system("listen at the node's socket"))?;
        let socket = Deferred::new(socket, Closing::Listener, background);
        Ok(Self { socket, background: background.clone(), places: Arc::clone(places), node, _claim: claim })
    }
}

impl Acceptor for ShmListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        self.background.check_room()?;
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => self.seat(socket).map(|connection| Some(Box::new(connection) as _)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(FabricError::system("accept a connection")(errno)),
        }
    }

    fn addresses(&self) -> Vec<Address> {
        vec![Address::shm(&self.node)]
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ShmListener {
    /// Gives the peer of a connection a place, if there is one.
    fn seat(&self, socket: OwnedFd) -> Result<ShmConnection, FabricError> {
        let mut connection = ShmConnection::new(socket, false, &self.background);
        let peer = socket_peercred(&connection.socket).map_err(FabricError::system("identify a peer"))?;
        let process = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
        let peer = PeerId::Process { user: peer.uid.as_raw(), process };
        let now_ns = SystemClock.monotonic_ns();
        connection.place = match self.places.take(peer, limits::DIAL_UNITS, now_ns) {
            Ok(place) => Ok(Some(place)),
            Err(TurnedAway { is_hasty: true, .. }) => {
                // Not behind others that wait to be closed: it may dial again at once.
                connection.socket.close_now();
                return Err(FabricError::Closed);
            }
            Err(TurnedAway { why, .. }) => Err(why),
        };
        Ok(connection)
    }
}

impl ShmConnection {
    fn new(socket: OwnedFd, is_dialling: bool, background: &Background) -> Self {
        let socket = Deferred::new(socket, Closing::Connection, background);
        Self { socket, background: background.clone(), is_dialling, place: Ok(None) }
    }

    /// Connects to the socket at this path. Blocks for up to `timeout` while the backlog is full; `EAGAIN` if it
    /// stays full.
    pub(super) fn connect(path: &Path, timeout: Duration, background: &Background) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let deadline_ns = SystemClock.monotonic_ns().saturating_add(saturate(timeout));
        loop {
            let left_ns = deadline_ns.saturating_sub(SystemClock.monotonic_ns());
            let flags = if left_ns == 0 { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
            let socket = socket(flags)?;
            if left_ns > 0 {
                // The kernel rounds down to microseconds, and 0 means no timeout. It serves waiting connects in order.
                let left = Duration::from_nanos(left_ns.max(1_000_000));
                set_socket_timeout(&socket, Timeout::Send, Some(left))?;
            }
            match rustix::net::connect(&socket, &address) {
                Ok(()) => return Ok(Self::new(socket, true, background)),
                Err(Errno::INTR | Errno::AGAIN) if left_ns > 0 => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends a message, with a descriptor if there is one.
    fn send_file(&self, message: &[u8], file: Option<BorrowedFd<'_>>) -> Result<Sent, FabricError> {
        if message.len() > limits::CONTROL_MESSAGE_LEN_MAX {
            let max = limits::CONTROL_MESSAGE_LEN_MAX;
            return Err(FabricError::MessageTooLong { len: message.len(), max });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(limits::MESSAGE_REGIONS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&self.socket, &[IoSlice::new(message)], &mut ancillary, flags) {
            Ok(_) => Ok(Sent::Done),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Sent::Full),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(FabricError::Closed),
            Err(errno) => Err(FabricError::system("send a message")(errno)),
        }
    }

    /// The region of a message, if it carried one; `is_cut` if the kernel dropped files.
    fn offer(&self, mut files: Vec<Deferred>, is_cut: bool) -> Result<Option<Box<dyn Offer>>, FabricError> {
        if files.len() > limits::MESSAGE_REGIONS_MAX {
            return Err(FabricError::TooManyRegions);
        }
        if files.is_empty() && !is_cut {
            return Ok(None);
        }
        self.background.check_room()?;
        let file = match files.pop().filter(|_| !is_cut) {
            Some(file) => Ok(file),
            // The kernel does not say why. If a descriptor can be allocated now, the process was out of them before.
            None => Err(match rustix::io::fcntl_dupfd_cloexec(&self.socket, 0) {
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => errno,
                _ => Errno::MFILE,
            }),
        };
        let file = file.map_err(FabricError::system("receive the peer's memory"));
        let user = match self.peer_address() {
            PeerAddress::Local { user, .. } => Some(user),
            PeerAddress::Network(_) | PeerAddress::Unknown => None,
        };
        Ok(Some(Box::new(ShmOffer { file, user, background: self.background.clone() })))
    }
}

impl Connection for ShmConnection {
    fn send(&mut self, message: &[u8], region: Option<&Registration>) -> Result<Sent, FabricError> {
        self.send_file(message, region.map(|registration| registration.region().file()))
    }

    fn send_socket(&mut self, message: &[u8], socket: BorrowedFd<'_>) -> Result<Sent, FabricError> {
        self.send_file(message, Some(socket))
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError> {
        let max = into.len();
        self.background.check_next(&self.socket)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_ROOM))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut receive =
            || rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags);
        let received = match receive() {
            // The peer closed without reading everything, which is reported once, before what it sent.
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => return Ok(Received::Closed),
            Err(errno) => return Err(FabricError::system("receive a message")(errno)),
        };
        // Take all files out first: whatever happens to the message, they are closed in the background.
        let deferred = |file| Deferred::new(file, Closing::Foreign, &self.background);
        let files: Vec<Deferred> = files(&mut ancillary).map(deferred).collect();
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(FabricError::MessageTooLong { len: max.saturating_add(1), max });
        }
        let offer = self.offer(files, received.flags.contains(ReturnFlags::CTRUNC))?;
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        Ok(Received::Message { len: received.bytes, offer })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { placement: Placement::Words, shares_memory: true, ..Capabilities::default() }
    }

    /// The effective user of either end, the dialling one's first. The kernel recorded the peer's when it dialled or listened.
    #[expect(clippy::big_endian_bytes, reason = "proofs are in network byte order")]
    fn binding(&self) -> Result<Vec<u8>, FabricError> {
        let peer = socket_peercred(&self.socket).map_err(FabricError::system("identify the peer's user"))?;
        let peer = peer.uid.as_raw();
        let own = rustix::process::geteuid().as_raw();
        let (dialling, dialled) = if self.is_dialling { (own, peer) } else { (peer, own) };
        Ok([dialling.to_be_bytes(), dialled.to_be_bytes()].concat())
    }

    fn peer_address(&self) -> PeerAddress {
        let local = |peer: UCred| PeerAddress::Local { user: peer.uid.as_raw(), group: peer.gid.as_raw() };
        socket_peercred(&self.socket).map_or(PeerAddress::Unknown, local)
    }

    fn place(&self) -> Result<Option<&Place>, NoPlace> {
        self.place.as_ref().map(Option::as_ref).map_err(|why| *why)
    }

    fn prepare(&self, registration: &Arc<Registration>) -> Result<Prepared, FabricError> {
        let entry = registration.entries::<ShmRegistered>().next();
        let key = entry.map_or_else(RemoteKey::default, |entry| RemoteKey { key: entry.key, address: 0 });
        Ok(Prepared::Done(key))
    }

    /// A mapping cannot be revoked: the peer keeps it until it unmaps it.
    fn withdraw(&mut self, _registration: &Registration) {}

    /// Shared memory wakes a peer at less cost.
    fn datagrams(&self) -> Option<&dyn Datagrams> {
        None
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | flags;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}
