//! Logs between two hosts with RDMA devices: each of these tests is one host's part, and its other part runs on the other
//! host at the same time. `tools/test` runs them in two soft-RoCE machines, on wires that lose and reorder:
//!
//! ```text
//! tools/soft-roce run2 --loss-a 5 --loss-b 5 'two_hosts_logs --ignored --exact publisher' \
//!     'two_hosts_logs --ignored --exact subscribers'
//! ```
//!
//! FABRICAST_TEST_RECORDS says how many records are published, FABRICAST_TEST_RATE how many of them a second,
//! FABRICAST_TEST_DELIVERY how they travel, and FABRICAST_TEST_DEAF that all notices are dropped.

#![cfg(feature = "verbs")]

use std::time::Duration;

use fabricast::{
    Delivery, LogPublisher, LogSubscriber, Node, NodeBuilder, NoticePath, Raw, ReceiveError, Sequence,
    SubscriberError,
};

use self::support::pattern::{Pattern, is_whole};
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const NODE: &str = "feed";
const TOPIC: &str = "records";
const PORT: u16 = 7471;
/// Longest payload, bytes.
const SIZE: usize = 64;
/// Bytes of the ring: as many records as come in the time that a slow network takes to get over its losses.
const CAPACITY: usize = 32 << 20;
/// Records in a commit: as many as a datagram of the largest packet carries.
const BATCH: u64 = 40;
/// Subscribers, of which the last one joins late.
const SUBSCRIBERS: usize = 4;
/// Who has not been seen for so long does not come again.
const ABSENT: Duration = Duration::from_secs(8);
/// How long one attempt to subscribe may take.
const ATTEMPT: Duration = Duration::from_secs(3);

/// A number that somebody may say.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn records() -> u64 {
    number("FABRICAST_TEST_RECORDS", 20_000)
}

fn is_deaf() -> bool {
    std::env::var("FABRICAST_TEST_DEAF").is_ok()
}

fn delivery() -> Delivery {
    match std::env::var("FABRICAST_TEST_DELIVERY").as_deref() {
        Ok("push") => Delivery::Push,
        Ok("pull") | Err(_) => Delivery::Pull,
        Ok(other) => panic!("what is {other}?"),
    }
}

/// The address of this host, or of the other one.
fn host(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 tells the addresses");
    format!("rdma://{host}:{PORT}")
}

fn builder() -> NodeBuilder {
    Node::builder().runtime_dir("/tmp/fabricast-two-hosts")
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Host A: publishes at a steady rate, and says what that cost.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher() {
    let builder = builder().name(NODE).expect("a name");
    let node = builder.rdma(&host("SELF")).expect("an address").open().expect("a node");
    let mut publisher: LogPublisher<Raw> =
        node.log_publisher(TOPIC).capacity(CAPACITY).payload_len_max(SIZE).open().expect("a topic");
    let readers = |publisher: &LogPublisher<Raw>| publisher.pull_subscribers() + publisher.push_subscribers();
    wait_until("the first subscribers", || readers(&publisher) == SUBSCRIBERS as u64 - 1);
    let (records, rate) = (records(), number("FABRICAST_TEST_RATE", 4000));
    let interval = Duration::from_secs(BATCH) / u32::try_from(rate).expect("a rate");
    let mut pattern = Pattern::new(SIZE);
    let (began, time) = (now(), processor_time());
    let (mut due, mut sequence) = (Duration::ZERO, 0);
    while sequence < records {
        for _ in 0..BATCH.min(records - sequence) {
            sequence += 1;
            publisher.append(pattern.value(sequence)).expect("it fits");
        }
        publisher.commit();
        due += interval;
        while let Some(left) = due.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
    }
    let (took, used) = (began.elapsed(), processor_time() - time);
    let each = used.as_nanos() / u128::from(records);
    println!("published {records} records in {took:?}, {each} ns of processor time for each");
    // Whoever loses its connection on a bad wire comes again. The topic stays until nobody has for a while.
    let mut seen = now();
    while seen.elapsed() < ABSENT {
        if readers(&publisher) > 0 {
            seen = now();
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// A subscription that goes on behind its last record when its connection is lost.
struct Follower<'a> {
    node: &'a Node,
    subscriber: Option<LogSubscriber<Raw>>,
    next: u64,
    lost: u64,
    gone: u64,
    path: NoticePath,
    records: u64,
}

impl<'a> Follower<'a> {
    fn new(node: &'a Node) -> Self {
        Self { node, subscriber: None, next: 1, lost: 0, gone: 0, path: NoticePath::None, records: records() }
    }

    fn open(&mut self) {
        let target = format!("{}/{TOPIC}", host("PEER"));
        let builder = self.node.log_subscriber(&target).at(Sequence::new(self.next));
        let builder = builder.delivery(delivery()).timeout(ATTEMPT);
        let builder = if is_deaf() { builder } else { builder.notices() };
        match builder.open() {
            Ok(subscriber) => self.subscriber = Some(subscriber),
            // The other host is not as far, or the wire is bad: the next attempt.
            Err(error) if is_passing(&error) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes what has come: each record once, in order, whole. Whether there was any.
    fn look(&mut self) -> bool {
        if self.is_complete() {
            return false;
        }
        let Some(subscriber) = &mut self.subscriber else {
            self.open();
            return false;
        };
        for taken in 0..1000 {
            match subscriber.try_receive_ref() {
                Ok(None) => return taken > 0,
                Ok(Some(record)) => {
                    let sequence = record.sequence.get();
                    assert_eq!(sequence, self.next, "neither twice nor a hole");
                    assert!(
                        is_whole(record.bytes, sequence, SIZE),
                        "record {sequence} is not what was published"
                    );
                    self.next += 1;
                    if sequence % 1000 == 0 {
                        self.path = subscriber.notice_path();
                    }
                }
                Err(ReceiveError::Lapped { first_lost, count }) => {
                    assert_eq!(first_lost.get(), self.next);
                    (self.next, self.lost) = (self.next + count, self.lost + count);
                }
                Err(ReceiveError::Gone { .. }) => {
                    self.gone += 1;
                    self.tell();
                    self.subscriber = None;
                    return true;
                }
                Err(error) => panic!("{error}"),
            }
        }
        true
    }

    fn is_complete(&self) -> bool {
        self.next > self.records
    }

    fn tell(&self) {
        let Some(subscriber) = &self.subscriber else {
            return println!("{} records, {} times gone, not subscribed", self.next - 1, self.gone);
        };
        println!(
            "{} records, {} lost, {} times gone, told by {}, {:?}",
            self.next - 1,
            self.lost,
            self.gone,
            self.path,
            subscriber.notice_counts()
        );
    }
}

/// Whether another attempt may succeed.
fn is_passing(error: &SubscriberError) -> bool {
    matches!(
        error,
        SubscriberError::Unreachable { .. }
            | SubscriberError::Session { .. }
            | SubscriberError::Refused { .. }
            | SubscriberError::Unfit { .. }
            | SubscriberError::Fabric(_)
    )
}

/// Host B: every subscriber gets every record once and in order, the one that joins late, too.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers() {
    let node = builder().open().expect("a node");
    let records = records();
    let mut followers: Vec<_> = (1..SUBSCRIBERS).map(|_| Follower::new(&node)).collect();
    let (mut seen, mut progress) = (now(), 0);
    while followers.len() < SUBSCRIBERS || !followers.iter().all(Follower::is_complete) {
        let mut any = false;
        for follower in &mut followers {
            any |= follower.look();
        }
        if !any {
            std::thread::park_timeout(Duration::from_micros(200));
        }
        if followers.len() < SUBSCRIBERS && followers.iter().all(|it| it.next > records / 3) {
            followers.push(Follower::new(&node));
        }
        let now_at: u64 = followers.iter().map(|it| it.next).sum();
        if now_at > progress {
            (progress, seen) = (now_at, now());
        }
        if seen.elapsed() > PATIENCE {
            followers.iter().for_each(Follower::tell);
            panic!("nothing comes any more");
        }
    }
    followers.iter().for_each(Follower::tell);
    for follower in &followers {
        assert_eq!((follower.next, follower.lost), (records + 1, 0));
    }
}
