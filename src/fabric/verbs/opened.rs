//! Devices in use.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::device::{Device, Wish, ip_address};
use super::error::VerbsError;
use super::sys::{CmId, Concern, Context, DeviceUser, LinkLayer, MemoryWindow, ProtectionDomain, SysError};
use crate::fabric::{FabricError, Waker};
use crate::limits;

/// An open device and its capabilities.
#[derive(Debug)]
pub(super) struct OpenDevice {
    /// The device.
    pub(super) context: Arc<Context>,
    /// The protection domain of all accepted connections of peers that do not write: all of them may read the same
    /// memory.
    pub(super) serving: Arc<ProtectionDomain>,
    /// Work requests of a send queue.
    pub(super) sends_max: u32,
    /// Bytes of one work request.
    pub(super) message_len_max: u32,
    /// Reads of a peer that a connection serves at a time.
    pub(super) reads_served_max: u8,
    /// Reads that a connection has in flight at a time.
    pub(super) reads_max: u8,
    /// After how long a packet that was not acknowledged is repeated, as the exponent of the specification.
    pub(super) ack_timeout: u8,
    /// See [`Wish::traffic_class`].
    pub(super) traffic_class: Option<u8>,
    /// Whether peers read regions through memory windows.
    has_windows: bool,
    /// The queue pairs of sessions that were made.
    #[cfg(test)]
    pub(super) endpoints_made: crate::sync::atomic::AtomicU64,
}

/// The timeout of soft-RoCE: 67 ms. It repeats packets for ever, and the session ends the connection after
/// [`limits::verbs::SILENCE_NS`]. On a wire that loses one packet in 20 each way, one exchange in 10 fails, and of messages of eight
/// packets 37 %. The 18 tries that fit into the silence never fail together for an exchange, and once in 60 million such messages;
/// seven tries do once in 12 million exchanges, and once in a thousand messages.
const SOFT_ACK_TIMEOUT: u8 = 14;
/// The timeout of adapters: 268 ms, to which some round up anyway. They give up after eight: not before the session does, so a live
/// peer is not taken for dead because the wire was down for less than that.
const ACK_TIMEOUT: u8 = 16;
const _: () = assert!(8 * (4096 << ACK_TIMEOUT) > limits::verbs::SILENCE_NS + limits::verbs::QUIET_NS);

impl OpenDevice {
    fn new(context: &Arc<Context>, wish: &Wish) -> Result<Self, VerbsError> {
        let has_windows =
            !wish.without_windows && MemoryWindow::are_supported(&*ProtectionDomain::allocate(context)?)?;
        let attributes = context.attributes()?;
        let reads = |device: u32| u8::try_from(device).unwrap_or(u8::MAX).min(limits::verbs::READS_MAX);
        Ok(Self {
            context: Arc::clone(context),
            serving: allocate(context, has_windows)?,
            sends_max: limits::verbs::SENDS_MAX.min(attributes.qp_wr_max).min(attributes.cqe_max),
            message_len_max: context.message_len_max()?,
            reads_served_max: reads(attributes.qp_rd_atom_max),
            reads_max: reads(attributes.qp_init_rd_atom_max),
            ack_timeout: if attributes.is_soft { SOFT_ACK_TIMEOUT } else { ACK_TIMEOUT },
            traffic_class: wish.traffic_class,
            has_windows,
            #[cfg(test)]
            endpoints_made: crate::sync::atomic::AtomicU64::new(0),
        })
    }
}

impl OpenDevice {
    /// Sets what connections of this device have in common, before their route is resolved or they are accepted.
    pub(super) fn prepare(&self, id: &CmId) -> Result<(), SysError> {
        if let Some(class) = self.traffic_class {
            id.set_traffic_class(class)?;
        }
        id.set_ack_timeout(self.ack_timeout)
    }

    /// The protection domain of a new connection: a private one if its peer may be granted write access, so that no other
    /// peer reaches those regions; otherwise the shared one.
    pub(super) fn domain_for(&self, writes: bool) -> Result<Arc<ProtectionDomain>, SysError> {
        if writes { allocate(&self.context, self.has_windows) } else { Ok(Arc::clone(&self.serving)) }
    }
}

/// A domain for sessions.
fn allocate(context: &Arc<Context>, has_windows: bool) -> Result<Arc<ProtectionDomain>, SysError> {
    if has_windows { ProtectionDomain::with_windows(context) } else { ProtectionDomain::allocate(context) }
}

/// The devices that one fabric uses.
#[derive(Debug)]
pub(super) struct Devices {
    /// The requested devices.
    wish: Wish,
    opened: Arc<Opened>,
}

/// Those that are open, until they are removed.
#[derive(Debug, Default)]
struct Opened {
    all: Mutex<Vec<Arc<OpenDevice>>>,
    /// Wakes the thread that watches them.
    watcher: OnceLock<Arc<Waker>>,
}

impl Opened {
    /// Forgets those that were removed.
    fn sweep(&self) {
        let removed: Vec<_> = self.all.lock().extract_if(.., |device| device.context.is_removed()).collect();
        // After the lock.
        drop(removed);
    }
}

impl DeviceUser for Opened {
    fn is_concerned(&self, _: &Concern) -> bool {
        false
    }

    fn fail(&self, _: &'static str) -> bool {
        false
    }

    fn lose_device(&self) {
        self.sweep();
        self.watcher.get().into_iter().for_each(|watcher| watcher.wake());
    }
}

impl Devices {
    /// Creates an empty set; it will open any device, or only the requested one.
    pub(super) fn new(wish: Wish) -> Self {
        Self { wish, opened: Arc::default() }
    }

    /// Has this wake the thread that watches them when one is removed.
    pub(super) fn wake_with(&self, watcher: &Arc<Waker>) {
        self.opened.watcher.get_or_init(|| Arc::clone(watcher));
    }

    /// The local address to dial a peer from: the requested device's, if it has one of this family.
    pub(super) fn source(&self, target: &SocketAddr) -> Result<Option<SocketAddr>, FabricError> {
        if self.wish.device.is_none() {
            return Ok(None);
        }
        let device = match Device::choose(&Wish { is_ipv4: Some(target.is_ipv4()), ..self.wish.clone() }) {
            // The device's addresses are of the other family: the routes decide.
            Err(VerbsError::NoGid { .. }) if self.wish.gid_index.is_none() => return Ok(None),
            device => device?,
        };
        // InfiniBand addresses are not IP addresses.
        let is_ip = device.port_attributes.link_layer == LinkLayer::Ethernet;
        let mut source = SocketAddr::new(ip_address(&device.gid), 0);
        if let (SocketAddr::V6(source), SocketAddr::V6(target)) = (&mut source, target)
            && source.ip().is_unicast_link_local()
        {
            source.set_scope_id(target.scope_id());
        }
        Ok(is_ip.then_some(source))
    }

    /// Returns the open device, opening it on first use.
    pub(super) fn open(&self, context: &Arc<Context>) -> Result<Arc<OpenDevice>, FabricError> {
        if let Some(chosen) = self.wish.device.as_ref().filter(|chosen| *chosen != context.name()) {
            let (found, chosen) = (context.name().to_owned(), chosen.clone());
            return Err(VerbsError::OtherDevice { found, chosen }.into());
        }
        if context.is_removed() {
            return Err(VerbsError::DeviceGone.into());
        }
        let mut opened = self.opened.all.lock();
        if let Some(known) = opened.iter().find(|known| known.context.is_same(context)) {
            return Ok(Arc::clone(known));
        }
        let device = Arc::new(OpenDevice::new(context, &self.wish)?);
        opened.push(Arc::clone(&device));
        drop(opened);
        context.add_user(&self.opened);
        Ok(device)
    }

    /// Opens all requested devices that have an active port.
    pub(super) fn open_all(&self) -> Result<(), FabricError> {
        for context in super::device::usable(&self.wish)? {
            self.open(&context)?;
        }
        Ok(())
    }

    /// Returns all open devices.
    pub(super) fn all(&self) -> Vec<Arc<OpenDevice>> {
        self.opened.all.lock().clone()
    }
}

/// Returns the IPv4 addresses of all devices of this host.
pub(super) fn ip_addresses() -> Vec<IpAddr> {
    let addresses = |context: &Arc<Context>| -> Result<Vec<IpAddr>, SysError> {
        let mut found = Vec::new();
        for port in 1..=context.attributes()?.ports {
            found.extend(context.gids(port)?.iter().map(ip_address).filter(IpAddr::is_ipv4));
        }
        Ok(found)
    };
    let contexts = Context::all().unwrap_or_default();
    let mut found: Vec<_> = contexts.iter().filter_map(|context| addresses(context).ok()).flatten().collect();
    found.sort();
    found.dedup();
    found
}
