//! Slow subscribers over RDMA verbs, on one host with a device: run by `tools/test` in a soft-RoCE machine.
//!
//! ```text
//! tools/soft-roce run -- verbs_slow --ignored --test-threads 1
//! ```

#![cfg(feature = "verbs")]

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fabricast::{
    Delivery, ErrorChain, Event, FeedPublisher, FeedUpdate, Gating, LogPublisher, Node, PublishError,
    RdmaConnect, ReceiveError, RefuseReason, SlowPolicy, SubscriberError,
};
use rustix::process::Signal;

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::slow::{self, Received, Recorder, subscriber};
use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

const DELIVERIES: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
/// A ring of some hundred records, so that a subscriber that does not read is soon in the way.
const CAPACITY: usize = 16 * 1024;
/// More than ten rings.
const MANY: u64 = 5000;
/// How long a publisher waits for a subscriber whose node does not run.
/// Longer than an emulated machine stands still.
const LEASE: Duration = Duration::from_secs(4);

/// The address of this host's RDMA device: by default that of a machine of tools/soft-roce.
fn host() -> String {
    std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned())
}

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    slow::read(&Role::of_this_process());
}

/// A node that publishes over RDMA, and what happens to it.
fn publishing(dir: &Path) -> (Node, Arc<Recorder>) {
    let events = Arc::new(Recorder::default());
    let builder =
        Node::builder().name("p").expect("a name").runtime_dir(dir).events(Arc::clone(&events) as _);
    let node = builder.rdma(&format!("rdma://{}:0", host())).expect("an address").insecure().open();
    (node.expect("a node"), events)
}

/// The address of the topic over RDMA.
fn target(node: &Node) -> String {
    let address = node.addresses().iter().find(|address| !address.is_local()).expect("it listens");
    format!("{address}/t")
}

/// A node that subscribes.
fn named(dir: &Path, name: &str) -> Node {
    Node::builder().name(name).expect("a name").runtime_dir(dir).open().expect("a node")
}

fn gated(node: &Node, gating: Gating) -> LogPublisher<u64> {
    node.log_publisher("t").capacity(CAPACITY).gating(gating).open().expect("a topic")
}

/// Publishes so many numbers, each its own sequence.
fn publish(publisher: &mut LogPublisher<u64>, count: u64) {
    for _ in 0..count {
        let next = publisher.newest().next().get();
        if let Err(error) = publisher.publish(&next) {
            panic!("{}", ErrorChain(&error));
        }
    }
}

/// Publishes until a subscriber is in the way. Returns the error, which has the number.
fn fill(publisher: &mut LogPublisher<u64>) -> fabricast::TryPublishError<u64> {
    let refused = (0..CAPACITY).find_map(|_| {
        let next = publisher.newest().next().get();
        publisher.try_publish(next).err()
    });
    let refused = refused.expect("the ring is bounded");
    assert!(refused.is_blocked(), "{refused}");
    refused
}

/// Receives up to this number.
fn follow_to(received: &mut Received, subscriber: &mut fabricast::LogSubscriber<u64>, number: u64) {
    if let Err(error) = received.follow(subscriber, number) {
        panic!("{}", ErrorChain(&error));
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn publisher_waits_for_a_slow_subscriber_and_nothing_is_lost_or_doubled() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, _) = publishing(dir.path());
    for delivery in DELIVERIES {
        let mut publisher = gated(&node, Gating::new().timeout(PATIENCE));
        let subscribing = named(dir.path(), "s");
        let mut slow = subscriber(&subscribing, &target(&node), delivery, SlowPolicy::Block);
        let mut fast = subscriber(&subscribing, &target(&node), delivery, SlowPolicy::Block);
        thread::scope(|scope| {
            scope.spawn(|| follow_to(&mut Received::default(), &mut fast, MANY));
            scope.spawn(|| {
                let mut received = Received::default();
                for number in (100..=MANY).step_by(100) {
                    follow_to(&mut received, &mut slow, number);
                    thread::park_timeout(Duration::from_millis(1));
                }
                assert_eq!(received.lost, 0);
            });
            publish(&mut publisher, MANY / 2);
            let batch: Vec<u64> = (MANY / 2 + 1..=MANY).collect();
            publisher.publish_batch(&batch).expect("they read");
        });
        for subscriber in [&slow, &fast] {
            assert_eq!((subscriber.stats().received, subscriber.stats().lapped), (MANY, 0));
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn publisher_that_does_not_wait_hands_the_value_back_and_names_the_slowest() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, _) = publishing(dir.path());
    for delivery in DELIVERIES {
        let mut publisher = gated(&node, Gating::new().timeout(Duration::from_millis(50)));
        let (desk, other) = (named(dir.path(), "desk"), named(dir.path(), "other"));
        let mut slow = subscriber(&desk, &target(&node), delivery, SlowPolicy::Block);
        let mut fast = subscriber(&other, &target(&node), delivery, SlowPolicy::Block);
        let (mut slow_has, mut fast_has) = (Received::default(), Received::default());
        for _ in 0..3 {
            let next = fill(&mut publisher).value;
            assert_eq!(next, publisher.newest().next().get());
            // By then the publisher has read how far this one is.
            follow_to(&mut fast_has, &mut fast, next - 1);
            let names_it = |error: PublishError| match error {
                PublishError::Blocked { slowest } => slowest.node().as_str() == "desk" && slowest.lag() > 0,
                error => panic!("{error}"),
            };
            wait_until("the slowest", || {
                names_it(publisher.try_publish(next).expect_err("it is in the way").error)
            });
            assert!(names_it(publisher.publish(&next).expect_err("it is in the way")));
            assert_eq!(publisher.newest().next().get(), next, "nothing was published");
            follow_to(&mut slow_has, &mut slow, next - 1);
            // A subscriber reports how far it is when it asks for a record that it does not hold.
            for subscriber in [&mut slow, &mut fast] {
                assert!(subscriber.try_receive().expect("it is there").is_none());
            }
            wait_until("its progress", || publisher.try_publish(next).is_ok());
        }
        assert_eq!((slow_has.lost, fast_has.lost), (0, 0));
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn killed_subscriber_is_not_waited_for_and_the_others_go_on() {
    for delivery in DELIVERIES {
        let dir = tempfile::tempdir().expect("a directory");
        let (node, events) = publishing(dir.path());
        let mut publisher = gated(&node, Gating::new().timeout(PATIENCE).lease(LEASE));
        let target = target(&node);
        let mut peers = ["a", "b", "c"]
            .map(|name| Peer::ready("reader", dir.path(), &format!("{target} {name} {delivery} block")));
        publish(&mut publisher, 500);
        let [dying, living @ ..] = &mut peers;
        assert_eq!(dying.ask("halt"), "halted");
        let PublishError::Blocked { .. } = fill(&mut publisher).error else { panic!("it is in the way") };
        dying.kill();
        // More than the ring holds: this waits until the publisher's node has noticed.
        publish(&mut publisher, 1000);
        for peer in living {
            let newest = publisher.newest().get();
            wait_until("every record", || peer.ask_number("last") == newest);
            assert_eq!(peer.ask_number("lost"), 0);
        }
        let is_it = |event: &Event| match event {
            Event::SubscriberLetGo { peer, .. } | Event::SessionClosed { peer, .. } => peer.as_str() == "a",
            _ => false,
        };
        wait_until("the event", || events.has(is_it));
        assert_eq!(node.subscribers(&target).expect("a list").count, 2);
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn stopped_subscriber_is_let_go_after_its_lease_and_both_sides_report_it() {
    for delivery in DELIVERIES {
        let dir = tempfile::tempdir().expect("a directory");
        let (node, events) = publishing(dir.path());
        let mut publisher = gated(&node, Gating::new().timeout(PATIENCE).lease(LEASE));
        let target = target(&node);
        let [mut stopped, mut living] = ["a", "b"]
            .map(|name| Peer::ready("reader", dir.path(), &format!("{target} {name} {delivery} block")));
        publish(&mut publisher, 500);
        stopped.stop();
        // More than the rings of both sides hold.
        publish(&mut publisher, 3000);
        let newest = publisher.newest().get();
        wait_until("every record", || living.ask_number("last") == newest);
        assert_eq!(living.ask_number("lost"), 0);
        wait_until("the event", || {
            events.has(|event| matches!(event, Event::SubscriberLetGo { peer, .. } if peer.as_str() == "a"))
        });
        stopped.signal(Signal::CONT);
        wait_until("the message", || stopped.ask_number("gating") == 0);
        wait_until("its event", || stopped.ask_number("let go") == 1);
        wait_until("the last record", || stopped.ask_number("last") == newest);
        assert!(stopped.ask_number("lost") > 0);
        assert_eq!(living.ask_number("gating"), 1);
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn overtaken_subscriber_reports_its_exact_last_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, events) = publishing(dir.path());
    for delivery in DELIVERIES {
        let mut publisher = gated(&node, Gating::new());
        let subscribing = named(dir.path(), "s");
        let mut slow = subscriber(&subscribing, &target(&node), delivery, SlowPolicy::Disconnect);
        let mut received = Received::default();
        publish(&mut publisher, 10);
        follow_to(&mut received, &mut slow, 10);
        publish(&mut publisher, MANY);
        let error = received.follow(&mut slow, u64::MAX).expect_err("it is disconnected");
        let repeated = slow.try_receive().expect_err("it is over");
        for error in [error, repeated] {
            let ReceiveError::Overtaken { last } = error else { panic!("{}", ErrorChain(&error)) };
            assert_eq!((last.get(), received.lost), (received.last, 0));
        }
        let is_it =
            |event: &Event| matches!(event, Event::SubscriberOvertaken { peer, .. } if peer.as_str() == "s");
        wait_until("the event", || events.has(is_it));
        wait_until("it has left", || publisher.pull_subscribers() + publisher.push_subscribers() == 0);
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn lapped_subscriber_counts_its_loss_exactly_and_is_listed_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, _) = publishing(dir.path());
    for delivery in DELIVERIES {
        // Subscribers that are lapped are not waited for, whatever is permitted.
        let mut publisher = gated(&node, Gating::new().timeout(Duration::ZERO));
        let (lapped, gating) = (named(dir.path(), "lapped"), named(dir.path(), "gating"));
        let mut slow = subscriber(&lapped, &target(&node), delivery, SlowPolicy::Lap);
        let mut received = Received::default();
        for round in 1..=5 {
            publish(&mut publisher, MANY);
            let newest = publisher.newest().get();
            follow_to(&mut received, &mut slow, newest);
            assert_eq!(newest, round * MANY);
            let stats = slow.stats();
            assert_eq!((stats.lapped, stats.received + stats.lapped), (received.lost, newest));
        }
        assert!(received.lost > 0);
        assert!(slow.try_receive().expect("it is there").is_none());
        let _gating = subscriber(&gating, &target(&node), delivery, SlowPolicy::Block);
        publish(&mut publisher, 7);
        // Its node reads the progress of subscribers on other hosts ten times a second.
        wait_until("the list", || {
            let list = gating.subscribers(target(&node)).expect("a list");
            let [first, second] = &list.subscribers[..] else { panic!("{list:?}") };
            let (Some(one), Some(other)) = (first.progress, second.progress) else { panic!("{list:?}") };
            let lags = [(first, one), (second, other)].map(|(it, progress)| {
                (it.node.as_str().to_owned(), it.delivery, progress.policy, progress.lag, progress.lost)
            });
            let expected = [("lapped", SlowPolicy::Lap, received.lost), ("gating", SlowPolicy::Block, 0)];
            expected
                .iter()
                .all(|(name, policy, lost)| lags.contains(&((*name).to_owned(), delivery, *policy, 7, *lost)))
        });
        let (address, _) =
            target(&node).rsplit_once('/').map(|(a, t)| (a.to_owned(), t.to_owned())).expect("two parts");
        let listing = gating.directory(&address).expect("a directory");
        assert_eq!(listing.topics[0].lag_max, Some(7));
        let place = fabricast_command(dir.path(), &["info", &target(&node), "--json"]);
        assert!(place.contains("\"lag\": 7") || place.contains("\"lag\":7"), "{place}");
        let place = fabricast_command(dir.path(), &["list", &address, "--json"]);
        assert!(place.contains("\"slowest_lag\": 7") || place.contains("\"slowest_lag\":7"), "{place}");
    }
}

/// What the command prints.
fn fabricast_command(dir: &Path, arguments: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fabricast"));
    let output = command.args(arguments).env("FABRICAST_RUNTIME_DIR", dir).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A lost WRITE is noticed by nobody, and a READ is impossible: so the publisher cannot know how far a subscriber is.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn unreliable_connection_refuses_to_report_progress() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, _) = publishing(dir.path());
    let mut publisher = gated(&node, Gating::new());
    let builder = Node::builder().runtime_dir(dir.path()).rdma_connect(RdmaConnect::TcpUnreliable);
    let unreliable = builder.open().expect("a node");
    for policy in [SlowPolicy::Block, SlowPolicy::Disconnect, SlowPolicy::Lap] {
        let builder = unreliable.log_subscriber::<u64>(target(&node).as_str()).push().timeout(PATIENCE);
        let error = builder.slow(policy).progress().open().expect_err("its progress cannot be read");
        let SubscriberError::Refused { reason: RefuseReason::NotPermitted, text, .. } = &error else {
            panic!("{}", ErrorChain(&error))
        };
        assert!(text.contains("progress") && text.contains("unreliable"), "{text}");
    }
    // Without a policy it is lapped like any other.
    let builder = unreliable.log_subscriber::<u64>(target(&node).as_str()).push().timeout(PATIENCE);
    let mut lapped = builder.open().expect("a subscription");
    publish(&mut publisher, 100);
    wait_until("a record", || lapped.try_receive().expect("it is there").is_some());
}

/// Subscribers come and go while the publisher reads their slots all the time: no session ends by that.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn detached_subscriber_leaves_its_session_in_order_while_its_slot_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, events) = publishing(dir.path());
    let mut publisher = gated(&node, Gating::new());
    let subscribing = named(dir.path(), "s");
    // The session stays, and is the one of all that come and go.
    let mut staying = subscriber(&subscribing, &target(&node), Delivery::Pull, SlowPolicy::Lap);
    for round in 0..60_usize {
        let delivery = DELIVERIES[round % 2];
        let mut slow = subscriber(&subscribing, &target(&node), delivery, SlowPolicy::Block);
        fill(&mut publisher);
        // Each attempt reads the slot.
        let next = publisher.newest().next().get();
        for _ in 0..5 {
            assert!(publisher.try_publish(next).is_err());
        }
        if round % 3 == 0 {
            assert!(slow.receive_timeout(PATIENCE).expect("it is there").is_some());
        }
        thread::scope(|scope| {
            scope.spawn(move || drop(slow));
            wait_until("it has left", || publisher.try_publish(next).is_ok());
        });
    }
    wait_until("they have left", || node.subscribers(target(&node)).expect("a list").count == 1);
    let newest = publisher.newest().get();
    let mut received = Received::default();
    follow_to(&mut received, &mut staying, newest);
    let ends =
        events.all().into_iter().filter(|it| matches!(it, Event::SessionClosed { orderly: false, .. }));
    assert_eq!(ends.count(), 0);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn feed_waits_for_a_slow_subscriber_of_its_records() {
    const COUNT: u64 = 1000;
    let dir = tempfile::tempdir().expect("a directory");
    let (node, _) = publishing(dir.path());
    for delivery in DELIVERIES {
        let builder = node.feed_publisher::<u64, u64, u64>("t").capacity(8).record_len_max(64);
        let builder = builder.log_capacity(CAPACITY).gating(Gating::new().timeout(PATIENCE));
        let mut publisher: FeedPublisher<u64, u64, u64> = builder.open().expect("two topics");
        let subscribing = named(dir.path(), "s");
        let builder = subscribing.feed_subscriber::<u64, u64, u64>(target(&node).as_str()).timeout(PATIENCE);
        let mut subscriber = builder.delivery(delivery).slow(SlowPolicy::Block).open().expect("a feed");
        assert!(subscriber.try_update().expect("it is there").is_none(), "it joins the empty feed");
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=COUNT {
                    publisher.publish(&(number % 7), &number, &number).expect("it is read");
                }
            });
            for number in 1..=COUNT {
                match subscriber.update_timeout(PATIENCE) {
                    Ok(Some(FeedUpdate::Record(record))) => assert_eq!(record.record, number),
                    other => panic!("{other:?} instead of {number}"),
                }
            }
        });
    }
}
