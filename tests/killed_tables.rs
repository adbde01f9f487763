//! Publishers of tables that are killed at any moment: their subscribers receive only what was committed.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use fabricast::{Delivery, Node, ReceiveError, TablePublisher, TableSubscriber};

use self::support::pattern::Random;
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

/// How often a publisher is killed, for each delivery.
const CYCLES: u64 = 20;
/// Keys that are never removed.
const KEYS: u64 = 300;
/// Keys of the table: those, and one that is replaced with each commit, in a cell that is free after the next one.
const CAPACITY: usize = 303;
/// One in so many keys changes with a commit.
const GROUPS: u64 = 7;

/// Each word is the number of the commit.
type Value = [u64; 24];
type Subscriber = TableSubscriber<u64, Value>;

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let node = Node::builder().name("p").expect("a name").runtime_dir(&role.dir).open().expect("a node");
    let builder = node.table_publisher::<u64, Value>("t").capacity(CAPACITY);
    let mut publisher = builder.open().expect("a topic");
    role.say("ready");
    role.command();
    loop {
        commit_next(&mut publisher);
    }
}

/// Changes one group of keys, removes the key of the last commit, and adds one.
fn commit_next(publisher: &mut TablePublisher<u64, Value>) {
    let number = publisher.newest().get() + 1;
    let value = [number; 24];
    for key in (0..KEYS).filter(|key| key % GROUPS == number % GROUPS) {
        publisher.stage(&key, &value).expect("it fits");
    }
    publisher.stage_removal(&(KEYS + number - 1)).expect("a key");
    publisher.stage(&(KEYS + number), &value).expect("it fits");
    assert_eq!(publisher.commit().get(), number);
}

/// The table after a commit: for each key the commit that changed it.
fn table_after(number: u64) -> BTreeMap<u64, u64> {
    let newest = |key: u64| number.checked_sub((number + GROUPS - key % GROUPS) % GROUPS);
    let lasting = (0..KEYS).filter_map(|key| Some((key, newest(key).filter(|commit| *commit > 0)?)));
    lasting.chain((number > 0).then_some((KEYS + number, number))).collect()
}

/// The number in a value that is whole.
fn number_in(value: &Value) -> u64 {
    assert!(value.iter().all(|word| *word == value[0]), "{value:?}");
    value[0]
}

/// Takes a snapshot and checks it. Returns its commit.
fn check_snapshot(subscriber: &mut Subscriber) -> Result<u64, ReceiveError> {
    let snapshot = subscriber.snapshot(PATIENCE)?;
    let entries = snapshot.entries.iter().map(|entry| {
        let number = number_in(&entry.value);
        assert_eq!(entry.meta.sequence.get(), number);
        (entry.key, number)
    });
    let number = snapshot.sequence.get();
    assert_eq!(entries.collect::<BTreeMap<_, _>>(), table_after(number), "commit {number}");
    Ok(number)
}

/// Receives what is available. Returns false once the publisher is gone.
fn follow(subscriber: &mut Subscriber, received: &mut BTreeMap<u64, u64>) -> bool {
    for change in subscriber.changes() {
        match change {
            Ok(change) => match change.value {
                Some(value) => {
                    let number = number_in(&value);
                    assert_eq!(change.meta.sequence.get(), number);
                    assert!(received.insert(change.key, number) < Some(number));
                }
                None => assert!(received.remove(&change.key).is_some()),
            },
            Err(ReceiveError::Gone { .. }) => return false,
            Err(error) => panic!("{error}"),
        }
    }
    true
}

fn subscribers_of_killed_publishers_end_with_a_commit(delivery: Delivery) {
    let dir = tempfile::tempdir().expect("a directory");
    let seed = RandomState::new().hash_one(0);
    println!("seed {seed}");
    let mut random = Random(seed);
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    for _ in 0..CYCLES {
        let mut publisher = Peer::ready("publisher", dir.path(), "");
        let builder = node.table_subscriber::<u64, Value>("shm:p/t").timeout(PATIENCE);
        let mut subscriber = builder.delivery(delivery).open().expect("a subscription");
        publisher.tell("run");
        let mut received = BTreeMap::new();
        let enough = 1 + random.below(300) as u64;
        wait_until("some commits", || {
            assert!(follow(&mut subscriber, &mut received));
            check_snapshot(&mut subscriber).expect("a snapshot") >= enough
        });
        publisher.kill();
        let mut last = None;
        wait_until("the end", || {
            match check_snapshot(&mut subscriber) {
                Ok(number) => assert_eq!(*last.get_or_insert(number), number, "it publishes no more"),
                Err(error) => assert!(matches!(error, ReceiveError::Gone { .. }), "{error}"),
            }
            !follow(&mut subscriber, &mut received)
        });
        let last = subscriber.last().get();
        assert_eq!(received, table_after(last), "commit {last}");
        let error = subscriber.receive_timeout(Duration::ZERO).expect_err("it is gone");
        assert!(matches!(error, ReceiveError::Gone { .. }), "{error}");
        assert!(subscriber.suspects().is_empty());
    }
}

#[test]
fn pull_subscribers_of_killed_publishers_end_with_a_commit() {
    subscribers_of_killed_publishers_end_with_a_commit(Delivery::Pull);
}

#[test]
fn push_subscribers_of_killed_publishers_end_with_a_commit() {
    subscribers_of_killed_publishers_end_with_a_commit(Delivery::Push);
}
