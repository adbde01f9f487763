use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

use super::PublisherError;
use super::handover::Landings;
use super::notices::{Notifier, TopicNotices};
use super::topic::PublishedTopic;
use crate::clock::Clock;
use crate::fabric::{Exposure, Fabric, KeyedWaker, Registration};
use crate::id::{Epoch, TopicId, TopicName};
use crate::layout::Geometry;
use crate::layout::header::{COUNTERS_LEN, COUNTERS_OFFSET, StaticHeader};
use crate::memory::{Protection, Region};
use crate::metrics::{Counters, Gauge, Handle, Unit};
use crate::notice::draw_key;
use crate::payload::{Payload, Schema};
use crate::sync::atomic::AtomicBool;

/// The node's part in opening a topic of any kind.
#[derive(Debug)]
pub(crate) struct TopicParts<'a> {
    pub(crate) fabric: &'a dyn Fabric,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) waker: KeyedWaker,
    pub(crate) node: Arc<dyn Any + Send + Sync>,
    pub(crate) host: &'a str,
    pub(crate) name: TopicName,
    /// Unique.
    pub(crate) epoch: Epoch,
    pub(crate) payload_len_max: usize,
    /// The example values for the payload type.
    pub(crate) samples: &'a [String],
}

/// The repository of a topic that is being opened.
#[derive(Debug)]
pub(super) struct Opening {
    name: TopicName,
    geometry: Geometry,
    schema: Schema,
    pull_subscribers: Gauge,
    push_subscribers: Gauge,
    without_notices: Gauge,
    started_ns: u64,
    pub(super) notices: Arc<TopicNotices>,
    /// Its header, for the writer to write.
    pub(super) header: StaticHeader,
    pub(super) registration: Arc<Registration>,
    pub(super) counts: TopicCounts,
}

/// The counters that every repository of a publisher has.
#[derive(Debug)]
pub(super) struct TopicCounts {
    counters: Counters,
    bytes: Option<Handle>,
    duration: Option<Handle>,
}

/// A new, unique epoch.
pub(crate) fn fresh_epoch() -> Result<Epoch, PublisherError> {
    let number = crate::random::number().map_err(PublisherError::Random)?;
    Epoch::new(number).ok_or_else(|| PublisherError::Random(std::io::ErrorKind::Other.into()))
}

impl TopicParts<'_> {
    /// The schema of this type, if its values fit.
    fn schema<T: Payload>(&self) -> Result<Schema, PublisherError> {
        let max = self.payload_len_max;
        let schema = T::schema_with(self.samples)?;
        match T::fixed_len() {
            Some(len) if len > max => Err(PublisherError::PayloadLenMax { len, max }),
            None if schema.value_len_min() > max => {
                Err(PublisherError::PayloadLenMin { len: schema.value_len_min(), max })
            }
            _ => Ok(schema),
        }
    }
}

impl Opening {
    /// Allocates a repository of this geometry, and registers it.
    pub(super) fn new<T: Payload>(
        parts: &TopicParts<'_>,
        geometry: Geometry,
    ) -> Result<Self, PublisherError> {
        let schema = parts.schema::<T>()?;
        let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead)?);
        let header = geometry.static_header(parts.epoch, TopicId::of(&parts.name), schema.hash());
        let registration = Arc::new(parts.fabric.register(&region, Exposure::Read)?);

        let mut counters = Counters::new(region, COUNTERS_OFFSET, COUNTERS_LEN);
        let started_ns = parts.clock.realtime_ns();
        counters.add("process", Unit::Process, std::process::id().into());
        counters.add("started", Unit::Time, started_ns);
        counters.add(&format!("host: {}", parts.host), Unit::Text, 0);
        let bytes = counters.add("bytes", Unit::Bytes, 0);
        let duration = counters.add("publish duration", Unit::Ns, 0);
        let pull = counters.add("pull subscribers", Unit::Count, 0);
        let push = counters.add("push subscribers", Unit::Count, 0);
        let without = counters.add("without notices", Unit::Count, 0);
        let gauge = |handle: Option<Handle>| handle.map(|handle| counters.gauge(handle));
        let gauges = (gauge(pull), gauge(push), gauge(without));
        let (Some(pull_subscribers), Some(push_subscribers), Some(without_notices)) = gauges else {
            unreachable!("the counters have places for those that every topic has")
        };
        let key = draw_key().map_err(PublisherError::Random)?;
        let notices = Arc::new(TopicNotices::new(header.topic, header.epoch, key));
        let (name, counts) = (parts.name.clone(), TopicCounts { counters, bytes, duration });
        Ok(Self {
            name,
            geometry,
            schema,
            pull_subscribers,
            push_subscribers,
            without_notices,
            started_ns,
            notices,
            header,
            registration,
            counts,
        })
    }

    /// The notifier of the topic's commits.
    pub(super) fn notifier(&self, waker: &KeyedWaker) -> Notifier {
        let memory = Arc::clone(self.registration.region());
        Notifier::new(Arc::clone(&self.notices), memory, waker.clone())
    }

    /// The node's part of the topic, once its writer has written the header, and its counters.
    pub(super) fn finish(
        self,
        landings: Arc<dyn Landings>,
        waker: &KeyedWaker,
    ) -> (Arc<PublishedTopic>, TopicCounts) {
        let topic = PublishedTopic {
            name: self.name,
            topic_id: self.header.topic,
            epoch: self.header.epoch,
            geometry: self.geometry,
            schema: self.schema,
            registration: self.registration,
            pull_subscribers: self.pull_subscribers,
            push_subscribers: self.push_subscribers,
            without_notices: self.without_notices,
            notices: self.notices,
            landings,
            ended: AtomicBool::new(false),
            orphaned: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            waker: waker.clone(),
            attached: Mutex::default(),
        };
        PublishedTopic::beat(topic.registration.region(), self.started_ns);
        (Arc::new(topic), self.counts)
    }
}

impl TopicCounts {
    /// Counts published payload bytes.
    #[inline]
    pub(super) fn add_bytes(&mut self, count: u64) {
        if let Some(bytes) = self.bytes {
            self.counters.increase(bytes, count);
        }
    }

    /// Shows how long a publish took, nanoseconds.
    #[inline]
    pub(super) fn show_duration(&self, duration_ns: u64) {
        if let Some(duration) = self.duration {
            self.counters.set(duration, duration_ns);
        }
    }

    /// Counts an error by name.
    #[cold]
    pub(super) fn add_error(&mut self, name: &'static str, now_ns: u64) {
        self.counters.error(name, now_ns);
    }
}
