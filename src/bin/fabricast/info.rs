//! `fabricast info`: the headers of a topic.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use fabricast::{
    AnySubscriber, Counter, Epoch, Fact, LogStart, NodeName, PublisherClock, Raw, ReceiveError, Sequence,
    Subscriber, TableTopic, Target, TopicReport, Unit,
};
use serde::Serialize;

use super::clock::Deadline;
use super::failure::{Exit, Failure};
use super::feed::{is_feed, log_of, table_of};
use super::output::{ago, data, json_line, memory, printable, shown, span, table};
use super::place::{Place, place};
use super::setting::{RegionArguments, Setting};
use super::subscribers::Subscribers;
use super::value::Schemas;

const AFTER_HELP: &str = "\
Attaches to the topic, reads its repository, and detaches, so its count of pull subscribers
includes this command. The remote key is masked without --show-keys. Sizes of values are in units
of 1,000 (kB), those of memory in units of 1,024 (KiB); --json has bytes.

Of a table, it also reads all entries, for up to a second, to count the suspect keys: those whose
entries are damaged. If a second is not enough, their number is unknown (null with --json). Of the
log of a feed, it reads those of the feed's table, and shows the keys, the capacity and the
suspect keys of that.

It lists the subscribers, without this command, the slowest first: node, process, policy, and of
those that report their progress the last sequence, the lag, the records lost, the reads repeated,
and for how long the process has shown no sign of life (SEEN). With --json they are in
\"subscribers\"; what a subscriber does not report is null.

Time stamps are the fields that have names of time stamps: see `fabricast --help`; with --json
they are in \"timestamps\". For the log or the table of a feed it names the other topic; with --json
\"feed\" has both, and for the log also \"keys\", \"capacity\" and \"suspect_keys\" of the table, or
\"table_error\" if it cannot be read.

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
    /// The topic, as in shm:NODE/TOPIC, or NODE/TOPIC for short; or the file of a publisher with --warm, as in file:/dev/shm/FILE.
    #[arg(value_parser = place, value_name = "TARGET")]
    target: Place,
    /// Show the remote key and address of the repository.
    #[arg(long)]
    show_keys: bool,
    #[command(flatten)]
    region: RegionArguments,
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
    /// Null if the node does not list them.
    subscribers: Option<Subscribers>,
    /// Of a topic of a feed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    feed: Option<FeedTopics>,
}

/// The topics of a feed.
#[derive(Debug, Serialize)]
struct FeedTopics {
    log: String,
    table: String,
    /// Of the log only: the table reports it itself.
    #[serde(flatten)]
    held: Option<Held>,
}

/// What the table of a feed holds.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Held {
    Read {
        keys: Option<u64>,
        capacity: Option<u64>,
        /// Null if not all entries could be read in time.
        suspect_keys: Option<usize>,
    },
    Unread {
        table_error: String,
    },
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let target = &*arguments.target;
    let in_file = arguments.target.subscriber(LogStart::Newest)?;
    let node = if in_file.is_some() { None } else { Some(setting.reader(&target.address)?) };
    let attach = |target: &Target| match &node {
        Some(node) => setting.attach(node, target, LogStart::Newest, arguments.region),
        None => arguments.in_file(target),
    };
    let mut subscriber = in_file.map_or_else(|| attach(target), Ok)?;
    let report = match arguments.show_keys {
        true => TopicReport::with_keys(&mut subscriber)?,
        false => TopicReport::of(&mut subscriber)?,
    };
    let suspect_keys = match &mut subscriber {
        AnySubscriber::Table(table) => Some(suspect_keys(table, report.sequence)),
        _ => None,
    };
    let timestamps = Schemas::of(&subscriber).timestamps().names().map(str::to_owned).collect();
    let feed = feed_topics(&subscriber, &arguments.target, report.epoch, attach);
    let clock = subscriber.publisher_clock();
    // Not itself.
    drop(subscriber);
    let subscribers = node.and_then(|node| Subscribers::of(&node, target).ok());
    let found = Found { suspect_keys, timestamps, subscribers, feed };
    let mut out = io::stdout().lock();
    if arguments.json {
        let node = if arguments.target.is_file() { None } else { target.address.node() };
        json_line(&mut out, &NodeReport { node, report: &report, found: &found })?;
    } else {
        print(&mut out, &arguments.target, (&report, &clock), &found)?;
    }
    Ok(Exit::Done)
}

impl Arguments {
    /// A subscriber of the other topic of a feed in a file.
    fn in_file(&self, other: &Target) -> Result<AnySubscriber<Raw>, Failure> {
        let table = self.target.table().filter(|table| table.topic == other.topic);
        let found = table.map_or(Ok(None), |table| table.subscriber(LogStart::Newest))?;
        found.ok_or_else(|| Failure::new(Exit::No, format!("{other} is in another file")))
    }
}

/// The number of damaged entries; `None` if not all entries up to this commit could be read in time.
fn suspect_keys(table: &mut Subscriber<TableTopic, Raw>, until: Sequence) -> Option<usize> {
    let deadline = Deadline::after(READ_TIMEOUT);
    while table.last() < until {
        match table.receive_timeout(LOOK_INTERVAL) {
            Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => break,
            Err(ReceiveError::Fabric(_)) => return None,
            _ if deadline.is_over() => return None,
            _ => {}
        }
    }
    Some(table.suspect_count())
}

/// The topics of the feed, if this is one of them. They have the same epoch.
fn feed_topics(
    subscriber: &AnySubscriber<Raw>,
    place: &Place,
    epoch: Epoch,
    attach: impl Fn(&Target) -> Result<AnySubscriber<Raw>, Failure>,
) -> Option<FeedTopics> {
    let target: &Target = place;
    let is_log = |log: &Target| attach(log).is_ok_and(|log| is_feed(&log) && log.epoch() == epoch);
    let (log, table, held) = match subscriber {
        AnySubscriber::Table(_) => (log_of(target).filter(is_log)?, target.clone(), None),
        log if is_feed(log) => {
            let table = table_of(target)?;
            let held = attach(&table).and_then(|found| held(found, epoch));
            let held = held.unwrap_or_else(|failure| Held::Unread { table_error: failure.to_string() });
            (target.clone(), table, Some(held))
        }
        _ => return None,
    };
    Some(FeedTopics { log: place.name(&log), table: place.name(&table), held })
}

/// What this topic holds, if it is the table of the feed with this epoch.
fn held(mut subscriber: AnySubscriber<Raw>, epoch: Epoch) -> Result<Held, Failure> {
    let report = TopicReport::of(&mut subscriber)?;
    let other = |sentence: String| Failure::new(Exit::No, sentence);
    let AnySubscriber::Table(table) = &mut subscriber else {
        return Err(other(format!("it is a {} topic", report.kind)));
    };
    if report.epoch != epoch {
        return Err(other(format!("its epoch is {}, that of the log {epoch}", report.epoch)));
    }
    let (keys, capacity) = (report.fact("keys"), report.fact("capacity"));
    Ok(Held::Read { keys, capacity, suspect_keys: suspect_keys(table, report.sequence) })
}

fn print(
    out: &mut impl Write,
    place: &Place,
    (report, clock): (&TopicReport, &PublisherClock),
    found: &Found,
) -> io::Result<()> {
    let ago = |ns: u64| ago(clock.age_ns(ns));
    let unknown = || "-".to_owned();
    let unlimited = || if place.is_file() { "not in the file" } else { "-" }.to_owned();
    let hidden =
        |number: Option<u64>| number.map_or_else(|| MASK.to_owned(), |number| format!("{number:016x}"));
    let newest = report.published_ns.map_or_else(|| "nothing published yet".to_owned(), ago);
    let geometry = &report.geometry;
    let topic = place.name(place);
    let mut rows = vec![["topic", &topic].map(str::to_owned)];
    rows.extend(place.path().map(|path| ["file".to_owned(), printable(&path.display().to_string())]));
    rows.extend([
        ["kind".to_owned(), report.kind.to_string()],
        ["type".to_owned(), format!("{} ({})", printable(&report.type_name), report.encoding)],
        ["state".to_owned(), format!("{}, heartbeat {}", report.state, ago(report.heartbeat_ns))],
        ["sequence".to_owned(), report.sequence.to_string()],
        ["newest value".to_owned(), newest],
        ["lifespan".to_owned(), report.lifespan_ns.map_or_else(unlimited, span)],
        ["process".to_owned(), report.process.map_or_else(unknown, |process| process.to_string())],
        ["host".to_owned(), report.host.as_deref().map_or_else(unknown, printable)],
        ["started".to_owned(), report.started_ns.map_or_else(unknown, ago)],
        ["epoch".to_owned(), report.epoch.to_string()],
        ["topic id".to_owned(), report.topic_id.to_string()],
        ["layout version".to_owned(), geometry.layout_version.to_string()],
    ]);
    rows.extend(geometry.parts.iter().map(|fact| described(fact, memory)));
    rows.extend([
        ["largest payload".to_owned(), memory(geometry.payload_len_max as u64)],
        ["memory".to_owned(), memory(geometry.region_len as u64)],
        ["rkey".to_owned(), hidden(report.rkey)],
        ["address".to_owned(), hidden(report.address)],
    ]);
    rows.extend(report.held.iter().map(|fact| described(fact, data)));
    rows.extend(found.rows(&topic));
    rows.extend(report.counters.iter().map(|counter| [label(counter), amount(counter)]));
    rows.extend(report.errors.iter().map(|error| {
        let name = format!("error: {}", printable(&error.name));
        [name, format!("{} times, first {}, last {}", error.value, ago(error.first_ns), ago(error.last_ns))]
    }));
    table(out, &rows)?;
    found.subscribers.iter().try_for_each(|subscribers| subscribers.print(out))?;
    writeln!(out, "\nschema")?;
    for line in report.schema.to_string().lines() {
        writeln!(out, "  {}", printable(line))?;
    }
    out.flush()
}

impl Found {
    fn rows(&self, target: &str) -> Vec<[String; 2]> {
        let mut rows = Vec::new();
        let mut add = |name: &str, text: String| rows.push([name.to_owned(), text]);
        let suspects = |suspects: Option<usize>| match suspects {
            Some(suspects) => suspects.to_string(),
            None => format!("unknown: not all entries could be read in {}", shown(READ_TIMEOUT)),
        };
        if let Some(suspect_keys) = self.suspect_keys {
            add("suspect keys", suspects(suspect_keys));
        }
        if let Some(FeedTopics { log, table, held }) = &self.feed {
            match held {
                Some(Held::Unread { table_error }) => {
                    let why = printable(table_error);
                    add("feed", format!("its table is {table}, which cannot be read: {why}"));
                }
                _ if table == target => add("feed", format!("its log is {log}")),
                _ => add("feed", format!("its table is {table}")),
            }
            if let Some(Held::Read { keys, capacity, suspect_keys }) = held {
                keys.iter().for_each(|keys| add("keys", keys.to_string()));
                capacity.iter().for_each(|capacity| add("capacity", capacity.to_string()));
                add("suspect keys", suspects(*suspect_keys));
            }
        }
        if !self.timestamps.is_empty() {
            add("time stamps", format!("by name: {}", printable(&self.timestamps.join(", "))));
        }
        rows
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
