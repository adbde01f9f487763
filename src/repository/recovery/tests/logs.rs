//! Logs.

use std::sync::Arc;

use super::{CONTINUED, Lives, Scenario, TOPIC, kill_after_each_word, recovered, region};
use crate::id::{Epoch, Sequence};
use crate::layout::header::{HOT_SEQUENCE, StaticHeader};
use crate::layout::log::{HOT_END, HOT_START, HOT_START_SEQUENCE, LogGeometry, START_AGAIN};
use crate::memory::{Region, kill};
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
    lives: Lives,
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

impl Logs {
    fn payload(&self, sequence: u64) -> Vec<u8> {
        self.lives.payload(sequence, LEN_MAX)
    }

    fn check(&self, sequence: u64, found: &[u8]) {
        assert_eq!(found, self.payload(sequence), "{sequence}");
    }
}

impl Scenario for Logs {
    fn begin() -> Self {
        let geometry = LogGeometry::new(4096, LEN_MAX).expect("a geometry");
        assert!(geometry.segment_len() < LEN_MAX);
        let (region, line) = region(geometry);
        let writer = LogWriter::new(Arc::clone(&region), geometry, &line);
        let reader = LogReader::new(geometry, Epoch::FIRST, TOPIC, LogStart::Earliest);
        Self { writer, region, line, reader, geometry, received: 0, lives: Lives::default() }
    }

    fn publish(&mut self, number: u64) {
        let first = self.writer.last().get() + 1;
        let last = first + number % 4;
        for sequence in first..=last {
            let payload = self.payload(sequence);
            if sequence.is_multiple_of(5) {
                // A loan that is given up, and one that is not.
                self.writer.stage(sequence).append(&payload).expect("it fits");
                let mut loan = self.writer.stage(sequence);
                payload.chunks(9).for_each(|piece| loan.append(piece).expect("it fits"));
                loan.finish(sequence);
            } else {
                self.writer.append(&payload, sequence).expect("it fits");
            }
        }
        self.writer.commit(last);
        if number % 8 == 5 {
            // It may skip the rest of the ring.
            self.writer.stage(last).append(&[1; 90]).expect("it fits");
        }
    }

    fn newest(&self) -> u64 {
        self.writer.last().get()
    }

    fn receive(&mut self) {
        let Self { reader, region, lives, .. } = self;
        let check = |sequence, found: &[u8]| {
            assert_eq!(found, lives.payload(sequence, LEN_MAX), "{sequence}");
        };
        if let Some((first, last)) = take_all(reader, region, check) {
            assert_eq!(first, self.received + 1);
            self.received = last;
        }
    }

    fn recover(&mut self) {
        self.writer = recovered(&self.region, self.geometry, &self.line, None);
        self.lives.end(self.newest());
        assert!(self.writer.last().get() >= self.received, "a subscriber has received what is lost");
        assert_eq!(self.region.load(HOT_START), self.region.load(START_AGAIN));
    }

    fn check_held(&self) {
        let check = |sequence, found: &[u8]| self.check(sequence, found);
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
    // An index entry that is wrong stays so, too, where the rest is refused.
    let entry = world.geometry.entry_offset(world.geometry.segment(world.region.load(HOT_END)));
    let right = world.region.load(entry);
    world.region.store(entry, right + 8);
    let words = |world: &Logs| {
        let mut words = vec![0; world.region.len() / 8];
        world.region.copy_out(0, &mut words);
        words
    };
    let positions = "the positions of the log";
    for (offset, what) in [(HOT_SEQUENCE, "the newest record"), (HOT_END, positions), (HOT_START, positions)]
    {
        let before = world.region.load(offset);
        world.region.store(offset, before + 1);
        let damaged = words(&world);
        assert_eq!(recover(&world).unwrap_err().what, what);
        assert!(words(&world) == damaged, "a refused log was changed");
        world.region.store(offset, before);
    }
    assert_eq!(recover(&world), Ok(newest));
    assert_eq!(world.region.load(entry), right);
    let place = world.geometry.offset(world.region.load(HOT_START));
    world.region.store(place + 16, 99);
    assert_eq!(recover(&world).unwrap_err().offset, place);
}

/// A log of records of one size, the 39th of which does not fit at the end of the ring, and its newest record after a writer that was
/// killed while it appended three records, and one that was killed after these steps.
fn recovered_after(last: fn(&mut LogWriter)) -> u64 {
    let geometry = LogGeometry::new(4096, 76).expect("a geometry");
    let (region, line) = region(geometry);
    let mut writer = LogWriter::new(Arc::clone(&region), geometry, &line);
    let append = |writer: &mut LogWriter, byte| writer.append(&[byte; 76], 5).map(drop).expect("it fits");
    for _ in 1..=38 {
        append(&mut writer, 1);
        writer.commit(5);
    }
    (0..3).for_each(|_| append(&mut writer, 1));
    drop(writer);
    let mut writer: LogWriter = recovered(&region, geometry, &line, None);
    assert_eq!(writer.last().get(), 38);
    append(&mut writer, 2);
    writer.commit(5);
    assert_eq!(geometry.rest(writer.committed_end()), 40, "no record fits there");
    last(&mut writer);
    drop(writer);
    let writer: LogWriter = recovered(&region, geometry, &line, Some(Sequence::new(39)));
    let again: LogWriter = recovered(&region, geometry, &line, None);
    assert_eq!(writer.last(), again.last());
    again.last().get()
}

/// Records 40 and 41 of a dead writer were where the next one would have put its own, behind the skipped rest of the ring.
#[test]
fn skipped_rest_of_the_ring_shows_nothing_that_a_dead_writer_left_behind_it() {
    assert_eq!(recovered_after(|_| ()), 39);
    assert_eq!(recovered_after(|writer| writer.stage(5).append(&[2; 76]).expect("it fits")), 39);
    assert_eq!(recovered_after(|writer| writer.append(&[2; 76], 5).map(drop).expect("it fits")), 39);
}

/// A commit that ends where a segment begins that is not given up yet leaves that as it is; the next record gives it up, and only then
/// its first word is cleared. A writer that is killed in between has committed nothing, whatever the payload says that was there.
#[test]
fn payload_that_was_given_up_is_no_record_of_the_writer_that_was_killed_then() {
    let geometry = LogGeometry::new(4096, 232).expect("a geometry");
    assert_eq!(geometry.segment_len(), 64);
    let (region, line) = region(geometry);
    // Record 19 as a publisher would write it, in the payload of the first one, where the second segment begins.
    let mut forger = LogWriter::new(super::region(geometry).0, geometry, &line);
    forger.begin_after(Sequence::new(18));
    forger.append(&[9; 8], 5).expect("it fits");
    forger.commit(5);
    let mut forged = [0; 4];
    forger.region().copy_out(geometry.offset(0), &mut forged);
    let mut writer = LogWriter::new(Arc::clone(&region), geometry, &line);
    let mut publish = |payload: &[u8]| {
        writer.append(payload, 5).expect("it fits");
        writer.commit(5);
        writer.committed_end()
    };
    assert_eq!(publish(&[&[0; 40][..], bytemuck::cast_slice(&forged)].concat()), 96);
    assert_eq!((0..15).map(|_| publish(&[0; 232])).max(), Some(3936));
    assert_eq!([publish(&[0; 136]), publish(&[0; 40])], [4096, 4160]);
    assert_eq!(
        geometry.free_until(region.load(HOT_START)),
        4160,
        "the next record gives up the second segment"
    );
    for words in 0..8 {
        let copy = super::region(geometry).0;
        (0..geometry.region_len()).step_by(8).for_each(|offset| copy.store(offset, region.load(offset)));
        let mut writer: LogWriter = recovered(&copy, geometry, &line, None);
        kill::killed_after(words, || writer.append(&[1; 8], 5)).1.expect("it fits");
        let writer: LogWriter = recovered(&copy, geometry, &line, None);
        assert_eq!(writer.last().get(), 18, "after {words} words");
    }
}
