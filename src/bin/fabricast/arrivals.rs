//! The values, losses and end of a topic, for commands that run until one of many reasons.

use std::time::{Duration, Instant};

use fabricast::{AnySubscriber, Epoch, ErrorChain, Kind, Liveness, Raw, ReceiveError, Sequence};

use super::clock::{self, Deadline};
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::keys::{KeyArguments, KeyFilter};
use super::news::{LineEvent, News, NewsLine};
use super::output;
use super::place::Place;
use super::source::Source;
use super::subscription::Received;

/// How often to check the publisher's heartbeat, and the longest wait for a value.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Values received without waiting between two checks of the time and the signals.
const LOOK_EVERY: u32 = 64;

/// The reason when newer values replaced others: nothing went wrong.
pub(crate) const CONFLATED: &str = "conflated";
/// The reason when newer records overwrote others.
const LAPPED: &str = "lapped";
/// The reason when bytes are not what was published.
pub(crate) const DAMAGED: &str = "damaged";
/// The reason when the connection was lost first.
pub(crate) const CUT_OFF: &str = "cut off";
/// The reason when no line has brought records.
const MISSING: &str = "missing";
/// The reason when bytes are not a value of the topic's type.
pub(crate) const UNDECODABLE: &str = "undecodable";

/// What is followed, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed<'a> {
    pub(crate) target: &'a Place,
    /// For how long.
    pub(crate) duration: Option<Duration>,
    /// News of publishers are also lines of JSON.
    pub(crate) is_json: bool,
}

/// A subscriber followed for some time, or until something ends it.
#[derive(Debug)]
pub(crate) struct Arrivals<'a> {
    source: Source,
    interrupt: &'a Interrupt,
    followed: Followed<'a>,
    deadline: Option<Deadline>,
    /// The kind of the topic, once it is known.
    kind: Option<Kind>,
    /// The epoch of what was last received or reported.
    epoch: Option<Epoch>,
    /// The last sequence for which a value or loss was reported. Not of a table, whose changes have the sequences of commits.
    last: Option<u64>,
    /// How many values had expired before it.
    expired_before: u64,
    /// Values since the time was last checked, all without waiting.
    unlooked: u32,
    /// An error that came with news, which are reported first.
    held: Option<ReceiveError>,
    /// The heart of each line's publisher, and when they were last checked.
    hearts: Vec<Heart>,
    looked: Option<Instant>,
}

/// The publisher's heart, by repeated checks.
#[derive(Clone, Copy, Debug, Default)]
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
    /// The publisher was lost.
    Parted,
    /// A publisher was found: its values may be of another type. Its sequences begin anew if it is a new one.
    Found { is_new: bool },
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
            (CUT_OFF, 1) => "its publisher ended or was lost before it was read",
            (CUT_OFF, _) => "their publisher ended or was lost before they were read",
            (MISSING, _) => "no line has brought them",
            (UNDECODABLE, _) => "not of the topic's type",
            (reason, _) => reason,
        }
    }
}

impl<'a> Arrivals<'a> {
    /// What arrives from this source.
    pub(crate) fn new(source: Source, followed: Followed<'a>, interrupt: &'a Interrupt) -> Self {
        let deadline = followed.duration.map(Deadline::after);
        let epoch = source.current().map(AnySubscriber::epoch);
        let (kind, hearts) =
            (source.current().map(AnySubscriber::kind), vec![Heart::default(); source.lines()]);
        Self {
            source,
            interrupt,
            followed,
            deadline,
            kind,
            epoch,
            last: None,
            expired_before: 0,
            unlooked: 0,
            held: None,
            hearts,
            looked: None,
        }
    }

    /// Waits until the topic exists, and limits it to these keys; `None` if the process was interrupted before.
    pub(crate) fn begin(&mut self, keys: &KeyArguments) -> Result<Option<KeyFilter>, Failure> {
        while self.source.current().is_none() {
            match self.next(|_| ())? {
                Arrival::Over(why) => return Err(self.nothing(&why)),
                Arrival::Interrupted => return Ok(None),
                _ => {}
            }
        }
        keys.apply(&mut self.source, self.followed.target).map(Some)
    }

    /// The subscriber that is attached, or was last.
    pub(crate) fn current(&self) -> Option<&AnySubscriber<Raw>> {
        self.source.current()
    }

    /// Whether the process was interrupted.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.interrupt.came()
    }

    /// Whether the time of --for is over.
    pub(crate) fn is_out_of_time(&self) -> bool {
        self.deadline.as_ref().is_some_and(Deadline::is_over)
    }

    /// The last sequence received.
    pub(crate) fn last(&self) -> Sequence {
        self.source.last()
    }

    /// Whether a damaged value of one line is still expected from another.
    pub(crate) fn has_pending_damage(&self) -> bool {
        self.source.has_pending_damage()
    }

    /// The last sequence published before.
    pub(crate) fn newest_at_start(&self) -> Sequence {
        self.source.newest_at_start()
    }

    /// Prints what is known of each line on standard error, if there are several.
    pub(crate) fn summarize(&self) {
        self.source.summarize();
    }

    /// How many values had expired when they were read, and were left out; 0 if there are several lines.
    pub(crate) fn expired(&self) -> u64 {
        let subscriber = self.current().filter(|_| self.source.lines() == 1);
        subscriber.map_or(0, |subscriber| subscriber.stats().expired)
    }

    /// Prints on standard error how many values had expired, if some had.
    pub(crate) fn note_expired(&self) {
        let left_out = match self.expired() {
            0 => return,
            1 => "1 value was left out, because it had expired".to_owned(),
            expired => format!("{expired} values were left out, because they had expired"),
        };
        Failure::new(Exit::Done, format!("{}: {left_out}", self.followed.target)).note();
    }

    /// Prints what is known of each line, if there are several, and returns the failure that ends the command.
    pub(crate) fn failed(&self, failure: Failure) -> Failure {
        if !matches!(failure, Failure::ClosedPipe) {
            self.summarize();
        }
        failure
    }

    /// Returns what comes next, with `take` of its value. Waits briefly.
    pub(crate) fn next<R>(&mut self, take: impl Fn(Received<'_>) -> R) -> Result<Arrival<R>, Failure> {
        self.try_next(take).map_err(|failure| self.failed(failure))
    }

    fn try_next<R>(&mut self, take: impl Fn(Received<'_>) -> R) -> Result<Arrival<R>, Failure> {
        if self.unlooked >= LOOK_EVERY {
            self.unlooked = 0;
            if let Some(event) = self.ended() {
                return Ok(event);
            }
            if self.hearts.len() > 1 || self.hearts.iter().any(|heart| heart.hung) {
                // While one line brings values, another may hang; and those of one that runs again may leave no pause.
                self.look_after_publishers();
            }
        }
        if let Some(news) = self.source.take_news() {
            return self.report(news);
        }
        if let Some(error) = self.held.take() {
            return self.end(error);
        }
        let positioned = |received: Received<'_>| {
            let replaced = received.key.map(|key| (key.number.saturating_sub(key.replaced), key.replaced));
            (received.meta.sequence.get(), (received.line, replaced), take(received))
        };
        let received = match self.source.try_receive(positioned) {
            Ok(None) | Err(ReceiveError::Contended { .. }) if !self.source.has_news() => {
                self.unlooked = LOOK_EVERY;
                let left = self.deadline.map_or(LOOK_INTERVAL, |deadline| deadline.left().min(LOOK_INTERVAL));
                self.source.receive(left, self.interrupt, positioned)
            }
            received => received,
        };
        if !matches!(received, Ok(Some(_)))
            && let Some(news) = self.source.take_news()
        {
            self.held = received.err().filter(|error| !matches!(error, ReceiveError::Contended { .. }));
            return self.report(news);
        }
        match received {
            Ok(Some((sequence, (line, replaced), value))) => {
                self.unlooked += 1;
                self.hearts.get_mut(line).into_iter().for_each(|heart| heart.still = None);
                let missed = match replaced {
                    None => self.catch_up(sequence, sequence),
                    Some((_, 0)) => None,
                    Some((first, count)) => Some(Loss { first, count, reason: CONFLATED }),
                };
                Ok(Arrival::Value(value, missed))
            }
            Ok(None) | Err(ReceiveError::Contended { .. }) => {
                self.look_after_publishers();
                if let Some(news) = self.source.take_news() {
                    return self.report(news);
                }
                // Without values no write would fail for long.
                if output::is_abandoned() {
                    return Err(Failure::ClosedPipe);
                }
                Ok(self.ended().unwrap_or(Arrival::Nothing))
            }
            Err(error) => self.end(error),
        }
    }

    /// What an error means: the end of the topic, a loss, or a failure.
    fn end<R>(&mut self, error: ReceiveError) -> Result<Arrival<R>, Failure> {
        match error {
            ReceiveError::Ended { .. } if self.source.lines() > 1 => {
                Ok(Arrival::Over("the topic has ended".to_owned()))
            }
            ReceiveError::Ended { .. } => Ok(Arrival::Over("it has ended".to_owned())),
            error => self.reject(error),
        }
    }

    /// Whether to check the time: after a wait, or after so many values without one.
    pub(crate) fn is_time_for_a_look(&self) -> bool {
        self.unlooked >= LOOK_EVERY
    }

    /// The failure for an end without any value. Prints what is known of each line, if there are several.
    pub(crate) fn nothing(&self, why: &str) -> Failure {
        let is_one = self.source.lines() == 1;
        let hearts = self.hearts.iter().enumerate();
        let attached: Vec<&Heart> =
            hearts.filter(|(line, _)| self.source.has_publisher(*line)).map(|(_, heart)| heart).collect();
        let (exit, because) = match attached.as_slice() {
            [] if is_one => (Exit::No, ", and it has no publisher"),
            [] => (Exit::No, ", and no line has a publisher"),
            [only] if only.hung && is_one => (Exit::Hung, ", and its publisher is hung"),
            [only] if only.hung => (Exit::Hung, ", and the only publisher is hung"),
            all if all.iter().all(|heart| heart.hung) => (Exit::Hung, ", and all publishers are hung"),
            _ => (Exit::No, ""),
        };
        self.note_expired();
        let from = if is_one { self.followed.target.to_string() } else { "any line".to_owned() };
        self.failed(Failure::new(exit, format!("nothing arrived from {from}: {why}{because}")))
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

    /// Reports what has happened to the publisher.
    fn report<R>(&mut self, news: News) -> Result<Arrival<R>, Failure> {
        self.unlooked += 1;
        if news == News::Retyped {
            return Ok(Arrival::Found { is_new: false });
        }
        let is_of_same = news.is_of_same();
        for (line, heart) in self.hearts.iter_mut().enumerate().filter(|_| !is_of_same) {
            if !matches!(&news, News::Line(news) if self.source.target(line) != Some(&news.target)) {
                *heart = Heart::default();
            }
        }
        let (event, what) = news.described(self.kind.is_none());
        let (target, current) = (self.followed.target, self.source.current());
        let (line, epoch) = match &news {
            News::Line(line) => (Some(&line.target), line.epoch),
            // The next publisher may have been found by now.
            News::Lost { .. } => (None, self.epoch.or_else(|| current.map(AnySubscriber::epoch))),
            _ => (None, current.map(AnySubscriber::epoch)),
        };
        self.epoch = epoch;
        let followed = match news {
            News::Restarted => self.source.received(),
            _ => None,
        };
        let sentence = match (line, followed) {
            (Some(line), _) => format!("{line}: {what}"),
            (None, Some(line)) => format!("{line}: values of its epoch follow: sequences begin anew"),
            (None, None) => format!("{target}: {what}"),
        };
        Failure::new(Exit::Gone, sentence).note();
        if self.followed.is_json {
            let (line, epoch) = (line.map(ToString::to_string), epoch.map(|epoch| epoch.to_string()));
            let (topic, waited_ns) = (target.topic.as_str(), news.waited_ns());
            let line = NewsLine { topic, event, epoch, line, waited_ns, reason: news.reason() };
            output::json_line(&mut std::io::stdout(), &line)?;
        }
        if is_of_same {
            return Ok(Arrival::Nothing);
        }
        let is_found = match &news {
            News::Lost { .. } => false,
            News::Line(line) => matches!(line.event, LineEvent::Found { .. }),
            _ => true,
        };
        if !is_found {
            return Ok(Arrival::Parted);
        }
        let kind = current.map(AnySubscriber::kind);
        if let (Some(before), Some(kind)) = (std::mem::replace(&mut self.kind, kind), kind)
            && kind != before
        {
            let sentence = format!("{target} is now a {kind}, and was a {before}: start this command again");
            return Err(Failure::new(Exit::No, sentence));
        }
        let is_new = news == News::Restarted;
        self.last = self.last.filter(|_| !is_new);
        Ok(Arrival::Found { is_new })
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
            ReceiveError::Missing { first_lost, count } => (first_lost.get(), *count, MISSING),
            ReceiveError::CutOff { first_lost, count } => (first_lost.get(), *count, CUT_OFF),
            ReceiveError::Gone { .. } if self.source.lines() > 1 => {
                let sentence = "no line has a publisher any more, and none has ended the topic";
                return Err(Failure::new(Exit::Gone, sentence));
            }
            ReceiveError::Gone { source } => {
                let exit = if source.denies_access() { Exit::Refused } else { Exit::Gone };
                let sentence = format!("{}: {}", self.followed.target, ErrorChain(&error));
                return Err(Failure::new(exit, sentence));
            }
            ReceiveError::Overdue { waited, .. } => return self.report(News::Overdue(*waited)),
            ReceiveError::NotResumed { source } => {
                let sentence = format!("{}: {error}: {}", self.followed.target, Failure::from(&**source));
                Failure::new(Exit::Refused, sentence).note();
                return Ok(Arrival::Nothing);
            }
            _ => return Err(error.into()),
        };
        self.unlooked += 1;
        let before = match self.current() {
            Some(AnySubscriber::Table(_)) => None,
            _ => self.catch_up(first, first.saturating_add(count.saturating_sub(1))),
        };
        Ok(Arrival::Lost(before, Loss { first, count, reason }))
    }

    /// The loss of values replaced before `first`. Those that have expired were not replaced.
    fn catch_up(&mut self, first: u64, last: u64) -> Option<Loss> {
        // What lines report lost may have been awaited from another one meanwhile.
        let Some(before) = self.last.replace(self.last.map_or(last, |before| before.max(last))) else {
            self.expired_before = self.expired();
            return None;
        };
        let missing = first.checked_sub(before.checked_add(1)?).filter(|missing| *missing > 0)?;
        let expired = self.expired();
        let expired = expired.saturating_sub(std::mem::replace(&mut self.expired_before, expired));
        let count = missing.checked_sub(expired).filter(|count| *count > 0)?;
        Some(Loss { first: before + 1, count, reason: CONFLATED })
    }

    /// Adds to the news that a publisher hangs, once, and that it has recovered.
    fn look_after_publishers(&mut self) {
        let now = clock::now();
        let is_due = self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_INTERVAL);
        // What is not reported yet may be that a publisher is another one.
        if !is_due || self.source.has_news() {
            return;
        }
        self.looked = Some(now);
        for (line, heart) in self.hearts.iter_mut().enumerate() {
            let is_still = match self.source.liveness(line, heart.hung) {
                Some(Liveness::Hung) => true,
                Some(Liveness::Live) => false,
                // It is lost: that is other news.
                _ => continue,
            };
            if let Some(is_hung) = heart.look(is_still, now) {
                self.source.note_pulse(line, is_hung);
            }
        }
    }
}

impl Heart {
    /// Records a check at this time. Returns whether the publisher is hung, if that is news: after a pause of all processes this one
    /// may run first, so one check proves nothing.
    fn look(&mut self, is_still: bool, now: Instant) -> Option<bool> {
        let was_hung = self.hung;
        if is_still {
            let since = *self.still.get_or_insert(now);
            self.hung |= now.saturating_duration_since(since) >= LOOK_INTERVAL;
        } else {
            *self = Self::default();
        }
        (self.hung != was_hung).then_some(self.hung)
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
        let checks = [(true, 0), (true, 99), (false, 100)];
        assert_eq!(checks.map(|(is_still, ms)| look(&mut heart, is_still, ms)), [None; 3]);
        // A value has arrived meanwhile.
        assert_eq!(look(&mut heart, true, 200), None);
        heart.still = None;
        assert_eq!(look(&mut heart, true, 300), None);
        // It is news once, and so is its end.
        assert_eq!([400, 500].map(|ms| look(&mut heart, true, ms)), [Some(true), None]);
        assert_eq!([600, 700].map(|ms| look(&mut heart, false, ms)), [Some(false), None]);
        assert_eq!([800, 900].map(|ms| look(&mut heart, true, ms)), [None, Some(true)]);
    }
}
