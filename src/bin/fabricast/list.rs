//! `fabricast list`: nodes and topics.

use std::time::Duration;

use clap::Args;
use crossbeam::channel::{Receiver, unbounded};
use fabricast::{
    Address, ControlError, Directory, DirectoryError, FabricError, Kind, Liveness, Node, NodeListing,
    NodeName, TopicListing, TopicName,
};
use serde::Serialize;

use super::clock;
use super::failure::{Exit, Failure};
use super::output::{json_line, printable, span, table};
use super::setting::Setting;

/// How long a node may take to answer before it is called hung.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it may take when it is asked again: where all processes have stood still, this one may be the first to go on.
const LAST_PATIENCE: Duration = Duration::from_millis(100);
/// Nodes that are asked at a time, so that those that hang do not hold up the others.
const ASKED_AT_ONCE: usize = 16;

const AFTER_HELP: &str = "\
STATE is live, hung (the process is there and does not answer in 1.1 seconds) or gone (the process
has ended and left its entry). AGE is the time since the newest value. A node without topics, or
that cannot be asked, has `-` for its topic.

With --json each topic is a line {\"node\",\"topic\",\"kind\",\"type\",\"sequence\",\"age_ns\",\"state\"}; what
there is not is null.

Without ADDRESS the exit code is 0 whatever is found. With ADDRESS it is 3 if there is no such node,
5 if it is hung, 6 if it is gone.

Examples:
  fabricast list
  fabricast list shm:quotes
  fabricast list --json | jq -r 'select(.state == \"hung\").node'";

/// Arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The node whose topics are listed; without it every node of this host and user.
    address: Option<Address>,
    /// Print one JSON object a topic.
    #[arg(long)]
    json: bool,
}

/// A topic, or a node without any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    node: NodeName,
    topic: Option<TopicName>,
    kind: Option<Kind>,
    #[serde(rename = "type")]
    type_name: Option<String>,
    sequence: Option<u64>,
    age_ns: Option<u64>,
    state: Liveness,
}

/// What was found at a node.
#[derive(Debug)]
struct Found {
    node: NodeName,
    answer: Result<Vec<TopicListing>, Failure>,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    match &arguments.address {
        Some(address) => {
            let found = one(&setting.node(None)?, address)?;
            print(arguments, std::slice::from_ref(&found))?;
            found.answer.map(|_| Exit::Done)
        }
        None => {
            let mut found = all(&setting.node(None)?)?;
            found.sort_by(|one, other| one.node.cmp(&other.node));
            print(arguments, &found)?;
            note_troubles(&found);
            Ok(Exit::Done)
        }
    }
}

/// What the node at this address says. A failure where there is nothing to be listed.
fn one(node: &Node, address: &Address) -> Result<Found, Failure> {
    match (directory(node, address), address) {
        (Ok(directory), _) => Ok(Found { node: directory.node, answer: Ok(directory.topics) }),
        (Err(error), Address::Shm(name)) => match Failure::from(error) {
            failure if matches!(failure.exit(), Exit::Hung | Exit::Gone) => {
                Ok(Found { node: name.clone(), answer: Err(failure) })
            }
            failure => Err(failure),
        },
        (Err(error), _) => Err(error.into()),
    }
}

/// What the node at this address says, if not at the first time then at the second.
fn directory(node: &Node, address: &Address) -> Result<Directory, DirectoryError> {
    match node.directory_timeout(address, PATIENCE) {
        Err(DirectoryError::Session { source: ControlError::Deadline { .. }, .. }) => {
            node.directory_timeout(address, LAST_PATIENCE)
        }
        answer => answer,
    }
}

/// All nodes of this host, several asked at a time.
fn all(node: &Node) -> Result<Vec<Found>, Failure> {
    let listings = node.nodes()?;
    let askers = listings.len().min(ASKED_AT_ONCE);
    let (sender, work) = unbounded();
    for listing in listings {
        // It cannot fail: the receiver is here.
        let _ = sender.send(listing);
    }
    drop(sender);
    Ok(std::thread::scope(|scope| {
        let threads: Vec<_> = (0..askers).map(|_| scope.spawn(|| ask(node, &work))).collect();
        let found = threads.into_iter().map(|thread| thread.join());
        found.flat_map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    }))
}

/// Asks nodes until none is left.
fn ask(node: &Node, work: &Receiver<NodeListing>) -> Vec<Found> {
    let found = |listing: NodeListing| {
        let address = Address::Shm(listing.node.clone());
        let answer = match listing.alive {
            true => directory(node, &address),
            false => Err(FabricError::NodeGone { address }.into()),
        };
        match answer {
            // It has ended, or not quite begun, since it was found.
            Err(DirectoryError::Fabric(FabricError::NoSuchNode { .. })) => None,
            answer => {
                let answer = answer.map(|directory| directory.topics).map_err(Failure::from);
                Some(Found { node: listing.node, answer })
            }
        }
    };
    work.iter().filter_map(found).collect()
}

fn print(arguments: &Arguments, found: &[Found]) -> Result<(), Failure> {
    let now_ns = clock::realtime_ns();
    let rows: Vec<Row> = found.iter().flat_map(|found| found.rows(now_ns)).collect();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        rows.iter().try_for_each(|row| json_line(&mut out, row))?;
        return Ok(());
    }
    let head = ["NODE", "TOPIC", "KIND", "TYPE", "SEQUENCE", "AGE", "STATE"].map(str::to_owned);
    let cells = std::iter::once(head).chain(rows.iter().map(Row::cells));
    table(&mut out, &cells.collect::<Vec<_>>())?;
    Ok(())
}

/// Says why nodes that live could not be asked: the listing has no room for it.
fn note_troubles(found: &[Found]) {
    let mut out = std::io::stderr().lock();
    for found in found.iter().filter(|found| found.state() == Liveness::Live) {
        if let Err(failure) = &found.answer {
            // Standard error may be closed; then there is nobody to be told.
            let _ = failure.tell(&mut out);
        }
    }
}

impl Found {
    /// What the answer, or its absence, tells of the node.
    fn state(&self) -> Liveness {
        match self.answer.as_ref().map_err(Failure::exit) {
            Err(Exit::Hung) => Liveness::Hung,
            Err(Exit::Gone) => Liveness::Gone,
            // One that is there and does not talk to this program lives, too.
            _ => Liveness::Live,
        }
    }

    fn rows(&self, now_ns: u64) -> Vec<Row> {
        let topics = self.answer.as_deref().unwrap_or_default();
        if topics.is_empty() {
            return vec![Row {
                node: self.node.clone(),
                topic: None,
                kind: None,
                type_name: None,
                sequence: None,
                age_ns: None,
                state: self.state(),
            }];
        }
        let published = |topic: &TopicListing| Some(topic.published_ns).filter(|published| *published != 0);
        let row = |topic: &TopicListing| Row {
            node: self.node.clone(),
            topic: Some(topic.topic.clone()),
            kind: Some(topic.kind),
            type_name: Some(topic.type_name.clone()),
            sequence: Some(topic.sequence.get()),
            age_ns: published(topic).map(|published_ns| now_ns.saturating_sub(published_ns)),
            state: self.state(),
        };
        topics.iter().map(row).collect()
    }
}

impl Row {
    fn cells(&self) -> [String; 7] {
        let absent = || "-".to_owned();
        [
            self.node.to_string(),
            self.topic.as_ref().map_or_else(absent, ToString::to_string),
            self.kind.map_or_else(absent, |kind| kind.to_string()),
            self.type_name.as_deref().map_or_else(absent, printable),
            self.sequence.map_or_else(absent, |sequence| sequence.to_string()),
            self.age_ns.map_or_else(absent, span),
            self.state.to_string(),
        ]
    }
}
