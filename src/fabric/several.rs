use std::sync::Arc;
use std::time::Duration;

use super::{
    Acceptor, Address, Connection, Exposure, Fabric, FabricError, Intent, NodeListing, Registration,
};
use crate::id::NodeName;
use crate::memory::Region;

/// Several providers combined: a node serves the same memory over all of them.
#[derive(Debug)]
pub(crate) struct SeveralFabrics {
    /// Each with whether a node listens there, too.
    members: Vec<(Arc<dyn Fabric>, bool)>,
}

impl SeveralFabrics {
    /// Combines providers, dialled in this order; the flag says whether a node listens there too.
    pub(crate) fn new(members: Vec<(Arc<dyn Fabric>, bool)>) -> Self {
        Self { members }
    }
}

impl Fabric for SeveralFabrics {
    fn listen(&self, node: &NodeName) -> Result<Vec<Box<dyn Acceptor>>, FabricError> {
        let listening = self.members.iter().filter(|(_, listens)| *listens);
        let listeners = listening.map(|(fabric, _)| fabric.listen(node)).collect::<Result<Vec<_>, _>>()?;
        Ok(listeners.into_iter().flatten().collect())
    }

    fn tend(&self) {
        self.members.iter().for_each(|(fabric, _)| fabric.tend());
    }

    /// Dials with the first provider that handles the address.
    fn dial(
        &self,
        address: &Address,
        intent: Intent,
        timeout: Duration,
    ) -> Result<Box<dyn Connection>, FabricError> {
        for (fabric, _) in &self.members {
            match fabric.dial(address, intent, timeout) {
                Err(FabricError::Unreachable { .. }) => {}
                outcome => return outcome,
            }
        }
        let (is_built, address) = (address.is_built(), address.clone());
        Err(match is_built {
            true => FabricError::Unreachable { address, fabric: "node's" },
            false => FabricError::WithoutVerbs { address },
        })
    }

    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError> {
        let parts = self.members.iter().map(|(fabric, _)| fabric.register(region, exposure));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        Ok(Registration::joined(Arc::clone(region), exposure, parts))
    }

    fn nodes(&self) -> Result<Vec<NodeListing>, FabricError> {
        let mut nodes = Vec::new();
        for (fabric, _) in &self.members {
            nodes.extend(fabric.nodes()?);
        }
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Received, Sent};
    use crate::memory::Protection;
    use crate::testkit::fabric::{Network, Reach};

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    /// A node over two networks, and a process of each of them.
    #[test]
    fn one_node_serves_the_peers_of_several_fabrics() {
        let networks = [Network::new(1, Reach::Mapped), Network::new(2, Reach::Fetched)];
        let member = |network: &Arc<Network>| (Arc::new(network.fabric(&name("node"))) as _, true);
        let several = SeveralFabrics::new(networks.iter().map(member).collect());
        let mut listeners = several.listen(&name("far")).unwrap();
        assert_eq!(listeners.iter().flat_map(|listener| listener.addresses()).count(), 2);

        let region = Arc::new(Region::allocate(4096, Protection::PeersRead).unwrap());
        region.store(8, 7);
        let registration = several.register(&region, Exposure::Read).unwrap();
        let step = || {
            for network in &networks {
                network.step();
            }
        };
        for (network, listener) in networks.iter().zip(&mut listeners) {
            let peer = network.fabric(&name("peer"));
            let mut near = peer.dial(&Address::shm(&name("far")), Intent::Read, Duration::ZERO).unwrap();
            let mut far = loop {
                if let Some(connection) = listener.accept().unwrap() {
                    break connection;
                }
                step();
            };
            while far.send(b"region", Some(&registration)).unwrap() == Sent::Full {
                step();
            }
            let offer = loop {
                if let Received::Message { offer, .. } = near.receive(&mut [0; 16]).unwrap() {
                    break offer.unwrap();
                }
                step();
            };
            let mut read = offer.open_read(4096).unwrap();
            let mut completion = read.post(&[crate::fabric::ByteRange { offset: 8, len: 8 }]).unwrap();
            while completion == crate::fabric::Completion::Pending {
                step();
                completion = read.poll().unwrap();
            }
            assert_eq!(read.mirror().load(8), 7);
        }
    }

    #[test]
    fn an_address_that_no_member_reaches_is_unreachable() {
        let network = Network::new(1, Reach::Mapped);
        let several = SeveralFabrics::new(vec![(Arc::new(network.fabric(&name("node"))), true)]);
        let far = "rdma://far-away:1".parse().unwrap();
        let error = several.dial(&far, Intent::Read, Duration::ZERO).unwrap_err();
        let expected = if cfg!(feature = "verbs") { "by the node's fabric" } else { "--features verbs" };
        assert!(error.to_string().contains(expected), "{error}");
        assert!(matches!(
            several.dial(&Address::shm(&name("nobody")), Intent::Read, Duration::ZERO),
            Err(FabricError::NoSuchNode { .. })
        ));
    }
}
