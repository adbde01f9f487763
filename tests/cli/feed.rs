//! Feeds: what the command shows of their records, events and keys.

use fabricast::{FeedPublisher, Node};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Place, damage, json as parsed, wait_until};

#[derive(Serialize, Deserialize)]
struct Trade {
    size: u32,
    ts_event: u64,
}

type Feed = FeedPublisher<String, Trade, u64>;

fn trade(size: u32) -> Trade {
    Trade { size, ts_event: 0 }
}

/// A feed `shm:n/f` with two events: the second one has records of AAPL, IBM and MSFT, and removes MSFT.
fn feed(node: &Node) -> Feed {
    let mut feed = node.feed_publisher::<String, Trade, u64>("f").open().unwrap();
    feed.publish("MSFT", &trade(1), &1).unwrap();
    let mut event = feed.event();
    event.update("AAPL", &trade(2), &2).unwrap();
    event.update("IBM", &trade(3), &3).unwrap();
    event.record("AAPL", &trade(4)).unwrap();
    event.remove("MSFT", &trade(5)).unwrap();
    assert_eq!(event.commit().get(), 5);
    feed
}

/// Sequences and what follows the ages.
fn shown(printed: &str) -> Vec<(u64, String)> {
    let row = |line: &str| {
        let (sequence, rest) = line.trim_start().split_once("  ").unwrap();
        let (_, rest) = rest.trim_start().split_once("  ").unwrap();
        (sequence.parse().unwrap(), rest.to_owned())
    };
    printed.lines().map(row).collect()
}

fn sequences(printed: &str) -> Vec<u64> {
    printed.lines().map(|line| parsed(line)["sequence"].as_u64().expect("a record")).collect()
}

fn row(sequence: u64, key: &str, size: u32, mark: &str) -> (u64, String) {
    (sequence, format!("{key}\t{{\"size\": {size}, \"ts_event\": 0}}{mark}"))
}

#[test]
fn records_are_shown_with_keys_and_the_end_of_events() {
    let place = Place::new();
    let node = place.node("n");
    let mut feed = feed(&node);
    let expected = [
        row(1, "MSFT", 1, "\tend of event"),
        row(2, "AAPL", 2, ""),
        row(3, "IBM", 3, ""),
        row(4, "AAPL", 4, ""),
        row(5, "MSFT", 5, "\tkey removed, end of event"),
    ];
    assert_eq!(shown(place.run(&["tail", "n/f"]).printed()), expected);
    let (_, newest) = &expected[4];
    assert_eq!(place.run(&["get", "n/f"]).printed(), format!("{newest}\n"));
    let lines = place.run(&["tail", "n/f", "--json", "--last", "2"]);
    let line = parsed(lines.printed().lines().next().unwrap());
    let record = json!({ "previous": 2, "ends_event": false, "removes_key": false, "key": "AAPL",
        "value": { "size": 4, "ts_event": 0 } });
    assert_eq!((&line["key"], &line["value"]), (&json!("AAPL"), &record));
    let line = parsed(lines.out.lines().last().unwrap());
    assert_eq!((&line["value"]["removes_key"], &line["value"]["ends_event"]), (&json!(true), &json!(true)));
    let dump = place.run(&["tail", "n/f", "--hex", "--last", "1"]);
    let lead = dump.printed().lines().next().unwrap().to_owned();
    assert!(lead.ends_with("  MSFT\t34 B\tkey removed, end of event"), "{lead:?}");
    assert_eq!(place.run(&["tail", "n/f", "--raw", "--last", "1"]).code, Some(0));

    wait_until("nobody", || feed.pull_subscribers() == 0);
    let watch = place.start(&["watch", "n/f", "--count", "2"]);
    wait_until("the reader", || feed.pull_subscribers() == 1);
    let mut event = feed.event();
    event.remove("IBM", &trade(6)).unwrap();
    event.record("AAPL", &trade(7)).unwrap();
    event.commit();
    let rows = [row(6, "IBM", 6, "\tkey removed"), row(7, "AAPL", 7, "\tend of event")];
    assert_eq!(shown(watch.end().printed()), rows);
}

#[test]
fn time_stamps_of_records_are_named_as_in_their_values() {
    let place = Place::new();
    let node = place.node("n");
    let mut feed = node.feed_publisher::<String, Trade, u64>("f").open().unwrap();
    feed.publish("a", &Trade { size: 1, ts_event: 1_764_000_000_000_000_000 }, &1).unwrap();
    let ended = place.run(&["tail", "n/f"]);
    let (_, line) = &shown(ended.printed())[0];
    let (offset, rest) = line.split_once("  ").unwrap();
    assert!(offset.starts_with("ts_event -"), "{line}");
    assert_eq!(rest, "a\t{\"size\": 1, \"ts_event\": 1764000000000000000}\tend of event");
    let line = parsed(place.run(&["tail", "n/f", "--json"]).printed());
    assert_eq!(line["timestamps"]["ts_event"]["ns"], 1_764_000_000_000_000_000_u64);
    assert_eq!(parsed(place.run(&["info", "n/f", "--json"]).printed())["timestamps"], json!(["ts_event"]));
}

#[test]
fn only_records_of_keys_that_match_are_shown() {
    let place = Place::new();
    let node = place.node("n");
    let mut feed = feed(&node);
    let tail = |arguments: &[&str]| {
        sequences(place.run(&[&["tail", "n/f", "--json", "--key"], arguments].concat()).printed())
    };
    assert_eq!(tail(&["A*"]), [2, 4]);
    for pattern in ["?????", "[AI]*"] {
        let parts = ["shm:n/f", "no record", pattern, "--follow"];
        place.run(&["tail", "n/f", "--key", pattern]).assert_failure(1, &parts);
    }
    place.run(&["tail", "n/f", "--key", "AAPL", "--from", "5"]).assert_failure(1, &["from 5 on", "AAPL"]);
    place
        .run(&["tail", "n/f/table", "--key", "GOOG"])
        .assert_failure(1, &["shm:n/f/table", "no key", "GOOG"]);
    assert_eq!(tail(&["MSFT", "--push"]), [1, 5]);
    // So many records of these keys, however far back.
    assert_eq!(tail(&["*B*", "--last", "1"]), [3]);
    assert_eq!(tail(&["AAPL", "--last", "1"]), [4]);
    assert_eq!(tail(&["AAPL", "--last", "0"]), [0; 0]);
    assert_eq!(tail(&["AAPL", "--last", "2", "--count", "1"]), [2]);
    assert_eq!(tail(&["MSFT", "--from", "2"]), [5]);
    assert_eq!(tail(&["MSFT", "--earliest", "--count", "1"]), [1]);

    wait_until("nobody", || feed.pull_subscribers() == 0);
    let watch = place.start(&["watch", "n/f", "--json", "--key", "IBM", "--count", "1"]);
    let tail = place.start(&["tail", "n/f", "--json", "--key", "IBM", "--follow", "--last", "1"]);
    assert_eq!(parsed(&tail.line())["sequence"], 3);
    wait_until("the readers", || feed.pull_subscribers() == 2);
    feed.publish("AAPL", &trade(6), &6).unwrap();
    feed.publish("IBM", &trade(7), &7).unwrap();
    assert_eq!(sequences(watch.end().printed()), [7]);
    assert_eq!(parsed(&tail.line())["sequence"], 7);
    tail.signal(Signal::INT);
    assert_eq!(tail.end().printed(), "");
}

#[test]
fn keys_that_are_not_texts_match_by_their_json() {
    let place = Place::new();
    let node = place.node("n");
    let mut feed = node.feed_publisher::<(String, u32), u8, u8>("f").open().unwrap();
    for number in [7, 8, 17] {
        feed.publish(&("EU".to_owned(), number), &1, &1).unwrap();
    }
    let tail = place.run(&["tail", "n/f", "--key", "[\"EU\",?7]"]);
    assert_eq!(shown(tail.printed()), [(3, "[\"EU\", 17]\t1\tend of event".to_owned())]);
    assert_eq!(place.run(&["get", "n/f", "[\"EU\", 8]"]).printed(), "1\n");
}

#[test]
fn the_value_of_a_key_is_that_of_the_table() {
    let place = Place::new();
    let node = place.node("n");
    let mut feed = feed(&node);
    assert_eq!(place.run(&["get", "n/f", "AAPL"]).printed(), "2\n");
    let line = parsed(place.run(&["get", "n/f", "IBM", "--json"]).printed());
    assert_eq!((&line["topic"], &line["key"], &line["value"]), (&json!("f/table"), &json!("IBM"), &json!(3)));
    let parts = ["shm:n/f/table has no key \"MSFT\"", "`fabricast get shm:n/f/table`"];
    place.run(&["get", "n/f", "MSFT"]).assert_failure(1, &parts);
    wait_until("nobody", || feed.table_subscribers() == 0);
    let waiting = place.start(&["get", "n/f", "GOOG", "--wait", "60"]);
    wait_until("the reader", || feed.table_subscribers() == 1);
    feed.publish("GOOG", &trade(6), &6).unwrap();
    assert_eq!(waiting.end().printed(), "6\n");
}

#[test]
fn info_names_log_and_table() {
    let place = Place::new();
    let node = place.node("n");
    let _feed = feed(&node);
    let topic =
        |name: &str, target| parsed(place.run(&["info", target, "--json"]).printed())["feed"][name].clone();
    for (target, row) in [("n/f", "its table is shm:n/f/table"), ("n/f/table", "its log is shm:n/f")] {
        assert_eq!([topic("log", target), topic("table", target)], ["shm:n/f", "shm:n/f/table"]);
        let ended = place.run(&["info", target]);
        assert!(
            ended.printed().lines().any(|line| line.starts_with("feed  ") && line.ends_with(row)),
            "{ended:?}"
        );
    }
    // Topics with such names are not of a feed.
    let _log = node.log_publisher::<u64>("g").open().unwrap();
    let _tables = ["g/table", "h/table", "f/other"]
        .map(|name| node.table_publisher::<String, u64>(name).open().unwrap());
    for target in ["n/g", "n/g/table", "n/h/table", "n/f/other"] {
        assert_eq!(parsed(place.run(&["info", target, "--json"]).printed()).get("feed"), None);
    }
}

/// Checks that `info` of the feed `n/f` has a row with this name and text.
#[track_caller]
fn assert_row(place: &Place, name: &str, text: &str) {
    let ended = place.run(&["info", "n/f"]);
    let mut rows = ended.printed().lines().filter_map(|line| line.split_once("  "));
    assert!(rows.any(|row| row.0 == name && row.1.trim() == text), "{name} is not {text} in {}", ended.out);
}

#[test]
fn info_of_the_log_shows_what_the_table_holds() {
    let place = Place::new();
    let node = place.node("n");
    let mut feed = node.feed_publisher::<String, u8, String>("f").capacity(100).open().unwrap();
    let feed_field = |target| parsed(place.run(&["info", target, "--json"]).printed())["feed"].clone();
    for (key, value) in [("a", "the value of a"), ("b", "the value of b")] {
        feed.publish(key, &1, &value.to_owned()).unwrap();
    }
    for (name, text) in [("keys", "2"), ("capacity", "100"), ("suspect keys", "0")] {
        assert_row(&place, name, text);
    }
    damage("the value of b");
    assert_row(&place, "suspect keys", "1");
    let expected =
        json!({ "log": "shm:n/f", "table": "shm:n/f/table", "keys": 2, "capacity": 100, "suspect_keys": 1 });
    assert_eq!(feed_field("n/f"), expected);
    // The table has these fields itself.
    assert_eq!(feed_field("n/f/table"), json!({ "log": "shm:n/f", "table": "shm:n/f/table" }));
    feed.publish("b", &1, &"repaired".to_owned()).unwrap();
    assert_row(&place, "suspect keys", "0");
}

#[test]
fn info_of_a_log_says_why_its_table_cannot_be_read() {
    /// With the layout of a feed's records.
    #[derive(Serialize, Deserialize)]
    struct FeedRecord {
        previous: u64,
        ends_event: bool,
        removes_key: bool,
        key: String,
        value: u64,
    }
    let place = Place::new();
    let node = place.node("n");
    let log = node.log_publisher::<FeedRecord>("f").open().unwrap();
    let assert_unread = |part: &str| {
        let ended = place.run(&["info", "n/f"]);
        let row = ended.printed().lines().find(|line| line.starts_with("feed  ")).unwrap();
        assert!(row.contains("cannot be read: ") && row.contains(part), "{part} is missing in {row}");
        let feed = parsed(place.run(&["info", "n/f", "--json"]).printed())["feed"].clone();
        assert!(feed["table_error"].as_str().unwrap().contains(part), "{part} is missing in {feed}");
        assert_eq!((&feed["table"], feed.get("keys")), (&json!("shm:n/f/table"), None));
    };
    assert_unread("it has no such topic");
    let other = node.state_publisher::<u64>("f/table").open().unwrap();
    assert_unread("it is a state topic");
    drop(other);
    let _other = node.table_publisher::<String, u64>("f/table").open().unwrap();
    assert_unread(&format!("that of the log {}", log.epoch()));
}

#[derive(Serialize, Deserialize)]
struct FeedRecord {
    previous: u64,
    key: String,
    value: u64,
}

#[test]
fn log_without_keys_is_not_taken_for_a_feed() {
    let place = Place::new();
    let node = place.node("n");
    let mut log = node.log_publisher::<FeedRecord>("t").open().unwrap();
    log.publish(&FeedRecord { previous: 0, key: "a".to_owned(), value: 1 }).unwrap();
    let value = "{\"previous\": 0, \"key\": \"a\", \"value\": 1}";
    assert_eq!(shown(place.run(&["tail", "n/t"]).printed()), [(1, value.to_owned())]);
    for verb in ["tail", "watch", "hz"] {
        let parts = ["shm:n/t is a log topic, which has no keys", "omit --key"];
        place.run(&[verb, "n/t", "--key", "a"]).assert_failure(2, &parts);
    }
    let parts = ["shm:n/t is a log topic, which has no keys", "omit KEY"];
    place.run(&["get", "n/t", "a"]).assert_failure(2, &parts);
}

/// The summary of `hz` of a feed that ends, of these keys.
fn measured(place: &Place, arguments: &[&str]) -> Value {
    let node = place.node("n");
    let mut feed = feed(&node);
    let hz = place.start(&[&["hz", "n/f", "--json", "--until-end"], arguments].concat());
    wait_until("the reader", || feed.pull_subscribers() == 1);
    for size in 0..50 {
        let mut event = feed.event();
        event.update("AAPL", &trade(size), &1).unwrap();
        event.update("IBM", &trade(size), &1).unwrap();
        event.record("IBM", &trade(size)).unwrap();
        event.commit();
    }
    (0..50).for_each(|size| _ = feed.publish("AAPL", &trade(size), &1).unwrap());
    drop(feed);
    let ended = hz.end();
    parsed(ended.printed().lines().last().unwrap())
}

#[test]
fn hz_counts_records_and_events() {
    let place = Place::new();
    for (arguments, records, events) in
        [(&[][..], 200, 100), (&["--key", "IBM"], 100, 50), (&["--key", "A*"], 100, 100)]
    {
        let line = measured(&place, arguments);
        assert_eq!((&line["received"], &line["lost"]), (&json!(records), &json!(0)), "{line}");
        assert_eq!(line["events"], events, "{line}");
        let float = |name: &str| line[name].as_f64().unwrap();
        for (per_s, number) in [("rate", records), ("events_per_s", events)] {
            assert!((float(per_s) * float("seconds") - f64::from(number)).abs() < 1e-6, "{line}");
        }
        assert!(float("interval_min_ns") <= float("interval_ns"), "{line}");
    }
}

#[test]
fn hz_of_a_feed_has_a_column_for_events() {
    let place = Place::new();
    let node = place.node("n");
    let mut feed = feed(&node);
    let hz = place.start(&["hz", "n/f", "--until-end"]);
    wait_until("the reader", || feed.pull_subscribers() == 1);
    feed.publish("AAPL", &trade(1), &1).unwrap();
    drop(feed);
    let ended = hz.end();
    let lines: Vec<&str> = ended.printed().lines().collect();
    assert!(lines[0].ends_with("      lost    events"), "{ended:?}");
    assert!(
        lines.last().unwrap().ends_with("/s") && lines.iter().all(|line| line.len() == lines[0].len()),
        "{ended:?}"
    );
}
