//! Memory regions: memory that a device may use.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mr};
use rustix::io::Errno;

use super::{ProtectionDomain, SysError, warn_left};
use crate::memory::Region;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What peers with the remote key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum RemoteAccess {
    /// Nothing.
    None,
    /// Read it, through a [window](super::MemoryWindow) only.
    Window,
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// Bytes currently registered by this process.
static REGISTERED_LEN: AtomicU64 = AtomicU64::new(0);

/// A region registered with a device, at an address of its own.
///
/// Its pages are pinned: the device accesses the same memory until the value is dropped, and none afterwards, even if
/// queued work requests name it.
pub(in crate::fabric::verbs) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    iova: u64,
    local_key: u32,
    remote_key: u32,
    region: Arc<Region>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: functions of libibverbs may be called by any thread at any time; the object lives as long as this value.
unsafe impl Send for MemoryRegion {}
// SAFETY: as for `Send`: the object is written only when it is created and released.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers a region at the device address `iova`, a multiple of the page size.
    pub(in crate::fabric::verbs) fn register(
        domain: &Arc<ProtectionDomain>,
        region: &Arc<Region>,
        iova: u64,
        remote: RemoteAccess,
        local_write: bool,
    ) -> Result<Self, SysError> {
        const CALL: &str = "ibv_reg_mr_iova";
        let len = region.len();
        let fits = iova.checked_add(len as u64).is_some();
        if !fits || !iova.is_multiple_of(rustix::param::page_size() as u64) {
            return Err(SysError::new(CALL, Errno::INVAL));
        }
        let mut flags = match remote {
            RemoteAccess::None => ibv_access_flags(0),
            RemoteAccess::Window => ibv_access_flags::IBV_ACCESS_MW_BIND,
            RemoteAccess::Read => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            // Devices require local write access for remote write access.
            RemoteAccess::Write => {
                ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                    | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                    | ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            }
        };
        if local_write {
            flags |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        }
        let base = region.base().as_ptr().cast();
        // SAFETY: the memory is a mapping of `len` bytes that the result keeps; what a device does to it is as what
        // other processes do to it: all access to a region is atomic. The domain is held by the result.
        let raw = unsafe { rdma_sys::ibv_reg_mr_iova(domain.raw(), base, len, iova, flags.0.cast_signed()) };
        let raw = NonNull::new(raw).ok_or_else(|| SysError::last(CALL))?;
        // SAFETY: the object was just created, and nothing changes its keys.
        let local_key = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: the object was just created, and nothing changes its keys.
        let remote_key = unsafe { (*raw.as_ptr()).rkey };
        // Relaxed: a sum that orders nothing.
        REGISTERED_LEN.fetch_add(len as u64, Ordering::Relaxed);
        let (region, domain) = (Arc::clone(region), Arc::clone(domain));
        Ok(Self { raw, iova, local_key, remote_key, region, domain })
    }

    /// Returns the bytes currently registered by this process.
    pub(in crate::fabric::verbs) fn registered_len() -> u64 {
        REGISTERED_LEN.load(Ordering::Relaxed)
    }

    /// The library's object.
    pub(super) fn raw(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// Returns the key for work requests of this process.
    pub(super) fn local_key(&self) -> u32 {
        self.local_key
    }

    /// Returns the key for work requests of peers.
    pub(in crate::fabric::verbs) fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// Returns the device address.
    pub(in crate::fabric::verbs) fn iova(&self) -> u64 {
        self.iova
    }

    /// What it is registered in.
    pub(in crate::fabric::verbs) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Returns the memory.
    pub(in crate::fabric::verbs) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the registration belongs to this value and is released once; the device refuses its keys from
        // then on, so no work request reaches the memory.
        let returned = unsafe { rdma_sys::ibv_dereg_mr(self.raw.as_ptr()) };
        warn_left("ibv_dereg_mr", returned);
        REGISTERED_LEN.fetch_sub(self.region.len() as u64, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for MemoryRegion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MemoryRegion").field("len", &self.region.len()).finish_non_exhaustive()
    }
}
