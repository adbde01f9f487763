//! Connections between nodes, and what makes them.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::address::Address;
use super::channel::{Datagrams, Sent};
use super::error::FabricError;
use super::one_sided::{Offer, Placement};
use super::registration::{Exposure, Registration, RemoteKey};
use crate::id::NodeName;
use crate::memory::Region;

/// A provider: one way of moving bytes between nodes.
///
/// Implementors: every method returns promptly; what takes a peer's answer is polled. Dropping an object releases
/// everything it holds, in the right order, and tells the peer as far as the medium can.
pub(crate) trait Fabric: Debug + Send + Sync {
    /// Listens under this node's name. The name is free again when the listener is dropped, or its process dies.
    fn listen(&self, node: &NodeName) -> Result<Box<dyn Acceptor>, FabricError>;

    /// Does what could not be done before for want of a thread. Called in every turn of a node.
    fn tend(&self) {}

    /// Begins to connect to a node. Messages may be sent at once; [`Connection::receive`] reports a failure. Blocks for up to
    /// `timeout` while the node's backlog is full, which only a thread other than a node's may ask for.
    fn dial(
        &self,
        address: &Address,
        intent: Intent,
        timeout: Duration,
    ) -> Result<Box<dyn Connection>, FabricError>;

    /// Registers a region, so that it can be sent to peers.
    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError>;

    /// The nodes that can be found without being told their address, the dead ones that left a trace included.
    fn nodes(&self) -> Result<Vec<NodeEntry>, FabricError>;
}

/// Accepts the connections that peers dial.
pub(crate) trait Acceptor: Debug + Send {
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

    /// What it is capable of. Settled once the peer has sent a message.
    fn capabilities(&self) -> Capabilities;

    /// Sees to it that a region can be sent over this connection, and be the source of writes to what came over it: an
    /// error is better told before either is begun.
    fn prepare(&self, registration: &Arc<Registration>) -> Result<Prepared, FabricError>;

    /// Takes back what the peer was allowed by [`Self::send`] with this region, as far as the medium can: who uses it all
    /// the same fails. A region that was sent several times is taken back at once.
    fn withdraw(&mut self, registration: &Registration);

    /// The datagrams that go between its two ends. `None` where the medium has none.
    fn datagrams(&self) -> Option<&dyn Datagrams>;

    /// Becomes readable when a message is waiting or the peer is gone, and readable or writable when there is room again
    /// after [`Sent::Full`]: receive, and then send. `None` in a simulation.
    fn wait_handle(&self) -> Option<BorrowedFd<'_>>;
}

/// What a connection is dialled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// To be sent regions and to read them; and to lend regions of its own.
    Read,
    /// To write regions that the node lends. A node may lend none to a peer that dialled to read, where that would put them
    /// within the reach of others.
    Write,
}

/// What a connection is capable of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// How writes appear in regions that came over it, or went over it.
    pub(crate) placement: Placement,
    /// Both ends map the regions that go over it: what one end stores is there for the other.
    pub(crate) shares_memory: bool,
    /// The peer has dialled with [`Intent::Write`]: it is lent regions to be written, and nothing to be read. False where
    /// that makes no difference.
    pub(crate) is_dialled_to_write: bool,
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
