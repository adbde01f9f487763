//! Nodes with keys: what they show, grant and accept, to whom. Over RDMA the same tests run in a machine of `tools/soft-roce`:
//!
//! ```text
//! tools/soft-roce run -- authentication --ignored --test-threads 1
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fabricast::{
    Address, Admission, ControlError, Delivery, DialError, DirectoryError, ErrorChain, Event, EventSink,
    FeedSubscriberBuilder, FeedUpdate, KeyName, Keyring, Node, NodeBuilder, Peer, PeerAddress, RdmaConnect,
    ReceiveError, RefuseReason, Right, StateSubscriber, SubscriberError, TopicName,
};

#[cfg(feature = "verbs")]
use fabricast::{FabricError, NotAdmitted};

use self::support::raw::{self, RawListener, RawPeer};
use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

const NOT_AUTHENTICATED: u16 = 38;

/// A secret of one byte, repeated.
fn secret(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

fn keyring(lines: &str) -> Keyring {
    Keyring::from_text(lines).expect("well-formed lines")
}

/// The keys of the publisher's node: one for `md` and one for publishers of `orders`.
fn publishers_keys() -> Keyring {
    keyring(&format!(
        "desk read md {}\nengine publish orders {}\nops read * {}",
        secret(1),
        secret(2),
        secret(3)
    ))
}

/// How the nodes of a test find each other.
#[derive(Clone, Copy, Debug)]
enum Medium {
    SharedMemory,
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "only these tests need a device"))]
    Rdma(RdmaConnect),
}

/// A runtime directory, and the nodes in it.
struct World {
    dir: tempfile::TempDir,
    medium: Medium,
}

impl World {
    fn new(medium: Medium) -> Self {
        Self { dir: tempfile::tempdir().expect("a directory"), medium }
    }

    fn builder(&self) -> NodeBuilder {
        let builder = Node::builder().runtime_dir(self.dir.path());
        match self.medium {
            Medium::SharedMemory => builder,
            Medium::Rdma(connect) => builder.rdma_connect(connect),
        }
    }

    /// A node that others can dial, where.
    fn listening(&self, name: &str, builder: NodeBuilder) -> (Node, Address) {
        let builder = builder.name(name).expect("a name");
        let Medium::Rdma(_) = self.medium else {
            let node = builder.open().expect("a node");
            return (node, format!("shm:{name}").parse().expect("an address"));
        };
        static NEXT: AtomicU16 = AtomicU16::new(7600);
        let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
        let address = format!("rdma://{host}:{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let node = builder.rdma(&address).expect("an address").open().expect("a node");
        (node, address.parse().expect("an address"))
    }

    /// A publisher's node with these keys and some topics, each with a value.
    fn publishing(&self, keys: Keyring) -> (Vec<fabricast::StatePublisher<u64>>, Node, Address) {
        let (node, address) = self.listening("quotes", self.builder().keys(keys));
        let mut publishers = ["md/a", "md/b", "orders/x", "mdx"]
            .map(|topic| node.state_publisher::<u64>(topic).open().expect("a topic"));
        for publisher in &mut publishers {
            publisher.publish(&7).expect("it fits");
        }
        (publishers.into(), node, address)
    }

    /// A node with these keys that dials.
    fn reading(&self, lines: &str) -> Node {
        self.builder().keys(keyring(lines)).open().expect("a node")
    }

    /// A node without keys that dials.
    fn stranger(&self) -> Node {
        self.builder().open().expect("a node")
    }
}

fn subscribe(node: &Node, address: &Address, topic: &str) -> Result<StateSubscriber<u64>, SubscriberError> {
    node.state_subscriber::<u64>(format!("{address}/{topic}").as_str()).timeout(PATIENCE).open()
}

#[track_caller]
fn is_unauthenticated(outcome: Result<StateSubscriber<u64>, SubscriberError>) {
    let Err(error) = outcome else { panic!("it was admitted") };
    let SubscriberError::Session { source, .. } = &error else { panic!("{error:?}") };
    let refused = matches!(source, ControlError::Refused { reason: RefuseReason::NotAuthenticated, text }
        if text.is_empty());
    assert!(refused, "{source:?}");
    assert!(!error.is_transient());
}

fn keys_decide_what_a_peer_finds_and_reads(medium: Medium) {
    let world = World::new(medium);
    let (_publishers, _node, address) = world.publishing(publishers_keys());
    let desk = world.reading(&format!("mine read * {}", secret(1)));
    let found = desk.directory(address.clone()).expect("it is authenticated");
    let names: Vec<_> = found.topics.iter().map(|topic| topic.topic.to_string()).collect();
    assert_eq!(names, ["md/a", "md/b"]);

    let mut subscriber = subscribe(&desk, &address, "md/a").expect("its key covers the topic");
    let sample = subscriber.receive_timeout(PATIENCE).expect("it goes on").expect("a value");
    assert_eq!(sample.value, 7);
    let peer = subscriber.peer().expect("a publisher");
    assert_eq!((peer.node.as_str(), peer.process), ("quotes", std::process::id()));
    assert_eq!(peer.key.as_ref().map(KeyName::as_str), Some("mine"));
    match (medium, peer.address) {
        (Medium::SharedMemory, PeerAddress::Local { user, .. }) => {
            assert_eq!(user, rustix::process::geteuid().as_raw());
        }
        (Medium::Rdma(_), PeerAddress::Network(ip)) => assert_eq!(Some(&*ip.to_string()), address.host()),
        other => panic!("{other:?}"),
    }
    let target = format!("{address}/md/b");
    let pushed = desk.state_subscriber::<u64>(target.as_str()).push().timeout(PATIENCE).open();
    let pushed = pushed.expect("by push, too").receive_timeout(PATIENCE).expect("it goes on");
    assert_eq!(pushed.map(|sample| sample.value), Some(7));

    // The same answer whether or not there is such a topic.
    let refusals = ["orders/x", "mdx", "nothing"].map(|topic| match subscribe(&desk, &address, topic) {
        Err(SubscriberError::Refused { reason: RefuseReason::NotPermitted, text, .. }) => text,
        other => panic!("{topic}: {other:?}"),
    });
    let [first, others @ ..] = &refusals;
    assert!(others.iter().all(|text| text == first), "{refusals:?}");
    let listed = |topic: &str| desk.subscribers(format!("{address}/{topic}").as_str());
    assert!(listed("mdx").is_err() && listed("md/a").is_ok());

    // A key for everything, and several keys.
    let ops =
        world.reading(&format!("a read * {}\nb read * {}\nc read * {}", secret(9), secret(3), secret(1)));
    assert_eq!(ops.directory(address).expect("it is authenticated").topics.len(), 4);
}

fn strangers_are_refused_and_learn_nothing(medium: Medium) {
    let world = World::new(medium);
    let (_publishers, _node, address) = world.publishing(publishers_keys());
    let wrong = format!("mine read * {}", secret(8));
    let without_right = format!("mine read * {}", secret(2));
    for node in [world.stranger(), world.reading(&wrong), world.reading(&without_right)] {
        is_unauthenticated(subscribe(&node, &address, "md/a"));
        is_unauthenticated(subscribe(&node, &address, "nothing"));
        let error = node.directory(address.clone()).expect_err("it is not authenticated");
        assert!(matches!(error, DirectoryError::Session { .. }), "{error:?}");
    }
}

fn publishers_that_dial_need_the_right_to_publish(medium: Medium) {
    let world = World::new(medium);
    let (desk, address) = world.listening("desk", world.builder().keys(publishers_keys()));
    let listener = desk.state_listener::<u64>("orders/x").timeout(PATIENCE).open().expect("a listener");
    let dial = |builder: NodeBuilder, topic: &str| {
        let node = builder.open().expect("a node");
        let mut publisher = node.state_publisher::<u64>(topic).open().expect("a topic");
        publisher.publish(&7).expect("it fits");
        let outcome = node.dial_subscriber(topic, address.clone(), PATIENCE);
        (publisher, outcome)
    };
    let with = |lines: String| world.builder().keys(keyring(&lines));
    for (builder, topic, expected) in [
        (world.builder(), "orders/x", RefuseReason::NotAuthenticated),
        (with(format!("mine publish * {}", secret(8))), "orders/x", RefuseReason::NotAuthenticated),
        // A key for reading only.
        (with(format!("mine publish * {}", secret(3))), "orders/x", RefuseReason::NotAuthenticated),
        // Whether or not something listens there.
        (with(format!("mine publish * {}", secret(2))), "md/a", RefuseReason::NotPermitted),
    ] {
        let (_publisher, outcome) = dial(builder, topic);
        let error = outcome.expect_err("it may not publish");
        assert!(matches!(&error, DialError::Refused { reason, .. } if *reason == expected), "{error:?}");
    }
    let accepting: JoinHandle<_> = std::thread::spawn(move || {
        let mut accepted = listener.accept_timeout(PATIENCE).expect("a publisher").expect("in time");
        let key = accepted.peer().and_then(|peer| peer.key.clone()).expect("a key");
        (key, accepted.receive_timeout(PATIENCE).expect("it goes on").expect("a value").value)
    });
    let (_publisher, outcome) = dial(with(format!("mine publish orders {}", secret(2))), "orders/x");
    outcome.expect("its key covers the topic");
    let (key, value) = accepting.join().expect("it accepts");
    assert_eq!((key.as_str(), value), ("engine", 7));
}

/// Writes a keyring as an operator does: to another file, which is then renamed.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    fs::write(&next, text).expect("a file");
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).expect("its mode");
    fs::rename(&next, path).expect("the same directory");
}

fn rotated_key_is_in_force_at_the_next_session(medium: Medium) {
    let world = World::new(medium);
    let path = world.dir.path().join("keys");
    let (old, new) = (format!("old read * {}", secret(1)), format!("new read * {}", secret(4)));
    replace(&path, &old);
    let (mut publishers, _node, address) = world.publishing(Keyring::open(&path).expect("a keyring"));
    let mut subscriber = subscribe(&world.reading(&old), &address, "md/a").expect("the key is in force");
    is_unauthenticated(subscribe(&world.reading(&new), &address, "md/a"));

    replace(&path, &format!("{old}\n{new}"));
    subscribe(&world.reading(&old), &address, "md/a").expect("both are in force");
    subscribe(&world.reading(&new), &address, "md/a").expect("both are in force");

    replace(&path, &new);
    is_unauthenticated(subscribe(&world.reading(&old), &address, "md/a"));
    let goes_on = subscribe(&world.reading(&new), &address, "md/a").expect("the new key is in force");
    // A session whose peer has proven a key that is left goes on; one without ends.
    let mut goes_on = goes_on;
    let error = end_of(&mut subscriber);
    assert!(matches!(error, ControlError::Refused { reason: RefuseReason::NotAuthenticated, .. }), "{error}");
    for publisher in &mut publishers {
        publisher.publish(&8).expect("it fits");
    }
    wait_for_value(&mut goes_on, 8);
}

/// Waits for the end of a subscription whose publisher counts as gone, and returns how it ended.
fn end_of(subscriber: &mut StateSubscriber<u64>) -> ControlError {
    loop {
        match subscriber.receive_timeout(PATIENCE) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the subscription goes on"),
            Err(ReceiveError::Gone { source }) => return source,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until this value is received.
fn wait_for_value(subscriber: &mut StateSubscriber<u64>, value: u64) {
    wait_until("the value", || {
        let sample = subscriber.receive_timeout(PATIENCE).expect("the subscription goes on");
        sample.is_some_and(|sample| sample.value == value)
    });
}

/// A key whose line changes loses the topics that the new one does not name.
fn narrowed_key_loses_topics(medium: Medium) {
    let world = World::new(medium);
    let path = world.dir.path().join("keys");
    replace(&path, &format!("desk read md,mdx {}", secret(1)));
    let (mut publishers, _node, address) = world.publishing(Keyring::open(&path).expect("a keyring"));
    let node = world.reading(&format!("desk read md,mdx {}", secret(1)));
    let mut kept = subscribe(&node, &address, "md/a").expect("the key is in force");
    let mut lost = subscribe(&node, &address, "mdx").expect("the key is in force");
    replace(&path, &format!("desk read md {}", secret(1)));
    assert!(matches!(end_of(&mut lost), ControlError::Revoked { topic } if topic.as_str() == "mdx"));
    for publisher in &mut publishers {
        publisher.publish(&9).expect("it fits");
    }
    wait_for_value(&mut kept, 9);
}

/// A publisher that has dialled with a key for publishing goes on while its own keyring changes elsewhere, and ends without that key.
fn change_elsewhere_ends_no_dialled_session(medium: Medium) {
    let world = World::new(medium);
    let (desk, address) = world.listening("desk", world.builder().keys(publishers_keys()));
    let listener = desk.state_listener::<u64>("orders/x").timeout(PATIENCE).open().expect("a listener");
    let path = world.dir.path().join("keys");
    let (own, other) = (format!("mine publish orders {}", secret(2)), format!("other read md {}", secret(5)));
    replace(&path, &own);
    let keyring = Keyring::open(&path).expect("a keyring");
    let node = world.builder().keys(keyring.clone()).open().expect("a node");
    let mut publisher = node.state_publisher::<u64>("orders/x").open().expect("a topic");
    let accepting: JoinHandle<_> =
        std::thread::spawn(move || listener.accept_timeout(PATIENCE).expect("a publisher").expect("in time"));
    node.dial_subscriber("orders/x", address, PATIENCE).expect("its key covers the topic");
    let mut accepted = accepting.join().expect("it accepts");
    publisher.publish(&1).expect("it fits");
    wait_for_value(&mut accepted, 1);

    replace(&path, &format!("{own}\n{other}"));
    wait_until("the new keys", || keyring.names().len() == 2);
    // A key that is removed afterwards shows that the node has looked at its sessions in between.
    publisher.publish(&2).expect("it fits");
    wait_for_value(&mut accepted, 2);
    replace(&path, &other);
    wait_until("the last keys", || keyring.names().len() == 1);
    let error = end_of(&mut accepted);
    assert!(!matches!(error, ControlError::Revoked { .. }), "{error:?}");
    assert!(
        matches!(error, ControlError::Refused { reason: RefuseReason::NotAuthenticated, .. }),
        "{error:?}"
    );
}

/// The other end has refused nothing.
fn error_names_the_node_whose_keys_were_removed(medium: Medium) {
    let world = World::new(medium);
    let (_publishers, _node, address) = world.publishing(publishers_keys());
    let path = world.dir.path().join("keys");
    let line = |byte| format!("ops read * {}", secret(byte));
    let end = || {
        replace(&path, &line(3));
        let node = world.builder().keys(Keyring::open(&path).expect("a keyring")).open().expect("a node");
        let mut subscriber = subscribe(&node, &address, "md/a").expect("the key covers it");
        wait_for_value(&mut subscriber, 7);
        replace(&path, &line(9));
        loop {
            match subscriber.receive_timeout(PATIENCE) {
                Ok(sample) => assert!(sample.is_some(), "the session ends"),
                Err(error) => break error,
            }
        }
    };
    // A machine that stands still for more than a second ends the session for that reason.
    let is_standstill = |error: &ReceiveError| ErrorChain(error).to_string().contains("stopped answering");
    let mut ends = (0..3).map(|_| end());
    let error = ends.find(|error| !is_standstill(error)).expect("the machine stands still each time");
    assert_eq!(
        error.to_string(),
        "this node does not admit the publisher any more",
        "{}",
        ErrorChain(&error)
    );
}

/// One node has two subscriptions to a topic, by pull and by push, and one to another; a second node subscribes, too.
fn revoked_subscriber_loses_its_topic_only(medium: Medium) {
    let world = World::new(medium);
    let (mut publishers, node, address) = world.publishing(publishers_keys());
    let [desk, other] = [(); 2].map(|()| world.reading(&format!("ops read * {}", secret(3))));
    let mut pulling = subscribe(&desk, &address, "md/a").expect("the key covers it");
    let pushed = desk.state_subscriber::<u64>(format!("{address}/md/a").as_str()).push().timeout(PATIENCE);
    let mut pushed = pushed.open().expect("the key covers it");
    let mut kept = subscribe(&desk, &address, "md/b").expect("the key covers it");
    let mut others = subscribe(&other, &address, "md/a").expect("the key covers it");

    let name = desk.name().clone();
    let is_desk = move |peer: &Peer| peer.node == name && peer.key.is_some();
    assert_eq!(node.revoke("md/a", is_desk.clone()).expect("the node runs"), 2);
    for publisher in &mut publishers {
        publisher.publish(&11).expect("it fits");
    }
    for subscriber in [&mut pulling, &mut pushed] {
        let mut received = Vec::new();
        let error = loop {
            match subscriber.receive_timeout(PATIENCE) {
                Ok(sample) => received.push(sample.expect("the subscription ends").value),
                Err(ReceiveError::Gone { source }) => break source,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(matches!(&error, ControlError::Revoked { topic } if topic.as_str() == "md/a"), "{error}");
        if let Medium::Rdma(_) = medium {
            assert!(!received.contains(&11), "{received:?}");
        }
    }
    wait_for_value(&mut kept, 11);
    wait_for_value(&mut others, 11);
    assert_eq!(node.revoke("md/a", is_desk).expect("the node runs"), 0);
    assert_eq!(node.revoke("md/none", |_| true).expect("the node runs"), 0);
    wait_until("one subscriber", || {
        let first = publishers.first().expect("the topics were opened");
        (first.pull_subscribers(), first.push_subscribers()) == (1, 0)
    });
    // Nothing keeps it from subscribing again: that is for keys and admission.
    let mut again = subscribe(&desk, &address, "md/a").expect("the key covers it");
    wait_for_value(&mut again, 11);
}

/// One node has a subscription to all events of a feed, one to its values, and one to its table alone.
fn revoked_subscriber_of_a_feed_loses_log_and_table(medium: Medium) {
    let world = World::new(medium);
    let (node, address) = world.listening("quotes", world.builder().keys(publishers_keys()));
    let mut publisher = node.feed_publisher::<u64, u64, u64>("md/f").open().expect("two topics");
    // Not of the feed, although it is called after it.
    let mut fellow = node.state_publisher::<u64>("md/f/tables").open().expect("a topic");
    publisher.publish(&1, &1, &10).expect("it fits");
    fellow.publish(&7).expect("it fits");
    let [desk, other] = [(); 2].map(|()| world.reading(&format!("ops read * {}", secret(3))));
    let feed = |node: &Node, delivery, interval: Option<Duration>| {
        let builder = node.feed_subscriber::<u64, u64, u64>(format!("{address}/md/f").as_str());
        let builder = builder.timeout(PATIENCE).delivery(delivery);
        interval.into_iter().fold(builder, FeedSubscriberBuilder::conflate).open().expect("its key covers it")
    };
    let conflated = Some(Duration::from_millis(1));
    let mut feeds = Vec::new();
    for delivery in [Delivery::Pull, Delivery::Push] {
        feeds.extend([feed(&desk, delivery, None), feed(&desk, delivery, conflated)]);
    }
    let table = desk.table_subscriber::<u64, u64>(format!("{address}/md/f/table").as_str());
    let mut table = table.timeout(PATIENCE).open().expect("its key covers it");
    let mut kept = subscribe(&desk, &address, "md/f/tables").expect("its key covers it");
    let mut others = feed(&other, Delivery::Pull, conflated);

    for feed in &mut feeds {
        assert!(feed.update_timeout(PATIENCE).expect("it goes on").is_some());
    }
    let name = desk.name().clone();
    let revoked = node.revoke("md/f", move |peer| peer.node == name).expect("the node runs");
    // Log and table twice, the table for two that are conflated, and the table alone.
    assert_eq!(revoked, 7);
    let is_revoked = |error: ReceiveError| {
        let ReceiveError::Gone { source: ControlError::Revoked { topic } } = &error else {
            panic!("{error:?}")
        };
        assert!(["md/f", "md/f/table"].contains(&topic.as_str()), "{topic}");
    };
    for feed in &mut feeds {
        is_revoked(loop {
            if let Err(error) =
                feed.update_timeout(PATIENCE).map(|update| update.expect("the subscription ends"))
            {
                break error;
            }
        });
    }
    is_revoked(loop {
        if let Err(error) =
            table.receive_timeout(PATIENCE).map(|update| update.expect("the subscription ends"))
        {
            break error;
        }
    });
    wait_until("one subscriber", || {
        let logs = (publisher.pull_subscribers(), publisher.push_subscribers());
        (logs, publisher.table_subscribers()) == ((0, 0), 1)
    });
    fellow.publish(&11).expect("it fits");
    wait_for_value(&mut kept, 11);
    publisher.publish(&1, &2, &20).expect("it fits");
    wait_until("the value", || {
        let update = others.try_update().expect("it goes on");
        update.is_some_and(|update| matches!(update, FeedUpdate::Value(it) if it.value == Some(20)))
    });
    // A table that no feed has is another topic.
    let _log = node.log_publisher::<u64>("md/g").open().expect("a topic");
    let alone = node.table_publisher::<u64, u64>("md/g/table").open().expect("a topic");
    let subscriber = desk.table_subscriber::<u64, u64>(format!("{address}/md/g/table").as_str());
    let _subscriber = subscriber.timeout(PATIENCE).open().expect("its key covers it");
    assert_eq!(node.revoke("md/g", |_| true).expect("the node runs"), 0);
    assert_eq!(alone.pull_subscribers(), 1);
}

/// Admits one node, and records what it is asked.
#[derive(Debug, Default)]
struct Doorkeeper(Mutex<Vec<Question>>);

/// A peer, its key, the topic, and what for.
type Question = (String, Option<String>, String, Right);

impl Admission for Doorkeeper {
    fn admit(&self, peer: &Peer, topic: &TopicName, right: Right) -> Result<(), String> {
        let key = peer.key.as_ref().map(ToString::to_string);
        self.0.lock().expect("no panic").push((peer.node.to_string(), key, topic.to_string(), right));
        assert_ne!(peer.node.as_str(), "clumsy");
        assert!(!matches!(peer.address, PeerAddress::Unknown));
        if peer.node.as_str() == "friend" { Ok(()) } else { Err("ask the desk".to_owned()) }
    }
}

fn application_refuses_peers_that_have_keys(medium: Medium) {
    let world = World::new(medium);
    let doorkeeper = Arc::new(Doorkeeper::default());
    let guarded = world.builder().keys(publishers_keys()).admission(Arc::clone(&doorkeeper) as _);
    let (node, address) = world.listening("quotes", guarded);
    let _publisher = node.state_publisher::<u64>("md/a").open().expect("a topic");
    let named = |name: &str| {
        let lines = format!("mine read,publish * {}\npublishing publish * {}", secret(1), secret(2));
        // Its own listeners are not the subject.
        let builder = Node::builder().runtime_dir(world.dir.path()).keys(keyring(&lines));
        let builder = match medium {
            Medium::SharedMemory => builder,
            Medium::Rdma(connect) => builder.rdma_connect(connect),
        };
        builder.name(name).expect("a name").open().expect("a node")
    };
    subscribe(&named("friend"), &address, "md/a").expect("the application admits it");
    for topic in ["md/a", "md/nothing"] {
        let error = subscribe(&named("foe"), &address, topic).expect_err("the application refuses it");
        let SubscriberError::Refused { reason: RefuseReason::NotPermitted, text, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(text, "ask the desk");
    }
    let error = subscribe(&named("clumsy"), &address, "md/a").expect_err("the application panics");
    assert!(error.to_string().contains("admission panicked"), "{error}");
    let foe = named("foe");
    let _orders = foe.state_publisher::<u64>("orders/x").open().expect("a topic");
    let error = foe.dial_subscriber("orders/x", address, PATIENCE).expect_err("the application refuses it");
    let DialError::Refused { reason: RefuseReason::NotPermitted, text, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(text, "ask the desk");
    let asked = doorkeeper.0.lock().expect("it can be read").clone();
    let of = |node: &str, key: &str, topic: &str, right| -> Question {
        (node.into(), Some(key.into()), topic.into(), right)
    };
    assert_eq!(asked.first(), Some(&of("friend", "desk", "md/a", Right::Read)));
    assert_eq!(asked.last(), Some(&of("foe", "engine", "orders/x", Right::Publish)));
}

macro_rules! over_every_medium {
    ($($name:ident,)*) => {
        mod shared_memory {
            $(
                #[test]
                fn $name() {
                    super::$name(super::Medium::SharedMemory);
                }
            )*
        }

        #[cfg(feature = "verbs")]
        mod verbs {
            use fabricast::RdmaConnect;
            $(
                #[test]
                #[ignore = "needs an RDMA device: tools/soft-roce run"]
                fn $name() {
                    for connect in [RdmaConnect::Manager, RdmaConnect::Tcp] {
                        super::$name(super::Medium::Rdma(connect));
                    }
                }
            )*
        }
    };
}

over_every_medium! {
    keys_decide_what_a_peer_finds_and_reads,
    strangers_are_refused_and_learn_nothing,
    publishers_that_dial_need_the_right_to_publish,
    rotated_key_is_in_force_at_the_next_session,
    narrowed_key_loses_topics,
    change_elsewhere_ends_no_dialled_session,
    error_names_the_node_whose_keys_were_removed,
    revoked_subscriber_loses_its_topic_only,
    revoked_subscriber_of_a_feed_loses_log_and_table,
    application_refuses_peers_that_have_keys,
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn node_with_keys_does_not_take_one_without_for_a_publisher_over_rdma() {
    for connect in [RdmaConnect::Manager, RdmaConnect::Tcp] {
        let world = World::new(Medium::Rdma(connect));
        let (node, address) = world.listening("quotes", world.builder().insecure());
        let _publisher = node.state_publisher::<u64>("md/a").open().expect("a topic");
        let desk = world.reading(&format!("mine read * {}", secret(1)));
        let error = subscribe(&desk, &address, "md/a").expect_err("it proves nothing");
        let SubscriberError::Session { source, .. } = &error else { panic!("{error:?}") };
        let why = fabricast::Unproven::DialledWithoutKeys;
        assert_eq!(*source, ControlError::Unauthenticated { why });
        subscribe(&world.stranger(), &address, "md/a").expect("a node without keys may");
    }
}

/// On shared memory the kernel shows the user of a dialled node.
#[test]
fn node_with_keys_reads_from_one_of_its_host_without() {
    let world = World::new(Medium::SharedMemory);
    let (node, address) = world.listening("quotes", world.builder());
    let _publisher = node.state_publisher::<u64>("md/a").open().expect("a topic");
    let subscriber = subscribe(&world.reading(&format!("mine read * {}", secret(1))), &address, "md/a");
    assert_eq!(subscriber.expect("it is of this user").peer().expect("a node").key, None);
}

#[test]
fn stranger_receives_one_refusal_without_a_reason() {
    let world = World::new(Medium::SharedMemory);
    let _world = world.publishing(publishers_keys());
    for messages in
        [vec![raw::hello(None)], vec![raw::publishing()], vec![raw::hello(None), raw::list_topics()]]
    {
        let peer = RawPeer::dial(world.dir.path(), "quotes");
        for message in messages {
            // The node may have refused by then.
            let _ = peer.try_send(&message, &[]);
        }
        let refusal = peer.receive().expect("a refusal").refusal();
        assert_eq!(refusal, (NOT_AUTHENTICATED, String::new()));
        peer.wait_closed();
    }
}

#[test]
fn each_session_has_a_challenge_of_its_own() {
    let world = World::new(Medium::SharedMemory);
    let _world = world.publishing(publishers_keys());
    let challenges = [(); 4].map(|()| {
        let peer = RawPeer::dial(world.dir.path(), "quotes");
        peer.send(&raw::challenging());
        peer.receive().expect("a hello").challenge()
    });
    for (index, challenge) in challenges.iter().enumerate() {
        assert!(challenge.iter().any(|byte| *byte != 0), "zeros");
        assert!(!challenges[..index].contains(challenge), "a challenge comes again");
    }
}

/// The messages of a recorded session begin no other one.
#[test]
fn recorded_session_cannot_be_replayed() {
    let world = World::new(Medium::SharedMemory);
    let _world = world.publishing(publishers_keys());
    let between = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(between.path(), "quotes");
    let dir = world.dir.path().to_owned();
    let recording = std::thread::spawn(move || {
        let (client, server) = (listener.accept(), RawPeer::dial(&dir, "quotes"));
        let mut recorded = Vec::new();
        // Both hellos and both proofs: the kernel shows the same user everywhere.
        for _ in 0..2 {
            let message = client.receive().expect("a message").message();
            server.send(&message);
            recorded.push(message);
            client.send(&server.receive().expect("an answer").message());
        }
        (client, server, recorded)
    });
    let lines = format!("mine read * {}", secret(1));
    let node = Node::builder().runtime_dir(between.path()).keys(keyring(&lines)).open().expect("a node");
    // The recording ends after the proofs, and with it the session.
    let subscribing = std::thread::spawn(move || {
        subscribe(&node, &"shm:quotes".parse().expect("an address"), "md/a").map(drop)
    });
    let (client, server, recorded) = recording.join().expect("a recording");
    drop((client, server));
    let _ = subscribing.join().expect("it ends");

    let peer = RawPeer::dial(world.dir.path(), "quotes");
    let [hello, proofs] = recorded.as_slice() else { panic!("{recorded:?}") };
    peer.send(hello);
    assert_eq!(peer.receive().expect("a hello").kind, raw::HELLO);
    peer.send(proofs);
    assert_eq!(peer.receive().expect("a refusal").refusal(), (NOT_AUTHENTICATED, String::new()));
    peer.wait_closed();
}

/// A node that has a key for each of its peers shows them a few with each request.
#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn node_with_many_keys_is_admitted_by_any_of_them_over_rdma() {
    for connect in [RdmaConnect::Manager, RdmaConnect::Tcp] {
        let world = World::new(Medium::Rdma(connect));
        let (_publishers, _node, address) = world.publishing(publishers_keys());
        let others: String = (10..40).map(|byte| format!("k{byte} read * {}\n", secret(byte))).collect();
        is_unauthenticated(subscribe(&world.reading(&others), &address, "md/a"));
        let many = world.reading(&format!("{others}mine read * {}", secret(1)));
        let subscriber = subscribe(&many, &address, "md/a").expect("its last key is known");
        let peer = subscriber.peer().expect("a publisher");
        assert_eq!(peer.key.as_ref().map(KeyName::as_str), Some("mine"));
    }
}

/// A stranger is turned away at its request, and both ends say so.
#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn request_of_a_stranger_is_an_event_over_rdma() {
    for connect in [RdmaConnect::Manager, RdmaConnect::Tcp] {
        let world = World::new(Medium::Rdma(connect));
        let recorder = Arc::new(Recorder::default());
        let builder = world.builder().keys(publishers_keys()).events(Arc::clone(&recorder) as _);
        let (node, address) = world.listening("quotes", builder);
        let _publisher = node.state_publisher::<u64>("md/a").open().expect("a topic");
        is_unauthenticated(subscribe(&world.stranger(), &address, "md/a"));
        let expected = format!("{} has shown no key", address.host().expect("a host"));
        let is_reported =
            |event: &Event| matches!(event, Event::PeerRejected { reason } if reason.contains(&expected));
        wait_until("the event", || recorder.0.lock().expect("no panic").iter().any(is_reported));
    }
}

/// Which hosts may connect is checked beside the keys.
#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn only_hosts_of_allowed_networks_connect_over_rdma() {
    for connect in [RdmaConnect::Manager, RdmaConnect::Tcp, RdmaConnect::TcpUnreliable] {
        let world = World::new(Medium::Rdma(connect));
        let desk = world.reading(&format!("mine read * {}", secret(1)));
        let subscribe = |address: &Address| {
            let target = format!("{address}/md/a");
            let builder = desk.state_subscriber::<u64>(target.as_str()).timeout(PATIENCE);
            if connect == RdmaConnect::TcpUnreliable { builder.push().open() } else { builder.open() }
        };
        let listening = |networks: &[&str]| {
            let builder = world.builder().keys(publishers_keys());
            let allowed = networks.iter().try_fold(builder, |builder, network| builder.allow(network));
            let (node, address) = world.listening("quotes", allowed.expect("networks"));
            let publisher = node.state_publisher::<u64>("md/a").open().expect("a topic");
            (publisher, node, address)
        };
        let (_publisher, node, address) = listening(&["192.0.2.0/24", "fd00::/8"]);
        let error = subscribe(&address).expect_err("its host is not allowed");
        let SubscriberError::Unreachable { source: FabricError::NotAdmitted(why), .. } = &error else {
            panic!("{error:?}")
        };
        let host: std::net::IpAddr = address.host().expect("a host").parse().expect("an address");
        assert_eq!(*why, NotAdmitted::Address { address: host });
        assert!(!error.is_transient());
        drop((_publisher, node));
        let (_publisher, _node, address) = listening(&["192.0.2.0/24", &host.to_string()]);
        subscribe(&address).expect("its host is allowed");
    }
}

/// Records events.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().expect("no panic").push(event.clone());
    }
}

#[test]
fn unusable_keyring_is_reported_and_the_previous_keys_stay_in_force() {
    let world = World::new(Medium::SharedMemory);
    let path = world.dir.path().join("keys");
    let lines = format!("k read * {}", secret(1));
    replace(&path, &lines);
    let recorder = Arc::new(Recorder::default());
    let builder =
        world.builder().keys(Keyring::open(&path).expect("a keyring")).events(Arc::clone(&recorder) as _);
    let (node, address) = world.listening("quotes", builder);
    let _publisher = node.state_publisher::<u64>("md/a").open().expect("a topic");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("its mode");
    for _ in 0..2 {
        subscribe(&world.reading(&lines), &address, "md/a").expect("the previous keys are in force");
    }
    let events = recorder.0.lock().expect("it can be read");
    let is_reported = |event: &&Event| matches!(event, Event::Trouble { what } if what.contains("mode 0644"));
    assert_eq!(events.iter().filter(is_reported).count(), 1, "{events:?}");
}
