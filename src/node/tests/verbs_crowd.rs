//! Crowds of hostile sessions over RDMA: `tools/soft-roce run` runs this.

use super::*;
use crate::control::{ClientEvent, ClientSession, SubscriberCounts};
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{Address, Connection, Fabric, FabricError, Intent, NoPlace, RdmaConnect, Received, Sent};
use crate::id::KindOptions;
use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::testkit::attempts::{below, one_of_three};

/// Connections that the crowd would have.
const CROWD: usize = 1024;
/// How soon a subscriber of this host is attached, has a value, and the topics are listed.
const SOON: Duration = Duration::from_secs(1);
/// How long a crowd stands at the door.
const LONG_NS: u64 = 10_000_000_000;
/// Sessions of one host: emulation makes few queue pairs a second.
const SHARE: usize = 8;
/// Those that a hostile host does not know yet to be over.
const PASSING: usize = 16;

/// What a hostile session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It connects, and says nothing.
    Silent,
    /// It says hello, and nothing more.
    Hello,
    /// It attaches and detaches in a loop.
    Attaches,
    /// It lists the topics in a loop, and awaits no answer.
    Lists,
}

/// A hostile session.
struct Hostile {
    connection: Box<dyn Connection>,
    session: ClientSession,
    /// It is as far as its manner goes.
    stands: bool,
    /// What it repeats.
    list: Option<Vec<u8>>,
}

impl Hostile {
    fn dial(fabric: &VerbsFabric, at: &Address, node: &Node) -> Result<Self, FabricError> {
        let connection = fabric.dial(at, Intent::Read, Duration::ZERO)?;
        let session = ClientSession::connect(0, node.core().greeting_without_keys(), u64::MAX);
        Ok(Self { connection, session, stands: false, list: None })
    }

    /// Goes on. An error once it is over.
    fn turn(&mut self, manner: Manner, buffer: &mut [u8]) -> Result<(), FabricError> {
        match self.connection.receive(buffer)? {
            Received::Nothing => {}
            Received::Closed => return Err(FabricError::Closed),
            Received::Message { .. } if self.list.is_some() => {}
            Received::Message { len, offer } => {
                let event = self.session.on_message(&buffer[..len], usize::from(offer.is_some()));
                match event.map_err(|_| FabricError::Closed)? {
                    Some(ClientEvent::Ready { .. }) => self.stands = true,
                    Some(ClientEvent::Granted { grant, .. }) if manner == Manner::Attaches => {
                        let _ = self.session.detach(grant.attachment, SubscriberCounts::default());
                    }
                    _ => {}
                }
            }
        }
        if manner == Manner::Silent {
            self.stands |= !self.connection.capabilities().is_connecting;
            return Ok(());
        }
        if self.stands && manner == Manner::Attaches {
            let topic = "t".parse().unwrap();
            // Fails while as many are under way as may be.
            let _ = self.session.attach(topic, Delivery::Push, None, KindOptions::default());
        }
        if self.stands && manner == Manner::Lists && self.list.is_none() {
            let _ = self.session.list(None);
            self.list = self.session.next_message().map(|message| message.bytes);
        }
        // Some at a time, so that the others go on.
        for list in self.list.iter().cycle().take(16) {
            if self.connection.send(list, None)? == Sent::Full {
                break;
            }
        }
        while let Some(message) = self.session.next_message() {
            if self.connection.send(&message.bytes, None)? == Sent::Full {
                break;
            }
        }
        Ok(())
    }
}

/// Keeps a crowd at the door until it is stopped. Returns the most that stood there at a time, how many were told that there is no place,
/// and how many dialled.
fn crowd(manner: Manner, connect: RdmaConnect, at: &Address, stop: &AtomicBool) -> [usize; 3] {
    let dir = tempfile::tempdir().unwrap();
    let (node, config) = (anonymous(&dir), VerbsConfig { connect, ..VerbsConfig::default() });
    let fabric = VerbsFabric::new(config).unwrap();
    let (mut all, mut buffer): (Vec<Hostile>, _) = (Vec::new(), vec![0; limits::CONTROL_MESSAGE_LEN_MAX]);
    let [mut most, mut refused, mut dialled] = [0; 3];
    while !stop.load(Ordering::Relaxed) {
        // Some at a time, so that it goes on with the others.
        for _ in 0..16 {
            if all.len() < CROWD
                && let Ok(hostile) = Hostile::dial(&fabric, at, &node)
            {
                all.push(hostile);
                dialled += 1;
            }
        }
        all.retain_mut(|hostile| match hostile.turn(manner, &mut buffer) {
            Ok(()) => true,
            Err(error) => {
                refused += usize::from(matches!(error, FabricError::NoPlace(NoPlace::Host { .. })));
                false
            }
        });
        most = most.max(all.iter().filter(|hostile| hostile.stands).count());
    }
    [most, refused, dialled]
}

/// A node on this host and over RDMA.
fn victim(dir: &tempfile::TempDir) -> (Node, Address) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let at = format!("rdma://{host}:{}", 7480 + NEXT.fetch_add(1, Ordering::Relaxed));
    let limits = PeerLimits { rdma_sessions_per_host: SHARE, ..PeerLimits::default() };
    let builder = Node::builder().name("victim").unwrap().runtime_dir(dir.path()).rdma(&at).unwrap();
    (builder.insecure().peer_limits(limits).open().unwrap(), at.parse().unwrap())
}

fn crowd_delays_nobody(manner: Manner, connect: RdmaConnect) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let (victim, at) = victim(&dir);
    let mut publisher = victim.state_publisher::<u64>("t").open().unwrap();
    let stop = AtomicBool::new(false);
    let (mut times_ns, mut number) = (Vec::new(), 0);
    let counts = std::thread::scope(|scope| {
        let crowd = scope.spawn(|| crowd(manner, connect, &at, &stop));
        let began_ns = SystemClock.monotonic_ns();
        while SystemClock.monotonic_ns() - began_ns < LONG_NS {
            let round_ns = SystemClock.monotonic_ns();
            let (subscribing, listing) = (anonymous(&dir), anonymous(&dir));
            let mut subscriber =
                subscribing.state_subscriber::<u64>("shm:victim/t").timeout(TIMEOUT).open().unwrap();
            number += 1;
            publisher.publish(&number).unwrap();
            assert_eq!(receive(&mut subscriber).value, number);
            assert_eq!(listing.directory("shm:victim").unwrap().topics.len(), 1);
            times_ns.push(SystemClock.monotonic_ns() - round_ns);
            SystemClock.pause(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        crowd.join().unwrap()
    });
    times_ns.sort_unstable();
    let (median, slowest) = (times_ns[times_ns.len() / 2], times_ns[times_ns.len() - 1]);
    let [most, refused, dialled] = counts;
    println!(
        "{manner:?} by {connect:?}: {dialled} dialled, {most} stood at a time, {refused} were refused; attached, received and listed in \
         {:?}, at most {:?}",
        Duration::from_nanos(median),
        Duration::from_nanos(slowest)
    );
    assert!(most <= SHARE + PASSING, "{most} hostile sessions");
    assert!(refused > 0 && most >= SHARE / 2, "no crowd: {counts:?}");
    below("the median", Duration::from_nanos(median), SOON)
}

/// On a machine that emulates the device and does other work besides, one of three times.
fn delays_nobody(manner: Manner, connect: RdmaConnect) {
    one_of_three(|| crowd_delays_nobody(manner, connect));
}

#[test]
#[ignore = "needs an RDMA device"]
fn crowd_that_connects_over_rdma_and_says_nothing_delays_nobody() {
    delays_nobody(Manner::Silent, RdmaConnect::Manager);
}

#[test]
#[ignore = "needs an RDMA device"]
fn crowd_that_connects_over_tcp_and_says_nothing_delays_nobody() {
    delays_nobody(Manner::Silent, RdmaConnect::Tcp);
}

#[test]
#[ignore = "needs an RDMA device"]
fn crowd_that_only_says_hello_over_rdma_delays_nobody() {
    delays_nobody(Manner::Hello, RdmaConnect::Manager);
}

#[test]
#[ignore = "needs an RDMA device"]
fn crowd_that_attaches_and_detaches_over_rdma_delays_nobody() {
    delays_nobody(Manner::Attaches, RdmaConnect::Manager);
}

#[test]
#[ignore = "needs an RDMA device"]
fn crowd_that_lists_in_a_loop_over_rdma_delays_nobody() {
    delays_nobody(Manner::Lists, RdmaConnect::Manager);
}

/// A refusal is an answer: it is not awaited, and names the limit.
#[test]
#[ignore = "needs an RDMA device"]
fn host_is_refused_more_than_its_share_and_learns_what_raises_it() {
    let dir = tempfile::tempdir().unwrap();
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let at = format!("rdma://{host}:7490");
    let mut limits = PeerLimits::default();
    (limits.rdma_sessions, limits.rdma_sessions_per_host) = (8, 2);
    let builder = Node::builder().name("few").unwrap().runtime_dir(dir.path()).rdma(&at).unwrap();
    let node = builder.insecure().peer_limits(limits).open().unwrap();
    assert_eq!(node.peer_limits().rdma_sessions, 8);
    let _publisher = node.state_publisher::<u64>("t").open().unwrap();
    let target = format!("{at}/t");
    let open = |connect| {
        let node = Node::builder().runtime_dir(dir.path()).rdma_connect(connect).open().unwrap();
        node.state_subscriber::<u64>(target.as_str()).timeout(TIMEOUT).open()
    };
    let held = [open(RdmaConnect::Manager).unwrap(), open(RdmaConnect::Tcp).unwrap()];
    for connect in [RdmaConnect::Manager, RdmaConnect::Tcp] {
        let error = open(connect).unwrap_err();
        let SubscriberError::Unreachable { source: FabricError::NoPlace(why), .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*why, NoPlace::Host { max: 2 });
        assert!(ErrorChain(&error).to_string().contains("PeerLimits::rdma_sessions_per_host"));
    }
    // Those of this host have places of their own.
    assert!(anonymous(&dir).state_subscriber::<u64>("shm:few/t").timeout(TIMEOUT).open().is_ok());
    drop(held);
    wait_until("a place", || open(RdmaConnect::Manager).is_ok());
}
