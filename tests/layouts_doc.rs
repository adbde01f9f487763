//! docs/layouts.md against the memory of a running publisher and the entry of a running node: the offset of each field comes only
//! from the tables of that page.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, as it should"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use fabricast::{Node, Payload, Raw, StatePublisher, TablePublisher, TopicId};

#[path = "layouts_doc/feed.rs"]
mod feed;
#[path = "layouts_doc/file.rs"]
mod file;
#[path = "layouts_doc/table.rs"]
mod table;

const PAGE: &str = include_str!("../docs/layouts.md");
const SLOT_COUNT: u64 = 4;
const PAYLOAD_LEN_MAX: u64 = 100;
const LINE: u64 = 64;
/// Bytes of the slot trailer.
const TRAILER_LEN: u64 = 16;

type Value = (u64, String);

/// The rows of a table: the name of a field up to the first colon or comma, and its offset.
struct Table {
    title: &'static str,
    fields: BTreeMap<&'static str, (u64, u64)>,
}

/// A part of a file that a table describes.
struct Part<'a> {
    file: &'a File,
    offset: u64,
    table: &'a Table,
}

impl Table {
    fn of(title: &'static str) -> Self {
        let section = PAGE.split("\n## ").find(|section| section.lines().next() == Some(title));
        let section = section.unwrap_or_else(|| panic!("the page has no section {title}"));
        let mut fields = BTreeMap::new();
        for row in section.lines().filter(|line| line.starts_with("| 0x")) {
            let cells: Vec<&'static str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let offset = u64::from_str_radix(cells[0].trim_start_matches("0x"), 16).unwrap();
            let name = cells[cells.len() - 1].split([':', ',']).next().unwrap();
            let name = if name.starts_with("CRC-32 of") { "CRC-32" } else { name };
            assert!(
                fields.insert(name, (offset, len_of(cells[1]))).is_none(),
                "{title}: {name} stands twice"
            );
        }
        Self { title, fields }
    }

    fn place(&self, name: &str) -> (u64, u64) {
        *self.fields.get(name).unwrap_or_else(|| panic!("{} has no field {name}", self.title))
    }

    /// Checks that the fields neither overlap nor leave gaps, except for `zero` bytes at the end.
    fn assert_covers(&self, len: u64, names: &[&str]) {
        let mut places: Vec<(u64, u64)> = self.fields.values().copied().collect();
        places.sort_unstable();
        for pair in places.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{}: {pair:x?} overlap", self.title);
        }
        assert!(places.iter().all(|(offset, size)| offset + size <= len), "{}: beyond {len:x}", self.title);
        let mut named: Vec<&str> = self.fields.keys().copied().collect();
        let mut expected = names.to_vec();
        named.sort_unstable();
        expected.sort_unstable();
        assert_eq!(named, expected, "{}: the test and the page know different fields", self.title);
    }
}

fn len_of(kind: &str) -> u64 {
    match kind {
        "u8" => 1,
        "u16" => 2,
        "u32" => 4,
        "u64" => 8,
        array => array.trim_start_matches("[u8; ").trim_end_matches(']').parse().unwrap_or(0),
    }
}

impl Part<'_> {
    fn bytes(&self, name: &str) -> Vec<u8> {
        let (offset, len) = self.table.place(name);
        read(self.file, self.offset + offset, len)
    }

    fn number(&self, name: &str) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(name);
        word[..bytes.len()].copy_from_slice(&bytes);
        u64::from_le_bytes(word)
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).unwrap().trim_end_matches('\0').to_owned()
    }

    /// Bytes of the part, by their offsets in it.
    fn range(&self, from: u64, to: u64) -> Vec<u8> {
        read(self.file, self.offset + from, to - from)
    }

    /// Checks all numeric fields.
    fn assert_numbers(&self, len: u64, expected: &[(&str, u64)]) {
        for (name, value) in expected {
            assert_eq!(self.number(name), *value, "{}: {name}", self.table.title);
        }
        let described: u64 = self.table.fields.values().map(|(offset, size)| offset + size).max().unwrap();
        assert!(self.range(described, len).iter().all(|byte| *byte == 0), "{}: not zero", self.table.title);
    }
}

fn read(file: &File, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// The memory file of this topic's repository: other tests may have theirs in the same process.
fn repository(topic: &str) -> File {
    let topic = TopicId::of(&topic.parse().unwrap()).get();
    let place = Table::of("Region").place("static header").0 + Table::of("Static header").place("topic").0;
    let is_sought = |file: &File| {
        let mut found = [[0; 8]; 2];
        let [magic, id] = &mut found;
        let is_read = file.read_exact_at(magic, 0).and_then(|()| file.read_exact_at(id, place));
        is_read.is_ok() && found == [*b"FBCREPO1", topic.to_le_bytes()]
    };
    memory_files().find(is_sought).expect("the repository among the open files")
}

/// The memory files of this process.
fn memory_files() -> impl Iterator<Item = File> {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let named = files.filter(|entry| {
        std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().contains("memfd:fabricast"))
    });
    // Another test may close its own meanwhile.
    named.filter_map(|entry| File::open(entry.path()).ok())
}

fn crc(parts: &[&[u8]]) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().into()
}

fn assert_static_header(line: &Part<'_>, publisher: &StatePublisher<Value>) {
    let schema = <Value as Payload>::schema().unwrap();
    let json = schema.to_json();
    let name = publisher.topic().as_str().as_bytes();
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let topic = name.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    assert_eq!(topic, TopicId::of(publisher.topic()).get());
    let used = Table::of("Slot").place("payload").0 + TRAILER_LEN + PAYLOAD_LEN_MAX.next_multiple_of(8);
    let stride = used.next_multiple_of(2 * LINE);
    let region = Table::of("Region");
    let numbers = [
        ("magic", u64::from_le_bytes(*b"FBCREPO1")),
        ("layout version", 3),
        ("check", 1),
        ("kind of topic", 1),
        ("largest payload", PAYLOAD_LEN_MAX),
        ("epoch", publisher.epoch().get()),
        ("topic", topic),
        ("schema hash", (json.len() as u64) << 32 | crc(&[&json])),
        ("region length", region.place("slots of a state topic").0 + SLOT_COUNT * stride),
        ("first parameter", SLOT_COUNT),
        ("second parameter", stride),
        ("third parameter", 0),
        ("fourth parameter", 0),
        ("CRC-32", crc(&[&line.range(0, 0x78)])),
    ];
    line.table.assert_covers(2 * LINE, &numbers.map(|(name, _)| name));
    line.assert_numbers(2 * LINE, &numbers);
    assert_eq!(line.range(0x50, 0x78), [0; 0x28]);
}

fn assert_slot(slot: &Part<'_>, trailer: &Table, sequence: u64, value: &Value, line: &Part<'_>) {
    let mut expected = [0; 100];
    let len = Value::encode(value, &Value::schema().unwrap(), &mut expected).unwrap();
    let payload_offset = slot.table.place("payload").0;
    let padded = (len as u64).next_multiple_of(8);
    let payload = slot.range(payload_offset, payload_offset + padded);
    assert_eq!(payload[..len], expected[..len]);
    assert!(payload[len..].iter().all(|byte| *byte == 0));
    let numbers = [
        ("head stamp", sequence),
        ("epoch", line.number("epoch")),
        ("payload length", len as u64),
        ("encoding", 1),
        ("flags", 0),
        ("payload", 0),
    ];
    let names: Vec<&str> = numbers.iter().map(|(name, _)| *name).chain(["time of publishing"]).collect();
    slot.table.assert_covers(payload_offset, &names);
    for (name, number) in &numbers {
        assert_eq!(slot.number(name), *number, "slot: {name}");
    }
    let trailer = Part { file: slot.file, offset: slot.offset + payload_offset + padded, table: trailer };
    let check = crc(&[&line.bytes("topic"), &slot.range(0, payload_offset), &payload[..len]]);
    trailer.table.assert_covers(TRAILER_LEN, &["CRC-32", "tail stamp"]);
    assert_eq!((trailer.number("CRC-32"), trailer.number("tail stamp")), (check, sequence));
    assert_eq!(trailer.range(4, 8), [0; 4]);
}

fn assert_counters(file: &File, offset: u64, bytes: u64) {
    let table = Table::of("Counters");
    table.assert_covers(LINE, &["value", "first time", "last time", "name", "unit", "CRC-32"]);
    let lines = (0..32).map(|index| Part { file, offset: offset + index * LINE, table: &table });
    let lines: Vec<Part<'_>> = lines.take_while(|line| !line.text("name").is_empty()).collect();
    for line in &lines {
        line.assert_numbers(
            LINE,
            &[("first time", 0), ("last time", 0), ("CRC-32", crc(&[&line.range(0x18, 0x38)]))],
        );
    }
    let found: Vec<(String, u64)> =
        lines.iter().map(|line| (line.text("name"), line.number("unit"))).collect();
    let names = [
        "process",
        "started",
        "host",
        "bytes",
        "publish duration",
        "pull subscribers",
        "push subscribers",
        "without notices",
    ];
    let units = [5, 4, 7, 2, 3, 1, 1, 1];
    assert_eq!(found.len(), names.len(), "{found:?}");
    for ((name, unit), expected) in found.iter().zip(names.iter().zip(units)) {
        assert_eq!((name.split(':').next().unwrap(), *unit), (*expected.0, expected.1));
    }
    assert_eq!((lines[0].number("value"), lines[3].number("value")), (std::process::id().into(), bytes));
}

fn assert_entry(file: &File) {
    let table = Table::of("Node entry");
    let entry = Part { file, offset: 0, table: &table };
    let numbers = [
        ("magic", u64::from_le_bytes(*b"FBCNODE1")),
        ("entry version", 1),
        ("process", std::process::id().into()),
        ("length of the name", "layouts".len() as u64),
        ("CRC-32", crc(&[&entry.range(0, 0x78)])),
    ];
    let names: Vec<&str> = numbers.iter().map(|(name, _)| *name).chain(["start time", "name"]).collect();
    table.assert_covers(128, &names);
    entry.assert_numbers(128, &numbers);
    assert_eq!(entry.text("name"), "layouts");
    assert!(entry.number("start time") > 1_577_836_800_000_000_000);
    assert_eq!(file.metadata().unwrap().len(), 128);
}

/// No clock is set here, so that times are the monotonic clock and the anchor.
fn assert_clock_line(line: &Part<'_>, hot: &Part<'_>) {
    let namespace = std::fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino());
    let numbers = [("time namespace", namespace)];
    let leaps =
        ["first time after the last leap", "length of the last leap", "first time after the leap before it"];
    let names = ["version", "anchor", "length of the leap before it"].into_iter().chain(leaps);
    line.table.assert_covers(LINE, &names.chain(["time namespace"]).collect::<Vec<_>>());
    line.assert_numbers(LINE, &numbers);
    let version = line.number("version");
    assert!(version > 0 && version.is_multiple_of(2), "{version}");
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let (uptime_s, _) = uptime.split_once('.').unwrap();
    let monotonic_ns = hot.number("heartbeat").wrapping_sub(line.number("anchor"));
    let limit_ns = (uptime_s.parse::<u64>().unwrap() + 2) * 1_000_000_000;
    assert!(monotonic_ns <= limit_ns, "{monotonic_ns} after {limit_ns}");
}

#[test]
fn the_page_describes_the_memory_of_a_publisher_and_the_entry_of_its_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::builder().name("layouts").unwrap().runtime_dir(dir.path()).open().unwrap();
    let builder = node.state_publisher::<Value>("a/b").slots(4).payload_len_max(100);
    let mut publisher = builder.open().unwrap();
    let values: Vec<Value> =
        (1..=6_u8).map(|number| (number.into(), "x".repeat(usize::from(number) * 13))).collect();
    for value in &values {
        publisher.publish(value).unwrap();
    }
    let encoded_len = |value: &Value| 16 + value.1.len() as u64;

    let (file, region) = (repository("a/b"), Table::of("Region"));
    let (static_header, hot_line, slots) =
        (Table::of("Static header"), Table::of("Hot line"), Table::of("Slot"));
    let line = Part { file: &file, offset: region.place("static header").0, table: &static_header };
    assert_static_header(&line, &publisher);

    let hot = Part { file: &file, offset: region.place("hot line").0, table: &hot_line };
    hot_line.assert_covers(
        LINE,
        &[
            "newest sequence",
            "length of the newest payload",
            "heartbeat",
            "epoch",
            "time of the newest value",
        ],
    );
    hot.assert_numbers(LINE, &[("newest sequence", 6), ("epoch", line.number("epoch"))]);
    assert_eq!(hot.number("length of the newest payload"), encoded_len(&values[5]));
    assert!(hot.number("heartbeat") > 1_577_836_800_000_000_000);

    let clock_line = Table::of("Clock line");
    assert_clock_line(&Part { file: &file, offset: region.place("clock line").0, table: &clock_line }, &hot);

    assert_counters(&file, region.place("counters").0, values.iter().map(encoded_len).sum());
    let trailer = Table::of("Slot trailer");
    for (value, sequence) in values.iter().zip(1..).skip(2) {
        let stride = line.number("second parameter");
        let offset = region.place("slots of a state topic").0 + sequence % SLOT_COUNT * stride;
        let slot = Part { file: &file, offset, table: &slots };
        assert_slot(&slot, &trailer, sequence, value, &line);
        assert!(slot.number("time of publishing") <= hot.number("time of the newest value"));
    }
    assert_entry(&File::open(dir.path().join("layouts.node")).unwrap());
}

/// The frames of a log, from a position up to the end: sequence, time of publishing and payload of each.
fn frames(log: &Log<'_>, from: u64, end: u64) -> Vec<(u64, u64, Vec<u8>)> {
    let table = Table::of("Frame");
    let payload = table.place("payload").0;
    table.assert_covers(payload, &["sequence", "payload length", "CRC-32", "time of publishing", "payload"]);
    let (mut position, mut frames) = (from, Vec::new());
    while position < end {
        let frame = Part { file: log.file, offset: log.ring + position % log.capacity, table: &table };
        if frame.number("sequence") == u64::MAX {
            position = position.next_multiple_of(log.capacity);
            continue;
        }
        let (sequence, len) = (frame.number("sequence"), frame.number("payload length"));
        let bytes = frame.range(payload, payload + len.next_multiple_of(8));
        let (bytes, padding) = bytes.split_at(usize::try_from(len).unwrap());
        assert!(padding.iter().all(|byte| *byte == 0));
        let head = [frame.range(0, 0x0c), vec![0; 4], frame.range(0x10, 0x18)].concat();
        let check = crc(&[&log.line.bytes("topic"), &log.line.bytes("epoch"), &head, bytes]);
        assert_eq!(frame.number("CRC-32"), check, "record {sequence}");
        frames.push((sequence, frame.number("time of publishing"), bytes.to_vec()));
        position += payload + len.next_multiple_of(8);
    }
    frames
}

/// A log in a file.
struct Log<'a> {
    file: &'a File,
    line: &'a Part<'a>,
    ring: u64,
    capacity: u64,
}

#[test]
fn the_page_describes_the_memory_of_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::builder().name("logs").unwrap().runtime_dir(dir.path()).open().unwrap();
    let mut publisher =
        node.log_publisher::<Raw>("a/log").capacity(4096).payload_len_max(100).open().unwrap();
    let record = |sequence: u64| vec![sequence.to_le_bytes()[0]; usize::try_from(sequence % 91).unwrap()];
    for sequence in 1..=500 {
        publisher.append(&record(sequence)).unwrap();
        if sequence % 7 == 0 || sequence == 500 {
            publisher.commit();
        }
    }
    let (file, region) = (repository("a/log"), Table::of("Region"));
    let (static_header, hot_line, entries) =
        (Table::of("Static header"), Table::of("Log hot line"), Table::of("Index entry"));
    let line = Part { file: &file, offset: region.place("static header").0, table: &static_header };
    let capacity = line.number("second parameter") * line.number("first parameter");
    let ring = region.place("ring of a log topic").0;
    assert_eq!((line.number("kind of topic"), line.number("first parameter")), (3, 64));
    assert_eq!((line.number("region length"), capacity), (ring + capacity, publisher.capacity() as u64));

    let hot = Part { file: &file, offset: region.place("hot line").0, table: &hot_line };
    let names = [
        "newest sequence that was committed",
        "end",
        "heartbeat",
        "epoch",
        "time of the last commit",
        "start",
        "start sequence",
    ];
    hot_line.assert_covers(LINE, &names);
    hot.assert_numbers(LINE, &[("newest sequence that was committed", 500), ("epoch", line.number("epoch"))]);
    let (start, end) = (hot.number("start"), hot.number("end"));
    assert!(
        end - start > capacity * 9 / 10 - 200 && end - start <= capacity,
        "{start} to {end} of {capacity}"
    );

    let log = Log { file: &file, line: &line, ring, capacity };
    let found = frames(&log, start, end);
    let first = hot.number("start sequence");
    assert_eq!((found[0].0, found.last().unwrap().0), (first, 500));
    for (index, (sequence, published_ns, bytes)) in found.iter().enumerate() {
        assert_eq!((*sequence, bytes), (first + index as u64, &record(*sequence)));
        assert!(*published_ns <= hot.number("time of the last commit"));
    }
    let again = region.place("start of a log topic").0;
    assert_eq!(read(&file, again, 8), start.to_le_bytes());
    assert!(read(&file, again + 8, ring - again - 8).iter().all(|byte| *byte == 0));
    if !end.is_multiple_of(capacity / 64) {
        assert_eq!(read(&file, ring + end % capacity, 8), [0; 8], "the sequence of the next frame");
    }
    entries.assert_covers(16, &["position of the first frame", "sequence of the first frame"]);
    let segment = capacity / 64;
    for number in start.div_ceil(segment)..=end / segment {
        let offset = region.place("index of a log topic").0 + number % 64 * 16;
        let entry = Part { file: &file, offset, table: &entries };
        let (position, sequence) =
            (entry.number("position of the first frame"), entry.number("sequence of the first frame"));
        assert!(position >= number * segment && position <= end, "segment {number}: {position}");
        let behind = frames(&log, position, end);
        assert_eq!(behind.first().map_or(501, |frame| frame.0), sequence, "segment {number}");
    }
}
