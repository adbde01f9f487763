//! Nodes with keys, strangers, and those who try to pass for a node with keys.

use std::sync::Arc;

use super::*;
use crate::control::error::Unproven;
use crate::control::handshake::{Credentials, Greeting};
use crate::control::proof::{Proof, Prove};
use crate::keyring::tests::{keys, secret};
use crate::keyring::{Challenge, KeyName, Keys};

/// What the connections of these tests connect.
const BINDING: &[u8] = b"both ends";

fn with_keys(node: &str, keys: &Arc<Keys>, challenge: u8) -> Greeting {
    let credentials = Credentials::new(Arc::clone(keys), Challenge([challenge; 32]), false);
    Greeting::new(identity(node), nonce(challenge.into()), credentials)
}

/// The keys of a publisher's node.
fn server_keys() -> Arc<Keys> {
    keys(&format!(
        "desk read pull,push {}\nother read small {} other-node\nengine publish orders {}",
        secret(1),
        secret(2),
        secret(3)
    ))
}

/// A subscriber and a publisher's node that have these keys.
fn pair(client_keys: &Arc<Keys>, server_keys: &Arc<Keys>) -> Pair {
    let mut pair = Pair::dialled();
    pair.client = ClientSession::connect(0, with_keys("reader", client_keys, 1), TIMEOUT_NS);
    pair.server = ServerSession::new(0, with_keys("writer", server_keys, 2));
    pair.client.bind(BINDING.to_vec());
    pair.server.bind(BINDING.to_vec());
    pair
}

fn client_message(client: &mut ClientSession) -> Vec<u8> {
    client.next_message().expect("a message").bytes
}

/// The hello and the proofs of a subscriber, as somebody on its way could record them, and the session of the publisher's node up to
/// the proofs.
fn before_proofs(client_keys: &Arc<Keys>) -> (ClientSession, Vec<u8>, ServerSession, Vec<u8>) {
    let Pair { mut client, mut server, .. } = pair(client_keys, &server_keys());
    let hello = client_message(&mut client);
    server.on_message(&hello, 0);
    let answer = codec::encode(&sent(server.next_action()));
    assert_eq!(server.next_action(), None);
    assert_eq!(client.on_message(&answer, 0), Ok(None));
    let proofs = client_message(&mut client);
    (client, hello, server, proofs)
}

/// The server refuses without a reason that a stranger could learn from, and says nothing else.
#[track_caller]
fn is_refused(server: &mut ServerSession, why: Unproven) {
    let Message::Refuse(refuse) = sent(server.next_action()) else { panic!("no refusal") };
    assert_eq!((refuse.reason, refuse.text.as_str()), (RefuseReason::NotAuthenticated, ""));
    let result = Err(ControlError::Unauthenticated { why });
    assert_eq!(server.next_action(), Some(ServerAction::Close { result }));
    assert_eq!(server.next_action(), None);
}

fn proofs_of(message: &[u8]) -> Vec<Proof> {
    let Ok(Message::Prove(prove)) = codec::decode(message) else { panic!("no proofs") };
    prove.items().to_vec()
}

fn proving(proofs: impl IntoIterator<Item = Proof>) -> Vec<u8> {
    codec::encode(&Message::Prove(Prove::cut(proofs)))
}

#[test]
fn nodes_that_share_a_key_authenticate_each_other() {
    let client_keys = keys(&format!("mine read * {}\nunknown read * {}", secret(1), secret(9)));
    let mut pair = pair(&client_keys, &server_keys());
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::Ready { peer: identity("writer") }]);
    assert_eq!(pair.asked, [ServerAction::PeerIdentified(identity("reader"))]);
    let (own, peers) = (pair.client.key_for(&topic("pull")), pair.server.key_for(&topic("pull")));
    assert_eq!(own.as_ref().map(KeyName::as_str), Some("mine"));
    assert_eq!(peers.as_ref().map(KeyName::as_str), Some("desk"), "each end has its own name for it");
    pair.events.clear();
    pair.attach("pull", Delivery::Pull);
}

#[test]
fn topic_that_no_proven_key_covers_is_refused_whether_or_not_it_exists() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    let mut pair = pair(&client_keys, &server_keys());
    pair.pump();
    (pair.events, pair.asked) = (Vec::new(), Vec::new());
    let mut refusals = Vec::new();
    for name in ["small", "nothing", "orders"] {
        let attach = pair.client.attach(topic(name), Delivery::Pull, None, KindOptions::default());
        let attachment = attach.unwrap();
        pair.pump();
        let Some(ClientEvent::Refused { attachment: refused, reason, text }) = pair.events.pop() else {
            panic!("{name}")
        };
        assert_eq!((refused, reason), (attachment, RefuseReason::NotPermitted), "{name}");
        refusals.push(text);
    }
    assert!(refusals.iter().all(|text| *text == refusals[0]), "{refusals:?}");
    assert_eq!(pair.asked, [], "the publisher's node was not asked");
    assert!(!pair.server.permits(&topic("small")) && pair.server.permits(&topic("push")));
}

#[test]
fn subscriber_exposes_no_memory_for_a_topic_that_its_keys_do_not_cover() {
    let client_keys = keys(&format!("mine read push {}", secret(1)));
    let mut pair = pair(&client_keys, &server_keys());
    pair.pump();
    let error = pair.client.attach(topic("pull"), Delivery::Push, None, KindOptions::default());
    assert_eq!(error, Err(ControlError::NotCovered { topic: topic("pull") }));
    assert_eq!(pair.client.next_message(), None);
}

#[test]
fn stranger_is_refused_at_its_hello_and_learns_nothing() {
    let mut server = ServerSession::new(0, with_keys("writer", &server_keys(), 2));
    server.bind(BINDING.to_vec());
    server.on_message(&hello(None), 0);
    is_refused(&mut server, Unproven::WithoutKeys);
}

#[test]
fn nothing_is_answered_before_the_proof() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    for message in sample::every_message() {
        if matches!(message, Message::Refuse(_) | Message::Prove(_)) {
            continue;
        }
        let (_, _, mut server, _) = before_proofs(&client_keys);
        server.on_message(&codec::encode(&message), 0);
        let Message::Refuse(refuse) = sent(server.next_action()) else { panic!("{message:?}") };
        assert_eq!(refuse.reason, RefuseReason::Unexpected, "{message:?}");
        assert!(matches!(server.next_action(), Some(ServerAction::Close { .. })));
        let (mut client, ..) = before_proofs(&client_keys);
        assert!(client.on_message(&codec::encode(&message), 0).is_err(), "{message:?}");
    }
}

#[test]
fn wrong_keys_and_rights_are_refused() {
    for (lines, why) in [
        (format!("mine read * {}", secret(9)), Unproven::NoKnownKey),
        // Known, and not for reading.
        (format!("mine read * {}", secret(3)), Unproven::NoKnownKey),
        // Known, and for a node of another name.
        (format!("mine read * {}", secret(2)), Unproven::NoKnownKey),
    ] {
        let (_, _, mut server, proofs) = before_proofs(&keys(&lines));
        server.on_message(&proofs, 0);
        is_refused(&mut server, why);
    }
    let (_, _, mut server, _) = before_proofs(&keys(&format!("mine read * {}", secret(1))));
    server.on_message(&proving([]), 0);
    is_refused(&mut server, Unproven::NoKnownKey);
}

#[test]
fn recorded_proofs_are_worthless_in_another_session() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    let (_, hello, _, proofs) = before_proofs(&client_keys);
    let mut server = ServerSession::new(0, with_keys("writer", &server_keys(), 3));
    server.bind(BINDING.to_vec());
    server.on_message(&hello, 0);
    sent(server.next_action());
    server.on_message(&proofs, 0);
    is_refused(&mut server, Unproven::WrongTag);
}

#[test]
fn proofs_passed_on_from_another_connection_are_refused() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    let mut pair = pair(&client_keys, &server_keys());
    pair.client.bind(b"the subscriber and a stranger".to_vec());
    pair.pump();
    assert_eq!(pair.closed, Some(Err(ControlError::Unauthenticated { why: Unproven::WrongTag })));
    let refused = ControlError::Refused { reason: RefuseReason::NotAuthenticated, text: String::new() };
    assert_eq!(pair.failed, Some(refused));
}

#[test]
fn session_without_a_binding_proves_nothing() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    let mut client = ClientSession::connect(0, with_keys("reader", &client_keys, 1), TIMEOUT_NS);
    let mut server = ServerSession::new(0, with_keys("writer", &server_keys(), 2));
    assert!(client.needs_binding() && server.needs_binding());
    server.on_message(&client_message(&mut client), 0);
    is_refused(&mut server, Unproven::Unbound);
}

#[test]
fn changed_hello_and_changed_tag_are_noticed() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    let (_, hello, _, proofs) = before_proofs(&client_keys);
    let Ok(Message::Hello(said)) = codec::decode(&hello) else { panic!() };
    // Somebody on the way calls the node by another name.
    let renamed = codec::encode(&Message::Hello(Hello { identity: identity("other-node"), ..said }));
    let mut server = ServerSession::new(0, with_keys("writer", &server_keys(), 2));
    server.bind(BINDING.to_vec());
    server.on_message(&renamed, 0);
    sent(server.next_action());
    server.on_message(&proofs, 0);
    is_refused(&mut server, Unproven::WrongTag);

    for bit in 0..256 {
        let (_, _, mut server, proofs) = before_proofs(&client_keys);
        let mut changed = proofs_of(&proofs);
        changed[0].tag[bit / 8] ^= 1 << (bit % 8);
        server.on_message(&proving(changed), 0);
        is_refused(&mut server, Unproven::WrongTag);
    }
}

/// A peer without the secret answers with the challenge, and with the tag, of the end that it talks to.
#[test]
fn reflected_challenge_and_tag_are_refused() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    let mut client = ClientSession::connect(0, with_keys("reader", &client_keys, 1), TIMEOUT_NS);
    client.bind(BINDING.to_vec());
    let Ok(Message::Hello(said)) = codec::decode(&client_message(&mut client)) else { panic!() };
    let reflected = Hello { answers: Some(said.nonce), ..said };
    assert_eq!(client.on_message(&codec::encode(&Message::Hello(reflected)), 0), Ok(None));
    let proofs = client_message(&mut client);
    let error = client.on_message(&proofs, 0).unwrap_err();
    assert_eq!(error, ControlError::Unauthenticated { why: Unproven::WrongTag });
    let Ok(Message::Refuse(refuse)) = codec::decode(&client_message(&mut client)) else { panic!() };
    assert_eq!((refuse.reason, refuse.text.as_str()), (RefuseReason::NotAuthenticated, ""));
}

#[test]
fn dialled_node_that_proves_nothing_is_refused_unless_its_medium_vouches_for_it() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    for trusts in [false, true] {
        let mut pair = pair(&client_keys, &server_keys());
        let credentials = Credentials::new(Arc::clone(&client_keys), Challenge([1; 32]), trusts);
        let greeting = Greeting::new(identity("reader"), nonce(1), credentials);
        pair.client = ClientSession::connect(0, greeting, TIMEOUT_NS);
        pair.client.bind(BINDING.to_vec());
        pair.server = ServerSession::new(0, sample::greeting("writer", 2));
        pair.pump();
        if trusts {
            assert_eq!(pair.events, [ClientEvent::Ready { peer: identity("writer") }]);
            pair.events.clear();
            pair.attach("small", Delivery::Pull);
        } else {
            let why = Unproven::DialledWithoutKeys;
            assert_eq!(pair.failed, Some(ControlError::Unauthenticated { why }));
        }
    }
    let (mut client, ..) = before_proofs(&client_keys);
    let empty = client.on_message(&proving([]), 0).unwrap_err();
    assert_eq!(empty, ControlError::Unauthenticated { why: Unproven::NoKnownKey });
}

#[test]
fn node_without_a_key_for_its_purpose_says_so() {
    let publishing = keys(&format!("mine publish * {}", secret(3)));
    let mut pair = pair(&publishing, &server_keys());
    pair.pump();
    let error = pair.failed.expect("it cannot read");
    assert!(error.to_string().contains("a key with the right to read"), "{error}");
}

#[test]
fn publisher_that_dials_needs_a_key_that_covers_its_topic() {
    for (name, is_covered) in [("orders/1", true), ("pull", false)] {
        let inviting_keys = keys(&format!("e publish * {}", secret(3)));
        let mut inviting = ServerSession::inviting(100, with_keys("engine", &inviting_keys, 4), topic(name));
        let mut end = ServerSession::new(0, with_keys("desk", &server_keys(), 5));
        inviting.bind(BINDING.to_vec());
        end.bind(BINDING.to_vec());
        let mut deliver = |from_inviting: bool| {
            let (from, to) =
                if from_inviting { (&mut inviting, &mut end) } else { (&mut end, &mut inviting) };
            let message = sent(from.next_action());
            to.on_message(&codec::encode(&message), 0);
            message.name()
        };
        let turns = [true, false, true, false, true];
        assert_eq!(turns.map(&mut deliver), ["Hello", "Hello", "Prove", "Prove", "Invite"]);
        assert_eq!(inviting.next_action(), Some(ServerAction::PeerIdentified(identity("desk"))));
        if is_covered {
            let expected = Invited { identity: identity("engine"), topic: topic(name) };
            assert_eq!(end.next_action(), Some(ServerAction::Invited(expected)));
            assert!(inviting.permits(&topic(name)));
            let client = ClientSession::invited(greeting("desk", 1), end.authority(), TIMEOUT_NS);
            assert_eq!(client.key_for(&topic(name)).as_ref().map(KeyName::as_str), Some("engine"));
        } else {
            let Message::Refuse(refuse) = sent(end.next_action()) else { panic!() };
            assert_eq!(refuse.reason, RefuseReason::NotPermitted);
        }
    }
}

/// A node that knows a key for other topics is not told this one.
#[test]
fn publisher_names_no_topic_that_its_own_keys_do_not_cover() {
    let inviting_keys = keys(&format!("e publish other {}", secret(3)));
    let mut inviting =
        ServerSession::inviting(100, with_keys("engine", &inviting_keys, 4), topic("orders/1"));
    let mut end = ServerSession::new(0, with_keys("desk", &server_keys(), 5));
    inviting.bind(BINDING.to_vec());
    end.bind(BINDING.to_vec());
    for _ in 0..2 {
        end.on_message(&codec::encode(&sent(inviting.next_action())), 0);
        inviting.on_message(&codec::encode(&sent(end.next_action())), 0);
    }
    let result = Err(ControlError::NotCovered { topic: topic("orders/1") });
    assert_eq!(inviting.next_action(), Some(ServerAction::Close { result }));
}

#[test]
fn missing_proof_costs_its_deadline() {
    let client_keys = keys(&format!("mine read * {}", secret(1)));
    let (mut client, _, mut server, _) = before_proofs(&client_keys);
    assert_eq!(client.deadline_ns(), Some(TIMEOUT_NS));
    let awaited = "proof of a key";
    assert_eq!(client.on_time(TIMEOUT_NS), Err(ControlError::Deadline { awaited }));
    server.on_time(limits::HELLO_DEADLINE_NS);
    assert!(matches!(sent(server.next_action()), Message::Refuse(_)));
    let result = Err(ControlError::Deadline { awaited });
    assert_eq!(server.next_action(), Some(ServerAction::Close { result }));
}
