//! `pub`: lines become values.

use fabricast::{Node, ReceiveError};
use rustix::process::Signal;

use crate::support::{PATIENCE, Place, wait_until};

fn reader(place: &Place) -> Node {
    Node::builder().runtime_dir(place.path()).open().unwrap()
}

#[test]
fn lines_become_values_of_type_string() {
    let place = Place::new();
    let mut publisher = place.publish("shm:me/t");
    let node = reader(&place);
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").open().unwrap();
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
    let mut publisher = place.start(&["pub", "shm:me/t", "--kind", "state", "--linger", "30"]);
    publisher.write("still here");
    publisher.end_input();
    wait_until("the topic", || place.run(&["list", "shm:me"]).code == Some(0));
    assert_eq!(place.run(&["get", "shm:me/t", "--wait", "20"]).printed(), "\"still here\"\n");
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
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").open().unwrap();
    let mut receive = || subscriber.receive_timeout(PATIENCE).unwrap().unwrap();
    // The first one is seen for sure; those between it and the last may be replaced before they are, on a busy machine.
    publisher.write("0");
    let first = receive();
    (1..5).for_each(|number| publisher.write(&number.to_string()));
    let last = std::iter::repeat_with(receive).find(|sample| sample.sequence.get() == 5).unwrap();
    let published = [first.published_ns, last.published_ns];
    assert!(published[1] - published[0] >= 150_000_000, "{published:?}");
    publisher.end_input();
    publisher.end().printed();
}

#[test]
fn ctrl_c_ends_pub_quietly_and_the_topic_in_good_order() {
    let place = Place::new();
    let mut publisher = place.publish("shm:me/t");
    publisher.write("x");
    let node = reader(&place);
    let mut subscriber = node.state_subscriber::<String>("shm:me/t").open().unwrap();
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
    for kind in ["log", "table"] {
        let sentence = "this version has topics of kind state only: write --kind state";
        place.run(&["pub", "shm:me/t", "--kind", kind]).assert_failure(2, sentence);
    }
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
