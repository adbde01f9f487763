//! Topics that end while somebody attaches to them, and what is left of them.

use super::*;
use crate::control::RefuseReason;

/// Every medium with every delivery.
const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];
/// Turns within which a topic ends: about as many as attaching takes.
const STRIKES_WITHIN: u64 = 12;
/// Turns for which a subscriber stands still.
const SLOW_TURNS: u64 = 20;

#[test]
fn a_topic_that_ends_while_it_is_attached_to_is_refused_as_ended() {
    let mut outcomes = [0, 0];
    for (reach, delivery) in WAYS {
        each_seed(SEEDS, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let (mut publisher, mut turns) = (Some(publisher(&publishing)), random.below(STRIKES_WITHIN));
            let (network, name) = (Arc::clone(&world.network), "subscribing".parse().unwrap());
            // The subscriber is slow: what its publisher's node says meanwhile it takes in one turn.
            world.spawn(move || {
                if turns == 0 && publisher.take().is_some() {
                    network.pause(&name);
                    turns = SLOW_TURNS;
                    return true;
                }
                turns = turns.saturating_sub(1);
                if turns == 0 && publisher.is_none() {
                    network.resume(&name);
                    return false;
                }
                true
            });
            match subscribe(&subscribing, delivery) {
                Ok(mut observed) => {
                    outcomes[0] += 1;
                    let end = (0..TURNS).find_map(|_| {
                        world.turn();
                        observed.receive().err()
                    });
                    assert!(matches!(end, Some(ReceiveError::Ended { .. })), "{end:?}");
                }
                Err(SubscriberError::Refused { reason, .. }) => {
                    let is_end = matches!(reason, RefuseReason::TopicEnded | RefuseReason::NoSuchTopic);
                    assert!(is_end, "{reason}");
                    outcomes[1] += 1;
                }
                Err(error) => panic!("{error:?}, {reach:?}, {delivery:?}"),
            }
        });
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// The memory of a topic.
fn repository(node: &Node, topic: &str) -> Weak<crate::memory::Region> {
    let topic = node.core().topic(&topic.parse().unwrap()).unwrap();
    Arc::downgrade(topic.registration().region())
}

/// Its node detaches for it, so that the publisher takes the memory back without breaking the session.
#[test]
fn a_subscriber_that_does_not_look_detaches_in_time_and_keeps_its_other_topics() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 12, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let mut publisher = publisher(&publishing);
            let ending = publishing.state_publisher::<Value>("ending").open().unwrap();
            let memory = repository(&publishing, "ending");
            let mut observed = subscribe(&subscribing, delivery).expect("a grant");
            let builder = subscribing.state_subscriber::<Value>("shm:publishing/ending").delivery(delivery);
            let mut absent = builder.open().unwrap();
            drop(ending);
            let step_ns = limits::ENDED_GRACE_NS / 100;
            for _ in 0..120 {
                world.network.clock().advance(step_ns);
                (0..10).for_each(|_| world.turn());
            }
            assert_eq!(memory.strong_count(), 0, "{reach:?}, {delivery:?}");
            publish(&mut publisher, 3);
            observed.catch_up(&world, 3);
            let end = (0..TURNS).find_map(|_| {
                world.turn();
                absent.try_receive().err()
            });
            assert!(matches!(end, Some(ReceiveError::Ended { .. })), "{end:?}");
            publish(&mut publisher, 1);
            observed.catch_up(&world, 4);
        });
    }
}

#[test]
fn a_subscriber_that_stands_still_holds_no_memory_of_topics_that_have_ended() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 12, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let publisher = publisher(&publishing);
            let memory = repository(&publishing, "topic");
            let _observed = subscribe(&subscribing, delivery).expect("a grant");
            world.network.pause(&"subscribing".parse().unwrap());
            drop(publisher);
            let step_ns = limits::ENDED_GRACE_NS / 100;
            for _ in 0..220 {
                world.network.clock().advance(step_ns);
                (0..10).for_each(|_| world.turn());
            }
            assert_eq!(memory.strong_count(), 0, "{reach:?}, {delivery:?}");
        });
    }
}
