//! Values that carry their number, their place and a checksum of their own.

use serde::{Deserialize, Serialize};

/// A value: its number, which counts on over all epochs, its epoch and sequence, words that follow from these, and a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    words: [u64; 8],
    check: u64,
}

impl Value {
    pub(crate) fn new(number: u64, epoch: u64, sequence: u64) -> Self {
        let mut word = number ^ epoch.rotate_left(20) ^ sequence.rotate_left(40);
        let words = [(); 8].map(|()| {
            word = mixed(word);
            word
        });
        let mut value = Self { number, epoch, sequence, words, check: 0 };
        value.check = value.sum();
        value
    }

    /// Whether it is the value of this place, and whole.
    pub(crate) fn is_of(&self, epoch: u64, sequence: u64) -> bool {
        (self.epoch, self.sequence, self.check) == (epoch, sequence, self.sum())
            && *self == Self::new(self.number, epoch, sequence)
    }

    fn sum(&self) -> u64 {
        let Self { number, epoch, sequence, words, .. } = self;
        [*number, *epoch, *sequence].iter().chain(words).fold(0, |sum, word| mixed(sum ^ word))
    }
}

fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[test]
fn value_of_another_place_and_a_changed_word_are_noticed() {
    let value = Value::new(7, 2, 3);
    assert!(value.is_of(2, 3) && !value.is_of(2, 4) && !value.is_of(1, 3));
    for word in 0..8 {
        let mut changed = value;
        changed.words[word] ^= 1 << word;
        assert!(!changed.is_of(2, 3));
    }
    assert!(!Value { number: 8, ..value }.is_of(2, 3));
}
