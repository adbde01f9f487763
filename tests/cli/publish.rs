//! `pub`: lines become values.

use std::time::Duration;

use fabricast::{Decoded, Node, Raw, ReceiveError};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::support::{Place, TIMEOUT, json, wait_until};

fn reader(place: &Place) -> Node {
    Node::builder().runtime_dir(place.path()).open().unwrap()
}

#[test]
fn lines_become_values_of_type_string() {
    let place = Place::new();
    let mut publisher = place.publish("shm:me/t");
    let node = reader(&place);
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").timeout(TIMEOUT).open().unwrap();
    for (index, line) in ["one", "", "  drei über  "].into_iter().enumerate() {
        publisher.write(line);
        let sample = subscriber.receive_timeout(TIMEOUT).unwrap().unwrap();
        assert_eq!((sample.value.as_str(), sample.meta.sequence.get()), (line, index as u64 + 1));
    }
    publisher.end_input();
    let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 3), "{error}");
    assert_eq!(publisher.end().printed(), "");
}

#[test]
fn the_last_value_lingers() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:me/t", "--kind", "state", "--linger", "600s", "--quiet"]);
    publisher.write("still here");
    publisher.end_input();
    wait_until("the topic", || place.run(&["list", "shm:me"]).code == Some(0));
    assert_eq!(place.run(&["get", "shm:me/t", "--wait", "60"]).printed(), "\"still here\"\n");
    publisher.signal(Signal::INT);
    assert_eq!(publisher.end().printed(), "");
    assert_eq!(place.run(&["list", "shm:me"]).code, Some(3));
}

#[test]
fn a_rate_spreads_values() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:me/t", "--rate", "20", "--quiet"]);
    let node = reader(&place);
    wait_until("the topic", || place.run(&["list", "shm:me"]).code == Some(0));
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").timeout(TIMEOUT).open().unwrap();
    let mut receive = || subscriber.receive_timeout(TIMEOUT).unwrap().unwrap();
    // The first one is always seen; those between it and the last may be replaced before they are read, on a busy machine.
    let written = clock_gettime(ClockId::Realtime);
    publisher.write("0");
    receive();
    (1..6).for_each(|number| publisher.write(&number.to_string()));
    let last = std::iter::repeat_with(receive).find(|sample| sample.meta.sequence.get() == 6).unwrap();
    // However late the first one is published, the second is due at the earliest 10 ms before it was written, and each of the
    // other four 50 ms after its predecessor.
    let written_ns = u64::try_from(Duration::try_from(written).unwrap().as_nanos()).unwrap();
    let elapsed_ns = last.meta.published_ns.saturating_sub(written_ns);
    assert!(elapsed_ns >= 190_000_000, "{elapsed_ns}");
    publisher.end_input();
    let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { .. }), "{error}");
    publisher.end().printed();
}

/// Each value that a subscriber misses is a loss, which --quiet does not hide.
#[test]
fn pub_reports_subscribers_that_have_not_received_the_end() {
    let place = Place::new();
    let mut publisher = place.publish_as("log", "shm:me/t");
    let node = reader(&place);
    let _idle = node.log_subscriber::<String>("shm:me/t").timeout(TIMEOUT).open().unwrap();
    publisher.write("x");
    publisher.end_input();
    let ended = publisher.end();
    let expected = "fabricast: 1 subscriber of shm:me/t has not received everything up to 1 and the end: use --linger 1m";
    assert!(ended.code == Some(0) && ended.error.starts_with(expected), "{ended:?}");
}

#[test]
fn ctrl_c_ends_pub_quietly_and_the_topic_in_good_order() {
    let place = Place::new();
    let mut publisher = place.publish("shm:me/t");
    publisher.write("x");
    let node = reader(&place);
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").timeout(TIMEOUT).open().unwrap();
    subscriber.receive_timeout(TIMEOUT).unwrap().unwrap();
    publisher.signal(Signal::INT);
    assert_eq!(publisher.end().printed(), "");
    let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { .. }), "{error}");
    assert!(place.list(&[]).is_empty());
}

#[test]
fn impossible_publications_are_reported() {
    let place = Place::new();
    let parts = ["--slots", "--kind state"];
    place.run(&["pub", "shm:me/t", "--kind", "log", "--slots", "8"]).assert_failure(2, &parts);
    let parts = ["--capacity", "--kind log"];
    place.run(&["pub", "shm:me/t", "--capacity", "8"]).assert_failure(2, &parts);
    let ended = place.run(&["pub", "shm:me/t", "--kind", "log", "--capacity", "99999999999999"]);
    assert_eq!((ended.code, ended.error.lines().count()), (Some(2), 1), "{ended:?}");
    place.run(&["pub", "shm:me/t", "--slots", "3"]).assert_failure(2, &["slots", "2 to 65536"]);
    let _node = place.node("taken");
    let process = format!("process {}", std::process::id());
    place.run(&["pub", "shm:taken/t"]).assert_failure(2, &["taken", &process]);
}

#[test]
fn lines_that_arrive_together_become_one_batch_of_records() {
    let place = Place::new();
    let mut publisher = place.publish_as("log", "shm:me/t");
    let node = reader(&place);
    let mut subscriber = node.log_subscriber::<String>("shm:me/t").timeout(TIMEOUT).open().unwrap();
    let lines: Vec<String> = (0..1000).map(|number| format!("line {number}")).collect();
    publisher.write(&lines.join("\n"));
    let (mut batches, mut published_ns) = (0, 0);
    for (index, line) in lines.iter().enumerate() {
        let record = subscriber.receive_timeout(TIMEOUT).unwrap().unwrap();
        assert_eq!((&record.value, record.meta.sequence.get()), (line, index as u64 + 1));
        batches += u64::from(
            record.meta.published_ns != std::mem::replace(&mut published_ns, record.meta.published_ns),
        );
    }
    // A batch is at most what is read ahead; the clock may not distinguish some of them.
    assert!((1..1000).contains(&batches), "{batches}");
    publisher.end_input();
    let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 1000), "{error}");
    assert_eq!(publisher.end().printed(), "");
}

/// The values of a log published from this input, and how the command ended.
fn published(arguments: &[&str], input: &[u8]) -> (Vec<Vec<u8>>, i32, String) {
    let place = Place::new();
    let arguments = [&["pub", "me/t", "--kind", "log", "--quiet", "--linger", "1h"], arguments].concat();
    let mut publisher = place.start(&arguments);
    publisher.write_bytes(input);
    publisher.end_input();
    wait_until("the topic", || place.run(&["list", "shm:me", "--json"]).out.contains("\"topic\":\"t\""));
    let mut subscriber =
        reader(&place).log_subscriber::<Raw>("shm:me/t").earliest().timeout(TIMEOUT).open().unwrap();
    let (mut values, is_last) = (Vec::new(), |value: &Vec<u8>| value.ends_with(b"last"));
    while !values.last().is_some_and(is_last) {
        values.push(subscriber.receive_timeout(TIMEOUT).unwrap().unwrap().value);
    }
    publisher.signal(Signal::INT);
    let ended = publisher.end();
    (values, ended.code.unwrap(), ended.error)
}

#[test]
fn invalid_line_is_reported_and_the_topic_continues() {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let (values, code, error) = published(&["--payload-len-max", "12"], b"one\n\xff\nfives\nlast\n");
    assert_eq!((values, code), (vec![text("one"), text("last")], 1));
    let rejected: Vec<&str> = error.lines().collect();
    assert_eq!(rejected.len(), 2, "{error}");
    for (line, parts) in rejected.iter().zip([["line 2 ", "--raw"], ["line 3 ", "4 bytes"]]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{error}");
    }
}

#[test]
fn raw_lines_are_published_unchanged() {
    let (values, code, error) = published(&["--raw"], b"\xff\x00\n\nlast\n");
    assert_eq!((values, code, error.as_str()), (vec![b"\xff\x00".to_vec(), vec![], b"last".to_vec()], 0, ""));
}

#[test]
fn json_lines_are_values_of_the_type_of_the_first() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "me/quote", "--json", "--kind", "log", "--quiet"]);
    // Fields keep their order, and there is no topic before the first line.
    assert!(!place.run(&["list", "shm:me", "--json"]).out.contains("quote"));
    publisher.write(r#"{"venue": "X", "bid": 1.5, "legs": [{"size": 7}]}"#);
    wait_until("the value", || place.list(&["shm:me"]).iter().any(|row| row["sequence"] == 1));
    let shown = place.run(&["get", "me/quote"]);
    assert_eq!(shown.printed(), "{\"venue\": \"X\", \"bid\": 1.5, \"legs\": [{\"size\": 7}]}\n");
    let node = reader(&place);
    let mut subscriber =
        node.log_subscriber::<Raw>("shm:me/quote").earliest().timeout(TIMEOUT).open().unwrap();
    assert_eq!(subscriber.schema().type_name(), "Json");
    publisher.write(r#"{"venue": "X", "bid": "high", "legs": []}"#);
    publisher.write(r#"{"legs": [], "bid": 2, "venue": "Y"}"#);
    let mut next = || subscriber.receive_timeout(TIMEOUT).unwrap().unwrap().value;
    let values = [next(), next()].map(|bytes| subscriber.schema().decode(&bytes).unwrap());
    let second = serde_json::json!({ "venue": "Y", "bid": 2.0, "legs": [] });
    assert_eq!(values[1], Decoded::Value(second));
    publisher.end_input();
    subscriber.receive_timeout(TIMEOUT).unwrap_err();
    let ended = publisher.end();
    assert_eq!((ended.code, ended.error.lines().count()), (Some(1), 1), "{ended:?}");
    let parts = ["line 2 ", "bid is \"high\"", "f64"];
    assert!(parts.iter().all(|part| ended.error.contains(part)), "{ended:?}");
}

#[test]
fn numbers_are_received_as_they_were_written_or_rejected() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "me/t", "--json", "--kind", "log", "--quiet"]);
    let floats = ["94.52706955539223", "31.245270191439438", "-0.5e-7", "5e-324"];
    floats.iter().for_each(|float| publisher.write(float));
    // Neither is a float, nor an integer of a supported type.
    for beyond in ["18446744073709551617", "-9223372036854775809", "9007199254740993"] {
        publisher.write(beyond);
    }
    wait_until("the values", || {
        place.list(&["shm:me"]).iter().any(|row| row["sequence"].as_u64() >= Some(floats.len() as u64))
    });
    let node = reader(&place);
    let mut subscriber = node.log_subscriber::<f64>("shm:me/t").earliest().timeout(TIMEOUT).open().unwrap();
    for float in floats {
        let value = subscriber.receive_timeout(TIMEOUT).unwrap().unwrap().value;
        assert_eq!(value.to_bits(), float.parse::<f64>().unwrap().to_bits(), "{value} for {float}");
    }
    let shown = place.run(&["get", "me/t", "--json"]);
    assert_eq!(json(shown.printed())["value"].to_string(), "5e-324");
    publisher.end_input();
    subscriber.receive_timeout(TIMEOUT).unwrap_err();
    let ended = publisher.end();
    assert_eq!((ended.code, ended.error.lines().count()), (Some(1), 3), "{ended:?}");
    for part in ["18446744073709551617 fits neither", "-9223372036854775809 fits neither", "line 7 "] {
        assert!(ended.error.contains(part), "{ended:?}");
    }
}

#[test]
fn duplicate_keys_are_rejected() {
    let place = Place::new();
    let input = "{\"a\": 1, \"a\": 2}\n[{\"b\": {\"c\": 1, \"c\": 1}}]\n{\"a\": 3}\n";
    let ended = place.run_with_input(&["pub", "me/t", "--json", "--quiet"], input);
    let lines: Vec<&str> = ended.error.lines().collect();
    assert_eq!((ended.code, lines.len()), (Some(1), 2), "{ended:?}");
    for (line, key) in lines.iter().zip(["\"a\"", "\"c\""]) {
        assert!(line.contains(key) && line.contains("twice"), "{ended:?}");
    }
    let example = ["pub", "me/t", "--json", "--example", "{\"a\": 1, \"a\": 2}"];
    assert_eq!(place.run(&example).code, Some(2));
    // Digits inside a string are not a number.
    let text = "{\"18446744073709551617\": \"a\\\"18446744073709551617\"}\n";
    assert_eq!(place.run_with_input(&["pub", "me/t", "--json", "--quiet"], text).printed(), "");
}

#[test]
fn examples_extend_the_type_of_the_first_line() {
    let place = Place::new();
    let examples = ["--example", r#"{"a": 1, "b": "x"}"#, "--example", r#"{"a": 0.5}"#];
    let mut publisher = place.start(&[&["pub", "me/t", "--json", "--quiet"], &examples[..]].concat());
    wait_until("the topic", || place.run(&["list", "shm:me"]).out.contains(" t "));
    publisher.write(r#"{"a": 3}"#);
    let shown = place.run(&["get", "me/t", "--wait", "60"]);
    assert_eq!(shown.printed(), "{\"a\": 3.0, \"b\": null}\n");
    drop(publisher);
    let empty = place.run_with_input(&["pub", "other/t", "--json", "--quiet"], "{\"a\": []}\n");
    assert_eq!((empty.code, empty.error.lines().count()), (Some(1), 2), "{empty:?}");
    let parts = ["line 1 ", "an element of a,", "--example"];
    assert!(parts.iter().all(|part| empty.error.contains(part)), "{empty:?}");
    assert_eq!(place.run(&["pub", "other/t", "--example", "1"]).code, Some(2));
}

/// What produces the input may have failed.
#[test]
fn pub_that_published_nothing_ends_with_1() {
    let place = Place::new();
    for options in [&[][..], &["--kind", "log"], &["--kind", "table"], &["--json"]] {
        let arguments = [&["pub", "shm:nothing/t", "--linger", "0"][..], options].concat();
        let ended = place.run_with_input(&arguments, "");
        assert_eq!(ended.code, Some(1), "{options:?}: {ended:?}");
    }
    let ended = place.run_with_input(&["pub", "shm:nothing/t", "--linger", "0"], "one\n");
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn pub_reports_what_it_serves_and_until_when() {
    let place = Place::new();
    let ended = place.run_with_input(&["pub", "shm:me/t"], "x\n");
    let lines: Vec<&str> = ended.error.lines().collect();
    assert_eq!((ended.code, ended.out.as_str(), lines.len()), (Some(0), "", 2), "{ended:?}");
    for (line, parts) in lines.iter().zip([["serving", "Ctrl-C"], ["after 1 value;", "--linger"]]) {
        assert!(line.contains("shm:me/t") && parts.iter().all(|part| line.contains(part)), "{ended:?}");
    }
    assert_eq!(place.run_with_input(&["pub", "shm:me/t", "--quiet"], "x\n").printed(), "");
    let mut lingers = place.start(&["pub", "shm:me/t", "--linger", "90s"]);
    assert_eq!(
        lingers.error_line(),
        "fabricast: serving shm:me/t until 1m30s after the input ends, or Ctrl-C"
    );
    lingers.write("x");
    lingers.end_input();
    let line = lingers.error_line();
    assert!(["after 1 value;", "shm:me/t", "1m30s"].iter().all(|part| line.contains(part)), "{line}");
    lingers.signal(Signal::INT);
    assert_eq!(lingers.end().printed(), "");
}

#[test]
fn lines_before_the_first_with_a_type_are_rejected_by_number() {
    let input = b"no JSON\n{\"a\": null}\n{\"a\": 1}\n\"last\"\n{\"a\": 2}\n";
    let place = Place::new();
    let ended = place.run_with_input(&["pub", "me/t", "--json", "--kind", "log"], input);
    let lines: Vec<&str> = ended.error.lines().collect();
    assert_eq!((ended.code, lines.len()), (Some(1), 5), "{ended:?}");
    for (line, parts) in lines.iter().zip([
        ["line 1", "JSON"],
        ["line 2", "a, which is null or empty"],
        ["serving", "shm:me/t"],
        ["line 4", "\"last\""],
        ["2 values", "--linger"],
    ]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {ended:?}");
    }
    assert!(!ended.error.contains("no JSON"), "the text of a line is left out: {ended:?}");
    let ended = place.run_with_input(&["pub", "me/t", "--json"], "[]\n");
    assert_eq!((ended.code, ended.error.lines().count()), (Some(1), 2), "{ended:?}");
}

#[test]
fn input_that_cannot_be_read_is_a_local_failure() {
    for form in [&[][..], &["--json"]] {
        let place = Place::new();
        let mut command = place.command(&[&["pub", "me/t", "--quiet"], form].concat());
        let output = command.stdin(std::fs::File::open("/").unwrap()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(7), "{error}");
        assert!(error.starts_with("fabricast: cannot read standard input: "), "{error}");
    }
}

#[test]
fn values_expire_after_the_lifespan_that_is_declared() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:p/t", "--lifespan", "1ms", "--quiet", "--linger", "1m"]);
    publisher.write("old");
    wait_until("the value", || {
        let info = place.run(&["info", "shm:p/t", "--json"]);
        info.code == Some(0)
            && json(info.printed())["age_ns"].as_u64().is_some_and(|age_ns| age_ns > 1_000_000)
    });
    let info = place.run(&["info", "shm:p/t"]);
    let is_shown = |line: &str| line.split_whitespace().eq(["lifespan", "1.0ms"]);
    assert!(info.printed().lines().any(is_shown), "{}", info.printed());
    place.run(&["get", "shm:p/t"]).assert_failure(1, &["shm:p/t has expired", "1.0ms"]);
}

#[test]
fn commands_name_what_has_expired() {
    let place = Place::new();
    let kinds = [("log", "1", "2"), ("table", "a\t1", "b\t2")];
    for (kind, one, other) in kinds {
        let target = format!("shm:p-{kind}/t");
        let target = target.as_str();
        let options = ["--kind", kind, "--lifespan", "1ms", "--quiet", "--linger", "1m"];
        let mut publisher = place.start(&[&["pub", target], &options[..]].concat());
        // Lines that are read together are one commit.
        for (sequence, line) in [(1, one), (2, other)] {
            publisher.write(line);
            wait_until("the value to expire", || {
                let info = place.run(&["info", target, "--json"]);
                let is_old = |info: Value| {
                    info["sequence"] == sequence && info["age_ns"].as_u64().is_some_and(|age| age > 1_000_000)
                };
                info.code == Some(0) && is_old(json(info.printed()))
            });
        }
        let tail = place.run(&["tail", target]);
        assert_eq!((tail.code, tail.out.as_str()), (Some(0), ""), "{tail:?}");
        let left_out = format!("{target}: 2 values were left out, because they had expired");
        assert!(tail.error.contains(&left_out), "{tail:?}");
        match kind {
            "log" => {
                place.run(&["get", target]).assert_failure(1, &["newest value of", "has expired"]);
            }
            _ => {
                place.run(&["get", target]).assert_failure(1, &["all values of", "have expired", "1.0ms"]);
                let get = place.run(&["get", target, "a"]);
                get.assert_failure(1, &["key \"a\" of", "has expired", "1.0ms"]);
                place.run(&["get", target, "c"]).assert_failure(1, &["has no key \"c\""]);
                let tail = place.run(&["tail", target, "--key", "a*"]);
                assert_eq!((tail.code, tail.out.as_str()), (Some(1), ""), "{tail:?}");
                let said = ["has no key that matches a* and has not expired", "1 value was left out"];
                assert!(said.iter().all(|part| tail.error.contains(part)), "{tail:?}");
            }
        }
    }
}

/// What has expired was not replaced.
#[test]
fn expired_records_are_not_reported_as_replaced() {
    let place = Place::new();
    let mut publisher = place.publish_with("shm:p/t", &["--kind", "log", "--lifespan", "2s"]);
    let watch = place.start(&["watch", "shm:p/t", "--json"]);
    wait_until("the subscriber", || {
        let info = json(place.run(&["info", "shm:p/t", "--json"]).printed());
        info["subscribers"]["count"] == 1
    });
    publisher.write("1");
    assert_eq!(json(&watch.line())["sequence"], 1);
    watch.signal(Signal::STOP);
    ["2", "3"].iter().for_each(|line| publisher.write(line));
    let is_old = |info: Value| {
        info["sequence"] == 3 && info["age_ns"].as_u64().is_some_and(|age_ns| age_ns > 2_000_000_000)
    };
    wait_until("both to expire", || is_old(json(place.run(&["info", "shm:p/t", "--json"]).printed())));
    publisher.write("4");
    watch.signal(Signal::CONT);
    assert_eq!(json(&watch.line())["sequence"], 4);
    watch.signal(Signal::INT);
    let ended = watch.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.error.contains("2 values were left out"), "{ended:?}");
}

/// Nobody knows whether the program of a stopped process will receive the last line: the command waits for a while, and then says so.
#[test]
fn last_line_that_a_subscriber_has_not_received_is_reported() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:me/t", "--kind", "log"]);
    assert!(publisher.error_line().contains("serving"));
    publisher.write("first");
    let shown = place.start(&["tail", "shm:me/t", "--follow", "--until-end", "--count", "2"]);
    assert!(shown.line().contains("first"));
    shown.signal(Signal::STOP);
    publisher.write("last");
    publisher.end_input();
    assert!(publisher.error_line().contains("2 values"));
    let ended = publisher.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.error.contains("1 subscriber"), "{ended:?}");
    shown.signal(Signal::CONT);
    assert!(shown.end().out.contains("last"));
}

/// One that does receive it is waited for, and no longer.
#[test]
fn last_line_is_received_before_the_command_ends() {
    let place = Place::new();
    for arguments in [&["tail", "--follow"][..], &["tail", "--push", "--follow"]] {
        let mut publisher = place.publish_as("log", "shm:me/t");
        publisher.write("first");
        let arguments = [arguments, &["--until-end", "shm:me/t", "--earliest"]].concat();
        let shown = place.start(&arguments);
        assert!(shown.line().contains("first"));
        publisher.write("last");
        publisher.end_input();
        let ended = publisher.end();
        assert_eq!((ended.code, ended.error.as_str()), (Some(0), ""), "{ended:?}");
        assert!(shown.end().printed().contains("last"));
    }
}
