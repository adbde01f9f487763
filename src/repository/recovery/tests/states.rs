//! States.

use std::sync::Arc;

use super::{CONTINUED, Scenario, TOPIC, kill_after_each_word, payload, recovered, region};
use crate::id::{Epoch, Sequence};
use crate::layout::header::{HOT_SEQUENCE, StaticHeader};
use crate::layout::state::StateGeometry;
use crate::memory::Region;
use crate::repository::state::{StateReader, StateWriter};
use crate::repository::{Reader as _, Recover as _, Writer as _};

const LEN_MAX: usize = 150;

struct States {
    writer: StateWriter,
    region: Arc<Region>,
    line: StaticHeader,
    reader: StateReader,
    geometry: StateGeometry,
}

impl States {
    fn take(reader: &mut StateReader, region: &Region) -> Option<u64> {
        let value = reader.read(region).expect("a value is whole")?;
        let sequence = value.meta.sequence.get();
        assert_eq!(value.payload, payload(sequence, LEN_MAX));
        assert_eq!(value.meta.published_ns, sequence);
        Some(sequence)
    }
}

impl Scenario for States {
    fn begin() -> Self {
        let geometry = StateGeometry::new(4, LEN_MAX).expect("a geometry");
        let (region, line) = region(geometry);
        let writer = StateWriter::new(Arc::clone(&region), geometry, &line);
        Self { writer, region, line, reader: StateReader::new(geometry, Epoch::FIRST, TOPIC), geometry }
    }

    fn publish(&mut self, number: u64) {
        let sequence = self.writer.last().get() + 1;
        let payload = payload(sequence, LEN_MAX);
        if number % 5 == 3 {
            // A loan that is given up, and one that is not.
            self.writer.stage(1).append(&payload).expect("it fits");
            let mut loan = self.writer.stage(1);
            payload.chunks(7).for_each(|piece| loan.append(piece).expect("it fits"));
            loan.commit(sequence);
        } else {
            self.writer.publish(&payload, 1, sequence).expect("it fits");
        }
    }

    fn newest(&self) -> u64 {
        self.writer.last().get()
    }

    fn receive(&mut self) {
        let last = self.reader.last().get();
        if let Some(sequence) = Self::take(&mut self.reader, &self.region) {
            assert!(sequence > last);
        }
    }

    fn recover(&mut self) {
        self.writer = recovered(&self.region, self.geometry, &self.line, None);
        assert!(self.writer.last() >= self.reader.last(), "a subscriber has received what is lost");
    }

    fn check_held(&self) {
        let mut late = StateReader::new(self.geometry, Epoch::FIRST, TOPIC);
        let newest = Some(self.newest()).filter(|newest| *newest > 0);
        assert_eq!(Self::take(&mut late, &self.region), newest);
    }
}

#[test]
fn value_that_a_killed_writer_has_shown_is_there() {
    kill_after_each_word::<States>(24);
}

#[test]
fn damaged_state_is_refused() {
    let mut world = States::begin();
    (0..3).for_each(|number| world.publish(number));
    let recover = |world: &States| {
        StateWriter::recover(Arc::clone(&world.region), world.geometry, &world.line, &CONTINUED)
            .map(|writer| writer.last())
    };
    assert_eq!(recover(&world), Ok(Sequence::new(3)));
    world.region.store(HOT_SEQUENCE, u64::MAX);
    assert_eq!(recover(&world).unwrap_err().what, "the newest sequence");
    world.region.store(HOT_SEQUENCE, 3);
    let slot = world.geometry.slot_offset(Sequence::new(3));
    world.region.store(slot + 24, 99);
    assert_eq!(recover(&world).unwrap_err().offset, slot);
}

#[test]
fn state_whose_newest_sequence_was_lost_is_refused() {
    for published in 1..10_u64 {
        let mut world = States::begin();
        (0..published).for_each(|number| world.publish(number));
        world.region.store(HOT_SEQUENCE, 0);
        let recovered =
            StateWriter::recover(Arc::clone(&world.region), world.geometry, &world.line, &CONTINUED);
        match published {
            // A writer that is killed before it announces its first value leaves this.
            1 => assert_eq!(recovered.expect("one value").last(), Sequence::new(1)),
            _ => {
                assert_eq!(recovered.expect_err("a sequence that went back").what, "a value past the newest")
            }
        }
    }
}
