use std::io::Write as _;
use std::time::Duration;

use fabricast::measure::Floor;
use fabricast::{Listener, Node, Raw, ReceiveError, Sequence, StatePublisher, StateSubscriber, Subscribed};

use super::super::failure::Exit;
use super::super::interrupt::Interrupt;
use super::super::setting::Setting;
use super::arguments::{Arguments, Mode};
use super::line::Seen;
use super::pattern::{self, mark, marked};
use super::probe::{self, LOOKS};
use super::process::{Phase, inherited};
use super::trouble::Trouble;

/// The topic of the answers.
pub(super) const PONG: &str = "pong";
/// The longest single wait for a value.
const WAIT: Duration = Duration::from_millis(20);
/// How long to wait on one listener before the next.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How values are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Polled without pause, and left undecoded.
    Looking,
    /// Waited for, as an application does that has notices and other work.
    Waiting,
}

impl Manner {
    /// How this mode receives values.
    pub(super) fn of(mode: Mode) -> Self {
        if mode == Mode::Notify { Self::Waiting } else { Self::Looking }
    }

    /// Receives the next value. `None` without one, after a wait in that manner.
    #[inline]
    pub(super) fn receive(
        self,
        subscriber: &mut StateSubscriber<Raw>,
    ) -> Result<Option<Received>, ReceiveError> {
        Ok(match self {
            Self::Looking => subscriber.try_receive_ref()?.map(|it| Received::of(it.meta.sequence, it.bytes)),
            Self::Waiting => {
                subscriber.receive_timeout(WAIT)?.map(|it| Received::of(it.meta.sequence, &it.value))
            }
        })
    }

    /// Whether to check the phase, after so many receives without a value.
    #[inline]
    pub(super) fn looks_up(self, looks: u32) -> bool {
        self == Self::Waiting || looks.is_multiple_of(LOOKS)
    }
}

/// What is compared of a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) sequence: u64,
    /// The number that it carries, if it is intact.
    pub(super) number: Option<u64>,
    pub(super) len: usize,
}

impl Received {
    #[inline]
    pub(super) fn of(sequence: Sequence, bytes: &[u8]) -> Self {
        Self { sequence: sequence.get(), number: marked(bytes, bytes.len()), len: bytes.len() }
    }
}

/// The answering end.
struct Echo {
    manner: Manner,
    /// Room for the longest value.
    value: Vec<u64>,
    publisher: StatePublisher<Raw>,
    subscriber: StateSubscriber<Raw>,
    seen: Seen,
}

/// Answers the process that started this one, or else each measuring process in turn.
pub(super) fn serve(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    let floor = |len: u32| Ok::<_, Trouble>(Floor::open(inherited()?, len as usize)?);
    let floor = arguments.floor_len.map(floor).transpose()?;
    let (interrupt, node) = answering(arguments, setting)?;
    let listener = |mode: Mode| {
        let listener = node.state_listener::<Raw>(mode.name());
        let listener = if mode == Mode::Notify { setting.notified(listener) } else { listener };
        listener.delivery(mode.delivery()).region_len_max(usize::MAX).open().map(|it| (mode, it))
    };
    let listeners = [listener(Mode::Pull)?, listener(Mode::Push)?, listener(Mode::Notify)?];
    let Some(floor) = floor else {
        tell_addresses(&node, arguments, setting)?;
        while let Some(mut echo) = Echo::accept(&node, &listeners, arguments, &interrupt)? {
            if !echo.deliver(|| interrupt.came())? {
                break;
            }
        }
        return Ok(Exit::Done);
    };
    writeln!(std::io::stdout(), "{}", arguments.fabric().address(&node)?)?;
    std::io::stdout().flush()?;
    let Some(mut echo) = Echo::accept(&node, &listeners, arguments, &interrupt)? else {
        return Ok(Exit::Done);
    };
    echo.obey(&floor)?;
    echo.seen.with(echo.subscriber.stats()).tell()
}

/// Takes the processor on which this process answers, and opens its node.
pub(super) fn answering(arguments: &Arguments, setting: &Setting) -> Result<(Interrupt, Node), Trouble> {
    arguments.cpus.settled()?.pin_answering()?;
    let interrupt = Interrupt::install()?;
    let name = arguments.node.as_str();
    let node = match &arguments.rdma {
        // Until it is interrupted, for anyone who dials.
        Some(address) => setting.named_node(name, Some(address))?,
        None => setting.measuring_node(name, arguments.fabric().rdma().as_ref())?,
    };
    Ok((interrupt, node))
}

/// Prints how to measure against this process.
pub(super) fn tell_addresses(node: &Node, arguments: &Arguments, setting: &Setting) -> Result<(), Trouble> {
    for address in node.addresses() {
        let command = arguments.measuring_command(address, setting.protection());
        writeln!(std::io::stdout(), "answering at {address}: measure with `{command}`")?;
    }
    Ok(std::io::stdout().flush()?)
}

/// A subscription to what the process publishes that dials next, with what is known of its listener. `None` when this one was asked
/// to end.
pub(super) fn accept<K: Copy, S: Subscribed>(
    listeners: &[(K, Listener<S>)],
    interrupt: &Interrupt,
) -> Option<(K, S)> {
    while !interrupt.came() {
        for (known, listener) in listeners {
            // A failed one must not keep others from dialling.
            if let Ok(Some(subscriber)) = listener.accept_timeout(LOOK_AGAIN) {
                return Some((*known, subscriber));
            }
        }
    }
    None
}

impl Echo {
    /// Waits for a measuring process, and publishes for it. `None` when interrupted.
    fn accept(
        node: &Node,
        listeners: &[(Mode, Listener<StateSubscriber<Raw>>)],
        arguments: &Arguments,
        interrupt: &Interrupt,
    ) -> Result<Option<Self>, Trouble> {
        let Some((mode, subscriber)) = accept(listeners, interrupt) else { return Ok(None) };
        let len = subscriber.payload_len_max();
        let publisher =
            node.state_publisher::<Raw>(PONG).slots(arguments.slots()).payload_len_max(len).open()?;
        let value = vec![0; len.div_ceil(size_of::<u64>())];
        let manner = Manner::of(mode);
        Ok(Some(Self { manner, value, publisher, subscriber, seen: Seen::default() }))
    }

    /// Follows the phases until the last.
    fn obey(&mut self, floor: &Floor) -> Result<(), Trouble> {
        let mut stamp = 0;
        loop {
            match Phase::of(floor.control().phase()) {
                // Only streams have checked values.
                Phase::Wait | Phase::Checked => std::hint::spin_loop(),
                Phase::Probe => probe::answer(floor.control()),
                Phase::Floor => self.answer_floor(floor, &mut stamp),
                Phase::Deliver => {
                    if self.deliver(|| Phase::of(floor.control().phase()) != Phase::Deliver)? {
                        return Ok(());
                    }
                }
                Phase::Stop => return Ok(()),
            }
        }
    }

    fn answer_floor(&mut self, floor: &Floor, stamp: &mut u64) {
        let mut value = vec![0; self.value.len()];
        loop {
            let mut looks = 0;
            while !floor.try_receive(0, *stamp + 1, &mut value) {
                looks += 1;
                if looks % LOOKS == 0 && Phase::of(floor.control().phase()) != Phase::Floor {
                    return;
                }
            }
            *stamp += 1;
            floor.send(1, *stamp, &value);
        }
    }

    /// Answers values until `stopped` (false) or the topic ends (true).
    fn deliver(&mut self, stopped: impl Fn() -> bool) -> Result<bool, Trouble> {
        let mut looks = 0;
        loop {
            match self.manner.receive(&mut self.subscriber) {
                Ok(Some(Received { number, len, .. })) => {
                    let (value, _) = self.value.split_at_mut(pattern::words(len));
                    match number {
                        Some(number) => {
                            mark(value, number);
                            self.seen.verified += 1;
                        }
                        None => self.seen.rejected += 1,
                    }
                    let bytes: &[u8] = bytemuck::cast_slice(value);
                    self.publisher.publish(bytes.split_at(len).0)?;
                }
                Ok(None) | Err(ReceiveError::Contended { .. }) => {
                    looks += 1;
                    if self.manner.looks_up(looks) && stopped() {
                        return Ok(false);
                    }
                }
                Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
