use super::handover::{ExposedLanding, Landing, LandingError, Repository};
use super::landing_writer::LandingWriter;
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

/// Batches that must complete in time before one more may be in flight.
const CALM_BATCHES: u32 = 8;
/// Copies of the newest value that the publisher may spoil by overwriting it, before the publisher gets the landing region, which
/// at that rate it takes at any moment.
const ATTEMPTS_MAX: u32 = 4;

/// A push subscriber's landing region of a state.
#[derive(Debug)]
pub(crate) struct StateLanding {
    /// Its writer; a batch is known by the sequence of its value.
    writer: LandingWriter<Sequence>,
    geometry: StateGeometry,
    epoch: Epoch,
    /// The newest sequence written.
    written: Sequence,
    /// The payload length in each of its slots, which locates the tail stamp to be overwritten.
    held_lens: Box<[usize]>,
    /// The newest sequence to be written.
    newest: Sequence,
    /// The number of batches that may be in flight.
    window: usize,
    /// Batches that completed in time since the window last changed.
    calm: u32,
    /// A value was skipped because of the window, or is still hidden.
    behind: bool,
    /// The value written without its head stamp.
    hidden: Option<Committed>,
}

impl Landing for StateLanding {
    type Geometry = StateGeometry;
    type Commit = Committed;
    type Batch = Sequence;

    fn open(exposed: ExposedLanding, repository: &Repository<StateGeometry>) -> Result<Self, LandingError> {
        let Repository { geometry, epoch, .. } = *repository;
        Ok(Self {
            writer: LandingWriter::new(exposed.remote, exposed.closed, limits::LANDING_BATCHES_MAX),
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

    fn writer(&self) -> &LandingWriter<Sequence> {
        &self.writer
    }

    #[inline]
    fn end_of(commit: &Committed) -> u64 {
        commit.sequence.get()
    }

    fn end(source: &Registration) -> u64 {
        source.region().load_acquire(HOT_SEQUENCE)
    }

    /// Skips the value while too much is in flight, so that a slow subscriber does not delay the others: it gets the newest value
    /// later.
    #[inline]
    fn write(&mut self, source: &Registration, committed: &Committed) {
        self.hidden = None;
        if !self.writer.has_word_order {
            return self.write_whole(source, committed);
        }
        let is_free = self.settle();
        self.behind = !is_free;
        if is_free {
            self.post(source, committed);
        }
    }

    /// Copies the newest value while the publisher may be overwriting it, and reveals it only if it was still whole after the
    /// copy.
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
            // Acquire: if a copied word belongs to a later value, the load below sees that value's predecessor.
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
    /// Reads the header of the repository's slot of this sequence.
    fn held(&self, source: &Registration, sequence: Sequence) -> Committed {
        let mut head = [0; HEADER_WORDS];
        source.region().copy_out(self.geometry.slot_offset(sequence), &mut head);
        let header = SlotHeader::parse(head);
        let payload_len = (header.payload_len as usize).min(self.geometry.payload_len_max());
        let slot = self.geometry.slot_range(sequence, payload_len);
        Committed { sequence, slot, published_ns: header.published_ns, payload_len }
    }

    /// Does the same as [`Self::write`] where only whole writes appear in order.
    fn write_whole(&mut self, source: &Registration, committed: &Committed) {
        self.newest = committed.sequence;
        let is_free = self.has_room_for(committed.sequence);
        self.behind = !is_free;
        if is_free {
            self.post_whole(source, committed);
        }
    }

    /// Writes a value of the repository without its head stamp: readers do not see it before [`Self::reveal`]. Fails while the
    /// previous batch is in flight. Returns whether it was written.
    fn write_hidden(&mut self, source: &Registration, committed: Committed) -> bool {
        self.behind = true;
        if !self.settle() {
            return false;
        }
        let Committed { sequence, slot, payload_len, .. } = committed;
        let body = ByteRange { offset: slot.offset + WORD, len: slot.len - WORD };
        let withdrawn = self.withdraw(sequence);
        let retired = self.retire(sequence, slot, payload_len);
        self.hidden = Some(committed);
        self.writer.post_those(source, [withdrawn, Some(retired), Some(Write::Range(body))], sequence);
        true
    }

    /// The hidden value, once it has arrived.
    fn hidden(&mut self) -> Option<Committed> {
        if self.settle() { self.hidden } else { None }
    }

    /// Stamps the hidden value and makes it the newest if it is `whole`: if the repository's slot was not overwritten during the
    /// copy. Otherwise the value stays hidden.
    fn reveal(&mut self, source: &Registration, whole: bool) {
        let Some(committed) = self.hidden.take() else { return };
        if !whole {
            return;
        }
        let head = Write::Word { offset: committed.slot.offset, word: committed.sequence.get() };
        let expected = self.advance(committed.sequence);
        let (hot, stamp) = (self.hot(&committed), self.stamp(expected, committed.sequence));
        self.behind = false;
        self.writer.post(source, &[head, hot, stamp], committed.sequence);
    }

    #[inline]
    fn post(&mut self, source: &Registration, committed: &Committed) -> Option<Completion> {
        let Committed { sequence, slot, payload_len, .. } = *committed;
        let hot = self.hot(committed);
        let moved = self.held_len(sequence) != payload_len;
        let withdrawn = self.withdraw(sequence);
        let expected = self.advance(sequence);
        let passed_over = expected.get() > 1 && sequence > expected;
        if !moved && !passed_over {
            return self.writer.post(source, &[Write::Range(slot), hot], sequence);
        }
        let retired = self.retire(sequence, slot, payload_len);
        if !passed_over {
            return self.writer.post(source, &[retired, Write::Range(slot), hot], sequence);
        }
        let stamp = self.stamp(expected, sequence);
        let writes = [withdrawn, Some(retired), Some(Write::Range(slot)), Some(hot), Some(stamp)];
        self.writer.post_those(source, writes, sequence)
    }

    /// Writes a value where only whole writes appear in order. A reader that keeps up reads only the slots, and usually finds the
    /// previous value whole while this one arrives: one write suffices. The hot line is for readers that cannot go from slot to
    /// slot; where writes may be lost, that is any reader at any time.
    fn post_whole(&mut self, source: &Registration, committed: &Committed) -> Option<Completion> {
        let Committed { sequence, slot, payload_len, .. } = *committed;
        let is_first = self.written == Sequence::NONE;
        let expected = self.advance(sequence);
        let passed_over = !is_first && sequence > expected;
        let is_due = sequence.get().is_multiple_of(limits::LANDING_HOT_LINE_EVERY);
        let is_named = self.writer.may_lose || is_first || passed_over || is_due;
        let tail = StateGeometry::tail_offset;
        let moved = tail(self.held_len(sequence)) != tail(payload_len);
        if !moved && !is_named {
            return self.writer.post(source, &[Write::Range(slot)], sequence);
        }
        let retired = moved.then(|| self.retire(sequence, slot, payload_len));
        let hot = is_named.then(|| self.hot(committed));
        let stamp = passed_over.then(|| self.stamp(expected, sequence));
        self.writer.post_those(source, [retired, Some(Write::Range(slot)), hot, stamp], sequence)
    }

    /// Records this as the newest sequence written; returns the one that was due.
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

    /// Names no value as the newest, if the newest one is to be overwritten: the publisher has passed as many values over as there are
    /// slots. Until another one is named, a reader counts nothing that it finds as damaged. Where only whole writes appear in order, it
    /// waits for a while instead.
    #[inline]
    fn withdraw(&self, sequence: Sequence) -> Option<Write> {
        let is_newest = self.geometry.slot_index(sequence) == self.geometry.slot_index(self.written);
        (self.writer.has_word_order && is_newest && self.written != Sequence::NONE)
            .then_some(Write::Word { offset: HOT_SEQUENCE, word: Sequence::NONE.get() })
    }

    /// Overwrites the tail stamp of the slot's previous value, so that no bytes pass for it.
    fn retire(&mut self, sequence: Sequence, slot: ByteRange, payload_len: usize) -> Write {
        let held = self.held_len(sequence);
        if let Some(held) = self.held_lens.get_mut(self.geometry.slot_index(sequence)) {
            *held = payload_len;
        }
        Write::Word { offset: slot.offset + StateGeometry::tail_offset(held), word: sequence.get() }
    }

    /// The subscriber checks the slot of the value after its last one. A later stamp there says that it was skipped, and that the
    /// hot line has the newest.
    fn stamp(&self, expected: Sequence, sequence: Sequence) -> Write {
        Write::Word { offset: self.geometry.slot_offset(expected), word: sequence.get() }
    }

    #[inline]
    fn held_len(&self, sequence: Sequence) -> usize {
        self.held_lens.get(self.geometry.slot_index(sequence)).copied().unwrap_or(0)
    }

    /// Whether one more batch, with this value, may be in flight. It must not overwrite the newest written value before the next
    /// one is whole, so that one is always readable.
    fn has_room_for(&mut self, sequence: Sequence) -> bool {
        let slot_of = |sequence| self.geometry.slot_index(sequence);
        if self.written != Sequence::NONE && slot_of(sequence) == slot_of(self.written) {
            return false;
        }
        // Polling costs more than all else here, so it is done only when the window is full.
        if self.writer.batches().len() >= self.window {
            self.look();
        }
        self.writer.batches().len() < self.window
    }

    /// Whether no batch is in flight any more.
    #[inline]
    fn settle(&mut self) -> bool {
        if !self.writer.is_empty() {
            self.look();
        }
        self.writer.is_empty()
    }

    /// Polls for completed batches.
    fn look(&mut self) {
        let mut arrived = self.writer.arrived();
        if let Some(oldest) = arrived.next() {
            let done = 1 + arrived.count();
            self.adapt(self.newest.get().saturating_sub(oldest.get()), done);
        }
    }

    /// Adapts the window, after `done` batches completed and `published` values since the oldest of them. The source of a value
    /// must stay until it is written, but the publisher reuses a slot after as many values as there are slots: on a busy path a
    /// queued value is overwritten before its turn.
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
