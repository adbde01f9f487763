//! `watch`, `tail --follow` and `hz` while their publisher is gone, comes back, or does not exist yet.

use fabricast::{Epoch, Sequence};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, Running, catches, fields, json as parsed, wait_until};

/// The commands that go on.
const VERBS: [&[&str]; 4] =
    [&["watch"], &["watch", "--delivery", "push", "--json"], &["tail", "--follow"], &["hz", "--json"]];

/// Starts a command of a topic.
fn start(place: &Place, verb: &[&str], target: &str) -> Running {
    place.start(&[&verb[..1], &[target], &verb[1..]].concat())
}

/// Checks that the next line on standard error has all of these parts.
#[track_caller]
fn assert_notes(running: &Running, parts: &[&str]) {
    let line = running.error_line();
    assert!(parts.iter().all(|part| line.contains(part)), "{parts:?} are not all in {line:?}");
}

/// The next lines of JSON until one about a publisher: that one.
#[track_caller]
fn next_event(running: &Running) -> Value {
    let mut line = running.line();
    while fields(&line) != ["topic", "event", "epoch"] {
        line = running.line();
    }
    parsed(&line)
}

/// The value of the next line of JSON.
#[track_caller]
fn value(running: &Running) -> Value {
    parsed(&running.line())["value"].take()
}

#[test]
fn watch_and_tail_go_on_with_a_restarted_publisher() {
    let place = Place::new();
    for (kind, verb) in [("state", &["watch"][..]), ("log", &["tail", "--follow"])] {
        let mut publisher = place.publish_as(kind, "shm:p/t");
        publisher.write("one");
        let text = start(&place, &[verb, &["--count", "3"]].concat(), "shm:p/t");
        let json = start(&place, &[verb, &["--count", "3", "--json"]].concat(), "shm:p/t");
        assert!(text.line().ends_with("  \"one\""));
        let first = parsed(&json.line());
        publisher.signal(Signal::KILL);
        publisher.end();
        for running in [&text, &json] {
            assert_notes(running, &["shm:p/t: the publisher is gone", "; waiting for a publisher"]);
        }
        assert_eq!(json.line(), format!(r#"{{"topic":"t","event":"lost","epoch":{}}}"#, first["epoch"]));

        let mut publisher = place.publish_as(kind, "shm:p/t");
        for running in [&text, &json] {
            assert_notes(running, &["shm:p/t: the publisher has restarted: sequences begin anew"]);
        }
        let event = next_event(&json);
        assert!(event["event"] == "restarted" && event["epoch"] != first["epoch"], "{event}");
        for (sequence, value) in [(1, "two"), (2, "three")] {
            publisher.write(value);
            let line = text.line();
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words, [&sequence.to_string(), words[1], &format!("{value:?}")]);
            let line = parsed(&json.line());
            assert_eq!((&line["sequence"], &line["value"]), (&json!(sequence), &json!(value)));
            assert_eq!(line["epoch"], event["epoch"]);
        }
        assert_eq!((text.end().printed(), json.end().printed()), ("", ""));
        publisher.end_input();
        publisher.end();
    }
}

#[test]
fn publisher_of_the_same_epoch_is_continued() {
    let place = Place::new();
    let node = place.node("n");
    let epoch = Epoch::new(0x2611).unwrap();
    let mut publisher = node.log_publisher::<u64>("t").epoch(epoch).open().unwrap();
    publisher.publish_batch(&[1, 2]).unwrap();
    let tail = place.start(&["tail", "n/t", "--follow", "--json", "--count", "4"]);
    assert_eq!([value(&tail), value(&tail)], [1, 2]);
    drop(publisher);
    assert_notes(&tail, &["shm:n/t: the topic has ended after 2 values; waiting for a publisher"]);
    assert_eq!(next_event(&tail)["event"], "lost");
    let builder = node.log_publisher::<u64>("t").epoch(epoch);
    let mut publisher = builder.after(Sequence::new(3)).open().unwrap();
    assert_notes(&tail, &["shm:n/t: the publisher is back and continues"]);
    assert_eq!(next_event(&tail), json!({"topic": "t", "event": "resumed", "epoch": epoch.to_string()}));
    publisher.publish_batch(&[4, 5]).unwrap();
    // The third record was published elsewhere.
    assert_eq!(tail.line(), r#"{"topic":"t","lost":1,"first_lost":3,"reason":"lapped"}"#);
    for number in [4, 5] {
        let line = parsed(&tail.line());
        assert_eq!((&line["sequence"], &line["value"]), (&json!(number), &json!(number)));
    }
    let ended = tail.end();
    let sum = "fabricast: shm:n/t: 1 record was lost in all, 4 printed\n";
    assert_eq!((ended.code, ended.out.as_str(), ended.error.as_str()), (Some(0), "", sum));
}

/// The next publisher is there by the time that the loss is noticed.
#[test]
fn loss_has_the_epoch_of_the_publisher_that_was_lost() {
    let place = Place::new();
    let publish = |epoch: &str| {
        let mut publisher = place.start(&["pub", "n/t", "--kind", "log", "--epoch", epoch, "--quiet"]);
        publisher.write(epoch);
        wait_until("the value", || place.list(&["n"]).iter().any(|row| row["sequence"] == 1));
        publisher
    };
    let publisher = publish("1");
    let tail = place.start(&["tail", "n/t", "--follow", "--earliest", "--json"]);
    assert_eq!(value(&tail), "1");
    tail.signal(Signal::STOP);
    publisher.signal(Signal::KILL);
    publisher.end();
    let publisher = publish("2");
    tail.signal(Signal::CONT);
    for (name, epoch) in [("lost", "0000000000000001"), ("restarted", "0000000000000002")] {
        assert_eq!(next_event(&tail), json!({"topic": "t", "event": name, "epoch": epoch}));
    }
    assert_eq!(value(&tail), "2");
    publisher.signal(Signal::KILL);
    publisher.end();
}

#[test]
fn hz_counts_the_values_of_each_publisher() {
    let place = Place::new();
    let node = place.node("n");
    for is_json in [true, false] {
        let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
        publisher.publish(&0).unwrap();
        let hz = start(&place, if is_json { &["hz", "--json"] } else { &["hz"] }, "shm:n/t");
        wait_until("the reader", || publisher.pull_subscribers() == 1);
        publisher.publish_batch(&[1, 2, 3]).unwrap();
        drop(publisher);
        assert_notes(&hz, &["shm:n/t: the topic has ended", "waiting"]);
        let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
        publisher.publish_batch(&[1, 2]).unwrap();
        assert_notes(&hz, &["shm:n/t: the publisher has restarted"]);
        if !is_json {
            hz.signal(Signal::INT);
            let ended = hz.end();
            assert!(ended.printed().lines().last().unwrap().contains(" all "), "{ended:?}");
            continue;
        }
        assert_eq!(next_event(&hz)["event"], "lost");
        assert_eq!(next_event(&hz)["event"], "restarted");
        // A line that began before may count the first ones.
        wait_until("the last records", || parsed(&hz.line())["received"].as_u64().is_some_and(|it| it > 0));
        hz.signal(Signal::INT);
        let ended = hz.end();
        let summary = parsed(ended.printed().lines().last().unwrap());
        assert_eq!((&summary["received"], &summary["lost"]), (&json!(5), &json!(0)), "{summary}");
    }
}

#[test]
fn topic_that_appears_later_is_waited_for() {
    let place = Place::new();
    // Not even the directory exists.
    let absent = place.path().join("absent");
    let directory = absent.to_str().unwrap();
    let running = VERBS.map(|verb| {
        let running = start(&place, &[verb, &["--runtime-dir", directory]].concat(), "shm:n/t");
        assert_notes(&running, &["shm:n", directory, "; waiting for a publisher"]);
        running
    });
    assert!(!absent.exists());
    let node = fabricast::Node::builder().name("n").unwrap().runtime_dir(&absent).open().unwrap();
    let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
    publisher.publish_batch(&[7, 8]).unwrap();
    let [text, push, tail, hz] = &running;
    for shown in [text, tail] {
        assert_notes(shown, &["shm:n/t: its publisher was found"]);
        assert!(shown.line().ends_with("  7") && shown.line().ends_with("  8"));
    }
    assert_eq!(next_event(push)["event"], "resumed");
    assert_eq!([value(push), value(push)], [7, 8]);
    assert_eq!(next_event(hz)["event"], "resumed");
    wait_until("both values", || parsed(&hz.line())["received"] == 2);
}

#[test]
fn ctrl_c_ends_the_wait_for_a_publisher_quietly() {
    let place = Place::new();
    let _node = place.node("n");
    for verb in VERBS {
        for target in ["shm:nobody/t", "shm:n/nothing"] {
            let running = start(&place, verb, target);
            assert_notes(&running, &[target, "; waiting for a publisher"]);
            wait_until("the handler", || catches(running.process(), Signal::INT));
            running.signal(Signal::INT);
            running.end().assert_nothing(0);
        }
    }
}

#[test]
fn time_that_ends_while_there_is_no_publisher_is_no_result() {
    let place = Place::new();
    for verb in VERBS {
        let running = start(&place, &[verb, &["--for", "50ms"]].concat(), "shm:nobody/t");
        assert_notes(&running, &["shm:nobody/t", "; waiting for a publisher"]);
        running.end().assert_failure(1, &["shm:nobody/t", "50.0ms", "it has no publisher"]);
    }
    let node = place.node("n");
    let publisher = node.state_publisher::<u8>("t").open().unwrap();
    let watch = place.start(&["watch", "n/t", "--for", "2s"]);
    wait_until("the reader", || publisher.pull_subscribers() == 1);
    drop(publisher);
    assert_notes(&watch, &["shm:n/t: the topic has ended"]);
    watch.end().assert_failure(1, &["shm:n/t", "2.0s", "it has no publisher"]);
}

#[test]
fn closed_pipe_is_noticed_without_a_publisher() {
    let place = Place::new();
    for verb in VERBS {
        let running = place.start_unread(&[&verb[..1], &["shm:nobody/t"], &verb[1..]].concat());
        assert_notes(&running, &["; waiting for a publisher"]);
        running.end().assert_nothing(0);
    }
}

#[test]
fn next_publisher_may_have_another_type_but_no_other_kind() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
    publisher.publish(&1).unwrap();
    let watch = place.start(&["watch", "n/t"]);
    assert!(watch.line().ends_with("  1"));
    drop(publisher);
    assert_notes(&watch, &["; waiting for a publisher"]);
    let mut publisher = node.state_publisher::<String>("t").open().unwrap();
    publisher.publish(&"one".to_owned()).unwrap();
    assert_notes(&watch, &["has restarted"]);
    assert!(watch.line().ends_with("  \"one\""));
    drop(publisher);
    assert_notes(&watch, &["; waiting for a publisher"]);
    let _publisher = node.log_publisher::<String>("t").open().unwrap();
    assert_notes(&watch, &["has restarted"]);
    watch.end().assert_failure(1, &["shm:n/t is now a log, and was a state"]);
}

#[test]
fn tail_ends_by_itself_without_follow() {
    let place = Place::new();
    place.run(&["tail", "shm:nobody/t"]).assert_failure(3, &["shm:nobody/t", "`fabricast list`"]);
    let until_end = ["tail", "shm:nobody/t", "--follow", "--until-end"];
    place.run(&until_end).assert_failure(3, &["shm:nobody/t", "`fabricast list`"]);
    assert_eq!(place.run(&["tail", "shm:nobody/t", "--until-end"]).code, Some(2));
}
