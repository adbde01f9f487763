use std::net::{Ipv4Addr, SocketAddr};

use rdma_sys::{rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask, rdma_cm_mc_join_flags};
use rustix::net::addr::SocketAddrArg;

use super::super::{SysError, check};
use super::CmId;

/// What a member of a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum Membership {
    /// Receives what is sent to the group, its own datagrams included.
    Full,
    /// Only sends.
    SendOnly,
}

/// Multicast, for an identifier bound to a device.
impl CmId {
    /// Starts joining a group. A full member's queue pair is attached when its join event is taken.
    pub(in crate::fabric::verbs) fn join(
        &self,
        group: Ipv4Addr,
        membership: Membership,
    ) -> Result<(), SysError> {
        const CALL: &str = "rdma_join_multicast";
        use {rdma_cm_join_mc_attr_mask as masks, rdma_cm_mc_join_flags as memberships};
        let flags = match membership {
            Membership::Full => memberships::RDMA_MC_JOIN_FLAG_FULLMEMBER,
            Membership::SendOnly => memberships::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        };
        let mask = masks::RDMA_CM_JOIN_MC_ATTR_ADDRESS | masks::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        let mut address = SocketAddr::from((group, 0)).as_any();
        let addr = address.as_mut_ptr().cast();
        let mut request = rdma_cm_join_mc_attr_ex { comp_mask: mask.0, join_flags: flags.0, addr };
        let place = &raw mut request;
        self.0.with_device(CALL, |id| {
            // SAFETY: the identifier lives as long as this value, and is bound to a device; request and address are local
            // variables, the address as long as its family requires, and the call copies both.
            unsafe { rdma_sys::rdma_join_multicast_ex(id, place, std::ptr::null_mut()) }
        })
    }

    /// Leaves a group that was joined, or is being joined. A queue pair cannot be destroyed while attached to one.
    pub(in crate::fabric::verbs) fn leave(&self, group: Ipv4Addr) -> Result<(), SysError> {
        let mut address = SocketAddr::from((group, 0)).as_any();
        let place = address.as_mut_ptr().cast();
        let call = |id| {
            // SAFETY: the identifier lives as long as this value; the address is a local variable, as long as its
            // family requires. All events that were taken are acknowledged, so the call does not wait for any.
            unsafe { rdma_sys::rdma_leave_multicast(id, place) }
        };
        check("rdma_leave_multicast", self.0.with(call))
    }

    /// Returns the number of its device's port, once it has one.
    pub(in crate::fabric::verbs) fn port(&self) -> u8 {
        // SAFETY: the identifier lives as long as this value, and its port is written only by calls under the lock.
        self.0.with(|id| unsafe { (*id).port_num })
    }
}
