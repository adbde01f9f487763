//! What a session connects.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::Session;
use crate::fabric::verbs::error::VerbsError;
use crate::fabric::{FabricError, Place};

impl Session {
    /// Returns the addresses of this end and of the peer, if both are IPv4. An error until they are known.
    pub(in crate::fabric::verbs) fn addresses(&self) -> Result<Option<(Ipv4Addr, Ipv4Addr)>, FabricError> {
        let addresses = self.state.lock().link.addresses();
        let (near, far) = addresses.ok_or(VerbsError::NoChannel { why: "it is not established yet" })?;
        match (near.to_canonical(), far.to_canonical()) {
            (IpAddr::V4(near), IpAddr::V4(far)) => Ok(Some((near, far))),
            _ => Ok(None),
        }
    }

    /// Returns the peer's address, once it is established.
    pub(in crate::fabric::verbs) fn peer_address(&self) -> Option<IpAddr> {
        self.state.lock().link.addresses().map(|(_, far)| far.to_canonical())
    }

    /// Holds the peer's place as long as the session has its queue pair.
    pub(in crate::fabric::verbs) fn hold(&self, place: Place) {
        let place = self.place.get_or_init(|| Arc::new(place));
        self.endpoint.get().into_iter().for_each(|endpoint| endpoint.hold(place));
    }

    /// Returns the peer's place.
    pub(in crate::fabric::verbs) fn place(&self) -> Option<&Place> {
        self.place.get().map(AsRef::as_ref)
    }

    /// Returns what it connects: the numbers of both ends.
    pub(in crate::fabric::verbs) fn binding(&self) -> Result<Vec<u8>, FabricError> {
        let endpoint = self.endpoint.get().ok_or(FabricError::Closed)?;
        Ok(self.state.lock().link.ends(endpoint.queue_pair.number())?.emit())
    }
}
