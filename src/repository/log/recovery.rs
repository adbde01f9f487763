//! Continues the repository of a writer that is gone.

use std::sync::Arc;

use super::writer::{LogWriter, entry};
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::header::{HOT_PUBLISHED, HOT_SEQUENCE, StaticHeader};
use crate::layout::log::{
    FILLER, FrameCheck, FrameHeader, HEADER_LEN, HEADER_WORDS, HOT_END, HOT_START, HOT_START_SEQUENCE,
    LogGeometry, LogPlace, SEGMENT_COUNT, START_AGAIN, frame_len,
};
use crate::memory::Region;
use crate::repository::{Continued, Damage, Recover};

/// Positions beyond this one are never reached.
const POSITION_MAX: u64 = 1 << 62;

impl Recover for LogWriter {
    /// Continues after the last record that readers can have seen, and checks every record that the ring holds.
    ///
    /// A writer that ended within a commit has either not shown the first frame of it, whose sequence it stores last: then no reader has
    /// taken one, and the frames do not count. Or it has, and all frames of the commit are whole: readers that poll the sequence may have
    /// taken them already, so they count as committed. Where readers do not poll it, the end and the newest sequence decide: the place may
    /// hold what an earlier writer left. The log of a feed is completed up to its table, which was committed first.
    fn recover(
        region: Arc<Region>,
        geometry: LogGeometry,
        line: &StaticHeader,
        continued: &Continued,
    ) -> Result<Self, Damage> {
        let newest = continued.check_newest(Sequence::new(region.load(HOT_SEQUENCE)), HOT_SEQUENCE)?;
        let (start, end) = (region.load(HOT_START), region.load(HOT_END));
        let is_possible = start <= end && end <= POSITION_MAX && end - start <= geometry.capacity() as u64;
        if !is_possible || !start.is_multiple_of(WORD as u64) || !end.is_multiple_of(WORD as u64) {
            return Err(Damage { what: "the positions of the log", offset: HOT_END });
        }
        let mut walk = Walk::new(&region, geometry, line, start);
        let first = if start < end {
            walk.sequence_at(start)
        } else {
            Sequence::new(region.load(HOT_START_SEQUENCE))
        };
        if first <= continued.after || first > newest.next() {
            return Err(Damage { what: "the oldest record", offset: geometry.offset(start) });
        }
        walk.next = first;
        // Unless the entry is that of the next round already.
        if geometry.segment(end) < geometry.segment(start) + SEGMENT_COUNT as u64 {
            walk.enter(geometry.segment(start), start, first);
        }
        walk.cover(end)?;
        let unfinished = walk.unfinished(start, newest, continued.until);
        walk.cover(unfinished)?;
        let last = walk.last();
        if last < newest || continued.until.is_some_and(|until| until != last) {
            let what = if last < newest { "the newest record" } else { "the records of the last event" };
            return Err(Damage { what, offset: geometry.offset(walk.position) });
        }
        let end = LogPlace { position: walk.position, sequence: last };
        let published_ns = walk.published_ns;
        let writer = Self::resume(Arc::clone(&region), (geometry, line), start, end, walk.begins);
        region.store(HOT_START_SEQUENCE, first.get());
        region.store(START_AGAIN, start);
        if let Some(published_ns) = published_ns {
            region.store(HOT_PUBLISHED, published_ns);
        }
        region.store(HOT_SEQUENCE, last.get());
        // Release: as in `LogWriter::commit`.
        region.store_release(HOT_END, end.position);
        Ok(writer)
    }
}

/// A way through the frames of a ring that nobody writes.
struct Walk<'a> {
    region: &'a Region,
    geometry: LogGeometry,
    check: FrameCheck,
    /// The position of the next frame, or of a filler before it.
    position: u64,
    /// Its sequence.
    next: Sequence,
    /// When the last frame was published.
    published_ns: Option<u64>,
    /// The index as it must be: the one in the repository is written once nothing refuses it.
    begins: Box<[LogPlace]>,
    /// A run of the checksum in private memory.
    run: Box<[u64]>,
}

/// A whole frame.
#[derive(Clone, Copy, Debug)]
struct Whole {
    position: u64,
    end: u64,
    published_ns: u64,
}

impl<'a> Walk<'a> {
    /// Begins at this position, whose sequence is not known yet.
    fn new(region: &'a Region, geometry: LogGeometry, line: &StaticHeader, position: u64) -> Self {
        let words = FrameCheck::HEAD_WORDS + geometry.payload_len_max().div_ceil(WORD);
        let (check, run) = (FrameCheck::new(line.topic, line.epoch), vec![0; words].into());
        let begins = (0..SEGMENT_COUNT as u64).map(|segment| entry(&geometry, region, segment)).collect();
        Self { region, geometry, check, position, next: Sequence::NONE, published_ns: None, begins, run }
    }

    /// The sequence of what is at this position, or behind a filler there.
    fn sequence_at(&self, position: u64) -> Sequence {
        Sequence::new(self.region.load(self.geometry.offset(self.behind_filler(position))))
    }

    /// The sequence of the last frame passed.
    fn last(&self) -> Sequence {
        Sequence::new(self.next.get().saturating_sub(1))
    }

    /// Passes the frames up to this position, all of which must be whole, and has the index name them.
    fn cover(&mut self, end: u64) -> Result<(), Damage> {
        while self.position < end {
            let damage = Damage { what: "a record", offset: self.geometry.offset(self.position) };
            let frame = self.frame_at(self.position, self.next, true).filter(|frame| frame.end <= end);
            let frame = frame.ok_or(damage)?;
            self.index(self.position, frame.position, self.next);
            self.index(frame.position, frame.end, self.next.next());
            (self.position, self.next) = (frame.end, self.next.next());
            self.published_ns = Some(frame.published_ns);
        }
        Ok(())
    }

    /// Has the index name the frame at `end` where segments begin between these positions, as [`LogWriter`] does.
    fn index(&mut self, from: u64, end: u64, next: Sequence) {
        for segment in self.geometry.segment(from) + 1..=self.geometry.segment(end) {
            self.enter(segment, end, next);
        }
    }

    /// Makes an entry of the index right.
    fn enter(&mut self, segment: u64, position: u64, sequence: Sequence) {
        if let Some(begin) = self.begins.get_mut(self.geometry.entry(segment)) {
            *begin = LogPlace { position, sequence };
        }
    }

    /// This position, or that behind a filler there.
    fn behind_filler(&self, position: u64) -> u64 {
        let rest = self.geometry.rest(position);
        let is_filler = self.region.load(self.geometry.offset(position)) == FILLER;
        // Any frame fits at the start of the ring.
        if is_filler && rest < self.geometry.capacity() { position + rest as u64 } else { position }
    }

    /// The end of the frames behind the position that were shown, although the end does not include them yet. If the newest record of a
    /// feed is known and is not among them, shows those up to it: all of them were written, except the sequence of the first.
    fn unfinished(&mut self, start: u64, newest: Sequence, until: Option<Sequence>) -> u64 {
        // Nothing is written further on before more is given up.
        let free_until = self.geometry.free_until(start);
        let (shown, last) = if self.last() < newest {
            // Stored after the frames, before the end.
            self.reach(free_until, true, Some(newest))
        } else if self.is_shown() {
            self.reach(free_until, true, None)
        } else {
            (self.position, self.last())
        };
        let Some(until) = until.filter(|until| last < *until) else { return shown };
        let (end, last) = self.reach(free_until, false, Some(until));
        let Some(first) = self.frame_at(self.position, self.next, false).filter(|_| last == until) else {
            return shown;
        };
        // In the order of `LogWriter::show`.
        if end < free_until {
            self.region.store(self.geometry.offset(end), 0);
        }
        self.region.store_release(self.geometry.offset(first.position), self.next.get());
        end
    }

    /// Whether readers that poll the next sequence find it at the position. They go by the end at the skipped rest of the ring, and where
    /// a segment begins: neither the frame behind the one nor the beginning of the other is cleared before it is written.
    fn is_shown(&self) -> bool {
        let is_segment = self.position.is_multiple_of(self.geometry.segment_len() as u64);
        !is_segment && self.region.load(self.geometry.offset(self.position)) == self.next.get()
    }

    /// How far whole frames with the next sequences reach, and the last of these sequences.
    fn reach(&mut self, free_until: u64, is_shown: bool, until: Option<Sequence>) -> (u64, Sequence) {
        let (mut position, mut next, mut is_shown) = (self.position, self.next, is_shown);
        while position < free_until && until.is_none_or(|until| next <= until) {
            let frame = self.frame_at(position, next, is_shown);
            let Some(frame) = frame.filter(|frame| frame.end <= free_until) else { break };
            (position, next, is_shown) = (frame.end, next.next(), true);
        }
        (position, Sequence::new(next.get() - 1))
    }

    /// The frame with this sequence at this position, or behind a filler there, if it is whole. One that is not shown lacks its sequence.
    fn frame_at(&mut self, position: u64, sequence: Sequence, is_shown: bool) -> Option<Whole> {
        let position = self.behind_filler(position);
        let (offset, rest) = (self.geometry.offset(position), self.geometry.rest(position));
        if rest < HEADER_LEN {
            return None;
        }
        let mut head = [0; HEADER_WORDS];
        self.region.copy_out(offset, &mut head);
        let header = FrameHeader::parse(head);
        if is_shown && header.sequence != sequence {
            return None;
        }
        let header = FrameHeader { sequence, ..header };
        let len = header.payload_len as usize;
        if len > self.geometry.payload_len_max() || frame_len(len) > rest {
            return None;
        }
        let run = self.run.get_mut(..FrameCheck::HEAD_WORDS + len.div_ceil(WORD))?;
        self.region.copy_out(offset, run.get_mut(FrameCheck::LEAD_WORDS..)?);
        let (end, published_ns) = (position + frame_len(len) as u64, header.published_ns);
        self.check.is_right(run, &header).then_some(Whole { position, end, published_ns })
    }
}
