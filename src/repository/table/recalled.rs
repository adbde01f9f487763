use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::interest::Interest;
use crate::id::Sequence;

/// Most keys of earlier subscriptions that are remembered beside those of the last one, in multiples of what a table holds, and most
/// removed ones: a publisher that never lets the table catch up may show other keys to each subscription.
const TABLES_MAX: usize = 3;

/// The keys that were received, until the table has caught up with them.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    pub(super) keys: HashMap<Box<[u8]>, RecalledKey>,
    /// The commit up to which the table was received.
    pub(super) done: Sequence,
    /// An entry up to this commit is of a key that was removed since, unless the key is one of those received.
    pub(super) complete: Sequence,
    /// The keys whose removal was reported since.
    pub(super) gone: HashMap<Box<[u8]>, Gone>,
    /// The table has caught up: only the cells of [`Self::damaged`] are left to be compared.
    pub(super) has_caught_up: bool,
    /// The cells whose last entries were rejected since.
    pub(super) damaged: BTreeSet<usize>,
    /// When the newest entry read since was published, ns since the Unix epoch.
    pub(super) published_ns: u64,
}

/// A key whose value was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecalledKey {
    /// The sequence of that value.
    pub(super) sequence: Sequence,
    /// How often the key had changed.
    pub(super) number: u64,
    /// The commit that had added it.
    pub(super) added: Sequence,
}

/// The last life of a key that an entry without a value ends, of this commit, where the last one seen began with the commit `added`. A
/// life that the same commit began was over before anyone could see it, and a later one was seen elsewhere: the next one begins with that
/// commit or a later one.
pub(super) fn last_life(added: Sequence, sequence: Sequence) -> Sequence {
    added.min(sequence.before())
}

/// What showed that a key was removed, when its removal was reported. One commit may remove a key and add it several times: it leaves an
/// entry for each, and of those with a value just the last.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gone {
    /// An entry of this commit says so. If the commit has a value, too, that came after it.
    Removal(Sequence),
    /// Another key has the cell of the last value received, which was of this commit.
    Value(Sequence),
}

impl Gone {
    /// The first commit as of which the key may be absent.
    pub(super) fn first(self) -> Sequence {
        match self {
            Self::Removal(sequence) => sequence,
            Self::Value(sequence) => sequence.next(),
        }
    }

    /// The last commit of which an entry was received.
    pub(super) fn last(self) -> Sequence {
        let (Self::Removal(sequence) | Self::Value(sequence)) = self;
        sequence
    }

    /// Whether an entry of this commit, with a value or without, is not newer than the removal.
    fn covers(self, sequence: Sequence, is_present: bool) -> bool {
        match self {
            Self::Removal(last) => sequence < last || sequence == last && !is_present,
            Self::Value(last) => sequence <= last,
        }
    }
}

impl Recalled {
    /// What was received of a key of which there is an entry of this commit, with a value or without; `None` if the entry is new.
    pub(super) fn of(&self, key: &[u8], sequence: Sequence, is_present: bool) -> Option<RecalledKey> {
        if let Some(recalled) = self.keys.get(key) {
            return Some(*recalled);
        }
        let is_gone = self.gone.get(key).is_some_and(|gone| gone.covers(sequence, is_present));
        (is_gone || sequence <= self.complete).then(|| RecalledKey::removed(sequence))
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.keys.is_empty() && self.complete == Sequence::NONE && self.gone.is_empty()
    }

    /// Whether all entries that can be read were compared.
    pub(super) fn is_compared(&self) -> bool {
        self.is_over() || self.has_caught_up
    }

    /// Forgets the keys with the oldest values, beyond the maximum for a table of this capacity, and returns them. Entries of them are new
    /// from now on, and so may be those of other keys that are gone.
    pub(super) fn limit(&mut self, capacity: usize) -> Vec<(Box<[u8]>, RecalledKey)> {
        let max = capacity.saturating_mul(TABLES_MAX);
        oldest(&mut self.gone, max, |gone| gone.last());
        let forgotten = oldest(&mut self.keys, max, |key| key.sequence);
        if !forgotten.is_empty() {
            self.complete = Sequence::NONE;
        }
        forgotten
    }

    /// Forgets the keys that are no longer wanted. Those that were not wanted before were not received.
    pub(super) fn retain(&mut self, interest: &Interest) {
        self.keys.retain(|key, _| interest.includes(key));
        self.gone.retain(|key, _| interest.includes(key));
        self.complete = Sequence::NONE;
    }
}

impl RecalledKey {
    /// Whether an entry of this commit, with a value or without, is older than the value that was received. A commit that leaves a value
    /// may have removed the key before.
    pub(super) fn is_newer_than(&self, sequence: Sequence, is_present: bool) -> bool {
        sequence < self.sequence || sequence == self.sequence && !is_present
    }

    /// A key that was removed up to this commit.
    pub(super) fn removed(until: Sequence) -> Self {
        Self { sequence: until.next(), number: 0, added: Sequence::NONE }
    }
}

/// Takes the oldest of more than `max` keys.
fn oldest<V>(
    keys: &mut HashMap<Box<[u8]>, V>,
    max: usize,
    sequence: impl Fn(&V) -> Sequence,
) -> Vec<(Box<[u8]>, V)> {
    let Some(surplus) = keys.len().checked_sub(max).filter(|surplus| *surplus > 0) else { return Vec::new() };
    let mut all: Vec<_> = keys.drain().collect();
    all.sort_by_key(|(_, value)| sequence(value));
    let kept = all.split_off(surplus);
    keys.extend(kept);
    all
}
