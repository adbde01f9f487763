use std::sync::Arc;

use crate::checksum::Crc32;
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::header::{HOT_EPOCH, HOT_PUBLISHED, HOT_SEQUENCE, STATIC_OFFSET, StaticHeader};
use crate::layout::log::{
    FILLER, FrameCheck, FrameHeader, HEADER_LEN, HOT_END, HOT_START, HOT_START_SEQUENCE, LogGeometry,
    LogPlace, PIECE_LEN, RING_OFFSET, SEGMENT_COUNT, START_AGAIN, frame_len,
};
use crate::memory::Region;
use crate::repository::{TooLong, Writer};
use crate::sync::atomic::{Ordering, fence};

/// Payloads up to this many bytes are assembled in private memory first, with their header, and copied at once.
const GATHER_LEN_MAX: usize = 1024;

/// Bytes after a short frame to prefetch for writing: about as many as are written while a line is transferred from another
/// processor's cache. Further ahead, readers that keep up fetch the lines back before they are written.
const WRITE_AHEAD: usize = 192;
/// Frames of more bytes are not short.
const SHORT_LEN_MAX: usize = 1024;

/// The fraction of the ring that may hold uncommitted records.
const UNCOMMITTED_PARTS: u64 = 2;

/// The only writer of a log repository. Appending does not allocate, block or make system calls.
///
/// Appended records are invisible before [`Self::commit`], except in a batch of more than half of
/// the ring, which is committed in parts.
#[derive(Debug)]
pub(crate) struct LogWriter {
    region: Arc<Region>,
    geometry: LogGeometry,
    check: FrameCheck,
    /// The newest committed sequence.
    committed: Sequence,
    /// The newest appended sequence.
    appended: Sequence,
    /// The position of the next frame.
    end: u64,
    /// The position where the committed frames end.
    committed_end: u64,
    /// The offset of the first uncommitted frame, whose sequence is stored by the commit. Unspecified if there is none.
    first_offset: usize,
    /// Frames before this position are given up.
    start: u64,
    /// The offset of the end in the ring, bytes.
    place: usize,
    /// The position up to which frames can be written without giving up more.
    free_until: u64,
    /// The beginning of the next segment.
    segment_end: u64,
    /// The index, in private memory: the one in the repository may be damaged.
    begins: Box<[LogPlace]>,
    /// A payload in private memory, after the lead of its frame's checksum.
    scratch: Box<[u64]>,
}

/// The records of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    /// The newest record.
    pub(crate) newest: Sequence,
    /// The beginning of the first record and the end of the last one.
    pub(crate) positions: [u64; 2],
    /// Their number.
    pub(crate) count: u64,
}

impl Writer for LogWriter {
    type Geometry = LogGeometry;

    fn new(region: Arc<Region>, geometry: LogGeometry, line: &StaticHeader) -> Self {
        assert!(region.len() >= geometry.region_len(), "a region shorter than its geometry");
        region.copy_in(STATIC_OFFSET, &line.emit());
        region.store(HOT_EPOCH, line.epoch.get());
        region.store(HOT_START_SEQUENCE, Sequence::NONE.next().get());
        let mut writer = Self {
            check: FrameCheck::new(line.topic, line.epoch),
            region,
            geometry,
            committed: Sequence::NONE,
            appended: Sequence::NONE,
            end: 0,
            committed_end: 0,
            first_offset: RING_OFFSET,
            start: 0,
            place: 0,
            free_until: 0,
            segment_end: geometry.segment_len() as u64,
            begins: [LogPlace::FIRST; SEGMENT_COUNT].into(),
            scratch: scratch(&geometry),
        };
        writer.enter(0, 0, Sequence::NONE.next());
        writer
    }

    /// To readers the records up to it look overwritten.
    fn begin_after(&mut self, sequence: Sequence) {
        (self.committed, self.appended) = (sequence, sequence);
        self.region.store(HOT_SEQUENCE, sequence.get());
        self.region.store(HOT_START_SEQUENCE, sequence.next().get());
        self.enter(0, 0, sequence.next());
    }

    fn last(&self) -> Sequence {
        self.committed
    }

    #[inline]
    fn room(&mut self) -> &mut [u8] {
        let (_, room) = self.scratch.split_at_mut(FrameCheck::HEAD_WORDS);
        let room: &mut [u8] = bytemuck::cast_slice_mut(room);
        room.split_at_mut(self.geometry.payload_len_max()).0
    }

    #[inline]
    fn held(&self) -> &[u8] {
        let (_, room) = self.scratch.split_at(FrameCheck::HEAD_WORDS);
        bytemuck::cast_slice(room)
    }
}

impl LogWriter {
    /// Continues a repository whose oldest frame is at `start`, and whose newest record, with the sequence of `end`, ends there. Its index
    /// becomes `begins`.
    pub(super) fn resume(
        region: Arc<Region>,
        (geometry, line): (LogGeometry, &StaticHeader),
        start: u64,
        end: LogPlace,
        begins: Box<[LogPlace]>,
    ) -> Self {
        let LogPlace { position, sequence } = end;
        let place = geometry.capacity() - geometry.rest(position);
        for (segment, begin) in (0..).zip(&begins) {
            if entry(&geometry, &region, segment) != *begin {
                store(&geometry, &region, segment, *begin);
            }
        }
        let writer = Self {
            check: FrameCheck::new(line.topic, line.epoch),
            region,
            geometry,
            committed: sequence,
            appended: sequence,
            end: position,
            committed_end: position,
            first_offset: RING_OFFSET + place,
            start,
            place,
            free_until: geometry.free_until(start),
            segment_end: (geometry.segment(position) + 1) * geometry.segment_len() as u64,
            begins,
            scratch: scratch(&geometry),
        };
        writer.clear_next();
        writer
    }

    /// Returns the repository's memory.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns its geometry.
    pub(crate) fn geometry(&self) -> LogGeometry {
        self.geometry
    }

    /// Returns the position of the first uncommitted frame.
    #[inline]
    pub(crate) fn committed_end(&self) -> u64 {
        self.committed_end
    }

    /// Returns the position before which all frames are given up once frames of this length in all are appended; `None` if that gives up
    /// none. If they are several, it may be a later position.
    #[inline]
    pub(crate) fn gives_up(&self, frames_len: usize) -> Option<u64> {
        let rest = self.geometry.capacity() - self.place;
        let skipped = if frames_len > rest { rest } else { 0 };
        let end = self.end + (skipped + frames_len) as u64;
        if end > self.free_until { self.start_of(end) } else { None }
    }

    /// Returns the start of a log that ends here, if it is a later one.
    #[cold]
    fn start_of(&self, end: u64) -> Option<u64> {
        let oldest = (self.geometry.segment(end - 1) + 1).saturating_sub(SEGMENT_COUNT as u64);
        let is_later = self.start < oldest * self.geometry.segment_len() as u64;
        is_later.then(|| self.begin_of(oldest).position)
    }

    /// Returns the first frame that begins in this segment or behind it.
    fn begin_of(&self, segment: u64) -> LogPlace {
        self.begins.get(self.geometry.entry(segment)).copied().unwrap_or(LogPlace::FIRST)
    }

    /// Appends a record.
    #[inline]
    pub(crate) fn append(&mut self, payload: &[u8], now_ns: u64) -> Result<Sequence, TooLong> {
        let (len, max) = (payload.len(), self.geometry.payload_len_max());
        if len > max {
            return Err(TooLong { len, max });
        }
        if len <= GATHER_LEN_MAX {
            self.room().split_at_mut(len).0.copy_from_slice(payload);
            return Ok(self.append_filled(len, now_ns));
        }
        let (header, offset) = self.begin(len, now_ns);
        let header = self.write_long(&header, offset, payload);
        Ok(self.finish(&header, offset))
    }

    /// Appends the record whose payload is the first `len` bytes of [`Self::room`].
    ///
    /// # Panics
    ///
    /// If that has fewer bytes.
    #[inline]
    pub(crate) fn append_filled(&mut self, len: usize, now_ns: u64) -> Sequence {
        let (header, offset) = self.begin(len, now_ns);
        if len > GATHER_LEN_MAX {
            let header = self.write_long(&header, offset, self.held().split_at(len).0);
            return self.finish(&header, offset);
        }
        let (run, _) = self.scratch.split_at_mut(FrameCheck::HEAD_WORDS + len.div_ceil(WORD));
        self.check.lead(run, &header);
        let header = FrameHeader { crc: self.check.of_run(run, len), ..header };
        let (_, payload) = run.split_at(FrameCheck::HEAD_WORDS);
        let payload: &[u8] = bytemuck::cast_slice(payload);
        self.region.copy_in_bytes(offset + HEADER_LEN, payload.split_at(len).0);
        self.finish(&header, offset)
    }

    /// Makes space for the longest record after the appended ones, which commits them in part if they are more than half of the ring.
    /// Returns the offset of its frame. Space that is already reserved costs nothing again.
    pub(crate) fn reserve(&mut self, now_ns: u64) -> usize {
        let (_, offset) = self.begin(self.geometry.payload_len_max(), now_ns);
        offset
    }

    /// Appends the record whose payload is written to the frame at this offset, which is reserved.
    pub(super) fn append_staged(&mut self, offset: usize, len: usize, payload_crc: &Crc32, now_ns: u64) {
        let header = self.header(len, now_ns);
        let mut crc = self.check.of_header(&header);
        crc.append(payload_crc);
        self.finish(&FrameHeader { crc: crc.finish(), ..header }, offset);
    }

    /// Makes all appended records visible. `None` if there are none.
    #[inline]
    pub(crate) fn commit(&mut self, now_ns: u64) -> Option<Appended> {
        if self.appended == self.committed {
            return None;
        }
        let positions = [self.committed_end, self.end];
        let count = self.appended.get() - self.committed.get();
        self.show(self.committed.next());
        (self.committed, self.committed_end) = (self.appended, self.end);
        self.region.store(HOT_PUBLISHED, now_ns);
        self.region.store(HOT_SEQUENCE, self.committed.get());
        // Release: a reader that sees the end sees the frames before it. Pairs with the Acquire load in `LogReader`.
        self.region.store_release(HOT_END, self.end);
        Some(Appended { newest: self.committed, positions, count })
    }

    /// Shows the appended frames to readers that poll the sequence of the first one.
    #[inline]
    fn show(&self, first: Sequence) {
        self.clear_next();
        // Release: a reader that sees this sequence sees the frames up to the end, and the word above as 0 or as stored later.
        // Pairs with the Acquire load in `LogReader::poll_next`.
        self.region.store_release(self.first_offset, first.get());
    }

    /// Clears the next frame's sequence, which readers poll next: what a former round left there could pass for it. Not where a segment
    /// begins that may still be read: there readers go by the end.
    #[inline]
    fn clear_next(&self) {
        if self.end < self.free_until {
            self.region.store(RING_OFFSET + self.place, 0);
        }
    }

    /// Reserves space for a frame with a payload of this length. Returns its header without the checksum, and its position.
    #[inline]
    fn begin(&mut self, len: usize, now_ns: u64) -> (FrameHeader, usize) {
        let frame_len = frame_len(len);
        let uncommitted = self.end - self.committed_end + frame_len as u64;
        if uncommitted > self.geometry.capacity() as u64 / UNCOMMITTED_PARTS {
            self.commit(now_ns);
        }
        self.make_room(frame_len);
        (self.header(len, now_ns), RING_OFFSET + self.place)
    }

    /// The next record's header without the checksum.
    #[inline]
    fn header(&self, len: usize, now_ns: u64) -> FrameHeader {
        let payload_len = u32::try_from(len).unwrap_or(u32::MAX);
        FrameHeader { sequence: self.appended.next(), payload_len, crc: 0, published_ns: now_ns }
    }

    /// Writes a payload to the frame at this offset, piece by piece, and returns the frame's header with its checksum.
    fn write_long(&self, header: &FrameHeader, offset: usize, payload: &[u8]) -> FrameHeader {
        let mut crc = self.check.of_header(header);
        let mut offset = offset + HEADER_LEN;
        for piece in payload.chunks(PIECE_LEN) {
            crc.update(piece);
            self.region.copy_in_bytes(offset, piece);
            offset += PIECE_LEN;
        }
        FrameHeader { crc: crc.finish(), ..*header }
    }

    /// Writes the header of a frame whose payload is written.
    #[inline]
    fn finish(&mut self, header: &FrameHeader, offset: usize) -> Sequence {
        let [sequence, sizes, published_ns] = header.emit();
        self.region.store(offset + WORD, sizes);
        self.region.store(offset + 2 * WORD, published_ns);
        if self.appended == self.committed {
            self.first_offset = offset;
        } else {
            // Invisible: readers get here from the first frame only.
            self.region.store(offset, sequence);
        }
        let len = frame_len(header.payload_len as usize);
        if len <= SHORT_LEN_MAX {
            self.region.expect_writes(offset + WRITE_AHEAD, len);
        }
        self.advance(self.end + len as u64, header.sequence);
        header.sequence
    }

    /// Makes space for a frame of this length after the last one, giving up the records there.
    #[inline]
    fn make_room(&mut self, len: usize) {
        if len > self.geometry.capacity() - self.place {
            self.leave_rest();
        }
        let end = self.end + len as u64;
        if end > self.free_until {
            self.give_up(end);
        }
    }

    /// Skips the rest of the ring: the next frame does not fit there.
    #[cold]
    fn leave_rest(&mut self) {
        let end = self.end + (self.geometry.capacity() - self.place) as u64;
        self.give_up(end);
        self.region.store(RING_OFFSET + self.place, FILLER);
        self.advance(end, self.appended);
    }

    /// Gives up whole segments until everything up to this position can be written, and the rest of its segment.
    #[cold]
    fn give_up(&mut self, end: u64) {
        let (last, segment_len) = (self.geometry.segment(end - 1), self.geometry.segment_len() as u64);
        let oldest = (last + 1).saturating_sub(SEGMENT_COUNT as u64);
        if self.start >= oldest * segment_len {
            self.free_until = self.geometry.free_until(self.start);
            return;
        }
        let begin = self.begin_of(oldest);
        self.start = begin.position;
        self.region.store(HOT_START_SEQUENCE, begin.sequence.get());
        self.region.store(HOT_START, self.start);
        self.region.store(START_AGAIN, self.start);
        // Release: a reader that sees a word of a new frame (then has an Acquire fence) also sees either start. Pairs with the
        // fences in `LogReader`.
        fence(Ordering::Release);
        self.free_until = self.geometry.free_until(self.start);
        if self.appended == self.committed {
            // The last commit could not: a recovery must not take what is left there for a frame that was shown.
            self.clear_next();
        }
    }

    /// Records that everything up to this position is written, up to this record.
    #[inline]
    fn advance(&mut self, end: u64, newest: Sequence) {
        if end >= self.segment_end {
            self.index(end, newest);
        }
        // Less than the capacity, as a frame does not wrap.
        self.place += usize::try_from(end - self.end).unwrap_or(0);
        if self.place == self.geometry.capacity() {
            self.place = 0;
        }
        (self.end, self.appended) = (end, newest);
    }

    /// Indexes the segments that begin at or before this position.
    #[cold]
    fn index(&mut self, end: u64, newest: Sequence) {
        let (first, last) = (self.geometry.segment(self.end) + 1, self.geometry.segment(end));
        for segment in first..=last {
            self.enter(segment, end, newest.next());
        }
        self.segment_end = (last + 1) * self.geometry.segment_len() as u64;
    }

    /// Writes an entry of the index.
    fn enter(&mut self, segment: u64, position: u64, sequence: Sequence) {
        let begins = LogPlace { position, sequence };
        if let Some(begin) = self.begins.get_mut(self.geometry.entry(segment)) {
            *begin = begins;
        }
        store(&self.geometry, &self.region, segment, begins);
    }
}

/// Writes an entry of the index into the repository.
fn store(geometry: &LogGeometry, region: &Region, segment: u64, begin: LogPlace) {
    let entry = geometry.entry_offset(segment);
    region.store(entry, begin.position);
    // Release: a reader that sees the sequence sees its position. Pairs with the Acquire loads in `LogReader`.
    region.store_release(entry + WORD, begin.sequence.get());
}

/// A payload in private memory, after the lead of its frame's checksum.
fn scratch(geometry: &LogGeometry) -> Box<[u64]> {
    vec![0; FrameCheck::HEAD_WORDS + geometry.payload_len_max().div_ceil(WORD)].into()
}

/// An entry of the index that nobody writes.
pub(super) fn entry(geometry: &LogGeometry, region: &Region, segment: u64) -> LogPlace {
    let offset = geometry.entry_offset(segment);
    LogPlace { position: region.load(offset), sequence: Sequence::new(region.load(offset + WORD)) }
}
