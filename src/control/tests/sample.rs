//! Messages for tests: one of each kind, and random ones.

use std::num::NonZeroU64;

use proptest::prelude::*;

use crate::control::error::RefuseReason;
use crate::control::handshake::{Credentials, Greeting};
use crate::control::message::*;
use crate::control::notices::{Heard, NoticeChannel, Notices, NoticesBy, TicketBytes, WakeBy, WakeSlot};
use crate::control::progress::*;
use crate::control::proof::{Proof, Prove};
use crate::control::text::Text;
use crate::id::{Delivery, Epoch, Incarnation, Kind, KindOptions, Sequence, SlowPolicy, TopicId, TopicName};
use crate::keyring::{Challenge, KeyId};
use crate::layout::GeometryNumbers;
use crate::limits;

pub(crate) fn nonce(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap()
}

pub(crate) fn identity(node: &str) -> Identity {
    Identity {
        node: node.parse().unwrap(),
        process: 4242,
        host: Text::cut("hostA"),
        started_ns: 0x1787_C3E0_A6C4_0000,
    }
}

/// A hello without keys.
pub(crate) fn hello(nonce: NonZeroU64, answers: Option<NonZeroU64>, node: &str) -> Hello {
    Hello { nonce, answers, identity: identity(node), invites: false, challenge: None }
}

/// How this node introduces itself, without keys.
pub(crate) fn greeting(node: &str, number: u64) -> Greeting {
    Greeting::new(identity(node), nonce(number), Credentials::default())
}

pub(crate) fn counts(first: u64) -> SubscriberCounts {
    let (conflated, torn_retries, rejected, lost) = (first + 1, first + 2, first + 3, first + 4);
    SubscriberCounts { received: first, conflated, torn_retries, rejected, lost }
}

pub(crate) fn entry(name: &str) -> TopicEntry {
    TopicEntry {
        name: name.parse().unwrap(),
        kind: Kind::State,
        type_name: Text::cut("Quote"),
        sequence: 7,
        published_ns: 1000,
        published_age_ns: 1001,
        heartbeat_age_ns: 100,
        epoch: Epoch::new(0xFF).unwrap(),
        pull_subscribers: 2,
        push_subscribers: 1,
        lag_max: Some(3),
        payload_len_max: 64,
    }
}

pub(crate) fn grant(attachment: u32) -> Grant {
    Grant {
        incarnation: Incarnation::new(0xEE).unwrap(),
        attachment: AttachmentId::new(attachment),
        topic_id: TopicId::new(0xAA),
        kind: Kind::State,
        epoch: Epoch::new(0xFF).unwrap(),
        geometry: GeometryNumbers { payload_len_max: 64, region_len: 4096, parameters: [8, 128, 0, 0] },
        schema: SchemaJson::new(b"{}".to_vec()).unwrap(),
        key: 0xBAD,
        address: 0x7F00_0000_0000,
        newest: Sequence::new(42),
        after: Sequence::new(40),
        lifespan_ns: 1000,
    }
}

pub(crate) fn grant_of(attachment: AttachmentId, topic: &TopicName) -> Grant {
    Grant { topic_id: TopicId::of(topic), ..grant(attachment.get()) }
}

/// One message of each kind, in the order of their numbers.
pub(crate) fn every_message() -> Vec<Message> {
    let attachment = AttachmentId::new(9);
    let topic: TopicName = "a/b".parse().unwrap();
    vec![
        Message::Refuse(Refuse::new(RefuseReason::ShuttingDown, "bye")),
        Message::Hello(Hello {
            nonce: nonce(0x1122_3344_5566_7788),
            answers: Some(nonce(0x0102_0304_0506_0708)),
            identity: identity("node-1"),
            invites: true,
            challenge: Some(Challenge([0xC5; 32])),
        }),
        Message::ListTopics(ListTopics { after: Some(topic.clone()) }),
        Message::Topics(Topics { page: Page::cut(vec![entry("a/b")]), more: true }),
        Message::Attach(Attach {
            attachment,
            topic: topic.clone(),
            delivery: Delivery::Push,
            schema_hash: Some(0xCAFE_F00D),
            options: KindOptions([3, 5, 7]),
            progress: Some(SlowPolicy::Block),
        }),
        Message::Granted(grant(9)),
        Message::Refused(Refused {
            attachment,
            reason: RefuseReason::LandingUnfit,
            text: Text::cut("small"),
        }),
        Message::Expose(attachment),
        Message::Exposed(attachment),
        Message::Detach(Detach { attachment, counts: counts(1) }),
        Message::Detached(Detached { attachment, published: 7 }),
        Message::TopicEnded(TopicEnded { attachment, published: 7 }),
        Message::End(EndSummary { reason: EndReason::DONE, counts: counts(1) }),
        Message::Invite(Invite { topic: topic.clone() }),
        Message::Listen(attachment),
        Message::Notices(Notices { attachment, by: NoticesBy::Channel(channel()) }),
        Message::Heard(heard(true)),
        Message::ListSubscribers(ListSubscribers { topic }),
        Message::Subscribers(Subscribers { found: Some(subscribers()) }),
        Message::WakeBy(WakeBy { attachment, socket: 2, token: 7 }),
        Message::WakeSlot(WakeSlot { attachment, slot: Some(5) }),
        Message::LetGo(LetGo { attachment, reason: LetGoReason::Overtaken, published: 7 }),
        Message::Prove(prove(1)),
    ]
}

/// Proofs of as many keys.
pub(crate) fn prove(count: u8) -> Prove {
    Prove::cut((1..=count).map(|number| Proof { key: KeyId([number; 8]), tag: [0x7A; 32] }))
}

/// A subscriber that reports its progress, and one that does not.
pub(crate) fn subscribers() -> SubscriberPage {
    let progress = ProgressEntry {
        policy: SlowPolicy::Block,
        is_gating: true,
        last: 5,
        received: 4,
        lost: 1,
        retries: 3,
        rejected: 2,
        unseen_ns: 6,
    };
    let entry = |delivery, progress| SubscriberEntry {
        node: "desk".parse().unwrap(),
        process: 4242,
        delivery,
        progress,
    };
    let entries = vec![entry(Delivery::Pull, Some(progress)), entry(Delivery::Push, None)];
    SubscriberPage { newest: 7, count: 2, entries: SubscriberEntries::cut(entries) }
}

pub(crate) fn channel() -> NoticeChannel {
    let key = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    let own_key = key.map(|byte| byte + 16);
    NoticeChannel { channel: 0xC4, key, own_key, ticket: TicketBytes::cut(&[0xAA, 0xBB, 0xCC]) }
}

pub(crate) fn heard(is_multicast_received: bool) -> Heard {
    Heard { return_ticket: TicketBytes::cut(&[0xAA, 0xBB, 0xCC]), is_multicast_received }
}

/// Any message. Attachments have few numbers, so that messages meet the attachments of others.
pub(crate) fn any_message() -> impl Strategy<Value = Message> {
    let text = "\\PC{0,20}";
    prop_oneof![
        (any::<u16>(), text).prop_map(|(reason, text)| Message::Refuse(Refuse::new(reason.into(), &text))),
        (
            1..u64::MAX,
            any::<Option<NonZeroU64>>(),
            any_name(),
            any::<u64>(),
            any::<bool>(),
            any::<Option<[u8; 32]>>()
        )
            .prop_map(|(number, answers, node, started_ns, invites, challenge)| {
                let (identity, challenge) =
                    (Identity { started_ns, ..identity(&node) }, challenge.map(Challenge));
                Message::Hello(Hello { nonce: nonce(number), answers, identity, invites, challenge })
            }),
        (0..4_u8).prop_map(|count| Message::Prove(prove(count))),
        any_hello(),
        proptest::option::of(any_topic()).prop_map(|after| Message::ListTopics(ListTopics { after })),
        (proptest::collection::vec(any_name(), 0..4), any::<bool>()).prop_map(|(names, more)| {
            let page = Page::cut(names.iter().map(|name| entry(name)));
            Message::Topics(Topics { page, more })
        }),
        (any_attachment(), any_topic(), any_delivery(), any::<Option<u64>>(), any_options(), any_progress())
            .prop_map(|(attachment, topic, delivery, schema_hash, options, progress)| {
                Message::Attach(Attach { attachment, topic, delivery, schema_hash, options, progress })
            }),
        any_topic().prop_map(|topic| Message::ListSubscribers(ListSubscribers { topic })),
        any::<bool>().prop_map(|found| Message::Subscribers(Subscribers { found: found.then(subscribers) })),
        (any_attachment(), any_let_go(), 0..9_u64).prop_map(|(attachment, reason, published)| {
            Message::LetGo(LetGo { attachment, reason, published })
        }),
        (any_attachment(), any_topic())
            .prop_map(|(attachment, topic)| Message::Granted(grant_of(attachment, &topic))),
        (any_attachment(), any::<u16>(), text).prop_map(|(attachment, reason, text)| {
            Message::Refused(Refused { attachment, reason: reason.into(), text: Text::cut(&text) })
        }),
        any_attachment().prop_map(Message::Expose),
        any_attachment().prop_map(Message::Exposed),
        (any_attachment(), 0..9_u64)
            .prop_map(|(attachment, first)| Message::Detach(Detach { attachment, counts: counts(first) })),
        (any_attachment(), any::<u64>())
            .prop_map(|(attachment, published)| Message::Detached(Detached { attachment, published })),
        (any_attachment(), any::<u64>())
            .prop_map(|(attachment, published)| Message::TopicEnded(TopicEnded { attachment, published })),
        (any::<u16>(), 0..9_u64).prop_map(|(reason, first)| {
            let summary = EndSummary { reason: EndReason(reason), counts: counts(first) };
            Message::End(summary)
        }),
        any_invite(),
        any_attachment().prop_map(Message::Listen),
        (any_attachment(), any_way())
            .prop_map(|(attachment, by)| Message::Notices(Notices { attachment, by })),
        (any_ticket(), any::<bool>()).prop_map(|(return_ticket, is_multicast_received)| {
            Message::Heard(Heard { return_ticket, is_multicast_received })
        }),
        (any_attachment(), any::<u32>(), any::<u32>())
            .prop_map(|(attachment, socket, token)| Message::WakeBy(WakeBy { attachment, socket, token })),
        (any_attachment(), any::<Option<u32>>())
            .prop_map(|(attachment, slot)| Message::WakeSlot(WakeSlot { attachment, slot })),
    ]
}

/// Any method of notification.
pub(crate) fn any_way() -> impl Strategy<Value = NoticesBy> {
    prop_oneof![
        Just(NoticesBy::Nothing),
        Just(NoticesBy::WakeWord),
        Just(NoticesBy::Immediate),
        (any::<u64>(), any::<[[u8; 16]; 2]>(), any_ticket()).prop_map(|(channel, [key, own_key], ticket)| {
            NoticesBy::Channel(NoticeChannel { channel, key, own_key, ticket })
        }),
    ]
}

fn any_ticket() -> impl Strategy<Value = TicketBytes> {
    proptest::collection::vec(any::<u8>(), 0..=limits::CHANNEL_TICKET_LEN_MAX)
        .prop_map(|bytes| TicketBytes::cut(&bytes))
}

/// A hello of a dialling peer, or the tests' server's answer.
pub(crate) fn any_hello() -> impl Strategy<Value = Message> {
    (any::<bool>(), any::<bool>(), any::<Option<[u8; 32]>>()).prop_map(|(first, invites, challenge)| {
        let (answers, challenge) = (if first { None } else { Some(nonce(1)) }, challenge.map(Challenge));
        Message::Hello(Hello { nonce: nonce(2), answers, identity: identity("peer"), invites, challenge })
    })
}

/// An invitation, which a publisher's node that dials sends after the hellos.
pub(crate) fn any_invite() -> impl Strategy<Value = Message> {
    any_topic().prop_map(|topic| Message::Invite(Invite { topic }))
}

pub(crate) fn any_attachment() -> impl Strategy<Value = AttachmentId> {
    (0..4_u32).prop_map(AttachmentId::new)
}

pub(crate) fn any_topic() -> impl Strategy<Value = TopicName> {
    any_name().prop_map(|name| name.parse().unwrap())
}

pub(crate) fn any_delivery() -> impl Strategy<Value = Delivery> {
    prop_oneof![Just(Delivery::Pull), Just(Delivery::Push)]
}

/// What an attachment asks for if it is slow.
pub(crate) fn any_progress() -> impl Strategy<Value = Option<SlowPolicy>> {
    let policies = vec![SlowPolicy::Lap, SlowPolicy::Block, SlowPolicy::Disconnect];
    proptest::option::of(proptest::sample::select(policies))
}

fn any_options() -> impl Strategy<Value = KindOptions> {
    any::<[u64; 3]>().prop_map(KindOptions)
}

fn any_name() -> impl Strategy<Value = String> {
    "[a-c]{1,2}"
}

/// Any reason to let a subscriber go.
pub(super) fn any_let_go() -> impl Strategy<Value = LetGoReason> {
    proptest::sample::select(vec![LetGoReason::Unseen, LetGoReason::Overtaken, LetGoReason::Revoked])
}
