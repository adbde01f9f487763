//! Whole conversations between the two ends of a session, over queues of bytes.

mod notices;
mod random;
pub(crate) mod sample;

use std::collections::BTreeMap;

use super::client::{ClientEvent, ClientSession};
use super::codec::{self, Outgoing};
use super::error::{ControlError, RefuseReason};
use super::message::*;
use super::notices::NoticesBy;
use super::server::{ACTIONS_MAX, ServerAction, ServerSession};
use crate::id::{Delivery, KindOptions, TopicName};
use crate::limits;
use sample::{counts, entry, grant_of, identity, nonce};

const PATIENCE_NS: u64 = 1_000;

/// A publisher's node with a directory, a subscriber, and the connection between them.
struct Pair {
    client: ClientSession,
    server: ServerSession,
    topics: BTreeMap<TopicName, TopicEntry>,
    /// The client's events, in order.
    events: Vec<ClientEvent>,
    /// The server's actions, except `Send` and `Close`.
    asked: Vec<ServerAction>,
    /// Regions that arrived at each side.
    regions: (usize, usize),
    closed: Option<Result<Farewell, ControlError>>,
    failed: Option<ControlError>,
}

impl Pair {
    fn dialled() -> Self {
        Self {
            client: ClientSession::connect(0, identity("reader"), nonce(1), PATIENCE_NS),
            server: ServerSession::new(0, identity("writer"), nonce(2)),
            topics: ["pull", "push", "small"].map(|name| (topic(name), entry(name))).into(),
            events: Vec::new(),
            asked: Vec::new(),
            regions: (0, 0),
            closed: None,
            failed: None,
        }
    }

    fn ready() -> Self {
        let mut pair = Self::dialled();
        pair.pump();
        assert_eq!(pair.events, [ClientEvent::Ready { peer: identity("writer") }]);
        assert_eq!(pair.asked, [ServerAction::PeerIdentified(identity("reader"))]);
        pair.events.clear();
        pair.asked.clear();
        pair
    }

    /// The publisher's node has dialled: the server invites, and the other end becomes a client when it has
    /// received that.
    fn invited(inviter: Identity) -> Self {
        let mut pair = Self::dialled();
        pair.server = ServerSession::inviting(100, identity("writer"), nonce(2), topic("pull"));
        let invite = sent(pair.server.next_action());
        let expected = Invite { identity: identity("writer"), topic: topic("pull") };
        assert_eq!(invite, Message::Invite(expected.clone()));

        let mut end = ServerSession::new(0, identity("reader"), nonce(3));
        end.on_message(&codec::encode(&invite), 0);
        assert_eq!(end.next_action(), Some(ServerAction::Invited(expected)));
        assert_eq!((end.next_action(), end.deadline_ns()), (None, None));
        pair.client.expect_hello_of(inviter);
        pair
    }

    /// Delivers messages until both sides are silent.
    fn pump(&mut self) {
        loop {
            if let Some(action) = self.server.next_action() {
                self.act(action);
            } else if let Some(Outgoing { bytes, region_of, .. }) = self.client.next_message() {
                let regions = usize::from(region_of.is_some());
                self.regions.1 += regions;
                self.server.on_message(&bytes, regions);
            } else {
                return;
            }
        }
    }

    fn act(&mut self, action: ServerAction) {
        match action {
            ServerAction::Send(Outgoing { bytes, region_of, .. }) => {
                let regions = usize::from(region_of.is_some());
                self.regions.0 += regions;
                match self.client.on_message(&bytes, regions) {
                    Ok(event) => self.events.extend(event),
                    Err(error) => self.failed = Some(error),
                }
                return;
            }
            ServerAction::Close { result } => {
                assert_eq!(self.closed.replace(result), None, "a session closes once");
                return;
            }
            ServerAction::QueryTopics { ref after } => {
                let is_after = |name: &TopicName| after.as_ref().is_none_or(|after| name > after);
                let entries = self.topics.iter().filter(|(name, _)| is_after(name));
                let entries = entries.map(|(_, entry)| entry.clone()).collect();
                self.server.answer_topics(entries, false).unwrap();
            }
            ServerAction::Attach(ref attach) => match self.topics.get(&attach.topic) {
                Some(entry) => {
                    self.server.grant(grant_of(attach.attachment, &entry.name)).unwrap();
                }
                None => {
                    self.server.refuse(attach.attachment, RefuseReason::NoSuchTopic, "try another").unwrap()
                }
            },
            ServerAction::Lend { attachment } => self.server.lent(attachment).unwrap(),
            ServerAction::Detach { attachment, .. } => self.server.detached(attachment, 77).unwrap(),
            ServerAction::Listen { attachment } => {
                self.server.notices(attachment, NoticesBy::WakeWord).unwrap();
            }
            ServerAction::PeerIdentified(_)
            | ServerAction::Invited(_)
            | ServerAction::Heard(_)
            | ServerAction::FinalCounts { .. } => {}
        }
        self.asked.push(action);
    }

    fn attach(&mut self, name: &str, delivery: Delivery) -> AttachmentId {
        let attachment = self.client.attach(topic(name), delivery, Some(5), KindOptions::default()).unwrap();
        self.pump();
        assert!(
            matches!(self.events.pop(), Some(ClientEvent::Granted { delivery: granted, .. }) if granted == delivery)
        );
        attachment
    }

    /// The server receives an invalid message: it reports why, and both sides are done.
    fn expect_refusal(&mut self, error: &ControlError) {
        self.pump();
        assert_eq!(self.closed, Some(Err(error.clone())));
        let Some(ControlError::Refused { reason, text }) = &self.failed else { panic!("{:?}", self.failed) };
        assert!(matches!(reason, RefuseReason::Unexpected | RefuseReason::Malformed));
        assert_eq!(*text, error.to_string());
        assert!(matches!(self.client.list(None), Err(ControlError::Closed { .. })));
    }
}

fn topic(name: &str) -> TopicName {
    name.parse().unwrap()
}

fn hello(answers: Option<u64>) -> Vec<u8> {
    let answers = answers.map(nonce);
    codec::encode(&Message::Hello(Hello { nonce: nonce(1), answers, identity: identity("peer") }))
}

/// The message with another version in its header, and the rest as it was.
fn of_version_1(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[5] = 1;
    bytes
}

/// The only message in this action.
fn sent(action: Option<ServerAction>) -> Message {
    let Some(ServerAction::Send(outgoing)) = action else { panic!("{action:?}") };
    codec::decode(&outgoing.bytes).unwrap()
}

#[test]
fn a_directory_of_300_topics_comes_in_pages() {
    let mut pair = Pair::ready();
    pair.topics = (0..300).map(|i| format!("t/{i:03}")).map(|name| (topic(&name), entry(&name))).collect();
    let (mut names, mut pages, mut after) = (Vec::new(), 0, None);
    loop {
        pair.client.list(after.clone()).unwrap();
        assert_eq!(pair.client.list(None), Err(ControlError::Busy { awaited: "page of the directory" }));
        pair.pump();
        let Some(ClientEvent::Topics { entries, more }) = pair.events.pop() else { panic!() };
        pages += 1;
        names.extend(entries.into_iter().map(|entry| entry.name));
        after = names.last().cloned();
        if !more {
            break;
        }
    }
    assert_eq!(pages, 3);
    assert!(names.iter().eq(pair.topics.keys()));
}

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
            pair.client.lend(attachment).unwrap();
            pair.pump();
            assert_eq!(pair.events, [ClientEvent::Lent { attachment }]);
        }
        pair.client.end(0, EndReason::Done, counts(5)).unwrap();
        pair.pump();
        assert_eq!(pair.closed, Some(Ok(Farewell { reason: EndReason::Done, counts: counts(5) })));
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
fn an_invitation_that_nobody_answers_costs_its_deadline() {
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

#[test]
fn attach_for_pull_brings_the_region() {
    let mut pair = Pair::ready();
    let attachment = pair.client.attach(topic("pull"), Delivery::Pull, None, KindOptions::default()).unwrap();
    pair.pump();
    let grant = grant_of(attachment, &topic("pull"));
    assert_eq!(pair.events, [ClientEvent::Granted { grant, delivery: Delivery::Pull }]);
    assert_eq!(pair.regions, (1, 0));
    let state = "granted for pull";
    let refused = ControlError::NotPossible { attachment: attachment.get(), state };
    assert_eq!(pair.client.lend(attachment), Err(refused));

    pair.client.detach(attachment, counts(3)).unwrap();
    pair.pump();
    assert_eq!(pair.events[1..], [ClientEvent::Detached { attachment, published: 77 }]);
    assert_eq!(pair.asked[1..], [ServerAction::Detach { attachment, counts: counts(3) }]);
    assert!(matches!(pair.client.detach(attachment, counts(0)), Err(ControlError::NotPossible { .. })));
}

#[test]
fn attach_for_push_takes_a_landing_region() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("push", Delivery::Push);
    assert_eq!(pair.regions, (0, 0));
    pair.client.lend(attachment).unwrap();
    assert!(matches!(pair.client.lend(attachment), Err(ControlError::NotPossible { .. })));
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::Lent { attachment }]);
    assert_eq!(pair.regions, (0, 1));
    pair.client.detach(attachment, counts(0)).unwrap();
    pair.pump();
    assert_eq!(pair.events[1..], [ClientEvent::Detached { attachment, published: 77 }]);
}

#[test]
fn a_refused_topic_leaves_the_session_as_it_was() {
    let mut pair = Pair::ready();
    let attachment =
        pair.client.attach(topic("missing"), Delivery::Pull, None, KindOptions::default()).unwrap();
    pair.pump();
    let (reason, text) = (RefuseReason::NoSuchTopic, "try another".to_owned());
    assert_eq!(pair.events, [ClientEvent::Refused { attachment, reason, text }]);
    let another = pair.attach("pull", Delivery::Pull);
    assert_ne!(another, attachment);
}

#[test]
fn a_refused_landing_region_may_be_followed_by_another() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("push", Delivery::Push);
    for fits in [false, true] {
        pair.client.lend(attachment).unwrap();
        let Outgoing { bytes, region_of, .. } = pair.client.next_message().unwrap();
        assert_eq!(region_of, Some(attachment));
        pair.server.on_message(&bytes, 1);
        assert_eq!(pair.server.next_action(), Some(ServerAction::Lend { attachment }));
        if fits {
            pair.server.lent(attachment).unwrap();
        } else {
            pair.server.refuse(attachment, RefuseReason::LandingUnfit, "").unwrap();
        }
        pair.pump();
    }
    let refused =
        ClientEvent::Refused { attachment, reason: RefuseReason::LandingUnfit, text: String::new() };
    assert_eq!(pair.events, [refused, ClientEvent::Lent { attachment }]);
}

#[test]
fn a_topic_that_ends_takes_its_counts_with_it() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("push", Delivery::Push);
    pair.server.topic_ended(attachment, 41).unwrap();
    // The landing region crosses the message.
    pair.client.lend(attachment).unwrap();
    pair.pump();
    let refused = ClientEvent::Refused { attachment, reason: RefuseReason::TopicEnded, text: String::new() };
    assert_eq!(pair.events.len(), 2);
    assert!(pair.events.contains(&ClientEvent::TopicEnded { attachment, published: 41 }));
    assert!(pair.events.contains(&refused));
    assert!(matches!(pair.client.lend(attachment), Err(ControlError::NotPossible { .. })));

    pair.events.clear();
    pair.asked.clear();
    pair.client.detach(attachment, counts(8)).unwrap();
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::Detached { attachment, published: 41 }]);
    assert_eq!(pair.asked, [ServerAction::FinalCounts { attachment, counts: counts(8) }]);
}

#[test]
fn a_topic_that_ends_before_the_grant_is_refused() {
    let mut pair = Pair::ready();
    let attachment = pair.client.attach(topic("pull"), Delivery::Pull, None, KindOptions::default()).unwrap();
    pair.server.on_message(&pair.client.next_message().unwrap().bytes, 0);
    assert!(matches!(pair.server.next_action(), Some(ServerAction::Attach(_))));
    pair.server.topic_ended(attachment, 41).unwrap();
    assert!(pair.server.grant(grant_of(attachment, &topic("pull"))).is_err());
    pair.pump();
    let refused = ClientEvent::Refused { attachment, reason: RefuseReason::TopicEnded, text: String::new() };
    assert_eq!(pair.events, [refused]);
}

#[test]
fn a_topic_that_ends_while_its_subscriber_leaves_is_not_mentioned() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("pull", Delivery::Pull);
    pair.client.detach(attachment, counts(8)).unwrap();
    pair.server.on_message(&pair.client.next_message().unwrap().bytes, 0);
    pair.server.topic_ended(attachment, 41).unwrap();
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::Detached { attachment, published: 77 }]);
}

#[test]
fn the_subscriber_ends_the_session() {
    let mut pair = Pair::ready();
    pair.attach("pull", Delivery::Pull);
    pair.client.end(0, EndReason::Done, counts(5)).unwrap();
    assert!(matches!(pair.client.list(None), Err(ControlError::Closed { state: "ending" })));
    pair.pump();
    let farewell = Farewell { reason: EndReason::Done, counts: counts(5) };
    assert_eq!(pair.events, [ClientEvent::Ended { farewell }]);
    assert_eq!(pair.closed, Some(Ok(farewell)));
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
    assert_eq!(pair.events, [ClientEvent::EndAsked { reason: EndReason::Shutdown }]);
    assert_eq!((&pair.closed, pair.client.deadline_ns()), (&None, None));

    pair.client.end(0, EndReason::Shutdown, counts(6)).unwrap();
    assert!(matches!(pair.client.end(0, EndReason::Done, counts(6)), Err(ControlError::Closed { .. })));
    pair.pump();
    assert_eq!(pair.closed, Some(Ok(Farewell { reason: EndReason::Shutdown, counts: counts(6) })));
    assert_eq!(pair.failed, None);
}

#[test]
fn both_sides_end_the_session_at_once() {
    let mut pair = Pair::ready();
    pair.server.shutdown(0);
    pair.client.end(0, EndReason::Done, counts(6)).unwrap();
    pair.pump();
    assert_eq!(pair.closed, Some(Ok(Farewell { reason: EndReason::Done, counts: counts(6) })));
    assert!(
        matches!(pair.events[..], [ClientEvent::Ended { farewell }] if farewell.reason == EndReason::Shutdown)
    );
}

#[test]
fn a_grant_that_crosses_the_end_is_dropped_with_its_region() {
    let mut pair = Pair::ready();
    pair.client.attach(topic("pull"), Delivery::Pull, None, KindOptions::default()).unwrap();
    pair.client.end(0, EndReason::Done, counts(0)).unwrap();
    pair.pump();
    assert!(matches!(pair.events[..], [ClientEvent::Ended { .. }]));
    assert_eq!((pair.regions, pair.failed), ((1, 0), None));
    assert!(matches!(pair.closed, Some(Ok(_))));
}

#[test]
fn a_silent_peer_costs_a_deadline() {
    let mut server = ServerSession::new(10, identity("writer"), nonce(2));
    let deadline_ns = server.deadline_ns().unwrap();
    assert_eq!(deadline_ns, 10 + limits::HELLO_DEADLINE_NS);
    server.on_time(deadline_ns - 1);
    assert_eq!(server.next_action(), None);
    server.on_time(deadline_ns);
    let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
    assert_eq!(refuse.reason, RefuseReason::HelloDeadline);
    let result = Err(ControlError::Deadline { awaited: "hello" });
    assert_eq!(server.next_action(), Some(ServerAction::Close { result }));

    let mut client = ClientSession::connect(10, identity("reader"), nonce(1), PATIENCE_NS);
    assert_eq!(client.deadline_ns(), Some(10 + PATIENCE_NS));
    client.expect_hello_until(20);
    assert_eq!(client.deadline_ns(), Some(20));
    client.expect_hello_until(10 + PATIENCE_NS);
    assert_eq!(client.on_time(9 + PATIENCE_NS), Ok(()));
    assert_eq!(client.on_time(10 + PATIENCE_NS), Err(ControlError::Deadline { awaited: "hello" }));
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
    pair.client.end(10, EndReason::Done, counts(0)).unwrap();
    assert_eq!(pair.client.deadline_ns(), Some(10 + PATIENCE_NS));
    let error = pair.client.on_time(10 + PATIENCE_NS).unwrap_err();
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
fn a_server_refuses_another_version_by_name() {
    let mut server = ServerSession::new(0, identity("writer"), nonce(2));
    server.on_message(&of_version_1(hello(None)), 0);
    let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
    assert_eq!(refuse.reason, RefuseReason::VersionUnsupported);
    assert_eq!(
        refuse.text.as_str(),
        "the peer speaks control version 1, this program speaks 2: upgrade the older one"
    );
    let result = Err(ControlError::Version { theirs: 1, ours: 2 });
    assert_eq!(server.next_action(), Some(ServerAction::Close { result }));
    assert_eq!(server.next_action(), None);
}

#[test]
fn a_client_refuses_another_version_by_name() {
    let mut client = ClientSession::connect(0, identity("reader"), nonce(1), PATIENCE_NS);
    client.next_message();
    let error = client.on_message(&of_version_1(hello(Some(1))), 0).unwrap_err();
    assert_eq!(error, ControlError::Version { theirs: 1, ours: 2 });
    let refuse = codec::decode(&client.next_message().unwrap().bytes).unwrap();
    assert!(matches!(refuse, Message::Refuse(refuse) if refuse.reason == RefuseReason::VersionUnsupported));
}

/// A node of version 1 answers the hello of this one with a refusal of its own version.
#[test]
fn a_client_that_is_refused_for_its_version_names_both() {
    let refuse = Refuse::new(RefuseReason::VersionUnsupported, "too old");
    let body = super::frame::refuse_body(&refuse);
    let bytes = super::frame::Frame { version: 1, kind: MessageKind::Refuse.number(), body: &body }.emit();
    let mut client = ClientSession::connect(0, identity("reader"), nonce(1), PATIENCE_NS);
    client.next_message();
    assert_eq!(client.on_message(&bytes, 0), Err(ControlError::Version { theirs: 1, ours: 2 }));
    assert_eq!(client.next_message(), None, "a refusal is not answered");

    let mut server = ServerSession::new(0, identity("writer"), nonce(2));
    server.on_message(&bytes, 0);
    let result = Err(ControlError::Version { theirs: 1, ours: 2 });
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
        let mut server = ServerSession::new(0, identity("writer"), nonce(2));
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
    let mut server = ServerSession::new(0, identity("writer"), nonce(2));
    server.on_message(&codec::encode(&Message::ListTopics(ListTopics { after: None })), 0);
    let Message::Refuse(refuse) = sent(server.next_action()) else { panic!() };
    assert_eq!(
        refuse.text.as_str(),
        "the peer sent ListTopics while the session was waiting for the first hello"
    );
}

#[test]
fn a_hello_that_answers_another_is_refused() {
    let mut server = ServerSession::new(0, identity("writer"), nonce(2));
    server.on_message(&hello(Some(7)), 0);
    assert!(matches!(sent(server.next_action()), Message::Refuse(_)));
    for answers in [None, Some(7)] {
        let mut client = ClientSession::connect(0, identity("reader"), nonce(1), PATIENCE_NS);
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
        })
    };
    let lend = Message::Lend(Lend { attachment });
    let detach = Message::Detach(Detach { attachment, counts: counts(0) });
    let unknown = "not an attachment of this session";
    let twice = "granted for pull";
    for (before, message, regions, name, state) in [
        (None, &detach, 0, "Detach", unknown),
        (None, &lend, 1, "Lend", unknown),
        (Some(Delivery::Pull), &attach(Delivery::Pull), 0, "Attach", twice),
        (Some(Delivery::Pull), &lend, 1, "Lend", twice),
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
        let lend = Message::Lend(Lend { attachment: AttachmentId::new(0) });
        pair.server.on_message(&codec::encode(&lend), regions);
        pair.expect_refusal(&ControlError::WrongRegions { message: "Lend", expected: 1, found: regions });
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
        let topics = Message::Topics(Topics { page: Page::cut(entries).0, more });
        let error = pair.client.on_message(&codec::encode(&topics), 0).unwrap_err();
        assert!(matches!(error, ControlError::WrongAnswer { message: "Topics", .. }));
    }
}

#[test]
fn a_session_has_a_limit_of_attachments() {
    let mut pair = Pair::ready();
    for _ in 0..limits::ATTACHMENTS_PER_SESSION_MAX {
        pair.attach("pull", Delivery::Pull);
    }
    let too_many = ControlError::TooManyAttachments { max: limits::ATTACHMENTS_PER_SESSION_MAX };
    assert_eq!(
        pair.client.attach(topic("pull"), Delivery::Pull, None, KindOptions::default()),
        Err(too_many)
    );

    // A client without that check gets a refusal, and keeps what it has.
    let attachment = AttachmentId::new(9999);
    let attach = Attach {
        attachment,
        topic: topic("pull"),
        delivery: Delivery::Pull,
        schema_hash: None,
        options: KindOptions::default(),
    };
    pair.server.on_message(&codec::encode(&Message::Attach(attach)), 0);
    let Message::Refused(refused) = sent(pair.server.next_action()) else { panic!() };
    assert_eq!((refused.attachment, refused.reason), (attachment, RefuseReason::TooManyAttachments));

    for number in 0..u32::try_from(limits::ATTACHMENTS_PER_SESSION_MAX).unwrap() {
        pair.server.topic_ended(AttachmentId::new(number), 1).unwrap();
    }
    pair.pump();
    assert_eq!(pair.events.len(), limits::ATTACHMENTS_PER_SESSION_MAX);
    assert_eq!((&pair.closed, &pair.failed), (&None, &None));
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
    assert!(matches!(pair.server.lent(attachment), Err(ControlError::NotPossible { .. })));
    assert!(matches!(pair.server.detached(attachment, 0), Err(ControlError::NotPossible { .. })));
    assert!(matches!(pair.server.answer_topics(Vec::new(), false), Err(ControlError::WrongAnswer { .. })));
    pair.server.shutdown(0);
    sent(pair.server.next_action());
    assert!(matches!(pair.server.topic_ended(attachment, 0), Err(ControlError::Closed { .. })));
    assert_eq!(pair.server.next_action(), None);
}

/// The peer's messages are accepted, but the owner never processes the actions.
#[test]
fn an_unserved_session_stays_bounded() {
    let mut server = ServerSession::new(0, identity("writer"), nonce(2));
    server.on_message(&hello(None), 0);
    for number in 0..4 * u32::try_from(ACTIONS_MAX).unwrap() {
        let attachment = AttachmentId::new(number);
        let attach = Attach {
            attachment,
            topic: topic("pull"),
            delivery: Delivery::Pull,
            schema_hash: None,
            options: KindOptions::default(),
        };
        server.on_message(&codec::encode(&Message::Attach(attach)), 0);
    }
    let actions: Vec<_> = std::iter::from_fn(|| server.next_action()).collect();
    assert!(actions.len() <= ACTIONS_MAX);
    let result = Err(ControlError::Backlog { max: ACTIONS_MAX });
    assert_eq!(actions.last(), Some(&ServerAction::Close { result }));
}
