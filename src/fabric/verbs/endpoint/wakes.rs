use std::collections::VecDeque;
use std::sync::Arc;

use super::tracker::BatchTracker;
use crate::fabric::verbs::message::Malformed;
use crate::limits::verbs::WAKE_RECEIVES;
use crate::sync::atomic::Ordering;

/// The wake-ups that an endpoint sends its peer.
///
/// Each takes one of the peer's receives, of which the credits are a count. A batch that is posted without credit *owes* its wake-up, which
/// is sent by itself once there is credit again. Batches to the same region share the wake-up that they owe.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct OutgoingWakes {
    credits: u16,
    /// The trackers of regions whose writes may owe a wake-up, each once.
    owing: VecDeque<Arc<BatchTracker>>,
}

impl OutgoingWakes {
    pub(in crate::fabric::verbs) fn new() -> Self {
        Self { credits: WAKE_RECEIVES, owing: VecDeque::new() }
    }

    /// The number with which the last write of the next batch wakes the peer, if it can.
    #[inline]
    pub(in crate::fabric::verbs) fn immediate(&self, tracker: &BatchTracker) -> Option<u32> {
        tracker.token().filter(|_| self.credits > 0)
    }

    /// Records a batch as posted, whose last write wakes the peer or not.
    #[inline]
    pub(in crate::fabric::verbs) fn posted(&mut self, tracker: &Arc<BatchTracker>, wakes: bool) {
        if wakes {
            self.credits -= 1;
            // It is behind all batches that owe one.
            tracker.owes.store(false, Ordering::Relaxed);
        } else if tracker.token().is_some() {
            self.owe(tracker);
        }
    }

    /// Owes a wake-up for what was posted until now.
    pub(in crate::fabric::verbs) fn owe(&mut self, tracker: &Arc<BatchTracker>) {
        tracker.owes.store(true, Ordering::Relaxed);
        if !tracker.is_owing.swap(true, Ordering::Relaxed) {
            self.owing.push_back(Arc::clone(tracker));
        }
    }

    /// Forgets what a region's writes owe: nothing is written to it any more.
    pub(in crate::fabric::verbs) fn forget(&mut self, tracker: &Arc<BatchTracker>) {
        if tracker.is_owing.swap(false, Ordering::Relaxed) {
            self.owing.retain(|owing| !Arc::ptr_eq(owing, tracker));
        }
    }

    /// Takes the next wake-up to be sent by itself, with its credit: the number, and for which region.
    pub(in crate::fabric::verbs) fn next(&mut self) -> Option<(u32, Arc<BatchTracker>)> {
        while self.credits > 0 {
            let tracker = self.owing.pop_front()?;
            tracker.is_owing.store(false, Ordering::Relaxed);
            let token = tracker.token().filter(|_| tracker.owes.swap(false, Ordering::Relaxed));
            if let Some(token) = token {
                self.credits -= 1;
                return Some((token, tracker));
            }
        }
        None
    }

    /// Whether [`Self::next`] may return something.
    pub(in crate::fabric::verbs) fn is_due(&self) -> bool {
        self.credits > 0 && !self.owing.is_empty()
    }

    /// Adds the credits that a peer's frame returns.
    pub(in crate::fabric::verbs) fn credit(&mut self, credits: u16) -> Result<(), Malformed> {
        let sum = self.credits.saturating_add(credits);
        if sum > WAKE_RECEIVES {
            return Err(Malformed("it returns more credits for wake-ups than it owes"));
        }
        self.credits = sum;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
