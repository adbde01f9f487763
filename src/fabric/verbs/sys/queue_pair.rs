//! Queue pairs.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_access_flags, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type,
};
use rustix::io::Errno;

use super::address_handle::HOP_LIMIT;
use super::identifier::IdHandle;
use super::prepared::{PreparedReceives, PreparedSends};
use super::work::{self, PostError, ReceiveChain, ReceiveRequest, SendChain};
use super::{CompletionQueue, ProtectionDomain, SysError, check, warn_left};

/// The parameters of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) struct QueuePairPlan<'a> {
    /// Its kind.
    pub(in crate::fabric::verbs) kind: QueuePairKind,
    /// The completion queue of sends.
    pub(in crate::fabric::verbs) send_queue: &'a Arc<CompletionQueue>,
    /// The completion queue of receives.
    pub(in crate::fabric::verbs) receive_queue: &'a Arc<CompletionQueue>,
    /// Work requests of the send queue.
    pub(in crate::fabric::verbs) send_wr_max: u32,
    /// Work requests of the receive queue.
    pub(in crate::fabric::verbs) receive_wr_max: u32,
    /// Scatter/gather elements of a work request.
    pub(in crate::fabric::verbs) sge_max: u32,
    /// Inline bytes of a work request.
    pub(in crate::fabric::verbs) inline_len_max: u32,
}

/// The kind of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum QueuePairKind {
    /// Reliable connection: everything arrives, in order, or the queue pair fails.
    Rc,
    /// Unreliable connection: writes and sends may be lost; there are no reads.
    Uc,
    /// Unreliable datagrams: connectionless sends to any queue pair of this kind, or to a group; they may be lost.
    Ud,
}

impl QueuePairKind {
    fn number(self) -> u32 {
        match self {
            Self::Rc => ibv_qp_type::IBV_QPT_RC,
            Self::Uc => ibv_qp_type::IBV_QPT_UC,
            Self::Ud => ibv_qp_type::IBV_QPT_UD,
        }
    }
}

/// What the peer of a queue pair may do to registered regions of its domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct RemoteFlags {
    /// Read them.
    pub(in crate::fabric::verbs) read: bool,
    /// Write them.
    pub(in crate::fabric::verbs) write: bool,
}

impl RemoteFlags {
    fn number(self) -> u32 {
        let mut flags = ibv_access_flags(0);
        if self.read {
            flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        }
        if self.write {
            flags |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        }
        flags.0
    }
}

/// The peer that a queue pair receives from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct RtrPlan {
    /// Largest packet, bytes of payload; a power of two from 256 to 4096.
    pub(in crate::fabric::verbs) mtu: u32,
    /// The number of the peer's queue pair.
    pub(in crate::fabric::verbs) dest_qp_num: u32,
    /// The sequence number of its first packet.
    pub(in crate::fabric::verbs) rq_psn: u32,
    /// Reads of the peer served at a time.
    pub(in crate::fabric::verbs) max_dest_rd_atomic: u8,
    /// How long the peer waits after a receiver-not-ready NAK: 12 is 0.64 ms.
    pub(in crate::fabric::verbs) min_rnr_timer: u8,
    /// The local port.
    pub(in crate::fabric::verbs) port: u8,
    /// The peer's local identifier in an InfiniBand subnet.
    pub(in crate::fabric::verbs) dlid: u16,
    /// The peer's address and the index of the local one; always on Ethernet.
    pub(in crate::fabric::verbs) global: Option<([u8; 16], u8)>,
    /// The traffic class of packets that carry addresses.
    pub(in crate::fabric::verbs) traffic_class: u8,
}

/// How a queue pair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct RtsPlan {
    /// The sequence number of its first packet.
    pub(in crate::fabric::verbs) sq_psn: u32,
    /// The acknowledgement timeout: 4.096 µs times two to this power.
    pub(in crate::fabric::verbs) timeout: u8,
    /// Retransmissions of an unacknowledged packet. At most 6: some devices never give up at 7.
    pub(in crate::fabric::verbs) retry_count: u8,
    /// Retransmissions when the peer had no receive; 7 is for ever.
    pub(in crate::fabric::verbs) rnr_retry_count: u8,
    /// Reads in flight at a time.
    pub(in crate::fabric::verbs) max_rd_atomic: u8,
}

/// The state of a queue pair.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum QueuePairState {
    /// Reset.
    Reset,
    /// Initialised: accepts receives.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// Draining its sends.
    SendQueueDrained,
    /// Receives only; a send failed.
    SendQueueError,
    /// Failed.
    Error,
    /// Another number.
    Unknown(u32),
}

#[cfg(test)]
impl QueuePairState {
    fn from_number(number: u32) -> Self {
        match number {
            ibv_qp_state::IBV_QPS_RESET => Self::Reset,
            ibv_qp_state::IBV_QPS_INIT => Self::Init,
            ibv_qp_state::IBV_QPS_RTR => Self::ReadyToReceive,
            ibv_qp_state::IBV_QPS_RTS => Self::ReadyToSend,
            ibv_qp_state::IBV_QPS_SQD => Self::SendQueueDrained,
            ibv_qp_state::IBV_QPS_SQE => Self::SendQueueError,
            ibv_qp_state::IBV_QPS_ERR => Self::Error,
            other => Self::Unknown(other),
        }
    }
}

/// A send queue and a receive queue, connected to those of a peer.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct QueuePair {
    raw: NonNull<ibv_qp>,
    kind: QueuePairKind,
    number: u32,
    inline_len_max: u32,
    /// The connection that it was created on, which releases it.
    id: Option<Arc<IdHandle>>,
    _domain: Arc<ProtectionDomain>,
    _queues: [Arc<CompletionQueue>; 2],
}

// SAFETY: functions of libibverbs may be called by any thread at any time; the object lives as long as this value.
unsafe impl Send for QueuePair {}
// SAFETY: as for `Send`: the driver takes a lock of each queue when work is posted to it.
unsafe impl Sync for QueuePair {}

/// The attributes to create a queue pair, which the call updates to the actual ones.
pub(super) fn init_attributes(
    call: &'static str,
    domain: &ProtectionDomain,
    plan: &QueuePairPlan<'_>,
) -> Result<ibv_qp_init_attr, SysError> {
    let queues = [plan.send_queue, plan.receive_queue];
    if queues.iter().any(|queue| !queue.context().is_same(domain.context())) {
        return Err(SysError::new(call, Errno::INVAL));
    }
    Ok(ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: plan.send_queue.raw(),
        recv_cq: plan.receive_queue.raw(),
        srq: ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: plan.send_wr_max,
            max_recv_wr: plan.receive_wr_max,
            max_send_sge: plan.sge_max,
            max_recv_sge: plan.sge_max,
            max_inline_data: plan.inline_len_max,
        },
        qp_type: plan.kind.number(),
        sq_sig_all: 0,
    })
}

impl QueuePair {
    /// Creates an unconnected queue pair.
    pub(in crate::fabric::verbs) fn create(
        domain: &Arc<ProtectionDomain>,
        plan: &QueuePairPlan<'_>,
    ) -> Result<Self, SysError> {
        const CALL: &str = "ibv_create_qp";
        let mut attributes = init_attributes(CALL, domain, plan)?;
        // SAFETY: the domain and the queues are alive and of one device; the result holds them.
        let raw = unsafe { rdma_sys::ibv_create_qp(domain.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| SysError::last(CALL))?;
        Ok(Self::new(raw, None, domain, plan, &attributes))
    }

    /// Wraps an object created in this domain with these parameters, on a connection or not.
    pub(super) fn new(
        raw: NonNull<ibv_qp>,
        id: Option<Arc<IdHandle>>,
        domain: &Arc<ProtectionDomain>,
        plan: &QueuePairPlan<'_>,
        made: &ibv_qp_init_attr,
    ) -> Self {
        // SAFETY: the object was just created, and nothing changes its number.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        Self {
            raw,
            kind: plan.kind,
            number,
            inline_len_max: made.cap.max_inline_data,
            id,
            _domain: Arc::clone(domain),
            _queues: [Arc::clone(plan.send_queue), Arc::clone(plan.receive_queue)],
        }
    }

    /// Returns its kind.
    pub(in crate::fabric::verbs) fn kind(&self) -> QueuePairKind {
        self.kind
    }

    /// Returns its number on its device.
    pub(in crate::fabric::verbs) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the inline bytes of a work request: at least as many as requested.
    pub(in crate::fabric::verbs) fn inline_len_max(&self) -> u32 {
        self.inline_len_max
    }

    /// Posts work requests to the send queue. A failed queue pair accepts them, too, and flushes them as
    /// completions.
    #[inline]
    pub(in crate::fabric::verbs) fn post_send(&self, chain: &mut SendChain<'_>) -> Result<(), PostError> {
        let head = chain.link();
        if head.is_null() {
            return Ok(());
        }
        let mut refused = head;
        // SAFETY: the chain is linked, terminated, and untouched until the call returns, which only reads it. It names
        // registered memory, which the device accesses only while registered, and bytes to be copied
        // within the call, which the chain borrows and whose address was exposed, and address handles, which it borrows,
        // too. All access to registered memory is atomic.
        let returned = unsafe { rdma_sys::ibv_post_send(self.raw.as_ptr(), head, &raw mut refused) };
        check("ibv_post_send", returned)
            .map_err(|error| PostError { posted: work::posted(head, refused).min(chain.len()), error })
    }

    /// Posts work requests to the receive queue, at most [`CHAIN_LEN_MAX`](super::CHAIN_LEN_MAX).
    #[inline]
    pub(in crate::fabric::verbs) fn post_receive(
        &self,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        if requests.is_empty() {
            return Ok(());
        }
        let mut chain = ReceiveChain::of(requests);
        let head = chain.link();
        let mut refused = head;
        // SAFETY: the chain is linked, terminated, and on the stack until the call returns, which only reads it. It names
        // registered memory, which the device accesses only while registered.
        let returned = unsafe { rdma_sys::ibv_post_recv(self.raw.as_ptr(), head, &raw mut refused) };
        check("ibv_post_recv", returned)
            .map_err(|error| PostError { posted: work::posted(head, refused).min(requests.len()), error })
    }

    /// Posts the first `count` of these work requests to the send queue.
    #[inline]
    pub(in crate::fabric::verbs) fn post_prepared(
        &self,
        sends: &mut PreparedSends,
        count: usize,
    ) -> Result<(), SysError> {
        let head = sends.link(count);
        let mut refused = head;
        if head.is_null() {
            return Ok(());
        }
        // SAFETY: the chain is linked, terminated, and untouched until the call returns, which only reads it. It names memory that
        // `sends` keeps registered, bytes of its own to be copied within the call, whose address was exposed, and an address handle
        // that it keeps.
        let returned = unsafe { rdma_sys::ibv_post_send(self.raw.as_ptr(), head, &raw mut refused) };
        check("ibv_post_send", returned)
    }

    /// Posts one of these work requests to the receive queue.
    #[inline]
    pub(in crate::fabric::verbs) fn post_prepared_receive(
        &self,
        receives: &mut PreparedReceives,
        index: usize,
    ) -> Result<(), SysError> {
        let head = receives.link(index);
        let mut refused = head;
        // SAFETY: the work request is linked, alone, and untouched until the call returns, which only reads it. It names memory that
        // `receives` keeps registered.
        let returned = unsafe { rdma_sys::ibv_post_recv(self.raw.as_ptr(), head, &raw mut refused) };
        check("ibv_post_recv", returned)
    }

    /// Moves it to the error state: all work in flight is flushed, with a completion for each work request.
    pub(in crate::fabric::verbs) fn to_error(&self) -> Result<(), SysError> {
        self.modify(in_state(ibv_qp_state::IBV_QPS_ERR), ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// Sets what the peer may do.
    pub(in crate::fabric::verbs) fn set_access(&self, remote: RemoteFlags) -> Result<(), SysError> {
        let attributes = ibv_qp_attr { qp_access_flags: remote.number(), ..attributes() };
        self.modify(attributes, ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS)
    }

    /// Sets how long the peer waits after a receiver-not-ready NAK: 12 is 0.64 ms, 0 the longest.
    pub(in crate::fabric::verbs) fn set_min_rnr_timer(&self, timer: u8) -> Result<(), SysError> {
        let attributes = ibv_qp_attr { min_rnr_timer: timer, ..attributes() };
        self.modify(attributes, ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER)
    }

    /// Queries its state.
    #[cfg(test)]
    pub(in crate::fabric::verbs) fn state(&self) -> Result<QueuePairState, SysError> {
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        Ok(QueuePairState::from_number(self.query(mask)?.qp_state))
    }

    #[cfg(test)]
    fn query(&self, mask: i32) -> Result<ibv_qp_attr, SysError> {
        let (mut attributes, mut made) = (attributes(), std::mem::MaybeUninit::<ibv_qp_init_attr>::zeroed());
        // SAFETY: the queue pair lives as long as this value, and both places fit what is written.
        let returned = unsafe {
            rdma_sys::ibv_query_qp(self.raw.as_ptr(), &raw mut attributes, mask, made.as_mut_ptr())
        };
        check("ibv_query_qp", returned)?;
        Ok(attributes)
    }

    /// Queries the traffic class of its packets.
    #[cfg(test)]
    pub(in crate::fabric::verbs) fn traffic_class(&self) -> Result<u8, SysError> {
        let mask = ibv_qp_attr_mask::IBV_QP_AV.0.cast_signed();
        Ok(self.query(mask)?.ah_attr.grh.traffic_class)
    }

    /// Moves an unconnected queue pair to the initialised state, in which it accepts receives.
    pub(in crate::fabric::verbs) fn to_init(&self, port: u8, remote: RemoteFlags) -> Result<(), SysError> {
        let mut attributes = in_state(ibv_qp_state::IBV_QPS_INIT);
        attributes.pkey_index = 0;
        attributes.port_num = port;
        attributes.qp_access_flags = remote.number();
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(attributes, mask)
    }

    /// Moves it to ready-to-receive.
    pub(in crate::fabric::verbs) fn to_rtr(&self, plan: &RtrPlan) -> Result<(), SysError> {
        let mut attributes = in_state(ibv_qp_state::IBV_QPS_RTR);
        attributes.path_mtu = mtu_number(plan.mtu).ok_or_else(|| SysError::new(MODIFY, Errno::INVAL))?;
        attributes.dest_qp_num = plan.dest_qp_num;
        attributes.rq_psn = plan.rq_psn;
        attributes.ah_attr.dlid = plan.dlid;
        attributes.ah_attr.port_num = plan.port;
        if let Some((gid, gid_index)) = plan.global {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh.dgid.raw = gid;
            attributes.ah_attr.grh.sgid_index = gid_index;
            attributes.ah_attr.grh.hop_limit = HOP_LIMIT;
            attributes.ah_attr.grh.traffic_class = plan.traffic_class;
        }
        let mut mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN;
        if self.kind == QueuePairKind::Rc {
            attributes.max_dest_rd_atomic = plan.max_dest_rd_atomic;
            attributes.min_rnr_timer = plan.min_rnr_timer;
            mask |= ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        }
        self.modify(attributes, mask)
    }

    /// Moves it to ready-to-send.
    pub(in crate::fabric::verbs) fn to_rts(&self, plan: &RtsPlan) -> Result<(), SysError> {
        let mut attributes = in_state(ibv_qp_state::IBV_QPS_RTS);
        attributes.sq_psn = plan.sq_psn;
        let mut mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN;
        if self.kind == QueuePairKind::Rc {
            attributes.timeout = plan.timeout;
            attributes.retry_cnt = plan.retry_count;
            attributes.rnr_retry = plan.rnr_retry_count;
            attributes.max_rd_atomic = plan.max_rd_atomic;
            mask |= ibv_qp_attr_mask::IBV_QP_TIMEOUT
                | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
                | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify(attributes, mask)
    }

    /// Sets the key that datagrams must carry to be received; others are dropped. Keys from 2^31 on are privileged.
    pub(in crate::fabric::verbs) fn set_queue_key(&self, key: u32) -> Result<(), SysError> {
        let attributes = ibv_qp_attr { qkey: key, ..attributes() };
        self.modify(attributes, ibv_qp_attr_mask::IBV_QP_QKEY)
    }

    /// Restarts a failed datagram queue pair with this key, ready to send and receive. Work posted
    /// before is forgotten.
    pub(in crate::fabric::verbs) fn restart(&self, port: u8, key: u32) -> Result<(), SysError> {
        self.modify(in_state(ibv_qp_state::IBV_QPS_RESET), ibv_qp_attr_mask::IBV_QP_STATE)?;
        let mut init = in_state(ibv_qp_state::IBV_QPS_INIT);
        (init.port_num, init.qkey) = (port, key);
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_QKEY;
        self.modify(init, mask)?;
        self.modify(in_state(ibv_qp_state::IBV_QPS_RTR), ibv_qp_attr_mask::IBV_QP_STATE)?;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN;
        self.modify(in_state(ibv_qp_state::IBV_QPS_RTS), mask)
    }

    fn modify(&self, mut attributes: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), SysError> {
        // SAFETY: the queue pair lives as long as this value; the attributes are a local variable.
        let returned =
            unsafe { rdma_sys::ibv_modify_qp(self.raw.as_ptr(), &raw mut attributes, mask.0.cast_signed()) };
        check(MODIFY, returned)
    }
}

const MODIFY: &str = "ibv_modify_qp";
/// Empty attributes.
fn attributes() -> ibv_qp_attr {
    // SAFETY: the structure is plain numbers, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// Attributes that ask for this state.
pub(super) fn in_state(qp_state: ibv_qp_state::Type) -> ibv_qp_attr {
    ibv_qp_attr { qp_state, ..attributes() }
}

fn mtu_number(bytes: u32) -> Option<u32> {
    let is_one = bytes.is_power_of_two() && (256..=4096).contains(&bytes);
    is_one.then(|| bytes.trailing_zeros() - 7)
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            id.destroy_queue_pair();
            return;
        }
        // SAFETY: the queue pair belongs to this value and is freed once; nothing refers to it, and its pending completions
        // hold only numbers.
        let returned = unsafe { rdma_sys::ibv_destroy_qp(self.raw.as_ptr()) };
        warn_left("ibv_destroy_qp", returned);
    }
}
