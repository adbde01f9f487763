use std::sync::Arc;

use crate::id::{Sequence, SlowPolicy};
use crate::layout::progress::{Progress, RELEASED};
use crate::memory::Region;
use crate::repository::{Lost, Reader, SubscriberStats};

/// Reports a subscriber's progress in its slot, for the publisher's node to read.
#[derive(Debug)]
pub(crate) struct ProgressReport {
    /// The slot, in this process's memory.
    slot: Arc<Region>,
    policy: SlowPolicy,
    said: Progress,
    /// Records from the one after this up to the other may have been overwritten before the subscriber attached.
    missed: [Sequence; 2],
}

impl ProgressReport {
    /// Reports in this slot.
    pub(crate) fn new(slot: Arc<Region>, policy: SlowPolicy) -> Self {
        Self { slot, policy, said: Progress::default(), missed: [Sequence::NONE; 2] }
    }

    /// Reports where this reader begins, in a log with this newest record.
    pub(super) fn begin(&mut self, reader: &impl Reader, is_landing: bool, newest: Sequence) {
        self.missed = [reader.last(), newest];
        self.tell(reader, is_landing);
    }

    /// The slot.
    #[cfg(test)]
    pub(super) fn slot(&self) -> &Arc<Region> {
        &self.slot
    }

    /// Whether the publisher was asked to wait for the subscriber.
    pub(super) fn blocks(&self) -> bool {
        self.policy == SlowPolicy::Block
    }

    /// Whether the subscriber is disconnected before it would lose these records. Records that were gone before it attached do not count,
    /// and are noted as reported.
    pub(super) fn disconnects(&mut self, lost: &Lost) -> bool {
        let [before, newest] = &mut self.missed;
        let was_gone = lost.first == before.next() && lost.first <= *newest;
        if was_gone {
            // What the publisher never had may be followed by what it had overwritten.
            *before = Sequence::new(lost.first.get().saturating_add(lost.count).saturating_sub(1));
        }
        self.policy == SlowPolicy::Disconnect && !was_gone
    }

    /// Reports how far this reader is, if that has changed. Stores to memory only.
    #[inline]
    pub(super) fn tell(&mut self, reader: &impl Reader, is_landing: bool) {
        let (released, last) = (reader.released(is_landing), reader.last().get());
        if (released, last) != (self.said.released, self.said.last) {
            let SubscriberStats { received, lapped, cut_off, torn_retries, rejected, .. } = reader.counts();
            let lost = lapped.saturating_add(cut_off);
            self.said = Progress { released, last, received, lost, retries: torn_retries, rejected };
            self.said.store(&self.slot);
        }
    }

    /// Releases everything: the subscriber reads no more.
    pub(super) fn end(&self) {
        self.slot.store(RELEASED, u64::MAX);
    }
}
