//! Reading one cell.

use super::{ChangedKey, Reported, Suspicion, TableReader};
use crate::id::Meta;
use crate::layout::table::{ENTRY_WORD, Stamp};
use crate::limits;
use crate::memory::Region;
use crate::repository::table::entry::{CellMemory, Choice, Entry, EntryRejection, committed};
use crate::repository::table::recalled::{Gone, last_life};
use crate::repository::table::scan::Left;
use crate::repository::{ReadFailure, Taken};

/// The most cells whose entries may be damaged at once; more wait for their turn.
const SUSPICIONS_MAX: usize = 64;
/// An entry that is rejected in so many settling periods is damaged, although its bytes differ: no write takes that long.
const PERIODS_MAX: u64 = 3;

impl TableReader {
    /// Takes the newest committed entry of a cell, if it is new and its key is wanted. Leaves a cell that keeps changing to the next
    /// pass, and one with a rejected entry to a repetition of this pass, until `settled` decides that the entry is damaged.
    #[inline]
    pub(super) fn visit(
        &mut self,
        at: CellMemory<'_>,
        cell: usize,
        left: &mut Left,
        settled: &impl Fn(&mut Self, usize, Stamp) -> bool,
    ) -> Result<Option<Taken>, ReadFailure> {
        let memory = at.region();
        let known = self.cells.get(cell).copied().unwrap_or_default();
        let known = (known.version, known.received().sequence());
        let mut rejected = None;
        for _ in 0..limits::TORN_RETRIES_MAX {
            let stamp = match self.copy.choose(at, cell, known) {
                Choice::Nothing => return Ok(None),
                Choice::Later => continue,
                Choice::Slot(stamp) => stamp,
            };
            match self.copy.take(memory, cell, stamp) {
                Ok(entry) => return Ok(self.accept(cell, &entry)),
                Err(rejection) => {
                    self.counts.torn_retries += u64::from(matches!(rejection, EntryRejection::Torn));
                    rejected = Some((stamp, rejection));
                }
            }
        }
        let Some((stamp, rejection)) = rejected else {
            left.has_changing = true;
            return Ok(None);
        };
        let version = self.geometry.version_offset(cell);
        if memory.load_acquire(version) != stamp.get() {
            left.has_changing = true;
            return Ok(None);
        }
        if !settled(self, cell, stamp) {
            left.has_rejected = true;
            return Ok(None);
        }
        Err(self.reject(memory, (cell, stamp), rejection))
    }

    /// Records an entry. Returns it if its key is wanted.
    #[inline]
    fn accept(&mut self, cell: usize, entry: &Entry) -> Option<Taken> {
        let is_own = self.learn(cell, entry);
        let is_wanted = is_own && self.wanted.has(cell);
        let Entry { stamp, header, is_present } = *entry;
        self.newest_read = self.newest_read.max((stamp.sequence(), header.published_ns));
        if !self.suspects.is_empty() {
            self.suspects.remove(&cell);
        }
        if !self.suspicions.is_empty() {
            self.suspicions.remove(&cell);
        }
        if !self.recalled.is_over() && self.compare_recalled(cell, entry) {
            return None;
        }
        let known = self.cells.get_mut(cell)?;
        (known.version, known.is_refused) = (stamp, false);
        let before = std::mem::replace(&mut known.number, if is_wanted { header.number } else { 0 });
        let was_reported = std::mem::replace(&mut known.is_reported, is_wanted && is_present);
        if known.is_reported {
            known.reported = Reported { sequence: stamp.sequence(), added: known.added };
        }
        if is_own && !is_present {
            self.directory.remove(cell);
            self.wanted.set(cell, true);
            (known.number, known.has_key) = (0, false);
        }
        // An earlier read has hidden it.
        self.has_misread |= is_wanted
            && is_present
            && !was_reported
            && header.added <= self.complete
            && self.recalled.is_over();
        // A key that came and went unnoticed is not reported.
        if !is_wanted || !(is_present || was_reported) {
            return None;
        }
        let was_present = before > 0 || header.added <= self.since;
        let first = if before == 0 && was_present { header.number } else { before.saturating_add(1) };
        let conflated = header.number.saturating_sub(first);
        self.counts.received += 1;
        self.counts.conflated = self.counts.conflated.saturating_add(conflated);
        let key_len = header.key_len as usize;
        let added = if is_present { known.added } else { last_life(known.added, stamp.sequence()) };
        let (number, capacity) = (header.number, self.geometry.capacity());
        if !is_present {
            let key = self.copy.key(entry).into();
            self.note_gone(key, Gone::Removal(stamp.sequence()));
        }
        self.changed = ChangedKey { key_len, number, is_new: before == 0, is_present, added, capacity };
        let meta = Meta { sequence: stamp.sequence(), epoch: self.epoch, published_ns: header.published_ns };
        Some(Taken { meta, conflated, begin: ENTRY_WORD, len: header.entry_len as usize })
    }

    /// Whether this rejected entry is damaged: its slot has had the same bytes for `settled_ns`, or it was rejected in several such
    /// periods. Two copies with different bytes may both be torn: the first by the write of the entry, the other by that of the next entry
    /// in its slot, which the cell's version then names soon.
    #[cold]
    pub(super) fn has_settled(
        &mut self,
        memory: &Region,
        (cell, version): (usize, Stamp),
        (now_ns, settled_ns): (u64, u64),
    ) -> bool {
        if self.suspicions.len() >= SUSPICIONS_MAX && !self.suspicions.contains_key(&cell) {
            // Some may be of cells that have changed, or are not wanted any more.
            self.suspicions.retain(|_, it| now_ns.saturating_sub(it.seen_ns) < PERIODS_MAX * settled_ns);
            if self.suspicions.len() >= SUSPICIONS_MAX {
                return false;
            }
        }
        let checksum = self.copy.checksum(memory, cell, version);
        let first =
            Suspicion { version, checksum, since_ns: now_ns, period_ns: now_ns, periods: 0, seen_ns: now_ns };
        let suspicion = self.suspicions.entry(cell).or_insert(first);
        if suspicion.version != version {
            *suspicion = first;
        }
        if suspicion.checksum != checksum {
            (suspicion.checksum, suspicion.since_ns) = (checksum, now_ns);
        }
        if now_ns.saturating_sub(suspicion.period_ns) >= settled_ns {
            (suspicion.period_ns, suspicion.periods) = (now_ns, suspicion.periods + 1);
        }
        suspicion.seen_ns = now_ns;
        now_ns.saturating_sub(suspicion.since_ns) >= settled_ns || suspicion.periods >= PERIODS_MAX
    }

    /// Skips a damaged entry; returns how it is damaged.
    #[cold]
    fn reject(
        &mut self,
        memory: &Region,
        (cell, version): (usize, Stamp),
        rejection: EntryRejection,
    ) -> ReadFailure {
        if let Some(known) = self.cells.get_mut(cell) {
            (known.version, known.is_refused) = (version, true);
            // Its key may be another one, which may be wanted: the next entry shows.
            known.has_key &= self.wanted.has(cell);
        }
        self.wanted.set(cell, true);
        self.suspicions.remove(&cell);
        self.suspects.insert(cell);
        if !self.recalled.is_over() {
            self.recalled.damaged.insert(cell);
        }
        self.damaged = cell;
        self.counts.rejected += 1;
        // A damaged version may name a commit that does not exist.
        rejection.failure(version.sequence().min(committed(memory)))
    }
}
