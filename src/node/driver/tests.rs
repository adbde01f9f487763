//! The waits of a driver.

use std::os::fd::BorrowedFd;

use parking_lot::Mutex;

use super::*;
use crate::chain::ErrorChain;
use crate::clock::{Clock, SystemClock};
use crate::control::{ClientEvent, ClientSession, SubscriberCounts};
use crate::event::EventSink;
use crate::fabric::{
    Address, Capabilities, Completion, Connection, Datagrams, Exposure, FabricError, Offer, Placement,
    Prepared, Received, Registration, RemoteKey, RemoteRead, RemoteWrite, Revocation, Sent, Waker, Write,
};
use crate::id::{Delivery, KindOptions, NodeName};
use crate::layout::header::{COUNTERS_LEN, COUNTERS_OFFSET};
use crate::memory::{Protection, Region};
use crate::metrics::{self, Counter, Unit};
use crate::node::DialError;
use crate::node::Node;
use crate::node::builder::assemble;
use crate::node::event_log::TracingSink;
use crate::node::served::tests::{Scripted, woken};
use crate::notice::WAKE_WORD_LEN;
use crate::payload::Raw;
use crate::publisher::{LogPublisher, PublishError, PublishedTopic, PublisherError};
use crate::repository::log::LogStart;
use crate::subscriber::SubscriberError;
use crate::sync::atomic::AtomicU64;
use crate::testkit::fabric::{Network, Reach};

mod accepting;
mod idle;
mod stopping;

/// Serves this session.
fn serve(driver: &mut Driver, served: Served) {
    driver.agenda.mark(served.key());
    driver.served.insert(served.key(), served);
}

/// A medium need not report that it accepts messages again.
#[test]
fn queued_messages_are_retried_soon() {
    let network = Network::new(0, Reach::Fetched);
    let name = "node".parse().unwrap();
    let (fabric, clock) = (Arc::new(network.fabric(&name)), Arc::clone(network.clock()));
    let (shared, mut driver) =
        assemble((None, None), fabric, clock, Arc::new(TracingSink::default())).unwrap();
    let core = Arc::clone(&shared.core);
    let mut peer = ClientSession::connect(0, core.greeting_without_keys(), u64::MAX);
    let hello = peer.next_message().unwrap().bytes;
    assert!(driver.wait_time() > TEND_AGAIN);
    let served = Served::new(&core, Box::new(Scripted::full(hello)), 0).unwrap();
    serve(&mut driver, served);
    driver.turn();
    assert_eq!(driver.wait_time(), TEND_AGAIN);
}

/// Its connection stays readable: if it were watched, the thread would spin.
#[test]
fn message_to_a_subscriber_that_is_held_back_is_looked_at_when_it_is_due() {
    let network = Network::new(0, Reach::Mapped);
    let (fabric, clock) = (network.fabric(&"node".parse().unwrap()), Arc::clone(network.clock()));
    let (shared, _driver) =
        assemble((None, None), Arc::new(fabric), clock, Arc::new(TracingSink::default())).unwrap();
    let address = Address::shm(&"peer".parse().unwrap());
    for until_ns in [7, 9] {
        let connection = Box::new(Scripted::held_back(until_ns));
        let link = Link::dialled(&shared.core, connection, &address, (1_000, 1_000)).unwrap();
        assert_eq!(link.turn(0, false), LinkTurn::Rests { due_ns: Some(until_ns) });
    }
}

/// A landing region whose writes never complete.
#[derive(Debug)]
struct Stalled;

impl Offer for Stalled {
    fn open_read(self: Box<Self>, _: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        Err(FabricError::Closed)
    }

    fn open_write(self: Box<Self>, _: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        Ok(self)
    }
}

impl RemoteWrite for Stalled {
    fn post(&mut self, _: &Registration, _: &[Write]) -> Result<Completion, FabricError> {
        Ok(Completion::Pending)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(1)
    }

    fn fetch_word(&mut self, _: usize) -> Result<Option<u64>, FabricError> {
        Ok(Some(0))
    }

    fn placement(&self) -> Placement {
        Placement::Words
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(Self)
    }
}

impl Revocation for Stalled {
    fn revoke(&self) -> Completion {
        Completion::Pending
    }
}

/// A peer that answers at once, and detaches from the topic to which it attaches by push.
#[derive(Debug)]
struct Peer {
    client: ClientSession,
    attaches: bool,
    ready: Waker,
}

impl Connection for Peer {
    fn send(&mut self, message: &[u8], _: Option<&Registration>) -> Result<Sent, FabricError> {
        match self.client.on_message(message, 0) {
            Ok(Some(ClientEvent::Ready { .. })) if self.attaches => {
                self.client
                    .attach("t".parse().unwrap(), Delivery::Push, None, KindOptions::default())
                    .unwrap();
            }
            Ok(Some(ClientEvent::Granted { grant, .. })) => self.client.expose(grant.attachment).unwrap(),
            Ok(Some(ClientEvent::Exposed(attachment))) => {
                self.client.detach(attachment, SubscriberCounts::default()).unwrap();
            }
            Ok(Some(ClientEvent::EndAsked { reason })) => {
                self.client.end(0, reason, SubscriberCounts::default()).unwrap();
            }
            _ => {}
        }
        Ok(Sent::Done)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError> {
        let Some(message) = self.client.next_message() else { return Ok(Received::Nothing) };
        into[..message.bytes.len()].copy_from_slice(&message.bytes);
        let offer = message.region_of.map(|_| Box::new(Stalled) as Box<dyn Offer>);
        Ok(Received::Message { len: message.bytes.len(), offer })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { placement: Placement::Words, ..Capabilities::default() }
    }

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        None
    }

    fn prepare(&self, _: &Arc<Registration>) -> Result<Prepared, FabricError> {
        Ok(Prepared::Done(RemoteKey::default()))
    }

    fn withdraw(&mut self, _: &Registration) {}

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.ready.wait_handle()
    }
}

/// Counts ended sessions: in good order, and otherwise.
#[derive(Debug, Default)]
struct Ends(Mutex<(usize, usize)>);

impl EventSink for Ends {
    fn event(&self, event: &Event) {
        match event {
            Event::SessionClosed { orderly: true, .. } => self.0.lock().0 += 1,
            Event::SessionClosed { orderly: false, .. } => self.0.lock().1 += 1,
            _ => {}
        }
    }
}

#[test]
fn peer_with_stalled_writes_delays_no_other_end() {
    let network = Network::new(0, Reach::Fetched);
    let name = "node".parse().unwrap();
    let (fabric, clock) = (Arc::new(network.fabric(&name)), Arc::clone(network.clock()));
    let ends = Arc::new(Ends::default());
    let (shared, mut driver) = assemble((None, None), fabric, clock, Arc::clone(&ends) as _).unwrap();
    let core = Arc::clone(&shared.core);
    let node = Node::new(shared, None);
    let publisher = node.state_publisher::<u64>("t").open().unwrap();
    for attaches in [true, false, false] {
        let client = ClientSession::connect(0, core.greeting_without_keys(), u64::MAX);
        let peer = Box::new(Peer { client, attaches, ready: woken() });
        serve(&mut driver, Served::new(&core, peer, 0).unwrap());
    }
    for _ in 0..8 {
        driver.wait_for(Duration::ZERO);
        driver.turn();
    }
    assert_eq!(driver.served.values().filter(|served| served.has_writes_under_way()).count(), 1);
    drop(publisher);
    let began_ns = core.clock.monotonic_ns();
    driver.shut_down();
    assert!(driver.served.is_empty(), "the one that stalls was asked to end, too");
    assert_eq!(*ends.0.lock(), (3, 0));
    let took_ns = core.clock.monotonic_ns() - began_ns;
    assert!((SHUTDOWN_NS / 2..SHUTDOWN_NS).contains(&took_ns), "{took_ns} ns");
}

/// A landing region whose subscriber consumes everything. Counts the copied bytes.
#[derive(Debug)]
struct Copied(Arc<Mutex<usize>>);

impl RemoteWrite for Copied {
    fn post(&mut self, _: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        let len = |write: &Write| if let Write::Range(range) = write { range.len } else { 0 };
        *self.0.lock() += writes.iter().map(len).sum::<usize>();
        Ok(Completion::Done)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(0)
    }

    fn fetch_word(&mut self, _: usize) -> Result<Option<u64>, FabricError> {
        Ok(Some(u64::MAX))
    }

    fn placement(&self) -> Placement {
        Placement::Words
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(Stalled)
    }
}

/// However many subscribers of however many topics are behind, a turn copies a bounded amount, and every topic gets its turn.
#[test]
fn topics_with_slow_subscribers_share_the_copy_budget() {
    let network = Network::new(0, Reach::Fetched);
    let name = "node".parse().unwrap();
    let (fabric, clock) = (Arc::new(network.fabric(&name)), Arc::clone(network.clock()));
    let (shared, mut driver) =
        assemble((None, None), fabric, clock, Arc::new(TracingSink::default())).unwrap();
    let core = Arc::clone(&shared.core);
    let node = Node::new(shared, None);
    let (len_max, payload) = (limits::LOG_COPY_LEN_MAX, vec![7; 60 << 10]);
    let open = |name: &str| node.log_publisher::<Raw>(name).capacity(4 * len_max).payload_len_max(60 << 10);
    let mut publishers = ["a", "b", "c"].map(|name| open(name).open().unwrap());
    let counts = [(); 3].map(|()| Arc::<Mutex<usize>>::default());
    let closed = Arc::default();
    let count = 3 * len_max / payload.len();
    let lands = 2;
    for (publisher, copied) in publishers.iter_mut().zip(&counts) {
        publisher.publish_batch((0..count).map(|_| payload.as_slice())).unwrap();
        let topic = core.topic(publisher.topic()).unwrap();
        for _ in 0..lands {
            let remote = Box::new(Copied(Arc::clone(copied)));
            assert!(topic.accept(remote, &closed, LogStart::Earliest.options(), &driver.serving.budget));
            topic.wake();
        }
    }
    let copied = || [0, 1, 2].map(|index: usize| *counts[index].lock());
    let mut before = copied();
    assert!(
        before.iter().sum::<usize>() <= len_max + len_max / 2,
        "all were exposed in one turn: {before:?}"
    );
    let all = lands * count * (payload.len() + 24);
    let mut turns = 0;
    while before != [all; 3] {
        assert!(turns == 0 || driver.wait_time().is_zero(), "it continues at once");
        driver.turn();
        let now = copied();
        let in_turn = now.iter().sum::<usize>() - before.iter().sum::<usize>();
        assert!(in_turn > 0 && in_turn <= len_max + len_max / 2, "{in_turn} bytes");
        let apart = now.iter().max().unwrap() - now.iter().min().unwrap();
        assert!(apart <= 2 * len_max, "a topic waits for the others: {now:?}");
        (before, turns) = (now, turns + 1);
    }
    assert!(turns >= 12, "{turns} turns");
    (0..2).for_each(|_| driver.turn());
    assert!(!driver.wait_time().is_zero());
}

/// A landing region whose subscriber has this consumed position until it changes.
#[derive(Debug)]
struct Standing(Arc<AtomicU64>);

impl RemoteWrite for Standing {
    fn post(&mut self, _: &Registration, _: &[Write]) -> Result<Completion, FabricError> {
        Ok(Completion::Done)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(0)
    }

    fn fetch_word(&mut self, _: usize) -> Result<Option<u64>, FabricError> {
        Ok(Some(self.0.load(Ordering::Relaxed)))
    }

    fn placement(&self) -> Placement {
        Placement::Words
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(Stalled)
    }
}

/// A node that publishes a log, and the landing region of a stopped subscriber.
struct Stopped {
    network: Arc<Network>,
    driver: Driver,
    publisher: LogPublisher<Raw>,
    topic: Arc<PublishedTopic>,
    closed: Arc<AtomicBool>,
    consumed: Arc<AtomicU64>,
    /// The wake word of the topic's sleepers.
    wake_word: Arc<Registration>,
}

impl Stopped {
    /// Its ring and the repository's are full: the publisher has given up later records for it.
    fn new() -> Self {
        let network = Network::new(0, Reach::Mapped);
        let name = "node".parse().unwrap();
        let (fabric, clock) = (Arc::new(network.fabric(&name)), Arc::clone(network.clock()));
        let (shared, driver) =
            assemble((None, None), fabric, clock, Arc::new(TracingSink::default())).unwrap();
        let core = Arc::clone(&shared.core);
        let node = Node::new(shared, None);
        let publisher = node.log_publisher::<Raw>("t").capacity(1 << 14).payload_len_max(100).open().unwrap();
        let topic = core.topic(publisher.topic()).unwrap();
        let (consumed, closed) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let remote = Box::new(Standing(Arc::clone(&consumed)));
        assert!(topic.accept(remote, &closed, KindOptions::default(), &driver.serving.budget));
        topic.wake();
        let memory = || Region::allocate(WAKE_WORD_LEN, Protection::PeersWrite).map(Arc::new).unwrap();
        let wake_word = topic.notices.wake_word(|| core.fabric.register(&memory(), Exposure::Write)).unwrap();
        let mut stopped = Self { network, driver, publisher, topic, closed, consumed, wake_word };
        (0..10).for_each(|_| _ = stopped.turns(20_000_000));
        (0..1000).for_each(|_| stopped.publish());
        assert!(stopped.topic.landings.owe(&stopped.closed), "it is stalled");
        stopped
    }

    fn publish(&mut self) {
        self.publisher.publish(&[0; 100]).unwrap();
    }

    /// Runs the driver for this time. Returns how often it woke up.
    fn turns(&mut self, ns: u64) -> u64 {
        let clock = Arc::clone(self.network.clock());
        let end_ns = clock.monotonic_ns() + ns;
        let mut turns = 0;
        while clock.monotonic_ns() < end_ns {
            self.driver.turn();
            turns += 1;
            clock.advance(saturate(self.driver.wait_time()));
        }
        turns
    }

    /// How often a permanent sleeper was woken in this time.
    fn rings(&mut self, ns: u64) -> u64 {
        let clock = Arc::clone(self.network.clock());
        let end_ns = clock.monotonic_ns() + ns;
        let mut rings = 0;
        while clock.monotonic_ns() < end_ns {
            self.wake_word.region().store(0, 1);
            self.driver.turn();
            rings += u64::from(self.wake_word.region().load(0) == 0);
            clock.advance(saturate(self.driver.wait_time()));
        }
        rings
    }
}

/// Heartbeats are ten wake-ups a second.
#[test]
fn stopped_push_subscriber_of_a_log_costs_at_most_two_wake_ups_a_second() {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut stopped = Stopped::new();
    stopped.turns(3 * SECOND_NS);
    let turns = stopped.turns(60 * SECOND_NS);
    println!("{turns} turns in 60 s with heartbeats");
    assert!(turns <= (10 + 2) * 60, "{turns} turns in 60 s");
    // Further publishes do not change that.
    for _ in 0..600 {
        (0..5).for_each(|_| stopped.publish());
        stopped.turns(SECOND_NS / 60);
    }
    let turns = stopped.turns(10 * SECOND_NS);
    assert!(turns <= 120, "{turns} turns in 10 s");
    assert_eq!(stopped.rings(10 * SECOND_NS), 0, "nothing was written, and sleepers were woken");
}

#[test]
fn stopped_subscriber_is_written_soon_after_it_resumes() {
    for stopped_ns in [1_000_000, 50_000_000, 1_000_000_000, 60_000_000_000] {
        let mut stopped = Stopped::new();
        stopped.turns(stopped_ns);
        stopped.consumed.store(u64::MAX, Ordering::Relaxed);
        let began_ns = stopped.network.clock().monotonic_ns();
        while stopped.topic.landings.owe(&stopped.closed) {
            stopped.turns(1);
        }
        let waited_ns = stopped.network.clock().monotonic_ns() - began_ns;
        assert!(waited_ns <= limits::HEARTBEAT_INTERVAL_NS, "{waited_ns} ns after {stopped_ns} ns");
    }
}

/// Without a topic there are no heartbeats.
#[test]
fn ended_topic_with_a_stopped_subscriber_lets_the_node_rest() {
    let Stopped { network, mut driver, publisher, topic, closed, consumed, .. } = Stopped::new();
    drop(publisher);
    let mut turns = 0;
    let end_ns = network.clock().monotonic_ns() + 30_000_000_000;
    while network.clock().monotonic_ns() < end_ns {
        driver.turn();
        turns += 1;
        assert!(turns < 30 * 2 + 30, "a few in quick succession, and then two a second");
        network.clock().advance(saturate(driver.wait_time()));
    }
    assert!(topic.landings.rests(&closed));
    consumed.store(u64::MAX, Ordering::Relaxed);
    network.clock().advance(limits::LOG_REST_NS_MAX);
    driver.turn();
    assert!(!topic.landings.rests(&closed) && !topic.landings.owe(&closed));
}

/// How long an answer may take; only ends a hang.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A sink that is broken.
#[derive(Debug)]
struct Panics;

impl EventSink for Panics {
    fn event(&self, event: &Event) {
        panic!("the sink fails at {event:?}");
    }
}

#[test]
fn panic_of_an_event_sink_costs_only_its_event() {
    let dir = tempfile::tempdir().unwrap();
    let node =
        Node::builder().name("p").unwrap().runtime_dir(dir.path()).events(Arc::new(Panics)).open().unwrap();
    let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
    for round in 1..4 {
        let peer = Node::builder().runtime_dir(dir.path()).open().unwrap();
        let mut subscriber = peer.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
        publisher.publish(&round).unwrap();
        assert_eq!(subscriber.try_receive().unwrap().unwrap().value, round);
    }
}

/// An acceptor whose provider fails once this wakes.
#[derive(Debug)]
struct Faulty(Arc<Waker>);

impl Acceptor for Faulty {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        panic!("the provider fails")
    }

    fn addresses(&self) -> Vec<Address> {
        Vec::new()
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.0.wait_handle()
    }
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

#[test]
fn publishers_of_a_failed_node_get_an_error() {
    let network = Network::new(0, Reach::Mapped);
    let name = "node".parse().unwrap();
    let (fabric, clock) = (Arc::new(network.fabric(&name)), Arc::clone(network.clock()));
    let (fails, recorder) = (Arc::new(Waker::new().unwrap()), Arc::new(Recorder::default()));
    let (shared, mut driver) = assemble((None, None), fabric, clock, Arc::clone(&recorder) as _).unwrap();
    let core = Arc::clone(&shared.core);
    driver.listen(Box::new(Faulty(Arc::clone(&fails)))).unwrap();
    let thread = DriverThread::start(driver).unwrap();
    let node = Node::new(shared, Some(thread));
    let mut state = node.state_publisher::<u64>("state").open().unwrap();
    let mut log = node.log_publisher::<u64>("log").open().unwrap();
    state.publish(&1).unwrap();
    log.publish(&1).unwrap();
    fails.wake();
    let deadline_ns = SystemClock.monotonic_ns() + 60_000_000_000;
    while state.publish(&2).is_ok() || log.publish(&2).is_ok() {
        assert!(SystemClock.monotonic_ns() < deadline_ns, "the publishers get no error");
        std::thread::yield_now();
    }
    assert!(matches!(state.publish(&3), Err(PublishError::NodeFailed)));
    assert!(matches!(log.publish_batch(&[3]), Err(PublishError::NodeFailed)));
    assert!(matches!(node.state_publisher::<u64>("next").open(), Err(PublisherError::NodeFailed)));
    let failed = |event: &Event| matches!(event, Event::NodeFailed { reason } if reason.contains("the provider fails"));
    // It is reported last.
    while !recorder.0.lock().iter().any(failed) {
        assert!(SystemClock.monotonic_ns() < deadline_ns, "no event: {:?}", recorder.0.lock());
        std::thread::yield_now();
    }
    for name in ["state", "log"] {
        let topic = core.topic(&name.parse().unwrap()).unwrap();
        let counted = metrics::read(topic.registration.region(), COUNTERS_OFFSET, COUNTERS_LEN);
        let failed = |counter: &Counter| counter.unit == Unit::Error && counter.name == "node failed";
        assert!(counted.iter().any(failed), "{counted:?}");
    }
    let address = "shm:elsewhere";
    let error = node.dial_subscriber("state", address, Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, DialError::NodeFailed { .. }), "{error}");
    let error = node.state_subscriber::<u64>("shm:elsewhere/t").open().unwrap_err();
    assert!(matches!(error, SubscriberError::NodeFailed { .. }), "{error}");
    assert!(ErrorChain(&error).to_string().contains("the provider fails"), "{error}");
}

/// Both ends may be noticed in one turn, with the topics in any order.
#[test]
fn older_of_two_ended_incarnations_is_superseded() {
    for is_reversed in [false, true] {
        let network = Network::new(0, Reach::Mapped);
        let name = "node".parse().unwrap();
        let (fabric, clock) = (Arc::new(network.fabric(&name)), Arc::clone(network.clock()));
        let (shared, mut driver) =
            assemble((None, None), fabric, clock, Arc::new(TracingSink::default())).unwrap();
        let core = Arc::clone(&shared.core);
        let node = Node::new(shared, None);
        let incarnations = [(); 2].map(|()| {
            let publisher = node.state_publisher::<u64>("t").open().unwrap();
            core.topic(publisher.topic()).unwrap()
        });
        let mut keys = incarnations.each_ref().map(|topic| topic.key());
        if is_reversed {
            keys.reverse();
        }
        for key in keys {
            let budget = &driver.serving.budget;
            driver.tending.tend(&core, &mut driver.agenda, &BTreeSet::from([key]), budget);
        }
        let superseded = incarnations.map(|topic| topic.is_superseded());
        assert_eq!(superseded, [true, false], "reversed: {is_reversed}");
    }
}

/// They sleep until a publisher dials, which can no longer happen.
#[test]
fn listeners_of_a_failed_node_get_an_error() {
    let network = Network::new(0, Reach::Mapped);
    let name: NodeName = "node".parse().unwrap();
    let (fabric, fails) = (Arc::new(network.fabric(&name)), Arc::new(Waker::new().unwrap()));
    let (shared, mut driver) =
        assemble((Some(name), None), fabric, Arc::new(SystemClock), Arc::new(TracingSink::default()))
            .unwrap();
    driver.agenda.forget(LISTENER_KEY, driver.listeners.remove(&LISTENER_KEY).unwrap().wait_handle());
    driver.listen(Box::new(Faulty(Arc::clone(&fails)))).unwrap();
    let thread = DriverThread::start(driver).unwrap();
    let node = Node::new(shared, Some(thread));
    let listener = node.state_listener::<u64>("t").open().unwrap();
    std::thread::scope(|scope| {
        let waiting = [(); 2].map(|()| scope.spawn(|| listener.accept_timeout(TIMEOUT)));
        fails.wake();
        for waiting in waiting {
            let accepted = waiting.join().unwrap();
            assert!(matches!(accepted, Err(SubscriberError::NodeFailed { .. })), "{accepted:?}");
        }
    });
    let error = node.log_listener::<u64>("next").open().unwrap_err();
    assert!(ErrorChain(&error).to_string().contains("the provider fails"), "{error}");
}
