//! How sessions end, and what a silent or a hurried owner costs.

use super::*;

#[test]
fn the_subscriber_ends_the_session() {
    let mut pair = Pair::ready();
    pair.attach("pull", Delivery::Pull);
    pair.client.end(0, EndReason::DONE, counts(5)).unwrap();
    assert!(matches!(pair.client.list(None), Err(ControlError::Closed { state: "ending" })));
    pair.pump();
    let summary = EndSummary { reason: EndReason::DONE, counts: counts(5) };
    assert_eq!(pair.events, [ClientEvent::Ended { summary }]);
    assert_eq!(pair.closed, Some(Ok(summary)));
    assert_eq!(pair.client.on_disconnected(), Ok(()));
    assert_eq!((pair.client.deadline_ns(), pair.server.deadline_ns()), (None, None));
}

#[test]
fn the_publisher_ends_the_session() {
    let mut pair = Pair::ready();
    pair.attach("pull", Delivery::Pull);
    pair.server.shutdown(100);
    assert_eq!(pair.server.deadline_ns(), Some(100 + limits::ANSWER_DEADLINE_NS));
    // A request crosses the end: it is not answered, and neither side is at fault.
    pair.client.list(None).unwrap();
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::EndAsked { reason: EndReason::SHUTDOWN }]);
    assert_eq!((&pair.closed, pair.client.deadline_ns()), (&None, None));

    pair.client.end(0, EndReason::SHUTDOWN, counts(6)).unwrap();
    assert!(matches!(pair.client.end(0, EndReason::DONE, counts(6)), Err(ControlError::Closed { .. })));
    pair.pump();
    assert_eq!(pair.closed, Some(Ok(EndSummary { reason: EndReason::SHUTDOWN, counts: counts(6) })));
    assert_eq!(pair.failed, None);
}

#[test]
fn both_sides_end_the_session_at_once() {
    let mut pair = Pair::ready();
    pair.server.shutdown(0);
    pair.client.end(0, EndReason::DONE, counts(6)).unwrap();
    pair.pump();
    assert_eq!(pair.closed, Some(Ok(EndSummary { reason: EndReason::DONE, counts: counts(6) })));
    assert!(
        matches!(pair.events[..], [ClientEvent::Ended { summary }] if summary.reason == EndReason::SHUTDOWN)
    );
}

#[test]
fn a_grant_that_crosses_the_end_is_dropped_with_its_region() {
    let mut pair = Pair::ready();
    pair.client.attach(topic("pull"), Delivery::Pull, None, KindOptions::default()).unwrap();
    pair.client.end(0, EndReason::DONE, counts(0)).unwrap();
    pair.pump();
    assert!(matches!(pair.events[..], [ClientEvent::Ended { .. }]));
    assert_eq!((pair.regions, pair.failed), ((1, 0), None));
    assert!(matches!(pair.closed, Some(Ok(_))));
}

#[test]
fn a_silent_peer_costs_a_deadline() {
    let mut server = ServerSession::new(10, greeting("writer", 2));
    let deadline_ns = server.deadline_ns().unwrap();
    assert_eq!(deadline_ns, 10 + limits::HELLO_DEADLINE_NS);
    server.on_time(deadline_ns - 1);
    assert_eq!(server.next_action(), None);
    server.on_time(deadline_ns);
    let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
    assert_eq!(refuse.reason, RefuseReason::HelloDeadline);
    let result = Err(ControlError::Deadline { awaited: "hello" });
    assert_eq!(server.next_action(), Some(ServerAction::Close { result }));

    let mut client = ClientSession::connect(10, greeting("reader", 1), TIMEOUT_NS);
    assert_eq!(client.deadline_ns(), Some(10 + TIMEOUT_NS));
    client.expect_hello_until(20);
    assert_eq!(client.deadline_ns(), Some(20));
    client.expect_hello_until(10 + TIMEOUT_NS);
    assert_eq!(client.on_time(9 + TIMEOUT_NS), Ok(()));
    assert_eq!(client.on_time(10 + TIMEOUT_NS), Err(ControlError::Deadline { awaited: "hello" }));
    assert_eq!(client.deadline_ns(), None);
}

#[test]
fn a_session_that_waits_for_an_answer_has_no_deadline_and_one_that_ends_has() {
    let mut pair = Pair::ready();
    assert_eq!((pair.client.deadline_ns(), pair.server.deadline_ns()), (None, None), "idle in good order");
    pair.client.attach(topic("pull"), Delivery::Pull, None, KindOptions::default()).unwrap();
    pair.client.list(None).unwrap();
    assert_eq!(pair.client.deadline_ns(), None);
    assert_eq!(pair.client.on_time(u64::MAX), Ok(()));
    pair.client.end(10, EndReason::DONE, counts(0)).unwrap();
    assert_eq!(pair.client.deadline_ns(), Some(10 + TIMEOUT_NS));
    let error = pair.client.on_time(10 + TIMEOUT_NS).unwrap_err();
    assert_eq!(error, ControlError::Deadline { awaited: "end of the session" });

    let mut pair = Pair::ready();
    pair.server.shutdown(0);
    pair.server.on_time(limits::ANSWER_DEADLINE_NS);
    sent(pair.server.next_action());
    let result = Err(ControlError::Deadline { awaited: "end of the session" });
    assert_eq!(pair.server.next_action(), Some(ServerAction::Close { result }));
}

#[test]
fn a_peer_that_dies_is_noticed_once() {
    let mut pair = Pair::ready();
    pair.server.on_disconnected();
    pair.server.on_disconnected();
    pair.pump();
    assert_eq!(pair.closed, Some(Err(ControlError::Disconnected)));
    assert_eq!(pair.client.on_disconnected(), Err(ControlError::Disconnected));
    assert_eq!(pair.client.on_disconnected(), Ok(()));
}

#[test]
fn the_owner_may_reject_a_session() {
    let mut pair = Pair::dialled();
    pair.server.reject(RefuseReason::TooManySessions, "come back later");
    pair.pump();
    let error = pair.failed.unwrap();
    let (reason, text) = (RefuseReason::TooManySessions, "come back later".to_owned());
    assert_eq!(error, ControlError::Refused { reason, text });
    assert_eq!(pair.closed, Some(Err(ControlError::Rejected { reason })));
    pair.server.reject(reason, "");
    assert_eq!(pair.server.next_action(), None);
}

#[test]
fn late_decisions_do_nothing() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    assert!(matches!(pair.server.exposed(attachment), Err(ControlError::NotPossible { .. })));
    assert!(matches!(pair.server.detached(attachment, 0), Err(ControlError::NotPossible { .. })));
    assert!(matches!(pair.server.answer_topics(Vec::new(), false), Err(ControlError::WrongAnswer { .. })));
    pair.server.shutdown(0);
    sent(pair.server.next_action());
    assert!(matches!(pair.server.topic_ended(attachment, 0), Err(ControlError::Closed { .. })));
    assert_eq!(pair.server.next_action(), None);
}
