use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::background::{Background, Closing, Deferred, peek_files};
use super::credentials::Credentials;
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
    /// Shared while a message is received in the background.
    socket: Arc<Deferred>,
    background: Background,
    /// Whether this end dialled.
    is_dialling: bool,
    /// The place of the peer that dialled, or why there is none.
    place: Result<Option<Place>, NoPlace>,
    /// Its next message waits.
    held_back: Option<HeldBack>,
}

/// A message that carries a descriptor, while too many of them wait to be closed; or whatever comes next, while a message is received in
/// the background.
#[derive(Clone, Copy, Debug)]
struct HeldBack {
    since_ns: u64,
    until_ns: u64,
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
        let socket = Deferred::new(socket, Closing::Connection, &self.background);
        let peer = Credentials::of_peer(&socket).map_err(FabricError::system("identify a peer"))?;
        let peer = PeerId::Process { user: peer.user, process: peer.process };
        let now_ns = SystemClock.monotonic_ns();
        let place = match self.places.take(peer, limits::DIAL_UNITS, now_ns) {
            Ok(place) => Ok(Some(place)),
            Err(TurnedAway { is_hasty: true, .. }) => {
                // Not behind others that wait to be closed: it may dial again at once.
                socket.close_now();
                return Err(FabricError::Closed);
            }
            Err(TurnedAway { why, .. }) => Err(why),
        };
        let mut connection = ShmConnection::new(socket, false, &self.background);
        connection.place = place;
        Ok(connection)
    }
}

impl ShmConnection {
    fn new(socket: Deferred, is_dialling: bool, background: &Background) -> Self {
        let socket = Arc::new(socket);
        Self { socket, background: background.clone(), is_dialling, place: Ok(None), held_back: None }
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
                Ok(()) => {
                    let socket = Deferred::new(socket, Closing::Connection, background);
                    return Ok(Self::new(socket, true, background));
                }
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

    /// Whether the next message has to wait. An error once it has waited for too long.
    fn holds_back(&mut self, now_ns: u64) -> Result<bool, FabricError> {
        if self.held_back.is_some_and(|held_back| now_ns < held_back.until_ns) {
            return Ok(true);
        }
        if Arc::strong_count(&self.socket) > 1 {
            return self.hold_back(self.no_descriptor(), now_ns).map(|()| true);
        }
        match self.background.check_next(&self.socket) {
            Ok(()) => Ok(false),
            Err(error) => self.hold_back(error, now_ns).map(|()| true),
        }
    }

    /// Leaves the next message in the socket for a while. This error once it has been there for too long.
    fn hold_back(&mut self, error: FabricError, now_ns: u64) -> Result<(), FabricError> {
        let since_ns = self.held_back.map_or(now_ns, |held_back| held_back.since_ns);
        if now_ns.saturating_sub(since_ns) >= limits::HELD_BACK_NS_MAX {
            self.held_back = None;
            return Err(error);
        }
        self.hold_back_since(since_ns, now_ns);
        Ok(())
    }

    fn hold_back_since(&mut self, since_ns: u64, now_ns: u64) {
        self.held_back = Some(HeldBack { since_ns, until_ns: now_ns.saturating_add(limits::HELD_BACK_NS) });
    }

    /// Receives the next message at this time.
    fn receive_at(&mut self, into: &mut [u8], now_ns: u64) -> Result<Received, FabricError> {
        if self.holds_back(now_ns)? {
            return Ok(Received::Nothing);
        }
        let (files, is_cut) = match twice(|| peek_files(&self.socket, &self.background)) {
            Ok(peeked) => peeked,
            Err(errno) => {
                self.held_back = None;
                return unreceived(errno);
            }
        };
        self.held_back = None;
        if is_cut && files.is_empty() {
            return self.receive_bytes(into, now_ns);
        }
        // The others stay in the message: they are closed with the connection.
        if files.len() > limits::MESSAGE_REGIONS_MAX || is_cut {
            return Err(FabricError::TooManyRegions);
        }
        let max = into.len();
        // Without space, the kernel drops the descriptors of the message. This process has others for the same files.
        let mut receive = || {
            let mut ancillary = RecvAncillaryBuffer::default();
            let flags = RecvFlags::DONTWAIT;
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags)
        };
        let received = match twice(&mut receive) {
            Ok(received) => received,
            Err(errno) => return unreceived(errno),
        };
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(too_long(max));
        }
        if files.is_empty() && received.flags.contains(ReturnFlags::CTRUNC) {
            // The kernel had no memory to copy them.
            return Err(FabricError::system("receive the peer's memory")(Errno::NOMEM));
        }
        let offer = self.offer(files);
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        Ok(Received::Message { len: received.bytes, offer })
    }

    /// Receives a message whose descriptor this process could not copy. The kernel closes that for good, which may block, and is left to
    /// another thread.
    fn receive_bytes(&mut self, into: &mut [u8], now_ns: u64) -> Result<Received, FabricError> {
        let max = into.len();
        let mut peek = || {
            let (mut ancillary, flags) =
                (RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT | RecvFlags::PEEK);
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags)
        };
        let peeked = match twice(&mut peek) {
            Ok(peeked) => peeked,
            Err(errno) => return unreceived(errno),
        };
        if peeked.flags.contains(ReturnFlags::TRUNC) {
            return Err(too_long(max));
        }
        let error = self.no_descriptor();
        self.background.discard_next(&self.socket);
        // What comes next waits until that is done.
        self.hold_back_since(now_ns, now_ns);
        let offer = ShmOffer { file: Err(error), user: None, background: self.background.clone() };
        Ok(Received::Message { len: peeked.bytes, offer: Some(Box::new(offer)) })
    }

    /// Why the kernel gave no descriptor for the memory of the next message. It does not say.
    fn no_descriptor(&self) -> FabricError {
        let errno = match rustix::io::fcntl_dupfd_cloexec(&self.socket, 0) {
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => errno,
            // This process was out of them before. A security module that refuses descriptors looks the same.
            _ => Errno::MFILE,
        };
        FabricError::system("receive the peer's memory")(errno)
    }

    /// The region of a message, if it carried one.
    fn offer(&self, mut files: Vec<Deferred>) -> Option<Box<dyn Offer>> {
        let file = files.pop()?;
        let user = match self.peer_address() {
            PeerAddress::Local { user, .. } => Some(user),
            PeerAddress::Network(_) | PeerAddress::Unknown => None,
        };
        Some(Box::new(ShmOffer { file: Ok(file), user, background: self.background.clone() }))
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
        self.receive_at(into, SystemClock.monotonic_ns())
    }

    fn held_back_until_ns(&self) -> Option<u64> {
        self.held_back.map(|held_back| held_back.until_ns)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { placement: Placement::Words, shares_memory: true, ..Capabilities::default() }
    }

    /// The effective user of either end, the dialling one's first. The kernel recorded the peer's when it dialled or listened.
    #[expect(clippy::big_endian_bytes, reason = "proofs are in network byte order")]
    fn binding(&self) -> Result<Vec<u8>, FabricError> {
        let peer =
            Credentials::of_peer(&self.socket).map_err(FabricError::system("identify the peer's user"))?;
        let peer = peer.user;
        let own = rustix::process::geteuid().as_raw();
        let (dialling, dialled) = if self.is_dialling { (own, peer) } else { (peer, own) };
        Ok([dialling.to_be_bytes(), dialled.to_be_bytes()].concat())
    }

    fn peer_address(&self) -> PeerAddress {
        let local = |peer: Credentials| PeerAddress::Local { user: peer.user, group: peer.group };
        Credentials::of_peer(&self.socket).map_or(PeerAddress::Unknown, local)
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

impl Drop for ShmConnection {
    fn drop(&mut self) {
        if Arc::strong_count(&self.socket) > 1 {
            // It is not closed yet. It fails only if the peer is gone.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
    }
}

fn too_long(max: usize) -> FabricError {
    FabricError::MessageTooLong { len: max.saturating_add(1), max }
}

/// Calls again after the error that the peer closed without reading everything, which is reported once, before what it sent.
fn twice<R>(mut call: impl FnMut() -> Result<R, Errno>) -> Result<R, Errno> {
    match call() {
        Err(Errno::CONNRESET) => call(),
        outcome => outcome,
    }
}

/// What there is in place of a message.
fn unreceived(errno: Errno) -> Result<Received, FabricError> {
    match errno {
        Errno::AGAIN | Errno::INTR => Ok(Received::Nothing),
        Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN => Ok(Received::Closed),
        errno => Err(FabricError::system("receive a message")(errno)),
    }
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | flags;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection whose peer's end is the socket.
    fn connected(background: &Background) -> (OwnedFd, ShmConnection) {
        let flags = SocketFlags::CLOEXEC;
        let (near, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let far = Deferred::new(far, Closing::Connection, background);
        (near, ShmConnection::new(far, false, background))
    }

    fn send(peer: &OwnedFd, message: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(limits::DRAINED_FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        }
        rustix::net::sendmsg(peer, &[IoSlice::new(message)], &mut ancillary, SendFlags::empty()).unwrap();
    }

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn message_with_many_descriptors_costs_hardly_any() {
        let background = Background::default();
        // As if closing blocked, so that what is taken can be counted.
        background.pretend_blocked();
        let (peer, mut connection) = connected(&background);
        let file = null();
        send(&peer, b"full", &vec![file.as_fd(); limits::DRAINED_FILES_MAX]);
        let received = connection.receive(&mut [0; 8]);
        assert!(matches!(received, Err(FabricError::TooManyRegions)), "{received:?}");
        // The space that is aligned may have room for some more.
        let taken = background.foreign_count();
        assert!((limits::MESSAGE_REGIONS_MAX + 1..=4).contains(&taken), "{taken} were taken");
    }

    #[test]
    fn message_is_received_with_its_descriptor_and_others_without() {
        let background = Background::default();
        let (peer, mut connection) = connected(&background);
        let (file, mut buffer) = (null(), [0; 8]);
        for _ in 0..3 {
            send(&peer, b"plain", &[]);
            send(&peer, b"laden", &[file.as_fd()]);
        }
        for number in 0..6 {
            let received = connection.receive(&mut buffer).unwrap();
            let Received::Message { len: 5, offer } = received else { panic!("{received:?}") };
            assert_eq!(offer.is_some(), number % 2 == 1);
            assert_eq!(&buffer[..5], if offer.is_some() { b"laden" } else { b"plain" });
        }
        assert!(matches!(connection.receive(&mut buffer), Ok(Received::Nothing)));
        drop(peer);
        assert!(matches!(connection.receive(&mut buffer), Ok(Received::Closed)));
    }

    /// That it did is an error of whichever call comes next.
    #[test]
    fn bytes_of_a_peer_that_closed_without_reading_are_received() {
        let background = Background::default();
        let (peer, mut connection) = connected(&background);
        connection.send(b"unread", None).unwrap();
        send(&peer, b"laden", &[null().as_fd()]);
        drop(peer);
        let received = connection.receive_bytes(&mut [0; 8], 0);
        assert!(matches!(received, Ok(Received::Message { len: 5, offer: Some(_) })), "{received:?}");
    }

    /// An innocent peer whose message comes just when many descriptors are closed at once.
    #[test]
    fn message_with_a_descriptor_waits_while_many_are_being_closed() {
        let background = Background::default();
        background.pretend_blocked();
        let (peer, mut connection) = connected(&background);
        let file = null();
        send(&peer, b"plain", &[]);
        send(&peer, b"laden", &[file.as_fd()]);
        let begin_ns = 1_000_000_000;
        let mut buffer = [0; 8];
        let mut receive = |after_ns| {
            let received = connection.receive_at(&mut buffer, begin_ns + after_ns);
            (received, connection.held_back_until_ns().map(|until_ns| until_ns - begin_ns))
        };
        background.fill();
        let (plain, held_back) = receive(0);
        assert!(matches!(plain, Ok(Received::Message { len: 5, offer: None })), "{plain:?}");
        assert_eq!(held_back, None);
        for _ in 0..2 {
            let (laden, held_back) = receive(0);
            assert!(matches!(laden, Ok(Received::Nothing)), "{laden:?}");
            assert_eq!(held_back, Some(limits::HELD_BACK_NS));
        }
        background.empty();
        let (early, _) = receive(limits::HELD_BACK_NS - 1);
        assert!(matches!(early, Ok(Received::Nothing)), "{early:?}");
        let (laden, held_back) = receive(limits::HELD_BACK_NS);
        assert!(matches!(laden, Ok(Received::Message { len: 5, offer: Some(_) })), "{laden:?}");
        assert_eq!(held_back, None);
        drop(laden);

        // It does not wait for ever.
        background.fill();
        send(&peer, b"laden", &[file.as_fd()]);
        let mut waits = (0..).map(|number| number * limits::HELD_BACK_NS);
        let ended_ns = waits.find(|after_ns| receive(limits::HELD_BACK_NS + after_ns).0.is_err());
        assert_eq!(ended_ns, Some(limits::HELD_BACK_NS_MAX));
    }
}
