use std::time::Duration;

use fabricast::measure::WakeFloor;
use fabricast::{Address, Node, Raw, ReceiveError, StatePublisher};

use super::super::clock::monotonic_ns;
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::output::count;
use super::super::setting::Setting;
use super::arguments::{Arguments, FabricName};
use super::asleep::MainThread;
use super::echo::PONG;
use super::follow::{self, Followers};
use super::line::{Durations, Line, Seen, Times};
use super::measurement::{ATTEMPT, Measurement, name_beside};
use super::pattern::mark;
use super::probe::{AnswerWait, Probe};
use super::process::{Phase, Process, command};
use super::sleeper::Sleeper;
use super::trouble::{Trouble, wait};
use super::woken::{self, Answer, Manner, bare_wake, topic};

/// Alternations of floor and delivery.
const TURNS: u64 = 10;
/// Uncounted values before each turn.
const WARM_UP: u64 = 10;
/// The least time between the end of one value's exchange and the next value: the subscriber falls asleep meanwhile.
const SLACK: Duration = Duration::from_micros(300);
/// A subscriber of another process's making has fallen asleep after such a wait: a blocking receive first polls for 20 us.
const ASLEEP_AFTER_NS: u64 = 100_000;
/// The pause between two checks whether the floor's sleeper is awake.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Wakes of all sizes.
struct Wakes<'a>(Measurement<'a>);

/// The two ends of this process: values, and their answers.
struct Waking<'a> {
    interrupt: &'a Interrupt,
    value: Vec<u64>,
    len: usize,
    number: u64,
    pace: Pace,
    publisher: StatePublisher<Raw>,
    answers: Sleeper<Answer>,
    node: Node,
    /// What the answers say.
    seen: Seen,
    is_local: bool,
}

/// The subscribing process. Ended when dropped.
struct Subscribing<'a> {
    interrupt: &'a Interrupt,
    process: Process,
    main_thread: MainThread,
    floor: WakeFloor,
    probe: Probe,
    pace: Pace,
}

/// When the next value is due.
struct Pace {
    interval: Duration,
    due_ns: u64,
}

/// What was measured.
struct Measured {
    durations: Durations,
    values: u64,
    awake: u64,
    time_ns: u64,
}

/// The times of one value.
struct Exchange {
    duration_ns: u64,
    was_asleep: bool,
}

/// Measures, or subscribes for a measuring process.
pub(super) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    match &arguments.follow {
        Some(measuring) => follow::follow(arguments, setting, measuring),
        None if arguments.serve => woken::serve(arguments, setting),
        None => measure(arguments, setting),
    }
}

/// Measures and prints a line for each size. The exit code says whether every value was right.
fn measure(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    let wakes = Wakes(Measurement::begin(arguments, setting)?);
    let lines = |size: &u32, name: &str| match &arguments.connect {
        Some(address) => Ok(vec![wakes.connected(*size, address)?]),
        None => wakes.started(*size, name),
    };
    let is_right = |line: &Line| line.rejected.unwrap_or(0) == 0;
    let wrong = Line::wrong_values;
    wakes.0.print("values", &arguments.size, lines, (is_right, wrong))
}

impl Wakes<'_> {
    fn manner(&self) -> Manner {
        (self.0.arguments.delivery(), self.0.arguments.wake.sleep_in())
    }

    fn pace(&self) -> Pace {
        Pace { interval: self.0.arguments.wake.interval(), due_ns: 0 }
    }

    /// Measures one size against a running process.
    fn connected(&self, size: u32, address: &Address) -> Result<Line, Trouble> {
        let fabric = FabricName::of(address);
        let published = self.publish(size, &name_beside(address, "wake"), self.0.arguments.listening())?;
        let mut waking = self.subscribe(size, address, published, None)?;
        let followers = Followers::start(&self.0, size, (&waking.node, fabric), &waking.publisher)?;
        let Arguments { iterations, seconds, .. } = *self.0.arguments;
        let mut measured = Measured::new();
        measured.repeat((iterations, seconds), || self.0.interrupt.came(), || waking.wake(None))?;
        let line = measured.line(self.0.arguments.mode.name(), size);
        let seen = waking.seen + followers.end(&self.0.interrupt)?;
        let times = if waking.is_local { Times::OneWay } else { Times::Halved };
        let line = self.complete(line, fabric, seen);
        Ok(Line { connect: Some(address.to_string()), times: Some(times), ..line })
    }

    /// Measures one size with a process started here.
    fn started(&self, size: u32, name: &str) -> Result<Vec<Line>, Trouble> {
        let published = self.publish(size, &format!("{name}.wake"), self.0.arguments.listening())?;
        let mut subscribing = self.start(size, name)?;
        match self.alternate(size, published, &mut subscribing) {
            Ok((mut lines, seen)) => {
                let seen = seen + subscribing.end()?;
                let line = lines.pop().map(|line| self.complete(line, self.0.arguments.fabric(), seen));
                lines.extend(line);
                Ok(lines)
            }
            Err(trouble) => Err(subscribing.process.explain(trouble)),
        }
    }

    /// Alternates floor and delivery. Returns their lines, the delivery's last and without its counts.
    fn alternate(
        &self,
        size: u32,
        published: (Node, StatePublisher<Raw>),
        subscribing: &mut Subscribing<'_>,
    ) -> Result<(Vec<Line>, Seen), Trouble> {
        let Measurement { arguments, interrupt, .. } = &self.0;
        let address = subscribing.process.line()?.parse()?;
        let mut waking = self.subscribe(size, &address, published, Some(&mut subscribing.process))?;
        subscribing.probe.begin(subscribing.floor.control(), (&mut subscribing.process, interrupt))?;
        let measuring = (&waking.node, arguments.fabric());
        let followers = Followers::start(&self.0, size, measuring, &waking.publisher)?;
        let (mut floor, mut delivery) = (Measured::new(), Measured::new());
        let turns = arguments.iterations.map_or(TURNS, |iterations| iterations.min(TURNS));
        for turn in 0..turns {
            // As many in total as requested.
            let share = arguments.iterations.map(|all| all * (turn + 1) / turns - all * turn / turns);
            let extent = (share, arguments.seconds / count(turns));
            if arguments.floor {
                subscribing.floor.control().set_phase(Phase::Floor.number());
                floor.repeat(extent, || interrupt.came(), || subscribing.wake(arguments))?;
            }
            subscribing.floor.control().set_phase(Phase::Deliver.number());
            delivery.repeat(extent, || interrupt.came(), || waking.wake(Some(&subscribing.main_thread)))?;
        }
        let seen = waking.seen + followers.end(interrupt)?;
        let placement =
            subscribing.probe.end(subscribing.floor.control(), (&mut subscribing.process, interrupt))?;
        let mut lines = vec![delivery.line(arguments.mode.name(), size)];
        if arguments.floor {
            lines.insert(0, floor.line("floor", size));
        }
        lines.iter_mut().for_each(|line| line.placement = Some(placement));
        Ok((lines, seen))
    }

    /// Completes the line of a delivery with the counts of all ends.
    fn complete(&self, line: Line, fabric: FabricName, seen: Seen) -> Line {
        Line { torn_retries: Some(seen.torn_retries), ..self.0.complete(line, fabric, seen) }
    }

    /// Starts the subscribing process.
    fn start(&self, size: u32, name: &str) -> Result<Subscribing<'_>, Trouble> {
        let Measurement { arguments, setting, cpus, interrupt } = &self.0;
        let (floor, input) = WakeFloor::create()?;
        let mut command = command(setting, arguments.mode)?;
        command.args(["--serve", "--node", name, "--floor-len", &size.to_string()]);
        command.args(["--slots", &arguments.slots().to_string()]);
        command.args(["--cpus", &cpus.to_string(), "--fabric", arguments.fabric().name()]);
        let process = Process::start("subscribing", command, input)?;
        let main_thread = MainThread::of(process.number())?;
        let (probe, pace) = (Probe::default(), self.pace());
        Ok(Subscribing { interrupt, process, main_thread, floor, probe, pace })
    }

    /// Publishes for the subscribing node, which is dialled, and for additional subscribers.
    fn publish(
        &self,
        size: u32,
        name: &str,
        rdma: Option<Address>,
    ) -> Result<(Node, StatePublisher<Raw>), Trouble> {
        let node = self.0.setting.measuring_node(name, rdma.as_ref())?;
        let publisher =
            node.state_publisher::<Raw>(topic(self.manner()).as_str()).slots(self.0.arguments.slots());
        let publisher = publisher.payload_len_max(size as usize).open().map_err(Failure::from)?;
        Ok((node, publisher))
    }

    /// Dials the subscribing node, and subscribes to its answers.
    fn subscribe(
        &self,
        size: u32,
        address: &Address,
        (node, publisher): (Node, StatePublisher<Raw>),
        mut process: Option<&mut Process>,
    ) -> Result<Waking<'_>, Trouble> {
        let (manner, len, interrupt) = (self.manner(), size as usize, &self.0.interrupt);
        let (topic, target) = (topic(manner), format!("{address}/{PONG}"));
        let (delivery, sleep_in) = manner;
        let answers = self.0.meet(
            || publisher.pull_subscribers() + publisher.push_subscribers(),
            || node.dial_subscriber(topic.as_str(), address, ATTEMPT),
            || {
                let builder = self.0.setting.notified(node.state_subscriber(&target));
                builder.delivery(delivery).timeout(ATTEMPT).open()
            },
            || process.as_mut().map_or(Ok(()), |process| process.check()),
        )?;
        let value = vec![0x5555_5555_5555_5555; len.div_ceil(size_of::<u64>())];
        let answers = Sleeper::new(answers, sleep_in)?;
        // A process started here shares this host's clock, whatever the fabric.
        let is_local = process.is_some() || address.is_local();
        let (pace, seen, number) = (self.pace(), Seen::default(), 0);
        Ok(Waking { interrupt, value, len, number, pace, publisher, answers, node, seen, is_local })
    }
}

impl Waking<'_> {
    /// Publishes a value when it is due and its subscriber sleeps, and waits for the answer. Without its main thread, the answer
    /// says whether it slept.
    fn wake(&mut self, main_thread: Option<&MainThread>) -> Result<Exchange, Trouble> {
        self.pace.wait(self.interrupt)?;
        let is_asleep = main_thread.map(|thread| thread.await_sleep(self.interrupt)).transpose()?;
        self.number += 1;
        mark(&mut self.value, self.number);
        let bytes: &[u8] = bytemuck::cast_slice(&self.value);
        let bytes = bytes.split_at(self.len).0;
        let began_ns = monotonic_ns();
        self.publisher.publish(bytes)?;
        let answer = self.answer()?;
        let ended_ns = monotonic_ns();
        self.pace.advance(ended_ns);
        let duration_ns = match self.is_local {
            true => answer.in_hand_ns.saturating_sub(began_ns),
            false => (ended_ns - began_ns).saturating_sub(answer.held_ns) / 2,
        };
        let waited_ns = answer.waited_ns.saturating_sub(duration_ns);
        let was_asleep = is_asleep.unwrap_or(waited_ns >= ASLEEP_AFTER_NS);
        Ok(Exchange { duration_ns, was_asleep })
    }

    /// Waits for the answer to the last value.
    fn answer(&mut self) -> Result<Answer, Trouble> {
        let mut wait = AnswerWait::default();
        loop {
            match self.answers.receive() {
                Ok(Some(sample)) if sample.value.sequence == self.number => {
                    let Answer { number, len, .. } = sample.value;
                    // A measurement numbers its values like their topic.
                    match number == Some(self.number) && len == self.len as u64 {
                        true => self.seen.verified += 1,
                        false => self.seen.rejected += 1,
                    }
                    return Ok(sample.value);
                }
                Ok(_) | Err(ReceiveError::Contended { .. }) => wait.wait(self.interrupt)?,
                Err(error) => return Err(Failure::from(error).into()),
            }
        }
    }
}

impl Subscribing<'_> {
    /// One wake of the floor, when it is due and the other end sleeps.
    fn wake(&mut self, arguments: &Arguments) -> Result<Exchange, Trouble> {
        self.pace.wait(self.interrupt)?;
        let was_asleep = self.main_thread.await_sleep(self.interrupt)?;
        let began_ns = monotonic_ns();
        self.floor.wake(bare_wake(arguments.wake.sleep_in()), began_ns)?;
        let mut waited = AnswerWait::default();
        loop {
            wait(self.interrupt, LOOK_AGAIN)?;
            let in_hand_ns = self.floor.control().progress(0);
            if in_hand_ns >= began_ns {
                self.pace.advance(monotonic_ns());
                return Ok(Exchange { duration_ns: in_hand_ns - began_ns, was_asleep });
            }
            waited.wait(self.interrupt)?;
            self.process.check()?;
        }
    }

    /// Ends the process, and returns its counts.
    fn end(self) -> Result<Seen, Trouble> {
        self.floor.control().set_phase(Phase::Stop.number());
        self.process.end(self.interrupt)
    }
}

impl Pace {
    /// Waits until the next value is due.
    fn wait(&self, interrupt: &Interrupt) -> Result<(), Trouble> {
        loop {
            let left_ns = self.due_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                return Ok(());
            }
            wait(interrupt, Duration::from_nanos(left_ns))?;
        }
    }

    /// The exchange of a value has ended now. The next one never catches up.
    fn advance(&mut self, now_ns: u64) {
        let later =
            |ns: u64, by: Duration| ns.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX));
        self.due_ns = later(self.due_ns, self.interval).max(later(now_ns, SLACK));
    }
}

impl Measured {
    fn new() -> Self {
        Self { durations: Durations::new(), values: 0, awake: 0, time_ns: 0 }
    }

    /// Repeats and times exchanges, as many as requested or as the time allows, after a few that do not count.
    fn repeat(
        &mut self,
        (iterations, seconds): (Option<u64>, f64),
        stopped: impl Fn() -> bool,
        mut exchange: impl FnMut() -> Result<Exchange, Trouble>,
    ) -> Result<(), Trouble> {
        for _ in 0..WARM_UP {
            exchange()?;
        }
        let (began_ns, extent) = (monotonic_ns(), Duration::from_secs_f64(seconds));
        let elapsed_ns = || monotonic_ns().saturating_sub(began_ns);
        for _ in 0..iterations.unwrap_or(u64::MAX) {
            let is_over = iterations.is_none() && Duration::from_nanos(elapsed_ns()) >= extent;
            if is_over || stopped() {
                break;
            }
            let Exchange { duration_ns, was_asleep } = exchange()?;
            self.values += 1;
            match was_asleep {
                true => self.durations.record(duration_ns),
                false => self.awake += 1,
            }
        }
        self.time_ns += elapsed_ns();
        Ok(())
    }

    /// The line of these times, without the counts of a delivery.
    fn line(&self, mode: &'static str, size: u32) -> Line {
        let msgs_per_s = count(self.values) * 1e9 / count(self.time_ns.max(1));
        Line {
            iterations: self.values,
            msgs_per_s,
            gb_per_s: msgs_per_s * f64::from(size) / 1e9,
            awake: Some(self.awake),
            times: Some(Times::OneWay),
            ..self.durations.line(mode, size)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_value_is_not_caught_up_with() {
        let mut pace = Pace { interval: Duration::from_millis(1), due_ns: 5_000_000 };
        pace.advance(5_400_000);
        assert_eq!(pace.due_ns, 6_000_000);
        pace.advance(9_000_000);
        assert_eq!(pace.due_ns, 9_300_000);
        pace.advance(9_350_000);
        assert_eq!(pace.due_ns, 10_300_000);
    }

    #[test]
    fn values_that_found_a_subscriber_awake_are_left_out() {
        let mut number = 0;
        let exchange = || {
            number += 1;
            Ok(Exchange { duration_ns: if number % 2 == 0 { 1000 } else { 7 }, was_asleep: number % 2 == 0 })
        };
        let mut measured = Measured::new();
        measured.repeat((Some(20), 1.0), || false, exchange).unwrap();
        let line = measured.line("wake", 64);
        assert_eq!(
            (line.iterations, line.awake, line.p50_ns, line.max_ns),
            (20, Some(10), Some(1000), Some(1000))
        );
    }
}
