//! Iterators of subscribers: what ends them, and what does not.

use super::*;
use crate::id::{Epoch, SlowPolicy};
use crate::publisher::Gating;
use crate::subscriber::FeedUpdate;

/// The error is the same from now on: an iterator without an end would yield it for ever.
#[test]
fn samples_end_after_their_subscriber_was_overtaken() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let builder = node.log_publisher::<u64>("t").capacity(4096).gating(Gating::default());
    let mut publisher = builder.open().unwrap();
    let builder = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT);
    let mut subscriber = builder.slow(SlowPolicy::Disconnect).open().unwrap();
    (0..1000).for_each(|number| _ = publisher.publish(&number).unwrap());
    let received: Vec<_> = subscriber.samples().take(1001).collect();
    assert!(received.len() < 1000, "it ends before it is stopped");
    let (last, records) = received.split_last().unwrap();
    assert!(records.iter().all(Result::is_ok));
    assert!(matches!(last, Err(ReceiveError::Overtaken { .. })), "{last:?}");
    assert!(matches!(subscriber.samples().next(), Some(Err(ReceiveError::Overtaken { .. }))));
}

#[test]
fn updates_and_events_end_with_their_feed() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.feed_publisher::<u64, u64, u64>("f").open().unwrap();
    let open = || node.feed_subscriber::<u64, u64, u64>("shm:p/f").timeout(TIMEOUT).open().unwrap();
    let (mut by_update, mut by_event) = (open(), open());
    // They join before the first record.
    assert!(by_update.try_update().unwrap().is_none() && by_event.try_event().unwrap().is_none());
    (1..=3).for_each(|number| _ = publisher.publish(&7, &number, &number).unwrap());
    drop(publisher);
    let record_of = |update: &FeedUpdate<u64, u64, u64>| match update {
        FeedUpdate::Record(record) => record.record,
        FeedUpdate::Value(value) => panic!("{value:?}"),
    };
    let updates: Vec<u64> = by_update.updates().map(|update| record_of(&update.unwrap())).collect();
    assert_eq!(updates, [1, 2, 3]);
    let events: Vec<u64> = by_event.events().map(|event| record_of(&event.unwrap().updates[0])).collect();
    assert_eq!(events, [1, 2, 3]);
}

#[test]
fn iterators_of_persistent_subscribers_and_lines_go_on_with_the_next_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let open = |first: u64| {
        let (epoch, after) = (Epoch::new(5).unwrap(), Sequence::new(first - 1));
        publishing.log_publisher::<u64>("t").epoch(epoch).after(after).open().unwrap()
    };
    let mut publisher = open(1);
    let builder = || subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT);
    let mut persistent = builder().persistent().open().unwrap();
    let mut lines = builder().lines(["shm:q/t"]).open().unwrap();
    for value in 1..=2 {
        publisher.publish(&value).unwrap();
        assert_eq!(persistent.samples().next().unwrap().unwrap().value, value);
        assert_eq!(lines.samples().next().unwrap().unwrap().value, value);
        drop(publisher);
        publisher = open(value + 1);
    }
}

#[test]
fn iterators_of_persistent_feeds_and_their_lines_yield_events() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.feed_publisher::<u64, u64, u64>("f").open().unwrap();
    let builder = || node.feed_subscriber::<u64, u64, u64>("shm:p/f").timeout(TIMEOUT);
    let mut persistent = builder().persistent().open().unwrap();
    let mut lines = builder().lines(["shm:q/f"]).open().unwrap();
    assert!(persistent.try_event().unwrap().is_none() && lines.try_event().unwrap().is_none());
    for value in 1..=3 {
        publisher.publish(&1, &value, &value).unwrap();
        assert_eq!(persistent.events().next().unwrap().unwrap().sequence.get(), value);
        let update = lines.updates().next().unwrap().unwrap();
        assert!(matches!(update, FeedUpdate::Record(record) if record.record == value));
    }
}
