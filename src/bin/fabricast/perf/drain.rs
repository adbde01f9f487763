use std::io::Write as _;
use std::os::fd::AsFd;
use std::time::Duration;

use fabricast::measure::Ring;
use fabricast::{Address, LogSubscriber, Raw, ReceiveError, Sequence};
use rustix::process::Signal;

use super::super::failure::{Exit, Failure};
use super::super::setting::Setting;
use super::arguments::Arguments;
use super::line::Seen;
use super::process::Phase;
use super::records::{StreamSizes, TOPIC};
use super::trouble::Trouble;
use super::{pattern, probe};

/// Empty polls between two checks of the phase.
const LOOKS: u32 = 4096;
/// The sleep of an idle process.
const REST: Duration = Duration::from_millis(1);

/// A process that receives a stream. The first of them is also probed, and measures the floor.
struct Drain {
    ring: Ring,
    reader: usize,
    shape: StreamSizes,
    subscriber: LogSubscriber<Raw>,
    seen: Seen,
}

/// Receives and checks the stream of the process at this address, which started this one, until told to stop.
pub(super) fn drain(arguments: &Arguments, setting: &Setting, from: &Address) -> Result<Exit, Trouble> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    arguments.cpus.settled()?.pin_answering()?;
    let size = arguments.size.first().copied().unwrap_or_default();
    let (shape, reader) = (StreamSizes::of(arguments, size)?, arguments.stream.reader);
    let ring = Ring::open(std::io::stdin().as_fd().try_clone_to_owned()?, shape.len, shape.capacity)?;
    let node = setting.node(None)?;
    let builder = node.log_subscriber::<Raw>(&format!("{from}/{TOPIC}"));
    let builder = builder.delivery(arguments.stream.delivery()).region_len_max(usize::MAX);
    // From the first record on, so that its losses count as well.
    let subscriber = builder.at(Sequence::NONE.next()).open().map_err(Failure::from)?;
    let mut drain = Drain { ring, reader, shape, subscriber, seen: Seen::default() };
    drain.obey()?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&drain.seen.with(drain.subscriber.stats()))?)?;
    Ok(Exit::Done)
}

impl Drain {
    /// Follows the phases until the last.
    fn obey(&mut self) -> Result<(), Trouble> {
        loop {
            match Phase::of(self.ring.control().phase()) {
                Phase::Probe if self.reader == 0 => probe::answer(self.ring.control()),
                phase @ (Phase::Floor | Phase::Checked) if self.reader == 0 => self.receive_floor(phase),
                Phase::Deliver => {
                    if self.receive()? {
                        return Ok(());
                    }
                }
                Phase::Stop => return Ok(()),
                // The probed process has a processor of its own.
                _ => std::thread::park_timeout(REST),
            }
        }
    }

    /// Receives values from the ring until the phase changes; checked ones are also compared.
    fn receive_floor(&mut self, phase: Phase) {
        let Self { ring, shape, seen, .. } = self;
        let mut value = vec![0; pattern::words(shape.len)];
        let (mut looks, mut unreleased) = (0_u32, 0);
        loop {
            let number = ring.count();
            let received = match phase {
                Phase::Checked => ring.try_receive_checked(&mut value),
                _ => ring.try_receive(&mut value).then_some(true),
            };
            if let Some(mut is_right) = received {
                if phase == Phase::Checked {
                    let (bytes, _) = bytemuck::cast_slice(&value).split_at(shape.len);
                    is_right &= pattern::is_right(bytes, shape.len, number);
                }
                seen.rejected += u64::from(!is_right);
                unreleased += 1;
                if unreleased < shape.batch {
                    continue;
                }
            } else {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(LOOKS) && Phase::of(ring.control().phase()) != phase {
                    return;
                }
            }
            ring.release();
            unreleased = 0;
        }
    }

    /// Receives and compares records until the phase changes (false) or the topic ends (true).
    fn receive(&mut self) -> Result<bool, Trouble> {
        let Self { ring, reader, shape, subscriber, seen } = self;
        let show_every = shape.show_every();
        let (mut looks, mut unshown, mut newest) = (0_u32, 0, 0);
        loop {
            match subscriber.try_receive_ref() {
                Ok(Some(record)) => {
                    newest = record.meta.sequence.get();
                    match pattern::is_right(record.bytes, shape.len, newest) {
                        true => seen.verified += 1,
                        false => seen.rejected += 1,
                    }
                    unshown += 1;
                    if unshown < show_every {
                        continue;
                    }
                }
                Ok(None) => {
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(LOOKS) && Phase::of(ring.control().phase()) != Phase::Deliver {
                        return Ok(false);
                    }
                    if unshown == 0 {
                        continue;
                    }
                }
                Err(
                    ReceiveError::Lapped { first_lost, count }
                    | ReceiveError::DamagedRecords { first_lost, count }
                    | ReceiveError::CutOff { first_lost, count },
                ) => newest = (first_lost.get() + count).saturating_sub(1),
                Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => return Ok(true),
                Err(error) => return Err(Failure::from(error).into()),
            }
            ring.control().set_progress(*reader, newest);
            unshown = 0;
        }
    }
}
