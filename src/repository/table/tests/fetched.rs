//! Tables that are read over a wire: ranges are copied to a mirror word by word, in random order, while the writer continues.

use super::*;
use crate::layout::{ByteRange, WORD};
use crate::repository::{Fetch, Finding};

/// A mirror, and the words in flight to it.
struct Wire {
    mirror: Region,
    words: Vec<usize>,
    bytes: usize,
}

impl Wire {
    fn new(world: &World) -> Self {
        let mirror = Region::allocate(world.region.len(), Protection::PeersRead).unwrap();
        Self { mirror, words: Vec::new(), bytes: 0 }
    }

    fn post(&mut self, ranges: &[ByteRange], random: &mut Random) {
        let offsets = |range: &ByteRange| (range.offset..range.offset + range.len).step_by(WORD);
        self.words = ranges.iter().flat_map(offsets).collect();
        self.bytes += self.words.len() * WORD;
        random.shuffle(&mut self.words);
    }

    /// Copies all words; the writer continues between some of them.
    fn bring(&mut self, world: &mut World, busy: bool) {
        for offset in std::mem::take(&mut self.words) {
            if busy && world.random.once_in(60) {
                world.publish();
            } else if busy && world.random.once_in(60) {
                world.stage();
            }
            self.mirror.store(offset, world.region.load(offset));
        }
    }
}

/// Receives over the wire until nothing is left.
fn receive(
    reader: &mut TableReader,
    replica: &mut Replica,
    wire: &mut Wire,
    (world, busy): (&mut World, bool),
    now_ns: &mut u64,
) {
    let mut more: Option<Fetch<()>> = None;
    for _ in 0..100_000 {
        while let Some(taken) = reader.take_fetched(&wire.mirror, || *now_ns).unwrap() {
            replica.take(reader, world, taken);
        }
        let fetch = more.take().unwrap_or_else(|| reader.plan());
        let ranges = reader.ranges(&fetch).to_vec();
        wire.post(&ranges, &mut world.random.clone());
        wire.bring(world, busy);
        *now_ns += 1_000_000;
        match reader.check(&wire.mirror, &fetch, *now_ns).unwrap() {
            Finding::More(fetch) => more = Some(fetch),
            Finding::Nothing => return,
            Finding::Something | Finding::Taken(_) if busy && world.random.once_in(20) => return,
            Finding::Something | Finding::Taken(_) => {}
        }
    }
    panic!("a reader that does not come to an end");
}

#[test]
fn nothing_wrong_is_received_over_a_wire_and_nothing_is_missed() {
    each_seed(amount(100, 4000), |seed| {
        let mut world = World::new(1 + index(seed % 40), 1 + seed % 50, seed);
        (0..seed % 7 * 10).for_each(|_| world.publish());
        let (mut reader, mut wire) = (world.reader(), Wire::new(&world));
        let mut replica = Replica { granted: world.writer.last().get(), ..Replica::default() };
        let is_wanted = if seed % 2 == 0 { |_: &[u8]| true } else { is_odd };
        if seed % 2 == 1 {
            reader.set_interest(Interest::Those(Box::new(is_odd)));
        }
        let mut now_ns = 0;
        for _ in 0..30 {
            receive(&mut reader, &mut replica, &mut wire, (&mut world, true), &mut now_ns);
        }
        world.commit();
        receive(&mut reader, &mut replica, &mut wire, (&mut world, false), &mut now_ns);
        replica.check(&world.model, is_wanted);
        assert_eq!((reader.last(), reader.suspects().count()), (world.writer.last(), 0));
    });
}

/// The slots of a cell are fetched first, then the hot line, and after two more commits the cell's version: it names the slot that was
/// fetched last, and the other one was fetched when it still had an entry that was given up.
#[test]
fn discarded_entry_is_not_taken_for_the_one_before_the_newest() {
    let geometry = TableGeometry::new(2, 8, 64).unwrap();
    let region = Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap();
    let line = Geometry::from(geometry).static_header(Epoch::FIRST, TOPIC, 0);
    let region = Arc::new(region);
    let mut writer = TableWriter::new(Arc::clone(&region), geometry, &line);
    let stage = |writer: &mut TableWriter, key: &[u8; 1], value: u8| {
        let room = writer.room();
        (room[0], room[2]) = (key[0], value);
        writer.stage_filled((1, 3), None, 1).unwrap();
    };
    stage(&mut writer, b"a", 1);
    writer.commit(1).unwrap();
    stage(&mut writer, b"a", 99);
    writer.discard();
    stage(&mut writer, b"b", 2);
    writer.commit(1).unwrap();

    let mirror = Region::allocate(region.len(), Protection::PeersRead).unwrap();
    let copy = |ranges: &[ByteRange]| {
        let words = ranges.iter().flat_map(|range| (range.offset..range.offset + range.len).step_by(WORD));
        words.for_each(|word| mirror.store(word, region.load(word)));
    };
    let mut reader = TableReader::new(geometry, (Epoch::FIRST, TOPIC), Sequence::NONE);
    let mut fetch = reader.plan();
    loop {
        let ranges = reader.ranges(&fetch).to_vec();
        let (versions, others): (Vec<_>, Vec<_>) =
            ranges.iter().partition(|range| range.offset == geometry.version_offset(0));
        copy(&others);
        if others.contains(&geometry.cell_range(0)) {
            for value in [3, 4] {
                stage(&mut writer, b"a", value);
                writer.commit(1).unwrap();
            }
        }
        copy(&versions);
        match reader.check(&mirror, &fetch, 0).unwrap() {
            Finding::More(next) => fetch = next,
            _ => break,
        }
    }
    let mut received = Vec::new();
    while let Some(taken) = reader.take_fetched(&mirror, || 0).unwrap() {
        received.push(reader.verified(taken).payload.to_vec());
    }
    assert_eq!(received, [b"b\x01\x02"], "the other cell is read by the next pass");
}

#[test]
fn a_snapshot_over_a_wire_is_of_one_commit() {
    each_seed(amount(400, 4000), |seed| {
        let mut world = World::new(1 + index(seed % 40), 1 + seed % 50, seed);
        (0..seed % 7 * 10).for_each(|_| world.publish());
        let (mut reader, mut wire) = (world.reader(), Wire::new(&world));
        let mut scan = SnapshotScan::new(&reader);
        for round in 0.. {
            // A writer as busy as that never lets a snapshot over a slow wire be complete.
            let busy = round < 30;
            wire.post(scan.ranges(), &mut world.random.clone());
            wire.bring(&mut world, busy);
            if let Some(sequence) = scan.step(&mut reader, &wire.mirror, None) {
                assert_eq!(table_of(&scan, &reader), world.history[index(sequence.get())], "{sequence}");
                break;
            }
            assert!(round < 200);
        }
    });
}

/// A table of ten thousand keys of 64 bytes, of which a hundred change.
#[test]
fn what_is_fetched_follows_what_changed() {
    const KEYS: u64 = 10_000;
    let geometry = TableGeometry::new(10_000, 8, 8 + 1 + 64).unwrap();
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    let line = Geometry::from(geometry).static_header(Epoch::FIRST, TOPIC, 0);
    let writer = TableWriter::new(Arc::clone(&region), geometry, &line);
    let mut world = World {
        writer,
        region,
        model: Table::new(),
        history: vec![Table::new()],
        random: Random::new(1),
        keys: KEYS,
        is_of_feed: false,
        next: 1,
    };
    let put = |world: &mut World, key: u64| {
        let room = world.writer.room();
        room[..8].copy_from_slice(&key.to_le_bytes());
        world.writer.stage_filled((8, 8 + 1 + 64), None, 1).unwrap();
    };
    (0..KEYS).for_each(|key| put(&mut world, key));
    world.writer.commit(1);
    let cell = geometry.cell_range(0).len;
    for (count, is_wanted) in [(100, None), (100, Some(50)), (0, None)] {
        let (mut reader, mut wire) = (world.reader(), Wire::new(&world));
        if let Some(wanted) = is_wanted {
            let wants = move |key: &[u8]| u64::from_le_bytes(key.try_into().unwrap()) % (KEYS / wanted) == 7;
            reader.set_interest(Interest::Those(Box::new(wants)));
        }
        let fetch_all = |reader: &mut TableReader, wire: &mut Wire, world: &mut World| {
            let mut received = 0;
            loop {
                while reader.take_fetched(&wire.mirror, || 0).unwrap().is_some() {
                    received += 1;
                }
                let mut fetch = reader.plan();
                loop {
                    let ranges = reader.ranges(&fetch).to_vec();
                    wire.post(&ranges, &mut world.random);
                    wire.bring(world, false);
                    match reader.check(&wire.mirror, &fetch, 0).unwrap() {
                        Finding::More(next) => fetch = next,
                        Finding::Nothing => return received,
                        Finding::Something | Finding::Taken(_) => break,
                    }
                }
            }
        };
        let wanted = is_wanted.unwrap_or(KEYS);
        assert_eq!(fetch_all(&mut reader, &mut wire, &mut world), wanted);
        let mut changed = 0;
        for _ in 0..count {
            let key = world.random.below(KEYS);
            changed += usize::from(key % (KEYS / wanted) == 7 || is_wanted.is_none());
            put(&mut world, key);
        }
        world.writer.commit(1);
        wire.bytes = 0;
        fetch_all(&mut reader, &mut wire, &mut world);
        let versions = if is_wanted.is_some() { 50 * WORD } else { 10_000 * WORD };
        let most = 3 * (versions + geometry.pages().len + changed * cell);
        println!("{count} changes, {wanted} keys wanted: {} bytes, {most} allowed", wire.bytes);
        assert!(wire.bytes <= most.max(256), "{} bytes", wire.bytes);
    }
}

/// A snapshot learns the keys, so that the next one reads only the cells of those that are wanted.
#[test]
fn second_snapshot_fetches_the_wanted_cells_only() {
    let mut world = World::new(400, 400, 3);
    (0..2000).for_each(|_| world.publish());
    let mut reader = world.reader();
    reader.set_interest(Interest::Those(Box::new(|key| key == b"k7")));
    let mut fetched = || {
        let (mut scan, mut len) = (SnapshotScan::new(&reader), 0);
        loop {
            len += scan.ranges().iter().map(|range| range.len).sum::<usize>();
            if scan.step(&mut reader, &world.region, None).is_some() {
                return len;
            }
        }
    };
    let cell = world.writer.geometry().cell_range(0).len;
    assert!(fetched() > 200 * cell, "all keys were unknown");
    let again = fetched();
    assert!(again < 20 * cell + 400 * 8, "{again} bytes");
}
