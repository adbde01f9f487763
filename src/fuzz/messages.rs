//! Messages of the control channel, and both ends of a session.

use std::num::NonZeroU64;
use std::sync::{Arc, LazyLock};

use super::input::Input;
use crate::control::{
    AttachOptions, AttachmentId, ClientEvent, ClientSession, Credentials, Frame, Greeting, Identity,
    LetGoReason, Message, NoticesBy, RefuseReason, ServerAction, ServerSession, SubscriberCounts, Text,
    VERSION, WakeBy, decode as parse, encode,
};
use crate::id::{Delivery, KindOptions, SlowPolicy, TopicName};
use crate::keyring::{Authority, Challenge, Keyring, Keys, Right};
use crate::limits;

/// The most operations of an input.
const OPERATIONS_MAX: usize = 300;
/// The most pending actions of an end.
const ACTIONS_MAX: usize = 10_000;
/// What connections connect.
const BINDING: &[u8] = b"both ends";

/// Keys that cover one of the two topics.
static KEYS: LazyLock<Arc<Keys>> = LazyLock::new(|| {
    let line = format!("k read,publish a {}", "5a".repeat(32));
    Keyring::from_text(&line).expect("a keyring").current().0
});

/// What a peer has shown to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Nothing, and nothing is demanded.
    Nothing,
    /// Nothing, although keys are demanded.
    NoKey,
    /// The key.
    Key,
}

/// Whole messages, and bodies behind a right header: the kind's number, then the body.
pub(super) fn decode(bytes: &[u8]) {
    one_meaning(bytes);
    if let Some((kind, body)) = bytes.split_first() {
        let frame = Frame { version: VERSION, kind: (*kind).into(), body };
        one_meaning(&frame.emit());
    }
}

/// Bytes that are a message are its only encoding.
fn one_meaning(bytes: &[u8]) {
    if let Ok(message) = parse(bytes) {
        assert_eq!(encode(&message), bytes, "{message:?} has two encodings");
        assert!(bytes.len() <= limits::CONTROL_MESSAGE_LEN_MAX);
    }
}

fn identity(node: &str) -> Identity {
    let node = node.parse().expect("a name");
    Identity { node, process: 4242, host: Text::cut("host"), started_ns: 1 }
}

fn topic(input: &mut Input<'_>) -> TopicName {
    let name = if input.byte().is_multiple_of(2) { "a" } else { "b/c" };
    name.parse().expect("a name")
}

/// A message that a peer may send, or any other one with a right header.
fn message(input: &mut Input<'_>) -> Vec<u8> {
    let (kind, len) = (input.byte(), usize::from(input.byte()));
    let body = input.bytes(len);
    if kind == u8::MAX {
        return body.to_vec();
    }
    Frame { version: VERSION, kind: (kind % 24).into(), body }.emit()
}

/// Messages of a peer, times, and requests of the owner, at a server, then at a client.
pub(super) fn sessions(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.byte().is_multiple_of(2) { server(&mut input) } else { client(&mut input) }
}

fn nonce(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).expect("not zero")
}

/// How this end introduces itself, with its keys if a peer has to prove them.
fn greeting(node: &str, number: u64, shown: Shown) -> Greeting {
    let challenge = Challenge([u8::try_from(number).unwrap_or_default(); 32]);
    let credentials = match shown {
        Shown::Nothing => Credentials::default(),
        Shown::NoKey | Shown::Key => Credentials::new(Arc::clone(&KEYS), challenge, false),
    };
    Greeting::new(identity(node), nonce(number), credentials)
}

/// An end in one of its beginnings, and what the peer has shown.
fn server_of(input: &mut Input<'_>) -> (ServerSession, Shown) {
    let way = input.byte() % 6;
    let shown = [Shown::Nothing, Shown::NoKey, Shown::Key].get(usize::from(way / 2)).copied();
    let shown = shown.unwrap_or(Shown::Nothing);
    let greeting = greeting("writer", 2, shown);
    let mut server = match (way % 2, shown) {
        (1, Shown::Nothing | Shown::NoKey) => {
            ServerSession::inviting(limits::HELLO_DEADLINE_NS, greeting, topic(input))
        }
        _ => ServerSession::new(0, greeting),
    };
    server.bind(BINDING.to_vec());
    if shown == Shown::Key {
        if way.is_multiple_of(2) { prove_reader(&mut server) } else { prove_publisher(&mut server) }
    }
    (server, shown)
}

/// The hellos and proofs of a subscriber that dials.
fn prove_reader(server: &mut ServerSession) {
    let mut peer = ClientSession::connect(0, greeting("reader", 3, Shown::Key), limits::ANSWER_DEADLINE_NS);
    peer.bind(BINDING.to_vec());
    for _ in 0..2 {
        while let Some(outgoing) = peer.next_message() {
            server.on_message(&outgoing.bytes, 0);
        }
        while let Some(action) = server.next_action() {
            if let ServerAction::Send(outgoing) = action {
                peer.on_message(&outgoing.bytes, 0).expect("both have the key");
            }
        }
    }
}

/// The hellos and proofs of a publisher that dials, up to its invitation.
fn prove_publisher(server: &mut ServerSession) {
    let topic = "a".parse().expect("a name");
    let mut peer = ServerSession::inviting(u64::MAX, greeting("publisher", 3, Shown::Key), topic);
    peer.bind(BINDING.to_vec());
    for _ in 0..2 {
        if let Some(ServerAction::Send(outgoing)) = peer.next_action() {
            server.on_message(&outgoing.bytes, 0);
        }
        if let Some(ServerAction::Send(outgoing)) = server.next_action() {
            peer.on_message(&outgoing.bytes, 0);
        }
    }
}

fn server(input: &mut Input<'_>) {
    let (mut server, shown) = server_of(input);
    let mut is_closed = false;
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0 => server.on_time(input.word() >> 20),
            1 => server.on_disconnected(),
            2..=8 => {
                let regions = usize::from(input.byte() % 3);
                server.on_message(&message(input), regions);
            }
            9 => drain(&mut server, shown, &mut is_closed),
            choice => ask_server(&mut server, choice, input),
        }
    }
    server.on_disconnected();
    drain(&mut server, shown, &mut is_closed);
    assert!(is_closed && server.deadline_ns().is_none(), "a session that does not close");
}

/// The state machine decides whether it is allowed.
fn ask_server(server: &mut ServerSession, choice: u8, input: &mut Input<'_>) {
    let attachment = AttachmentId::new((input.byte() % 8).into());
    let _ = match choice {
        10 => server.answer_topics(Vec::new(), input.byte().is_multiple_of(2)),
        11 => server.refuse(attachment, RefuseReason::NotPermitted, "no"),
        12 => server.exposed(attachment).and_then(|()| server.wake_slot(attachment, Some(3))),
        13 => server.notices(attachment, NoticesBy::WakeWord),
        14 => server.detached(attachment, 3).and_then(|()| server.let_go(attachment, LetGoReason::Unseen, 3)),
        _ if input.byte() < 32 => {
            server.shutdown(0);
            Ok(())
        }
        _ => match parse(&message(input)) {
            Ok(Message::Granted(grant)) => server.grant(grant),
            _ => server.topic_ended(attachment, 3),
        },
    };
}

fn drain(server: &mut ServerSession, shown: Shown, is_closed: &mut bool) {
    let mut count = 0;
    while let Some(action) = server.next_action() {
        assert!(!*is_closed, "{action:?} after the end");
        is_permitted(&action, shown);
        match action {
            ServerAction::Send(outgoing) => sends(&outgoing.bytes, shown),
            ServerAction::Close { .. } => *is_closed = true,
            _ => {}
        }
        count += 1;
        assert!(count <= ACTIONS_MAX, "more actions than a session may hold");
    }
}

/// A peer that has not proven the key causes no decision, and one that has only those that the key covers.
fn is_permitted(action: &ServerAction, shown: Shown) {
    let topic = match action {
        ServerAction::Send(_) | ServerAction::Close { .. } => return,
        ServerAction::Attach(attach) => Some(&attach.topic),
        ServerAction::Invited(invited) => Some(&invited.topic),
        _ => None,
    };
    let is_covered = topic.is_none_or(|topic| topic.as_str() == "a" || topic.as_str().starts_with("a/"));
    assert!(shown == Shown::Nothing || shown == Shown::Key && is_covered, "{action:?} of {shown:?}");
}

/// What is sent is a message, and says nothing to a peer that has not proven the key.
fn sends(bytes: &[u8], shown: Shown) {
    let message = parse(bytes).expect("a message");
    let is_greeting = matches!(message, Message::Hello(_) | Message::Prove(_) | Message::Refuse(_));
    assert!(shown != Shown::NoKey || is_greeting, "{message:?} to a stranger");
}

/// An end in one of its beginnings, and what the peer has shown.
fn client_of(input: &mut Input<'_>) -> (ClientSession, Shown) {
    let (timeout_ns, way) = (limits::ANSWER_DEADLINE_NS, input.byte() % 4);
    let (mut client, shown) = match way {
        0 => (ClientSession::connect(0, greeting("reader", 1, Shown::Nothing), timeout_ns), Shown::Nothing),
        1 => {
            let greeting = greeting("reader", 1, Shown::Nothing);
            (ClientSession::invited(greeting, Authority::Anyone, timeout_ns), Shown::Nothing)
        }
        2 => (ClientSession::connect(0, greeting("reader", 1, Shown::NoKey), timeout_ns), Shown::NoKey),
        _ => {
            let authority = Authority::Proven(KEYS.giving(Right::Publish).cloned().collect());
            (ClientSession::invited(greeting("reader", 1, Shown::Key), authority, timeout_ns), Shown::Key)
        }
    };
    client.bind(BINDING.to_vec());
    (client, shown)
}

fn client(input: &mut Input<'_>) {
    let (mut client, shown) = client_of(input);
    let mut is_over = false;
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        let outcome = match input.byte() % 16 {
            0 => client.on_time(input.word() >> 20).map(|()| None),
            1 => client.on_disconnected().map(|()| None),
            2..=8 => {
                let regions = usize::from(input.byte() % 3);
                client.on_message(&message(input), regions)
            }
            9 => {
                while let Some(outgoing) = client.next_message() {
                    sends(&outgoing.bytes, shown);
                }
                Ok(None)
            }
            choice => {
                ask_client(&mut client, choice, input);
                Ok(None)
            }
        };
        assert!(
            !is_over || matches!(outcome, Ok(None) | Err(crate::ControlError::Closed { .. })),
            "{outcome:?}"
        );
        assert!(
            shown != Shown::NoKey || !matches!(outcome, Ok(Some(ClientEvent::Ready { .. }))),
            "a session with a stranger"
        );
        is_over |= matches!(outcome, Err(_) | Ok(Some(ClientEvent::Ended { .. })));
    }
}

fn ask_client(client: &mut ClientSession, choice: u8, input: &mut Input<'_>) {
    let attachment = AttachmentId::new((input.byte() % 8).into());
    let _ = match choice {
        10 => client.list(input.byte().is_multiple_of(2).then(|| topic(input))),
        11 | 12 => {
            let delivery = if choice == 11 { Delivery::Pull } else { Delivery::Push };
            let progress = input.byte().is_multiple_of(2).then_some(SlowPolicy::Lap);
            let options = AttachOptions { options: KindOptions::default(), progress };
            client.attach(topic(input), delivery, None, options).map(drop)
        }
        13 => client.expose(attachment).and_then(|()| client.listen(attachment)),
        14 => client.wake_by(WakeBy { attachment, socket: 1, token: 2 }),
        _ => client.detach(attachment, SubscriberCounts::default()),
    };
}

/// Samples of every message, as the tests of the codec have them.
#[cfg(test)]
pub(super) mod seeds {
    use super::*;
    use crate::control::{Attach, Hello, sample};

    pub(in crate::fuzz) fn decode() -> Vec<Vec<u8>> {
        sample::every_message().iter().map(encode).collect()
    }

    /// For each beginning of either end, a hello that it accepts, then each message that it may receive, with its region.
    pub(in crate::fuzz) fn sessions() -> Vec<Vec<u8>> {
        let servers = (0..6).flat_map(|way| [false, true].map(|invites| program([0, way], None, invites)));
        let clients = (0..4).map(|way| program([1, way], Some(nonce(1)), false));
        servers.chain(clients).collect()
    }

    fn program([side, way]: [u8; 2], answers: Option<NonZeroU64>, invites: bool) -> Vec<u8> {
        let Some(Message::Hello(hello)) = sample::every_message().into_iter().nth(1) else {
            panic!("the hello is the second message")
        };
        let is_inviting = side == 0 && way < 4 && way % 2 == 1;
        let answers = if is_inviting { Some(nonce(2)) } else { answers };
        let mut bytes = vec![side, way];
        if is_inviting {
            bytes.push(0);
        }
        bytes.extend(operation(&Message::Hello(Hello { answers, invites, ..hello })));
        // A subscriber's requests are answered, and a publisher's answers are requested.
        bytes.extend([9, 10, 0, 11, 0, 0, 0]);
        for message in sample::every_message().iter().skip(2) {
            if is_from_subscriber(message) == (side == 0) {
                bytes.extend(operation(message));
                bytes.push(9);
            }
        }
        bytes
    }

    /// Whether a subscriber's end sends it, or either.
    fn is_from_subscriber(message: &Message) -> bool {
        !matches!(
            message,
            Message::Topics(_)
                | Message::Granted(_)
                | Message::Refused(_)
                | Message::Exposed(_)
                | Message::Detached(_)
                | Message::TopicEnded(_)
                | Message::Notices(_)
                | Message::Subscribers(_)
                | Message::WakeSlot(_)
                | Message::LetGo(_)
        )
    }

    fn operation(message: &Message) -> Vec<u8> {
        let bytes = encode(message);
        let body = bytes.get(bytes.len().min(16)..).unwrap_or_default();
        let body = body.get(..body.len().min(255)).unwrap_or_default();
        let kind = bytes.get(7).copied().unwrap_or_default();
        let carries = matches!(
            message,
            Message::Expose(_) | Message::Granted(_) | Message::Attach(Attach { progress: Some(_), .. })
        );
        let len = u8::try_from(body.len()).unwrap_or(u8::MAX);
        [&[2, carries.into(), kind, len][..], body].concat()
    }
}
