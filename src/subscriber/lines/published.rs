use crate::id::{Meta, Sequence};

/// How many values back a line may be for its lag to be known.
const KEPT: usize = 1024;

/// When the newest values were published by the line that brought them first.
#[derive(Debug)]
pub(super) struct PublishTimes(Box<[(Sequence, u64)]>);

impl PublishTimes {
    /// Allocates.
    pub(super) fn new() -> Self {
        Self(vec![(Sequence::NONE, 0); KEPT].into())
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.0.fill((Sequence::NONE, 0));
    }

    #[inline]
    pub(super) fn note(&mut self, meta: Meta) {
        let index = index_of(meta.sequence);
        self.0.get_mut(index).into_iter().for_each(|kept| *kept = (meta.sequence, meta.published_ns));
    }

    /// Returns when this value was published, ns of the realtime clock, if it is one of the newest.
    #[inline]
    pub(super) fn of(&self, sequence: Sequence) -> Option<u64> {
        let kept = self.0.get(index_of(sequence)).filter(|(kept, _)| *kept == sequence);
        kept.map(|(_, published_ns)| *published_ns)
    }
}

fn index_of(sequence: Sequence) -> usize {
    usize::try_from(sequence.get() % KEPT as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;

    #[test]
    fn newest_values_are_known_and_earlier_ones_are_not() {
        let mut times = PublishTimes::new();
        let epoch = Epoch::new(7).unwrap();
        for number in 1..=3 * KEPT as u64 {
            times.note(Meta { sequence: Sequence::new(number), epoch, published_ns: 10 * number });
        }
        for number in 0..4 * KEPT as u64 {
            let is_kept = (2 * KEPT as u64 + 1..=3 * KEPT as u64).contains(&number);
            assert_eq!(times.of(Sequence::new(number)), is_kept.then_some(10 * number), "{number}");
        }
        times.clear();
        assert_eq!(times.of(Sequence::new(3 * KEPT as u64)), None);
    }
}
