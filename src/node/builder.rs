use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use super::Node;
use super::core::NodeCore;
use super::driver::{Driver, DriverThread};
use super::shared::Shared;
use crate::clock::{Clock, SystemClock};
use crate::control::{Identity, Text};
use crate::event::{EventSink, TracingSink};
use crate::fabric::shm::ShmFabric;
use crate::fabric::shm::directory::RuntimeDirectory;
#[cfg(feature = "verbs")]
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{
    Acceptor, Address, AddressError, Fabric, FabricError, Group, RdmaConnect, SeveralFabrics,
};
use crate::id::{NameError, NodeName};

/// Sets up a [`Node`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct NodeBuilder {
    name: Option<NodeName>,
    runtime_dir: Option<PathBuf>,
    events: Arc<dyn EventSink>,
    rdma: Option<Address>,
    rdma_connect: RdmaConnect,
    notice_group: Option<Group>,
}

/// Why a node could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The fabric refused: the name is taken, the runtime directory unusable.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The name is malformed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The node is to listen at an address, and has no name.
    #[error("a node without a name does not listen: give it one with NodeBuilder::name to serve {address}")]
    Unnamed {
        /// The address.
        address: Address,
    },
    /// The operating system gave no thread or no random number.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl NodeBuilder {
    pub(super) fn new() -> Self {
        Self {
            name: None,
            runtime_dir: None,
            events: Arc::new(TracingSink),
            rdma: None,
            rdma_connect: RdmaConnect::default(),
            notice_group: None,
        }
    }

    /// Gives the node a name, under which others find it. One process of a user and host may have it at a time.
    ///
    /// # Errors
    ///
    /// [`NameError`] when it is not one that a node can have.
    pub fn name(self, name: &str) -> Result<Self, NameError> {
        Ok(Self { name: Some(name.parse()?), ..self })
    }

    /// Where the nodes of this user find each other. By default `FABRICAST_RUNTIME_DIR` of the environment, or
    /// `fabricast` in `XDG_RUNTIME_DIR`, or `/tmp/fabricast-UID`. A node with a name makes it when it is missing. It must belong
    /// to this user, and no one else may write to it.
    pub fn runtime_dir(self, path: impl Into<PathBuf>) -> Self {
        Self { runtime_dir: Some(path.into()), ..self }
    }

    /// Serves the node's topics over RDMA verbs too, from the same memory: listens at `rdma://HOST[:PORT]`, where HOST is
    /// an address of this host, or `0.0.0.0` for all of them, and port 0 chooses a free one
    /// ([`Node::addresses`] tells which). The node needs a name, too. Needs the cargo feature `verbs`.
    ///
    /// # Errors
    ///
    /// [`AddressError`] when it is not such an address.
    pub fn rdma(self, address: &str) -> Result<Self, AddressError> {
        let rdma: Address = address.parse()?;
        match rdma.scheme() {
            "rdma" => Ok(Self { rdma: Some(rdma), ..self }),
            _ => Err(AddressError::Host { text: address.to_owned() }),
        }
    }

    /// How this node connects when it dials an `rdma://` address; by default [`RdmaConnect::Manager`].
    pub fn rdma_connect(self, rdma_connect: RdmaConnect) -> Self {
        Self { rdma_connect, ..self }
    }

    /// The multicast group that the notices of this node's topics go to over RDMA. By default one by chance of
    /// `239.255.1.0` to `239.255.254.255` for each network that it is dialled over; a fixed one is for networks whose switches
    /// or firewalls are told which groups there are. Nodes may share a group: each receives the datagrams of the others too, and
    /// passes them over. Subscribers are told the group by the publisher's node. Without the cargo feature `verbs` nothing is
    /// sent by multicast, and this has no effect.
    ///
    /// # Errors
    ///
    /// [`AddressError::Group`] when it is not a group that anybody may send to.
    pub fn notice_group(self, group: Ipv4Addr) -> Result<Self, AddressError> {
        Ok(Self { notice_group: Some(Group::new(group)?), ..self })
    }

    /// Where the node's events go. By default they become `tracing` records of the target `fabricast`.
    pub fn events(self, events: Arc<dyn EventSink>) -> Self {
        Self { events, ..self }
    }

    /// Opens the node: takes its name, listens, and starts its thread. Allocates.
    ///
    /// Blocks for up to 40 ms when the lock on its name is held: somebody who lists nodes holds it for an instant, a
    /// node of that name for as long as it lives.
    ///
    /// # Errors
    ///
    /// [`NodeError`] when the name is taken, the runtime directory cannot be used, no thread can be had, or a node without
    /// a name is to listen at an `rdma://` address.
    pub fn open(self) -> Result<Node, NodeError> {
        if let (None, Some(address)) = (&self.name, &self.rdma) {
            return Err(NodeError::Unnamed { address: address.clone() });
        }
        let directory = match &self.runtime_dir {
            Some(path) => RuntimeDirectory::open(path)?,
            None => RuntimeDirectory::from_environment()?,
        };
        let mut members: Vec<(Arc<dyn Fabric>, bool)> = vec![(Arc::new(ShmFabric::new(directory)), true)];
        let listens = self.rdma.is_some();
        let fabric = verbs(self.rdma, self.rdma_connect, self.notice_group)?;
        members.extend(fabric.map(|fabric| (fabric, listens)));
        let fabric: Arc<dyn Fabric> = Arc::new(SeveralFabrics::new(members));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (shared, driver) = assemble(self.name, fabric, clock, self.events)?;
        let thread = DriverThread::start(driver);
        let thread =
            thread.map_err(|source| NodeError::System { what: "start the node's thread", source })?;
        Ok(Node::new(shared, Some(thread)))
    }
}

/// The provider for RDMA verbs.
#[cfg(feature = "verbs")]
fn verbs(
    listen: Option<Address>,
    connect: RdmaConnect,
    notice_group: Option<Group>,
) -> Result<Option<Arc<dyn Fabric>>, FabricError> {
    Ok(Some(Arc::new(VerbsFabric::new(VerbsConfig { listen, connect, notice_group })?)))
}

/// Nothing: this program was built without it.
#[cfg(not(feature = "verbs"))]
fn verbs(
    listen: Option<Address>,
    _connect: RdmaConnect,
    _notice_group: Option<Group>,
) -> Result<Option<Arc<dyn Fabric>>, FabricError> {
    listen.map_or(Ok(None), |address| Err(FabricError::WithoutVerbs { address }))
}

/// A node over any fabric and clock, and the driver that somebody has to run.
pub(super) fn assemble(
    name: Option<NodeName>,
    fabric: Arc<dyn Fabric>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn EventSink>,
) -> Result<(Shared, Driver), NodeError> {
    let listener: Option<Box<dyn Acceptor>> = match &name {
        Some(name) => Some(fabric.listen(name)?),
        None => None,
    };
    let random = |source| NodeError::System { what: "draw a random number", source };
    let node = match name {
        Some(name) => name,
        None => format!("anonymous-{:016x}", crate::random::number().map_err(random)?).parse()?,
    };
    let host = rustix::system::uname();
    let identity = Identity {
        node,
        process: std::process::id(),
        host: Text::cut(&host.nodename().to_string_lossy()),
        started_ns: clock.realtime_ns(),
    };
    let addresses = listener.as_ref().map(|listener| listener.addresses()).unwrap_or_default();
    let shared = Shared::new(NodeCore::new(fabric, clock, events, identity, addresses)?);
    let driver = Driver::new(&shared, listener)?;
    Ok((shared, driver))
}
