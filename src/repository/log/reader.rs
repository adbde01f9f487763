mod fetched;
mod inline;
mod landing;

use super::places::entries;
use super::start::LogStart;
use crate::id::{Epoch, Kind, Meta, Sequence, TopicId};
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::{
    FILLER, FrameCheck, FrameHeader, HEADER_WORDS, HOT_END, HOT_START, HOT_START_SEQUENCE, LogGeometry,
    Place, frame_len,
};
use crate::layout::{Geometry, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::HOT_LINE;
use crate::repository::{
    Fetch, Finding, LossReason, Lost, ReadFailure, Reader, SubscriberStats, Taken, WriteOrder,
};
use crate::sync::atomic::{Ordering, fence};

/// Where frames stand in a reader's buffer: behind a word in which the run begins that a checksum is made of.
const HELD_FROM: usize = FrameCheck::LEAD_WORDS;

/// A record that is behind all others.
const UNBOUNDED: Sequence = Sequence::new(u64::MAX);

/// A reader of a log repository: copies frames to private memory, many at a time, and accepts each record whose sequence,
/// bounds, epoch and CRC all agree. Neither allocates nor blocks nor calls the operating system.
///
/// Every record from the one on with which it begins is either received or told as lost, in order, and once.
#[derive(Debug)]
pub(crate) struct LogReader {
    geometry: LogGeometry,
    epoch: Epoch,
    check: FrameCheck,
    /// Where it begins, until it has found that.
    start: Option<LogStart>,
    /// The newest record when that was settled; by default it is the one that the memory names.
    granted_at: Option<Sequence>,
    /// The next record to be received or told as lost.
    next: Sequence,
    /// The first record that was promised: those before it may be gone, and then one behind them is the first.
    promised: Sequence,
    /// Where the next frame begins.
    position: u64,
    /// The sequence of that frame, if it is known.
    at: Option<Sequence>,
    /// Why records before it may be missing.
    reason: LossReason,
    /// The frame before it was wrong.
    doubts: bool,
    /// Frames in private memory, behind a word in front of them. The next one begins at `from`.
    buffer: Box<[u64]>,
    /// Bytes that are copied at a time.
    fetch_len: usize,
    /// Bytes of the last record's frame.
    last_frame_len: usize,
    from: usize,
    until: usize,
    fetching: LogFetching,
    unproven: UnprovenRecords,
    suspicion: Option<Suspicion>,
    /// The last look came to no end: see [`Reader::has_more`].
    has_more: bool,
    /// No record behind this one is taken.
    bound: Sequence,
    /// What it has said to a publisher that writes where it reads: where it was.
    said: u64,
    /// From this position on that is to be said anew.
    say_from: u64,
    counts: SubscriberStats,
}

/// What a fetch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The hot line and the index, to find where to go on.
    Orientation,
    /// Frames from this position on, and perhaps the hot line. Those before `end` are whole.
    Frames { from: u64, end: u64, has_hot_line: bool },
    /// Frames that came inline, so many bytes from this position on, to be compared; and the hot line.
    Proof { from: u64, len: usize },
}

/// What a reader knows of a log that it fetches.
#[derive(Debug, Default)]
struct LogFetching {
    /// All frames before this are whole.
    end: u64,
    /// Frames in the buffer that begin before this were whole when they were fetched.
    sure: u64,
    /// How much more the log has when it goes on, as far as one can guess, bytes.
    predicted: usize,
    /// What was fetched last is not what it should be: it has to be found out where to go on.
    is_astray: bool,
}

/// What came inline since the repository was last read.
#[derive(Debug, Default)]
struct UnprovenRecords {
    /// Its frames. Those that the reader has not taken yet may be anything.
    words: Vec<u64>,
    /// Where they begin.
    from: u64,
    /// The first frame that was not the same in the repository. It may have been overwritten while it was fetched.
    doubted: Option<Doubted>,
    /// The repository has contradicted them once: nothing inline is taken any more.
    is_off: bool,
}

/// A frame that came inline and is not the same in the repository.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    position: u64,
    sequence: Sequence,
}

/// A frame that is not what it should be, and that was not given up.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// Where it begins, or one behind it that was found later.
    position: u64,
    /// When the first one was found, ns of the caller's clock.
    since_ns: u64,
    /// The end of the log then: what comes before it was written already, and what comes behind it may be right.
    end: u64,
    /// It has stayed so for so long that nothing before the end will change.
    is_settled: bool,
}

/// What became of an attempt to take a record from private memory.
enum Parsed {
    /// A record.
    Taken(Taken),
    /// What is missing before the next one.
    Lost(Lost),
    /// There is none, or not all of it.
    Part,
    /// A record behind those that may be taken.
    Later,
    /// A record that is not what it was, with so many words.
    Damaged(usize),
    /// Something that is no frame.
    Wrong,
}

/// What stands in the buffer where the next frame begins.
enum Found {
    /// A record: its header, and how many words its frame has.
    Frame(FrameHeader, usize),
    /// Nothing, or not all of it.
    Part,
    /// The rest of the ring is left out.
    Filler,
    /// A record that is not what it was, with so many words.
    Damaged(usize),
    /// Something that is no frame.
    Wrong,
}

impl LogReader {
    /// A reader that has seen nothing yet.
    pub(crate) fn new(geometry: LogGeometry, epoch: Epoch, topic: TopicId, start: LogStart) -> Self {
        let fetch_len =
            frame_len(geometry.payload_len_max()).max(limits::LOG_FETCH_LEN).min(geometry.capacity());
        Self {
            geometry,
            epoch,
            check: FrameCheck::new(topic, epoch),
            start: Some(start),
            granted_at: None,
            next: Sequence::NONE.next(),
            promised: Sequence::NONE,
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
            has_more: false,
            bound: UNBOUNDED,
            said: 0,
            say_from: u64::MAX,
            counts: SubscriberStats::default(),
        }
    }

    /// Has it begin where this record was the newest one, although others may follow by now.
    pub(crate) fn granted_at(self, newest: Sequence) -> Self {
        Self { granted_at: Some(newest), ..self }
    }

    /// The sequence of the record that comes next.
    pub(crate) fn next_sequence(&self) -> Sequence {
        self.next
    }

    /// The next record in mapped memory. What is wrong is only told as such if this says that it stays so; otherwise it is looked
    /// at again later.
    #[inline]
    fn poll_if(
        &mut self,
        memory: &Region,
        stays_wrong: impl Fn(&mut Self) -> bool,
    ) -> Result<Option<Taken>, ReadFailure> {
        let mut refills = 0;
        self.has_more = false;
        loop {
            match self.parse(u64::MAX) {
                Parsed::Taken(taken) => return Ok(Some(taken)),
                Parsed::Lost(lost) => return Err(ReadFailure::Lost(lost)),
                Parsed::Later => return Ok(None),
                // Whatever stands in memory, this comes to an end.
                Parsed::Part if refills == limits::READS_PER_CALL_MAX => {
                    self.has_more = true;
                    return Ok(None);
                }
                Parsed::Part if self.refill(memory) => refills += 1,
                Parsed::Part if self.from == self.until => return Ok(None),
                // A frame that goes on behind the last one is none.
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

    /// Takes the next record, or what is missing before it, from what is in private memory. Only what begins before this
    /// position is known to be whole: behind it the rest of the ring may have been left out a round ago.
    fn parse(&mut self, whole_until: u64) -> Parsed {
        loop {
            match self.find() {
                Found::Frame(header, _) if header.sequence > self.bound => return Parsed::Later,
                Found::Frame(header, words) => {
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
                Found::Filler if self.position >= whole_until => return Parsed::Wrong,
                Found::Filler => {
                    let rest = self.geometry.rest(self.position) as u64;
                    self.move_to(self.position.wrapping_add(rest), self.at);
                }
                Found::Part => return Parsed::Part,
                Found::Damaged(words) => return Parsed::Damaged(words),
                Found::Wrong => return Parsed::Wrong,
            }
        }
    }

    /// What stands where the next frame begins.
    fn find(&mut self) -> Found {
        let words = self.buffer.get(self.from..self.until).unwrap_or_default();
        if words.first() == Some(&FILLER) {
            // From the first word on any frame fits. Round after round would be left out, up to whatever end the memory says.
            let is_whole_ring = self.geometry.rest(self.position) == self.geometry.capacity();
            return if is_whole_ring { Found::Wrong } else { Found::Filler };
        }
        let Some((head, body)) = words.split_first_chunk::<HEADER_WORDS>() else { return Found::Part };
        let header = FrameHeader::parse(*head);
        let len = header.payload_len as usize;
        if len > self.geometry.payload_len_max() || self.at.is_some_and(|at| at != header.sequence) {
            return Found::Wrong;
        }
        let frame_words = frame_len(len) / WORD;
        if len > size_of_val(body) {
            // What is held ends before the ring does.
            let ends_behind = frame_words > self.geometry.rest(self.position) / WORD;
            return if ends_behind { Found::Wrong } else { Found::Part };
        }
        let run = self.buffer.get_mut(self.from - HELD_FROM..self.until).unwrap_or_default();
        match self.check.is_right(run, &header) {
            true => Found::Frame(header, frame_words),
            false => Found::Damaged(frame_words),
        }
    }

    /// Takes the frame of the next record, which is right and has so many words.
    #[inline]
    fn take_frame(&mut self, header: FrameHeader, words: usize) -> Taken {
        let begin = self.from + HEADER_WORDS;
        self.next = header.sequence.next();
        (self.promised, self.doubts) = (Sequence::NONE, false);
        self.counts.received += 1;
        self.last_frame_len = words * WORD;
        self.pass(words, Some(self.next));
        let FrameHeader { sequence, published_ns, .. } = header;
        let meta = Meta { sequence, epoch: self.epoch, published_ns };
        Taken { meta, conflated: 0, begin, len: header.payload_len as usize }
    }

    /// Whether the frame that comes next, before this end, has been wrong for so long that it stays so.
    #[cold]
    fn has_settled(&mut self, end: u64, now_ns: u64, settled_ns: u64) -> bool {
        let position = self.position;
        // Whatever the memory says of its end, this frame is looked at.
        let end = end.max(position.saturating_add(1));
        let first = Suspicion { position, since_ns: now_ns, end, is_settled: false };
        let mut suspicion = self.suspicion.filter(|it| position < it.end).unwrap_or(first);
        suspicion.position = position;
        suspicion.is_settled |= now_ns.saturating_sub(suspicion.since_ns) >= settled_ns;
        self.suspicion = Some(suspicion);
        suspicion.is_settled
    }

    /// Takes note that the next record there is, is this one. What is missing before it, if that was promised.
    #[cold]
    fn miss(&mut self, found: Sequence) -> Option<Lost> {
        let first = std::mem::replace(&mut self.next, found);
        let first = first.max(std::mem::replace(&mut self.promised, Sequence::NONE));
        let reason = self.reason;
        let count = found.get().checked_sub(first.get()).filter(|count| *count > 0)?;
        match reason {
            LossReason::Lapped => self.counts.lapped += count,
            LossReason::Damaged => self.counts.rejected += count,
        }
        Some(Lost { first, count, reason })
    }

    /// Goes on behind a frame of so many words.
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

    /// Goes on with the frame at this position.
    fn move_to(&mut self, position: u64, at: Option<Sequence>) {
        (self.position, self.at) = (aligned(position), at);
        (self.from, self.until) = (HELD_FROM, HELD_FROM);
    }

    /// Goes on behind a frame that is not what it was: what comes behind it tells how many records that was.
    #[cold]
    fn pass_damaged(&mut self, words: usize) {
        (self.reason, self.doubts) = (LossReason::Damaged, true);
        self.pass(words, None);
    }

    /// Copies frames to private memory, from the next one on. False when there is none, or not all of it.
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
        let words = self.buffer.get_mut(self.from..self.until).unwrap_or_default();
        memory.copy_out(self.geometry.offset(self.position), words);
        // Acquire: if any word copied above is of a later frame, the load below sees that the start has moved on. Pairs
        // with the Release fence in `LogWriter`.
        fence(Ordering::Acquire);
        if self.was_given_up(memory) {
            self.resume(memory, LossReason::Lapped);
        }
        true
    }

    /// Finds where to begin.
    #[cold]
    fn begin(&mut self, memory: &Region, start: LogStart) {
        let newest = self.granted_at.unwrap_or_else(|| Sequence::new(memory.load(HOT_SEQUENCE)));
        let oldest = Sequence::new(memory.load(HOT_START_SEQUENCE));
        let next = if start == LogStart::Earliest { oldest.min(newest.next()) } else { start.record(newest) };
        // What was there may be gone by now. What has come since then is not left out without a word.
        let promised = if let LogStart::At(_) = start { next } else { newest.next() };
        // Whatever stands in memory, and whatever was asked for: the first record has the first sequence.
        let next = next.max(Sequence::NONE.next());
        (self.next, self.promised) = (next, promised);
        let places = entries(&self.geometry, memory).filter(|place| place.sequence <= next);
        let position = places.map(|place| place.position).max();
        let position = position.unwrap_or_else(|| memory.load(HOT_START));
        self.move_to(position, None);
    }

    /// Goes on behind what was given up or is wrong. The records that were given up first would be followed by others:
    /// there is a margin.
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
        let positions = entries(&self.geometry, memory).map(|Place { position, .. }| position);
        let named = positions.filter(|position| (behind..=end).contains(position)).min();
        let position = match reason {
            LossReason::Lapped => named.unwrap_or(start),
            LossReason::Damaged => {
                // What is behind the end that was there when it was found is not wrong.
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
    type Options = LogStart;
    type Purpose = Purpose;

    fn open(
        geometry: &Geometry,
        (epoch, topic): (Epoch, TopicId),
        granted: Sequence,
        start: LogStart,
    ) -> Option<Self> {
        Some(Self::new(geometry.log()?, epoch, topic, start).granted_at(granted))
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

    /// Mostly there is one. Whatever else there is, [`Self::poll`], [`Self::follow`] and [`Self::take_fetched`] find out.
    #[inline]
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
        self.poll_if(memory, |_| true)
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
            // What is wrong is waited for, but not for ever.
            WriteOrder::Writes => self.follow_if(landing, |reader| {
                let end = landing.load_acquire(HOT_END);
                reader.has_settled(end, now_ns(), limits::ARRIVAL_SETTLED_NS)
            }),
        }
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn plan(&self) -> Fetch<Purpose> {
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
    fn take_fetched(&mut self) -> Result<Option<Taken>, ReadFailure> {
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

    /// Once: a publisher may say any number.
    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)> {
        if self.counts.cut_off > 0 {
            return None;
        }
        let count = last.get().checked_sub(self.next.get())?.saturating_add(1);
        let first = std::mem::replace(&mut self.next, last.next());
        self.counts.cut_off = count;
        Some((first, count))
    }

    fn counts(&self) -> SubscriberStats {
        self.counts
    }

    #[inline]
    fn held(&self) -> &[u64] {
        &self.buffer
    }
}

/// A position as it can be: frames begin at whole words.
fn aligned(position: u64) -> u64 {
    position / WORD as u64 * WORD as u64
}
