//! Taking records in place.
//!
//! A publisher that waits for this reader overwrites nothing that it has not released. So a long record need not be copied to private
//! memory as a whole: it is checked where it lies, piece by piece through a small buffer, and its frame stays unreleased while it is
//! in view. What is read later is what was checked, unless the publisher breaks the protocol, or has let this reader go.
//!
//! Whatever cannot be taken like this is left to the other ways of taking a record: a short record, one that is in private memory
//! already, the first one of a landing region, whatever is invalid.

use super::mapped::LONG;
use super::{HELD_FROM, LogReader, UNBOUNDED};
use crate::id::{Meta, Sequence};
use crate::layout::WORD;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::{
    FILLER, FrameHeader, HEADER_LEN, HEADER_WORDS, HOT_END, HOT_START, LogPlace, PIECE_LEN, START_AGAIN,
    frame_len,
};
use crate::memory::Region;
use crate::repository::Reader as _;
use crate::sync::atomic::{Ordering, fence};

/// A record that was taken in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Viewed {
    pub(crate) meta: Meta,
    /// The offset of its payload in the memory, bytes.
    pub(crate) offset: usize,
    /// The length of its payload, bytes.
    pub(crate) len: usize,
    position: u64,
    is_landing: bool,
}

impl Viewed {
    /// Whether the publisher had not given up the record when what was read before this call was read.
    pub(crate) fn is_intact(&self, memory: &Region) -> bool {
        // Acquire: if any word read before is of a later frame, the load below sees the moved start. Pairs with the Release fence in
        // `LogWriter::give_up`.
        fence(Ordering::Acquire);
        let start = if self.is_landing { HOT_START } else { START_AGAIN };
        memory.load(start) <= self.position
    }
}

impl LogReader {
    /// Takes the next record in place, if it is long, and is not in private memory as a whole. `None` otherwise, and if there is none or
    /// it is not valid. The publisher must not overwrite what this reader has not released.
    pub(crate) fn view(&mut self, memory: &Region, is_landing: bool) -> Option<Viewed> {
        self.in_view = None;
        // Where it begins, the sequence of the frame at its position is not known yet.
        let begins = self.at.is_none() && self.has_begun() && !self.doubts;
        if !(begins || self.at == Some(self.next)) || self.holds_whole_frame() {
            return None;
        }
        // A part of a frame, which is read again.
        self.until = self.from;
        if is_landing {
            // As in `Self::follow_if`: frames after the newest record may be of later rounds.
            let newest = Sequence::new(memory.load(HOT_SEQUENCE));
            if self.bound == UNBOUNDED || newest < self.next {
                return None;
            }
            self.bound = newest;
        }
        let offset = self.next_whole(memory, is_landing)?;
        let rest = self.geometry.rest(self.position);
        if rest < HEADER_LEN {
            return None;
        }
        let mut head = [0; HEADER_WORDS];
        memory.copy_out(offset, &mut head);
        let header = FrameHeader::parse(head);
        let len = header.payload_len as usize;
        let is_possible = len <= self.geometry.payload_len_max() && frame_len(len) <= rest;
        if header.sequence != self.next || !is_possible || frame_len(len) <= LONG {
            return None;
        }
        let FrameHeader { sequence, published_ns, .. } = header;
        let viewed = Viewed {
            meta: Meta { sequence, epoch: self.epoch, published_ns },
            offset: offset + HEADER_LEN,
            len,
            position: self.position,
            is_landing,
        };
        (self.is_right_at(memory, &header, viewed.offset) && viewed.is_intact(memory)).then(|| {
            self.pass_viewed(&viewed);
            viewed
        })
    }

    /// The record in view.
    #[cfg(test)]
    pub(crate) fn in_view(&self) -> Option<LogPlace> {
        self.in_view
    }

    /// Releases a record whose view was leaked.
    #[inline]
    pub(super) fn forget_view(&mut self) {
        if self.in_view.is_some() {
            self.in_view = None;
        }
    }

    /// Releases the record in view. Of a landing region it tells the publisher.
    pub(crate) fn end_view(&mut self, memory: &Region, is_landing: bool) {
        self.in_view = None;
        if is_landing {
            self.say(memory, false);
        }
    }

    /// Whether private memory holds the next frame from its beginning to its end.
    fn holds_whole_frame(&self) -> bool {
        let held = self.buffer.get(self.from..self.until).unwrap_or_default();
        held.first_chunk().is_some_and(|head: &[u64; HEADER_WORDS]| {
            let len = FrameHeader::parse(*head).payload_len as usize;
            // What cannot be a frame is left to the ways that report it.
            len > self.geometry.payload_len_max() || frame_len(len) <= size_of_val(held)
        })
    }

    /// The offset of the next frame, if it is committed. Goes past the skipped rest of the ring.
    fn next_whole(&mut self, memory: &Region, is_landing: bool) -> Option<usize> {
        let is_before_end = |position| {
            // Acquire: pairs with the Release store of the end in `LogWriter`, or with the write of a landing region's.
            memory.load_acquire(HOT_END) > position
        };
        let is_segment = self.position.is_multiple_of(self.geometry.segment_len() as u64);
        let offset = self.geometry.offset(self.position);
        // Acquire: as in `Self::poll_next`.
        let word = memory.load_acquire(offset);
        let rest = self.geometry.rest(self.position);
        if word == FILLER && rest < self.geometry.capacity() && is_before_end(self.position) {
            self.move_to(self.position.wrapping_add(rest as u64), self.at);
            let is_committed = is_before_end(self.position);
            return is_committed.then(|| self.geometry.offset(self.position));
        }
        let is_committed = if is_segment || is_landing || self.at.is_none() {
            is_before_end(self.position)
        } else {
            // The publisher has not given up what this reader has not released: the word is meaningful.
            word == self.next.get()
        };
        is_committed.then_some(offset)
    }

    /// Whether the payload at this offset matches its header. It passes through the beginning of the private buffer, piece by piece.
    fn is_right_at(&mut self, memory: &Region, header: &FrameHeader, offset: usize) -> bool {
        let mut crc = self.check.of_header(header);
        let (mut offset, mut left) = (offset, header.payload_len as usize);
        while left > 0 {
            let len = left.min(PIECE_LEN);
            let piece = HELD_FROM..HELD_FROM + len.div_ceil(WORD);
            // The buffer holds the longest frame.
            let Some(piece) = self.buffer.get_mut(piece) else { return false };
            memory.copy_out(offset, piece);
            crc.update(bytemuck::cast_slice(piece).split_at(len).0);
            (offset, left) = (offset + len, left - len);
        }
        crc.finish() == header.crc
    }

    /// Advances past a record that is now in view.
    fn pass_viewed(&mut self, viewed: &Viewed) {
        let Viewed { meta, len, position, .. } = *viewed;
        self.in_view = Some(LogPlace { position, sequence: meta.sequence });
        self.next = meta.sequence.next();
        (self.doubts, self.has_more) = (false, false);
        self.counts.received += 1;
        self.last_frame_len = frame_len(len);
        self.move_to(position.wrapping_add(frame_len(len) as u64), Some(self.next));
    }
}
