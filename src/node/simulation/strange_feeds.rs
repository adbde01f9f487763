//! Feeds that no `FeedPublisher` publishes: their subscribers neither wait for ever nor hold more than they should.

use super::*;
use crate::node::publish::Beginning;
use crate::publisher::{LogPublisher, TablePublisher, fresh_incarnation};
use crate::repository::feed::FeedRecord;
use crate::subscriber::{FeedSubscriber, FeedUpdate};

const CAPACITY: usize = 4;
const RING_LEN: usize = 1 << 14;

type Subscriber = FeedSubscriber<u64, u64, u64>;

/// A log and a table of one incarnation.
struct Strange {
    log: LogPublisher<FeedRecord<u64, u64>>,
    table: TablePublisher<u64, u64>,
}

impl Strange {
    fn new(node: &Node) -> Self {
        let incarnation = fresh_incarnation().unwrap();
        let table = node.table_publisher::<u64, u64>("feed/table").capacity(CAPACITY);
        let log = node.log_publisher("feed").capacity(RING_LEN);
        let (log_name, table_name) = (log.reserve().unwrap(), table.reserve().unwrap());
        Self {
            log: log.open_reserved(log_name, Beginning::new(incarnation)).unwrap(),
            table: table.open_reserved(table_name, Beginning::new(incarnation)).unwrap(),
        }
    }

    /// Publishes a record of a key, after another one.
    fn publish(&mut self, key: u64, previous: u64, ends_event: bool) -> u64 {
        let record = FeedRecord { previous, ends_event, removes_key: false, key, value: 1 };
        self.log.publish(&record).unwrap().get()
    }
}

fn subscriber(node: &Node) -> Subscriber {
    node.feed_subscriber("shm:publishing/feed").open().unwrap()
}

/// Polls for as long as an answer may take. Returns the first error.
fn poll_for_long(world: &World, subscriber: &mut Subscriber) -> Option<ReceiveError> {
    (0..20).find_map(|_| {
        world.network.clock().advance(limits::ANSWER_DEADLINE_NS / 10);
        world.turn();
        subscriber.try_update().map(|update| assert!(update.is_none(), "{update:?}")).err()
    })
}

#[test]
fn table_that_does_not_agree_with_the_log_is_an_error() {
    for reach in [Reach::Mapped, Reach::Fetched] {
        for is_ahead in [false, true] {
            let world = World::new(1, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let mut feed = Strange::new(&publishing);
            let puts = if is_ahead { 1000 } else { 1 };
            (0..puts).for_each(|value| _ = feed.table.put(&7, &value).unwrap());
            let last = feed.publish(7, 0, true);
            feed.publish(7, last, true);
            let mut subscriber = subscriber(&subscribing);
            // The first one, and the next one: it goes on trying.
            for _ in 0..2 {
                let error = poll_for_long(&world, &mut subscriber).expect("not silently");
                assert!(matches!(error, ReceiveError::Contended { .. }), "{error}");
                assert!(subscriber.is_recovering());
            }
        }
    }
}

#[test]
fn event_without_end_is_received_in_parts() {
    let world = World::new(1, Reach::Mapped);
    let publishing = world.node("publishing", true);
    let subscribing = world.node("subscribing", false);
    let mut feed = Strange::new(&publishing);
    let mut subscriber = subscriber(&subscribing);
    assert!(subscriber.try_event().unwrap().is_none());
    let (mut last, mut received) = (0, 0);
    for _ in 0..5000 {
        last = feed.publish(7, last, false);
        if let Some(event) = subscriber.try_event().unwrap() {
            assert!(!event.is_whole && event.updates.len() < RING_LEN / 16);
            received += event.updates.len();
        }
    }
    assert!(received > 4000, "{received}");
}

#[test]
fn keys_without_number_are_not_held_without_bound() {
    let world = World::new(1, Reach::Mapped);
    let publishing = world.node("publishing", true);
    let subscribing = world.node("subscribing", false);
    for is_new in [true, false] {
        let mut feed = Strange::new(&publishing);
        let mut subscriber = subscriber(&subscribing);
        assert!(subscriber.try_update().unwrap().is_none());
        let mut records = 0;
        for key in 0..1000 {
            let previous = if is_new { 0 } else { key + 5 };
            feed.publish(key, previous, true);
            while let Some(update) = subscriber.try_update().unwrap() {
                assert!(matches!(update, FeedUpdate::Record(_)) && is_new);
                records += 1;
            }
            assert!(subscriber.suspects().len() <= 4 * CAPACITY);
        }
        assert!(records <= 4 * CAPACITY, "{records}");
    }
}
