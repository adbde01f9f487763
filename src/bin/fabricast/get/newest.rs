//! The newest value of a topic, if there is one.

use std::time::Duration;

use fabricast::{AnySubscriber, Raw, ReceiveError, Sequence, TopicReport};

use super::super::clock::Deadline;
use super::super::failure::Failure;
use super::super::interrupt::Interrupt;
use super::super::output::{is_abandoned, shown};
use super::super::subscription::{Value, keep, receive};

/// How long to try to read an existing value: it may be overwritten during each read, or come over a wire.
pub(super) const CONTENTION: Duration = Duration::from_secs(1);
/// How long to wait for a value before checking for signals.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often a publisher may lap the ring of a log before the first read, until that is an error.
const LAPS_MAX: u32 = 16;

/// The outcome of reading the newest value.
#[derive(Debug, PartialEq)]
pub(super) enum Newest<V> {
    Value(V),
    /// Nothing has been published.
    Nothing,
    /// The topic has ended without a value.
    Ended,
    /// This value existed before the last read, which failed.
    Unread(Sequence),
    /// The newest value is older than its lifespan.
    Expired,
}

impl<V> Newest<V> {
    /// The same with `change` of the value.
    pub(super) fn map<W>(self, change: impl FnOnce(V) -> W) -> Newest<W> {
        match self {
            Self::Value(value) => Newest::Value(change(value)),
            Self::Nothing => Newest::Nothing,
            Self::Ended => Newest::Ended,
            Self::Unread(sequence) => Newest::Unread(sequence),
            Self::Expired => Newest::Expired,
        }
    }
}

/// Reads the newest value within this time.
pub(super) fn newest(
    subscriber: &mut AnySubscriber<Raw>,
    wait: Duration,
    interrupt: &Interrupt,
) -> Result<Newest<Value>, Failure> {
    let deadline = Deadline::after(wait);
    while deadline.left() > LOOK_INTERVAL {
        match take(subscriber, LOOK_INTERVAL, interrupt) {
            Ok(None) if interrupt.came() => return Ok(Newest::Nothing),
            Ok(None) if is_abandoned() => return Err(Failure::ClosedPipe),
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Ok(Some(value)) => return Ok(Newest::Value(value)),
            Err(ReceiveError::Ended { .. }) => return Ok(over(subscriber)),
            Err(error) => return Err(error.into()),
        }
    }
    let found = last_looks(
        subscriber,
        |subscriber, again| {
            let timeout = if again { CONTENTION } else { deadline.left() };
            // What has expired is there, and was read.
            if again && (interrupt.came() || subscriber.stats().expired > 0) {
                return Ok(None);
            }
            take(subscriber, timeout, interrupt)
        },
        |subscriber| Ok(TopicReport::of(subscriber)?.sequence),
    )?;
    Ok(match found {
        Newest::Value(_) => found,
        Newest::Ended => over(subscriber),
        _ if subscriber.stats().expired > 0 => Newest::Expired,
        _ => found,
    })
}

/// What a topic that has ended without a value is: its value may have expired.
pub(super) fn over<V>(subscriber: &AnySubscriber<Raw>) -> Newest<V> {
    if subscriber.stats().expired > 0 { Newest::Expired } else { Newest::Ended }
}

/// Reads once, and once more if there is a value: over a wire the first read may have been too short.
fn last_looks<S, V>(
    subscriber: &mut S,
    mut look: impl FnMut(&mut S, bool) -> Result<Option<V>, ReceiveError>,
    sequence: impl FnOnce(&mut S) -> Result<Sequence, Failure>,
) -> Result<Newest<V>, Failure> {
    match look(subscriber, false) {
        Ok(Some(value)) => return Ok(Newest::Value(value)),
        Ok(None) | Err(ReceiveError::Contended { .. }) => {}
        Err(ReceiveError::Ended { .. }) => return Ok(Newest::Ended),
        Err(error) => return Err(error.into()),
    }
    // Asked before the last read: a value published later need not be readable.
    let sequence = sequence(subscriber)?;
    if sequence == Sequence::NONE {
        return Ok(Newest::Nothing);
    }
    match look(subscriber, true) {
        Err(ReceiveError::Ended { .. }) => Ok(Newest::Ended),
        found => Ok(found?.map_or(Newest::Unread(sequence), Newest::Value)),
    }
}

/// Takes the next value. A publisher that laps the ring of a log before the first read leaves newer records.
fn take(
    subscriber: &mut AnySubscriber<Raw>,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<Option<Value>, ReceiveError> {
    let mut taken = receive(subscriber, timeout, interrupt, keep);
    for _ in 0..LAPS_MAX {
        let Err(ReceiveError::Lapped { .. }) = taken else { break };
        taken = receive(subscriber, CONTENTION, interrupt, keep);
    }
    taken
}

/// The advice to wait for what is not there, or to wait longer.
pub(super) fn advice_to_wait(waited: Duration) -> String {
    match waited.is_zero() {
        true => "wait for it with --wait TIME".to_owned(),
        false => format!("wait longer than the {} of --wait", shown(waited)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of a topic, given its newest sequences at the first read, at the question for its sequence, and at the last
    /// read.
    fn found(newest: [u64; 3], finds: bool) -> Newest<u64> {
        let mut times = newest.into_iter();
        let look = |times: &mut std::array::IntoIter<u64, 3>, _| {
            let newest = times.next().filter(|newest| *newest > 0);
            Ok(newest.filter(|_| finds))
        };
        last_looks(&mut times, look, |times| Ok(times.next().map_or(Sequence::NONE, Sequence::new))).unwrap()
    }

    #[test]
    fn value_published_during_the_reads_is_not_damaged() {
        assert_eq!(found([0, 0, 0], true), Newest::Nothing);
        assert_eq!(found([0, 0, 1], true), Newest::Nothing);
        assert_eq!(found([0, 1, 1], true), Newest::Value(1));
        assert_eq!(found([1, 1, 1], true), Newest::Value(1));
        assert_eq!(found([1, 1, 2], false), Newest::Unread(Sequence::new(1)));
    }

    #[test]
    fn topic_that_ended_without_a_value_is_told_apart() {
        let ended = |_: &mut (), _| Err::<Option<u8>, _>(ReceiveError::Ended { published: Sequence::NONE });
        assert_eq!(last_looks(&mut (), ended, |()| unreachable!()).unwrap(), Newest::Ended);
        let ends_meanwhile = |_: &mut (), again: bool| match again {
            true => Err::<Option<u8>, _>(ReceiveError::Ended { published: Sequence::new(1) }),
            false => Ok(None),
        };
        let found = last_looks(&mut (), ends_meanwhile, |()| Ok(Sequence::new(1))).unwrap();
        assert_eq!(found, Newest::Ended);
    }
}
