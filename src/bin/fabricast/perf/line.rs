use std::io::Write as _;

use fabricast::SubscriberStats;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::super::failure::Exit;
use super::super::output::count;
use super::arguments::Contents;
use super::trouble::Trouble;

/// What the answering process received.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) verified: u64,
    pub(super) torn_retries: u64,
    pub(super) lost: u64,
    pub(super) rejected: u64,
}

impl Seen {
    /// The same, with the counts of the subscriber.
    pub(super) fn with(self, stats: SubscriberStats) -> Self {
        let SubscriberStats { torn_retries, conflated, lapped, cut_off, rejected, .. } = stats;
        // A publisher says how many were overwritten.
        let lost = conflated.saturating_add(lapped).saturating_add(cut_off);
        Self { torn_retries, lost, rejected: self.rejected.saturating_add(rejected), ..self }
    }

    /// Tells it to the process that has started this one.
    pub(super) fn tell(self) -> Result<Exit, Trouble> {
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&self)?)?;
        Ok(Exit::Done)
    }
}

impl std::ops::Add for Seen {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            verified: self.verified.saturating_add(other.verified),
            torn_retries: self.torn_retries.saturating_add(other.torn_retries),
            lost: self.lost.saturating_add(other.lost),
            rejected: self.rejected.saturating_add(other.rejected),
        }
    }
}

impl std::iter::Sum for Seen {
    fn sum<I: Iterator<Item = Self>>(seen: I) -> Self {
        seen.fold(Self::default(), std::ops::Add::add)
    }
}

/// What quantiles are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Times {
    /// From one process to the other and back.
    RoundTrip,
    /// From one process to the other.
    OneWay,
    /// Half of the way to the other process and back.
    Halved,
}

/// One line of the outcome.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Line {
    pub(super) mode: &'static str,
    pub(super) fabric: &'static str,
    pub(super) connect: Option<String>,
    pub(super) size: u32,
    pub(super) subscribers: u32,
    pub(super) iterations: u64,
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    pub(super) p999_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    pub(super) msgs_per_s: f64,
    pub(super) gb_per_s: f64,
    pub(super) torn_retries: Option<u64>,
    pub(super) lost: Option<u64>,
    pub(super) rejected: Option<u64>,
    pub(super) verified: Option<u64>,
    /// Values that found the subscriber awake, where it should sleep.
    pub(super) awake: Option<u64>,
    /// What the quantiles are of.
    pub(super) times: Option<Times>,
    pub(super) placement: Option<&'static str>,
    /// What the program writes and compares of each record.
    pub(super) contents: Option<&'static str>,
}

/// The durations of round trips.
#[derive(Debug)]
pub(super) struct Durations {
    histogram: Histogram<u64>,
    total_ns: u64,
}

impl Durations {
    pub(super) fn new() -> Self {
        // One minute, three digits: these bounds are valid.
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap_or_else(|_| unreachable!());
        Self { histogram, total_ns: 0 }
    }

    #[inline]
    pub(super) fn record(&mut self, duration_ns: u64) {
        self.histogram.saturating_record(duration_ns);
        self.total_ns = self.total_ns.saturating_add(duration_ns);
    }

    /// The median duration.
    pub(super) fn median_ns(&self) -> u64 {
        self.histogram.value_at_quantile(0.5)
    }

    /// The line of these durations, without the figures of a delivery.
    pub(super) fn line(&self, mode: &'static str, size: u32) -> Line {
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        let iterations = self.histogram.len();
        let msgs_per_s = 2.0 * count(iterations) * 1e9 / count(self.total_ns.max(1));
        let figure = |figure| (iterations > 0).then_some(figure);
        Line {
            p50_ns: figure(at(0.5)),
            p99_ns: figure(at(0.99)),
            p999_ns: figure(at(0.999)),
            max_ns: figure(self.histogram.max()),
            times: Some(Times::RoundTrip),
            ..Line::of_rate(mode, size, iterations, msgs_per_s)
        }
    }
}

impl Times {
    fn name(self) -> &'static str {
        match self {
            Self::RoundTrip => "round-trip",
            Self::OneWay => "one-way",
            Self::Halved => "halved",
        }
    }
}

impl Line {
    /// The line of a rate, without the figures of some modes.
    pub(super) fn of_rate(mode: &'static str, size: u32, iterations: u64, msgs_per_s: f64) -> Self {
        Self {
            mode,
            fabric: "shm",
            size,
            subscribers: 1,
            iterations,
            msgs_per_s,
            gb_per_s: msgs_per_s * f64::from(size) / 1e9,
            ..Self::default()
        }
    }

    /// The same, of records of which the program writes and compares this.
    pub(super) fn of_contents(self, contents: Contents) -> Self {
        Self { contents: Some(contents.name()), ..self }
    }

    /// What to report if not all records arrived as published.
    pub(super) fn wrong_records(&self) -> String {
        let Self { size, verified, lost, rejected, .. } = self;
        let [verified, lost, rejected] = [verified, lost, rejected].map(|count| count.unwrap_or(0));
        let expected = self.iterations * u64::from(self.subscribers);
        format!(
            "not all records of {size} bytes arrived as published: right {verified} of {expected}, lost {lost}, wrong {rejected}"
        )
    }

    /// What to report if some values differ from those published.
    pub(super) fn wrong_values(&self) -> String {
        let Self { size, rejected, .. } = self;
        format!("values of {size} bytes differ from those published: {}", rejected.unwrap_or(0))
    }

    /// The heading for people.
    pub(super) fn heading(counted: &str) -> String {
        format!(
            "{:<7} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10} {:>11} {:>7} {:>5} {:>5} {:>5}  {:<10}  {}",
            "mode",
            "size",
            counted,
            "p50 ns",
            "p99 ns",
            "p99.9 ns",
            "max ns",
            "msgs/s",
            "GB/s",
            "torn",
            "lost",
            "awake",
            "times",
            "placement",
        )
    }

    /// The line for people.
    pub(super) fn text(&self) -> String {
        let figure = |figure: Option<u64>| figure.map_or_else(|| "-".to_owned(), |figure| figure.to_string());
        format!(
            "{:<7} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10} {:>11.0} {:>7.3} {:>5} {:>5} {:>5}  {:<10}  {}",
            self.mode,
            self.size,
            self.iterations,
            figure(self.p50_ns),
            figure(self.p99_ns),
            figure(self.p999_ns),
            figure(self.max_ns),
            self.msgs_per_s,
            self.gb_per_s,
            figure(self.torn_retries),
            figure(self.lost),
            figure(self.awake),
            self.times.map_or("-", Times::name),
            self.placement.unwrap_or("-"),
        )
    }
}
