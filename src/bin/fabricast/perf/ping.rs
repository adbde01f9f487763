use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fabricast::measure::Floor;
use fabricast::{Address, Raw, ReceiveError, StatePublisher, StateSubscriber, SubscriberStats};

use super::super::failure::Exit;
use super::super::setting::Setting;
use super::echo::Seen;
use super::line::{Durations, Line};
use super::{Arguments, Phase, Trouble, mark, marked, measuring_name, open_node};

/// How long the other process has to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Empty looks between two looks at the clock.
const LOOKS: u32 = 1 << 20;
/// Turns in which floor and delivery are measured, one after the other.
const TURNS: u64 = 10;
/// Round trips before each turn that do not count.
const WARM_UP: u64 = 50;
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

/// Measures, prints a line a size, and says by the exit code whether every value was right.
pub(super) fn measure(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    arguments.cpus.pin_measuring()?;
    if !arguments.json {
        writeln!(std::io::stdout(), "{}", Line::heading())?;
    }
    let mut right = true;
    for (index, size) in arguments.size.iter().enumerate() {
        let lines = match &arguments.connect {
            Some(address) => vec![measure_connected(arguments, setting, *size, address)?],
            None => {
                let name = format!("perf-{}-{index}", std::process::id());
                measure_started(arguments, setting, *size, &name)?
            }
        };
        for line in lines {
            right &= line.rejected.unwrap_or(0) == 0;
            let text = if arguments.json { serde_json::to_string(&line)? } else { line.text() };
            writeln!(std::io::stdout(), "{text}")?;
        }
    }
    if !right {
        eprintln!("fabricast: some values were not what was published: see `rejected`");
    }
    Ok(if right { Exit::Done } else { Exit::No })
}

/// Measures one size against a process that somebody else has started.
fn measure_connected(
    arguments: &Arguments,
    setting: &Setting,
    size: u32,
    address: &Address,
) -> Result<Line, Trouble> {
    let answering = address.to_string();
    let name = answering.strip_prefix("shm:").ok_or("perf measures shm: addresses only in this version")?;
    let mut ping = Ping::open(arguments, setting, size, name)?;
    ping.warm_up()?;
    let mut durations = Durations::new();
    ping.turn(&mut durations, arguments.iterations, arguments.seconds)?;
    let mut line = durations.line(arguments.mode.name(), size);
    ping.complete(&mut line, Seen::default());
    Ok(line)
}

/// Measures one size against a process that this one starts.
fn measure_started(
    arguments: &Arguments,
    setting: &Setting,
    size: u32,
    name: &str,
) -> Result<Vec<Line>, Trouble> {
    let mut answering = Answering::start(arguments, setting, size, name)?;
    let mut ping = Ping::open(arguments, setting, size, name)?;
    let mut placements = vec![answering.probe()?];
    let (mut floor, mut delivery) = (Durations::new(), Durations::new());
    let turns = arguments.iterations.map_or(TURNS, |iterations| iterations.min(TURNS));
    let iterations = arguments.iterations.map(|iterations| iterations.div_ceil(turns));
    #[expect(clippy::cast_precision_loss, reason = "ten turns at most")]
    let seconds = arguments.seconds / turns as f64;
    for _ in 0..turns {
        if arguments.floor {
            answering.turn(&mut floor, iterations, seconds, &mut ping.value)?;
        }
        answering.floor.set_phase(Phase::Deliver.number());
        ping.warm_up()?;
        ping.turn(&mut delivery, iterations, seconds)?;
    }
    placements.push(answering.probe()?);
    let placement = match placements.iter().filter(|near| **near).count() {
        0 => "far",
        1 => "mixed",
        _ => "near",
    };
    let seen = answering.stop()?;
    let mut line = delivery.line(arguments.mode.name(), size);
    ping.complete(&mut line, seen);
    let mut lines = vec![line];
    if arguments.floor {
        lines.insert(0, floor.line("floor", size));
    }
    lines.iter_mut().for_each(|line| line.placement = Some(placement));
    Ok(lines)
}

impl Ping {
    /// Publishes for the node of this name to subscribe, and subscribes to its answers.
    fn open(arguments: &Arguments, setting: &Setting, size: u32, answering: &str) -> Result<Self, Trouble> {
        let node = open_node(&measuring_name(answering), setting)?;
        let len = size as usize;
        let publisher = node.state_publisher::<Raw>(arguments.mode.name());
        let publisher = publisher.slots(arguments.slots).payload_len_max(len).open()?;
        let target = format!("shm:{answering}/pong");
        let began = now();
        let subscriber = loop {
            let builder = node.state_subscriber::<Raw>(&target).delivery(arguments.mode.delivery());
            match builder.open() {
                Ok(subscriber) => break subscriber,
                Err(error) if began.elapsed() > PATIENCE => return Err(error.into()),
                Err(_) => std::thread::park_timeout(Duration::from_millis(5)),
            }
        };
        while publisher.pull_subscribers() + publisher.push_subscribers() == 0 {
            if began.elapsed() > PATIENCE {
                return Err(
                    "the answering process does not subscribe: is it `fabricast perf MODE --serve`?".into()
                );
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let value = vec![0x5555_5555_5555_5555; len.div_ceil(size_of::<u64>())];
        Ok(Self { value, len, number: 0, publisher, subscriber, seen: Seen::default() })
    }

    fn warm_up(&mut self) -> Result<(), Trouble> {
        (0..WARM_UP).try_for_each(|_| self.round_trip())
    }

    /// Round trips, as many as asked for or as the time allows.
    fn turn(
        &mut self,
        durations: &mut Durations,
        iterations: Option<u64>,
        seconds: f64,
    ) -> Result<(), Trouble> {
        timed(durations, iterations, seconds, || self.round_trip())
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
    fn start(arguments: &Arguments, setting: &Setting, size: u32, name: &str) -> Result<Self, Trouble> {
        let floor = Floor::create(size as usize)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(setting.as_arguments());
        command.args(["perf", arguments.mode.name(), "--serve", "--node", name]);
        command.args(["--floor-len", &size.to_string(), "--slots", &arguments.slots.to_string()]);
        command.args(["--cpus", &arguments.cpus.to_string()]);
        command.stdin(Stdio::from(floor.file()?)).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("the answering process has no output")?;
        Ok(Self { child, output: BufReader::new(output), floor, stamp: 0, probe: 0 })
    }

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

    /// Round trips of the floor, as many as asked for or as the time allows.
    fn turn(
        &mut self,
        durations: &mut Durations,
        iterations: Option<u64>,
        seconds: f64,
        value: &mut [u64],
    ) -> Result<(), Trouble> {
        self.floor.set_phase(Phase::Floor.number());
        let Self { floor, stamp, .. } = self;
        let mut answer = vec![0; value.len()];
        let mut round_trip = || {
            *stamp += 1;
            mark(value, *stamp);
            floor.send(0, *stamp, value);
            await_answer(|| floor.try_receive(1, *stamp, &mut answer))
        };
        (0..WARM_UP).try_for_each(|_| round_trip())?;
        timed(durations, iterations, seconds, round_trip)
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
    iterations: Option<u64>,
    seconds: f64,
    mut round_trip: impl FnMut() -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let end = now() + Duration::from_secs_f64(seconds);
    let mut left = iterations.unwrap_or(u64::MAX);
    loop {
        let began = now();
        if left == 0 || (iterations.is_none() && began >= end) {
            return Ok(());
        }
        round_trip()?;
        durations.record(nanoseconds(began));
        left -= 1;
    }
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

#[expect(
    clippy::disallowed_methods,
    reason = "the library's clock is not part of its interface; this one only measures"
)]
fn now() -> Instant {
    Instant::now()
}

fn nanoseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
