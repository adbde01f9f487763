//! The same-host provider: regions are memory files handed over a Unix socket, and mapped by the peer; a
//! one-sided read is a load, a one-sided write a store.
//!
//! Nodes are found in a runtime directory that belongs to one user (see [`directory`]); nobody else can connect.

pub(crate) mod directory;
mod entry;
mod socket;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::fabric::{
    Address, ByteRange, Completion, Connection, Exposure, Fabric, FabricError, Listener, NodeEntry,
    NothingToRevoke, Offer, Registered, Registration, RemoteRead, RemoteWrite, Revocation, Write,
};
use crate::id::NodeName;
use crate::memory::{Access, Region};
use crate::sync::atomic::{Ordering, fence};
use directory::RuntimeDirectory;

/// The provider's name.
const NAME: &str = "shm";

/// The same-host provider.
#[derive(Debug)]
pub(crate) struct ShmFabric {
    directory: RuntimeDirectory,
}

impl ShmFabric {
    /// The provider whose nodes are found in this directory.
    pub(crate) fn new(directory: RuntimeDirectory) -> Self {
        Self { directory }
    }
}

impl Fabric for ShmFabric {
    fn listen(&self, node: &NodeName) -> Result<Box<dyn Listener>, FabricError> {
        let claim = self.directory.claim(node)?;
        Ok(Box::new(socket::ShmListener::bind(claim, node.clone())?))
    }

    fn dial(&self, address: &Address) -> Result<Box<dyn Connection>, FabricError> {
        let Address::Shm(node) = address else {
            return Err(FabricError::Unreachable { address: address.clone(), fabric: NAME });
        };
        let path = self.directory.socket_address(node)?;
        match socket::ShmConnection::connect(&path) {
            Ok(connection) => Ok(Box::new(connection)),
            Err(_) if self.directory.entry(node)?.is_some_and(|entry| !entry.alive) => {
                Err(FabricError::NodeGone { address: address.clone() })
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => {
                Err(FabricError::NoSuchNode { address: address.clone() })
            }
            Err(errno) => Err(FabricError::System { what: "connect to the node", source: errno.into() }),
        }
    }

    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError> {
        let sealed = Region::is_sealed_against_writing(region.file())?;
        if sealed != (exposure == Exposure::Read) {
            return Err(FabricError::Access { why: "its memory was not made for this exposure" });
        }
        // No access follows from the key here, the file is what gives it; it only tells regions apart.
        let key = crate::random::number()
            .map_err(|source| FabricError::System { what: "draw a random number", source })?;
        Ok(Registration::new(Arc::clone(region), exposure, ShmRegistered { key }))
    }

    fn nodes(&self) -> Result<Vec<NodeEntry>, FabricError> {
        self.directory.entries()
    }
}

/// What tells a region from others.
#[derive(Debug)]
struct ShmRegistered {
    key: u64,
}

impl Registered for ShmRegistered {}

/// A memory file that a peer sent.
#[derive(Debug)]
struct ShmOffer {
    file: std::os::fd::OwnedFd,
}

impl ShmOffer {
    fn open(self, exposure: Exposure, len_min: usize) -> Result<Region, FabricError> {
        use std::os::fd::AsFd;
        let sealed = Region::is_sealed_against_writing(self.file.as_fd())?;
        match (exposure, sealed) {
            (Exposure::Read, true) => Ok(Region::import(self.file, len_min, Access::Read)?),
            (Exposure::Write | Exposure::Exchange, false) => {
                Ok(Region::import(self.file, len_min, Access::Write)?)
            }
            (Exposure::Read, false) => Err(FabricError::Access { why: "the peer lent it to be written" }),
            (Exposure::Write | Exposure::Exchange, true) => {
                Err(FabricError::Access { why: "the peer lets it only be read" })
            }
        }
    }
}

impl Offer for ShmOffer {
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        Ok(Box::new(ShmRead { region: Arc::new(self.open(Exposure::Read, len_min)?) }))
    }

    fn open_shared(self: Box<Self>, len_min: usize) -> Result<Arc<Region>, FabricError> {
        Ok(Arc::new(self.open(Exposure::Write, len_min)?))
    }

    fn open_write(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        Ok(Box::new(ShmWrite { region: self.open(Exposure::Write, len_min)? }))
    }
}

/// A peer's region, mapped for reading.
#[derive(Debug)]
struct ShmRead {
    region: Arc<Region>,
}

impl RemoteRead for ShmRead {
    fn mirror(&self) -> &Arc<Region> {
        &self.region
    }

    fn is_mapped(&self) -> bool {
        true
    }

    fn post(&mut self, _ranges: &[ByteRange]) -> Result<Completion, FabricError> {
        Ok(Completion::Done)
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        Ok(Completion::Done)
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

/// A peer's region, mapped for writing.
#[derive(Debug)]
struct ShmWrite {
    region: Region,
}

impl RemoteWrite for ShmWrite {
    #[inline]
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        for write in writes {
            // Release: whoever sees a word of this write has seen the one before it whole. Pairs with the Acquire
            // loads and fences of readers.
            fence(Ordering::Release);
            match *write {
                Write::Range(ByteRange { offset, len }) => {
                    source.region().write_across(offset, &self.region, offset, len);
                }
                Write::Line { offset, words } => self.region.copy_in_head(offset, &words),
                Write::Word { offset, word } => self.region.store_release(offset, word),
            }
        }
        Ok(Completion::Done)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(0)
    }

    #[inline]
    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        Ok(Some(self.region.load_acquire(offset)))
    }

    #[inline]
    fn writes_words_in_order(&self) -> bool {
        true
    }

    fn writes_may_be_lost(&self) -> bool {
        false
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(NothingToRevoke)
    }
}
