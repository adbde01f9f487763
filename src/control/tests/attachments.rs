//! Attachments: granted, lent a landing region, refused, ended with their topic.

use super::*;

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
    assert_eq!(pair.client.expose(attachment), Err(refused));

    pair.client.detach(attachment, counts(3)).unwrap();
    pair.pump();
    assert_eq!(pair.events[1..], [ClientEvent::Detached(Detached { attachment, published: 77 })]);
    assert_eq!(pair.asked[1..], [ServerAction::Detach(Detach { attachment, counts: counts(3) })]);
    assert!(matches!(pair.client.detach(attachment, counts(0)), Err(ControlError::NotPossible { .. })));
}

#[test]
fn attach_for_push_takes_a_landing_region() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("push", Delivery::Push);
    assert_eq!(pair.regions, (0, 0));
    pair.client.expose(attachment).unwrap();
    assert!(matches!(pair.client.expose(attachment), Err(ControlError::NotPossible { .. })));
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::Exposed(attachment)]);
    assert_eq!(pair.regions, (0, 1));
    pair.client.detach(attachment, counts(0)).unwrap();
    pair.pump();
    assert_eq!(pair.events[1..], [ClientEvent::Detached(Detached { attachment, published: 77 })]);
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
        pair.client.expose(attachment).unwrap();
        let Outgoing { bytes, region_of, .. } = pair.client.next_message().unwrap();
        assert_eq!(region_of, Some(attachment));
        pair.server.on_message(&bytes, 1);
        assert_eq!(pair.server.next_action(), Some(ServerAction::Expose(attachment)));
        if fits {
            pair.server.exposed(attachment).unwrap();
        } else {
            pair.server.refuse(attachment, RefuseReason::LandingUnfit, "").unwrap();
        }
        pair.pump();
    }
    let refused =
        ClientEvent::Refused { attachment, reason: RefuseReason::LandingUnfit, text: String::new() };
    assert_eq!(pair.events, [refused, ClientEvent::Exposed(attachment)]);
}

#[test]
fn a_topic_that_ends_takes_its_counts_with_it() {
    let mut pair = Pair::ready();
    let attachment = pair.attach("push", Delivery::Push);
    pair.server.topic_ended(attachment, 41).unwrap();
    // The landing region crosses the message.
    pair.client.expose(attachment).unwrap();
    pair.pump();
    let refused = ClientEvent::Refused { attachment, reason: RefuseReason::TopicEnded, text: String::new() };
    assert_eq!(pair.events.len(), 2);
    assert!(pair.events.contains(&ClientEvent::TopicEnded(TopicEnded { attachment, published: 41 })));
    assert!(pair.events.contains(&refused));
    assert!(matches!(pair.client.expose(attachment), Err(ControlError::NotPossible { .. })));

    pair.events.clear();
    pair.asked.clear();
    pair.client.detach(attachment, counts(8)).unwrap();
    pair.pump();
    assert_eq!(pair.events, [ClientEvent::Detached(Detached { attachment, published: 41 })]);
    assert_eq!(pair.asked, [ServerAction::FinalCounts(Detach { attachment, counts: counts(8) })]);
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
    assert_eq!(pair.events, [ClientEvent::Detached(Detached { attachment, published: 77 })]);
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
        progress: None,
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
