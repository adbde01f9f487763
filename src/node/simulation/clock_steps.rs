//! A host whose real-time clock is set, and that is suspended, while nodes publish and subscribe.

use super::*;
use crate::event::Event;
use crate::id::Meta;
use crate::inspect::{Liveness, TopicReport};

const MS: u64 = 1_000_000;
const HOUR: i64 = 3_600_000_000_000;
/// The longest time from a publish or a heartbeat to a check, ns.
const AGE_NS_MAX: u64 = 1500 * MS;

/// Counts what must not happen when clocks are set.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Hung { .. } | Event::Lost { .. } | Event::SessionClosed { .. }) {
            self.0.lock().push(event.clone());
        }
    }
}

impl World {
    fn run_for_ns(&self, duration_ns: u64) {
        let until_ns = self.network.clock().monotonic_ns() + duration_ns;
        while self.network.clock().monotonic_ns() < until_ns {
            self.turn();
        }
    }
}

/// A publisher and a subscriber on one host.
struct Pair {
    world: Arc<World>,
    events: Arc<Recorder>,
    subscribing: Node,
    publisher: StatePublisher<Value>,
    subscriber: StateSubscriber<Value>,
    last_ns: u64,
}

impl Pair {
    fn new(seed: u64, reach: Reach, delivery: Delivery) -> Self {
        let (world, events) = (World::new(seed, reach), Arc::new(Recorder::default()));
        let publishing = world.node("publishing", true);
        let publisher = publisher(&publishing);
        let subscribing = world.node_with("subscribing", false, Arc::clone(&events) as _);
        let subscriber = subscribe(&subscribing, delivery).expect("a grant").subscriber;
        Self { world, events, subscribing, publisher, subscriber, last_ns: 0 }
    }

    /// Publishes, receives, and checks everything that tells how old something is, some time later.
    fn check(&mut self, wait_ns: u64) {
        publish(&mut self.publisher, 1);
        let meta = self.receive();
        assert!(meta.published_ns >= self.last_ns, "time stamps go back");
        self.last_ns = meta.published_ns;
        self.world.run_for_ns(wait_ns);
        // Time stamps may be up to 1 % slower than time.
        let least_ns = (wait_ns / 100 * 98).saturating_sub(2 * MS);
        let liveness = Liveness::of(&mut self.subscriber);
        let reads = self.subscriber.delivery() == Delivery::Pull;
        assert_eq!(liveness, reads.then_some(Liveness::Live));
        let listed = self.subscribing.directory_timeout("shm:publishing", Duration::from_secs(5)).unwrap();
        let [topic] = listed.topics.as_slice() else { panic!("{listed:?}") };
        assert!(topic.age_ns.is_some_and(|age_ns| (least_ns..AGE_NS_MAX).contains(&age_ns)), "{topic:?}");
        assert!(topic.heartbeat_age_ns < AGE_NS_MAX, "{topic:?}");
        let clock = self.subscriber.publisher_clock();
        if clock.is_shared() {
            let age_ns = clock.age_ns(meta.published_ns);
            assert!((least_ns.cast_signed()..AGE_NS_MAX.cast_signed()).contains(&age_ns), "{age_ns}");
        }
        if reads {
            let report = TopicReport::of(&mut self.subscriber).unwrap();
            assert_eq!(report.state, Liveness::Live);
            if clock.is_shared() {
                assert!(report.age_ns.is_some_and(|age_ns| age_ns < AGE_NS_MAX), "{report:?}");
                assert!(report.heartbeat_age_ns < AGE_NS_MAX, "{report:?}");
            }
        }
        assert!(self.events.0.lock().is_empty(), "{:?}", self.events.0.lock());
    }

    fn receive(&mut self) -> Meta {
        for _ in 0..TURNS {
            if let Some(sample) = self.subscriber.try_receive().expect("no end") {
                return sample.meta;
            }
            self.world.turn();
        }
        panic!("the value never came")
    }
}

fn steps_change_nothing(reach: Reach, delivery: Delivery) {
    each_seed(amount(4, 100), |seed| {
        let mut random = Random::new(seed);
        let mut pair = Pair::new(seed, reach, delivery);
        pair.check(10 * MS);
        for _ in 0..8 {
            let clock = pair.world.network.clock();
            match random.below(4) {
                0 => clock.set(HOUR + random.below(1000).cast_signed()),
                1 => clock.set(-HOUR - random.below(1000).cast_signed()),
                2 => clock.set((random.below(2000 * MS)).cast_signed() - (1000 * MS).cast_signed()),
                _ => {
                    clock.suspend(HOUR.unsigned_abs());
                    // The whole host sleeps: a value of the first moment after it counts as one from before.
                    pair.world.run_for_ns(2 * limits::HEARTBEAT_INTERVAL_NS);
                }
            }
            pair.check(random.below(20) * MS);
            pair.check(900 * MS);
        }
    });
}

#[test]
fn steps_of_the_clock_change_neither_order_nor_age_nor_liveness_where_memory_is_mapped() {
    steps_change_nothing(Reach::Mapped, Delivery::Pull);
}

#[test]
fn steps_of_the_clock_change_neither_order_nor_age_where_landing_regions_are_mapped() {
    let pair = Pair::new(1, Reach::Mapped, Delivery::Push);
    assert!(pair.subscriber.publisher_clock().is_shared());
    steps_change_nothing(Reach::Mapped, Delivery::Push);
}

#[test]
fn steps_of_the_clock_change_neither_order_nor_liveness_where_memory_is_fetched() {
    steps_change_nothing(Reach::Fetched, Delivery::Pull);
}

#[test]
fn age_of_an_old_value_survives_a_clock_that_was_never_set_before() {
    old_value_keeps_its_age(Delivery::Pull);
    old_value_keeps_its_age(Delivery::Push);
}

/// It was published once, before the clock of the host was set for the first time.
fn old_value_keeps_its_age(delivery: Delivery) {
    let mut pair = Pair::new(1, Reach::Mapped, delivery);
    publish(&mut pair.publisher, 1);
    let meta = pair.receive();
    pair.world.run_for_ns(5000 * MS);
    pair.world.network.clock().set(50 * 365 * 24 * HOUR);
    pair.world.run_for_ns(5000 * MS);
    let clock = pair.subscriber.publisher_clock();
    let age_ns = clock.age_ns(meta.published_ns).unsigned_abs();
    assert!((10_000 * MS..11_000 * MS).contains(&age_ns), "{age_ns}");
    publish(&mut pair.publisher, 1);
    let newer = pair.receive();
    assert!(newer.published_ns - meta.published_ns > (49 * 365 * 24 * HOUR).unsigned_abs());
    // What it knew last it knows without the subscriber, too.
    let Pair { world, publisher, subscriber, .. } = pair;
    drop(subscriber);
    assert!(clock.is_shared());
    assert!(clock.age_ns(newer.published_ns).unsigned_abs() < AGE_NS_MAX);
    drop((publisher, world));
}
