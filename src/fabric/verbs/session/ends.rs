//! What a session connects.

use std::net::{IpAddr, Ipv4Addr};

use super::Session;
use crate::fabric::FabricError;
use crate::fabric::verbs::error::VerbsError;

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

    /// Returns what it connects: the numbers of both ends.
    pub(in crate::fabric::verbs) fn binding(&self) -> Result<Vec<u8>, FabricError> {
        let endpoint = self.endpoint.get().ok_or(FabricError::Closed)?;
        Ok(self.state.lock().link.ends(endpoint.queue_pair.number())?.emit())
    }
}
