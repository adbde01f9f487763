//! Ends a wait when the connection ends, the caller stops the run, or the peer takes too long.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::super::error::VerbsError;
use super::super::stream::{FrameStream, StreamEvent};
use super::super::sys::{CmEventKind, CmId, CompletionChannel, EventChannel};
use super::error::ProgramError;
use super::time_limit::TimeLimit;
use crate::fabric::FabricError;

/// Polls of a wait between two checks.
const POLLS: u32 = 4096;
/// How long a peer may take to go on.
pub(super) const ANSWER_NS: u64 = 10_000_000_000;

/// What connects the ends besides the queue pair, and ends when one of their processes does.
#[derive(Debug)]
pub(super) enum Connection {
    /// A connection of librdmacm.
    Managed {
        /// Its identifier.
        id: CmId,
        /// Its events.
        channel: Arc<EventChannel>,
    },
    /// The TCP connection of the exchange.
    Exchanged(FrameStream),
}

impl Connection {
    fn handle(&self) -> BorrowedFd<'_> {
        match self {
            Self::Managed { channel, .. } => channel.as_fd(),
            Self::Exchanged(stream) => stream.socket.as_fd(),
        }
    }

    /// How it has ended, if it has.
    fn ending(&mut self) -> Result<Option<Ending>, ProgramError> {
        match self {
            Self::Managed { channel, .. } => {
                while let Some(event) = channel.next()? {
                    match event.kind {
                        CmEventKind::Disconnected | CmEventKind::Rejected | CmEventKind::ConnectError => {
                            return Ok(Some(Ending::Closed));
                        }
                        CmEventKind::Unreachable => return Ok(Some(Ending::HostSilent)),
                        CmEventKind::DeviceRemoval => return Ok(Some(Ending::DeviceGone)),
                        _ => {}
                    }
                }
                Ok(None)
            }
            Self::Exchanged(stream) => Ok(match stream.receive() {
                StreamEvent::Nothing => None,
                StreamEvent::Lost => Some(Ending::HostSilent),
                // The exchange is over: a frame breaks the protocol.
                StreamEvent::Closed | StreamEvent::Frame(_) | StreamEvent::Malformed => Some(Ending::Closed),
            }),
        }
    }
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// The peer has closed it.
    Closed,
    /// The peer's host does not answer.
    HostSilent,
    /// The device of this end is gone.
    DeviceGone,
}

impl Ending {
    /// The error of what waits for the peer.
    pub(super) fn error(self) -> ProgramError {
        match self {
            Self::Closed => ProgramError::Gone,
            Self::HostSilent => ProgramError::HostSilent,
            Self::DeviceGone => VerbsError::DeviceGone.into(),
        }
    }
}

impl Connection {
    /// The peer has sent something, so that the connection stands.
    fn confirm(&self) {
        if let Self::Managed { id, .. } = self
            && let Err(error) = id.establish()
        {
            tracing::trace!(target: "fabricast", %error, "the event has confirmed it already");
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Over TCP, closing the socket suffices.
        if let Self::Managed { id, .. } = self
            && let Err(error) = id.disconnect()
        {
            tracing::trace!(target: "fabricast", %error, "nothing to disconnect");
        }
    }
}

/// Watches waits.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    connection: Connection,
    stop: BorrowedFd<'a>,
    ending: Option<Ending>,
    /// After which time all waits end.
    limit: Option<TimeLimit>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(connection: Connection, stop: BorrowedFd<'a>) -> Self {
        Self { connection, stop, ending: None, limit: None }
    }

    /// The peer has sent something: the connection stands, even if the peer's last message of the connection manager was lost.
    pub(super) fn confirm(&self) {
        self.connection.confirm();
    }

    /// Fails checks and waits after this time, or never.
    pub(super) fn end_after(&mut self, limit_ns: Option<u64>) {
        self.limit = limit_ns.map(TimeLimit::begin);
    }

    /// Polls without pause until there is something.
    #[inline]
    pub(super) fn spin<T>(
        &mut self,
        mut poll: impl FnMut() -> Result<Option<T>, ProgramError>,
    ) -> Result<T, ProgramError> {
        let mut answer = None;
        loop {
            for _ in 0..POLLS {
                if let Some(found) = poll()? {
                    return Ok(found);
                }
            }
            self.check_wait(&mut answer)?;
        }
    }

    /// The same, for a limited time.
    #[inline]
    pub(super) fn spin_for<T>(
        &mut self,
        limit_ns: u64,
        mut poll: impl FnMut() -> Result<Option<T>, ProgramError>,
    ) -> Result<Option<T>, ProgramError> {
        let (mut answer, mut limit) = (None, None);
        loop {
            for _ in 0..POLLS {
                if let Some(found) = poll()? {
                    return Ok(Some(found));
                }
            }
            self.check_wait(&mut answer)?;
            if limit.get_or_insert_with(|| TimeLimit::begin(limit_ns)).is_over(0) {
                return Ok(None);
            }
        }
    }

    #[cold]
    fn check_wait(&mut self, answer: &mut Option<TimeLimit>) -> Result<(), ProgramError> {
        self.check()?;
        let is_over = answer.get_or_insert_with(|| TimeLimit::begin(ANSWER_NS)).is_over(0);
        if is_over { Err(ProgramError::NoAnswer) } else { Ok(()) }
    }

    /// Fails if the connection has ended, or the run is to stop.
    #[cold]
    pub(super) fn check(&mut self) -> Result<(), ProgramError> {
        self.poll(None, Some(0))
    }

    /// Sleeps until the completion channel has an event, for up to this time.
    pub(super) fn sleep(
        &mut self,
        channel: &CompletionChannel,
        timeout_ns: Option<u64>,
    ) -> Result<(), ProgramError> {
        // What arrived before the end of the connection is still there to be taken, once.
        match self.ending {
            Some(ending) => Err(ending.error()),
            None => self.poll(Some(channel), timeout_ns),
        }
    }

    fn poll(
        &mut self,
        channel: Option<&CompletionChannel>,
        timeout_ns: Option<u64>,
    ) -> Result<(), ProgramError> {
        let timeout = timeout_ns.map(|ns| std::time::Duration::from_nanos(ns).try_into());
        let timeout: Option<Timespec> = timeout.transpose().unwrap_or(None);
        let (connection_is_ready, stops) = {
            let handle = |handle| PollFd::from_borrowed_fd(handle, PollFlags::IN);
            let stop = self.stop;
            let mut polled = [
                handle(self.connection.handle()),
                handle(stop),
                // Without a channel, the second one again.
                handle(channel.map_or(stop, AsFd::as_fd)),
            ];
            match rustix::event::poll(&mut polled, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(FabricError::system("wait for the other process")(errno).into()),
            }
            let [connection, stop, _] = polled.map(|polled| !polled.revents().is_empty());
            (connection, stop)
        };
        if stops {
            return Err(ProgramError::Stopped);
        }
        if self.limit.as_mut().is_some_and(|limit| limit.is_over(timeout_ns.unwrap_or(u64::MAX))) {
            return Err(ProgramError::NoAnswer);
        }
        if connection_is_ready && self.ending.is_none() {
            self.ending = self.connection.ending()?;
        }
        match self.ending {
            Some(ending) if channel.is_none() => Err(ending.error()),
            _ => Ok(()),
        }
    }

    /// Waits until the connection has ended, for up to this time. Returns how, if it has.
    pub(super) fn await_end(&mut self, limit_ns: u64) -> Result<Option<Ending>, ProgramError> {
        let (mut limit, mut sleep_ns) = (TimeLimit::begin(limit_ns), 0);
        loop {
            if limit.is_over(sleep_ns) || self.ending.is_some() {
                return Ok(self.ending);
            }
            sleep_ns = limit.sleep_ns();
            match self.poll(None, Some(sleep_ns)) {
                // The loop returns it.
                Err(_) if self.ending.is_some() => {}
                outcome => outcome?,
            }
        }
    }
}
