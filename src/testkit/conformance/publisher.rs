//! A publisher as a node has it: one topic, and sessions that pull or push. Their messages are minimal.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::kind::ConformingKind;
use super::observer::{payload, published_ns};
use super::{Harness, name};
use crate::clock::{Clock, Timekeeper};
use crate::fabric::{Acceptor, Address, Connection, Fabric, FabricError, Received, Sent, WakeQueue};
use crate::id::{Epoch, Incarnation, KindOptions, Sequence, TopicName};
use crate::layout::Geometry;
use crate::payload::Raw;
use crate::publisher::{self, CopyBudget, LenLimit, Numbering, PublishedTopic, TopicParts};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A subscriber's request to pull.
pub(super) const PULL: &[u8] = b"pull";
/// A subscriber's first message to get pushes, with a landing region. The options of the kind follow.
pub(super) const PUSH: &[u8] = b"push";

/// The topic of the suite.
pub(super) fn topic() -> TopicName {
    "topic".parse().expect("the tests use well-formed names")
}

/// The options of a topic.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopicSetup<K: ConformingKind> {
    pub(super) options: K::Options,
    pub(super) payload_len_max: usize,
}

/// The publishing process. Its fields drop in this order.
#[derive(Debug)]
pub(super) struct Publisher<K: ConformingKind> {
    sessions: Vec<Session>,
    listener: Box<dyn Acceptor>,
    publisher: publisher::Publisher<K, Raw>,
    topic: Arc<PublishedTopic>,
    clock: Arc<PublishingClock>,
}

/// A clock whose time identifies the next value.
#[derive(Debug, Default)]
struct PublishingClock(AtomicU64);

#[derive(Debug)]
struct Session {
    connection: Box<dyn Connection>,
    /// The newest value at the time of the request, if the answer is still to be sent.
    granted: Option<Sequence>,
    /// Ends the use of its landing region, if it has one.
    closed: Option<Arc<AtomicBool>>,
}

impl<K: ConformingKind> Publisher<K> {
    /// The publisher's address.
    pub(super) fn address(harness: &dyn Harness) -> Address {
        harness.address(&name("publisher"))
    }

    pub(super) fn new(fabric: &dyn Fabric, shape: TopicSetup<K>, epoch: Epoch) -> Self {
        let clock = Arc::new(PublishingClock::default());
        let parts = TopicParts {
            fabric,
            time: Arc::new(Timekeeper::new(Arc::clone(&clock) as _)),
            lifespan_ns: 0,
            waker: Arc::new(WakeQueue::new().expect("an event can be had")).keyed(0),
            node: Arc::new(()),
            host: "host",
            name: topic(),
            numbering: Numbering::new(Incarnation::new(epoch.get()).expect("not zero")),
            payload_len_max: shape.payload_len_max + K::OVERHEAD,
            limit: LenLimit::Value,
            gating: None,
            samples: &[],
        };
        let opened = publisher::Publisher::open(parts, shape.options);
        let (publisher, topic) = opened.expect("a small topic");
        let listener = fabric.listen(&name("publisher")).expect("the name is free").remove(0);
        Self { sessions: Vec::new(), listener, publisher, topic, clock }
    }

    /// The epoch, and the position of the newest value.
    pub(super) fn newest(&self) -> (Epoch, u64) {
        (self.publisher.epoch(), self.publisher.newest().get())
    }

    /// Where things stand in the topic's repository.
    pub(super) fn geometry(&self) -> Geometry {
        self.topic.geometry
    }

    /// Publishes the next value.
    pub(super) fn publish(&mut self) {
        let sequence = self.publisher.newest().next().get();
        self.clock.0.store(published_ns(sequence), Ordering::Relaxed);
        let payload =
            payload(self.publisher.epoch(), sequence, self.publisher.payload_len_max() - K::OVERHEAD);
        let published = K::publish(&mut self.publisher, &payload).expect("the payload fits");
        assert_eq!(published.get(), sequence);
    }

    /// Serves all sessions, as a node's thread does.
    pub(super) fn turn(&mut self) {
        while let Some(connection) = self.listener.accept().expect("the listener works") {
            self.sessions.push(Session { connection, granted: None, closed: None });
        }
        let Self { sessions, topic, .. } = self;
        sessions.retain_mut(|session| session.turn(topic).is_ok());
        topic.landings.tend(&CopyBudget::new());
    }
}

impl Session {
    fn turn(&mut self, topic: &PublishedTopic) -> Result<(), FabricError> {
        let geometry = topic.geometry;
        let mut buffer = [0; 32];
        match self.connection.receive(&mut buffer)? {
            Received::Nothing => {}
            Received::Closed => return Err(FabricError::Closed),
            Received::Message { len, offer } => {
                let (request, words) = buffer[..len].split_at(PUSH.len());
                assert_eq!(request, if offer.is_some() { PUSH } else { PULL });
                if let Some(offer) = offer {
                    let options = KindOptions(words_of(words));
                    let remote = offer.open_write(geometry.region_len())?;
                    let closed = self.closed.insert(Arc::default());
                    // One that cannot be written is closed, and the session notices.
                    topic.accept(remote, closed, options, &CopyBudget::new());
                }
                self.granted = Some(topic.newest());
            }
        }
        let is_begun = |closed| topic.landings.is_begun(closed);
        if let Some(granted) = self.granted
            && self.closed.as_ref().is_none_or(is_begun)
        {
            let region = self.closed.is_none().then_some(&*topic.registration);
            let answer = bytes_of([topic.epoch.get(), granted.get()]);
            let sent = self.connection.send(&answer, region)?;
            self.granted = self.granted.filter(|_| sent == Sent::Full);
        }
        let has_failed = self.closed.as_ref().is_some_and(|closed| closed.load(Ordering::Relaxed));
        if has_failed { Err(FabricError::Closed) } else { Ok(()) }
    }
}

/// Words as they are sent.
pub(super) fn bytes_of<const COUNT: usize>(words: [u64; COUNT]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Words as they were sent.
pub(super) fn words_of<const COUNT: usize>(bytes: &[u8]) -> [u64; COUNT] {
    let words = bytes.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned::<u64>);
    words.map(u64::from_le).collect::<Vec<_>>().try_into().expect("that many words")
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closed.iter().for_each(|closed| closed.store(true, Ordering::Relaxed));
    }
}

impl Clock for PublishingClock {
    fn monotonic_ns(&self) -> u64 {
        self.realtime_ns()
    }

    fn realtime_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn pause(&self, _: Duration) {
        unreachable!("a publisher never waits")
    }

    fn pause_until(&self, _: BorrowedFd<'_>, duration: Duration) {
        self.pause(duration);
    }
}
