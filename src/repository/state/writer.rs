use std::sync::Arc;

use crate::id::{Epoch, Sequence};
use crate::layout::header::{HOT_EPOCH, HOT_PUBLISHED, HOT_SEQUENCE, STATIC_OFFSET, StaticHeader};
use crate::layout::state::{
    HEADER_LEN, HEADER_WORDS, HOT_LEN, SlotCheck, SlotHeader, StateGeometry, TRAILER_WORDS, check_word,
    slot_len,
};
use crate::layout::{ByteRange, LINE, WORD};
use crate::memory::{Region, set_quad};
use crate::repository::{TooLong, Writer};
use crate::sync::atomic::{Ordering, fence};

/// Payloads up to this many bytes are assembled in private memory first, so that the checksum and the copy take
/// one pass each; longer ones are not copied twice.
const GATHER_LEN_MAX: usize = 2048;

/// The only writer of a state repository. Publishing does not allocate, block or make system calls.
#[derive(Debug)]
pub(crate) struct StateWriter {
    region: Arc<Region>,
    geometry: StateGeometry,
    epoch: Epoch,
    pub(super) check: SlotCheck,
    last: Sequence,
    /// The payload length in each slot: its tail stamp must not outlive it.
    held_lens: Box<[usize]>,
    /// A slot in private memory.
    scratch: Box<[u64]>,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    /// The sequence of the value.
    pub(crate) sequence: Sequence,
    /// The slot.
    pub(crate) slot: ByteRange,
    /// Its publish time, nanoseconds since the Unix epoch.
    pub(crate) published_ns: u64,
    /// Bytes of the payload.
    pub(crate) payload_len: usize,
}

/// The slot of the value being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenSlot {
    pub(super) sequence: Sequence,
    pub(super) offset: usize,
}

impl Writer for StateWriter {
    type Geometry = StateGeometry;

    fn new(region: Arc<Region>, geometry: StateGeometry, line: &StaticHeader) -> Self {
        assert!(region.len() >= geometry.region_len(), "a region shorter than its geometry");
        region.copy_in(STATIC_OFFSET, &line.emit());
        region.store(HOT_EPOCH, line.epoch.get());
        let scratch = vec![0; slot_len(geometry.payload_len_max()) / WORD].into();
        let held_lens = vec![0; geometry.slot_count() as usize].into();
        let check = SlotCheck::new(line.topic);
        Self { region, geometry, epoch: line.epoch, check, last: Sequence::NONE, held_lens, scratch }
    }

    fn begin_after(&mut self, sequence: Sequence) {
        self.last = sequence;
    }

    fn last(&self) -> Sequence {
        self.last
    }

    #[inline]
    fn room(&mut self) -> &mut [u8] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
        let (_, room) = bytes.split_at_mut(HEADER_LEN);
        room.split_at_mut(self.geometry.payload_len_max()).0
    }

    #[inline]
    fn held(&self) -> &[u8] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.scratch);
        bytes.split_at(HEADER_LEN).1
    }
}

impl StateWriter {
    /// Continues after this value, given the payload length in each slot; 0 where the value is not whole.
    pub(super) fn resume(&mut self, last: Sequence, held_lens: Box<[usize]>) {
        (self.last, self.held_lens) = (last, held_lens);
    }

    /// Returns the repository's memory.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns its geometry.
    pub(crate) fn geometry(&self) -> StateGeometry {
        self.geometry
    }

    /// Publishes bytes in private memory.
    #[inline]
    pub(crate) fn publish(
        &mut self,
        payload: &[u8],
        encoding: u16,
        now_ns: u64,
    ) -> Result<Committed, TooLong> {
        let (len, max) = (payload.len(), self.geometry.payload_len_max());
        if len > max {
            return Err(TooLong { len, max });
        }
        if len > GATHER_LEN_MAX {
            return Ok(self.publish_large(payload, encoding, now_ns));
        }
        self.room().split_at_mut(len).0.copy_from_slice(payload);
        Ok(self.publish_filled(len, encoding, now_ns))
    }

    /// Publishes bytes without assembling them in private memory.
    fn publish_large(&mut self, payload: &[u8], encoding: u16, now_ns: u64) -> Committed {
        let header = self.header(payload.len(), encoding, now_ns);
        let mut crc = self.check.of_header(&header);
        crc.update(payload);
        let mut head = [0_u64; LINE / WORD];
        let (words, first) = head.split_at_mut(HEADER_WORDS);
        words.copy_from_slice(&header.emit());
        let first: &mut [u8] = bytemuck::cast_slice_mut(first);
        let (beside, behind) = payload.split_at(first.len().min(payload.len()));
        first.iter_mut().zip(beside).for_each(|(to, from)| *to = *from);

        let open = self.open_slot();
        self.region.copy_in_bytes(open.offset + LINE, behind);
        self.close_slot(open, &header, crc.finish(), &head)
    }

    /// Publishes the value whose payload is so many bytes of [`Self::room`], the first ones.
    ///
    /// # Panics
    ///
    /// When that has fewer.
    #[inline]
    pub(crate) fn publish_filled(&mut self, payload_len: usize, encoding: u16, now_ns: u64) -> Committed {
        let header = self.header(payload_len, encoding, now_ns);
        let words = (slot_len(payload_len) / WORD) - TRAILER_WORDS;
        let (run, _) = self.scratch.split_at_mut(words);
        let Some((head, payload)) = run.split_first_chunk_mut::<HEADER_WORDS>() else {
            unreachable!("a slot has a header")
        };
        set_quad(head, header.emit());
        let payload: &mut [u8] = bytemuck::cast_slice_mut(payload);
        payload.iter_mut().skip(payload_len).for_each(|padding| *padding = 0);
        let checked: &[u8] = bytemuck::cast_slice(run);
        let crc = self.check.of_run(checked.split_at(HEADER_LEN + payload_len).0);

        let open = self.open_slot();
        let (run, _) = self.scratch.split_at(words);
        let (head, rest) = run.split_at(words.min(LINE / WORD));
        self.region.copy_in(open.offset + LINE, rest);
        self.stamp_slot(open, payload_len, crc, head);
        self.announce(open, &header)
    }

    /// Opens the idle slot: from here on its previous value is invalid.
    pub(super) fn open_slot(&mut self) -> OpenSlot {
        let sequence = self.last.next();
        let offset = self.geometry.slot_offset(sequence);
        let held = self.held_lens.get(self.geometry.slot_index(sequence)).copied().unwrap_or(0);
        // Release: a reader that sees this tail stamp (then has an Acquire fence) also sees the value before it announced, so that it
        // does not take the one replaced here for a newest one that is damaged. C11 7.17.4, paragraph 4: a release store synchronizes
        // with an acquire fence behind a load that reads from it. x86-64 stores in program order anyway; ARM64 does not without the STLR
        // that this is (Arm Architecture Reference Manual, B2.3, Store-Release). The fence below comes too late for this word. Pairs
        // with the fences in `StateReader` and `StateLanding`.
        self.region.store_release(offset + StateGeometry::tail_offset(held), sequence.get());
        // Release: a reader that sees a word of the new value (then has an Acquire fence) also sees the old tail stamp
        // gone. Pairs with the fence in `StateReader`.
        fence(Ordering::Release);
        OpenSlot { sequence, offset }
    }

    /// Completes the slot, which is written except for its first line, and makes it the newest.
    pub(super) fn close_slot(
        &mut self,
        open: OpenSlot,
        header: &SlotHeader,
        crc: u32,
        head: &[u64],
    ) -> Committed {
        self.stamp_slot(open, header.payload_len as usize, crc, head);
        self.announce(open, header)
    }

    /// Writes the trailer, then the first line. Waiting readers poll that line, so it is
    /// written at once.
    #[inline]
    fn stamp_slot(&self, open: OpenSlot, payload_len: usize, crc: u32, head: &[u64]) {
        let tail = StateGeometry::tail_offset(payload_len);
        self.region.store(open.offset + tail - WORD, check_word(crc));
        self.region.store(open.offset + tail, open.sequence.get());
        // The Release of the first word publishes the slot. Pairs with the Acquire load in `StateReader`.
        self.region.copy_in_head(open.offset, head);
    }

    /// Makes a stamped slot the newest.
    #[inline]
    fn announce(&mut self, open: OpenSlot, header: &SlotHeader) -> Committed {
        let sequence = open.sequence;
        let payload_len = header.payload_len as usize;
        self.region.store(HOT_LEN, header.payload_len.into());
        self.region.store(HOT_PUBLISHED, header.published_ns);
        // Release: a reader that sees the newest sequence sees its slot. Pairs with the Acquire load in `StateReader`.
        self.region.store_release(HOT_SEQUENCE, sequence.get());
        self.last = sequence;

        if let Some(held) = self.held_lens.get_mut(self.geometry.slot_index(sequence)) {
            *held = payload_len;
        }
        let slot = self.geometry.slot_range(sequence, payload_len);
        Committed { sequence, slot, published_ns: header.published_ns, payload_len }
    }

    /// The header of the next value.
    pub(super) fn header(&self, payload_len: usize, encoding: u16, now_ns: u64) -> SlotHeader {
        SlotHeader {
            sequence: self.last.next(),
            epoch: self.epoch.get(),
            payload_len: u32::try_from(payload_len).unwrap_or(u32::MAX),
            encoding,
            published_ns: now_ns,
        }
    }
}
