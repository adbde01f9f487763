//! What a peer may not say, and how it is refused.

use super::*;

#[test]
fn a_server_refuses_another_version_by_name() {
    let mut server = ServerSession::new(0, greeting("writer", 2));
    server.on_message(&of_version_1(hello(None)), 0);
    let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
    assert_eq!(refuse.reason, RefuseReason::VersionUnsupported);
    assert_eq!(
        refuse.text.as_str(),
        "the peer speaks control version 1, this program speaks 6: upgrade the older one"
    );
    let result = Err(ControlError::Version { theirs: 1, ours: 6 });
    assert_eq!(server.next_action(), Some(ServerAction::Close { result }));
    assert_eq!(server.next_action(), None);
}

#[test]
fn a_client_refuses_another_version_by_name() {
    let mut client = ClientSession::connect(0, greeting("reader", 1), TIMEOUT_NS);
    client.next_message();
    let error = client.on_message(&of_version_1(hello(Some(1))), 0).unwrap_err();
    assert_eq!(error, ControlError::Version { theirs: 1, ours: 6 });
    let refuse = codec::decode(&client.next_message().unwrap().bytes).unwrap();
    assert!(matches!(refuse, Message::Refuse(refuse) if refuse.reason == RefuseReason::VersionUnsupported));
}

/// A node of version 1 answers the hello of this one with a refusal of its own version.
#[test]
fn a_client_that_is_refused_for_its_version_names_both() {
    let refuse = Refuse::new(RefuseReason::VersionUnsupported, "too old");
    let body = super::super::frame::refuse_body(&refuse);
    let bytes =
        super::super::frame::Frame { version: 1, kind: MessageKind::Refuse.number(), body: &body }.emit();
    let mut client = ClientSession::connect(0, greeting("reader", 1), TIMEOUT_NS);
    client.next_message();
    assert_eq!(client.on_message(&bytes, 0), Err(ControlError::Version { theirs: 1, ours: 6 }));
    assert_eq!(client.next_message(), None, "a refusal is not answered");

    let mut server = ServerSession::new(0, greeting("writer", 2));
    server.on_message(&bytes, 0);
    let result = Err(ControlError::Version { theirs: 1, ours: 6 });
    assert_eq!(server.next_action(), Some(ServerAction::Close { result }));
}

#[test]
fn garbage_is_refused_with_a_sentence() {
    let flipped = |at: usize| {
        let mut bytes = hello(None);
        bytes[at] ^= 1;
        bytes
    };
    let long = vec![b'F'; limits::CONTROL_MESSAGE_LEN_MAX + 1];
    for garbage in [Vec::new(), b"GET / HTTP/1.1\r\n\r\n".to_vec(), flipped(30), long] {
        let mut server = ServerSession::new(0, greeting("writer", 2));
        server.on_message(&garbage, 0);
        let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
        assert_eq!(refuse.reason, RefuseReason::Malformed);
        let Some(ServerAction::Close { result: Err(error) }) = server.next_action() else { panic!() };
        assert_eq!(refuse.text.as_str(), error.to_string());
        server.on_message(&hello(None), 0);
        assert_eq!(server.next_action(), None, "a session that is over does nothing");
    }
}

#[test]
fn messages_out_of_turn_are_refused() {
    for (name, bytes) in [
        ("Hello", hello(None)),
        ("Topics", codec::encode(&Message::Topics(Topics { page: Page::default(), more: false }))),
        ("Granted", codec::encode(&Message::Granted(sample::grant(0)))),
    ] {
        let mut pair = Pair::ready();
        pair.server.on_message(&bytes, 0);
        pair.expect_refusal(&ControlError::Unexpected { message: name, state: "ready for requests" });
    }
    let mut server = ServerSession::new(0, greeting("writer", 2));
    server.on_message(&codec::encode(&Message::ListTopics(ListTopics { after: None })), 0);
    let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
    assert_eq!(
        refuse.text.as_str(),
        "the peer sent ListTopics while the session was waiting for the first hello"
    );
}

#[test]
fn a_hello_that_answers_another_is_refused() {
    let mut server = ServerSession::new(0, greeting("writer", 2));
    server.on_message(&hello(Some(7)), 0);
    assert!(matches!(sent(server.next_action()), Message::Refuse(_)));
    for answers in [None, Some(7)] {
        let mut client = ClientSession::connect(0, greeting("reader", 1), TIMEOUT_NS);
        let error = client.on_message(&hello(answers), 0).unwrap_err();
        assert!(matches!(error, ControlError::WrongAnswer { message: "Hello", .. }));
    }
}

#[test]
fn attachments_out_of_turn_are_refused() {
    let attachment = AttachmentId::new(0);
    let attach = |delivery| {
        Message::Attach(Attach {
            attachment,
            topic: topic("pull"),
            delivery,
            schema_hash: None,
            options: KindOptions::default(),
            progress: None,
        })
    };
    let expose = Message::Expose(attachment);
    let detach = Message::Detach(Detach { attachment, counts: counts(0) });
    let unknown = "not an attachment of this session";
    let twice = "granted for pull";
    for (before, message, regions, name, state) in [
        (None, &detach, 0, "Detach", unknown),
        (None, &expose, 1, "Expose", unknown),
        (Some(Delivery::Pull), &attach(Delivery::Pull), 0, "Attach", twice),
        (Some(Delivery::Pull), &expose, 1, "Expose", twice),
    ] {
        let mut pair = Pair::ready();
        if let Some(delivery) = before {
            pair.attach("pull", delivery);
        }
        pair.server.on_message(&codec::encode(message), regions);
        pair.expect_refusal(&ControlError::WrongAttachment { message: name, attachment: 0, state });
    }
}

#[test]
fn regions_travel_with_the_right_messages_only() {
    for regions in [0, 2] {
        let mut pair = Pair::ready();
        pair.attach("push", Delivery::Push);
        let expose = Message::Expose(AttachmentId::new(0));
        pair.server.on_message(&codec::encode(&expose), regions);
        pair.expect_refusal(&ControlError::WrongRegions { message: "Expose", expected: 1, found: regions });
    }
    let mut pair = Pair::ready();
    pair.server.on_message(&codec::encode(&Message::ListTopics(ListTopics { after: None })), 1);
    pair.expect_refusal(&ControlError::WrongRegions { message: "ListTopics", expected: 0, found: 1 });

    for (delivery, expected, found) in [(Delivery::Pull, 1, 0), (Delivery::Push, 0, 1)] {
        let mut pair = Pair::ready();
        let attachment = pair.client.attach(topic("pull"), delivery, None, KindOptions::default()).unwrap();
        let granted = Message::Granted(grant_of(attachment, &topic("pull")));
        let error = ControlError::WrongRegions { message: "Granted", expected, found };
        assert_eq!(pair.client.on_message(&codec::encode(&granted), found), Err(error));
    }
}

#[test]
fn unrequested_answers_end_the_session() {
    let attachment = AttachmentId::new(0);
    for message in sample::every_message() {
        if matches!(message, Message::Refuse(_) | Message::End(_)) {
            continue;
        }
        let mut pair = Pair::ready();
        let error = pair.client.on_message(&codec::encode(&message), 0).unwrap_err();
        assert!(Refuse::because(&error).is_some(), "{error}");
        pair.pump();
        assert!(matches!(
            pair.closed,
            Some(Err(ControlError::Refused { reason: RefuseReason::Unexpected, .. }))
        ));
    }
    let mut pair = Pair::ready();
    pair.client.attach(topic("pull"), Delivery::Pull, None, KindOptions::default()).unwrap();
    let granted = Message::Granted(grant_of(attachment, &topic("push")));
    let error = pair.client.on_message(&codec::encode(&granted), 1).unwrap_err();
    assert!(matches!(error, ControlError::WrongAnswer { message: "Granted", .. }), "{error}");
}

/// A node cannot keep a reader of its directory busy for ever.
#[test]
fn pages_must_go_forward() {
    let names = |names: &[&str]| names.iter().map(|name| entry(name)).collect::<Vec<_>>();
    for (after, entries, more) in [
        (None, names(&["b", "a"]), false),
        (None, names(&["a", "a"]), false),
        (Some("a"), names(&["a", "b"]), true),
        (None, names(&[]), true),
    ] {
        let mut pair = Pair::ready();
        pair.client.list(after.map(topic)).unwrap();
        let topics = Message::Topics(Topics { page: Page::cut(entries), more });
        let error = pair.client.on_message(&codec::encode(&topics), 0).unwrap_err();
        assert!(matches!(error, ControlError::WrongAnswer { message: "Topics", .. }));
    }
}
