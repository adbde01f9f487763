//! Messages over RDMA that no node sends: `tools/soft-roce run` runs this.

use super::*;
use crate::control::{ClientEvent, ClientSession};
use crate::fabric::verbs::{VerbsConfig, VerbsFabric};
use crate::fabric::{Address, Connection, Fabric, Intent, RdmaConnect, Received, Sent};
use crate::id::KindOptions;
use crate::limits;
use crate::testkit::random::Random;

/// A hostile peer, and what it has to say as an honest one.
struct Peer {
    connection: Box<dyn Connection>,
    session: ClientSession,
    buffer: Vec<u8>,
}

impl Peer {
    fn dial(fabric: &VerbsFabric, at: &Address, node: &Node) -> Self {
        let mut connection = None;
        // Its host may have dialled too often in the last second.
        wait_until("a connection", || {
            connection = fabric.dial(at, Intent::Read, Duration::ZERO).ok();
            connection.is_some()
        });
        let session = ClientSession::connect(0, node.core().greeting_without_keys(), u64::MAX);
        let buffer = vec![0; limits::CONTROL_MESSAGE_LEN_MAX];
        Self { connection: connection.unwrap(), session, buffer }
    }

    /// The next message of an honest peer.
    fn honest(&mut self) -> Vec<u8> {
        self.session.next_message().unwrap().bytes.to_vec()
    }

    /// Sends this. False if the session is over already.
    fn send(&mut self, message: &[u8]) -> bool {
        let mut is_over = false;
        wait_until("room for a message", || match self.connection.send(message, None) {
            Ok(Sent::Full) => false,
            sent => {
                is_over = sent.is_err();
                true
            }
        });
        !is_over
    }

    /// Says hello, and waits until it is answered.
    fn greet(&mut self) {
        let hello = self.honest();
        assert!(self.send(&hello));
        let (connection, session, buffer) = (&mut self.connection, &mut self.session, &mut self.buffer);
        wait_until("the answer to a hello", || match connection.receive(buffer).unwrap() {
            Received::Message { len, .. } => {
                matches!(session.on_message(&buffer[..len], 0), Ok(Some(ClientEvent::Ready { .. })))
            }
            Received::Nothing => false,
            Received::Closed => panic!("it is refused"),
        });
    }

    /// Waits for the end of the session.
    fn wait_for_end(&mut self, what: &dyn Fn() -> String) {
        let (connection, buffer) = (&mut self.connection, &mut self.buffer);
        wait_until(&what(), || matches!(connection.receive(buffer), Ok(Received::Closed) | Err(_)));
    }
}

/// A message with a few bytes changed, or cut, or extended.
fn mutated(message: &[u8], random: &mut Random) -> Vec<u8> {
    let mut message = message.to_vec();
    match random.below(4) {
        0 => message.truncate(1 + random.index(message.len() - 1)),
        1 => message.extend((0..1 + random.index(200)).map(|_| random.next() as u8)),
        _ => {
            for _ in 0..1 + random.below(6) {
                let at = random.index(message.len());
                message[at] ^= 1 + (random.next() % 255) as u8;
            }
        }
    }
    message
}

fn messages_end_their_session_only(connect: RdmaConnect, port: u16) {
    const PEERS: u64 = 60;
    let dir = tempfile::tempdir().unwrap();
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let at = format!("rdma://{host}:{port}");
    let builder = Node::builder().name("victim").unwrap().runtime_dir(dir.path()).rdma(&at).unwrap();
    let victim = builder.insecure().open().unwrap();
    let mut publisher = victim.state_publisher::<u64>("t").open().unwrap();
    let subscribing = Node::builder().runtime_dir(dir.path()).rdma_connect(connect).open().unwrap();
    let target = format!("{at}/t");
    let mut neighbour = subscribing.state_subscriber::<u64>(target.as_str()).timeout(TIMEOUT).open().unwrap();
    let fabric = VerbsFabric::new(VerbsConfig { connect, ..VerbsConfig::default() }).unwrap();
    let (stranger, address) = (anonymous(&dir), at.parse::<Address>().unwrap());
    for seed in 0..PEERS {
        let mut random = Random::new(seed);
        let mut peer = Peer::dial(&fabric, &address, &stranger);
        let message = if random.below(2) == 0 {
            peer.honest()
        } else {
            peer.greet();
            let topic = "t".parse().unwrap();
            peer.session.attach(topic, Delivery::Pull, None, KindOptions::default()).unwrap();
            peer.honest()
        };
        let broken = mutated(&message, &mut random);
        // What a changed byte leaves valid is answered, and the message after it ends the session.
        let sent = [&broken[..], &[0xff; 40]];
        let _ = sent.iter().all(|message| peer.send(message));
        peer.wait_for_end(&|| format!("seed {seed}: the end of a session after {broken:02x?}"));
        publisher.publish(&seed).unwrap();
        assert_eq!(receive(&mut neighbour).value, seed);
    }
    assert_eq!(neighbour.stats().rejected, 0);
    let directory = anonymous(&dir).directory("shm:victim").unwrap();
    assert_eq!(directory.topics.len(), 1);
}

#[test]
#[ignore = "needs an RDMA device"]
fn malformed_messages_over_rdma_end_their_session_only() {
    messages_end_their_session_only(RdmaConnect::Manager, 7492);
}

#[test]
#[ignore = "needs an RDMA device"]
fn malformed_messages_over_rdma_connected_by_tcp_end_their_session_only() {
    messages_end_their_session_only(RdmaConnect::Tcp, 7493);
}
