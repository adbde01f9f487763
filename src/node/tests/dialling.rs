//! Publishers that dial: both roles in one process.

use super::*;
use crate::id::Kind;
use crate::payload::Decoded;
use crate::publisher::LogPublisher;
use crate::repository::log::LogStart;
use crate::subscriber::{AttachError, GrantError};

type Value = (u64, String);
type Accepted<T> = std::thread::JoinHandle<Result<Option<StateSubscriber<T>>, SubscriberError>>;

/// Accepts the next publisher on a thread of its own: the dialling publisher waits for that.
fn accept<T: Payload>(listener: &Arc<Listener<StateSubscriber<T>>>) -> Accepted<T>
where
    Listener<StateSubscriber<T>>: Send + Sync,
{
    let listener = Arc::clone(listener);
    std::thread::spawn(move || listener.accept_timeout(TIMEOUT))
}

fn accepted<T: Payload>(accepting: Accepted<T>) -> StateSubscriber<T> {
    accepting.join().unwrap().unwrap().expect("a publisher that dials in time")
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

#[test]
fn dialling_publisher_reaches_the_subscriber_with_its_next_value() {
    let dir = tempfile::tempdir().unwrap();
    let listening = node(&dir, "l");
    for delivery in [Delivery::Pull, Delivery::Push] {
        let listener = Arc::new(
            listening.state_listener::<Value>("a/b").timeout(TIMEOUT).delivery(delivery).open().unwrap(),
        );
        assert_eq!(listener.topic().as_str(), "a/b");
        // The dialling node needs no name; it may be the listening node itself.
        for publishing in [anonymous(&dir), listening.clone()] {
            let mut publisher = publishing.state_publisher::<Value>("a/b").open().unwrap();
            let accepting = accept(&listener);
            publishing.dial_subscriber("a/b", address("shm:l"), TIMEOUT).unwrap();
            assert_eq!(publisher.pull_subscribers() + publisher.push_subscribers(), 1);
            publisher.publish(&(1, "first".to_owned())).unwrap();
            let mut subscriber = accepted(accepting);
            assert_eq!((subscriber.delivery(), subscriber.epoch()), (delivery, publisher.epoch()));
            assert_eq!(receive(&mut subscriber).value, (1, "first".to_owned()));
            for number in 2..200_u64 {
                let sequence = publisher.publish(&(number, "y".repeat(number as usize % 50))).unwrap();
                let sample = receive(&mut subscriber);
                assert_eq!((sample.value.0, sample.meta.sequence, sample.conflated), (number, sequence, 0));
            }
            drop(publisher);
            let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
            assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 199), "{error}");
            assert_eq!(subscriber.stats().received, 199);
        }
    }
}

#[test]
fn dialling_publisher_of_a_log_reaches_the_subscriber_with_its_next_record() {
    let dir = tempfile::tempdir().unwrap();
    let listening = node(&dir, "l");
    let starts = [(LogStart::Newest, 4), (LogStart::Earliest, 1), (LogStart::At(Sequence::new(2)), 2)];
    for (delivery, (start, first)) in
        [Delivery::Pull, Delivery::Push].into_iter().flat_map(|it| starts.map(|start| (it, start)))
    {
        let builder = listening.log_listener::<Value>("a/b").timeout(TIMEOUT).delivery(delivery).start(start);
        let listener = builder.notices().open().unwrap();
        assert_eq!(listener.topic().as_str(), "a/b");
        let publishing = anonymous(&dir);
        let mut publisher = publishing.log_publisher::<Value>("a/b").open().unwrap();
        let publish = |publisher: &mut LogPublisher<Value>, number: u64| {
            publisher.publish(&(number, "y".repeat(number as usize % 50))).unwrap();
        };
        (1..=3).for_each(|number| publish(&mut publisher, number));
        let accepting = std::thread::spawn(move || listener.accept_timeout(TIMEOUT));
        publishing.dial_subscriber("a/b", address("shm:l"), TIMEOUT).unwrap();
        assert_eq!(publisher.pull_subscribers() + publisher.push_subscribers(), 1);
        (4..200).for_each(|number| publish(&mut publisher, number));
        let mut subscriber = accepting.join().unwrap().unwrap().expect("a publisher that dials in time");
        assert_eq!((subscriber.delivery(), subscriber.epoch()), (delivery, publisher.epoch()));
        drop(publisher);
        for number in first..200 {
            let record = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a record");
            assert_eq!((record.value.0, record.meta.sequence.get()), (number, number));
        }
        let error = subscriber.receive_timeout(TIMEOUT).unwrap_err();
        assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 199), "{error}");
    }
}

/// A topic has one listener, for one kind.
#[test]
fn listener_of_logs_refuses_a_publisher_of_states() {
    let dir = tempfile::tempdir().unwrap();
    let (listening, publishing) = (node(&dir, "l"), anonymous(&dir));
    let listener = listening.log_listener::<u64>("t").timeout(TIMEOUT).open().unwrap();
    let error = listening.state_listener::<u64>("t").open().unwrap_err();
    assert!(matches!(error, SubscriberError::AlreadyListening { .. }), "{error}");
    let _publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let accepting = std::thread::spawn(move || listener.accept_timeout(TIMEOUT));
    let dialled = publishing.dial_subscriber("t", address("shm:l"), TIMEOUT);
    let error = accepting.join().unwrap().unwrap_err();
    let SubscriberError::Dialled { source: AttachError::Unfit(source), .. } = error else {
        panic!("{error}")
    };
    assert!(matches!(source, GrantError::Kind { .. }), "{source}");
    // For pull the publisher has sent its grant before the other end refuses it.
    assert!(matches!(dialled, Ok(()) | Err(DialError::Left { .. })), "{dialled:?}");
}

#[test]
fn publishers_that_dial_concurrently_get_a_subscriber_each() {
    let dir = tempfile::tempdir().unwrap();
    let listening = node(&dir, "l");
    let listener = Arc::new(listening.state_listener::<u64>("t").timeout(TIMEOUT).push().open().unwrap());
    let dialling: Vec<_> = (0..8_u64)
        .map(|number| {
            let publishing = anonymous(&dir);
            std::thread::spawn(move || {
                let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
                publishing.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap();
                publisher.publish(&number).unwrap();
                publisher
            })
        })
        .collect();
    let accepting: Vec<_> = (0..8).map(|_| accept(&listener)).collect();
    let mut subscribers: Vec<_> = accepting.into_iter().map(accepted).collect();
    let publishers: Vec<_> = dialling.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut values: Vec<_> = subscribers.iter_mut().map(|subscriber| receive(subscriber).value).collect();
    values.sort_unstable();
    assert_eq!(values, (0..8).collect::<Vec<_>>());
    drop(listener);
    drop(subscribers);
    wait_until("links to be gone", || listening.links().all().is_empty());
    wait_until("subscribers to be gone", || publishers.iter().all(|one| one.push_subscribers() == 0));
}

/// One publisher may have both kinds of subscribers.
#[test]
fn dialling_and_dialled_subscribers_receive_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (listening, publishing) = (node(&dir, "l"), node(&dir, "p"));
    let listener = Arc::new(listening.state_listener::<u64>("t").timeout(TIMEOUT).push().open().unwrap());
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let mut subscribers =
        vec![listening.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().open().unwrap()];
    for _ in 0..2 {
        let accepting = accept(&listener);
        publishing.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap();
        subscribers.push(accepted(accepting));
    }
    subscribers.push(listening.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).push().open().unwrap());
    assert_eq!(publisher.push_subscribers(), 4);
    for value in 0..100 {
        publisher.publish(&value).unwrap();
        assert!(subscribers.iter_mut().all(|subscriber| receive(subscriber).value == value));
    }
}

#[test]
fn listener_needs_a_name_and_a_topic_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let error = anonymous(&dir).state_listener::<u64>("t").open().unwrap_err();
    assert!(matches!(error, SubscriberError::Unnamed), "{error}");
    assert!(error.to_string().contains("NodeBuilder::name"), "{error}");
    let listening = node(&dir, "l");
    let first = listening.state_listener::<u64>("t").timeout(TIMEOUT).open().unwrap();
    let error = listening.state_listener::<u64>("t").open().unwrap_err();
    assert!(matches!(error, SubscriberError::AlreadyListening { .. }), "{error}");
    let _other = listening.state_listener::<u64>("t/2").timeout(TIMEOUT).open().unwrap();
    drop(first);
    listening.state_listener::<u64>("t").timeout(TIMEOUT).open().unwrap();
    let error = listening.state_listener::<u64>("no topic").open().unwrap_err();
    assert!(matches!(error, SubscriberError::Name(_)), "{error}");
}

#[test]
fn failed_dial_gives_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (listening, publishing) = (node(&dir, "l"), anonymous(&dir));
    let _publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let dial = |topic: &str, to: &str| publishing.dial_subscriber(topic, address(to), TIMEOUT).unwrap_err();
    assert!(matches!(dial("no topic", "shm:l"), DialError::Name(_)));
    let error = dial("other", "shm:l");
    assert!(matches!(&error, DialError::NoSuchTopic { topic } if topic.as_str() == "other"), "{error}");
    assert!(matches!(dial("t", "shm:nobody"), DialError::Unreachable { .. }));
    assert!(matches!(dial("t", "rdma://host"), DialError::Unreachable { .. }));
    let _listener = listening.state_listener::<u64>("other").timeout(TIMEOUT).open().unwrap();
    let error = dial("t", "shm:l");
    assert!(matches!(error, DialError::Refused { reason: RefuseReason::NobodyWaits, .. }), "{error}");
    assert!(error.to_string().contains("shm:l"), "{error}");
}

/// Both sides get the error, and the listener stays usable.
#[test]
fn publisher_of_another_type_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let listening = node(&dir, "l");
    let listener = Arc::new(listening.state_listener::<u64>("t").timeout(TIMEOUT).push().open().unwrap());
    let (wrong, right) = (node(&dir, "wrong"), node(&dir, "right"));
    let _publisher = wrong.state_publisher::<String>("t").open().unwrap();
    let accepting = accept(&listener);
    let error = wrong.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap_err();
    let mismatch = RefuseReason::SchemaMismatch;
    assert!(matches!(error, DialError::Unfit { reason, .. } if reason == mismatch), "{error}");
    let error = accepting.join().unwrap().unwrap_err();
    let begin = "cannot subscribe to t of node wrong (process ";
    let sentence = ErrorChain(&error).to_string();
    assert!(sentence.starts_with(begin) && sentence.contains("String (bincode)"), "{sentence}");
    let SubscriberError::Dialled { source: AttachError::Refused { reason, .. }, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(reason, mismatch);

    let mut publisher = right.state_publisher::<u64>("t").open().unwrap();
    let accepting = accept(&listener);
    right.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap();
    publisher.publish(&3).unwrap();
    assert_eq!(receive(&mut accepted(accepting)).value, 3);
    let links = || listening.links().all().len();
    wait_until("the refused session to be gone", || links() == 0);
}

#[test]
fn any_listener_accepts_publishers_of_each_kind() {
    let dir = tempfile::tempdir().unwrap();
    let (listening, publishing) = (node(&dir, "l"), anonymous(&dir));
    let mut state = publishing.state_publisher::<Value>("state").open().unwrap();
    let mut log = publishing.log_publisher::<Value>("log").open().unwrap();
    for (topic, kind) in [("state", Kind::State), ("log", Kind::Log)] {
        let listener = listening.any_listener::<Raw>(topic).timeout(TIMEOUT).open().unwrap();
        let accepting = std::thread::spawn(move || listener.accept_timeout(TIMEOUT));
        publishing.dial_subscriber(topic, "shm:l", TIMEOUT).unwrap();
        let mut subscriber = accepting.join().unwrap().unwrap().expect("a publisher that dials in time");
        state.publish(&(5, "five".to_owned())).unwrap();
        log.publish(&(5, "five".to_owned())).unwrap();
        let sample = subscriber.receive_value_timeout(TIMEOUT).unwrap().expect("a value");
        assert_eq!((subscriber.kind(), subscriber.last()), (kind, sample.meta.sequence));
        let Decoded::Value(value) = sample.value else { panic!("{sample:?}") };
        assert_eq!(value.to_string(), r#"[5,"five"]"#);
    }
}

#[test]
fn subscriber_that_cannot_use_the_topic_leaves_and_both_sides_report_it() {
    let dir = tempfile::tempdir().unwrap();
    let (listening, publishing) = (node(&dir, "l"), anonymous(&dir));
    let builder = listening.state_listener::<Raw>("t").timeout(TIMEOUT).push().region_len_max(1 << 20);
    let listener = Arc::new(builder.open().unwrap());
    let publisher = publishing.state_publisher::<Raw>("t").payload_len_max(1 << 20).open().unwrap();
    let accepting = accept(&listener);
    let error = publishing.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap_err();
    assert!(matches!(error, DialError::Left { .. }), "{error}");
    let error = accepting.join().unwrap().unwrap_err();
    let SubscriberError::Dialled { source: AttachError::Unfit(source), .. } = error else {
        panic!("{error}")
    };
    assert!(matches!(source, GrantError::RegionLen { .. }), "{source}");
    assert_eq!(publisher.push_subscribers(), 0);
}

/// A dial reported as failed never succeeds later.
#[test]
fn publisher_that_is_not_accepted_gives_up_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let (listening, publishing) = (node(&dir, "l"), anonymous(&dir));
    let listener = listening.state_listener::<u64>("t").timeout(TIMEOUT).open().unwrap();
    assert!(listener.accept_timeout(Duration::ZERO).unwrap().is_none());
    let publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    // The other node's thread has to run within this time, even on a busy machine.
    let in_vain = Duration::from_secs(2);
    let error = publishing.dial_subscriber("t", address("shm:l"), in_vain).unwrap_err();
    assert!(matches!(error, DialError::NotAccepted { .. }), "{error}");
    wait_until("the session to be gone", || listening.links().all().is_empty());
    assert!(listener.accept_timeout(in_vain).unwrap().is_none());
    assert_eq!(publisher.pull_subscribers(), 0);
}

#[test]
fn dropped_listener_ends_waiting_sessions_and_keeps_accepted_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (listening, publishing) = (node(&dir, "l"), anonymous(&dir));
    let listener = Arc::new(listening.state_listener::<u64>("t").timeout(TIMEOUT).push().open().unwrap());
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let accepting = accept(&listener);
    publishing.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap();
    let mut kept = accepted(accepting);

    let waiting = publishing.clone();
    let waiting = std::thread::spawn(move || waiting.dial_subscriber("t", address("shm:l"), TIMEOUT));
    let ready = || listening.links().all().iter().filter(|link| link.is_ready()).count();
    wait_until("the publisher to wait", || ready() == 2);
    drop(listener);
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, DialError::Left { .. }), "{error}");
    let error = publishing.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap_err();
    assert!(matches!(error, DialError::Refused { reason: RefuseReason::NobodyWaits, .. }), "{error}");

    publisher.publish(&1).unwrap();
    assert_eq!(receive(&mut kept).value, 1);
    drop(kept);
    wait_until("the subscriber to be gone", || publisher.push_subscribers() == 0);
    wait_until("the links to be gone", || listening.links().all().is_empty());
}

/// A listener keeps its node alive, as publishers and subscribers do.
#[test]
fn listener_outlives_the_handles_of_its_node() {
    let dir = tempfile::tempdir().unwrap();
    let listener = Arc::new(node(&dir, "l").state_listener::<u64>("t").timeout(TIMEOUT).open().unwrap());
    let publishing = anonymous(&dir);
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let accepting = accept(&listener);
    publishing.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap();
    publisher.publish(&1).unwrap();
    let mut subscriber = accepted(accepting);
    drop(listener);
    assert_eq!(receive(&mut subscriber).value, 1);
    drop(subscriber);
    node(&dir, "l");
}

#[test]
fn events_report_publishers_that_dial() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = |name: &str| {
        let events = Arc::new(Recorder::default());
        let builder = Node::builder().name(name).unwrap().runtime_dir(dir.path());
        (builder.events(Arc::<Recorder>::clone(&events)).open().unwrap(), events)
    };
    let ((listening, refusals), (publishing, events)) = (recorded("l"), recorded("p"));
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    publishing.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap_err();
    refusals.wait_for(
        "a refusal",
        |event| matches!(event, Event::PeerRejected { reason } if reason.contains("no subscriber waits")),
    );
    let listener = Arc::new(listening.state_listener::<u64>("t").timeout(TIMEOUT).push().open().unwrap());
    let accepting = accept(&listener);
    publishing.dial_subscriber("t", address("shm:l"), TIMEOUT).unwrap();
    let mut subscriber = accepted(accepting);
    publisher.publish(&1).unwrap();
    receive(&mut subscriber);
    drop(subscriber);
    events.wait_for(
        "opened",
        |event| matches!(event, Event::SessionOpened { peer, .. } if peer.as_str() == "l"),
    );
    events.wait_for("attached", |event| matches!(event, Event::Attached { delivery: Delivery::Push, .. }));
    events.wait_for("detached", |event| matches!(event, Event::Detached { received: 1, .. }));
    events.wait_for("closed", |event| matches!(event, Event::SessionClosed { orderly: true, .. }));
}

/// How often this thread has yielded the processor.
fn pauses() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Only its peer wakes a waiting thread.
#[test]
fn waiting_for_a_peer_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (desk, publishing) = (node(&dir, "desk"), anonymous(&dir));
    let listener = desk.state_listener::<u64>("t").timeout(TIMEOUT).open().unwrap();
    let _publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    // The other node's thread has to run within this time, even on a busy machine.
    let timeout = Duration::from_secs(2);
    let before = pauses();
    assert!(listener.accept_timeout(timeout).unwrap().is_none());
    let accepting = pauses() - before;
    let address = desk.address().unwrap();
    let error = publishing.dial_subscriber("t", &address, timeout).unwrap_err();
    assert!(matches!(error, DialError::NotAccepted { .. }), "{error}");
    let dialling = pauses() - before - accepting;
    assert!(accepting < 30 && dialling < 30, "{accepting} and {dialling} pauses");
}
