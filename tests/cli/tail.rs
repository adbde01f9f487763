//! `tail`: records of a log from before and after it started, losses, and every way in which it ends.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use fabricast::{LogPublisher, Node, Raw};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, Running, fields, json as parsed, wait_until};
use crate::watch::is_stopped;

fn log(node: &Node, newest: u64) -> LogPublisher<u64> {
    let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
    publisher.publish_batch(&(1..=newest).collect::<Vec<_>>()).unwrap();
    publisher
}

fn rows(printed: &str) -> Vec<Value> {
    printed.lines().map(parsed).collect()
}

fn sequences(printed: &str) -> Vec<u64> {
    rows(printed).iter().map(|row| row["sequence"].as_u64().expect("a record")).collect()
}

#[test]
fn earlier_records_are_shown_from_the_start_on() {
    let place = Place::new();
    let node = place.node("n");
    let publisher = log(&node, 30);
    let tail = |arguments: &[&str]| {
        let ended = place.run(&[&["tail", "shm:n/t", "--json"], arguments].concat());
        let rows = rows(ended.printed());
        assert!(rows.iter().all(|row| row["value"] == row["sequence"]), "{ended:?}");
        sequences(&ended.out)
    };
    let none: [u64; 0] = [];
    assert_eq!(tail(&[]), (21..=30).collect::<Vec<_>>());
    assert_eq!(tail(&["--last", "3"]), [28, 29, 30]);
    assert_eq!(tail(&["--last", "0"]), none);
    assert_eq!(tail(&["--earliest"]), (1..=30).collect::<Vec<_>>());
    assert_eq!(tail(&["--last", "1000"]), (1..=30).collect::<Vec<_>>());
    assert_eq!(tail(&["--from", "12", "--count", "3"]), [12, 13, 14]);
    for from in ["31", "1000"] {
        let parts = ["shm:n/t", &format!("record {from}"), "newest: 30", "--follow"];
        place.run(&["tail", "shm:n/t", "--from", from]).assert_failure(1, &parts);
    }
    let line = place.run(&["tail", "shm:n/t", "--json", "--last", "1"]);
    let names = ["topic", "key", "sequence", "epoch", "published_ns", "age_ns", "value"];
    assert_eq!(fields(line.printed()), names);
    let row = parsed(line.printed());
    assert_eq!((&row["topic"], &row["key"]), (&json!("t"), &json!(null)));
    assert_eq!(row["epoch"], publisher.epoch().to_string());
    let text = place.run(&["tail", "shm:n/t", "--last", "2"]);
    let words: Vec<Vec<&str>> =
        text.printed().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((words[0][0], words[0][2], words[1][0], words[1][2]), ("29", "29", "30", "30"));
}

#[test]
fn record_of_an_empty_log_is_an_error() {
    let place = Place::new();
    let node = place.node("n");
    let _publisher = node.log_publisher::<u64>("t").open().unwrap();
    let ended = place.run(&["tail", "shm:n/t", "--from", "7"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
    let parts = ["shm:n/t is empty", "record 7", "--follow"];
    assert!(parts.iter().all(|part| ended.error.contains(part)), "{ended:?}");
}

#[test]
fn empty_log_is_a_failure_only_after_a_wait() {
    let place = Place::new();
    let node = place.node("n");
    let _publisher = log(&node, 0);
    assert_eq!(place.run(&["tail", "shm:n/t"]).printed(), "");
    place.run(&["tail", "shm:n/t", "--follow", "--for", "0.05"]).assert_failure(1, &["shm:n/t", "50.0ms"]);
}

#[test]
fn later_records_follow_without_a_gap() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = log(&node, 5);
    let begin = |arguments: &[&str]| {
        place.start(&[&["tail", "shm:n/t", "--follow", "--json", "--count"], arguments].concat())
    };
    let all = begin(&["8", "--earliest"]);
    let live = begin(&["3", "--last", "0"]);
    let beyond = begin(&["1", "--from", "7"]);
    wait_until("the readers", || publisher.pull_subscribers() == 3);
    publisher.publish(&6).unwrap();
    publisher.publish_batch(&[7, 8]).unwrap();
    let shown = |tail: Running| sequences(tail.end().printed());
    assert_eq!(shown(all), (1..=8).collect::<Vec<_>>());
    assert_eq!(shown(live), [6, 7, 8]);
    assert_eq!(shown(beyond), [7]);
}

/// The same records with either delivery.
#[test]
fn pushed_records_are_shown_like_pulled_ones() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = log(&node, 30);
    let tail = |arguments: &[&str]| {
        sequences(place.run(&[&["tail", "shm:n/t", "--json", "--push"], arguments].concat()).printed())
    };
    assert_eq!(tail(&[]), (21..=30).collect::<Vec<_>>());
    assert_eq!(tail(&["--earliest"]), (1..=30).collect::<Vec<_>>());
    assert_eq!(tail(&["--from", "12", "--count", "3"]), [12, 13, 14]);
    let begin = |arguments: &[&str]| {
        place.start(&[&["tail", "shm:n/t", "--push", "--follow", "--json", "--count"], arguments].concat())
    };
    let (all, live) = (begin(&["33", "--earliest"]), begin(&["3", "--last", "0"]));
    wait_until("the subscribers", || publisher.push_subscribers() == 2);
    assert_eq!(publisher.pull_subscribers(), 0);
    publisher.publish(&31).unwrap();
    publisher.publish_batch(&[32, 33]).unwrap();
    assert_eq!(sequences(all.end().printed()), (1..=33).collect::<Vec<_>>());
    assert_eq!(sequences(live.end().printed()), [31, 32, 33]);
    let unlimited = begin(&["34", "--last", "1", "--until-end"]);
    assert_eq!(parsed(&unlimited.line())["sequence"], 33);
    drop(publisher);
    assert_eq!(unlimited.end().printed(), "");
}

#[test]
fn bytes_are_printed_in_every_form() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.log_publisher::<Raw>("t").open().unwrap();
    publisher.publish(b"A\x00Z").unwrap();
    publisher.publish(b"next").unwrap();
    assert_eq!(place.run(&["tail", "shm:n/t", "--raw"]).printed(), "A\0Znext");
    let dump = place.run(&["tail", "shm:n/t", "--hex", "--last", "1"]);
    let lines: Vec<&str> = dump.printed().lines().collect();
    assert!(lines[0].trim_start().starts_with("2 ") && lines[0].ends_with("  4 B"), "{dump:?}");
    assert_eq!(lines[1], "00000000  6e 65 78 74                                      |next|");
    let line = place.run(&["tail", "shm:n/t", "--last", "1", "--json"]);
    assert!(line.printed().ends_with("\"value\":\"bmV4dA==\",\"encoding\":\"base64\"}\n"), "{line:?}");
}

#[test]
fn overwritten_records_are_a_line_of_their_own() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.log_publisher::<u64>("t").capacity(4096).open().unwrap();
    publisher.publish_batch(&(1..=1000).collect::<Vec<_>>()).unwrap();
    let ended = place.run(&["tail", "shm:n/t", "--from", "5", "--json"]);
    let lines: Vec<&str> = ended.printed().lines().collect();
    let lost = parsed(lines[0])["lost"].as_u64().unwrap();
    let expected = format!(r#"{{"topic":"t","lost":{lost},"first_lost":5,"reason":"lapped"}}"#);
    assert_eq!(lines[0], expected);
    let rest = sequences(&lines[1..].join("\n"));
    assert_eq!(rest, (5 + lost..=1000).collect::<Vec<_>>());
    let text = place.run(&["tail", "shm:n/t", "--from", "5", "--count", "1"]);
    let words: Vec<&str> = text.printed().split_whitespace().take(6).collect();
    assert_eq!(words, ["5", "-", &lost.to_string(), "lost", "(overwritten", "before"]);
    let raw = place.run(&["tail", "shm:n/t", "--from", "5", "--count", "1", "--raw"]);
    assert_eq!(
        (raw.code, raw.error),
        (Some(0), format!("fabricast: {lost} lost from 5 on (overwritten before they were read)\n"))
    );
}

/// A publisher that goes on while `tail` attaches does not add to the records that it counted back.
#[test]
fn last_records_of_a_running_log_are_no_more_than_asked_for() {
    let place = Place::new();
    let node = place.node("n");
    let mut log = node.log_publisher::<u64>("t").open().unwrap();
    let mut feed = node.feed_publisher::<String, u64, u64>("f").open().unwrap();
    for number in 1..=3 {
        log.publish(&number).unwrap();
        feed.publish("a", &number, &number).unwrap();
    }
    let (end, is_over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Slowly enough for `tail`.
            let pause = Duration::from_micros(100);
            for number in 4.. {
                log.publish(&number).unwrap();
                feed.publish("a", &number, &number).unwrap();
                if is_over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        });
        for arguments in [
            &["tail", "n/t"][..],
            &["tail", "n/f"],
            &["tail", "n/f", "--key", "a"],
            &["tail", "n/t", "--push"],
        ] {
            for _ in 0..5 {
                let ended = place.run(&[arguments, &["--last", "3", "--json"]].concat());
                let shown = sequences(ended.printed());
                assert_eq!(shown.len(), 3, "{arguments:?}: {ended:?}");
                assert_eq!(shown[2], shown[0] + 2);
            }
        }
        drop(end);
    });
}

#[test]
fn slow_reader_reports_what_it_missed_and_continues() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.log_publisher::<u64>("t").capacity(4096).open().unwrap();
    publisher.publish(&1).unwrap();
    let tail = place.start(&["tail", "shm:n/t", "--follow", "--json", "--until-end"]);
    tail.line();
    tail.signal(Signal::STOP);
    wait_until("the stop", || is_stopped(tail.process()));
    publisher.publish_batch(&(2..=1000).collect::<Vec<_>>()).unwrap();
    tail.signal(Signal::CONT);
    let loss = parsed(&tail.line());
    assert_eq!((&loss["first_lost"], &loss["reason"]), (&json!(2), &json!("lapped")));
    let lost = loss["lost"].as_u64().unwrap();
    (2 + lost..=1000).for_each(|sequence| assert_eq!(parsed(&tail.line())["sequence"], sequence));
    drop(publisher);
    let ended = tail.end();
    // The lines of losses may be far above.
    let sum = format!("fabricast: shm:n/t: {lost} records were lost in all, {} printed\n", 1000 - lost);
    assert_eq!((ended.code, ended.out.as_str(), ended.error), (Some(0), "", sum));
}

#[test]
fn topic_that_is_not_a_log_is_reported() {
    let place = Place::new();
    let node = place.node("n");
    let _state = node.state_publisher::<u64>("t").open().unwrap();
    let parts = ["shm:n/t", "state", "`fabricast get`", "`fabricast watch`"];
    place.run(&["tail", "shm:n/t"]).assert_failure(2, &parts);
}

#[test]
fn tail_ends_with_the_topic() {
    let place = Place::new();
    let node = place.node("n");
    for newest in [0, 2] {
        let publisher = log(&node, newest);
        let tail = place.start(&["tail", "shm:n/t", "--follow", "--json", "--until-end"]);
        wait_until("the reader", || publisher.pull_subscribers() == 1);
        drop(publisher);
        let ended = tail.end();
        if newest == 0 {
            ended.assert_failure(1, &["shm:n/t", "ended"]);
        } else {
            assert_eq!(sequences(ended.printed()), [1, 2]);
        }
    }
}

#[test]
fn killed_publisher_ends_tail_with_6() {
    let place = Place::new();
    let mut publisher = place.publish_as("log", "shm:p/t");
    publisher.write("last");
    let tail = place.start(&["tail", "shm:p/t", "--follow", "--until-end"]);
    assert!(tail.line().ends_with("\"last\""));
    publisher.signal(Signal::KILL);
    publisher.end();
    let ended = tail.end();
    assert_eq!(ended.code, Some(6), "{ended:?}");
    assert!(ended.error.contains("shm:p/t: the publisher is gone"), "{ended:?}");
}

#[test]
fn ctrl_c_ends_tail_quietly() {
    let place = Place::new();
    let node = place.node("n");
    let _publisher = log(&node, 1);
    for signal in [Signal::INT, Signal::TERM] {
        let tail = place.start(&["tail", "shm:n/t", "--follow", "--json"]);
        tail.line();
        tail.signal(signal);
        assert_eq!(tail.end().printed(), "");
    }
}

#[test]
fn a_closed_pipe_ends_tail_quietly() {
    let place = Place::new();
    let node = place.node("n");
    let _publisher = log(&node, 10_000);
    let program = env!("CARGO_BIN_EXE_fabricast");
    let mut shell = std::process::Command::new("sh");
    shell.env("FABRICAST_RUNTIME_DIR", place.path());
    let script = format!("{{ {program} tail shm:n/t --earliest --json; echo exit $? >&2; }} | head -n 1");
    let output = shell.arg("-c").arg(script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "exit 0\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
}
