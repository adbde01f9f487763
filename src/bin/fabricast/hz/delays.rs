//! The time from the time stamps of values to publishing.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::super::output::{age, printable};
use super::super::subscription::Value;
use super::super::value::Schemas;

/// Values decoded per second: decoding each one of a fast topic would take too long.
pub(super) const DECODED_MAX: u32 = 10_000;
/// Delays of a field held for their median. When there are as many, every second one is dropped, and of later ones, too.
const HELD_MAX: usize = 1 << 16;

/// The delays of all time stamps of a topic.
#[derive(Debug)]
pub(super) struct Delays {
    schemas: Schemas,
    /// By the names of their fields.
    fields: Vec<(String, Delay)>,
    /// Values to decode in this second.
    left: u32,
}

#[derive(Debug)]
struct Delay {
    held: Vec<i64>,
    seen: u64,
    /// One of so many is held.
    stride: u64,
    max_ns: i64,
}

/// A report of delays, as JSON.
#[derive(Debug, Serialize)]
struct Report {
    values: u64,
    median_ns: i64,
    max_ns: i64,
}

impl Delays {
    /// None yet.
    pub(super) fn new(schemas: Schemas) -> Self {
        let fields = schemas.timestamps().names().map(|name| (name.to_owned(), Delay::new())).collect();
        Self { schemas, fields, left: DECODED_MAX }
    }

    /// Goes on with values of these schemas.
    pub(super) fn renew(&mut self, schemas: Schemas) {
        for name in schemas.timestamps().names() {
            if !self.fields.iter().any(|(known, _)| known == name) {
                self.fields.push((name.to_owned(), Delay::new()));
            }
        }
        self.schemas = schemas;
    }

    /// Whether another value of this second counts.
    pub(super) fn wants_more(&self) -> bool {
        self.left > 0 && !self.fields.is_empty()
    }

    /// Begins with the next second.
    pub(super) fn begin_second(&mut self) {
        self.left = DECODED_MAX;
    }

    /// Adds the time stamps of a value.
    pub(super) fn add(&mut self, value: &Value) {
        self.left = self.left.saturating_sub(1);
        let Ok(content) = self.schemas.decode(value) else { return };
        for stamp in &content.timestamps {
            if let Some((_, delay)) = self.fields.iter_mut().find(|(name, _)| name == stamp.name) {
                delay.add(stamp.offset_ns.saturating_neg());
            }
        }
    }

    /// The delays as an object of JSON, by the names of their fields.
    pub(super) fn as_object(&self) -> Map<String, Json> {
        let reports = self.fields.iter().filter_map(|(name, delay)| Some((name.clone(), delay.report()?)));
        // A report is always JSON.
        reports.map(|(name, report)| (name, serde_json::to_value(report).unwrap_or_default())).collect()
    }

    /// A line for people for each field.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        for (name, delay) in &self.fields {
            if let Some(Report { values, median_ns, max_ns }) = delay.report() {
                let (name, median, max) = (printable(name), age(median_ns), age(max_ns));
                writeln!(out, "from {name} to publishing: median {median}, max {max}, of {values} values")?;
            }
        }
        out.flush()
    }
}

impl Delay {
    fn new() -> Self {
        Self { held: Vec::new(), seen: 0, stride: 1, max_ns: i64::MIN }
    }

    fn add(&mut self, ns: i64) {
        self.max_ns = self.max_ns.max(ns);
        if self.seen.is_multiple_of(self.stride) {
            self.held.push(ns);
        }
        self.seen += 1;
        if self.held.len() >= HELD_MAX {
            let mut index = 0_usize;
            self.held.retain(|_| {
                index += 1;
                !index.is_multiple_of(2)
            });
            self.stride *= 2;
        }
    }

    fn report(&self) -> Option<Report> {
        let mut held = self.held.clone();
        held.sort_unstable();
        let median_ns = *held.get(held.len() / 2)?;
        Some(Report { values: self.seen, median_ns, max_ns: self.max_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_that_of_all_delays_however_many() {
        for count in [1, 9, 65_535, 65_536, 1_000_000_i64] {
            let mut delay = Delay::new();
            // In an order that is not theirs.
            (0..count).for_each(|index| delay.add((index * 7_919) % count));
            let report = delay.report().unwrap();
            assert_eq!((report.values, report.max_ns), (count as u64, count - 1));
            assert!((report.median_ns - count / 2).abs() <= count / 100, "{report:?}");
            assert!(delay.held.len() < HELD_MAX);
        }
        assert!(Delay::new().report().is_none());
    }
}
