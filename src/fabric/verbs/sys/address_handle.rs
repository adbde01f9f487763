//! Address handles: the destinations of datagrams.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_ah, ibv_ah_attr};

use super::{ProtectionDomain, SysError, warn_left};

/// Hop limit of packets.
pub(super) const HOP_LIMIT: u8 = 64;

/// The attributes of an address handle.
#[derive(Clone, Copy)]
pub(in crate::fabric::verbs) struct Path(pub(super) ibv_ah_attr);

impl Path {
    /// The path from a local port, by its address of this index, to an address.
    pub(in crate::fabric::verbs) fn new(port: u8, gid_index: u8, gid: [u8; 16]) -> Self {
        // SAFETY: the structure is plain numbers, for which zeros are valid.
        let mut attributes: ibv_ah_attr = unsafe { std::mem::zeroed() };
        (attributes.port_num, attributes.is_global) = (port, 1);
        attributes.grh.dgid.raw = gid;
        attributes.grh.sgid_index = gid_index;
        attributes.grh.hop_limit = HOP_LIMIT;
        Self(attributes)
    }

    /// The same with packets of this traffic class.
    pub(in crate::fabric::verbs) fn with_traffic_class(mut self, class: u8) -> Self {
        self.0.grh.traffic_class = class;
        self
    }

    /// The same to the port with this local identifier, which InfiniBand needs. Ethernet ports have none, and 0 here.
    pub(in crate::fabric::verbs) fn with_lid(mut self, lid: u16) -> Self {
        self.0.dlid = lid;
        self
    }
}

impl std::fmt::Debug for Path {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Path").field("port", &self.0.port_num).finish_non_exhaustive()
    }
}

/// A destination of datagrams, as stored in the device.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct AddressHandle {
    raw: NonNull<ibv_ah>,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: functions of libibverbs may be called by any thread at any time; the object lives as long as this value.
unsafe impl Send for AddressHandle {}
// SAFETY: as for `Send`: the object is written only when it is created and released.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// Creates the handle of a path. Resolves the peer's hardware address if unknown, which may block.
    pub(in crate::fabric::verbs) fn create(
        domain: &Arc<ProtectionDomain>,
        path: &Path,
    ) -> Result<Self, SysError> {
        let mut attributes = path.0;
        // SAFETY: the domain is alive, and the result holds it; the attributes are a local variable, which is only read.
        let raw = unsafe { rdma_sys::ibv_create_ah(domain.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| SysError::last("ibv_create_ah"))?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    /// The library's object.
    pub(super) fn raw(&self) -> *mut ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: the handle belongs to this value and is freed once. Drivers copy what they need of it when a work request
        // is posted, or know it by a number that is refused from then on.
        let returned = unsafe { rdma_sys::ibv_destroy_ah(self.raw()) };
        warn_left("ibv_destroy_ah", returned);
    }
}
