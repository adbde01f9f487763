//! Logs at full speed, beside rings that do less.

use super::Outcome;
use super::aims::{self, Aim, Bound};
use super::data::Data;
use super::lab::Lab;
use super::page::{Block, Table};
use super::plot::{Curve, Panel, Plot, Scale};
use super::units::{bytes, or_nothing, per_cent, rate, ratio, short_bytes, throughput};

const SIZES: [&str; 4] = ["64", "1024", "16384", "65536"];
const VALUES: [&str; 2] = ["msgs_per_s", "gb_per_s"];

/// Adds the lines of a stream under this name, and those beside it with its name in front.
pub(super) fn stream(lab: &mut Lab, series: &str, arguments: &[&str]) -> Outcome<()> {
    for line in lab.perf(arguments)? {
        let name =
            if line.mode() == "stream" { series.to_owned() } else { format!("{series}-{}", line.mode()) };
        let mut values = line.values(&VALUES);
        if let [(_, verified), (_, lost)] = line.values(&["verified", "lost"])[..]
            && let [(_, published), ..] = values[..]
        {
            let share = lost / (verified + lost).max(1.0);
            values.extend([("received_per_s", published * (1.0 - share)), ("lost_share", share)]);
        }
        lab.add((&name, line.size()), line.placement(), &values);
    }
    Ok(())
}

pub(super) fn measure_throughput(lab: &mut Lab) -> Outcome<()> {
    let (sizes, seconds) = (lab.some(&SIZES).join(","), lab.seconds(0.6));
    for delivery in ["pull", "push"] {
        let arguments = ["stream", "--size", &sizes, "--delivery", delivery, "--floor", "--for", &seconds];
        stream(lab, delivery, &arguments)?;
    }
    Ok(())
}

pub(super) fn show_throughput(data: &Data) -> Vec<Block> {
    let row = |size: u64| {
        let to = |series: &str, other: &str| {
            ratio(data.ratio((series, size, "gb_per_s"), (other, size, "gb_per_s")))
        };
        // Short records are counted, long ones are weighed.
        let of = |series: &str| {
            if size < 16 << 10 && !series.ends_with("memcpy") {
                return or_nothing(data.median((series, size, "msgs_per_s")), rate);
            }
            or_nothing(data.median((series, size, "gb_per_s")), throughput)
        };
        vec![
            bytes(size),
            of("pull"),
            of("push"),
            of("pull-floor"),
            of("pull-checked"),
            of("pull-memcpy"),
            to("pull", "pull-floor"),
            to("pull", "pull-checked"),
            to("push", "push-checked"),
        ]
    };
    let head = [
        "size",
        "pull",
        "push",
        "bare ring",
        "`checked`",
        "memcpy",
        "pull to bare ring",
        "pull to `checked`",
        "push to `checked`",
    ];
    let rows = data.places("pull").into_iter().map(row).collect();
    let curves = [
        ("pull", "pull", false),
        ("push", "push", false),
        ("bare ring", "pull-floor", true),
        ("checked ring", "pull-checked", true),
        ("memcpy", "pull-memcpy", true),
    ];
    let title = "Streams over shared memory by size";
    let to = |size: u64, other: &str| data.ratio(("pull", size, "gb_per_s"), (other, size, "gb_per_s"));
    let aims = vec![
        ("pull of 64 B to bare ring".to_owned(), Bound::AtLeast(0.4), to(64, "pull-floor")),
        ("pull of 64 KiB to memcpy".to_owned(), Bound::AtLeast(0.25), to(65_536, "pull-memcpy")),
    ];
    vec![Block {
        name: "throughput",
        tables: vec![Table::new(&head, rows), aims::table(aims)],
        plots: vec![plot("throughput", title, (data, &curves))],
    }]
}

/// Throughput by size: a curve for each name and series.
pub(super) fn plot(
    name: &'static str,
    title: &str,
    (data, curves): (&Data, &[(&'static str, &str, bool)]),
) -> Plot {
    let curve = |(name, series, is_dashed): &(&'static str, &str, bool)| {
        let point = |size: u64| Some((size, data.median((series, size, "gb_per_s"))?));
        Curve {
            name,
            is_dashed: *is_dashed,
            points: data.places(series).into_iter().filter_map(point).collect(),
        }
    };
    let panel = Panel {
        title: "",
        x: ("size of a record, bytes", Scale::Log, short_bytes),
        curves: curves.iter().map(curve).collect(),
    };
    Plot { name, title: title.to_owned(), panels: vec![panel], y: ("throughput", Scale::Log, throughput) }
}

/// The series, what it is called, and its options.
const COMMITS: [(&str, &str, &[&str]); 8] = [
    ("one", "64 B, one a commit", &["--size", "64", "--batch", "1"]),
    ("one-lossy", "the same, lapped (`--lossy`)", &["--size", "64", "--batch", "1", "--lossy"]),
    ("batch", "64 B, batches of 64", &["--size", "64", "--batch", "64"]),
    ("long", "64 KiB, one a commit", &["--size", "65536", "--batch", "1"]),
    ("long-block", "the same, `--policy block`", &["--size", "65536", "--batch", "1", "--policy", "block"]),
    (
        "long-in-place",
        "the same, `--policy block --in-place`",
        &["--size", "65536", "--batch", "1", "--policy", "block", "--in-place"],
    ),
    (
        "long-number",
        "64 KiB, one a commit, `--contents number`",
        &["--size", "65536", "--batch", "1", "--contents", "number"],
    ),
    (
        "one-number",
        "64 B, one a commit, `--contents number`",
        &["--size", "64", "--batch", "1", "--contents", "number"],
    ),
];

pub(super) fn measure_commits(lab: &mut Lab) -> Outcome<()> {
    let seconds = lab.seconds(0.6);
    let commits = lab.some(&COMMITS).to_vec();
    for (series, _, options) in commits {
        stream(lab, series, &[&["stream"], options, &["--floor", "--for", &seconds]].concat())?;
    }
    Ok(())
}

pub(super) fn show_commits(data: &Data) -> Vec<Block> {
    let row = |(series, name, _): &(&str, &str, &[&str])| {
        let ring = format!("{series}-floor");
        let checked = format!("{series}-checked");
        let size = data.places(series).first().copied().unwrap_or(0);
        let of = |series: &str| or_nothing(data.median((series, size, "msgs_per_s")), rate);
        let to =
            |other: &str| ratio(data.ratio((series, size, "received_per_s"), (other, size, "msgs_per_s")));
        vec![
            (*name).to_owned(),
            or_nothing(data.median((series, size, "received_per_s")), rate),
            lost(data, (series, size)),
            of(&ring),
            of(&checked),
            to(&ring),
            to(&checked),
        ]
    };
    let head = [
        "records",
        "received",
        "lost",
        "bare ring",
        "`checked`",
        "stream to bare ring",
        "stream to `checked`",
    ];
    let tables = vec![Table::new(&head, COMMITS.iter().map(row).collect()), aims::table(commit_aims(data))];
    vec![Block { name: "commits", tables, plots: vec![] }]
}

fn commit_aims(data: &Data) -> Vec<Aim> {
    let received =
        |size: u64, series, other| data.ratio((series, size, "received_per_s"), (other, size, "msgs_per_s"));
    let lapped = data.ratio(("one-lossy", 64, "received_per_s"), ("one", 64, "received_per_s"));
    let aim = |name: &str, least: f64, found| (name.to_owned(), Bound::AtLeast(least), found);
    vec![
        aim("64 B, one a commit, to bare ring", 0.35, received(64, "one", "one-floor")),
        aim("the same, lapped, to the rate without loss", 0.8, lapped),
        aim("64 KiB, one a commit, to bare ring", 0.75, received(65_536, "long", "long-floor")),
        aim(
            "the same, `--contents number`, to bare ring",
            0.75,
            received(65_536, "long-number", "long-number-floor"),
        ),
    ]
}

/// The share of the published records that the subscribers have lost.
fn lost(data: &Data, (series, size): (&str, u64)) -> String {
    let text = |share: f64| if share == 0.0 { "none".to_owned() } else { per_cent(100.0 * share) };
    or_nothing(data.median((series, size, "lost_share")), text)
}

/// The series, what it is called, and its options.
const POLICIES: [(&str, &str, &[&str]); 6] = [
    ("waits", "the command waits, 1 subscriber, pull", &[]),
    ("lossy", "nothing waits (`--lossy`), 1 subscriber, pull", &["--lossy"]),
    ("block", "`--policy block`, 1 subscriber, pull", &["--policy", "block"]),
    ("block-push", "`--policy block`, 1 subscriber, push", &["--policy", "block", "--delivery", "push"]),
    ("four", "`--policy block`, 4 subscribers, pull", &["--policy", "block", "--subscribers", "4"]),
    (
        "four-long",
        "the same with a ring of 16 MiB",
        &["--policy", "block", "--subscribers", "4", "--capacity", "16777216"],
    ),
];

pub(super) fn measure_policies(lab: &mut Lab) -> Outcome<()> {
    let seconds = lab.seconds(1.0);
    let policies = lab.some(&POLICIES).to_vec();
    for (series, _, options) in policies {
        stream(lab, series, &[&["stream"], options, &["--for", &seconds]].concat())?;
    }
    Ok(())
}

pub(super) fn show_policies(data: &Data) -> Vec<Block> {
    let row = |(series, name, _): &(&str, &str, &[&str])| {
        vec![
            (*name).to_owned(),
            or_nothing(data.median((series, 64, "msgs_per_s")), rate),
            or_nothing(data.median((series, 64, "received_per_s")), rate),
            lost(data, (series, 64)),
        ]
    };
    let head = ["64 B, batches of 64, a ring of 256 KiB", "published", "received by each", "lost"];
    vec![Block {
        name: "policies",
        tables: vec![Table::new(&head, POLICIES.iter().map(row).collect())],
        plots: vec![],
    }]
}
