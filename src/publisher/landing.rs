use std::collections::VecDeque;
use std::sync::Arc;

use crate::fabric::{ByteRange, Completion, FabricError, Registration, RemoteWrite, Write};
use crate::id::{Epoch, Sequence};
use crate::layout::WORD;
use crate::layout::header::HOT_OFFSET;
use crate::layout::state::{StateGeometry, hot_line};
use crate::limits;
use crate::repository::state::Committed;
use crate::sync::atomic::{AtomicBool, Ordering};

#[cfg(test)]
mod tests;

/// Batches that must have been complete in good time before one more may be under way.
const CALM_BATCHES: u32 = 8;

/// A push subscriber's landing region, as the publisher holds it.
#[derive(Debug)]
pub(crate) struct Landing {
    remote: Box<dyn RemoteWrite>,
    geometry: StateGeometry,
    epoch: Epoch,
    /// Set by the node when the subscriber is gone, and here when writing fails.
    closed: Arc<AtomicBool>,
    /// The newest sequence written to it.
    written: Sequence,
    /// The payload length that each of its slots holds: its tail stamp must not outlive it.
    held_lens: Box<[usize]>,
    /// The words of a write become visible in order. Otherwise only whole writes do.
    has_word_order: bool,
    /// A write may never arrive: then nothing but the hot line leads past the slot where it is missing.
    may_lose: bool,
    /// The newest sequence that it was asked to take.
    newest: Sequence,
    /// The sequences of the batches that were under way when that was last asked for, oldest first.
    in_flight: VecDeque<Sequence>,
    /// How many may be.
    window: usize,
    /// Batches that were complete in good time since there may be as many.
    calm: u32,
    /// A value was passed over for that, or is still hidden.
    behind: bool,
    /// The value that was written but for its head stamp.
    hidden: Option<Committed>,
    /// How often the node has looked after it while it waited for the publisher.
    tended: u32,
}

impl Landing {
    /// The landing region behind `remote`, for this incarnation of a topic. Whoever sets `closed` ends its use.
    pub(crate) fn new(
        remote: Box<dyn RemoteWrite>,
        geometry: StateGeometry,
        epoch: Epoch,
        closed: Arc<AtomicBool>,
    ) -> Self {
        let slot_count = geometry.slot_count() as usize;
        let (has_word_order, may_lose) = (remote.writes_words_in_order(), remote.writes_may_be_lost());
        Self {
            remote,
            geometry,
            epoch,
            closed,
            written: Sequence::NONE,
            held_lens: vec![0; slot_count].into(),
            has_word_order,
            may_lose,
            newest: Sequence::NONE,
            in_flight: VecDeque::with_capacity(limits::LANDING_BATCHES_MAX),
            window: 1,
            calm: 0,
            behind: false,
            hidden: None,
            tended: 0,
        }
    }

    /// The newest sequence written to it.
    pub(super) fn written(&self) -> Sequence {
        self.written
    }

    /// Counts that the node looked after it, and returns how often it has.
    pub(super) fn tend(&mut self) -> u32 {
        self.tended = self.tended.saturating_add(1);
        self.tended
    }

    /// Whether a value was passed over because batches before it are still under way.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.behind
    }

    /// Whether whoever set this flag up ends its use with it.
    pub(super) fn is_closed_by(&self, closed: &Arc<AtomicBool>) -> bool {
        Arc::ptr_eq(&self.closed, closed)
    }

    /// Whether the value of this sequence has yet to arrive.
    pub(super) fn owes(&mut self, newest: Sequence) -> bool {
        let arrived = self.settle() && !self.behind && self.written >= newest;
        !arrived && !self.is_closed()
    }

    /// Whether it is of no more use.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Writes what a commit changed. Where too much is still under way the value is passed over, so that a slow
    /// subscriber does not hold up the others: it gets the newest one later.
    #[inline]
    pub(super) fn write(&mut self, source: &Registration, committed: &Committed) {
        self.hidden = None;
        if !self.has_word_order {
            return self.write_whole(source, committed);
        }
        let is_free = self.settle();
        self.behind = !is_free;
        if is_free {
            let outcome = self.post(source, committed);
            self.take(committed.sequence, outcome);
        }
    }

    /// [`Self::write`] where only whole writes appear in order.
    fn write_whole(&mut self, source: &Registration, committed: &Committed) {
        self.newest = committed.sequence;
        let is_free = self.has_room_for(committed.sequence);
        self.behind = !is_free;
        if is_free {
            let outcome = self.post_whole(source, committed);
            self.take(committed.sequence, outcome);
        }
    }

    /// Writes a value that the repository holds, all but its head stamp: who reads the landing region does not see it
    /// before [`Self::reveal`]. Not while the batch before is under way. Says whether it was written.
    pub(super) fn write_hidden(&mut self, source: &Registration, committed: Committed) -> bool {
        self.behind = true;
        if !self.settle() {
            return false;
        }
        let Committed { sequence, slot, payload_len, .. } = committed;
        let body = ByteRange { offset: slot.offset + WORD, len: slot.len - WORD };
        let retired = self.retire(sequence, slot, payload_len);
        let outcome = self.remote.post(source, &[retired, Write::Range(body)]);
        self.hidden = Some(committed);
        self.take(sequence, outcome);
        true
    }

    /// The value that was written hidden and has arrived.
    pub(super) fn hidden(&mut self) -> Option<Committed> {
        if self.settle() { self.hidden } else { None }
    }

    /// Stamps the value that was written hidden, and makes it the newest, if it is `whole`: if the repository's slot
    /// was not overwritten while it was copied. Otherwise it stays hidden for good.
    pub(super) fn reveal(&mut self, source: &Registration, whole: bool) {
        let Some(committed) = self.hidden.take() else { return };
        if !whole {
            return;
        }
        let head = Write::Word { offset: committed.slot.offset, word: committed.sequence.get() };
        let expected = self.advance(committed.sequence);
        let (hot, stamp) = (self.hot(&committed), self.stamp(expected, committed.sequence));
        let outcome = self.remote.post(source, &[head, hot, stamp]);
        self.behind = false;
        self.take(committed.sequence, outcome);
    }

    #[inline]
    fn post(&mut self, source: &Registration, committed: &Committed) -> Result<Completion, FabricError> {
        let Committed { sequence, slot, payload_len, .. } = *committed;
        let hot = self.hot(committed);
        let moved = self.held_len(sequence) != payload_len;
        let expected = self.advance(sequence);
        let passed_over = expected.get() > 1 && sequence > expected;
        if !moved && !passed_over {
            return self.remote.post(source, &[Write::Range(slot), hot]);
        }
        let retired = self.retire(sequence, slot, payload_len);
        if !passed_over {
            return self.remote.post(source, &[retired, Write::Range(slot), hot]);
        }
        self.remote.post(source, &[retired, Write::Range(slot), hot, self.stamp(expected, sequence)])
    }

    /// Writes a value to where only whole writes appear in order. Who keeps up there looks at the slots alone, and
    /// mostly finds the value before this one whole while this one arrives: one write does. The hot line is for those
    /// who cannot go from slot to slot; where writes may be lost that is anybody at any time.
    fn post_whole(
        &mut self,
        source: &Registration,
        committed: &Committed,
    ) -> Result<Completion, FabricError> {
        let Committed { sequence, slot, payload_len, .. } = *committed;
        let is_first = self.written == Sequence::NONE;
        let expected = self.advance(sequence);
        let passed_over = !is_first && sequence > expected;
        let is_due = sequence.get().is_multiple_of(limits::LANDING_HOT_LINE_EVERY);
        let is_named = self.may_lose || is_first || passed_over || is_due;
        let tail = StateGeometry::tail_offset;
        let moved = tail(self.held_len(sequence)) != tail(payload_len);
        if !moved && !is_named {
            return self.remote.post(source, &[Write::Range(slot)]);
        }
        let retired = moved.then(|| self.retire(sequence, slot, payload_len));
        let hot = is_named.then(|| self.hot(committed));
        let stamp = passed_over.then(|| self.stamp(expected, sequence));
        let batch = [retired, Some(Write::Range(slot)), hot, stamp];
        let mut writes = [Write::Range(slot); 4];
        let count = writes.iter_mut().zip(batch.into_iter().flatten()).map(|(to, write)| *to = write).count();
        self.remote.post(source, writes.split_at(count).0)
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
        if self.in_flight.len() >= self.window {
            self.look();
        }
        self.in_flight.len() < self.window
    }

    /// Whether nothing is under way any more.
    #[inline]
    fn settle(&mut self) -> bool {
        if !self.in_flight.is_empty() {
            self.look();
        }
        self.in_flight.is_empty()
    }

    /// Asks how much is under way.
    fn look(&mut self) {
        match self.remote.in_flight() {
            Ok(count) => {
                let done = self.in_flight.len().saturating_sub(count);
                let oldest = self.in_flight.drain(..done).next();
                if let Some(oldest) = oldest {
                    self.adapt(self.newest.get().saturating_sub(oldest.get()), done);
                }
            }
            Err(_) => self.closed.store(true, Ordering::Relaxed),
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

    /// Takes note of what became of the batch with this value.
    #[inline]
    fn take(&mut self, sequence: Sequence, outcome: Result<Completion, FabricError>) {
        match outcome {
            Ok(Completion::Done) if self.in_flight.is_empty() => {}
            Ok(Completion::Done) => self.in_flight.clear(),
            Ok(Completion::Pending) => self.in_flight.push_back(sequence),
            Err(_) => self.closed.store(true, Ordering::Relaxed),
        }
    }
}
