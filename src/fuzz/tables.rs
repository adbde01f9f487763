//! The repository of a table under its reader.

use std::sync::Arc;

use super::input::Input;
use super::regions::{EPOCH, Received, STEPS_MAX, TOPIC, Way, World, payload};
use crate::id::Sequence;
use crate::layout::table::{
    ABSENT, ENTRY_WORD, EntryCheck, EntryHeader, LEAD_WORDS, PRESENT, SLOT_CRC, SLOT_RUN, Stamp,
    TableGeometry, entry_words,
};
use crate::layout::{Geometry, WORD};
use crate::memory::{Protection, Region};
use crate::repository::table::{Interest, SnapshotScan, TableReader, TableWriter};
use crate::repository::{GrantedAt, Reader, Writer};

const KEY_LEN_MAX: usize = 8;
const ENTRY_LEN_MAX: usize = 64;
/// So many wrong bits may show an entry that is not committed: three make the version of the cell that of the entry (the commit, the slot,
/// the revision), and one the newest sequence.
const FLIPS_UNCOMMITTED: u32 = 4;
/// After so many entries a cell has the first one's revision again: then it takes one less.
const REVISIONS: usize = 128;
/// The longest value.
const VALUE_LEN_MAX: usize = ENTRY_LEN_MAX - KEY_LEN_MAX - 1;

/// Steps of a writer, of its reader, and of what changes the memory between them.
pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let capacity = 1 + usize::from(input.byte() % 6);
    let geometry = TableGeometry::new(capacity, KEY_LEN_MAX, ENTRY_LEN_MAX).expect("a geometry");
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).expect("memory"));
    let header = Geometry::from(geometry).static_header(EPOCH, TOPIC, 0);
    let mut writer = TableWriter::new(Arc::clone(&region), geometry, &header);
    let open = |newest| {
        let granted = GrantedAt { newest, after: Sequence::NONE };
        TableReader::open(&geometry.into(), (EPOCH, TOPIC), granted, ()).expect("its geometry")
    };
    let mut world = World::new(&mut input, &region, geometry.region_len(), open(Sequence::NONE));
    let mut staged = 0;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let newest = writer.last();
        let flips_uncommitted = FLIPS_UNCOMMITTED - u32::from(staged >= REVISIONS);
        match input.byte() % 24 {
            choice @ 0..=11 => {
                world.step(choice, &mut input, |received| check(&received, newest, flips_uncommitted))
            }
            12 => forge(&mut world, &geometry, &mut input),
            13 => {
                let mut before = world.replace(open(newest));
                world.reader.resume(&mut before, input.byte().is_multiple_of(2));
            }
            14 if world.way() == Way::Mapped => snapshot(&mut world, newest, flips_uncommitted),
            15 => world.reader.set_interest(match input.byte() % 3 {
                0 => Interest::All,
                _ => Interest::Those(Box::new(|key| key.first().is_some_and(|byte| byte % 2 == 1))),
            }),
            16 => world.reader.offer_again(),
            17 => writer.discard(),
            18 | 19 => {
                writer.commit(newest.get() + 1);
            }
            _ => {
                stage(&mut writer, newest.get() + 1, input.byte());
                staged += 1;
            }
        }
        let _ = (world.reader.damaged(), world.reader.complete(), world.reader.take_misread());
    }
}

/// The key of this number.
fn key(number: u8) -> Vec<u8> {
    vec![number % 8; usize::from(number % 8)]
}

/// Stages a value of a key, of this commit, or its removal.
fn stage(writer: &mut TableWriter, commit: u64, choice: u8) {
    let key = key(choice);
    let value = payload(commit.wrapping_mul(8) + u64::from(choice % 8), VALUE_LEN_MAX);
    let entry = [&key[..], &[PRESENT], &value].concat();
    writer.room().split_at_mut(entry.len()).0.copy_from_slice(&entry);
    if choice >= 200 {
        let _ = writer.stage_removal(key.len(), commit);
    } else {
        let _ = writer.stage_filled((key.len(), entry.len()), None, commit);
    }
}

/// Whether this entry of this commit can have been staged.
fn is_right(entry: &[u8], key_len: usize, commit: u64) -> bool {
    let (of_key, rest) = entry.split_at(key_len);
    let number = of_key.first().copied().unwrap_or(0);
    let Some((presence, value)) = rest.split_first() else { return false };
    let expected = payload(commit.wrapping_mul(8) + u64::from(number % 8), VALUE_LEN_MAX);
    of_key == key(number) && (*presence == ABSENT && value.is_empty() || value == expected)
}

fn check(received: &Received<'_, TableReader>, newest: Sequence, flips_uncommitted: u32) {
    let (value, changed) = (&received.value, received.reader.changed());
    assert!(value.payload.len() <= ENTRY_LEN_MAX && changed.key_len <= KEY_LEN_MAX);
    assert!(changed.key_len <= value.payload.len(), "a key longer than its entry");
    if received.is_genuine {
        assert!(changed.number > 0, "a change without a number");
        let sequence = value.meta.sequence;
        let is_published = sequence <= newest || received.flips >= flips_uncommitted;
        assert!(is_published, "{sequence} is not published yet");
        let is_reported = changed.is_present && sequence != Sequence::NONE;
        assert!(!is_reported || is_right(value.payload, changed.key_len, sequence.get()), "{value:?}");
    }
}

/// Reads all entries as of one commit, from memory that does not change meanwhile.
fn snapshot(world: &mut World<TableReader>, newest: Sequence, flips_uncommitted: u32) {
    let (is_genuine, flips) = (world.is_genuine(), world.flips());
    let (reader, memory) = world.parts();
    let mut scan = SnapshotScan::new(reader);
    let is_complete = (0..64).any(|_| {
        assert!(scan.ranges().iter().all(|range| range.offset + range.len <= memory.len()));
        scan.step(reader, memory, None).is_some()
    });
    if !is_complete {
        return;
    }
    for entry in scan.entries(reader) {
        assert!(entry.key_len < entry.bytes.len() && entry.bytes.len() <= ENTRY_LEN_MAX);
        let sequence = entry.meta.sequence;
        if is_genuine {
            assert!(sequence <= newest || flips >= flips_uncommitted, "{sequence} is not published yet");
            assert!(is_right(entry.bytes, entry.key_len, sequence.get()), "{:?}", entry.bytes);
        }
    }
}

/// An entry whose checksum is right, whatever it holds.
fn forge(world: &mut World<TableReader>, geometry: &TableGeometry, input: &mut Input<'_>) {
    world.forge();
    let (cell, stamp) = (input.index(geometry.capacity()), Stamp::new(input.word() & 0xffff));
    let (number, added) = (input.word(), Sequence::new(input.byte().into()));
    let key_len = u32::from(input.byte() % 12);
    let entry = input.bytes(ENTRY_LEN_MAX);
    let entry_len = u32::try_from(entry.len()).unwrap_or_default();
    let header = EntryHeader { entry_len, key_len, number, added, published_ns: 1 };
    let mut run = vec![0_u64; ENTRY_WORD + entry_words(entry.len())];
    if let Some((lead, rest)) = run.split_first_chunk_mut::<LEAD_WORDS>() {
        *lead = [cell as u64, stamp.get()];
        let (head, body) = rest.split_at_mut(ENTRY_WORD - LEAD_WORDS);
        head.copy_from_slice(&header.emit());
        let body: &mut [u8] = bytemuck::cast_slice_mut(body);
        body.iter_mut().zip(entry).for_each(|(to, from)| *to = *from);
    }
    let (slot, memory) = (geometry.slot_offset(cell, stamp), world.memory());
    memory.store(slot, stamp.get());
    memory.copy_in(slot + SLOT_RUN, run.get(LEAD_WORDS..).unwrap_or_default());
    memory.store(slot + SLOT_CRC, EntryCheck::new(TOPIC, EPOCH).of_run(&run).into());
    let commit = stamp.sequence().get();
    memory.store(geometry.version_offset(cell), stamp.get());
    memory.store(geometry.page_offset(0), commit);
    memory.store(geometry.page_offset(0) + WORD, commit);
    memory.store(crate::layout::header::HOT_SEQUENCE, commit);
}

/// Programs of random steps, for each way of receiving.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    super::tests::programs(24, 2)
}
