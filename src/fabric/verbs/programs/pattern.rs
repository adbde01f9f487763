//! What blocks contain: every word follows from the block's number and the word's index, so that a block shows which one it is, and
//! that all of it is there.
//!
//! Between two blocks that are written and compared whole, only the words at both ends follow the number; the words between them keep
//! those of the last whole one.

use std::sync::Arc;

use crate::memory::{Region, WORD};

/// An odd number without a pattern, and what undoes a multiplication by it.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const INVERSE: u64 = inverse(FACTOR);
const _: () = assert!(FACTOR.wrapping_mul(INVERSE) == 1);
/// Blocks of at most so many bytes are always whole: they have no other words than those at both ends.
const WHOLE_LEN_MAX: usize = 16;
/// Of longer ones one in so many is: fewer than one in a hundred, so that quantiles up to the 99th do not include the comparison.
const WHOLE_EVERY: u64 = 128;

/// The inverse of an odd number modulo 2^64: each step doubles the right bits, of which there are three at first.
const fn inverse(odd: u64) -> u64 {
    let mut found = odd;
    let mut steps = 0;
    while steps < 5 {
        found = found.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(found)));
        steps += 1;
    }
    found
}

/// The first word of the block with this number.
#[inline]
const fn base(number: u64) -> u64 {
    number.wrapping_mul(FACTOR)
}

/// Whether the block with this number is written and compared whole.
#[inline]
pub(super) fn is_whole(number: u64, len: usize) -> bool {
    len <= WHOLE_LEN_MAX || number.is_multiple_of(WHOLE_EVERY)
}

/// Writes all words of a block to private memory.
pub(super) fn write_whole(words: &mut [u64], number: u64) {
    let base = base(number);
    words.iter_mut().zip(0_u64..).for_each(|(word, index)| *word = base.wrapping_add(index).to_le());
}

/// Writes the words at both ends of a block of this length to private memory.
#[inline]
pub(super) fn mark(words: &mut [u64], len: usize, number: u64) {
    let last = last_word(len);
    if let Some(word) = words.get_mut(last) {
        *word = base(number).wrapping_add(last as u64).to_le();
    }
    if let Some(word) = words.first_mut() {
        *word = base(number).to_le();
    }
}

/// The index of the last word that is all within a block of this length.
#[inline]
const fn last_word(len: usize) -> usize {
    (len / WORD).saturating_sub(1)
}

/// A block in registered memory.
#[derive(Clone, Debug)]
pub(super) struct Block {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl Block {
    /// The block of this length at this offset, which is a multiple of 8.
    pub(super) fn new(region: &Arc<Region>, offset: usize, len: usize) -> Self {
        Self { region: Arc::clone(region), offset, len }
    }

    /// Bytes of the block.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn words(&self) -> usize {
        self.len.div_ceil(WORD)
    }

    #[inline]
    fn last(&self) -> usize {
        self.offset + last_word(self.len) * WORD
    }

    /// Writes the block with this number: whole if that is its turn.
    #[inline]
    pub(super) fn fill(&self, number: u64, scratch: &mut Vec<u64>) {
        if is_whole(number, self.len) {
            self.fill_whole(number, scratch);
            return;
        }
        self.mark(number);
    }

    /// Writes the words at both ends.
    #[inline]
    pub(super) fn mark(&self, number: u64) {
        let base = base(number);
        self.region.store(self.last(), base.wrapping_add(last_word(self.len) as u64).to_le());
        self.region.store(self.offset, base.to_le());
    }

    /// Writes all of the block with this number.
    pub(super) fn fill_whole(&self, number: u64, scratch: &mut Vec<u64>) {
        scratch.resize(self.words(), 0);
        write_whole(scratch, number);
        self.region.copy_in(self.offset, scratch);
    }

    /// Copies the block to another of the same length: whole if that is its turn.
    pub(super) fn copy_to(&self, target: &Self, number: u64, scratch: &mut Vec<u64>) {
        if is_whole(number, self.len) {
            scratch.resize(self.words(), 0);
            self.region.copy_out(self.offset, scratch);
            target.region.copy_in(target.offset, scratch);
            return;
        }
        target.region.store(target.last(), self.region.load(self.last()));
        target.region.store(target.offset, self.region.load(self.offset));
    }

    /// Copies the block to private memory: whole if that is its turn.
    #[inline]
    pub(super) fn copy_out(&self, words: &mut [u64], number: u64) {
        if is_whole(number, self.len) {
            self.region.copy_out(self.offset, words);
            return;
        }
        let (first, last) = (self.region.load(self.offset), self.region.load(self.last()));
        if let Some(word) = words.get_mut(last_word(self.len)) {
            *word = last;
        }
        if let Some(word) = words.first_mut() {
            *word = first;
        }
    }

    /// Removes the number, so that the block shows whether it was written anew; all of it if that is its turn.
    #[inline]
    pub(super) fn clear(&self, number: u64, scratch: &mut Vec<u64>) {
        if is_whole(number, self.len) {
            self.clear_whole(scratch);
            return;
        }
        self.clear_ends();
    }

    /// Removes the number.
    #[inline]
    pub(super) fn clear_ends(&self) {
        self.region.store(self.last(), 0);
        self.region.store(self.offset, 0);
    }

    /// Sets all of it to zeros.
    pub(super) fn clear_whole(&self, scratch: &mut Vec<u64>) {
        scratch.clear();
        scratch.resize(self.words(), 0);
        self.region.copy_in(self.offset, scratch);
    }

    /// Whether both ends are those of the block with this number.
    #[inline]
    pub(super) fn holds(&self, number: u64) -> bool {
        let base = base(number);
        // Acquire: what a whole comparison loads afterwards is at least as new.
        self.region.load_acquire(self.last()) == base.wrapping_add(last_word(self.len) as u64).to_le()
            && self.region.load_acquire(self.offset) == base.to_le()
    }

    /// The number that both ends show, if it is the same.
    #[inline]
    pub(super) fn number(&self) -> Option<u64> {
        let first = u64::from_le(self.region.load_acquire(self.offset));
        let number = first.wrapping_mul(INVERSE);
        self.holds(number).then_some(number)
    }

    /// Whether every byte is that of the block with this number.
    pub(super) fn is_all(&self, number: u64, scratch: &mut Vec<u64>) -> bool {
        self.is_as(number, number, scratch)
    }

    /// Whether both ends are those of the block with this number, and every other byte that of the block with the second one.
    pub(super) fn is_as(&self, ends: u64, between: u64, scratch: &mut Vec<u64>) -> bool {
        scratch.resize(self.words(), 0);
        self.region.copy_out(self.offset, scratch);
        let end = last_word(self.len);
        let word_of = |index: u64| {
            let number = if index == 0 || index == end as u64 { ends } else { between };
            base(number).wrapping_add(index)
        };
        let rest = self.len % WORD;
        // Bytes behind the block do not count.
        let mask = if rest == 0 { u64::MAX } else { (1 << (8 * rest)) - 1 };
        let difference = |(word, index): (&u64, u64)| u64::from_le(*word) ^ word_of(index);
        let Some((last, words)) = scratch.split_last() else { return true };
        let last = difference((last, words.len() as u64)) & mask;
        words.iter().zip(0_u64..).map(difference).fold(last, |all, difference| all | difference) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Protection;

    #[test]
    fn every_byte_of_a_whole_block_counts() {
        let region = Arc::new(Region::allocate(4096, Protection::PeersWrite).unwrap());
        let scratch = &mut Vec::new();
        for len in [8, 9, 15, 16, 64, 65, 127, 1000] {
            let block = Block::new(&region, 64, len);
            block.clear_whole(scratch);
            assert!(!block.holds(7) && !block.is_all(7, scratch));
            block.fill_whole(7, scratch);
            assert!(block.holds(7) && !block.holds(8) && block.number() == Some(7));
            assert!(block.is_all(7, scratch) && !block.is_all(8, scratch));
            for index in 0..len {
                let offset = 64 + index / 8 * 8;
                let word = region.load(offset);
                region.store(offset, word ^ 1 << (index % 8 * 8));
                assert!(!block.is_all(7, scratch), "{len} {index}");
                region.store(offset, word);
            }
            region.store(64 + len.next_multiple_of(8), 1);
            assert!(block.is_all(7, scratch));
        }
    }

    #[test]
    fn ends_of_a_block_show_its_number() {
        let region = Arc::new(Region::allocate(4096, Protection::PeersWrite).unwrap());
        let (block, copy) = (Block::new(&region, 0, 1003), Block::new(&region, 2048, 1003));
        let scratch = &mut Vec::new();
        block.fill_whole(0, scratch);
        for number in 1..=WHOLE_EVERY {
            block.fill(number, scratch);
            block.copy_to(&copy, number, scratch);
            assert!(copy.holds(number) && copy.number() == Some(number));
            assert_eq!(copy.is_all(number, scratch), number == WHOLE_EVERY);
        }
        copy.clear(1, scratch);
        assert!(!copy.holds(WHOLE_EVERY) && copy.number().is_none());
        let mut words = vec![0; 126];
        write_whole(&mut words, 5);
        mark(&mut words, 1003, 6);
        region.copy_in(0, &words);
        assert!(block.holds(6) && !block.is_all(6, scratch));
    }
}
