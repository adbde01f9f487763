//! Subscribers with notices on the publisher's host: the publisher wakes them.
//!
//! They sleep without a time limit, so that no timer hides a missing wake-up.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::*;
use crate::notice::WakeWord;
use crate::publisher::{LogPublisher, StatePublisher};
use crate::subscriber::{LogSubscriber, NoticePath, SubscriberHandle, TableSubscriber};

/// Longer than any test takes.
const SLEEP: Duration = Duration::from_secs(3600);
/// Values, each of which wakes a subscriber.
const ROUNDS: u64 = 41;

/// A subscriber that receives sequences.
trait Sleeper: SubscriberHandle + Send + 'static {
    fn sleep(&mut self) -> Result<Option<u64>, ReceiveError>;
}

impl Sleeper for StateSubscriber<u64> {
    fn sleep(&mut self) -> Result<Option<u64>, ReceiveError> {
        self.receive_timeout(SLEEP).map(|sample| sample.map(|sample| sample.meta.sequence.get()))
    }
}

impl Sleeper for LogSubscriber<u64> {
    fn sleep(&mut self) -> Result<Option<u64>, ReceiveError> {
        self.receive_timeout(SLEEP).map(|record| record.map(|record| record.meta.sequence.get()))
    }
}

impl Sleeper for TableSubscriber<u64, u64> {
    fn sleep(&mut self) -> Result<Option<u64>, ReceiveError> {
        self.receive_timeout(SLEEP).map(|change| change.map(|change| change.meta.sequence.get()))
    }
}

/// A subscriber on a thread of its own that sleeps until woken.
struct Asleep {
    wake_word: WakeWord,
    woken: Receiver<Result<Option<u64>, ReceiveError>>,
    thread: JoinHandle<()>,
}

impl Asleep {
    /// Receives this often.
    fn begin(mut sleeper: impl Sleeper, rounds: u64) -> Self {
        let wake_word = sleeper.subscription().sleep_until_woken();
        let (tell, woken) = channel();
        let thread =
            std::thread::spawn(move || (0..rounds).for_each(|_| tell.send(sleeper.sleep()).unwrap()));
        Self { wake_word, woken, thread }
    }

    /// The next sequence received.
    #[track_caller]
    fn received(&self) -> Option<u64> {
        self.woken.recv_timeout(TIMEOUT).expect("it is woken").unwrap()
    }

    fn end(self) {
        self.thread.join().unwrap();
    }
}

/// Publishes each value while the subscriber sleeps.
fn is_woken_by_each(sleeper: impl Sleeper, mut publish: impl FnMut()) {
    let asleep = Asleep::begin(sleeper, ROUNDS);
    for round in 1..=ROUNDS {
        wait_until("it to fall asleep", || asleep.wake_word.has_sleepers());
        publish();
        assert_eq!(asleep.received(), Some(round));
    }
    asleep.end();
}

#[test]
fn sleepers_are_woken_by_a_publish_and_not_by_their_timer() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut publisher = node.state_publisher::<u64>("state").open().unwrap();
        let builder = node.state_subscriber::<u64>("shm:p/state").timeout(TIMEOUT).delivery(delivery);
        let subscriber = builder.notices().open().unwrap();
        assert_eq!(subscriber.notice_path(), NoticePath::WakeWord);
        is_woken_by_each(subscriber, || assert!(publisher.publish(&1).is_ok()));
    }
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut publisher = node.log_publisher::<u64>("log").open().unwrap();
        let builder = node.log_subscriber::<u64>("shm:p/log").timeout(TIMEOUT).delivery(delivery);
        let subscriber = builder.notices().open().unwrap();
        assert_eq!(subscriber.notice_path(), NoticePath::WakeWord);
        assert_eq!(subscriber.notice_counts().datagrams, 0);
        is_woken_by_each(subscriber, || assert!(publisher.publish(&1).is_ok()));
    }
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut publisher = node.table_publisher::<u64, u64>("table").capacity(600).open().unwrap();
        let builder = node.table_subscriber::<u64, u64>("shm:p/table").timeout(TIMEOUT).delivery(delivery);
        let subscriber = builder.notices().open().unwrap();
        assert_eq!(subscriber.notice_path(), NoticePath::WakeWord);
        let mut key = 0;
        is_woken_by_each(subscriber, || {
            key = (key + 7) % 10;
            assert!(publisher.put(&key, &1).is_ok());
        });
    }
}

#[test]
fn subscriber_without_notices_gets_none() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _publishers: (StatePublisher<u64>, LogPublisher<u64>) =
        (node.state_publisher("state").open().unwrap(), node.log_publisher("log").open().unwrap());
    let state = node.state_subscriber::<u64>("shm:p/state").timeout(TIMEOUT).open().unwrap();
    let log = node.log_subscriber::<u64>("shm:p/log").timeout(TIMEOUT).open().unwrap();
    assert_eq!((state.notice_path(), log.notice_path()), (NoticePath::None, NoticePath::None));
}

/// The node holds records that a slow subscriber had no capacity for when the publisher paused: the node wakes the subscriber.
#[test]
fn sleepers_are_woken_by_what_the_node_writes_for_an_idle_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("log").capacity(4096).open().unwrap();
    let builder = node.log_subscriber::<u64>("shm:p/log").timeout(TIMEOUT).push().notices();
    let subscriber = builder.open().unwrap();
    // Each record takes 32 bytes: the subscriber's ring holds less than this, both rings more.
    let count = publisher.capacity() as u64 / 32 * 3 / 2;
    let batch: Vec<u64> = (0..count).collect();
    let asleep = Asleep::begin(subscriber, ROUNDS * count);
    for round in 0..ROUNDS {
        wait_until("it to fall asleep", || asleep.wake_word.has_sleepers());
        publisher.publish_batch(&batch).unwrap();
        for number in 1..=count {
            assert_eq!(asleep.received(), Some(round * count + number));
        }
    }
    asleep.end();
}

#[test]
fn one_publish_wakes_all_sleepers() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let sleepers: Vec<_> = (0..20)
        .map(|_| {
            let builder = subscribing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT);
            Asleep::begin(builder.notices().open().unwrap(), ROUNDS)
        })
        .collect();
    for round in 1..=ROUNDS {
        // Most of them sleep by then. The others must not miss it either.
        SystemClock.pause(Duration::from_millis(5));
        publisher.publish(&round).unwrap();
        assert!(sleepers.iter().all(|sleeper| sleeper.received() == Some(round)));
    }
    sleepers.into_iter().for_each(Asleep::end);
}

/// The end of a topic wakes no subscriber: it finds the end after its sleep.
#[test]
fn sleeper_finds_the_end_of_its_topic_after_its_sleep() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let (tell, told): (Sender<_>, _) = channel();
    let sleepers: Vec<_> = (0..20)
        .map(|_| {
            let builder = subscribing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT);
            let (mut subscriber, tell) = (builder.notices().open().unwrap(), tell.clone());
            std::thread::spawn(move || tell.send(subscriber.sleep()).unwrap())
        })
        .collect();
    SystemClock.pause(Duration::from_millis(5));
    drop(publisher);
    for _ in &sleepers {
        let end = told.recv_timeout(TIMEOUT).expect("it wakes up");
        assert!(matches!(end, Err(ReceiveError::Ended { published: Sequence::NONE })), "{end:?}");
    }
    sleepers.into_iter().for_each(|thread| thread.join().unwrap());
}
