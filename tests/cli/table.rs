//! Tables: keys and values from lines, one key, all keys, changes, and what `tail`, `hz`, `info` and `list` show.

use fabricast::{Node, TablePublisher};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Place, Running, TIMEOUT, damage, fields, json as parsed, wait_until};
use crate::watch::is_stopped;

fn reader(place: &Place) -> Node {
    Node::builder().runtime_dir(place.path()).open().unwrap()
}

/// A table `shm:n/t` with these entries, each of its own commit.
fn table(node: &Node, entries: &[(&str, u32)]) -> TablePublisher<String, u32> {
    let mut publisher = node.table_publisher::<String, u32>("t").open().unwrap();
    for (key, value) in entries {
        publisher.put(*key, value).unwrap();
    }
    publisher
}

/// `fabricast pub` of a table, with these arguments besides.
fn publish(place: &Place, arguments: &[&str]) -> Running {
    let running = place
        .start(&[&["pub", "shm:p/t", "--kind", "table", "--quiet", "--linger", "1h"], arguments].concat());
    wait_until("the topic", || place.run(&["list", "shm:p"]).out.contains(" t "));
    running
}

fn wait_for_commit(place: &Place, address: &str, sequence: u64) {
    wait_until("the commit", || place.list(&[address])[0]["sequence"].as_u64() >= Some(sequence));
}

/// What a line for people shows behind sequence and age.
fn shown(line: &str) -> &str {
    let (_, rest) = line.trim_start().split_once("  ").unwrap();
    rest.trim_start().split_once("  ").unwrap().1
}

#[test]
fn lines_become_values_of_their_keys() {
    let place = Place::new();
    let mut publisher = publish(&place, &[]);
    let node = reader(&place);
    let subscriber = node.table_subscriber::<String, String>("shm:p/t").timeout(TIMEOUT);
    let mut subscriber = subscriber.open().unwrap();
    let lines = [("AAC+", "1"), ("BRK.B", " zwei\tüber "), ("no value", ""), ("-x", "3"), ("AAC+", "4")];
    for (index, (key, value)) in lines.into_iter().enumerate() {
        publisher.write(&format!("{key}\t{value}"));
        wait_for_commit(&place, "shm:p", index as u64 + 1);
        assert_eq!(subscriber.get(key).unwrap().unwrap().value, value);
    }
    assert_eq!(place.list(&["shm:p"])[0]["kind"], "table");
    let all =
        "-x\t\"3\"\nAAC+\t\"4\"\nBRK.B\t\" zwei\\u0009über \"\nno value\t\"\"\n".replace("\\u0009", "\\t");
    assert_eq!(place.run(&["get", "shm:p/t"]).printed(), all);
    for (key, value) in [("AAC+", "\"4\"\n"), ("BRK.B", "\" zwei\\tüber \"\n"), ("no value", "\"\"\n")] {
        assert_eq!(place.run(&["get", "p/t", key]).printed(), value);
    }
    assert_eq!(place.run(&["get", "p/t", "--", "-x"]).printed(), "\"3\"\n");
    publisher.signal(Signal::INT);
    assert_eq!(publisher.end().printed(), "");
}

#[test]
fn lines_that_are_not_entries_are_rejected_by_number() {
    let place = Place::new();
    let long = "k".repeat(257);
    let input = format!("a\t1\nnothing\n{long}\t1\nb\t{}\n\nb\t2\nc\t3\nb\t4\n", "x".repeat(80));
    let arguments = ["pub", "me/t", "--kind", "table", "--keys", "2", "--payload-len-max", "90", "--quiet"];
    let ended = place.run_with_input(&arguments, input);
    let lines: Vec<&str> = ended.error.lines().collect();
    let expected = [
        ["line 2 ", "no tab", "KEY<TAB>VALUE"],
        ["line 3 ", "longer than", "bytes"],
        ["line 4 ", "longer than", "--payload-len-max"],
        ["line 5 ", "no tab", "KEY<TAB>VALUE"],
        ["line 7 ", "2 keys", "--keys"],
    ];
    assert_eq!((ended.code, lines.len()), (Some(1), expected.len()), "{ended:?}");
    for (line, parts) in lines.iter().zip(expected) {
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {ended:?}");
    }
    let ended = place.run_with_input(&["pub", "me/t", "--kind", "table", "--quiet"], format!("{long}\t1\n"));
    assert!(ended.error.contains("its key is longer than 256 bytes"), "{ended:?}");
    let ended = place.run_with_input(&["pub", "me/t", "--kind", "table", "--quiet"], b"\xff\t1\na\t\xff\n");
    assert_eq!((ended.code, ended.error.lines().count()), (Some(1), 2), "{ended:?}");
    assert!(ended.error.contains("its key is not valid UTF-8"), "{ended:?}");
}

#[test]
fn arguments_of_other_kinds_are_refused() {
    let place = Place::new();
    let pub_as = |kind, argument: &[&str]| place.run(&[&["pub", "me/t", "--kind", kind], argument].concat());
    pub_as("table", &["--slots", "8"]).assert_failure(2, &["--keys", "--slots"]);
    pub_as("table", &["--capacity", "8"]).assert_failure(2, &["--keys", "--capacity"]);
    pub_as("table", &["--raw"]).assert_failure(2, &["--raw", "keys"]);
    pub_as("state", &["--keys", "8"]).assert_failure(2, &["--keys", "--kind table"]);
    pub_as("log", &["--keys", "8"]).assert_failure(2, &["--keys", "--kind table"]);
    assert_eq!(pub_as("table", &["--keys", "0"]).code, Some(2));
    let node = place.node("n");
    let _states = node.state_publisher::<u32>("s").open().unwrap();
    let parts = ["shm:n/s", "state topic", "no keys"];
    place.run(&["get", "n/s", "a"]).assert_failure(2, &[&parts[..], &["omit KEY"]].concat());
    for verb in ["watch", "hz", "tail"] {
        let ended = place.run(&[verb, "n/s", "--key", "*"]);
        ended.assert_failure(2, &[&parts[..], &["omit --key"]].concat());
    }
    let _table = table(&node, &[("a", 1)]);
    place.run(&["get", "n/t", "--raw"]).assert_failure(2, &["--raw", "KEY", "--hex"]);
    place.run(&["tail", "n/t", "--raw"]).assert_failure(2, &["--raw", "--hex"]);
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Json {
    bid: f64,
    venue: Option<String>,
}

#[test]
fn json_lines_are_values_of_the_type_of_the_first() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "p/t", "--kind", "table", "--json", "--quiet"]);
    publisher.write("a\t{\"bid\": 1.5, \"legs\": [{\"size\": 7, \"tags\": [\"x\"]}], \"live\": true}");
    wait_until("the value", || place.list(&["shm:p"]).iter().any(|row| row["sequence"] == 1));
    let shown = "{\"bid\": 1.5, \"legs\": [{\"size\": 7, \"tags\": [\"x\"]}], \"live\": true}\n";
    assert_eq!(place.run(&["get", "p/t", "a"]).printed(), shown);
    publisher.write("b\t{\"bid\": \"high\", \"legs\": [], \"live\": true}");
    publisher.write("c\t{\"live\": false, \"legs\": [], \"bid\": 2}");
    wait_for_commit(&place, "shm:p", 2);
    let line = place.run(&["get", "p/t", "c", "--json"]);
    let names = ["topic", "key", "sequence", "epoch", "published_ns", "age_ns", "value", "number"];
    assert_eq!(fields(line.printed()), names);
    let line = parsed(line.printed());
    assert_eq!((&line["key"], &line["number"]), (&json!("c"), &json!(1)));
    assert_eq!(line["value"], json!({ "bid": 2.0, "legs": [], "live": false }));
    assert_eq!(place.list(&["shm:p"])[0]["type"], "(String, Option<Json>)");
    publisher.end_input();
    let ended = publisher.end();
    assert_eq!((ended.code, ended.error.lines().count()), (Some(1), 1), "{ended:?}");
    assert!(["line 2 ", "bid is \"high\""].iter().all(|part| ended.error.contains(part)), "{ended:?}");
}

#[test]
fn json_numbers_and_examples_have_the_types_of_rust() {
    let place = Place::new();
    let mut publisher = publish(&place, &["--json", "--example", "0.5"]);
    publisher.write("EURUSD\t1.0841");
    publisher.write("USDJPY\t151");
    wait_for_commit(&place, "shm:p", 1);
    let node = reader(&place);
    let mut subscriber = node.table_subscriber::<String, f64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    wait_until("both", || subscriber.get("USDJPY").unwrap().is_some());
    assert_eq!(subscriber.get("EURUSD").unwrap().unwrap().value.to_bits(), 1.0841_f64.to_bits());
    assert_eq!(subscriber.get("USDJPY").unwrap().unwrap().value.to_bits(), 151.0_f64.to_bits());
    drop(publisher);
    let place = Place::new();
    let example = ["--example", r#"{"bid": 0.5, "venue": null}"#, "--example", r#"{"bid": 1, "venue": "X"}"#];
    let mut publisher = publish(&place, &[&["--json"], &example[..]].concat());
    publisher.write("a\t{\"bid\": 2}");
    wait_for_commit(&place, "shm:p", 1);
    assert_eq!(place.run(&["get", "p/t"]).printed(), "a\t{\"bid\": 2.0, \"venue\": null}\n");
    let node = reader(&place);
    let mut subscriber = node.table_subscriber::<String, Json>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    assert_eq!(subscriber.get("a").unwrap().unwrap().value, Json { bid: 2.0, venue: None });
}

#[test]
fn missing_key_is_an_error_and_can_be_waited_for() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = table(&node, &[]);
    place.run(&["get", "n/t"]).assert_failure(1, &["shm:n/t has no keys", "with --wait TIME"]);
    place.run(&["get", "n/t", "--wait", "1ms"]).assert_failure(1, &["has no keys", "longer than the 1.0ms"]);
    place.run(&["get", "n/t", "a b"]).assert_failure(1, &["shm:n/t has no key \"a b\"", "--wait"]);
    publisher.put("other", &1).unwrap();
    place.run(&["get", "n/t", "a b"]).assert_failure(1, &["shm:n/t has no key \"a b\"", "--wait"]);
    let parts = ["no key \"other.\"", "longer than the 50.0ms of --wait", "`fabricast get shm:n/t`"];
    place.run(&["get", "n/t", "other.", "--wait", "50ms"]).assert_failure(1, &parts);
    wait_until("nobody", || publisher.pull_subscribers() == 0);
    let waiting = place.start(&["get", "n/t", "a b", "--wait", "60"]);
    wait_until("the reader", || publisher.pull_subscribers() == 1);
    publisher.put("other", &2).unwrap();
    publisher.put("a b", &42).unwrap();
    assert_eq!(waiting.end().printed(), "42\n");
    publisher.remove("other").unwrap();
    publisher.remove("a b").unwrap();
    place.run(&["get", "n/t", "a b"]).assert_failure(1, &["no key \"a b\""]);
    wait_until("nobody", || publisher.pull_subscribers() == 0);
    let waiting = place.start(&["get", "n/t", "--wait", "60"]);
    let ending = place.start(&["get", "n/t", "never", "--wait", "60"]);
    wait_until("the readers", || publisher.pull_subscribers() == 2);
    publisher.put("c", &3).unwrap();
    assert_eq!(waiting.end().printed(), "c\t3\n");
    drop(publisher);
    ending.end().assert_failure(1, &["shm:n/t", "ended"]);
}

#[test]
fn all_keys_are_printed_in_every_form() {
    let place = Place::new();
    let node = place.node("n");
    let _publisher = table(&node, &[("b", 2), ("a\u{1b}", 0), ("b", 3)]);
    assert_eq!(place.run(&["get", "n/t"]).printed(), "a\\u001b\t0\nb\t3\n");
    let ended = place.run(&["get", "n/t", "--json"]);
    let lines: Vec<Value> = ended.printed().lines().map(parsed).collect();
    let parts = |line: &Value| ["key", "sequence", "number", "value"].map(|name| line[name].clone()).to_vec();
    assert_eq!(parts(&lines[0]), [json!("a\u{1b}"), json!(2), json!(1), json!(0)]);
    assert_eq!(parts(&lines[1]), [json!("b"), json!(3), json!(2), json!(3)]);
    let dump = |byte: &str, char: &str| format!("00000000  {byte} 00 00 00{:36}  |{char}...|\n", "");
    let all = format!("a\\u001b\t4 B\n{}b\t4 B\n{}", dump("00", "."), dump("03", "."));
    assert_eq!(place.run(&["get", "n/t", "--hex"]).printed(), all);
    assert_eq!(place.run(&["get", "n/t", "b", "--hex"]).printed(), dump("03", "."));
    assert_eq!(place.run(&["get", "n/t", "b", "--raw"]).printed(), "\u{3}\0\0\0");
}

#[test]
fn keys_that_are_not_texts_are_written_as_json() {
    let place = Place::new();
    let node = place.node("n");
    let mut numbers = node.table_publisher::<u64, String>("numbers").open().unwrap();
    for number in [100, 7, 20] {
        numbers.put(&number, &format!("is {number}")).unwrap();
    }
    assert_eq!(place.run(&["get", "n/numbers"]).printed(), "7\t\"is 7\"\n20\t\"is 20\"\n100\t\"is 100\"\n");
    assert_eq!(place.run(&["get", "n/numbers", "20"]).printed(), "\"is 20\"\n");
    assert_eq!(parsed(place.run(&["get", "n/numbers", "20", "--json"]).printed())["key"], 20);
    place.run(&["get", "n/numbers", "2"]).assert_failure(1, &["no key \"2\""]);
    let mut pairs = node.table_publisher::<(String, u32), Option<u8>>("pairs").open().unwrap();
    pairs.put(&("EU".to_owned(), 7), &Some(1)).unwrap();
    pairs.put(&("US".to_owned(), 7), &None).unwrap();
    assert_eq!(place.run(&["get", "n/pairs", "[\"EU\",  7]"]).printed(), "1\n");
    // A value may be null, too.
    assert_eq!(place.run(&["get", "n/pairs"]).printed(), "[\"EU\", 7]\t1\n[\"US\", 7]\tnull\n");
    let watch = place.run(&["watch", "n/pairs", "--count", "1", "--key", "[\"US*", "--json"]);
    let line = parsed(watch.printed());
    assert_eq!((&line["key"], &line["removed"]), (&json!(["US", 7]), &json!(null)));
}

#[test]
fn watch_shows_each_changed_key_that_matches() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = table(&node, &[("EURUSD", 1), ("USDJPY", 2)]);
    let start = |arguments: &[&str]| place.start(&[&["watch", "n/t", "--until-end"], arguments].concat());
    let watch = start(&[]);
    let push = start(&["--delivery", "push", "--key", "*USD?", "--json"]);
    let euros = start(&["--key", "EUR*", "--json"]);
    assert_eq!([shown(&watch.line()), shown(&watch.line())], ["EURUSD\t1", "USDJPY\t2"]);
    assert_eq!(parsed(&euros.line())["key"], "EURUSD");
    wait_until("the push subscriber", || publisher.push_subscribers() == 1);
    publisher.put("EURUSD", &3).unwrap();
    assert_eq!(shown(&watch.line()), "EURUSD\t3");
    let line = parsed(&euros.line());
    assert_eq!((&line["value"], &line["number"], &line["sequence"]), (&json!(3), &json!(2), &json!(3)));
    publisher.remove("USDJPY").unwrap();
    assert_eq!(shown(&watch.line()), "USDJPY\tremoved");
    publisher.put("EURUSDX", &4).unwrap();
    assert_eq!(shown(&watch.line()), "EURUSDX\t4");
    for watch in [&push, &euros] {
        let line = parsed(&watch.line());
        assert_eq!((&line["key"], &line["value"]), (&json!("EURUSDX"), &json!(4)));
    }
    publisher.remove("EURUSDX").unwrap();
    for watch in [&push, &euros] {
        let line = watch.line();
        let names =
            ["topic", "key", "sequence", "epoch", "published_ns", "age_ns", "value", "number", "removed"];
        assert_eq!(fields(&line), names);
        let line = parsed(&line);
        assert_eq!((&line["key"], &line["value"]), (&json!("EURUSDX"), &json!(null)));
        assert_eq!((&line["removed"], &line["sequence"]), (&json!(true), &json!(6)));
    }
    drop(publisher);
    for watch in [watch, push, euros] {
        assert_eq!(watch.end().code, Some(0));
    }
}

#[test]
fn replaced_values_are_counted_for_their_key() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = table(&node, &[("a", 1), ("b", 1)]);
    for json in [true, false] {
        let arguments = ["watch", "n/t", "--key", "a", "--count", "2"];
        let watch = place.start(&[&arguments[..], if json { &["--json"] } else { &[] }].concat());
        watch.line();
        watch.signal(Signal::STOP);
        wait_until("the stop", || is_stopped(watch.process()));
        for value in 2..=5 {
            publisher.put("a", &value).unwrap();
            publisher.put("b", &value).unwrap();
        }
        watch.signal(Signal::CONT);
        let (loss, value) = (watch.line(), watch.line());
        if json {
            let expected = r#"{"topic":"t","key":"a","lost":3,"first_lost":2,"reason":"conflated"}"#;
            assert_eq!(loss, expected);
            let value = parsed(&value);
            assert_eq!((&value["value"], &value["number"]), (&json!(5), &json!(5)));
        } else {
            assert_eq!(shown(&loss), "a\t3 skipped (replaced by newer values)");
            assert_eq!(shown(&value), "a\t5");
        }
        watch.end().printed();
    }
}

#[test]
fn tail_shows_the_keys_that_changed_last() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = table(&node, &[("a", 1), ("b", 2), ("c", 3), ("a", 4)]);
    let tail = |arguments: &[&str]| {
        let ended = place.run(&[&["tail", "n/t"], arguments].concat());
        ended.printed().lines().map(|line| shown(line).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(tail(&[]), ["b\t2", "c\t3", "a\t4"]);
    assert_eq!(tail(&["--last", "2"]), ["c\t3", "a\t4"]);
    assert_eq!(tail(&["--last", "0"]), [""; 0]);
    assert_eq!(tail(&["--last", "1", "--push"]), ["a\t4"]);
    assert_eq!(tail(&["--from", "3"]), ["c\t3", "a\t4"]);
    assert_eq!(tail(&["--earliest", "--count", "2"]), ["b\t2", "c\t3"]);
    place
        .run(&["tail", "n/t", "--key", "[ab]"])
        .assert_failure(1, &["shm:n/t", "no key", "[ab]", "--follow"]);
    assert_eq!(tail(&["--key", "?", "--hex"])[0], "b\t4 B");
    place.run(&["tail", "n/t", "--from", "5"]).assert_failure(1, &["shm:n/t", "commit 5", "newest: 4"]);
    wait_until("nobody", || publisher.pull_subscribers() == 0);
    let tail = place.start(&["tail", "n/t", "--last", "1", "--follow", "--until-end"]);
    assert_eq!(shown(&tail.line()), "a\t4");
    publisher.put("d", &5).unwrap();
    assert_eq!(shown(&tail.line()), "d\t5");
    publisher.remove("a").unwrap();
    assert_eq!(shown(&tail.line()), "a\tremoved");
    drop(publisher);
    assert_eq!(tail.end().printed(), "");
}

#[test]
fn hz_counts_the_changes_of_keys() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = table(&node, &[("a", 1), ("b", 2)]);
    let hz = place.start(&["hz", "n/t", "--json", "--until-end"]);
    let of_key = place.start(&["hz", "n/t", "--json", "--until-end", "--key", "b"]);
    // After one line each: earlier values do not count.
    hz.line();
    of_key.line();
    for value in 0..50 {
        publisher.put_batch([("a", &value), ("b", &value), ("c", &value)]).unwrap();
    }
    drop(publisher);
    for (hz, changes) in [(hz, 150), (of_key, 50)] {
        let ended = hz.end();
        let line = parsed(ended.printed().lines().last().unwrap());
        // A value of the new key that was replaced before its first one was read counts, too.
        let counted = line["received"].as_u64().unwrap() + line["lost"].as_u64().unwrap();
        assert_eq!(counted, changes, "{line}");
        let float = |name: &str| line[name].as_f64().unwrap();
        assert!((float("rate") * float("seconds") - counted as f64).abs() < 1e-6, "{line}");
    }
}

#[test]
fn lines_at_a_rate_are_commits_of_their_own() {
    let place = Place::new();
    let mut publisher = publish(&place, &["--rate", "1000"]);
    publisher.write_bytes(b"a\t1\nb\t1\na\t2\nc\t1\n");
    wait_for_commit(&place, "shm:p", 4);
    let ended = place.run(&["tail", "p/t", "--json"]);
    let lines = ended.printed().lines().map(parsed);
    let commits: Vec<(Value, Value)> =
        lines.map(|line| (line["key"].clone(), line["sequence"].clone())).collect();
    assert_eq!(commits, [("b", 2), ("a", 3), ("c", 4)].map(|(key, at)| (json!(key), json!(at))));
}

#[test]
fn info_shows_keys_capacity_and_suspect_keys() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher =
        node.table_publisher::<String, String>("t").capacity(100).key_len_max(40).open().unwrap();
    let has_row = |name: &str, text: &str| {
        let ended = place.run(&["info", "n/t"]);
        let mut rows = ended.printed().lines().filter_map(|line| line.split_once("  "));
        assert!(
            rows.any(|row| row.0 == name && row.1.trim() == text),
            "{name} is not {text} in {}",
            ended.out
        );
    };
    has_row("keys", "0");
    for key in ["a", "b", "c"] {
        publisher.put(key, &format!("the value of {key}")).unwrap();
    }
    publisher.remove("a").unwrap();
    for (name, text) in [("kind", "table"), ("keys", "2"), ("capacity", "100"), ("longest key", "40 B")] {
        has_row(name, text);
    }
    has_row("suspect keys", "0");
    let report = parsed(place.run(&["info", "n/t", "--json"]).printed());
    assert_eq!((&report["keys"], &report["suspect_keys"]), (&json!(2), &json!(0)));
    assert_eq!(report["geometry"]["capacity"], 100);

    damage("the value of b");
    has_row("suspect keys", "1");
    assert_eq!(parsed(place.run(&["info", "n/t", "--json"]).printed())["suspect_keys"], 1);
    let ended = place.run(&["get", "n/t"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), "c\t\"the value of c\"\n"), "{ended:?}");
    assert!(ended.error.contains("1 entry is damaged"), "{ended:?}");
    assert_eq!(place.run(&["get", "n/t", "c"]).printed(), "\"the value of c\"\n");
    place.run(&["get", "n/t", "b"]).assert_failure(1, &["no key \"b\"", "damaged entries (1)"]);
    publisher.put("b", &"repaired".to_owned()).unwrap();
    has_row("suspect keys", "0");
    let watch = place.run(&["info", "n/t", "--json"]);
    assert_eq!(parsed(watch.printed())["suspect_keys"], 0);
}
