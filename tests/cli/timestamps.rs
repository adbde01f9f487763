//! Time stamps in values: what `tail`, `watch`, `get`, `hz` and `info` show of them.

use fabricast::{AnySubscriber, Node, Raw};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Place, fields, json as parsed, wait_until};

#[derive(Serialize, Deserialize)]
struct Quote {
    bid: u32,
    ts_event: u64,
    venue: Venue,
}

#[derive(Serialize, Deserialize)]
struct Venue {
    recv_us: i64,
    /// Never a time.
    latency_ns: u64,
}

/// So long ago that its distance from now, as printed, changes with hours.
const EVENT_NS: u64 = 1_000_000_000_000_000_000;
const VALUE: &str =
    r#"{"bid": 7, "ts_event": 1000000000000000000, "venue": {"recv_us": 0, "latency_ns": 12}}"#;

fn quote(recv_us: i64) -> Quote {
    Quote { bid: 7, ts_event: EVENT_NS, venue: Venue { recv_us, latency_ns: 12 } }
}

/// When the newest value of this topic was published.
fn published_ns(node: &Node, target: &str) -> u64 {
    match node.any_subscriber::<Raw>(target).open().unwrap() {
        AnySubscriber::Table(mut table) => table.try_change().unwrap().unwrap().meta.published_ns,
        mut other => other.try_receive().unwrap().unwrap().meta.published_ns,
    }
}

/// The time stamp for people, in a value published at this time.
fn event_text(published_ns: u64) -> String {
    let hours = (published_ns - EVENT_NS) / 3_600_000_000_000;
    format!("ts_event -{}d{:02}h", hours / 24, hours % 24)
}

#[test]
fn offsets_from_the_publish_time_are_shown() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<Quote>("t").open().unwrap();
    publisher.publish(&quote(0)).unwrap();
    let published_ns = published_ns(&node, "shm:n/t");
    let text = event_text(published_ns);
    assert_eq!(place.run(&["get", "n/t"]).printed(), format!("{VALUE}\t{text}\n"));
    let watch = place.run(&["watch", "n/t", "--count", "1"]);
    assert!(watch.printed().ends_with(&format!("  {text}  {VALUE}\n")), "{watch:?}");
    let line = place.run(&["get", "n/t", "--json"]);
    let names = ["topic", "key", "sequence", "epoch", "published_ns", "age_ns", "value", "timestamps"]
        .map(str::to_owned);
    let mut found = fields(line.printed());
    found.sort_by_key(|name| names.iter().position(|expected| expected == name));
    assert_eq!(found, names);
    let offset_ns = i64::try_from(published_ns).unwrap() - i64::try_from(EVENT_NS).unwrap();
    let expected = json!({ "ts_event": { "ns": EVENT_NS, "offset_ns": -offset_ns } });
    assert_eq!(parsed(line.printed())["timestamps"], expected);
}

#[test]
fn time_stamps_of_records_and_entries_are_shown() {
    let place = Place::new();
    let node = place.node("n");
    let mut log = node.log_publisher::<Quote>("log").open().unwrap();
    log.publish(&quote(1_764_000_000_000_000)).unwrap();
    let ended = place.run(&["tail", "n/log"]);
    let offsets = ended.printed().split("  ").filter(|part| part.starts_with("ts_event -")).count();
    assert!(offsets == 1 && ended.out.contains("  venue.recv_us -"), "{ended:?}");
    let line = parsed(place.run(&["tail", "n/log", "--json"]).printed());
    assert_eq!(line["timestamps"]["venue.recv_us"]["ns"], 1_764_000_000_000_000_000_u64);

    let mut table = node.table_publisher::<String, Quote>("table").open().unwrap();
    table.put("a", &quote(0)).unwrap();
    let text = event_text(published_ns(&node, "shm:n/table"));
    assert_eq!(place.run(&["get", "n/table"]).printed(), format!("a\t{VALUE}\t{text}\n"));
    assert_eq!(place.run(&["get", "n/table", "a"]).printed(), format!("{VALUE}\t{text}\n"));
    let watch = place.run(&["watch", "n/table", "--count", "1"]);
    assert!(watch.printed().ends_with(&format!("  {text}  a\t{VALUE}\n")), "{watch:?}");
}

/// Numbers that are no times, and a publisher whose clock is wrong, are nothing special.
#[test]
fn values_without_plausible_times_are_shown_as_they_are() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.log_publisher::<(Quote, i64)>("t").open().unwrap();
    for (ts_event, recv_us) in [(0, 0), (u64::MAX, i64::MAX), (1, i64::MIN)] {
        let value = Quote { bid: 7, ts_event, venue: Venue { recv_us, latency_ns: u64::MAX } };
        publisher.publish(&(value, i64::MAX)).unwrap();
    }
    let ended = place.run(&["tail", "n/t", "--json"]);
    assert!(ended.printed().lines().all(|line| parsed(line)["timestamps"] == Value::Null), "{ended:?}");
    let text = place.run(&["tail", "n/t"]);
    assert!(text.printed().lines().all(|line| line.contains("  [{\"bid\": 7")), "{text:?}");
}

#[test]
fn info_lists_fields_with_names_of_time_stamps() {
    let place = Place::new();
    let node = place.node("n");
    let _quotes = node.state_publisher::<Quote>("t").open().unwrap();
    let _table = node.table_publisher::<String, Quote>("table").open().unwrap();
    let _numbers = node.state_publisher::<u64>("numbers").open().unwrap();
    let names = json!(["ts_event", "venue.recv_us", "venue.latency_ns"]);
    for target in ["n/t", "n/table"] {
        assert_eq!(parsed(place.run(&["info", target, "--json"]).printed())["timestamps"], names);
        let ended = place.run(&["info", target]);
        let row = ended.printed().lines().find(|line| line.starts_with("time stamps  ")).expect("a row");
        assert!(row.ends_with("by name: ts_event, venue.recv_us, venue.latency_ns"), "{row}");
    }
    assert_eq!(parsed(place.run(&["info", "n/numbers", "--json"]).printed()).get("timestamps"), None);
    assert!(!place.run(&["info", "n/numbers"]).printed().contains("time stamps"));
}

#[test]
fn hz_shows_the_time_from_time_stamps_to_publishing() {
    let place = Place::new();
    let node = place.node("n");
    let measured = |arguments: &[&str]| {
        let mut publisher = node.log_publisher::<Quote>("t").open().unwrap();
        let hz = place.start(&[&["hz", "n/t", "--until-end"], arguments].concat());
        wait_until("the reader", || publisher.pull_subscribers() == 1);
        (0..20).for_each(|_| _ = publisher.publish(&quote(0)).unwrap());
        drop(publisher);
        hz.end()
    };
    let ended = measured(&["--json"]);
    let line = parsed(ended.printed().lines().last().unwrap());
    let event = &line["timestamps"]["ts_event"];
    assert_eq!((&line["timestamps"].as_object().unwrap().len(), &event["values"]), (&1, &json!(20)));
    let [median_ns, max_ns] = ["median_ns", "max_ns"].map(|name| event[name].as_u64().unwrap());
    // Between the years 2020 and 2060.
    assert!(600_000_000_000_000_000 < median_ns && median_ns <= max_ns, "{line}");
    assert!(max_ns < 1_900_000_000_000_000_000, "{line}");
    let ended = measured(&[]);
    let last = ended.printed().lines().last().unwrap();
    let parts = ["from ts_event to publishing: median ", ", max ", ", of 20 values"];
    assert!(parts.iter().all(|part| last.contains(part)), "{last}");
}
