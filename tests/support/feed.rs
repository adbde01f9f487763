//! A feed whose records follow from their sequences, and a subscriber's copy of it.

use std::collections::{BTreeMap, VecDeque};

use fabricast::{FeedPublisher, FeedSubscriber, FeedUpdate, Persistent, ReceiveError};

/// Keys of the feed.
const KEYS: u64 = 70;
/// One in so many keys has a record in an event.
const GROUPS: u64 = 7;
/// Records of an event.
pub(crate) const RECORDS: u64 = KEYS / GROUPS;

/// How many records the key has had, and the sum of their events.
pub(crate) type Value = [u64; 2];
/// The number of the event, more than once.
pub(crate) type Record = [u64; 6];
pub(crate) type Publisher = FeedPublisher<u64, Record, Value>;
type Received = Result<Option<FeedUpdate<u64, Record, Value>>, ReceiveError>;
pub(crate) type Subscriber = FeedSubscriber<u64, Record, Value>;

/// Publishes the next event.
pub(crate) fn publish_next(feed: &mut Publisher) {
    let number = feed.newest().get() / RECORDS + 1;
    let mut event = feed.event();
    for key in (0..KEYS).filter(|key| key % GROUPS == number % GROUPS) {
        event.update(&key, &[number; 6], &value_after(key, number)).expect("it fits");
    }
    assert_eq!(event.commit().get(), number * RECORDS);
}

/// The value of a key after this event.
fn value_after(key: u64, event: u64) -> Value {
    let events = (1..=event).rev().filter(|event| event % GROUPS == key % GROUPS);
    let Some(last) = events.take(1).next() else { return [0; 2] };
    value_of(last.div_ceil(GROUPS), last)
}

/// The value of a key with so many records, the last of which is of this event.
fn value_of(count: u64, last: u64) -> Value {
    // An arithmetic series, one event in GROUPS.
    [count, count * last - GROUPS * (count * count.saturating_sub(1) / 2)]
}

/// What a subscriber has received.
#[derive(Debug, Default)]
pub(crate) struct Replica {
    keys: BTreeMap<u64, Value>,
    /// Updates of an event that is not complete.
    pending: Vec<FeedUpdate<u64, Record, Value>>,
    /// The values of keys that lost records are still to come.
    is_incomplete: bool,
    /// The newest event of which all was received.
    pub(crate) event: u64,
    /// The newest event of any update.
    pub(crate) newest: u64,
    /// How many records were lost, and how many keys received values.
    pub(crate) lost: u64,
    pub(crate) values: u64,
    /// Wants these keys only.
    pub(crate) wanted: Option<fn(u64) -> bool>,
    /// The last steps, which show the cause of a wrong value: kind, key, sequence, whether it ends its event, and whether the
    /// subscriber was recovering after it.
    steps: VecDeque<(&'static str, u64, u64, bool, bool)>,
}

/// Steps that are kept.
const STEPS_MAX: usize = 64;

impl Replica {
    /// Receives the next update, if there is one, and checks it. Returns whether there was one.
    pub(crate) fn follow(&mut self, subscriber: &mut Subscriber) -> Result<bool, ReceiveError> {
        let received = subscriber.try_update();
        self.take(received, subscriber.is_recovering())
    }

    /// Whether it has received anything of this epoch.
    pub(crate) fn has_begun(&self) -> bool {
        self.newest > 0 || !self.pending.is_empty()
    }

    /// Begins with another epoch. Keeps its counts.
    pub(crate) fn restart(&mut self) {
        let Self { lost, values, wanted, .. } = *self;
        *self = Self { lost, values, wanted, ..Self::default() };
    }

    /// Like [`Self::follow`], of a persistent subscriber.
    pub(crate) fn follow_persistent(
        &mut self,
        subscriber: &mut Persistent<Subscriber>,
    ) -> Result<bool, ReceiveError> {
        let received = subscriber.try_update();
        let is_complete = |feed: &Subscriber| !feed.is_recovering() && feed.suspects().is_empty();
        self.take(received, !subscriber.current().is_some_and(is_complete))
    }

    fn take(&mut self, received: Received, is_recovering: bool) -> Result<bool, ReceiveError> {
        let update = match received {
            Ok(Some(update)) => update,
            Ok(None) => {
                self.is_incomplete &= is_recovering;
                return Ok(false);
            }
            Err(ReceiveError::Lapped { count, .. } | ReceiveError::CutOff { count, .. }) => {
                self.note(("lost", 0, count, false, is_recovering));
                std::mem::take(&mut self.pending).into_iter().for_each(|update| self.apply(update));
                self.is_incomplete = true;
                self.lost += count;
                return Ok(true);
            }
            Err(error) => {
                self.is_incomplete |= matches!(error, ReceiveError::UnreadableValues { .. });
                return Err(error);
            }
        };
        let ends_event = update.ends_event();
        let (kind, key) = match &update {
            FeedUpdate::Value(update) => ("value", update.key),
            FeedUpdate::Record(update) => ("record", update.key),
            _ => unreachable!("there are records and values"),
        };
        self.note((kind, key, update.meta().sequence.get(), ends_event, is_recovering));
        self.pending.push(update);
        if ends_event {
            let is_value = matches!(self.pending.last(), Some(FeedUpdate::Value(_)));
            self.is_incomplete &= !is_value || is_recovering;
            std::mem::take(&mut self.pending).into_iter().for_each(|update| self.apply(update));
        }
        Ok(true)
    }

    fn note(&mut self, step: (&'static str, u64, u64, bool, bool)) {
        if self.steps.len() == STEPS_MAX {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    fn apply(&mut self, update: FeedUpdate<u64, Record, Value>) {
        let ends_event = update.ends_event();
        match update {
            FeedUpdate::Value(update) => {
                let value = update.value.expect("no key is removed");
                let event = update.meta.sequence.get().div_ceil(RECORDS);
                assert_eq!((value, value[0]), (value_after(update.key, event), update.number));
                self.newest = self.newest.max(event);
                self.keys.insert(update.key, value);
                self.values += 1;
            }
            FeedUpdate::Record(update) => {
                let event = update.meta.sequence.get().div_ceil(RECORDS);
                assert_eq!(update.record, [event; 6], "a torn record");
                let value = self.keys.entry(update.key).or_default();
                *value = [value[0] + 1, value[1] + event];
                assert_eq!((value[0], *value), (update.number, value_after(update.key, event)));
                self.newest = self.newest.max(event);
                if ends_event {
                    self.event = event;
                    if !self.is_incomplete {
                        self.check(event);
                    }
                }
            }
            _ => unreachable!("there are records and values"),
        }
    }

    /// Checks that it has the values of all wanted keys after this event.
    pub(crate) fn check(&self, event: u64) {
        assert!(self.has(event), "event {event}: {self:?}");
    }

    /// Returns whether it has the values of all wanted keys after this event.
    pub(crate) fn has(&self, event: u64) -> bool {
        let wanted = (0..KEYS).filter(|key| self.wanted.is_none_or(|wants| wants(*key)));
        let expected = wanted.map(|key| (key, value_after(key, event))).filter(|(_, value)| value[0] > 0);
        self.keys == expected.collect()
    }
}
