//! Why a program fails.

use super::super::error::{Failure, VerbsError};
use super::super::sys::{SysError, WorkCompletion};
use crate::fabric::{Address, FabricError};

/// Why a program did not run, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The plan does not fit the program or the device.
    #[error("{why}")]
    Unfit {
        /// What does not fit, and what to do.
        why: String,
    },
    /// Nothing listens at the address.
    #[error("nothing listens at {address}: start `fabricast perf ping-pong --serve --rdma ADDRESS` there")]
    NoListener {
        /// The address.
        address: Address,
    },
    /// The process at the address does not answer.
    #[error(
        "{address} does not answer: it may be serving another client, one at a time, so use a longer --wait; or its host is \
         down, or a firewall drops the traffic"
    )]
    Unanswered {
        /// The address.
        address: Address,
    },
    /// What is at the other end is not a program of this version.
    #[error(
        "the process at the other end is not a program of this version: only `fabricast perf ping-pong` and `perf blast` are"
    )]
    NotAProgram,
    /// The peer refused the program.
    #[error("the other process refused the program: {why}")]
    Refused {
        /// Its reason.
        why: &'static str,
    },
    /// The peer has ended the connection.
    #[error("the other process is gone: it has ended, or has ended the connection")]
    Gone,
    /// The device of the peer acknowledges nothing.
    #[error("the other process is gone: its host does not answer")]
    HostSilent,
    /// The peer is connected, and does not go on.
    #[error("the other process has stopped answering")]
    NoAnswer,
    /// The run was stopped from outside.
    #[error("the run was stopped")]
    Stopped,
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl ProgramError {
    /// A plan that does not fit for this reason.
    pub(super) fn unfit(why: impl Into<String>) -> Self {
        Self::Unfit { why: why.into() }
    }

    /// The failure that this completion reports.
    #[cold]
    pub(super) fn of(completion: &WorkCompletion) -> Self {
        match Failure::of(completion).error() {
            // Flushed: the connection has ended.
            None => Self::Gone,
            Some(VerbsError::NoAnswer) => Self::HostSilent,
            Some(error) => FabricError::Verbs(error).into(),
        }
    }
}

impl From<SysError> for ProgramError {
    fn from(error: SysError) -> Self {
        FabricError::from(error).into()
    }
}

impl From<VerbsError> for ProgramError {
    fn from(error: VerbsError) -> Self {
        FabricError::Verbs(error).into()
    }
}
