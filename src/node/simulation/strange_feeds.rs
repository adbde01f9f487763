//! Feeds that no `FeedPublisher` publishes, or whose tables seem to be ahead: their subscribers neither wait for ever nor hold more
//! than they should.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::*;
use crate::id::Epoch;
use crate::node::publish::Beginning;
use crate::publisher::{FeedPublisher, LogPublisher, TablePublisher, fresh_incarnation};
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
pub(in crate::node) struct Strange {
    log: LogPublisher<FeedRecord<u64, u64>>,
    pub(in crate::node) table: TablePublisher<u64, u64>,
}

impl Strange {
    pub(in crate::node) fn new(node: &Node) -> Self {
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
    pub(in crate::node) fn publish(&mut self, key: u64, previous: u64, ends_event: bool) -> u64 {
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
    for ((reach, delivery), is_steady) in WAYS.into_iter().zip([true; 4]).chain([(WAYS[0], false)]) {
        let world = World::new(1, reach);
        let publishing = world.node("publishing", true);
        let subscribing = world.node("subscribing", false);
        let mut feed = Strange::new(&publishing);
        (0..1000).for_each(|value| _ = feed.table.put(&7, &value).unwrap());
        let mut last = feed.publish(7, 0, true);
        let mut subscriber = pushed_or_pulled(&subscribing, delivery);
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
        assert!(errors.len() > 1, "{reach:?} {delivery} {is_steady}: {errors:?}");
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
        publisher.publish(&8, &8, &8).unwrap();
        publisher.publish(&7, &1, &1).unwrap();
        match is_everywhere {
            true => publisher.pretend_everywhere(1 << 40),
            false => publisher.pretend(1 << 40),
        }
        let mut subscriber = pushed_or_pulled(&subscribing, delivery);
        let first = subscriber.try_update().unwrap();
        assert_eq!(first.is_some(), delivery == Delivery::Push && !is_everywhere, "{reach:?} {first:?}");
        let (mut received, mut values) = (None, BTreeMap::new());
        if let Some(FeedUpdate::Value(it)) = first {
            received = it.value;
            values.insert(it.key, it.value);
        }
        for number in 2..200 {
            if number < 100 {
                world.network.clock().advance(limits::ANSWER_DEADLINE_NS / 10);
                publisher.publish(&7, &number, &number).unwrap();
            }
            // As many as a landing region needs to keep up.
            (0..8).for_each(|_| world.turn());
            match subscriber.try_update() {
                Ok(Some(FeedUpdate::Value(it))) => {
                    received = it.value;
                    values.insert(it.key, it.value);
                }
                Ok(Some(FeedUpdate::Record(it))) => _ = values.insert(it.key, Some(it.record)),
                Ok(None) => {}
                // Where nothing shows at once that the table is not there.
                Err(ReceiveError::Contended { .. }) if reach == Reach::Fetched => {}
                Err(error) => panic!("{reach:?} {delivery}: {error}"),
            }
        }
        assert!(received.is_some() && !subscriber.is_recovering(), "{reach:?} {delivery:?}: {received:?}");
        assert_eq!(values, BTreeMap::from([(7, Some(99)), (8, Some(8))]), "{reach:?} {delivery}");
    }
}

fn restarted(node: &Node) -> FeedPublisher<u64, u64, u64> {
    node.feed_publisher("feed").epoch(Epoch::new(7).unwrap()).open().unwrap()
}

/// The publisher dies or ends while its table seems to be far ahead, or just after; the next one continues the epoch.
#[test]
fn cut_that_the_log_never_reaches_is_not_where_the_next_publisher_is_continued() {
    for ((reach, delivery), is_repaired) in
        WAYS.into_iter().zip([true; 4]).chain(WAYS.into_iter().zip([false; 4]))
    {
        for is_killed in [false, true] {
            let way = format!("{reach:?} {delivery} {is_repaired} {is_killed}");
            let (world, name) = (World::new(1, reach), "publishing");
            let (mut publishing, subscribing) = (world.node(name, true), world.node("subscribing", false));
            let mut publisher = restarted(&publishing);
            publisher.publish(&7, &1, &1).unwrap();
            publisher.pretend_everywhere(1 << 40);
            let builder =
                subscribing.feed_subscriber::<u64, u64, u64>("shm:publishing/feed").delivery(delivery);
            let mut subscriber = builder.persistent().open().unwrap();
            // It has read the table.
            (0..20).for_each(|_| {
                assert!(subscriber.try_update().unwrap().is_none(), "{way}");
                world.turn();
            });
            if is_repaired {
                publisher.publish(&7, &2, &2).unwrap();
            }
            let mut value = None;
            let mut receive = |turns| {
                for _ in 0..turns {
                    match subscriber.try_update() {
                        Ok(Some(FeedUpdate::Value(it))) => value = it.value,
                        Ok(Some(FeedUpdate::Record(it))) => value = Some(it.record),
                        Ok(None) => {}
                        Err(ReceiveError::CutOff { count, .. }) => assert!(count <= 2, "{way}: {count}"),
                        Err(error) => panic!("{way}: {error}"),
                    }
                    world.turn();
                }
            };
            if is_killed {
                world.kill(name);
                std::mem::forget(publisher);
            } else {
                drop(publisher);
                receive(200);
                world.stop(name);
            }
            receive(TURNS);
            publishing = world.node(name, true);
            let mut publisher = restarted(&publishing);
            (1..4).for_each(|number| _ = publisher.publish(&7, &number, &number).unwrap());
            receive(TURNS);
            assert_eq!(value, Some(3), "{way}");
            assert_eq!(subscriber.current().unwrap().last().get(), 3, "{way}");
        }
    }
}

thread_local! {
    /// Called whenever a record is decoded.
    static FLOOD: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// A record in whose decoding more are published: it is never the last one.
#[derive(Serialize)]
struct Flooding(u64);

impl<'de> Deserialize<'de> for Flooding {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = u64::deserialize(from)?;
        if let Some(mut flood) = FLOOD.take() {
            flood();
            FLOOD.set(Some(flood));
        }
        Ok(Self(value))
    }
}

type FloodedSubscriber = FeedSubscriber<u64, Flooding, u64>;

/// A feed whose table seems to be far ahead, and a subscriber that knows of that cut.
fn flooding(
    world: &Arc<World>,
    delivery: Delivery,
) -> (FeedPublisher<u64, Flooding, u64>, FloodedSubscriber, [Node; 2]) {
    let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
    let builder = publishing.feed_publisher("feed").capacity(CAPACITY).record_len_max(64).value_len_max(32);
    let mut publisher = builder.log_capacity(2048).open().unwrap();
    publisher.publish(&7, &Flooding(1), &1).unwrap();
    publisher.pretend_everywhere(1 << 40);
    let mut subscriber =
        subscribing.feed_subscriber("shm:publishing/feed").delivery(delivery).open().unwrap();
    assert!(subscriber.try_update().unwrap().is_none());
    publisher.publish(&7, &Flooding(2), &2).unwrap();
    (publisher, subscriber, [publishing, subscribing])
}

#[test]
fn receive_returns_while_a_publisher_is_always_ahead() {
    let world = World::new(1, Reach::Mapped);
    let (mut publisher, mut subscriber, _nodes) = flooding(&world, Delivery::Pull);
    publisher.pretend_everywhere(1 << 40);
    let mut published = 0;
    FLOOD.set(Some(Box::new(move || {
        publisher.publish(&7, &Flooding(1), &1).unwrap();
        publisher.pretend_everywhere(1 << 40);
        published += 1;
        assert!(published < 200_000, "the receive does not return");
    })));
    assert!(subscriber.try_update().unwrap().is_none());
    FLOOD.take();
}

/// A reader that is always behind never finds the log without records.
#[test]
fn cut_that_the_log_never_reaches_is_read_again_by_a_reader_that_loses_records() {
    for has_joined in [false, true] {
        let world = World::new(1, Reach::Mapped);
        let (mut publisher, mut subscriber, _nodes) = flooding(&world, Delivery::Pull);
        if has_joined {
            while subscriber.try_update().unwrap().is_some() || subscriber.is_recovering() {}
            publisher.pretend_everywhere(1 << 40);
            subscriber.all_keys();
            assert!(subscriber.try_update().unwrap().is_none());
            publisher.publish(&7, &Flooding(3), &3).unwrap();
        }
        let mut published = 3;
        FLOOD.set(Some(Box::new(move || {
            for _ in 0..60 {
                published += 1;
                publisher.publish(&7, &Flooding(published), &published).unwrap();
            }
            assert!(published < 100_000, "the receive does not return");
        })));
        let mut values = 0;
        for _ in 0..100 {
            match subscriber.try_update() {
                Ok(update) => values += u32::from(matches!(update, Some(FeedUpdate::Value(_)))),
                Err(ReceiveError::Lapped { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        FLOOD.take();
        assert!(values > 1, "{has_joined}: {values}");
    }
}

/// A line whose publisher is gone, and one that is not in step, say nothing of the log.
#[test]
fn other_lines_do_not_hide_that_the_log_never_reaches_a_cut() {
    let [today, yesterday] = [2, 1].map(|epoch| Epoch::new(epoch).unwrap());
    for (reach, other) in [(Reach::Fetched, today), (Reach::Mapped, yesterday)] {
        let world = World::new(1, reach);
        let nodes = [world.node("a", true), world.node("b", true), world.node("subscribing", false)];
        let [mut a, mut b] = [(&nodes[0], today), (&nodes[1], other)]
            .map(|(node, epoch)| node.feed_publisher::<u64, u64, u64>("feed").epoch(epoch).open().unwrap());
        a.publish(&7, &1, &1).unwrap();
        (0..if reach == Reach::Mapped { 100 } else { 1 }).for_each(|_| _ = b.publish(&7, &1, &1).unwrap());
        let builder = nodes[2].feed_subscriber::<u64, u64, u64>("shm:a/feed").lines(["shm:b/feed"]);
        let mut subscriber = builder.open().unwrap();
        (0..200).for_each(|_| {
            subscriber.try_update().unwrap();
            world.turn();
        });
        assert!(!subscriber.is_recovering());
        if other == today {
            drop(b);
            (0..500).for_each(|_| {
                assert!(subscriber.try_update().unwrap().is_none());
                world.turn();
            });
            assert!(!subscriber.report()[1].is_attached);
        }
        a.pretend(60);
        subscriber.all_keys();
        (0..20).for_each(|_| {
            assert!(subscriber.try_update().unwrap().is_none());
            world.turn();
        });
        let noticed = (2..40).find(|number| {
            a.publish(&7, number, number).unwrap();
            (0..10).any(|_| {
                world.network.clock().advance(limits::ANSWER_DEADLINE_NS / 100);
                world.turn();
                let received = subscriber.try_update();
                received.is_err() || !subscriber.is_recovering()
            })
        });
        assert!(noticed.is_some(), "{reach:?}");
    }
}

#[test]
fn line_whose_log_never_reaches_its_table_does_not_keep_the_values_of_another_one_back() {
    for (reach, delivery) in WAYS {
        let world = World::new(1, reach);
        let nodes = [world.node("a", true), world.node("b", true), world.node("subscribing", false)];
        let mut feeds = [&nodes[0], &nodes[1]].map(restarted);
        let mut publish = |number| {
            feeds.iter_mut().for_each(|feed| _ = feed.publish(&7, &number, &number).unwrap());
            feeds[0].pretend(1 << 40);
        };
        publish(1);
        let builder = nodes[2].feed_subscriber::<u64, u64, u64>("shm:a/feed").delivery(delivery);
        let mut subscriber = builder.lines(["shm:b/feed"]).open().unwrap();
        let (mut errors, mut received) = (0, 0);
        for number in 2..50 {
            world.network.clock().advance(limits::ANSWER_DEADLINE_NS / 10);
            publish(number);
            for _ in 0..10 {
                world.turn();
                match subscriber.try_update() {
                    Ok(update) => received += u32::from(update.is_some()),
                    Err(ReceiveError::Contended { .. }) => errors += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(errors <= 1 && received > 20, "{reach:?} {delivery}: {errors} {received}");
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
