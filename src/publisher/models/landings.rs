//! Models of the copies that the node makes while the publisher publishes.

use std::sync::Arc;

use loom::thread;

use super::{Repository, TOPIC, landing, repository};
use crate::id::{Epoch, KindOptions};
use crate::layout::Geometry;
use crate::layout::state::StateGeometry;
use crate::memory::{Protection, Region};
use crate::publisher::handover::Landing as _;
use crate::publisher::log_landing::LogLanding;
use crate::publisher::state_landing::StateLanding;
use crate::repository::log::models::{self as log, Taking};
use crate::repository::log::{LogReader, LogStart};
use crate::repository::state::{Committed, StateReader, StateWriter};
use crate::repository::{ReadFailure, Reader as _, WriteOrder, Writer as _};
use crate::sync::model::{Preemptions, check};

const LEN: usize = 8;

/// A writer of two slots.
pub(super) fn writer() -> StateWriter {
    let geometry = StateGeometry::new(2, LEN).unwrap();
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    StateWriter::new(region, geometry, &Geometry::from(geometry).static_header(Epoch::FIRST, TOPIC, 0))
}

/// A reader of its values.
pub(super) fn reader(writer: &StateWriter) -> StateReader {
    StateReader::new(writer.geometry(), Epoch::FIRST, TOPIC)
}

fn payload(sequence: u64) -> [u8; LEN] {
    sequence.wrapping_mul(0x0101_0101_0101_0101).to_le_bytes()
}

pub(super) fn publish(writer: &mut StateWriter) -> Committed {
    let sequence = writer.last().next().get();
    writer.publish(&payload(sequence), 1, sequence).unwrap()
}

/// Receives what a landing region has. It must be whole, and not look damaged.
pub(super) fn receive(reader: &mut StateReader, target: &Region) {
    match reader.follow(target, WriteOrder::Words, || 0) {
        Ok(Some(taken)) => {
            let verified = reader.verified(taken);
            assert_eq!(verified.payload, payload(verified.meta.sequence.get()), "a torn value was accepted");
        }
        Ok(None) | Err(ReadFailure::Contended { .. }) => {}
        Err(failure) => panic!("no value is damaged: {failure:?}"),
    }
}

/// A state with one value, and a landing region that a node serves.
struct Landed {
    writer: StateWriter,
    repository: Repository<StateGeometry>,
    target: Arc<Region>,
    landing: StateLanding,
}

fn landed() -> Landed {
    let mut writer = writer();
    publish(&mut writer);
    let repository = repository(writer.region(), writer.geometry());
    let (target, exposed) = landing(writer.geometry().region_len(), KindOptions::default(), writer.last());
    let landing = StateLanding::open(exposed, &repository).unwrap();
    Landed { writer, repository, target, landing }
}

/// Two threads and two slots. The node copies the newest value to a landing region while two values are published, the second one in its
/// slot; the subscriber reads after each copy.
pub fn landing_of_a_state_shows_whole_values_only() {
    check(Preemptions { quick: Some(1), long: Some(3) }, || {
        let Landed { mut writer, repository, target, mut landing } = landed();
        let mut reader = reader(&writer);
        loom::explore();
        let publishing = thread::spawn(move || {
            publish(&mut writer);
            publish(&mut writer);
        });
        landing.catch_up(&repository.registration, &mut { u64::MAX });
        receive(&mut reader, &target);
        publishing.join().unwrap();
        landing.catch_up(&repository.registration, &mut { u64::MAX });
        receive(&mut reader, &target);
        assert_eq!(reader.last().get(), 3, "the newest value arrives");
    });
}

/// Two threads and two slots. The publisher has published two values since the one that a landing region has, so that the node writes the
/// newest one over it; the subscriber reads twice meanwhile.
pub fn newest_value_of_a_landing_region_is_overwritten() {
    check(Preemptions { quick: Some(1), long: Some(2) }, || {
        let Landed { mut writer, repository, target, mut landing } = landed();
        landing.catch_up(&repository.registration, &mut { u64::MAX });
        let mut reader = reader(&writer);
        publish(&mut writer);
        publish(&mut writer);
        loom::explore();
        let copying = thread::spawn(move || {
            landing.catch_up(&repository.registration, &mut { u64::MAX });
        });
        receive(&mut reader, &target);
        receive(&mut reader, &target);
        copying.join().unwrap();
        receive(&mut reader, &target);
        assert_eq!(reader.last().get(), 3, "the newest value arrives");
    });
}

/// Two threads and two slots. The subscriber has received the first value, and not the second; the node writes the fourth one over that
/// while the subscriber reads: the second is gone, and not damaged.
pub fn unread_value_of_a_landing_region_is_overwritten() {
    check(Preemptions { quick: Some(1), long: Some(2) }, || {
        let Landed { mut writer, repository, target, mut landing } = landed();
        landing.catch_up(&repository.registration, &mut { u64::MAX });
        let mut reader = reader(&writer);
        receive(&mut reader, &target);
        publish(&mut writer);
        landing.catch_up(&repository.registration, &mut { u64::MAX });
        publish(&mut writer);
        publish(&mut writer);
        loom::explore();
        let copying = thread::spawn(move || {
            landing.catch_up(&repository.registration, &mut { u64::MAX });
        });
        receive(&mut reader, &target);
        copying.join().unwrap();
        receive(&mut reader, &target);
        assert_eq!(reader.last().get(), 4, "the newest value arrives");
    });
}

/// Three threads: the subscriber reads once while the node copies.
pub fn subscriber_reads_a_state_while_it_is_copied() {
    check(Preemptions { quick: Some(1), long: Some(2) }, || {
        let Landed { mut writer, repository, target, mut landing } = landed();
        let mut reader = reader(&writer);
        loom::explore();
        let publishing = thread::spawn(move || {
            publish(&mut writer);
            publish(&mut writer);
        });
        let copying = thread::spawn(move || {
            landing.catch_up(&repository.registration, &mut { u64::MAX });
        });
        receive(&mut reader, &target);
        publishing.join().unwrap();
        copying.join().unwrap();
        receive(&mut reader, &target);
    });
}

/// Two threads. The ring is full; the node copies the oldest two frames while a record is published in the place of the first one. The
/// subscriber reads then, and once all is copied.
pub fn landing_of_a_log_shows_whole_records_only() {
    check(Preemptions { quick: Some(1), long: Some(3) }, || {
        let mut writer = log::writer();
        log::publish(&mut writer, log::RING, 1);
        let repository = repository(writer.region(), writer.geometry());
        let options = LogStart::Earliest.options();
        let (target, exposed) = landing(writer.geometry().region_len(), options, writer.last());
        let mut landing = LogLanding::open(exposed, &repository).unwrap();
        let mut taking = Taking::new(&writer, &target);
        let follow = |reader: &mut LogReader, memory: &Region| reader.follow(memory, WriteOrder::Words, || 0);
        loom::explore();
        let publishing = thread::spawn(move || log::publish(&mut writer, 1, 1));
        landing.catch_up(&repository.registration, &mut 1);
        taking.take_all(follow);
        publishing.join().unwrap();
        while landing.catch_up(&repository.registration, &mut { u64::MAX }) {
            taking.take_all(follow);
        }
        assert_eq!(taking.last().get(), log::RING + 1, "every record is received or reported lost");
    });
}
