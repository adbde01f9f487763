//! Topics that continue the numbering of another publisher.

use super::*;
use crate::id::Epoch;

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
const AFTER: Sequence = Sequence::new(10);

fn epoch() -> Epoch {
    Epoch::new(0x2026_1123).unwrap()
}

#[test]
fn log_that_continues_begins_after_the_last_record() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let builder = publishing.log_publisher::<u64>("t").epoch(epoch()).after(AFTER);
        let mut publisher = builder.open().unwrap();
        assert_eq!((publisher.epoch(), publisher.newest()), (epoch(), AFTER));
        let target = || subscribing.log_subscriber::<u64>("shm:p/t").delivery(delivery);
        let mut early = [target().earliest().open().unwrap(), target().open().unwrap()];
        let mut resumed = target().at(Sequence::new(5)).open().unwrap();
        let mut ahead = target().at(Sequence::new(12)).open().unwrap();
        assert_eq!((resumed.epoch(), resumed.newest_at_start()), (epoch(), AFTER));
        for value in 11..14 {
            assert_eq!(publisher.publish(&value).unwrap().get(), value);
        }
        let lost = resumed.receive_timeout(TIMEOUT).unwrap_err();
        let ReceiveError::Lapped { first_lost, count } = lost else { panic!("{lost}") };
        assert_eq!((first_lost.get(), count), (5, 6));
        let [earliest, newest] = &mut early;
        let mut late = target().earliest().open().unwrap();
        for (subscriber, first) in
            [(earliest, 11), (newest, 11), (&mut resumed, 11), (&mut late, 11), (&mut ahead, 12)]
        {
            for expected in first..14 {
                let sample = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a record");
                assert_eq!((sample.meta.sequence.get(), sample.meta.epoch), (expected, epoch()));
                assert_eq!(sample.value, expected);
            }
        }
    }
}

#[test]
fn state_that_continues_has_nothing_until_its_first_value() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        for publishes in [false, true] {
            let builder = publishing.state_publisher::<u64>("t").epoch(epoch()).after(AFTER);
            let mut publisher = builder.open().unwrap();
            let builder = subscribing.state_subscriber::<u64>("shm:p/t").delivery(delivery);
            let mut subscriber = builder.open().unwrap();
            assert_eq!(subscriber.try_receive().unwrap(), None);
            if publishes {
                publisher.publish(&7).unwrap();
                let sample = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a value");
                assert_eq!((sample.meta.sequence.get(), sample.conflated, sample.value), (11, 0, 7));
            }
            drop(publisher);
            let end = subscriber.receive_timeout(TIMEOUT).unwrap_err();
            assert!(matches!(end, ReceiveError::Ended { .. }), "{end}");
        }
    }
}

#[test]
fn table_that_continues_has_the_next_commit_first() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let builder = publishing.table_publisher::<u64, u64>("t").epoch(epoch()).after(AFTER);
        let mut publisher = builder.open().unwrap();
        let builder = subscribing.table_subscriber::<u64, u64>("shm:p/t").delivery(delivery);
        let mut subscriber = builder.open().unwrap();
        assert!(subscriber.snapshot(TIMEOUT).unwrap().entries.is_empty());
        assert_eq!(publisher.put(&1, &7).unwrap().get(), 11);
        let sample = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a change");
        assert_eq!((sample.meta.sequence.get(), sample.value), (11, (1, Some(7))));
        assert_eq!(subscriber.snapshot(TIMEOUT).unwrap().sequence.get(), 11);
    }
}

#[test]
fn topic_cannot_begin_after_an_impossible_sequence() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let after = |number| node.log_publisher::<u64>("t").after(Sequence::new(number)).open();
    assert!(after(limits::SEQUENCE_AFTER_MAX).is_ok());
    let error = after(limits::SEQUENCE_AFTER_MAX + 1).unwrap_err();
    assert!(matches!(error, PublisherError::AfterTooHigh { .. }), "{error}");
}
