//! The same-host provider: regions are memory files passed over a Unix socket and mapped by the peer; a
//! one-sided read is a load, a one-sided write a store.
//!
//! Nodes are found in a runtime directory of one user (see [`directory`]); other users cannot connect, but for members of a group to
//! which a node is opened.

pub(super) mod address;
mod background;
mod credentials;
pub(crate) mod directory;
mod entry;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed;
mod one_sided;
mod socket;

use std::sync::Arc;
use std::time::Duration;

use self::background::Background;
use self::directory::RuntimeDirectory;
use self::one_sided::ShmRegistered;
use crate::fabric::{
    Acceptor, Address, Connection, Exposure, Fabric, FabricError, Intent, NodeListing, PlaceLimits, Places,
    Registration,
};
use crate::id::NodeName;
use crate::memory::Region;

/// The provider's name.
const NAME: &str = "shm";
/// What a refusal of the operating system keeps from being done.
const CONNECT: &str = "connect to the node";

/// The same-host provider.
#[derive(Debug)]
pub(crate) struct ShmFabric {
    directory: RuntimeDirectory,
    background: Background,
    places: Arc<Places>,
}

impl ShmFabric {
    /// Creates a provider whose nodes are found in this directory, and have so many places for sessions.
    pub(crate) fn new(directory: RuntimeDirectory, places: PlaceLimits) -> Self {
        Self { directory, background: Background::default(), places: Places::new(places) }
    }
}

impl Fabric for ShmFabric {
    fn listen(&self, node: &NodeName) -> Result<Vec<Box<dyn Acceptor>>, FabricError> {
        let claim = self.directory.claim(node)?;
        let listener = socket::ShmListener::bind(claim, node.clone(), (&self.background, &self.places))?;
        Ok(vec![Box::new(listener)])
    }

    fn tend(&self) {
        self.background.tend();
    }

    fn dial(
        &self,
        address: &Address,
        _: Intent,
        timeout: Duration,
    ) -> Result<Box<dyn Connection>, FabricError> {
        let Some(node) = &address.node() else {
            return Err(FabricError::Unreachable { address: address.clone(), fabric: NAME });
        };
        let path = self.directory.socket_address(node)?;
        match socket::ShmConnection::connect(&path, timeout, &self.background) {
            Ok(connection) => Ok(Box::new(connection)),
            Err(errno @ (rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) => {
                Err(FabricError::system(CONNECT)(errno))
            }
            Err(rustix::io::Errno::ACCESS) => Err(FabricError::NotOpen { address: address.clone() }),
            Err(_) if self.directory.entry(node)?.is_some_and(|entry| !entry.alive) => {
                Err(FabricError::NodeGone { address: address.clone() })
            }
            Err(rustix::io::Errno::AGAIN) => {
                let process = self.directory.entry(node)?.map(|entry| entry.process);
                Err(FabricError::NotAccepting { address: address.clone(), process })
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => {
                Err(FabricError::NoSuchNode { address: address.clone() })
            }
            Err(errno) => Err(FabricError::system(CONNECT)(errno)),
        }
    }

    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError> {
        exposure.check(region)?;
        // The key grants no access, the file does; it only identifies the region.
        let key = crate::random::number().map_err(FabricError::no_random)?;
        Ok(Registration::new(Arc::clone(region), exposure, ShmRegistered { key }))
    }

    fn nodes(&self) -> Result<Vec<NodeListing>, FabricError> {
        self.directory.entries()
    }
}
