//! Topics of any kind, pulled and pushed over the seam.

use std::fmt;

use super::Harness;
use super::kind::ConformingKind;
use super::publisher::{Publisher, TopicSetup};
use super::subscriber::Subscriber;
use crate::fabric::Fabric;
use crate::id::{Delivery, Epoch};
use crate::repository::Reader;
use crate::testkit::random::Random;

/// Most rounds that subscribers may take to catch up.
const ROUNDS_MAX: u32 = 20_000;

/// A publisher and its subscribers.
pub(super) struct World<'a, K: ConformingKind> {
    pub(super) subscribers: Vec<Subscriber<K>>,
    pub(super) publisher: Publisher<K>,
    harness: &'a dyn Harness,
    delivery: Delivery,
    shape: TopicSetup<K>,
    random: Random,
}

impl<'a, K: ConformingKind> World<'a, K> {
    pub(super) fn new(harness: &'a dyn Harness, delivery: Delivery, seed: u64) -> Self {
        Self::over(&*harness.fabric(), harness, delivery, seed)
    }

    /// A world whose publisher uses this fabric.
    pub(super) fn over(fabric: &dyn Fabric, harness: &'a dyn Harness, delivery: Delivery, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let options = K::publishing(&mut random);
        let shape = TopicSetup { options, payload_len_max: 1 + random.index(300) };
        let publisher = Publisher::new(fabric, shape, epoch(1));
        Self { subscribers: Vec::new(), publisher, harness, delivery, shape, random }
    }

    /// The longest payload that is published, bytes.
    pub(super) fn payload_len_max(&self) -> usize {
        self.shape.payload_len_max
    }

    pub(super) fn subscribe(&mut self) {
        self.subscribe_over(self.harness.fabric());
    }

    pub(super) fn subscribe_over(&mut self, fabric: Box<dyn Fabric>) {
        let asked = K::subscribing(&mut self.random);
        self.add(fabric, asked);
    }

    /// Adds a subscriber with these options.
    pub(super) fn subscribe_to(&mut self, asked: <K::Reader as Reader>::Options) {
        self.add(self.harness.fabric(), asked);
    }

    fn add(&mut self, fabric: Box<dyn Fabric>, asked: <K::Reader as Reader>::Options) {
        let (address, geometry) = (Publisher::<K>::address(self.harness), self.publisher.geometry());
        self.subscribers.push(Subscriber::new((fabric, address), geometry, self.delivery, asked));
    }

    /// Runs all turns `count` times, and publishes between any two steps, once in `quiet` of those moments.
    pub(super) fn run(&mut self, count: u32, quiet: u64) {
        for _ in 0..count {
            self.publish_perhaps(quiet);
            self.publisher.turn();
            for index in 0..self.subscribers.len() {
                self.publish_perhaps(quiet);
                let newest = self.publisher.newest();
                // Subscribers differ in speed.
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

    /// Publishes no more, and waits until every subscriber has the newest value.
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

    /// Publishes one more value without faults: every subscriber accepts it.
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

/// Shows the positions, not the memory.
impl<K: ConformingKind> fmt::Debug for World<'_, K> {
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

fn follow<K: ConformingKind>(harness: &dyn Harness, delivery: Delivery, seed: u64, readers: usize) {
    let mut world = World::<K>::new(harness, delivery, seed);
    (0..readers).for_each(|_| world.subscribe());
    for quiet in [20, 3, 1, 60] {
        world.run(250, quiet);
        world.settle();
    }
    world.settle_with_one_more();
    for subscriber in &world.subscribers {
        let observer = subscriber.observer().expect("it was answered");
        assert!(observer.counts().received > 3, "{observer:?}");
    }
}

pub(crate) fn values_are_right_and_counted<K: ConformingKind>(
    harness: &dyn Harness,
    delivery: Delivery,
    seed: u64,
) {
    follow::<K>(harness, delivery, seed, 1);
}

pub(crate) fn several_readers_keep_their_own_pace<K: ConformingKind>(
    harness: &dyn Harness,
    delivery: Delivery,
    seed: u64,
) {
    follow::<K>(harness, delivery, seed, 4);
}

pub(crate) fn readers_follow_to_the_next_incarnation<K: ConformingKind>(
    harness: &dyn Harness,
    delivery: Delivery,
    seed: u64,
) {
    let mut world = World::<K>::new(harness, delivery, seed);
    (0..3).for_each(|_| world.subscribe());
    for incarnation in 2..5 {
        world.run(100, 3);
        world.settle();
        let World { publisher, shape, .. } = world;
        // In this order: the name is free only when the last incarnation is gone.
        drop(publisher);
        let publisher = Publisher::new(&*harness.fabric(), shape, epoch(incarnation));
        world = World { publisher, ..world };
    }
    world.run(100, 3);
    world.settle();
}

/// A publisher overwrites memory that is being read, or copied to a landing region. Torn bytes may arrive, but are not accepted.
pub(crate) fn a_publisher_that_does_not_wait_gets_nothing_wrong_accepted<K: ConformingKind>(
    harness: &dyn Harness,
    delivery: Delivery,
    seed: u64,
) {
    let mut world = World::<K>::new(harness, delivery, seed);
    (0..2).for_each(|_| world.subscribe());
    world.run(600, 1);
    world.settle_with_one_more();
}

pub(crate) fn a_reader_of_another_epoch_accepts_nothing<K: ConformingKind>(
    harness: &dyn Harness,
    delivery: Delivery,
    seed: u64,
) {
    let mut world = World::<K>::new(harness, delivery, seed);
    world.subscribe();
    world.subscribers[0].believed_epoch = Some(epoch(99));
    world.run(200, 5);
    // While values keep coming, a reader cannot distinguish a wrong value from one being overwritten.
    world.run(800, u64::MAX);
    let (_, newest) = world.publisher.newest();
    let given_up = world.subscribers[0].give_up(newest);
    let observer = world.subscribers[0].observer().expect("it was answered");
    assert_eq!(observer.counts().received, 0);
    let failures = observer.failures();
    assert!(K::has_reported_all(failures, given_up), "{failures:?}, then {given_up:?}");
}
