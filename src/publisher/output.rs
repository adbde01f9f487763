use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ending::Ending;
use super::gate::Gate;
use super::handover::{Handover, Landing, Repository};
use super::memory::Declared;
use super::notices::{News, Notifier, TopicNotices};
use super::opening::{Numbering, TopicParts};
use super::subscribers::TopicSubscribers;
use super::topic::PublishedTopic;
use super::{PublishError, PublisherError};
use crate::clock::{Timekeeper, namespace};
use crate::fabric::{Exposure, KeyedWaker};
use crate::id::{Sequence, TopicId};
use crate::layout::Geometry;
use crate::layout::clock::ClockLine;
use crate::layout::header::{COUNTERS_LEN, COUNTERS_OFFSET, HOT_PUBLISHED};
use crate::limits;
use crate::memory::Region;
use crate::metrics::{Counters, Gauge, Handle, Unit};
use crate::notice::draw_key;
use crate::payload::Schema;
use crate::repository::{Recover, Writer};
use crate::sync::atomic::{AtomicBool, Ordering};

/// One in this many publishes is timed.
const MEASURED_ONE_IN: u64 = 64;

/// The outputs of a commit besides the repository: landing regions, notices and counters. Dropping it ends the topic.
#[derive(Debug)]
pub(crate) struct Output<L: Landing> {
    pub(super) topic: Arc<PublishedTopic>,
    waker: KeyedWaker,
    /// Exchanges landing regions with the node.
    handover: Arc<Handover<L>>,
    /// Boxed, with capacity for every push subscriber, so that taking one from the node does not allocate.
    landings: Vec<Box<L>>,
    time: Arc<Timekeeper>,
    /// The last time stamp: the next one is not earlier.
    stamped_ns: u64,
    notifier: Notifier,
    pub(super) gate: Gate,
    counts: TopicCounts,
    /// Keeps the node alive. Dropped last.
    node: Arc<dyn Any + Send + Sync>,
}

/// The counters that every topic has.
#[derive(Debug)]
struct TopicCounts {
    counters: Counters,
    bytes: Handle,
    duration: Handle,
}

impl<L: Landing<Geometry: Into<Geometry>>> Output<L> {
    /// Creates the repository of a new topic, its writer, and its outputs.
    pub(super) fn open<W: Writer<Geometry = L::Geometry> + Recover>(
        parts: TopicParts<'_>,
        geometry: L::Geometry,
        schema: Schema,
    ) -> Result<(W, Self), PublisherError> {
        let TopicParts {
            fabric, time, waker, node, host, name, numbering, memory, lifespan_ns, gating, ..
        } = parts;
        let Numbering { epoch, incarnation, after } = numbering;
        let any_geometry: Geometry = geometry.into();
        let header = any_geometry.static_header(epoch, TopicId::of(&name), schema.hash());
        let is_new = memory.is_new();
        let declared = Declared { name: &name, geometry: any_geometry, schema: &schema };
        let (region, writer): (_, W) = memory.open(&declared, (geometry, &header), after, &time)?;
        let registration = Arc::new(fabric.register(&region, Exposure::Read)?);

        ClockLine { namespace: namespace(), timeline: time.timeline() }.write(&region);
        let started_ns = time.now_ns();
        let mut counts = TopicCounts::new(Arc::clone(&region), host, started_ns);
        let key = draw_key()?;
        let notices = Arc::new(TopicNotices::new(header.topic, epoch, key));
        let notifier = Notifier::new(Arc::clone(&notices), Arc::clone(&region), waker.clone());
        let subscribers = Arc::new(TopicSubscribers::new(gating));
        let gate = Gate::new(
            Arc::clone(&subscribers),
            Arc::clone(&notices),
            waker.clone(),
            Arc::clone(time.clock()),
        );
        let repository = Repository { registration: Arc::clone(&registration), geometry, epoch, after };
        let handover = Arc::new(Handover::new(repository, waker.clone()));
        let topic = Arc::new(PublishedTopic {
            name,
            topic_id: header.topic,
            epoch,
            incarnation,
            after,
            lifespan_ns,
            geometry: any_geometry,
            schema,
            registration,
            pull_subscribers: counts.gauge("pull subscribers"),
            push_subscribers: counts.gauge("push subscribers"),
            without_notices: counts.gauge("without notices"),
            notices,
            subscribers,
            landings: Arc::<Handover<L>>::clone(&handover),
            ended: AtomicBool::new(false),
            orphaned: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            waker: waker.clone(),
            attached: Mutex::default(),
            clocks: Mutex::default(),
            unfinished: Arc::default(),
        });
        PublishedTopic::beat(&region, started_ns);
        let landings = Vec::with_capacity(limits::PUSH_SUBSCRIBERS_MAX);
        // Not before the values of an earlier publisher.
        let stamped_ns = started_ns.max(region.load(HOT_PUBLISHED));
        if let Some(file) = region.kept().filter(|_| is_new) {
            file.link()?;
        }
        let output =
            Self { topic, waker, handover, landings, time, stamped_ns, notifier, gate, counts, node };
        Ok((writer, output))
    }
}

impl<L: Landing> Output<L> {
    /// The time, nanoseconds since the Unix epoch; never earlier than the last one returned.
    #[inline]
    pub(super) fn realtime_ns(&mut self) -> u64 {
        self.stamped_ns = self.stamped_ns.max(self.time.now_ns());
        self.stamped_ns
    }

    /// What it takes to wait for the subscribers once this is dropped.
    pub(super) fn ending(&self) -> Ending {
        let (topic, time, node) = (Arc::clone(&self.topic), Arc::clone(&self.time), Arc::clone(&self.node));
        Ending { topic, time, _node: node }
    }

    /// Fails, and counts the error, once the thread of the topic's node has panicked.
    #[inline]
    pub(super) fn check_served(&mut self) -> Result<(), PublishError> {
        self.topic.check_served().map_err(|error| self.failed(error))
    }

    /// Counts published payload bytes.
    #[inline]
    pub(super) fn add_bytes(&mut self, len: usize) {
        self.counts.counters.increase(self.counts.bytes, len as u64);
    }

    /// Delivers a commit to push subscribers, and announces it.
    #[inline]
    pub(super) fn deliver(&mut self, commit: &L::Commit, news: impl FnOnce() -> News) {
        self.handover.deliver(&mut self.landings, commit);
        self.notifier.tell(news);
    }

    /// Shows from time to time how long a publish took.
    #[inline]
    pub(super) fn measure(&mut self, newest: Sequence, began_ns: u64) {
        if newest.get().is_multiple_of(MEASURED_ONE_IN) {
            let duration_ns = self.realtime_ns().saturating_sub(began_ns);
            self.counts.counters.set(self.counts.duration, duration_ns);
        }
    }

    /// Counts an error.
    #[cold]
    pub(super) fn failed(&mut self, error: PublishError) -> PublishError {
        let now_ns = self.realtime_ns();
        self.counts.counters.error(error.name(), now_ns);
        error
    }
}

impl TopicCounts {
    /// The counts of the repository in this memory.
    fn new(repository: Arc<Region>, host: &str, started_ns: u64) -> Self {
        let mut counters = Counters::new(repository, COUNTERS_OFFSET, COUNTERS_LEN);
        counters.add("process", Unit::Process, std::process::id().into());
        counters.add("started", Unit::Time, started_ns);
        counters.add(&format!("host: {host}"), Unit::Text, 0);
        let bytes = added(&mut counters, "bytes", Unit::Bytes);
        let duration = added(&mut counters, "publish duration", Unit::Ns);
        Self { counters, bytes, duration }
    }

    /// One more, which the topic's node keeps.
    fn gauge(&mut self, name: &str) -> Gauge {
        let handle = added(&mut self.counters, name, Unit::Count);
        self.counters.gauge(handle)
    }
}

/// Adds a counter that every topic has.
fn added(counters: &mut Counters, name: &str, unit: Unit) -> Handle {
    let Some(handle) = counters.add(name, unit, 0) else {
        unreachable!("the counters have room for those that every topic has")
    };
    handle
}

impl<L: Landing> Drop for Output<L> {
    fn drop(&mut self) {
        // The last commit may be in flight: the node waits for it before it reports the end.
        self.handover.leave(std::mem::take(&mut self.landings));
        // Release: the last commit is visible before the node reports the end.
        self.topic.ended.store(true, Ordering::Release);
        if let Some(file) = self.topic.registration.region().kept() {
            file.release();
        }
        self.waker.wake();
    }
}
