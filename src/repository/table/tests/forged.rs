//! Tables of a publisher that writes what no publisher writes, with right checksums.

use super::*;
use crate::layout::WORD;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::table::{
    ENTRY_WORD, EntryCheck, EntryHeader, LEAD_WORDS, SLOT_CRC, SLOT_RUN, entry_words,
};
use crate::repository::ReadFailure;

/// A table of one cell, and its last commit.
struct Forger {
    geometry: TableGeometry,
    region: Region,
    stamp: Stamp,
}

impl Forger {
    fn new() -> Self {
        let geometry = TableGeometry::new(1, KEY_LEN_MAX, LEN_MAX).unwrap();
        let region = Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap();
        Self { geometry, region, stamp: Stamp::NONE }
    }

    fn reader(&self) -> TableReader {
        TableReader::new(self.geometry, (Epoch::FIRST, TOPIC), Sequence::NONE)
    }

    /// Commits an entry of a key without bytes in its value, or a removal.
    fn commit(&mut self, key: &[u8], is_present: bool, (added, number): (u64, u64)) {
        self.stamp = self.stamp.next(self.stamp.sequence().next());
        let entry = [key, &[if is_present { PRESENT } else { ABSENT }]].concat();
        let len = |len| u32::try_from(len).unwrap();
        let (entry_len, key_len) = (len(entry.len()), len(key.len()));
        let added = Sequence::new(added);
        let header = EntryHeader { entry_len, key_len, number, added, published_ns: 1 };
        let mut run = vec![0_u64; ENTRY_WORD + entry_words(entry.len())];
        run[1] = self.stamp.get();
        run[LEAD_WORDS..ENTRY_WORD].copy_from_slice(&header.emit());
        bytemuck::cast_slice_mut(&mut run[ENTRY_WORD..])[..entry.len()].copy_from_slice(&entry);
        let (slot, region) = (self.geometry.slot_offset(0, self.stamp), &self.region);
        region.store(slot, self.stamp.get());
        region.copy_in(slot + SLOT_RUN, &run[LEAD_WORDS..]);
        region.store(slot + SLOT_CRC, EntryCheck::new(TOPIC, Epoch::FIRST).of_run(&run).into());
        let commit = self.stamp.sequence().get();
        region.store(self.geometry.version_offset(0), self.stamp.get());
        region.store(self.geometry.page_offset(0), commit);
        region.store(self.geometry.page_offset(0) + WORD, commit);
        region.store(HOT_SEQUENCE, commit);
    }
}

/// Receives the next change: its key, whether it has a value, its number, and the commit that added the key.
fn next(reader: &mut TableReader, forger: &Forger) -> Option<(Vec<u8>, bool, u64, u64)> {
    let taken = loop {
        match reader.poll(&forger.region).unwrap() {
            Some(taken) => break taken,
            // A pass that was under way ends.
            None if reader.has_more() => {}
            None => return None,
        }
    };
    let ChangedKey { key_len, number, is_present, added, .. } = reader.changed();
    let key = reader.verified(taken).payload[..key_len].to_vec();
    Some((key, is_present, number, added.get()))
}

#[test]
fn removal_after_the_greatest_number_has_that_number() {
    let mut forger = Forger::new();
    let mut reader = forger.reader();
    forger.commit(b"k", true, (1, u64::MAX));
    assert_eq!(next(&mut reader, &forger), Some((b"k".to_vec(), true, u64::MAX, 1)));
    forger.commit(b"l", true, (2, 1));
    assert_eq!(next(&mut reader, &forger), Some((b"l".to_vec(), true, 1, 2)));
    assert_eq!(next(&mut reader, &forger), Some((b"k".to_vec(), false, u64::MAX, 1)));
}
#[test]
fn entry_of_a_key_that_no_commit_or_a_later_one_added_is_damaged() {
    for added in [0, 3, u64::MAX] {
        let mut forger = Forger::new();
        let mut reader = forger.reader();
        forger.commit(b"k", true, (1, 1));
        forger.commit(b"k", true, (added, 2));
        let sequence = Sequence::new(2);
        assert_eq!(reader.poll(&forger.region).unwrap_err(), ReadFailure::BrokenStamps { sequence });
        assert_eq!(next(&mut reader, &forger), None);
    }
}

/// The removals named an earlier life than the values, so that they removed nothing.
#[test]
fn removal_ends_every_life_that_was_reported_of_the_key() {
    for is_replaced in [false, true] {
        let mut forger = Forger::new();
        let mut reader = forger.reader();
        forger.commit(b"a", false, (1, 1));
        forger.commit(b"k", true, (2, 1));
        assert_eq!(next(&mut reader, &forger), Some((b"k".to_vec(), true, 1, 2)));
        forger.commit(b"k", true, (1, 2));
        assert_eq!(next(&mut reader, &forger), Some((b"k".to_vec(), true, 2, 2)));
        if is_replaced {
            forger.commit(b"l", true, (4, 1));
            assert_eq!(next(&mut reader, &forger), Some((b"l".to_vec(), true, 1, 4)));
        } else {
            forger.commit(b"k", false, (1, 3));
        }
        assert_eq!(next(&mut reader, &forger), Some((b"k".to_vec(), false, 3, 2)));
    }
}

/// The publisher is another one, and dates the key back.
#[test]
fn removal_ends_a_life_that_was_received_before_the_subscription_was_lost() {
    let mut forger = Forger::new();
    let mut before = forger.reader();
    forger.commit(b"a", false, (1, 1));
    forger.commit(b"k", true, (2, 1));
    assert_eq!(next(&mut before, &forger), Some((b"k".to_vec(), true, 1, 2)));
    assert_eq!(next(&mut before, &forger), None);
    let mut reader = forger.reader();
    reader.resume(&mut before, true);
    forger.commit(b"k", true, (1, 2));
    assert_eq!(next(&mut reader, &forger), Some((b"k".to_vec(), true, 2, 2)));
    forger.commit(b"k", false, (1, 3));
    assert_eq!(next(&mut reader, &forger), Some((b"k".to_vec(), false, 3, 2)));
}
