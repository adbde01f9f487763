//! A crowd of persistent subscribers over RDMA: `tools/soft-roce run` runs this.

#![cfg(feature = "verbs")]

use std::time::Duration;

use fabricast::{Delivery, Epoch, LogStart, LogSubscriber, Node, Sequence};

use self::support::files::raise_files;
use self::support::follower::{Follow as _, Follower, Source};
use self::support::peer::Peer;
use self::support::rdma::address;
use self::support::role::Role;
use self::support::time::{PATIENCE, now, wait_within};

#[cfg(test)]
mod support;

/// Nodes, and subscribers of each.
const CROWD: [usize; 2] = [12, 5];
const PORT: u16 = 7473;
/// The first one, which the subscribers are opened for, and those that follow.
const PUBLISHERS: u64 = 4;
/// How soon the crowd is back, also on a busy machine.
const BACK: Duration = PATIENCE.saturating_mul(3);

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    raise_files();
    let builder = Node::builder().name("p").expect("a name").runtime_dir(&role.dir);
    let node = builder.rdma(&address(PORT)).expect("an address").insecure().open().expect("a node");
    let epoch = Epoch::new(role.number(0) as u64).expect("not zero");
    let mut source = Source::open(&node, "log", "t", epoch, Sequence::NONE);
    (0..3).for_each(|_| _ = source.publish());
    role.say("ready");
    role.command();
    role.say(source.publish());
    role.command();
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn crowd_of_subscribers_is_back_after_each_restart_of_its_publisher() {
    raise_files();
    let dir = tempfile::tempdir().expect("a directory");
    let target = format!("{}/t", address(PORT));
    let mut publisher = Peer::ready("publisher", dir.path(), "1");
    let [node_count, each] = CROWD;
    let nodes: Vec<Node> =
        (0..node_count).map(|_| Node::builder().runtime_dir(dir.path()).open().expect("a node")).collect();
    let subscribe = |number: usize| {
        let delivery = if number.is_multiple_of(2) { Delivery::Pull } else { Delivery::Push };
        let builder = nodes[number % node_count].log_subscriber::<u64>(target.as_str());
        let subscriber = builder.start(LogStart::First).delivery(delivery).persistent().open();
        Follower::<LogSubscriber<u64>>::new(subscriber.expect("a subscriber"), delivery)
    };
    let mut crowd: Vec<_> = (0..node_count * each).map(subscribe).collect();
    for epoch in 1..=PUBLISHERS {
        let (up, mut back) = (now(), 0);
        wait_within(BACK, "the crowd", || {
            crowd.iter_mut().for_each(|follower| while follower.take() {});
            let has_all =
                |it: &&Follower<_>| it.epoch.is_some_and(|found| found.get() == epoch) && it.last >= 3;
            let now_back = crowd.iter().filter(has_all).count();
            if now_back != std::mem::replace(&mut back, now_back) {
                println!("{now_back} after {:?}", up.elapsed());
            }
            now_back == crowd.len()
        });
        println!("{back} subscribers are back {:?} after publisher {epoch} was up", up.elapsed());
        assert!(crowd.iter().all(|follower| follower.subscriber.is_attached()));
        assert_eq!(publisher.ask_number("publish"), 4);
        wait_within(BACK, "the last record", || {
            crowd.iter_mut().for_each(|follower| while follower.take() {});
            crowd.iter().all(|follower| follower.last == 4)
        });
        publisher.kill();
        if epoch < PUBLISHERS {
            publisher = Peer::ready("publisher", dir.path(), &(epoch + 1).to_string());
        }
    }
    for follower in &crowd {
        // Each record of each publisher.
        assert!(follower.describe().contains("16 received, 0 lost, 3 breaks"), "{}", follower.describe());
    }
}
