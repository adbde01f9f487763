//! `fabricast pub`: lines of standard input become values, or records of a log.

use std::io::{self, BufRead, BufReader, Read};
use std::time::Duration;

use clap::{Args, ValueEnum};
use crossbeam::channel::{Receiver, Sender, bounded};
use fabricast::{Address, LogPublisher, Node, NodeName, PublishError, StatePublisher, Target, limits};

use super::clock::Pace;
use super::failure::{Exit, Failure};
use super::interrupt::{Input, Interrupt};
use super::setting::{Setting, seconds};

/// The most lines that are handed over, and published, at once.
const LINES_AT_ONCE: usize = 64;
/// Bytes that the encoding of a text adds to it: its length.
const TEXT_OVERHEAD: usize = 8;

/// The slowest rate: a value a year.
const INTERVAL_MAX: Duration = Duration::from_secs(365 * 86_400);

const AFTER_HELP: &str = "\
Each line becomes a value of type String, without its line end. The topic is there until the input
has ended and --linger has passed, or until Ctrl-C; then its subscribers are told that it has ended.
A state topic holds the newest value: without --rate, lines replace each other as fast as they come.
A log holds them in order, as many as fit into --capacity, and gives up the oldest for new ones;
lines that are there at once are published at once.

Examples:
  vmstat 1 | fabricast pub shm:host/vmstat --kind state
  date | fabricast pub shm:me/now --kind state --linger 60
  date | fabricast pub rdma://0.0.0.0/now --kind state --linger 60
  journalctl -f | fabricast pub shm:host/journal --kind log --capacity 10000000
  fabricast pub shm:me/replay --kind state --rate 10 < lines.txt";

/// Arguments of `pub`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic to publish, as in shm:NODE/TOPIC. The node is made; its name must be free. With rdma://HOST[:PORT]/TOPIC
    /// it listens there, where HOST is an address of this host or 0.0.0.0 for all of them, and on this host too.
    target: Target,
    /// The name of the node at an rdma:// address [default: rdma-PORT].
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,
    /// What the topic holds. This version has topics of kind state and log only.
    #[arg(long, value_enum, default_value_t = Holding::State)]
    kind: Holding,
    /// Publish at most so many values a second.
    #[arg(long, value_name = "N", value_parser = interval)]
    rate: Option<Duration>,
    /// Serve the last value so long after the input has ended.
    #[arg(long, value_name = "SECS", value_parser = seconds, default_value = "0")]
    linger: Duration,
    /// Values that the memory of a state topic has room for: a power of two [default: 8].
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Bytes of the ring that holds the records of a log: each takes 24 more than its value [default: 1048576].
    #[arg(long, value_name = "BYTES")]
    capacity: Option<usize>,
    /// The longest value, bytes; a line needs 8 more than it has.
    #[arg(long, value_name = "BYTES", default_value_t = 64 * 1024)]
    payload_len_max: usize,
}

/// What a topic holds, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Holding {
    /// The newest value.
    State,
    /// Values in order.
    Log,
    /// The newest value of each key.
    Table,
}

/// A line of the input, or why it cannot be a value.
type Line = Result<String, Failure>;

/// What publishes the lines.
#[derive(Debug)]
enum Publisher {
    State(StatePublisher<String>),
    Log(LogPublisher<String>),
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    arguments.check()?;
    let interrupt = Interrupt::install()?;
    let node = open(arguments, setting, &arguments.target.address)?;
    let publisher = Publisher::open(&node, arguments)?;
    let (sender, lines) = bounded(1);
    let len_max = arguments.payload_len_max.saturating_sub(TEXT_OVERHEAD);
    // It is left behind when the process is asked to end while there is no input.
    std::thread::spawn(move || read(&mut BufReader::new(io::stdin()), len_max, &sender));
    serve(arguments, publisher, &lines, &interrupt)
}

impl Arguments {
    /// Refuses what does not fit together.
    fn check(&self) -> Result<(), Failure> {
        let sentence = match self.kind {
            Holding::Table => {
                "this version has topics of kind state and log only: write --kind state or --kind log"
            }
            Holding::State if self.capacity.is_some() => {
                "a state topic has slots, and no --capacity: leave it out, or write --kind log"
            }
            Holding::Log if self.slots.is_some() => {
                "a log has a --capacity, and no --slots: leave them out, or write --kind state"
            }
            _ => return Ok(()),
        };
        Err(Failure::usage(sentence))
    }
}

impl Publisher {
    fn open(node: &Node, arguments: &Arguments) -> Result<Self, Failure> {
        let (topic, len_max) = (arguments.target.topic.as_str(), arguments.payload_len_max);
        Ok(match arguments.kind {
            Holding::Log => {
                let capacity = arguments.capacity.unwrap_or(limits::LOG_CAPACITY_DEFAULT);
                let builder = node.log_publisher(topic).capacity(capacity);
                Self::Log(builder.payload_len_max(len_max).open()?)
            }
            _ => {
                let builder = node.state_publisher(topic);
                let slots = arguments.slots.unwrap_or(limits::SLOT_COUNT_DEFAULT);
                Self::State(builder.slots(slots).payload_len_max(len_max).open()?)
            }
        })
    }

    /// Publishes lines: to a log all of them at one moment. Those before one that cannot be a value are published.
    fn publish(&mut self, lines: Vec<Line>) -> Result<(), Failure> {
        let mut trouble = Ok(());
        let values = lines.into_iter().map_while(|line| line.map_err(|failure| trouble = Err(failure)).ok());
        let values: Vec<String> = values.collect();
        let published = match self {
            Self::State(state) => values.iter().try_for_each(|value| state.publish(value).map(drop)),
            Self::Log(log) => log.publish_batch(&values).map(drop),
        };
        published.map_err(|error: PublishError| Failure::new(Exit::No, error))?;
        trouble
    }
}

/// The node that is published from.
fn open(arguments: &Arguments, setting: &Setting, address: &Address) -> Result<Node, Failure> {
    match (address, &arguments.node) {
        (Address::Shm(name), None) => setting.node(Some(name)),
        (Address::Shm(name), Some(_)) => {
            Err(Failure::usage(format!("shm:{name} names the node already: leave --node out")))
        }
        (_, Some(name)) => setting.rdma_node(name, address),
        (Address::Rdma { port, .. }, None) => {
            let name = format!("rdma-{port}").parse().map_err(Failure::usage)?;
            setting.rdma_node(&name, address)
        }
        (_, None) => Err(Failure::usage(format!("{address} needs --node NAME"))),
    }
}

/// Publishes the lines, and lingers.
fn serve(
    arguments: &Arguments,
    mut publisher: Publisher,
    batches: &Receiver<Vec<Line>>,
    interrupt: &Interrupt,
) -> Result<Exit, Failure> {
    let mut pace = arguments.rate.map(Pace::new);
    loop {
        let batch = match interrupt.receive(batches) {
            Input::Item(batch) => batch,
            Input::End => break,
            Input::Interrupted => return Ok(Exit::Done),
        };
        let Some(pace) = &mut pace else {
            publisher.publish(batch)?;
            continue;
        };
        for line in batch {
            if interrupt.pause(pace.left()) {
                return Ok(Exit::Done);
            }
            pace.advance();
            publisher.publish(vec![line])?;
        }
    }
    interrupt.pause(arguments.linger);
    Ok(Exit::Done)
}

/// Reads lines until there are no more, one cannot be a value, or nobody takes them. Those that can be had without
/// waiting are handed over together.
fn read(input: &mut BufReader<impl Read>, len_max: usize, batches: &Sender<Vec<Line>>) {
    let mut batch = Vec::new();
    for number in 1_u64.. {
        let line = read_line(input, len_max, number).transpose();
        let is_over = line.as_ref().is_none_or(|line| line.is_err());
        batch.extend(line);
        if batch.len() < LINES_AT_ONCE && !is_over && input.buffer().contains(&b'\n') {
            continue;
        }
        let sent = batch.is_empty() || batches.send(std::mem::take(&mut batch)).is_ok();
        if is_over || !sent {
            return;
        }
    }
}

/// The next line without its end. Never takes more memory than a line may have.
fn read_line(input: &mut impl BufRead, len_max: usize, number: u64) -> Result<Option<String>, Failure> {
    let mut line = Vec::new();
    // The longest line, and its end.
    let room = (len_max as u64).saturating_add(2);
    let read = input.by_ref().take(room).read_until(b'\n', &mut line);
    let read =
        read.map_err(|error| Failure::new(Exit::No, format!("cannot read standard input: {error}")))?;
    if read == 0 {
        return Ok(None);
    }
    let ends: [&[u8]; 2] = [b"\r\n", b"\n"];
    let end = ends.into_iter().find(|end| line.ends_with(end)).map_or(0, <[u8]>::len);
    line.truncate(line.len() - end);
    if line.len() > len_max {
        let sentence =
            format!("line {number} has more than {len_max} bytes: give a larger --payload-len-max");
        return Err(Failure::usage(sentence));
    }
    let text = String::from_utf8(line);
    text.map(Some).map_err(|_| Failure::usage(format!("line {number} is not UTF-8, so it is no text")))
}

/// The time from one value to the next at a rate per second, as an argument.
fn interval(text: &str) -> Result<Duration, String> {
    let malformed = || format!("{text:?} is no rate: write a number of values a second above 0");
    let rate: f64 = text.parse().map_err(|_| malformed())?;
    let interval = Duration::try_from_secs_f64(1.0 / rate).map_err(|_| malformed())?;
    if interval <= INTERVAL_MAX { Ok(interval) } else { Err(malformed()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(input: &[u8], len_max: usize) -> Vec<Vec<Result<String, Exit>>> {
        let (sender, batches) = bounded(100);
        read(&mut BufReader::new(input), len_max, &sender);
        drop(sender);
        let told = |line: Line| line.map_err(|failure| failure.exit());
        batches.iter().map(|batch| batch.into_iter().map(told).collect()).collect()
    }

    fn lines(input: &[u8], len_max: usize) -> Vec<Result<String, Exit>> {
        batches(input, len_max).concat()
    }

    #[test]
    fn lines_that_are_there_at_once_come_together() {
        let lens = |text: &str| batches(text.as_bytes(), 10).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens("one\ntwo\nthree\n"), [3]);
        // What has no end yet might be waited for.
        assert_eq!(lens("one\ntwo\nthr"), [2, 1]);
        assert_eq!(lens(&"x\n".repeat(150)), [64, 64, 22]);
    }

    #[test]
    fn lines_lose_their_ends_only() {
        let read = lines(b"one\r\n\n two \nlast", 10);
        assert_eq!(read, ["one", "", " two ", "last"].map(|line| Ok(line.to_owned())));
        assert_eq!(lines(b"", 10), []);
        assert_eq!(lines(b"abc\n", 3), [Ok("abc".to_owned())]);
        assert_eq!(lines(b"abc\r\n", 3), [Ok("abc".to_owned())]);
    }

    #[test]
    fn a_line_that_is_no_value_is_the_last() {
        assert_eq!(lines(b"ok\nabcd\nnext\n", 3), [Ok("ok".to_owned()), Err(Exit::Usage)]);
        assert_eq!(lines(b"abcdefgh", 3), [Err(Exit::Usage)]);
        assert_eq!(lines(b"\xff\nnext\n", 3), [Err(Exit::Usage)]);
    }

    #[test]
    fn a_rate_is_an_interval() {
        assert_eq!(interval("10"), Ok(Duration::from_millis(100)));
        for text in ["0", "-1", "x", "NaN", "1e-9"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
