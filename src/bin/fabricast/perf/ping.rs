use std::time::Duration;

use fabricast::measure::Floor;
use fabricast::{Address, Node, Raw, ReceiveError, StatePublisher, StateSubscriber};

use super::super::clock::now;
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::output::count;
use super::super::setting::Setting;
use super::arguments::{Arguments, FabricName, Mode};
use super::echo::{Manner, PONG, Received};
use super::follow::Followers;
use super::line::{Durations, Line, Seen};
use super::measurement::{ATTEMPT, Measurement, name_beside};
use super::pattern::mark;
use super::probe::{AnswerWait, Probe, nanoseconds};
use super::process::{Phase, Process, command};
use super::trouble::Trouble;

/// Alternations of floor and delivery.
const TURNS: u64 = 10;
/// Uncounted round trips before each turn.
const WARM_UP: u64 = 50;
/// Round trips between two checks for an interrupt.
const LOOK_FOR_INTERRUPT: u64 = 256;
/// The two ends of this process.
struct Ping<'a> {
    manner: Manner,
    interrupt: &'a Interrupt,
    value: Vec<u64>,
    len: usize,
    number: u64,
    publisher: StatePublisher<Raw>,
    subscriber: StateSubscriber<Raw>,
    node: Node,
    seen: Seen,
}

/// The answering process. Ended when dropped.
struct Answering<'a> {
    interrupt: &'a Interrupt,
    process: Process,
    floor: Floor,
    stamp: u64,
    probe: Probe,
}

/// Round trips of all sizes.
struct Pings<'a>(Measurement<'a>);

/// Measures and prints a line for each size. The exit code says whether every value was right.
pub(super) fn measure(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    let pings = Pings(Measurement::begin(arguments, setting)?);
    let lines = |size: &u32, name: &str| match &arguments.connect {
        Some(address) => Ok(vec![pings.connected(*size, address)?]),
        None => pings.started(*size, name),
    };
    let is_right = |line: &Line| line.rejected.unwrap_or(0) == 0;
    let wrong = Line::wrong_values;
    pings.0.print("round trips", &arguments.size, lines, (is_right, wrong))
}

impl Pings<'_> {
    /// Measures one size against a running process.
    fn connected(&self, size: u32, address: &Address) -> Result<Line, Trouble> {
        let fabric = FabricName::of(address);
        let published = self.publish(size, &name_beside(address, "ping"), self.0.arguments.listening())?;
        let mut ping = self.subscribe(size, address, published, None)?;
        let followers = Followers::start(&self.0, size, (&ping.node, fabric), &ping.publisher)?;
        ping.warm_up()?;
        let mut durations = Durations::new();
        let Arguments { iterations, seconds, .. } = *self.0.arguments;
        timed(&mut durations, (iterations, seconds), &self.0.interrupt, || ping.round_trip())?;
        let line = durations.line(self.0.arguments.mode.name(), size);
        let line = self.complete(line, fabric, ping.seen() + followers.end(&self.0.interrupt)?);
        Ok(Line { connect: Some(address.to_string()), ..line })
    }

    /// Measures one size against a process started here.
    fn started(&self, size: u32, name: &str) -> Result<Vec<Line>, Trouble> {
        let published = self.publish(size, &format!("{name}.ping"), self.0.arguments.listening())?;
        let mut answering = self.start(size, name)?;
        match self.alternate(size, published, &mut answering) {
            Ok((mut lines, seen)) => {
                let seen = seen + answering.end()?;
                let line = lines.pop().map(|line| self.complete(line, self.0.arguments.fabric(), seen));
                lines.extend(line);
                Ok(lines)
            }
            Err(trouble) => Err(answering.process.explain(trouble)),
        }
    }

    /// Alternates floor and delivery. Returns their lines, the delivery's last and without its counts.
    fn alternate(
        &self,
        size: u32,
        published: (Node, StatePublisher<Raw>),
        answering: &mut Answering<'_>,
    ) -> Result<(Vec<Line>, Seen), Trouble> {
        let address = answering.process.line()?.parse()?;
        let mut ping = self.subscribe(size, &address, published, Some(&mut answering.process))?;
        answering.probe.begin(answering.floor.control(), (&mut answering.process, answering.interrupt))?;
        let measuring = (&ping.node, self.0.arguments.fabric());
        let followers = Followers::start(&self.0, size, measuring, &ping.publisher)?;
        let (mut floor, mut delivery) = (Durations::new(), Durations::new());
        let Arguments { iterations, seconds, .. } = *self.0.arguments;
        let turns = iterations.map_or(TURNS, |iterations| iterations.min(TURNS));
        for turn in 0..turns {
            // As many in total as requested.
            let share = iterations.map(|all| all * (turn + 1) / turns - all * turn / turns);
            let extent = (share, seconds / count(turns));
            if self.0.arguments.floor {
                answering.floor.control().set_phase(Phase::Floor.number());
                let mut answer = vec![0; ping.value.len()];
                (0..WARM_UP).try_for_each(|_| answering.round_trip(&mut ping.value, &mut answer))?;
                timed(&mut floor, extent, &self.0.interrupt, || {
                    answering.round_trip(&mut ping.value, &mut answer)
                })?;
            }
            answering.floor.control().set_phase(Phase::Deliver.number());
            ping.warm_up()?;
            timed(&mut delivery, extent, &self.0.interrupt, || ping.round_trip())?;
        }
        let seen = followers.end(&self.0.interrupt)? + ping.seen();
        let placement =
            answering.probe.end(answering.floor.control(), (&mut answering.process, answering.interrupt))?;
        let mut lines = vec![delivery.line(self.0.arguments.mode.name(), size)];
        if self.0.arguments.floor {
            lines.insert(0, floor.line("floor", size));
        }
        lines.iter_mut().for_each(|line| line.placement = Some(placement));
        Ok((lines, seen))
    }

    /// Completes the line of a delivery with the counts of all ends.
    fn complete(&self, line: Line, fabric: FabricName, seen: Seen) -> Line {
        Line { torn_retries: Some(seen.torn_retries), ..self.0.complete(line, fabric, seen) }
    }

    /// Starts the answering process.
    fn start(&self, size: u32, name: &str) -> Result<Answering<'_>, Trouble> {
        let floor = Floor::create(size as usize)?;
        let mut command = command(self.0.setting, self.0.arguments.mode)?;
        command.args([
            "--serve",
            "--node",
            name,
            "--floor-len",
            &size.to_string(),
            "--slots",
            &self.0.arguments.slots().to_string(),
        ]);
        command.args(["--cpus", &self.0.cpus.to_string(), "--fabric", self.0.arguments.fabric().name()]);
        let process = Process::start("answering", command, floor.control().file()?)?;
        Ok(Answering { interrupt: &self.0.interrupt, process, floor, stamp: 0, probe: Probe::default() })
    }

    /// Publishes for the answering node, which is dialled, and for additional subscribers.
    fn publish(
        &self,
        size: u32,
        name: &str,
        rdma: Option<Address>,
    ) -> Result<(Node, StatePublisher<Raw>), Trouble> {
        let node = self.0.setting.measuring_node(name, rdma.as_ref())?;
        let publisher =
            node.state_publisher::<Raw>(self.0.arguments.mode.name()).slots(self.0.arguments.slots());
        let publisher = publisher.payload_len_max(size as usize).open().map_err(Failure::from)?;
        Ok((node, publisher))
    }

    /// Dials the answering node, and subscribes to its answers.
    fn subscribe(
        &self,
        size: u32,
        address: &Address,
        (node, publisher): (Node, StatePublisher<Raw>),
        mut process: Option<&mut Process>,
    ) -> Result<Ping<'_>, Trouble> {
        let (mode, len, interrupt) = (self.0.arguments.mode, size as usize, &self.0.interrupt);
        let target = format!("{address}/{PONG}");
        let subscriber = self.0.meet(
            || publisher.pull_subscribers() + publisher.push_subscribers(),
            || node.dial_subscriber(mode.name(), address, ATTEMPT),
            || {
                let builder = node.state_subscriber::<Raw>(&target).delivery(mode.delivery());
                let builder = if mode == Mode::Notify { self.0.setting.notified(builder) } else { builder };
                builder.region_len_max(usize::MAX).timeout(ATTEMPT).open()
            },
            || process.as_mut().map_or(Ok(()), |process| process.check()),
        )?;
        let value = vec![0x5555_5555_5555_5555; len.div_ceil(size_of::<u64>())];
        let (manner, seen) = (Manner::of(mode), Seen::default());
        Ok(Ping { manner, interrupt, value, len, number: 0, publisher, subscriber, node, seen })
    }
}

impl Ping<'_> {
    fn warm_up(&mut self) -> Result<(), Trouble> {
        (0..WARM_UP).try_for_each(|_| self.round_trip())
    }

    #[inline]
    fn round_trip(&mut self) -> Result<(), Trouble> {
        self.number += 1;
        mark(&mut self.value, self.number);
        let bytes: &[u8] = bytemuck::cast_slice(&self.value);
        self.publisher.publish(bytes.split_at(self.len).0)?;
        let mut wait = AnswerWait::default();
        loop {
            match self.manner.receive(&mut self.subscriber) {
                Ok(Some(Received { number, len, .. })) => {
                    match number == Some(self.number) && len == self.len {
                        true => self.seen.verified += 1,
                        false => self.seen.rejected += 1,
                    }
                    return Ok(());
                }
                Ok(None) if self.manner == Manner::Waiting => wait.wait(self.interrupt)?,
                Ok(None) | Err(ReceiveError::Contended { .. }) => wait.empty_poll(self.interrupt)?,
                Err(error) => return Err(Failure::from(error).into()),
            }
        }
    }

    /// The counts of this end.
    fn seen(&self) -> Seen {
        self.seen.with(self.subscriber.stats())
    }
}

impl Answering<'_> {
    /// One round trip of the floor.
    #[inline]
    fn round_trip(&mut self, value: &mut [u64], answer: &mut [u64]) -> Result<(), Trouble> {
        self.stamp += 1;
        mark(value, self.stamp);
        self.floor.send(0, self.stamp, value);
        let mut wait = AnswerWait::default();
        while !self.floor.try_receive(1, self.stamp, answer) {
            wait.empty_poll_of(&mut self.process, self.interrupt)?;
        }
        Ok(())
    }

    /// Ends the process, and returns its counts.
    fn end(self) -> Result<Seen, Trouble> {
        self.floor.control().set_phase(Phase::Stop.number());
        self.process.end(self.interrupt)
    }
}

/// Repeats and times round trips, as many as requested or as the time allows.
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
