//! Options: what each promises, what it refuses, and in which words.

use crate::support::{Place, damage, json, wait_until};

/// The values of lines of JSON.
fn values(printed: &str) -> Vec<String> {
    printed.lines().map(|line| json(line)["value"].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn restarted_pub_continues_the_numbering_of_its_epoch_after_a_sequence() {
    let place = Place::new();
    let publish = |options: &[&str], lines: &str| {
        let common = ["pub", "a/t", "--kind", "log", "--epoch", "7", "--wait-for-subscribers", "1"];
        place.run_with_input(&[&common, options].concat(), lines)
    };
    let tail = place.start(&["tail", "a/t", "--follow", "--count", "5", "--json"]);
    let first = publish(&[], "a\nb\nc\n");
    assert!(first.code == Some(0) && first.error.contains("3 values, up to sequence 3"), "{first:?}");
    let second = publish(&["--after", "3"], "d\ne\n");
    assert!(second.code == Some(0) && second.error.contains("2 values, up to sequence 5"), "{second:?}");
    let ended = tail.end();
    let records: Vec<_> = ended.out.lines().map(json).filter(|line| !line["sequence"].is_null()).collect();
    let sequences: Vec<_> = records.iter().map(|record| record["sequence"].as_u64().unwrap()).collect();
    assert_eq!((sequences, ended.code), (vec![1, 2, 3, 4, 5], Some(0)), "{}", ended.error);
    assert_eq!(records[3]["value"], "d");
    let ended = place.run(&["pub", "a/t", "--after", "3"]);
    assert!(ended.code == Some(2) && ended.error.contains("--epoch"), "{ended:?}");
}

#[test]
fn first_line_waits_for_subscribers_that_seek_the_topic() {
    let place = Place::new();
    let tail = place.start(&["tail", "me/numbers", "--follow", "--json", "--count", "1000"]);
    assert!(tail.error_line().contains("waiting for a publisher"));
    let lines: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    let arguments = ["pub", "me/numbers", "--kind", "log", "--quiet", "--wait-for-subscribers", "1"];
    place.run_with_input(&arguments, lines).assert_nothing(0);
    let ended = tail.end();
    let records: String =
        ended.out.lines().filter(|line| line.contains("\"value\"")).map(|it| it.to_owned() + "\n").collect();
    assert_eq!(values(&records), (1..=1000).map(|number| number.to_string()).collect::<Vec<_>>());
    let mut waiting = place.start(&["pub", "me/t", "--wait-for-subscribers", "2"]);
    waiting.end_input();
    assert!(waiting.error_line().ends_with("; the first line waits for 2 subscribers"));
    wait_until("the topic", || place.list(&[]).iter().any(|row| row["topic"] == "t"));
    waiting.signal(rustix::process::Signal::INT);
    assert_eq!(waiting.end().code, Some(0));
}

#[test]
fn topic_over_the_limit_of_a_reader_names_its_option() {
    let place = Place::new();
    let mut publisher = place.publish_with("shm:me/huge", &["--kind", "log", "--capacity", "2M"]);
    publisher.write("one");
    wait_until("the line", || place.run(&["get", "me/huge"]).code == Some(0));
    let verbs: [&[&str]; 7] = [
        &["get", "me/huge"],
        &["info", "me/huge"],
        &["tail", "me/huge"],
        &["tail", "me/huge", "--follow"],
        &["tail", "me/huge", "--push"],
        &["watch", "me/huge"],
        &["hz", "me/huge"],
    ];
    for verb in verbs {
        let ended = place.run(&[verb, &["--region-len-max", "1M"]].concat());
        ended.assert_failure(7, &["shm:me/huge", "1048576", "--region-len-max 21"]);
    }
    for verb in &verbs[..3] {
        place.run(&[verb, &["--region-len-max", "3M"][..]].concat()).printed();
    }
    let ended = place.run(&["get", "me/huge", "--region-len-max", "17G"]);
    assert!(ended.code == Some(2) && ended.error.contains("17G is not in 1..="), "{ended:?}");
}

#[test]
fn damaged_record_that_tail_was_asked_for_is_no_success() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.log_publisher::<String>("t").open().unwrap();
    for text in ["the first", "what was damaged by a test", "the last"] {
        publisher.publish(&text.to_owned()).unwrap();
    }
    assert_eq!(place.run(&["tail", "n/t"]).printed().lines().count(), 3);
    damage("what was damaged by a test");
    for arguments in [&["--last", "2"][..], &["--from", "2", "--count", "1"], &["--earliest", "--json"]] {
        let ended = place.run(&[&["tail", "n/t"], arguments].concat());
        assert!(ended.code == Some(1) && ended.out.contains("damaged"), "{ended:?}");
        assert!(ended.error.contains("1 value is damaged or undecodable in shm:n/t"), "{ended:?}");
    }
    // Of the records asked for, none is.
    assert_eq!(place.run(&["tail", "n/t", "--last", "1"]).printed().lines().count(), 1);
    let followed = place.run(&["tail", "n/t", "--earliest", "--follow", "--count", "2"]);
    let sum = "fabricast: shm:n/t: 1 record was lost in all, 2 printed\n";
    assert_eq!((followed.code, followed.error.as_str()), (Some(0), sum));
}

#[test]
fn get_waits_for_a_node_and_a_topic_that_do_not_exist_yet() {
    let place = Place::new();
    let ended = place.run(&["get", "late/t", "--wait", "0.05"]);
    ended.assert_failure(3, &["shm:late", "waited 50.0ms"]);
    let get = place.start(&["get", "late/t", "--wait", "60"]);
    let node = place.node("late");
    let mut publisher = node.state_publisher::<u32>("t").open().unwrap();
    publisher.publish(&7).unwrap();
    assert_eq!(get.end().printed(), "7\n");
    place
        .run(&["get", "late/other", "--wait", "0.05"])
        .assert_failure(3, &["`fabricast list shm:late`", "waited"]);
    place.run(&["get", "late/other"]).assert_failure(3, &["`fabricast list shm:late`"]);
    // A file is not waited for.
    place.run(&["get", "file:/dev/shm/no-such-file", "--wait", "60"]).assert_failure(3, &["no-such-file"]);
}

#[test]
fn options_of_the_connection_come_last_and_are_refused_where_they_have_no_effect() {
    let place = Place::new();
    let help = place.run(&["pub", "-h"]);
    let (own, connection) = help.printed().split_once("\nConnection:\n").expect("a heading");
    for option in ["--key-file", "--runtime-dir", "--rdma-connect", "--insecure", "--allow", "--shm-group"] {
        assert!(!own.contains(&format!("{option} ")) && connection.contains(option), "{option}");
    }
    let ended = place.run(&["key", "desk", "--key-file", "keys"]);
    ended.assert_failure(2, &["--key-file", "`fabricast key NAME >> FILE`"]);
    let ended = place.run(&["pub", "me/x", "--allow", "10.0.0.0/24"]);
    ended.assert_failure(2, &["--allow", "rdma://"]);
    let help = place.run(&["list", "--help"]);
    assert!(help.printed().contains("4 if it\ndemands a key"), "{}", help.printed());
}

#[test]
fn numbers_and_times_that_are_refused_are_explained() {
    let place = Place::new();
    let refused = |arguments: &[&str], parts: &[&str]| {
        let ended = place.run(arguments);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
        parts.iter().for_each(|part| assert!(ended.error.contains(part), "{part:?} in {ended:?}"));
        let raw = ["invalid digit", "target type", "tip:"].iter().any(|part| ended.error.contains(part));
        assert!(!raw, "{ended:?}");
    };
    refused(&["pub", "me/x", "--sessions", "0"], &["\"0\" is not a whole number from 4 to 4096"]);
    refused(&["pub", "me/x", "--slots", "x"], &["\"x\" is not a whole number from 2 to 65536"]);
    refused(&["pub", "me/x", "--keys", "99999999999999999999"], &["is not a whole number"]);
    refused(&["pub", "me/x", "--kind", "log", "--capacity", "0"], &["0 is not a size of at least 1 byte\n"]);
    refused(&["pub", "me/x", "--lifespan", "0"], &["0 is too short"]);
    refused(&["watch", "me/x", "--deadline", "0s"], &["0s is too short"]);
    refused(&["watch", "me/x", "--for", "-1"], &["\"-1\" is not a duration"]);
    refused(&["watch", "me/x", "--count", "0"], &["\"0\" is not a whole number of at least 1"]);
    refused(&["tail", "me/x", "--last", "-1"], &["\"-1\" is not a whole number"]);
    refused(&["watch", "file:/dev/shm/x"], &["`fabricast tail`", "`get`", "`info`"]);
    refused(&["tail", "me/x", "--line", "file:/dev/shm/x"], &["name a topic of a node"]);
}

#[test]
fn lines_that_are_rejected_say_what_to_pass() {
    let place = Place::new();
    let publish = |arguments: &[&str], lines: &str| {
        let ended = place.run_with_input(&[&["pub", "me/x", "--quiet"], arguments].concat(), lines);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
        ended.error
    };
    let text = publish(&["--payload-len-max", "12"], "hello world\n");
    assert!(text.contains("longer than 4 bytes") && text.contains("12 of --payload-len-max"), "{text}");
    let json = publish(&["--json", "--payload-len-max", "12"], "\"hello world\"\n");
    assert!(json.contains("longer than 12 bytes, namely 19 when encoded"), "{json}");
    let price = publish(&["--json"], "{\"price\": 1}\n{\"price\": 1.5}\n");
    assert!(
        price.contains("price is 1.5") && price.contains("--example") && price.contains("0.5"),
        "{price}"
    );
}

#[test]
fn measuring_without_the_other_process_says_what_to_start() {
    let ended =
        Place::new().run(&["perf", "pull", "--connect", "shm:none", "--wait", "0.05", "--cpus", "any"]);
    ended.assert_failure(3, &["shm:none", "`fabricast perf pull --serve`"]);
}
