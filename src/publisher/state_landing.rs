use super::flight::Flight;
use super::handover::{ExposeError, ExposedLanding, Landing, Repository};
use crate::fabric::{ByteRange, Completion, Registration, Write};
use crate::id::{Epoch, Sequence};
use crate::layout::WORD;
use crate::layout::header::{HOT_OFFSET, HOT_SEQUENCE};
use crate::layout::state::{HEADER_WORDS, SlotHeader, StateGeometry, hot_line};
use crate::limits;
use crate::repository::state::Committed;
use crate::sync::atomic::{Ordering, fence};

#[cfg(test)]
mod tests;

/// Batches that must have been complete in good time before one more may be under way.
const CALM_BATCHES: u32 = 8;
/// Copies of the newest value, when the publisher overwrites it meanwhile, before it is left to the publisher, which
/// writes so fast that it takes the landing region over any moment.
const ATTEMPTS_MAX: u32 = 4;

/// A push subscriber's landing region of a state.
#[derive(Debug)]
pub(crate) struct StateLanding {
    /// Batches that are under way, by the sequences of their values.
    flight: Flight<Sequence>,
    geometry: StateGeometry,
    epoch: Epoch,
    /// The newest sequence written to it.
    written: Sequence,
    /// The payload length that each of its slots holds: its tail stamp must not outlive it.
    held_lens: Box<[usize]>,
    /// The newest sequence that it was asked to take.
    newest: Sequence,
    /// How many batches may be under way.
    window: usize,
    /// Batches that were complete in good time since there may be as many.
    calm: u32,
    /// A value was passed over for that, or is still hidden.
    behind: bool,
    /// The value that was written but for its head stamp.
    hidden: Option<Committed>,
}

impl Landing for StateLanding {
    type Geometry = StateGeometry;
    type Commit = Committed;
    type Batch = Sequence;

    fn open(exposed: ExposedLanding, repository: &Repository<StateGeometry>) -> Result<Self, ExposeError> {
        let Repository { geometry, epoch, .. } = *repository;
        Ok(Self {
            flight: Flight::new(exposed.remote, exposed.closed, limits::LANDING_BATCHES_MAX),
            geometry,
            epoch,
            written: Sequence::NONE,
            held_lens: vec![0; geometry.slot_count() as usize].into(),
            newest: Sequence::NONE,
            window: 1,
            calm: 0,
            behind: false,
            hidden: None,
        })
    }

    fn flight(&self) -> &Flight<Sequence> {
        &self.flight
    }

    #[inline]
    fn end_of(commit: &Committed) -> u64 {
        commit.sequence.get()
    }

    fn end(source: &Registration) -> u64 {
        source.region().load_acquire(HOT_SEQUENCE)
    }

    /// Where too much is still under way the value is passed over, so that a slow subscriber does not hold up the others: it gets the
    /// newest one later.
    #[inline]
    fn write(&mut self, source: &Registration, committed: &Committed) {
        self.hidden = None;
        if !self.flight.has_word_order {
            return self.write_whole(source, committed);
        }
        let is_free = self.settle();
        self.behind = !is_free;
        if is_free {
            self.post(source, committed);
        }
    }

    /// Copies the newest value beside a publisher that may be overwriting it: it is revealed only when it was still whole after it
    /// had been copied.
    fn catch_up(&mut self, source: &Registration, left: &mut u64) -> bool {
        let before = self.written;
        for _ in 0..ATTEMPTS_MAX {
            if self.hidden().is_none() {
                let sequence = Sequence::new(Self::end(source));
                if sequence <= self.written || *left == 0 {
                    break;
                }
                let held = self.held(source, sequence);
                let len = held.payload_len as u64;
                if self.write_hidden(source, held) {
                    *left = left.saturating_sub(len);
                }
            }
            let Some(hidden) = self.hidden() else { break };
            // Acquire: if any word of the copy is of a later value, the load below sees that value's predecessor.
            fence(Ordering::Acquire);
            let ahead = Self::end(source) - hidden.sequence.get();
            let whole = ahead + 1 < u64::from(self.geometry.slot_count());
            self.reveal(source, whole);
            if whole {
                break;
            }
        }
        self.written != before
    }

    #[inline]
    fn is_behind(&self, end: u64) -> bool {
        self.behind || self.written.get() < end
    }

    fn is_settled(&mut self, _: &Registration) -> bool {
        self.settle()
    }
}

impl StateLanding {
    /// What the repository's slot of this sequence says of it.
    fn held(&self, source: &Registration, sequence: Sequence) -> Committed {
        let mut head = [0; HEADER_WORDS];
        source.region().copy_out(self.geometry.slot_offset(sequence), &mut head);
        let header = SlotHeader::parse(head);
        let payload_len = (header.payload_len as usize).min(self.geometry.payload_len_max());
        let slot = self.geometry.slot_range(sequence, payload_len);
        Committed { sequence, slot, published_ns: header.published_ns, payload_len }
    }

    /// [`Self::write`] where only whole writes appear in order.
    fn write_whole(&mut self, source: &Registration, committed: &Committed) {
        self.newest = committed.sequence;
        let is_free = self.has_room_for(committed.sequence);
        self.behind = !is_free;
        if is_free {
            self.post_whole(source, committed);
        }
    }

    /// Writes a value that the repository holds, all but its head stamp: who reads the landing region does not see it
    /// before [`Self::reveal`]. Not while the batch before is under way. Says whether it was written.
    fn write_hidden(&mut self, source: &Registration, committed: Committed) -> bool {
        self.behind = true;
        if !self.settle() {
            return false;
        }
        let Committed { sequence, slot, payload_len, .. } = committed;
        let body = ByteRange { offset: slot.offset + WORD, len: slot.len - WORD };
        let retired = self.retire(sequence, slot, payload_len);
        self.hidden = Some(committed);
        self.flight.post(source, &[retired, Write::Range(body)], sequence);
        true
    }

    /// The value that was written hidden and has arrived.
    fn hidden(&mut self) -> Option<Committed> {
        if self.settle() { self.hidden } else { None }
    }

    /// Stamps the value that was written hidden, and makes it the newest, if it is `whole`: if the repository's slot
    /// was not overwritten while it was copied. Otherwise it stays hidden for good.
    fn reveal(&mut self, source: &Registration, whole: bool) {
        let Some(committed) = self.hidden.take() else { return };
        if !whole {
            return;
        }
        let head = Write::Word { offset: committed.slot.offset, word: committed.sequence.get() };
        let expected = self.advance(committed.sequence);
        let (hot, stamp) = (self.hot(&committed), self.stamp(expected, committed.sequence));
        self.behind = false;
        self.flight.post(source, &[head, hot, stamp], committed.sequence);
    }

    #[inline]
    fn post(&mut self, source: &Registration, committed: &Committed) -> Option<Completion> {
        let Committed { sequence, slot, payload_len, .. } = *committed;
        let hot = self.hot(committed);
        let moved = self.held_len(sequence) != payload_len;
        let expected = self.advance(sequence);
        let passed_over = expected.get() > 1 && sequence > expected;
        if !moved && !passed_over {
            return self.flight.post(source, &[Write::Range(slot), hot], sequence);
        }
        let retired = self.retire(sequence, slot, payload_len);
        if !passed_over {
            return self.flight.post(source, &[retired, Write::Range(slot), hot], sequence);
        }
        let stamp = self.stamp(expected, sequence);
        self.flight.post(source, &[retired, Write::Range(slot), hot, stamp], sequence)
    }

    /// Writes a value to where only whole writes appear in order. Who keeps up there looks at the slots alone, and
    /// mostly finds the value before this one whole while this one arrives: one write does. The hot line is for those
    /// who cannot go from slot to slot; where writes may be lost that is anybody at any time.
    fn post_whole(&mut self, source: &Registration, committed: &Committed) -> Option<Completion> {
        let Committed { sequence, slot, payload_len, .. } = *committed;
        let is_first = self.written == Sequence::NONE;
        let expected = self.advance(sequence);
        let passed_over = !is_first && sequence > expected;
        let is_due = sequence.get().is_multiple_of(limits::LANDING_HOT_LINE_EVERY);
        let is_named = self.flight.may_lose || is_first || passed_over || is_due;
        let tail = StateGeometry::tail_offset;
        let moved = tail(self.held_len(sequence)) != tail(payload_len);
        if !moved && !is_named {
            return self.flight.post(source, &[Write::Range(slot)], sequence);
        }
        let retired = moved.then(|| self.retire(sequence, slot, payload_len));
        let hot = is_named.then(|| self.hot(committed));
        let stamp = passed_over.then(|| self.stamp(expected, sequence));
        let batch = [retired, Some(Write::Range(slot)), hot, stamp];
        let mut writes = [Write::Range(slot); 4];
        let count = writes.iter_mut().zip(batch.into_iter().flatten()).map(|(to, write)| *to = write).count();
        self.flight.post(source, writes.split_at(count).0, sequence)
    }

    /// Takes note that this is the newest sequence written; returns the one that would have been next.
    #[inline]
    fn advance(&mut self, sequence: Sequence) -> Sequence {
        std::mem::replace(&mut self.written, sequence).next()
    }

    /// The hot line after this value.
    #[inline]
    fn hot(&self, committed: &Committed) -> Write {
        let Committed { sequence, payload_len, published_ns, .. } = *committed;
        Write::Line { offset: HOT_OFFSET, words: hot_line(sequence, payload_len, self.epoch, published_ns) }
    }

    /// Overwrites the tail stamp of the value that the slot held before, so that nothing is taken for it.
    fn retire(&mut self, sequence: Sequence, slot: ByteRange, payload_len: usize) -> Write {
        let held = self.held_len(sequence);
        if let Some(held) = self.held_lens.get_mut(self.geometry.slot_index(sequence)) {
            *held = payload_len;
        }
        Write::Word { offset: slot.offset + StateGeometry::tail_offset(held), word: sequence.get() }
    }

    /// The subscriber looks for the value after its last one where that would stand. A stamp beyond it there tells
    /// that it was passed over, and that the hot line knows the newest.
    fn stamp(&self, expected: Sequence, sequence: Sequence) -> Write {
        Write::Word { offset: self.geometry.slot_offset(expected), word: sequence.get() }
    }

    #[inline]
    fn held_len(&self, sequence: Sequence) -> usize {
        self.held_lens.get(self.geometry.slot_index(sequence)).copied().unwrap_or(0)
    }

    /// Whether one more batch with this value may be under way. If values were passed over, not in the slot of the
    /// newest one that was written: that stays until the next one is whole, so that there is always one to be read.
    fn has_room_for(&mut self, sequence: Sequence) -> bool {
        let slot_of = |sequence| self.geometry.slot_index(sequence);
        if self.written != Sequence::NONE && slot_of(sequence) == slot_of(self.written) {
            return false;
        }
        // As long as there is room nobody asks: that would take longer than all else here.
        if self.flight.batches().len() >= self.window {
            self.look();
        }
        self.flight.batches().len() < self.window
    }

    /// Whether nothing is under way any more.
    #[inline]
    fn settle(&mut self) -> bool {
        if !self.flight.is_empty() {
            self.look();
        }
        self.flight.is_empty()
    }

    /// Asks how much is under way.
    fn look(&mut self) {
        let mut arrived = self.flight.arrived();
        if let Some(oldest) = arrived.next() {
            let done = 1 + arrived.count();
            self.adapt(self.newest.get().saturating_sub(oldest.get()), done);
        }
    }

    /// Has more or less under way, after so many batches were completed, and this many values published since the first
    /// of them. The source of a value must
    /// stand until it is written, and the publisher comes around to it again after as many values as there are slots:
    /// on a busy wire, what waits behind others is overwritten before its turn.
    fn adapt(&mut self, published: u64, done: usize) {
        let slot_count = u64::from(self.geometry.slot_count());
        if published >= slot_count {
            (self.window, self.calm) = (1, 0);
        } else if published <= slot_count / 2 {
            self.calm += u32::try_from(done).unwrap_or(CALM_BATCHES);
        }
        if self.calm >= CALM_BATCHES {
            let max = limits::LANDING_BATCHES_MAX.min(self.geometry.slot_count() as usize - 1);
            (self.window, self.calm) = (max.min(self.window + 1), 0);
        }
    }
}
