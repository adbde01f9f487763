//! The oracle of the state suite: knows which value has which payload, and counts along.

use crate::id::Epoch;
use crate::limits;
use crate::repository::{ReadFailure, SubscriberStats, Verified};

/// The time of publishing that the suite gives a value, ns.
pub(super) fn published_ns(sequence: u64) -> u64 {
    sequence * 1000
}

/// The payload that the suite publishes at this position. Its length depends on the position, too.
pub(super) fn payload(epoch: Epoch, sequence: u64, len_max: usize) -> Vec<u8> {
    let mix = (epoch.get() ^ sequence).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let len = (mix >> 32) % (len_max as u64 + 1);
    (0..len).map(|index| (index.wrapping_mul(31) ^ (mix >> (index % 57))).to_le_bytes()[0]).collect()
}

/// What one subscriber has seen of one epoch.
#[derive(Debug)]
pub(super) struct Observer {
    epoch: Epoch,
    len_max: usize,
    /// The position of the first value that was accepted or rejected.
    first: Option<u64>,
    /// The position of the last value that was accepted or rejected.
    last: u64,
    /// The position of the last value that was accepted.
    accepted: u64,
    counts: SubscriberStats,
    /// Looks that its reader has taken at fetched memory.
    looks: u64,
    /// Values passed over before one that was reported, to be told with the next value.
    untold: u64,
    /// Reports other than values.
    failures: Vec<ReadFailure>,
}

impl Observer {
    pub(super) fn new(epoch: Epoch, len_max: usize) -> Self {
        let (counts, failures) = (SubscriberStats::default(), Vec::new());
        Self { epoch, len_max, first: None, last: 0, accepted: 0, counts, looks: 0, untold: 0, failures }
    }

    /// The time of the next look, ns: some look often at what is wrong before it counts as damaged.
    pub(super) fn tick(&mut self) -> u64 {
        self.looks += 1;
        self.looks * (limits::DAMAGE_SETTLED_NS / 4)
    }

    pub(super) fn is_of(&self, epoch: Epoch) -> bool {
        self.epoch == epoch
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    pub(super) fn received(&self) -> u64 {
        self.counts.received
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.first
    }

    pub(super) fn failures(&self) -> &[ReadFailure] {
        &self.failures
    }

    /// Checks a value that a reader accepted. It must not be older than `floor`.
    pub(super) fn value(&mut self, value: &Verified<'_>, floor: u64) {
        let sequence = value.meta.sequence.get();
        assert!(sequence > self.last, "{sequence} after {}", self.last);
        assert!(sequence >= floor, "{sequence}, but {floor} was there");
        assert_eq!(value.payload, payload(self.epoch, sequence, self.len_max), "the payload of {sequence}");
        assert_eq!(value.meta.epoch, self.epoch);
        assert_eq!(value.meta.published_ns, published_ns(sequence));
        let skipped = if self.last == 0 { 0 } else { sequence - self.last - 1 };
        let untold = std::mem::take(&mut self.untold);
        assert_eq!(value.conflated, skipped + untold, "values between {} and {sequence}", self.last);
        self.counts.received += 1;
        self.counts.conflated += skipped;
        self.first = self.first.or(Some(sequence));
        (self.last, self.accepted) = (sequence, sequence);
    }

    /// Takes note of what a reader reported instead of a value; `last` is what it stands at afterwards.
    pub(super) fn failure(&mut self, failure: ReadFailure, last: u64) {
        if last != self.last {
            assert!(!matches!(failure, ReadFailure::Contended { .. }), "a value passed over without a word");
            let skipped = if self.last == 0 { 0 } else { last - self.last - 1 };
            self.untold += skipped;
            self.counts.conflated += skipped;
            self.counts.rejected += 1;
            self.first = self.first.or(Some(last));
            self.last = last;
        }
        self.failures.push(failure);
    }

    /// Checks the counts that the reader has kept.
    pub(super) fn check(&self, counts: SubscriberStats) {
        let own = SubscriberStats { torn_retries: counts.torn_retries, ..self.counts };
        assert_eq!(counts, own);
    }
}
