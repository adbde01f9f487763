//! Connections between nodes, and the providers that make them.

use std::fmt::Debug;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::address::Address;
use super::arrival::ArrivalSource;
use super::channel::{Datagrams, Sent};
use super::error::FabricError;
use super::one_sided::{Offer, Placement};
use super::places::{NoPlace, Place};
use super::registration::{Exposure, Registration, RemoteKey};
use crate::id::NodeName;
use crate::memory::Region;

/// A provider: one transport between nodes.
///
/// Implementors: every method returns promptly; operations that wait for a peer are polled. Dropping an object releases
/// everything it holds, in the right order, and notifies the peer if the medium can.
pub(crate) trait Fabric: Debug + Send + Sync {
    /// Listens under this node's name. The name is released when the listeners are dropped or their process dies. Each listener accepts
    /// independently of the others.
    fn listen(&self, node: &NodeName) -> Result<Vec<Box<dyn Acceptor>>, FabricError>;

    /// Retries work that failed because no thread could be started. Called in every turn of a node.
    fn tend(&self) {}

    /// Starts connecting to a node. Messages may be sent at once; [`Connection::receive`] reports a failure. Blocks for up to
    /// `timeout` while the node's backlog is full; a node's own thread passes zero.
    fn dial(
        &self,
        address: &Address,
        intent: Intent,
        timeout: Duration,
    ) -> Result<Box<dyn Connection>, FabricError>;

    /// Registers a region so that it can be sent to peers.
    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError>;

    /// The nodes that can be found without being told their address, the dead ones that left a trace included.
    fn nodes(&self) -> Result<Vec<NodeListing>, FabricError> {
        Ok(Vec::new())
    }
}

/// Accepts the connections that peers dial.
pub(crate) trait Acceptor: Debug + Send {
    /// Returns the next connection, if one is waiting. An error that does not [stop accepting](FabricError::stops_accepting) is about
    /// one peer, which was turned away; `Closed` if that needs no report.
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError>;

    /// Returns the addresses to dial.
    fn addresses(&self) -> Vec<Address>;

    /// When [`Self::accept`] is to be called although the handle is not readable.
    fn due_ns(&self) -> Option<u64> {
        None
    }

    /// Returns what has happened to the listener itself, once.
    fn take_news(&mut self) -> Option<ListenerNews> {
        None
    }

    /// Returns a handle that is readable while a connection is waiting.
    fn wait_handle(&self) -> BorrowedFd<'_>;
}

/// What has happened to a listener.
#[derive(Debug)]
#[cfg_attr(not(any(test, feature = "verbs")), expect(dead_code, reason = "only devices come and go"))]
pub(crate) enum ListenerNews {
    /// No peer reaches it any more.
    Lost {
        /// Where it has listened.
        address: Address,
        /// Why.
        why: FabricError,
    },
    /// Peers reach it again.
    Back {
        /// Where it listens.
        address: Address,
    },
}

/// One end of a session with a peer.
pub(crate) trait Connection: Debug + Send {
    /// Sends one message of 1 to [`crate::limits::CONTROL_MESSAGE_LEN_MAX`] bytes, optionally with a region.
    fn send(&mut self, message: &[u8], region: Option<&Registration>) -> Result<Sent, FabricError>;

    /// Sends one message with the peer's end of a pair of sockets ([`super::WakeSocket`]); requires
    /// [`Capabilities::shares_memory`].
    fn send_socket(&mut self, message: &[u8], socket: BorrowedFd<'_>) -> Result<Sent, FabricError> {
        let _ = (message, socket);
        Err(FabricError::Access { why: "this medium carries no sockets" })
    }

    /// Receives the next message, if any. A message longer than `into` is an error and is lost, as are regions
    /// beyond [`crate::limits::MESSAGE_REGIONS_MAX`].
    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError>;

    /// Until when [`Self::receive`] returns nothing although a message is there, because this process is short of what it carries, or
    /// because an earlier message is still being received: the handle stays readable meanwhile.
    fn held_back_until_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the connection's capabilities, which are final once the peer has sent a message.
    fn capabilities(&self) -> Capabilities;

    /// Returns what this connection connects, in bytes that are the same at both ends, and differ from those of a connection with
    /// somebody else as far as the medium can tell: one who passes messages on from one connection to another has other bytes on
    /// either. Known once the peer has sent a message.
    fn binding(&self) -> Result<Vec<u8>, FabricError> {
        Err(FabricError::Access { why: "this medium does not say what it connects" })
    }

    /// Returns where the peer is. Known once it has sent a message.
    fn peer_address(&self) -> PeerAddress {
        PeerAddress::Unknown
    }

    /// Returns the peer's place at this node, if it dialled and the medium counts places. An error if there was none: the peer is to be
    /// told so, and not to be served.
    fn place(&self) -> Result<Option<&Place>, NoPlace> {
        Ok(None)
    }

    /// Prepares a region to be sent over this connection, and to be the source of writes to regions received over it, so that
    /// errors surface before either starts.
    fn prepare(&self, registration: &Arc<Registration>) -> Result<Prepared, FabricError>;

    /// Revokes the access that [`Self::send`] gave the peer to this region, where the medium can: later accesses fail. One
    /// call revokes a region that was sent several times.
    fn withdraw(&mut self, registration: &Registration);

    /// Returns the datagrams between the two ends. `None` if the medium has none.
    fn datagrams(&self) -> Option<&dyn Datagrams>;

    /// Returns the wake-ups that come with the peer's writes. `None` if writes wake nobody.
    fn arrivals(&self) -> Option<Arc<dyn ArrivalSource>> {
        None
    }

    /// Returns a handle that becomes readable when a message is waiting or the peer is gone, and readable or writable when
    /// sending can resume after [`Sent::Full`]: receive first, then send.
    fn wait_handle(&self) -> BorrowedFd<'_>;
}

/// Where a peer is, as the operating system or the network shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerAddress {
    /// On this host.
    Local {
        /// The effective user of its process when it connected or listened.
        user: u32,
        /// The effective group.
        group: u32,
    },
    /// At this address of a network.
    Network(IpAddr),
    /// Not known.
    Unknown,
}

/// The purpose of dialling a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// To receive regions and read them, and to expose regions to the peer.
    Read,
    /// To write regions that the node exposes. A node may refuse to expose regions for writing to a peer that dialled to read,
    /// where other peers could reach them too.
    Write,
}

/// The capabilities of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// How writes become visible in regions sent over it, in either direction.
    pub(crate) placement: Placement,
    /// Both ends map the regions sent over it: each sees the other's stores.
    pub(crate) shares_memory: bool,
    /// The peer dialled with [`Intent::Write`], so regions are exposed to it for writing only. False where the intent makes no
    /// difference.
    pub(crate) is_dialled_to_write: bool,
    /// A region that was withdrawn is unreadable for the peer at once, although others of the connection go on.
    pub(crate) withdraws_one: bool,
    /// It is not established yet. A peer may make several attempts to connect, and drop all but one of them in this state.
    pub(crate) is_connecting: bool,
}

/// The result of [`Connection::prepare`].
pub(crate) enum Prepared {
    /// The region can be sent. The key is the peer's, shown by inspectors.
    Done(RemoteKey),
    /// Run this first, off the node's thread because registering memory may take long. Then prepare the region
    /// again.
    #[cfg_attr(not(any(test, feature = "verbs")), expect(dead_code, reason = "only devices need it"))]
    Work(Box<dyn FnOnce() -> Result<(), FabricError> + Send>),
}

/// The result of [`Connection::receive`].
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, with its region if it carried one.
    Message {
        /// Its length in bytes.
        len: usize,
        /// The region.
        offer: Option<Box<dyn Offer>>,
    },
    /// No message yet.
    Nothing,
    /// The peer closed the connection or died.
    Closed,
}

/// A node of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeListing {
    /// Its name.
    pub node: NodeName,
    /// Its process.
    pub process: u32,
    /// When it started, nanoseconds since the Unix epoch.
    pub started_ns: u64,
    /// Whether its process still runs.
    pub alive: bool,
}
