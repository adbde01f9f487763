//! A matching engine publishes a feed: 35,759 order messages, spread over 3,000 instruments, become trades, changes of price levels
//! and books. Five subscribers receive the feed by pull, by push, from the middle on, in part, and conflated. It ends by itself,
//! compares the books of each with those of the engine, and exits with 1 on any difference.
//!
//! With `--lines 2`, two processes publish the same day. Each is killed once, and the subscribers miss nothing.
//!
//! ```text
//! cargo run --release --example market_feed
//! cargo run --release --example market_feed -- --lines 2
//! ```

#![expect(clippy::disallowed_methods, reason = "an example keeps time with the standard library")]

mod book;
mod check;
mod engine;
mod lines;
mod orders;
mod publisher;
mod subscriber;

use std::error::Error;
use std::process::ExitCode;

use fabricast::{Address, ErrorChain, Node};

use self::engine::INSTRUMENTS;
use self::orders::Message;
use self::publisher::{Replay, event_len_max};
use self::subscriber::{PLANS, Subscriber};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "usage: market_feed [--rate MESSAGES_PER_SECOND] [--messages NUMBER] [--log-capacity BYTES] \
                     [--data FILE.csv or FILE.csv.gz] [--fabric shm or verbs] [--lines 2]";
const NODE: &str = "market-feed";
/// Default messages per second: the whole file takes three seconds.
const RATE: f64 = 12_000.0;
/// Default messages per second on two lines.
const LINES_RATE: f64 = 5_000.0;
/// Default bytes of the log: about two seconds of records at the default rate.
const LOG_CAPACITY: usize = 1 << 20;

struct Settings {
    rate: f64,
    log_capacity: usize,
    verbs: bool,
    messages: Vec<Message>,
    role: Role,
    /// All of them, for the processes of the lines.
    arguments: Vec<String>,
}

/// What the process does.
#[derive(PartialEq, Eq)]
enum Role {
    All,
    /// Starts the publishers of two lines, and subscribers of both.
    Lines,
    /// Publishes a line.
    Line(String),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Settings::read(&arguments).and_then(|settings| run(&settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("market_feed: {}", ErrorChain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Outcome<()> {
    match &settings.role {
        Role::All => run_all(settings),
        Role::Lines => lines::run(settings),
        Role::Line(line) => lines::publish(settings, line),
    }
}

/// Opens a node with this name, and returns the feed's address on the fabric that is meant.
fn open(settings: &Settings, name: &str, port: u16) -> Outcome<(Node, String)> {
    let builder = Node::builder().name(name)?;
    let address = format!("rdma://0.0.0.0:{port}");
    let node = if settings.verbs { builder.rdma(&address)?.open()? } else { builder.open()? };
    // Over RDMA it also listens on this host.
    let is_meant = |at: &&Address| at.is_local() != settings.verbs;
    let at = node.addresses().iter().find(is_meant).ok_or("the node does not listen over that fabric")?;
    let at = format!("{at}/market");
    Ok((node, at))
}

fn run_all(settings: &Settings) -> Outcome<()> {
    let (node, at) = open(settings, NODE, 7471)?;
    let feed = node.feed_publisher("market").capacity(INSTRUMENTS as usize);
    // A book of 80 levels fits.
    let mut feed = feed.log_capacity(settings.log_capacity).record_len_max(128).value_len_max(1024).open()?;
    let seconds = settings.messages.len() as f64 / settings.rate;
    println!("{} messages, {} per second: about {seconds:.1} s", settings.messages.len(), settings.rate);
    println!("see them from another terminal (`--rate 500` gives more time):");
    println!("  fabricast tail {at}\n  fabricast watch {at}/table --key 'S000*'");

    let (late, early): (Vec<_>, Vec<_>) = PLANS.iter().partition(|plan| plan.is_late);
    let start = |plan| Subscriber::start(plan, &at);
    let mut subscribers: Vec<Subscriber> = early.into_iter().map(start).collect();
    subscribers.iter().try_for_each(Subscriber::wait_until_attached)?;
    let mut replay = Replay::new(settings.rate);
    let (first, second) = settings.messages.split_at(settings.messages.len() / 2);
    replay.publish(first, &mut feed)?;
    replay.begin_late();
    // They attach while the feed goes on.
    let late: Vec<Subscriber> = late.into_iter().map(start).collect();
    replay.publish(second, &mut feed)?;
    late.iter().try_for_each(Subscriber::wait_until_attached)?;
    subscribers.extend(late);
    // Ends the feed; what was published can still be received.
    drop(feed);
    check::check(&replay, &subscribers)
}

impl Settings {
    fn read(arguments: &[String]) -> Outcome<Self> {
        let (mut rate, mut count, mut log_capacity) = (None, None, LOG_CAPACITY);
        let (mut data, mut verbs, mut role) = (None, false, Role::All);
        for pair in arguments.chunks(2) {
            match pair {
                [name, value] if name == "--rate" => {
                    rate = Some(value.parse().map_err(|error| format!("{name} {value}: {error}"))?);
                }
                [name, value] if name == "--messages" => {
                    count = Some(value.parse().map_err(|error| format!("{name} {value}: {error}"))?);
                }
                [name, value] if name == "--log-capacity" => {
                    log_capacity = value.parse().map_err(|error| format!("{name} {value}: {error}"))?;
                }
                [name, value] if name == "--data" => data = Some(value.as_str()),
                [name, value] if name == "--fabric" && value == "shm" => verbs = false,
                [name, value] if name == "--fabric" && value == "verbs" => verbs = true,
                [name, value] if name == "--lines" && value == "2" => {
                    role = if role == Role::All { Role::Lines } else { role };
                }
                // The program starts itself so.
                [name, value] if name == "--line" => role = Role::Line(value.clone()),
                _ => return Err(USAGE.into()),
            }
        }
        let rate = rate.unwrap_or(if role == Role::All { RATE } else { LINES_RATE });
        if !(0.001..=1e9).contains(&rate) {
            return Err(format!("{rate} messages per second are not possible: use 0.001 to 1e9").into());
        }
        let mut messages = orders::read(data)?;
        let (most, count) = (messages.len(), count.unwrap_or(messages.len()));
        if count > most {
            return Err(format!("--messages {count}: the file has {most}, use at most that").into());
        }
        messages.truncate(count);
        // The limit of an event is a quarter of the log. The process that starts the lines has checked it for them.
        let is_checked = matches!(role, Role::Line(_));
        let longest = if is_checked { 0 } else { event_len_max(&messages) };
        let least = 4 * longest;
        if log_capacity < least {
            return Err(format!(
                "--log-capacity {log_capacity}: the longest event takes {longest} bytes, and has to fit a quarter: use at least {least}"
            )
            .into());
        }
        Ok(Self { rate, log_capacity, verbs, messages, role, arguments: arguments.to_vec() })
    }
}
