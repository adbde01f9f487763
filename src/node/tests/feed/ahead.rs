//! Feeds whose table seems to be ahead of its log.

use super::*;

/// Receives one update. Returns whether there are no more.
fn receive(follower: &mut Follower, newest: &mut BTreeMap<String, u64>) -> bool {
    match follower.try_update() {
        Ok(Some(FeedUpdate::Value(it))) => _ = newest.insert(it.key, it.value.expect("no key is removed")),
        Ok(Some(FeedUpdate::Record(it))) => _ = newest.insert(it.key, it.record),
        Ok(None) | Err(ReceiveError::Contended { .. }) => {}
        Err(ReceiveError::Ended { .. }) => return true,
        Err(error) => panic!("{error}"),
    }
    false
}

/// The cut had the sequence of an event that there was not, and the next value of a key was taken for older than that.
#[test]
fn value_after_the_table_seemed_to_be_ahead_is_received_though_the_publisher_ends() {
    for (delivery, ahead) in BOTH.iter().flat_map(|delivery| [(*delivery, 3), (*delivery, 1 << 40)]) {
        let dir = tempfile::tempdir().unwrap();
        let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
        let mut publisher = publisher(&publishing);
        publisher.publish("x", &1, &1).unwrap();
        publisher.publish("b", &1, &1).unwrap();
        publisher.pretend(ahead);
        let (mut follower, mut newest) = (subscriber(&subscribing, delivery), BTreeMap::new());
        (0..3).for_each(|_| assert!(!receive(&mut follower, &mut newest)));
        publisher.publish("x", &2, &2).unwrap();
        drop(publisher);
        wait_until("the end", || receive(&mut follower, &mut newest));
        let expected = [("b".to_owned(), 1), ("x".to_owned(), 2)];
        assert_eq!(newest, BTreeMap::from(expected), "{delivery:?} {ahead}");
    }
}
