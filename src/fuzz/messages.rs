//! Messages of the control channel, and both ends of a session.

use std::num::NonZeroU64;

use super::input::Input;
use crate::control::{
    AttachOptions, AttachmentId, ClientEvent, ClientSession, Frame, Identity, LetGoReason, Message,
    NoticesBy, RefuseReason, ServerAction, ServerSession, SubscriberCounts, Text, VERSION, WakeBy,
    decode as parse, encode,
};
use crate::id::{Delivery, KindOptions, SlowPolicy, TopicName};
use crate::limits;

/// The most operations of an input.
const OPERATIONS_MAX: usize = 300;
/// The most pending actions of an end.
const ACTIONS_MAX: usize = 10_000;

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

fn server(input: &mut Input<'_>) {
    let mut server = match input.byte() % 2 {
        0 => ServerSession::new(0, identity("writer"), nonce(2)),
        _ => {
            let topic = topic(input);
            ServerSession::inviting(limits::HELLO_DEADLINE_NS, identity("writer"), nonce(2), topic)
        }
    };
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
            9 => drain(&mut server, &mut is_closed),
            choice => ask_server(&mut server, choice, input),
        }
    }
    server.on_disconnected();
    drain(&mut server, &mut is_closed);
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

fn drain(server: &mut ServerSession, is_closed: &mut bool) {
    let mut count = 0;
    while let Some(action) = server.next_action() {
        assert!(!*is_closed, "{action:?} after the end");
        match action {
            ServerAction::Send(outgoing) => assert!(parse(&outgoing.bytes).is_ok(), "{outgoing:?}"),
            ServerAction::Close { .. } => *is_closed = true,
            _ => {}
        }
        count += 1;
        assert!(count <= ACTIONS_MAX, "more actions than a session may hold");
    }
}

fn client(input: &mut Input<'_>) {
    let mut client = ClientSession::connect(0, identity("reader"), nonce(1), limits::ANSWER_DEADLINE_NS);
    if input.byte() % 2 == 1 {
        client.expect_hello_of(identity("peer"));
    }
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
                    assert!(parse(&outgoing.bytes).is_ok(), "{outgoing:?}");
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
    use crate::control::{Attach, sample};

    pub(in crate::fuzz) fn decode() -> Vec<Vec<u8>> {
        sample::every_message().iter().map(encode).collect()
    }

    /// A hello, then each message after another one, with its region.
    pub(in crate::fuzz) fn sessions() -> Vec<Vec<u8>> {
        let operation = |message: &Message| {
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
        };
        let messages = sample::every_message();
        let all = |side: u8| {
            let first = messages.get(1).map(operation).unwrap_or_default();
            let rest: Vec<u8> =
                messages.iter().skip(2).flat_map(|message| [operation(message), vec![9]]).flatten().collect();
            [vec![side, 0], first, vec![11, 0, 0], rest].concat()
        };
        vec![all(0), all(1)]
    }
}
