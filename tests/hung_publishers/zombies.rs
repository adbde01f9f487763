//! Publishers that are stopped, replaced by another process of the same name, and run again.

use super::*;
use crate::support::time::wait_within;
use fabricast::{LogSubscriber, Pod, StatePublisher, Subscribed, SubscriberBuilder};
use std::time::Duration;

/// What a publisher fills its values with: its own number, and that of the value, in each pair.
type Stamped = [u64; 8];

/// Longer than the test: sessions do not end because nobody has answered.
const NEVER: Duration = Duration::from_secs(3600);
/// How soon after it was left a stopped publisher reaches nothing, though nothing is answered.
const SOON: Duration = Duration::from_secs(10);
/// Values received beside the resumed publisher.
const RECEIVED: u64 = 300;

/// Publishes as fast as it can, with the number of its second argument.
pub(super) fn storm(role: &Role, node: Node) {
    let id = role.number(1) as u64;
    let mut state: StatePublisher<Pod<Stamped>> = node.state_publisher("state").open().expect("a topic");
    let mut log = node.log_publisher::<Pod<Stamped>>("log").open().expect("a topic");
    let (mut number, mut is_ready) = (0, false);
    loop {
        number += 1;
        let value: Stamped = std::array::from_fn(|word| if word % 2 == 0 { id } else { number });
        state.publish(&value).expect("it fits");
        log.publish(&value).expect("it fits");
        if !std::mem::replace(&mut is_ready, true) {
            role.say("ready");
        }
        match role.command_within(Duration::from_micros(200)).as_deref() {
            None => {}
            Some("newest") => role.say(number),
            Some("subscribers") => {
                let counts = [state.push_subscribers(), log.push_subscribers(), state.pull_subscribers()];
                role.say(counts.iter().sum::<u64>());
            }
            Some(_) => break,
        }
    }
    drop((state, log, node));
    role.say("left");
}

/// Pushed and pulled values of one publisher, and pushed records.
struct Follower {
    pushed: StateSubscriber<Pod<Stamped>>,
    pulled: StateSubscriber<Pod<Stamped>>,
    records: LogSubscriber<Pod<Stamped>>,
    id: u64,
    /// How many of each were received.
    received: [u64; 3],
}

impl Follower {
    fn open(node: &Node, address: &str, id: u64) -> Self {
        fn open<S: Subscribed>(builder: SubscriberBuilder<'_, S>, delivery: Delivery) -> S {
            builder.delivery(delivery).timeout(NEVER).open().expect("a subscription")
        }
        let state = format!("{address}/state");
        Self {
            pushed: open(node.state_subscriber(state.as_str()), Delivery::Push),
            pulled: open(node.state_subscriber(state.as_str()), Delivery::Pull),
            records: open(node.log_subscriber(format!("{address}/log")), Delivery::Push),
            id,
            received: [0; 3],
        }
    }

    /// Receives once from each. All values are whole, and of the expected publisher.
    fn receive(&mut self) {
        let Self { pushed, pulled, records, id, received } = self;
        let results = [pushed.try_receive(), pulled.try_receive(), records.try_receive()];
        for (result, count) in results.into_iter().zip(received) {
            match result {
                Ok(None) | Err(ReceiveError::Contended { .. } | ReceiveError::Lapped { .. }) => {}
                Ok(Some(sample)) => {
                    let [by, number, ..] = sample.value;
                    let expected = std::array::from_fn(|word| if word % 2 == 0 { *id } else { number });
                    assert_eq!((by, sample.value), (*id, expected));
                    *count += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Receives so many more values of each.
    fn receive_more(&mut self, count: u64) {
        let until = self.received.map(|received| received + count);
        wait_until("values", || {
            self.receive();
            self.received.iter().zip(until).all(|(received, until)| *received >= until)
        });
    }
}

/// How many memory files of fabricast this process has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mappings");
    maps.lines().filter(|line| line.contains("/memfd:fabricast")).count()
}

/// A publisher is stopped, its subscribers leave it for one of the same name, and it runs again.
fn zombie_reaches_nobody(
    dirs: [&Path; 2],
    addresses: [&str; 2],
    places: [&str; 2],
    supersede: impl FnOnce(),
) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let pulse = Arc::new(Pulse::default());
    let sink: Arc<dyn EventSink> = Arc::<Pulse>::clone(&pulse);
    let node = Node::builder().runtime_dir(dirs[0]).events(sink).open().expect("a node");
    let mut old = Peer::ready("storm", dirs[0], &format!("{} 1", places[0]));
    let before = mapped();
    let mut follower = Follower::open(&node, addresses[0], 1);
    follower.receive_more(20);
    old.stop();
    wait_until("the hang to be noticed", || pulse.is_hung());
    let stopped = follower.received;
    supersede();
    let mut new = Peer::ready("storm", dirs[1], &format!("{} 2", places[1]));
    drop(follower);
    // While it is still stopped: whatever it does then, no memory of this process is left that it could write by this session.
    wait_within(SOON, "the memory of the old subscriptions to be gone", || mapped() == before);
    let mut follower = Follower::open(&node, addresses[1], 2);
    follower.receive_more(20);
    let newest = old_newest(&mut old);
    follower.receive_more(RECEIVED);
    assert!(old.ask_number("newest") > newest, "it publishes, {stopped:?} were received of it before");
    wait_until("the old one to find that it has no subscribers", || old.ask_number("subscribers") == 0);
    assert_eq!(new.ask_number("subscribers"), 3);
    // Its end takes nothing from the new one.
    assert_eq!(old.ask("leave"), "left");
    let other = Node::builder().runtime_dir(dirs[1]).open().expect("a node");
    Follower::open(&other, addresses[1], 2).receive_more(20);
    follower.receive_more(20);
}

/// Lets the old publisher run again, and returns what it has published.
fn old_newest(old: &mut Peer) -> u64 {
    old.signal(Signal::CONT);
    old.ask_number("newest")
}

#[test]
fn resumed_publisher_reaches_no_subscriber_of_its_successor() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path();
    zombie_reaches_nobody([path, path], ["shm:p", "shm:p"], ["shm", "shm"], || {
        // Its name is its own as long as it exists, stopped or not, unless someone removes the entry.
        let taken = Node::builder().name("p").expect("a name").runtime_dir(path).open();
        assert!(taken.expect_err("it still has the name").to_string().contains("already runs"));
        std::fs::remove_file(path.join("p.node")).expect("its entry");
    });
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device"]
fn resumed_publisher_reaches_no_subscriber_of_its_successor_over_verbs() {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let dirs = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    let addresses = [7561, 7562].map(|port| format!("rdma://{host}:{port}"));
    let [old, new] = &addresses;
    zombie_reaches_nobody([dirs[0].path(), dirs[1].path()], [old, new], [old, new], || {});
}
