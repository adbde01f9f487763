//! Devices, their ports, GIDs and events.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_sys::{
    ibv_context, ibv_device_attr, ibv_device_cap_flags, ibv_event_type as names, ibv_gid_entry, ibv_port_attr,
};
use rustix::io::Errno;

use super::device_list::{self, DeviceList};
use super::event::{AsyncEvent, Concern, DeviceUser, DeviceUsers, TakenEvent};
use super::presence::{Presence, Watch};
use super::{SysError, borrow, check, set_nonblocking};
use crate::sync::atomic::{AtomicBool, Ordering};

// SAFETY: the declarations are those of infiniband/verbs.h, as tests show by what they fill and return; libibverbs, which
// the bindings link, has both functions since 32.
unsafe extern "C" {
    /// Missing in the bindings: queries the valid GIDs of all ports.
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut RawGid,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;

    /// Missing in the bindings: the name of an event, or of any other number, as a text that is never freed.
    safe fn ibv_event_type_str(event: u32) -> *const c_char;
}

/// `struct ibv_gid_entry`, without its union.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct RawGid {
    pub(super) gid: [u64; 2],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `struct ibv_async_event`, with a number instead of the bindings' enumeration, for which an unknown value of a newer kernel
/// would be undefined behaviour.
#[repr(C)]
pub(super) struct RawAsyncEvent {
    /// A pointer to what it concerns, or the number of the port.
    pub(super) element: *mut rdma_sys::ibv_qp,
    pub(super) event_type: u32,
}

const _: () = assert!(size_of::<RawGid>() == size_of::<ibv_gid_entry>());
const _: () = assert!(size_of::<RawAsyncEvent>() == size_of::<rdma_sys::ibv_async_event>());

/// All opened devices, but for those that were removed.
static OPENED: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());
/// The addresses of those that were removed and are still used. librdmacm lists them, but nobody is to begin to use them again: of a second
/// value for one of them, nothing would say that it was removed. Locked after `OPENED`.
static LEAVING: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// An opened RDMA device. It belongs to librdmacm, which uses it, too.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct Context {
    raw: NonNull<ibv_context>,
    /// The newest list that names it.
    list: Mutex<Arc<DeviceList>>,
    /// It was removed from the host.
    is_removed: AtomicBool,
    /// Whether it is still there, and its name now.
    watch: Watch,
    /// Its name when it was opened.
    name: String,
    users: DeviceUsers,
    /// A failed queue pair has not returned its work in time.
    keeps_work: AtomicBool,
}

// SAFETY: functions of libibverbs may be called by any thread at any time; the object lives as long as the list, so as this value.
unsafe impl Send for Context {}
// SAFETY: as for `Send`: the library takes its own locks where a device has state.
unsafe impl Sync for Context {}

/// The capabilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct DeviceAttributes {
    /// Work requests of one queue.
    pub(in crate::fabric::verbs) qp_wr_max: u32,
    /// Entries of a completion queue.
    pub(in crate::fabric::verbs) cqe_max: u32,
    /// Reads of a peer that a queue pair serves at a time.
    pub(in crate::fabric::verbs) qp_rd_atom_max: u32,
    /// Reads that a queue pair has in flight at a time.
    pub(in crate::fabric::verbs) qp_init_rd_atom_max: u32,
    /// Ports; they are numbered from 1 on.
    pub(in crate::fabric::verbs) ports: u8,
    /// Whether it is the kernel's soft-RoCE.
    pub(in crate::fabric::verbs) is_soft: bool,
    /// Whether it says that it has memory windows for one queue pair (type 2).
    pub(in crate::fabric::verbs) has_windows: bool,
}

/// The vendor number of soft-RoCE (RXE_VENDOR_ID in the kernel).
const SOFT_ROCE_VENDOR: u32 = 0x00ff_ffff;
/// The flags of devices with windows of type 2: bound to a queue pair, or to it and its domain.
const WINDOW_FLAGS: u32 = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
    | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;

/// The properties of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct PortAttributes {
    /// Its state.
    pub(in crate::fabric::verbs) state: PortState,
    /// Largest packet, bytes of payload.
    pub(in crate::fabric::verbs) active_mtu: u32,
    /// Local identifier in an InfiniBand subnet; 0 on Ethernet.
    pub(in crate::fabric::verbs) lid: u16,
    /// Its link layer.
    pub(in crate::fabric::verbs) link_layer: LinkLayer,
    /// Entries of its GID table.
    pub(in crate::fabric::verbs) gid_table_len: u32,
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum PortState {
    /// No link.
    Down,
    /// A link, no subnet manager yet.
    Initializing,
    /// Configured, not active yet.
    Armed,
    /// Active.
    Active,
    /// Active, but the link has just gone.
    ActiveDeferred,
    /// Another number.
    Unknown(u32),
}

impl PortState {
    fn from_number(number: u32) -> Self {
        match number {
            rdma_sys::ibv_port_state::IBV_PORT_DOWN => Self::Down,
            rdma_sys::ibv_port_state::IBV_PORT_INIT => Self::Initializing,
            rdma_sys::ibv_port_state::IBV_PORT_ARMED => Self::Armed,
            rdma_sys::ibv_port_state::IBV_PORT_ACTIVE => Self::Active,
            rdma_sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER => Self::ActiveDeferred,
            other => Self::Unknown(other),
        }
    }

    /// Whether the port is active.
    pub(in crate::fabric::verbs) fn is_active(self) -> bool {
        matches!(self, Self::Active | Self::ActiveDeferred)
    }
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum LinkLayer {
    /// InfiniBand, or unspecified by the device.
    Infiniband,
    /// Ethernet: RoCE, or iWARP.
    Ethernet,
    /// Another number.
    Unknown(u8),
}

impl LinkLayer {
    fn from_number(number: u8) -> Self {
        match number {
            0 | LINK_LAYER_INFINIBAND => Self::Infiniband,
            LINK_LAYER_ETHERNET => Self::Ethernet,
            other => Self::Unknown(other),
        }
    }
}

/// The library's name for an event.
pub(super) fn event_name(number: u32) -> &'static str {
    // SAFETY: every number has a text, which is static and ended by a zero.
    let name = unsafe { CStr::from_ptr(ibv_event_type_str(number)) };
    name.to_str().unwrap_or("unknown")
}

/// The events that point to a queue pair.
const QUEUE_PAIR_EVENTS: [names; 4] = [
    names::IBV_EVENT_QP_FATAL,
    names::IBV_EVENT_QP_REQ_ERR,
    names::IBV_EVENT_QP_ACCESS_ERR,
    names::IBV_EVENT_COMM_EST,
];

/// The events that name a port.
const PORT_EVENTS: [names; 7] = [
    names::IBV_EVENT_PORT_ACTIVE,
    names::IBV_EVENT_PORT_ERR,
    names::IBV_EVENT_LID_CHANGE,
    names::IBV_EVENT_PKEY_CHANGE,
    names::IBV_EVENT_SM_CHANGE,
    names::IBV_EVENT_CLIENT_REREGISTER,
    names::IBV_EVENT_GID_CHANGE,
];

/// The events after which what they concern is unusable, by a fault of the device. A forbidden request of the peer ends the queue pair,
/// too: that is the peer's fault, and the receives of the queue pair report it.
const FAULTS: [names; 3] =
    [names::IBV_EVENT_CQ_ERR, names::IBV_EVENT_QP_FATAL, names::IBV_EVENT_DEVICE_FATAL];

/// `IBV_LINK_LAYER_INFINIBAND`, missing in the bindings like all of its unnamed enumeration.
pub(super) const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

/// One of a port's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct Gid {
    /// Its index in the port's table.
    pub(in crate::fabric::verbs) index: u32,
    /// The address in the form of IPv6; IPv4 addresses are mapped.
    pub(in crate::fabric::verbs) bytes: [u8; 16],
    /// The protocol of its packets.
    pub(in crate::fabric::verbs) kind: GidKind,
}

/// The protocol of packets from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE without IP.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
    /// Another number.
    Unknown(u32),
}

impl GidKind {
    fn from_number(number: u32) -> Self {
        match number {
            rdma_sys::IBV_GID_TYPE_IB => Self::Infiniband,
            rdma_sys::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            rdma_sys::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            other => Self::Unknown(other),
        }
    }
}

impl Context {
    /// Lists all current devices. They are librdmacm's, so that queue pairs of connections can be created in their
    /// protection domains. A device that cannot be opened is missing; an error if none can.
    pub(in crate::fabric::verbs) fn all() -> Result<Vec<Arc<Self>>, SysError> {
        let (mut contexts, mut failure) = (Vec::new(), None);
        for (_, opened) in Self::list()? {
            match opened {
                Ok(context) => contexts.push(context),
                Err(error) => {
                    tracing::warn!(target: "fabricast", %error, "an RDMA device cannot be opened");
                    failure.get_or_insert(error);
                }
            }
        }
        failure.filter(|_| contexts.is_empty()).map_or(Ok(contexts), Err)
    }

    /// The same, each with the library's object, and why it cannot be opened.
    #[expect(clippy::type_complexity, reason = "a list of two columns")]
    fn list() -> Result<Vec<(NonNull<ibv_context>, Result<Arc<Self>, SysError>)>, SysError> {
        // First, so that none is forgotten between the two.
        let mut opened = OPENED.lock();
        let list = Arc::new(DeviceList::take()?);
        let mut listed = Vec::new();
        for raw in list.devices() {
            if LEAVING.lock().contains(&raw.as_ptr().addr()) {
                continue;
            }
            let context = match opened.iter().find(|context| context.raw == raw) {
                Some(context) => {
                    // An earlier list may name devices that are no more.
                    *context.list.lock() = Arc::clone(&list);
                    Ok(Arc::clone(context))
                }
                None => {
                    Self::open(raw, &list).map(Arc::new).inspect(|context| opened.push(Arc::clone(context)))
                }
            };
            listed.push((raw, context));
        }
        Ok(listed)
    }

    /// Notes which devices were removed, by the kernel's list of those that programs can open: where no identifier is bound to a device,
    /// nothing else says so.
    pub(in crate::fabric::verbs) fn note_removals() {
        let mut gone = OPENED.lock().clone();
        gone.retain(|context| context.watch.ask() == Presence::Gone);
        gone.iter().for_each(|context| context.set_removed());
    }

    /// Notes that the device was removed: everything that uses it fails, and it is closed once nothing uses it.
    pub(in crate::fabric::verbs) fn set_removed(&self) {
        if self.is_removed.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(target: "fabricast", device = self.name, "an RDMA device was removed");
        device_list::note_removal();
        let forgotten: Vec<_> = {
            let mut opened = OPENED.lock();
            LEAVING.lock().push(self.raw.as_ptr().addr());
            opened.extract_if(.., |context| context.is_same(self)).collect()
        };
        self.users.all().iter().for_each(|user| user.lose_device());
        drop(forgotten);
    }

    /// Returns whether it was removed from the host.
    pub(in crate::fabric::verbs) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    /// As if it had been removed, or not.
    #[cfg(test)]
    pub(in crate::fabric::verbs) fn pretend(&self, is_removed: bool) {
        self.is_removed.store(is_removed, Ordering::Relaxed);
    }

    /// Wraps the library's object of an open device.
    pub(super) fn find(raw: *mut ibv_context) -> Result<Option<Arc<Self>>, SysError> {
        if let Some(context) = Self::known(raw) {
            return Ok(Some(context));
        }
        let found = Self::list()?.into_iter().find(|(listed, _)| listed.as_ptr() == raw);
        found.map(|(_, opened)| opened).transpose()
    }

    /// The same, if it is known already, and was not removed.
    pub(super) fn known(raw: *mut ibv_context) -> Option<Arc<Self>> {
        OPENED.lock().iter().find(|context| context.raw.as_ptr() == raw).map(Arc::clone)
    }

    fn open(raw: NonNull<ibv_context>, list: &Arc<DeviceList>) -> Result<Self, SysError> {
        // SAFETY: the context is an entry of a list whose devices are open.
        let device = unsafe { (*raw.as_ptr()).device };
        // SAFETY: the device of an open context is valid as long as the context.
        let name = unsafe { rdma_sys::ibv_get_device_name(device) };
        // SAFETY: the library's name is a field of the device, ended by a zero, and is copied at once.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: the context is open, and the field is written only when it is opened.
        let commands = unsafe { (*raw.as_ptr()).cmd_fd };
        // SAFETY: the descriptor belongs to the context, which stays open as long as the list.
        let commands = unsafe { borrow(commands) };
        let context = Self {
            raw,
            list: Mutex::new(Arc::clone(list)),
            is_removed: AtomicBool::new(false),
            watch: Watch::of(commands)?,
            name,
            users: DeviceUsers::default(),
            keeps_work: AtomicBool::new(false),
        };
        set_nonblocking(context.async_handle())?;
        Ok(context)
    }

    /// The library's object.
    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// Has this fail when the device reports a fault or is removed, at once if it was removed before.
    pub(in crate::fabric::verbs) fn add_user<U: DeviceUser + 'static>(&self, user: &Arc<U>) {
        self.users.add(user);
        // It may have been removed before it was told.
        if self.is_removed() {
            user.lose_device();
        }
    }

    /// What fails when the device reports a fault.
    pub(in crate::fabric::verbs) fn users(&self) -> &DeviceUsers {
        &self.users
    }

    /// Returns whether a failed queue pair of it has not returned its work in time: others are not waited for.
    pub(in crate::fabric::verbs) fn keeps_work(&self) -> bool {
        self.keeps_work.load(Ordering::Relaxed)
    }

    /// Notes that a failed queue pair has not returned its work in time.
    pub(in crate::fabric::verbs) fn set_keeps_work(&self) {
        self.keeps_work.store(true, Ordering::Relaxed);
    }

    /// Returns its name when it was opened, such as `mlx5_0`.
    pub(in crate::fabric::verbs) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether this is its name, or was when it was opened: it may be given another one.
    pub(in crate::fabric::verbs) fn is_named(&self, name: &str) -> bool {
        self.name == name || matches!(self.watch.ask(), Presence::Named(now) if now == name)
    }

    /// Returns whether both are the same device.
    pub(in crate::fabric::verbs) fn is_same(&self, other: &Self) -> bool {
        self.raw == other.raw
    }

    /// Queries its capabilities.
    pub(in crate::fabric::verbs) fn attributes(&self) -> Result<DeviceAttributes, SysError> {
        let mut raw = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the place has room for the attributes.
        let returned = unsafe { rdma_sys::ibv_query_device(self.raw(), raw.as_mut_ptr()) };
        check("ibv_query_device", returned)?;
        // SAFETY: the structure is plain numbers, for which zeros are valid, and was filled by the call.
        let raw = unsafe { raw.assume_init() };
        let count = |number: c_int| u32::try_from(number).unwrap_or(0);
        Ok(DeviceAttributes {
            qp_wr_max: count(raw.max_qp_wr),
            cqe_max: count(raw.max_cqe),
            qp_rd_atom_max: count(raw.max_qp_rd_atom),
            qp_init_rd_atom_max: count(raw.max_qp_init_rd_atom),
            ports: raw.phys_port_cnt,
            is_soft: raw.vendor_id == SOFT_ROCE_VENDOR,
            has_windows: raw.device_cap_flags & WINDOW_FLAGS != 0,
        })
    }

    /// Returns the bytes that one work request can move through any of its ports.
    pub(in crate::fabric::verbs) fn message_len_max(&self) -> Result<u32, SysError> {
        let ports = 1..=self.attributes()?.ports;
        let lens = ports.map(|number| Ok(self.query_port(number)?.max_msg_sz));
        Ok(lens.collect::<Result<Vec<_>, SysError>>()?.into_iter().min().unwrap_or(0))
    }

    /// Queries a port; ports are numbered from 1.
    pub(in crate::fabric::verbs) fn port(&self, number: u8) -> Result<PortAttributes, SysError> {
        let raw = self.query_port(number)?;
        Ok(PortAttributes {
            state: PortState::from_number(raw.state),
            // The numbers 1 to 5 stand for 256 to 4096.
            active_mtu: if (1..=5).contains(&raw.active_mtu) { 128 << raw.active_mtu } else { 0 },
            lid: raw.lid,
            link_layer: LinkLayer::from_number(raw.link_layer),
            gid_table_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
        })
    }

    fn query_port(&self, number: u8) -> Result<ibv_port_attr, SysError> {
        // Zeroed because the call leaves fields of newer versions alone.
        let mut raw = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the place fits the newest version of the attributes.
        let returned = unsafe { rdma_sys::___ibv_query_port(self.raw(), number, raw.as_mut_ptr()) };
        check("ibv_query_port", returned)?;
        // SAFETY: the structure is plain numbers, for which zeros are valid, and was filled by the call.
        Ok(unsafe { raw.assume_init() })
    }

    /// Returns the valid addresses of a port.
    pub(in crate::fabric::verbs) fn gids(&self, port: u8) -> Result<Vec<Gid>, SysError> {
        const CALL: &str = "ibv_query_gid_table";
        let mut room = 0;
        for number in 1..=self.attributes()?.ports {
            room += self.port(number)?.gid_table_len as usize;
        }
        let mut entries = vec![RawGid::default(); room];
        let entry_len = size_of::<RawGid>();
        // SAFETY: the context is open; the vector has `room` entries of `entry_len` bytes each.
        let len = unsafe { _ibv_query_gid_table(self.raw(), entries.as_mut_ptr(), room, 0, entry_len) };
        if len < 0 {
            let errno = i32::try_from(-len).unwrap_or(0);
            return Err(SysError { call: CALL, reason: std::io::Error::from_raw_os_error(errno) });
        }
        entries.truncate(len.unsigned_abs());
        entries.retain(|entry| entry.port_num == u32::from(port));
        let gids = entries.iter().map(|entry| {
            let [first, second] = entry.gid.map(|half| u128::from(half.to_be()));
            Gid {
                index: entry.gid_index,
                bytes: std::net::Ipv6Addr::from_bits(first << 64 | second).octets(),
                kind: GidKind::from_number(entry.gid_type),
            }
        });
        Ok(gids.collect())
    }

    /// Readable when [`Self::next_async_event`] has an event.
    pub(in crate::fabric::verbs) fn async_handle(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and the field is written only when it is opened.
        let handle = unsafe { (*self.raw()).async_fd };
        // SAFETY: the descriptor belongs to the context, which stays open as long as this value.
        unsafe { borrow(handle) }
    }

    /// Returns the next event of the device, or of an object on it, if any, and the users that must [fail](super::event::fail_all).
    pub(in crate::fabric::verbs) fn next_async_event(&self) -> Result<Option<TakenEvent>, SysError> {
        let mut raw = MaybeUninit::<RawAsyncEvent>::zeroed();
        let place = raw.as_mut_ptr().cast();
        // SAFETY: the context is open, and the place has the layout of the library's event, as a test shows.
        let returned = unsafe { rdma_sys::ibv_get_async_event(self.raw(), place) };
        if returned != 0 {
            let error = SysError::last("ibv_get_async_event");
            return if error.is(Errno::AGAIN) || error.is(Errno::INTR) { Ok(None) } else { Err(error) };
        }
        // SAFETY: zeroed, then filled by the call; a pointer and a number have no invalid values.
        let raw = unsafe { raw.assume_init_ref() };
        let name = event_name(raw.event_type);
        let is_one_of = |kinds: &[names]| kinds.iter().any(|kind| *kind as u32 == raw.event_type);
        let concern = if is_one_of(&QUEUE_PAIR_EVENTS) {
            // SAFETY: events of these kinds point to a queue pair, whose destruction waits until they are
            // acknowledged, so it is still alive.
            Concern::QueuePair(unsafe { (*raw.element).qp_num })
        } else if is_one_of(&[names::IBV_EVENT_CQ_ERR]) {
            Concern::CompletionQueue(raw.element.addr())
        } else if is_one_of(&PORT_EVENTS) {
            // SAFETY: zeroed, then filled by the call, which writes the number of a port for events of these kinds.
            let port = unsafe { (&raw const raw.element).cast::<c_int>().read() };
            Concern::Port(u8::try_from(port).unwrap_or(0))
        } else {
            Concern::Device
        };
        let event = AsyncEvent { name, concern, is_fault: is_one_of(&FAULTS) };
        // What the event names is not destroyed before it is acknowledged, so no other object has its number yet.
        let concerned = self.users().concerned_by(&event);
        // SAFETY: the event came from ibv_get_async_event and is acknowledged once, unchanged.
        unsafe { rdma_sys::ibv_ack_async_event(place) };
        Ok(Some((event, concerned)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_removed() {
            // SAFETY: the context is open as long as the list. Everything made on it held this value, so it is gone; the device is
            // gone, too, and new objects are made on another context.
            unsafe { device_list::leave(self.raw) };
            LEAVING.lock().retain(|address| *address != self.raw.as_ptr().addr());
        }
    }
}
