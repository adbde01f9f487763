//! Subscribers in a [`WaitSet`] that find nothing new although a line has values: the set sleeps meanwhile.

use super::*;
use crate::fabric::FabricError;
use crate::id::Epoch;
use crate::repository::table::TableTopic;
use crate::subscriber::{FeedLines, LogSubscriber, Subscriber, WaitSet, Waitable};

/// Polls a subscriber as a program does, and returns whether its set has it rest at last.
fn comes_to_rest<S: Waitable>(
    subscriber: &mut S,
    mut poll: impl FnMut(&mut S) -> Result<bool, ReceiveError>,
) -> Result<bool, FabricError> {
    let mut set = WaitSet::new()?;
    set.add(subscriber, 0);
    for _ in 0..100 {
        while poll(subscriber).unwrap() {}
        if set.wait(Duration::ZERO)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

#[test]
fn table_that_is_received_as_bytes_rests() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut table = node.table_publisher::<u64, u64>("t").open().unwrap();
    table.put(&1, &2).unwrap();
    let any = node.any_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let AnySubscriber::Table(mut bytes) = any else { panic!("a table") };
    let poll = |bytes: &mut Subscriber<TableTopic, Raw>| Ok(bytes.try_change()?.is_some());
    assert!(comes_to_rest(bytes.as_mut(), poll).unwrap());
}

#[test]
fn line_of_another_epoch_and_one_that_is_ahead_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (node(&dir, "a"), node(&dir, "b"));
    let subscribing = anonymous(&dir);
    for (epoch_b, published_b) in [(2, 0), (1, 3)] {
        let mut first = a.log_publisher::<u64>("t").epoch(epoch(1)).open().unwrap();
        let mut second = b.log_publisher::<u64>("t").epoch(epoch(epoch_b)).open().unwrap();
        let builder = subscribing.log_subscriber::<u64>("shm:a/t").timeout(TIMEOUT).lines(["shm:b/t"]);
        let mut lines = builder.gap_timeout(Duration::MAX).open().unwrap();
        first.publish(&1).unwrap();
        for value in 0..published_b {
            second.publish(&value).unwrap();
        }
        let poll = |lines: &mut crate::subscriber::Lines<LogSubscriber<u64>>| match lines.try_receive() {
            Err(ReceiveError::OutOfStep { .. }) => Ok(true),
            received => Ok(received?.is_some()),
        };
        assert!(comes_to_rest(&mut lines, poll).unwrap(), "epoch {epoch_b}");
    }
}

#[test]
fn lines_of_a_feed_rest_before_a_publisher_is_found_and_after() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let builder = subscribing.feed_subscriber::<u64, u64, u64>("shm:a/t").timeout(TIMEOUT);
    let mut lines = builder.lines(["shm:b/t"]).open().unwrap();
    let poll = |lines: &mut FeedLines<u64, u64, u64>| Ok(lines.try_update()?.is_some());
    assert!(comes_to_rest(&mut lines, poll).unwrap());
    let a = node(&dir, "a");
    let mut feed = a.feed_publisher::<u64, u64, u64>("t").open().unwrap();
    feed.publish(&1, &1, &1).unwrap();
    wait_until("the publisher to be found", || lines.try_update().unwrap().is_some());
    assert!(comes_to_rest(&mut lines, poll).unwrap());
}

#[test]
fn feed_that_awaits_its_table_is_polled_again() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut feed = node.feed_publisher::<u64, u64, u64>("t").open().unwrap();
    feed.publish(&1, &1, &1).unwrap();
    let mut subscriber = node.feed_subscriber::<u64, u64, u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let mut set = WaitSet::new().unwrap();
    set.add(&mut subscriber, 0);
    while subscriber.try_update().unwrap().is_some() {}
    subscriber.only(|key| *key > 1);
    feed.publish(&2, &2, &2).unwrap();
    let mut received = Vec::new();
    while received.is_empty() {
        assert_eq!(set.wait(TIMEOUT).unwrap(), [0]);
        while let Some(update) = subscriber.try_update().unwrap() {
            received.push(update);
        }
    }
    assert_eq!(received.len(), 1);
}
