//! Going back from a sequence that no value has.
//!
//! Damaged memory may name a value that was never published. In mapped memory a reader follows a sequence only if two words agree on it.
//! Elsewhere it reports the value as damaged, and would then wait for a later one. So it keeps what it knew before, and goes back as soon
//! as the memory shows that the sequence was wrong.

use super::{Reported, StateReader};
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::HEADER_WORDS;
use crate::memory::Region;

impl StateReader {
    /// Whether the last value was reported as damaged.
    #[inline]
    pub(super) fn has_reported(&self) -> bool {
        self.last == self.reported.sequence && self.last != Sequence::NONE
    }

    /// Records what is known before the value of this sequence is reported.
    pub(super) fn note_reported(&mut self, memory: &Region, sequence: Sequence) {
        if !self.has_reported() {
            self.reported = Reported {
                received: self.last,
                unreceived: self.unreceived,
                begins: self.begins,
                unreported: self.unreported,
                conflated: self.counts.conflated,
                ..Reported::default()
            };
        }
        let (header, head, hot) = self.around(memory, sequence);
        self.reported = Reported { sequence, header, head, hot, ..self.reported };
    }

    /// Goes back to the last value received if the reported one had not been published: it is published only now, or a value before it
    /// is. Words that have not changed since the report prove nothing.
    #[cold]
    pub(super) fn reconsider(&mut self, memory: &Region) {
        if !self.has_reported() {
            return;
        }
        let Reported { received, .. } = self.reported;
        let (header, head, hot) = self.around(memory, self.last);
        let [stamp, ..] = header;
        let is_published_now = stamp == self.last.get() && header != self.reported.header;
        let is_earlier = |named: Sequence, before| named != before && named > received && named < self.last;
        if is_published_now || is_earlier(head, self.reported.head) || is_earlier(hot, self.reported.hot) {
            self.go_back();
        }
    }

    /// Forgets the value that was reported.
    pub(super) fn go_back(&mut self) {
        let Reported { received, unreceived, begins, unreported, conflated, .. } =
            std::mem::take(&mut self.reported);
        (self.last, self.unreceived, self.begins) = (received, unreceived, begins);
        (self.unreported, self.counts.conflated) = (unreported, conflated);
        (self.keeps_up, self.attempts, self.suspect) = (false, 0, None);
    }

    /// The header of this value's slot, the head stamp of the slot after the last value received, and the newest value by the hot line.
    fn around(&self, memory: &Region, sequence: Sequence) -> ([u64; HEADER_WORDS], Sequence, Sequence) {
        let slot = self.geometry.slot_offset(sequence);
        let head = memory.load(self.geometry.slot_offset(self.reported.received.next()));
        let header = std::array::from_fn(|word| memory.load(slot + word * WORD));
        (header, Sequence::new(head), Sequence::new(memory.load(HOT_SEQUENCE)))
    }

    /// Whether the slot of this sequence has its head stamp.
    pub(super) fn is_headed(&self, memory: &Region, sequence: Sequence) -> bool {
        memory.load_acquire(self.geometry.slot_offset(sequence)) == sequence.get()
    }

    /// Whether another word confirms this value, which a head stamp names: the hot line, which is at most one value behind, or the slot
    /// before or after it.
    #[cold]
    pub(super) fn is_plausible_head(&self, memory: &Region, head: Sequence, hot: Sequence) -> bool {
        let before = Sequence::new(head.get().saturating_sub(1));
        hot >= before || self.is_headed(memory, before) || self.is_headed(memory, head.next())
    }

    /// Whether another word confirms this value, which the hot line names: its slot, or the one before it.
    #[cold]
    pub(super) fn is_plausible_hot(&self, memory: &Region, hot: Sequence) -> bool {
        let is_in_slot = || Sequence::new(memory.load(self.geometry.slot_offset(hot))) >= hot;
        let before = Sequence::new(hot.get().saturating_sub(1));
        hot == self.last.next() || is_in_slot() || self.is_headed(memory, before)
    }
}
