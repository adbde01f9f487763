//! The suite on RDMA verbs: the fabrics of several processes in this one, over the address of one device.
//!
//! `FABRICAST_VERBS_ADDRESS` sets the address; the default is that of a virtual machine of `tools/soft-roce`.

use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Harness, Pair, conformance_suite, dial, message, name, registered, send, topic_suite, until};
use crate::clock::{Clock, SystemClock};
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{
    Acceptor, Address, Connection, Exposure, Fabric, FabricError, Intent, NodeListing, RdmaConnect, Received,
    Registration, Write,
};
use crate::id::NodeName;
use crate::memory::Region;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that names the address.
const ADDRESS_VARIABLE: &str = "FABRICAST_VERBS_ADDRESS";
/// The address of a virtual machine of `tools/soft-roce`.
const ADDRESS_DEFAULT: &str = "10.77.0.1";
/// The first port, below the kernel's ephemeral ports.
const PORT_FIRST: u64 = 20_000;
/// The ports used for names.
const PORTS: u64 = 10_000;
/// An emulated machine is slow.
const STEPS_MAX: u32 = 300_000;

/// Nodes with a port for each name.
#[derive(Debug)]
pub(super) struct VerbsHarness {
    connect: RdmaConnect,
    ports: Arc<Ports>,
}

/// The port of each name.
#[derive(Debug)]
struct Ports {
    address: IpAddr,
    by_name: Mutex<BTreeMap<NodeName, u16>>,
}

impl Ports {
    fn of(&self, node: &NodeName) -> u16 {
        // No port twice in a process: the last user may still be closing it.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = || PORT_FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
        let next = || u16::try_from(next()).expect("a port below 65536");
        *self.by_name.lock().entry(node.clone()).or_insert_with(next)
    }
}

impl VerbsHarness {
    /// Nodes that connect with the connection manager.
    pub(super) fn new(_seed: u64) -> Self {
        Self::connecting(RdmaConnect::Manager)
    }

    /// Nodes that connect by an exchange over TCP, reliably.
    pub(super) fn over_tcp(_seed: u64) -> Self {
        Self::connecting(RdmaConnect::Tcp)
    }

    /// Nodes that connect by an exchange over TCP, unreliably.
    pub(super) fn unreliable(_seed: u64) -> Self {
        Self::connecting(RdmaConnect::TcpUnreliable)
    }

    fn connecting(connect: RdmaConnect) -> Self {
        let address = std::env::var(ADDRESS_VARIABLE);
        let address = address.as_deref().unwrap_or(ADDRESS_DEFAULT);
        let address = address.parse().expect("FABRICAST_VERBS_ADDRESS is an IP address");
        Self { connect, ports: Arc::new(Ports { address, by_name: Mutex::default() }) }
    }
}

impl Harness for VerbsHarness {
    fn fabric(&self) -> Box<dyn Fabric> {
        let config = VerbsConfig { connect: self.connect, ..VerbsConfig::default() };
        let fabric = VerbsFabric::new(config).expect("an event can be made");
        Box::new(Named { fabric, ports: Arc::clone(&self.ports) })
    }

    fn address(&self, node: &NodeName) -> Address {
        Address::rdma(SocketAddr::new(self.ports.address, self.ports.of(node)))
    }

    fn foreign_address(&self) -> Address {
        Address::shm(&"far-away".parse().expect("letters and a dash"))
    }

    fn step(&self) {
        SystemClock.pause(Duration::from_micros(100));
    }

    fn lists_nodes(&self) -> bool {
        false
    }

    fn ends_sessions_by_refusals(&self) -> bool {
        true
    }

    fn steps_max(&self) -> u32 {
        STEPS_MAX
    }
}

/// A fabric whose nodes listen at the ports of their names.
#[derive(Debug)]
struct Named {
    fabric: VerbsFabric,
    ports: Arc<Ports>,
}

impl Fabric for Named {
    fn listen(&self, node: &NodeName) -> Result<Vec<Box<dyn Acceptor>>, FabricError> {
        Ok(vec![self.fabric.listen_at(&SocketAddr::new(self.ports.address, self.ports.of(node)))?])
    }

    fn dial(
        &self,
        address: &Address,
        intent: Intent,
        timeout: Duration,
    ) -> Result<Box<dyn Connection>, FabricError> {
        self.fabric.dial(address, intent, timeout)
    }

    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError> {
        self.fabric.register(region, exposure)
    }

    fn nodes(&self) -> Result<Vec<NodeListing>, FabricError> {
        self.fabric.nodes()
    }
}

conformance_suite!(verbs, VerbsHarness::new, 1, #[ignore = "needs an RDMA device"]);
conformance_suite!(verbs_tcp, VerbsHarness::over_tcp, 1, #[ignore = "needs an RDMA device"]);

/// What holds without acknowledgements: a write arrives later than its completion.
mod verbs_tcp_unreliable {
    use super::*;

    conformance_suite! { @tests VerbsHarness::unreliable, 1, [#[ignore = "needs an RDMA device"]];
        connections:
            a_name_is_listened_on_once_and_free_again_afterwards,
            a_dial_to_nobody_says_so,
            both_ends_know_what_their_connection_connects,
            messages_arrive_whole_and_in_order,
            messages_go_both_ways_at_once,
            a_message_over_the_limit_is_refused,
            a_message_longer_than_the_buffer_is_an_error_and_lost,
            a_close_is_seen_after_everything_that_was_sent,
            what_was_sent_before_a_close_is_received_whatever_else_fails,
            a_send_to_a_peer_that_is_gone_is_an_error,
            a_connection_that_nobody_accepts_closes_with_the_listener,
            a_peer_that_does_not_read_fills_up_and_recovers,
            many_connections_keep_apart;
    }

    // Tables are refused: a lost write of one would not be noticed.
    topic_suite! { @kinds VerbsHarness::unreliable, 1, [#[ignore = "needs an RDMA device"]], [push: Push];
        state: StateTopic, [a_late_reader_gets_the_newest_value_first];
        log: LogTopic, [
            a_late_reader_begins_where_it_asks_to,
            a_lapped_reader_is_told_how_many_records_it_missed
        ];
    }

    #[test]
    #[ignore = "needs an RDMA device"]
    fn a_region_to_be_read_is_refused_and_others_are_written() {
        let harness = VerbsHarness::unreliable(0);
        let mut pair = Pair::new(&harness);
        let readable = registered(&*pair.listening, 4096, Exposure::Read);
        let error = pair.offer(&harness, &readable).open_read(4096).expect_err("there are no reads");
        assert!(error.to_string().contains("push only"), "{error}");
        let landing = registered(&*pair.dialler, 4096, Exposure::Write);
        send(&harness, &mut *pair.near, b"landing", Some(&landing));
        let offer = message(&harness, &mut *pair.far).1.expect("the region comes with its message");
        let mut remote = offer.open_write(4096).expect("it is as long as was agreed");
        for word in 1..100 {
            remote.post(&readable, &[Write::Word { offset: 8, word }]).expect("the peer can be reached");
            until(&harness, "a write", || (landing.region().load_acquire(8) == word).then_some(()));
        }
    }
}

/// What proofs of keys are made of says which connection they are for.
mod verbs_bindings {
    use super::*;

    /// The binding of a new connection: two GIDs, two queue pair numbers and two packet sequence numbers.
    fn binding(harness: &VerbsHarness) -> (Vec<u8>, Pair) {
        let mut pair = Pair::new(harness);
        send(harness, &mut *pair.near, b"to the far end", None);
        message(harness, &mut *pair.far);
        (pair.far.binding().expect("it is established"), pair)
    }

    #[test]
    #[ignore = "needs an RDMA device"]
    fn each_connection_connects_something_else() {
        let ways = [RdmaConnect::Manager, RdmaConnect::Tcp, RdmaConnect::TcpUnreliable];
        // A harness each: a name's port is not free again at once.
        let made: Vec<(Vec<u8>, Pair)> =
            ways.into_iter().chain(ways).map(|way| binding(&VerbsHarness::connecting(way))).collect();
        for (index, (binding, _)) in made.iter().enumerate() {
            assert_eq!(binding.len(), 2 * (16 + 4 + 4));
            let (dialling, dialled) = binding.split_at(24);
            assert_ne!(dialling[16..20], dialled[16..20], "each end has a queue pair of its own");
            assert_eq!(dialling[..16], dialled[..16], "both are at one port");
            assert!(dialling[..16].iter().any(|byte| *byte != 0), "a GID");
            assert!(!made[..index].iter().any(|(other, _)| other == binding), "{binding:?} again");
        }
    }
}

/// A listener accepts all methods at once, and does not serve strangers for long.
mod verbs_tcp_listener {
    use super::*;

    #[test]
    #[ignore = "needs an RDMA device"]
    fn peers_of_all_ways_meet_at_one_address_and_strangers_harm_nobody() {
        let harness = VerbsHarness::new(0);
        let fabric = harness.fabric();
        let mut listener = fabric.listen(&name("far")).expect("the name is free").remove(0);
        let address = harness.address(&name("far"));
        let at = SocketAddr::new(harness.ports.address, harness.ports.of(&name("far")));
        let stranger = |request: &[u8]| {
            let mut stream = TcpStream::connect(at).expect("a node listens");
            stream.write_all(request).expect("it takes some bytes");
            stream
        };
        let mut strangers = [stranger(b""), stranger(b"GET / HTTP/1.1\r\n\r\n"), stranger(b"\0")];
        let ways = [RdmaConnect::Manager, RdmaConnect::Tcp, RdmaConnect::TcpUnreliable];
        let mut fars = Vec::new();
        let mut accept = |fars: &mut Vec<_>| fars.extend(listener.accept().expect("the listener works"));
        for (way, number) in ways.into_iter().zip(0..) {
            let config = VerbsConfig { connect: way, ..VerbsConfig::default() };
            let dialler = VerbsFabric::new(config).expect("an event can be made");
            let mut near = dial(&dialler, &address);
            send(&harness, &mut *near, &[number], None);
            until(&harness, "an echo", || {
                accept(&mut fars);
                for far in &mut fars {
                    let mut buffer = [0; 8];
                    if let Ok(Received::Message { len, .. }) = far.receive(&mut buffer) {
                        send(&harness, &mut **far, &buffer[..len], None);
                    }
                }
                let mut buffer = [0; 8];
                match near.receive(&mut buffer).expect("the connection stands") {
                    Received::Message { len, .. } => {
                        assert_eq!(buffer[..len], [number]);
                        Some(())
                    }
                    Received::Nothing => None,
                    Received::Closed => panic!("a connection of {way:?} ended"),
                }
            });
        }
        assert_eq!(fars.len(), ways.len() + strangers.len());
        // Strangers that send too little are disconnected after a timeout.
        let answers: [&[u8]; 3] = [b"", b"\0\x06FBC1\x01\x01", b""];
        for (stranger, expected) in strangers.iter_mut().zip(answers) {
            let mut answer = Vec::new();
            stranger.read_to_end(&mut answer).expect("it is closed in good order");
            assert_eq!(answer, expected);
        }
        let closed = |far: &mut Box<dyn Connection>| matches!(far.receive(&mut [0; 8]), Ok(Received::Closed));
        assert_eq!(fars.iter_mut().filter_map(|far| closed(far).then_some(())).count(), fars.len());
    }
}
