use super::writer::{Committed, OpenSlot, StateWriter};
use crate::checksum::Crc32;
use crate::layout::WORD;
use crate::layout::state::HEADER_LEN;
use crate::repository::TooLong;

/// Bytes checked and copied at a time, so that both passes hit the first-level cache.
const PIECE_LEN: usize = 16 * 1024;

/// A value being written straight into the idle slot, beside the newest value. Dropping
/// it publishes nothing.
#[derive(Debug)]
pub(crate) struct StagedValue<'a> {
    writer: &'a mut StateWriter,
    slot: OpenSlot,
    encoding: u16,
    /// The checksum of the payload so far; the header, which holds the length, is hashed before it at the end.
    payload_crc: Crc32,
    /// Bytes appended so far.
    len: usize,
    /// The bytes of the last, incomplete word.
    partial: [u8; WORD],
}

impl StateWriter {
    /// Starts writing a value straight into the idle slot, for values that should not be copied twice.
    pub(crate) fn stage(&mut self, encoding: u16) -> StagedValue<'_> {
        let slot = self.open_slot();
        StagedValue { writer: self, slot, encoding, payload_crc: Crc32::new(), len: 0, partial: [0; WORD] }
    }
}

impl StagedValue<'_> {
    /// Returns the number of appended bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes that still fit.
    pub(crate) fn remaining(&self) -> usize {
        self.writer.geometry().payload_len_max() - self.len
    }

    /// Appends bytes to the value, or none if they do not fit.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if bytes.len() > self.remaining() {
            return Err(TooLong {
                len: self.len + bytes.len(),
                max: self.writer.geometry().payload_len_max(),
            });
        }
        let missing = (WORD - self.len % WORD) % WORD;
        let (first, rest) = bytes.split_at(missing.min(bytes.len()));
        self.append_piece(first);
        rest.chunks(PIECE_LEN).for_each(|piece| self.append_piece(piece));
        Ok(())
    }

    /// Publishes the appended bytes.
    pub(crate) fn commit(self, now_ns: u64) -> Committed {
        let header = self.writer.header(self.len, self.encoding, now_ns);
        let mut crc = self.writer.check.of_header(&header);
        crc.append(&self.payload_crc);
        self.writer.close_slot(self.slot, &header, crc.finish(), &header.emit())
    }

    /// Appends bytes that either stay within the last word or begin at a word.
    fn append_piece(&mut self, piece: &[u8]) {
        self.payload_crc.update(piece);
        let payload = self.slot.offset + HEADER_LEN;
        let begun = self.len % WORD;
        if begun == 0 {
            self.writer.region().copy_in_bytes(payload + self.len, piece);
            let (_, rest) = piece.as_chunks::<WORD>();
            self.partial = [0; WORD];
            self.partial.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        } else {
            self.partial.iter_mut().skip(begun).zip(piece).for_each(|(to, from)| *to = *from);
            self.writer.region().store(payload + self.len - begun, u64::from_le_bytes(self.partial));
        }
        self.len += piece.len();
    }
}
