//! Table topics between nodes of one host.

use std::collections::BTreeMap;

use super::*;
use crate::payload::Decoded;
use crate::publisher::{LenLimit, PublishError, TablePublisher};
use crate::subscriber::{Change, GrantError, TableSubscriber};

type Map = BTreeMap<String, u64>;
type Quotes = TablePublisher<String, u64>;
type Follower = TableSubscriber<String, u64>;

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

fn subscriber(node: &Node, delivery: Delivery) -> Follower {
    let builder = node.table_subscriber::<String, u64>("shm:p/t").timeout(TIMEOUT);
    builder.delivery(delivery).open().unwrap()
}

/// Waits for the publisher's last commit: its node may be writing the landing region.
fn settle(subscriber: &mut Follower, publisher: &Quotes) {
    wait_until("the last commit", || subscriber.snapshot(TIMEOUT).unwrap().sequence == publisher.newest());
}

/// The changes up to the publisher's last commit, by key.
fn changes_of(subscriber: &mut Follower, publisher: &Quotes) -> Vec<Change<String, u64>> {
    settle(subscriber, publisher);
    changes(subscriber)
}

/// The changes available now, by key, and the end of the topic left aside.
fn changes(subscriber: &mut Follower) -> Vec<Change<String, u64>> {
    let is_end = |it: &Result<_, ReceiveError>| matches!(it, Err(ReceiveError::Ended { .. }));
    let available = subscriber.changes().filter(|it| !is_end(it));
    let mut changes: Vec<_> = available.collect::<Result<_, _>>().unwrap();
    changes.sort_by(|one, other| one.key.cmp(&other.key));
    changes
}

/// Key, value, number, replaced, and whether it is new.
fn told(subscriber: &mut Follower, publisher: &Quotes) -> Vec<(String, Option<u64>, u64, u64, bool)> {
    let changes = changes_of(subscriber, publisher).into_iter();
    changes.map(|it| (it.key, it.value, it.number, it.replaced, it.is_new)).collect()
}

/// Applies the changes available now.
fn follow(subscriber: &mut Follower, map: &mut Map) {
    for change in changes(subscriber) {
        match change.value {
            Some(value) => map.insert(change.key, value),
            None => map.remove(&change.key),
        };
    }
}

fn snapshot(subscriber: &mut Follower) -> (u64, Map) {
    let snapshot = subscriber.snapshot(TIMEOUT).unwrap();
    (snapshot.sequence.get(), snapshot.entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
}

fn put_all<'k>(publisher: &mut Quotes, entries: impl IntoIterator<Item = &'k (&'k str, u64)>) -> u64 {
    publisher.put_batch(entries.into_iter().map(|(key, value)| (*key, value))).unwrap().get()
}

#[test]
fn changed_new_and_removed_keys_are_received_by_both_deliveries() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let mut publisher: Quotes = publishing.table_publisher("t").capacity(3).open().unwrap();
        assert_eq!(put_all(&mut publisher, &[("a", 1), ("b", 2)]), 1);
        let mut subscriber = subscriber(&subscribing, delivery);
        assert_eq!(subscriber.newest_at_start().get(), 1);
        let key =
            |key: &str, value, number, replaced, is_new| (key.to_owned(), value, number, replaced, is_new);
        let expected = [key("a", Some(1), 1, 0, true), key("b", Some(2), 1, 0, true)];
        assert_eq!(told(&mut subscriber, &publisher), expected, "{delivery:?}");
        assert_eq!(told(&mut subscriber, &publisher), []);
        for value in 10..15 {
            publisher.put("a", &value).unwrap();
        }
        publisher.put("c", &3).unwrap();
        assert_eq!(
            told(&mut subscriber, &publisher),
            [key("a", Some(14), 6, 4, false), key("c", Some(3), 1, 0, true)]
        );
        assert_eq!(publisher.remove("b").unwrap().map(Sequence::get), Some(8));
        assert_eq!(publisher.remove("b").unwrap(), None);
        assert_eq!(told(&mut subscriber, &publisher), [key("b", None, 2, 0, false)]);
        // Its cell gets another key, and that one is gone before it is received.
        publisher.put("d", &4).unwrap();
        publisher.remove("d").unwrap();
        publisher.put("b", &5).unwrap();
        assert_eq!(told(&mut subscriber, &publisher), [key("b", Some(5), 1, 0, true)]);
        let mut keys = subscriber.keys();
        keys.sort();
        assert_eq!((keys, subscriber.suspects()), (["a", "b", "c"].map(str::to_owned).into(), vec![]));
        let stats = subscriber.stats();
        assert_eq!((stats.received, stats.conflated, stats.rejected), (6, 4, 0));
    }
}

#[test]
fn lookups_and_snapshots_do_not_use_up_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let mut publisher: Quotes = publishing.table_publisher("t").open().unwrap();
        let mut subscriber = subscriber(&subscribing, delivery);
        assert_eq!(snapshot(&mut subscriber), (0, Map::new()));
        assert!(subscriber.get("a").unwrap().is_none());
        put_all(&mut publisher, &[("a", 1), ("b", 2)]);
        publisher.put("a", &3).unwrap();
        settle(&mut subscriber, &publisher);
        let found = subscriber.get("a").unwrap().expect("the table has the key");
        assert_eq!((found.value, found.meta.sequence.get(), found.meta.epoch), (3, 2, publisher.epoch()));
        let expected = Map::from([("a".to_owned(), 3), ("b".to_owned(), 2)]);
        assert_eq!(snapshot(&mut subscriber), (2, expected));
        publisher.remove("b").unwrap();
        settle(&mut subscriber, &publisher);
        assert!(subscriber.get("b").unwrap().is_none());
        // What is staged is invisible.
        publisher.stage("c", &7).unwrap();
        assert_eq!((subscriber.get("c").unwrap(), publisher.len()), (None, 2));
        assert_eq!(snapshot(&mut subscriber), (3, Map::from([("a".to_owned(), 3)])));
        assert_eq!(changes(&mut subscriber).len(), 1);
        publisher.commit();
        settle(&mut subscriber, &publisher);
        assert_eq!(subscriber.get("c").unwrap().map(|found| found.value), Some(7));
        assert_eq!(changes(&mut subscriber).len(), 1);
    }
}

#[test]
fn only_the_keys_of_interest_are_received() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let mut publisher: Quotes = publishing.table_publisher("t").open().unwrap();
        let all = ["AAC+", "AAPL", "BRK.A", "BRK.B", "IBM", "Ö*"];
        let mut subscriber = subscriber(&subscribing, delivery);
        let keys = |subscriber: &mut Follower, publisher: &Quotes| -> Vec<String> {
            changes_of(subscriber, publisher).into_iter().map(|change| change.key).collect()
        };
        let put = |publisher: &mut Quotes| put_all(publisher, &all.map(|key| (key, 1)));
        subscriber.only_keys(["IBM", "BRK.B", "none"]);
        put(&mut publisher);
        assert_eq!(keys(&mut subscriber, &publisher), ["BRK.B", "IBM"]);
        assert_eq!(snapshot(&mut subscriber).1.len(), 2);
        subscriber.only_prefix("AA");
        assert_eq!(keys(&mut subscriber, &publisher), ["AAC+", "AAPL"], "at once");
        put(&mut publisher);
        assert_eq!(keys(&mut subscriber, &publisher), ["AAC+", "AAPL"]);
        for (pattern, expected) in [
            ("BRK.?", &["BRK.A", "BRK.B"][..]),
            ("*+", &["AAC+"]),
            ("*", &all),
            ("?*B*", &["BRK.B", "IBM"]),
            ("Ö?", &["Ö*"]),
            ("", &[]),
        ] {
            subscriber.only_glob(pattern);
            drop(keys(&mut subscriber, &publisher));
            put(&mut publisher);
            assert_eq!(keys(&mut subscriber, &publisher), expected, "{pattern:?}");
        }
        // A lookup needs no interest.
        assert_eq!(subscriber.get("IBM").unwrap().map(|found| found.value), Some(1));
        subscriber.all_keys();
        assert_eq!(keys(&mut subscriber, &publisher), all);
        let mut known = subscriber.keys();
        known.sort();
        assert_eq!(known, all);
    }
}

#[test]
fn last_commit_is_received_before_the_end_of_the_topic() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in BOTH {
        let mut publisher: Quotes = publishing.table_publisher("t").open().unwrap();
        let mut subscriber = subscriber(&subscribing, delivery);
        let first = publisher.epoch();
        publisher.put("a", &1).unwrap();
        publisher.remove("a").unwrap();
        publisher.put("b", &2).unwrap();
        // Dropping the publisher commits this.
        publisher.stage("c", &3).unwrap();
        drop(publisher);
        let mut map = Map::new();
        let error = loop {
            match subscriber.receive_timeout(TIMEOUT) {
                Ok(sample) => {
                    let (key, value) = sample.expect("a change, or the end").value;
                    map.insert(key, value.expect("no key was received before it was removed"));
                }
                Err(error) => break error,
            }
        };
        assert_eq!(map, Map::from([("b".to_owned(), 2), ("c".to_owned(), 3)]));
        assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 4), "{error}");
        // The next incarnation begins with an empty table.
        let publisher: Quotes = publishing.table_publisher("t").open().unwrap();
        assert_ne!(publisher.epoch(), first);
        let mut next = self::subscriber(&subscribing, delivery);
        assert_eq!((next.epoch(), snapshot(&mut next)), (publisher.epoch(), (0, Map::new())));
        assert_eq!(next.changes().count(), 0);
        assert!(matches!(subscriber.try_change(), Err(ReceiveError::Ended { .. })));
    }
}

#[test]
fn other_types_and_kinds_are_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _table: Quotes = node.table_publisher("t").open().unwrap();
    let _state = node.state_publisher::<(String, Option<u64>)>("state").open().unwrap();
    for delivery in BOTH {
        let key = node.table_subscriber::<u64, u64>("shm:p/t").delivery(delivery).open().unwrap_err();
        let value = node.table_subscriber::<String, i64>("shm:p/t").delivery(delivery).open().unwrap_err();
        for error in [key, value] {
            let mismatch = RefuseReason::SchemaMismatch;
            assert!(
                matches!(error, SubscriberError::Refused { reason, .. } if reason == mismatch),
                "{error}"
            );
            let text = ErrorChain(&error).to_string();
            assert!(text.contains("String") && text.contains("u64"), "{text}");
        }
        let builder = node.state_subscriber::<(String, Option<u64>)>("shm:p/t").delivery(delivery);
        let error = builder.open().unwrap_err();
        assert!(matches!(error, SubscriberError::Unfit { source: GrantError::Kind { .. }, .. }), "{error}");
        assert!(ErrorChain(&error).to_string().contains("Node::table_subscriber"), "{error}");
        let builder = node.table_subscriber::<String, u64>("shm:p/state").delivery(delivery);
        let error = builder.open().unwrap_err();
        assert!(ErrorChain(&error).to_string().contains("Node::state_subscriber"), "{error}");
    }
}

#[test]
fn table_without_room_for_any_key_or_value_is_refused_when_opened() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let builder = || node.table_publisher::<String, f64>("t");
    // The shortest key has 8 bytes, and a value 8 more and one between them.
    let error = builder().key_len_max(7).open().unwrap_err();
    assert!(matches!(error, PublisherError::KeyLenMin { len: 8, max: 7 }), "{error}");
    let error = builder().payload_len_max(16).open().unwrap_err();
    let limit = LenLimit::Entry;
    assert!(
        matches!(&error, PublisherError::PayloadLenMin { len: 17, max: 16, limit: of } if *of == limit),
        "{error}"
    );
    let error = builder().payload_len_max(20).key_len_max(20).open().unwrap_err();
    assert!(
        matches!(&error, PublisherError::KeyLenMax { key_len_max: 20, max: 20, limit: of } if *of == limit),
        "{error}"
    );
    assert!(error.to_string().contains("payload_len_max of 20"), "{error}");
    builder().payload_len_max(17).key_len_max(8).open().unwrap();
    // The key itself may have no bytes.
    node.table_publisher::<(), f64>("unit").key_len_max(0).open().unwrap();
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    // The length of a text takes 8 bytes.
    let builder = node.table_publisher::<String, String>("t").capacity(2).key_len_max(8 + 4);
    let mut publisher = builder.payload_len_max(64).open().unwrap();
    let text = |text: &str| text.to_owned();
    publisher.put("1234", &text("one")).unwrap();
    let error = publisher.put("12345", &text("two")).unwrap_err();
    assert!(matches!(error, PublishError::KeyTooLong { len: Some(13), max: 12 }), "{error}");
    assert!(error.to_string().contains("13") && error.to_string().contains("12"), "{error}");
    publisher.put("b", &text("two")).unwrap();
    let error = publisher.put("c", &text("three")).unwrap_err();
    assert!(matches!(error, PublishError::Full { capacity: 2 }), "{error}");
    assert!(error.to_string().contains('2'), "{error}");
    let error = publisher.put("b", &"x".repeat(64)).unwrap_err();
    assert!(matches!(error, PublishError::TooLong { len: None, max: 64, limit: LenLimit::Entry }), "{error}");
    let told = error.to_string();
    assert!(told.contains("more than 64 bytes") && told.ends_with("payload_len_max"), "{told}");
    // Longer than any payload.
    let long = "k".repeat(100);
    let error = publisher.put(&long, &text("four")).unwrap_err();
    assert!(matches!(error, PublishError::KeyTooLong { len: None, max: 12 }), "{error}");
    assert!(error.to_string().contains("more than 12 bytes"), "{error}");
    assert_eq!((publisher.contains(&long).unwrap(), publisher.remove(&long).unwrap()), (false, None));
    assert_eq!((publisher.newest().get(), publisher.len(), publisher.capacity()), (2, 2, 2));
    // The values before the failed one are published.
    let batch = [("b", text("2")), ("c", text("3")), ("1234", text("1"))];
    publisher.put_batch(batch.iter().map(|(key, value)| (*key, value))).unwrap_err();
    let mut subscriber = node.table_subscriber::<String, String>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let found = |subscriber: &mut TableSubscriber<String, String>, key: &str| {
        subscriber.get(key).unwrap().map(|found| found.value)
    };
    assert_eq!(found(&mut subscriber, "b"), Some(text("2")));
    assert_eq!(found(&mut subscriber, "1234"), Some(text("one")));
    assert_eq!([found(&mut subscriber, "c"), found(&mut subscriber, "12345")], [None, None]);
    // A removed key makes room with its commit.
    assert!(publisher.stage_removal("b").unwrap());
    assert!(matches!(publisher.stage("c", &text("3")), Err(PublishError::Full { .. })));
    publisher.commit();
    publisher.put("c", &text("3")).unwrap();
    assert!(!publisher.contains("b").unwrap() && publisher.contains("c").unwrap());
    let zero = node.table_publisher::<String, String>("zero").capacity(0).open().unwrap_err();
    assert!(matches!(zero, PublisherError::Geometry(_)), "{zero}");
}

#[test]
fn publisher_of_a_table_that_dials_reaches_the_listener() {
    let dir = tempfile::tempdir().unwrap();
    let listening = node(&dir, "l");
    for delivery in BOTH {
        let builder = listening.table_listener::<String, u64>("t").timeout(TIMEOUT).delivery(delivery);
        let listener = builder.open().unwrap();
        let publishing = anonymous(&dir);
        let mut publisher: Quotes = publishing.table_publisher("t").open().unwrap();
        publisher.put("a", &1).unwrap();
        let accepting = std::thread::spawn(move || listener.accept_timeout(TIMEOUT));
        publishing.dial_subscriber("t", "shm:l", TIMEOUT).unwrap();
        let mut subscriber = accepting.join().unwrap().unwrap().expect("a publisher that dials in time");
        assert_eq!((subscriber.delivery(), subscriber.epoch()), (delivery, publisher.epoch()));
        publisher.put("b", &2).unwrap();
        assert_eq!(changes_of(&mut subscriber, &publisher).len(), 2);
        publisher.remove("a").unwrap();
        drop(publisher);
        let removed = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a change in time");
        assert_eq!(removed.value, ("a".to_owned(), None));
        let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
        assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 3), "{error}");
    }
}

#[test]
fn subscriber_of_any_kind_decodes_keys_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher: Quotes = node.table_publisher("t").open().unwrap();
    for delivery in BOTH {
        publisher.put("a", &1).unwrap();
        let builder = node.any_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).delivery(delivery);
        let mut subscriber = builder.open().unwrap();
        assert_eq!(subscriber.kind(), Kind::Table);
        let mut next = || {
            let sample = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a change in time");
            match subscriber.schema().decode(&sample.value).unwrap() {
                Decoded::Value(value) => value.to_string(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(next(), r#"["a",1]"#);
        publisher.put("b", &2).unwrap();
        assert_eq!(next(), r#"["b",2]"#);
        publisher.remove("a").unwrap();
        assert_eq!(next(), r#"["a",null]"#);
        publisher.remove("b").unwrap();
    }
}

/// A batch of more bytes than the publisher copies with a commit: the node writes the rest.
#[test]
fn push_subscribers_of_a_large_table_converge_and_their_snapshots_are_of_one_commit() {
    const KEYS: u64 = 3000;
    const LEN: u64 = 40;
    const { assert!(KEYS * LEN * 8 > limits::TABLE_PUSH_LEN) };
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let builder = publishing.table_publisher::<u64, Vec<u64>>("t").capacity(3000).payload_len_max(512);
    let mut publisher = builder.open().unwrap();
    // Every value of a commit is that commit's number.
    let value = |number: u64| vec![number; 1 + (number % LEN) as usize];
    let mut put_all = |number: u64| {
        let (keys, value): (Vec<u64>, _) = ((0..KEYS).collect(), vec![number; LEN as usize]);
        publisher.put_batch(keys.iter().map(|key| (key, &value))).unwrap().get()
    };
    assert_eq!(put_all(1), 1);
    let open = || {
        let builder = subscribing.table_subscriber::<u64, Vec<u64>>("shm:p/t").timeout(TIMEOUT);
        builder.push().open().unwrap()
    };
    let (mut late, mut slow) = (open(), open());
    let check = |subscriber: &mut TableSubscriber<u64, Vec<u64>>, least: u64| {
        let snapshot = subscriber.snapshot(TIMEOUT).unwrap();
        let number = snapshot.sequence.get();
        let entries = snapshot.entries;
        assert!(number >= least, "commit {number}");
        assert_eq!(entries.len(), if number == 0 { 0 } else { KEYS as usize });
        assert!(entries.iter().all(|entry| entry.value == vec![number; LEN as usize]), "commit {number}");
        number
    };
    let mut last = check(&mut late, 0);
    for number in 2..=30 {
        assert_eq!(put_all(number), number);
        last = check(&mut late, last);
    }
    let mut received = BTreeMap::new();
    for subscriber in [&mut late, &mut slow] {
        received.clear();
        wait_until("the last values", || {
            for change in subscriber.changes() {
                let change = change.unwrap();
                let value = change.value.expect("no key is removed");
                assert_eq!(value, vec![value[0]; LEN as usize]);
                assert!(received.insert(change.key, value[0]) < Some(value[0]));
            }
            received.len() == KEYS as usize && received.values().all(|number| *number == 30)
        });
        assert_eq!((check(subscriber, 30), subscriber.suspects()), (30, vec![]));
    }
    // Values of any length, one at a time, with a subscriber that reads now and then.
    for number in 31..2000 {
        publisher.put(&(number * 7 % KEYS), &value(number)).unwrap();
        if number % 100 == 0 {
            late.changes().for_each(|change| {
                received.insert(change.as_ref().unwrap().key, change.unwrap().meta.sequence.get());
            });
        }
    }
    for subscriber in [&mut late, &mut slow] {
        wait_until("the last commit", || {
            subscriber.snapshot(TIMEOUT).unwrap().sequence == publisher.newest()
        });
        subscriber.changes().for_each(|change| assert!(change.is_ok()));
        for number in 31..2000 {
            let key = number * 7 % KEYS;
            assert_eq!(subscriber.get(&key).unwrap().map(|found| found.value), Some(value(number)));
        }
    }
}

#[test]
fn followers_of_a_publishing_thread_end_with_its_table() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher: Quotes = publishing.table_publisher("t").capacity(600).open().unwrap();
    let followers: Vec<_> = [Delivery::Pull, Delivery::Push, Delivery::Push]
        .map(|delivery| {
            let mut subscriber = subscriber(&subscribing, delivery);
            std::thread::spawn(move || {
                let mut map = Map::new();
                loop {
                    match subscriber.receive_timeout(TIMEOUT) {
                        Ok(None) => panic!("neither a change nor the end"),
                        Ok(Some(sample)) => match sample.value {
                            (key, Some(value)) => drop(map.insert(key, value)),
                            (key, None) => drop(map.remove(&key)),
                        },
                        Err(ReceiveError::Ended { .. }) => return map,
                        Err(error) => panic!("{error}"),
                    }
                    follow(&mut subscriber, &mut map);
                }
            })
        })
        .into();
    let mut model = Map::new();
    for number in 0..20_000_u64 {
        let key = format!("k{}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54);
        if number % 3 == 0 {
            assert_eq!(publisher.stage_removal(&key).unwrap(), model.remove(&key).is_some());
        } else if publisher.stage(&key, &number).is_ok() {
            model.insert(key, number);
        }
        if number % 5 == 0 {
            publisher.commit();
        }
    }
    drop(publisher);
    for follower in followers {
        assert_eq!(follower.join().unwrap(), model);
    }
}
