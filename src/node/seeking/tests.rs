use std::sync::Weak;
use std::sync::mpsc::channel;

use super::*;
use crate::clock::SystemClock;
use crate::testkit::clock::VirtualClock;
use crate::testkit::random::each_seed;

const HERE: &str = "shm:here";
const FAR: &str = "rdma://10.0.0.1:4711";
/// The longest wait for another thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// Attempts with their times, ns.
type Attempts = Arc<Mutex<Vec<(&'static str, u64)>>>;

/// A subscription that is sought and records its attempts.
struct Fake {
    name: &'static str,
    outcome: Arc<Mutex<Attempt>>,
    /// How long an attempt takes, ns.
    takes_ns: u64,
    clock: Arc<VirtualClock>,
    attempts: Attempts,
}

impl Sought for Fake {
    fn attempt(&mut self) -> Attempt {
        self.attempts.lock().push((self.name, self.clock.monotonic_ns()));
        self.clock.advance(self.takes_ns);
        *self.outcome.lock()
    }
}

struct World {
    clock: Arc<VirtualClock>,
    seeking: Arc<Seeking>,
    attempts: Attempts,
}

impl World {
    fn new(seed: u64) -> Self {
        let clock = Arc::<VirtualClock>::default();
        clock.advance(1_000_000);
        let seeking = Arc::new(Seeking::new(Arc::<VirtualClock>::clone(&clock), seed));
        Self { clock, seeking, attempts: Attempts::default() }
    }

    /// Seeks something whose attempts have the outcome that is returned.
    fn seek(&self, address: &str, name: &'static str, outcome: Attempt) -> Arc<Mutex<Attempt>> {
        let outcome = Arc::new(Mutex::new(outcome));
        let (clock, attempts) = (Arc::clone(&self.clock), Arc::clone(&self.attempts));
        let fake = Fake { name, outcome: Arc::clone(&outcome), takes_ns: 1000, clock, attempts };
        self.seeking.seek(&address.parse().unwrap(), Box::new(fake));
        outcome
    }

    /// Makes the attempts that are due now.
    fn turn(&self) -> SeekStep {
        loop {
            let next = self.seeking.turn();
            if next != SeekStep::Turn {
                return next;
            }
        }
    }

    /// Makes the next attempts, when they are due. Returns how long that was from now on, ns.
    fn next(&self) -> u64 {
        let SeekStep::At(due_ns) = self.turn() else { panic!("nothing is sought") };
        let pause_ns = due_ns - self.clock.monotonic_ns();
        self.clock.advance_to(due_ns);
        self.turn();
        pause_ns
    }

    /// The attempts since the last call.
    fn made(&self) -> Vec<&'static str> {
        self.attempts.lock().drain(..).map(|(name, _)| name).collect()
    }

    fn is_idle(&self) -> bool {
        self.seeking.state.lock().places.is_empty() && self.turn() == SeekStep::Nothing
    }
}

#[test]
fn attempt_is_made_at_once_and_what_was_found_is_not_sought_any_more() {
    let world = World::new(1);
    assert!(world.is_idle());
    let now_ns = world.clock.monotonic_ns();
    world.seek(HERE, "one", Attempt::Done);
    assert_eq!(world.turn(), SeekStep::Nothing);
    assert_eq!(*world.attempts.lock(), [("one", now_ns)]);
    assert!(world.is_idle());
}

#[test]
fn pauses_are_random_and_grow_to_the_limit() {
    let limits = [(HERE, limits::SEEK_PAUSE_MAX_NS), (FAR, limits::SEEK_FAR_PAUSE_MAX_NS)];
    for (address, [soon_ns, later_ns]) in limits {
        for outcome in [Attempt::Refused, Attempt::Unreached] {
            let mut firsts = std::collections::BTreeSet::new();
            each_seed(20, |seed| {
                let world = World::new(seed);
                let began_ns = world.clock.monotonic_ns();
                world.seek(address, "one", outcome);
                let mut longest_ns = limits::SEEK_PAUSE_MIN_NS;
                for round in 0..300 {
                    let is_soon = world.clock.monotonic_ns() - began_ns < limits::SEEK_SOON_NS;
                    let pause_ns = world.next();
                    if round == 0 {
                        firsts.insert(pause_ns);
                    }
                    let range = longest_ns / 2..=longest_ns;
                    assert!(range.contains(&pause_ns), "{pause_ns} after {round}, of up to {longest_ns}");
                    let max_ns = if is_soon { soon_ns } else { later_ns };
                    longest_ns = (2 * longest_ns).min(max_ns);
                }
                assert_eq!(longest_ns, later_ns);
                assert_eq!(world.made().len(), 301);
            });
            assert!(firsts.len() > 10, "not at the same moment: {firsts:?}");
        }
    }
}

/// One that is never answered in time does not keep the others from being found.
#[test]
fn unreached_address_costs_one_attempt_a_round_by_each_in_turn_and_a_refusal_does_not_stop_the_others() {
    let world = World::new(2);
    let outcomes = ["one", "two", "three"].map(|name| world.seek(HERE, name, Attempt::Unreached));
    world.turn();
    assert_eq!(world.made(), ["one"]);
    world.next();
    assert_eq!(world.made(), ["two"]);
    *outcomes[0].lock() = Attempt::Refused;
    *outcomes[1].lock() = Attempt::Done;
    world.next();
    assert_eq!(world.made(), ["three"]);
    world.next();
    assert_eq!(world.made(), ["one", "two", "three"]);
    world.next();
    assert_eq!(world.made(), ["one", "three"]);
    outcomes.iter().for_each(|outcome| *outcome.lock() = Attempt::Done);
    world.next();
    assert_eq!(world.made(), ["one", "three"]);
    assert!(world.is_idle());
}

#[test]
fn what_was_found_makes_the_next_pauses_short() {
    let world = World::new(3);
    let (one, _two) = (world.seek(HERE, "one", Attempt::Refused), world.seek(HERE, "two", Attempt::Refused));
    (0..400).for_each(|_| _ = world.next());
    assert!(world.next() > limits::SEEK_PAUSE_MAX_NS[0]);
    *one.lock() = Attempt::Done;
    world.next();
    assert!(world.next() <= limits::SEEK_PAUSE_MIN_NS);
}

#[test]
fn new_ones_are_attempted_at_once_however_long_others_are_sought() {
    for outcome in [Attempt::Refused, Attempt::Unreached] {
        let world = World::new(4);
        world.seek(HERE, "old", outcome);
        (0..400).for_each(|_| _ = world.next());
        world.made();
        world.seek(HERE, "new", Attempt::Done);
        world.turn();
        let made = world.made();
        assert!(made.contains(&"new") || outcome == Attempt::Unreached, "{made:?}");
        assert!(!made.is_empty(), "one attempt, at least, to reach the address");
        assert!(world.next() <= limits::SEEK_PAUSE_MIN_NS, "the next ones are soon, too");
    }
}

/// Seeks another one during its attempt.
struct Nested(Weak<Seeking>, Option<Fake>);

impl Sought for Nested {
    fn attempt(&mut self) -> Attempt {
        if let (Some(seeking), Some(fake)) = (self.0.upgrade(), self.1.take()) {
            seeking.seek(&HERE.parse().unwrap(), Box::new(fake));
        }
        Attempt::Refused
    }
}

#[test]
fn what_is_sought_during_a_round_is_attempted_right_after_it() {
    let world = World::new(5);
    let (clock, attempts) = (Arc::clone(&world.clock), Arc::clone(&world.attempts));
    let outcome = Arc::new(Mutex::new(Attempt::Done));
    let fake = Fake { name: "nested", outcome, takes_ns: 0, clock, attempts };
    let nested = Nested(Arc::downgrade(&world.seeking), Some(fake));
    world.seeking.seek(&HERE.parse().unwrap(), Box::new(nested));
    let now_ns = world.clock.monotonic_ns();
    world.turn();
    assert_eq!(*world.attempts.lock(), [("nested", now_ns)]);
}

#[test]
fn what_is_dropped_disappears_with_its_address() {
    let world = World::new(6);
    let outcomes = [world.seek(HERE, "here", Attempt::Refused), world.seek(FAR, "far", Attempt::Unreached)];
    world.turn();
    assert_eq!(world.seeking.state.lock().places.len(), 2);
    // A handle that is gone is a subscription not wanted any more.
    *outcomes[0].lock() = Attempt::Done;
    (0..20).for_each(|_| _ = world.next());
    let places = world.seeking.state.lock().places.iter().map(|place| place.address.to_string()).collect();
    assert_eq!(Vec::<String>::len(&places), 1);
    assert!(!world.is_idle());
    *outcomes[1].lock() = Attempt::Done;
    world.next();
    assert!(world.is_idle());
}

/// Waits until it is told to go on.
struct Blocked {
    began: std::sync::mpsc::Sender<()>,
    goes_on: std::sync::mpsc::Receiver<()>,
}

impl Sought for Blocked {
    fn attempt(&mut self) -> Attempt {
        self.began.send(()).unwrap();
        self.goes_on.recv_timeout(PATIENCE).unwrap();
        Attempt::Done
    }
}

#[test]
fn two_addresses_do_not_wait_for_each_other_and_the_threads_end() {
    let seeking = Arc::new(Seeking::new(Arc::new(SystemClock), 7));
    seeking.use_threads();
    let mut held = Vec::new();
    let (began, begun) = channel();
    for number in 0..limits::SEEKING_THREADS_MAX {
        let (go_on, goes_on) = channel();
        let address = format!("shm:n{number}").parse().unwrap();
        seeking.seek(&address, Box::new(Blocked { began: began.clone(), goes_on }));
        held.push(go_on);
    }
    // All of them are in an attempt at the same time.
    held.iter().for_each(|_| begun.recv_timeout(PATIENCE).unwrap());
    held.iter().for_each(|go_on| go_on.send(()).unwrap());
    let has_ended = || {
        let state = seeking.state.lock();
        state.threads == 0 && state.places.is_empty()
    };
    while !has_ended() {
        thread::yield_now();
    }
    // Another one starts another thread.
    let (go_on, goes_on) = channel();
    seeking.seek(&HERE.parse().unwrap(), Box::new(Blocked { began, goes_on }));
    begun.recv_timeout(PATIENCE).unwrap();
    go_on.send(()).unwrap();
}

/// A node that seeks one thing for a long time seeks another at once, by its thread that waits.
#[test]
fn thread_that_pauses_is_woken_by_a_new_one() {
    let seeking = Arc::new(Seeking::new(Arc::new(SystemClock), 8));
    seeking.use_threads();
    let world = World::new(8);
    let fake = |name, outcome| Fake {
        name,
        outcome: Arc::new(Mutex::new(outcome)),
        takes_ns: 0,
        clock: Arc::clone(&world.clock),
        attempts: Arc::clone(&world.attempts),
    };
    seeking.seek(&HERE.parse().unwrap(), Box::new(fake("old", Attempt::Refused)));
    while world.attempts.lock().is_empty() {
        thread::yield_now();
    }
    {
        let mut state = seeking.state.lock();
        while state.places.iter().any(|place| place.is_busy) {
            drop(state);
            thread::yield_now();
            state = seeking.state.lock();
        }
        let now_ns = seeking.clock.monotonic_ns();
        state.places.iter_mut().for_each(|place| place.due_ns = now_ns + 3_600_000_000_000);
    }
    seeking.changed.notify_all();
    seeking.seek(&HERE.parse().unwrap(), Box::new(fake("new", Attempt::Done)));
    while !world.attempts.lock().iter().any(|(name, _)| *name == "new") {
        thread::yield_now();
    }
}

/// A payload type may panic when it is attached.
struct Panicking(Arc<Mutex<u64>>);

impl Sought for Panicking {
    fn attempt(&mut self) -> Attempt {
        *self.0.lock() += 1;
        panic!("a payload type panics")
    }
}

#[test]
fn attempt_that_panics_is_repeated_and_stops_no_other_one() {
    let world = World::new(1);
    let count = Arc::<Mutex<u64>>::default();
    world.seeking.seek(&HERE.parse().unwrap(), Box::new(Panicking(Arc::clone(&count))));
    world.seek(HERE, "other", Attempt::Refused);
    world.turn();
    assert_eq!((*count.lock(), world.made()), (1, vec!["other"]));
    world.next();
    assert_eq!((*count.lock(), world.made()), (2, vec!["other"]));
}
