//! Subscribers in processes of their own for which a publisher waits, and which are killed or stopped: the others go on.

use std::sync::Arc;
use std::time::Duration;

use fabricast::{Delivery, Event, Gating, LogPublisher, Node, PublishError};
use rustix::process::Signal;

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::slow::{self, Recorder};
use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

/// A ring of some hundred records, so that a subscriber that does not read is soon in the way.
const CAPACITY: usize = 16 * 1024;
#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    slow::read(&Role::of_this_process());
}

/// A publisher whose timeout outlasts any lease, and whose events are recorded.
fn publisher(dir: &tempfile::TempDir, lease: Duration) -> (Node, Arc<Recorder>, LogPublisher<u64>) {
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().name("p").expect("a name").runtime_dir(dir.path());
    let node = builder.events(Arc::clone(&events) as _).open().expect("a node");
    let gating = Gating::new().timeout(PATIENCE).lease(lease);
    let publisher = node.log_publisher("t").capacity(CAPACITY).gating(gating).open().expect("a topic");
    (node, events, publisher)
}

/// Publishes so many numbers, each its own sequence.
fn publish(publisher: &mut LogPublisher<u64>, count: u64) {
    for _ in 0..count {
        let next = publisher.newest().get() + 1;
        publisher.publish(&next).expect("nobody is in the way for long");
    }
}

/// Waits until this subscriber has received every record.
fn await_all(peer: &mut Peer, publisher: &LogPublisher<u64>) {
    let newest = publisher.newest().get();
    wait_until("every record", || peer.ask_number("last") == newest);
    assert_eq!(peer.ask_number("lost"), 0);
}

const DELIVERIES: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

#[test]
fn killed_subscriber_holds_nobody_up() {
    for delivery in DELIVERIES {
        let dir = tempfile::tempdir().expect("a directory");
        // Its death is noticed, and not the end of its lease.
        let (_node, events, mut publisher) = publisher(&dir, PATIENCE * 10);
        let mut peers = ["a", "b", "c"]
            .map(|name| Peer::ready("reader", dir.path(), &format!("shm:p/t {name} {delivery} block")));
        publish(&mut publisher, 10_000);
        let [dying, living @ ..] = &mut peers;
        assert_eq!(dying.ask("halt"), "halted");
        let blocked = (0..CAPACITY).find_map(|_| {
            let next = publisher.newest().get() + 1;
            publisher.try_publish(next).err()
        });
        assert!(blocked.is_some_and(|error| error.is_blocked()), "it is in the way");
        dying.kill();
        publish(&mut publisher, 10_000);
        living.iter_mut().for_each(|peer| await_all(peer, &publisher));
        assert!(!events.has(|event| matches!(event, Event::SubscriberLetGo { .. })));
    }
}

#[test]
fn stopped_subscriber_is_let_go_after_its_lease_and_both_sides_say_so() {
    for delivery in DELIVERIES {
        let dir = tempfile::tempdir().expect("a directory");
        let (_node, events, mut publisher) = publisher(&dir, Duration::from_secs(1));
        let [mut stopped, mut living] = ["a", "b"]
            .map(|name| Peer::ready("reader", dir.path(), &format!("shm:p/t {name} {delivery} block")));
        publish(&mut publisher, 10_000);
        stopped.stop();
        // More than the ring holds.
        publish(&mut publisher, 10_000);
        await_all(&mut living, &publisher);
        let is_it = |event: &Event| {
            matches!(event, Event::SubscriberLetGo { peer, process, .. }
                if peer.as_str() == "a" && *process == stopped.pid().as_raw_nonzero().get().unsigned_abs())
        };
        wait_until("the event", || events.has(is_it));
        // It continues as one that nobody waits for.
        stopped.signal(Signal::CONT);
        wait_until("the message", || stopped.ask_number("gating") == 0);
        wait_until("its event", || stopped.ask_number("let go") == 1);
        let newest = publisher.newest().get();
        wait_until("the last record", || stopped.ask_number("last") == newest);
        assert!(stopped.ask_number("lost") > 0);
        assert_eq!(living.ask_number("gating"), 1);
    }
}

/// It works on something else: its node runs, and keeps the lease.
#[test]
fn slow_subscriber_keeps_its_lease() {
    let dir = tempfile::tempdir().expect("a directory");
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().name("p").expect("a name").runtime_dir(dir.path());
    let node = builder.events(Arc::clone(&events) as _).open().expect("a node");
    let (lease, timeout) = (Duration::from_secs(1), Duration::from_secs(4));
    let gating = Gating::new().timeout(timeout).lease(lease);
    let mut publisher = node.log_publisher("t").capacity(CAPACITY).gating(gating).open().expect("a topic");
    let mut slow = Peer::ready("reader", dir.path(), "shm:p/t a pull block");
    assert_eq!(slow.ask("halt"), "halted");
    let error = loop {
        let next = publisher.newest().get() + 1;
        if let Err(error) = publisher.publish(&next) {
            break error;
        }
    };
    let PublishError::Blocked { slowest } = error else { panic!("{error}") };
    assert_eq!(slowest.node().as_str(), "a");
    assert!(!events.has(|event| matches!(event, Event::SubscriberLetGo { .. })));
    assert_eq!(slow.ask("read"), "reading");
    publish(&mut publisher, 10_000);
    await_all(&mut slow, &publisher);
}

/// It asks for nothing, so that nobody waits for it, whatever the publisher permits others. `cargo bench --bench stopped_subscriber` has
/// the times.
#[test]
fn stopped_subscriber_that_may_be_lapped_blocks_nobody_and_counts_its_loss_exactly() {
    for delivery in DELIVERIES {
        let dir = tempfile::tempdir().expect("a directory");
        let builder = Node::builder().name("p").expect("a name").runtime_dir(dir.path());
        let node = builder.open().expect("a node");
        // Waiting would fail at once.
        let gating = Gating::new().timeout(Duration::ZERO);
        let builder = node.log_publisher::<u64>("t").capacity(CAPACITY).gating(gating);
        let mut publisher = builder.open().expect("a topic");
        let mut peers: Vec<Peer> = (0..8)
            .map(|number| Peer::ready("reader", dir.path(), &format!("shm:p/t s{number} {delivery} lap")))
            .collect();
        publish(&mut publisher, 1000);
        peers[0].stop();
        publish(&mut publisher, 30_000);
        let newest = publisher.newest().get();
        for peer in &mut peers[1..] {
            wait_until("the last record", || peer.ask_number("last") == newest);
        }
        peers[0].signal(Signal::CONT);
        wait_until("the last record", || peers[0].ask_number("last") == newest);
        // None of those that it has received is missing, and it says which others are.
        let (received, lost) = (peers[0].ask_number("received"), peers[0].ask_number("lost"));
        assert_eq!(received + lost, newest);
        assert!(lost > 0);
        let list = node.subscribers("shm:p/t").expect("a list");
        let progress = list.subscribers.iter().find(|it| it.node.as_str() == "s0").and_then(|it| it.progress);
        let progress = progress.expect("it reports its progress");
        assert_eq!((progress.received, progress.lost, progress.lag), (received, lost, 0));
    }
}
