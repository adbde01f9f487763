//! Publishers that are killed and started again, under persistent subscribers that do nothing about it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fabricast::{
    Delivery, Epoch, LogSubscriber, Node, Persistent, ReceiveError, Sequence, StateSubscriber,
    TableSubscriber,
};

use self::support::files::raise_files;
use self::support::long::is_long;
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{now, wait_until, wait_within};

#[cfg(test)]
mod support;

/// Keys of the table. In each epoch, the last one is there until the second commit.
const KEYS: u64 = 20;
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
    // The epoch, the sequence after which it continues, and how many values it publishes at first.
    let (epoch, after) = (Epoch::new(role.number(1) as u64), Sequence::new(role.number(2) as u64));
    let epoch = epoch.expect("a number");
    let mut publish: Box<dyn FnMut() -> Sequence> = match role.argument(0) {
        "state" => {
            let builder = node.state_publisher::<u64>("t").epoch(epoch).after(after);
            let mut publisher = builder.open().expect("a topic");
            Box::new(move || {
                let next = publisher.newest().get() + 1;
                publisher.publish(&value_of(epoch, next)).expect("it fits")
            })
        }
        "log" => {
            let builder = node.log_publisher::<u64>("t").epoch(epoch).after(after).capacity(1 << 14);
            let mut publisher = builder.open().expect("a topic");
            Box::new(move || {
                let next = publisher.newest().get() + 1;
                publisher.publish(&value_of(epoch, next)).expect("it fits")
            })
        }
        _ => {
            let builder = node.table_publisher::<u64, u64>("t").epoch(epoch).after(after);
            let mut publisher = builder.open().expect("a topic");
            Box::new(move || {
                let next = publisher.newest().get() + 1;
                for key in (0..KEYS).filter(|key| next == after.get() + 1 || *key == next % (KEYS - 1)) {
                    publisher.stage(&key, &value_of(epoch, next)).expect("it fits");
                }
                if next == after.get() + 2 {
                    publisher.stage_removal(&(KEYS - 1)).expect("it fits");
                }
                publisher.commit()
            })
        }
    };
    let mut newest = after;
    (0..role.number(3)).for_each(|_| newest = publish());
    role.say("ready");
    loop {
        match role.command().as_str() {
            // Until it is killed.
            "run" => loop {
                publish();
            },
            "publish" => newest = publish(),
            _ => {}
        }
        role.say(newest);
    }
}

fn value_of(epoch: Epoch, sequence: u64) -> u64 {
    epoch.get() * 1_000_000_000 + sequence
}

/// A subscriber, and what it has received.
struct Follower<S: fabricast::Subscribed> {
    subscriber: Persistent<S>,
    delivery: Delivery,
    epoch: Option<Epoch>,
    last: u64,
    received: u64,
    lost: u64,
    /// When the first value of this epoch was received, or the first one after `last` was set aside.
    first: Option<Instant>,
    restarts: u64,
    table: BTreeMap<u64, u64>,
}

impl<S: fabricast::Subscribed> Follower<S> {
    fn new(subscriber: Persistent<S>, delivery: Delivery) -> Self {
        let (epoch, first, table) = (None, None, BTreeMap::new());
        Self { subscriber, delivery, epoch, last: 0, received: 0, lost: 0, first, restarts: 0, table }
    }

    fn accept(&mut self, epoch: Epoch, value: u64, sequence: u64) {
        assert_eq!((value, epoch), (value_of(epoch, sequence), *self.epoch.get_or_insert(epoch)));
        self.first.get_or_insert_with(now);
        self.received += 1;
    }

    /// Whether there was something else than a value.
    fn note(&mut self, error: &ReceiveError) -> bool {
        match *error {
            ReceiveError::Contended { .. } => return false,
            ReceiveError::Restarted { epoch, before, .. } => {
                assert_eq!(self.epoch.replace(epoch).unwrap_or(before), before);
                (self.last, self.restarts, self.first) = (0, self.restarts + 1, None);
                self.table.clear();
            }
            ReceiveError::Lapped { first_lost, count } => {
                assert_eq!(first_lost.get(), self.last + 1);
                (self.last, self.lost) = (self.last + count, self.lost + count);
            }
            // The publisher was killed while it wrote it.
            ReceiveError::Damaged { sequence, .. } | ReceiveError::BrokenStamps { sequence } => {
                println!("{error}");
                self.last = self.last.max(sequence.get());
            }
            _ => panic!("{error}"),
        }
        true
    }
}

trait Follow: Send {
    /// Receives what there is.
    fn take(&mut self) -> bool;
    /// Whether it has all up to this value of this epoch.
    fn has(&self, epoch: Epoch, newest: u64) -> bool;
    /// When the first value was received since the last call.
    fn take_first(&mut self) -> Option<Instant>;
    fn describe(&self) -> String;
}

macro_rules! follow {
    ($subscriber:ty, $in_order:expr) => {
        impl Follow for Follower<$subscriber> {
            fn take(&mut self) -> bool {
                match self.subscriber.try_receive() {
                    Ok(None) => false,
                    Ok(Some(sample)) => {
                        let sequence = sample.meta.sequence.get();
                        let is_next =
                            if $in_order { sequence == self.last + 1 } else { sequence > self.last };
                        assert!(is_next, "{sequence} after {}", self.last);
                        self.accept(sample.meta.epoch, sample.value, sequence);
                        self.last = sequence;
                        true
                    }
                    Err(error) => self.note(&error),
                }
            }

            fn has(&self, epoch: Epoch, newest: u64) -> bool {
                self.epoch == Some(epoch) && self.last == newest
            }

            fn take_first(&mut self) -> Option<Instant> {
                self.first.take()
            }

            fn describe(&self) -> String {
                let stats = self.subscriber.current().expect("it was attached").stats();
                assert_eq!((stats.received, stats.lapped), (self.received, self.lost));
                let Self { delivery, received, lost, restarts, .. } = self;
                format!("{delivery:?}: {received} received, {lost} lost, {restarts} breaks")
            }
        }
    };
}

follow!(StateSubscriber<u64>, false);
follow!(LogSubscriber<u64>, true);

impl Follow for Follower<TableSubscriber<u64, u64>> {
    fn take(&mut self) -> bool {
        match self.subscriber.try_change() {
            Ok(None) => false,
            Ok(Some(change)) => {
                let sequence = change.meta.sequence.get();
                if let Some(value) = change.value {
                    let before = self.table.insert(change.key, sequence);
                    assert!(before < Some(sequence), "{}: {sequence} after {before:?}", change.key);
                    self.accept(change.meta.epoch, value, sequence);
                    self.last = self.last.max(sequence);
                } else {
                    assert!(self.table.remove(&change.key).is_some());
                }
                true
            }
            Err(error) => self.note(&error),
        }
    }

    fn has(&self, epoch: Epoch, newest: u64) -> bool {
        let has_keys = self.table.keys().copied().eq(0..KEYS - 1);
        self.epoch == Some(epoch) && self.last == newest && has_keys
    }

    fn take_first(&mut self) -> Option<Instant> {
        self.first.take()
    }

    fn describe(&self) -> String {
        let Self { delivery, received, restarts, .. } = self;
        format!("{delivery:?}: {received} changes, {restarts} breaks")
    }
}

fn followers(node: &Node, kind: &str) -> Vec<Box<dyn Follow>> {
    let follower = |delivery| -> Box<dyn Follow> {
        match kind {
            "state" => {
                let builder = node.state_subscriber("shm:p/t").delivery(delivery);
                Box::new(Follower::new(builder.persistent().open().expect("a name"), delivery))
            }
            "log" => {
                let builder = node.log_subscriber("shm:p/t").delivery(delivery);
                Box::new(Follower::new(builder.persistent().open().expect("a name"), delivery))
            }
            _ => {
                let builder = node.table_subscriber("shm:p/t").delivery(delivery);
                Box::new(Follower::new(builder.persistent().open().expect("a name"), delivery))
            }
        }
    };
    BOTH.map(follower).into()
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
    let mut followers = followers(&node, kind);
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
            publisher.tell("run");
            for _ in 0..50 {
                followers.iter_mut().for_each(|follower| _ = follower.take());
            }
        }
        publisher.kill();
        // What was published by then is not known to who restarts it.
        after = 1_000_000 * (1 + round);
        wait_until("nothing more", || followers.iter_mut().all(|follower| !follower.take()));
        followers.iter_mut().for_each(|follower| _ = follower.take_first());
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
