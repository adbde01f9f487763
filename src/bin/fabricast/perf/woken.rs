//! The subscriber of `perf wake`: sleeps until it is woken, and answers with the time at which it had the value.

use std::io::Write as _;
use std::time::Duration;

use fabricast::measure::{BareWake, WakeFloor};
use fabricast::{Delivery, Listener, Node, Raw, ReceiveError, StatePublisher, StateSubscriber};
use serde::{Deserialize, Serialize};

use super::super::clock::monotonic_ns;
use super::super::failure::Exit;
use super::super::interrupt::Interrupt;
use super::super::setting::Setting;
use super::arguments::{Arguments, SleepIn};
use super::echo::{PONG, accept, answering, tell_addresses};
use super::line::Seen;
use super::pattern::marked;
use super::probe;
use super::process::{Phase, inherited};
use super::sleeper::Sleeper;
use super::trouble::Trouble;

/// How long an answer is held, so that the measuring process is asleep when it comes.
const HOLD: Duration = Duration::from_micros(200);
/// The pause between two checks whether there is something to do.
const REST: Duration = Duration::from_millis(1);
/// The longest sleep of the floor.
const FLOOR_SLEEP: Duration = Duration::from_millis(20);

/// The answer to a value.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The sequence of the value.
    pub(super) sequence: u64,
    /// The number that it carries, if it is intact.
    pub(super) number: Option<u64>,
    /// Its bytes.
    pub(super) len: u64,
    /// When the value was in hand, by the answering host's clock.
    pub(super) in_hand_ns: u64,
    /// How long the subscriber had waited for it.
    pub(super) waited_ns: u64,
    /// How long the answer was held.
    pub(super) held_ns: u64,
}

/// How a subscriber is woken.
pub(super) type Manner = (Delivery, SleepIn);

/// The subscribing end.
struct Woken<'a> {
    interrupt: &'a Interrupt,
    sleep_in: SleepIn,
    sleeper: Sleeper<Raw>,
    publisher: StatePublisher<Answer>,
}

/// The topic of values for subscribers of this manner.
pub(super) fn topic((delivery, sleep_in): Manner) -> String {
    format!("wake/{delivery}/{}", sleep_in.name())
}

/// What wakes the sleeping end of the floor.
pub(super) fn bare_wake(sleep_in: SleepIn) -> BareWake {
    match sleep_in {
        SleepIn::Receive => BareWake::Futex,
        SleepIn::WaitSet => BareWake::Socket,
    }
}

/// Subscribes to what the process that started this one publishes, or else to each measuring process in turn.
pub(super) fn serve(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    let is_started = arguments.floor_len.is_some();
    let floor = is_started.then(|| Ok::<_, Trouble>(WakeFloor::open(inherited()?)?)).transpose()?;
    let (interrupt, node) = answering(arguments, setting)?;
    let manners =
        [Delivery::Pull, Delivery::Push].map(|delivery| SleepIn::ALL.map(|sleep_in| (delivery, sleep_in)));
    let open = |manner: &Manner| {
        let listener = setting.notified(node.state_listener::<Raw>(topic(*manner).as_str()));
        listener.delivery(manner.0).region_len_max(usize::MAX).open().map(|listener| (*manner, listener))
    };
    let listeners = manners.as_flattened().iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let Some(mut floor) = floor else {
        tell_addresses(&node, arguments, setting)?;
        while let Some(mut woken) = Woken::accept(&node, &listeners, arguments, &interrupt)? {
            if !woken.deliver(|| interrupt.came())? {
                break;
            }
        }
        return Ok(Exit::Done);
    };
    writeln!(std::io::stdout(), "{}", arguments.fabric().address(&node)?)?;
    std::io::stdout().flush()?;
    let Some(mut woken) = Woken::accept(&node, &listeners, arguments, &interrupt)? else {
        return Ok(Exit::Done);
    };
    woken.obey(&mut floor)?;
    // What is right, the answers say.
    Seen::default().with(woken.sleeper.subscriber.stats()).tell()
}

impl<'a> Woken<'a> {
    /// Waits for a measuring process, and publishes answers for it. `None` when interrupted.
    fn accept(
        node: &Node,
        listeners: &[(Manner, Listener<StateSubscriber<Raw>>)],
        arguments: &Arguments,
        interrupt: &'a Interrupt,
    ) -> Result<Option<Self>, Trouble> {
        let Some(((_, sleep_in), subscriber)) = accept(listeners, interrupt) else { return Ok(None) };
        let publisher = node.state_publisher(PONG).slots(arguments.slots()).open()?;
        let sleeper = Sleeper::new(subscriber, sleep_in)?;
        Ok(Some(Self { interrupt, sleep_in, sleeper, publisher }))
    }

    /// Follows the phases until the last.
    fn obey(&mut self, floor: &mut WakeFloor) -> Result<(), Trouble> {
        loop {
            match Phase::of(floor.control().phase()) {
                // Only streams have checked values.
                Phase::Wait | Phase::Checked => std::thread::park_timeout(REST),
                Phase::Probe => probe::answer(floor.control()),
                Phase::Floor => self.sleep_on(floor)?,
                Phase::Deliver => {
                    if self.deliver(|| Phase::of(floor.control().phase()) != Phase::Deliver)? {
                        return Ok(());
                    }
                }
                Phase::Stop => return Ok(()),
            }
        }
    }

    /// Sleeps on the floor until the phase changes, and shows when it was awake.
    fn sleep_on(&self, floor: &mut WakeFloor) -> Result<(), Trouble> {
        let by = bare_wake(self.sleep_in);
        while Phase::of(floor.control().phase()) == Phase::Floor {
            if floor.sleep(by, FLOOR_SLEEP)?.is_some() {
                let in_hand_ns = monotonic_ns();
                // As long as an answer is held: before the next wake it has slept as long as a subscriber.
                self.interrupt.pause(HOLD);
                floor.control().set_progress(0, in_hand_ns);
            }
        }
        Ok(())
    }

    /// Receives and answers values until `stopped` (false) or the topic ends (true).
    fn deliver(&mut self, stopped: impl Fn() -> bool) -> Result<bool, Trouble> {
        let mut waiting_since_ns = monotonic_ns();
        loop {
            match self.sleeper.receive() {
                Ok(Some(sample)) => {
                    let in_hand_ns = monotonic_ns();
                    let (sequence, len) = (sample.meta.sequence.get(), sample.value.len());
                    let number = marked(&sample.value, len);
                    let waited_ns = in_hand_ns.saturating_sub(waiting_since_ns);
                    let answer =
                        Answer { sequence, number, len: len as u64, in_hand_ns, waited_ns, held_ns: 0 };
                    self.answer(answer)?;
                    waiting_since_ns = monotonic_ns();
                }
                Ok(None) | Err(ReceiveError::Contended { .. }) => {
                    if stopped() {
                        return Ok(false);
                    }
                }
                Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Publishes this answer a little later.
    fn answer(&mut self, answer: Answer) -> Result<(), Trouble> {
        // An interrupt shows in the next check.
        self.interrupt.pause(HOLD);
        let held_ns = monotonic_ns().saturating_sub(answer.in_hand_ns);
        self.publisher.publish(&Answer { held_ns, ..answer })?;
        Ok(())
    }
}
