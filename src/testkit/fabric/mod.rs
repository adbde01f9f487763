//! A fabric in memory: many nodes in one process, with all delays and orders from a seed.
//!
//! A [`Network`] is the world of one simulation. Each [`SimFabric`] is the fabric of one process, which can be killed, paused and
//! resumed from outside. Messages take virtual time, one-sided transfers a number of steps. A step is [`Network::step`] or a poll
//! of the transfer.
//!
//! The two kinds of medium that the seam allows are both here. With [`Reach::Mapped`] a peer's region is mapped
//! in place, and stays readable after the peer has died. With [`Reach::Fetched`] ranges of it are copied a few
//! words at a time in random order, so that concurrent stores tear them; a paused peer's memory
//! still answers (as it would with RDMA), a dead one's, or that of a closed connection, does not. A transfer to or from
//! memory that its owner has given up ends the connection for all who use it.
//!
//! The handles of listeners and connections are readable when those of real providers are, from the next step on
//! ([`Network::set_readiness`]).
//!
//! Every process has a channel of datagrams, whose [`DatagramFaults`] also follow from the seed. A receiver that does not poll
//! loses the oldest datagrams first.

mod arrival;
mod channel;
mod ends;
mod one_sided;
mod readiness;
mod state;
mod transfer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use self::channel::DatagramFaults;
use self::ends::{SimConnection, SimListener};
use self::state::SimState;
use crate::clock::Clock;
use crate::fabric::{
    Acceptor, Address, Connection, Exposure, Fabric, FabricError, Intent, NodeListing, Registration,
};
use crate::id::NodeName;
use crate::memory::Region;
use crate::testkit::clock::VirtualClock;

/// The provider's name.
const NAME: &str = "sim";
/// The time that a step takes when nothing is in flight, ns.
const IDLE_NS: u64 = 1_000;

/// How a peer's region is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// In place, as with shared memory.
    Mapped,
    /// By transfers, as with RDMA.
    Fetched,
}

/// The world of one simulation.
pub(crate) struct Network {
    clock: Arc<VirtualClock>,
    reach: Reach,
    state: Mutex<SimState>,
    /// Held by every region that is open for writes.
    written: Arc<()>,
}

impl Network {
    /// An empty world with all delays and orders from this seed.
    pub(crate) fn new(seed: u64, reach: Reach) -> Arc<Self> {
        let (clock, state, written) = (Arc::default(), Mutex::new(SimState::new(seed)), Arc::new(()));
        Arc::new(Self { clock, reach, state, written })
    }

    /// The time of this world.
    pub(crate) fn clock(&self) -> &Arc<VirtualClock> {
        &self.clock
    }

    /// The fabric of one more process, with this name for [`Self::kill`] and the like.
    pub(crate) fn fabric(self: &Arc<Self>, node: &NodeName) -> SimFabric {
        let process = self.state.lock().begin_process(node);
        SimFabric { network: Arc::clone(self), process }
    }

    /// Advances every transfer a little, and time to the next arrival. Returns whether anything was in flight.
    pub(crate) fn step(&self) -> bool {
        let mut state = self.state.lock();
        let moved = state.progress_all() | state.progress_wakes();
        let due = state.next_due(self.now());
        match due {
            Some(due) => self.clock.advance_to(due),
            None => self.clock.advance(IDLE_NS),
        }
        state.set_readiness(self.now());
        moved || due.is_some()
    }

    /// Makes those handles readable that are ready now, and no others. Each step does so, too.
    pub(crate) fn set_readiness(&self) {
        self.state.lock().set_readiness(self.now());
    }

    /// Kills the process: peers receive what it has sent, then its end. Its entry stays, dead.
    pub(crate) fn kill(&self, node: &NodeName) {
        self.state.lock().kill(node, self.now());
    }

    /// Breaks all connections of the process: both ends of each notice, and can connect again.
    pub(crate) fn break_connections(&self, node: &NodeName) {
        self.state.lock().break_connections(node);
    }

    /// Stops the process: no message reaches or leaves it. Its memory still answers.
    pub(crate) fn pause(&self, node: &NodeName) {
        self.state.lock().set_paused(node, true);
    }

    /// Resumes the process.
    pub(crate) fn resume(&self, node: &NodeName) {
        self.state.lock().set_paused(node, false);
    }

    /// Makes the next `count` batches of reads fail halfway, with their connections intact.
    pub(crate) fn fail_reads(&self, count: u32) {
        self.state.lock().doomed_reads = count;
    }

    /// Makes the next `count` batches of writes fail at their end, with their connections intact.
    pub(crate) fn fail_writes(&self, count: u32) {
        self.state.lock().doomed_writes = count;
    }

    /// The number of regions that are open for writes.
    pub(crate) fn written_regions(&self) -> usize {
        Arc::strong_count(&self.written) - 1
    }

    fn now(&self) -> u64 {
        self.clock.monotonic_ns()
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Network")
            .field("reach", &self.reach)
            .field("now_ns", &self.now())
            .finish_non_exhaustive()
    }
}

/// The fabric of one process of a simulation.
#[derive(Debug)]
pub(crate) struct SimFabric {
    network: Arc<Network>,
    process: u32,
}

impl Fabric for SimFabric {
    fn listen(&self, node: &NodeName) -> Result<Vec<Box<dyn Acceptor>>, FabricError> {
        let started_ns = self.network.clock.realtime_ns();
        let (serial, readiness) = self.network.state.lock().listen(self.process, node, started_ns)?;
        let (network, node) = (Arc::clone(&self.network), node.clone());
        Ok(vec![Box::new(SimListener { network, node, process: self.process, serial, readiness })])
    }

    fn dial(&self, address: &Address, _: Intent, _: Duration) -> Result<Box<dyn Connection>, FabricError> {
        let Some(node) = &address.node() else {
            return Err(FabricError::Unreachable { address: address.clone(), fabric: NAME });
        };
        let (link, readiness) = self.network.state.lock().dial(self.process, node, self.network.now())?;
        let (network, process) = (Arc::clone(&self.network), self.process);
        Ok(Box::new(SimConnection { network, process, link, side: 0, readiness }))
    }

    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError> {
        self.network.state.lock().register(self.process, region, exposure)
    }

    fn nodes(&self) -> Result<Vec<NodeListing>, FabricError> {
        Ok(self.network.state.lock().nodes())
    }
}
