//! The locked memory of a node with strangers at its door over RDMA: `tools/soft-roce run` runs this.

#![cfg(feature = "verbs")]

use std::time::Duration;

use fabricast::{Node, StateSubscriber};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use self::support::peer::Peer;
use self::support::rdma::address;
use self::support::role::Role;
use self::support::time::PATIENCE;

#[cfg(test)]
mod support;

/// A common limit of the memory that a process may lock, bytes.
const LOCKED: u64 = 8 << 20;
/// Places for sessions that this affords: half of it, 144 KiB each.
const PLACES: u64 = 28;
/// Strangers: many more than lock all of it.
const STRANGERS: usize = 70;
const PORT: u16 = 7477;

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    match role.name.as_str() {
        "victim" => be_victim(&role),
        "strangers" => be_strangers(&role),
        name => panic!("no role: {name}"),
    }
}

/// A node that may lock little memory, and does not belong to root.
fn be_victim(role: &Role) {
    let limit = Rlimit { current: Some(LOCKED), maximum: Some(LOCKED) };
    setrlimit(Resource::Memlock, limit).expect("a limit can be lowered");
    let mut has = capabilities(None).expect("capabilities");
    has.effective.remove(CapabilitySet::IPC_LOCK);
    has.permitted.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, has).expect("a capability can be given up");
    let builder = Node::builder().name("victim").expect("a name").runtime_dir(&role.dir);
    let node = builder.rdma(&address(PORT)).expect("an address").insecure().open().expect("a node");
    role.say(node.peer_limits().rdma_sessions);
    let mut topics = Vec::new();
    loop {
        let name = role.command();
        // Half a megabyte.
        match node.state_publisher::<Vec<u8>>(&name).payload_len_max(64 << 10).open() {
            Ok(topic) => topics.push(topic),
            Err(error) => {
                role.say(fabricast::ErrorChain(&error));
                continue;
            }
        }
        role.say("opened");
    }
}

/// Nodes with a session each, as far as there are places.
fn be_strangers(role: &Role) {
    let target = format!("{}/first", address(PORT));
    let mut sessions: Vec<StateSubscriber<Vec<u8>>> = Vec::new();
    let mut last = String::new();
    for _ in 0..STRANGERS {
        let node = Node::builder().runtime_dir(&role.dir).open().expect("a node");
        match node.state_subscriber(target.as_str()).push().timeout(PATIENCE).open() {
            Ok(session) => sessions.push(session),
            Err(error) => last = fabricast::ErrorChain(&error).to_string(),
        }
    }
    role.say(sessions.len());
    role.say(last);
    role.command();
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn strangers_leave_memory_that_a_node_may_lock_to_its_topics() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut victim = Peer::start("victim", dir.path(), "");
    let places: u64 = victim.hear().parse().expect("a number");
    assert_eq!(places, PLACES);
    assert_eq!(victim.ask("first"), "opened");
    let mut strangers = Peer::start("strangers", dir.path(), "");
    let taken: u64 = strangers.hear().parse().expect("a number");
    let why = strangers.hear();
    println!("{taken} of {STRANGERS} strangers have a session; the last one: {why}");
    assert!(taken <= PLACES && taken > PLACES / 4, "{taken} strangers");
    assert!(why.contains("PeerLimits::rdma_sessions") && why.contains(&PLACES.to_string()), "{why}");
    // What the node keeps is for its topics, which subscribers of this host and of another one find.
    for number in 0..4 {
        assert_eq!(victim.ask(&format!("other/{number}")), "opened");
    }
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let builder = node.state_subscriber::<Vec<u8>>("shm:victim/other/3");
    builder.timeout(Duration::from_secs(5)).open().expect("a subscriber of this host");
    strangers.tell("stop");
}
