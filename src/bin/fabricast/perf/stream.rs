use std::hint::black_box;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fabricast::measure::Ring;
use fabricast::{Address, Delivery, LogPublisher, Node, Raw, limits};

use super::super::clock::{Deadline, now};
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::output::count;
use super::super::setting::Setting;
use super::super::units::size_in;
use super::cpus::Cpus;
use super::echo::Seen;
use super::line::Line;
use super::probe::{Patience, Probe};
use super::process::Process;
use super::remote::Remote;
use super::{Arguments, FabricName, Phase, Trouble, drain, mark, open_node, pattern, remote, wait};

/// The topic of the records.
pub(super) const TOPIC: &str = "stream";
/// Turns in which floor and delivery are measured, one after the other.
const TURNS: u64 = 10;
/// Bytes of a batch unless it is said how many records it has.
const BATCH_LEN: usize = 16 * 1024;
/// As [`BATCH_LEN`], over a wire, where each batch costs a request of its own: what a subscriber by pull fetches at a time.
const WIRE_BATCH_LEN: usize = limits::LOG_FETCH_LEN;
/// Records of a batch unless it is said how many it has, at most.
const BATCH_MAX: usize = 64;
/// Bytes of the ring unless it is said how many.
const CAPACITY: usize = 256 * 1024;
/// As [`CAPACITY`], over a wire, where what is under way takes its time: what a publisher has that says nothing.
const WIRE_CAPACITY: usize = limits::LOG_CAPACITY_DEFAULT;
/// Records of which a ring has room for this many at least.
const RECORDS_MIN: usize = 8;
/// Bytes that a record takes besides its payload.
const RECORD_OVERHEAD: usize = 24;
/// Bytes that are published between two looks at the time.
const LOOK_EVERY_LEN: usize = 64 * 1024;
/// How long memcpy is measured.
const MEMCPY: Duration = Duration::from_millis(100);
/// Bytes that are copied between two looks at the time.
const MEMCPY_LEN: usize = 1 << 20;
/// Addresses that are equal up to this look equal to a processor at first.
const PAGE: usize = 4096;

/// Arguments of `perf stream` only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the mode stream")]
pub(super) struct Options {
    /// How records travel [default: pull]
    #[arg(long, value_enum)]
    delivery: Option<Way>,
    /// Records that are published with one commit [default: as many as fit into 16 KiB, over verbs into 64 KiB, from 1 to 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: Option<u32>,
    /// Bytes of the ring, of the floor and of the log [default: 262144, over verbs 1048576, or room for 8 records]
    #[arg(long, value_name = "BYTES", value_parser = size_in::<u64>(1..=1 << 33))]
    capacity: Option<u64>,
    /// Publish without waiting for subscribers: what they do not keep up with is lost, and counted
    #[arg(long)]
    lossy: bool,
    /// Given by a measuring process to those that receive
    #[arg(long, hide = true)]
    drain: Option<Address>,
    /// Given by a measuring process to those that receive: which of them it is
    #[arg(long, hide = true, default_value_t = 0)]
    pub(super) reader: usize,
}

/// How records travel, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// Read from the publisher's repository
    Pull,
    /// Written to the subscriber by the publisher
    Push,
}

/// The sizes of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    size: u32,
    /// Bytes of a record's payload.
    pub(super) len: usize,
    /// Records of a batch.
    pub(super) batch: usize,
    /// Bytes of the ring.
    pub(super) capacity: usize,
}

/// What all sizes have in common.
struct Measurement<'a> {
    arguments: &'a Arguments,
    setting: &'a Setting,
    cpus: Cpus,
    interrupt: Interrupt,
}

/// A stream of one size, and the processes that receive it.
struct Stream<'a> {
    measurement: &'a Measurement<'a>,
    records: Records<'a>,
    probe: Probe,
    started: Started<'a>,
}

/// The records of a stream, and who publishes them.
struct Records<'a> {
    interrupt: &'a Interrupt,
    shape: Shape,
    is_lossy: bool,
    publisher: LogPublisher<Raw>,
    /// The records of a batch.
    batch: Vec<u64>,
    number: u64,
    /// How far all who receive are, as far as was looked.
    received: u64,
}

/// Those who receive a stream.
pub(super) trait Receivers {
    /// The newest record that all of them have received, or were told that it is lost.
    fn progress(&mut self) -> Result<u64, Trouble>;

    /// One more look was in vain: an error when that goes on for too long, or nobody is there any more.
    fn look(&mut self, patience: &mut Patience) -> Result<(), Trouble>;
}

/// The processes that were started to receive. They are ended when this is dropped.
struct Started<'a> {
    interrupt: &'a Interrupt,
    ring: Ring,
    /// The process that is probed, and measured with the floor, and those that receive besides.
    first: Process,
    others: Vec<Process>,
}

/// How many values went through in how much time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    number: u64,
    time: Duration,
}

/// How fast records went through, and values through the rings that they are compared with.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    bare: Rate,
    checked: Rate,
    delivered: Rate,
}

/// Measures, or receives for a process that measures.
pub(super) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    match &arguments.stream.drain {
        Some(from) => drain::drain(arguments, setting, from),
        None if arguments.serve => remote::serve(arguments, setting),
        None => measure(arguments, setting),
    }
}

/// Measures, prints the lines of each size, and says by the exit code whether every record was right.
fn measure(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    let shapes = arguments.size.iter().map(|size| Shape::of(arguments, *size));
    let shapes = shapes.collect::<Result<Vec<_>, _>>()?;
    if arguments.connect.is_some() && arguments.subscribers > 1 {
        let sentence = "perf stream --connect measures one subscriber: leave --subscribers out";
        return Err(Failure::usage(sentence).into());
    }
    let cpus = arguments.cpus.settled()?;
    if arguments.connect.is_none() {
        // To see whether the other process will be able to.
        cpus.pin_answering()?;
    }
    cpus.pin_measuring()?;
    let measurement = Measurement { arguments, setting, cpus, interrupt: Interrupt::install()? };
    let mut heading = (!arguments.json).then(|| Line::heading("records"));
    let mut wrong = false;
    for (index, shape) in shapes.into_iter().enumerate() {
        let lines = match &arguments.connect {
            Some(address) => vec![measurement.connected(shape, address)?],
            None => measurement.started(shape, &format!("perf-{}-{index}", std::process::id()))?,
        };
        if measurement.interrupt.came() {
            return Ok(Exit::Done);
        }
        if let Some(heading) = heading.take() {
            writeln!(std::io::stdout(), "{heading}")?;
        }
        for line in lines {
            wrong |= !arguments.stream.is_right(&line);
            let text = if arguments.json { serde_json::to_string(&line)? } else { line.text() };
            writeln!(std::io::stdout(), "{text}")?;
        }
    }
    if wrong {
        let sentence = "some records were not what was published: see `rejected`, `lost` and `verified`";
        return Err(Failure::new(Exit::No, sentence).into());
    }
    Ok(Exit::Done)
}

impl Options {
    /// Whether any of them was given.
    pub(super) fn is_given(&self) -> bool {
        self.delivery.is_some() || self.batch.is_some() || self.capacity.is_some() || self.lossy
    }

    pub(super) fn delivery(&self) -> Delivery {
        match self.delivery {
            None | Some(Way::Pull) => Delivery::Pull,
            Some(Way::Push) => Delivery::Push,
        }
    }

    /// Whether all that was published came as it was published, or was told as lost where that may be.
    fn is_right(&self, line: &Line) -> bool {
        let Some(verified) = line.verified else { return true };
        let (lost, rejected) = (line.lost.unwrap_or(0), line.rejected.unwrap_or(0));
        let is_all = verified + lost == line.iterations * u64::from(line.subscribers);
        is_all && rejected == 0 && (lost == 0 || self.lossy)
    }
}

impl Shape {
    /// The sizes that the arguments give to a stream of records of this size.
    pub(super) fn of(arguments: &Arguments, size: u32) -> Result<Self, Failure> {
        let (len, options) = (size as usize, &arguments.stream);
        // Where the processes are that somebody else has started, their address says it.
        let fabric = arguments.connect.as_ref().map_or(arguments.fabric, FabricName::of);
        let (batch_len, capacity) = match fabric {
            FabricName::Shm => (BATCH_LEN, CAPACITY),
            FabricName::Verbs => (WIRE_BATCH_LEN, WIRE_CAPACITY),
        };
        let batch = (batch_len / len.max(1)).clamp(1, BATCH_MAX);
        let batch = options.batch.map_or(batch, |batch| batch as usize);
        let room = len.next_multiple_of(size_of::<u64>()) + RECORD_OVERHEAD;
        let capacity = options.capacity.map_or(capacity, |len| usize::try_from(len).unwrap_or(usize::MAX));
        let shape = Self { size, len, batch, capacity: capacity.max(room.saturating_mul(RECORDS_MIN)) };
        if shape.window() < batch {
            let sentence = format!(
                "{batch} records of {size} bytes take more than half of a ring of {} bytes: give a larger --capacity",
                shape.capacity
            );
            return Err(Failure::usage(sentence));
        }
        Ok(shape)
    }

    /// Records that may be under way so that none is overwritten before it was read.
    fn window(&self) -> usize {
        let room = self.len.next_multiple_of(size_of::<u64>()) + RECORD_OVERHEAD;
        self.capacity / 2 / room
    }

    /// After how many records a reader tells how far it is.
    pub(super) fn show_every(&self) -> usize {
        (self.window() / 8).max(1)
    }

    /// Whether more is to be measured after so many batches. The time is not looked at after each one.
    fn goes_on(&self, batches: u64, end: Option<Instant>, interrupt: &Interrupt) -> bool {
        let is_over = || end.is_some_and(|end| now() >= end) || interrupt.came();
        !batches.is_multiple_of(self.look_every()) || !is_over()
    }

    /// Batches between two looks at the time.
    fn look_every(&self) -> u64 {
        (LOOK_EVERY_LEN / (self.len * self.batch).max(1)).clamp(1, 64) as u64
    }
}

impl Measurement<'_> {
    /// Measures one size against a process that somebody else has started.
    fn connected(&self, shape: Shape, address: &Address) -> Result<Line, Trouble> {
        // So that its name can be told, and is another one for each process that receives.
        let name = match address.node() {
            Some(name) => format!("{name}.stream"),
            None => format!("perf-{}.stream", std::process::id()),
        };
        let (fabric, delivery) = (FabricName::of(address), self.arguments.stream.delivery());
        let node = open_node(&name, fabric.rdma().as_ref(), self.setting)?;
        let mut records = self.publish(shape, &node, remote::topic(delivery))?;
        let deadline = Deadline::after(Duration::from_secs_f64(self.arguments.wait));
        let between = (&node, &records.publisher);
        let mut remote = Remote::dial(between, (address, delivery), deadline, &self.interrupt)?;
        let Arguments { iterations, seconds, .. } = *self.arguments;
        let rate = records.deliver((iterations, Duration::from_secs_f64(seconds)), &mut remote)?;
        let line = rate.line("stream", shape.size);
        Ok(Line { connect: Some(address.to_string()), ..self.complete(line, fabric, remote.seen()) })
    }

    /// Adds to the line of a delivery what those have counted who received it.
    fn complete(&self, line: Line, fabric: FabricName, seen: Seen) -> Line {
        let Seen { verified, lost, rejected, .. } = seen;
        Line {
            fabric: fabric.name(),
            connect: (fabric == FabricName::Verbs).then(|| self.setting.connect_name()),
            subscribers: self.arguments.subscribers,
            verified: Some(verified),
            lost: Some(lost),
            rejected: Some(rejected),
            ..line
        }
    }

    /// Measures one size between processes that it starts: its lines, that of the delivery last.
    fn started(&self, shape: Shape, name: &str) -> Result<Vec<Line>, Trouble> {
        let fabric = self.arguments.fabric;
        let node = open_node(name, fabric.rdma().as_ref(), self.setting)?;
        let mut stream = self.start(shape, &node, &fabric.address(&node)?)?;
        let (rates, placement) = match stream.taken_in_turns() {
            Ok(turns) => turns,
            Err(trouble) => return Err(stream.explain(trouble)),
        };
        let line = self.complete(rates.delivered.line("stream", shape.size), fabric, stream.end()?);
        let mut lines = Vec::new();
        if self.arguments.floor {
            let floors = [("memcpy", memcpy(shape.len)), ("floor", rates.bare), ("checked", rates.checked)];
            lines.extend(floors.map(|(mode, rate)| rate.line(mode, shape.size)));
        }
        lines.push(line);
        lines.iter_mut().for_each(|line| line.placement = Some(placement));
        Ok(lines)
    }

    /// Publishes a topic for a stream, and starts the processes that receive it.
    fn start(&self, shape: Shape, node: &Node, address: &Address) -> Result<Stream<'_>, Trouble> {
        let ring = Ring::create(shape.len, shape.capacity)?;
        let records = self.publish(shape, node, TOPIC)?;
        // A process may run where the one that starts it may.
        self.cpus.unpin()?;
        let start = |reader| self.start_reader(shape, reader, (address, &ring));
        let first = start(0)?;
        let others = (1..self.arguments.subscribers).map(start).collect::<Result<_, _>>()?;
        self.cpus.pin_measuring()?;
        let started = Started { interrupt: &self.interrupt, ring, first, others };
        let mut stream = Stream { measurement: self, records, probe: Probe::default(), started };
        match stream.join() {
            Ok(()) => Ok(stream),
            Err(trouble) => Err(stream.explain(trouble)),
        }
    }

    /// Publishes a topic for a stream.
    fn publish(&self, shape: Shape, node: &Node, topic: &str) -> Result<Records<'_>, Trouble> {
        let builder = node.log_publisher::<Raw>(topic).capacity(shape.capacity);
        let publisher = builder.payload_len_max(shape.len).open().map_err(Failure::from)?;
        let batch = vec![0; pattern::words(shape.len) * shape.batch];
        let (interrupt, is_lossy) = (&self.interrupt, self.arguments.stream.lossy);
        Ok(Records { interrupt, shape, is_lossy, publisher, batch, number: 0, received: 0 })
    }

    fn start_reader(
        &self,
        shape: Shape,
        reader: u32,
        (address, ring): (&Address, &Ring),
    ) -> Result<Process, Trouble> {
        let delivery = self.arguments.stream.delivery().to_string();
        let cpus = if reader == 0 { self.cpus.to_string() } else { "any".to_owned() };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(self.setting.as_arguments());
        command.args(["perf", "stream", "--drain", &address.to_string(), "--reader", &reader.to_string()]);
        command.args(["--size", &shape.size.to_string(), "--batch", &shape.batch.to_string()]);
        command.args(["--capacity", &shape.capacity.to_string(), "--delivery", &delivery, "--cpus", &cpus]);
        Process::start("receiving", command, ring.control().file()?)
    }
}

impl Stream<'_> {
    /// Waits until all processes have subscribed.
    fn join(&mut self) -> Result<(), Trouble> {
        let Measurement { arguments, interrupt, .. } = self.measurement;
        let deadline = Deadline::after(Duration::from_secs_f64(arguments.wait));
        let all = u64::from(arguments.subscribers);
        let publisher = &self.records.publisher;
        while publisher.pull_subscribers() + publisher.push_subscribers() < all {
            if deadline.is_over() {
                return Err("not all receiving processes subscribe: give them more time with --wait".into());
            }
            self.started.first.check()?;
            self.started.others.iter_mut().try_for_each(Process::check)?;
            wait(interrupt, Duration::from_millis(1))?;
        }
        Ok(())
    }

    /// Measures floors and delivery in turns: how fast each was, and where the processors were.
    fn taken_in_turns(&mut self) -> Result<(Rates, &'static str), Trouble> {
        let Measurement { arguments, interrupt, .. } = self.measurement;
        let mut rates = Rates::default();
        let Self { records, probe, started, .. } = self;
        probe.begin(started.ring.control(), (&mut started.first, interrupt))?;
        let turns =
            arguments.iterations.map_or(TURNS, |all| all.div_ceil(records.shape.batch as u64).min(TURNS));
        for turn in 0..turns {
            // As many in all as were asked for.
            let share = arguments.iterations.map(|all| all * (turn + 1) / turns - all * turn / turns);
            let extent = (share, Duration::from_secs_f64(arguments.seconds / count(turns)));
            if arguments.floor {
                rates.bare.add(started.floor(records.shape, Phase::Floor, extent)?);
                rates.checked.add(started.floor(records.shape, Phase::Checked, extent)?);
            }
            started.ring.control().set_phase(Phase::Deliver.number());
            rates.delivered.add(records.deliver(extent, started)?);
        }
        let placement = probe.end(started.ring.control(), (&mut started.first, interrupt))?;
        Ok((rates, placement))
    }

    /// The reason of what was noticed: the failure of a process, if that is what it comes from.
    fn explain(&mut self, noticed: Trouble) -> Trouble {
        let noticed = self.started.first.explain(noticed);
        self.started.others.iter_mut().fold(noticed, |noticed, process| process.explain(noticed))
    }

    /// Ends the processes, and takes what they have seen.
    fn end(self) -> Result<Seen, Trouble> {
        let Started { interrupt, ring, first, others } = self.started;
        ring.control().set_phase(Phase::Stop.number());
        std::iter::once(first).chain(others).map(|process| process.end(interrupt)).sum()
    }
}

impl Started<'_> {
    /// Sends values through the ring, as many as asked for or as the time allows, until all are received: bare ones, or such
    /// as are written whole and checked.
    fn floor(
        &mut self,
        shape: Shape,
        phase: Phase,
        (share, time): (Option<u64>, Duration),
    ) -> Result<Rate, Trouble> {
        let Self { interrupt, ring, first, .. } = self;
        ring.control().set_phase(phase.number());
        let is_checked = phase == Phase::Checked;
        let (words, batch) = (pattern::words(shape.len), shape.batch as u64);
        let mut value = vec![0x5555_5555_5555_5555; words];
        let (began, all) = (now(), share.unwrap_or(u64::MAX));
        let end = share.is_none().then_some(began + time);
        let mut sent = 0;
        while sent < all && shape.goes_on(sent / batch, end, interrupt) {
            let until = all.min(sent + batch);
            while sent < until {
                if is_checked {
                    pattern::write(&mut value, ring.count())
                } else {
                    mark(&mut value, sent)
                }
                let mut patience = Patience::default();
                while !(if is_checked { ring.try_send_checked(&value) } else { ring.try_send(&value) }) {
                    ring.commit();
                    patience.look_at(first, interrupt)?;
                }
                sent += 1;
            }
            ring.commit();
        }
        let mut patience = Patience::default();
        while !ring.is_drained() {
            patience.look_at(first, interrupt)?;
        }
        Ok(Rate { number: sent, time: began.elapsed() })
    }
}

impl Receivers for Started<'_> {
    #[inline]
    fn progress(&mut self) -> Result<u64, Trouble> {
        let readers = 0..=self.others.len();
        Ok(readers.map(|reader| self.ring.control().progress(reader)).min().unwrap_or(0))
    }

    #[inline]
    fn look(&mut self, patience: &mut Patience) -> Result<(), Trouble> {
        patience.look_at(&mut self.first, self.interrupt)?;
        if patience.is_waiting() { self.others.iter_mut().try_for_each(Process::check) } else { Ok(()) }
    }
}

impl Records<'_> {
    /// Publishes records, as many as asked for or as the time allows, until all are received.
    fn deliver(
        &mut self,
        (share, time): (Option<u64>, Duration),
        receivers: &mut impl Receivers,
    ) -> Result<Rate, Trouble> {
        let shape = self.shape;
        let (words, first, batch) = (pattern::words(shape.len), self.number, shape.batch as u64);
        let (began, last) = (now(), share.map_or(u64::MAX, |share| first + share));
        let end = share.is_none().then_some(began + time);
        while self.number < last && shape.goes_on((self.number - first) / batch, end, self.interrupt) {
            let records = usize::try_from((last - self.number).min(batch))?;
            self.make_room(records as u64, receivers)?;
            let (batch, _) = self.batch.split_at_mut(words * records);
            for record in batch.chunks_exact_mut(words) {
                self.number += 1;
                pattern::write(record, self.number);
            }
            let bytes = |record| bytemuck::cast_slice::<u64, u8>(record).split_at(shape.len).0;
            self.publisher.publish_batch(batch.chunks_exact(words).map(bytes))?;
        }
        self.await_receipt(self.number, receivers)?;
        Ok(Rate { number: self.number - first, time: began.elapsed() })
    }

    /// Waits until so many records can be published without overwriting one that was not received.
    #[inline]
    fn make_room(&mut self, records: u64, receivers: &mut impl Receivers) -> Result<(), Trouble> {
        let window = self.shape.window() as u64;
        if self.is_lossy || self.number + records <= self.received + window {
            return Ok(());
        }
        self.await_receipt(self.number + records - window, receivers)
    }

    /// Waits until all have received everything up to this record, or were told that it is lost.
    fn await_receipt(&mut self, number: u64, receivers: &mut impl Receivers) -> Result<(), Trouble> {
        let mut patience = Patience::default();
        loop {
            let received = receivers.progress()?;
            if received != self.received {
                // As long as it goes on it may take as long as it takes.
                (self.received, patience) = (received, Patience::default());
            }
            if received >= number {
                return Ok(());
            }
            receivers.look(&mut patience)?;
            std::hint::spin_loop();
        }
    }
}

impl Rate {
    fn add(&mut self, other: Self) {
        self.number += other.number;
        self.time += other.time;
    }

    fn line(&self, mode: &'static str, size: u32) -> Line {
        let seconds = self.time.as_secs_f64().max(f64::MIN_POSITIVE);
        Line::of_rate(mode, size, self.number, count(self.number) / seconds)
    }
}

/// How fast this processor copies so many bytes from one place to another, over and over.
fn memcpy(len: usize) -> Rate {
    // Apart by half a page more than whole ones: a processor takes a load for one of what was stored a page before.
    let apart = len.next_multiple_of(PAGE) + PAGE / 2;
    let mut memory = vec![0x55_u8; apart + len];
    let (source, target) = memory.split_at_mut(apart);
    let (source, _) = source.split_at(len);
    let (began, turn) = (now(), (MEMCPY_LEN / len.max(1)).max(1) as u64);
    let mut rate = Rate::default();
    while rate.time < MEMCPY {
        (0..turn).for_each(|_| black_box(&mut *target).copy_from_slice(black_box(source)));
        rate = Rate { number: rate.number + turn, time: began.elapsed() };
    }
    rate
}
