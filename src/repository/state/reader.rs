mod inline;
mod landing;

use self::inline::Unproven;
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::header::{HOT_OFFSET, HOT_SEQUENCE};
use crate::layout::state::{
    HEADER_LEN, HEADER_WORDS, HOT_LEN, SLOT_SIZES, SlotCheck, SlotHeader, StateGeometry, TRAILER_WORDS,
    parse_check_word, slot_len,
};
use crate::layout::{ByteRange, LINE, WORD};
use crate::limits;
use crate::memory::Region;
use crate::sync::atomic::{Ordering, fence};

/// A reader of a state repository: finds the newest value, copies it to private memory, and accepts it when
/// stamps, bounds, epoch and CRC all agree. Neither allocates nor blocks nor calls the operating system.
///
/// Mapped memory is read with [`Self::poll`], a landing region where only whole writes appear in order with
/// [`Self::follow`]. Memory that has to be fetched over a wire is read by asking for [`Self::plan`], fetching those
/// ranges into a mirror of the repository, and handing that to [`Self::check`].
#[derive(Debug)]
pub(crate) struct StateReader {
    geometry: StateGeometry,
    epoch: Epoch,
    check: SlotCheck,
    last: Sequence,
    last_len: usize,
    /// No value was missed before the last one.
    keeps_up: bool,
    /// Failed reads since the last value or report.
    attempts: u32,
    /// Values before one that was reported as wrong, which were replaced before they were read.
    unreported: u64,
    /// The sequence of the last failed reads.
    suspect: Option<Sequence>,
    /// How many there were of it in a row.
    suspicions: u32,
    /// Since when, ns of the caller's clock.
    suspect_since_ns: u64,
    counts: ReadCounts,
    unproven: Unproven,
    /// A slot in private memory.
    slot: Box<[u64]>,
}

/// What a reader has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadCounts {
    /// Values accepted.
    pub(crate) received: u64,
    /// Values that were replaced by a newer one before they were read.
    pub(crate) conflated: u64,
    /// Reads repeated because the value was overwritten meanwhile.
    pub(crate) torn_retries: u64,
    /// Values not accepted.
    pub(crate) rejected: u64,
}

/// A value that passed every check, in private memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verified<'a> {
    /// Its header.
    pub(crate) header: SlotHeader,
    /// Values between the one before and this one, which were replaced before they were read.
    pub(crate) conflated: u64,
    /// Its payload, aligned to 8.
    pub(crate) payload: &'a [u8],
}

/// Why a value was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum ReadFailure {
    /// The writer overwrote each value while it was read.
    Contended { attempts: u32 },
    /// The value does not match its checksum, and nobody is writing it.
    Damaged { sequence: Sequence, expected: u32, found: u32 },
    /// The stamps of the value do not agree, and nobody is writing it.
    BrokenStamps { sequence: Sequence },
    /// The value belongs to another incarnation of the repository.
    ForeignEpoch { sequence: Sequence, found: u64 },
    /// The value claims a length that the repository cannot hold.
    ImpossibleLen { sequence: Sequence, len: u64 },
    /// What came inline up to `told` is not what the repository holds, whose newest value is `found`. Values before `first` are
    /// not in doubt.
    Contradicted { first: Sequence, told: Sequence, found: Sequence },
}

/// What to fetch before the next check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    /// Those that are not empty, the first ones.
    ranges: [ByteRange; 2],
    expected: Expected,
}

/// What is expected in what was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The value after the last one, and the head stamp of the one after that.
    Next,
    /// The hot line, and perhaps the value that it names.
    Newest,
    /// The hot line, and the value that it named before.
    Known(Sequence),
    /// The hot line, and the slot of this value, which came inline.
    Proof(Sequence),
}

/// What a check of fetched memory found.
#[derive(Debug)]
pub(crate) enum Step {
    /// No value that is newer.
    Nothing,
    /// More must be fetched, and checked again.
    Fetch(Fetch),
    /// A value, for [`StateReader::verified`].
    Value(Accepted),
}

/// A value that a reader has checked and holds: see [`StateReader::verified`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    header: SlotHeader,
    conflated: u64,
}

/// Why one copy of a slot is not a value.
#[derive(Debug)]
enum Rejection {
    /// It was overwritten while it was copied.
    Torn,
    /// It stands still and is wrong.
    Wrong(ReadFailure),
}

/// The line that names the newest value.
const HOT_LINE: ByteRange = ByteRange { offset: HOT_OFFSET, len: LINE };
/// What is not fetched.
const NOTHING: ByteRange = ByteRange { offset: 0, len: 0 };

impl StateReader {
    /// A reader that has seen nothing yet.
    pub(crate) fn new(geometry: StateGeometry, epoch: Epoch, topic: TopicId) -> Self {
        Self {
            geometry,
            epoch,
            check: SlotCheck::new(topic),
            last: Sequence::NONE,
            last_len: 0,
            keeps_up: true,
            attempts: 0,
            unreported: 0,
            suspect: None,
            suspicions: 0,
            suspect_since_ns: 0,
            counts: ReadCounts::default(),
            unproven: Unproven::default(),
            slot: vec![0; slot_len(geometry.payload_len_max()) / WORD].into(),
        }
    }

    /// The newest sequence accepted.
    pub(crate) fn last(&self) -> Sequence {
        self.last
    }

    /// What has been counted so far.
    pub(crate) fn counts(&self) -> ReadCounts {
        self.counts
    }

    /// Takes the last value for unread, so that it is read and checked once more. For measurements.
    #[inline]
    pub(crate) fn rewind(&mut self) {
        self.last = Sequence::new(self.last.get().saturating_sub(1));
    }

    /// The newest value in mapped memory, if it is newer than the last one.
    #[inline]
    pub(crate) fn poll(&mut self, memory: &Region) -> Result<Option<Verified<'_>>, ReadFailure> {
        let accepted = self.accept(memory)?;
        Ok(accepted.map(|accepted| self.verified(accepted)))
    }

    /// As [`Self::poll`], but the value is for [`Self::verified`].
    #[inline]
    pub(crate) fn accept(&mut self, memory: &Region) -> Result<Option<Accepted>, ReadFailure> {
        loop {
            let Some(sequence) = self.newest(memory) else { return Ok(None) };
            match self.take(memory, sequence) {
                Ok(accepted) => return Ok(Some(accepted)),
                Err(rejection) => self.retry(sequence, rejection, None)?,
            }
            spin(self.attempts);
        }
    }

    /// What to fetch to learn of the newest value. Who keeps up looks for the value after the last one, and whether
    /// there is one after that: mostly one piece of memory. Otherwise it is the hot line and, as a guess, that value. A
    /// long one is not fetched before it is known to be there: that would be each time that nothing is new.
    pub(crate) fn plan(&self) -> Fetch {
        if self.is_unproven() {
            return self.proof(self.last_len);
        }
        let next = self.last.next();
        let slot = self.geometry.slot_range(next, self.last_len);
        if self.last == Sequence::NONE || next == Sequence::NONE || slot.len > limits::PREDICTED_LEN_MAX {
            return Fetch { ranges: [HOT_LINE, NOTHING], expected: Expected::Newest };
        }
        if !self.keeps_up {
            return Fetch { ranges: [HOT_LINE, slot], expected: Expected::Newest };
        }
        let head = ByteRange { offset: self.geometry.slot_offset(next.next()), len: WORD };
        let together =
            ByteRange { offset: slot.offset, len: (head.offset + WORD).saturating_sub(slot.offset) };
        let is_close = together.len > slot.len && together.len - slot.len <= limits::FETCHED_GAP_LEN_MAX;
        let ranges = if is_close { [together, NOTHING] } else { [slot, head] };
        Fetch { ranges, expected: Expected::Next }
    }

    /// Looks at what was fetched into a mirror of the repository, where words may have come in any order: a value is
    /// only called damaged when it has stayed so for a while. A value that was fetched because it was the newest is
    /// taken when there is a newer one by now: that one would have to be fetched as well, and so on.
    pub(crate) fn check(
        &mut self,
        mirror: &Region,
        fetched: &Fetch,
        now_ns: u64,
    ) -> Result<Step, ReadFailure> {
        if let Expected::Proof(sequence) = fetched.expected
            && let Some(more) = self.prove(mirror, fetched, sequence)?
        {
            return Ok(Step::Fetch(more));
        }
        let (sequence, len) = match fetched.expected {
            Expected::Next => {
                let (next, offset) = (self.last.next(), self.geometry.slot_offset(self.last.next()));
                let head = Sequence::new(mirror.load(offset));
                let after = Sequence::new(mirror.load(self.geometry.slot_offset(next.next())));
                // Also where the head stamp between the last value and one after the next is damaged.
                if head > next || after > next {
                    let ranges = [HOT_LINE, NOTHING];
                    return Ok(Step::Fetch(Fetch { ranges, expected: Expected::Newest }));
                }
                if head < next {
                    return Ok(Step::Nothing);
                }
                (next, SlotHeader::payload_len(mirror.load(offset + SLOT_SIZES)) as usize)
            }
            Expected::Newest | Expected::Known(_) | Expected::Proof(_) => {
                let newest = Sequence::new(mirror.load(HOT_SEQUENCE));
                if newest <= self.last {
                    return Ok(Step::Nothing);
                }
                (newest, usize::try_from(mirror.load(HOT_LEN)).unwrap_or(usize::MAX))
            }
        };
        let needed = self.geometry.slot_range(sequence, len);
        let next = Fetch { ranges: [HOT_LINE, needed], expected: Expected::Known(sequence) };
        let covers = |got: &ByteRange| got.offset == needed.offset && got.len >= needed.len;
        let sequence = match fetched.expected {
            Expected::Known(known) if known > self.last => known,
            _ if fetched.ranges().iter().any(covers) => sequence,
            _ => return Ok(Step::Fetch(next)),
        };
        match self.take(mirror, sequence) {
            Ok(accepted) => Ok(Step::Value(accepted)),
            Err(rejection) => {
                self.retry(sequence, rejection, Some(now_ns))?;
                Ok(Step::Fetch(next))
            }
        }
    }

    /// Gives up the values up to this one, because they cannot be read any more. The first of them, and how many, if there are any.
    /// None was missed before the value that was the newest when this reader was granted the topic.
    pub(crate) fn give_up(&mut self, newest: Sequence, granted: Sequence) -> Option<(Sequence, u64)> {
        if newest <= self.last {
            return None;
        }
        let first = self.last.next().max(granted);
        let count = newest.get().checked_sub(first.get())?.saturating_add(1);
        self.last = newest;
        self.counts.conflated = self.counts.conflated.saturating_add(count);
        Some((first, count))
    }

    /// The newest sequence in mapped memory, if it is newer than the last one. A reader that has kept up finds
    /// its value without touching the hot line, which the writer can thus keep in its own cache.
    #[inline]
    fn newest(&self, memory: &Region) -> Option<Sequence> {
        if self.last == Sequence::NONE {
            // Acquire: pairs with the Release store of the newest sequence in `StateWriter`.
            let newest = Sequence::new(memory.load_acquire(HOT_SEQUENCE));
            return (newest != Sequence::NONE).then_some(newest);
        }
        let next = self.last.next();
        if next == Sequence::NONE {
            // The last value was the last that can be. An honest writer never gets there.
            return None;
        }
        // Acquire: pairs with the Release store of the head stamp in `StateWriter`.
        let head = Sequence::new(memory.load_acquire(self.geometry.slot_offset(next)));
        if head < next {
            return None;
        }
        let after = Sequence::new(memory.load(self.geometry.slot_offset(next.next())));
        if head == next && after <= next {
            return Some(next);
        }
        // Acquire: pairs with the Release store of the newest sequence in `StateWriter`.
        let newest = Sequence::new(memory.load_acquire(HOT_SEQUENCE));
        Some(newest.max(head))
    }

    /// Copies the slot of this sequence to private memory and checks the copy.
    #[inline]
    fn take(&mut self, memory: &Region, sequence: Sequence) -> Result<Accepted, Rejection> {
        let offset = self.geometry.slot_offset(sequence);
        // Acquire: pairs with the Release store of the head stamp in `StateWriter`.
        let head = memory.load_acquire(offset);
        if head != sequence.get() {
            return Err(Rejection::Torn);
        }
        let sizes = SlotHeader::payload_len(memory.load(offset + SLOT_SIZES));
        let len = sizes as usize;
        if len > self.geometry.payload_len_max() {
            return Err(Rejection::Wrong(ReadFailure::ImpossibleLen { sequence, len: sizes.into() }));
        }
        let (run, _) = self.slot.split_at_mut(slot_len(len) / WORD - 1);
        memory.copy_out(offset, run);
        // Acquire: if any word copied above is of a later value, the load below sees that the tail stamp is
        // gone. Pairs with the Release fence in `StateWriter::open_slot`.
        fence(Ordering::Acquire);
        let tail = memory.load(offset + StateGeometry::tail_offset(len));
        self.verify(sequence, len, tail)
    }

    /// The only place where a value is accepted: when the private copy in `self.slot` is what it should be.
    #[inline]
    fn verify(&mut self, sequence: Sequence, len: usize, tail: u64) -> Result<Accepted, Rejection> {
        let header = self.inspect(sequence, len, tail)?;
        let skipped = self.skipped(sequence);
        let conflated = skipped + std::mem::take(&mut self.unreported);
        self.last = sequence;
        self.last_len = len;
        self.keeps_up = skipped == 0;
        self.attempts = 0;
        self.suspect = None;
        self.counts.received += 1;
        self.counts.conflated += skipped;
        let payload_len = u32::try_from(len).unwrap_or(0);
        Ok(Accepted { header: SlotHeader { payload_len, ..header }, conflated })
    }

    /// Compares the private copy in `self.slot` with its stamps, its bounds, its epoch and its checksum.
    #[inline]
    fn inspect(&self, sequence: Sequence, len: usize, tail: u64) -> Result<SlotHeader, Rejection> {
        let words = slot_len(len) / WORD;
        let (run, _) = self.slot.split_at(words - TRAILER_WORDS);
        let Some((head, _)) = run.split_first_chunk::<HEADER_WORDS>() else { return Err(Rejection::Torn) };
        let header = SlotHeader::parse(*head);
        if !cfg!(fabricast_skip_check) {
            if tail != sequence.get() || header.sequence != sequence || header.payload_len as usize != len {
                return Err(Rejection::Torn);
            }
            let bytes: &[u8] = bytemuck::cast_slice(run);
            let expected = self.check.of_run(bytes.split_at(HEADER_LEN + len).0);
            let check_word = self.slot.get(words - TRAILER_WORDS).copied().unwrap_or(0);
            if parse_check_word(check_word) != Some(expected) {
                let (found, _) = crate::layout::halves(check_word);
                return Err(Rejection::Wrong(ReadFailure::Damaged { sequence, expected, found }));
            }
            if header.epoch != self.epoch.get() {
                return Err(Rejection::Wrong(ReadFailure::ForeignEpoch { sequence, found: header.epoch }));
            }
        }
        Ok(header)
    }

    /// Counts a failed copy. An error when there have been enough of them: a value that stands still and is wrong
    /// is reported once and passed over; one that kept changing is tried again by the next call. As the newest value
    /// is never the one being overwritten, what fails each time stands still; where words may come late, it must do
    /// so for a while.
    fn retry(
        &mut self,
        sequence: Sequence,
        rejection: Rejection,
        now_ns: Option<u64>,
    ) -> Result<(), ReadFailure> {
        self.attempts += 1;
        if self.suspect.replace(sequence) == Some(sequence) {
            self.suspicions = self.suspicions.saturating_add(1);
        } else {
            self.suspicions = 1;
            self.suspect_since_ns = now_ns.unwrap_or(0);
        }
        self.counts.torn_retries += u64::from(matches!(rejection, Rejection::Torn));
        if self.attempts < limits::TORN_RETRIES_MAX {
            return Ok(());
        }
        let attempts = std::mem::take(&mut self.attempts);
        let settled = |now_ns: u64| now_ns.saturating_sub(self.suspect_since_ns) >= limits::DAMAGE_SETTLED_NS;
        if self.suspicions < attempts || !now_ns.is_none_or(settled) {
            return Err(ReadFailure::Contended { attempts });
        }
        Err(self.reject(sequence, rejection))
    }

    /// Passes a value over that stands still and is wrong; says how it is wrong.
    fn reject(&mut self, sequence: Sequence, rejection: Rejection) -> ReadFailure {
        let skipped = self.skipped(sequence);
        self.unreported += skipped;
        self.counts.conflated += skipped;
        self.last = sequence;
        self.suspicions = 0;
        self.counts.rejected += 1;
        match rejection {
            Rejection::Torn => ReadFailure::BrokenStamps { sequence },
            Rejection::Wrong(failure) => failure,
        }
    }

    /// Values between the last one and this one. Nothing is missed before the first.
    #[inline]
    fn skipped(&self, sequence: Sequence) -> u64 {
        if self.last == Sequence::NONE { 0 } else { sequence.get() - self.last.get() - 1 }
    }

    /// The value that was accepted last.
    #[inline]
    pub(crate) fn verified(&self, accepted: Accepted) -> Verified<'_> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.slot);
        let (_, payload) = bytes.split_at(HEADER_LEN);
        let (payload, _) = payload.split_at(accepted.header.payload_len as usize);
        Verified { header: accepted.header, conflated: accepted.conflated, payload }
    }
}

impl Fetch {
    /// The ranges, in order. A range may be fetched before or while the one before it is.
    pub(crate) fn ranges(&self) -> &[ByteRange] {
        let count = self.ranges.iter().take_while(|range| range.len > 0).count();
        self.ranges.split_at(count).0
    }
}

/// Gives the writer a little time, more with each attempt.
fn spin(attempts: u32) {
    if attempts > limits::TORN_RETRIES_AT_ONCE {
        (0..1u32 << attempts.min(10)).for_each(|_| std::hint::spin_loop());
    }
}
