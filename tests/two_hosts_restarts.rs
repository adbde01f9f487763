//! A publisher that restarts again and again on one host, under persistent subscribers on another one, over RDMA. Each of the two
//! tests is one host's part, as in `tests/two_hosts.rs`:
//!
//! ```text
//! tools/soft-roce run2 'two_hosts_restarts --ignored --nocapture --exact restarting_publisher' \
//!     'two_hosts_restarts --ignored --nocapture --exact persistent_subscribers'
//! ```
//!
//! The publisher's process dies in turn in four ways: it is killed; it is stopped, and killed later; its host loses its power; its
//! host hangs, and is reset later. The latter two need the process to be silent on the wire, so all that its host sends is dropped
//! from before the process is killed or stopped until the next one starts. FABRICAST_TEST_RESTARTS is the number of restarts.

#![cfg(feature = "verbs")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fabricast::{Delivery, Epoch, Node, NodeBuilder, Sequence};

use self::support::follower::{Follow, Source, follower};
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{PATIENCE, now, wait_until, wait_within};

#[cfg(test)]
mod support;

const NODE: &str = "feed";
const PORT: u16 = 7471;
const DIR: &str = "/tmp/fabricast-two-hosts";
const KINDS: [&str; 4] = ["state", "log", "table", "feed"];
const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
/// Restarts, unless FABRICAST_TEST_RESTARTS overrides it: each way to die once.
const RESTARTS: u64 = 4;
/// Values of each topic that are published with one command, and how many commands there are between two restarts.
const BATCH: u64 = 20;
const BATCHES: u64 = 5;
/// The epoch of the last publisher.
const LAST: u64 = 1000;
/// How long a host is silent: longer than it takes to detect that.
const SILENT: Duration = Duration::from_secs(2);

fn restarts() -> u64 {
    std::env::var("FABRICAST_TEST_RESTARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(RESTARTS)
}

fn builder() -> NodeBuilder {
    Node::builder().runtime_dir(DIR)
}

/// The address of this host, or of the other one.
fn host(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 tells the addresses");
    format!("rdma://{host}:{PORT}")
}

/// The publisher's process.
#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let node =
        builder().name(NODE).expect("a name").rdma(&host("SELF")).expect("an address").insecure().open();
    let node = node.expect("a node");
    let epoch = Epoch::new(role.number(0) as u64).expect("not zero");
    let open = |kind: &str| {
        let after = Sequence::new(role.number(if kind == "feed" { 2 } else { 1 }) as u64);
        Source::open(&node, kind, kind, epoch, after)
    };
    let mut sources = KINDS.map(open);
    let up = now();
    role.say("ready");
    loop {
        let command = role.command();
        let count = if command == "await" { BOTH.len() as u64 } else { 0 };
        match command.as_str() {
            "await" | "leave" => {
                let are_there = || sources.iter().all(|source| source.subscribers() == count);
                wait_within(2 * PATIENCE, "the subscribers", are_there);
                role.say(up.elapsed().as_millis());
            }
            _ => {
                for _ in 0..BATCH {
                    sources.iter_mut().for_each(|source| _ = source.publish());
                }
                role.say("published");
            }
        }
    }
}

/// Drops what this host sends from now on, or lets it through again.
fn cut_the_wire(is_cut: bool) {
    let action = if is_cut { "add" } else { "del" };
    let mut words = vec!["qdisc", action, "dev", "eth0", "root", "netem"];
    words.extend(["loss", "100%"].iter().filter(|_| is_cut));
    assert!(Command::new("tc").args(words).status().expect("tc").success());
}

fn wait_for(silence: Duration) {
    let began = now();
    wait_until("the end of the silence", || began.elapsed() > silence);
}

/// Ends the publisher's process in the next way.
fn die(publisher: &mut Peer, round: u64) {
    let (is_host, is_frozen) = (round % 4 > 1, !round.is_multiple_of(2));
    if is_host {
        cut_the_wire(true);
    }
    if is_frozen {
        publisher.stop();
        wait_for(SILENT);
    }
    publisher.kill();
    if is_host && !is_frozen {
        wait_for(SILENT);
    }
    if is_host {
        cut_the_wire(false);
    }
}

/// Host A: all subscribers are back after each restart.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn restarting_publisher() {
    let dir = Path::new(DIR);
    let (mut epoch, mut after, mut events) = (1, 0, 0);
    let mut times = Vec::new();
    for round in 0..restarts() {
        let mut publisher = Peer::ready("publisher", dir, &format!("{epoch} {after} {events}"));
        times.push(publisher.ask_number("await"));
        println!("round {round}: all subscribers are back after {} ms", times[times.len() - 1]);
        (0..BATCHES).for_each(|_| assert_eq!(publisher.ask("publish"), "published"));
        // It dies while it publishes these.
        publisher.tell("publish");
        die(&mut publisher, round);
        if round % 3 == 2 {
            (epoch, after, events) = (epoch + 1, 0, 0);
        } else {
            // It does not know exactly how much was published. A feed has to repeat all.
            (after, events) = (after + (BATCHES + 2) * BATCH, events + (BATCHES + 1) * BATCH);
        }
    }
    let mut publisher = Peer::ready("publisher", dir, &format!("{LAST} 0 0"));
    times.push(publisher.ask_number("await"));
    (0..BATCHES).for_each(|_| assert_eq!(publisher.ask("publish"), "published"));
    publisher.ask_number("leave");
    times.sort_unstable();
    println!(
        "back after: median {} ms, longest {} ms of {}",
        times[times.len() / 2],
        times[times.len() - 1],
        times.len()
    );
}

/// Host B: they do nothing about it.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn persistent_subscribers() {
    let node = builder().open().expect("a node");
    let mut followers: Vec<(&str, Box<dyn Follow>)> = Vec::new();
    for kind in KINDS {
        let target = format!("{}/{kind}", host("PEER"));
        followers.extend(BOTH.map(|delivery| (kind, follower(&node, kind, &target, delivery))));
    }
    let last = Epoch::new(LAST).expect("not zero");
    let newest = BATCHES * BATCH;
    wait_within(PATIENCE * u32::try_from(restarts() + 2).expect("few restarts"), "the last values", || {
        followers.iter_mut().for_each(|(_, follower)| while follower.take() {});
        followers.iter().all(|(kind, follower)| {
            let times = if *kind == "feed" { support::feed::RECORDS } else { 1 };
            follower.has(last, newest * times)
        })
    });
    for (kind, follower) in &followers {
        println!("{kind}, {}", follower.describe());
    }
}
