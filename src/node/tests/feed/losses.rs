//! What a subscriber of a feed knows after damaged and lost records.

use super::*;

/// A publisher of keys `x` and `b`.
fn publisher_of_two(node: &Node) -> Publisher {
    let mut publisher = publisher(node);
    publisher.publish("x", &1, &1).unwrap();
    publisher.publish("b", &1, &1).unwrap();
    publisher
}

/// Gives the cell of `x` to `w`.
fn reuse_cell(publisher: &mut Publisher) {
    let mut removal = publisher.event();
    removal.remove("x", &2).unwrap();
    removal.commit();
    publisher.publish("w", &10, &10).unwrap();
}

/// Receives until nothing comes any more: the values, with `None` for removals.
fn values(follower: &mut Follower) -> Vec<(String, Option<u64>)> {
    let (mut values, mut nothing) = (Vec::new(), 0);
    while nothing < 50 {
        match follower.try_update() {
            Ok(Some(FeedUpdate::Value(it))) => values.push((it.key, it.value)),
            Ok(Some(FeedUpdate::Record(_))) => {}
            Ok(None) => nothing += 1,
            Err(error) => assert!(!matches!(error, ReceiveError::Contended { .. }), "{error}"),
        }
    }
    values
}

fn lap(publisher: &mut Publisher) {
    for value in 0..200 {
        publisher.publish("b", &value, &value).unwrap();
    }
}

#[test]
fn repaired_value_of_a_reused_cell_is_received_by_a_subscriber_of_some_keys() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publisher_of_two(&publishing);
    let mut follower = subscriber(&subscribing, Delivery::Pull);
    follower.only_keys(["w", "b"]);
    assert_eq!(brief(&event(&mut follower)), [("b", Some(1), 1, false)]);
    reuse_cell(&mut publisher);
    assert_eq!(brief(&event(&mut follower)), [("w", Some(10), 1, true)]);
    publisher.damage("w");
    lap(&mut publisher);
    values(&mut follower);
    assert_eq!(follower.suspects(), ["w"]);
    publisher.publish("w", &11, &11).unwrap();
    assert_eq!(values(&mut follower), [("w".to_owned(), Some(11))]);
    assert!(follower.suspects().is_empty());
}

#[test]
fn damaged_value_of_a_reused_cell_is_not_a_removal() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publisher_of_two(&publishing);
    let mut follower = subscriber(&subscribing, Delivery::Pull);
    assert_eq!(event(&mut follower).updates.len(), 2);
    reuse_cell(&mut publisher);
    assert_eq!(brief(&event(&mut follower)), [("x", Some(2), 2, true)]);
    assert_eq!(brief(&event(&mut follower)), [("w", Some(10), 1, true)]);
    publisher.damage("w");
    lap(&mut publisher);
    assert!(values(&mut follower).iter().all(|(_, value)| value.is_some()));
    assert_eq!(follower.suspects(), ["w"]);
}

#[test]
fn snapshot_with_a_damaged_entry_hides_no_key_of_its_cell() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publisher_of_two(&publishing);
    let builder = subscribing.table_subscriber::<String, u64>("shm:p/f/table").timeout(TIMEOUT);
    let mut table = builder.open().unwrap();
    table.only(|key| key != "x");
    assert_eq!(table.changes().count(), 1);
    reuse_cell(&mut publisher);
    publisher.damage("w");
    assert_eq!(table.snapshot(TIMEOUT).unwrap().damaged, 1);
    publisher.publish("w", &11, &11).unwrap();
    let keys: Vec<_> = table.changes().map(|change| change.unwrap().key).collect();
    assert_eq!(keys, ["w"]);
    assert_eq!(table.snapshot(TIMEOUT).unwrap().entries.len(), 2);
}

/// Subscribes to a feed of numbers, of which 4711 cannot be decoded.
fn number_follower(node: &Node) -> FeedSubscriber<String, Number, Number> {
    node.feed_subscriber("shm:p/f").timeout(TIMEOUT).open().unwrap()
}

#[test]
fn values_after_a_lost_part_of_an_event_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.feed_publisher::<String, Number, Number>("f").open().unwrap();
    let mut follower = number_follower(&subscribing);
    assert!(follower.try_event().unwrap().is_none());
    let mut event = publisher.event();
    event.update("a", &Number(1), &Number(1)).unwrap();
    event.update("b", &Number(4711), &Number(2)).unwrap();
    event.commit();
    let first = follower.try_update().unwrap().expect("a record");
    assert!(!first.ends_event());
    follower.try_update().unwrap_err();
    let values = follower.event_timeout(TIMEOUT).unwrap().expect("values");
    assert!(values.is_whole, "{values:?}");
}

#[test]
fn key_is_suspect_if_its_last_record_before_a_known_cut_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = publishing.feed_publisher::<String, Number, Number>("f").open().unwrap();
    let mut follower = number_follower(&subscribing);
    publisher.publish("a", &Number(1), &Number(1)).unwrap();
    publisher.publish("b", &Number(1), &Number(1)).unwrap();
    assert_eq!(follower.event_timeout(TIMEOUT).unwrap().expect("values").updates.len(), 2);
    // The next receive reads the table, with all that follows.
    follower.all_keys();
    publisher.publish("b", &Number(2), &Number(2)).unwrap();
    publisher.publish("a", &Number(4711), &Number(3)).unwrap();
    for value in 4..10 {
        publisher.publish("b", &Number(value), &Number(value)).unwrap();
    }
    let (mut is_lost, mut records) = (false, 0);
    loop {
        match follower.update_timeout(TIMEOUT) {
            Ok(Some(FeedUpdate::Record(it))) if is_lost => {
                assert_eq!(follower.suspects(), ["a"], "at {it:?}");
                records += 1;
            }
            Ok(Some(FeedUpdate::Record(_))) => {}
            Ok(Some(FeedUpdate::Value(it))) => {
                assert_eq!((it.key.as_str(), is_lost, records), ("a", true, 6));
                break;
            }
            Ok(None) => panic!("no value of the key"),
            Err(error) => {
                assert!(matches!(error, ReceiveError::Decode { .. }), "{error}");
                is_lost = true;
            }
        }
    }
    assert!(follower.suspects().is_empty());
}

/// A publisher of two keys whose table seemed to be ahead, until it published again, when the subscriber joined.
fn joined_while_ahead(publishing: &Node, subscribing: &Node) -> (Publisher, Follower) {
    let mut publisher = publisher_of_two(publishing);
    publisher.pretend_everywhere(1 << 40);
    let mut follower = subscriber(subscribing, Delivery::Pull);
    assert!(values(&mut follower).is_empty());
    publisher.publish("x", &2, &2).unwrap();
    (publisher, follower)
}

/// A subscriber that waited for the log to come that far would receive nothing more.
#[test]
fn table_that_seemed_to_be_ahead_stops_nothing_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let (_publisher, mut follower) = joined_while_ahead(&publishing, &subscribing);
    let mut values = values(&mut follower);
    values.sort();
    assert_eq!(values, [("b".to_owned(), Some(1)), ("x".to_owned(), Some(2))]);
    assert!(!follower.is_recovering());
}

/// What it knows of keys is from the table that seemed to be ahead.
#[test]
fn keys_that_are_added_after_the_table_seemed_to_be_ahead_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let (mut publisher, mut follower) = joined_while_ahead(&publishing, &subscribing);
    assert_eq!(values(&mut follower).len(), 2);
    publisher.publish("z", &3, &3).unwrap();
    assert_eq!(follower.get("z").unwrap().map(|sample| sample.value), Some(3));
}
