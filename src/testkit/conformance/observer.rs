//! The oracle of the suite: knows the payload of each value, and keeps count.

use std::ops::RangeInclusive;

use super::kind::{Account, ConformingKind};
use crate::id::Epoch;
use crate::repository::{ReadFailure, SubscriberStats, Verified};

/// The time of publishing that the suite gives a value, ns.
pub(super) fn published_ns(sequence: u64) -> u64 {
    sequence * 1000
}

/// The payload at this position. Its length depends on the position, too.
pub(super) fn payload(epoch: Epoch, sequence: u64, len_max: usize) -> Vec<u8> {
    let mix = (epoch.get() ^ sequence).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let len = (mix >> 32) % (len_max as u64 + 1);
    (0..len).map(|index| (index.wrapping_mul(31) ^ (mix >> (index % 57))).to_le_bytes()[0]).collect()
}

/// What one subscriber has received of one epoch.
#[derive(Debug)]
pub(super) struct Observer {
    epoch: Epoch,
    len_max: usize,
    /// The position of the last value that was accepted.
    accepted: u64,
    account: Account,
    /// Polls of fetched memory by its reader.
    looks: u64,
    /// Reports other than values.
    failures: Vec<ReadFailure>,
}

impl Observer {
    pub(super) fn new(
        epoch: Epoch,
        len_max: usize,
        beginning: RangeInclusive<u64>,
        expects_damage: bool,
    ) -> Self {
        let counts = SubscriberStats::default();
        let account = Account { beginning, expects_damage, first: None, last: 0, untold: 0, counts };
        Self { epoch, len_max, accepted: 0, account, looks: 0, failures: Vec::new() }
    }

    /// The time of the next poll, ns: wrong bytes count as damaged only after some polls.
    pub(super) fn tick<K: ConformingKind>(&mut self) -> u64 {
        self.looks += 1;
        self.looks * K::LOOK_NS
    }

    pub(super) fn is_of(&self, epoch: Epoch) -> bool {
        self.epoch == epoch
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The position of the first value that was accepted or reported.
    pub(super) fn first(&self) -> Option<u64> {
        self.account.first
    }

    pub(super) fn counts(&self) -> SubscriberStats {
        self.account.counts
    }

    pub(super) fn failures(&self) -> &[ReadFailure] {
        &self.failures
    }

    /// Checks a value that a reader accepted. `floor` was published before it polled.
    pub(super) fn value<K: ConformingKind>(&mut self, value: &Verified<'_>, floor: u64) {
        let (sequence, last) = (value.meta.sequence.get(), self.account.last);
        assert!(sequence > last, "{sequence} after {last}");
        assert_eq!(
            K::payload(value),
            payload(self.epoch, sequence, self.len_max),
            "the payload of {sequence}"
        );
        assert_eq!(value.meta.epoch, self.epoch);
        assert_eq!(value.meta.published_ns, published_ns(sequence));
        K::accept(&mut self.account, value, floor);
        self.account.counts.received += 1;
        self.account.advance(sequence, sequence);
        self.accepted = sequence;
    }

    /// Records a report of a reader in place of a value; the reader is at `last` afterwards.
    pub(super) fn failure<K: ConformingKind>(&mut self, failure: ReadFailure, last: u64) {
        K::report(&mut self.account, &failure, last);
        self.failures.push(failure);
    }

    /// Checks the reader's counts.
    pub(super) fn check(&self, counts: SubscriberStats) {
        let own = SubscriberStats { torn_retries: counts.torn_retries, ..self.counts() };
        assert_eq!(counts, own);
    }
}
