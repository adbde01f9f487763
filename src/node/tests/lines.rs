//! Subscribers of several publishers of the same values.

use std::collections::BTreeMap;

use super::*;
use crate::id::Epoch;
use crate::payload::Decoded;
use crate::publisher::{FeedPublisher, LogPublisher, TablePublisher};
use crate::subscriber::{Change, FeedLines, FeedUpdate, Lines, LogSubscriber, TableSubscriber};

const LITTLE: Duration = Duration::from_millis(20);
const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

fn log(node: &Node, capacity: usize) -> LogPublisher<u64> {
    node.log_publisher("t").payload_len_max(64).capacity(capacity).epoch(epoch(7)).open().unwrap()
}

fn lines(node: &Node, delivery: Delivery) -> Lines<LogSubscriber<u64>> {
    let builder = node.log_subscriber("shm:a/t").timeout(TIMEOUT).delivery(delivery);
    builder.lines(["shm:b/t"]).gap_timeout(LITTLE).open().unwrap()
}

fn next(lines: &mut Lines<LogSubscriber<u64>>) -> u64 {
    let sample = lines.receive_timeout(TIMEOUT).unwrap().expect("a record in time");
    assert_eq!(sample.meta.sequence.get(), sample.value);
    sample.value
}

fn publish(publisher: &mut LogPublisher<u64>, until: u64) {
    while publisher.newest().get() < until {
        publisher.publish(&(publisher.newest().get() + 1)).unwrap();
    }
}

#[test]
fn log_is_received_once_of_whichever_line_is_first() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut publishers = nodes.each_ref().map(|node| log(node, 1 << 16));
        let mut lines = lines(&subscribing, delivery);
        for round in 0..30 {
            let ahead = round % 2;
            publish(&mut publishers[ahead], round as u64 * 10 + 10);
            (1..=10).for_each(|number| assert_eq!(next(&mut lines), round as u64 * 10 + number));
            publish(&mut publishers[1 - ahead], round as u64 * 10 + 10);
            assert!(lines.receive_timeout(LITTLE / 10).unwrap().is_none());
        }
        wait_until("both lines to be at the end", || {
            assert!(lines.try_receive().unwrap().is_none());
            lines.report().iter().all(|line| line.behind == 0)
        });
        let report = lines.report();
        for line in &report {
            assert!(line.is_attached && line.is_in_step && line.last.get() == 300);
            assert_eq!((line.first + line.duplicates, line.lost, line.outages), (300, 0, 0), "{line:?}");
            assert!(line.first >= 150 && line.lag.is_some(), "{line:?}");
        }
        assert_eq!((report[0].first + report[1].first, lines.missing()), (300, 0));
    }
}

#[test]
fn record_that_one_line_has_lost_is_received_of_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let (mut small, mut large) = (log(&nodes[0], 1 << 10), log(&nodes[1], 1 << 20));
    let mut lines = lines(&subscribing, Delivery::Pull);
    publish(&mut small, 1000);
    publish(&mut large, 600);
    (1..=600).for_each(|number| assert_eq!(next(&mut lines), number));
    // The rest is awaited from the line that is behind.
    assert!(lines.try_receive().unwrap().is_none());
    publish(&mut large, 1000);
    (601..=1000).for_each(|number| assert_eq!(next(&mut lines), number));
    let report = lines.report();
    assert!(report[0].lost > 800 && report[1].lost == 0, "{report:?}");
    assert_eq!(lines.missing(), 0);
}

#[test]
fn record_that_no_line_brings_is_reported_missing_once() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let (mut one, mut other) = (log(&nodes[0], 1 << 10), log(&nodes[1], 1 << 10));
        let mut lines = lines(&subscribing, delivery);
        publish(&mut one, 1000);
        publish(&mut other, if delivery == Delivery::Pull { 1000 } else { 900 });
        let (mut last, mut missing) = (0, 0);
        while last < 1000 {
            match lines.receive_timeout(TIMEOUT) {
                Ok(sample) => {
                    last += 1;
                    assert_eq!(sample.unwrap().value, last);
                }
                Err(ReceiveError::Missing { first_lost, count }) => {
                    assert_eq!(first_lost.get(), last + 1);
                    (last, missing) = (last + count, missing + count);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(missing > 500, "{missing}");
        assert_eq!((lines.missing(), lines.last().get()), (missing, 1000));
    }
}

#[test]
fn line_that_was_restarted_catches_up_and_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        // Neither exists.
        let mut lines = lines(&subscribing, delivery);
        assert!(lines.epoch().is_none() && lines.try_receive().unwrap().is_none());
        let mut node_of = ["a", "b"].map(|name| Some(node(&dir, name)));
        let mut publishers = node_of.each_ref().map(|node| node.as_ref().map(|node| log(node, 1 << 16)));
        wait_until("both lines to attach", || {
            assert!(lines.try_receive().unwrap().is_none());
            lines.report().iter().all(|line| line.is_attached)
        });
        for round in 0..6_usize {
            let newest = round as u64 * 100;
            for publisher in publishers.iter_mut().flatten() {
                publish(publisher, newest + 50);
            }
            let killed = round % 2;
            (publishers[killed], node_of[killed]) = (None, None);
            publish(publishers[1 - killed].as_mut().unwrap(), newest + 100);
            (newest + 1..=newest + 100).for_each(|number| assert_eq!(next(&mut lines), number));
            node_of[killed] = Some(node(&dir, ["a", "b"][killed]));
            let mut again = log(node_of[killed].as_ref().unwrap(), 1 << 16);
            publish(&mut again, newest + 100);
            publishers[killed] = Some(again);
            wait_until("the line to catch up", || {
                assert!(lines.try_receive().unwrap().is_none());
                let line = &lines.report()[killed];
                line.is_attached && line.last.get() == newest + 100
            });
        }
        assert_eq!(lines.missing(), 0);
        let outages: Vec<u64> = lines.report().iter().map(|line| line.outages).collect();
        assert_eq!(outages, [3, 3]);
    }
}

#[test]
fn line_of_another_epoch_is_left_out_until_no_other_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let mut old = log(&nodes[0], 1 << 16);
    let mut new = nodes[1].log_publisher::<u64>("t").epoch(epoch(8)).open().unwrap();
    let mut lines = lines(&subscribing, Delivery::Pull);
    publish(&mut old, 3);
    publish(&mut new, 2);
    let (mut noted, mut received) = (0, 0);
    while noted == 0 {
        match lines.receive_timeout(LITTLE) {
            Ok(None) => {}
            Ok(Some(sample)) => {
                received += 1;
                assert_eq!((sample.meta.epoch, sample.value), (epoch(7), received));
            }
            Err(ReceiveError::OutOfStep { line, epoch: found, expected }) => {
                assert_eq!((line.to_string().as_str(), found, expected), ("shm:b/t", epoch(8), epoch(7)));
                noted += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((noted, received, lines.epoch()), (1, 3, Some(epoch(7))));
    drop(old);
    let error = lines.receive_timeout(TIMEOUT).unwrap_err();
    let ReceiveError::Restarted { epoch: found, before, last } = error else { panic!("{error}") };
    assert_eq!((found, before, last.get()), (epoch(8), epoch(7), 3));
    assert_eq!([next(&mut lines), next(&mut lines)], [1, 2]);
}

#[test]
fn line_of_another_epoch_is_taken_up_again_once_it_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let mut one = log(&nodes[0], 1 << 16);
    let stray = nodes[1].log_publisher::<u64>("t").epoch(epoch(8)).open().unwrap();
    let mut lines = lines(&subscribing, Delivery::Pull);
    let error = lines.receive_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, ReceiveError::OutOfStep { .. }), "{error}");
    publish(&mut one, 3);
    (1..=3).for_each(|number| assert_eq!(next(&mut lines), number));
    drop(stray);
    wait_until("the loss", || {
        assert!(lines.try_receive().unwrap().is_none());
        !lines.report()[1].is_attached
    });
    let mut other = log(&nodes[1], 1 << 16);
    publish(&mut other, 4);
    assert_eq!(next(&mut lines), 4);
    assert!(lines.report()[1].is_in_step && lines.report()[1].outages == 1);
}

#[test]
fn state_is_received_of_the_line_that_is_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let open = |node: &Node| node.state_publisher::<u64>("s").epoch(epoch(3)).open().unwrap();
    let [mut one, mut other] = nodes.each_ref().map(open);
    let mut lines = subscribing.state_subscriber::<u64>("shm:a/s").lines(["shm:b/s"]).open().unwrap();
    for value in 1..=10 {
        one.publish(&value).unwrap();
    }
    assert_eq!(lines.try_receive().unwrap().map(|sample| sample.value), Some(10));
    for value in 1..=12 {
        other.publish(&value).unwrap();
    }
    let sample = lines.try_receive().unwrap().unwrap();
    assert_eq!((sample.value, sample.conflated), (12, 1));
    assert!(lines.try_receive().unwrap().is_none());
    drop((one, other, nodes));
    assert!(lines.receive_timeout(LITTLE).unwrap().is_none(), "it never ends");
    assert!(lines.report().iter().all(|line| line.has_ended || line.outages == 1));
}

fn table(node: &Node) -> TablePublisher<String, u64> {
    node.table_publisher("t").capacity(8).epoch(epoch(5)).open().unwrap()
}

/// Receives all changes there are, into a map.
fn follow(lines: &mut Lines<TableSubscriber<String, u64>>, held: &mut BTreeMap<String, u64>) -> u64 {
    let mut count = 0;
    while let Some(change) = lines.try_change().unwrap() {
        match change.value {
            Some(value) => _ = held.insert(change.key, value),
            None => _ = held.remove(&change.key).expect("a key that was received"),
        }
        count += 1;
    }
    count
}

#[test]
fn change_of_a_table_is_received_once_and_never_undone_by_a_line_behind() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let [mut one, mut other] = [&first, &second].map(table);
    let builder = subscribing.table_subscriber::<String, u64>("shm:a/t").lines(["shm:b/t"]);
    let mut lines = builder.open().unwrap();
    let mut held = BTreeMap::new();
    let steps: [(&str, Option<u64>); 6] =
        [("k", Some(1)), ("l", Some(2)), ("k", Some(3)), ("k", None), ("m", Some(5)), ("k", Some(6))];
    let apply = |publisher: &mut TablePublisher<String, u64>, step: usize| match steps[step] {
        (key, Some(value)) => _ = publisher.put(key, &value).unwrap(),
        (key, None) => _ = publisher.remove(key).unwrap(),
    };
    (0..2).for_each(|step| apply(&mut one, step));
    assert_eq!(follow(&mut lines, &mut held), 2);
    (2..5).for_each(|step| apply(&mut one, step));
    assert_eq!(follow(&mut lines, &mut held), 2);
    for step in 0..5 {
        apply(&mut other, step);
        assert_eq!(follow(&mut lines, &mut held), 0, "the line behind brings nothing new");
    }
    assert_eq!(held, BTreeMap::from([("l".to_owned(), 2), ("m".to_owned(), 5)]));
    apply(&mut other, 5);
    assert_eq!(follow(&mut lines, &mut held), 1);
    // Removed while the line is away that brought it.
    drop((other, second));
    assert_eq!(follow(&mut lines, &mut held), 0);
    assert_eq!(held.get("k"), Some(&6));
    apply(&mut one, 5);
    one.remove("k").unwrap();
    assert_eq!(follow(&mut lines, &mut held), 1);
    assert_eq!(held, BTreeMap::from([("l".to_owned(), 2), ("m".to_owned(), 5)]));
}

/// It carried the last commit of the line that is gone, and the time of the last value.
#[test]
fn removal_while_a_line_is_away_carries_the_commit_by_which_the_other_shows_it() {
    for has_later in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = [node(&dir, "a"), node(&dir, "b")];
        let subscribing = anonymous(&dir);
        let [mut one, mut other] = [&first, &second].map(table);
        let builder = subscribing.table_subscriber::<String, u64>("shm:a/t").lines(["shm:b/t"]);
        let mut lines = builder.open().unwrap();
        one.put("k", &1).unwrap();
        one.put("l", &2).unwrap();
        assert_eq!(follow(&mut lines, &mut BTreeMap::new()), 2);
        drop((one, first));
        other.put("k", &1).unwrap();
        other.put("l", &2).unwrap();
        let mut plain = subscribing.table_subscriber::<String, u64>("shm:b/t").open().unwrap();
        while plain.try_change().unwrap().is_some() {}
        other.remove("k").unwrap();
        let removed = plain.try_change().unwrap().expect("the removal, of the line alone").meta;
        let later = has_later.then(|| {
            other.put("m", &4).unwrap();
            lines.try_change().unwrap().expect("the later value").meta
        });
        let Change { key, value, meta, .. } = lines.try_change().unwrap().expect("the removal");
        assert_eq!((key.as_str(), value), ("k", None));
        match later {
            Some(later) => assert_eq!(meta, later),
            None => assert_eq!((meta.sequence.get(), meta.published_ns), (3, removed.published_ns)),
        }
        assert!(lines.try_change().unwrap().is_none());
    }
}

/// Publishes the same commit of two keys, and damages one of them.
fn put_and_damage(publisher: &mut TablePublisher<String, u64>, damaged: &str) {
    publisher.put_batch([("k", &3), ("l", &4)]).unwrap();
    publisher.damage(&crate::payload::encode_unchecked(damaged).unwrap());
}

#[test]
fn damaged_value_is_received_of_the_other_line_or_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for has_other in [true, false] {
        let nodes = [node(&dir, "a"), node(&dir, "b")];
        let [mut one, mut other] = nodes.each_ref().map(table);
        let builder = subscribing.table_subscriber::<String, u64>("shm:a/t").lines(["shm:b/t"]);
        let mut lines = builder.gap_timeout(LITTLE).open().unwrap();
        for publisher in [&mut one, &mut other] {
            publisher.put_batch([("k", &1), ("l", &2)]).unwrap();
        }
        let mut held = BTreeMap::new();
        assert_eq!(follow(&mut lines, &mut held), 2);
        put_and_damage(&mut one, "k");
        // The other line has damaged the other key, or it hangs.
        if has_other {
            put_and_damage(&mut other, "l");
        }
        let mut damaged = 0;
        let mut receive = |timeout: Duration| match lines.change_timeout(timeout) {
            Ok(change) => held.extend(change.and_then(|change| Some((change.key, change.value?)))),
            Err(ReceiveError::Damaged { sequence, .. }) => damaged += sequence.get(),
            Err(error) => panic!("{error}"),
        };
        (0..5).for_each(|_| receive(LITTLE));
        if !has_other {
            // It goes on, and its value is damaged too.
            put_and_damage(&mut other, "k");
            (0..5).for_each(|_| receive(LITTLE));
        }
        assert_eq!(damaged, if has_other { 0 } else { 2 });
        assert_eq!((held["k"], held["l"]), (if has_other { 3 } else { 1 }, 4));
    }
}

#[test]
fn keys_of_all_lines_are_those_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let builder = subscribing.table_subscriber::<String, u64>("shm:a/t").lines(["shm:b/t"]);
    let mut lines = builder.open().unwrap();
    lines.configure(|table| table.only_prefix("a"));
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let publishers = nodes.each_ref().map(|node| {
        let mut publisher = table(node);
        publisher.put_batch([("a", &1), ("ab", &2), ("b", &3)]).unwrap();
        publisher
    });
    let mut held = BTreeMap::new();
    wait_until("the keys", || {
        follow(&mut lines, &mut held);
        lines.report().iter().all(|line| line.last.get() == 1)
    });
    assert_eq!(held.keys().collect::<Vec<_>>(), ["a", "ab"]);
    lines.configure(|table| table.only_prefix("b"));
    held.clear();
    assert_eq!(follow(&mut lines, &mut held), 1);
    lines.configure(|table| table.all_keys());
    assert_eq!(follow(&mut lines, &mut held), 2);
    assert_eq!(held.len(), 3);
    assert_eq!(lines.ahead().unwrap().get("ab").unwrap().map(|sample| sample.value), Some(2));
    drop(publishers);
}

#[test]
fn feed_takes_missing_values_of_the_line_that_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let nodes = [node(&dir, "a"), node(&dir, "b")];
        let open = |node: &Node| {
            let builder = node.feed_publisher::<String, u64, u64>("f").capacity(8).log_capacity(1 << 12);
            builder.record_len_max(64).epoch(epoch(9)).open().unwrap()
        };
        let [mut one, mut other] = nodes.each_ref().map(open);
        one.publish("a", &1, &1).unwrap();
        other.publish("a", &1, &1).unwrap();
        let builder = subscribing.feed_subscriber::<String, u64, u64>("shm:a/f").delivery(delivery);
        let mut lines: FeedLines<String, u64, u64> =
            builder.timeout(TIMEOUT).lines(["shm:b/f"]).gap_timeout(LITTLE).open().unwrap();
        let mut take = |timeout| match lines.update_timeout(timeout) {
            Ok(Some(FeedUpdate::Record(it))) => Some((it.key, it.record, true)),
            Ok(Some(FeedUpdate::Value(it))) => Some((it.key, it.value.unwrap(), false)),
            Ok(None) => None,
            Err(ReceiveError::Missing { count, .. }) => Some(("missing".to_owned(), count, false)),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(take(TIMEOUT), Some(("a".to_owned(), 1, false)));
        for number in 2..=500 {
            one.publish("a", &number, &number).unwrap();
            other.publish("a", &number, &number).unwrap();
        }
        // Both have overwritten most records.
        let (mut missing, mut last) = (0, 0);
        while last < 500 {
            let (key, number, _) = take(TIMEOUT).unwrap();
            match key.as_str() {
                "missing" => missing += number,
                _ => last = number,
            }
        }
        assert!(missing > 100, "{missing}");
        drop((one, nodes));
        other.publish("a", &501, &501).unwrap_or(Sequence::NONE);
        assert!(take(LITTLE).is_none_or(|it| it == ("a".to_owned(), 501, true)));
    }
}

#[test]
fn line_found_later_may_have_more_keys_and_longer_events() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let [first, second] = [node(&dir, "a"), node(&dir, "b")];
    let open = |node: &Node, capacity, log_capacity| {
        let builder = node.feed_publisher::<u64, u64, u64>("f").capacity(capacity).log_capacity(log_capacity);
        builder.value_len_max(64).record_len_max(64).epoch(epoch(9)).open().unwrap()
    };
    let publish = |publisher: &mut FeedPublisher<u64, u64, u64>, keys: std::ops::Range<u64>| {
        let mut event = publisher.event();
        keys.for_each(|key| event.update(&key, &key, &key).unwrap());
        event.commit();
    };
    let mut small = open(&first, 2, 1 << 12);
    publish(&mut small, 0..2);
    let builder = subscribing.feed_subscriber::<u64, u64, u64>("shm:a/f").timeout(TIMEOUT);
    let mut lines = builder.lines(["shm:b/f"]).open().unwrap();
    assert_eq!(lines.event_timeout(TIMEOUT).unwrap().unwrap().updates.len(), 2);
    let mut large = open(&second, 1000, 1 << 18);
    publish(&mut large, 0..2);
    publish(&mut large, 2..1000);
    let event = lines.event_timeout(TIMEOUT).unwrap().unwrap();
    assert!(event.is_whole, "{}", event.updates.len());
    let is_record = |update: &FeedUpdate<u64, u64, u64>| matches!(update, FeedUpdate::Record(_));
    assert_eq!(event.updates.iter().filter(|update| is_record(update)).count(), 998);
}

#[test]
fn value_is_decoded_with_the_schema_of_the_line_that_brought_it() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let mut numbers = nodes[0].state_publisher::<u64>("s").epoch(epoch(3)).open().unwrap();
    let mut texts = nodes[1].state_publisher::<String>("s").epoch(epoch(3)).open().unwrap();
    let mut lines = subscribing.any_subscriber::<Raw>("shm:a/s").lines(["shm:b/s"]).open().unwrap();
    let mut next = || {
        let value = lines.try_receive_value().unwrap().map(|sample| sample.value);
        let schema = lines.current().map(|subscriber| subscriber.schema().type_name().to_owned());
        (value, lines.brought(), schema)
    };
    let number = |value: u64| Some(Decoded::Value(value.into()));
    assert_eq!(next(), (None, None, Some("u64".to_owned())));
    numbers.publish(&7).unwrap();
    assert_eq!(next(), (number(7), Some(0), Some("u64".to_owned())));
    texts.publish(&"seven".to_owned()).unwrap();
    texts.publish(&"eight".to_owned()).unwrap();
    let (value, brought, schema) = next();
    assert_eq!((value, brought), (Some(Decoded::Value("eight".into())), Some(1)));
    assert!(schema.is_some_and(|schema| schema.contains("String")));
    (8..10).for_each(|value| _ = numbers.publish(&value).unwrap());
    assert_eq!(next(), (number(9), Some(0), Some("u64".to_owned())));
}

#[test]
fn line_says_why_it_was_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let topic = subscribing.log_subscriber::<u64>("shm:a/t").lines(["shm:b/t"]).open().unwrap();
    let feed = subscribing.feed_subscriber::<u64, u64, u64>("shm:a/t").lines(["shm:b/t"]).open().unwrap();
    for place in 0..2 {
        for error in [topic.open_error(place), feed.open_error(place)] {
            let error = error.expect("an error");
            assert!(error.to_string().contains(["shm:a/t", "shm:b/t"][place]), "{error}");
        }
    }
    assert!(topic.open_error(2).is_none() && feed.open_error(2).is_none());
}

#[test]
fn last_choice_of_keys_before_a_publisher_is_found_is_the_only_one() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let chosen = Arc::new(());
    let mut lines =
        subscribing.feed_subscriber::<u64, u64, u64>("shm:a/f").lines(["shm:b/f"]).open().unwrap();
    for least in 0..100 {
        let mine = Arc::clone(&chosen);
        lines.only(move |key| (Arc::strong_count(&mine) > 0) && *key >= least);
        assert!(Arc::strong_count(&chosen) <= 3, "earlier choices are dropped");
    }
    let node = node(&dir, "b");
    let mut publisher =
        node.feed_publisher::<u64, u64, u64>("f").capacity(200).epoch(epoch(9)).open().unwrap();
    for key in [98, 99, 100] {
        publisher.publish(&key, &key, &key).unwrap();
    }
    let keys: Vec<u64> =
        (0..2).map(|_| *lines.update_timeout(TIMEOUT).unwrap().expect("a value in time").key()).collect();
    assert_eq!(keys.iter().sum::<u64>(), 199);
    assert!(lines.try_update().unwrap().is_none());
}

#[test]
fn same_line_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let others = ["shm:b/t", "shm:b/t"];
    let topic = subscribing.log_subscriber::<u64>("shm:a/t").lines(others).open().map(drop);
    let feed = subscribing.feed_subscriber::<u64, u64, u64>("shm:b/t").lines(["shm:b/t"]).open().map(drop);
    for refused in [topic, feed] {
        let error = refused.unwrap_err();
        assert!(
            matches!(&error, SubscriberError::SameLine { target } if target.topic.as_str() == "t"),
            "{error}"
        );
        assert!(error.to_string().starts_with("shm:b/t is given as two lines"), "{error}");
    }
    let many = (0..limits::LINES_MAX).map(|number| format!("shm:n{number}/t"));
    let error = subscribing.log_subscriber::<u64>("shm:a/t").lines(many).open().map(drop).unwrap_err();
    assert!(matches!(error, SubscriberError::Lines { count: 17 }), "{error}");
}
