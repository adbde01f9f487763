//! Work requests in flight in a send queue.

/// The bit of a work request number that marks the last one of its batch.
const LAST: u64 = 1 << 31;

/// The batches of work requests that a send queue holds.
///
/// A batch keeps a value that its work requests need until the last of them completes. The last one is always
/// signalled; of the others only failed ones complete. Completions arrive in posting
/// order.
#[derive(Debug)]
pub(super) struct WorkTable<W> {
    slots: Vec<Slot<W>>,
    /// Slots without a batch.
    free: Vec<u32>,
    /// Free entries of the queue.
    free_len: u32,
    /// The values of batches that were posted in part.
    abandoned: Vec<W>,
}

#[derive(Debug)]
struct Slot<W> {
    /// Counts the batches of the slot, so that a stale number matches none.
    generation: u32,
    batch: Option<PendingBatch<W>>,
}

#[derive(Debug)]
struct PendingBatch<W> {
    requests: u32,
    work: W,
}

/// Identifies a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchId(u64);

impl BatchId {
    /// The number of one of its work requests.
    #[inline]
    pub(super) fn request(self, is_last: bool) -> u64 {
        if is_last { self.0 | LAST } else { self.0 }
    }
}

impl<W> WorkTable<W> {
    /// Creates the table of a queue with this many entries.
    pub(super) fn new(free_len: u32) -> Self {
        let slots = (0..free_len).map(|_| Slot { generation: 0, batch: None }).collect();
        Self { slots, free: (0..free_len).rev().collect(), free_len, abandoned: Vec::new() }
    }

    /// Free entries.
    #[inline]
    pub(super) fn free_len(&self) -> u32 {
        self.free_len
    }

    /// Batches in flight.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a batch of at least one work request before it is posted. `None` if the queue is full.
    #[inline]
    pub(super) fn begin(&mut self, requests: u32, work: W) -> Option<BatchId> {
        if requests == 0 || requests > self.free_len {
            return None;
        }
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(index as usize)?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.batch = Some(PendingBatch { requests, work });
        self.free_len -= requests;
        Some(BatchId(u64::from(slot.generation) << 32 | u64::from(index)))
    }

    /// Handles the completion of a work request. Returns the batch's value once the batch is complete.
    #[inline]
    pub(super) fn complete(&mut self, request: u64) -> Option<W> {
        if request & LAST == 0 { None } else { self.cancel(BatchId(request & !LAST)) }
    }

    /// The value of this work request's batch.
    pub(super) fn of(&self, request: u64) -> Option<&W> {
        let (index, generation) = split(BatchId(request & !LAST));
        let slot = self.slots.get(index).filter(|slot| slot.generation == generation)?;
        slot.batch.as_ref().map(|batch| &batch.work)
    }

    /// Ends a batch of which only the first work requests were posted, so that it never completes. What those need is kept as long as
    /// the table.
    pub(super) fn abandon(&mut self, id: BatchId) {
        let work = self.cancel(id);
        self.abandoned.extend(work);
    }

    /// Takes a batch out: one of which nothing was posted, or that is complete.
    pub(super) fn cancel(&mut self, id: BatchId) -> Option<W> {
        let (index, generation) = split(id);
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
        let batch = slot.batch.take()?;
        self.free_len += batch.requests;
        self.free.push(u32::try_from(index).ok()?);
        Some(batch.work)
    }
}

/// Slot and generation.
fn split(id: BatchId) -> (usize, u32) {
    let [i0, i1, i2, i3, generation @ ..] = id.0.to_le_bytes();
    (u32::from_le_bytes([i0, i1, i2, i3]) as usize, u32::from_le_bytes(generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::random::{Random, each_seed};
    use std::collections::VecDeque;

    #[test]
    fn a_batch_ends_with_its_last_work_request() {
        let mut table = WorkTable::new(4);
        let first = table.begin(3, "first").unwrap();
        assert_eq!((table.free_len(), table.len()), (1, 1));
        assert_eq!(table.begin(2, "too long"), None);
        assert_eq!(table.begin(0, "empty"), None);
        let second = table.begin(1, "second").unwrap();
        assert_eq!(table.complete(first.request(false)), None);
        assert_eq!(table.of(first.request(false)), Some(&"first"));
        assert_eq!(table.complete(first.request(true)), Some("first"));
        assert_eq!(table.cancel(second), Some("second"));
        assert_eq!((table.free_len(), table.len()), (4, 0));
    }

    #[test]
    fn batch_that_was_posted_in_part_is_awaited_by_nobody_and_kept() {
        let (mut table, value) = (WorkTable::new(4), std::rc::Rc::new(()));
        let id = table.begin(3, std::rc::Rc::clone(&value)).unwrap();
        table.abandon(id);
        assert_eq!((table.free_len(), table.len()), (4, 0));
        // Those that were posted come back.
        assert_eq!((table.complete(id.request(false)), table.of(id.request(false))), (None, None));
        assert_eq!(std::rc::Rc::strong_count(&value), 2);
        drop(table);
        assert_eq!(std::rc::Rc::strong_count(&value), 1);
    }

    #[test]
    fn completions_of_earlier_batches_are_ignored() {
        let mut table = WorkTable::new(1);
        let old = table.begin(1, 1).unwrap();
        assert_eq!(table.complete(old.request(true)), Some(1));
        let new = table.begin(1, 2).unwrap();
        for number in [old.request(true), new.request(true) ^ 1, u64::MAX, 0, LAST] {
            assert_eq!((table.complete(number), table.of(number)), (None, None));
        }
        assert_eq!(table.complete(new.request(true)), Some(2));
    }

    /// Against a queue that completes in order.
    #[test]
    fn room_is_exact_whatever_the_order_of_things() {
        each_seed(20, |seed| {
            let (mut random, mut table, mut queue) = (Random::new(seed), WorkTable::new(16), VecDeque::new());
            let mut serial = 0;
            for _ in 0..2000 {
                if random.once_in(2) {
                    let requests = [1, 2, 3, 6][random.index(4)];
                    let under_way: u32 = queue.iter().map(|(_, requests, _)| *requests).sum();
                    serial += 1;
                    let begun = table.begin(requests, serial);
                    assert_eq!(begun.is_some(), under_way + requests <= 16);
                    queue.extend(begun.map(|id| (id, requests, serial)));
                } else if let Some((id, _, serial)) = queue.pop_front() {
                    assert_eq!(table.complete(id.request(true)), Some(serial));
                }
                assert_eq!(table.len(), queue.len());
            }
        });
    }
}
