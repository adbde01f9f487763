//! State topics in the suite: only newer values are received, those between are counted, and the newest one is reached.

use std::ops::RangeInclusive;

use super::Harness;
use super::kind::{Account, ConformingKind};
use super::subscriber::Subscriber;
use super::topics::World;
use crate::id::{Delivery, Sequence};
use crate::limits;
use crate::payload::Raw;
use crate::publisher::{PublishError, StatePublisher};
use crate::repository::state::StateTopic;
use crate::repository::{ReadFailure, Verified};
use crate::testkit::random::Random;

impl ConformingKind for StateTopic {
    const LOOK_NS: u64 = limits::DAMAGE_SETTLED_NS / 4;

    fn publishing(random: &mut Random) -> u32 {
        2 << random.below(3)
    }

    fn publish(publisher: &mut StatePublisher<Raw>, payload: &[u8]) -> Result<Sequence, PublishError> {
        publisher.publish(payload)
    }

    fn subscribing(_: &mut Random) {}

    fn resumption(_: Sequence) -> Option<()> {
        None
    }

    fn beginning((): (), granted: u64) -> RangeInclusive<u64> {
        granted..=u64::MAX
    }

    fn accept(account: &mut Account, value: &Verified<'_>, floor: u64) {
        let sequence = value.meta.sequence.get();
        assert!(sequence >= floor, "{sequence}, but {floor} was there");
        let skipped = account.missing_before(sequence);
        let untold = std::mem::take(&mut account.untold);
        assert_eq!(value.conflated, skipped + untold, "values between {} and {sequence}", account.last);
        account.counts.conflated += skipped;
    }

    fn report(account: &mut Account, failure: &ReadFailure, last: u64) {
        if last != account.last {
            assert!(!matches!(failure, ReadFailure::Contended { .. }), "a value was skipped silently");
            let skipped = account.missing_before(last);
            account.untold += skipped;
            account.counts.conflated += skipped;
            account.counts.rejected += 1;
            account.advance(last, last);
        }
    }

    fn has_reported_all(failures: &[ReadFailure], given_up: Option<(Sequence, u64)>) -> bool {
        let foreign = |failure: &ReadFailure| matches!(failure, ReadFailure::ForeignEpoch { found: 1, .. });
        failures.iter().any(foreign) && given_up.is_none()
    }
}

pub(crate) fn a_late_reader_gets_the_newest_value_first(
    harness: &dyn Harness,
    delivery: Delivery,
    seed: u64,
) {
    let mut world = World::<StateTopic>::new(harness, delivery, seed);
    world.subscribe();
    for _ in 0..4 {
        world.run(50, 2);
        world.settle();
        let (_, newest) = world.publisher.newest();
        world.subscribe();
        world.settle();
        let late = world.subscribers.last().and_then(Subscriber::observer).expect("it was answered");
        assert_eq!((late.first(), late.counts().received), (Some(newest), 1));
    }
}
