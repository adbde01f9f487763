//! Publishers that are killed and started again, under persistent subscribers that do nothing about it.

use std::path::Path;
use std::time::Duration;

use fabricast::{Delivery, Epoch, Node, Sequence};

use self::support::files::raise_files;
use self::support::follower::{Follow as _, Follower, Source, follower};
use self::support::long::is_long;
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{now, wait_until, wait_within};

#[cfg(test)]
mod support;

/// Longer than any silence, also on a busy machine.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
/// Subscribers of one publisher: nodes, and subscribers of each.
const CROWD: [usize; 2] = [100, 10];
/// How soon a crowd is back, also on a busy machine.
const CROWD_BACK: Duration = Duration::from_secs(60);

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    if role.name == "crowd" {
        return play_crowd(&role);
    }
    raise_files();
    let node = Node::builder().name("p").expect("a name").runtime_dir(&role.dir).open().expect("a node");
    // The epoch, the sequence after which it continues or the events that it repeats, and how many values it publishes then.
    let (epoch, after) = (Epoch::new(role.number(1) as u64), Sequence::new(role.number(2) as u64));
    let mut source = Source::open(&node, role.argument(0), "t", epoch.expect("a number"), after);
    let mut newest = after;
    (0..role.number(3)).for_each(|_| newest = source.publish());
    role.say("ready");
    loop {
        match role.command().as_str() {
            // Until it is killed.
            "run" => loop {
                source.publish();
            },
            "publish" => newest = source.publish(),
            _ => {}
        }
        role.say(newest);
    }
}

/// Prints the longest and the median of these.
fn print_silences(what: &str, silences: &mut [Duration]) {
    silences.sort();
    let (median, longest) = (silences.get(silences.len() / 2), silences.last());
    println!("{what}: median {median:?}, longest {longest:?} of {}", silences.len());
    assert!(longest < Some(&SILENCE_MAX), "{longest:?}");
}

fn subscribers_outlive_killed_publishers(kind: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let mut followers = BOTH.map(|delivery| follower(&node, kind, "shm:p/t", delivery));
    let (mut number, mut after) = (1, 0);
    let mut silences = Vec::new();
    for round in 0..if is_long() { 200 } else { 20 } {
        // Every other one has the epoch of the one before, and continues its numbering, which it knows roughly.
        if round % 2 == 0 {
            (number, after) = (number + 1, 0);
        }
        let epoch = Epoch::new(number).expect("not zero");
        let mut publisher = Peer::start("publisher", dir.path(), &format!("{kind} {number} {after} 3"));
        assert_eq!(publisher.hear(), "ready");
        let up = now();
        for follower in &mut followers {
            // Polled in turn, so that the one that comes second does not wait for the first.
            follower.take();
        }
        let mut firsts = vec![None; followers.len()];
        wait_within(SILENCE_MAX, "the first values", || {
            for (follower, first) in followers.iter_mut().zip(&mut firsts) {
                while follower.take() {}
                *first = first.or(follower.take_first());
            }
            firsts.iter().all(Option::is_some)
        });
        silences.extend(firsts.iter().flatten().map(|first| first.saturating_duration_since(up)));
        let newest = publisher.ask_number("publish");
        wait_until("the newest value", || {
            followers.iter_mut().for_each(|follower| while follower.take() {});
            followers.iter().all(|follower| follower.has(epoch, newest))
        });
        if round % 2 == 0 {
            // It is killed at any moment while it publishes.
            publisher.tell("run");
            let mut polls = 0;
            wait_until("some values", || {
                followers.iter_mut().for_each(|follower| polls += u64::from(follower.take()));
                polls > 200 + 37 * (round % 50)
            });
        }
        publisher.kill();
        wait_until("nothing more", || followers.iter_mut().all(|follower| !follower.take()));
        followers.iter_mut().for_each(|follower| _ = follower.take_first());
        after = followers.iter().map(|follower| follower.next_after(round)).max().expect("two followers");
    }
    for follower in &followers {
        println!("{kind}, {}", follower.describe());
    }
    print_silences(kind, &mut silences);
}

#[test]
fn state_subscribers_outlive_killed_publishers() {
    subscribers_outlive_killed_publishers("state");
}

#[test]
fn log_subscribers_outlive_killed_publishers() {
    subscribers_outlive_killed_publishers("log");
}

#[test]
fn table_subscribers_outlive_killed_publishers() {
    subscribers_outlive_killed_publishers("table");
}

#[test]
fn feed_subscribers_outlive_killed_publishers() {
    subscribers_outlive_killed_publishers("feed");
}

/// Many subscribers of one publisher.
fn play_crowd(role: &Role) {
    raise_files();
    let [node_count, each] = CROWD;
    let nodes: Vec<Node> =
        (0..node_count).map(|_| Node::builder().runtime_dir(&role.dir).open().expect("a node")).collect();
    let builder =
        |node: &Node| node.log_subscriber::<u64>("shm:p/t").delivery(Delivery::Pull).persistent().open();
    let opened = nodes.iter().flat_map(|node| (0..each).map(move |_| builder(node)));
    let mut followers: Vec<_> =
        opened.map(|opened| Follower::new(opened.expect("a subscriber"), Delivery::Pull)).collect();
    role.say("ready");
    loop {
        let epoch: u64 = role.command().parse().expect("an epoch");
        wait_within(CROWD_BACK, "the crowd", || {
            followers.iter_mut().for_each(|follower| while follower.take() {});
            followers.iter().all(|follower| follower.epoch.is_some_and(|found| found.get() == epoch))
        });
        assert!(followers.iter().all(|follower| follower.subscriber.is_attached() && follower.last >= 3));
        role.say("back");
    }
}

fn crowd_publisher(dir: &Path, epoch: u64) -> Peer {
    Peer::ready("publisher", dir, &format!("log {epoch} 0 3"))
}

#[test]
fn crowd_of_subscribers_is_back_soon_after_its_publisher() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut crowd = Peer::ready("crowd", dir.path(), "");
    for epoch in 1..4 {
        let mut publisher = crowd_publisher(dir.path(), epoch);
        let up = now();
        crowd.tell(&epoch.to_string());
        assert_eq!(crowd.hear(), "back");
        let [nodes, each] = CROWD;
        println!("{} subscribers of {nodes} nodes are back after {:?}", nodes * each, up.elapsed());
        publisher.kill();
    }
}
