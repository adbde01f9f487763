use crate::checksum::Crc32;
use crate::layout::WORD;
use crate::memory::Region;

/// Bytes checked and copied at a time, so that both passes hit the first-level cache.
const PIECE_LEN: usize = 16 * 1024;

/// A payload of any length that is appended to memory bytes by bytes, with its checksum so far.
#[derive(Debug)]
pub(super) struct Pieces {
    /// The checksum of the payload so far; the header, which holds the length, is hashed before it at the end.
    crc: Crc32,
    /// Bytes appended so far.
    len: usize,
    /// The bytes of the last, incomplete word.
    partial: [u8; WORD],
}

impl Pieces {
    /// Nothing is appended yet.
    pub(super) fn new() -> Self {
        Self { crc: Crc32::new(), len: 0, partial: [0; WORD] }
    }

    /// Returns the number of appended bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns their checksum.
    pub(super) fn crc(&self) -> &Crc32 {
        &self.crc
    }

    /// Appends bytes to the payload at this offset of the region, which has space for them, up to a whole word.
    pub(super) fn append(&mut self, region: &Region, payload: usize, bytes: &[u8]) {
        let missing = (WORD - self.len % WORD) % WORD;
        let (first, rest) = bytes.split_at(missing.min(bytes.len()));
        self.append_piece(region, payload, first);
        rest.chunks(PIECE_LEN).for_each(|piece| self.append_piece(region, payload, piece));
    }

    /// Appends bytes that either stay within the last word or begin at a word.
    fn append_piece(&mut self, region: &Region, payload: usize, piece: &[u8]) {
        self.crc.update(piece);
        let begun = self.len % WORD;
        if begun == 0 {
            region.copy_in_bytes(payload + self.len, piece);
            let (_, rest) = piece.as_chunks::<WORD>();
            self.partial = [0; WORD];
            self.partial.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        } else {
            self.partial.iter_mut().skip(begun).zip(piece).for_each(|(to, from)| *to = *from);
            region.store(payload + self.len - begun, u64::from_le_bytes(self.partial));
        }
        self.len += piece.len();
    }
}
