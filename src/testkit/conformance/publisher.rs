//! A publisher as a node has it: one state topic, sessions that pull it or are pushed to. What the sessions say is as
//! little as can be.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::observer::{payload, published_ns};
use super::{Harness, name};
use crate::clock::Clock;
use crate::fabric::{Address, Connection, Fabric, FabricError, Listener, Received, Sent, WakeQueue};
use crate::id::KindOptions;
use crate::id::{Epoch, TopicName};
use crate::layout::state::StateGeometry;
use crate::payload::Raw;
use crate::publisher::{CopyRoom, PublishedTopic, StatePublisher, TopicParts};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a subscriber sends to pull.
pub(super) const PULL: &[u8] = b"pull";
/// What a subscriber sends, with a landing region, to be pushed to.
pub(super) const PUSH: &[u8] = b"push";

/// The topic of the suite.
pub(super) fn topic() -> TopicName {
    "topic".parse().expect("the tests use well-formed names")
}

/// The process that publishes. Its fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Publisher {
    sessions: Vec<Session>,
    listener: Box<dyn Listener>,
    publisher: StatePublisher<Raw>,
    topic: Arc<PublishedTopic>,
    clock: Arc<PublishingClock>,
}

/// A clock that shows when the next value is published.
#[derive(Debug, Default)]
struct PublishingClock(AtomicU64);

#[derive(Debug)]
struct Session {
    connection: Box<dyn Connection>,
    /// Whether the answer is still to be sent.
    owes_answer: bool,
    /// Ends the use of its landing region, if it has one.
    closed: Option<Arc<AtomicBool>>,
}

impl Publisher {
    /// Where the publisher is found.
    pub(super) fn address(harness: &dyn Harness) -> Address {
        harness.address(&name("publisher"))
    }

    pub(super) fn new(fabric: &dyn Fabric, geometry: StateGeometry, epoch: Epoch) -> Self {
        let clock = Arc::new(PublishingClock::default());
        let parts = TopicParts {
            fabric,
            clock: Arc::clone(&clock) as _,
            waker: Arc::new(WakeQueue::new().expect("an event can be had")).keyed(0),
            node: Arc::new(()),
            host: "host",
            name: topic(),
            epoch,
            payload_len_max: geometry.payload_len_max(),
            samples: &[],
        };
        let opened = StatePublisher::open(parts, geometry.slot_count());
        let (publisher, topic) = opened.expect("a small topic");
        let listener = fabric.listen(&name("publisher")).expect("the name is free");
        Self { sessions: Vec::new(), listener, publisher, topic, clock }
    }

    /// The epoch, and the position of the newest value.
    pub(super) fn newest(&self) -> (Epoch, u64) {
        (self.publisher.epoch(), self.publisher.newest().get())
    }

    /// Publishes the next value.
    pub(super) fn publish(&mut self) {
        let sequence = self.publisher.newest().next().get();
        self.clock.0.store(published_ns(sequence), Ordering::Relaxed);
        let payload = payload(self.publisher.epoch(), sequence, self.publisher.payload_len_max());
        self.publisher.publish(&payload).expect("the payload fits");
    }

    /// Serves whoever is there, as a node's thread does.
    pub(super) fn turn(&mut self) {
        while let Some(connection) = self.listener.accept().expect("the listener works") {
            self.sessions.push(Session { connection, owes_answer: false, closed: None });
        }
        let Self { sessions, topic, .. } = self;
        sessions.retain_mut(|session| session.turn(topic).is_ok());
        topic.landings().tend(&CopyRoom::new());
    }
}

impl Session {
    fn turn(&mut self, topic: &PublishedTopic) -> Result<(), FabricError> {
        let geometry = topic.geometry();
        let mut buffer = [0; 16];
        match self.connection.receive(&mut buffer)? {
            Received::Nothing => {}
            Received::Closed => return Err(FabricError::Closed),
            Received::Message { len, offer } => {
                assert_eq!(&buffer[..len], if offer.is_some() { PUSH } else { PULL });
                if let Some(offer) = offer {
                    let remote = offer.open_write(geometry.region_len())?;
                    let closed = self.closed.insert(Arc::default());
                    // One that cannot be written is closed: the session notices that.
                    topic.lend(remote, closed, KindOptions::default(), &CopyRoom::new());
                }
                self.owes_answer = true;
            }
        }
        if self.owes_answer {
            let region = self.closed.is_none().then_some(&**topic.registration());
            let sent = self.connection.send(&topic.epoch().get().to_le_bytes(), region)?;
            self.owes_answer = sent == Sent::Full;
        }
        let has_failed = self.closed.as_ref().is_some_and(|closed| closed.load(Ordering::Relaxed));
        if has_failed { Err(FabricError::Closed) } else { Ok(()) }
    }
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
        unreachable!("a publisher waits for nothing")
    }

    fn pause_until(&self, _: BorrowedFd<'_>, duration: Duration) {
        self.pause(duration);
    }
}
