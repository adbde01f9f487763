//! Selection of the device, port and address, and the limit of registered memory.
//!
//! The host's devices are queried first, then judged by pure functions.

use std::fmt::{self, Write};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::error::VerbsError;
use super::sys::{
    Context, Gid, GidKind, LinkLayer, MemoryRegion, PortAttributes, ProtectionDomain, RemoteAccess, SysError,
};
use crate::fabric::{Address, FabricError};
use crate::memory::Region;

/// The variable that names the device, optionally with a port: `mlx5_0` or `mlx5_0:1`.
const DEVICE_VARIABLE: &str = "FABRICAST_RDMA_DEVICE";
/// The variable with the index of the port's address (GID).
const GID_VARIABLE: &str = "FABRICAST_RDMA_GID_INDEX";
/// The variable with the differentiated services code point of packets.
const DSCP_VARIABLE: &str = "FABRICAST_RDMA_DSCP";
/// The variable that says whether a subscriber reads a repository through a memory window of its own.
const WINDOWS_VARIABLE: &str = "FABRICAST_RDMA_WINDOWS";
/// Bits of the traffic class behind the code point, for the notification of congestion (RFC 3168, section 5).
const ECN_BITS: u32 = 2;
const DSCP_MAX: u8 = 63;
/// The kernel's list of devices.
const KERNEL_LIST: &str = "/sys/class/infiniband";
/// The directory of device files.
const DEVICE_FILES: &str = "/dev/infiniband";
/// Addresses per port in an error.
const GIDS_SHOWN_MAX: usize = 6;
/// Low bits of a region's address that are the same for the device and the process, so that a device can use large
/// pages like the processor.
const SAME_MASK: u64 = (1 << 21) - 1;
/// Random bits of a region's address.
const RANDOM_MASK: u64 = ((1 << 62) - 1) & !SAME_MASK;

/// The selected device, port and address.
#[derive(Debug)]
pub(super) struct Device {
    /// The device.
    pub(super) context: Arc<Context>,
    /// The number of the port.
    pub(super) port: u8,
    /// The port.
    pub(super) port_attributes: PortAttributes,
    /// The local address.
    pub(super) gid: Gid,
}

/// What the user requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// The name of the device.
    pub(super) device: Option<String>,
    /// The number of the port.
    pub(super) port: Option<u8>,
    /// A local address; the wildcard counts as none.
    pub(super) address: Option<IpAddr>,
    /// The index of the address in the port's table.
    pub(super) gid_index: Option<u32>,
    /// Whether the address must be IPv4, or must be IPv6.
    pub(super) is_ipv4: Option<bool>,
    /// The traffic class of packets; `None` is that of the system, which is 0 unless an administrator has chosen another.
    pub(super) traffic_class: Option<u8>,
    /// Whether to do without memory windows.
    pub(super) without_windows: bool,
}

/// A port's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PortReport {
    number: u8,
    attributes: PortAttributes,
    gids: Vec<Gid>,
}

/// A device's properties. One that cannot be opened has no ports.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceReport {
    name: String,
    ports: Vec<PortReport>,
}

impl Device {
    /// Selects among the devices of this host.
    pub(super) fn choose(wish: &Wish) -> Result<Self, VerbsError> {
        let contexts = Context::all().map_err(explain)?;
        let view = KernelView::take();
        if contexts.is_empty() {
            return Err(explain_by(SysError::new("rdma_get_devices", Errno::NODEV), &view));
        }
        let is_open = |name: &String| contexts.iter().any(|context| context.is_named(name));
        let closed = view.devices.into_iter().filter(|name| !is_open(name));
        let mut failure = None;
        let report = |context: &Arc<Context>| {
            // One that fails, such as one that is being removed, does not keep another from being chosen.
            let ports = ports_of(context).unwrap_or_else(|error| {
                if wish.takes_device(context.name()) {
                    failure.get_or_insert(error);
                }
                Vec::new()
            });
            DeviceReport { name: context.name().to_owned(), ports }
        };
        let mut reports: Vec<_> = contexts.iter().map(report).collect();
        reports.extend(closed.map(|name| DeviceReport { name, ports: Vec::new() }));
        let chosen = choose(&reports, wish);
        let (index, port, gid) = chosen.map_err(|none| failure.map_or(none, VerbsError::from))?;
        // Not by its name: one that was renamed keeps the former one, which another may have now.
        let context = contexts.get(index).ok_or(VerbsError::NoDevice)?;
        Ok(Self { port: port.number, port_attributes: port.attributes, gid, context: Arc::clone(context) })
    }
}

/// The ports of a device.
fn ports_of(context: &Context) -> Result<Vec<PortReport>, SysError> {
    let report = |number| {
        let (attributes, gids) = (context.port(number)?, context.gids(number)?);
        Ok(PortReport { number, attributes, gids })
    };
    (1..=context.attributes()?.ports).map(report).collect()
}

/// The error if no device can be used at a local address.
pub(super) fn no_device_at(address: IpAddr) -> Option<VerbsError> {
    Device::choose(&Wish { address: Some(address), ..Wish::default() }).err()
}

/// The error if the route to a peer leaves from an interface that is not the device's.
pub(super) fn no_way(address: &Address, target: &SocketAddr) -> Option<VerbsError> {
    let any: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Sends nothing: it only queries the route.
    socket.connect(target).ok()?;
    let local = socket.local_addr().ok()?.ip();
    match no_device_at(local)? {
        VerbsError::NoSuchAddress { found, .. } | VerbsError::NoIpAddress { found, .. } => {
            Some(VerbsError::NoRoute { route: format!("{address} leaves from {local}"), found })
        }
        error => Some(error),
    }
}

/// The devices of this host that are requested and have an active port.
pub(super) fn usable(wish: &Wish) -> Result<Vec<Arc<Context>>, VerbsError> {
    let mut usable = Context::all().map_err(explain)?;
    usable.retain(|context| {
        let ports = 1..=context.attributes().map_or(0, |attributes| attributes.ports);
        let mut wished = ports.filter(|number| wish.takes(context.name(), *number));
        wished.any(|number| context.port(number).is_ok_and(|port| port.state.is_active()))
    });
    Ok(usable)
}

impl Wish {
    /// The request in the environment, at this local address, if any.
    pub(super) fn from_environment(address: Option<IpAddr>) -> Result<Self, VerbsError> {
        let of = |variable| std::env::var(variable).ok().filter(|value| !value.is_empty());
        let wish = Self::parse(of(DEVICE_VARIABLE).as_deref(), of(GID_VARIABLE).as_deref(), address)?;
        let traffic_class = of(DSCP_VARIABLE).as_deref().map(traffic_class).transpose()?;
        let without_windows = of(WINDOWS_VARIABLE).as_deref().map_or(Ok(false), without_windows)?;
        Ok(Self { traffic_class, without_windows, ..wish })
    }

    fn parse(
        device: Option<&str>,
        gid_index: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<Self, VerbsError> {
        let refused = |variable, value: &str, wanted| VerbsError::Variable {
            variable,
            value: value.to_owned(),
            wanted,
        };
        let (device, port) = match device.map(|device| (device, device.split_once(':'))) {
            None => (None, None),
            Some((device, None)) => (Some(device.to_owned()), None),
            Some((device, Some((name, port)))) => {
                let wanted = "a device, such as mlx5_0, or a device and a port, such as mlx5_0:1";
                let number = port.parse().map_err(|_| refused(DEVICE_VARIABLE, device, wanted))?;
                (Some(name.to_owned()), Some(number))
            }
        };
        let index = |index: &str| {
            index.parse().map_err(|_| refused(GID_VARIABLE, index, "an index of the port's table, such as 1"))
        };
        let address = address.filter(|address| !address.is_unspecified());
        Ok(Self { device, port, address, gid_index: gid_index.map(index).transpose()?, ..Self::default() })
    }

    fn takes(&self, device: &str, port: u8) -> bool {
        self.takes_device(device) && self.port.is_none_or(|number| number == port)
    }

    fn takes_device(&self, device: &str) -> bool {
        self.device.as_deref().is_none_or(|name| name == device)
    }
}

/// The traffic class with this code point (RFC 2474, section 3).
fn traffic_class(dscp: &str) -> Result<u8, VerbsError> {
    let number = dscp.parse().ok().filter(|number| *number <= DSCP_MAX);
    number.map(|number: u8| number << ECN_BITS).ok_or_else(|| VerbsError::Variable {
        variable: DSCP_VARIABLE,
        value: dscp.to_owned(),
        wanted: "a differentiated services code point from 0 to 63, such as 46",
    })
}

/// Whether memory windows are switched off.
fn without_windows(windows: &str) -> Result<bool, VerbsError> {
    match windows {
        "on" => Ok(false),
        "off" => Ok(true),
        other => Err(VerbsError::Variable {
            variable: WINDOWS_VARIABLE,
            value: other.to_owned(),
            wanted: "on or off",
        }),
    }
}

/// Selects the requested device, or else the first usable one, by its index, with port and address.
fn choose<'a>(devices: &'a [DeviceReport], wish: &Wish) -> Result<(usize, &'a PortReport, Gid), VerbsError> {
    let found = || DeviceList(devices).to_string();
    let all = devices.iter().enumerate().flat_map(|(index, device)| {
        device
            .ports
            .iter()
            .filter(|port| wish.takes(&device.name, port.number))
            .map(move |port| (index, port))
    });
    let mut ports: Vec<_> = all.collect();
    if let (Some(device), true) = (&wish.device, ports.is_empty()) {
        let port = wish.port.map(|port| format!(":{port}")).unwrap_or_default();
        return Err(VerbsError::NoSuchDevice { wanted: format!("{device}{port}"), found: found() });
    }
    ports.retain(|(_, port)| port.attributes.state.is_active());
    if ports.is_empty() {
        return Err(VerbsError::NoActivePort { found: found() });
    }
    let is_ethernet = ports.iter().all(|(_, port)| port.attributes.link_layer == LinkLayer::Ethernet);
    let chosen = ports.into_iter().find_map(|(index, port)| Some((index, port, fit_gid(port, wish)?)));
    chosen.ok_or_else(|| match wish.address {
        Some(address) if wish.gid_index.is_none() && is_ethernet => {
            VerbsError::NoSuchAddress { address, found: found() }
        }
        Some(address) if wish.gid_index.is_none() => VerbsError::NoIpAddress { address, found: found() },
        _ => VerbsError::NoGid { found: found() },
    })
}

/// The best address of the port.
fn fit_gid(port: &PortReport, wish: &Wish) -> Option<Gid> {
    let fits = |gid: &&Gid| match (wish.gid_index, wish.address) {
        (Some(index), _) => gid.index == index,
        (None, Some(address)) => ip_address(gid) == address.to_canonical(),
        (None, None) => wish.is_ipv4.is_none_or(|is_ipv4| ip_address(gid).is_ipv4() == is_ipv4),
    };
    let is_ethernet = port.attributes.link_layer == LinkLayer::Ethernet;
    // On Ethernet routable packets are preferred, and configured addresses to link-local ones. The first of equals
    // wins.
    let rank = |gid: &&Gid| match ip_address(gid) {
        _ if !is_ethernet => 0,
        _ if gid.kind != GidKind::RoceV2 => 3,
        IpAddr::V4(_) => 0,
        IpAddr::V6(address) if !address.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    };
    port.gids.iter().filter(fits).min_by_key(rank).copied()
}

/// The address as an IP address.
pub(super) fn ip_address(gid: &Gid) -> IpAddr {
    ip_of(gid.bytes)
}

/// The bytes of an address (GID) as an IP address.
pub(super) fn ip_of(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid)).to_canonical()
}

/// Devices as listed by errors.
struct DeviceList<'a>(&'a [DeviceReport]);

impl fmt::Display for DeviceList<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for device in self.0 {
            if device.ports.is_empty() {
                let why = "cannot be opened: may this user use its file in /dev/infiniband?";
                write!(out, "{separator}{} ({why})", device.name)?;
                separator = ", ";
            }
            for port in &device.ports {
                let (state, layer) = (port.attributes.state, port.attributes.link_layer);
                write!(out, "{separator}{}:{} ({state:?}, {layer:?}", device.name, port.number)?;
                for gid in port.gids.iter().take(GIDS_SHOWN_MAX) {
                    write!(out, ", GID {} {} {:?}", gid.index, ip_address(gid), gid.kind)?;
                }
                match port.gids.len() {
                    0 => out.write_str(", no GID")?,
                    len if len > GIDS_SHOWN_MAX => write!(out, ", {} more", len - GIDS_SHOWN_MAX)?,
                    _ => {}
                }
                out.write_char(')')?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// The kernel's view of its devices.
#[derive(Debug, Default)]
struct KernelView {
    /// Their names.
    devices: Vec<String>,
    /// Their device files.
    files: Vec<PathBuf>,
    /// Device files that this process may not open.
    closed_files: Vec<PathBuf>,
    /// Why it could not be read, for example for lack of descriptors.
    unread: Option<Errno>,
}

impl KernelView {
    fn take() -> Self {
        let listed = names(KERNEL_LIST).and_then(|devices| Ok((devices, names(DEVICE_FILES)?)));
        let (devices, mut files) = match listed {
            Ok(listed) => listed,
            Err(error) => return Self { unread: Errno::from_io_error(&error), ..Self::default() },
        };
        files.retain(|name| name == "rdma_cm" || name.starts_with("uverbs"));
        let files: Vec<PathBuf> = files.iter().map(|name| Path::new(DEVICE_FILES).join(name)).collect();
        let wanted = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
        let is_closed = |file: &&PathBuf| rustix::fs::access(*file, wanted).is_err();
        let closed_files = files.iter().filter(is_closed).cloned().collect();
        Self { devices, files, closed_files, unread: None }
    }
}

/// The names in a folder; none where it does not exist.
fn names(folder: &str) -> std::io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Why devices or the connection manager cannot be opened: librdmacm reports the same error for most reasons.
pub(super) fn explain(error: SysError) -> VerbsError {
    explain_by(error, &KernelView::take())
}

fn explain_by(error: SysError, view: &KernelView) -> VerbsError {
    let is_verbs = |path: &PathBuf| path.to_string_lossy().contains("uverbs");
    if let Some(errno) = view.unread {
        SysError::new(error.call, errno).into()
    } else if view.devices.is_empty() {
        VerbsError::NoDevice
    } else if !view.files.iter().any(is_verbs) {
        VerbsError::NoDeviceFiles { devices: view.devices.join(", ") }
    } else if !view.closed_files.is_empty() {
        let files: Vec<_> = view.closed_files.iter().map(|file| file.display().to_string()).collect();
        VerbsError::NotPermitted { files: files.join(", ") }
    } else {
        error.into()
    }
}

/// Registers a region in a protection domain at a random address. Each guess of it costs a peer a connection.
pub(super) fn register(
    domain: &Arc<ProtectionDomain>,
    region: &Arc<Region>,
    remote: RemoteAccess,
    local_write: bool,
) -> Result<MemoryRegion, FabricError> {
    let random = crate::random::number().map_err(FabricError::no_random)?;
    let iova = random & RANDOM_MASK | region.base().addr().get() as u64 & SAME_MASK;
    Ok(register_at(domain, region, iova, remote, local_write)?)
}

/// Registers a region with a device, unless that exceeds the limit of locked memory.
pub(super) fn register_at(
    domain: &Arc<ProtectionDomain>,
    region: &Arc<Region>,
    iova: u64,
    remote: RemoteAccess,
    local_write: bool,
) -> Result<MemoryRegion, VerbsError> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let (len, registered) = (region.len(), MemoryRegion::registered_len());
    if let Some(limit) = limit.filter(|_| !may_lock_more())
        && registered.saturating_add(len as u64) > limit
    {
        return Err(VerbsError::LockedMemory { len, registered, limit });
    }
    MemoryRegion::register(domain, region, iova, remote, local_write).map_err(|error| match limit {
        Some(limit) if error.is_out_of_memory() => VerbsError::LockedMemory { len, registered, limit },
        None if error.is_out_of_memory() => VerbsError::NoMemory { len, registered },
        _ => error.into(),
    })
}

/// Whether this process appears exempt from the limit. In a user namespace the kernel asks the initial one, which denies it.
fn may_lock_more() -> bool {
    use rustix::thread::CapabilitySet;
    let capabilities = rustix::thread::capabilities(None);
    capabilities.is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

#[cfg(test)]
mod tests;
