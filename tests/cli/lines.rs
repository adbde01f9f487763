//! `watch`, `tail`, `hz` and `get` of several publishers of the same values.

use fabricast::{Epoch, Node, TablePublisher};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Ended, Place, Running, damage, json as parsed, wait_until};

const A: &str = "shm:a/t";
const B: &str = "shm:b/t";

/// Starts a publisher of an epoch, and waits for its topic.
fn publish(place: &Place, kind: &str, (target, epoch): (&str, &str), values: &[&str]) -> Running {
    let mut publisher = place.start(&["pub", target, "--kind", kind, "--epoch", epoch, "--quiet"]);
    values.iter().for_each(|value| publisher.write(value));
    let (address, _) = target.split_once('/').unwrap();
    let count = values.len() as u64;
    wait_until("the values", || place.list(&[address]).iter().any(|row| row["sequence"] == count));
    publisher
}

/// Starts a command of both lines.
fn start(place: &Place, verb: &[&str]) -> Running {
    place.start(&[&verb[..1], &[A, "--line", B], &verb[1..]].concat())
}

/// Waits until each line has so many subscribers.
fn wait_for_readers(place: &Place, count: u64) {
    // One more reads the counters.
    wait_for_counter(place, "pull subscribers", count + 1);
}

/// Waits until both publishers count so many.
fn wait_for_counter(place: &Place, name: &str, count: u64) {
    for target in [A, B] {
        wait_until("the subscribers", || {
            let report = parsed(place.run(&["info", target, "--json"]).printed());
            let mut counters = report["counters"].as_array().unwrap().iter();
            counters.any(|counter| counter["name"] == name && counter["value"] == count)
        });
    }
}

/// The next value, and the events before it: their names and lines.
#[track_caller]
fn next(running: &Running) -> (Value, Vec<(String, String)>) {
    let mut events = Vec::new();
    loop {
        let line = parsed(&running.line());
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        match line.get("event") {
            Some(_) => events.push((text("event"), text("line"))),
            None => return (line, events),
        }
    }
}

/// Checks the sequences and values that come next, and returns the events among them.
#[track_caller]
fn assert_next(running: &Running, expected: impl IntoIterator<Item = u64>) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for number in expected {
        let (line, events) = next(running);
        assert_eq!(
            (&line["sequence"], &line["value"]),
            (&json!(number), &json!(number.to_string())),
            "{line}"
        );
        all.extend(events);
    }
    all
}

/// The next event, which comes without a value.
#[track_caller]
fn next_event(running: &Running) -> (String, String) {
    let line = parsed(&running.line());
    assert!(line["value"].is_null(), "{line}");
    event(line["event"].as_str().unwrap(), line["line"].as_str().unwrap())
}

/// Checks that it failed with one sentence for each line, and the first line last.
#[track_caller]
fn assert_both_named(ended: &Ended, code: i32) {
    assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{ended:?}");
    let [other, first] = ended.error.lines().collect::<Vec<_>>()[..] else { panic!("{ended:?}") };
    assert!(other.contains("shm:b") && first.contains("shm:a"), "{ended:?}");
}

fn event(name: &str, line: &str) -> (String, String) {
    (name.to_owned(), line.to_owned())
}

fn kill(publisher: Running) {
    publisher.signal(Signal::KILL);
    publisher.end();
}

#[test]
fn records_come_once_though_each_publisher_is_killed() {
    let place = Place::new();
    let mut a = publish(&place, "log", (A, "2611"), &[]);
    let mut b = publish(&place, "log", (B, "2611"), &[]);
    let tail = start(&place, &["tail", "--follow", "--json", "--count", "9"]);
    for value in ["1", "2", "3"] {
        a.write(value);
    }
    b.write("1");
    assert_eq!(assert_next(&tail, 1..=3), []);
    kill(a);
    for value in ["2", "3", "4", "5"] {
        b.write(value);
    }
    let mut events = assert_next(&tail, 4..=5);
    // It publishes all values again.
    let mut a = publish(&place, "log", (A, "2611"), &["1", "2", "3", "4", "5", "6"]);
    events.extend(assert_next(&tail, [6]));
    kill(b);
    for value in ["7", "8", "9"] {
        a.write(value);
    }
    events.extend(assert_next(&tail, 7..=9));
    assert_eq!(events[..2], [event("lost", A), event("resumed", A)], "{events:?}");
    let ended = tail.end();
    assert_eq!((ended.code, ended.out.lines().filter(|line| !line.contains("event")).count()), (Some(0), 0));
    for part in [
        "shm:a/t: the publisher is gone",
        "shm:a/t: the publisher is back",
        "shm:a/t: first with ",
        "shm:b/t: first with ",
    ] {
        assert!(ended.error.contains(part), "{part}: {ended:?}");
    }
    assert!(ended.error.contains("lost its publisher once"), "{ended:?}");
}

#[test]
fn changes_of_a_table_come_once_with_their_numbers() {
    let place = Place::new();
    let (mut a, mut b) =
        (publish(&place, "table", (A, "1"), &["EUR\t1"]), publish(&place, "table", (B, "1"), &["EUR\t1"]));
    let watch = start(&place, &["watch", "--json", "--key", "E*"]);
    let assert_change = |number: u64| {
        let (line, events) = next(&watch);
        let found = (&line["key"], &line["value"], &line["number"]);
        assert_eq!(found, (&json!("EUR"), &json!(number.to_string()), &json!(number)), "{line}");
        events
    };
    assert_eq!(assert_change(1), []);
    for publisher in [&mut a, &mut b] {
        publisher.write("EUR\t2");
    }
    assert_eq!(assert_change(2), []);
    kill(a);
    assert_eq!(next_event(&watch), event("lost", A));
    b.write("USD\t1");
    b.write("EUR\t3");
    assert_eq!(assert_change(3), []);
    watch.signal(Signal::INT);
    let ended = watch.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.error.contains("shm:a/t: first with ") && ended.error.contains("without a publisher"));
}

#[test]
fn publisher_of_another_epoch_is_reported_and_left_out() {
    let place = Place::new();
    let mut a = publish(&place, "state", (A, "a"), &["1"]);
    let mut b = publish(&place, "state", (B, "b"), &["x"]);
    let watch = start(&place, &["watch", "--json", "--count", "2"]);
    assert_eq!(assert_next(&watch, [1]), []);
    b.write("y");
    assert_eq!(next_event(&watch), event("out of step", B));
    a.write("2");
    assert_eq!(assert_next(&watch, [2]), []);
    let ended = watch.end();
    assert!(ended.error.contains("shm:b/t: its publisher has epoch 000000000000000b"), "{ended:?}");
    let ended = place.run(&["get", A, "--line", B]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "\"2\"\n"));
    assert!(ended.error.contains("shm:b/t: its publisher has epoch"), "{ended:?}");
}

#[test]
fn line_whose_epoch_follows_is_named() {
    let place = Place::new();
    let nodes = ["a", "b"].map(|name| place.node(name));
    let [ahead, _other] = [(&nodes[0], 1), (&nodes[1], 2)].map(|(node, number)| {
        let mut publisher = node.log_publisher::<u64>("t").epoch(Epoch::new(number).unwrap()).open().unwrap();
        publisher.publish(&number).unwrap();
        publisher
    });
    let tail = start(&place, &["tail", "--follow", "--earliest", "--json"]);
    assert_eq!(next(&tail).0["value"], 1);
    drop(ahead);
    let (line, events) = next(&tail);
    assert!(line["value"] == 2 && events.iter().any(|(name, _)| name == "restarted"), "{line} {events:?}");
    tail.signal(Signal::INT);
    let ended = tail.end();
    let sentence = "fabricast: shm:b/t: values of its epoch follow: sequences begin anew\n";
    assert!(ended.error.contains(sentence), "{ended:?}");
}

#[test]
fn publisher_of_another_kind_is_reported_and_left_out() {
    let place = Place::new();
    let mut a = publish(&place, "log", (A, "a"), &["1"]);
    let _b = publish(&place, "state", (B, "a"), &["x"]);
    let tail = start(&place, &["tail", "--json", "--follow", "--count", "2"]);
    assert_eq!(assert_next(&tail, [1]), []);
    assert_eq!(next_event(&tail), event("other kind", B));
    a.write("2");
    assert_eq!(assert_next(&tail, [2]), []);
    let ended = tail.end();
    let difference = "it is a state, other lines are a log";
    assert!(ended.error.contains(&format!("shm:b/t: {difference}: it is left out")), "{ended:?}");
    assert!(ended.error.contains(&format!("0 lost, left out: {difference}\n")), "{ended:?}");
    let ended = place.run(&["get", A, "--line", B]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "\"2\"\n"));
    assert!(ended.error.contains(difference), "{ended:?}");
}

/// A command may end before a difference is news.
#[test]
fn summary_says_how_a_line_differs() {
    let place = Place::new();
    let _a = publish(&place, "log", (A, "a"), &["1"]);
    let b = publish(&place, "log", (B, "b"), &["1"]);
    let summary = || {
        let ended = place.run(&["tail", A, "--line", B, "--last", "1"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.error
    };
    let found = summary();
    let epochs = "its publisher has epoch 000000000000000b, other lines have 000000000000000a\n";
    assert!(found.contains(&format!("0 lost, out of step: {epochs}")), "{found}");
    kill(b);
    let _b = publish(&place, "state", (B, "a"), &["1"]);
    let found = summary();
    assert!(found.contains("0 lost, left out: it is a state, other lines are a log\n"), "{found}");
}

#[test]
fn get_answers_from_the_line_that_is_ahead() {
    let place = Place::new();
    assert_both_named(&place.run(&["get", A, "--line", B]), 3);
    let b = publish(&place, "table", (B, "1"), &["EUR\t1", "EUR\t2"]);
    let ended = place.run(&["get", A, "EUR", "--line", B]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "\"2\"\n"), "{ended:?}");
    assert!(ended.error.contains("shm:a") && ended.error.contains("other lines are read"), "{ended:?}");
    let a = publish(&place, "table", (A, "1"), &["EUR\t1", "EUR\t2", "EUR\t3"]);
    for lines in [[A, B], [B, A]] {
        assert_eq!(place.run(&["get", lines[0], "EUR", "--line", lines[1]]).printed(), "\"3\"\n");
        assert_eq!(place.run(&["get", lines[0], "--line", lines[1]]).printed(), "EUR\t\"3\"\n");
    }
    kill(a);
    let ended = place.run(&["get", A, "EUR", "--line", B]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "\"2\"\n"), "{ended:?}");
    drop(b);
    let nodes = ["a", "b"].map(|name| place.node(name));
    let _empty = nodes.each_ref().map(table);
    assert_both_named(&place.run(&["get", A, "--line", B]), 1);
}

#[test]
fn last_records_are_those_of_the_line_that_is_ahead() {
    let place = Place::new();
    let _a = publish(&place, "log", (A, "1"), &["1", "2", "3", "4"]);
    let tail = ["tail", A, "--line", B, "--json", "--last", "2"];
    let values = |place: &Place| -> Vec<Value> {
        let ended = place.run(&tail);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out.lines().map(|line| parsed(line)["value"].take()).collect()
    };
    assert_eq!(values(&place), ["3", "4"]);
    let _b = publish(&place, "log", (B, "1"), &["1", "2"]);
    assert_eq!(values(&place), ["3", "4"]);
}

#[test]
fn command_ends_with_the_last_publisher_if_asked_to() {
    let place = Place::new();
    let until_end = ["tail", "--json", "--earliest", "--follow", "--until-end"];
    assert_both_named(&start(&place, &until_end).end(), 3);
    let mut a = publish(&place, "log", (A, "1"), &[]);
    let mut b = publish(&place, "log", (B, "1"), &[]);
    let tail = start(&place, &until_end);
    a.write("1");
    assert_eq!(assert_next(&tail, [1]), []);
    kill(a);
    // Line b could bring its value before the loss is noticed.
    assert_eq!(next_event(&tail), event("lost", A));
    b.write("1");
    b.write("2");
    assert_eq!(assert_next(&tail, [2]), []);
    b.end_input();
    b.end();
    let ended = tail.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.error.contains("shm:b/t: the topic has ended"), "{ended:?}");
    assert!(ended.error.contains("shm:b/t: first with "), "{ended:?}");
    // Neither publisher ends the topic in order.
    let publishers = [publish(&place, "log", (A, "1"), &["1"]), publish(&place, "log", (B, "1"), &[])];
    let tail = start(&place, &until_end);
    assert_next(&tail, [1]);
    publishers.into_iter().for_each(kill);
    let ended = tail.end();
    let said: Vec<&str> = ended.error.lines().skip_while(|line| !line.contains(" first with ")).collect();
    assert_eq!((ended.code, said.len()), (Some(6), 3), "{ended:?}");
    assert!(
        said[0].contains(A) && said[1].contains(B) && said[2].contains("no line has a publisher any more")
    );
}

#[test]
fn hz_counts_each_value_once() {
    let place = Place::new();
    let mut a = publish(&place, "log", (A, "1"), &[]);
    let mut b = publish(&place, "log", (B, "1"), &[]);
    let hz = start(&place, &["hz", "--json"]);
    let (mut written, mut received) = (0, 0);
    // It counts what is published after it has begun.
    wait_until("three values", || {
        written += 1;
        a.write(&written.to_string());
        b.write(&written.to_string());
        received += parsed(&hz.line())["received"].as_u64().unwrap_or_default();
        received >= 3
    });
    hz.signal(Signal::INT);
    let ended = hz.end();
    let summary = parsed(ended.out.lines().last().unwrap());
    let received = summary["received"].as_u64().unwrap();
    assert!((3..=written).contains(&received) && summary["lost"] == 0, "{written}: {ended:?}");
    assert!(ended.error.contains("shm:b/t: first with "), "{ended:?}");
}

/// A table of this process, of the epoch 1.
fn table(node: &Node) -> TablePublisher<String, u64> {
    node.table_publisher("t").epoch(Epoch::new(1).unwrap()).open().unwrap()
}

#[test]
fn key_that_the_line_ahead_has_removed_is_gone() {
    let place = Place::new();
    let nodes = ["a", "b"].map(|name| place.node(name));
    let [mut ahead, mut behind] = nodes.each_ref().map(table);
    for table in [&mut ahead, &mut behind] {
        table.put("EUR", &1).unwrap();
    }
    ahead.put("USD", &2).unwrap();
    ahead.remove("EUR").unwrap();
    for [first, other] in [[A, B], [B, A]] {
        place.run(&["get", first, "EUR", "--line", other]).assert_failure(1, &[A, "no key \"EUR\""]);
        assert_eq!(place.run(&["get", first, "--line", other]).printed(), "USD\t2\n");
    }
    ahead.remove("USD").unwrap();
    for [first, other] in [[A, B], [B, A]] {
        place.run(&["get", first, "--line", other]).assert_failure(1, &[A, "no keys"]);
    }
    // It goes on while the other one is frozen.
    let get = place.start(&["get", A, "EUR", "--line", B, "--wait", "60"]);
    for value in 2..8 {
        behind.put("EUR", &value).unwrap();
    }
    // The values up to 4 have the sequences of commits that the line ahead has.
    assert!((5..8).contains(&get.line().parse::<u64>().unwrap()));
    assert_eq!(get.end().code, Some(0));
}

/// What was found is final, even if it cannot be shown in full: another attempt would print the table again.
#[test]
fn table_is_printed_once_though_an_entry_is_damaged() {
    let place = Place::new();
    let nodes = ["a", "b"].map(|name| place.node(name));
    let mut tables = nodes.each_ref().map(|node| {
        let epoch = Epoch::new(1).unwrap();
        node.table_publisher::<String, String>("t").epoch(epoch).open().unwrap()
    });
    for table in &mut tables {
        table.put("EUR", &"one".to_owned()).unwrap();
    }
    // Line a is ahead.
    tables[0].put("USD", &"a value that is damaged".to_owned()).unwrap();
    damage("a value that is damaged");
    let ended = place.run(&["get", A, "--line", B, "--wait", "1"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), "EUR\t\"one\"\n"), "{ended:?}");
    assert_eq!(
        ended.error.matches("1 entry is damaged in shm:a/t, and missing here").count(),
        1,
        "{ended:?}"
    );
    // Whether the key is there is unknown, and the other line has it.
    for table in &mut tables {
        table.put("GBP", &"two".to_owned()).unwrap();
    }
    tables[0].remove("EUR").unwrap();
    let ended = place.run(&["get", A, "EUR", "--line", B, "--wait", "1"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "\"one\"\n"), "{ended:?}");
    assert_eq!(ended.error.matches("; other lines are read").count(), 1, "{ended:?}");
}

#[test]
fn values_are_decoded_with_the_type_of_their_line() {
    let place = Place::new();
    let (first, second) = (place.node("a"), place.node("b"));
    let epoch = Epoch::new(1).unwrap();
    let mut numbers = first.log_publisher::<u64>("t").epoch(epoch).open().unwrap();
    let mut texts = second.log_publisher::<String>("t").epoch(epoch).open().unwrap();
    let tail = start(&place, &["tail", "--follow", "--earliest", "--json"]);
    let mut all = Vec::new();
    for number in 1..=6_u64 {
        let expected = if number % 2 == 1 { json!(number) } else { json!(number.to_string()) };
        if number % 2 == 1 {
            numbers.publish(&number).unwrap();
        } else {
            texts.publish(&number.to_string()).unwrap();
        }
        let (line, events) = next(&tail);
        assert_eq!((&line["sequence"], &line["value"]), (&json!(number), &expected), "{events:?}");
        all.push(events);
        // The other line brings the same number, in its own form, later.
        if number % 2 == 1 {
            texts.publish(&number.to_string()).unwrap();
        } else {
            numbers.publish(&number).unwrap();
        }
    }
    // It is news once, and before the first value.
    assert_eq!((all.remove(0), all.concat()), (vec![event("other type", B)], vec![]));
    tail.signal(Signal::INT);
    let ended = tail.end();
    let sentence = "shm:b/t: its values are String, those of shm:a/t are u64; values of both are received";
    assert_eq!(ended.error.matches(sentence).count(), 1, "{ended:?}");
    let ended = place.run(&["get", A, "--line", B]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "6\n"), "{ended:?}");
    let sentence = "shm:b/t: its values are String, those of shm:a/t are u64; it is left out";
    assert!(ended.error.contains(sentence), "{ended:?}");
}

/// The command ends with the value that comes after the news.
#[test]
fn last_value_of_another_type_is_printed() {
    let place = Place::new();
    let (first, second) = (place.node("a"), place.node("b"));
    let epoch = Epoch::new(1).unwrap();
    let mut numbers = first.log_publisher::<u64>("t").epoch(epoch).open().unwrap();
    let mut texts = second.log_publisher::<String>("t").epoch(epoch).open().unwrap();
    numbers.publish(&1).unwrap();
    ["one", "two"].iter().for_each(|text| _ = texts.publish(&(*text).to_owned()).unwrap());
    for lines in [[A, "--line", B], [B, "--line", A]] {
        let tail = place.run(&[&["tail", "--earliest", "--json"], &lines[..]].concat());
        let values: Vec<Value> =
            tail.out.lines().map(parsed).filter(|line| !line["value"].is_null()).collect();
        let sequences: Vec<_> = values.iter().map(|line| line["sequence"].clone()).collect();
        assert_eq!((tail.code, sequences), (Some(0), vec![json!(1), json!(2)]), "{tail:?}");
    }
}

#[test]
fn type_of_a_line_is_news_when_it_becomes_another() {
    let place = Place::new();
    let (first, second) = (place.node("a"), place.node("b"));
    let epoch = Epoch::new(1).unwrap();
    let numbers = |node: &Node| node.log_publisher::<u64>("t").epoch(epoch).open().unwrap();
    let (mut one, other) = (numbers(&first), numbers(&second));
    let tail = start(&place, &["tail", "--follow", "--earliest", "--json"]);
    one.publish(&1).unwrap();
    let (line, events) = next(&tail);
    assert_eq!((&line["value"], events), (&json!(1), vec![]));
    drop(other);
    assert_eq!(next_event(&tail), event("lost", B));
    let _texts = second.log_publisher::<String>("t").epoch(epoch).open().unwrap();
    assert_eq!([next_event(&tail), next_event(&tail)], [event("resumed", B), event("other type", B)]);
}

#[test]
fn hung_publisher_is_reported_with_its_line() {
    let place = Place::new();
    let (mut a, b) = (publish(&place, "log", (A, "1"), &[]), publish(&place, "log", (B, "1"), &[]));
    let verbs = [&["watch", "--json"][..], &["watch", "--json", "--delivery", "push"]];
    let watches = verbs.map(|verb| start(&place, verb));
    // One more reads the counters.
    wait_for_counter(&place, "pull subscribers", 2);
    wait_for_counter(&place, "push subscribers", 1);
    a.write("1");
    // Also when both are attached by push.
    watches.iter().for_each(|watch| assert_eq!(assert_next(watch, [1]), []));
    // Not the one that is ahead, and while that brings values.
    let mut written = 1;
    for (signal, name) in [(Signal::STOP, "hung"), (Signal::CONT, "recovered")] {
        b.signal(signal);
        let mut events = [const { Vec::new() }; 2];
        wait_until("the report", || {
            written += 1;
            a.write(&written.to_string());
            for (watch, events) in watches.iter().zip(&mut events) {
                events.extend(assert_next(watch, [written]));
            }
            events.iter().all(|events| !events.is_empty())
        });
        assert_eq!(events, [[event(name, B)], [event(name, B)]]);
    }
    for watch in watches {
        watch.signal(Signal::INT);
        let ended = watch.end();
        assert_eq!(ended.code, Some(0));
        for sentence in ["shm:b/t: the publisher is hung", "shm:b/t: the publisher runs again"] {
            assert_eq!(ended.error.matches(sentence).count(), 1, "{ended:?}");
        }
    }
}

#[test]
fn no_value_ends_watch_with_5_if_all_publishers_are_hung() {
    let place = Place::new();
    let (a, b) = (publish(&place, "log", (A, "1"), &[]), publish(&place, "log", (B, "1"), &[]));
    let of_one = start(&place, &["watch", "--for", "3"]);
    let of_both = start(&place, &["watch", "--for", "10"]);
    wait_for_readers(&place, 2);
    b.signal(Signal::STOP);
    let line = of_both.error_line();
    assert!(line.contains("shm:b/t: the publisher is hung"), "{line}");
    let ended = of_one.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    a.signal(Signal::STOP);
    let ended = of_both.end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    let last = ended.error.lines().last().unwrap();
    assert!(
        last.contains("nothing arrived from any line") && last.contains("all publishers are hung"),
        "{ended:?}"
    );
    // They cannot be reached any more.
    assert_both_named(&place.run(&["watch", A, "--line", B]), 5);
}

#[test]
fn same_line_twice_is_refused() {
    let place = Place::new();
    for verb in ["watch", "get", "hz"] {
        place.run(&[verb, A, "--line", B, "--line", "b/t"]).assert_failure(2, &[B, "two lines"]);
        place.run(&[verb, A, "--line", A]).assert_failure(2, &[A, "two lines"]);
    }
}
