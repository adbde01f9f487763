//! Background threads for operations that may block.
//!
//! A peer can send descriptors whose last close blocks (a TCP socket with `SO_LINGER`, a file of an unresponsive file
//! system), also in messages that are never read: then closing the connection closes them. Mapping and freeing memory as
//! large as a region takes long. A node's thread does neither.
//!
//! There are three workers. Two only close what peers sent, so that a descriptor that blocks for ever delays neither memory
//! nor the connections of other peers. One of the two empties connections whose unread messages hold descriptors, one after the
//! other: while a connection waits, they take no place in the table of this process.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketFlags};

use crate::fabric::{FabricError, Worker, part_of_descriptors};
use crate::limits;
use crate::memory::Region;

/// Bytes to map at a time; the process cannot map or unmap anything else meanwhile.
const POPULATED_LEN: usize = 2 << 20;

/// Runs operations that may block on threads started on demand.
#[derive(Clone, Debug)]
pub(super) struct Background {
    /// Memory, and connections without descriptors of peers: these never block for ever.
    own: Worker,
    /// Descriptors of peers.
    foreign: Worker,
    /// Connections whose unread messages hold descriptors.
    laden: Worker,
}

impl Default for Background {
    fn default() -> Self {
        Self { own: Worker::default(), foreign: Worker::default(), laden: Worker::single() }
    }
}

/// The kind of a descriptor to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Anything a peer sent.
    Foreign,
    /// A connection to a peer.
    Connection,
    /// A connection with descriptors in unread messages.
    Laden,
    /// A listening socket.
    Listener,
}

/// A descriptor that is closed in the background on drop.
#[derive(Debug)]
pub(super) struct Deferred {
    file: Option<OwnedFd>,
    closing: Closing,
    background: Background,
}

impl Background {
    /// Unmaps the region in the background, unless another handle still uses it.
    pub(super) fn unmap(&self, region: Arc<Region>) {
        self.own.run(move || drop(region));
    }

    /// Maps all pages of the region in the background, while another handle uses it.
    pub(super) fn populate(&self, region: &Arc<Region>) {
        let region = Arc::downgrade(region);
        self.own.run(move || {
            let mut offset = 0;
            while let Some(region) = region.upgrade().filter(|region| offset < region.len()) {
                region.populate(offset, POPULATED_LEN);
                offset += POPULATED_LEN;
            }
        });
    }

    /// Refuses another connection if too much is left to be done.
    pub(super) fn check_room(&self) -> Result<(), FabricError> {
        if self.is_behind() {
            return Err(FabricError::CloseBacklogFull { max: closing_files_max() });
        }
        Ok(())
    }

    /// Refuses the next message of this connection if it carries descriptors, which would add to that: they stay in the message.
    pub(super) fn check_next(&self, connection: impl AsFd) -> Result<(), FabricError> {
        let may_be_behind = self.foreign_count() >= limits::CLOSING_FILES_MIN;
        if may_be_behind && lacks_space(connection) { self.check_room() } else { Ok(()) }
    }

    /// Receives the next message of this connection, for which this process has no descriptors, so that the kernel closes what it carries.
    /// The connection is shared until then.
    pub(super) fn discard_next(&self, connection: &Arc<Deferred>) {
        let connection = Arc::clone(connection);
        self.foreign.run(move || {
            let flags = RecvFlags::DONTWAIT;
            // The end of the peer is reported once, before the message.
            while let Err(Errno::CONNRESET | Errno::INTR) = rustix::net::recv(&connection, &mut [0], flags) {}
        });
    }

    /// How many descriptors of peers, and connections whose unread messages hold some, wait to be closed.
    pub(super) fn foreign_count(&self) -> usize {
        self.foreign.waiting_count() + self.laden.waiting_count()
    }

    /// Whether so much is left to be done that peers must not add to it: closing what they sent blocks, or no thread can be
    /// started.
    fn is_behind(&self) -> bool {
        // The non-blocking work finishes soon, however many peers leave at once.
        self.foreign_count() >= closing_files_max()
            || (!self.own.has_threads() && self.own.waiting_count() >= limits::CLOSING_FILES_MAX)
    }

    /// Retries starting a thread for queued work.
    pub(super) fn tend(&self) {
        self.own.tend();
        self.foreign.tend();
        self.laden.tend();
    }

    /// Closes a descriptor in the background.
    fn add(&self, file: OwnedFd, closing: Closing) {
        let worker = match closing {
            Closing::Foreign => &self.foreign,
            Closing::Laden => &self.laden,
            Closing::Connection | Closing::Listener => &self.own,
        };
        let background = self.clone();
        worker.run(move || background.close(file, closing));
    }

    /// Closes a descriptor, after the descriptors in its unread messages.
    fn close(&self, file: OwnedFd, closing: Closing) {
        match closing {
            Closing::Foreign => {
                // Fails if the file is not a socket. The peer may set the option again meanwhile; closing then blocks this thread.
                let _ = rustix::net::sockopt::set_socket_linger(&file, None);
            }
            Closing::Laden => drain(&file, drained_files_max()),
            Closing::Connection => {
                if holds_files(&file) {
                    return self.add(file, Closing::Laden);
                }
            }
            Closing::Listener => {
                while let Ok(connection) = rustix::net::accept_with(&file, SocketFlags::CLOEXEC) {
                    drop(Deferred::new(connection, Closing::Connection, self));
                }
            }
        }
        drop(file);
    }
}

impl Deferred {
    /// Defers the close of this descriptor.
    pub(super) fn new(file: OwnedFd, closing: Closing, background: &Background) -> Self {
        Self { file: Some(file), closing, background: background.clone() }
    }

    /// Closes a connection at once, unless its unread messages hold descriptors.
    pub(super) fn close_now(mut self) {
        if let Some(file) = self.file.take() {
            // It fails only if the peer is gone.
            let _ = rustix::net::shutdown(&file, Shutdown::Both);
            self.background.close(file, self.closing);
        }
    }

    /// Closes it at once: it is known not to block.
    pub(super) fn close(mut self) {
        drop(self.file.take());
    }
}

impl AsFd for Deferred {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.file {
            Some(file) => file.as_fd(),
            None => unreachable!("the descriptor is taken only on drop"),
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if self.closing != Closing::Foreign {
            // Peers see the end at once and cannot send more. It fails only if they are gone.
            let _ = rustix::net::shutdown(&file, Shutdown::Both);
        }
        self.background.add(file, self.closing);
    }
}

/// How many descriptors of peers may wait to be closed, so that they leave most of those that the process may have.
fn closing_files_max() -> usize {
    part_of_descriptors(limits::CLOSING_FILES_PARTS, limits::CLOSING_FILES_MIN..=limits::CLOSING_FILES_MAX)
}

/// How many descriptors of one message are closed one by one, so that these, too, leave most of them.
fn drained_files_max() -> usize {
    part_of_descriptors(limits::DRAINED_FILES_PARTS, limits::DRAINED_FILES_MIN..=limits::DRAINED_FILES_MAX)
}

/// Reads messages from a shut-down connection, up to the first with descriptors, and returns whether there is one. Peers
/// cannot add messages, so this terminates.
fn holds_files(connection: &OwnedFd) -> bool {
    loop {
        match is_at_end(connection) {
            Ok(true) => return false,
            Ok(false) if !lacks_space(connection) => {}
            // If that is unknown, assume that closing may block.
            Ok(false) | Err(_) => return true,
        }
        match rustix::net::recv(connection, &mut [0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// Empties a shut-down connection. Takes this many descriptors at most; the kernel closes further ones of a message, as they are.
fn drain(connection: &OwnedFd, files_max: usize) {
    while is_at_end(connection) == Ok(false) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(limits::DRAINED_FILES_MAX))];
        let len = rustix::cmsg_space!(ScmRights(files_max)).min(space.len());
        let mut ancillary = RecvAncillaryBuffer::new(space.split_at_mut(len).0);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut byte = [0];
        let into = &mut [IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(connection, into, &mut ancillary, flags) {
            Ok(_) | Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(_) => return,
        }
        for file in files(&mut ancillary) {
            // As for [`Closing::Foreign`].
            let _ = rustix::net::sockopt::set_socket_linger(&file, None);
        }
    }
}

/// Whether no message is left. An empty message reads like the end, but carries credentials if requested.
fn is_at_end(connection: &OwnedFd) -> Result<bool, Errno> {
    rustix::net::sockopt::set_socket_passcred(connection, true)?;
    let has_message = lacks_space(connection);
    // Only peeked at: rustix cannot represent credentials of a process that is invisible to this one.
    rustix::net::sockopt::set_socket_passcred(connection, false)?;
    Ok(!has_message)
}

/// Whether the next message carries descriptors, or requested credentials. Without space for them, the kernel reports
/// truncation and leaves them in the message.
fn lacks_space(connection: impl AsFd) -> bool {
    loop {
        let mut byte = [0];
        let into = &mut [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match rustix::net::recvmsg(connection.as_fd(), into, &mut RecvAncillaryBuffer::default(), flags) {
            Ok(message) => return message.flags.contains(ReturnFlags::CTRUNC),
            // The peer closed without reading everything, which is reported once, before what it sent.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Copies of the descriptors of the next message, which stays in the socket, so that receiving it closes none of them for good. Copies at
/// least one more than a message may carry, and few more. Also returns whether others are left, or could not be copied.
pub(super) fn peek_files(
    connection: impl AsFd,
    background: &Background,
) -> Result<(Vec<Deferred>, bool), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(limits::MESSAGE_REGIONS_MAX + 1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let peeked =
        rustix::net::recvmsg(connection.as_fd(), &mut [IoSliceMut::new(&mut [0])], &mut ancillary, flags)?;
    let deferred = |file| Deferred::new(file, Closing::Foreign, background);
    let files = files(&mut ancillary).map(deferred).collect();
    Ok((files, peeked.flags.contains(ReturnFlags::CTRUNC)))
}

/// The files of a message.
fn files<'a>(ancillary: &'a mut RecvAncillaryBuffer<'_>) -> impl Iterator<Item = OwnedFd> + 'a {
    let files = |message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    };
    ancillary.drain().filter_map(files).flatten()
}

#[cfg(test)]
impl Background {
    /// As if each of its threads closed a descriptor that blocks for ever.
    pub(super) fn pretend_blocked(&self) {
        [&self.own, &self.foreign, &self.laden].iter().for_each(|worker| worker.pretend(None, false));
    }

    /// As if as many descriptors waited to be closed as may in any process.
    pub(super) fn fill(&self) {
        (0..limits::CLOSING_FILES_MAX).for_each(|_| self.foreign.queue(|| {}));
    }

    /// As if all of them were closed.
    pub(super) fn empty(&self) {
        self.foreign.discard();
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType};

    use super::*;
    use crate::memory::Protection;

    /// A pipe: the second end sees the first one close.
    fn pipe() -> (std::io::PipeReader, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, writer.into())
    }

    #[test]
    fn dropped_things_are_closed_and_unmapped_in_the_background() {
        let background = Background::default();
        let mut ends = Vec::new();
        for _ in 0..100 {
            let (end, file) = pipe();
            drop(Deferred::new(file, Closing::Foreign, &background));
            ends.push(end);
        }
        for mut end in ends {
            // Ends when the writer is closed.
            assert_eq!(std::io::Read::read(&mut end, &mut [0]).unwrap(), 0);
        }
        let region = Arc::new(Region::allocate(3 * POPULATED_LEN - 4096, Protection::PeersWrite).unwrap());
        background.populate(&region);
        let weak = Arc::downgrade(&region);
        background.unmap(region);
        while weak.strong_count() > 0 {
            std::thread::yield_now();
        }
        assert!(!background.is_behind());
    }

    /// Two ends of a connection.
    fn connected() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap()
    }

    fn send(connection: &OwnedFd, message: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(limits::DRAINED_FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        let message = [std::io::IoSlice::new(message)];
        rustix::net::sendmsg(connection, &message, &mut ancillary, SendFlags::empty()).unwrap();
    }

    /// Messages before the one with a descriptor: none, and more than a peer needs to hide it.
    const HIDING: [&[&str]; 4] = [&[], &["plain"; 100], &[""; 100], &["plain", "", ""]];

    #[test]
    fn descriptors_that_block_delay_neither_memory_nor_connections_of_others() {
        let background = Background::default();
        // As if each of them closed a descriptor that blocks for ever.
        [&background.foreign, &background.laden].iter().for_each(|worker| worker.pretend(None, false));
        let (_end, file) = pipe();
        drop(Deferred::new(file.try_clone().unwrap(), Closing::Foreign, &background));
        for hiding in HIDING {
            for files in [&[file.as_fd()][..], &[]] {
                let (near, far) = connected();
                hiding.iter().for_each(|message| send(&near, message.as_bytes(), &[]));
                send(&near, b"unread", files);
                drop(Deferred::new(far, Closing::Connection, &background));
            }
        }
        let region = Arc::new(Region::allocate(4096, Protection::PeersWrite).unwrap());
        let weak = Arc::downgrade(&region);
        background.unmap(region);
        // Nothing is left for the background threads to add.
        while weak.strong_count() > 0 || !background.own.is_done() {
            std::thread::yield_now();
        }
        let waiting = background.foreign_count();
        assert_eq!(waiting, HIDING.len() + 1, "connections with descriptors wait, and no others");
    }

    /// The kernel reports once that the peer has closed without reading everything, before what it sent.
    #[test]
    fn descriptors_of_a_peer_that_has_hung_up_are_found() {
        let (near, far) = connected();
        send(&far, b"unread by the peer", &[]);
        send(&near, b"plain", &[]);
        let (_end, file) = pipe();
        send(&near, b"unread", &[file.as_fd()]);
        drop(near);
        assert!(holds_files(&far));
    }

    #[test]
    fn everything_is_taken_from_a_connection_with_descriptors() {
        for hiding in HIDING {
            let (near, far) = connected();
            let (mut end, file) = pipe();
            send(&far, b"unread by the peer", &[]);
            hiding.iter().for_each(|message| send(&near, message.as_bytes(), &[]));
            send(&near, b"unread", &[file.as_fd()]);
            drop((near, file));
            drain(&far, limits::DRAINED_FILES_MAX);
            // The end is visible once the writer is closed.
            rustix::io::ioctl_fionbio(&end, true).unwrap();
            assert_eq!(std::io::Read::read(&mut end, &mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn descriptors_beyond_those_taken_from_a_message_are_closed_too() {
        let (near, far) = connected();
        let (mut ends, files): (Vec<_>, Vec<_>) = (0..40).map(|_| pipe()).unzip();
        send(&near, b"unread", &files.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        drop((near, files));
        drain(&far, 2);
        for end in &mut ends {
            rustix::io::ioctl_fionbio(&*end, true).unwrap();
            assert_eq!(std::io::Read::read(end, &mut [0]).unwrap(), 0);
        }
    }

    /// A socket whose close blocks until the other end is closed, also if its own lingering is disabled: a message in it holds one that
    /// lingers.
    fn blocking() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut near, &[0; 1 << 16]).is_ok() {}
        let long = std::time::Duration::from_secs(3600);
        rustix::net::sockopt::set_socket_linger(&near, Some(long)).unwrap();
        let (carrier, carried) = connected();
        send(&carrier, b"carried", &[near.as_fd()]);
        (carried, far)
    }

    /// Each of them has up to [`limits::DRAINED_FILES_MAX`] in this process's table meanwhile.
    #[test]
    fn connections_with_descriptors_are_emptied_one_after_the_other() {
        let background = Background::default();
        let mut ends = Vec::new();
        for _ in 0..3 {
            let ((near, far), (file, end)) = (connected(), blocking());
            send(&near, b"unread", &[file.as_fd()]);
            drop((near, file));
            // As a connection with descriptors, in this order.
            drop(Deferred::new(far, Closing::Laden, &background));
            ends.push(end);
        }
        while background.laden.waiting_count() != 2 {
            std::thread::yield_now();
        }
        // None of the waiting ones is begun until the first one is done.
        for waiting in [1, 0] {
            assert!(!background.laden.is_done());
            ends.remove(0);
            while background.laden.waiting_count() != waiting {
                std::thread::yield_now();
            }
        }
        ends.clear();
        while !background.laden.is_done() {
            std::thread::yield_now();
        }
    }

    /// The thread limit of a process or container may be reached at the last addition.
    #[test]
    fn work_without_a_thread_gets_one_in_the_next_turn_of_the_node() {
        let holder = tempfile::tempdir().unwrap();
        let directory = super::super::directory::RuntimeDirectory::open(&holder.path().join("run")).unwrap();
        let fabric = super::super::ShmFabric::new(directory, crate::fabric::PlaceLimits::default());
        let workers = [&fabric.background.own, &fabric.background.foreign];
        let (mut end, file) = pipe();
        let (mut other_end, other_file) = pipe();
        // As if no thread could be started.
        workers.iter().for_each(|worker| worker.pretend(None, false));
        drop(Deferred::new(file, Closing::Connection, &fabric.background));
        drop(Deferred::new(other_file, Closing::Foreign, &fabric.background));
        // One of them failed, another is blocked.
        workers.iter().for_each(|worker| worker.pretend(Some(1), true));
        crate::fabric::Fabric::tend(&fabric);
        assert!(workers.iter().all(|worker| worker.is_tended()), "{workers:?}");
        for end in [&mut end, &mut other_end] {
            // Ends when the writer is closed.
            assert_eq!(std::io::Read::read(end, &mut [0]).unwrap(), 0);
        }
    }

    /// What a peer has sent is in this process's table of descriptors once it is received.
    #[test]
    fn descriptors_stay_in_their_message_while_too_many_wait_to_be_closed() {
        let background = Background::default();
        background.foreign.pretend(None, false);
        let (near, far) = connected();
        let (_end, file) = pipe();
        send(&near, b"plain", &[]);
        send(&near, b"laden", &[file.as_fd()]);
        // Whatever the limit of this process is, which other tests change.
        background.fill();
        assert!(background.check_next(&far).is_ok(), "a message without descriptors is received");
        assert_eq!(rustix::net::recv(&far, &mut [0; 8], RecvFlags::empty()).unwrap().1, 5);
        for _ in 0..2 {
            let found = background.check_next(&far);
            let within = limits::CLOSING_FILES_MIN..=limits::CLOSING_FILES_MAX;
            assert!(matches!(found, Err(FabricError::CloseBacklogFull { max }) if within.contains(&max)));
        }
        let at_ease = Background::default();
        assert!(at_ease.check_next(&far).is_ok(), "it is still there, for one that has room");
    }

    #[test]
    fn work_without_a_thread_counts() {
        let background = Background::default();
        for _ in 0..limits::CLOSING_FILES_MAX {
            assert!(!background.is_behind());
            background.own.queue(|| {});
        }
        assert!(background.is_behind());
        // A thread drains it soon: many peers that leave at once do not block those that stay.
        background.own.pretend(Some(1), false);
        assert!(!background.is_behind());
    }

    /// Peers could add messages for ever if it were not shut down.
    #[test]
    fn unaccepted_connections_are_shut_down_before_they_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let address = rustix::net::SocketAddrUnix::new(directory.path().join("x.sock")).unwrap();
        let socket = |flags| {
            let flags = SocketFlags::CLOEXEC | flags;
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        };
        let (listener, peer) = (socket(SocketFlags::NONBLOCK), socket(SocketFlags::empty()));
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        rustix::net::connect(&peer, &address).unwrap();
        let background = Background::default();
        // As if its threads were busy, so that the connection is not closed yet.
        background.own.pretend(None, false);
        background.close(listener, Closing::Listener);
        assert_eq!(background.own.waiting_count(), 1);
        assert_eq!(rustix::net::send(&peer, b"late", SendFlags::NOSIGNAL), Err(Errno::PIPE));
    }
}
