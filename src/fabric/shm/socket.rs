use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::directory::Claim;
use super::{ShmOffer, ShmRegistered};
use crate::fabric::{
    Address, Connection, FabricError, Listener, Offer, Received, Registration, RemoteKey, Sent,
};
use crate::id::NodeName;
use crate::limits;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Files that a message has room for; more than the limit, so that a surplus is noticed and closed.
const FILES_ROOM: usize = limits::MESSAGE_REGIONS_MAX + 3;

/// A node's listening socket.
#[derive(Debug)]
pub(super) struct ShmListener {
    socket: OwnedFd,
    node: NodeName,
    /// Removes the socket's file when it is dropped.
    _claim: Claim,
}

/// A session's socket: `SOCK_SEQPACKET`, so that messages stay whole.
#[derive(Debug)]
pub(super) struct ShmConnection {
    socket: OwnedFd,
}

impl ShmListener {
    /// Listens at the claimed name.
    pub(super) fn bind(claim: Claim, node: NodeName) -> Result<Self, FabricError> {
        let listen = || -> Result<OwnedFd, Errno> {
            let socket = socket()?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(claim.socket_address())?)?;
            // Whatever the umask and the directory allow, only this user may connect.
            rustix::fs::chmod(claim.socket_address(), Mode::RUSR | Mode::WUSR)?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        let socket = listen().map_err(system("listen at the node's socket"))?;
        Ok(Self { socket, node, _claim: claim })
    }
}

impl Listener for ShmListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Box::new(ShmConnection { socket }))),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(system("accept a connection")(errno)),
        }
    }

    fn addresses(&self) -> Vec<Address> {
        vec![Address::Shm(self.node.clone())]
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

impl ShmConnection {
    /// Connects to the socket at this path.
    pub(super) fn connect(path: &Path) -> Result<Self, Errno> {
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self { socket })
    }
}

impl Connection for ShmConnection {
    fn send(&mut self, message: &[u8], region: Option<&Registration>) -> Result<Sent, FabricError> {
        if message.len() > limits::CONTROL_MESSAGE_LEN_MAX {
            let max = limits::CONTROL_MESSAGE_LEN_MAX;
            return Err(FabricError::MessageTooLong { len: message.len(), max });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(limits::MESSAGE_REGIONS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let file = region.map(|registration| [registration.region().file()]);
        if let Some(files) = &file {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&self.socket, &[IoSlice::new(message)], &mut ancillary, flags) {
            Ok(_) => Ok(Sent::Done),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Sent::Full),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(FabricError::Closed),
            Err(errno) => Err(system("send a message")(errno)),
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError> {
        let max = into.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_ROOM))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut receive =
            || rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags);
        let received = match receive() {
            // The peer has closed without having read everything. That is told once, before what it sent.
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => return Ok(Received::Closed),
            Err(errno) => return Err(system("receive a message")(errno)),
        };
        // Every file is taken out, so that those that are not used are closed.
        let mut files: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(FabricError::MessageTooLong { len: max.saturating_add(1), max });
        }
        if files.len() > limits::MESSAGE_REGIONS_MAX || received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(FabricError::TooManyRegions);
        }
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        let offer = files.pop().map(|file| -> Box<dyn Offer> { Box::new(ShmOffer { file }) });
        Ok(Received::Message { len: received.bytes, offer })
    }

    fn writes_words_in_order(&self) -> bool {
        true
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn prepare(&self, registration: &Registration) -> Result<RemoteKey, FabricError> {
        let entry = registration.entries::<ShmRegistered>().next();
        Ok(entry.map_or_else(RemoteKey::default, |entry| RemoteKey { key: entry.key, address: 0 }))
    }

    /// A mapping cannot be taken back: it stays with the peer until that gives it up.
    fn withdraw(&mut self, _registration: &Registration) {}

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn system(what: &'static str) -> impl Fn(Errno) -> FabricError {
    move |errno| FabricError::System { what, source: errno.into() }
}
