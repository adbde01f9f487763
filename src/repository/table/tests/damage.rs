//! Damaged tables, and tables of a hostile publisher.

use super::*;
use crate::layout::WORD;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::table::SLOT_RUN;
use crate::limits;
use crate::repository::{Finding, ReadFailure, WriteOrder};

/// A copy of the world's memory that can be damaged.
fn copy_of(world: &World) -> Region {
    let copy = Region::allocate(world.region.len(), Protection::PeersWrite).unwrap();
    world.region.write_across(0, &copy, 0, world.region.len());
    copy
}

#[test]
fn a_damaged_entry_is_reported_once_and_suspect_until_it_changes() {
    let mut world = World::new(8, 4, 1);
    (0..40).for_each(|_| world.publish());
    let mut reader = world.reader();
    while reader.poll(&world.region).unwrap().is_some() {}
    let (key, _) = world.model.iter().next().map(|(key, held)| (key.clone(), held.clone())).unwrap();
    let cell = reader.cell_of(&key).unwrap();
    let geometry = world.writer.geometry();
    let put = |world: &mut World| {
        world.writer.room()[..key.len()].copy_from_slice(&key);
        world.writer.stage_filled((key.len(), key.len() + 9), None, 1).unwrap();
        world.writer.commit(1);
    };
    put(&mut world);
    let stamp = Stamp::new(world.region.load(geometry.version_offset(cell)));
    let slot = geometry.slot_offset(cell, stamp);
    for damaged in [slot + 8, slot + 16, slot + 24, slot + 32, slot + 48, slot] {
        let copy = copy_of(&world);
        copy.store(damaged, copy.load(damaged) ^ 1 << 20);
        let mut reader = world.reader();
        let mut failures = Vec::new();
        let mut received = 0;
        loop {
            match reader.poll(&copy) {
                Ok(None) => break,
                Ok(Some(_)) => received += 1,
                Err(failure) => failures.push(failure),
            }
        }
        assert_eq!((failures.len(), received), (1, world.model.len() - 1), "{failures:?}");
        assert!(reader.poll(&copy).unwrap().is_none());
        assert_eq!(reader.counts().rejected, 1);
        // The others are in a snapshot.
        let mut scan = SnapshotScan::new(&reader);
        while scan.step(&mut reader, &copy, None).is_none() {}
        assert_eq!(scan.entries(&reader).count(), received);
    }
    // Known before, then damaged, then repaired.
    let copy = copy_of(&world);
    copy.store(slot + 48, !copy.load(slot + 48));
    assert!(reader.poll(&copy).is_err());
    assert_eq!(reader.suspects().collect::<Vec<_>>(), [&key[..]]);
    assert!(reader.look_up(CellMemory::Mapped(&copy), (cell, &key), false).is_err());
    put(&mut world);
    assert!(
        reader.poll(&world.region).unwrap().is_none() && reader.has_more(),
        "the pass that was reported ends"
    );
    assert!(reader.poll(&world.region).unwrap().is_some());
    assert_eq!(reader.suspects().count(), 0);
}

/// In a landing region the rest of an entry may be in flight: it is left out of no snapshot before it counts as damaged.
#[test]
fn a_snapshot_waits_for_entries_in_flight() {
    let mut world = World::new(8, 4, 1);
    (0..40).for_each(|_| world.publish());
    let mut reader = world.reader();
    while reader.poll(&world.region).unwrap().is_some() {}
    let key = world.model.keys().next().unwrap().clone();
    let cell = reader.cell_of(&key).unwrap();
    let geometry = world.writer.geometry();
    let landing = copy_of(&world);
    let slot = geometry.slot_offset(cell, Stamp::new(landing.load(geometry.version_offset(cell))));
    landing.store(slot, 0);
    let attempt = |reader: &mut TableReader, scan: &mut SnapshotScan, now_ns| {
        let end = scan.passes() + 100;
        while scan.passes() < end {
            if scan.step(reader, &landing, Some(now_ns)).is_some() {
                return Some(table_of(scan, reader));
            }
        }
        None
    };
    let mut scan = SnapshotScan::new(&reader);
    for now_ns in [5, limits::ARRIVAL_SETTLED_NS / 2, limits::ARRIVAL_SETTLED_NS] {
        assert_eq!(attempt(&mut reader, &mut scan, now_ns), None);
        assert!(matches!(
            reader.look_up(CellMemory::Mapped(&landing), (cell, &key), true),
            Ok(Looked::Contended)
        ));
        assert_eq!(reader.suspects().count(), 0);
    }
    let mut arrived = SnapshotScan::new(&reader);
    assert_eq!(attempt(&mut reader, &mut arrived, 0), None);
    landing.store(slot, world.region.load(slot));
    assert_eq!(attempt(&mut reader, &mut arrived, 1).as_ref(), world.history.last());
    landing.store(slot, 0);
    // It stays away.
    let mut others = world.model.clone();
    others.remove(&key);
    let settled_ns = limits::ARRIVAL_SETTLED_NS + 5;
    assert_eq!(attempt(&mut reader, &mut scan, settled_ns).as_ref(), Some(&others));
    assert_eq!(reader.suspects().collect::<Vec<_>>(), [&key[..]]);
    assert!(reader.look_up(CellMemory::Mapped(&landing), (cell, &key), true).is_err());
    let mut scan = SnapshotScan::new(&reader);
    assert_eq!(attempt(&mut reader, &mut scan, 0), Some(others));
}

#[test]
fn a_damaged_entry_over_a_wire_must_stay_damaged_for_a_while() {
    damage_over_a_wire(|geometry, stamp| (geometry.slot_offset(0, stamp) + 40, u64::MAX));
    // Its version names a later commit: the entry before it must not pass for the newest one.
    damage_over_a_wire(|geometry, _| (geometry.version_offset(0), 1 << 40));
}

/// `damage` returns the offset of a word, given the stamp of the newest entry of a cell, and the bits that are wrong.
fn damage_over_a_wire(damage: fn(TableGeometry, Stamp) -> (usize, u64)) {
    let mut world = World::new(8, 4, 1);
    (0..40).for_each(|_| world.publish());
    let mut reader = world.reader();
    while reader.poll(&world.region).unwrap().is_some() {}
    let count = world.model.len();
    let mut reader = world.reader();
    let geometry = world.writer.geometry();
    let stamp = Stamp::new(world.region.load(geometry.version_offset(0)));
    let mirror = copy_of(&world);
    let (damaged, bits) = damage(geometry, stamp);
    mirror.store(damaged, mirror.load(damaged) ^ bits);
    let (mut received, mut failures, mut now_ns) = (0, Vec::new(), 0);
    while failures.is_empty() {
        loop {
            match reader.take_fetched(&mirror, || now_ns) {
                Ok(None) => break,
                Ok(Some(_)) => received += 1,
                Err(failure) => failures.push((failure, now_ns)),
            }
        }
        let mut fetch = reader.plan();
        while let Ok(Finding::More(next)) = reader.check(&mirror, &fetch, now_ns) {
            fetch = next;
        }
        now_ns += 1_000_000;
        assert!(now_ns < 10 * limits::DAMAGE_SETTLED_NS);
    }
    assert!(failures[0].1 >= limits::DAMAGE_SETTLED_NS && failures.len() == 1);
    let is_key = u64::from(stamp != Stamp::NONE);
    assert!(received + 1 >= count && is_key == 1);
}

/// A fetch is torn while the entry is written, the next one, much later, while its slot is written again.
#[test]
fn entry_that_was_torn_twice_over_a_wire_is_not_damaged() {
    let mut world = World::new(8, 4, 1);
    (0..40).for_each(|_| world.publish());
    let mut reader = world.reader();
    let geometry = world.writer.geometry();
    let stamp = Stamp::new(world.region.load(geometry.version_offset(0)));
    assert_ne!(stamp, Stamp::NONE);
    let mirror = copy_of(&world);
    let torn = geometry.slot_offset(0, stamp) + 40;
    let whole = mirror.load(torn);
    let (mut received, mut now_ns) = (0, 0);
    for word in [!whole, whole.wrapping_add(1), whole] {
        mirror.store(torn, word);
        let mut fetch = reader.plan();
        while let Ok(Finding::More(next)) = reader.check(&mirror, &fetch, now_ns) {
            fetch = next;
        }
        while let Some(taken) = reader.take_fetched(&mirror, || now_ns).expect("it is not damaged") {
            received += usize::from(reader.verified(taken).meta.sequence == stamp.sequence());
        }
        now_ns += limits::DAMAGE_SETTLED_NS;
    }
    assert_eq!((received, reader.suspects().count()), (1, 0));
}

/// Whatever a peer does to an entry, its subscribers learn of it, and of those of other cells.
#[test]
fn entries_whose_bytes_are_never_the_same_are_damaged() {
    for step_ns in [1_000_000, limits::DAMAGE_SETTLED_NS, 10 * limits::DAMAGE_SETTLED_NS] {
        let mut world = World::new(8, 4, 1);
        (0..40).for_each(|_| world.publish());
        let mut reader = world.reader();
        let geometry = world.writer.geometry();
        let mirror = copy_of(&world);
        let stamp = |cell: usize| Stamp::new(mirror.load(geometry.version_offset(cell)));
        let cells: Vec<usize> = (0..8).filter(|cell| stamp(*cell) != Stamp::NONE).collect();
        assert!(cells.len() >= 3);
        let (mut failures, mut now_ns) = (0, 0);
        for change in 1..200 {
            for (index, cell) in cells.iter().enumerate() {
                // The first and the last one change, those between are damaged once.
                let is_changed = index == 0 || index == cells.len() - 1 || change == 1;
                let word = geometry.slot_offset(*cell, stamp(*cell)) + 40;
                mirror.store(word, mirror.load(word).wrapping_add(u64::from(is_changed)));
            }
            let mut fetch = reader.plan();
            while let Ok(Finding::More(next)) = reader.check(&mirror, &fetch, now_ns) {
                fetch = next;
            }
            loop {
                match reader.take_fetched(&mirror, || now_ns) {
                    Ok(None) => break,
                    Ok(Some(_)) => panic!("an entry with other bytes"),
                    Err(_) => failures += 1,
                }
            }
            now_ns += step_ns;
        }
        assert_eq!((failures, reader.counts().rejected), (cells.len(), cells.len() as u64));
    }
}

/// Random words anywhere: no panic, no endless loop, and no value that was never published.
#[test]
fn hostile_memory_is_survived() {
    each_seed(amount(300, 10_000), |seed| {
        let mut world = World::new(1 + index(seed % 12), 8, seed);
        (0..30).for_each(|_| world.publish());
        let mut reader = world.reader();
        let memory = copy_of(&world);
        let words = world.writer.geometry().region_len() / WORD;
        for _ in 0..100 {
            for _ in 0..1 + world.random.below(10) {
                let word = match world.random.below(4) {
                    0 => 0,
                    1 => u64::MAX,
                    2 => world.random.below(1 << 16),
                    _ => world.random.next(),
                };
                let body = if world.random.once_in(2) { 0x80 / WORD } else { 0x900 / WORD };
                let offset = (body + world.random.index(words - body)) * WORD;
                memory.store(offset, word);
            }
            for _ in 0..50 {
                let order = WriteOrder::Writes;
                let outcome = match world.random.below(3) {
                    0 => reader.poll(&memory),
                    1 => reader.follow(&memory, order, || seed),
                    _ => {
                        let fetch = reader.plan();
                        let _ = reader.check(&memory, &fetch, 0);
                        reader.take_fetched(&memory, || 0)
                    }
                };
                if let Ok(Some(taken)) = outcome {
                    let value = reader.verified(taken);
                    assert!(value.payload.len() > reader.changed().key_len);
                }
            }
            let mut scan = SnapshotScan::new(&reader);
            while scan.passes() < 12 && scan.step(&mut reader, &memory, None).is_none() {}
            let _ = look_up_any(&mut reader, &memory, b"k1");
            let _ = reader.give_up(Sequence::new(world.random.next()));
        }
    });
}

fn look_up_any(reader: &mut TableReader, memory: &Region, key: &[u8]) -> Option<()> {
    let mut scan = Scan::default();
    reader.begin_keys(&mut scan);
    for _ in 0..100 {
        if reader.step_keys(&mut scan, memory, true).is_some() {
            break;
        }
    }
    let cell = reader.cell_of(key)?;
    let _ = reader.look_up(CellMemory::Mapped(memory), (cell, key), false);
    Some(())
}

#[test]
fn entry_that_names_an_impossible_key_does_not_stop_its_writer() {
    let mut world = World::new(1, 1, 1);
    let put = |world: &mut World| {
        world.writer.room()[..2].copy_from_slice(b"k0");
        world.writer.stage_filled((2, 4), None, 1)
    };
    put(&mut world).unwrap();
    world.writer.commit(1);
    let geometry = world.writer.geometry();
    let version = Stamp::new(world.region.load(geometry.version_offset(0)));
    world.region.store(geometry.slot_offset(0, version) + SLOT_RUN, u64::MAX);
    put(&mut world).unwrap();
    world.writer.discard();
    put(&mut world).unwrap();
    world.writer.commit(2);
    let (sequence, table) = snapshot(&mut world.reader(), &world.region);
    assert_eq!((sequence, table.len()), (2, 1));
}

fn put_key(world: &mut World, key: &[u8], value_len: usize, sequence: u64) {
    world.writer.set_next(Sequence::new(sequence));
    world.writer.room()[..key.len()].copy_from_slice(key);
    world.writer.stage_filled((key.len(), key.len() + 1 + value_len), None, 1).unwrap();
}

/// In each of eight passes its key changes twice after its version was read.
#[test]
fn entry_that_keeps_changing_is_not_damaged() {
    let (mut world, mut sequence) = (World::new(8, 4, 1), 1);
    put_key(&mut world, b"hot", 8, sequence);
    world.writer.commit(1);
    let mut reader = world.reader();
    let mut scan = SnapshotScan::new(&reader);
    for step in 0.. {
        if scan.passes() < 8 && step % 4 == 3 {
            for _ in 0..2 {
                sequence += 1;
                put_key(&mut world, b"hot", 8, sequence);
                world.writer.commit(1);
            }
        }
        if scan.step(&mut reader, &world.region, None).is_some() {
            break;
        }
        assert!(step < 1000);
    }
    assert_eq!((scan.damaged(), scan.entries(&reader).count()), (0, 1));
}

/// An entry is damaged and repaired again and again, while another cell keeps the snapshot from completing.
#[test]
fn snapshot_holds_no_more_than_the_table() {
    let mut world = World::new(8, 4, 1);
    for (key, sequence) in [(b"one", 1), (b"two", 2)] {
        put_key(&mut world, key, 40, sequence);
        world.writer.commit(1);
    }
    let version = world.writer.geometry().version_offset(1);
    let mut reader = world.reader();
    let (mut scan, mut sequence, mut changes) = (SnapshotScan::new(&reader), 2, 0);
    for is_damaged in [true, false].repeat(50) {
        sequence += 1;
        put_key(&mut world, b"one", 40, sequence);
        world.writer.commit(1);
        if is_damaged {
            world.writer.room()[..3].copy_from_slice(b"one");
            world.writer.damage(3);
        }
        let passes = scan.passes();
        while scan.passes() < passes + 12 {
            // Always another one, so that it does not count as damaged.
            changes += 1;
            world.region.store(version, Stamp::NONE.next(Sequence::new((1 << 40) + changes)).get());
            assert!(scan.step(&mut reader, &world.region, None).is_none());
        }
    }
    assert!(scan.held_len() < 1000, "{} bytes", scan.held_len());
}

/// Reads everything. Returns the keys and the failures.
fn read_all(reader: &mut TableReader, memory: &Region) -> (Vec<Vec<u8>>, usize) {
    let (mut keys, mut failures) = (Vec::new(), 0);
    loop {
        match reader.poll(memory) {
            Ok(Some(change)) => {
                let key_len = reader.changed().key_len;
                keys.push(reader.verified(change).payload[..key_len].to_vec());
            }
            Ok(None) if !reader.has_more() => return (keys, failures),
            Ok(None) => {}
            Err(_) => failures += 1,
        }
    }
}

/// The words that say where something has changed say less than they should: a reader of mapped memory compares all of them in time, and
/// a change is received, or reported as damaged.
#[test]
fn change_that_a_damaged_page_or_version_hides_is_found_in_mapped_memory() {
    let put = |world: &mut World, key: &str| {
        world.writer.room()[..key.len()].copy_from_slice(key.as_bytes());
        world.writer.stage_filled((key.len(), key.len() + 9), None, 1).unwrap();
        world.writer.commit(1);
    };
    // The other page has the key that goes on changing.
    for (is_page, damage) in [(true, 0), (true, 1), (false, 0), (false, 1), (false, 1 << 8)] {
        let mut world = World::new(1024, 1024, 1);
        (0..600).for_each(|number| put(&mut world, &format!("k{number}")));
        let mut reader = world.reader();
        assert_eq!(read_all(&mut reader, &world.region).0.len(), 600);
        let cell = reader.cell_of(b"k0").unwrap();
        let other = (0..600).map(|number| format!("k{number}"));
        let other = other.into_iter().find(|key| reader.cell_of(key.as_bytes()).unwrap() / 512 != cell / 512);
        let other = other.expect("there are two pages");
        put(&mut world, "k0");
        let geometry = world.writer.geometry();
        let damaged = if is_page { geometry.page_offset(cell / 512) } else { geometry.version_offset(cell) };
        world.region.store(damaged, damage);
        assert_eq!(read_all(&mut reader, &world.region), (vec![], 0), "it is hidden");
        let mut found = (Vec::new(), 0);
        for _ in 0..2 * limits::TABLE_PASS_AUDIT_ONE_IN {
            put(&mut world, &other);
            let (keys, failures) = read_all(&mut reader, &world.region);
            found.0.extend(keys.into_iter().filter(|key| key != other.as_bytes()));
            found.1 += failures;
        }
        let expected = if is_page { (vec![b"k0".to_vec()], 0) } else { (vec![], 1) };
        assert_eq!(found, expected, "page: {is_page}, damage: {damage}");
        assert_eq!(reader.suspects().count(), usize::from(!is_page));
        assert!(reader.take_misread() && !reader.take_misread());
        // Repaired by the next change.
        put(&mut world, "k0");
        assert_eq!(read_all(&mut reader, &world.region), (vec![b"k0".to_vec()], 0));
        assert_eq!(reader.suspects().count(), 0);
    }
}

/// The entry before it must not pass for the newest one.
#[test]
fn entry_whose_version_names_a_later_commit_is_damaged() {
    for (values, damage) in [1, 2, 3].into_iter().flat_map(|values| [(values, 1 << 63), (values, 1 << 40)]) {
        let mut world = World::new(4, 4, 1);
        let put = |world: &mut World, sequence| {
            put_key(world, b"x", 8, sequence);
            world.writer.commit(1);
        };
        let mut before = world.reader();
        for sequence in 1..=values {
            assert_eq!(read_all(&mut before, &world.region).0.len(), usize::from(sequence > 1));
            put(&mut world, sequence);
        }
        put_key(&mut world, b"y", 8, values + 1);
        world.writer.commit(1);
        let version = world.writer.geometry().version_offset(0);
        let right = world.region.load(version);
        world.region.store(version, right ^ damage);
        for reader in [&mut before, &mut world.reader()] {
            let broken = loop {
                if let Err(failure) = reader.poll(&world.region) {
                    break failure;
                }
            };
            // Not the later commit that the version names.
            assert_eq!(broken, ReadFailure::BrokenStamps { sequence: Sequence::new(values + 1) });
            assert_eq!(read_all(reader, &world.region), (vec![b"y".to_vec()], 0), "{values} {damage:x}");
            assert_eq!(reader.suspects().count(), usize::from(reader.cell_of(b"x").is_some()));
        }
        let mut reader = world.reader();
        let mut scan = SnapshotScan::new(&reader);
        assert!(
            (0..100).any(|_| scan.step(&mut reader, &world.region, None).is_some()),
            "{values} {damage:x}"
        );
        assert_eq!((scan.damaged(), scan.entries(&reader).count()), (1, 1));
        assert!(before.cell_of(b"x").is_none_or(|cell| {
            before.look_up(CellMemory::Mapped(&world.region), (cell, b"x"), false).is_err()
        }));
        // What is damaged does not keep the reader from knowing all other keys.
        put_key(&mut world, b"z", 8, values + 2);
        world.writer.commit(1);
        let mut scan = Scan::default();
        before.begin_keys(&mut scan);
        assert_eq!((0..20).find_map(|_| before.step_keys(&mut scan, &world.region, true)), Some(true));
        // Repaired by the next change.
        put(&mut world, values + 3);
        let (mut keys, failures) = read_all(&mut before, &world.region);
        keys.sort();
        assert_eq!((keys, failures), (vec![b"x".to_vec(), b"z".to_vec()], 0));
        assert_eq!(snapshot(&mut reader, &world.region).1.len(), 3);
        assert_eq!(before.suspects().count(), 0);
    }
}

/// In a landing region the entry of a later commit is on its way to the slot of one that is past the hot line.
#[test]
fn entry_that_is_replaced_before_the_hot_line_has_arrived_is_not_damaged() {
    let mut world = World::new(4, 4, 1);
    for (key, sequence) in [(b"x", 1), (b"y", 2), (b"x", 3)] {
        put_key(&mut world, key, 8, sequence);
        world.writer.commit(1);
    }
    let (landing, geometry) = (copy_of(&world), world.writer.geometry());
    let version = Stamp::new(landing.load(geometry.version_offset(0)));
    landing.store(HOT_SEQUENCE, 2);
    landing.store(geometry.slot_offset(0, version.other()), 0);
    for in_slot in [0, version.again(Sequence::new(5)).get()] {
        landing.store(geometry.slot_offset(0, version), in_slot);
        let (mut reader, mut received, mut now_ns) = (world.reader(), 0, 0);
        for _ in 0..20 {
            now_ns += 1 << 30;
            let taken = reader.follow(&landing, WriteOrder::Writes, || now_ns).expect("it is not damaged");
            received += usize::from(taken.is_some());
        }
        assert_eq!((received, reader.suspects().count()), (1, 0));
    }
}

/// Its version or the slot of its committed entry is damaged.
#[test]
fn discarded_entry_of_a_damaged_cell_is_put_again() {
    for (is_version, bit) in [(true, 50), (true, 0), (true, 9), (false, 50), (false, 0)] {
        let mut world = World::new(4, 4, 1);
        put_key(&mut world, b"x", 8, 1);
        world.writer.commit(1);
        let geometry = world.writer.geometry();
        let version = Stamp::new(world.region.load(geometry.version_offset(0)));
        let slot = geometry.slot_offset(0, version);
        let damaged = if is_version { geometry.version_offset(0) } else { slot };
        world.region.store(damaged, world.region.load(damaged) ^ 1 << bit);
        let held = world.region.load(slot);
        put_key(&mut world, b"x", 8, 2);
        world.writer.discard();
        for sequence in 2..4 {
            put_key(&mut world, b"x", 8, sequence);
            assert!(sequence > 2 || world.region.load(slot) == held, "the committed entry stays as it is");
            assert_eq!(world.writer.commit(1).map(|commit| commit.sequence.get()), Some(sequence));
            let (newest, table) = snapshot(&mut world.reader(), &world.region);
            assert_eq!((newest, table.len()), (sequence, 1), "version: {is_version}, bit {bit}");
        }
    }
}
