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

/// One publish in this many has its duration measured.
const MEASURED_ONE_IN: u64 = 64;

/// Where commits go besides the repository: landing regions, notices and counters. Dropping it ends the topic.
#[derive(Debug)]
pub(crate) struct Output<L: Landing> {
    topic: Arc<PublishedTopic>,
    waker: KeyedWaker,
    /// What the node hands over, and takes back.
    handover: Arc<Handover<L>>,
    landings: Vec<L>,
    clock: Arc<dyn Clock>,
    notifier: Notifier,
    counts: TopicCounts,
    /// Keeps the node going for as long as this exists. It is dropped last.
    _node: Arc<dyn Any + Send + Sync>,
}

impl<L: Landing<Geometry: Into<Geometry>>> Output<L> {
    /// Makes the repository of a new topic of this payload type, and what its commits go to. `place` makes the writer, which places
    /// the header.
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
    /// The topic, as its node has it.
    pub(super) fn topic(&self) -> &Arc<PublishedTopic> {
        &self.topic
    }

    /// The time, nanoseconds since the Unix epoch.
    #[inline]
    pub(super) fn realtime_ns(&self) -> u64 {
        self.clock.realtime_ns()
    }

    /// An error once the thread of the topic's node has panicked, which is counted.
    #[inline]
    pub(super) fn check_served(&mut self) -> Result<(), PublishError> {
        self.topic.check_served().map_err(|error| self.failed(error))
    }

    /// Counts payload bytes that were published.
    #[inline]
    pub(super) fn add_bytes(&mut self, len: usize) {
        self.counts.add_bytes(len as u64);
    }

    /// Brings a commit to the push subscribers, and tells of it.
    #[inline]
    pub(super) fn deliver(&mut self, commit: &L::Commit, news: impl FnOnce() -> News) {
        self.handover.deliver(&mut self.landings, commit);
        self.notifier.tell(news);
    }

    /// Shows now and then how long a publish took.
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
        // What was committed last may be on its way: the node waits for it before it tells of the end.
        self.handover.leave(std::mem::take(&mut self.landings));
        // Release: the last commit is in place before the node tells that it was the last.
        self.topic.ended.store(true, Ordering::Release);
        self.waker.wake();
    }
}
