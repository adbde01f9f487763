use std::sync::Arc;

use crate::fabric::{Completion, FabricError, Registration, RemoteWrite, Write};
use crate::id::{Epoch, Sequence};
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
    /// A value was passed over for that.
    behind: bool,
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

    /// Whether it is of no more use.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Writes what a commit changed. Where the batch before is still under way the value is passed over, so that a
    /// slow subscriber does not hold up the others: it gets the newest one later.
    #[inline]
    pub(super) fn write(&mut self, source: &Registration, committed: &Committed) {
        let settled = match self.pending {
            true => self.remote.poll(),
            false => Ok(Completion::Done),
        };
        self.behind = matches!(settled, Ok(Completion::Pending));
        let outcome = match settled {
            Ok(Completion::Done) => self.post(source, committed),
            other => other,
        };
        match outcome {
            Ok(completion) => self.pending = completion == Completion::Pending,
            Err(_) => self.closed.store(true, Ordering::Relaxed),
        }
    }

    #[inline]
    fn post(&mut self, source: &Registration, committed: &Committed) -> Result<Completion, FabricError> {
        let Committed { sequence, slot, published_ns, payload_len } = *committed;
        let values = [
            Write::Range(slot),
            Write::Line {
                offset: HOT_OFFSET,
                words: hot_line(sequence, payload_len, self.epoch, published_ns),
            },
        ];
        let held = self.held_lens.get_mut(self.geometry.slot_index(sequence));
        let held = held.map_or(payload_len, |held| std::mem::replace(held, payload_len));
        let old_tail = StateGeometry::tail_offset(held);
        let expected = std::mem::replace(&mut self.written, sequence).next();
        let passed_over = expected.get() > 1 && sequence > expected;
        if !passed_over && old_tail == StateGeometry::tail_offset(payload_len) {
            return self.remote.post(source, &values);
        }
        // The tail stamp of the value that the slot held before goes first, so that nothing is taken for it.
        let retired = Write::Word { offset: slot.offset + old_tail, word: sequence.get() };
        let [slot, hot] = values;
        if !passed_over {
            return self.remote.post(source, &[retired, slot, hot]);
        }
        // The subscriber looks for the value after its last one where that would stand. A stamp beyond it there
        // tells that it was passed over, and that the hot line knows the newest.
        let stamp = Write::Word { offset: self.geometry.slot_offset(expected), word: sequence.get() };
        self.remote.post(source, &[retired, slot, hot, stamp])
    }
}
