//! Subscribers that outlive their publishers.

use std::collections::BTreeMap;

use super::*;
use crate::id::{Epoch, SlowPolicy};
use crate::publisher::Gating;
use crate::subscriber::{LogSubscriber, Persistent, TableSubscriber};

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
const LITTLE: Duration = Duration::from_millis(20);

fn epoch() -> Epoch {
    Epoch::new(0x2611).unwrap()
}

fn log(node: &Node, delivery: Delivery) -> Persistent<LogSubscriber<u64>> {
    node.log_subscriber("shm:p/t").timeout(TIMEOUT).delivery(delivery).persistent().open().unwrap()
}

/// The next value, with its sequence.
fn next(subscriber: &mut Persistent<LogSubscriber<u64>>) -> (u64, u64) {
    let sample = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a record in time");
    (sample.meta.sequence.get(), sample.value)
}

#[test]
fn log_is_received_from_the_first_record_of_each_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut subscriber = log(&subscribing, delivery);
        assert!(!subscriber.is_attached() && subscriber.current().is_none());
        assert!(subscriber.try_receive().unwrap().is_none());
        let mut before = None;
        for round in 0..4 {
            let publishing = node(&dir, "p");
            let mut publisher = publishing.log_publisher::<u64>("t").open().unwrap();
            publisher.publish_batch(&[round, round + 1]).unwrap();
            if let Some(before) = before.replace(publisher.epoch()) {
                let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
                let ReceiveError::Restarted { epoch, before: lost, last } = error else { panic!("{error}") };
                assert_eq!((epoch, lost, last.get()), (publisher.epoch(), before, 3));
            }
            assert_eq!([next(&mut subscriber), next(&mut subscriber)], [(1, round), (2, round + 1)]);
            publisher.publish(&7).unwrap();
            // The last record of a publisher that is gone by then.
            drop((publisher, publishing));
            assert_eq!(next(&mut subscriber), (3, 7));
            assert!(subscriber.receive_timeout(LITTLE).unwrap().is_none());
            assert!(!subscriber.is_attached());
        }
        let stats = subscriber.current().unwrap().stats();
        assert_eq!((stats.received, stats.lapped), (12, 0));
    }
}

#[test]
fn log_of_a_named_epoch_goes_on_without_a_break_and_accounts_for_what_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut subscriber = log(&subscribing, delivery);
        let (mut after, mut lost) = (0, 0);
        for round in 0..4_u64 {
            let publishing = node(&dir, "p");
            let builder = publishing.log_publisher::<u64>("t").epoch(epoch());
            // Each publishes some records that nobody receives.
            let mut publisher = builder.after(Sequence::new(after + round)).open().unwrap();
            publisher.publish_batch(&[round; 3]).unwrap();
            if round > 0 {
                let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
                let ReceiveError::Lapped { first_lost, count } = error else { panic!("{error}") };
                assert_eq!((first_lost.get(), count), (after + 1, round));
                lost += round;
            }
            for number in 1..=3 {
                assert_eq!(next(&mut subscriber), (after + round + number, round));
            }
            after = publisher.newest().get();
        }
        let stats = subscriber.current().unwrap().stats();
        assert_eq!((stats.received, stats.lapped), (12, lost));
        assert_eq!(stats.received + stats.lapped, after);
    }
}

#[test]
fn records_of_a_new_epoch_that_nobody_received_are_reported_lost() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut subscriber = log(&subscribing, delivery);
        let mut before: Option<(Epoch, Sequence)> = None;
        for day in 1..4_u64 {
            let publishing = node(&dir, "p");
            let epoch = Epoch::new(day).unwrap();
            // A publisher of this epoch has published as many, and was gone before the subscriber found it.
            let after = 6 * (day - 1);
            let builder = publishing.log_publisher::<u64>("t").epoch(epoch).after(Sequence::new(after));
            let mut publisher = builder.open().unwrap();
            publisher.publish(&day).unwrap();
            if let Some(before) = before {
                let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
                let ReceiveError::Restarted { epoch: found, before: lost, last } = error else {
                    panic!("{error}")
                };
                assert_eq!((found, (lost, last)), (epoch, before));
                let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
                let ReceiveError::Lapped { first_lost, count } = error else { panic!("{error}") };
                assert_eq!((first_lost.get(), count), (1, after));
            }
            assert_eq!(next(&mut subscriber), (after + 1, day));
            before = Some((epoch, publisher.newest()));
        }
        let stats = subscriber.current().unwrap().stats();
        assert_eq!((stats.received, stats.lapped), (3, 6 + 12));
    }
}

/// It may be gone again before it publishes anything.
#[test]
fn what_a_publisher_never_had_is_reported_lost_before_it_publishes() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut subscriber = log(&subscribing, delivery);
        for (after, lost) in [(0, None), (5, Some((2, 4))), (9, Some((6, 4)))] {
            let publishing = node(&dir, "p");
            let builder = publishing.log_publisher::<u64>("t").epoch(epoch()).after(Sequence::new(after));
            let mut publisher = builder.open().unwrap();
            if after == 0 {
                publisher.publish(&7).unwrap();
                assert_eq!(next(&mut subscriber), (1, 7));
            }
            if let Some(lost) = lost {
                let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
                let ReceiveError::Lapped { first_lost, count } = error else { panic!("{error}") };
                assert_eq!((first_lost.get(), count), lost);
            }
            assert!(subscriber.receive_timeout(LITTLE).unwrap().is_none());
        }
        let publishing = node(&dir, "p");
        let builder = publishing.log_publisher::<u64>("t").epoch(epoch());
        let mut publisher = builder.after(Sequence::new(9)).open().unwrap();
        publisher.publish(&8).unwrap();
        assert_eq!(next(&mut subscriber), (10, 8));
        let stats = subscriber.current().unwrap().stats();
        assert_eq!((stats.received, stats.lapped, stats.cut_off), (2, 8, 0));
    }
}

#[test]
fn publisher_that_repeats_old_records_is_received_from_the_next_new_one_on() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut subscriber = log(&subscribing, delivery);
        for newest in [5, 8] {
            let publishing = node(&dir, "p");
            let mut publisher = publishing.log_publisher::<u64>("t").epoch(epoch()).open().unwrap();
            let first = newest - if newest == 5 { 4 } else { 2 };
            for value in 1..=newest {
                publisher.publish(&value).unwrap();
            }
            for value in first..=newest {
                assert_eq!(next(&mut subscriber), (value, value));
            }
        }
    }
}

#[test]
fn state_is_received_once_in_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let builder = subscribing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).delivery(delivery);
        let mut subscriber = builder.persistent().open().unwrap();
        for (newest, is_new) in [(3, true), (3, false), (2, false), (7, true)] {
            let publishing = node(&dir, "p");
            let mut publisher = publishing.state_publisher::<u64>("t").epoch(epoch()).open().unwrap();
            (1..=newest).for_each(|value| _ = publisher.publish(&value).unwrap());
            let timeout = if is_new { TIMEOUT } else { LITTLE };
            let received = subscriber.receive_timeout(timeout).unwrap();
            assert_eq!(received.as_ref().map(|sample| sample.value), is_new.then_some(newest));
            if newest == 7 {
                assert_eq!(received.map(|sample| sample.conflated), Some(3));
            }
            while !subscriber.is_attached() {
                subscriber.receive_timeout(LITTLE).unwrap();
            }
        }
        let publishing = node(&dir, "p");
        let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
        publisher.publish(&1).unwrap();
        let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
        assert!(matches!(error, ReceiveError::Restarted { .. }), "{error}");
        assert_eq!(subscriber.receive_timeout(TIMEOUT).unwrap().expect("a value").value, 1);
    }
}

/// Key, value and number of values that it replaced.
#[track_caller]
fn changes(
    subscriber: &mut Persistent<TableSubscriber<u64, u64>>,
    count: usize,
) -> BTreeMap<u64, (Option<u64>, u64)> {
    let mut changes = BTreeMap::new();
    for _ in 0..count {
        let change = subscriber.change_timeout(TIMEOUT).unwrap();
        let change = change.unwrap_or_else(|| panic!("only {changes:?} in time"));
        changes.insert(change.key, (change.value, change.replaced));
    }
    assert_eq!(subscriber.change_timeout(LITTLE).unwrap(), None);
    changes
}

#[test]
fn of_a_table_that_is_continued_the_keys_that_changed_or_are_gone_are_received() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let builder = subscribing.table_subscriber::<u64, u64>("shm:p/t").timeout(TIMEOUT).delivery(delivery);
        let mut subscriber = builder.persistent().open().unwrap();
        subscriber.configure(|table| table.only(|key| *key < 10));
        let publish = |node: &Node, rounds: u64| {
            let mut publisher = node.table_publisher::<u64, u64>("t").epoch(epoch()).open().unwrap();
            (1..20).for_each(|key| _ = publisher.put(&key, &0).unwrap());
            for round in 1..=rounds {
                publisher.put(&2, &round).unwrap();
                publisher.put(&20, &round).unwrap();
            }
            publisher
        };
        let publishing = node(&dir, "p");
        let publisher = publish(&publishing, 2);
        assert_eq!(changes(&mut subscriber, 9).get(&2).map(|(value, _)| *value), Some(Some(2)));
        drop((publisher, publishing));

        // The next one is behind at first, and its cells are others.
        let publishing = node(&dir, "p");
        let mut publisher = publish(&publishing, 1);
        while !subscriber.is_attached() {
            assert_eq!(subscriber.change_timeout(LITTLE).unwrap(), None);
        }
        assert_eq!(changes(&mut subscriber, 0), BTreeMap::new());
        publisher.put(&2, &2).unwrap();
        publisher.put(&20, &2).unwrap();
        assert_eq!(changes(&mut subscriber, 0), BTreeMap::new());
        publisher.put_batch([(&2, &3), (&2, &4)]).unwrap();
        assert_eq!(changes(&mut subscriber, 1), BTreeMap::from([(2, (Some(4), 1))]));
        drop((publisher, publishing));

        let publishing = node(&dir, "p");
        let mut publisher = publish(&publishing, 2);
        publisher.put_batch([(&2, &3), (&2, &4)]).unwrap();
        publisher.put(&30, &3).unwrap();
        publisher.remove(&3).unwrap();
        publisher.put(&4, &3).unwrap();
        let expected = BTreeMap::from([(3, (None, 0)), (4, (Some(3), 0))]);
        assert_eq!(changes(&mut subscriber, 2), expected, "{delivery:?}");
        drop((publisher, publishing));

        // Another epoch: all keys.
        let publishing = node(&dir, "p");
        let mut publisher = publishing.table_publisher::<u64, u64>("t").open().unwrap();
        publisher.put_batch([(&1, &1), (&11, &1), (&2, &1)]).unwrap();
        let error = subscriber.change_timeout(TIMEOUT).unwrap_err();
        assert!(matches!(error, ReceiveError::Restarted { .. }), "{error}");
        let expected = BTreeMap::from([(1, (Some(1), 0)), (2, (Some(1), 0))]);
        assert_eq!(changes(&mut subscriber, 2), expected);
    }
}

#[test]
fn topic_of_another_type_is_reported_once_and_replaced_later() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let error = {
        let publishing = node(&dir, "p");
        let _publisher = publishing.log_publisher::<String>("t").open().unwrap();
        subscribing.log_subscriber::<u64>("shm:p/t").persistent().open().unwrap_err()
    };
    assert!(!error.is_transient(), "{error}");
    let mut subscriber = log(&subscribing, Delivery::Pull);
    {
        let publishing = node(&dir, "p");
        let _publisher = publishing.log_publisher::<String>("t").open().unwrap();
        let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
        assert!(matches!(error, ReceiveError::NotResumed { .. }), "{error}");
        assert!(subscriber.receive_timeout(5 * LITTLE).unwrap().is_none());
    }
    let publishing = node(&dir, "p");
    let mut publisher = publishing.log_publisher::<u64>("t").open().unwrap();
    publisher.publish(&1).unwrap();
    assert_eq!(next(&mut subscriber), (1, 1));
}

/// Its name is free for another node soon after its last handle is dropped, although it seeks.
#[test]
fn node_that_seeks_stops_with_its_last_handle() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let seeking = node(&dir, "seeking");
        let subscriber = log(&seeking, Delivery::Pull);
        drop((seeking, subscriber));
    }
}

#[test]
fn events_tell_what_was_lost_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().runtime_dir(dir.path());
    let subscribing = builder.events(Arc::clone(&events) as Arc<dyn EventSink>).open().unwrap();
    let mut subscriber = log(&subscribing, Delivery::Pull);
    for value in 1..3 {
        let publishing = node(&dir, "p");
        let mut publisher = publishing.log_publisher::<u64>("t").open().unwrap();
        publisher.publish(&value).unwrap();
        while subscriber.receive_timeout(TIMEOUT).is_err() {}
    }
    assert!(subscriber.receive_timeout(LITTLE).unwrap().is_none());
    let told: Vec<&str> = (events.0.lock().iter())
        .filter_map(|event| match event {
            Event::Lost { .. } => Some("lost"),
            Event::Resumed { .. } => Some("resumed"),
            Event::Restarted { .. } => Some("restarted"),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["resumed", "lost", "restarted", "lost"]);
}

/// A continued table that repeats its commits passes through values of keys that were removed later.
#[test]
fn keys_that_were_removed_do_not_come_again_while_their_table_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let builder = subscribing.table_subscriber::<u64, u64>("shm:p/t").timeout(TIMEOUT).delivery(delivery);
        let mut subscriber = builder.persistent().open().unwrap();
        let publishing = node(&dir, "p");
        let open = |node: &Node| node.table_publisher::<u64, u64>("t").epoch(epoch()).open().unwrap();
        let mut publisher = open(&publishing);
        publisher.put_batch([(&1, &1), (&2, &1)]).unwrap();
        changes(&mut subscriber, 2);
        publisher.remove(&1).unwrap();
        publisher.put(&2, &3).unwrap();
        changes(&mut subscriber, 2);
        drop((publisher, publishing));

        let publishing = node(&dir, "p");
        let mut publisher = open(&publishing);
        publisher.put_batch([(&1, &1), (&2, &1)]).unwrap();
        while !subscriber.is_attached() {
            assert_eq!(subscriber.change_timeout(LITTLE).unwrap(), None);
        }
        assert_eq!(changes(&mut subscriber, 0), BTreeMap::new());
        publisher.remove(&1).unwrap();
        publisher.put(&2, &3).unwrap();
        assert_eq!(changes(&mut subscriber, 0), BTreeMap::new());
        publisher.put_batch([(&1, &4), (&2, &4)]).unwrap();
        let expected = BTreeMap::from([(1, (Some(4), 0)), (2, (Some(4), 0))]);
        assert_eq!(changes(&mut subscriber, 2), expected, "{delivery:?}");
    }
}

/// It asked to be disconnected, not to be left without the records to come: it continues with the same publisher.
#[test]
fn overtaken_subscriber_attaches_again_and_accounts_for_what_it_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let builder = publishing.log_publisher::<u64>("t").capacity(4096).gating(Gating::new());
        let mut publisher = builder.open().unwrap();
        let builder = subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).delivery(delivery);
        let mut subscriber = builder.slow(SlowPolicy::Disconnect).persistent().open().unwrap();
        let (mut last, mut lost, mut breaks) = (0, 0, 0);
        for round in 1..=5 {
            // More than the rings of both sides hold.
            (0..3000).for_each(|_| _ = publisher.publish(&publisher.newest().next().get()).unwrap());
            while last < publisher.newest().get() {
                match subscriber.receive_timeout(TIMEOUT) {
                    Ok(record) => {
                        assert_eq!(record.expect("a record in time").value, last + 1);
                        last += 1;
                    }
                    Err(ReceiveError::Overtaken { last: told }) => {
                        assert_eq!(told.get(), last);
                        breaks += 1;
                    }
                    Err(ReceiveError::Lapped { first_lost, count }) => {
                        assert_eq!(first_lost.get(), last + 1);
                        (last, lost) = (last + count, lost + count);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(breaks, round);
            assert!(subscriber.current().unwrap().is_gating(), "it is disconnected the next time, too");
        }
        let stats = subscriber.current().unwrap().stats();
        assert_eq!((stats.received + stats.lapped, stats.lapped, stats.rejected), (last, lost, 0));
        assert!(lost > 0 && subscriber.outages() == 0);
    }
}

/// Records that its publisher never had, and those that were overwritten before it attached, were not lost by being slow.
#[test]
fn subscriber_is_not_overtaken_by_what_was_gone_before_it_attached() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let publishing = node(&dir, "p");
        let builder = publishing.log_publisher::<u64>("t").capacity(4096);
        let mut publisher = builder.gating(Gating::new()).open().unwrap();
        let builder = subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).delivery(delivery);
        let mut subscriber = builder.slow(SlowPolicy::Disconnect).persistent().open().unwrap();
        (1..=2).for_each(|number| _ = publisher.publish(&number).unwrap());
        (1..=2).for_each(|number| {
            assert_eq!(subscriber.receive_timeout(TIMEOUT).unwrap().unwrap().value, number)
        });
        drop((publisher, publishing));

        let publishing = node(&dir, "p");
        let builder = publishing.log_publisher::<u64>("t").after(Sequence::new(5)).capacity(4096);
        let mut publisher = builder.gating(Gating::new()).open().unwrap();
        // Its ring holds the last ones only.
        (6..=3000).for_each(|number| assert_eq!(publisher.publish(&number).unwrap().get(), number));
        let (mut next, mut losses) = (1, Vec::new());
        while next <= 3000 {
            match subscriber.receive_timeout(TIMEOUT) {
                Ok(record) => {
                    assert_eq!(record.expect("a record in time").value, next);
                    next += 1;
                }
                Err(ReceiveError::Lapped { first_lost, count }) => {
                    assert_eq!(first_lost.get(), next);
                    losses.push(count);
                    next += count;
                }
                Err(ReceiveError::Restarted { .. }) if next == 1 => {}
                Err(error) => panic!("{delivery:?}, after {losses:?}: {error}"),
            }
        }
        assert!(losses.len() == 2 && losses[0] == 5, "{delivery:?}: {losses:?}");
        assert!(subscriber.current().unwrap().is_gating(), "it is disconnected when it is slow");
    }
}
