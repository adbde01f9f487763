//! A pass over a table in steps: what to fetch next, and which cells have changed.
//!
//! Over a wire each step is one fetch. Its words are of different times, so only what an earlier step found committed is complete in
//! it: first the hot line, which sets the goal; then the pages; then the versions in pages that changed; then the cells whose
//! versions changed, each with its version again and the hot line. In mapped memory snapshots and lookups take the same steps without
//! a fetch; changes are found there without steps.

use super::entry::committed;
use super::interest::CellSet;
use crate::id::Sequence;
use crate::layout::table::{PAGE_CELLS, Stamp, TableGeometry};
use crate::layout::{ByteRange, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::HOT_LINE;

/// A pass over a table.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    step: Step,
    /// The commits up to this one are read, if there are as many.
    until: Sequence,
    /// What the hot line named when it was last read: in the beginning, with cells, and with versions if no page shows that commit.
    newest: Sequence,
    /// The newest commit that a page or a version shows.
    shown: Sequence,
    /// The pages that changed, and whether keys in them did; those before `next_page` are done.
    pages: Vec<(usize, bool)>,
    next_page: usize,
    /// The changed cells of the current pages, with their versions.
    cells: Vec<(usize, Stamp)>,
    /// The next of them to be taken, the end of those that have been fetched, and the end of those in this step's fetch.
    next_cell: usize,
    fetched: usize,
    planned: usize,
    /// What the current step fetches.
    ranges: Vec<ByteRange>,
    left: Left,
    /// See [`PassEnd`].
    is_confirmed: bool,
}

/// A step of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// Nothing is planned.
    #[default]
    Idle,
    /// The hot line.
    Head,
    /// All pages.
    Pages,
    /// The versions in these pages.
    Versions { first: usize, end: usize },
    /// Cells.
    Cells,
}

/// What a pass looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal<'a> {
    pub(super) geometry: &'a TableGeometry,
    /// The cells to read.
    pub(super) wanted: &'a CellSet,
    /// Changes after this commit.
    pub(super) floor: Sequence,
    /// Keys added or removed after this commit are unknown: every cell of their pages is read.
    pub(super) keys_done: Sequence,
    /// Only pages in which keys changed.
    pub(super) is_for_keys: bool,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// Nothing has changed.
    Nothing,
    /// Another step is planned.
    More,
    /// Nothing has changed, and the hot line names a commit that no page shows.
    Ahead,
    /// Cells can be taken.
    Cells,
    /// The pass is over.
    Over(PassEnd),
}

/// The end of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassEnd {
    /// The commits up to this one are read.
    pub(crate) until: Sequence,
    /// The newest commit that may be read in part: the same, or the one after it, if that may be under way.
    pub(crate) seen: Sequence,
    /// What the pass has left unread.
    pub(crate) left: Left,
    /// Another fetch than the first one has found them committed too.
    pub(crate) is_confirmed: bool,
    /// The later commit that the hot line had named, and that there is not, because it was damaged. None otherwise.
    pub(crate) ahead: Sequence,
}

impl PassEnd {
    /// Returns the end of a pass that was to read everything up to the first of these commits, which the hot line named, as it names the
    /// second one at the end, and that has found no page that shows a later one than `shown`.
    ///
    /// A commit stores the words of its pages before the newest sequence, which is a Release store, and pages never go back. So whoever
    /// has acquired a true newest sequence finds it in the word of a page, or a later one; over a wire, if it fetches the pages after the
    /// hot line; and in a landing region, where each cell is written with its version and the words of its page before the hot line.
    /// If no page shows it, the newest sequence is damaged. A reader that followed it would miss the commit that gets this sequence later.
    ///
    /// Each commit stores the newest sequence. So if that is as damaged as before, none has come to its end during the pass: what pages
    /// show is read, except of a commit that is under way, which not all its pages and cells may show yet. Otherwise what was read before
    /// may have changed since, and the pass counts for nothing. A damaged sequence that the table comes to during the pass is not noticed:
    /// it was wrong by no more than what was committed in that time.
    pub(super) fn new((until, newest): (Sequence, Sequence), shown: Sequence, mut left: Left) -> Self {
        let is_confirmed = false;
        if until <= shown {
            return Self { until, seen: until, left, is_confirmed, ahead: Sequence::NONE };
        }
        if newest != until {
            left = Left { has_changing: true, has_rejected: true };
        }
        Self { until: shown.before(), seen: shown, left, is_confirmed, ahead: until }
    }
}

/// What a pass leaves unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Cells that kept changing. Their versions are later than the pass, but their keys may be unknown.
    pub(crate) has_changing: bool,
    /// Cells with entries that were rejected: the pass has to be repeated.
    pub(crate) has_rejected: bool,
}

impl Scan {
    /// Plans the next step. Returns the end of a pass if that begins a new one.
    pub(crate) fn plan(&mut self, goal: &Goal<'_>) -> Option<PassEnd> {
        match self.step {
            Step::Cells if self.next_cell < self.cells.len() => self.plan_cells(goal),
            Step::Cells if self.next_page < self.pages.len() => self.plan_versions(goal),
            // The fetch that was planned has not been made, or was given up.
            Step::Pages | Step::Versions { .. } => {}
            step @ (Step::Idle | Step::Head | Step::Cells) => {
                let end = (step == Step::Cells).then_some(self.end());
                self.reset();
                self.step = Step::Head;
                self.ranges.push(HOT_LINE);
                return end;
            }
        }
        None
    }

    /// Adds the versions of a page to the fetch of the hot line.
    pub(super) fn add_page(&mut self, geometry: &TableGeometry, page: usize) {
        let cells = geometry.cells_of(page);
        let offset = geometry.version_offset(cells.start);
        self.ranges.push(ByteRange { offset, len: cells.len() * WORD });
    }

    /// Forgets the pass.
    pub(crate) fn reset(&mut self) {
        self.step = Step::Idle;
        self.pages.clear();
        self.cells.clear();
        self.ranges.clear();
        (self.next_page, self.next_cell, self.fetched, self.planned) = (0, 0, 0, 0);
        (self.left, self.is_confirmed) = (Left::default(), false);
        (self.newest, self.shown) = Default::default();
    }

    /// Returns what to fetch.
    pub(crate) fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    /// Returns whether a pass has begun.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.step, Step::Idle | Step::Head)
    }

    /// Records what was left unread.
    pub(crate) fn leave(&mut self, left: Left) {
        self.left.has_changing |= left.has_changing;
        self.left.has_rejected |= left.has_rejected;
    }

    /// Continues after the fetch of a step. `has_changed` decides by a cell's version whether to read it.
    pub(crate) fn advance(
        &mut self,
        memory: &Region,
        goal: &Goal<'_>,
        has_changed: impl Fn(usize, Stamp) -> bool,
    ) -> Scanned {
        match self.step {
            Step::Idle | Step::Head => {
                let newest = committed(memory);
                if newest <= goal.floor {
                    self.reset();
                    return Scanned::Nothing;
                }
                (self.until, self.newest) = (newest, newest);
                self.step = Step::Pages;
                self.ranges.clear();
                self.ranges.push(goal.geometry.pages());
                Scanned::More
            }
            Step::Pages => {
                self.find_pages(memory, goal);
                self.continue_pages(goal)
            }
            Step::Versions { first, end } => {
                for (page, is_whole) in self.pages.get(first..end).unwrap_or_default() {
                    let (shown, until) = (&mut self.shown, self.until);
                    let cells = goal.cells(*page, *is_whole).map(|cell| {
                        let version = Stamp::new(memory.load_acquire(goal.geometry.version_offset(cell)));
                        // One after that is of a later commit, which its page shows, or damaged.
                        if version.sequence() <= until {
                            *shown = version.sequence().max(*shown);
                        }
                        (cell, version)
                    });
                    self.cells.extend(cells.filter(|(cell, version)| has_changed(*cell, *version)));
                }
                self.newest = committed(memory);
                if self.cells.is_empty() {
                    return self.continue_pages(goal);
                }
                self.plan_cells(goal);
                Scanned::More
            }
            Step::Cells => {
                self.fetched = self.planned;
                self.newest = committed(memory);
                self.is_confirmed = self.newest >= self.until;
                Scanned::Cells
            }
        }
    }

    /// Returns the next changed cell that has been fetched, with the version that it had before.
    pub(crate) fn next_cell(&mut self) -> Option<(usize, Stamp)> {
        let cell = *self.cells.get(self.next_cell..self.fetched)?.first()?;
        self.next_cell += 1;
        Some(cell)
    }

    /// Returns the commit as of which the pass reads.
    pub(crate) fn until(&self) -> Sequence {
        self.until
    }

    fn end(&self) -> PassEnd {
        let Self { until, newest, shown, left, is_confirmed, .. } = *self;
        PassEnd { is_confirmed, ..PassEnd::new((until, newest), shown, left) }
    }

    /// Finds the pages that have changed.
    fn find_pages(&mut self, memory: &Region, goal: &Goal<'_>) {
        self.pages.clear();
        self.next_page = 0;
        for page in 0..goal.geometry.page_count() {
            let words = goal.geometry.page_offset(page);
            let has_new_keys = Sequence::new(memory.load_acquire(words + WORD)) > goal.keys_done;
            let changed = Sequence::new(memory.load_acquire(words));
            self.shown = self.shown.max(changed);
            if changed > goal.floor && (has_new_keys || !goal.is_for_keys) {
                self.pages.push((page, has_new_keys));
            }
        }
    }

    /// Plans the versions of the next pages, or ends the pass.
    fn continue_pages(&mut self, goal: &Goal<'_>) -> Scanned {
        if self.next_page >= self.pages.len() {
            let (end, is_unchanged) = (self.end(), self.pages.is_empty());
            self.reset();
            let is_ahead = end.ahead != Sequence::NONE;
            return if is_ahead && is_unchanged { Scanned::Ahead } else { Scanned::Over(end) };
        }
        self.plan_versions(goal);
        Scanned::More
    }

    /// Plans to fetch versions: of all cells of a page where keys have changed, otherwise of the wanted ones.
    fn plan_versions(&mut self, goal: &Goal<'_>) {
        self.cells.clear();
        self.ranges.clear();
        (self.next_cell, self.fetched, self.planned) = (0, 0, 0);
        // The hot line may be read once more.
        let (first, mut len) = (self.next_page, 0);
        for (page, is_whole) in self.pages.iter().skip(first) {
            let ranges_max = self.ranges.len() + PAGE_CELLS / GAP_CELLS;
            let is_full = len >= limits::TABLE_FETCH_LEN || ranges_max >= limits::TABLE_FETCH_RANGES;
            if is_full && self.next_page > first {
                break;
            }
            let begun = self.ranges.len();
            for cell in goal.cells(*page, *is_whole) {
                add_version(&mut self.ranges, begun, goal.geometry.version_offset(cell));
            }
            len += self.ranges.iter().skip(begun).map(|range| range.len).sum::<usize>();
            self.next_page += 1;
        }
        if self.until > self.shown {
            self.ranges.push(HOT_LINE);
        }
        self.step = Step::Versions { first, end: self.next_page };
    }

    /// Plans to fetch the next cells.
    fn plan_cells(&mut self, goal: &Goal<'_>) {
        self.ranges.clear();
        let mut len = 0;
        self.planned = self.next_cell;
        for (cell, _) in self.cells.iter().skip(self.next_cell) {
            let slots = goal.geometry.cell_range(*cell);
            let is_full = len + slots.len > limits::TABLE_FETCH_LEN
                || self.ranges.len() + CELL_RANGES >= limits::TABLE_FETCH_RANGES;
            if is_full && self.planned > self.next_cell {
                break;
            }
            self.ranges.push(ByteRange { offset: goal.geometry.version_offset(*cell), len: WORD });
            self.ranges.push(slots);
            len += slots.len;
            self.planned += 1;
        }
        self.ranges.push(HOT_LINE);
        self.step = Step::Cells;
    }
}

impl Goal<'_> {
    /// The cells of a page to read.
    fn cells(&self, page: usize, is_whole: bool) -> impl Iterator<Item = usize> {
        let (range, wanted) = (self.geometry.cells_of(page), self.wanted);
        let mut from = range.start;
        std::iter::from_fn(move || {
            let all = (from < range.end).then_some(from);
            let cell = if is_whole { all } else { wanted.next(from, range.end) }?;
            from = cell + 1;
            Some(cell)
        })
    }
}

/// The ranges of a cell: its version and its slots.
const CELL_RANGES: usize = 2;
/// How many versions apart two wanted ones may be so that one range covers both.
const GAP_CELLS: usize = 64;

/// Adds a version to the ranges after `begun`: to the last one if that is close.
fn add_version(ranges: &mut Vec<ByteRange>, begun: usize, offset: usize) {
    if let Some(last) = ranges.get_mut(begun..).and_then(<[ByteRange]>::last_mut)
        && offset - last.offset < last.len + GAP_CELLS * WORD
    {
        last.len = offset + WORD - last.offset;
        return;
    }
    ranges.push(ByteRange { offset, len: WORD });
}
