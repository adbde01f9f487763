//! The remains of ended topics.

use std::sync::Weak;

use super::*;
use crate::memory::Region;

/// Incarnations of a topic.
const INCARNATIONS: u64 = 300;

/// Opens a topic again and again, each time with a subscriber that is kept, and returns how many repositories are in memory.
fn repositories_left(is_log: bool, delivery: Delivery, receives_the_end: bool) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let (node, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut kept: Vec<AnySubscriber<u64>> = Vec::new();
    let mut repositories: Vec<Weak<Region>> = Vec::new();
    for number in 1..=INCARNATIONS {
        let state = (!is_log).then(|| node.state_publisher::<u64>("t").open().unwrap());
        let log = is_log.then(|| node.log_publisher::<u64>("t").capacity(4096).open().unwrap());
        let topic = node.core().topic(&"t".parse().unwrap()).unwrap();
        repositories.push(Arc::downgrade(topic.registration.region()));
        drop(topic);
        let builder = subscribing.any_subscriber::<u64>("shm:p/t").timeout(TIMEOUT);
        let mut subscriber = builder.delivery(delivery).open().unwrap();
        if let Some(mut publisher) = state {
            publisher.publish(&number).unwrap();
        }
        if let Some(mut publisher) = log {
            publisher.publish(&number).unwrap();
        }
        if receives_the_end {
            let mut receive = || subscriber.receive_timeout(TIMEOUT).map(|it| it.map(|it| it.value));
            assert_eq!(receive().unwrap(), Some(number));
            for _ in 0..2 {
                let error = receive().unwrap_err();
                assert!(
                    matches!(error, ReceiveError::Ended { published } if published.get() == 1),
                    "{error}"
                );
            }
        }
        kept.push(subscriber);
    }
    let left = || repositories.iter().filter(|it| it.strong_count() > 0).count();
    // The last ones are released once the node's thread has run.
    let deadline_ns = SystemClock.monotonic_ns() + saturate(TIMEOUT);
    while left() > 0 && SystemClock.monotonic_ns() < deadline_ns {
        SystemClock.pause(Duration::from_millis(1));
    }
    let left = left();
    drop(kept);
    left
}

#[test]
fn repositories_of_ended_topics_are_released_even_if_subscribers_are_kept() {
    for is_log in [false, true] {
        for delivery in [Delivery::Pull, Delivery::Push] {
            for receives_the_end in [true, false] {
                let left = repositories_left(is_log, delivery, receives_the_end);
                assert_eq!(left, 0, "log: {is_log}, {delivery:?}, received: {receives_the_end}");
            }
        }
    }
}
