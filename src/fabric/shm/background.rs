//! What may block, done by threads that nobody waits for.
//!
//! A peer can send descriptors that block whoever closes them last (a TCP socket with `SO_LINGER`, a file of a file system that
//! does not answer), and leave such in messages that nobody has read: then closing the connection closes them. Memory as large
//! as a region takes long to bring into a page table and to free. None of that is for a thread that others wait for.
//!
//! Two pools of threads do it: one only closes what peers sent, so that descriptors that block there for ever delay neither memory
//! nor the connections of other peers.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketFlags};

use crate::limits;
use crate::memory::Region;

/// Files that one message can carry (SCM_MAX_FD of the kernel). With room for fewer, the kernel itself would close the others, on
/// the thread that receives the message.
pub(super) const FILES_ROOM: usize = 253;
/// Threads of a pool at a time: one that blocks does not hold up the others.
const THREADS_MAX: usize = 4;
/// How long a thread waits for more to do before it ends.
const IDLE: Duration = Duration::from_millis(500);
/// Bytes that are brought into the page table at a time. Meanwhile the process cannot map or unmap anything else.
const POPULATED_LEN: usize = 2 << 20;

/// Does what may block, on threads that begin when there is something to do.
#[derive(Clone, Debug, Default)]
pub(super) struct Background {
    /// Memory, and connections that hold no descriptors of peers: none of that blocks for ever.
    own: Arc<Pool>,
    /// Descriptors of peers, and connections whose unread messages hold such.
    foreign: Arc<Pool>,
}

/// Threads with one queue.
#[derive(Debug, Default)]
struct Pool {
    state: Mutex<State>,
    /// There is something to do.
    added: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Chore>,
    threads: usize,
    idle: usize,
    /// The last thread could not be started, which was logged.
    is_short: bool,
}

/// Something that may block.
#[derive(Debug)]
enum Chore {
    Close(OwnedFd, Closing),
    Unmap(Arc<Region>),
    Populate(Weak<Region>),
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
        self.add(Chore::Unmap(region));
    }

    /// Has all pages of the region brought into the page table, for as long as somebody uses it.
    pub(super) fn populate(&self, region: &Arc<Region>) {
        self.add(Chore::Populate(Arc::downgrade(region)));
    }

    /// Whether so much is left to be done that peers must not add to it: closing what they sent blocks, or no thread can be
    /// started.
    pub(super) fn is_behind(&self) -> bool {
        let is_full = |state: &State| state.waiting.len() >= limits::CLOSING_FILES_MAX;
        // The threads for what does not block come to it soon, however many leave at once.
        let own = || {
            let own = self.own.state.lock();
            own.threads == 0 && is_full(&own)
        };
        is_full(&self.foreign.state.lock()) || own()
    }

    /// Starts a thread for chores that wait because none could be started when they were queued.
    pub(super) fn tend(&self) {
        for pool in self.pools() {
            let state = pool.state.lock();
            if state.is_short && state.threads < THREADS_MAX && !state.waiting.is_empty() {
                self.start(pool, state);
            }
        }
    }

    fn pools(&self) -> [&Arc<Pool>; 2] {
        [&self.own, &self.foreign]
    }

    /// Queues a chore in its pool.
    fn add(&self, chore: Chore) {
        let pool = match chore {
            Chore::Close(_, Closing::Foreign | Closing::Laden) => &self.foreign,
            Chore::Close(_, Closing::Connection | Closing::Listener)
            | Chore::Unmap(_)
            | Chore::Populate(_) => &self.own,
        };
        let mut state = pool.state.lock();
        state.waiting.push_back(chore);
        if state.waiting.len() <= state.idle || state.threads >= THREADS_MAX {
            pool.added.notify_one();
            return;
        }
        self.start(pool, state);
    }

    /// Starts a thread of a pool.
    fn start(&self, pool: &Arc<Pool>, mut state: MutexGuard<'_, State>) {
        state.threads += 1;
        drop(state);
        let (background, of_thread) = (self.clone(), Arc::clone(pool));
        let begun = std::thread::Builder::new()
            .name("fabricast-close".to_owned())
            .spawn(move || while of_thread.work(&background) {});
        let mut state = pool.state.lock();
        if let Err(error) = &begun {
            state.threads -= 1;
            if !state.is_short {
                let message = "cannot start a thread that closes what peers sent: it is tried again";
                tracing::warn!(target: "fabricast", %error, message);
            }
        }
        state.is_short = begun.is_err();
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
                    return self.add(Chore::Close(file, Closing::Laden));
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

impl Pool {
    /// Does one thing. False when there was none for a while: the thread ends.
    fn work(&self, background: &Background) -> bool {
        let mut state = self.state.lock();
        while state.waiting.is_empty() {
            state.idle += 1;
            let has_waited = self.added.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if has_waited && state.waiting.is_empty() {
                state.threads -= 1;
                return false;
            }
        }
        let chore = state.waiting.pop_front();
        drop(state);
        if let Some(chore) = chore {
            chore.run(background);
        }
        true
    }
}

impl Chore {
    fn run(self, background: &Background) {
        match self {
            Self::Close(file, closing) => background.close(file, closing),
            Self::Unmap(region) => drop(region),
            Self::Populate(region) => {
                let mut offset = 0;
                while let Some(region) = region.upgrade().filter(|region| offset < region.len()) {
                    region.populate(offset, POPULATED_LEN);
                    offset += POPULATED_LEN;
                }
            }
        }
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
        self.background.add(Chore::Close(file, self.closing));
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
        background.foreign.state.lock().threads = THREADS_MAX;
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
        let is_done = || {
            let own = background.own.state.lock();
            own.waiting.is_empty() && own.threads == own.idle
        };
        while weak.strong_count() > 0 || !is_done() {
            std::thread::yield_now();
        }
        let waiting = background.foreign.state.lock().waiting.len();
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
        let pools = [&fabric.background.own, &fabric.background.foreign];
        let (mut end, file) = pipe();
        let (mut other_end, other_file) = pipe();
        // As if no thread could be started.
        pools.iter().for_each(|pool| pool.state.lock().threads = THREADS_MAX);
        drop(Deferred::new(file, Closing::Connection, &fabric.background));
        drop(Deferred::new(other_file, Closing::Foreign, &fabric.background));
        // One of them came to nothing, another is blocked.
        for pool in pools {
            let mut state = pool.state.lock();
            (state.threads, state.is_short) = (1, true);
        }
        crate::fabric::Fabric::tend(&fabric);
        for pool in pools {
            let state = pool.state.lock();
            assert!(state.threads > 1 || state.waiting.is_empty(), "{state:?}");
        }
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
            background.own.state.lock().waiting.push_back(Chore::Populate(Weak::new()));
        }
        assert!(background.is_behind());
        // A thread comes to it soon: a crowd that leaves does not harm those that stay.
        background.own.state.lock().threads = 1;
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
        background.own.state.lock().threads = THREADS_MAX;
        background.close(listener, Closing::Listener);
        assert_eq!(background.own.state.lock().waiting.len(), 1);
        assert_eq!(rustix::net::send(&peer, b"late", SendFlags::NOSIGNAL), Err(Errno::PIPE));
    }
}
