use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::interest::Interest;
use crate::id::Sequence;

/// The keys that were received, until the table has caught up with them.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    pub(super) keys: HashMap<Box<[u8]>, RecalledKey>,
    /// The commit up to which the table was received.
    pub(super) done: Sequence,
    /// An entry up to this commit is of a key that was removed since, unless the key is one of those received.
    pub(super) complete: Sequence,
    /// The keys whose removal was reported since.
    pub(super) gone: HashMap<Box<[u8]>, GoneLife>,
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

/// The last life of a key whose removal was reported: from the commit that added the key until it was removed. One commit may end it and
/// begin the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GoneLife {
    /// The entries of it and of earlier lives up to this commit were received, or are older.
    pub(super) last: Sequence,
    /// The commit that had added the key.
    pub(super) added: Sequence,
}

impl Recalled {
    /// What was received of a key of which there is an entry of this commit, in the life that this one added; `None` if the entry is new.
    pub(super) fn of(&self, key: &[u8], sequence: Sequence, added: Sequence) -> Option<RecalledKey> {
        if let Some(recalled) = self.keys.get(key) {
            return Some(*recalled);
        }
        let gone = self.gone.get(key).copied().unwrap_or_default();
        let is_gone = (sequence, added) <= (gone.last, gone.added);
        (is_gone || sequence <= self.complete).then(|| RecalledKey::removed(self.complete.max(gone.last)))
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.keys.is_empty() && self.complete == Sequence::NONE && self.gone.is_empty()
    }

    /// Whether all entries that can be read were compared.
    pub(super) fn is_compared(&self) -> bool {
        self.is_over() || self.has_caught_up
    }

    /// Forgets the keys that are no longer wanted. Those that were not wanted before were not received.
    pub(super) fn retain(&mut self, interest: &Interest) {
        self.keys.retain(|key, _| interest.includes(key));
        self.gone.retain(|key, _| interest.includes(key));
        self.complete = Sequence::NONE;
    }
}

impl RecalledKey {
    /// Whether an entry of this commit, in the life that this one added, is older than the value that was received. A commit that removes a
    /// key and adds it leaves two entries of it.
    pub(super) fn is_newer_than(&self, sequence: Sequence, added: Sequence) -> bool {
        (sequence, added) < (self.sequence, self.added)
    }

    /// A key that was removed up to this commit.
    pub(super) fn removed(until: Sequence) -> Self {
        Self { sequence: until.next(), number: 0, added: Sequence::NONE }
    }
}
