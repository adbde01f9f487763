//! The suite on RDMA verbs: several processes' worth of fabrics in this one, over the address of one device.
//!
//! `FABRICAST_VERBS_ADDRESS` says which address, unless it is the one of a machine of `tools/soft-roce`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Harness, conformance_suite};
use crate::clock::{Clock, SystemClock};
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{Address, Connection, Exposure, Fabric, FabricError, Listener, NodeEntry, Registration};
use crate::id::NodeName;
use crate::memory::Region;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that names the address.
const ADDRESS_VARIABLE: &str = "FABRICAST_VERBS_ADDRESS";
/// The address of a machine of `tools/soft-roce`.
const ADDRESS_DEFAULT: &str = "10.77.0.1";
/// The first port, below those that the kernel gives to who dials.
const PORT_FIRST: u64 = 20_000;
/// Ports that names are spread over.
const PORTS: u64 = 10_000;
/// A machine in emulation is slow.
const STEPS_MAX: u32 = 300_000;

/// Nodes that have a port for a name.
#[derive(Debug)]
pub(super) struct VerbsHarness {
    ports: Arc<Ports>,
}

/// The port of each name.
#[derive(Debug)]
struct Ports {
    address: IpAddr,
    by_name: Mutex<BTreeMap<NodeName, u16>>,
}

impl Ports {
    fn of(&self, node: &NodeName) -> u16 {
        // No port twice in a process: somebody else may still be about to leave it.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = || PORT_FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
        let next = || u16::try_from(next()).expect("a port below 65536");
        *self.by_name.lock().entry(node.clone()).or_insert_with(next)
    }
}

impl VerbsHarness {
    pub(super) fn new(_seed: u64) -> Self {
        let address = std::env::var(ADDRESS_VARIABLE);
        let address = address.as_deref().unwrap_or(ADDRESS_DEFAULT);
        let address = address.parse().expect("FABRICAST_VERBS_ADDRESS is an IP address");
        Self { ports: Arc::new(Ports { address, by_name: Mutex::default() }) }
    }
}

impl Harness for VerbsHarness {
    fn fabric(&self) -> Box<dyn Fabric> {
        let fabric = VerbsFabric::new(VerbsConfig::default()).expect("an event can be made");
        Box::new(Named { fabric, ports: Arc::clone(&self.ports) })
    }

    fn address(&self, node: &NodeName) -> Address {
        Address::Rdma { host: self.ports.address.to_string(), port: self.ports.of(node) }
    }

    fn foreign_address(&self) -> Address {
        Address::Shm("far-away".parse().expect("letters and a dash"))
    }

    fn step(&self) {
        SystemClock.pause(Duration::from_micros(100));
    }

    fn lists_nodes(&self) -> bool {
        false
    }

    fn ends_sessions_by_refusals(&self) -> bool {
        true
    }

    fn steps_max(&self) -> u32 {
        STEPS_MAX
    }
}

/// A fabric whose nodes listen at the ports of their names.
#[derive(Debug)]
struct Named {
    fabric: VerbsFabric,
    ports: Arc<Ports>,
}

impl Fabric for Named {
    fn listen(&self, node: &NodeName) -> Result<Box<dyn Listener>, FabricError> {
        self.fabric.listen_at(&SocketAddr::new(self.ports.address, self.ports.of(node)))
    }

    fn dial(&self, address: &Address) -> Result<Box<dyn Connection>, FabricError> {
        self.fabric.dial(address)
    }

    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError> {
        self.fabric.register(region, exposure)
    }

    fn nodes(&self) -> Result<Vec<NodeEntry>, FabricError> {
        self.fabric.nodes()
    }
}

conformance_suite!(verbs, VerbsHarness::new, 2, #[ignore = "needs an RDMA device"]);
