//! Sets of subscribers over RDMA verbs, on one host with a device: run by `tools/test` in a soft-RoCE machine.
//!
//! ```text
//! tools/soft-roce run -- verbs_waiting --ignored --test-threads 1
//! ```

#![cfg(feature = "verbs")]

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast::{Address, AnySubscriber, Delivery, Node, NoticePath, Raw, WaitSet};

use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

/// How long nothing is published.
const IDLE: Duration = Duration::from_secs(3);
/// The most looks at a subscriber that waits, a second: its timer of 250 ms, beacons, and the reads that these cause.
const LOOKS_MAX: u64 = 40;
const ROUNDS: u64 = 20;

/// The address of this host's RDMA device: by default that of a machine of tools/soft-roce.
fn host() -> String {
    std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned())
}

/// Pushed topics of each kind, and the most looks at all their subscribers while nothing is published: none is expected.
const PUSHED: usize = 17;
const IDLE_LOOKS_MAX: u64 = 20;
/// The most sleeps of a thread in a receive that waits, a second: it checks for the end of its topic 20 times. A thread that polls sleeps
/// thousands of times.
const SLEEPS_MAX: u64 = 400;

/// Subscribers that a set waits for, and what they have received.
struct Waiting {
    set: WaitSet,
    subscribers: Vec<AnySubscriber>,
    received: BTreeMap<usize, u64>,
    /// How often a subscriber was ready.
    looks: u64,
}

impl Waiting {
    fn new(mut subscribers: Vec<AnySubscriber>) -> Self {
        let mut set = WaitSet::new().expect("descriptors");
        for (key, subscriber) in subscribers.iter_mut().enumerate() {
            set.add(subscriber, key);
        }
        Self { set, subscribers, received: BTreeMap::new(), looks: 0 }
    }

    /// Waits once, and receives what there is.
    fn wait(&mut self, timeout: Duration) {
        for key in self.set.wait(timeout).expect("it can wait").to_vec() {
            self.looks += 1;
            let subscriber = self.subscribers.get_mut(key).expect("a key that was given");
            while let Some(sample) = subscriber.try_receive_ref().expect("the topic is there") {
                let last = self.received.insert(key, sample.meta.sequence.get());
                assert!(last < Some(sample.meta.sequence.get()), "{key}: received twice");
            }
        }
    }
}

/// Neither a thread for each topic nor ten thousand looks a second.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn set_waits_for_subscribers_of_both_fabrics_without_polling() {
    let dir = tempfile::tempdir().expect("a directory");
    let builder = Node::builder().name("publishing").expect("a name").runtime_dir(dir.path());
    let address = format!("rdma://{}:0", host());
    let publishing = builder.rdma(&address).expect("an address").insecure().open().expect("a node");
    let mut state = publishing.state_publisher::<u64>("state").open().expect("a topic");
    let mut log = publishing.log_publisher::<u64>("log").open().expect("a topic");
    let mut table = publishing.table_publisher::<u64, u64>("table").open().expect("a topic");

    let rdma = |address: &&Address| !address.is_local();
    let far = publishing.addresses().iter().find(rdma).expect("it listens").to_string();
    let subscribing = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let open = |from: &str, topic: &str, delivery| {
        let target = format!("{from}/{topic}");
        let builder = subscribing.any_subscriber::<Raw>(target.as_str()).delivery(delivery).timeout(PATIENCE);
        builder.open().expect("a subscription")
    };
    let pulls = |from: &'static str| ["state", "log", "table"].map(|topic| (from.to_owned(), topic));
    let all = pulls("shm:publishing")
        .into_iter()
        .chain(["state", "log", "table"].map(|topic| (far.clone(), topic)));
    let mut waiting = Waiting::new(all.map(|(from, topic)| open(&from, topic, Delivery::Pull)).collect());

    // Until its notices arrive, a subscriber reads by a timer.
    wait_until("notices", || {
        waiting.wait(Duration::from_millis(10));
        let path = |it: &AnySubscriber| it.notice_path();
        waiting
            .subscribers
            .iter()
            .all(|it| matches!(path(it), NoticePath::WakeWord | NoticePath::Multicast | NoticePath::Unicast))
    });
    waiting.looks = 0;
    let began = now();
    while began.elapsed() < IDLE {
        waiting.wait(Duration::from_millis(100));
    }
    let allowed = LOOKS_MAX * waiting.subscribers.len() as u64 * IDLE.as_secs();
    assert!(waiting.looks <= allowed, "{} looks at idle subscribers, {allowed} allowed", waiting.looks);

    for round in 1..=ROUNDS {
        state.publish(&round).expect("it fits");
        log.publish(&round).expect("it fits");
        table.put(&1, &round).expect("it fits");
        wait_until("each value", || {
            waiting.wait(PATIENCE);
            waiting.received.len() == 6 && waiting.received.values().all(|last| *last == round)
        });
    }

    let pushed = ["state", "log", "table"].map(|topic| open(&far, topic, Delivery::Push));
    let mut waiting = Waiting::new(pushed.into());
    for round in ROUNDS + 1..=2 * ROUNDS {
        state.publish(&round).expect("it fits");
        log.publish(&round).expect("it fits");
        table.put(&1, &round).expect("it fits");
        wait_until("each value", || {
            waiting.wait(PATIENCE);
            waiting.received.len() == 3 && waiting.received.values().all(|last| *last == round)
        });
    }
}

/// A node that publishes over RDMA, another one, and the address of the first one.
fn nodes(dir: &tempfile::TempDir) -> (Node, Node, String) {
    let builder = Node::builder().name("publishing").expect("a name").runtime_dir(dir.path());
    let address = format!("rdma://{}:0", host());
    let publishing = builder.rdma(&address).expect("an address").insecure().open().expect("a node");
    let rdma = |address: &&Address| !address.is_local();
    let far = publishing.addresses().iter().find(rdma).expect("it listens").to_string();
    (publishing, Node::builder().runtime_dir(dir.path()).open().expect("a node"), far)
}

/// The publisher's writes wake the set, and nothing else does.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn idle_set_over_pushed_subscribers_looks_at_none_and_is_woken_for_each_value() {
    let dir = tempfile::tempdir().expect("a directory");
    let (publishing, subscribing, far) = nodes(&dir);
    let open_state = |at| publishing.state_publisher::<u64>(&format!("state{at}")).open().expect("a topic");
    let open_log = |at| publishing.log_publisher::<u64>(&format!("log{at}")).open().expect("a topic");
    let open_table =
        |at| publishing.table_publisher::<u64, u64>(&format!("table{at}")).open().expect("a topic");
    let mut states: Vec<_> = (0..PUSHED).map(open_state).collect();
    let mut logs: Vec<_> = (0..PUSHED).map(open_log).collect();
    let mut tables: Vec<_> = (0..PUSHED).map(open_table).collect();
    let topics = (0..PUSHED).flat_map(|at| ["state", "log", "table"].map(|kind| format!("{kind}{at}")));
    let open = |topic: String| {
        let target = format!("{far}/{topic}");
        let builder = subscribing.any_subscriber::<Raw>(target.as_str()).delivery(Delivery::Push);
        builder.timeout(PATIENCE).open().expect("a subscription")
    };
    let mut waiting = Waiting::new(topics.map(open).collect());
    // What has arrived is checked once more a second later.
    wait_until("rest", || {
        let before = waiting.looks;
        waiting.wait(IDLE);
        waiting.looks == before
    });
    assert!(waiting.subscribers.iter().all(|it| it.notice_path() == NoticePath::Immediate));

    waiting.looks = 0;
    let began = now();
    while began.elapsed() < IDLE {
        waiting.wait(IDLE);
    }
    assert!(waiting.looks <= IDLE_LOOKS_MAX, "{} looks at idle subscribers", waiting.looks);
    println!("{} looks at {} idle subscribers in {:?}", waiting.looks, 3 * PUSHED, began.elapsed());

    for round in 1..=3 {
        for at in 0..PUSHED {
            states.get_mut(at).expect("a state").publish(&round).expect("it fits");
            logs.get_mut(at).expect("a log").publish(&round).expect("it fits");
            tables.get_mut(at).expect("a table").put(&1, &round).expect("it fits");
            let keys = 3 * at..3 * at + 3;
            wait_until("each value", || {
                waiting.wait(PATIENCE);
                keys.clone().all(|key| waiting.received.get(&key) == Some(&round))
            });
        }
    }
    // All at once: more than the connection has credits for.
    for round in 4..=6 {
        for at in 0..PUSHED {
            states.get_mut(at).expect("a state").publish(&round).expect("it fits");
            logs.get_mut(at).expect("a log").publish(&round).expect("it fits");
            tables.get_mut(at).expect("a table").put(&1, &round).expect("it fits");
        }
        wait_until("all values", || {
            waiting.wait(PATIENCE);
            waiting.received.len() == 3 * PUSHED && waiting.received.values().all(|last| *last == round)
        });
    }
}

/// How often the calling thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("this thread runs");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.expect("the kernel counts them").trim().parse().expect("a number")
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn receive_that_waits_for_pushed_values_sleeps() {
    let dir = tempfile::tempdir().expect("a directory");
    let (publishing, subscribing, far) = nodes(&dir);
    let mut publisher = publishing.log_publisher::<u64>("log").open().expect("a topic");
    let target = format!("{far}/log");
    let builder = subscribing.log_subscriber::<u64>(target.as_str()).push().timeout(PATIENCE);
    let mut subscriber = builder.open().expect("a subscription");
    wait_until("the publisher's answer", || {
        let received = subscriber.receive_timeout(Duration::from_millis(10)).expect("the topic is there");
        received.is_none() && subscriber.notice_path() == NoticePath::Immediate
    });
    let (began, before) = (now(), sleeps());
    assert!(subscriber.receive_timeout(IDLE).expect("the topic is there").is_none());
    let (slept, elapsed) = (sleeps() - before, began.elapsed());
    println!("{slept} sleeps in {elapsed:?}");
    assert!(slept <= SLEEPS_MAX * elapsed.as_secs().max(1), "{slept} sleeps in {elapsed:?}");

    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            (1..=ROUNDS).all(|round| {
                let received = subscriber.receive_timeout(PATIENCE).expect("the topic is there");
                received.map(|sample| sample.value) == Some(round)
            })
        });
        for round in 1..=ROUNDS {
            publisher.publish(&round).expect("it fits");
            std::thread::park_timeout(Duration::from_millis(20));
        }
        assert!(receiving.join().expect("it receives"), "each value, in order");
    });
}

/// A receive that waits takes a wake-up for which a set waits, too: the set still knows that there may be more.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn set_misses_nothing_when_its_member_also_waits_by_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let (publishing, subscribing, far) = nodes(&dir);
    let mut publisher = publishing.log_publisher::<u64>("log").open().expect("a topic");
    let target = format!("{far}/log");
    let builder = subscribing.log_subscriber::<u64>(target.as_str()).push().timeout(PATIENCE);
    let mut subscriber = builder.open().expect("a subscription");
    let mut set = WaitSet::new().expect("descriptors");
    set.add(&mut subscriber, 7);
    wait_until("the publisher's answer", || {
        set.wait(Duration::from_millis(10)).expect("it can wait");
        subscriber.try_receive().expect("the topic is there").is_none()
            && subscriber.notice_path() == NoticePath::Immediate
    });
    for round in 0..ROUNDS {
        // Until it rests in the set.
        wait_until("it to rest", || {
            assert!(subscriber.try_receive().expect("the topic is there").is_none());
            set.wait(Duration::ZERO).expect("it can wait").is_empty()
        });
        let (first, second) = (2 * round, 2 * round + 1);
        std::thread::scope(|scope| {
            let publisher = &mut publisher;
            scope.spawn(move || {
                // Long enough that the receive sleeps.
                std::thread::park_timeout(Duration::from_millis(20));
                publisher.publish_batch(&[first, second]).expect("they fit");
            });
            let received = subscriber.receive_timeout(PATIENCE).expect("the topic is there");
            assert_eq!(received.map(|record| record.value), Some(first));
        });
        // Without a wake-up it would be found a second later, when the set also polls members that nothing has woken.
        assert_eq!(set.wait(Duration::from_millis(300)).expect("it can wait"), [7]);
        let received = subscriber.try_receive().expect("the topic is there");
        assert_eq!(received.map(|record| record.value), Some(second));
    }
}
