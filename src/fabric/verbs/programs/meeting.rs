//! How the two ends meet: one listens for both ways to connect, the other dials.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::super::connection::listen_both;
use super::super::device::Wish;
use super::super::handshake::TcpAcceptor;
use super::super::manager::{self, CmListener, Destination};
use super::super::opened::Devices;
use super::super::sys::{CmEvent, QueuePairKind};
use super::error::ProgramError;
use super::plan::ProgramPlan;
use super::resources::Resources;
use super::run::{self, ProgramReport};
use super::time_limit::TimeLimit;
use super::watch::Watch;
use super::{exchanged, managed};
use crate::clock::{Clock, SystemClock, saturate};
use crate::fabric::{Address, FabricError, RdmaConnect};
use crate::limits;

/// The pause between two attempts to reach a peer.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// The pause after a failure to wait for peers, which may last: this process has no descriptor left, for example.
const PAUSE: Duration = Duration::from_secs(1);

/// Listens for the peers of programs, which it serves one after the other.
#[derive(Debug)]
pub struct ProgramListener {
    listener: CmListener,
    counter: TcpAcceptor,
    devices: Devices,
}

impl ProgramListener {
    /// Listens at this address.
    ///
    /// # Errors
    ///
    /// [`ProgramError`] when no RDMA device has the address, or it is in use.
    pub fn open(at: &Address) -> Result<Self, ProgramError> {
        let devices = Devices::new(Wish::from_environment(None)?);
        let (listener, counter) = listen_both(&manager::resolve(at)?, &devices)?;
        Ok(Self { listener, counter, devices })
    }

    /// The addresses at which peers reach it.
    pub fn addresses(&self) -> Vec<Address> {
        self.listener.addresses()
    }

    /// Waits for a peer, and serves it to the end of its program.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Stopped`] when `stop` becomes readable; another when waiting for peers fails, which may pass. That is returned after
    /// a second, so that a caller that goes on does not try without pause.
    pub fn serve_next(&self, stop: BorrowedFd<'_>) -> Result<Served, ProgramError> {
        let arrived = self.next(stop).inspect_err(|error| {
            if !matches!(error, ProgramError::Stopped) {
                SystemClock.pause_until(stop, PAUSE);
            }
        })?;
        let client = arrived.client();
        let accepted = match arrived {
            Arrived::Managed(request) => managed::accept(request, &self.devices, stop),
            Arrived::Exchanged(socket) => exchanged::accept(socket, &self.devices, stop),
        };
        match accepted.and_then(serve) {
            Ok(Some(report)) => Ok(Served::Done(report)),
            Ok(None) => Ok(Served::Refused),
            Err(ProgramError::Stopped) => Err(ProgramError::Stopped),
            Err(error) => Ok(Served::Failed { client, error }),
        }
    }

    /// Waits for a peer.
    fn next(&self, stop: BorrowedFd<'_>) -> Result<Arrived, ProgramError> {
        loop {
            if is_readable(stop) {
                return Err(ProgramError::Stopped);
            }
            if let Some(request) = self.listener.next()? {
                return Ok(Arrived::Managed(request));
            }
            if let Some(socket) = self.counter.next()? {
                return Ok(Arrived::Exchanged(socket));
            }
            let handles = [self.listener.channel.as_fd(), self.counter.wait_handle(), stop];
            crate::fabric::wait(&handles, &[], Duration::MAX)?;
        }
    }
}

/// How a peer was served.
#[derive(Debug)]
#[non_exhaustive]
pub enum Served {
    /// To the end of its program.
    Done(ProgramReport),
    /// Not at all: the peer knows why.
    Refused,
    /// Not to the end of its program.
    Failed {
        /// Where its connection came from, unless it was gone already.
        client: Option<SocketAddr>,
        /// Why.
        error: ProgramError,
    },
}

/// How a peer has arrived.
enum Arrived {
    /// By a request of librdmacm.
    Managed(CmEvent),
    /// By a TCP connection.
    Exchanged(TcpStream),
}

impl Arrived {
    /// Where its connection comes from, unless it is gone already.
    fn client(&self) -> Option<SocketAddr> {
        match self {
            Self::Managed(request) => request.new_id.as_ref()?.peer_address(),
            Self::Exchanged(socket) => socket.peer_addr().ok(),
        }
    }
}

fn serve(
    accepted: Option<(ProgramPlan, Resources, Watch<'_>)>,
) -> Result<Option<ProgramReport>, ProgramError> {
    accepted.map(|(plan, resources, watch)| run::serve(&plan, resources, watch)).transpose()
}

/// Whether there is something to read now.
fn is_readable(handle: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let mut polled = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
}

/// Connects to the process that listens at this address, which may take so long to be there, or to have served others.
pub(super) fn dial<'a>(
    plan: &ProgramPlan,
    (address, connect): (&Address, RdmaConnect),
    wait: Duration,
    stop: BorrowedFd<'a>,
) -> Result<(Resources, Watch<'a>), ProgramError> {
    check_connect(plan, connect)?;
    let devices = Devices::new(Wish::from_environment(None)?);
    let to = Destination::resolve(address)?;
    let mut limit = TimeLimit::begin(saturate(wait));
    loop {
        let dialled = match connect {
            RdmaConnect::Manager => managed::dial(plan, &to, &devices, stop),
            RdmaConnect::Tcp | RdmaConnect::TcpUnreliable => exchanged::dial(plan, &to, &devices, stop),
        };
        match dialled {
            Err(ProgramError::Fabric(FabricError::NoSuchNode { .. } | FabricError::NoAnswer { .. }))
                if !limit.is_over(2 * limits::verbs::CONNECT_DEADLINE_NS) =>
            {
                SystemClock.pause_until(stop, TRY_AGAIN);
                if is_readable(stop) {
                    return Err(ProgramError::Stopped);
                }
            }
            Err(ProgramError::Fabric(FabricError::NoSuchNode { address })) => {
                return Err(ProgramError::NoListener { address });
            }
            Err(ProgramError::Fabric(FabricError::NoAnswer { address })) => {
                return Err(ProgramError::Unanswered { address });
            }
            dialled => return dialled,
        }
    }
}

/// Fails if queue pairs of this kind are not connected this way.
fn check_connect(plan: &ProgramPlan, connect: RdmaConnect) -> Result<(), ProgramError> {
    Err(ProgramError::unfit(match (plan.program.kind(), connect) {
        (QueuePairKind::Uc, RdmaConnect::Manager) => {
            "librdmacm connects reliable queue pairs only: use --rdma-connect tcp for an unreliable connection"
        }
        (QueuePairKind::Ud, RdmaConnect::Manager) => {
            "datagrams are addressed by an exchange over TCP here: use --rdma-connect tcp"
        }
        (QueuePairKind::Rc, RdmaConnect::TcpUnreliable) => {
            "this program needs a reliable connection: use --rdma-connect manager or tcp"
        }
        _ => return Ok(()),
    }))
}
