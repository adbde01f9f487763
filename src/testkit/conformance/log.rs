//! Log topics in the suite: every record from the first one on is received in order, or reported lost, once.

use std::ops::RangeInclusive;

use super::Harness;
use super::kind::{Account, ConformingKind};
use super::observer::payload;
use super::topics::World;
use crate::id::{Delivery, Sequence};
use crate::layout::log::frame_len;
use crate::limits;
use crate::payload::Raw;
use crate::publisher::{LogOptions, LogPublisher, PublishError};
use crate::repository::log::{LogStart, LogTopic};
use crate::repository::{LossReason, ReadFailure, Verified};
use crate::testkit::random::Random;

impl ConformingKind for LogTopic {
    /// Some hundred polls may pass before a record that was given up in flight is known to be missing.
    const LOOK_NS: u64 = limits::ARRIVAL_SETTLED_NS / 4000;

    /// A small ring, so that readers are lapped.
    fn publishing(random: &mut Random) -> LogOptions {
        LogOptions { capacity: 1 << (12 + random.below(4)), gating: None }
    }

    fn publish(publisher: &mut LogPublisher<Raw>, payload: &[u8]) -> Result<Sequence, PublishError> {
        publisher.publish(payload)
    }

    fn subscribing(random: &mut Random) -> LogStart {
        let starts = [
            LogStart::Earliest,
            LogStart::Newest,
            LogStart::At(Sequence::new(1)),
            LogStart::Back(random.below(100)),
        ];
        starts[random.index(starts.len())]
    }

    fn resumption(last: Sequence) -> Option<LogStart> {
        Some(LogStart::At(last.next()))
    }

    /// Records from before the grant may be gone when the reader begins.
    fn beginning(asked: LogStart, granted: u64) -> RangeInclusive<u64> {
        let first = asked.record(Sequence::new(granted)).get().max(1);
        if let LogStart::At(_) = asked { first..=first } else { first..=granted + 1 }
    }

    fn accept(account: &mut Account, value: &Verified<'_>, _floor: u64) {
        let sequence = value.meta.sequence.get();
        assert_eq!(account.missing_before(sequence), 0, "records between {} and {sequence}", account.last);
        assert_eq!(value.conflated, 0);
    }

    fn report(account: &mut Account, failure: &ReadFailure, last: u64) {
        let ReadFailure::Lost(lost) = failure else { panic!("{failure:?} of a log") };
        let first = lost.first.get();
        assert!(lost.count > 0);
        assert_eq!(account.missing_before(first), 0, "records between {} and {first}", account.last);
        assert_eq!(last, first + lost.count - 1, "the last record of {lost:?}");
        match lost.reason {
            LossReason::Lapped => account.counts.lapped += lost.count,
            LossReason::Damaged => {
                assert!(account.expects_damage, "{lost:?} where nothing is damaged");
                account.counts.rejected += lost.count;
            }
        }
        account.advance(first, last);
    }

    /// Without a valid record of the epoch the number missing before the end is unknown.
    fn has_reported_all(failures: &[ReadFailure], given_up: Option<(Sequence, u64)>) -> bool {
        failures.is_empty() && given_up.is_some()
    }
}

/// Bytes of the ring.
fn capacity(world: &World<'_, LogTopic>) -> usize {
    world.publisher.geometry().log().expect("it is a log").capacity()
}

/// Bytes of the records from `first` to `last` in the ring.
fn frames_len(world: &World<'_, LogTopic>, first: u64, last: u64) -> usize {
    let len = |sequence| payload(world.publisher.newest().0, sequence, world.payload_len_max()).len();
    (first..=last).map(|sequence| frame_len(len(sequence))).sum()
}

pub(crate) fn a_late_reader_begins_where_it_asks_to(harness: &dyn Harness, delivery: Delivery, seed: u64) {
    let mut world = World::<LogTopic>::new(harness, delivery, seed);
    for _ in 0..4 {
        world.run(50, 2);
        world.settle();
        let (_, newest) = world.publisher.newest();
        // The largest records of the suite are short enough for the ring to hold some.
        let back = newest.min(5);
        let starts =
            [LogStart::Newest, LogStart::Earliest, LogStart::Back(back), LogStart::At(Sequence::new(1))];
        starts.into_iter().for_each(|start| world.subscribe_to(start));
        world.settle();
        let late = world.subscribers.iter().skip(world.subscribers.len() - starts.len());
        let firsts: Vec<_> = late.map(|late| late.observer().expect("it was answered").first()).collect();
        let oldest = firsts[1].expect("the ring holds some");
        let held_len = frames_len(&world, oldest, newest);
        assert!(oldest == 1 || held_len > capacity(&world) / 2, "from {oldest} to {newest}");
        assert_eq!(firsts, [None, Some(oldest), Some(newest - back + 1), Some(1)]);
        world.settle_with_one_more();
        world.subscribers.truncate(1);
    }
}

pub(crate) fn a_lapped_reader_is_told_how_many_records_it_missed(
    harness: &dyn Harness,
    delivery: Delivery,
    seed: u64,
) {
    let mut world = World::<LogTopic>::new(harness, delivery, seed);
    (0..2).for_each(|_| world.subscribe());
    for _ in 0..3 {
        world.settle_with_one_more();
        let lapped = |world: &World<'_, LogTopic>| {
            let counts = world
                .subscribers
                .iter()
                .map(|subscriber| subscriber.observer().expect("it was answered").counts());
            counts.map(|counts| counts.lapped).collect::<Vec<_>>()
        };
        let before = lapped(&world);
        // As much as the publisher's ring and a landing region hold, and once more.
        let mut left = 3 * capacity(&world);
        while left > 0 {
            world.publisher.publish();
            let (_, newest) = world.publisher.newest();
            left = left.saturating_sub(frames_len(&world, newest, newest));
            world.publisher.turn();
        }
        world.settle_with_one_more();
        let after = lapped(&world);
        assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{before:?}, {after:?}");
    }
}
