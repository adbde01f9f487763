use super::writer::{Committed, OpenSlot, StateWriter};
use crate::layout::state::HEADER_LEN;
use crate::repository::TooLong;
use crate::repository::pieces::Pieces;

/// A value being written straight into the idle slot, beside the newest value. Dropping
/// it publishes nothing.
#[derive(Debug)]
pub(crate) struct StagedValue<'a> {
    writer: &'a mut StateWriter,
    slot: OpenSlot,
    encoding: u16,
    payload: Pieces,
}

impl StateWriter {
    /// Starts writing a value straight into the idle slot, for values that should not be copied twice.
    pub(crate) fn stage(&mut self, encoding: u16) -> StagedValue<'_> {
        let slot = self.open_slot();
        StagedValue { writer: self, slot, encoding, payload: Pieces::new() }
    }
}

impl StagedValue<'_> {
    /// Returns the number of appended bytes.
    pub(crate) fn len(&self) -> usize {
        self.payload.len()
    }

    /// Returns the number of bytes that still fit.
    pub(crate) fn remaining(&self) -> usize {
        self.writer.geometry().payload_len_max() - self.len()
    }

    /// Appends bytes to the value, or none if they do not fit.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if bytes.len() > self.remaining() {
            return Err(TooLong {
                len: self.len() + bytes.len(),
                max: self.writer.geometry().payload_len_max(),
            });
        }
        self.payload.append(self.writer.region(), self.slot.offset + HEADER_LEN, bytes);
        Ok(())
    }

    /// Publishes the appended bytes.
    pub(crate) fn commit(self, now_ns: u64) -> Committed {
        let header = self.writer.header(self.len(), self.encoding, now_ns);
        let mut crc = self.writer.check.of_header(&header);
        crc.append(self.payload.crc());
        self.writer.close_slot(self.slot, &header, crc.finish(), &header.emit())
    }
}
