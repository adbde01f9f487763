//! A process that publishes to a state, a log, a table and a feed without a pause, until it is killed.

use std::time::Duration;

use fabricast::{Epoch, Gating, LogPublisher, Node, NodeBuilder, Sequence, StatePublisher, TablePublisher};

use super::ledger::Ledger;
use super::support::feed::{self, publish_next};
use super::support::role::Role;
use super::support::time::now;
use super::value::Value;

/// Keys of the table.
pub(crate) const KEYS: u64 = 16;
/// A ring of some thousand records, so that subscribers are in the way now and then.
const CAPACITY: usize = 256 * 1024;

/// How far a publisher is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) epoch: u64,
    pub(crate) newest: u64,
    pub(crate) feed_epoch: u64,
    pub(crate) event: u64,
}

struct Load {
    state: StatePublisher<Value>,
    log: LogPublisher<Value>,
    table: TablePublisher<u64, Value>,
    feed: feed::Publisher,
    ledger: Ledger,
    /// The first commit of this process has all keys of the table.
    is_first: bool,
    /// The longest time that publishing a value took since it was asked for last.
    slowest: Duration,
}

impl Load {
    fn open(node: &Node, ledger: Ledger) -> Self {
        let (epoch, after) = (Epoch::new(ledger.epoch).expect("not zero"), Sequence::new(ledger.newest));
        let state = node.state_publisher("state").epoch(epoch).after(after).open().expect("a topic");
        let log = node.log_publisher("log").epoch(epoch).after(after).capacity(CAPACITY);
        let log = log.gating(Gating::new()).open().expect("a topic");
        let table = node.table_publisher("table").epoch(epoch).after(after);
        let table = table.capacity(2 * KEYS as usize).open().expect("a topic");
        let feed_epoch = Epoch::new(ledger.feed_epoch).expect("not zero");
        let feed = node.feed_publisher("feed").epoch(feed_epoch).capacity(70).log_capacity(1 << 17);
        let mut feed: feed::Publisher = feed.open().expect("two topics");
        (0..ledger.event).for_each(|_| publish_next(&mut feed));
        Self { state, log, table, feed, ledger, is_first: true, slowest: Duration::ZERO }
    }

    fn publish(&mut self) {
        let (value, has_event) = self.ledger.advance();
        let began = now();
        let sequence = self.state.publish(&value).expect("it fits");
        assert_eq!(sequence.get(), value.sequence);
        self.log.publish(&value).expect("nobody is in the way for long");
        let key = value.sequence % KEYS;
        for key in (0..KEYS).filter(|it| self.is_first || *it == key) {
            self.table.stage(&key, &value).expect("it fits");
        }
        self.is_first = false;
        self.table.commit();
        if has_event {
            publish_next(&mut self.feed);
        }
        self.slowest = self.slowest.max(began.elapsed());
    }

    /// Its mark, and the longest time that publishing a value took, ms.
    fn report(&mut self) -> String {
        let Ledger { epoch, newest, feed_epoch, event, .. } = self.ledger;
        let slowest = std::mem::take(&mut self.slowest).as_millis();
        format!("{epoch} {newest} {feed_epoch} {event} {slowest}")
    }
}

/// Plays a publisher. Its arguments: its node's name, where it listens besides shared memory, whether it begins another epoch, and the
/// pause after four values, microseconds.
pub(crate) fn play(role: &Role) {
    let builder = Node::builder().name(role.argument(0)).expect("a name").runtime_dir(&role.dir);
    let node = listening(builder, role.argument(1)).open().expect("a node");
    let ledger = Ledger::open(&role.dir, role.argument(0), role.argument(2) == "anew");
    let pause = Duration::from_micros(role.number(3) as u64);
    let mut load = Load::open(&node, ledger);
    load.publish();
    role.say("ready");
    let mut is_running = true;
    loop {
        let command = if is_running { role.command_now() } else { Some(role.command()) };
        match command.as_deref() {
            None => {
                (0..4).for_each(|_| load.publish());
                std::thread::park_timeout(pause);
            }
            Some("mark") => role.say(load.report()),
            Some("halt") => {
                is_running = false;
                role.say(load.report());
            }
            Some("end") => return,
            Some(command) => panic!("what is {command:?}?"),
        }
    }
}

#[cfg(feature = "verbs")]
fn listening(builder: NodeBuilder, place: &str) -> NodeBuilder {
    match place {
        "shm" => builder,
        address => builder.rdma(address).expect("an address").insecure(),
    }
}

#[cfg(not(feature = "verbs"))]
fn listening(builder: NodeBuilder, _: &str) -> NodeBuilder {
    builder
}
