use std::time::Duration;

use clap::{Args, ValueEnum};
use fabricast::{Address, Delivery, Node, NodeName, SlowPolicy, limits};

use super::super::failure::Failure;
use super::super::setting::{Setting, Way, address};
use super::super::units::{duration, size_in};
use super::cpus::Choice;
use super::program_options::ProgramOptions;
use super::trouble::Trouble;

const EXAMPLES: &str = "\
Examples:
  fabricast perf pull                                        64-byte values, read by subscribers
  fabricast perf push --size 64,1024,65536 --floor --json    three sizes and the floor, as JSON
  fabricast perf pull --size 1048576 --slots 32 --for 5      five seconds of 1 MiB values
  fabricast perf notify --fabric verbs                       like pull, but notices announce values
  fabricast perf push --subscribers 4                        three more subscribing processes
  fabricast perf stream --size 64,65536 --floor              a log at full speed, beside rings
  fabricast perf stream --lossy --subscribers 2 --batch 1    the publisher never waits for the two
  fabricast perf stream --floor --contents number            compares records as the floor does
  fabricast perf stream --size 65536 --policy block --in-place
                                                             receives records where they lie
  fabricast perf stream --policy block --subscribers 4       a lossless stream to four
  fabricast perf push --serve --node lab                     answers in one terminal ...
  fabricast perf push --connect shm:lab                      ... and measures from another
  fabricast perf wake --floor                                one way into a subscriber that sleeps
  fabricast perf wake --sleep-in wait-set --rate 200         ... in a WaitSet, 200 values a second
  fabricast perf pull --fabric verbs --size 64,65536         over the RDMA device of this host
  fabricast perf pull --serve --insecure --rdma rdma://10.0.0.2     answers on one host ...
  fabricast perf pull --connect rdma://10.0.0.2              ... and measures from another
  fabricast perf ping-pong --mode send --inline 64           messages over one queue pair
  fabricast perf blast --mode write --size 64k --chain 32    WRITEs at full speed
  fabricast perf stream --serve --insecure --rdma rdma://10.0.0.2   receives on one host ...
  fabricast perf stream --connect rdma://10.0.0.2            ... what another publishes

The floor sends the same bytes between the same two processes through a bare seqlock in shared
memory, or a bare ring for stream, of whose records only a number is compared. The line
`checked` is that ring with records that are written, compared, and checked by CRC-32 like
those of the log. The floor of wake is a bare futex wake in shared memory; with --sleep-in
wait-set, a send through a pair of sockets into epoll_wait. Compare ratios within one run,
never times of two runs: the placement says whether the processors share a cache.

The mode wake publishes at a steady rate, and only while the subscriber sleeps. `awake` counts
the values that found it awake all the same; the quantiles are of the others. On one host the
times are one way, by the clock that both processes share. Between two hosts (`times` is
`halved`) they are half of a round trip, in which the measuring process sleeps as well.

`msgs/s` and `GB/s` count what travels in both directions with pull, push and notify. With
ping-pong they count round trips, thus one direction, and with blast blocks. `verified` blocks
of ping-pong and blast had the right number at both ends; of `whole` ones every byte was
compared: one of 128 that are longer than 16 bytes, so a short run may have none.";

/// Where a process started here listens over RDMA: everywhere on this host, at a free port.
const RDMA_ANYWHERE: &str = "rdma://0.0.0.0:0";
/// Values per second published to a subscriber that sleeps.
const RATE: u32 = 1000;

/// Measures deliveries between two processes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    pub(super) mode: Mode,
    /// Transport between the processes started here; otherwise the address of --connect determines it
    /// [default: shm; with ping-pong and blast verbs, the only one]
    #[arg(long, value_enum, conflicts_with = "connect")]
    pub(super) fabric: Option<FabricName>,
    /// Payload sizes, separated by commas: bytes, or with a unit, as in 64k
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = size_in::<u32>(8..=1 << 30))]
    pub(super) size: Vec<u32>,
    /// Processes that subscribe. One of them answers; the others receive what they can, on any processor, and values replaced
    /// before they read them count as lost; not with ping-pong and blast
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) subscribers: u32,
    /// Round trips, records or blocks to measure for each size [default: as many as --for allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(super) iterations: Option<u64>,
    /// Time to measure for each size: seconds, or with a unit, as in 5s
    #[arg(long = "for", value_name = "TIME", default_value_t = 1.0, value_parser = seconds)]
    pub(super) seconds: f64,
    /// The processors of the measuring and of the answering process; `auto` for the first two allowed, `any` to leave both unpinned
    #[arg(long, value_name = "A,B", default_value = "auto")]
    pub(super) cpus: Choice,
    /// Slots of each repository; not with stream, ping-pong and blast [default: 8]
    #[arg(long, value_name = "N")]
    pub(super) slots: Option<u32>,
    /// How values or records travel, with stream and wake [default: pull]
    #[arg(long, value_enum)]
    pub(super) delivery: Option<Way>,
    /// Also measure the floor, alternating with the delivery; not with ping-pong and blast
    #[arg(long)]
    pub(super) floor: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(super) json: bool,
    /// Answer round trips, or receive records, for a process with --connect, until interrupted
    #[arg(long, conflicts_with_all = ["connect", "floor", "json", "subscribers"])]
    pub(super) serve: bool,
    /// The node name for --serve
    #[arg(long, default_value = "perf", requires = "serve")]
    pub(super) node: NodeName,
    /// An RDMA address for --serve to listen at as well; of ping-pong and blast the only one [default: rdma://0.0.0.0]
    #[arg(long, value_name = "ADDRESS", requires = "serve")]
    pub(super) rdma: Option<Address>,
    /// Measure against the process with --serve at this address
    #[arg(long, value_name = "ADDRESS", conflicts_with = "floor", value_parser = address)]
    pub(super) connect: Option<Address>,
    /// Time to wait for the other process
    #[arg(long, value_name = "TIME", default_value_t = 10.0, value_parser = seconds)]
    pub(super) wait: f64,
    /// Passed by a measuring process to the process it starts
    #[arg(long, hide = true, requires = "serve")]
    pub(super) floor_len: Option<u32>,
    /// Passed by a measuring process to additional subscribers
    #[arg(long, hide = true, conflicts_with_all = ["serve", "connect"])]
    pub(super) follow: Option<Address>,
    #[command(flatten)]
    pub(super) stream: StreamOptions,
    #[command(flatten)]
    pub(super) wake: WakeOptions,
    #[command(flatten)]
    pub(super) program: ProgramOptions,
}

/// Arguments of `perf stream` only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the mode stream")]
pub(super) struct StreamOptions {
    /// Records published with one commit [default: as many as fit into 16 KiB, over verbs into 64 KiB, from 1 to 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) batch: Option<u32>,
    /// Bytes of the ring, of the floor and of the log [default: 262144, over verbs 1048576, or 8 records if that is more]
    #[arg(long, value_name = "BYTES", value_parser = size_in::<u64>(1..=1 << 33))]
    pub(super) capacity: Option<u64>,
    /// Publish without waiting for subscribers: what they miss is lost and counted
    #[arg(long)]
    pub(super) lossy: bool,
    /// Publish at full speed, and leave slow subscribers to the library: they are lapped, the publisher waits for them, or they are
    /// disconnected, which ends the run. With --serve and --connect, pass the same to both processes [default: this command waits]
    #[arg(long, value_enum, conflicts_with = "lossy")]
    pub(super) policy: Option<Policy>,
    /// With --policy block, receive records over 4 KiB in place, without copying them to private memory. Between two processes, the one
    /// with --serve determines it
    #[arg(long)]
    pub(super) in_place: bool,
    /// What is written and compared of each record, besides the library's checksum: every byte, or only a number at both ends, as in the
    /// floor. With --serve and --connect, pass the same to both processes
    #[arg(long, value_enum, default_value_t = Contents::Whole)]
    pub(super) contents: Contents,
    /// Passed by a measuring process to those that receive
    #[arg(long, hide = true)]
    pub(super) drain: Option<Address>,
    /// Passed by a measuring process to those that receive: the number of each
    #[arg(long, hide = true, default_value_t = 0)]
    pub(super) reader: usize,
}

/// What the ends of a stream write and compare of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Contents {
    /// Every byte
    Whole,
    /// A number at both ends
    Number,
}

impl Contents {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Number => "number",
        }
    }
}

/// Arguments of `perf wake` only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the mode wake")]
pub(super) struct WakeOptions {
    /// What the subscriber sleeps in [default: receive]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) sleep_in: Option<SleepIn>,
    /// Values published per second, if the subscriber is asleep again by then [1 to 10000, default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) rate: Option<u32>,
}

/// What a subscriber sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SleepIn {
    /// A blocking receive
    Receive,
    /// A set of subscribers that one thread waits for
    WaitSet,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// Round trips over a state topic that subscribers read
    Pull,
    /// Round trips over a state topic that is written to subscribers
    Push,
    /// Round trips over a state topic whose notices carry small values: multicast over RDMA
    Notify,
    /// Records of a log at full speed, one way
    Stream,
    /// Values of a state topic to a subscriber that sleeps, one way
    Wake,
    /// Blocks there and back over one RDMA queue pair, without topics: --mode says by which operations
    PingPong,
    /// As many blocks as possible over one RDMA queue pair, without topics: --mode says by which operation
    Blast,
}

/// What happens to slow subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Policy {
    /// They lose records, which are counted
    Lap,
    /// The publisher waits for them
    Block,
    /// They are disconnected
    Disconnect,
}

impl From<Policy> for SlowPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Lap => Self::Lap,
            Policy::Block => Self::Block,
            Policy::Disconnect => Self::Disconnect,
        }
    }
}

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FabricName {
    /// Shared memory of one host
    Shm,
    /// RDMA verbs
    Verbs,
}

impl Mode {
    /// How values travel, unless an option says so.
    pub(super) fn delivery(self) -> Delivery {
        match self {
            Self::Push => Delivery::Push,
            _ => Delivery::Pull,
        }
    }

    /// Whether subscribers have notices.
    pub(super) fn has_notices(self) -> bool {
        matches!(self, Self::Notify | Self::Wake)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Notify => "notify",
            Self::Stream => "stream",
            Self::Wake => "wake",
            Self::PingPong => "ping-pong",
            Self::Blast => "blast",
        }
    }

    /// Whether it is a program of one queue pair.
    pub(super) fn is_program(self) -> bool {
        matches!(self, Self::PingPong | Self::Blast)
    }
}

impl FabricName {
    /// The fabric that reaches this address.
    pub(super) fn of(address: &Address) -> Self {
        if address.is_local() { Self::Shm } else { Self::Verbs }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Verbs => "verbs",
        }
    }

    /// Where a node listens over RDMA, if it does.
    pub(super) fn rdma(self) -> Option<Address> {
        if self == Self::Verbs { RDMA_ANYWHERE.parse().ok() } else { None }
    }

    /// The address of a node on this fabric.
    pub(super) fn address(self, node: &Node) -> Result<Address, Trouble> {
        let found = node.addresses().iter().find(|address| Self::of(address) == self);
        found.cloned().ok_or_else(|| format!("the node does not listen over {}", self.name()).into())
    }
}

impl Arguments {
    /// Rejects options of another mode, and those of the other process.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.mode.is_program() {
            return self.check_program();
        }
        if self.program.is_given() {
            let sentence = "--mode, --inline, --sge, --signal-every, --depth, --chain and --events are options of `perf ping-pong` and \
                            `perf blast`: omit them here";
            return Err(Failure::usage(sentence));
        }
        Err(Failure::usage(match self.mode {
            _ if self.serve && self.fabric.is_some() && !self.is_started() => {
                "the process that measures chooses the fabric: omit --fabric, and pass --rdma ADDRESS to listen there, too"
            }
            Mode::Stream if self.slots.is_some() => "a log has a --capacity, not --slots: omit --slots",
            Mode::Pull | Mode::Push | Mode::Notify | Mode::Wake
                if self.stream.is_given() || self.stream.is_given_to_both() =>
            {
                "--batch, --capacity, --lossy, --policy, --in-place and --contents are options of `perf stream`: omit them here"
            }
            Mode::Pull | Mode::Push | Mode::Notify if self.delivery.is_some() => {
                "--delivery is an option of `perf stream` and `perf wake`: omit it here"
            }
            Mode::Pull | Mode::Push | Mode::Notify | Mode::Stream if self.wake.is_given() => {
                "--sleep-in and --rate are options of `perf wake`: omit them here"
            }
            Mode::Stream if self.serve && (self.stream.is_given() || self.delivery.is_some()) => {
                "--delivery, --batch, --capacity and --lossy belong to the measuring process: omit them with --serve"
            }
            Mode::Stream if self.stream.in_place && self.stream.policy != Some(Policy::Block) => {
                "--in-place is for subscribers that the publisher waits for: add --policy block"
            }
            Mode::Wake if self.serve && (self.wake.is_given() || self.delivery.is_some()) => {
                "--delivery, --sleep-in and --rate belong to the measuring process: omit them with --serve"
            }
            _ => return Ok(()),
        }))
    }

    /// Rejects options of topics, and of another program.
    fn check_program(&self) -> Result<(), Failure> {
        let has_topics = self.slots.is_some()
            || self.delivery.is_some()
            || self.stream.is_given()
            || self.stream.is_given_to_both()
            || self.wake.is_given()
            || self.floor
            || self.subscribers != 1;
        if has_topics {
            let sentence = "ping-pong and blast have no topics: omit --slots, --delivery, --floor, --subscribers and the options of \
                            stream and wake";
            return Err(Failure::usage(sentence));
        }
        if let Some(address) = self.connect.as_ref().filter(|address| address.is_local()) {
            let sentence = format!(
                "ping-pong and blast run over RDMA only: use --connect rdma://HOST[:PORT], not {address}"
            );
            return Err(Failure::usage(sentence));
        }
        if self.fabric() != FabricName::Verbs {
            return Err(Failure::usage("ping-pong and blast run over RDMA only: omit --fabric"));
        }
        self.program.check(self.mode == Mode::Blast, self.serve)
    }

    /// Refuses to listen beyond this host for subscribers besides the process at an address there, unless there are keys, or shall be
    /// none.
    pub(super) fn check_protection(&self, setting: &Setting) -> Result<(), Failure> {
        let beyond = self.connect.is_some() && self.listening().is_some();
        if !beyond || self.mode.is_program() || !setting.is_unprotected() {
            return Ok(());
        }
        Err(Failure::usage(
            "a process that measures with --connect and --subscribers over RDMA listens for the subscribers, and admits anyone on that \
             network: pass --key-file FILE, with a key of `fabricast key --rights read,publish`, or --insecure if that is meant",
        ))
    }

    /// Whether a measuring process has started this one.
    pub(super) fn is_started(&self) -> bool {
        self.floor_len.is_some() || self.follow.is_some() || self.stream.drain.is_some()
    }

    /// Where the measuring process listens over RDMA: for the processes that it starts, if there are any. It dials the one of
    /// `--connect`.
    pub(super) fn listening(&self) -> Option<Address> {
        match &self.connect {
            Some(address) if self.subscribers > 1 => FabricName::of(address).rdma(),
            Some(_) => None,
            None => self.fabric().rdma(),
        }
    }

    /// The transport between the processes started here.
    pub(super) fn fabric(&self) -> FabricName {
        let usual = if self.mode.is_program() { FabricName::Verbs } else { FabricName::Shm };
        self.fabric.unwrap_or(usual)
    }

    /// The command that measures against this process with --serve at this address.
    pub(super) fn measuring_command(&self, address: &Address, protection: &str) -> String {
        let mut command = format!("fabricast perf {} --connect {address}{protection}", self.mode.name());
        if self.stream.policy.is_some() {
            command += &format!(" --policy {}", self.stream.policy());
        }
        if self.stream.in_place {
            command += " --in-place";
        }
        if self.stream.contents == Contents::Number {
            command += " --contents number";
        }
        command
    }

    /// How values travel.
    pub(super) fn delivery(&self) -> Delivery {
        self.delivery.map_or_else(|| self.mode.delivery(), Delivery::from)
    }

    /// Slots of each repository.
    pub(super) fn slots(&self) -> u32 {
        self.slots.unwrap_or(limits::SLOT_COUNT_DEFAULT)
    }
}

impl StreamOptions {
    /// Whether any option of the measuring process was given.
    pub(super) fn is_given(&self) -> bool {
        self.batch.is_some() || self.capacity.is_some() || self.lossy
    }

    /// Whether any option of both processes was given.
    fn is_given_to_both(&self) -> bool {
        self.policy.is_some() || self.in_place || self.contents != Contents::Whole
    }

    /// Whether this command does not wait for subscribers.
    pub(super) fn is_unpaced(&self) -> bool {
        self.lossy || self.policy.is_some()
    }

    /// Whether records may be lost.
    pub(super) fn may_lose(&self) -> bool {
        self.lossy || self.policy == Some(Policy::Lap)
    }

    /// What happens to slow subscribers.
    pub(super) fn policy(&self) -> SlowPolicy {
        self.policy.map_or(SlowPolicy::Lap, SlowPolicy::from)
    }
}

impl WakeOptions {
    /// Whether any option was given.
    fn is_given(&self) -> bool {
        self.sleep_in.is_some() || self.rate.is_some()
    }

    pub(super) fn sleep_in(&self) -> SleepIn {
        self.sleep_in.unwrap_or(SleepIn::Receive)
    }

    /// The time between two values.
    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs(1) / self.rate.unwrap_or(RATE)
    }
}

impl SleepIn {
    pub(super) const ALL: [Self; 2] = [Self::Receive, Self::WaitSet];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::WaitSet => "wait-set",
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match duration(text)?.as_secs_f64() {
        seconds if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("use a time from 10ms to 1d".to_owned()),
    }
}
