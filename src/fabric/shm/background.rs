//! What may block, done by threads that nobody waits for.
//!
//! A peer can send descriptors that block whoever closes them last (a TCP socket with `SO_LINGER`, a file of a file system that
//! does not answer), and leave such in messages that nobody has read: then closing the connection closes them. Memory as large
//! as a region takes long to bring into a page table and to free. None of that is for a thread that others wait for.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, SocketFlags};

use crate::limits;
use crate::memory::Region;

/// Files that one message can carry (SCM_MAX_FD of the kernel). With room for fewer, the kernel itself would close the others, on
/// the thread that receives the message.
pub(super) const FILES_ROOM: usize = 253;
/// Messages that are taken from a connection that is closed; the kernel queues fewer, unless it is told otherwise
/// (net.unix.max_dgram_qlen).
const LAST_MESSAGES_MAX: usize = 64;
/// Threads at a time: one that blocks does not hold up the others.
const THREADS_MAX: usize = 4;
/// How long a thread waits for more to do before it ends.
const IDLE: Duration = Duration::from_millis(500);
/// Bytes that are brought into the page table at a time. Meanwhile the process cannot map or unmap anything else.
const POPULATED_LEN: usize = 2 << 20;

/// Does what may block, on threads that begin when there is something to do.
#[derive(Clone, Debug, Default)]
pub(super) struct Background(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
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
    /// Has the region unmapped, if nobody else uses it.
    pub(super) fn unmap(&self, region: Arc<Region>) {
        self.add(Chore::Unmap(region));
    }

    /// Has all pages of the region brought into the page table, for as long as somebody uses it.
    pub(super) fn populate(&self, region: &Arc<Region>) {
        self.add(Chore::Populate(Arc::downgrade(region)));
    }

    /// Whether so much is left to be done that peers must not add to it: closing what they sent blocks.
    pub(super) fn is_behind(&self) -> bool {
        self.0.state.lock().waiting.len() >= limits::CLOSING_FILES_MAX
    }

    fn add(&self, chore: Chore) {
        let mut state = self.0.state.lock();
        state.waiting.push_back(chore);
        if state.waiting.len() <= state.idle || state.threads >= THREADS_MAX {
            self.0.added.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.0);
        let begun = std::thread::Builder::new()
            .name("fabricast-close".to_owned())
            .spawn(move || while shared.work() {});
        if let Err(error) = begun {
            // It stays waiting, for the thread of what is added next.
            tracing::warn!(target: "fabricast", %error, "cannot start a thread that closes what peers sent");
            self.0.state.lock().threads -= 1;
        }
    }
}

impl Shared {
    /// Does one thing. False when there was none for a while: the thread ends.
    fn work(&self) -> bool {
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
            chore.run();
        }
        true
    }
}

impl Chore {
    fn run(self) {
        match self {
            Self::Close(file, closing) => close(file, closing),
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

/// Closes a descriptor, and first what peers have sent there that nobody has read.
fn close(file: OwnedFd, closing: Closing) {
    match closing {
        Closing::Foreign => {
            // It fails for what is no socket. A peer may set it again meanwhile; then this thread waits.
            let _ = rustix::net::sockopt::set_socket_linger(&file, None);
        }
        Closing::Connection => drain(&file),
        Closing::Listener => {
            while let Ok(connection) = rustix::net::accept_with(&file, SocketFlags::CLOEXEC) {
                close(connection, Closing::Connection);
            }
        }
    }
    drop(file);
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
        files(&mut ancillary).for_each(|file| close(file, Closing::Foreign));
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
}
