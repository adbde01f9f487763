//! Peers that break the rules of notices: the node keeps serving, and waiting subscribers are still woken.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use fabricast::{
    Delivery, LogPublisher, Node, NoticePath, Payload, Raw, StateSubscriber, TopicId, TopicName,
};
use rustix::fs::SealFlags;

use self::support::peer::Peer;
use self::support::raw::{self, Body, RawListener, RawPeer};
use self::support::role::Role;
use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

/// The geometry of a repository of values of up to 64 bytes in 8 slots.
const SLOT_COUNT: u32 = 8;
const SLOT_STRIDE: u64 = 128;
const REGION_LEN: u64 = 0x900 + SLOT_COUNT as u64 * SLOT_STRIDE;
const HOT_OFFSET: u64 = 0x80;
const EPOCH: u64 = 0xBB;

/// Numbers of reasons.
const MALFORMED: u16 = 33;
const UNEXPECTED: u16 = 34;

/// The method of notification, as encoded in a message.
const NOTHING: u32 = 0;
const WAKE_WORD: u32 = 1;
const CHANNEL: u32 = 2;

/// How long a subscriber waits for an answer that never comes; long enough for real answers on a busy machine.
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);

/// The seals of memory that two processes write.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

#[test]
#[ignore = "not a test: the entry point of a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    assert_eq!(role.name, "sleeper");
    let node = Node::builder().runtime_dir(&role.dir).open().expect("a node");
    let builder = node.state_subscriber::<Raw>("shm:p/t").notices().timeout(PATIENCE);
    let mut subscriber = builder.open().expect("a subscription");
    assert_eq!(subscriber.notice_path(), NoticePath::WakeWord);
    role.say("ready");
    loop {
        match subscriber.receive_timeout(Duration::from_secs(600)) {
            Ok(sample) => role.say(sample.expect("it sleeps for long").meta.sequence),
            Err(error) => return role.say(error),
        }
    }
}

fn node(dir: &Path) -> Node {
    Node::builder().name("p").expect("a name").runtime_dir(dir).open().expect("a node")
}

/// A subscriber that is attached for pull as number 1.
fn attached(dir: &Path) -> RawPeer {
    let peer = RawPeer::greeted(dir, "p");
    peer.send(&raw::attach(1, "t", false));
    assert_eq!(peer.receive().expect("a grant").kind, raw::GRANTED);
    peer
}

#[track_caller]
fn is_refused(peer: &RawPeer, expected: u16) {
    let refusal = std::iter::from_fn(|| peer.receive()).last().expect("a refusal").refusal();
    assert_eq!(refusal.0, expected, "{}", refusal.1);
}

#[test]
fn subscribers_that_talk_nonsense_about_notices_are_sent_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path());
    let mut publisher = node.state_publisher::<Raw>("t").open().expect("a topic");
    let mut neighbour =
        node.state_subscriber::<Raw>("shm:p/t").timeout(PATIENCE).notices().open().expect("a subscription");

    let peer = RawPeer::greeted(dir.path(), "p");
    peer.send(&raw::listen(1));
    is_refused(&peer, UNEXPECTED);
    let peer = attached(dir.path());
    peer.send(&Body::default().word(1).word(NOTHING).message(raw::NOTICES));
    is_refused(&peer, UNEXPECTED);
    for malformed in [
        raw::heard(&[7; 65], true),
        Body::default().long(u64::MAX).byte(0).message(raw::HEARD),
        Body::default().bytes(b"here").byte(2).message(raw::HEARD),
        Body::default().word(1).byte(0).message(raw::LISTEN),
    ] {
        let peer = attached(dir.path());
        peer.send(&malformed);
        is_refused(&peer, MALFORMED);
    }
    let peer = attached(dir.path());
    for _ in 0..2 {
        peer.send(&raw::listen(1));
    }
    let answer = peer.receive().expect("an answer");
    assert_eq!((answer.kind, answer.files.len()), (raw::NOTICES, 1));
    is_refused(&peer, UNEXPECTED);

    // Frequent reports, also about a channel that was not joined, are accepted.
    let peer = attached(dir.path());
    for number in 0..10_000_u32 {
        peer.send(&raw::heard(&number.to_le_bytes(), number % 2 == 0));
    }
    peer.send(&raw::list_topics());
    assert_eq!(peer.receive().expect("a directory").kind, raw::TOPICS);

    publisher.publish(b"still here").expect("it fits");
    assert!(neighbour.receive_timeout(PATIENCE).expect("a receive").is_some());
    drop((peer, neighbour));
    wait_until("the subscriber to detach", || publisher.pull_subscribers() == 0);
}

/// A wake word is memory that all subscribers write. Whatever one of them writes, the others get every value, at the latest at
/// their own timeout.
#[test]
fn a_corrupted_wake_word_costs_only_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path());
    let mut publisher: LogPublisher<Raw> = node.log_publisher("t").open().expect("a topic");
    let mut neighbour =
        node.log_subscriber::<Raw>("shm:p/t").timeout(PATIENCE).notices().open().expect("a subscription");
    let peer = attached(dir.path());
    peer.send(&raw::listen(1));
    let wake_word = peer.receive().expect("an answer").files.pop().expect("the memory of the wake word");
    assert!(
        rustix::fs::ftruncate(&wake_word, 0).is_err() && rustix::fs::ftruncate(&wake_word, 1 << 30).is_err()
    );
    let receiving = std::thread::spawn(move || {
        for number in 1..=200_u64 {
            let record = neighbour.receive_timeout(PATIENCE).expect("a receive").expect("a record in time");
            assert_eq!((record.meta.sequence.get(), record.value), (number, number.to_le_bytes().to_vec()));
        }
    });
    for number in 1..=200_u64 {
        for byte in [0xFF, 0, number.to_le_bytes()[0]] {
            assert_eq!(rustix::io::pwrite(&wake_word, &[byte; 128], 0), Ok(128));
        }
        publisher.publish(&number.to_le_bytes()).expect("it fits");
    }
    receiving.join().expect("every record");
}

/// The wake word's own tests check that the others are woken, and not only by their timeout.
#[test]
fn subscribers_killed_in_their_sleep_do_no_harm() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path());
    let mut publisher = node.state_publisher::<Raw>("t").open().expect("a topic");
    let mut sleepers: Vec<Peer> = (0..8).map(|_| Peer::ready("sleeper", dir.path(), "")).collect();
    for round in 1..=7 {
        // One of those that would wake the others.
        drop(sleepers.remove(sleepers.len() / 2));
        publisher.publish(b"wake up").expect("it fits");
        for sleeper in &mut sleepers {
            assert_eq!(sleeper.hear(), round.to_string());
        }
    }
    wait_until("the dead to be forgotten", || publisher.pull_subscribers() == 1);
    drop(publisher);
    assert!(sleepers.iter_mut().all(|sleeper| sleeper.hear().contains("ended")));
}

/// Answers the hello like a node, grants attachment number 0 for push, and takes its landing region.
fn exposed(peer: &RawPeer) -> OwnedFd {
    let nonce = peer.receive().expect("a hello").long(0);
    peer.send(&raw::hello(Some(nonce)));
    assert_eq!(peer.receive().expect("a request").kind, raw::ATTACH);
    let topic: TopicName = "t".parse().expect("a name");
    let body = Body::default().word(0).long(TopicId::of(&topic).get()).word(0).long(EPOCH).long(EPOCH);
    let body = body.word(64).long(REGION_LEN).long(SLOT_COUNT.into()).long(SLOT_STRIDE).long(0).long(0);
    let schema = Raw::schema().expect("bytes can be described").to_json();
    peer.send(&body.bytes(&schema).long(1).long(0).long(0).long(0).long(0).message(raw::GRANTED));
    let mut expose = peer.receive().expect("a landing region");
    assert_eq!(expose.kind, raw::EXPOSE);
    peer.send(&Body::default().word(0).message(raw::EXPOSED));
    assert_eq!(peer.receive().expect("a request").kind, raw::LISTEN);
    expose.files.remove(0)
}

/// Subscribes to a fake node that answers its request for notices like this; returns its landing region and session, too.
fn notified(answer: impl FnOnce(&RawPeer) + Send + 'static) -> (StateSubscriber<Raw>, OwnedFd, RawPeer) {
    notified_within(PATIENCE, answer)
}

/// Like [`notified`], with this timeout of the subscriber.
fn notified_within(
    timeout: Duration,
    answer: impl FnOnce(&RawPeer) + Send + 'static,
) -> (StateSubscriber<Raw>, OwnedFd, RawPeer) {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(dir.path(), "p");
    let server = std::thread::spawn(move || {
        let peer = listener.accept();
        let landing = exposed(&peer);
        answer(&peer);
        (landing, peer)
    });
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let builder = node.state_subscriber::<Raw>("shm:p/t").delivery(Delivery::Push).notices();
    let subscriber = builder.timeout(timeout).open().expect("a subscription, with or without notices");
    let (landing, peer) = server.join().expect("the deceit went as planned");
    (subscriber, landing, peer)
}

/// The answer to a request for notices of attachment 0.
fn notices(by: u32) -> Body {
    Body::default().word(0).word(by)
}

#[test]
fn invalid_wake_words_and_channels_cost_only_the_notices() {
    let unfit: Vec<OwnedFd> = vec![
        raw::memory_file(8192, SealFlags::empty()),
        raw::memory_file(8192, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE),
        raw::memory_file(64, SEALS),
        raw::memory_file(0, SEALS),
        std::fs::File::open("/dev/zero").expect("the file exists").into(),
        std::io::pipe().expect("a pipe").0.into(),
    ];
    for file in unfit {
        let (subscriber, ..) =
            notified(move |peer| peer.send_with(&notices(WAKE_WORD).message(raw::NOTICES), &[file.as_fd()]));
        assert_eq!(subscriber.notice_path(), NoticePath::Unavailable);
    }
    for ticket in [&b""[..], b"garbage", &[0xFF; 64]] {
        let channel =
            notices(CHANNEL).long(7).long(1).long(2).long(3).long(4).bytes(ticket).message(raw::NOTICES);
        let (mut subscriber, _landing, _peer) = notified(move |peer| peer.send(&channel));
        assert_eq!(subscriber.notice_path(), NoticePath::Unavailable);
        assert!(subscriber.receive_timeout(Duration::from_millis(5)).expect("a receive").is_none());
    }
    // A missing answer costs the timeout, not the subscription.
    let (mut subscriber, _landing, peer) = notified_within(SHORT_TIMEOUT, |_| {});
    assert_eq!(subscriber.notice_path(), NoticePath::Unavailable);
    assert!(subscriber.try_receive().expect("a receive").is_none());
    peer.send(&notices(NOTHING).message(raw::NOTICES));
    assert!(subscriber.receive_timeout(Duration::from_millis(5)).expect("a receive").is_none());
}

/// An answer to a request for notices.
type Answer = Box<dyn FnOnce(&RawPeer) + Send>;

#[test]
fn answers_about_notices_that_break_the_rules_end_the_session() {
    let file = raw::memory_file(4096, SEALS);
    let long = notices(CHANNEL).long(7).long(1).long(2).long(3).long(4).bytes(&[7; 65]).message(raw::NOTICES);
    let broken: [Answer; 4] = [
        Box::new(|peer| peer.send(&notices(WAKE_WORD).message(raw::NOTICES))),
        Box::new(move |peer| peer.send_with(&notices(NOTHING).message(raw::NOTICES), &[file.as_fd()])),
        Box::new(move |peer| peer.send(&long)),
        Box::new(|peer| (0..2).for_each(|_| peer.send(&notices(NOTHING).message(raw::NOTICES)))),
    ];
    for answer in broken {
        let (mut subscriber, ..) = notified(answer);
        assert_eq!(subscriber.notice_path(), NoticePath::Unavailable);
        wait_until("the end", || subscriber.try_receive().is_err());
    }
}

/// A publisher whose hot line announces a value that never comes. The wait's own tests check that it does not spin.
#[test]
fn an_announced_value_that_never_comes_is_not_received() {
    let (mut subscriber, landing, _peer) = notified(|peer| {
        let wake_word = raw::memory_file(8192, SEALS);
        peer.send_with(&notices(WAKE_WORD).message(raw::NOTICES), &[wake_word.as_fd()]);
    });
    assert_eq!(subscriber.notice_path(), NoticePath::WakeWord);
    assert_eq!(rustix::io::pwrite(&landing, &[0; 64], HOT_OFFSET), Ok(64));
    let mut last = vec![0; usize::try_from(SLOT_STRIDE).expect("it is small")];
    let slot = |sequence: u64| 0x900 + sequence % u64::from(SLOT_COUNT) * SLOT_STRIDE;
    // A value, so that the reader follows the slots instead of the hot line.
    last.splice(.., value(1));
    assert_eq!(rustix::io::pwrite(&landing, &last, slot(1)), Ok(last.len()));
    assert_eq!(rustix::io::pwrite(&landing, &1_u64.to_le_bytes(), HOT_OFFSET), Ok(8));
    assert!(subscriber.receive_timeout(PATIENCE).expect("a receive").is_some());
    assert_eq!(rustix::io::pwrite(&landing, &9_u64.to_le_bytes(), HOT_OFFSET), Ok(8));
    assert!(subscriber.receive_timeout(Duration::from_secs(1)).expect("a receive").is_none());
}

/// A slot with a value of 8 bytes, as written by a publisher.
fn value(sequence: u64) -> Vec<u8> {
    let topic: TopicName = "t".parse().expect("a name");
    let mut bytes = Vec::new();
    for word in [sequence, EPOCH, 8 | 3 << 32, 1, sequence] {
        bytes.extend(word.to_le_bytes());
    }
    let crc = raw::crc32(&[TopicId::of(&topic).get().to_le_bytes().as_slice(), &bytes].concat());
    bytes.extend(u64::from(crc).to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes
}
