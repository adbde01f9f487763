//! Feeds over RDMA verbs, on one host with a device: run by `tools/test` in a soft-RoCE machine.
//!
//! ```text
//! tools/soft-roce run -- verbs_feeds --ignored --test-threads 1
//! ```

#![cfg(feature = "verbs")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fabricast::{Delivery, ErrorChain, FeedUpdate, Node, RdmaConnect, ReceiveError};

use self::support::feed::{Publisher, RECORDS, Replica, Subscriber, publish_next};
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

/// The address of this host's RDMA device: by default that of a machine of tools/soft-roce.
fn host() -> String {
    std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned())
}

fn publishing(dir: &Path) -> Node {
    let builder = Node::builder().name("exchange").expect("a name").runtime_dir(dir);
    builder.rdma(&format!("rdma://{}:0", host())).expect("an address").insecure().open().expect("a node")
}

/// The feed's address over RDMA.
fn target(node: &Node) -> String {
    let address = node.addresses().iter().find(|address| !address.is_local()).expect("it listens");
    format!("{address}/feed")
}

fn feed(node: &Node) -> Publisher {
    // About four hundred records.
    let builder = node.feed_publisher("feed").capacity(70).record_len_max(100).value_len_max(40);
    builder.log_capacity(40_000).open().expect("two topics")
}

fn subscribe(dir: &Path, target: &str, delivery: Delivery) -> Subscriber {
    let node = Node::builder().runtime_dir(dir).open().expect("a node");
    let builder = node.feed_subscriber(target).delivery(delivery).timeout(PATIENCE);
    builder.open().expect("two subscriptions")
}

/// Receives until all of this event was received.
fn follow_to(replica: &mut Replica, subscriber: &mut Subscriber, event: u64) {
    wait_until("the event", || {
        match replica.follow(subscriber) {
            Ok(_) => {}
            Err(error) => panic!("{}", ErrorChain(&error)),
        }
        subscriber.last().get() == event * RECORDS && replica.has(event)
    });
    assert!(subscriber.suspects().is_empty());
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn early_late_and_narrow_subscribers_have_every_event_of_a_publisher_that_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    let target = target(&node);
    for delivery in BOTH {
        let mut feed = feed(&node);
        let is_over = AtomicBool::new(false);
        let mut subscribers: Vec<(Subscriber, Replica)> = Vec::new();
        let mut events = 0;
        thread::scope(|scope| {
            let publishing = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    publish_next(&mut feed);
                    let next = now() + Duration::from_millis(2);
                    wait_until("the next event", || now() >= next);
                }
                feed.newest().get() / RECORDS
            });
            for number in 0..3 {
                let mut subscriber = subscribe(dir.path(), &target, delivery);
                let mut replica = Replica::default();
                if number == 2 {
                    replica.wanted = Some(|key| key < 5);
                    subscriber.only(|key| *key < 5);
                }
                wait_until("a hundred events", || {
                    if let Err(error) = replica.follow(&mut subscriber) {
                        panic!("{}", ErrorChain(&error));
                    }
                    replica.event > 100 * (number + 1)
                });
                subscribers.push((subscriber, replica));
            }
            is_over.store(true, Ordering::Relaxed);
            events = publishing.join().expect("publishing does not panic");
        });
        for (subscriber, replica) in &mut subscribers {
            follow_to(replica, subscriber, events);
            println!("{delivery}: {} records lost, {} values, {events} events", replica.lost, replica.values);
        }
        drop(feed);
        for (subscriber, replica) in &mut subscribers {
            wait_until("the end", || match replica.follow(subscriber) {
                Ok(_) => false,
                Err(ReceiveError::Ended { published }) => published.get() == events * RECORDS,
                Err(error) => panic!("{}", ErrorChain(&error)),
            });
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn slow_subscribers_get_the_values_of_the_keys_that_lost_records() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    for delivery in BOTH {
        let mut feed = feed(&node);
        let mut subscriber = subscribe(dir.path(), &target(&node), delivery);
        let mut replica = Replica::default();
        let (mut events, mut values) = (0, 0);
        for _ in 0..5 {
            // More than two rings.
            for _ in 0..150 {
                publish_next(&mut feed);
            }
            events += 150;
            follow_to(&mut replica, &mut subscriber, events);
            assert!(replica.values > values, "values, once more");
            values = replica.values;
            publish_next(&mut feed);
            events += 1;
            follow_to(&mut replica, &mut subscriber, events);
            assert_eq!(replica.values, values, "records again");
        }
        assert!(replica.lost > 0);
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn conflated_values_are_the_newest_ones_and_unreliable_pushes_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    let mut feed = feed(&node);
    let unreliable = Node::builder().runtime_dir(dir.path()).rdma_connect(RdmaConnect::TcpUnreliable);
    let unreliable = unreliable.open().expect("a node");
    let opened: Result<Subscriber, _> = unreliable.feed_subscriber(target(&node).as_str()).push().open();
    let error = opened.expect_err("a lost write would go unnoticed");
    assert!(ErrorChain(&error).to_string().contains("unreliable"), "{}", ErrorChain(&error));
    for delivery in BOTH {
        let subscribing = Node::builder().runtime_dir(dir.path()).open().expect("a node");
        let builder =
            subscribing.feed_subscriber(target(&node).as_str()).delivery(delivery).timeout(PATIENCE);
        let mut subscriber: Subscriber = builder.conflate(Duration::from_millis(5)).open().expect("a table");
        let mut replica = Replica::default();
        for _ in 0..10 {
            (0..7).for_each(|_| publish_next(&mut feed));
            let newest = feed.newest().get() / RECORDS;
            wait_until("the newest values", || {
                if let Err(error) = replica.follow(&mut subscriber) {
                    panic!("{}", ErrorChain(&error));
                }
                replica.has(newest)
            });
        }
        publish_next(&mut feed);
        let key = feed.newest().get() / RECORDS % 7;
        let update = subscriber.update_timeout(PATIENCE).expect("no end").expect("a value in time");
        let FeedUpdate::Value(update) = update else { panic!("a record") };
        assert_eq!(update.key % 7, key);
    }
}
