//! Publishers that hang, are gone, or refuse, and nodes and topics that are not there.

use fabricast::limits;
use rustix::process::Signal;

use crate::support::{Place, wait_until};
use crate::watch::is_stopped;

#[test]
fn a_topic_or_node_that_is_not_there_is_told() {
    let place = Place::new();
    let _node = place.node("n");
    for verb in ["info", "get", "watch"] {
        let sentence = "cannot subscribe to shm:nobody/t: no node listens at shm:nobody; `fabricast list` shows \
                        the nodes of this host";
        place.run(&[verb, "shm:nobody/t"]).assert_failure(3, sentence);
        let sentence = "cannot subscribe to shm:n/nothing: it has no such topic; `fabricast list shm:n` shows its topics";
        place.run(&[verb, "shm:n/nothing"]).assert_failure(3, sentence);
    }
}

#[test]
fn a_stopped_publisher_is_hung() {
    let place = Place::new();
    let living = place.node("living");
    let _topic = living.state_publisher::<u32>("t").open().unwrap();
    let stopped: Vec<_> =
        ["hung-1", "hung-2", "hung-3"].map(|name| place.publish(&format!("shm:{name}/t"))).into();
    for publisher in &stopped {
        publisher.signal(Signal::STOP);
        wait_until("the stop", || is_stopped(publisher.process()));
    }
    let rows = place.list(&[]);
    let states: Vec<_> =
        rows.iter().map(|row| (row["node"].as_str().unwrap(), row["state"].as_str().unwrap())).collect();
    assert_eq!(states, [("hung-1", "hung"), ("hung-2", "hung"), ("hung-3", "hung"), ("living", "live")]);
    assert!(rows[0]["topic"].is_null() && rows[3]["topic"] == "t");

    let ended = place.run(&["list", "shm:hung-1"]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.out.ends_with("hung-1  -      -     -     -         -    hung\n"), "{ended:?}");
    let sentence = "fabricast: the node at shm:hung-1 does not answer: the peer was silent for too long: ";
    assert!(ended.error.starts_with(sentence), "{ended:?}");
    let ended = place.run(&["get", "shm:hung-1/t"]);
    assert_eq!((ended.code, ended.error.lines().count()), (Some(5), 1), "{ended:?}");
    assert!(
        ended.error.ends_with("; its process hangs or is stopped, end it or let it go on\n"),
        "{ended:?}"
    );

    stopped.iter().for_each(|publisher| publisher.signal(Signal::CONT));
    wait_until("life", || place.list(&[]).iter().all(|row| row["state"] == "live"));
}

#[test]
fn a_killed_publisher_is_gone() {
    let place = Place::new();
    let publisher = place.publish("shm:p/t");
    publisher.signal(Signal::KILL);
    publisher.end();
    let rows = place.list(&[]);
    assert_eq!((rows.len(), rows[0]["state"].as_str()), (1, Some("gone")));
    let ended = place.run(&["list", "shm:p"]);
    assert_eq!((ended.code, ended.out.lines().count()), (Some(6), 2), "{ended:?}");
    let sentence = "cannot subscribe to shm:p/t: the node at shm:p is gone: its process has ended";
    place.run(&["get", "shm:p/t"]).assert_failure(6, sentence);
}

#[test]
fn a_publisher_that_refuses_is_told() {
    let place = Place::new();
    let node = place.node("p");
    let _publisher = node.state_publisher::<u8>("t").slots(2).open().unwrap();
    let subscribers = (0..limits::PUSH_SUBSCRIBERS_MAX)
        .map(|_| node.state_subscriber::<u8>("shm:p/t").push().open().unwrap())
        .collect::<Vec<_>>();
    let ended = place.run(&["watch", "shm:p/t", "--delivery", "push"]);
    ended.assert_failure(4, "cannot subscribe to shm:p/t: the topic has as many subscribers as it may");
    drop(subscribers);
}
