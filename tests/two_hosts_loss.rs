//! Two hosts with RDMA devices on a wire that loses packets, or busy ones: each of these tests is one host's part, and its
//! counterpart runs on the other host at the same time:
//!
//! ```text
//! tools/soft-roce run2 --loss-a 5 --loss-b 5 'two_hosts_loss --ignored --exact publisher_of_records' \
//!     'two_hosts_loss --ignored --exact subscribers_of_records'
//! ```
//!
//! FABRICAST_TEST_LONG=1 publishes 30,000 records in ten minutes, otherwise 1,500 in half a minute.
//! FABRICAST_TEST_CONNECT selects how queue pairs are connected: manager (the default) or tcp.

#![cfg(feature = "verbs")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabricast::{
    Delivery, ErrorChain, Event, EventSink, LogPublisher, LogSubscriber, Node, NodeBuilder, Persistent, Raw,
    RdmaConnect, ReceiveError, Sample, Sequence, StateSubscriber,
};

use self::support::files::raise_files;
use self::support::long::is_long;
use self::support::pattern::{Pattern, is_whole};
use self::support::time::{PATIENCE, now, wait_until, wait_within};

#[cfg(test)]
mod support;

const NODE: &str = "feed";
const RECORDS: &str = "records";
const STATE: &str = "state";
const PORT: u16 = 7471;
/// Longest payload, bytes: a record takes one packet, a batch after a loss several.
const SIZE: usize = 1000;
/// Records a second.
const RATE: u64 = 50;
const LONG: &str = "long";
/// Bytes of a long value, and how many there are.
const LONG_SIZE: usize = 16 << 20;
const LONG_VALUES: u32 = 2;
/// Subscribers that attach one after the other.
const SUBSCRIBERS: u64 = 60;

fn records() -> u64 {
    if is_long() { 30_000 } else { 1_500 }
}

/// How long all records take, and the machine beside them.
fn bound() -> Duration {
    Duration::from_secs(records() / RATE) + 2 * PATIENCE
}

/// The address of this host, or of the other one.
fn host(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 tells the addresses");
    format!("rdma://{host}:{PORT}")
}

/// The events of a node.
#[derive(Debug, Default)]
struct Events(Mutex<Vec<Event>>);

impl EventSink for Events {
    fn event(&self, event: &Event) {
        self.0.lock().expect("no test panics with it").push(event.clone());
    }
}

impl Events {
    fn count(&self, is_counted: impl Fn(&Event) -> bool) -> usize {
        self.0.lock().expect("no test panics with it").iter().filter(|event| is_counted(event)).count()
    }

    /// A session was lost, even if it was made again at once, or a peer taken for dead.
    fn losses(&self) -> usize {
        self.count(|event| {
            matches!(
                event,
                Event::Lost { .. } | Event::Reconnected { .. } | Event::SessionClosed { orderly: false, .. }
            )
        })
    }
}

fn builder(events: &Arc<Events>) -> NodeBuilder {
    let connect = match std::env::var("FABRICAST_TEST_CONNECT").as_deref() {
        Ok("tcp") => RdmaConnect::Tcp,
        Ok("manager") | Err(_) => RdmaConnect::Manager,
        Ok(other) => panic!("unknown value: {other}"),
    };
    let sink: Arc<dyn EventSink> = Arc::<Events>::clone(events);
    Node::builder().runtime_dir("/tmp/fabricast-two-hosts-loss").rdma_connect(connect).events(sink)
}

fn node(events: &Arc<Events>) -> Node {
    let builder = builder(events).name(NODE).expect("a name");
    builder.rdma(&host("SELF")).expect("an address").insecure().open().expect("a node")
}

/// Host A: publishes records at a steady rate, and declares nobody dead.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_of_records() {
    let events = Arc::new(Events::default());
    let node = node(&events);
    let mut publisher: LogPublisher<Raw> =
        node.log_publisher(RECORDS).capacity(64 << 20).payload_len_max(SIZE).open().expect("a topic");
    let subscribers =
        |publisher: &LogPublisher<Raw>| publisher.pull_subscribers() + publisher.push_subscribers();
    wait_until("all subscribers", || subscribers(&publisher) == 4);
    let (mut pattern, began) = (Pattern::new(SIZE), now());
    for sequence in 1..=records() {
        publisher.publish(pattern.value(sequence)).expect("it fits");
        let due = Duration::from_secs(1) * u32::try_from(sequence).expect("few")
            / u32::try_from(RATE).expect("few");
        while let Some(left) = due.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        assert_eq!(events.losses(), 0, "{events:?}");
    }
    println!("published {} records in {:?}", records(), began.elapsed());
    wait_within(bound(), "the subscribers to leave", || subscribers(&publisher) == 0);
    assert_eq!(events.losses(), 0, "{events:?}");
}

/// A subscriber that ends with its session, or one that would seek its publisher again.
enum Follower {
    Plain(LogSubscriber<Raw>),
    Persistent(Persistent<LogSubscriber<Raw>>),
}

impl Follower {
    fn receive(&mut self) -> Result<Option<Sample<Vec<u8>>>, ReceiveError> {
        match self {
            Self::Plain(subscriber) => subscriber.try_receive(),
            Self::Persistent(subscriber) => subscriber.try_receive(),
        }
    }
}

/// A subscription of its own node, and how far it has come.
struct Watch {
    follower: Follower,
    name: String,
    events: Arc<Events>,
    last: u64,
    received: u64,
    _node: Node,
}

impl Watch {
    fn new(delivery: Delivery, is_persistent: bool) -> Self {
        let events = Arc::new(Events::default());
        let node = builder(&events).open().expect("a node");
        let target = format!("{}/{RECORDS}", host("PEER"));
        let began = now();
        let follower = loop {
            let builder = node.log_subscriber::<Raw>(&target).at(Sequence::new(1)).delivery(delivery);
            let opened = if is_persistent {
                // It would be sought, and not fail.
                let opened = builder.open().map(drop);
                let builder = node.log_subscriber::<Raw>(&target).at(Sequence::new(1)).delivery(delivery);
                opened.and_then(|()| builder.persistent().open()).map(Follower::Persistent)
            } else {
                builder.open().map(Follower::Plain)
            };
            match opened {
                Ok(follower) => break follower,
                Err(error) => assert!(began.elapsed() < PATIENCE, "{}", ErrorChain(&error)),
            }
        };
        let name = format!("{delivery}{}", if is_persistent { ", persistent" } else { "" });
        Self { follower, name, events, last: 0, received: 0, _node: node }
    }

    fn look(&mut self) {
        match self.follower.receive() {
            Ok(Some(record)) => {
                assert_eq!(
                    record.meta.sequence.get(),
                    self.last + 1,
                    "{}: neither twice nor a hole",
                    self.name
                );
                assert!(
                    is_whole(&record.value, self.last + 1, SIZE),
                    "{}: not what was published",
                    self.name
                );
                (self.last, self.received) = (self.last + 1, self.received + 1);
            }
            Ok(None) => {}
            Err(error) => panic!("{} after {}: {}", self.name, self.last, ErrorChain(&error)),
        }
        assert_eq!(self.events.losses(), 0, "{}: {:?}", self.name, self.events);
    }
}

/// Retransmissions that the device made because of the wire.
fn mended() -> u64 {
    let count = |name: &str| {
        let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0_u64)
    };
    ["out_of_seq_request", "duplicate_request", "rcvd_seq_err"].into_iter().map(count).sum()
}

/// Host B: receives every record once by each subscription, and loses no session.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_of_records() {
    let of = |delivery| [false, true].map(|is_persistent| Watch::new(delivery, is_persistent));
    let mut watches: Vec<Watch> = [Delivery::Pull, Delivery::Push].into_iter().flat_map(of).collect();
    let began = now();
    wait_within(bound(), "all records", || {
        watches.iter_mut().for_each(Watch::look);
        watches.iter().all(|watch| watch.last == records())
    });
    println!("after {:?} the device has mended {}", began.elapsed(), mended());
    for Watch { name, received, events, .. } in &watches {
        println!("{name}: {received} received, {} lost sessions", events.losses());
        assert_eq!(*received, records());
    }
    assert!(mended() > 0, "the wire is not a bad one");
}

/// Host A: each subscriber of host B attaches once.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_for_many() {
    // One host may have half of the places, which the files allow.
    raise_files();
    let events = Arc::new(Events::default());
    let node = node(&events);
    let mut publisher = node.state_publisher::<u64>(STATE).open().expect("a topic");
    publisher.publish(&7).expect("it fits");
    wait_within(4 * PATIENCE, "all subscribers", || publisher.pull_subscribers() == SUBSCRIBERS);
    let opened = events.count(|event| matches!(event, Event::SessionOpened { .. }));
    let rejected = events.count(|event| matches!(event, Event::PeerRejected { .. }));
    println!("{opened} sessions were opened, {rejected} rejected");
    assert_eq!(opened as u64, SUBSCRIBERS, "one for each: {events:?}");
    assert_eq!((rejected, events.losses()), (0, 0), "{events:?}");
    wait_within(4 * PATIENCE, "the subscribers to leave", || publisher.pull_subscribers() == 0);
}

/// Host B: subscribers attach one after the other, each at its first attempt.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn many_subscribers() {
    let (mut all, mut slowest) = (Vec::new(), Duration::ZERO);
    while (all.len() as u64) < SUBSCRIBERS {
        let node = builder(&Arc::default()).open().expect("a node");
        let target = format!("{}/{STATE}", host("PEER"));
        let began = now();
        let opened = node.state_subscriber::<u64>(&target).open();
        let subscriber: StateSubscriber<u64> = match opened {
            Ok(subscriber) => subscriber,
            // The other host may not be ready for the first one.
            Err(_) if all.is_empty() => continue,
            Err(error) => panic!("subscriber {}: {}", all.len() + 1, ErrorChain(&error)),
        };
        slowest = slowest.max(began.elapsed());
        all.push((subscriber, node));
    }
    println!("{} subscribers attached, the slowest in {slowest:?}", all.len());
    for (subscriber, _) in &mut all {
        wait_until("the value", || subscriber.try_receive().expect("a receive").is_some());
    }
}

/// Host A: publishes values of which the adapter sends a thousand packets for each read.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_of_long_values() {
    let events = Arc::new(Events::default());
    let node = node(&events);
    let mut publisher = node
        .state_publisher::<Raw>(LONG)
        .payload_len_max(LONG_SIZE)
        .slots(LONG_VALUES)
        .open()
        .expect("a topic");
    let mut pattern = Pattern::new(LONG_SIZE);
    for sequence in 1..=u64::from(LONG_VALUES) {
        publisher.publish(pattern.value(sequence)).expect("it fits");
    }
    wait_within(4 * PATIENCE, "the subscriber", || publisher.pull_subscribers() == 1);
    wait_within(8 * PATIENCE, "the subscriber to leave", || publisher.pull_subscribers() == 0);
    assert_eq!(events.losses(), 0, "{events:?}");
}

/// Host B: one read takes longer than a host may be silent, and the session lasts.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscriber_of_long_values() {
    let events = Arc::new(Events::default());
    let node = builder(&events).open().expect("a node");
    let target = format!("{}/{LONG}", host("PEER"));
    let (opening, mut subscriber) = (now(), None);
    wait_within(PATIENCE, "the publisher", || {
        subscriber = node.state_subscriber::<Raw>(&target).delivery(Delivery::Pull).open().ok();
        subscriber.is_some()
    });
    println!("attached after {:?}", opening.elapsed());
    let mut subscriber: StateSubscriber<Raw> = subscriber.expect("attached");
    let began = now();
    wait_within(8 * PATIENCE, "the value", || match subscriber.try_receive() {
        Ok(Some(value)) => {
            let sequence = value.meta.sequence.get();
            assert!(is_whole(&value.value, sequence, LONG_SIZE), "not what was published");
            println!("value {sequence} of {LONG_SIZE} bytes took {:?}", began.elapsed());
            true
        }
        Ok(None) => false,
        Err(error) => panic!("{}", ErrorChain(&error)),
    });
    assert_eq!(events.losses(), 0, "{events:?}");
}
