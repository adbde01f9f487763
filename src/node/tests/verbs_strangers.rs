//! Strangers who repeat, send back or pass on over RDMA what others have proven: `tools/soft-roce run` runs this.
//!
//! Without a short tag of a key their requests to connect are rejected. Here a policy makes valid ones for them, as if they had guessed
//! one: a tag proves nothing, and they know no secret.

use std::net::SocketAddr;

use super::requests::NodePolicy;
use super::*;
use crate::control::{ClientEvent, ClientSession, Hello, Message, Unproven, decode, encode};
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{
    Acceptor, Address, AdmitAnyone, ConnectPolicy, ConnectRequest, Connection, Fabric, FabricError, Intent,
    NotAdmitted, Offer, RdmaConnect, Received, Sent,
};
use crate::id::KindOptions;
use crate::limits;
use crate::publisher::StatePublisher;
use crate::sync::atomic::{AtomicU32, Ordering};

pub(super) const CONNECTS: [RdmaConnect; 2] = [RdmaConnect::Manager, RdmaConnect::Tcp];

/// A secret of one byte, repeated.
fn secret(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

/// The keyring of a node that reads everything.
pub(super) fn readers_keys() -> Keyring {
    Keyring::from_text(&format!("mine read * {}", secret(1))).unwrap()
}

/// An address that nobody listens at.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(7530);
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let port = u16::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap();
    SocketAddr::new(host.parse().unwrap(), port)
}

pub(super) fn fabric(connect: RdmaConnect, policy: Arc<dyn ConnectPolicy>) -> VerbsFabric {
    VerbsFabric::new(VerbsConfig { connect, policy: Some(policy), ..VerbsConfig::default() }).unwrap()
}

/// Shows the short tags that a holder of the key shows.
pub(super) fn showing_tags() -> Arc<dyn ConnectPolicy> {
    Arc::new(NodePolicy::new(Some(readers_keys()), Vec::new()))
}

/// A node with a keyring, and two topics with a value each.
pub(super) struct Quotes {
    pub(super) dir: tempfile::TempDir,
    pub(super) at: Address,
    pub(super) node: Node,
    pub(super) publishers: [StatePublisher<u64>; 2],
    events: Arc<Recorder>,
}

impl Quotes {
    /// On this host or over RDMA, with these lines as keyring; without one, if there are none.
    fn with(is_far: bool, lines: &str) -> Self {
        Self::limited(is_far, lines, PeerLimits::default())
    }

    fn limited(is_far: bool, lines: &str, limits: PeerLimits) -> Self {
        let (dir, events) = (tempfile::tempdir().unwrap(), Arc::new(Recorder::default()));
        let builder = Node::builder().name("quotes").unwrap().runtime_dir(dir.path());
        let builder = builder.events(Arc::<Recorder>::clone(&events)).peer_limits(limits);
        let (builder, at) = if is_far {
            let at = Address::rdma(free_address());
            (builder.rdma(&at.to_string()).unwrap(), at)
        } else {
            (builder, "shm:quotes".parse().unwrap())
        };
        let node = match lines {
            "" => builder.insecure().open(),
            lines => builder.keys(Keyring::from_text(lines).unwrap()).open(),
        };
        let node = node.unwrap();
        let mut publishers = ["md/a", "md/b"].map(|topic| node.state_publisher::<u64>(topic).open().unwrap());
        publishers.iter_mut().for_each(|publisher| _ = publisher.publish(&7).unwrap());
        Self { dir, at, node, publishers, events }
    }

    pub(super) fn open() -> Self {
        Self::open_limited(PeerLimits::default())
    }

    fn open_limited(limits: PeerLimits) -> Self {
        Self::limited(true, &format!("desk read md {}", secret(1)), limits)
    }

    /// A node of this name that dials so.
    pub(super) fn peer(&self, name: &str, connect: RdmaConnect, keyring: Option<Keyring>) -> Node {
        let builder = Node::builder().name(name).unwrap().runtime_dir(self.dir.path()).rdma_connect(connect);
        match keyring {
            Some(keyring) => builder.keys(keyring).open().unwrap(),
            None => builder.open().unwrap(),
        }
    }

    pub(super) fn subscribers(&self) -> u64 {
        self.publishers.iter().map(|it| it.pull_subscribers() + it.push_subscribers()).sum()
    }

    /// How many sessions have begun, and how many peers were rejected for this.
    fn begun_and_rejected(&self, why: Unproven) -> (usize, usize) {
        let (events, why) = (self.events.0.lock(), why.to_string());
        let begun = events.iter().filter(|event| matches!(event, Event::SessionOpened { .. }));
        let rejected = events
            .iter()
            .filter(|event| matches!(event, Event::PeerRejected { reason } if reason.contains(&why)));
        (begun.count(), rejected.count())
    }

    pub(super) fn wait_for(&self, what: &str, found: impl Fn(&Event) -> bool) {
        self.events.wait_for(what, found);
    }
}

pub(super) fn subscribe(
    node: &Node,
    at: &Address,
    topic: &str,
    delivery: Delivery,
) -> Result<StateSubscriber<u64>, SubscriberError> {
    let target = format!("{at}/{topic}");
    node.state_subscriber::<u64>(target.as_str()).delivery(delivery).timeout(TIMEOUT).open()
}

/// A message, and the region that came with it.
type Heard = (Vec<u8>, Option<Box<dyn Offer>>);

/// One end of a connection, and whatever its program sends.
pub(super) struct End {
    connection: Box<dyn Connection>,
    buffer: Vec<u8>,
}

impl End {
    fn new(connection: Box<dyn Connection>) -> Self {
        Self { connection, buffer: vec![0; limits::CONTROL_MESSAGE_LEN_MAX] }
    }

    pub(super) fn dial(fabric: &VerbsFabric, at: &Address) -> Self {
        Self::new(fabric.dial(at, Intent::Read, Duration::ZERO).unwrap())
    }

    fn accept(listener: &mut dyn Acceptor) -> Self {
        let mut accepted = None;
        wait_until("a peer that dials", || {
            accepted = listener.accept().unwrap();
            accepted.is_some()
        });
        Self::new(accepted.unwrap())
    }

    /// Sends this. False if the session is over.
    pub(super) fn say(&mut self, message: &[u8]) -> bool {
        let mut outcome = Ok(Sent::Full);
        wait_until("room for a message", || {
            outcome = self.connection.send(message, None);
            !matches!(outcome, Ok(Sent::Full))
        });
        outcome.is_ok()
    }

    /// The next message, if there is one. An error once the session is over.
    pub(super) fn try_hear(&mut self) -> Result<Option<Heard>, FabricError> {
        Ok(match self.connection.receive(&mut self.buffer)? {
            Received::Nothing => None,
            Received::Message { len, offer } => Some((self.buffer[..len].to_vec(), offer)),
            Received::Closed => return Err(FabricError::Closed),
        })
    }

    /// Waits for the next message. An error once the session is over.
    pub(super) fn hear(&mut self) -> Result<Heard, FabricError> {
        let mut heard = Ok(None);
        wait_until("a message, or the end", || {
            heard = self.try_hear();
            !matches!(heard, Ok(None))
        });
        heard.map(|heard| heard.unwrap())
    }

    /// Everything that is said until the session is over.
    fn rest(&mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.hear().ok()).map(|(message, _)| decode(&message).unwrap()).collect()
    }
}

/// The end of a connection that a node with keys would have.
pub(super) struct Client {
    pub(super) end: End,
    pub(super) session: ClientSession,
    said: Vec<Vec<u8>>,
    heard: Vec<Vec<u8>>,
}

impl Client {
    /// Dials, and proves the keys of this node.
    pub(super) fn dial(fabric: &VerbsFabric, at: &Address, node: &Node) -> Self {
        let end = End::dial(fabric, at);
        let greeting = node.core().greeting(&*end.connection).unwrap();
        let session = ClientSession::connect(0, greeting, u64::MAX);
        let mut client = Self { end, session, said: Vec::new(), heard: Vec::new() };
        let (event, _) = client.next();
        assert!(matches!(event, ClientEvent::Ready { .. }), "{event:?}");
        client
    }

    /// Sends what is to be sent, and waits for what happens next.
    pub(super) fn next(&mut self) -> (ClientEvent, Option<Box<dyn Offer>>) {
        loop {
            while let Some(message) = self.session.next_message() {
                assert!(self.end.say(&message.bytes));
                self.said.push(message.bytes);
            }
            let (message, offer) = self.end.hear().unwrap();
            if self.session.needs_binding() {
                self.session.bind(self.end.connection.binding().unwrap());
            }
            let event = self.session.on_message(&message, usize::from(offer.is_some())).unwrap();
            self.heard.push(message);
            if let Some(event) = event {
                return (event, offer);
            }
        }
    }
}

fn names(messages: &[Message]) -> Vec<&'static str> {
    messages.iter().map(Message::name).collect()
}

/// What was said of a session that was recorded.
fn recorded(messages: &[Vec<u8>]) -> Vec<Message> {
    messages.iter().map(|message| decode(message).unwrap()).collect()
}

fn refusal(message: &Message) -> (RefuseReason, &str) {
    let Message::Refuse(refuse) = message else { panic!("{message:?}") };
    (refuse.reason, refuse.text.as_str())
}

/// The refusal of a stranger that proves no key.
const NOTHING_SAID: (RefuseReason, &str) = (RefuseReason::NotAuthenticated, "");
/// A place that the node does not look after before the hello comes is kept for twice the deadline.
const LOST_WITHIN_NS: u64 = 2 * limits::HELLO_DEADLINE_NS - 500_000_000;

#[track_caller]
fn is_unauthenticated<T>(outcome: Result<T, SubscriberError>) {
    let Err(error) = outcome else { panic!("it was admitted") };
    let SubscriberError::Session { source, .. } = error else { panic!("{error:?}") };
    let refused = ControlError::Refused { reason: RefuseReason::NotAuthenticated, text: String::new() };
    assert_eq!(source, refused);
}

/// Dials, says all this, and returns what the stranger is told.
fn repeat(fabric: &VerbsFabric, at: &Address, messages: &[Vec<u8>]) -> Vec<Message> {
    let mut stranger = End::dial(fabric, at);
    let _ = messages.iter().all(|message| stranger.say(message));
    stranger.rest()
}

/// An honest session, in which topics are listed and one is attached.
fn honest_session(quotes: &Quotes, connect: RdmaConnect) -> Client {
    let node = quotes.peer("honest", connect, Some(readers_keys()));
    let mut honest = Client::dial(&fabric(connect, showing_tags()), &quotes.at, &node);
    honest.session.list(None).unwrap();
    let (event, _) = honest.next();
    assert!(matches!(&event, ClientEvent::Topics { entries, .. } if entries.len() == 2), "{event:?}");
    honest.session.attach("md/a".parse().unwrap(), Delivery::Pull, None, KindOptions::default()).unwrap();
    let (event, offer) = honest.next();
    assert!(matches!(event, ClientEvent::Granted { .. }) && offer.is_some(), "{event:?}");
    assert_eq!(names(&recorded(&honest.said)), ["Hello", "Prove", "ListTopics", "Attach"]);
    assert_eq!(names(&recorded(&honest.heard)), ["Hello", "Prove", "Topics", "Granted"]);
    honest
}

/// While it goes on, and once it is over.
#[test]
#[ignore = "needs an RDMA device"]
fn session_recorded_over_rdma_cannot_be_replayed() {
    for connect in CONNECTS {
        let quotes = Quotes::open();
        let honest = honest_session(&quotes, connect);
        let said = honest.said.clone();
        let mut honest = Some(honest);
        let fabric = fabric(connect, showing_tags());
        for (count, subscribers) in [(1, 1), (2, 0)] {
            if subscribers == 0 {
                honest = None;
                wait_until("the end of the session", || quotes.subscribers() == 0);
            }
            let told = repeat(&fabric, &quotes.at, &said);
            assert_eq!(names(&told), ["Hello", "Refuse"], "{connect:?}");
            assert_eq!(refusal(&told[1]), NOTHING_SAID);
            assert_eq!(quotes.subscribers(), subscribers);
            assert_eq!(quotes.begun_and_rejected(Unproven::WrongTag), (1, count));
        }
        drop(honest);
    }
}

/// The same messages, with the challenge of the node in place of one's own, and its proofs.
#[test]
#[ignore = "needs an RDMA device"]
fn what_a_dialled_node_has_sent_over_rdma_is_refused_when_it_is_sent_back() {
    for connect in CONNECTS {
        let quotes = Quotes::open();
        let honest = honest_session(&quotes, connect);
        let fabric = fabric(connect, showing_tags());
        let told = repeat(&fabric, &quotes.at, &honest.heard);
        assert_eq!(names(&told), ["Refuse"], "{connect:?}");

        let [hello, proofs, ..] = &honest.heard[..] else { panic!() };
        let Ok(Message::Hello(said)) = decode(hello) else { panic!() };
        let asking = encode(&Message::Hello(Hello { answers: None, ..said }));
        let told = repeat(&fabric, &quotes.at, &[asking.clone(), proofs.clone()]);
        assert_eq!(names(&told), ["Hello", "Refuse"], "{connect:?}");
        assert_eq!(refusal(&told[1]), NOTHING_SAID);
        assert_eq!(quotes.begun_and_rejected(Unproven::WrongTag), (1, 1));

        // Nor is the answer to it anything that begins a session.
        let mut stranger = End::dial(&fabric, &quotes.at);
        assert!(stranger.say(&asking));
        let answer = stranger.hear().unwrap().0;
        assert!(stranger.say(&answer));
        assert_eq!(names(&stranger.rest()), ["Refuse"], "{connect:?}");
        assert_eq!((quotes.begun_and_rejected(Unproven::WrongTag), quotes.subscribers()), ((1, 1), 1));
    }
}

/// A stranger at the other end answers with the challenge and the proofs of the node that dials it.
#[test]
#[ignore = "needs an RDMA device"]
fn what_a_node_that_dials_over_rdma_has_sent_is_no_proof_of_its_peer() {
    for connect in CONNECTS {
        let quotes = Quotes::open();
        let node = quotes.peer("honest", connect, Some(readers_keys()));
        let at = free_address();
        let mut listener = fabric(connect, Arc::new(AdmitAnyone)).listen_at(&at).unwrap();
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| subscribe(&node, &Address::rdma(at), "md/a", Delivery::Pull));
            let mut stranger = End::accept(&mut *listener);
            let Ok(Message::Hello(said)) = decode(&stranger.hear().unwrap().0) else { panic!() };
            let answers = Some(said.nonce);
            assert!(stranger.say(&encode(&Message::Hello(Hello { answers, ..said }))));
            let proofs = stranger.hear().unwrap().0;
            assert_eq!(decode(&proofs).unwrap().name(), "Prove");
            assert!(stranger.say(&proofs));
            let told = stranger.rest();
            assert_eq!(names(&told), ["Refuse"], "{connect:?}");
            assert_eq!(refusal(&told[0]), NOTHING_SAID);
            let Err(SubscriberError::Session { source, .. }) = opening.join().unwrap() else { panic!() };
            assert_eq!(source, ControlError::Unauthenticated { why: Unproven::WrongTag });
        });
    }
}

/// Passes on what both ends say, byte for byte, until both sessions are over. Returns what each has said.
fn pass_on(mut ends: [End; 2]) -> [Vec<Message>; 2] {
    let (mut said, mut over) = ([Vec::new(), Vec::new()], [false; 2]);
    wait_until("the end of both sessions", || {
        for from in [0, 1] {
            if over[from] {
                continue;
            }
            match ends[from].try_hear() {
                Ok(None) => {}
                Ok(Some((message, _))) => {
                    said[from].push(decode(&message).unwrap());
                    let _ = ends[1 - from].say(&message);
                }
                Err(_) => over[from] = true,
            }
        }
        over == [true; 2]
    });
    said
}

/// A stranger between this node, which does something with the stranger's address, and the real one.
fn with_a_stranger_between<T: Send>(
    quotes: &Quotes,
    connect: RdmaConnect,
    act: impl FnOnce(&Address) -> T + Send,
) -> (T, [Vec<Message>; 2]) {
    let at = free_address();
    let mut listener = fabric(connect, Arc::new(AdmitAnyone)).listen_at(&at).unwrap();
    let dialling = fabric(connect, showing_tags());
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| act(&Address::rdma(at)));
        let honest = End::accept(&mut *listener);
        let said = pass_on([honest, End::dial(&dialling, &quotes.at)]);
        (acting.join().unwrap(), said)
    })
}

/// Where there are no keys, the stranger is not noticed.
#[test]
#[ignore = "needs an RDMA device"]
fn stranger_who_passes_on_what_nodes_prove_over_rdma_is_noticed() {
    for connect in CONNECTS.into_iter().chain([RdmaConnect::TcpUnreliable]) {
        let open = Quotes::with(true, "");
        let node = open.peer("honest", connect, None);
        let list = |at: &Address| node.directory_timeout(at, TIMEOUT).unwrap().topics.len();
        let (found, said) = with_a_stranger_between(&open, connect, list);
        assert_eq!((found, &names(&said[1])[..2]), (2, &["Hello", "Topics"][..]), "{connect:?}");

        let quotes = Quotes::open();
        let node = quotes.peer("honest", connect, Some(readers_keys()));
        // The real node may dial, too: its own proofs are passed on to it.
        for (count, honest) in [(1, &node), (2, &quotes.node)] {
            let attach = |at: &Address| subscribe(honest, at, "md/a", Delivery::Push);
            let (outcome, [said, answered]) = with_a_stranger_between(&quotes, connect, attach);
            is_unauthenticated(outcome);
            assert_eq!((names(&said), names(&answered)), (vec!["Hello", "Prove"], vec!["Hello", "Refuse"]));
            assert_eq!(refusal(&answered[1]), NOTHING_SAID);
            assert_eq!(quotes.begun_and_rejected(Unproven::WrongTag), (0, count), "{connect:?}");
        }
        let mut direct = subscribe(&node, &quotes.at, "md/a", Delivery::Push).unwrap();
        assert_eq!(receive(&mut direct).value, 7);
    }
}

/// Admits anyone, and shows again what one has shown.
#[derive(Debug, Default)]
struct Repeated(Mutex<Vec<u8>>);

impl ConnectPolicy for Repeated {
    fn show(&self, _: &ConnectRequest, _: usize) -> Vec<u8> {
        self.0.lock().clone()
    }

    fn admits(&self, _: &ConnectRequest, shown: &[u8]) -> bool {
        *self.0.lock() = shown.to_vec();
        true
    }
}

/// A stranger whom a node has dialled shows its tag with a request of its own.
#[test]
#[ignore = "needs an RDMA device"]
fn tag_of_another_request_over_rdma_is_not_admitted() {
    for connect in CONNECTS {
        let quotes = Quotes::open();
        let node = quotes.peer("honest", connect, Some(readers_keys()));
        let (at, policy) = (free_address(), Arc::new(Repeated::default()));
        let between = fabric(connect, Arc::<Repeated>::clone(&policy));
        let mut listener = between.listen_at(&at).unwrap();
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| subscribe(&node, &Address::rdma(at), "md/a", Delivery::Pull));
            let mut honest = End::accept(&mut *listener);
            assert_eq!(decode(&honest.hear().unwrap().0).unwrap().name(), "Hello");
            assert!(!policy.0.lock().is_empty(), "it has shown nothing");
            let refused = End::dial(&between, &quotes.at).hear().unwrap_err();
            let is_refused = matches!(refused, FabricError::NotAdmitted(NotAdmitted::Key { .. }));
            assert!(is_refused, "{connect:?}: {refused:?}");
            drop(honest);
            assert!(opening.join().unwrap().is_err());
        });
    }
}

/// One says nothing, the other one only hello. Of a few attempts one is not delayed by the machine's other work.
#[test]
#[ignore = "needs an RDMA device"]
fn stranger_who_proves_nothing_over_rdma_loses_its_place_after_two_seconds() {
    // Two places: one for the peer, one for a session that has just ended.
    let limits = PeerLimits { rdma_sessions_per_host: 2, ..PeerLimits::default() };
    for connect in CONNECTS {
        let quotes = Quotes::open_limited(limits);
        let hello = honest_session(&quotes, connect).said.swap_remove(0);
        let fabric = fabric(connect, showing_tags());
        for (said, expected) in [(vec![], vec!["Refuse"]), (vec![hello], vec!["Hello", "Refuse"])] {
            let mut took_ns = u64::MAX;
            for _ in 0..5 {
                let (mut told, mut took) = (Vec::new(), 0);
                // A dial that is repeated has two places for a moment: then it may get none.
                wait_until("a place", || {
                    let began_ns = SystemClock.monotonic_ns();
                    told = repeat(&fabric, &quotes.at, &said);
                    took = SystemClock.monotonic_ns() - began_ns;
                    !told.is_empty()
                });
                println!("{connect:?}: refused after {:?}", Duration::from_nanos(took));
                assert_eq!(names(&told), expected, "{connect:?}");
                assert_eq!(refusal(told.last().unwrap()), (RefuseReason::HelloDeadline, ""));
                assert!(took >= limits::HELLO_DEADLINE_NS, "{took} ns");
                took_ns = took_ns.min(took);
                if took_ns < LOST_WITHIN_NS {
                    break;
                }
            }
            assert!(took_ns < LOST_WITHIN_NS, "{took_ns} ns");
        }
        wait_until("a place for a friend", || {
            let node = quotes.peer("friend", connect, Some(readers_keys()));
            subscribe(&node, &quotes.at, "md/a", Delivery::Pull).is_ok()
        });
    }
}

/// A key of a line that names nodes reads and publishes nothing in the hands of another one.
fn key_is_worth_nothing_under_another_node_name(far: Option<RdmaConnect>) {
    let lines = [
        format!("desk read md {} friend", secret(1)),
        format!("open read md/b {}", secret(2)),
        format!("engine publish orders {} engine-1,engine-2", secret(3)),
    ];
    let (quotes, connect) = (Quotes::with(far.is_some(), &lines.join("\n")), far.unwrap_or_default());
    let at = &quotes.at;
    let with = |name: &str, secrets: &[u8]| {
        let line = |byte: &u8| format!("k{byte} read,publish * {}\n", secret(*byte));
        let keyring = Keyring::from_text(&secrets.iter().map(line).collect::<String>()).unwrap();
        quotes.peer(name, connect, Some(keyring))
    };
    let attach = |node: &Node, topic: &str| subscribe(node, at, topic, Delivery::Pull);
    is_unauthenticated(attach(&with("foe", &[1]), "md/a"));
    is_unauthenticated(attach(&with("friend-2", &[1]), "md/b"));
    assert!(with("foe", &[1]).directory_timeout(at, TIMEOUT).is_err());
    assert_eq!(quotes.begun_and_rejected(Unproven::NoKnownKey), (0, 3));
    // Beside another key it adds nothing.
    let foe = with("foe", &[1, 2]);
    let refused = attach(&foe, "md/a").unwrap_err();
    let expected = RefuseReason::NotPermitted;
    assert!(matches!(refused, SubscriberError::Refused { reason, .. } if reason == expected), "{refused:?}");
    assert_eq!(foe.directory_timeout(at, TIMEOUT).unwrap().topics.len(), 1);
    assert_eq!(receive(&mut attach(&foe, "md/b").unwrap()).value, 7);
    assert_eq!(receive(&mut attach(&with("friend", &[1]), "md/a").unwrap()).value, 7);

    let listener = quotes.node.state_listener::<u64>("orders/x").timeout(TIMEOUT).open().unwrap();
    let dial = |node: &Node| {
        let mut publisher = node.state_publisher::<u64>("orders/x").open().unwrap();
        publisher.publish(&9).unwrap();
        node.dial_subscriber("orders/x", at.clone(), TIMEOUT).map(|()| publisher)
    };
    let refused = dial(&with("engine-3", &[3])).unwrap_err();
    let expected = RefuseReason::NotAuthenticated;
    assert!(matches!(refused, DialError::Refused { reason, .. } if reason == expected), "{refused:?}");
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept_timeout(TIMEOUT).unwrap().expect("a publisher"));
        let engine = with("engine-2", &[3]);
        let _publisher = dial(&engine).unwrap();
        assert_eq!(receive(&mut accepting.join().unwrap()).value, 9);
    });
}

#[test]
fn key_is_worth_nothing_under_another_node_name_on_its_host() {
    key_is_worth_nothing_under_another_node_name(None);
}

#[test]
#[ignore = "needs an RDMA device"]
fn key_is_worth_nothing_under_another_node_name_over_rdma() {
    for connect in CONNECTS {
        key_is_worth_nothing_under_another_node_name(Some(connect));
    }
}
