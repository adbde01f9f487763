//! What a kind of topic says of itself, so that the suite can ask every behaviour of it.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::id::Sequence;
use crate::payload::Raw;
use crate::publisher::{PublishError, PublishedKind, Publisher};
use crate::repository::{ReadFailure, Reader, SubscriberStats, Verified};
use crate::subscriber::TopicKind;
use crate::testkit::random::Random;

/// A kind of topic that the suite runs for.
pub(crate) trait ConformingKind: PublishedKind + TopicKind + Copy + Debug {
    /// From one look to the next, ns: what is wrong counts as damaged only after some.
    const LOOK_NS: u64;

    /// What a publisher of a small topic chooses.
    fn publishing(random: &mut Random) -> Self::Options;

    /// Publishes one value, as users do.
    fn publish(publisher: &mut Publisher<Self, Raw>, payload: &[u8]) -> Result<Sequence, PublishError>;

    /// What a subscription asks for.
    fn subscribing(random: &mut Random) -> <Self::Reader as Reader>::Options;

    /// What a subscription asks for that goes on behind this value, because the one before has lost its connection. `None` if
    /// the reader of the one before goes on.
    fn resumption(last: Sequence) -> Option<<Self::Reader as Reader>::Options>;

    /// The values that may come first to a subscription that asked for this while `granted` was the newest value.
    fn beginning(asked: <Self::Reader as Reader>::Options, granted: u64) -> RangeInclusive<u64>;

    /// Accounts for the values between the last one and this one, which was received. `floor` was published before its reader
    /// began to look for it.
    fn accept(account: &mut Account, value: &Verified<'_>, floor: u64);

    /// Accounts for what was reported instead of a value. The reader stands at `last` afterwards.
    fn report(account: &mut Account, failure: &ReadFailure, last: u64);

    /// Whether a reader that took the publisher's epoch for another one has accounted for everything: by these reports, or by
    /// the values that it gave up at the end, the first of them and how many.
    fn has_reported_all(failures: &[ReadFailure], given_up: Option<(Sequence, u64)>) -> bool;
}

/// What one subscriber has seen of one epoch, as its kind accounts for it.
#[derive(Debug)]
pub(crate) struct Account {
    /// The values that may be the first one.
    pub(super) beginning: RangeInclusive<u64>,
    /// Values may be damaged on their way.
    pub(super) expects_damage: bool,
    /// The first value that was received, or the first one that was reported.
    pub(super) first: Option<u64>,
    /// The last value that was received or reported.
    pub(super) last: u64,
    /// Values passed over before one that was reported, to be told with the next value.
    pub(super) untold: u64,
    /// What the reader must have counted.
    pub(super) counts: SubscriberStats,
}

impl Account {
    /// Values that are missing between the last one and this one; none before the first.
    pub(super) fn missing_before(&self, sequence: u64) -> u64 {
        if self.first.is_none() { 0 } else { sequence - self.last - 1 }
    }

    /// Takes note that everything up to `last` was received or reported, `first` being the first of it.
    pub(super) fn advance(&mut self, first: u64, last: u64) {
        if self.first.is_none() {
            assert!(self.beginning.contains(&first), "{first} came first, not one of {:?}", self.beginning);
            self.first = Some(first);
        }
        self.last = last;
    }
}
