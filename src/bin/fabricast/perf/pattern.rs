//! The contents of a stream's records: every byte follows from the record's number, and is cheap to write and check; or only the
//! words at both ends do.

use super::arguments::Contents;

/// The first word of the record with this number.
const fn base(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Words that are compared at a time.
const WORDS_AT_ONCE: usize = 8;

/// The first words of the record that begins with this one.
fn first_words<const N: usize>(base: u64) -> [u64; N] {
    let mut words = [base; N];
    words.iter_mut().zip(0_u64..).for_each(|(word, index)| *word = word.wrapping_add(index));
    words
}

/// Words of a record of this length.
pub(super) fn words(len: usize) -> usize {
    len.div_ceil(size_of::<u64>())
}

impl Contents {
    /// Writes the record with this number.
    #[inline]
    pub(super) fn write(self, record: &mut [u64], number: u64) {
        match self {
            Self::Whole => write(record, number),
            Self::Number => mark(record, number),
        }
    }

    /// Whether this is the record of this number and length.
    #[inline]
    pub(super) fn is_right(self, bytes: &[u8], len: usize, number: u64) -> bool {
        match self {
            Self::Whole => bytes.len() == len && is_right_from(0, bytes, number),
            Self::Number => marked(bytes, len) == Some(number),
        }
    }

    /// Whether the record of this number has these bytes from this offset on, which is a multiple of 8. Of one with the number only the
    /// first word is compared.
    #[inline]
    pub(super) fn is_right_from(self, offset: usize, bytes: &[u8], number: u64) -> bool {
        match self {
            Self::Whole => is_right_from(offset, bytes, number),
            Self::Number => offset > 0 || bytes.first_chunk() == Some(&number.to_le_bytes()),
        }
    }
}

/// Writes every byte of the record with this number.
#[inline]
fn write(record: &mut [u64], number: u64) {
    let base = base(number);
    record.iter_mut().zip(0_u64..).for_each(|(word, index)| *word = base.wrapping_add(index).to_le());
}

/// Whether the record of this number has these bytes from this offset on, which is a multiple of 8.
#[inline]
fn is_right_from(offset: usize, bytes: &[u8], number: u64) -> bool {
    let (whole, rest) = bytes.split_at(bytes.len() / size_of::<u64>() * size_of::<u64>());
    let Ok(words) = bytemuck::try_cast_slice::<u8, u64>(whole) else { return false };
    let base = base(number).wrapping_add((offset / size_of::<u64>()) as u64);
    // Compares all words, several at a time, without a branch between them.
    let mut expected: [u64; WORDS_AT_ONCE] = first_words(base);
    let mut differences = [0; WORDS_AT_ONCE];
    let (groups, left) = words.as_chunks::<WORDS_AT_ONCE>();
    for group in groups {
        for ((difference, word), expected) in differences.iter_mut().zip(group).zip(&mut expected) {
            *difference |= word ^ expected.to_le();
            *expected = expected.wrapping_add(WORDS_AT_ONCE as u64);
        }
    }
    let left = left.iter().zip(expected).map(|(word, expected)| word ^ expected.to_le());
    let difference = differences.into_iter().chain(left).fold(0, |all, difference| all | difference);
    let last = base.wrapping_add(words.len() as u64).to_le_bytes();
    difference == 0 && last.starts_with(rest)
}

/// Writes the number of a round trip to both ends of a value: where the last word is cut off, also to the one before it.
pub(super) fn mark(value: &mut [u64], number: u64) {
    if let Some(first) = value.first_mut() {
        *first = number;
    }
    value.iter_mut().rev().take(2).for_each(|last| *last = number);
}

/// The number of a round trip, if a value of this length carries it at both ends.
pub(super) fn marked(bytes: &[u8], len: usize) -> Option<u64> {
    let whole = len / size_of::<u64>() * size_of::<u64>();
    let (words, _) = bytes.split_at_checked(whole)?;
    let (first, last) = (words.first_chunk()?, words.last_chunk()?);
    (bytes.len() == len && first == last).then(|| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_any_length_are_found_again() {
        for len in [8, 9, 15, 16, 1000, 1003] {
            let mut value = vec![0x5555_5555_5555_5555; words(len)];
            mark(&mut value, 7);
            let bytes = &bytemuck::cast_slice::<u64, u8>(&value)[..len];
            assert_eq!(marked(bytes, len), Some(7), "{len}");
            assert_eq!(marked(bytes, len + 8), None);
        }
    }

    #[test]
    fn record_with_a_number_is_right_if_that_is() {
        let contents = Contents::Number;
        for len in [8, 9, 64, 71] {
            let mut record = vec![0; words(len)];
            contents.write(&mut record, 7);
            let bytes = &bytemuck::cast_slice::<u64, u8>(&record)[..len];
            assert!(contents.is_right(bytes, len, 7) && contents.is_right_from(0, bytes, 7));
            assert!(!contents.is_right(bytes, len, 8) && !contents.is_right(bytes, len + 1, 7));
            assert!(!contents.is_right_from(0, bytes, 8) && contents.is_right_from(8, &bytes[8..], 8));
        }
    }

    #[test]
    fn every_byte_counts() {
        for len in [8, 9, 64, 71, 1000] {
            let mut record = vec![0; words(len)];
            write(&mut record, 7);
            let right: &[u8] = bytemuck::cast_slice(&record);
            let is_right = |bytes: &[u8], number| Contents::Whole.is_right(bytes, len, number);
            assert!(is_right(&right[..len], 7));
            assert!(!is_right(&right[..len], 8) && !is_right(&right[..len - 1], 7));
            for offset in (0..len).step_by(24) {
                let part = &right[offset..len.min(offset + 24)];
                assert!(is_right_from(offset, part, 7) && !is_right_from(offset, part, 8));
                assert!(!is_right_from(offset + 8, part, 7));
            }
            for index in 0..len {
                let mut wrong = record.clone();
                bytemuck::cast_slice_mut::<u64, u8>(&mut wrong)[index] ^= 1;
                assert!(!is_right(&bytemuck::cast_slice(&wrong)[..len], 7), "{len} {index}");
            }
        }
    }
}
