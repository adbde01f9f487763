//! State topics.

use super::*;
use crate::layout::state::StateGeometry;
use crate::repository::state::StateReader;
use crate::repository::state::{Committed, StateWriter, forgery};
use crate::repository::{Finding, Reader as _, Writer as _};
use crate::subscriber::{InlineValues, RenewableHandle as _};

const SLOTS: u32 = 8;

/// A publisher, and a subscriber with notices.
struct World {
    writer: StateWriter,
    net: Net,
    receiver: Arc<NoticeReceiver>,
    attached: Arc<Quiet>,
    geometry: Geometry,
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
    forgery::slot(topic_id(), EPOCH, sequence, &[FORGED; 16])
}

impl World {
    fn new(seed: u64) -> Self {
        Self::trusting(seed, true)
    }

    /// A world whose subscriber takes inline values from multicast if it trusts what other subscribers could have sent.
    fn trusting(seed: u64, trusts_shared: bool) -> Self {
        let geometry = StateGeometry::new(SLOTS, LEN_MAX).unwrap();
        let memory = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
        let line = Geometry::from(geometry).static_header(EPOCH, topic_id(), 0);
        let writer = StateWriter::new(Arc::clone(&memory), geometry, &line);
        let Ends { net, receiver, attached, subscription, .. } =
            subscribe((seed, trusts_shared), &memory, geometry.into());
        let subscriber = StateSubscriber::open(subscription, ()).unwrap();
        let (geometry, last, contradictions) = (geometry.into(), (0, false), 0);
        Self { writer, net, receiver, attached, geometry, subscriber, last, contradictions }
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

/// Peers that prove keys are told apart: what all subscribers of a topic can make is then a hint, and never a value.
#[test]
fn values_that_other_subscribers_can_forge_are_read_before_they_are_received() {
    let mut untrusted = 0;
    each_seed(300, |seed| {
        let mut world = World::trusting(seed, false);
        for _ in 0..8 {
            (0..20).for_each(|_| world.step());
            let sequence = world.newest() + 1 + world.net.random.below(3);
            let (memory, range) = forged_slot(sequence);
            world.net.forge([sequence, 0], Some(Inline { memory: &memory, range, records: 1 }));
            for _ in 0..8 {
                world.receive();
                assert!(!world.last.1, "a forged value");
            }
            world.publish();
            world.settle();
            assert_eq!(world.last, (world.newest(), false));
        }
        let (stats, counts) = (world.subscriber.stats(), world.receiver.counts());
        assert_eq!((world.contradictions, stats.contradicted, stats.withdrawn), (0, 0, 0));
        assert_eq!((counts.contradicted, counts.inline_taken), (0, 0));
        assert_eq!(world.subscriber.inline_values(), InlineValues::Unicast);
        untrusted += counts.inline_untrusted;
    });
    assert!(untrusted > 0);
}

/// What the repository, or the grant, said last bounds what may come from a notice.
#[test]
fn inline_value_is_bounded_by_what_the_repository_said_last() {
    let geometry = Geometry::from(StateGeometry::new(SLOTS, LEN_MAX).unwrap());
    let granted = GrantedAt { newest: Sequence::new(500), after: Sequence::NONE };
    let is_taken = |sequence: u64| {
        let mut reader = StateReader::open(&geometry, (EPOCH, topic_id()), granted, ()).unwrap();
        reader.expect_inline();
        let (memory, range) = forged_slot(sequence);
        let mut words = vec![0; range.len / WORD];
        memory.copy_out(range.offset, &mut words);
        matches!(reader.take_inline(&words, Sequence::new(sequence), 0), Finding::Taken(_))
    };
    for (sequence, expected) in [
        (1, false),
        (499, false),
        (500, true),
        (501, true),
        (500 + limits::NOTICE_LEAD_MAX, true),
        (501 + limits::NOTICE_LEAD_MAX, false),
        (u64::MAX, false),
    ] {
        assert_eq!(is_taken(sequence), expected, "{sequence}");
    }
}

/// A contradicted subscriber says so, goes back, and takes no more values from notices, also after it has attached again.
#[test]
fn contradicted_subscriber_shows_it_and_stays_careful() {
    let mut world = quiet_world();
    assert_eq!(world.subscriber.inline_values(), InlineValues::All);
    let (memory, range) = forged_slot(6);
    world.net.forge([6, 0], Some(Inline { memory: &memory, range, records: 1 }));
    (0..5).for_each(|_| _ = world.receive());
    assert_eq!((world.last, world.attached.contradicted()), ((6, true), 0));
    world.settle();
    assert_eq!((world.last, world.contradictions), ((4, false), 1));
    assert_eq!(world.subscriber.inline_values(), InlineValues::Contradicted);
    assert!(format!("{:?}", world.subscriber).contains("inline_values: Contradicted"));
    assert_eq!((world.subscriber.stats().contradicted, world.attached.contradicted()), (1, 1));

    // The next subscription, of the same memory.
    let memory = Arc::clone(world.writer.region());
    let Ends { net, receiver, attached, subscription, .. } = subscribe((1, true), &memory, world.geometry);
    world.subscriber.renew(StateSubscriber::open(subscription, ()).unwrap(), true);
    (world.net, world.receiver, world.attached) = (net, receiver, attached);
    (world.net.lose_permille, world.net.delay_ns_max) = (0, 0);
    assert_eq!(world.subscriber.inline_values(), InlineValues::Contradicted);
    for _ in 0..3 {
        let (memory, range) = forged_slot(world.newest() + 1);
        world.net.forge([world.newest() + 1, 0], Some(Inline { memory: &memory, range, records: 1 }));
        world.publish();
        world.settle();
        assert_eq!((world.last, world.contradictions), ((world.newest(), false), 1));
    }
    assert_eq!((world.subscriber.stats().contradicted, world.attached.contradicted()), (1, 0));
}
