//! Feeds between whole nodes, against a map that keeps every event: a subscriber that joins at any time has the publisher's values
//! after every event, except those of keys that a loss touched, and gets exactly these anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::*;
use crate::publisher::{FeedPublisher, PublishError};
use crate::subscriber::{FeedEvent, FeedSubscriber, FeedUpdate, NoticePath, RecordUpdate, ValueUpdate};
use crate::testkit::fabric::DatagramFaults;

/// Keys that a feed has room for, and keys that are used.
const CAPACITY: usize = 12;
const KEYS: u64 = 16;
/// Bytes of the log's ring: about 36 records, so that slow subscribers lose some.
const RING_LEN: usize = 2048;
/// The record that leaves the value of its key as it was.
const NO_CHANGE: u64 = 0;

const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];

type Publisher = FeedPublisher<u64, u64, u64>;
type Subscriber = FeedSubscriber<u64, u64, u64>;
type Event = FeedEvent<u64, u64, u64>;

/// A key after an event, or as a subscriber has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    /// All its records in one number.
    value: u64,
    /// Its last record.
    last: u64,
    /// How many it has had.
    number: u64,
}

type Keys = BTreeMap<u64, Held>;

/// A published record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Published {
    key: u64,
    record: u64,
    number: u64,
    removes_key: bool,
    ends_event: bool,
}

/// The value of a key after one more record.
fn next_value(before: Option<u64>, record: u64) -> u64 {
    match (before, record) {
        (Some(value), NO_CHANGE) => value,
        (before, record) => before.unwrap_or(7).wrapping_mul(31).wrapping_add(record),
    }
}

fn index(sequence: u64) -> usize {
    usize::try_from(sequence).unwrap()
}

/// A publisher, and what it has published.
struct Source {
    /// Until it ends.
    publisher: Option<Publisher>,
    /// Each record, from sequence 1.
    records: Vec<Published>,
    /// After each event.
    history: BTreeMap<u64, Keys>,
}

impl Source {
    fn new(node: &Node) -> Self {
        let builder = node.feed_publisher::<u64, u64, u64>("feed").capacity(CAPACITY);
        let builder = builder.log_capacity(RING_LEN).record_len_max(64).value_len_max(32);
        let history = BTreeMap::from([(0, Keys::new())]);
        Self { publisher: Some(builder.open().unwrap()), records: Vec::new(), history }
    }

    fn keys(&self) -> &Keys {
        self.history.last_key_value().unwrap().1
    }

    /// The newest event.
    fn newest(&self) -> u64 {
        self.records.len() as u64
    }

    /// The keys as of an event.
    fn at(&self, event: u64) -> &Keys {
        self.history.get(&event).unwrap_or_else(|| panic!("{event} is not an event"))
    }

    /// Publishes a random event, or gives it up.
    fn publish(&mut self, random: &mut Random) {
        let (mut keys, mut records) = (self.keys().clone(), Vec::new());
        let publisher = self.publisher.as_mut().unwrap();
        let mut event = publisher.event();
        for _ in 0..1 + random.below(6) * random.below(2) {
            let (key, sequence) = (random.below(KEYS), (self.records.len() + records.len()) as u64 + 1);
            let held = keys.get(&key).copied();
            let number = held.map_or(1, |held| held.number + 1);
            let record = if held.is_some() && random.once_in(3) { NO_CHANGE } else { 1 + random.below(1000) };
            let removes_key = held.is_some() && random.once_in(5);
            let value = next_value(held.map(|held| held.value), record);
            if removes_key {
                event.remove(&key, &record).unwrap();
                keys.remove(&key);
            } else if record == NO_CHANGE {
                event.record(&key, &record).unwrap();
                keys.insert(key, Held { value, last: sequence, number });
            } else {
                match event.update(&key, &record, &value) {
                    Ok(()) => _ = keys.insert(key, Held { value, last: sequence, number }),
                    Err(PublishError::Full { capacity }) => {
                        assert!(held.is_none() && capacity == CAPACITY);
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            records.push(Published { key, record, number, removes_key, ends_event: false });
        }
        if random.once_in(8) || records.is_empty() {
            drop(event);
            assert_eq!(publisher.len(), self.history.last_key_value().unwrap().1.len());
            return;
        }
        records.last_mut().unwrap().ends_event = true;
        let sequence = event.commit().get();
        self.records.extend(records);
        assert_eq!(sequence, self.records.len() as u64);
        self.history.insert(sequence, keys);
    }

    /// The records of the event that ends with this one.
    fn event(&self, end: u64) -> impl Iterator<Item = (u64, &Published)> {
        let before = self.history.range(..end).next_back().map_or(0, |(event, _)| *event);
        (before + 1..=end).map(|sequence| (sequence, &self.records[index(sequence - 1)]))
    }
}

/// A subscriber, and what it has received.
struct Follower {
    subscriber: Subscriber,
    /// Wants odd keys only.
    is_narrow: bool,
    /// Keys, except that those which lack records are out of date.
    keys: Keys,
    last: u64,
    /// Records that a loss took, or another interest hid, by key, until the values come.
    touched: BTreeSet<u64>,
    /// Of those, the keys that it had.
    stale: BTreeSet<u64>,
    has_joined: bool,
    losses: u64,
    /// The last record lost.
    lost_until: u64,
    /// Its publisher may die while it writes.
    is_dying: bool,
    /// Keys whose values were damaged then.
    missing: BTreeSet<u64>,
}

impl Follower {
    fn open(node: &Node, delivery: Delivery, has_notices: bool) -> Self {
        let builder = node.feed_subscriber("shm:publishing/feed").delivery(delivery);
        let builder = if has_notices { builder.notices() } else { builder };
        Self {
            subscriber: builder.open().expect("two grants"),
            is_narrow: false,
            keys: Keys::new(),
            last: 0,
            touched: BTreeSet::new(),
            stale: BTreeSet::new(),
            has_joined: false,
            losses: 0,
            lost_until: 0,
            is_dying: false,
            missing: BTreeSet::new(),
        }
    }

    fn wants(&self, key: u64) -> bool {
        !self.is_narrow || key % 2 == 1
    }

    fn change_interest(&mut self) {
        self.is_narrow = !self.is_narrow;
        if !self.has_joined {
            // It may have joined without a value.
            self.has_joined = true;
            self.touched.extend(0..KEYS);
        }
        if self.is_narrow {
            self.subscriber.only(|key| key % 2 == 1);
            self.keys.retain(|key, _| key % 2 == 1);
            self.touched.retain(|key| key % 2 == 1);
            self.stale.retain(|key| key % 2 == 1);
        } else {
            self.subscriber.all_keys();
            self.touched.extend((0..KEYS).filter(|key| key % 2 == 0));
        }
    }

    /// Receives what is available.
    fn take(&mut self, source: &Source) -> Result<(), ReceiveError> {
        loop {
            match self.subscriber.try_event() {
                Ok(None) | Err(ReceiveError::Contended { .. }) => break,
                Ok(Some(event)) => self.apply(&event, source),
                Err(ReceiveError::Lapped { first_lost, count }) => self.lose(first_lost.get(), count, source),
                Err(error) => return Err(error),
            }
            self.check_suspects();
        }
        self.check_suspects();
        if !self.subscriber.is_recovering() && !self.is_dying {
            assert!(self.subscriber.suspects().is_empty());
            self.touched.clear();
            self.stale.clear();
        }
        Ok(())
    }

    fn check_suspects(&self) {
        let suspects = self.subscriber.suspects();
        let mut unknown = suspects.iter().filter(|key| !self.touched.contains(key));
        // At last every key is suspect if nothing tells which are not.
        assert!(unknown.next().is_none() || self.is_dying, "a key that no loss touched is suspect");
    }

    fn lose(&mut self, first: u64, count: u64, source: &Source) {
        assert!(count > 0 && first + count - 1 > self.last, "{first} was received");
        self.join_at(first, source);
        self.losses += 1;
        self.touch(first.max(self.last + 1)..first + count, source);
        self.last = first + count - 1;
        self.lost_until = self.last;
    }

    /// Records that these records were lost.
    fn touch(&mut self, lost: Range<u64>, source: &Source) {
        for sequence in lost {
            let key = source.records[index(sequence - 1)].key;
            if self.wants(key) {
                self.touched.insert(key);
                self.stale.extend(Some(key).filter(|key| self.keys.contains_key(key)));
            }
        }
    }

    fn apply(&mut self, event: &Event, source: &Source) {
        let FeedEvent { sequence, updates, is_whole, .. } = event;
        let sequence = sequence.get();
        let is_values = matches!(updates[0], FeedUpdate::Value(_));
        if is_values {
            self.check_values(sequence, updates, source);
        } else if *is_whole {
            let of_event = source.event(sequence).filter(|(_, record)| self.wants(record.key));
            let expected: Vec<u64> = of_event.map(|(sequence, _)| sequence).collect();
            let found: Vec<u64> = updates.iter().map(|update| update.meta().sequence.get()).collect();
            assert_eq!(found, expected, "of event {sequence}");
        }
        for (number, update) in updates.iter().enumerate() {
            let is_last = number + 1 == updates.len();
            assert!(self.wants(*update.key()));
            assert!(!update.ends_event() || is_last, "{update:?} is not the last one");
            match update {
                FeedUpdate::Value(value) => self.apply_value(value, source),
                FeedUpdate::Record(record) => self.apply_record(record, source),
            }
        }
        let is_complete = updates.last().is_some_and(FeedUpdate::ends_event);
        assert!(is_complete || !is_whole);
        if is_values {
            self.touched.clone_from(&self.missing);
            self.stale.clear();
            // The loss may reach beyond the values.
            self.touch(sequence + 1..self.lost_until + 1, source);
            self.has_joined = true;
            self.last = self.last.max(sequence);
        }
        // Of a publisher that died nobody tells which keys a loss touched.
        if is_complete && !(self.is_dying && self.losses > 0) {
            let is_right = |(key, _): &(&u64, &Held)| self.wants(**key) && !self.touched.contains(key);
            let found = self.keys.iter().filter(is_right);
            let expected = source.at(sequence).iter().filter(is_right);
            assert!(found.eq(expected), "{:?} after event {sequence}: {:?}", self.keys, source.at(sequence));
            let is_current = self.lost_until <= sequence;
            if is_current
                && self.keys.iter().eq(source.at(sequence).iter().filter(|(key, _)| self.wants(**key)))
            {
                let suspects = self.subscriber.suspects();
                self.touched.retain(|key| suspects.contains(key));
                self.stale.clear();
            }
        }
    }

    /// Values come for exactly the keys that lack records.
    fn check_values(&mut self, event: u64, updates: &[FeedUpdate<u64, u64, u64>], source: &Source) {
        let now = source.at(event);
        let last = |keys: &Keys, key: u64| keys.get(&key).map(|held| held.last);
        let lacks = |key: &u64| self.wants(*key) && last(&self.keys, *key) != last(now, *key);
        let expected: BTreeSet<u64> = (0..KEYS).filter(lacks).collect();
        let found: BTreeSet<u64> = updates.iter().map(|update| *update.key()).collect();
        assert_eq!(found.len(), updates.len());
        self.missing = expected.difference(&found).copied().collect();
        assert!(found.is_subset(&expected), "{found:?} of {expected:?} of event {event}");
        assert!(self.missing.is_empty() || self.is_dying, "{found:?} of {expected:?} of event {event}");
        if self.has_joined {
            assert!(found.is_subset(&self.touched), "{found:?} of {:?}", self.touched);
        }
        let is_overtaken = self.lost_until > event;
        assert!(is_overtaken || self.stale.is_subset(&found), "{:?} of {found:?}", self.stale);
    }

    fn apply_value(&mut self, update: &ValueUpdate<u64, u64>, source: &Source) {
        let (key, last, number) = (update.key, update.meta.sequence.get(), update.number);
        let Some(value) = update.value else {
            assert!(self.keys.remove(&key).is_some(), "{key} was not received");
            return;
        };
        let Published { key: of, number: expected, .. } = source.records[index(last - 1)];
        assert_eq!((of, expected), (key, number));
        self.keys.insert(key, Held { value, last, number });
    }

    fn apply_record(&mut self, update: &RecordUpdate<u64, u64>, source: &Source) {
        let RecordUpdate { key, record, meta, number, removes_key, .. } = *update;
        let sequence = meta.sequence.get();
        assert!(sequence > self.last, "{sequence} after {}", self.last);
        self.join_at(sequence, source);
        self.last = sequence;
        let published = source.records[index(sequence - 1)];
        let ends_event = published.ends_event;
        assert_eq!(published, Published { key, record, number, removes_key, ends_event });
        let held = self.keys.get(&key).copied();
        assert_eq!(number, held.map_or(1, |held| held.number + 1));
        if removes_key {
            self.keys.remove(&key);
        } else {
            let value = next_value(held.map(|held| held.value), record);
            self.keys.insert(key, Held { value, last: sequence, number });
        }
    }

    /// The first record, received or lost, follows the values.
    fn join_at(&mut self, sequence: u64, source: &Source) {
        let before = source.history.range(..sequence).next_back().unwrap().1;
        assert!(self.has_joined || !before.keys().any(|key| self.wants(*key)), "values come first");
        self.has_joined = true;
    }

    fn has_all(&self, source: &Source) -> bool {
        let wanted = source.keys().iter().filter(|(key, _)| self.wants(**key));
        self.keys.iter().eq(wanted)
    }

    /// Receives until it has the publisher's values.
    fn catch_up(&mut self, world: &World, source: &Source) {
        for _ in 0..TURNS {
            self.take(source).expect("an event, sooner or later");
            if self.has_all(source) && self.subscriber.last().get() == source.newest() {
                assert!(self.subscriber.suspects().is_empty());
                return;
            }
            world.turn();
        }
        panic!("{:?} instead of {:?}", self.keys, source.keys());
    }

    /// Receives until an error that is not a loss.
    fn end(&mut self, world: &World, source: &Source) -> ReceiveError {
        let end = (0..TURNS).find_map(|_| {
            world.turn();
            self.take(source).err()
        });
        end.expect("an end, sooner or later")
    }
}

/// Subscribers come, receive, are slow, change their interest and go in random order; publishers end, and others follow.
fn cut_has_no_seam(reach: Reach, delivery: Delivery) {
    let mut losses = 0;
    each_seed(amount(SEEDS, 20 * SEEDS), |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let nodes = [world.node("one", false), world.node("other", false)];
        for _ in 0..2 {
            let mut source = Source::new(&publishing);
            let mut followers: Vec<Follower> = Vec::new();
            for _ in 0..200 {
                match random.below(13) {
                    0 if followers.len() < 4 => {
                        followers.push(Follower::open(&nodes[random.index(2)], delivery, false));
                    }
                    1 if followers.len() > 2 => {
                        drop(followers.swap_remove(random.index(followers.len())));
                    }
                    2..=4 => (0..1 + random.below(4)).for_each(|_| source.publish(&mut random)),
                    5 => (0..20).for_each(|_| world.turn()),
                    6..=7 => world.turn(),
                    8 if !followers.is_empty() && random.once_in(3) => {
                        let chosen = random.index(followers.len());
                        followers[chosen].change_interest();
                    }
                    9 if random.once_in(4) => (0..60).for_each(|_| source.publish(&mut random)),
                    _ => followers.iter_mut().for_each(|one| one.take(&source).expect("no end")),
                }
            }
            let half = followers.len() / 2;
            let (caught_up, others) = followers.split_at_mut(half);
            caught_up.iter_mut().for_each(|one| one.catch_up(&world, &source));
            source.publisher = None;
            let newest = source.newest();
            for follower in caught_up.iter_mut().chain(others) {
                let end = follower.end(&world, &source);
                assert!(
                    matches!(end, ReceiveError::Ended { published } if published.get() == newest),
                    "{end}"
                );
                assert!(follower.has_all(&source), "{:?} of {:?}", follower.keys, source.keys());
                assert!(follower.subscriber.suspects().is_empty());
                losses += follower.losses;
            }
        }
    });
    assert!(losses > 0 || std::env::var_os("FABRICAST_SEED").is_some(), "no records were lost");
}

#[test]
fn cut_of_a_mapped_feed_has_no_seam_by_pull() {
    cut_has_no_seam(Reach::Mapped, Delivery::Pull);
}

#[test]
fn cut_of_a_mapped_feed_has_no_seam_by_push() {
    cut_has_no_seam(Reach::Mapped, Delivery::Push);
}

#[test]
fn cut_of_a_fetched_feed_has_no_seam_by_pull() {
    cut_has_no_seam(Reach::Fetched, Delivery::Pull);
}

#[test]
fn cut_of_a_remote_feed_has_no_seam_by_push() {
    cut_has_no_seam(Reach::Fetched, Delivery::Push);
}

/// When a node stops or dies, a subscriber has the values of an event, or its suspects say which are not.
#[test]
fn feeds_of_nodes_that_stop_or_die_end_with_the_values_of_an_event() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 3, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let subscribing = world.node("subscribing", false);
            for dies in [true, false] {
                let publishing = world.node("publishing", true);
                let mut source = Source::new(&publishing);
                (0..random.below(8)).for_each(|_| source.publish(&mut random));
                let mut follower = Follower::open(&subscribing, delivery, false);
                (0..random.below(40)).for_each(|_| source.publish(&mut random));
                (0..random.below(30)).for_each(|_| world.turn());
                if dies {
                    world.kill("publishing");
                    follower.is_dying = true;
                    let mut end = follower.end(&world, &source);
                    loop {
                        match end {
                            // Entries of removed keys may be damaged, too.
                            ReceiveError::UnreadableValues { count } => {
                                assert!(count >= std::mem::take(&mut follower.missing).len());
                            }
                            ReceiveError::CutOff { .. } => {}
                            _ => break,
                        }
                        end = follower.end(&world, &source);
                    }
                    assert!(matches!(end, ReceiveError::Gone { .. }), "{end}");
                    assert!(follower.missing.is_empty());
                    continue;
                }
                source.publisher = None;
                drop(publishing);
                world.stop("publishing");
                let mut end = follower.end(&world, &source);
                let mut is_cut_off = false;
                while matches!(end, ReceiveError::CutOff { .. }) {
                    is_cut_off = true;
                    end = follower.end(&world, &source);
                }
                assert!(
                    matches!(end, ReceiveError::Ended { published } if published.get() == source.newest()),
                    "{end}"
                );
                // What was not read before the node was gone is lost with it.
                let is_there = (reach, delivery) != (Reach::Fetched, Delivery::Pull);
                assert!(!is_there || !is_cut_off, "{reach:?} {delivery}");
                let is_told = is_cut_off || !follower.subscriber.suspects().is_empty();
                assert!(is_told && !is_there || follower.has_all(&source), "{:?}", follower.keys);
            }
        });
    }
}

/// Every datagram of the last event is lost: the next heartbeats name its sequence.
#[test]
fn loss_of_the_notice_of_the_last_event_is_found_within_two_heartbeats() {
    each_seed(SEEDS / 10, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let subscribing = world.node("subscribing", false);
        let (mut random, mut source) = (Random::new(seed), Source::new(&publishing));
        let mut follower = Follower::open(&subscribing, Delivery::Pull, true);
        let wait_for = |follower: &mut Follower, source: &Source, is_done: &dyn Fn(&Follower) -> bool| {
            let began_ns = world.network.clock().monotonic_ns();
            while !is_done(follower) {
                world.turn();
                follower.take(source).expect("no end");
                world.network.clock().advance(100_000);
                assert!(world.network.clock().monotonic_ns() - began_ns < 10_000_000_000, "in vain");
            }
            world.network.clock().monotonic_ns() - began_ns
        };
        let has_channel = |follower: &Follower| follower.subscriber.notice_path() == NoticePath::Multicast;
        for _ in 0..10 {
            wait_for(&mut follower, &source, &has_channel);
            (0..1 + random.below(3)).for_each(|_| source.publish(&mut random));
            let newest = source.newest();
            wait_for(&mut follower, &source, &|follower| follower.subscriber.last().get() == newest);

            let lost = DatagramFaults { lose_permille: 1000, ..DatagramFaults::default() };
            world.network.set_datagram_faults(lost);
            while source.newest() == newest {
                source.publish(&mut random);
            }
            (0..50).for_each(|_| world.turn());
            world.network.set_datagram_faults(DatagramFaults::default());
            let newest = source.newest();
            let waited_ns =
                wait_for(&mut follower, &source, &|follower| follower.subscriber.last().get() == newest);
            assert!(waited_ns <= 2 * limits::HEARTBEAT_INTERVAL_NS, "{waited_ns} ns");
        }
    });
}
