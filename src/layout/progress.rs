//! The progress slot of a subscriber: two lines of the subscriber's own memory, which the publisher's node reads.
//!
//! ```text
//! 00  u64  released: up to this position the subscriber needs no frame of the publisher's ring any more
//! 08  u64  the last sequence that was received, reported lost, or skipped
//! 10  u64  values received
//! 18  u64  values lost: overwritten before they were read, or unreadable after the end
//! 20  u64  reads repeated because the value was overwritten meanwhile
//! 28  u64  values refused as damaged, or as not of the type
//! 40  u64  life: a number that changes while the subscriber's node runs
//! ```
//!
//! The thread that receives writes the first line, and the node's thread the second one. All other words are zero. A reader trusts
//! none of them: words may be of different moments, and of any value.

use super::{LINE, WORD};
use crate::memory::Region;

/// Bytes of a slot.
pub(crate) const PROGRESS_LEN: usize = 2 * LINE;
/// The position up to which frames are released.
pub(crate) const RELEASED: usize = 0;
/// A number that changes while the subscriber's node runs.
pub(crate) const SEEN: usize = LINE;
/// Words of what a subscriber reports.
const WORDS: usize = 6;

const _: () = assert!(RELEASED + WORDS * WORD <= SEEN);

/// What a subscriber reports of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Up to this position it needs no frame of the publisher's ring any more.
    pub(crate) released: u64,
    /// The last sequence that was received, reported lost, or skipped.
    pub(crate) last: u64,
    /// Values received.
    pub(crate) received: u64,
    /// Values lost.
    pub(crate) lost: u64,
    /// Reads repeated.
    pub(crate) retries: u64,
    /// Values refused.
    pub(crate) rejected: u64,
}

impl Progress {
    /// Stores it in a slot.
    #[inline]
    pub(crate) fn store(&self, slot: &Region) {
        let Self { released, last, received, lost, retries, rejected } = *self;
        let rest = [last, received, lost, retries, rejected];
        slot.copy_in(RELEASED + WORD, &rest);
        // Release: the frames were copied before this is visible, after which the publisher may overwrite them.
        slot.store_release(RELEASED, released);
    }

    /// Loads it from a slot or from a copy of one.
    pub(crate) fn load(slot: &Region) -> Self {
        let mut words = [0; WORDS];
        slot.copy_out(RELEASED, &mut words);
        let [released, last, received, lost, retries, rejected] = words;
        Self { released, last, received, lost, retries, rejected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Protection;

    #[test]
    fn words_are_at_their_offsets() {
        let slot = Region::allocate(PROGRESS_LEN, Protection::PeersRead).unwrap();
        let progress = Progress { released: 1, last: 2, received: 3, lost: 4, retries: 5, rejected: 6 };
        progress.store(&slot);
        slot.store(SEEN, 7);
        let words: Vec<u64> = (0..PROGRESS_LEN).step_by(WORD).map(|offset| slot.load(offset)).collect();
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Progress::load(&slot), progress);
    }
}
