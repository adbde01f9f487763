//! `fabricast perf`: measures deliveries between two processes, beside a floor in the same run.

mod cpus;
mod drain;
mod echo;
mod follow;
mod line;
mod pattern;
mod ping;
mod probe;
mod process;
mod remote;
mod stream;

use std::error::Error;
use std::io;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fabricast::{Address, Delivery, Node};

use self::cpus::Choice;
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::setting::Setting;
use super::units::{duration, size_in};

const EXAMPLES: &str = "\
Examples:
  fabricast perf pull                                         round trips of 64-byte values, read by the subscriber
  fabricast perf push --size 64,1024,65536 --floor --json     three sizes, each beside the floor, for a script
  fabricast perf pull --size 1048576 --slots 32 --for 5       five seconds of 1 MiB values
  fabricast perf notify --fabric verbs                        as pull, but told by notices when to read
  fabricast perf push --subscribers 4                         three more processes read along
  fabricast perf stream --size 64,65536 --floor               a log at full speed, beside rings and memcpy
  fabricast perf stream --lossy --subscribers 2 --batch 1     what two get of records that nobody waits for
  fabricast perf push --serve --node lab                      answers in one terminal ...
  fabricast perf push --connect shm:lab                       ... what is measured from another
  fabricast perf pull --fabric verbs --size 64,65536          over the RDMA device of this host
  fabricast perf pull --serve --rdma rdma://10.0.0.2          answers on one host ...
  fabricast perf pull --connect rdma://10.0.0.2               ... what is measured from another
  fabricast perf stream --serve --rdma rdma://10.0.0.2        takes and compares records on one host ...
  fabricast perf stream --connect rdma://10.0.0.2             ... that come from another

The floor is the same bytes between the same two processes through a bare seqlock in shared memory, a bare ring for
stream, without any check. The line `checked` of a stream is that ring with records that are written, compared, and checked by
CRC-32, as those of the log are. Compare ratios of one run, never times of two: the placement tells whether the processors share a cache.";

/// Measures deliveries between two processes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    mode: Mode,
    /// What moves the bytes between processes that are started here; otherwise the address of --connect says it
    #[arg(long, value_enum, default_value_t = FabricName::Shm, conflicts_with = "connect")]
    fabric: FabricName,
    /// Payload sizes, separated by commas: bytes, or with a unit, as in 64k
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = size_in::<u32>(8..=1 << 30))]
    size: Vec<u32>,
    /// Processes that subscribe to what is measured. One of them answers; the others take what they can catch, on
    /// any processor, and what is replaced before they have read it counts as lost
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    subscribers: u32,
    /// Round trips, or records, to measure for each size [default: as many as --for allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    iterations: Option<u64>,
    /// Time to measure for each size: seconds, or with a unit, as in 5s
    #[arg(long = "for", value_name = "TIME", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// The processors of the measuring and of the answering process; `auto` for the first two, `any` to let them wander
    #[arg(long, value_name = "A,B", default_value = "auto")]
    cpus: Choice,
    /// Slots of each repository
    #[arg(long, value_name = "N", default_value_t = 8)]
    slots: u32,
    #[command(flatten)]
    stream: stream::Options,
    /// Measure the floor too, in turns with the delivery
    #[arg(long)]
    floor: bool,
    /// Print a JSON object a line
    #[arg(long)]
    json: bool,
    /// Answer the round trips, or take the records, that another process measures with --connect, until interrupted
    #[arg(long, conflicts_with_all = ["connect", "floor", "json", "subscribers"])]
    serve: bool,
    /// The name to answer under with --serve
    #[arg(long, default_value = "perf")]
    node: String,
    /// Where to answer over RDMA, too, with --serve
    #[arg(long, value_name = "ADDRESS", requires = "serve")]
    rdma: Option<Address>,
    /// Measure against the process that answers at this address
    #[arg(long, value_name = "ADDRESS", conflicts_with = "floor")]
    connect: Option<Address>,
    /// Time to wait for the other process
    #[arg(long, value_name = "TIME", default_value_t = 10.0, value_parser = seconds)]
    wait: f64,
    /// Given by a measuring process to the one it starts
    #[arg(long, hide = true, requires = "serve")]
    floor_len: Option<u32>,
    /// Given by a measuring process to those that read along
    #[arg(long, hide = true, conflicts_with_all = ["serve", "connect"])]
    follow: Option<Address>,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Round trips of a state topic that subscribers read
    Pull,
    /// Round trips of a state topic that is written to subscribers
    Push,
    /// Round trips of a state topic of which notices tell, with small values in them: by multicast over RDMA
    Notify,
    /// Records of a log at full speed, one way
    Stream,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FabricName {
    /// Shared memory of one host
    Shm,
    /// RDMA verbs
    Verbs,
}

/// What the other process is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Wait,
    Probe,
    Floor,
    Checked,
    Deliver,
    Stop,
}

/// Where a process listens over RDMA that was started here: everywhere on this host, at a port that is free.
const RDMA_ANYWHERE: &str = "rdma://0.0.0.0:0";
/// The topic of the answers.
const PONG: &str = "pong";

/// What goes wrong inside a measurement.
type Trouble = Box<dyn Error>;

/// An end without a word: nothing is wrong, or another process has told it.
#[derive(Debug, thiserror::Error)]
#[error("ended with exit code {}", self.0.code())]
struct Quiet(Exit);

/// Runs the measurement.
pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    if arguments.mode == Mode::Stream {
        return stream::run(arguments, setting).or_else(told);
    }
    if arguments.stream.is_given() {
        let sentence =
            "--delivery, --batch, --capacity and --lossy are options of `perf stream`: leave them out";
        return Err(Failure::usage(sentence));
    }
    let outcome = match &arguments.follow {
        Some(measuring) => follow::follow(arguments, setting, measuring),
        None if arguments.serve => echo::serve(arguments, setting),
        None => ping::measure(arguments, setting),
    };
    outcome.or_else(told)
}

/// How the program tells it.
fn told(trouble: Trouble) -> Result<Exit, Failure> {
    let trouble = match trouble.downcast::<Quiet>() {
        Ok(quiet) => return Ok(quiet.0),
        Err(trouble) => trouble,
    };
    let trouble = match trouble.downcast::<Failure>() {
        Ok(failure) => return Err(*failure),
        Err(trouble) => trouble,
    };
    Err(match trouble.downcast::<io::Error>() {
        Ok(error) => (*error).into(),
        Err(trouble) => Failure::new(Exit::No, trouble),
    })
}

/// Waits for so long; ends the measurement when the process was asked to end.
fn wait(interrupt: &Interrupt, duration: Duration) -> Result<(), Trouble> {
    if interrupt.pause(duration) { Err(Quiet(Exit::Done).into()) } else { Ok(()) }
}

impl Mode {
    fn delivery(self) -> Delivery {
        match self {
            Self::Pull | Self::Notify | Self::Stream => Delivery::Pull,
            Self::Push => Delivery::Push,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Notify => "notify",
            Self::Stream => "stream",
        }
    }
}

impl FabricName {
    /// The fabric that reaches this address.
    fn of(address: &Address) -> Self {
        if address.is_local() { Self::Shm } else { Self::Verbs }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Verbs => "verbs",
        }
    }

    /// Where a node listens so that it can be reached.
    fn rdma(self) -> Option<Address> {
        if self == Self::Verbs { RDMA_ANYWHERE.parse().ok() } else { None }
    }

    /// Where a node is reached.
    fn address(self, node: &Node) -> Result<Address, Trouble> {
        let found = node.addresses().iter().find(|address| Self::of(address) == self);
        found.cloned().ok_or_else(|| format!("the node does not listen over {}", self.name()).into())
    }
}

impl Phase {
    const ALL: [Self; 6] = [Self::Wait, Self::Probe, Self::Floor, Self::Checked, Self::Deliver, Self::Stop];

    fn number(self) -> u64 {
        self as u64
    }

    fn of(number: u64) -> Self {
        Self::ALL.into_iter().find(|phase| phase.number() == number).unwrap_or(Self::Stop)
    }
}

/// A node of this name, which listens over RDMA too if there is an address for that.
fn open_node(name: &str, rdma: Option<&Address>, setting: &Setting) -> Result<Node, Trouble> {
    let name = name.parse()?;
    Ok(match rdma {
        Some(address) => setting.rdma_node(&name, address)?,
        None => setting.node(Some(&name))?,
    })
}

/// Writes the number of a round trip to both ends of a value.
fn mark(value: &mut [u64], number: u64) {
    if let Some(first) = value.first_mut() {
        *first = number;
    }
    if let Some(last) = value.last_mut() {
        *last = number;
    }
}

/// The number of a round trip, if a value of this length carries it at both ends.
fn marked(bytes: &[u8], len: usize) -> Option<u64> {
    let whole = len / size_of::<u64>() * size_of::<u64>();
    let (words, _) = bytes.split_at_checked(whole)?;
    let (first, last) = (words.first_chunk()?, words.last_chunk()?);
    (bytes.len() == len && first == last).then(|| u64::from_le_bytes(*first))
}

fn seconds(text: &str) -> Result<f64, String> {
    match duration(text)?.as_secs_f64() {
        seconds if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a time from 10ms to 1d".to_owned()),
    }
}
