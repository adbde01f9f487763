//! Frames over a TCP connection: the exchange that connects two queue pairs by hand, then the control messages of
//! unreliable connections, whose queue pairs carry one-sided operations only.
//!
//! Each frame is preceded by its length, a `u16` in network byte order. Nothing here blocks.
//!
//! Where no reliable queue pair notices that the peer's host is lost, both ends send *beats*, lengths of zero without a frame. The
//! peer's kernel acknowledges them, also while its process stands still, so a beat without an acknowledgement means that the host
//! is gone, or the network.

#![expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use std::time::Duration;

use rustix::net::sockopt;

use crate::limits;

/// Idle time before the peer's host is probed, and the interval of probes.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Unanswered probes after which the peer's host counts as gone. The queue pair, or beats, notice that sooner: the probes only find
/// connections that neither end uses any more, and must outlast any live one. On a wire that loses one packet in twenty each way,
/// twelve in a row are never lost.
const PROBES_MAX: u32 = 12;
/// How long sent data may remain unacknowledged, ms. Linux applies it to probes, too, whatever their
/// number (tcp(7), `TCP_USER_TIMEOUT`), so it must cover all of them.
const ACKNOWLEDGED_MS: u32 = 1000 * (PROBES_MAX + 1);
/// The same for beats. TCP repeats them every 200 ms or so, so that seven in a row must be lost.
const BEAT_ACKNOWLEDGED: Duration = Duration::from_nanos(limits::verbs::SILENCE_NS);
/// Reads from the socket without a frame, after which others have a turn: a peer may send beats without end.
const FRUITLESS_READS_MAX: u32 = 16;
/// Bytes before each frame.
const PREFIX_LEN: usize = 2;
const _: () = assert!(limits::verbs::FRAME_LEN_MAX <= u16::MAX as usize);

/// A TCP connection that carries frames.
#[derive(Debug)]
pub(super) struct FrameStream {
    /// The socket.
    pub(super) socket: TcpStream,
    /// The unsent rest of a frame.
    unsent: Vec<u8>,
    /// Received bytes not taken yet.
    arrived: Vec<u8>,
    /// Whether the peer may send beats.
    has_beats: bool,
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
        Ok(Self { socket, unsent: Vec::new(), arrived: Vec::new(), has_beats: false })
    }

    /// Notices a lost host by beats. Call before the first one is sent or can arrive.
    pub(super) fn begin_to_beat(&mut self) -> io::Result<()> {
        self.has_beats = true;
        // It would take one lost probe for the end: the limit of unacknowledged data holds for probes, too.
        sockopt::set_socket_keepalive(&self.socket, false)?;
        sockopt::set_tcp_user_timeout(
            &self.socket,
            u32::try_from(BEAT_ACKNOWLEDGED.as_millis()).unwrap_or(u32::MAX),
        )?;
        // The pauses between repeats do not double (tcp(7), `TCP_THIN_LINEAR_TIMEOUTS`).
        Ok(sockopt::set_tcp_thin_linear_timeouts(&self.socket, true)?)
    }

    /// Sends a beat, unless data waits to be sent: that asks for an acknowledgement, too.
    pub(super) fn beat(&mut self) -> io::Result<()> {
        if self.has_beats && self.flush()? {
            self.unsent.extend_from_slice(&[0; PREFIX_LEN]);
            self.flush()?;
        }
        Ok(())
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
        for _ in 0..FRUITLESS_READS_MAX {
            match take_frame(&mut self.arrived, self.has_beats) {
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
        StreamEvent::Nothing
    }
}

/// Takes a frame from these received bytes, and the beats before it if there may be some.
pub(super) fn take_frame(arrived: &mut Vec<u8>, has_beats: bool) -> StreamEvent {
    if has_beats {
        let prefixes = arrived.chunks_exact(PREFIX_LEN);
        let beats = prefixes.take_while(|prefix| prefix.iter().all(|byte| *byte == 0)).count();
        arrived.drain(..beats * PREFIX_LEN);
    }
    let Some((prefix, rest)) = arrived.split_first_chunk::<PREFIX_LEN>() else {
        return StreamEvent::Nothing;
    };
    let len = usize::from(u16::from_be_bytes(*prefix));
    if len == 0 || len > limits::verbs::FRAME_LEN_MAX {
        return StreamEvent::Malformed;
    }
    let Some((frame, _)) = rest.split_at_checked(len) else { return StreamEvent::Nothing };
    let frame = frame.to_vec();
    arrived.drain(..PREFIX_LEN + len);
    StreamEvent::Frame(frame)
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
    fn beats_are_skipped_where_they_are_expected() {
        let (mut near, mut far) = pair();
        near.begin_to_beat().unwrap();
        for _ in 0..2 {
            far.write_all(&[0; 7]).unwrap();
            far.write_all(&[2, 8, 9, 0, 0]).unwrap();
            assert_eq!(until(|| near.receive()), StreamEvent::Frame(vec![8, 9]));
        }
        near.beat().unwrap();
        let mut beat = [1; PREFIX_LEN];
        far.read_exact(&mut beat).unwrap();
        assert_eq!(beat, [0; PREFIX_LEN]);
    }

    /// The receiver returns from beats without end.
    #[test]
    fn beats_without_end_keep_no_thread() {
        let (mut near, mut far) = pair();
        near.begin_to_beat().unwrap();
        far.set_nonblocking(true).unwrap();
        let beats = [0; 64 * 1024];
        let mut received = 0;
        while received < 100 {
            _ = far.write(&beats);
            assert_eq!(near.receive(), StreamEvent::Nothing);
            received += 1;
        }
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
