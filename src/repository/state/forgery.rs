//! Values that nobody published.

use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::state::{SlotCheck, SlotHeader, check_word, slot_len};
use crate::layout::{ByteRange, WORD};
use crate::memory::{Protection, Region};

/// The slot of a state topic with this payload of untyped bytes, valid in every respect, in memory of its own.
pub(crate) fn slot(topic: TopicId, epoch: Epoch, sequence: u64, payload: &[u8]) -> (Region, ByteRange) {
    assert!(payload.len().is_multiple_of(WORD), "whole words");
    let len = u32::try_from(payload.len()).unwrap();
    let sequence = Sequence::new(sequence);
    let header = SlotHeader { sequence, epoch: epoch.get(), payload_len: len, encoding: 3, published_ns: 5 };
    let mut crc = SlotCheck::new(topic).of_header(&header);
    crc.update(payload);
    let mut words = header.emit().to_vec();
    words.extend(payload.chunks(WORD).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())));
    words.extend([check_word(crc.finish()), sequence.get()]);
    assert_eq!(words.len() * WORD, slot_len(payload.len()));
    let memory = Region::allocate(4096, Protection::PeersRead).unwrap();
    words.iter().enumerate().for_each(|(index, word)| memory.store(index * WORD, *word));
    (memory, ByteRange { offset: 0, len: words.len() * WORD })
}
