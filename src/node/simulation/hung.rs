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
