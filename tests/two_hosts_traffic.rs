//! What RDMA packets between two hosts look like on the wire: each test is one host's part, its counterpart runs on the other host.
//!
//! ```text
//! tools/soft-roce run2 --env FABRICAST_RDMA_DSCP=46 \
//!     'two_hosts_traffic --ignored --exact publisher_of_a_service_class' \
//!     'two_hosts_traffic --ignored --exact packets_have_the_service_class'
//! ```

#![cfg(feature = "verbs")]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use fabricast::{Delivery, Node, NodeBuilder, RdmaConnect, StatePublisher, StateSubscriber};
use rustix::net::{AddressFamily, Protocol, RawProtocol, RecvFlags, SocketFlags, SocketType};

use self::support::time::{PATIENCE, wait_until, wait_within};

#[cfg(test)]
mod support;

const CONNECTS: [(RdmaConnect, u16); 3] =
    [(RdmaConnect::Manager, 7471), (RdmaConnect::Tcp, 7472), (RdmaConnect::TcpUnreliable, 7473)];
/// Values that each subscriber receives.
const VALUES: u64 = 20;
/// The port of RoCE v2, 4791 (InfiniBand Architecture Specification, Annex A17).
const ROCE_PORT: [u8; 2] = [0x12, 0xB7];
/// All protocols (`ETH_P_ALL`), as packet sockets take it.
const ALL_PROTOCOLS: u16 = 0x0003_u16.to_be();
const UDP: u8 = 17;
/// The queue pair to which connection management sends, not an application: 1.
const MANAGEMENT: [u8; 3] = [0, 0, 1];
/// The number that stands for the queue pairs of all members of a multicast group.
const GROUP: [u8; 3] = [0xFF; 3];

fn host(variable: &str) -> String {
    std::env::var(variable).expect("tools/soft-roce run2 tells the addresses")
}

fn builder(connect: RdmaConnect) -> NodeBuilder {
    Node::builder().runtime_dir("/tmp/fabricast-two-hosts-traffic").rdma_connect(connect)
}

#[test]
#[ignore = "needs two machines: tools/soft-roce run2"]
fn publisher_of_a_service_class() {
    let open = |(connect, port): (RdmaConnect, u16)| {
        let builder = builder(connect).name(&format!("quotes-{port}")).expect("a name");
        let address = format!("rdma://{}:{port}", host("SELF"));
        let node = builder.rdma(&address).expect("an address").insecure().open().expect("a node");
        let publisher = node.state_publisher::<u64>("md").open().expect("a topic");
        let end = node.state_publisher::<u64>("end").open().expect("a topic");
        (node, publisher, end)
    };
    let mut all = CONNECTS.map(open);
    let is_over = |end: &StatePublisher<u64>| end.push_subscribers() > 0;
    wait_within(8 * PATIENCE, "the other host to be done", || {
        for (_, publisher, _) in &mut all {
            publisher.publish(&(publisher.newest().get() + 1)).expect("it fits");
        }
        std::thread::park_timeout(Duration::from_millis(5));
        all.iter().any(|(_, _, end)| is_over(end))
    });
    all.iter_mut().for_each(|(_, _, end)| _ = end.publish(&1).expect("it fits"));
    wait_until("the other host to leave", || !all.iter().any(|(_, _, end)| is_over(end)));
}

/// Receives all packets of this host.
fn sniffer() -> OwnedFd {
    let protocol = RawProtocol::new(ALL_PROTOCOLS.into()).map(Protocol::from_raw);
    // Without the frame's header.
    rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, SocketFlags::CLOEXEC, protocol)
        .expect("root may listen to packets")
}

/// The type of service of a packet, and whether it is for a group, if it is one of RoCE v2 to applications.
fn service_of(packet: &[u8]) -> Option<(u8, bool)> {
    let header_len = usize::from(*packet.first().filter(|first| *first >> 4 == 4)? & 15) * 4;
    let (service, protocol) = (*packet.get(1)?, *packet.get(9)?);
    let datagram = packet.get(header_len..)?;
    let port = *datagram.get(2..)?.first_chunk::<2>()?;
    let [_, queue_pair @ ..] = *datagram.get(8 + 4..)?.first_chunk::<4>()?;
    (protocol == UDP && port == ROCE_PORT && queue_pair != MANAGEMENT)
        .then_some((service, queue_pair == GROUP))
}

/// Counts the packets that have come and gone since, by their service and whether they are for a group.
fn count(sniffer: &OwnedFd, services: &mut BTreeMap<(u8, bool), u64>) {
    let mut packet = [0; 128];
    while let Ok((len, _)) = rustix::net::recv(sniffer, &mut packet, RecvFlags::DONTWAIT) {
        if let Some(service) = packet.get(..len).and_then(service_of) {
            *services.entry(service).or_default() += 1;
        }
    }
}

#[test]
#[ignore = "needs two machines: tools/soft-roce run2"]
fn packets_have_the_service_class() {
    let class: u8 = host("FABRICAST_RDMA_DSCP").parse().expect("a number");
    let sniffer = sniffer();
    let subscribe = |connect, port, topic: &str, delivery| -> StateSubscriber<u64> {
        let node = builder(connect).open().expect("a node");
        let target = format!("rdma://{}:{port}/{topic}", host("PEER"));
        let mut opened = None;
        wait_until("a subscription", || {
            let builder = node.state_subscriber::<u64>(target.as_str()).delivery(delivery).timeout(PATIENCE);
            opened = builder.open().ok();
            opened.is_some()
        });
        opened.expect("it was waited for")
    };
    for (connect, port) in CONNECTS {
        let deliveries: &[_] = match connect {
            RdmaConnect::TcpUnreliable => &[Delivery::Push],
            _ => &[Delivery::Pull, Delivery::Push],
        };
        for delivery in deliveries {
            let mut services = BTreeMap::new();
            let mut subscriber = subscribe(connect, port, "md", *delivery);
            wait_until("values", || {
                let received = subscriber.receive_timeout(PATIENCE).expect("it goes on");
                count(&sniffer, &mut services);
                let has_notices = services.keys().any(|(_, is_for_group)| *is_for_group);
                let is_notified = connect != RdmaConnect::TcpUnreliable && *delivery == Delivery::Pull;
                received.is_some() && subscriber.stats().received >= VALUES && has_notices >= is_notified
            });
            println!(
                "{connect:?}, {delivery}: packets by their type of service, and whether for a group: {services:?}"
            );
            assert!(services.values().sum::<u64>() >= VALUES, "{services:?}");
            let other: Vec<_> = services.keys().filter(|(service, _)| service >> 2 != class).collect();
            assert!(other.is_empty(), "{connect:?}, {delivery}: {services:?}");
        }
    }
    let mut end = subscribe(RdmaConnect::Manager, 7471, "end", Delivery::Push);
    let seen = end.receive_timeout(PATIENCE).expect("it goes on");
    assert!(seen.is_some(), "the publisher has not seen it");
}
