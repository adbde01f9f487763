//! What comes from a topic: values, losses, and the end, for verbs that go on until one of many reasons.

use std::time::{Duration, Instant};

use fabricast::{AnySubscriber, ErrorChain, Liveness, Raw, ReceiveError, SampleRef, Target};

use super::clock::{self, Deadline};
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::output;
use super::subscription::receive;

/// How often the publisher's heartbeat is looked at, and how long one call waits for a value.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Values that are there without waiting, between two looks at the time and whether the process was asked to end.
const LOOK_EVERY: u32 = 64;

/// Why values are missing that newer ones have replaced: nothing went wrong.
pub(crate) const CONFLATED: &str = "conflated";

/// A subscriber that is followed, for some time or until something ends it.
#[derive(Debug)]
pub(crate) struct Feed<'a> {
    pub(crate) subscriber: AnySubscriber<Raw>,
    pub(crate) interrupt: &'a Interrupt,
    target: &'a Target,
    /// What is done, as in "watching goes on".
    doing: &'static str,
    deadline: Option<Deadline>,
    /// The last sequence that a value or a loss was told for.
    last: Option<u64>,
    /// Values since the last look at the time. None was waited for.
    unlooked: u32,
    heart: Heart,
}

/// What looks at the publisher's heart have shown.
#[derive(Debug, Default)]
struct Heart {
    /// The publisher is hung, and the user was told that.
    hung: bool,
    /// When it was found to stand still for the first time since something came from the publisher.
    still: Option<Instant>,
}

/// What a feed brings.
#[derive(Debug)]
pub(crate) enum Event<R> {
    /// A value, and what is missing before it.
    Value(R, Option<Loss>),
    /// What is missing: replaced before the second, which was not accepted or had gone.
    Lost(Option<Loss>, Loss),
    /// Nothing for a while.
    Nothing,
    /// The end, and why.
    Over(String),
    /// The process was asked to end.
    Interrupted,
}

/// Values that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) reason: &'static str,
}

impl<'a> Feed<'a> {
    /// What comes from this subscriber within this time.
    pub(crate) fn new(
        subscriber: AnySubscriber<Raw>,
        (target, doing): (&'a Target, &'static str),
        duration: Option<Duration>,
        interrupt: &'a Interrupt,
    ) -> Self {
        let deadline = duration.map(Deadline::after);
        Self {
            subscriber,
            interrupt,
            target,
            doing,
            deadline,
            last: None,
            unlooked: 0,
            heart: Heart::default(),
        }
    }

    /// What comes next, with what is made of a value. Waits a while.
    pub(crate) fn next<R>(&mut self, take: impl Fn(SampleRef<'_, Raw>) -> R) -> Result<Event<R>, Failure> {
        if self.unlooked >= LOOK_EVERY {
            self.unlooked = 0;
            if let Some(event) = self.ended() {
                return Ok(event);
            }
        }
        let positioned = |sample: SampleRef<'_, Raw>| (sample.meta.sequence.get(), take(sample));
        let received = match self.subscriber.try_receive_ref().map(|sample| sample.map(positioned)) {
            Ok(None) | Err(ReceiveError::Contended { .. }) => {
                self.unlooked = LOOK_EVERY;
                let left = self.deadline.map_or(LOOK_INTERVAL, |deadline| deadline.left().min(LOOK_INTERVAL));
                receive(&mut self.subscriber, left, self.interrupt, positioned)
            }
            received => received,
        };
        match received {
            Ok(Some((sequence, value))) => {
                self.unlooked += 1;
                self.heart.still = None;
                Ok(Event::Value(value, self.catch_up(sequence, sequence)))
            }
            Ok(None) | Err(ReceiveError::Contended { .. }) => {
                self.look_after_publisher();
                // Nothing may come for long, and so no write that would fail.
                if output::is_abandoned() {
                    return Err(Failure::ClosedPipe);
                }
                Ok(self.ended().unwrap_or(Event::Nothing))
            }
            Err(ReceiveError::Ended { .. }) => Ok(Event::Over("it has ended".to_owned())),
            Err(error) => self.reject(error),
        }
    }

    /// Whether the time is worth a look: what came last was waited for, or so many came without waiting.
    pub(crate) fn is_time_for_a_look(&self) -> bool {
        self.unlooked >= LOOK_EVERY
    }

    /// The end, because of this, when nothing has come.
    pub(crate) fn nothing(&self, why: &str) -> Failure {
        let hung = self.heart.hung;
        let exit = if hung { Exit::Hung } else { Exit::No };
        let because = if hung { ", and its publisher is hung" } else { "" };
        Failure::new(exit, format!("nothing arrived from {}: {why}{because}", self.target))
    }

    /// Whether it is over, whatever comes.
    fn ended<R>(&self) -> Option<Event<R>> {
        if self.interrupt.came() {
            return Some(Event::Interrupted);
        }
        let deadline = self.deadline.filter(Deadline::is_over)?;
        Some(Event::Over(format!("the {} of --for are over", output::shown(deadline.whole()))))
    }

    /// What was not accepted is a loss; anything else that goes wrong ends it.
    fn reject<R>(&mut self, error: ReceiveError) -> Result<Event<R>, Failure> {
        let (first, count, reason) = match &error {
            ReceiveError::BrokenStamps { sequence }
            | ReceiveError::Damaged { sequence, .. }
            | ReceiveError::ForeignEpoch { sequence, .. }
            | ReceiveError::ImpossibleLen { sequence, .. } => (sequence.get(), 1, "damaged"),
            ReceiveError::Lapped { first_lost, count } => (first_lost.get(), *count, "lapped"),
            ReceiveError::DamagedRecords { first_lost, count } => (first_lost.get(), *count, "damaged"),
            ReceiveError::CutOff { first_lost, count } => (first_lost.get(), *count, "cut off"),
            ReceiveError::Gone { .. } => {
                return Err(Failure::new(Exit::Gone, format!("{}: {}", self.target, ErrorChain(&error))));
            }
            _ => return Err(error.into()),
        };
        self.unlooked += 1;
        let before = self.catch_up(first, first.saturating_add(count.saturating_sub(1)));
        Ok(Event::Lost(before, Loss { first, count, reason }))
    }

    /// What was replaced before the first of these, which come now, was read.
    fn catch_up(&mut self, first: u64, last: u64) -> Option<Loss> {
        let before = self.last.replace(last)?;
        let count = first.checked_sub(before.checked_add(1)?).filter(|count| *count > 0)?;
        Some(Loss { first: before + 1, count, reason: CONFLATED })
    }

    /// Says once that the publisher is hung, and again after it has come back.
    fn look_after_publisher(&mut self) {
        let is_still = Liveness::of(&mut self.subscriber) == Some(Liveness::Hung);
        if self.heart.look(is_still, clock::now()) {
            let (target, doing) = (self.target, self.doing);
            let sentence =
                format!("the publisher of {target} is hung: its heart has stopped; {doing} goes on");
            Failure::new(Exit::Hung, sentence).note();
        }
    }
}

impl Heart {
    /// Takes note of a look at this time. Whether the user is to be told that the publisher is hung: where all processes have
    /// stood still, this one may be the first to go on, so that one look proves nothing.
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
    fn a_publisher_is_hung_whose_heart_stands_still_at_two_looks() {
        let (began, mut heart) = (clock::now(), Heart::default());
        let look = |heart: &mut Heart, is_still, ms| heart.look(is_still, began + Duration::from_millis(ms));
        // One look proves nothing, and neither do several at once.
        assert!(!look(&mut heart, true, 0) && !look(&mut heart, true, 99) && !look(&mut heart, false, 100));
        assert!(!heart.hung);
        // A value has come meanwhile.
        assert!(!look(&mut heart, true, 200));
        heart.still = None;
        assert!(!look(&mut heart, true, 300) && !heart.hung);
        // It is told once, and again after it has come back.
        assert!(look(&mut heart, true, 400) && !look(&mut heart, true, 500) && heart.hung);
        assert!(!look(&mut heart, false, 600) && !heart.hung);
        assert!(!look(&mut heart, true, 700) && look(&mut heart, true, 800));
    }
}
