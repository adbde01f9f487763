//! The seam to whatever moves bytes between nodes.
//!
//! A provider implements the traits of this file; nothing above knows which one it talks to. It gives
//!
//! - **connections**: reliable, ordered, whole messages of bounded length between two nodes, each of which may
//!   carry a registered region to the peer. A region is a capability: whoever was sent it may use it, in the way
//!   it was registered for, and nobody else.
//! - **one-sided access**: [`RemoteRead`] brings ranges of a peer's region here, [`RemoteWrite`] writes ranges of
//!   a local region to a peer's. The peer's processor has no part in either.
//!
//! The fabric moves bytes and never looks at them. Nothing here blocks, except [`Fabric::dial_patiently`]: calls that cannot go
//! on say so, and every wait is a file descriptor (or, in a simulation, a turn of its clock).

mod address;
#[cfg(any(test, feature = "verbs"))]
mod bounds;
mod channel;
mod poller;
mod registration;
mod several;
pub(crate) mod shm;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
mod wait;
mod wake_queue;
mod worker;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use address::Group;
pub use address::{Address, AddressError, RdmaConnect, Target};
#[cfg(any(test, feature = "verbs"))]
pub(crate) use bounds::{check_bounds, check_writes};
#[cfg(any(test, feature = "verbs"))]
pub(crate) use channel::Datagram;
pub(crate) use channel::{ChannelReceiver, ChannelSender, DatagramReach, UnicastSender};
pub(crate) use poller::{Interest, Poller};
pub(crate) use registration::{Registered, Registration, RemoteKey};
pub(crate) use several::SeveralFabrics;
pub(crate) use wait::{Waker, finish, read_now, wait};
pub(crate) use wake_queue::{KeyedWaker, WakeQueue};
pub(crate) use worker::Worker;

use crate::id::NodeName;
pub(crate) use crate::memory::ByteRange;
use crate::memory::{MemoryError, Region, remedy};

/// A provider: one way of moving bytes between nodes.
///
/// Implementors: every method returns promptly; what takes a peer's answer is polled. Dropping an object releases
/// everything it holds, in the right order, and tells the peer as far as the medium can.
pub(crate) trait Fabric: Debug + Send + Sync {
    /// Listens under this node's name. The name is free again when the listener is dropped, or its process dies.
    fn listen(&self, node: &NodeName) -> Result<Box<dyn Listener>, FabricError>;

    /// Does what could not be done before for want of a thread. Called in every turn of a node.
    fn tend(&self) {}

    /// Begins to connect to a node. Messages may be sent at once; [`Connection::receive`] tells when it failed.
    fn dial(&self, address: &Address) -> Result<Box<dyn Connection>, FabricError>;

    /// As [`Self::dial`], to write regions that the node lends. A node may lend none to be written to who has dialled it in
    /// the other way, where that would put them within the reach of others.
    fn dial_to_write(&self, address: &Address) -> Result<Box<dyn Connection>, FabricError> {
        self.dial(address)
    }

    /// As [`Self::dial`], or [`Self::dial_to_write`] if it `writes`, and waits for up to `patience` while the node's
    /// backlog is full. Must not be called on a node's thread.
    fn dial_patiently(
        &self,
        address: &Address,
        writes: bool,
        patience: Duration,
    ) -> Result<Box<dyn Connection>, FabricError> {
        let _ = patience;
        if writes { self.dial_to_write(address) } else { self.dial(address) }
    }

    /// Registers a region, so that it can be sent to peers.
    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError>;

    /// The nodes that can be found without being told their address, the dead ones that left a trace included.
    fn nodes(&self) -> Result<Vec<NodeEntry>, FabricError>;
}

/// Accepts the connections that peers dial.
pub(crate) trait Listener: Debug + Send {
    /// The next connection, if one is waiting.
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError>;

    /// Where it can be dialled.
    fn addresses(&self) -> Vec<Address>;

    /// Becomes readable when a connection is waiting. `None` in a simulation.
    fn wait_handle(&self) -> Option<BorrowedFd<'_>>;
}

/// One end of a session with a peer.
pub(crate) trait Connection: Debug + Send {
    /// Sends one message of at least 1 and at most [`crate::limits::CONTROL_MESSAGE_LEN_MAX`] bytes, with a region if
    /// there is one.
    fn send(&mut self, message: &[u8], region: Option<&Registration>) -> Result<Sent, FabricError>;

    /// The next message, if there is one. A message longer than `into` is an error and is lost; so are regions
    /// beyond [`crate::limits::MESSAGE_REGIONS_MAX`].
    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError>;

    /// Whether the words of one write to a region that came over this connection, or went over it, become visible in
    /// order: the last one first, the first one last. Otherwise only whole writes do.
    fn writes_words_in_order(&self) -> bool;

    /// Whether a write to a region that came over this connection, or went over it, may never arrive.
    fn writes_may_be_lost(&self) -> bool {
        false
    }

    /// Whether the peer has dialled by [`Fabric::dial_to_write`]: it is lent regions to be written, and nothing to be read.
    /// False where that makes no difference.
    fn is_dialled_to_write(&self) -> bool {
        false
    }

    /// Sees to it that a region can be sent over this connection, and be the source of writes to what came over it: an
    /// error is better told before either is begun.
    fn prepare(&self, registration: &Arc<Registration>) -> Result<Prepared, FabricError>;

    /// Takes back what the peer was allowed by [`Self::send`] with this region, as far as the medium can: who uses it all
    /// the same fails. A region that was sent several times is taken back at once.
    fn withdraw(&mut self, registration: &Registration);

    /// Whether regions that go over it are mapped by both ends, so that what one end stores is there for the other.
    fn shares_memory(&self) -> bool {
        false
    }

    /// The sending end of a channel that the peer can join. The same one for all connections over the same network of this
    /// host. `None` where the medium has no datagrams.
    fn channel_sender(&self) -> Result<Option<Arc<dyn ChannelSender>>, FabricError> {
        Ok(None)
    }

    /// The way from that channel to one receiver at the other end, by its [`ChannelReceiver::return_ticket`]. The ticket comes
    /// from the peer, and may be anything: one that names another host than the peer's is an error, so that no peer can have
    /// datagrams sent to somebody else. May take as long as the network takes to find the host.
    fn unicast_sender(&self, return_ticket: &[u8]) -> Result<Arc<dyn UnicastSender>, FabricError> {
        let _ = return_ticket;
        Err(FabricError::Access { why: "this medium has no channels" })
    }

    /// Begins to join a channel of the peer's, by its [`ChannelSender::ticket`], which comes from the peer and may be
    /// anything. Datagrams come as soon as the network lets them.
    fn join_channel(&self, ticket: &[u8]) -> Result<Box<dyn ChannelReceiver>, FabricError> {
        let _ = ticket;
        Err(FabricError::Access { why: "this medium has no channels" })
    }

    /// Becomes readable when a message is waiting or the peer is gone, and readable or writable when there is room again
    /// after [`Sent::Full`]: receive, and then send. `None` in a simulation.
    fn wait_handle(&self) -> Option<BorrowedFd<'_>>;
}

/// A region that the peer sent, not opened yet. Dropping it gives it up.
pub(crate) trait Offer: Debug + Send {
    /// Opens it for one-sided reads. It must have at least `len_min` bytes.
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError>;

    /// Maps it in place, for memory that both ends write; where [`Connection::shares_memory`].
    fn open_shared(self: Box<Self>, len_min: usize) -> Result<Arc<Region>, FabricError> {
        let _ = len_min;
        Err(FabricError::Access { why: "this medium does not share memory" })
    }

    /// Opens it for one-sided writes. It must have `len` bytes, or as many more as fill the last page.
    fn open_write(self: Box<Self>, len: usize) -> Result<Box<dyn RemoteWrite>, FabricError>;
}

/// A peer's region, open for one-sided reads.
pub(crate) trait RemoteRead: Debug + Send {
    /// Where what was read appears, at the same offsets as at the peer.
    fn mirror(&self) -> &Arc<Region>;

    /// Whether the mirror is the peer's memory itself, always up to date, so that [`Self::post`] has nothing to do.
    fn is_mapped(&self) -> bool;

    /// Begins to bring these ranges, in no promised order and not at one moment. Only one batch at a time.
    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError>;

    /// Whether the batch is complete.
    fn poll(&mut self) -> Result<Completion, FabricError>;

    /// Becomes readable when the batch is complete, or may have become so: poll then. `None` where nothing can be
    /// waited for, or nothing is under way.
    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError>;
}

/// A peer's region, open for one-sided writes.
pub(crate) trait RemoteWrite: Debug + Send {
    /// Begins these writes from a registered region to the same offsets at the peer, each one placed after the one
    /// before it. Their source must not change until the batch is complete. Another batch may be posted before:
    /// batches are placed, and complete, in the order in which they were posted. [`Completion::Done`] when this one is
    /// complete.
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError>;

    /// How many batches are not complete yet, the last ones posted.
    fn in_flight(&mut self) -> Result<usize, FabricError>;

    /// A word of the peer's region, at an offset that is a multiple of 8: asks for it if that is not under way, and gives it when
    /// it has come. The region must be registered for [`Exposure::Exchange`]. An error where [`Self::writes_may_be_lost`].
    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError>;

    /// Whether the words of one write become visible in order, as [`Connection::writes_words_in_order`] says.
    fn writes_words_in_order(&self) -> bool;

    /// Whether a write may be complete and never arrive, and those behind it do.
    fn writes_may_be_lost(&self) -> bool;

    /// What ends this access from another thread.
    fn revocation(&self) -> Arc<dyn Revocation>;
}

/// Ends one-sided writes, whoever holds them: the peer wants its memory back.
pub(crate) trait Revocation: Debug + Send + Sync {
    /// Lets no further batch begin, and no word be asked for. [`Completion::Done`] when nothing is under way any more either, so
    /// that the peer may withdraw its region; otherwise call it again.
    fn revoke(&self) -> Completion;
}

/// The revocation of a medium where a region stays usable for whoever has opened it.
#[derive(Debug)]
pub(crate) struct NothingToRevoke;

impl Revocation for NothingToRevoke {
    fn revoke(&self) -> Completion {
        Completion::Done
    }
}

/// How a registered region may be used by the peers it is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// They may read it.
    Read,
    /// They may write it.
    Write,
    /// They may write it, and fetch words from it.
    Exchange,
}

/// One write of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// A range of the source, to the same offset. Its first word is placed last where the medium allows it.
    Range(ByteRange),
    /// A line of its own, at this offset. Its first word is placed last where the medium allows it.
    Line {
        /// Where, bytes from the start of the region; a multiple of 8.
        offset: usize,
        /// What.
        words: [u64; 8],
    },
    /// A word of its own, at this offset.
    Word {
        /// Where, bytes from the start of the region; a multiple of 8.
        offset: usize,
        /// What.
        word: u64,
    },
}

/// Whether one-sided operations are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// They are.
    Done,
    /// Not yet: poll.
    Pending,
}

/// What became of a message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    Done,
    /// The peer takes no more at the moment; nothing was sent.
    Full,
}

/// What came of [`Connection::prepare`].
pub(crate) enum Prepared {
    /// The region can be sent. What the peer gets to know of it, for an inspector to show.
    Done(RemoteKey),
    /// This is to be done first, which may take as long as there is memory to be registered: on a thread that nobody waits for. Then
    /// prepare the region again.
    #[cfg_attr(not(any(test, feature = "verbs")), expect(dead_code, reason = "only devices need it"))]
    Work(Box<dyn FnOnce() -> Result<(), FabricError> + Send>),
}

impl Debug for Prepared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done(remote_key) => out.debug_tuple("Done").field(remote_key).finish(),
            Self::Work(_) => out.write_str("Work"),
        }
    }
}

/// What a connection had.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message of this length, and the region that came with it.
    Message {
        /// Bytes.
        len: usize,
        /// The region.
        offer: Option<Box<dyn Offer>>,
    },
    /// No message yet.
    Nothing,
    /// The peer closed the connection, or died.
    Closed,
}

/// A node that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeEntry {
    /// Its name.
    pub(crate) node: NodeName,
    /// Its process.
    pub(crate) process: u32,
    /// When it started, ns since the Unix epoch.
    pub(crate) started_ns: u64,
    /// Whether the process still runs.
    pub(crate) alive: bool,
}

/// What can go wrong with a provider.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No node of this name can be found.
    #[error("no node listens at {address}; `fabricast list` shows the nodes of this host")]
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
    Verbs(#[from] verbs::VerbsError),
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
