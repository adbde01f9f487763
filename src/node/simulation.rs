//! Whole nodes on one thread, over the fabric in memory: virtual time, and every delay, order and choice from a seed.
//! `FABRICAST_SEED=n cargo test` repeats one.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Node;
use super::admission::Guard;
use super::builder::assemble;
use super::driver::Driver;
use super::event_log::TracingSink;
use crate::clock::{Clock, saturate};
use crate::event::EventSink;
use crate::fabric::Fabric;
use crate::id::{Delivery, NodeName, Sequence};
use crate::keyring::Keyring;
use crate::limits;
use crate::publisher::StatePublisher;
use crate::subscriber::{ReceiveError, StateSubscriber, SubscriberError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::testkit::fabric::{Network, Reach};
use crate::testkit::random::{Random, amount, each_seed};

const SEEDS: u64 = 60;
/// Turns of the world after which everything begun has ended.
const TURNS: usize = 3000;
/// Turns after which every node has noticed an event, unless one is stopped.
const SETTLED_WITHIN: usize = 500;

/// How long a node takes to stop if its peers cooperate: much less than it would wait for them, ns.
const STOPPED_WITHIN_NS: u64 = 50_000_000;

/// The longest advance of the world's clock by a pause, ns: as long as a message takes, or, if nothing is in flight, as long as
/// any pause.
const PAUSE_NS_MAX: [u64; 2] = [10_000, 1_000_000];

/// All nodes of a simulation.
#[derive(Debug)]
struct World {
    network: Arc<Network>,
    drivers: Mutex<Vec<NodeThread>>,
    threads: Mutex<Vec<Arc<Mutex<Thread>>>>,
    /// Nothing was in flight, ready or due in the last turn.
    is_quiet: AtomicBool,
    /// The keys of nodes that are opened from now on.
    keyring: Mutex<Option<Keyring>>,
}

/// The thread of a node.
#[derive(Debug)]
struct NodeThread {
    name: NodeName,
    driver: Driver,
    /// When it wakes if nothing happens before, ns.
    sleeps_until_ns: u64,
}

/// Another thread of a process; called in each turn until it returns that it is finished, and then dropped.
struct Thread(Option<Box<dyn FnMut() -> bool + Send>>);

/// The world's clock as its nodes see it: a pause lets the world proceed.
#[derive(Debug)]
struct WorldClock(Weak<World>);

type Value = (u64, String);

impl World {
    fn new(seed: u64, reach: Reach) -> Arc<Self> {
        Arc::new(Self {
            network: Network::new(seed, reach),
            drivers: Mutex::default(),
            threads: Mutex::default(),
            is_quiet: AtomicBool::new(false),
            keyring: Mutex::default(),
        })
    }

    fn node(self: &Arc<Self>, name: &str, listening: bool) -> Node {
        self.node_with(name, listening, Arc::new(TracingSink::default()))
    }

    fn node_with(self: &Arc<Self>, name: &str, listening: bool, events: Arc<dyn EventSink>) -> Node {
        let name: NodeName = name.parse().unwrap();
        let fabric = Arc::new(self.network.fabric(&name));
        self.node_over((name, listening), fabric, events)
    }

    fn node_over(
        self: &Arc<Self>,
        (name, listening): (NodeName, bool),
        fabric: Arc<dyn Fabric>,
        events: Arc<dyn EventSink>,
    ) -> Node {
        let clock = Arc::new(WorldClock(Arc::downgrade(self)));
        let guard = Guard { keyring: self.keyring.lock().clone(), ..Guard::default() };
        let named = listening.then(|| name.clone());
        let (core, driver) = assemble((named, Some(guard)), fabric, clock, events).unwrap();
        self.drivers.lock().push(NodeThread { name, driver, sleeps_until_ns: 0 });
        let seeking = Arc::downgrade(&core.seeking);
        self.spawn(move || seeking.upgrade().map(|seeking| seeking.turn()).is_some());
        Node::new(core, None)
    }

    /// Every node with work gets a turn, and every thread. Time advances to the next arrival. If nothing happens, it
    /// advances to the next wake-up of a node, by at most a millisecond.
    fn turn(&self) {
        let (network, clock) = (&self.network, self.network.clock());
        let moved = network.step();
        // A waiting driver runs the world from within its own turn.
        let Some(mut drivers) = self.drivers.try_lock() else { return };
        let is_quiet = !moved && !drivers.iter_mut().any(|thread| thread.poll_awake(network));
        self.is_quiet.store(is_quiet, Ordering::Relaxed);
        let wakes_ns = drivers.iter().map(|thread| thread.sleeps_until_ns).min();
        if let Some(wakes_ns) = wakes_ns.filter(|_| is_quiet) {
            clock.advance_to(wakes_ns.min(clock.monotonic_ns() + PAUSE_NS_MAX[1]));
        }
        drivers.iter_mut().for_each(|thread| thread.turn(network));
        drop(drivers);
        let threads = self.threads.lock().clone();
        for thread in threads {
            // So does a waiting thread: the others proceed.
            if let Some(mut thread) = thread.try_lock() {
                thread.0 = thread.0.take().and_then(|mut run| run().then_some(run));
            }
        }
        self.threads.lock().retain(|thread| thread.try_lock().is_none_or(|thread| thread.0.is_some()));
    }

    /// Starts a thread.
    fn spawn(&self, thread: impl FnMut() -> bool + Send + 'static) {
        self.threads.lock().push(Arc::new(Mutex::new(Thread(Some(Box::new(thread))))));
    }

    /// Ends the node's thread, as dropping the last handle of the node does.
    fn stop(&self, name: &str) {
        let name: NodeName = name.parse().unwrap();
        let stopping: Vec<_> = self.drivers.lock().extract_if(.., |thread| thread.name == name).collect();
        stopping.into_iter().for_each(|mut thread| thread.driver.shut_down());
    }

    fn kill(&self, name: &str) {
        let name: NodeName = name.parse().unwrap();
        self.network.kill(&name);
        self.drivers.lock().retain(|thread| thread.name != name);
    }
}

impl NodeThread {
    /// Whether something is ready, woken or due.
    fn poll_awake(&mut self, network: &Network) -> bool {
        network.set_readiness();
        self.driver.wait_for(Duration::ZERO);
        self.driver.wait_time().is_zero() || self.sleeps_until_ns <= network.clock().monotonic_ns()
    }

    /// One turn, if it is awake.
    fn turn(&mut self, network: &Network) {
        if self.poll_awake(network) {
            self.driver.turn();
            let now_ns = network.clock().monotonic_ns();
            self.sleeps_until_ns = now_ns.saturating_add(saturate(self.driver.wait_time()));
        }
    }
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Thread")
    }
}

impl Clock for WorldClock {
    fn monotonic_ns(&self) -> u64 {
        self.0.upgrade().map_or(0, |world| world.network.clock().monotonic_ns())
    }

    fn realtime_ns(&self) -> u64 {
        self.0.upgrade().map_or(0, |world| world.network.clock().realtime_ns())
    }

    fn suspended_ns(&self) -> u64 {
        self.0.upgrade().map_or(0, |world| world.network.clock().suspended_ns())
    }

    fn pause(&self, duration: Duration) {
        if let Some(world) = self.0.upgrade() {
            let [busy_ns, quiet_ns] = PAUSE_NS_MAX;
            let max_ns = if world.is_quiet.load(Ordering::Relaxed) { quiet_ns } else { busy_ns };
            world.network.clock().advance(saturate(duration).min(max_ns));
            world.turn();
        }
    }

    fn pause_until(&self, readable: BorrowedFd<'_>, duration: Duration) {
        let deadline_ns = self.monotonic_ns().saturating_add(saturate(duration));
        while let Some(world) = self.0.upgrade() {
            let left_ns = deadline_ns.saturating_sub(self.monotonic_ns());
            world.network.set_readiness();
            if left_ns == 0 || is_readable(readable) {
                return;
            }
            self.pause(Duration::from_nanos(left_ns));
        }
    }
}

fn is_readable(handle: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
}

fn value(number: u64) -> Value {
    (number, "x".repeat(usize::try_from(number * 37 % 90).unwrap()))
}

/// A subscriber, and what it has received.
struct Observed {
    subscriber: StateSubscriber<Value>,
    last: u64,
    conflated: u64,
    received: u64,
}

impl Observed {
    fn new(subscriber: StateSubscriber<Value>) -> Self {
        Self { subscriber, last: 0, conflated: 0, received: 0 }
    }

    /// Receives once, and compares with what was published.
    fn receive(&mut self) -> Result<bool, ReceiveError> {
        let sample = match self.subscriber.try_receive() {
            Ok(Some(sample)) => sample,
            Ok(None) | Err(ReceiveError::Contended { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let sequence = sample.meta.sequence.get();
        assert!(sequence > self.last, "{sequence} after {}", self.last);
        assert_eq!(sample.value, value(sequence));
        let skipped = if self.last == 0 { 0 } else { sequence - self.last - 1 };
        assert_eq!(sample.conflated, skipped);
        self.last = sequence;
        self.conflated += skipped;
        self.received += 1;
        Ok(true)
    }

    /// Receives until this value, however long that takes.
    fn catch_up(&mut self, world: &World, newest: u64) {
        for _ in 0..TURNS {
            if self.last == newest {
                let stats = self.subscriber.stats();
                assert_eq!((stats.received, stats.conflated), (self.received, self.conflated));
                assert_eq!(stats.rejected, 0);
                return;
            }
            self.receive().expect("a value, sooner or later");
            world.turn();
        }
        panic!("value {newest} never came, the last one was {}", self.last);
    }
}

fn subscribe(node: &Node, delivery: Delivery) -> Result<Observed, SubscriberError> {
    node.state_subscriber::<Value>("shm:publishing/topic").delivery(delivery).open().map(Observed::new)
}

fn publish(publisher: &mut StatePublisher<Value>, count: u64) {
    for _ in 0..count {
        let number = publisher.newest().get() + 1;
        assert_eq!(publisher.publish(&value(number)).unwrap().get(), number);
    }
}

fn publisher(node: &Node) -> StatePublisher<Value> {
    node.state_publisher::<Value>("topic").slots(4).payload_len_max(128).open().unwrap()
}

/// Publishers publish, and subscribers come, receive and go in random order.
fn values_arrive(reach: Reach, delivery: Delivery) {
    each_seed(amount(SEEDS / 3, 3 * SEEDS), |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let mut publisher = publisher(&publishing);
        let mut observed: Vec<Observed> = Vec::new();
        let nodes = [world.node("one", false), world.node("other", false)];
        for _ in 0..400 {
            match random.below(12) {
                0 if observed.len() < 5 => {
                    observed.push(subscribe(&nodes[random.index(2)], delivery).expect("a grant"));
                }
                1 if observed.len() > 2 => drop(observed.swap_remove(random.index(observed.len()))),
                2..=4 => publish(&mut publisher, 1 + random.below(7)),
                5 => (0..20).for_each(|_| world.turn()),
                6..=7 => world.turn(),
                _ => {
                    for one in &mut observed {
                        one.receive().expect("a value or none");
                    }
                }
            }
        }
        publish(&mut publisher, 1);
        for one in &mut observed {
            one.catch_up(&world, publisher.newest().get());
        }
        let expected = observed.len() as u64;
        drop(nodes);
        let count = || publisher.pull_subscribers() + publisher.push_subscribers();
        (0..TURNS).for_each(|_| world.turn());
        assert_eq!(count(), expected);
        drop(observed);
        (0..TURNS).for_each(|_| world.turn());
        assert_eq!(count(), 0);
    });
}

#[test]
fn pulled_values_arrive_where_memory_is_mapped() {
    values_arrive(Reach::Mapped, Delivery::Pull);
}

#[test]
fn pulled_values_arrive_where_memory_is_fetched() {
    values_arrive(Reach::Fetched, Delivery::Pull);
}

#[test]
fn pushed_values_arrive_where_memory_is_mapped() {
    values_arrive(Reach::Mapped, Delivery::Push);
}

#[test]
fn pushed_values_arrive_where_memory_is_fetched() {
    values_arrive(Reach::Fetched, Delivery::Push);
}

/// Every subscriber gets the end after the last value, and none waits for ever.
#[test]
fn end_follows_the_last_value() {
    for (reach, delivery) in [
        (Reach::Mapped, Delivery::Pull),
        (Reach::Mapped, Delivery::Push),
        (Reach::Fetched, Delivery::Pull),
        (Reach::Fetched, Delivery::Push),
    ] {
        each_seed(SEEDS / 4, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let mut publisher = publisher(&publishing);
            let mut observed = subscribe(&subscribing, delivery).expect("a grant");
            publish(&mut publisher, 3);
            observed.catch_up(&world, 3);
            drop(publisher);
            let end = (0..TURNS).find_map(|_| {
                world.turn();
                observed.receive().err()
            });
            assert!(
                matches!(end, Some(ReceiveError::Ended { published }) if published.get() == 3),
                "{end:?}"
            );
            (0..SETTLED_WITHIN).for_each(|_| world.turn());
            assert_eq!(subscribing.links().all().len(), 1);
            drop(observed);
            (0..SETTLED_WITHIN).for_each(|_| world.turn());
            assert!(subscribing.links().all().is_empty(), "an unused session goes on");
        });
    }
}

/// When a node stops, its last values may be in flight: they arrive before the end of the topic.
#[test]
fn node_that_stops_at_once_still_delivers_the_last_value_and_the_end() {
    for (reach, delivery) in [
        (Reach::Mapped, Delivery::Pull),
        (Reach::Mapped, Delivery::Push),
        (Reach::Fetched, Delivery::Pull),
        (Reach::Fetched, Delivery::Push),
    ] {
        each_seed(SEEDS / 4, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let mut publisher = publisher(&publishing);
            let mut observed = subscribe(&subscribing, delivery).expect("a grant");
            (0..random.below(10)).for_each(|_| world.turn());
            publish(&mut publisher, 1 + random.below(9));
            let newest = publisher.newest();
            drop((publisher, publishing));
            let began_ns = world.network.clock().monotonic_ns();
            world.stop("publishing");
            let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
            assert!(elapsed_ns < STOPPED_WITHIN_NS, "its peers cooperate: {elapsed_ns}");
            let mut cut_off = 0;
            let end = (0..TURNS).find_map(|_| {
                world.turn();
                match observed.receive() {
                    Err(ReceiveError::CutOff { first_lost, count }) => {
                        assert_eq!((first_lost.get(), cut_off), (observed.last + 1, 0));
                        cut_off = count;
                        None
                    }
                    received => received.err(),
                }
            });
            assert!(matches!(end, Some(ReceiveError::Ended { published }) if published == newest), "{end:?}");
            assert_eq!(observed.last + cut_off, newest.get(), "each one is received, replaced or reported");
            // What was not read before the node was gone is lost with it.
            let is_there = (reach, delivery) != (Reach::Fetched, Delivery::Pull);
            assert!(!is_there || cut_off == 0, "{cut_off} of {newest}");
        });
    }
}

/// The death of a process is noticed at any moment; the next one of its name is another incarnation.
#[test]
fn killed_publisher_is_noticed_and_the_next_one_is_found() {
    for (reach, delivery) in [
        (Reach::Mapped, Delivery::Pull),
        (Reach::Mapped, Delivery::Push),
        (Reach::Fetched, Delivery::Pull),
        (Reach::Fetched, Delivery::Push),
    ] {
        each_seed(SEEDS / 4, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let subscribing = world.node("subscribing", false);
            let mut epochs = Vec::new();
            for _ in 0..3 {
                let publishing = world.node("publishing", true);
                let mut publisher = publisher(&publishing);
                publish(&mut publisher, random.below(5));
                let mut observed = subscribe(&subscribing, delivery).expect("a grant");
                epochs.push(observed.subscriber.epoch());
                publish(&mut publisher, 1 + random.below(9));
                (0..random.below(30)).for_each(|_| world.turn());
                world.kill("publishing");
                // Whatever its memory still yields is right, followed by an error that repeats.
                let gone = (0..TURNS).find_map(|_| {
                    world.turn();
                    observed.receive().err()
                });
                let gone = gone.expect("an error, sooner or later");
                assert!(matches!(gone, ReceiveError::Gone { .. }), "{gone}");
                let again = observed.receive().expect_err("from then on always");
                assert_eq!(again.to_string(), gone.to_string());
                drop(observed);
                (0..SETTLED_WITHIN).for_each(|_| world.turn());
                assert!(subscribing.links().all().is_empty(), "a session that is over is kept");
            }
            epochs.dedup();
            assert_eq!(epochs.len(), 3);
        });
    }
}

/// A subscriber that dies costs the publisher only memory, and only until its death is noticed.
#[test]
fn killed_subscribers_leave_nothing_behind() {
    for (reach, delivery) in [(Reach::Mapped, Delivery::Push), (Reach::Fetched, Delivery::Push)] {
        each_seed(SEEDS / 4, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let mut publisher = publisher(&publishing);
            let dying = world.node("dying", false);
            let living = world.node("living", false);
            let doomed = subscribe(&dying, delivery).expect("a grant");
            let mut observed = subscribe(&living, delivery).expect("a grant");
            publish(&mut publisher, 5);
            world.kill("dying");
            for _ in 0..100 {
                publish(&mut publisher, 1);
                world.turn();
            }
            observed.catch_up(&world, publisher.newest().get());
            (0..TURNS).for_each(|_| world.turn());
            assert_eq!((publisher.push_subscribers(), publisher.pull_subscribers()), (1, 0));
            drop(doomed);
        });
    }
}

/// A subscription abandoned at any moment costs the others in its session nothing, and is given up when its answer arrives.
#[test]
fn subscription_abandoned_before_its_answer_disturbs_no_others() {
    for (reach, delivery) in [
        (Reach::Mapped, Delivery::Pull),
        (Reach::Mapped, Delivery::Push),
        (Reach::Fetched, Delivery::Pull),
        (Reach::Fetched, Delivery::Push),
    ] {
        each_seed(amount(SEEDS / 4, SEEDS), |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let mut publisher = publisher(&publishing);
            let subscribing = world.node("subscribing", false);
            let builder = || {
                let builder = subscribing.state_subscriber::<Value>("shm:publishing/topic");
                builder.delivery(delivery).timeout(Duration::from_millis(3)).open().map(Observed::new)
            };
            let mut observed = builder().expect("a grant");
            publish(&mut publisher, 3);
            observed.catch_up(&world, 3);
            let (mut turns, network) = (random.below(12), Arc::clone(&world.network));
            world.spawn(move || {
                if turns == 0 {
                    network.pause(&"publishing".parse().unwrap());
                }
                turns = turns.wrapping_sub(1);
                turns != u64::MAX
            });
            let second = builder();
            world.network.resume(&"publishing".parse().unwrap());
            for _ in 0..20 {
                publish(&mut publisher, 1);
                (0..10).for_each(|_| world.turn());
            }
            observed.catch_up(&world, 23);
            let left = u64::from(second.is_ok()) + 1;
            (0..TURNS).for_each(|_| world.turn());
            assert_eq!(publisher.push_subscribers() + publisher.pull_subscribers(), left);
        });
    }
}

/// A stopped publisher is still readable where it need not answer.
fn a_stopped_publisher_is_read_and_attaching_to_it_ends(reach: Reach) {
    each_seed(SEEDS / 4, |seed| {
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let mut publisher = publisher(&publishing);
        let subscribing = world.node("subscribing", false);
        let mut observed = subscribe(&subscribing, Delivery::Pull).expect("a grant");
        let leaving = subscribe(&subscribing, Delivery::Pull).expect("a grant");
        publish(&mut publisher, 7);
        let name = "publishing".parse().unwrap();
        world.network.pause(&name);
        drop(leaving);
        observed.catch_up(&world, 7);
        // An unanswered request does not disturb granted subscriptions.
        let builder = subscribing.state_subscriber::<Value>("shm:publishing/topic");
        builder.timeout(Duration::from_millis(50)).open().unwrap_err();
        let address = publishing.address().unwrap();
        subscribing.directory_timeout(&address, Duration::from_millis(50)).unwrap_err();
        world.network.clock().advance(2 * limits::ANSWER_DEADLINE_NS);
        (0..100).for_each(|_| world.turn());
        assert!(!observed.receive().expect("neither a value nor the end"));

        let stranger = world.node("stranger", false);
        let builder = stranger.state_subscriber::<Value>("shm:publishing/topic");
        let error = builder.timeout(Duration::from_millis(50)).open().unwrap_err();
        assert!(matches!(error, SubscriberError::Session { .. }), "{error}");
        world.network.resume(&name);
        publish(&mut publisher, 1);
        observed.catch_up(&world, 8);
    });
}

#[test]
fn stopped_publisher_is_read_in_place_and_attaching_ends_at_its_deadline() {
    a_stopped_publisher_is_read_and_attaching_to_it_ends(Reach::Mapped);
}

#[test]
fn stopped_publisher_is_read_remotely_and_attaching_ends_at_its_deadline() {
    a_stopped_publisher_is_read_and_attaching_to_it_ends(Reach::Fetched);
}

mod arrivals;
mod clock_steps;
mod connections;
mod deadlines;
mod dialling;
mod ends;
mod feeds;
mod finishing;
mod forged;
mod hung;
mod idle_sessions;
mod late_joins;
mod lifespans;
mod lines;
mod logs;
mod misread_lines;
mod notices;
mod restarted_feeds;
mod restarts;
mod slow_feeds;
mod slow_logs;
pub(super) mod strange_feeds;
mod tables;
mod two_nodes;
