use std::sync::Arc;

use super::handover::{ExposedLanding, Landing, LandingError, Repository};
use super::landing_writer::LandingWriter;
use super::subscribers::TopicSubscriber;
use crate::fabric::{Completion, Registration, Write};
use crate::id::Epoch;
use crate::layout::header::HOT_OFFSET;
use crate::layout::log::{
    HOT_START, INDEX, LANDING_CONSUMED, LogGeometry, LogHead, LogPlace, frame_len, hot_line,
};
use crate::limits;
use crate::memory::Region;
use crate::repository::GrantedAt;
use crate::repository::log::{LogStart, end_between, head, next_end, place_behind, place_between, place_of};
use crate::sync::atomic::{Ordering, fence};

#[cfg(test)]
mod tests;

/// The most batches that one call writes: at least a whole ring, unless it is long.
const STEPS_MAX: u64 = 4 * limits::LOG_FLIGHT_PARTS;
/// The same, where batches are short.
const WIRE_STEPS_MAX: u64 = 64;
/// Writes of a batch: the hot line with a new start, two ranges of frames, the index, the hot line.
const WRITES_MAX: usize = 5;

/// A push subscriber's landing region of a log.
///
/// Frames have the same positions as in the repository. Each batch is a range of frames, followed by the hot line; when frames
/// are given up, the hot line with the new start precedes it. Where writes may be lost, the index goes along when it has a new
/// entry, and again with the next batch: the reader uses it to continue after missing frames. Nothing after the later of that
/// start and the consumed position is overwritten.
#[derive(Debug)]
pub(crate) struct LogLanding {
    /// Its writer. Where a write may be lost, the subscriber's consumed position cannot be read either.
    writer: LandingWriter<FrameSpan>,
    geometry: LogGeometry,
    epoch: Epoch,
    /// All frames before this position were written or given up.
    written: u64,
    /// The end last written to the hot line.
    announced: u64,
    /// Frames before this are given up.
    start: LogPlace,
    /// The new start is still to be written.
    has_new_start: bool,
    /// The consumed position: the subscriber needs nothing before it.
    consumed: u64,
    /// The last batch had the index; the next one repeats it, as it may have been lost.
    repeats_index: bool,
    /// What was written when the consumed position was last read.
    asked_at: u64,
    /// The length of a batch.
    pace: Pace,
    /// The first batch has completed, and with it the start of the records.
    is_begun: bool,
    /// Frames were overwritten in the repository while they were copied.
    is_overrun: bool,
    /// The publisher may take it back: it is up to date, or was left to the node only because too much was in flight.
    is_free: bool,
    /// Its subscriber has stalled: nothing can be written before it consumes.
    rest: Option<Rest>,
    /// The subscriber, which may have the publisher wait for it.
    subscriber: Option<Arc<TopicSubscriber>>,
}

/// A stalled subscriber.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// The consumed position.
    consumed: u64,
    /// Since when it is unchanged, ns of the node's clock.
    since_ns: u64,
    /// When to read it again, ns of the node's clock.
    due_ns: u64,
}

/// Frames in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameSpan {
    from: u64,
    to: u64,
}

/// The length of batches: short at first, longer as they arrive. On a path that breaks again and again, short ones still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    len: u64,
    len_max: u64,
}

impl Pace {
    /// The initial length; a batch always holds the longest record. In memory nothing breaks, and the length bounds one copy.
    /// Where writes may be lost no completion says that a batch has arrived, so batches stay short, except for a long record: the
    /// loss of one packet then costs least.
    fn new(geometry: &LogGeometry, has_word_order: bool, may_lose: bool) -> Self {
        let longest = if may_lose { 0 } else { frame_len(geometry.payload_len_max()) };
        let [len, len_max] = match (has_word_order, may_lose) {
            (true, _) => [limits::LOG_COPY_LEN_MAX; 2],
            (false, true) => [limits::LOG_BATCH_LEN_MIN; 2],
            (false, false) => [limits::LOG_BATCH_LEN_MIN, limits::LOG_BATCH_LEN_MAX],
        };
        Self { len: len.max(longest) as u64, len_max: len_max.max(longest) as u64 }
    }

    /// Records a completed batch. If it had about the full length, the next ones may be longer.
    fn arrived(&mut self, batch: FrameSpan) {
        if batch.to - batch.from > self.len / 2 {
            self.len = self.len.saturating_mul(2).min(self.len_max);
        }
    }
}

impl Landing for LogLanding {
    type Geometry = LogGeometry;
    type Commit = LogHead;
    type Batch = FrameSpan;

    /// Writes records from the subscription's start on; the hot line carries that start.
    fn open(exposed: ExposedLanding, repository: &Repository<LogGeometry>) -> Result<Self, LandingError> {
        let granted = GrantedAt { newest: exposed.granted, after: repository.after };
        let start = LogStart::of(exposed.options).ok_or(LandingError::Options)?;
        let start = start.within(repository.epoch, granted);
        let place = place_of(&repository.geometry, repository.registration.region(), start);
        let writer = LandingWriter::new(exposed.remote, exposed.closed, limits::LOG_BATCHES_MAX);
        let landing = Self::new(writer, repository.geometry, repository.epoch, place);
        Ok(Self { subscriber: exposed.subscriber, ..landing })
    }

    fn writer(&self) -> &LandingWriter<FrameSpan> {
        &self.writer
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
        // Only the publisher waits for this.
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
        self.writer.is_empty() && !self.has_new_start
    }

    fn is_ready(&self) -> bool {
        self.is_begun && self.is_free
    }

    fn is_begun(&mut self, source: &Registration) -> bool {
        self.look(source);
        self.is_begun
    }

    /// Repeats the index and the hot line where they may have been lost, so that a reader of the end can proceed.
    fn remind(&mut self, source: &Registration) {
        let head = head(source.region());
        if self.writer.may_lose && !self.is_behind(head.end) && self.has_flight_left(source) {
            let hot = self.hot(&LogHead { end: self.announced, ..head });
            let nothing = FrameSpan { from: self.written, to: self.written };
            self.post(source, [Some(Write::Range(INDEX)), Some(hot), None, None, None], nothing);
        }
    }

    /// If nothing can be written and nothing is in flight, the subscriber has stalled. Asks it again after a quarter of the time
    /// it has stalled: a slow one waits no longer than that, and a stopped one costs almost nothing.
    fn pause(&mut self, end: u64, advances: bool, now_ns: u64) {
        let stands = !advances && self.writer.is_empty() && self.is_behind(end) && !self.writer.is_closed();
        self.rest = stands.then(|| {
            let earlier = self.rest.filter(|rest| rest.consumed == self.consumed);
            let since_ns = earlier.map_or(now_ns, |rest| rest.since_ns);
            let pause_ns = now_ns.saturating_sub(since_ns) / 4;
            let pause_ns = pause_ns.clamp(limits::LANDING_TENDED_NS, limits::LOG_REST_NS_MAX);
            Rest { consumed: self.consumed, since_ns, due_ns: now_ns.saturating_add(pause_ns) }
        });
    }

    fn rests_until_ns(&self) -> Option<u64> {
        self.rest.map(|rest| rest.due_ns)
    }
}

impl LogLanding {
    /// Writes records from this position on.
    fn new(writer: LandingWriter<FrameSpan>, geometry: LogGeometry, epoch: Epoch, start: LogPlace) -> Self {
        let (may_lose, position) = (writer.may_lose, start.position);
        let pace = Pace::new(&geometry, writer.has_word_order, may_lose);
        let mut landing = Self {
            writer,
            geometry,
            epoch,
            written: position,
            announced: position,
            start,
            has_new_start: true,
            consumed: position,
            repeats_index: false,
            asked_at: position,
            pace,
            is_begun: false,
            is_overrun: false,
            is_free: false,
            rest: None,
            subscriber: None,
        };
        // The first read takes the longest on some media.
        if !may_lose {
            landing.fetch_consumed();
        }
        landing
    }

    /// Writes what the repository has and the landing region lacks, as far as credit and window allow. In memory, where a write
    /// is a copy, it begins no batch without budget. Never waits. Returns whether anything was written.
    #[inline]
    fn advance(&mut self, source: &Registration, head: &LogHead, budget: &mut u64) -> bool {
        let mut has_written = false;
        let has_word_order = self.writer.has_word_order;
        for _ in 0..if has_word_order { STEPS_MAX } else { WIRE_STEPS_MAX } {
            let is_done = self.writer.is_closed() || !self.is_behind(head.end);
            if is_done || (has_word_order && *budget == 0) || !self.step(source, head, budget) {
                break;
            }
            has_written = true;
        }
        has_written
    }

    /// Writes one batch. False when nothing more can be written now.
    fn step(&mut self, source: &Registration, head: &LogHead, budget: &mut u64) -> bool {
        let repository = source.region();
        let can_go_on = self.has_flight_left(source) && self.skip_overwritten(repository);
        let to = if can_go_on { self.reach(repository, head) } else { self.written };
        if !can_go_on || (to == self.written && !self.has_new_start) {
            self.is_free = !self.writer.is_empty();
            return false;
        }
        let from = self.written;
        let start = self.has_new_start.then(|| self.hot(&LogHead { end: self.announced, ..*head }));
        let frames =
            self.geometry.ranges(from, to).map(|range| (range.len > 0).then_some(Write::Range(range)));
        let [first, second] = frames;
        let hot = (to > from).then(|| self.hot(&LogHead { end: to, ..*head }));
        let batch = FrameSpan { from, to };
        self.has_new_start = false;
        if self.writer.has_word_order {
            *budget = budget.saturating_sub(to - from);
            // The end follows once it is known that nothing was overwritten while it was copied.
            if !self.post(source, [start, first, second, None, None], batch) {
                return false;
            }
            // Acquire: if a copied word belongs to a later frame, the load below sees the start moved.
            fence(Ordering::Acquire);
            if repository.load(HOT_START) > from {
                return true;
            }
            if hot.is_some() && !self.post(source, [hot, None, None, None, None], batch) {
                return false;
            }
        } else {
            let has_new_entry =
                self.writer.may_lose && self.geometry.segment(from) < self.geometry.segment(to);
            let index = (has_new_entry || self.repeats_index).then_some(Write::Range(INDEX));
            self.repeats_index = has_new_entry;
            if !self.post(source, [start, first, second, index, hot], batch) {
                return false;
            }
        }
        (self.written, self.announced) = (to, if to > from { to } else { self.announced });
        true
    }

    /// Skips frames that were overwritten in the repository before or while they were written, and those that the publisher would
    /// overwrite next, once the subscriber has consumed the landing region. False while it has not.
    #[inline]
    fn skip_overwritten(&mut self, repository: &Region) -> bool {
        let oldest = repository.load_acquire(HOT_START);
        if self.written >= oldest && !self.is_overrun {
            return true;
        }
        if !self.is_overrun && !self.writer.may_lose && self.needed() < self.announced {
            self.fetch_consumed();
            if self.needed() < self.announced {
                return false;
            }
        }
        let parts =
            if self.writer.has_word_order { limits::LOG_MARGIN_PARTS } else { limits::LOG_WIRE_MARGIN_PARTS };
        let behind = oldest.saturating_add(self.geometry.capacity() as u64 / parts).max(self.start.position);
        self.start = place_behind(&self.geometry, repository, behind);
        // Frames written from there on were not overwritten before they were copied.
        self.written = self.written.max(self.start.position);
        (self.has_new_start, self.is_overrun) = (true, false);
        true
    }

    /// The end of the next batch: the head, or a frame before it; the current position if the publisher has overwritten
    /// everything before this head meanwhile.
    fn reach(&mut self, repository: &Region, head: &LogHead) -> u64 {
        let capacity = self.geometry.capacity() as u64;
        let writer = (capacity / limits::LOG_FLIGHT_PARTS).saturating_sub(self.flying());
        let reach = |len: u64| head.end.max(self.written).min(self.written.saturating_add(writer.min(len)));
        let mut wanted = reach(self.pace.len);
        if self.writer.may_lose {
            if wanted < head.end {
                // A record longer than a batch is a batch of its own.
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
        // For places that the index does not list.
        if !self.writer.has_word_order || limit - self.written >= self.pace.len {
            return end_between(&self.geometry, repository, self.written, limit);
        }
        let last = place_between(&self.geometry, repository, self.written, limit);
        last.map_or(self.written, |place| place.position)
    }

    /// The position from which the subscriber may still need frames.
    #[inline]
    fn needed(&self) -> u64 {
        self.consumed.max(self.start.position)
    }

    /// Reads the consumed position if the known credit is short.
    #[inline]
    fn ask(&mut self, wanted: u64) {
        let capacity = self.geometry.capacity() as u64;
        let held = wanted.saturating_sub(self.needed());
        let is_low = held > capacity - capacity / limits::LOG_ROOM_PARTS;
        let has_written = wanted.saturating_sub(self.asked_at) >= capacity / limits::LOG_TAKEN_PARTS;
        if held > capacity || (is_low && has_written) {
            self.asked_at = wanted;
            self.fetch_consumed();
        }
    }

    /// Starts to read the consumed position, or accepts the result if it is plausible.
    fn fetch_consumed(&mut self) {
        if let Some(word) = self.writer.fetch_word(LANDING_CONSUMED) {
            self.consumed = word.clamp(self.consumed, self.announced.max(self.consumed));
        }
    }

    /// Gives up what a subscriber without a readable position has not consumed in time.
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
    fn post(&mut self, source: &Registration, batch: [Option<Write>; WRITES_MAX], frames: FrameSpan) -> bool {
        let completion = self.writer.post_those(source, batch, frames);
        self.is_begun |= completion == Some(Completion::Done);
        completion.is_some()
    }

    /// Bytes in flight.
    fn flying(&self) -> u64 {
        self.writer.batches().iter().map(|batch| batch.to - batch.from).sum()
    }

    /// Whether more may be in flight.
    #[inline]
    fn has_flight_left(&mut self, source: &Registration) -> bool {
        let bytes_max = self.geometry.capacity() as u64 / limits::LOG_FLIGHT_PARTS / 2;
        let has_left =
            |this: &Self| this.writer.batches().len() < limits::LOG_BATCHES_MAX && this.flying() < bytes_max;
        if !has_left(self) {
            self.look(source);
        }
        has_left(self)
    }

    /// Polls for completed batches, and checks whether their frames were overwritten while they were copied.
    fn look(&mut self, source: &Registration) {
        if self.writer.is_empty() {
            return;
        }
        let mut arrived = self.writer.arrived().peekable();
        self.is_begun |= arrived.peek().is_some();
        // Acquire: if a copied word belongs to a later frame, the load below sees the start moved.
        fence(Ordering::Acquire);
        let oldest = source.region().load(HOT_START);
        // A completion may come after the subscriber has released what arrived, and the publisher has overwritten that.
        let is_released =
            self.subscriber.as_ref().is_some_and(|subscriber| subscriber.known_released() >= oldest);
        for batch in arrived {
            self.is_overrun |= batch.to > batch.from && batch.from < oldest && !is_released;
            self.pace.arrived(batch);
        }
    }
}
