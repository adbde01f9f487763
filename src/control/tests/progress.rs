//! Subscribers that report their progress, and those that are let go.

use super::*;
use crate::control::AttachOptions;
use crate::control::progress::{LetGo, LetGoReason, ListSubscribers};
use crate::id::SlowPolicy;

fn attach(pair: &mut Pair, name: &str, policy: SlowPolicy) -> AttachmentId {
    let options = AttachOptions { options: KindOptions::default(), progress: Some(policy) };
    let delivery = if name == "push" { Delivery::Push } else { Delivery::Pull };
    let attachment = pair.client.attach(topic(name), delivery, None, options).unwrap();
    pair.pump();
    attachment
}

fn let_go(attachment: AttachmentId, reason: LetGoReason) -> LetGo {
    LetGo { attachment, reason, published: 5 }
}

#[test]
fn progress_slot_comes_with_the_request_and_only_if_it_is_announced() {
    for (progress, regions, is_right) in [
        (None, 0, true),
        (None, 1, false),
        (Some(SlowPolicy::Lap), 1, true),
        (Some(SlowPolicy::Block), 0, false),
        (Some(SlowPolicy::Disconnect), 2, false),
    ] {
        let mut pair = Pair::ready();
        let attach = Attach {
            attachment: AttachmentId::new(1),
            topic: topic("pull"),
            delivery: Delivery::Pull,
            schema_hash: None,
            options: KindOptions::default(),
            progress,
        };
        pair.server.on_message(&codec::encode(&Message::Attach(attach)), regions);
        let is_asked = matches!(pair.server.next_action(), Some(ServerAction::Attach(_)));
        assert_eq!(is_asked, is_right, "{progress:?} with {regions}");
    }
}

#[test]
fn subscribers_of_a_topic_are_listed_one_request_at_a_time() {
    let mut pair = Pair::ready();
    pair.client.list_subscribers(topic("pull")).unwrap();
    let busy = pair.client.list_subscribers(topic("pull")).unwrap_err();
    assert!(matches!(busy, ControlError::Busy { .. }), "{busy}");
    pair.pump();
    pair.client.list_subscribers(topic("missing")).unwrap();
    pair.pump();
    let [ClientEvent::Subscribers(Some(found)), ClientEvent::Subscribers(None)] = &pair.events[..] else {
        panic!("{:?}", pair.events)
    };
    assert_eq!(found, &sample::subscribers());
    // A peer that does not wait for the answer.
    let request = Message::ListSubscribers(ListSubscribers { topic: topic("pull") });
    for _ in 0..2 {
        pair.server.on_message(&codec::encode(&request), 0);
    }
    let refused = std::iter::from_fn(|| pair.server.next_action()).last();
    assert!(matches!(refused, Some(ServerAction::Close { result: Err(_) })), "{refused:?}");
}

#[test]
fn subscriber_without_a_lease_stays_attached() {
    let mut pair = Pair::ready();
    let attachment = attach(&mut pair, "pull", SlowPolicy::Block);
    pair.server.let_go(attachment, LetGoReason::Unseen, 5).unwrap();
    pair.pump();
    assert_eq!(pair.events.last(), Some(&ClientEvent::LetGo(let_go(attachment, LetGoReason::Unseen))));
    pair.server.topic_ended(attachment, 6).unwrap();
    pair.pump();
    assert!(matches!(pair.events.last(), Some(ClientEvent::TopicEnded(_))));
    pair.client.detach(attachment, counts(1)).unwrap();
    pair.pump();
    assert!(matches!(pair.events.last(), Some(ClientEvent::Detached(_))));
}

#[test]
fn overtaken_subscriber_detaches_as_from_a_topic_that_ended() {
    for name in ["pull", "push"] {
        let mut pair = Pair::ready();
        let attachment = attach(&mut pair, name, SlowPolicy::Disconnect);
        if name == "push" {
            pair.client.expose(attachment).unwrap();
            pair.pump();
        }
        pair.server.let_go(attachment, LetGoReason::Overtaken, 5).unwrap();
        pair.pump();
        assert_eq!(pair.events.last(), Some(&ClientEvent::LetGo(let_go(attachment, LetGoReason::Overtaken))));
        // The topic may end afterwards; the attachment has ended before.
        assert!(pair.server.topic_ended(attachment, 6).is_err());
        pair.client.detach(attachment, counts(1)).unwrap();
        pair.pump();
        let told = |action: &ServerAction| matches!(action, ServerAction::FinalCounts(_));
        assert!(pair.asked.iter().any(told) && matches!(pair.events.last(), Some(ClientEvent::Detached(_))));
        assert_eq!((&pair.closed, &pair.failed), (&None, &None));
    }
}

/// Whatever its policy, and whether or not it was let go before.
#[test]
fn revoked_subscriber_detaches_as_from_a_topic_that_ended() {
    for (name, policy, is_let_go) in [
        ("pull", SlowPolicy::Lap, false),
        ("push", SlowPolicy::Block, true),
        ("push", SlowPolicy::Lap, false),
    ] {
        let mut pair = Pair::ready();
        let attachment = attach(&mut pair, name, policy);
        if is_let_go {
            pair.server.let_go(attachment, LetGoReason::Unseen, 4).unwrap();
        }
        pair.server.let_go(attachment, LetGoReason::Revoked, 5).unwrap();
        pair.pump();
        assert_eq!(pair.events.last(), Some(&ClientEvent::LetGo(let_go(attachment, LetGoReason::Revoked))));
        // It is over: the message says so once.
        let again = codec::encode(&Message::LetGo(let_go(attachment, LetGoReason::Revoked)));
        pair.client.detach(attachment, counts(1)).unwrap();
        pair.pump();
        assert_eq!((&pair.closed, &pair.failed), (&None, &None));
        assert!(pair.client.on_message(&again, 0).is_err());
    }
}

#[test]
fn subscriber_that_is_overtaken_before_its_landing_region_is_accepted_gets_both_answers() {
    let mut pair = Pair::ready();
    let attachment = attach(&mut pair, "push", SlowPolicy::Disconnect);
    pair.client.expose(attachment).unwrap();
    let expose = pair.client.next_message().unwrap();
    pair.server.on_message(&expose.bytes, 1);
    assert_eq!(pair.server.next_action(), Some(ServerAction::Expose(attachment)));
    pair.server.let_go(attachment, LetGoReason::Overtaken, 5).unwrap();
    pair.pump();
    let [.., ClientEvent::Refused { reason: RefuseReason::TopicEnded, .. }, ClientEvent::LetGo(_)] =
        &pair.events[..]
    else {
        panic!("{:?}", pair.events)
    };
    pair.client.detach(attachment, counts(1)).unwrap();
    pair.pump();
    assert_eq!((&pair.closed, &pair.failed), (&None, &None));
}

/// Of a subscriber that nobody waits for, twice, or before the grant.
#[test]
fn letting_go_out_of_turn_is_refused() {
    let message = |attachment| codec::encode(&Message::LetGo(let_go(attachment, LetGoReason::Unseen)));
    let mut pair = Pair::ready();
    let attachment = attach(&mut pair, "pull", SlowPolicy::Lap);
    assert!(pair.client.on_message(&message(attachment), 0).is_err());

    let mut pair = Pair::ready();
    let attachment = attach(&mut pair, "pull", SlowPolicy::Block);
    assert!(pair.client.on_message(&message(attachment), 0).is_ok());
    assert!(pair.client.on_message(&message(attachment), 0).is_err());

    let mut pair = Pair::ready();
    let options = AttachOptions { options: KindOptions::default(), progress: Some(SlowPolicy::Block) };
    let attachment = pair.client.attach(topic("pull"), Delivery::Pull, None, options).unwrap();
    assert!(pair.client.on_message(&message(attachment), 0).is_err());
    let mut pair = Pair::ready();
    assert!(pair.client.on_message(&message(AttachmentId::new(3)), 0).is_err());
}

/// The number of entries is refused before anything of that length is allocated.
#[test]
fn listed_subscribers_are_bounded() {
    let list = sample::subscribers();
    let entry = list.entries.into_items().remove(0);
    let most = limits::SUBSCRIBERS_LISTED_MAX;
    let entries = crate::control::SubscriberEntries::cut(vec![entry; most + 1]);
    let count = u32::try_from(most).unwrap() + 1;
    let page = crate::control::SubscriberPage { newest: 7, count, entries };
    let full = Message::Subscribers(crate::control::progress::Subscribers { found: Some(page) });
    let bytes = codec::encode(&full);
    assert_eq!(codec::decode(&bytes).unwrap(), full);
    let crate::control::frame::Frame { version, kind, body } =
        crate::control::frame::Frame::parse(&bytes).unwrap();
    let mut longer = body.to_vec();
    // After the option, the newest sequence and the number of subscribers.
    for len in [most as u64 + 1, 1 << 40, u64::MAX] {
        longer[13..21].copy_from_slice(&len.swap_bytes().to_le_bytes());
        let forged = crate::control::frame::Frame { version, kind, body: &longer }.emit();
        let error = codec::decode(&forged).unwrap_err();
        assert!(matches!(error, ControlError::Malformed { message: "Subscribers", .. }), "{error}");
    }
}
