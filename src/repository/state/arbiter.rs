use crate::id::Sequence;
use crate::repository::{Arbiter, Arrival, Verdict};

/// Decides which values of several lines of a state are received: those that are newer than all before.
#[derive(Debug, Default)]
pub(crate) struct StateArbiter {
    last: Sequence,
    has_received: bool,
}

impl Arbiter for StateArbiter {
    fn begin(&mut self, last: Sequence, _: usize) {
        *self = Self { last, has_received: false };
    }

    fn judge(&mut self, _: usize, arrival: &Arrival<'_>) -> Verdict {
        let sequence = arrival.meta.sequence;
        if sequence <= self.last {
            return Verdict::Duplicate;
        }
        // What came before the first one is for its line to say.
        let between = (sequence.get() - self.last.get()).saturating_sub(1);
        let conflated = if self.has_received { between } else { arrival.conflated };
        *self = Self { last: sequence, has_received: true };
        Verdict::First { conflated, is_new: false }
    }

    fn last(&self) -> Sequence {
        self.last
    }

    fn newest_value(&self) -> Option<Sequence> {
        self.has_received.then_some(self.last)
    }

    fn skip_to(&mut self, last: Sequence) {
        self.last = last;
    }
}
