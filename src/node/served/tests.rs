//! Sessions whose connections or regions fail.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::*;
use crate::control::{AttachOptions, ClientEvent, ClientSession, EndReason, SubscriberCounts};
use crate::event::EventSink;
use crate::fabric::{
    ByteRange, Capabilities, Completion, Datagrams, NoPlace, NothingToRevoke, PlaceLimits, Placement, Places,
    Prepared, Registration, RemoteKey, RemoteRead, RemoteWrite, Revocation, Sent, Waker, Write,
};
use crate::id::{Delivery, KindOptions, SlowPolicy};
use crate::layout::progress::PROGRESS_LEN;
use crate::memory::{Protection, Region};
use crate::node::Node;
use crate::node::builder::assemble;
use crate::payload::Raw;
use crate::publisher::StatePublisher;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::testkit::fabric::{Network, Reach};

mod revoking;
mod tenure;

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

/// A message, and the region that comes with it.
type Parcel = (Vec<u8>, Option<Box<dyn Offer>>);

/// The traffic of a connection, as seen by the peer.
#[derive(Debug, Default)]
pub(in crate::node) struct Line {
    arriving: VecDeque<Parcel>,
    /// The messages, and how many regions came with each.
    sent: VecDeque<(Vec<u8>, usize)>,
    /// The last message: a send fails because the peer is gone, and has sent this before.
    last: Option<Vec<u8>>,
    /// Until when that is held back.
    last_held_back_until_ns: Option<u64>,
    /// The error of a receive without a message.
    error: Option<fn() -> FabricError>,
    /// It accepts no messages.
    is_full: bool,
    /// Nothing is received until then.
    held_back_until_ns: Option<u64>,
    /// How often a region was sent, and withdrawn.
    exposed: usize,
    withdrawn: usize,
    /// What it is capable of.
    capabilities: Capabilities,
    /// The work before a region can be sent.
    unprepared: Option<fn() -> Result<(), FabricError>>,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(in crate::node) struct Scripted(Arc<Mutex<Line>>, Arc<Waker>, Arc<OnceLock<Place>>);

/// A handle that is always readable.
pub(in crate::node) fn woken() -> Waker {
    let waker = Waker::new().unwrap();
    waker.wake();
    waker
}

impl Scripted {
    fn new(line: Line) -> Self {
        Self(Arc::new(Mutex::new(line)), Arc::new(woken()), Arc::default())
    }

    /// A connection on which nothing is received until then.
    pub(in crate::node) fn held_back(until_ns: u64) -> Self {
        Self::new(Line { held_back_until_ns: Some(until_ns), ..Line::default() })
    }

    /// A connection that is not established yet.
    pub(in crate::node) fn connecting() -> Self {
        let capabilities = Capabilities { is_connecting: true, ..Capabilities::default() };
        Self::new(Line { capabilities, ..Line::default() })
    }

    /// Establishes the connection.
    pub(in crate::node) fn establish(&self) {
        self.0.lock().capabilities.is_connecting = false;
    }

    /// A connection that accepts no messages, with this one to be received.
    pub(in crate::node) fn full(message: Vec<u8>) -> Self {
        let arriving = VecDeque::from([(message, None)]);
        Self::new(Line { arriving, is_full: true, ..Line::default() })
    }
}

impl Connection for Scripted {
    fn send(&mut self, message: &[u8], region: Option<&Registration>) -> Result<Sent, FabricError> {
        let mut line = self.0.lock();
        if line.is_full {
            return Ok(Sent::Full);
        }
        if let Some(last) = line.last.take() {
            line.arriving.push_back((last, None));
            line.held_back_until_ns = line.last_held_back_until_ns;
            return Err(FabricError::Closed);
        }
        line.exposed += usize::from(region.is_some());
        line.sent.push_back((message.to_vec(), region.is_some().into()));
        Ok(Sent::Done)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError> {
        let mut line = self.0.lock();
        if line.held_back_until_ns.is_some() {
            return Ok(Received::Nothing);
        }
        let Some((message, offer)) = line.arriving.pop_front() else {
            return line.error.map_or(Ok(Received::Nothing), |error| Err(error()));
        };
        into[..message.len()].copy_from_slice(&message);
        Ok(Received::Message { len: message.len(), offer })
    }

    fn held_back_until_ns(&self) -> Option<u64> {
        self.0.lock().held_back_until_ns
    }

    fn capabilities(&self) -> Capabilities {
        self.0.lock().capabilities
    }

    fn place(&self) -> Result<Option<&Place>, NoPlace> {
        Ok(self.2.get())
    }

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        None
    }

    fn prepare(&self, _: &Arc<Registration>) -> Result<Prepared, FabricError> {
        let work = self.0.lock().unprepared.take();
        Ok(work.map_or(Prepared::Done(RemoteKey::default()), |work| Prepared::Work(Box::new(work))))
    }

    fn withdraw(&mut self, _: &Registration) {
        self.0.lock().withdrawn += 1;
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.1.wait_handle()
    }
}

/// A landing region that accepts so many writes.
#[derive(Debug)]
struct Failing {
    posts_left: u32,
}

impl Offer for Failing {
    fn open_read(self: Box<Self>, _: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        Err(FabricError::Closed)
    }

    fn open_write(self: Box<Self>, _: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        Ok(self)
    }
}

impl RemoteWrite for Failing {
    fn post(&mut self, _: &Registration, _: &[Write]) -> Result<Completion, FabricError> {
        self.posts_left = self.posts_left.checked_sub(1).ok_or(FabricError::Closed)?;
        Ok(Completion::Done)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(0)
    }

    fn fetch_word(&mut self, _: usize) -> Result<Option<u64>, FabricError> {
        Ok(Some(0))
    }

    fn placement(&self) -> Placement {
        Placement::Words
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(NothingToRevoke)
    }
}

/// A progress slot on another host; reads of it complete once this is set.
#[derive(Debug)]
struct Slot(Arc<AtomicBool>, Arc<Region>);

impl Offer for Slot {
    fn open_read(self: Box<Self>, _: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        Ok(self)
    }

    fn open_write(self: Box<Self>, _: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        Err(FabricError::Closed)
    }
}

impl RemoteRead for Slot {
    fn mirror(&self) -> &Arc<Region> {
        &self.1
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn post(&mut self, _: &[ByteRange]) -> Result<Completion, FabricError> {
        Ok(Completion::Pending)
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        let is_done = self.0.load(Ordering::Relaxed);
        Ok(if is_done { Completion::Done } else { Completion::Pending })
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

/// A session with both ends on this thread.
struct Setup {
    node: Node,
    recorder: Arc<Recorder>,
    line: Arc<Mutex<Line>>,
    /// The peer's place, if it needs one.
    place: Arc<OnceLock<Place>>,
    served: Served,
    client: ClientSession,
}

impl Setup {
    fn new() -> Self {
        let recorder = Arc::new(Recorder::default());
        let network = Network::new(0, Reach::Mapped);
        let (fabric, clock) = (network.fabric(&"node".parse().unwrap()), Arc::clone(network.clock()));
        // Without a thread, which would tend landing regions at any moment.
        let (shared, _) =
            assemble((None, None), Arc::new(fabric), clock, Arc::clone(&recorder) as _).unwrap();
        let node = Node::new(shared, None);
        let (core, connection) = (node.core(), Scripted::new(Line::default()));
        let client = ClientSession::connect(0, core.greeting_without_keys(), u64::MAX);
        let (line, place) = (Arc::clone(&connection.0), Arc::clone(&connection.2));
        let served = Served::new(core, Box::new(connection), core.clock.monotonic_ns()).unwrap();
        Self { node, recorder, line, place, served, client }
    }

    /// Sends the peer's messages, with this region, and returns the answers.
    fn turn(&mut self, mut offer: Option<Box<dyn Offer>>) -> Vec<Result<ClientEvent, ControlError>> {
        let messages = std::iter::from_fn(|| self.client.next_message());
        self.line.lock().arriving.extend(messages.map(|message| (message.bytes, offer.take())));
        let core = self.node.core();
        let now_ns = core.clock.monotonic_ns();
        let ids: Vec<_> = self.served.attachments.keys().copied().collect();
        ids.into_iter().for_each(|id| _ = self.served.topic_changed(id.get()));
        self.served.turn(&mut Serving::new(core), now_ns);
        let sent: Vec<_> = self.line.lock().sent.drain(..).collect();
        sent.iter()
            .filter_map(|(message, regions)| self.client.on_message(message, *regions).transpose())
            .collect()
    }

    /// A publisher, and the messages to a peer that exposes a landing region for so many writes.
    fn expose(
        &mut self,
        values: usize,
        posts_left: u32,
    ) -> (StatePublisher<Raw>, Vec<Result<ClientEvent, ControlError>>) {
        let mut publisher = self.node.state_publisher::<Raw>("t").open().unwrap();
        for _ in 0..values {
            publisher.publish(b"value").unwrap();
        }
        self.turn(None);
        let id =
            self.client.attach("t".parse().unwrap(), Delivery::Push, None, KindOptions::default()).unwrap();
        assert!(matches!(self.turn(None)[..], [Ok(ClientEvent::Granted { .. })]));
        self.client.expose(id).unwrap();
        let events = self.turn(Some(Box::new(Failing { posts_left })));
        (publisher, events)
    }
}

/// How many messages were sent to a peer that said hello, and how the session ended.
fn end(error: fn() -> FabricError) -> (usize, Vec<Event>) {
    let mut setup = Setup::new();
    setup.line.lock().error = Some(error);
    let answers = setup.turn(None);
    assert!(setup.served.is_over());
    let events = setup.recorder.0.lock().drain(..).collect();
    (answers.len(), events)
}

#[test]
fn failing_connection_is_not_blamed_on_the_peer() {
    let failed: fn() -> FabricError =
        || FabricError::System { what: "reach the peer", source: std::io::ErrorKind::HostUnreachable.into() };
    for error in [failed, || FabricError::Closed] {
        let (answers, events) = end(error);
        assert_eq!(answers, 1, "its hello is answered, and that is all");
        let [Event::SessionOpened { .. }, Event::SessionClosed { orderly: false, .. }] = &events[..] else {
            panic!("{events:?}")
        };
    }
}

#[test]
fn overlong_message_is_blamed_on_the_peer() {
    let (answers, events) = end(|| FabricError::MessageTooLong { len: 1 << 20, max: 1 << 16 });
    assert_eq!(answers, 2, "a hello and a refusal");
    assert!(events.iter().any(|event| matches!(event, Event::PeerRejected { .. })), "{events:?}");
}

/// It gave this attempt to connect up, and connected by another.
#[test]
fn attempt_that_was_given_up_is_not_blamed_on_the_peer() {
    for is_connecting in [true, false] {
        let mut setup = Setup::new();
        setup.line.lock().capabilities.is_connecting = is_connecting;
        // What the fabric says once it has given up waiting for the peer, and what the node does after its own deadline.
        setup.line.lock().error = is_connecting.then_some(|| FabricError::Closed);
        let late_ns = setup.node.core().clock.monotonic_ns() + limits::HELLO_DEADLINE_NS;
        setup.served.turn(&mut Serving::new(setup.node.core()), late_ns);
        assert!(setup.served.is_over());
        let rejections = setup.recorder.0.lock().len();
        assert_eq!(
            rejections,
            usize::from(!is_connecting),
            "a peer that connects and says nothing is reported"
        );
    }
}

/// Anything it reads would be registered again for its connection.
#[test]
fn peer_that_dialled_to_write_is_not_served() {
    let mut setup = Setup::new();
    setup.line.lock().capabilities.is_dialled_to_write = true;
    let events = setup.turn(None);
    let refused = |event: &Result<_, ControlError>| {
        matches!(event, Err(ControlError::Refused { reason: RefuseReason::NotPermitted, .. }))
    };
    assert!(events.iter().any(refused), "{events:?}");
    assert!(setup.served.is_over());
    let events = setup.recorder.0.lock().clone();
    assert!(matches!(events[..], [Event::PeerRejected { .. }]), "{events:?}");
}

#[test]
fn unwritable_landing_region_is_refused() {
    for posts_left in [0, 1] {
        let mut setup = Setup::new();
        let (publisher, events) = setup.expose(3, posts_left);
        let [Ok(ClientEvent::Refused { attachment, reason: RefuseReason::LandingUnfit, .. })] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert!(setup.turn(None).is_empty(), "the session continues");
        assert!(!setup.served.is_over());
        assert_eq!(publisher.push_subscribers(), 0);
        let id = *attachment;
        setup.client.expose(id).unwrap();
        let events = setup.turn(Some(Box::new(Failing { posts_left: u32::MAX })));
        assert!(matches!(events[..], [Ok(ClientEvent::Exposed(_))]), "{events:?}");
        assert_eq!(publisher.push_subscribers(), 1);
    }
}

#[test]
fn landing_regions_of_a_session_are_bounded_and_the_refusal_names_the_bound() {
    let mut setup = Setup::new();
    let builder = setup.node.state_publisher::<Raw>("t").slots(2).payload_len_max(10 << 20);
    let publisher = builder.open().unwrap();
    let topic: TopicName = "t".parse().unwrap();
    let len = setup.node.core().topic(&topic).unwrap().geometry.region_len();
    setup.turn(None);
    let mut exposed = Vec::new();
    let (last, text) = loop {
        let id = setup.client.attach(topic.clone(), Delivery::Push, None, KindOptions::default()).unwrap();
        assert!(matches!(setup.turn(None)[..], [Ok(ClientEvent::Granted { .. })]));
        setup.client.expose(id).unwrap();
        match &setup.turn(Some(Box::new(Failing { posts_left: u32::MAX })))[..] {
            [Ok(ClientEvent::Exposed(_))] => exposed.push(id),
            [Ok(ClientEvent::Refused { reason: RefuseReason::LandingUnfit, text, .. })] => {
                break (id, text.clone());
            }
            events => panic!("{events:?}"),
        }
    };
    let max = limits::LANDING_LEN_PER_SESSION_DEFAULT;
    let count = exposed.len();
    assert!(count * len <= max && (count + 1) * len > max, "{count} of {len}");
    assert!(text.contains(&max.to_string()), "{text}");
    assert_eq!(publisher.push_subscribers(), count as u64);

    // Detaching frees capacity.
    setup.client.detach(exposed[0], SubscriberCounts::default()).unwrap();
    setup.turn(None);
    setup.turn(None);
    setup.client.expose(last).unwrap();
    let events = setup.turn(Some(Box::new(Failing { posts_left: u32::MAX })));
    assert!(matches!(events[..], [Ok(ClientEvent::Exposed(_))]), "{events:?}");
}

#[test]
fn landing_region_that_fails_later_ends_the_session() {
    let mut setup = Setup::new();
    let (mut publisher, events) = setup.expose(0, 2);
    assert!(matches!(events[..], [Ok(ClientEvent::Exposed(_))]), "{events:?}");
    for _ in 0..2 {
        publisher.publish(b"value").unwrap();
        let events = setup.turn(None);
        assert!(events.is_empty(), "{events:?}");
    }
    assert_eq!(publisher.push_subscribers(), 1);
    publisher.publish(b"value").unwrap();
    let events = setup.turn(None);
    let [Err(ControlError::Refused { reason: RefuseReason::LandingUnfit, text })] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(text, UNWRITABLE);
    assert!(setup.served.is_over());
    assert_eq!(publisher.push_subscribers(), 0);
    let told = setup.recorder.0.lock().iter().filter(|it| matches!(it, Event::Trouble { .. })).count();
    assert_eq!(told, 1);
}

/// An ending peer does not wait for answers. Its last message may come after the last receive, and before the answer.
#[test]
fn peer_that_ends_before_an_answer_ends_in_good_order() {
    [None, Some(7)].into_iter().for_each(end_before_an_answer);
}

/// Ends a session whose last message is held back until then.
fn end_before_an_answer(held_back_until_ns: Option<u64>) {
    let mut setup = Setup::new();
    let (_publisher, events) = setup.expose(1, u32::MAX);
    let [Ok(ClientEvent::Exposed(attachment))] = events[..] else { panic!("{events:?}") };
    let counts = SubscriberCounts::default();
    setup.client.detach(attachment, counts).unwrap();
    let detach = setup.client.next_message().unwrap().bytes;
    setup.client.end(0, EndReason::DONE, counts).unwrap();
    let end = setup.client.next_message().unwrap().bytes;
    {
        let mut line = setup.line.lock();
        line.arriving.push_back((detach, None));
        line.last = Some(end);
        line.last_held_back_until_ns = held_back_until_ns;
    }
    assert!(setup.turn(None).is_empty());
    if held_back_until_ns.is_some() {
        assert!(!setup.served.is_over());
        setup.line.lock().held_back_until_ns = None;
        setup.turn(None);
    }
    assert!(setup.served.is_over());
    let events = setup.recorder.0.lock().clone();
    assert!(matches!(events.last(), Some(Event::SessionClosed { orderly: true, .. })), "{events:?}");
}

/// It maps the memory as soon as the grant arrives, and keeps it.
#[test]
fn peer_granted_an_ended_topic_on_the_same_host_need_not_detach() {
    let mut setup = Setup::new();
    setup.line.lock().capabilities.shares_memory = true;
    let publisher = setup.node.state_publisher::<Raw>("t").open().unwrap();
    setup.turn(None);
    setup.client.attach("t".parse().unwrap(), Delivery::Pull, None, KindOptions::default()).unwrap();
    setup.line.lock().is_full = true;
    assert!(setup.turn(None).is_empty());
    drop(publisher);
    assert!(setup.turn(None).is_empty());
    setup.line.lock().is_full = false;
    assert_eq!(setup.turn(None).len(), 2, "the grant, and the end");
    let core = setup.node.core();
    let late_ns = core.clock.monotonic_ns() + limits::ENDED_GRACE_NS + 1;
    for _ in 0..2 {
        setup.served.turn(&mut Serving::new(core), late_ns);
    }
    assert!(!setup.served.is_over(), "{:?}", setup.recorder.0.lock());
}

/// The node's thread does not wait for memory to be registered.
#[test]
fn peer_is_answered_once_memory_was_registered_in_the_background() {
    let short = || Err(FabricError::system("register memory")(Errno::MFILE));
    let outcomes: [fn() -> Result<(), FabricError>; 3] = [|| Ok(()), || Err(FabricError::Closed), short];
    let reasons = [None, Some(RefuseReason::NotPermitted), Some(RefuseReason::Shortage)];
    for (work, expected) in outcomes.into_iter().zip(reasons) {
        let mut setup = Setup::new();
        let _publisher = setup.node.state_publisher::<Raw>("t").open().unwrap();
        setup.turn(None);
        setup.line.lock().unprepared = Some(work);
        setup.client.attach("t".parse().unwrap(), Delivery::Push, None, KindOptions::default()).unwrap();
        let answers = std::iter::repeat_with(|| setup.turn(None)).find(|answers| !answers.is_empty());
        match &answers.unwrap()[..] {
            [Ok(ClientEvent::Granted { .. })] => assert_eq!(expected, None),
            [Ok(ClientEvent::Refused { reason, .. })] => assert_eq!(expected, Some(*reason)),
            answers => panic!("{answers:?}"),
        }
    }
}

/// It never attached, and so does not detach.
#[test]
fn peer_without_a_landing_region_is_not_reported_as_detached() {
    for has_ended in [false, true] {
        let mut setup = Setup::new();
        let mut publisher = Some(setup.node.state_publisher::<Raw>("t").open().unwrap());
        setup.turn(None);
        let id =
            setup.client.attach("t".parse().unwrap(), Delivery::Push, None, KindOptions::default()).unwrap();
        assert!(matches!(setup.turn(None)[..], [Ok(ClientEvent::Granted { .. })]));
        publisher.take_if(|_| has_ended);
        assert_eq!(setup.turn(None).len(), usize::from(has_ended), "the end of the topic");
        setup.client.detach(id, SubscriberCounts::default()).unwrap();
        setup.turn(None);
        let events = setup.recorder.0.lock().clone();
        assert!(!events.iter().any(|event| matches!(event, Event::Detached { .. })), "{events:?}");
    }
}

/// The peer withdraws its slot once it knows that it is detached. A READ that the device repeats then would end the session.
#[test]
fn peer_is_detached_once_no_read_of_its_progress_slot_is_in_flight() {
    let mut setup = Setup::new();
    let publisher = setup.node.log_publisher::<Raw>("t").open().unwrap();
    setup.turn(None);
    let options = AttachOptions { options: KindOptions::default(), progress: Some(SlowPolicy::Lap) };
    let id = setup.client.attach("t".parse().unwrap(), Delivery::Push, None, options).unwrap();
    let is_done = Arc::new(AtomicBool::new(false));
    let memory = Arc::new(Region::allocate(PROGRESS_LEN, Protection::PeersRead).unwrap());
    let granted = setup.turn(Some(Box::new(Slot(Arc::clone(&is_done), memory))));
    assert!(matches!(granted[..], [Ok(ClientEvent::Granted { .. })]), "{granted:?}");
    let topic = setup.node.core().topic(publisher.topic()).unwrap();
    topic.subscribers.watch(1);

    setup.client.detach(id, SubscriberCounts::default()).unwrap();
    for _ in 0..3 {
        assert!(setup.turn(None).is_empty(), "the read is in flight");
    }
    is_done.store(true, Ordering::Relaxed);
    let detached = setup.turn(None);
    assert!(matches!(detached[..], [Ok(ClientEvent::Detached { .. })]), "{detached:?}");
}
