//! The values, losses and end of a topic, for commands that run until one of many reasons.

use std::time::{Duration, Instant};

use fabricast::{AnySubscriber, ErrorChain, Liveness, Raw, ReceiveError, Target};

use super::clock::{self, Deadline};
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::output;
use super::subscription::{Received, receive, try_receive};

/// How often to check the publisher's heartbeat, and the longest wait for a value.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Values received without waiting between two checks of the time and the signals.
const LOOK_EVERY: u32 = 64;

/// The reason when newer values replaced others: nothing went wrong.
pub(crate) const CONFLATED: &str = "conflated";
/// The reason when newer records overwrote others.
const LAPPED: &str = "lapped";
/// The reason when bytes are not what was published.
const DAMAGED: &str = "damaged";
/// The reason when the connection was lost first.
const CUT_OFF: &str = "cut off";
/// The reason when bytes are not a value of the topic's type.
pub(crate) const UNDECODABLE: &str = "undecodable";

/// A subscriber followed for some time, or until something ends it.
#[derive(Debug)]
pub(crate) struct Arrivals<'a> {
    pub(crate) subscriber: AnySubscriber<Raw>,
    pub(crate) interrupt: &'a Interrupt,
    target: &'a Target,
    /// The activity, as in "watching continues".
    doing: &'static str,
    deadline: Option<Deadline>,
    /// The last sequence for which a value or loss was reported. Not of a table, whose changes have the sequences of commits.
    last: Option<u64>,
    /// Values since the time was last checked, all without waiting.
    unlooked: u32,
    heart: Heart,
}

/// The publisher's heart, by repeated checks.
#[derive(Debug, Default)]
struct Heart {
    /// The publisher is hung, and the user knows.
    hung: bool,
    /// When it was first found stopped since the last sign of the publisher.
    still: Option<Instant>,
}

/// What arrives, or ends the waiting.
#[derive(Debug)]
pub(crate) enum Arrival<R> {
    /// A value, and the loss before it.
    Value(R, Option<Loss>),
    /// A loss of replaced values, before a loss by an error.
    Lost(Option<Loss>, Loss),
    /// Nothing for a while.
    Nothing,
    /// The end, and why.
    Over(String),
    /// The process was interrupted.
    Interrupted,
}

/// Missing values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// The sequence of the first one; of replaced values of a key its number.
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) reason: &'static str,
}

impl Loss {
    /// The reason in words.
    pub(crate) fn cause(&self) -> &'static str {
        match (self.reason, self.count) {
            (CONFLATED, _) => "replaced by newer values",
            (LAPPED, 1) => "overwritten before it was read",
            (LAPPED, _) => "overwritten before they were read",
            (DAMAGED, _) => "damaged in the publisher's memory",
            (CUT_OFF, 1) => "the connection was lost before it was read",
            (CUT_OFF, _) => "the connection was lost before they were read",
            (UNDECODABLE, _) => "not of the topic's type",
            (reason, _) => reason,
        }
    }
}

impl<'a> Arrivals<'a> {
    /// What arrives at this subscriber within this time.
    pub(crate) fn new(
        subscriber: AnySubscriber<Raw>,
        (target, doing): (&'a Target, &'static str),
        duration: Option<Duration>,
        interrupt: &'a Interrupt,
    ) -> Self {
        let (deadline, heart) = (duration.map(Deadline::after), Heart::default());
        Self { subscriber, interrupt, target, doing, deadline, last: None, unlooked: 0, heart }
    }

    /// Returns what comes next, with `take` of its value. Waits briefly.
    pub(crate) fn next<R>(&mut self, take: impl Fn(Received<'_>) -> R) -> Result<Arrival<R>, Failure> {
        if self.unlooked >= LOOK_EVERY {
            self.unlooked = 0;
            if let Some(event) = self.ended() {
                return Ok(event);
            }
        }
        let positioned = |received: Received<'_>| {
            let replaced = received.key.map(|key| (key.number.saturating_sub(key.replaced), key.replaced));
            (received.meta.sequence.get(), replaced, take(received))
        };
        let received = match try_receive(&mut self.subscriber).map(|received| received.map(positioned)) {
            Ok(None) | Err(ReceiveError::Contended { .. }) => {
                self.unlooked = LOOK_EVERY;
                let left = self.deadline.map_or(LOOK_INTERVAL, |deadline| deadline.left().min(LOOK_INTERVAL));
                receive(&mut self.subscriber, left, self.interrupt, positioned)
            }
            received => received,
        };
        match received {
            Ok(Some((sequence, replaced, value))) => {
                self.unlooked += 1;
                self.heart.still = None;
                let missed = match replaced {
                    None => self.catch_up(sequence, sequence),
                    Some((_, 0)) => None,
                    Some((first, count)) => Some(Loss { first, count, reason: CONFLATED }),
                };
                Ok(Arrival::Value(value, missed))
            }
            Ok(None) | Err(ReceiveError::Contended { .. }) => {
                self.look_after_publisher();
                // Without values no write would fail for long.
                if output::is_abandoned() {
                    return Err(Failure::ClosedPipe);
                }
                Ok(self.ended().unwrap_or(Arrival::Nothing))
            }
            Err(ReceiveError::Ended { .. }) => Ok(Arrival::Over("it has ended".to_owned())),
            Err(error) => self.reject(error),
        }
    }

    /// Whether to check the time: after a wait, or after so many values without one.
    pub(crate) fn is_time_for_a_look(&self) -> bool {
        self.unlooked >= LOOK_EVERY
    }

    /// The failure for an end without any value.
    pub(crate) fn nothing(&self, why: &str) -> Failure {
        let hung = self.heart.hung;
        let exit = if hung { Exit::Hung } else { Exit::No };
        let because = if hung { ", and its publisher is hung" } else { "" };
        Failure::new(exit, format!("nothing arrived from {}: {why}{because}", self.target))
    }

    /// The end, if it is due before the next value.
    fn ended<R>(&self) -> Option<Arrival<R>> {
        if self.interrupt.came() {
            return Some(Arrival::Interrupted);
        }
        let deadline = self.deadline.filter(Deadline::is_over)?;
        Some(Arrival::Over(match deadline.whole() {
            Duration::ZERO => "--for 0 does not wait".to_owned(),
            whole => format!("the {} of --for are over", output::shown(whole)),
        }))
    }

    /// Turns a rejected value into a loss; any other error is a failure.
    fn reject<R>(&mut self, error: ReceiveError) -> Result<Arrival<R>, Failure> {
        let (first, count, reason) = match &error {
            ReceiveError::BrokenStamps { sequence }
            | ReceiveError::Damaged { sequence, .. }
            | ReceiveError::ForeignEpoch { sequence, .. }
            | ReceiveError::ImpossibleLen { sequence, .. } => (sequence.get(), 1, DAMAGED),
            ReceiveError::Lapped { first_lost, count } => (first_lost.get(), *count, LAPPED),
            ReceiveError::DamagedRecords { first_lost, count } => (first_lost.get(), *count, DAMAGED),
            ReceiveError::CutOff { first_lost, count } => (first_lost.get(), *count, CUT_OFF),
            ReceiveError::Gone { .. } => {
                return Err(Failure::new(Exit::Gone, format!("{}: {}", self.target, ErrorChain(&error))));
            }
            _ => return Err(error.into()),
        };
        self.unlooked += 1;
        let before = match self.subscriber {
            AnySubscriber::Table(_) => None,
            _ => self.catch_up(first, first.saturating_add(count.saturating_sub(1))),
        };
        Ok(Arrival::Lost(before, Loss { first, count, reason }))
    }

    /// The loss of values replaced before `first`.
    fn catch_up(&mut self, first: u64, last: u64) -> Option<Loss> {
        let before = self.last.replace(last)?;
        let count = first.checked_sub(before.checked_add(1)?).filter(|count| *count > 0)?;
        Some(Loss { first: before + 1, count, reason: CONFLATED })
    }

    /// Reports once that the publisher is hung, and again after it has recovered.
    fn look_after_publisher(&mut self) {
        let is_still = Liveness::of(&mut self.subscriber) == Some(Liveness::Hung);
        if self.heart.look(is_still, clock::now()) {
            let (target, doing) = (self.target, self.doing);
            let sentence =
                format!("the publisher of {target} is hung: its heartbeat has stopped; {doing} continues");
            Failure::new(Exit::Hung, sentence).note();
        }
    }
}

impl Heart {
    /// Records a check at this time. Returns whether to report the publisher as hung: after a pause of all processes this one may
    /// run first, so one check proves nothing.
    fn look(&mut self, is_still: bool, now: Instant) -> bool {
        if !is_still {
            *self = Self::default();
            return false;
        }
        let since = *self.still.get_or_insert(now);
        let is_told = self.hung;
        self.hung |= now.saturating_duration_since(since) >= LOOK_INTERVAL;
        self.hung && !is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publisher_is_hung_if_its_heart_stands_still_at_two_checks() {
        let (began, mut heart) = (clock::now(), Heart::default());
        let look = |heart: &mut Heart, is_still, ms| heart.look(is_still, began + Duration::from_millis(ms));
        // One check proves nothing, nor do several at once.
        assert!(!look(&mut heart, true, 0) && !look(&mut heart, true, 99) && !look(&mut heart, false, 100));
        assert!(!heart.hung);
        // A value has arrived meanwhile.
        assert!(!look(&mut heart, true, 200));
        heart.still = None;
        assert!(!look(&mut heart, true, 300) && !heart.hung);
        // It is reported once, and again after it has recovered.
        assert!(look(&mut heart, true, 400) && !look(&mut heart, true, 500) && heart.hung);
        assert!(!look(&mut heart, false, 600) && !heart.hung);
        assert!(!look(&mut heart, true, 700) && look(&mut heart, true, 800));
    }
}
