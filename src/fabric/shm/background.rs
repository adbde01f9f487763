//! What may block, done by threads that nobody waits for.
//!
//! A peer can send descriptors that block whoever closes them last (a TCP socket with `SO_LINGER`, a file of a file system that
//! does not answer), and leave such in messages that nobody has read: then closing the connection closes them. Memory as large
//! as a region takes long to bring into a page table and to free. None of that is for a thread that others wait for.
//!
//! Two workers do it: one only closes what peers sent, so that descriptors that block there for ever delay neither memory
//! nor the connections of other peers.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketFlags};

use crate::fabric::Worker;
use crate::limits;
use crate::memory::Region;

/// Files that one message can carry (SCM_MAX_FD of the kernel). With room for fewer, the kernel itself would close the others, on
/// the thread that receives the message.
pub(super) const FILES_ROOM: usize = 253;
/// Bytes that are brought into the page table at a time. Meanwhile the process cannot map or unmap anything else.
const POPULATED_LEN: usize = 2 << 20;

/// Does what may block, on threads that begin when there is something to do.
#[derive(Clone, Debug, Default)]
pub(super) struct Background {
    /// Memory, and connections that hold no descriptors of peers: none of that blocks for ever.
    own: Worker,
    /// Descriptors of peers, and connections whose unread messages hold such.
    foreign: Worker,
}

/// What a descriptor is, that is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Whatever a peer has sent.
    Foreign,
    /// A connection to a peer.
    Connection,
    /// A connection with descriptors of a peer in messages that no thread has read.
    Laden,
    /// A socket at which peers connect.
    Listener,
}

/// A descriptor that is closed in the background when this is dropped.
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

    /// Has all pages of the region brought into the page table, for as long as somebody uses it.
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

    /// Whether so much is left to be done that peers must not add to it: closing what they sent blocks, or no thread can be
    /// started.
    pub(super) fn is_behind(&self) -> bool {
        let is_full = |worker: &Worker| worker.waiting_count() >= limits::CLOSING_FILES_MAX;
        // The threads for what does not block come to it soon, however many leave at once.
        is_full(&self.foreign) || (!self.own.has_threads() && is_full(&self.own))
    }

    /// Starts a thread for what waits because none could be started when it was queued.
    pub(super) fn tend(&self) {
        self.own.tend();
        self.foreign.tend();
    }

    /// Has a descriptor closed.
    fn add(&self, file: OwnedFd, closing: Closing) {
        let worker = match closing {
            Closing::Foreign | Closing::Laden => &self.foreign,
            Closing::Connection | Closing::Listener => &self.own,
        };
        let background = self.clone();
        worker.run(move || background.close(file, closing));
    }

    /// Closes a descriptor, and first what peers have sent there that no thread has read.
    fn close(&self, file: OwnedFd, closing: Closing) {
        match closing {
            Closing::Foreign => {
                // Fails if the file is not a socket. A peer may set the option again meanwhile; closing then blocks this thread.
                let _ = rustix::net::sockopt::set_socket_linger(&file, None);
            }
            Closing::Laden => drain(&file),
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
    /// Has this descriptor closed there.
    pub(super) fn new(file: OwnedFd, closing: Closing, background: &Background) -> Self {
        Self { file: Some(file), closing, background: background.clone() }
    }

    /// Closes it here and now: it is known not to block.
    pub(super) fn close(mut self) {
        drop(self.file.take());
    }
}

impl AsFd for Deferred {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.file {
            Some(file) => file.as_fd(),
            None => unreachable!("it is taken when this is dropped only"),
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if self.closing != Closing::Foreign {
            // The peers see the end at once, and send nothing more. It fails when they have gone: then they need not.
            let _ = rustix::net::shutdown(&file, Shutdown::Both);
        }
        self.background.add(file, self.closing);
    }
}

/// Takes messages from a connection that is shut down, up to the first with descriptors. Whether there is one. Peers cannot add
/// messages any more: this ends.
fn holds_files(connection: &OwnedFd) -> bool {
    loop {
        match is_at_end(connection) {
            Ok(true) => return false,
            Ok(false) if !lacks_space(connection) => {}
            // Where that cannot be found out, it may block.
            Ok(false) | Err(_) => return true,
        }
        match rustix::net::recv(connection, &mut [0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// Takes what has come over a connection that is shut down, and closes it.
fn drain(connection: &OwnedFd) {
    while is_at_end(connection) == Ok(false) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_ROOM))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
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

/// Whether no message is left. An empty one reads like the end, but has credentials where they are asked for.
fn is_at_end(connection: &OwnedFd) -> Result<bool, Errno> {
    rustix::net::sockopt::set_socket_passcred(connection, true)?;
    let has_message = lacks_space(connection);
    // They are never taken: rustix cannot represent those of a process that this one cannot see.
    rustix::net::sockopt::set_socket_passcred(connection, false)?;
    Ok(!has_message)
}

/// Whether the next message has descriptors, or credentials that were asked for. Without space for them, the kernel reports that
/// there are some, and leaves them in the message.
fn lacks_space(connection: &OwnedFd) -> bool {
    loop {
        let mut byte = [0];
        let into = &mut [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match rustix::net::recvmsg(connection, into, &mut RecvAncillaryBuffer::default(), flags) {
            Ok(message) => return message.flags.contains(ReturnFlags::CTRUNC),
            // The peer has closed without having read everything. That is reported once, before what it sent.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// The files that came with a message.
pub(super) fn files<'a>(ancillary: &'a mut RecvAncillaryBuffer<'_>) -> impl Iterator<Item = OwnedFd> + 'a {
    let files = |message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    };
    ancillary.drain().filter_map(files).flatten()
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType};

    use super::*;
    use crate::memory::Protection;

    /// A file whose end another one sees.
    fn pipe() -> (std::io::PipeReader, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, writer.into())
    }

    #[test]
    fn what_is_dropped_is_closed_and_unmapped_by_others() {
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
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
        // As if each of them closed something that blocks for ever.
        background.foreign.pretend(None, false);
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
        // Nothing is left that the own threads could add.
        while weak.strong_count() > 0 || !background.own.is_done() {
            std::thread::yield_now();
        }
        let waiting = background.foreign.waiting_count();
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
            drain(&far);
            // The end is there when the writer is closed.
            rustix::io::ioctl_fionbio(&end, true).unwrap();
            assert_eq!(std::io::Read::read(&mut end, &mut [0]).unwrap(), 0);
        }
    }

    /// The limit on threads of a process or a container may be reached when something is added last.
    #[test]
    fn what_got_no_thread_gets_one_in_the_next_turn_of_the_node() {
        let holder = tempfile::tempdir().unwrap();
        let directory = super::super::directory::RuntimeDirectory::open(&holder.path().join("run")).unwrap();
        let fabric = super::super::ShmFabric::new(directory);
        let workers = [&fabric.background.own, &fabric.background.foreign];
        let (mut end, file) = pipe();
        let (mut other_end, other_file) = pipe();
        // As if no thread could be started.
        workers.iter().for_each(|worker| worker.pretend(None, false));
        drop(Deferred::new(file, Closing::Connection, &fabric.background));
        drop(Deferred::new(other_file, Closing::Foreign, &fabric.background));
        // One of them came to nothing, another is blocked.
        workers.iter().for_each(|worker| worker.pretend(Some(1), true));
        crate::fabric::Fabric::tend(&fabric);
        assert!(workers.iter().all(|worker| worker.is_tended()), "{workers:?}");
        for end in [&mut end, &mut other_end] {
            // Ends when the writer is closed.
            assert_eq!(std::io::Read::read(end, &mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn what_waits_without_a_thread_counts() {
        let background = Background::default();
        for _ in 0..limits::CLOSING_FILES_MAX {
            assert!(!background.is_behind());
            background.own.queue(|| {});
        }
        assert!(background.is_behind());
        // A thread comes to it soon: a crowd that leaves does not harm those that stay.
        background.own.pretend(Some(1), false);
        assert!(!background.is_behind());
    }

    /// Peers could add messages for ever to what is not shut down.
    #[test]
    fn connections_that_nobody_accepted_are_shut_down_before_they_are_read() {
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
