//! The newest value of a state topic, pulled and pushed over the seam.

use std::fmt;

use super::Harness;
use super::publisher::Publisher;
use super::subscriber::Subscriber;
use crate::fabric::Fabric;
use crate::id::{Delivery, Epoch};
use crate::layout::state::StateGeometry;
use crate::repository::ReadFailure;
use crate::testkit::random::Random;

/// Most rounds that subscribers may take to catch up.
const ROUNDS_MAX: u32 = 20_000;

/// A publisher and its subscribers.
pub(super) struct World<'a> {
    pub(super) subscribers: Vec<Subscriber>,
    pub(super) publisher: Publisher,
    harness: &'a dyn Harness,
    delivery: Delivery,
    geometry: StateGeometry,
    random: Random,
}

impl<'a> World<'a> {
    pub(super) fn new(harness: &'a dyn Harness, delivery: Delivery, seed: u64) -> Self {
        Self::over(&*harness.fabric(), harness, delivery, seed)
    }

    /// A world whose publisher uses this fabric.
    pub(super) fn over(fabric: &dyn Fabric, harness: &'a dyn Harness, delivery: Delivery, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let slot_count = 2 << random.below(3);
        let payload_len_max = 1 + random.index(300);
        let geometry = StateGeometry::new(slot_count, payload_len_max).expect("a small geometry");
        let publisher = Publisher::new(fabric, geometry, epoch(1));
        Self { subscribers: Vec::new(), publisher, harness, delivery, geometry, random }
    }

    fn subscribe(&mut self) {
        self.subscribe_over(self.harness.fabric());
    }

    pub(super) fn subscribe_over(&mut self, fabric: Box<dyn Fabric>) {
        let address = Publisher::address(self.harness);
        self.subscribers.push(Subscriber::new(fabric, address, self.delivery, self.geometry));
    }

    /// Lets everybody do something, `count` times, and values be published between any two things, once in
    /// `quiet` of those moments.
    pub(super) fn run(&mut self, count: u32, quiet: u64) {
        for _ in 0..count {
            self.publish_perhaps(quiet);
            self.publisher.turn();
            for index in 0..self.subscribers.len() {
                self.publish_perhaps(quiet);
                let newest = self.publisher.newest();
                // Not everybody is as quick.
                if !self.random.once_in(2 + index as u64) {
                    self.subscribers[index].turn(newest);
                }
            }
            if self.random.once_in(3) {
                self.publish_perhaps(quiet);
                self.harness.step();
            }
        }
    }

    /// Publishes no more and waits until everybody has the newest value.
    pub(super) fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let newest = self.publisher.newest();
            if self.subscribers.iter().all(|subscriber| subscriber.has_reached(newest)) {
                return self.subscribers.iter().for_each(Subscriber::check);
            }
            self.publisher.turn();
            self.subscribers.iter_mut().for_each(|subscriber| subscriber.turn(newest));
            self.harness.step();
        }
        panic!("not all subscribers caught up: {self:?}");
    }

    /// Publishes one more value with nothing in its way: everybody accepts it.
    pub(super) fn settle_with_one_more(&mut self) {
        self.settle();
        self.publisher.publish();
        self.settle();
        let (_, newest) = self.publisher.newest();
        let mut observers = self.subscribers.iter().map(Subscriber::observer);
        let accepted =
            observers.all(|observer| observer.is_some_and(|observer| observer.accepted() == newest));
        assert!(accepted, "{self:?}");
    }

    fn publish_perhaps(&mut self, quiet: u64) {
        if self.random.once_in(quiet) {
            for _ in 0..=self.random.below(3) {
                self.publisher.publish();
            }
        }
    }
}

/// Shows where everybody stands, not the memory.
impl fmt::Debug for World<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observers: Vec<_> = self.subscribers.iter().map(Subscriber::observer).collect();
        out.debug_struct("World")
            .field("newest", &self.publisher.newest())
            .field("observers", &observers)
            .finish_non_exhaustive()
    }
}

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).expect("not zero")
}

fn values_are_right_and_counted(harness: &dyn Harness, seed: u64, delivery: Delivery, readers: usize) {
    let mut world = World::new(harness, delivery, seed);
    (0..readers).for_each(|_| world.subscribe());
    for quiet in [20, 3, 1, 60] {
        world.run(250, quiet);
        world.settle();
    }
    world.settle_with_one_more();
    for subscriber in &world.subscribers {
        let observer = subscriber.observer().expect("it was answered");
        assert!(observer.received() > 3, "{observer:?}");
    }
}

fn a_late_reader_gets_the_newest_first(harness: &dyn Harness, seed: u64, delivery: Delivery) {
    let mut world = World::new(harness, delivery, seed);
    world.subscribe();
    for _ in 0..4 {
        world.run(50, 2);
        world.settle();
        let (_, newest) = world.publisher.newest();
        world.subscribe();
        world.settle();
        let late = world.subscribers.last().and_then(Subscriber::observer).expect("it was answered");
        assert_eq!((late.first(), late.received()), (Some(newest), 1));
    }
}

fn readers_follow_to_the_next_incarnation(harness: &dyn Harness, seed: u64, delivery: Delivery) {
    let mut world = World::new(harness, delivery, seed);
    (0..3).for_each(|_| world.subscribe());
    for incarnation in 2..5 {
        world.run(100, 3);
        world.settle();
        let World { publisher, geometry, .. } = world;
        // In this order: the name is free only when the last incarnation is gone.
        drop(publisher);
        let publisher = Publisher::new(&*harness.fabric(), geometry, epoch(incarnation));
        world = World { publisher, ..world };
    }
    world.run(100, 3);
    world.settle();
}

pub(crate) fn pulled_values_are_right_and_counted(harness: &dyn Harness, seed: u64) {
    values_are_right_and_counted(harness, seed, Delivery::Pull, 1);
}

pub(crate) fn several_readers_pull_at_their_own_pace(harness: &dyn Harness, seed: u64) {
    values_are_right_and_counted(harness, seed, Delivery::Pull, 4);
}

pub(crate) fn a_late_reader_pulls_the_newest_value_first(harness: &dyn Harness, seed: u64) {
    a_late_reader_gets_the_newest_first(harness, seed, Delivery::Pull);
}

pub(crate) fn readers_pull_from_the_next_incarnation(harness: &dyn Harness, seed: u64) {
    readers_follow_to_the_next_incarnation(harness, seed, Delivery::Pull);
}

pub(crate) fn pushed_values_are_right_and_counted(harness: &dyn Harness, seed: u64) {
    values_are_right_and_counted(harness, seed, Delivery::Push, 1);
}

pub(crate) fn several_readers_are_pushed_to(harness: &dyn Harness, seed: u64) {
    values_are_right_and_counted(harness, seed, Delivery::Push, 4);
}

pub(crate) fn a_late_reader_is_pushed_the_newest_value_first(harness: &dyn Harness, seed: u64) {
    a_late_reader_gets_the_newest_first(harness, seed, Delivery::Push);
}

pub(crate) fn readers_are_pushed_the_values_of_the_next_incarnation(harness: &dyn Harness, seed: u64) {
    readers_follow_to_the_next_incarnation(harness, seed, Delivery::Push);
}

/// A publisher comes around to a slot that is being written to a landing region. What arrives may be torn, but is not
/// accepted.
pub(crate) fn a_publisher_that_does_not_wait_gets_nothing_wrong_accepted(harness: &dyn Harness, seed: u64) {
    let mut world = World::new(harness, Delivery::Push, seed);
    (0..2).for_each(|_| world.subscribe());
    world.run(600, 1);
    world.settle_with_one_more();
}

pub(crate) fn a_reader_of_another_epoch_accepts_nothing(harness: &dyn Harness, seed: u64) {
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut world = World::new(harness, delivery, seed);
        world.subscribe();
        world.subscribers[0].believed_epoch = Some(epoch(99));
        world.run(200, 5);
        // While values keep coming a reader cannot tell one that is wrong from one that is being overwritten.
        world.run(800, u64::MAX);
        let observer = world.subscribers[0].observer().expect("it was answered");
        assert_eq!(observer.received(), 0);
        let foreign = |failure: &ReadFailure| matches!(failure, ReadFailure::ForeignEpoch { found: 1, .. });
        assert!(observer.failures().iter().any(foreign), "{:?}", observer.failures());
    }
}
