//! Publishers that go on where another one was killed, and persistent subscribers that check what they receive.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use fabricast::{
    Delivery, Epoch, LogPublisher, LogStart, LogSubscriber, Node, Persistent, ReceiveError, Sequence,
    StatePublisher, StateSubscriber, Subscribed, TablePublisher, TableSubscriber,
};

use super::feed::{self, Replica, publish_next};
use super::time::now;

/// Keys of the table. In each epoch, the last one is there until the second commit.
const KEYS: u64 = 20;

/// A publisher of one topic.
pub(crate) enum Source {
    State(StatePublisher<u64>),
    Log(LogPublisher<u64>),
    /// And the sequence after which it continues.
    Table(Box<TablePublisher<u64, u64>>, u64),
    Feed(Box<feed::Publisher>),
}

impl Source {
    /// Opens one of this kind, which continues after this sequence, or repeats this many events.
    pub(crate) fn open(node: &Node, kind: &str, topic: &str, epoch: Epoch, after: Sequence) -> Self {
        match kind {
            "state" => {
                let builder = node.state_publisher(topic).epoch(epoch).after(after);
                Self::State(builder.open().expect("a topic"))
            }
            "log" => {
                let builder = node.log_publisher(topic).epoch(epoch).after(after).capacity(1 << 14);
                Self::Log(builder.open().expect("a topic"))
            }
            "feed" => {
                let builder = node.feed_publisher(topic).epoch(epoch).capacity(70).log_capacity(1 << 15);
                let mut publisher: feed::Publisher = builder.open().expect("two topics");
                (0..after.get()).for_each(|_| publish_next(&mut publisher));
                Self::Feed(Box::new(publisher))
            }
            _ => {
                let builder = node.table_publisher(topic).epoch(epoch).after(after);
                Self::Table(Box::new(builder.open().expect("a topic")), after.get())
            }
        }
    }

    /// Publishes one value, one commit or one event. Returns its sequence.
    pub(crate) fn publish(&mut self) -> Sequence {
        match self {
            Self::State(publisher) => {
                let value = value_of(publisher.epoch(), publisher.newest().get() + 1);
                publisher.publish(&value).expect("it fits")
            }
            Self::Log(publisher) => {
                let value = value_of(publisher.epoch(), publisher.newest().get() + 1);
                publisher.publish(&value).expect("it fits")
            }
            Self::Table(publisher, after) => {
                let (next, first) = (publisher.newest().get() + 1, *after + 1);
                let value = value_of(publisher.epoch(), next);
                for key in (0..KEYS).filter(|key| next == first || *key == next % (KEYS - 1)) {
                    publisher.stage(&key, &value).expect("it fits");
                }
                if next == first + 1 {
                    publisher.stage_removal(&(KEYS - 1)).expect("it fits");
                }
                publisher.commit()
            }
            Self::Feed(publisher) => {
                publish_next(publisher);
                publisher.newest()
            }
        }
    }

    /// Returns how many subscribers it has.
    pub(crate) fn subscribers(&self) -> u64 {
        match self {
            Self::State(publisher) => publisher.pull_subscribers() + publisher.push_subscribers(),
            Self::Log(publisher) => publisher.pull_subscribers() + publisher.push_subscribers(),
            Self::Table(publisher, _) => publisher.pull_subscribers() + publisher.push_subscribers(),
            Self::Feed(publisher) => publisher.pull_subscribers() + publisher.push_subscribers(),
        }
    }
}

pub(crate) fn value_of(epoch: Epoch, sequence: u64) -> u64 {
    epoch.get() * 1_000_000_000 + sequence
}

/// A persistent subscriber, and what it has received.
pub(crate) struct Follower<S: Subscribed> {
    pub(crate) subscriber: Persistent<S>,
    delivery: Delivery,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) last: u64,
    received: u64,
    lost: u64,
    /// When the first value of this epoch was received, or the first one after `last` was set aside.
    first: Option<Instant>,
    restarts: u64,
    table: BTreeMap<u64, u64>,
}

impl<S: Subscribed> Follower<S> {
    pub(crate) fn new(subscriber: Persistent<S>, delivery: Delivery) -> Self {
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
            ReceiveError::Lapped { first_lost, count } | ReceiveError::CutOff { first_lost, count } => {
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

/// A persistent subscriber of any kind.
pub(crate) trait Follow: Send {
    /// Receives what there is.
    fn take(&mut self) -> bool;
    /// Whether it has all up to this value of this epoch.
    fn has(&self, epoch: Epoch, newest: u64) -> bool;
    /// The epoch, and the newest value of it that it has.
    fn position(&self) -> (Option<Epoch>, u64);
    /// When the first value was received since the last call.
    fn take_first(&mut self) -> Option<Instant>;
    fn describe(&self) -> String;
    /// The argument of the next publisher of its epoch: where it continues, or how much it repeats.
    fn next_after(&self, round: u64) -> u64 {
        // What was published by then is not known to who restarts it.
        1_000_000 * (1 + round)
    }
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

            fn position(&self) -> (Option<Epoch>, u64) {
                (self.epoch, self.last)
            }

            fn take_first(&mut self) -> Option<Instant> {
                self.first.take()
            }

            fn describe(&self) -> String {
                let stats = self.subscriber.current().expect("it was attached").stats();
                assert_eq!((stats.received, stats.lapped + stats.cut_off), (self.received, self.lost));
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

    fn position(&self) -> (Option<Epoch>, u64) {
        (self.epoch, self.last)
    }

    fn take_first(&mut self) -> Option<Instant> {
        self.first.take()
    }

    fn describe(&self) -> String {
        let Self { delivery, received, restarts, .. } = self;
        format!("{delivery:?}: {received} changes, {restarts} breaks")
    }
}

/// A subscriber of a feed, and its copy.
struct FeedFollower {
    subscriber: Persistent<feed::Subscriber>,
    delivery: Delivery,
    replica: Replica,
    epoch: Option<Epoch>,
    first: Option<Instant>,
    restarts: u64,
    /// Where it began, once it has.
    began: Receiver<u64>,
    /// The last records of earlier epochs, added.
    earlier: u64,
    damaged: usize,
    /// Records that were lost before the first values of an epoch: only what these lack is reported.
    early: u64,
}

impl FeedFollower {
    fn new(mut subscriber: Persistent<feed::Subscriber>, delivery: Delivery) -> Self {
        let (attached, began) = channel();
        subscriber.configure(move |feed| attached.send(feed.last().get()).expect("a receiver"));
        let (replica, epoch, first) = (Replica::default(), None, None);
        Self {
            subscriber,
            delivery,
            replica,
            epoch,
            first,
            restarts: 0,
            began,
            earlier: 0,
            damaged: 0,
            early: 0,
        }
    }
}

impl FeedFollower {
    /// How many records it counts as lost.
    fn lost(&self) -> u64 {
        let stats = self.subscriber.current().map(feed::Subscriber::stats);
        stats.map_or(0, |stats| stats.lapped + stats.cut_off)
    }
}

impl Follow for FeedFollower {
    fn take(&mut self) -> bool {
        let (has_begun, lost) = (self.replica.has_begun(), self.lost());
        let received = self.replica.follow_persistent(&mut self.subscriber);
        if !has_begun {
            self.early += self.lost() - lost;
        }
        match received {
            Ok(false) | Err(ReceiveError::Contended { .. }) => false,
            Ok(true) => {
                let epoch = self.subscriber.current().expect("it is attached").epoch();
                assert_eq!(*self.epoch.get_or_insert(epoch), epoch);
                self.first.get_or_insert_with(now);
                true
            }
            Err(ReceiveError::Restarted { epoch, before, last }) => {
                assert_eq!(self.epoch.replace(epoch).unwrap_or(before), before);
                (self.earlier, self.restarts) = (self.earlier + last.get(), self.restarts + 1);
                self.replica.restart();
                self.first = None;
                true
            }
            // The publisher was killed while it wrote them.
            Err(ReceiveError::UnreadableValues { count }) => {
                self.damaged += count;
                true
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn has(&self, epoch: Epoch, newest: u64) -> bool {
        let event = newest / feed::RECORDS;
        self.epoch == Some(epoch) && self.replica.newest == event && self.replica.has(event)
    }

    fn position(&self) -> (Option<Epoch>, u64) {
        (self.epoch, self.replica.newest)
    }

    fn take_first(&mut self) -> Option<Instant> {
        self.first.take()
    }

    fn describe(&self) -> String {
        let current = self.subscriber.current().expect("it was attached");
        let (stats, began) = (current.stats(), self.began.recv().expect("it has begun"));
        let Self { delivery, restarts, damaged, early, replica: Replica { lost, values, .. }, .. } = self;
        let (received, counted) = (stats.received, self.lost());
        assert!(counted <= lost + early, "{counted} lost, {early} of them early, and {lost} reported");
        assert_eq!(received + counted, self.earlier + current.last().get() - began);
        format!(
            "{delivery:?}: {received} received, {lost} lost, {values} values, {damaged} damaged, {restarts} breaks"
        )
    }

    fn next_after(&self, _: u64) -> u64 {
        self.replica.newest
    }
}

/// A persistent subscriber of a topic of this kind.
pub(crate) fn follower(node: &Node, kind: &str, target: &str, delivery: Delivery) -> Box<dyn Follow> {
    match kind {
        "state" => {
            let builder = node.state_subscriber(target).delivery(delivery);
            Box::new(Follower::<StateSubscriber<u64>>::new(
                builder.persistent().open().expect("a name"),
                delivery,
            ))
        }
        "log" => {
            let builder = node.log_subscriber(target).start(LogStart::First).delivery(delivery);
            Box::new(Follower::<LogSubscriber<u64>>::new(
                builder.persistent().open().expect("a name"),
                delivery,
            ))
        }
        "feed" => {
            let builder = node.feed_subscriber(target).delivery(delivery);
            Box::new(FeedFollower::new(builder.persistent().open().expect("a name"), delivery))
        }
        _ => {
            let builder = node.table_subscriber(target).delivery(delivery);
            let subscriber = builder.persistent().open().expect("a name");
            Box::new(Follower::<TableSubscriber<u64, u64>>::new(subscriber, delivery))
        }
    }
}
