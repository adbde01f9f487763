//! Models of a slot: its writer, and readers of mapped memory.

use std::sync::Arc;

use loom::thread;

use super::{StateReader, StateWriter};
use crate::id::{Epoch, TopicId};
use crate::layout::Geometry;
use crate::layout::header::StaticHeader;
use crate::layout::state::StateGeometry;
use crate::memory::{Protection, Region};
use crate::repository::{ReadFailure, Reader as _, Taken, Writer as _};
use crate::sync::model::{Preemptions, check};

const TOPIC: TopicId = TopicId::new(77);
/// Bytes of a payload.
const LEN: usize = 8;

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

/// A writer and a reader of one repository of this many slots.
fn world(slot_count: u32) -> (StateWriter, StateReader, Arc<Region>) {
    let geometry = StateGeometry::new(slot_count, LEN).unwrap();
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    let header: StaticHeader = Geometry::from(geometry).static_header(epoch(1), TOPIC, 0);
    let writer = StateWriter::new(Arc::clone(&region), geometry, &header);
    let reader = StateReader::new(geometry, epoch(1), TOPIC);
    (writer, reader, region)
}

/// A payload that no mixture of others is.
fn payload(sequence: u64) -> [u8; LEN] {
    sequence.wrapping_mul(0x0101_0101_0101_0101).to_le_bytes()
}

fn publish(writer: &mut StateWriter, count: usize) {
    for _ in 0..count {
        let sequence = writer.last().next().get();
        writer.publish(&payload(sequence), 1, sequence).unwrap();
    }
}

/// Reads once. A value must be whole, and later than the last one; a read in vain must be named as such, not as damage.
fn read(reader: &mut StateReader, memory: &Region, last: &mut u64) {
    match reader.poll(memory) {
        Ok(Some(taken)) => {
            let verified = reader.verified(taken);
            let sequence = verified.meta.sequence.get();
            assert!(sequence > *last, "{sequence} after {last}");
            assert_eq!(verified.payload, payload(sequence), "a torn value was accepted");
            assert_eq!(verified.meta.published_ns, sequence);
            *last = sequence;
        }
        Ok(None) | Err(ReadFailure::Contended { .. }) => {}
        Err(failure) => panic!("no value is damaged: {failure:?}"),
    }
}

fn check_reads(slot_count: u32, before: usize, published: usize, reads: usize, preemptions: Preemptions) {
    check(preemptions, move || {
        let (mut writer, mut reader, memory) = world(slot_count);
        let mut last = 0;
        for _ in 1..before {
            publish(&mut writer, 1);
            read(&mut reader, &memory, &mut last);
        }
        publish(&mut writer, 1);
        loom::explore();
        let writing = thread::spawn(move || publish(&mut writer, published));
        (0..reads).for_each(|_| read(&mut reader, &memory, &mut last));
        writing.join().unwrap();
        // What was published is there for a reader that has seen the writer end.
        read(&mut reader, &memory, &mut last);
        assert_eq!(last, (before + published) as u64);
    });
}

/// Two threads and two slots. The reader has read nothing, so that it goes by the hot line. It reads once while two values are
/// published, the second one in the slot of the first value.
pub fn first_read_takes_a_whole_value() {
    check_reads(2, 1, 2, 1, Preemptions { quick: Some(1), long: Some(2) });
}

/// Two threads and two slots. The reader keeps up, so that it goes from slot to slot. It has read one value, a second one is there,
/// and it reads twice while two are published, the second one in the slot of the second value.
pub fn reader_that_keeps_up_takes_whole_values() {
    check_reads(2, 2, 2, 2, Preemptions { quick: Some(1), long: Some(2) });
}

/// Three threads and two slots, which two publishers write: one of an earlier epoch, whose program does not know yet that it is gone,
/// and the present one. The first publishes a value, the other one two, and the reader reads once. What it takes is of its epoch and
/// whole; anything else is an error. Publishers do not share memory: this is what a reader relies on if they did.
///
/// Nothing orders two writers, so that each word of a copy may be of either, and a reader copies three times before it gives up: these are
/// too many executions for a second interruption. The next two models go further with one copy, which has nothing of the one before.
pub fn values_of_an_earlier_epoch_are_refused() {
    check_two_epochs(Preemptions { quick: Some(1), long: Some(1) }, |reader, memory| {
        reader.poll(memory).ok().flatten()
    });
}

/// The same, with a reader that copies once.
pub fn copy_with_words_of_an_earlier_epoch_is_refused() {
    check_two_epochs(Preemptions { quick: Some(1), long: Some(2) }, StateReader::try_once);
}

/// Two threads and two slots: the publisher of an earlier epoch overwrites the value that the reader copies, once.
pub fn value_that_an_earlier_epoch_overwrites_is_refused() {
    check(Preemptions { quick: Some(1), long: None }, || {
        let (earlier, mut present, mut reader, memory) = two_epochs();
        publish(&mut present, 1);
        loom::explore();
        let before = publish_of_an_earlier_epoch(earlier);
        let taken = reader.try_once(&memory);
        check_epoch(&reader, taken);
        before.join().unwrap();
    });
}

fn check_two_epochs(
    preemptions: Preemptions,
    read: impl Fn(&mut StateReader, &Region) -> Option<Taken> + Send + Sync + 'static,
) {
    check(preemptions, move || {
        let (earlier, mut present, mut reader, memory) = two_epochs();
        loom::explore();
        let before = publish_of_an_earlier_epoch(earlier);
        let now = thread::spawn(move || publish(&mut present, 2));
        let taken = read(&mut reader, &memory);
        check_epoch(&reader, taken);
        before.join().unwrap();
        now.join().unwrap();
    });
}

/// A writer of epoch 1, and one of epoch 2 with a reader, in the same two slots.
fn two_epochs() -> (StateWriter, StateWriter, StateReader, Arc<Region>) {
    let (earlier, _, memory) = world(2);
    let geometry = earlier.geometry();
    let header = Geometry::from(geometry).static_header(epoch(2), TOPIC, 0);
    let present = StateWriter::new(Arc::clone(&memory), geometry, &header);
    (earlier, present, StateReader::new(geometry, epoch(2), TOPIC), memory)
}

fn publish_of_an_earlier_epoch(mut writer: StateWriter) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        writer.publish(&payload(0x81), 1, 1).unwrap();
    })
}

fn check_epoch(reader: &StateReader, taken: Option<Taken>) {
    let Some(taken) = taken else { return };
    let verified = reader.verified(taken);
    assert_eq!(verified.meta.epoch, epoch(2));
    assert_eq!(verified.payload, payload(verified.meta.sequence.get()), "a value of another epoch");
}
