//! Two hosts with RDMA devices: each of these tests is one host's part, and its counterpart runs on the other host at the
//! same time. `tools/test` runs the pairs in two soft-RoCE machines, on wires that lose and reorder, and with machines
//! that freeze and die soon after a line of output that reports that everything is connected:
//!
//! ```text
//! tools/soft-roce run2 --loss-a 1 'two_hosts --ignored --exact publisher' 'two_hosts --ignored --exact subscribers'
//! tools/soft-roce run2 --count-from 'all subscribers are there' --freeze-b-after 2 \
//!     'two_hosts --ignored --nocapture --exact publisher_to_a_host_that_is_lost' \
//!     'two_hosts --ignored --nocapture --exact subscribers_that_are_lost'
//! ```
//!
//! FABRICAST_TEST_CONNECT selects how queue pairs are connected: manager (the default), tcp or tcp-unreliable.
//!
//! A test whose results are right but late fails with a line that begins with `TOO SLOW`. A busy machine can be the
//! reason: `tools/test` then runs the pair again, up to three times in all. No other failure is retried.

#![cfg(feature = "verbs")]

use std::time::{Duration, Instant};

use fabricast::{
    Delivery, Node, NodeBuilder, Raw, RdmaConnect, ReceiveError, StatePublisher, StateSubscriber,
    SubscriberError, SubscriberStats,
};

use self::support::pattern::{Pattern, is_whole};
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const NODE: &str = "feed";
const TOPIC: &str = "ticks";
/// The topic whose subscriber leaves at the end.
const OVER: &str = "over";
/// The topic that is silent after its first value.
const QUIET: &str = "quiet";
/// The topic of a subscriber on the publisher's own host.
const NEAR: &str = "near";
/// The heartbeat topic of the subscribers' host.
const BEAT: &str = "beat";
const PORT: u16 = 7471;
/// Payloads: one packet, several, and many.
const SIZES: [usize; 3] = [64, 4096, 65_536];
/// Values published to each topic, unless FABRICAST_TEST_VALUES overrides it.
const VALUES: u64 = 600;
/// How long values are watched on a bad wire at least, and how many each subscription must have received.
const BAD_WIRE_WATCHED: Duration = Duration::from_secs(10);
const BAD_WIRE_VALUES: u64 = 3;
/// The timeout of one attempt to subscribe there.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Subscribers that have been absent for this long do not return. It exceeds one attempt by each of the six subscriptions,
/// which try one after the other.
const ABSENT: Duration = Duration::from_secs(8 * ATTEMPT.as_secs());
/// A dead or frozen host is noticed within this time: two seconds, as the documentation promises, and another one
/// because an emulated machine is 10 to 30 times slower.
const NOTICED: Duration = Duration::from_secs(3);
/// A node that has noticed it reports it at once. Noticing takes longer: 1.25 s without an answer.
const TOLD: Duration = Duration::from_millis(250);
/// A value in a landing region is reported broken only after it has been incomplete for this long.
const SETTLED: Duration = Duration::from_secs(1);

type Publishers = [(usize, StatePublisher<Raw>)];

fn values() -> u64 {
    std::env::var("FABRICAST_TEST_VALUES").ok().and_then(|text| text.parse().ok()).unwrap_or(VALUES)
}

/// The address of this host, or of the other one.
fn host(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 tells the addresses");
    format!("rdma://{host}:{PORT}")
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

fn builder() -> NodeBuilder {
    Node::builder().runtime_dir("/tmp/fabricast-two-hosts").rdma_connect(connect())
}

fn node(name: &str) -> Node {
    let builder = builder().name(name).expect("a name");
    builder.rdma(&host("SELF")).expect("an address").insecure().open().expect("a node")
}

/// The available deliveries: an unreliable queue pair only pushes.
fn deliveries() -> &'static [Delivery] {
    if connect() == RdmaConnect::TcpUnreliable {
        &[Delivery::Push]
    } else {
        &[Delivery::Pull, Delivery::Push]
    }
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

/// Publishes to all topics, about a thousand values a second, until told to stop.
fn publish_until(publishers: &mut Publishers, mut stop: impl FnMut(&Publishers) -> bool) {
    let began = now();
    while !stop(publishers) {
        assert!(began.elapsed() < 8 * PATIENCE, "timed out while publishing");
        publishers.iter_mut().for_each(|(size, publisher)| publish(*size, publisher));
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn subscribers_of<T: fabricast::Payload>(publisher: &StatePublisher<T>) -> u64 {
    publisher.pull_subscribers() + publisher.push_subscribers()
}

/// A subscription that verifies the values by their content.
struct Watch {
    size: usize,
    subscriber: StateSubscriber<Raw>,
    first: u64,
    last: u64,
    /// When `last` was received, or reported broken.
    last_seen: Instant,
    /// Values reported broken: they took longer than `SETTLED` to arrive.
    broken: u64,
    end: Option<ReceiveError>,
}

impl Watch {
    fn new(node: &Node, size: usize, delivery: Delivery) -> Self {
        let subscriber = subscribe(|| Self::open(node, size, delivery, PATIENCE));
        Self::of(subscriber, size)
    }

    fn open(
        node: &Node,
        size: usize,
        delivery: Delivery,
        timeout: Duration,
    ) -> Result<StateSubscriber<Raw>, SubscriberError> {
        let target = format!("{}/{TOPIC}-{size}", host("PEER"));
        node.state_subscriber::<Raw>(&target).delivery(delivery).timeout(timeout).open()
    }

    fn of(subscriber: StateSubscriber<Raw>, size: usize) -> Self {
        Self { size, subscriber, first: 0, last: 0, last_seen: now(), broken: 0, end: None }
    }

    /// The connection was lost: the only permitted failure.
    fn is_lost(&self) -> bool {
        self.end.as_ref().is_some_and(is_loss)
    }

    /// Takes the values that have arrived: only published ones, none twice, none out of order.
    fn look(&mut self) {
        if self.end.is_some() {
            return;
        }
        match self.subscriber.try_receive_ref() {
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Ok(Some(sample)) => {
                let sequence = sample.meta.sequence.get();
                assert!(is_whole(sample.bytes, sequence, self.size), "a torn value of {} bytes", self.size);
                assert!(sequence > self.last, "{sequence} came after {}", self.last);
                self.reach(sequence);
            }
            Err(
                ReceiveError::BrokenStamps { sequence }
                | ReceiveError::Damaged { sequence, .. }
                | ReceiveError::ForeignEpoch { sequence, .. }
                | ReceiveError::ImpossibleLen { sequence, .. },
            ) => {
                // A fetched value is what the publisher committed, or is torn and fetched again.
                assert_eq!(self.subscriber.delivery(), Delivery::Push, "{sequence} is broken");
                let incomplete = self.last_seen.elapsed();
                assert!(incomplete >= SETTLED, "{sequence} was given up within {incomplete:?}");
                self.reach(sequence.get());
                self.broken += 1;
            }
            Err(error) => self.end = Some(error),
        }
    }

    /// Whether it has reached this sequence.
    fn reach(&mut self, sequence: u64) {
        self.first = if self.first == 0 { sequence } else { self.first };
        (self.last, self.last_seen) = (sequence, now());
    }

    /// Every value up to the last one was received, or counted as replaced by a newer one.
    fn check(&self) -> SubscriberStats {
        let stats = self.subscriber.stats();
        let missed = stats.conflated + stats.cut_off + stats.rejected;
        let known = self.first.saturating_sub(1) + stats.received + missed;
        assert!(self.first == 0 || known == self.last, "{known}, {}: {stats:?}", self.last);
        assert_eq!(stats.rejected, self.broken);
        stats
    }

    fn tell(&self) {
        let SubscriberStats { received, conflated, cut_off, torn_retries, .. } = self.check();
        let (size, delivery, broken) = (self.size, self.subscriber.delivery(), self.broken);
        let end = self.end.as_ref().map(ToString::to_string).unwrap_or_default();
        println!(
            "{size} bytes by {delivery}: received {received}, conflated {conflated}, cut off {cut_off}, broken {broken}, \
             torn retries {torn_retries}; {end}"
        );
    }
}

fn is_loss(end: &ReceiveError) -> bool {
    matches!(end, ReceiveError::Gone { .. })
}

/// A subscription on a bad wire, reopened whenever its connection is lost.
struct Reopened<'a> {
    node: &'a Node,
    size: usize,
    delivery: Delivery,
    watch: Option<Watch>,
    received: u64,
    broken: u64,
    lost: u64,
}

impl<'a> Reopened<'a> {
    /// One of each size and delivery.
    fn all(node: &'a Node) -> Vec<Self> {
        let of = |delivery: &Delivery| SIZES.map(|size| Self::new(node, size, *delivery));
        deliveries().iter().flat_map(of).collect()
    }

    fn new(node: &'a Node, size: usize, delivery: Delivery) -> Self {
        Self { node, size, delivery, watch: None, received: 0, broken: 0, lost: 0 }
    }

    fn look(&mut self) {
        let Some(watch) = &mut self.watch else {
            // The one that fails is not the last attempt.
            let opened = Watch::open(self.node, self.size, self.delivery, ATTEMPT).ok();
            self.watch = opened.map(|subscriber| Watch::of(subscriber, self.size));
            return;
        };
        watch.look();
        if watch.end.is_some() {
            assert!(watch.is_lost(), "{:?}", watch.end);
            self.lost += 1;
            self.close();
        }
    }

    fn close(&mut self) {
        let Some(watch) = self.watch.take() else { return };
        watch.tell();
        self.received += watch.check().received;
        self.broken += watch.broken;
    }

    /// Values received so far.
    fn received(&self) -> u64 {
        self.received + self.watch.as_ref().map_or(0, |watch| watch.subscriber.stats().received)
    }
}

/// Subscriptions with idle sessions of their own: only probing shows that the other host is lost.
struct Quiet {
    /// It reads only its own memory.
    push: StateSubscriber<u64>,
    /// It is not polled before the end. It pulls, unless the connection only pushes.
    unpolled: StateSubscriber<u64>,
}

impl Quiet {
    fn new() -> Self {
        let other = *deliveries().first().expect("a delivery");
        let [push, unpolled] = [Delivery::Push, other].map(|delivery| {
            let node = builder().open().expect("a node");
            let target = format!("{}/{QUIET}", host("PEER"));
            let mut subscriber = subscribe(|| node.state_subscriber(&target).delivery(delivery).open());
            wait_until("the only value", || subscriber.try_receive().expect("a receive").is_some());
            subscriber
        });
        Self { push, unpolled }
    }
}

/// Retransmissions and other work that the device did because of the wire.
fn mended() -> u64 {
    let count = |name: &str| {
        let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0_u64)
    };
    ["out_of_seq_request", "duplicate_request", "rcvd_seq_err"].into_iter().map(count).sum()
}

/// Retries until the other host is ready.
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
    let watch = |delivery: &Delivery| SIZES.map(|size| Watch::new(&node, size, *delivery));
    let watches = deliveries().iter().flat_map(watch).collect();
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
    let everybody = deliveries().len() as u64;
    publish_until(&mut publishers, |them| have_subscribers(them, everybody) && subscribers_of(&over) == 1);
    let enough = publishers[0].1.newest().get() + values();
    publish_until(&mut publishers, |them| them[0].1.newest().get() >= enough);
    let newest: Vec<_> = publishers.iter().map(|(_, publisher)| publisher.newest().get()).collect();
    println!("published {newest:?}");
    // The end of the topics, which the subscribers learn of after the last value.
    drop(publishers);
    wait_until("the subscribers to leave", || subscribers_of(&over) == 0);
}

/// Host B: everything that arrives is right, and everything missing is counted.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers() {
    let (node, mut watches) = watch_all();
    let over = subscribe(|| node.state_subscriber::<u64>(&format!("{}/{OVER}", host("PEER"))).push().open());
    wait_until("the end of all topics", || {
        watches.iter_mut().for_each(Watch::look);
        watches.iter().all(|watch| watch.end.is_some())
    });
    watches.iter().for_each(Watch::tell);
    for watch in &watches {
        let Some(ReceiveError::Ended { published }) = &watch.end else {
            panic!("not the end of the topic: {:?}", watch.end)
        };
        if connect() == RdmaConnect::TcpUnreliable {
            // Lost values stay lost, and the end may come before the last value.
            assert!(watch.last > 0 && watch.last <= published.get(), "{} of {published}", watch.last);
            continue;
        }
        assert_eq!((watch.last, watch.broken), (published.get(), 0), "the last value was received");
    }
    drop(over);
}

/// Host A, on a wire that may lose the connection: publishes until the subscribers have been away for long.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_on_a_bad_wire() {
    let node = node(NODE);
    let mut publishers = topics(&node);
    publish_until(&mut publishers, |them| !have_subscribers(them, 0));
    let mut seen = now();
    publish_until(&mut publishers, |them| {
        if !have_subscribers(them, 0) {
            seen = now();
        }
        seen.elapsed() > ABSENT
    });
}

/// Host B, on such a wire: right values by each subscription, or an error that says what happened.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_on_a_bad_wire() {
    let node = node("watcher");
    let mut watches = Reopened::all(&node);
    let began = now();
    wait_until("values by each subscription", || {
        watches.iter_mut().for_each(Reopened::look);
        let have_values = watches.iter().all(|watch| watch.received() >= BAD_WIRE_VALUES);
        have_values && began.elapsed() > BAD_WIRE_WATCHED
    });
    let mended = mended();
    println!("after {:?} the device has mended {mended}", began.elapsed());
    watches.iter_mut().for_each(Reopened::close);
    for Reopened { size, delivery, received, broken, lost, .. } in &watches {
        println!("{size} bytes by {delivery}: {received} received, {broken} broken, {lost} times lost");
    }
    assert!(mended > 0, "the wire is not a bad one");
}

/// Host B, while host A freezes or dies: what was read stays right, and the end is reported in time.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_of_a_host_that_is_lost() {
    let (_node, mut watches) = watch_all();
    let mut quiet = Quiet::new();
    wait_until("values", || {
        watches.iter_mut().for_each(Watch::look);
        watches.iter().all(|watch| watch.last > 0 || watch.end.is_some())
    });
    println!("all subscribers are there");
    let mut quiet_since = now();
    let mut newest = 0;
    let (mut quiet_end, mut quiet_noticed) = (None, Duration::ZERO);
    wait_until("the loss of the other host", || {
        watches.iter_mut().for_each(Watch::look);
        let last = watches.iter().map(|watch| watch.last).sum();
        if last > newest {
            (newest, quiet_since) = (last, now());
        }
        if quiet_end.is_none() {
            quiet_end = quiet.push.try_receive().err();
            quiet_noticed = quiet_since.elapsed();
        }
        watches.iter().all(|watch| watch.end.is_some()) && quiet_end.is_some()
    });
    let noticed = quiet_since.elapsed();
    println!("noticed {noticed:?} after the last value, by the quiet session {quiet_noticed:?}");
    for watch in &watches {
        watch.tell();
        assert!(watch.is_lost(), "{:?}", watch.end);
    }
    assert!(quiet_end.as_ref().is_some_and(is_loss), "{quiet_end:?}");
    // Its node has noticed it, too, without being asked.
    wait_until("the time to notice it to be over", || quiet_since.elapsed() > NOTICED);
    let (began, mut end) = (now(), None);
    wait_until("the end", || {
        end = quiet.unpolled.try_receive().err();
        end.is_some()
    });
    let told = began.elapsed();
    println!("told {told:?} after it was asked for");
    assert!(end.as_ref().is_some_and(is_loss), "{end:?}");
    hold(&[("the loss was noticed", noticed, NOTICED), ("the loss was reported", told, TOLD)]);
}

/// Compares these durations with their bounds. Nothing is judged after this: see the head of this file.
fn hold(bounds: &[(&str, Duration, Duration)]) {
    for (what, took, bound) in bounds {
        if took >= bound {
            println!("TOO SLOW: {what} after {took:?}, not within {bound:?}");
        }
    }
    assert!(bounds.iter().all(|(_, took, bound)| took < bound), "too slow");
}

/// Host A, publishing until it is switched off.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_that_is_lost() {
    let node = node(NODE);
    let mut publishers = topics(&node);
    let _quiet = quiet(&node);
    publish_until(&mut publishers, |_| false);
}

/// The topic whose only value has been published.
fn quiet(node: &Node) -> StatePublisher<u64> {
    let mut quiet = node.state_publisher::<u64>(QUIET).open().expect("a topic");
    quiet.publish(&1).expect("it fits");
    quiet
}

/// Host A, while host B freezes or dies: publishing continues, and the node drops its subscribers.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_to_a_host_that_is_lost() {
    let node = node(NODE);
    let mut publishers = topics(&node);
    let quiet = quiet(&node);
    let everybody = deliveries().len() as u64;
    publish_until(&mut publishers, |them| have_subscribers(them, everybody) && subscribers_of(&quiet) == 2);
    // A separate node, so that the checked sessions are those of the subscribers.
    let watching = builder().open().expect("a node");
    let beat = format!("{}/{BEAT}", host("PEER"));
    let mut beat = subscribe(|| watching.state_subscriber::<u64>(&beat).push().open());
    println!("all subscribers are there");
    let mut near = node.state_publisher::<u64>(NEAR).open().expect("a topic");
    let target = format!("shm:{NODE}/{NEAR}");
    let mut neighbour = watching.state_subscriber::<u64>(&target).open().expect("a subscription");
    let mut serve_the_neighbour = move || {
        let sequence = near.publish(&0).expect("it fits");
        let sample = neighbour.try_receive().expect("a receive").expect("what was just published");
        assert_eq!((sample.meta.sequence, sample.conflated), (sequence, 0));
    };
    let (mut slowest, mut last, mut beaten) = (Duration::ZERO, now(), now());
    publish_until(&mut publishers, |them| {
        slowest = slowest.max(last.elapsed());
        last = now();
        serve_the_neighbour();
        if matches!(beat.try_receive(), Ok(Some(_))) {
            beaten = now();
        }
        have_subscribers(them, 0) && subscribers_of(&quiet) == 0
    });
    let forgotten = beaten.elapsed();
    println!(
        "forgotten {forgotten:?} after the last beat; the longest time between two rounds was {slowest:?}"
    );
    let newest = publishers[0].1.newest().get();
    publish_until(&mut publishers, |them| {
        serve_the_neighbour();
        them[0].1.newest().get() >= newest + values()
    });
    // A push that cannot be delivered delays nothing.
    hold(&[
        ("the subscribers were forgotten", forgotten, NOTICED),
        ("a round was published", slowest, NOTICED),
    ]);
}

/// Host B, receiving until it is switched off.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_that_are_lost() {
    let node = node("watcher");
    // A machine that freezes for half a second loses connections: until it is lost itself, they are reopened.
    let mut watches = Reopened::all(&node);
    let _quiet = Quiet::new();
    let mut beat = node.state_publisher::<u64>(BEAT).open().expect("a topic");
    loop {
        watches.iter_mut().for_each(Reopened::look);
        beat.publish(&beat.newest().get()).expect("it fits");
        std::thread::park_timeout(Duration::from_micros(200));
    }
}
