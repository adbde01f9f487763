//! Publishers that keep their repositories in files, killed under subscribers over RDMA: `tools/soft-roce run` runs this.

#![cfg(feature = "verbs")]

use fabricast::{Delivery, Node};

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::wait_until;
use self::support::warm::{Following, memory, play};

#[cfg(test)]
mod support;

const PORT: u16 = 7479;
const ROUNDS: u64 = 4;

/// This host's address.
fn address() -> String {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    format!("rdma://{host}:{PORT}")
}

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let builder = Node::builder().name("p").expect("a name").runtime_dir(&role.dir);
    let node = builder.rdma(&address()).expect("an address").insecure().open().expect("a node");
    play(&role, &node);
}

fn followers_lose_nothing(kind: &str) {
    let (dir, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let arguments = format!("{kind} {}", memory.path().join("t").display());
    let target = format!("{}/t", address());
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let mut publisher = Peer::ready("publisher", dir.path(), &arguments);
    let deliveries = [Delivery::Pull, Delivery::Push];
    let mut followers = deliveries.map(|delivery| Following::open(&node, kind, &target, delivery));
    for _ in 0..ROUNDS {
        publisher.tell("run");
        let least = followers.iter().map(Following::last).max().expect("two") + 200;
        wait_until("more values", || {
            followers.iter_mut().for_each(Following::take);
            followers.iter().all(|follower| follower.last() > least)
        });
        publisher.kill();
        publisher = Peer::ready("publisher", dir.path(), &arguments);
        let newest = publisher.ask_number("newest");
        assert!(followers.iter().all(|follower| follower.last() <= newest), "a subscriber has what is lost");
        wait_until("everything that was published", || {
            followers.iter_mut().for_each(Following::take);
            followers.iter().all(|follower| follower.last() == newest)
        });
    }
    for follower in &followers {
        follower.check_all();
        println!("{kind}: {}", follower.describe());
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn subscribers_over_rdma_lose_nothing_when_a_publisher_is_killed() {
    for kind in ["log", "state", "table", "feed"] {
        followers_lose_nothing(kind);
    }
}
