//! `fabricast list`: nodes and topics.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use crossbeam::channel::{Receiver, unbounded};
use fabricast::{
    Address, ControlError, Directory, DirectoryError, FabricError, Kind, Liveness, Node, NodeListing,
    NodeName, TopicListing, TopicName,
};
use serde::Serialize;

use super::failure::{Exit, Failure};
use super::output::{json_line, printable, span, table};
use super::setting::{ATTACH_TIMEOUT, Setting, address, is_absent, no_nodes};

/// How long a node may take to answer before it is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The second timeout, after which a node is hung: after a pause of all processes this one may run first.
const LAST_TIMEOUT: Duration = Duration::from_millis(100);
/// Nodes asked concurrently, so that hung ones do not delay the others.
const ASKED_AT_ONCE: usize = 16;

/// Nodes that a message names; it counts the others.
const NAMED_AT_ONCE: usize = 3;

const AFTER_HELP: &str = "\
STATE is live, hung (the process runs but does not answer within 1.1 seconds) or gone (the process
has ended and left its entry). AGE is the time since the newest value. A node without topics, or
one that cannot be asked, shows `-` for its topic. LAG is by how many records the slowest
subscriber is behind, of those that report their progress; `-` means that no subscriber does.
`fabricast info` names them. The node computes the age, by its own clock.

With --json each topic is one line {\"node\",\"topic\",\"kind\",\"type\",\"sequence\",\"age_ns\",\"state\",
\"slowest_lag\"}; unavailable fields are null.

Without ADDRESS the exit code is 0, or 7 if a local limit, such as open files, kept a node from
being queried. With ADDRESS: 3 if no such node is found, or it does not answer over RDMA, 4 if it
demands a key or does not admit this host or user, 5 if it is hung, 6 if it is gone.

Examples:
  fabricast list
  fabricast list shm:quotes
  fabricast list --json | jq -r 'select(.state == \"hung\").node'";

/// Arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The node whose topics to list, as in shm:NODE, or NODE for short; by default every node of this host and user.
    #[arg(value_parser = address)]
    address: Option<Address>,
    /// Print one JSON object per topic.
    #[arg(long)]
    json: bool,
}

/// A topic, or a node without topics.
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
    slowest_lag: Option<u64>,
}

/// The answer of a node.
#[derive(Debug)]
struct NodeAnswer {
    node: NodeName,
    answer: Result<Vec<TopicListing>, Failure>,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    match &arguments.address {
        Some(address) => {
            let found = one(&setting.reader(address)?, address).map_err(|failure| failure.at(address))?;
            print(arguments, std::slice::from_ref(&found))?;
            found.answer.map(|_| Exit::Done)
        }
        None => {
            let place = setting.place();
            let mut found = if is_absent(&place) { Vec::new() } else { all(&setting.node(None)?)? };
            if found.is_empty() {
                Failure::new(Exit::Done, no_nodes(&place)).note();
                return Ok(Exit::Done);
            }
            found.sort_by(|one, other| one.node.cmp(&other.node));
            print(arguments, &found)?;
            Ok(note_troubles(&found))
        }
    }
}

/// Asks the node at this address. Fails if there is nothing to list.
fn one(node: &Node, address: &Address) -> Result<NodeAnswer, Failure> {
    match (directory(node, address), address.node()) {
        (Ok(directory), _) => Ok(NodeAnswer { node: directory.node, answer: Ok(directory.topics) }),
        (Err(error), Some(name)) => match Failure::from(error) {
            failure if matches!(failure.exit(), Exit::Hung | Exit::Gone) => {
                Ok(NodeAnswer { node: name, answer: Err(failure) })
            }
            failure => Err(failure),
        },
        (Err(error), None) => Err(error.into()),
    }
}

/// Asks the node at this address: one of this host twice if necessary.
fn directory(node: &Node, address: &Address) -> Result<Directory, DirectoryError> {
    match address.node() {
        Some(_) => twice(|timeout| node.directory_timeout(address, timeout)),
        // A lost packet of the connection may be repeated only after a second.
        None => node.directory_timeout(address, ATTACH_TIMEOUT),
    }
}

/// Asks again after a timeout.
fn twice<A>(mut ask: impl FnMut(Duration) -> Result<A, DirectoryError>) -> Result<A, DirectoryError> {
    match ask(ANSWER_TIMEOUT) {
        Err(DirectoryError::Session { source: ControlError::Deadline { .. }, .. }) => ask(LAST_TIMEOUT),
        answer => answer,
    }
}

/// Asks all nodes of this host, several at a time.
fn all(node: &Node) -> Result<Vec<NodeAnswer>, Failure> {
    let listings = node.nodes()?;
    let helpers = listings.len().min(ASKED_AT_ONCE).saturating_sub(1);
    let (sender, work) = unbounded();
    for listing in listings {
        // Cannot fail: the receiver is here.
        let _ = sender.send(listing);
    }
    drop(sender);
    Ok(std::thread::scope(|scope| {
        let help = || std::thread::Builder::new().spawn_scoped(scope, || ask(node, &work));
        // If threads are short, those that started and this one ask all nodes.
        let threads: Vec<_> = std::iter::repeat_with(help).take(helpers).map_while(Result::ok).collect();
        let own = ask(node, &work);
        let found = threads.into_iter().map(|thread| thread.join());
        let found = found.flat_map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        own.into_iter().chain(found).collect()
    }))
}

/// Asks nodes until none is left.
fn ask(node: &Node, work: &Receiver<NodeListing>) -> Vec<NodeAnswer> {
    let found = |listing: NodeListing| {
        let address = Address::shm(&listing.node);
        let answer = match listing.alive {
            true => directory(node, &address),
            false => Err(FabricError::NodeGone { address }.into()),
        };
        match answer {
            // It has ended since it was found, or not quite begun.
            Err(DirectoryError::Fabric(FabricError::NoSuchNode { .. })) => None,
            answer => {
                let answer = answer.map(|directory| directory.topics).map_err(Failure::from);
                Some(NodeAnswer { node: listing.node, answer })
            }
        }
    };
    work.iter().filter_map(found).collect()
}

fn print(arguments: &Arguments, found: &[NodeAnswer]) -> Result<(), Failure> {
    let rows: Vec<Row> = found.iter().flat_map(NodeAnswer::rows).collect();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        rows.iter().try_for_each(|row| json_line(&mut out, row))?;
        return Ok(());
    }
    let head = ["NODE", "TOPIC", "KIND", "TYPE", "SEQUENCE", "AGE", "LAG", "STATE"].map(str::to_owned);
    let cells = std::iter::once(head).chain(rows.iter().map(Row::cells));
    table(&mut out, &cells.collect::<Vec<_>>())?;
    Ok(())
}

/// Reports why live nodes could not be asked, which the table does not show.
fn note_troubles(found: &[NodeAnswer]) -> Exit {
    let (troubles, exit) = troubles(found);
    for (sentence, nodes) in troubles {
        Failure::new(exit, about(&sentence, &nodes)).note();
    }
    exit
}

/// Returns the errors that kept live nodes from being asked, each with its nodes, and how the program exits. All shortages of
/// this process count as one error, reported in the words of the first.
fn troubles(found: &[NodeAnswer]) -> (BTreeMap<String, Vec<&NodeName>>, Exit) {
    let mut troubles: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut shortage: Option<String> = None;
    for found in found.iter().filter(|found| found.state() == Liveness::Live) {
        if let Err(failure) = &found.answer {
            let sentence = match failure.exit() {
                Exit::Local => shortage.get_or_insert_with(|| failure.to_string()).clone(),
                _ => failure.to_string(),
            };
            troubles.entry(sentence).or_default().push(&found.node);
        }
    }
    (troubles, shortage.map_or(Exit::Done, |_| Exit::Local))
}

/// A sentence about these nodes, by name.
fn about(sentence: &str, nodes: &[&NodeName]) -> String {
    if let [node] = nodes
        && sentence.contains(&format!("shm:{node}"))
    {
        return sentence.to_owned();
    }
    let named: Vec<String> = nodes.iter().take(NAMED_AT_ONCE).map(|node| format!("shm:{node}")).collect();
    let more = match nodes.len().saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("cannot ask {}{more}: {sentence}", named.join(", "))
}

impl NodeAnswer {
    /// The state that the answer, or its absence, shows.
    fn state(&self) -> Liveness {
        match self.answer.as_ref().map_err(Failure::exit) {
            Err(Exit::Hung) => Liveness::Hung,
            Err(Exit::Gone) => Liveness::Gone,
            // A node that answers with an error lives, too.
            _ => Liveness::Live,
        }
    }

    fn rows(&self) -> Vec<Row> {
        let topics = self.answer.as_deref().unwrap_or_default();
        let (node, state) = (self.node.clone(), self.state());
        let bare = Row {
            node,
            topic: None,
            kind: None,
            type_name: None,
            sequence: None,
            age_ns: None,
            state,
            slowest_lag: None,
        };
        if topics.is_empty() {
            return vec![bare];
        }
        let row = |topic: &TopicListing| Row {
            topic: Some(topic.topic.clone()),
            kind: Some(topic.kind),
            type_name: Some(topic.type_name.clone()),
            sequence: Some(topic.sequence.get()),
            age_ns: topic.age_ns,
            slowest_lag: topic.lag_max,
            ..bare.clone()
        };
        topics.iter().map(row).collect()
    }
}

impl Row {
    fn cells(&self) -> [String; 8] {
        let absent = || "-".to_owned();
        [
            self.node.to_string(),
            self.topic.as_ref().map_or_else(absent, ToString::to_string),
            self.kind.map_or_else(absent, |kind| kind.to_string()),
            self.type_name.as_deref().map_or_else(absent, printable),
            self.sequence.map_or_else(absent, |sequence| sequence.to_string()),
            self.age_ns.map_or_else(absent, span),
            self.slowest_lag.map_or_else(absent, |lag| lag.to_string()),
            self.state.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> DirectoryError {
        let source = ControlError::Deadline { awaited: "hello" };
        DirectoryError::Session { address: "shm:n".parse().unwrap(), source }
    }

    /// After a pause of all processes the one that asks may run first, and its timeout expire before the node ran.
    #[test]
    fn silent_node_is_asked_once_more() {
        let mut asked = Vec::new();
        let answer = twice(|timeout| {
            asked.push(timeout);
            if asked.len() == 1 { Err(silence()) } else { Ok("here") }
        });
        assert_eq!((answer.unwrap(), asked), ("here", vec![ANSWER_TIMEOUT, LAST_TIMEOUT]));
        let mut number = 0;
        let answer: Result<(), _> = twice(|_| {
            number += 1;
            Err(silence())
        });
        assert_eq!((Failure::from(answer.unwrap_err()).exit(), number), (Exit::Hung, 2));
        let gone = twice::<()>(|_| Err(FabricError::NodeGone { address: "shm:n".parse().unwrap() }.into()));
        assert_eq!(Failure::from(gone.unwrap_err()).exit(), Exit::Gone);
    }

    #[test]
    fn trouble_of_several_nodes_names_some_of_them() {
        let nodes: Vec<NodeName> =
            ["a", "b", "c", "d", "e"].into_iter().map(|name| name.parse().unwrap()).collect();
        let of = |number| about("shm:a is odd", &nodes.iter().take(number).collect::<Vec<_>>());
        assert_eq!(of(1), "shm:a is odd");
        assert_eq!(of(2), "cannot ask shm:a, shm:b: shm:a is odd");
        assert_eq!(of(5), "cannot ask shm:a, shm:b, shm:c and 2 more: shm:a is odd");
    }

    #[test]
    fn shortages_of_this_process_are_one_trouble() {
        let found = |node: &str, exit, sentence| NodeAnswer {
            node: node.parse().unwrap(),
            answer: Err(Failure::new(exit, sentence)),
        };
        let found = [
            found("a", Exit::Local, "cannot share a connection: no descriptor is left"),
            found("b", Exit::Unreachable, "shm:b is odd"),
            found("c", Exit::Local, "cannot connect: no descriptor is left"),
        ];
        let (troubles, exit) = troubles(&found);
        let told: Vec<_> = troubles.iter().map(|(sentence, nodes)| about(sentence, nodes)).collect();
        let expected =
            ["cannot ask shm:a, shm:c: cannot share a connection: no descriptor is left", "shm:b is odd"];
        assert_eq!((told.as_slice(), exit), (&expected.map(str::to_owned)[..], Exit::Local));
        assert_eq!(super::troubles(&found[1..2]).1, Exit::Done);
    }

    #[test]
    fn row_has_no_hidden_characters() {
        let row = Row {
            node: "n".parse().unwrap(),
            topic: None,
            kind: None,
            type_name: Some("a\u{202e}b".to_owned()),
            sequence: None,
            age_ns: Some(3_600_000_000_000),
            state: Liveness::Live,
            slowest_lag: Some(7),
        };
        assert_eq!(row.cells(), ["n", "-", "-", "a\\u202eb", "-", "1h00m", "7", "live"]);
        assert!(serde_json::to_string(&row).unwrap().contains(r#""age_ns":3600000000000,"#));
    }
}
