//! Reading a landing region where writes become visible whole and in order.
//!
//! The publisher writes each value with one write, and the hot line only occasionally. So the reader goes from slot to
//! slot. A value that has begun to appear may be incomplete for a while, but the value before it is complete, because it was
//! written earlier.

use super::{SlotRejection, StateReader, spin};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::{SLOT_SIZES, SlotHeader, StateGeometry};
use crate::limits;
use crate::memory::Region;
use crate::repository::{ReadFailure, Taken};

/// The state of a walk over the slots.
#[derive(Clone, Copy, Debug)]
struct SlotWalk {
    /// The newest value named by a slot or the hot line.
    newest: Sequence,
    /// The newest one named before it.
    before: Sequence,
}

impl SlotWalk {
    /// Records that this value is named.
    fn reach(&mut self, sequence: Sequence) {
        if sequence > self.newest {
            self.before = std::mem::replace(&mut self.newest, sequence);
        }
    }
}

impl StateReader {
    /// The newest whole value of a landing region where writes become visible whole and in order, if it is newer than the
    /// last one. An incomplete value is waited for, but not for ever: see
    /// [`limits::ARRIVAL_SETTLED_NS`]. Only then the clock is read.
    #[inline]
    pub(super) fn follow_writes(
        &mut self,
        memory: &Region,
        now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure> {
        loop {
            if self.has_reported() {
                self.reconsider(memory, |_| true);
            }
            let walk = self.walk(memory);
            if walk.newest == self.last {
                return Ok(None);
            }
            let rejection = match self.take_stamped(memory, walk.newest) {
                Ok(taken) => return Ok(Some(taken)),
                Err(rejection) => rejection,
            };
            if self.has_settled(walk.newest, now_ns()) {
                return Err(self.reject(walk.newest, rejection, memory));
            }
            if walk.before <= self.last || !self.is_headed(memory, walk.before) {
                return Ok(None);
            }
            match self.take_stamped(memory, walk.before) {
                Ok(taken) => return Ok(Some(taken)),
                Err(rejection) => self.contend(&rejection)?,
            }
        }
    }

    /// Reads the slot after the last value's, and continues while each slot has the next value, once
    /// around at most. If a slot has a later value, because this reader was overtaken, it continues from there,
    /// or from the hot line's value if that is newer. A head stamp that no other word confirms counts as none.
    #[inline]
    fn walk(&self, memory: &Region) -> SlotWalk {
        let mut walk = SlotWalk { newest: self.last, before: self.last };
        for _ in 0..=self.geometry.slot_count() {
            let next = walk.newest.next();
            if next == Sequence::NONE {
                // No honest writer gets there.
                break;
            }
            // Acquire: later copies are not older than what is found here.
            let head = Sequence::new(memory.load_acquire(self.geometry.slot_offset(next)));
            if head != next {
                let hot = Sequence::new(memory.load_acquire(HOT_SEQUENCE));
                let is_head = head > next && self.is_plausible_head(memory, head, hot, next);
                let head = if is_head { head } else { Sequence::NONE };
                if head.max(hot) < next {
                    break;
                }
                walk.reach(hot.min(head));
                walk.reach(hot.max(head));
            } else {
                walk.reach(head);
            }
        }
        let beside = Sequence::new(walk.newest.get().saturating_sub(1));
        if walk.before < beside && self.is_headed(memory, beside) {
            walk.before = beside;
        }
        walk
    }

    /// Copies the slot of this sequence and checks the copy, if it has both stamps: an incomplete value
    /// is not copied.
    #[inline]
    fn take_stamped(&mut self, memory: &Region, sequence: Sequence) -> Result<Taken, SlotRejection> {
        let offset = self.geometry.slot_offset(sequence);
        let len = SlotHeader::payload_len(memory.load(offset + SLOT_SIZES)) as usize;
        // An impossible length has no tail stamp: it is detected below.
        let possible = len <= self.geometry.payload_len_max();
        if possible && memory.load(offset + StateGeometry::tail_offset(len)) != sequence.get() {
            return Err(SlotRejection::Torn);
        }
        self.take(memory, sequence)
    }

    /// Whether this value has been incomplete for so long that the rest is not on its way.
    #[cold]
    fn has_settled(&mut self, sequence: Sequence, now_ns: u64) -> bool {
        if self.suspect.replace(sequence) != Some(sequence) {
            self.suspect_since_ns = now_ns;
        }
        now_ns.saturating_sub(self.suspect_since_ns) >= limits::ARRIVAL_SETTLED_NS
    }

    /// Counts a failed copy of a value that must have been whole: it is damaged, or was overwritten meanwhile. Returns an error
    /// after enough of them.
    #[cold]
    fn contend(&mut self, rejection: &SlotRejection) -> Result<(), ReadFailure> {
        self.attempts += 1;
        self.counts.torn_retries += u64::from(matches!(rejection, SlotRejection::Torn));
        if self.attempts < limits::TORN_RETRIES_MAX {
            spin(self.attempts);
            return Ok(());
        }
        Err(ReadFailure::Contended { attempts: std::mem::take(&mut self.attempts) })
    }
}
