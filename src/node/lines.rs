//! Subscribers of several publishers of the same values.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use super::feed::{FeedReopening, FeedSubscriberBuilder};
use super::persistent::{Reopen, ResumingOptions, TopicReopening, persistent_lines};
use super::{Node, SubscriberBuilder};
use crate::fabric::Target;
use crate::limits;
use crate::subscriber::{
    Arbitrated, FeedLine, FeedLines, LineSet, LineSettings, LineSource, Lines, Position, Subscribed,
    SubscriberError, SubscriberHandle,
};

impl<'a, S: Subscribed> SubscriberBuilder<'a, S> {
    /// Adds further publishers of the same values, at these addresses: see [`Lines`]. The settings apply to each line.
    pub fn lines<T>(self, others: impl IntoIterator<Item = T>) -> LinesBuilder<'a, S>
    where
        T: TryInto<Target, Error: Into<SubscriberError>>,
    {
        let others = others.into_iter().map(|other| other.try_into().map_err(Into::into)).collect();
        LinesBuilder { builder: self, others, gap_timeout: Duration::from_nanos(limits::LINE_GAP_NS) }
    }
}

/// Sets up a subscriber of several [`Lines`].
///
/// Send and Sync.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct LinesBuilder<'a, S: Subscribed> {
    builder: SubscriberBuilder<'a, S>,
    others: Vec<Result<Target, SubscriberError>>,
    gap_timeout: Duration,
}

impl<S: Subscribed> LinesBuilder<'_, S> {
    /// Sets how long a record of a log that is missing on one line is awaited from a line that is behind, or that is sought; by default
    /// [`limits::LINE_GAP_NS`]. The records after it wait meanwhile. The report of a damaged value of a state or a table waits as
    /// long for another line to bring it.
    ///
    /// With [`Duration::MAX`] they wait until the line brings it: one line that is lost for good then stops a log at its first gap.
    pub fn gap_timeout(self, gap_timeout: Duration) -> Self {
        Self { gap_timeout, ..self }
    }
}

#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<'a, S> LinesBuilder<'a, S>
where
    S: Subscribed + SubscriberHandle<Options: ResumingOptions + Send> + Arbitrated + Send + 'static,
{
    /// Attaches to the publisher of each line, one after the other, like [`SubscriberBuilder::open`]. Those that are not found at the
    /// moment are sought in the background. A log begins with the records after this call; with earlier ones, if the builder says so,
    /// it begins where the line does that has the oldest.
    ///
    /// # Errors
    ///
    /// Those of [`SubscriberBuilder::open`] for which another attempt makes no sense: see [`SubscriberError::is_transient`].
    /// [`SubscriberError::Lines`] for too many, and [`SubscriberError::SameLine`] for one that is given twice.
    pub fn open(self) -> Result<Lines<S>, SubscriberError> {
        let (node, opening) = self.opening()?;
        opening.open(node)
    }

    /// Returns what it takes to open the subscriber, without the builder.
    pub(super) fn opening(self) -> Result<(&'a Node, LinesOpening<TopicReopening<S>>), SubscriberError> {
        let Self { builder, others, gap_timeout } = self;
        let SubscriberBuilder { node, place, mut terms, samples, .. } = builder;
        let deadline = terms.deadline.take();
        let targets = checked(std::iter::once(place).chain(others))?;
        let begins_ahead = terms.options.begins_with_newest();
        let begins_at = terms.options.begins_at();
        let settings = LineSettings { begins_ahead, begins_at, gap_timeout, idle: terms.idle };
        let opening = |target| TopicReopening::<S> { target, terms, samples: samples.clone() };
        let lines = targets.into_iter().map(opening).collect();
        Ok((node, LinesOpening { lines, settings, deadline }))
    }
}

/// What it takes to open several lines.
pub(super) struct LinesOpening<O> {
    lines: Vec<O>,
    settings: LineSettings,
    /// Of all lines together.
    deadline: Option<Duration>,
}

impl<O: Reopen<Handle: LineSource>> LinesOpening<O> {
    fn open_set(self, node: &Node) -> Result<(LineSet<O::Handle>, Option<Duration>), SubscriberError> {
        let Self { lines, settings, deadline } = self;
        let lines = persistent_lines(node, lines)?;
        let clock = Arc::clone(&node.core().clock);
        Ok((LineSet::new(lines, clock, settings), deadline))
    }
}

impl<O: Reopen<Handle: Arbitrated>> LinesOpening<O> {
    /// Opens a subscriber of a topic. Blocks.
    pub(super) fn open(self, node: &Node) -> Result<Lines<O::Handle>, SubscriberError> {
        let (set, deadline) = self.open_set(node)?;
        Ok(Lines::new(set, deadline))
    }
}

/// Sets up a subscriber of several lines of a feed, [`FeedLines`].
///
/// Send and Sync.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct FeedLinesBuilder<'a, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    builder: FeedSubscriberBuilder<'a, K, R, V>,
    others: Vec<Result<Target, SubscriberError>>,
    gap_timeout: Duration,
}

impl<'a, K, R, V> FeedSubscriberBuilder<'a, K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Adds further publishers of the same feed, at these addresses: see [`FeedLines`]. The settings apply to each line. A subscriber of
    /// several lines is not [conflated](Self::conflate): to receive values at its own pace, subscribe to the lines of the feed's table.
    pub fn lines<T>(self, others: impl IntoIterator<Item = T>) -> FeedLinesBuilder<'a, K, R, V>
    where
        T: TryInto<Target, Error: Into<SubscriberError>>,
    {
        let others = others.into_iter().map(|other| other.try_into().map_err(Into::into)).collect();
        let gap_timeout = Duration::from_nanos(limits::LINE_GAP_NS);
        FeedLinesBuilder { builder: self, others, gap_timeout }
    }
}

impl<'a, K, R, V> FeedLinesBuilder<'a, K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Sets how long a record that is missing on one line is awaited from another one: see [`LinesBuilder::gap_timeout`].
    pub fn gap_timeout(self, gap_timeout: Duration) -> Self {
        Self { gap_timeout, ..self }
    }

    /// Attaches to the publisher of each line, one after the other, like [`FeedSubscriberBuilder::open`]. Those that are not found at
    /// the moment are sought in the background.
    ///
    /// # Errors
    ///
    /// Those of [`FeedSubscriberBuilder::open`] for which another attempt makes no sense: see [`SubscriberError::is_transient`].
    /// [`SubscriberError::Conflated`] after [`conflate`](FeedSubscriberBuilder::conflate), [`SubscriberError::Lines`] for too many lines,
    /// and [`SubscriberError::SameLine`] for one that is given twice.
    pub fn open(self) -> Result<FeedLines<K, R, V>, SubscriberError> {
        let (node, opening) = self.opening()?;
        opening.open_feed(node)
    }

    /// Returns what it takes to open the subscriber, without the builder.
    #[expect(clippy::type_complexity, reason = "the node and what it opens")]
    pub(super) fn opening(
        self,
    ) -> Result<(&'a Node, LinesOpening<FeedLineReopening<K, R, V>>), SubscriberError> {
        let Self { builder, others, gap_timeout } = self;
        let deadline = builder.deadline_set();
        let settings =
            LineSettings { begins_ahead: true, begins_at: None, gap_timeout, idle: builder.idle_set() };
        let (node, first) = builder.opening()?;
        if first.is_conflated() {
            return Err(SubscriberError::Conflated);
        }
        let targets = checked(std::iter::once(Ok(first.target().clone())).chain(others))?;
        let lines = targets.into_iter().map(|target| Ok(FeedLineReopening(first.at(target)?)));
        let lines = lines.collect::<Result<_, SubscriberError>>()?;
        Ok((node, LinesOpening { lines, settings, deadline }))
    }
}

impl<K, R, V> LinesOpening<FeedLineReopening<K, R, V>>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Opens a subscriber of a feed. Blocks.
    pub(super) fn open_feed(self, node: &Node) -> Result<FeedLines<K, R, V>, SubscriberError> {
        let (set, deadline) = self.open_set(node)?;
        Ok(FeedLines::new(set, deadline))
    }
}

/// What it takes to open a line of a feed.
pub(super) struct FeedLineReopening<K, R, V>(FeedReopening<K, R, V>);

impl<K, R, V> Clone for FeedLineReopening<K, R, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, R, V> Reopen for FeedLineReopening<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    type Handle = FeedLine<K, R, V>;

    fn target(&self) -> &Target {
        self.0.target()
    }

    fn open(&self, node: &Node) -> Result<FeedLine<K, R, V>, SubscriberError> {
        let (log, table) = self.0.open_both(node)?;
        Ok(FeedLine::new(log, table))
    }

    fn resuming(&self, lost: Option<Position>) -> Self {
        lost.map_or_else(|| self.anew(), |lost| Self(self.0.resuming(Some(lost))))
    }

    /// With the first record, because the other lines may have brought any.
    fn anew(&self) -> Self {
        Self(self.0.anew())
    }
}

/// Returns the lines, unless they are too many, or two are the same.
fn checked(
    lines: impl Iterator<Item = Result<Target, SubscriberError>>,
) -> Result<Vec<Target>, SubscriberError> {
    let lines: Vec<Target> = lines.collect::<Result<_, _>>()?;
    let count = lines.len();
    if count > limits::LINES_MAX {
        return Err(SubscriberError::Lines { count });
    }
    let mut before = HashSet::new();
    match lines.iter().find(|target| !before.insert(*target)) {
        Some(target) => Err(SubscriberError::SameLine { target: target.clone() }),
        None => Ok(lines),
    }
}
