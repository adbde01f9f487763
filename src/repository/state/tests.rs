//! What a reader accepts as a value.

#![expect(
    clippy::cast_possible_truncation,
    reason = "patterns of bytes are cut on purpose, counts are small"
)]

use std::sync::Arc;

use super::*;
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::Geometry;
use crate::layout::header::{HOT_SEQUENCE, StaticHeader};
use crate::layout::state::{SlotHeader, StateGeometry};
use crate::memory::{Access, Protection, Region};
use crate::repository::{
    Finding, ReadFailure, Reader as _, SubscriberStats, TooLong, WriteOrder, Writer as _,
};

mod landing;
mod mistaken;

const TOPIC: TopicId = TopicId::new(77);

fn epoch() -> Epoch {
    Epoch::new(0xfeed).unwrap()
}

fn writer(slot_count: u32, payload_len_max: usize) -> StateWriter {
    let geometry = StateGeometry::new(slot_count, payload_len_max).unwrap();
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    StateWriter::new(region, geometry, &Geometry::from(geometry).static_header(epoch(), TOPIC, 0))
}

fn reader(writer: &StateWriter) -> StateReader {
    StateReader::new(writer.geometry(), epoch(), TOPIC)
}

/// A payload whose content and length depend on its sequence only.
fn payload(sequence: u64, len_max: usize) -> Vec<u8> {
    let len = (sequence.wrapping_mul(7919) % (len_max as u64 + 1)) as usize;
    (0..len as u64).map(|i| (i.wrapping_mul(31) ^ sequence.wrapping_mul(0x9E37_79B9)) as u8).collect()
}

fn words(region: &Region) -> Vec<u64> {
    (0..region.len()).step_by(8).map(|offset| region.load(offset)).collect()
}

fn region_of(words: &[u64]) -> Region {
    let region = Region::allocate(words.len() * 8, Protection::PeersWrite).unwrap();
    region.copy_in(0, words);
    region
}

#[test]
fn every_length_is_read_back_however_it_was_written() {
    let mut writer = writer(4, 5000);
    let mut reader = reader(&writer);
    let region = Arc::clone(writer.region());
    for len in (0..70).chain([100, 511, 2047, 2048, 2049, 4999, 5000]) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 13) as u8).collect();
        let sizes = [1, 3, 8, 1000];
        for way in 0..2 + sizes.len() {
            let committed = match way {
                0 => writer.publish(&bytes, 9, 5).unwrap(),
                1 => {
                    writer.room()[..len].copy_from_slice(&bytes);
                    writer.publish_filled(len, 9, 5)
                }
                _ => {
                    let mut staged = writer.stage(9);
                    bytes.chunks(sizes[way - 2]).for_each(|piece| staged.append(piece).unwrap());
                    assert_eq!((staged.len(), staged.remaining()), (len, 5000 - len));
                    staged.commit(5)
                }
            };
            let verified = reader.read(&region).unwrap().unwrap();
            assert_eq!(verified.payload, bytes, "length {len}, way {way}");
            assert_eq!(verified.meta.sequence, committed.sequence);
            assert_eq!(verified.meta.published_ns, 5);
            let header = [0, 1, 2, 3].map(|word| region.load(committed.slot.offset + word * 8));
            assert_eq!(SlotHeader::parse(header).encoding, 9);
            assert_eq!(verified.conflated, 0);
            assert!(reader.read(&region).unwrap().is_none());
        }
    }
}

/// A later value may begin to overwrite it during the fetch. Where both have the same bytes only the padding differs.
#[test]
fn padding_of_another_value_does_not_contradict_an_inline_one() {
    let mut writer = writer(4, 64);
    let mut reader = reader(&writer);
    reader.expect_inline();
    let region = Arc::clone(writer.region());
    let committed = writer.publish(&[7; 13], 1, 0).unwrap();
    let (first, end) = (committed.slot.offset, committed.slot.offset + committed.slot.len);
    let slot: Vec<u64> = (first..end).step_by(8).map(|offset| region.load(offset)).collect();
    let taken = reader.take_inline(&slot, committed.sequence, 0);
    assert!(matches!(taken, Finding::Taken(_)) && reader.is_unproven());
    let proof = reader.plan();
    let last = first + (slot.len() - 3) * 8;
    assert_eq!(region.load(last).to_le_bytes(), [7, 7, 7, 7, 7, 0, 0, 0]);
    region.store(last, u64::from_le_bytes([7; 8]));
    let checked = reader.check(&region, &proof, 0);
    assert!(checked.is_ok() && !reader.is_unproven(), "{:?}", checked.err());
}

/// Its topic has ended, and only the publisher has said with which value.
#[test]
fn values_that_are_given_up_do_not_contradict_an_inline_one() {
    let mut writer = writer(4, 64);
    let mut reader = reader(&writer);
    reader.expect_inline();
    let region = Arc::clone(writer.region());
    let slot = writer.publish(&[7; 13], 1, 0).unwrap().slot;
    let words: Vec<u64> =
        (slot.offset..slot.offset + slot.len).step_by(8).map(|offset| region.load(offset)).collect();
    assert!(matches!(reader.take_inline(&words, Sequence::new(1), 0), Finding::Taken(_)));
    writer.publish(&[8; 13], 1, 0).unwrap();
    assert_eq!(reader.give_up(Sequence::new(2)), Some((Sequence::new(2), 1)));
    let fetch = reader.plan();
    let checked = reader.check(&region, &fetch, 0);
    assert!(matches!(checked, Ok(Finding::Nothing)), "{:?}", checked.err());
    assert_eq!((reader.last(), reader.counts().contradicted), (Sequence::new(2), 0));
}

#[test]
fn a_value_that_is_too_long_is_refused_and_nothing_changes() {
    let mut writer = writer(2, 100);
    let mut reader = reader(&writer);
    writer.publish(b"kept", 1, 0).unwrap();
    assert_eq!(writer.publish(&[0; 101], 1, 0), Err(TooLong { len: 101, max: 100 }));
    let mut staged = writer.stage(1);
    staged.append(&[1; 60]).unwrap();
    assert_eq!(staged.append(&[1; 41]), Err(TooLong { len: 101, max: 100 }));
    assert_eq!(staged.remaining(), 40);
    // Not committed: nothing is published.
    let region = Arc::clone(writer.region());
    assert_eq!(reader.read(&region).unwrap().unwrap().payload, b"kept");
    writer.publish(b"next", 1, 0).unwrap();
    let next = reader.read(&region).unwrap().unwrap();
    assert_eq!((next.payload, next.meta.sequence), (&b"next"[..], Sequence::new(2)));
}

#[test]
fn a_reader_that_falls_behind_gets_the_newest_and_the_exact_number_it_missed() {
    let mut writer = writer(4, 64);
    let mut reader = reader(&writer);
    let region = Arc::clone(writer.region());
    let mut published = 0;
    let mut expected_conflated = 0;
    for burst in [1, 2, 3, 4, 5, 8, 9, 100, 1, 7] {
        for _ in 0..burst {
            published += 1;
            writer.publish(&payload(published, 64), 1, 0).unwrap();
        }
        let first = reader.last() == Sequence::NONE;
        let verified = reader.read(&region).unwrap().unwrap();
        assert_eq!(verified.meta.sequence.get(), published);
        assert_eq!(verified.payload, payload(published, 64));
        assert_eq!(verified.conflated, if first { 0 } else { burst - 1 });
        expected_conflated += if first { 0 } else { burst - 1 };
    }
    assert_eq!(reader.counts().conflated, expected_conflated);
}

/// With any single bit flipped in a repository, a reader gets the right value, none, or an error.
#[test]
fn every_flipped_bit_is_found() {
    let mut writer = writer(2, 40);
    for sequence in 1..=3 {
        writer.publish(&payload(sequence, 40), 1, sequence).unwrap();
    }
    let whole = words(writer.region());
    let used = writer.geometry().region_len() / 8;
    let mut outcomes = [0; 3];
    for word in 0..used {
        for bit in 0..64 {
            let mut damaged = whole.clone();
            damaged[word] ^= 1 << bit;
            let region = region_of(&damaged[..used]);
            let mut line = [0; StaticHeader::WORDS];
            region.copy_out(0, &mut line);
            assert!(word >= 8 || StaticHeader::parse(&line).is_err());
            let mut reader = reader(&writer);
            let index = match reader.read(&region) {
                Ok(Some(verified)) => {
                    let sequence = verified.meta.sequence.get();
                    assert_eq!(verified.payload, payload(sequence, 40), "word {word} bit {bit}");
                    assert_eq!(verified.meta.published_ns, sequence);
                    0
                }
                Ok(None) => 1,
                Err(_) => 2,
            };
            outcomes[index] += 1;
        }
    }
    assert!(outcomes[0] > 0 && outcomes[2] > 0, "{outcomes:?}");
}

/// With any part missing at the end of a repository, a reader gets the right value, none, or an error.
#[test]
fn every_cut_is_found() {
    let mut writer = writer(2, 40);
    for sequence in 1..=3 {
        writer.publish(&payload(sequence, 40), 1, sequence).unwrap();
    }
    let whole = words(writer.region());
    let bytes: &[u8] = bytemuck::cast_slice(&whole);
    for cut in 0..writer.geometry().region_len() {
        let mut short = vec![0u64; whole.len()];
        bytemuck::cast_slice_mut::<u64, u8>(&mut short)[..cut].copy_from_slice(&bytes[..cut]);
        let region = region_of(&short);
        if let Ok(Some(verified)) = reader(&writer).read(&region) {
            assert_eq!(verified.payload, payload(verified.meta.sequence.get(), 40), "cut at {cut}");
        }
    }
    // A region that really ends early is not mapped.
    let short = Region::allocate(4096, Protection::PeersRead).unwrap();
    assert!(Region::import(short.file(), 4097, Access::Read).is_err());
}

#[test]
fn damage_is_reported_once_and_skipped() {
    let mut writer = writer(8, 64);
    let mut reader = reader(&writer);
    writer.publish(b"good", 1, 0).unwrap();
    let region = region_of(&words(writer.region()));
    assert_eq!(reader.read(&region).unwrap().unwrap().payload, b"good");

    writer.publish(b"passed over", 1, 0).unwrap();
    writer.publish(b"spoilt", 1, 0).unwrap();
    let region = region_of(&words(writer.region()));
    let slot = writer.geometry().slot_offset(Sequence::new(3));
    region.store(slot + 32, region.load(slot + 32) ^ 4);
    let failure = reader.read(&region).unwrap_err();
    assert!(matches!(failure, ReadFailure::Damaged { sequence, .. } if sequence.get() == 3), "{failure:?}");
    assert!(reader.read(&region).unwrap().is_none());
    assert_eq!((reader.counts().rejected, reader.counts().torn_retries), (1, 0));

    writer.publish(b"good again", 1, 0).unwrap();
    let region = region_of(&words(writer.region()));
    let verified = reader.read(&region).unwrap().unwrap();
    assert_eq!((verified.payload, verified.conflated), (&b"good again"[..], 1));
    assert_eq!(reader.counts().conflated, 1);
}

#[test]
fn broken_stamps_are_reported_once_and_skipped() {
    let mut writer = writer(4, 64);
    let mut reader = reader(&writer);
    writer.publish(b"good", 1, 0).unwrap();
    writer.publish(b"spoilt", 1, 0).unwrap();
    let region = region_of(&words(writer.region()));
    let tail = writer.geometry().slot_offset(Sequence::new(2)) + StateGeometry::tail_offset(6);
    region.store(tail, region.load(tail) ^ 1);
    let failure = reader.read(&region).unwrap_err();
    assert_eq!(failure, ReadFailure::BrokenStamps { sequence: Sequence::new(2) });
    assert!(reader.read(&region).unwrap().is_none());
    assert_eq!(reader.counts().rejected, 1);
}

#[test]
fn values_of_another_epoch_or_topic_are_not_accepted() {
    let mut writer = writer(2, 64);
    writer.publish(b"value", 1, 0).unwrap();
    let region = Arc::clone(writer.region());
    let other_epoch = Epoch::new(1).unwrap();
    let mut foreign = StateReader::new(writer.geometry(), other_epoch, TOPIC);
    assert!(matches!(foreign.read(&region), Err(ReadFailure::ForeignEpoch { found: 0xfeed, .. })));
    let mut foreign = StateReader::new(writer.geometry(), epoch(), TopicId::new(78));
    assert!(matches!(foreign.read(&region), Err(ReadFailure::Damaged { .. })));
}

#[test]
fn a_claimed_length_beyond_the_maximum_is_an_error() {
    let mut writer = writer(2, 64);
    writer.publish(b"value", 1, 0).unwrap();
    let region = region_of(&words(writer.region()));
    let slot = writer.geometry().slot_offset(Sequence::new(1));
    for len in [65, 1 << 20, u64::from(u32::MAX)] {
        region.store(slot + 16, len);
        let failure = reader(&writer).read(&region).unwrap_err();
        assert_eq!(failure, ReadFailure::ImpossibleLen { sequence: Sequence::new(1), len, max: 64 });
    }
}

/// A region of random bytes makes a reader return an error, not spin or panic.
#[test]
fn random_memory_never_verifies() {
    let writer = writer(4, 100);
    let mut state = 0x1234_5678_9abc_def1_u64;
    for _ in 0..2000 {
        let region = Region::allocate(writer.geometry().region_len(), Protection::PeersWrite).unwrap();
        for offset in (0..region.len()).step_by(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            region.store(offset, if state.is_multiple_of(3) { state % 9 } else { state });
        }
        assert!(!matches!(reader(&writer).read(&region), Ok(Some(_))));
    }
}

/// A reader over a wire sees a mirror that was fetched word by word, in random order, while the writer continued: it
/// accepts only whole values, in ascending order. The order is drawn from a seed.
#[test]
fn a_mirror_fetched_in_any_order_gives_only_whole_values() {
    let mut state = 0x5eed_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut writer = writer(2, 72);
    let mut reader = reader(&writer);
    let mirror = Region::allocate(writer.geometry().region_len(), Protection::PeersWrite).unwrap();
    let (mut values, mut retries) = (0, 0);
    let mut fetch = reader.plan();
    let mut published = 0;
    for _ in 0..40_000 {
        for range in fetch.ranges() {
            let mut offsets: Vec<usize> = (range.offset..range.offset + range.len).step_by(8).collect();
            while !offsets.is_empty() {
                let offset = offsets.swap_remove(random(offsets.len()));
                mirror.store(offset, writer.region().load(offset));
                if random(24) == 0 {
                    published += 1;
                    writer.publish(&payload(published, 72), 1, published).unwrap();
                }
            }
        }
        let last = reader.last();
        fetch = match reader.check(&mirror, &fetch, published) {
            Ok(Finding::Taken(taken)) => {
                let verified = reader.verified(taken);
                let sequence = verified.meta.sequence;
                assert!(sequence > last);
                assert_eq!(verified.payload, payload(sequence.get(), 72));
                values += 1;
                reader.plan()
            }
            Ok(Finding::More(fetch)) => fetch,
            Ok(_) => reader.plan(),
            Err(_) => {
                retries += 1;
                reader.plan()
            }
        };
    }
    assert!(values > 500 && reader.counts().torn_retries > 500, "{values} values, {retries} errors");
}

/// Two threads, two slots, lengths that change with every value, a writer that never pauses. If both share a processor, few
/// values are new, and it ends after this many fruitless polls.
#[test]
fn a_hot_writer_never_gets_a_torn_value_accepted() {
    let mut writer = writer(2, 600);
    let mut reader = reader(&writer);
    let memory = Region::import(writer.region().file(), 0, Access::Read).unwrap();
    let payloads: Vec<Vec<u8>> = (0..997).map(|sequence| payload(sequence, 600)).collect();
    let expected = payloads.clone();
    let stop = Arc::new(crate::sync::atomic::AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let writing = std::thread::spawn(move || {
        while !stopped.load(crate::sync::atomic::Ordering::Relaxed) {
            let index = (writer.last().get() + 1) % 997;
            writer.publish(&payloads[index as usize], 1, index).unwrap();
        }
    });
    let (mut last, mut in_vain) = (0, 0);
    // At least one is received.
    while reader.counts().received < 300_000 && (last == 0 || in_vain < 1_000_000) {
        match reader.read(&memory) {
            Ok(Some(verified)) => {
                let sequence = verified.meta.sequence.get();
                assert!(sequence > last);
                assert_eq!(verified.payload, expected[(sequence % 997) as usize], "sequence {sequence}");
                last = sequence;
            }
            Ok(None) | Err(ReadFailure::Contended { .. }) => in_vain += 1,
            Err(failure) => panic!("{failure:?}"),
        }
    }
    stop.store(true, crate::sync::atomic::Ordering::Relaxed);
    writing.join().unwrap();
}

/// A landing region's newest value, which the publisher overwrites while it names none: it may be read again, and is never damaged.
#[test]
fn value_that_is_no_longer_the_newest_is_not_damaged() {
    let mut writer = writer(2, 64);
    writer.publish(b"first", 1, 0).unwrap();
    let (mut keeping_up, mut beginning) = (reader(&writer), reader(&writer));
    keeping_up.read(writer.region()).unwrap().unwrap();
    writer.publish(b"second", 1, 0).unwrap();
    let tail = writer.geometry().slot_offset(Sequence::new(2)) + StateGeometry::tail_offset(6);
    writer.region().store(tail, 4);
    writer.region().store(HOT_SEQUENCE, 0);
    for _ in 0..100 {
        assert!(beginning.read(writer.region()).unwrap().is_none());
        let failure = keeping_up.read(writer.region()).unwrap_err();
        assert!(matches!(failure, ReadFailure::Contended { .. }), "{failure:?}");
    }
    writer.region().store(HOT_SEQUENCE, 2);
    for reader in [&mut keeping_up, &mut beginning] {
        let failure = reader.read(writer.region()).unwrap_err();
        assert_eq!(failure, ReadFailure::BrokenStamps { sequence: Sequence::new(2) });
        assert_eq!(reader.counts().rejected, 1);
    }
}

/// A head stamp damaged downwards does not hide later values from a fetching reader.
#[test]
fn a_fetching_reader_finds_values_behind_a_damaged_head_stamp() {
    let mut writer = writer(8, 72);
    let mut reader = reader(&writer);
    let mirror = Region::allocate(writer.geometry().region_len(), Protection::PeersWrite).unwrap();
    let mut fetch_all = |writer: &StateWriter| {
        let mut fetch = reader.plan();
        for now_ns in 0..100 {
            for range in fetch.ranges() {
                for offset in (range.offset..range.offset + range.len).step_by(8) {
                    mirror.store(offset, writer.region().load(offset));
                }
            }
            fetch = match reader.check(&mirror, &fetch, now_ns) {
                Ok(Finding::Taken(taken)) => return Some(reader.verified(taken).meta.sequence.get()),
                Ok(Finding::More(next)) => next,
                Ok(_) => return None,
                Err(_) => reader.plan(),
            };
        }
        None
    };
    for sequence in 1..=3 {
        writer.publish(&payload(sequence, 72), 1, sequence).unwrap();
        assert_eq!(fetch_all(&writer), Some(sequence));
    }
    for sequence in 4..=5 {
        writer.publish(&payload(sequence, 72), 1, sequence).unwrap();
    }
    writer.region().store(writer.geometry().slot_offset(Sequence::new(4)), 1);
    assert_eq!(fetch_all(&writer), Some(5));
    assert_eq!(fetch_all(&writer), None);
}

/// A number that no slot has would be taken for the newest value, and all before it be skipped.
#[test]
fn mapped_reader_that_keeps_up_does_not_follow_a_damaged_hot_line() {
    let mut writer = writer(8, 72);
    let mut reader = reader(&writer);
    let region = Arc::clone(writer.region());
    for sequence in 1..=20 {
        writer.publish(&payload(sequence, 72), 1, sequence).unwrap();
        assert_eq!(reader.read(&region).unwrap().unwrap().meta.sequence.get(), sequence);
        for damaged in [1 << 40, sequence + 2, 0] {
            region.store(HOT_SEQUENCE, damaged);
            assert!((0..1000).all(|_| reader.poll(&region).unwrap().is_none()), "{damaged} after {sequence}");
        }
    }
}

/// Nothing but the hot line tells that it is there, until the value after it is.
#[test]
fn mapped_reader_finds_values_behind_a_damaged_head_stamp() {
    let mut writer = writer(8, 72);
    let mut reader = reader(&writer);
    let region = Arc::clone(writer.region());
    let publish = |writer: &mut StateWriter, sequence| {
        writer.publish(&payload(sequence, 72), 1, sequence).unwrap();
    };
    for sequence in 1..=3 {
        publish(&mut writer, sequence);
        assert_eq!(reader.read(&region).unwrap().unwrap().meta.sequence.get(), sequence);
    }
    (4..=5).for_each(|sequence| publish(&mut writer, sequence));
    region.store(writer.geometry().slot_offset(Sequence::new(4)), 1);
    let found = reader.poll(&region).unwrap().unwrap();
    assert_eq!((found.meta.sequence.get(), found.conflated), (5, 1));
    assert!(reader.poll(&region).unwrap().is_none());
    for is_over in [false, true] {
        let last = writer.last().next();
        publish(&mut writer, last.get());
        region.store(writer.geometry().slot_offset(last), 1);
        if is_over {
            reader.look_closely();
        }
        let polls = if is_over { 1 } else { 1000 };
        let failure = (0..polls).find_map(|_| reader.poll(&region).err());
        assert_eq!(failure, Some(ReadFailure::BrokenStamps { sequence: last }));
        assert!((0..1000).all(|_| reader.poll(&region).unwrap().is_none()), "it is reported once");
    }
    publish(&mut writer, 8);
    assert_eq!(reader.read(&region).unwrap().unwrap().meta.sequence.get(), 8);
}

/// The value that one publisher did not deliver may be the newest of the next one, of the same epoch.
#[test]
fn value_that_was_damaged_or_cut_off_is_received_from_the_next_publisher() {
    let mut writer = writer(4, 64);
    for _ in 0..2 {
        writer.publish(b"value", 1, 0).unwrap();
    }
    let spoilt = region_of(&words(writer.region()));
    let tail = writer.geometry().slot_offset(Sequence::new(2)) + StateGeometry::tail_offset(5);
    spoilt.store(tail, spoilt.load(tail) ^ 1);
    let next_of = |before: &mut StateReader| {
        let mut next = reader(&writer);
        next.resume(before, true);
        next.read(writer.region()).unwrap().map(|verified| verified.meta.sequence.get())
    };
    let mut damaged = reader(&writer);
    damaged.read(&spoilt).unwrap_err();
    assert_eq!(next_of(&mut damaged), Some(2));
    let mut cut_off = reader(&writer);
    assert_eq!(cut_off.give_up(Sequence::new(2)), Some((Sequence::new(1), 2)));
    assert_eq!(next_of(&mut cut_off), Some(2));
    let mut received = reader(&writer);
    assert!(received.read(writer.region()).unwrap().is_some());
    assert_eq!(next_of(&mut received), None);
}

/// The next value says that they were replaced, whichever publisher it is from.
#[test]
fn values_replaced_before_a_damaged_one_are_reported_after_a_reconnection() {
    let mut writer = writer(8, 64);
    let publish = |writer: &mut StateWriter| writer.publish(b"value", 1, 0).map(drop).unwrap();
    publish(&mut writer);
    let mut before = reader(&writer);
    assert!(before.read(writer.region()).unwrap().is_some());
    (2..=4).for_each(|_| publish(&mut writer));
    let spoilt = region_of(&words(writer.region()));
    let tail = writer.geometry().slot_offset(Sequence::new(4)) + StateGeometry::tail_offset(5);
    spoilt.store(tail, spoilt.load(tail) ^ 1);
    before.poll(&spoilt).unwrap_err();
    // Over two subscriptions.
    for _ in 0..2 {
        let mut next = reader(&writer);
        next.resume(&mut before, true);
        before = next;
    }
    let taken = before.poll(writer.region()).unwrap().unwrap();
    assert_eq!((taken.meta.sequence.get(), taken.conflated), (4, 2));
    publish(&mut writer);
    assert_eq!(before.poll(writer.region()).unwrap().map(|taken| taken.conflated), Some(0));
    assert_eq!(before.counts().conflated, 2);
}
