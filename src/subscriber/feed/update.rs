use std::collections::VecDeque;

use crate::id::{Meta, Sequence};
use crate::subscriber::ReceiveError;

/// What a subscriber of a feed receives.
///
/// Send and Sync if key, record and value are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedUpdate<K, R, V> {
    /// The next record of a key.
    Record(RecordUpdate<K, R>),
    /// The newest value of a key, in place of its records: all that is known of the key is out of date. First the values of all
    /// keys; after a loss those of the keys that lost records; with
    /// [`conflate`](crate::FeedSubscriberBuilder::conflate) those of the keys that changed.
    Value(ValueUpdate<K, V>),
}

/// A record of a feed.
///
/// Send and Sync if key and record are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordUpdate<K, R> {
    /// The key.
    pub key: K,
    /// The record.
    pub record: R,
    /// Where and when it was published.
    pub meta: Meta,
    /// The key's own sequence: this record is the first, the second, ... of the key since it was added.
    pub number: u64,
    /// After it the feed does not have the key.
    pub removes_key: bool,
    /// It is the last record of its event, of those that the subscriber wants.
    pub ends_event: bool,
}

/// The value of a key of a feed.
///
/// Send and Sync if key and value are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueUpdate<K, V> {
    /// The key.
    pub key: K,
    /// Its value; `None` if the feed no longer has the key.
    pub value: Option<V>,
    /// The key's last record, which the value includes: its sequence, and when it was published. If the key was removed while
    /// records were lost, the event at which that was noticed, and the time of the newest record before.
    pub meta: Meta,
    /// The number of the key's last record; if the key was removed while records were lost, of the last one received.
    pub number: u64,
    /// It is the last of the values that were read together.
    pub ends_event: bool,
}

/// An event of a feed, or values that were read together.
///
/// Send and Sync if key, record and value are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedEvent<K, R, V> {
    /// The event: the sequence of its last record, wanted or not. For values, that of the newest event they include; after a loss,
    /// that event's records are delivered before them.
    pub sequence: Sequence,
    /// What the subscriber wants of it, in order.
    pub updates: Vec<FeedUpdate<K, R, V>>,
    /// Nothing that the subscriber wants of it is missing. Otherwise records were lost or left out; the values of their keys follow.
    pub is_whole: bool,
}

impl<K, R, V> FeedUpdate<K, R, V> {
    /// Returns the key.
    pub fn key(&self) -> &K {
        match self {
            Self::Record(record) => &record.key,
            Self::Value(value) => &value.key,
        }
    }

    /// Returns where and when it was published.
    pub fn meta(&self) -> Meta {
        match self {
            Self::Record(record) => record.meta,
            Self::Value(value) => value.meta,
        }
    }

    /// Returns whether it is the last update of its event.
    pub fn ends_event(&self) -> bool {
        match self {
            Self::Record(record) => record.ends_event,
            Self::Value(value) => value.ends_event,
        }
    }

    fn end_event(&mut self) {
        match self {
            Self::Record(record) => record.ends_event = true,
            Self::Value(value) => value.ends_event = true,
        }
    }
}

/// The end of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventEnd {
    pub(super) sequence: Sequence,
    pub(super) is_whole: bool,
}

/// The next of what was received.
#[derive(Debug)]
pub(super) enum Received<K, R, V> {
    Update(FeedUpdate<K, R, V>),
    /// All of an event has come.
    End(EventEnd),
}

/// The result of receiving more.
#[derive(Debug)]
pub(super) enum Advance<K, R, V> {
    /// This update, before everything that is ready.
    Update(FeedUpdate<K, R, V>),
    /// There may be more, ready or not.
    More,
    /// There is nothing now.
    Nothing,
}

impl<K, R, V> From<bool> for Advance<K, R, V> {
    fn from(has_more: bool) -> Self {
        if has_more { Self::More } else { Self::Nothing }
    }
}

/// Updates to be received, and errors after them.
#[derive(Debug)]
pub(super) struct Updates<K, R, V> {
    ready: VecDeque<Received<K, R, V>>,
    /// The last update of an event whose end is not known yet.
    held: Option<FeedUpdate<K, R, V>>,
    /// The current event has updates.
    has_begun: bool,
    /// Reported after them, in this order.
    failures: VecDeque<ReceiveError>,
}

impl<K, R, V> Default for Updates<K, R, V> {
    fn default() -> Self {
        Self { ready: VecDeque::new(), held: None, has_begun: false, failures: VecDeque::new() }
    }
}

impl<K, R, V> Updates<K, R, V> {
    /// Adds an update of the current event.
    pub(super) fn add(&mut self, update: FeedUpdate<K, R, V>) {
        self.has_begun = true;
        let before = self.held.replace(update);
        self.ready.extend(before.map(Received::Update));
    }

    /// Ends the current event.
    pub(super) fn end(&mut self, end: EventEnd) {
        if std::mem::take(&mut self.has_begun) {
            if let Some(mut last) = self.held.take() {
                last.end_event();
                self.ready.push_back(Received::Update(last));
            }
            self.ready.push_back(Received::End(end));
        }
    }

    /// Ends the current event with this update, if it has one. Returns the update if it is the only one, and nothing is ready.
    #[inline]
    pub(super) fn end_with(
        &mut self,
        last: Option<FeedUpdate<K, R, V>>,
        end: EventEnd,
    ) -> Option<FeedUpdate<K, R, V>> {
        if last.is_some() && !self.has_begun && self.ready.is_empty() {
            self.ready.push_back(Received::End(end));
            return last;
        }
        last.into_iter().for_each(|last| self.add(last));
        self.end(end);
        None
    }

    /// Adds updates before everything else.
    pub(super) fn put_back(&mut self, updates: Vec<FeedUpdate<K, R, V>>) {
        updates.into_iter().rev().for_each(|update| self.ready.push_front(Received::Update(update)));
    }

    /// Cuts the current event short: records are missing.
    pub(super) fn fail(&mut self, failure: Option<ReceiveError>) {
        self.ready.extend(self.held.take().map(Received::Update));
        self.has_begun = false;
        self.failures.extend(failure);
    }

    /// Drops the updates of all other keys.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&K) -> bool) {
        self.held.take_if(|update| !is_wanted(update.key()));
        self.ready.retain(|step| match step {
            Received::Update(update) => is_wanted(update.key()),
            Received::End(_) => true,
        });
        // Others may have been the last ones of their events.
        let mut is_before_end = false;
        for step in self.ready.iter_mut().rev() {
            match step {
                Received::End(_) => is_before_end = true,
                Received::Update(update) if std::mem::take(&mut is_before_end) => update.end_event(),
                Received::Update(_) => {}
            }
        }
    }

    /// Returns whether the next update is a value. Those that are received together stand one behind the other.
    pub(super) fn begins_with_a_value(&self) -> bool {
        let next = match self.ready.front() {
            Some(Received::Update(update)) => Some(update),
            Some(Received::End(_)) => None,
            None => self.held.as_ref(),
        };
        matches!(next, Some(FeedUpdate::Value(_)))
    }

    /// Returns the next step.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<Received<K, R, V>>, ReceiveError> {
        match self.ready.pop_front() {
            Some(step) => Ok(Some(step)),
            None => self.failures.pop_front().map_or(Ok(None), Err),
        }
    }
}
