use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use super::Node;
use super::admission::{Admission, Guard};
use super::core::NodeCore;
use super::driver::{Driver, DriverThread};
use super::event_log::TracingSink;
use super::peer_limits::{Affordable, PeerLimits};
#[cfg(feature = "verbs")]
use super::requests::NodePolicy;
use super::shared::Shared;
use crate::clock::{Clock, SystemClock};
use crate::control::{Identity, Text};
use crate::event::EventSink;
#[cfg(feature = "verbs")]
use crate::fabric::ConnectPolicy;
use crate::fabric::shm::ShmFabric;
use crate::fabric::shm::directory::RuntimeDirectory;
#[cfg(feature = "verbs")]
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{
    Address, AddressError, Fabric, FabricError, Group, Network, RdmaConnect, SeveralFabrics,
};
use crate::id::{NameError, NodeName};
use crate::keyring::Keyring;

/// Sets up a [`Node`].
///
/// Send and Sync.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct NodeBuilder {
    name: Option<NodeName>,
    runtime_dir: Option<PathBuf>,
    events: Arc<dyn EventSink>,
    rdma: Option<Address>,
    rdma_connect: RdmaConnect,
    notice_group: Option<Group>,
    guard: Guard,
    allowed: Vec<Network>,
    shm_group: Option<u32>,
    is_insecure: bool,
}

/// Why a node could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The fabric refused: for example the name is in use, or the runtime directory is unusable.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The name is malformed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The node has an address to listen at but no name.
    #[error("a node without a name cannot listen at {address}: name it with NodeBuilder::name")]
    Unnamed {
        /// The address.
        address: Address,
    },
    /// The node listens beyond its host, and everyone may connect.
    #[error(
        "a node that listens at {address} admits anyone on that network: give it a keyring with NodeBuilder::keys, \
         or say that this is meant with NodeBuilder::insecure"
    )]
    Unprotected {
        /// The address.
        address: Address,
    },
    /// The node has a keyring, and is to be insecure.
    #[error(
        "a node with a keyring admits no peer without a key: give it a keyring, or open it as insecure, not both"
    )]
    Contradiction,
    /// The operating system provided no thread or no random number.
    #[error("cannot {what}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

impl Node {
    /// A builder with the defaults of every setting.
    pub fn builder() -> NodeBuilder {
        NodeBuilder {
            name: None,
            runtime_dir: None,
            events: Arc::new(TracingSink::default()),
            rdma: None,
            rdma_connect: RdmaConnect::default(),
            notice_group: None,
            guard: Guard::default(),
            allowed: Vec::new(),
            shm_group: None,
            is_insecure: false,
        }
    }
}

impl NodeBuilder {
    /// Names the node, so that other nodes find it. Only one process of a user and host may have a name at a time.
    ///
    /// # Errors
    ///
    /// [`NameError`] when `name` is not a valid node name.
    pub fn name(self, name: &str) -> Result<Self, NameError> {
        Ok(Self { name: Some(name.parse()?), ..self })
    }

    /// Sets the directory in which the nodes of this user find each other. The default is the environment's
    /// `FABRICAST_RUNTIME_DIR`, else `fabricast` in `XDG_RUNTIME_DIR`, else `/tmp/fabricast-UID`. A node with a name creates it
    /// if it is missing. It must belong to this user and be writable only by this user.
    pub fn runtime_dir(self, path: impl Into<PathBuf>) -> Self {
        Self { runtime_dir: Some(path.into()), ..self }
    }

    /// Serves the node's topics over RDMA verbs as well, from the same memory: listens at `rdma://HOST[:PORT]`. HOST is an
    /// address of this host, or `0.0.0.0` for all of them; port 0 chooses a free port, which [`Node::addresses`] reports. The
    /// node needs a name. Requires the cargo feature `verbs`.
    ///
    /// # Errors
    ///
    /// [`AddressError`] when `address` has another form.
    pub fn rdma(self, address: &str) -> Result<Self, AddressError> {
        let rdma: Address = address.parse()?;
        match rdma.scheme() {
            "rdma" => Ok(Self { rdma: Some(rdma), ..self }),
            _ => Err(AddressError::Host { text: address.to_owned() }),
        }
    }

    /// Sets how this node connects to an `rdma://` address; by default [`RdmaConnect::Manager`].
    pub fn rdma_connect(self, rdma_connect: RdmaConnect) -> Self {
        Self { rdma_connect, ..self }
    }

    /// Sets the multicast group of this node's notices over RDMA. By default the node chooses a random group from `239.255.1.0`
    /// to `239.255.254.255` for each network on which it is dialled. Set it where switches or firewalls admit known groups only.
    /// Nodes may share a group; each ignores the datagrams of the others. The publisher's node announces the group to its
    /// subscribers. Without the cargo feature `verbs` this has no effect.
    ///
    /// # Errors
    ///
    /// [`AddressError::Group`] when `group` is not an open multicast group.
    pub fn notice_group(self, group: Ipv4Addr) -> Result<Self, AddressError> {
        Ok(Self { notice_group: Some(Group::new(group)?), ..self })
    }

    /// Gives the node the keys that it proves to its peers, and demands of them: it admits no peer that does not prove one, on any
    /// fabric, and each only to the topics that its keys cover. A node that it dials over RDMA must have a keyring, too.
    ///
    /// A node that listens at an `rdma://` address needs a keyring, unless it is [insecure](Self::insecure).
    pub fn keys(self, keyring: Keyring) -> Self {
        let guard = Guard { keyring: Some(keyring), ..self.guard };
        Self { guard, ..self }
    }

    /// Lets only hosts of this network connect to the node's `rdma://` address, and of those that are allowed by further calls:
    /// `10.0.0.0/24`, `fd00::/8`, or one address. By default every host may connect. Others are turned away before a queue pair exists
    /// for them ([`NotAdmitted::Address`](crate::NotAdmitted::Address)), and learn the address that the node has seen. An address is what
    /// the network says it is, so this replaces no [keyring](Self::keys). Nodes that this one dials, and those of this host over shared
    /// memory, need not be in a network.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = fabricast::Node::builder().allow("10.0.0.0/24")?.allow("10.0.7.9")?;
    /// assert!(builder.allow("10.0.0.7/24").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AddressError::Network`] when `network` has another form, or bits behind its prefix.
    pub fn allow(mut self, network: &str) -> Result<Self, AddressError> {
        self.allowed.push(network.parse()?);
        Ok(self)
    }

    /// Lets the members of this group of the host connect to the node over shared memory, too. By default only processes of this user
    /// can, and root. This user must belong to the group, or be root. The node gives the group its socket, its entry and the runtime
    /// directory, which then is readable for that group; other nodes in it stay as they are. Members name the
    /// [directory](Self::runtime_dir) of this user to find the node.
    ///
    /// A member may do what a process of this user may over shared memory, unless there is a [keyring](Self::keys), which decides
    /// for them as for anyone, or an [admission](Self::admission), which sees their user and group ([`PeerAddress`]).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // 1007 is the group of those who may read the quotes: `getent group quotes` shows it.
    /// let node = fabricast::Node::builder().name("quotes")?.runtime_dir("/run/quotes").shm_group(1007).open()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`PeerAddress`]: crate::PeerAddress
    pub fn shm_group(self, group: u32) -> Self {
        Self { shm_group: Some(group), ..self }
    }

    /// Sets what decides, beside the keyring, which peers may subscribe to topics of this node and publish to its listeners. It sees
    /// where a peer is and which key it has proven: for example, to admit only some addresses.
    pub fn admission(self, admission: Arc<dyn Admission>) -> Self {
        let guard = Guard { admission: Some(admission), ..self.guard };
        Self { guard, ..self }
    }

    /// Sets what the node's peers may take of it: sessions, each process and host, and bytes of landing regions. A node has no more
    /// sessions than the process can afford: of the descriptors that it may have (`ulimit -n`), a quarter is for its own topics, and a part
    /// for what peers on this host send. Sessions over RDMA take up to half of the memory that it may lock (`ulimit -l`), unless it may
    /// lock any amount (`CAP_IPC_LOCK`). [`Node::peer_limits`] returns what is in force.
    pub fn peer_limits(self, limits: PeerLimits) -> Self {
        let guard = Guard { limits, ..self.guard };
        Self { guard, ..self }
    }

    /// Lets a node without a keyring listen at an `rdma://` address. Anyone who can reach that address may then list and read its
    /// topics, and invite its listeners.
    pub fn insecure(self) -> Self {
        Self { is_insecure: true, ..self }
    }

    /// Sets the sink of the node's events. By default they become `tracing` records with the target `fabricast`.
    pub fn events(self, events: Arc<dyn EventSink>) -> Self {
        Self { events, ..self }
    }

    /// Opens the node: claims its name, listens, and starts its thread. Allocates.
    ///
    /// Blocks for up to 40 ms if a node of that name is running, and for up to 5 s if a stopped process that was listing nodes
    /// still holds the lock on the name.
    ///
    /// # Errors
    ///
    /// [`NodeError`] when the name is in use, the runtime directory cannot be used, no thread can be started, or a node without a
    /// name, or with neither [`Self::keys`] nor [`Self::insecure`], has an `rdma://` address to listen at.
    pub fn open(self) -> Result<Node, NodeError> {
        if let (None, Some(address)) = (&self.name, &self.rdma) {
            return Err(NodeError::Unnamed { address: address.clone() });
        }
        match (&self.guard.keyring, &self.rdma) {
            (Some(_), _) if self.is_insecure => return Err(NodeError::Contradiction),
            // A build without verbs listens nowhere, and says so below.
            (None, Some(address)) if !self.is_insecure && cfg!(feature = "verbs") => {
                return Err(NodeError::Unprotected { address: address.clone() });
            }
            _ => {}
        }
        let directory = match &self.runtime_dir {
            Some(path) => RuntimeDirectory::open(path)?,
            None => RuntimeDirectory::from_environment()?,
        };
        let directory = directory.open_to(self.shm_group);
        let listens = self.rdma.is_some();
        let limits = self.guard.limits.within(Affordable::now(), listens);
        let shm = ShmFabric::new(directory, limits.shm());
        let mut members: Vec<(Arc<dyn Fabric>, bool)> = vec![(Arc::new(shm), true)];
        let fabric =
            verbs(self.rdma, self.rdma_connect, self.notice_group, (&limits, &self.guard, self.allowed))?;
        members.extend(fabric.map(|fabric| (fabric, listens)));
        let fabric: Arc<dyn Fabric> = Arc::new(SeveralFabrics::new(members));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let guard = Guard { limits, ..self.guard };
        let (shared, driver) = assemble((self.name, Some(guard)), fabric, clock, self.events)?;
        shared.seeking.use_threads();
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
    (limits, guard, allowed): (&PeerLimits, &Guard, Vec<Network>),
) -> Result<Option<Arc<dyn Fabric>>, FabricError> {
    let places = limits.rdma();
    let policy: Arc<dyn ConnectPolicy> = Arc::new(NodePolicy::new(guard.keyring.clone(), allowed));
    let policy = Some(policy);
    Ok(Some(Arc::new(VerbsFabric::new(VerbsConfig { listen, connect, notice_group, places, policy })?)))
}

/// Fails if there is an address to listen at: this program was built without verbs.
#[cfg(not(feature = "verbs"))]
fn verbs(
    listen: Option<Address>,
    _connect: RdmaConnect,
    _notice_group: Option<Group>,
    _peers: (&PeerLimits, &Guard, Vec<Network>),
) -> Result<Option<Arc<dyn Fabric>>, FabricError> {
    listen.map_or(Ok(None), |address| Err(FabricError::WithoutVerbs { address }))
}

/// Builds a node over any fabric and clock, with a driver that the caller runs.
pub(super) fn assemble(
    (name, guard): (Option<NodeName>, Option<Guard>),
    fabric: Arc<dyn Fabric>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn EventSink>,
) -> Result<(Shared, Driver), NodeError> {
    let listeners = match &name {
        Some(name) => fabric.listen(name)?,
        None => Vec::new(),
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
    let addresses = listeners.iter().flat_map(|listener| listener.addresses()).collect();
    let shared =
        Shared::new(NodeCore::new(fabric, clock, events, (identity, guard.unwrap_or_default()), addresses)?);
    let driver = Driver::new(&shared, listeners)?;
    Ok((shared, driver))
}
