//! Frames over a TCP connection: the exchange that connects two queue pairs by hand, then the control messages of
//! unreliable connections, whose queue pairs carry one-sided operations only.
//!
//! Each frame is preceded by its length, a `u16` in network byte order. Nothing here blocks.

#![expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use std::time::Duration;

use rustix::net::sockopt;

use crate::limits;

/// Idle time before the peer's host is probed, and the interval of probes.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Unanswered probes after which the peer's host counts as gone. On a wire that loses one packet in twenty each way, one
/// probe in ten fails: four in a row, once in three hours.
const PROBES_MAX: u32 = 4;
/// How long sent data may remain unacknowledged, ms. Linux applies it to probes, too, whatever their
/// number (tcp(7), `TCP_USER_TIMEOUT`), so it must cover all of them.
const ACKNOWLEDGED_MS: u32 = 1000 * (PROBES_MAX + 1);
/// Bytes before each frame.
const PREFIX_LEN: usize = 2;
const _: () = assert!(limits::verbs::FRAME_LEN_MAX <= u16::MAX as usize);

/// A TCP connection that carries frames.
#[derive(Debug)]
pub(super) struct FrameStream {
    socket: TcpStream,
    /// The unsent rest of a frame.
    unsent: Vec<u8>,
    /// Received bytes not taken yet.
    arrived: Vec<u8>,
}

/// The result of receiving from a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamEvent {
    /// A frame.
    Frame(Vec<u8>),
    /// No complete frame yet.
    Nothing,
    /// The peer closed it, or its process is gone.
    Closed,
    /// The peer's host does not answer.
    Lost,
    /// The peer sent a malformed frame.
    Malformed,
}

impl FrameStream {
    /// Wraps a socket that is connected or connecting.
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // Messages are small and latency matters.
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, PROBE_PAUSE)?;
        sockopt::set_tcp_keepintvl(&socket, PROBE_PAUSE)?;
        sockopt::set_tcp_keepcnt(&socket, PROBES_MAX)?;
        sockopt::set_tcp_user_timeout(&socket, ACKNOWLEDGED_MS)?;
        Ok(Self { socket, unsent: Vec::new(), arrived: Vec::new() })
    }

    /// The socket.
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether part of a frame waits to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends a frame. Returns false without sending while the previous frame is incomplete.
    pub(super) fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        if !self.flush()? {
            return Ok(false);
        }
        let len = u16::try_from(frame.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        self.unsent.extend_from_slice(&len.to_be_bytes());
        self.unsent.extend_from_slice(frame);
        self.flush()?;
        Ok(true)
    }

    /// Sends the rest of the last frame. Returns whether it is complete.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_not_yet(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns the next frame, if complete.
    pub(super) fn receive(&mut self) -> StreamEvent {
        loop {
            match self.take() {
                StreamEvent::Nothing => {}
                arrival => return arrival,
            }
            let mut buffer = [0; limits::verbs::FRAME_LEN_MAX];
            match self.socket.read(&mut buffer) {
                Ok(0) => return StreamEvent::Closed,
                Ok(len) => self.arrived.extend(buffer.iter().take(len)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_not_yet(&error) => return StreamEvent::Nothing,
                Err(error) if error.kind() == ErrorKind::TimedOut => return StreamEvent::Lost,
                Err(_) => return StreamEvent::Closed,
            }
        }
    }

    /// Takes a frame from the received bytes.
    fn take(&mut self) -> StreamEvent {
        let Some((prefix, rest)) = self.arrived.split_first_chunk::<PREFIX_LEN>() else {
            return StreamEvent::Nothing;
        };
        let len = usize::from(u16::from_be_bytes(*prefix));
        if len == 0 || len > limits::verbs::FRAME_LEN_MAX {
            return StreamEvent::Malformed;
        }
        let Some((frame, _)) = rest.split_at_checked(len) else { return StreamEvent::Nothing };
        let frame = frame.to_vec();
        self.arrived.drain(..PREFIX_LEN + len);
        StreamEvent::Frame(frame)
    }
}

/// Whether a retry may succeed: no data, a full buffer, or a pending connect.
fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::clock::{Clock, SystemClock};

    fn pair() -> (FrameStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (FrameStream::new(near).unwrap(), listener.accept().unwrap().0)
    }

    fn until(mut arrival: impl FnMut() -> StreamEvent) -> StreamEvent {
        let began_ns = SystemClock.monotonic_ns();
        loop {
            match arrival() {
                StreamEvent::Nothing => assert!(SystemClock.monotonic_ns() - began_ns < 10_000_000_000),
                arrival => return arrival,
            }
        }
    }

    #[test]
    fn frames_arrive_whole_in_pieces_of_any_length() {
        let (mut near, mut far) = pair();
        assert_eq!(near.receive(), StreamEvent::Nothing);
        let mut bytes = Vec::new();
        let frames: Vec<Vec<u8>> = [1, 2, 100, limits::verbs::FRAME_LEN_MAX].map(|len| vec![7; len]).into();
        for frame in &frames {
            bytes.extend(u16::try_from(frame.len()).unwrap().to_be_bytes());
            bytes.extend(frame);
        }
        for piece in bytes.chunks(3) {
            far.write_all(piece).unwrap();
        }
        for frame in frames {
            assert_eq!(until(|| near.receive()), StreamEvent::Frame(frame));
        }
        drop(far);
        assert_eq!(until(|| near.receive()), StreamEvent::Closed);
    }

    #[test]
    fn a_peer_that_does_not_read_fills_the_stream() {
        let (mut near, far) = pair();
        let mut far = FrameStream::new(far).unwrap();
        let mut sent = 0_u64;
        while near.send(&sent.to_be_bytes().repeat(500)).unwrap() {
            sent += 1;
        }
        for number in 0..sent {
            assert_eq!(until(|| far.receive()), StreamEvent::Frame(number.to_be_bytes().repeat(500)));
            near.flush().unwrap();
        }
        assert!(near.send(b"again").unwrap());
        assert_eq!(until(|| far.receive()), StreamEvent::Frame(b"again".to_vec()));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for prefix in [[0, 0], [0xff, 0xff]] {
            let (mut near, mut far) = pair();
            far.write_all(&prefix).unwrap();
            assert_eq!(until(|| near.receive()), StreamEvent::Malformed);
        }
    }
}
