use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::ticket::gid;
use crate::fabric::FabricError;
use crate::fabric::verbs::device;
use crate::fabric::verbs::opened::{Devices, OpenDevice};
use crate::fabric::verbs::sys::{
    CmId, EventChannel, GidKind, LinkLayer, MemoryRegion, PortSpace, ProtectionDomain, RemoteAccess,
};
use crate::memory::{Protection, Region};

/// A local address, and a connection manager identifier bound to it.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) address: Ipv4Addr,
    pub(super) id: CmId,
    pub(super) events: Arc<EventChannel>,
    pub(super) device: Arc<OpenDevice>,
    /// A private domain: peers have no access to it.
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) port: u8,
    /// The index of the address in the port's table.
    pub(super) gid_index: u8,
    /// Largest packet, bytes of payload.
    pub(super) mtu: u16,
}

impl Site {
    /// Opens this address, `None` if it does not support datagrams.
    pub(super) fn open(address: Ipv4Addr, devices: &Devices) -> Result<Option<Self>, FabricError> {
        let events = EventChannel::create()?;
        let id = CmId::create(&events, PortSpace::Datagrams)?;
        id.bind(&SocketAddr::from((address, 0)))?;
        let Some(context) = id.context()? else { return Ok(None) };
        let device = devices.open(&context)?;
        if let Some(class) = device.traffic_class {
            id.set_traffic_class(class)?;
        }
        let port = id.port();
        let attributes = context.port(port)?;
        let is_it = |kind: GidKind, bytes| kind == GidKind::RoceV2 && bytes == gid(address);
        let gids = context.gids(port)?;
        let found = gids.iter().find(|gid| is_it(gid.kind, gid.bytes));
        let gid_index = found.and_then(|gid| u8::try_from(gid.index).ok());
        let mtu = u16::try_from(attributes.active_mtu).ok().filter(|mtu| *mtu > 0);
        let is_ethernet = attributes.link_layer == LinkLayer::Ethernet;
        let Some((gid_index, mtu)) = gid_index.zip(mtu).filter(|_| is_ethernet) else {
            let device = context.name();
            tracing::debug!(target: "fabricast", device, %address, "no datagrams: they need RoCE v2 over IPv4");
            return Ok(None);
        };
        let domain = ProtectionDomain::allocate(&context)?;
        Ok(Some(Self { address, id, events, device, domain, port, gid_index, mtu }))
    }

    /// Registers private memory for this many buffers.
    pub(super) fn buffers(&self, count: usize, len: usize) -> Result<Arc<MemoryRegion>, FabricError> {
        let region = Arc::new(Region::allocate(count * len, Protection::PeersWrite)?);
        Ok(Arc::new(device::register(&self.domain, &region, RemoteAccess::None, true)?))
    }
}
