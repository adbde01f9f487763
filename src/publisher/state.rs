use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::landing::Landing;
use super::landings::StateLandings;
use super::loan::Loan;
use super::topic::PublishedTopic;
use super::{PublishError, PublisherError};
use crate::clock::Clock;
use crate::fabric::{Exposure, Fabric, Waker};
use crate::id::{Epoch, Sequence, TopicId, TopicName};
use crate::layout::Geometry;
use crate::layout::header::{COUNTERS_LEN, COUNTERS_OFFSET};
use crate::layout::state::StateGeometry;
use crate::limits;
use crate::memory::{Protection, Region};
use crate::metrics::{Counters, Handle, Unit};
use crate::payload::{Payload, Raw};
use crate::repository::state::{Committed, StateWriter};
use crate::sync::atomic::{AtomicBool, Ordering};

/// One publish in this many has its duration measured.
const MEASURED_ONE_IN: u64 = 64;

/// Publishes the values of a state topic: subscribers see the newest one.
///
/// Publishing neither allocates, nor locks, nor calls the operating system on the `shm` fabric, and costs nothing
/// for subscribers that pull, however many they are. It locks for a moment after a push subscriber has joined.
/// Values are published in order; each gets the next sequence, from 1.
///
/// Dropping the publisher ends the topic: subscribers are told, and its name is free again. That does not block, unless
/// the publisher is the last handle of its [`Node`](crate::Node): then it joins the node's thread, which may take up to
/// 250 ms (over RDMA a second more, where a peer does not take what was sent).
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = node.state_publisher::<(f64, f64)>("EURUSD").open()?;
/// assert_eq!(publisher.publish(&(1.0841, 1.0843))?.get(), 1);
/// # Ok(())
/// # }
/// ```
pub struct StatePublisher<T: Payload> {
    writer: StateWriter,
    output: Output,
    encoding: u16,
    /// Keeps the node going for as long as this exists.
    _node: Arc<dyn Any + Send + Sync>,
    payload: PhantomData<fn(&T)>,
}

/// Where committed values go besides the repository: landing regions and counters.
#[derive(Debug)]
pub(super) struct Output {
    topic: Arc<PublishedTopic>,
    waker: Arc<Waker>,
    /// What the node hands over, and takes back.
    handover: Arc<StateLandings>,
    landings: Vec<Landing>,
    clock: Arc<dyn Clock>,
    counters: Counters,
    bytes: Option<Handle>,
    duration: Option<Handle>,
}

/// What a node brings to a new state topic.
#[derive(Debug)]
pub(crate) struct StateParts<'a> {
    pub(crate) fabric: &'a dyn Fabric,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) node: Arc<dyn Any + Send + Sync>,
    pub(crate) host: &'a str,
    pub(crate) name: TopicName,
    pub(crate) slot_count: u32,
    pub(crate) payload_len_max: usize,
}

impl<T: Payload> StatePublisher<T> {
    /// Publishes a value, and returns its sequence.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when it is longer than the topic's `payload_len_max`, [`PublishError::Encode`]
    /// when its type refuses to be encoded. Nothing is published then.
    #[inline]
    pub fn publish(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        let began_ns = self.output.realtime_ns();
        let committed = match T::as_bytes(value) {
            Some(bytes) => self.writer.publish(bytes, self.encoding, began_ns).map_err(PublishError::from),
            None => {
                let fill = |room: &mut [u8]| T::encode(value, room);
                self.writer.publish_with(self.encoding, began_ns, fill).map_err(PublishError::from)
            }
        };
        match committed {
            Ok(committed) => {
                self.output.deliver(&committed);
                self.output.measure(committed.sequence, began_ns);
                Ok(committed.sequence)
            }
            Err(error) => Err(self.output.failed(error, began_ns)),
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        self.output.topic.name()
    }

    /// This incarnation of the topic.
    pub fn epoch(&self) -> Epoch {
        self.output.topic.epoch()
    }

    /// The sequence of the newest value; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        self.writer.last()
    }

    /// The declared maximum of a payload, bytes.
    pub fn payload_len_max(&self) -> usize {
        self.writer.geometry().payload_len_max()
    }

    /// How many subscribers read the topic.
    pub fn pull_subscribers(&self) -> u64 {
        self.output.topic.pull_subscribers().value()
    }

    /// How many subscribers the topic is written to.
    pub fn push_subscribers(&self) -> u64 {
        self.output.topic.push_subscribers().value()
    }

    /// Makes the repository of a new topic, and its publisher.
    pub(crate) fn open(parts: StateParts<'_>) -> Result<(Self, Arc<PublishedTopic>), PublisherError> {
        let number = crate::random::number().map_err(PublisherError::Random)?;
        let epoch =
            Epoch::new(number).ok_or_else(|| PublisherError::Random(std::io::ErrorKind::Other.into()))?;
        Self::open_as(parts, epoch)
    }

    /// The same for an epoch that nobody else has.
    pub(crate) fn open_as(
        parts: StateParts<'_>,
        epoch: Epoch,
    ) -> Result<(Self, Arc<PublishedTopic>), PublisherError> {
        let max = parts.payload_len_max;
        if let Some(len) = T::fixed_len()
            && len > max
        {
            return Err(PublisherError::PayloadLenMax { len, max });
        }
        let schema = T::schema()?;
        let geometry = StateGeometry::new(parts.slot_count, max)?;
        let topic_id = TopicId::of(&parts.name);
        let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead)?);
        let shape = Geometry::from(geometry);
        let line = shape.static_line(epoch, topic_id, schema.hash());
        let writer = StateWriter::new(Arc::clone(&region), geometry, &line);
        let registration = Arc::new(parts.fabric.register(&region, Exposure::Read)?);

        let mut counters = Counters::new(region, COUNTERS_OFFSET, COUNTERS_LEN);
        let now_ns = parts.clock.realtime_ns();
        counters.add("process", Unit::Process, std::process::id().into());
        counters.add("started", Unit::Time, now_ns);
        counters.add(&format!("host: {}", parts.host), Unit::Text, 0);
        let bytes = counters.add("bytes", Unit::Bytes, 0);
        let duration = counters.add("publish duration", Unit::Ns, 0);
        let pull = counters.add("pull subscribers", Unit::Count, 0);
        let push = counters.add("push subscribers", Unit::Count, 0);
        let gauge = |handle: Option<Handle>| handle.map(|handle| counters.gauge(handle));
        let (Some(pull_subscribers), Some(push_subscribers)) = (gauge(pull), gauge(push)) else {
            unreachable!("the counters have room for those that every topic has")
        };
        let handover = Arc::new(StateLandings::new(Arc::clone(&registration), geometry, epoch));
        let topic = Arc::new(PublishedTopic {
            name: parts.name,
            topic_id,
            epoch,
            geometry: shape,
            schema,
            registration,
            pull_subscribers,
            push_subscribers,
            landings: Arc::<StateLandings>::clone(&handover),
            ended: AtomicBool::new(false),
        });
        topic.beat(now_ns);
        let landings = Vec::with_capacity(limits::PUSH_SUBSCRIBERS_MAX);
        let (clock, waker) = (parts.clock, parts.waker);
        let output =
            Output { topic: Arc::clone(&topic), waker, handover, landings, clock, counters, bytes, duration };
        let encoding = T::ENCODING.number();
        Ok((Self { writer, output, encoding, _node: parts.node, payload: PhantomData }, topic))
    }
}

impl StatePublisher<Raw> {
    /// Lends the idle slot, so that a large value can be written straight into it. Neither blocks nor allocates.
    ///
    /// ```
    /// use fabricast::{Node, Raw};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("camera")?.runtime_dir(dir.path()).open()?;
    /// let mut frames = node.state_publisher::<Raw>("left").payload_len_max(1 << 20).open()?;
    /// let mut frame = frames.loan();
    /// for row in 0..480_u16 {
    ///     frame.append(&[row.to_le_bytes(); 640].concat())?;
    /// }
    /// assert_eq!(frame.commit().get(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn loan(&mut self) -> Loan<'_> {
        Loan::new(self.writer.stage(self.encoding), &mut self.output)
    }
}

impl Output {
    /// The time, nanoseconds since the Unix epoch.
    #[inline]
    pub(super) fn realtime_ns(&self) -> u64 {
        self.clock.realtime_ns()
    }

    /// Brings a committed value to the push subscribers, and counts it.
    #[inline]
    pub(super) fn deliver(&mut self, committed: &Committed) {
        if let Some(bytes) = self.bytes {
            self.counters.increase(bytes, committed.payload_len as u64);
        }
        if self.handover.has_waiting() {
            self.landings.append(&mut self.handover.take_waiting());
        }
        if self.landings.is_empty() {
            return;
        }
        let mut leaving = false;
        for landing in &mut self.landings {
            if !landing.is_closed() {
                landing.write(self.handover.registration(), committed);
            }
            leaving |= landing.is_closed() || landing.is_behind();
        }
        if leaving {
            self.release();
        }
    }

    /// Gives up the landing regions that are of no more use, to be released by the node, and those that are behind,
    /// to be brought up to date by it if no value follows.
    #[cold]
    fn release(&mut self) {
        let closed = self.landings.extract_if(.., |landing| landing.is_closed());
        self.handover.release(closed);
        let behind = self.landings.extract_if(.., |landing| landing.is_behind());
        self.handover.give_back(behind);
        self.waker.wake();
    }

    #[inline]
    fn measure(&self, sequence: Sequence, began_ns: u64) {
        if sequence.get().is_multiple_of(MEASURED_ONE_IN)
            && let Some(duration) = self.duration
        {
            self.counters.set(duration, self.clock.realtime_ns().saturating_sub(began_ns));
        }
    }

    #[cold]
    fn failed(&mut self, error: PublishError, now_ns: u64) -> PublishError {
        let name = match &error {
            PublishError::TooLong { .. } => "value too long",
            PublishError::Encode(_) => "value not encodable",
        };
        self.counters.error(name, now_ns);
        error
    }
}

impl<T: Payload> Drop for StatePublisher<T> {
    fn drop(&mut self) {
        // The last values may be on their way: the node waits for them before it tells of the end.
        self.output.handover.give_back(std::mem::take(&mut self.output.landings));
        // Release: the last value is in place before the node tells that it was the last.
        self.output.topic.ended.store(true, Ordering::Release);
        self.output.waker.wake();
    }
}

impl<T: Payload> fmt::Debug for StatePublisher<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StatePublisher")
            .field("topic", self.topic())
            .field("newest", &self.newest())
            .finish_non_exhaustive()
    }
}
