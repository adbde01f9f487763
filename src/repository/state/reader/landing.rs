//! Reading a landing region where only whole writes appear in order.
//!
//! The publisher writes each value with one write, and the hot line only now and then. So the reader goes from slot to
//! slot. What begins to appear in one may take a while to be all there; but then the value before it is, as it was
//! written before.

use super::{SlotRejection, StateReader, spin};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::{SLOT_SIZES, SlotHeader, StateGeometry};
use crate::limits;
use crate::memory::Region;
use crate::repository::{ReadFailure, Taken};

/// Where a walk over the slots has come to.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// The newest value that a slot or the hot line tells of.
    newest: Sequence,
    /// The newest one before it that one of them told of.
    before: Sequence,
}

impl Walk {
    /// Takes note that this value is told of.
    fn reach(&mut self, sequence: Sequence) {
        if sequence > self.newest {
            self.before = std::mem::replace(&mut self.newest, sequence);
        }
    }
}

impl StateReader {
    /// The newest whole value of a landing region where only whole writes appear in order, if it is newer than the
    /// last one. A value that is not all there yet is waited for, but not for ever: see
    /// [`limits::ARRIVAL_SETTLED_NS`]. The time is only asked for then.
    #[inline]
    pub(super) fn follow_writes(
        &mut self,
        memory: &Region,
        now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure> {
        loop {
            let walk = self.walk(memory);
            if walk.newest == self.last {
                return Ok(None);
            }
            let rejection = match self.take_stamped(memory, walk.newest) {
                Ok(taken) => return Ok(Some(taken)),
                Err(rejection) => rejection,
            };
            if self.has_settled(walk.newest, now_ns()) {
                return Err(self.reject(walk.newest, rejection));
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

    /// Looks at the slot after the last value's, and goes on from there for as long as each has what follows, once
    /// around at most. A later value than what follows, which is there when this reader was overtaken, is gone on from,
    /// or that of the hot line, if that is newer.
    #[inline]
    fn walk(&self, memory: &Region) -> Walk {
        let mut walk = Walk { newest: self.last, before: self.last };
        for _ in 0..=self.geometry.slot_count() {
            let next = walk.newest.next();
            if next == Sequence::NONE {
                // No honest writer gets there.
                break;
            }
            // Acquire: what is copied later is not older than what is found here.
            let head = Sequence::new(memory.load_acquire(self.geometry.slot_offset(next)));
            if head != next {
                let hot = Sequence::new(memory.load_acquire(HOT_SEQUENCE));
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

    /// Whether the slot of this sequence has its head stamp.
    fn is_headed(&self, memory: &Region, sequence: Sequence) -> bool {
        memory.load_acquire(self.geometry.slot_offset(sequence)) == sequence.get()
    }

    /// Copies the slot of this sequence and checks the copy, if it has both stamps: of a value that is not all there
    /// yet nothing is copied.
    #[inline]
    fn take_stamped(&mut self, memory: &Region, sequence: Sequence) -> Result<Taken, SlotRejection> {
        let offset = self.geometry.slot_offset(sequence);
        let len = SlotHeader::payload_len(memory.load(offset + SLOT_SIZES)) as usize;
        // A length that cannot be has no tail stamp: that it cannot be is found below.
        let possible = len <= self.geometry.payload_len_max();
        if possible && memory.load(offset + StateGeometry::tail_offset(len)) != sequence.get() {
            return Err(SlotRejection::Torn);
        }
        self.take(memory, sequence)
    }

    /// Whether this value has not been all there for so long that nothing of it is on its way any more.
    #[cold]
    fn has_settled(&mut self, sequence: Sequence, now_ns: u64) -> bool {
        if self.suspect.replace(sequence) != Some(sequence) {
            self.suspect_since_ns = now_ns;
        }
        now_ns.saturating_sub(self.suspect_since_ns) >= limits::ARRIVAL_SETTLED_NS
    }

    /// Counts a failed copy of a value that must have been whole: it is wrong, or was overwritten meanwhile. An error
    /// when there have been enough of them.
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
