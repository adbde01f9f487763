//! A subscription that is found again, at a publisher whose table has a damaged entry.

use std::collections::BTreeSet;

use super::*;
use crate::repository::table::recalled::{Gone, Recalled};

pub(super) const KEY: &[u8] = b"k";
pub(super) const OTHER: &[u8] = b"other";
pub(super) const GONE: &[u8] = b"gone";

/// What was received: a key, and whether it has a value; an empty one is an error.
pub(super) type Received<'a> = (&'a [u8], bool);

pub(super) const DAMAGED: Received<'static> = (b"", false);

fn name(world: &mut World, key: &[u8], at: u64) {
    world.writer.set_next(Sequence::new(at));
    world.writer.room()[..key.len()].copy_from_slice(key);
}

pub(super) fn put(world: &mut World, key: &[u8], at: u64) {
    name(world, key, at);
    world.writer.stage_filled((key.len(), key.len() + 9), None, 1).unwrap();
    world.writer.commit(1);
}

pub(super) fn remove(world: &mut World, key: &[u8], at: u64) {
    name(world, key, at);
    assert!(world.writer.stage_removal(key.len(), 1));
    world.writer.commit(1);
}

/// Removes a key and adds it again in one commit: its last life ends in a cell before that of the new one.
fn replace(world: &mut World, key: &[u8], at: u64) {
    name(world, key, at);
    assert!(world.writer.stage_removal(key.len(), 1));
    world.writer.room()[..key.len()].copy_from_slice(key);
    world.writer.stage_filled((key.len(), key.len() + 9), None, 1).unwrap();
    world.writer.commit(1);
}

/// Receives until there is nothing more.
pub(super) fn receive(reader: &mut TableReader, memory: &Region) -> Vec<(Vec<u8>, bool)> {
    let mut received = Vec::new();
    loop {
        match reader.poll(memory) {
            Ok(Some(taken)) => {
                let ChangedKey { key_len, is_present, .. } = reader.changed();
                received.push((reader.verified(taken).payload[..key_len].to_vec(), is_present));
            }
            Ok(None) if !reader.has_more() => return received,
            Ok(None) => {}
            Err(_) => received.push((Vec::new(), false)),
        }
    }
}

pub(super) fn assert_received(reader: &mut TableReader, memory: &Region, expected: &[Received<'_>]) {
    let received = receive(reader, memory);
    let received: Vec<_> = received.iter().map(|(key, is_present)| (&key[..], *is_present)).collect();
    assert_eq!(received, expected);
}

/// A copy of the table in which the newest entry of [`KEY`] is damaged.
pub(super) fn damaged(world: &World) -> Region {
    let mut reader = world.reader();
    receive(&mut reader, &world.region);
    let (geometry, cell) = (world.writer.geometry(), reader.cell_of(KEY).unwrap());
    let copy = Region::allocate(world.region.len(), Protection::PeersWrite).unwrap();
    world.region.write_across(0, &copy, 0, world.region.len());
    let word = geometry.slot_offset(cell, Stamp::new(copy.load(geometry.version_offset(cell)))) + 48;
    copy.store(word, !copy.load(word));
    copy
}

/// A reader that goes on after these keys were received, the last one at the last commit.
fn resumed(world: &World, keys: &[(&[u8], u64)]) -> TableReader {
    let mut first = World::new(8, 4, 1);
    keys.iter().for_each(|(key, at)| put(&mut first, key, *at));
    let mut before = first.reader();
    receive(&mut before, &first.region);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    reader
}

/// All three keys were received. The next publisher has the first one, damaged, and the other one. The reader has read that.
fn begin() -> (World, TableReader, Region) {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 10);
    put(&mut world, OTHER, 11);
    let (mut reader, copy) = (resumed(&world, &[(KEY, 1), (OTHER, 2), (GONE, 3)]), damaged(&world));
    assert_received(&mut reader, &copy, &[DAMAGED, (OTHER, true)]);
    (world, reader, copy)
}

/// The next publisher died while it wrote the entry.
#[test]
fn no_key_is_gone_while_a_damaged_entry_may_be_its_own() {
    let (mut world, mut reader, _) = begin();
    put(&mut world, OTHER, 12);
    let copy = damaged(&world);
    assert_received(&mut reader, &copy, &[(OTHER, true)]);
    put(&mut world, KEY, 13);
    assert_received(&mut reader, &world.region, &[(KEY, true), (GONE, false)]);
    put(&mut world, OTHER, 14);
    assert_received(&mut reader, &world.region, &[(OTHER, true)]);
    assert_eq!((reader.suspect_count(), reader.complete().get()), (0, 14));
}

#[test]
fn removal_of_the_damaged_key_shows_which_others_are_gone() {
    let (mut world, mut reader, _) = begin();
    remove(&mut world, KEY, 12);
    assert_received(&mut reader, &world.region, &[(KEY, false), (GONE, false)]);
    assert_eq!((reader.suspect_count(), reader.complete().get()), (0, 12));
}

/// The publisher repeats commits, and the last value of the key was received before.
#[test]
fn known_value_of_the_damaged_key_shows_which_others_are_gone() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    let mut reader = resumed(&world, &[(KEY, 1), (GONE, 2), (OTHER, 3), (KEY, 5)]);
    let copy = damaged(&world);
    assert_received(&mut reader, &copy, &[DAMAGED]);
    put(&mut world, OTHER, 3);
    put(&mut world, KEY, 5);
    assert_received(&mut reader, &world.region, &[(GONE, false)]);
    assert_eq!((reader.suspect_count(), reader.complete().get()), (0, 5));
}

/// The entry was not damaged for ever: a snapshot has read it, so that a pass does, too.
#[test]
fn key_that_a_snapshot_has_read_meanwhile_is_not_gone() {
    let (mut world, mut reader, _) = begin();
    let (_, table) = snapshot(&mut reader, &world.region);
    assert!(table.contains_key(KEY) && reader.suspect_count() == 0);
    put(&mut world, OTHER, 12);
    assert_received(&mut reader, &world.region, &[(KEY, true), (OTHER, true), (GONE, false)]);
    put(&mut world, KEY, 13);
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
}

#[test]
fn values_are_offered_again_while_an_entry_is_damaged() {
    let (_, mut reader, copy) = begin();
    reader.offer_again();
    assert_received(&mut reader, &copy, &[(OTHER, true)]);
}

/// Nothing visited its cell any more.
#[test]
fn damaged_key_that_is_no_longer_wanted_is_suspect_until_it_changes() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    let mut reader = world.reader();
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    put(&mut world, KEY, 2);
    let copy = damaged(&world);
    assert_received(&mut reader, &copy, &[DAMAGED]);
    for _ in 0..2 {
        reader.set_interest(Interest::Those(Box::new(|key: &[u8]| key != KEY)));
        receive(&mut reader, &copy);
        assert_eq!(reader.suspect_count(), 1);
    }
    put(&mut world, KEY, 3);
    assert_received(&mut reader, &world.region, &[]);
    assert_eq!(reader.suspect_count(), 0);
}

/// A copy of the table in which the version of [`KEY`] names a later commit.
pub(super) fn with_later_version(world: &World) -> Region {
    let mut reader = world.reader();
    receive(&mut reader, &world.region);
    let version = world.writer.geometry().version_offset(reader.cell_of(KEY).unwrap());
    let copy = Region::allocate(world.region.len(), Protection::PeersWrite).unwrap();
    world.region.write_across(0, &copy, 0, world.region.len());
    copy.store(version, copy.load(version) ^ 1 << 50);
    copy
}

/// A table whose reader has received a value of [`KEY`], and reported that its version is damaged.
fn report_later_version() -> (World, TableReader) {
    let mut world = World::new(4, 4, 1);
    put(&mut world, KEY, 1);
    let mut reader = world.reader();
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    put(&mut world, OTHER, 2);
    assert_received(&mut reader, &with_later_version(&world), &[DAMAGED, (OTHER, true)]);
    (world, reader)
}

/// The key is removed and added again; in between its cell has another key, and the subscription is lost.
#[test]
fn key_whose_version_named_a_later_commit_is_received_again() {
    let (mut world, mut before) = report_later_version();
    remove(&mut world, KEY, 3);
    (4..7_u8).for_each(|sequence| put(&mut world, &[sequence], sequence.into()));
    let received = receive(&mut before, &world.region);
    assert!(received.contains(&(KEY.to_vec(), false)) && received.len() == 4, "{received:?}");
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert_received(&mut reader, &world.region, &[]);
    remove(&mut world, &[6], 7);
    put(&mut world, KEY, 8);
    assert_received(&mut reader, &world.region, &[(KEY, true), (&[6], false)]);
    assert_eq!(reader.complete().get(), 8);
}

/// A snapshot has read the value that follows the damaged one, and the subscription is lost before it is received.
#[test]
fn value_after_one_whose_version_named_a_later_commit_is_received() {
    let (mut world, mut before) = report_later_version();
    put(&mut world, KEY, 3);
    assert_eq!(snapshot(&mut before, &world.region).1.len(), 2);
    assert_eq!(before.suspects().count(), 0);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    assert_eq!(reader.complete().get(), 3);
}

/// Its newest entry, or that entry's version, is damaged.
const BOTH: [fn(&World) -> Region; 2] = [damaged, with_later_version];

/// A table whose reader has received a value of [`KEY`], and reported that the next one is damaged.
pub(super) fn report_damaged(damage: fn(&World) -> Region) -> (World, TableReader) {
    let mut world = World::new(4, 4, 1);
    put(&mut world, KEY, 1);
    let mut reader = world.reader();
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    put(&mut world, KEY, 2);
    put(&mut world, OTHER, 3);
    assert_received(&mut reader, &damage(&world), &[DAMAGED, (OTHER, true)]);
    (world, reader)
}

/// It was removed and added again after a damaged value; a snapshot has read that before the subscription is lost.
#[test]
fn key_that_is_added_again_after_a_damaged_value_is_received() {
    for damage in BOTH {
        let (mut world, mut before) = report_damaged(damage);
        remove(&mut world, KEY, 4);
        put(&mut world, KEY, 5);
        assert_eq!(snapshot(&mut before, &world.region).1.len(), 2);
        let mut reader = world.reader();
        reader.resume(&mut before, true);
        assert_received(&mut reader, &world.region, &[(KEY, true)]);
        assert_eq!(reader.complete().get(), 5);
    }
}

/// It was added again in another cell, and another key in its own. The subscription is lost between the two.
#[test]
fn key_that_moved_after_a_damaged_value_is_received() {
    for damage in BOTH {
        let mut world = World::new(4, 4, 1);
        for (key, sequence) in [(KEY, 1), (GONE, 2), (OTHER, 3)] {
            put(&mut world, key, sequence);
        }
        let mut before = world.reader();
        assert_eq!(receive(&mut before, &world.region).len(), 3);
        put(&mut world, KEY, 4);
        put(&mut world, OTHER, 5);
        assert_received(&mut before, &damage(&world), &[DAMAGED, (OTHER, true)]);
        remove(&mut world, GONE, 6);
        remove(&mut world, KEY, 7);
        put(&mut world, KEY, 8);
        put(&mut world, b"new", 9);
        for expected in [(&b"new"[..], true), (KEY, false)] {
            let taken = before.poll(&world.region).unwrap().expect("a change");
            let ChangedKey { key_len, is_present, .. } = before.changed();
            assert_eq!((&before.verified(taken).payload[..key_len], is_present), expected);
        }
        let mut reader = world.reader();
        reader.resume(&mut before, true);
        assert_received(&mut reader, &world.region, &[(KEY, true), (GONE, false)]);
        assert_eq!(reader.complete().get(), 9);
    }
}

/// The next commit of its key is under way.
#[test]
fn value_after_a_damaged_one_is_received_while_the_next_is_published() {
    for damage in BOTH {
        let (mut world, mut reader) = report_damaged(damage);
        (4..6).for_each(|sequence| put(&mut world, KEY, sequence));
        world.writer.pretend(Sequence::new(4));
        assert_received(&mut reader, &world.region, &[(KEY, true)]);
        assert_eq!((reader.last().get(), reader.suspect_count()), (4, 0));
    }
}

#[test]
fn key_that_one_commit_removed_and_added_is_not_reported_as_removed_by_the_next_subscription() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    let mut before = world.reader();
    assert_received(&mut before, &world.region, &[(KEY, true)]);
    replace(&mut world, KEY, 2);
    assert_received(&mut before, &world.region, &[(KEY, false), (KEY, true)]);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert_received(&mut reader, &world.region, &[]);
    assert_eq!(reader.complete().get(), 2);
    remove(&mut world, KEY, 3);
    assert_received(&mut reader, &world.region, &[(KEY, false)]);
}

/// The subscription was lost when it had reported the removal.
#[test]
fn key_that_one_commit_removed_and_added_is_received_by_the_next_subscription() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    let mut before = world.reader();
    assert_received(&mut before, &world.region, &[(KEY, true)]);
    replace(&mut world, KEY, 2);
    let removal = before.poll(&world.region).unwrap();
    assert!(removal.is_some() && !before.changed().is_present);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    assert_eq!(reader.complete().get(), 2);
}

/// Changes a key several times in one commit: to a value or to none.
fn change(world: &mut World, key: &[u8], changes: &[bool], at: u64) {
    name(world, key, at);
    for is_value in changes {
        world.writer.room()[..key.len()].copy_from_slice(key);
        match is_value {
            true => world.writer.stage_filled((key.len(), key.len() + 9), None, 1).map(drop).unwrap(),
            false => assert!(world.writer.stage_removal(key.len(), 1)),
        }
    }
    world.writer.commit(1);
}

/// All its values but the last were added by the commit that removed them.
#[test]
fn key_that_one_commit_added_twice_is_not_reported_as_removed_by_the_next_subscription() {
    for changes in [&[true, false, true][..], &[true, false, true, false, true]] {
        let mut world = World::new(8, 4, 1);
        change(&mut world, KEY, changes, 1);
        let mut before = world.reader();
        assert_received(&mut before, &world.region, &[(KEY, true)]);
        let mut reader = world.reader();
        reader.resume(&mut before, true);
        assert_received(&mut reader, &world.region, &[]);
        assert_eq!(reader.complete().get(), 1);
        remove(&mut world, KEY, 2);
        assert_received(&mut reader, &world.region, &[(KEY, false)]);
    }
}

/// The subscription was lost when it had reported the first removal.
#[test]
fn key_that_one_commit_added_after_two_removals_is_received_by_the_next_subscription() {
    for changes in [&[false, true, false, true][..], &[false, true, false, true, false, true]] {
        let mut world = World::new(8, 4, 1);
        put(&mut world, KEY, 1);
        let mut before = world.reader();
        assert_received(&mut before, &world.region, &[(KEY, true)]);
        change(&mut world, KEY, changes, 2);
        let removal = before.poll(&world.region).unwrap();
        assert!(removal.is_some() && !before.changed().is_present);
        let mut reader = world.reader();
        reader.resume(&mut before, true);
        assert_received(&mut reader, &world.region, &[(KEY, true)]);
        assert_eq!(reader.complete().get(), 2);
    }
}

/// The commit that removed it was not read, and the next one added it, in the same cell, removed it, and added it in another one.
#[test]
fn key_that_the_second_commit_added_twice_is_received_by_the_next_subscription() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    let mut before = world.reader();
    assert_received(&mut before, &world.region, &[(KEY, true)]);
    remove(&mut world, KEY, 2);
    change(&mut world, KEY, &[true, false, true], 3);
    let first = before.poll(&world.region).unwrap();
    let is_removal = first.is_some() && !before.changed().is_present;
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert!(is_removal);
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    assert_eq!(reader.complete().get(), 3);
}

/// The program knows that its last key is gone: nothing more is to come.
#[test]
fn table_is_complete_after_a_removal_that_was_reported_before() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    let mut before = world.reader();
    assert_received(&mut before, &world.region, &[(KEY, true)]);
    remove(&mut world, KEY, 2);
    let removal = before.poll(&world.region).unwrap();
    assert!(removal.is_some() && !before.changed().is_present);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert_received(&mut reader, &world.region, &[]);
    assert_eq!(reader.complete().get(), 2);
}

/// Each publisher has a damaged entry, which may be of any key received before, and other keys.
#[test]
fn keys_of_tables_that_are_never_read_whole_are_not_held_without_bound() {
    const CAPACITY: usize = 8;
    const KEYS: u64 = CAPACITY as u64 - 1;
    let mut before = World::new(CAPACITY, 4, 1).reader();
    let mut held = BTreeSet::new();
    for round in 0..40 {
        let mut world = World::new(CAPACITY, 4, 1);
        let first = round * KEYS + 1;
        put(&mut world, KEY, first);
        (1..=KEYS).for_each(|key| put(&mut world, format!("{}", round * KEYS + key).as_bytes(), first + key));
        let mut reader = world.reader();
        reader.resume(&mut before, true);
        for (key, is_present) in receive(&mut reader, &damaged(&world)) {
            match (key.is_empty(), is_present) {
                (true, _) => {}
                (_, true) => assert!(held.insert(key.clone()), "{key:?} twice"),
                (_, false) => assert!(held.remove(&key), "{key:?} is not there"),
            }
        }
        // With those of this subscription.
        assert!(held.len() <= 5 * CAPACITY, "{}", held.len());
        before = reader;
    }
    // The entry that was damaged shows which keys are gone.
    let mut world = World::new(CAPACITY, 4, 1);
    put(&mut world, OTHER, 1000);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    for (key, is_present) in receive(&mut reader, &world.region) {
        assert!(if is_present { held.insert(key) } else { held.remove(&key) });
    }
    assert_eq!(held, BTreeSet::from([OTHER.to_vec()]));
}

/// A table in which one entry stays damaged, so that no key can be found to be gone, and whose other keys are replaced, except one.
#[test]
fn key_that_each_subscription_has_seen_is_never_reported_as_removed() {
    const CAPACITY: u64 = 8;
    let mut world = World::new(8, 4, 1);
    put(&mut world, OTHER, 1);
    put(&mut world, KEY, 2);
    let mut before = world.reader();
    for round in 0..20 {
        let at = 3 + round * 2 * CAPACITY;
        for key in 0..CAPACITY - 2 {
            put(&mut world, format!("{round}-{key}").as_bytes(), at + key);
        }
        let mut reader = world.reader();
        reader.resume(&mut before, true);
        let received = receive(&mut reader, &damaged(&world));
        assert!(round == 0 || received.iter().all(|(key, _)| key != OTHER), "{round}: {received:?}");
        for key in 0..CAPACITY - 2 {
            remove(&mut world, format!("{round}-{key}").as_bytes(), at + CAPACITY + key);
        }
        before = reader;
    }
}

#[test]
fn removed_keys_are_not_remembered_without_bound() {
    let key = |number: u64| number.to_le_bytes().into();
    let gone = (1..100).map(|number| (key(number), Gone::Removal(Sequence::new(number))));
    let mut recalled = Recalled { gone: gone.collect(), ..Recalled::default() };
    assert!(recalled.limit(8).is_empty());
    assert!(recalled.gone.len() <= 32 && recalled.gone.contains_key(&key(99)[..]), "{}", recalled.gone.len());
}

/// The removal was found by a pass that was over, and an entry of another key is damaged.
#[test]
fn removed_key_of_a_publisher_that_is_behind_is_not_received_again_beside_a_damaged_one() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    put(&mut world, GONE, 2);
    let behind = damaged(&world);
    let mut before = world.reader();
    assert_received(&mut before, &behind, &[DAMAGED, (GONE, true)]);
    remove(&mut world, GONE, 3);
    put(&mut world, OTHER, 4);
    assert_received(&mut before, &damaged(&world), &[(OTHER, true), (GONE, false)]);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert_received(&mut reader, &behind, &[DAMAGED]);
}

/// No pass reads its cell any more.
#[test]
fn damaged_entry_that_a_snapshot_finds_to_be_unwanted_keeps_no_other_key() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 10);
    put(&mut world, OTHER, 11);
    let interest = || Interest::Those(Box::new(|key: &[u8]| key != KEY));
    let mut first = World::new(8, 4, 1);
    [(OTHER, 1), (GONE, 2)].into_iter().for_each(|(key, at)| put(&mut first, key, at));
    let mut before = first.reader();
    before.set_interest(interest());
    receive(&mut before, &first.region);
    let mut reader = world.reader();
    reader.set_interest(interest());
    reader.resume(&mut before, true);
    assert_received(&mut reader, &damaged(&world), &[DAMAGED, (OTHER, true)]);
    snapshot(&mut reader, &world.region);
    put(&mut world, OTHER, 12);
    assert_received(&mut reader, &world.region, &[(OTHER, true), (GONE, false)]);
    assert_eq!((reader.suspect_count(), reader.complete().get()), (0, 12));
}

/// The subscription before has read all but its damaged entry.
#[test]
fn key_whose_first_entry_was_damaged_is_received_by_the_next_subscription() {
    let mut world = World::new(8, 4, 1);
    put(&mut world, KEY, 1);
    put(&mut world, OTHER, 2);
    let mut before = world.reader();
    assert_received(&mut before, &damaged(&world), &[DAMAGED, (OTHER, true)]);
    let mut reader = world.reader();
    reader.resume(&mut before, true);
    assert_received(&mut reader, &world.region, &[(KEY, true)]);
    assert_eq!(reader.complete().get(), 2);
}
