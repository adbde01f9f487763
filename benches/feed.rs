//! Feeds through the public API, by pull in one process, compared with a log and a table that are published one after the other.
//!
//! `cargo bench --bench feed`. Compare figures within one run. Records have 48 bytes, values 64, keys 8.

use std::cell::RefCell;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use fabricast::{FeedPublisher, FeedSubscriber, Node};

/// Records of an event.
const RECORDS: [usize; 3] = [1, 4, 16];
/// Events that are received at once.
const EVENTS: usize = 64;
/// Keys of the feed.
const KEYS: u64 = 3_000;
/// A multiplier that visits all residues in a random-looking order.
const STRIDE: u64 = 7_919;

type Record = [u64; 6];
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

    /// A feed with values of all keys.
    fn feed(&self) -> FeedPublisher<u64, Record, Value> {
        let builder = self.node.feed_publisher("feed").capacity(3_000).value_len_max(8 + 1 + 64);
        let mut feed = builder.key_len_max(8).log_capacity(1 << 20).open().expect("a feed");
        (0..KEYS).for_each(|key| {
            feed.publish(&key, &[0; 6], &[0; 8]).expect("room");
        });
        feed
    }

    fn subscriber(&self) -> FeedSubscriber<u64, Record, Value> {
        let builder = self.node.feed_subscriber("shm:bench/feed");
        let mut subscriber = builder.open().expect("a subscriber");
        while subscriber.try_update().expect("no loss").is_some() {}
        subscriber
    }
}

/// Publishes an event of this many records.
fn publish(feed: &mut FeedPublisher<u64, Record, Value>, records: usize, key: &mut u64) {
    let mut event = feed.event();
    for _ in 0..records {
        *key = key.wrapping_add(STRIDE) % KEYS;
        event.update(black_box(&*key), &[7; 6], &[7; 8]).expect("room");
    }
    event.commit();
}

/// A record of a log, and then a value of a table, with a commit each for all of them.
#[divan::bench(args = RECORDS)]
fn floor_publish_log_and_table(bencher: Bencher<'_, '_>, records: usize) {
    let place = Place::new();
    let mut log = place.node.log_publisher::<(u64, Record)>("log").open().expect("a log");
    let builder = place.node.table_publisher::<u64, Value>("table").capacity(3_000);
    let mut table = builder.key_len_max(8).payload_len_max(8 + 1 + 64).open().expect("a table");
    let mut key = 0;
    bencher.counter(ItemsCount::new(records)).bench_local(|| {
        for _ in 0..records {
            key = (key + STRIDE) % KEYS;
            log.append(black_box(&(key, [7; 6]))).expect("room");
            table.stage(black_box(&key), &[7; 8]).expect("room");
        }
        table.commit();
        log.commit();
    });
}

#[divan::bench(args = RECORDS)]
fn publish_an_event(bencher: Bencher<'_, '_>, records: usize) {
    let place = Place::new();
    let (mut feed, mut key) = (place.feed(), 0);
    bencher.counter(ItemsCount::new(records)).bench_local(|| publish(&mut feed, records, &mut key));
}

/// The records of as many events, without publishing them.
#[divan::bench]
fn floor_receive_a_log(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let log = RefCell::new(place.node.log_publisher::<(u64, Record)>("log").open().expect("a log"));
    let mut subscriber = place.node.log_subscriber::<(u64, Record)>("shm:bench/log").open().expect("a log");
    let publish = || {
        (0..EVENTS).for_each(|_| {
            log.borrow_mut().publish(&(5, [7; 6])).expect("room");
        });
    };
    bencher
        .counter(ItemsCount::new(EVENTS))
        .with_inputs(publish)
        .bench_local_values(|()| while black_box(subscriber.try_receive().expect("no loss")).is_some() {});
}

#[divan::bench]
fn receive_updates(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let (feed, mut key) = (RefCell::new(place.feed()), 0);
    let mut subscriber = place.subscriber();
    let publish = || (0..EVENTS).for_each(|_| publish(&mut feed.borrow_mut(), 1, &mut key));
    bencher
        .counter(ItemsCount::new(EVENTS))
        .with_inputs(publish)
        .bench_local_values(|()| while black_box(subscriber.try_update().expect("no loss")).is_some() {});
}

/// The same, of fifty keys of three thousand.
#[divan::bench]
fn receive_updates_of_fifty_keys(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let (feed, mut key) = (RefCell::new(place.feed()), 0);
    let mut subscriber = place.subscriber();
    subscriber.only_keys(0..50_u64);
    while subscriber.try_update().expect("no loss").is_some() {}
    let publish = || (0..EVENTS).for_each(|_| publish(&mut feed.borrow_mut(), 1, &mut key));
    bencher
        .counter(ItemsCount::new(EVENTS))
        .with_inputs(publish)
        .bench_local_values(|()| while black_box(subscriber.try_update().expect("no loss")).is_some() {});
}

/// Joining: opening, and the values of all keys.
#[divan::bench]
fn join(bencher: Bencher<'_, '_>) {
    let place = Place::new();
    let feed = place.feed();
    bencher.counter(ItemsCount::new(KEYS)).bench_local(|| place.subscriber());
    drop(feed);
}
