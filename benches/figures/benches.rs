//! Figures of the benches: `benches/state.rs`, `payload.rs`, `subscribers.rs`, `table.rs`, `feed.rs` and `node.rs`.

use super::Outcome;
use super::aims::{self, Bound};
use super::data::Data;
use super::lab::Lab;
use super::page::{Block, Table};
use super::plot::{Curve, Panel, Plot, Scale};
use super::units::{count, or_nothing, ratio, time};

/// Adds the medians of a bench of divan's.
fn divan(lab: &mut Lab, bench: &str) -> Outcome<()> {
    for ((name, argument), ns) in lab.divan(bench)? {
        lab.add((&name, argument), None, &[("ns", ns)]);
    }
    Ok(())
}

/// Adds the rows of a bench that prints a table.
fn table(lab: &mut Lab, bench: &str, arguments: &[&str]) -> Outcome<()> {
    for (series, x, values) in lab.table(bench, arguments)? {
        let values: Vec<(&str, f64)> = values.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        lab.add((&series, x), None, &values);
    }
    Ok(())
}

/// A time for one of `items`.
fn ns(data: &Data, (series, x): (&str, u64), items: f64) -> String {
    or_nothing(data.median((series, x, "ns")).map(|ns| ns / items), time)
}

fn curve(data: &Data, name: &'static str, (series, value): (&str, &str), items: f64) -> Curve {
    let point = |x: u64| Some((x, data.median((series, x, value))? / items));
    Curve { name, is_dashed: false, points: data.places(series).into_iter().filter_map(point).collect() }
}

pub(super) fn measure_parts(lab: &mut Lab) -> Outcome<()> {
    divan(lab, "state")
}

pub(super) fn show_parts(data: &Data) -> Vec<Block> {
    let series = [
        "floor_memcpy",
        "floor_crc32fast",
        "commit",
        "check",
        "publish",
        "publish_and_read_pull",
        "publish_and_read_push",
    ];
    let row = |size: u64| {
        let cells = series.iter().map(|series| ns(data, (series, size), 1.0));
        std::iter::once(count(size)).chain(cells).collect()
    };
    let head = [
        "bytes",
        "memcpy",
        "crc32fast",
        "commit",
        "check",
        "publish",
        "publish and pull",
        "publish and push",
    ];
    let rows = data.places("publish").into_iter().map(row).collect();
    vec![Block { name: "parts", tables: vec![Table::new(&head, rows)], plots: vec![] }]
}

pub(super) fn measure_payload(lab: &mut Lab) -> Outcome<()> {
    divan(lab, "payload")
}

pub(super) fn show_payload(data: &Data) -> Vec<Block> {
    let values = [
        ("quote, 8 fields", "quote"),
        ("book, 20 levels of 3 fields", "book"),
        ("`Vec<u8>` of 1,024", "bytes"),
        ("`Vec<f64>` of 1,000", "floats"),
        ("`String` of 1,024", "text"),
        ("10 values of a type that contains itself", "chain"),
    ];
    let row = |(name, module): (&str, &str)| {
        let of = |series: &str| ns(data, (&format!("{module}/{series}"), 0), 1.0);
        vec![name.to_owned(), of("alone"), of("checked")]
    };
    let head = ["value", "bincode only", "checked"];
    vec![Block { name: "payload", tables: vec![Table::new(&head, values.map(row).into())], plots: vec![] }]
}

pub(super) fn measure_subscribers(lab: &mut Lab) -> Outcome<()> {
    let seconds = lab.seconds(0.5);
    lab.data.processors =
        "the publisher on the first processor, its subscribers on the others; not probed for a common cache"
            .to_owned();
    let most = if lab.is_quick { "1" } else { "256" };
    table(lab, "subscribers", &["--for", &seconds, "--most", most])
}

pub(super) fn show_subscribers(data: &Data) -> Vec<Block> {
    let series = ["pull-idle", "pull-same", "pull", "push-idle", "push"];
    let mut counts: Vec<u64> = series.iter().flat_map(|series| data.places(series)).collect();
    counts.sort_unstable();
    counts.dedup();
    let row = |number: u64| {
        let of = |series: &&str| or_nothing(data.median((series, number, "cpu_ns")), time);
        std::iter::once(count(number)).chain(series.iter().map(of)).collect()
    };
    let head = [
        "subscribers",
        "pull, idle",
        "pull, polling on the publisher's processor",
        "pull, polling on others",
        "push, idle",
        "push, polling on others",
    ];
    let rows = counts.into_iter().map(row).collect();
    let x = |title, curves| Panel { title, x: ("subscribers", Scale::LogAndZero, count), curves };
    let of = |name, series: &str| curve(data, name, (series, "cpu_ns"), 1.0);
    let plot = Plot {
        name: "subscribers",
        title: "The publisher's processor time for a publish of 64 bytes".to_owned(),
        panels: vec![
            x(
                "processes that poll without pause",
                vec![of("pull", "pull"), of("push", "push"), of("pull, same processor", "pull-same")],
            ),
            x("subscribers that do nothing", vec![of("pull", "pull-idle"), of("push", "push-idle")]),
        ],
        y: ("processor time of a publish", Scale::Log, time),
    };
    vec![Block { name: "subscribers", tables: vec![Table::new(&head, rows)], plots: vec![plot] }]
}

pub(super) fn measure_table(lab: &mut Lab) -> Outcome<()> {
    divan(lab, "table")
}

pub(super) fn show_table(data: &Data) -> Vec<Block> {
    let columns = [
        ("put_a_hundred_keys", "a put"),
        ("put_a_batch_of_a_hundred_keys", "a put of a batch"),
        ("receive_a_hundred_changes", "a change received"),
        ("receive_changes_of_fifty_keys", "the same, by interest"),
        ("get_a_key", "a get"),
    ];
    let items = |series: &str| match series {
        "get_a_key" => 1.0,
        "receive_changes_of_fifty_keys" => 50.0,
        _ => 100.0,
    };
    let row = |keys: u64| {
        let hundred = |(series, _): &(&str, &str)| ns(data, (series, keys), 1.0);
        std::iter::once(count(keys)).chain(columns.iter().map(hundred)).collect()
    };
    let head = [
        "keys",
        "100 puts",
        "one batch of 100",
        "receive 100 changes",
        "receive 50 of 150, by interest",
        "get a key",
    ];
    let rows = data.places("put_a_hundred_keys").into_iter().map(row).collect();
    let single = [
        ("a put to one key", ns(data, ("put_one_key", 0), 1.0)),
        ("a publish of a state of that size", ns(data, ("floor_publish_a_state", 0), 1.0)),
        (
            "opening a table of 3,000 keys, putting all, attaching, receiving all",
            ns(data, ("open_and_attach_to_three_thousand_keys", 0), 1.0),
        ),
    ];
    let single = single.map(|(name, text)| vec![name.to_owned(), text]);
    let curves = columns.map(|(series, name)| curve(data, name, (series, "ns"), items(series)));
    let plot = Plot {
        name: "table",
        title: "Tables by the number of keys, values of 64 bytes".to_owned(),
        panels: vec![Panel { title: "", x: ("keys of the table", Scale::Log, count), curves: curves.into() }],
        y: ("time for one key", Scale::Log, time),
    };
    let put = data.ratio(("put_one_key", 0, "ns"), ("floor_publish_a_state", 0, "ns"));
    let batch = |keys: u64| {
        let (batch, each) = ("put_a_batch_of_a_hundred_keys", "put_a_hundred_keys");
        let found = data.ratio((batch, keys, "ns"), (each, keys, "ns"));
        (format!("a batch of 100 to 100 puts, {} keys", count(keys)), Bound::AtMost(0.6), found)
    };
    let mut aims = vec![("a put to one key to a publish of a state".to_owned(), Bound::AtMost(1.3), put)];
    aims.extend(data.places("put_a_hundred_keys").into_iter().map(batch));
    let single = Table::new(&["what", "time"], single.into());
    let tables = vec![Table::new(&head, rows), single, aims::table(aims)];
    vec![Block { name: "table", tables, plots: vec![plot] }]
}

pub(super) fn measure_feed(lab: &mut Lab) -> Outcome<()> {
    divan(lab, "feed")
}

pub(super) fn show_feed(data: &Data) -> Vec<Block> {
    let row = |records: u64| {
        let (feed, floor) = ("publish_an_event", "floor_publish_log_and_table");
        vec![
            count(records),
            ns(data, (floor, records), 1.0),
            ns(data, (feed, records), 1.0),
            ratio(data.ratio((feed, records, "ns"), (floor, records, "ns"))),
        ]
    };
    let head = ["records of an event", "log and table", "feed", "feed to log and table"];
    let rows = data.places("publish_an_event").into_iter().map(row).collect();
    let received = [
        ("a record of a feed", "receive_updates", 64.0),
        ("a record of a feed, of which 50 of 3,000 keys are wanted", "receive_updates_of_fifty_keys", 64.0),
        ("a record of a plain log", "floor_receive_a_log", 64.0),
        ("joining, with the values of 3,000 keys", "join", 1.0),
    ];
    let received = received.map(|(name, series, items)| vec![name.to_owned(), ns(data, (series, 0), items)]);
    let tables = vec![Table::new(&head, rows), Table::new(&["received", "time"], received.into())];
    vec![Block { name: "feed", tables, plots: vec![] }]
}

pub(super) fn measure_node(lab: &mut Lab) -> Outcome<()> {
    let seconds = lab.seconds(2.0);
    lab.data.processors = "one process, not pinned".to_owned();
    let most = if lab.is_quick { "10" } else { "1000" };
    table(lab, "node", &["--growth", "--for", &seconds, "--most", most])
}

pub(super) fn show_node(data: &Data) -> Vec<Block> {
    let places = data.places("topics");
    let of = |series: &str, x: u64, value: &str| data.median((series, x, value));
    let row = |number: u64| {
        vec![
            count(number),
            or_nothing(of("topics", number, "rest_ns_per_s"), time),
            or_nothing(of("sessions", number, "rest_ns_per_s"), time),
            or_nothing(of("topics", number, "attach_ns"), time),
            or_nothing(of("sessions", number, "attach_ns"), time),
        ]
    };
    let head = [
        "number",
        "at rest, topics",
        "at rest, sessions",
        "to attach one, topics",
        "to attach one, sessions",
    ];
    let panel = |title, value: &str| Panel {
        title,
        x: ("topics, or sessions", Scale::Log, count),
        curves: vec![
            curve(data, "topics, no session", ("topics", value), 1.0),
            curve(data, "sessions, one topic", ("sessions", value), 1.0),
        ],
    };
    let plot = Plot {
        name: "node",
        title: "Processor time of a node's thread by topics and sessions".to_owned(),
        panels: vec![
            panel("at rest, for a second", "rest_ns_per_s"),
            panel("to attach one more session", "attach_ns"),
        ],
        y: ("time of the thread", Scale::Log, time),
    };
    let mut rows: Vec<_> = places.iter().map(|number| row(*number)).collect();
    // The same values at the ends, in each round.
    if let [first, .., last] = places[..] {
        let growth = |series, value| ratio(data.ratio((series, last, value), (series, first, value)));
        rows.push(vec![
            format!("{} to {}", count(last), count(first)),
            growth("topics", "rest_ns_per_s"),
            growth("sessions", "rest_ns_per_s"),
            growth("topics", "attach_ns"),
            growth("sessions", "attach_ns"),
        ]);
    }
    vec![Block { name: "node", tables: vec![Table::new(&head, rows)], plots: vec![plot] }]
}
