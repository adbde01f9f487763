//! Connections that break under persistent subscribers, while their publisher lives.

use super::*;
use crate::event::Event;
use crate::id::Epoch;
use crate::publisher::{LogPublisher, TablePublisher};
use crate::subscriber::{Lines, LogSubscriber, Persistent, TableSubscriber};

/// Commits, each of one value of each topic.
const COMMITS: u64 = 200;
/// How soon after the last commit every subscriber has all, ns.
const BACK_WITHIN_NS: u64 = 2_000_000_000;

/// The events of a node.
#[derive(Debug, Default)]
struct Events(Mutex<Vec<Event>>);

impl EventSink for Events {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

/// The publishers of a state, a log and a table.
struct Source {
    state: StatePublisher<Value>,
    log: LogPublisher<u64>,
    table: TablePublisher<u64, u64>,
}

impl Source {
    fn open(node: &Node) -> Self {
        Self {
            state: node.state_publisher("state").payload_len_max(160).slots(4).open().unwrap(),
            log: node.log_publisher("log").capacity(1 << 16).open().unwrap(),
            table: node.table_publisher("table").capacity(64).open().unwrap(),
        }
    }

    fn publish(&mut self, number: u64) {
        self.state.publish(&value(number)).unwrap();
        self.log.publish(&number).unwrap();
        self.table.put(&(number % 10), &number).unwrap();
    }
}

/// A subscriber of each.
struct Follower {
    state: Persistent<StateSubscriber<Value>>,
    log: Persistent<LogSubscriber<u64>>,
    table: Persistent<TableSubscriber<u64, u64>>,
    last: [u64; 3],
}

impl Follower {
    fn open(node: &Node, delivery: Delivery) -> Self {
        let timeout = Duration::from_secs(5);
        let state = node.state_subscriber("shm:publishing/state").delivery(delivery).timeout(timeout);
        let log = node.log_subscriber("shm:publishing/log").at(Sequence::new(1)).delivery(delivery);
        let table = node.table_subscriber("shm:publishing/table").delivery(delivery).timeout(timeout);
        Self {
            state: state.persistent().open().unwrap(),
            log: log.timeout(timeout).persistent().open().unwrap(),
            table: table.persistent().open().unwrap(),
            last: [0; 3],
        }
    }

    /// Receives a value of each, if there is one.
    fn take(&mut self) {
        let [state, log, table] = &mut self.last;
        if let Some(sample) = intact(self.state.try_receive()) {
            assert!(sample.meta.sequence.get() > *state, "twice");
            *state = sample.meta.sequence.get();
            assert_eq!(sample.value, value(*state));
        }
        if let Some(sample) = intact(self.log.try_receive()) {
            assert_eq!(sample.meta.sequence.get(), *log + 1, "neither twice nor a hole");
            *log = sample.value;
        }
        if let Some(change) = intact(self.table.try_change()) {
            assert!(change.meta.sequence.get() > 0 && change.value.is_some());
            *table = (*table).max(change.meta.sequence.get());
        }
    }

    fn outages(&self) -> u64 {
        self.state.outages() + self.log.outages() + self.table.outages()
    }
}

/// What was received; nothing is lost.
fn intact<T>(received: Result<Option<T>, ReceiveError>) -> Option<T> {
    match received {
        Ok(received) => received,
        Err(ReceiveError::Contended { .. }) => None,
        Err(error) => panic!("{}", crate::chain::ErrorChain(&error)),
    }
}

/// Returns how many connections broke.
fn play(seed: u64, reach: Reach, delivery: Delivery) -> usize {
    let mut random = Random::new(seed);
    let world = World::new(seed, reach);
    let publishing = world.node("publishing", true);
    let mut source = Source::open(&publishing);
    source.publish(1);
    let events = Arc::<Events>::default();
    let node = world.node_with("subscribing", false, Arc::<Events>::clone(&events));
    let mut follower = Follower::open(&node, delivery);
    for number in 2..=COMMITS {
        source.publish(number);
        if random.once_in(60) {
            world.network.break_connections(&"subscribing".parse().unwrap());
        }
        (0..random.below(40)).for_each(|_| world.turn());
        follower.take();
    }
    let began_ns = world.network.clock().monotonic_ns();
    while follower.last != [COMMITS; 3] {
        let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
        assert!(elapsed_ns < BACK_WITHIN_NS, "{:?}", follower.last);
        world.turn();
        follower.take();
    }
    let told = events.0.lock();
    assert_eq!(follower.outages(), 0, "{told:?}");
    assert!(!told.iter().any(|event| matches!(event, Event::Lost { .. })), "{told:?}");
    assert!(!told.iter().any(|event| matches!(event, Event::Resumed { .. })), "{told:?}");
    told.iter().filter(|event| matches!(event, Event::Reconnected { .. })).count()
}

fn publisher_that_lives_is_not_lost(reach: Reach, delivery: Delivery) {
    let mut broken = 0;
    each_seed(amount(SEEDS / 6, 10 * SEEDS), |seed| broken += play(seed, reach, delivery));
    assert!(broken > 0, "no connection broke");
}

#[test]
fn publisher_in_place_that_lives_is_not_lost() {
    publisher_that_lives_is_not_lost(Reach::Mapped, Delivery::Pull);
    publisher_that_lives_is_not_lost(Reach::Mapped, Delivery::Push);
}

#[test]
fn publisher_over_a_wire_that_lives_is_not_lost() {
    publisher_that_lives_is_not_lost(Reach::Fetched, Delivery::Pull);
    publisher_that_lives_is_not_lost(Reach::Fetched, Delivery::Push);
}

/// The other line has another epoch, and does not replace one whose connection breaks for a moment.
#[test]
fn lines_keep_their_epoch_while_a_connection_is_made_again() {
    each_seed(amount(SEEDS / 6, SEEDS), |seed| {
        let world = World::new(seed, Reach::Fetched);
        let nodes = ["one", "other"].map(|name| world.node(name, true));
        let open = |node: &Node, number| -> LogPublisher<u64> {
            node.log_publisher("log").epoch(Epoch::new(number).unwrap()).open().unwrap()
        };
        let (mut one, _other) = (open(&nodes[0], 1), open(&nodes[1], 2));
        let node = world.node("subscribing", false);
        let builder = node.log_subscriber::<u64>("shm:one/log").timeout(Duration::from_secs(5));
        let mut lines = builder.lines(["shm:other/log"]).open().unwrap();
        let mut received = 0;
        for number in 1..=20 {
            one.publish(&number).unwrap();
            if number % 5 == 0 {
                world.network.break_connections(&"subscribing".parse().unwrap());
            }
            for _ in 0..SETTLED_WITHIN {
                world.turn();
                match lines.try_receive() {
                    Ok(None) | Err(ReceiveError::OutOfStep { .. }) => {}
                    Ok(Some(sample)) => {
                        received += 1;
                        assert_eq!(sample.value, received);
                    }
                    Err(error) => panic!("{}", crate::chain::ErrorChain(&error)),
                }
            }
        }
        assert_eq!((received, lines.report()[0].outages), (20, 0));
    });
}

/// A line that is lost is waited for once, not at each loss.
#[test]
fn line_that_is_lost_delays_the_others_once() {
    let world = World::new(7, Reach::Mapped);
    let nodes = ["one", "other"].map(|name| world.node(name, true));
    let open = |node: &Node| -> LogPublisher<u64> {
        let builder = node.log_publisher("log").capacity(4096).payload_len_max(64);
        builder.epoch(Epoch::new(1).unwrap()).open().unwrap()
    };
    let mut publishers = nodes.each_ref().map(open);
    let node = world.node("subscribing", false);
    let builder = node.log_subscriber::<u64>("shm:one/log").timeout(Duration::from_secs(5));
    let mut lines = builder.lines(["shm:other/log"]).open().unwrap();
    publishers.iter_mut().for_each(|publisher| _ = publisher.publish(&1).unwrap());
    let now_ns = || world.network.clock().monotonic_ns();
    let receive = |lines: &mut Lines<LogSubscriber<u64>>| loop {
        world.turn();
        match lines.try_receive() {
            Ok(None) => {}
            Ok(Some(sample)) => return Some(sample.value),
            Err(ReceiveError::Missing { .. }) => return None,
            Err(error) => panic!("{}", crate::chain::ErrorChain(&error)),
        }
    };
    assert_eq!(receive(&mut lines), Some(1));
    world.kill("other");
    let mut waited_ns = Vec::new();
    for _ in 0..5 {
        (0..1000).for_each(|number| _ = publishers[0].publish(&number).unwrap());
        let began_ns = now_ns();
        while receive(&mut lines).is_some() {}
        waited_ns.push(now_ns() - began_ns);
        while lines.last() < publishers[0].newest() {
            receive(&mut lines);
        }
    }
    assert!(waited_ns[0] >= limits::LINE_GAP_NS, "{waited_ns:?}");
    assert!(waited_ns[1..].iter().all(|waited_ns| *waited_ns < limits::LINE_GAP_NS / 2), "{waited_ns:?}");
}

/// Another publisher at the same address, of the same epoch, is another one.
#[test]
fn next_publisher_is_reported() {
    each_seed(amount(SEEDS / 6, SEEDS), |seed| {
        let world = World::new(seed, Reach::Fetched);
        let events = Arc::<Events>::default();
        let node = world.node_with("subscribing", false, Arc::<Events>::clone(&events));
        let epoch = Epoch::new(7).unwrap();
        let open = |node: &Node| node.log_publisher::<u64>("log").epoch(epoch).open().unwrap();
        let publishing = world.node("publishing", true);
        let mut publisher = open(&publishing);
        publisher.publish(&1).unwrap();
        let builder = node.log_subscriber::<u64>("shm:publishing/log").at(Sequence::new(1));
        let mut subscriber = builder.timeout(Duration::from_secs(5)).persistent().open().unwrap();
        let receive = |subscriber: &mut Persistent<LogSubscriber<u64>>| {
            let looks = (0..SETTLED_WITHIN).map(|_| world.turn());
            looks.filter_map(|()| intact(subscriber.try_receive())).map(|sample| sample.value).next()
        };
        assert_eq!(receive(&mut subscriber), Some(1));
        world.kill("publishing");
        let next = world.node("publishing", true);
        let mut again = open(&next);
        again.publish_batch(&[1, 2]).unwrap();
        assert_eq!(receive(&mut subscriber), Some(2));
        assert_eq!(subscriber.outages(), 1);
        let told = events.0.lock();
        let [Event::Lost { .. }, Event::Resumed { .. }] = &told[..] else { panic!("{told:?}") };
        drop((publisher, publishing));
    });
}
