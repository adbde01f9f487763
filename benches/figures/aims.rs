//! Aims, and whether the figures meet them.

use super::data::Spread;
use super::page::Table;
use super::units::ratio;

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => write!(formatter, "at least {least}"),
            Self::AtMost(most) => write!(formatter, "at most {most}"),
        }
    }
}

/// A ratio, what it should be, and what was found.
pub(crate) type Aim = (String, Bound, Option<Spread>);

/// Whether the median of the rounds' ratios is as it should be, and whether all of them agree.
pub(crate) fn verdict(bound: Bound, found: Option<Spread>) -> &'static str {
    let Some(Spread { min, median, max }) = found else { return "not measured" };
    let [min, median, max] = [min, median, max].map(|ratio| bound.is_met(ratio));
    match (median, min == max) {
        (true, true) => "met",
        (true, false) => "met, not in each round",
        (false, true) => "missed",
        (false, false) => "missed, not in each round",
    }
}

/// A table of ratios with their bounds.
pub(crate) fn table(aims: Vec<Aim>) -> Table {
    let row = |(name, bound, found): Aim| {
        vec![name, bound.to_string(), ratio(found), verdict(bound, found).to_owned()]
    };
    Table::new(&["aim", "bound", "ratio", "verdict"], aims.into_iter().map(row).collect())
}
