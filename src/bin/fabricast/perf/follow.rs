use fabricast::measure::Control;
use fabricast::{Address, Node, Raw, ReceiveError, StatePublisher};

use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::setting::{ATTACH_TIMEOUT, Setting};
use super::arguments::{Arguments, FabricName, Mode};
use super::echo::{Manner, Received};
use super::line::Seen;
use super::measurement::Measurement;
use super::process::{Phase, Process, command, inherited};
use super::sleeper::Sleeper;
use super::trouble::Trouble;
use super::woken;

/// The subscribing processes besides the answering one. Ended when dropped.
pub(super) struct Followers {
    processes: Vec<Process>,
    control: Control,
}

/// Subscribes to the process at this address, which started this one, until told to stop.
pub(super) fn follow(arguments: &Arguments, setting: &Setting, measuring: &Address) -> Result<Exit, Trouble> {
    let control = Control::open(inherited()?, 0)?;
    let interrupt = Interrupt::install()?;
    let (mode, delivery, sleep_in) = (arguments.mode, arguments.delivery(), arguments.wake.sleep_in());
    let topic = if mode == Mode::Wake { woken::topic((delivery, sleep_in)) } else { mode.name().to_owned() };
    let (target, node) = (format!("{measuring}/{topic}"), setting.node(None)?);
    let builder = node.state_subscriber::<Raw>(&target).delivery(delivery);
    let builder = if mode.has_notices() { setting.notified(builder) } else { builder };
    let mut subscriber = builder.timeout(ATTACH_TIMEOUT).open().map_err(Failure::from)?;
    let len = arguments.size.first().map_or(0, |size| *size as usize);
    let stopped = || Phase::of(control.phase()) == Phase::Stop || interrupt.came();
    if mode == Mode::Wake {
        let mut sleeper = Sleeper::new(subscriber, sleep_in)?;
        let seen = watch(|| sleeper.receive_compared(), len, |_| stopped())?;
        return seen.with(sleeper.subscriber.stats()).tell();
    }
    let manner = Manner::of(mode);
    let seen = watch(|| manner.receive(&mut subscriber), len, |looks| manner.looks_up(looks) && stopped())?;
    seen.with(subscriber.stats()).tell()
}

/// Receives and compares the values that it catches, up to the newest when told to stop.
fn watch(
    mut receive: impl FnMut() -> Result<Option<Received>, ReceiveError>,
    expected_len: usize,
    stopped: impl Fn(u32) -> bool,
) -> Result<Seen, Trouble> {
    let mut seen = Seen::default();
    let (mut looks, mut stopping) = (0u32, false);
    loop {
        looks = looks.wrapping_add(1);
        stopping |= stopped(looks);
        match receive() {
            // A measurement numbers its values like their topic.
            Ok(Some(Received { sequence, number, len })) => {
                match number == Some(sequence) && len == expected_len {
                    true => seen.verified += 1,
                    false => seen.rejected += 1,
                }
            }
            Ok(None) if stopping => break,
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => break,
            Err(error) => return Err(Failure::from(error).into()),
        }
    }
    Ok(seen)
}

impl Followers {
    /// Starts as many as the arguments say, to subscribe to this publisher of a node over a fabric, and waits until they and the
    /// answering process have subscribed.
    pub(super) fn start(
        measurement: &Measurement<'_>,
        size: u32,
        (node, fabric): (&Node, FabricName),
        publisher: &StatePublisher<Raw>,
    ) -> Result<Self, Trouble> {
        let Measurement { arguments, setting, cpus, .. } = measurement;
        let control = Control::create(0)?;
        let start_one = || {
            let mut command = command(setting, arguments.mode)?;
            command.args(["--size", &size.to_string(), "--follow", &fabric.address(node)?.to_string()]);
            if arguments.mode == Mode::Wake {
                let sleep_in = arguments.wake.sleep_in().name();
                command.args(["--delivery", &arguments.delivery().to_string(), "--sleep-in", sleep_in]);
            }
            Process::start("subscribing", command, control.file()?)
        };
        // A process may run where the one that starts it may.
        cpus.unpin()?;
        let processes = (1..arguments.subscribers).map(|_| start_one()).collect::<Result<_, _>>()?;
        cpus.pin_measuring()?;
        let mut followers = Self { processes, control };
        let subscribers = || publisher.pull_subscribers() + publisher.push_subscribers();
        let check = || followers.processes.iter_mut().try_for_each(Process::check);
        measurement.await_subscribers(arguments.subscribers.into(), subscribers, "subscribing", check)?;
        Ok(followers)
    }

    /// Ends them, and returns what they received.
    pub(super) fn end(self, interrupt: &Interrupt) -> Result<Seen, Trouble> {
        self.control.set_phase(Phase::Stop.number());
        let seen = self.processes.into_iter().map(|process| process.end(interrupt));
        seen.sum()
    }
}
