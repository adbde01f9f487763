//! Round trips by size, and the way to a subscriber that sleeps.

use super::Outcome;
use super::aims::{self, Bound};
use super::data::Data;
use super::lab::Lab;
use super::page::{Block, Table};
use super::plot::{Curve, Panel, Plot, Scale};
use super::units::{count, or_nothing, ratio, short_bytes, time};

const SIZES: [&str; 5] = ["64", "1024", "16384", "65536", "1048576"];
const PERCENTILES: [&str; 4] = ["p50_ns", "p99_ns", "p999_ns", "max_ns"];
const MODES: [&str; 3] = ["pull", "push", "notify"];

pub(super) fn measure(lab: &mut Lab) -> Outcome<()> {
    let (sizes, seconds) = (lab.some(&SIZES).join(","), lab.seconds(0.5));
    for mode in MODES {
        let mut arguments = vec![mode, "--size", &sizes, "--for", &seconds];
        if mode != "notify" {
            arguments.push("--floor");
        }
        round_trips(lab, mode, &arguments)?;
    }
    Ok(())
}

/// Adds the lines of a mode: its own, and the floor's, which belongs to it.
pub(super) fn round_trips(lab: &mut Lab, mode: &str, arguments: &[&str]) -> Outcome<()> {
    for line in lab.perf(arguments)? {
        let series = if line.mode() == "floor" { format!("{mode}-floor") } else { mode.to_owned() };
        lab.add((&series, line.size()), line.placement(), &line.values(&PERCENTILES));
    }
    Ok(())
}

pub(super) fn show(data: &Data) -> Vec<Block> {
    let row = |size: u64| {
        let of = |series: &str, value: &str| or_nothing(data.median((series, size, value)), time);
        let p50 = |series: &'static str| of(series, "p50_ns");
        let p99 = |series: &'static str| of(series, "p99_ns");
        let to_floor =
            |series: &str, floor: &str| ratio(data.ratio((series, size, "p50_ns"), (floor, size, "p50_ns")));
        vec![
            count(size),
            p50("pull-floor"),
            p99("pull-floor"),
            p50("pull"),
            p99("pull"),
            to_floor("pull", "pull-floor"),
            p50("push"),
            p99("push"),
            to_floor("push", "push-floor"),
            p50("notify"),
            p99("notify"),
        ]
    };
    let head = [
        "bytes",
        "floor p50",
        "floor p99",
        "pull p50",
        "pull p99",
        "pull to floor, p50",
        "push p50",
        "push p99",
        "push to floor, p50",
        "notify p50",
        "notify p99",
    ];
    let rows = data.places("pull").into_iter().map(row).collect();
    vec![Block {
        name: "latency",
        tables: vec![Table::new(&head, rows)],
        plots: vec![plot("latency", "Round trips over shared memory by size", (data, Some("pull-floor")))],
    }]
}

/// Percentiles by size: a panel for each mode.
pub(super) fn plot(name: &'static str, title: &str, (data, floor): (&Data, Option<&str>)) -> Plot {
    let curve = |name, (series, value): (&str, &str), is_dashed| {
        let point = |size: u64| Some((size, data.median((series, size, value))?));
        Curve { name, is_dashed, points: data.places(series).into_iter().filter_map(point).collect() }
    };
    let panel = |mode: &'static str| {
        let mut curves = vec![
            curve("p50", (mode, "p50_ns"), false),
            curve("p99", (mode, "p99_ns"), false),
            curve("p99.9", (mode, "p999_ns"), false),
        ];
        curves.extend(floor.map(|floor| curve("bare seqlock, p50", (floor, "p50_ns"), true)));
        Panel { title: mode, x: ("size of a value, bytes", Scale::Log, short_bytes), curves }
    };
    Plot {
        name,
        title: title.to_owned(),
        panels: MODES.map(panel).into(),
        y: ("round trip", Scale::Log, time),
    }
}

/// What a subscriber sleeps in, how values travel, and the series.
const WAKES: [(&str, &str, &str); 4] = [
    ("receive", "pull", "receive-pull"),
    ("receive", "push", "receive-push"),
    ("wait-set", "pull", "wait-set-pull"),
    ("wait-set", "push", "wait-set-push"),
];

pub(super) fn measure_wake(lab: &mut Lab) -> Outcome<()> {
    let seconds = lab.seconds(1.0);
    let wakes = lab.some(&WAKES).to_vec();
    for (sleep_in, delivery, series) in wakes {
        let arguments =
            ["wake", "--sleep-in", sleep_in, "--delivery", delivery, "--floor", "--for", &seconds];
        for line in lab.perf(&arguments)? {
            let series = if line.mode() == "floor" { format!("{series}-floor") } else { series.to_owned() };
            let values = line.values(&["p50_ns", "p99_ns", "p999_ns", "awake"]);
            lab.add((&series, line.size()), line.placement(), &values);
        }
    }
    Ok(())
}

pub(super) fn show_wake(data: &Data) -> Vec<Block> {
    let row = |(sleep_in, delivery, series): (&str, &str, &str)| {
        let floor = format!("{series}-floor");
        let name = if sleep_in == "receive" { "`receive`" } else { "`WaitSet`" };
        let to_floor = |value: &str| ratio(data.ratio((series, 64, value), (&floor, 64, value)));
        let of = |series: &str, value: &str| or_nothing(data.median((series, 64, value)), time);
        let awake = data.spread((series, 64, "awake")).map_or(0.0, |spread| spread.max);
        vec![
            name.to_owned(),
            delivery.to_owned(),
            of(&floor, "p50_ns"),
            of(series, "p50_ns"),
            of(series, "p99_ns"),
            to_floor("p50_ns"),
            to_floor("p99_ns"),
            format!("{awake:.0}"),
        ]
    };
    let head = [
        "sleeps in",
        "delivery",
        "floor p50",
        "p50",
        "p99",
        "p50 to floor",
        "p99 to floor",
        "found awake, at most",
    ];
    let aim = |(sleep_in, delivery, series): (&str, &str, &str)| {
        let found = data.ratio((series, 64, "p50_ns"), (&format!("{series}-floor"), 64, "p50_ns"));
        (format!("`{sleep_in}`, {delivery}, p50 to floor"), Bound::AtMost(1.3), found)
    };
    vec![Block {
        name: "wake",
        tables: vec![Table::new(&head, WAKES.map(row).into()), aims::table(WAKES.map(aim).into())],
        plots: vec![wake_plot(data)],
    }]
}

/// A panel for each way to sleep.
fn wake_plot(data: &Data) -> Plot {
    let curve = |name, series: &str, is_dashed| {
        let values = (0_u64..).zip(["p50_ns", "p99_ns", "p999_ns"]);
        let points = values.filter_map(|(place, value)| Some((place, data.median((series, 64, value))?)));
        Curve { name, is_dashed, points: points.collect() }
    };
    let text = |place: u64| match place {
        0 => "p50".to_owned(),
        1 => "p99".to_owned(),
        _ => "p99.9".to_owned(),
    };
    let panel = |title, pull: &str, push: &str| Panel {
        title,
        x: ("percentile", Scale::Linear, text),
        curves: vec![
            curve("pull", pull, false),
            curve("push", push, false),
            curve("bare wake-up beside pull", &format!("{pull}-floor"), true),
            curve("bare wake-up beside push", &format!("{push}-floor"), true),
        ],
    };
    let panels = vec![
        panel("in receive", "receive-pull", "receive-push"),
        panel("in a WaitSet", "wait-set-pull", "wait-set-push"),
    ];
    let title = "One way to a subscriber that sleeps, 64 bytes, shared memory".to_owned();
    Plot { name: "wake", title, panels, y: ("from publish to value", Scale::Log, time) }
}
