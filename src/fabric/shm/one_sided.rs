//! Peers' regions, mapped: a read is a load, a write a store.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::background::{Background, Deferred};
use crate::fabric::{
    ByteRange, Completion, Exposure, FabricError, NothingToRevoke, Offer, Placement, Registered,
    Registration, RemoteRead, RemoteWaker, RemoteWrite, Revocation, SocketWaker, Write,
};
use crate::memory::{Access, MemoryError, Region};

/// A region's identity.
#[derive(Debug)]
pub(super) struct ShmRegistered {
    pub(super) key: u64,
}

impl Registered for ShmRegistered {}

/// A memory file that a peer sent.
#[derive(Debug)]
pub(super) struct ShmOffer {
    /// An error if this process could not receive it.
    pub(super) file: Result<Deferred, FabricError>,
    /// The user of the peer, if known.
    pub(super) user: Option<u32>,
    pub(super) background: Background,
}

impl ShmOffer {
    /// Maps the file and closes it: a mapping does not need it. A file that cannot be mapped is closed in the background.
    fn open(
        self,
        (exposure, len_min): (Exposure, usize),
        map: impl FnOnce(BorrowedFd<'_>) -> Result<Region, MemoryError>,
    ) -> Result<Arc<Region>, FabricError> {
        let file = self.file?;
        if exposure == Exposure::Read && Region::is_unsealable(file.as_fd()) {
            // Its owner can cut it.
            if self.user != Some(rustix::process::geteuid().as_raw()) {
                let why = "the publisher belongs to another user and keeps its memory in a file, which that user could cut and so end this \
                           process: subscribe as that user, by push, or have it publish without warm";
                return Err(FabricError::Access { why });
            }
            let region = Region::import_kept(file.as_fd(), len_min)?;
            file.close();
            return Ok(Arc::new(region));
        }
        let sealed = Region::is_sealed_against_writing(file.as_fd())?;
        match (exposure, sealed) {
            (Exposure::Read, true) | (Exposure::Write, false) => {
                let region = map(file.as_fd())?;
                file.close();
                Ok(Arc::new(region))
            }
            (Exposure::Read, false) => Err(FabricError::Access { why: "the peer exposed it for writing" }),
            (Exposure::Write, true) => Err(FabricError::Access { why: "the peer exposed it read-only" }),
        }
    }
}

impl Offer for ShmOffer {
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        let region =
            self.open((Exposure::Read, len_min), |file| Region::import(file, len_min, Access::Read))?;
        Ok(Box::new(ShmRead { region }))
    }

    fn open_shared(self: Box<Self>, len_min: usize) -> Result<Arc<Region>, FabricError> {
        self.open((Exposure::Write, len_min), |file| Region::import(file, len_min, Access::Write))
    }

    fn open_waker(self: Box<Self>) -> Result<Arc<dyn RemoteWaker>, FabricError> {
        Ok(Arc::new(SocketWaker::new(self.file?)?))
    }

    fn open_write(self: Box<Self>, len: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        let background = self.background.clone();
        let region = self.open((Exposure::Write, len), |file| Region::import_to_write(file, len))?;
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
    /// `None` only during drop: dropping it later than the background's handle would unmap it on this thread.
    region: Option<Arc<Region>>,
    background: Background,
}

impl ShmWrite {
    #[inline]
    fn region(&self) -> &Region {
        match &self.region {
            Some(region) => region,
            None => unreachable!("the region is taken only on drop"),
        }
    }
}

impl Drop for ShmWrite {
    fn drop(&mut self) {
        // If the peer is gone, this frees its memory.
        if let Some(region) = self.region.take() {
            self.background.unmap(region);
        }
    }
}

impl RemoteWrite for ShmWrite {
    #[inline]
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        let region = self.region();
        writes.iter().for_each(|write| write.place(source.region(), region));
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

    fn mapped(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(NothingToRevoke)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fabric::shm::background::Closing;
    use crate::memory::WarmFile;

    /// A region in a file, as its publisher offers it to a peer with this user.
    fn offer(region: &Region, user: Option<u32>) -> ShmOffer {
        let background = Background::default();
        let file = region.file().try_clone_to_owned().expect("a descriptor");
        ShmOffer { file: Ok(Deferred::new(file, Closing::Foreign, &background)), user, background }
    }

    #[test]
    fn memory_that_can_be_cut_is_mapped_for_the_same_user_only() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let file = WarmFile::create(&dir.path().join("t"), 65536).expect("a file");
        let region = Region::keep(file, 5000).expect("a region");
        region.store(8, 7);
        let own = rustix::process::geteuid().as_raw();
        let read = |user| Box::new(offer(&region, user)).open_read(5000);
        let opened = read(Some(own)).expect("the same user");
        assert_eq!((opened.mirror().load(8), opened.mirror().len()), (7, 8192));
        for user in [None, Some(own + 1)] {
            let error = read(user).expect_err("another user");
            assert!(error.to_string().contains("another user"), "{error}");
        }
        // The descriptor for peers permits reading only, and so does the way of a landing region.
        assert!(Region::import(region.file(), 4096, Access::Write).is_err());
        assert!(rustix::io::pwrite(region.file(), &[1], 0).is_err());
        assert!(Box::new(offer(&region, Some(own))).open_write(5000).is_err());
        // It must not be cut already, nor be a file of a disk.
        assert!(Box::new(offer(&region, Some(own))).open_read(65537).is_err());
        let disk =
            tempfile::tempfile_in(Path::new(env!("CARGO_MANIFEST_DIR")).join("target")).expect("a file");
        assert!(!Region::is_unsealable(disk.as_fd()));
    }
}
