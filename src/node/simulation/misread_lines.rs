//! Two lines of a table that are read over a wire on which some reads are wrong.

use std::collections::BTreeMap;

use super::*;
use crate::id::Epoch;
use crate::publisher::TablePublisher;
use crate::subscriber::{Lines, TableSubscriber};
use crate::testkit::fault::{FaultyFabric, Running, Script};

const NAMES: [&str; 2] = ["a", "b"];
const KEYS: u64 = 6;
const COMMITS: u64 = 60;
/// Receives after which a reader has compared its whole table.
const AUDITED_WITHIN: u64 = 40 * limits::TABLE_AUDIT_ONE_IN;

type Table = BTreeMap<u64, u64>;

/// The commits that both lines publish: keys that are put, with the number of the commit, and keys that are removed.
fn commits(random: &mut Random) -> (Vec<BTreeMap<u64, bool>>, Table) {
    let (mut commits, mut table) = (Vec::new(), Table::new());
    for number in 1..=COMMITS {
        let mut commit = BTreeMap::new();
        for _ in 0..=random.below(2) {
            let key = random.below(KEYS);
            commit.entry(key).or_insert_with(|| !table.contains_key(&key) || !random.once_in(3));
        }
        for (key, is_put) in &commit {
            if *is_put {
                table.insert(*key, number)
            } else {
                table.remove(key)
            };
        }
        commits.push(commit);
    }
    (commits, table)
}

fn publish(publisher: &mut TablePublisher<u64, u64>, commits: &[BTreeMap<u64, bool>]) {
    let number = publisher.newest().get() + 1;
    let Some(commit) = commits.get(usize::try_from(number - 1).unwrap()) else { return };
    for (key, is_put) in commit {
        if *is_put {
            publisher.stage(key, &number).unwrap();
        } else {
            publisher.stage_removal(key).unwrap();
        }
    }
    assert_eq!(publisher.commit().get(), number);
}

/// Receives once.
fn receive(lines: &mut Lines<TableSubscriber<u64, u64>>, held: &mut Table) {
    match lines.try_change() {
        Ok(None) | Err(ReceiveError::Contended { .. }) => {}
        Ok(Some(change)) => match change.value {
            Some(value) => _ = held.insert(change.key, value),
            None => _ = held.remove(&change.key),
        },
        Err(
            ReceiveError::Damaged { .. }
            | ReceiveError::BrokenStamps { .. }
            | ReceiveError::ImpossibleLen { .. },
        ) => {}
        Err(error) => panic!("{error}"),
    }
}

/// A read that hid keys made its line say that they were removed, for ever and for all lines.
#[test]
fn wrong_reads_of_lines_lose_no_key_for_good() {
    each_seed(amount(SEEDS, 40 * SEEDS), |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, Reach::Fetched);
        let nodes = NAMES.map(|name| world.node(name, true));
        let epoch = Epoch::new(seed + 1).unwrap();
        let open = |node: &Node| node.table_publisher("t").capacity(8).epoch(epoch).open().unwrap();
        let mut publishers: [TablePublisher<u64, u64>; 2] = nodes.each_ref().map(open);
        let faults = Script::misread(seed, 1 + random.index(6), 20..400);
        let running = Arc::new(Running::new(&faults));
        let name: NodeName = "subscribing".parse().unwrap();
        let fabric = FaultyFabric::new(Box::new(world.network.fabric(&name)), &running);
        let subscribing = world.node_over((name, false), Arc::new(fabric), Arc::new(TracingSink::default()));
        let builder = subscribing.table_subscriber::<u64, u64>("shm:a/t");
        let mut lines = builder.delivery(Delivery::Pull).lines(["shm:b/t"]).open().unwrap();
        let (commits, last) = commits(&mut random);
        let mut held = Table::new();
        while publishers.iter().any(|publisher| publisher.newest().get() < COMMITS) {
            match random.below(8) {
                0 => publish(&mut publishers[random.index(2)], &commits),
                1..=2 => world.turn(),
                _ => receive(&mut lines, &mut held),
            }
        }
        running.end();
        for _ in 0..AUDITED_WITHIN {
            world.turn();
            (0..5).for_each(|_| receive(&mut lines, &mut held));
        }
        assert_eq!(held, last, "{:?} {lines:?}", running.happened());
    });
}
