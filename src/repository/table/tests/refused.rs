//! Entries that are refused, and what was known before: of the same subscription, and of the next.

use super::recalled::{
    DAMAGED, GONE, KEY, OTHER, assert_received, damaged, put, receive, remove, report_damaged,
    with_later_version,
};
use super::*;
use crate::repository::table::entry::CellMemory;

/// A copy of the table as it is.
fn copied(world: &World) -> Region {
    let copy = Region::allocate(world.region.len(), Protection::PeersWrite).unwrap();
    world.region.write_across(0, &copy, 0, world.region.len());
    copy
}

/// The damaged entry is the only one that the next subscription has to compare, and is replaced.
#[test]
fn removed_keys_are_known_once_no_entry_is_damaged_any_more() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, GONE, 1);
    put(&mut world, OTHER, 2);
    let (behind, mut before) = (copied(&world), world.reader());
    assert_received(&mut before, &world.region, &[(GONE, true), (OTHER, true)]);
    remove(&mut world, GONE, 3);
    assert_received(&mut before, &world.region, &[(GONE, false)]);
    put(&mut world, KEY, 4);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert_received(&mut reader, &damaged(&world), &[DAMAGED]);
    put(&mut world, KEY, 5);
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    let mut last = world.reader();
    last.resume(&mut reader, true);
    assert_received(&mut last, &behind, &[]);
}

/// The key was removed before the entry was damaged, and the subscription is lost once or twice.
#[test]
fn key_that_was_removed_before_an_entry_was_damaged_is_not_received_again() {
    for outages in 0..2 {
        let mut world = World::new(8, 4, 1);
        put(&mut world, KEY, 1);
        put(&mut world, GONE, 2);
        let (behind, mut reader) = (copied(&world), world.reader());
        assert_received(&mut reader, &world.region, &[(KEY, true), (GONE, true)]);
        remove(&mut world, GONE, 3);
        assert_received(&mut reader, &world.region, &[(GONE, false)]);
        put(&mut world, KEY, 4);
        assert_received(&mut reader, &damaged(&world), &[DAMAGED]);
        for memory in [&damaged(&world), &behind].into_iter().skip(1 - outages) {
            let mut next = world.reader();
            next.resume(&mut reader, true);
            let received = receive(&mut next, memory);
            assert!(received.iter().all(|(key, _)| key.is_empty()), "{received:?}");
            reader = next;
        }
    }
}

/// A snapshot, or a lookup of the key, has read the entry that was damaged when a pass did.
#[test]
fn entry_that_is_intact_after_all_is_received() {
    for is_snapshot in [true, false] {
        for is_lost in [false, true] {
            let mut world = World::new(8, 4, 1);
            put(&mut world, KEY, 1);
            let mut reader = world.reader();
            if !is_snapshot {
                // A lookup knows the cell.
                assert_received(&mut reader, &world.region, &[(KEY, true)]);
                put(&mut world, KEY, 2);
            }
            put(&mut world, OTHER, 3);
            assert_received(&mut reader, &damaged(&world), &[DAMAGED, (OTHER, true)]);
            if is_snapshot {
                snapshot(&mut reader, &world.region);
            } else {
                let cell = reader.cell_of(KEY).unwrap();
                let at = CellMemory::Mapped(&world.region);
                assert!(matches!(reader.look_up(at, (cell, KEY), false), Ok(Looked::Found(_))));
            }
            assert_eq!(reader.suspect_count(), 0);
            if is_lost {
                let mut next = world.reader();
                next.resume(&mut reader, true);
                reader = next;
            }
            assert_received(&mut reader, &world.region, &[(KEY, true)]);
            assert_eq!(reader.complete().get(), 3);
        }
    }
}

/// The entry was damaged after it had been received.
#[test]
fn received_entry_that_is_intact_again_is_not_received_twice() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    let mut reader = world.reader();
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    put(&mut world, OTHER, 2);
    assert_received(&mut reader, &with_later_version(&world), &[DAMAGED, (OTHER, true)]);
    snapshot(&mut reader, &world.region);
    put(&mut world, OTHER, 3);
    assert_received(&mut reader, &world.region, &[(OTHER, true)]);
    assert_eq!((reader.suspect_count(), reader.complete().get()), (0, 3));
}

/// Its cell is read whatever is wanted.
#[test]
fn damaged_key_that_is_no_longer_wanted_is_neither_a_key_nor_a_suspect() {
    let (_, mut reader) = report_damaged(damaged);
    assert_eq!(reader.suspects().collect::<Vec<_>>(), [KEY]);
    reader.set_interest(Interest::Those(Box::new(|key: &[u8]| key != KEY)));
    assert_eq!(reader.keys().collect::<Vec<_>>(), [OTHER]);
    assert_eq!(reader.suspects().count(), 0);
}

/// A snapshot has read all keys before the first pass, and none of them is wanted: the pass reads no entry.
#[test]
fn removal_that_only_a_snapshot_has_shown_has_a_time() {
    let mut world = World::new(8, 4, 1);
    let interest = || Interest::Those(Box::new(|key: &[u8]| key == GONE));
    put(&mut world, GONE, 1);
    let mut before = world.reader();
    before.set_interest(interest());
    assert_received(&mut before, &world.region, &[(GONE, true)]);
    remove(&mut world, GONE, 2);
    put(&mut world, OTHER, 3);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    snapshot(&mut reader, &world.region);
    let taken = reader.poll(&world.region).unwrap().expect("a removal");
    assert!(!reader.changed().is_present);
    assert_eq!(reader.verified(taken).meta.published_ns, 1);
}

/// Only a lookup has found the damaged entry, in the first pass of the next subscription.
#[test]
fn removed_keys_are_known_though_a_lookup_has_found_damage() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, GONE, 1);
    put(&mut world, OTHER, 2);
    let (behind, mut before) = (copied(&world), world.reader());
    assert_received(&mut before, &world.region, &[(GONE, true), (OTHER, true)]);
    remove(&mut world, GONE, 3);
    assert_received(&mut before, &world.region, &[(GONE, false)]);
    put(&mut world, KEY, 4);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    let taken = reader.poll(&world.region).unwrap().expect("a change");
    assert_eq!(reader.verified(taken).meta.sequence.get(), 4);
    let (cell, copy) = (reader.cell_of(KEY).unwrap(), damaged(&world));
    assert!(reader.look_up(CellMemory::Mapped(&copy), (cell, KEY), false).is_err());
    assert_received(&mut reader, &copy, &[]);
    let mut last = world.reader();
    last.resume(&mut reader, true);
    assert_received(&mut last, &behind, &[]);
}

#[test]
fn removal_that_is_intact_after_all_is_received() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, OTHER, 1);
    put(&mut world, KEY, 2);
    let mut reader = world.reader();
    assert_received(&mut reader, &world.region, &[(OTHER, true), (KEY, true)]);
    let cell = reader.cell_of(KEY).unwrap();
    remove(&mut world, KEY, 3);
    let copy = copied(&world);
    let version = Stamp::new(copy.load(world.writer.geometry().version_offset(cell)));
    let word = world.writer.geometry().slot_offset(cell, version) + 16;
    copy.store(word, !copy.load(word));
    assert_received(&mut reader, &copy, &[DAMAGED]);
    let looked = reader.look_up(CellMemory::Mapped(&world.region), (cell, KEY), false);
    assert!(matches!(looked, Ok(Looked::Removed)), "{looked:?}");
    assert_received(&mut reader, &world.region, &[(KEY, false)]);
    assert_eq!((reader.suspect_count(), reader.complete().get()), (0, 3));
}

/// A snapshot has read the refused entry before the pass that refused it is over.
#[test]
fn table_is_not_complete_before_a_refused_entry_is_received() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    put(&mut world, OTHER, 2);
    let (mut reader, copy) = (world.reader(), damaged(&world));
    assert!(reader.poll(&copy).is_err());
    snapshot(&mut reader, &world.region);
    assert_eq!(reader.suspect_count(), 0);
    let mut received: Vec<Vec<u8>> = Vec::new();
    for _ in 0..100 {
        match reader.poll(&world.region).unwrap() {
            Some(taken) => {
                let key_len = reader.changed().key_len;
                received.push(reader.verified(taken).payload[..key_len].to_vec());
            }
            None if received.iter().any(|key| key == KEY) => break,
            None => assert_eq!(reader.complete(), Sequence::NONE),
        }
    }
    assert!(received.len() == 2 && !reader.take_misread());
    assert_eq!(reader.complete().get(), 2);
}
