//! Log topics between nodes of one host.

use super::*;
use crate::publisher::{LenLimit, PublishError};
use crate::repository::log::LogStart;
use crate::subscriber::{GrantError, LogSubscriber};

fn values<T: Payload>(subscriber: &mut LogSubscriber<T>, count: usize) -> Vec<T::Owned> {
    subscriber.samples().take(count).map(|record| record.unwrap().value).collect()
}

#[test]
fn every_record_from_the_start_on_is_received_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.log_publisher::<(u64, String)>("a/b").open().unwrap();
    let value = |number: u64| (number, "x".repeat(number as usize % 50));
    for number in 1..=100 {
        assert_eq!(publisher.publish(&value(number)).unwrap().get(), number);
    }
    let starts = [
        (LogStart::Earliest, 1),
        (LogStart::Newest, 101),
        (LogStart::At(Sequence::new(40)), 40),
        (LogStart::Back(7), 94),
    ];
    let open = |start| {
        subscribing.log_subscriber::<(u64, String)>("shm:p/a/b").timeout(TIMEOUT).start(start).open().unwrap()
    };
    let mut subscribers = starts.map(|(start, first)| (open(start), first));
    // Records published after they opened come after all their starting positions.
    let batch: Vec<_> = (101..=300).map(value).collect();
    assert_eq!(publisher.publish_batch(&batch).unwrap().get(), 300);
    for (subscriber, first) in &mut subscribers {
        assert_eq!(subscriber.next_sequence().get(), *first);
        for number in *first..=300 {
            let record = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a record in time");
            assert_eq!((record.meta.sequence.get(), record.value), (number, value(number)));
            assert_eq!(record.meta.epoch, publisher.epoch());
        }
        assert!(subscriber.try_receive().unwrap().is_none());
        assert_eq!(subscriber.stats().received, 301 - *first);
    }
}

#[test]
fn appended_records_become_visible_with_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
    let mut subscriber = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    for number in 1..=10 {
        assert_eq!(publisher.append(&number).unwrap().get(), number);
    }
    assert!(subscriber.try_receive().unwrap().is_none());
    assert_eq!(publisher.newest(), Sequence::NONE);
    assert_eq!(publisher.commit().get(), 10);
    assert_eq!(values(&mut subscriber, 10), (1..=10).collect::<Vec<_>>());
}

#[test]
fn records_overwritten_since_a_pull_subscriber_was_opened_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("t").capacity(4096).open().unwrap();
    for start in [LogStart::Earliest, LogStart::Back(7), LogStart::Back(u64::MAX), LogStart::Newest] {
        publisher.publish_batch(&[7; 10]).unwrap();
        let builder = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).start(start);
        let mut subscriber = builder.delivery(Delivery::Pull).open().unwrap();
        let first = subscriber.next_sequence();
        publisher.publish_batch(&[7; 10_000]).unwrap();
        let ReceiveError::Lapped { first_lost, count } = subscriber.try_receive().unwrap_err() else {
            panic!("records must be missing")
        };
        let record = subscriber.try_receive().unwrap().expect("a record is left");
        assert_eq!((first_lost, record.meta.sequence.get()), (first, first.get() + count));
    }
}

#[test]
fn slow_subscriber_learns_how_many_records_it_missed_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("t").capacity(4096).open().unwrap();
    let mut subscriber = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    for number in 1..=10_000 {
        publisher.publish(&number).unwrap();
    }
    let ReceiveError::Lapped { first_lost, count } = subscriber.try_receive().unwrap_err() else {
        panic!("records must be missing");
    };
    assert_eq!(first_lost.get(), 1);
    let record = subscriber.try_receive().unwrap().expect("a record is left");
    assert_eq!((record.meta.sequence.get(), record.value), (count + 1, count + 1));
    let rest = values(&mut subscriber, (10_000 - count - 1) as usize);
    assert_eq!(rest.last(), Some(&10_000));
    let stats = subscriber.stats();
    assert_eq!((stats.lapped, stats.received, stats.rejected), (count, 10_000 - count, 0));
}

#[test]
fn last_records_come_before_the_end_of_the_topic() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
    let mut subscriber = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    publisher.publish_batch(&[1, 2]).unwrap();
    publisher.append(&3).unwrap();
    drop(publisher);
    let received: Vec<_> = subscriber.samples().map(|record| record.unwrap().value).collect();
    assert_eq!(received, [1, 2, 3]);
    let end = subscriber.try_receive().unwrap_err();
    assert!(matches!(end, ReceiveError::Ended { published } if published.get() == 3), "{end}");
}

#[test]
fn each_record_over_the_declared_maximum_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<String>("t").payload_len_max(16).open().unwrap();
    let long = "x".repeat(40);
    let error = publisher.publish(&long).unwrap_err();
    let limit = LenLimit::Value;
    assert!(
        matches!(&error, PublishError::TooLong { len: None, max: 16, limit: of } if *of == limit),
        "{error}"
    );
    let told = error.to_string();
    assert!(told.contains("more than 16 bytes") && told.ends_with("payload_len_max"), "{told}");
    let mut state = node.state_publisher::<String>("state").payload_len_max(64).open().unwrap();
    let error = state.publish(&"x".repeat(1000)).unwrap_err();
    assert!(
        matches!(&error, PublishError::TooLong { len: None, max: 64, limit: of } if *of == limit),
        "{error}"
    );
    // The length of bytes is known.
    let mut raw = node.log_publisher::<Raw>("raw").payload_len_max(16).open().unwrap();
    let error = raw.publish(&[0; 17]).unwrap_err();
    assert!(matches!(&error, PublishError::TooLong { len: Some(17), max: 16, .. }), "{error}");
    assert!(error.to_string().contains(" 17 bytes"), "{error}");
    let batch = ["a".to_owned(), "b".to_owned(), long, "c".to_owned()];
    publisher.publish_batch(&batch).unwrap_err();
    // The records before the failed one are published.
    assert_eq!(publisher.newest().get(), 2);
    let mut subscriber = node.log_subscriber::<String>("shm:p/t").timeout(TIMEOUT).earliest().open().unwrap();
    assert_eq!(values(&mut subscriber, 2), ["a", "b"]);
}

#[test]
fn topic_of_another_kind_is_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _state = node.state_publisher::<u64>("state").open().unwrap();
    let _log = node.log_publisher::<u64>("log").open().unwrap();
    let error = node.log_subscriber::<u64>("shm:p/state").open().unwrap_err();
    assert!(matches!(error, SubscriberError::Unfit { source: GrantError::Kind { .. }, .. }), "{error}");
    assert!(ErrorChain(&error).to_string().contains("Node::state_subscriber"), "{error}");
    for delivery in [Delivery::Pull, Delivery::Push] {
        let error = node.state_subscriber::<u64>("shm:p/log").delivery(delivery).open().unwrap_err();
        assert!(ErrorChain(&error).to_string().contains("Node::log_subscriber"), "{error}");
    }
    let listed = node.directory_timeout("shm:p", TIMEOUT).unwrap().topics;
    let kinds: Vec<_> = listed.iter().map(|topic| (topic.topic.as_str(), topic.kind.to_string())).collect();
    assert_eq!(kinds, [("log", "log".to_owned()), ("state", "state".to_owned())]);
}

#[test]
fn inconsistent_sizes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    for capacity in [usize::MAX, limits::REGION_LEN_MAX + 1, limits::REGION_LEN_MAX] {
        let error = node.log_publisher::<u64>("t").capacity(capacity).open().unwrap_err();
        assert!(matches!(error, PublisherError::Geometry(_)), "{error}");
    }
    let tiny = node.log_publisher::<u64>("t").capacity(0).open().unwrap();
    assert!(tiny.capacity() >= 4 * 32);
}

/// A value whose length follows from its number, up to the largest.
fn sized(number: u64, len_max: usize) -> Vec<u8> {
    let len = number.wrapping_mul(7919) as usize % (len_max + 1);
    (0..len).map(|index| (index as u64 ^ number) as u8).collect()
}

#[test]
fn records_from_the_start_on_are_pushed_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.log_publisher::<u64>("t").capacity(64 << 10).open().unwrap();
    let open = |start| {
        subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().start(start).open().unwrap()
    };
    let mut empty = [LogStart::Earliest, LogStart::Newest, LogStart::Back(3)].map(open);
    for number in 1..=1000 {
        publisher.publish(&number).unwrap();
    }
    let starts = [
        (LogStart::Earliest, 1),
        (LogStart::Newest, 1001),
        (LogStart::At(Sequence::new(40)), 40),
        (LogStart::At(Sequence::new(1100)), 1100),
        (LogStart::Back(700), 301),
    ];
    let mut subscribers = starts.map(|(start, first)| (open(start), first));
    for (subscriber, first) in &subscribers {
        assert_eq!((subscriber.next_sequence().get(), subscriber.delivery()), (*first, Delivery::Push));
    }
    assert_eq!(publisher.push_subscribers(), 8);
    for subscriber in &mut empty {
        assert_eq!(values(subscriber, 1000), (1..=1000).collect::<Vec<_>>());
    }
    let batch: Vec<u64> = (1001..=1500).collect();
    publisher.publish_batch(&batch).unwrap();
    for (subscriber, first) in &mut subscribers {
        for number in *first..=1500 {
            let record = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a record in time");
            assert_eq!((record.meta.sequence.get(), record.value), (number, number));
        }
        assert!(subscriber.try_receive().unwrap().is_none());
    }
}

#[test]
fn push_subscribers_of_any_speed_account_for_every_record() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let builder = publishing.log_publisher::<Raw>("t").capacity(64 << 10).payload_len_max(4000);
    let mut publisher = builder.open().unwrap();
    let open =
        || subscribing.log_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).push().earliest().open().unwrap();
    let readers: Vec<_> = [0, 20, 400]
        .map(|pause_us| {
            let mut subscriber = open();
            std::thread::spawn(move || {
                let (mut received, mut lost) = (0, 0);
                loop {
                    let next = subscriber.next_sequence().get();
                    match subscriber.receive_timeout(TIMEOUT) {
                        Ok(Some(record)) => {
                            assert_eq!(record.meta.sequence.get(), next);
                            assert_eq!(record.value, sized(next, 4000));
                            received += 1;
                        }
                        Err(ReceiveError::Lapped { first_lost, count }) => {
                            assert_eq!(first_lost.get(), next);
                            lost += count;
                        }
                        Err(ReceiveError::Ended { published }) => {
                            assert_eq!(published.get(), received + lost);
                            return (received, lost);
                        }
                        Ok(None) => panic!("neither a record nor the end"),
                        Err(error) => panic!("{error}"),
                    }
                    if next % 8 == 0 && pause_us > 0 {
                        SystemClock.pause(Duration::from_micros(8 * pause_us));
                    }
                }
            })
        })
        .into();
    for number in 1..=6000 {
        publisher.append(&sized(number, 4000)).unwrap();
        if number % 3 == 0 {
            publisher.commit();
        }
        if number % 100 == 0 {
            SystemClock.pause(Duration::from_millis(1));
        }
    }
    drop(publisher);
    for reader in readers {
        let (received, lost) = reader.join().unwrap();
        // How many it missed depends on both speeds. It always receives what fits into its landing region at once.
        assert!(received >= 64 * 1024 / 4096 / 2 && received + lost == 6000, "{received} and {lost}");
    }
}

/// A subscriber that never polls costs the publisher and the others nothing, and finds its part later.
#[test]
fn stalled_push_subscriber_delays_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.log_publisher::<u64>("t").capacity(16 << 10).open().unwrap();
    let open = || subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().open().unwrap();
    let (mut stands, mut follows, gone) = (open(), open(), open());
    publisher.publish(&1).unwrap();
    drop(gone);
    for number in 2..=50_000 {
        publisher.publish(&number).unwrap();
        assert_eq!(values(&mut follows, 1), [number - 1]);
    }
    assert_eq!(values(&mut follows, 1), [50_000]);
    assert_eq!(follows.stats().lapped, 0);
    wait_until("one subscriber to be gone", || publisher.push_subscribers() == 2);
    // The contents of its region, a gap, and what came after.
    let (mut received, mut lost) = (0, 0);
    while received + lost < 50_000 {
        match stands.receive_timeout(TIMEOUT) {
            Ok(Some(record)) => {
                received += 1;
                assert_eq!(record.value, received + lost);
            }
            Err(ReceiveError::Lapped { first_lost, count }) => {
                assert_eq!((first_lost.get(), lost), (received + 1, 0));
                lost = count;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(received > 700 && lost > 40_000, "{received} and {lost}");
}

#[test]
fn last_records_are_pushed_before_the_end_of_the_topic() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("t").capacity(8 << 10).open().unwrap();
    let open = || node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().earliest().open().unwrap();
    let mut subscribers = [open(), open()];
    // More than fits into a landing region at once, and the publisher is gone before the subscriber polls.
    let all: Vec<u64> = (1..=400).collect();
    publisher.publish_batch(&all).unwrap();
    drop(publisher);
    for subscriber in &mut subscribers {
        let mut expected = 1;
        let (mut lost, mut last) = (0, None);
        while last.is_none() {
            match subscriber.receive_timeout(TIMEOUT) {
                Ok(Some(record)) => {
                    assert_eq!(record.value, expected);
                    expected += 1;
                }
                Err(ReceiveError::Lapped { count, .. }) => {
                    (expected, lost) = (expected + count, lost + count);
                }
                Err(ReceiveError::Ended { published }) => last = Some(published.get()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((expected, last, lost), (401, Some(400), 0));
    }
}

/// When the publisher's node stops, a push subscriber that is behind learns what it will not receive.
#[test]
fn end_of_the_publishers_node_accounts_for_unpushed_records() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.log_publisher::<u64>("t").capacity(8 << 10).open().unwrap();
    let mut subscriber =
        subscribing.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().earliest().open().unwrap();
    // More than fits into the landing region, none of it consumed.
    for number in 1..=10_000 {
        publisher.publish(&number).unwrap();
    }
    drop(publisher);
    drop(publishing);
    let mut next = 1;
    loop {
        match subscriber.receive_timeout(TIMEOUT) {
            Ok(Some(record)) => {
                assert_eq!(record.value, next);
                next += 1;
            }
            Err(ReceiveError::Lapped { first_lost, count } | ReceiveError::CutOff { first_lost, count }) => {
                assert_eq!(first_lost.get(), next);
                next += count;
            }
            Err(ReceiveError::Ended { published }) => break assert_eq!(published.get(), 10_000),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next, 10_001);
}

/// More than one copy.
#[test]
fn push_subscriber_that_joins_a_long_ring_late_gets_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let builder = publishing.log_publisher::<Raw>("t").capacity(64 << 20).payload_len_max(1 << 20);
    let mut publisher = builder.open().unwrap();
    let value = |number: u8| vec![number; (1 << 20) - usize::from(number)];
    for number in 1..=50 {
        publisher.publish(&value(number)).unwrap();
    }
    let mut subscriber =
        subscribing.log_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).push().earliest().open().unwrap();
    for number in 1..=50 {
        let record = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a record in time");
        assert_eq!((record.meta.sequence.get(), record.value), (u64::from(number), value(number)));
    }
}

/// By pull and by push, together with the records appended before it, some of which have to be committed to make space.
#[test]
fn a_record_written_in_place_is_received_with_those_appended_before() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher =
        node.log_publisher::<Raw>("t").payload_len_max(1000).capacity(1 << 13).open().unwrap();
    let open = |delivery| {
        let builder = node.log_subscriber::<Raw>("shm:p/t").delivery(delivery).timeout(TIMEOUT);
        builder.at(Sequence::new(1)).open().unwrap()
    };
    let mut subscribers = [Delivery::Pull, Delivery::Push].map(open);
    let mut expected = 1;
    for round in 0..20 {
        let count = round % 4;
        (0..count).for_each(|_| _ = publisher.append(&[1; 900]).unwrap());
        drop(publisher.loan().unwrap());
        let mut loan = publisher.loan().unwrap();
        loan.append(&[2; 10]).unwrap();
        std::io::Write::write_all(&mut loan, &[3; 500]).unwrap();
        assert!(matches!(loan.append(&[4; 491]), Err(PublishError::TooLong { max: 1000, .. })));
        assert_eq!((loan.len(), loan.remaining(), loan.is_empty()), (510, 490, false));
        assert_eq!(loan.commit().get(), expected + count);
        for subscriber in &mut subscribers {
            for record in values(subscriber, usize::try_from(count).unwrap()) {
                assert_eq!(record, [1; 900]);
            }
            let record = values(subscriber, 1).remove(0);
            assert_eq!(record, [[2; 10].as_slice(), &[3; 500]].concat());
            assert_eq!(subscriber.next_sequence().get(), expected + count + 1);
            assert!(subscriber.try_receive().unwrap().is_none());
        }
        expected += count + 1;
    }
}
