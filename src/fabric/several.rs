use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;

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
    fn listen(&self, node: &NodeName) -> Result<Box<dyn Acceptor>, FabricError> {
        let listening = self.members.iter().filter(|(_, listens)| *listens);
        let listeners = listening.map(|(fabric, _)| fabric.listen(node)).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(SeveralListeners::new(listeners)?))
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

/// Several listeners combined.
#[derive(Debug)]
struct SeveralListeners {
    listeners: Vec<Box<dyn Acceptor>>,
    /// The listener to try first, rotated so that a busy one does not starve the others.
    first: usize,
    /// Readable when any listener is.
    readable: OwnedFd,
}

impl SeveralListeners {
    fn new(listeners: Vec<Box<dyn Acceptor>>) -> Result<Self, FabricError> {
        let handles: Vec<_> = listeners.iter().map(|listener| listener.wait_handle()).collect();
        let readable = together(&handles)?;
        Ok(Self { listeners, first: 0, readable })
    }
}

impl Acceptor for SeveralListeners {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        let mut failed = None;
        for _ in 0..self.listeners.len() {
            let turn = self.first % self.listeners.len();
            self.first = turn + 1;
            let Some(listener) = self.listeners.get_mut(turn) else { break };
            match listener.accept() {
                Ok(Some(connection)) => return Ok(Some(connection)),
                Ok(None) => {}
                // Try the listeners that can accept first.
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().flat_map(|listener| listener.addresses()).collect()
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

/// Returns a handle that is readable when any of these is.
pub(super) fn together(handles: &[BorrowedFd<'_>]) -> Result<OwnedFd, FabricError> {
    let failed = FabricError::system("wait for several handles");
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?;
    for handle in handles {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&set, handle, data, epoll::EventFlags::IN).map_err(&failed)?;
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Received, Sent, Waker};
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
        let mut listener = several.listen(&name("far")).unwrap();
        assert_eq!(listener.addresses().len(), 2);

        let region = Arc::new(Region::allocate(4096, Protection::PeersRead).unwrap());
        region.store(8, 7);
        let registration = several.register(&region, Exposure::Read).unwrap();
        let step = || {
            for network in &networks {
                network.step();
            }
        };
        for network in &networks {
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

    /// A listener that cannot accept, as if it were out of descriptors.
    #[derive(Debug)]
    struct Exhausted(Waker);

    impl Acceptor for Exhausted {
        fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
            Err(FabricError::Closed)
        }

        fn addresses(&self) -> Vec<Address> {
            Vec::new()
        }

        fn wait_handle(&self) -> BorrowedFd<'_> {
            self.0.wait_handle()
        }
    }

    #[test]
    fn a_listener_that_fails_does_not_keep_the_others_from_accepting() {
        let network = Network::new(1, Reach::Mapped);
        let other = network.fabric(&name("node")).listen(&name("far")).unwrap();
        let mut several =
            SeveralListeners::new(vec![Box::new(Exhausted(Waker::new().unwrap())), other]).unwrap();
        for _ in 0..3 {
            assert!(several.accept().is_err(), "no peer has dialled");
        }
        for _ in 0..3 {
            let _near = network
                .fabric(&name("peer"))
                .dial(&Address::shm(&name("far")), Intent::Read, Duration::ZERO)
                .unwrap();
            for _ in 0..100 {
                network.step();
            }
            assert!(several.accept().unwrap().is_some());
            assert!(several.accept().is_err(), "the failure is reported, too");
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
