//! Publishers over RDMA that break the protocol: `tools/soft-roce run` runs this.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::control::{
    AttachmentId, Frame, Grant, NoticeChannel, NoticesBy, SchemaJson, ServerAction, ServerSession,
    TicketBytes, decode, encode, sample,
};
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{
    Acceptor, Address, ChannelSender, Connection, Exposure, Fabric, Intent, Offer, RdmaConnect, Received,
    Registration, Sent,
};
use crate::id::{Epoch, TopicId, TopicName};
use crate::layout::Geometry;
use crate::layout::state::StateGeometry;
use crate::limits;
use crate::memory::{Protection, Region};
use crate::payload::Schema;
use crate::repository::Writer;
use crate::repository::state::StateWriter;
use crate::subscriber::AttachError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::testkit::random::{Random, amount, each_seed};

mod garbage;

/// The only value in the repository of a hostile publisher.
const VALUE: [u8; 16] = [7; 16];
/// The messages of a hostile publisher that are broken, where it was dialled and where it dials.
const DIALLED: [&str; 6] = ["Hello", "Topics", "Granted", "Exposed", "Refused", "Notices"];
const DIALLING: [&str; 4] = ["Hello", "Invite", "Granted", "Exposed"];
/// How long after a broken message half of the publishers end the session.
const GRACE_NS: u64 = 200_000_000;
/// The most bytes of a region that subscribers accept.
const REGION_LEN_MAX: usize = 1 << 20;
/// A publisher that breaks no message.
const PLAIN: Plan = Plan { part: "none", seed: 0, confirms_end: true };

/// What a hostile publisher does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Which message it breaks, once.
    part: &'static str,
    seed: u64,
    /// Whether it confirms the end of subscriptions.
    confirms_end: bool,
}

/// How a message was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Its bytes are damaged.
    Damaged,
    /// Its body is damaged, under a right checksum.
    Sealed,
    /// It has the number of another kind.
    Renamed,
    /// Another message takes its place.
    Replaced,
}

/// A broken message that was sent.
struct Told {
    seed: u64,
    how: How,
    shown: String,
}

/// What a hostile publisher offers.
struct Stock {
    geometry: StateGeometry,
    epoch: Epoch,
    topic: TopicName,
    repository: Registration,
}

impl Stock {
    fn new(fabric: &VerbsFabric) -> Self {
        let (geometry, epoch) = (StateGeometry::new(8, 64).unwrap(), Epoch::new(0xBB).unwrap());
        let topic: TopicName = "t".parse().unwrap();
        let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
        let header = Geometry::from(geometry).static_header(epoch, TopicId::of(&topic), Schema::raw().hash());
        StateWriter::new(Arc::clone(&region), geometry, &header).publish(&VALUE, 3, 5).unwrap();
        let repository = fabric.register(&region, Exposure::Read).unwrap();
        Self { geometry, epoch, topic, repository }
    }

    fn grant(&self, attachment: AttachmentId) -> Grant {
        Grant {
            topic_id: TopicId::of(&self.topic),
            epoch: self.epoch,
            geometry: Geometry::from(self.geometry).numbers(),
            schema: SchemaJson::new(Schema::raw().to_json()).unwrap(),
            newest: Sequence::new(1),
            after: Sequence::NONE,
            lifespan_ns: 0,
            ..sample::grant(attachment.get())
        }
    }
}

/// A session of a hostile publisher, which says what an honest one says, but for one message.
struct Lie {
    plan: Plan,
    random: Random,
    connection: Box<dyn Connection>,
    session: ServerSession,
    /// Messages, and whether the repository goes with them.
    outbox: VecDeque<(Vec<u8>, bool)>,
    buffer: Vec<u8>,
    /// When it says what ends the session, ns, once it has broken a message.
    ends_ns: Option<u64>,
    has_lied: bool,
    channel: Option<Arc<dyn ChannelSender>>,
    landings: Vec<Box<dyn Offer>>,
    /// How the session ended, if the peer said so.
    end: Option<ControlError>,
}

impl Lie {
    fn new(plan: Plan, connection: Box<dyn Connection>, session: ServerSession) -> Self {
        Self {
            plan,
            random: Random::new(plan.seed),
            connection,
            session,
            outbox: VecDeque::new(),
            buffer: vec![0; limits::CONTROL_MESSAGE_LEN_MAX],
            ends_ns: None,
            has_lied: false,
            channel: None,
            landings: Vec::new(),
            end: None,
        }
    }

    /// Goes on. False once the session is over.
    fn turn(&mut self, stock: &Stock, told: &mut Vec<Told>) -> bool {
        let goes_on = loop {
            self.act(stock, told);
            match self.connection.receive(&mut self.buffer) {
                Ok(Received::Message { len, offer }) => {
                    self.session.on_message(&self.buffer[..len], usize::from(offer.is_some()));
                    self.landings.extend(offer);
                }
                Ok(Received::Nothing) => break self.end.is_none(),
                Ok(Received::Closed) | Err(_) => break false,
            }
        };
        if self.ends_ns.is_some_and(|ends_ns| SystemClock.monotonic_ns() >= ends_ns) {
            self.ends_ns = None;
            self.outbox.push_back((vec![0xff; 40], false));
        }
        while let Some((message, has_region)) = self.outbox.front() {
            match self.connection.send(message, has_region.then_some(&stock.repository)) {
                Ok(Sent::Done) => self.outbox.pop_front(),
                Ok(Sent::Full) => return goes_on,
                // The peer has ended the session, and may have said why.
                Err(_) => {
                    self.outbox.clear();
                    break;
                }
            };
        }
        goes_on
    }

    /// Performs the actions of the session. Answers fail once a broken message has ended it.
    fn act(&mut self, stock: &Stock, told: &mut Vec<Told>) {
        while let Some(action) = self.session.next_action() {
            let _ = match action {
                ServerAction::Send(outgoing) => {
                    self.say(outgoing.bytes, outgoing.region_of.is_some(), told);
                    Ok(())
                }
                ServerAction::QueryTopics { after } => {
                    let entries = if after.is_none() { vec![sample::entry("t")] } else { Vec::new() };
                    self.session.answer_topics(entries, false)
                }
                ServerAction::Attach(attach) if self.plan.part == "Refused" => {
                    let reason = (self.random.below(48) as u16).into();
                    self.session.refuse(attach.attachment, reason, "not today")
                }
                ServerAction::Attach(attach) => self.session.grant(stock.grant(attach.attachment)),
                ServerAction::Expose(attachment) => self.session.exposed(attachment),
                ServerAction::Listen(attachment) => {
                    let by = self.notices();
                    self.session.notices(attachment, by)
                }
                ServerAction::Detach(detach) if self.plan.confirms_end => {
                    self.session.detached(detach.attachment, 1)
                }
                ServerAction::Close { result } => {
                    self.end = Some(result.err().unwrap_or(ControlError::Closed { state: "in good order" }));
                    Ok(())
                }
                _ => Ok(()),
            };
        }
    }

    /// How an honest publisher gives notice: by writes, or on a channel.
    fn notices(&mut self) -> NoticesBy {
        if !self.landings.is_empty() {
            return NoticesBy::Immediate;
        }
        self.channel = self.connection.datagrams().and_then(|it| it.channel_sender().unwrap());
        let Some(channel) = &self.channel else { return NoticesBy::Nothing };
        NoticesBy::Channel(NoticeChannel { ticket: TicketBytes::cut(channel.ticket()), ..sample::channel() })
    }

    /// Sends this message, broken if it is the one to be broken.
    fn say(&mut self, message: Vec<u8>, has_region: bool, told: &mut Vec<Told>) {
        if self.has_lied || decode(&message).unwrap().name() != self.plan.part {
            self.outbox.push_back((message, has_region));
            return;
        }
        self.has_lied = true;
        let (how, broken) = broken(&message, &mut self.random);
        told.push(Told { seed: self.plan.seed, how, shown: format!("{how:?} {broken:02x?}") });
        self.outbox.push_back((broken, has_region ^ self.random.once_in(8)));
        if self.random.once_in(2) {
            self.outbox.push_back((message, has_region));
        }
        let grace_ns = if self.random.once_in(2) { GRACE_NS } else { 0 };
        self.ends_ns = Some(SystemClock.monotonic_ns() + grace_ns);
    }
}

/// What is said in place of this message.
fn broken(message: &[u8], random: &mut Random) -> (How, Vec<u8>) {
    let Frame { version, kind, body } = Frame::parse(message).unwrap();
    match random.below(6) {
        0 => (How::Damaged, mutated(message, random)),
        1..=3 => (How::Sealed, Frame { version, kind, body: &mutated(body, random) }.emit()),
        4 => {
            let other = (kind + 1 + random.below(25) as u16) % 26;
            (How::Renamed, Frame { version, kind: other, body }.emit())
        }
        _ => {
            let all = sample::every_message();
            let other = encode(&all[random.index(all.len())]);
            let Frame { version, kind, body } = Frame::parse(&other).unwrap();
            let mut body = body.to_vec();
            if body.starts_with(&[0, 0, 0, 9]) {
                // Samples are about attachment 9, and the first one of a session is 0.
                body[3] = 0;
            }
            (How::Replaced, Frame { version, kind, body: &body }.emit())
        }
    }
}

/// Bytes of which some were changed, or cut off, or added.
fn mutated(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    match random.below(6) {
        0 => bytes[..1 + random.index(bytes.len() - 1)].to_vec(),
        1 => [bytes, &vec![random.next() as u8; 1 + random.index(200)]].concat(),
        _ => {
            let mut bytes = bytes.to_vec();
            // Never back to what it was.
            for _ in 0..1 + random.index(3) {
                let at = random.index(bytes.len());
                bytes[at] = bytes[at].wrapping_add(1 + (random.next() % 80) as u8);
            }
            bytes
        }
    }
}

/// Whether this is what a receiver says of bytes that are no message.
fn is_about_a_frame(error: &ControlError) -> bool {
    let names = ["TooShort", "BadMagic", "Version", "LengthMismatch", "BadChecksum"];
    names.contains(&variant(error).as_str())
}

/// A program that poses as a publisher's node.
struct Liar {
    stock: Stock,
    acceptor: Box<dyn Acceptor>,
    fabric: VerbsFabric,
    /// Introduces it.
    node: Node,
    lies: Vec<Lie>,
    told: Vec<Told>,
    /// The most landing regions that were exposed in one session.
    landings_max: usize,
}

impl Liar {
    fn open(dir: &tempfile::TempDir, at: &str) -> Self {
        let config = VerbsConfig { listen: Some(at.parse().unwrap()), ..VerbsConfig::default() };
        let fabric = VerbsFabric::new(config).unwrap();
        let acceptor = fabric.listen(&"liar".parse().unwrap()).unwrap().remove(0);
        let (stock, node) = (Stock::new(&fabric), anonymous(dir));
        Self { stock, acceptor, fabric, node, lies: Vec::new(), told: Vec::new(), landings_max: 0 }
    }

    fn turn(&mut self, plan: Plan) {
        // One that was given up meanwhile is not served.
        if let Ok(Some(connection)) = self.acceptor.accept() {
            let greeting = self.node.core().greeting_without_keys();
            let session = ServerSession::new(SystemClock.monotonic_ns(), greeting);
            self.lies.push(Lie::new(plan, connection, session));
        }
        let Self { stock, lies, told, landings_max, .. } = self;
        lies.retain_mut(|lie| {
            let goes_on = lie.turn(stock, told);
            *landings_max = lie.landings.len().max(*landings_max);
            goes_on
        });
    }

    /// The message that was broken by this plan, once it was sent.
    fn told(&mut self, plan: Plan) -> Option<Told> {
        std::mem::take(&mut self.told).into_iter().find(|told| told.seed == plan.seed)
    }

    /// Lies to those who dial while this runs, on a thread of its own.
    fn meet<T: Send>(&mut self, plan: Plan, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let acting = scope.spawn(act);
            while !acting.is_finished() {
                self.turn(plan);
                SystemClock.pause(Duration::from_millis(1));
            }
            acting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// How a subscription to a hostile publisher ended.
#[derive(Debug)]
enum End {
    Session(ControlError),
    Refused,
    Unfit,
    Ended,
    /// Its topics were listed.
    Listed,
}

impl End {
    fn name(&self) -> String {
        if let Self::Session(error) = self { variant(error) } else { variant(self) }
    }
}

/// The name of this variant.
fn variant(of: &dyn fmt::Debug) -> String {
    format!("{of:?}").split(|char: char| !char.is_alphanumeric()).next().unwrap().to_owned()
}

/// Requests what has this publisher send a message of this kind, and waits for the end.
fn subscribe(node: &Node, at: &str, Plan { part, seed, .. }: Plan) -> End {
    if part == "Topics" {
        return match node.directory_timeout(at, TIMEOUT) {
            Ok(_) => End::Listed,
            Err(DirectoryError::Session { source, .. }) => End::Session(source),
            Err(error) => panic!("{error:?}"),
        };
    }
    let pushes = part == "Exposed" || seed % 4 < 2;
    let delivery = if pushes { Delivery::Push } else { Delivery::Pull };
    let target = format!("{at}/t");
    let builder = node.state_subscriber::<Raw>(target.as_str()).timeout(TIMEOUT).delivery(delivery);
    let builder = if part == "Notices" { builder.notices() } else { builder };
    let mut subscriber = match builder.region_len_max(REGION_LEN_MAX).open() {
        Ok(subscriber) => subscriber,
        Err(SubscriberError::Session { source, .. }) => return End::Session(source),
        Err(SubscriberError::Refused { .. }) => return End::Refused,
        Err(SubscriberError::Unfit { .. }) => return End::Unfit,
        Err(error) => panic!("{error:?}"),
    };
    loop {
        match subscriber.receive_timeout(TIMEOUT) {
            Ok(Some(sample)) => assert_eq!(sample.value, VALUE),
            Ok(None) => panic!("it waited in vain for the end"),
            Err(ReceiveError::Gone { source }) => return End::Session(source),
            Err(ReceiveError::Ended { .. } | ReceiveError::Overtaken { .. }) => return End::Ended,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn address(port: u16) -> String {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    format!("rdma://{host}:{port}")
}

/// An honest publisher, and a node that subscribes to it and to others.
struct Victim {
    publisher: crate::publisher::StatePublisher<u64>,
    neighbour: StateSubscriber<u64>,
    node: Node,
    target: String,
    _publishing: Node,
}

impl Victim {
    fn open(dir: &tempfile::TempDir, connect: RdmaConnect, port: u16) -> Self {
        let at = address(port);
        let builder = Node::builder().name("honest").unwrap().runtime_dir(dir.path()).rdma(&at).unwrap();
        let publishing = builder.insecure().open().unwrap();
        let publisher = publishing.state_publisher::<u64>("t").open().unwrap();
        let node = Node::builder().runtime_dir(dir.path()).rdma_connect(connect).open().unwrap();
        let target = format!("{at}/t");
        let neighbour = node.state_subscriber::<u64>(target.as_str()).timeout(TIMEOUT).open().unwrap();
        Self { publisher, neighbour, node, target, _publishing: publishing }
    }

    /// Checks that its node receives values, by this subscription and by another one.
    fn receives(&mut self, number: u64) {
        self.publisher.publish(&number).unwrap();
        assert_eq!(receive(&mut self.neighbour).value, number);
        let builder = self.node.state_subscriber::<u64>(self.target.as_str()).timeout(TIMEOUT);
        assert_eq!(receive(&mut builder.push().open().unwrap()).value, number);
        assert_eq!(self.neighbour.stats().rejected, 0);
    }
}

fn messages_end_their_session_only(connect: RdmaConnect, port: u16) {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = Victim::open(&dir, connect, port);
    let at = address(port + 1);
    let mut liar = Liar::open(&dir, &at);
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    each_seed(amount(24, 1200), |seed| {
        let part = DIALLED[seed as usize % DIALLED.len()];
        let plan = Plan { part, seed, confirms_end: true };
        let node = victim.node.clone();
        let end = liar.meet(plan, || subscribe(&node, &at, plan));
        let told = liar.told(plan).unwrap_or_else(|| panic!("seed {seed}: no {part} was sent: {end:?}"));
        let what = format!("seed {seed}: {end:?} after {} in place of {part}", told.shown);
        // A broken message is an answer: nobody waits for another one.
        assert!(!matches!(end, End::Session(ControlError::Deadline { .. })), "{what}");
        if told.how == How::Damaged {
            assert!(matches!(&end, End::Session(error) if is_about_a_frame(error)), "{what}");
        }
        *ends.entry(end.name()).or_default() += 1;
        victim.receives(seed);
    });
    println!("{connect:?}: {ends:?}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn malformed_messages_of_a_publisher_over_rdma_end_their_session_only() {
    messages_end_their_session_only(RdmaConnect::Manager, 7561);
}

#[test]
#[ignore = "needs an RDMA device"]
fn malformed_messages_of_a_publisher_over_rdma_connected_by_tcp_end_their_session_only() {
    messages_end_their_session_only(RdmaConnect::Tcp, 7563);
}

/// What came of the publishers that dialled.
#[derive(Debug, Default)]
struct Accepted {
    values: Vec<Vec<u8>>,
    errors: Vec<AttachError>,
}

/// Stops what runs on other threads, also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Accepts publishers until it is stopped, and receives their values.
fn accept_all(listener: &Listener<StateSubscriber<Raw>>, accepted: &Mutex<Accepted>, stop: &AtomicBool) {
    let mut subscribers = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept_timeout(Duration::from_millis(5)) {
            Ok(subscriber) => subscribers.extend(subscriber),
            Err(SubscriberError::Dialled { source, .. }) => accepted.lock().errors.push(source),
            Err(error) => panic!("{error:?}"),
        }
        subscribers.retain_mut(|subscriber| match subscriber.try_receive() {
            Ok(sample) => {
                accepted.lock().values.extend(sample.map(|sample| sample.value));
                true
            }
            Err(error) => !matches!(error, ReceiveError::Ended { .. } | ReceiveError::Gone { .. }),
        });
    }
}

/// Dials a node that listens, and lies until the session is over. Returns what it told, and how the session ended.
fn dial(liar: &mut Liar, fabric: &VerbsFabric, to: &Address, plan: Plan) -> (Told, Option<ControlError>) {
    let connection = fabric.dial(to, Intent::Write, Duration::ZERO).unwrap();
    let (greeting, topic) = (liar.node.core().greeting_without_keys(), liar.stock.topic.clone());
    let mut lie = Lie::new(plan, connection, ServerSession::inviting(u64::MAX, greeting, topic));
    let seed = plan.seed;
    wait_until(&format!("seed {seed}: the end of a session"), || !lie.turn(&liar.stock, &mut liar.told));
    let told = liar.told(plan).unwrap_or_else(|| panic!("seed {seed}: no {} was sent", plan.part));
    (told, lie.end)
}

fn invitations_are_refused(connect: RdmaConnect, port: u16) {
    let dir = tempfile::tempdir().unwrap();
    let at = address(port);
    let builder = Node::builder().name("desk").unwrap().runtime_dir(dir.path()).rdma(&at).unwrap();
    let desk = builder.insecure().open().unwrap();
    let listener = desk.state_listener::<Raw>("t").timeout(TIMEOUT).push().region_len_max(REGION_LEN_MAX);
    let listener = listener.open().unwrap();
    let publishing = Node::builder().runtime_dir(dir.path()).rdma_connect(connect).open().unwrap();
    let mut liar = Liar::open(&dir, &address(port + 1));
    let fabric = VerbsFabric::new(VerbsConfig { connect, ..VerbsConfig::default() }).unwrap();
    let (accepted, stop) = (Mutex::new(Accepted::default()), AtomicBool::new(false));
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    std::thread::scope(|scope| {
        scope.spawn(|| accept_all(&listener, &accepted, &stop));
        let _stop = Stop(&stop);
        each_seed(amount(12, 480), |seed| {
            let part = DIALLING[seed as usize % DIALLING.len()];
            let plan = Plan { part, seed, confirms_end: true };
            let (told, end) = dial(&mut liar, &fabric, &at.parse().unwrap(), plan);
            let what = format!("seed {seed}: {end:?} after {} in place of {part}", told.shown);
            if told.how == How::Damaged {
                use RefuseReason::{Malformed, VersionUnsupported};
                let refused = |error: &ControlError| {
                    matches!(error, ControlError::Refused { reason: Malformed | VersionUnsupported, .. })
                        || matches!(error, ControlError::Version { .. })
                };
                assert!(end.as_ref().is_some_and(refused), "{what}");
            }
            end.iter().for_each(|error| *ends.entry(variant(error)).or_default() += 1);
            let mut publisher = publishing.state_publisher::<Raw>("t").open().unwrap();
            publishing.dial_subscriber("t", at.as_str(), TIMEOUT).unwrap();
            let value = [&VALUE[..], &seed.to_le_bytes()].concat();
            publisher.publish(&value).unwrap();
            wait_until(&format!("seed {seed}: the value of an honest publisher"), || {
                accepted.lock().values.contains(&value)
            });
            // Only a publisher that has invited is worth an error.
            let errors = std::mem::take(&mut accepted.lock().errors);
            let is_early = matches!(part, "Hello" | "Invite") && told.how == How::Damaged;
            assert!(errors.is_empty() || !is_early, "{errors:?}: {what}");
        });
    });
    let values = accepted.lock().values.clone();
    assert!(values.iter().all(|value| value.len() == 24), "values of a hostile publisher: {values:?}");
    println!("{connect:?}: {ends:?}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn malformed_invitations_over_rdma_are_refused_and_the_listener_continues() {
    invitations_are_refused(RdmaConnect::Manager, 7565);
}

#[test]
#[ignore = "needs an RDMA device"]
fn malformed_invitations_over_rdma_connected_by_tcp_are_refused_and_the_listener_continues() {
    invitations_are_refused(RdmaConnect::Tcp, 7567);
}

fn landing_regions_are_limited(connect: RdmaConnect, port: u16) {
    /// Long enough for honest answers in emulation.
    const SHORT: Duration = Duration::from_secs(15);
    let dir = tempfile::tempdir().unwrap();
    let mut victim = Victim::open(&dir, connect, port);
    let at = address(port + 1);
    let mut liar = Liar::open(&dir, &at);
    let (node, target) = (victim.node.clone(), format!("{at}/t"));
    let region_len = liar.stock.repository.region().len();
    // All with one timeout: a session keeps that of its first subscription.
    let open = || {
        let builder = node.state_subscriber::<Raw>(target.as_str()).push().region_len_max(2 * region_len);
        builder.timeout(SHORT).open().map(drop)
    };
    let plan = Plan { confirms_end: false, ..PLAIN };
    for round in 0..2 {
        // Two that are left over are within the limit.
        for number in 0..3 {
            let opened = liar.meet(plan, open);
            opened.unwrap_or_else(|error| panic!("number {number} of round {round}: {}", ErrorChain(&error)));
        }
        let error = liar.meet(plan, open).expect_err("three landing regions are left over");
        let SubscriberError::Session { source, .. } = &error else { panic!("{error:?}") };
        assert!(matches!(source, ControlError::Deadline { .. }), "{source:?}");
        // The next one has a session of its own, and the regions of this one are released.
        victim.receives(round);
    }
    assert_eq!(liar.landings_max, 3);
}

/// A publisher that grants push subscriptions and never confirms their end: each would leave a landing region behind.
#[test]
#[ignore = "needs an RDMA device"]
fn publisher_over_rdma_that_confirms_no_end_gets_a_limited_number_of_landing_regions() {
    landing_regions_are_limited(RdmaConnect::Manager, 7569);
}
