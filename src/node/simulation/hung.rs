//! Publishers whose nodes stand still for a while.

use super::*;
use crate::event::Event;

/// A second without a heartbeat, or an answer, and the pauses between the checks.
const NOTICED_NS: u64 = 3_500_000_000;

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

impl Recorder {
    /// How often the publisher hung and recovered.
    fn counts(&self) -> [usize; 2] {
        let events = self.0.lock();
        let of = |event: &&Event| match event {
            Event::Hung { peer, .. } => assert_eq!(peer.as_str(), "publishing"),
            Event::Recovered { peer, .. } => assert_eq!(peer.as_str(), "publishing"),
            _ => {}
        };
        events.iter().for_each(|event| of(&event));
        let hung = events.iter().filter(|event| matches!(event, Event::Hung { .. })).count();
        [hung, events.iter().filter(|event| matches!(event, Event::Recovered { .. })).count()]
    }
}

impl World {
    /// Takes the node's thread away, as when its process is stopped.
    pub(super) fn freeze(&self, name: &str) -> NodeThread {
        let name: NodeName = name.parse().unwrap();
        let mut drivers = self.drivers.lock();
        let index = drivers.iter().position(|thread| thread.name == name).unwrap();
        drivers.remove(index)
    }

    pub(super) fn thaw(&self, frozen: NodeThread) {
        self.drivers.lock().push(frozen);
    }

    pub(super) fn run_for(&self, duration_ns: u64) {
        let until_ns = self.network.clock().monotonic_ns() + duration_ns;
        while self.network.clock().monotonic_ns() < until_ns {
            self.turn();
        }
    }
}

/// The subscriber's program receives nothing meanwhile.
fn hanging_is_an_event_and_so_is_its_end(reach: Reach, delivery: Delivery) {
    each_seed(amount(1, SEEDS), |seed| {
        let (world, events) = (World::new(seed, reach), Arc::new(Recorder::default()));
        let publishing = world.node("publishing", true);
        let mut publisher = publisher(&publishing);
        let sink: Arc<dyn EventSink> = Arc::<Recorder>::clone(&events);
        let subscribing = world.node_with("subscribing", false, sink);
        let mut observed = subscribe(&subscribing, delivery).expect("a grant");
        publish(&mut publisher, 1);
        observed.catch_up(&world, 1);
        world.run_for(2 * NOTICED_NS);
        assert_eq!(events.counts(), [0, 0], "it lives, though it publishes nothing");
        for round in 1..3 {
            let frozen = world.freeze("publishing");
            world.run_for(800_000_000);
            assert_eq!(events.counts(), [round - 1, round - 1], "less than a second");
            world.run_for(NOTICED_NS - 800_000_000);
            assert_eq!(events.counts(), [round, round - 1]);
            world.run_for(2 * NOTICED_NS);
            assert_eq!(events.counts(), [round, round - 1], "once");
            world.thaw(frozen);
            world.run_for(NOTICED_NS);
            assert_eq!(events.counts(), [round, round]);
        }
        // It is the same subscription still.
        publish(&mut publisher, 1);
        observed.catch_up(&world, 2);
        let frozen = world.freeze("publishing");
        world.run_for(NOTICED_NS);
        drop(frozen);
        world.kill("publishing");
        world.run_for(NOTICED_NS);
        assert_eq!(events.counts(), [3, 2], "it is gone, and does not hang any more");
    });
}

#[test]
fn publisher_that_hangs_is_noticed_where_memory_is_mapped() {
    hanging_is_an_event_and_so_is_its_end(Reach::Mapped, Delivery::Pull);
}

#[test]
fn publisher_that_hangs_is_noticed_where_memory_is_fetched() {
    hanging_is_an_event_and_so_is_its_end(Reach::Fetched, Delivery::Pull);
}

#[test]
fn publisher_that_pushes_and_hangs_is_noticed_where_memory_is_mapped() {
    hanging_is_an_event_and_so_is_its_end(Reach::Mapped, Delivery::Push);
}

#[test]
fn publisher_that_pushes_and_hangs_is_noticed_where_memory_is_fetched() {
    hanging_is_an_event_and_so_is_its_end(Reach::Fetched, Delivery::Push);
}

/// Otherwise it could write to their landing regions when it runs again, long after another one has taken its place.
#[test]
fn session_with_a_publisher_that_hangs_ends_with_its_last_subscriber() {
    for (reach, delivery) in
        [(Reach::Mapped, Delivery::Push), (Reach::Fetched, Delivery::Push), (Reach::Fetched, Delivery::Pull)]
    {
        each_seed(amount(2, SEEDS), |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let mut publisher = publisher(&publishing);
            let subscribing = world.node("subscribing", false);
            let mut one = subscribe(&subscribing, delivery).expect("a grant");
            let other = subscribe(&subscribing, delivery).expect("a grant");
            publish(&mut publisher, 1);
            one.catch_up(&world, 1);
            let frozen = world.freeze("publishing");
            world.run_for(NOTICED_NS);
            drop(other);
            world.run_for(NOTICED_NS);
            assert_eq!(subscribing.links().all().len(), 1, "one is attached still");
            drop(one);
            world.run_for(10_000_000);
            assert_eq!(subscribing.links().all().len(), 0, "it does not wait for an answer");
            world.thaw(frozen);
            publish(&mut publisher, 3);
            world.run_for(100_000_000);
            assert_eq!((publisher.pull_subscribers(), publisher.push_subscribers()), (0, 0));
            let mut next = subscribe(&subscribing, delivery).expect("a grant");
            next.catch_up(&world, 4);
        });
    }
}
