//! `watch`, `tail --follow` and `hz` while their publisher hangs.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, Running, json as parsed, wait_until};
use crate::watch::is_stopped;

/// The commands that go on: three by pull, and two by push.
const VERBS: [&[&str]; 5] = [
    &["watch"],
    &["watch", "--delivery", "push"],
    &["tail", "--follow"],
    &["tail", "--follow", "--push"],
    &["hz"],
];

/// Waits until the topic has so many subscribers by pull, apart from the one that asks, and by push.
fn wait_for_readers(place: &Place, pull: u64, push: u64) {
    wait_until("the readers", || {
        let report = parsed(place.run(&["info", "shm:p/t", "--json"]).printed());
        let counters = report["counters"].as_array().unwrap();
        let has = |name, value| counters.iter().any(|it| it["name"] == name && it["value"] == value);
        has("pull subscribers", pull + 1) && has("push subscribers", push)
    });
}

fn stop(publisher: &Running) {
    publisher.signal(Signal::STOP);
    wait_until("the stop", || is_stopped(publisher.process()));
}

/// The next event; lines of values, or of counts, are skipped.
#[track_caller]
fn next_event(running: &Running) -> Value {
    loop {
        let line = parsed(&running.line());
        if line.get("event").is_some() {
            return line;
        }
    }
}

#[test]
fn hang_and_its_end_are_news_in_both_deliveries() {
    let place = Place::new();
    let mut publisher = place.publish_as("log", "shm:p/t");
    let [texts, jsons] = [&[][..], &["--json"]]
        .map(|more| VERBS.map(|verb| place.start(&[&verb[..1], &["shm:p/t"], &verb[1..], more].concat())));
    wait_for_readers(&place, 6, 4);
    publisher.write("one");
    let epoch = parsed(&jsons[0].line())["epoch"].clone();
    for (name, signal, sentence) in [
        ("hung", Signal::STOP, "the publisher is hung"),
        ("recovered", Signal::CONT, "the publisher runs again"),
    ] {
        publisher.signal(signal);
        for (json, text) in jsons.iter().zip(&texts) {
            assert_eq!(next_event(json), json!({"topic": "t", "event": name, "epoch": epoch}));
            for running in [json, text] {
                let line = running.error_line();
                assert!(line.contains(&format!("shm:p/t: {sentence}")), "{line}");
            }
        }
    }
    publisher.write("two");
    for (running, verb) in jsons.iter().chain(&texts).zip(VERBS.iter().cycle()) {
        wait_until("the next value", || verb[0] == "hz" || running.line().contains("\"two\""));
        running.signal(Signal::INT);
    }
    for running in jsons.into_iter().chain(texts) {
        let ended = running.end();
        assert_eq!((ended.code, ended.error.as_str()), (Some(0), ""), "{ended:?}");
    }
}

/// A publisher that was killed is not reported to have recovered, nor is the next one.
#[test]
fn hung_publisher_that_is_killed_does_not_recover() {
    let place = Place::new();
    let publisher = place.publish("shm:p/t");
    let watches = ["pull", "push"].map(|by| place.start(&["watch", "shm:p/t", "--json", "--delivery", by]));
    wait_for_readers(&place, 1, 1);
    stop(&publisher);
    watches.iter().for_each(|watch| assert_eq!(next_event(watch)["event"], "hung"));
    publisher.signal(Signal::KILL);
    publisher.end();
    watches.iter().for_each(|watch| assert_eq!(next_event(watch)["event"], "lost"));
    let mut publisher = place.publish("shm:p/t");
    publisher.write("next");
    for watch in &watches {
        assert_eq!(next_event(watch)["event"], "restarted");
        assert_eq!(parsed(&watch.line())["value"], "next");
    }
    // It is reported when it hangs, too.
    stop(&publisher);
    watches.iter().for_each(|watch| assert_eq!(next_event(watch)["event"], "hung"));
}

#[test]
fn no_value_from_a_hung_publisher_ends_watch_with_5() {
    let place = Place::new();
    let publisher = place.publish("shm:p/t");
    let by = |delivery| place.start(&["watch", "shm:p/t", "--for", "10", "--delivery", delivery]);
    let watches = ["pull", "push"].map(by);
    wait_for_readers(&place, 1, 1);
    publisher.signal(Signal::STOP);
    for watch in watches {
        let ended = watch.end();
        assert_eq!(ended.code, Some(5), "{ended:?}");
        let last = ended.error.lines().last().unwrap();
        assert!(["shm:p/t", "10.0s", "hung"].iter().all(|part| last.contains(part)), "{ended:?}");
    }
}
