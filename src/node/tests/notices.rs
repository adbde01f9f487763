//! Subscribers on the publisher's host that are told: the publisher wakes them.

use std::sync::mpsc::{Sender, channel};

use super::*;
use crate::limits;
use crate::publisher::{LogPublisher, StatePublisher};
use crate::subscriber::{LogSubscriber, NoticePath};
use crate::testkit::attempts::{below, one_of_three};

/// Who sleeps for so long was not woken by its own timer.
const SLEEP: Duration = Duration::from_secs(10);
/// Rounds of which one looks at the median.
const ROUNDS: u64 = 41;
/// Rounds after which what has not come does not come any more.
const ROUNDS_MAX: u64 = 100 * ROUNDS;
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
        one_of_three(|| {
            let mut publisher = node.state_publisher::<u64>("state").open().unwrap();
            let builder = node.state_subscriber::<u64>("shm:p/state").delivery(delivery);
            let subscriber = builder.notices().open().unwrap();
            assert_eq!(subscriber.notice_path(), NoticePath::Bell);
            let median_ns = median_wake_ns(subscriber, || assert!(publisher.publish(&1).is_ok()));
            println!("state by {delivery:?}: woken {median_ns} ns after the publish at the median");
            below("the median", median_ns, WAKE_NS_MAX)
        });
    }
    one_of_three(|| {
        let mut publisher = node.log_publisher::<u64>("log").open().unwrap();
        let subscriber = node.log_subscriber::<u64>("shm:p/log").notices().open().unwrap();
        assert_eq!(subscriber.notice_path(), NoticePath::Bell);
        assert_eq!(subscriber.notice_counts().datagrams, 0);
        let median_ns = median_wake_ns(subscriber, || assert!(publisher.publish(&1).is_ok()));
        println!("log by pull: woken {median_ns} ns after the publish at the median");
        below("the median", median_ns, WAKE_NS_MAX)
    });
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
    one_of_three(|| below("the median", median_wait_ns(&node), WAKE_NS_MAX));
}

/// How long a slow subscriber sleeps, at the median, until the node has written what follows, nanoseconds.
fn median_wait_ns(node: &Node) -> u64 {
    let mut publisher = node.log_publisher::<u64>("log").capacity(4096).open().unwrap();
    let builder = node.log_subscriber::<u64>("shm:p/log").push().notices();
    let mut subscriber = builder.open().unwrap();
    // Each record takes 32 bytes: the subscriber's ring holds less than this, both rings more.
    let batch: Vec<u64> = (0..publisher.capacity() as u64 / 32 * 3 / 2).collect();
    let (mut waits, mut rounds) = (Vec::new(), 0);
    // Whoever is slow to look finds that the node has written it all.
    while rounds < ROUNDS || (waits.len() as u64) < ROUNDS / 2 && rounds < ROUNDS_MAX {
        rounds += 1;
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
    assert_eq!(subscriber.stats().received, (batch.len() as u64) * rounds);
    waits.sort_unstable();
    assert!(waits.len() as u64 >= ROUNDS / 2, "{} waits: the node had nothing to do", waits.len());
    let median_ns = waits[waits.len() / 2];
    println!("log by push: {} waits for the node, {median_ns} ns at the median", waits.len());
    median_ns
}

/// Sleepers of one topic, which tell what they have received, and when, nanoseconds, until it ends.
fn asleep(node: &Node, count: usize, tell: &Sender<(String, u64)>) -> Vec<std::thread::JoinHandle<()>> {
    let subscribers = (0..count).map(|_| node.state_subscriber::<u64>("shm:p/t").notices().open().unwrap());
    subscribers
        .map(|mut subscriber| {
            let tell = tell.clone();
            std::thread::spawn(move || {
                loop {
                    let received = subscriber.sleep();
                    let is_over = received.is_err();
                    let what = match received {
                        Ok(Some(sequence)) => format!("value {sequence}"),
                        Ok(None) => "nothing".to_owned(),
                        Err(error) => error.to_string(),
                    };
                    tell.send((what, now_ns())).unwrap();
                    if is_over {
                        return;
                    }
                }
            })
        })
        .collect()
}

/// How long a sleeper takes to fall asleep again: far less than it sleeps.
const DOZE: Duration = Duration::from_millis(5);

/// What the median must stay below of the times after which all sleepers are awake. By their timers they would all sleep on for
/// [`limits::BELL_SLEEP_NS`] less [`DOZE`].
const ALL_WAKE_NS_MAX: u64 = limits::BELL_SLEEP_NS / 2;

/// After how long the last of twenty sleepers had a value, and after how long the last one knew of the end, nanoseconds.
fn wake_all(publishing: &Node, subscribing: &Node) -> [u64; 2] {
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let (tell, told) = channel();
    let sleepers = asleep(subscribing, 20, &tell);
    let latest_ns = |since_ns: u64, expected: &str| {
        let latest_ns = (0..20).map(|_| {
            let (what, at_ns) = told.recv_timeout(SLEEP).unwrap();
            assert!(what.contains(expected), "{what} instead of {expected}");
            at_ns
        });
        latest_ns.max().unwrap().saturating_sub(since_ns)
    };
    // The first one has them all begin to sleep at the same time.
    publisher.publish(&1).unwrap();
    latest_ns(0, "value 1");
    SystemClock.pause(DOZE);
    let published_ns = now_ns();
    publisher.publish(&2).unwrap();
    let all_ns = latest_ns(published_ns, "value 2");
    SystemClock.pause(DOZE);
    let ended_ns = now_ns();
    drop(publisher);
    let end_ns = latest_ns(ended_ns, "ended");
    sleepers.into_iter().for_each(|thread| thread.join().unwrap());
    [all_ns, end_ns]
}

#[test]
fn one_publish_wakes_all_who_sleep_and_they_look_for_the_end_after_their_sleep() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    one_of_three(|| {
        let rounds: Vec<_> = (0..9).map(|_| wake_all(&publishing, &subscribing)).collect();
        let [all_ns, end_ns] = [0, 1].map(|which| {
            let mut times: Vec<_> = rounds.iter().map(|round| round[which]).collect();
            times.sort_unstable();
            times[times.len() / 2]
        });
        println!(
            "20 sleepers, at the median: all have the value after {all_ns} ns, know of the end after {end_ns} ns"
        );
        // Nobody rings for the end.
        below("all", all_ns, ALL_WAKE_NS_MAX)?;
        below("the end", end_ns, 2 * limits::BELL_SLEEP_NS)
    });
}
