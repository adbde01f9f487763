//! Feeds that no `FeedPublisher` publishes: their subscribers neither wait for ever nor hold more than they should.

use super::*;
use crate::node::publish::Beginning;
use crate::publisher::{LogPublisher, TablePublisher, fresh_incarnation};
use crate::repository::feed::FeedRecord;
use crate::subscriber::{FeedSubscriber, FeedUpdate};

const CAPACITY: usize = 4;
const RING_LEN: usize = 1 << 14;

const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];

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
    pushed_or_pulled(node, Delivery::Pull)
}

fn pushed_or_pulled(node: &Node, delivery: Delivery) -> Subscriber {
    node.feed_subscriber("shm:publishing/feed").delivery(delivery).open().unwrap()
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

/// A log that moves on, but never comes as far as the table, and a table that is as far only when it is read.
#[test]
fn table_that_is_ahead_of_a_log_that_moves_on_is_an_error() {
    // By push, the log may be on its way.
    let steady = [(Reach::Mapped, true), (Reach::Fetched, true), (Reach::Mapped, false)];
    for (reach, is_steady) in steady {
        let world = World::new(1, reach);
        let publishing = world.node("publishing", true);
        let subscribing = world.node("subscribing", false);
        let mut feed = Strange::new(&publishing);
        (0..1000).for_each(|value| _ = feed.table.put(&7, &value).unwrap());
        let mut last = feed.publish(7, 0, true);
        let mut subscriber = subscriber(&subscribing);
        let errors = (0..100).filter_map(|_| {
            world.network.clock().advance(limits::ANSWER_DEADLINE_NS / 10);
            last = feed.publish(7, last, true);
            if !is_steady {
                feed.table.pretend(if last.is_multiple_of(2) { 1000 } else { 1 });
            }
            world.turn();
            subscriber.try_update().map(|update| assert!(update.is_none(), "{update:?}")).err()
        });
        let errors: Vec<_> = errors.collect();
        assert!(errors.len() > 1, "{reach:?} {is_steady}: {errors:?}");
        assert!(errors.iter().all(|error| matches!(error, ReceiveError::Contended { .. })), "{errors:?}");
    }
}

/// Of a table whose newest sequence was damaged for a moment, and perhaps the words of its pages, too. Otherwise nothing comes of it, and a
/// landing region gets what the pages show.
#[test]
fn cut_that_the_log_never_reaches_is_read_again() {
    for ((reach, delivery), is_everywhere) in WAYS.iter().flat_map(|way| [(*way, true), (*way, false)]) {
        let world = World::new(1, reach);
        let publishing = world.node("publishing", true);
        let subscribing = world.node("subscribing", false);
        let mut publisher = publishing.feed_publisher::<u64, u64, u64>("feed").open().unwrap();
        publisher.publish(&7, &1, &1).unwrap();
        match is_everywhere {
            true => publisher.pretend_everywhere(1 << 40),
            false => publisher.pretend(1 << 40),
        }
        let mut subscriber = pushed_or_pulled(&subscribing, delivery);
        let first = subscriber.try_update().unwrap();
        assert_eq!(first.is_some(), delivery == Delivery::Push && !is_everywhere, "{reach:?} {first:?}");
        let mut received = match first {
            Some(FeedUpdate::Value(it)) => it.value,
            _ => None,
        };
        for number in 2..100 {
            world.network.clock().advance(limits::ANSWER_DEADLINE_NS / 10);
            publisher.publish(&7, &number, &number).unwrap();
            // As many as a landing region needs to keep up.
            (0..8).for_each(|_| world.turn());
            match subscriber.try_update() {
                Ok(Some(FeedUpdate::Value(it))) => received = it.value,
                Ok(_) | Err(ReceiveError::Contended { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(received.is_some() && !subscriber.is_recovering(), "{reach:?} {delivery:?}: {received:?}");
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
