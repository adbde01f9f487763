//! A state repository under its reader.

use std::sync::Arc;

use super::input::Input;
use super::regions::{EPOCH, Received, STEPS_MAX, TOPIC, Way, World, payload};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::{
    HEADER_WORDS, SlotCheck, SlotHeader, StateGeometry, check_word, parse_check_word,
};
use crate::layout::{Geometry, WORD};
use crate::memory::{Protection, Region};
use crate::repository::state::{StateReader, StateWriter};
use crate::repository::{GrantedAt, Reader, Writer};

const PAYLOAD_LEN_MAX: usize = 72;

/// Steps of a writer, of its reader, and of what changes the memory between them.
pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let slots = 2_u32 << (input.byte() % 3);
    let geometry = StateGeometry::new(slots, PAYLOAD_LEN_MAX).expect("a geometry");
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).expect("memory"));
    let header = Geometry::from(geometry).static_header(EPOCH, TOPIC, 0);
    let mut writer = StateWriter::new(Arc::clone(&region), geometry, &header);
    let open = |newest| {
        let granted = GrantedAt { newest, after: Sequence::NONE };
        StateReader::open(&geometry.into(), (EPOCH, TOPIC), granted, ()).expect("its geometry")
    };
    let mut world = World::new(&mut input, &region, geometry.region_len(), open(Sequence::NONE));
    let mut last = Sequence::NONE;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let newest = writer.last();
        let check = |received: Received<'_, StateReader>| check(&received, newest, &mut last);
        match input.byte() % 24 {
            choice @ 0..=11 => world.step(choice, &mut input, check),
            12 => forge(&mut world, &geometry, &mut input),
            13 => {
                let mut before = world.replace(open(newest));
                world.reader.resume(&mut before, input.byte().is_multiple_of(2));
                last = Sequence::NONE;
            }
            14 if world.way() == Way::Fetched => {
                let range = geometry.slot_range(newest, payload(newest.get(), PAYLOAD_LEN_MAX).len());
                let mut words = vec![0; range.len / WORD];
                region.copy_out(range.offset, &mut words);
                world.take_inline(&words, (newest, 0), &mut |received| {
                    self::check(&received, newest, &mut last)
                });
                // What was inline is withdrawn where the repository differs.
                last = Sequence::NONE;
            }
            _ => {
                let number = newest.get() + 1;
                writer.publish(&payload(number, PAYLOAD_LEN_MAX), 1, number).expect("it fits");
            }
        }
    }
    // Whatever happened before, the next value arrives, wrong bits of earlier ones or not.
    let number = writer.last().get() + 1;
    writer.publish(&payload(number, PAYLOAD_LEN_MAX), 1, number).expect("it fits");
    let newest = writer.last();
    world.receive_all(|received| check(&received, newest, &mut last));
    assert!(world.is_forged() || last == newest, "{last} is the last of {newest}");
}

/// A slot whose checksum is right, whatever it holds.
fn forge(world: &mut World<StateReader>, geometry: &StateGeometry, input: &mut Input<'_>) {
    world.forge();
    let (sequence, word) = (Sequence::new(input.byte().into()), input.word());
    let payload = input.bytes(PAYLOAD_LEN_MAX);
    let payload_len = u32::try_from(payload.len()).unwrap_or_default();
    let epoch = if word.is_multiple_of(2) { EPOCH.get() } else { word };
    let header = SlotHeader { sequence, epoch, payload_len, encoding: 1, published_ns: word };
    let mut crc = SlotCheck::new(TOPIC).of_header(&header);
    crc.update(payload);
    let offset = geometry.slot_offset(sequence);
    let memory = world.memory();
    memory.copy_in(offset, &header.emit());
    memory.copy_in_bytes(offset + HEADER_WORDS * WORD, payload);
    let tail = offset + StateGeometry::tail_offset(payload.len());
    memory.store(tail - WORD, check_word(crc.finish()));
    memory.store(tail, sequence.get());
    memory.store(HOT_SEQUENCE, sequence.get());
}

fn check(received: &Received<'_, StateReader>, newest: Sequence, last: &mut Sequence) {
    let (value, sequence) = (&received.value, received.value.meta.sequence);
    assert!(value.payload.len() <= PAYLOAD_LEN_MAX && sequence != Sequence::NONE);
    let (head, behind) = received.around(received.reader.held(), HEADER_WORDS);
    let header = SlotHeader::parse(*head.first_chunk().expect("a header"));
    let mut crc = SlotCheck::new(TOPIC).of_header(&header);
    crc.update(value.payload);
    assert_eq!(behind.first().copied().and_then(parse_check_word), Some(crc.finish()), "an unchecked value");
    assert_eq!((header.sequence, header.epoch), (sequence, EPOCH.get()));
    assert!(sequence > *last, "{sequence} after {last}");
    *last = sequence;
    if received.is_genuine {
        assert!(sequence <= newest, "{sequence} is not published yet");
        assert_eq!(value.payload, payload(sequence.get(), PAYLOAD_LEN_MAX));
        assert_eq!(value.meta.published_ns, sequence.get());
    }
}

/// Programs of random steps, and of wrong bits in words that name values, for each way of receiving.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = super::tests::programs(24, 3);
    let geometry = StateGeometry::new(8, PAYLOAD_LEN_MAX).expect("a geometry");
    let place = |offset| u16::try_from(256 + offset / WORD).expect("a small region").to_le_bytes();
    let [low, high] = place(geometry.slot_offset(Sequence::NONE));
    let [first, second] = place(0);
    // The head stamp of the next slot, and the hot line.
    for (offset, bit) in [(geometry.slot_offset(Sequence::new(4)), 40), (HOT_SEQUENCE, 40), (HOT_SEQUENCE, 2)]
    {
        // Mapped memory, and landing regions where words or writes appear in order.
        for way in [0, 2, 3] {
            let [from, to] = place(offset);
            // Three values are written and received, a bit is wrong, and the reader waits and reads.
            let mut seed =
                [&[2, way][..], &[15, 4, low, high, 255, 4, first, second, 255, 0].repeat(3)].concat();
            seed.extend([5, from, to, bit, 0, 7, 255, 7, 255, 7, 255, 7, 255, 7, 255, 0, 0]);
            seeds.push(seed);
        }
    }
    seeds
}
