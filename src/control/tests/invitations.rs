//! Publishers' nodes that dial, and invite.

use super::*;

#[test]
fn an_invitation_is_followed_by_a_session_the_other_way_round() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut pair = Pair::invited();
        assert_eq!(pair.server.deadline_ns(), None);
        pair.pump();
        assert_eq!(pair.asked, [ServerAction::PeerIdentified(identity("reader"))]);
        let attachment = pair.attach("pull", delivery);
        if delivery == Delivery::Push {
            pair.client.expose(attachment).unwrap();
            pair.pump();
            assert_eq!(pair.events, [ClientEvent::Exposed(attachment)]);
        }
        pair.client.end(0, EndReason::DONE, counts(5)).unwrap();
        pair.pump();
        assert_eq!(pair.closed, Some(Ok(EndSummary { reason: EndReason::DONE, counts: counts(5) })));
    }
}

/// A dialled node that has received the hello of a publisher, and answered.
fn greeted() -> ServerSession {
    let mut end = ServerSession::new(0, greeting("reader", 3));
    end.on_message(&publishing(), 0);
    assert!(matches!(sent(end.next_action()), Message::Hello(hello) if !hello.invites));
    assert_eq!(end.next_action(), None, "a publisher, not a subscriber");
    end
}

fn invite() -> Vec<u8> {
    codec::encode(&Message::Invite(Invite { topic: topic("pull") }))
}

#[test]
fn a_failed_invitation_reports_why() {
    let mut inviting = ServerSession::inviting(100, greeting("writer", 1), topic("pull"));
    sent(inviting.next_action());
    let answer = sample::hello(nonce(3), Some(nonce(1)), "reader");
    inviting.on_message(&codec::encode(&Message::Hello(answer)), 0);
    assert!(matches!(sent(inviting.next_action()), Message::Invite(_)));
    assert_eq!(inviting.next_action(), Some(ServerAction::PeerIdentified(identity("reader"))));
    let mut end = greeted();
    end.on_message(&invite(), 0);
    assert!(matches!(end.next_action(), Some(ServerAction::Invited(_))));
    end.reject(RefuseReason::NobodyWaits, "");
    inviting.on_message(&codec::encode(&sent(end.next_action())), 0);
    let Some(ServerAction::Close { result: Err(error) }) = inviting.next_action() else { panic!() };
    assert_eq!(error, ControlError::Refused { reason: RefuseReason::NobodyWaits, text: String::new() });
    let result = Err(ControlError::Rejected { reason: RefuseReason::NobodyWaits });
    assert_eq!(end.next_action(), Some(ServerAction::Close { result }));
}

#[test]
fn an_unanswered_hello_and_a_missing_invitation_cost_their_deadline() {
    let mut inviting = ServerSession::inviting(100, greeting("writer", 2), topic("pull"));
    sent(inviting.next_action());
    for (server, deadline_ns, awaited) in
        [(&mut inviting, 100, "hello"), (&mut greeted(), limits::HELLO_DEADLINE_NS, "invitation")]
    {
        assert_eq!(server.deadline_ns(), Some(deadline_ns));
        server.on_time(deadline_ns - 1);
        assert_eq!(server.next_action(), None);
        server.on_time(deadline_ns);
        let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
        assert_eq!(refuse.reason, RefuseReason::HelloDeadline);
        let result = Err(ControlError::Deadline { awaited });
        assert_eq!(server.next_action(), Some(ServerAction::Close { result }));
    }
}

/// An invitation is only valid once, after the hellos, from a peer that dialled to publish.
#[test]
fn an_invitation_anywhere_else_is_refused() {
    let unexpected = |state| ControlError::Unexpected { message: "Invite", state };
    let closed = |server: &mut ServerSession| {
        let actions: Vec<_> = std::iter::from_fn(|| server.next_action()).collect();
        let [.., ServerAction::Send(refuse), ServerAction::Close { result: Err(error) }] = &actions[..]
        else {
            panic!("{actions:?}")
        };
        let Message::Refuse(refuse) = codec::decode(&refuse.bytes).unwrap() else { panic!() };
        assert_eq!((refuse.reason, refuse.text.as_str()), (RefuseReason::Unexpected, &*error.to_string()));
        error.clone()
    };
    let mut pair = Pair::ready();
    pair.server.on_message(&invite(), 0);
    assert_eq!(closed(&mut pair.server), unexpected("ready for requests"));
    let mut pair = Pair::ready();
    pair.server.shutdown(0);
    pair.server.on_message(&invite(), 0);
    assert_eq!(closed(&mut pair.server), unexpected("ending"));

    let mut server = greeted();
    server.on_message(&invite(), 0);
    server.on_message(&invite(), 0);
    assert_eq!(closed(&mut server), unexpected("invited"));
    let mut server = ServerSession::new(0, greeting("reader", 2));
    server.on_message(&invite(), 0);
    assert_eq!(closed(&mut server), unexpected("waiting for the first hello"));
    // Both ends have dialled, and neither would be the subscriber.
    let mut server = ServerSession::inviting(100, greeting("reader", 2), topic("pull"));
    server.on_message(&invite(), 0);
    assert_eq!(closed(&mut server), unexpected("waiting for the answer to its hello"));
    let mut server = greeted();
    server.on_message(&invite(), 1);
    assert_eq!(closed(&mut server), ControlError::WrongRegions { message: "Invite", expected: 0, found: 1 });
    // A publisher that dialled does not subscribe.
    let mut server = greeted();
    server.on_message(&codec::encode(&Message::ListTopics(ListTopics { after: None })), 0);
    let state = "waiting for an invitation";
    assert_eq!(closed(&mut server), ControlError::Unexpected { message: "ListTopics", state });

    for state in ["waiting for the answer to its hello", "ready for requests"] {
        let mut pair = if state.starts_with("ready") { Pair::ready() } else { Pair::dialled() };
        assert_eq!(pair.client.on_message(&invite(), 0), Err(unexpected(state)));
    }
}

#[test]
fn a_stopping_node_accepts_no_invitation() {
    let mut invited = greeted();
    invited.on_message(&invite(), 0);
    invited.next_action();
    let mut inviting = ServerSession::inviting(100, greeting("writer", 2), topic("pull"));
    inviting.next_action();
    for server in [&mut invited, &mut inviting, &mut greeted()] {
        server.shutdown(0);
        let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
        assert_eq!(refuse.reason, RefuseReason::ShuttingDown);
        assert!(matches!(server.next_action(), Some(ServerAction::Close { .. })));
    }
}
