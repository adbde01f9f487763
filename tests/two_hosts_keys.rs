//! Two hosts with RDMA devices, of which one admits the other by keys and by its address. Each of these tests is one host's part:
//!
//! ```text
//! tools/soft-roce run2 'two_hosts_keys --ignored --exact publisher_with_keys' \
//!     'two_hosts_keys --ignored --exact holders_and_strangers'
//! ```
//!
//! Here the two ends of a request have different addresses.

#![cfg(feature = "verbs")]

use fabricast::{
    ControlError, FabricError, Keyring, Node, NodeBuilder, NotAdmitted, RdmaConnect, RefuseReason,
    StateSubscriber, SubscriberError,
};

use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

/// Of the node that allows the other host, and of the one that does not.
const PORTS: [u16; 2] = [7481, 7482];
const CONNECTS: [RdmaConnect; 2] = [RdmaConnect::Manager, RdmaConnect::Tcp];

fn host(variable: &str) -> String {
    std::env::var(variable).expect("tools/soft-roce run2 tells the addresses")
}

fn keyring(name: &str, byte: u8) -> Keyring {
    Keyring::from_text(&format!("{name} read * {}", format!("{byte:02x}").repeat(32))).expect("a line")
}

fn builder() -> NodeBuilder {
    Node::builder().runtime_dir("/tmp/fabricast-two-hosts-keys")
}

#[test]
#[ignore = "needs two machines: tools/soft-roce run2"]
fn publisher_with_keys() {
    let allowed = [host("PEER"), host("SELF")];
    let nodes: Vec<_> = PORTS
        .iter()
        .zip(&allowed)
        .map(|(port, allowed)| {
            let builder = builder().name(&format!("quotes-{port}")).expect("a name").keys(keyring("desk", 1));
            let builder = builder.rdma(&format!("rdma://{}:{port}", host("SELF"))).expect("an address");
            builder.allow(allowed).expect("an address").open().expect("a node")
        })
        .collect();
    let mut publisher = nodes[0].state_publisher::<u64>("md").open().expect("a topic");
    publisher.publish(&7).expect("it fits");
    let mut end = nodes[0].state_publisher::<u64>("end").open().expect("a topic");
    wait_until("the other host to be done", || end.pull_subscribers() == 1);
    end.publish(&1).expect("it fits");
    wait_until("the other host to leave", || end.pull_subscribers() == 0);
}

fn subscribe(node: &Node, port: u16, topic: &str) -> Result<StateSubscriber<u64>, SubscriberError> {
    let target = format!("rdma://{}:{port}/{topic}", host("PEER"));
    node.state_subscriber::<u64>(target.as_str()).timeout(PATIENCE).open()
}

#[test]
#[ignore = "needs two machines: tools/soft-roce run2"]
fn holders_and_strangers() {
    for connect in CONNECTS {
        let open = |keyring: Option<Keyring>| {
            let mut builder = builder().rdma_connect(connect);
            if let Some(keyring) = keyring {
                builder = builder.keys(keyring);
            }
            builder.open().expect("a node")
        };
        let holder = open(Some(keyring("mine", 1)));
        wait_until("a value", || {
            subscribe(&holder, PORTS[0], "md").is_ok_and(|mut subscriber| {
                subscriber
                    .receive_timeout(PATIENCE)
                    .expect("it goes on")
                    .is_some_and(|sample| sample.value == 7)
            })
        });
        for stranger in [open(None), open(Some(keyring("mine", 2)))] {
            let error = subscribe(&stranger, PORTS[0], "md").expect_err("it has no key");
            let SubscriberError::Session { source, .. } = &error else { panic!("{error:?}") };
            let refused =
                matches!(source, ControlError::Refused { reason: RefuseReason::NotAuthenticated, .. });
            assert!(refused, "{source:?}");
        }
        let error = subscribe(&holder, PORTS[1], "md").expect_err("its host is not allowed");
        let SubscriberError::Unreachable { source: FabricError::NotAdmitted(why), .. } = &error else {
            panic!("{error:?}")
        };
        let address = host("SELF").parse().expect("an address");
        assert_eq!(*why, NotAdmitted::Address { address });
    }
    let node = builder().keys(keyring("mine", 1)).open().expect("a node");
    let mut end = subscribe(&node, PORTS[0], "end").expect("the publisher waits for it");
    assert!(end.receive_timeout(PATIENCE).expect("it goes on").is_some(), "the publisher has not seen it");
}
