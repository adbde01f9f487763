//! Publishers that keep their repositories in files, killed under subscribers over RDMA: `tools/soft-roce run` runs this.

#![cfg(feature = "verbs")]

use fabricast::Node;

use self::support::rdma::address;
use self::support::role::Role;
use self::support::warm::{self, play};

#[cfg(test)]
mod support;

const PORT: u16 = 7479;
const ROUNDS: u64 = 4;

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let builder = Node::builder().name("p").expect("a name").runtime_dir(&role.dir);
    let node = builder.rdma(&address(PORT)).expect("an address").insecure().open().expect("a node");
    play(&role, &node);
}

fn followers_lose_nothing(kind: &str) {
    warm::followers_lose_nothing(kind, &format!("{}/t", address(PORT)), ROUNDS, |_| 200);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn subscribers_over_rdma_lose_nothing_when_a_publisher_is_killed() {
    for kind in ["log", "state", "table", "feed"] {
        followers_lose_nothing(kind);
    }
}
