//! Two hosts with RDMA devices: each of these tests is one host's part, and its other part runs on the other host at the
//! same time. `tools/test` runs the pairs in two soft-RoCE machines, on wires that lose and reorder, and with machines
//! that freeze and die:
//!
//! ```text
//! tools/soft-roce run2 --loss-a 1 'two_hosts --ignored --exact publisher' 'two_hosts --ignored --exact subscribers'
//! ```

#![cfg(feature = "verbs")]

use std::time::Duration;

use fabricast::{
    Delivery, Node, Raw, ReceiveError, StatePublisher, StateSubscriber, SubscriberError, SubscriberStats,
};

use self::support::pattern::{Pattern, is_whole};
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const NODE: &str = "feed";
const TOPIC: &str = "ticks";
/// The topic whose subscriber leaves when everything is over.
const OVER: &str = "over";
const PORT: u16 = 7471;
/// Payloads: one packet, several, and many.
const SIZES: [usize; 3] = [64, 4096, 65_536];
const DELIVERIES: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
/// Values published to each topic, unless FABRICAST_TEST_VALUES says otherwise.
const VALUES: u64 = 600;
/// How long values are watched on a bad wire, if the connection lasts as long.
const BAD_WIRE_WATCHED: Duration = Duration::from_secs(10);
/// A host that is dead or stands still is noticed within this time: six tries of 67 ms each, the time that the
/// subscriber's last look took, and that of an emulated machine to get to it.
const NOTICED: Duration = Duration::from_secs(5);

type Publishers = [(usize, StatePublisher<Raw>)];

fn values() -> u64 {
    std::env::var("FABRICAST_TEST_VALUES").ok().and_then(|text| text.parse().ok()).unwrap_or(VALUES)
}

/// The address of this host, or of the other one.
fn host(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 tells the addresses");
    format!("rdma://{host}:{PORT}")
}

fn node(name: &str) -> Node {
    let builder = Node::builder().name(name).expect("a name").runtime_dir("/tmp/fabricast-two-hosts");
    builder.rdma(&host("SELF")).expect("an address").open().expect("a node")
}

fn topics(node: &Node) -> Vec<(usize, StatePublisher<Raw>)> {
    let open = |size: usize| {
        let builder = node.state_publisher::<Raw>(&format!("{TOPIC}-{size}")).payload_len_max(size);
        (size, builder.open().expect("a topic"))
    };
    SIZES.map(open).into()
}

fn publish(size: usize, publisher: &mut StatePublisher<Raw>) {
    let mut pattern = Pattern::new(size);
    publisher.publish(pattern.value(publisher.newest().get() + 1)).expect("it fits");
}

/// Publishes to all topics, about a thousand values a second, until it is told to stop.
fn publish_until(publishers: &mut Publishers, mut stop: impl FnMut(&Publishers) -> bool) {
    while !stop(publishers) {
        publishers.iter_mut().for_each(|(size, publisher)| publish(*size, publisher));
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn subscribers_of<T: fabricast::Payload>(publisher: &StatePublisher<T>) -> u64 {
    publisher.pull_subscribers() + publisher.push_subscribers()
}

/// A subscription that checks what it receives by the values themselves.
struct Watch {
    size: usize,
    subscriber: StateSubscriber<Raw>,
    first: u64,
    last: u64,
    /// Values that were told to be wrong: the end of their session cut them off, or a bad wire took longer than a second.
    broken: u64,
    end: Option<ReceiveError>,
}

impl Watch {
    fn new(node: &Node, size: usize, delivery: Delivery) -> Self {
        let target = format!("{}/{TOPIC}-{size}", host("PEER"));
        let builder = || node.state_subscriber::<Raw>(&target).delivery(delivery).timeout(PATIENCE);
        let subscriber = subscribe(|| builder().open());
        Self { size, subscriber, first: 0, last: 0, broken: 0, end: None }
    }

    /// Takes what has come. Nothing that is not exactly what was published, nothing twice, nothing backwards.
    fn look(&mut self) {
        if self.end.is_some() {
            return;
        }
        match self.subscriber.try_receive_ref() {
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Ok(Some(sample)) => {
                let sequence = sample.sequence.get();
                assert!(is_whole(sample.bytes, sequence, self.size), "a torn value of {} bytes", self.size);
                assert!(sequence > self.last, "{sequence} came after {}", self.last);
                self.first = if self.first == 0 { sequence } else { self.first };
                self.last = sequence;
            }
            Err(
                ReceiveError::BrokenStamps { sequence }
                | ReceiveError::Damaged { sequence, .. }
                | ReceiveError::ForeignEpoch { sequence, .. }
                | ReceiveError::ImpossibleLen { sequence, .. },
            ) => {
                self.first = if self.first == 0 { sequence.get() } else { self.first };
                self.last = sequence.get();
                self.broken += 1;
            }
            Err(error) => self.end = Some(error),
        }
    }

    /// Every value up to the last one was received, or counted as replaced by a newer one.
    fn check(&self) -> SubscriberStats {
        let stats = self.subscriber.stats();
        let known = self.first.saturating_sub(1) + stats.received + stats.conflated + stats.rejected;
        assert!(self.first == 0 || known == self.last, "{known}, {}: {stats:?}", self.last);
        assert_eq!(stats.rejected, self.broken);
        stats
    }

    fn tell(&self) {
        let SubscriberStats { received, conflated, torn_retries, .. } = self.check();
        let (size, delivery, broken) = (self.size, self.subscriber.delivery(), self.broken);
        let end = self.end.as_ref().map(ToString::to_string).unwrap_or_default();
        println!(
            "{size} bytes by {delivery}: received {received}, conflated {conflated}, broken {broken}, torn retries {torn_retries}; {end}"
        );
    }
}

/// Tries again until the other host is as far.
fn subscribe<T: fabricast::Payload>(
    open: impl Fn() -> Result<StateSubscriber<T>, SubscriberError>,
) -> StateSubscriber<T> {
    let began = now();
    loop {
        match open() {
            Ok(subscriber) => return subscriber,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn watch_all() -> (Node, Vec<Watch>) {
    let node = node("watcher");
    let watch = |delivery| SIZES.map(|size| Watch::new(&node, size, delivery));
    let watches = DELIVERIES.into_iter().flat_map(watch).collect();
    (node, watches)
}

/// Whether each topic has this many subscribers.
fn have_subscribers(publishers: &Publishers, count: u64) -> bool {
    publishers.iter().all(|(_, publisher)| subscribers_of(publisher) == count)
}

/// Host A: publishes while host B subscribes.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher() {
    let node = node(NODE);
    let mut publishers = topics(&node);
    let over = node.state_publisher::<u64>(OVER).open().expect("a topic");
    let everybody = DELIVERIES.len() as u64;
    publish_until(&mut publishers, |them| have_subscribers(them, everybody) && subscribers_of(&over) == 1);
    let enough = publishers[0].1.newest().get() + values();
    publish_until(&mut publishers, |them| them[0].1.newest().get() >= enough);
    let newest: Vec<_> = publishers.iter().map(|(_, publisher)| publisher.newest().get()).collect();
    println!("published {newest:?}");
    // The end of the topics, which the subscribers are told of after the last value.
    drop(publishers);
    wait_until("the subscribers to leave", || subscribers_of(&over) == 0);
}

/// Host B: everything that arrives is right, and nothing is missing uncounted.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers() {
    let (node, mut watches) = watch_all();
    let over = subscribe(|| node.state_subscriber::<u64>(&format!("{}/{OVER}", host("PEER"))).open());
    wait_until("the end of all topics", || {
        watches.iter_mut().for_each(Watch::look);
        watches.iter().all(|watch| watch.end.is_some())
    });
    watches.iter().for_each(Watch::tell);
    for watch in &watches {
        let Some(ReceiveError::Ended { published }) = &watch.end else {
            panic!("not the end of the topic: {:?}", watch.end)
        };
        assert_eq!((watch.last, watch.broken), (published.get(), 0), "the last value was received");
    }
    drop(over);
}

/// Host A, on a wire that may lose the connection: publishes until the subscribers have seen enough.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_on_a_bad_wire() {
    let node = node(NODE);
    let mut publishers = topics(&node);
    let over = node.state_publisher::<u64>(OVER).open().expect("a topic");
    publish_until(&mut publishers, |_| subscribers_of(&over) == 1);
    publish_until(&mut publishers, |_| subscribers_of(&over) == 0);
}

/// Host B, on such a wire: right values, or an error that says what happened.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_on_a_bad_wire() {
    let (node, mut watches) = watch_all();
    let over = subscribe(|| node.state_subscriber::<u64>(&format!("{}/{OVER}", host("PEER"))).open());
    let began = now();
    wait_until("the end of all topics, or of the time", || {
        watches.iter_mut().for_each(Watch::look);
        watches.iter().all(|watch| watch.end.is_some()) || began.elapsed() > BAD_WIRE_WATCHED
    });
    drop(over);
    watches.iter().for_each(Watch::tell);
    assert!(watches.iter().any(|watch| watch.last > 0), "something was received");
    for watch in &watches {
        let lost = matches!(&watch.end, Some(ReceiveError::Gone { .. }));
        assert!(lost || watch.end.is_none(), "{:?}", watch.end);
    }
}

/// Host B, while host A freezes or dies: what was read stays right, and the end is told in time.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_of_a_host_that_is_lost() {
    let (_node, mut watches) = watch_all();
    wait_until("values", || {
        watches.iter_mut().for_each(Watch::look);
        watches.iter().all(|watch| watch.last > 0 || watch.end.is_some())
    });
    let mut quiet_since = now();
    let mut newest = 0;
    wait_until("the loss of the other host", || {
        watches.iter_mut().for_each(Watch::look);
        let last = watches.iter().map(|watch| watch.last).sum();
        if last > newest {
            (newest, quiet_since) = (last, now());
        }
        watches.iter().all(|watch| watch.end.is_some())
    });
    let noticed = quiet_since.elapsed();
    println!("noticed {} ms after the last value", noticed.as_millis());
    for watch in &watches {
        watch.tell();
        let lost = matches!(watch.end, Some(ReceiveError::Gone { .. }));
        assert!(lost, "{:?}", watch.end);
    }
    assert!(noticed < NOTICED, "noticed after {noticed:?}");
}

/// Host A, publishing until it is switched off.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_that_is_lost() {
    let node = node(NODE);
    let mut publishers = topics(&node);
    publish_until(&mut publishers, |_| false);
}

/// Host A, while host B freezes or dies: publishing goes on, and the node forgets its subscribers.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_to_a_host_that_is_lost() {
    let node = node(NODE);
    let mut publishers = topics(&node);
    let everybody = DELIVERIES.len() as u64;
    publish_until(&mut publishers, |them| have_subscribers(them, everybody));
    let mut slowest = Duration::ZERO;
    let mut last = now();
    publish_until(&mut publishers, |them| {
        slowest = slowest.max(last.elapsed());
        last = now();
        have_subscribers(them, 0)
    });
    println!("the longest time between two rounds of publishing was {} ms", slowest.as_millis());
    // A push that cannot be delivered holds up nobody.
    assert!(slowest < NOTICED, "a publish took {slowest:?}");
}

/// Host B, receiving until it is switched off.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_that_are_lost() {
    let (_node, mut watches) = watch_all();
    loop {
        watches.iter_mut().for_each(Watch::look);
        std::thread::park_timeout(Duration::from_micros(200));
    }
}
