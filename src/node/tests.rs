//! Nodes on the shared-memory fabric, in one process: what users of the library rely on.

#![expect(
    clippy::cast_possible_truncation,
    reason = "patterns of bytes are cut on purpose, counts are small"
)]

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::chain::ErrorChain;
use crate::clock::{Clock, SystemClock};
use crate::control::{ControlError, RefuseReason};
use crate::event::{Event, EventSink};
use crate::fabric::AddressError;
use crate::id::{Delivery, Kind, Sequence};
#[cfg(feature = "verbs")]
use crate::keyring::Keyring;
use crate::payload::{Payload, Raw};
use crate::publisher::PublisherError;
use crate::subscriber::{AnySubscriber, ReceiveError, Sample, StateSubscriber, SubscriberError};

/// How long a test waits for what must come.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

impl Recorder {
    fn wait_for(&self, what: &str, found: impl Fn(&Event) -> bool) {
        wait_until(what, || self.0.lock().iter().any(&found));
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = SystemClock.monotonic_ns() + TIMEOUT.as_nanos() as u64;
    while !done() {
        assert!(SystemClock.monotonic_ns() < deadline, "waited in vain: {what}");
        SystemClock.pause(Duration::from_millis(1));
    }
}

fn node(dir: &tempfile::TempDir, name: &str) -> Node {
    Node::builder().name(name).unwrap().runtime_dir(dir.path()).open().unwrap()
}

fn anonymous(dir: &tempfile::TempDir) -> Node {
    Node::builder().runtime_dir(dir.path()).open().unwrap()
}

fn receive<T: Payload>(subscriber: &mut StateSubscriber<T>) -> Sample<T::Owned> {
    subscriber.receive_timeout(TIMEOUT).unwrap().expect("a value in time")
}

#[test]
fn both_deliveries_give_the_newest_value_to_late_joiners_and_everything_after() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let mut publisher = publishing.state_publisher::<(u64, String)>("a/b").open().unwrap();
    for number in 1..=20 {
        publisher.publish(&(number, "x".repeat(number as usize))).unwrap();
    }
    let subscribing = anonymous(&dir);
    for delivery in [Delivery::Pull, Delivery::Push] {
        let builder =
            subscribing.state_subscriber::<(u64, String)>("shm:p/a/b").timeout(TIMEOUT).delivery(delivery);
        let mut subscriber = builder.open().unwrap();
        let newest = publisher.newest();
        let first = receive(&mut subscriber);
        assert_eq!((first.meta.sequence, first.conflated, first.meta.epoch), (newest, 0, publisher.epoch()));
        for number in 100..400_u64 {
            let sequence = publisher.publish(&(number, "y".repeat(number as usize % 50))).unwrap();
            let sample = receive(&mut subscriber);
            assert_eq!((sample.value.0, sample.meta.sequence), (number, sequence));
            assert_eq!(sample.value.1.len(), number as usize % 50);
            assert!(subscriber.try_receive().unwrap().is_none());
        }
        assert_eq!(subscriber.stats().received, 301);
    }
}

#[test]
fn push_subscriber_of_an_idle_publisher_gets_the_newest_value() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.state_publisher::<u32>("t").open().unwrap();
    let mut early = node.state_subscriber::<u32>("shm:p/t").timeout(TIMEOUT).push().open().unwrap();
    assert!(early.try_receive().unwrap().is_none());
    publisher.publish(&7).unwrap();
    let mut late = node.state_subscriber::<u32>("shm:p/t").timeout(TIMEOUT).push().open().unwrap();
    assert_eq!(receive(&mut early).value, 7);
    assert_eq!(receive(&mut late).value, 7);
    assert_eq!(publisher.push_subscribers(), 2);
}

#[test]
fn node_without_a_name_cannot_listen() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Node::builder().runtime_dir(dir.path()).rdma("rdma://127.0.0.1:7471").unwrap().insecure();
    let error = builder.open().unwrap_err();
    assert!(matches!(error, NodeError::Unnamed { .. }), "{error}");
    assert!(error.to_string().contains("rdma://127.0.0.1:7471"), "{error}");
}

/// Whether or not there is an RDMA device.
#[cfg(feature = "verbs")]
#[test]
fn node_that_listens_beyond_its_host_needs_keys_or_says_that_it_has_none() {
    let keyring = Keyring::from_text(&format!("k read * {}", "ab".repeat(32))).unwrap();
    let builder = || {
        let dir = tempfile::tempdir().unwrap();
        let builder = Node::builder().name("p").unwrap().runtime_dir(dir.path());
        builder.rdma("rdma://192.0.2.1:7471").unwrap()
    };
    let error = builder().open().unwrap_err();
    let NodeError::Unprotected { address } = &error else { panic!("{error}") };
    assert_eq!(address.to_string(), "rdma://192.0.2.1:7471");
    for part in ["NodeBuilder::keys", "NodeBuilder::insecure"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = builder().keys(keyring.clone()).insecure().open().unwrap_err();
    assert!(matches!(error, NodeError::Contradiction), "{error}");
    for builder in [builder().keys(keyring), builder().insecure()] {
        // No device has that address.
        assert!(matches!(builder.open().unwrap_err(), NodeError::Fabric(_)));
    }
}

#[test]
fn notice_group_must_be_open_to_all_senders() {
    for group in [[127, 0, 0, 1], [224, 0, 0, 1], [192, 0, 2, 1], [0, 0, 0, 0], [240, 0, 0, 1]] {
        let error = Node::builder().notice_group(group.into()).unwrap_err();
        assert_eq!(error, AddressError::Group { group: group.into() });
    }
    for group in [[239, 255, 1, 2], [224, 0, 1, 0], [232, 1, 2, 3]] {
        assert!(Node::builder().notice_group(group.into()).is_ok());
    }
    let dir = tempfile::tempdir().unwrap();
    let builder = Node::builder().notice_group([239, 255, 1, 2].into()).unwrap();
    builder.name("p").unwrap().runtime_dir(dir.path()).open().unwrap();
}

/// A publish may fall between handing over a landing region and the publisher taking it.
#[test]
fn push_subscribers_that_join_during_publishing_end_with_the_last_value() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
    for _ in 0..100 {
        let subscribing = node.clone();
        let joining = std::thread::spawn(move || {
            subscribing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().open().unwrap()
        });
        let mut is_joining = true;
        while is_joining {
            is_joining = !joining.is_finished();
            publisher.publish(&(publisher.newest().get() + 1)).unwrap();
        }
        let (mut subscriber, mut last) = (joining.join().unwrap(), 0);
        wait_until("the last value", || {
            if let Some(sample) = subscriber.try_receive().unwrap() {
                assert!(
                    sample.value == sample.meta.sequence.get() && sample.value > last,
                    "{sample:?} after {last}"
                );
                last = sample.value;
            }
            last == publisher.newest().get()
        });
    }
}

#[test]
fn several_topics_and_subscribers_share_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let subscribing = anonymous(&dir);
    let topics: Vec<String> = (0..10).map(|number| format!("topic-{number}")).collect();
    let mut publishers: Vec<_> =
        topics.iter().map(|topic| publishing.state_publisher::<u64>(topic).open().unwrap()).collect();
    let mut subscribers: Vec<_> = topics
        .iter()
        .flat_map(|topic| [(topic, Delivery::Pull), (topic, Delivery::Push), (topic, Delivery::Pull)])
        .map(|(topic, delivery)| {
            let builder = subscribing.state_subscriber::<u64>(&format!("shm:p/{topic}")).timeout(TIMEOUT);
            builder.delivery(delivery).open().unwrap()
        })
        .collect();
    for (number, publisher) in publishers.iter_mut().enumerate() {
        publisher.publish(&(number as u64)).unwrap();
    }
    for (index, subscriber) in subscribers.iter_mut().enumerate() {
        assert_eq!(receive(subscriber).value, index as u64 / 3);
    }
    let directory = subscribing.directory_timeout(publishing.address().unwrap(), TIMEOUT).unwrap();
    assert_eq!(directory.topics.len(), 10);
    assert!(directory.topics.iter().all(|topic| (topic.pull_subscribers, topic.push_subscribers) == (2, 1)));
    assert_eq!(directory.topics[3].topic.as_str(), "topic-3");
    assert_eq!(
        (directory.topics[3].sequence, directory.topics[3].type_name.as_str()),
        (Sequence::new(1), "u64")
    );
    drop(subscribers);
    wait_until("subscribers to be gone", || publishers[0].pull_subscribers() == 0);
}

#[test]
fn end_of_a_topic_follows_its_last_value() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
        let subscribing = anonymous(&dir);
        let mut subscriber = subscribing
            .state_subscriber::<u64>("shm:p/t")
            .timeout(TIMEOUT)
            .delivery(delivery)
            .open()
            .unwrap();
        publisher.publish(&1).unwrap();
        publisher.publish(&2).unwrap();
        drop(publisher);
        assert_eq!(receive(&mut subscriber).value, 2);
        let error = loop {
            match subscriber.receive_timeout(TIMEOUT) {
                Ok(sample) => assert!(sample.is_none()),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 2), "{error}");
    }
}

#[test]
fn stopping_node_notifies_its_subscribers_and_frees_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    publisher.publish(&1).unwrap();
    let subscribing = anonymous(&dir);
    let mut subscriber = subscribing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    drop(publishing);
    drop(publisher);
    assert_eq!(receive(&mut subscriber).value, 1);
    // The end of the topic was sent before the connection was closed, and messages arrive in order.
    let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 1), "{error}");
    node(&dir, "p");
}

#[test]
fn refusals_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _publisher = node.state_publisher::<u64>("t").open().unwrap();
    let refused = |error: SubscriberError, expected: RefuseReason| match error {
        SubscriberError::Refused { reason, .. } => assert_eq!(reason, expected),
        error => panic!("{error}"),
    };
    let subscriber = |target| node.state_subscriber::<u64>(target).open().unwrap_err();
    refused(subscriber("shm:p/nothing"), RefuseReason::NoSuchTopic);
    let error = node.state_subscriber::<i64>("shm:p/t").open().unwrap_err();
    assert!(error.to_string().contains("u64 (bincode)"), "{error}");
    refused(error, RefuseReason::SchemaMismatch);
    assert!(matches!(subscriber("shm:nobody/t"), SubscriberError::Unreachable { .. }));
    assert!(matches!(subscriber("rdma://host/t"), SubscriberError::Unreachable { .. }));
    assert!(matches!(subscriber("t"), SubscriberError::Address(_)));

    let taken = node.state_publisher::<u64>("t").open().unwrap_err();
    assert!(matches!(taken, PublisherError::TopicTaken { .. }), "{taken}");
    let odd = node.state_publisher::<u64>("odd").slots(3).open().unwrap_err();
    assert!(matches!(odd, PublisherError::Geometry(_)), "{odd}");
    node.state_publisher::<u64>("odd").open().unwrap();
}

#[test]
fn raw_subscriber_gets_the_bytes_and_the_schema_of_any_topic() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.state_publisher::<(u8, String)>("t").open().unwrap();
    publisher.publish(&(3, "three".to_owned())).unwrap();
    let mut subscriber = node.state_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let bytes = receive(&mut subscriber).value;
    let decoded = format!("{:?}", subscriber.schema().decode(&bytes).unwrap());
    assert!(decoded.contains("three"), "{decoded}");
}

/// Threads that shared a session once received each other's pages.
#[test]
fn threads_that_list_a_node_concurrently_each_get_all_topics() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let _publishers: Vec<_> = (0..300)
        .map(|number| publishing.state_publisher::<u8>(&format!("t{number:03}")).slots(2).open().unwrap())
        .collect();
    let subscribing = anonymous(&dir);
    let _kept = subscribing.state_subscriber::<u8>("shm:p/t000").timeout(TIMEOUT).open().unwrap();
    let address = publishing.address().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let topics = subscribing.directory_timeout(&address, TIMEOUT).unwrap().topics;
                    assert_eq!(topics.len(), 300);
                    assert!(topics.is_sorted_by(|one, other| one.topic < other.topic));
                }
            });
        }
    });
}

/// The publisher may publish its last value while an older one is copied to a landing region, and be gone before the node tends
/// it again.
#[test]
fn last_value_reaches_push_subscribers_that_have_just_joined() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let subscribing = anonymous(&dir);
    for _ in 0..40 {
        let len = 1 << 20;
        let mut publisher =
            publishing.state_publisher::<Raw>("t").payload_len_max(len).slots(4).open().unwrap();
        publisher.publish(&vec![1; len]).unwrap();
        let joining = subscribing.clone();
        let opened = std::thread::spawn(move || {
            joining.state_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).push().open()
        });
        wait_until("the subscriber", || publisher.push_subscribers() == 1 || opened.is_finished());
        publisher.publish(&vec![2; len]).unwrap();
        drop(publisher);
        // It may come too late, and be refused.
        let Ok(mut subscriber) = opened.join().unwrap() else { continue };
        let mut last = 0;
        let error = loop {
            match subscriber.receive_timeout(TIMEOUT) {
                Ok(sample) => last = sample.expect("a value, or the end").meta.sequence.get(),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 2), "{error}");
        assert_eq!(last, 2);
    }
}

#[test]
fn push_subscribers_of_a_topic_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let publisher = node.state_publisher::<u8>("t").slots(2).open().unwrap();
    let open = || node.state_subscriber::<u8>("shm:p/t").timeout(TIMEOUT).push().open();
    let subscribers: Vec<_> = (0..limits::PUSH_SUBSCRIBERS_MAX).map(|_| open().unwrap()).collect();
    let error = open().unwrap_err();
    let full = RefuseReason::TooManySubscribers;
    assert!(matches!(error, SubscriberError::Refused { reason, .. } if reason == full), "{error}");
    assert!(error.to_string().contains(&limits::PUSH_SUBSCRIBERS_MAX.to_string()), "{error}");
    drop(subscribers);
    wait_until("room", || publisher.push_subscribers() == 0);
    open().unwrap();
}

#[test]
fn region_over_the_limit_is_neither_mapped_nor_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _publisher = node.state_publisher::<Raw>("t").payload_len_max(1 << 20).open().unwrap();
    for delivery in [Delivery::Pull, Delivery::Push] {
        let builder = || node.state_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).delivery(delivery);
        let error = builder().region_len_max(1 << 20).open().unwrap_err();
        assert!(ErrorChain(&error).to_string().contains("over the limit of 1048576"), "{error}");
        builder().open().unwrap();
    }
}

#[test]
fn loan_is_published_when_committed() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.state_publisher::<Raw>("t").payload_len_max(100_000).open().unwrap();
    let mut pull = node.state_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let mut push = node.state_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).push().open().unwrap();
    let content: Vec<u8> = (0..100_000_u32).map(|index| (index * 7) as u8).collect();
    let mut loan = publisher.loan();
    assert!(loan.append(&[0; 100_001]).is_err());
    content.chunks(777).for_each(|part| loan.append(part).unwrap());
    assert_eq!(loan.commit(), Sequence::new(1));
    drop(publisher.loan());
    assert_eq!(receive(&mut pull).value, content);
    assert_eq!(receive(&mut push).value, content);
    std::io::Write::write_all(&mut publisher.loan(), &content).unwrap();
    assert_eq!(publisher.newest(), Sequence::new(1));
}

#[test]
fn events_report_attaching_and_detaching() {
    let dir = tempfile::tempdir().unwrap();
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().name("p").unwrap().runtime_dir(dir.path());
    let publishing = builder.events(Arc::<Recorder>::clone(&events)).open().unwrap();
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    publisher.publish(&5).unwrap();
    let subscribing = anonymous(&dir);
    let mut subscriber =
        subscribing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().open().unwrap();
    receive(&mut subscriber);
    drop(subscriber);
    drop(subscribing);
    events.wait_for("opened", |event| matches!(event, Event::SessionOpened { .. }));
    events.wait_for("attached", |event| matches!(event, Event::Attached { delivery: Delivery::Push, .. }));
    events.wait_for("detached", |event| matches!(event, Event::Detached { received: 1, rejected: 0, .. }));
    events.wait_for("closed", |event| matches!(event, Event::SessionClosed { orderly: true, .. }));
}

#[test]
fn lost_records_are_not_reported_as_conflated() {
    let dir = tempfile::tempdir().unwrap();
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().name("p").unwrap().runtime_dir(dir.path());
    let publishing = builder.events(Arc::<Recorder>::clone(&events)).open().unwrap();
    let mut publisher = publishing.log_publisher::<u64>("t").capacity(4096).open().unwrap();
    let mut subscriber = anonymous(&dir).log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    for number in 0..1000 {
        publisher.publish(&number).unwrap();
    }
    let error = subscriber.try_receive().unwrap_err();
    let ReceiveError::Lapped { count, .. } = error else { panic!("{error}") };
    drop(subscriber);
    let is_told =
        |event: &Event| matches!(event, Event::Detached { conflated: 0, lost, .. } if *lost == count);
    events.wait_for("detached", is_told);
}

/// To describe how the types differ, the subscriber's node requests the topic once more.
#[test]
fn subscriber_of_another_type_neither_attaches_nor_detaches() {
    let dir = tempfile::tempdir().unwrap();
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().name("p").unwrap().runtime_dir(dir.path());
    let publishing = builder.events(Arc::<Recorder>::clone(&events)).open().unwrap();
    let _publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let subscribing = anonymous(&dir);
    let error =
        subscribing.state_subscriber::<String>("shm:p/t").timeout(TIMEOUT).open().expect_err("another type");
    assert!(
        matches!(error, SubscriberError::Refused { reason: RefuseReason::SchemaMismatch, .. }),
        "{error}"
    );
    drop(subscribing);
    events.wait_for("closed", |event| matches!(event, Event::SessionClosed { orderly: true, .. }));
    let is_told = |event: &Event| matches!(event, Event::Attached { .. } | Event::Detached { .. });
    assert!(!events.0.lock().iter().any(is_told), "{:?}", events.0.lock());
}

#[test]
fn any_subscriber_attaches_once() {
    let dir = tempfile::tempdir().unwrap();
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().name("p").unwrap().runtime_dir(dir.path());
    let publishing = builder.events(Arc::<Recorder>::clone(&events)).open().unwrap();
    let mut state = publishing.state_publisher::<u64>("state").open().unwrap();
    let mut log = publishing.log_publisher::<u64>("log").open().unwrap();
    state.publish(&1).unwrap();
    log.publish_batch(&[1, 2, 3]).unwrap();
    let subscribing = anonymous(&dir);
    for delivery in [Delivery::Pull, Delivery::Push] {
        let open = |topic: &str| {
            let subscriber = subscribing.any_subscriber::<u64>(&format!("shm:p/{topic}")).timeout(TIMEOUT);
            subscriber.delivery(delivery).back(1).open().unwrap()
        };
        let (any_state, any_log) = (open("state"), open("log"));
        assert_eq!((any_state.kind(), any_log.kind()), (Kind::State, Kind::Log));
        assert_eq!((any_state.topic().as_str(), any_log.topic().as_str()), ("state", "log"));
        assert_eq!((any_state.schema().type_name(), any_log.schema().type_name()), ("u64", "u64"));
        let (AnySubscriber::State(mut any_state), AnySubscriber::Log(mut any_log)) = (any_state, any_log)
        else {
            panic!("each is what it says of its kind");
        };
        assert_eq!(any_state.receive_timeout(TIMEOUT).unwrap().expect("a value in time").value, 1);
        assert_eq!(any_log.receive_timeout(TIMEOUT).unwrap().expect("a record in time").value, 3);
    }
    drop(subscribing);
    events.wait_for("closed", |event| matches!(event, Event::SessionClosed { orderly: true, .. }));
    let events = events.0.lock();
    let attached = events.iter().filter(|event| matches!(event, Event::Attached { .. }));
    assert_eq!(attached.count(), 4, "the publisher counts each subscriber once");
}

#[test]
fn unused_session_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let _publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let subscribing = anonymous(&dir);
    for _ in 0..50 {
        drop(subscribing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().open().unwrap());
    }
    wait_until("links to be gone", || subscribing.links().all().is_empty());
}

#[test]
fn errors_read_as_sentences() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let error = node.state_subscriber::<u64>("shm:q/t").open().unwrap_err();
    let text = ErrorChain(&error).to_string();
    assert!(text.contains("shm:q/t") && text.contains("`fabricast list`"), "{text}");
    let source = ControlError::Disconnected;
    let gone = ErrorChain(&ReceiveError::Gone { source: source.clone() }).to_string();
    assert!(gone.ends_with(&source.to_string()), "{gone}");
}

mod dialling;
mod ended;
mod feed;
mod feed_lines;
mod idle;
mod iterators;
mod line_epochs;
mod lines;
mod log;
mod many;
mod notices;
mod numbering;
mod persistent;
mod persistent_feeds;
mod rested;
mod returning_lines;
mod slow;
mod table;
mod table_lines;
#[cfg(feature = "verbs")]
mod verbs_crowd;
#[cfg(feature = "verbs")]
mod verbs_dead;
#[cfg(feature = "verbs")]
mod verbs_forged;
#[cfg(feature = "verbs")]
mod verbs_hostile;
#[cfg(feature = "verbs")]
mod verbs_publishers;
#[cfg(feature = "verbs")]
mod verbs_rogues;
#[cfg(feature = "verbs")]
mod verbs_strangers;
mod views;
mod wait_set;
mod waiting_deadlines;
