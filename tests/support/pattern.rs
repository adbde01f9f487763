//! Values that verify themselves without a checksum: every word follows from the first
//! one, and the first one and the length follow from the position in the topic. A word of any other
//! value is out of place.

/// Odd, so that no two words of a value are equal.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A buffer for values of up to `len_max` bytes.
#[derive(Debug)]
pub(crate) struct Pattern {
    words: Vec<u64>,
    len_max: usize,
}

impl Pattern {
    pub(crate) fn new(len_max: usize) -> Self {
        Self { words: vec![0; len_max.div_ceil(8)], len_max }
    }

    /// Returns the bytes of the value at this position.
    pub(crate) fn value(&mut self, sequence: u64) -> &[u8] {
        let len = len_of(sequence, self.len_max);
        let mut word = seed_of(sequence);
        for place in self.words.iter_mut().take(len.div_ceil(8)) {
            *place = word;
            word = word.wrapping_add(STEP);
        }
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        bytes.split_at(len).0
    }
}

/// Whether these are the bytes of the value at this position. Checks all of them.
pub(crate) fn is_whole(bytes: &[u8], sequence: u64, len_max: usize) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut word = seed_of(sequence);
    let mut difference = 0;
    for found in words {
        difference |= u64::from_le_bytes(*found) ^ word;
        word = word.wrapping_add(STEP);
    }
    let rest_is_right = rest.iter().zip(word.to_le_bytes()).all(|(found, expected)| *found == expected);
    bytes.len() == len_of(sequence, len_max) && difference == 0 && rest_is_right
}

/// Between three quarters of the longest and the longest, of any remainder by 8.
fn len_of(sequence: u64, len_max: usize) -> usize {
    let range = (len_max / 4 + 1) as u64;
    let less = (sequence.wrapping_mul(STEP) >> 32) % range;
    len_max - usize::try_from(less).unwrap_or(0)
}

fn seed_of(sequence: u64) -> u64 {
    let mixed = sequence.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// Splitmix64: the same numbers for the same seed.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        seed_of(self.0 ^ (self.0 >> 30))
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let [byte, ..] = self.next().to_le_bytes();
        byte
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap_or(0)
    }
}

#[test]
fn intact_values_are_accepted_and_any_other_byte_is_noticed() {
    let mut pattern = Pattern::new(100);
    for sequence in 1..50 {
        let good = pattern.value(sequence).to_vec();
        assert!(is_whole(&good, sequence, 100));
        assert!(!is_whole(&good, sequence + 1, 100));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(!is_whole(&bad, sequence, 100), "byte {at}");
        }
    }
}
