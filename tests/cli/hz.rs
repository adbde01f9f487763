//! `hz`: what it counts, and how it ends.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, fields, json as parsed, wait_until};
use crate::watch::is_stopped;

const FIELDS: [&str; 12] = [
    "topic",
    "seconds",
    "received",
    "lost",
    "rate",
    "bytes_per_s",
    "received_bytes_per_s",
    "interval_ns",
    "jitter_ns",
    "interval_min_ns",
    "interval_max_ns",
    "summary",
];

fn summary(printed: &str) -> Value {
    let line = printed.lines().last().expect("a summary");
    assert_eq!(fields(line), FIELDS);
    let line = parsed(line);
    assert_eq!(line["summary"], true);
    line
}

#[test]
fn every_record_of_a_log_is_counted() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
    publisher.publish(&0).unwrap();
    let hz = place.start(&["hz", "shm:n/t", "--json", "--until-end"]);
    wait_until("the reader", || publisher.pull_subscribers() == 1);
    for number in 1..=500 {
        publisher.publish(&number).unwrap();
    }
    drop(publisher);
    let line = summary(hz.end().printed());
    assert_eq!((&line["topic"], &line["received"], &line["lost"]), (&json!("t"), &json!(500), &json!(0)));
    let float = |name: &str| line[name].as_f64().unwrap();
    assert!((float("rate") * float("seconds") - 500.0).abs() < 1e-6, "{line}");
    assert!((float("bytes_per_s") * float("seconds") - 4000.0).abs() < 1e-6, "{line}");
    assert!(float("interval_min_ns") <= float("interval_ns"), "{line}");
    assert!(float("interval_ns") <= float("interval_max_ns"), "{line}");
}

#[test]
fn replaced_values_of_a_state_topic_count_for_the_rate() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
    publisher.publish(&0).unwrap();
    let hz = place.start(&["hz", "shm:n/t", "--json", "--until-end"]);
    wait_until("the reader", || publisher.pull_subscribers() == 1);
    // After one line: earlier values do not count.
    hz.line();
    for number in 1..=500 {
        publisher.publish(&number).unwrap();
    }
    drop(publisher);
    let line = summary(hz.end().printed());
    assert_eq!(line["received"].as_u64().unwrap() + line["lost"].as_u64().unwrap(), 500, "{line}");
}

/// Two received neighbours do not determine the interval: it is time over the difference of sequences.
#[test]
fn interval_of_a_state_topic_counts_replaced_values() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
    let mut own = node.state_subscriber::<u64>("shm:n/t").open().unwrap();
    let mut publish = |publisher: &mut fabricast::StatePublisher<u64>, value| {
        let sequence = publisher.publish(&value).unwrap();
        let sample = own.try_receive().unwrap().unwrap();
        assert_eq!(sample.meta.sequence, sequence);
        sample.meta.published_ns
    };
    let first_ns = publish(&mut publisher, 0);
    let hz = place.start(&["hz", "shm:n/t", "--json", "--until-end"]);
    wait_until("the reader", || publisher.pull_subscribers() == 2);
    // After one line.
    hz.line();
    publish(&mut publisher, 1);
    wait_until("the neighbour", || parsed(&hz.line())["received"] == 1);
    hz.signal(Signal::STOP);
    wait_until("the stop", || is_stopped(hz.process()));
    let last_ns = (2..=500).map(|value| publish(&mut publisher, value)).last().unwrap();
    drop(publisher);
    hz.signal(Signal::CONT);
    let line = summary(hz.end().printed());
    let float = |name: &str| line[name].as_f64().unwrap();
    assert_eq!((&line["received"], &line["lost"]), (&json!(2), &json!(498)));
    let expected_ns = Duration::from_nanos(last_ns - first_ns).as_secs_f64() * 1e9 / 500.0;
    assert!((float("interval_ns") / expected_ns - 1.0).abs() < 1e-9, "{line}, {expected_ns} expected");
    assert!(float("interval_min_ns") <= float("interval_ns"), "{line}");
    assert!(float("interval_ns") <= float("interval_max_ns"), "{line}");
    // Of 500 values of the same length, two were received.
    let share = float("received_bytes_per_s") / float("bytes_per_s");
    assert!((share - 2.0 / 500.0).abs() < 1e-9, "{line}");
}

#[test]
fn text_output_has_a_line_per_second_and_a_summary() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:p/t", "--kind", "log", "--rate", "200", "--quiet"]);
    // For forty seconds, and no more than a pipe holds.
    (0..8000).for_each(|number| publisher.write(&number.to_string()));
    wait_until("the topic", || place.run(&["list", "shm:p"]).code == Some(0));
    let ended = place.run(&["hz", "shm:p/t", "--for", "3"]);
    let lines: Vec<Vec<&str>> =
        ended.printed().lines().map(|line| line.split_whitespace().collect()).collect();
    let heading = ["seconds", "rate", "published", "received", "interval", "jitter", "min", "max", "lost"];
    assert_eq!(lines[0], heading);
    // Amounts of bytes are two words.
    assert_eq!((lines[1].len(), lines.last().unwrap()[1]), (11, "all"), "{ended:?}");
    assert!(lines[1][1].ends_with("/s") && lines[1][3].ends_with("B/s"), "{ended:?}");
}

/// The time is checked after each wait, not after so many values.
#[test]
fn one_line_per_second_is_printed_at_any_rate() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:p/t", "--kind", "log", "--rate", "80", "--quiet"]);
    (0..8000).for_each(|number| publisher.write(&number.to_string()));
    wait_until("the topic", || place.run(&["list", "shm:p"]).code == Some(0));
    let hz = place.start(&["hz", "shm:p/t", "--json"]);
    // Otherwise all lines would count a multiple of that.
    let received = |line: &str| parsed(line)["received"].as_u64().unwrap();
    assert!((0..5).any(|_| !received(&hz.line()).is_multiple_of(64)));
}

#[test]
fn hz_without_values_exits_with_1() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
    let parts = ["shm:n/t", "50.0ms"];
    place.run(&["hz", "shm:n/t", "--for", "0.05", "--json"]).assert_failure(1, &parts);
    publisher.publish(&1).unwrap();
    place.run(&["hz", "shm:n/t", "--for", "0.05", "--json"]).assert_failure(1, &parts);
}

#[test]
fn ctrl_c_ends_hz_with_a_summary() {
    let place = Place::new();
    let mut publisher = place.publish_as("log", "shm:p/t");
    let hz = place.start(&["hz", "shm:p/t", "--json"]);
    wait_until("the reader", || {
        let report = parsed(place.run(&["info", "shm:p/t", "--json"]).printed());
        let counters = report["counters"].as_array().unwrap();
        counters.iter().any(|counter| counter["name"] == "pull subscribers" && counter["value"] == 2)
    });
    publisher.write("one");
    wait_until("a record", || parsed(&hz.line())["received"] == 1);
    hz.signal(Signal::INT);
    assert_eq!(summary(hz.end().printed())["received"], 1);
}
