//! What `list` and `info` show of subscribers that are behind.

use fabricast::{Gating, SlowPolicy};
use serde_json::json;

use crate::support::{Place, json as parsed, wait_until};

#[test]
fn subscribers_are_listed_with_the_slowest_first() {
    let place = Place::new();
    let node = place.node("p");
    let mut publisher = node.log_publisher::<u64>("t").gating(Gating::new()).open().unwrap();
    let [slow, fast, silent] = ["slow", "fast", "silent"].map(|name| place.node(name));
    let _slow = slow.log_subscriber::<u64>("shm:p/t").slow(SlowPolicy::Block).open().unwrap();
    let mut fast = fast.log_subscriber::<u64>("shm:p/t").progress().push().open().unwrap();
    let _silent = silent.log_subscriber::<u64>("shm:p/t").open().unwrap();
    publisher.publish_batch(&[7; 100]).unwrap();
    wait_until("all records", || fast.try_receive().is_ok() && fast.last().get() == 100);
    assert!(fast.try_receive().unwrap().is_none());

    let rows = place.list(&["shm:p"]);
    assert_eq!((&rows[0]["topic"], &rows[0]["slowest_lag"]), (&json!("t"), &json!(100)));
    assert!(place.run(&["list", "shm:p"]).printed().contains(" 100 "));

    let report = parsed(place.run(&["info", "shm:p/t", "--json"]).printed());
    let subscribers = &report["subscribers"];
    assert_eq!(subscribers["count"], 3);
    let listed = subscribers["listed"].as_array().unwrap();
    let names: Vec<_> = listed.iter().map(|row| row["node"].as_str().unwrap()).collect();
    assert_eq!(names, ["slow", "fast", "silent"]);
    let [slow, fast, silent] = &listed[..] else { panic!("{listed:?}") };
    for (name, expected) in [
        ("process", json!(std::process::id())),
        ("delivery", json!("pull")),
        ("policy", json!("block")),
        ("gating", json!(true)),
        ("lag", json!(100)),
        ("lost", json!(0)),
    ] {
        assert_eq!(slow[name], expected, "{name}");
    }
    for (name, expected) in [
        ("delivery", json!("push")),
        ("policy", json!("lap")),
        ("gating", json!(false)),
        ("sequence", json!(100)),
        ("lag", json!(0)),
        ("received", json!(100)),
    ] {
        assert_eq!(fast[name], expected, "{name}");
    }
    assert_eq!((&silent["lag"], &silent["policy"]), (&json!(null), &json!(null)));

    let shown = place.run(&["info", "shm:p/t"]).printed().to_owned();
    let (_, table) = shown.split_once("SUBSCRIBER  PID").expect("a table");
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    assert_eq!((rows[0][0], rows[0][3], rows[0][5]), ("slow", "block", "100"));
    assert_eq!((rows[1][0], rows[1][2], rows[1][5]), ("fast", "push", "0"));
    assert_eq!((rows[2][0], rows[2][5]), ("silent", "-"));
}

#[test]
fn help_says_what_is_shown_of_slow_subscribers_and_who_waits_for_them() {
    let place = Place::new();
    let help = |verb: &str| place.run(&[verb, "--help"]).printed().to_owned();
    let list = help("list");
    let (_, lag) = list.split_once("LAG is").expect("what LAG is");
    assert!(lag.lines().take(3).any(|line| line.contains("`-`")), "{list}");
    for verb in ["pub", "tail"] {
        let help = help(verb);
        assert!(help.contains("SlowPolicy") && help.contains("perf stream --policy"), "{help}");
    }
}

/// Whoever looks for the slow one finds commands, too.
#[test]
fn commands_that_follow_a_log_are_listed_with_their_lag() {
    let place = Place::new();
    let node = place.node("p");
    let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
    let commands = [&["tail", "shm:p/t", "--follow"][..], &["watch", "shm:p/t"], &["hz", "shm:p/t"]];
    let running: Vec<_> = commands.iter().map(|command| place.start(command)).collect();
    wait_until("the commands", || publisher.pull_subscribers() == 3);
    publisher.publish_batch(&[7; 100]).unwrap();
    let listed = || {
        let report = parsed(place.run(&["info", "shm:p/t", "--json"]).printed());
        report["subscribers"]["listed"].as_array().unwrap().clone()
    };
    wait_until("their progress", || {
        listed().iter().all(|row| (&row["policy"], &row["lag"]) == (&json!("lap"), &json!(0)))
    });
    assert_eq!(listed().len(), 3);
    assert_eq!(place.list(&["shm:p"])[0]["slowest_lag"], json!(0));
    drop(running);
}
