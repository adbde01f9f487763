//! Pull subscribers over a wire that receive notices, genuine and forged: a virtual clock, and every delay, loss and order from a
//! seed.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::subscription::{Attachment, Granted, Source, Subscription, TopicEnd};
use super::{
    LogSubscriber, NoticeSource, NoticeSubscription, ReceiveError, StateSubscriber, SubscriberHandle as _,
};
use crate::clock::Clock as _;
use crate::fabric::{
    ByteRange, ChannelReceiver, Completion, Datagram, DatagramReach, FabricError, RemoteRead,
};
use crate::id::{Delivery, Epoch, Incarnation, Sequence, TopicId, TopicName};
use crate::layout::notice::{DatagramDraft, DatagramHeader};
use crate::layout::{Geometry, LINE, WORD};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::notice::{Inline, Notice, NoticeKey, NoticeKeys, NoticeReceiver};
use crate::payload::{Payload as _, Raw};
use crate::repository::GrantedAt;
use crate::repository::SubscriberStats;
use crate::repository::log::LogStart;
use crate::subscriber::waiter::Watched;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::testkit::clock::VirtualClock;
use crate::testkit::random::{Random, each_seed};

mod logs;
mod states;
mod tables;

const CHANNEL: u64 = 77;
const KEY: NoticeKey = NoticeKey::new([3; 16]);
const SECRET: NoticeKey = NoticeKey::new([4; 16]);
const EPOCH: Epoch = Epoch::FIRST;
/// Longest payload. Longer ones never come inline here.
const LEN_MAX: usize = 64;
/// The longest delay of a datagram, ns.
const DELAY_NS_MAX: u64 = 60_000_000;
/// Time in which a subscriber finds an unannounced value: until its next read, and some turns of the world.
const TIMER_NS: u64 = limits::NOTICE_DOUBT_NS + 10_000_000;
/// The first byte of every forged payload.
const FORGED: u8 = 0xff;

/// Reads of the publisher's memory, a few lines at a time and in any order.
#[derive(Debug)]
struct Wire {
    memory: Arc<Region>,
    mirror: Arc<Region>,
    /// What is left to read of the batch, by pieces.
    left: Vec<ByteRange>,
    random: Random,
    fails_in: FailsIn,
}

/// After how many polls one fails that has read a part of the rest; 0 for none.
type FailsIn = Arc<Mutex<u64>>;

impl RemoteRead for Wire {
    fn mirror(&self) -> &Arc<Region> {
        &self.mirror
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError> {
        assert!(self.left.is_empty(), "one batch at a time");
        let pieces = |range: &ByteRange| {
            let ends = range.offset + range.len;
            let pieces = (range.offset..ends).step_by(LINE);
            pieces.map(move |offset| ByteRange { offset, len: LINE.min(ends - offset) }).collect::<Vec<_>>()
        };
        self.left = ranges.iter().flat_map(pieces).collect();
        self.random.shuffle(&mut self.left);
        self.poll()
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        let most = if self.random.once_in(3) { usize::MAX } else { self.random.index(12) };
        let mut fails_in = self.fails_in.lock();
        let fails = *fails_in == 1;
        *fails_in = fails_in.saturating_sub(1);
        let count = if fails { self.left.len() / 2 } else { most.min(self.left.len()) };
        for ByteRange { offset, len } in self.left.drain(..count) {
            let words = (offset..offset + len).step_by(WORD);
            words.for_each(|offset| self.mirror.store(offset, self.memory.load(offset)));
        }
        if fails {
            self.left.clear();
            return Err(FabricError::System { what: "read", source: std::io::ErrorKind::Other.into() });
        }
        Ok(if self.left.is_empty() { Completion::Done } else { Completion::Pending })
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

/// Datagrams that have arrived.
#[derive(Clone, Debug, Default)]
struct Inbox(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl ChannelReceiver for Inbox {
    fn return_ticket(&self) -> &[u8] {
        b"here"
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Datagram>, FabricError> {
        let Some(bytes) = self.0.lock().pop_front() else { return Ok(None) };
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(Some(Datagram { len: bytes.len(), reach: DatagramReach::Multicast }))
    }

    fn passed_over(&self) -> u64 {
        0
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

#[derive(Debug, Default)]
struct Quiet(Mutex<Option<TopicEnd>>, AtomicU64);

impl Quiet {
    /// How often the subscription was contradicted.
    fn contradicted(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
}

impl Watched for Quiet {
    fn has_ended(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl Attachment for Quiet {
    fn end(&self) -> Option<TopicEnd> {
        self.0.lock().clone()
    }

    fn contradict(&self, _: &Granted) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self, _: SubscriberStats) {}
}

/// The channel of a publisher, and everything in flight.
struct Net {
    random: Random,
    clock: Arc<VirtualClock>,
    inbox: Inbox,
    draft: DatagramDraft,
    /// The number of the last datagram.
    number: u64,
    under_way: Vec<(u64, Vec<u8>)>,
    lose_permille: u64,
    delay_ns_max: u64,
    beaten_ns: u64,
}

/// The parts of a subscription.
struct Ends {
    net: Net,
    receiver: Arc<NoticeReceiver>,
    attached: Arc<Quiet>,
    subscription: Subscription,
    fails_in: FailsIn,
}

fn topic_id() -> TopicId {
    TopicId::of(&"topic".parse::<TopicName>().unwrap())
}

/// A subscription to this memory.
fn subscribe((seed, trusts_shared): (u64, bool), memory: &Arc<Region>, geometry: Geometry) -> Ends {
    let clock = Arc::new(VirtualClock::default());
    let inbox = Inbox::default();
    let receiver = Arc::new(NoticeReceiver::new(Box::new(inbox.clone()), CHANNEL));
    let keys = NoticeKeys { shared: KEY, own: KEY.for_session(&SECRET), trusts_shared };
    let mailbox = receiver.subscribe(topic_id(), EPOCH, keys);
    let mirror = Arc::new(Region::allocate(memory.len(), Protection::PeersRead).unwrap());
    let random = Random::new(seed ^ 0x5eed);
    let fails_in = FailsIn::default();
    let (memory, left) = (Arc::clone(memory), Vec::new());
    let wire = Wire { memory, mirror, left, random, fails_in: Arc::clone(&fails_in) };
    let granted = Granted {
        topic: "topic".parse().unwrap(),
        topic_id: topic_id(),
        delivery: Delivery::Pull,
        epoch: EPOCH,
        incarnation: Incarnation::new(1).unwrap(),
        geometry,
        schema: Raw::schema().unwrap(),
        key: 0,
        address: 0,
        at: GrantedAt::default(),
        peer: None,
        lifespan_ns: 0,
    };
    let attached = Arc::new(Quiet::default());
    let source = Source::Remote(Box::new(wire));
    let mut subscription =
        Subscription::new(granted, source, Arc::clone(&attached) as _, Arc::clone(&clock) as _);
    subscription.listen(NoticeSource::Channel(NoticeSubscription::new(
        Arc::clone(&receiver),
        mailbox,
        trusts_shared,
    )));
    let mut random = Random::new(seed);
    let (lose_permille, delay_ns_max) = (random.below(3) * 300, random.below(2) * DELAY_NS_MAX);
    let draft = DatagramDraft::new(1024).unwrap();
    let under_way = Vec::new();
    let net =
        Net { random, clock, inbox, draft, number: 0, under_way, lose_permille, delay_ns_max, beaten_ns: 0 };
    Ends { net, receiver, attached, subscription, fails_in }
}

impl Net {
    fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// A datagram with one notice and this number.
    fn datagram(&mut self, number: u64, position: [u64; 2], inline: Option<Inline<'_>>) -> Vec<u8> {
        let [sequence, position] = position;
        let sequence = Sequence::new(sequence);
        let notice = Notice { topic: topic_id(), epoch: EPOCH, sequence, position, published_ns: 1 };
        self.draft.clear();
        assert!(self.draft.push(&notice, &KEY, inline));
        let header = DatagramHeader { is_beacon: false, is_unicast: false, channel: CHANNEL, number };
        self.draft.seal(&header).to_vec()
    }

    /// Sends the publisher's notices through a network that loses, duplicates, delays and reorders.
    fn tell(&mut self, position: [u64; 2], inline: Option<Inline<'_>>) {
        self.number += 1;
        let bytes = self.datagram(self.number, position, inline);
        for _ in 0..if self.random.once_in(5) { 2 } else { 1 } {
            if self.random.below(1000) >= self.lose_permille {
                let due_ns = self.now_ns() + self.random.below(self.delay_ns_max + 1);
                self.under_way.push((due_ns, bytes.clone()));
            }
        }
    }

    /// Sends a datagram of a forger with the key: it arrives at once, and as the next one.
    fn forge(&mut self, position: [u64; 2], inline: Option<Inline<'_>>) {
        self.number += 1;
        let bytes = self.datagram(self.number, position, inline);
        self.inbox.0.lock().push_back(bytes);
    }

    /// Lets time pass, and delivers what arrives. The publisher's node sends a beacon every 100 ms.
    fn pass(&mut self, ns: u64, position: [u64; 2]) {
        self.clock.advance(ns);
        let now_ns = self.now_ns();
        if now_ns >= self.beaten_ns + limits::HEARTBEAT_INTERVAL_NS {
            self.beaten_ns = now_ns;
            self.tell(position, None);
        }
        self.under_way.sort_by_key(|(due_ns, _)| *due_ns);
        let arrived = self.under_way.partition_point(|(due_ns, _)| *due_ns <= now_ns);
        self.inbox.0.lock().extend(self.under_way.drain(..arrived).map(|(_, bytes)| bytes));
    }
}
