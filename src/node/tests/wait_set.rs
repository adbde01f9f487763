//! Sets that wait for many subscribers on the publisher's host.
//!
//! They look at nothing by themselves, so that no timer hides a missing wake-up.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use super::*;
use crate::fabric::wait;
use crate::layout::header::HOT_SEQUENCE;
use crate::publisher::{LogPublisher, StatePublisher, TablePublisher};
use crate::subscriber::{Lines, LogSubscriber, Persistent, TableSubscriber, WaitSet, Waitable, Waiter};

/// Longer than any test takes.
const WAIT: Duration = Duration::from_secs(3600);

/// What is received, by the key of its subscriber.
type Received = (usize, Result<u64, ReceiveError>);

/// A subscriber of numbers.
trait Member: Waitable + Send {
    fn next(&mut self) -> Result<Option<u64>, ReceiveError>;
}

macro_rules! members {
    ($($kind:ty),*) => {
        $(impl Member for $kind {
            fn next(&mut self) -> Result<Option<u64>, ReceiveError> {
                Ok(self.try_receive()?.map(|sample| sample.meta.sequence.get()))
            }
        })*
    };
}
members!(
    StateSubscriber<u64>,
    LogSubscriber<u64>,
    TableSubscriber<u64, u64>,
    Persistent<LogSubscriber<u64>>,
    Lines<LogSubscriber<u64>>
);

/// A thread that waits for subscribers, and receives what they have.
struct Waiting {
    waiter: Arc<Waiter>,
    received: Receiver<Received>,
    thread: JoinHandle<Vec<Box<dyn Member>>>,
}

impl Waiting {
    /// Waits for these until each has received so many values, or an error.
    fn begin(members: Vec<Box<dyn Member>>, count: u64) -> Self {
        let mut set = WaitSet::new().unwrap();
        let (waiter, (tell, received)) = (Arc::clone(set.waiter()), channel());
        let thread = std::thread::spawn(move || {
            let mut left = BTreeMap::new();
            let mut members = members;
            for (key, member) in members.iter_mut().enumerate() {
                add(&mut set, member.as_mut(), key);
                left.insert(key, count);
            }
            while !left.is_empty() {
                for key in set.wait(WAIT).unwrap().to_vec() {
                    while let Some(next) = members[key].next().transpose() {
                        let is_end = |error: &ReceiveError| {
                            matches!(error, ReceiveError::Ended { .. } | ReceiveError::Gone { .. })
                        };
                        let (is_over, is_value) = (next.as_ref().is_err_and(is_end), next.is_ok());
                        tell.send((key, next)).unwrap();
                        let left_here = left.entry(key).or_insert(1);
                        *left_here -= u64::from(is_value);
                        if is_over || *left_here == 0 {
                            left.remove(&key);
                            remove(&mut set, members[key].as_mut());
                            break;
                        }
                    }
                }
            }
            members
        });
        Self { waiter, received, thread }
    }

    /// Waits until the thread sleeps, and nothing but a wake-up ends that.
    #[track_caller]
    fn await_sleep(&self) {
        wait_until("the set to sleep", || self.waiter.is_asleep());
    }

    #[track_caller]
    fn next(&self) -> Received {
        self.received.recv_timeout(TIMEOUT).expect("it is woken")
    }
}

/// As [`WaitSet::add`], for members of different types.
fn add(set: &mut WaitSet, member: &mut (dyn Member + 'static), key: usize) {
    member.enter(Some((set.waiter(), key)));
}

fn remove(_: &mut WaitSet, member: &mut (dyn Member + 'static)) {
    member.enter(None);
}

/// Publishers of three kinds.
struct Publishers {
    state: StatePublisher<u64>,
    log: LogPublisher<u64>,
    table: TablePublisher<u64, u64>,
}

impl Publishers {
    fn open(node: &Node, number: usize) -> Self {
        Self {
            state: node.state_publisher(&format!("state{number}")).open().unwrap(),
            log: node.log_publisher(&format!("log{number}")).open().unwrap(),
            table: node.table_publisher(&format!("table{number}")).open().unwrap(),
        }
    }

    /// Publishes to one of them.
    fn publish(&mut self, kind: usize, value: u64) {
        match kind {
            0 => self.state.publish(&value).unwrap(),
            1 => self.log.publish(&value).unwrap(),
            _ => self.table.put(&1, &value).unwrap(),
        };
    }

    /// Subscribers of each kind, in that order.
    fn subscribe(node: &Node, number: usize, delivery: Delivery) -> [Box<dyn Member>; 3] {
        let target = |kind: &str| format!("shm:p/{kind}{number}");
        let state = node.state_subscriber::<u64>(&*target("state")).delivery(delivery).timeout(TIMEOUT);
        let log = node.log_subscriber::<u64>(&*target("log")).delivery(delivery).timeout(TIMEOUT);
        let table = node.table_subscriber::<u64, u64>(&*target("table")).delivery(delivery).timeout(TIMEOUT);
        [Box::new(state.open().unwrap()), Box::new(log.open().unwrap()), Box::new(table.open().unwrap())]
    }
}

#[test]
fn each_publish_wakes_the_set_and_names_its_subscriber() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut publishers: Vec<_> = (0..4).map(|number| Publishers::open(&publishing, number)).collect();
        let members =
            (0..4).flat_map(|number| Publishers::subscribe(&subscribing, number, delivery)).collect();
        let waiting = Waiting::begin(members, 5);
        // Each in turn, in an order that mixes kinds and topics.
        for round in 0..5 {
            for step in 0..12 {
                let key = step * 7 % 12;
                waiting.await_sleep();
                publishers[key / 3].publish(key % 3, round);
                assert_eq!(waiting.next().0, key);
            }
        }
        waiting.thread.join().unwrap();
    }
}

#[test]
fn more_waiting_subscribers_than_a_publish_wakes_are_woken_all() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let mut publishers = Publishers::open(&publishing, 0);
    let waiting: Vec<_> = (0..20)
        .map(|number| {
            let delivery = [Delivery::Pull, Delivery::Push][number % 2];
            Waiting::begin(Publishers::subscribe(&anonymous(&dir), 0, delivery).into(), 3)
        })
        .collect();
    for round in 0..3 {
        for kind in 0..3 {
            waiting.iter().for_each(Waiting::await_sleep);
            publishers.publish(kind, round);
            for one in &waiting {
                assert_eq!(one.next().0, kind);
            }
        }
    }
    waiting.into_iter().for_each(|one| drop(one.thread.join().unwrap()));
}

#[test]
fn end_of_a_topic_and_of_its_node_wake_the_set() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = [node(&dir, "p"), node(&dir, "q")];
    let log = publishing[0].log_publisher::<u64>("t").open().unwrap();
    let state = publishing[1].state_publisher::<u64>("t").open().unwrap();
    let subscribing = anonymous(&dir);
    let members: Vec<Box<dyn Member>> = vec![
        Box::new(subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap()),
        Box::new(subscribing.state_subscriber::<u64>("shm:q/t").timeout(TIMEOUT).push().open().unwrap()),
    ];
    let waiting = Waiting::begin(members, 1);
    waiting.await_sleep();
    drop(log);
    let (key, error) = waiting.next();
    assert!(key == 0 && matches!(error, Err(ReceiveError::Ended { .. })), "{key} {error:?}");
    waiting.await_sleep();
    drop((state, publishing));
    let (key, error) = waiting.next();
    assert!(key == 1 && matches!(error, Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. })));
    waiting.thread.join().unwrap();
}

#[test]
fn persistent_subscriber_wakes_the_set_when_its_publisher_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let open = || subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT);
    let lines = subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).lines(["shm:q/t"]);
    let members: Vec<Box<dyn Member>> =
        vec![Box::new(open().persistent().open().unwrap()), Box::new(lines.open().unwrap())];
    let waiting = Waiting::begin(members, 3);
    let mut received = [0; 2];
    for round in 1..=3 {
        let publishing = node(&dir, "p");
        let mut log = publishing.log_publisher::<u64>("t").open().unwrap();
        log.publish(&round).unwrap();
        while received.iter().any(|count| *count < round) {
            let (key, next) = waiting.next();
            received[key] += u64::from(next.is_ok());
        }
    }
    waiting.thread.join().unwrap();
}

#[test]
fn subscriber_that_was_removed_or_dropped_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut log = node.log_publisher::<u64>("t").open().unwrap();
    let mut set = WaitSet::new().unwrap();
    let open = || node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let (mut removed, mut dropped, mut moved) = (open(), open(), open());
    set.add(&mut removed, 0);
    set.add(&mut dropped, 1);
    set.add(&mut moved, 2);
    assert_eq!(set.wait(WAIT).unwrap(), [0, 1, 2], "all are ready at first");
    set.remove(&mut removed);
    drop(dropped);
    let mut other = WaitSet::new().unwrap();
    other.add(&mut moved, 9);
    assert!(set.wait(Duration::ZERO).unwrap().is_empty());
    assert_eq!(other.wait(WAIT).unwrap(), [9]);
    assert!(moved.try_receive().unwrap().is_none());
    log.publish(&1).unwrap();
    assert_eq!(other.wait(WAIT).unwrap(), [9]);
    assert!(set.wait(Duration::ZERO).unwrap().is_empty());
    // Subscribers outlive their set.
    drop((set, other));
    log.publish(&2).unwrap();
    assert_eq!(moved.try_receive().unwrap().map(|record| record.value), Some(1));
    assert_eq!(moved.try_receive().unwrap().map(|record| record.value), Some(2));
    assert!(moved.try_receive().unwrap().is_none());
}

#[test]
fn subscriber_is_ready_until_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut log = node.log_publisher::<u64>("t").open().unwrap();
    let mut subscriber = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let mut set = WaitSet::new().unwrap();
    set.add(&mut subscriber, 5);
    for value in 0..3 {
        log.publish(&value).unwrap();
    }
    for value in 0..3 {
        assert_eq!(set.wait(WAIT).unwrap(), [5]);
        assert_eq!(subscriber.try_receive().unwrap().map(|record| record.value), Some(value));
    }
    assert_eq!(set.wait(WAIT).unwrap(), [5]);
    assert!(subscriber.try_receive().unwrap().is_none());
    assert!(set.wait(Duration::ZERO).unwrap().is_empty());
}

/// A publisher's memory shows a value that it does not have: its subscriber is polled once a millisecond, and not without pause.
#[test]
fn false_claim_does_not_keep_a_set_awake() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut log = node.log_publisher::<u64>("t").open().unwrap();
    log.publish(&1).unwrap();
    let mut subscriber = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let topic = node.core().topic(&"t".parse().unwrap()).unwrap();
    topic.registration.region().store(HOT_SEQUENCE, u64::MAX / 2);
    let mut set = WaitSet::new().unwrap();
    set.add(&mut subscriber, 0);
    let (began_ns, mut ready) = (SystemClock.monotonic_ns(), 0);
    let waited_ns = || SystemClock.monotonic_ns() - began_ns;
    while waited_ns() < 500_000_000 {
        ready += set.wait(Duration::from_millis(100)).unwrap().len() as u64;
        while subscriber.try_receive().unwrap().is_some() {}
    }
    assert!(ready <= waited_ns() / limits::WAITER_POLL_NS + 5, "{ready} times");
}

/// Nothing wakes the set when memory is right again: it looks.
#[test]
fn table_whose_damaged_number_was_followed_does_not_sleep_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut table = node.table_publisher::<u64, u64>("t").open().unwrap();
    let mut subscriber = node.table_subscriber::<u64, u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let topic = node.core().topic(&"t".parse().unwrap()).unwrap();
    let mut set = WaitSet::new().unwrap();
    set.add(&mut subscriber, 0);
    table.put(&1, &1).unwrap();
    let mut received = 0;
    // While the newest sequence is ahead, it is polled.
    let mut receive_all = |set: &mut WaitSet| {
        for _ in 0..20 {
            if set.wait(Duration::from_millis(100)).unwrap().is_empty() {
                break;
            }
            received += u64::from(subscriber.try_receive().unwrap().is_some());
        }
        received
    };
    assert_eq!(receive_all(&mut set), 1);
    for newest in [1 << 40, 1] {
        topic.registration.region().store(HOT_SEQUENCE, newest);
        assert_eq!(set.wait(TIMEOUT).unwrap(), [0]);
        assert_eq!(receive_all(&mut set), 1);
    }
    table.put(&1, &2).unwrap();
    assert_eq!(set.wait(TIMEOUT).unwrap(), [0]);
    assert_eq!(receive_all(&mut set), 2);
}

/// The same number is named when it has a value.
#[test]
fn state_whose_newest_value_was_reported_is_polled() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut state = node.state_publisher::<u64>("t").open().unwrap();
    let mut subscriber = node.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let topic = node.core().topic(&"t".parse().unwrap()).unwrap();
    state.publish(&1).unwrap();
    assert_eq!(subscriber.try_receive().unwrap().map(|sample| sample.value), Some(1));
    topic.registration.region().store(HOT_SEQUENCE, 2);
    // It reads the hot line only from time to time.
    let mut is_reported = || matches!(subscriber.try_receive(), Err(ReceiveError::BrokenStamps { .. }));
    wait_until("a report", || (0..1000).any(|_| is_reported()));
    let mut set = WaitSet::new().unwrap();
    set.add(&mut subscriber, 0);
    // More often than while it waits for how it will be woken.
    for _ in 0..200 {
        assert_eq!(set.wait(TIMEOUT).unwrap(), [0]);
        assert!(subscriber.try_receive().unwrap().is_none());
    }
    state.publish(&2).unwrap();
    assert_eq!(set.wait(TIMEOUT).unwrap(), [0]);
    assert_eq!(subscriber.try_receive().unwrap().map(|sample| sample.value), Some(2));
    assert_eq!(subscriber.last().get(), 2);
}

#[test]
fn descriptor_of_an_armed_set_becomes_readable() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut log = node.log_publisher::<u64>("t").open().unwrap();
    let mut subscriber = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let mut set = WaitSet::new().unwrap();
    set.add(&mut subscriber, 0);
    let waiter = Arc::clone(set.waiter());
    for round in 0..ROUNDS {
        // Until only the publisher wakes it.
        loop {
            while subscriber.try_receive().unwrap().is_some() {}
            if set.arm().unwrap().is_empty() {
                if waiter.is_asleep() {
                    break;
                }
                wait(&[set.as_fd()], &[], TIMEOUT).unwrap();
            }
        }
        log.publish(&round).unwrap();
        wait(&[set.as_fd()], &[], WAIT).unwrap();
        assert_eq!(set.arm().unwrap(), [0]);
        assert_eq!(subscriber.try_receive().unwrap().map(|record| record.value), Some(round));
    }
}

#[test]
fn deadline_of_a_subscriber_ends_the_wait() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _log = node.log_publisher::<u64>("t").open().unwrap();
    let open = || node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).deadline(Duration::from_millis(300));
    let (mut plain, mut persistent) = (open().open().unwrap(), open().persistent().open().unwrap());
    let mut set = WaitSet::new().unwrap();
    set.waiter();
    set.add(&mut plain, 0);
    set.add(&mut persistent, 1);
    let mut overdue = [false; 2];
    while overdue != [true; 2] {
        for key in set.wait(WAIT).unwrap() {
            let received = if *key == 0 { plain.try_receive() } else { persistent.try_receive() };
            match received {
                Ok(received) => assert!(received.is_none()),
                Err(ReceiveError::Overdue { .. }) => overdue[*key] = true,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Values that the descriptor announces.
const ROUNDS: u64 = 50;
