//! Receiving from a topic of any kind.

use std::time::Duration;

use fabricast::{AnySubscriber, Meta, Raw, ReceiveError, SampleRef};

use super::clock::Deadline;
use super::interrupt::Interrupt;

/// The pause between two polls: it doubles from the first to the second while no value arrives.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// A stored value.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) meta: Meta,
}

/// A copy of a sample, to be kept.
pub(crate) fn keep(sample: SampleRef<'_, Raw>) -> Value {
    Value { bytes: sample.bytes.to_owned(), meta: sample.meta }
}

/// Receives the next value and returns `take` of it: polls often at first, and then less often. `None` at the deadline, or when
/// the process is interrupted.
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
