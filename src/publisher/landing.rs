use std::sync::Arc;

use crate::fabric::{ByteRange, Completion, FabricError, Registration, RemoteWrite, Write};
use crate::id::{Epoch, Sequence};
use crate::layout::WORD;
use crate::layout::header::{HOT_OFFSET, hot_line};
use crate::layout::state::StateGeometry;
use crate::repository::state::Committed;
use crate::sync::atomic::{AtomicBool, Ordering};

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
    /// A batch is under way.
    pending: bool,
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
        let held_lens = vec![0; geometry.slot_count() as usize].into();
        Self {
            remote,
            geometry,
            epoch,
            closed,
            written: Sequence::NONE,
            held_lens,
            pending: false,
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

    /// Whether a value was passed over because the batch before is still under way.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.behind
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

    /// Writes what a commit changed. Where the batch before is still under way the value is passed over, so that a
    /// slow subscriber does not hold up the others: it gets the newest one later.
    #[inline]
    pub(super) fn write(&mut self, source: &Registration, committed: &Committed) {
        self.hidden = None;
        let is_free = self.settle();
        self.behind = !is_free;
        if is_free {
            let outcome = self.post(source, committed);
            self.take(outcome);
        }
    }

    /// Writes a value that the repository holds, all but its head stamp: who reads the landing region does not see it
    /// before [`Self::reveal`]. Not while the batch before is under way.
    pub(super) fn write_hidden(&mut self, source: &Registration, committed: Committed) {
        self.behind = true;
        if !self.settle() {
            return;
        }
        let Committed { sequence, slot, payload_len, .. } = committed;
        let body = ByteRange { offset: slot.offset + WORD, len: slot.len - WORD };
        let retired = self.retire(sequence, slot, payload_len);
        let outcome = self.remote.post(source, &[retired, Write::Range(body)]);
        self.hidden = Some(committed);
        self.take(outcome);
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
        self.take(outcome);
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

    /// Whether nothing is under way any more.
    #[inline]
    fn settle(&mut self) -> bool {
        if self.pending {
            let outcome = self.remote.in_flight();
            self.take(outcome.map(|count| if count == 0 { Completion::Done } else { Completion::Pending }));
        }
        !self.pending
    }

    #[inline]
    fn take(&mut self, outcome: Result<Completion, FabricError>) {
        match outcome {
            Ok(completion) => self.pending = completion == Completion::Pending,
            Err(_) => self.closed.store(true, Ordering::Relaxed),
        }
    }
}
