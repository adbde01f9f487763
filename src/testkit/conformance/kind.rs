//! The properties of a kind of topic, so that the suite can run for each.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::id::Sequence;
use crate::payload::Raw;
use crate::publisher::{PublishError, PublishedKind, Publisher};
use crate::repository::{ReadFailure, Reader, SubscriberStats, Verified};
use crate::subscriber::TopicKind;
use crate::testkit::random::Random;

/// A kind of topic for the suite.
pub(crate) trait ConformingKind: PublishedKind + TopicKind + Copy + Debug {
    /// The time between two polls, ns: wrong bytes count as damaged only after some polls.
    const LOOK_NS: u64;

    /// Bytes that a payload has besides what the suite publishes.
    const OVERHEAD: usize = 0;

    /// The publisher's options of a small topic.
    fn publishing(random: &mut Random) -> Self::Options;

    /// Publishes one value through the public interface.
    fn publish(publisher: &mut Publisher<Self, Raw>, payload: &[u8]) -> Result<Sequence, PublishError>;

    /// Random options of a subscription.
    fn subscribing(random: &mut Random) -> <Self::Reader as Reader>::Options;

    /// The options of a subscription that continues after this value, because its predecessor has lost its connection. `None` if
    /// the predecessor's reader continues.
    fn resumption(last: Sequence) -> Option<<Self::Reader as Reader>::Options>;

    /// The values that may come first for a subscription with these options, granted when `granted` was the newest value.
    fn beginning(asked: <Self::Reader as Reader>::Options, granted: u64) -> RangeInclusive<u64>;

    /// The payload that was published, of a value as it is received.
    fn payload<'a>(value: &Verified<'a>) -> &'a [u8] {
        value.payload
    }

    /// Accounts for the values between the last one and this received one. `floor` was published before the reader polled.
    fn accept(account: &mut Account, value: &Verified<'_>, floor: u64);

    /// Accounts for a report in place of a value. The reader is at `last` afterwards.
    fn report(account: &mut Account, failure: &ReadFailure, last: u64);

    /// Whether a reader with another epoch than the publisher has accounted for everything: by these reports, or by the values
    /// given up at the end, the first of them and how many.
    fn has_reported_all(failures: &[ReadFailure], given_up: Option<(Sequence, u64)>) -> bool;
}

/// What one subscriber has received of one epoch, by the rules of its kind.
#[derive(Debug)]
pub(crate) struct Account {
    /// The possible first values.
    pub(super) beginning: RangeInclusive<u64>,
    /// Values may be damaged in flight.
    pub(super) expects_damage: bool,
    /// The first value that was received, or the first one that was reported.
    pub(super) first: Option<u64>,
    /// The last value that was received or reported.
    pub(super) last: u64,
    /// Values skipped before a reported one, to be counted with the next value.
    pub(super) untold: u64,
    /// The counts that the reader must have.
    pub(super) counts: SubscriberStats,
}

impl Account {
    /// The values missing between the last one and this one; none before the first.
    pub(super) fn missing_before(&self, sequence: u64) -> u64 {
        if self.first.is_none() { 0 } else { sequence - self.last - 1 }
    }

    /// Records that everything from `first` to `last` was received or reported.
    pub(super) fn advance(&mut self, first: u64, last: u64) {
        if self.first.is_none() {
            assert!(self.beginning.contains(&first), "{first} came first, not one of {:?}", self.beginning);
            self.first = Some(first);
        }
        self.last = last;
    }
}
