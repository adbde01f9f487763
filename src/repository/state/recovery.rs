//! Continues the repository of a writer that is gone.

use std::sync::Arc;

use super::writer::StateWriter;
use crate::id::{Epoch, Sequence};
use crate::layout::WORD;
use crate::layout::header::{HOT_PUBLISHED, HOT_SEQUENCE, StaticHeader};
use crate::layout::state::{
    HEADER_LEN, HEADER_WORDS, HOT_LEN, SLOT_SIZES, SlotCheck, SlotHeader, StateGeometry, TRAILER_WORDS,
    parse_check_word, slot_len,
};
use crate::memory::Region;
use crate::repository::{Continued, Damage, Recover, Writer};

impl Recover for StateWriter {
    /// Continues after the newest whole value.
    ///
    /// A writer that ended within a publish has spoilt the slot of an earlier value only, or has completed the slot of the next one:
    /// readers may have taken that already, so it counts as published.
    fn recover(
        region: Arc<Region>,
        geometry: StateGeometry,
        line: &StaticHeader,
        continued: &Continued,
    ) -> Result<Self, Damage> {
        let mut slots = Slots::new(&region, geometry, line);
        let hot = continued.check_newest(Sequence::new(region.load(HOT_SEQUENCE)), HOT_SEQUENCE)?;
        let newest = match slots.value(hot.next()) {
            Some(header) => Some(header),
            None if hot <= continued.after => None,
            None => {
                let what = "the newest value";
                Some(slots.value(hot).ok_or_else(|| Damage { what, offset: geometry.slot_offset(hot) })?)
            }
        };
        let from = newest.map_or(continued.after, |header| header.sequence);
        if let Some(slot) = (0..geometry.slot_count().into())
            .map(Sequence::new)
            .find(|slot| slots.whole(*slot).is_some_and(|header| header.sequence > from))
        {
            return Err(Damage { what: "a value past the newest", offset: geometry.slot_offset(slot) });
        }
        let held_lens =
            (0..geometry.slot_count().into()).map(|slot| slots.held_len(Sequence::new(slot))).collect();
        let mut writer = Self::new(Arc::clone(&region), geometry, line);
        writer.resume(from, held_lens);
        if let Some(SlotHeader { sequence, payload_len, published_ns, .. }) = newest {
            region.store(HOT_LEN, payload_len.into());
            region.store(HOT_PUBLISHED, published_ns);
            // Release: as in `StateWriter::announce`.
            region.store_release(HOT_SEQUENCE, sequence.get());
        }
        Ok(writer)
    }
}

/// The slots of a repository that nobody writes.
struct Slots<'a> {
    region: &'a Region,
    geometry: StateGeometry,
    check: SlotCheck,
    epoch: Epoch,
    /// A slot in private memory.
    copy: Box<[u64]>,
}

impl<'a> Slots<'a> {
    fn new(region: &'a Region, geometry: StateGeometry, line: &StaticHeader) -> Self {
        let copy = vec![0; slot_len(geometry.payload_len_max()) / WORD].into();
        Self { region, geometry, check: SlotCheck::new(line.topic), epoch: line.epoch, copy }
    }

    /// The header of this value, if its slot holds it and it is whole.
    fn value(&mut self, sequence: Sequence) -> Option<SlotHeader> {
        self.whole(sequence).filter(|header| header.sequence == sequence)
    }

    /// The length of the value in the slot of this sequence, if it is whole. Otherwise no reader can take it, whatever its stamps are.
    fn held_len(&mut self, sequence: Sequence) -> usize {
        self.whole(sequence).map_or(0, |header| header.payload_len as usize)
    }

    /// The header of the value in the slot of this sequence, if it is whole.
    fn whole(&mut self, sequence: Sequence) -> Option<SlotHeader> {
        let offset = self.geometry.slot_offset(sequence);
        let len = SlotHeader::payload_len(self.region.load(offset + SLOT_SIZES)) as usize;
        if len > self.geometry.payload_len_max() {
            return None;
        }
        let (run, _) = self.copy.split_at_mut_checked(slot_len(len) / WORD)?;
        self.region.copy_out(offset, run);
        let (checked, [check, tail]) = run.split_last_chunk::<TRAILER_WORDS>()?;
        let header = SlotHeader::parse(*checked.first_chunk::<HEADER_WORDS>()?);
        let bytes: &[u8] = bytemuck::cast_slice(checked);
        let crc = self.check.of_run(bytes.get(..HEADER_LEN + len)?);
        let is_whole = header.sequence != Sequence::NONE
            && header.payload_len as usize == len
            && header.epoch == self.epoch.get()
            && *tail == header.sequence.get()
            && parse_check_word(*check) == Some(crc);
        is_whole.then_some(header)
    }
}
