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
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::process::ExitCode;

use fabricast::{Address, ErrorChain, Node};

use self::engine::INSTRUMENTS;
use self::orders::Message;
use self::publisher::{Replay, event_len_max};
use self::subscriber::{PLANS, Subscriber};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const HELP: &str = "\
usage: market_feed [OPTION VALUE]...

A matching engine publishes a feed of trades and books. Five subscribers receive it, and their books are compared with those
of the engine. It takes about three seconds, or seven with --lines 2.

  --lines 2             two processes publish the same feed, as two lines, and each is killed once; three subscribers receive
                        from both and miss nothing [default: one process, which is not killed]
  --rate NUMBER         messages per second, from 0.001 to 1e9 [default: 12000; with --lines 2: 5000]
  --messages NUMBER     publish only the first messages of the file [default: all, 35759 of the file that comes with it]
  --log-capacity BYTES  the ring of the feed's log: a smaller one loses records, which values then replace [default: 1048576]
  --data FILE           the order messages, as .csv or .csv.gz [default: the file that comes with it]
  --fabric shm|verbs    how the feed travels: in shared memory, or over RDMA [default: shm]";

/// What the options take.
const OPTIONS: [(&str, &str); 6] = [
    ("--lines", "2, for two processes that publish the same feed, or omit it for one"),
    ("--rate", "a number of messages per second, from 0.001 to 1e9"),
    ("--messages", "a number of messages, 0 or more"),
    ("--log-capacity", "a number of bytes"),
    ("--data", "a file of order messages, .csv or .csv.gz"),
    ("--fabric", "shm or verbs"),
];
const NODE: &str = "market-feed";
/// Default messages per second: the whole file takes three seconds.
const RATE: f64 = 12_000.0;
/// Default messages per second on two lines.
const LINES_RATE: f64 = 5_000.0;
/// Default bytes of the log: about two seconds of records at the default rate.
const LOG_CAPACITY: usize = 1 << 20;

/// Nobody reads the output any more.
#[derive(Debug)]
struct Unread;

struct Settings {
    rate: f64,
    log_capacity: usize,
    verbs: bool,
    messages: Vec<Message>,
    role: Role,
    /// All of them, for the processes of the lines.
    arguments: Vec<String>,
}

/// The arguments as they are given.
#[derive(Default)]
struct Arguments<'a> {
    rate: Option<f64>,
    count: Option<usize>,
    log_capacity: Option<usize>,
    data: Option<&'a str>,
    verbs: bool,
    role: Role,
}

/// What the process does.
#[derive(Default, PartialEq, Eq)]
enum Role {
    #[default]
    All,
    /// Starts the publishers of two lines, and subscribers of both.
    Lines,
    /// Publishes a line.
    Line(String),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        true => say(HELP),
        false => Settings::read(&arguments).and_then(|settings| run(&settings)),
    };
    match outcome {
        Err(error) if !error.is::<Unread>() => {
            _ = writeln!(io::stderr(), "market_feed: {}", ErrorChain(error.as_ref()));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Prints a line. Unlike `println`, it does not panic when the output is closed, as by `head`.
fn say(line: impl Display) -> Outcome<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Unread.into()),
        written => Ok(written?),
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
    let node = if settings.verbs { builder.rdma(&address)?.insecure().open()? } else { builder.open()? };
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
    say(format_args!(
        "{} messages, {} per second: about {seconds:.1} s",
        settings.messages.len(),
        settings.rate
    ))?;
    say(format_args!("see them from another terminal (`--rate 500` gives more time):"))?;
    say(format_args!("  fabricast tail {at}\n  fabricast watch {at}/table --key 'S000*'"))?;

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

impl<'a> Arguments<'a> {
    /// Reads pairs of an option and its value. An error says what the option takes.
    fn parse(arguments: &'a [String]) -> Outcome<Self> {
        let mut parsed = Self::default();
        for pair in arguments.chunks(2) {
            match pair {
                // The program starts itself so.
                [name, line] if name == "--line" => parsed.role = Role::Line(line.clone()),
                [name, rest @ ..] => {
                    let option = OPTIONS.iter().find(|(option, _)| option == name);
                    let (_, takes) = option.ok_or_else(|| format!("no option {name}: see --help"))?;
                    let value = rest.first().ok_or_else(|| format!("{name} without a value: use {takes}"))?;
                    parsed.set(name, value).ok_or_else(|| format!("{name} {value}: use {takes}"))?;
                }
                [] => {}
            }
        }
        Ok(parsed)
    }

    /// Sets an option; `None` if it does not take this value.
    fn set(&mut self, name: &str, value: &'a str) -> Option<()> {
        match (name, value) {
            ("--rate", _) => {
                self.rate = Some(value.parse().ok().filter(|rate| (0.001..=1e9).contains(rate))?);
            }
            ("--messages", _) => self.count = Some(value.parse().ok()?),
            ("--log-capacity", _) => self.log_capacity = Some(value.parse().ok()?),
            ("--data", _) => self.data = Some(value),
            ("--fabric", "shm") => self.verbs = false,
            ("--fabric", "verbs") => self.verbs = true,
            ("--lines", "2") => self.role = Role::Lines,
            _ => return None,
        }
        Some(())
    }
}

impl Display for Unread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("nobody reads the output any more")
    }
}

impl Error for Unread {}

impl Settings {
    fn read(arguments: &[String]) -> Outcome<Self> {
        let Arguments { rate, count, log_capacity, data, verbs, role } = Arguments::parse(arguments)?;
        let rate = rate.unwrap_or(if role == Role::All { RATE } else { LINES_RATE });
        let log_capacity = log_capacity.unwrap_or(LOG_CAPACITY);
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
