//! The repository of a log under its reader.

use std::sync::Arc;

use super::input::Input;
use super::regions::{EPOCH, Received, STEPS_MAX, TOPIC, Way, World, payload};
use crate::id::Sequence;
use crate::layout::log::{FrameCheck, FrameHeader, HEADER_WORDS, HOT_END, HOT_START, LogGeometry};
use crate::layout::{Geometry, WORD};
use crate::memory::{Protection, Region};
use crate::repository::log::{LogReader, LogStart, LogWriter};
use crate::repository::{GrantedAt, Reader, Writer};

const PAYLOAD_LEN_MAX: usize = 72;

/// What a reader has received.
#[derive(Default)]
struct Last {
    sequence: Sequence,
    /// How often the repository had contradicted inline records then.
    contradicted: u64,
}

/// Steps of a writer, of its reader, and of what changes the memory between them.
pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let geometry = LogGeometry::new(512, PAYLOAD_LEN_MAX).expect("a geometry");
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).expect("memory"));
    let header = Geometry::from(geometry).static_header(EPOCH, TOPIC, 0);
    let mut writer = LogWriter::new(Arc::clone(&region), geometry, &header);
    let start = |input: &mut Input<'_>| match input.byte() % 5 {
        0 => LogStart::Earliest,
        1 => LogStart::First,
        2 => LogStart::Resume { epoch: EPOCH, after: Sequence::new(input.byte().into()) },
        3 => LogStart::Back(u64::from(input.byte())),
        _ => LogStart::Newest,
    };
    let open = |newest, start| {
        let granted = GrantedAt { newest, after: Sequence::NONE };
        LogReader::open(&geometry.into(), (EPOCH, TOPIC), granted, start).expect("its geometry")
    };
    let mut begin = start(&mut input);
    let mut world = World::new(&mut input, &region, geometry.region_len(), open(Sequence::NONE, begin));
    let (mut last, mut before_commit) = (Last::default(), 0);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let newest = writer.last();
        let check = |received: Received<'_, LogReader>| check(&received, newest, &mut last);
        match input.byte() % 24 {
            choice @ 0..=11 => world.step(choice, &mut input, check),
            12 => forge(&mut world, &geometry, &mut input),
            13 => {
                begin = start(&mut input);
                let mut before = world.replace(open(newest, begin));
                world.reader.resume(&mut before, input.byte().is_multiple_of(2));
                last = Last::default();
            }
            14 if world.way() == Way::Fetched => {
                let end = writer.committed_end();
                let mut words = vec![0; usize::try_from(end.saturating_sub(before_commit) / 8).unwrap_or(0)];
                let offset = geometry.offset(before_commit);
                if offset + words.len() * WORD <= geometry.region_len() {
                    region.copy_out(offset, &mut words);
                    world.take_inline(&words, (newest, end), &mut |received| {
                        self::check(&received, newest, &mut last);
                    });
                }
                // Records that were inline may be received again.
                last = Last::default();
            }
            15 => view(&mut world),
            _ => {
                before_commit = writer.committed_end();
                for number in newest.get() + 1..=newest.get() + 1 + u64::from(input.byte() % 3) {
                    writer.append(&payload(number, PAYLOAD_LEN_MAX), number).expect("it fits");
                }
                writer.commit(newest.get());
            }
        }
    }
    // Whatever happened before, the next record arrives.
    let number = writer.last().get() + 1;
    writer.append(&payload(number, PAYLOAD_LEN_MAX), number).expect("it fits");
    writer.commit(number);
    let newest = writer.last();
    let is_untouched = world.receive_all(|received| check(&received, newest, &mut last));
    // One that resumes after a record that was not published yet awaits the one behind it.
    let is_ahead = matches!(begin, LogStart::Resume { after, .. } if after >= newest);
    let last = last.sequence;
    assert!(!is_untouched || is_ahead || last == newest, "{last} is the last of {newest}");
}

/// Reads the next record in place, if it is one for that.
fn view(world: &mut World<LogReader>) {
    let is_landing = match world.way() {
        Way::Fetched => return,
        Way::Mapped => false,
        Way::Landing(_) => true,
    };
    let (reader, memory) = world.parts();
    if !reader.has_begun() {
        return;
    }
    if let Some(viewed) = reader.view(memory, is_landing) {
        let _ = viewed.is_intact(memory);
        reader.end_view(memory, is_landing);
    }
}

/// A frame whose checksum is right, whatever it holds, and a hot line that includes it.
fn forge(world: &mut World<LogReader>, geometry: &LogGeometry, input: &mut Input<'_>) {
    world.forge();
    let (sequence, position, choice) = (Sequence::new(input.byte().into()), input.word(), input.byte());
    let position = if choice.is_multiple_of(2) { (position % 4096) & !7 } else { position };
    let payload = input.bytes(PAYLOAD_LEN_MAX);
    let payload_len = u32::try_from(payload.len()).unwrap_or_default();
    let header = FrameHeader { sequence, payload_len, crc: 0, published_ns: position };
    let mut crc = FrameCheck::new(TOPIC, EPOCH).of_header(&header);
    crc.update(payload);
    let offset = geometry.offset(position & !7);
    let memory = world.memory();
    if offset + HEADER_WORDS * WORD + payload.len().next_multiple_of(WORD) <= geometry.region_len() {
        memory.copy_in(offset, &FrameHeader { crc: crc.finish(), ..header }.emit());
        memory.copy_in_bytes(offset + HEADER_WORDS * WORD, payload);
    }
    if choice & 2 != 0 {
        memory.store(HOT_END, position.wrapping_add(input.byte().into()));
        memory.store(HOT_START, position.wrapping_sub(input.byte().into()));
    }
    if choice & 4 != 0 {
        memory.store(crate::layout::header::HOT_SEQUENCE, sequence.get());
    }
}

fn check(received: &Received<'_, LogReader>, newest: Sequence, last: &mut Last) {
    let (value, sequence) = (&received.value, received.value.meta.sequence);
    assert!(value.payload.len() <= PAYLOAD_LEN_MAX);
    let (head, _) = received.around(received.reader.held(), HEADER_WORDS);
    let header = FrameHeader::parse(*head.first_chunk().expect("a header"));
    let mut crc = FrameCheck::new(TOPIC, EPOCH).of_header(&header);
    crc.update(value.payload);
    assert_eq!((header.sequence, header.crc), (sequence, crc.finish()), "an unchecked record");
    let contradicted = received.reader.counts().contradicted;
    if contradicted != last.contradicted {
        // It goes back to the first record that was inline and is not in the repository.
        *last = Last { sequence: Sequence::NONE, contradicted };
    }
    if received.is_genuine {
        let last = last.sequence;
        assert!(sequence > last, "{sequence} after {last}");
        assert!(sequence <= newest, "{sequence} is not published yet");
        assert_eq!(value.payload, payload(sequence.get(), PAYLOAD_LEN_MAX));
        assert_eq!(value.meta.published_ns, sequence.get());
    }
    last.sequence = sequence;
}

/// Programs of random steps, for each way of receiving.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    super::tests::programs(24, 3)
}
