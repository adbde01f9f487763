use super::entry::{Choice, committed};
use super::reader::TableReader;
use super::scan::{Left, PassEnd, Scan, Scanned};
use crate::id::{Meta, Sequence};
use crate::layout::ByteRange;
use crate::layout::table::Stamp;
use crate::limits;
use crate::memory::Region;

/// How often an entry is rejected, in as many passes, before it counts as damaged.
const REJECTIONS_MAX: u32 = 8;

/// Collects all entries of a table as of one commit, in passes over the table: each reads what has changed since the last one, until
/// one finds every entry as of its commit. Allocates.
#[derive(Debug)]
pub(crate) struct SnapshotScan {
    scan: Scan,
    floor: Sequence,
    /// For each cell its entry.
    held: Vec<Held>,
    /// The entries' bytes, each where there was room for it.
    bytes: Vec<u8>,
    /// This pass could not read an entry as of its commit.
    has_missed: bool,
    passes: u32,
}

/// The entry of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    stamp: Stamp,
    /// Where it begins in the bytes, and how many are reserved for it.
    begin: usize,
    room: usize,
    key_len: usize,
    /// 0 for a removed key, and for one that is not wanted.
    len: usize,
    number: u64,
    published_ns: u64,
    /// The entry that was rejected last, and how often.
    rejected: Stamp,
    rejections: u32,
    is_damaged: bool,
    /// When that entry was first rejected, ns of the caller's clock.
    rejected_ns: u64,
}

/// An entry of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotEntry<'a> {
    /// Its bytes.
    pub(crate) bytes: &'a [u8],
    /// Bytes of its key.
    pub(crate) key_len: usize,
    /// How often the key had changed since it was added.
    pub(crate) number: u64,
    pub(crate) meta: Meta,
}

impl SnapshotScan {
    /// Creates a snapshot for which nothing has been read.
    pub(crate) fn new(reader: &TableReader) -> Self {
        let mut scan = Scan::default();
        scan.plan(&reader.goal(Sequence::NONE));
        let held = vec![Held::default(); reader.geometry().capacity()];
        Self { scan, floor: Sequence::NONE, held, bytes: Vec::new(), has_missed: false, passes: 0 }
    }

    /// Returns what to fetch before the next step.
    pub(crate) fn ranges(&self) -> &[ByteRange] {
        self.scan.ranges()
    }

    /// Returns the number of passes so far.
    pub(crate) fn passes(&self) -> u32 {
        self.passes
    }

    /// Continues after a fetch. Returns the snapshot's commit once it is complete. `arriving_ns` is the time, ns of the caller's
    /// clock, if the rest of a rejected entry may be in flight.
    pub(crate) fn step(
        &mut self,
        reader: &mut TableReader,
        memory: &Region,
        arriving_ns: Option<u64>,
    ) -> Option<Sequence> {
        reader.forget_later_keys(committed(memory));
        let held = &self.held;
        let has_changed = |cell: usize, version| held.get(cell).is_some_and(|held| held.stamp != version);
        let scanned = self.scan.advance(memory, &reader.goal(self.floor), has_changed);
        let end = match scanned {
            Scanned::Nothing if self.passes == 0 => return Some(Sequence::NONE),
            Scanned::Nothing | Scanned::Ahead => {
                // A commit is in progress, or the hot line is damaged.
                self.passes = self.passes.saturating_add(1);
                None
            }
            Scanned::More => None,
            Scanned::Over(end) => Some(end),
            Scanned::Cells => {
                while let Some((cell, version)) = self.scan.next_cell() {
                    self.take(reader, memory, (cell, version), arriving_ns);
                }
                None
            }
        };
        let end = match scanned {
            Scanned::More => None,
            _ => end.or_else(|| self.scan.plan(&reader.goal(self.floor))),
        };
        let PassEnd { until, left, ahead, .. } = end?;
        let is_ahead = ahead != Sequence::NONE;
        if !self.has_missed && !is_ahead {
            reader.note_keys(until);
            return Some(until);
        }
        self.passes = self.passes.saturating_add(1);
        self.has_missed = false;
        if is_ahead {
            // What was taken may never be committed.
            self.floor = Sequence::NONE;
        } else if !left.has_rejected {
            self.floor = until;
        }
        self.scan.plan(&reader.goal(self.floor));
        None
    }

    /// Returns the entries, after the last step.
    pub(crate) fn entries(&self, reader: &TableReader) -> impl Iterator<Item = SnapshotEntry<'_>> {
        let epoch = reader.epoch();
        self.held.iter().filter(|held| held.len > 0).map(move |held| {
            let bytes = self.bytes.get(held.begin..).and_then(|bytes| bytes.get(..held.len));
            let meta = Meta { sequence: held.stamp.sequence(), epoch, published_ns: held.published_ns };
            let Held { key_len, number, .. } = *held;
            SnapshotEntry { bytes: bytes.unwrap_or_default(), key_len, number, meta }
        })
    }

    /// Returns the bytes that it holds.
    #[cfg(test)]
    pub(super) fn held_len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of damaged entries, after the last step.
    pub(crate) fn damaged(&self) -> usize {
        self.held.iter().filter(|held| held.is_damaged).count()
    }

    /// Takes the entry of a cell as of the pass's commit.
    fn take(
        &mut self,
        reader: &mut TableReader,
        memory: &Region,
        (cell, version): (usize, Stamp),
        arriving_ns: Option<u64>,
    ) {
        let Self { scan, held, bytes, has_missed, .. } = self;
        let Some(held) = held.get_mut(cell) else { return };
        let stamp = match reader.copy.choose_as_of(memory, (cell, version), scan.until()) {
            Choice::Slot(stamp) => stamp,
            Choice::Nothing => {
                let Held { begin, room, .. } = *held;
                *held = Held { begin, room, ..Held::default() };
                return;
            }
            Choice::Later => {
                *has_missed = true;
                return;
            }
        };
        if stamp == held.stamp {
            return;
        }
        match reader.copy.take(memory, cell, stamp) {
            Ok(entry) => {
                reader.note(cell, &entry);
                let wanted = entry.is_present && reader.wants(reader.copy.key(&entry));
                let len = if wanted { entry.header.entry_len as usize } else { 0 };
                let key_len = entry.header.key_len as usize;
                let copied = reader.copy.bytes().get(..len).unwrap_or_default();
                let (mut begin, mut room) = (held.begin, held.room);
                if len > room {
                    // Twice as much, so that an entry that grows is moved a few times only.
                    (begin, room) = (bytes.len(), len.max(2 * room));
                    bytes.resize(begin + room, 0);
                }
                bytes.get_mut(begin..begin + len).into_iter().for_each(|to| to.copy_from_slice(copied));
                let (number, published_ns) = (entry.header.number, entry.header.published_ns);
                *held = Held { stamp, begin, room, key_len, len, number, published_ns, ..Held::default() };
            }
            Err(_) => {
                let now_ns = arriving_ns.unwrap_or_default();
                if held.rejected != stamp {
                    (held.rejected, held.rejections) = (stamp, 0);
                    held.rejected_ns = now_ns;
                }
                held.rejections = held.rejections.saturating_add(1);
                let may_arrive = arriving_ns.is_some() && !reader.is_suspect(cell);
                let is_settled = now_ns.saturating_sub(held.rejected_ns) >= limits::ARRIVAL_SETTLED_NS;
                if held.rejections < REJECTIONS_MAX || may_arrive && !is_settled {
                    *has_missed = true;
                    scan.leave(Left { has_rejected: true, has_changing: false });
                } else {
                    let Held { begin, room, .. } = *held;
                    *held = Held { stamp, begin, room, is_damaged: true, ..Held::default() };
                    reader.suspect(memory, cell);
                }
            }
        }
    }
}
