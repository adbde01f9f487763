use std::hash::Hash;

use hashbrown::HashMap;

use crate::id::Sequence;

/// The most keys that are known, in capacities of the feed. A key whose removal was lost is known until the next comparison with the
/// table, so there may be more than one. Records of further keys are left out.
const KNOWN_TIMES: usize = 4;

/// What a subscriber knows of the keys of a feed: their last records. A key is suspect while records of it are missing.
#[derive(Debug)]
pub(super) struct Keys<K> {
    known: HashMap<K, KnownKey>,
    /// The most keys that are known.
    len_max: usize,
    /// Counts comparisons with the table.
    round: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct KnownKey {
    /// Its last record.
    last: Sequence,
    number: u64,
    is_suspect: bool,
    /// The last comparison that found it in the table.
    round: u64,
}

/// Where a record stands among those of its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordLink {
    pub(super) sequence: Sequence,
    /// The record before it; none if it added the key.
    pub(super) previous: Sequence,
    pub(super) removes_key: bool,
}

impl<K: Eq + Hash + Clone> Keys<K> {
    /// Knows no keys, and has no room yet.
    pub(super) fn new() -> Self {
        Self { known: HashMap::new(), len_max: 0, round: 0 }
    }

    /// Returns whether there is room for another key.
    pub(super) fn has_room(&self) -> bool {
        self.known.len() < self.len_max
    }

    /// Makes room for the keys of a feed that may have this many.
    pub(super) fn make_room(&mut self, capacity: usize) {
        self.len_max = self.len_max.max(capacity.saturating_mul(KNOWN_TIMES));
    }

    /// Takes a record of this key. Returns its number among them; `None` if the key lacks records before it.
    pub(super) fn take(&mut self, key: &K, link: RecordLink) -> Option<u64> {
        let RecordLink { sequence, previous, removes_key } = link;
        let has_room = self.has_room();
        let Some(known) = self.known.get_mut(key) else {
            let is_first = previous == Sequence::NONE;
            if has_room && !removes_key {
                let (last, number) = if is_first { (sequence, 1) } else { (Sequence::NONE, 0) };
                let known = KnownKey { last, number, is_suspect: !is_first, round: self.round };
                self.known.insert(key.clone(), known);
            }
            return (is_first && has_room).then_some(1);
        };
        if known.is_suspect || known.last != previous {
            known.is_suspect = true;
            if removes_key && known.last == Sequence::NONE {
                // Nothing of it was received.
                self.known.remove(key);
            }
            return None;
        }
        (known.last, known.number) = (sequence, known.number.saturating_add(1));
        let number = known.number;
        if removes_key {
            self.known.remove(key);
        }
        Some(number)
    }

    /// Begins to compare with the table.
    pub(super) fn begin_comparison(&mut self) {
        self.round += 1;
    }

    /// Compares the last record of a key with the table's. Returns whether the key lacked records. It does not if it has a later record
    /// than the table: then the table is not as new as it seemed.
    pub(super) fn compare(&mut self, key: &K, last: Sequence, number: u64) -> bool {
        let found = KnownKey { last, number, is_suspect: false, round: self.round };
        match self.known.get_mut(key) {
            Some(known) if !known.is_suspect && known.last > last => {
                known.round = self.round;
                false
            }
            Some(known) => {
                let lacked = known.is_suspect || known.last != last;
                *known = found;
                lacked
            }
            None => {
                self.known.insert(key.clone(), found);
                true
            }
        }
    }

    /// Records that the table's entry of this key cannot be read.
    pub(super) fn keep_suspect(&mut self, key: K) {
        let known = self.known.entry(key).or_default();
        (known.is_suspect, known.round) = (true, self.round);
    }

    /// Ends the comparison: removes the keys that the table does not have, and returns them with their numbers.
    pub(super) fn end_comparison(&mut self) -> Vec<(K, u64)> {
        let round = self.round;
        let absent = self.known.extract_if(|_, known| known.round != round);
        // A key that was added and removed while records were missing was never received.
        absent.filter(|(_, known)| known.last != Sequence::NONE).map(|(key, it)| (key, it.number)).collect()
    }

    /// Records that this key of the table lacks records if its last one is a later one. A key that is not known only if there is room for
    /// it: the comparison finds it all the same.
    pub(super) fn suspect_unless(&mut self, key: &K, last: Sequence) {
        if let Some(known) = self.known.get_mut(key) {
            known.is_suspect |= known.last < last;
        } else if self.has_room() {
            self.known.insert(key.clone(), KnownKey { is_suspect: true, ..KnownKey::default() });
        }
    }

    /// Records that the table may have the keys that the comparison has not found, as many as there is room for.
    pub(super) fn keep_absent(&mut self) {
        let found = self.known.values().filter(|known| known.round == self.round).count();
        let absent = self.known.values_mut().filter(|known| known.round != self.round);
        for known in absent.take(self.len_max.saturating_sub(found)) {
            (known.is_suspect, known.round) = (true, self.round);
        }
    }

    /// Records that all keys with records from this one on may be wrong.
    pub(super) fn suspect_from(&mut self, first: Sequence) {
        self.known.values_mut().for_each(|known| known.is_suspect |= known.last >= first);
    }

    /// Forgets all other keys.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&K) -> bool) {
        self.known.retain(|key, _| is_wanted(key));
    }

    /// Returns whether some keys are suspect.
    pub(super) fn has_suspects(&self) -> bool {
        self.known.values().any(|known| known.is_suspect)
    }

    /// Returns all keys.
    pub(super) fn all(&self) -> Vec<K> {
        self.known.keys().cloned().collect()
    }

    /// Returns the suspect keys.
    pub(super) fn suspects(&self) -> Vec<K> {
        let suspects = self.known.iter().filter(|(_, known)| known.is_suspect);
        suspects.map(|(key, _)| key.clone()).collect()
    }
}
