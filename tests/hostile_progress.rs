//! Peers that send a node what is no progress slot: each is refused, and nobody else is affected.

use std::os::fd::AsFd as _;
use std::time::Duration;

use fabricast::{Gating, LogPublisher, Node};
use rustix::fs::SealFlags;

use self::support::random::{Random, amount, each_seed};
use self::support::raw::{self, Body, RawPeer};
use self::support::time::{now, wait_until};

#[cfg(test)]
mod support;

/// Numbers of reasons.
const NOT_PERMITTED: u16 = 6;
const GATING_NOT_PERMITTED: u16 = 10;
const UNEXPECTED: u16 = 34;

const PAGE: u64 = 4096;
const BLOCK: u32 = 1;
const DISCONNECT: u32 = 2;

fn publisher(node: &Node, topic: &str, gating: Option<Gating>) -> LogPublisher<u64> {
    let builder = node.log_publisher(topic).capacity(4096);
    let builder = gating.into_iter().fold(builder, |builder, gating| builder.gating(gating));
    builder.open().expect("a topic")
}

/// A request for a log by pull that reports its progress and has the publisher wait.
fn attach(attachment: u32, topic: &str) -> Vec<u8> {
    attach_with(attachment, topic, BLOCK)
}

fn attach_with(attachment: u32, topic: &str, policy: u32) -> Vec<u8> {
    let body = Body::default().word(attachment).bytes(topic.as_bytes()).word(0).byte(0);
    body.long(0).long(0).long(0).byte(1).word(policy).message(raw::ATTACH)
}

/// Publishes more than a ring.
fn publish(publisher: &mut LogPublisher<u64>) {
    (0..1000).for_each(|number| _ = publisher.publish(&number).expect("nobody is in the way"));
}

#[test]
fn what_is_no_progress_slot_is_refused_and_holds_nobody_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let node =
        Node::builder().name("victim").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let mut publisher = publisher(&node, "t", Some(Gating::new()));
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let regular = std::fs::File::open(std::env::current_exe().expect("a program")).expect("a file");
    let unfit = [
        ("not sealed", raw::full_file(PAGE, SealFlags::empty())),
        ("to be written by others", raw::full_file(PAGE, SealFlags::SHRINK | SealFlags::GROW)),
        ("sparse", raw::memory_file(PAGE, sealed)),
        ("no memory file", regular.into()),
    ];
    let peer = RawPeer::greeted(dir.path(), "victim");
    for (number, (what, file)) in (1..).zip(unfit) {
        peer.send_with(&attach(number, "t"), &[file.as_fd()]);
        let (reason, text) = peer.receive().expect("an answer").refused();
        assert_eq!(reason, NOT_PERMITTED, "{what}: {text}");
        assert!(text.contains("progress slot"), "{what}: {text}");
        publish(&mut publisher);
    }
    // The session goes on; without a slot the message is out of turn.
    let slot = raw::full_file(PAGE, sealed);
    peer.send_with(&attach(9, "t"), &[slot.as_fd()]);
    assert_eq!(peer.receive().expect("an answer").kind, raw::GRANTED);
    peer.send(&attach(10, "t"));
    assert_eq!(peer.receive().expect("an answer").refusal().0, UNEXPECTED);
    // It has gated until its session ended, and nobody else has noticed.
    publish(&mut publisher);
    assert_eq!(node.subscribers("shm:victim/t").expect("an answer").count, 0);
}

#[test]
fn progress_beyond_the_newest_record_is_not_believed() {
    let dir = tempfile::tempdir().expect("a directory");
    let node =
        Node::builder().name("victim").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let mut publisher = publisher(&node, "t", Some(Gating::new()));
    publish(&mut publisher);
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let peer = RawPeer::greeted(dir.path(), "victim");
    let slot = raw::filled_file(&[0xFF; 4096], sealed);
    peer.send_with(&attach(1, "t"), &[slot.as_fd()]);
    assert_eq!(peer.receive().expect("an answer").kind, raw::GRANTED);
    let listed = node.subscribers("shm:victim/t").expect("an answer");
    let progress = listed.subscribers[0].progress.as_ref().expect("it reports its progress");
    assert_eq!((progress.last, progress.lag), (publisher.newest(), 0));
}

/// Whether it has released records that were never published, or fewer than it has received, or none.
#[test]
fn words_of_any_value_in_a_progress_slot_hold_nobody_up_for_longer_than_is_permitted() {
    const TIMEOUT: Duration = Duration::from_millis(10);
    let dir = tempfile::tempdir().expect("a directory");
    let node =
        Node::builder().name("victim").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let mut publisher = publisher(&node, "t", Some(Gating::new().timeout(TIMEOUT)));
    publish(&mut publisher);
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let (mut blocked, mut runs) = (0, 0);
    each_seed(amount(50, 2_000), |seed| {
        let mut random = Random::new(seed);
        let peer = RawPeer::greeted(dir.path(), "victim");
        for attachment in 1..=8 {
            let newest = publisher.newest().get();
            let special = [0, 1, newest - 1, newest, newest + 1, 1 << 63, u64::MAX, random.next()];
            let words = (0..PAGE / 8).map(|_| special[random.index(special.len())]);
            let page: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            let slot = raw::filled_file(&page, sealed);
            peer.send_with(
                &attach_with(attachment, "t", [DISCONNECT, BLOCK][random.index(2)]),
                &[slot.as_fd()],
            );
            assert_eq!(peer.receive().expect("an answer").kind, raw::GRANTED);
        }
        let listed = node.subscribers("shm:victim/t").expect("an answer");
        let newest = publisher.newest();
        for progress in listed.subscribers.iter().filter_map(|subscriber| subscriber.progress.as_ref()) {
            assert!(progress.last <= newest && progress.lag <= newest.get(), "{progress:?}");
        }
        // Each of them that releases too little holds up one record, and then is gone.
        if (0..1000).any(|number| publisher.publish(&number).is_err()) {
            blocked += 1;
        }
        runs += 1;
        drop(peer);
        wait_until("records", || publisher.publish(&0).is_ok());
        publish(&mut publisher);
    });
    println!("{blocked} of {runs} were held up for {TIMEOUT:?}");
    // A publish that waits for longer would not fail: after the lease the subscribers are let go.
    assert!(runs == 1 || blocked > 0);
}

#[test]
fn peer_that_is_not_permitted_to_gate_does_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let node =
        Node::builder().name("victim").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let mut free = publisher(&node, "free", None);
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let peer = RawPeer::greeted(dir.path(), "victim");
    let slot = raw::full_file(PAGE, sealed);
    peer.send_with(&attach(1, "free"), &[slot.as_fd()]);
    assert_eq!(peer.receive().expect("an answer").refused().0, GATING_NOT_PERMITTED);
    publish(&mut free);
}

/// It never shows that it runs, and never reads.
#[test]
fn peer_that_only_attaches_is_let_go_after_the_lease() {
    let dir = tempfile::tempdir().expect("a directory");
    let node =
        Node::builder().name("victim").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let lease = Duration::from_secs(1);
    let gating = Gating::new().lease(lease).timeout(Duration::from_secs(60));
    let mut publisher = publisher(&node, "t", Some(gating));
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let peer = RawPeer::greeted(dir.path(), "victim");
    let slot = raw::full_file(PAGE, sealed);
    let began = now();
    peer.send_with(&attach(1, "t"), &[slot.as_fd()]);
    assert_eq!(peer.receive().expect("an answer").kind, raw::GRANTED);
    publish(&mut publisher);
    // It waited for the lease, which began as the peer attached, and not for the timeout.
    let waited = began.elapsed();
    assert!((lease..Duration::from_secs(30)).contains(&waited), "{waited:?}");
    assert_eq!(peer.receive().expect("a message").kind, raw::LET_GO);
    // From then on nobody is in the way.
    publish(&mut publisher);
}
