//! Peers with a key that go on reading over RDMA what they may not read any more, or attach nothing: `tools/soft-roce run` runs this.

use super::verbs_strangers::{CONNECTS, Client, Quotes, fabric, readers_keys, showing_tags, subscribe};
use super::*;
use crate::control::{AttachmentId, ClientEvent, LetGoReason, Message, SubscriberCounts, decode};
use crate::fabric::verbs::VerbsError;
use crate::fabric::{Address, ByteRange, Completion, FabricError, RdmaConnect, RemoteRead};
use crate::id::KindOptions;
use crate::layout::Geometry;
use crate::limits;

/// A repository that the rogue has been granted.
struct Granted {
    attachment: AttachmentId,
    read: Box<dyn RemoteRead>,
}

impl Granted {
    /// Reads all of it.
    fn read(&mut self) -> Result<(), FabricError> {
        let all = ByteRange { offset: 0, len: self.read.mirror().len() };
        let mut outcome = self.read.post(&[all]);
        wait_until("a READ", || {
            if let Ok(Completion::Pending) = outcome {
                outcome = self.read.poll();
            }
            !matches!(outcome, Ok(Completion::Pending))
        });
        outcome.map(|_| ())
    }
}

/// The rogue's session with this node, and the repositories of its two topics.
fn rogue(quotes: &Quotes, connect: RdmaConnect) -> (Client, [Granted; 2]) {
    let node = quotes.peer("rogue", connect, Some(readers_keys()));
    let mut rogue = Client::dial(&fabric(connect, showing_tags()), &quotes.at, &node);
    let granted = ["md/a", "md/b"].map(|topic| {
        rogue.session.attach(topic.parse().unwrap(), Delivery::Pull, None, KindOptions::default()).unwrap();
        let (ClientEvent::Granted { grant, .. }, Some(offer)) = rogue.next() else { panic!("no grant") };
        let len = Geometry::new(grant.kind, &grant.geometry).unwrap().region_len();
        let mut granted = Granted { attachment: grant.attachment, read: offer.open_read(len).unwrap() };
        granted.read().unwrap();
        granted
    });
    (rogue, granted)
}

/// Honest subscribers of the topic that the rogue loses.
fn honest(quotes: &Quotes, connect: RdmaConnect) -> [StateSubscriber<u64>; 2] {
    let node = quotes.peer("honest", connect, Some(readers_keys()));
    [Delivery::Pull, Delivery::Push].map(|delivery| {
        let mut subscriber = subscribe(&node, &quotes.at, "md/a", delivery).unwrap();
        assert_eq!(receive(&mut subscriber).value, 7);
        subscriber
    })
}

/// The old key opens nothing, however soon it is tried, and the session that tries it ends. The others go on.
fn loses_its_first_topic(
    mut quotes: Quotes,
    [lost, kept]: &mut [Granted; 2],
    others: &mut [StateSubscriber<u64>; 2],
) {
    kept.read().expect("its session goes on");
    let refused = lost.read().unwrap_err();
    assert!(matches!(refused, FabricError::Verbs(VerbsError::RemoteAccess)), "{refused:?}");
    let is_rogue =
        |event: &Event| matches!(event, Event::SessionClosed { peer, .. } if peer.as_str() == "rogue");
    quotes.wait_for("the end of the rogue's session", is_rogue);
    for number in 8..18 {
        quotes.publishers[0].publish(&number).unwrap();
        for subscriber in &mut *others {
            assert_eq!(receive(subscriber).value, number);
            assert_eq!(subscriber.stats().rejected, 0);
        }
    }
    assert_eq!(quotes.subscribers(), 2);
}

/// It ignores that it was revoked.
#[test]
#[ignore = "needs an RDMA device"]
fn revoked_subscriber_that_keeps_its_key_reads_nothing_over_rdma() {
    for connect in CONNECTS {
        let quotes = Quotes::open();
        let mut others = honest(&quotes, connect);
        let (mut rogue, mut granted) = rogue(&quotes, connect);
        let revoked = quotes.node.revoke("md/a", |peer| peer.node.as_str() == "rogue");
        assert_eq!(revoked.unwrap(), 1);
        let (ClientEvent::LetGo(let_go), _) = rogue.next() else { panic!("it is not told") };
        assert_eq!((let_go.attachment, let_go.reason), (granted[0].attachment, LetGoReason::Revoked));
        loses_its_first_topic(quotes, &mut granted, &mut others);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn subscriber_that_has_detached_and_keeps_its_key_reads_nothing_over_rdma() {
    for connect in CONNECTS {
        let quotes = Quotes::open();
        let mut others = honest(&quotes, connect);
        let (mut rogue, mut granted) = rogue(&quotes, connect);
        rogue.session.detach(granted[0].attachment, SubscriberCounts::default()).unwrap();
        let (event, _) = rogue.next();
        let is_over = |id| id == granted[0].attachment;
        assert!(matches!(&event, ClientEvent::Detached(it) if is_over(it.attachment)), "{event:?}");
        loses_its_first_topic(quotes, &mut granted, &mut others);
    }
}

/// Connects, lists the topics, and attaches nothing: how long that is permitted, whether or not it goes on to list them.
fn attaches_nothing(node: &Node, at: &Address, connect: RdmaConnect, lists: bool) {
    let mut idle = Client::dial(&fabric(connect, showing_tags()), at, node);
    let began_ns = SystemClock.monotonic_ns();
    let took_ns = || SystemClock.monotonic_ns() - began_ns;
    idle.session.list(None).unwrap();
    let (ClientEvent::Topics { .. }, _) = idle.next() else { panic!("no topics") };
    idle.session.list(None).unwrap();
    let list = idle.session.next_message().unwrap().bytes;
    let (mut refused, mut pages) = (None, 0);
    wait_until("a refusal", || {
        if lists && took_ns() > (pages + 1) * 500_000_000 {
            let _ = idle.end.say(&list);
        }
        match idle.end.try_hear().unwrap().map(|(message, _)| decode(&message).unwrap()) {
            None => {}
            Some(Message::Topics(_)) => pages += 1,
            Some(Message::Refuse(refuse)) => refused = Some(refuse),
            Some(other) => panic!("{other:?}"),
        }
        refused.is_some()
    });
    let (took_ns, refuse) = (took_ns(), refused.unwrap());
    println!("{connect:?}: ended after {:?} and {pages} pages", Duration::from_nanos(took_ns));
    assert_eq!((refuse.reason, pages > 5), (RefuseReason::Idle, lists));
    assert!(refuse.text.as_str().contains("10 s"), "{refuse:?}");
    let bounds = limits::IDLE_SESSION_NS - 1_000_000_000..2 * limits::IDLE_SESSION_NS;
    assert!(bounds.contains(&took_ns), "{took_ns} ns");
}

#[test]
#[ignore = "needs an RDMA device"]
fn session_over_rdma_that_attaches_nothing_is_ended() {
    let all = CONNECTS.map(|connect| (connect, Quotes::open()));
    let mut attached = all.each_ref().map(|(connect, quotes)| rogue(quotes, *connect));
    std::thread::scope(|scope| {
        for (connect, quotes) in &all {
            for (name, lists) in [("silent", false), ("curious", true)] {
                let node = quotes.peer(name, *connect, Some(readers_keys()));
                let at = &quotes.at;
                scope.spawn(move || attaches_nothing(&node, at, *connect, lists));
            }
        }
    });
    for (_rogue, granted) in &mut attached {
        granted[0].read().expect("one that is attached goes on");
    }
}
