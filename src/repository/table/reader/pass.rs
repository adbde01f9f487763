//! Passes over mapped pages.

use super::{Pass, PassPage, TableReader};
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::table::{PAGE_CELLS, Stamp};
use crate::memory::Region;
use crate::repository::table::scan::Left;

/// From this many wanted cells of a page on, the versions of the page are copied at once.
const COPIED_MIN: usize = PAGE_CELLS / 8;

impl TableReader {
    /// Begins a pass over what was committed up to this commit.
    #[inline]
    pub(super) fn begin_pass(&mut self, until: Sequence) -> Pass {
        let audited = self.page_to_audit().map(|cells| PassPage {
            first: cells.start,
            end: cells.end,
            is_whole: false,
            is_copied: false,
            is_audited: true,
        });
        let cell = audited.map_or(0, |page| page.first);
        Pass { until, shown: Sequence::NONE, cell, page: audited, left: Left::default() }
    }

    /// Returns the next cell of a pass that may have changed.
    #[inline]
    pub(super) fn next_cell(&mut self, memory: &Region, pass: &mut Pass) -> Option<usize> {
        loop {
            let Some(page) = pass.page else {
                self.next_page(memory, pass)?;
                continue;
            };
            let next = if page.is_copied {
                self.next_copied(&page, pass.cell)
            } else {
                self.next_wanted(memory, &page, pass.cell)
            };
            if let Some(cell) = next {
                if page.is_audited {
                    self.note_missed();
                }
                pass.cell = cell + 1;
                return Some(cell);
            }
            (pass.cell, pass.page) = (if page.is_audited { 0 } else { page.end }, None);
        }
    }

    /// Enters the next page that has changed. `None` if there is none.
    #[inline]
    fn next_page(&mut self, memory: &Region, pass: &mut Pass) -> Option<()> {
        let next = pass.cell.div_ceil(PAGE_CELLS);
        for page in next..self.geometry.page_count() {
            let words = self.geometry.page_offset(page);
            // Acquire: pairs with the Release store of the hot line, or with the write after it in a landing region.
            let changed = Sequence::new(memory.load_acquire(words));
            pass.shown = pass.shown.max(changed);
            if changed > self.floor {
                let cells = self.geometry.cells_of(page);
                let (first, end) = (cells.start, cells.end);
                let is_whole = Sequence::new(memory.load(words + WORD)) > self.keys_done;
                let is_copied = is_whole || self.wanted.count(cells.clone()) > COPIED_MIN;
                if is_copied {
                    let versions = self.versions.split_at_mut(cells.len().min(self.versions.len())).0;
                    memory.copy_out(self.geometry.version_offset(first), versions);
                }
                (pass.cell, pass.page) =
                    (first, Some(PassPage { first, end, is_whole, is_copied, is_audited: false }));
                return Some(());
            }
        }
        None
    }

    /// Returns the next changed cell by the copied versions.
    #[inline]
    fn next_copied(&self, page: &PassPage, from: usize) -> Option<usize> {
        let floor = Stamp::last_of(self.floor).get();
        let mut from = from;
        loop {
            let versions = self.versions.get(from - page.first..page.end - page.first)?;
            let cell = from + versions.iter().position(|version| *version > floor)?;
            let version = self.versions.get(cell - page.first).copied().unwrap_or(0);
            let is_read = page.is_whole || self.wanted.has(cell);
            if is_read && self.cells.get(cell).is_some_and(|known| known.version.get() != version) {
                return Some(cell);
            }
            from = cell + 1;
        }
    }

    /// Returns the next changed cell of those that are wanted.
    #[inline]
    fn next_wanted(&self, memory: &Region, page: &PassPage, from: usize) -> Option<usize> {
        let mut from = from;
        loop {
            let cell = self.wanted.next(from, page.end)?;
            let version = Stamp::new(memory.load(self.geometry.version_offset(cell)));
            // An audited page has changes later than that in their turn.
            if (version.sequence() > self.floor) != page.is_audited
                && self.cells.get(cell).is_some_and(|known| known.version != version)
            {
                return Some(cell);
            }
            from = cell + 1;
        }
    }
}
