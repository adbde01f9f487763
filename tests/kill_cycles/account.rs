//! Persistent subscribers that account for each value: received once, or reported lost.

use std::collections::BTreeMap;

use fabricast::{
    Delivery, Epoch, LogSubscriber, Meta, Node, Persistent, ReceiveError, SlowPolicy, StateSubscriber,
    Subscribed, TableSubscriber,
};

use super::publisher::{KEYS, Mark};
use super::support::follower::{Follow, follower};
use super::value::Value;

/// What becomes of the values of one topic, as its subscriber sees it.
#[derive(Clone, Debug, Default)]
struct Numbers {
    epoch: u64,
    /// The last sequence of this epoch that was received or reported lost.
    last: u64,
    /// The number of the last value before this epoch, once a value of it has shown that.
    base: Option<u64>,
    /// The number before the first value that counts, and the last one that counts.
    span: Option<(u64, u64)>,
    /// Reported lost before the first value of this epoch has come.
    early: u64,
    received: u64,
    lost: u64,
    damaged: u64,
    /// Newer values came instead.
    replaced: u64,
    /// Of earlier epochs, after the last value that was received of them: another epoch was reported.
    left: u64,
    restarts: u64,
}

impl Numbers {
    /// Accounts for a value, and for those before it that were replaced.
    fn accept(&mut self, value: &Value, meta: &Meta, replaced: u64) {
        let (epoch, sequence) = (meta.epoch.get(), meta.sequence.get());
        assert!(value.is_of(epoch, sequence), "a wrong value: {value:?} at {meta:?}");
        if self.epoch == 0 {
            self.epoch = epoch;
        }
        assert_eq!(epoch, self.epoch, "no other epoch was reported");
        assert_eq!(sequence, self.last + replaced + 1, "{self:?}");
        let base = value.number - sequence;
        if self.base.is_none() {
            let first = base + self.last - self.early;
            let (begin, end) = *self.span.get_or_insert((first, first));
            // What was published since the last value of an earlier epoch.
            self.left += first - end;
            self.span = Some((begin, first + self.early));
            (self.base, self.early) = (Some(base), 0);
        }
        assert_eq!(self.base, Some(base), "numbers and sequences differ: {self:?}");
        self.received += 1;
        self.replaced += replaced;
        self.advance(sequence, value.number);
    }

    fn advance(&mut self, sequence: u64, number: u64) {
        self.last = sequence;
        self.span.as_mut().expect("a value has come").1 = number;
        let (begin, end) = self.span.expect("a value has come");
        let sum = self.received + self.lost + self.damaged + self.replaced + self.left;
        assert_eq!(sum, end - begin, "some are neither received nor reported: {self:?}");
    }

    /// Accounts for what was reported lost.
    fn lose(&mut self, first_lost: u64, count: u64) {
        if self.last == 0 && self.restarts == 0 && self.base.is_none() {
            // It begins where the publisher is by now.
            self.last = first_lost - 1;
        }
        assert_eq!(first_lost, self.last + 1, "{self:?}");
        self.lost += count;
        self.pass(count);
    }

    fn pass(&mut self, count: u64) {
        match self.base {
            Some(base) => self.advance(self.last + count, base + self.last + count),
            None => (self.last, self.early) = (self.last + count, self.early + count),
        }
    }

    /// What was not a value. Returns whether there was anything.
    fn note(&mut self, error: &ReceiveError) -> bool {
        match *error {
            ReceiveError::Contended { .. } => return false,
            ReceiveError::Restarted { epoch, before, last } => {
                if self.epoch == 0 {
                    // It was attached, and had received nothing.
                    self.epoch = before.get();
                }
                assert_eq!((before.get(), last.get()), (self.epoch, self.last), "{self:?}");
                assert!(epoch.get() > before.get());
                // A value that was reported lost, but of whose epoch none has come: the next base shows its number.
                (self.epoch, self.last, self.base, self.restarts) = (epoch.get(), 0, None, self.restarts + 1);
                (self.lost, self.early) = (self.lost - self.early, 0);
            }
            ReceiveError::Lapped { first_lost, count } | ReceiveError::CutOff { first_lost, count } => {
                self.lose(first_lost.get(), count);
            }
            _ => panic!("{error}: {self:?}"),
        }
        true
    }
}

/// A subscriber of one topic of a publisher.
pub(crate) trait Account {
    /// Receives the next value or report, if there is one.
    fn take(&mut self) -> bool;
    /// Whether it has received as much.
    fn has_reached(&self, mark: &Mark) -> bool;
    /// Checks that it has all up to this, where nothing is published any more, and describes it.
    fn close(&self, mark: &Mark) -> String;
    /// Values received and reported lost.
    fn counts(&self) -> [u64; 2];
    fn describe(&self) -> String;
}

struct Counted<S: Subscribed> {
    subscriber: Persistent<S>,
    name: String,
    numbers: Numbers,
    /// The newest sequence of each key of a table, and whether the key is there.
    keys: BTreeMap<u64, (u64, bool)>,
    /// The publisher waits for it: it loses nothing while it is attached.
    is_lossless: bool,
    outages: u64,
}

impl<S: Subscribed> Counted<S> {
    fn new(subscriber: Persistent<S>, name: String, is_lossless: bool) -> Self {
        let (numbers, keys) = (Numbers::default(), BTreeMap::new());
        Self { subscriber, name, numbers, keys, is_lossless, outages: 0 }
    }

    fn note(&mut self, error: &ReceiveError) -> bool {
        if matches!(error, ReceiveError::Restarted { .. }) {
            self.keys.clear();
        }
        self.numbers.note(error)
    }

    fn is_past(&self, mark: &Mark) -> bool {
        (self.numbers.epoch, self.numbers.last) >= (mark.epoch, mark.newest)
    }

    fn summary(&self) -> String {
        let Numbers { received, lost, damaged, replaced, left, restarts, .. } = self.numbers;
        let (begin, end) = self.numbers.span.unwrap_or_default();
        format!(
            "{}: of {} values {received} received, {lost} reported lost, {replaced} replaced, {damaged} damaged, {left} left with \
             {restarts} earlier epochs",
            self.name,
            end - begin
        )
    }
}

macro_rules! account {
    ($subscriber:ty, $take:ident) => {
        impl Account for Counted<$subscriber> {
            fn take(&mut self) -> bool {
                self.$take()
            }

            fn has_reached(&self, mark: &Mark) -> bool {
                self.is_past(mark)
            }

            fn close(&self, mark: &Mark) -> String {
                assert_eq!(
                    (self.numbers.epoch, self.numbers.last),
                    (mark.epoch, mark.newest),
                    "{}",
                    self.name
                );
                self.summary()
            }

            fn counts(&self) -> [u64; 2] {
                [self.numbers.received, self.numbers.lost]
            }

            fn describe(&self) -> String {
                format!("{}: {:?}, attached: {}", self.name, self.numbers, self.subscriber.is_attached())
            }
        }
    };
}

account!(StateSubscriber<Value>, take_state);
account!(LogSubscriber<Value>, take_record);

impl Counted<StateSubscriber<Value>> {
    fn take_state(&mut self) -> bool {
        match self.subscriber.try_receive() {
            Ok(None) => false,
            Ok(Some(sample)) => {
                // The first value says nothing of those before.
                let is_first = self.numbers.base.is_none();
                let (last, sequence) = (&mut self.numbers.last, sample.meta.sequence.get());
                assert!(sequence > *last, "{sequence} after {last}");
                if is_first && self.numbers.restarts == 0 {
                    *last = sequence - 1;
                }
                let replaced = sequence - *last - 1;
                self.numbers.accept(&sample.value, &sample.meta, replaced);
                true
            }
            // The publisher was killed while it wrote it: the value was never published.
            Err(ReceiveError::Damaged { sequence, .. } | ReceiveError::BrokenStamps { sequence }) => {
                println!("{}: {sequence} is damaged", self.name);
                true
            }
            Err(error) => self.note(&error),
        }
    }
}

impl Counted<LogSubscriber<Value>> {
    fn take_record(&mut self) -> bool {
        match self.subscriber.try_receive() {
            Ok(None) => false,
            Ok(Some(sample)) => {
                if self.numbers.epoch == 0 && self.numbers.early == 0 {
                    self.numbers.last = sample.meta.sequence.get() - 1;
                }
                self.numbers.accept(&sample.value, &sample.meta, 0);
                self.outages = self.subscriber.outages();
                true
            }
            Err(error) => {
                let is_lapped = matches!(error, ReceiveError::Lapped { .. });
                let is_new = self.outages != self.subscriber.outages() || self.numbers.base.is_none();
                assert!(!(self.is_lossless && is_lapped) || is_new, "{}: {error}", self.name);
                self.note(&error)
            }
        }
    }
}

impl Counted<TableSubscriber<u64, Value>> {
    fn take_change(&mut self) -> bool {
        match self.subscriber.try_change() {
            Ok(None) => return false,
            Ok(Some(change)) => {
                let (sequence, epoch) = (change.meta.sequence.get(), change.meta.epoch.get());
                let (newest, is_there) = self.keys.entry(change.key).or_default();
                let Some(value) = change.value else {
                    assert!(*is_there, "key {} was gone already", change.key);
                    *is_there = false;
                    return true;
                };
                assert!(value.is_of(epoch, sequence), "a wrong value: {value:?} at {:?}", change.meta);
                assert!(*newest < sequence, "key {}: {sequence} after {newest}", change.key);
                (*newest, *is_there) = (sequence, true);
                let numbers = &mut self.numbers;
                assert!(numbers.epoch == 0 || numbers.epoch == epoch, "no other epoch was reported");
                (numbers.epoch, numbers.last) = (epoch, numbers.last.max(sequence));
                assert_eq!(value.number - sequence, *numbers.base.get_or_insert(value.number - sequence));
                numbers.received += 1;
            }
            Err(ReceiveError::Contended { .. }) => return false,
            Err(ReceiveError::Restarted { epoch, before, .. }) => {
                let is_known = [0, before.get()].contains(&self.numbers.epoch);
                assert!(is_known && epoch.get() > before.get());
                self.keys.clear();
                let Numbers { received, restarts, damaged, .. } = self.numbers;
                let (epoch, restarts) = (epoch.get(), restarts + 1);
                self.numbers = Numbers { epoch, received, restarts, damaged, ..Numbers::default() };
            }
            // The publisher was killed while it wrote it: the value was never published.
            Err(ReceiveError::Damaged { sequence, .. } | ReceiveError::BrokenStamps { sequence }) => {
                println!("{}: {sequence} is damaged", self.name);
                self.numbers.damaged += 1;
            }
            Err(error) => panic!("{error}: {}", self.name),
        }
        true
    }
}

impl Account for Counted<TableSubscriber<u64, Value>> {
    fn take(&mut self) -> bool {
        self.take_change()
    }

    fn has_reached(&self, mark: &Mark) -> bool {
        self.is_past(mark)
    }

    fn close(&self, mark: &Mark) -> String {
        assert_eq!((self.numbers.epoch, self.numbers.last), (mark.epoch, mark.newest), "{}", self.name);
        // Each commit has one key, and the first one of a process has all: those that had no commit of their own since.
        let mut of_first: Vec<u64> = Vec::new();
        for (key, (sequence, is_there)) in &self.keys {
            let own = mark.newest.saturating_sub((mark.newest + KEYS - key) % KEYS);
            assert!(*is_there && (own..=mark.newest).contains(sequence), "{}: {key}: {sequence}", self.name);
            of_first.extend((*sequence != own).then_some(*sequence));
        }
        of_first.dedup();
        assert!(
            self.keys.keys().copied().eq(0..KEYS) && of_first.len() < 2,
            "{}: {:?}",
            self.name,
            self.keys
        );
        let Numbers { received, damaged, restarts, .. } = self.numbers;
        format!("{}: {received} changes received, {damaged} damaged, {restarts} earlier epochs", self.name)
    }

    fn counts(&self) -> [u64; 2] {
        [self.numbers.received, 0]
    }

    fn describe(&self) -> String {
        format!("{}: {:?}, attached: {}", self.name, self.numbers, self.subscriber.is_attached())
    }
}

/// A feed, whose values follow from their places.
struct Fed {
    follower: Box<dyn Follow>,
    name: String,
    taken: u64,
}

impl Account for Fed {
    fn take(&mut self) -> bool {
        let has_taken = self.follower.take();
        self.taken += u64::from(has_taken);
        has_taken
    }

    fn has_reached(&self, mark: &Mark) -> bool {
        let (epoch, event) = self.follower.position();
        (epoch.map_or(0, Epoch::get), event) >= (mark.feed_epoch, mark.event)
    }

    fn close(&self, mark: &Mark) -> String {
        let (epoch, event) = self.follower.position();
        assert_eq!((epoch.map_or(0, Epoch::get), event), (mark.feed_epoch, mark.event), "{}", self.name);
        format!("{}: {}", self.name, self.follower.describe())
    }

    fn counts(&self) -> [u64; 2] {
        [self.taken, 0]
    }

    fn describe(&self) -> String {
        format!("{}: {:?}", self.name, self.follower.position())
    }
}

/// Subscribes to all topics of a publisher. `manner` is pull, push, or block: by both, the log with a publisher that waits.
pub(crate) fn open(node: &Node, target: &str, manner: &str) -> Vec<Box<dyn Account>> {
    if manner == "block" {
        let log = |delivery: Delivery| -> Box<dyn Account> {
            let builder = node.log_subscriber::<Value>(format!("{target}/log").as_str()).earliest();
            let opened = builder.delivery(delivery).slow(SlowPolicy::Block).persistent().open();
            Box::new(Counted::<LogSubscriber<Value>>::new(
                opened.expect("a name"),
                format!("log of {target} by {delivery}, lossless"),
                true,
            ))
        };
        return vec![log(Delivery::Pull), log(Delivery::Push)];
    }
    let delivery = if manner == "push" { Delivery::Push } else { Delivery::Pull };
    let of = |kind: &str| (format!("{target}/{kind}"), format!("{kind} of {target} by {delivery}"));
    let (topic, name) = of("state");
    let state = node.state_subscriber::<Value>(topic.as_str()).delivery(delivery).persistent().open();
    let state = Counted::<StateSubscriber<Value>>::new(state.expect("a name"), name, false);
    let (topic, name) = of("log");
    let log = node.log_subscriber::<Value>(topic.as_str()).earliest().delivery(delivery).persistent().open();
    let log = Counted::<LogSubscriber<Value>>::new(log.expect("a name"), name, false);
    let (topic, name) = of("table");
    let table = node.table_subscriber::<u64, Value>(topic.as_str()).delivery(delivery).persistent().open();
    let table = Counted::<TableSubscriber<u64, Value>>::new(table.expect("a name"), name, false);
    let (topic, name) = of("feed");
    let feed = Fed { follower: follower(node, "feed", &topic, delivery), name, taken: 0 };
    vec![Box::new(state), Box::new(log), Box::new(table), Box::new(feed)]
}
