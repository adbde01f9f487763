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
    /// The keys whose removal was reported since: an entry of such a key up to this commit was received, or is older.
    pub(super) gone: HashMap<Box<[u8]>, Sequence>,
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

impl Recalled {
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
    /// A key that was removed up to this commit.
    pub(super) fn removed(until: Sequence) -> Self {
        Self { sequence: until.next(), number: 0, added: Sequence::NONE }
    }
}
