use std::net::IpAddr;

use rustix::io::Errno;

use super::address::Address;
use super::places::NoPlace;
#[cfg(feature = "verbs")]
use super::verbs::VerbsError;
use crate::id::NodeName;
use crate::memory::MemoryError;

/// An error of a provider.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No node listens at the address.
    #[error("no node listens at {address}; {}", address.if_absent())]
    NoSuchNode {
        /// The address that was dialled.
        address: Address,
    },
    /// The node's process has died and left its entry behind.
    #[error("the node at {address} is gone: its process has ended")]
    NodeGone {
        /// The address that was dialled.
        address: Address,
    },
    /// Another process uses the node's name.
    #[error("a node named {node} already runs on this host (process {process}); choose another name")]
    NameInUse {
        /// The name.
        node: NodeName,
        /// Its process, 0 if unknown.
        process: u32,
    },
    /// The process that took the name is gone, but the name is still locked: by a process that it has forked, which has its descriptors
    /// as long as it has not called `exec`.
    #[error(
        "the name {node} cannot be taken: process {process}, which took it, has ended or is in another container, and {path} is still \
         locked, as by a process that it has forked; end that (`fuser {path}` names it), or choose another name"
    )]
    NameHeld {
        /// The name.
        node: NodeName,
        /// The process that took it.
        process: u32,
        /// The locked file.
        path: String,
    },
    /// A stopped process that was listing nodes keeps the name locked.
    #[error(
        "the name {node} cannot be taken: a stopped process that lists nodes holds {path}; \
         resume or end it (`fuser {path}` names it)"
    )]
    NameLocked {
        /// The name.
        node: NodeName,
        /// The locked file.
        path: String,
    },
    /// The address is already in use on this host.
    #[error("{address} is in use on this host; choose another port")]
    AddressInUse {
        /// The address.
        address: Address,
    },
    /// The node did not accept the connection in time: its backlog is full.
    #[error(
        "timed out: {address} accepts no connections{}; it is stopped or overloaded: resume it (kill -CONT), or restart it",
        process.map_or_else(String::new, |process| format!(" (process {process})"))
    )]
    NotAccepting {
        /// The address that was dialled.
        address: Address,
        /// The node's process, if known.
        process: Option<u32>,
    },
    /// Too many descriptors from peers are waiting to be closed, because closing blocks or no thread can be started.
    #[error(
        "limit of {max} peer descriptors waiting to be closed is reached: nothing is accepted until some are closed"
    )]
    CloseBacklogFull {
        /// The limit.
        max: usize,
    },
    /// The address did not answer in time.
    #[error(
        "{address} does not answer: check that its host is up, that its program is not stopped, and that no firewall drops the traffic"
    )]
    NoAnswer {
        /// The address that was dialled.
        address: Address,
    },
    /// The node has no place for another session with this peer.
    #[error("the node has no place for another session with this peer")]
    NoPlace(#[from] NoPlace),
    /// The node on this host is not open to this user.
    #[error(
        "the node at {address} is open to its own user only, or to another group: have it opened to a group of this user with \
         NodeBuilder::shm_group (--shm-group)"
    )]
    NotOpen {
        /// The address that was dialled.
        address: Address,
    },
    /// The listening node rejected the request to connect, before anything was set up for a connection.
    #[error("the request to connect was rejected")]
    NotAdmitted(#[from] NotAdmitted),
    /// This build lacks the provider for RDMA verbs.
    #[error("{address} needs RDMA verbs, which this build lacks: build with `--features verbs`")]
    WithoutVerbs {
        /// The requested address.
        address: Address,
    },
    /// The provider cannot reach addresses of this kind.
    #[error("{address} cannot be reached by the {fabric} fabric")]
    Unreachable {
        /// The address.
        address: Address,
        /// The provider's name.
        fabric: &'static str,
    },
    /// A message exceeds the length limit.
    #[error("a message of {len} bytes exceeds the limit of {max}")]
    MessageTooLong {
        /// Its length, or a lower bound.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A peer sent too many regions with one message.
    #[error("the peer sent more than {max} region with one message", max = crate::limits::MESSAGE_REGIONS_MAX)]
    TooManyRegions,
    /// The connection is closed.
    #[error("the connection to the peer is closed")]
    Closed,
    /// A read of a peer's memory timed out.
    #[error("timed out reading the peer's memory: check the network to its host, or retry")]
    ReadOverdue,
    /// A region does not permit the requested use.
    #[error("the region does not permit this use: {why}")]
    Access {
        /// Why it does not.
        why: &'static str,
    },
    /// Memory could not be allocated, or is unsuitable.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The runtime directory is unusable.
    #[error(
        "the runtime directory {path} cannot be used: {why}; set FABRICAST_RUNTIME_DIR to a directory of your own"
    )]
    RuntimeDirectory {
        /// Its path.
        path: String,
        /// Why it is unusable.
        why: String,
    },
    /// A file of a node in the runtime directory cannot be used.
    #[error("cannot {what} {path}")]
    NodeFile {
        /// What was attempted.
        what: &'static str,
        /// Its path.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An error of RDMA.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The operating system refused.
    #[error("cannot {what}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

/// Why a node rejects a request to connect over RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// The request shows no key of the node's keyring that gives the right that it needs.
    #[error("{address} has shown no key of the listening node with its request")]
    Key {
        /// The address of the host that dialled, as the listening node sees it.
        address: IpAddr,
    },
    /// The host is in no network that the node allows.
    #[error(
        "{address} is in no network that the listening node allows: add one there with NodeBuilder::allow (--allow)"
    )]
    Address {
        /// The address of the host that dialled, as the listening node sees it.
        address: IpAddr,
    },
}

impl FabricError {
    /// What makes errors of the operating system's refusals to do this.
    pub(crate) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |refusal| Self::System { what, source: refusal.into() }
    }

    /// The error of a failed request for random bytes.
    pub(crate) fn no_random(source: std::io::Error) -> Self {
        Self::System { what: "draw a random number", source }
    }

    /// Whether this process or host is short of something. The peer is not at fault.
    pub(crate) fn is_shortage(&self) -> bool {
        match self {
            Self::System { source, .. }
            | Self::NodeFile { source, .. }
            | Self::Memory(MemoryError::System { source, .. }) => {
                let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
                Errno::from_io_error(source).is_some_and(|errno| shortages.contains(&errno))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(VerbsError::LockedMemory { .. } | VerbsError::NoMemory { .. }) => true,
            _ => false,
        }
    }

    /// Whether another attempt to accept would fail at once, too.
    pub(crate) fn stops_accepting(&self) -> bool {
        match self {
            Self::CloseBacklogFull { .. } => true,
            _ => self.is_shortage(),
        }
    }

    /// Whether the device of a listener was removed.
    #[cfg(feature = "verbs")]
    pub(super) fn is_not_listening(&self) -> bool {
        matches!(self, Self::Verbs(VerbsError::NotListening { .. }))
    }

    /// Whether the error ends the connection: no later call can succeed.
    pub(crate) fn ends_connection(&self) -> bool {
        match self {
            Self::Closed => true,
            #[cfg(feature = "verbs")]
            Self::Verbs(error) => error.ends_connection(),
            _ => false,
        }
    }
}
