//! Receiving from a topic of any kind.

use std::time::Duration;

use fabricast::{AnySubscriber, Change, Meta, Raw, ReceiveError, SnapshotEntry};

use super::clock::Deadline;
use super::interrupt::Interrupt;

/// The pause between two polls: it doubles from the first to the second while no value arrives.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// A received value, in the subscriber's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    /// Its bytes; none if its key was removed.
    pub(crate) bytes: &'a [u8],
    pub(crate) meta: Meta,
    /// Its key, if the topic is a table.
    pub(crate) key: Option<Keyed<&'a [u8]>>,
    /// The line that brought it, by its place.
    pub(crate) line: usize,
}

/// The key of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed<B> {
    pub(crate) bytes: B,
    /// How often it has changed since it was added.
    pub(crate) number: u64,
    /// Values of the key that this one replaced before they were received.
    pub(crate) replaced: u64,
    /// It was removed.
    pub(crate) is_removed: bool,
}

/// A stored value.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) meta: Meta,
    pub(crate) key: Option<Keyed<Vec<u8>>>,
}

impl<'a> From<Change<&'a [u8], &'a [u8]>> for Received<'a> {
    fn from(change: Change<&'a [u8], &'a [u8]>) -> Self {
        let Change { key: bytes, value, meta, number, replaced, .. } = change;
        let key = Keyed { bytes, number, replaced, is_removed: value.is_none() };
        Self { bytes: value.unwrap_or_default(), meta, key: Some(key), line: 0 }
    }
}

impl From<SnapshotEntry<Vec<u8>, Vec<u8>>> for Value {
    fn from(entry: SnapshotEntry<Vec<u8>, Vec<u8>>) -> Self {
        let SnapshotEntry { key: bytes, value, meta, number, .. } = entry;
        let key = Keyed { bytes, number, replaced: 0, is_removed: false };
        Self { bytes: value, meta, key: Some(key) }
    }
}

/// A copy of a value, to be kept.
pub(crate) fn keep(received: Received<'_>) -> Value {
    let Received { bytes, meta, key, .. } = received;
    let key = key.map(|key| Keyed {
        bytes: key.bytes.to_owned(),
        number: key.number,
        replaced: key.replaced,
        is_removed: key.is_removed,
    });
    Value { bytes: bytes.to_owned(), meta, key }
}

/// Receives the next value, if there is one. Does not wait.
pub(crate) fn try_receive(subscriber: &mut AnySubscriber<Raw>) -> Result<Option<Received<'_>>, ReceiveError> {
    match subscriber {
        AnySubscriber::Table(table) => Ok(table.try_change()?.map(Received::from)),
        other => {
            let sample = other.try_receive_ref()?;
            Ok(sample.map(|sample| Received { bytes: sample.bytes, meta: sample.meta, key: None, line: 0 }))
        }
    }
}

/// Receives the next value and returns `take` of it, like [`poll`].
pub(crate) fn receive<R>(
    subscriber: &mut AnySubscriber<Raw>,
    timeout: Duration,
    interrupt: &Interrupt,
    take: impl Fn(Received<'_>) -> R,
) -> Result<Option<R>, ReceiveError> {
    poll(timeout, interrupt, || Ok(try_receive(subscriber)?.map(&take)))
}

/// Attempts to receive until something is received: often at first, and then less often. `None` at the deadline, or when the process
/// is interrupted.
pub(crate) fn poll<R>(
    timeout: Duration,
    interrupt: &Interrupt,
    mut attempt: impl FnMut() -> Result<Option<R>, ReceiveError>,
) -> Result<Option<R>, ReceiveError> {
    let deadline = Deadline::after(timeout);
    let mut pause = PAUSE_MIN;
    loop {
        match attempt() {
            Ok(None) | Err(ReceiveError::Contended { .. }) if !deadline.is_over() => {}
            outcome => return outcome,
        }
        if interrupt.pause(pause.min(deadline.left())) {
            return Ok(None);
        }
        pause = PAUSE_MAX.min(pause * 2);
    }
}
