//! A publisher of a log, and push subscribers whose writes are placed on demand.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::*;
use crate::clock::Timekeeper;
use crate::fabric::{FabricError, NothingToRevoke, Placement, RemoteWrite, Revocation, WakeQueue};
use crate::id::{Incarnation, NodeName, Sequence};
use crate::layout::WORD;
use crate::layout::log::RING_OFFSET;
use crate::memory::Protection;
use crate::payload::Raw;
use crate::publisher::{
    CopyBudget, LenLimit, LogOptions, LogPublisher, Numbering, PublishedTopic, TopicMemory, TopicParts,
};
use crate::repository::log::{LogReader, LogStart};
use crate::repository::{LossReason, Lost, ReadFailure, Reader as _, WriteOrder};
use crate::sync::atomic::AtomicBool;
use crate::testkit::clock::VirtualClock;
use crate::testkit::fabric::{Network, Reach};
use crate::testkit::random::Random;

/// How writes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// At once.
    Memory,
    /// Piece by piece, the pieces of a write in any order.
    Wire,
    /// The same, with one write in this many lost.
    Lossy(u64),
}

/// Writes to a landing region, where nothing moves by itself.
#[derive(Clone, Debug)]
pub(super) struct Way(pub(super) Arc<Mutex<Moving>>);

#[derive(Debug)]
pub(super) struct Moving {
    pub(super) medium: Medium,
    random: Random,
    pub(super) target: Arc<Region>,
    /// What is not placed yet.
    pieces: VecDeque<Piece>,
    in_flight: usize,
    /// Placed batches that the publisher has not noticed.
    placed: usize,
    /// A word is being read; its value.
    fetching: bool,
    fetched: Option<u64>,
    /// How many of the next index writes are lost.
    pub(super) indexes_to_lose: u64,
    /// Bytes of frames in each batch.
    pub(super) batches: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Piece {
    Copy { source: Arc<Region>, offset: usize },
    Word { offset: usize, word: u64 },
    Fetch { offset: usize },
    End,
}

impl Way {
    pub(super) fn new(medium: Medium, len: usize, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Moving {
            medium,
            random: Random::new(seed),
            target: Arc::new(Region::allocate(len, Protection::PeersWrite).unwrap()),
            pieces: VecDeque::new(),
            in_flight: 0,
            placed: 0,
            fetching: false,
            fetched: None,
            indexes_to_lose: 0,
            batches: Vec::new(),
        })))
    }

    /// Places the next words.
    pub(super) fn place(&self, count: usize) {
        let mut moving = self.0.lock();
        for _ in 0..count {
            let Some(piece) = moving.pieces.pop_front() else { break };
            moving.place(&piece);
        }
    }

    /// Notifies the publisher of what is placed.
    pub(super) fn acknowledge(&self) {
        let mut moving = self.0.lock();
        moving.in_flight -= std::mem::take(&mut moving.placed);
    }

    pub(super) fn complete(&self) {
        self.place(usize::MAX);
        self.acknowledge();
    }
}

impl Moving {
    fn place(&mut self, piece: &Piece) {
        match piece {
            Piece::Copy { source, offset } => self.target.store(*offset, source.load(*offset)),
            Piece::Word { offset, word } => self.target.store(*offset, *word),
            Piece::Fetch { offset } => self.fetched = Some(self.target.load(*offset)),
            Piece::End => self.placed += 1,
        }
    }

    /// The pieces of one write: forwards, backwards, or in random order.
    fn begin(&mut self, mut pieces: Vec<Piece>) {
        if matches!(self.medium, Medium::Lossy(count) if self.random.once_in(count)) {
            return;
        }
        match self.random.below(3) {
            0 => {}
            1 => pieces.reverse(),
            _ => self.random.shuffle(&mut pieces),
        }
        self.pieces.extend(pieces);
    }
}

/// Bytes of the frames that a write moves.
fn frames_len(write: &Write) -> usize {
    match write {
        Write::Range(range) if *range != INDEX => range.len,
        _ => 0,
    }
}

impl RemoteWrite for Way {
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        let mut moving = self.0.lock();
        let len = moving.target.len();
        moving.batches.push(writes.iter().map(frames_len).sum());
        for write in writes {
            let source = Arc::clone(source.region());
            let pieces = match *write {
                Write::Range(range) => {
                    let is_index = range == INDEX && matches!(moving.medium, Medium::Lossy(_));
                    assert!(is_index || (range.offset >= RING_OFFSET && range.offset + range.len <= len));
                    if moving.medium == Medium::Memory {
                        source.write_across(range.offset, &moving.target, range.offset, range.len);
                        continue;
                    }
                    let offsets = (range.offset..range.offset + range.len).step_by(WORD);
                    offsets.map(|offset| Piece::Copy { source: Arc::clone(&source), offset }).collect()
                }
                Write::Line { offset, words } => {
                    let words = words.into_iter().enumerate();
                    words.map(|(index, word)| Piece::Word { offset: offset + index * WORD, word }).collect()
                }
                Write::Word { offset, word } => vec![Piece::Word { offset, word }],
            };
            if moving.indexes_to_lose > 0 && *write == Write::Range(INDEX) {
                moving.indexes_to_lose -= 1;
            } else {
                moving.begin(pieces);
            }
        }
        moving.pieces.push_back(Piece::End);
        moving.in_flight += 1;
        if moving.medium != Medium::Memory {
            return Ok(Completion::Pending);
        }
        drop(moving);
        self.complete();
        Ok(Completion::Done)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(self.0.lock().in_flight)
    }

    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        let mut moving = self.0.lock();
        match moving.medium {
            Medium::Memory => return Ok(Some(moving.target.load_acquire(offset))),
            Medium::Wire => {}
            Medium::Lossy(_) => return Err(FabricError::Access { why: "nothing can be read" }),
        }
        if !moving.fetching {
            moving.fetching = true;
            moving.pieces.push_back(Piece::Fetch { offset });
        }
        let fetched = moving.fetched.take();
        moving.fetching = fetched.is_none();
        Ok(fetched)
    }

    fn placement(&self) -> Placement {
        match self.0.lock().medium {
            Medium::Memory => Placement::Words,
            Medium::Lossy(_) => Placement::Lossy,
            _ => Placement::Writes,
        }
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(NothingToRevoke)
    }
}

/// A push subscriber, and what it has counted.
pub(super) struct Subscriber {
    pub(super) way: Way,
    pub(super) closed: Arc<AtomicBool>,
    pub(super) target: Arc<Region>,
    pub(super) reader: LogReader,
    pub(super) received: u64,
    pub(super) lapped: u64,
    pub(super) damaged: u64,
    /// The record before the first one.
    pub(super) before: u64,
    pub(super) now_ns: u64,
}

impl Subscriber {
    pub(super) fn told(&self) -> u64 {
        self.before + self.received + self.lapped + self.damaged
    }

    /// Receives up to this many records.
    pub(super) fn read(&mut self, count: usize, len_max: usize) -> usize {
        self.now_ns += limits::ARRIVAL_SETTLED_NS / 100;
        for number in 0..count {
            let next = self.reader.next_sequence();
            assert_eq!(next.get(), self.told() + 1, "each record once, and in order");
            let now_ns = self.now_ns;
            let order = match self.way.0.lock().medium {
                Medium::Memory => WriteOrder::Words,
                // A wrong frame is waited for there.
                Medium::Wire => WriteOrder::Writes,
                Medium::Lossy(_) => WriteOrder::FinalWrites,
            };
            match self.reader.follow(&self.target, order, || now_ns) {
                Ok(None) => return number,
                Ok(Some(taken)) => {
                    let record = self.reader.verified(taken);
                    assert_eq!(record.meta.sequence, next);
                    assert_eq!(record.payload, payload(next.get(), len_max));
                    self.received += 1;
                }
                Err(ReadFailure::Lost(Lost { first, count, reason })) => {
                    assert!(first == next && count > 0);
                    match reason {
                        LossReason::Lapped => self.lapped += count,
                        LossReason::Damaged => self.damaged += count,
                    }
                }
                Err(failure) => panic!("{failure:?}"),
            }
        }
        count
    }
}

/// A publisher and its subscribers.
pub(super) struct World {
    pub(super) publisher: LogPublisher<Raw>,
    pub(super) topic: Arc<PublishedTopic>,
    pub(super) subscribers: Vec<Subscriber>,
    pub(super) len_max: usize,
    pub(super) appended: u64,
    queue: Arc<WakeQueue>,
}

/// A payload that follows from its sequence, of any length.
pub(super) fn payload(sequence: u64, len_max: usize) -> Vec<u8> {
    let len = sequence.wrapping_mul(7919) % (len_max as u64 + 1);
    (0..len).map(|index| (index ^ sequence.wrapping_mul(31)).to_le_bytes()[0]).collect()
}

impl World {
    pub(super) fn new(capacity: usize, len_max: usize) -> Self {
        let name: NodeName = "publishing".parse().unwrap();
        let queue = Arc::new(WakeQueue::new().unwrap());
        let fabric = Network::new(1, Reach::Mapped).fabric(&name);
        let parts = TopicParts {
            fabric: &fabric,
            time: Arc::new(Timekeeper::new(Arc::<VirtualClock>::default())),
            lifespan_ns: 0,
            waker: queue.keyed(0),
            node: Arc::new(()),
            host: "host",
            name: "topic".parse().unwrap(),
            numbering: Numbering::new(Incarnation::new(1).unwrap()),
            memory: TopicMemory::default(),
            payload_len_max: len_max,
            limit: LenLimit::Value,
            gating: None,
            samples: &[],
        };
        let options = LogOptions { capacity, gating: None };
        let (publisher, topic) = LogPublisher::<Raw>::open(parts, options).unwrap();
        Self { publisher, topic, subscribers: Vec::new(), len_max, appended: 0, queue }
    }

    /// Whether the publisher has woken the node's thread since the last call.
    pub(super) fn is_woken(&self) -> bool {
        let mut keys = std::collections::BTreeSet::new();
        self.queue.take(&mut keys);
        !keys.is_empty()
    }

    /// Adds a subscriber that begins with this record, and has the beginning on return.
    pub(super) fn subscribe(&mut self, medium: Medium, first: u64, seed: u64) {
        self.subscribe_after(0, medium, first, seed);
    }

    /// The same, where the beginning arrives after so many turns of the node's thread.
    pub(super) fn subscribe_after(&mut self, turns: usize, medium: Medium, first: u64, seed: u64) {
        let geometry = self.topic.geometry.log().unwrap();
        let way = Way::new(medium, geometry.region_len(), seed);
        let (target, closed) = (Arc::clone(&way.0.lock().target), Arc::default());
        let start = LogStart::At(Sequence::new(first));
        assert!(self.topic.accept(Box::new(way.clone()), &closed, start.options(), &CopyBudget::new()));
        assert_eq!(self.topic.landings.is_begun(&closed), medium == Medium::Memory);
        for _ in 0..turns {
            self.tend();
        }
        way.complete();
        assert!(self.topic.landings.is_begun(&closed));
        let mut reader = LogReader::new(geometry, self.topic.epoch, self.topic.topic_id, start);
        reader.settle(&target);
        self.subscribers.push(Subscriber {
            way,
            closed,
            target,
            reader,
            received: 0,
            lapped: 0,
            damaged: 0,
            before: first - 1,
            now_ns: 0,
        });
    }

    pub(super) fn append(&mut self, count: u64) {
        for _ in 0..count {
            // Appended records are ahead of committed ones.
            let next = self.appended + 1;
            self.publisher.append(&payload(next, self.len_max)).unwrap();
            self.appended = next;
        }
    }

    pub(super) fn publish(&mut self, count: u64) {
        self.append(count);
        self.publisher.commit();
    }

    /// One turn of the node's thread.
    pub(super) fn tend(&self) -> bool {
        self.topic.landings.tend(&CopyBudget::new()).again_ns.is_some()
    }

    /// Publishes no more: everything arrives and is read.
    pub(super) fn settle(&mut self) {
        self.publisher.commit();
        let newest = self.publisher.newest();
        for _ in 0..400 {
            self.tend();
            for subscriber in &mut self.subscribers {
                subscriber.way.complete();
                subscriber.read(usize::MAX, self.len_max);
            }
        }
        for subscriber in &mut self.subscribers {
            assert!(!self.topic.landings.owe(&subscriber.closed));
            if let Some((_, count)) = subscriber.reader.give_up(newest) {
                assert_ne!(subscriber.way.0.lock().medium, Medium::Memory);
                subscriber.damaged += count;
            }
            assert_eq!(subscriber.told(), newest.get().max(subscriber.before));
        }
    }
}
