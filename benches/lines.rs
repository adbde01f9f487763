//! Receiving of two lines, by pull in one process, compared with one publisher.
//!
//! `cargo bench --bench lines`. Compare figures within one run. Values have 48 bytes; those of the table have 100 keys.

use divan::Bencher;
use divan::counter::ItemsCount;
use fabricast::{Epoch, LogPublisher, Node, Pod, TablePublisher};

/// Records that are received at once.
const RECORDS: usize = 256;
const KEYS: u64 = 100;

type Value = [u64; 6];

fn main() {
    divan::main();
}

/// Two nodes, and a directory that lasts as long.
struct Place {
    nodes: [Node; 2],
    _dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let node = |name: &str| {
            let builder = Node::builder().name(name).expect("a name");
            builder.runtime_dir(dir.path()).open().expect("a node")
        };
        Self { nodes: ["a", "b"].map(node), _dir: dir }
    }

    fn logs(&self) -> [LogPublisher<Pod<Value>>; 2] {
        self.nodes.each_ref().map(|node| node.log_publisher("t").epoch(epoch()).open().expect("a log"))
    }

    fn tables(&self) -> [TablePublisher<u64, Value>; 2] {
        self.nodes.each_ref().map(|node| {
            let builder = node.table_publisher("t").capacity(128).key_len_max(8);
            builder.payload_len_max(8 + 1 + 48).epoch(epoch()).open().expect("a table")
        })
    }
}

fn epoch() -> Epoch {
    Epoch::new(1).expect("not zero")
}

fn publish(publisher: &mut LogPublisher<Pod<Value>>) {
    (0..RECORDS).for_each(|_| _ = publisher.append(&[7; 6]).expect("room"));
    publisher.commit();
}

fn change(publisher: &mut TablePublisher<u64, Value>) {
    (0..KEYS).for_each(|key| publisher.stage(&key, &[7; 6]).expect("room"));
    publisher.commit();
}

#[divan::bench]
fn floor_receive_of_one_log(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let [mut publisher, _] = place.logs();
    let builder = place.nodes[1].log_subscriber::<Pod<Value>>("shm:a/t");
    let mut subscriber = builder.open().expect("a subscriber");
    let mut receive = || while subscriber.try_receive().expect("no loss").is_some() {};
    let bencher = bencher.counter(ItemsCount::new(RECORDS)).with_inputs(|| publish(&mut publisher));
    bencher.bench_local_values(|()| receive());
}

#[divan::bench]
fn receive_of_two_logs(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let mut publishers = place.logs();
    let builder = place.nodes[1].log_subscriber::<Pod<Value>>("shm:a/t");
    let mut lines = builder.lines(["shm:b/t"]).open().expect("two subscribers");
    let mut receive = || while lines.try_receive().expect("no loss").is_some() {};
    let bencher = bencher.counter(ItemsCount::new(RECORDS));
    bencher.with_inputs(|| publishers.iter_mut().for_each(publish)).bench_local_values(|()| receive());
}

#[divan::bench]
fn floor_changes_of_one_table(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let [mut publisher, _] = place.tables();
    let mut subscriber =
        place.nodes[1].table_subscriber::<u64, Value>("shm:a/t").open().expect("a subscriber");
    let mut receive = || while subscriber.try_change().expect("no loss").is_some() {};
    let bencher = bencher.counter(ItemsCount::new(KEYS)).with_inputs(|| change(&mut publisher));
    bencher.bench_local_values(|()| receive());
}

#[divan::bench]
fn changes_of_two_tables(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let mut publishers = place.tables();
    let builder = place.nodes[1].table_subscriber::<u64, Value>("shm:a/t").lines(["shm:b/t"]);
    let mut lines = builder.open().expect("two subscribers");
    let mut receive = || while lines.try_change().expect("no loss").is_some() {};
    let bencher = bencher.counter(ItemsCount::new(KEYS));
    bencher.with_inputs(|| publishers.iter_mut().for_each(change)).bench_local_values(|()| receive());
}
