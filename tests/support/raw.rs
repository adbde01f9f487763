//! The control channel by hand: sockets and messages made without the library, for misbehaving peers.

use std::io::{IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::time::PATIENCE;

pub(crate) const VERSION: u16 = 6;
/// Another version of it.
const OTHER_VERSION: u16 = VERSION + 1;
/// Bytes of a challenge.
const CHALLENGE_LEN: usize = 32;
pub(crate) const REFUSE: u16 = 1;
pub(crate) const HELLO: u16 = 2;
pub(crate) const LIST_TOPICS: u16 = 3;
pub(crate) const TOPICS: u16 = 4;
pub(crate) const ATTACH: u16 = 5;
pub(crate) const LET_GO: u16 = 22;
pub(crate) const GRANTED: u16 = 6;
pub(crate) const REFUSED: u16 = 7;
pub(crate) const EXPOSE: u16 = 8;
pub(crate) const EXPOSED: u16 = 9;
pub(crate) const DETACH: u16 = 10;
pub(crate) const END: u16 = 13;
pub(crate) const INVITE: u16 = 14;
pub(crate) const LISTEN: u16 = 15;
pub(crate) const PROVE: u16 = 23;
pub(crate) const NOTICES: u16 = 16;
pub(crate) const HEARD: u16 = 17;
pub(crate) const WAKE_BY: u16 = 20;
pub(crate) const WAKE_SLOT: u16 = 21;

/// The most files that a message can carry.
pub(crate) const FILES_MAX: usize = 253;

/// A body under construction: integers in network byte order, texts after their length in eight bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

#[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
impl Body {
    pub(crate) fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    pub(crate) fn short(mut self, number: u16) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn word(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn long(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let mut body = self.long(bytes.len() as u64);
        body.0.extend(bytes);
        body
    }

    /// A process of this node.
    pub(crate) fn identity(self, node: &str) -> Self {
        self.bytes(node.as_bytes()).word(1).bytes(b"nowhere").long(1)
    }

    /// Builds a message of this kind with this body.
    pub(crate) fn message(self, kind: u16) -> Vec<u8> {
        self.message_of(VERSION, kind)
    }

    /// Builds the same message of another version.
    pub(crate) fn other_version(self, kind: u16) -> Vec<u8> {
        self.message_of(OTHER_VERSION, kind)
    }

    fn message_of(self, version: u16, kind: u16) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).expect("a short body");
        let header = Self(b"FBCT".to_vec()).short(version).short(kind).word(len);
        let checksum = crc32(&[header.0.as_slice(), &self.0].concat());
        [header.word(checksum).0, self.0].concat()
    }
}

/// CRC-32 as in Ethernet, bit by bit.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// A hello without keys; `answers` is the nonce of the hello that it answers.
pub(crate) fn hello(answers: Option<u64>) -> Vec<u8> {
    hello_of("hostile", answers, false)
}

/// The hello of a publisher's node that dials.
pub(crate) fn publishing() -> Vec<u8> {
    hello_of("hostile", None, true)
}

/// A hello of this node.
fn hello_of(node: &str, answers: Option<u64>, invites: bool) -> Vec<u8> {
    let body = Body::default().long(7);
    let body = match answers {
        Some(nonce) => body.byte(1).long(nonce),
        None => body.byte(0),
    };
    body.identity(node).byte(invites.into()).byte(0).message(HELLO)
}

/// The hello of a node that has keys, with a challenge of zeros.
pub(crate) fn challenging() -> Vec<u8> {
    let body = Body::default().long(7).byte(0).identity("hostile").byte(0).byte(1);
    [0; CHALLENGE_LEN].into_iter().fold(body, Body::byte).message(HELLO)
}

/// An invitation to this topic.
pub(crate) fn invite(topic: &str) -> Vec<u8> {
    Body::default().bytes(topic.as_bytes()).message(INVITE)
}

/// A request for a topic, by push or by pull.
pub(crate) fn attach(attachment: u32, topic: &str, push: bool) -> Vec<u8> {
    Body::default()
        .word(attachment)
        .bytes(topic.as_bytes())
        .word(push.into())
        .byte(0)
        .long(0)
        .long(0)
        .long(0)
        // No progress slot.
        .byte(0)
        .message(ATTACH)
}

/// A request for a topic by pull, with values of the schema with this hash.
pub(crate) fn attach_by_schema(attachment: u32, topic: &str, schema_hash: u64) -> Vec<u8> {
    let body = Body::default().word(attachment).bytes(topic.as_bytes()).word(0).byte(1).long(schema_hash);
    body.long(0).long(0).long(0).byte(0).message(ATTACH)
}

/// The text for a peer of the other version.
pub(crate) fn other_version_text() -> String {
    format!("control version {OTHER_VERSION}, this program speaks {VERSION}")
}

/// Detaches, with counts of zero.
pub(crate) fn detach(attachment: u32) -> Vec<u8> {
    Body::default().word(attachment).long(0).long(0).long(0).long(0).long(0).message(DETACH)
}

/// Exposes the landing region that it carries.
pub(crate) fn expose(attachment: u32) -> Vec<u8> {
    Body::default().word(attachment).message(EXPOSE)
}

/// Requests notices.
pub(crate) fn listen(attachment: u32) -> Vec<u8> {
    Body::default().word(attachment).message(LISTEN)
}

/// Asks to be woken through the socket that it carries, of this number.
pub(crate) fn wake_by(attachment: u32, socket: u32) -> Vec<u8> {
    Body::default().word(attachment).word(socket).word(7).message(WAKE_BY)
}

/// Reports what is received of notices, and a unicast ticket.
pub(crate) fn heard(ticket: &[u8], is_multicast_received: bool) -> Vec<u8> {
    Body::default().bytes(ticket).byte(is_multicast_received.into()).message(HEARD)
}

/// Requests the first page of the directory.
pub(crate) fn list_topics() -> Vec<u8> {
    Body::default().byte(0).message(LIST_TOPICS)
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) version: u16,
    pub(crate) kind: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) files: Vec<OwnedFd>,
}

impl Reply {
    #[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
    fn parse(bytes: &[u8], files: Vec<OwnedFd>) -> Self {
        let (header, body) = bytes.split_first_chunk::<16>().expect("a whole header");
        let [b'F', b'B', b'C', b'T', v0, v1, k0, k1, ..] = *header else { panic!("no message: {header:?}") };
        let (version, kind) = (u16::from_be_bytes([v0, v1]), u16::from_be_bytes([k0, k1]));
        Self { version, kind, body: body.to_vec(), files }
    }

    /// The challenge of a hello.
    pub(crate) fn challenge(&self) -> [u8; CHALLENGE_LEN] {
        *self.body.last_chunk().expect("a hello with a challenge")
    }

    /// The same message.
    pub(crate) fn message(&self) -> Vec<u8> {
        Body(self.body.clone()).message_of(self.version, self.kind)
    }

    /// The number in eight bytes at this offset of the body.
    #[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
    pub(crate) fn long(&self, at: usize) -> u64 {
        let bytes = self.body.get(at..).and_then(<[u8]>::first_chunk).expect("a long enough body");
        u64::from_be_bytes(*bytes)
    }

    /// The reason and the text of a refusal of the session.
    #[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
    pub(crate) fn refusal(&self) -> (u16, String) {
        assert_eq!(self.kind, REFUSE, "{self:?}");
        let ([r0, r1, _, _], text) = self.body.split_first_chunk().expect("reason and length");
        (u16::from_be_bytes([*r0, *r1]), String::from_utf8_lossy(text).into_owned())
    }

    /// The reason and the text of a refused attachment.
    #[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
    pub(crate) fn refused(&self) -> (u16, String) {
        assert_eq!(self.kind, REFUSED, "{self:?}");
        let ([_, _, _, _, r0, r1], text) = self.body.split_first_chunk().expect("attachment and reason");
        let text = text.get(8..).expect("a length before the text");
        (u16::from_be_bytes([*r0, *r1]), String::from_utf8_lossy(text).into_owned())
    }
}

/// One end of a session, free to misbehave.
#[derive(Debug)]
pub(crate) struct RawPeer {
    socket: OwnedFd,
}

impl RawPeer {
    /// Dials a node.
    pub(crate) fn dial(dir: &Path, node: &str) -> Self {
        Self::try_dial(dir, node).expect("the node can be dialled")
    }

    pub(crate) fn try_dial(dir: &Path, node: &str) -> Result<Self, Errno> {
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(dir.join(format!("{node}.sock")))?)?;
        Ok(Self { socket })
    }

    /// Dials a node, and sends a hello.
    pub(crate) fn greeted(dir: &Path, node: &str) -> Self {
        let peer = Self::dial(dir, node);
        peer.send(&hello(None));
        assert_eq!(peer.receive().expect("a hello").kind, HELLO);
        peer
    }

    /// Sends these bytes as one message. An error if the peer has closed the connection.
    pub(crate) fn try_send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)), "too many files");
        }
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags).map(drop)
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        self.try_send(bytes, &[]).expect("the peer takes messages");
    }

    pub(crate) fn send_with(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        self.try_send(bytes, files).expect("the peer takes messages");
    }

    /// Sends as much as the peer accepts without blocking. Returns true if the peer has closed the connection.
    pub(crate) fn flood(&self, bytes: &[u8], count: usize) -> bool {
        for _ in 0..count {
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
        false
    }

    /// Returns the next message; `None` if the peer has closed the connection.
    pub(crate) fn receive(&self) -> Option<Reply> {
        self.receive_within(PATIENCE)
    }

    /// The same, with a bound that the test is about.
    pub(crate) fn receive_within(&self, bound: Duration) -> Option<Reply> {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let timeout = Timespec::try_from(bound).expect("a time");
        let ready = rustix::event::poll(&mut polled, Some(&timeout)).expect("sockets can be waited for");
        assert!(ready > 0, "nothing came within {bound:?}");
        let mut bytes = vec![0; 256 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let (slices, flags) = (&mut [IoSliceMut::new(&mut bytes)], RecvFlags::CMSG_CLOEXEC);
        // A connection closed with unread messages is reset.
        let received = rustix::net::recvmsg(&self.socket, slices, &mut ancillary, flags).ok()?.bytes;
        let files = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let files: Vec<OwnedFd> = files.flatten().collect();
        (received > 0).then(|| Reply::parse(bytes.split_at(received).0, files))
    }

    /// Drops what has arrived. Returns true if the peer has closed the connection, or refused the session.
    pub(crate) fn drain(&self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return true,
                Ok((..)) if bytes.get(6..8) == Some(&[0, 1]) => return true,
                Ok(_) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Waits until the peer closes the connection, ignoring its messages.
    pub(crate) fn wait_closed(&self) {
        while self.receive().is_some() {}
    }
}

/// A socket that passes for a node's.
#[derive(Debug)]
pub(crate) struct RawListener {
    socket: OwnedFd,
}

impl RawListener {
    pub(crate) fn bind(dir: &Path, node: &str) -> Self {
        let socket = socket().expect("a socket");
        let address = SocketAddrUnix::new(dir.join(format!("{node}.sock"))).expect("a short path");
        rustix::net::bind(&socket, &address).expect("the name is free");
        rustix::net::listen(&socket, 16).expect("the socket listens");
        Self { socket }
    }

    /// Waits for a dialling peer, and leaves the connection in the queue.
    pub(crate) fn wait_dialled(&self) {
        let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
        let timeout = Timespec::try_from(PATIENCE).expect("seconds");
        assert_eq!(rustix::event::poll(&mut sockets, Some(&timeout)), Ok(1), "nobody dials");
    }

    /// Accepts a connection.
    pub(crate) fn accept(&self) -> RawPeer {
        RawPeer { socket: rustix::net::accept(&self.socket).expect("a connection") }
    }
}

/// A memory file of this length with these seals.
pub(crate) fn memory_file(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"hostile", flags).expect("a memory file");
    rustix::fs::ftruncate(file.as_fd(), len).expect("a length");
    rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
    file
}

/// A memory file of this length with these seals, all of whose pages are present.
pub(crate) fn full_file(len: u64, seals: SealFlags) -> OwnedFd {
    filled_file(&vec![0; usize::try_from(len).expect("a length")], seals)
}

/// A memory file with this content and these seals.
pub(crate) fn filled_file(content: &[u8], seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"hostile", flags).expect("a memory file");
    let mut bytes = std::fs::File::from(file);
    bytes.write_all(content).expect("memory");
    rustix::fs::fcntl_add_seals(&bytes, seals).expect("seals");
    bytes.into()
}

fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

#[test]
fn checksum_and_frame_match_the_protocol() {
    assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    let golden = [0x46, 0x42, 0x43, 0x54, 0, 6, 0, 3, 0, 0, 0, 3, 0xFB, 0x7E, 0x43, 0xB8, b'a', b'b', b'c'];
    assert_eq!(Body(b"abc".to_vec()).message(3), golden);
}
