//! Persistent subscribers that are opened while their publisher does not answer.

use super::*;

/// Attempts find that the publisher is gone before the next one is there: all of its records come after the opening.
#[test]
fn log_that_is_found_absent_while_it_is_sought_is_received_from_its_first_record() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        each_seed(amount(SEEDS / 6, SEEDS), |seed| {
            let world = World::new(seed, Reach::Fetched);
            let publishing = world.node("publishing", true);
            let before = publishing.log_publisher::<u64>("log").open().unwrap();
            let subscribing = world.node("subscribing", false);
            world.network.pause(&"publishing".parse().unwrap());
            let builder = subscribing.log_subscriber::<u64>("shm:publishing/log").delivery(delivery);
            let mut subscriber = builder.timeout(Duration::from_millis(50)).persistent().open().unwrap();
            assert!(subscriber.open_error().is_some_and(|error| !error.is_absence()));

            world.kill("publishing");
            (0..SETTLED_WITHIN).for_each(|_| world.turn());
            let next = world.node("publishing", true);
            let mut publisher = next.log_publisher::<u64>("log").open().unwrap();
            publisher.publish_batch(&[1, 2, 3]).unwrap();
            for expected in 1..=3 {
                let sample = subscriber.receive_timeout(Duration::from_secs(5)).unwrap();
                assert_eq!(sample.map(|sample| sample.value), Some(expected));
            }
            drop((before, publishing));
        });
    }
}
