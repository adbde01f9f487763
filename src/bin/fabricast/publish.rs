//! `fabricast pub`: lines of standard input become values.

use std::io::{self, BufRead, Read};
use std::time::Duration;

use clap::{Args, ValueEnum};
use crossbeam::channel::{Receiver, Sender, bounded};
use fabricast::{Address, Node, NodeName, PublishError, StatePublisher, Target, limits};

use super::clock::Pace;
use super::failure::{Exit, Failure};
use super::interrupt::{Input, Interrupt};
use super::setting::{Setting, seconds};

/// Lines that are read ahead of what is published.
const LINES_AHEAD: usize = 64;
/// Bytes that the encoding of a text adds to it: its length.
const TEXT_OVERHEAD: usize = 8;

/// The slowest rate: a value a year.
const INTERVAL_MAX: Duration = Duration::from_secs(365 * 86_400);

const AFTER_HELP: &str = "\
Each line becomes a value of type String, without its line end. The topic is there until the input
has ended and --linger has passed, or until Ctrl-C; then its subscribers are told that it has ended.
A state topic holds the newest value: without --rate, lines replace each other as fast as they come.

Examples:
  vmstat 1 | fabricast pub shm:host/vmstat --kind state
  date | fabricast pub shm:me/now --kind state --linger 60
  date | fabricast pub rdma://0.0.0.0/now --kind state --linger 60
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
    /// What the topic holds. This version has topics of kind state only.
    #[arg(long, value_enum, default_value_t = Holding::State)]
    kind: Holding,
    /// Publish at most so many values a second.
    #[arg(long, value_name = "N", value_parser = interval)]
    rate: Option<Duration>,
    /// Serve the last value so long after the input has ended.
    #[arg(long, value_name = "SECS", value_parser = seconds, default_value = "0")]
    linger: Duration,
    /// Values that the topic's memory has room for: a power of two.
    #[arg(long, value_name = "N", default_value_t = limits::SLOT_COUNT_DEFAULT)]
    slots: u32,
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

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let Target { address, topic } = &arguments.target;
    if arguments.kind != Holding::State {
        return Err(Failure::usage("this version has topics of kind state only: write --kind state"));
    }
    let interrupt = Interrupt::install()?;
    let node = open(arguments, setting, address)?;
    let publisher = node
        .state_publisher::<String>(topic.as_str())
        .slots(arguments.slots)
        .payload_len_max(arguments.payload_len_max)
        .open()?;
    let (sender, lines) = bounded(LINES_AHEAD);
    let len_max = arguments.payload_len_max.saturating_sub(TEXT_OVERHEAD);
    // It is left behind when the process is asked to end while there is no input.
    std::thread::spawn(move || read(&mut io::stdin().lock(), len_max, &sender));
    serve(arguments, publisher, &lines, &interrupt)
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
    mut publisher: StatePublisher<String>,
    lines: &Receiver<Result<String, Failure>>,
    interrupt: &Interrupt,
) -> Result<Exit, Failure> {
    let mut pace = arguments.rate.map(Pace::new);
    loop {
        let line = match interrupt.receive(lines) {
            Input::Item(line) => line?,
            Input::End => break,
            Input::Interrupted => return Ok(Exit::Done),
        };
        if let Some(pace) = &mut pace {
            if interrupt.pause(pace.left()) {
                return Ok(Exit::Done);
            }
            pace.advance();
        }
        publisher.publish(&line).map_err(|error: PublishError| Failure::new(Exit::No, error))?;
    }
    interrupt.pause(arguments.linger);
    Ok(Exit::Done)
}

/// Reads lines until there are no more, one cannot be a value, or nobody takes them.
fn read(input: &mut impl BufRead, len_max: usize, lines: &Sender<Result<String, Failure>>) {
    for number in 1_u64.. {
        let Some(line) = read_line(input, len_max, number).transpose() else { return };
        let failed = line.is_err();
        if lines.send(line).is_err() || failed {
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

    fn lines(mut input: &[u8], len_max: usize) -> Vec<Result<String, Exit>> {
        let (sender, lines) = bounded(100);
        read(&mut input, len_max, &sender);
        drop(sender);
        lines.iter().map(|line| line.map_err(|failure| failure.exit())).collect()
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
