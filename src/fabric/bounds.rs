//! Bounds checks of ranges, done before code that does not check them.

use super::{ByteRange, FabricError, Registration, Write};
use crate::memory::WORD;

impl Write {
    /// The destination range.
    pub(crate) fn target(&self) -> ByteRange {
        match *self {
            Self::Range(range) => range,
            Self::Line { offset, words } => ByteRange { offset, len: size_of_val(&words) },
            Self::Word { offset, .. } => ByteRange { offset, len: WORD },
        }
    }

    /// The source range; `None` if the write carries its own words.
    fn copied(&self) -> Option<ByteRange> {
        matches!(self, Self::Range(_)).then(|| self.target())
    }
}

/// Checks that these ranges are whole words within a region of `len` bytes.
pub(crate) fn check_bounds(
    len: usize,
    mut ranges: impl Iterator<Item = ByteRange>,
) -> Result<(), FabricError> {
    let fits = |range: ByteRange| {
        let whole = range.offset.is_multiple_of(WORD) && range.len.is_multiple_of(WORD);
        whole && range.offset <= len && range.len <= len - range.offset
    };
    if ranges.all(fits) { Ok(()) } else { Err(FabricError::Access { why: "a range is out of bounds" }) }
}

/// Checks that these writes are within a target of `len` bytes and, where they copy, within their source.
pub(crate) fn check_writes(len: usize, source: &Registration, writes: &[Write]) -> Result<(), FabricError> {
    check_bounds(len, writes.iter().map(Write::target))?;
    check_bounds(source.region().len(), writes.iter().filter_map(Write::copied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_of_a_region_or_no_whole_word_is_refused() {
        let check = |offset, len| check_bounds(4096, [ByteRange { offset, len }].into_iter()).is_ok();
        assert!(check(0, 4096) && check(4096, 0) && check(4088, 8));
        for (offset, len) in [(0, 4104), (4096, 8), (4104, 0), (4, 8), (8, 4), (usize::MAX - 7, 8)] {
            assert!(!check(offset, len), "{len} at {offset}");
        }
    }
}
