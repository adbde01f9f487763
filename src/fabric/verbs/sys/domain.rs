//! Protection domains.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::ibv_pd;

use super::context::Context;
use super::{SysError, warn_left};

/// The scope of queue pairs and memory regions; those of different domains cannot be used together.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
    has_windows: bool,
}

// SAFETY: functions of libibverbs may be called by any thread at any time; the object lives as long as this value.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for `Send`: the object is written only when it is created and released.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Creates a domain, whose regions are exposed by their own keys.
    pub(in crate::fabric::verbs) fn allocate(context: &Arc<Context>) -> Result<Arc<Self>, SysError> {
        Self::create(context, false)
    }

    /// Creates a domain, whose regions are exposed through windows.
    pub(in crate::fabric::verbs) fn with_windows(context: &Arc<Context>) -> Result<Arc<Self>, SysError> {
        Self::create(context, true)
    }

    fn create(context: &Arc<Context>, has_windows: bool) -> Result<Arc<Self>, SysError> {
        // SAFETY: the context is open, and the result holds it.
        let raw = unsafe { rdma_sys::ibv_alloc_pd(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| SysError::last("ibv_alloc_pd"))?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context), has_windows }))
    }

    /// The library's object.
    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// Whether its regions are exposed through windows.
    pub(in crate::fabric::verbs) fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Its device.
    pub(in crate::fabric::verbs) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything created in the domain holds it by Arc, so none of it is left; it is freed once.
        let returned = unsafe { rdma_sys::ibv_dealloc_pd(self.raw()) };
        warn_left("ibv_dealloc_pd", returned);
    }
}
