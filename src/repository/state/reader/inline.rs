//! Inline values in notices, and their confirmation.
//!
//! A notice only proves that its sender may read the topic. So an inline value is
//! compared with the repository at the next read. The publisher commits a value before it sends the notice: a read
//! posted after the value was taken finds that value, or a later one. Inline values are not taken while a read is in flight, so
//! every read was posted after them.

use super::{Expected, StateReader, UnprovenValue};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::{HEADER_LEN, SLOT_SIZES, SlotHeader, StateGeometry, slot_len};
use crate::layout::{ByteRange, WORD};
use crate::limits;
use crate::memory::Region;
use crate::repository::reader::HOT_LINE;
use crate::repository::{Fetch, ReadFailure, Reader as _, Taken};

impl StateReader {
    /// Takes the slot of this sequence from a notice, and checks it as if fetched. Does nothing if it is not newer than the last value, not
    /// whole, or impossible after what the repository said last: older than that, or too far ahead of it (see
    /// [`limits::NOTICE_LEAD_MAX`]).
    pub(super) fn take_slot(&mut self, slot: &[u64], sequence: Sequence) -> Option<Taken> {
        let is_first = !self.is_unproven();
        let proven = if is_first { self.last } else { self.unproven.proven };
        let said = self.said.max(proven);
        let lead = sequence.get().saturating_sub(said.get());
        let is_possible = sequence > self.last && sequence >= self.said && lead <= limits::NOTICE_LEAD_MAX;
        if self.unproven.is_off || !is_possible {
            return None;
        }
        let len = SlotHeader::payload_len(*slot.get(SLOT_SIZES / WORD)?) as usize;
        let words = slot_len(len.min(self.geometry.payload_len_max())) / WORD;
        let slot = slot.get(..words)?;
        let (tail, run) = slot.split_last()?;
        if len > self.geometry.payload_len_max() {
            return None;
        }
        self.slot.get_mut(..run.len())?.copy_from_slice(run);
        let (received, conflated) = (self.counts.received, self.counts.conflated);
        let taken = self.verify(sequence, len, *tail).ok()?;
        if is_first {
            let is_off = self.unproven.is_off;
            let kept = std::mem::take(&mut self.unproven.slot);
            self.unproven = UnprovenValue { slot: kept, proven, received, conflated, is_off };
        }
        self.unproven.slot.clear();
        self.unproven.slot.extend_from_slice(slot);
        Some(taken)
    }

    /// Plans a fetch to compare the last value with its slot in the repository, if that has this length.
    pub(super) fn proof(&self, payload_len: usize) -> Fetch<Expected> {
        let slot = self.geometry.slot_range(self.last, payload_len);
        Fetch { ranges: [HOT_LINE, slot], purpose: Expected::Proof(self.last) }
    }

    /// Compares the fetched slot with the last value, which came inline; returns what to fetch before that is possible. The words
    /// may be of different times, so only a whole slot can contradict it.
    pub(super) fn prove(
        &mut self,
        mirror: &Region,
        fetched: &Fetch<Expected>,
        sequence: Sequence,
    ) -> Result<Option<Fetch<Expected>>, ReadFailure> {
        if sequence != self.last || !self.is_unproven() {
            return Ok(None);
        }
        let newest = Sequence::new(mirror.load(HOT_SEQUENCE));
        if newest < sequence {
            return Err(self.withdraw(newest));
        }
        let slot = fetched.ranges[1];
        let is_same = |(index, word): (usize, &u64)| mirror.load(slot.offset + index * WORD) == *word;
        let mut words = self.unproven.slot.iter().enumerate();
        if slot.len < self.unproven.slot.len() * WORD || !words.all(is_same) {
            let len = SlotHeader::payload_len(mirror.load(slot.offset + SLOT_SIZES)) as usize;
            if len <= self.geometry.payload_len_max() && slot_len(len) > slot.len {
                return Ok(Some(self.proof(len)));
            }
            if self.holds_another(mirror, slot, len) {
                return Err(self.withdraw(newest));
            }
        }
        // Otherwise a later value has already overwritten it.
        self.unproven.slot.clear();
        Ok(None)
    }

    /// Whether this slot holds a whole value of the last one's sequence with other bytes. Padding may be of a later value.
    fn holds_another(&mut self, mirror: &Region, slot: ByteRange, len: usize) -> bool {
        if len > self.geometry.payload_len_max() {
            return false;
        }
        let (run, _) = self.slot.split_at_mut(slot_len(len) / WORD - 1);
        mirror.copy_out(slot.offset, run);
        let tail = mirror.load(slot.offset + StateGeometry::tail_offset(len));
        let bytes = |words| bytemuck::cast_slice::<u64, u8>(words).get(..HEADER_LEN + len);
        self.inspect(self.last, len, tail).is_ok() && bytes(&self.slot) != bytes(&self.unproven.slot)
    }

    /// Goes back to the last confirmed value, and takes no more inline values.
    #[cold]
    fn withdraw(&mut self, found: Sequence) -> ReadFailure {
        let UnprovenValue { proven, received, conflated, .. } = self.unproven;
        let told = std::mem::replace(&mut self.last, proven);
        self.counts.withdrawn += self.counts.received - received;
        self.counts.contradicted += 1;
        self.unproven.slot.clear();
        self.unproven.is_off = true;
        self.counts.conflated = conflated;
        (self.keeps_up, self.attempts, self.suspect) = (false, 0, None);
        ReadFailure::Contradicted { first: proven.next(), told, found }
    }
}
