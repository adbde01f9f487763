//! Memory windows: the access of one queue pair's peer to a memory region.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mw, ibv_mw_bind_info, ibv_mw_type};

use super::{MemoryRegion, ProtectionDomain, SysError, check, warn_left};

const ALLOCATE: &str = "ibv_alloc_mw";

/// A window of type 2 to the whole of a region, for one queue pair: until it is bound, its key opens nothing, and then only what
/// comes over that queue pair. Dropping it revokes the key at once, and nothing else.
///
/// See the InfiniBand Architecture Specification, volume 1, section 10.6.7.
pub(in crate::fabric::verbs) struct MemoryWindow {
    raw: NonNull<ibv_mw>,
    remote_key: u32,
    region: Arc<MemoryRegion>,
}

// SAFETY: functions of libibverbs may be called by any thread at any time; the object lives as long as this value.
unsafe impl Send for MemoryWindow {}
// SAFETY: as for `Send`: the object is written only when it is created and released.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    /// Returns whether the device of this domain has windows.
    pub(in crate::fabric::verbs) fn are_supported(domain: &ProtectionDomain) -> Result<bool, SysError> {
        // A driver without them has no function, or refuses, whatever the device says.
        Ok(domain.context().attributes()?.has_windows
            && Self::create(domain).is_ok_and(|raw| {
                // SAFETY: the object was just created, and is freed once.
                check("ibv_dealloc_mw", unsafe { rdma_sys::ibv_dealloc_mw(raw.as_ptr()) }).is_ok()
            }))
    }

    /// Allocates a window to this region, which must be registered for windows.
    pub(in crate::fabric::verbs) fn allocate(region: &Arc<MemoryRegion>) -> Result<Self, SysError> {
        let raw = Self::create(region.domain())?;
        // SAFETY: the object was just created, and nothing changes its key.
        let unbound_key = unsafe { (*raw.as_ptr()).rkey };
        // The owner of a window chooses the last byte of its key, another for each time that it is bound.
        let remote_key = unbound_key & !0xff | unbound_key.wrapping_add(1) & 0xff;
        Ok(Self { raw, remote_key, region: Arc::clone(region) })
    }

    fn create(domain: &ProtectionDomain) -> Result<NonNull<ibv_mw>, SysError> {
        // SAFETY: the domain is alive; of what the result is made for, the caller keeps the domain.
        let raw = unsafe { rdma_sys::ibv_alloc_mw(domain.raw(), ibv_mw_type::IBV_MW_TYPE_2) };
        raw.and_then(NonNull::new).ok_or_else(|| SysError::last(ALLOCATE))
    }

    /// Returns the key for work requests of the peer, once the window is bound.
    pub(in crate::fabric::verbs) fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// The region to which it opens.
    pub(in crate::fabric::verbs) fn region(&self) -> &Arc<MemoryRegion> {
        &self.region
    }

    /// What a work request that binds it for reading names.
    pub(super) fn binding(&self) -> rdma_sys::bind_mw_t {
        let bind_info = ibv_mw_bind_info {
            mr: self.region.raw(),
            addr: self.region.iova(),
            length: self.region.region().len() as u64,
            mw_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        };
        rdma_sys::bind_mw_t { mw: self.raw.as_ptr(), rkey: self.remote_key, bind_info }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: the window belongs to this value and is freed once; the device refuses its key from then on.
        let returned = unsafe { rdma_sys::ibv_dealloc_mw(self.raw.as_ptr()) };
        warn_left("ibv_dealloc_mw", returned);
    }
}

impl std::fmt::Debug for MemoryWindow {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MemoryWindow").field("region", &self.region).finish_non_exhaustive()
    }
}
