//! `list`, `info` and `get` of publishers that live.

use std::collections::BTreeMap;

use fabricast::Raw;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::support::{Place, fields, json as parsed, wait_until};

#[derive(Serialize, Deserialize)]
enum Side {
    Buy,
    Sell { reason: String },
}

#[derive(Serialize, Deserialize)]
struct Order {
    side: Side,
    price: f64,
    legs: Vec<(u32, Option<Side>)>,
    tags: BTreeMap<String, i64>,
}

fn order() -> Order {
    let side = Side::Sell { reason: "risk".to_owned() };
    let tags = BTreeMap::from([("desk".to_owned(), -7)]);
    Order { side, price: 99.5, legs: vec![(1, None), (2, Some(Side::Buy))], tags }
}

#[test]
fn list_shows_every_node_and_topic() {
    let place = Place::new();
    let _idle = place.node("idle");
    let node = place.node("lib");
    let _never = node.state_publisher::<u64>("never").open().unwrap();
    let mut orders = node.state_publisher::<Order>("a/orders").open().unwrap();
    orders.publish(&order()).unwrap();
    let mut other = place.publish("shm:proc/lines");
    other.write("hello");
    wait_until("the value", || place.list(&["shm:proc"])[0]["sequence"] == 1);

    let ended = place.run(&["list", "--json"]);
    let lines: Vec<&str> = ended.printed().lines().collect();
    for line in &lines {
        assert_eq!(
            fields(line),
            ["node", "topic", "kind", "type", "sequence", "age_ns", "state", "slowest_lag"]
        );
    }
    let expected = concat!(
        r#"{"node":"idle","topic":null,"kind":null,"type":null,"sequence":null,"#,
        r#""age_ns":null,"state":"live","slowest_lag":null}"#
    );
    assert_eq!((lines.len(), lines[0]), (4, expected));
    let never = concat!(
        r#"{"node":"lib","topic":"never","kind":"state","type":"u64","sequence":0,"#,
        r#""age_ns":null,"state":"live","slowest_lag":null}"#
    );
    assert_eq!(lines[2], never);
    let row = parsed(lines[1]);
    assert_eq!(
        (&row["topic"], &row["type"], &row["sequence"]),
        (&json!("a/orders"), &json!("Order"), &json!(1))
    );
    assert!(row["age_ns"].as_u64().unwrap() > 0);
    assert_eq!(parsed(lines[3])["type"], "String");
}

#[test]
fn list_is_a_table_for_people() {
    let place = Place::new();
    let _idle = place.node("idle");
    let node = place.node("quotes");
    let _topics =
        ["EURUSD", "a/long/name"].map(|name| node.state_publisher::<(f64, f64)>(name).open().unwrap());
    let expected = "\
NODE    TOPIC        KIND   TYPE        SEQUENCE  AGE  LAG  STATE
idle    -            -      -           -         -    -    live
quotes  EURUSD       state  (f64, f64)  0         -    -    live
quotes  a/long/name  state  (f64, f64)  0         -    -    live
";
    assert_eq!(place.run(&["list"]).printed(), expected);
    let one = "\
NODE  TOPIC  KIND  TYPE  SEQUENCE  AGE  LAG  STATE
idle  -      -     -     -         -    -    live
";
    assert_eq!(place.run(&["list", "shm:idle"]).printed(), one);
}

#[test]
fn list_of_nothing_is_empty() {
    let place = Place::new();
    let user = rustix::process::geteuid().as_raw();
    let named = |path: &std::path::Path| format!("{} (user {user})", path.display());
    let parts = [&named(place.path()), "--runtime-dir", "FABRICAST_RUNTIME_DIR"];
    place.run(&["list", "--json"]).assert_failure(0, &parts);
    place.run(&["list"]).assert_failure(0, &parts);
    // A missing directory is not created.
    let absent = place.path().join("absent");
    let list =
        |arguments: &[&str]| place.run(&[arguments, &["--runtime-dir", absent.to_str().unwrap()]].concat());
    list(&["list"]).assert_failure(0, &[&named(&absent), "it does not exist"]);
    let watch = &["watch", "n/t", "--until-end"];
    for arguments in [&["list", "shm:n"][..], &["get", "n/t"], watch, &["tail", "n/t"], &["info", "n/t"]] {
        list(arguments).assert_failure(3, &["shm:n", &named(&absent)]);
    }
    assert!(!absent.exists());
    place.run(&["list", "shm:nobody"]).assert_failure(3, &["shm:nobody", "`fabricast list`"]);
}

#[test]
fn unreachable_runtime_directory_is_not_called_empty() {
    let place = Place::new();
    let file = place.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let beyond = file.join("run");
    for arguments in [&["list"][..], &["list", "shm:n"], &["get", "n/t"]] {
        let ended = place.run(&[arguments, &["--runtime-dir", beyond.to_str().unwrap()]].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(7), ""), "{ended:?}");
        assert!(ended.error.contains(beyond.to_str().unwrap()), "{ended:?}");
    }
}

#[test]
fn foreign_struct_is_decoded_by_its_schema() {
    let place = Place::new();
    let node = place.node("desk");
    let mut publisher = node.state_publisher::<Order>("orders").open().unwrap();
    publisher.publish(&order()).unwrap();
    let ended = place.run(&["get", "shm:desk/orders", "--json"]);
    let names = ["topic", "key", "sequence", "epoch", "published_ns", "age_ns", "value"];
    assert_eq!(fields(ended.printed()), names);
    let line = parsed(ended.printed());
    assert_eq!(
        (&line["topic"], &line["key"], &line["sequence"]),
        (&json!("orders"), &json!(null), &json!(1))
    );
    assert_eq!(line["epoch"], json!(publisher.epoch().to_string()));
    assert_eq!(line["epoch"].as_str().unwrap().len(), 16);
    assert!(line["published_ns"].as_u64().unwrap() > 1_577_836_800_000_000_000);
    assert!(line["age_ns"].is_u64());
    let value = json!({
        "side": { "Sell": { "reason": "risk" } },
        "price": 99.5,
        "legs": [[1, null], [2, "Buy"]],
        "tags": { "desk": -7 },
    });
    assert_eq!(line["value"], value);
    let text = concat!(
        r#"{"side": {"Sell": {"reason": "risk"}}, "price": 99.5, "#,
        r#""legs": [[1, null], [2, "Buy"]], "tags": {"desk": -7}}"#,
        "\n"
    );
    assert_eq!(place.run(&["get", "shm:desk/orders"]).printed(), text);
}

#[test]
fn get_prints_bytes_in_every_form() {
    let place = Place::new();
    let node = place.node("camera");
    let mut publisher = node.state_publisher::<Raw>("left").open().unwrap();
    publisher.publish(b"A\x00\x01Z").unwrap();
    let line = place.run(&["get", "shm:camera/left", "--json"]);
    assert!(line.printed().ends_with("\"value\":\"QQABWg==\",\"encoding\":\"base64\"}\n"), "{line:?}");
    assert_eq!(place.run(&["get", "shm:camera/left", "--raw"]).printed(), "A\x00\x01Z");
    let dump = "00000000  41 00 01 5a                                      |A..Z|\n";
    assert_eq!(place.run(&["get", "shm:camera/left", "--hex"]).printed(), dump);
    assert_eq!(place.run(&["get", "shm:camera/left"]).printed(), "4 B: 41 00 01 5a\n");
    publisher.publish(&[7; 100]).unwrap();
    let text = format!("100 B: {}...\n", "07 ".repeat(32));
    assert_eq!(place.run(&["get", "shm:camera/left"]).printed(), text);
}

#[test]
fn get_waits_for_the_first_value_on_request() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u32>("t").open().unwrap();
    place.run(&["get", "shm:n/t"]).assert_failure(1, &["shm:n/t", "with --wait TIME", "`fabricast watch`"]);
    place.run(&["get", "n/t", "--wait", "1ms"]).assert_failure(1, &["shm:n/t", "longer than the 1.0ms"]);
    let waiting = place.start(&["get", "shm:n/t", "--wait", "60"]);
    wait_until("the reader", || publisher.pull_subscribers() == 1);
    publisher.publish(&42).unwrap();
    assert_eq!(waiting.end().printed(), "42\n");
}

#[test]
fn info_shows_everything_and_masks_the_keys() {
    let place = Place::new();
    let mut publisher = place.publish("shm:p/t");
    publisher.write("hello");
    wait_until("the value", || place.list(&["shm:p"])[0]["sequence"] == 1);
    let ended = place.run(&["info", "shm:p/t"]);
    let shown = ended.printed();
    let expected = [
        "topic             shm:p/t\n".to_owned(),
        "type              String (bincode)\n".to_owned(),
        "sequence          1\n".to_owned(),
        "newest length     13 B\n".to_owned(),
        format!("process           {}\n", publisher.process()),
        "slot length       64.1 KiB\n".to_owned(),
        "rkey              ****************  (--show-keys shows it)\n".to_owned(),
        "address           ****************  (--show-keys shows it)\n".to_owned(),
        "published         13 B\n".to_owned(),
        "largest payload   64.0 KiB\n".to_owned(),
        "\nschema\n  String (bincode)\n    string\n".to_owned(),
    ];
    for part in expected {
        assert!(shown.contains(&part), "{part:?} is missing in\n{shown}");
    }

    let ended = place.run(&["info", "shm:p/t", "--json"]);
    assert_eq!(ended.printed().lines().count(), 1);
    let report = parsed(ended.printed());
    assert_eq!(
        (&report["node"], &report["topic"], &report["type"]),
        (&json!("p"), &json!("t"), &json!("String"))
    );
    assert_eq!((&report["rkey"], &report["address"]), (&json!(null), &json!(null)));
    assert_eq!((&report["state"], &report["newest_len"]), (&json!("live"), &json!(13)));
    assert_eq!(report["geometry"]["slot_count"], 8);
    assert_eq!((&report["process"], &report["errors"]), (&json!(publisher.process()), &json!([])));

    let report = parsed(place.run(&["info", "shm:p/t", "--json", "--show-keys"]).printed());
    assert_eq!(report["rkey"].as_str().unwrap().len(), 16);
    assert!(!place.run(&["info", "shm:p/t", "--show-keys"]).printed().contains('*'));
}

#[test]
fn info_shows_distinct_errors() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<String>("t").payload_len_max(64).open().unwrap();
    for _ in 0..3 {
        publisher.publish(&"x".repeat(100)).unwrap_err();
    }
    let report = parsed(place.run(&["info", "shm:n/t", "--json"]).printed());
    assert_eq!(report["errors"][0]["value"], 3);
    let ended = place.run(&["info", "shm:n/t"]);
    assert!(ended.printed().contains("3 times, first "), "{ended:?}");
    assert!(ended.printed().contains("newest value           nothing published yet\n"), "{ended:?}");
    assert!(ended.printed().contains("publish duration       -\n"), "{ended:?}");
}

#[test]
fn log_is_listed_shown_and_read_like_other_topics() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher =
        node.log_publisher::<Order>("orders").capacity(4096).payload_len_max(100).open().unwrap();
    place.run(&["get", "shm:n/orders"]).assert_failure(1, &["shm:n/orders", "--wait", "`fabricast watch`"]);
    let shown = place.run(&["info", "shm:n/orders"]);
    assert!(has_row(shown.printed(), "held length", "0 B"), "{}", shown.out);
    for _ in 0..100 {
        publisher.publish(&order()).unwrap();
    }
    let row = &place.list(&["shm:n"])[0];
    assert_eq!((&row["kind"], &row["sequence"]), (&json!("log"), &json!(100)));
    assert!(row["age_ns"].as_u64().unwrap() > 0);

    let report = parsed(place.run(&["info", "shm:n/orders", "--json"]).printed());
    assert_eq!((&report["kind"], &report["sequence"]), (&json!("log"), &json!(100)));
    assert_eq!(
        (&report["newest_len"], &report["geometry"]["ring_len"]),
        (&json!(null), &json!(publisher.capacity()))
    );
    let (first, held) = (report["first_sequence"].as_u64().unwrap(), report["held_len"].as_u64().unwrap());
    assert!((2..100).contains(&first) && held <= publisher.capacity() as u64, "{report}");
    let ended = place.run(&["info", "shm:n/orders"]);
    let held = if held < 1000 { format!("{held} B") } else { format!("{:.1} kB", held as f64 / 1000.0) };
    let (len, first) = (publisher.capacity(), first.to_string());
    let ring = format!("{:.1} KiB", len as f64 / 1024.0);
    for (name, expected) in [
        ("ring length", ring.as_str()),
        ("segment count", "64"),
        ("segment length", &format!("{} B", len / 64)),
        ("first sequence", &first),
        ("held length", &held),
    ] {
        assert!(has_row(ended.printed(), name, expected), "{name} is not {expected} in {}", ended.out);
    }

    let line = parsed(place.run(&["get", "shm:n/orders", "--json"]).printed());
    assert_eq!((&line["sequence"], &line["value"]["price"]), (&json!(100), &json!(99.5)));
    // The ended process may still count, and be taken for the next one.
    wait_until("nobody", || publisher.pull_subscribers() == 0);
    let waiting = place.start(&["watch", "shm:n/orders", "--count", "2", "--json"]);
    wait_until("the reader", || publisher.pull_subscribers() == 1);
    publisher.publish_batch(&[order(), order(), order()]).unwrap();
    for sequence in [101, 102] {
        assert_eq!(parsed(&waiting.line())["sequence"], sequence);
    }
    assert_eq!(waiting.end().printed(), "");
}

/// Whether a row of a table with two columns has this name and this text.
fn has_row(table: &str, name: &str, text: &str) -> bool {
    let mut rows = table.lines().filter_map(|line| line.split_once("  "));
    rows.any(|(first, rest)| first == name && rest.trim() == text)
}

#[derive(Serialize, Deserialize)]
struct Unordered {
    zebra: String,
    apple: BTreeMap<String, u8>,
}

/// Fields have the order of the type, and no character controls the terminal or hides.
#[test]
fn fields_keep_their_order_and_hidden_characters_are_escaped() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<Unordered>("t").open().unwrap();
    let text = "a\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{200b}\u{feff}é\u{e0041}";
    let value = Unordered { zebra: text.to_owned(), apple: BTreeMap::from([("k\u{202e}".to_owned(), 1)]) };
    publisher.publish(&value).unwrap();
    let escaped = r"a\u001b[2J\u007f\u009b\u202e\u200b\ufeffé\udb40\udc41";
    let shown = format!("{{\"zebra\": \"{escaped}\", \"apple\": {{\"k\\u202e\": 1}}}}\n");
    assert_eq!(place.run(&["get", "n/t"]).printed(), shown);
    let line = place.run(&["get", "n/t", "--json"]);
    let compact = format!("{{\"zebra\":\"{escaped}\",\"apple\":{{\"k\\u202e\":1}}}}");
    assert!(line.printed().contains(&compact), "{line:?}");
    assert_eq!(parsed(line.printed())["value"]["zebra"], text);
}

#[test]
fn times_sizes_and_targets_are_written_as_they_are_printed() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u32>("t").open().unwrap();
    place.run(&["watch", "n/t", "--for", "50ms"]).assert_failure(1, &["shm:n/t", "50.0ms"]);
    publisher.publish(&42).unwrap();
    assert_eq!(place.run(&["get", "n/t", "--wait", "1m30s"]).printed(), "42\n");
    let mut served =
        place.start(&["pub", "me/t", "--kind", "log", "--capacity", "64k", "--payload-len-max", "1KiB"]);
    served.write("x");
    wait_until("the value", || place.list(&["shm:me"]).iter().any(|row| row["sequence"] == 1));
    let report = parsed(place.run(&["info", "me/t", "--json"]).printed());
    let geometry = &report["geometry"];
    assert_eq!((&geometry["payload_len_max"], &geometry["ring_len"]), (&json!(1024), &json!(65_536)));
    for wrong in
        [["watch", "n/t", "--for", "5x"], ["get", "n/t", "--wait", "-1s"], ["pub", "a/t", "--capacity", "1z"]]
    {
        assert_eq!(place.run(&wrong).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn name_of_a_node_suffices_and_a_topic_is_not_taken_for_one() {
    let place = Place::new();
    let _node = place.node("n");
    let listed = place.run(&["list", "n", "--json"]);
    assert_eq!(listed.printed(), place.run(&["list", "shm:n", "--json"]).printed());
    place.run(&["get", "n"]).assert_failure(2, &["shm:n/TOPIC"]);
    for topic in ["n/t", "shm:n/t"] {
        let ended = place.run(&["list", topic]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.error.contains("topic") && ended.error.contains("shm:n "), "{ended:?}");
    }
}

#[test]
fn get_logs_its_work_on_request() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u32>("t").open().unwrap();
    publisher.publish(&42).unwrap();
    let ended = place.run(&["-v", "get", "n/t"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "42\n"));
    assert!(ended.error.contains("subscribing") && ended.error.contains("subscribed"), "{ended:?}");
}
