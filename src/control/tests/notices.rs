//! Conversations about notices.

use super::*;
use crate::control::notices::{Notices, NoticesBy, TicketBytes};

fn listen(attachment: AttachmentId) -> Vec<u8> {
    codec::encode(&Message::Listen(attachment))
}

fn notices(attachment: AttachmentId, by: NoticesBy) -> Vec<u8> {
    codec::encode(&Message::Notices(Notices { attachment, by }))
}

/// Delivers the client's pending message to the server, and returns the server's next action.
fn arrives(pair: &mut Pair) -> Option<ServerAction> {
    pair.server.on_message(&pair.client.next_message().unwrap().bytes, 0);
    pair.server.next_action()
}

#[test]
fn notices_are_asked_for_once_and_a_wake_word_brings_its_memory() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    pair.client.listen(attachment).unwrap();
    assert!(matches!(pair.client.listen(attachment), Err(ControlError::NotPossible { .. })));
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::Notices(Notices { attachment, by: NoticesBy::WakeWord })]);
    assert_eq!(pair.regions, (2, 0), "the repository and the wake word");
    // Nor again when it was answered.
    assert!(matches!(pair.client.listen(attachment), Err(ControlError::NotPossible { .. })));
    pair.client.heard(sample::heard(true)).unwrap();
    pair.pump();
    assert_eq!(pair.asked.last(), Some(&ServerAction::Heard(sample::heard(true))));

    // A client without that check is refused.
    pair.server.on_message(&listen(attachment), 0);
    let state = "already subscribed to notices";
    pair.expect_refusal(&ControlError::WrongAttachment { message: "Listen", attachment: 0, state });
}

#[test]
fn a_reused_attachment_number_may_listen_again() {
    let mut pair = Pair::ready();
    for ended in [false, true, false] {
        let attachment = AttachmentId::new(7);
        let (topic, delivery) = (topic("pull"), Delivery::Pull);
        let attach = Message::Attach(Attach {
            attachment,
            topic: topic.clone(),
            delivery,
            schema_hash: None,
            options: KindOptions::default(),
            progress: None,
        });
        let detach = Message::Detach(Detach { attachment, counts: counts(0) });
        pair.server.on_message(&codec::encode(&attach), 0);
        assert!(matches!(pair.server.next_action(), Some(ServerAction::Attach(_))));
        pair.server.grant(grant_of(attachment, &topic)).unwrap();
        sent(pair.server.next_action());
        pair.server.on_message(&listen(attachment), 0);
        assert_eq!(pair.server.next_action(), Some(ServerAction::Listen(attachment)));
        if ended {
            pair.server.topic_ended(attachment, 1).unwrap();
            sent(pair.server.next_action());
        }
        pair.server.on_message(&codec::encode(&detach), 0);
        if !ended {
            pair.server.next_action();
            pair.server.detached(attachment, 1).unwrap();
        }
        assert!(matches!(sent(pair.server.next_action()), Message::Detached(_)));
        pair.server.next_action();
    }
}

#[test]
fn listening_out_of_turn_is_refused() {
    // Before the attachment exists, and for an unknown one.
    let mut pair = Pair::ready();
    pair.server.on_message(&listen(AttachmentId::new(0)), 0);
    let state = "not an attachment of this session";
    pair.expect_refusal(&ControlError::WrongAttachment { message: "Listen", attachment: 0, state });

    let unanswered = |delivery| {
        let mut pair = Pair::ready();
        let attachment = pair.client.attach(topic("pull"), delivery, None, KindOptions::default()).unwrap();
        (pair, attachment)
    };
    // Before the grant.
    let (mut pair, attachment) = unanswered(Delivery::Pull);
    assert!(matches!(pair.client.listen(attachment), Err(ControlError::NotPossible { .. })));
    assert!(matches!(arrives(&mut pair), Some(ServerAction::Attach(_))));
    pair.server.on_message(&listen(attachment), 0);
    let state = "waiting for a grant";
    pair.expect_refusal(&ControlError::WrongAttachment { message: "Listen", attachment: 0, state });

    // Before the landing region is accepted.
    let mut pair = Pair::ready();
    let attachment = pair.attach("push", Delivery::Push);
    pair.client.expose(attachment).unwrap();
    assert!(matches!(pair.client.listen(attachment), Err(ControlError::NotPossible { .. })));
    pair.server.on_message(&pair.client.next_message().unwrap().bytes, 1);
    pair.server.next_action();
    pair.server.on_message(&listen(attachment), 0);
    let state = "waiting for its landing region to be accepted";
    pair.expect_refusal(&ControlError::WrongAttachment { message: "Listen", attachment: 0, state });

    // After it was detached.
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    pair.client.detach(attachment, counts(0)).unwrap();
    assert!(matches!(pair.client.listen(attachment), Err(ControlError::NotPossible { .. })));
    assert!(matches!(arrives(&mut pair), Some(ServerAction::Detach(_))));
    pair.server.on_message(&listen(attachment), 0);
    pair.expect_refusal(&ControlError::WrongAttachment {
        message: "Listen",
        attachment: 0,
        state: "detaching",
    });
}

#[test]
fn a_subscriber_that_leaves_while_it_waits_for_notices_gets_no_answer() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    pair.client.listen(attachment).unwrap();
    pair.client.detach(attachment, counts(1)).unwrap();
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::Detached(Detached { attachment, published: 77 })]);
    assert_eq!((&pair.closed, &pair.failed), (&None, &None));

    // The answer crosses the detachment.
    assert!(matches!(
        pair.server.notices(attachment, NoticesBy::Nothing),
        Err(ControlError::NotPossible { .. })
    ));
    assert_eq!(pair.server.next_action(), None);
}

#[test]
fn listening_that_crosses_the_end_of_the_topic_is_answered_with_nothing() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    pair.server.topic_ended(attachment, 41).unwrap();
    pair.client.listen(attachment).unwrap();
    pair.pump();
    let told = ClientEvent::Notices(Notices { attachment, by: NoticesBy::Nothing });
    assert_eq!(pair.events, [ClientEvent::TopicEnded(TopicEnded { attachment, published: 41 }), told]);
    // A client that knows of the end does not ask.
    let another = pair.attach("pull", Delivery::Pull);
    pair.events.clear();
    pair.server.topic_ended(another, 41).unwrap();
    pair.pump();
    assert!(matches!(pair.client.listen(another), Err(ControlError::NotPossible { .. })));
    // It has asked before.
    pair.server.on_message(&listen(attachment), 0);
    let state = "already subscribed to notices";
    pair.expect_refusal(&ControlError::WrongAttachment { message: "Listen", attachment: 0, state });
}

#[test]
fn listening_that_crosses_the_end_of_the_session_is_not_answered() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    pair.server.shutdown(0);
    pair.client.listen(attachment).unwrap();
    pair.client.heard(sample::heard(false)).unwrap();
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::EndAsked { reason: EndReason::SHUTDOWN }]);
    assert_eq!((&pair.closed, &pair.failed), (&None, &None));

    // And the answer that crosses the client's end.
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    pair.client.listen(attachment).unwrap();
    pair.client.end(0, EndReason::DONE, counts(0)).unwrap();
    pair.pump();
    assert!(matches!(pair.events[..], [ClientEvent::Ended { .. }]));
    assert_eq!((pair.regions, pair.failed), ((2, 0), None));
}

#[test]
fn unrequested_notices_end_the_session() {
    let expect = |mut pair: Pair, bytes: &[u8], error: ControlError| {
        assert_eq!(pair.client.on_message(bytes, 0), Err(error));
        pair.pump();
        let refused = |result: &Result<_, _>| matches!(result, Err(ControlError::Refused { .. }));
        assert!(pair.closed.as_ref().is_some_and(refused), "{:?}", pair.closed);
    };
    let wrong = |state| ControlError::WrongAttachment { message: "Notices", attachment: 0, state };
    let nothing = notices(AttachmentId::new(0), NoticesBy::Nothing);
    expect(Pair::ready(), &nothing, wrong("not an attachment of this session"));
    let mut pair = Pair::ready();
    pair.attach("pull", Delivery::Pull);
    expect(pair, &nothing, wrong("granted for pull"));
    // A second answer.
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    pair.client.listen(attachment).unwrap();
    pair.pump();
    expect(pair, &nothing, wrong("granted for pull"));
}

#[test]
fn a_wake_word_comes_with_its_memory_and_nothing_else_with_any() {
    for (by, found) in [
        (NoticesBy::WakeWord, 0),
        (NoticesBy::Nothing, 1),
        (NoticesBy::Immediate, 1),
        (NoticesBy::Channel(sample::channel()), 1),
    ] {
        let mut pair = Pair::ready();
        let attachment = pair.attach("pull", Delivery::Pull);
        pair.client.listen(attachment).unwrap();
        let error = ControlError::WrongRegions { message: "Notices", expected: 1 - found, found };
        assert_eq!(pair.client.on_message(&notices(attachment, by), found), Err(error));
    }
    for message in [listen(AttachmentId::new(0)), codec::encode(&Message::Heard(sample::heard(true)))] {
        let mut pair = Pair::ready();
        pair.attach("pull", Delivery::Pull);
        pair.server.on_message(&message, 1);
        assert!(matches!(pair.server.next_action(), Some(ServerAction::Send(_))));
        let Some(ServerAction::Close { result: Err(error) }) = pair.server.next_action() else { panic!() };
        assert!(matches!(error, ControlError::WrongRegions { expected: 0, found: 1, .. }), "{error}");
    }
}

/// A report may cross a detachment, so it is accepted from any peer, and bounded by its type.
#[test]
fn a_report_is_accepted_without_a_request() {
    let mut pair = Pair::ready();
    for _ in 0..10_000 {
        let heard = codec::encode(&Message::Heard(sample::heard(false)));
        pair.server.on_message(&heard, 0);
        assert_eq!(pair.server.next_action(), Some(ServerAction::Heard(sample::heard(false))));
    }
    assert_eq!(TicketBytes::default().as_bytes(), b"");
    pair.attach("pull", Delivery::Pull);
    // Not before the hello.
    let mut server = ServerSession::new(0, greeting("writer", 2));
    server.on_message(&codec::encode(&Message::Heard(sample::heard(true))), 0);
    assert!(matches!(sent(server.next_action()), Message::Refuse(_)));
}
