//! Publishers that keep their repositories in files, and persistent subscribers that check that they receive all of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use fabricast::{
    Delivery, FeedPublisher, FeedSubscriber, FeedUpdate, LogPublisher, LogStart, LogSubscriber, Node,
    Persistent, ReceiveError, StatePublisher, StateSubscriber, TablePublisher, TableSubscriber,
};

use super::peer::Peer;
use super::role::Role;
use super::time::wait_until;

/// Keys of tables and feeds: the value of a key is the sequence of its last commit or record.
const KEYS: u64 = 20;
/// The keys that they may have.
const CAPACITY: usize = 20;
/// Records or values published between two pauses, so that subscribers on a busy machine keep up.
const BURST: u64 = 40;
/// The same of a feed, whose subscribers read two topics.
const FEED_BURST: u64 = 12;

/// A directory in memory, for repository files.
pub(crate) fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// A publisher of one topic, whose values are their sequences.
pub(crate) enum Source {
    State(StatePublisher<u64>),
    Log(LogPublisher<u64>),
    Table(Box<TablePublisher<u64, u64>>),
    Feed(Box<FeedPublisher<u64, u64, u64>>),
    Ended,
}

impl Source {
    pub(crate) fn open(node: &Node, kind: &str, path: &Path) -> Self {
        Self::named(node, kind, "t", path)
    }

    pub(crate) fn named(node: &Node, kind: &str, topic: &str, path: &Path) -> Self {
        match kind {
            "state" => Self::State(node.state_publisher(topic).warm(path).open().expect("a topic")),
            "log" => {
                Self::Log(node.log_publisher(topic).capacity(1 << 22).warm(path).open().expect("a topic"))
            }
            "table" => {
                let builder = node.table_publisher(topic).capacity(CAPACITY).payload_len_max(64);
                Self::Table(Box::new(builder.key_len_max(8).warm(path).open().expect("a topic")))
            }
            _ => {
                let builder = node.feed_publisher(topic).capacity(CAPACITY).value_len_max(64).key_len_max(8);
                Self::Feed(Box::new(builder.log_capacity(1 << 20).warm(path).open().expect("a feed")))
            }
        }
    }

    /// Publishes the next value, commit or event, of three records. Returns its sequence.
    pub(crate) fn publish(&mut self) -> u64 {
        let next = self.newest() + 1;
        let published = match self {
            Self::State(publisher) => publisher.publish(&next),
            Self::Log(publisher) => publisher.publish(&next),
            Self::Table(publisher) => publisher.put(&(next % KEYS), &next),
            Self::Feed(publisher) => {
                let mut event = publisher.event();
                for sequence in next..next + 3 {
                    event.update(&(sequence % KEYS), &sequence, &sequence).expect("it fits");
                }
                Ok(event.commit())
            }
            Self::Ended => panic!("it has ended"),
        };
        published.expect("it fits").get()
    }

    pub(crate) fn newest(&self) -> u64 {
        match self {
            Self::State(publisher) => publisher.newest().get(),
            Self::Log(publisher) => publisher.newest().get(),
            Self::Table(publisher) => publisher.newest().get(),
            Self::Feed(publisher) => publisher.newest().get(),
            Self::Ended => 0,
        }
    }

    fn burst(&self) -> u64 {
        if matches!(self, Self::Feed(_)) { FEED_BURST } else { BURST }
    }

    pub(crate) fn end(&mut self) {
        *self = Self::Ended;
    }
}

/// Plays a publisher of this kind, with this file.
pub(crate) fn play(role: &Role, node: &Node) {
    let mut source = Source::open(node, role.argument(0), Path::new(role.argument(1)));
    role.say("ready");
    loop {
        match role.command().as_str() {
            // Until it is killed.
            "run" => loop {
                let until = source.newest() + source.burst();
                while source.publish() < until {}
                std::thread::park_timeout(Duration::from_millis(1));
            },
            _ => role.say(source.newest()),
        }
    }
}

/// A persistent subscriber, and what it has received.
pub(crate) struct Following {
    subscriber: Subscriber,
    delivery: Delivery,
    last: u64,
    received: u64,
    /// Values that were found half written, and are received later.
    unreadable: u64,
    held: BTreeMap<u64, u64>,
}

enum Subscriber {
    State(Box<Persistent<StateSubscriber<u64>>>),
    Log(Box<Persistent<LogSubscriber<u64>>>),
    Table(Box<Persistent<TableSubscriber<u64, u64>>>),
    Feed(Box<Persistent<FeedSubscriber<u64, u64, u64>>>),
}

impl Following {
    pub(crate) fn open(node: &Node, kind: &str, target: &str, delivery: Delivery) -> Self {
        let subscriber = match kind {
            "state" => {
                let builder = node.state_subscriber(target).delivery(delivery).persistent();
                Subscriber::State(Box::new(builder.open().expect("a subscriber")))
            }
            "log" => {
                let builder =
                    node.log_subscriber(target).delivery(delivery).start(LogStart::First).persistent();
                Subscriber::Log(Box::new(builder.open().expect("a subscriber")))
            }
            "table" => {
                let builder = node.table_subscriber(target).delivery(delivery).persistent();
                Subscriber::Table(Box::new(builder.open().expect("a subscriber")))
            }
            _ => {
                let builder = node.feed_subscriber(target).delivery(delivery).persistent();
                Subscriber::Feed(Box::new(builder.open().expect("a subscriber")))
            }
        };
        Self { subscriber, delivery, last: 0, received: 0, unreadable: 0, held: BTreeMap::new() }
    }

    /// The last sequence that it has received.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Receives everything available, and checks it.
    pub(crate) fn take(&mut self) {
        while self.take_next() {}
    }

    fn take_next(&mut self) -> bool {
        let taken = match &mut self.subscriber {
            Subscriber::State(subscriber) => subscriber.try_receive().map(|sample| {
                sample.map(|sample| {
                    assert!(sample.meta.sequence.get() > self.last, "{sample:?} after {}", self.last);
                    (sample.meta.sequence.get(), None, sample.value)
                })
            }),
            Subscriber::Log(subscriber) => subscriber.try_receive().map(|sample| {
                sample.map(|sample| {
                    assert_eq!(sample.meta.sequence.get(), self.last + 1, "each record once, in order");
                    (sample.meta.sequence.get(), None, sample.value)
                })
            }),
            Subscriber::Table(subscriber) => subscriber.try_change().map(|change| {
                change.map(|change| {
                    let value = change.value.expect("no key is removed");
                    (change.meta.sequence.get(), Some(change.key), value)
                })
            }),
            Subscriber::Feed(subscriber) => subscriber.try_update().map(|update| {
                update.map(|update| match update {
                    FeedUpdate::Record(record) => {
                        let sequence = record.meta.sequence.get();
                        assert!(
                            self.last == 0 || sequence == self.last + 1,
                            "{sequence} after {}",
                            self.last
                        );
                        (sequence, Some(record.key), record.record)
                    }
                    FeedUpdate::Value(value) => {
                        // As of one event, which it begins with.
                        let value_of_key = value.value.expect("no key is removed");
                        (value.meta.sequence.get(), Some(value.key), value_of_key)
                    }
                    other => panic!("{other:?}"),
                })
            }),
        };
        match taken {
            Ok(None) | Err(ReceiveError::Contended { .. }) => false,
            Ok(Some((sequence, key, value))) => {
                assert_eq!(value, sequence);
                if let Some(key) = key {
                    let before = self.held.insert(key, value);
                    assert!(before < Some(value) && key == value % KEYS, "{value} of {key} after {before:?}");
                }
                self.last = self.last.max(sequence);
                self.received += 1;
                true
            }
            // What a publisher was writing when it was killed: the next one has it.
            Err(
                ReceiveError::Damaged { .. }
                | ReceiveError::BrokenStamps { .. }
                | ReceiveError::UnreadableValues { .. },
            ) => {
                self.unreadable += 1;
                true
            }
            Err(error) => panic!("{:?}: {error}", self.delivery),
        }
    }

    /// Checks that it has everything up to the last sequence.
    pub(crate) fn check_all(&self) {
        let stats = match &self.subscriber {
            Subscriber::State(_) => return,
            Subscriber::Log(subscriber) => {
                assert_eq!(self.received, self.last);
                subscriber.current().expect("it was attached").stats()
            }
            Subscriber::Table(subscriber) => {
                self.check_held();
                subscriber.current().expect("it was attached").stats()
            }
            Subscriber::Feed(subscriber) => {
                self.check_held();
                subscriber.current().expect("it was attached").stats()
            }
        };
        assert_eq!(stats.lapped + stats.cut_off, 0, "{stats:?}");
    }

    /// Each key has the value of its last commit or record.
    fn check_held(&self) {
        let expected: BTreeMap<_, _> = (1..=self.last).map(|sequence| (sequence % KEYS, sequence)).collect();
        assert_eq!(self.held, expected);
    }

    pub(crate) fn describe(&self) -> String {
        let Self { delivery, last, received, unreadable, .. } = self;
        format!("{delivery:?}: {received} received up to {last}, {unreadable} unreadable at first")
    }
}

/// Kills a publisher of this kind in each round, in the middle of publishing, and checks that two subscribers at this target, by pull and
/// by push, lose nothing. Each receives more than `values` of the round before its kill.
pub(crate) fn followers_lose_nothing(kind: &str, target: &str, rounds: u64, values: impl Fn(u64) -> u64) {
    let (dir, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let arguments = format!("{kind} {}", memory.path().join("t").display());
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let mut publisher = Peer::ready("publisher", dir.path(), &arguments);
    let deliveries = [Delivery::Pull, Delivery::Push];
    let mut followers = deliveries.map(|delivery| Following::open(&node, kind, target, delivery));
    for round in 0..rounds {
        publisher.tell("run");
        let least = followers.iter().map(Following::last).max().expect("two") + values(round);
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
