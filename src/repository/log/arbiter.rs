use crate::id::Sequence;
use crate::repository::{Arbiter, Arrival, Verdict};

/// Decides which records of several lines of a log are received: of each sequence the first, in order.
#[derive(Debug, Default)]
pub(crate) struct LogArbiter {
    last: Sequence,
}

impl Arbiter for LogArbiter {
    fn begin(&mut self, last: Sequence, _: usize) {
        self.last = last;
    }

    #[inline]
    fn judge(&mut self, _: usize, arrival: &Arrival<'_>) -> Verdict {
        let sequence = arrival.meta.sequence;
        if sequence <= self.last {
            return Verdict::Duplicate;
        }
        if sequence != self.last.next() {
            return Verdict::Early;
        }
        self.last = sequence;
        Verdict::First { conflated: 0, is_new: false }
    }

    fn last(&self) -> Sequence {
        self.last
    }

    fn wants_each(&self) -> bool {
        true
    }

    fn skip_to(&mut self, last: Sequence) {
        self.last = last;
    }
}
