//! Subscribers of feeds that outlive their publishers.

use super::*;
use crate::id::Epoch;
use crate::publisher::FeedPublisher;
use crate::subscriber::{FeedSubscriber, FeedUpdate, Persistent};

type Publisher = FeedPublisher<String, u64, u64>;
type Subscriber = Persistent<FeedSubscriber<String, u64, u64>>;

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
const LITTLE: Duration = Duration::from_millis(20);

fn publisher(node: &Node, epoch: Option<u64>) -> Publisher {
    let builder = node.feed_publisher("f").capacity(8).log_capacity(1 << 12).record_len_max(64);
    match epoch.and_then(Epoch::new) {
        Some(epoch) => builder.epoch(epoch).open().unwrap(),
        None => builder.open().unwrap(),
    }
}

fn subscriber(node: &Node, delivery: Delivery) -> Subscriber {
    node.feed_subscriber("shm:p/f").timeout(TIMEOUT).delivery(delivery).persistent().open().unwrap()
}

/// The next update: its key, its record or value, and whether it is a record.
fn next(subscriber: &mut Subscriber) -> (String, Option<u64>, bool) {
    match subscriber.update_timeout(TIMEOUT).unwrap().expect("an update in time") {
        FeedUpdate::Record(it) => (it.key, Some(it.record), true),
        FeedUpdate::Value(it) => (it.key, it.value, false),
    }
}

fn record(key: &str, record: u64) -> (String, Option<u64>, bool) {
    (key.to_owned(), Some(record), true)
}

#[test]
fn feed_of_another_epoch_begins_with_the_values_of_the_wanted_keys() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut subscriber = subscriber(&subscribing, delivery);
        subscriber.configure(|feed| feed.only_prefix("a"));
        for round in 0..3 {
            let publishing = node(&dir, "p");
            let mut publisher = publisher(&publishing, None);
            publisher.publish("a", &1, &(10 + round)).unwrap();
            publisher.publish("b", &2, &20).unwrap();
            if round > 0 {
                let error = subscriber.update_timeout(TIMEOUT).unwrap_err();
                assert!(matches!(error, ReceiveError::Restarted { .. }), "{error}");
            }
            // It may have joined before the first event.
            let first = next(&mut subscriber);
            assert!(first == ("a".into(), Some(10 + round), false) || first == record("a", 1), "{first:?}");
            publisher.publish("b", &3, &23).unwrap();
            publisher.publish("ab", &4, &4).unwrap();
            publisher.publish("a", &5, &5).unwrap();
            drop((publisher, publishing));
            assert_eq!([next(&mut subscriber), next(&mut subscriber)], [record("ab", 4), record("a", 5)]);
            assert!(subscriber.update_timeout(LITTLE).unwrap().is_none());
            assert!(!subscriber.is_attached());
        }
    }
}

#[test]
fn feed_that_is_published_again_goes_on_after_the_last_record() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut subscriber = subscriber(&subscribing, delivery);
        let publishing = node(&dir, "p");
        let mut first = publisher(&publishing, Some(7));
        assert!(subscriber.try_update().unwrap().is_none());
        while !subscriber.is_attached() {
            assert!(subscriber.update_timeout(LITTLE).unwrap().is_none());
        }
        (1..=3).for_each(|value| _ = first.publish("a", &value, &value).unwrap());
        (1..=3).for_each(|value| assert_eq!(next(&mut subscriber), record("a", value)));
        drop((first, publishing));
        assert!(subscriber.update_timeout(LITTLE).unwrap().is_none());

        let publishing = node(&dir, "p");
        let mut second = publisher(&publishing, Some(7));
        (1..=2).for_each(|value| _ = second.publish("a", &value, &value).unwrap());
        assert!(subscriber.update_timeout(5 * LITTLE).unwrap().is_none(), "it has these already");
        (3..=5).for_each(|value| _ = second.publish("a", &value, &value).unwrap());
        (4..=5).for_each(|value| assert_eq!(next(&mut subscriber), record("a", value)));
        drop((second, publishing));
        assert!(subscriber.update_timeout(LITTLE).unwrap().is_none());

        // More than the ring holds.
        let publishing = node(&dir, "p");
        let mut third = publisher(&publishing, Some(7));
        (1..=500).for_each(|value| _ = third.publish("a", &value, &value).unwrap());
        // It may be found, and lapped again, while these are published.
        let (mut lost, mut last) = (0, 5);
        while last < 500 {
            match subscriber.update_timeout(TIMEOUT) {
                Err(ReceiveError::Lapped { first_lost, count }) => {
                    assert!(lost > 0 || first_lost.get() == last + 1);
                    lost += count;
                }
                update => match update.unwrap().expect("an update in time") {
                    FeedUpdate::Record(it) => last = it.record,
                    FeedUpdate::Value(it) => last = it.value.expect("a value"),
                },
            }
        }
        assert!(lost > 0);
        third.publish("a", &501, &501).unwrap();
        assert_eq!(next(&mut subscriber), record("a", 501));
    }
}

#[test]
fn conflated_feed_goes_on_with_the_keys_that_changed() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let builder = subscribing.feed_subscriber("shm:p/f").conflate(Duration::from_millis(1));
    let mut subscriber: Subscriber = builder.persistent().open().unwrap();
    for round in 1..4 {
        let publishing = node(&dir, "p");
        let mut publisher = publisher(&publishing, Some(9));
        publisher.publish("same", &1, &1).unwrap();
        (1..=round).for_each(|value| _ = publisher.publish("changed", &value, &value).unwrap());
        let (mut received, mut nothing) = (Vec::new(), 0);
        while nothing < 2 || received.is_empty() {
            match subscriber.update_timeout(LITTLE).unwrap() {
                Some(FeedUpdate::Value(it)) => {
                    received.push((it.key, it.value));
                    nothing = 0;
                }
                Some(FeedUpdate::Record(it)) => panic!("{it:?}"),
                None => nothing += 1,
            }
            assert!(nothing < 3000, "{round}: {received:?}");
        }
        received.sort();
        let changed = ("changed".to_owned(), Some(round));
        let expected = if round == 1 { vec![changed, ("same".to_owned(), Some(1))] } else { vec![changed] };
        assert_eq!(received, expected);
        drop((publisher, publishing));
        assert!(subscriber.update_timeout(LITTLE).unwrap().is_none());
    }
}
