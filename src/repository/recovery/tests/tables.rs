//! Tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    CONTINUED, Continued, Random, Scenario, TOPIC, kill_after_each_word, payload, recovered, region,
};
use crate::id::{Epoch, Sequence};
use crate::layout::header::{HOT_SEQUENCE, StaticHeader};
use crate::layout::table::{PRESENT, SLOT_CRC, Stamp, TableGeometry};
use crate::memory::Region;
use crate::repository::table::{TableReader, TableWriter};
use crate::repository::{Reader as _, Recover as _, Writer as _};

const LEN_MAX: usize = 60;
const KEY_LEN: usize = 3;

/// The value of each key, and the commit that published it.
type Map = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

struct Tables {
    writer: TableWriter,
    region: Arc<Region>,
    line: StaticHeader,
    reader: TableReader,
    geometry: TableGeometry,
    /// What it is after each commit.
    history: BTreeMap<u64, Map>,
    received: Map,
    /// The cells and stamps of entries that are lost.
    lost: BTreeSet<(usize, u64)>,
}

impl Tables {
    /// Notes the entries that no commit has.
    fn note_lost(&mut self, newest: Sequence) {
        for cell in 0..self.geometry.capacity() {
            for slot in 0..2 {
                let stamp = self.region.load(self.geometry.slot_offset(cell, Stamp::new(slot)));
                if Stamp::new(stamp).sequence() > newest {
                    self.lost.insert((cell, stamp));
                }
            }
        }
    }

    /// Whether a version names an entry that was lost: the next one with its sequence has another revision.
    fn names_lost(&self) -> bool {
        let version = |cell: usize| self.region.load(self.geometry.version_offset(cell));
        (0..self.geometry.capacity()).any(|cell| self.lost.contains(&(cell, version(cell))))
    }
}

pub(super) fn value(sequence: u64, key: &[u8]) -> Vec<u8> {
    payload(sequence * 1000 + u64::from(key[KEY_LEN - 1]), LEN_MAX - KEY_LEN - 1)
}

/// Puts an entry into the room, and stages it.
pub(super) fn stage(writer: &mut TableWriter, key: &[u8], value: &[u8], now_ns: u64) -> bool {
    let entry = [key, &[PRESENT], value].concat();
    writer.room()[..entry.len()].copy_from_slice(&entry);
    writer.stage_filled((key.len(), entry.len()), None, now_ns).is_ok()
}

/// Applies every change to a map.
pub(super) fn take_all(reader: &mut TableReader, region: &Region, map: &mut Map) {
    while let Some(taken) = reader.poll(region).expect("entries are whole") {
        let changed = reader.changed_key().expect("a table has keys");
        let value = reader.verified(taken);
        let (key, rest) = value.payload.split_at(changed.key_len);
        if changed.is_present {
            map.insert(key.to_vec(), (value.meta.sequence.get(), rest[1..].to_vec()));
        } else {
            map.remove(key);
        }
    }
}

impl Scenario for Tables {
    fn begin() -> Self {
        let geometry = TableGeometry::new(6, KEY_LEN, LEN_MAX).expect("a geometry");
        let (region, line) = region(geometry);
        let writer = TableWriter::new(Arc::clone(&region), geometry, &line);
        let reader = TableReader::new(geometry, (Epoch::FIRST, TOPIC), Sequence::NONE);
        let history = BTreeMap::from([(0, Map::new())]);
        Self { writer, region, line, reader, geometry, history, received: Map::new(), lost: BTreeSet::new() }
    }

    fn publish(&mut self, number: u64) {
        let mut random = Random::new(number);
        let (before, sequence) = (self.writer.last().get(), self.writer.last().get() + 1);
        let mut map = self.history[&before].clone();
        if number % 5 == 4 {
            stage(&mut self.writer, b"k-1", b"given up", sequence);
            self.writer.discard();
        }
        for _ in 0..=number % 3 {
            let key = format!("k-{}", random.below(8)).into_bytes();
            if random.once_in(3) {
                self.writer.room()[..KEY_LEN].copy_from_slice(&key);
                assert_eq!(self.writer.stage_removal(KEY_LEN, sequence), map.remove(&key).is_some());
            } else if stage(&mut self.writer, &key, &value(sequence, &key), sequence) {
                map.insert(key.clone(), (sequence, value(sequence, &key)));
            } else {
                assert!(!map.contains_key(&key));
            }
        }
        if self.writer.commit(sequence).is_some() {
            self.history.insert(sequence, map);
        }
    }

    fn newest(&self) -> u64 {
        self.writer.last().get()
    }

    fn receive(&mut self) {
        take_all(&mut self.reader, &self.region, &mut self.received);
        let last = self.reader.last().get();
        assert_eq!(self.received, self.history[&last]);
    }

    fn recover(&mut self) {
        self.note_lost(Sequence::new(self.region.load(HOT_SEQUENCE)));
        self.writer = recovered(&self.region, self.geometry, &self.line, None);
        let newest = self.writer.last();
        assert!(newest >= self.reader.last(), "a subscriber has received what is lost");
        assert_eq!(self.writer.keys(), self.history[&newest.get()].len());
        self.history.retain(|sequence, _| *sequence <= newest.get());
    }

    fn check_held(&self) {
        assert!(!self.names_lost(), "two entries have the same stamp");
        let mut late = TableReader::new(self.geometry, (Epoch::FIRST, TOPIC), Sequence::NONE);
        let mut held = Map::new();
        take_all(&mut late, &self.region, &mut held);
        assert_eq!(held, self.history[&self.newest()]);
    }
}

#[test]
fn table_of_a_killed_writer_is_that_of_its_last_commit() {
    kill_after_each_word::<Tables>(40);
}

#[test]
fn damaged_table_is_refused() {
    let mut world = Tables::begin();
    (0..9).for_each(|number| world.publish(number));
    let recover = |world: &Tables| {
        TableWriter::recover(Arc::clone(&world.region), world.geometry, &world.line, &CONTINUED)
            .map(|writer| writer.last())
    };
    assert_eq!(recover(&world), Ok(world.writer.last()));
    world.region.store(HOT_SEQUENCE, world.writer.last().get() + 1);
    assert_eq!(recover(&world).unwrap_err().offset, HOT_SEQUENCE);
    world.region.store(HOT_SEQUENCE, world.writer.last().get());
    let used = |cell: &usize| world.region.load(world.geometry.version_offset(*cell)) != 0;
    let cell = (0..6).find(used).expect("a cell");
    let version = world.geometry.version_offset(cell);
    let slot = world.geometry.slot_offset(cell, Stamp::new(world.region.load(version)));
    let check = world.region.load(slot + SLOT_CRC);
    world.region.store(slot + SLOT_CRC, check ^ 1);
    assert_eq!(recover(&world).unwrap_err().offset, version);
    world.region.store(slot + SLOT_CRC, check);
    // The entry before it must not pass for the newest one.
    for cell in (0..6).filter(used) {
        let version = world.geometry.version_offset(cell);
        let right = world.region.load(version);
        world.region.store(version, right ^ 1 << 50);
        assert_eq!(recover(&world).unwrap_err().offset, version);
        world.region.store(version, right);
    }
    world.region.store(HOT_SEQUENCE, 1);
    assert!(recover(&world).is_err(), "the table of the first commit is gone");
    // What was refused is as it was.
    world.region.store(HOT_SEQUENCE, world.writer.last().get());
    assert_eq!(recover(&world), Ok(world.writer.last()));
}

/// Its publisher began after the values of an earlier repository, and was killed before its first commit.
#[test]
fn table_without_a_commit_goes_on_after_the_sequence_it_began_after() {
    let mut world = Tables::begin();
    let after = Sequence::new(5);
    let continued = Continued { after, ..CONTINUED };
    for commits in 0..2 {
        let writer = TableWriter::recover(Arc::clone(&world.region), world.geometry, &world.line, &continued);
        world.writer = writer.expect("a repository");
        assert_eq!(world.writer.last().get(), after.get() + commits);
        assert!(stage(&mut world.writer, b"k-1", b"value", 1) && world.writer.commit(1).is_some());
    }
}

/// Readers that begin would not find its entries.
#[test]
fn page_that_shows_less_than_its_entries_is_repaired() {
    let mut world = Tables::begin();
    (0..9).for_each(|number| world.publish(number));
    let page = world.geometry.page_offset(0);
    let right = world.region.load(page);
    for damaged in [0, 1, right - 1, right + 1, u64::MAX] {
        world.region.store(page, damaged);
        world.recover();
        assert_eq!(world.region.load(page), right);
        world.check_held();
    }
}
