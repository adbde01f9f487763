//! Lines whose publishers come back, or are gone, while the lines go over to another epoch.

use std::collections::BTreeSet;

use super::*;
use crate::id::{Epoch, SlowPolicy};
use crate::publisher::{FeedPublisher, Gating, LogPublisher, TablePublisher};
use crate::subscriber::{FeedUpdate, Lines, LogSubscriber, TableSubscriber};

const LITTLE: Duration = Duration::from_millis(20);

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

fn log(node: &Node, number: u64, after: u64) -> LogPublisher<u64> {
    node.log_publisher("t").epoch(epoch(number)).after(Sequence::new(after)).open().unwrap()
}

/// Publishes records up to this one.
fn publish(publisher: &mut LogPublisher<u64>, until: u64) {
    while publisher.newest().get() < until {
        publisher.publish(&(publisher.newest().get() + 1)).unwrap();
    }
}

fn lines(node: &Node, gap_timeout: Duration) -> Lines<LogSubscriber<u64>> {
    let builder = node.log_subscriber("shm:a/t").timeout(TIMEOUT);
    builder.lines(["shm:b/t"]).gap_timeout(gap_timeout).open().unwrap()
}

/// The next record, while a line may be out of step.
fn next(lines: &mut Lines<LogSubscriber<u64>>) -> u64 {
    loop {
        match lines.receive_timeout(TIMEOUT) {
            Err(ReceiveError::OutOfStep { .. }) => {}
            received => return received.unwrap().expect("a record in time").value,
        }
    }
}

/// Waits for this epoch, before anything else is received.
fn expect_epoch(lines: &mut Lines<LogSubscriber<u64>>, number: u64) {
    loop {
        match lines.receive_timeout(TIMEOUT) {
            Err(ReceiveError::OutOfStep { .. }) => {}
            Err(ReceiveError::Restarted { epoch: found, .. }) => return assert_eq!(found, epoch(number)),
            other => panic!("{other:?}"),
        }
    }
}

fn has_subscriber(publisher: &LogPublisher<u64>) -> bool {
    publisher.pull_subscribers() + publisher.push_subscribers() > 0
}

/// The program has discarded what the line had brought, and the other line lacks some of it.
#[test]
fn line_that_returns_to_an_epoch_that_another_has_begun_again_brings_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    // Each has one place for a subscriber that is not lapped.
    let log = |node: &Node, number, after| -> LogPublisher<u64> {
        let builder = node.log_publisher("t").epoch(epoch(number)).after(Sequence::new(after));
        builder.gating(Gating::new().subscribers_max(1)).open().unwrap()
    };
    let (mut one, other) = (log(&nodes[0], 1, 0), log(&nodes[1], 1, 0));
    let subscribing = anonymous(&dir);
    let builder = subscribing.log_subscriber("shm:a/t").timeout(TIMEOUT).slow(SlowPolicy::Block);
    let mut lines: Lines<LogSubscriber<u64>> =
        builder.lines(["shm:b/t"]).gap_timeout(TIMEOUT).open().unwrap();
    publish(&mut one, 3);
    (1..=3).for_each(|number| assert_eq!(next(&mut lines), number));
    drop(other);
    let mut other = log(&nodes[1], 2, 0);
    publish(&mut other, 1);
    drop(one);
    expect_epoch(&mut lines, 2);
    assert_eq!(next(&mut lines), 1);
    drop(other);
    let mut other = log(&nodes[1], 1, 2);
    publish(&mut other, 3);
    expect_epoch(&mut lines, 1);
    // The first two are still awaited of the line that is away.
    assert!(lines.receive_timeout(10 * LITTLE).unwrap().is_none());
    let mut one = log(&nodes[0], 1, 0);
    publish(&mut one, 3);
    (1..=3).for_each(|number| assert_eq!(next(&mut lines), number));
    assert_eq!(lines.missing(), 0);
}

#[test]
fn table_of_a_line_that_returns_to_an_epoch_that_another_has_begun_again_is_received() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let table = |node: &Node, number, keys: std::ops::RangeInclusive<u64>| -> TablePublisher<u64, u64> {
        let mut publisher = node.table_publisher("t").capacity(8).epoch(epoch(number)).open().unwrap();
        keys.for_each(|key| _ = publisher.put(&key, &key).unwrap());
        publisher
    };
    let (one, other) = (table(&nodes[0], 1, 1..=2), table(&nodes[1], 1, 1..=2));
    let builder = anonymous(&dir);
    let builder = builder.table_subscriber("shm:a/t").timeout(TIMEOUT);
    let mut lines: Lines<TableSubscriber<u64, u64>> =
        builder.lines(["shm:b/t"]).gap_timeout(LITTLE).open().unwrap();
    // Receives these keys; returns in how many epochs.
    let mut receive = |expected: &[u64]| {
        let (mut keys, mut epochs) = (BTreeSet::new(), 0);
        wait_until("the keys", || {
            match lines.try_change() {
                Ok(None) | Err(ReceiveError::OutOfStep { .. }) => {}
                Ok(Some(change)) => assert!(keys.insert(change.key), "twice"),
                Err(ReceiveError::Restarted { .. }) => {
                    keys.clear();
                    epochs += 1;
                }
                Err(error) => panic!("{error}"),
            }
            keys.iter().eq(expected)
        });
        epochs
    };
    assert_eq!(receive(&[1, 2]), 0);
    drop(other);
    let other = table(&nodes[1], 2, 7..=7);
    drop(one);
    assert_eq!(receive(&[7]), 1);
    drop(other);
    let _other = table(&nodes[1], 1, 1..=1);
    assert_eq!(receive(&[1]), 1);
    let mut one = table(&nodes[0], 1, 1..=2);
    assert_eq!(receive(&[2]), 0);
    one.put(&2, &3).unwrap();
    assert_eq!(receive(&[2]), 0);
}

/// The program did not ask for anything meanwhile.
#[test]
fn publisher_of_the_next_epoch_that_has_ended_is_received() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let (mut one, other) = (log(&nodes[0], 1, 0), log(&nodes[1], 1, 0));
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().runtime_dir(dir.path()).events(Arc::<Recorder>::clone(&events));
    let mut lines = lines(&builder.open().unwrap(), LITTLE);
    publish(&mut one, 1);
    assert_eq!(next(&mut lines), 1);
    drop((one, other));
    wait_until("the end of both", || {
        assert!(lines.try_receive().unwrap().is_none());
        lines.report().iter().all(|line| !line.is_attached)
    });
    let mut one = log(&nodes[0], 2, 0);
    publish(&mut one, 3);
    events.wait_for("the next epoch", |event| matches!(event, Event::Restarted { .. }));
    drop(one);
    expect_epoch(&mut lines, 2);
    (1..=3).for_each(|number| assert_eq!(next(&mut lines), number));
}

/// Another line was open when the lines began, in an epoch that has not come so far.
#[test]
fn line_opened_at_a_sequence_brings_all_of_the_next_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let (mut one, mut other) = (log(&nodes[0], 1, 0), log(&nodes[1], 2, 0));
    publish(&mut one, 1000);
    publish(&mut other, 3);
    let subscribing = anonymous(&dir);
    let builder = subscribing.log_subscriber("shm:a/t").timeout(TIMEOUT).at(Sequence::new(1000));
    let mut lines: Lines<LogSubscriber<u64>> = builder.lines(["shm:b/t"]).gap_timeout(LITTLE).open().unwrap();
    assert_eq!(next(&mut lines), 1000);
    drop(one);
    expect_epoch(&mut lines, 2);
    publish(&mut other, 5);
    (1..=5).for_each(|number| assert_eq!(next(&mut lines), number));
}

/// The second line was found first. The rings hold the last records only.
#[test]
fn lines_that_are_found_later_begin_where_the_program_says() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let builder = subscribing.log_subscriber("shm:a/t").timeout(TIMEOUT).at(Sequence::new(900));
    let mut lines: Lines<LogSubscriber<u64>> = builder.lines(["shm:b/t"]).gap_timeout(LITTLE).open().unwrap();
    let publishers = [1, 0].map(|index: usize| {
        let builder = nodes[index].log_publisher("t").payload_len_max(64).capacity(1 << 12);
        let mut publisher: LogPublisher<u64> = builder.epoch(epoch(1)).open().unwrap();
        publish(&mut publisher, 1000);
        wait_until("its subscriber", || has_subscriber(&publisher));
        publisher
    });
    (900..=1000).for_each(|number| assert_eq!(next(&mut lines), number));
    assert_eq!((lines.missing(), publishers.len()), (0, 2));
}

/// Another line of its epoch is gone, and had been opened before it.
#[test]
fn values_of_the_next_epoch_do_not_wait_for_records_that_they_stand_for() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b"), node(&dir, "c")];
    let feed = |node: &Node, number, keys: u64| -> FeedPublisher<u64, u64, u64> {
        let builder = node.feed_publisher("f").capacity(16).log_capacity(1 << 14).record_len_max(64);
        let mut publisher = builder.epoch(epoch(number)).open().unwrap();
        (0..keys).for_each(|key| _ = publisher.publish(&key, &key, &key).unwrap());
        publisher
    };
    let (one, _other, third) = (feed(&nodes[0], 1, 1), feed(&nodes[1], 2, 3), feed(&nodes[2], 2, 1));
    let subscribing = anonymous(&dir);
    let builder = subscribing.feed_subscriber::<u64, u64, u64>("shm:a/f").timeout(TIMEOUT);
    let mut lines = builder.lines(["shm:b/f", "shm:c/f"]).open().unwrap();
    let (mut keys, mut epochs) = (BTreeSet::new(), 0);
    let mut receive = |count| {
        wait_until("the keys", || {
            match lines.try_update() {
                Ok(None) | Err(ReceiveError::OutOfStep { .. } | ReceiveError::Contended { .. }) => {}
                Ok(Some(FeedUpdate::Value(value))) => _ = keys.insert((epochs, value.key)),
                Ok(Some(FeedUpdate::Record(record))) => _ = keys.insert((epochs, record.key)),
                Err(ReceiveError::Restarted { .. }) => epochs += 1,
                Err(error) => panic!("{error}"),
            }
            keys.len() == count
        });
    };
    receive(1);
    drop(third);
    drop(one);
    receive(4);
    assert_eq!((epochs, lines.missing()), (1, 0));
}

/// A line that never had them has come and gone since.
#[test]
fn records_that_nobody_asked_for_are_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let (mut one, mut other) = (log(&nodes[0], 1, 0), log(&nodes[1], 2, 0));
    publish(&mut other, 5);
    let mut lines = lines(&anonymous(&dir), LITTLE);
    publish(&mut one, 1);
    assert_eq!(next(&mut lines), 1);
    drop(one);
    expect_epoch(&mut lines, 2);
    let one = log(&nodes[0], 2, 2);
    wait_until("the first line", || {
        assert!(lines.try_receive().unwrap().is_none());
        lines.report()[0].is_attached
    });
    drop(one);
    wait_until("the end of the first line", || {
        assert!(lines.try_receive().unwrap().is_none());
        !lines.report()[0].is_attached
    });
    publish(&mut other, 6);
    assert_eq!(next(&mut lines), 6);
    assert_eq!(lines.missing(), 0);
}

/// The other line is sought.
#[test]
fn records_that_nobody_asked_for_are_not_awaited_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let (mut one, mut other) = (log(&nodes[0], 1, 0), log(&nodes[1], 2, 0));
    publish(&mut other, 3);
    let mut lines = lines(&anonymous(&dir), Duration::MAX);
    publish(&mut one, 1);
    assert_eq!(next(&mut lines), 1);
    drop(one);
    publish(&mut other, 4);
    expect_epoch(&mut lines, 2);
    assert_eq!(next(&mut lines), 4);
}

/// The line that is sought was not awaited for those, and is for these.
#[test]
fn records_after_those_that_nobody_asked_for_are_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let (mut one, mut other) = (log(&nodes[0], 1, 0), log(&nodes[1], 2, 0));
    publish(&mut other, 3);
    let mut lines = lines(&anonymous(&dir), TIMEOUT);
    publish(&mut one, 1);
    assert_eq!(next(&mut lines), 1);
    drop(one);
    publish(&mut other, 4);
    expect_epoch(&mut lines, 2);
    assert_eq!(next(&mut lines), 4);
    drop(other);
    let mut other = log(&nodes[1], 2, 5);
    publish(&mut other, 6);
    wait_until("the publisher that continues", || {
        assert!(lines.try_receive().unwrap().is_none());
        lines.report()[1].is_attached && lines.report()[1].last.get() >= 5
    });
    assert!(lines.receive_timeout(10 * LITTLE).unwrap().is_none());
    let mut one = log(&nodes[0], 2, 0);
    publish(&mut one, 6);
    (5..=6).for_each(|number| assert_eq!(next(&mut lines), number));
    assert_eq!(lines.missing(), 0);
}
