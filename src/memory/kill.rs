//! Ends a writer of a test after any number of words: what it stores later is dropped, as if its process had been killed.

use std::cell::Cell;

thread_local! {
    /// The words that this thread may still store, if they are limited, and those that it has stored.
    static STORES: Cell<(Option<u64>, u64)> = const { Cell::new((None, 0)) };
}

/// Runs a writer on this thread, which is killed after this many words, if it stores so many. Returns how many it wanted to store.
pub(crate) fn killed_after<V>(words: u64, run: impl FnOnce() -> V) -> (u64, V) {
    STORES.set((Some(words), 0));
    let value = run();
    let (_, stored) = STORES.replace((None, 0));
    (stored, value)
}

/// The words that the writer has wanted to store so far.
pub(crate) fn stored() -> u64 {
    STORES.get().1
}

/// Whether the writer is dead.
pub(crate) fn is_dead() -> bool {
    matches!(STORES.get(), (Some(words), stored) if stored > words)
}

/// Whether stores are counted.
pub(super) fn is_armed() -> bool {
    STORES.get().0.is_some()
}

/// Counts a word, and returns whether it is stored.
pub(super) fn permits() -> bool {
    let (words, stored) = STORES.get();
    let Some(limit) = words else { return true };
    STORES.set((words, stored + 1));
    stored < limit
}
