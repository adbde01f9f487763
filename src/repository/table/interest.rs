use std::fmt;
use std::ops::Range;

/// Decides by an encoded key.
type Predicate = Box<dyn Fn(&[u8]) -> bool + Send>;

/// The keys that a subscriber wants, by their encoded form.
#[derive(Default)]
pub(crate) enum Interest {
    /// All of them.
    #[default]
    All,
    /// Those for which this returns true.
    Those(Predicate),
}

impl Interest {
    /// Returns whether it includes this key.
    #[inline]
    pub(super) fn includes(&self, key: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Those(wants) => wants(key),
        }
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::All => "All",
            Self::Those(_) => "Those",
        })
    }
}

/// One bit for each cell, in pages.
#[derive(Debug)]
pub(super) struct CellSet {
    words: Box<[u64]>,
}

impl CellSet {
    /// Creates a set of all of this many cells.
    pub(super) fn all(capacity: usize) -> Self {
        Self { words: vec![u64::MAX; capacity.div_ceil(64)].into() }
    }

    /// Adds or removes a cell.
    pub(super) fn set(&mut self, cell: usize, is_in: bool) {
        if let Some(word) = self.words.get_mut(cell / 64) {
            let bit = 1 << (cell % 64);
            *word = if is_in { *word | bit } else { *word & !bit };
        }
    }

    /// Returns whether a cell is in the set.
    #[inline]
    pub(super) fn has(&self, cell: usize) -> bool {
        self.words.get(cell / 64).is_some_and(|word| word >> (cell % 64) & 1 == 1)
    }

    /// Returns how many cells of a page are in the set.
    #[inline]
    pub(super) fn count(&self, page: Range<usize>) -> usize {
        let words = self.words.get(page.start / 64..page.end.div_ceil(64)).unwrap_or_default();
        words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the first cell of the set at or after this one, and before `end`.
    #[inline]
    pub(super) fn next(&self, from: usize, end: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut word = self.words.get(index)? & u64::MAX << (from % 64);
        while word == 0 {
            index += 1;
            if index * 64 >= end {
                return None;
            }
            word = *self.words.get(index)?;
        }
        let cell = index * 64 + word.trailing_zeros() as usize;
        (cell < end).then_some(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_in_order() {
        let mut set = CellSet::all(1000);
        (0..1000).for_each(|cell| set.set(cell, false));
        let cells = [0, 1, 63, 64, 511, 512, 999];
        cells.iter().for_each(|cell| set.set(*cell, true));
        let found = |set: &CellSet, end| {
            let (mut found, mut from) = (Vec::new(), 0);
            while let Some(cell) = set.next(from, end) {
                found.push(cell);
                from = cell + 1;
            }
            found
        };
        assert_eq!(found(&set, 1000), cells);
        assert_eq!(found(&set, 512), cells[..5]);
        set.set(64, false);
        assert!(!set.has(64) && set.has(63));
        assert_eq!(found(&set, 511), [0, 1, 63]);
    }
}
