//! Polling a mapped repository.
//!
//! A reader that has taken every record it knows of polls the place of the next frame's sequence. The writer stores 0 there before
//! it shows the frame before, and the sequence once the frame is committed, and with it the rest of its batch. So the reader
//! touches the lines of the frames themselves, and the hot line, which changes with each commit, stays in the writer's cache.
//!
//! The word is only meaningful as long as its frame is not given up: a lapped reader looks at bytes of later frames, which say
//! whatever their publisher was given to publish. So a frame that was found there is taken only if the start, loaded after it was
//! copied, is not past it; and with a word that does not change, the start is loaded as well. It is loaded from a line that changes
//! with the start only.
//!
//! The hot line decides wherever the word may be something else: where a segment begins, which the writer has not given up yet when
//! it shows the frame before; at the skipped rest of the ring; and where memory is damaged, which shows in time.

use super::{HELD_FROM, LogReader, Parsed};
use crate::layout::log::{FrameHeader, HEADER_LEN, HEADER_WORDS, HOT_END, PIECE_LEN, START_AGAIN, frame_len};
use crate::layout::{WORD, halves};
use crate::limits;
use crate::memory::Region;
use crate::repository::{LossReason, ReadFailure, Reader as _, Taken};
use crate::sync::atomic::{Ordering, fence};

/// Records found by polling, one after another, until the hot line is read: a reader that is far behind copies many at a time.
const FOUND_MAX: u32 = 1024;

/// Frames of more bytes are copied one by one.
pub(super) const LONG: usize = 4 * 1024;

/// What is at the place of the next frame.
enum Polled {
    /// The next record.
    Taken(Taken),
    /// Nothing yet.
    Nothing,
    /// The hot line decides.
    Unclear,
}

impl LogReader {
    /// Takes the next record of a mapped repository.
    #[inline]
    pub(super) fn poll_mapped(&mut self, memory: &Region) -> Result<Option<Taken>, ReadFailure> {
        match self.poll_next(memory) {
            Polled::Taken(taken) => Ok(Some(taken)),
            Polled::Nothing => Ok(None),
            Polled::Unclear => self.poll_if(memory, |_| true),
        }
    }

    /// Takes the next record of mapped memory. Reports an invalid frame only if this says that it is final; otherwise it is
    /// checked again later.
    #[inline]
    pub(super) fn poll_if(
        &mut self,
        memory: &Region,
        stays_wrong: impl Fn(&mut Self) -> bool,
    ) -> Result<Option<Taken>, ReadFailure> {
        let mut refills = 0;
        self.has_more = false;
        loop {
            match self.parse(self.copied_until) {
                Parsed::Taken(taken) => return Ok(Some(taken)),
                Parsed::Lost(lost) => return Err(ReadFailure::Lost(lost)),
                Parsed::Later => return Ok(None),
                // Bounded, whatever the memory holds.
                Parsed::Part if refills == limits::READS_PER_CALL_MAX => {
                    self.has_more = true;
                    return Ok(None);
                }
                Parsed::Part if self.refill(memory) => refills += 1,
                Parsed::Part if self.from == self.until => return Ok(None),
                // A frame that extends past the last one is invalid.
                Parsed::Part | Parsed::Damaged(_) | Parsed::Wrong if !stays_wrong(self) => {
                    self.until = self.from;
                    return Ok(None);
                }
                Parsed::Damaged(words) if !self.doubts => self.pass_damaged(words),
                Parsed::Part | Parsed::Damaged(_) | Parsed::Wrong => {
                    self.resume(memory, LossReason::Damaged);
                }
            }
        }
    }

    /// Copies frames to private memory, from the next one on. False if there is none, or only a part.
    fn refill(&mut self, memory: &Region) -> bool {
        self.settle(memory);
        // Acquire: pairs with the Release store of the end in `LogWriter`.
        let end = memory.load_acquire(HOT_END);
        let left = usize::try_from(end.saturating_sub(self.position)).unwrap_or(usize::MAX);
        let len = left.min(self.geometry.rest(self.position)).min(self.fetch_len) / WORD * WORD;
        let held = (self.until - self.from) * WORD;
        if len == 0 || len <= held {
            return false;
        }
        (self.from, self.until) = (HELD_FROM, HELD_FROM + len / WORD);
        self.copied_until = end;
        let words = self.buffer.get_mut(self.from..self.until).unwrap_or_default();
        memory.copy_out(self.geometry.offset(self.position), words);
        // Acquire: if any word copied above is of a later frame, the load below sees the moved start. Pairs
        // with the Release fence in `LogWriter`.
        fence(Ordering::Acquire);
        if self.was_given_up(memory) {
            self.resume(memory, LossReason::Lapped);
        }
        true
    }

    /// Takes the next record by its sequence.
    #[inline]
    fn poll_next(&mut self, memory: &Region) -> Polled {
        let next = self.next.get();
        let is_segment = self.position.is_multiple_of(self.geometry.segment_len() as u64);
        if self.at != Some(self.next) || self.from != self.until || is_segment {
            return Polled::Unclear;
        }
        let offset = self.geometry.offset(self.position);
        // Acquire: if this is the next sequence, the copy below is of its frame. Pairs with the Release store in `LogWriter::show`.
        // And if this is a word of a later frame, the load of the start sees it moved. Pairs with the Release fence in
        // `LogWriter::give_up`.
        let word = memory.load_acquire(offset);
        if word == next {
            return self.take_polled(memory, offset);
        }
        self.polling.found_left = FOUND_MAX;
        if word != 0 || self.polling.empty_left == 0 || memory.load(START_AGAIN) > self.position {
            self.polling.empty_left = limits::EMPTY_POLLS_MAX;
            return Polled::Unclear;
        }
        self.polling.empty_left -= 1;
        self.has_more = false;
        Polled::Nothing
    }

    /// Takes the record at this offset, whose sequence is the next one.
    #[inline]
    fn take_polled(&mut self, memory: &Region, offset: usize) -> Polled {
        let rest = self.geometry.rest(self.position);
        if rest < HEADER_LEN {
            return Polled::Unclear;
        }
        let (payload_len, _) = halves(memory.load(offset + WORD));
        let len = payload_len as usize;
        if len > self.geometry.payload_len_max() || frame_len(len) > rest {
            return Polled::Unclear;
        }
        let words = frame_len(len) / WORD;
        if words * WORD > LONG {
            return self.take_long(memory, offset, words);
        }
        if self.polling.found_left == 0 {
            self.polling.found_left = FOUND_MAX;
            return Polled::Unclear;
        }
        self.polling.found_left -= 1;
        (self.from, self.until) = (HELD_FROM, HELD_FROM + words);
        memory.copy_out(offset, self.buffer.get_mut(self.from..self.until).unwrap_or_default());
        let taken = if self.is_intact(memory) { self.take_held() } else { None };
        self.polled(taken)
    }

    /// Does the same for a long frame of this many words. It computes the checksum piece by piece.
    fn take_long(&mut self, memory: &Region, offset: usize, words: usize) -> Polled {
        (self.from, self.until) = (HELD_FROM, HELD_FROM + words);
        let frame = self.buffer.get_mut(self.from..self.until).unwrap_or_default();
        let (head, body) = frame.split_at_mut(HEADER_WORDS);
        memory.copy_out(offset, head);
        let Some(head) = head.first_chunk() else { return self.polled(None) };
        let header = FrameHeader::parse(*head);
        let len = header.payload_len as usize;
        if header.sequence != self.next || frame_len(len) != words * WORD {
            return self.polled(None);
        }
        let mut crc = self.check.of_header(&header);
        let mut left = len;
        for (piece, offset) in
            body.chunks_mut(PIECE_LEN / WORD).zip((offset + HEADER_LEN..).step_by(PIECE_LEN))
        {
            memory.copy_out(offset, piece);
            let bytes: &[u8] = bytemuck::cast_slice(piece);
            crc.update(bytes.split_at(left.min(bytes.len())).0);
            left = left.saturating_sub(PIECE_LEN);
        }
        let is_right = crc.finish() == header.crc && self.is_intact(memory);
        let taken = is_right.then(|| self.take_frame(header, words));
        self.polled(taken)
    }

    /// Whether the copied frame was not given up.
    #[inline]
    fn is_intact(&self, memory: &Region) -> bool {
        // Acquire: if any word copied before is of a later frame, the load below sees the moved start. Pairs with the Release fence in
        // `LogWriter::give_up`.
        fence(Ordering::Acquire);
        memory.load(START_AGAIN) <= self.position
    }

    /// The record that was taken; otherwise the hot line decides.
    #[inline]
    fn polled(&mut self, taken: Option<Taken>) -> Polled {
        self.has_more = false;
        if let Some(taken) = taken {
            return Polled::Taken(taken);
        }
        self.until = self.from;
        Polled::Unclear
    }
}
