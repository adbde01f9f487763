//! Tables over RDMA verbs, on one host with a device: run by `tools/test` in a soft-RoCE machine.
//!
//! ```text
//! tools/soft-roce run -- verbs_tables --ignored --test-threads 1
//! ```

#![cfg(feature = "verbs")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fabricast::{
    Address, Delivery, ErrorChain, Node, RdmaConnect, ReceiveError, TablePublisher, TableSubscriber,
};

use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

type Value = [u64; 8];

/// The address of this host's RDMA device: by default that of a machine of tools/soft-roce.
fn host() -> String {
    std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned())
}

fn publishing(dir: &Path) -> Node {
    let builder = Node::builder().name("quotes").expect("a name").runtime_dir(dir);
    builder.rdma(&format!("rdma://{}:0", host())).expect("an address").insecure().open().expect("a node")
}

/// The topic's address over RDMA.
fn target(node: &Node) -> String {
    let rdma = |address: &&Address| !address.is_local();
    format!("{}/table", node.addresses().iter().find(rdma).expect("it listens"))
}

fn table(node: &Node, keys: usize) -> TablePublisher<u64, Value> {
    let builder = node.table_publisher::<u64, Value>("table").key_len_max(8).payload_len_max(8 + 1 + 64);
    let mut table = builder.capacity(keys).open().expect("a topic");
    let all: Vec<u64> = (0..keys as u64).collect();
    table.put_batch(all.iter().map(|key| (key, &[0; 8]))).expect("room");
    table
}

fn subscribe(dir: &Path, target: &str, delivery: Delivery) -> TableSubscriber<u64, Value> {
    let node = Node::builder().runtime_dir(dir).open().expect("a node");
    let builder = node.table_subscriber::<u64, Value>(target).delivery(delivery).timeout(PATIENCE);
    builder.open().expect("a subscription")
}

/// Receives until each of these keys has this value, and no other key comes.
fn expect(subscriber: &mut TableSubscriber<u64, Value>, expected: &BTreeMap<u64, u64>) {
    let mut left = expected.clone();
    wait_until("all changes", || {
        for change in subscriber.changes() {
            let change = change.expect("no loss");
            let value = change.value.expect("no key is removed");
            assert_eq!(value, [value[0]; 8], "a torn value of {}", change.key);
            assert!(expected.contains_key(&change.key), "{} is not wanted, or has not changed", change.key);
            if left.get(&change.key) == Some(&value[0]) {
                left.remove(&change.key);
            }
        }
        left.is_empty()
    });
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn changes_of_a_large_table_are_received_by_pull_and_push() {
    const KEYS: u64 = 10_000;
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    let mut table = table(&node, KEYS.try_into().expect("it is small"));
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut all = subscribe(dir.path(), &target(&node), delivery);
        let mut some = subscribe(dir.path(), &target(&node), delivery);
        let wanted: Vec<u64> = (0..50).map(|number| number * 200 + 7).collect();
        some.only_keys(&wanted);
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        for round in 1..4_u64 {
            let changed: Vec<u64> =
                (0..100).map(|number| (number * 7919 + round * 104_729) % KEYS).chain([7]).collect();
            let value = round * 10 + u64::from(delivery == Delivery::Push);
            let put = [value; 8];
            table.put_batch(changed.iter().map(|key| (key, &put))).expect("room");
            held.extend(changed.iter().map(|key| (*key, value)));
            if round == 1 {
                // The first changes are all keys.
                wait_until("all keys", || all.changes().count() == 0 && all.last() == table.newest());
                wait_until("wanted keys", || some.changes().count() == 0 && some.last() == table.newest());
                continue;
            }
            let expected = changed.iter().map(|key| (*key, value)).collect();
            expect(&mut all, &expected);
            expect(&mut some, &expected.into_iter().filter(|(key, _)| wanted.contains(key)).collect());
        }
        let snapshot = all.snapshot(PATIENCE).expect("nothing changes");
        assert_eq!((snapshot.sequence, snapshot.entries.len() as u64), (table.newest(), KEYS));
        let entries = snapshot.entries.iter().filter_map(|entry| Some((entry, held.get(&entry.key)?)));
        assert!(entries.into_iter().all(|(entry, value)| entry.value == [*value; 8]));
        assert_eq!(all.get(&7).expect("no damage").map(|sample| sample.value[0]), held.get(&7).copied());
        assert!(all.get(&KEYS).expect("no damage").is_none());
    }
    drop(table);
}

/// A commit moves an amount from one key to another: only the values of one commit add up.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn snapshots_beside_a_publisher_are_of_one_commit() {
    const TOTAL: u64 = 1_000_000;
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    let target = target(&node);
    let mut table = table(&node, 64);
    table.put(&0, &[TOTAL; 8]).expect("room");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut balances = [0; 64];
            balances[0] = TOTAL;
            for round in 0_u64.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let (from, to) = (round % 64, (round * 31 + 7) % 64);
                if from != to {
                    let [source, sink] = [from, to].map(|key| usize::try_from(key).expect("it is small"));
                    let amount = balances[source] / 2 + 1;
                    let amount = amount.min(balances[source]);
                    balances[source] -= amount;
                    balances[sink] += amount;
                    let values = [(&from, &[balances[source]; 8]), (&to, &[balances[sink]; 8])];
                    table.put_batch(values).expect("room");
                }
                // Slowly enough for a snapshot over an emulated wire to be complete.
                let next = now() + Duration::from_millis(3);
                wait_until("the next commit", || now() >= next);
            }
        });
        for delivery in [Delivery::Pull, Delivery::Push] {
            let mut subscriber = subscribe(dir.path(), &target, delivery);
            let mut last = 0;
            for _ in 0..20 {
                let snapshot = match subscriber.snapshot(PATIENCE) {
                    Ok(snapshot) => snapshot,
                    Err(error) => panic!("{delivery}: {}", ErrorChain(&error)),
                };
                let sum: u64 = snapshot.entries.iter().map(|entry| entry.value[0]).sum();
                // The first commits of a landing region may be from before the total was put.
                assert!(sum == TOTAL || snapshot.sequence.get() < 2, "{delivery}: {sum}");
                assert!(snapshot.sequence.get() >= last);
                last = snapshot.sequence.get();
                while let Some(change) = subscriber.changes().next() {
                    assert!(change.is_ok());
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn the_end_comes_after_the_last_commit_and_unreliable_pushes_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    let mut table = table(&node, 10);
    let unreliable = Node::builder().runtime_dir(dir.path()).rdma_connect(RdmaConnect::TcpUnreliable);
    let unreliable = unreliable.open().expect("a node");
    let refused = unreliable.table_subscriber::<u64, Value>(target(&node).as_str()).push().open();
    let error = refused.expect_err("a lost write would go unnoticed");
    assert!(ErrorChain(&error).to_string().contains("unreliable"), "{}", ErrorChain(&error));
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut subscriber = subscribe(dir.path(), &target(&node), delivery);
        table.remove(&3).expect("it encodes");
        table.put(&3, &[9; 8]).expect("room");
        wait_until("a change", || subscriber.changes().any(|change| change.expect("no loss").key == 3));
    }
    let mut subscriber = subscribe(dir.path(), &target(&node), Delivery::Pull);
    table.put(&4, &[5; 8]).expect("room");
    drop(table);
    let mut keys = BTreeMap::new();
    wait_until("the end", || {
        loop {
            match subscriber.try_change() {
                Ok(Some(change)) => _ = keys.insert(change.key, change.value),
                Ok(None) => return false,
                Err(ReceiveError::Ended { .. }) => return true,
                Err(error) => panic!("{}", ErrorChain(&error)),
            }
        }
    });
    assert_eq!((keys.len(), keys.get(&4)), (10, Some(&Some([5; 8]))));
}
