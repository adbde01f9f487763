//! A subscription that is lost and found again at any moment, at this publisher or at one that is behind, against the model.

use super::*;
use crate::id::Meta;
use crate::layout::header::HOT_SEQUENCE;
use crate::repository::table::arbiter::TableArbiter;
use crate::repository::table::entry::CellMemory;
use crate::repository::{Arbiter as _, Arrival, Verdict};

/// A table that may have room for fewer keys than there are.
fn small_world(seed: u64) -> World {
    World::new([6, 2, 5, 3, 4][index(seed % 5)], 5, seed)
}

fn is_odd(key: &[u8]) -> bool {
    key.last().is_some_and(|last| last % 2 == 1)
}

/// Copies of the table as it was, as publishers that are behind have it.
const COPIES_MAX: usize = 4;

/// A table, its copies, and a subscriber of one of them.
struct Outages {
    world: World,
    copies: Vec<Arc<Region>>,
    /// What the subscriber reads.
    memory: Arc<Region>,
    reader: TableReader,
    replica: Replica,
    /// The commits of the last values received, also of keys that were removed.
    last: BTreeMap<Vec<u8>, Sequence>,
    /// Only keys with odd numbers are wanted.
    is_choosy: bool,
    /// Copies may have wrong bits: in which, where, and which bit.
    is_damaging: bool,
    wrong: Vec<(Arc<Region>, usize, u64)>,
}

impl Outages {
    fn new(seed: u64, is_damaging: bool) -> Self {
        let world = small_world(seed);
        let (memory, reader) = (Arc::clone(&world.region), world.reader());
        let (replica, last) = Default::default();
        Self {
            world,
            copies: Vec::new(),
            memory,
            reader,
            replica,
            last,
            is_choosy: false,
            is_damaging,
            wrong: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.world.random.below(16) {
            0..=4 => self.world.publish(),
            5 => copy(&mut self.world, &mut self.copies),
            6 => self.resume(true),
            7 => self.resume(false),
            8 if self.world.random.once_in(4) => self.choose(),
            9 if self.is_damaging => self.damage(),
            10 => self.look_up(),
            _ => _ = self.receive(),
        }
    }

    /// Reads all entries, or that of a key, between two passes, which teaches the reader keys and cells.
    fn look_up(&mut self) {
        if self.world.random.once_in(2) {
            let key = self.world.key();
            if let Some(cell) = self.reader.cell_of(&key) {
                _ = self.reader.look_up(CellMemory::Mapped(&self.memory), (cell, &key), false);
            }
            return;
        }
        let mut scan = SnapshotScan::new(&self.reader);
        // So many that an entry is rejected for good.
        _ = (0..60).find_map(|_| scan.step(&mut self.reader, &self.memory, None));
    }

    /// Flips a bit in a copy of the table, which may be an older one, or flips one back.
    fn damage(&mut self) {
        if self.world.random.once_in(3)
            && let Some((copy, word, bit)) = self.wrong.pop()
        {
            copy.store(word, copy.load(word) ^ bit);
            return;
        }
        copy(&mut self.world, &mut self.copies);
        let (geometry, random) = (self.world.writer.geometry(), &mut self.world.random);
        let (cell, copy) = (random.index(geometry.capacity()), &self.copies[random.index(self.copies.len())]);
        let stamp = Stamp::new(copy.load(geometry.version_offset(cell)));
        let word = geometry.slot_offset(cell, stamp) + 8 * random.index(8);
        let bit = 1 << random.below(64);
        copy.store(word, copy.load(word) ^ bit);
        self.wrong.push((Arc::clone(copy), word, bit));
    }

    /// Wants other keys: those that were not wanted before are received as if they were new.
    fn choose(&mut self) {
        self.is_choosy = self.world.random.once_in(2);
        self.reader.set_interest(match self.is_choosy {
            true => Interest::Those(Box::new(is_odd)),
            false => Interest::All,
        });
        if self.is_choosy {
            self.replica.table.retain(|key, _| is_odd(key));
        }
        // Which keys were removed is not remembered.
        self.last.clear();
        self.replica.granted = self.replica.granted.max(self.reader.last().get());
    }

    /// Goes on with the next subscription.
    fn resume(&mut self, may_be_behind: bool) {
        let behind = self.copies.get(self.world.random.index(COPIES_MAX)).filter(|_| may_be_behind);
        self.memory = Arc::clone(behind.unwrap_or(&self.world.region));
        let newest = Sequence::new(self.memory.load(HOT_SEQUENCE));
        let reader = TableReader::new(self.world.writer.geometry(), (Epoch::FIRST, TOPIC), newest);
        let mut before = std::mem::replace(&mut self.reader, reader);
        self.reader.resume(&mut before, true);
        self.replica.granted = newest.get();
    }

    /// Receives once. Returns whether there may be more.
    fn receive(&mut self) -> bool {
        match self.reader.poll(&self.memory) {
            Err(_) if self.is_damaging => true,
            Err(failure) => panic!("{failure:?}"),
            Ok(None) => self.reader.has_more(),
            Ok(Some(taken)) => {
                let (Verified { meta, payload, .. }, changed) =
                    (self.reader.verified(taken), self.reader.changed());
                if changed.is_present {
                    let last = self.last.insert(payload[..changed.key_len].to_vec(), meta.sequence);
                    assert!(last < Some(meta.sequence), "{payload:?}: {} after {last:?}", meta.sequence);
                }
                if !changed.is_present
                    && let Some(last) = self.last.get(&payload[..changed.key_len])
                {
                    assert_removed(&self.world, &payload[..changed.key_len], last.get());
                }
                self.replica.take(&self.reader, &self.world, taken);
                true
            }
        }
    }
}

fn play(seed: u64, is_damaging: bool) {
    let mut outages = Outages::new(seed, is_damaging);
    (0..200).for_each(|_| outages.step());
    let is_choosy = outages.is_choosy;
    let is_wanted = |key: &[u8]| !is_choosy || is_odd(key);
    outages.resume(false);
    while outages.receive() {}
    outages.replica.check(&outages.world.model, is_wanted);
    assert_eq!(outages.reader.complete(), outages.world.writer.last());
    outages.world.publish();
    while outages.receive() {}
    outages.replica.check(&outages.world.model, is_wanted);
}

#[test]
fn subscriber_has_the_table_after_any_outages() {
    each_seed(amount(500, 50_000), |seed| play(seed, false));
}

#[test]
fn subscriber_has_the_table_after_outages_with_damage() {
    each_seed(amount(500, 50_000), |seed| play(seed, true));
}

/// A line of a table: what it reads, and by what.
struct Line {
    memory: Arc<Region>,
    reader: TableReader,
}

/// A table, its copies, and a subscriber of two lines, which read the table or a copy.
struct TwoLines {
    world: World,
    copies: Vec<Arc<Region>>,
    lines: [Line; 2],
    arbiter: TableArbiter,
    /// The keys that the subscriber has, with the commits of their values.
    table: BTreeMap<Vec<u8>, u64>,
}

impl TwoLines {
    fn new(seed: u64) -> Self {
        let world = small_world(seed);
        let line = || Line { memory: Arc::clone(&world.region), reader: world.reader() };
        let (lines, mut arbiter) = ([line(), line()], TableArbiter::default());
        arbiter.begin(Sequence::NONE, lines.len());
        Self { world, copies: Vec::new(), lines, arbiter, table: BTreeMap::new() }
    }

    fn step(&mut self) {
        let line = self.world.random.index(2);
        match self.world.random.below(16) {
            0..=4 => self.world.publish(),
            5 => copy(&mut self.world, &mut self.copies),
            6 => self.resume(line, true),
            7 => self.resume(line, false),
            8 => {
                let Line { memory, reader } = &mut self.lines[line];
                let mut scan = SnapshotScan::new(reader);
                _ = (0..16).find_map(|_| scan.step(reader, memory, None));
            }
            _ => _ = self.receive(line),
        }
    }

    fn resume(&mut self, line: usize, may_be_behind: bool) {
        let behind = self.copies.get(self.world.random.index(COPIES_MAX)).filter(|_| may_be_behind);
        let memory = Arc::clone(behind.unwrap_or(&self.world.region));
        let newest = Sequence::new(memory.load(HOT_SEQUENCE));
        let mut reader = TableReader::new(self.world.writer.geometry(), (Epoch::FIRST, TOPIC), newest);
        reader.resume(&mut self.lines[line].reader, true);
        self.lines[line] = Line { memory, reader };
        self.arbiter.join(line);
    }

    /// Receives once from a line. Returns whether there may be more.
    fn receive(&mut self, line: usize) -> bool {
        let Line { memory, reader } = &mut self.lines[line];
        let Some(taken) = reader.poll(memory).unwrap() else {
            assert!(!reader.take_misread());
            let until = Meta { sequence: reader.complete(), epoch: Epoch::FIRST, published_ns: 0 };
            self.arbiter.complete(line, until, &|key| reader.has_key(key));
            while let Some(gone) = self.arbiter.take_removed() {
                let last = self.table.remove(&gone.key[..]).expect("it was received");
                assert_removed(&self.world, &gone.key, last);
            }
            return self.lines[line].reader.has_more();
        };
        let (Verified { meta, payload, conflated }, changed) = (reader.verified(taken), reader.changed());
        let verdict = self.arbiter.judge(line, &Arrival { meta, conflated, changed: Some(changed), payload });
        let (key, sequence) = (&payload[..changed.key_len], meta.sequence.get());
        match verdict {
            Verdict::First { .. } if changed.is_present => {
                assert_eq!(self.world.history[index(sequence)][key].sequence, sequence);
                let last = self.table.insert(key.to_vec(), sequence);
                assert!(last < Some(sequence), "{key:?}: {sequence} after {last:?}");
            }
            Verdict::First { .. } => {
                let last = self.table.remove(key).expect("it was received");
                assert_removed(&self.world, key, last);
            }
            _ => {}
        }
        true
    }

    /// Receives all that there is, and checks that the subscriber has it.
    fn settle(&mut self) {
        // A key that one line has brought may be gone by what the other one shows.
        for line in [0, 1, 0, 1] {
            while self.receive(line) {}
        }
        let expected = self.world.model.iter().map(|(key, held)| (key.clone(), held.sequence));
        assert_eq!(self.table, expected.collect());
    }
}

/// Checks that the value of this commit was removed later.
fn assert_removed(world: &World, key: &[u8], last: u64) {
    let since = &world.history[index(last)..];
    let held = |table: &Table| table.get(key).map(|held| held.sequence);
    let is_removed = since.iter().any(|table| held(table).is_none());
    // One commit may have removed it and added it again.
    assert!(is_removed || since.iter().any(|table| held(table) > Some(last)), "{key:?} of {last} is there");
}

fn copy(world: &mut World, copies: &mut Vec<Arc<Region>>) {
    let len = world.region.len();
    let copy = Region::allocate(len, Protection::PeersRead).unwrap();
    world.region.write_across(0, &copy, 0, len);
    copies.truncate(world.random.index(COPIES_MAX));
    copies.push(Arc::new(copy));
}

#[test]
fn subscriber_of_two_lines_has_the_table_after_any_outages() {
    each_seed(amount(500, 50_000), |seed| {
        let mut lines = TwoLines::new(seed);
        (0..200).for_each(|_| lines.step());
        // One line is enough, and the other one may stay behind.
        lines.resume(0, false);
        lines.settle();
        lines.world.publish();
        lines.settle();
        lines.resume(1, false);
        lines.settle();
    });
}
