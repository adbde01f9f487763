//! Finding that an earlier read was wrong, and making up for it: a fetch was damaged, or older than it should be, and has hidden a
//! change; or a word of mapped memory is damaged, and hides one.

use std::ops::Range;

use super::{Again, TableReader};
use crate::id::Sequence;
use crate::layout::table::Stamp;
use crate::limits;
use crate::memory::Region;

impl TableReader {
    /// Plans to compare the versions of a page, with one in some fetches of the hot line.
    pub(super) fn plan_audit(&mut self) {
        if self.scan.is_under_way() {
            return;
        }
        self.audit.is_planned = self.is_audit_due(limits::TABLE_AUDIT_ONE_IN);
        if self.audit.is_planned {
            self.scan.add_page(&self.geometry, self.audit.page);
        }
    }

    /// Returns the cells of a page whose versions a pass over mapped memory compares first, in some passes.
    #[inline]
    pub(super) fn page_to_audit(&mut self) -> Option<Range<usize>> {
        let is_due = self.is_audit_due(limits::TABLE_PASS_AUDIT_ONE_IN);
        is_due.then(|| self.geometry.cells_of(self.audit.page))
    }

    /// Whether one of so many is over; then it is the next page's turn.
    #[inline]
    fn is_audit_due(&mut self, one_in: u64) -> bool {
        self.audit.count += 1;
        let is_due = self.audit.count.is_multiple_of(one_in);
        if is_due {
            self.audit.page = (self.audit.page + 1) % self.geometry.page_count();
        }
        is_due
    }

    /// Records that a cell of mapped memory has a change that earlier passes have missed. Its page or its version is damaged, so only the
    /// cell is read again: otherwise this would go on for ever.
    #[cold]
    pub(super) fn note_missed(&mut self) {
        self.has_misread |= self.complete > Sequence::NONE && self.recalled.is_over();
        self.clean = Sequence::NONE;
    }

    /// Begins again if a version differs that should be known.
    pub(super) fn check_audit(&mut self, mirror: &Region) {
        // What is read again anyway has not been missed.
        if !std::mem::take(&mut self.audit.is_planned) || self.floor != self.done {
            return;
        }
        let is_missed = |cell: usize| {
            let version = Stamp::new(mirror.load(self.geometry.version_offset(cell)));
            let known = self.cells.get(cell).map_or(Stamp::NONE, |known| known.version);
            self.wanted.has(cell) && version != known && version.sequence() <= self.done
        };
        if self.geometry.cells_of(self.audit.page).any(is_missed) {
            self.begin_again(Sequence::NONE);
        }
    }

    /// Begins again if the table is at an earlier commit than thought: a hot line was damaged. If that line was, and is not as it was, the
    /// last commit that was taken is read again.
    #[inline]
    pub(super) fn restart_if_older(&mut self, newest: Sequence) {
        if newest < self.done {
            self.begin_again(newest);
        }
        if self.ahead != Sequence::NONE && self.ahead != newest {
            self.ahead = Sequence::NONE;
            self.floor = self.floor.min(self.done.before());
            self.clean = self.clean.min(self.floor);
        }
        self.forget_later_keys(newest);
    }

    /// Learns all keys again if keys up to a later commit than the newest one are known: the hot line was damaged when a snapshot or a
    /// lookup read it.
    #[inline]
    pub(in crate::repository::table) fn forget_later_keys(&mut self, newest: Sequence) {
        if newest < self.keys_done {
            (self.keys_done, self.clean) = Default::default();
        }
    }

    /// Reads the whole table again, because what was read of it after this commit, at least, is wrong.
    #[cold]
    fn begin_again(&mut self, from: Sequence) {
        self.has_misread |= self.complete > from && self.recalled.is_over();
        (self.done, self.floor, self.keys_done) = Default::default();
        (self.clean, self.complete, self.passed) = Default::default();
    }

    /// Records that the publisher has committed what the last pass found committed: it is complete up to there.
    pub(super) fn confirm_passed(&mut self) {
        let passed = std::mem::take(&mut self.passed);
        self.complete = self.complete.max(passed);
    }

    /// Begins to read all cells again whose entries are not those taken last, if that is due and no pass is under way. Returns whether
    /// it does.
    pub(super) fn begin_reading_again(&mut self) -> bool {
        if !self.reads_again || self.pass.is_some() || self.scan.is_under_way() {
            return false;
        }
        // What was complete before the entry still is.
        (self.floor, self.passed, self.reads_again) = Default::default();
        true
    }

    /// Takes all values once more, as soon as no pass is under way: at once would keep a pass from ever coming to its end if it happened
    /// often.
    pub(super) fn take_all_again(&mut self) {
        self.again = Again::Due;
        self.begin_taking_again();
    }

    /// Begins with that, if nothing else is to be done before.
    pub(super) fn begin_taking_again(&mut self) {
        // What an earlier subscription received is compared first, because each entry is compared once.
        let is_busy = self.pass.is_some() || self.scan.is_under_way() || !self.recalled.is_compared();
        if self.again != Again::Due || is_busy {
            return;
        }
        for (cell, known) in self.cells.iter_mut().enumerate() {
            if known.version != Stamp::NONE && !self.suspects.contains(&cell) {
                known.version = known.version.unlike();
            }
        }
        (self.floor, self.clean, self.complete, self.passed) = Default::default();
        self.again = Again::UnderWay;
    }
}
