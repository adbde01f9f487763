//! Feeds whose subscribers are late or slow, or whose publishers die in the middle of an event.

use super::*;
use crate::publisher::FeedPublisher;
use crate::subscriber::{FeedSubscriber, FeedUpdate};

const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];

type Subscriber = FeedSubscriber<u64, u64, u64>;

/// A publisher of long events, and a subscriber that has joined.
fn pair(world: &Arc<World>, delivery: Delivery) -> (FeedPublisher<u64, u64, u64>, Subscriber, [Node; 2]) {
    let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
    let builder = publishing.feed_publisher::<u64, u64, u64>("feed").capacity(12);
    let mut publisher = builder.log_capacity(1 << 20).record_len_max(64).open().unwrap();
    publisher.publish(&1, &1, &1).unwrap();
    let builder = subscribing.feed_subscriber("shm:publishing/feed").delivery(delivery);
    (publisher, builder.open().unwrap(), [publishing, subscribing])
}

/// Receives for a while.
fn join(world: &World, subscriber: &mut Subscriber) {
    for _ in 0..200 {
        world.turn();
        subscriber.try_update().unwrap();
    }
}

#[test]
fn death_in_the_middle_of_an_event_leaves_the_values_of_an_event_or_suspects() {
    for (reach, delivery) in WAYS {
        each_seed(amount(SEEDS / 3, 10 * SEEDS), |seed| {
            let (mut random, world) = (Random::new(seed), World::new(seed, reach));
            let (mut publisher, mut subscriber, _nodes) = pair(&world, delivery);
            join(&world, &mut subscriber);
            let mut event = publisher.event();
            // Longer than one fetch.
            while event.update(&1, &2, &(event.len() as u64)).is_ok() {}
            event.commit();
            (0..random.below(40)).for_each(|_| world.turn());
            let mut ends_event = true;
            for _ in 0..random.below(3000) {
                if random.once_in(20) {
                    world.turn();
                }
                if let Some(update) = subscriber.try_update().unwrap() {
                    ends_event = update.ends_event();
                }
            }
            world.kill("publishing");
            let end = (0..TURNS * 10).find_map(|_| match subscriber.try_update() {
                Ok(None) => {
                    world.turn();
                    None
                }
                Ok(Some(update)) => {
                    ends_event = update.ends_event();
                    None
                }
                // The value comes in place of the records.
                Err(ReceiveError::CutOff { .. }) => None,
                Err(error) => Some(error),
            });
            assert!(end.is_some(), "the end was never reported");
            assert!(ends_event || subscriber.suspects() == [1], "{reach:?} {delivery}: half an event");
            std::mem::forget(publisher);
        });
    }
}

/// The cut is 5,000 records ahead, and it takes a hundredth of a second for each.
#[test]
fn slow_subscriber_that_moves_on_towards_a_cut_gets_no_error() {
    for (reach, delivery) in WAYS {
        let world = World::new(1, reach);
        let (mut publisher, mut subscriber, _nodes) = pair(&world, delivery);
        join(&world, &mut subscriber);
        (0..5000).for_each(|_| _ = publisher.publish(&2, &2, &2).unwrap());
        (0..200).for_each(|_| world.turn());
        subscriber.all_keys();
        let mut received = 0;
        while received < 5000 {
            match subscriber.try_update().unwrap() {
                Some(FeedUpdate::Record(_)) => {
                    received += 1;
                    world.network.clock().advance(10_000_000);
                }
                Some(FeedUpdate::Value(_)) => {}
                None => world.turn(),
            }
        }
    }
}

/// It reads the table for the first time long after it was opened, while every key changes again and again.
#[test]
fn late_first_receive_is_not_overdue() {
    each_seed(SEEDS / 4, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let (mut publisher, mut subscriber, _nodes) = pair(&world, Delivery::Pull);
        world.network.clock().advance(limits::ANSWER_DEADLINE_NS + 1);
        world.spawn(move || {
            let mut event = publisher.event();
            (0..12).for_each(|key| event.update(&key, &1, &1).unwrap());
            event.commit();
            true
        });
        for _ in 0..20 {
            subscriber.try_update().unwrap();
        }
    });
}
