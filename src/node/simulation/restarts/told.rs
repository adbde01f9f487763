//! What the publishers of one topic have published in one epoch.

use std::collections::{BTreeMap, BTreeSet};

use crate::testkit::random::Random;

const KEYS: u64 = 12;

/// What a commit of a table does to keys: puts or removes them.
pub(super) type Changes = BTreeMap<u64, bool>;
/// For each key the commit that put it.
pub(super) type Table = BTreeMap<u64, u64>;

/// What was published in one epoch of a topic.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// The last records before those of each publisher.
    pub(super) afters: BTreeSet<u64>,
    pub(super) newest: u64,
    /// The commits of the table that a publisher has to repeat, and what they lead to.
    pub(super) after: u64,
    pub(super) commits: BTreeMap<u64, Changes>,
    pub(super) table: Table,
}

impl Told {
    /// A new commit. The first one of a publisher that did not repeat the earlier ones puts all of their keys again.
    pub(super) fn commit(&mut self, next: u64, random: &mut Random) -> Changes {
        let is_first = self.commits.is_empty();
        let mut changes: Changes = self.table.keys().filter(|_| is_first).map(|key| (*key, true)).collect();
        for _ in 0..random.below(5) {
            let key = random.below(KEYS);
            if random.once_in(2) {
                changes.insert(key, true);
            } else if is_first {
                changes.remove(&key);
            } else if self.table.contains_key(&key) {
                changes.insert(key, false);
            }
        }
        changes.insert(random.below(KEYS), true);
        if is_first {
            self.table.clear();
        }
        for (key, is_put) in &changes {
            if *is_put {
                self.table.insert(*key, next)
            } else {
                self.table.remove(key)
            };
        }
        self.commits.insert(next, changes.clone());
        changes
    }
}
