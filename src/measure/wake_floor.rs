use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::thread::futex;

use super::control::{BODY, Control};
use crate::layout::{LINE, WORD};
use crate::memory::MemoryError;
use crate::sync::atomic::Ordering;

/// The offset of the wakes by futex. The kernel compares their count with what a sleeper has seen.
const WAKES: usize = BODY;
/// The offset of the last stamp.
const STAMP: usize = WAKES + WORD;
/// Bytes of the exchange.
const LEN: usize = 2 * LINE;

/// The bare wake-ups for comparison with deliveries to a subscriber that sleeps: a futex in shared memory, and a pair of sockets.
/// One end wakes, the other one sleeps.
#[derive(Debug)]
pub struct WakeFloor {
    control: Control,
    socket: OwnedFd,
    /// Watches the socket.
    epoll: OwnedFd,
    /// The wakes by futex that this end has seen.
    seen: u32,
}

/// What wakes the sleeping end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BareWake {
    /// `FUTEX_WAKE` on a word in shared memory, after the stamp was stored beside it.
    Futex,
    /// The stamp, sent through a Unix socket, which the sleeper watches by `epoll_wait`.
    Socket,
}

impl WakeFloor {
    /// Creates the waking end. Returns it with the socket from which another process opens the sleeping end.
    ///
    /// # Errors
    ///
    /// When memory or descriptors cannot be allocated.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let control = Control::create(LEN).map_err(out_of_memory)?;
        let (socket, peer) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        send_file(&socket, &control.file()?)?;
        Ok((Self::new(control, socket)?, peer))
    }

    /// Opens the sleeping end from the socket that [`Self::create`] has returned. Blocks until the memory has come through it.
    ///
    /// # Errors
    ///
    /// When the socket is another one, or descriptors cannot be allocated.
    pub fn open(socket: OwnedFd) -> io::Result<Self> {
        let file = receive_file(&socket)?;
        Self::new(Control::open(file, LEN).map_err(out_of_memory)?, socket)
    }

    fn new(control: Control, socket: OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { control, socket, epoll, seen: 0 })
    }

    /// Returns the control lines of the two processes.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Wakes the sleeper, which gets this stamp.
    ///
    /// # Errors
    ///
    /// When the other end of the socket is closed.
    #[inline]
    pub fn wake(&self, by: BareWake, stamp: u64) -> io::Result<()> {
        match by {
            BareWake::Futex => {
                self.control.region().store(STAMP, stamp);
                let wakes = self.control.region().half(WAKES);
                // Release: publishes the stamp. Pairs with the Acquire load in `sleep`.
                wakes.fetch_add(1, Ordering::Release);
                futex::wake(wakes, futex::Flags::empty(), 1)?;
            }
            BareWake::Socket => {
                rustix::net::send(&self.socket, &stamp.to_le_bytes(), SendFlags::NOSIGNAL)?;
            }
        }
        Ok(())
    }

    /// Sleeps until the next wake by this means, and returns its stamp; `None` after the timeout, or a signal. Blocks.
    ///
    /// # Errors
    ///
    /// When the other end of the socket is closed.
    #[inline]
    pub fn sleep(&mut self, by: BareWake, timeout: Duration) -> io::Result<Option<u64>> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match by {
            BareWake::Futex => {
                let wakes = self.control.region().half(WAKES);
                loop {
                    let waited = futex::wait(wakes, futex::Flags::empty(), self.seen, Some(&timeout));
                    // Acquire: pairs with the Release in `wake`.
                    let count = wakes.load(Ordering::Acquire);
                    if std::mem::replace(&mut self.seen, count) != count {
                        return Ok(Some(self.control.region().load(STAMP)));
                    }
                    if matches!(waited, Err(Errno::TIMEDOUT | Errno::INTR)) {
                        return Ok(None);
                    }
                    // The wake before, whose count was seen before it: it ends no sleep but one that began meanwhile.
                }
            }
            BareWake::Socket => {
                let mut events = [MaybeUninit::<epoll::Event>::uninit()];
                match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
                    Ok(([], _)) => Ok(None),
                    Ok(_) => self.take_stamp().map(Some),
                    Err(Errno::INTR) => Ok(None),
                    Err(errno) => Err(errno.into()),
                }
            }
        }
    }

    /// Takes a stamp that has arrived at the socket.
    fn take_stamp(&self) -> io::Result<u64> {
        let mut stamp = [0; size_of::<u64>()];
        let (len, _) = rustix::net::recv(&self.socket, &mut stamp, RecvFlags::WAITALL)?;
        if len < stamp.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(u64::from_le_bytes(stamp))
    }
}

fn out_of_memory(error: MemoryError) -> io::Error {
    io::Error::other(error)
}

/// Sends a descriptor with one byte.
fn send_file(socket: &OwnedFd, file: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptor that came with one byte.
fn receive_file(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let absent = || io::Error::new(io::ErrorKind::InvalidData, "no memory came through this socket");
    files.flatten().next().ok_or_else(absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any machine is busy.
    const SLEEP: Duration = Duration::from_secs(600);

    #[test]
    fn each_wake_ends_one_sleep_with_its_stamp() {
        for by in [BareWake::Futex, BareWake::Socket] {
            let (waking, peer) = WakeFloor::create().unwrap();
            let sleeper = std::thread::spawn(move || {
                let mut sleeping = WakeFloor::open(peer).unwrap();
                assert_eq!(sleeping.sleep(by, Duration::ZERO).unwrap(), None);
                for stamp in 1..=20_000 {
                    sleeping.control().set_progress(0, stamp);
                    assert_eq!(sleeping.sleep(by, SLEEP).unwrap(), Some(stamp));
                }
            });
            for stamp in 1..=20_000 {
                // The last one was received.
                while waking.control().progress(0) < stamp {
                    assert!(!sleeper.is_finished(), "the sleeper has failed");
                    std::thread::yield_now();
                }
                waking.wake(by, stamp).unwrap();
            }
            sleeper.join().unwrap();
        }
    }

    #[test]
    fn socket_without_memory_is_refused() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(one);
        assert_eq!(WakeFloor::open(other.into()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn sleep_fails_once_the_waking_end_is_gone() {
        let (waking, peer) = WakeFloor::create().unwrap();
        let mut sleeping = WakeFloor::open(peer).unwrap();
        drop(waking);
        let error = sleeping.sleep(BareWake::Socket, SLEEP).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
