//! Regions, registered with devices.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::device;
use super::endpoint::{Endpoint, Posted};
use super::message::Descriptor;
use super::sys::{Concern, DeviceUser, MemoryRegion, ProtectionDomain, RemoteAccess};
use crate::fabric::{Exposure, FabricError, Registered};
use crate::memory::Region;

/// The provider's state of a registered region.
#[derive(Debug)]
pub(super) struct VerbsRegistered {
    region: Arc<Region>,
    exposure: Exposure,
    held: Mutex<RegionRegistrations>,
}

/// The registrations of a region with devices, and the endpoints it is exposed to.
#[derive(Debug, Default)]
struct RegionRegistrations {
    /// In the domains that connections share.
    shared: Vec<Arc<SharedRegion>>,
    /// In private protection domains of endpoints.
    owned: Vec<Owned>,
    /// The endpoints it was sent over.
    exposed_to: Vec<Weak<Endpoint>>,
    /// The endpoints whose peers have a window to it.
    windowed: Vec<Weak<Endpoint>>,
}

/// A registration in a domain that connections share, until its device is removed.
#[derive(Debug)]
struct SharedRegion {
    domain: Weak<ProtectionDomain>,
    region: Mutex<Option<Arc<MemoryRegion>>>,
}

/// A registration in the protection domain of one endpoint, which keeps it.
#[derive(Debug)]
struct Owned {
    endpoint: Weak<Endpoint>,
    region: Weak<MemoryRegion>,
}

impl VerbsRegistered {
    /// Registers a region in these domains; no peer has access yet.
    pub(super) fn new(
        region: &Arc<Region>,
        exposure: Exposure,
        domains: &[Arc<ProtectionDomain>],
    ) -> Result<Self, FabricError> {
        let this = Self { region: Arc::clone(region), exposure, held: Mutex::default() };
        for domain in domains {
            let region = this.register_in(domain)?;
            this.held.lock().share(&region);
        }
        Ok(this)
    }

    /// Returns the region for local use in work requests of this endpoint. Registers it first if needed, which may take long.
    pub(super) fn local(&self, endpoint: &Arc<Endpoint>) -> Result<Arc<MemoryRegion>, FabricError> {
        if let Some(known) = self.find(endpoint)? {
            return Ok(known);
        }
        // Not under the lock, which others take for what is registered already.
        let region = self.register_in(&endpoint.domain)?;
        let mut held = self.held.lock();
        // Another thread may have been faster.
        if let Some(known) = held.known(endpoint) {
            return Ok(known);
        }
        if endpoint.owns_domain {
            endpoint.keep(&region)?;
            held.owned.retain(|known| known.region.strong_count() > 0);
            held.owned.push(Owned { endpoint: Arc::downgrade(endpoint), region: Arc::downgrade(&region) });
        } else {
            held.share(&region);
        }
        Ok(region)
    }

    /// Returns what the peer of this endpoint needs to access it, if it is registered for that.
    pub(super) fn known(&self, endpoint: &Arc<Endpoint>) -> Result<Option<Descriptor>, FabricError> {
        self.find(endpoint)?.map(|region| self.described(endpoint, &region)).transpose()
    }

    fn find(&self, endpoint: &Arc<Endpoint>) -> Result<Option<Arc<MemoryRegion>>, FabricError> {
        if !endpoint.owns_domain && self.exposure != Exposure::Read {
            let why = "a peer that only reads is granted no write access: dial it, or have it dial to write";
            return Err(FabricError::Access { why });
        }
        let known = self.held.lock().known(endpoint);
        match endpoint.failure().filter(|_| known.is_none() && endpoint.owns_domain) {
            Some(failure) => Err(failure.into()),
            None => Ok(known),
        }
    }

    /// Returns what the peer of this endpoint needs to access it.
    pub(super) fn descriptor(&self, endpoint: &Arc<Endpoint>) -> Result<Descriptor, FabricError> {
        self.described(endpoint, &self.local(endpoint)?)
    }

    fn described(
        &self,
        endpoint: &Arc<Endpoint>,
        region: &Arc<MemoryRegion>,
    ) -> Result<Descriptor, FabricError> {
        let key = match self.is_windowed(endpoint) {
            false => region.remote_key(),
            true => {
                let window = endpoint.window(region)?;
                let mut held = self.held.lock();
                held.windowed.retain(|peer| peer.strong_count() > 0);
                if !is_among(&held.windowed, endpoint) {
                    held.windowed.push(Arc::downgrade(endpoint));
                }
                window.remote_key()
            }
        };
        let (address, len) = (region.iova(), self.region.len() as u64);
        Ok(Descriptor { exposure: self.exposure, address, key, len })
    }

    /// Whether the peer of this endpoint reads it through a window.
    fn is_windowed(&self, endpoint: &Endpoint) -> bool {
        self.exposure == Exposure::Read && endpoint.has_windows()
    }

    /// Grants the peer of this endpoint access, once it is registered. [`Posted::NoRoom`] if that is to be repeated.
    pub(super) fn expose(&self, endpoint: &Arc<Endpoint>) -> Result<Posted, FabricError> {
        let mut held = self.held.lock();
        held.exposed_to.retain(|peer| peer.strong_count() > 0);
        if !is_among(&held.exposed_to, endpoint) {
            endpoint.expose(self.exposure)?;
            held.exposed_to.push(Arc::downgrade(endpoint));
        }
        let windowed = held.known(endpoint).filter(|_| self.is_windowed(endpoint));
        drop(held);
        windowed.map_or(Ok(Posted::Yes), |region| endpoint.open_window(&region))
    }

    /// Revokes the access of this endpoint's peer.
    pub(super) fn withdraw(&self, endpoint: &Arc<Endpoint>) {
        let mut held = self.held.lock();
        let known = held.exposed_to.len();
        held.exposed_to.retain(|peer| peer.as_ptr() != Arc::as_ptr(endpoint));
        if held.exposed_to.len() < known {
            endpoint.withdraw(self.exposure);
        }
        held.windowed.retain(|peer| peer.as_ptr() != Arc::as_ptr(endpoint));
        if let Some(region) = held.known(endpoint) {
            endpoint.close_window(&region);
        }
    }

    fn register_in(&self, domain: &Arc<ProtectionDomain>) -> Result<Arc<MemoryRegion>, FabricError> {
        let access = match self.exposure {
            Exposure::Read if domain.has_windows() => RemoteAccess::Window,
            Exposure::Read => RemoteAccess::Read,
            Exposure::Write => RemoteAccess::Write,
        };
        Ok(Arc::new(device::register(domain, &self.region, access, false)?))
    }
}

impl RegionRegistrations {
    /// The registration for this endpoint, if any.
    fn known(&self, endpoint: &Arc<Endpoint>) -> Option<Arc<MemoryRegion>> {
        if endpoint.owns_domain {
            let is_it = |known: &&Owned| known.endpoint.as_ptr() == Arc::as_ptr(endpoint);
            return self.owned.iter().find(is_it).and_then(|known| known.region.upgrade());
        }
        let is_it = |known: &&Arc<SharedRegion>| known.domain.as_ptr() == Arc::as_ptr(&endpoint.domain);
        self.shared.iter().find(is_it).and_then(|known| known.region.lock().clone())
    }

    /// Keeps a registration in a domain that connections share.
    fn share(&mut self, region: &Arc<MemoryRegion>) {
        let (domain, context) = (Arc::downgrade(region.domain()), region.domain().context());
        let shared = Arc::new(SharedRegion { domain, region: Mutex::new(Some(Arc::clone(region))) });
        context.add_user(&shared);
        self.shared.retain(|known| known.region.lock().is_some());
        self.shared.push(shared);
    }
}

impl DeviceUser for SharedRegion {
    fn is_concerned(&self, _: &Concern) -> bool {
        false
    }

    fn fail(&self, _: &'static str) -> bool {
        false
    }

    fn lose_device(&self) {
        let region = self.region.lock().take();
        drop(region);
    }
}

fn is_among(peers: &[Weak<Endpoint>], endpoint: &Arc<Endpoint>) -> bool {
    peers.iter().any(|peer| peer.as_ptr() == Arc::as_ptr(endpoint))
}

impl Registered for VerbsRegistered {}

impl Drop for VerbsRegistered {
    fn drop(&mut self) {
        let held = self.held.get_mut();
        // A device keeps memory registered that has windows.
        for endpoint in held.windowed.iter().filter_map(Weak::upgrade) {
            if let Some(region) = held.known(&endpoint) {
                endpoint.close_window(&region);
            }
        }
        // Deregister the memory first, then drop the access rights to it.
        held.shared.clear();
        for Owned { endpoint, region } in held.owned.drain(..) {
            if let (Some(endpoint), Some(region)) = (endpoint.upgrade(), region.upgrade()) {
                endpoint.give_up(&region);
            }
        }
        for endpoint in held.exposed_to.drain(..).filter_map(|peer| peer.upgrade()) {
            endpoint.withdraw(self.exposure);
        }
    }
}
