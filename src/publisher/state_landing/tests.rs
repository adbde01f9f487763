//! The writes to a landing region of a state, and its reader.

use std::sync::Arc;

use super::*;
use crate::clock::Timekeeper;
use crate::fabric::WakeQueue;
use crate::id::{Incarnation, KindOptions, NodeName};
use crate::limits::{LANDING_BATCHES_MAX, LANDING_HOT_LINE_EVERY, LOG_COPY_LEN_MAX};
use crate::memory::Region;
use crate::payload::Raw;
use crate::publisher::tests::Wire;
use crate::publisher::{
    CopyBudget, LenLimit, Numbering, PublishedTopic, StatePublisher, TopicMemory, TopicParts,
};
use crate::repository::state::StateReader;
use crate::repository::{ReadFailure, Reader as _, SubscriberStats, WriteOrder};
use crate::sync::atomic::AtomicBool;
use crate::testkit::clock::VirtualClock;
use crate::testkit::fabric::{Network, Reach};
use crate::testkit::random::{Random, each_seed};

/// A publisher, the wire to one landing region, and its reader.
struct World {
    publisher: StatePublisher<Raw>,
    topic: Arc<PublishedTopic>,
    closed: Arc<AtomicBool>,
    wire: Wire,
    target: Arc<Region>,
    reader: StateReader,
    /// The counts that the reader should have.
    expected: SubscriberStats,
    last: u64,
}

const LEN_MAX: usize = 64;

/// A payload that follows from its sequence, of one length or of any.
fn payload(sequence: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| (index ^ sequence.wrapping_mul(0x9E37_79B9)).to_le_bytes()[0]).collect()
}

fn any_len(sequence: u64) -> usize {
    usize::try_from(sequence.wrapping_mul(7919) % (LEN_MAX as u64 + 1)).unwrap()
}

/// A publisher of values of up to this length.
fn publisher(
    slot_count: u32,
    payload_len_max: usize,
    seed: u64,
) -> (StatePublisher<Raw>, Arc<PublishedTopic>) {
    let name: NodeName = "publishing".parse().unwrap();
    let fabric = Network::new(seed, Reach::Mapped).fabric(&name);
    let parts = TopicParts {
        fabric: &fabric,
        time: Arc::new(Timekeeper::new(Arc::<VirtualClock>::default())),
        lifespan_ns: 0,
        waker: Arc::new(WakeQueue::new().unwrap()).keyed(0),
        node: Arc::new(()),
        host: "host",
        name: "topic".parse().unwrap(),
        numbering: Numbering::new(Incarnation::new(seed | 1).unwrap()),
        memory: TopicMemory::default(),
        payload_len_max,
        limit: LenLimit::Value,
        gating: None,
        samples: &[],
    };
    StatePublisher::<Raw>::open(parts, slot_count).unwrap()
}

impl World {
    fn new(slot_count: u32, has_word_order: bool, seed: u64) -> Self {
        Self::over(slot_count, seed, |len| Wire::new(has_word_order, len, seed))
    }

    /// A world whose wire may lose writes, and loses none until requested.
    fn losing(slot_count: u32, seed: u64) -> Self {
        Self::over(slot_count, seed, |len| {
            let wire = Wire::new(false, len, seed);
            wire.lose_once_in(u64::MAX);
            wire
        })
    }

    fn over(slot_count: u32, seed: u64, wire: impl FnOnce(usize) -> Wire) -> Self {
        let (publisher, topic) = publisher(slot_count, LEN_MAX, seed);
        let geometry = topic.geometry.state().unwrap();
        let wire = wire(geometry.region_len());
        let target = Arc::clone(&wire.0.lock().target);
        let closed = Arc::default();
        assert!(topic.accept(Box::new(wire.clone()), &closed, KindOptions::default(), &CopyBudget::new()));
        let reader = StateReader::new(geometry, topic.epoch, topic.topic_id);
        let expected = SubscriberStats::default();
        Self { publisher, topic, closed, wire, target, reader, expected, last: 0 }
    }

    /// A world in which 64 values were written in time.
    fn at_ease(slot_count: u32) -> Self {
        let mut world = Self::new(slot_count, false, 1);
        (0..64).for_each(|_| drop(world.publish_and_complete(LEN_MAX)));
        world
    }

    fn publish(&mut self, len: usize) {
        let sequence = self.publisher.newest().next().get();
        self.publisher.publish(&payload(sequence, len)).unwrap();
    }

    /// Publishes a value of this length and completes its writes. Returns what was posted.
    fn publish_and_complete(&mut self, len: usize) -> Vec<String> {
        self.publish(len);
        self.wire.complete();
        self.wire.posted()
    }

    /// Receives once and checks the value. Returns whether there was one.
    fn receive(&mut self, len: impl Fn(u64) -> usize) -> bool {
        match self.reader.follow(&self.target, WriteOrder::Writes, || 0) {
            Ok(Some(accepted)) => {
                let verified = self.reader.verified(accepted);
                let sequence = verified.meta.sequence.get();
                assert!(sequence > self.last && sequence <= self.publisher.newest().get());
                assert_eq!(verified.payload, payload(sequence, len(sequence)), "value {sequence}");
                let skipped = if self.last == 0 { 0 } else { sequence - self.last - 1 };
                assert_eq!(verified.conflated, skipped);
                self.expected.received += 1;
                self.expected.conflated += skipped;
                self.last = sequence;
                true
            }
            Ok(None) | Err(ReadFailure::Contended { .. }) => false,
            Err(failure) => panic!("{failure:?}"),
        }
    }

    /// Publishes no more; everything arrives.
    fn settle(&mut self, len: impl Fn(u64) -> usize) {
        for _ in 0..10 {
            self.topic.landings.tend(&CopyBudget::new());
            self.wire.complete();
        }
        assert!(!self.topic.landings.owe(&self.closed));
        while self.receive(&len) {}
        assert_eq!(self.last, self.publisher.newest().get(), "the newest value is received");
        let counted = self.reader.counts();
        assert_eq!(counted, SubscriberStats { torn_retries: counted.torn_retries, ..self.expected });
    }
}

/// Each subscriber gets the end after its last value, independently of the others.
#[test]
fn slow_subscriber_delays_the_end_for_no_others() {
    let World { mut publisher, topic, closed, wire, .. } = World::new(8, false, 1);
    let (slow, slow_closed) = (Wire::new(false, topic.geometry.region_len(), 2), Arc::default());
    assert!(topic.accept(Box::new(slow.clone()), &slow_closed, KindOptions::default(), &CopyBudget::new()));
    publisher.publish(b"last").unwrap();
    drop(publisher);
    wire.complete();
    assert!(!topic.landings.owe(&closed));
    assert!(topic.landings.owe(&slow_closed));
    slow.complete();
    assert!(!topic.landings.owe(&slow_closed));
}

/// However many join at once, the node's thread copies to a few of them before other work.
#[test]
fn long_values_are_copied_to_a_few_subscribers_a_turn() {
    const LONG: usize = 1 << 20;
    let (mut publisher, topic) = publisher(2, LONG, 1);
    publisher.publish(&payload(1, LONG)).unwrap();
    let budget = CopyBudget::new();
    let a_turn = LOG_COPY_LEN_MAX / 2 / LONG;
    let begun =
        |wires: &[Wire]| wires.iter().map(|wire| wire.posted().len()).filter(|posts| *posts > 0).count();
    let wires: Vec<_> = (0..8).map(|seed| Wire::new(false, topic.geometry.region_len(), seed)).collect();
    for wire in &wires {
        let closed = Arc::default();
        assert!(topic.accept(Box::new(wire.clone()), &closed, KindOptions::default(), &budget));
    }
    assert_eq!(begun(&wires), a_turn);
    wires.iter().for_each(Wire::complete);
    for turn in 2..=8 / a_turn {
        budget.refill();
        assert!(topic.landings.tend(&budget).again_ns.is_some(), "turn {turn}");
        // Those of the last turn are revealed, and as many begun.
        assert!(begun(&wires) <= 2 * a_turn, "turn {turn}");
        wires.iter().for_each(Wire::complete);
    }
    budget.refill();
    topic.landings.tend(&budget);
    wires.iter().for_each(Wire::complete);
    // Writes in flight to slow subscribers take no budget.
    publisher.publish(&payload(2, LONG)).unwrap();
    wires.iter().for_each(|wire| drop(wire.posted()));
    publisher.publish(&payload(3, LONG)).unwrap();
    budget.refill();
    topic.landings.tend(&budget);
    assert!(!budget.is_used_up());
    for wire in &wires {
        wire.complete();
        let target = Arc::clone(&wire.0.lock().target);
        let mut reader = StateReader::new(topic.geometry.state().unwrap(), topic.epoch, topic.topic_id);
        let accepted = reader.follow(&target, WriteOrder::Writes, || 0).unwrap().expect("it has the value");
        let verified = reader.verified(accepted);
        assert_eq!(verified.payload, payload(2, LONG));
    }
}

#[test]
fn value_is_one_write_and_the_hot_line_follows_periodically() {
    for slot_count in [2, 8, 128] {
        let mut world = World::new(slot_count, false, 1);
        assert_eq!(world.publish_and_complete(LEN_MAX), ["tail slot hot"]);
        for sequence in 2..1000 {
            let posted = world.publish_and_complete(LEN_MAX);
            // The contents of a fresh slot do not matter.
            let first_lap = if sequence <= u64::from(slot_count) { "tail " } else { "" };
            let hot = if sequence.is_multiple_of(LANDING_HOT_LINE_EVERY) { " hot" } else { "" };
            assert_eq!(posted, [format!("{first_lap}slot{hot}")], "value {sequence}");
            assert!(sequence % 7 != 0 || world.receive(|_| LEN_MAX));
        }
        world.settle(|_| LEN_MAX);
    }
}

#[test]
fn tail_stamp_at_another_place_is_retired_first() {
    let mut world = World::new(2, false, 1);
    (0..4).for_each(|_| drop(world.publish_and_complete(17)));
    for (len, posted) in [(24, "slot"), (17, "slot"), (25, "tail slot"), (17, "slot"), (16, "tail slot")] {
        assert_eq!(world.publish_and_complete(len), [posted], "{len} bytes");
    }
}

#[test]
fn in_word_order_each_value_is_its_slot_and_the_hot_line() {
    let mut world = World::new(4, true, 1);
    (0..4).for_each(|_| drop(world.publish_and_complete(24)));
    for _ in 0..200 {
        assert_eq!(world.publish_and_complete(24), ["slot hot"]);
    }
    assert_eq!(world.publish_and_complete(23), ["tail slot hot"]);
    // One batch at a time.
    world.publish(24);
    world.publish(24);
    assert_eq!(world.wire.posted(), ["slot hot"]);
}

#[test]
fn batches_in_flight_are_limited_and_the_next_one_marks_skipped_values() {
    for (slot_count, max) in [(2, 1), (4, 3), (8, LANDING_BATCHES_MAX), (64, LANDING_BATCHES_MAX)] {
        let mut world = World::at_ease(slot_count);
        for count in 1..=max + 1 {
            world.publish(LEN_MAX);
            assert_eq!(world.wire.0.lock().in_flight, count.min(max));
        }
        assert_eq!(world.wire.posted(), vec!["slot"; max]);
        world.wire.complete();
        // With two slots the next value would overwrite the newest one there.
        let beside = usize::from(slot_count == 2);
        for count in 0..=beside {
            world.publish(LEN_MAX);
            assert_eq!(world.wire.posted(), ["slot hot head"][..usize::from(count == beside)]);
        }
        world.settle(|_| LEN_MAX);
    }
}

/// On a busy path queued values are overwritten in the repository: the window shrinks until that stops.
#[test]
fn window_shrinks_when_the_publisher_overtakes_it() {
    let mut world = World::at_ease(8);
    let in_flight = |world: &World| world.wire.0.lock().in_flight;
    (0..12).for_each(|_| world.publish(LEN_MAX));
    assert_eq!(in_flight(&world), 4);
    // The first one took twelve publishes.
    while world.wire.place(1) == 0 {}
    world.wire.acknowledge();
    world.publish(LEN_MAX);
    assert_eq!(in_flight(&world), 3);
    world.wire.complete();
    for expected in [1, 1] {
        world.publish(LEN_MAX);
        assert_eq!(in_flight(&world), expected);
    }
    for expected in 2..=4 {
        (0..CALM_BATCHES).for_each(|_| drop(world.publish_and_complete(LEN_MAX)));
        (0..5).for_each(|_| world.publish(LEN_MAX));
        assert_eq!(in_flight(&world), expected);
        world.wire.complete();
    }
    world.settle(|_| LEN_MAX);
}

/// The newest written value stays whole until a newer one is, unless nothing else can be written.
#[test]
fn newest_value_is_not_overwritten_after_skipped_ones() {
    let mut world = World::at_ease(4);
    (0..3).for_each(|_| world.publish(LEN_MAX));
    world.wire.place(usize::MAX);
    (0..3).for_each(|_| world.publish(LEN_MAX));
    assert_eq!(world.wire.posted(), ["slot"; 3]);
    world.wire.acknowledge();
    // Values 65 to 67 are there. 71 has the slot of 67.
    world.publish(LEN_MAX);
    assert_eq!(world.wire.posted(), [""; 0]);
    assert!(world.receive(|_| LEN_MAX));
    assert_eq!(world.last, 67);
    world.publish(LEN_MAX);
    assert_eq!(world.wire.posted(), ["slot hot head"]);
    world.settle(|_| LEN_MAX);
}

#[test]
fn node_writes_what_the_publisher_skipped() {
    let mut world = World::at_ease(4);
    (0..3).for_each(|_| world.publish(LEN_MAX));
    world.wire.place(usize::MAX);
    (0..4).for_each(|_| world.publish(LEN_MAX));
    assert_eq!(world.wire.posted(), ["slot"; 3]);
    world.topic.landings.tend(&CopyBudget::new());
    assert_eq!(world.wire.posted(), [""; 0], "values are in flight");
    world.wire.acknowledge();
    assert!(world.receive(|_| LEN_MAX));
    assert_eq!(world.last, 67);
    world.topic.landings.tend(&CopyBudget::new());
    assert_eq!(world.wire.posted(), ["tail body"]);
    world.wire.complete();
    assert!(!world.receive(|_| LEN_MAX), "it is hidden");
    world.topic.landings.tend(&CopyBudget::new());
    assert_eq!(world.wire.posted(), ["head hot head"]);
    world.settle(|_| LEN_MAX);
    assert_eq!(world.last, 71);
}

/// Everything in random order: publishes, words on the wire, acknowledgements, the node, the reader.
#[test]
fn every_order_of_events_gives_whole_values_and_exact_counts() {
    let mut passed_over = 0;
    each_seed(100, |seed| {
        let mut random = Random::new(seed);
        let slot_count = 2 << random.below(4);
        let mut world = World::new(slot_count, false, seed);
        let speed = 1 + random.index(60);
        let fixed = random.once_in(2);
        let len = |sequence| if fixed { LEN_MAX } else { any_len(sequence) };
        for round in 0..4 {
            for _ in 0..200 {
                match random.below(8) {
                    0..=1 => {
                        for _ in 0..=random.below(if round == 3 { 2 * u64::from(slot_count) } else { 2 }) {
                            let sequence = world.publisher.newest().next().get();
                            world.publish(len(sequence));
                        }
                    }
                    2..=3 => drop(world.wire.place(1 + random.index(speed))),
                    4 => world.wire.acknowledge(),
                    5 => drop(world.topic.landings.tend(&CopyBudget::new())),
                    _ => drop(world.receive(len)),
                }
            }
            world.settle(len);
        }
        let posted = world.wire.posted();
        passed_over += posted.iter().filter(|batch| batch.ends_with("head")).count();
    });
    assert!(passed_over > 300, "{passed_over}");
}

/// A busy wire, and a publisher faster than it by any factor: the reader gets about as many values as arrive.
#[test]
fn reader_behind_a_busy_wire_gets_what_arrives() {
    each_seed(2, |seed| {
        for slot_count in [2, 4, 8, 16] {
            for words_a_tick in [1, 2, 3, 5, 7, 14, 15, 20] {
                let mut random = Random::new(seed);
                let mut world = World::new(slot_count, false, seed);
                let mut arrived = 0;
                for _ in 0..1000 {
                    world.publish(LEN_MAX);
                    arrived += world.wire.place(words_a_tick);
                    if random.once_in(2) {
                        world.wire.acknowledge();
                    }
                    world.receive(|_| LEN_MAX);
                }
                // Values, the stamp and the hot line need some 24 words.
                let published_meanwhile = 24 / words_a_tick + 2;
                let received = usize::try_from(world.reader.counts().received).unwrap();
                if published_meanwhile < slot_count as usize {
                    let case = (slot_count, words_a_tick);
                    assert!(received * 10 > arrived * 8, "{case:?}: {received} of {arrived} are received");
                }
                world.settle(|_| LEN_MAX);
            }
        }
    });
}

/// Where writes may be lost each value marks itself as the newest: a reader that misses one continues with the next.
#[test]
fn lost_value_hides_no_later_one() {
    for slot_count in [2, 8, 128] {
        let mut world = World::losing(slot_count, 1);
        assert_eq!(world.publish_and_complete(LEN_MAX), ["tail slot hot"]);
        assert!(world.receive(|_| LEN_MAX));
        for lost in 1..=3 {
            world.wire.lose_once_in(1);
            (0..lost).for_each(|_| drop(world.publish_and_complete(LEN_MAX)));
            assert!(!world.receive(|_| LEN_MAX));
            world.wire.lose_once_in(u64::MAX);
            world.publish_and_complete(LEN_MAX);
            assert!(world.receive(|_| LEN_MAX), "{lost} lost of {slot_count} slots");
            assert_eq!(world.last, world.publisher.newest().get());
        }
    }
}

#[test]
fn whatever_is_lost_only_whole_values_are_received() {
    each_seed(60, |seed| {
        let mut random = Random::new(seed);
        let slot_count = 2 << random.below(4);
        let mut world = World::losing(slot_count, seed);
        let fixed = random.once_in(2);
        let len = |sequence| if fixed { LEN_MAX } else { any_len(sequence) };
        for _ in 0..20 {
            world.wire.lose_once_in(1 + random.below(4));
            for _ in 0..40 {
                match random.below(6) {
                    0..=1 => {
                        let sequence = world.publisher.newest().next().get();
                        world.publish(len(sequence));
                    }
                    2 => drop(world.wire.place(1 + random.index(40))),
                    3 => world.wire.complete(),
                    4 => drop(world.topic.landings.tend(&CopyBudget::new())),
                    _ => drop(world.receive(len)),
                }
            }
            world.wire.lose_once_in(u64::MAX);
            for _ in 0..2 {
                let sequence = world.publisher.newest().next().get();
                world.wire.complete();
                world.publish_and_complete(len(sequence));
            }
            world.settle(len);
        }
    });
}
