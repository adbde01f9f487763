//! Topics that end while subscribers attach, and what remains of them.

use super::*;
use crate::chain::ErrorChain;
use crate::control::RefuseReason;
use crate::inspect::{Liveness, TopicReport};
use crate::node::DialError;
use crate::node::shared::Shared;
use crate::sync::atomic::AtomicU64;

/// Every medium with every delivery.
const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];
/// Turns within which a topic ends: about as many as attaching takes.
const STRIKES_WITHIN: u64 = 12;
/// Turns for which a subscriber is stopped.
const SLOW_TURNS: u64 = 20;

#[test]
fn topic_that_ends_during_attaching_is_refused_as_ended() {
    let mut outcomes = [0, 0];
    for (reach, delivery) in WAYS {
        each_seed(SEEDS, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let (mut publisher, mut turns) = (Some(publisher(&publishing)), random.below(STRIKES_WITHIN));
            let (network, name) = (Arc::clone(&world.network), "subscribing".parse().unwrap());
            // The slow subscriber handles all messages of its publisher's node in one turn.
            world.spawn(move || {
                if turns == 0 && publisher.take().is_some() {
                    network.pause(&name);
                    turns = SLOW_TURNS;
                    return true;
                }
                turns = turns.saturating_sub(1);
                if turns == 0 && publisher.is_none() {
                    network.resume(&name);
                    return false;
                }
                true
            });
            match subscribe(&subscribing, delivery) {
                Ok(mut observed) => {
                    outcomes[0] += 1;
                    let end = (0..TURNS).find_map(|_| {
                        world.turn();
                        observed.receive().err()
                    });
                    assert!(matches!(end, Some(ReceiveError::Ended { .. })), "{end:?}");
                }
                Err(SubscriberError::Refused { reason, .. }) => {
                    let is_end = matches!(reason, RefuseReason::TopicEnded | RefuseReason::NoSuchTopic);
                    assert!(is_end, "{reason}");
                    outcomes[1] += 1;
                }
                Err(error) => panic!("{error:?}, {reach:?}, {delivery:?}"),
            }
        });
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// The memory of a topic.
fn repository(node: &Node, topic: &str) -> Weak<crate::memory::Region> {
    let topic = node.core().topic(&topic.parse().unwrap()).unwrap();
    Arc::downgrade(topic.registration.region())
}

/// Its node detaches for it, so that the publisher withdraws the memory without breaking the session.
#[test]
fn idle_subscriber_detaches_in_time_and_keeps_its_other_topics() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 12, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let mut publisher = publisher(&publishing);
            let ending = publishing.state_publisher::<Value>("ending").open().unwrap();
            let memory = repository(&publishing, "ending");
            let mut observed = subscribe(&subscribing, delivery).expect("a grant");
            let builder = subscribing.state_subscriber::<Value>("shm:publishing/ending").delivery(delivery);
            let mut absent = builder.open().unwrap();
            drop(ending);
            let step_ns = limits::ENDED_GRACE_NS / 100;
            for _ in 0..120 {
                world.network.clock().advance(step_ns);
                (0..10).for_each(|_| world.turn());
            }
            assert_eq!(memory.strong_count(), 0, "{reach:?}, {delivery:?}");
            publish(&mut publisher, 3);
            observed.catch_up(&world, 3);
            let end = (0..TURNS).find_map(|_| {
                world.turn();
                absent.try_receive().err()
            });
            assert!(matches!(end, Some(ReceiveError::Ended { .. })), "{end:?}");
            publish(&mut publisher, 1);
            observed.catch_up(&world, 4);
        });
    }
}

/// Its subscriber would wait in vain, and the connection gives no reason.
#[test]
fn landing_region_that_cannot_be_written_ends_its_session() {
    each_seed(SEEDS / 4, |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let subscribing = world.node("subscribing", false);
        let mut publisher = publisher(&publishing);
        let mut observed = subscribe(&subscribing, Delivery::Push).expect("a grant");
        publish(&mut publisher, random.below(5));
        (0..random.below(100)).for_each(|_| world.turn());
        world.network.fail_writes(1);
        for _ in 0..5 {
            publish(&mut publisher, 1);
            (0..random.below(50)).for_each(|_| world.turn());
        }
        let gone = (0..SETTLED_WITHIN).find_map(|_| {
            world.turn();
            observed.receive().err()
        });
        assert!(matches!(gone, Some(ReceiveError::Gone { .. })), "{gone:?}");
    });
}

/// The publisher's node maps it, and may never publish again.
#[test]
fn landing_region_of_a_subscriber_that_left_is_released() {
    for reach in [Reach::Mapped, Reach::Fetched] {
        each_seed(SEEDS / 4, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let mut publisher = publisher(&publishing);
            publish(&mut publisher, random.below(5));
            let observed = subscribe(&subscribing, Delivery::Push).expect("a grant");
            (0..random.below(100)).for_each(|_| world.turn());
            assert_eq!(world.network.written_regions(), 1);
            drop(observed);
            (0..SETTLED_WITHIN).for_each(|_| world.turn());
            assert_eq!(world.network.written_regions(), 0, "{reach:?}");
        });
    }
}

#[test]
fn stopped_subscriber_holds_no_memory_of_ended_topics() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 12, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", true);
            let subscribing = world.node("subscribing", false);
            let publisher = publisher(&publishing);
            let memory = repository(&publishing, "topic");
            let _observed = subscribe(&subscribing, delivery).expect("a grant");
            world.network.pause(&"subscribing".parse().unwrap());
            drop(publisher);
            let step_ns = limits::ENDED_GRACE_NS / 100;
            for _ in 0..220 {
                world.network.clock().advance(step_ns);
                (0..10).for_each(|_| world.turn());
            }
            assert_eq!(memory.strong_count(), 0, "{reach:?}, {delivery:?}");
        });
    }
}

/// Its memory is gone, and reading it would end the session for all subscriptions.
#[test]
fn topic_that_ended_long_ago_is_inspected_without_a_read() {
    each_seed(SEEDS / 12, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let subscribing = world.node("subscribing", false);
        let mut publisher = publisher(&publishing);
        let mut ending = publishing.state_publisher::<Value>("ending").open().unwrap();
        let mut observed = subscribe(&subscribing, Delivery::Pull).expect("a grant");
        let open = || subscribing.state_subscriber::<Value>("shm:publishing/ending").open().unwrap();
        let (mut seen, mut unseen) = (open(), open());
        publish(&mut ending, 1);
        assert_eq!(TopicReport::of(&mut seen).unwrap().sequence.get(), 1);
        drop(ending);
        let step_ns = limits::ENDED_GRACE_NS / 100;
        for _ in 0..80 {
            world.network.clock().advance(step_ns);
            (0..10).for_each(|_| world.turn());
        }
        let report = TopicReport::of(&mut seen).unwrap();
        assert_eq!((report.sequence.get(), report.state), (1, Liveness::Gone));
        let _ = TopicReport::of(&mut unseen);
        publish(&mut publisher, 3);
        observed.catch_up(&world, 3);
    });
}

/// Otherwise it would be lost silently.
#[test]
fn last_value_not_read_in_time_is_reported_before_the_end() {
    each_seed(SEEDS / 12, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let subscribing = world.node("subscribing", false);
        let mut publisher = publisher(&publishing);
        let mut observed = subscribe(&subscribing, Delivery::Pull).expect("a grant");
        publish(&mut publisher, 2);
        observed.catch_up(&world, 2);
        publish(&mut publisher, 3);
        drop(publisher);
        let step_ns = limits::ENDED_GRACE_NS / 100;
        for _ in 0..80 {
            world.network.clock().advance(step_ns);
            (0..10).for_each(|_| world.turn());
        }
        let error = observed.receive().unwrap_err();
        let ReceiveError::CutOff { first_lost, count } = error else { panic!("{error:?}") };
        assert_eq!((first_lost.get(), count), (3, 3));
        for _ in 0..2 {
            let error = observed.receive().unwrap_err();
            assert!(matches!(error, ReceiveError::Ended { published } if published.get() == 5), "{error:?}");
        }
    });
}

/// A clock that makes the node's thread panic at the last of so many reads.
#[derive(Debug)]
struct FatalClock {
    clock: WorldClock,
    left: AtomicU64,
    shared: Mutex<Option<Shared>>,
}

impl Clock for FatalClock {
    fn monotonic_ns(&self) -> u64 {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(shared) = self.shared.lock().take()
        {
            shared.fail(&"its thread fails");
        }
        self.clock.monotonic_ns()
    }

    fn realtime_ns(&self) -> u64 {
        self.clock.realtime_ns()
    }

    fn pause(&self, duration: Duration) {
        self.clock.pause(duration);
    }

    fn pause_until(&self, handle: BorrowedFd<'_>, duration: Duration) {
        // The node's thread reads the clock meanwhile.
        self.monotonic_ns();
        self.clock.pause_until(handle, duration.min(Duration::from_millis(1)));
    }
}

/// A node without a thread, which fails after so many reads of its clock.
fn failing_node(world: &Arc<World>, looks: u64) -> Node {
    let (node, clock) = fatal_node(world);
    clock.left.store(looks, Ordering::Relaxed);
    node
}

/// A node without a thread, and its clock, which does not fail yet.
fn fatal_node(world: &Arc<World>) -> (Node, Arc<FatalClock>) {
    let fabric = Arc::new(world.network.fabric(&"failing".parse().unwrap()));
    let inner = WorldClock(Arc::downgrade(world));
    let clock = Arc::new(FatalClock { clock: inner, left: AtomicU64::new(0), shared: Mutex::default() });
    let (shared, _) =
        assemble((None, None), fabric, Arc::clone(&clock) as _, Arc::new(TracingSink::default())).unwrap();
    *clock.shared.lock() = Some(shared.clone());
    (Node::new(shared, None), clock)
}

/// No thread drives the session then.
#[test]
fn subscription_opened_while_its_node_fails_is_an_error_or_gone() {
    let mut refused = 0;
    for looks in 1..30 {
        let world = World::new(looks, Reach::Mapped);
        let publishing = world.node("publishing", true);
        let _publisher = publisher(&publishing);
        let failing = failing_node(&world, looks);
        match subscribe(&failing, Delivery::Pull) {
            Err(error) => {
                refused += 1;
                assert!(
                    ErrorChain(&error).to_string().contains("its thread fails"),
                    "{error:?} at look {looks}"
                );
                assert!(matches!(error, SubscriberError::NodeFailed { .. }), "{error:?} at look {looks}");
            }
            Ok(mut observed) => {
                if failing.core().check_runs().is_ok() {
                    break;
                }
                let gone = observed.receive();
                assert!(matches!(gone, Err(ReceiveError::Gone { .. })), "{gone:?} at look {looks}");
            }
        }
    }
    assert!(refused > 2, "{refused}");
}

/// Its subscriptions may be kept, and their connections with them.
#[test]
fn failing_node_ends_its_subscribing_sessions() {
    for (reach, delivery) in WAYS {
        let world = World::new(0, reach);
        let publishing = world.node("publishing", true);
        let publisher = publisher(&publishing);
        let failing = failing_node(&world, u64::MAX);
        let _kept = subscribe(&failing, delivery).expect("a grant");
        (0..10).for_each(|_| world.turn());
        let count = || publisher.pull_subscribers() + publisher.push_subscribers();
        assert_eq!(count(), 1);
        failing.inner.shared.fail(&"its thread fails");
        (0..TURNS).for_each(|_| world.turn());
        assert_eq!(count(), 0, "{reach:?}, {delivery:?}");
    }
}

/// No thread serves the dialled session then, and the peer is not at fault.
#[test]
fn dial_during_which_its_node_fails_does_not_wait_for_the_peer() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    for looks in 1..30 {
        let world = World::new(looks, Reach::Mapped);
        let listening = world.node("listening", true);
        let (failing, clock) = fatal_node(&world);
        let _publisher = publisher(&failing);
        clock.left.store(looks, Ordering::Relaxed);
        let began_ns = world.network.clock().monotonic_ns();
        let error = failing.dial_subscriber("topic", listening.address().unwrap(), TIMEOUT).unwrap_err();
        let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
        assert!(ErrorChain(&error).to_string().contains("its thread fails"), "{error} at look {looks}");
        assert!(matches!(error, DialError::NodeFailed { .. }), "{error:?} at look {looks}");
        assert!(elapsed_ns < saturate(TIMEOUT), "{elapsed_ns} at look {looks}");
    }
}
