use std::collections::VecDeque;

use crate::limits::verbs::SIGNAL_LEN;

/// The batches with long operations that a send queue may have in flight: how long the queue may be without a completion depends on
/// the longest one. Batches complete in the order in which they were posted.
#[derive(Debug, Default)]
pub(super) struct LongOperations {
    /// Completions that all batches posted so far will have caused.
    awaited: u64,
    /// Lengths in bytes that nothing posted later exceeds, each with the number of its batch's last completion.
    lens: VecDeque<(usize, u64)>,
}

impl LongOperations {
    /// Records a posted batch: the bytes of its longest operation, and how many completions it will have.
    #[inline]
    pub(super) fn post(&mut self, longest: usize, completions: u64) {
        self.awaited += completions;
        if longest > SIGNAL_LEN {
            self.push(longest);
        }
    }

    #[cold]
    fn push(&mut self, len: usize) {
        while self.lens.back().is_some_and(|(before, _)| *before <= len) {
            self.lens.pop_back();
        }
        self.lens.push_back((len, self.awaited));
    }

    /// Returns the length of the longest one in flight after this many completions, bytes; 0 if there is no long one.
    pub(super) fn longest(&mut self, completed: u64) -> usize {
        while self.lens.front().is_some_and(|(_, number)| *number <= completed) {
            self.lens.pop_front();
        }
        self.lens.front().map_or(0, |(len, _)| *len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn longest_operation_counts_until_it_completes() {
        let mut long = LongOperations::default();
        assert_eq!(long.longest(0), 0);
        long.post(64, 1);
        long.post(16 * MIB, 2);
        long.post(2 * MIB, 1);
        long.post(3 * MIB, 1);
        // There is always something in flight, as for a subscriber that polls without a pause.
        for (completed, longest) in [(0, 16 * MIB), (2, 16 * MIB), (3, 3 * MIB), (4, 3 * MIB), (5, 0), (6, 0)]
        {
            long.post(64, 1);
            assert_eq!(long.longest(completed), longest, "{completed}");
        }
    }
}
