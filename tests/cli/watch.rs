//! `watch`: values, losses, and every way in which it ends.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Place, fields, json as parsed, wait_until};

#[test]
fn watch_prints_each_value_in_both_deliveries() {
    let place = Place::new();
    let mut publisher = place.publish("shm:p/t");
    publisher.write("one");
    let pull = place.start(&["watch", "shm:p/t", "--json", "--count", "3"]);
    let push = place.start(&["watch", "shm:p/t", "--json", "--count", "3", "--delivery", "push"]);
    for (sequence, value) in [(1, "one"), (2, "two"), (3, "three")] {
        if sequence > 1 {
            publisher.write(value);
        }
        for watch in [&pull, &push] {
            let line = watch.line();
            let names = ["topic", "key", "sequence", "epoch", "published_ns", "age_ns", "value"];
            assert_eq!(fields(&line), names);
            let line = parsed(&line);
            assert_eq!((&line["sequence"], &line["value"]), (&json!(sequence), &json!(value)));
        }
    }
    assert_eq!(pull.end().printed(), "");
    assert_eq!(push.end().printed(), "");
}

#[test]
fn watch_prints_a_line_per_value_for_people() {
    let place = Place::new();
    let mut publisher = place.publish("shm:p/t");
    publisher.write("say \"hi\"");
    let ended = place.run(&["watch", "shm:p/t", "--count", "1"]);
    let words: Vec<&str> = ended.printed().split_whitespace().collect();
    assert_eq!((words[0], &words[2..]), ("1", ["\"say", "\\\"hi\\\"\""].as_slice()));
}

#[test]
fn replaced_values_are_a_line_of_their_own() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u32>("t").open().unwrap();
    publisher.publish(&1).unwrap();
    for json in [true, false] {
        let mut arguments = vec!["watch", "shm:n/t", "--count", "2"];
        arguments.extend(json.then_some("--json"));
        let watch = place.start(&arguments);
        watch.line();
        let newest = publisher.newest().get();
        watch.signal(Signal::STOP);
        wait_until("the stop", || is_stopped(watch.process()));
        for value in 2..=5 {
            publisher.publish(&value).unwrap();
        }
        watch.signal(Signal::CONT);
        let (loss, value) = (watch.line(), watch.line());
        if json {
            let expected =
                format!(r#"{{"topic":"t","lost":3,"first_lost":{},"reason":"conflated"}}"#, newest + 1);
            assert_eq!(loss, expected);
            assert_eq!(parsed(&value)["sequence"], newest + 4);
        } else {
            let words: Vec<&str> = loss.split_whitespace().collect();
            assert_eq!(words[..4], [(newest + 1).to_string().as_str(), "-", "3", "skipped"], "{loss}");
            assert!(value.trim_start().starts_with(&(newest + 4).to_string()), "{value}");
        }
        watch.end().printed();
    }
}

#[test]
fn watch_ends_after_its_time() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u32>("t").open().unwrap();
    place.run(&["watch", "shm:n/t", "--for", "0.05"]).assert_failure(1, &["shm:n/t", "50.0ms"]);
    publisher.publish(&1).unwrap();
    assert_eq!(place.run(&["watch", "shm:n/t", "--for", "0.05"]).printed().lines().count(), 1);
}

#[test]
fn watch_ends_with_the_topic() {
    let place = Place::new();
    let node = place.node("n");
    for published in [true, false] {
        let mut publisher = node.state_publisher::<u32>("t").open().unwrap();
        if published {
            publisher.publish(&1).unwrap();
        }
        let watch = place.start(&["watch", "shm:n/t", "--until-end"]);
        wait_until("the reader", || publisher.pull_subscribers() == 1);
        if published {
            watch.line();
        }
        drop(publisher);
        let ended = watch.end();
        if published {
            assert_eq!(ended.printed(), "");
        } else {
            ended.assert_failure(1, &["shm:n/t", "ended"]);
        }
    }
}

#[test]
fn publisher_that_ends_in_good_order_ends_watch_with_0() {
    let place = Place::new();
    let mut publisher = place.publish("shm:p/t");
    publisher.write("last");
    let watch = place.start(&["watch", "shm:p/t", "--until-end"]);
    watch.line();
    publisher.end_input();
    publisher.end().printed();
    assert_eq!(watch.end().printed(), "");
}

#[test]
fn killed_publisher_ends_watch_with_6() {
    let place = Place::new();
    for delivery in ["pull", "push"] {
        let mut publisher = place.publish("shm:p/t");
        publisher.write("last");
        let watch = place.start(&["watch", "shm:p/t", "--until-end", "--delivery", delivery]);
        watch.line();
        publisher.signal(Signal::KILL);
        publisher.end();
        let ended = watch.end();
        assert_eq!(ended.code, Some(6), "{ended:?}");
        assert!(ended.error.contains("shm:p/t: the publisher is gone"), "{ended:?}");
    }
}

#[test]
fn ctrl_c_ends_watch_quietly() {
    let place = Place::new();
    let mut publisher = place.publish("shm:p/t");
    publisher.write("one");
    for signal in [Signal::INT, Signal::TERM] {
        let watch = place.start(&["watch", "shm:p/t", "--json"]);
        watch.line();
        watch.signal(signal);
        assert_eq!(watch.end().printed(), "");
    }
}

#[test]
fn a_closed_pipe_ends_watch_quietly() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:p/t", "--rate", "50", "--quiet"]);
    (0..200).for_each(|number| publisher.write(&number.to_string()));
    wait_until("the topic", || place.run(&["list", "shm:p"]).code == Some(0));
    let program = env!("CARGO_BIN_EXE_fabricast");
    let mut shell = std::process::Command::new("sh");
    shell.env("FABRICAST_RUNTIME_DIR", place.path());
    let script = format!("{{ {program} watch shm:p/t --json; echo exit $? >&2; }} | head -n 1");
    let output = shell.arg("-c").arg(script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "exit 0\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
}

/// Whether a process is stopped: `T` behind the name in proc(5) `stat`.
pub(crate) fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

#[test]
fn overdue_values_are_reported_once_for_each_silence() {
    let place = Place::new();
    let mut publisher = place.publish("shm:p/t");
    publisher.write("one");
    let watch = place.start(&["watch", "shm:p/t", "--json", "--deadline", "150ms"]);
    for value in ["one", "two", "three"] {
        if value != "one" {
            publisher.write(value);
        }
        assert_eq!(parsed(&watch.line())["value"], json!(value));
        let line = watch.line();
        assert_eq!(fields(&line), ["topic", "event", "epoch", "waited_ns"]);
        let line = parsed(&line);
        assert_eq!(line["event"], json!("overdue"));
        assert!(line["waited_ns"].as_u64().unwrap() >= 150_000_000, "{line}");
        let news = watch.error_line();
        assert!(news.starts_with("fabricast: shm:p/t: no value has come for "), "{news}");
    }
    watch.signal(Signal::INT);
    let ended = watch.end();
    assert_eq!((ended.code, ended.printed()), (Some(0), ""));
}

/// A publisher that does not exist is late, too.
#[test]
fn records_of_no_publisher_are_overdue() {
    let place = Place::new();
    let node = place.node("n");
    let tail = place.start(&["tail", "shm:n/t", "--follow", "--json", "--deadline", "100ms"]);
    assert!(tail.error_line().ends_with("waiting for a publisher"));
    let line = parsed(&tail.line());
    assert_eq!((&line["event"], &line["epoch"]), (&json!("overdue"), &json!(null)));
    drop(node);
}
