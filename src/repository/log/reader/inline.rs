//! Inline records in notices, and their confirmation.
//!
//! A notice only proves that its sender may read the topic. So inline records are kept until the
//! repository is next read, and compared with the records at their position there. The publisher commits records before it sends
//! the notice, and inline records are not taken while a read is in flight, so every read finds them, unless they are overwritten.

use super::{Doubted, LogReader, Purpose, aligned};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::{FrameHeader, HEADER_WORDS, HOT_END, HOT_START, frame_len};
use crate::layout::{ByteRange, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::{HOT_LINE, NOTHING};
use crate::repository::{Fetch, Finding, ReadFailure, Reader as _};
use crate::sync::atomic::{Ordering, fence};

impl LogReader {
    /// Limit on inline frames kept until the repository is next read, bytes.
    pub(super) fn unproven_len_max(&self) -> usize {
        limits::NOTICE_UNPROVEN_LEN_MAX.min(self.geometry.capacity() / 2)
    }

    /// Accepts inline frames of this position. Returns whether they follow the held ones, and fit
    /// beside earlier ones that are not compared yet. They are checked as if
    /// fetched, but not confirmed.
    pub(super) fn take_frames(&mut self, frames: &[u64], from: u64) -> bool {
        let held_until = self.held_until();
        // Records before the requested start are not received, so there would be nothing to withdraw.
        let is_received = self.at == Some(self.next);
        if self.unproven.is_off || self.wants_more() || !is_received || from != held_until {
            return false;
        }
        if !self.is_unproven() && self.from == self.until {
            self.unproven.words.clear();
            self.unproven.from = from;
        }
        let len_max = self.unproven_len_max();
        let end = self.unproven.from.wrapping_add((self.unproven.words.len() * WORD) as u64);
        if from != end || (self.unproven.words.len() + frames.len()) * WORD > len_max {
            return false;
        }
        self.move_to_front();
        let Some(room) = self.buffer.get_mut(self.until..self.until + frames.len()) else { return false };
        room.copy_from_slice(frames);
        self.until += frames.len();
        self.unproven.words.extend_from_slice(frames);
        true
    }

    /// Words of the inline frames that were taken.
    pub(super) fn unproven_words(&self) -> usize {
        let taken = self.position.saturating_sub(self.unproven.from) / WORD as u64;
        usize::try_from(taken).unwrap_or(usize::MAX).min(self.unproven.words.len())
    }

    /// Drops the inline frames that were not taken: the fetched ones in their place are not compared with them.
    pub(super) fn drop_untaken(&mut self) {
        let taken = self.unproven_words();
        self.unproven.words.truncate(taken);
    }

    /// Plans a fetch to compare them with the repository. After a difference the hot line suffices: it shows whether the frame was
    /// overwritten during the fetch.
    pub(super) fn proof(&self) -> Fetch<Purpose> {
        let from = self.unproven.from;
        let offset = self.geometry.offset(from);
        let len = if self.unproven.doubted.is_some() { 0 } else { self.unproven_words() * WORD };
        let len = len.min(self.geometry.rest(from)) / WORD * WORD;
        let ranges = if len > 0 { [ByteRange { offset, len }, HOT_LINE] } else { [HOT_LINE, NOTHING] };
        Fetch { ranges, purpose: Purpose::Proof { from, len } }
    }

    /// Compares the fetched frames with the inline ones.
    pub(super) fn prove(
        &mut self,
        mirror: &Region,
        from: u64,
        len: usize,
    ) -> Result<Finding<Purpose>, ReadFailure> {
        self.fetching.end = self.fetching.end.max(mirror.load(HOT_END));
        if from != self.unproven.from || !self.is_unproven() {
            return Ok(Finding::Something);
        }
        // Acquire: the fetched frames are not older than the read.
        fence(Ordering::Acquire);
        let (end, start) = (aligned(mirror.load(HOT_END)), aligned(mirror.load(HOT_START)));
        if let Some(doubted) = self.unproven.doubted.take() {
            if start <= doubted.position {
                return Err(self.withdraw(doubted, mirror));
            }
            self.pass_proven(start);
            return Ok(Finding::Something);
        }
        let differs = |at: u64, words: &[u64]| {
            let first = self.geometry.offset(at);
            words.iter().enumerate().any(|(index, word)| mirror.load(first + index * WORD) != *word)
        };
        let (mut rest, mut at) = (self.unproven.words.get(..len / WORD).unwrap_or_default(), from);
        while let Some((head, _)) = rest.split_first_chunk::<HEADER_WORDS>() {
            let header = FrameHeader::parse(*head);
            let words = frame_len(header.payload_len as usize) / WORD;
            let doubted = Doubted { position: at, sequence: header.sequence };
            let behind = at.wrapping_add((words * WORD) as u64);
            // A longer frame would wrap around the end of the ring, which no frame does.
            let Some((frame, after)) = rest.split_at_checked(words).filter(|_| behind <= end) else {
                return Err(self.withdraw(doubted, mirror));
            };
            if differs(at, frame) {
                self.pass_proven(at);
                self.unproven.doubted = Some(doubted);
                return Ok(Finding::Something);
            }
            (rest, at) = (after, behind);
        }
        self.pass_proven(at);
        Ok(Finding::Something)
    }

    /// Records that the frames before this position are confirmed, or were overwritten. It may be in
    /// the middle of a frame.
    fn pass_proven(&mut self, position: u64) {
        let taken = self.unproven_words();
        let (mut rest, mut at) = (self.unproven.words.as_slice(), self.unproven.from);
        while at < position
            && let Some((head, _)) = rest.split_first_chunk::<HEADER_WORDS>()
        {
            let len = frame_len(FrameHeader::parse(*head).payload_len as usize);
            rest = rest.get(len / WORD..).unwrap_or_default();
            at = at.wrapping_add(len as u64);
        }
        let passed = self.unproven.words.len() - rest.len();
        // Frames that were neither taken nor held are useless.
        let keeps = passed < taken || at.wrapping_add((rest.len() * WORD) as u64) == self.held_until();
        self.unproven.words.drain(..if keeps { passed } else { self.unproven.words.len() });
        self.unproven.from = at;
    }

    /// Goes back to this frame, and takes no more inline frames.
    #[cold]
    fn withdraw(&mut self, Doubted { position, sequence }: Doubted, mirror: &Region) -> ReadFailure {
        let (told, found) = (self.last(), Sequence::new(mirror.load(HOT_SEQUENCE)));
        let withdrawn = self.next.get().saturating_sub(sequence.get());
        self.counts.withdrawn = self.counts.withdrawn.saturating_add(withdrawn);
        self.counts.contradicted += 1;
        (self.unproven.is_off, self.unproven.doubted) = (true, None);
        self.unproven.words.clear();
        self.next = sequence;
        (self.doubts, self.suspicion) = (false, None);
        self.move_to(position, Some(sequence));
        ReadFailure::Contradicted { first: sequence, told, found }
    }
}
