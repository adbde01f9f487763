//! Publishers that hang, are gone, or refuse, and nodes and topics that are not there.

use std::time::Duration;

use fabricast::limits;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};
use rustix::process::Signal;

use crate::attempts::one_of_three;
use crate::support::{Place, Running, wait_until};
use crate::watch::is_stopped;

#[test]
fn a_topic_or_node_that_is_not_there_is_told() {
    let place = Place::new();
    let _node = place.node("n");
    for verb in ["info", "get", "watch", "tail", "hz"] {
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

/// Both processes stand still for longer than a publisher may, and then the one that watches is the first to go on.
fn stand_still(watching: &Running, publisher: &Running) {
    for process in [publisher, watching] {
        process.signal(Signal::STOP);
        wait_until("the stop", || is_stopped(process.process()));
    }
    std::thread::park_timeout(Duration::from_millis(1200));
    watching.signal(Signal::CONT);
    std::thread::park_timeout(Duration::from_millis(20));
    publisher.signal(Signal::CONT);
}

#[test]
fn a_publisher_that_stood_still_with_everything_else_is_not_hung() {
    let place = Place::new();
    let mut publisher = place.publish("shm:p/t");
    publisher.write("one");
    one_of_three(|| {
        let watch = place.start(&["watch", "shm:p/t", "--count", "2"]);
        watch.line();
        stand_still(&watch, &publisher);
        // Long enough for some looks at its heart.
        std::thread::park_timeout(Duration::from_millis(300));
        publisher.write("next");
        watch.line();
        let ended = watch.end();
        if ended.error.is_empty() { Ok(()) } else { Err(ended.error) }
    });
    one_of_three(|| {
        publisher.signal(Signal::STOP);
        wait_until("the stop", || is_stopped(publisher.process()));
        let list = place.start(&["list", "--json"]);
        // It asks meanwhile.
        std::thread::park_timeout(Duration::from_millis(300));
        stand_still(&list, &publisher);
        let line = list.line();
        list.end();
        if line.ends_with("\"live\"}") { Ok(()) } else { Err(line) }
    });
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

/// Whatever listens at a node's socket, the others are listed, and nothing that it sends is believed.
#[test]
fn a_node_that_talks_nonsense_is_told_beside_the_listing() {
    let place = Place::new();
    let (_odd, _good) = (place.node("odd"), place.node("good"));
    let path = place.path().join("odd.sock");
    std::fs::remove_file(&path).unwrap();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    std::thread::spawn(move || {
        // Closing a connection could overtake what was sent on it.
        let mut open = Vec::new();
        while let Ok(connection) = rustix::net::accept(&socket) {
            // A peer that has gone already is told nothing.
            let _ = rustix::net::send(&connection, &[0x5a; 64], SendFlags::NOSIGNAL);
            open.push(connection);
        }
    });
    let sentence = "fabricast: the node at shm:odd does not answer: a message begins with 0x5a5a5a5a: the peer does \
                    not speak this protocol\n";
    let ended = place.run(&["list", "--json"]);
    assert_eq!((ended.code, ended.error.as_str()), (Some(0), sentence));
    let row = |node| format!(r#"{{"node":"{node}","topic":null,"kind":null,"type":null,"sequence":null,"#);
    let rest = "\"age_ns\":null,\"state\":\"live\"}\n";
    assert_eq!(ended.out, format!("{}{rest}{}{rest}", row("good"), row("odd")));
    let ended = place.run(&["list", "shm:odd"]);
    assert_eq!((ended.code, ended.out.as_str(), ended.error.as_str()), (Some(3), "", sentence));
    assert_eq!(place.run(&["get", "shm:odd/t"]).code, Some(3));
}
