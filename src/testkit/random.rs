//! Seeded random numbers, and the seeds of tests.

use std::fmt::Debug;
use std::ops::Range;

use super::long::is_long;

/// The environment variable that limits seeded tests to some seeds.
const SEED_VARIABLE: &str = "FABRICAST_SEED";

/// A stream of numbers from a seed (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number from 0 to `end - 1`; 0 when `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// An index below `len`.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("an index below a usize is a usize")
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Shuffles elements (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, elements: &mut [T]) {
        for end in (1..elements.len()).rev() {
            elements.swap(end, self.index(end + 1));
        }
    }
}

/// The number of seeds, rounds or records of a slow test: `usual`, or `long` if `FABRICAST_TEST_LONG` is 1.
pub(crate) fn amount(usual: u64, long: u64) -> u64 {
    if is_long() { long } else { usual }
}

/// Runs a test with seeds 0 to `count - 1`, or only with those in `FABRICAST_SEED`: one, as `7`, or a range, as `1000..2000`.
/// Prints the seed of a failing run.
pub(crate) fn each_seed(count: u64, mut test: impl FnMut(u64)) {
    let named = std::env::var(SEED_VARIABLE).ok();
    for seed in named.map_or(0..count, |text| seeds(&text).expect("FABRICAST_SEED is a number, or a range")) {
        let _printed = Printed::on_failure("seed", &seed);
        test(seed);
    }
}

fn seeds(text: &str) -> Option<Range<u64>> {
    let number = |text: &str| text.parse::<u64>().ok();
    match text.split_once("..") {
        Some((first, end)) => Some(number(first)?..number(end)?).filter(|seeds| !seeds.is_empty()),
        None => number(text).map(|seed| seed..seed + 1),
    }
}

/// Prints its value if the test fails while this exists.
#[derive(Debug)]
pub(crate) struct Printed(String);

impl Printed {
    /// Prints this name and value on failure.
    pub(crate) fn on_failure(name: &str, value: &dyn Debug) -> Self {
        Self(format!("{name}: {value:?}"))
    }
}

impl Drop for Printed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with {} ({SEED_VARIABLE}=n repeats one seed)", self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_or_a_range_that_is_not_empty() {
        assert_eq!(seeds("7"), Some(7..8));
        assert_eq!(seeds("10..12"), Some(10..12));
        for text in ["", "x", "..", "1..", "2..2", "3..2"] {
            assert_eq!(seeds(text), None, "{text}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            let mut order: Vec<usize> = (0..20).collect();
            random.shuffle(&mut order);
            (order, random.below(1000), random.below(0))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let (mut order, number, none) = draw(9);
        order.sort_unstable();
        assert_eq!(order, (0..20).collect::<Vec<_>>());
        assert!(number < 1000 && none == 0);
    }
}
