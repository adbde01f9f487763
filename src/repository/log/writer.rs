use std::sync::Arc;

use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::header::{HOT_EPOCH, HOT_PUBLISHED, HOT_SEQUENCE, STATIC_OFFSET, StaticHeader};
use crate::layout::log::{
    FILLER, FrameCheck, FrameHeader, HEADER_LEN, HOT_END, HOT_START, HOT_START_SEQUENCE, LogGeometry,
    RING_OFFSET, SEGMENT_COUNT, frame_len,
};
use crate::memory::Region;
use crate::repository::TooLong;
use crate::sync::atomic::{Ordering, fence};

/// Payloads up to this many bytes are laid out in private memory first, with their header, and copied in one go.
const GATHER_LEN_MAX: usize = 1024;

/// Bytes behind a short frame that the processor is told of as those to be written soon: as many as are written while a
/// line comes from another processor's cache.
const WRITE_AHEAD: usize = 1024;

/// What part of the ring may hold records that are not committed.
const UNCOMMITTED_PARTS: u64 = 2;

/// The one writer of a log repository. Appending neither allocates nor blocks nor calls the operating system.
///
/// Records that were appended are seen by nobody before [`Self::commit`], but for those of a batch of more than half of
/// the ring: that is committed in parts.
#[derive(Debug)]
pub(crate) struct LogWriter {
    region: Arc<Region>,
    geometry: LogGeometry,
    check: FrameCheck,
    /// The newest sequence that was committed.
    committed: Sequence,
    /// The newest sequence that was appended.
    appended: Sequence,
    /// Where the next frame begins.
    end: u64,
    /// Where the first frame begins that was not committed.
    committed_end: u64,
    /// Frames before it are given up.
    start: u64,
    /// Where the end stands in the ring, bytes from its beginning.
    place: usize,
    /// Up to where frames can be written without giving up more.
    free_until: u64,
    /// Where the next segment begins.
    segment_end: u64,
    /// A payload in private memory, behind what the checksum of its frame begins with.
    scratch: Box<[u64]>,
}

/// What a commit added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    /// The newest record.
    pub(crate) newest: Sequence,
    /// Where the first of the records begins, and the last one ends.
    pub(crate) positions: [u64; 2],
    /// How many records they are.
    pub(crate) count: u64,
}

impl LogWriter {
    /// Takes a zeroed region and makes it an empty repository.
    ///
    /// # Panics
    ///
    /// When the region is shorter than its geometry, which is a mistake of the caller.
    pub(crate) fn new(region: Arc<Region>, geometry: LogGeometry, line: &StaticHeader) -> Self {
        assert!(region.len() >= geometry.region_len(), "a region shorter than its geometry");
        region.copy_in(STATIC_OFFSET, &line.emit());
        region.store(HOT_EPOCH, line.epoch.get());
        region.store(HOT_START_SEQUENCE, Sequence::NONE.next().get());
        let writer = Self {
            check: FrameCheck::new(line.topic, line.epoch),
            region,
            geometry,
            committed: Sequence::NONE,
            appended: Sequence::NONE,
            end: 0,
            committed_end: 0,
            start: 0,
            place: 0,
            free_until: 0,
            segment_end: geometry.segment_len() as u64,
            scratch: vec![0; FrameCheck::HEAD_WORDS + geometry.payload_len_max().div_ceil(WORD)].into(),
        };
        writer.enter(0, 0, Sequence::NONE.next());
        writer
    }

    /// The repository's memory.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where things stand in it.
    pub(crate) fn geometry(&self) -> LogGeometry {
        self.geometry
    }

    /// The newest sequence that was committed.
    pub(crate) fn last(&self) -> Sequence {
        self.committed
    }

    /// Where the first frame begins that was not committed.
    #[inline]
    pub(crate) fn committed_end(&self) -> u64 {
        self.committed_end
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
        let header = FrameHeader { crc: self.check.of(&header, payload), ..header };
        self.region.copy_in_bytes(offset + HEADER_LEN, payload);
        Ok(self.finish(&header, offset))
    }

    /// What [`Self::room`] holds.
    #[inline]
    pub(crate) fn held(&self) -> &[u8] {
        let (_, room) = self.scratch.split_at(FrameCheck::HEAD_WORDS);
        bytemuck::cast_slice(room)
    }

    /// Room in private memory for the longest payload, to be filled for [`Self::append_filled`]. It holds anything.
    #[inline]
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let (_, room) = self.scratch.split_at_mut(FrameCheck::HEAD_WORDS);
        let room: &mut [u8] = bytemuck::cast_slice_mut(room);
        room.split_at_mut(self.geometry.payload_len_max()).0
    }

    /// Appends the record whose payload is so many bytes of [`Self::room`], the first ones.
    ///
    /// # Panics
    ///
    /// When that has fewer.
    #[inline]
    pub(crate) fn append_filled(&mut self, len: usize, now_ns: u64) -> Sequence {
        let (header, offset) = self.begin(len, now_ns);
        let (run, _) = self.scratch.split_at_mut(FrameCheck::HEAD_WORDS + len.div_ceil(WORD));
        self.check.lead(run, &header);
        let header = FrameHeader { crc: self.check.of_run(run, len), ..header };
        let (_, payload) = run.split_at(FrameCheck::HEAD_WORDS);
        let payload: &[u8] = bytemuck::cast_slice(payload);
        self.region.copy_in_bytes(offset + HEADER_LEN, payload.split_at(len).0);
        self.finish(&header, offset)
    }

    /// Lets all that was appended be seen. `None` when that is nothing.
    #[inline]
    pub(crate) fn commit(&mut self, now_ns: u64) -> Option<Appended> {
        if self.appended == self.committed {
            return None;
        }
        let positions = [self.committed_end, self.end];
        let count = self.appended.get() - self.committed.get();
        (self.committed, self.committed_end) = (self.appended, self.end);
        self.region.store(HOT_PUBLISHED, now_ns);
        self.region.store(HOT_SEQUENCE, self.committed.get());
        // Release: whoever sees the end sees the frames before it. Pairs with the Acquire load in `LogReader`.
        self.region.store_release(HOT_END, self.end);
        Some(Appended { newest: self.committed, positions, count })
    }

    /// Makes room for a frame with a payload of this length. Its header without the checksum, and where it begins.
    #[inline]
    fn begin(&mut self, len: usize, now_ns: u64) -> (FrameHeader, usize) {
        let frame_len = frame_len(len);
        let uncommitted = self.end - self.committed_end + frame_len as u64;
        if uncommitted > self.geometry.capacity() as u64 / UNCOMMITTED_PARTS {
            self.commit(now_ns);
        }
        self.make_room(frame_len);
        let payload_len = u32::try_from(len).unwrap_or(u32::MAX);
        let sequence = self.appended.next();
        (FrameHeader { sequence, payload_len, crc: 0, published_ns: now_ns }, RING_OFFSET + self.place)
    }

    /// Writes the header of a frame whose payload stands there.
    #[inline]
    fn finish(&mut self, header: &FrameHeader, offset: usize) -> Sequence {
        let words = header.emit();
        words.iter().zip(0..).for_each(|(word, index)| self.region.store(offset + index * WORD, *word));
        let len = frame_len(header.payload_len as usize);
        self.region.expect_writes(offset + WRITE_AHEAD, len);
        self.advance(self.end + len as u64, header.sequence);
        header.sequence
    }

    /// Sees to it that a frame of this length can be written where the last one ends. What stands there is given up.
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

    /// Leaves the rest of the ring out: the next frame does not fit there.
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
        self.free_until = (last + 1) * segment_len;
        let oldest = (last + 1).saturating_sub(SEGMENT_COUNT as u64);
        if self.start >= oldest * segment_len {
            return;
        }
        let entry = self.geometry.entry_offset(oldest);
        self.start = self.region.load(entry);
        self.region.store(HOT_START_SEQUENCE, self.region.load(entry + WORD));
        self.region.store(HOT_START, self.start);
        // Release: whoever sees a word of a new frame (then has an Acquire fence) sees the start as well. Pairs with the
        // fence in `LogReader`.
        fence(Ordering::Release);
    }

    /// Takes note that everything up to this position is written, up to this record.
    #[inline]
    fn advance(&mut self, end: u64, newest: Sequence) {
        if end >= self.segment_end {
            self.index(end, newest);
        }
        // It is less than the capacity: a frame does not go round the end of the ring.
        self.place += usize::try_from(end - self.end).unwrap_or(0);
        if self.place == self.geometry.capacity() {
            self.place = 0;
        }
        (self.end, self.appended) = (end, newest);
    }

    /// Enters the segments that begin before this position, or at it.
    #[cold]
    fn index(&mut self, end: u64, newest: Sequence) {
        let (first, last) = (self.geometry.segment(self.end) + 1, self.geometry.segment(end));
        for segment in first..=last {
            self.enter(segment, end, newest.next());
        }
        self.segment_end = (last + 1) * self.geometry.segment_len() as u64;
    }

    /// Writes an entry of the index.
    fn enter(&self, segment: u64, position: u64, sequence: Sequence) {
        let entry = self.geometry.entry_offset(segment);
        self.region.store(entry, position);
        // Release: whoever sees the sequence sees its position. Pairs with the Acquire loads in `LogReader`.
        self.region.store_release(entry + WORD, sequence.get());
    }
}
