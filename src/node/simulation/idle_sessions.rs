//! Sessions in which nothing is attached, which the publisher's node ends: the subscriber's node makes another one.

use super::*;
use crate::control::{ControlError, RefuseReason};
use crate::fabric::Address;
use crate::node::link::LinkUse;

/// Runs the world until this time.
fn run_until(world: &World, ns: u64) {
    while world.network.clock().monotonic_ns() < ns {
        world.turn();
    }
}

/// A session that is kept although nothing needs it.
fn kept(node: &Node) -> LinkUse {
    let address = Address::shm(&"publishing".parse().unwrap());
    node.links().dial(&address, limits::ANSWER_DEADLINE_NS).unwrap()
}

fn is_idle(link: &LinkUse) -> bool {
    matches!(link.failure(), Some(ControlError::Refused { reason: RefuseReason::Idle, .. }))
}

#[test]
fn session_without_an_attachment_is_ended_and_one_with_an_attachment_is_not() {
    for reach in [Reach::Mapped, Reach::Fetched] {
        let world = World::new(1, reach);
        let publishing = world.node("publishing", true);
        let mut publisher = publisher(&publishing);
        let nodes = [world.node("one", false), world.node("other", false)];
        let idle = kept(&nodes[0]);
        let mut observed = subscribe(&nodes[1], Delivery::Pull).unwrap();
        let began_ns = world.network.clock().monotonic_ns();
        run_until(&world, began_ns + limits::IDLE_SESSION_NS - 100_000_000);
        assert_eq!(idle.failure(), None);
        run_until(&world, began_ns + limits::IDLE_SESSION_NS + 100_000_000);
        assert!(is_idle(&idle), "{:?}", idle.failure());
        publish(&mut publisher, 1);
        observed.catch_up(&world, 1);
        // From when the last attachment is gone.
        let used = kept(&nodes[1]);
        drop(observed);
        let left_ns = world.network.clock().monotonic_ns();
        run_until(&world, left_ns + limits::IDLE_SESSION_NS - 100_000_000);
        assert_eq!(used.failure(), None);
        run_until(&world, left_ns + limits::IDLE_SESSION_NS + 100_000_000);
        assert!(is_idle(&used), "{:?}", used.failure());
    }
}

/// The request and the end of the session cross.
#[test]
fn request_at_any_time_is_answered_although_the_session_was_ended() {
    each_seed(amount(SEEDS, 10 * SEEDS), |seed| {
        let mut random = Random::new(seed);
        let reach = if random.once_in(2) { Reach::Mapped } else { Reach::Fetched };
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let mut publisher = publisher(&publishing);
        publish(&mut publisher, 1);
        let node = world.node("subscribing", false);
        let link = kept(&node);
        let now_ns = world.network.clock().monotonic_ns();
        run_until(&world, now_ns + limits::IDLE_SESSION_NS - 3_000_000 + random.below(6_000_000));
        let directory = random.once_in(2).then(|| node.directory("shm:publishing").unwrap());
        assert!(directory.is_none_or(|directory| directory.topics.len() == 1));
        let delivery = if random.once_in(2) { Delivery::Pull } else { Delivery::Push };
        subscribe(&node, delivery).unwrap().catch_up(&world, 1);
        drop(link);
    });
}
