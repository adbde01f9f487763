mod fetched;
mod inline;
mod landing;
mod mapped;
mod released;
mod view;

pub(crate) use view::Viewed;

use super::arbiter::LogArbiter;
use super::places::{entries, last_until};
use super::start::LogStart;
use crate::id::{Epoch, Kind, Meta, Sequence, TopicId};
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::{
    FILLER, FrameCheck, FrameHeader, HEADER_WORDS, HOT_END, HOT_START, HOT_START_SEQUENCE, LogGeometry,
    LogPlace, frame_len,
};
use crate::layout::{Geometry, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::HOT_LINE;
use crate::repository::{
    Fetch, Finding, GrantedAt, LossReason, Lost, ReadFailure, Reader, SubscriberStats, Taken, WriteOrder,
};

/// The offset of frames in a reader's buffer: after one word, where the run of the checksum begins.
const HELD_FROM: usize = FrameCheck::LEAD_WORDS;

/// A sequence beyond all records.
const UNBOUNDED: Sequence = Sequence::new(u64::MAX);

/// A reader of a log repository: copies frames to private memory, many at a time, and accepts each record whose sequence,
/// bounds, epoch and CRC agree. It does not allocate, block or make system calls.
///
/// Every record from its start on is either received or reported lost, in order, and once.
#[derive(Debug)]
pub(crate) struct LogReader {
    geometry: LogGeometry,
    epoch: Epoch,
    check: FrameCheck,
    /// The requested start, until it is found.
    start: Option<LogStart>,
    /// The newest record when the start was settled; by default as the memory names it.
    granted_at: Option<Sequence>,
    /// The publisher never had the records up to this one: it continues the numbering of another.
    absent_until: Sequence,
    /// The next record to be received or reported lost.
    next: Sequence,
    /// The records up to the end were reported lost.
    has_given_up: bool,
    /// The position of the next frame.
    position: u64,
    /// The sequence of that frame, if it is known.
    at: Option<Sequence>,
    /// Why records before it may be missing.
    reason: LossReason,
    /// The previous frame was damaged.
    doubts: bool,
    /// Frames in private memory, after one leading word. The next one begins at `from`.
    buffer: Box<[u64]>,
    /// Bytes copied at a time.
    fetch_len: usize,
    /// Bytes of the last record's frame.
    last_frame_len: usize,
    from: usize,
    until: usize,
    fetching: LogFetching,
    unproven: UnprovenRecords,
    suspicion: Option<Suspicion>,
    /// The end of the log when frames were copied last.
    copied_until: u64,
    /// The last call reached its limit: see [`Reader::has_more`].
    has_more: bool,
    /// No record after this one is taken.
    bound: Sequence,
    polling: Polling,
    /// The last record taken in place. Its frame is held while it is the last record taken.
    in_view: Option<LogPlace>,
    /// The consumed position last reported to a publisher that writes into its landing region.
    said: u64,
    /// The position at which to report again.
    say_from: u64,
    counts: SubscriberStats,
}

/// The purpose of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The hot line and the index, to find where to continue.
    Orientation,
    /// Frames from this position on, unless there is no room, and the hot line. Those before `end` are whole.
    Frames { from: u64, end: u64 },
    /// This many bytes of inline frames from this position on, to be compared; and the hot line.
    Proof { from: u64, len: usize },
}

/// What a reader knows of a log that it fetches.
#[derive(Debug, Default)]
struct LogFetching {
    /// All frames before this position are whole.
    end: u64,
    /// Buffered frames that begin before this position were whole when fetched.
    sure: u64,
    /// An estimate of how much the log grows before the next fetch, bytes.
    predicted: usize,
    /// The last fetched frame was invalid: find out where to continue.
    is_astray: bool,
    /// Where the next frame was when what was fetched had been given up.
    stuck: Option<u64>,
}

/// How often a reader of mapped memory may still go by the next frame's sequence before it reads the hot line.
#[derive(Debug, Default)]
struct Polling {
    /// Empty polls.
    empty_left: u32,
    /// Records.
    found_left: u32,
}

/// Inline frames since the repository was last read.
#[derive(Debug, Default)]
struct UnprovenRecords {
    /// The frames. Those not taken yet are untrusted.
    words: Vec<u64>,
    /// Their position.
    from: u64,
    /// The first frame that differed from the repository. It may have been overwritten during the fetch.
    doubted: Option<Doubted>,
    /// The repository has contradicted them once: no inline frames are taken any more.
    is_off: bool,
}

/// An inline frame that differs from the repository.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    position: u64,
    sequence: Sequence,
}

/// An invalid frame that was not given up.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// Its position, or that of an invalid frame found later.
    position: u64,
    /// When the first one was found, ns of the caller's clock.
    since_ns: u64,
    /// The end of the log at that time: frames before it were already written, frames after it may be valid.
    end: u64,
    /// It has lasted so long that nothing before the end will change.
    is_settled: bool,
}

/// The result of taking a record from private memory.
enum Parsed {
    /// A record.
    Taken(Taken),
    /// Records missing before the next one.
    Lost(Lost),
    /// None, or only a part.
    Part,
    /// A record after the last one that may be taken.
    Later,
    /// A damaged record of this many words.
    Damaged(usize),
    /// Not a frame.
    Wrong,
}

/// What the buffer holds at the next frame's position.
enum NextFrame {
    /// A record: its header, and the number of words of its frame.
    Frame(FrameHeader, usize),
    /// None, or only a part.
    Part,
    /// The rest of the ring is skipped.
    Filler,
    /// A damaged record of this many words.
    Damaged(usize),
    /// Not a frame.
    Wrong,
}

impl LogReader {
    /// Takes every record for valid from now on.
    #[cfg(loom)]
    pub(crate) fn trust(&mut self) {
        self.check.trust();
    }

    /// Creates a reader that has read nothing.
    pub(crate) fn new(geometry: LogGeometry, epoch: Epoch, topic: TopicId, start: LogStart) -> Self {
        let fetch_len =
            frame_len(geometry.payload_len_max()).max(limits::LOG_FETCH_LEN).min(geometry.capacity());
        Self {
            geometry,
            epoch,
            check: FrameCheck::new(topic, epoch),
            start: Some(start),
            granted_at: None,
            absent_until: Sequence::NONE,
            next: Sequence::NONE.next(),
            position: 0,
            at: None,
            reason: LossReason::Lapped,
            doubts: false,
            buffer: vec![0; HELD_FROM + (fetch_len + limits::LOG_FETCH_LEN) / WORD].into(),
            fetch_len,
            last_frame_len: 0,
            from: HELD_FROM,
            until: HELD_FROM,
            fetching: LogFetching::default(),
            unproven: UnprovenRecords::default(),
            suspicion: None,
            copied_until: 0,
            has_more: false,
            bound: UNBOUNDED,
            polling: Polling::default(),
            in_view: None,
            said: 0,
            say_from: u64::MAX,
            counts: SubscriberStats::default(),
            has_given_up: false,
        }
    }

    /// Returns the sequence of the next record.
    pub(crate) fn next_sequence(&self) -> Sequence {
        self.next
    }

    /// Takes the next record, or a report of missing ones, from private memory. Only frames that begin before this
    /// position are known to be whole: after it the rest of the ring may be a skip from the previous round.
    fn parse(&mut self, whole_until: u64) -> Parsed {
        // None of the records that the publisher never had comes, whether or not it publishes others.
        let is_absent = self.next <= self.absent_until && self.absent_until <= self.bound;
        if is_absent
            && self.start.is_none()
            && let Some(lost) = self.miss(self.absent_until.next())
        {
            return Parsed::Lost(lost);
        }
        loop {
            match self.find() {
                NextFrame::Frame(header, _) if header.sequence > self.bound => return Parsed::Later,
                NextFrame::Frame(header, words) => {
                    if header.sequence > self.next
                        && let Some(lost) = self.miss(header.sequence)
                    {
                        return Parsed::Lost(lost);
                    }
                    if header.sequence == self.next {
                        return Parsed::Taken(self.take_frame(header, words));
                    }
                    self.pass(words, Some(header.sequence.next()));
                }
                NextFrame::Filler => {
                    let rest = self.geometry.rest(self.position) as u64;
                    // A writer commits a skip with the frame behind it: one that goes past the end is part of a damaged frame.
                    if self.position.saturating_add(rest) > whole_until {
                        return Parsed::Wrong;
                    }
                    self.move_to(self.position.wrapping_add(rest), self.at);
                }
                NextFrame::Part => return Parsed::Part,
                NextFrame::Damaged(words) => return Parsed::Damaged(words),
                NextFrame::Wrong => return Parsed::Wrong,
            }
        }
    }

    /// Parses what is at the next frame's position.
    fn find(&mut self) -> NextFrame {
        let words = self.buffer.get(self.from..self.until).unwrap_or_default();
        if words.first() == Some(&FILLER) {
            // Any frame fits at the start of the ring. Otherwise it would be skipped round after round, up to an untrusted end.
            let is_whole_ring = self.geometry.rest(self.position) == self.geometry.capacity();
            return if is_whole_ring { NextFrame::Wrong } else { NextFrame::Filler };
        }
        let Some((head, body)) = words.split_first_chunk::<HEADER_WORDS>() else { return NextFrame::Part };
        let header = FrameHeader::parse(*head);
        let len = header.payload_len as usize;
        if len > self.geometry.payload_len_max() || self.at.is_some_and(|at| at != header.sequence) {
            return NextFrame::Wrong;
        }
        let frame_words = frame_len(len) / WORD;
        if len > size_of_val(body) {
            // The buffer ends before the ring does.
            let ends_behind = frame_words > self.geometry.rest(self.position) / WORD;
            return if ends_behind { NextFrame::Wrong } else { NextFrame::Part };
        }
        let run = self.buffer.get_mut(self.from - HELD_FROM..self.until).unwrap_or_default();
        match self.check.is_right(run, &header) {
            true => NextFrame::Frame(header, frame_words),
            false => NextFrame::Damaged(frame_words),
        }
    }

    /// Takes the frame of the next record, which is valid and has this many words. Always inlined: if the
    /// result is returned through memory, receiving a held record takes half as long again.
    #[inline(always)]
    fn take_frame(&mut self, header: FrameHeader, words: usize) -> Taken {
        let begin = self.from + HEADER_WORDS;
        self.next = header.sequence.next();
        self.doubts = false;
        self.counts.received += 1;
        self.last_frame_len = words * WORD;
        self.pass(words, Some(self.next));
        let FrameHeader { sequence, published_ns, .. } = header;
        let meta = Meta { sequence, epoch: self.epoch, published_ns };
        Taken { meta, conflated: 0, begin, len: header.payload_len as usize }
    }

    /// Whether the next frame, before this end, has been invalid for so long that it is final.
    #[cold]
    fn has_settled(&mut self, end: u64, now_ns: u64, settled_ns: u64) -> bool {
        let position = self.position;
        // Whatever end the memory claims, this frame is checked.
        let end = end.max(position.saturating_add(1));
        let first = Suspicion { position, since_ns: now_ns, end, is_settled: false };
        let mut suspicion = self.suspicion.filter(|it| position < it.end).unwrap_or(first);
        suspicion.position = position;
        suspicion.is_settled |= now_ns.saturating_sub(suspicion.since_ns) >= settled_ns;
        self.suspicion = Some(suspicion);
        suspicion.is_settled
    }

    /// Advances to this record, the next one that exists. Returns the missing records before it.
    #[cold]
    fn miss(&mut self, found: Sequence) -> Option<Lost> {
        let first = std::mem::replace(&mut self.next, found);
        let reason = self.reason;
        let count = found.get().checked_sub(first.get()).filter(|count| *count > 0)?;
        match reason {
            LossReason::Lapped => self.counts.lapped = self.counts.lapped.saturating_add(count),
            LossReason::Damaged => self.counts.rejected = self.counts.rejected.saturating_add(count),
        }
        Some(Lost { first, count, reason })
    }

    /// Advances past a frame of this many words.
    #[inline]
    fn pass(&mut self, words: usize, at: Option<Sequence>) {
        self.from += words;
        self.position = self.position.wrapping_add((words * WORD) as u64);
        self.at = at;
    }

    /// Whether the next frame was given up.
    fn was_given_up(&self, memory: &Region) -> bool {
        aligned(memory.load(HOT_START)) > self.position
    }

    /// Continues with the frame at this position.
    fn move_to(&mut self, position: u64, at: Option<Sequence>) {
        (self.position, self.at) = (aligned(position), at);
        (self.from, self.until) = (HELD_FROM, HELD_FROM);
    }

    /// Advances past a damaged frame: the next valid one shows how many records are missing. Where a frame has the sequence that follows
    /// that of the frame before, its length is believed, too; a wrong one leads to a frame without the next sequence.
    #[cold]
    fn pass_damaged(&mut self, words: usize) {
        let at = self.at.map(Sequence::next);
        (self.reason, self.doubts) = (LossReason::Damaged, at.is_none());
        self.pass(words, at);
    }

    /// Finds the start.
    #[cold]
    fn begin(&mut self, memory: &Region, start: LogStart) {
        let newest = self.granted_at.unwrap_or_else(|| Sequence::new(memory.load(HOT_SEQUENCE)));
        let oldest = Sequence::new(memory.load(HOT_START_SEQUENCE));
        let next = match start {
            LogStart::At(sequence) => sequence,
            // Settled by the grant.
            LogStart::First | LogStart::Resume { .. } => oldest,
            // At or after the oldest record held. Records overwritten from now on are reported lost, and so are those published
            // since the grant.
            LogStart::Earliest | LogStart::Newest | LogStart::Back(_) => {
                start.record(newest).max(oldest).min(newest.next())
            }
        };
        // Whatever the memory holds and the options request: the first record has the first sequence.
        self.next = next.max(Sequence::NONE.next());
        let place = last_until(&self.geometry, memory, self.next);
        self.move_to(place.map_or_else(|| memory.load(HOT_START), |place| place.position), None);
    }

    /// Continues after given up or damaged frames. The oldest remaining records would be given up next, so
    /// it leaves a margin.
    #[cold]
    fn resume(&mut self, memory: &Region, reason: LossReason) {
        let start = memory.load(HOT_START);
        let behind = match reason {
            LossReason::Lapped => {
                start.saturating_add(self.geometry.capacity() as u64 / limits::LOG_MARGIN_PARTS)
            }
            LossReason::Damaged => self.position.saturating_add(1),
        };
        // Acquire: pairs with the Release store of the end in `LogWriter`.
        let end = memory.load_acquire(HOT_END);
        let positions = entries(&self.geometry, memory).map(|LogPlace { position, .. }| position);
        let named = positions.filter(|position| (behind..=end).contains(position)).min();
        let position = match reason {
            LossReason::Lapped => named.unwrap_or(start),
            LossReason::Damaged => {
                // Frames after the end at the time of the finding are valid.
                let suspicion = self.suspicion.filter(|it| it.end > self.position);
                let otherwise = suspicion.map_or(end, |it| it.end.min(end));
                named.map_or(otherwise, |named| named.min(otherwise))
            }
        };
        (self.reason, self.doubts) = (reason, false);
        self.move_to(position, None);
    }
}

impl Reader for LogReader {
    const KIND: Kind = Kind::Log;
    const WANTS_EACH: bool = true;
    const HOT_WRITTEN: usize = HOT_START_SEQUENCE;
    type Options = LogStart;
    type Purpose = Purpose;
    type Arbiter = LogArbiter;

    fn open(
        geometry: &Geometry,
        (epoch, topic): (Epoch, TopicId),
        granted: GrantedAt,
        start: LogStart,
    ) -> Option<Self> {
        let start = match start {
            LogStart::First | LogStart::Resume { .. } => start.within(epoch, granted),
            start => start,
        };
        let (granted_at, absent_until) = (Some(granted.newest), granted.after);
        Some(Self { granted_at, absent_until, ..Self::new(geometry.log()?, epoch, topic, start) })
    }

    fn resume(&mut self, before: &mut Self, _: bool) {
        self.counts.add(&before.counts);
        self.unproven.is_off |= before.unproven.is_off;
    }

    fn take_back(&mut self, lost: &Lost) {
        self.next = lost.first;
        match lost.reason {
            LossReason::Lapped => self.counts.lapped -= lost.count,
            LossReason::Damaged => self.counts.rejected -= lost.count,
        }
    }

    fn expect_inline(&mut self) {
        self.unproven.words.reserve_exact(self.unproven_len_max() / WORD);
    }

    fn has_begun(&self) -> bool {
        self.start.is_none()
    }

    fn settle(&mut self, memory: &Region) {
        if let Some(start) = self.start.take() {
            self.begin(memory, start);
        }
    }

    /// Usually one record is left. [`Self::poll`], [`Self::follow`] and [`Self::take_fetched`] report any other case. Always inlined,
    /// like [`Self::take_frame`].
    #[inline(always)]
    fn take_held(&mut self) -> Option<Taken> {
        let next = self.next;
        if self.at != Some(next) || next > self.bound || self.position >= self.say_from {
            return None;
        }
        let run = self.buffer.get_mut(self.from - HELD_FROM..self.until)?;
        let (head, body) = run.get(HELD_FROM..)?.split_first_chunk::<HEADER_WORDS>()?;
        let header = FrameHeader::parse(*head);
        let len = header.payload_len as usize;
        let is_whole = len <= size_of_val(body) && len <= self.geometry.payload_len_max();
        if header.sequence != next || !is_whole || !self.check.is_right(run, &header) {
            return None;
        }
        Some(self.take_frame(header, frame_len(len) / WORD))
    }

    #[inline]
    fn poll(&mut self, memory: &Region) -> Result<Option<Taken>, ReadFailure> {
        self.forget_view();
        self.poll_mapped(memory)
    }

    fn look_closely(&mut self) {
        self.polling = Polling::default();
    }

    #[inline]
    fn follow(
        &mut self,
        landing: &Region,
        order: WriteOrder,
        now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure> {
        match order {
            WriteOrder::Words | WriteOrder::FinalWrites => self.follow_if(landing, |_| true),
            // An invalid frame is waited for, but not for ever.
            WriteOrder::Writes => self.follow_if(landing, |reader| {
                let end = landing.load_acquire(HOT_END);
                reader.has_settled(end, now_ns(), limits::ARRIVAL_SETTLED_NS)
            }),
        }
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn plan(&mut self) -> Fetch<Purpose> {
        self.plan_fetch()
    }

    fn check(
        &mut self,
        mirror: &Region,
        fetched: &Fetch<Purpose>,
        now_ns: u64,
    ) -> Result<Finding<Purpose>, ReadFailure> {
        self.check_fetched(mirror, fetched, now_ns)
    }

    fn newest_fetched(&self, mirror: &Region, fetched: &Fetch<Purpose>) -> Option<Sequence> {
        fetched.ranges.contains(&HOT_LINE).then(|| Sequence::new(mirror.load(HOT_SEQUENCE)))
    }

    #[inline]
    fn take_fetched(&mut self, _: &Region, _: impl Fn() -> u64) -> Result<Option<Taken>, ReadFailure> {
        self.take()
    }

    fn wants_more(&self) -> bool {
        let is_astray = self.start.is_some() || self.fetching.is_astray;
        is_astray || self.unproven.doubted.is_some() || self.held_until() < self.fetching.end
    }

    fn is_behind(&self) -> bool {
        let has_room = (self.until - self.from) * WORD <= self.fetch_len;
        !self.fetching.is_astray && self.start.is_none() && has_room && self.held_until() < self.fetching.end
    }

    fn take_inline(&mut self, frames: &[u64], _: Sequence, end: u64) -> Finding<Purpose> {
        let from = end.wrapping_sub(size_of_val(frames) as u64);
        if self.take_frames(frames, from) { Finding::Something } else { Finding::Nothing }
    }

    fn is_unproven(&self) -> bool {
        self.unproven_words() > 0
    }

    fn last(&self) -> Sequence {
        Sequence::new(self.next.get().saturating_sub(1))
    }

    fn released(&self, is_landing: bool) -> u64 {
        self.released_position(is_landing)
    }

    /// Limited to one: the number is the publisher's, and untrusted.
    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)> {
        if self.has_given_up {
            return None;
        }
        let count = last.get().checked_sub(self.next.get())?.saturating_add(1);
        let counted = if self.ends_damaged() { &mut self.counts.rejected } else { &mut self.counts.cut_off };
        *counted = counted.saturating_add(count);
        self.has_given_up = true;
        Some((std::mem::replace(&mut self.next, last.next()), count))
    }

    fn ends_damaged(&self) -> bool {
        self.reason == LossReason::Damaged && self.at != Some(self.next)
    }

    fn counts(&self) -> SubscriberStats {
        self.counts
    }

    #[inline]
    fn held(&self) -> &[u64] {
        &self.buffer
    }
}

/// Rounds a position down: frames begin at whole words.
fn aligned(position: u64) -> u64 {
    position / WORD as u64 * WORD as u64
}
