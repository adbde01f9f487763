//! Feeds between nodes of one host.

mod ahead;
mod losses;

use std::collections::BTreeMap;

use super::*;
use crate::node::FeedPublisherBuilder;
use crate::publisher::{FeedPublisher, LenLimit, PublishError};
use crate::repository::feed::FeedRecord;
use crate::subscriber::{FeedEvent, FeedSubscriber, FeedUpdate, GrantError};

type Publisher = FeedPublisher<String, u64, u64>;
type Follower = FeedSubscriber<String, u64, u64>;

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

fn publisher(node: &Node) -> Publisher {
    node.feed_publisher("f").capacity(4).log_capacity(1 << 12).record_len_max(64).open().unwrap()
}

fn subscriber(node: &Node, delivery: Delivery) -> Follower {
    node.feed_subscriber("shm:p/f").timeout(TIMEOUT).delivery(delivery).open().unwrap()
}

fn event(follower: &mut Follower) -> FeedEvent<String, u64, u64> {
    follower.event_timeout(TIMEOUT).unwrap().expect("an event in time")
}

/// Key, record or value, number, and whether it is a record.
fn brief(event: &FeedEvent<String, u64, u64>) -> Vec<(&str, Option<u64>, u64, bool)> {
    let updates = event.updates.iter();
    let mut brief: Vec<_> = updates
        .map(|update| match update {
            FeedUpdate::Record(it) => (it.key.as_str(), Some(it.record), it.number, true),
            FeedUpdate::Value(it) => (it.key.as_str(), it.value, it.number, false),
        })
        .collect();
    if matches!(event.updates[0], FeedUpdate::Value(_)) {
        brief.sort_unstable();
    }
    brief
}

#[test]
fn late_and_early_subscribers_receive_the_values_of_one_event_and_then_records() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let mut publisher = publisher(&publishing);
        let mut early = subscriber(&subscribing, delivery);
        assert!(early.try_event().unwrap().is_none());
        assert_eq!(publisher.publish("a", &1, &10).unwrap().get(), 1);
        let mut building = publisher.event();
        building.record("a", &2).unwrap();
        building.update("b", &3, &30).unwrap();
        building.update("a", &4, &40).unwrap();
        assert_eq!((building.len(), building.commit().get()), (3, 4));

        let mut late = subscriber(&subscribing, delivery);
        let values = event(&mut late);
        assert_eq!(brief(&values), [("a", Some(40), 3, false), ("b", Some(30), 1, false)], "{delivery:?}");
        assert_eq!((values.sequence.get(), values.is_whole, late.last().get()), (4, true, 4));
        let first = event(&mut early);
        assert_eq!((brief(&first), first.sequence.get()), (vec![("a", Some(1), 1, true)], 1));
        let second = event(&mut early);
        let expected = [("a", Some(2), 2, true), ("b", Some(3), 1, true), ("a", Some(4), 3, true)];
        assert_eq!((brief(&second), second.is_whole), (expected.to_vec(), true));
        let marks: Vec<bool> = second.updates.iter().map(FeedUpdate::ends_event).collect();
        assert_eq!(marks, [false, false, true]);

        let mut building = publisher.event();
        building.remove("a", &5).unwrap();
        assert_eq!(building.commit().get(), 5);
        for follower in [&mut early, &mut late] {
            let removal = event(follower);
            assert_eq!((brief(&removal), removal.is_whole), (vec![("a", Some(5), 4, true)], true));
            let [FeedUpdate::Record(record)] = &removal.updates[..] else { panic!("{removal:?}") };
            assert!(record.removes_key);
            assert_eq!(follower.get("b").unwrap().map(|sample| sample.value), Some(30));
            assert!(follower.suspects().is_empty());
        }
        // Its number begins again.
        publisher.publish("a", &6, &60).unwrap();
        assert_eq!(brief(&event(&mut late)), [("a", Some(6), 1, true)]);
        let epoch = publisher.epoch();
        assert_eq!([early.epoch(), late.epoch()], [epoch; 2]);
        drop(publisher);
        assert_eq!(brief(&event(&mut early)), [("a", Some(6), 1, true)]);
        let end = early.update_timeout(TIMEOUT).unwrap_err();
        assert!(matches!(end, ReceiveError::Ended { published } if published.get() == 6), "{end}");
    }
}

#[test]
fn event_that_is_dropped_or_forgotten_publishes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publisher(&publishing);
    let mut follower = subscriber(&subscribing, Delivery::Pull);
    assert!(follower.try_event().unwrap().is_none());
    publisher.publish("a", &1, &10).unwrap();
    let attempts: [fn(&mut Publisher); 2] = [
        |publisher| {
            let mut event = publisher.event();
            event.remove("a", &7).unwrap();
            event.update("a", &8, &80).unwrap();
            event.update("b", &9, &90).unwrap();
        },
        |publisher| {
            let mut event = publisher.event();
            event.record("a", &7).unwrap();
            event.update("b", &9, &90).unwrap();
            std::mem::forget(event);
            assert_eq!(publisher.event().commit().get(), publisher.newest().get());
        },
    ];
    for attempt in attempts {
        attempt(&mut publisher);
        assert_eq!(publisher.len(), 1);
    }
    publisher.publish("a", &2, &20).unwrap();
    assert_eq!(brief(&event(&mut follower)), [("a", Some(1), 1, true)]);
    assert_eq!(brief(&event(&mut follower)), [("a", Some(2), 2, true)]);
    assert_eq!(follower.last().get(), 2);
    // A table that is dropped commits what is staged.
    let builder = subscribing.table_subscriber::<String, u64>("shm:p/f/table").timeout(TIMEOUT);
    let mut table = builder.open().unwrap();
    let mut event = publisher.event();
    event.update("a", &3, &30).unwrap();
    std::mem::forget(event);
    drop(publisher);
    let mut values = Vec::new();
    wait_until("the end", || match table.try_change() {
        Ok(change) => {
            values.extend(change.and_then(|change| change.value));
            false
        }
        Err(error) => matches!(error, ReceiveError::Ended { published } if published.get() == 2),
    });
    assert_eq!(values, [20]);
}

#[test]
fn damaged_value_makes_its_key_suspect_and_no_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publisher(&publishing);
    for key in ["a", "b", "c"] {
        publisher.publish(key, &1, &1).unwrap();
    }
    let mut follower = subscriber(&subscribing, Delivery::Pull);
    assert_eq!(event(&mut follower).updates.len(), 3);
    publisher.damage("b");
    for value in 0..200 {
        publisher.publish("a", &value, &value).unwrap();
    }
    let mut updates = Vec::new();
    let unreadable = loop {
        match follower.try_update() {
            Ok(Some(FeedUpdate::Value(update))) => updates.push((update.key, update.value)),
            Ok(_) | Err(ReceiveError::Lapped { .. }) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(unreadable, ReceiveError::UnreadableValues { count: 1 }), "{unreadable}");
    assert_eq!((updates, follower.suspects()), (vec![("a".into(), Some(199))], vec!["b".into()]));
    let error = publisher.event().record("b", &2).unwrap_err();
    assert!(matches!(error, PublishError::DamagedValue), "{error}");
    publisher.publish("b", &3, &4).unwrap();
    assert_eq!(brief(&event(&mut follower)), [("b", Some(4), 2, false)]);
    assert!(follower.suspects().is_empty() && !follower.is_recovering());
}

/// A number, but not every one.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "u64", into = "u64")]
struct Number(u64);

impl From<Number> for u64 {
    fn from(number: Number) -> Self {
        number.0
    }
}

impl TryFrom<u64> for Number {
    type Error = &'static str;

    fn try_from(number: u64) -> Result<Self, Self::Error> {
        if number == 4711 { Err("not a number of this test") } else { Ok(Self(number)) }
    }
}

#[test]
fn value_that_cannot_be_decoded_stops_no_other_key() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.feed_publisher::<String, Number, Number>("f").open().unwrap();
    publisher.publish("good", &Number(2), &Number(2)).unwrap();
    publisher.publish("bad", &Number(2), &Number(4711)).unwrap();
    let open = || subscribing.feed_subscriber::<String, Number, Number>("shm:p/f").timeout(TIMEOUT);
    let mut followers = [open().open().unwrap(), open().conflate(Duration::from_millis(1)).open().unwrap()];
    for follower in &mut followers {
        let (mut found, mut refused) = (Vec::new(), 0);
        while found.is_empty() || refused == 0 {
            match follower.update_timeout(TIMEOUT) {
                Ok(Some(FeedUpdate::Value(update))) => found.push((update.key, update.value)),
                Err(ReceiveError::UnreadableValues { count: 1 } | ReceiveError::Decode { .. }) => {
                    refused += 1
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((found, refused), (vec![("good".to_owned(), Some(Number(2)))], 1));
    }
    let [follower, _] = &mut followers;
    assert_eq!(follower.suspects(), ["bad"]);
    // A record that cannot be decoded is a loss of its key.
    publisher.publish("good", &Number(4711), &Number(8)).unwrap();
    let error = follower.update_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, ReceiveError::Decode { .. }), "{error}");
    let Some(FeedUpdate::Value(update)) = follower.update_timeout(TIMEOUT).unwrap() else {
        panic!("a value")
    };
    assert_eq!((update.key.as_str(), update.value), ("good", Some(Number(8))));
}

#[test]
fn updates_and_events_can_be_mixed() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publisher(&publishing);
    let mut follower = subscriber(&subscribing, Delivery::Pull);
    assert!(follower.try_event().unwrap().is_none());
    for _ in 0..2 {
        let mut building = publisher.event();
        for value in 1..=3 {
            building.update("a", &value, &value).unwrap();
        }
        building.commit();
    }
    let Some(FeedUpdate::Record(first)) = follower.try_update().unwrap() else { panic!("a record") };
    assert_eq!((first.number, first.ends_event), (1, false));
    let rest = event(&mut follower);
    assert_eq!(
        (brief(&rest), rest.is_whole),
        (vec![("a", Some(2), 2, true), ("a", Some(3), 3, true)], false)
    );
    let next = event(&mut follower);
    assert_eq!((next.updates.len(), next.is_whole), (3, true));
}

#[test]
fn what_does_not_fit_into_an_event_is_refused_and_leaves_it_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let builder = publishing.feed_publisher::<String, String, String>("f").capacity(2);
    let builder = builder.record_len_max(100).value_len_max(80).key_len_max(20).log_capacity(0);
    let mut publisher = builder.open().unwrap();
    let builder = subscribing.feed_subscriber::<String, String, String>("shm:p/f");
    let mut follower = builder.timeout(TIMEOUT).open().unwrap();
    assert!(follower.try_event().unwrap().is_none());
    let (text, long) = (|len: usize| "x".repeat(len), "k".repeat(13));
    let mut event = publisher.event();
    let error = event.record("a", &text(1)).unwrap_err();
    assert!(matches!(error, PublishError::UnknownKey), "{error}");
    let error = event.remove("a", &text(1)).unwrap_err();
    assert!(matches!(error, PublishError::UnknownKey), "{error}");
    let error = event.update(long.as_str(), &text(1), &text(1)).unwrap_err();
    assert!(matches!(error, PublishError::KeyTooLong { max: 20, .. }), "{error}");
    let error = event.update("a", &text(100), &text(1)).unwrap_err();
    assert!(
        matches!(error, PublishError::TooLong { len: None, max: 100, limit: LenLimit::Record }),
        "{error}"
    );
    assert!(error.to_string().ends_with("record_len_max"), "{error}");
    let error = event.update("a", &text(1), &text(70)).unwrap_err();
    assert!(
        matches!(error, PublishError::TooLong { len: None, max: 80, limit: LenLimit::FeedValue }),
        "{error}"
    );
    assert!(error.to_string().ends_with("value_len_max"), "{error}");
    event.update("a", &text(1), &text(2)).unwrap();
    event.update("b", &text(1), &text(3)).unwrap();
    let error = event.update("c", &text(1), &text(1)).unwrap_err();
    assert!(matches!(error, PublishError::Full { capacity: 2 }), "{error}");
    let error = loop {
        if let Err(error) = event.record("a", &text(60)) {
            break error;
        }
    };
    assert!(matches!(error, PublishError::EventTooLong { .. }), "{error}");
    let count = event.len();
    let newest = event.commit().get();
    assert_eq!(newest, count as u64);
    let event = follower.event_timeout(TIMEOUT).unwrap().expect("an event in time");
    assert_eq!((event.updates.len(), event.sequence.get(), event.is_whole), (count, newest, true));
    let [a, b] = ["a", "b"].map(|key| follower.get(key).unwrap().expect("a value"));
    assert_eq!((a.value.len(), b.value.len(), b.meta.sequence.get()), (2, 3, 2));
    assert_eq!(a.meta.sequence.get(), newest);
}

#[test]
fn slow_subscriber_learns_what_it_lost_and_gets_the_values_of_the_keys_that_lost_records() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let mut publisher = publisher(&publishing);
        for (key, value) in [("a", 1), ("b", 2), ("c", 3)] {
            publisher.publish(key, &value, &value).unwrap();
        }
        let mut follower = subscriber(&subscribing, delivery);
        assert_eq!(event(&mut follower).updates.len(), 3);
        // More than two rings of records of a and b; the last ones of c are still there.
        for value in 100..400 {
            publisher.publish(if value % 2 == 0 { "a" } else { "b" }, &value, &value).unwrap();
        }
        for value in 4..10 {
            publisher.publish("c", &value, &value).unwrap();
        }
        let (mut lost, mut values, mut records, mut of_c) = (0, Vec::new(), 0, Vec::new());
        while of_c.last() != Some(&9) || values.is_empty() {
            match follower.update_timeout(TIMEOUT) {
                Ok(Some(FeedUpdate::Value(update))) => values.push((update.key, update.value, update.number)),
                Ok(Some(FeedUpdate::Record(update))) => {
                    records += 1;
                    of_c.extend(Some(update.record).filter(|_| update.key == "c"));
                }
                Err(ReceiveError::Lapped { count, .. }) => lost += count,
                other => panic!("{other:?}"),
            }
        }
        while let Some(FeedUpdate::Value(update)) = follower.try_update().unwrap() {
            values.push((update.key, update.value, update.number));
        }
        values.sort();
        let expected = [("a".to_owned(), Some(398), 151), ("b".to_owned(), Some(399), 151)];
        assert_eq!(values, expected, "{delivery:?}");
        assert_eq!(of_c, [4, 5, 6, 7, 8, 9], "no record of it was lost");
        assert!(lost > 50 && records < 300, "{lost} lost, {records} received");
        assert!(follower.suspects().is_empty());
        // Then records again.
        publisher.publish("a", &1, &1).unwrap();
        assert_eq!(brief(&event(&mut follower)), [("a", Some(1), 152, true)]);
    }
}

#[test]
fn subscriber_of_some_keys_receives_only_them() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let mut publisher = publisher(&publishing);
        for (key, value) in [("AAPL", 1), ("AMZN", 2), ("IBM", 3)] {
            publisher.publish(key, &value, &value).unwrap();
        }
        let mut follower = subscriber(&subscribing, delivery);
        follower.only_prefix("A");
        let values = event(&mut follower);
        assert_eq!(brief(&values), [("AAPL", Some(1), 1, false), ("AMZN", Some(2), 1, false)]);
        follower.only_keys(["AAPL", "IBM"]);
        let mut building = publisher.event();
        for (key, value) in [("AAPL", 4), ("AMZN", 5)] {
            building.update(key, &value, &value).unwrap();
        }
        building.commit();
        // The value of the key that was not received before, and the record of the other one, which ends its event.
        let mut received = Vec::new();
        while received.len() < 2 {
            let event = event(&mut follower);
            assert!(event.updates.last().unwrap().ends_event());
            let of_event = brief(&event);
            received.extend(of_event.iter().map(|(key, value, ..)| ((*key).to_owned(), *value)));
        }
        received.sort();
        assert_eq!(received, [("AAPL".to_owned(), Some(4)), ("IBM".to_owned(), Some(3))], "{delivery:?}");
        follower.only_glob("?MZ*");
        assert_eq!(brief(&event(&mut follower)), [("AMZN", Some(5), 2, false)]);
        follower.all_keys();
        let values = event(&mut follower);
        assert_eq!(brief(&values), [("AAPL", Some(4), 2, false), ("IBM", Some(3), 1, false)]);
    }
}

#[test]
fn values_that_are_no_longer_wanted_are_not_received() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publisher(&publishing);
    for key in ["a", "b", "c"] {
        publisher.publish(key, &1, &1).unwrap();
    }
    let mut follower = subscriber(&subscribing, Delivery::Pull);
    let first = follower.try_update().unwrap().expect("a value").key().clone();
    let mut others = ["a", "b", "c"].into_iter().filter(|key| *key != first);
    let other = others.next().unwrap();
    follower.only_keys([other]);
    let second = follower.try_update().unwrap().expect("a value");
    assert_eq!((second.key().as_str(), second.ends_event()), (other, true));
    assert!(follower.try_update().unwrap().is_none());
}

#[test]
fn conflated_subscriber_receives_the_newest_values_once_an_interval() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let mut publisher = publisher(&publishing);
        publisher.publish("a", &1, &1).unwrap();
        let interval = Duration::from_millis(20);
        let builder = subscribing.feed_subscriber("shm:p/f").timeout(TIMEOUT).delivery(delivery);
        let mut follower: Follower = builder.conflate(interval).open().unwrap();
        assert_eq!(brief(&event(&mut follower)), [("a", Some(1), 1, false)]);
        let began_ns = SystemClock.monotonic_ns();
        let (mut published, mut received, mut readings) = (0_u64, BTreeMap::new(), 0_u64);
        while readings < 5 {
            for key in ["a", "b"] {
                published += 1;
                publisher.publish(key, &published, &published).unwrap();
            }
            if let Some(event) = follower.try_event().unwrap() {
                readings += 1;
                assert!(event.updates.len() <= 2 && event.is_whole);
                for update in event.updates {
                    let FeedUpdate::Value(update) = update else { panic!("{update:?}") };
                    received.insert(update.key, update.value);
                }
            }
        }
        let waited_ns = SystemClock.monotonic_ns() - began_ns;
        assert!(waited_ns >= 4 * interval.as_nanos() as u64, "{waited_ns} ns");
        published += 1;
        publisher.publish("c", &published, &published).unwrap();
        drop(publisher);
        let end = loop {
            match follower.update_timeout(TIMEOUT) {
                Ok(Some(FeedUpdate::Value(update))) => _ = received.insert(update.key, update.value),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, ReceiveError::Ended { .. }), "{end}");
        let expected = [("a", published - 2), ("b", published - 1), ("c", published)];
        let expected = expected.map(|(key, value)| (key.to_owned(), Some(value)));
        assert_eq!(received, BTreeMap::from(expected), "{delivery:?}");
        assert!(follower.stats().conflated > 0);
    }
}

#[test]
fn values_of_a_reading_with_a_damaged_one_are_not_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publisher(&publishing);
    for key in ["a", "b", "c"] {
        publisher.publish(key, &1, &1).unwrap();
    }
    publisher.damage("b");
    let builder = subscribing.feed_subscriber("shm:p/f").timeout(TIMEOUT);
    let mut follower: Follower = builder.conflate(Duration::from_millis(1)).open().unwrap();
    let (mut keys, mut failures) = (Vec::new(), 0);
    while keys.len() < 2 || failures == 0 {
        match follower.try_event() {
            Ok(None) => {}
            Ok(Some(event)) => {
                assert!(!event.is_whole, "{event:?}");
                keys.extend(event.updates.iter().map(|update| update.key().clone()));
            }
            Err(ReceiveError::Damaged { .. }) => failures += 1,
            Err(error) => panic!("{error}"),
        }
    }
    keys.sort();
    assert_eq!((keys, failures), (vec!["a".to_owned(), "c".to_owned()], 1));
    publisher.publish("b", &2, &2).unwrap();
    let next = event(&mut follower);
    assert_eq!((brief(&next), next.is_whole), (vec![("b", Some(2), 2, false)], true));
}

#[test]
fn errors_of_a_feed_name_the_settings_of_its_builder() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let builder = || node.feed_publisher::<String, u64, u64>("f");
    let refused =
        |builder: FeedPublisherBuilder<'_, String, u64, u64>| builder.open().unwrap_err().to_string();
    for (builder, setting) in [
        (builder().value_len_max(10), "value_len_max of 10"),
        (builder().value_len_max(40).key_len_max(64), "value_len_max of 40"),
        (builder().record_len_max(10), "record_len_max of 10"),
        (builder().key_len_max(0), "key_len_max of 0"),
    ] {
        let told = refused(builder);
        assert!(told.contains(setting) && !told.contains("payload"), "{told}");
    }
    builder().record_len_max(10 + 8 + 8).value_len_max(8 + 1 + 8).key_len_max(8).open().unwrap();
}

#[test]
fn topics_that_are_not_one_feed_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let open = |name: &str| {
        let builder = subscribing.feed_subscriber::<String, u64, u64>(format!("shm:p/{name}").as_str());
        builder.timeout(TIMEOUT).open().unwrap_err()
    };
    let _log = publishing.log_publisher::<u64>("log").open().unwrap();
    let error = open("log");
    assert!(
        matches!(error, SubscriberError::Refused { reason: RefuseReason::SchemaMismatch, .. }),
        "{error}"
    );
    let told = ErrorChain(&error).to_string();
    assert!(told.contains("a log and not a feed") && told.contains("Node::log_subscriber"), "{told}");
    let _state = publishing.state_publisher::<u64>("state").open().unwrap();
    let told = ErrorChain(&open("state")).to_string();
    assert!(told.contains("a state and not a feed"), "{told}");
    let error = open("nothing");
    assert!(matches!(error, SubscriberError::Refused { reason: RefuseReason::NoSuchTopic, .. }), "{error}");

    let one = publishing.feed_publisher::<String, u64, u64>("one").open().unwrap();
    let error = publishing.feed_publisher::<String, u64, u64>("one").open().unwrap_err();
    assert!(matches!(&error, PublisherError::TopicTaken { topic } if topic.as_str() == "one"), "{error}");
    let _table = publishing.table_publisher::<String, u64>("two/table").open().unwrap();
    let error = publishing.feed_publisher::<String, u64, u64>("two").open().unwrap_err();
    assert!(
        matches!(&error, PublisherError::TopicTaken { topic } if topic.as_str() == "two/table"),
        "{error}"
    );
    let error = publishing.feed_publisher::<String, u64, u64>("not a name").open().unwrap_err();
    assert_eq!(error.to_string(), "not a name".parse::<crate::id::TopicName>().unwrap_err().to_string());
    // The log of a feed is not a table.
    let error = subscribing.table_subscriber::<String, u64>("shm:p/one").open().unwrap_err();
    let told = ErrorChain(&error).to_string();
    assert!(told.contains("one/table") && told.contains("Node::feed_subscriber"), "{told}");
    drop(one);
    // Not of one publisher.
    let _log = publishing.log_publisher::<FeedRecord<String, u64>>("one").open().unwrap();
    let _table = publishing.table_publisher::<String, u64>("one/table").open().unwrap();
    let error = open("one");
    assert!(matches!(error, SubscriberError::Unfit { source: GrantError::Incarnation, .. }), "{error}");
}

/// A publisher is dropped and opened again while subscribers open: each has log and table of one incarnation.
#[test]
fn subscriber_that_opens_while_the_publisher_is_replaced_has_one_incarnation() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let replacing = std::thread::spawn(move || {
        for round in 1..=200_u64 {
            let mut publisher = publisher(&publishing);
            publisher.publish("round", &round, &round).unwrap();
        }
        publisher(&publishing)
    });
    let mut opened = 0;
    while !replacing.is_finished() || opened == 0 {
        let builder = subscribing.feed_subscriber::<String, u64, u64>("shm:p/f").timeout(TIMEOUT);
        match builder.open() {
            Ok(mut follower) => {
                opened += 1;
                // The value or the record of one round, then the end.
                let mut rounds = Vec::new();
                let end = loop {
                    match follower.update_timeout(Duration::from_millis(20)) {
                        Ok(None) => break None,
                        Ok(Some(FeedUpdate::Value(update))) => rounds.extend(update.value),
                        Ok(Some(FeedUpdate::Record(update))) => rounds.push(update.record),
                        Err(error) => break Some(error),
                    }
                };
                let is_end =
                    matches!(end, None | Some(ReceiveError::Ended { .. } | ReceiveError::CutOff { .. }));
                assert!(is_end && rounds.len() <= 1, "{rounds:?} {end:?}");
            }
            Err(SubscriberError::Refused { .. } | SubscriberError::Unfit { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    drop(replacing.join().unwrap());
}
