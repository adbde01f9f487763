use super::address::Address;
#[cfg(feature = "verbs")]
use super::verbs::VerbsError;
use crate::id::NodeName;
use crate::memory::{MemoryError, remedy};

/// What can go wrong with a provider.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No node of this name can be found.
    #[error("no node listens at {address}; {}", address.if_absent())]
    NoSuchNode {
        /// The address that was dialled.
        address: Address,
    },
    /// The node's process has died and left its entry.
    #[error("the node at {address} is gone: its process has ended")]
    NodeGone {
        /// The address that was dialled.
        address: Address,
    },
    /// Another process uses the name.
    #[error("a node named {node} already runs on this host (process {process}); choose another name")]
    NameInUse {
        /// The name.
        node: NodeName,
        /// Its process, 0 if that is not known.
        process: u32,
    },
    /// A process that lists nodes, and has been stopped, keeps the name locked.
    #[error(
        "the name {node} cannot be taken: a stopped process that lists nodes holds {path}; \
         resume or end it (`fuser {path}` names it)"
    )]
    NameLocked {
        /// The name.
        node: NodeName,
        /// The file that it has locked.
        path: String,
    },
    /// Another process, or this one, listens at the address.
    #[error("{address} is in use on this host; choose another port")]
    AddressInUse {
        /// The address.
        address: Address,
    },
    /// The node accepted no connection in time: its backlog is full.
    #[error(
        "timed out: {address} accepts no connections{}; it is stopped or overloaded: resume it (kill -CONT), or restart it",
        process.map_or_else(String::new, |process| format!(" (process {process})"))
    )]
    NotAccepting {
        /// The address that was dialled.
        address: Address,
        /// The node's process, if it is known.
        process: Option<u32>,
    },
    /// Too many descriptors from peers are waiting to be closed, because closing earlier ones blocks or no thread can be started.
    #[error(
        "limit of {max} peer descriptors waiting to be closed is reached: nothing is accepted until some are closed"
    )]
    CloseBacklogFull {
        /// The limit.
        max: usize,
    },
    /// Nobody answered at the address in time.
    #[error(
        "{address} does not answer: check that its host is up, and that nothing between filters the traffic"
    )]
    NoAnswer {
        /// The address that was dialled.
        address: Address,
    },
    /// This program was built without the provider for RDMA verbs.
    #[error(
        "{address} needs RDMA verbs, which this program was built without: build it with `--features verbs`"
    )]
    WithoutVerbs {
        /// The address that was asked for.
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
    /// A message was longer than the limit.
    #[error("a message of {len} bytes is over the limit of {max}")]
    MessageTooLong {
        /// Its length, as far as it is known.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A peer sent more regions with one message than allowed.
    #[error("the peer sent more than {max} region with one message", max = crate::limits::MESSAGE_REGIONS_MAX)]
    TooManyRegions,
    /// The connection is closed.
    #[error("the connection to the peer is closed")]
    Closed,
    /// A read of a peer's memory was not complete in time.
    #[error(
        "a read of the peer's memory was not complete in time: check the network to its host, or ask again"
    )]
    ReadOverdue,
    /// A region could not be used in the way that was asked for.
    #[error("the region is not registered for this use: {why}")]
    Access {
        /// What does not fit.
        why: &'static str,
    },
    /// Memory could not be had, or is unfit.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The directory of nodes cannot be used.
    #[error(
        "the runtime directory {path} cannot be used: {why}; set FABRICAST_RUNTIME_DIR to a directory of your own"
    )]
    RuntimeDirectory {
        /// Where it is.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Something is wrong with RDMA.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The operating system refused.
    #[error("cannot {what}: {source}{}", remedy(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl FabricError {
    /// The error of the operating system that gives no random number.
    pub(crate) fn no_random(source: std::io::Error) -> Self {
        Self::System { what: "draw a random number", source }
    }

    /// Whether the connection that it comes from is over: what failed will not succeed later.
    pub(crate) fn ends_connection(&self) -> bool {
        match self {
            Self::Closed => true,
            #[cfg(feature = "verbs")]
            Self::Verbs(error) => error.ends_connection(),
            _ => false,
        }
    }
}
