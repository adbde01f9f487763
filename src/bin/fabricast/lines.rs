//! A topic followed on several lines: publishers of the same values.

use std::collections::VecDeque;
use std::sync::Arc;

use fabricast::{
    AnySubscriber, Change, ControlError, Delivery, Kind, LineReport, Lines, Liveness, Node, Persistent, Raw,
    ReceiveError, Schema, Sequence, Target,
};

use super::failure::{Exit, Failure};
use super::news::{LineEvent, LineNews, News, other_type};
use super::pulses::Pulses;
use super::subscription::{Keyed, Received};

/// Values received between two checks of the lines.
const LOOK_EVERY: u32 = 64;

/// The subscriber of all lines.
#[derive(Debug)]
pub(crate) struct FollowedLines {
    lines: Lines<AnySubscriber<Raw>>,
    /// What was reported of each line.
    reported: Vec<Reported>,
    /// A value that comes after news.
    held: Option<Change<Vec<u8>, Vec<u8>>>,
    /// Values since the lines were last checked.
    unlooked: u32,
    /// The line that brought the last value, and the schema of values that the command knows.
    brought: Option<usize>,
    schema: Option<Schema>,
    /// End when no line has a publisher any more.
    until_end: bool,
    /// The node that follows them, and what it knows of their publishers.
    node: Node,
    pulses: Arc<Pulses>,
}

/// What was reported of a line.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    /// Its values are received.
    is_received: bool,
    /// The numbers of two schemas: its values were reported to be of one type, and those of another line of the other.
    types: Option<[u64; 2]>,
    /// It has no publisher. A connection that breaks does not mean that yet.
    is_lost: bool,
    /// It had a publisher before.
    was_found: bool,
    outages: u64,
    /// The values it had brought when its heart was last checked.
    brought: u64,
}

impl FollowedLines {
    pub(crate) fn new(
        lines: Lines<AnySubscriber<Raw>>,
        until_end: bool,
        (node, pulses): (Node, Arc<Pulses>),
    ) -> Self {
        let status = |line: &LineReport| Reported {
            is_lost: !line.is_attached,
            was_found: line.is_attached,
            outages: line.outages,
            ..Reported::default()
        };
        let reported = lines.report().iter().map(status).collect();
        let schema = lines.current().map(|subscriber| subscriber.schema().clone());
        let (held, brought) = (None, None);
        // They are checked with the first value.
        let unlooked = LOOK_EVERY;
        let it = Self { lines, reported, held, unlooked, brought, schema, until_end, node, pulses };
        (0..it.count()).filter(|line| it.has_publisher(*line)).for_each(|line| it.identify(line));
        it
    }

    /// Asks for the name and process of a publisher on another host, if only events of the node show whether it hangs: they name these,
    /// and not its address.
    fn identify(&self, line: usize) {
        let Some(persistent) = self.lines.line(line) else { return };
        let address = &persistent.target().address;
        let is_pushed =
            persistent.current().is_some_and(|subscriber| subscriber.delivery() == Delivery::Push);
        if is_pushed && !address.is_local() {
            // It has just answered. If it does not again, what happens to any publisher counts for it, too.
            let directory = self.node.directory(address).ok();
            self.pulses.identify(line, directory.map(|directory| (directory.node, directory.process)));
        }
    }

    /// The subscriber of the line that brought the last value, or else of one that is received, or was last.
    pub(crate) fn current(&self) -> Option<&AnySubscriber<Raw>> {
        self.lines.current()
    }

    /// The publisher of a line from which values are received.
    pub(crate) fn received_target(&self) -> Option<Target> {
        let received = |line: &LineReport| line.is_attached && line.is_in_step;
        self.lines.report().into_iter().find(received).map(|line| line.target)
    }

    /// How many lines there are.
    pub(crate) fn count(&self) -> usize {
        self.reported.len()
    }

    /// The publisher of a line.
    pub(crate) fn target(&self, line: usize) -> Option<&Target> {
        self.lines.line(line).map(Persistent::target)
    }

    /// Whether a line has a publisher, as far as it knows.
    pub(crate) fn has_publisher(&self, line: usize) -> bool {
        self.lines.line(line).is_some_and(Persistent::is_attached)
    }

    /// Whether the publisher of a line is alive; `None` if it has none, or that cannot be seen. One that was not hung, and has brought
    /// values since the last call, is: over a wire the question takes a round trip.
    pub(crate) fn liveness(&mut self, line: usize, was_hung: bool) -> Option<Liveness> {
        let subscriber = self.lines.attached(line)?;
        let brought = subscriber.stats().received;
        let before = &mut self.reported.get_mut(line)?.brought;
        match std::mem::replace(before, brought) != brought && !was_hung {
            true => Some(Liveness::Live),
            false => Liveness::of(subscriber),
        }
    }

    /// The news that the publisher of a line hangs, or does not any more.
    pub(crate) fn pulse_news(&self, line: usize, is_hung: bool) -> Option<News> {
        let LineReport { target, epoch, .. } = self.lines.report().into_iter().nth(line)?;
        let event = if is_hung { LineEvent::Hung } else { LineEvent::Recovered };
        Some(News::Line(LineNews { target, epoch, event }))
    }

    /// Applies a setting to the subscriber of each line, also of publishers found later.
    pub(crate) fn configure(&mut self, setting: impl Fn(&mut AnySubscriber<Raw>) + Send + Sync + 'static) {
        self.lines.configure(setting);
    }

    /// Whether a line has a publisher, as far as they know.
    pub(crate) fn is_attached(&self) -> bool {
        self.lines.report().iter().any(|line| line.is_attached)
    }

    /// The last value that was received; of a table, the commit up to which all were.
    pub(crate) fn last(&self) -> Sequence {
        if !self.is_table() {
            // What is held was not returned yet.
            let held = self.held.as_ref().map(|change| change.meta.sequence.get().saturating_sub(1));
            return held.map_or_else(|| self.lines.last(), Sequence::new);
        }
        let report = self.lines.report().into_iter();
        report.filter(|line| line.is_in_step).map(|line| line.last).max().unwrap_or_default()
    }

    /// Whether a damaged value of one line is still expected from another.
    pub(crate) fn has_pending_damage(&self) -> bool {
        self.lines.has_pending_damage()
    }

    /// The last value that the publishers had published when the command started.
    pub(crate) fn newest_at_start(&self) -> Sequence {
        let lines = (0..).map_while(|index| self.lines.line(index)).zip(self.lines.report());
        let same = lines.filter(|(_, report)| report.is_in_step).filter_map(|(line, _)| line.current());
        same.map(AnySubscriber::newest_at_start).max().unwrap_or_default()
    }

    /// The kind of a line's topic.
    fn kind_of(&self, target: &Target) -> Option<Kind> {
        let mut lines = (0..).map_while(|line| self.lines.line(line));
        lines.find(|line| line.target() == target)?.current().map(AnySubscriber::kind)
    }

    fn is_table(&self) -> bool {
        matches!(self.current(), Some(AnySubscriber::Table(_)))
    }

    /// Receives the next value, if a line has it, and returns `take` of it. Adds what has happened to the lines to the news: then the
    /// value comes with the next call.
    pub(crate) fn try_receive<R>(
        &mut self,
        news: &mut VecDeque<News>,
        take: impl FnOnce(Received<'_>) -> R,
    ) -> Result<Option<R>, ReceiveError> {
        if let Some(change) = self.held.take() {
            return Ok(Some(take(self.received(&change))));
        }
        let had_topic = self.lines.epoch().is_some();
        match self.lines.try_change() {
            Ok(Some(change)) => {
                self.unlooked += 1;
                let is_other =
                    std::mem::replace(&mut self.brought, self.lines.brought()) != self.lines.brought();
                let is_retyped = is_other && self.is_retyped();
                if !had_topic || is_retyped || self.unlooked >= LOOK_EVERY {
                    self.note_changes(news);
                }
                if is_retyped {
                    self.note_type(news);
                }
                if !news.is_empty() {
                    self.held = Some(change);
                    return Ok(None);
                }
                Ok(Some(take(self.received(&change))))
            }
            Ok(None) => {
                self.note_changes(news);
                self.end_if_over().map(|()| None)
            }
            Err(ReceiveError::OutOfStep { line: target, epoch, expected }) => {
                self.note_changes(news);
                let kinds = self.kind_of(&target).zip(self.current().map(AnySubscriber::kind));
                let event = match kinds.filter(|_| epoch == expected) {
                    Some((kind, expected)) => LineEvent::OtherKind { kind, expected },
                    None => LineEvent::OutOfStep { expected },
                };
                news.push_back(News::Line(LineNews { target: *target, epoch: Some(epoch), event }));
                Ok(None)
            }
            Err(ReceiveError::Restarted { .. }) => {
                self.note_changes(news);
                news.push_back(News::Restarted);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether values are of another type than those before.
    fn is_retyped(&self) -> bool {
        self.lines.current().map(AnySubscriber::schema) != self.schema.as_ref()
    }

    /// Adds to the news that values are of another type than those before.
    fn note_type(&mut self, news: &mut VecDeque<News>) {
        if self.is_retyped() {
            self.schema = self.lines.current().map(|subscriber| subscriber.schema().clone());
            news.push_back(News::Retyped);
        }
    }

    /// Adds to the news which lines have values of another type than the first one that is received.
    fn note_types(&mut self, news: &mut VecDeque<News>) {
        let lines = (0..).map_while(|place| self.lines.line(place)).zip(&mut self.reported);
        let mut first = None::<(&Target, &Schema)>;
        for (line, reported) in lines.filter(|(_, reported)| reported.is_received) {
            let Some(subscriber) = line.current() else { continue };
            let (target, schema) = (line.target(), subscriber.schema());
            let other = *first.get_or_insert((target, schema));
            let Some(types) = other_type(schema, other) else {
                reported.types = None;
                continue;
            };
            let both = Some([schema.hash(), other.1.hash()]);
            if std::mem::replace(&mut reported.types, both) != both {
                let (target, epoch) = (target.clone(), Some(subscriber.epoch()));
                news.push_back(News::Line(LineNews { target, epoch, event: LineEvent::OtherType(types) }));
            }
        }
    }

    /// Adds what has happened to the lines since the last call to the news.
    fn note_changes(&mut self, news: &mut VecDeque<News>) {
        self.unlooked = 0;
        let (mut found, mut is_other) = (Vec::new(), false);
        for (place, (line, reported)) in self.lines.report().into_iter().zip(&mut self.reported).enumerate() {
            let mut note = |event| {
                let LineReport { target, epoch, .. } = line.clone();
                news.push_back(News::Line(LineNews { target, epoch, event }));
            };
            let is_received = line.is_attached && line.is_in_step;
            let was_lost = line.outages != reported.outages;
            if was_lost && !reported.is_lost {
                note(LineEvent::Lost(if line.has_ended {
                    "the topic has ended"
                } else {
                    "the publisher is gone"
                }));
            }
            if is_received && (was_lost || reported.is_lost) {
                note(LineEvent::Found { is_first: !reported.was_found });
                found.push(place);
            }
            is_other |= was_lost || is_received != reported.is_received;
            reported.is_received = is_received;
            reported.outages = line.outages;
            reported.is_lost = !line.is_attached && (was_lost || reported.is_lost);
            reported.was_found |= line.is_attached;
        }
        found.into_iter().for_each(|line| self.identify(line));
        if is_other {
            self.note_types(news);
        }
        if !news.is_empty() {
            self.note_type(news);
        }
    }

    /// A change as it is received.
    fn received<'a>(&self, change: &'a Change<Vec<u8>, Vec<u8>>) -> Received<'a> {
        let Change { key, value, meta, number, replaced, .. } = change;
        let (bytes, is_removed) = (value.as_deref().unwrap_or_default(), value.is_none());
        let key = Keyed { bytes: key.as_slice(), number: *number, replaced: *replaced, is_removed };
        let line = self.lines.brought().unwrap_or_default();
        Received { bytes, meta: *meta, key: Some(key).filter(|_| self.is_table()), line }
    }

    /// Fails when all is received of the last publishers, and the command is not to wait for others.
    fn end_if_over(&self) -> Result<(), ReceiveError> {
        if !self.until_end {
            return Ok(());
        }
        let report = self.lines.report();
        let same: Vec<&LineReport> = report.iter().filter(|line| line.is_in_step).collect();
        let last = self.last();
        if self.reported.iter().any(|reported| !reported.is_lost) || same.iter().any(|line| line.last > last)
        {
            return Ok(());
        }
        if same.iter().any(|line| line.has_ended) {
            return Err(ReceiveError::Ended { published: last });
        }
        Err(ReceiveError::Gone { source: ControlError::Disconnected })
    }

    /// Prints what is known of each line on standard error.
    pub(crate) fn summarize(&self) {
        let (epoch, kind) = (self.lines.epoch(), self.current().map(AnySubscriber::kind));
        for line in self.lines.report() {
            let difference = match (line.epoch.zip(epoch), self.kind_of(&line.target).zip(kind)) {
                (Some((epoch, expected)), _) if epoch != expected => {
                    format!("out of step: its publisher has epoch {epoch}, other lines have {expected}")
                }
                (_, Some((kind, expected))) => {
                    format!("left out: it is a {kind}, other lines are a {expected}")
                }
                _ => "out of step".to_owned(),
            };
            Failure::new(Exit::Done, sentence(&line, &difference)).note();
        }
    }

    /// Prints on standard error which lines have no publisher yet, and why. An error if none has one, and why the first has not: then the
    /// others are printed only.
    pub(crate) fn note_absent(&self) -> Result<(), Failure> {
        let lines = (0..).map_while(|index| self.lines.line(index));
        let absent = lines.filter_map(|line| Some((line.target(), line.open_error()?)));
        let mut failures: Vec<Failure> =
            absent.map(|(target, error)| Failure::from(error).at(&target.address)).collect();
        let all_hung = failures.iter().all(|failure| failure.exit() == Exit::Hung);
        let is_waited_for = |failure: &Failure| match failure.exit() {
            Exit::Hung => !all_hung,
            exit => matches!(exit, Exit::Unreachable | Exit::Gone),
        };
        let fatal = |failure: &&Failure| self.until_end || !is_waited_for(failure);
        if !self.is_attached()
            && let Some(first) = failures.iter().position(|failure| fatal(&failure))
        {
            let failure = failures.remove(first);
            failures.iter().for_each(Failure::note);
            return Err(failure);
        }
        for failure in failures {
            let what = if self.until_end { "other lines are read" } else { "waiting for a publisher" };
            Failure::new(failure.exit(), format!("{failure}; {what}")).note();
        }
        Ok(())
    }
}

/// So many of something.
fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// What is known of a line, for people, and how it differs from the others if nothing is received from it.
fn sentence(line: &LineReport, difference: &str) -> String {
    let LineReport { target, first, duplicates, lost, outages, behind, .. } = line;
    let now = match (line.is_attached, line.is_in_step) {
        (false, _) => ", without a publisher".to_owned(),
        (true, false) => format!(", {difference}"),
        (true, true) if *behind > 0 => format!(", {behind} behind"),
        (true, true) => String::new(),
    };
    let outages = match outages {
        0 => String::new(),
        1 => ", lost its publisher once".to_owned(),
        2 => ", lost its publisher twice".to_owned(),
        outages => format!(", lost its publisher {outages} times"),
    };
    let (first, duplicates) = (counted(*first, "value"), counted(*duplicates, "duplicate"));
    format!("{target}: first with {first}, {duplicates}, {lost} lost{outages}{now}")
}
