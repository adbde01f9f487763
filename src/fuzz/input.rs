//! Choices from the bytes of an input.

/// The bytes of an input that are not used yet. After their end everything is zero.
#[derive(Clone, Debug)]
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Everything that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The next bytes, at most so many.
    pub(super) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        array.iter_mut().zip(self.bytes(N)).for_each(|(to, from)| *to = *from);
        array
    }

    pub(super) fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub(super) fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// An index below `len`, which is not 0.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::from(self.short()) % len
    }

    /// Words: their number, at most `max`, then the words.
    pub(super) fn words(&mut self, max: usize) -> Vec<u64> {
        let len = self.index(max + 1).min(self.0.len().div_ceil(8));
        (0..len).map(|_| self.word()).collect()
    }
}
