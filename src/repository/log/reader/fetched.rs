//! Reading a log over a wire.
//!
//! A reader plans a fetch by [`LogReader::plan_fetch`], has those ranges fetched into a mirror of the repository, passes that to
//! [`LogReader::check_fetched`], and takes records with [`LogReader::take`] until none is left. While it takes held records, the
//! next batch may be in flight.
//!
//! Each batch ends with the hot line. Frames before the known end of the log are whole when they are fetched, unless the hot line behind
//! them says that they were given up meanwhile: then they are dropped, and no checksum decides whether they are torn. A frame that is
//! invalid all the same was given up between two reads that the fabric did not execute in order, or is damaged. Beyond the end, a reader
//! that keeps up fetches the space of the next record: if the record exists, that was one round trip; if not, nothing is wrong.

use super::{HELD_FROM, LogReader, Parsed, Purpose, aligned, entries};
use crate::layout::header::HOT_OFFSET;
use crate::layout::log::{HOT_END, HOT_START, RING_OFFSET};
use crate::layout::{ByteRange, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::{HOT_LINE, NOTHING};
use crate::repository::{Fetch, Finding, LossReason, ReadFailure, Reader as _, Taken};

/// The hot line and the index.
const ORIENTATION: ByteRange = ByteRange { offset: HOT_OFFSET, len: RING_OFFSET - HOT_OFFSET };

impl LogReader {
    /// Plans the next fetch.
    pub(super) fn plan_fetch(&self) -> Fetch<Purpose> {
        if self.start.is_some() || self.fetching.is_astray {
            return Fetch { ranges: [ORIENTATION, NOTHING], purpose: Purpose::Orientation };
        }
        if self.is_unproven() {
            return self.proof();
        }
        let (from, end) = (self.held_until(), self.fetching.end);
        let known = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX);
        // Memory that is not known to be whole proves nothing without a sequence.
        let wanted = if known > 0 || self.at.is_none() { known } else { self.fetching.predicted };
        let room = (self.buffer.len() - HELD_FROM - (self.until - self.from)) * WORD;
        let len = wanted.min(limits::LOG_FETCH_LEN).min(room).min(self.geometry.rest(from));
        let frames = ByteRange { offset: self.geometry.offset(from), len: len / WORD * WORD };
        let ranges = if frames.len > 0 { [frames, HOT_LINE] } else { [HOT_LINE, NOTHING] };
        Fetch { ranges, purpose: Purpose::Frames { from, end } }
    }

    /// Checks a mirror of the repository after a fetch.
    pub(super) fn check_fetched(
        &mut self,
        mirror: &Region,
        fetched: &Fetch<Purpose>,
        now_ns: u64,
    ) -> Result<Finding<Purpose>, ReadFailure> {
        let (from, end) = match fetched.purpose {
            Purpose::Frames { from, end } => (from, end),
            Purpose::Proof { from, len } => return self.prove(mirror, from, len),
            Purpose::Orientation => {
                self.orient(mirror, now_ns);
                return Ok(Finding::Something);
            }
        };
        let known = self.fetching.end;
        self.fetching.end = known.max(mirror.load(HOT_END));
        let frames = fetched.ranges[0];
        let is_given_up = aligned(mirror.load(HOT_START)) > from;
        // Also if the position is from an index that is older than what is there now: the sequences would be right, but not their
        // positions. What is held was fetched before, and is taken first; of a part of a frame the rest is gone.
        let is_stuck = self.position == from || self.fetching.stuck == Some(self.position);
        self.fetching.is_astray |= is_given_up && is_stuck;
        self.fetching.stuck = is_given_up.then_some(self.position);
        // Not if the reader has moved elsewhere meanwhile.
        if frames != HOT_LINE && from == self.held_until() && !self.fetching.is_astray && !is_given_up {
            self.hold(mirror, frames);
            self.fetching.sure = end;
            // A frame may exist before it is committed.
            let ahead = self.held_until().saturating_sub(self.fetching.end);
            let words = usize::try_from(ahead / WORD as u64).unwrap_or(usize::MAX);
            self.until = self.until.saturating_sub(words).max(self.from);
        }
        let has_grown = self.fetching.end > known;
        let grown = usize::try_from(self.fetching.end - known).unwrap_or(usize::MAX);
        self.fetching.predicted = grown.max(self.last_frame_len).min(limits::PREDICTED_LEN_MAX);
        let is_all = self.position >= self.fetching.end && !has_grown;
        Ok(if is_all && !self.holds_a_frame() { Finding::Nothing } else { Finding::Something })
    }

    /// Takes the next record in private memory, or a report of missing ones; `None` if more must be fetched.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Taken>, ReadFailure> {
        loop {
            let is_sure = |it: &Self| it.position < it.fetching.sure;
            match self.parse(self.fetching.sure) {
                Parsed::Taken(taken) => return Ok(Some(taken)),
                Parsed::Lost(lost) => return Err(ReadFailure::Lost(lost)),
                // The rest can be fetched; a frame that extends past the last one is invalid.
                Parsed::Part if is_sure(self) && self.held_until() < self.fetching.end => return Ok(None),
                Parsed::Later => return Ok(None),
                // It was not known to exist.
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

    /// Returns the position where the held frames end.
    pub(super) fn held_until(&self) -> u64 {
        self.position.wrapping_add(((self.until - self.from) * WORD) as u64)
    }

    /// Whether the held bytes begin with a frame, without checking it.
    fn holds_a_frame(&self) -> bool {
        let first = self.buffer.get(self.from..self.until).and_then(<[u64]>::first);
        first.is_some_and(|first| self.at.is_none_or(|at| at.get() == *first))
    }

    /// Makes space after the held frames.
    pub(super) fn move_to_front(&mut self) {
        self.buffer.copy_within(self.from..self.until, HELD_FROM);
        (self.from, self.until) = (HELD_FROM, HELD_FROM + self.until - self.from);
    }

    /// Appends fetched frames to the held ones.
    fn hold(&mut self, mirror: &Region, frames: ByteRange) {
        self.move_to_front();
        let room = self.buffer.get_mut(self.until..).unwrap_or_default();
        let words = (frames.len / WORD).min(room.len());
        let (room, _) = room.split_at_mut(words);
        mirror.copy_out(frames.offset, room);
        self.until += words;
    }

    /// Finds where to continue: at the start, after given up frames, or after damaged ones.
    #[cold]
    fn orient(&mut self, mirror: &Region, now_ns: u64) {
        self.fetching.end = self.fetching.end.max(mirror.load(HOT_END));
        self.fetching.is_astray = false;
        if let Some(start) = self.start.take() {
            self.begin(mirror, start);
        } else if self.was_given_up(mirror) {
            self.resume(mirror, LossReason::Lapped);
        } else if self.is_settled() {
            // It was checked again, and shows no record.
            self.resume(mirror, LossReason::Damaged);
        } else {
            // The rest of it may be on its way.
            self.has_settled(self.fetching.end, now_ns, limits::DAMAGE_SETTLED_NS);
        }
        // The words of an entry may be of different times, too: then its frame is invalid, and the entry is read again.
        let place = entries(&self.geometry, mirror).find(|place| place.position == self.position);
        self.at = place.map(|place| place.sequence).or(self.at);
    }

    /// Whether the next frame is known to stay invalid.
    fn is_settled(&self) -> bool {
        self.suspicion.is_some_and(|it| it.is_settled && it.position == self.position)
    }
}
