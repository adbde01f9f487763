use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fabricast::measure::Floor;
use fabricast::{Address, Node, Raw, ReceiveError, StatePublisher, StateSubscriber, SubscriberStats};

use super::super::clock::{Deadline, now};
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::setting::{Setting, check_fabric};
use super::cpus::Cpus;
use super::echo::Seen;
use super::line::{Durations, Line, count};
use super::{Arguments, PONG, Phase, Trouble, mark, marked, measuring_name, open_node};

/// How long the other process has to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Empty looks between two looks at the clock.
const LOOKS: u32 = 1 << 20;
/// Turns in which floor and delivery are measured, one after the other.
const TURNS: u64 = 10;
/// Round trips before each turn that do not count.
const WARM_UP: u64 = 50;
/// Round trips between two looks whether the process was asked to end.
const LOOK_FOR_INTERRUPT: u64 = 256;
/// Round trips of a probe.
const PROBES: u64 = 20_000;
/// A line goes to and fro faster than this between processors that share a cache.
const NEAR_NS: u64 = 250;

/// The two ends that this process holds.
struct Ping {
    value: Vec<u64>,
    len: usize,
    number: u64,
    publisher: StatePublisher<Raw>,
    subscriber: StateSubscriber<Raw>,
    seen: Seen,
}

/// The process that answers. Ended when dropped.
struct Answering {
    child: Child,
    output: BufReader<ChildStdout>,
    floor: Floor,
    stamp: u64,
    probe: u64,
}

/// What all sizes have in common.
struct Measurement<'a> {
    arguments: &'a Arguments,
    setting: &'a Setting,
    cpus: Cpus,
    interrupt: Interrupt,
}

/// Measures, prints a line a size, and says by the exit code whether every value was right.
pub(super) fn measure(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    let cpus = arguments.cpus.settled();
    cpus.pin_measuring()?;
    let measurement = Measurement { arguments, setting, cpus, interrupt: Interrupt::install()? };
    let mut heading = (!arguments.json).then(Line::heading);
    let mut right = true;
    for (index, size) in arguments.size.iter().enumerate() {
        let lines = match &arguments.connect {
            Some(address) => vec![measurement.connected(*size, address)?],
            None => measurement.started(*size, &format!("perf-{}-{index}", std::process::id()))?,
        };
        if measurement.interrupt.came() {
            return Ok(Exit::Done);
        }
        if let Some(heading) = heading.take() {
            writeln!(std::io::stdout(), "{heading}")?;
        }
        for line in lines {
            right &= line.rejected.unwrap_or(0) == 0;
            let text = if arguments.json { serde_json::to_string(&line)? } else { line.text() };
            writeln!(std::io::stdout(), "{text}")?;
        }
    }
    if !right {
        return Err(Failure::new(Exit::No, "some values were not what was published: see `rejected`").into());
    }
    Ok(Exit::Done)
}

impl Measurement<'_> {
    /// Measures one size against a process that somebody else has started.
    fn connected(&self, size: u32, address: &Address) -> Result<Line, Trouble> {
        check_fabric(address)?;
        let answering = address.to_string();
        let name = answering.strip_prefix("shm:").unwrap_or(&answering);
        let mut ping = self.subscribe(size, name, self.publish(size, name)?)?;
        ping.warm_up()?;
        let mut durations = Durations::new();
        let Arguments { iterations, seconds, .. } = *self.arguments;
        timed(&mut durations, (iterations, seconds), &self.interrupt, || ping.round_trip())?;
        let mut line = durations.line(self.arguments.mode.name(), size);
        ping.complete(&mut line, Seen::default());
        line.connect = Some(answering);
        Ok(line)
    }

    /// Measures one size against a process that this one starts.
    fn started(&self, size: u32, name: &str) -> Result<Vec<Line>, Trouble> {
        let published = self.publish(size, name)?;
        let mut answering = self.start(size, name)?;
        let mut ping = self.subscribe(size, name, published)?;
        let before = answering.probe()?;
        let (mut floor, mut delivery) = (Durations::new(), Durations::new());
        let Arguments { iterations, seconds, .. } = *self.arguments;
        let turns = iterations.map_or(TURNS, |iterations| iterations.min(TURNS));
        for turn in 0..turns {
            // As many in all as were asked for.
            let share = iterations.map(|all| all * (turn + 1) / turns - all * turn / turns);
            let extent = (share, seconds / count(turns));
            if self.arguments.floor {
                answering.floor.set_phase(Phase::Floor.number());
                let mut answer = vec![0; ping.value.len()];
                (0..WARM_UP).try_for_each(|_| answering.round_trip(&mut ping.value, &mut answer))?;
                timed(&mut floor, extent, &self.interrupt, || {
                    answering.round_trip(&mut ping.value, &mut answer)
                })?;
            }
            answering.floor.set_phase(Phase::Deliver.number());
            ping.warm_up()?;
            timed(&mut delivery, extent, &self.interrupt, || ping.round_trip())?;
        }
        let placement = match (before, answering.probe()?) {
            (true, true) => "near",
            (false, false) => "far",
            _ => "mixed",
        };
        let mut line = delivery.line(self.arguments.mode.name(), size);
        ping.complete(&mut line, answering.stop()?);
        let mut lines = vec![line];
        if self.arguments.floor {
            lines.insert(0, floor.line("floor", size));
        }
        lines.iter_mut().for_each(|line| line.placement = Some(placement));
        Ok(lines)
    }

    /// Starts the process that answers.
    fn start(&self, size: u32, name: &str) -> Result<Answering, Trouble> {
        let floor = Floor::create(size as usize)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(self.setting.as_arguments());
        command.args(["perf", self.arguments.mode.name(), "--serve", "--node", name]);
        command.args(["--floor-len", &size.to_string(), "--slots", &self.arguments.slots.to_string()]);
        command.args(["--cpus", &self.cpus.to_string()]);
        command.stdin(Stdio::from(floor.file()?)).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("the answering process has no output")?;
        Ok(Answering { child, output: BufReader::new(output), floor, stamp: 0, probe: 0 })
    }

    /// Publishes for the node of this name to subscribe.
    fn publish(&self, size: u32, answering: &str) -> Result<(Node, StatePublisher<Raw>), Trouble> {
        let node = open_node(&measuring_name(answering), self.setting)?;
        let publisher = node.state_publisher::<Raw>(self.arguments.mode.name()).slots(self.arguments.slots);
        let publisher = publisher.payload_len_max(size as usize).open().map_err(Failure::from)?;
        Ok((node, publisher))
    }

    /// Subscribes to the answers of the node of this name, and waits until it subscribes too.
    fn subscribe(
        &self,
        size: u32,
        answering: &str,
        (node, publisher): (Node, StatePublisher<Raw>),
    ) -> Result<Ping, Trouble> {
        let (mode, len) = (self.arguments.mode, size as usize);
        let target = format!("shm:{answering}/{PONG}");
        let deadline = Deadline::after(Duration::from_secs_f64(self.arguments.wait));
        let subscriber = loop {
            match node.state_subscriber::<Raw>(&target).delivery(mode.delivery()).open() {
                Ok(subscriber) => break subscriber,
                Err(error) if deadline.is_over() => return Err(Failure::from(error).into()),
                Err(_) => drop(self.interrupt.pause(Duration::from_millis(5))),
            }
        };
        while publisher.pull_subscribers() + publisher.push_subscribers() == 0 {
            if deadline.is_over() {
                return Err("the answering process does not subscribe: end it, and start it again".into());
            }
            self.interrupt.pause(Duration::from_millis(1));
        }
        let value = vec![0x5555_5555_5555_5555; len.div_ceil(size_of::<u64>())];
        Ok(Ping { value, len, number: 0, publisher, subscriber, seen: Seen::default() })
    }
}

impl Ping {
    fn warm_up(&mut self) -> Result<(), Trouble> {
        (0..WARM_UP).try_for_each(|_| self.round_trip())
    }

    #[inline]
    fn round_trip(&mut self) -> Result<(), Trouble> {
        self.number += 1;
        mark(&mut self.value, self.number);
        let bytes: &[u8] = bytemuck::cast_slice(&self.value);
        self.publisher.publish(bytes.split_at(self.len).0)?;
        let mut looks = 0;
        let mut began = None;
        loop {
            match self.subscriber.try_receive_ref() {
                Ok(Some(sample)) => {
                    self.seen.verified += 1;
                    self.seen.rejected += u64::from(marked(sample.bytes, self.len) != Some(self.number));
                    return Ok(());
                }
                Ok(None) | Err(ReceiveError::Contended { .. }) => {
                    looks += 1;
                    if looks % LOOKS == 0 && began.get_or_insert_with(now).elapsed() > PATIENCE {
                        return Err("the answering process has stopped answering".into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Adds to a line what both ends have counted.
    fn complete(&self, line: &mut Line, other: Seen) {
        let SubscriberStats { torn_retries, conflated, rejected, .. } = self.subscriber.stats();
        line.torn_retries = Some(torn_retries + other.torn_retries);
        line.lost = Some(conflated + other.lost);
        line.rejected = Some(rejected + self.seen.rejected + other.rejected);
        line.verified = Some(self.seen.verified - self.seen.rejected + other.verified);
    }
}

impl Answering {
    /// Whether the two processors share a cache.
    fn probe(&mut self) -> Result<bool, Trouble> {
        self.floor.set_phase(Phase::Probe.number());
        let mut durations = Durations::new();
        for _ in 0..PROBES {
            let began = now();
            self.probe += 1;
            self.floor.pass(0, self.probe);
            let (floor, probe) = (&self.floor, self.probe);
            await_answer(|| floor.passed(1) == probe)?;
            durations.record(nanoseconds(began));
        }
        Ok(durations.line("probe", 0).p50_ns < NEAR_NS)
    }

    /// A round trip of the floor.
    #[inline]
    fn round_trip(&mut self, value: &mut [u64], answer: &mut [u64]) -> Result<(), Trouble> {
        self.stamp += 1;
        mark(value, self.stamp);
        self.floor.send(0, self.stamp, value);
        await_answer(|| self.floor.try_receive(1, self.stamp, answer))
    }

    /// Ends the process, and takes what it counted.
    fn stop(mut self) -> Result<Seen, Trouble> {
        self.floor.set_phase(Phase::Stop.number());
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.floor.set_phase(Phase::Stop.number());
        // It ends by itself unless something is wrong with it; killing what has ended fails, and does no harm.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeats round trips, as many as asked for or as the time allows, and records how long each takes.
fn timed(
    durations: &mut Durations,
    (iterations, seconds): (Option<u64>, f64),
    interrupt: &Interrupt,
    mut round_trip: impl FnMut() -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let end = now() + Duration::from_secs_f64(seconds);
    for number in 0..iterations.unwrap_or(u64::MAX) {
        let began = now();
        let over = iterations.is_none() && began >= end;
        if over || (number % LOOK_FOR_INTERRUPT == 0 && interrupt.came()) {
            break;
        }
        round_trip()?;
        durations.record(nanoseconds(began));
    }
    Ok(())
}

/// Looks for the answer until it is there.
#[inline]
fn await_answer(mut answered: impl FnMut() -> bool) -> Result<(), Trouble> {
    let mut looks = 0;
    let mut began = None;
    while !answered() {
        looks += 1;
        if looks % LOOKS == 0 && began.get_or_insert_with(now).elapsed() > PATIENCE {
            return Err("the answering process has stopped answering".into());
        }
    }
    Ok(())
}

fn nanoseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
