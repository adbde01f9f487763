//! The sessions and topics that a turn processes: never idle ones. Over shared memory, with real descriptors; the test runs the
//! turns.

use super::*;
use crate::clock::saturate;
use crate::fabric::PlaceLimits;
use crate::fabric::shm::ShmFabric;
use crate::fabric::shm::directory::RuntimeDirectory;
use crate::node::builder::assemble;
use crate::publisher::StatePublisher;
use crate::subscriber::StateSubscriber;

/// A node, and peers with sessions of one subscription each.
struct Resting {
    driver: Driver,
    node: Node,
    dir: tempfile::TempDir,
    publishers: Vec<StatePublisher<u64>>,
    subscribers: Vec<StateSubscriber<u64>>,
}

impl Resting {
    /// So many topics, each with so many subscribers, all idle.
    fn new(topics: usize, subscribers: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(dir.path()).unwrap();
        // All peers are this process.
        let places = PlaceLimits { total: 4096, per_peer: 4096 };
        let fabric = Arc::new(ShmFabric::new(directory, places));
        let name = Some("resting".parse().unwrap());
        let (shared, driver) =
            assemble((name, None), fabric, Arc::new(SystemClock), Arc::new(TracingSink::default())).unwrap();
        let node = Node::new(shared, None);
        let open = |index| node.state_publisher::<u64>(&format!("t{index}")).open().unwrap();
        let publishers = (0..topics).map(open).collect();
        let mut resting = Self { driver, node, dir, publishers, subscribers: Vec::new() };
        let opened = resting.driven(|dir| {
            let targets = (0..topics * subscribers).map(|index| format!("shm:resting/t{}", index % topics));
            let open = |target: String| peer(dir).state_subscriber(&target).timeout(TIMEOUT).open().unwrap();
            targets.map(open).collect()
        });
        resting.subscribers = opened;
        resting.settle();
        resting
    }

    /// Runs `act` while another thread runs turns.
    fn driven<R>(&mut self, act: impl FnOnce(&std::path::Path) -> R) -> R {
        let (stop, queue) = (AtomicBool::new(false), Arc::clone(&self.node.core().queue));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    self.driver.turn();
                    self.driver.wait();
                }
            });
            let done = act(self.dir.path());
            stop.store(true, Ordering::Release);
            queue.wake();
            done
        })
    }

    /// Runs turns until the node has been idle for longer than peers take to answer.
    fn settle(&mut self) {
        let (mut quiet_ns, mut seen) = (SystemClock.monotonic_ns(), self.driver.visited.len());
        while SystemClock.monotonic_ns() - quiet_ns < 300_000_000 {
            self.driver.turn();
            self.driver.wait();
            if std::mem::replace(&mut seen, self.driver.visited.len()) != seen {
                quiet_ns = SystemClock.monotonic_ns();
            }
        }
    }

    /// The sessions processed in this time, each as often as it was.
    fn visited(&mut self, duration: Duration) -> Vec<u64> {
        self.driver.visited.clear();
        let end_ns = SystemClock.monotonic_ns() + saturate(duration);
        while SystemClock.monotonic_ns() < end_ns {
            self.driver.turn();
            self.driver.wait();
        }
        std::mem::take(&mut self.driver.visited)
    }
}

/// A peer's node.
fn peer(dir: &std::path::Path) -> Node {
    Node::builder().runtime_dir(dir).open().unwrap()
}

#[test]
fn idle_sessions_and_topics_are_not_processed() {
    let mut resting = Resting::new(10, 4);
    assert_eq!(resting.driver.served.len(), 40);
    let looked_after = resting.driver.tending.looked_after;
    assert!(resting.visited(Duration::from_millis(500)).is_empty());
    assert_eq!(resting.driver.tending.looked_after, looked_after);
    // Nor does a publish, for pull subscribers.
    for publisher in &mut resting.publishers {
        publisher.publish(&7).unwrap();
    }
    assert!(resting.visited(Duration::from_millis(200)).is_empty());
    assert!(resting.subscribers.iter_mut().all(|it| it.try_receive().unwrap().unwrap().value == 7));
}

#[test]
fn end_of_a_topic_concerns_only_its_sessions() {
    let mut resting = Resting::new(5, 6);
    let topic = resting.node.core().topic(resting.publishers[2].topic()).unwrap();
    let sessions: BTreeSet<u64> = topic.attached().iter().map(|(session, _)| *session).collect();
    assert_eq!(sessions.len(), 6);
    drop(resting.publishers.remove(2));
    let visited = resting.visited(Duration::from_millis(300));
    assert_eq!(visited.into_iter().collect::<BTreeSet<_>>(), sessions);
    assert!(topic.attached().is_empty());
}

#[test]
fn request_of_one_peer_concerns_no_others() {
    let mut resting = Resting::new(3, 5);
    resting.driver.visited.clear();
    let known: BTreeSet<u64> = resting.driver.served.keys().copied().collect();
    let subscriber: StateSubscriber<u64> = resting.driven(|dir| {
        let node = peer(dir);
        let builder = node.state_subscriber("shm:resting/t1").push().notices();
        builder.timeout(TIMEOUT).open().unwrap()
    });
    resting.settle();
    drop(subscriber);
    resting.settle();
    let visited: BTreeSet<u64> = resting.driver.visited.iter().copied().collect();
    assert!(!visited.is_empty() && visited.is_disjoint(&known), "{visited:?} of {known:?}");
    assert_eq!(resting.driver.served.len(), 15);
}

#[test]
fn stopped_push_subscriber_keeps_other_topics_idle() {
    let mut resting = Resting::new(8, 3);
    let log = resting.node.log_publisher::<Raw>("log").capacity(1 << 14).payload_len_max(100);
    let mut log = log.open().unwrap();
    let _stopped = resting.driven(|dir| {
        let node = peer(dir);
        node.log_subscriber::<Raw>("shm:resting/log").push().timeout(TIMEOUT).open().unwrap()
    });
    (0..1000).for_each(|_| _ = log.publish(&[0; 100]).unwrap());
    resting.settle();
    let pushed = resting.driver.served.keys().next_back().copied();
    resting.driver.tending.looked_after = 0;
    resting.driver.visited.clear();
    for turns in 1..=20 {
        resting.driver.turn();
        resting.driver.wait();
        assert!(resting.driver.tending.looked_after <= turns, "more than the one log");
    }
    // Its node asks once a second whether this one runs.
    let visited = &resting.driver.visited;
    assert!(visited.iter().all(|key| Some(*key) == pushed) && visited.len() <= 4, "{visited:?}");
    assert!(resting.driver.tending.looked_after > 0);
}
