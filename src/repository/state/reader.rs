mod inline;
mod landing;
mod mistaken;

use super::arbiter::StateArbiter;
use crate::id::{Epoch, Kind, Meta, Sequence, TopicId};
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::{
    HEADER_LEN, HEADER_WORDS, HOT_LEN, SLOT_SIZES, SlotCheck, SlotHeader, StateGeometry, TRAILER_WORDS,
    parse_check_word, slot_len,
};
use crate::layout::{ByteRange, Geometry, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::{HOT_LINE, NOTHING, unread};
use crate::repository::{Fetch, Finding, GrantedAt, ReadFailure, Reader, SubscriberStats, Taken, WriteOrder};
use crate::sync::atomic::{Ordering, fence};

/// A reader of a state repository: finds the newest value, copies it to private memory, and accepts it if
/// stamps, bounds, epoch and CRC agree. It does not allocate, block or make system calls.
#[derive(Debug)]
pub(crate) struct StateReader {
    geometry: StateGeometry,
    epoch: Epoch,
    check: SlotCheck,
    /// The first value that it can miss.
    first: Sequence,
    last: Sequence,
    /// The last value that was reported instead of received.
    unreceived: Sequence,
    /// The last value that was reported as damaged, and what was known before.
    reported: Reported,
    /// The one that was reported before it, if no value was received between them.
    reported_before: Reported,
    /// Nothing was read from this memory yet, so that the slots need not hold the value after the last one.
    begins: bool,
    /// How many more polls of mapped memory may find nothing before the hot line is read.
    empty_left: u32,
    last_len: usize,
    /// No value before the last one was missed.
    keeps_up: bool,
    /// Failed reads since the last value or report.
    attempts: u32,
    /// Replaced values before one that was reported as damaged.
    unreported: u64,
    /// The sequence of the last failed reads.
    suspect: Option<Sequence>,
    /// The number of consecutive failures.
    suspicions: u32,
    /// The time of the first, ns of the caller's clock.
    suspect_since_ns: u64,
    counts: SubscriberStats,
    /// The newest sequence, as the repository or the grant said last.
    said: Sequence,
    unproven: UnprovenValue,
    /// A slot in private memory.
    slot: Box<[u64]>,
}

/// What a fetch is expected to contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The value after the last one, and the head stamp of the one after that.
    Next,
    /// The hot line, and possibly the value that it names.
    Newest,
    /// The hot line, and the value that it named before.
    Known(Sequence),
    /// The hot line, and the slot of this inline value.
    Proof(Sequence),
}

/// Inline values since the repository was last read.
#[derive(Debug, Default)]
struct UnprovenValue {
    /// The slot of the last one; empty if there are none.
    slot: Vec<u64>,
    /// The last value before them.
    proven: Sequence,
    /// The counts at that time.
    received: u64,
    conflated: u64,
    /// The repository has contradicted them once: no inline values are taken any more.
    is_off: bool,
}

/// What a reader knew before it reported a value as damaged, and what the memory held then.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    /// That value; none if there is nothing to go back to.
    sequence: Sequence,
    before: Known,
    /// The header, check and tail stamp of its slot.
    ends: [u64; HEADER_WORDS + TRAILER_WORDS],
    /// The head stamp of the slot after the last value received, and the newest value by the hot line.
    head: Sequence,
    hot: Sequence,
    /// After how many polls its slot is checked again, although these words are the same.
    polls_left: u32,
}

/// What a reader knows between two values.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The last value that was received, or reported.
    last: Sequence,
    unreceived: Sequence,
    begins: bool,
    unreported: u64,
    conflated: u64,
}

/// Why a copy of a slot was rejected.
#[derive(Debug)]
enum SlotRejection {
    /// It was overwritten while it was copied.
    Torn,
    /// It is damaged, and not being written.
    Wrong(ReadFailure),
}

impl StateReader {
    /// Creates a reader that has read nothing.
    pub(crate) fn new(geometry: StateGeometry, epoch: Epoch, topic: TopicId) -> Self {
        Self {
            geometry,
            epoch,
            check: SlotCheck::new(topic),
            first: Sequence::NONE,
            last: Sequence::NONE,
            unreceived: Sequence::NONE,
            reported: Reported::default(),
            reported_before: Reported::default(),
            begins: true,
            empty_left: limits::EMPTY_POLLS_MAX,
            last_len: 0,
            keeps_up: true,
            attempts: 0,
            unreported: 0,
            suspect: None,
            suspicions: 0,
            suspect_since_ns: 0,
            counts: SubscriberStats::default(),
            said: Sequence::NONE,
            unproven: UnprovenValue::default(),
            slot: vec![0; slot_len(geometry.payload_len_max()) / WORD].into(),
        }
    }

    /// Marks the last value unread, so that it is read and checked again. For measurements.
    #[inline]
    pub(crate) fn rewind(&mut self) {
        self.last = Sequence::new(self.last.get().saturating_sub(1));
    }

    /// The newest sequence in mapped memory, if it is newer than the last one. A reader that keeps up finds
    /// its value without reading the hot line, which thus stays in the writer's cache.
    #[inline]
    fn newest(&mut self, memory: &Region) -> Option<Sequence> {
        if self.last == self.reported.sequence {
            self.reconsider(memory, |_| true);
        }
        if self.begins {
            return self.newest_named(memory).filter(|named| self.is_plausible_hot(memory, *named));
        }
        let next = self.last.next();
        if next == Sequence::NONE {
            // The last value had the highest sequence. An honest writer never gets there.
            return None;
        }
        // Acquire: pairs with the Release store of the head stamp in `StateWriter`.
        let head = Sequence::new(memory.load_acquire(self.geometry.slot_offset(next)));
        let after = Sequence::new(memory.load(self.geometry.slot_offset(next.next())));
        if head <= next && after <= next {
            if head == next {
                return Some(next);
            }
            if self.empty_left > 0 {
                self.empty_left -= 1;
                return None;
            }
        }
        self.newest_behind(memory, head)
    }

    /// The newest sequence for a reader that is behind, or finds nothing, given the head stamp of the slot after the last value's. Each
    /// word may be damaged, so a second one must confirm a later value than the next one: otherwise all values before it would be skipped.
    fn newest_behind(&mut self, memory: &Region, head: Sequence) -> Option<Sequence> {
        let next = self.last.next();
        let named = self.newest_named(memory);
        let hot = named.unwrap_or(Sequence::NONE);
        // The head stamp of the next value may be damaged. Then only the hot line names it. The hot line may be damaged too, so its value
        // must be in a slot.
        let named = named.filter(|named| self.is_plausible_hot(memory, *named));
        let is_head = head == next || head > next && self.is_plausible_head(memory, head, hot, next);
        let newest = named.max(is_head.then_some(head));
        self.empty_left = if newest.is_none() { limits::EMPTY_POLLS_MAX } else { self.empty_left };
        newest
    }

    /// The newest sequence by the hot line, if it is newer than the last one.
    fn newest_named(&mut self, memory: &Region) -> Option<Sequence> {
        // Acquire: pairs with the Release store of the newest sequence in `StateWriter`.
        let newest = Sequence::new(memory.load_acquire(HOT_SEQUENCE));
        if newest > self.last {
            // If it cannot be read, it is sought again at once.
            return Some(newest);
        }
        self.empty_left = limits::EMPTY_POLLS_MAX;
        None
    }

    /// Takes the newest value, if the first copy is right.
    #[cfg(loom)]
    pub(super) fn try_once(&mut self, memory: &Region) -> Option<Taken> {
        let sequence = self.newest(memory)?;
        self.take(memory, sequence).ok()
    }

    /// Copies the slot of this sequence to private memory and checks the copy.
    #[inline]
    fn take(&mut self, memory: &Region, sequence: Sequence) -> Result<Taken, SlotRejection> {
        let (len, tail) = self.copy(memory, sequence)?;
        self.verify(sequence, len, tail)
    }

    /// Copies the slot of this sequence to private memory. Returns the length of its payload and its tail stamp.
    #[inline]
    fn copy(&mut self, memory: &Region, sequence: Sequence) -> Result<(usize, u64), SlotRejection> {
        let offset = self.geometry.slot_offset(sequence);
        // Acquire: pairs with the Release store of the head stamp in `StateWriter`.
        let head = memory.load_acquire(offset);
        if head != sequence.get() {
            return Err(SlotRejection::Torn);
        }
        let sizes = SlotHeader::payload_len(memory.load(offset + SLOT_SIZES));
        let len = sizes as usize;
        if len > self.geometry.payload_len_max() {
            return Err(SlotRejection::Wrong(ReadFailure::ImpossibleLen {
                sequence,
                len: sizes.into(),
                max: self.geometry.payload_len_max(),
            }));
        }
        let (run, _) = self.slot.split_at_mut(slot_len(len) / WORD - 1);
        memory.copy_out(offset, run);
        // Acquire: if any word copied above is of a later value, the load below sees that the tail stamp is
        // gone. Pairs with the Release fence in `StateWriter::open_slot`.
        fence(Ordering::Acquire);
        let tail = memory.load(offset + StateGeometry::tail_offset(len));
        Ok((len, tail))
    }

    /// The only place where a value is accepted: if the private copy in `self.slot` is valid.
    #[inline]
    fn verify(&mut self, sequence: Sequence, len: usize, tail: u64) -> Result<Taken, SlotRejection> {
        let header = self.inspect(sequence, len, tail)?;
        let skipped = self.skipped(sequence);
        let conflated = skipped.saturating_add(std::mem::take(&mut self.unreported));
        (self.last, self.begins) = (sequence, false);
        self.last_len = len;
        self.keeps_up = skipped == 0;
        self.attempts = 0;
        self.suspect = None;
        self.counts.received += 1;
        // Sequences are the publisher's, and the counts of earlier subscriptions are included.
        self.counts.conflated = self.counts.conflated.saturating_add(skipped);
        let meta = Meta { sequence, epoch: self.epoch, published_ns: header.published_ns };
        Ok(Taken { meta, conflated, begin: HEADER_WORDS, len })
    }

    /// Checks the private copy in `self.slot`: its stamps, bounds, epoch and checksum.
    #[inline]
    fn inspect(&self, sequence: Sequence, len: usize, tail: u64) -> Result<SlotHeader, SlotRejection> {
        let words = slot_len(len) / WORD;
        let (run, _) = self.slot.split_at(words - TRAILER_WORDS);
        let Some((head, _)) = run.split_first_chunk::<HEADER_WORDS>() else {
            return Err(SlotRejection::Torn);
        };
        let header = SlotHeader::parse(*head);
        if !cfg!(fabricast_skip_check) {
            if tail != sequence.get() || header.sequence != sequence || header.payload_len as usize != len {
                return Err(SlotRejection::Torn);
            }
            let bytes: &[u8] = bytemuck::cast_slice(run);
            let expected = self.check.of_run(bytes.split_at(HEADER_LEN + len).0);
            let check_word = self.slot.get(words - TRAILER_WORDS).copied().unwrap_or(0);
            if parse_check_word(check_word) != Some(expected) {
                let (found, _) = crate::layout::halves(check_word);
                return Err(SlotRejection::Wrong(ReadFailure::Damaged { sequence, expected, found }));
            }
            if header.epoch != self.epoch.get() {
                return Err(SlotRejection::Wrong(ReadFailure::ForeignEpoch {
                    sequence,
                    expected: self.epoch,
                    found: header.epoch,
                }));
            }
        }
        Ok(header)
    }

    /// Counts a failed copy. Returns an error after enough of them: a damaged value
    /// is reported once and skipped; one that kept changing is retried by the next call. The newest value
    /// is never overwritten: if every copy of it fails while it is the newest, it is damaged.
    /// Where words may arrive late, which the time says, it must also fail for a while.
    fn retry(
        &mut self,
        sequence: Sequence,
        rejection: SlotRejection,
        now_ns: Option<u64>,
        memory: &Region,
    ) -> Result<(), ReadFailure> {
        self.attempts += 1;
        if self.suspect.replace(sequence) == Some(sequence) {
            self.suspicions = self.suspicions.saturating_add(1);
        } else {
            self.suspicions = 1;
            self.suspect_since_ns = now_ns.unwrap_or(0);
        }
        self.counts.torn_retries += u64::from(matches!(rejection, SlotRejection::Torn));
        if self.attempts < limits::TORN_RETRIES_MAX {
            return Ok(());
        }
        let attempts = std::mem::take(&mut self.attempts);
        let settled = |now_ns: u64| now_ns.saturating_sub(self.suspect_since_ns) >= limits::DAMAGE_SETTLED_NS;
        // Acquire: as in `newest`. No value is named while the publisher overwrites the newest one of a landing region.
        let hot = Sequence::new(memory.load_acquire(HOT_SEQUENCE));
        let is_passed = hot == Sequence::NONE || hot > sequence;
        if self.suspicions < attempts || !now_ns.map_or(!is_passed, settled) {
            return Err(ReadFailure::Contended { attempts });
        }
        Err(self.reject(sequence, rejection, memory))
    }

    /// Skips a damaged value; returns how it is damaged.
    fn reject(&mut self, sequence: Sequence, rejection: SlotRejection, memory: &Region) -> ReadFailure {
        self.note_reported(memory, sequence);
        let skipped = self.skipped(sequence);
        self.unreported = self.unreported.saturating_add(skipped);
        self.counts.conflated = self.counts.conflated.saturating_add(skipped);
        (self.last, self.unreceived, self.begins) = (sequence, sequence, false);
        self.suspicions = 0;
        self.counts.rejected += 1;
        match rejection {
            SlotRejection::Torn => ReadFailure::BrokenStamps { sequence },
            SlotRejection::Wrong(failure) => failure,
        }
    }

    /// Values between the last one and this one. None before the first.
    #[inline]
    fn skipped(&self, sequence: Sequence) -> u64 {
        if self.last == Sequence::NONE { 0 } else { sequence.get() - self.last.get() - 1 }
    }
}

impl Reader for StateReader {
    const KIND: Kind = Kind::State;
    const WANTS_EACH: bool = false;
    type Options = ();
    type Purpose = Expected;
    type Arbiter = StateArbiter;

    fn open(
        geometry: &Geometry,
        (epoch, topic): (Epoch, TopicId),
        granted: GrantedAt,
        (): (),
    ) -> Option<Self> {
        let (first, said) = (granted.first(), granted.newest);
        Some(Self { first, said, ..Self::new(geometry.state()?, epoch, topic) })
    }

    fn resume(&mut self, before: &mut Self, is_same_epoch: bool) {
        // What was skipped before a value that was reported as damaged is not counted: there may be no such value.
        while before.has_reported() {
            before.go_back();
        }
        self.counts.add(&before.counts);
        self.unproven.is_off |= before.unproven.is_off;
        // The next publisher may have a value that could not be received from the one before.
        let is_received = before.last > before.unreceived;
        let last = before.last.get().saturating_sub(u64::from(!is_received));
        if is_same_epoch {
            self.unreported = self.unreported.saturating_add(std::mem::take(&mut before.unreported));
        }
        if is_same_epoch && self.last.get() < last {
            (self.last, self.keeps_up) = (Sequence::new(last), false);
        }
    }

    fn look_closely(&mut self) {
        (self.empty_left, self.reported.polls_left) = (0, 0);
    }

    fn expect_inline(&mut self) {
        let len_max = slot_len(self.geometry.payload_len_max()).min(limits::NOTICE_DATAGRAM_LEN_MAX);
        self.unproven.slot.reserve_exact(len_max / WORD);
    }

    #[inline]
    fn poll(&mut self, memory: &Region) -> Result<Option<Taken>, ReadFailure> {
        loop {
            let Some(sequence) = self.newest(memory) else { return Ok(None) };
            match self.take(memory, sequence) {
                Ok(taken) => return Ok(Some(taken)),
                Err(rejection) => self.retry(sequence, rejection, None, memory)?,
            }
            spin(self.attempts);
        }
    }

    #[inline]
    fn follow(
        &mut self,
        landing: &Region,
        order: WriteOrder,
        now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure> {
        match order {
            WriteOrder::Words => self.poll(landing),
            WriteOrder::Writes | WriteOrder::FinalWrites => self.follow_writes(landing, now_ns),
        }
    }

    /// Plans a fetch to find the newest value. A reader that keeps up fetches the value after the last one, and the head stamp
    /// of the one after that: usually one contiguous range. Otherwise it fetches the hot line and, as a guess, that value. A
    /// long value is not fetched before it is known to exist: that would cost every fetch that finds nothing new. After a damaged value
    /// its slot is fetched again: of a long one mostly the header.
    fn plan(&mut self) -> Fetch<Expected> {
        if self.is_unproven() {
            return self.proof(self.last_len);
        }
        if self.has_reported() {
            return self.plan_reported();
        }
        let next = self.last.next();
        let slot = self.geometry.slot_range(next, self.last_len);
        if self.last == Sequence::NONE || next == Sequence::NONE || slot.len > limits::PREDICTED_LEN_MAX {
            return Fetch { ranges: [HOT_LINE, NOTHING], purpose: Expected::Newest };
        }
        if !self.keeps_up {
            return Fetch { ranges: [HOT_LINE, slot], purpose: Expected::Newest };
        }
        let head = ByteRange { offset: self.geometry.slot_offset(next.next()), len: WORD };
        let together =
            ByteRange { offset: slot.offset, len: (head.offset + WORD).saturating_sub(slot.offset) };
        let is_close = together.len > slot.len && together.len - slot.len <= limits::FETCHED_GAP_LEN_MAX;
        let ranges = if is_close { [together, NOTHING] } else { [slot, head] };
        Fetch { ranges, purpose: Expected::Next }
    }

    /// Checks a mirror of the repository after a fetch, whose words may have arrived in any order: a value is
    /// reported as damaged only if it has stayed so for a while. A value that was the newest when it was fetched is
    /// taken even if there is a newer one by now: that one would have to be fetched as well, and so on.
    fn check(
        &mut self,
        mirror: &Region,
        fetched: &Fetch<Expected>,
        now_ns: u64,
    ) -> Result<Finding<Expected>, ReadFailure> {
        if fetched.purpose != Expected::Next {
            self.said = Sequence::new(mirror.load(HOT_SEQUENCE));
            if let Some(more) = self.reconsider_fetched(mirror, fetched) {
                return Ok(Finding::More(more));
            }
        }
        if let Expected::Proof(sequence) = fetched.purpose
            && let Some(more) = self.prove(mirror, fetched, sequence)?
        {
            return Ok(Finding::More(more));
        }
        let (sequence, len) = match fetched.purpose {
            Expected::Next => {
                let (next, offset) = (self.last.next(), self.geometry.slot_offset(self.last.next()));
                let head = Sequence::new(mirror.load(offset));
                let after = Sequence::new(mirror.load(self.geometry.slot_offset(next.next())));
                // Also if the head stamp between the last value and one after the next is damaged.
                if head > next || after > next {
                    let ranges = [HOT_LINE, NOTHING];
                    return Ok(Finding::More(Fetch { ranges, purpose: Expected::Newest }));
                }
                if head < next {
                    return Ok(Finding::Nothing);
                }
                (next, SlotHeader::payload_len(mirror.load(offset + SLOT_SIZES)) as usize)
            }
            Expected::Newest | Expected::Known(_) | Expected::Proof(_) => {
                let newest = Sequence::new(mirror.load(HOT_SEQUENCE));
                if newest <= self.last {
                    return Ok(Finding::Nothing);
                }
                (newest, usize::try_from(mirror.load(HOT_LEN)).unwrap_or(usize::MAX))
            }
        };
        let needed = self.geometry.slot_range(sequence, len);
        let next = Fetch { ranges: [HOT_LINE, needed], purpose: Expected::Known(sequence) };
        let covers = |got: &ByteRange| got.offset == needed.offset && got.len >= needed.len;
        let sequence = match fetched.purpose {
            // Unless the hot line was damaged when it named that.
            Expected::Known(known) if known > self.last && known <= sequence => known,
            _ if fetched.ranges().iter().any(covers) => sequence,
            _ => return Ok(Finding::More(next)),
        };
        match self.take(mirror, sequence) {
            Ok(taken) => Ok(Finding::Taken(taken)),
            Err(rejection) => {
                self.retry(sequence, rejection, Some(now_ns), mirror)?;
                Ok(Finding::More(next))
            }
        }
    }

    /// No value before the one that was the newest at the time of the grant counts as missed.
    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)> {
        while self.has_reported() && self.last > last {
            // No value has that sequence.
            self.go_back();
        }
        let (first, count) = unread(self.last, self.first, last)?;
        (self.last, self.unreceived, self.reported) = (last, last, Reported::default());
        // Nothing compares an earlier value with the repository any more.
        self.unproven.slot.clear();
        self.counts.cut_off = self.counts.cut_off.saturating_add(count);
        Some((first, count))
    }

    /// A value is taken only if it is the newest.
    fn newest_fetched(&self, _: &Region, _: &Fetch<Expected>) -> Option<Sequence> {
        Some(self.last)
    }

    fn take_inline(&mut self, slot: &[u64], sequence: Sequence, _: u64) -> Finding<Expected> {
        self.take_slot(slot, sequence).map_or(Finding::Nothing, Finding::Taken)
    }

    fn is_unproven(&self) -> bool {
        !self.unproven.slot.is_empty()
    }

    #[inline]
    fn last(&self) -> Sequence {
        self.last
    }

    fn brought(&self) -> Sequence {
        if self.has_reported() { self.received() } else { self.last }
    }

    fn counts(&self) -> SubscriberStats {
        self.counts
    }

    #[inline]
    fn held(&self) -> &[u64] {
        &self.slot
    }
}

/// Gives the writer a little time, more with each attempt.
fn spin(attempts: u32) {
    if attempts > limits::TORN_RETRIES_AT_ONCE {
        (0..1u32 << attempts.min(10)).for_each(|_| std::hint::spin_loop());
    }
}
