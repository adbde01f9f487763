//! `hz`: what it counts, and how it ends.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::attempts::one_of_three;
use crate::support::{Place, fields, json as parsed, wait_until};

const FIELDS: [&str; 11] = [
    "topic",
    "seconds",
    "received",
    "lost",
    "rate",
    "bytes_per_s",
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
    let hz = place.start(&["hz", "shm:n/t", "--json"]);
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
fn values_of_a_state_topic_that_were_replaced_count_for_the_rate() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
    publisher.publish(&0).unwrap();
    let hz = place.start(&["hz", "shm:n/t", "--json"]);
    wait_until("the reader", || publisher.pull_subscribers() == 1);
    // One line is out: it has looked, and what was there before does not count.
    hz.line();
    for number in 1..=500 {
        publisher.publish(&number).unwrap();
    }
    drop(publisher);
    let line = summary(hz.end().printed());
    assert_eq!(line["received"].as_u64().unwrap() + line["lost"].as_u64().unwrap(), 500, "{line}");
}

#[test]
fn people_get_a_line_a_second_and_one_for_all() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:p/t", "--kind", "log", "--rate", "200"]);
    // For forty seconds, and no more than a pipe holds.
    (0..8000).for_each(|number| publisher.write(&number.to_string()));
    wait_until("the topic", || place.run(&["list", "shm:p"]).code == Some(0));
    let ended = place.run(&["hz", "shm:p/t", "--for", "3"]);
    let lines: Vec<Vec<&str>> =
        ended.printed().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["seconds", "rate/s", "bytes/s", "interval", "jitter", "min", "max", "lost"]);
    assert_eq!((lines[1].len(), lines.last().unwrap()[1]), (8, "all"), "{ended:?}");
}

/// The time is looked at after each value that was waited for, and not after so many.
#[test]
fn a_line_comes_each_second_at_any_rate() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:p/t", "--kind", "log", "--rate", "80"]);
    (0..8000).for_each(|number| publisher.write(&number.to_string()));
    wait_until("the topic", || place.run(&["list", "shm:p"]).code == Some(0));
    one_of_three(|| {
        let ended = place.run(&["hz", "shm:p/t", "--for", "2.5", "--json"]);
        let lines = ended.printed().lines().count();
        // Two seconds, and all of the time.
        if lines == 3 { Ok(()) } else { Err(format!("{ended:?}")) }
    });
}

#[test]
fn hz_tells_by_its_code_that_nothing_came() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
    let sentence = "nothing arrived from shm:n/t: the 50ms of --for are over";
    place.run(&["hz", "shm:n/t", "--for", "0.05", "--json"]).assert_failure(1, sentence);
    publisher.publish(&1).unwrap();
    place.run(&["hz", "shm:n/t", "--for", "0.05", "--json"]).assert_failure(1, sentence);
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
