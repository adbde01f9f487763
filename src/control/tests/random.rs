//! Random messages and bytes into each end, and random valid conversations between the two.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::sample::{
    self, any_attachment, any_delivery, any_hello, any_invite, any_let_go, any_message, any_progress,
    any_topic, any_way, counts, entry, grant_of, greeting,
};
use crate::control::LetGoReason;
use crate::control::client::{AttachOptions, ClientEvent, ClientSession};
use crate::control::codec::{self, Outgoing};
use crate::control::error::{ControlError, RefuseReason};
use crate::control::message::*;
use crate::control::notices::{Notices, NoticesBy, WakeBy};
use crate::control::server::{ACTIONS_MAX, ServerAction, ServerSession};
use crate::id::{Delivery, KindOptions, SlowPolicy, TopicName};
use crate::keyring::Authority;
use crate::limits;

/// An event at one end of a session.
#[derive(Clone, Debug)]
enum Operation {
    /// These bytes arrive, with this many regions.
    Bytes(Vec<u8>, usize),
    /// A message arrives, with its regions or with others.
    Message(Message, Option<usize>),
    Time(u64),
    Disconnected,
    /// The owner requests or decides something, valid or not.
    Owner(Request),
    /// The owner takes the pending output.
    Drain,
}

#[derive(Clone, Debug)]
enum Request {
    List(Option<TopicName>),
    Attach(TopicName, Delivery, Option<SlowPolicy>),
    ListSubscribers(TopicName),
    AnswerSubscribers(bool),
    LetGo(AttachmentId, LetGoReason),
    Expose(AttachmentId),
    Detach(AttachmentId),
    End,
    AnswerTopics(bool),
    Grant(AttachmentId, TopicName),
    Refuse(AttachmentId),
    Exposed(AttachmentId),
    Detached(AttachmentId),
    TopicEnded(AttachmentId),
    Listen(AttachmentId),
    Notices(AttachmentId, NoticesBy),
    WakeBy(AttachmentId),
    WakeSlot(AttachmentId),
    Heard(bool),
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        proptest::option::of(any_topic()).prop_map(Request::List),
        (any_topic(), any_delivery(), any_progress())
            .prop_map(|(topic, delivery, progress)| Request::Attach(topic, delivery, progress)),
        any_topic().prop_map(Request::ListSubscribers),
        any::<bool>().prop_map(Request::AnswerSubscribers),
        (any_attachment(), any_let_go()).prop_map(|(id, reason)| Request::LetGo(id, reason)),
        any_attachment().prop_map(Request::Expose),
        any_attachment().prop_map(Request::Detach),
        Just(Request::End),
        any::<bool>().prop_map(Request::AnswerTopics),
        (any_attachment(), any_topic()).prop_map(|(id, topic)| Request::Grant(id, topic)),
        any_attachment().prop_map(Request::Refuse),
        any_attachment().prop_map(Request::Exposed),
        any_attachment().prop_map(Request::Detached),
        any_attachment().prop_map(Request::TopicEnded),
        any_attachment().prop_map(Request::Listen),
        (any_attachment(), any_way()).prop_map(|(id, by)| Request::Notices(id, by)),
        any_attachment().prop_map(Request::WakeBy),
        any_attachment().prop_map(Request::WakeSlot),
        any::<bool>().prop_map(Request::Heard),
    ]
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        1 => (proptest::collection::vec(any::<u8>(), 0..64), 0..3_usize)
            .prop_map(|(bytes, regions)| Operation::Bytes(bytes, regions)),
        40 => (any_message(), proptest::option::weighted(0.05, 0..3_usize))
            .prop_map(|(message, regions)| Operation::Message(message, regions)),
        4 => (0..2 * limits::ANSWER_DEADLINE_NS).prop_map(Operation::Time),
        1 => Just(Operation::Disconnected),
        40 => any_request().prop_map(Operation::Owner),
        20 => Just(Operation::Drain),
    ]
}

/// Operations that mostly begin with a hello, without which little can happen.
fn any_operations() -> impl Strategy<Value = Vec<Operation>> {
    let first = prop_oneof![
        8 => any_hello().prop_map(|hello| Operation::Message(hello, None)),
        1 => any_invite().prop_map(|invite| Operation::Message(invite, None)),
        1 => any_operation(),
    ];
    (first, proptest::collection::vec(any_operation(), 0..60)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    })
}

fn regions_of(message: &Message) -> usize {
    let has_wake_word = matches!(message, Message::Notices(Notices { by: NoticesBy::WakeWord, .. }));
    let carries = matches!(message, Message::Expose(_) | Message::Granted(_) | Message::WakeBy(_));
    let has_slot = matches!(message, Message::Attach(Attach { progress: Some(_), .. }));
    usize::from(has_wake_word || has_slot || carries)
}

fn ask_server(server: &mut ServerSession, request: Request) {
    // The state machine decides whether it is allowed.
    let _ = match request {
        Request::AnswerTopics(more) => server.answer_topics(vec![entry("a")], more),
        Request::Grant(id, topic) => server.grant(grant_of(id, &topic)),
        Request::Refuse(id) => server.refuse(id, RefuseReason::NotPermitted, "no"),
        Request::Exposed(id) => server.exposed(id),
        Request::Detached(id) => server.detached(id, 3),
        Request::TopicEnded(id) => server.topic_ended(id, 3),
        Request::LetGo(id, reason) => server.let_go(id, reason, 3),
        Request::AnswerSubscribers(found) => server.answer_subscribers(found.then(sample::subscribers)),
        Request::Notices(id, by) => server.notices(id, by),
        Request::WakeSlot(id) => server.wake_slot(id, Some(3)),
        Request::End => {
            server.shutdown(0);
            Ok(())
        }
        _ => Ok(()),
    };
}

fn ask_client(client: &mut ClientSession, request: Request) {
    let _ = match request {
        Request::List(after) => client.list(after),
        Request::Attach(topic, delivery, progress) => {
            let options = AttachOptions { options: KindOptions::default(), progress };
            client.attach(topic, delivery, None, options).map(drop)
        }
        Request::ListSubscribers(topic) => client.list_subscribers(topic),
        Request::Expose(id) => client.expose(id),
        Request::Detach(id) => client.detach(id, counts(0)),
        Request::Listen(id) => client.listen(id),
        Request::WakeBy(attachment) => client.wake_by(WakeBy { attachment, socket: 1, token: 2 }),
        Request::Heard(heard) => client.heard(sample::heard(heard)),
        Request::End => client.end(0, EndReason::DONE, counts(0)),
        _ => Ok(()),
    };
}

proptest! {
    #[test]
    fn random_messages_survive_the_codec(message in any_message()) {
        prop_assert_eq!(codec::decode(&codec::encode(&message)), Ok(message));
    }

    #[test]
    fn random_bytes_are_no_message(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        prop_assert!(codec::decode(&bytes).is_err());
    }

    /// Bytes that decode as this kind encode back to the same bytes: no two messages
    /// share an encoding, and no message has two.
    #[test]
    fn random_bodies_have_one_meaning(
        kind in 0..24_u16,
        body in proptest::collection::vec(prop_oneof![3 => Just(0_u8), 1 => any::<u8>()], 0..160),
    ) {
        use crate::control::frame::Frame;
        use crate::control::message::VERSION;
        let bytes = Frame { version: VERSION, kind, body: &body }.emit();
        if let Ok(message) = codec::decode(&bytes) {
            prop_assert_eq!(codec::encode(&message), bytes);
        }
    }

    #[test]
    fn a_server_survives_anything(inviting in any::<bool>(), operations in any_operations()) {
        let mut server = if inviting {
            ServerSession::inviting(limits::HELLO_DEADLINE_NS, greeting("writer", 2), "a".parse().unwrap())
        } else {
            ServerSession::new(0, greeting("writer", 2))
        };
        let mut closed = false;
        for operation in operations {
            match operation {
                Operation::Bytes(bytes, regions) => server.on_message(&bytes, regions),
                Operation::Message(message, regions) => {
                    let regions = regions.unwrap_or_else(|| regions_of(&message));
                    server.on_message(&codec::encode(&message), regions);
                }
                Operation::Time(now_ns) => server.on_time(now_ns),
                Operation::Disconnected => server.on_disconnected(),
                Operation::Owner(request) => ask_server(&mut server, request),
                Operation::Drain => drain(&mut server, &mut closed)?,
            }
        }
        server.on_disconnected();
        drain(&mut server, &mut closed)?;
        prop_assert!(closed, "every session closes");
        prop_assert_eq!(server.deadline_ns(), None);
    }

    #[test]
    fn a_client_survives_anything(invited in any::<bool>(), operations in any_operations()) {
        let mut client = ClientSession::connect(0, greeting("reader", 1), limits::ANSWER_DEADLINE_NS);
        if invited {
            client = ClientSession::invited(greeting("reader", 1), Authority::Anyone, limits::ANSWER_DEADLINE_NS);
        }
        let mut over = false;
        for operation in operations {
            let outcome = match operation {
                Operation::Bytes(bytes, regions) => client.on_message(&bytes, regions),
                Operation::Message(message, regions) => {
                    let regions = regions.unwrap_or_else(|| regions_of(&message));
                    client.on_message(&codec::encode(&message), regions)
                }
                Operation::Time(now_ns) => client.on_time(now_ns).map(|()| None),
                Operation::Disconnected => client.on_disconnected().map(|()| None),
                Operation::Owner(request) => {
                    ask_client(&mut client, request);
                    Ok(None)
                }
                Operation::Drain => {
                    while let Some(Outgoing { bytes, .. }) = client.next_message() {
                        prop_assert!(codec::decode(&bytes).is_ok());
                    }
                    Ok(None)
                }
            };
            if over {
                let quiet = matches!(outcome, Ok(None) | Err(ControlError::Closed { .. }));
                prop_assert!(quiet, "{:?}", outcome);
                prop_assert_eq!(client.deadline_ns(), None);
            }
            over |= matches!(outcome, Err(_) | Ok(Some(ClientEvent::Ended { .. })));
        }
    }

    /// Whatever two honest ends do, in whatever order their messages cross, neither refuses the other, and the
    /// session ends properly.
    #[test]
    fn honest_peers_never_blame_each_other(
        inviting in any::<bool>(),
        steps in proptest::collection::vec(any_step(), 0..120),
    ) {
        let mut pair = Honest::new(inviting);
        pair.collect();
        pair.settle();
        for step in steps {
            pair.step(step);
        }
        pair.finish();
    }
}

fn drain(server: &mut ServerSession, closed: &mut bool) -> Result<(), TestCaseError> {
    let mut len = 0;
    while let Some(action) = server.next_action() {
        prop_assert!(!*closed, "{:?} after Close", action);
        match action {
            ServerAction::Send(Outgoing { bytes, .. }) => prop_assert!(codec::decode(&bytes).is_ok()),
            ServerAction::Close { .. } => *closed = true,
            _ => {}
        }
        len += 1;
    }
    prop_assert!(len <= ACTIONS_MAX);
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// One message arrives at the server, if any is in flight.
    ToServer,
    /// One message arrives at the client, if any is in flight.
    ToClient,
    /// The server's owner answers the question at this index of its list, with yes or no.
    Decide(usize, bool),
    /// The client's owner requests something.
    List,
    Attach(bool),
    Expose(u32),
    Detach(u32),
    Listen(u32),
    WakeBy(u32),
    Heard,
    /// The topic of this attachment ends.
    TopicEnded(u32),
    ClientEnd,
    ServerEnd,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => Just(Step::ToServer),
        20 => Just(Step::ToClient),
        15 => (0..4_usize, any::<bool>()).prop_map(|(at, yes)| Step::Decide(at, yes)),
        3 => Just(Step::List),
        8 => any::<bool>().prop_map(Step::Attach),
        10 => (0..3_u32).prop_map(Step::Expose),
        10 => (0..3_u32).prop_map(Step::Detach),
        10 => (0..3_u32).prop_map(Step::Listen),
        10 => (0..3_u32).prop_map(Step::WakeBy),
        2 => Just(Step::Heard),
        6 => (0..3_u32).prop_map(Step::TopicEnded),
        1 => Just(Step::ClientEnd),
        1 => Just(Step::ServerEnd),
    ]
}

/// Two ends, the messages in flight between them, and the unanswered questions of the server's owner.
struct Honest {
    client: ClientSession,
    server: ServerSession,
    to_server: VecDeque<Outgoing>,
    to_client: VecDeque<Outgoing>,
    questions: Vec<ServerAction>,
    asked_to_end: bool,
    client_ended: bool,
    server_closed: bool,
}

impl Honest {
    fn new(inviting: bool) -> Self {
        let mut server = ServerSession::new(0, greeting("writer", 2));
        let mut client = ClientSession::connect(0, greeting("reader", 1), limits::ANSWER_DEADLINE_NS);
        if inviting {
            let topic = "a".parse().unwrap();
            server = ServerSession::inviting(limits::HELLO_DEADLINE_NS, greeting("writer", 2), topic);
            // The other end has answered the hello, and received the invitation.
            server.next_action();
            let answer = sample::hello(sample::nonce(3), Some(sample::nonce(2)), "reader");
            server.on_message(&codec::encode(&Message::Hello(answer)), 0);
            server.next_action();
            client =
                ClientSession::invited(greeting("reader", 1), Authority::Anyone, limits::ANSWER_DEADLINE_NS);
        }
        Self {
            client,
            server,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            questions: Vec::new(),
            asked_to_end: false,
            client_ended: false,
            server_closed: false,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::ToServer => {
                if let Some(Outgoing { bytes, region_of, .. }) = self.to_server.pop_front() {
                    self.server.on_message(&bytes, usize::from(region_of.is_some()));
                }
            }
            Step::ToClient => {
                if let Some(Outgoing { bytes, region_of, .. }) = self.to_client.pop_front() {
                    let event = self.client.on_message(&bytes, usize::from(region_of.is_some()));
                    match event.expect("an honest server is not blamed") {
                        Some(ClientEvent::EndAsked { .. }) => self.asked_to_end = true,
                        Some(ClientEvent::Ended { .. }) => self.client_ended = true,
                        _ => {}
                    }
                }
            }
            Step::Decide(at, yes) => self.decide(at, yes),
            Step::List => ask_client(&mut self.client, Request::List(None)),
            Step::Attach(push) => {
                let delivery = if push { Delivery::Push } else { Delivery::Pull };
                ask_client(&mut self.client, Request::Attach("a".parse().unwrap(), delivery, None));
            }
            Step::Expose(id) => ask_client(&mut self.client, Request::Expose(AttachmentId::new(id))),
            Step::Listen(id) => ask_client(&mut self.client, Request::Listen(AttachmentId::new(id))),
            Step::WakeBy(id) => ask_client(&mut self.client, Request::WakeBy(AttachmentId::new(id))),
            Step::Heard => ask_client(&mut self.client, Request::Heard(true)),
            Step::Detach(id) => ask_client(&mut self.client, Request::Detach(AttachmentId::new(id))),
            Step::TopicEnded(id) => {
                ask_server(&mut self.server, Request::TopicEnded(AttachmentId::new(id)));
            }
            Step::ClientEnd => {
                let ended = self.client.end(0, EndReason::DONE, counts(0)).is_ok();
                // Agreeing to the server's end is its last message; its own end is answered.
                self.client_ended |= ended && self.asked_to_end;
            }
            // A node that shuts down before the hello refuses the session instead of ending it.
            Step::ServerEnd if self.server.deadline_ns().is_none() => self.server.shutdown(0),
            Step::ServerEnd => {}
        }
        self.collect();
    }

    fn collect(&mut self) {
        self.to_server.extend(std::iter::from_fn(|| self.client.next_message()));
        while let Some(action) = self.server.next_action() {
            match action {
                ServerAction::Send(outgoing) => self.to_client.push_back(outgoing),
                ServerAction::Close { result } => {
                    result.expect("an honest client is not blamed");
                    self.server_closed = true;
                }
                ServerAction::PeerIdentified(_) | ServerAction::FinalCounts(_) | ServerAction::Heard(_) => {}
                question => self.questions.push(question),
            }
        }
    }

    fn decide(&mut self, at: usize, yes: bool) {
        if at >= self.questions.len() {
            return;
        }
        // A question may be obsolete by the end of its topic, or of the session.
        let _ = match self.questions.remove(at) {
            ServerAction::QueryTopics { .. } => self.server.answer_topics(vec![entry("a")], false),
            ServerAction::Attach(attach) if yes => {
                self.server.grant(grant_of(attach.attachment, &attach.topic))
            }
            ServerAction::Attach(Attach { attachment, .. }) | ServerAction::Expose(attachment) if !yes => {
                self.server.refuse(attachment, RefuseReason::NotPermitted, "")
            }
            ServerAction::Expose(attachment) => self.server.exposed(attachment),
            ServerAction::Listen(attachment) => {
                let by = if yes { NoticesBy::WakeWord } else { NoticesBy::Nothing };
                self.server.notices(attachment, by)
            }
            ServerAction::WakeBy(WakeBy { attachment, .. }) => {
                self.server.wake_slot(attachment, yes.then_some(1))
            }
            ServerAction::Detach(Detach { attachment, .. }) => self.server.detached(attachment, 1),
            other => panic!("{other:?} is not a question"),
        };
    }

    /// Delivers and answers everything.
    fn settle(&mut self) {
        while !self.to_server.is_empty() || !self.to_client.is_empty() || !self.questions.is_empty() {
            self.step(Step::ToServer);
            self.step(Step::ToClient);
            self.step(Step::Decide(0, true));
        }
    }

    /// Delivers and answers everything, then ends the session.
    fn finish(&mut self) {
        for round in 0..10 {
            self.collect();
            self.settle();
            if round == 0 {
                let idle = self.client.deadline_ns().is_none() || self.asked_to_end;
                assert!(idle || self.client_ended, "every question was answered");
            }
            if !self.client_ended {
                self.step(Step::ClientEnd);
            }
        }
        assert!(self.client_ended && self.server_closed);
    }
}
