//! `fabricast info`: what the headers of a topic say.

use std::io::{self, Write};

use clap::Args;
use fabricast::{Address, Counter, Delivery, GeometryReport, LogStart, NodeName, Target, TopicReport, Unit};
use serde::Serialize;

use super::clock;
use super::failure::{Exit, Failure};
use super::output::{json_line, printable, span, table};
use super::setting::Setting;

const AFTER_HELP: &str = "\
It attaches to the topic, reads its repository, and detaches: it is one of the pull subscribers that
it counts. The remote key is masked unless --show-keys is given.

Examples:
  fabricast info shm:quotes/EURUSD
  fabricast info shm:quotes/EURUSD --json | jq .geometry";

/// What stands for something that is not shown.
const MASK: &str = "****************  (--show-keys shows it)";

/// Arguments of `info`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, as in shm:NODE/TOPIC.
    target: Target,
    /// Show remote key and address of the repository.
    #[arg(long)]
    show_keys: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A report with the node it belongs to.
#[derive(Debug, Serialize)]
struct NodeReport<'a> {
    node: Option<&'a NodeName>,
    #[serde(flatten)]
    report: &'a TopicReport,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let mut subscriber = setting.subscribe_any(&arguments.target, Delivery::Pull, LogStart::Newest)?;
    let report = subscriber.report(arguments.show_keys)?;
    drop(subscriber);
    let mut out = io::stdout().lock();
    if arguments.json {
        let node = match &arguments.target.address {
            Address::Shm(node) => Some(node),
            _ => None,
        };
        json_line(&mut out, &NodeReport { node, report: &report })?;
    } else {
        print(&mut out, &arguments.target, &report)?;
    }
    Ok(Exit::Done)
}

fn print(out: &mut impl Write, target: &Target, report: &TopicReport) -> io::Result<()> {
    let now_ns = clock::realtime_ns();
    let ago = |ns: u64| format!("{} ago", span(now_ns.saturating_sub(ns)));
    let unknown = || "-".to_owned();
    let hidden =
        |number: Option<u64>| number.map_or_else(|| MASK.to_owned(), |number| format!("{number:016x}"));
    let newest = match (report.published_ns, report.newest_len) {
        (Some(published_ns), Some(len)) => format!("{len} bytes, {}", ago(published_ns)),
        (Some(published_ns), None) => ago(published_ns),
        (None, _) => "nothing published yet".to_owned(),
    };
    let geometry = &report.geometry;
    let mut rows = vec![
        ["topic", &target.to_string()].map(str::to_owned),
        ["kind".to_owned(), report.kind.to_string()],
        ["type".to_owned(), format!("{} ({})", printable(&report.type_name), report.encoding)],
        ["state".to_owned(), format!("{}, heartbeat {}", report.state, ago(report.heartbeat_ns))],
        ["sequence".to_owned(), report.sequence.to_string()],
        ["newest value".to_owned(), newest],
        ["process".to_owned(), report.process.map_or_else(unknown, |process| process.to_string())],
        ["host".to_owned(), report.host.as_deref().map_or_else(unknown, printable)],
        ["started".to_owned(), report.started_ns.map_or_else(unknown, ago)],
        ["epoch".to_owned(), report.epoch.to_string()],
        ["topic id".to_owned(), report.topic_id.to_string()],
        ["layout version".to_owned(), geometry.layout_version.to_string()],
        ring(geometry),
        ["largest payload".to_owned(), format!("{} bytes", geometry.payload_len_max)],
        ["region".to_owned(), format!("{} bytes", geometry.region_len)],
        ["rkey".to_owned(), hidden(report.rkey)],
        ["address".to_owned(), hidden(report.address)],
    ];
    rows.extend(held(report));
    rows.extend(report.counters.iter().map(|counter| [printable(&counter.name), amount(counter)]));
    rows.extend(report.errors.iter().map(|error| {
        let name = format!("error: {}", printable(&error.name));
        [name, format!("{} times, first {}, last {}", error.value, ago(error.first_ns), ago(error.last_ns))]
    }));
    table(out, &rows)?;
    writeln!(out, "\nschema")?;
    for line in report.schema.to_string().lines() {
        writeln!(out, "  {}", printable(line))?;
    }
    out.flush()
}

/// What its values are kept in.
fn ring(geometry: &GeometryReport) -> [String; 2] {
    let GeometryReport { slot_count, slot_stride, .. } = geometry;
    match geometry.capacity {
        None => ["slots".to_owned(), format!("{slot_count} of {slot_stride} bytes")],
        Some(capacity) => {
            let parts = format!("{capacity} bytes in {slot_count} segments of {slot_stride} bytes");
            ["ring".to_owned(), parts]
        }
    }
}

/// The records that a log holds.
fn held(report: &TopicReport) -> Option<[String; 2]> {
    let (first, held_len) = (report.first_sequence?, report.held_len?);
    let held = match report.sequence {
        newest if newest < first => "none".to_owned(),
        newest => format!("{first} to {newest}, {held_len} bytes"),
    };
    Some(["records".to_owned(), held])
}

/// A counter's value with its unit.
fn amount(counter: &Counter) -> String {
    match counter.unit {
        Unit::Bytes => format!("{} bytes", counter.value),
        Unit::Ns => span(counter.value),
        _ => counter.value.to_string(),
    }
}
