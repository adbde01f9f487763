//! Values that are valid for some time only.

use super::*;
use crate::id::Epoch;

const SECOND: u64 = 1_000_000_000;
const LIFESPAN: Duration = Duration::from_secs(5);
const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];

impl World {
    fn pass(&self, duration_ns: u64) {
        let until_ns = self.network.clock().monotonic_ns() + duration_ns;
        while self.network.clock().monotonic_ns() < until_ns {
            self.turn();
        }
    }

    /// Everything that can be received within a second.
    fn all<T>(&self, mut receive: impl FnMut() -> Result<Option<T>, ReceiveError>) -> Vec<T> {
        let until_ns = self.network.clock().monotonic_ns() + SECOND;
        let mut received = Vec::new();
        while self.network.clock().monotonic_ns() < until_ns {
            self.turn();
            received.extend(receive().expect("no loss"));
        }
        received
    }
}

#[test]
fn late_subscriber_of_a_state_does_not_receive_an_expired_value() {
    for (reach, delivery) in WAYS {
        let world = World::new(1, reach);
        let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
        let builder = publishing.state_publisher::<u64>("topic").lifespan(LIFESPAN);
        let mut publisher = builder.open().unwrap();
        let subscribe = || {
            let builder = subscribing.state_subscriber::<u64>("shm:publishing/topic");
            builder.delivery(delivery).open().unwrap()
        };
        let mut early = subscribe();
        publisher.publish(&7).unwrap();
        let values = |subscriber: &mut StateSubscriber<u64>| {
            world.all(|| subscriber.try_receive().map(|sample| sample.map(|sample| sample.value)))
        };
        assert_eq!(values(&mut early), [7], "{reach:?} {delivery:?}");
        assert_eq!(values(&mut subscribe()), [7]);
        world.pass(4 * SECOND);
        let mut late = subscribe();
        assert_eq!((late.lifespan(), values(&mut late)), (Some(LIFESPAN), Vec::new()));
        assert_eq!((late.stats().received, late.stats().expired, late.last().get()), (0, 1, 1));
        publisher.publish(&8).unwrap();
        assert_eq!((values(&mut late), values(&mut early)), (vec![8], vec![8]));
        assert_eq!((late.stats().received, late.stats().expired, late.stats().conflated), (1, 1, 0));
        assert_eq!((early.stats().received, early.stats().expired), (2, 0));
    }
}

#[test]
fn slow_subscriber_of_a_log_receives_no_expired_records_and_counts_them() {
    for (reach, delivery) in WAYS {
        let world = World::new(2, reach);
        let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
        let mut log = publishing.log_publisher::<u64>("log").lifespan(LIFESPAN).open().unwrap();
        let builder = subscribing.log_subscriber::<u64>("shm:publishing/log").delivery(delivery);
        let mut records = builder.open().unwrap();
        for number in 0..3000 {
            log.publish(&number).unwrap();
        }
        world.pass(6 * SECOND);
        log.publish_batch(&[5000, 5001]).unwrap();
        let received = world.all(|| records.try_receive());
        let received: Vec<_> =
            received.iter().map(|record| (record.meta.sequence.get(), record.value)).collect();
        assert_eq!(received, [(3001, 5000), (3002, 5001)], "{reach:?} {delivery:?}");
        let stats = records.stats();
        assert_eq!((stats.received, stats.expired, stats.lapped, stats.cut_off), (2, 3000, 0, 0));
        drop(log);
        let end = (0..TURNS).find_map(|_| {
            world.turn();
            records.try_receive().err()
        });
        assert!(matches!(end, Some(ReceiveError::Ended { .. })), "{end:?}");
    }
}

#[test]
fn expired_entries_of_a_table_are_absent_and_removals_are_received() {
    for reach in [Reach::Mapped, Reach::Fetched] {
        let world = World::new(3, reach);
        let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
        let builder = publishing.table_publisher::<u64, u64>("table").lifespan(LIFESPAN);
        let mut table = builder.open().unwrap();
        let open = || subscribing.table_subscriber::<u64, u64>("shm:publishing/table").open().unwrap();
        table.put_batch([(&1, &10), (&2, &20), (&3, &30)]).unwrap();
        let mut early = open();
        assert_eq!(world.all(|| early.try_change()).len(), 3);
        world.pass(6 * SECOND);
        table.put(&2, &21).unwrap();
        let mut late = open();
        let mut changes = world.all(|| late.try_change());
        assert_eq!(changes.len(), 1, "{reach:?}");
        assert_eq!(changes.remove(0).value, Some(21));
        assert_eq!((late.stats().received, late.stats().expired), (1, 2));
        assert!(late.get(&1).unwrap().is_none());
        assert_eq!(late.get(&2).unwrap().map(|sample| sample.value), Some(21));
        let snapshot = late.snapshot(LIFESPAN).unwrap();
        assert_eq!((snapshot.entries.len(), snapshot.expired), (1, 2));
        // However late it is read, a removal counts.
        table.remove(&1).unwrap();
        world.pass(6 * SECOND);
        let changes = world.all(|| early.try_change());
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert_eq!((changes[0].key, changes[0].value), (1, None));
        assert_eq!(early.stats().expired, 1);
    }
}

/// What has expired on all lines is not missing.
#[test]
fn expired_records_of_lines_are_neither_received_nor_missing() {
    let world = World::new(4, Reach::Mapped);
    let subscribing = world.node("subscribing", false);
    let nodes = ["one", "other"].map(|name| world.node(name, true));
    let mut logs = nodes.each_ref().map(|node| {
        let builder = node.log_publisher::<u64>("log").epoch(Epoch::FIRST).lifespan(LIFESPAN);
        builder.open().unwrap()
    });
    let builder = subscribing.log_subscriber::<u64>("shm:one/log").lines(["shm:other/log"]);
    let mut lines = builder.open().unwrap();
    for log in &mut logs {
        log.publish_batch(&[1, 2, 3]).unwrap();
    }
    world.pass(6 * SECOND);
    for log in &mut logs {
        log.publish(&4).unwrap();
    }
    let received = world.all(|| lines.try_receive());
    let values: Vec<_> = received.into_iter().map(|record| record.value).collect();
    assert_eq!((values, lines.missing()), (vec![4], 0));
    let expired: u64 =
        [0, 1].iter().filter_map(|line| lines.line(*line)?.current()).map(|it| it.stats().expired).sum();
    assert_eq!(expired, 3);
}

/// Values do not expire because the clock of their host is set.
#[test]
fn a_clock_that_is_set_makes_no_value_expire_or_live_longer() {
    for hours in [1, -1] {
        let world = World::new(5, Reach::Mapped);
        let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
        let builder = publishing.state_publisher::<u64>("topic").lifespan(LIFESPAN);
        let mut publisher = builder.open().unwrap();
        publisher.publish(&7).unwrap();
        world.network.clock().set(hours * 3600 * SECOND.cast_signed());
        world.pass(SECOND);
        let open = || subscribing.state_subscriber::<u64>("shm:publishing/topic").open().unwrap();
        assert!(open().try_receive().unwrap().is_some());
        world.pass(5 * SECOND);
        assert!(open().try_receive().unwrap().is_none());
    }
}
