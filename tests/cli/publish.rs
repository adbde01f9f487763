//! `pub`: lines become values.

use std::time::Duration;

use fabricast::{Node, ReceiveError};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::support::{PATIENCE, Place, wait_until};

fn reader(place: &Place) -> Node {
    Node::builder().runtime_dir(place.path()).open().unwrap()
}

#[test]
fn lines_become_values_of_type_string() {
    let place = Place::new();
    let mut publisher = place.publish("shm:me/t");
    let node = reader(&place);
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").timeout(PATIENCE).open().unwrap();
    for (index, line) in ["one", "", "  drei über  "].into_iter().enumerate() {
        publisher.write(line);
        let sample = subscriber.receive_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!((sample.value.as_str(), sample.sequence.get()), (line, index as u64 + 1));
    }
    publisher.end_input();
    assert_eq!(publisher.end().printed(), "");
    let error = subscriber.receive_timeout(PATIENCE).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 3), "{error}");
}

#[test]
fn the_last_value_lingers() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:me/t", "--kind", "state", "--linger", "600"]);
    publisher.write("still here");
    publisher.end_input();
    wait_until("the topic", || place.run(&["list", "shm:me"]).code == Some(0));
    assert_eq!(place.run(&["get", "shm:me/t", "--wait", "60"]).printed(), "\"still here\"\n");
    publisher.signal(Signal::INT);
    assert_eq!(publisher.end().printed(), "");
    assert_eq!(place.run(&["list", "shm:me"]).code, Some(3));
}

#[test]
fn a_rate_spreads_values() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:me/t", "--rate", "20"]);
    let node = reader(&place);
    wait_until("the topic", || place.run(&["list", "shm:me"]).code == Some(0));
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").timeout(PATIENCE).open().unwrap();
    let mut receive = || subscriber.receive_timeout(PATIENCE).unwrap().unwrap();
    // The first one is seen for sure; those between it and the last may be replaced before they are, on a busy machine.
    let written = clock_gettime(ClockId::Realtime);
    publisher.write("0");
    receive();
    (1..6).for_each(|number| publisher.write(&number.to_string()));
    let last = std::iter::repeat_with(receive).find(|sample| sample.sequence.get() == 6).unwrap();
    // Whenever the first one is published, the second is due 10 ms before it was written at the earliest, and each of the other
    // four 50 ms after the one before it.
    let written_ns = u64::try_from(Duration::try_from(written).unwrap().as_nanos()).unwrap();
    let elapsed_ns = last.published_ns.saturating_sub(written_ns);
    assert!(elapsed_ns >= 190_000_000, "{elapsed_ns}");
    publisher.end_input();
    publisher.end().printed();
}

#[test]
fn ctrl_c_ends_pub_quietly_and_the_topic_in_good_order() {
    let place = Place::new();
    let mut publisher = place.publish("shm:me/t");
    publisher.write("x");
    let node = reader(&place);
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").timeout(PATIENCE).open().unwrap();
    subscriber.receive_timeout(PATIENCE).unwrap().unwrap();
    publisher.signal(Signal::INT);
    assert_eq!(publisher.end().printed(), "");
    let error = subscriber.receive_timeout(PATIENCE).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { .. }), "{error}");
    assert!(place.list(&[]).is_empty());
}

#[test]
fn what_cannot_be_published_is_told() {
    let place = Place::new();
    let sentence = "this version has topics of kind state and log only: write --kind state or --kind log";
    place.run(&["pub", "shm:me/t", "--kind", "table"]).assert_failure(2, sentence);
    let sentence = "a log has a --capacity, and no --slots: leave them out, or write --kind state";
    place.run(&["pub", "shm:me/t", "--kind", "log", "--slots", "8"]).assert_failure(2, sentence);
    let sentence = "a state topic has slots, and no --capacity: leave it out, or write --kind log";
    place.run(&["pub", "shm:me/t", "--capacity", "8"]).assert_failure(2, sentence);
    let ended = place.run(&["pub", "shm:me/t", "--kind", "log", "--capacity", "99999999999999"]);
    assert_eq!((ended.code, ended.error.lines().count()), (Some(2), 1), "{ended:?}");
    let sentence = "3 slots are not possible: use a power of two from 2 to 65536";
    place.run(&["pub", "shm:me/t", "--slots", "3"]).assert_failure(2, sentence);
    let ended = place.run_with_input(&["pub", "shm:me/t", "--payload-len-max", "12"], "four\nfives\n");
    ended.assert_failure(2, "line 2 has more than 4 bytes: give a larger --payload-len-max");
    let _node = place.node("taken");
    let sentence = format!(
        "a node named taken already runs on this host (process {}); choose another name",
        std::process::id()
    );
    place.run(&["pub", "shm:taken/t"]).assert_failure(2, &sentence);
}

#[test]
fn lines_become_records_and_those_that_come_at_once_are_published_at_once() {
    let place = Place::new();
    let mut publisher = place.publish_as("log", "shm:me/t");
    let node = reader(&place);
    let mut subscriber = node.log_subscriber::<String>("shm:me/t").timeout(PATIENCE).open().unwrap();
    let lines: Vec<String> = (0..1000).map(|number| format!("line {number}")).collect();
    publisher.write(&lines.join("\n"));
    let (mut batches, mut published_ns) = (0, 0);
    for (index, line) in lines.iter().enumerate() {
        let record = subscriber.receive_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!((&record.value, record.sequence.get()), (line, index as u64 + 1));
        batches +=
            u64::from(record.published_ns != std::mem::replace(&mut published_ns, record.published_ns));
    }
    // No batch is larger than what is read ahead; the clock may not tell some of them apart.
    assert!((1..1000).contains(&batches), "{batches}");
    publisher.end_input();
    assert_eq!(publisher.end().printed(), "");
    let error = subscriber.receive_timeout(PATIENCE).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 1000), "{error}");
}

#[test]
fn what_is_before_a_line_that_is_no_value_is_published() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:me/t", "--kind", "log", "--payload-len-max", "12"]);
    wait_until("the topic", || place.run(&["list", "shm:me"]).code == Some(0));
    let node = reader(&place);
    let mut subscriber = node.log_subscriber::<String>("shm:me/t").timeout(PATIENCE).open().unwrap();
    publisher.write("four\nfives\nsix");
    assert_eq!(subscriber.receive_timeout(PATIENCE).unwrap().unwrap().value, "four");
    let sentence = "line 2 has more than 4 bytes: give a larger --payload-len-max";
    publisher.end().assert_failure(2, sentence);
    let error = subscriber.receive_timeout(PATIENCE).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 1), "{error}");
}
