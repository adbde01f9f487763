//! Tables, of which reads fail in part.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::layout::table::TableGeometry;
use crate::repository::Writer as _;
use crate::repository::table::{TableTopic, TableWriter};
use crate::subscriber::{RenewableHandle as _, Subscriber};

const KEYS: u64 = 40;
/// As many polls as reading the table takes here, about.
const POLLS: u64 = 16;
const SEEDS: u64 = 8;
/// In few of them a read is in flight when the snapshot begins.
const SNAPSHOTS: u64 = 400;

type Keys = BTreeSet<Vec<u8>>;

struct World {
    memory: Arc<Region>,
    writer: TableWriter,
    geometry: Geometry,
    subscriber: Subscriber<TableTopic, Raw>,
    net: Net,
    fails_in: FailsIn,
    /// Reads that failed.
    failed: u64,
}

fn key(number: u64) -> Vec<u8> {
    format!("k{number:02}").into_bytes()
}

/// The poll that fails, and a seed.
fn cases() -> impl Iterator<Item = (u64, u64)> {
    (1..=POLLS).flat_map(|poll| (0..SEEDS).map(move |seed| (poll, seed)))
}

fn keys(numbers: std::ops::Range<u64>) -> Keys {
    numbers.map(key).collect()
}

impl World {
    /// A subscriber that has received nothing yet of a table with all keys.
    fn new(seed: u64) -> Self {
        let geometry = TableGeometry::new(256, 8, LEN_MAX).unwrap();
        let memory = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
        let line = Geometry::from(geometry).static_header(EPOCH, topic_id(), 0);
        let mut writer = TableWriter::new(Arc::clone(&memory), geometry, &line);
        (0..KEYS).for_each(|number| put(&mut writer, number));
        let geometry = geometry.into();
        let Ends { net, subscription, fails_in, .. } = subscribe((seed, true), &memory, geometry);
        let subscriber = Subscriber::open(subscription, ()).unwrap();
        Self { memory, writer, geometry, subscriber, net, fails_in, failed: 0 }
    }

    fn publish(&mut self, number: u64) {
        put(&mut self.writer, number);
        let sequence = self.writer.last().get();
        self.net.tell([sequence, 0], None);
    }

    /// Receives, while no time passes, until nothing has come for a while. Each key may come once, and none is removed.
    fn receive(&mut self) -> Keys {
        let (mut received, mut idle) = (Keys::new(), 0);
        while idle < 100 {
            match self.subscriber.try_change() {
                Ok(None) => idle += 1,
                Ok(Some(change)) => {
                    assert!(change.value.is_some(), "{:?} was removed", change.key);
                    assert!(received.insert(change.key.to_vec()), "{:?} twice", change.key);
                    idle = 0;
                }
                Err(ReceiveError::Fabric(FabricError::System { .. })) => self.failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        received
    }

    /// Has a poll fail. Returns whether it came.
    fn has_failed(&self) -> bool {
        *self.fails_in.lock() == 0
    }
}

fn put(writer: &mut TableWriter, number: u64) {
    let key = key(number);
    writer.room()[..key.len()].copy_from_slice(&key);
    writer.stage_filled((key.len(), key.len() + 9), None, 1).unwrap();
    writer.commit(1);
}

#[test]
fn all_keys_are_received_although_a_read_fails() {
    let mut failed = 0;
    for (poll, seed) in cases() {
        let mut world = World::new(seed);
        *world.fails_in.lock() = poll;
        assert_eq!(world.receive(), keys(0..KEYS), "poll {poll} failed, seed {seed}");
        assert_eq!(world.failed, u64::from(world.has_failed()));
        failed += world.failed;
    }
    assert!(failed > POLLS * SEEDS / 4, "{failed}");
}

/// What was not read of the table was taken for the absence of its keys.
#[test]
fn no_key_is_gone_although_the_first_read_of_the_next_subscription_fails() {
    let mut failed = 0;
    for (poll, seed) in cases() {
        let mut world = World::new(seed);
        assert_eq!(world.receive(), keys(0..KEYS));
        let Ends { net, subscription, fails_in, .. } = subscribe((seed, true), &world.memory, world.geometry);
        let next = Subscriber::open(subscription, ()).unwrap();
        world.subscriber.renew(next, true);
        (world.net, world.fails_in) = (net, fails_in);
        put(&mut world.writer, 7);
        *world.fails_in.lock() = poll;
        assert_eq!(world.receive(), keys(7..8), "poll {poll} failed, seed {seed}");
        failed += world.failed;
    }
    assert!(failed > POLLS * SEEDS / 4, "{failed}");
}

/// A notice had led to the read, and none follows.
#[test]
fn change_is_received_although_its_read_fails_in_a_snapshot() {
    let mut begun = 0;
    for seed in 0..SNAPSHOTS {
        let mut world = World::new(seed);
        (world.net.lose_permille, world.net.delay_ns_max) = (0, 0);
        assert_eq!(world.receive(), keys(0..KEYS));
        world.publish(7);
        let newest = world.writer.last().get();
        world.net.pass(0, [newest, 0]);
        let first = world.subscriber.try_change().unwrap();
        let first: Keys = first.iter().map(|change| change.key.to_vec()).collect();
        begun += u64::from(world.subscriber.core.fetching.is_some());
        // What is in flight, or else the snapshot's own read.
        *world.fails_in.lock() = 1;
        let error = world.subscriber.snapshot(Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, ReceiveError::Fabric(FabricError::System { .. })), "{error}");
        let later = world.receive();
        assert_eq!((first.len() + later.len(), &first | &later), (1, keys(7..8)), "seed {seed}");
        let snapshot = world.subscriber.snapshot(Duration::from_secs(1)).unwrap();
        assert_eq!((snapshot.entries.len() as u64, snapshot.sequence.get()), (KEYS, newest));
    }
    assert!(begun > 10, "{begun}");
}

#[test]
fn headers_are_read_whole_although_a_read_fails() {
    let mut failed = 0;
    for poll in 1..=12 {
        let mut world = World::new(poll);
        let first = world.subscriber.try_change().unwrap();
        let first: Keys = first.iter().map(|change| change.key.to_vec()).collect();
        *world.fails_in.lock() = 1 + poll % 6;
        for _ in 0..2 {
            match world.subscriber.headers() {
                Ok(headers) => {
                    let (read, whole) = (headers.unwrap(), &world.memory);
                    let words = (0..crate::layout::header::BODY_OFFSET).step_by(WORD);
                    words.for_each(|offset| assert_eq!(read.load(offset), whole.load(offset), "{offset}"));
                }
                Err(FabricError::System { .. }) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        *world.fails_in.lock() = 0;
        let later = world.receive();
        assert_eq!(&first | &later, keys(0..KEYS), "poll {poll} failed");
    }
    assert!(failed > 3, "{failed}");
}
