use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Duration;

use super::*;
use crate::clock::{Clock, SystemClock};
use crate::control::ControlError;
use crate::fabric::FabricError;
use crate::node::Node;
use crate::node::builder::assemble;
use crate::node::event_log::TracingSink;
use crate::node::served::tests::Scripted;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::testkit::fabric::{Network, Reach};

/// How long an answer may take, ns.
const TIMEOUT_NS: u64 = 1_000;

/// A node without a thread, and its time now; by this clock, or by one that stands still.
fn node(clock: Option<Arc<dyn Clock>>) -> (Node, u64) {
    let network = Network::new(0, Reach::Mapped);
    let fabric = network.fabric(&"node".parse().unwrap());
    let clock = clock.unwrap_or_else(|| Arc::clone(network.clock()) as _);
    let (shared, _) =
        assemble((None, None), Arc::new(fabric), clock, Arc::new(TracingSink::default())).unwrap();
    let now_ns = shared.core.clock.monotonic_ns();
    (Node::new(shared, None), now_ns)
}

fn address() -> Address {
    Address::shm(&"peer".parse().unwrap())
}

/// A session with this address, and its connection.
fn dialled(node: &Node, deadline_ns: u64) -> (Link, Scripted) {
    let connection = Scripted::connecting();
    let link =
        Link::dialled(node.core(), Box::new(connection.clone()), &address(), (TIMEOUT_NS, deadline_ns));
    (link.unwrap(), connection)
}

/// The error is not that of a process that hangs: none may run there, and a firewall may drop the packets.
#[test]
fn connection_that_is_not_established_in_time_has_no_answer() {
    let (node, now_ns) = node(None);
    let (link, _connection) = dialled(&node, now_ns + TIMEOUT_NS);
    link.turn(now_ns + TIMEOUT_NS - 1, false);
    assert!(link.failure().is_none());
    link.turn(now_ns + TIMEOUT_NS, false);
    let error = link.greet().unwrap_err();
    assert!(
        matches!(&error, LinkError::Fabric(FabricError::NoAnswer { address: found }) if *found == address()),
        "{error:?}"
    );
}

#[test]
fn deadline_of_the_hello_begins_when_the_connection_is_established() {
    let (node, now_ns) = node(None);
    let (link, connection) = dialled(&node, now_ns + TIMEOUT_NS);
    connection.establish();
    let established_ns = now_ns + TIMEOUT_NS - 1;
    link.turn(established_ns, false);
    link.turn(established_ns + TIMEOUT_NS - 1, false);
    assert!(link.failure().is_none());
    link.turn(established_ns + TIMEOUT_NS, false);
    assert!(matches!(link.failure(), Some(ControlError::Deadline { awaited: "hello" })));
    assert!(matches!(link.greet(), Err(LinkError::Session(_))));
}

/// A thread that waits does not take the time of connecting for that of the answer.
#[test]
fn wait_for_the_hello_begins_when_the_connection_is_established() {
    const CONNECTING: Duration = Duration::from_millis(50);
    let (node, now_ns) = node(Some(Arc::new(SystemClock)));
    let (link, connection) = dialled(&node, now_ns + 600_000_000_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            SystemClock.pause(CONNECTING);
            connection.establish();
        });
        let error = link.greet().unwrap_err();
        assert!(
            matches!(error, LinkError::Session(ControlError::Deadline { awaited: "hello" })),
            "{error:?}"
        );
    });
    let took_ns = SystemClock.monotonic_ns() - now_ns;
    assert!(Duration::from_nanos(took_ns) >= CONNECTING, "{took_ns} ns");
}

/// Stands still until someone waits, for much longer than they meant to; a connection is established meanwhile.
#[derive(Debug, Default)]
struct Standstill {
    now_ns: AtomicU64,
    connection: OnceLock<Scripted>,
}

impl Clock for Standstill {
    fn monotonic_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn realtime_ns(&self) -> u64 {
        self.monotonic_ns()
    }

    fn pause(&self, _: Duration) {
        self.now_ns.fetch_add(10 * TIMEOUT_NS, Ordering::Relaxed);
        self.connection.get().unwrap().establish();
    }

    fn pause_until(&self, _: BorrowedFd<'_>, duration: Duration) {
        self.pause(duration);
    }
}

/// The peer has its time also if this process was stopped while the connection was established.
#[test]
fn wait_for_the_hello_begins_after_a_standstill() {
    let clock = Arc::new(Standstill::default());
    let (node, now_ns) = node(Some(Arc::clone(&clock) as _));
    let (link, connection) = dialled(&node, now_ns + 1_000 * TIMEOUT_NS);
    clock.connection.set(connection).unwrap();
    link.greet().unwrap_err();
    // One pause that established it, and one for the hello.
    assert_eq!(clock.monotonic_ns(), now_ns + 20 * TIMEOUT_NS);
}
