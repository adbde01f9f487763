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

use parking_lot::{Condvar, Mutex};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketFlags};

use crate::limits;
use crate::memory::Region;

/// Files that one message can carry (SCM_MAX_FD of the kernel). With room for fewer, the kernel itself would close the others, on
/// the thread that receives the message.
pub(super) const FILES_ROOM: usize = 253;
/// Messages that are taken from a connection that is closed; the kernel queues fewer, unless it is told otherwise
/// (net.unix.max_dgram_qlen).
const LAST_MESSAGES_MAX: usize = 64;
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
    /// Has the region unmapped unless another handle uses it.
    pub(super) fn unmap(&self, region: Arc<Region>) {
        self.add(Chore::Unmap(region));
    }

    /// Has all pages of the region brought into the page table, for as long as somebody uses it.
    pub(super) fn populate(&self, region: &Arc<Region>) {
        self.add(Chore::Populate(Arc::downgrade(region)));
    }

    /// Whether so much is left to be done that peers must not add to it: closing what they sent blocks.
    pub(super) fn is_behind(&self) -> bool {
        self.foreign.state.lock().waiting.len() >= limits::CLOSING_FILES_MAX
    }

    /// Has it done by the pool that it belongs to.
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
        state.threads += 1;
        drop(state);
        let (background, of_thread) = (self.clone(), Arc::clone(pool));
        let begun = std::thread::Builder::new()
            .name("fabricast-close".to_owned())
            .spawn(move || while of_thread.work(&background) {});
        if let Err(error) = begun {
            // It stays waiting, for the thread of what is added next.
            tracing::warn!(target: "fabricast", %error, "cannot start a thread that closes what peers sent");
            pool.state.lock().threads -= 1;
        }
    }

    /// Closes a descriptor, and first what peers have sent there that no thread has read.
    fn close(&self, file: OwnedFd, closing: Closing) {
        match closing {
            Closing::Foreign => {
                // It fails for what is no socket. A peer may set it again meanwhile; then this thread waits.
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
                    self.close(connection, Closing::Connection);
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

/// Takes messages from a connection that has ended, up to the first with descriptors. Whether there is one.
fn holds_files(connection: &OwnedFd) -> bool {
    for _ in 0..LAST_MESSAGES_MAX {
        let mut byte = [0];
        let into = &mut [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        // Without room for descriptors, the kernel says that there are some, and leaves them in the message.
        match rustix::net::recvmsg(connection, into, &mut RecvAncillaryBuffer::default(), flags) {
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
        if rustix::net::recv(connection, &mut byte, RecvFlags::DONTWAIT).is_err() {
            return false;
        }
    }
    false
}

/// Takes what has come over a connection that has ended, and closes it.
fn drain(connection: &OwnedFd) {
    for _ in 0..LAST_MESSAGES_MAX {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_ROOM))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut byte = [0];
        let into = &mut [IoSliceMut::new(&mut byte)];
        if rustix::net::recvmsg(connection, into, &mut ancillary, flags).is_err() {
            return;
        }
        for file in files(&mut ancillary) {
            // As for [`Closing::Foreign`].
            let _ = rustix::net::sockopt::set_socket_linger(&file, None);
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

    #[test]
    fn descriptors_that_block_delay_neither_memory_nor_connections_of_others() {
        use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType};

        let background = Background::default();
        // As if each of them closed something that blocks for ever.
        background.foreign.state.lock().threads = THREADS_MAX;
        let (_end, file) = pipe();
        drop(Deferred::new(file.try_clone().unwrap(), Closing::Foreign, &background));
        let connection = |files: &[BorrowedFd<'_>]| {
            let (near, far) = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(files));
            }
            let message = [std::io::IoSlice::new(b"unread")];
            rustix::net::sendmsg(&near, &message, &mut ancillary, SendFlags::empty()).unwrap();
            drop(Deferred::new(far, Closing::Connection, &background));
        };
        for _ in 0..2 * THREADS_MAX {
            connection(&[file.as_fd()]);
            connection(&[]);
        }
        let region = Arc::new(Region::allocate(4096, Protection::PeersWrite).unwrap());
        let weak = Arc::downgrade(&region);
        background.unmap(region);
        let waiting = || background.foreign.state.lock().waiting.len();
        while weak.strong_count() > 0 || waiting() < 2 * THREADS_MAX + 1 {
            std::thread::yield_now();
        }
        assert_eq!(waiting(), 2 * THREADS_MAX + 1, "connections without descriptors are closed");
    }
}
