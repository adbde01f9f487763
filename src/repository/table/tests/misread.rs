//! Readers over a wire on which some fetches are wrong.

use super::*;
use crate::layout::WORD;
use crate::limits;
use crate::repository::Finding;

/// A reader, and the mirror of a world's table into which it fetches.
struct Fetching {
    reader: TableReader,
    mirror: Region,
    /// Fetches so far.
    count: usize,
    /// The time, and that between two fetches, ns.
    now_ns: u64,
    step_ns: u64,
    /// The least that the reader had taken after a fetch.
    least: Sequence,
}

impl Fetching {
    fn new(world: &World) -> Self {
        let mirror = Region::allocate(world.region.len(), Protection::PeersRead).unwrap();
        Self { reader: world.reader(), mirror, count: 0, now_ns: 0, step_ns: 0, least: Sequence::NONE }
    }

    /// Makes a pass, or finds nothing. `spoil` damages the words, at these offsets, of the fetch with this number. Returns the keys that
    /// it takes.
    fn pass(&mut self, world: &World, spoil: impl Fn(usize, &[usize], &Region)) -> Vec<Vec<u8>> {
        let Self { reader, mirror, count, now_ns, step_ns, least } = self;
        let mut taken = Vec::new();
        loop {
            let mut fetch = reader.plan();
            let finding = loop {
                let ranges = reader.ranges(&fetch).to_vec();
                let words = ranges.iter().flat_map(|it| (it.offset..it.offset + it.len).step_by(WORD));
                let words: Vec<usize> = words.collect();
                words.iter().for_each(|word| mirror.store(*word, world.region.load(*word)));
                spoil(*count, &words, mirror);
                (*count, *now_ns) = (*count + 1, *now_ns + *step_ns);
                let finding = reader.check(mirror, &fetch, u64::MAX);
                *least = reader.last().min(*least);
                match finding {
                    Ok(Finding::More(next)) => fetch = next,
                    Ok(finding) => break finding,
                    Err(failure) => panic!("{failure:?}"),
                }
            };
            // A rejected entry is fetched again.
            while let Ok(Some(change)) = reader.take_fetched(mirror, || *now_ns) {
                let key_len = reader.changed().key_len;
                taken.push(reader.verified(change).payload[..key_len].to_vec());
            }
            let (complete, newest) = (reader.complete(), world.writer.last());
            assert!(complete <= newest, "{complete} of {newest} after {count} fetches");
            if matches!(finding, Finding::Nothing) || *count > 1000 {
                return taken;
            }
        }
    }
}

const NOTHING: fn(usize, &[usize], &Region) = |_, _, _| {};

fn put(world: &mut World, key: &[u8]) {
    world.writer.room()[..key.len()].copy_from_slice(key);
    world.writer.stage_filled((key.len(), key.len() + 9), None, 1).unwrap();
    world.writer.commit(1);
}

/// Commits values of these keys, one after the other.
fn put_all(world: &mut World, keys: &[&[u8]]) {
    keys.iter().for_each(|key| put(world, key));
}

/// Sets the words of a fetch to 0 that begins with these.
fn hide(first: [usize; 2]) -> impl Fn(usize, &[usize], &Region) {
    move |_, words, mirror| {
        if words.starts_with(&first) {
            words.iter().for_each(|word| mirror.store(*word, 0));
        }
    }
}

/// A flipped bit made a line say that it had read all commits there will ever be.
#[test]
fn no_wrong_word_of_a_fetch_makes_a_later_commit_complete_than_there_is() {
    let mut world = World::new(2, 2, 1);
    put(&mut world, b"k");
    let (mut fetches, mut number) = (1, 0);
    while number < fetches {
        let mut word = 0;
        let words = std::cell::Cell::new(1);
        while word < words.get() {
            let mut fetching = Fetching::new(&world);
            for step in 0..6 {
                fetching.pass(&world, |count, offsets, mirror| {
                    if count == number {
                        words.set(offsets.len());
                        mirror.store(offsets[word], mirror.load(offsets[word]) ^ 1 << 40);
                    }
                });
                if step == 1 {
                    put(&mut world, b"l");
                }
            }
            put(&mut world, b"l");
            fetching.pass(&world, NOTHING);
            assert_eq!(fetching.reader.complete(), world.writer.last(), "fetch {number}, word {word}");
            fetches = fetches.max(fetching.count.min(12));
            word += 1;
        }
        number += 1;
    }
    assert_eq!(number, 12);
}

#[test]
fn key_that_a_wrong_fetch_has_hidden_is_found_and_that_is_told_once() {
    for is_changed in [false, true] {
        let mut world = World::new(4, 4, 1);
        put(&mut world, b"k");
        let mut fetching = Fetching::new(&world);
        assert_eq!(fetching.pass(&world, NOTHING), [b"k"]);
        put(&mut world, b"l");
        let geometry = world.writer.geometry();
        let hides = hide([0, 1].map(|cell| geometry.version_offset(cell)));
        assert!(fetching.pass(&world, &hides).is_empty());
        assert_eq!(fetching.reader.complete().get(), 2, "it is wrong");
        assert!(!fetching.reader.take_misread());
        let mut found = Vec::new();
        if is_changed {
            put(&mut world, b"l");
            found = fetching.pass(&world, NOTHING);
        }
        for _ in 0..limits::TABLE_AUDIT_ONE_IN {
            found.extend(fetching.pass(&world, NOTHING));
        }
        assert_eq!(found, [b"l"]);
        assert!(fetching.reader.take_misread() && !fetching.reader.take_misread());
        assert_eq!(fetching.reader.complete(), world.writer.last());
    }
}

/// Has the reader report the newest entry of a key as damaged, and a snapshot find it intact.
fn refuse(fetching: &mut Fetching, world: &World, cell: usize) {
    let geometry = world.writer.geometry();
    let stamp = Stamp::new(world.region.load(geometry.version_offset(cell)));
    let word = geometry.slot_offset(cell, stamp) + 48;
    fetching.step_ns = limits::DAMAGE_SETTLED_NS;
    assert!(fetching.pass(world, |_, _, mirror| mirror.store(word, !mirror.load(word))).is_empty());
    assert_eq!(fetching.reader.suspect_count(), 1);
    snapshot(&mut fetching.reader, &world.region);
    assert_eq!(fetching.reader.suspect_count(), 0);
}

#[test]
fn refused_entry_that_is_read_again_is_not_taken_for_a_wrong_fetch() {
    for before in 0..limits::TABLE_AUDIT_ONE_IN {
        let mut world = World::new(4, 4, 1);
        put_all(&mut world, &[b"k", b"l"]);
        let mut fetching = Fetching::new(&world);
        assert_eq!(fetching.pass(&world, NOTHING), [b"k", b"l"]);
        (0..before).for_each(|_| assert!(fetching.pass(&world, NOTHING).is_empty()));
        put(&mut world, b"k");
        refuse(&mut fetching, &world, 0);
        let mut found = Vec::new();
        fetching.least = fetching.reader.last();
        for _ in 0..2 * limits::TABLE_AUDIT_ONE_IN {
            found.extend(fetching.pass(&world, NOTHING));
        }
        assert_eq!((found, fetching.least.get()), (vec![b"k".to_vec()], 3));
        assert!(!fetching.reader.take_misread());
        assert_eq!(fetching.reader.complete().get(), 3);
    }
}

/// Before the audit, the entry of another key is read again.
#[test]
fn key_that_a_wrong_fetch_has_hidden_is_found_with_a_refused_entry_and_that_is_told() {
    let mut world = World::new(4, 4, 1);
    put(&mut world, b"k");
    let mut fetching = Fetching::new(&world);
    assert_eq!(fetching.pass(&world, NOTHING), [b"k"]);
    put(&mut world, b"l");
    let geometry = world.writer.geometry();
    assert!(fetching.pass(&world, hide([0, 1].map(|cell| geometry.version_offset(cell)))).is_empty());
    assert_eq!(fetching.reader.complete().get(), 2, "it is wrong");
    put(&mut world, b"k");
    refuse(&mut fetching, &world, 0);
    let mut found = fetching.pass(&world, NOTHING);
    found.sort_unstable();
    assert_eq!(found, [b"k", b"l"]);
    assert!(fetching.reader.take_misread());
}

/// Of what no page shows nothing is known.
#[test]
fn key_that_a_wrong_fetch_of_the_pages_has_hidden_is_found_by_the_next() {
    let mut world = World::new(4, 4, 1);
    put(&mut world, b"k");
    let mut fetching = Fetching::new(&world);
    assert_eq!(fetching.pass(&world, NOTHING), [b"k"]);
    put(&mut world, b"l");
    let pages = world.writer.geometry().pages().offset;
    assert!(fetching.pass(&world, hide([pages, pages + WORD])).is_empty());
    assert_eq!((fetching.reader.last().get(), fetching.reader.complete().get()), (1, 1));
    assert_eq!(fetching.pass(&world, NOTHING), [b"l"]);
    fetching.pass(&world, NOTHING);
    assert_eq!(fetching.reader.complete().get(), 2);
    assert!(!fetching.reader.take_misread());
}

#[test]
fn all_keys_are_taken_once_more_and_nothing_is_complete_before() {
    let mut world = World::new(600, 600, 1);
    let keys: Vec<Vec<u8>> = (0..600).map(|number| format!("k{number:03}").into_bytes()).collect();
    keys.iter().for_each(|key| put(&mut world, key));
    for is_wire in [false, true] {
        let mut fetching = Fetching::new(&world);
        let take = |fetching: &mut Fetching, most: usize| {
            if is_wire {
                return fetching.pass(&world, NOTHING);
            }
            let mut taken = Vec::new();
            while let Some(change) = fetching.reader.poll(&world.region).unwrap() {
                let key_len = fetching.reader.changed().key_len;
                taken.push(fetching.reader.verified(change).payload[..key_len].to_vec());
                if taken.len() == most {
                    break;
                }
            }
            taken
        };
        // In the middle of a pass, and at its end.
        let mut taken = take(&mut fetching, 300);
        fetching.reader.offer_again();
        taken.extend(take(&mut fetching, usize::MAX));
        if !is_wire {
            assert_eq!((taken.len(), fetching.reader.complete()), (600, Sequence::NONE));
            taken = take(&mut fetching, usize::MAX);
        }
        assert_eq!(taken.len(), if is_wire { 1200 } else { 600 });
        for _ in 0..2 {
            assert!(take(&mut fetching, usize::MAX).is_empty());
            assert_eq!(fetching.reader.complete(), world.writer.last());
            fetching.reader.offer_again();
            assert_eq!(fetching.reader.complete(), Sequence::NONE);
            let mut taken = take(&mut fetching, usize::MAX);
            taken.sort_unstable();
            assert_eq!(taken, keys);
        }
        assert!(!fetching.reader.take_misread());
        assert_eq!(fetching.reader.counts().conflated, 0);
    }
}

/// Takes everything that a reader of the world's memory finds. Returns the keys.
fn take_all(reader: &mut TableReader, world: &World) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    loop {
        match reader.poll(&world.region).expect("no wanted key is damaged") {
            Some(change) => {
                let key_len = reader.changed().key_len;
                keys.push(reader.verified(change).payload[..key_len].to_vec());
            }
            None if !reader.has_more() => return keys,
            None => {}
        }
    }
}

/// Reads all keys while a commit seems to be the newest that there is not, perhaps by the pages, too.
fn read_ahead(
    world: &World,
    reader: &mut TableReader,
    is_snapshot: bool,
    (newest, is_everywhere): (u64, bool),
) {
    match is_everywhere {
        true => world.writer.pretend_everywhere(Sequence::new(newest)),
        false => world.writer.pretend(Sequence::new(newest)),
    }
    if !is_snapshot {
        assert_eq!(look_up(reader, &world.region, b"-"), None);
    } else if is_everywhere {
        assert_eq!(snapshot(reader, &world.region).0, newest);
    } else {
        assert!(!is_readable(&mut SnapshotScan::new(reader), reader, world));
    }
}

/// Whether a snapshot comes to an end soon.
fn is_readable(scan: &mut SnapshotScan, reader: &mut TableReader, world: &World) -> bool {
    let end = scan.passes() + 20;
    while scan.passes() < end {
        if scan.step(reader, &world.region, None).is_some() {
            return true;
        }
    }
    false
}

/// How a table of two commits may seem to be ahead: far, or by the flip of one bit, as if it had the next one.
const AHEAD: [(u64, bool); 3] = [(1 << 40, true), (1 << 40, false), (3, false)];

#[test]
fn keys_are_found_after_the_table_seemed_to_be_ahead() {
    for (is_snapshot, ahead) in AHEAD.iter().flat_map(|ahead| [(true, *ahead), (false, *ahead)]) {
        let mut world = World::new(4, 4, 1);
        put(&mut world, b"x");
        put(&mut world, b"y");
        let mut reader = world.reader();
        read_ahead(&world, &mut reader, is_snapshot, ahead);
        put(&mut world, b"z");
        assert!(look_up(&mut reader, &world.region, b"z").is_some(), "{is_snapshot}, {ahead:?}");
        assert_eq!(snapshot(&mut reader, &world.region).1.len(), 3);
    }
}

#[test]
fn changes_are_received_after_the_table_seemed_to_be_ahead() {
    for (is_known, ahead) in AHEAD.iter().flat_map(|ahead| [(true, *ahead), (false, *ahead)]) {
        let (newest, is_everywhere) = ahead;
        let mut world = World::new(4, 4, 1);
        put(&mut world, b"x");
        put(&mut world, b"y");
        let (mut reader, mut fetching) = (world.reader(), Fetching::new(&world));
        let take_both = |reader: &mut TableReader, fetching: &mut Fetching, world: &World| {
            [take_all(reader, world), fetching.pass(world, NOTHING)]
        };
        if is_known {
            assert_eq!(take_both(&mut reader, &mut fetching, &world), [[b"x", b"y"]; 2]);
        }
        world.writer.pretend(Sequence::new(newest));
        if !is_everywhere {
            let taken = take_both(&mut reader, &mut fetching, &world);
            assert!(taken.iter().all(|keys| keys.len() == if is_known { 0 } else { 2 }), "{taken:?}");
            for reader in [&reader, &fetching.reader] {
                assert!(reader.last().get() == 2 && reader.complete().get() <= 2 && !reader.has_more());
            }
        }
        put(&mut world, b"z");
        let count = if is_known || !is_everywhere { 1 } else { 3 };
        assert!(take_both(&mut reader, &mut fetching, &world).iter().all(|keys| keys.len() == count));
        for reader in [&mut reader, &mut fetching.reader] {
            assert!(reader.last().get() == 3 && !reader.take_misread());
        }
    }
}

/// The commits repair the line. The pass has left the page of one of them, and finds the other.
#[test]
fn commits_during_a_pass_over_a_table_that_seemed_to_be_ahead_are_received() {
    for key in [b"x", b"z"] {
        let mut world = World::new(4, 4, 1);
        put_all(&mut world, &[b"x", b"y"]);
        let mut reader = world.reader();
        assert_eq!(take_all(&mut reader, &world), [b"x", b"y"]);
        put_all(&mut world, &[b"x", b"y"]);
        world.writer.pretend(Sequence::new(1 << 40));
        assert!(reader.poll(&world.region).unwrap().is_some());
        put_all(&mut world, &[key, b"y"]);
        let taken = take_all(&mut reader, &world);
        assert!(taken.contains(&key.to_vec()), "{taken:?}");
        assert_eq!((reader.last().get(), reader.complete().get()), (6, 6));
        assert!(look_up(&mut reader, &world.region, key).is_some() && !reader.take_misread());
    }
}

/// The versions are fetched in two parts, and the table changes in between.
#[test]
fn commits_between_fetches_of_a_table_that_seemed_to_be_ahead_are_received() {
    let cells = limits::TABLE_FETCH_LEN / WORD + 1;
    let key = |cell: usize| format!("k{cell:05}").into_bytes();
    let mut world = World::new(cells, 1, 1);
    (0..cells).for_each(|cell| put(&mut world, &key(cell)));
    world.writer.pretend(Sequence::new(1 << 40));
    let before = Region::allocate(world.region.len(), Protection::PeersRead).unwrap();
    world.region.write_across(0, &before, 0, world.region.len());
    put_all(&mut world, &[&key(0), &key(cells - 1)]);
    let (last, has_changed) =
        (world.writer.geometry().version_offset(cells - 1), std::cell::Cell::new(false));
    let mut fetching = Fetching::new(&world);
    let taken = fetching.pass(&world, |_, words, mirror| {
        has_changed.set(has_changed.get() || words.contains(&last));
        let unchanged = words.iter().filter(|_| !has_changed.get());
        unchanged.for_each(|word| mirror.store(*word, before.load(*word)));
    });
    assert_eq!((taken.len(), taken.iter().filter(|taken| **taken == key(0)).count()), (cells + 1, 2));
    assert_eq!(fetching.reader.complete(), world.writer.last());
}

/// Commits values of two keys, of which the cell of one does not show it yet. Returns the offset of its version, and that.
fn commit_in_part(world: &mut World) -> (usize, u64) {
    let offset = world.writer.geometry().version_offset(1);
    let before = world.region.load(offset);
    for key in [b"x", b"y"] {
        world.writer.room()[..1].copy_from_slice(key);
        world.writer.stage_filled((1, 10), None, 1).unwrap();
    }
    world.writer.commit(1);
    let version = world.region.load(offset);
    world.region.store(offset, before);
    (offset, version)
}

/// Its page shows it, and some of its cells do.
#[test]
fn rest_of_a_commit_that_was_under_way_while_the_table_seemed_to_be_ahead_is_received() {
    let mut world = World::new(4, 4, 1);
    put_all(&mut world, &[b"x", b"y"]);
    let (mut reader, mut fetching) = (world.reader(), Fetching::new(&world));
    let mut take_both = |world: &World| [take_all(&mut reader, world), fetching.pass(world, NOTHING)];
    assert_eq!(take_both(&world), [[b"x", b"y"]; 2]);
    let (offset, version) = commit_in_part(&mut world);
    world.writer.pretend(Sequence::new(1 << 40));
    assert_eq!(take_both(&world), [[b"x"]; 2]);
    assert_eq!(take_both(&world), [(); 2].map(|()| Vec::<Vec<u8>>::new()));
    world.region.store(offset, version);
    world.writer.pretend(world.writer.last());
    assert_eq!(take_both(&world), [[b"y"]; 2]);
    for reader in [&mut reader, &mut fetching.reader] {
        assert_eq!((reader.last().get(), reader.complete().get()), (3, 3));
        assert!(!reader.take_misread());
    }
}

/// The table has come to it at the next poll.
#[test]
fn rest_of_a_commit_that_was_under_way_before_the_one_that_was_named_too_early_is_received() {
    let mut world = World::new(4, 4, 1);
    put_all(&mut world, &[b"x", b"y"]);
    let (mut reader, mut fetching) = (world.reader(), Fetching::new(&world));
    assert_eq!([take_all(&mut reader, &world), fetching.pass(&world, NOTHING)], [[b"x", b"y"]; 2]);
    let (offset, version) = commit_in_part(&mut world);
    world.writer.pretend(Sequence::new(4));
    assert_eq!([take_all(&mut reader, &world), fetching.pass(&world, NOTHING)], [[b"x"]; 2]);
    world.region.store(offset, version);
    put(&mut world, b"x");
    assert_eq!([take_all(&mut reader, &world), fetching.pass(&world, NOTHING)], [[b"x", b"y"]; 2]);
    for reader in [&mut reader, &mut fetching.reader] {
        assert_eq!((reader.last().get(), reader.complete().get()), (4, 4));
        assert!(!reader.take_misread());
    }
}

/// The page that was read before has changed, and of the other one no key is wanted.
#[test]
fn commits_while_pages_are_fetched_of_a_table_that_seemed_to_be_ahead_are_received() {
    const CELLS: usize = crate::layout::table::PAGE_CELLS + 1;
    let key = |cell: usize| format!("k{cell:03}").into_bytes();
    let mut world = World::new(CELLS, 1, 1);
    (0..CELLS).for_each(|cell| put(&mut world, &key(cell)));
    let mut fetching = Fetching::new(&world);
    let first = key(0);
    fetching.reader.set_interest(Interest::Those(Box::new(move |key| key == first)));
    assert_eq!(fetching.pass(&world, NOTHING), [key(0)]);
    world.writer.pretend(Sequence::new(1 << 40));
    let before = Region::allocate(world.region.len(), Protection::PeersRead).unwrap();
    world.region.write_across(0, &before, 0, world.region.len());
    put_all(&mut world, &[&key(0), &key(CELLS - 1)]);
    let (page, fetches) = (world.writer.geometry().page_offset(0), std::cell::Cell::new(0));
    let taken = fetching.pass(&world, |_, words, mirror| {
        let old: &[usize] = match fetches.replace(fetches.get() + 1) {
            0 => words,
            1 => &[page],
            _ => &[],
        };
        old.iter().for_each(|word| mirror.store(*word, before.load(*word)));
    });
    assert_eq!(taken, [key(0)]);
    assert_eq!(fetching.reader.complete(), world.writer.last());
}

/// It would leave out what the sequence is given to.
#[test]
fn snapshot_is_of_no_commit_that_there_is_not() {
    for newest in [3, 4, 1 << 40] {
        let mut world = World::new(4, 4, 1);
        put(&mut world, b"x");
        put(&mut world, b"y");
        world.writer.pretend(Sequence::new(newest));
        let mut reader = world.reader();
        let mut scan = SnapshotScan::new(&reader);
        assert!(!is_readable(&mut scan, &mut reader, &world), "{newest}");
        put(&mut world, b"z");
        assert!(is_readable(&mut scan, &mut reader, &world));
        assert_eq!(table_of(&scan, &reader).len(), 3);
        // A version confirms the sequence, too, if the page shows an earlier one.
        world.region.store(world.writer.geometry().page_offset(0), 1);
        assert_eq!(snapshot(&mut reader, &world.region).0, 3);
    }
}

/// An entry that is not committed yet, and may never be. A damaged version shows no commit, either.
#[test]
fn snapshot_holds_no_entry_that_was_discarded() {
    for is_version_damaged in [false, true] {
        let mut world = World::new(4, 4, 1);
        put(&mut world, b"x");
        put(&mut world, b"y");
        world.writer.room()[..1].copy_from_slice(b"x");
        world.writer.stage_filled((1, 10), None, 1).unwrap();
        let mut reader = world.reader();
        let mut scan = SnapshotScan::new(&reader);
        world.writer.pretend(Sequence::new(3));
        let version = world.writer.geometry().version_offset(0);
        let right = world.region.load(version);
        if is_version_damaged {
            world.region.store(version, Stamp::NONE.next(Sequence::new(1 << 40)).get());
        }
        assert!(!is_readable(&mut scan, &mut reader, &world), "{is_version_damaged}");
        world.region.store(version, right);
        world.writer.pretend(Sequence::new(2));
        world.writer.discard();
        assert!(is_readable(&mut scan, &mut reader, &world), "{is_version_damaged}");
        let sequences: Vec<_> = table_of(&scan, &reader).into_values().map(|held| held.sequence).collect();
        assert_eq!(sequences, [1, 2]);
    }
}

#[test]
fn wanted_key_of_a_reused_cell_is_received_after_the_table_seemed_to_be_ahead() {
    for (is_snapshot, ahead) in AHEAD.iter().flat_map(|ahead| [(true, *ahead), (false, *ahead)]) {
        for is_changed in [true, false] {
            let mut world = World::new(4, 4, 1);
            put(&mut world, b"x");
            put(&mut world, b"b");
            let mut reader = world.reader();
            reader.set_interest(Interest::Those(Box::new(|key| key != b"x")));
            assert_eq!(take_all(&mut reader, &world), [b"b"]);
            read_ahead(&world, &mut reader, is_snapshot, ahead);
            world.writer.room()[..1].copy_from_slice(b"x");
            assert!(world.writer.stage_removal(1, 1) && world.writer.commit(1).is_some());
            put(&mut world, b"w");
            if is_changed {
                assert_eq!(take_all(&mut reader, &world), [b"w"]);
            }
            let (_, table) = snapshot(&mut reader, &world.region);
            assert_eq!(table.keys().collect::<Vec<_>>(), [b"b", b"w"]);
        }
    }
}

/// A table whose newest entry is damaged, and a reader that does not want its key.
fn damaged_unwanted() -> (World, TableReader) {
    let mut world = World::new(4, 4, 1);
    put(&mut world, b"x");
    put(&mut world, b"b");
    let mut reader = world.reader();
    reader.set_interest(Interest::Those(Box::new(|key| key != b"x")));
    assert_eq!(take_all(&mut reader, &world), [b"b"]);
    put(&mut world, b"x");
    world.writer.room()[..1].copy_from_slice(b"x");
    world.writer.damage(1);
    (world, reader)
}

/// Its changes were not read, because nobody wants them.
#[test]
fn damaged_entry_of_an_unwanted_key_is_no_wrong_read() {
    let (mut world, mut reader) = damaged_unwanted();
    assert!(take_all(&mut reader, &world).is_empty());
    // The snapshot reads every cell of its page.
    put(&mut world, b"n");
    assert_eq!(snapshot(&mut reader, &world.region).1.len(), 2);
    assert_eq!(reader.suspect_count(), 1);
    assert_eq!(take_all(&mut reader, &world), [b"n"]);
    for _ in 0..2 * limits::TABLE_PASS_AUDIT_ONE_IN {
        put(&mut world, b"b");
        assert_eq!(take_all(&mut reader, &world), [b"b"]);
    }
    assert!(!reader.take_misread());
    assert_eq!((reader.counts().rejected, reader.suspect_count()), (0, 1));
    // The next entry of its cell shows whose it is.
    put(&mut world, b"x");
    assert!(take_all(&mut reader, &world).is_empty());
    assert_eq!(reader.suspect_count(), 0);
}

/// A snapshot finds the damaged entry when its cell has another one, which a pass has read since.
#[test]
fn damaged_entry_before_the_newest_of_an_unwanted_key_is_no_wrong_read() {
    let (mut world, mut reader) = damaged_unwanted();
    // The next key makes the snapshot read all cells of its page.
    put(&mut world, b"n");
    let mut scan = SnapshotScan::new(&reader);
    // The eighth pass, before it reads the versions.
    let versions = world.writer.geometry().version_offset(0);
    let is_then = |scan: &SnapshotScan| scan.passes() == 7 && scan.ranges()[0].offset == versions;
    while !is_then(&scan) {
        assert_eq!(scan.step(&mut reader, &world.region, None), None);
    }
    put(&mut world, b"x");
    assert_eq!(take_all(&mut reader, &world), [b"n"]);
    let sequence = loop {
        if let Some(sequence) = scan.step(&mut reader, &world.region, None) {
            break sequence.get();
        }
    };
    assert_eq!((sequence, scan.damaged()), (4, 1));
    for _ in 0..2 * limits::TABLE_PASS_AUDIT_ONE_IN {
        put(&mut world, b"b");
        assert_eq!(take_all(&mut reader, &world), [b"b"]);
    }
    assert!(!reader.take_misread());
}
