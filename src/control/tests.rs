//! Whole conversations between the two ends of a session, over queues of bytes.

mod attachments;
mod authentication;
mod endings;
mod invitations;
mod notices;
mod progress;
mod random;
mod refusals;
pub(crate) mod sample;

use std::collections::BTreeMap;

use super::client::{ClientEvent, ClientSession};
use super::codec::{self, Outgoing};
use super::error::{ControlError, RefuseReason};
use super::handshake::Invited;
use super::message::*;
use super::notices::{NoticesBy, WakeBy};
use super::server::{ACTIONS_MAX, ServerAction, ServerSession};
use crate::id::{Delivery, KindOptions, TopicName};
use crate::limits;
use sample::{counts, entry, grant_of, greeting, identity, nonce};

const TIMEOUT_NS: u64 = 1_000;

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
    closed: Option<Result<EndSummary, ControlError>>,
    failed: Option<ControlError>,
}

impl Pair {
    fn dialled() -> Self {
        Self {
            client: ClientSession::connect(0, greeting("reader", 1), TIMEOUT_NS),
            server: ServerSession::new(0, greeting("writer", 2)),
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
    fn invited() -> Self {
        let mut pair = Self::dialled();
        pair.server = ServerSession::inviting(100, greeting("writer", 2), topic("pull"));

        let mut end = ServerSession::new(0, greeting("reader", 3));
        end.on_message(&codec::encode(&sent(pair.server.next_action())), 0);
        assert_eq!(end.deadline_ns(), Some(limits::HELLO_DEADLINE_NS), "the invitation is due");
        pair.server.on_message(&codec::encode(&sent(end.next_action())), 0);
        let invite = sent(pair.server.next_action());
        assert_eq!(invite, Message::Invite(Invite { topic: topic("pull") }));
        end.on_message(&codec::encode(&invite), 0);
        let invited = Invited { identity: identity("writer"), topic: topic("pull") };
        assert_eq!(end.next_action(), Some(ServerAction::Invited(invited)));
        assert_eq!((end.next_action(), end.deadline_ns()), (None, None));
        pair.client = ClientSession::invited(greeting("reader", 3), end.authority(), TIMEOUT_NS);
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
            ServerAction::QuerySubscribers(ref topic) => {
                let found = self.topics.contains_key(topic).then(sample::subscribers);
                self.server.answer_subscribers(found).unwrap();
            }
            ServerAction::Attach(ref attach) => match self.topics.get(&attach.topic) {
                Some(entry) => {
                    self.server.grant(grant_of(attach.attachment, &entry.name)).unwrap();
                }
                None => {
                    self.server.refuse(attach.attachment, RefuseReason::NoSuchTopic, "try another").unwrap()
                }
            },
            ServerAction::Expose(attachment) => self.server.exposed(attachment).unwrap(),
            ServerAction::Detach(Detach { attachment, .. }) => self.server.detached(attachment, 77).unwrap(),
            ServerAction::Listen(attachment) => {
                self.server.notices(attachment, NoticesBy::WakeWord).unwrap();
            }
            ServerAction::WakeBy(WakeBy { attachment, .. }) => {
                self.server.wake_slot(attachment, Some(3)).unwrap();
            }
            ServerAction::PeerIdentified(_)
            | ServerAction::Invited(_)
            | ServerAction::Heard(_)
            | ServerAction::FinalCounts(_) => {}
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
    codec::encode(&Message::Hello(sample::hello(nonce(1), answers, "peer")))
}

/// The hello of a peer that dialled to publish.
fn publishing() -> Vec<u8> {
    let hello = Hello { invites: true, ..sample::hello(nonce(1), None, "writer") };
    codec::encode(&Message::Hello(hello))
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

/// The peer's messages are taken, and the owner never looks at what they ask of it.
#[test]
fn an_unserved_session_stays_bounded() {
    let mut server = ServerSession::new(0, greeting("writer", 2));
    server.on_message(&hello(None), 0);
    for number in 0..4 * u32::try_from(ACTIONS_MAX).unwrap() {
        let attachment = AttachmentId::new(number);
        let attach = Attach {
            attachment,
            topic: topic("pull"),
            delivery: Delivery::Pull,
            schema_hash: None,
            options: KindOptions::default(),
            progress: None,
        };
        server.on_message(&codec::encode(&Message::Attach(attach)), 0);
    }
    let actions: Vec<_> = std::iter::from_fn(|| server.next_action()).collect();
    assert!(actions.len() <= ACTIONS_MAX);
    let result = Err(ControlError::Backlog { max: ACTIONS_MAX });
    assert_eq!(actions.last(), Some(&ServerAction::Close { result }));
}
