use std::time::Duration;

use fabricast::measure::Ring;
use fabricast::{Address, LogSubscriber, Raw, Sequence};

use super::super::failure::{Exit, Failure};
use super::super::setting::Setting;
use super::arguments::{Arguments, Contents};
use super::line::Seen;
use super::probe::rest;
use super::process::{Phase, inherited};
use super::records::{StreamSizes, TOPIC};
use super::trouble::Trouble;
use super::{pattern, probe, records};

/// The sleep of an idle process.
const SLEEP: Duration = Duration::from_millis(1);

/// A process that receives a stream. The first of them is also probed, and measures the floor.
struct Drain {
    ring: Ring,
    reader: usize,
    shape: StreamSizes,
    subscriber: LogSubscriber<Raw>,
    in_place: bool,
    seen: Seen,
}

/// Receives and checks the stream of the process at this address, which started this one, until told to stop.
pub(super) fn drain(arguments: &Arguments, setting: &Setting, from: &Address) -> Result<Exit, Trouble> {
    let memory = inherited()?;
    arguments.cpus.settled()?.pin_answering()?;
    let size = arguments.size.first().copied().unwrap_or_default();
    let (shape, reader) = (StreamSizes::of(arguments, size)?, arguments.stream.reader);
    let ring = Ring::open(memory, shape.len, shape.capacity)?;
    let node = setting.node(None)?;
    let builder = node.log_subscriber::<Raw>(&format!("{from}/{TOPIC}"));
    let builder = builder.delivery(arguments.delivery()).region_len_max(usize::MAX);
    let builder = builder.slow(arguments.stream.policy());
    // From the first record on, so that its losses count as well.
    let subscriber = builder.at(Sequence::NONE.next()).open().map_err(Failure::from)?;
    let in_place = arguments.stream.in_place;
    let mut drain = Drain { ring, reader, shape, subscriber, in_place, seen: Seen::default() };
    drain.obey()?;
    drain.seen.with(drain.subscriber.stats()).tell()
}

impl Drain {
    /// Follows the phases until the last.
    fn obey(&mut self) -> Result<(), Trouble> {
        loop {
            let phase = Phase::of(self.ring.control().phase());
            if self.reader == 0 {
                self.ring.control().enter(phase.number());
            }
            match phase {
                Phase::Probe if self.reader == 0 => probe::answer(self.ring.control()),
                Phase::Floor | Phase::Checked if self.reader == 0 => self.receive_floor(phase),
                Phase::Deliver => {
                    if self.receive()? {
                        return Ok(());
                    }
                }
                Phase::Stop => return Ok(()),
                // The probed process has a processor of its own.
                _ => std::thread::park_timeout(SLEEP),
            }
        }
    }

    /// Receives values from the ring until the phase changes; of bare ones only the number is compared.
    fn receive_floor(&mut self, phase: Phase) {
        let Self { ring, shape, seen, .. } = self;
        let mut value = vec![0; pattern::words(shape.len)];
        loop {
            let number = ring.count();
            let received = match phase {
                Phase::Checked => ring.try_receive_checked(&mut value),
                _ => ring.try_receive(&mut value).then_some(true),
            };
            if let Some(mut is_right) = received {
                let (bytes, _) = bytemuck::cast_slice(&value).split_at(shape.len);
                let contents = if phase == Phase::Checked { shape.contents } else { Contents::Number };
                is_right &= contents.is_right(bytes, shape.len, number);
                seen.rejected += u64::from(!is_right);
                ring.release_part();
            } else {
                ring.release();
                if Phase::of(ring.control().phase()) != phase {
                    return;
                }
                rest();
            }
        }
    }

    /// Receives and compares records until the phase changes (false) or the topic ends (true).
    fn receive(&mut self) -> Result<bool, Trouble> {
        let Self { ring, reader, shape, subscriber, in_place, seen } = self;
        let control = ring.control();
        let is_over = || Phase::of(control.phase()) != Phase::Deliver;
        let from = (subscriber, *in_place, shape.contents);
        records::receive(from, seen, shape.show_every(), is_over, |subscriber, _| {
            control.set_progress(*reader, subscriber.next_sequence().get() - 1);
            Ok(())
        })
    }
}
