//! Publishers that dial, in worlds whose other end is slow, stopped, killed, or missing.

use super::*;
use crate::control::RefuseReason;
use crate::fabric::Address;
use crate::node::invitation::Invitation;
use crate::node::{DialError, Listener};
use crate::sync::atomic::{AtomicBool, Ordering};

/// Every medium with every delivery.
const WAYS: [(Reach, Delivery); 4] = [
    (Reach::Mapped, Delivery::Pull),
    (Reach::Mapped, Delivery::Push),
    (Reach::Fetched, Delivery::Pull),
    (Reach::Fetched, Delivery::Push),
];
/// The timeout of a dial; a turn of the world takes some microseconds.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Turns within which an accident happens: about as many as a dial takes.
const STRIKES_WITHIN: u64 = 40;

/// A listening node, and the subscribers it has accepted.
struct Desk {
    node: Node,
    accepted: Arc<Mutex<Vec<Result<Observed, SubscriberError>>>>,
    open: Arc<AtomicBool>,
}

impl Desk {
    /// A node of this name, with a thread that accepts every publisher.
    fn open(world: &World, node: Node, delivery: Delivery) -> Self {
        let builder = node.state_listener::<Value>("topic").delivery(delivery).timeout(TIMEOUT);
        let listener = builder.open().unwrap();
        let (accepted, open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(true)));
        let (kept, goes_on) = (Arc::clone(&accepted), Arc::clone(&open));
        world.spawn(move || {
            if let Some(outcome) = next(&listener) {
                kept.lock().push(outcome);
            }
            goes_on.load(Ordering::Relaxed)
        });
        Self { node, accepted, open }
    }

    fn address(&self) -> Address {
        self.node.address().unwrap()
    }

    /// The subscribers accepted since the last call.
    fn take(&self) -> Vec<Observed> {
        self.accepted.lock().drain(..).filter_map(Result::ok).collect()
    }

    /// The only one.
    fn take_one(&self) -> Observed {
        let mut taken = self.take();
        assert_eq!(taken.len(), 1);
        taken.remove(0)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.open.store(false, Ordering::Relaxed);
    }
}

fn next(listener: &Listener<StateSubscriber<Value>>) -> Option<Result<Observed, SubscriberError>> {
    listener.accept_timeout(Duration::ZERO).map(|accepted| accepted.map(Observed::new)).transpose()
}

fn dial(node: &Node, desk: &Desk) -> Result<(), DialError> {
    node.dial_subscriber("topic", desk.address(), TIMEOUT)
}

fn subscribers(publisher: &StatePublisher<Value>) -> u64 {
    publisher.pull_subscribers() + publisher.push_subscribers()
}

/// A dial reported as failed has left nothing, and never succeeds later.
#[track_caller]
fn settles_at(world: &World, publisher: &StatePublisher<Value>, expected: u64) {
    (0..SETTLED_WITHIN).for_each(|_| world.turn());
    assert_eq!(subscribers(publisher), expected);
}

/// Values are published and subscribers dialled, receive and go in random order.
#[test]
fn values_arrive_at_dialled_subscribers() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 8, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", false);
            let mut publisher = publisher(&publishing);
            let desks = ["one", "other"].map(|name| Desk::open(&world, world.node(name, true), delivery));
            let mut observed: Vec<Observed> = Vec::new();
            for _ in 0..200 {
                match random.below(12) {
                    0 if observed.len() < 5 => {
                        let began_ns = world.network.clock().monotonic_ns();
                        dial(&publishing, &desks[random.index(2)]).expect("a node listens there");
                        let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
                        assert!(elapsed_ns < saturate(TIMEOUT) / 2, "it returns when attached: {elapsed_ns}");
                        // It is attached: everything published from now on reaches it.
                        assert!(subscribers(&publisher) > observed.len() as u64);
                        publish(&mut publisher, 1);
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
                desks.iter().for_each(|desk| observed.extend(desk.take()));
            }
            publish(&mut publisher, 1);
            (0..100).for_each(|_| world.turn());
            desks.iter().for_each(|desk| observed.extend(desk.take()));
            for one in &mut observed {
                one.catch_up(&world, publisher.newest().get());
            }
            settles_at(&world, &publisher, observed.len() as u64);
            drop((observed, desks));
            settles_at(&world, &publisher, 0);
        });
    }
}

/// A thread that sleeps until somebody dials is woken.
#[test]
fn publisher_that_dials_ends_the_wait_of_a_listener() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 4, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", false);
            let mut publisher = publisher(&publishing);
            let node = world.node("desk", true);
            let listener = node.state_listener::<Value>("topic").delivery(delivery).open().unwrap();
            let (mut turns, address) = (random.below(STRIKES_WITHIN), node.address().unwrap());
            let (invitation, dialling) = (Arc::new(Mutex::new(None)), publishing.clone());
            let kept = Arc::clone(&invitation);
            world.spawn(move || {
                if turns == 0 {
                    let invited = dialling.invite("topic".parse().unwrap(), &address, u64::MAX);
                    *kept.lock() = Some(invited.expect("a node listens there"));
                }
                turns = turns.wrapping_sub(1);
                turns != u64::MAX
            });
            let began_ns = world.network.clock().monotonic_ns();
            let accepted = listener.accept_timeout(Duration::from_secs(1)).unwrap();
            let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
            assert!(elapsed_ns < 500_000_000, "{elapsed_ns}");
            publish(&mut publisher, 3);
            Observed::new(accepted.expect("it dials")).catch_up(&world, 3);
            // The backlog has no more to do with its session.
            let waiting =
                || world.drivers.lock().iter().map(|node| node.driver.waiting_publishers()).sum::<usize>();
            assert!(
                (0..SETTLED_WITHIN).any(|_| {
                    world.turn();
                    waiting() == 0
                }),
                "{}",
                waiting()
            );
        });
    }
}

/// It would take a place at the listening node, for a publisher that no longer waits.
#[test]
fn session_of_a_dial_that_timed_out_ends_on_both_sides() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 12, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", false);
            let publisher = publisher(&publishing);
            let node = world.node("desk", true);
            let _listener = node.state_listener::<Value>("topic").delivery(delivery).open().unwrap();
            let error = publishing.dial_subscriber("topic", node.address().unwrap(), TIMEOUT).unwrap_err();
            assert!(matches!(error, DialError::NotAccepted { .. }), "{error}");
            settles_at(&world, &publisher, 0);
            assert!(node.links().all().is_empty());
        });
    }
}

/// Without a listener no subscriber attaches; a late one gets an error.
#[test]
fn late_or_mistyped_subscriber_is_an_error_and_the_next_dial_succeeds() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 4, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", false);
            let mut publisher = publisher(&publishing);
            let address = "shm:desk";
            let error = publishing.dial_subscriber("topic", address, TIMEOUT).unwrap_err();
            assert!(matches!(error, DialError::Unreachable { .. }), "{error}");

            let node = world.node("desk", true);
            let error = publishing.dial_subscriber("topic", address, TIMEOUT).unwrap_err();
            assert!(matches!(error, DialError::Refused { reason: RefuseReason::NobodyWaits, .. }), "{error}");

            let listener = node.state_listener::<u64>("topic").delivery(delivery).open().unwrap();
            let errors = Arc::new(Mutex::new(Vec::new()));
            let (told, open) = (Arc::clone(&errors), Arc::new(AtomicBool::new(true)));
            let goes_on = Arc::clone(&open);
            world.spawn(move || {
                told.lock().extend(listener.accept_timeout(Duration::ZERO).err());
                goes_on.load(Ordering::Relaxed)
            });
            let error = publishing.dial_subscriber("topic", address, TIMEOUT).unwrap_err();
            assert!(matches!(error, DialError::Unfit { .. }), "{error}");
            (0..100).for_each(|_| world.turn());
            let refused = |error: &SubscriberError| matches!(error, SubscriberError::Dialled { node, .. } if *node == *publishing.name());
            assert!(matches!(&errors.lock()[..], [error] if refused(error)), "{:?}", errors.lock());
            open.store(false, Ordering::Relaxed);
            world.turn();

            let desk = Desk::open(&world, node, delivery);
            dial(&publishing, &desk).expect("now it listens for this type");
            publish(&mut publisher, 3);
            (0..100).for_each(|_| world.turn());
            let mut observed = desk.take_one();
            observed.catch_up(&world, 3);
            settles_at(&world, &publisher, 1);
        });
    }
}

#[test]
fn killed_publisher_is_noticed_and_the_next_one_that_dials_is_accepted() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 4, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let desk = Desk::open(&world, world.node("desk", true), delivery);
            let mut epochs = Vec::new();
            for _ in 0..3 {
                let publishing = world.node("publishing", false);
                let mut publisher = publisher(&publishing);
                publish(&mut publisher, random.below(5));
                dial(&publishing, &desk).expect("a node listens there");
                publish(&mut publisher, 1 + random.below(9));
                (0..100 + random.below(30)).for_each(|_| world.turn());
                let mut observed = desk.take_one();
                epochs.push(observed.subscriber.epoch());
                world.kill("publishing");
                let gone = (0..TURNS).find_map(|_| {
                    world.turn();
                    observed.receive().err()
                });
                let gone = gone.expect("an error, sooner or later");
                assert!(matches!(gone, ReceiveError::Gone { .. }), "{gone}");
            }
            epochs.dedup();
            assert_eq!(epochs.len(), 3);
        });
    }
}

/// At whatever moment the other end dies, the dialling node gets an error, nothing is left, and the next node there can be
/// dialled.
#[test]
fn killed_subscriber_costs_the_dialling_node_an_error_at_most() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 2, |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", false);
            let mut publisher = publisher(&publishing);
            let desk = Desk::open(&world, world.node("desk", true), delivery);
            let (mut turns, killing) = (random.below(STRIKES_WITHIN), Arc::downgrade(&world));
            world.spawn(move || {
                if turns == 0 {
                    killing.upgrade().expect("the world exists").kill("desk");
                }
                turns = turns.wrapping_sub(1);
                turns != u64::MAX
            });
            let outcome = dial(&publishing, &desk);
            let sudden = |error: &DialError| {
                matches!(error, DialError::Session { .. } | DialError::Unreachable { .. })
            };
            assert!(outcome.as_ref().err().is_none_or(sudden), "{outcome:?}");
            publish(&mut publisher, 5);
            (0..100).for_each(|_| world.turn());
            settles_at(&world, &publisher, 0);
            drop(desk);
            world.turn();

            let desk = Desk::open(&world, world.node("desk", true), delivery);
            dial(&publishing, &desk).expect("a node listens there again");
            publish(&mut publisher, 1);
            (0..100).for_each(|_| world.turn());
            desk.take_one().catch_up(&world, 6);
        });
    }
}

/// At whatever moment the timeout expires, either a subscriber is attached on both sides, or never.
#[test]
fn dial_that_times_out_never_attaches_later() {
    let mut outcomes = [0, 0];
    for (reach, delivery) in WAYS {
        each_seed(amount(SEEDS / 20, SEEDS / 2), |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", false);
            let publisher = publisher(&publishing);
            let desk = Desk::open(&world, world.node("desk", true), delivery);
            for _ in 0..20 {
                let (topic, deadline_ns) = ("topic".parse().unwrap(), u64::MAX);
                let invitation = publishing.invite(topic, &desk.address(), deadline_ns).unwrap();
                let (outcome, mut turns) = (Arc::new(Mutex::new(None)), random.below(STRIKES_WITHIN));
                let told = Arc::clone(&outcome);
                // Beside the accepting thread, so that it gives up while that runs.
                world.spawn(move || {
                    *told.lock() = invitation.outcome(turns > 0);
                    turns = turns.saturating_sub(1);
                    told.lock().is_none()
                });
                (0..200).for_each(|_| world.turn());
                let outcome = outcome.lock().take().expect("it takes no longer than it waits");
                let late = |error: &DialError| {
                    matches!(error, DialError::Session { .. } | DialError::NotAccepted { .. })
                };
                assert!(outcome.as_ref().err().is_none_or(late), "{outcome:?}");
                let attached = usize::from(outcome.is_ok());
                assert_eq!(desk.take().len(), attached, "{outcome:?}");
                (0..200).for_each(|_| world.turn());
                assert_eq!(subscribers(&publisher), 0);
                outcomes[attached] += 1;
            }
        });
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// A process that stops at any moment costs the others only their timeout.
#[test]
fn stopped_process_costs_the_other_its_timeout_and_later_dials_succeed() {
    for (reach, delivery) in WAYS {
        each_seed(amount(SEEDS / 10, SEEDS), |seed| {
            let mut random = Random::new(seed);
            let world = World::new(seed, reach);
            let stopping: NodeName = ["desk", "publishing"][random.index(2)].parse().unwrap();
            let desk = Desk::open(&world, world.node("desk", true), delivery);
            let publishing = world.node("publishing", false);
            let mut first = publisher(&publishing);
            let (mut turns, stopped) = (random.below(STRIKES_WITHIN), stopping.clone());
            let network = Arc::clone(&world.network);
            world.spawn(move || {
                if turns == 0 {
                    network.pause(&stopped);
                }
                turns = turns.wrapping_sub(1);
                turns != u64::MAX
            });
            let began_ns = world.network.clock().monotonic_ns();
            let outcome = dial(&publishing, &desk);
            let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
            assert!(elapsed_ns < 2 * saturate(TIMEOUT), "{elapsed_ns}");
            // It may have run fewer turns than passed before the stop.
            (0..STRIKES_WITHIN).for_each(|_| world.turn());
            let slow = |error: &DialError| {
                matches!(error, DialError::Session { .. } | DialError::NotAccepted { .. })
            };
            assert!(outcome.as_ref().err().is_none_or(slow), "{outcome:?}");

            // The stopped process delays no other node for long.
            let other = world.node("other", false);
            let mut second = publisher(&other);
            if stopping.as_str() == "publishing" {
                other.dial_subscriber("topic", desk.address(), 3 * TIMEOUT).expect("a node listens");
                publish(&mut second, 2);
            }
            world.network.resume(&stopping);
            (0..TURNS).for_each(|_| world.turn());
            let mut observed = desk.take();
            publish(&mut first, 4);
            publish(&mut second, 1);
            (0..100).for_each(|_| world.turn());
            for publisher in [&first, &second] {
                let epoch = publisher.epoch();
                let own = observed.iter_mut().filter(|one| one.subscriber.epoch() == epoch);
                let own = own.map(|one| one.catch_up(&world, publisher.newest().get())).count();
                assert_eq!(subscribers(publisher), own as u64);
            }
            assert!(outcome.is_ok() || subscribers(&first) == 0, "{outcome:?}");

            drop(observed);
            dial(&publishing, &desk).expect("it resumes");
            (0..100).for_each(|_| world.turn());
            desk.take_one().catch_up(&world, 4);
        });
    }
}

/// Begins to dial the desk, and runs `witness` when the outcome becomes visible.
fn invite_and(node: &Node, desk: &Address, witness: impl FnOnce() + Send + 'static) -> Arc<Invitation> {
    let invitation = node.invite("topic".parse().unwrap(), desk, u64::MAX).unwrap();
    invitation.when_settled(witness);
    invitation
}

#[test]
fn a_subscriber_is_counted_before_its_dial_returns() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 12, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", false);
            let publisher = publisher(&publishing);
            let desk = Desk::open(&world, world.node("desk", true), delivery);
            let topic = publishing.core().topic(publisher.topic()).unwrap();
            let counted = Arc::new(Mutex::new(None));
            let seen = Arc::clone(&counted);
            let invitation = invite_and(&publishing, &desk.address(), move || {
                let count = topic.pull_subscribers.value() + topic.push_subscribers.value();
                *seen.lock() = Some(count);
            });
            (0..SETTLED_WITHIN).for_each(|_| world.turn());
            assert!(matches!(invitation.outcome(true), Some(Ok(()))));
            assert_eq!(*counted.lock(), Some(1), "{reach:?}, {delivery:?}");
        });
    }
}

#[test]
fn record_published_when_a_dial_returns_is_received() {
    for (reach, delivery) in WAYS {
        each_seed(SEEDS / 12, |seed| {
            let world = World::new(seed, reach);
            let publishing = world.node("publishing", false);
            let publisher = publishing.log_publisher::<Value>("topic").payload_len_max(128).open().unwrap();
            let publisher = Arc::new(Mutex::new(publisher));
            let node = world.node("desk", true);
            let listener = node.log_listener::<Value>("topic").delivery(delivery).open().unwrap();
            let accepted = Arc::new(Mutex::new(None));
            let kept = Arc::clone(&accepted);
            world.spawn(move || {
                *kept.lock() = listener.accept_timeout(Duration::ZERO).unwrap();
                kept.lock().is_none()
            });
            let publishes = Arc::clone(&publisher);
            let address = node.address().unwrap();
            let _invitation = invite_and(&publishing, &address, move || {
                publishes.lock().publish(&value(1)).unwrap();
            });
            let received = (0..TURNS).find_map(|_| {
                world.turn();
                accepted.lock().as_mut().and_then(|subscriber| subscriber.try_receive().unwrap())
            });
            let record = received.unwrap_or_else(|| panic!("nothing came, {reach:?}, {delivery:?}"));
            assert_eq!((record.meta.sequence.get(), record.value), (1, value(1)));
        });
    }
}
