//! Publishers' nodes that dial, and invite.

use super::*;

#[test]
fn an_invitation_is_followed_by_a_session_the_other_way_round() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut pair = Pair::invited(identity("writer"));
        assert_eq!(pair.server.deadline_ns(), Some(100));
        pair.pump();
        assert_eq!(pair.events, [ClientEvent::Ready { peer: identity("writer") }]);
        assert_eq!(pair.asked, [ServerAction::PeerIdentified(identity("reader"))]);
        pair.events.clear();
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

#[test]
fn a_hello_from_another_node_than_the_inviter_is_refused() {
    let mut pair = Pair::invited(identity("somebody"));
    pair.pump();
    let detail = "it is not from the node that sent the invitation";
    assert_eq!(pair.failed, Some(ControlError::WrongAnswer { message: "Hello", detail }));
    let refused = |result: &Result<_, _>| {
        matches!(result, Err(ControlError::Refused { reason: RefuseReason::Unexpected, .. }))
    };
    assert!(pair.closed.as_ref().is_some_and(refused), "{:?}", pair.closed);
}

#[test]
fn a_failed_invitation_reports_why() {
    let mut inviting = ServerSession::inviting(100, identity("writer"), nonce(2), topic("pull"));
    let invite = codec::encode(&sent(inviting.next_action()));
    let mut end = ServerSession::new(0, identity("reader"), nonce(3));
    end.on_message(&invite, 0);
    assert!(matches!(end.next_action(), Some(ServerAction::Invited(_))));
    end.reject(RefuseReason::NobodyWaits, "");
    inviting.on_message(&codec::encode(&sent(end.next_action())), 0);
    let Some(ServerAction::Close { result: Err(error) }) = inviting.next_action() else { panic!() };
    assert_eq!(error, ControlError::Refused { reason: RefuseReason::NobodyWaits, text: String::new() });
    let result = Err(ControlError::Rejected { reason: RefuseReason::NobodyWaits });
    assert_eq!(end.next_action(), Some(ServerAction::Close { result }));
}

#[test]
fn an_unanswered_invitation_costs_its_deadline() {
    let mut inviting = ServerSession::inviting(100, identity("writer"), nonce(2), topic("pull"));
    sent(inviting.next_action());
    inviting.on_time(99);
    assert_eq!(inviting.next_action(), None);
    inviting.on_time(100);
    let Message::Refuse(refuse) = sent(inviting.next_action()) else { panic!() };
    assert_eq!(refuse.reason, RefuseReason::HelloDeadline);
    let result = Err(ControlError::Deadline { awaited: "hello" });
    assert_eq!(inviting.next_action(), Some(ServerAction::Close { result }));
}

/// An invitation is only valid as the first message of a peer that dialled.
#[test]
fn an_invitation_anywhere_else_is_refused() {
    let invite = Message::Invite(Invite { identity: identity("writer"), topic: topic("pull") });
    let invite = codec::encode(&invite);
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
    pair.server.on_message(&invite, 0);
    assert_eq!(closed(&mut pair.server), unexpected("ready for requests"));
    let mut pair = Pair::ready();
    pair.server.shutdown(0);
    pair.server.on_message(&invite, 0);
    assert_eq!(closed(&mut pair.server), unexpected("ending"));

    let mut server = ServerSession::new(0, identity("reader"), nonce(2));
    server.on_message(&invite, 0);
    server.on_message(&invite, 0);
    assert_eq!(closed(&mut server), unexpected("invited"));
    // Both ends have dialled, and neither would be the subscriber.
    let mut server = ServerSession::inviting(100, identity("reader"), nonce(2), topic("pull"));
    server.on_message(&invite, 0);
    assert_eq!(closed(&mut server), unexpected("waiting for the answer to its invitation"));
    let mut server = ServerSession::new(0, identity("reader"), nonce(2));
    server.on_message(&invite, 1);
    assert_eq!(closed(&mut server), ControlError::WrongRegions { message: "Invite", expected: 0, found: 1 });

    for state in ["waiting for the answer to its hello", "ready for requests"] {
        let mut pair = if state.starts_with("ready") { Pair::ready() } else { Pair::dialled() };
        assert_eq!(pair.client.on_message(&invite, 0), Err(unexpected(state)));
    }
}

#[test]
fn a_stopping_node_accepts_no_invitation() {
    let invite = Message::Invite(Invite { identity: identity("writer"), topic: topic("pull") });
    let mut invited = ServerSession::new(0, identity("reader"), nonce(2));
    invited.on_message(&codec::encode(&invite), 0);
    invited.next_action();
    let mut inviting = ServerSession::inviting(100, identity("writer"), nonce(2), topic("pull"));
    inviting.next_action();
    for server in [&mut invited, &mut inviting] {
        server.shutdown(0);
        let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
        assert_eq!(refuse.reason, RefuseReason::ShuttingDown);
        assert!(matches!(server.next_action(), Some(ServerAction::Close { .. })));
    }
}
