//! Subscribers on the publisher's host that are told: the publisher wakes them.

use std::sync::mpsc::channel;

use super::*;
use crate::limits;
use crate::publisher::{LogPublisher, StatePublisher};
use crate::subscriber::{LogSubscriber, NoticePath};

/// Who sleeps for so long was not woken by its own timer.
const SLEEP: Duration = Duration::from_secs(10);
/// Rounds of which one looks at the median.
const ROUNDS: u64 = 41;
/// What the median wake-up must stay below, on a machine that does something else as well: far below [`limits::BELL_SLEEP_NS`].
const WAKE_NS_MAX: u64 = limits::BELL_SLEEP_NS / 4;

/// Something that can be received, as its sequence.
trait Sleeper: Send + 'static {
    fn sleep(&mut self) -> Result<Option<u64>, ReceiveError>;
}

impl Sleeper for StateSubscriber<u64> {
    fn sleep(&mut self) -> Result<Option<u64>, ReceiveError> {
        self.receive_timeout(SLEEP).map(|sample| sample.map(|sample| sample.sequence.get()))
    }
}

impl Sleeper for LogSubscriber<u64> {
    fn sleep(&mut self) -> Result<Option<u64>, ReceiveError> {
        self.receive_timeout(SLEEP).map(|record| record.map(|record| record.sequence.get()))
    }
}

fn now_ns() -> u64 {
    SystemClock.monotonic_ns()
}

/// How long after each publish the sleeper had it, at the median of all rounds, nanoseconds.
fn median_wake_ns(mut sleeper: impl Sleeper, mut publish: impl FnMut()) -> u64 {
    let (woken, wakes) = channel();
    let thread = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            let received = sleeper.sleep();
            woken.send(now_ns()).unwrap();
            assert_eq!(received.unwrap(), Some(round));
        }
    });
    let mut delays: Vec<u64> = (1..=ROUNDS)
        .map(|round| {
            // Rounds do not keep step with a timer of the sleeper's.
            SystemClock.pause(Duration::from_micros(3000 + round * 177));
            let published_ns = now_ns();
            publish();
            wakes.recv_timeout(SLEEP).unwrap().saturating_sub(published_ns)
        })
        .collect();
    thread.join().unwrap();
    delays.sort_unstable();
    delays[delays.len() / 2]
}

#[test]
fn sleepers_are_woken_by_a_publish_and_not_by_their_timer() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut publisher = node.state_publisher::<u64>("state").open().unwrap();
        let builder = node.state_subscriber::<u64>("shm:p/state").delivery(delivery);
        let subscriber = builder.notices().open().unwrap();
        assert_eq!(subscriber.notice_path(), NoticePath::Bell);
        let median_ns = median_wake_ns(subscriber, || assert!(publisher.publish(&1).is_ok()));
        println!("state by {delivery:?}: woken {median_ns} ns after the publish at the median");
        assert!(median_ns < WAKE_NS_MAX, "{median_ns} ns");
    }
    let mut publisher = node.log_publisher::<u64>("log").open().unwrap();
    let subscriber = node.log_subscriber::<u64>("shm:p/log").notices().open().unwrap();
    assert_eq!(subscriber.notice_path(), NoticePath::Bell);
    assert_eq!(subscriber.notice_counts().datagrams, 0);
    let median_ns = median_wake_ns(subscriber, || assert!(publisher.publish(&1).is_ok()));
    println!("log by pull: woken {median_ns} ns after the publish at the median");
    assert!(median_ns < WAKE_NS_MAX, "{median_ns} ns");
}

#[test]
fn who_does_not_ask_for_notices_gets_none() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _publishers: (StatePublisher<u64>, LogPublisher<u64>) =
        (node.state_publisher("state").open().unwrap(), node.log_publisher("log").open().unwrap());
    let state = node.state_subscriber::<u64>("shm:p/state").open().unwrap();
    let log = node.log_subscriber::<u64>("shm:p/log").open().unwrap();
    assert_eq!((state.notice_path(), log.notice_path()), (NoticePath::None, NoticePath::None));
}

/// A publisher that stands still has left its node what a slow subscriber had no room for: who sleeps is woken by the node.
#[test]
fn sleepers_are_woken_by_what_the_node_writes_for_a_publisher_that_stands_still() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("log").capacity(4096).open().unwrap();
    let builder = node.log_subscriber::<u64>("shm:p/log").push().notices();
    let mut subscriber = builder.open().unwrap();
    // Each record takes 32 bytes: the subscriber's ring holds less than this, both rings more.
    let batch: Vec<u64> = (0..publisher.capacity() as u64 / 32 * 3 / 2).collect();
    let mut waits = Vec::new();
    for _ in 0..ROUNDS {
        publisher.publish_batch(&batch).unwrap();
        let mut left = batch.len();
        while left > 0 {
            while subscriber.try_receive().unwrap().is_some() {
                left -= 1;
            }
            if left > 0 {
                let began_ns = now_ns();
                assert!(subscriber.receive_timeout(SLEEP).unwrap().is_some());
                waits.push(now_ns() - began_ns);
                left -= 1;
            }
        }
    }
    assert_eq!(subscriber.stats().received, (batch.len() as u64) * ROUNDS);
    waits.sort_unstable();
    assert!(waits.len() as u64 >= ROUNDS / 2, "{} waits: the node had nothing to do", waits.len());
    let median_ns = waits[waits.len() / 2];
    println!("log by push: {} waits for the node, {median_ns} ns at the median", waits.len());
    assert!(median_ns < WAKE_NS_MAX, "{median_ns} ns");
}

/// What a sleeper received, and when, nanoseconds.
type Woken = (Result<u64, String>, u64);

/// Sleepers of one topic, which say in turn what they have received.
fn asleep(node: &Node, count: usize) -> Vec<std::thread::JoinHandle<Vec<Woken>>> {
    let subscribers = (0..count).map(|_| node.state_subscriber::<u64>("shm:p/t").notices().open().unwrap());
    subscribers
        .map(|mut subscriber| {
            std::thread::spawn(move || {
                let mut woken = Vec::new();
                loop {
                    match subscriber.sleep() {
                        Ok(Some(sequence)) => woken.push((Ok(sequence), now_ns())),
                        Ok(None) => woken.push((Err("nothing".into()), now_ns())),
                        Err(error) => {
                            woken.push((Err(error.to_string()), now_ns()));
                            return woken;
                        }
                    }
                }
            })
        })
        .collect()
}

#[test]
fn one_publish_wakes_all_who_sleep_and_the_end_of_the_topic_too() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let sleepers = asleep(&subscribing, 20);
    SystemClock.pause(Duration::from_millis(100));
    let published_ns = now_ns();
    publisher.publish(&1).unwrap();
    SystemClock.pause(Duration::from_millis(200));
    let ended_ns = now_ns();
    drop(publisher);
    let woken: Vec<_> = sleepers.into_iter().map(|thread| thread.join().unwrap()).collect();
    let latest_ns = |index: usize| woken.iter().map(|woken| woken[index].1).max().unwrap();
    let (all_ns, end_ns) = (latest_ns(0) - published_ns, latest_ns(1) - ended_ns);
    println!("20 sleepers: all have the value after {all_ns} ns, all know of the end after {end_ns} ns");
    for woken in &woken {
        assert_eq!((woken.len(), &woken[0].0), (2, &Ok(1)), "{woken:?}");
        assert!(woken[1].0.as_ref().is_err_and(|error| error.contains("ended")), "{woken:?}");
    }
    // Told within 100 ms on an idle machine.
    assert!(all_ns < 1_000_000_000 && end_ns < 1_000_000_000, "{all_ns} ns, {end_ns} ns");
}
