use super::writer::LogWriter;
use crate::layout::log::HEADER_LEN;
use crate::repository::TooLong;
use crate::repository::pieces::Pieces;

/// A record being written straight into the ring, after the appended ones. Dropping it appends nothing.
#[derive(Debug)]
pub(crate) struct StagedRecord<'a> {
    writer: &'a mut LogWriter,
    /// The offset of its frame.
    offset: usize,
    payload: Pieces,
}

impl LogWriter {
    /// Starts writing a record straight into the ring. It reserves space for the longest one, as [`Self::reserve`] does.
    pub(crate) fn stage(&mut self, now_ns: u64) -> StagedRecord<'_> {
        let offset = self.reserve(now_ns);
        StagedRecord { writer: self, offset, payload: Pieces::new() }
    }
}

impl<'a> StagedRecord<'a> {
    /// Returns the number of bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.payload.len()
    }

    /// Returns the number of bytes that still fit.
    pub(crate) fn remaining(&self) -> usize {
        self.writer.geometry().payload_len_max() - self.payload.len()
    }

    /// Writes more bytes of the record, or none if they do not fit.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if bytes.len() > self.remaining() {
            let (len, max) = (self.len() + bytes.len(), self.writer.geometry().payload_len_max());
            return Err(TooLong { len, max });
        }
        self.payload.append(self.writer.region(), self.offset + HEADER_LEN, bytes);
        Ok(())
    }

    /// Appends the record, and returns its writer.
    pub(crate) fn finish(self, now_ns: u64) -> &'a mut LogWriter {
        let Self { writer, offset, payload } = self;
        writer.append_staged(offset, payload.len(), payload.crc(), now_ns);
        writer
    }
}
