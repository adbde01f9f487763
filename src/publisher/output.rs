use std::any::Any;
use std::sync::Arc;

use super::handover::{Handover, Landing, Repository};
use super::notices::{News, Notifier};
use super::opening::{Opening, TopicCounts, TopicParts};
use super::topic::PublishedTopic;
use super::{PublishError, PublisherError};
use crate::clock::Clock;
use crate::fabric::KeyedWaker;
use crate::id::Sequence;
use crate::layout::Geometry;
use crate::layout::header::StaticHeader;
use crate::limits;
use crate::memory::Region;
use crate::payload::Payload;
use crate::sync::atomic::Ordering;

/// One in this many publishes is timed.
const MEASURED_ONE_IN: u64 = 64;

/// The outputs of a commit besides the repository: landing regions, notices and counters. Dropping it ends the topic.
#[derive(Debug)]
pub(crate) struct Output<L: Landing> {
    topic: Arc<PublishedTopic>,
    waker: KeyedWaker,
    /// Exchanges landing regions with the node.
    handover: Arc<Handover<L>>,
    landings: Vec<L>,
    clock: Arc<dyn Clock>,
    notifier: Notifier,
    counts: TopicCounts,
    /// Keeps the node alive. Dropped last.
    _node: Arc<dyn Any + Send + Sync>,
}

impl<L: Landing<Geometry: Into<Geometry>>> Output<L> {
    /// Creates the repository of a new topic of this payload type, and its output. `place` makes the writer, which writes the
    /// header.
    pub(super) fn open<T: Payload, W>(
        parts: TopicParts<'_>,
        geometry: L::Geometry,
        place: impl FnOnce(Arc<Region>, L::Geometry, &StaticHeader) -> W,
    ) -> Result<(W, Self), PublisherError> {
        let opening = Opening::new::<T>(&parts, geometry.into())?;
        let registration = Arc::clone(&opening.registration);
        let writer = place(Arc::clone(registration.region()), geometry, &opening.header);
        let TopicParts { clock, waker, node, epoch, .. } = parts;
        let notifier = opening.notifier(&waker);
        let repository = Repository { registration, geometry, epoch };
        let handover = Arc::new(Handover::new(repository, waker.clone()));
        let (topic, counts) = opening.finish(Arc::<Handover<L>>::clone(&handover), &waker);
        let landings = Vec::with_capacity(limits::PUSH_SUBSCRIBERS_MAX);
        Ok((writer, Self { topic, waker, handover, landings, clock, notifier, counts, _node: node }))
    }
}

impl<L: Landing> Output<L> {
    /// The node's part of the topic.
    pub(super) fn topic(&self) -> &Arc<PublishedTopic> {
        &self.topic
    }

    /// The time, nanoseconds since the Unix epoch.
    #[inline]
    pub(super) fn realtime_ns(&self) -> u64 {
        self.clock.realtime_ns()
    }

    /// Fails, and counts the error, once the thread of the topic's node has panicked.
    #[inline]
    pub(super) fn check_served(&mut self) -> Result<(), PublishError> {
        self.topic.check_served().map_err(|error| self.failed(error))
    }

    /// Counts published payload bytes.
    #[inline]
    pub(super) fn add_bytes(&mut self, len: usize) {
        self.counts.add_bytes(len as u64);
    }

    /// Delivers a commit to push subscribers, and announces it.
    #[inline]
    pub(super) fn deliver(&mut self, commit: &L::Commit, news: impl FnOnce() -> News) {
        self.handover.deliver(&mut self.landings, commit);
        self.notifier.tell(news);
    }

    /// Shows from time to time how long a publish took.
    #[inline]
    pub(super) fn measure(&self, newest: Sequence, began_ns: u64) {
        if newest.get().is_multiple_of(MEASURED_ONE_IN) {
            self.counts.show_duration(self.clock.realtime_ns().saturating_sub(began_ns));
        }
    }

    /// Counts an error.
    #[cold]
    pub(super) fn failed(&mut self, error: PublishError) -> PublishError {
        self.counts.add_error(error.name(), self.clock.realtime_ns());
        error
    }
}

impl<L: Landing> Drop for Output<L> {
    fn drop(&mut self) {
        // The last commit may be in flight: the node waits for it before it reports the end.
        self.handover.leave(std::mem::take(&mut self.landings));
        // Release: the last commit is visible before the node reports the end.
        self.topic.ended.store(true, Ordering::Release);
        self.waker.wake();
    }
}
