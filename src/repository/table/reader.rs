mod audit;
mod keys;
mod lookup;
mod pass;
mod recall;
mod visit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;

pub(crate) use self::lookup::Looked;

use super::arbiter::TableArbiter;
use super::directory::Directory;
use super::entry::{CellMemory, EntryCopy, committed};
use super::interest::{CellSet, Interest};
use super::recalled::{Gone, Recalled};
use super::scan::{Goal, Left, PassEnd, Scan, Scanned};
use crate::id::{Epoch, Kind, Meta, Sequence, TopicId};
use crate::layout::table::{EntryCheck, PAGE_CELLS, Stamp, TableGeometry};
use crate::layout::{ByteRange, Geometry};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::{NOTHING, unread};
use crate::repository::{
    ChangedKey, DamagedEntry, Fetch, Finding, GrantedAt, ReadFailure, Reader, SubscriberStats, Taken,
    WriteOrder,
};

/// A reader of a table repository: finds the cells that changed since its last pass over the table, copies their entries to
/// private memory, and accepts those whose stamp, version, bounds and CRC agree. Allocates only for keys that are removed or
/// damaged.
#[derive(Debug)]
pub(crate) struct TableReader {
    geometry: TableGeometry,
    epoch: Epoch,
    /// The newest commit at the time of the grant.
    granted: Sequence,
    /// The first commit that it can miss.
    first: Sequence,
    /// How often keys changed that were added up to this commit is unknown.
    since: Sequence,
    pub(super) copy: EntryCopy,
    directory: Directory,
    cells: Box<[KnownCell]>,
    interest: Interest,
    /// The cells to read: those whose keys are wanted, and those without a known key.
    wanted: CellSet,
    /// Everything up to this commit was taken.
    done: Sequence,
    /// All cells are read whose versions are later than this: [`Self::done`], or none after a change of interest.
    floor: Sequence,
    /// What the hot line named in the last pass, if that was a commit that there is not: [`Self::done`] may have been under way then.
    ahead: Sequence,
    /// All keys that commits up to this one added or removed are known.
    keys_done: Sequence,
    /// The newest entry of each wanted key as of this commit, or a later one, was taken. This stays while an entry is damaged.
    clean: Sequence,
    /// The newest value of each wanted key as of this commit, or a later one, was taken.
    complete: Sequence,
    /// The same, once another fetch has found that commit too; none if there is nothing to be found.
    passed: Sequence,
    /// An entry that was refused is intact: it is read again from the next pass on.
    reads_again: bool,
    /// A value as of [`Self::complete`] was not taken, because of a wrong read.
    has_misread: bool,
    again: Again,
    pass: Option<Pass>,
    /// The memory has what was granted: a landing region is empty at first.
    has_begun: bool,
    /// The versions of a page of the pass.
    versions: Box<[u64]>,
    /// The last call left something to read.
    has_more: bool,
    /// Keys that were removed or replaced, to be reported.
    removed: VecDeque<RemovedKey>,
    /// The keys whose removal this pass has found, and what showed it.
    gone: HashMap<Box<[u8]>, Gone>,
    /// The cells with damaged entries.
    suspects: BTreeSet<usize>,
    /// The last one that was found.
    damaged: usize,
    /// Entries that may be damaged, by their cells.
    suspicions: BTreeMap<usize, Suspicion>,
    changed: ChangedKey,
    /// The newest commit of which an entry was read, and when it was published, ns since the Unix epoch.
    newest_read: (Sequence, u64),
    scan: Scan,
    audit: Audit,
    counts: SubscriberStats,
    /// What the subscription before has received.
    recalled: Recalled,
}

/// What a reader knows of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct KnownCell {
    /// The last entry read.
    version: Stamp,
    /// It is damaged, and so may the version be: it is only compared with what the memory has.
    is_refused: bool,
    /// Its key's number when it was last reported; 0 for never since it was added.
    number: u64,
    /// It has the key that was last read from it.
    has_key: bool,
    /// A value of its key was reported, and no removal since.
    is_reported: bool,
    /// The last value of its key that was reported, maybe of another cell.
    reported: Reported,
    /// The commit that added its key.
    added: Sequence,
}

/// The commit of a value that was reported, and the one that had added its key.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    sequence: Sequence,
    added: Sequence,
}

impl KnownCell {
    /// The last entry received; if that was followed by a damaged one, a stamp of the commit that added the key, which no entry has.
    #[inline]
    fn received(&self) -> Stamp {
        if self.is_refused { Stamp::last_of(self.added) } else { self.version }
    }
}

/// Versions that are compared with what is known.
#[derive(Clone, Copy, Debug, Default)]
struct Audit {
    /// Fetches of the hot line, or passes over mapped memory.
    count: u64,
    /// The next page.
    page: usize,
    /// Its versions are in the fetch, or compared first in the pass.
    is_planned: bool,
}

/// Whether values that were taken are to be taken once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Again {
    #[default]
    Not,
    /// From the next pass on.
    Due,
    /// Until a pass is over.
    UnderWay,
}

/// A removed key, to be reported.
#[derive(Debug)]
struct RemovedKey {
    key: Box<[u8]>,
    /// Its number when it was last reported.
    number: u64,
    /// See [`ChangedKey::added`].
    added: Sequence,
    /// The earliest commit that may have removed it, and when the entry was published that showed it: the time of the removal is
    /// not later.
    meta: Meta,
}

/// An entry that was rejected though its cell has not changed. Times are ns of the caller's clock.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    version: Stamp,
    /// The checksum of the bytes in its slot, and since when they were the same.
    checksum: u32,
    since_ns: u64,
    /// When the current settling period began, and how many are over.
    period_ns: u64,
    periods: u64,
    /// When it was last rejected.
    seen_ns: u64,
}

/// A pass over the mapped pages.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// The commits up to this one are read, if there are as many.
    until: Sequence,
    /// The newest commit that a page shows.
    shown: Sequence,
    /// The next cell.
    cell: usize,
    /// The current page.
    page: Option<PassPage>,
    /// What it has left unread.
    left: Left,
}

/// A page of a pass.
#[derive(Clone, Copy, Debug)]
struct PassPage {
    /// Its first cell, and the end of its cells.
    first: usize,
    end: usize,
    /// Keys in it have changed: all its cells are read.
    is_whole: bool,
    /// Its versions were copied to private memory.
    is_copied: bool,
    /// It is compared with what is known: only what earlier passes should have found is read.
    is_audited: bool,
}

impl TableReader {
    /// Creates a reader that has read nothing.
    pub(crate) fn new(geometry: TableGeometry, (epoch, topic): (Epoch, TopicId), granted: Sequence) -> Self {
        let capacity = geometry.capacity();
        Self {
            geometry,
            epoch,
            granted,
            first: granted,
            since: granted,
            copy: EntryCopy::new(geometry, EntryCheck::new(topic, epoch)),
            directory: Directory::new(capacity, geometry.key_len_max()),
            cells: vec![KnownCell::default(); capacity].into(),
            interest: Interest::All,
            wanted: CellSet::all(capacity),
            done: Sequence::NONE,
            floor: Sequence::NONE,
            ahead: Sequence::NONE,
            keys_done: Sequence::NONE,
            clean: Sequence::NONE,
            complete: Sequence::NONE,
            passed: Sequence::NONE,
            reads_again: false,
            has_misread: false,
            again: Again::Not,
            pass: None,
            has_begun: granted == Sequence::NONE,
            versions: vec![0; PAGE_CELLS.min(capacity)].into(),
            has_more: false,
            removed: VecDeque::new(),
            gone: HashMap::new(),
            suspects: BTreeSet::new(),
            damaged: 0,
            suspicions: BTreeMap::new(),
            changed: ChangedKey::default(),
            newest_read: (Sequence::NONE, 0),
            scan: Scan::default(),
            audit: Audit::default(),
            counts: SubscriberStats::default(),
            recalled: Recalled::default(),
        }
    }

    /// Returns the table's geometry.
    pub(crate) fn geometry(&self) -> TableGeometry {
        self.geometry
    }

    /// Returns the incarnation of the topic.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns what a pass looks for that begins after this commit.
    pub(super) fn goal(&self, floor: Sequence) -> Goal<'_> {
        let Self { geometry, wanted, keys_done, .. } = self;
        Goal { geometry, wanted, floor, keys_done: *keys_done, is_for_keys: false }
    }

    /// Records that an entry of a cell is damaged.
    pub(super) fn suspect(&mut self, memory: &Region, cell: usize) {
        let is_wanted = self.wanted.has(cell);
        let version = Stamp::new(memory.load(self.geometry.version_offset(cell)));
        if let Some(known) = self.cells.get_mut(cell) {
            // Passes skip the changes of a key that nobody wants: an old version of it does not show a wrong read. The entry may be the one
            // before the newest.
            if !is_wanted && version.sequence() <= self.floor {
                (known.version, known.is_refused) = (version, true);
            }
            // Its key may be another one, which may be wanted: the next entry shows.
            known.has_key &= is_wanted;
        }
        self.wanted.set(cell, true);
        self.suspects.insert(cell);
    }

    /// Returns whether the newest entry of a cell was found to be damaged.
    pub(super) fn is_suspect(&self, cell: usize) -> bool {
        self.suspects.contains(&cell)
    }

    /// Returns more on the last entry taken.
    pub(crate) fn changed(&self) -> ChangedKey {
        self.changed
    }

    /// Takes the next change of memory in which words appear in order. `settled` decides whether a rejected copy of an unchanged
    /// version is final.
    #[inline]
    fn take_change(
        &mut self,
        memory: &Region,
        settled: impl Fn(&mut Self, usize, Stamp) -> bool,
    ) -> Result<Option<Taken>, ReadFailure> {
        self.has_more = false;
        if let Some(taken) = self.take_removed() {
            return Ok(Some(taken));
        }
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                let until = committed(memory);
                if until == self.done && self.floor == self.done && self.ahead == Sequence::NONE {
                    return Ok(None);
                }
                self.restart_if_older(until);
                self.begin_pass(until)
            }
        };
        while let Some(cell) = self.next_cell(memory, &mut pass) {
            match self.visit(CellMemory::Mapped(memory), cell, &mut pass.left, &settled) {
                Ok(None) if self.removed.is_empty() => {}
                Ok(None) => {
                    self.pass = Some(pass);
                    return Ok(self.take_removed());
                }
                outcome => {
                    self.pass = Some(pass);
                    return outcome;
                }
            }
        }
        let Pass { until, shown, left, .. } = pass;
        let (newest, shown) = (committed(memory), shown.max(self.newest_read.0));
        let is_again =
            self.finish(PassEnd { is_confirmed: true, ..PassEnd::new((until, newest), shown, left) });
        if let Some(taken) = self.take_removed() {
            return Ok(Some(taken));
        }
        // What was committed meanwhile is left to the next call, so that each key comes once.
        self.has_more = newest != until || is_again;
        Ok(None)
    }

    /// Ends a pass. Returns whether another one is due at once.
    fn finish(&mut self, PassEnd { until, seen, left, is_confirmed, ahead }: PassEnd) -> bool {
        if left.has_rejected {
            return false;
        }
        if ahead == Sequence::NONE && self.ahead == until && until != Sequence::NONE {
            // The table has come to the commit that was named too early: what was under way then is read again.
            (self.floor, self.ahead) = (self.floor.min(self.done.before()), Sequence::NONE);
            self.clean = self.clean.min(self.floor);
            return true;
        }
        self.done = self.done.max(seen);
        (self.floor, self.ahead) = (self.done, ahead);
        if !left.has_changing {
            self.keys_done = self.keys_done.max(until);
            let is_whole = self.suspects.is_empty() && !self.reads_again;
            self.passed = if is_whole { until } else { Sequence::NONE };
            if is_confirmed {
                self.confirm_passed();
            }
            self.again = if self.again == Again::UnderWay { Again::Not } else { self.again };
            self.finish_recalled(until);
        }
        let is_again = self.begin_reading_again();
        self.finish_clean();
        self.begin_taking_again();
        is_again
    }
}

impl Reader for TableReader {
    const KIND: Kind = Kind::Table;
    const WANTS_EACH: bool = false;
    const HAS_INLINE: bool = false;
    type Options = ();
    type Purpose = ();
    type Arbiter = TableArbiter;

    fn open(geometry: &Geometry, names: (Epoch, TopicId), granted: GrantedAt, (): ()) -> Option<Self> {
        let reader = Self::new(geometry.table()?, names, granted.newest);
        Some(Self { first: granted.first(), has_begun: granted.is_empty(), ..reader })
    }

    fn resume(&mut self, before: &mut Self, is_same_epoch: bool) {
        self.counts.add(&before.counts);
        self.set_interest(std::mem::replace(&mut before.interest, Interest::All));
        if is_same_epoch {
            self.has_misread = before.has_misread;
            self.again = if before.again == Again::Not { Again::Not } else { Again::Due };
        }
        self.recall(before, is_same_epoch);
    }

    fn expect_inline(&mut self) {}

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn settle(&mut self, _: &Region) {
        self.has_begun = true;
    }

    #[inline]
    fn poll(&mut self, memory: &Region) -> Result<Option<Taken>, ReadFailure> {
        self.take_change(memory, |_, _, _| true)
    }

    #[inline]
    fn follow(
        &mut self,
        landing: &Region,
        order: WriteOrder,
        now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure> {
        match order {
            WriteOrder::FinalWrites => self.take_change(landing, |_, _, _| true),
            // The slot of a cell that changed twice since it was last written is overwritten in place.
            WriteOrder::Words | WriteOrder::Writes => self.take_change(landing, |reader, cell, version| {
                let times = (now_ns(), limits::ARRIVAL_SETTLED_NS);
                reader.has_settled(landing, (cell, version), times)
            }),
        }
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn plan(&mut self) -> Fetch<()> {
        let Self { scan, geometry, wanted, floor, keys_done, .. } = self;
        let (floor, keys_done) = (*floor, *keys_done);
        if let Some(end) = scan.plan(&Goal { geometry, wanted, floor, keys_done, is_for_keys: false }) {
            self.finish(end);
        }
        self.plan_audit();
        Fetch { ranges: [NOTHING; 2], purpose: () }
    }

    fn ranges<'a>(&'a self, _: &'a Fetch<()>) -> &'a [ByteRange] {
        self.scan.ranges()
    }

    /// Only what an earlier fetch found committed is complete in this one: the words of a fetch are of different times.
    fn check(&mut self, mirror: &Region, fetched: &Fetch<()>, _: u64) -> Result<Finding<()>, ReadFailure> {
        self.has_begun = true;
        if !self.scan.is_under_way() {
            self.restart_if_older(committed(mirror));
            self.check_audit(mirror);
            self.confirm_passed();
        }
        let Self { scan, geometry, wanted, floor, keys_done, cells, .. } = self;
        let (floor, keys_done) = (*floor, *keys_done);
        let goal = Goal { geometry, wanted, floor, keys_done, is_for_keys: false };
        let scanned = scan.advance(mirror, &goal, |cell, version| {
            version.sequence() > floor && cells.get(cell).is_some_and(|known| known.version != version)
        });
        Ok(match scanned {
            Scanned::Nothing => {
                self.floor = self.done;
                Finding::Nothing
            }
            Scanned::Ahead => Finding::Nothing,
            Scanned::More => Finding::More(*fetched),
            Scanned::Cells => Finding::Something,
            Scanned::Over(end) => {
                self.finish(end);
                Finding::Something
            }
        })
    }

    fn newest_fetched(&self, _: &Region, _: &Fetch<()>) -> Option<Sequence> {
        (!self.scan.is_under_way()).then_some(self.done)
    }

    fn take_fetched(
        &mut self,
        mirror: &Region,
        now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure> {
        if let Some(taken) = self.take_removed() {
            return Ok(Some(taken));
        }
        while let Some((cell, version)) = self.scan.next_cell() {
            let (at, mut left) = (CellMemory::Mirror(mirror, version), Left::default());
            let outcome = self.visit(at, cell, &mut left, &|reader: &mut Self, cell, version| {
                reader.has_settled(mirror, (cell, version), (now_ns(), limits::DAMAGE_SETTLED_NS))
            });
            self.scan.leave(left);
            match outcome {
                Ok(None) if self.removed.is_empty() => {}
                Ok(None) => return Ok(self.take_removed()),
                outcome => return outcome,
            }
        }
        Ok(None)
    }

    fn wants_more(&self) -> bool {
        self.scan.is_under_way() || self.floor != self.done
    }

    fn take_inline(&mut self, _: &[u64], _: Sequence, _: u64) -> Finding<()> {
        Finding::Nothing
    }

    fn is_unproven(&self) -> bool {
        false
    }

    #[inline]
    fn last(&self) -> Sequence {
        self.done
    }

    fn complete(&self) -> Sequence {
        let is_whole = self.suspects.is_empty() && self.recalled.is_over() && self.removed.is_empty();
        if is_whole && !self.reads_again && self.again != Again::Due { self.complete } else { Sequence::NONE }
    }

    fn take_misread(&mut self) -> bool {
        std::mem::take(&mut self.has_misread)
    }

    fn offer_again(&mut self) {
        self.take_all_again();
    }

    fn published_ns(&self, commit: Sequence) -> u64 {
        let (sequence, published_ns) = self.newest_read;
        if sequence == commit { published_ns } else { 0 }
    }

    fn changed_key(&self) -> Option<ChangedKey> {
        Some(self.changed)
    }

    fn damaged(&self) -> DamagedEntry {
        let cell = self.damaged;
        let has_key = self.cells.get(cell).is_some_and(|known| known.has_key);
        DamagedEntry { cell, key: has_key.then(|| self.directory.key(cell).into()) }
    }

    fn is_wanted(&self, key: &[u8]) -> bool {
        self.wants(key)
    }

    fn has_key(&self, key: &[u8]) -> bool {
        let is_reported = |cell: usize| self.cells.get(cell).is_some_and(|known| known.is_reported);
        self.directory.find(key).is_some_and(is_reported)
    }

    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)> {
        let (first, count) = unread(self.done, self.first, last)?;
        self.done = last;
        self.counts.cut_off = self.counts.cut_off.saturating_add(count);
        Some((first, count))
    }

    fn counts(&self) -> SubscriberStats {
        self.counts
    }

    #[inline]
    fn held(&self) -> &[u64] {
        self.copy.words()
    }
}
