//! Publishers that wait until their subscribers have received everything.

use super::*;
use crate::publisher::FinishError;
use crate::sync::atomic::AtomicU64;

const LONG: Duration = Duration::from_secs(5);
const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];

impl World {
    /// A program that receives now and then until the end. Returns the last value that it has received, and more for the end.
    fn follower(self: &Arc<Self>, seed: u64, mut observed: Observed) -> Arc<AtomicU64> {
        let (mut random, last) = (Random::new(seed), Arc::new(AtomicU64::new(0)));
        let shown = Arc::clone(&last);
        self.spawn(move || {
            if !random.once_in(5) {
                return true;
            }
            match observed.receive() {
                Ok(_) => shown.store(observed.last, Ordering::Relaxed),
                Err(ReceiveError::Ended { published }) => {
                    assert_eq!(published.get(), observed.last, "the last value comes first");
                    shown.store(observed.last + 1000, Ordering::Relaxed);
                    return false;
                }
                Err(error) => panic!("{error:?}"),
            }
            true
        });
        last
    }
}

#[test]
fn publisher_finishes_once_all_subscribers_have_received_the_end() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 6, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let nodes = ["one", "two"].map(|name| world.node(name, false));
            let mut publisher = publisher(&publishing);
            let followers = [0, 1, 1].map(|node| {
                let observed = subscribe(&nodes[node], delivery).expect("a grant");
                world.follower(seed ^ node as u64, observed)
            });
            publish(&mut publisher, 5);
            assert_eq!(publisher.finish(LONG).map(Sequence::get), Ok(5), "{reach:?} {delivery:?}");
            for last in followers {
                assert_eq!(last.load(Ordering::Relaxed), 1005, "{reach:?} {delivery:?}");
            }
        });
    }
}

#[test]
fn subscriber_that_does_not_receive_is_reported_and_has_not_lost_anything() {
    for (reach, delivery) in WAYS {
        let world = World::new(1, reach);
        let publishing = world.node("publishing", true);
        let nodes = ["one", "two"].map(|name| world.node(name, false));
        let mut publisher = publisher(&publishing);
        let mut slow = subscribe(&nodes[0], delivery).expect("a grant");
        let last = world.follower(7, subscribe(&nodes[1], delivery).expect("a grant"));
        publish(&mut publisher, 3);
        let timeout = Duration::from_millis(200);
        let began_ns = world.network.clock().monotonic_ns();
        let error = publisher.finish(timeout).unwrap_err();
        assert!(world.network.clock().monotonic_ns() - began_ns >= saturate(timeout));
        assert_eq!(error, FinishError::Unfinished { subscribers: 1, published: Sequence::new(3) });
        assert_eq!(last.load(Ordering::Relaxed), 1003);
        slow.catch_up(&world, 3);
        let end = (0..TURNS).find_map(|_| {
            world.turn();
            slow.receive().err()
        });
        assert!(matches!(end, Some(ReceiveError::Ended { published }) if published.get() == 3), "{end:?}");
    }
}

/// Nobody waits for the dead, nor for those that have left.
#[test]
fn publisher_finishes_without_subscribers_that_are_gone() {
    for (reach, delivery) in WAYS {
        let world = World::new(2, reach);
        let publishing = world.node("publishing", true);
        let mut first = publisher(&publishing);
        publish(&mut first, 2);
        assert_eq!(first.finish(Duration::ZERO).map(Sequence::get), Ok(2), "there are none");
        let mut second = publisher(&publishing);
        let subscribing = world.node("subscribing", false);
        let observed = subscribe(&subscribing, delivery).expect("a grant");
        let leaving = subscribe(&world.node("leaving", false), delivery).expect("a grant");
        publish(&mut second, 2);
        world.kill("subscribing");
        drop(leaving);
        assert_eq!(second.finish(LONG).map(Sequence::get), Ok(2), "{reach:?} {delivery:?}");
        drop(observed);
    }
}

#[test]
fn feed_finishes_with_both_topics() {
    let world = World::new(3, Reach::Mapped);
    let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
    let mut feed = publishing.feed_publisher::<u64, u64, u64>("feed").open().unwrap();
    let mut updates = subscribing.feed_subscriber::<u64, u64, u64>("shm:publishing/feed").open().unwrap();
    feed.publish(&1, &2, &3).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    world.spawn(move || match updates.try_update() {
        Ok(update) => {
            counted.fetch_add(u64::from(update.is_some()), Ordering::Relaxed);
            true
        }
        Err(error) => {
            assert!(matches!(error, ReceiveError::Ended { .. }), "{error:?}");
            false
        }
    });
    assert_eq!(feed.finish(LONG).map(Sequence::get), Ok(1));
    assert_eq!(count.load(Ordering::Relaxed), 1);
}
