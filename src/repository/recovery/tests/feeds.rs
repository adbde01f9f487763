//! Feeds: a log and a table with one sequence.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tables::{self, stage};
use super::{Lives, Scenario, TOPIC, kill_after_each_word, logs, recovered, region};
use crate::id::{Epoch, Sequence};
use crate::layout::header::StaticHeader;
use crate::layout::log::LogGeometry;
use crate::layout::table::TableGeometry;
use crate::memory::Region;
use crate::repository::Writer as _;
use crate::repository::log::{LogReader, LogStart, LogWriter};
use crate::repository::table::{TableReader, TableWriter};

const LEN_MAX: usize = 40;

struct Feeds {
    log: LogWriter,
    table: TableWriter,
    regions: [(Arc<Region>, StaticHeader); 2],
    geometry: (LogGeometry, TableGeometry),
    records: LogReader,
    received: u64,
    lives: Lives,
}

/// The key of a record.
fn key(sequence: u64) -> Vec<u8> {
    format!("k-{}", sequence * 7 % 5).into_bytes()
}

impl Scenario for Feeds {
    fn begin() -> Self {
        let log = LogGeometry::new(4096, LEN_MAX).expect("a geometry");
        let geometry = (log, TableGeometry::new(6, 3, 60).expect("a geometry"));
        let regions = [region(geometry.0), region(geometry.1)];
        let log = LogWriter::new(Arc::clone(&regions[0].0), geometry.0, &regions[0].1);
        let table = TableWriter::new(Arc::clone(&regions[1].0), geometry.1, &regions[1].1);
        let records = LogReader::new(geometry.0, Epoch::FIRST, TOPIC, LogStart::Earliest);
        Self { log, table, regions, geometry, records, received: 0, lives: Lives::default() }
    }

    /// As `FeedPublisher` does.
    fn publish(&mut self, number: u64) {
        let first = self.log.last().get() + 1;
        let last = first + number % 4;
        for sequence in first..=last {
            self.table.set_next(Sequence::new(sequence));
            let (key, value) = (key(sequence), tables::value(sequence, &key(sequence)));
            assert!(stage(&mut self.table, &key, &value, last));
        }
        for sequence in first..=last {
            self.log.append(&self.lives.payload(sequence, LEN_MAX), last).expect("it fits");
        }
        self.table.set_next(Sequence::new(last));
        self.table.commit(last);
        self.log.commit(last);
    }

    fn newest(&self) -> u64 {
        self.log.last().get()
    }

    fn receive(&mut self) {
        let Self { records, regions, lives, .. } = self;
        let check = |sequence, found: &[u8]| assert_eq!(found, lives.payload(sequence, LEN_MAX));
        if let Some((first, last)) = logs::take_all(records, &regions[0].0, check) {
            assert_eq!(first, self.received + 1);
            self.received = last;
        }
    }

    fn recover(&mut self) {
        let [(log, log_line), (table, table_line)] = &self.regions;
        self.table = recovered(table, self.geometry.1, table_line, None);
        self.log = recovered(log, self.geometry.0, log_line, Some(self.table.last()));
        self.lives.end(self.newest());
        assert!(self.log.last().get() >= self.received, "a subscriber has received what is lost");
    }

    fn check_held(&self) {
        assert_eq!(self.log.last(), self.table.last());
        let check = |sequence, found: &[u8]| assert_eq!(found, self.lives.payload(sequence, LEN_MAX));
        let mut late = LogReader::new(self.geometry.0, Epoch::FIRST, TOPIC, LogStart::Earliest);
        let held = logs::take_all(&mut late, &self.regions[0].0, check);
        assert_eq!(held.map_or(0, |(_, last)| last), self.newest());
        let mut late = TableReader::new(self.geometry.1, (Epoch::FIRST, TOPIC), Sequence::NONE);
        let mut found = BTreeMap::new();
        tables::take_all(&mut late, &self.regions[1].0, &mut found);
        // The value of each key is that of its last record.
        let newest: BTreeMap<_, _> = (1..=self.newest()).map(|sequence| (key(sequence), sequence)).collect();
        let value = |sequence, key: &[u8]| (sequence, tables::value(sequence, key));
        let expected = newest.into_iter().map(|(key, sequence)| (key.clone(), value(sequence, &key)));
        assert_eq!(found, expected.collect());
    }
}

#[test]
fn log_and_table_of_a_killed_feed_agree() {
    kill_after_each_word::<Feeds>(60);
}
