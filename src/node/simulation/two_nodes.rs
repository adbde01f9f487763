//! A publisher's node and a subscriber's, and everything that can happen between them, one after another: messages, READs, WRITEs
//! and datagrams that are late, lost, repeated, overtaken, torn, wrong or fail, connections that break, nodes that freeze, and either
//! process that dies after any step and starts again. In half of the runs the nodes have keys, and prove them in each session.
//!
//! What is received was published, bit for bit and in order; each record is received or reported lost, once; an entry of a table was
//! committed, and is newer than the one before it, unless damage was reported; and when the faults are over, everything arrives within a
//! bounded time.

use std::any::Any;
use std::collections::BTreeMap;

use super::*;
use crate::chain::ErrorChain;
use crate::fabric::FabricError;
use crate::id::Epoch;
use crate::keyring::tests::secret;
use crate::publisher::{LogPublisher, TablePublisher};
use crate::subscriber::{LogSubscriber, Persistent, SnapshotEntry, TableSubscriber};
use crate::testkit::fabric::DatagramFaults;
use crate::testkit::fault::{Fault, FaultyFabric, Running, Script};

const PUBLISHING: &str = "publishing";
const SUBSCRIBING: &str = "subscribing";
/// Steps of a run, and how many faults of operations it has at most.
const STEPS: u64 = 300;
const FAULTS_MAX: usize = 12;
/// Has no factor in common with the number of steps.
const STRIDE: u64 = 61;
/// The operations of each kind that may have one.
const OPERATIONS: u64 = 400;
/// Keys of the table.
const KEYS: u64 = 8;
/// How soon after the last fault everything has arrived, ns.
const BACK_WITHIN_NS: u64 = 5_000_000_000;

/// For each key the commit that put it.
type Table = BTreeMap<u64, u64>;

/// The value of a key that this commit put.
fn entry(key: u64, commit: u64) -> Value {
    value(commit * 100 + key)
}

/// Both processes, and what each has done.
struct Nodes {
    world: Arc<World>,
    random: Random,
    delivery: Delivery,
    publishing: Option<Publishing>,
    subscribing: Option<Subscribing>,
    /// The newest values of the state and the log that were published.
    newest: [u64; 2],
    /// The table after each commit.
    commits: Vec<Table>,
    /// The last record that was received or reported lost.
    told: u64,
    /// What dead processes held. They do not run any more to drop it.
    dead: Vec<Box<dyn Any>>,
    scripts: Vec<Arc<Running>>,
    deaths: u64,
    losses: u64,
}

struct Publishing {
    /// Keeps the process's node.
    _node: Node,
    state: StatePublisher<Value>,
    log: LogPublisher<Value>,
    table: TablePublisher<u64, Value>,
}

struct Subscribing {
    /// Keeps the process's node.
    _node: Node,
    state: Persistent<StateSubscriber<Value>>,
    log: Persistent<LogSubscriber<Value>>,
    table: Persistent<TableSubscriber<u64, Value>>,
    /// The last value of the state.
    last: u64,
    /// What was received of the table; for each key the last commit of which its value was; and whether damage was reported, after which
    /// values may come again.
    entries: Table,
    seen: Table,
    is_unsure: bool,
}

impl Nodes {
    fn new(seed: u64, reach: Reach, delivery: Delivery) -> Self {
        let (world, mut random) = (World::new(seed, reach), Random::new(seed));
        if random.once_in(2) {
            let line = format!("both read state,log,table {}", secret(1));
            *world.keyring.lock() = Some(Keyring::from_text(&line).unwrap());
        }
        let mut nodes = Self {
            world,
            random,
            delivery,
            publishing: None,
            subscribing: None,
            newest: [0; 2],
            commits: vec![Table::new()],
            told: 0,
            dead: Vec::new(),
            scripts: Vec::new(),
            deaths: 0,
            losses: 0,
        };
        nodes.publishing = Some(nodes.publishing());
        nodes.subscribing = nodes.subscribing();
        nodes
    }

    /// A node whose operations have faults.
    fn node(&mut self, name: &str, listening: bool) -> Node {
        let count = self.random.index(FAULTS_MAX + 1);
        let script = Script::mixed(self.random.next(), count, OPERATIONS);
        let running = Arc::new(Running::new(&script));
        self.scripts.push(Arc::clone(&running));
        let name: NodeName = name.parse().unwrap();
        let fabric = FaultyFabric::new(Box::new(self.world.network.fabric(&name)), &running);
        self.world.node_over((name, listening), Arc::new(fabric), Arc::new(TracingSink::default()))
    }

    /// A publisher that continues the numbering.
    fn publishing(&mut self) -> Publishing {
        let node = self.node(PUBLISHING, true);
        let [state, log] = self.newest.map(Sequence::new);
        let epoch = Epoch::new(7).unwrap();
        let state = node.state_publisher("state").payload_len_max(160).slots(4).epoch(epoch).after(state);
        let log = node.log_publisher("log").payload_len_max(160).capacity(4096).epoch(epoch).after(log);
        let commit = self.commits.len() as u64 - 1;
        let table = node.table_publisher("table").payload_len_max(160).capacity(16).epoch(epoch);
        let mut table: TablePublisher<u64, Value> = table.after(Sequence::new(commit)).open().unwrap();
        // The new repository is empty.
        let held: Vec<u64> = self.table().keys().copied().collect();
        if !held.is_empty() {
            held.iter().for_each(|key| table.stage(key, &entry(*key, commit + 1)).unwrap());
            table.commit();
            self.commits.push(held.into_iter().map(|key| (key, commit + 1)).collect());
        }
        Publishing { state: state.open().unwrap(), log: log.open().unwrap(), table, _node: node }
    }

    fn table(&self) -> &Table {
        self.commits.last().unwrap()
    }

    /// A subscriber that continues after the last record. `None` if opening it failed, by a fault.
    fn subscribing(&mut self) -> Option<Subscribing> {
        let node = self.node(SUBSCRIBING, false);
        let next = Sequence::new(self.told + 1);
        let state = node.state_subscriber("shm:publishing/state").delivery(self.delivery);
        let log = node.log_subscriber("shm:publishing/log").at(next).delivery(self.delivery);
        let table = node.table_subscriber("shm:publishing/table").delivery(self.delivery);
        let (state, log, table) = match self.random.below(2) {
            0 => (state.notices().persistent(), log.notices().persistent(), table.notices().persistent()),
            _ => (state.persistent(), log.persistent(), table.persistent()),
        };
        match (state.open(), log.open(), table.open()) {
            (Ok(state), Ok(log), Ok(table)) => {
                let (entries, seen) = (Table::new(), Table::new());
                Some(Subscribing { state, log, table, _node: node, last: 0, entries, seen, is_unsure: false })
            }
            opened => {
                self.world.kill(SUBSCRIBING);
                self.dead.push(Box::new((opened, node)));
                None
            }
        }
    }

    fn step(&mut self) {
        let world = Arc::clone(&self.world);
        match self.random.below(120) {
            0 => self.kill_publishing(),
            1 => self.kill_subscribing(),
            2..=4 => {
                let name = if self.random.once_in(2) { PUBLISHING } else { SUBSCRIBING };
                world.network.break_connections(&name.parse().unwrap());
            }
            5 => world.network.pause(&PUBLISHING.parse().unwrap()),
            6..=9 => world.network.resume(&PUBLISHING.parse().unwrap()),
            10..=11 => world.network.set_datagram_faults(DatagramFaults {
                lose_permille: self.random.below(4) * 300,
                double_permille: self.random.below(500),
                reorder_permille: self.random.below(500),
                delay_ns_max: self.random.below(2) * 20_000_000,
            }),
            12 => world.network.fail_reads(1),
            13 => world.network.fail_writes(1),
            14..=50 => self.publish(),
            51..=80 => (0..=self.random.below(20)).for_each(|_| world.turn()),
            _ => self.receive(),
        }
        if self.publishing.is_none() && self.random.once_in(10) {
            self.publishing = Some(self.publishing());
        }
        if self.subscribing.is_none() && self.random.once_in(4) {
            self.subscribing = self.subscribing();
        }
    }

    fn kill_publishing(&mut self) {
        if let Some(publishing) = self.publishing.take() {
            self.world.network.resume(&PUBLISHING.parse().unwrap());
            self.world.kill(PUBLISHING);
            self.dead.push(Box::new(publishing));
            self.deaths += 1;
        }
    }

    fn kill_subscribing(&mut self) {
        if let Some(subscribing) = self.subscribing.take() {
            self.world.kill(SUBSCRIBING);
            self.dead.push(Box::new(subscribing));
            self.deaths += 1;
        }
    }

    fn publish(&mut self) {
        let Some(Publishing { state, log, table, .. }) = &mut self.publishing else { return };
        for _ in 0..=self.random.below(4) {
            let [of_state, of_log] = &mut self.newest;
            (*of_state, *of_log) = (*of_state + 1, *of_log + 1);
            assert_eq!(state.publish(&value(*of_state)).unwrap().get(), *of_state);
            assert_eq!(log.publish(&value(*of_log)).unwrap().get(), *of_log);
            let (mut next, commit) = (self.commits.last().unwrap().clone(), self.commits.len() as u64);
            let mut key = self.random.below(KEYS);
            for _ in 0..=self.random.below(6) {
                // One commit may remove and add a key several times.
                key = if self.random.once_in(2) { key } else { self.random.below(KEYS) };
                if self.random.once_in(4) {
                    assert_eq!(table.stage_removal(&key).unwrap(), next.remove(&key).is_some());
                } else {
                    table.stage(&key, &entry(key, commit)).unwrap();
                    next.insert(key, commit);
                }
            }
            if table.commit().get() == commit {
                self.commits.push(next);
            }
        }
    }

    /// Reads the whole table, or a key.
    fn look_up(&mut self) {
        let (key, wrong) = (self.random.below(KEYS), self.wrong_reads());
        let Some(Subscribing { table, .. }) = &mut self.subscribing else { return };
        let Some(table) = table.current_mut() else { return };
        let commit = |sequence: Sequence| self.commits.get(usize::try_from(sequence.get()).unwrap());
        let read = usize::try_from(table.last().get()).unwrap();
        match self.random.below(2) {
            0 => match table.get(&key) {
                Ok(None) if self.wrong_reads() > wrong => {}
                Ok(None) => {
                    let mut since = self.commits[read..].iter();
                    assert!(since.any(|table| !table.contains_key(&key)), "{key} after {read}");
                }
                Ok(Some(sample)) => {
                    let sequence = sample.meta.sequence;
                    assert_eq!(sample.value, entry(key, sequence.get()));
                    assert_eq!(commit(sequence).and_then(|table| table.get(&key)), Some(&sequence.get()));
                }
                Err(error) if fails_lookups(&error) => {}
                Err(error) => self.losses += u64::from(is_loss(&error)),
            },
            _ => match table.snapshot(Duration::from_millis(2)) {
                Ok(snapshot) if self.wrong_reads() > wrong => {
                    // Nothing shows to it that one brought what was there before: each value is one that was committed.
                    for SnapshotEntry { key, value, meta, .. } in snapshot.entries {
                        assert_eq!(value, entry(key, meta.sequence.get()));
                        let committed = commit(meta.sequence).and_then(|table| table.get(&key));
                        assert_eq!(committed, Some(&meta.sequence.get()));
                    }
                }
                Ok(snapshot) => {
                    let held = snapshot.entries.iter().map(|it| (it.key, it.meta.sequence.get()));
                    let committed = commit(snapshot.sequence).unwrap();
                    match snapshot.damaged {
                        0 => assert_eq!(&held.collect::<Table>(), committed, "{}", snapshot.sequence),
                        _ => held.for_each(|(key, at)| assert_eq!(committed.get(&key), Some(&at))),
                    }
                    snapshot
                        .entries
                        .iter()
                        .for_each(|it| assert_eq!(it.value, entry(it.key, it.meta.sequence.get())));
                }
                Err(error) if fails_lookups(&error) => {}
                Err(error) => self.losses += u64::from(is_loss(&error)),
            },
        }
    }

    /// How many reads brought what was not there then.
    fn wrong_reads(&self) -> usize {
        let happened = self.scripts.iter().flat_map(|script| script.happened());
        let is_wrong = |fault: &Fault| {
            matches!(fault, Fault::FlipBit { .. } | Fault::TearRead { .. } | Fault::ReplayOld)
        };
        happened.filter(|(fault, _)| is_wrong(fault)).count()
    }

    fn receive(&mut self) {
        if self.random.once_in(8) {
            self.look_up();
        }
        self.receive_entries();
        let [newest_state, newest_log] = self.newest;
        let Some(Subscribing { state, log, last, .. }) = &mut self.subscribing else { return };
        match state.try_receive() {
            Ok(None) => {}
            Ok(Some(sample)) => {
                let sequence = sample.meta.sequence.get();
                assert!(
                    sequence > *last && sequence <= newest_state,
                    "{sequence} after {last} of {newest_state}"
                );
                assert_eq!(sample.value, value(sequence));
                *last = sequence;
            }
            Err(ReceiveError::Contradicted { first, .. }) => *last = first.get() - 1,
            // A value that was read wrong or cut off may come once more, right.
            Err(error) => self.losses += u64::from(is_loss(&error)),
        }
        for _ in 0..4 {
            match log.try_receive() {
                Ok(None) => return,
                Ok(Some(sample)) => {
                    let sequence = sample.meta.sequence.get();
                    assert!(sequence <= newest_log, "{sequence} of {newest_log}");
                    assert_eq!((sequence, sample.value), (self.told + 1, value(sequence)), "the next record");
                    self.told = sequence;
                }
                Err(
                    ReceiveError::Lapped { first_lost, count }
                    | ReceiveError::DamagedRecords { first_lost, count }
                    | ReceiveError::CutOff { first_lost, count },
                ) => {
                    assert_eq!(first_lost.get(), self.told + 1, "{count} lost, not the next");
                    self.told += count;
                    self.losses += 1;
                    assert!(self.told <= newest_log, "{count} lost up to {}, of {newest_log}", self.told);
                }
                Err(ReceiveError::Contradicted { first, .. }) => {
                    assert!(first.get() <= self.told + 1, "{first} withdrawn, not received");
                    self.told = first.get() - 1;
                }
                Err(error) => {
                    self.losses += u64::from(is_loss(&error));
                    return;
                }
            }
        }
    }

    fn receive_entries(&mut self) {
        let Some(Subscribing { table, entries, seen, is_unsure, .. }) = &mut self.subscribing else { return };
        for _ in 0..8 {
            match table.try_change() {
                Ok(None) => return,
                Ok(Some(change)) => {
                    let (key, commit) = (change.key, change.meta.sequence.get());
                    let Some(found) = change.value else {
                        assert!(entries.remove(&key).is_some(), "{key} was not received");
                        continue;
                    };
                    assert_eq!(found, entry(key, commit));
                    let committed = self.commits.get(usize::try_from(commit).unwrap());
                    assert_eq!(committed.and_then(|table| table.get(&key)), Some(&commit), "{key}");
                    let before = seen.insert(key, commit);
                    assert!(*is_unsure || before < Some(commit), "{key}: {commit} after {before:?}");
                    entries.insert(key, commit);
                }
                Err(error) => {
                    let has_lost = is_loss(&error);
                    *is_unsure |= has_lost;
                    self.losses += u64::from(has_lost);
                    return;
                }
            }
        }
    }

    /// No faults any more: everything arrives.
    fn settle(&mut self) {
        self.scripts.iter().for_each(|script| script.end());
        self.world.network.set_datagram_faults(DatagramFaults::default());
        self.world.network.fail_reads(0);
        self.world.network.fail_writes(0);
        self.world.network.resume(&PUBLISHING.parse().unwrap());
        if self.publishing.is_none() {
            self.publishing = Some(self.publishing());
        }
        for _ in 0..100 {
            if self.subscribing.is_none() {
                self.subscribing = self.subscribing();
            }
        }
        self.scripts.iter().for_each(|script| script.end());
        self.publish();
        let began_ns = self.world.network.clock().monotonic_ns();
        loop {
            self.world.turn();
            self.receive();
            let last = self.subscribing.as_ref().map(|subscribing| subscribing.last);
            let entries = self.subscribing.as_ref().map(|subscribing| &subscribing.entries);
            if (last, self.told, entries) == (Some(self.newest[0]), self.newest[1], Some(self.table())) {
                return;
            }
            let elapsed_ns = self.world.network.clock().monotonic_ns() - began_ns;
            assert!(
                elapsed_ns < BACK_WITHIN_NS,
                "{last:?} and {} of {:?}, {entries:?} of {:?}",
                self.told,
                self.newest,
                self.table()
            );
        }
    }
}

/// Whether a lookup has failed since the publisher has ended or is lost, which the next receive reports, or pauses.
fn fails_lookups(error: &ReceiveError) -> bool {
    match error {
        ReceiveError::Ended { .. } | ReceiveError::Gone { .. } => true,
        ReceiveError::Fabric(error) => matches!(error, FabricError::ReadOverdue) || error.ends_connection(),
        _ => false,
    }
}

/// Whether values were reported lost, damaged or withdrawn. Panics if the error is not one of a fault.
fn is_loss(error: &ReceiveError) -> bool {
    match error {
        // A read failed, or the publisher that was found was gone before it had answered: the next attempt continues.
        ReceiveError::Contended { .. }
        | ReceiveError::NotResumed { .. }
        | ReceiveError::Fabric(FabricError::Access { .. } | FabricError::System { .. }) => false,
        ReceiveError::Damaged { .. }
        | ReceiveError::BrokenStamps { .. }
        | ReceiveError::ForeignEpoch { .. }
        | ReceiveError::ImpossibleLen { .. }
        | ReceiveError::CutOff { .. } => true,
        error => panic!("{}", ErrorChain(error)),
    }
}

fn run(seed: u64, reach: Reach, delivery: Delivery) -> Nodes {
    let mut nodes = Nodes::new(seed, reach, delivery);
    // Of STEPS seeds in a row, each has a process die after another step, unless both are dead.
    let last = seed.wrapping_mul(STRIDE) % STEPS;
    for step in 0..STEPS {
        nodes.step();
        match nodes.random.below(2) {
            _ if step != last => {}
            0 if nodes.subscribing.is_some() => nodes.kill_subscribing(),
            _ if nodes.publishing.is_some() => nodes.kill_publishing(),
            _ => nodes.kill_subscribing(),
        }
    }
    nodes.settle();
    nodes
}

fn play(reach: Reach, delivery: Delivery) {
    let (mut deaths, mut losses, mut faults, mut runs) = (0, 0, 0, 0);
    each_seed(amount(SEEDS / 6, 2500), |seed| {
        let nodes = run(seed, reach, delivery);
        (deaths, losses) = (deaths + nodes.deaths, losses + nodes.losses);
        faults += nodes.scripts.iter().map(|script| script.happened().len()).sum::<usize>();
        runs += 1;
    });
    println!("{runs} runs: {deaths} deaths, {losses} losses, {faults} faults of operations");
    assert!(runs == 1 || deaths > 0 && faults > 0, "nothing happened");
}

#[test]
fn two_nodes_agree_whatever_happens_to_pulls_where_memory_is_mapped() {
    play(Reach::Mapped, Delivery::Pull);
}

#[test]
fn two_nodes_agree_whatever_happens_to_pulls_where_memory_is_fetched() {
    play(Reach::Fetched, Delivery::Pull);
}

#[test]
fn two_nodes_agree_whatever_happens_to_pushes_where_memory_is_mapped() {
    play(Reach::Mapped, Delivery::Push);
}

#[test]
fn two_nodes_agree_whatever_happens_to_pushes_where_memory_is_fetched() {
    play(Reach::Fetched, Delivery::Push);
}
