//! Slow subscribers on one host of a publisher on another one, over RDMA. Each of the two tests is one host's part, as in
//! `tests/two_hosts.rs`:
//!
//! ```text
//! tools/soft-roce run2 'two_hosts_slow --ignored --nocapture --exact publisher_for_slow_subscribers' \
//!     'two_hosts_slow --ignored --nocapture --exact slow_subscribers'
//! ```

#![cfg(feature = "verbs")]

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fabricast::{Delivery, ErrorChain, Event, Gating, LogPublisher, Node, ReceiveError, SlowPolicy};
use rustix::process::Signal;

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::slow::{self, Received, Recorder, subscriber};
use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

const PORT: u16 = 7471;
const DIR: &str = "/tmp/fabricast-two-hosts";
const DELIVERIES: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
const CAPACITY: usize = 16 * 1024;
/// More than the rings of both hosts hold.
const RECORDS: u64 = 3000;
/// Longer than an emulated machine stands still.
const LEASE: Duration = Duration::from_secs(4);

/// The address of this host, or of the other one.
fn host(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 tells the addresses");
    format!("rdma://{host}:{PORT}")
}

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    slow::read(&Role::of_this_process());
}

fn node(name: &str, events: &Arc<Recorder>, listens: bool) -> Node {
    let builder =
        Node::builder().name(name).expect("a name").runtime_dir(DIR).events(Arc::clone(events) as _);
    let builder = if listens { builder.rdma(&host("SELF")).expect("an address").insecure() } else { builder };
    builder.open().expect("a node")
}

fn attached(publisher: &LogPublisher<u64>) -> u64 {
    publisher.pull_subscribers() + publisher.push_subscribers()
}

/// Publishes to so many subscribers, and waits until they have left.
fn serve(mut publisher: LogPublisher<u64>, subscribers: u64) {
    println!("{}: waiting for {subscribers} subscribers", publisher.topic());
    wait_until("the subscribers", || attached(&publisher) == subscribers);
    for number in 1..=RECORDS {
        if let Err(error) = publisher.publish(&number) {
            panic!("{}", ErrorChain(&error));
        }
    }
    println!("{}: published", publisher.topic());
    wait_until("the end", || attached(&publisher) == 0);
}

/// Host A.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_for_slow_subscribers() {
    let events = Arc::new(Recorder::default());
    let node = node("publisher", &events, true);
    let open = |topic: String| {
        let gating = Gating::new().timeout(PATIENCE).lease(LEASE);
        node.log_publisher::<u64>(&topic).capacity(CAPACITY).gating(gating).open().expect("a topic")
    };
    let [blocks, leases, laps, overtakes] = ["block", "lease", "lap", "disconnect"]
        .map(|policy| DELIVERIES.map(|delivery| open(format!("{policy}-{delivery}"))));
    blocks.into_iter().for_each(|publisher| serve(publisher, 2));
    for publisher in leases {
        let topic = publisher.topic().clone();
        serve(publisher, 2);
        let is_it = |event: &Event| match event {
            Event::SubscriberLetGo { topic: of, peer, .. } => *of == topic && peer.as_str() == "stopped",
            _ => false,
        };
        assert!(events.has(is_it));
    }
    laps.into_iter().for_each(|publisher| serve(publisher, 1));
    overtakes.into_iter().for_each(|publisher| serve(publisher, 1));
    let overtaken = |event: &Event| matches!(event, Event::SubscriberOvertaken { .. });
    assert_eq!(events.all().iter().filter(|event| overtaken(event)).count(), DELIVERIES.len());
}

/// Host B.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn slow_subscribers() {
    let events = Arc::new(Recorder::default());
    let node = node("slow", &events, false);
    let target = |policy: &str, delivery: Delivery| format!("{}/{policy}-{delivery}", host("PEER"));
    for delivery in DELIVERIES {
        blocks(&node, &target("block", delivery), delivery);
    }
    for delivery in DELIVERIES {
        is_stopped(&node, &target("lease", delivery), delivery);
    }
    for delivery in DELIVERIES {
        is_lapped(&node, &target("lap", delivery), delivery);
    }
    for delivery in DELIVERIES {
        let mut overtaken =
            subscriber(&node, &target("disconnect", delivery), delivery, SlowPolicy::Disconnect);
        let topic = overtaken.topic().clone();
        let is_it = |event: &Event| matches!(event, Event::Overtaken { topic: of, .. } if *of == topic);
        wait_until("the message", || events.has(is_it));
        let mut received = Received::default();
        let end = received.follow(&mut overtaken, u64::MAX).expect_err("it is disconnected");
        let ReceiveError::Overtaken { last } = end else { panic!("{}", ErrorChain(&end)) };
        assert_eq!((last.get(), received.lost), (received.last, 0));
    }
}

/// Two subscribers for which the publisher waits, of which one rests after each hundred records.
fn blocks(node: &Node, target: &str, delivery: Delivery) {
    let mut subscribers = [(); 2].map(|()| subscriber(node, target, delivery, SlowPolicy::Block));
    thread::scope(|scope| {
        for (subscriber, rests) in subscribers.iter_mut().zip([false, true]) {
            scope.spawn(move || {
                let mut received = Received::default();
                for number in (100..=RECORDS).step_by(100) {
                    received.follow(subscriber, number).expect("it is there");
                    thread::park_timeout(Duration::from_millis(if rests { 2 } else { 0 }));
                }
                assert_eq!(received.lost, 0);
            });
        }
    });
}

/// A process that is stopped, and another subscriber that receives everything.
fn is_stopped(node: &Node, target: &str, delivery: Delivery) {
    let mut stopped = Peer::ready("reader", Path::new(DIR), &format!("{target} stopped {delivery} block"));
    stopped.stop();
    let mut living = subscriber(node, target, delivery, SlowPolicy::Block);
    let mut received = Received::default();
    received.follow(&mut living, RECORDS).expect("it is there");
    assert_eq!((received.lost, living.is_gating()), (0, true));
    stopped.signal(Signal::CONT);
    wait_until("the message", || stopped.ask_number("gating") == 0);
    wait_until("the last record", || stopped.ask_number("last") == RECORDS);
    assert!(stopped.ask_number("lost") > 0);
    stopped.kill();
}

/// A subscriber that reads once everything is published.
fn is_lapped(node: &Node, target: &str, delivery: Delivery) {
    let mut lapped = subscriber(node, target, delivery, SlowPolicy::Lap);
    wait_until("all records", || {
        let list = node.subscribers(target).expect("a list");
        let lag = list.subscribers.first().and_then(|it| it.progress).map(|progress| progress.lag);
        lag == Some(RECORDS)
    });
    let mut received = Received::default();
    received.follow(&mut lapped, RECORDS).expect("it is there");
    let stats = lapped.stats();
    assert!(stats.lapped > 0);
    assert_eq!((stats.lapped, stats.received + stats.lapped), (received.lost, RECORDS));
}
