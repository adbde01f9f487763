//! Feeds whose publishers die and start again, under subscribers that do nothing about it. Each publisher publishes the same events,
//! from the first one on.

use std::collections::BTreeMap;

use super::*;
use crate::id::Epoch;
use crate::publisher::{FeedPublisher, PublishError};
use crate::subscriber::{FeedSubscriber, FeedUpdate, Persistent};

const KEYS: u64 = 6;
/// Bytes of the log's ring: a subscriber that is away for long loses records.
const RING_LEN: usize = 2048;

type Subscriber = Persistent<FeedSubscriber<u64, u64, u64>>;
/// The value of each key.
type Table = BTreeMap<u64, u64>;

/// The value of a key after one more record.
fn next_value(before: Option<u64>, record: u64) -> u64 {
    before.unwrap_or(7).wrapping_mul(31).wrapping_add(record)
}

/// The events that every publisher publishes, and the table after each.
#[derive(Debug, Default)]
struct Script {
    /// Key and record; no record removes the key.
    events: Vec<Vec<(u64, Option<u64>)>>,
    /// By the sequence of the event.
    tables: BTreeMap<u64, Table>,
}

impl Script {
    fn new(random: &mut Random, len: usize) -> Self {
        let (mut script, mut table, mut sequence) = (Self::default(), Table::new(), 0);
        script.tables.insert(0, table.clone());
        for _ in 0..len {
            let mut event = Vec::new();
            for _ in 0..=random.below(4) {
                let key = random.below(KEYS);
                let record = Some(random.next()).filter(|_| !table.contains_key(&key) || !random.once_in(5));
                match record {
                    Some(record) => table.insert(key, next_value(table.get(&key).copied(), record)),
                    None => table.remove(&key),
                };
                event.push((key, record));
            }
            sequence += event.len() as u64;
            script.events.push(event);
            script.tables.insert(sequence, table.clone());
        }
        script
    }
}

/// A publisher, and how much of the script it has published.
struct Source {
    publisher: FeedPublisher<u64, u64, u64>,
    table: Table,
    published: usize,
    _node: Node,
}

impl Source {
    fn new(world: &Arc<World>, epoch: Option<Epoch>) -> Self {
        let node = world.node("publishing", true);
        let builder = node.feed_publisher::<u64, u64, u64>("feed").capacity(12).log_capacity(RING_LEN);
        let builder = builder.record_len_max(64).value_len_max(32);
        let builder = match epoch {
            Some(epoch) => builder.epoch(epoch),
            None => builder,
        };
        Self { publisher: builder.open().unwrap(), table: Table::new(), published: 0, _node: node }
    }

    fn publish(&mut self, script: &Script) -> Result<(), PublishError> {
        let mut event = self.publisher.event();
        for (key, record) in &script.events[self.published] {
            match record {
                Some(record) => {
                    let value = next_value(self.table.get(key).copied(), *record);
                    event.update(key, record, &value)?;
                    self.table.insert(*key, value);
                }
                None => {
                    event.remove(key, &0)?;
                    self.table.remove(key);
                }
            }
        }
        event.commit();
        self.published += 1;
        Ok(())
    }
}

/// A subscriber, and the table that it has.
struct Replica {
    subscriber: Subscriber,
    table: Table,
    epoch: Option<Epoch>,
    /// The sequence of the last update that ended an event.
    last: u64,
    restarts: u64,
    /// Where it began, once it has.
    began: Arc<Mutex<Sequence>>,
    /// The last sequences of the epochs before, added.
    earlier: u64,
    /// Values of the last cut were reported as unreadable.
    is_incomplete: bool,
    /// A loss was reported, and not all its values have come.
    has_lost: bool,
}

impl Replica {
    fn new(node: &Node, delivery: Delivery) -> Self {
        let builder = node.feed_subscriber::<u64, u64, u64>("shm:publishing/feed").delivery(delivery);
        let mut subscriber = builder.persistent().open().unwrap();
        let began = Arc::new(Mutex::new(Sequence::NONE));
        let start = Arc::clone(&began);
        subscriber.configure(move |feed| *start.lock() = feed.last());
        Self {
            subscriber,
            table: Table::new(),
            epoch: None,
            last: 0,
            restarts: 0,
            began,
            earlier: 0,
            is_incomplete: false,
            has_lost: false,
        }
    }

    /// Checks that every record was received or is lost.
    fn check_counts(&self) {
        let current = self.subscriber.current().expect("it has received something");
        let stats = current.stats();
        let published = self.earlier + current.last().get() - self.began.lock().get();
        let lost = stats.lapped + stats.cut_off + stats.rejected;
        assert_eq!(stats.received + lost, published, "{stats:?}");
    }

    /// Receives one update, and compares the table with that of the script after each event.
    fn receive(&mut self, script: &Script) -> bool {
        let update = match self.subscriber.try_update() {
            Ok(None) => return false,
            Ok(Some(update)) => update,
            Err(ReceiveError::Restarted { epoch, before, last }) => {
                self.earlier += last.get();
                assert_eq!(self.epoch.replace(epoch).unwrap_or(before), before);
                assert_ne!(epoch, before);
                self.table.clear();
                (self.last, self.restarts) = (0, self.restarts + 1);
                (self.is_incomplete, self.has_lost) = (false, false);
                return true;
            }
            Err(ReceiveError::Contended { .. }) => return true,
            // Damaged: the publisher died while it wrote to the landing region.
            Err(
                ReceiveError::Lapped { .. }
                | ReceiveError::CutOff { .. }
                | ReceiveError::DamagedRecords { .. },
            ) => {
                self.has_lost = true;
                return true;
            }
            Err(ReceiveError::UnreadableValues { .. }) => {
                (self.is_incomplete, self.has_lost) = (true, true);
                return true;
            }
            Err(error) => panic!("{error}"),
        };
        let meta = update.meta();
        assert_eq!(*self.epoch.get_or_insert(meta.epoch), meta.epoch);
        match &update {
            FeedUpdate::Record(it) if it.removes_key => _ = self.table.remove(&it.key).expect("a known key"),
            FeedUpdate::Record(it) => {
                self.table.insert(it.key, next_value(self.table.get(&it.key).copied(), it.record));
            }
            FeedUpdate::Value(it) => match it.value {
                Some(value) => _ = self.table.insert(it.key, value),
                None => _ = self.table.remove(&it.key),
            },
        }
        let current = self.subscriber.current().expect("it has received something");
        let is_complete = !current.is_recovering() && current.suspects().is_empty();
        if update.ends_event() && matches!(update, FeedUpdate::Record(_)) && !self.has_lost {
            let expected = &script.tables[&meta.sequence.get()];
            assert!(self.table == *expected, "not reported lost: {meta:?} {:?} {expected:?}", self.table);
        }
        if update.ends_event() && is_complete {
            self.has_lost = false;
            let sequence = meta.sequence.get().max(self.last);
            let is_value = matches!(update, FeedUpdate::Value(_));
            let expected = script.tables.range(sequence..).next().expect("an event").1;
            self.is_incomplete &= self.table != *expected;
            let is_right = is_value || self.is_incomplete || self.table == *expected;
            assert!(is_right, "after {sequence}: {:?} {expected:?}", self.table);
            self.last = sequence;
        }
        true
    }
}

fn restarts(reach: Reach, delivery: Delivery) {
    each_seed(amount(SEEDS / 3, 50 * SEEDS), |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, reach);
        let script = Script::new(&mut random, 150);
        let named = Epoch::new(seed + 1);
        let subscribing = world.node("subscribing", false);
        let mut replica = Replica::new(&subscribing, delivery);
        let (mut is_named, mut source) = (true, Source::new(&world, named));
        let (mut furthest, mut changes_of_epoch) = (0, 0);
        for _ in 0..300 {
            match random.below(20) {
                0 => {
                    world.kill("publishing");
                    (0..random.below(20)).for_each(|_| world.turn());
                    let was_named = std::mem::replace(&mut is_named, !random.once_in(3));
                    changes_of_epoch += u64::from(!was_named || !is_named);
                    furthest = if was_named && is_named { source.published.max(furthest) } else { 0 };
                    source = Source::new(&world, named.filter(|_| is_named));
                    let behind = random.index(furthest + 1);
                    (0..behind).for_each(|_| source.publish(&script).unwrap());
                }
                1..=6 if source.published < script.events.len() => source.publish(&script).unwrap(),
                7..=9 => world.turn(),
                _ => _ = replica.receive(&script),
            }
        }
        while source.published < script.events.len() {
            source.publish(&script).unwrap();
            world.turn();
            replica.receive(&script);
        }
        let expected = script.tables.values().last().expect("the last event");
        let is_caught_up = |replica: &Replica| {
            let current = replica.subscriber.current();
            replica.table == *expected
                && current.is_some_and(|it| it.epoch() == source.publisher.epoch() && !it.is_recovering())
        };
        for turn in 0.. {
            if !replica.receive(&script) {
                if is_caught_up(&replica) {
                    break;
                }
                world.turn();
            }
            assert!(turn < 100 * TURNS, "{:?} {expected:?} {:?}", replica.table, replica.subscriber);
        }
        assert!(replica.restarts <= changes_of_epoch);
        replica.check_counts();
    });
}

#[test]
fn pulled_feed_goes_on_with_the_next_publisher_where_memory_is_mapped() {
    restarts(Reach::Mapped, Delivery::Pull);
}

#[test]
fn pushed_feed_goes_on_with_the_next_publisher_where_memory_is_mapped() {
    restarts(Reach::Mapped, Delivery::Push);
}

#[test]
fn pulled_feed_goes_on_with_the_next_publisher_where_memory_is_fetched() {
    restarts(Reach::Fetched, Delivery::Pull);
}

#[test]
fn pushed_feed_goes_on_with_the_next_publisher_where_memory_is_fetched() {
    restarts(Reach::Fetched, Delivery::Push);
}

/// The publisher dies when a part of an event was read, and the next one goes on with the same events.
#[test]
fn records_of_an_event_that_a_death_cuts_short_come_from_the_next_publisher() {
    each_seed(SEEDS / 2, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let script = Script::new(&mut Random::new(seed), 6);
        let mut source = Source::new(&world, Epoch::new(7));
        let subscribing = world.node("subscribing", false);
        let mut subscriber = Replica::new(&subscribing, Delivery::Pull).subscriber;
        let mut received = Vec::new();
        let mut receive = |subscriber: &mut Subscriber| {
            while let Some(update) = subscriber.try_update().unwrap() {
                received.push((update.meta().sequence.get(), update.ends_event()));
            }
            world.turn();
            subscriber.current().map(|current| (current.is_recovering(), current.last().get()))
        };
        while receive(&mut subscriber).is_none_or(|(is_recovering, _)| is_recovering) {}
        for _ in 0..script.events.len() {
            source.publish(&script).unwrap();
            let is_part =
                |read: Option<(_, u64)>| read.is_some_and(|(_, last)| !script.tables.contains_key(&last));
            if (0..100).any(|_| is_part(receive(&mut subscriber))) {
                // Values are due when the publisher dies. Its table cannot be read, and that of the next one has none that is missing.
                if seed % 3 == 2 {
                    subscriber.configure(FeedSubscriber::all_keys);
                }
                world.kill("publishing");
                while subscriber.is_attached() {
                    receive(&mut subscriber);
                }
                if seed % 3 == 1 {
                    subscriber.configure(FeedSubscriber::all_keys);
                }
                let published = source.published;
                drop(source);
                source = Source::new(&world, Epoch::new(7));
                (0..published).for_each(|_| source.publish(&script).unwrap());
            }
        }
        for _ in 0..TURNS {
            receive(&mut subscriber);
        }
        drop(source);
        let last = *script.tables.keys().last().expect("events");
        let expected = (1..=last).map(|sequence| (sequence, script.tables.contains_key(&sequence)));
        assert_eq!(received, expected.collect::<Vec<_>>());
    });
}

/// The values of keys that were wanted only just before are still to be read from the table when the publisher dies.
#[test]
fn keys_that_were_wanted_just_before_the_publisher_died_are_received_from_the_next_one() {
    each_seed(SEEDS / 6, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let script = Script::new(&mut Random::new(seed), 20);
        let published = || {
            let mut source = Source::new(&world, Epoch::new(7));
            script.events.iter().for_each(|_| source.publish(&script).unwrap());
            source
        };
        let source = published();
        let subscribing = world.node("subscribing", false);
        let mut replica = Replica::new(&subscribing, Delivery::Pull);
        replica.subscriber.configure(|feed| feed.only(|_| false));
        while replica.subscriber.current().is_none_or(FeedSubscriber::is_recovering) {
            assert!(replica.subscriber.try_update().unwrap().is_none());
            world.turn();
        }
        replica.subscriber.configure(FeedSubscriber::all_keys);
        world.kill("publishing");
        while replica.subscriber.is_attached() {
            assert!(replica.subscriber.try_update().unwrap().is_none());
            world.turn();
        }
        drop(source);
        let source = published();
        let expected = script.tables.values().last().expect("the last event");
        for _ in 0..TURNS {
            while replica.receive(&script) {}
            world.turn();
        }
        assert_eq!(replica.table, *expected);
        drop(source);
    });
}
