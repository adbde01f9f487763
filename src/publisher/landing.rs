use std::sync::Arc;

use crate::fabric::{Completion, FabricError, Registration, RemoteWrite, Write};
use crate::id::Sequence;
use crate::layout::state::StateGeometry;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A push subscriber's landing region, as the publisher holds it.
#[derive(Debug)]
pub(crate) struct Landing {
    remote: Box<dyn RemoteWrite>,
    geometry: StateGeometry,
    /// Set by the node when the subscriber is gone, and here when writing fails.
    closed: Arc<AtomicBool>,
    /// The newest sequence written to it.
    written: Sequence,
    /// A batch is under way.
    pending: bool,
    /// How often the node has looked after it while it waited for the publisher.
    tended: u32,
}

impl Landing {
    /// The landing region behind `remote`. Whoever sets `closed` ends its use.
    pub(crate) fn new(
        remote: Box<dyn RemoteWrite>,
        geometry: StateGeometry,
        closed: Arc<AtomicBool>,
    ) -> Self {
        Self { remote, geometry, closed, written: Sequence::NONE, pending: false, tended: 0 }
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

    /// Whether it is of no more use.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Writes what a commit changed. Where the batch before is still under way the value is passed over, so that a
    /// slow subscriber does not hold up the others: it gets a newer one.
    #[inline]
    pub(super) fn write(&mut self, source: &Registration, sequence: Sequence, writes: &[Write]) {
        let outcome = match self.pending {
            true => self.remote.poll(),
            false => Ok(Completion::Done),
        };
        let outcome = outcome.and_then(|settled| match settled {
            Completion::Done => self.post(source, sequence, writes),
            Completion::Pending => Ok(Completion::Pending),
        });
        match outcome {
            Ok(completion) => self.pending = completion == Completion::Pending,
            Err(_) => self.closed.store(true, Ordering::Relaxed),
        }
    }

    fn post(
        &mut self,
        source: &Registration,
        sequence: Sequence,
        writes: &[Write],
    ) -> Result<Completion, FabricError> {
        let expected = self.written.next();
        let completion = self.remote.post(source, writes)?;
        let passed_over = self.written != Sequence::NONE && sequence > expected;
        self.written = sequence;
        if !passed_over {
            return Ok(completion);
        }
        // The subscriber looks for the value after the last one where that would stand. A stamp beyond it there
        // tells that the value was passed over, and that the hot line knows the newest.
        let stamp = Write::Word { offset: self.geometry.slot_offset(expected), word: sequence.get() };
        self.remote.post(source, &[stamp])
    }
}
