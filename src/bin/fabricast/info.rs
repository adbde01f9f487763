//! `fabricast info`: the headers of a topic.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use fabricast::{
    AnySubscriber, Counter, Delivery, Fact, LogStart, NodeName, Raw, ReceiveError, Sequence, Target,
    TopicReport, Unit,
};
use serde::Serialize;

use super::clock::{self, Deadline};
use super::failure::{Exit, Failure};
use super::feed::{is_feed, log_of, table_of};
use super::output::{age_ns, ago, data, json_line, memory, printable, shown, span, table};
use super::setting::{Setting, target};
use super::value::Schemas;

const AFTER_HELP: &str = "\
Attaches to the topic, reads its repository, and detaches, so its count of pull subscribers includes
this command. The remote key is masked without --show-keys. Sizes of values are in units of 1,000 (kB),
those of memory in units of 1,024 (KiB); --json has bytes.

Of a table, it also reads all entries, for up to a second, to count the suspect keys: those whose entries
are damaged. If a second is not enough, their number is unknown (null with --json).

Time stamps are the fields that have names of time stamps: see `fabricast --help`; with --json they are in
\"timestamps\". For the log or the table of a feed it names the other topic; with --json \"feed\" has both.

Examples:
  fabricast info shm:quotes/EURUSD
  fabricast info shm:quotes/EURUSD --json | jq .geometry";

/// Replaces a hidden value.
const MASK: &str = "****************  (--show-keys shows it)";

/// How long to look for damaged entries of a table.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for an entry before checking the time.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Arguments of `info`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, as in shm:NODE/TOPIC, or NODE/TOPIC for short.
    #[arg(value_parser = target)]
    target: Target,
    /// Show the remote key and address of the repository.
    #[arg(long)]
    show_keys: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A report with the node it belongs to.
#[derive(Debug, Serialize)]
struct NodeReport<'a> {
    node: Option<NodeName>,
    #[serde(flatten)]
    report: &'a TopicReport,
    #[serde(flatten)]
    found: &'a Found,
}

/// What this command finds besides the report.
#[derive(Debug, Serialize)]
struct Found {
    /// Of a table only; null if not all entries could be read in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    suspect_keys: Option<Option<usize>>,
    /// The fields with names of time stamps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    timestamps: Vec<String>,
    /// Of a topic of a feed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    feed: Option<FeedTopics>,
}

/// The topics of a feed.
#[derive(Debug, Serialize)]
struct FeedTopics {
    log: String,
    table: String,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let target = &arguments.target;
    let node = setting.reader(&target.address)?;
    let attach = |target: &Target| setting.attach(&node, target, Delivery::Pull, LogStart::Newest);
    let mut subscriber = attach(target)?;
    let report = match arguments.show_keys {
        true => TopicReport::with_keys(&mut subscriber)?,
        false => TopicReport::of(&mut subscriber)?,
    };
    let suspect_keys = suspect_keys(&mut subscriber, report.sequence);
    let timestamps = Schemas::of(&subscriber).timestamps().names().map(str::to_owned).collect();
    // Log and table of a feed have the same epoch.
    let is_log = |log: &Target| attach(log).is_ok_and(|log| is_feed(&log) && log.epoch() == report.epoch);
    let found = Found { suspect_keys, timestamps, feed: feed_topics(&subscriber, target, is_log) };
    drop(subscriber);
    let mut out = io::stdout().lock();
    if arguments.json {
        json_line(&mut out, &NodeReport { node: target.address.node(), report: &report, found: &found })?;
    } else {
        print(&mut out, target, &report, &found)?;
    }
    Ok(Exit::Done)
}

/// The number of damaged entries, if the topic is a table: `Some(None)` if not all entries up to this commit could be read in time.
fn suspect_keys(subscriber: &mut AnySubscriber<Raw>, until: Sequence) -> Option<Option<usize>> {
    let AnySubscriber::Table(table) = subscriber else { return None };
    let deadline = Deadline::after(READ_TIMEOUT);
    while table.last() < until {
        match table.receive_timeout(LOOK_INTERVAL) {
            Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => break,
            Err(ReceiveError::Fabric(_)) => return Some(None),
            _ if deadline.is_over() => return Some(None),
            _ => {}
        }
    }
    Some(Some(table.suspect_count()))
}

/// The topics of the feed, if this is one of them.
fn feed_topics(
    subscriber: &AnySubscriber<Raw>,
    target: &Target,
    is_log: impl Fn(&Target) -> bool,
) -> Option<FeedTopics> {
    let (log, table) = match subscriber {
        AnySubscriber::Table(_) => (log_of(target).filter(is_log)?, target.clone()),
        log if is_feed(log) => (target.clone(), table_of(target)?),
        _ => return None,
    };
    Some(FeedTopics { log: log.to_string(), table: table.to_string() })
}

fn print(out: &mut impl Write, target: &Target, report: &TopicReport, found: &Found) -> io::Result<()> {
    let now_ns = clock::realtime_ns();
    let ago = |ns: u64| ago(age_ns(now_ns, ns));
    let unknown = || "-".to_owned();
    let hidden =
        |number: Option<u64>| number.map_or_else(|| MASK.to_owned(), |number| format!("{number:016x}"));
    let newest = report.published_ns.map_or_else(|| "nothing published yet".to_owned(), ago);
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
    ];
    rows.extend(geometry.parts.iter().map(|fact| described(fact, memory)));
    rows.extend([
        ["largest payload".to_owned(), memory(geometry.payload_len_max as u64)],
        ["memory".to_owned(), memory(geometry.region_len as u64)],
        ["rkey".to_owned(), hidden(report.rkey)],
        ["address".to_owned(), hidden(report.address)],
    ]);
    rows.extend(report.held.iter().map(|fact| described(fact, data)));
    rows.extend(found.rows(&target.to_string()));
    rows.extend(report.counters.iter().map(|counter| [label(counter), amount(counter)]));
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

impl Found {
    fn rows(&self, target: &str) -> impl Iterator<Item = [String; 2]> {
        let suspects = self.suspect_keys.map(|suspects| {
            let unread = || format!("unknown: not all entries could be read in {}", shown(READ_TIMEOUT));
            ("suspect keys", suspects.map_or_else(unread, |suspects| suspects.to_string()))
        });
        let feed = self.feed.as_ref().map(|feed| match feed.table == target {
            true => ("feed", format!("its log is {}", feed.log)),
            false => ("feed", format!("its table is {}", feed.table)),
        });
        let stamps = Some(self.timestamps.join(", ")).filter(|names| !names.is_empty());
        let stamps = stamps.map(|names| ("time stamps", format!("by name: {}", printable(&names))));
        [suspects, feed, stamps].into_iter().flatten().map(|(name, text)| [name.to_owned(), text])
    }
}

/// A number of the topic's kind, in words; `size` formats a length.
fn described(fact: &Fact, size: fn(u64) -> String) -> [String; 2] {
    let words = |name: &str| name.replace('_', " ");
    match (fact.name.strip_suffix("_len_max"), fact.name.strip_suffix("_len")) {
        (Some(name), _) => [format!("longest {}", words(name)), size(fact.value)],
        (_, Some(name)) => [format!("{} length", words(name)), size(fact.value)],
        _ => [words(fact.name), fact.value.to_string()],
    }
}

/// The label of a counter: its bytes are those of all values so far.
fn label(counter: &Counter) -> String {
    if counter.name == "bytes" { "published".to_owned() } else { printable(&counter.name) }
}

/// A counter's value with its unit.
fn amount(counter: &Counter) -> String {
    match counter.unit {
        Unit::Bytes => data(counter.value),
        // Zero means not measured yet.
        Unit::Ns if counter.value == 0 => "-".to_owned(),
        Unit::Ns => span(counter.value),
        _ => counter.value.to_string(),
    }
}
