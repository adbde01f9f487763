//! Peers that break the protocol, as diallers of a node with a listener for publishers, and as
//! dialled subscribers.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fabricast::{
    AttachError, ControlError, DialError, ErrorChain, Node, Payload, Raw, ReceiveError, RefuseReason,
    StateSubscriber, SubscriberError, limits,
};
use parking_lot::Mutex;
use rustix::fs::SealFlags;

use self::support::peer::{Holdings, Peer};
use self::support::raw::{self, Body, RawListener, RawPeer};
use self::support::role::Role;
use self::support::time::{PATIENCE, now, wait_until, wait_within};

#[cfg(test)]
mod support;

/// The largest control message, bytes.
const MESSAGE_LEN_MAX: usize = 96 * 1024;
/// Numbers of reasons.
const NO_HELLO: u16 = 36;
const NOT_PERMITTED: u16 = 6;
const MALFORMED: u16 = 33;
const UNEXPECTED: u16 = 34;
const TOO_MANY_SESSIONS: u16 = 35;
const NOBODY_WAITS: u16 = 37;

/// Where a grant has the length of the region.
const GRANTED_LEN_AT: usize = 36;
/// How long to wait for an answer that never comes; long enough for real answers on a busy machine.
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);
/// A timeout that must not expire.
const LONG_TIMEOUT: Duration = Duration::from_secs(600);

/// What the listening node has accepted.
#[derive(Debug, Default)]
struct Accepted {
    subscribers: Vec<StateSubscriber<Raw>>,
    heard: u64,
    errors: Vec<SubscriberError>,
}

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    assert_eq!(role.name, "desk");
    let node = Node::builder().name("desk").expect("a name").runtime_dir(&role.dir).open().expect("a node");
    let timeout = Duration::from_secs(role.argument(0).parse().expect("a number of seconds"));
    let builder = node.state_listener::<Raw>("t").push().timeout(timeout).region_len_max(1 << 20);
    let listener = builder.open().expect("a listener");
    let accepted = Arc::new(Mutex::new(Accepted::default()));
    let shared = Arc::clone(&accepted);
    std::thread::spawn(move || {
        loop {
            let outcome = listener.accept_timeout(Duration::from_millis(10));
            let mut accepted = shared.lock();
            match outcome {
                Ok(subscriber) => accepted.subscribers.extend(subscriber),
                Err(error) => accepted.errors.push(error),
            }
            let Accepted { subscribers, heard, .. } = &mut *accepted;
            subscribers.retain_mut(|subscriber| {
                loop {
                    match subscriber.try_receive() {
                        Ok(Some(_)) => *heard += 1,
                        Ok(None) => break true,
                        Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => break false,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    role.say("ready");
    loop {
        match role.command().as_str() {
            "subscribers" => role.say(accepted.lock().subscribers.len()),
            "heard" => role.say(accepted.lock().heard),
            "errors" => role.say(accepted.lock().errors.len()),
            "error" => {
                let error = accepted.lock().errors.pop().expect("an error");
                assert!(matches!(error, SubscriberError::Dialled { .. }), "{error:?}");
                role.say(ErrorChain(&error));
            }
            command => panic!("unknown value: {command}"),
        }
    }
}

/// A node in a process of its own that listens for publishers.
#[derive(Debug)]
struct Desk {
    dir: tempfile::TempDir,
    peer: Peer,
    holdings: Holdings,
}

impl Desk {
    fn new() -> Self {
        Self::with_timeout(LONG_TIMEOUT)
    }

    fn with_timeout(timeout: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let peer = Peer::ready("desk", dir.path(), &timeout.as_secs().to_string());
        let holdings = peer.holdings();
        let mut desk = Self { dir, peer, holdings };
        desk.serves_and_holds_nothing();
        desk
    }

    fn dial(&self) -> RawPeer {
        RawPeer::dial(self.dir.path(), "desk")
    }

    /// A peer that has dialled to publish, and received the desk's hello.
    fn greeted(&self) -> RawPeer {
        let peer = self.dial();
        peer.send(&raw::publishing());
        assert_eq!(peer.receive().expect("a hello").kind, raw::HELLO);
        peer
    }

    /// A peer that has invited the desk, and received the request for its topic.
    fn attached(&self) -> RawPeer {
        let peer = self.greeted();
        peer.send(&raw::invite("t"));
        assert_eq!(peer.receive().expect("a request").kind, raw::ATTACH);
        peer
    }

    /// Checks that it still accepts well-behaved publishers.
    fn serves(&mut self) {
        let heard = self.peer.ask_number("heard");
        let node = Node::builder().runtime_dir(self.dir.path()).open().expect("a node");
        let mut publisher = node.state_publisher::<Raw>("t").open().expect("a topic");
        let dialled = node.dial_subscriber("t", "shm:desk", PATIENCE);
        dialled.expect("the desk accepts");
        publisher.publish(b"value").expect("it fits");
        wait_until("the value", || self.peer.ask_number("heard") > heard);
    }

    /// Checks the same, and that it holds nothing of the hostile peers.
    fn serves_and_holds_nothing(&mut self) {
        self.serves();
        let began = now();
        loop {
            let last = (self.peer.ask_number("subscribers"), self.peer.holdings());
            if last == (0, self.holdings) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{last:?} instead of {:?}", self.holdings);
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// The error that it reported for the peer that it did not accept.
    fn error(&mut self) -> String {
        wait_until("an error", || self.peer.ask_number("errors") > 0);
        self.peer.ask("error")
    }
}

/// The refusal, after any earlier messages.
#[track_caller]
fn is_refused(peer: &RawPeer, expected: u16) -> String {
    let last = std::iter::from_fn(|| peer.receive()).last().expect("a refusal");
    let (reason, text) = last.refusal();
    assert_eq!(reason, expected, "{text}");
    text
}

#[test]
fn an_invalid_invitation_ends_the_session_with_a_refusal() {
    let mut desk = Desk::new();
    let invite = raw::invite("t");
    let body = Body::default;
    let mut messages: Vec<Vec<u8>> = (1..invite.len()).map(|len| invite[..len].to_vec()).collect();
    messages.push([invite.as_slice(), &[0]].concat());
    messages.push(body().message(raw::INVITE));
    messages.push(body().bytes(b"").message(raw::INVITE));
    messages.push(body().bytes(b"../t").message(raw::INVITE));
    messages.push(body().long(u64::MAX).message(raw::INVITE));
    messages.push(body().bytes(&[b'x'; limits::TOPIC_NAME_LEN_MAX + 1]).message(raw::INVITE));
    messages.push(body().bytes(&[b'x'; 90_000]).message(raw::INVITE));
    for message in &messages {
        let peer = desk.greeted();
        peer.send(message);
        is_refused(&peer, MALFORMED);
    }
    let text = {
        let peer = desk.greeted();
        peer.send(&body().bytes(b"t").other_version(raw::INVITE));
        is_refused(&peer, 32)
    };
    assert!(text.contains(&raw::other_version_text()), "{text}");
    let file = raw::memory_file(4096, SealFlags::empty());
    let peer = desk.greeted();
    peer.send_with(&invite, &[file.as_fd()]);
    is_refused(&peer, UNEXPECTED);
    desk.serves_and_holds_nothing();
}

#[test]
fn an_invitation_without_a_listener_is_refused() {
    let mut desk = Desk::new();
    for topic in ["u", "t/t", "T"] {
        let peer = desk.greeted();
        peer.send(&raw::invite(topic));
        assert_eq!(is_refused(&peer, NOBODY_WAITS), "");
    }
    desk.serves_and_holds_nothing();
}

#[test]
fn an_invitation_out_of_turn_ends_the_session() {
    let mut desk = Desk::new();
    let invite = raw::invite("t");
    // Before the hello, and twice at once.
    let peer = desk.dial();
    peer.send(&invite);
    is_refused(&peer, UNEXPECTED);
    let peer = desk.greeted();
    peer.send(&invite);
    // It may be refused, and the connection closed, before this is sent.
    let _ = peer.try_send(&invite, &[]);
    is_refused(&peer, UNEXPECTED);
    let peer = desk.attached();
    peer.send(&invite);
    is_refused(&peer, UNEXPECTED);
    // As a subscriber.
    let peer = RawPeer::greeted(desk.dir.path(), "desk");
    peer.send(&invite);
    let text = is_refused(&peer, UNEXPECTED);
    assert_eq!(text, "the peer sent Invite while the session was ready for requests");
    desk.serves_and_holds_nothing();
}

#[test]
fn a_publisher_that_breaks_the_protocol_is_refused() {
    let mut desk = Desk::new();
    type Deceit = fn(&RawPeer);
    let deceits: [(u16, Deceit); 5] = [
        (MALFORMED, |peer| peer.send(&[7; 100])),
        (UNEXPECTED, |peer| peer.send(&raw::list_topics())),
        (UNEXPECTED, |peer| peer.send(&raw::publishing())),
        (UNEXPECTED, |peer| peer.send(&raw::hello(Some(7)))),
        (UNEXPECTED, |peer| peer.send(&Body::default().long(0).message(raw::PROVE))),
    ];
    for (reason, deceit) in deceits {
        let peer = desk.greeted();
        deceit(&peer);
        is_refused(&peer, reason);
    }
    let peer = desk.dial();
    peer.send_with(&raw::publishing(), &[raw::memory_file(4096, SealFlags::empty()).as_fd()]);
    is_refused(&peer, UNEXPECTED);
    assert_eq!(desk.peer.ask_number("errors"), 0, "none of them was a publisher that could be accepted");
    desk.serves_and_holds_nothing();
}

#[test]
fn a_publisher_that_does_not_grant_is_an_error_and_the_listener_continues() {
    let mut desk = Desk::new();
    let peer = desk.attached();
    peer.send(&Body::default().word(0).short(999).bytes(b"no").message(raw::REFUSED));
    let error = desk.error();
    assert!(
        error.starts_with("cannot subscribe to t of node hostile (process 1), which dialled: "),
        "{error}"
    );
    assert!(error.contains("reason 999"), "{error}");
    // It ends the session.
    assert_eq!(peer.receive().expect("the end").kind, raw::END);
    drop(peer);

    let peer = desk.attached();
    peer.send(&[7; 100]);
    is_refused(&peer, MALFORMED);
    assert!(desk.error().contains("does not speak this protocol"));
    drop(desk.attached());
    assert!(desk.error().contains("the peer closed the connection"));

    // A repository that would take all memory.
    let peer = desk.attached();
    let schema = Raw::schema().expect("bytes can be described").to_json();
    let topic: fabricast::TopicName = "t".parse().expect("a name");
    let body = Body::default().word(0).long(fabricast::TopicId::of(&topic).get()).word(0).long(1).long(1);
    let body =
        body.word(1 << 30).long((8 << 30) + 0x900 + 8 * 128).long(8).long((1 << 30) + 128).long(0).long(0);
    peer.send(&body.bytes(&schema).long(1).long(0).long(0).long(0).long(0).message(raw::GRANTED));
    let error = desk.error();
    assert!(error.contains("the grant is unusable"), "{error}");
    drop(peer);
    desk.serves_and_holds_nothing();
}

/// Peers that never invite delay no other; those that never grant delay the others for the listener's timeout.
#[test]
fn a_publisher_that_falls_silent_is_dropped() {
    let mut desk = Desk::with_timeout(SHORT_TIMEOUT);
    let silent: Vec<_> = (0..20).map(|_| desk.greeted()).collect();
    desk.serves();
    for peer in &silent {
        is_refused(peer, NO_HELLO);
    }
    assert_eq!(desk.peer.ask_number("errors"), 0);
    let peer = desk.attached();
    desk.serves();
    let error = desk.error();
    assert!(error.contains("answer to a request to attach"), "{error}");
    drop(peer);
    desk.serves_and_holds_nothing();
}

#[test]
fn a_flood_of_invitations_is_limited_and_leaves_nothing() {
    let mut desk = Desk::new();
    // One peer leaves as many places as it has.
    let share = limits::INVITED_SESSIONS_MAX / 2;
    for round in 0..2 {
        let mut waiting = Vec::new();
        let mut refused = 0;
        for _ in 0..share + 20 {
            let peer = desk.greeted();
            peer.send(&raw::invite("t"));
            if waiting.len() < share {
                waiting.push(peer);
            } else {
                is_refused(&peer, TOO_MANY_SESSIONS);
                refused += 1;
            }
        }
        assert_eq!((waiting.len(), refused), (share, 20), "round {round}");
        drop(waiting);
        // Until it has noticed that they hung up, it accepts no well-behaved publisher either.
        wait_until("the places to be free", || desk.peer.holdings() == desk.holdings);
        desk.serves_and_holds_nothing();
    }
}

/// Dials a fake subscriber with this timeout, and returns the error.
fn deceived(timeout: Duration, deceit: impl FnOnce(&RawPeer, u64) + Send + 'static) -> DialError {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(dir.path(), "fake");
    let server = std::thread::spawn(move || {
        let peer = listener.accept();
        let hello = peer.receive().expect("a hello");
        assert_eq!(hello.kind, raw::HELLO);
        deceit(&peer, hello.long(0));
        // Stays until the publisher hangs up.
        peer.wait_closed();
    });
    let error = dial(dir.path(), timeout).expect_err("nobody is a subscriber there");
    wait_within(PATIENCE, "the publisher to hang up", || server.is_finished());
    server.join().expect("the deceit went as planned");
    error
}

fn dial(dir: &Path, timeout: Duration) -> Result<(), DialError> {
    let node = Node::builder().runtime_dir(dir).open().expect("a node");
    let publisher = node.state_publisher::<Raw>("t").open().expect("a topic");
    let outcome = node.dial_subscriber("t", "shm:fake", timeout);
    assert_eq!(publisher.pull_subscribers() + publisher.push_subscribers(), 0);
    outcome
}

/// Answers the hello like a subscriber's node, and receives the invitation.
fn greet(peer: &RawPeer, nonce: u64) {
    peer.send(&raw::hello(Some(nonce)));
    let invite = peer.receive().expect("an invitation");
    assert_eq!(invite.kind, raw::INVITE);
    assert!(invite.body.ends_with(b"\x01t"), "{invite:?}");
}

#[test]
fn a_fake_subscriber_costs_a_dialler_its_timeout_at_most() {
    type Deceit = fn(&RawPeer, u64);
    type Expected = fn(&DialError) -> bool;
    let session: Expected = |error| matches!(error, DialError::Session { .. });
    let silent: Expected =
        |error| matches!(error, DialError::Session { source: ControlError::Deadline { .. }, .. });
    let not_accepted: Expected = |error| matches!(error, DialError::NotAccepted { .. });
    let deceits: [(&str, Deceit, Expected); 14] = [
        ("silence", |_, _| {}, silent),
        ("garbage", |peer, _| peer.send(&[7; 100]), session),
        ("too long", |peer, _| peer.send(&[0; MESSAGE_LEN_MAX + 1]), session),
        ("another version", |peer, _| peer.send(&Body::default().other_version(raw::HELLO)), session),
        ("an invitation back", |peer, _| peer.send(&raw::invite("t")), session),
        ("a request before the hello", |peer, _| peer.send(&raw::attach(1, "t", false)), session),
        ("a hello that answers another", |peer, nonce| peer.send(&raw::hello(Some(nonce ^ 1))), session),
        ("a hello that answers none", |peer, _| peer.send(&raw::hello(None)), session),
        (
            "a refusal",
            |peer, _| peer.send(&Body::default().short(999).short(0).message(raw::REFUSE)),
            |error| matches!(error, DialError::Refused { reason: RefuseReason::Unknown(999), .. }),
        ),
        ("silence after the hello", greet, not_accepted),
        (
            "a flood of requests whose answers are not taken",
            |peer, nonce| {
                greet(peer, nonce);
                wait_until("the flood to be dammed", || peer.flood(&raw::list_topics(), 10_000));
            },
            session,
        ),
        (
            "another topic",
            |peer, nonce| {
                greet(peer, nonce);
                peer.send(&raw::attach(1, "u", false));
                assert_eq!(peer.receive().expect("an answer").kind, raw::REFUSED);
            },
            not_accepted,
        ),
        (
            "an unfit landing region",
            |peer, nonce| {
                greet(peer, nonce);
                peer.send(&raw::attach(1, "t", true));
                assert_eq!(peer.receive().expect("an answer").kind, raw::GRANTED);
                peer.send_with(&raw::expose(1), &[raw::memory_file(4096, SealFlags::empty()).as_fd()]);
            },
            |error| matches!(error, DialError::Unfit { reason: RefuseReason::LandingUnfit, .. }),
        ),
        (
            "another type, and then the right one at once",
            |peer, nonce| {
                greet(peer, nonce);
                peer.send(&raw::attach_by_schema(1, "t", 7));
                // The publisher may have hung up before this.
                let _ = peer.try_send(&raw::attach(2, "t", false), &[]);
                let replies: Vec<u16> =
                    std::iter::from_fn(|| peer.receive()).map(|reply| reply.kind).collect();
                assert!(!replies.contains(&raw::GRANTED), "{replies:?}");
            },
            |error| matches!(error, DialError::Unfit { reason: RefuseReason::SchemaMismatch, .. }),
        ),
    ];
    // These must expire; the others are reported before.
    let patient = ["silence", "silence after the hello", "another topic"];
    for (what, deceit, expected) in deceits {
        let timeout = if patient.contains(&what) { SHORT_TIMEOUT } else { LONG_TIMEOUT };
        let error = deceived(timeout, deceit);
        assert!(expected(&error), "{what}: {error}");
        assert!(!error.to_string().is_empty());
    }
}

/// A publisher that grants push subscriptions and never confirms their end: each would leave a landing region behind.
#[test]
fn publisher_that_confirms_no_end_gets_a_limited_number_of_landing_regions() {
    let dir = tempfile::tempdir().expect("a directory");
    let real = Node::builder().name("real").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let _topic = real.state_publisher::<Raw>("t").payload_len_max(1 << 16).open().expect("a topic");
    let granting = RawPeer::greeted(dir.path(), "real");
    granting.send(&raw::attach(0, "t", true));
    let granted = granting.receive().expect("a grant");
    assert_eq!(granted.kind, raw::GRANTED);
    let region_len = usize::try_from(granted.long(GRANTED_LEN_AT).next_multiple_of(4096)).expect("a length");

    let listener = RawListener::bind(dir.path(), "fake");
    std::thread::spawn(move || {
        loop {
            let peer = listener.accept();
            let Some(hello) = peer.receive() else { continue };
            peer.send(&raw::hello(Some(hello.long(0))));
            while let Some(message) = peer.receive() {
                let attachment = message.body.get(..4).unwrap_or_default();
                let answer = match message.kind {
                    raw::ATTACH => {
                        let rest = granted.body.get(4..).expect("a grant");
                        Body([attachment, rest].concat()).message(raw::GRANTED)
                    }
                    raw::EXPOSE => Body(attachment.to_vec()).message(raw::EXPOSED),
                    _ => continue,
                };
                // The subscriber may have hung up.
                let _ = peer.try_send(&answer, &[]);
            }
        }
    });
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let open = || {
        let builder = node.state_subscriber::<Raw>("shm:fake/t").push().region_len_max(2 * region_len);
        builder.timeout(SHORT_TIMEOUT).open().map(drop)
    };
    for round in 0..2 {
        // Two that are left over are within the limit.
        for number in 0..3 {
            open().unwrap_or_else(|error| panic!("number {number} of round {round}: {}", ErrorChain(&error)));
        }
        let error = open().expect_err("three landing regions are left over");
        let SubscriberError::Session { source, .. } = &error else { panic!("{error:?}") };
        assert!(matches!(source, ControlError::Deadline { .. }), "{source:?}");
        // The next one has a session of its own, and the regions of this one are released.
    }
}

/// A dialled subscriber has access only to the topic that it was dialled for, whatever else the node publishes.
#[test]
fn a_subscriber_that_was_dialled_gets_one_subscription_to_its_topic() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(dir.path(), "fake");
    let server = std::thread::spawn(move || {
        let peer = listener.accept();
        greet(&peer, peer.receive().expect("a hello").long(0));
        let refused = |peer: &RawPeer| peer.receive().expect("an answer").refused().0;
        peer.send(&raw::list_topics());
        let page = peer.receive().expect("a page");
        assert_eq!((page.kind, page.long(0)), (raw::TOPICS, 1), "one topic");
        for topic in ["another", "u", "none"] {
            peer.send(&raw::attach(1, topic, false));
            assert_eq!(refused(&peer), NOT_PERMITTED, "{topic}");
        }
        peer.send(&raw::attach(2, "t", false));
        assert_eq!(peer.receive().expect("an answer").kind, raw::GRANTED);
        for topic in ["t", "u"] {
            peer.send(&raw::attach(3, topic, true));
            assert_eq!(refused(&peer), NOT_PERMITTED, "{topic}");
        }
        peer
    });
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let publishers = ["another", "t", "u"].map(|topic| node.state_publisher::<Raw>(topic).open());
    let publishers = publishers.map(|publisher| publisher.expect("a topic"));
    node.dial_subscriber("t", "shm:fake", PATIENCE).expect("it attaches");
    let peer = server.join().expect("the deceit went as planned");
    let subscribers = publishers.each_ref().map(|it| it.pull_subscribers() + it.push_subscribers());
    assert_eq!(subscribers, [0, 1, 0]);
    drop(peer);
}

#[test]
fn a_subscriber_that_hangs_up_is_an_error_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(dir.path(), "fake");
    let server = std::thread::spawn(move || drop(listener.accept()));
    let error = dial(dir.path(), PATIENCE).expect_err("nobody is there");
    let gone = matches!(error, DialError::Session { source: ControlError::Disconnected, .. });
    assert!(gone, "{error}");
    server.join().expect("it hung up");
}

/// The errors of a listener say which publisher they are about.
#[test]
fn errors_name_the_dialling_publisher() {
    let dir = tempfile::tempdir().expect("a directory");
    let desk = Node::builder().name("desk").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let listener = desk.state_listener::<u64>("t").timeout(PATIENCE).open().expect("a listener");
    let peer = RawPeer::dial(dir.path(), "desk");
    let server = std::thread::spawn(move || {
        peer.send(&raw::publishing());
        assert_eq!(peer.receive().expect("a hello").kind, raw::HELLO);
        peer.send(&raw::invite("t"));
        assert_eq!(peer.receive().expect("a request").kind, raw::ATTACH);
        peer.send(&Body::default().word(0).short(2).bytes(b"").message(raw::REFUSED));
        // It leaves: the listener's node sends one more request, for the schema.
    });
    let error = listener.accept_timeout(PATIENCE).expect_err("it is refused");
    let SubscriberError::Dialled { node, process: 1, topic, source } = &error else { panic!("{error}") };
    assert_eq!((node.as_str(), topic.as_str()), ("hostile", "t"));
    assert!(matches!(source, AttachError::Refused { reason: RefuseReason::SchemaMismatch, .. }));
    drop(desk);
    drop(listener);
    server.join().expect("the deceit went as planned");
}
