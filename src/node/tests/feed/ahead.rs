//! Feeds whose table seems to be ahead of its log.

use super::*;
use crate::node::simulation::strange_feeds::Strange;

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

/// A publisher whose table is ahead of its log for ever, at this address, and one that is in order, at the same node.
fn feeds_that_disagree_are_an_error(publishing: &Node, subscribing: &Node, at: &str) {
    const AHEAD: u64 = 100_000;
    let mut feed = Strange::new(publishing);
    (0..AHEAD).for_each(|value| _ = feed.table.put(&7, &value).unwrap());
    let mut last = feed.publish(7, 0, true);
    let mut neighbour = publisher(publishing);
    let targets = [format!("{at}/feed"), format!("{at}/f")];
    let mut all = BOTH.map(|delivery| {
        let builder = subscribing.feed_subscriber::<u64, u64, u64>(targets[0].as_str()).delivery(delivery);
        let follower = builder.timeout(TIMEOUT).open().unwrap();
        let builder = subscribing.feed_subscriber::<String, u64, u64>(targets[1].as_str()).delivery(delivery);
        (delivery, follower, builder.timeout(TIMEOUT).open().unwrap(), 0)
    });
    wait_until("two errors of each", || {
        last = feed.publish(7, last, true);
        for (delivery, follower, _, errors) in &mut all {
            match follower.try_update() {
                Ok(update) => assert!(update.is_none(), "{update:?}"),
                Err(ReceiveError::Contended { .. }) => *errors += 1,
                Err(error) => panic!("{delivery}: {error}"),
            }
        }
        SystemClock.pause(Duration::from_millis(10));
        all.iter().all(|(.., errors)| *errors >= 2)
    });
    // The log has not come as far.
    assert!(last < AHEAD, "{last} records");
    neighbour.publish("x", &last, &last).unwrap();
    for (.., beside, _) in &mut all {
        let mut newest = BTreeMap::new();
        wait_until("the feed that is in order", || {
            receive(beside, &mut newest);
            newest.get("x") == Some(&last)
        });
    }
}

#[test]
fn table_that_is_ahead_of_its_log_is_an_error_and_other_feeds_go_on() {
    let dir = tempfile::tempdir().unwrap();
    feeds_that_disagree_are_an_error(&node(&dir, "p"), &anonymous(&dir), "shm:p");
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device"]
fn table_that_is_ahead_of_its_log_is_an_error_over_rdma_and_other_feeds_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let at = format!("rdma://{host}:7590");
    let builder = Node::builder().name("p").unwrap().runtime_dir(dir.path()).rdma(&at).unwrap();
    feeds_that_disagree_are_an_error(&builder.insecure().open().unwrap(), &anonymous(&dir), &at);
}
