use crate::id::{Meta, Sequence};

/// How many of the newest values are known.
const KEPT: usize = 1024;

/// Of the newest values, the line that brought each first, and when its publisher published it.
#[derive(Debug)]
pub(super) struct Published(Box<[First]>);

#[derive(Clone, Copy, Debug, Default)]
struct First {
    sequence: Sequence,
    line: usize,
    published_ns: u64,
}

impl Published {
    /// Allocates.
    pub(super) fn new() -> Self {
        Self(vec![First::default(); KEPT].into())
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.0.fill(First::default());
    }

    /// Records that this line brought a value first.
    #[inline]
    pub(super) fn note(&mut self, line: usize, meta: Meta) {
        let Meta { sequence, published_ns, .. } = meta;
        let index = index_of(sequence);
        self.0.get_mut(index).into_iter().for_each(|first| *first = First { sequence, line, published_ns });
    }

    /// Returns when this value was published, ns of the realtime clock, if it is one of the newest.
    #[inline]
    pub(super) fn of(&self, sequence: Sequence) -> Option<u64> {
        Some(self.first(sequence)?.published_ns)
    }

    /// Returns the first of the values from this one on that this line has brought, where `last` is the last value that any has. Of
    /// values that are not among the newest any more it is assumed.
    pub(super) fn first_of(&self, line: usize, from: Sequence, last: Sequence) -> Option<Sequence> {
        let kept_from = last.get().saturating_add(1).saturating_sub(KEPT as u64);
        if from.get() < kept_from {
            return Some(from);
        }
        let mut values = (from.get()..=last.get()).map(Sequence::new);
        values.find(|sequence| self.first(*sequence).is_some_and(|first| first.line == line))
    }

    #[inline]
    fn first(&self, sequence: Sequence) -> Option<&First> {
        self.0.get(index_of(sequence)).filter(|first| first.sequence == sequence)
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
        let mut published = Published::new();
        let epoch = Epoch::new(7).unwrap();
        for number in 1..=3 * KEPT as u64 {
            let meta = Meta { sequence: Sequence::new(number), epoch, published_ns: 10 * number };
            published.note(usize::from(number % 100 == 0), meta);
        }
        for number in 0..4 * KEPT as u64 {
            let is_kept = (2 * KEPT as u64 + 1..=3 * KEPT as u64).contains(&number);
            assert_eq!(published.of(Sequence::new(number)), is_kept.then_some(10 * number), "{number}");
        }
        let last = 3 * KEPT as u64;
        let first_of = |line, from| {
            published.first_of(line, Sequence::new(from), Sequence::new(last)).map(Sequence::get)
        };
        assert_eq!(
            [first_of(1, last - 150), first_of(1, 3000), first_of(1, 3001)],
            [Some(3000), Some(3000), None]
        );
        assert_eq!(
            [first_of(0, 2999), first_of(0, 3000), first_of(0, last + 1)],
            [Some(2999), Some(3001), None]
        );
        let oldest = last - KEPT as u64 + 1;
        assert_eq!([first_of(1, oldest), first_of(1, oldest - 1)], [Some(2100), Some(oldest - 1)]);
        assert_eq!(first_of(2, oldest), None);
        published.clear();
        assert_eq!(published.of(Sequence::new(3 * KEPT as u64)), None);
    }
}
