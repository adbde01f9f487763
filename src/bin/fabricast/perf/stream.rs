use std::hint::black_box;
use std::time::Duration;

use fabricast::measure::Ring;
use fabricast::{Address, Gating, LogPublisher, Node, Raw, SlowPolicy};

use super::super::clock::now;
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::output::count;
use super::super::setting::Setting;
use super::arguments::{Arguments, Contents, FabricName};
use super::line::{Line, Seen};
use super::measurement::{Measurement, name_beside};
use super::probe::{AnswerWait, Probe};
use super::process::{Phase, Process, command};
use super::records::{Receivers, StreamSizes, TOPIC};
use super::remote::Remote;
use super::trouble::Trouble;
use super::{drain, pattern, remote};

/// Alternations of floor and delivery.
const TURNS: u64 = 10;
/// How long the publisher waits for a subscriber that runs.
const GATING_TIMEOUT: Duration = Duration::from_secs(60);
/// How long memcpy is measured.
const MEMCPY: Duration = Duration::from_millis(100);
/// Bytes copied between two checks of the time.
const MEMCPY_LEN: usize = 1 << 20;
/// A processor at first compares addresses only up to this size.
const PAGE: usize = 4096;

/// Streams of all sizes.
struct Streams<'a>(Measurement<'a>);

/// A stream of one size, and its receiving processes.
struct Stream<'a> {
    measurement: &'a Measurement<'a>,
    records: Records<'a>,
    probe: Probe,
    started: Started<'a>,
}

/// The records of a stream, and their publisher.
struct Records<'a> {
    interrupt: &'a Interrupt,
    shape: StreamSizes,
    is_unpaced: bool,
    publisher: LogPublisher<Raw>,
    /// The records of a batch.
    batch: Vec<u64>,
    number: u64,
    /// The last known progress of all receivers.
    received: u64,
}

/// The receiving processes started here. Ended when dropped.
struct Started<'a> {
    interrupt: &'a Interrupt,
    ring: Ring,
    /// The process that is probed and measures the floor, and the others.
    first: Process,
    others: Vec<Process>,
}

/// How many values took how much time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    number: u64,
    time: Duration,
}

/// The rates of records, and of values through the rings for comparison.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    bare: Rate,
    checked: Rate,
    delivered: Rate,
}

/// Measures, or receives for a measuring process.
pub(super) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    match &arguments.stream.drain {
        Some(from) => drain::drain(arguments, setting, from),
        None if arguments.serve => remote::serve(arguments, setting),
        None => measure(arguments, setting),
    }
}

/// Whether every record arrived as published, or was reported lost where allowed.
fn is_right(line: &Line, may_lose: bool) -> bool {
    let Some(verified) = line.verified else { return true };
    let (lost, rejected) = (line.lost.unwrap_or(0), line.rejected.unwrap_or(0));
    let is_all = verified + lost == line.iterations * u64::from(line.subscribers);
    is_all && rejected == 0 && (lost == 0 || may_lose)
}

/// Measures and prints the lines of each size. The exit code says whether every record was right.
fn measure(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    let shapes = arguments.size.iter().map(|size| StreamSizes::of(arguments, *size));
    let shapes = shapes.collect::<Result<Vec<_>, _>>()?;
    if arguments.connect.is_some() && arguments.subscribers > 1 {
        let sentence = "perf stream --connect measures one subscriber: omit --subscribers";
        return Err(Failure::usage(sentence).into());
    }
    let streams = Streams(Measurement::begin(arguments, setting)?);
    let lines = |shape: StreamSizes, name: &str| match &arguments.connect {
        Some(address) => Ok(vec![streams.connected(shape, address)?]),
        None => streams.started(shape, name),
    };
    let is_right = |line: &Line| is_right(line, arguments.stream.may_lose());
    let wrong = |line: &Line| match line.rejected {
        Some(1..) if arguments.connect.is_some() => {
            line.wrong_records() + "; if the other process has other --contents, pass the same to both"
        }
        _ => line.wrong_records(),
    };
    streams.0.print("records", shapes, lines, (is_right, wrong))
}

impl Streams<'_> {
    /// Measures one size against a running process.
    fn connected(&self, shape: StreamSizes, address: &Address) -> Result<Line, Trouble> {
        let name = name_beside(address, "stream");
        let (fabric, delivery) = (FabricName::of(address), self.0.arguments.delivery());
        let node = self.0.setting.measuring_node(&name, self.0.arguments.listening().as_ref())?;
        let mut records = self.publish(shape, &node, remote::topic(delivery))?;
        let mut remote = Remote::dial(&self.0, (&node, &records.publisher), address)?;
        let Arguments { iterations, seconds, .. } = *self.0.arguments;
        let rate = records.deliver((iterations, Duration::from_secs_f64(seconds)), &mut remote)?;
        let line = rate.line("stream", shape.size).of_contents(shape.contents);
        Ok(Line { connect: Some(address.to_string()), ..self.0.complete(line, fabric, remote.seen()) })
    }

    /// Measures one size with processes started here. Returns the lines, the delivery's last.
    fn started(&self, shape: StreamSizes, name: &str) -> Result<Vec<Line>, Trouble> {
        let fabric = self.0.arguments.fabric();
        let node = self.0.setting.measuring_node(name, self.0.arguments.listening().as_ref())?;
        let mut stream = self.start(shape, &node, &fabric.address(&node)?)?;
        let (rates, placement) = match stream.alternate() {
            Ok(turns) => turns,
            Err(trouble) => return Err(stream.explain(trouble)),
        };
        let (size, contents) = (shape.size, shape.contents);
        let delivered = rates.delivered.line("stream", size).of_contents(contents);
        let line = self.0.complete(delivered, fabric, stream.end()?);
        let mut lines = Vec::new();
        if self.0.arguments.floor {
            lines.push(memcpy(shape.len).line("memcpy", size));
            lines.push(rates.bare.line("floor", size).of_contents(Contents::Number));
            lines.push(rates.checked.line("checked", size).of_contents(contents));
        }
        lines.push(line);
        lines.iter_mut().for_each(|line| line.placement = Some(placement));
        Ok(lines)
    }

    /// Publishes a topic for a stream, and starts its receivers.
    fn start(&self, shape: StreamSizes, node: &Node, address: &Address) -> Result<Stream<'_>, Trouble> {
        let ring = Ring::create(shape.len, shape.capacity)?;
        let records = self.publish(shape, node, TOPIC)?;
        // A process may run where the one that starts it may.
        self.0.cpus.unpin()?;
        let start = |reader| self.start_reader(shape, reader, (address, &ring));
        let first = start(0)?;
        let others = (1..self.0.arguments.subscribers).map(start).collect::<Result<_, _>>()?;
        self.0.cpus.pin_measuring()?;
        let started = Started { interrupt: &self.0.interrupt, ring, first, others };
        let mut stream = Stream { measurement: &self.0, records, probe: Probe::default(), started };
        match stream.join() {
            Ok(()) => Ok(stream),
            Err(trouble) => Err(stream.explain(trouble)),
        }
    }

    /// Publishes a topic for a stream.
    fn publish(&self, shape: StreamSizes, node: &Node, topic: &str) -> Result<Records<'_>, Trouble> {
        let Arguments { stream, connect, .. } = self.0.arguments;
        let builder = node.log_publisher::<Raw>(topic).capacity(shape.capacity);
        // A running process attaches with any policy: it shows its policy only then.
        let builder = match stream.policy() {
            SlowPolicy::Lap if connect.is_none() => builder,
            _ => builder.gating(Gating::new().timeout(GATING_TIMEOUT)),
        };
        let publisher = builder.payload_len_max(shape.len).open().map_err(Failure::from)?;
        let batch = vec![0; pattern::words(shape.len) * shape.batch];
        let (interrupt, is_unpaced) = (&self.0.interrupt, stream.is_unpaced());
        Ok(Records { interrupt, shape, is_unpaced, publisher, batch, number: 0, received: 0 })
    }

    fn start_reader(
        &self,
        shape: StreamSizes,
        reader: u32,
        (address, ring): (&Address, &Ring),
    ) -> Result<Process, Trouble> {
        let delivery = self.0.arguments.delivery().to_string();
        let cpus = if reader == 0 { self.0.cpus.to_string() } else { "any".to_owned() };
        let mut command = command(self.0.setting, self.0.arguments.mode)?;
        command.args(["--drain", &address.to_string(), "--reader", &reader.to_string()]);
        command.args(["--size", &shape.size.to_string(), "--batch", &shape.batch.to_string()]);
        command.args(["--capacity", &shape.capacity.to_string(), "--delivery", &delivery, "--cpus", &cpus]);
        if self.0.arguments.stream.policy.is_some() {
            command.args(["--policy", &self.0.arguments.stream.policy().to_string()]);
        }
        if self.0.arguments.stream.in_place {
            command.arg("--in-place");
        }
        if shape.contents == Contents::Number {
            command.args(["--contents", "number"]);
        }
        Process::start("receiving", command, ring.control().file()?)
    }
}

impl Stream<'_> {
    /// Waits until all processes have subscribed.
    fn join(&mut self) -> Result<(), Trouble> {
        let Self { measurement, records, started, .. } = self;
        let all = u64::from(measurement.arguments.subscribers);
        let subscribers = || records.publisher.pull_subscribers() + records.publisher.push_subscribers();
        measurement.await_subscribers(all, subscribers, "receiving", || {
            started.first.check()?;
            started.others.iter_mut().try_for_each(Process::check)
        })
    }

    /// Alternates floors and delivery. Returns the rates and the placement.
    fn alternate(&mut self) -> Result<(Rates, &'static str), Trouble> {
        let Measurement { arguments, interrupt, .. } = self.measurement;
        let mut rates = Rates::default();
        let Self { records, probe, started, .. } = self;
        probe.begin(started.ring.control(), (&mut started.first, interrupt))?;
        let turns =
            arguments.iterations.map_or(TURNS, |all| all.div_ceil(records.shape.batch as u64).min(TURNS));
        for turn in 0..turns {
            // As many in total as requested.
            let share = arguments.iterations.map(|all| all * (turn + 1) / turns - all * turn / turns);
            let extent = (share, Duration::from_secs_f64(arguments.seconds / count(turns)));
            if arguments.floor {
                rates.bare.add(started.floor(records.shape, Phase::Floor, extent)?);
                rates.checked.add(started.floor(records.shape, Phase::Checked, extent)?);
            }
            started.begin(Phase::Deliver)?;
            rates.delivered.add(records.deliver(extent, started)?);
        }
        let placement = probe.end(started.ring.control(), (&mut started.first, interrupt))?;
        Ok((rates, placement))
    }

    /// The failure of a process, if it explains `noticed`; otherwise `noticed`.
    fn explain(&mut self, noticed: Trouble) -> Trouble {
        let noticed = self.started.first.explain(noticed);
        self.started.others.iter_mut().fold(noticed, |noticed, process| process.explain(noticed))
    }

    /// Ends the processes, and returns their counts.
    fn end(self) -> Result<Seen, Trouble> {
        let Started { interrupt, ring, first, others } = self.started;
        ring.control().set_phase(Phase::Stop.number());
        std::iter::once(first).chain(others).map(|process| process.end(interrupt)).sum()
    }
}

impl Started<'_> {
    /// Begins a phase, and waits until the first reader has entered it: it must not receive with the checks of the phase before.
    fn begin(&mut self, phase: Phase) -> Result<(), Trouble> {
        self.ring.control().set_phase(phase.number());
        let mut wait = AnswerWait::default();
        while self.ring.control().entered() != phase.number() {
            wait.empty_poll_of(&mut self.first, self.interrupt)?;
        }
        Ok(())
    }

    /// Sends values through the ring, as many as requested or as the time allows, until all are received; bare ones, or fully
    /// written and checked ones.
    fn floor(
        &mut self,
        shape: StreamSizes,
        phase: Phase,
        (share, time): (Option<u64>, Duration),
    ) -> Result<Rate, Trouble> {
        self.begin(phase)?;
        let Self { interrupt, ring, first, .. } = self;
        let is_checked = phase == Phase::Checked;
        let contents = if is_checked { shape.contents } else { Contents::Number };
        let (words, batch) = (pattern::words(shape.len), shape.batch as u64);
        let mut value = vec![0x5555_5555_5555_5555; words];
        let (began, all) = (now(), share.unwrap_or(u64::MAX));
        let end = share.is_none().then_some(began + time);
        let mut sent = 0;
        while sent < all && shape.goes_on(sent / batch, end, interrupt) {
            let until = all.min(sent + batch);
            while sent < until {
                contents.write(&mut value, ring.count());
                let mut wait = AnswerWait::default();
                while !(if is_checked { ring.try_send_checked(&value) } else { ring.try_send(&value) }) {
                    ring.commit();
                    wait.empty_poll_of(first, interrupt)?;
                }
                sent += 1;
            }
            ring.commit();
        }
        let mut wait = AnswerWait::default();
        while !ring.is_drained() {
            wait.empty_poll_of(first, interrupt)?;
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
    fn empty_poll(&mut self, wait: &mut AnswerWait) -> Result<(), Trouble> {
        wait.empty_poll_of(&mut self.first, self.interrupt)?;
        if wait.is_waiting() { self.others.iter_mut().try_for_each(Process::check) } else { Ok(()) }
    }
}

impl Records<'_> {
    /// Publishes records, as many as requested or as the time allows, until all are received.
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
                shape.contents.write(record, self.number);
            }
            let bytes = |record| bytemuck::cast_slice::<u64, u8>(record).split_at(shape.len).0;
            self.publisher.publish_batch(batch.chunks_exact(words).map(bytes))?;
        }
        self.await_receipt(self.number, receivers)?;
        Ok(Rate { number: self.number - first, time: began.elapsed() })
    }

    /// Waits until so many records can be published without overwriting an unreceived one.
    #[inline]
    fn make_room(&mut self, records: u64, receivers: &mut impl Receivers) -> Result<(), Trouble> {
        let window = self.shape.window() as u64;
        if self.is_unpaced || self.number + records <= self.received + window {
            return Ok(());
        }
        self.await_receipt(self.number + records - window, receivers)
    }

    /// Waits until all have received this record or reported it lost.
    fn await_receipt(&mut self, number: u64, receivers: &mut impl Receivers) -> Result<(), Trouble> {
        let mut wait = AnswerWait::default();
        loop {
            let received = receivers.progress()?;
            if received != self.received {
                // The timeout restarts with every progress.
                (self.received, wait) = (received, AnswerWait::default());
            }
            if received >= number {
                return Ok(());
            }
            receivers.empty_poll(&mut wait)?;
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

/// How fast this processor copies so many bytes, over and over.
fn memcpy(len: usize) -> Rate {
    // Half a page off: a processor takes a load for one of data stored a whole page before.
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
