//! Logs that have to be fetched over a wire.
//!
//! A reader asks for [`LogReader::plan_fetch`], has those ranges fetched into a mirror of the repository, hands that to
//! [`LogReader::check_fetched`], and takes records with [`LogReader::take`] until there are none. While it takes what it holds, the
//! next batch may be under way.
//!
//! Where the end of the log is known, frames before it are whole, and one that is not was given up meanwhile or is damaged.
//! Behind it a reader that keeps up fetches what the next record would take, with the hot line in the same batch: if the
//! record is there that was one round trip, and if not, nothing is wrong.

use super::{HELD_FROM, LogReader, Parsed, Purpose};
use crate::layout::header::HOT_OFFSET;
use crate::layout::log::{HOT_END, RING_OFFSET};
use crate::layout::{ByteRange, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::{HOT_LINE, NOTHING};
use crate::repository::{Fetch, Finding, LossReason, ReadFailure, Reader as _, Taken};

/// Everything that tells where records are.
const ORIENTATION: ByteRange = ByteRange { offset: HOT_OFFSET, len: RING_OFFSET - HOT_OFFSET };

impl LogReader {
    /// What to fetch next.
    pub(super) fn plan_fetch(&self) -> Fetch<Purpose> {
        if self.start.is_some() || self.fetching.is_astray {
            return Fetch { ranges: [ORIENTATION, NOTHING], purpose: Purpose::Orientation };
        }
        if self.is_unproven() {
            return self.proof();
        }
        let (from, end) = (self.held_until(), self.fetching.end);
        let known = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX);
        // Whatever stands in memory of which one does not know that it is whole tells nothing without a sequence.
        let wanted = if known > 0 || self.at.is_none() { known } else { self.fetching.predicted };
        let room = (self.buffer.len() - HELD_FROM - (self.until - self.from)) * WORD;
        let len = wanted.min(limits::LOG_FETCH_LEN).min(room).min(self.geometry.rest(from));
        let frames = ByteRange { offset: self.geometry.offset(from), len: len / WORD * WORD };
        let has_hot_line = known <= len;
        let ranges = match (frames.len > 0, has_hot_line) {
            (true, true) => [frames, HOT_LINE],
            (true, false) => [frames, NOTHING],
            (false, _) => [HOT_LINE, NOTHING],
        };
        let has_hot_line = has_hot_line || frames.len == 0;
        Fetch { ranges, purpose: Purpose::Frames { from, end, has_hot_line } }
    }

    /// Takes over what was fetched into a mirror of the repository.
    pub(super) fn check_fetched(
        &mut self,
        mirror: &Region,
        fetched: &Fetch<Purpose>,
        now_ns: u64,
    ) -> Result<Finding<Purpose>, ReadFailure> {
        let (from, end, has_hot_line) = match fetched.purpose {
            Purpose::Frames { from, end, has_hot_line } => (from, end, has_hot_line),
            Purpose::Proof { from, len } => return self.prove(mirror, from, len),
            Purpose::Orientation => {
                self.orient(mirror, now_ns);
                return Ok(Finding::Something);
            }
        };
        let known = self.fetching.end;
        if has_hot_line {
            self.fetching.end = known.max(mirror.load(HOT_END));
        }
        let frames = fetched.ranges[0];
        // A reader that has gone elsewhere meanwhile has no use for it.
        if frames != HOT_LINE && from == self.held_until() && !self.fetching.is_astray {
            self.hold(mirror, frames);
            self.fetching.sure = end;
            // A frame may be there before it is committed.
            let ahead = self.held_until().saturating_sub(self.fetching.end);
            let words = usize::try_from(ahead / WORD as u64).unwrap_or(usize::MAX);
            self.until = self.until.saturating_sub(words).max(self.from);
        }
        let has_grown = self.fetching.end > known;
        if has_hot_line {
            let grown = usize::try_from(self.fetching.end - known).unwrap_or(usize::MAX);
            self.fetching.predicted = grown.max(self.last_frame_len).min(limits::PREDICTED_LEN_MAX);
        }
        let is_all = self.position >= self.fetching.end && !has_grown;
        Ok(if is_all && !self.holds_a_frame() { Finding::Nothing } else { Finding::Something })
    }

    /// The next record in private memory, or what is missing before it; `None` when more has to be fetched.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Taken>, ReadFailure> {
        loop {
            let is_sure = |it: &Self| it.position < it.fetching.sure;
            match self.parse(self.fetching.sure) {
                Parsed::Taken(taken) => return Ok(Some(taken)),
                Parsed::Lost(lost) => return Err(ReadFailure::Lost(lost)),
                // The rest of it can be fetched; one that goes on behind the last frame is none.
                Parsed::Part if is_sure(self) && self.held_until() < self.fetching.end => return Ok(None),
                Parsed::Later => return Ok(None),
                // It was not known to be there.
                Parsed::Part | Parsed::Damaged(_) | Parsed::Wrong if !is_sure(self) => {
                    self.until = self.from;
                    self.drop_untaken();
                    return Ok(None);
                }
                Parsed::Damaged(words) if self.is_settled() && !self.doubts => self.pass_damaged(words),
                Parsed::Part | Parsed::Damaged(_) | Parsed::Wrong => {
                    self.until = self.from;
                    self.drop_untaken();
                    self.fetching.is_astray = true;
                    return Ok(None);
                }
            }
        }
    }

    /// Where what is held ends.
    pub(super) fn held_until(&self) -> u64 {
        self.position.wrapping_add(((self.until - self.from) * WORD) as u64)
    }

    /// Whether what is held begins with a frame, as far as one can see without checking it.
    fn holds_a_frame(&self) -> bool {
        let first = self.buffer.get(self.from..self.until).and_then(<[u64]>::first);
        first.is_some_and(|first| self.at.is_none_or(|at| at.get() == *first))
    }

    /// Makes room behind what is held.
    pub(super) fn move_to_front(&mut self) {
        self.buffer.copy_within(self.from..self.until, HELD_FROM);
        (self.from, self.until) = (HELD_FROM, HELD_FROM + self.until - self.from);
    }

    /// Appends what was fetched to what is held.
    fn hold(&mut self, mirror: &Region, frames: ByteRange) {
        self.move_to_front();
        let room = self.buffer.get_mut(self.until..).unwrap_or_default();
        let words = (frames.len / WORD).min(room.len());
        let (room, _) = room.split_at_mut(words);
        mirror.copy_out(frames.offset, room);
        self.until += words;
    }

    /// Finds out where to go on: at the beginning, behind what was given up, or behind what is damaged.
    #[cold]
    fn orient(&mut self, mirror: &Region, now_ns: u64) {
        self.fetching.end = self.fetching.end.max(mirror.load(HOT_END));
        self.fetching.is_astray = false;
        if let Some(start) = self.start.take() {
            return self.begin(mirror, start);
        }
        if self.was_given_up(mirror) {
            return self.resume(mirror, LossReason::Lapped);
        }
        if self.is_settled() {
            // It was looked at again, and no record can be told from it.
            return self.resume(mirror, LossReason::Damaged);
        }
        // The rest of it may be on its way.
        self.has_settled(self.fetching.end, now_ns, limits::DAMAGE_SETTLED_NS);
    }

    /// Whether the frame that comes next is known to stay wrong.
    fn is_settled(&self) -> bool {
        self.suspicion.is_some_and(|it| it.is_settled && it.position == self.position)
    }
}
