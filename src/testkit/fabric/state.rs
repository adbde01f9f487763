//! The state of a simulated network: processes, names, links, registered regions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use super::arrival::Waking;
use super::channel::Channels;
use super::readiness::Readiness;
use super::transfer::Transfer;
use crate::fabric::{Address, Exposure, FabricError, NodeListing, Registration, RemoteKey, Sent};
use crate::id::NodeName;
use crate::limits;
use crate::memory::{Access, Region};
use crate::testkit::random::Random;

/// The shortest delay of a message, ns.
const LATENCY_NS_MIN: u64 = 1_000;
/// The longest extra delay, ns.
const LATENCY_NS_SPREAD: u64 = 9_000;

/// The mutable state of a simulated network.
#[derive(Debug)]
pub(super) struct SimState {
    pub(super) random: Random,
    pub(super) transfers: BTreeMap<u64, Transfer>,
    pub(super) channels: Channels,
    pub(super) waking: Waking,
    /// So many batches of reads will fail halfway.
    pub(super) doomed_reads: u32,
    /// How many more batches of writes fail, at their end.
    pub(super) doomed_writes: u32,
    processes: Vec<Process>,
    entries: BTreeMap<NodeName, Entry>,
    links: BTreeMap<u64, SimLink>,
    registered: BTreeMap<u64, Registered>,
    serial: u64,
}

#[derive(Debug)]
struct Process {
    node: NodeName,
    alive: bool,
    paused: bool,
}

/// A name that has or had a listener.
#[derive(Debug)]
struct Entry {
    process: u32,
    serial: u64,
    started_ns: u64,
    alive: bool,
    /// When each dialled link arrives, and which one.
    waiting: VecDeque<(u64, u64)>,
    readiness: Arc<Readiness>,
}

/// A connection: the dialling end and the accepting end.
#[derive(Debug)]
struct SimLink {
    ends: [SimEnd; 2],
    /// A transfer has used revoked memory: the link carries nothing any more.
    broken: bool,
}

#[derive(Debug)]
struct SimEnd {
    process: u32,
    open: bool,
    /// The messages to this end.
    inbox: VecDeque<Parcel>,
    /// When the last of it arrives.
    arrival_ns: u64,
    /// When this end learns that the other one is closed.
    closed_ns: Option<u64>,
    /// Its last message was refused, and it has not learned since that there is space.
    wants_to_send: bool,
    readiness: Arc<Readiness>,
}

/// A message in flight.
#[derive(Debug)]
pub(super) struct Parcel {
    due_ns: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) capability: Option<Capability>,
}

/// What an end receives.
#[derive(Debug)]
pub(super) enum Arrival {
    Parcel(Parcel),
    Nothing,
    Closed,
}

/// The right to use a peer's region.
#[derive(Clone, Debug)]
pub(super) struct Capability {
    /// The process it belongs to.
    pub(super) owner: u32,
    /// The link it came over.
    pub(super) link: u64,
    pub(super) exposure: Exposure,
    pub(super) region: RegionHold,
}

/// How a capability holds its region.
#[derive(Clone, Debug)]
pub(super) enum RegionHold {
    /// Like an open memory file, which keeps the memory.
    Kept(Arc<Region>),
    /// Like a remote key, which does not.
    Known(Weak<Region>),
}

#[derive(Debug)]
struct Registered {
    process: u32,
    exposure: Exposure,
    region: Weak<Region>,
}

/// A registration with a simulated network.
#[derive(Debug)]
pub(super) struct SimRegistered {
    pub(super) remote: RemoteKey,
}

impl crate::fabric::Registered for SimRegistered {}

impl SimEnd {
    /// Whether it takes another message.
    fn has_room(&self) -> bool {
        self.inbox.len() < limits::OUTBOUND_MESSAGES_MAX
    }
}

impl SimState {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            transfers: BTreeMap::new(),
            channels: Channels::default(),
            waking: Waking::default(),
            doomed_reads: 0,
            doomed_writes: 0,
            processes: Vec::new(),
            entries: BTreeMap::new(),
            links: BTreeMap::new(),
            registered: BTreeMap::new(),
            serial: 0,
        }
    }

    /// A new number.
    pub(super) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) fn begin_process(&mut self, node: &NodeName) -> u32 {
        self.processes.push(Process { node: node.clone(), alive: true, paused: false });
        u32::try_from(self.processes.len()).expect("a simulation has a few processes")
    }

    pub(super) fn listen(
        &mut self,
        process: u32,
        node: &NodeName,
        started_ns: u64,
    ) -> Result<(u64, Arc<Readiness>), FabricError> {
        self.check_alive(process)?;
        if let Some(entry) = self.entries.get(node).filter(|entry| entry.alive) {
            return Err(FabricError::NameInUse { node: node.clone(), process: entry.process });
        }
        let serial = self.serial();
        let (waiting, readiness) = (VecDeque::new(), Arc::new(Readiness::new()?));
        let own = Arc::clone(&readiness);
        let entry = Entry { process, serial, started_ns, alive: true, waiting, readiness };
        self.entries.insert(node.clone(), entry);
        Ok((serial, own))
    }

    /// Ends listening. The trace of a killed process stays.
    pub(super) fn unlisten(&mut self, node: &NodeName, serial: u64, now: u64) {
        let own = |entry: &&Entry| entry.serial == serial && entry.alive;
        if self.entries.get(node).filter(own).is_some() {
            let entry = self.entries.remove(node).expect("the entry that was just looked at");
            entry.waiting.into_iter().for_each(|(_, link)| self.close(link, 1, now));
        }
    }

    pub(super) fn nodes(&self) -> Vec<NodeListing> {
        let listed = |(node, entry): (&NodeName, &Entry)| NodeListing {
            node: node.clone(),
            process: entry.process,
            started_ns: entry.started_ns,
            alive: entry.alive,
        };
        self.entries.iter().map(listed).collect()
    }

    pub(super) fn dial(
        &mut self,
        process: u32,
        node: &NodeName,
        now: u64,
    ) -> Result<(u64, Arc<Readiness>), FabricError> {
        self.check_alive(process)?;
        let address = || Address::shm(node);
        let (serial, due) = (self.serial(), now + self.latency());
        let Some(entry) = self.entries.get_mut(node) else {
            return Err(FabricError::NoSuchNode { address: address() });
        };
        if !entry.alive {
            return Err(FabricError::NodeGone { address: address() });
        }
        let due = entry.waiting.back().map_or(due, |(last, _)| due.max(*last));
        entry.waiting.push_back((due, serial));
        let [near, far] = [Arc::new(Readiness::new()?), Arc::new(Readiness::new()?)];
        let own = Arc::clone(&near);
        let end = |process, arrival_ns, readiness| SimEnd {
            process,
            open: true,
            inbox: VecDeque::new(),
            arrival_ns,
            closed_ns: None,
            wants_to_send: false,
            readiness,
        };
        let ends = [end(process, 0, near), end(entry.process, due, far)];
        self.links.insert(serial, SimLink { ends, broken: false });
        Ok((serial, own))
    }

    /// The process at the other end of a link.
    pub(super) fn peer(&self, link: u64, side: usize) -> Option<u32> {
        self.links.get(&link).map(|link| link.ends[1 - side].process)
    }

    /// The next link that has arrived at a listener.
    pub(super) fn accept(
        &mut self,
        node: &NodeName,
        serial: u64,
        now: u64,
    ) -> Result<Option<(u64, Arc<Readiness>)>, FabricError> {
        let entry = self.entries.get(node).filter(|entry| entry.serial == serial && entry.alive);
        let has_dialled = self.has_dialled(entry.ok_or(FabricError::Closed)?, now);
        let entry = self.entries.get_mut(node).filter(|_| has_dialled);
        let link = entry.and_then(|entry| entry.waiting.pop_front()).map(|(_, link)| link);
        let known = link.and_then(|link| Some((link, self.links.get(&link)?)));
        Ok(known.map(|(link, SimLink { ends: [_, end], .. })| (link, Arc::clone(&end.readiness))))
    }

    /// Whether a link waits to be accepted.
    fn has_dialled(&self, entry: &Entry, now: u64) -> bool {
        self.runs(entry.process) && entry.waiting.front().is_some_and(|(due, _)| *due <= now)
    }

    pub(super) fn send(
        &mut self,
        (link, side): (u64, usize),
        bytes: &[u8],
        capability: Option<Capability>,
        now: u64,
    ) -> Result<Sent, FabricError> {
        let latency = self.latency();
        let Some(SimLink { ends, .. }) = self.links.get_mut(&link) else { return Err(FabricError::Closed) };
        if !ends[side].open || ends[side].closed_ns.is_some_and(|closed_ns| closed_ns <= now) {
            return Err(FabricError::Closed);
        }
        ends[side].wants_to_send = !ends[1 - side].has_room();
        if ends[side].wants_to_send {
            return Ok(Sent::Full);
        }
        let peer = &mut ends[1 - side];
        if peer.open {
            peer.arrival_ns = peer.arrival_ns.max(now + latency);
            let due_ns = peer.arrival_ns;
            peer.inbox.push_back(Parcel { due_ns, bytes: bytes.to_vec(), capability });
        }
        Ok(Sent::Done)
    }

    pub(super) fn receive(&mut self, (link, side): (u64, usize), now: u64) -> Arrival {
        let has_arrival = self.links.get(&link).is_none_or(|link| self.has_arrival(link, side, now));
        let Some(SimLink { ends, .. }) = self.links.get_mut(&link) else { return Arrival::Closed };
        // The owner sends next: one wake-up is enough.
        ends[side].wants_to_send &= !ends[1 - side].has_room();
        if !has_arrival {
            return Arrival::Nothing;
        }
        ends[side].inbox.pop_front().map_or(Arrival::Closed, Arrival::Parcel)
    }

    /// Whether an end has something to receive: a message, or that the link is closed.
    fn has_arrival(&self, SimLink { ends, .. }: &SimLink, side: usize, now: u64) -> bool {
        let end = &ends[side];
        let due_ns = end.inbox.front().map(|parcel| parcel.due_ns).or(end.closed_ns);
        let is_due = || due_ns.is_some_and(|due_ns| due_ns <= now);
        !end.open || ends.iter().all(|end| self.runs(end.process)) && is_due()
    }

    /// Makes those handles readable that are ready at this time, and no others.
    pub(super) fn set_readiness(&self, now: u64) {
        for entry in self.entries.values() {
            entry.readiness.set(self.has_dialled(entry, now));
        }
        for link in self.links.values() {
            for (side, end) in link.ends.iter().enumerate() {
                let accepts = end.wants_to_send && link.ends[1 - side].has_room();
                end.readiness.set(accepts || self.has_arrival(link, side, now));
            }
        }
    }

    /// Closes one end: the other receives everything sent before.
    pub(super) fn close(&mut self, link: u64, side: usize, now: u64) {
        let latency = self.latency();
        let Some(SimLink { ends, .. }) = self.links.get_mut(&link) else { return };
        ends[side].open = false;
        ends[side].inbox.clear();
        ends[side].readiness.set(true);
        let peer = &mut ends[1 - side];
        let learns_ns = peer.arrival_ns.max(now + latency);
        peer.closed_ns.get_or_insert(learns_ns);
        if !peer.open {
            self.links.remove(&link);
        }
    }

    pub(super) fn register(
        &mut self,
        process: u32,
        region: &Arc<Region>,
        exposure: Exposure,
    ) -> Result<Registration, FabricError> {
        self.check_alive(process)?;
        if exposure != Exposure::Read && region.access() == Access::Read {
            return Err(FabricError::Access { why: "it can only be read here" });
        }
        let (key, address) = (self.random.next() | 1, self.random.next() & !0xfff);
        self.registered.insert(key, Registered { process, exposure, region: Arc::downgrade(region) });
        let entry = SimRegistered { remote: RemoteKey { key, address } };
        Ok(Registration::new(Arc::clone(region), exposure, entry))
    }

    /// The capability to send over this link.
    pub(super) fn capability(
        &self,
        process: u32,
        link: u64,
        registration: &Registration,
        keep: bool,
    ) -> Result<Capability, FabricError> {
        let mut entries = registration.entries::<SimRegistered>();
        let registered = |entry: &SimRegistered| self.registered.get(&entry.remote.key);
        let own = |registered: &&Registered| {
            registered.process == process && registered.region.as_ptr() == Arc::as_ptr(registration.region())
        };
        let own = entries.find_map(|entry| registered(entry).filter(own));
        let Some(registered) = own else {
            return Err(FabricError::Access { why: "it is registered with another fabric" });
        };
        let region = if keep {
            RegionHold::Kept(Arc::clone(registration.region()))
        } else {
            RegionHold::Known(Weak::clone(&registered.region))
        };
        Ok(Capability { owner: process, link, exposure: registered.exposure, region })
    }

    /// Whether transfers over this link to memory of this process are answered.
    pub(super) fn reachable(&self, owner: u32, link: u64) -> bool {
        let open = |link: &SimLink| !link.broken && link.ends.iter().all(|end| end.open);
        self.processes[owner as usize - 1].alive && self.links.get(&link).is_some_and(open)
    }

    /// Breaks a link, as a device does that is asked for revoked memory: both ends notice.
    pub(super) fn break_off(&mut self, link: u64) {
        let Some(link) = self.links.get_mut(&link) else { return };
        link.broken = true;
        for end in &mut link.ends {
            end.closed_ns.get_or_insert(end.arrival_ns);
        }
    }

    pub(super) fn break_connections(&mut self, node: &NodeName) {
        let is_of = |end: &SimEnd| self.processes[end.process as usize - 1].node == *node;
        let links = self.links.iter().filter(|(_, link)| link.ends.iter().any(is_of));
        let links: Vec<u64> = links.map(|(link, _)| *link).collect();
        links.into_iter().for_each(|link| self.break_off(link));
    }

    pub(super) fn kill(&mut self, node: &NodeName, now: u64) {
        let numbered = self.processes.iter_mut().zip(1..);
        let killed: Vec<u32> = numbered
            .filter(|(process, _)| process.alive && process.node == *node)
            .map(|(process, number)| {
                (process.alive, process.paused) = (false, false);
                number
            })
            .collect();
        for entry in self.entries.values_mut().filter(|entry| killed.contains(&entry.process)) {
            entry.alive = false;
            entry.waiting.clear();
        }
        self.transfers.retain(|_, transfer| !killed.contains(&transfer.initiator()));
        let ends = self.links.iter().flat_map(|(link, SimLink { ends, .. })| {
            ends.iter().enumerate().map(|(side, end)| (*link, side, end.process, end.open))
        });
        let dead: Vec<_> = ends.filter(|(.., process, open)| *open && killed.contains(process)).collect();
        dead.into_iter().for_each(|(link, side, ..)| self.close(link, side, now));
    }

    pub(super) fn set_paused(&mut self, node: &NodeName, paused: bool) {
        let alive = self.processes.iter_mut().filter(|process| process.alive && process.node == *node);
        alive.for_each(|process| process.paused = paused);
    }

    /// When the next arrival after `now` is due.
    pub(super) fn next_due(&self, now: u64) -> Option<u64> {
        let entries = self.entries.values().filter(|entry| self.runs(entry.process));
        let dialled = entries.flat_map(|entry| entry.waiting.front()).map(|(due, _)| *due);
        let links = self.links.values().filter(|link| link.ends.iter().all(|end| self.runs(end.process)));
        let arriving = links.flat_map(|link| &link.ends).filter(|end| end.open).flat_map(|end| {
            let next = end.inbox.iter().map(|parcel| parcel.due_ns).find(|due| *due > now);
            next.into_iter().chain(end.closed_ns)
        });
        dialled.chain(arriving).chain(self.datagrams_due()).filter(|due| *due > now).min()
    }

    /// Whether messages reach and leave the process.
    pub(super) fn runs(&self, process: u32) -> bool {
        !self.processes[process as usize - 1].paused
    }

    pub(super) fn check_alive(&self, process: u32) -> Result<(), FabricError> {
        if self.processes[process as usize - 1].alive { Ok(()) } else { Err(FabricError::Closed) }
    }

    /// How long a message takes.
    pub(super) fn latency(&mut self) -> u64 {
        LATENCY_NS_MIN + self.random.below(LATENCY_NS_SPREAD)
    }
}
