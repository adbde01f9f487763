//! What comes from a topic of any kind.

use std::time::Duration;

use fabricast::{AnySubscriber, Meta, Raw, ReceiveError, SampleRef};

use super::clock::Deadline;
use super::interrupt::Interrupt;

/// The pause between two polls: it doubles from the first to the second while nothing comes.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// A value that was kept.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) meta: Meta,
}

/// A copy of what was received, to be kept.
pub(crate) fn keep(sample: SampleRef<'_, Raw>) -> Value {
    Value { bytes: sample.bytes.to_owned(), meta: sample.meta }
}

/// What is made of the next value, waiting for it: polls often at first, and less often the longer none comes. `None` when the
/// time is over or the process was asked to end.
pub(crate) fn receive<R>(
    subscriber: &mut AnySubscriber<Raw>,
    timeout: Duration,
    interrupt: &Interrupt,
    take: impl Fn(SampleRef<'_, Raw>) -> R,
) -> Result<Option<R>, ReceiveError> {
    let deadline = Deadline::after(timeout);
    let mut pause = PAUSE_MIN;
    loop {
        match subscriber.try_receive_ref() {
            Ok(None) | Err(ReceiveError::Contended { .. }) if !deadline.is_over() => {}
            outcome => return Ok(outcome?.map(take)),
        }
        if interrupt.pause(pause.min(deadline.left())) {
            return Ok(None);
        }
        pause = PAUSE_MAX.min(pause * 2);
    }
}
