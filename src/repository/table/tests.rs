//! Tables against a map that keeps every commit.

use std::collections::BTreeMap;
use std::sync::Arc;

mod damage;
mod fetched;
mod forged;
mod misread;
mod recalled;
mod refused;
mod resumed;
mod threads;

use super::*;
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::Geometry;
use crate::layout::table::{ABSENT, PRESENT, Stamp, TableGeometry};
use crate::memory::{Protection, Region};
use crate::repository::{ChangedKey, Reader as _, Taken, Verified, Writer as _};
use crate::testkit::random::{Random, amount, each_seed};

const TOPIC: TopicId = TopicId::new(7);
const KEY_LEN_MAX: usize = 12;
const LEN_MAX: usize = 60;

/// The state of a key after a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) value: Vec<u8>,
    pub(crate) number: u64,
    pub(crate) sequence: u64,
}

pub(crate) type Table = BTreeMap<Vec<u8>, Held>;

/// A writer and what it has committed.
struct World {
    writer: TableWriter,
    region: Arc<Region>,
    /// With what is staged.
    model: Table,
    /// After each commit.
    history: Vec<Table>,
    random: Random,
    keys: u64,
    /// Stages and commits as the table of a feed does: with gaps between sequences, values again, and commits given up.
    is_of_feed: bool,
    /// The sequence of what is staged next.
    next: u64,
}

impl World {
    fn new(capacity: usize, keys: u64, seed: u64) -> Self {
        let geometry = TableGeometry::new(capacity, KEY_LEN_MAX, LEN_MAX).unwrap();
        let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
        let line = Geometry::from(geometry).static_header(Epoch::FIRST, TOPIC, 0);
        let writer = TableWriter::new(Arc::clone(&region), geometry, &line);
        let (model, history, random) = (Table::new(), vec![Table::new()], Random::new(seed));
        let is_of_feed = seed.is_multiple_of(4);
        Self { writer, region, model, history, random, keys, is_of_feed, next: 1 }
    }

    fn reader(&self) -> TableReader {
        TableReader::new(self.writer.geometry(), (Epoch::FIRST, TOPIC), self.writer.last())
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.random.below(self.keys);
        format!("k{number}").into_bytes()
    }

    /// Stages a random change.
    fn stage(&mut self) {
        let key = self.key();
        if self.is_of_feed {
            self.next += self.random.below(3);
            self.writer.set_next(Sequence::new(self.next));
        }
        let next = self.next;
        let room = self.writer.room();
        room[..key.len()].copy_from_slice(&key);
        if self.is_of_feed && self.random.once_in(4) {
            let held = self.model.get_mut(&key);
            let newest = held.as_ref().map(|held| Sequence::new(held.sequence));
            assert_eq!(self.writer.find(key.len()).map(|(_, newest)| newest), newest);
            assert_eq!(self.writer.stage_again(key.len(), next), held.is_some());
            held.into_iter().for_each(|held| (held.number, held.sequence) = (held.number + 1, next));
            return;
        }
        if self.random.once_in(5) {
            let was_there = self.writer.stage_removal(key.len(), next);
            assert_eq!(was_there, self.model.remove(&key).is_some());
            return;
        }
        let len = self.random.index(LEN_MAX - key.len());
        let value: Vec<u8> = (0..len).map(|_| self.random.next().to_le_bytes()[0]).collect();
        let room = self.writer.room();
        room[key.len() + 1..][..len].copy_from_slice(&value);
        let staged = self.writer.stage_filled((key.len(), key.len() + 1 + len), None, next);
        if staged == Err(Unplaced::Full) {
            assert!(!self.model.contains_key(&key));
            return;
        }
        assert_eq!(staged, Ok(()));
        let held = self.model.entry(key).or_insert(Held { value: vec![], number: 0, sequence: 0 });
        *held = Held { value, number: held.number + 1, sequence: next };
    }

    fn commit(&mut self) {
        if self.writer.commit(self.next).is_some() {
            assert_eq!(self.writer.last().get(), self.next);
            self.history.resize(index(self.next + 1), self.model.clone());
            self.next += 1;
        }
        assert_eq!(self.writer.keys(), self.model.len());
    }

    /// Gives up what is staged.
    fn discard(&mut self) {
        self.writer.discard();
        self.model.clone_from(self.history.last().unwrap());
        self.next = self.history.len() as u64;
        assert_eq!(self.writer.keys(), self.model.len());
    }

    /// Publishes a random commit.
    fn publish(&mut self) {
        let count = if self.random.once_in(3) { 1 + self.random.below(12) } else { 1 };
        (0..count).for_each(|_| self.stage());
        if self.is_of_feed && self.random.once_in(4) {
            return self.discard();
        }
        self.commit();
    }
}

/// What a subscriber has received.
#[derive(Debug, Default)]
pub(crate) struct Replica {
    pub(crate) table: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    pub(crate) granted: u64,
    /// The time of publishing is this and the sequence, ns.
    pub(crate) base_ns: u64,
    pub(crate) received: u64,
    pub(crate) replaced: u64,
}

impl Replica {
    /// Checks a change against the history, and applies it.
    pub(crate) fn apply(&mut self, history: &[Table], value: &Verified<'_>, changed: ChangedKey) {
        let (key, rest) = value.payload.split_at(changed.key_len);
        let (presence, bytes) = rest.split_first().unwrap();
        let sequence = value.meta.sequence.get();
        assert!(index(sequence) < history.len(), "{sequence} is not committed");
        let published = value.meta.published_ns - self.base_ns;
        let is_right = published == sequence || !changed.is_present && published > sequence;
        assert!(is_right, "published at {published}: {value:?}");
        let last = self.table.get(key).map(|(_, number)| *number);
        if *presence == ABSENT {
            assert!(!changed.is_present && bytes.is_empty());
            let last = last.expect("a removed key was received");
            let is_readded = changed.number == value.conflated + 1;
            assert!(is_readded || changed.number == last + value.conflated + 1);
            self.table.remove(key);
        } else {
            assert!(*presence == PRESENT && changed.is_present);
            let held = &history[index(sequence)][key];
            assert_eq!((&held.value[..], held.number, held.sequence), (bytes, changed.number, sequence));
            if changed.is_new {
                let first = changed.number - value.conflated;
                let is_old = history[index(self.granted)].contains_key(key);
                assert!(first == 1 || is_old && value.conflated == 0, "{changed:?} {value:?}");
            } else {
                assert_eq!(changed.number, last.unwrap() + value.conflated + 1);
            }
            self.table.insert(key.to_vec(), (bytes.to_vec(), changed.number));
        }
        self.received += 1;
        self.replaced += value.conflated;
    }

    fn poll(&mut self, reader: &mut TableReader, world: &World) -> bool {
        match reader.poll(&world.region).unwrap() {
            // What was committed during the pass is left to the next one.
            None => reader.has_more(),
            Some(taken) => {
                self.take(reader, world, taken);
                true
            }
        }
    }

    fn take(&mut self, reader: &TableReader, world: &World, taken: Taken) {
        self.apply(&world.history, &reader.verified(taken), reader.changed());
    }

    /// Checks that it has the same keys and values.
    pub(crate) fn check(&self, table: &Table, is_wanted: impl Fn(&[u8]) -> bool) {
        let wanted = table.iter().filter(|(key, _)| is_wanted(key));
        let expected: BTreeMap<_, _> =
            wanted.map(|(key, held)| (key.clone(), (held.value.clone(), held.number))).collect();
        assert_eq!(self.table, expected);
    }
}

/// Takes a snapshot of mapped memory.
fn snapshot(reader: &mut TableReader, memory: &Region) -> (u64, Table) {
    let mut scan = SnapshotScan::new(reader);
    loop {
        if let Some(sequence) = scan.step(reader, memory, None) {
            return (sequence.get(), table_of(&scan, reader));
        }
        assert!(scan.passes() < 100);
    }
}

pub(crate) fn table_of(scan: &SnapshotScan, reader: &TableReader) -> Table {
    let entries = scan.entries(reader).map(|entry| {
        let (key, rest) = entry.bytes.split_at(entry.key_len);
        let held =
            Held { value: rest[1..].to_vec(), number: entry.number, sequence: entry.meta.sequence.get() };
        (key.to_vec(), held)
    });
    entries.collect()
}

fn look_up(reader: &mut TableReader, memory: &Region, key: &[u8]) -> Option<Vec<u8>> {
    for _ in 0..2 {
        if let Some(cell) = reader.cell_of(key)
            && let Looked::Found(taken) =
                reader.look_up(CellMemory::Mapped(memory), (cell, key), false).unwrap()
        {
            return Some(reader.verified(taken).payload[key.len() + 1..].to_vec());
        }
        let mut scan = Scan::default();
        reader.begin_keys(&mut scan);
        while reader.step_keys(&mut scan, memory, true).is_none() {}
    }
    None
}

/// A small number as an index.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

fn is_odd(key: &[u8]) -> bool {
    key.last().is_some_and(|digit| digit % 2 == 1)
}

#[test]
fn changes_snapshots_and_lookups_agree_with_a_map() {
    each_seed(amount(2000, 20_000), |seed| {
        let mut world = World::new(1 + index(seed % 40), 1 + seed % 50, seed);
        (0..seed % 7 * 10).for_each(|_| world.publish());
        let replica = || Replica { granted: world.writer.last().get(), ..Replica::default() };
        let (mut all, mut some) = ((world.reader(), replica()), (world.reader(), replica()));
        some.0.set_interest(Interest::Those(Box::new(is_odd)));
        for _ in 0..60 {
            let publishes = world.random.below(6);
            (0..publishes).for_each(|_| world.publish());
            if world.random.once_in(4) {
                world.stage();
            }
            let committed = world.history.last().unwrap().clone();
            for (reader, replica) in [&mut all, &mut some] {
                if world.random.once_in(3) {
                    let (sequence, table) = snapshot(reader, &world.region);
                    assert_eq!(sequence, world.writer.last().get());
                    let wants = |key: &[u8]| reader.wants(key);
                    let expected: Table =
                        committed.clone().into_iter().filter(|(key, _)| wants(key)).collect();
                    assert_eq!(table, expected);
                }
                let key = format!("k{}", world.random.below(world.keys)).into_bytes();
                if world.random.once_in(3) {
                    let found = look_up(reader, &world.region, &key);
                    assert_eq!(found, committed.get(&key).map(|held| held.value.clone()));
                }
                match world.random.below(3) {
                    0 => while replica.poll(reader, &world) {},
                    1 => _ = replica.poll(reader, &world),
                    _ => {}
                }
            }
        }
        world.commit();
        while all.1.poll(&mut all.0, &world) {}
        while some.1.poll(&mut some.0, &world) {}
        all.1.check(&world.model, |_| true);
        some.1.check(&world.model, is_odd);
        for (reader, replica) in [&all, &some] {
            let counts = reader.counts();
            assert_eq!((counts.received, counts.conflated), (replica.received, replica.replaced));
            assert_eq!(reader.last(), world.writer.last());
            assert_eq!(reader.keys().count(), replica.table.len());
        }
    });
}

#[test]
fn another_interest_brings_what_was_not_received_before() {
    let mut world = World::new(30, 20, 3);
    (0..50).for_each(|_| world.publish());
    let (mut reader, mut replica) = (world.reader(), Replica::default());
    replica.granted = world.writer.last().get();
    reader.set_interest(Interest::Those(Box::new(is_odd)));
    while replica.poll(&mut reader, &world) {}
    replica.check(&world.model, is_odd);
    reader.set_interest(Interest::All);
    while replica.poll(&mut reader, &world) {}
    replica.check(&world.model, |_| true);
    assert_eq!(replica.received, world.model.len() as u64, "nothing twice");
    reader.set_interest(Interest::Those(Box::new(|_| false)));
    world.publish();
    assert!(!replica.poll(&mut reader, &world) && reader.keys().next().is_none());
}

#[test]
fn a_commit_that_was_interrupted_stays_invisible() {
    for words in 0..3 {
        let mut world = World::new(8, 4, 1);
        (0..20).for_each(|_| world.publish());
        let committed = world.history.last().unwrap().clone();
        let mut before = world.reader();
        while before.poll(&world.region).unwrap().is_some() {}
        // The writer's process ends between the words of a commit.
        let held = Region::allocate(world.region.len(), Protection::PeersWrite).unwrap();
        world.region.write_across(0, &held, 0, world.region.len());
        (0..5).for_each(|_| world.stage());
        world.commit();
        let geometry = world.writer.geometry();
        let slots = geometry.cell_range(0).offset;
        world.region.write_across(slots, &held, slots, geometry.region_len() - slots);
        let versions = geometry.version_offset(0);
        world.region.write_across(versions, &held, versions, words * 2 * 8);
        assert_eq!(before.poll(&held).unwrap().map(|taken| before.verified(taken).meta), None);
        assert!(!before.has_more());
        let mut reader = world.reader();
        let (sequence, table) = snapshot(&mut reader, &held);
        assert_eq!((sequence, &table), (world.history.len() as u64 - 2, &committed));
        let mut received = 0;
        while let Some(taken) = reader.poll(&held).unwrap() {
            assert!(reader.verified(taken).meta.sequence < world.writer.last());
            received += 1;
        }
        assert_eq!(received, committed.len());
    }
}

/// The cell of a key gets another key, and then a third entry, while a snapshot is between two steps.
#[test]
fn key_whose_cell_is_reused_is_not_left_out_of_a_snapshot() {
    let mut world = World::new(1, 1, 1);
    let change = |world: &mut World, key: u8, is_removal: bool| {
        let next = world.writer.last().get() + 1;
        world.writer.room()[0] = key;
        if is_removal {
            assert!(world.writer.stage_removal(1, next));
        } else {
            world.writer.stage_filled((1, 2), None, next).unwrap();
        }
    };
    change(&mut world, b'a', false);
    world.writer.commit(1);
    let mut reader = world.reader();
    let mut scan = SnapshotScan::new(&reader);
    // Hot line, pages, versions.
    (0..3).for_each(|_| assert!(scan.step(&mut reader, &world.region, None).is_none()));
    change(&mut world, b'a', true);
    world.writer.commit(2);
    change(&mut world, b'b', false);
    world.writer.commit(3);
    // The next entry is being written.
    let geometry = world.writer.geometry();
    let version = Stamp::new(world.region.load(geometry.version_offset(0)));
    world.region.store(geometry.slot_offset(0, version.other()), 0);
    while scan.passes() == 0 {
        let complete = scan.step(&mut reader, &world.region, None);
        assert_eq!(complete, None, "{:?}", table_of(&scan, &reader));
    }
    let sequence = loop {
        if let Some(sequence) = scan.step(&mut reader, &world.region, None) {
            break sequence.get();
        }
    };
    assert_eq!((sequence, table_of(&scan, &reader).keys().collect::<Vec<_>>()), (3, vec![&b"b".to_vec()]));
}

#[test]
fn keys_have_the_declared_capacity_and_length() {
    let mut world = World::new(2, 1, 1);
    let mut put = |key: &[u8]| {
        world.writer.room()[..key.len()].copy_from_slice(key);
        world.writer.stage_filled((key.len(), key.len() + 1), None, 0)
    };
    assert_eq!(put(&[1; KEY_LEN_MAX + 1]), Err(Unplaced::KeyTooLong));
    assert_eq!([put(b"a"), put(b""), put(b"a")], [Ok(()); 3]);
    assert_eq!(put(b"b"), Err(Unplaced::Full));
    world.writer.commit(1);
    let remove = |writer: &mut TableWriter, key: &[u8]| {
        writer.room()[..key.len()].copy_from_slice(key);
        writer.stage_removal(key.len(), 0)
    };
    assert!(remove(&mut world.writer, b"a") && !remove(&mut world.writer, b"a"));
    let put = |writer: &mut TableWriter| {
        writer.room()[0] = b'b';
        writer.stage_filled((1, 1 + 1), None, 0)
    };
    assert_eq!(put(&mut world.writer), Err(Unplaced::Full), "the cell is free after the commit");
    world.writer.commit(2);
    assert_eq!(put(&mut world.writer), Ok(()));
    let (_, table) = snapshot(&mut world.reader(), &world.region);
    assert_eq!(table.keys().collect::<Vec<_>>(), [b""]);
}
