//! Going back from a value that was reported as damaged.
//!
//! Damaged memory may name a value that was never published. In mapped memory a reader follows a sequence later than the next one only if
//! two words agree on it. Elsewhere it reports the value as damaged, and would then wait for a later one. So it keeps what it knew before,
//! and goes back as soon as the memory shows that the sequence was wrong, or that the value is right by now: it was published, or the rest
//! of it has arrived.

use super::{Expected, Known, Reported, StateReader};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::{HEADER_WORDS, SLOT_SIZES, SlotHeader, TRAILER_WORDS};
use crate::layout::{ByteRange, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::Fetch;
use crate::repository::reader::HOT_LINE;

impl StateReader {
    /// Whether the last value was reported as damaged.
    #[inline]
    pub(super) fn has_reported(&self) -> bool {
        self.last == self.reported.sequence && self.last != Sequence::NONE
    }

    /// The last value before those that were reported.
    pub(super) fn received(&self) -> Sequence {
        match self.reported_before.sequence {
            Sequence::NONE => self.reported.before.last,
            _ => self.reported_before.before.last,
        }
    }

    /// Records what is known before the value of this sequence is reported. Of several in succession, the first one and the others are
    /// gone back from apart.
    pub(super) fn note_reported(&mut self, memory: &Region, sequence: Sequence) {
        let known = Known {
            last: self.last,
            unreceived: self.unreceived,
            begins: self.begins,
            unreported: self.unreported,
            conflated: self.counts.conflated,
        };
        let (before, reported_before) = match (self.has_reported(), self.reported_before.sequence) {
            (false, _) => (known, Reported::default()),
            (true, Sequence::NONE) => (known, self.reported),
            (true, _) => (self.reported.before, self.reported_before),
        };
        (self.reported, self.reported_before) =
            (Reported { sequence, before, ..Reported::default() }, reported_before);
        (self.reported.head, self.reported.hot) = self.named(memory);
        // The slot may have become right since it was copied: the next poll checks it.
        self.reported.ends = self.ends(memory, sequence);
    }

    /// Goes back from the reported value if a value before it is named now, or if it is right by now: `is_there` says of which part of
    /// memory the words are present. Names that have not changed since the report prove nothing.
    #[cold]
    pub(super) fn reconsider(&mut self, memory: &Region, is_there: impl Fn(ByteRange) -> bool) {
        while self.has_reported() {
            let (received, last) = (self.received(), self.last);
            let (head, hot) = self.named(memory);
            let is_earlier = |named: Sequence, before| named != before && named > received && named < last;
            if !is_earlier(head, self.reported.head)
                && !is_earlier(hot, self.reported.hot)
                && !self.is_right_now(memory, &is_there)
            {
                return;
            }
            self.go_back();
        }
    }

    /// Does the same after a fetch. Returns what to fetch to see whether the reported value is right by now.
    pub(super) fn reconsider_fetched(
        &mut self,
        mirror: &Region,
        fetched: &Fetch<Expected>,
    ) -> Option<Fetch<Expected>> {
        if !self.has_reported() {
            return None;
        }
        let is_there = |slot: ByteRange| {
            fetched.ranges().iter().any(|got| got.offset == slot.offset && got.len >= slot.len)
        };
        self.reconsider(mirror, is_there);
        let is_due = self.has_reported() && self.reported.polls_left == 0;
        let slot = self.slot_in(mirror, self.last);
        (is_due && !is_there(slot)).then_some(Fetch { ranges: [HOT_LINE, slot], purpose: Expected::Newest })
    }

    /// Plans a fetch of the hot line and of the reported value: of a long one that is not due the header.
    pub(super) fn plan_reported(&self) -> Fetch<Expected> {
        let [_, _, sizes, ..] = self.reported.ends;
        let mut slot = self.geometry.slot_range(self.last, SlotHeader::payload_len(sizes) as usize);
        if self.reported.polls_left > 0 && slot.len > limits::PREDICTED_LEN_MAX {
            slot = self.geometry.slot_range(self.last, 0);
        }
        Fetch { ranges: [HOT_LINE, slot], purpose: Expected::Newest }
    }

    /// Forgets the value that was reported last.
    pub(super) fn go_back(&mut self) {
        let reported_before = std::mem::take(&mut self.reported_before);
        let Reported { before, .. } = std::mem::replace(&mut self.reported, reported_before);
        (self.last, self.unreceived, self.begins) = (before.last, before.unreceived, before.begins);
        (self.unreported, self.counts.conflated) = (before.unreported, before.conflated);
        (self.keeps_up, self.attempts, self.suspect) = (false, 0, None);
    }

    /// Whether the slot of the reported value holds it whole by now. It is copied only if its ends have changed, or if that was long ago.
    fn is_right_now(&mut self, memory: &Region, is_there: impl Fn(ByteRange) -> bool) -> bool {
        let ends = self.ends(memory, self.last);
        let is_changed = std::mem::replace(&mut self.reported.ends, ends) != ends;
        if !is_changed && self.reported.polls_left > 0 {
            self.reported.polls_left -= 1;
            return false;
        }
        if !is_there(self.slot_in(memory, self.last)) {
            self.reported.polls_left = 0;
            return false;
        }
        self.reported.polls_left = limits::EMPTY_POLLS_MAX;
        let copied = self.copy(memory, self.last);
        copied.and_then(|(len, tail)| self.inspect(self.last, len, tail)).is_ok()
    }

    /// The slot of this sequence, by the length that it names.
    fn slot_in(&self, memory: &Region, sequence: Sequence) -> ByteRange {
        let sizes = memory.load(self.geometry.slot_offset(sequence) + SLOT_SIZES);
        self.geometry.slot_range(sequence, SlotHeader::payload_len(sizes) as usize)
    }

    /// The header of this value's slot, and what is behind its payload.
    fn ends(&self, memory: &Region, sequence: Sequence) -> [u64; HEADER_WORDS + TRAILER_WORDS] {
        let ByteRange { offset, len } = self.slot_in(memory, sequence);
        std::array::from_fn(|word| match word.checked_sub(HEADER_WORDS) {
            None => memory.load(offset + word * WORD),
            Some(word) => memory.load(offset + len + word * WORD - TRAILER_WORDS * WORD),
        })
    }

    /// The head stamp of the slot after the last value received, and the newest value by the hot line.
    fn named(&self, memory: &Region) -> (Sequence, Sequence) {
        let head = memory.load(self.geometry.slot_offset(self.received().next()));
        (Sequence::new(head), Sequence::new(memory.load(HOT_SEQUENCE)))
    }

    /// Whether the slot of this sequence has its head stamp.
    pub(super) fn is_headed(&self, memory: &Region, sequence: Sequence) -> bool {
        memory.load_acquire(self.geometry.slot_offset(sequence)) == sequence.get()
    }

    /// Whether the slot of this sequence has its tail stamp.
    fn is_tailed(&self, memory: &Region, sequence: Sequence) -> bool {
        let ByteRange { offset, len } = self.slot_in(memory, sequence);
        memory.load(offset + len - WORD) == sequence.get()
    }

    /// Whether another word confirms this value, which the head stamp in the slot of `next` names: the hot line, which is at most one
    /// value behind, its own slot, if that is another one, the slot before or after it, or its tail stamp.
    #[cold]
    pub(super) fn is_plausible_head(
        &self,
        memory: &Region,
        head: Sequence,
        hot: Sequence,
        next: Sequence,
    ) -> bool {
        let before = Sequence::new(head.get().saturating_sub(1));
        let is_elsewhere = self.geometry.slot_index(head) != self.geometry.slot_index(next);
        hot >= before
            || is_elsewhere && self.is_headed(memory, head)
            || self.is_headed(memory, before)
            || self.is_headed(memory, head.next())
            || self.is_tailed(memory, head)
    }

    /// Whether another word confirms this value, which the hot line names, unless it is the next one: one of its slot, or the slot before
    /// it.
    #[cold]
    pub(super) fn is_plausible_hot(&self, memory: &Region, hot: Sequence) -> bool {
        let is_in_slot = || Sequence::new(memory.load(self.geometry.slot_offset(hot))) >= hot;
        let before = Sequence::new(hot.get().saturating_sub(1));
        hot == self.last.next()
            || is_in_slot()
            || self.is_headed(memory, before)
            || self.is_tailed(memory, hot)
    }
}
