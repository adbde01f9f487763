//! What was measured: samples of series, kept as JSON, one a line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::Outcome;

/// All samples of a figure, and where they come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Data {
    pub(crate) figure: String,
    /// What was run, once for each round.
    pub(crate) commands: Vec<String>,
    pub(crate) machine: String,
    /// The processors that the programs were pinned to.
    pub(crate) processors: String,
    /// The commit of what was measured, with `-dirty` if files beside the pages differed from it.
    pub(crate) commit: String,
    pub(crate) rounds: u32,
    pub(crate) samples: Vec<Sample>,
}

/// What one run of a program says of one series at one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) series: String,
    /// A size, or a number of keys, topics or subscribers.
    pub(crate) x: u64,
    pub(crate) round: u32,
    /// `near`, `far` or `mixed`, if two processes were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) placement: Option<String>,
    #[serde(flatten)]
    pub(crate) values: BTreeMap<String, f64>,
}

/// A median with the least and the greatest of the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

/// Names a value: of this series, at this place, by this name.
pub(crate) type Key<'a> = (&'a str, u64, &'a str);

impl Data {
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        Ok(serde_json::from_str(text)?)
    }

    /// As JSON in which each sample has a line.
    pub(crate) fn emit(&self) -> Outcome<String> {
        let head = Self { samples: Vec::new(), ..self.clone() };
        let mut text = serde_json::to_string_pretty(&head)?.replace("\"samples\": []\n}", "\"samples\": [\n");
        for (index, sample) in self.samples.iter().enumerate() {
            let comma = if index + 1 < self.samples.len() { "," } else { "" };
            writeln!(text, "    {}{comma}", serde_json::to_string(sample)?)?;
        }
        text.push_str("  ]\n}\n");
        Ok(text)
    }

    /// The placement of most samples, which are those that count: times of different placements are not compared.
    pub(crate) fn placement(&self) -> Option<&str> {
        let count =
            |name: &str| self.samples.iter().filter(|it| it.placement.as_deref() == Some(name)).count();
        let placed = self.samples.iter().filter_map(|sample| sample.placement.as_deref());
        placed.max_by_key(|name| (*name != "mixed", count(name)))
    }

    /// How many samples of two processes there are, and how many of them count.
    pub(crate) fn placed(&self) -> (usize, usize) {
        let placed = self.samples.iter().filter_map(|sample| sample.placement.as_deref());
        placed
            .fold((0, 0), |(all, counted), it| (all + 1, counted + usize::from(Some(it) == self.placement())))
    }

    /// The medians of the rounds.
    pub(crate) fn median(&self, key: Key<'_>) -> Option<f64> {
        self.spread(key).map(|spread| spread.median)
    }

    pub(crate) fn spread(&self, key: Key<'_>) -> Option<Spread> {
        Spread::of(self.by_round(key).into_values().collect())
    }

    /// The ratio of two values that were measured in the same round.
    pub(crate) fn ratio(&self, dividend: Key<'_>, divisor: Key<'_>) -> Option<Spread> {
        let divisors = self.by_round(divisor);
        let ratio = |(round, value): (u32, f64)| Some(value / divisors.get(&round).filter(|it| **it > 0.0)?);
        Spread::of(self.by_round(dividend).into_iter().filter_map(ratio).collect())
    }

    /// The places at which a series was measured.
    pub(crate) fn places(&self, series: &str) -> Vec<u64> {
        let mut places: Vec<u64> =
            self.samples.iter().filter(|sample| sample.series == series).map(|sample| sample.x).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    fn by_round(&self, (series, x, name): Key<'_>) -> BTreeMap<u32, f64> {
        let counts =
            |sample: &&Sample| sample.placement.is_none() || sample.placement.as_deref() == self.placement();
        let of_key = self.samples.iter().filter(|sample| sample.series == series && sample.x == x);
        of_key.filter(counts).filter_map(|sample| Some((sample.round, *sample.values.get(name)?))).collect()
    }
}

impl Spread {
    /// The same in another unit.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self { min: self.min * factor, median: self.median * factor, max: self.max * factor }
    }

    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied();
        Some(Self {
            min: at(0)?,
            median: (at(values.len() / 2)? + at((values.len() - 1) / 2)?) / 2.0,
            max: at(values.len() - 1)?,
        })
    }
}
