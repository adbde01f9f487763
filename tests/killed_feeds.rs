//! Publishers of feeds that are killed at any moment: their subscribers end with the values of an event.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use fabricast::{Delivery, Node, ReceiveError};

use self::support::feed::{Publisher, Replica, Subscriber, publish_next};
use self::support::pattern::Random;
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

/// How often a publisher is killed, for each delivery.
const CYCLES: u64 = 20;

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let node = Node::builder().name("p").expect("a name").runtime_dir(&role.dir).open().expect("a node");
    let builder = node.feed_publisher("f").capacity(70).log_capacity(1 << 15);
    let mut publisher: Publisher = builder.open().expect("two topics");
    role.say("ready");
    role.command();
    loop {
        publish_next(&mut publisher);
    }
}

fn subscribers_of_killed_publishers_end_with_an_event(delivery: Delivery) {
    let dir = tempfile::tempdir().expect("a directory");
    let seed = RandomState::new().hash_one(0);
    println!("seed {seed}");
    let mut random = Random(seed);
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let (mut lost, mut unfinished) = (0, 0);
    for _ in 0..CYCLES {
        let mut publisher = Peer::ready("publisher", dir.path(), "");
        let builder = node.feed_subscriber("shm:p/f").timeout(PATIENCE);
        let mut subscriber: Subscriber = builder.delivery(delivery).open().expect("two subscriptions");
        let mut replica = Replica::default();
        publisher.tell("run");
        let enough = 1 + random.below(2000) as u64;
        wait_until("some events", || {
            while replica.follow(&mut subscriber).expect("no end") && replica.event < enough {}
            replica.event >= enough
        });
        publisher.kill();
        let mut damaged = 0;
        wait_until("the end", || {
            match replica.follow(&mut subscriber) {
                Ok(_) => false,
                // It died while it wrote an entry.
                Err(ReceiveError::UnreadableValues { count }) => {
                    damaged += count;
                    false
                }
                Err(error) => {
                    assert!(matches!(error, ReceiveError::Gone { .. }), "{error}");
                    true
                }
            }
        });
        lost += replica.lost;
        if damaged == 0 && subscriber.suspects().is_empty() {
            // The last events may have reached the table only, and come as values.
            assert!((replica.event..=replica.newest).any(|event| replica.has(event)), "{replica:?}");
        } else {
            unfinished += 1;
        }
        let error = subscriber.update_timeout(Duration::ZERO).expect_err("it is gone");
        assert!(matches!(error, ReceiveError::Gone { .. }), "{error}");
    }
    println!("{lost} records lost, {unfinished} subscribers with suspects");
    assert!(unfinished < CYCLES, "a kill seldom hits a write");
}

#[test]
fn pull_subscribers_of_killed_publishers_end_with_an_event() {
    subscribers_of_killed_publishers_end_with_an_event(Delivery::Pull);
}

#[test]
fn push_subscribers_of_killed_publishers_end_with_an_event() {
    subscribers_of_killed_publishers_end_with_an_event(Delivery::Push);
}
