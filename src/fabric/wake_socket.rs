//! Wakes a thread of another process of this host through a socket, which that thread waits on like on any descriptor.
//!
//! The waiting process makes a pair of connected stream sockets, keeps one end, and sends the other one to its peer. An eventfd would
//! take less, but a peer that shares one can make a write to it block, since `O_NONBLOCK` belongs to the open file; sending to a socket
//! with `MSG_DONTWAIT` never blocks.

use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, sockopt};

use super::error::FabricError;

/// Bytes of a token as it is sent.
const TOKEN_LEN: usize = size_of::<u64>();
/// The upper half of each token as it is sent. Anything else was not sent by a waker.
const TOKEN_MARK: u64 = 0x6661_6272;
/// Tokens that are received at a time.
const TOKENS_MAX: usize = 64;
/// Receives of one call, so that a peer that sends without end cannot keep the thread.
const RECEIVES_MAX: usize = 16;
/// Tokens that fit any socket: after as many, others may have been dropped.
const TOKENS_SURE: usize = 64;

/// Wakes a thread of a peer on this host.
pub(crate) trait RemoteWaker: Debug + Send + Sync {
    /// Makes the peer's socket readable, with this token. Never blocks.
    fn wake(&self, token: u32) -> Wake;
}

/// The outcome of waking a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The token is on its way.
    Done,
    /// The socket holds so many tokens that this one was dropped. It is readable.
    Full,
    /// The peer has closed its end.
    Closed,
}

/// The receiving end of a pair of sockets.
#[derive(Debug)]
pub(crate) struct WakeSocket {
    socket: OwnedFd,
}

/// What a wake socket has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// The tokens that were added.
    Tokens,
    /// Some tokens may be missing.
    Incomplete,
    /// The other end is closed: nothing will be received.
    Closed,
}

impl WakeSocket {
    /// Makes a pair of sockets. Returns the receiving end and the one for the peer.
    pub(crate) fn pair() -> Result<(Self, OwnedFd), FabricError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (socket, peer) = pair.map_err(FabricError::system("make a pair of sockets"))?;
        Ok((Self { socket }, peer))
    }

    /// Takes the tokens that have arrived, and adds them. They are the peer's, and untrusted.
    pub(crate) fn take(&self, tokens: &mut Vec<u32>) -> Wakes {
        let (mut count, mut outcome) = (0, Wakes::Tokens);
        for _ in 0..RECEIVES_MAX {
            let mut bytes = [0; TOKENS_MAX * TOKEN_LEN];
            let len = match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Wakes::Closed,
                Ok((len, _)) => len,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(_) => return Wakes::Closed,
            };
            let before = tokens.len();
            let is_whole = tokens_of(bytes.split_at(len.min(size_of_val(&bytes))).0, tokens);
            count += tokens.len() - before;
            if !is_whole || count >= TOKENS_SURE {
                outcome = Wakes::Incomplete;
            }
        }
        outcome
    }
}

/// Adds the tokens in these bytes. Returns whether they are tokens of a waker, and nothing else.
pub(super) fn tokens_of(bytes: &[u8], tokens: &mut Vec<u32>) -> bool {
    let (chunks, rest) = bytes.as_chunks::<TOKEN_LEN>();
    // Each token is sent as a whole: the next one that is read from an empty socket begins at its first byte.
    let mut is_whole = rest.is_empty();
    for chunk in chunks {
        let word = u64::from_le_bytes(*chunk);
        is_whole &= word >> u32::BITS == TOKEN_MARK;
        tokens.push(u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0));
    }
    is_whole
}

/// A token as it is sent.
pub(super) fn bytes_of(token: u32) -> [u8; TOKEN_LEN] {
    (TOKEN_MARK << u32::BITS | u64::from(token)).to_le_bytes()
}

impl AsFd for WakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Wakes a peer through its socket.
#[derive(Debug)]
pub(crate) struct SocketWaker<F> {
    socket: F,
}

impl<F: AsFd> SocketWaker<F> {
    /// Takes the sending end of a pair. A peer sent it: anything else is refused, so that nothing is sent to a third party in this
    /// process's name.
    pub(crate) fn new(socket: F) -> Result<Self, FabricError> {
        let is_pair = || -> Result<bool, Errno> {
            let handle = socket.as_fd();
            let is_stream = sockopt::socket_domain(handle)? == AddressFamily::UNIX
                && sockopt::socket_type(handle)? == SocketType::STREAM;
            Ok(is_stream
                && is_unnamed(rustix::net::getsockname(handle)?)
                && rustix::net::getpeername(handle)?.is_none_or(is_unnamed))
        };
        match is_pair() {
            Ok(true) => Ok(Self { socket }),
            Ok(false) | Err(_) => {
                Err(FabricError::Access { why: "the peer sent no end of a pair of sockets" })
            }
        }
    }
}

/// Whether a socket has no address, as those of a pair: only its family.
fn is_unnamed(address: SocketAddrAny) -> bool {
    address.address_family() == AddressFamily::UNIX && address.addr_len() as usize == size_of::<u16>()
}

impl<F: AsFd + Debug + Send + Sync> RemoteWaker for SocketWaker<F> {
    fn wake(&self, token: u32) -> Wake {
        match rustix::net::send(&self.socket, &bytes_of(token), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Wake::Done,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Wake::Full,
            Err(_) => Wake::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    fn taken(socket: &WakeSocket) -> (Wakes, Vec<u32>) {
        let mut tokens = Vec::new();
        (socket.take(&mut tokens), tokens)
    }

    #[test]
    fn tokens_arrive_in_order_until_the_socket_is_full() {
        let (socket, peer) = WakeSocket::pair().unwrap();
        let waker = SocketWaker::new(peer).unwrap();
        assert_eq!(taken(&socket), (Wakes::Tokens, vec![]));
        for token in [7, 0, u32::MAX] {
            assert_eq!(waker.wake(token), Wake::Done);
        }
        assert_eq!(taken(&socket), (Wakes::Tokens, vec![7, 0, u32::MAX]));
        let sent = (0..1_000_000).take_while(|token| waker.wake(*token) == Wake::Done).count();
        assert!((TOKENS_SURE..1_000_000).contains(&sent), "{sent} tokens fit");
        let (outcome, tokens) = taken(&socket);
        assert_eq!((outcome, tokens.len()), (Wakes::Incomplete, sent));
        assert_eq!(waker.wake(1), Wake::Done);
        drop(socket);
        assert_eq!(waker.wake(1), Wake::Closed);
    }

    #[test]
    fn bytes_that_are_no_tokens_make_what_is_received_incomplete() {
        let (socket, peer) = WakeSocket::pair().unwrap();
        for noise in [&[1_u8][..], &[0xff; 8], &[0; 23]] {
            rustix::net::send(&peer, noise, SendFlags::DONTWAIT).unwrap();
            assert_eq!(taken(&socket).0, Wakes::Incomplete);
        }
        let waker = SocketWaker::new(peer.try_clone().unwrap()).unwrap();
        assert_eq!(waker.wake(5), Wake::Done);
        assert_eq!(taken(&socket), (Wakes::Tokens, vec![5]));
        drop((waker, peer));
        assert_eq!(taken(&socket).0, Wakes::Closed);
    }

    #[test]
    fn only_an_end_of_a_pair_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service");
        let service = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = service.accept().unwrap();
        let (datagram, _other) = UnixDatagram::pair().unwrap();
        let internet = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = tempfile::tempfile().unwrap();
        assert!(SocketWaker::new(OwnedFd::from(client)).is_err(), "it would speak to the service");
        assert!(SocketWaker::new(OwnedFd::from(accepted)).is_err(), "it would speak as the service");
        assert!(SocketWaker::new(OwnedFd::from(datagram)).is_err());
        assert!(SocketWaker::new(OwnedFd::from(internet)).is_err());
        assert!(SocketWaker::new(OwnedFd::from(file)).is_err());
    }
}
