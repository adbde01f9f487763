//! The memory of a feed: its log and its table.

use fabricast::FeedPublisher;

use super::table::{CAPACITY, Cells, Entry, stamp_part};
use super::*;

/// A record of the log.
#[derive(Debug, PartialEq)]
struct Record {
    sequence: u64,
    /// Of the same key.
    previous: u64,
    ends_event: bool,
    removes_key: bool,
    pair: (String, u64),
}

impl Record {
    fn of(sequence: u64, payload: &[u8]) -> Self {
        let table = Table::of("Feed record");
        let begin = usize::try_from(table.place("key").0).unwrap();
        table.assert_covers(begin as u64, &["previous", "ends event", "removes key", "key"]);
        let number = |name| {
            let (offset, len) = table.place(name);
            let bytes =
                payload.iter().skip(usize::try_from(offset).unwrap()).take(usize::try_from(len).unwrap());
            bytes.rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let mark = |name| match number(name) {
            0 => false,
            1 => true,
            other => panic!("{name} is {other}"),
        };
        let pair = <(String, u64)>::decode(&payload[begin..]).unwrap();
        let (ends_event, removes_key) = (mark("ends event"), mark("removes key"));
        Self { sequence, previous: number("previous"), ends_event, removes_key, pair }
    }
}

/// Five events, one of which is given up; a key is removed, and later added again.
fn publish(feed: &mut FeedPublisher<String, u64, Value>) {
    let value = |number: u64| (number, "x".repeat(5));
    feed.publish("a", &10, &value(10)).unwrap();
    let mut event = feed.event();
    event.record("a", &20).unwrap();
    event.update("b", &30, &value(30)).unwrap();
    event.update("a", &40, &value(40)).unwrap();
    event.commit();
    let mut event = feed.event();
    event.update("a", &0, &value(0)).unwrap();
    event.update("never", &0, &value(0)).unwrap();
    drop(event);
    let mut event = feed.event();
    event.remove("b", &50).unwrap();
    event.update("c", &60, &value(60)).unwrap();
    event.commit();
    feed.publish("b", &70, &value(70)).unwrap();
}

/// The records, as they were published, and when the last one was.
fn assert_log(file: &File, line: &Part<'_>) -> u64 {
    let (region, hot_line) = (Table::of("Region"), Table::of("Log hot line"));
    let capacity = line.number("second parameter") * line.number("first parameter");
    let log = Log { file, line, ring: region.place("ring of a log topic").0, capacity };
    let hot = Part { file, offset: region.place("hot line").0, table: &hot_line };
    hot.assert_numbers(LINE, &[("newest sequence that was committed", 7), ("epoch", line.number("epoch"))]);
    let frames = frames(&log, 0, hot.number("end"));
    let records = [
        ("a", 0, true, false),
        ("a", 1, false, false),
        ("b", 0, false, false),
        ("a", 2, true, false),
        ("b", 3, false, true),
        ("c", 0, true, false),
        ("b", 0, true, false),
    ];
    let expected =
        records.iter().zip(1..).map(|((key, previous, ends_event, removes_key), sequence)| Record {
            sequence,
            previous: *previous,
            ends_event: *ends_event,
            removes_key: *removes_key,
            pair: ((*key).to_owned(), 10 * sequence),
        });
    let found: Vec<Record> =
        frames.iter().map(|(sequence, _, payload)| Record::of(*sequence, payload)).collect();
    assert_eq!(found, expected.collect::<Vec<_>>());
    let times: Vec<u64> = frames.iter().map(|(_, published_ns, _)| *published_ns).collect();
    assert!(times[1] == times[2] && times[2] == times[3] && times[4] == times[5], "{times:?}");
    assert_eq!(times[6], hot.number("time of the last commit"));
    times[6]
}

/// The entries have the sequences of the records, and the table has those of the events.
fn assert_table(file: &File, line: &Part<'_>, published_ns: u64) {
    let (region, hot_line, page) = (Table::of("Region"), Table::of("Table hot line"), Table::of("Page"));
    assert_eq!(line.number("first parameter"), CAPACITY);
    let hot = Part { file, offset: region.place("hot line").0, table: &hot_line };
    hot.assert_numbers(LINE, &[("newest sequence that was committed", 7), ("keys", 3)]);
    assert_eq!(hot.number("time of the last commit"), published_ns);
    let page = Part { file, offset: region.place("pages of a table topic").0, table: &page };
    assert_eq!(["last change", "last change of keys"].map(|name| page.number(name)), [7, 7]);

    let cells = Cells::new(file, line);
    let newest = cells.newest();
    let facts = |entry: &Entry| {
        let [sequence, revision] = ["sequence", "revision"].map(|name| stamp_part(entry.stamp, name));
        let value = entry.pair.1.as_ref().map(|value| value.0);
        ([sequence, revision, entry.number, entry.added], value)
    };
    let found: Vec<_> = newest.iter().map(|(key, (_, entry))| (key.as_str(), facts(entry))).collect();
    let expected =
        [("a", ([4, 3, 3, 1], Some(40))), ("b", ([7, 3, 1, 7], Some(70))), ("c", ([6, 2, 1, 6], Some(60)))];
    assert_eq!(found, expected);
    assert_eq!(newest["b"].1.published_ns, published_ns);
    // In the other slots, what was given up, and the removal.
    let other = |key: &str| {
        let (cell, entry) = &newest[key];
        cells.entry(*cell, 1 - stamp_part(entry.stamp, "slot")).map(|entry| facts(&entry))
    };
    assert_eq!(other("a"), Some(([5, 4, 4, 1], Some(0))));
    assert_eq!(other("b"), Some(([5, 2, 2, 3], None)));
}

#[test]
fn the_page_describes_the_memory_of_a_feed() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::builder().name("feeds").unwrap().runtime_dir(dir.path()).open().unwrap();
    let builder = node.feed_publisher("a/feed").capacity(520).key_len_max(16).value_len_max(100);
    let mut publisher = builder.log_capacity(4096).record_len_max(100).open().unwrap();
    publish(&mut publisher);

    let files = ["a/feed", "a/feed/table"].map(repository);
    let (place, static_header) = (Table::of("Region").place("static header").0, Table::of("Static header"));
    let [log, table] = [0, 1].map(|index| Part { file: &files[index], offset: place, table: &static_header });
    assert_eq!([log.number("kind of topic"), table.number("kind of topic")], [3, 2]);
    assert_eq!([log.number("epoch"), table.number("epoch")], [publisher.epoch().get(); 2]);
    let published_ns = assert_log(&files[0], &log);
    assert_table(&files[1], &table, published_ns);

    let subscriber = node.log_subscriber::<Raw>("shm:feeds/a/feed").open().unwrap();
    let schema = String::from_utf8(subscriber.schema().to_json()).unwrap();
    let names = ["FeedRecord", "previous", "ends_event", "removes_key", "key", "value"];
    let (_, page) = PAGE.split_once("\n## Feed record\n").unwrap();
    for name in names {
        assert!(schema.contains(&format!("\"{name}")) && page.contains(&format!("`{name}`")), "{name}");
    }
}
