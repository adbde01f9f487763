//! The suites, instantiated for the simulated fabric.

use std::sync::Arc;

use super::topics::several_readers_keep_their_own_pace;
use super::{Harness, conformance_suite};
use crate::fabric::{Address, Fabric};
use crate::id::{Delivery, NodeName};
use crate::repository::log::LogTopic;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::testkit::fabric::{Network, Reach};
use crate::testkit::fault::{Fault, FaultyFabric, Running, Script};

/// A simulated network. Its processes are named by number.
#[derive(Debug)]
pub(super) struct SimHarness {
    network: Arc<Network>,
    processes: AtomicU64,
    script: Option<Script>,
}

impl SimHarness {
    pub(super) fn new(seed: u64, reach: Reach) -> Self {
        Self { network: Network::new(seed, reach), processes: AtomicU64::new(0), script: None }
    }

    fn mapped(seed: u64) -> Self {
        Self::new(seed, Reach::Mapped)
    }

    fn fetched(seed: u64) -> Self {
        Self::new(seed, Reach::Fetched)
    }

    /// With faults that users of the seam must not notice: everything may take longer.
    fn slow(self) -> Self {
        // Of seven receives five find nothing: the number of sessions served in turn is not a multiple of seven, so that each has
        // its turn.
        let message = Script::repeated(Fault::DelayMessage { looks: 5 }, 3, u64::MAX);
        let read = Script::repeated(Fault::DelayRead { polls: 5 }, 2, u64::MAX);
        let write = Script::repeated(Fault::DelayWrite { polls: 3 }, 2, u64::MAX);
        Self { script: Some(message.and(read).and(write)), ..self }
    }
}

impl Harness for SimHarness {
    fn fabric(&self) -> Box<dyn Fabric> {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        let node = format!("process-{number}").parse().expect("letters, a dash and digits");
        let fabric = Box::new(self.network.fabric(&node));
        match &self.script {
            Some(script) => Box::new(FaultyFabric::new(fabric, &Arc::new(Running::new(script)))),
            None => fabric,
        }
    }

    fn address(&self, node: &NodeName) -> Address {
        Address::shm(node)
    }

    fn foreign_address(&self) -> Address {
        "rdma://far-away:1".parse().expect("it is an address")
    }

    fn step(&self) {
        self.network.step();
    }

    fn has_a_host_for_each_process(&self) -> bool {
        true
    }

    fn ends_sessions_by_refusals(&self) -> bool {
        true
    }
}

/// An idle publisher once skipped an intact last record after another record of its batch was overwritten in flight, and an idle
/// subscriber did not learn of it before the next one.
#[test]
fn idle_publisher_delivers_its_last_record_to_every_subscriber() {
    let seed = 58;
    several_readers_keep_their_own_pace::<LogTopic>(&SimHarness::fetched(seed), Delivery::Push, seed);
}

conformance_suite!(sim_mapped, SimHarness::mapped);
conformance_suite!(sim_mapped_slow, |seed| SimHarness::mapped(seed).slow());
conformance_suite!(sim_fetched, SimHarness::fetched);
conformance_suite!(sim_fetched_slow, |seed| SimHarness::fetched(seed).slow());
