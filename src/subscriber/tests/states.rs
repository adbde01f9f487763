//! State topics.

use super::*;
use crate::layout::state::{SlotCheck, SlotHeader, StateGeometry, check_word, slot_len};
use crate::repository::Writer as _;
use crate::repository::state::{Committed, StateWriter};

const SLOTS: u32 = 8;

/// A publisher, and a subscriber with notices.
struct World {
    writer: StateWriter,
    net: Net,
    receiver: Arc<NoticeReceiver>,
    attached: Arc<Quiet>,
    subscriber: StateSubscriber<Raw>,
    /// The newest value received, and whether it was forged.
    last: (u64, bool),
    contradictions: u64,
}

fn payload(number: u64) -> Vec<u8> {
    vec![number.to_le_bytes()[0] & 0x7f; usize::try_from(number * 7 % LEN_MAX as u64).unwrap() + 1]
}

/// The slot of a forged value, in separate memory.
fn forged_slot(sequence: u64) -> (Region, ByteRange) {
    let payload = [FORGED; 16];
    let len = u32::try_from(payload.len()).unwrap();
    let sequence = Sequence::new(sequence);
    let header = SlotHeader { sequence, epoch: EPOCH.get(), payload_len: len, encoding: 3, published_ns: 5 };
    let mut crc = SlotCheck::new(topic_id()).of_header(&header);
    crc.update(&payload);
    let mut words = header.emit().to_vec();
    words.extend(payload.chunks(WORD).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())));
    words.extend([check_word(crc.finish()), sequence.get()]);
    assert_eq!(words.len() * WORD, slot_len(payload.len()));
    let memory = Region::allocate(4096, Protection::PeersRead).unwrap();
    words.iter().enumerate().for_each(|(index, word)| memory.store(index * WORD, *word));
    (memory, ByteRange { offset: 0, len: words.len() * WORD })
}

impl World {
    fn new(seed: u64) -> Self {
        let geometry = StateGeometry::new(SLOTS, LEN_MAX).unwrap();
        let memory = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
        let line = Geometry::from(geometry).static_header(EPOCH, topic_id(), 0);
        let writer = StateWriter::new(Arc::clone(&memory), geometry, &line);
        let Ends { net, receiver, attached, subscription } = subscribe(seed, &memory, geometry.into());
        let subscriber = StateSubscriber::open(subscription, ()).unwrap();
        Self { writer, net, receiver, attached, subscriber, last: (0, false), contradictions: 0 }
    }

    fn newest(&self) -> u64 {
        self.writer.last().get()
    }

    fn publish(&mut self) {
        let number = self.newest() + 1;
        let Committed { slot, .. } = self.writer.publish(&payload(number), 3, number).unwrap();
        let inline = Inline { memory: self.writer.region(), range: slot, records: 1 };
        // Some are too long for a datagram.
        let inline = (!number.is_multiple_of(5)).then_some(inline);
        self.net.tell([number, 0], inline);
    }

    fn pass(&mut self, ns: u64) {
        let newest = self.newest();
        self.net.pass(ns, [newest, 0]);
    }

    /// Receives once. Returns whether there was a value.
    fn receive(&mut self) -> bool {
        match self.subscriber.try_receive() {
            Ok(None) => return false,
            Err(ReceiveError::Contended { .. }) => {}
            Err(ReceiveError::Contradicted { first, told, found }) => {
                self.contradictions += 1;
                assert_eq!(told.get(), self.last.0);
                assert!(first <= told && found.get() <= self.newest(), "{first} {told} {found}");
                self.last = (first.get() - 1, false);
            }
            Err(error) => panic!("{error}"),
            Ok(Some(sample)) => {
                let sequence = sample.meta.sequence.get();
                assert!(sequence > self.last.0, "{sequence} after {:?}", self.last);
                let is_forged = sample.value.first() == Some(&FORGED);
                assert!(is_forged || sample.value == payload(sequence), "{sequence}: {:?}", sample.value);
                assert!(
                    !is_forged || self.contradictions == 0,
                    "{sequence} after inline values were refused"
                );
                self.last = (sequence, is_forged);
            }
        }
        true
    }

    /// One random event.
    fn step(&mut self) {
        match self.net.random.below(6) {
            0 | 1 => self.publish(),
            2 => (0..self.net.random.below(20)).for_each(|_| self.publish()),
            3 => {
                let ns = self.net.random.below(40_000_000);
                self.pass(ns);
            }
            _ => (0..self.net.random.below(8)).for_each(|_| _ = self.receive()),
        }
    }

    /// Proceeds until the subscriber must have found everything.
    fn settle(&mut self) {
        let until_ns = self.net.now_ns() + TIMER_NS;
        while self.net.now_ns() < until_ns {
            self.pass(10_000_000);
            (0..5).for_each(|_| _ = self.receive());
        }
        (0..40).for_each(|_| _ = self.receive());
    }
}

#[test]
fn honest_network_never_makes_the_repository_contradict_its_notices() {
    each_seed(1500, |seed| {
        let mut world = World::new(seed);
        (0..120).for_each(|_| world.step());
        world.settle();
        assert_eq!((world.last, world.contradictions), ((world.newest(), false), 0));
        let stats = world.subscriber.stats();
        assert_eq!((stats.rejected, stats.withdrawn), (0, 0));
        assert!(stats.received + stats.conflated <= world.newest());
        assert_eq!(world.receiver.counts().contradicted, 0);
    });
}

/// Whatever a forger with the topic's key sends, the newest value is received as soon as an unannounced one.
#[test]
fn forged_values_do_not_keep_a_subscriber_from_the_newest_one() {
    let mut contradictions = 0;
    each_seed(300, |seed| {
        let mut world = World::new(seed);
        for _ in 0..8 {
            (0..20).for_each(|_| world.step());
            for _ in 0..=world.net.random.below(3) {
                let newest = world.newest();
                let ahead = [1, 2, 5, 100, limits::NOTICE_LEAD_MAX, 1 << 30, 1 << 63, u64::MAX - newest];
                let sequence = newest.saturating_add(ahead[world.net.random.index(ahead.len())]);
                let (memory, range) = forged_slot(sequence);
                let inline = Inline { memory: &memory, range, records: 1 };
                let inline = world.net.random.once_in(2).then_some(inline);
                world.net.forge([sequence, 0], inline);
                world.step();
            }
            world.publish();
            world.settle();
            assert_eq!(world.last, (world.newest(), false));
        }
        assert!(world.contradictions <= 1);
        assert_eq!(world.receiver.counts().contradicted, world.contradictions);
        assert_eq!(world.contradictions == 0, world.subscriber.stats().withdrawn == 0);
        contradictions += world.contradictions;
    });
    println!("{contradictions} contradictions");
    assert!(contradictions > 0 || std::env::var("FABRICAST_SEED").is_ok());
}

/// A world without losses, and a subscriber that has five values, the last of them inline.
fn quiet_world() -> World {
    let mut world = World::new(0);
    (world.net.lose_permille, world.net.delay_ns_max) = (0, 0);
    for _ in 0..4 {
        world.publish();
        world.settle();
    }
    world
}

#[test]
fn forged_value_far_ahead_silences_no_subscriber() {
    let mut world = quiet_world();
    let (memory, range) = forged_slot(1 << 63);
    world.net.forge([1 << 63, 0], Some(Inline { memory: &memory, range, records: 1 }));
    world.settle();
    world.publish();
    world.settle();
    assert_eq!(world.last, (world.newest(), false), "the real value");
}

#[test]
fn forged_value_slightly_ahead_is_detected_and_the_real_ones_received() {
    for (ahead, published) in [(1, 0), (1000, 0), (1, 1), (3, 2), (1000, 3)] {
        let mut world = quiet_world();
        let (memory, range) = forged_slot(4 + ahead);
        world.net.forge([4 + ahead, 0], Some(Inline { memory: &memory, range, records: 1 }));
        (0..5).for_each(|_| _ = world.receive());
        assert_eq!(world.last, (4 + ahead, true), "the subscriber takes it for the next one");
        (0..published).for_each(|_| world.publish());
        let before_ns = world.net.now_ns();
        world.settle();
        assert_eq!((world.last, world.contradictions), ((4 + published, false), 1), "{ahead} {published}");
        assert!(world.net.now_ns() - before_ns <= TIMER_NS + 10_000_000);
        let stats = world.subscriber.stats();
        assert_eq!((stats.withdrawn, stats.conflated + stats.received - stats.withdrawn), (1, 4 + published));
        world.publish();
        world.settle();
        assert_eq!((world.last, world.contradictions), ((5 + published, false), 1));
    }
}

/// The last value, too, is compared before the end is reported.
#[test]
fn end_of_a_topic_does_not_hide_a_forged_value() {
    let mut world = quiet_world();
    let (memory, range) = forged_slot(9);
    world.net.forge([9, 0], Some(Inline { memory: &memory, range, records: 1 }));
    (0..5).for_each(|_| _ = world.receive());
    *world.attached.0.lock() = Some(TopicEnd::Ended { published: Sequence::new(4) });
    let mut told = Vec::new();
    while told.len() < 2 {
        told.extend(world.subscriber.try_receive().err().map(|error| error.to_string()));
    }
    assert!(told[0].starts_with("values 5 to 9 "), "{told:?}");
    assert!(told[1].contains("after 4 values"), "{told:?}");
}

/// A forged hint causes one read in vain, whatever its sequence; later genuine ones still count.
#[test]
fn forged_hint_costs_one_read_and_hides_no_later_one() {
    for hint in [6, 1 << 40, 1 << 63, u64::MAX] {
        let mut world = quiet_world();
        world.net.forge([hint, 0], None);
        (0..20).for_each(|_| _ = world.receive());
        assert_eq!((world.last, world.contradictions), ((4, false), 0));
        // Too long to come inline.
        let number = world.newest() + 1;
        assert!(number.is_multiple_of(5));
        world.publish();
        world.pass(1_000);
        (0..20).for_each(|_| _ = world.receive());
        assert_eq!(world.last, (number, false), "at once, and not by the timer, after {hint}");
    }
}
