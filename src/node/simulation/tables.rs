//! Tables between whole nodes: every subscriber ends with the publisher's table, and receives only what was committed.

use std::collections::BTreeMap;

use super::*;
use crate::publisher::TablePublisher;
use crate::subscriber::{NoticePath, SnapshotEntry, TableSubscriber};
use crate::testkit::fabric::DatagramFaults;

/// Keys that a table has room for, and keys that are used.
const CAPACITY: usize = 12;
const KEYS: u64 = 16;

const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];

/// For each key the commit that changed it.
type Table = BTreeMap<u64, u64>;

/// The value of a key that this commit changed.
fn value_of(key: u64, commit: u64) -> Value {
    value(commit * 100 + key)
}

/// A publisher, and its table after each commit.
struct Source {
    publisher: TablePublisher<u64, Value>,
    history: Vec<Table>,
}

impl Source {
    fn new(node: &Node) -> Self {
        let builder = node.table_publisher::<u64, Value>("table").capacity(CAPACITY).payload_len_max(160);
        Self { publisher: builder.open().unwrap(), history: vec![Table::new()] }
    }

    fn table(&self) -> &Table {
        self.history.last().unwrap()
    }

    /// Commits random changes.
    fn commit(&mut self, random: &mut Random) {
        let (mut table, next) = (self.table().clone(), self.history.len() as u64);
        for _ in 0..1 + random.below(5) * random.below(2) {
            let key = random.below(KEYS);
            if random.once_in(4) {
                assert_eq!(self.publisher.stage_removal(&key).unwrap(), table.remove(&key).is_some());
            } else if self.publisher.stage(&key, &value_of(key, next)).is_ok() {
                table.insert(key, next);
            } else {
                assert!(!table.contains_key(&key), "the table is full");
            }
        }
        if self.publisher.commit().get() == next {
            self.history.push(table);
        }
    }

    /// Puts one key.
    fn put(&mut self, key: u64) {
        let (mut table, next) = (self.table().clone(), self.history.len() as u64);
        assert_eq!(self.publisher.put(&key, &value_of(key, next)).unwrap().get(), next);
        table.insert(key, next);
        self.history.push(table);
    }
}

/// A subscriber, and what it has received.
struct Follower {
    subscriber: TableSubscriber<u64, Value>,
    table: Table,
}

impl Follower {
    fn open(node: &Node, delivery: Delivery, has_notices: bool) -> Self {
        let builder = node.table_subscriber("shm:publishing/table").delivery(delivery);
        let builder = if has_notices { builder.notices() } else { builder };
        Self { subscriber: builder.open().expect("a grant"), table: Table::new() }
    }

    /// Receives what is available.
    fn take(&mut self, history: &[Table]) -> Result<(), ReceiveError> {
        for change in self.subscriber.changes() {
            let change = change?;
            let (key, commit) = (change.key, change.meta.sequence.get());
            match change.value {
                Some(found) => {
                    assert_eq!(found, value_of(key, commit));
                    assert_eq!(history[usize::try_from(commit).unwrap()].get(&key), Some(&commit));
                    assert!(self.table.insert(key, commit) < Some(commit), "{key} of {commit}");
                }
                None => assert!(self.table.remove(&key).is_some(), "{key} was not received"),
            }
        }
        Ok(())
    }

    /// Takes a snapshot, or looks up a key, if that succeeds.
    fn look(&mut self, history: &[Table], random: &mut Random) {
        // Nothing arrives in a landing region while a snapshot repeats its passes.
        if random.once_in(2) || self.subscriber.delivery() == Delivery::Push {
            let key = random.below(KEYS);
            match self.subscriber.get(&key) {
                Ok(Some(found)) => assert_eq!(found.value, value_of(key, found.meta.sequence.get())),
                Ok(None) | Err(ReceiveError::Contended { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            return;
        }
        match self.subscriber.snapshot(Duration::from_millis(1)) {
            Ok(snapshot) => {
                let entry_of = |entry: &SnapshotEntry<u64, Value>| {
                    assert_eq!(entry.value, value_of(entry.key, entry.meta.sequence.get()));
                    (entry.key, entry.meta.sequence.get())
                };
                let table: Table = snapshot.entries.iter().map(entry_of).collect();
                let commit = snapshot.sequence.get();
                assert_eq!(table, history[usize::try_from(commit).unwrap()], "commit {commit}");
            }
            Err(ReceiveError::Contended { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Receives until it has the publisher's table.
    fn catch_up(&mut self, world: &World, source: &Source) {
        for _ in 0..TURNS {
            self.take(&source.history).expect("a change, sooner or later");
            if self.table == *source.table() {
                let counts = self.subscriber.stats();
                assert_eq!((counts.rejected, self.subscriber.suspects()), (0, vec![]));
                return;
            }
            world.turn();
        }
        panic!("{:?} instead of {:?}", self.table, source.table());
    }

    /// Receives until an error.
    fn end(&mut self, world: &World, history: &[Table]) -> ReceiveError {
        let end = (0..TURNS).find_map(|_| {
            world.turn();
            self.take(history).err()
        });
        end.expect("an end, sooner or later")
    }
}

/// Subscribers come, receive and go in random order; publishers end, and others follow.
#[test]
fn subscribers_end_with_the_table_and_learn_its_end_after_the_last_commit() {
    for (reach, delivery) in WAYS {
        each_seed(amount(SEEDS / 4, 3 * SEEDS), |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let nodes = [world.node("one", false), world.node("other", false)];
            for _ in 0..2 {
                let mut source = Source::new(&publishing);
                let mut followers: Vec<Follower> = Vec::new();
                for _ in 0..200 {
                    match random.below(12) {
                        0 if followers.len() < 4 => {
                            followers.push(Follower::open(&nodes[random.index(2)], delivery, false));
                        }
                        1 if followers.len() > 2 => {
                            drop(followers.swap_remove(random.index(followers.len())));
                        }
                        2..=4 => source.commit(&mut random),
                        5 => (0..20).for_each(|_| world.turn()),
                        6..=7 => world.turn(),
                        8 => followers.iter_mut().for_each(|one| one.look(&source.history, &mut random)),
                        _ => followers.iter_mut().for_each(|one| one.take(&source.history).expect("no end")),
                    }
                }
                let half = followers.len() / 2;
                let (caught_up, others) = followers.split_at_mut(half);
                caught_up.iter_mut().for_each(|one| one.catch_up(&world, &source));
                let Source { publisher, history } = source;
                let newest = publisher.newest();
                drop(publisher);
                for follower in caught_up.iter_mut().chain(others) {
                    let end = follower.end(&world, &history);
                    assert!(matches!(end, ReceiveError::Ended { published } if published == newest), "{end}");
                    assert_eq!(Some(&follower.table), history.last());
                }
            }
        });
    }
}

/// When a node stops or dies, nothing is received that was not committed.
#[test]
fn values_of_nodes_that_stop_or_die_are_committed_ones() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 3, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let subscribing = world.node("subscribing", false);
            for dies in [true, false] {
                let publishing = world.node("publishing", true);
                let mut source = Source::new(&publishing);
                (0..random.below(8)).for_each(|_| source.commit(&mut random));
                let mut follower = Follower::open(&subscribing, delivery, false);
                (0..random.below(20)).for_each(|_| source.commit(&mut random));
                (0..random.below(30)).for_each(|_| world.turn());
                let Source { publisher, history } = source;
                if dies {
                    world.kill("publishing");
                    // It may die while it overwrites an entry.
                    let mut end = follower.end(&world, &history);
                    while matches!(end, ReceiveError::Damaged { .. } | ReceiveError::BrokenStamps { .. }) {
                        end = follower.end(&world, &history);
                    }
                    assert!(matches!(end, ReceiveError::Gone { .. }), "{end}");
                    continue;
                }
                drop((publisher, publishing));
                world.stop("publishing");
                let (mut cut_off, mut end) = (0, follower.end(&world, &history));
                if let ReceiveError::CutOff { count, .. } = end {
                    cut_off = count;
                    end = follower.end(&world, &history);
                }
                let newest = history.len() as u64 - 1;
                let is_end = matches!(end, ReceiveError::Ended { published } if published.get() == newest);
                assert!(is_end, "{end} after {newest}");
                // What was not read before the node was gone is lost with it.
                let is_there = (reach, delivery) != (Reach::Fetched, Delivery::Pull);
                assert!(!is_there || cut_off == 0, "{cut_off} of {newest}");
                assert!(cut_off > 0 || Some(&follower.table) == history.last());
            }
        });
    }
}

#[test]
fn whatever_happens_to_datagrams_subscribers_with_notices_end_with_the_table() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        each_seed(SEEDS / 4, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, Reach::Fetched);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let mut source = Source::new(&publishing);
            (0..5).for_each(|_| source.commit(&mut random));
            let mut followers = vec![Follower::open(&subscribing, delivery, true)];
            for round in 0..60 {
                if round % 15 == 0 {
                    world.network.set_datagram_faults(DatagramFaults {
                        lose_permille: random.below(4) * 300,
                        double_permille: random.below(500),
                        reorder_permille: random.below(500),
                        delay_ns_max: random.below(2) * 20_000_000,
                    });
                    world.network.cut_multicast(random.below(4) == 0);
                }
                (0..random.below(6)).for_each(|_| source.commit(&mut random));
                (0..random.below(8)).for_each(|_| world.turn());
                world.network.clock().advance(random.below(3) * 40_000_000);
                followers.iter_mut().for_each(|one| one.take(&source.history).expect("no end"));
                if round == 30 {
                    followers.push(Follower::open(&subscribing, delivery, true));
                }
            }
            for follower in &mut followers {
                let is_equal = (0..TURNS).any(|_| {
                    world.turn();
                    follower.take(&source.history).expect("no end");
                    world.network.clock().advance(1_000_000);
                    follower.table == *source.table()
                });
                assert!(is_equal, "{:?} instead of {:?}", follower.table, source.table());
                let counts = follower.subscriber.notice_counts();
                assert_eq!((counts.forged, counts.malformed), (0, 0), "{counts:?}");
            }
        });
    }
}

/// Not by the subscriber's own timer, which is far off.
#[test]
fn each_commit_is_announced() {
    each_seed(SEEDS / 10, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let subscribing = world.node("subscribing", false);
        let (mut random, mut source) = (Random::new(seed), Source::new(&publishing));
        let mut follower = Follower::open(&subscribing, Delivery::Pull, true);
        for _ in 0..20 {
            for _ in 0..TURNS {
                world.turn();
                follower.take(&source.history).expect("no end");
                if follower.subscriber.notice_path() == NoticePath::Multicast {
                    break;
                }
                world.network.clock().advance(10_000_000);
            }
            assert_eq!(follower.subscriber.notice_path(), NoticePath::Multicast);
            (0..random.below(100)).for_each(|_| {
                world.turn();
                follower.take(&source.history).expect("no end");
            });
            let began_ns = world.network.clock().monotonic_ns();
            source.put(random.below(CAPACITY as u64));
            follower.catch_up(&world, &source);
            let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
            assert!(elapsed_ns < 4 * limits::LANDING_TENDED_NS, "{elapsed_ns} ns");
        }
    });
}
