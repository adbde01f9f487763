use std::collections::VecDeque;
use std::sync::Arc;

use crate::fabric::{Completion, FabricError, Placement, Registration, RemoteWrite, Write};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The writes to one landing region, and those batches of them that are under way.
#[derive(Debug)]
pub(crate) struct LandingWriter<B> {
    remote: Box<dyn RemoteWrite>,
    /// Set by the node when the subscriber is gone, and here when writing fails.
    closed: Arc<AtomicBool>,
    /// Oldest first.
    batches: VecDeque<B>,
    /// The words of a write become visible in order. Otherwise only whole writes do.
    pub(super) has_word_order: bool,
    /// A write may never arrive.
    pub(super) may_lose: bool,
}

impl<B> LandingWriter<B> {
    /// Nothing under way yet. There is room for so many batches.
    pub(super) fn new(remote: Box<dyn RemoteWrite>, closed: Arc<AtomicBool>, batches_max: usize) -> Self {
        let placement = remote.placement();
        let (has_word_order, may_lose) = (placement == Placement::Words, placement == Placement::Lossy);
        Self { remote, closed, batches: VecDeque::with_capacity(batches_max), has_word_order, may_lose }
    }

    /// What closes it.
    pub(super) fn closed(&self) -> &Arc<AtomicBool> {
        &self.closed
    }

    /// Whether the landing region is of no more use.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The batches that were under way when that was last asked for, oldest first.
    #[inline]
    pub(super) fn batches(&self) -> &VecDeque<B> {
        &self.batches
    }

    /// Whether nothing was under way when that was last asked for.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Posts a batch of writes. `None` when that fails, which closes it.
    #[inline]
    pub(super) fn post(&mut self, source: &Registration, writes: &[Write], batch: B) -> Option<Completion> {
        match self.remote.post(source, writes) {
            Ok(Completion::Done) => {
                // Most often there is none.
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

    /// The batches that have arrived since that was last asked for, which are under way no more.
    pub(super) fn arrived(&mut self) -> impl Iterator<Item = B> {
        let under_way = match self.remote.in_flight() {
            Ok(count) => count,
            Err(error) => self.fail(&error).unwrap_or(usize::MAX),
        };
        self.batches.drain(..self.batches.len().saturating_sub(under_way))
    }

    /// A word of the landing region, when it has come. What fails closes it.
    pub(super) fn fetch_word(&mut self, offset: usize) -> Option<u64> {
        self.remote.fetch_word(offset).unwrap_or_else(|error| self.fail(&error))
    }

    #[cold]
    fn fail<R>(&self, error: &FabricError) -> Option<R> {
        tracing::debug!(target: "fabricast", %error, "a landing region cannot be written any more");
        self.closed.store(true, Ordering::Relaxed);
        None
    }
}
