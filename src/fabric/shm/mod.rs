//! The same-host provider: regions are memory files handed over a Unix socket, and mapped by the peer; a
//! one-sided read is a load, a one-sided write a store.
//!
//! Nodes are found in a runtime directory that belongs to one user (see [`directory`]); nobody else can connect.

pub(super) mod address;
mod background;
pub(crate) mod directory;
mod entry;
mod socket;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::fabric::{
    Address, ByteRange, Completion, Connection, Exposure, Fabric, FabricError, Intent, Listener, NodeEntry,
    NothingToRevoke, Offer, Placement, Registered, Registration, RemoteRead, RemoteWrite, Revocation, Write,
};
use crate::id::NodeName;
use crate::memory::{Access, MemoryError, Region};
use crate::sync::atomic::{Ordering, fence};
use background::{Background, Deferred};
use directory::RuntimeDirectory;

/// The provider's name.
const NAME: &str = "shm";

/// The same-host provider.
#[derive(Debug)]
pub(crate) struct ShmFabric {
    directory: RuntimeDirectory,
    background: Background,
}

impl ShmFabric {
    /// The provider whose nodes are found in this directory.
    pub(crate) fn new(directory: RuntimeDirectory) -> Self {
        Self { directory, background: Background::default() }
    }
}

impl Fabric for ShmFabric {
    fn listen(&self, node: &NodeName) -> Result<Box<dyn Listener>, FabricError> {
        let claim = self.directory.claim(node)?;
        Ok(Box::new(socket::ShmListener::bind(claim, node.clone(), &self.background)?))
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
                Err(FabricError::System { what: "connect to the node", source: errno.into() })
            }
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
    /// An error when this process could not take it.
    file: Result<Deferred, FabricError>,
    background: Background,
}

impl ShmOffer {
    /// Maps the file, and closes it: a mapping needs none. One that was not mapped may be anything.
    fn open(
        self,
        exposure: Exposure,
        map: impl FnOnce(BorrowedFd<'_>) -> Result<Region, MemoryError>,
    ) -> Result<Arc<Region>, FabricError> {
        let file = self.file?;
        let sealed = Region::is_sealed_against_writing(file.as_fd())?;
        match (exposure, sealed) {
            (Exposure::Read, true) | (Exposure::Write, false) => {
                let region = map(file.as_fd())?;
                file.close();
                Ok(Arc::new(region))
            }
            (Exposure::Read, false) => Err(FabricError::Access { why: "the peer lent it to be written" }),
            (Exposure::Write, true) => Err(FabricError::Access { why: "the peer lets it only be read" }),
        }
    }
}

impl Offer for ShmOffer {
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        let region = self.open(Exposure::Read, |file| Region::import(file, len_min, Access::Read))?;
        Ok(Box::new(ShmRead { region }))
    }

    fn open_shared(self: Box<Self>, len_min: usize) -> Result<Arc<Region>, FabricError> {
        self.open(Exposure::Write, |file| Region::import(file, len_min, Access::Write))
    }

    fn open_write(self: Box<Self>, len: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        let background = self.background.clone();
        let region = self.open(Exposure::Write, |file| Region::import_to_write(file, len))?;
        background.populate(&region);
        Ok(Box::new(ShmWrite { region: Some(region), background }))
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
    /// Taken when this is dropped only: were it dropped here after the background is done with it, this thread would unmap it.
    region: Option<Arc<Region>>,
    background: Background,
}

impl ShmWrite {
    #[inline]
    fn region(&self) -> &Region {
        match &self.region {
            Some(region) => region,
            None => unreachable!("it is taken when this is dropped only"),
        }
    }
}

impl Drop for ShmWrite {
    fn drop(&mut self) {
        // Where the peer is gone this frees its memory.
        if let Some(region) = self.region.take() {
            self.background.unmap(region);
        }
    }
}

impl RemoteWrite for ShmWrite {
    #[inline]
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        let region = self.region();
        for write in writes {
            // Release: whoever sees a word of this write has seen the one before it whole. Pairs with the Acquire
            // loads and fences of readers.
            fence(Ordering::Release);
            match *write {
                Write::Range(ByteRange { offset, len }) => {
                    source.region().write_across(offset, region, offset, len);
                }
                Write::Line { offset, words } => region.copy_in_head(offset, &words),
                Write::Word { offset, word } => region.store_release(offset, word),
            }
        }
        Ok(Completion::Done)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(0)
    }

    #[inline]
    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        Ok(Some(self.region().load_acquire(offset)))
    }

    #[inline]
    fn placement(&self) -> Placement {
        Placement::Words
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(NothingToRevoke)
    }
}
