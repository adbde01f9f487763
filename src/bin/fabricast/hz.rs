//! `fabricast hz`: how often and how evenly a topic is published.

mod delays;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;
use fabricast::{AnySubscriber, Delivery, Meta, Raw, Target, TopicName};
use serde::Serialize;
use serde_json::Map;

use self::delays::Delays;
use super::arrivals::{Arrival, Arrivals, Followed, Loss};
use super::clock;
use super::failure::{Exit, Failure};
use super::feed::{ends_event, is_feed};
use super::interrupt::Interrupt;
use super::keys::KeyArguments;
use super::output::{count, data_rate, json_line, rate, span};
use super::setting::{EndArguments, LineArguments, Setting, node_target};
use super::subscription::{Received, Value, keep};
use super::units::duration;
use super::value::Schemas;

/// The time between two lines.
const TICK: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
Prints one line per second and a summary at the end: values and bytes published per second (bytes
by the mean length of received values), bytes received, the time between publishes by the
publisher's clock (mean, standard deviation, which is the jitter, shortest and longest), and lost
values: replaced before they were read in a state topic, overwritten or damaged in a log. An
interval with missed values is divided evenly among them: the mean is exact; the jitter is a lower
bound. Records of one batch are published at one moment. Of a table, each change of a key is a
value.

Of a feed, rates are those of records, and a column shows events per second. With --key these are
records of matching keys, and events that have one; lost records count in the rate as if they had
the same keys, and the intervals across them are left out. Where records are lost an event ends,
and another begins.

If values have time stamps (see `fabricast --help`), the end shows the median and largest time
from each of them to publishing, by up to 10,000 values per second.

With --json a line is {\"topic\",\"seconds\",\"received\",\"lost\",\"rate\",\"bytes_per_s\",
\"received_bytes_per_s\",\"interval_ns\",\"jitter_ns\",\"interval_min_ns\",\"interval_max_ns\",\"summary\"}; a
time that is not available is null. Of a feed it also has \"events\" and \"events_per_s\", and a
summary has \"timestamps\", from each name to {\"values\",\"median_ns\",\"max_ns\"}.

It runs until --for has passed, or Ctrl-C. Without a publisher it waits for one. It reports that
on standard error, and also that a publisher hangs, and that it runs again. With --json it prints
lines {\"topic\",\"event\",\"epoch\"}, too: see `fabricast watch --help`. The time between two
publishers of different epochs is not an interval.
With --line, several publishers of the same values are lines of one topic, and each value counts
once: see `fabricast watch --help`. The time between the values of two lines is not an interval:
their clocks may differ.
With --until-end it ends with the topic. If no value arrived, the exit code is 5 if the publisher
(with --line, every publisher that is attached) is hung, otherwise 1. With --until-end it is also
3 if the topic does not exist, and 6 if the publisher's process is gone.

Examples:
  fabricast hz shm:quotes/EURUSD
  fabricast hz shm:exchange/trades --for 10s
  fabricast hz shm:quotes/fx --key EURUSD
  fabricast hz shm:exchange/trades --for 5 --json | jq 'select(.summary).rate'";

/// Arguments of `hz`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, as in shm:NODE/TOPIC, or NODE/TOPIC for short.
    #[arg(value_parser = node_target, value_name = "TARGET")]
    target: Target,
    #[command(flatten)]
    line: LineArguments,
    #[command(flatten)]
    keys: KeyArguments,
    /// End after this time: seconds, or with a unit, as in 5s or 1m30s.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    end: EndArguments,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// The values of some time.
#[derive(Clone, Copy, Debug)]
struct Tally {
    began: Instant,
    received: u64,
    /// Records of a feed that have other keys.
    others: u64,
    /// Events of a feed with a record that was received.
    events: u64,
    lost: u64,
    bytes: u64,
    intervals: Intervals,
}

/// Times between publishes.
#[derive(Clone, Copy, Debug, Default)]
struct Intervals {
    number: u64,
    mean_ns: f64,
    /// The sum of squared distances from the mean.
    squares: f64,
    min_ns: f64,
    max_ns: f64,
}

/// A tally as a line of JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    topic: &'a TopicName,
    seconds: f64,
    received: u64,
    lost: u64,
    rate: f64,
    bytes_per_s: f64,
    received_bytes_per_s: f64,
    interval_ns: Option<f64>,
    jitter_ns: Option<f64>,
    interval_min_ns: Option<u64>,
    interval_max_ns: Option<u64>,
    summary: bool,
    /// Of a feed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events_per_s: Option<f64>,
    /// Of types that have them, in the summary.
    #[serde(skip_serializing_if = "Map::is_empty")]
    timestamps: Map<String, serde_json::Value>,
}

/// Where and when the last value was published.
#[derive(Clone, Copy, Debug)]
struct Position {
    sequence: u64,
    published_ns: u64,
    /// The line that brought it: each has a clock of its own.
    line: usize,
}

/// What is measured of a value.
#[derive(Debug)]
struct Measured {
    position: Position,
    len: usize,
    /// It is not a record of a feed that has another key.
    is_wanted: bool,
    /// It is the last record of an event.
    ends_event: bool,
    /// The value, if its time stamps are wanted.
    value: Option<Value>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// The values of a state or log.
    Values,
    /// The changes of a table: they come in no particular order, and have the sequences of commits.
    Changes,
    /// The records and events of a feed.
    Records,
    /// Those of some keys of a feed.
    SomeRecords,
}

/// A measurement, and how to print it.
#[derive(Debug)]
struct Meter {
    topic: TopicName,
    json: bool,
    counted: Counted,
    second: Tally,
    whole: Tally,
    last: Option<Position>,
    /// Values so far: in place of their sequences, if these are not consecutive.
    number: u64,
    /// The present event of a feed has a record that was received.
    is_event_open: bool,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let target = &arguments.target;
    let following = arguments.end.following(Delivery::Pull);
    let source = setting.follow(arguments.line.of(target)?, following)?;
    // Only now: until here Ctrl-C has its default effect.
    let interrupt = Interrupt::install()?;
    // Values published before are not measured; a log begins after them.
    let mut old = source.newest_at_start().get();
    let (duration, is_json) = (arguments.duration, arguments.json);
    let place = target.clone().into();
    let followed = Followed { target: &place, duration, is_json };
    let mut arrivals = Arrivals::new(source, followed, &interrupt);
    let Some(mut filter) = arrivals.begin(&arguments.keys)? else { return Ok(Exit::Done) };
    let Some(subscriber) = arrivals.current() else { return Ok(Exit::Done) };
    let counted = Counted::of(subscriber, filter.is_some());
    let mut meter = Meter::new(subscriber.topic().clone(), arguments.json, counted);
    let mut delays = Delays::new(Schemas::of(subscriber));
    if !arguments.json {
        writeln!(io::stdout(), "{}", meter.heading())?;
    }
    loop {
        let wants_value = delays.wants_more();
        let measure = |received: Received<'_>| {
            let Meta { sequence, published_ns, .. } = received.meta;
            let is_wanted = filter.wants(received.bytes);
            Measured {
                position: Position { sequence: sequence.get(), published_ns, line: received.line },
                len: received.bytes.len(),
                is_wanted,
                ends_event: ends_event(received.bytes),
                value: (wants_value && is_wanted).then(|| keep(received)),
            }
        };
        match arrivals.next(measure)? {
            Arrival::Value(measured, _) if measured.position.sequence <= old => meter.skip(measured.position),
            Arrival::Value(measured, missed) => {
                measured.value.iter().for_each(|value| delays.add(value));
                meter.add(&measured, missed);
            }
            Arrival::Lost(missed, lost) => missed.into_iter().chain([lost]).for_each(|loss| meter.lose(loss)),
            Arrival::Found { is_new } => {
                if let Some(subscriber) = arrivals.current() {
                    filter = arguments.keys.filter(subscriber, &place)?;
                    delays.renew(Schemas::of(subscriber));
                    meter.counted = Counted::of(subscriber, filter.is_some());
                }
                if is_new {
                    old = 0;
                    meter.begin_again();
                }
            }
            Arrival::Parted | Arrival::Nothing => {}
            Arrival::Over(why) if meter.whole.received == 0 => return Err(arrivals.nothing(&why)),
            Arrival::Over(_) | Arrival::Interrupted => break,
        }
        if arrivals.is_time_for_a_look() && meter.tick()? {
            delays.begin_second();
        }
    }
    let summary = Line { summary: true, timestamps: delays.as_object(), ..meter.line(&meter.whole) };
    meter.print(&summary)?;
    if !arguments.json {
        delays.print(&mut io::stdout())?;
    }
    arrivals.summarize();
    Ok(Exit::Done)
}

impl Counted {
    /// What is counted of this topic, of which some or all keys are wanted.
    fn of(subscriber: &AnySubscriber<Raw>, has_filter: bool) -> Self {
        match subscriber {
            AnySubscriber::Table(_) => Self::Changes,
            log if is_feed(log) && has_filter => Self::SomeRecords,
            log if is_feed(log) => Self::Records,
            _ => Self::Values,
        }
    }
}

impl Meter {
    fn new(topic: TopicName, json: bool, counted: Counted) -> Self {
        let tally = Tally::begin();
        Self {
            topic,
            json,
            counted,
            second: tally,
            whole: tally,
            last: None,
            number: 0,
            is_event_open: false,
        }
    }

    /// Whether events are counted.
    fn has_events(&self) -> bool {
        matches!(self.counted, Counted::Records | Counted::SomeRecords)
    }

    /// Counts a value, and the event that it ends.
    fn add(&mut self, measured: &Measured, missed: Option<Loss>) {
        if measured.is_wanted {
            self.value(measured.position, measured.len, missed);
        } else {
            missed.into_iter().for_each(|missed| self.lose(missed));
            self.second.others += 1;
            self.whole.others += 1;
        }
        self.is_event_open |= measured.is_wanted;
        if measured.ends_event {
            self.end_event();
        }
    }

    /// Counts the present event of a feed, if it has a record that was received.
    fn end_event(&mut self) {
        if self.has_events() && std::mem::take(&mut self.is_event_open) {
            self.second.events += 1;
            self.whole.events += 1;
        }
    }

    fn value(&mut self, position: Position, len: usize, missed: Option<Loss>) {
        missed.into_iter().for_each(|missed| self.lose(missed));
        let position = self.placed(position, 1 + missed.map_or(0, |missed| missed.count));
        let last = self.last.replace(position);
        for tally in [&mut self.second, &mut self.whole] {
            tally.received += 1;
            tally.bytes += len as u64;
            if let Some(last) = last.filter(|last| last.line == position.line) {
                let time_ns = position.published_ns.saturating_sub(last.published_ns);
                tally.intervals.add(time_ns, position.sequence.saturating_sub(last.sequence));
            }
        }
    }

    /// Records a value published before the measurement.
    fn skip(&mut self, position: Position) {
        self.last = Some(self.placed(position, 1));
    }

    /// The position of the last of `number` values. Changes of a table and records of some keys are counted instead.
    fn placed(&mut self, position: Position, number: u64) -> Position {
        if !matches!(self.counted, Counted::Changes | Counted::SomeRecords) {
            return position;
        }
        self.number += number;
        let last = self.last.filter(|last| last.line == position.line);
        let before = last.map_or(0, |last| last.published_ns);
        Position { sequence: self.number, published_ns: position.published_ns.max(before), ..position }
    }

    /// Goes on with a publisher whose sequences begin anew: the time between the two is not an interval.
    fn begin_again(&mut self) {
        self.last = None;
        self.end_event();
    }

    fn lose(&mut self, loss: Loss) {
        for tally in [&mut self.second, &mut self.whole] {
            tally.lost = tally.lost.saturating_add(loss.count);
        }
        // How many of the lost records had one of the wanted keys is unknown, and so is the interval.
        self.last = self.last.filter(|_| self.counted != Counted::SomeRecords);
        // The next record may be one of another event.
        self.end_event();
    }

    /// Prints a line when one is due. Returns whether it was.
    fn tick(&mut self) -> Result<bool, Failure> {
        if self.second.began.elapsed() < TICK {
            return Ok(false);
        }
        let second = std::mem::replace(&mut self.second, Tally::begin());
        self.print(&self.line(&second))?;
        Ok(true)
    }

    /// The heading of the lines for people.
    fn heading(&self) -> String {
        format!("{}{}", Line::HEADING, if self.has_events() { Line::EVENTS_HEADING } else { "" })
    }

    fn line(&self, tally: &Tally) -> Line<'_> {
        let line = tally.line(&self.topic);
        if !self.has_events() {
            return line;
        }
        let events_per_s = line.rate * count(tally.events) / count(tally.received.max(1));
        Line { events: Some(tally.events), events_per_s: Some(events_per_s), ..line }
    }

    fn print(&self, line: &Line<'_>) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        if self.json {
            json_line(&mut out, line)?;
        } else {
            writeln!(out, "{}", line.text())?;
            out.flush()?;
        }
        Ok(())
    }
}

impl Tally {
    fn begin() -> Self {
        let began = clock::now();
        let intervals = Intervals::default();
        Self { began, received: 0, others: 0, events: 0, lost: 0, bytes: 0, intervals }
    }

    fn line<'a>(&self, topic: &'a TopicName) -> Line<'a> {
        let seconds = self.began.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        let Self { received, others, lost, intervals, .. } = *self;
        let known = intervals.number > 0;
        // As many of the lost records have other keys as of those that arrived.
        let share = if others == 0 { 1.0 } else { count(received) / count(received + others) };
        let rate = (count(received) + count(lost) * share) / seconds;
        let mean_len = count(self.bytes) / count(received.max(1));
        Line {
            topic,
            seconds,
            received,
            lost,
            rate,
            bytes_per_s: rate * mean_len,
            received_bytes_per_s: count(self.bytes) / seconds,
            interval_ns: known.then_some(intervals.mean_ns),
            jitter_ns: known.then(|| intervals.deviation_ns()),
            interval_min_ns: known.then(|| rounded(intervals.min_ns.floor())),
            interval_max_ns: known.then(|| rounded(intervals.max_ns.ceil())),
            summary: false,
            events: None,
            events_per_s: None,
            timestamps: Map::new(),
        }
    }
}

impl Intervals {
    /// Adds `values` equal intervals that together took `time_ns`. Welford's method updates mean and squares.
    fn add(&mut self, time_ns: u64, values: u64) {
        if values == 0 {
            return;
        }
        let interval_ns = count(time_ns) / count(values);
        self.min_ns = if self.number == 0 { interval_ns } else { self.min_ns.min(interval_ns) };
        self.max_ns = self.max_ns.max(interval_ns);
        self.number += values;
        let distance = interval_ns - self.mean_ns;
        self.mean_ns += distance * count(values) / count(self.number);
        self.squares += count(values) * distance * (interval_ns - self.mean_ns);
    }

    /// The standard deviation.
    fn deviation_ns(&self) -> f64 {
        (self.squares / count(self.number.max(1))).sqrt()
    }
}

impl Line<'_> {
    const HEADING: &'static str =
        "   seconds      rate   published    received  interval    jitter       min       max      lost";
    const EVENTS_HEADING: &'static str = "    events";

    /// The line for people.
    fn text(&self) -> String {
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), span);
        let seconds = format!("{:.1}{}", self.seconds, if self.summary { " all" } else { "" });
        let events = self.events_per_s.map_or_else(String::new, |per_s| format!(" {:>9}", rate(per_s)));
        format!(
            "{seconds:>10} {:>9} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9}{events}",
            rate(self.rate),
            data_rate(self.bytes_per_s),
            data_rate(self.received_bytes_per_s),
            time(self.interval_ns.map(rounded)),
            time(self.jitter_ns.map(rounded)),
            time(self.interval_min_ns),
            time(self.interval_max_ns),
            self.lost,
        )
    }
}

/// A time as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates, and is not negative"
)]
fn rounded(ns: f64) -> u64 {
    ns.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_the_standard_deviation_of_the_intervals() {
        let mut intervals = Intervals::default();
        [2, 4, 4, 4, 5, 5, 7, 9].into_iter().for_each(|interval_ns| intervals.add(interval_ns, 1));
        assert_eq!((intervals.mean_ns, intervals.deviation_ns()), (5.0, 2.0));
        assert_eq!((intervals.min_ns, intervals.max_ns), (2.0, 9.0));
    }

    #[test]
    fn an_interval_is_time_over_the_difference_of_sequences() {
        let mut meter = Meter::new("t".parse().unwrap(), true, Counted::Values);
        let position = |sequence, published_ns| Position { sequence, published_ns, line: 0 };
        meter.value(position(1, 1000), 8, None);
        meter.value(position(2, 1500), 8, None);
        meter.value(position(5, 9000), 8, Some(Loss { first: 3, count: 2, reason: "conflated" }));
        meter.value(position(6, 9700), 8, None);
        let line = Line { summary: true, ..meter.line(&meter.whole) };
        assert_eq!((line.received, line.lost, line.interval_ns), (4, 2, Some(1740.0)));
        assert_eq!((line.interval_min_ns, line.interval_max_ns), (Some(500), Some(2500)));
        // Four of six published values were received.
        let share = line.received_bytes_per_s / line.bytes_per_s;
        assert!((share - 4.0 / 6.0).abs() < 1e-9, "{line:?}");
        assert!(line.text().contains(" all "));
    }

    #[test]
    fn times_between_values_of_two_lines_are_no_intervals() {
        for counted in [Counted::Values, Counted::Changes] {
            let mut meter = Meter::new("t".parse().unwrap(), true, counted);
            // The clock of the other line is an hour ahead.
            let hour_ns = 3_600_000_000_000;
            for (line, sequence) in [(0, 1), (0, 2), (1, 3), (1, 4), (0, 5), (0, 6)] {
                let published_ns = 1000 * sequence + line as u64 * hour_ns;
                meter.value(Position { sequence, published_ns, line }, 8, None);
            }
            let line = meter.line(&meter.whole);
            assert_eq!((line.received, line.interval_ns), (6, Some(1000.0)));
            assert_eq!((line.interval_min_ns, line.interval_max_ns), (Some(1000), Some(1000)));
        }
    }

    #[test]
    fn changes_of_a_table_are_counted_in_any_order() {
        let mut meter = Meter::new("t".parse().unwrap(), true, Counted::Changes);
        let replaced = Loss { first: 7, count: 2, reason: "conflated" };
        meter.skip(Position { sequence: 9, published_ns: 1000, line: 0 });
        for (sequence, published_ns, missed) in
            [(12, 4000, None), (11, 3000, None), (13, 7000, Some(replaced))]
        {
            meter.value(Position { sequence, published_ns, line: 0 }, 8, missed);
        }
        // Five changes in 6 us.
        let line = meter.line(&meter.whole);
        assert_eq!((line.received, line.lost, line.interval_ns), (3, 2, Some(1200.0)));
        assert_eq!((line.interval_min_ns, line.interval_max_ns), (Some(0), Some(3000)));
    }

    #[test]
    fn lost_records_of_a_feed_have_the_keys_of_those_that_arrived() {
        let mut meter = Meter::new("t".parse().unwrap(), true, Counted::SomeRecords);
        let mut record = |sequence, is_wanted, ends_event| {
            let position = Position { sequence, published_ns: sequence * 1000, line: 0 };
            meter.add(&Measured { position, len: 8, is_wanted, ends_event, value: None }, None);
            if sequence == 6 {
                meter.lose(Loss { first: 7, count: 100, reason: "lapped" });
            }
        };
        // Events of the records 1 to 4, 5 and 6, and 107: the second one has none of the wanted keys.
        for (sequence, is_wanted, ends_event) in [
            (1, false, false),
            (2, true, false),
            (4, true, true),
            (5, false, false),
            (6, false, true),
            (107, true, true),
        ] {
            record(sequence, is_wanted, ends_event);
        }
        let line = meter.line(&meter.whole);
        assert_eq!((line.received, line.lost, line.events), (3, 100, Some(2)));
        let records = line.rate * line.seconds;
        assert!((records - (3.0 + 50.0)).abs() < 1e-6, "{line:?}");
        assert!((line.events_per_s.unwrap() / line.rate - 2.0 / 3.0).abs() < 1e-9, "{line:?}");
        // Not the interval across the loss.
        assert_eq!((line.interval_ns, line.interval_max_ns), (Some(2000.0), Some(2000)));
    }

    #[test]
    fn events_are_two_if_their_boundary_is_lost() {
        for counted in [Counted::Records, Counted::SomeRecords, Counted::Values] {
            let mut meter = Meter::new("t".parse().unwrap(), true, counted);
            let add = |meter: &mut Meter, sequence, ends_event| {
                let position = Position { sequence, published_ns: sequence * 1000, line: 0 };
                let measured = Measured { position, len: 8, is_wanted: true, ends_event, value: None };
                meter.add(&measured, None);
            };
            let lose = |meter: &mut Meter, first| meter.lose(Loss { first, count: 2, reason: "lapped" });
            // Lost are 3 and 4, with the end of an event, then 5 and 6, and then 9 and 10, between two events.
            add(&mut meter, 1, false);
            add(&mut meter, 2, false);
            lose(&mut meter, 3);
            assert_eq!(meter.second.events, u64::from(meter.has_events()));
            lose(&mut meter, 5);
            add(&mut meter, 7, false);
            add(&mut meter, 8, true);
            lose(&mut meter, 9);
            add(&mut meter, 11, true);
            assert_eq!((meter.whole.lost, meter.whole.received), (6, 5));
            assert_eq!(meter.line(&meter.whole).events, meter.has_events().then_some(3));
        }
    }
}
