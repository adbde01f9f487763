use super::flight::Flight;
use super::handover::{ExposeError, ExposedLanding, Landing, Repository};
use crate::fabric::{ByteRange, Completion, Registration, Write};
use crate::id::Epoch;
use crate::layout::header::HOT_OFFSET;
use crate::layout::log::{
    HOT_START, INDEX, LANDING_CONSUMED, LogGeometry, LogHead, LogPlace, frame_len, hot_line,
};
use crate::limits;
use crate::memory::Region;
use crate::repository::log::{LogStart, end_between, head, next_end, place_behind, place_between, place_of};
use crate::sync::atomic::{Ordering, fence};

#[cfg(test)]
mod tests;

/// Batches that one call writes at the most: a whole ring, and more, unless that is long.
const STEPS_MAX: u64 = 4 * limits::LOG_FLIGHT_PARTS;
/// As [`STEPS_MAX`], where batches are short.
const WIRE_STEPS_MAX: u64 = 64;
/// Writes of a batch: the hot line with another start, two ranges of frames, the index, the hot line.
const WRITES_MAX: usize = 5;

/// A push subscriber's landing region of a log.
///
/// The frames stand there where they stand in the repository. Each batch is a range of frames, and the hot line behind it; before
/// it the hot line with a new start, if frames are given up. Where writes may be lost the index goes with it whenever that has
/// got a new entry, and once more with the next one: behind frames that are missing the reader goes on where it says. Nothing
/// from the later of that start and of what the subscriber has taken on is overwritten.
#[derive(Debug)]
pub(crate) struct LogLanding {
    /// What is under way. Where a write may be lost nobody can be asked how far the subscriber has come, either.
    flight: Flight<Batch>,
    geometry: LogGeometry,
    epoch: Epoch,
    /// All frames before this were written, or are given up.
    written: u64,
    /// The end that was told last.
    told: u64,
    /// Frames before this are given up.
    start: LogPlace,
    /// That has yet to be told.
    has_new_start: bool,
    /// The subscriber says that it needs nothing before this.
    taken: u64,
    /// The index went with the last batch, and goes with the next one as well: it may have been lost.
    repeats_index: bool,
    /// How much was written when it was last asked for that.
    asked_at: u64,
    /// Bytes that one batch may have.
    pace: Pace,
    /// The first batch has arrived: where the records begin is known there.
    is_begun: bool,
    /// Something was overwritten in the repository while it was copied.
    is_overrun: bool,
    /// The publisher may have it back: the node has brought it up to date, or it was left to the node only because too much was
    /// under way.
    is_free: bool,
    /// Nothing can be written before its subscriber goes on.
    rest: Option<Rest>,
}

/// A landing region whose subscriber stands still.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// How far the subscriber had come.
    taken: u64,
    /// Since when it stands there, ns of the node's clock.
    since_ns: u64,
    /// When it is asked again.
    due_ns: u64,
}

/// Frames that are being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    from: u64,
    to: u64,
}

/// How long batches may be: short at first, and longer as they arrive. Over a wire that breaks the connection again and again,
/// short ones arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    len: u64,
    len_max: u64,
}

impl Pace {
    /// At the beginning. The longest record fits into a batch. In memory nothing breaks: there, what is copied at a time is bounded.
    /// Where writes may be lost nobody tells that a batch has arrived, and a batch is longer only for a record that is: packets
    /// that are lost one by one cost least there, and of those of a long one more are lost.
    fn new(geometry: &LogGeometry, has_word_order: bool, may_lose: bool) -> Self {
        let longest = if may_lose { 0 } else { frame_len(geometry.payload_len_max()) };
        let [len, len_max] = match (has_word_order, may_lose) {
            (true, _) => [limits::LOG_COPY_LEN_MAX; 2],
            (false, true) => [limits::LOG_BATCH_LEN_MIN; 2],
            (false, false) => [limits::LOG_BATCH_LEN_MIN, limits::LOG_BATCH_LEN_MAX],
        };
        Self { len: len.max(longest) as u64, len_max: len_max.max(longest) as u64 }
    }

    /// Takes note of a batch that has arrived: one that was about as long as it could be makes the next ones longer.
    fn arrived(&mut self, batch: Batch) {
        if batch.to - batch.from > self.len / 2 {
            self.len = self.len.saturating_mul(2).min(self.len_max);
        }
    }
}

impl Landing for LogLanding {
    type Geometry = LogGeometry;
    type Commit = LogHead;
    type Batch = Batch;

    /// Records are written to it from where the subscription asks for on, which is told with the head.
    fn open(exposed: ExposedLanding, repository: &Repository<LogGeometry>) -> Result<Self, ExposeError> {
        let start = LogStart::of(exposed.options).ok_or(ExposeError::Options)?.settled(exposed.granted);
        let place = place_of(&repository.geometry, repository.registration.region(), start);
        let flight = Flight::new(exposed.remote, exposed.closed, limits::LOG_BATCHES_MAX);
        Ok(Self::new(flight, repository.geometry, repository.epoch, place))
    }

    fn flight(&self) -> &Flight<Batch> {
        &self.flight
    }

    #[inline]
    fn end_of(commit: &LogHead) -> u64 {
        commit.end
    }

    fn end(source: &Registration) -> u64 {
        head(source.region()).end
    }

    #[inline]
    fn write(&mut self, source: &Registration, commit: &LogHead) {
        // Nobody but the publisher waits for that.
        let mut left = u64::MAX;
        self.advance(source, commit, &mut left);
    }

    fn catch_up(&mut self, source: &Registration, left: &mut u64) -> bool {
        self.advance(source, &head(source.region()), left)
    }

    #[inline]
    fn is_behind(&self, end: u64) -> bool {
        self.written < end || self.is_overrun || self.has_new_start
    }

    fn is_settled(&mut self, source: &Registration) -> bool {
        self.look(source);
        self.is_free |= !self.is_behind(Self::end(source));
        self.flight.is_empty() && !self.has_new_start
    }

    fn is_ready(&self) -> bool {
        self.is_begun && self.is_free
    }

    fn is_begun(&mut self, source: &Registration) -> bool {
        self.look(source);
        self.is_begun
    }

    /// Tells once more what the index and the hot line say, where that may have been lost: a reader that sees the end finds its way.
    fn remind(&mut self, source: &Registration) {
        let head = head(source.region());
        if self.flight.may_lose && !self.is_behind(head.end) && self.has_flight_left(source) {
            let hot = self.hot(&LogHead { end: self.told, ..head });
            let nothing = Batch { from: self.written, to: self.written };
            self.post(source, [Some(Write::Range(INDEX)), Some(hot), None, None, None], nothing);
        }
    }

    /// Where nothing could be written, and nothing is under way, its subscriber stands still: it is asked again after a quarter of the
    /// time for which it has, so that one that is slow waits no longer than that, and one that was stopped costs next to nothing.
    fn pause(&mut self, end: u64, advances: bool, now_ns: u64) {
        let stands = !advances && self.flight.is_empty() && self.is_behind(end) && !self.flight.is_closed();
        self.rest = stands.then(|| {
            let earlier = self.rest.filter(|rest| rest.taken == self.taken);
            let since_ns = earlier.map_or(now_ns, |rest| rest.since_ns);
            let pause_ns = now_ns.saturating_sub(since_ns) / 4;
            let pause_ns = pause_ns.clamp(limits::LANDING_TENDED_NS, limits::LOG_REST_NS_MAX);
            Rest { taken: self.taken, since_ns, due_ns: now_ns.saturating_add(pause_ns) }
        });
    }

    fn rests_until_ns(&self) -> Option<u64> {
        self.rest.map(|rest| rest.due_ns)
    }
}

impl LogLanding {
    /// A landing region to which records are written from this place on.
    fn new(flight: Flight<Batch>, geometry: LogGeometry, epoch: Epoch, start: LogPlace) -> Self {
        let (may_lose, position) = (flight.may_lose, start.position);
        let pace = Pace::new(&geometry, flight.has_word_order, may_lose);
        let mut landing = Self {
            flight,
            geometry,
            epoch,
            written: position,
            told: position,
            start,
            has_new_start: true,
            taken: position,
            repeats_index: false,
            asked_at: position,
            pace,
            is_begun: false,
            is_overrun: false,
            is_free: false,
            rest: None,
        };
        // The first time takes longer than all others, on some media.
        if !may_lose {
            landing.fetch_taken();
        }
        landing
    }

    /// Writes what the repository has and this has not, as far as the subscriber and the medium have room. In memory, where that
    /// is a copy, no batch is begun when nothing is left of `room`, bytes. Never waits. Whether anything was written.
    #[inline]
    fn advance(&mut self, source: &Registration, head: &LogHead, room: &mut u64) -> bool {
        let mut has_written = false;
        let has_word_order = self.flight.has_word_order;
        for _ in 0..if has_word_order { STEPS_MAX } else { WIRE_STEPS_MAX } {
            let is_done = self.flight.is_closed() || !self.is_behind(head.end);
            if is_done || (has_word_order && *room == 0) || !self.step(source, head, room) {
                break;
            }
            has_written = true;
        }
        has_written
    }

    /// Writes one batch. False when nothing more can be written now.
    fn step(&mut self, source: &Registration, head: &LogHead, room: &mut u64) -> bool {
        let repository = source.region();
        let can_go_on = self.has_flight_left(source) && self.skip_overwritten(repository);
        let to = if can_go_on { self.reach(repository, head) } else { self.written };
        if !can_go_on || (to == self.written && !self.has_new_start) {
            self.is_free = !self.flight.is_empty();
            return false;
        }
        let from = self.written;
        let start = self.has_new_start.then(|| self.hot(&LogHead { end: self.told, ..*head }));
        let frames =
            self.geometry.ranges(from, to).map(|range| (range.len > 0).then_some(Write::Range(range)));
        let [first, second] = frames;
        let hot = (to > from).then(|| self.hot(&LogHead { end: to, ..*head }));
        let batch = Batch { from, to };
        self.has_new_start = false;
        if self.flight.has_word_order {
            *room = room.saturating_sub(to - from);
            // The end is told when it is known that nothing was overwritten while it was copied.
            if !self.post(source, [start, first, second, None, None], batch) {
                return false;
            }
            // Acquire: if a word that was copied is of a later frame, the load below sees that the start has moved on.
            fence(Ordering::Acquire);
            if repository.load(HOT_START) > from {
                return true;
            }
            if hot.is_some() && !self.post(source, [hot, None, None, None, None], batch) {
                return false;
            }
        } else {
            let has_new_entry =
                self.flight.may_lose && self.geometry.segment(from) < self.geometry.segment(to);
            let index = (has_new_entry || self.repeats_index).then_some(Write::Range(INDEX));
            self.repeats_index = has_new_entry;
            if !self.post(source, [start, first, second, index, hot], batch) {
                return false;
            }
        }
        (self.written, self.told) = (to, if to > from { to } else { self.told });
        true
    }

    /// Goes on behind what was overwritten in the repository before it was written here, or while it was, and behind as much as
    /// the publisher would overwrite next. What the landing region holds is taken first. False when that is waited for.
    #[inline]
    fn skip_overwritten(&mut self, repository: &Region) -> bool {
        let oldest = repository.load_acquire(HOT_START);
        if self.written >= oldest && !self.is_overrun {
            return true;
        }
        if !self.is_overrun && !self.flight.may_lose && self.needed() < self.told {
            self.fetch_taken();
            if self.needed() < self.told {
                return false;
            }
        }
        let parts =
            if self.flight.has_word_order { limits::LOG_MARGIN_PARTS } else { limits::LOG_WIRE_MARGIN_PARTS };
        let behind = oldest.saturating_add(self.geometry.capacity() as u64 / parts).max(self.start.position);
        self.start = place_behind(&self.geometry, repository, behind);
        // What was written from there on was not overwritten before it was copied.
        self.written = self.written.max(self.start.position);
        (self.has_new_start, self.is_overrun) = (true, false);
        true
    }

    /// Up to where one batch can go: to the head, or to a frame before it. No further than it went already, where the publisher
    /// has gone so far beyond this head meanwhile that all before it was passed over.
    fn reach(&mut self, repository: &Region, head: &LogHead) -> u64 {
        let capacity = self.geometry.capacity() as u64;
        let flight = (capacity / limits::LOG_FLIGHT_PARTS).saturating_sub(self.flying());
        let reach = |len: u64| head.end.max(self.written).min(self.written.saturating_add(flight.min(len)));
        let mut wanted = reach(self.pace.len);
        if self.flight.may_lose {
            if wanted < head.end {
                // A record that is longer than a batch goes alone.
                let next = next_end(&self.geometry, repository, self.written);
                wanted = wanted.max(reach(next.map_or(0, |next| next - self.written)));
            }
            self.retreat(repository, wanted);
        } else {
            self.ask(wanted);
        }
        let limit = wanted.min(self.needed().saturating_add(capacity));
        if limit == head.end {
            return limit;
        }
        // Where the index names too few places.
        if !self.flight.has_word_order || limit - self.written >= self.pace.len {
            return end_between(&self.geometry, repository, self.written, limit);
        }
        let last = place_between(&self.geometry, repository, self.written, limit);
        last.map_or(self.written, |place| place.position)
    }

    /// What the subscriber may still need begins here.
    #[inline]
    fn needed(&self) -> u64 {
        self.taken.max(self.start.position)
    }

    /// Asks the subscriber how far it has come, if little room is known.
    #[inline]
    fn ask(&mut self, wanted: u64) {
        let capacity = self.geometry.capacity() as u64;
        let held = wanted.saturating_sub(self.needed());
        let is_low = held > capacity - capacity / limits::LOG_ROOM_PARTS;
        let has_written = wanted.saturating_sub(self.asked_at) >= capacity / limits::LOG_TAKEN_PARTS;
        if held > capacity || (is_low && has_written) {
            self.asked_at = wanted;
            self.fetch_taken();
        }
    }

    /// Asks the subscriber how far it has come, or takes its answer. What it says counts as far as it can be true.
    fn fetch_taken(&mut self) {
        if let Some(word) = self.flight.fetch_word(LANDING_CONSUMED) {
            self.taken = word.clamp(self.taken, self.told.max(self.taken));
        }
    }

    /// Gives up what a subscriber who cannot be asked has not taken in time.
    fn retreat(&mut self, repository: &Region, wanted: u64) {
        let capacity = self.geometry.capacity() as u64;
        if wanted.saturating_sub(self.start.position) <= capacity {
            return;
        }
        let behind = wanted - capacity + capacity / limits::LOG_MARGIN_PARTS;
        let place = place_behind(&self.geometry, repository, behind);
        if place.position <= self.written {
            (self.start, self.has_new_start) = (place, true);
        }
    }

    /// The hot line after this commit.
    #[inline]
    fn hot(&self, head: &LogHead) -> Write {
        Write::Line { offset: HOT_OFFSET, words: hot_line(head, &self.start, self.epoch) }
    }

    /// Posts a batch. False when it failed.
    #[inline]
    fn post(&mut self, source: &Registration, batch: [Option<Write>; WRITES_MAX], frames: Batch) -> bool {
        let mut writes = [Write::Range(ByteRange { offset: 0, len: 0 }); WRITES_MAX];
        let count = writes.iter_mut().zip(batch.into_iter().flatten()).map(|(to, write)| *to = write).count();
        let completion = self.flight.post(source, writes.split_at(count).0, frames);
        self.is_begun |= completion == Some(Completion::Done);
        completion.is_some()
    }

    /// Bytes that are under way.
    fn flying(&self) -> u64 {
        self.flight.batches().iter().map(|batch| batch.to - batch.from).sum()
    }

    /// Whether more may be under way.
    #[inline]
    fn has_flight_left(&mut self, source: &Registration) -> bool {
        let bytes_max = self.geometry.capacity() as u64 / limits::LOG_FLIGHT_PARTS / 2;
        let has_left =
            |this: &Self| this.flight.batches().len() < limits::LOG_BATCHES_MAX && this.flying() < bytes_max;
        if !has_left(self) {
            self.look(source);
        }
        has_left(self)
    }

    /// Asks how much is under way, and whether what is not was overwritten while it was copied.
    fn look(&mut self, source: &Registration) {
        if self.flight.is_empty() {
            return;
        }
        let mut arrived = self.flight.arrived().peekable();
        self.is_begun |= arrived.peek().is_some();
        // Acquire: if a word that was copied is of a later frame, the load below sees that the start has moved on.
        fence(Ordering::Acquire);
        let oldest = source.region().load(HOT_START);
        for batch in arrived {
            self.is_overrun |= batch.to > batch.from && batch.from < oldest;
            self.pace.arrived(batch);
        }
    }
}
