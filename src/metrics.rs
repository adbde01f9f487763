//! Self-describing counters in shared memory. Each line names and types its counter, so that any process that can read it can
//! show it without this crate's code, even one-sidedly, and even while the owner hangs.
//!
//! ```text
//! 00  u64       value: a count, or the number of times an error happened
//! 08  u64       first time, ns since the Unix epoch (errors)
//! 10  u64       last time, ns since the Unix epoch (errors)
//! 18  [u8; 28]  name, UTF-8, padded with zeros
//! 34  u32       unit: 1 count, 2 bytes, 3 ns, 4 time, 5 process, 6 error, 7 text (the name is all there is)
//! 38  u32       CRC-32 of 18..38
//! 3c  u32       zero
//! ```
//!
//! A line without a name ends the list. There is one writer.

use std::sync::Arc;

use crate::checksum::crc32;
use crate::limits;
use crate::memory::Region;

/// Bytes of a line.
const LINE: usize = 64;
/// Words of a line.
const WORDS: usize = LINE / WORD;
/// Bytes of a word.
const WORD: usize = 8;
/// The offsets of the first and the last time in a line.
const FIRST: usize = 0x08;
const LAST: usize = 0x10;
/// The description's first and last byte.
const NAME: usize = 0x18;
const UNIT: usize = 0x34;
const CHECK: usize = 0x38;

/// The unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Unit {
    /// Things.
    Count = 1,
    /// Bytes.
    Bytes = 2,
    /// Nanoseconds.
    Ns = 3,
    /// A moment, nanoseconds since the Unix epoch.
    Time = 4,
    /// A process id.
    Process = 5,
    /// How often an error happened.
    Error = 6,
    /// Nothing: the name is a text that belongs to the list.
    Text = 7,
}

impl Unit {
    const ALL: [Self; 7] =
        [Self::Count, Self::Bytes, Self::Ns, Self::Time, Self::Process, Self::Error, Self::Text];

    /// What stands for it in a line.
    fn number(self) -> u32 {
        self as u32
    }
}

/// A counter, as read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Counter {
    /// What it is.
    pub name: String,
    /// What it counts.
    pub unit: Unit,
    /// How many.
    pub value: u64,
    /// First time (errors; otherwise 0), nanoseconds since the Unix epoch.
    pub first_ns: u64,
    /// Last time (errors; otherwise 0), nanoseconds since the Unix epoch.
    pub last_ns: u64,
}

/// The writer's end of a list of counters. An update is one store.
#[derive(Debug)]
pub(crate) struct Counters {
    region: Arc<Region>,
    offset: usize,
    lines_max: usize,
    lines: usize,
    errors: Vec<(&'static str, Handle)>,
}

/// One counter of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    offset: usize,
}

/// A counter that another owner updates.
#[derive(Debug)]
pub(crate) struct Gauge {
    region: Arc<Region>,
    handle: Handle,
}

impl Gauge {
    /// Sets it.
    pub(crate) fn set(&self, value: u64) {
        self.region.store(self.handle.offset, value);
    }

    /// The value last set.
    pub(crate) fn value(&self) -> u64 {
        self.region.load(self.handle.offset)
    }
}

impl Counters {
    /// An empty list in `len` bytes of this region at `offset`.
    pub(crate) fn new(region: Arc<Region>, offset: usize, len: usize) -> Self {
        Self { region, offset, lines_max: len / LINE, lines: 0, errors: Vec::new() }
    }

    /// Adds a counter. `None` when the list is full.
    pub(crate) fn add(&mut self, name: &str, unit: Unit, value: u64) -> Option<Handle> {
        if self.lines == self.lines_max {
            return None;
        }
        let offset = self.offset + self.lines * LINE;
        let description = describe(name, unit);
        self.region.store(offset, value);
        self.region.copy_in(offset + NAME + WORD, description.split_at(1).1);
        // The name's first word adds the line to the list, so it is written last.
        self.region.store_release(offset + NAME, description.first().copied().unwrap_or(0));
        self.lines += 1;
        Some(Handle { offset })
    }

    /// Hands over a counter, which only the gauge updates from then on.
    pub(crate) fn gauge(&self, handle: Handle) -> Gauge {
        Gauge { region: Arc::clone(&self.region), handle }
    }

    /// Sets a counter.
    #[inline]
    pub(crate) fn set(&self, counter: Handle, value: u64) {
        self.region.store(counter.offset, value);
    }

    /// Adds to a counter.
    #[inline]
    pub(crate) fn increase(&self, counter: Handle, by: u64) {
        self.region.store(counter.offset, self.region.load(counter.offset).wrapping_add(by));
    }

    /// Counts an error by name, with its first and last time. Ignores new names beyond [`limits::DISTINCT_ERRORS_MAX`], or when
    /// the list is full.
    pub(crate) fn error(&mut self, name: &'static str, now_ns: u64) {
        let known = self.errors.iter().find(|(other, _)| *other == name).map(|(_, handle)| *handle);
        let handle = match known {
            Some(handle) => handle,
            None if self.errors.len() == limits::DISTINCT_ERRORS_MAX => return,
            None => {
                let Some(handle) = self.add(name, Unit::Error, 0) else { return };
                self.region.store(handle.offset + FIRST, now_ns);
                self.errors.push((name, handle));
                handle
            }
        };
        self.region.store(handle.offset + LAST, now_ns);
        self.increase(handle, 1);
    }
}

/// Reads the list in `len` bytes of this region at `offset`. Skips damaged lines.
pub(crate) fn read(region: &Region, offset: usize, len: usize) -> Vec<Counter> {
    (0..len / LINE)
        .map(|index| {
            let mut line = [0; WORDS];
            region.copy_out(offset + index * LINE, &mut line);
            line
        })
        .take_while(|line| line.get(NAME / WORD).is_some_and(|word| *word != 0))
        .filter_map(|line| parse(&line))
        .collect()
}

/// The words of a description: name, unit, check.
fn describe(name: &str, unit: Unit) -> [u64; WORDS - NAME / WORD] {
    let mut words = [0; WORDS - NAME / WORD];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let (described, check) = bytes.split_at_mut(CHECK - NAME);
    let (text, number) = described.split_at_mut(UNIT - NAME);
    let end = (0..=name.len().min(text.len())).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    text.iter_mut().zip(name.as_bytes().iter().take(end)).for_each(|(to, from)| *to = *from);
    number.copy_from_slice(&unit.number().to_le_bytes());
    let crc = crc32(described).to_le_bytes();
    check.iter_mut().zip(crc).for_each(|(to, from)| *to = from);
    words
}

fn parse(line: &[u64; WORDS]) -> Option<Counter> {
    let bytes: &[u8; LINE] = bytemuck::cast_ref(line);
    let (head, check) = bytes.split_at(CHECK);
    let (_, described) = head.split_at(NAME);
    if !check.starts_with(&crc32(described).to_le_bytes()) {
        return None;
    }
    let (text, number) = described.split_at(UNIT - NAME);
    let unit = Unit::ALL.into_iter().find(|unit| number == unit.number().to_le_bytes())?;
    let name = std::str::from_utf8(text).ok()?.trim_end_matches('\0').to_owned();
    // A peer may write what it wants, and the name is shown on terminals.
    if name.chars().any(char::is_control) {
        return None;
    }
    let [value, first_ns, last_ns, ..] = *line;
    Some(Counter { name, unit, value, first_ns, last_ns })
}

const _: () =
    assert!(FIRST + WORD == LAST && LAST + WORD == NAME && UNIT + 4 == CHECK && CHECK + WORD == LINE);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Protection;

    fn counters() -> (Arc<Region>, Counters) {
        let region = Arc::new(Region::allocate(4096, Protection::PeersRead).unwrap());
        (Arc::clone(&region), Counters::new(region, 128, 512))
    }

    #[test]
    fn name_with_control_characters_is_passed_over() {
        let (region, mut counters) = counters();
        for name in ["\u{1b}[2J", "two\nlines", "nul\0inside", "plain"] {
            counters.add(name, Unit::Count, 1).unwrap();
        }
        let read = read(&region, 128, 512);
        assert_eq!(read.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["plain"]);
    }

    #[test]
    fn a_reader_sees_names_units_and_values() {
        let (region, mut counters) = counters();
        let bytes = counters.add("bytes", Unit::Bytes, 0).unwrap();
        counters.add("host: a-host-with-a-name-that-is-too-long", Unit::Text, 0).unwrap();
        counters.increase(bytes, 5);
        counters.increase(bytes, 6);
        let read = read(&region, 128, 512);
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].name.as_str(), read[0].unit, read[0].value), ("bytes", Unit::Bytes, 11));
        assert_eq!(read[1].name, "host: a-host-with-a-name-tha");
    }

    #[test]
    fn errors_are_kept_once_with_count_and_times() {
        let (region, mut counters) = counters();
        for now in [10, 20, 30] {
            counters.error("payload too long", now);
        }
        let read = read(&region, 128, 512);
        assert_eq!((read[0].value, read[0].first_ns, read[0].last_ns), (3, 10, 30));
    }

    #[test]
    fn a_full_list_takes_no_more() {
        let (region, mut counters) = counters();
        assert_eq!((0..20).filter(|_| counters.add("x", Unit::Count, 0).is_some()).count(), 8);
        counters.error("late", 1);
        assert_eq!(read(&region, 128, 512).len(), 8);
    }

    #[test]
    fn a_damaged_line_is_left_out() {
        let (region, mut counters) = counters();
        counters.add("one", Unit::Count, 1).unwrap();
        counters.add("two", Unit::Count, 2).unwrap();
        region.store(128 + NAME, region.load(128 + NAME) ^ 1);
        let read = read(&region, 128, 512);
        assert_eq!(read.iter().map(|counter| counter.name.as_str()).collect::<Vec<_>>(), ["two"]);
    }
}
