//! A node of whose many peers over RDMA none answers any more. The pair of tests is the two hosts' parts:
//!
//! ```text
//! tools/soft-roce run2 'fabricast --ignored --nocapture --exact node::tests::verbs_dead::node_whose_peers_all_die' \
//!     'fabricast --ignored --nocapture --exact node::tests::verbs_dead::peers_that_all_die'
//! ```
//!
//! FABRICAST_TEST_PEERS has the numbers of peers, such as `100,250`. Whole nodes would be too many for an emulated machine: a peer is a
//! connection, and the subscriber's end of the control protocol.

use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;
use crate::control::{ClientEvent, ClientSession};
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{
    Address, Connection, Exposure, Fabric, FabricError, Intent, Received, Registration, Sent,
};
use crate::id::KindOptions;
use crate::layout::Geometry;
use crate::limits;
use crate::memory::{Protection, Region};
use crate::publisher::StatePublisher;

/// How many peers, unless FABRICAST_TEST_PEERS says otherwise.
const PEERS: &str = "100";
/// Peers that connect at a time: an emulated machine is slow to make queue pairs.
const CONNECTING: usize = 8;
/// How long dropping a node takes at most, however many peers are dead: a second for its last messages, and what an emulated machine
/// takes for a queue pair, which is 10 to 16 ms beside another machine. To wait for each peer would take seconds each.
const DROPPED: Duration = Duration::from_secs(2);
const DROPPED_EACH: Duration = Duration::from_millis(30);
const PORT: u16 = 7476;
const PAUSE: Duration = Duration::from_millis(100);
/// How often a value is published: seldom, since each costs a WRITE for every other peer.
const PUBLISHED_EACH_NS: u64 = 1_000_000_000;
const PATIENCE_NS: u64 = 300_000_000_000;

fn counts() -> Vec<usize> {
    let counts = std::env::var("FABRICAST_TEST_PEERS").unwrap_or_else(|_| PEERS.to_owned());
    counts.split(',').map(|count| count.parse().expect("numbers")).collect()
}

fn address(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 sets the addresses");
    format!("rdma://{host}:{PORT}")
}

fn raise_files() {
    let plenty = Rlimit { current: Some(1 << 16), maximum: Some(1 << 16) };
    setrlimit(Resource::Nofile, plenty).expect("root raises it");
}

fn run(words: &str) {
    let mut words = words.split(' ');
    let program = words.next().expect("a program");
    assert!(Command::new(program).args(words).status().expect("a program").success());
}

/// Publishes now and then until there are so many subscribers.
fn await_count(publisher: &mut StatePublisher<u64>, count: u64) {
    let began_ns = SystemClock.monotonic_ns();
    let elapsed_ns = || SystemClock.monotonic_ns() - began_ns;
    let (mut published, attached) =
        (0, |it: &StatePublisher<u64>| it.pull_subscribers() + it.push_subscribers());
    while attached(publisher) != count {
        assert!(elapsed_ns() < PATIENCE_NS, "{} of {count} peers", attached(publisher));
        if elapsed_ns() >= published * PUBLISHED_EACH_NS {
            publisher.publish(&(publisher.newest().get() + 1)).unwrap();
            published += 1;
        }
        SystemClock.pause(PAUSE);
    }
    println!("{count} peers are attached after {:?}", Duration::from_nanos(elapsed_ns()));
}

/// Host A: drops its node before it has noticed that its peers are dead, and after that.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn node_whose_peers_all_die() {
    raise_files();
    let dir = tempfile::tempdir().unwrap();
    let mut late = Vec::new();
    for count in counts() {
        for is_noticed in [false, true] {
            let limits = PeerLimits {
                rdma_sessions: limits::SESSIONS_MAX,
                rdma_sessions_per_host: limits::SESSIONS_MAX,
                ..PeerLimits::default()
            };
            let builder = Node::builder().name("victim").unwrap().runtime_dir(dir.path());
            let builder = builder.rdma(&address("SELF")).unwrap().insecure().peer_limits(limits);
            let node = builder.open().unwrap();
            let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
            await_count(&mut publisher, count as u64);
            run("tc qdisc add dev eth0 root netem loss 100%");
            if is_noticed {
                await_count(&mut publisher, 0);
            } else {
                publisher.publish(&0).unwrap();
            }
            let began_ns = SystemClock.monotonic_ns();
            drop((publisher, node));
            let took = Duration::from_nanos(SystemClock.monotonic_ns() - began_ns);
            println!("dropped with {count} dead peers, noticed: {is_noticed}, within {took:?}");
            run("tc qdisc del dev eth0 root netem");
            let bound = DROPPED + DROPPED_EACH * u32::try_from(count).unwrap();
            late.extend((took >= bound).then_some(took));
        }
    }
    // Last, so that the other host need not wait for what this one has left out.
    assert!(late.is_empty(), "TOO SLOW: {late:?}");
}

/// A peer: every other one by push.
struct RawPeer {
    connection: Box<dyn Connection>,
    session: ClientSession,
    delivery: Delivery,
    /// Its landing region.
    landing: Option<Registration>,
    is_attached: bool,
}

impl RawPeer {
    fn dial(
        fabric: &VerbsFabric,
        at: &Address,
        node: &Node,
        delivery: Delivery,
    ) -> Result<Self, FabricError> {
        let connection = fabric.dial(at, Intent::Read, Duration::ZERO)?;
        let session = ClientSession::connect(0, node.core().greeting_without_keys(), u64::MAX);
        Ok(Self { connection, session, delivery, landing: None, is_attached: false })
    }

    /// Goes on. An error once it is over.
    fn turn(&mut self, fabric: &VerbsFabric, buffer: &mut [u8]) -> Result<(), FabricError> {
        loop {
            while let Some(message) = self.session.next_message() {
                let region = message.region_of.and(self.landing.as_ref());
                assert_eq!(self.connection.send(&message.bytes, region)?, Sent::Done);
            }
            let (len, offer) = match self.connection.receive(buffer)? {
                Received::Message { len, offer } => (len, offer),
                Received::Nothing => return Ok(()),
                Received::Closed => return Err(FabricError::Closed),
            };
            let event = self.session.on_message(&buffer[..len], usize::from(offer.is_some()));
            match event.map_err(|_| FabricError::Closed)? {
                Some(ClientEvent::Ready { .. }) => {
                    let options = KindOptions::default();
                    self.session.attach("t".parse().unwrap(), self.delivery, None, options).unwrap();
                }
                Some(ClientEvent::Granted { grant, .. }) if self.delivery == Delivery::Push => {
                    let len = Geometry::new(grant.kind, &grant.geometry).unwrap().region_len();
                    let region = Arc::new(Region::allocate(len, Protection::PeerSeals).unwrap());
                    self.landing = Some(fabric.register(&region, Exposure::Write)?);
                    self.session.expose(grant.attachment).unwrap();
                }
                Some(ClientEvent::Granted { .. } | ClientEvent::Exposed(_)) => self.is_attached = true,
                _ => {}
            }
        }
    }
}

/// Host B: what connects to it.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn peers_that_all_die() {
    raise_files();
    let dir = tempfile::tempdir().unwrap();
    let (node, at) = (anonymous(&dir), address("PEER").parse().unwrap());
    let fabric = VerbsFabric::new(VerbsConfig::default()).unwrap();
    let mut buffer = vec![0; limits::CONTROL_MESSAGE_LEN_MAX];
    for count in counts().into_iter().flat_map(|count| [count; 2]) {
        let (mut attached, mut connecting, mut number): (Vec<RawPeer>, Vec<RawPeer>, usize) =
            Default::default();
        let began_ns = SystemClock.monotonic_ns();
        while attached.len() < count {
            assert!(SystemClock.monotonic_ns() - began_ns < PATIENCE_NS, "{} peers", attached.len());
            while connecting.len() < CONNECTING && attached.len() + connecting.len() < count {
                number += 1;
                let delivery = [Delivery::Pull, Delivery::Push][number % 2];
                connecting.extend(RawPeer::dial(&fabric, &at, &node, delivery));
            }
            connecting.retain_mut(|peer| peer.turn(&fabric, &mut buffer).is_ok());
            attached.extend(connecting.extract_if(.., |peer| peer.is_attached));
            SystemClock.pause(Duration::from_millis(1));
        }
        println!("{count} of {number} peers are attached");
        while !attached.is_empty() {
            attached.retain_mut(|peer| peer.turn(&fabric, &mut buffer).is_ok());
            SystemClock.pause(PAUSE);
        }
    }
}
