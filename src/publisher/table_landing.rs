use super::handover::{ExposedLanding, Landing, LandingError, Repository};
use super::landing_writer::LandingWriter;
use crate::fabric::{ByteRange, Completion, Registration, Write};
use crate::id::{Epoch, Sequence};
use crate::layout::WORD;
use crate::layout::header::{HOT_OFFSET, HOT_PUBLISHED, HOT_SEQUENCE};
use crate::layout::table::{
    EntryHeader, HOT_KEYS, PAGE_CELLS, SLOT_RUN, Stamp, TableGeometry, TableHead, hot_line, slot_len,
};
use crate::limits;
use crate::memory::Region;
use crate::repository::table::TableCommit;
use crate::sync::atomic::{Ordering, fence};

#[cfg(test)]
mod tests;

/// Writes of one batch.
const WRITES_MAX: usize = 64;
/// The most writes for a cell: two stamps, its slot, its version, and the words of its page.
const CELL_WRITES: usize = 5;
/// Passes of the node over a table that the publisher keeps changing, before it leaves the landing region to the publisher for
/// now.
const PASSES_MAX: u32 = 4;

/// A push subscriber's landing region of a table.
///
/// The cells that changed are written in passes over the repository. The hot line follows a pass that found every cell as of the
/// pass's commit, as every pass of the publisher's own thread does. A cell that changed several times since it was last written skips
/// entries: if that overwrites the slot of its last one, the stamps of both slots are zeroed first, so that no older entry
/// passes for the one before.
#[derive(Debug)]
pub(crate) struct TableLanding {
    /// Its writer; a batch is known by nothing.
    writer: LandingWriter<()>,
    geometry: TableGeometry,
    epoch: Epoch,
    /// The commit named by its hot line.
    written: Sequence,
    /// The commit that the repository's hot line named when that was written: the same, or one that there is not, because that line is
    /// damaged.
    named: Sequence,
    /// All cells changed by commits up to this one are written.
    floor: Sequence,
    /// The newest commit that a pass found in a cell before its hot line, and the cell: no earlier pass is complete, because the cell may
    /// have changed before that, too, and its page shows that with its commit only.
    missed: (Sequence, usize),
    /// The last cell that was written although its version is damaged: once that is another one, the cell has to be written again.
    damaged: Option<usize>,
    /// For each cell the entry written.
    cells: Box<[Stamp]>,
    pass: Option<LandingPass>,
}

/// A pass over the repository.
#[derive(Clone, Copy, Debug)]
struct LandingPass {
    until: Sequence,
    /// The newest commit that a page shows: there is none after it, except one that is under way.
    shown: Sequence,
    /// The next cell.
    cell: usize,
    /// A cell was not found as of the pass's commit.
    has_missed: bool,
}

/// A batch of writes.
#[derive(Debug)]
struct LandingBatch<const N: usize> {
    writes: [Write; N],
    count: usize,
    /// Bytes copied.
    len: u64,
}

impl Landing for TableLanding {
    type Geometry = TableGeometry;
    type Commit = TableCommit;
    type Batch = ();

    fn open(exposed: ExposedLanding, repository: &Repository<TableGeometry>) -> Result<Self, LandingError> {
        let Repository { geometry, epoch, .. } = *repository;
        let writer = LandingWriter::new(exposed.remote, exposed.closed, limits::LANDING_BATCHES_MAX);
        if writer.may_lose {
            return Err(LandingError::Lossy);
        }
        let cells = vec![Stamp::NONE; geometry.capacity()].into();
        let [written, named, floor] = [Sequence::NONE; 3];
        let missed = (Sequence::NONE, 0);
        Ok(Self { writer, geometry, epoch, written, named, floor, missed, damaged: None, cells, pass: None })
    }

    fn writer(&self) -> &LandingWriter<()> {
        &self.writer
    }

    #[inline]
    fn end_of(commit: &TableCommit) -> u64 {
        commit.sequence.get()
    }

    fn end(source: &Registration) -> u64 {
        source.region().load_acquire(HOT_SEQUENCE)
    }

    #[inline]
    fn write(&mut self, source: &Registration, commit: &TableCommit) {
        // What the hot line named before is over: the commit may have that sequence.
        self.named = self.written;
        let is_whole = self.pass.is_none() && !self.is_repaired(source.region());
        let is_next = is_whole && self.written == commit.previous;
        match commit.cell.filter(|_| is_next) {
            Some(cell) => self.write_one(source, cell, commit.sequence),
            None => {
                // No other commit disturbs a pass that begins now.
                self.pass = None;
                let mut left = limits::TABLE_PUSH_LEN;
                self.advance(source, &mut left);
            }
        }
    }

    fn catch_up(&mut self, source: &Registration, left: &mut u64) -> bool {
        let mut has_posted = false;
        for _ in 0..PASSES_MAX {
            has_posted |= self.advance(source, left);
            let is_stopped = self.pass.is_some() || self.writer.is_closed();
            if is_stopped || !self.is_behind(Self::end(source)) {
                break;
            }
        }
        has_posted
    }

    #[inline]
    fn is_behind(&self, end: u64) -> bool {
        self.written.get() < end && self.named.get() != end
    }

    fn is_settled(&mut self, _: &Registration) -> bool {
        self.has_room();
        self.writer.is_empty()
    }

    /// A commit may have the sequence that the repository's hot line named too early.
    fn remind(&mut self, _: &Registration) {
        self.named = self.written;
    }

    /// The first pass may take long.
    fn is_ready(&self) -> bool {
        self.floor != Sequence::NONE || self.pass.is_none()
    }
}

impl TableLanding {
    /// Writes the only cell that a commit changed.
    #[inline]
    fn write_one(&mut self, source: &Registration, cell: usize, sequence: Sequence) {
        if !self.has_room() {
            return;
        }
        let region = source.region();
        let version = Stamp::new(region.load(self.geometry.version_offset(cell)));
        let mut batch = LandingBatch::<{ CELL_WRITES + 1 }>::new();
        self.add_cell(&mut batch, region, cell, version);
        self.add_page(&mut batch, cell / PAGE_CELLS);
        batch.add(self.hot(region, sequence));
        if self.post(source, &batch) {
            (self.written, self.named, self.floor) = (sequence, sequence, sequence);
        }
    }

    /// Begins a pass.
    #[inline]
    fn begin(&mut self, region: &Region) -> LandingPass {
        let until = newest(region);
        let (missed, cell) = self.missed;
        // A version only grows: one that was greater was damaged, and hid the cell's change.
        let is_restored =
            until < missed && Stamp::new(region.load(self.geometry.version_offset(cell))).sequence() < missed;
        if is_restored {
            self.missed = (Sequence::NONE, 0);
        }
        // A later change is past the floor. Otherwise the version is what it was before, and no page shows that.
        let repaired = if self.is_repaired(region) { self.damaged.take() } else { None };
        let version = |cell| Stamp::new(region.load(self.geometry.version_offset(cell)));
        let is_right = repaired.is_some_and(|cell| version(cell).sequence() <= self.floor);
        // And so does the newest sequence.
        if is_restored || is_right || until < self.floor {
            self.floor = Sequence::NONE;
        }
        LandingPass { until, shown: Sequence::NONE, cell: 0, has_missed: until < self.missed.0 }
    }

    /// Whether the cell that was written with a damaged version has another one.
    #[inline]
    fn is_repaired(&self, region: &Region) -> bool {
        self.damaged.is_some_and(|cell| {
            let written = self.cells.get(cell).map(|stamp| stamp.get());
            written != Some(region.load(self.geometry.version_offset(cell)))
        })
    }

    /// Continues the pass, or begins one, until it is over, `left` bytes are copied, or too much is in flight. Returns whether
    /// anything was written.
    fn advance(&mut self, source: &Registration, left: &mut u64) -> bool {
        let region = source.region();
        let mut pass = self.pass.take().unwrap_or_else(|| self.begin(region));
        let mut has_posted = false;
        while pass.cell < self.geometry.capacity() {
            if *left == 0 || !self.has_room() {
                self.pass = Some(pass);
                return has_posted;
            }
            let mut batch = LandingBatch::<WRITES_MAX>::new();
            let mut cells = [(0, Stamp::NONE); WRITES_MAX / CELL_WRITES];
            let count = self.fill(&mut batch, &mut pass, region, &mut cells);
            if count == 0 {
                continue;
            }
            if !self.post(source, &batch) {
                return has_posted;
            }
            has_posted = true;
            *left = left.saturating_sub(batch.len);
            // On one host everything is copied by now. Acquire: if a copied word belongs to a later entry, the load below sees that its
            // stamp is gone. Over a wire the copy may be made later: then the reader finds it wrong, until a later one arrives.
            fence(Ordering::Acquire);
            for (cell, stamp) in cells.iter().take(count) {
                if region.load_acquire(self.geometry.slot_offset(*cell, *stamp)) != stamp.get() {
                    let is_damaged = self.is_newest(region, *cell, *stamp);
                    pass.has_missed |= !is_damaged;
                    self.damaged = is_damaged.then_some(*cell).or(self.damaged);
                }
            }
        }
        // A commit stores the words of its pages before the newest sequence. If no page shows that, the hot line is damaged.
        let (until, is_ahead) = (pass.until.min(pass.shown), pass.until > pass.shown);
        // Each commit stores that line. If it has changed since, pages that were passed by may have, too: the next pass begins there again.
        let is_over = !is_ahead || newest(region) == pass.until;
        if !is_over {
            return has_posted;
        }
        if is_ahead && self.written == until && !pass.has_missed {
            self.named = pass.until;
        } else if !pass.has_missed {
            let mut batch = LandingBatch::<1>::new();
            batch.add(self.hot(region, until));
            if self.post(source, &batch) {
                (self.written, self.named, has_posted) = (until, pass.until, true);
            }
        }
        // The commit that a page shows may be under way then, with other pages that do not show it yet: the next pass writes the rest.
        self.floor = if is_ahead { until.before() } else { until };
        has_posted
    }

    /// Adds the next changed cells to a batch. Returns their number, and moves the pass on.
    fn fill(
        &mut self,
        batch: &mut LandingBatch<WRITES_MAX>,
        pass: &mut LandingPass,
        region: &Region,
        cells: &mut [(usize, Stamp)],
    ) -> usize {
        let (mut count, mut last) = (0, None);
        while let Some(room) = cells.get_mut(count) {
            let Some(cell) = self.next_changed(region, pass) else { break };
            let version = Stamp::new(region.load_acquire(self.geometry.version_offset(cell)));
            let Some(stamp) = self.as_of(region, (cell, version), pass.until) else {
                pass.has_missed = true;
                self.missed = self.missed.max((version.sequence(), cell));
                continue;
            };
            if self.cells.get(cell) == Some(&stamp) {
                continue;
            }
            *room = (cell, stamp);
            count += 1;
            let page = cell / PAGE_CELLS;
            if let Some(other) = last.replace(page).filter(|other| *other != page) {
                self.add_page(batch, other);
            }
            self.add_cell(batch, region, cell, stamp);
        }
        last.into_iter().for_each(|page| self.add_page(batch, page));
        count
    }

    /// Whether the version of the cell names this entry still, after an Acquire load has shown that the entry is not in its slot. No
    /// commit does that: a version is stored after its entry, and before the slot gets another one. So one of the two is damaged, which
    /// the reader has to find.
    fn is_newest(&self, region: &Region, cell: usize, stamp: Stamp) -> bool {
        region.load(self.geometry.version_offset(cell)) == stamp.get()
    }

    /// Returns the entry that a cell had after the commit `until`: its version's, or the one before.
    fn as_of(&self, region: &Region, (cell, version): (usize, Stamp), until: Sequence) -> Option<Stamp> {
        if version.sequence() <= until {
            return Some(version);
        }
        let found = Stamp::new(region.load_acquire(self.geometry.slot_offset(cell, version)));
        if found != version {
            // The entry before a damaged version would pass for the newest one.
            return self.is_newest(region, cell, version).then_some(version);
        }
        // Read after the version, so it is the entry before it, or a later one, or none while that is written.
        let before = Stamp::new(region.load_acquire(self.geometry.slot_offset(cell, version.other())));
        // If version and hot line are damaged, it may be one that is not committed, and that no page shows.
        let shown = || Sequence::new(region.load(self.geometry.page_offset(cell / PAGE_CELLS)));
        (before != Stamp::NONE && before.sequence() <= until && before.sequence() <= shown())
            .then_some(before)
    }

    /// Finds the next cell whose version differs from the entry written.
    fn next_changed(&self, region: &Region, pass: &mut LandingPass) -> Option<usize> {
        while pass.cell < self.geometry.capacity() {
            let cell = pass.cell;
            let page = cell / PAGE_CELLS;
            if cell.is_multiple_of(PAGE_CELLS) {
                let changed = Sequence::new(region.load_acquire(self.geometry.page_offset(page)));
                pass.shown = pass.shown.max(changed);
                if changed <= self.floor {
                    pass.cell = self.geometry.cells_of(page).end;
                    continue;
                }
            }
            pass.cell += 1;
            let version = region.load(self.geometry.version_offset(cell));
            if self.cells.get(cell).is_some_and(|written| written.get() != version) {
                return Some(cell);
            }
        }
        None
    }

    /// Adds a cell's entry, and then its version.
    #[inline]
    fn add_cell<const N: usize>(
        &mut self,
        batch: &mut LandingBatch<N>,
        region: &Region,
        cell: usize,
        stamp: Stamp,
    ) {
        let Some(written) = self.cells.get_mut(cell) else { return };
        let before = std::mem::replace(written, stamp);
        let slot = self.geometry.slot_offset(cell, stamp);
        let is_in_place = before != Stamp::NONE && before.slot() == stamp.slot();
        if is_in_place {
            let other = self.geometry.slot_offset(cell, stamp.other());
            batch.add(Write::Word { offset: other, word: Stamp::NONE.get() });
        }
        // Where words appear in order this makes the stamp a seqlock, as in the repository.
        if is_in_place || self.writer.has_word_order {
            batch.add(Write::Word { offset: slot, word: Stamp::NONE.get() });
        }
        let entry_len = EntryHeader::entry_len(region.load(slot + SLOT_RUN));
        let len = slot_len(entry_len.min(self.geometry.payload_len_max()));
        batch.len += len as u64;
        batch.add(Write::Range(ByteRange { offset: slot, len }));
        batch.add(Write::Word { offset: self.geometry.version_offset(cell), word: stamp.get() });
    }

    /// Adds the words of a page.
    #[inline]
    fn add_page<const N: usize>(&self, batch: &mut LandingBatch<N>, page: usize) {
        let words = Write::Range(ByteRange { offset: self.geometry.page_offset(page), len: 2 * WORD });
        batch.add(words);
    }

    /// The hot line after this commit.
    fn hot(&self, region: &Region, sequence: Sequence) -> Write {
        let (keys, published_ns) = (region.load(HOT_KEYS), region.load(HOT_PUBLISHED));
        let head = TableHead { sequence, keys, published_ns };
        Write::Line { offset: HOT_OFFSET, words: hot_line(&head, self.epoch) }
    }

    /// Posts a batch. Returns whether that succeeded.
    #[inline]
    fn post<const N: usize>(&mut self, source: &Registration, batch: &LandingBatch<N>) -> bool {
        let writes = batch.writes.split_at(batch.count.min(N)).0;
        let posted: Option<Completion> = self.writer.post(source, writes, ());
        posted.is_some()
    }

    /// Whether one more batch may be in flight.
    #[inline]
    fn has_room(&mut self) -> bool {
        if !self.writer.is_empty() {
            self.writer.arrived().for_each(drop);
        }
        self.writer.batches().len() < limits::LANDING_BATCHES_MAX && !self.writer.is_closed()
    }
}

impl<const N: usize> LandingBatch<N> {
    fn new() -> Self {
        Self { writes: [Write::Word { offset: 0, word: 0 }; N], count: 0, len: 0 }
    }

    /// Adds a write.
    #[inline]
    fn add(&mut self, write: Write) {
        if let Some(room) = self.writes.get_mut(self.count) {
            *room = write;
            self.count += 1;
        }
    }
}

/// The newest commit of a repository.
fn newest(region: &Region) -> Sequence {
    Sequence::new(region.load_acquire(HOT_SEQUENCE))
}
