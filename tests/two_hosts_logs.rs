//! Logs between two hosts with RDMA devices: each of these tests is one host's part, and its counterpart runs on the other
//! host at the same time. `tools/test` runs them in two soft-RoCE machines, on wires that lose and reorder:
//!
//! ```text
//! tools/soft-roce run2 --loss-a 5 --loss-b 5 'two_hosts_logs --ignored --exact publisher' \
//!     'two_hosts_logs --ignored --exact subscribers'
//! ```
//!
//! FABRICAST_TEST_RECORDS sets how many records are published, FABRICAST_TEST_RATE how many of them a second,
//! FABRICAST_TEST_DELIVERY how they travel, and FABRICAST_TEST_NOTICES what happens to the notices on this wire: `heard`, or
//! `dropped`, with `--drop-datagrams-b`. Without it some may be lost.
//!
//! FABRICAST_TEST_CONNECT selects how queue pairs are connected: manager (the default), tcp or tcp-unreliable. Over unreliable
//! connections records are pushed, a lost WRITE loses its records, and received and lost records together are all that were
//! published. FABRICAST_TEST_LOSS=none says that nothing is lost on this wire; then no record may be:
//!
//! ```text
//! tools/soft-roce run2 --env FABRICAST_TEST_CONNECT=tcp-unreliable --env FABRICAST_TEST_LOSS=none \
//!     --env FABRICAST_TEST_RATE=2000 'two_hosts_logs --ignored --exact publisher' \
//!     'two_hosts_logs --ignored --exact subscribers'
//! ```

#![cfg(feature = "verbs")]

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use fabricast::{
    Delivery, ErrorChain, LogPublisher, LogSubscriber, Node, NodeBuilder, NoticeCounts, NoticePath, Raw,
    RdmaConnect, ReceiveError, Sequence, SubscriberError,
};

use self::support::pattern::{Pattern, is_whole};
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const NODE: &str = "feed";
const TOPIC: &str = "records";
const PORT: u16 = 7471;
/// A topic of the other host: how many subscribers have all records.
const COMPLETE: &str = "complete";
/// Longest payload, bytes.
const SIZE: usize = 64;
/// Bytes of the ring: as many records as are published while a slow network recovers from its losses.
const CAPACITY: usize = 32 << 20;
/// Records in a commit: as many as a datagram of the largest packet carries.
const BATCH: u64 = 40;
/// Subscribers, of which the last one joins late.
const SUBSCRIBERS: usize = 4;
/// Subscribers that have been absent for this long do not return.
const ABSENT: Duration = Duration::from_secs(8);
/// How long a node stays after it has reported the end of its topic, over TCP, on a bad wire.
const ENDING: Duration = Duration::from_secs(3);
/// The timeout of one receive.
const WAIT: Duration = Duration::from_secs(1);
/// The timeout of one attempt to subscribe.
const ATTEMPT: Duration = Duration::from_secs(3);

/// A number from the environment.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn records() -> u64 {
    number("FABRICAST_TEST_RECORDS", 20_000)
}

/// What happens to notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    /// They arrive.
    Heard,
    /// None arrives.
    Dropped,
    /// Some may arrive.
    Unknown,
}

fn wire() -> Wire {
    match std::env::var("FABRICAST_TEST_NOTICES").as_deref() {
        Ok("heard") => Wire::Heard,
        Ok("dropped") => Wire::Dropped,
        Ok(other) => panic!("unknown value: {other}"),
        Err(_) => Wire::Unknown,
    }
}

/// How queue pairs are connected.
fn connect() -> RdmaConnect {
    match std::env::var("FABRICAST_TEST_CONNECT").as_deref() {
        Ok("tcp") => RdmaConnect::Tcp,
        Ok("tcp-unreliable") => RdmaConnect::TcpUnreliable,
        Ok("manager") | Err(_) => RdmaConnect::Manager,
        Ok(other) => panic!("unknown value: {other}"),
    }
}

/// Whether a WRITE may be lost, and with it its records.
fn is_unreliable() -> bool {
    connect() == RdmaConnect::TcpUnreliable
}

/// Whether something may be lost on this wire.
fn may_lose() -> bool {
    match std::env::var("FABRICAST_TEST_LOSS").as_deref() {
        Ok("none") => false,
        Ok(other) => panic!("unknown value: {other}"),
        Err(_) => true,
    }
}

/// How records travel: an unreliable queue pair only pushes.
fn delivery() -> Delivery {
    match std::env::var("FABRICAST_TEST_DELIVERY").as_deref() {
        Ok("push") => Delivery::Push,
        Err(_) if is_unreliable() => Delivery::Push,
        Ok("pull") | Err(_) => Delivery::Pull,
        Ok(other) => panic!("unknown value: {other}"),
    }
}

/// The address of this host, or of the other one.
fn host(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 tells the addresses");
    format!("rdma://{host}:{PORT}")
}

fn builder() -> NodeBuilder {
    Node::builder().runtime_dir("/tmp/fabricast-two-hosts").rdma_connect(connect())
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Host A: publishes at a steady rate, and prints what that cost.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher() {
    let builder = builder().name(NODE).expect("a name");
    let node = builder.rdma(&host("SELF")).expect("an address").insecure().open().expect("a node");
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
    if is_unreliable() {
        // If the last notices are lost, subscribers learn of the last records with the end of the topic.
        wait_until("all subscribers", || readers(&publisher) == SUBSCRIBERS as u64);
        if !may_lose() {
            wait_until_complete(&node);
        }
        drop(publisher);
        let ended = now();
        return wait_until("late subscribers to learn of the end", || ended.elapsed() > ENDING);
    }
    // A subscriber that loses its connection on a bad wire reconnects. The topic stays until none has for a while.
    let mut seen = now();
    while seen.elapsed() < ABSENT {
        if readers(&publisher) > 0 {
            seen = now();
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Waits until the other host reports all records received: the end of the topic, over TCP, might overtake the last ones.
fn wait_until_complete(node: &Node) {
    let target = format!("{}/{COMPLETE}", host("PEER"));
    let mut subscriber = None;
    wait_until("all records at all subscribers", || {
        let builder = node.state_subscriber::<u64>(&target).push().timeout(ATTEMPT);
        let subscriber =
            subscriber.get_or_insert_with(|| builder.open().expect("it is published from the beginning"));
        let complete = subscriber.receive_timeout(WAIT).expect("the other host is there");
        complete.is_some_and(|complete| complete.value == SUBSCRIBERS as u64)
    });
}

/// A subscription, of its own node, that continues after its last record when its connection is lost.
struct Follower {
    node: Node,
    subscriber: Option<LogSubscriber<Raw>>,
    next: u64,
    received: u64,
    lost: Lost,
    gone: u64,
    has_ended: bool,
    records: u64,
}

/// Records reported lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    lapped: u64,
    damaged: u64,
    cut_off: u64,
}

impl Lost {
    fn all(self) -> u64 {
        self.lapped + self.damaged + self.cut_off
    }
}

impl Follower {
    fn new() -> Self {
        let node = builder().open().expect("a node");
        let lost = Lost::default();
        Self {
            node,
            subscriber: None,
            next: 1,
            received: 0,
            lost,
            gone: 0,
            has_ended: false,
            records: records(),
        }
    }

    fn open(&mut self) {
        let target = format!("{}/{TOPIC}", host("PEER"));
        let builder = self.node.log_subscriber(&target).at(Sequence::new(self.next));
        match builder.delivery(delivery()).timeout(ATTEMPT).notices().open() {
            Ok(subscriber) => self.subscriber = Some(subscriber),
            // The other host is not ready, or the wire is bad: try again.
            Err(error) if is_passing(&error) => std::thread::park_timeout(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits for records, and takes them: each once, in order, whole.
    fn look(&mut self) {
        let Some(subscriber) = &mut self.subscriber else { return self.open() };
        let received = match subscriber.receive_timeout(WAIT) {
            Ok(record) => Ok(record
                .map(|record| (record.meta.sequence, is_as_published(&record.value, record.meta.sequence)))),
            Err(error) => Err(error),
        };
        match received {
            Ok(None) => {}
            Ok(Some((sequence, is_whole))) => {
                assert_eq!(sequence.get(), self.next, "neither twice nor a hole");
                assert!(is_whole, "record {sequence} is not what was published");
                (self.next, self.received) = (self.next + 1, self.received + 1);
            }
            Err(ReceiveError::Lapped { first_lost, count }) => {
                self.lost.lapped += self.pass(first_lost, count);
            }
            Err(ReceiveError::DamagedRecords { first_lost, count }) if is_unreliable() => {
                self.lost.damaged += self.pass(first_lost, count);
            }
            Err(ReceiveError::CutOff { first_lost, count }) if is_unreliable() => {
                self.lost.cut_off += self.pass(first_lost, count);
            }
            Err(ReceiveError::Ended { published }) if is_unreliable() => {
                assert_eq!(published.get(), self.records);
                self.has_ended = true;
            }
            Err(ReceiveError::Gone { .. }) => {
                self.gone += 1;
                self.tell();
                self.subscriber = None;
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Continues after records that were reported lost.
    fn pass(&mut self, first_lost: Sequence, count: u64) -> u64 {
        assert_eq!(first_lost.get(), self.next, "neither twice nor a hole");
        self.next += count;
        count
    }

    /// Whether it has all it will get. Over unreliable connections the last records may be lost, which the end reports.
    fn has_all(&self) -> bool {
        if is_unreliable() { self.has_ended } else { self.next > self.records }
    }

    /// Takes all records, and reports when a third of them have arrived, and when all have.
    fn follow(&mut self, third: &Sender<()>, all: &Sender<()>) {
        let (mut seen, mut progress) = (now(), 0);
        while !self.has_all() {
            self.look();
            if progress <= self.records / 3 && self.next > self.records / 3 {
                let _ = third.send(());
            }
            if progress <= self.records && self.next > self.records {
                let _ = all.send(());
            }
            if self.next > progress {
                (progress, seen) = (self.next, now());
            }
            if seen.elapsed() > PATIENCE {
                self.tell();
                panic!("no more records arrive");
            }
        }
        self.tell();
        assert_eq!((self.next, self.received + self.lost.all()), (self.records + 1, self.records));
        assert!(self.received > 0);
        if !is_unreliable() || !may_lose() {
            assert_eq!(self.lost, Lost::default());
        }
        assert!(may_lose() || self.gone == 0, "{} times gone", self.gone);
    }

    /// Whether it is notified by the method that this wire permits.
    fn check_notices(&mut self) {
        let Some(subscriber) = &mut self.subscriber else { panic!("it has received something") };
        if delivery() == Delivery::Push {
            let path = subscriber.notice_path();
            // The answer that there are none may be lost until it is too late.
            let is_unanswered = may_lose() && path == NoticePath::Unavailable;
            // Where writes may be lost, they wake nobody.
            let expected = if is_unreliable() { NoticePath::None } else { NoticePath::Immediate };
            return assert!(path == expected || is_unanswered, "{path:?}");
        }
        match wire() {
            Wire::Unknown => {}
            Wire::Heard => {
                wait_until("notices that are sent to all", || {
                    subscriber.try_receive().expect("the topic is there");
                    subscriber.notice_path() == NoticePath::Multicast
                });
                let counts = subscriber.notice_counts();
                assert!(counts.entries > 0 && counts.inline_taken > 0, "{counts:?}");
            }
            Wire::Dropped => {
                assert_eq!(subscriber.notice_path(), NoticePath::Timer);
                assert_eq!(subscriber.notice_counts(), NoticeCounts::default());
            }
        }
    }

    fn tell(&self) {
        let Some(subscriber) = &self.subscriber else {
            return println!(
                "{} received, {:?}, {} times gone, not subscribed",
                self.received, self.lost, self.gone
            );
        };
        println!(
            "{} received, {:?}, {} times gone, told by {}, {:?}",
            self.received,
            self.lost,
            self.gone,
            subscriber.notice_path(),
            subscriber.notice_counts()
        );
    }
}

fn is_as_published(bytes: &[u8], sequence: Sequence) -> bool {
    is_whole(bytes, sequence.get(), SIZE)
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

/// A request for pull over an unreliable connection is refused.
fn check_that_pull_is_refused() {
    let node = builder().open().expect("a node");
    let target = format!("{}/{TOPIC}", host("PEER"));
    wait_until("a refusal", || {
        let opened = node.log_subscriber::<Raw>(&target).delivery(Delivery::Pull).timeout(ATTEMPT).open();
        let error = opened.expect_err("there are no READs");
        let is_refused = ErrorChain(&error).to_string().contains("push only");
        assert!(is_refused || is_passing(&error), "{error}");
        is_refused
    });
}

/// Host B: every subscriber gets every record once and in order, including the late one. Over an unreliable connection
/// each record is received or reported lost.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers() {
    if is_unreliable() {
        check_that_pull_is_refused();
    }
    let builder = builder().name("complete").expect("a name");
    let node = builder.rdma(&host("SELF")).expect("an address").insecure().open().expect("a node");
    let mut complete = node.state_publisher::<u64>(COMPLETE).open().expect("a topic");
    let ((third, thirds), (all, alls)) = (channel(), channel());
    std::thread::scope(|scope| {
        let follow = || {
            let (third, all) = (third.clone(), all.clone());
            scope.spawn(move || {
                let mut follower = Follower::new();
                follower.follow(&third, &all);
                follower.check_notices();
            })
        };
        let early: Vec<_> = (1..SUBSCRIBERS).map(|_| follow()).collect();
        (1..SUBSCRIBERS).for_each(|_| thirds.recv_timeout(PATIENCE * 4).expect("a third of the records"));
        let late = follow();
        if is_unreliable() && !may_lose() {
            (0..SUBSCRIBERS).for_each(|_| alls.recv_timeout(PATIENCE * 4).expect("all records"));
            complete.publish(&(SUBSCRIBERS as u64)).expect("it fits");
        }
        for follower in early.into_iter().chain([late]) {
            follower.join().expect("every record");
        }
    });
}
