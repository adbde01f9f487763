//! Aims, and whether the figures meet them.

use super::data::Ratios;
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
pub(crate) type Aim = (String, Bound, Option<Ratios>);

/// Whether the median of the rounds' ratios is as it should be, and in how many rounds, unless all of them agree.
pub(crate) fn verdict(bound: Bound, found: Option<&Ratios>) -> String {
    let Some(Ratios { of_rounds, spread }) = found else { return "not measured".to_owned() };
    let (all, is_met) = (of_rounds.len(), bound.is_met(spread.median));
    let alike = of_rounds.iter().filter(|ratio| bound.is_met(**ratio) == is_met).count();
    let what = if is_met { "met" } else { "missed" };
    if alike == all { what.to_owned() } else { format!("{what} in {alike} of {all} rounds") }
}

/// A table of ratios with their bounds.
pub(crate) fn table(aims: Vec<Aim>) -> Table {
    let row = |(name, bound, found): Aim| {
        vec![name, bound.to_string(), ratio(found.as_ref()), verdict(bound, found.as_ref())]
    };
    Table::new(&["aim", "bound", "ratio", "verdict"], aims.into_iter().map(row).collect())
}
