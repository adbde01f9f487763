//! Tables through the public API, by pull in one process, compared with a state topic of the same value.
//!
//! `cargo bench --bench table`. Compare figures within one run. Values have 64 bytes, keys 8.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use fabricast::{Node, TablePublisher, TableSubscriber};

/// Keys of a table.
const KEYS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Changes of a batch.
const BATCH: usize = 100;
/// A multiplier that visits all residues in a random-looking order.
const STRIDE: u64 = 7_368_787;

type Value = [u64; 8];

fn main() {
    divan::main();
}

/// A node, and a directory that lasts as long.
struct Place {
    node: Node,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let builder = Node::builder().name("bench").expect("a name");
        Self { node: builder.runtime_dir(dir.path()).open().expect("a node"), _dir: dir }
    }

    /// A table with this many keys.
    fn table(&self, keys: usize) -> TablePublisher<u64, Value> {
        let builder =
            self.node.table_publisher::<u64, Value>("table").payload_len_max(8 + 1 + 64).key_len_max(8);
        let mut table = builder.capacity(keys).open().expect("a topic");
        let all: Vec<u64> = (0..keys as u64).collect();
        table.put_batch(all.iter().map(|key| (key, &[0; 8]))).expect("room");
        table
    }

    fn subscriber(&self) -> TableSubscriber<u64, Value> {
        let builder = self.node.table_subscriber::<u64, Value>("shm:bench/table");
        let mut subscriber = builder.region_len_max(4 << 30).open().expect("a subscriber");
        assert!(subscriber.changes().all(|change| change.is_ok()));
        subscriber
    }
}

/// The keys of a batch, spread over the table.
fn spread(keys: usize, first: &mut u64) -> [u64; BATCH] {
    std::array::from_fn(|_| {
        *first = first.wrapping_add(STRIDE);
        *first % keys as u64
    })
}

#[divan::bench]
fn floor_publish_a_state(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let builder = place.node.state_publisher::<Value>("state").payload_len_max(64);
    let mut state = builder.open().expect("a topic");
    let value = [7; 8];
    bencher.counter(ItemsCount::new(1_u64)).bench_local(|| state.publish(black_box(&value)).expect("room"));
}

#[divan::bench]
fn put_one_key(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let mut table = place.table(8);
    let value = [7; 8];
    bencher
        .counter(ItemsCount::new(1_u64))
        .bench_local(|| table.put(black_box(&3), black_box(&value)).expect("room"));
}

#[divan::bench(args = KEYS)]
fn put_a_hundred_keys(bencher: Bencher<'_, '_>, keys: usize) {
    let place = Place::new();
    let (mut table, mut first, value) = (place.table(keys), 0, [7; 8]);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for key in &spread(keys, &mut first) {
            table.put(black_box(key), black_box(&value)).expect("room");
        }
    });
}

#[divan::bench(args = KEYS)]
fn put_a_batch_of_a_hundred_keys(bencher: Bencher<'_, '_>, keys: usize) {
    let place = Place::new();
    let (mut table, mut first, value) = (place.table(keys), 0, [7; 8]);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        let batch = spread(keys, &mut first);
        table.put_batch(black_box(&batch).iter().map(|key| (key, &value))).expect("room")
    });
}

/// The changes of a batch, without publishing it.
#[divan::bench(args = KEYS)]
fn receive_a_hundred_changes(bencher: Bencher<'_, '_>, keys: usize) {
    let place = Place::new();
    let (table, mut first, value) = (place.table(keys), 0, [7; 8]);
    let (table, mut subscriber) = (std::cell::RefCell::new(table), place.subscriber());
    let publish = || {
        let batch = spread(keys, &mut first);
        table.borrow_mut().put_batch(batch.iter().map(|key| (key, &value))).expect("room")
    };
    bencher.counter(ItemsCount::new(BATCH)).with_inputs(publish).bench_local_values(|_| {
        assert!(subscriber.changes().all(|change| black_box(change).is_ok()));
    });
}

/// The changes of fifty keys, while all others change as well.
#[divan::bench(args = KEYS)]
fn receive_changes_of_fifty_keys(bencher: Bencher<'_, '_>, keys: usize) {
    let place = Place::new();
    let (table, mut first, value) = (place.table(keys), 0, [7; 8]);
    let (table, mut subscriber) = (std::cell::RefCell::new(table), place.subscriber());
    let wanted: Vec<u64> = (0..50).map(|number| number * (keys as u64 / 50)).collect();
    subscriber.only_keys(&wanted);
    assert!(subscriber.changes().all(|change| change.is_ok()));
    let publish = || {
        let batch = spread(keys, &mut first);
        let all = batch.iter().chain(&wanted).map(|key| (key, &value));
        table.borrow_mut().put_batch(all).expect("room")
    };
    bencher.counter(ItemsCount::new(50_u64)).with_inputs(publish).bench_local_values(|_| {
        assert_eq!(subscriber.changes().count(), 50);
    });
}

#[divan::bench(args = KEYS)]
fn get_a_key(bencher: Bencher<'_, '_>, keys: usize) {
    let place = Place::new();
    let _table = place.table(keys);
    let (mut subscriber, mut first) = (place.subscriber(), 0_u64);
    bencher.counter(ItemsCount::new(1_u64)).bench_local(|| {
        first = first.wrapping_add(STRIDE);
        subscriber.get(&(first % keys as u64)).expect("no damage").expect("a value")
    });
}

#[divan::bench(args = [1_000, 10_000])]
fn take_a_snapshot(bencher: Bencher<'_, '_>, keys: usize) {
    let place = Place::new();
    let _table = place.table(keys);
    let mut subscriber = place.subscriber();
    bencher.counter(ItemsCount::new(keys)).bench_local(|| {
        let snapshot = subscriber.snapshot(std::time::Duration::ZERO).expect("no writer");
        assert_eq!(snapshot.entries.len(), keys);
    });
}

/// Opens a table for 3,000 instruments, puts them, attaches a subscriber, and receives them all.
#[divan::bench(sample_count = 20)]
fn open_and_attach_to_three_thousand_keys(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    bencher.bench_local(|| {
        let table = place.table(3000);
        let builder = place.node.table_subscriber::<u64, Value>("shm:bench/table");
        let mut subscriber = builder.open().expect("a subscriber");
        assert_eq!(subscriber.changes().count(), 3000);
        drop((subscriber, table));
    });
}
