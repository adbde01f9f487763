//! Logs.

use std::sync::Arc;

use super::{CONTINUED, Scenario, TOPIC, kill_after_each_word, payload, recovered, region};
use crate::id::{Epoch, Sequence};
use crate::layout::header::{HOT_SEQUENCE, StaticHeader};
use crate::layout::log::{HOT_END, HOT_START, HOT_START_SEQUENCE, LogGeometry, START_AGAIN};
use crate::memory::Region;
use crate::repository::log::{LogReader, LogStart, LogWriter};
use crate::repository::{Reader as _, Recover as _, Writer as _};

/// Longer than a segment of the ring.
const LEN_MAX: usize = 200;

struct Logs {
    writer: LogWriter,
    region: Arc<Region>,
    line: StaticHeader,
    reader: LogReader,
    geometry: LogGeometry,
    received: u64,
}

/// Takes every record, and checks that they follow each other. Returns the first and the last sequence.
pub(super) fn take_all(
    reader: &mut LogReader,
    region: &Region,
    check: impl Fn(u64, &[u8]),
) -> Option<(u64, u64)> {
    reader.settle(region);
    let mut taken = None;
    loop {
        let next = reader.take_held().map_or_else(|| reader.poll(region), |held| Ok(Some(held)));
        let Some(next) = next.expect("records are whole, and none is lost") else { return taken };
        let record = reader.verified(next);
        let sequence = record.meta.sequence.get();
        assert!(taken.is_none_or(|(_, last)| sequence == last + 1), "{sequence} after {taken:?}");
        check(sequence, record.payload);
        taken = Some((taken.map_or(sequence, |(first, _)| first), sequence));
    }
}

fn check(sequence: u64, found: &[u8]) {
    assert_eq!(found, payload(sequence, LEN_MAX), "{sequence}");
}

impl Scenario for Logs {
    fn begin() -> Self {
        let geometry = LogGeometry::new(4096, LEN_MAX).expect("a geometry");
        assert!(geometry.segment_len() < LEN_MAX);
        let (region, line) = region(geometry);
        let writer = LogWriter::new(Arc::clone(&region), geometry, &line);
        let reader = LogReader::new(geometry, Epoch::FIRST, TOPIC, LogStart::Earliest);
        Self { writer, region, line, reader, geometry, received: 0 }
    }

    fn publish(&mut self, number: u64) {
        let first = self.writer.last().get() + 1;
        let last = first + number % 4;
        for sequence in first..=last {
            if sequence.is_multiple_of(5) {
                // A loan that is given up, and one that is not.
                self.writer.stage(sequence).append(&payload(sequence, LEN_MAX)).expect("it fits");
                let mut loan = self.writer.stage(sequence);
                payload(sequence, LEN_MAX).chunks(9).for_each(|piece| loan.append(piece).expect("it fits"));
                loan.finish(sequence);
            } else {
                self.writer.append(&payload(sequence, LEN_MAX), sequence).expect("it fits");
            }
        }
        self.writer.commit(last);
    }

    fn newest(&self) -> u64 {
        self.writer.last().get()
    }

    fn receive(&mut self) {
        if let Some((first, last)) = take_all(&mut self.reader, &self.region, check) {
            assert_eq!(first, self.received + 1);
            self.received = last;
        }
    }

    fn recover(&mut self) {
        self.writer = recovered(&self.region, self.geometry, &self.line, None);
        assert!(self.writer.last().get() >= self.received, "a subscriber has received what is lost");
        assert_eq!(self.region.load(HOT_START), self.region.load(START_AGAIN));
    }

    fn check_held(&self) {
        let mut late = LogReader::new(self.geometry, Epoch::FIRST, TOPIC, LogStart::Earliest);
        let held = take_all(&mut late, &self.region, check);
        assert_eq!(held.map_or(0, |(_, last)| last), self.newest());
        let first = self.region.load(HOT_START_SEQUENCE);
        assert!(held.is_none_or(|(found, _)| found == first));
        // Whatever was not given up is there.
        let held_len = self.region.load(HOT_END) - self.region.load(HOT_START);
        assert!(self.newest() < 40 || held_len > 1500, "{held_len} bytes of records are held");
        // The index leads to each of them.
        for sequence in (first..=self.newest()).step_by(5) {
            let start = LogStart::At(Sequence::new(sequence));
            let mut late = LogReader::new(self.geometry, Epoch::FIRST, TOPIC, start);
            assert_eq!(take_all(&mut late, &self.region, check), Some((sequence, self.newest())));
        }
    }
}

#[test]
fn records_that_a_killed_writer_has_shown_are_there() {
    kill_after_each_word::<Logs>(60);
}

#[test]
fn damaged_log_is_refused() {
    let mut world = Logs::begin();
    (0..50).for_each(|number| world.publish(number));
    let recover = |world: &Logs| {
        LogWriter::recover(Arc::clone(&world.region), world.geometry, &world.line, &CONTINUED)
            .map(|writer| writer.last())
    };
    let newest = world.writer.last();
    assert_eq!(recover(&world), Ok(newest));
    let positions = "the positions of the log";
    for (offset, what) in [(HOT_SEQUENCE, "the newest record"), (HOT_END, positions), (HOT_START, positions)]
    {
        let before = world.region.load(offset);
        world.region.store(offset, before + 1);
        assert_eq!(recover(&world).unwrap_err().what, what);
        world.region.store(offset, before);
    }
    let place = world.geometry.offset(world.region.load(HOT_START));
    world.region.store(place + 16, 99);
    assert_eq!(recover(&world).unwrap_err().offset, place);
}
