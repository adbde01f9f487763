//! The keys of a table: which cell each has, which are wanted, and which were removed.

use super::{ChangedKey, KnownCell, RemovedKey, Reported, TableReader};
use crate::id::{Meta, Sequence};
use crate::layout::table::ENTRY_WORD;
use crate::repository::Taken;
use crate::repository::table::Interest;
use crate::repository::table::entry::Entry;
use crate::repository::table::recalled::Gone;

impl TableReader {
    /// Wants these keys from now on. Keys that were not wanted before are reported with their next change or, if they have a
    /// value, at once.
    pub(crate) fn set_interest(&mut self, interest: Interest) {
        self.interest = interest;
        let cells: Vec<usize> = self.directory.iter().collect();
        for cell in cells {
            let is_wanted = self.interest.includes(self.directory.key(cell));
            let is_suspect = self.suspects.contains(&cell);
            let Some(known) = self.cells.get_mut(cell) else { continue };
            if is_suspect && !known.has_key {
                continue;
            }
            if is_wanted != self.wanted.has(cell) {
                let KnownCell { added, has_key, .. } = *known;
                *known = KnownCell { added, has_key, ..KnownCell::default() };
            }
            // The next entry of a damaged cell may be of another key.
            known.has_key &= is_wanted || !is_suspect;
            self.wanted.set(cell, is_wanted || is_suspect);
        }
        self.since = self.granted.max(self.done);
        (self.floor, self.clean, self.complete, self.passed, self.pass) = Default::default();
        self.scan.reset();
        let Self { removed, interest, recalled, gone, .. } = self;
        recalled.retain(interest);
        gone.retain(|key, _| interest.includes(key));
        removed.retain(|removed| interest.includes(&removed.key));
    }

    /// Returns whether a key is wanted.
    pub(in crate::repository::table) fn wants(&self, key: &[u8]) -> bool {
        self.interest.includes(key)
    }

    /// Returns the keys that are wanted and known.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let keys = self.directory.iter().map(|cell| self.directory.key(cell));
        keys.filter(|key| self.interest.includes(key))
    }

    /// Returns the keys whose last entries are damaged.
    pub(crate) fn suspects(&self) -> impl Iterator<Item = &[u8]> {
        let suspects = self.suspects.iter().copied();
        suspects
            .filter(|cell| self.directory.has(*cell))
            .map(|cell| self.directory.key(cell))
            .filter(|key| self.interest.includes(key))
    }

    /// Returns the number of damaged entries, with known keys and without.
    pub(crate) fn suspect_count(&self) -> usize {
        self.suspects.len()
    }

    /// Records that a snapshot or a lookup has read this intact entry.
    pub(in crate::repository::table) fn note(&mut self, cell: usize, entry: &Entry) {
        let refused = self.cells.get(cell).filter(|known| known.is_refused).copied();
        self.recalled.published_ns = self.recalled.published_ns.max(entry.header.published_ns);
        self.learn(cell, entry);
        self.suspects.remove(&cell);
        if !self.interest.includes(self.copy.key(entry)) {
            // No pass compares it, and it is none of the keys that were received.
            self.recalled.damaged.remove(&cell);
        } else if let Some(refused) = refused {
            self.accept_refused(cell, entry, &refused);
        }
    }

    /// Takes up again that an entry of this cell, or its version, was refused, although this one is intact.
    #[cold]
    fn accept_refused(&mut self, cell: usize, entry: &Entry, refused: &KnownCell) {
        let is_received = refused.is_reported && refused.reported.sequence == entry.stamp.sequence();
        let Some(known) = self.cells.get_mut(cell) else { return };
        (known.version, known.is_refused) =
            (if is_received { entry.stamp } else { refused.received() }, false);
        if !is_received {
            self.reads_again = true;
            self.begin_reading_again();
        }
    }

    /// Records that a snapshot has read all keys of this commit.
    pub(in crate::repository::table) fn note_keys(&mut self, until: Sequence) {
        self.keys_done = self.keys_done.max(until);
    }

    /// Records the key of the entry taken from this cell. Returns whether the cell is that of the key; otherwise the key has moved to
    /// another one.
    #[inline]
    pub(super) fn learn(&mut self, cell: usize, entry: &Entry) -> bool {
        // A commit gives a cell to one key only.
        let is_known = |known: &KnownCell| known.has_key && known.added == entry.header.added;
        self.cells.get(cell).is_some_and(is_known) || self.learn_new(cell, entry)
    }

    /// Does the same for a key that the cell did not have.
    #[cold]
    fn learn_new(&mut self, cell: usize, entry: &Entry) -> bool {
        let key = self.copy.key(entry);
        let Some(known) = self.cells.get_mut(cell) else { return false };
        known.version = known.received();
        known.is_refused = false;
        let held = std::mem::take(&mut known.has_key);
        let (is_same, mut gone) = (held && self.directory.key(cell) == key, None);
        if held && !is_same && std::mem::take(&mut known.is_reported) && self.wanted.has(cell) {
            let Reported { sequence: last, added } = known.reported;
            // Not after the commit that shows it. That is older than the last one only where memory is damaged.
            let sequence = last.next().min(entry.stamp.sequence());
            let published_ns = entry.header.published_ns;
            let meta = Meta { sequence, epoch: self.epoch, published_ns };
            let key: Box<[u8]> = self.directory.key(cell).into();
            let number = known.number;
            self.removed.push_back(RemovedKey { key: key.clone(), number, added, meta });
            gone = Some((key, Gone::Value(last)));
        }
        if !is_same {
            // It may be of a key that was there before a damaged entry.
            self.directory.remove(cell);
        }
        // A removal ends the last life that was reported, whatever the publisher says later of when the key was added.
        let before = if is_same { known.added } else { Sequence::NONE };
        (known.number, known.added) = (0, entry.header.added.max(before));
        self.wanted.set(cell, true);
        if let Some((key, gone)) = gone {
            self.note_gone(key, gone);
        }
        let key = self.copy.key(entry);
        if let Some(other) = self.directory.find(key).filter(|other| *other != cell) {
            let known = self.cells.get(other).copied().unwrap_or_default();
            if known.has_key && (known.added > entry.header.added || !entry.is_present) {
                return false;
            }
            self.move_from(other, cell);
        }
        if !entry.is_present && !held {
            return false;
        }
        self.directory.insert(cell, self.copy.key(entry));
        self.cells.get_mut(cell).into_iter().for_each(|known| known.has_key = true);
        self.wanted.set(cell, self.interest.includes(self.copy.key(entry)));
        true
    }

    /// Takes the key of a cell away, because it was removed from there and added to another one.
    fn move_from(&mut self, other: usize, cell: usize) {
        let left = self.cells.get_mut(other).map(|other| {
            other.has_key = false;
            (std::mem::take(&mut other.is_reported), other.reported)
        });
        if let Some(known) = self.cells.get_mut(cell) {
            (known.is_reported, known.reported) = left.unwrap_or_default();
        }
        self.directory.remove(other);
        self.wanted.set(other, true);
    }

    /// Takes the next removed key that is to be reported.
    #[inline]
    pub(super) fn take_removed(&mut self) -> Option<Taken> {
        if self.removed.is_empty() { None } else { self.take_removed_key() }
    }

    #[cold]
    fn take_removed_key(&mut self) -> Option<Taken> {
        let RemovedKey { key, number, added, meta } = self.removed.pop_front()?;
        self.copy.set_removed(&key);
        // The publisher may have written any number.
        let (key_len, number) = (key.len(), number.saturating_add(1));
        let capacity = self.geometry.capacity();
        self.changed = ChangedKey { key_len, number, is_new: false, is_present: false, added, capacity };
        self.counts.received += 1;
        Some(Taken { meta, conflated: 0, begin: ENTRY_WORD, len: key_len + 1 })
    }
}
