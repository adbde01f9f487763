//! How long the round trips of a run took.

/// Bits of a duration that a histogram keeps: quantiles are exact to a part in 1024.
const KEPT_BITS: u32 = 10;
/// Buckets of one power of two.
const STEPS: usize = 1 << KEPT_BITS;

/// The durations of round trips, or of blocks, as counts of similar ones.
#[derive(Debug)]
pub(super) struct Durations {
    counts: Vec<u32>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

/// What the driving end has measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Round trips, or blocks.
    pub iterations: u64,
    /// The time that they took together.
    pub total_ns: u64,
    /// The median of a round trip; 0 of a blast.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// The bucket of a duration.
#[inline]
fn bucket(ns: u64) -> usize {
    // Durations below 2^KEPT_BITS have a bucket each, longer ones share it with those that begin with the same bits.
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(KEPT_BITS + 1);
    (shift as usize) * STEPS + usize::try_from(ns >> shift).unwrap_or(usize::MAX)
}

/// The shortest duration of a bucket.
fn lowest(bucket: usize) -> u64 {
    let shift = (bucket / STEPS).saturating_sub(1);
    ((bucket - shift * STEPS) as u64) << shift
}

impl Durations {
    /// Creates an empty histogram, which then allocates nothing.
    pub(super) fn new() -> Self {
        Self { counts: vec![0; bucket(u64::MAX) + 1], count: 0, total_ns: 0, max_ns: 0 }
    }

    /// Counts a duration.
    #[inline]
    pub(super) fn record(&mut self, ns: u64) {
        if let Some(count) = self.counts.get_mut(bucket(ns)) {
            *count = count.saturating_add(1);
        }
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// The figures so far.
    pub(super) fn figures(&self) -> Figures {
        let at = |per_mille: u64| {
            let rank = (self.count * per_mille).div_ceil(1000).max(1);
            let mut seen = 0;
            let found = self.counts.iter().position(|count| {
                seen += u64::from(*count);
                seen >= rank
            });
            found.map_or(0, lowest)
        };
        Figures {
            iterations: self.count,
            total_ns: self.total_ns,
            p50_ns: at(500),
            p99_ns: at(990),
            p999_ns: at(999),
            max_ns: self.max_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exact_to_a_part_in_a_thousand() {
        let mut last = 0;
        for exponent in 0..64 {
            for ns in [1_u64 << exponent, (1 << exponent) + (1 << exponent >> 3), u64::MAX >> (63 - exponent)]
            {
                let (bucket, low) = (bucket(ns), lowest(bucket(ns)));
                assert!(bucket >= last && low <= ns && ns - low <= ns / 1000, "{ns} {bucket} {low}");
                last = bucket;
            }
        }
    }

    #[test]
    fn quantiles_are_those_of_the_durations() {
        let mut durations = Durations::new();
        assert_eq!(durations.figures(), Figures::default());
        (1..=1000).for_each(|ns| durations.record(ns));
        let figures = durations.figures();
        assert_eq!((figures.p50_ns, figures.p99_ns, figures.p999_ns), (500, 990, 999));
        assert_eq!((figures.max_ns, figures.iterations, figures.total_ns), (1000, 1000, 500_500));
    }
}
