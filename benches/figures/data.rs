//! What was measured: samples of series, kept as JSON, one a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::Outcome;

/// All samples of a figure, and where they come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Data {
    pub(crate) figure: String,
    /// What was run, once for each round.
    pub(crate) commands: Vec<String>,
    pub(crate) machine: String,
    /// The RDMA device and the kind of its address, for figures over verbs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) device: String,
    /// The processors that the programs were pinned to.
    pub(crate) processors: String,
    /// The placement of two processes that was decided for before the first round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wanted_placement: Option<String>,
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

/// The ratios of two values in each round, and their spread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ratios {
    pub(crate) of_rounds: Vec<f64>,
    pub(crate) spread: Spread,
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

    /// The placement whose samples count: times of different placements are not compared. It is the one decided for, or without
    /// one that of most samples.
    pub(crate) fn placement(&self) -> Option<&str> {
        let count =
            |name: &str| self.samples.iter().filter(|it| it.placement.as_deref() == Some(name)).count();
        let placed = || self.samples.iter().filter_map(|sample| sample.placement.as_deref());
        let wanted = self.wanted_placement.as_deref().filter(|wanted| placed().any(|name| name == *wanted));
        wanted.or_else(|| placed().max_by_key(|name| (*name != "mixed", count(name))))
    }

    /// How many samples of two processes there are, and how many of them count.
    pub(crate) fn placed(&self) -> (usize, usize) {
        let placement = self.placement();
        let placed = self.samples.iter().filter_map(|sample| sample.placement.as_deref());
        placed.fold((0, 0), |(all, counted), it| (all + 1, counted + usize::from(Some(it) == placement)))
    }

    /// The medians of the rounds.
    pub(crate) fn median(&self, key: Key<'_>) -> Option<f64> {
        self.spread(key).map(|spread| spread.median)
    }

    pub(crate) fn spread(&self, key: Key<'_>) -> Option<Spread> {
        Spread::of(self.by_round(key).into_values().collect())
    }

    /// The ratio of two values that were measured in the same round.
    pub(crate) fn ratio(&self, dividend: Key<'_>, divisor: Key<'_>) -> Option<Ratios> {
        let divisors = self.by_round(divisor);
        let ratio = |(round, value): (u32, f64)| Some(value / divisors.get(&round).filter(|it| **it > 0.0)?);
        Ratios::of(self.by_round(dividend).into_iter().filter_map(ratio).collect())
    }

    /// The places at which a series was measured.
    pub(crate) fn places(&self, series: &str) -> Vec<u64> {
        let mut places: Vec<u64> =
            self.samples.iter().filter(|sample| sample.series == series).map(|sample| sample.x).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// The number of rounds in which each series was measured at each place, with the placement that counts.
    pub(crate) fn rounds_of_cells(&self) -> BTreeMap<(&str, u64), usize> {
        let placement = self.placement();
        let mut rounds: BTreeMap<(&str, u64), BTreeSet<u32>> = BTreeMap::new();
        for sample in &self.samples {
            let of_cell = rounds.entry((&sample.series, sample.x)).or_default();
            if sample.counts(placement) {
                of_cell.insert(sample.round);
            }
        }
        rounds.into_iter().map(|(cell, rounds)| (cell, rounds.len())).collect()
    }

    /// The median of the runs of each round.
    fn by_round(&self, (series, x, name): Key<'_>) -> BTreeMap<u32, f64> {
        let placement = self.placement();
        let of_key = self.samples.iter().filter(|sample| sample.series == series && sample.x == x);
        let mut runs: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for sample in of_key.filter(|sample| sample.counts(placement)) {
            if let Some(value) = sample.values.get(name) {
                runs.entry(sample.round).or_default().push(*value);
            }
        }
        runs.into_iter().filter_map(|(round, values)| Some((round, Spread::of(values)?.median))).collect()
    }
}

impl Sample {
    /// Whether it has this placement, or was not placed.
    fn counts(&self, placement: Option<&str>) -> bool {
        self.placement.is_none() || self.placement.as_deref() == placement
    }
}

impl Deref for Ratios {
    type Target = Spread;

    fn deref(&self) -> &Spread {
        &self.spread
    }
}

impl Ratios {
    pub(crate) fn of(of_rounds: Vec<f64>) -> Option<Self> {
        let spread = Spread::of(of_rounds.clone())?;
        Some(Self { of_rounds, spread })
    }

    /// The same with another dividend, this many times as large.
    pub(crate) fn scaled(self, factor: f64) -> Option<Self> {
        Self::of(self.of_rounds.into_iter().map(|ratio| ratio * factor).collect())
    }
}

impl Spread {
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
