//! The suite on shared memory.

use std::time::Duration;

use super::{Harness, conformance_suite};
use crate::clock::{Clock, SystemClock};
use crate::fabric::shm::{ShmFabric, directory::RuntimeDirectory};
use crate::fabric::{Address, Fabric, PlaceLimits};
use crate::id::NodeName;

#[derive(Debug)]
struct ShmHarness {
    holder: tempfile::TempDir,
}

impl ShmHarness {
    fn new(_seed: u64) -> Self {
        Self { holder: tempfile::tempdir().expect("a directory can be made") }
    }
}

impl Harness for ShmHarness {
    fn fabric(&self) -> Box<dyn Fabric> {
        let directory = RuntimeDirectory::open(&self.holder.path().join("run"));
        Box::new(ShmFabric::new(directory.expect("a directory of our own"), PlaceLimits::default()))
    }

    fn address(&self, node: &NodeName) -> Address {
        Address::shm(node)
    }

    fn foreign_address(&self) -> Address {
        "rdma://far-away:1".parse().expect("it is an address")
    }

    fn step(&self) {
        SystemClock.pause(Duration::from_micros(100));
    }
}

conformance_suite!(shm, ShmHarness::new);
