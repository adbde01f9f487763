//! Connection management: event channels, and the identifiers of connections.

mod multicast;

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

pub(in crate::fabric::verbs) use multicast::Membership;
use rdma_sys::{
    ibv_qp_attr, ibv_qp_state, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_port_space,
};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;
use rustix::net::addr::{SocketAddrArg, SocketAddrStorage};

use super::identifier::{EventChannel, IdHandle};
use super::queue_pair::{self, QueuePair, QueuePairPlan};
use super::{Context, Path, ProtectionDomain, SysError, check};

// Constants that are missing in the bindings.
/// `RDMA_OPTION_ID`.
pub(super) const OPTION_ID: c_int = 0;
/// `RDMA_OPTION_ID_TOS`.
pub(super) const OPTION_ID_TOS: c_int = 0;
/// `RDMA_OPTION_ID_ACK_TIMEOUT`.
pub(super) const OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// Bytes of private data in a connection request.
pub(super) const CONNECT_DATA_LEN_MAX: usize = 56;
/// Bytes of private data in an acceptance.
pub(super) const ACCEPT_DATA_LEN_MAX: usize = 196;
/// Bytes of private data in a rejection.
pub(super) const REJECT_DATA_LEN_MAX: usize = 148;

/// How the connection manager has connected a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct QueuePairRoute {
    /// The local port.
    pub(in crate::fabric::verbs) port: u8,
    /// The index of the local GID in the port's table, if packets carry GIDs.
    pub(in crate::fabric::verbs) gid_index: Option<u8>,
    /// The peer's GID.
    pub(in crate::fabric::verbs) peer_gid: [u8; 16],
    /// The number of the peer's queue pair.
    pub(in crate::fabric::verbs) peer_queue_pair: u32,
    /// The packet sequence number with which this end began.
    pub(in crate::fabric::verbs) first_sent: u32,
    /// The packet sequence number with which the peer began.
    pub(in crate::fabric::verbs) first_received: u32,
}

impl EventChannel {
    /// Returns the next event, if any.
    pub(in crate::fabric::verbs) fn next(self: &Arc<Self>) -> Result<Option<CmEvent>, SysError> {
        let busy = self.busy.lock();
        let mut event = ptr::null_mut();
        // SAFETY: the channel lives as long as this value, and the place is a local variable.
        let returned = unsafe { rdma_sys::rdma_get_cm_event(self.raw.as_ptr(), &raw mut event) };
        if returned != 0 {
            let error = SysError::last("rdma_get_cm_event");
            return if error.is(Errno::AGAIN) || error.is(Errno::INTR) { Ok(None) } else { Err(error) };
        }
        let Some(event) = NonNull::new(event) else { return Ok(None) };
        // SAFETY: the event was just taken and is not acknowledged yet, so it and the identifiers that it names
        // are alive.
        let (copy, new_id) = unsafe { copy_event(event) };
        // SAFETY: the event is acknowledged once, and nothing refers to it any more.
        let returned = unsafe { rdma_sys::rdma_ack_cm_event(event.as_ptr()) };
        // Dropping an identifier takes the lock, which must be free by then.
        drop(busy);
        let new_id = new_id.map(|raw| CmId(Arc::new(IdHandle::new(raw, self))));
        check("rdma_ack_cm_event", returned)?;
        Ok(Some(CmEvent { new_id, ..copy }))
    }
}

/// Copies an event, and returns its new identifier, if any.
///
/// # Safety
///
/// The event must not be acknowledged yet.
unsafe fn copy_event(event: NonNull<rdma_cm_event>) -> (CmEvent, Option<NonNull<rdma_cm_id>>) {
    // SAFETY: the caller has not acknowledged the event, so it is alive; nothing writes it.
    let event = unsafe { event.as_ref() };
    // SAFETY: the union holds this field, or that of datagrams, or zeros. Both begin with the same pointer and length, the
    // rest is numbers: no value of it is invalid.
    let connection = unsafe { event.param.conn };
    let data_len = usize::from(connection.private_data_len);
    let data: *const u8 = connection.private_data.cast();
    let private_data = if data.is_null() || data_len == 0 {
        Vec::new()
    } else {
        // SAFETY: the library reports this many bytes, which are part of the event.
        unsafe { std::slice::from_raw_parts(data, data_len) }.to_vec()
    };
    let kind = CmEventKind::from_number(event.event);
    let new_id = NonNull::new(event.id).filter(|_| kind == CmEventKind::ConnectRequest);
    let copy = CmEvent {
        kind,
        status: event.status,
        private_data,
        new_id: None,
        joined: (kind == CmEventKind::MulticastJoin).then(|| JoinedGroup::of(event)),
        responder_resources: connection.responder_resources,
        initiator_depth: connection.initiator_depth,
    };
    (copy, new_id)
}

/// A joined group, as its senders need it.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) struct JoinedGroup {
    /// The path to it.
    pub(in crate::fabric::verbs) path: Path,
    /// The queue pair number that addresses all members.
    pub(in crate::fabric::verbs) queue_pair: u32,
}

impl JoinedGroup {
    /// Copies the group of a join event.
    fn of(event: &rdma_cm_event) -> Self {
        // SAFETY: with events of this kind the union holds this field; it is numbers and a pointer, no value of which is
        // invalid, and the pointer is not followed.
        let datagrams = unsafe { event.param.ud };
        Self { path: Path(datagrams.ah_attr), queue_pair: datagrams.qp_num }
    }
}

/// An event of a connection.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct CmEvent {
    /// Its kind.
    pub(in crate::fabric::verbs) kind: CmEventKind,
    /// 0, a negative error number, or the reason of a rejection.
    pub(in crate::fabric::verbs) status: i32,
    /// The peer's private data, padded with zeros to the maximum length.
    pub(in crate::fabric::verbs) private_data: Vec<u8>,
    /// The identifier of a requested connection, on the channel of this event.
    pub(in crate::fabric::verbs) new_id: Option<CmId>,
    /// The group that was joined.
    pub(in crate::fabric::verbs) joined: Option<JoinedGroup>,
    /// Reads that this end is to serve at a time.
    pub(in crate::fabric::verbs) responder_resources: u8,
    /// Reads that the peer serves at a time.
    pub(in crate::fabric::verbs) initiator_depth: u8,
}

/// The kinds of [`CmEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum CmEventKind {
    /// The address belongs to a device.
    AddressResolved,
    /// No device reaches the address.
    AddressError,
    /// The route to the peer is known.
    RouteResolved,
    /// There is no route.
    RouteError,
    /// A peer requests a connection.
    ConnectRequest,
    /// The peer accepted, and this end has no queue pair on the identifier.
    ConnectResponse,
    /// The connection failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer rejected the connection, or no node listens.
    Rejected,
    /// The connection is established.
    Established,
    /// The connection is over.
    Disconnected,
    /// The device is gone.
    DeviceRemoval,
    /// A multicast group was joined.
    MulticastJoin,
    /// A multicast group was not joined, or is lost.
    MulticastError,
    /// The local address changed.
    AddressChange,
    /// The queue pair of an ended connection may be reused.
    TimewaitExit,
    /// Another number.
    Unknown(u32),
}

impl CmEventKind {
    fn from_number(number: u32) -> Self {
        use rdma_cm_event_type as names;
        match number {
            names::RDMA_CM_EVENT_ADDR_RESOLVED => Self::AddressResolved,
            names::RDMA_CM_EVENT_ADDR_ERROR => Self::AddressError,
            names::RDMA_CM_EVENT_ROUTE_RESOLVED => Self::RouteResolved,
            names::RDMA_CM_EVENT_ROUTE_ERROR => Self::RouteError,
            names::RDMA_CM_EVENT_CONNECT_REQUEST => Self::ConnectRequest,
            names::RDMA_CM_EVENT_CONNECT_RESPONSE => Self::ConnectResponse,
            names::RDMA_CM_EVENT_CONNECT_ERROR => Self::ConnectError,
            names::RDMA_CM_EVENT_UNREACHABLE => Self::Unreachable,
            names::RDMA_CM_EVENT_REJECTED => Self::Rejected,
            names::RDMA_CM_EVENT_ESTABLISHED => Self::Established,
            names::RDMA_CM_EVENT_DISCONNECTED => Self::Disconnected,
            names::RDMA_CM_EVENT_DEVICE_REMOVAL => Self::DeviceRemoval,
            names::RDMA_CM_EVENT_MULTICAST_JOIN => Self::MulticastJoin,
            names::RDMA_CM_EVENT_MULTICAST_ERROR => Self::MulticastError,
            names::RDMA_CM_EVENT_ADDR_CHANGE => Self::AddressChange,
            names::RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            other => Self::Unknown(other),
        }
    }
}

/// The parameters of a connection request or acceptance.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) struct ConnectParameters<'a> {
    /// The private data; at most 56 bytes in a request, 196 in an acceptance.
    pub(in crate::fabric::verbs) private_data: &'a [u8],
    /// Reads of the peer served at a time.
    pub(in crate::fabric::verbs) responder_resources: u8,
    /// Reads in flight at a time.
    pub(in crate::fabric::verbs) initiator_depth: u8,
    /// Retransmissions of an unacknowledged packet, at most 7: then some devices never give up.
    pub(in crate::fabric::verbs) retry_count: u8,
    /// Retransmissions when the peer had no receive; 7 is for ever.
    pub(in crate::fabric::verbs) rnr_retry_count: u8,
}

impl ConnectParameters<'_> {
    fn raw(&self, call: &'static str, len_max: usize) -> Result<rdma_conn_param, SysError> {
        let len = u8::try_from(self.private_data.len()).ok().filter(|len| usize::from(*len) <= len_max);
        Ok(rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: len.ok_or_else(|| SysError::new(call, Errno::INVAL))?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        })
    }
}

/// The purpose of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum PortSpace {
    /// Connections.
    Connections,
    /// Datagrams.
    Datagrams,
}

/// The identifier of a connection, of one being established, or of a listener.
#[derive(Clone, Debug)]
pub(in crate::fabric::verbs) struct CmId(Arc<IdHandle>);

impl CmId {
    /// Creates an identifier, whose events appear on this channel.
    pub(in crate::fabric::verbs) fn create(
        channel: &Arc<EventChannel>,
        space: PortSpace,
    ) -> Result<Self, SysError> {
        let mut raw = ptr::null_mut();
        let space = match space {
            PortSpace::Connections => rdma_port_space::RDMA_PS_TCP,
            PortSpace::Datagrams => rdma_port_space::RDMA_PS_UDP,
        };
        // SAFETY: the channel is alive, and the result holds it; the place is a local variable.
        let returned =
            unsafe { rdma_sys::rdma_create_id(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), space) };
        check("rdma_create_id", returned)?;
        let raw = NonNull::new(raw).ok_or_else(|| SysError::new("rdma_create_id", Errno::INVAL))?;
        Ok(Self(Arc::new(IdHandle::new(raw, channel))))
    }

    /// Sets the acknowledgement timeout: 4.096 µs times two to this power. Only before the route is resolved.
    pub(in crate::fabric::verbs) fn set_ack_timeout(&self, timeout: u8) -> Result<(), SysError> {
        self.set_option(OPTION_ID_ACK_TIMEOUT, timeout)
    }

    /// Sets the traffic class of packets, of a connection only before the route is resolved. The accepting end takes that of the dialling
    /// one.
    pub(in crate::fabric::verbs) fn set_traffic_class(&self, class: u8) -> Result<(), SysError> {
        self.set_option(OPTION_ID_TOS, class)
    }

    fn set_option<T: Copy>(&self, option: c_int, mut value: T) -> Result<(), SysError> {
        let place = (&raw mut value).cast();
        let len = size_of::<T>();
        let call = |id| {
            // SAFETY: the identifier lives as long as this value; the option is a local variable of this length.
            unsafe { rdma_sys::rdma_set_option(id, OPTION_ID, option, place, len) }
        };
        check("rdma_set_option", self.0.with(call))
    }

    /// Binds it to a local address.
    pub(in crate::fabric::verbs) fn bind(&self, address: &SocketAddr) -> Result<(), SysError> {
        let mut address = address.as_any();
        let place = address.as_mut_ptr().cast();
        // SAFETY: the identifier lives as long as this value; the address is a local variable, as long as its family
        // requires.
        let returned = self.0.with(|id| unsafe { rdma_sys::rdma_bind_addr(id, place) });
        check("rdma_bind_addr", returned)
    }

    /// Listens at its address, with this backlog.
    pub(in crate::fabric::verbs) fn listen(&self, backlog: i32) -> Result<(), SysError> {
        // SAFETY: the identifier lives as long as this value.
        let returned = self.0.with(|id| unsafe { rdma_sys::rdma_listen(id, backlog) });
        check("rdma_listen", returned)
    }

    /// Starts resolving a peer's address to a device, from a local address if given.
    pub(in crate::fabric::verbs) fn resolve_address(
        &self,
        source: Option<&SocketAddr>,
        target: &SocketAddr,
        timeout_ms: i32,
    ) -> Result<(), SysError> {
        let mut source = source.map(SocketAddrArg::as_any);
        let mut target = target.as_any();
        let source = source.as_mut().map_or(ptr::null_mut(), |source| source.as_mut_ptr().cast());
        let target = target.as_mut_ptr().cast();
        let call = |id| {
            // SAFETY: the identifier lives as long as this value; the addresses are local variables, each as long as
            // its family requires, and the first may be missing.
            unsafe { rdma_sys::rdma_resolve_addr(id, source, target, timeout_ms) }
        };
        check("rdma_resolve_addr", self.0.with(call))
    }

    /// Starts resolving the route to the peer.
    pub(in crate::fabric::verbs) fn resolve_route(&self, timeout_ms: i32) -> Result<(), SysError> {
        const CALL: &str = "rdma_resolve_route";
        // SAFETY: the identifier lives as long as this value, and is bound to a device.
        self.0.with_device(CALL, |id| unsafe { rdma_sys::rdma_resolve_route(id, timeout_ms) })
    }

    /// Moves its events, including pending ones, to another channel.
    pub(in crate::fabric::verbs) fn migrate(&self, to: &Arc<EventChannel>) -> Result<(), SysError> {
        let mut channel = self.0.channel.lock();
        if Arc::ptr_eq(&channel, to) {
            return Ok(());
        }
        // Both channels, since events of the identifier may be taken from either; in one order for all threads.
        let (first, second) = if channel.raw < to.raw { (&*channel, to) } else { (to, &*channel) };
        let busy = (first.busy.lock(), second.busy.lock());
        // SAFETY: the identifier and both channels are alive; all events that were taken are acknowledged, so the
        // call does not wait for any.
        let returned = unsafe { rdma_sys::rdma_migrate_id(self.0.raw.as_ptr(), to.raw.as_ptr()) };
        drop(busy);
        check("rdma_migrate_id", returned)?;
        *channel = Arc::clone(to);
        Ok(())
    }

    /// Returns its device, once it has one.
    pub(in crate::fabric::verbs) fn context(&self) -> Result<Option<Arc<Context>>, SysError> {
        // SAFETY: the identifier lives as long as this value, and its device is written by calls under the lock.
        let verbs = self.0.with(|id| unsafe { (*id).verbs });
        if verbs.is_null() { Ok(None) } else { Context::find(verbs) }
    }

    /// Notes that its device was removed: what uses the device without an identifier is not told otherwise.
    pub(in crate::fabric::verbs) fn lose_device(&self) {
        // SAFETY: the identifier lives as long as this value, and its device is written by calls under the lock.
        let verbs = self.0.with(|id| unsafe { (*id).verbs });
        if let Some(context) = Context::known(verbs) {
            context.set_removed();
        }
    }

    /// Creates a queue pair for the connection, in a state that accepts receives, or one for datagrams, which
    /// can send at once. There can be one at a time.
    pub(in crate::fabric::verbs) fn create_queue_pair(
        &self,
        domain: &Arc<ProtectionDomain>,
        plan: &QueuePairPlan<'_>,
    ) -> Result<QueuePair, SysError> {
        const CALL: &str = "rdma_create_qp";
        let mut attributes = queue_pair::init_attributes(CALL, domain, plan)?;
        let place = &raw mut attributes;
        // SAFETY: identifier, domain and queues are alive, and the result holds them; the library refuses a domain of
        // a device other than the identifier's.
        let returned = self.0.with(|id| unsafe { rdma_sys::rdma_create_qp(id, domain.raw(), place) });
        check(CALL, returned)?;
        // SAFETY: the identifier lives as long as this value, and its queue pair is written by calls under the lock.
        let raw = self.0.with(|id| unsafe { (*id).qp });
        let raw = NonNull::new(raw).ok_or_else(|| SysError::new(CALL, Errno::INVAL))?;
        Ok(QueuePair::new(raw, Some(Arc::clone(&self.0)), domain, plan, &attributes))
    }

    /// Requests the connection.
    pub(in crate::fabric::verbs) fn connect(
        &self,
        parameters: &ConnectParameters<'_>,
    ) -> Result<(), SysError> {
        const CALL: &str = "rdma_connect";
        let mut raw = parameters.raw(CALL, CONNECT_DATA_LEN_MAX)?;
        self.0.set_peer();
        let place = &raw mut raw;
        // SAFETY: the identifier lives as long as this value, and is bound to a device; the parameters and the bytes
        // they point to are borrowed for the call, which copies them.
        self.0.with_device(CALL, |id| unsafe { rdma_sys::rdma_connect(id, place) })
    }

    /// Accepts the requested connection.
    pub(in crate::fabric::verbs) fn accept(
        &self,
        parameters: &ConnectParameters<'_>,
    ) -> Result<(), SysError> {
        const CALL: &str = "rdma_accept";
        let mut raw = parameters.raw(CALL, ACCEPT_DATA_LEN_MAX)?;
        self.0.set_peer();
        let place = &raw mut raw;
        // SAFETY: the identifier lives as long as this value, and is bound to a device; the parameters and the bytes
        // they point to are borrowed for the call, which copies them.
        self.0.with_device(CALL, |id| unsafe { rdma_sys::rdma_accept(id, place) })
    }

    /// Reports that the peer uses the connection, which then counts as established even if its last message is lost.
    pub(in crate::fabric::verbs) fn establish(&self) -> Result<(), SysError> {
        let event = rdma_sys::ibv_event_type::IBV_EVENT_COMM_EST;
        let call = |id| {
            // SAFETY: the identifier lives as long as this value, and the kernel checks whether the event fits.
            unsafe { rdma_sys::rdma_notify(id, event) }
        };
        check("rdma_notify", self.0.with(call))
    }

    /// Rejects the requested connection with a reason of at most 148 bytes.
    pub(in crate::fabric::verbs) fn reject(&self, private_data: &[u8]) -> Result<(), SysError> {
        const CALL: &str = "rdma_reject";
        let len = u8::try_from(private_data.len()).ok();
        let len = len.filter(|len| usize::from(*len) <= REJECT_DATA_LEN_MAX);
        let len = len.ok_or_else(|| SysError::new(CALL, Errno::INVAL))?;
        let data = private_data.as_ptr().cast();
        // SAFETY: the identifier lives as long as this value; there are `len` bytes, which the call copies.
        check(CALL, self.0.with(|id| unsafe { rdma_sys::rdma_reject(id, data, len) }))
    }

    /// Disconnects: the queue pair fails, and the peer is notified.
    pub(in crate::fabric::verbs) fn disconnect(&self) -> Result<(), SysError> {
        // SAFETY: the identifier lives as long as this value.
        check("rdma_disconnect", self.0.with(|id| unsafe { rdma_sys::rdma_disconnect(id) }))
    }

    /// Returns how its queue pair is connected, once the peer has answered.
    pub(in crate::fabric::verbs) fn route(&self) -> Result<QueuePairRoute, SysError> {
        let receiving = self.attributes(ibv_qp_state::IBV_QPS_RTR)?;
        let sending = self.attributes(ibv_qp_state::IBV_QPS_RTS)?;
        let address = receiving.ah_attr;
        // SAFETY: every member of the union is as many bytes, which were zeros before the call.
        let peer_gid = unsafe { address.grh.dgid.raw };
        Ok(QueuePairRoute {
            port: address.port_num,
            gid_index: (address.is_global != 0).then_some(address.grh.sgid_index),
            peer_gid,
            peer_queue_pair: receiving.dest_qp_num,
            first_sent: sending.sq_psn,
            first_received: receiving.rq_psn,
        })
    }

    /// The attributes with which its queue pair enters this state.
    fn attributes(&self, state: ibv_qp_state::Type) -> Result<ibv_qp_attr, SysError> {
        const CALL: &str = "rdma_init_qp_attr";
        let (mut attributes, mut mask) = (queue_pair::in_state(state), 0);
        let (place, mask) = (&raw mut attributes, &raw mut mask);
        // SAFETY: the identifier lives as long as this value, and is bound to a device; both places are local variables.
        self.0.with_device(CALL, |id| unsafe { rdma_sys::rdma_init_qp_attr(id, place, mask) })?;
        Ok(attributes)
    }

    /// Returns its local address, once it has one.
    pub(in crate::fabric::verbs) fn local_address(&self) -> Option<SocketAddr> {
        self.0.with(|id| {
            // SAFETY: the identifier is alive, and its addresses are written only by calls under the lock.
            let place = unsafe { &raw const (*id).route.addr.src_addr_union };
            // SAFETY: the union fits addresses of every family, and was initialised to zeros.
            unsafe { read_address(place.cast()) }
        })
    }

    /// Returns the peer's address, once known.
    pub(in crate::fabric::verbs) fn peer_address(&self) -> Option<SocketAddr> {
        self.0.with(|id| {
            // SAFETY: the identifier is alive, and its addresses are written only by calls under the lock.
            let place = unsafe { &raw const (*id).route.addr.dst_addr_union };
            // SAFETY: the union fits addresses of every family, and was initialised to zeros.
            unsafe { read_address(place.cast()) }
        })
    }
}

/// Reads an IP address; `None` for other families.
///
/// # Safety
///
/// The place must be a `sockaddr_storage` without uninitialized bytes.
unsafe fn read_address(place: *const SocketAddrStorage) -> Option<SocketAddr> {
    let len = u32::try_from(size_of::<SocketAddrStorage>()).ok()?;
    // SAFETY: the caller guarantees that the place holds this many bytes.
    let address = unsafe { SocketAddrAny::read(place, len) };
    SocketAddr::try_from(address).ok()
}
