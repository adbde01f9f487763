use std::collections::VecDeque;
use std::sync::Arc;

use crate::chain::ErrorChain;
use crate::fabric::{Completion, FabricError, Placement, Registration, RemoteWrite, Write};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The writer of one landing region, with its batches in flight.
#[derive(Debug)]
pub(crate) struct LandingWriter<B> {
    remote: Box<dyn RemoteWrite>,
    /// Set by the node when the subscriber is gone, and by this writer on a failure.
    closed: Arc<AtomicBool>,
    /// Oldest first.
    batches: VecDeque<B>,
    /// The words of a write become visible in order; otherwise only whole writes do.
    pub(super) has_word_order: bool,
    /// A write may never arrive.
    pub(super) may_lose: bool,
}

impl<B> LandingWriter<B> {
    /// No batch is in flight yet; up to `batches_max` may be.
    pub(super) fn new(remote: Box<dyn RemoteWrite>, closed: Arc<AtomicBool>, batches_max: usize) -> Self {
        let placement = remote.placement();
        let (has_word_order, may_lose) = (placement == Placement::Words, placement == Placement::Lossy);
        Self { remote, closed, batches: VecDeque::with_capacity(batches_max), has_word_order, may_lose }
    }

    /// The flag that closes it.
    pub(super) fn closed(&self) -> &Arc<AtomicBool> {
        &self.closed
    }

    /// Whether the landing region is closed.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The batches in flight, oldest first, as of the last poll.
    #[inline]
    pub(super) fn batches(&self) -> &VecDeque<B> {
        &self.batches
    }

    /// Whether no batch was in flight at the last poll.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Posts a batch of writes. A failure closes the landing region and returns `None`.
    #[inline]
    pub(super) fn post(&mut self, source: &Registration, writes: &[Write], batch: B) -> Option<Completion> {
        match self.remote.post(source, writes) {
            Ok(Completion::Done) => {
                // Usually it is empty.
                if !self.batches.is_empty() {
                    self.batches.clear();
                }
                Some(Completion::Done)
            }
            Ok(Completion::Pending) => {
                self.batches.push_back(batch);
                Some(Completion::Pending)
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Posts those of these writes that are present, see [`Self::post`].
    #[inline]
    pub(super) fn post_those<const N: usize>(
        &mut self,
        source: &Registration,
        those: [Option<Write>; N],
        batch: B,
    ) -> Option<Completion> {
        let mut writes = [Write::Word { offset: 0, word: 0 }; N];
        let count = writes.iter_mut().zip(those.into_iter().flatten()).map(|(to, write)| *to = write).count();
        self.post(source, writes.split_at(count).0, batch)
    }

    /// Polls for completed batches, and returns them.
    pub(super) fn arrived(&mut self) -> impl Iterator<Item = B> {
        let under_way = match self.remote.in_flight() {
            Ok(count) => count,
            Err(error) => self.fail(&error).unwrap_or(usize::MAX),
        };
        self.batches.drain(..self.batches.len().saturating_sub(under_way))
    }

    /// A word of the landing region, once read. A failure closes it.
    pub(super) fn fetch_word(&mut self, offset: usize) -> Option<u64> {
        self.remote.fetch_word(offset).unwrap_or_else(|error| self.fail(&error))
    }

    #[cold]
    fn fail<R>(&self, error: &FabricError) -> Option<R> {
        tracing::debug!(target: "fabricast", error = %ErrorChain(error), "closing a landing region: a write failed");
        self.closed.store(true, Ordering::Relaxed);
        None
    }
}
