//! The writes to a landing region of a table, its reader, and a map that keeps every commit.

use std::sync::Arc;

use super::*;
use crate::clock::{Clock as _, Timekeeper};
use crate::fabric::WakeQueue;
use crate::id::{Incarnation, KindOptions, NodeName};
use crate::payload::encode_unchecked;
use crate::publisher::tests::Wire;
use crate::publisher::{
    CopyBudget, LenLimit, Numbering, PublishError, PublishedTopic, TableOptions, TablePublisher, TopicMemory,
    TopicParts,
};
use crate::repository::table::tests::{Held, Replica, Table, index, table_of};
use crate::repository::table::{CellMemory, Interest, Looked, SnapshotScan, TableReader};
use crate::repository::{Reader as _, WriteOrder};
use crate::sync::atomic::AtomicBool;
use crate::testkit::clock::VirtualClock;
use crate::testkit::fabric::{Network, Reach};
use crate::testkit::random::{Random, amount, each_seed};

/// Bytes of the longest value, without its length.
const LEN_MAX: usize = 48;
/// Bytes of a key, the presence byte, and the length of a value.
const OVERHEAD: usize = 8 + 1 + 8;

/// A publisher, its model, the wire to one landing region, and its reader.
struct World {
    publisher: TablePublisher<u64, Vec<u8>>,
    topic: Arc<PublishedTopic>,
    clock: Arc<VirtualClock>,
    /// With what is staged.
    model: Table,
    /// After each commit.
    history: Vec<Table>,
    random: Random,
    keys: u64,
    subscriber: Option<Follower>,
}

/// A push subscriber.
struct Follower {
    wire: Wire,
    closed: Arc<AtomicBool>,
    order: WriteOrder,
    reader: TableReader,
    replica: Replica,
    is_wanted: fn(&[u8]) -> bool,
    now_ns: u64,
}

fn all(_: &[u8]) -> bool {
    true
}

fn is_odd(key: &[u8]) -> bool {
    key[0] % 2 == 1
}

impl World {
    fn new(capacity: usize, keys: u64, seed: u64) -> Self {
        let name: NodeName = "publishing".parse().unwrap();
        let fabric = Network::new(seed, Reach::Mapped).fabric(&name);
        let clock = Arc::new(VirtualClock::default());
        clock.advance(1);
        let parts = TopicParts {
            fabric: &fabric,
            time: Arc::new(Timekeeper::new(Arc::<VirtualClock>::clone(&clock))),
            lifespan_ns: 0,
            waker: Arc::new(WakeQueue::new().unwrap()).keyed(0),
            node: Arc::new(()),
            host: "host",
            name: "topic".parse().unwrap(),
            numbering: Numbering::new(Incarnation::new(seed | 1).unwrap()),
            memory: TopicMemory::default(),
            payload_len_max: OVERHEAD + LEN_MAX,
            limit: LenLimit::Entry,
            gating: None,
            samples: &[],
        };
        let options = TableOptions { capacity, key_len_max: Some(8) };
        let (publisher, topic) = TablePublisher::open(parts, options).unwrap();
        let (model, history) = (Table::new(), vec![Table::new()]);
        Self { publisher, topic, clock, model, history, random: Random::new(seed), keys, subscriber: None }
    }

    /// Adds the push subscriber.
    fn join(&mut self, has_word_order: bool, seed: u64) {
        let geometry = self.topic.geometry.table().unwrap();
        let wire = Wire::new(has_word_order, geometry.region_len(), seed);
        let closed = Arc::default();
        let granted = self.topic.newest();
        let names = (self.topic.epoch, self.topic.topic_id);
        let mut reader = TableReader::new(geometry, names, granted);
        let is_wanted = if seed.is_multiple_of(2) { all } else { is_odd };
        if !seed.is_multiple_of(2) {
            reader.set_interest(Interest::Those(Box::new(is_odd)));
        }
        let budget = self.budget();
        assert!(self.topic.accept(Box::new(wire.clone()), &closed, KindOptions::default(), &budget));
        let base_ns = VirtualClock::default().realtime_ns();
        let replica = Replica { granted: granted.get(), base_ns, ..Replica::default() };
        let order = if has_word_order { WriteOrder::Words } else { WriteOrder::Writes };
        self.subscriber = Some(Follower { wire, closed, order, reader, replica, is_wanted, now_ns: 0 });
    }

    /// A budget of a few bytes, or of more than there are.
    fn budget(&mut self) -> CopyBudget {
        let budget = CopyBudget::new();
        if self.random.once_in(2) {
            budget.set(self.random.below(2000));
        }
        budget
    }

    /// Stages a random change.
    fn stage(&mut self) {
        let key = self.random.below(self.keys);
        let encoded = encode_unchecked(&key).unwrap();
        if self.random.once_in(5) {
            let was_there = self.publisher.stage_removal(&key).unwrap();
            assert_eq!(was_there, self.model.remove(&encoded).is_some());
            return;
        }
        let len = self.random.index(LEN_MAX + 1);
        let value: Vec<u8> = (0..len).map(|_| self.random.next().to_le_bytes()[0]).collect();
        match self.publisher.stage(&key, &value) {
            Ok(()) => {}
            Err(PublishError::Full { .. }) => return assert!(!self.model.contains_key(&encoded)),
            Err(error) => panic!("{error}"),
        }
        let held = self.model.entry(encoded).or_insert(Held { value: vec![], number: 0, sequence: 0 });
        let (value, sequence) = (encode_unchecked(&value).unwrap(), self.history.len() as u64);
        *held = Held { value, number: held.number + 1, sequence };
    }

    fn commit(&mut self) {
        let before = self.publisher.newest();
        if self.publisher.commit() != before {
            self.history.push(self.model.clone());
            self.clock.advance(1);
        }
        assert_eq!(self.publisher.newest().get() + 1, self.history.len() as u64);
        assert_eq!(self.publisher.len(), self.model.len());
    }

    /// Publishes a random commit.
    fn publish(&mut self) {
        let count = if self.random.once_in(3) { 1 + self.random.below(2 * self.keys.min(40)) } else { 1 };
        (0..count).for_each(|_| self.stage());
        self.commit();
    }

    fn tend(&mut self) {
        let budget = self.budget();
        self.topic.landings.tend(&budget);
    }

    /// Receives the next change, if there is one.
    fn receive(&mut self) -> bool {
        let Follower { wire, order, reader, replica, now_ns, .. } = self.subscriber.as_mut().unwrap();
        let target = Arc::clone(&wire.0.lock().target);
        match reader.follow(&target, *order, || *now_ns).unwrap() {
            None => reader.has_more(),
            Some(taken) => {
                replica.apply(&self.history, &reader.verified(taken), reader.changed());
                true
            }
        }
    }

    /// Takes a snapshot, if that is possible while nothing arrives, and checks it. Returns its commit.
    fn check_snapshot(&mut self) -> Option<u64> {
        let Follower { wire, reader, is_wanted, now_ns, .. } = self.subscriber.as_mut().unwrap();
        let target = Arc::clone(&wire.0.lock().target);
        let mut scan = SnapshotScan::new(reader);
        while scan.passes() < 20 {
            if let Some(sequence) = scan.step(reader, &target, Some(*now_ns)) {
                let mut expected = self.history[index(sequence.get())].clone();
                expected.retain(|key, _| is_wanted(key));
                let found = table_of(&scan, reader);
                let differing: Vec<_> = expected
                    .keys()
                    .chain(found.keys())
                    .filter(|key| expected.get(*key) != found.get(*key))
                    .map(|key| (key, expected.get(key), found.get(key)))
                    .collect();
                assert!(differing.is_empty(), "the snapshot at {sequence}: {differing:?}");
                return Some(sequence.get());
            }
        }
        None
    }

    /// Looks up a random key, and checks the value.
    fn check_lookup(&mut self) {
        let key = encode_unchecked(&self.random.below(self.keys)).unwrap();
        let Follower { wire, reader, .. } = self.subscriber.as_mut().unwrap();
        let target = Arc::clone(&wire.0.lock().target);
        let Some(cell) = reader.cell_of(&key) else { return };
        if let Looked::Found(taken) = reader.look_up(CellMemory::Mapped(&target), (cell, &key), true).unwrap()
        {
            let found = reader.verified(taken);
            let held = &self.history[index(found.meta.sequence.get())][&key];
            assert_eq!(found.payload[key.len() + 1..], held.value);
        }
    }

    /// Publishes no more; everything arrives.
    fn settle(&mut self) {
        let Follower { wire, closed, .. } = self.subscriber.as_mut().unwrap();
        for _ in 0..self.model.len() + 20 {
            self.topic.landings.tend(&CopyBudget::new());
            wire.complete();
            if !self.topic.landings.owe(closed) {
                break;
            }
        }
        assert!(!self.topic.landings.owe(closed));
        while self.receive() {}
        let newest = self.publisher.newest();
        assert_eq!(self.check_snapshot(), Some(newest.get()));
        let Follower { reader, replica, is_wanted, .. } = self.subscriber.as_mut().unwrap();
        replica.check(self.history.last().unwrap(), *is_wanted);
        let counts = reader.counts();
        assert_eq!((counts.received, counts.conflated), (replica.received, replica.replaced));
        assert_eq!((counts.rejected, reader.suspects().count(), reader.last()), (0, 0, newest));
    }

    /// Everything in random order: publishes, words on the wire, acknowledgements, the node, the reader.
    fn play(&mut self, steps: u64, words: usize) {
        for _ in 0..steps {
            let wire = self.subscriber.as_ref().unwrap().wire.clone();
            match self.random.below(10) {
                0 | 1 => self.publish(),
                2 => self.stage(),
                3 | 4 => drop(wire.place(1 + self.random.index(words))),
                5 => wire.acknowledge(),
                6 => self.tend(),
                7 => drop(self.receive()),
                8 => while self.receive() {},
                _ if self.random.once_in(2) => drop(self.check_snapshot()),
                _ => self.check_lookup(),
            }
        }
    }
}

#[test]
fn every_order_of_events_gives_committed_values_and_the_last_ones() {
    each_seed(amount(300, 10_000), |seed| {
        let (capacity, keys) = match seed % 10 {
            9 => (700, 900),
            _ => (1 + index(seed % 40), 1 + seed % 50),
        };
        let mut world = World::new(capacity, keys, seed);
        (0..seed % 7 * 10).for_each(|_| world.publish());
        world.join(seed % 3 == 0, seed);
        let words = 1 << world.random.below(12);
        for _ in 0..3 {
            world.play(100, words);
            world.settle();
        }
    });
}

/// Stages this value of a key.
fn stage_value(world: &mut World, key: u64, byte: u8) {
    let (value, sequence) = (vec![byte; 20], world.history.len() as u64);
    world.publisher.stage(&key, &value).unwrap();
    let held = world.model.entry(encode_unchecked(&key).unwrap());
    let held = held.or_insert(Held { value: vec![], number: 0, sequence: 0 });
    *held = Held { value: encode_unchecked(&value).unwrap(), number: held.number + 1, sequence };
}

/// The node writes a landing region while the publisher is between two words of a commit: a cell's newest version is not that of a
/// commit, and its page does not show yet that it has changed.
#[test]
fn commit_in_progress_hides_no_earlier_one_from_the_node() {
    let mut world = World::new(8, 8, 2);
    (0..4).for_each(|key| stage_value(&mut world, key, 1));
    world.commit();
    world.join(true, 2);
    world.settle();
    // More than may be in flight: the node gets the landing region.
    for (key, byte) in [(2, 2), (3, 2), (2, 3), (3, 3), (0, 2), (1, 2), (0, 3)] {
        stage_value(&mut world, key, byte);
        world.commit();
    }
    let region = Arc::clone(world.topic.registration.region());
    let page = world.topic.geometry.table().unwrap().page_offset(0);
    let words = [page, HOT_SEQUENCE].map(|offset| (offset, region.load(offset)));
    let before = world.publisher.newest().get() - 1;
    words.iter().for_each(|(offset, _)| region.store(*offset, before));
    let mut seen = 0;
    for _ in 0..10 {
        world.subscriber.as_ref().unwrap().wire.complete();
        world.topic.landings.tend(&CopyBudget::new());
        if world.check_snapshot() == Some(before) {
            seen += 1;
        }
    }
    assert_eq!(seen, 0);
    words.iter().for_each(|(offset, word)| region.store(*offset, *word));
    world.settle();
}

/// Sends everything of a publisher that has published no more. Returns whether the node is done with it.
fn send(world: &mut World) -> bool {
    let Follower { wire, closed, .. } = world.subscriber.as_ref().unwrap();
    for _ in 0..20 {
        world.topic.landings.tend(&CopyBudget::new());
        wire.complete();
    }
    !world.topic.landings.owe(closed)
}

/// The node fills the landing region meanwhile. The commit that gets the sequence was taken for written.
#[test]
fn landing_region_that_is_filled_while_the_table_seems_to_be_ahead_lacks_no_later_commit() {
    for (has_word_order, ahead) in [(true, 1 << 40), (false, 1 << 40), (true, 2), (false, 2)] {
        let mut world = World::new(8, 8, 2);
        (0..4).for_each(|key| stage_value(&mut world, key, 1));
        world.commit();
        let region = Arc::clone(world.topic.registration.region());
        region.store(HOT_SEQUENCE, ahead);
        world.join(has_word_order, 2);
        world.subscriber.as_mut().unwrap().replica.granted = 1;
        assert!(send(&mut world), "the node does not go on for ever");
        while world.receive() {}
        assert_eq!(
            (world.check_snapshot(), world.subscriber.as_ref().unwrap().replica.received),
            (Some(1), 4)
        );
        // One key, once, and then only another.
        for (key, byte) in [(0, 2), (1, 2), (1, 3)] {
            stage_value(&mut world, key, byte);
            world.commit();
            world.subscriber.as_ref().unwrap().wire.complete();
        }
        world.settle();
    }
}

/// The commits repair the line. The node has left the page of one of them, and finds the other.
#[test]
fn commits_during_a_pass_of_the_node_while_the_table_seemed_to_be_ahead_are_written() {
    for has_word_order in [true, false] {
        let mut world = World::new(600, 600, 2);
        (0..600).for_each(|key| stage_value(&mut world, key, 1));
        world.commit();
        world.topic.registration.region().store(HOT_SEQUENCE, 1 << 40);
        world.join(has_word_order, 2);
        world.subscriber.as_mut().unwrap().replica.granted = 1;
        // No more batches may be in flight: the pass goes on later.
        world.topic.landings.tend(&CopyBudget::new());
        for key in [0, 599] {
            stage_value(&mut world, key, 2);
            world.commit();
        }
        world.settle();
    }
}

/// It has the next sequence, and comes while the publisher cannot write it.
#[test]
fn commit_that_a_damaged_line_had_named_before_is_written() {
    for has_room in [false, true] {
        let mut world = World::new(36, 36, 2);
        (0..36).for_each(|key| stage_value(&mut world, key, 1));
        world.commit();
        let (geometry, source) =
            (world.topic.geometry.table().unwrap(), Arc::clone(&world.topic.registration));
        source.region().store(HOT_SEQUENCE, 2);
        let wire = Wire::new(true, geometry.region_len(), 2);
        let exposed = ExposedLanding {
            remote: Box::new(wire.clone()),
            closed: Arc::default(),
            options: KindOptions::default(),
            granted: Sequence::new(1),
            subscriber: None,
        };
        let (epoch, after) = (world.topic.epoch, Sequence::NONE);
        let repository = Repository { registration: Arc::clone(&source), geometry, epoch, after };
        let mut landing = TableLanding::open(exposed, &repository).unwrap();
        let mut left = u64::MAX;
        assert!(landing.catch_up(&source, &mut left));
        assert!(!landing.is_behind(2), "the node does not go on for ever");
        let commit = |world: &mut World| {
            stage_value(world, 0, 2);
            world.commit();
            assert_eq!(TableLanding::end(&source), 2);
        };
        if has_room {
            wire.complete();
            wire.posted();
            landing.remind(&source);
            assert!(!landing.catch_up(&source, &mut left) && wire.posted().is_empty());
            landing.remind(&source);
            commit(&mut world);
        } else {
            commit(&mut world);
            let (sequence, previous) = (Sequence::new(2), Sequence::new(1));
            landing
                .write(&source, &TableCommit { sequence, previous, published_ns: 1, cell: Some(0), len: 1 });
        }
        assert!(landing.is_behind(2));
        wire.complete();
        assert!(landing.catch_up(&source, &mut left));
        wire.complete();
        assert!(!landing.is_behind(2));
        assert_eq!(wire.0.lock().target.load(HOT_SEQUENCE), 2);
    }
}

/// Its page does not show it, and is not written again.
#[test]
fn entry_that_was_discarded_is_not_written_while_the_table_seems_to_be_ahead() {
    let mut world = World::new(600, 600, 2);
    (0..600).for_each(|key| stage_value(&mut world, key, 1));
    world.commit();
    stage_value(&mut world, 599, 2);
    world.commit();
    let region = Arc::clone(world.topic.registration.region());
    let offset = world.topic.geometry.table().unwrap().version_offset(0);
    let version = region.load(offset);
    world.publisher.stage(&0_u64, &vec![3; 20]).unwrap();
    region.store(offset, version | 1 << 50);
    region.store(HOT_SEQUENCE, 1 << 40);
    world.join(true, 2);
    world.subscriber.as_mut().unwrap().replica.granted = 2;
    send(&mut world);
    region.store(offset, version);
    region.store(HOT_SEQUENCE, 2);
    world.publisher.writer.discard();
    stage_value(&mut world, 598, 3);
    world.commit();
    world.settle();
}

/// A pass that meets it is not complete, and neither were all later ones.
#[test]
fn landing_region_is_complete_again_after_a_version_was_damaged() {
    for is_restored in [true, false] {
        let mut world = World::new(8, 8, 2);
        world.join(true, 2);
        (0..4).for_each(|key| stage_value(&mut world, key, 1));
        world.commit();
        world.settle();
        let geometry = world.topic.geometry.table().unwrap();
        let region = Arc::clone(world.topic.registration.region());
        let cell = world.subscriber.as_ref().unwrap().reader.cell_of(&encode_unchecked(&0_u64).unwrap());
        let offset = geometry.version_offset(cell.unwrap());
        let version = region.load(offset);
        region.store(offset, version | 1 << 50);
        // A commit of two cells is written in a pass.
        (1..3).for_each(|key| stage_value(&mut world, key, 2));
        world.commit();
        send(&mut world);
        if is_restored {
            region.store(offset, version);
        } else {
            stage_value(&mut world, 0, 3);
        }
        stage_value(&mut world, 1, 3);
        world.commit();
        world.settle();
    }
}

/// Only its value is lost, and that is reported: neither the one before it passes for the newest, nor do other keys wait for it.
#[test]
fn entry_whose_version_is_damaged_is_reported_to_a_push_subscriber() {
    // Another slot, another revision, another commit, a later one.
    for (has_word_order, bit) in
        [true, false].into_iter().flat_map(|order| [0, 3, 8, 50].map(|bit| (order, bit)))
    {
        let mut world = World::new(8, 8, 2);
        for byte in 1..4 {
            (0..4).for_each(|key| stage_value(&mut world, key, byte));
            world.commit();
        }
        let offset = world.topic.geometry.table().unwrap().version_offset(0);
        let region = Arc::clone(world.topic.registration.region());
        region.store(offset, region.load(offset) ^ 1 << bit);
        world.join(has_word_order, 2);
        assert!(send(&mut world), "{has_word_order} {bit}");
        let received = receive_late(&mut world);
        assert_eq!(received, (3, 1), "{has_word_order} {bit}");
        stage_value(&mut world, 1, 4);
        world.commit();
        world.subscriber.as_ref().unwrap().wire.complete();
        assert_eq!(receive_late(&mut world), (1, 0), "{has_word_order} {bit}");
        // Repaired by the next change.
        stage_value(&mut world, 0, 4);
        world.commit();
        assert!(send(&mut world), "{has_word_order} {bit}");
        assert_eq!(receive_late(&mut world), (1, 0), "{has_word_order} {bit}");
        assert_eq!(world.check_snapshot(), Some(5));
    }
}

/// Receives what has arrived, for longer than an entry may be in flight. Returns the number of changes, and of damaged entries.
fn receive_late(world: &mut World) -> (usize, usize) {
    let (mut received, mut damaged) = (0, 0);
    let Follower { wire, order, reader, replica, now_ns, .. } = world.subscriber.as_mut().unwrap();
    let target = Arc::clone(&wire.0.lock().target);
    for _ in 0..100 {
        *now_ns += 1 << 28;
        match reader.follow(&target, *order, || *now_ns) {
            Ok(None) => {}
            Ok(Some(taken)) => {
                received += 1;
                replica.apply(&world.history, &reader.verified(taken), reader.changed());
            }
            Err(_) => damaged += 1,
        }
    }
    (received, damaged)
}
