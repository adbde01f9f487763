//! Logs whose publisher waits for subscribers, or disconnects them: none of those loses a record unnoticed, and none holds up the others
//! beyond its lease.

use super::*;
use crate::event::Event;
use crate::id::SlowPolicy;
use crate::publisher::{Gating, LogPublisher, PublishError};
use crate::repository::log::LogStart;
use crate::subscriber::LogSubscriber;

/// A ring of some dozen records.
const CAPACITY: usize = 4096;
const LEASE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

impl Recorder {
    fn count(&self, found: impl Fn(&Event) -> bool) -> usize {
        self.0.lock().iter().filter(|event| found(event)).count()
    }
}

/// A subscriber, and the next record due.
struct Follower {
    subscriber: LogSubscriber<Value>,
    policy: SlowPolicy,
    next: u64,
    lost: u64,
}

impl Follower {
    fn open(node: &Node, delivery: Delivery, policy: SlowPolicy, start: LogStart) -> Self {
        let builder = node.log_subscriber::<Value>("shm:publishing/topic").delivery(delivery);
        let builder = builder.slow(policy).start(start);
        let builder = if policy == SlowPolicy::Lap { builder.progress() } else { builder };
        let subscriber = builder.open().expect("a grant");
        let next = subscriber.next_sequence().get();
        Self { subscriber, policy, next, lost: 0 }
    }

    /// Receives one record. False when there was none.
    fn take(&mut self) -> Result<bool, ReceiveError> {
        match self.subscriber.try_receive() {
            Ok(Some(record)) => {
                assert_eq!((record.meta.sequence.get(), record.value), (self.next, value(self.next)));
                self.next += 1;
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(ReceiveError::Lapped { first_lost, count }) => {
                assert_eq!(first_lost.get(), self.next);
                (self.next, self.lost) = (self.next + count, self.lost + count);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Receives up to this record, however long that takes.
    fn catch_up(&mut self, world: &World, newest: u64) {
        for _ in 0..100 * TURNS {
            // A subscriber reports that it has received everything when it finds nothing more.
            if !self.take().expect("no end") && self.next > newest {
                return;
            }
            world.turn();
        }
        panic!("record {newest} never came, the next is {}", self.next);
    }
}

fn open(node: &Node, gating: Gating) -> LogPublisher<Value> {
    let builder = node.log_publisher::<Value>("topic").payload_len_max(200).capacity(CAPACITY);
    builder.gating(gating).open().unwrap()
}

/// Publishes the next record unless a subscriber is in the way. Returns whether it did.
fn try_publish(publisher: &mut LogPublisher<Value>) -> bool {
    let next = publisher.newest().next().get();
    match publisher.try_publish(value(next)) {
        Ok(sequence) => {
            assert_eq!(sequence.get(), next);
            true
        }
        Err(refused) => {
            assert!(refused.is_blocked() && refused.value == value(next), "{refused}");
            false
        }
    }
}

/// Subscribers with every policy come, read, pause and go. The oracle is the numbering: those that gate receive every record.
fn gating_subscribers_lose_nothing(reach: Reach) {
    let (mut blocked, mut lost) = (0, 0);
    each_seed(amount(SEEDS / 4, SEEDS), |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let mut publisher = open(&publishing, Gating::new());
        let nodes = [world.node("one", true), world.node("other", true)];
        let mut followers: Vec<Follower> = Vec::new();
        for _ in 0..300 {
            match random.below(16) {
                0 if followers.len() < 6 => {
                    let delivery = [Delivery::Pull, Delivery::Push][random.index(2)];
                    let policy = [SlowPolicy::Block, SlowPolicy::Block, SlowPolicy::Lap][random.index(3)];
                    let newest = publisher.newest();
                    let starts = [LogStart::Newest, LogStart::Back(3), LogStart::At(newest.next())];
                    let follower =
                        Follower::open(&nodes[random.index(2)], delivery, policy, starts[random.index(3)]);
                    followers.push(follower);
                }
                1 if followers.len() > 3 => drop(followers.swap_remove(random.index(followers.len()))),
                2..=8 => {
                    for _ in 0..random.below(20) {
                        blocked += usize::from(!try_publish(&mut publisher));
                    }
                }
                9..=11 => (0..random.below(10)).for_each(|_| world.turn()),
                _ => {
                    for follower in &mut followers {
                        for _ in 0..random.below(12) {
                            follower.take().expect("no end");
                        }
                    }
                }
            }
        }
        let newest = publisher.newest().get();
        for follower in &mut followers {
            follower.catch_up(&world, newest);
            assert!(follower.lost == 0 || follower.policy == SlowPolicy::Lap, "it gates");
            assert_eq!(follower.subscriber.stats().lapped, follower.lost);
            lost += follower.lost;
        }
        // Nobody is in the way any more.
        (0..TURNS).for_each(|_| world.turn());
        assert!(
            try_publish(&mut publisher)
                || (0..TURNS).any(|_| {
                    world.turn();
                    try_publish(&mut publisher)
                })
        );
    });
    assert!(blocked > 0 && lost > 0, "subscribers were in the way, and those that do not gate lost records");
}

#[test]
fn gating_subscribers_in_place_lose_nothing() {
    gating_subscribers_lose_nothing(Reach::Mapped);
}

#[test]
fn gating_subscribers_over_a_wire_lose_nothing() {
    gating_subscribers_lose_nothing(Reach::Fetched);
}

/// A publish waits while the world goes on, and a record longer than what is free is no exception.
fn publish_waits_for_those_that_read(reach: Reach) {
    each_seed(amount(4, SEEDS / 4), |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let mut publisher = open(&publishing, Gating::new().timeout(Duration::from_secs(600)));
        let node = world.node("one", true);
        let followers = [Delivery::Pull, Delivery::Push, Delivery::Pull]
            .map(|delivery| Follower::open(&node, delivery, SlowPolicy::Block, LogStart::Newest));
        let followers = Arc::new(Mutex::new(followers));
        let (reading, mut pace) = (Arc::clone(&followers), Random::new(random.next()));
        let open = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&open);
        world.spawn(move || {
            for follower in reading.lock().iter_mut() {
                (0..pace.below(4)).for_each(|_| _ = follower.take().expect("no end"));
            }
            goes_on.load(Ordering::Relaxed)
        });
        for _ in 0..40 {
            let next = publisher.newest().next().get();
            let batch: Vec<Value> = (next..next + random.below(20)).map(value).collect();
            publisher.publish_batch(&batch).unwrap();
        }
        open.store(false, Ordering::Relaxed);
        world.turn();
        let newest = publisher.newest().get();
        for follower in followers.lock().iter_mut() {
            follower.catch_up(&world, newest);
            assert_eq!(follower.lost, 0);
        }
    });
}

#[test]
fn publish_waits_for_those_that_read_in_place() {
    publish_waits_for_those_that_read(Reach::Mapped);
}

#[test]
fn publish_waits_for_those_that_read_over_a_wire() {
    publish_waits_for_those_that_read(Reach::Fetched);
}

/// The thread of its node stands still, as when its process is stopped: it is let go after the lease, and not before.
fn subscriber_whose_node_hangs_is_let_go(reach: Reach, delivery: Delivery) {
    each_seed(amount(2, SEEDS / 4), |seed| {
        let (world, events) = (World::new(seed, reach), Arc::new(Recorder::default()));
        let publishing = world.node_with("publishing", true, Arc::clone(&events) as _);
        let gating = Gating::new().lease(LEASE).timeout(Duration::from_secs(60)).subscribers_max(2);
        let mut publisher = open(&publishing, gating);
        let told = Arc::new(Recorder::default());
        let hanging = world.node_with("hanging", true, Arc::clone(&told) as _);
        let living = world.node("living", true);
        let mut hung = Follower::open(&hanging, delivery, SlowPolicy::Block, LogStart::Newest);
        let mut other = Follower::open(&living, delivery, SlowPolicy::Block, LogStart::Newest);
        world.run_for(3_000_000_000);
        while try_publish(&mut publisher) {}
        let frozen = world.freeze("hanging");
        let newest = publisher.newest().get();
        other.catch_up(&world, newest);
        world.run_for(saturate(LEASE) * 3 / 4);
        assert!(hung.subscriber.is_gating() && !try_publish(&mut publisher), "its lease is not over");
        let next = newest + 1;
        publisher.publish(&value(next)).expect("it is let go before the timeout");
        let let_go = |event: &Event| matches!(event, Event::SubscriberLetGo { peer, .. } if peer.as_str() == "hanging");
        world.run_for(1_000_000_000);
        assert_eq!(events.count(let_go), 1);
        // Its place is free.
        drop(Follower::open(&living, delivery, SlowPolicy::Block, LogStart::Newest));
        (0..100).for_each(|_| {
            let next = publisher.newest().next().get();
            other.catch_up(&world, next - 1);
            publisher.publish(&value(next)).expect("the other one reads");
        });
        world.thaw(frozen);
        world.run_for(1_000_000_000);
        assert!(!hung.subscriber.is_gating() && other.subscriber.is_gating());
        assert_eq!(told.count(|event| matches!(event, Event::LetGo { .. })), 1);
        let newest = publisher.newest().get();
        hung.catch_up(&world, newest);
        assert!(hung.lost > 0 && other.lost == 0);
        assert_eq!(events.count(|event| matches!(event, Event::SubscriberLetGo { .. })), 1);
    });
}

#[test]
fn subscriber_in_place_whose_node_hangs_is_let_go() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        subscriber_whose_node_hangs_is_let_go(Reach::Mapped, delivery);
    }
}

#[test]
fn subscriber_over_a_wire_whose_node_hangs_is_let_go() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        subscriber_whose_node_hangs_is_let_go(Reach::Fetched, delivery);
    }
}

/// A subscriber whose process is killed holds nobody up once that is noticed.
fn killed_subscriber_holds_nobody_up(reach: Reach) {
    each_seed(amount(4, SEEDS / 4), |seed| {
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let mut publisher = open(&publishing, Gating::new());
        let dying = world.node("dying", true);
        for delivery in [Delivery::Pull, Delivery::Push] {
            std::mem::forget(Follower::open(&dying, delivery, SlowPolicy::Block, LogStart::Newest));
        }
        while try_publish(&mut publisher) {}
        world.kill("dying");
        assert!((0..TURNS).any(|_| {
            world.turn();
            try_publish(&mut publisher)
        }));
        assert!((0..200).all(|_| try_publish(&mut publisher)));
        std::mem::forget(dying);
    });
}

#[test]
fn killed_subscriber_in_place_holds_nobody_up() {
    killed_subscriber_holds_nobody_up(Reach::Mapped);
}

#[test]
fn killed_subscriber_over_a_wire_holds_nobody_up() {
    killed_subscriber_holds_nobody_up(Reach::Fetched);
}

/// It receives records without a gap up to some point, and then that it was overtaken; its session goes on.
fn overtaken_subscriber_is_disconnected(reach: Reach, delivery: Delivery) {
    each_seed(amount(SEEDS / 6, SEEDS), |seed| {
        let mut random = Random::new(seed);
        let (world, events) = (World::new(seed, reach), Arc::new(Recorder::default()));
        let publishing = world.node_with("publishing", true, Arc::clone(&events) as _);
        let mut publisher = open(&publishing, Gating::new());
        let node = world.node("one", true);
        let mut follower = Follower::open(&node, delivery, SlowPolicy::Disconnect, LogStart::Newest);
        let mut other = Follower::open(&node, delivery, SlowPolicy::Lap, LogStart::Newest);
        let mut end = None;
        for step in 0..100 * TURNS {
            if step < 400 {
                assert!((0..random.below(6)).all(|_| try_publish(&mut publisher)), "nobody waits");
            }
            (0..random.below(3)).for_each(|_| world.turn());
            end = (0..random.below(4)).find_map(|_| follower.take().err());
            if end.is_some() || (step > 400 && follower.next > publisher.newest().get()) {
                break;
            }
        }
        assert_eq!(follower.lost, 0);
        if let Some(error) = end {
            let last = follower.next - 1;
            for error in [error, follower.take().unwrap_err()] {
                assert!(
                    matches!(error, ReceiveError::Overtaken { last: told } if told.get() == last),
                    "{error}"
                );
            }
            let overtaken = |event: &Event| matches!(event, Event::SubscriberOvertaken { .. });
            (0..TURNS).for_each(|_| world.turn());
            assert!(events.count(overtaken) <= 1);
            drop(follower);
            (0..TURNS).for_each(|_| world.turn());
            assert_eq!(publisher.pull_subscribers() + publisher.push_subscribers(), 1);
        }
        other.catch_up(&world, publisher.newest().get());
    });
}

#[test]
fn overtaken_subscriber_in_place_is_disconnected() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        overtaken_subscriber_is_disconnected(Reach::Mapped, delivery);
    }
}

#[test]
fn overtaken_subscriber_over_a_wire_is_disconnected() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        overtaken_subscriber_is_disconnected(Reach::Fetched, delivery);
    }
}

/// The publisher's memory of a subscriber ends with it, over a wire too.
#[test]
fn publish_error_names_the_subscriber_over_a_wire() {
    let world = World::new(1, Reach::Fetched);
    let publishing = world.node("publishing", true);
    let mut publisher = open(&publishing, Gating::new().timeout(Duration::from_millis(3)));
    let node = world.node("one", true);
    let slow = Follower::open(&node, Delivery::Pull, SlowPolicy::Block, LogStart::Newest);
    while try_publish(&mut publisher) {}
    let next = publisher.newest().next().get();
    let PublishError::Blocked { slowest } = publisher.publish(&value(next)).unwrap_err() else {
        panic!("it is blocked")
    };
    assert_eq!((slowest.node(), slowest.lag()), (node.name(), next - 1));
    drop(slow);
    assert!((0..TURNS).any(|_| {
        world.turn();
        try_publish(&mut publisher)
    }));
}
