//! What a subscriber of a table received before its subscription was lost: the reader of the next subscription, whose cells may be
//! others, does not report it again, and reports the keys that are gone.

use super::{KnownCell, RemovedKey, Reported, TableReader};
use crate::id::{Meta, Sequence};
use crate::repository::table::entry::Entry;
use crate::repository::table::recalled::{Gone, Recalled, RecalledKey, last_life};

impl TableReader {
    /// Takes over what the reader before has received, and the removals that it has not reported yet, of the same epoch.
    pub(super) fn recall(&mut self, before: &mut Self, is_same_epoch: bool) {
        if !is_same_epoch {
            // The keys of another epoch are gone with it.
            return;
        }
        self.removed.append(&mut before.removed);
        let mut recalled = std::mem::take(&mut before.recalled);
        recalled.complete = recalled.complete.max(before.clean);
        recalled.gone.extend(std::mem::take(&mut before.gone));
        let capacity = self.geometry.capacity().max(before.geometry.capacity());
        // Should nothing newer be read.
        let published_ns = recalled.published_ns.max(before.newest_read.1);
        for (key, RecalledKey { sequence, number, .. }) in recalled.limit(capacity) {
            // Whether it was removed is unknown, and its value may be received again: no life has ended for other lines.
            let added = Sequence::NONE;
            let meta = Meta { sequence: sequence.next(), epoch: self.epoch, published_ns };
            self.removed.push_back(RemovedKey { key, number, added, meta });
        }
        let Recalled { mut keys, done, complete, mut gone, .. } = recalled;
        for cell in before.directory.iter() {
            let Some(known) = before.cells.get(cell).filter(|known| known.is_reported) else { continue };
            let KnownCell { number, reported: Reported { sequence, added }, .. } = *known;
            let key = before.directory.key(cell);
            if keys.get(key).is_none_or(|newer| newer.sequence < sequence) {
                keys.insert(key.into(), RecalledKey { sequence, number, added });
            }
        }
        gone.retain(|key, _| !keys.contains_key(key));
        // A pass that was not over may have received later values.
        let received = keys.values().map(|key| key.sequence);
        let received = received.chain(gone.values().map(|gone| gone.first())).max();
        let done = done.max(before.done).max(received.unwrap_or_default());
        self.recalled = Recalled { keys, done, complete, gone, published_ns, ..Recalled::default() };
    }

    /// Records that the removal of a key is reported, and what showed it: until the pass is over nothing else tells that to the reader of
    /// another subscription. A key that finds no place may be received once more there.
    pub(super) fn note_gone(&mut self, key: Box<[u8]>, gone: Gone) {
        if self.gone.len() < self.geometry.capacity() || self.gone.contains_key(&key) {
            self.gone.insert(key, gone);
        }
    }

    /// Records that a pass is over. If no entry is damaged, what it has read is known to the reader of another subscription, and so are the
    /// removed keys: nothing else has to say which they were.
    pub(super) fn finish_clean(&mut self) {
        if self.suspects.is_empty() && self.recalled.damaged.is_empty() {
            self.clean = self.clean.max(self.floor.min(self.keys_done));
        }
        self.gone.retain(|_, gone| gone.last() > self.clean);
    }

    /// Compares an entry with what was received of its key. Returns whether it was received already.
    #[cold]
    pub(super) fn compare_recalled(&mut self, cell: usize, entry: &Entry) -> bool {
        let Entry { stamp, header, is_present } = *entry;
        self.recalled.damaged.remove(&cell);
        self.recalled.published_ns = self.recalled.published_ns.max(header.published_ns);
        let key = self.copy.key(entry);
        let Some(recalled) = self.recalled.of(key, stamp.sequence(), is_present) else { return false };
        let Some(known) = self.cells.get_mut(cell) else { return false };
        let is_older = recalled.is_newer_than(stamp.sequence(), is_present);
        if !is_older {
            known.added = known.added.max(recalled.added);
            self.recalled.keys.remove(key);
        }
        if stamp.sequence() > recalled.sequence && is_present {
            let is_same = recalled.added == header.added;
            (known.number, known.is_reported) = (if is_same { recalled.number } else { 0 }, true);
            return false;
        }
        // The publisher has not caught up, or the value is the one received, or the key is gone.
        (known.version, known.is_refused) = (stamp, false);
        (known.number, known.is_reported) = (header.number, !is_older && is_present);
        known.reported = Reported { sequence: recalled.sequence, added: known.added };
        if is_present {
            return true;
        }
        let added = last_life(known.added, stamp.sequence());
        (known.number, known.has_key) = (0, false);
        self.directory.remove(cell);
        self.wanted.set(cell, true);
        if !is_older {
            let (sequence, published_ns) = (stamp.sequence(), header.published_ns);
            let meta = Meta { sequence, epoch: self.epoch, published_ns };
            let key: Box<[u8]> = key.into();
            self.note_gone(key.clone(), Gone::Removal(sequence));
            self.removed.push_back(RemovedKey { key, number: recalled.number, added, meta });
        }
        true
    }

    /// Reports the keys that are gone, once the table has caught up. A damaged entry may be of any of them, so that none is gone before
    /// its cell has another one.
    pub(super) fn finish_recalled(&mut self, until: Sequence) {
        if self.recalled.is_over() {
            self.recalled.damaged.clear();
            return;
        }
        if until < self.recalled.done {
            return;
        }
        if !self.recalled.damaged.is_empty() {
            // What comes now is newer than what these describe.
            self.clean = self.clean.max(std::mem::take(&mut self.recalled.complete));
            self.recalled.has_caught_up = true;
            return;
        }
        let Recalled { keys, complete, gone, published_ns, .. } = std::mem::take(&mut self.recalled);
        // Until a pass without damage shows as much.
        self.clean = self.clean.max(complete);
        let reported = keys.keys().map(|key| (key.clone(), Gone::Removal(until))).collect::<Vec<_>>();
        for (key, gone) in gone.into_iter().chain(reported) {
            if self.gone.get(&key).is_none_or(|newer| newer.last() < gone.last()) {
                self.note_gone(key, gone);
            }
        }
        let epoch = self.epoch;
        self.removed.extend(keys.into_iter().map(|(key, RecalledKey { sequence, number, .. })| RemovedKey {
            key,
            number,
            added: until,
            meta: Meta { sequence: sequence.next().min(until), epoch, published_ns },
        }));
    }
}
