use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::landing::Landing;
use super::landings::StateLandings;
use super::loan::Loan;
use super::notices::{News, Notifier};
use super::opening::{Opening, TopicCounts, TopicParts, fresh_epoch};
use super::topic::{PublishedTopic, topic_accessors};
use super::{PublishError, PublisherError};
use crate::clock::Clock;
use crate::fabric::Waker;
use crate::id::{Epoch, Sequence};
use crate::layout::state::StateGeometry;
use crate::limits;
use crate::payload::{Payload, Raw};
use crate::repository::state::{Committed, StateWriter};
use crate::sync::atomic::Ordering;

/// One publish in this many has its duration measured.
pub(super) const MEASURED_ONE_IN: u64 = 64;

/// Publishes the values of a state topic: subscribers see the newest one.
///
/// Publishing neither allocates, nor locks, nor calls the operating system on the `shm` fabric, and costs nothing
/// for subscribers that pull, however many they are. It locks for a moment after a push subscriber has joined,
/// or one that asked for notices has come or gone. It calls the operating system to wake such subscribers on this host that sleep.
/// While there are some over RDMA, each publish sends a datagram: it takes a lock that the other publishers of the node take for
/// theirs, and the node's thread while it puts together what it tells of all topics, and wakes that thread when there is no room
/// to send.
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
    notifier: Notifier,
    counts: TopicCounts,
}

/// What a node brings to a new state topic.
#[derive(Debug)]
pub(crate) struct StateParts<'a> {
    pub(crate) topic: TopicParts<'a>,
    pub(crate) slot_count: u32,
}

impl<T: Payload> StatePublisher<T> {
    /// Publishes a value, and returns its sequence.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when it is longer than the topic's `payload_len_max`, [`PublishError::Encode`]
    /// when its type refuses to be encoded, [`PublishError::NodeFailed`] when the node's thread has panicked. Nothing is
    /// published then.
    #[inline]
    pub fn publish(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        let began_ns = self.output.realtime_ns();
        let committed = match T::as_bytes(value) {
            Some(bytes) => self.writer.publish(bytes, self.encoding, began_ns).map_err(PublishError::from),
            None => {
                let schema = self.output.topic.schema();
                let fill = |room: &mut [u8]| T::encode(value, schema, room);
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

    topic_accessors!();

    /// The sequence of the newest value; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        self.writer.last()
    }

    /// Makes the repository of a new topic, and its publisher.
    pub(crate) fn open(parts: StateParts<'_>) -> Result<(Self, Arc<PublishedTopic>), PublisherError> {
        Self::open_as(parts, fresh_epoch()?)
    }

    /// The same for an epoch that nobody else has.
    pub(crate) fn open_as(
        StateParts { topic: parts, slot_count }: StateParts<'_>,
        epoch: Epoch,
    ) -> Result<(Self, Arc<PublishedTopic>), PublisherError> {
        let geometry = StateGeometry::new(slot_count, parts.payload_len_max)?;
        let opening = Opening::new::<T>(&parts, geometry.into(), epoch)?;
        let registration = Arc::clone(&opening.registration);
        let writer = StateWriter::new(Arc::clone(registration.region()), geometry, &opening.line);
        let handover = Arc::new(StateLandings::new(registration, geometry, epoch));
        let TopicParts { clock, waker, node, .. } = parts;
        let notifier = opening.notifier(&waker);
        let (topic, counts) = opening.finish(Arc::<StateLandings>::clone(&handover));
        let landings = Vec::with_capacity(limits::PUSH_SUBSCRIBERS_MAX);
        let output = Output { topic: Arc::clone(&topic), waker, handover, landings, clock, notifier, counts };
        let encoding = T::ENCODING.number();
        Ok((Self { writer, output, encoding, _node: node, payload: PhantomData }, topic))
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
    /// An error once the thread of the topic's node has panicked, which is counted.
    #[inline]
    pub(super) fn check_served(&mut self) -> Result<(), PublishError> {
        self.topic.check_served().map_err(|error| {
            let now_ns = self.realtime_ns();
            self.failed(error, now_ns)
        })
    }

    /// The time, nanoseconds since the Unix epoch.
    #[inline]
    pub(super) fn realtime_ns(&self) -> u64 {
        self.clock.realtime_ns()
    }

    /// Brings a committed value to the push subscribers, tells of it, and counts it.
    #[inline]
    pub(super) fn deliver(&mut self, committed: &Committed) {
        self.counts.add_bytes(committed.payload_len as u64);
        if self.handover.has_waiting() {
            self.landings.append(&mut self.handover.take_waiting());
        }
        if !self.landings.is_empty() {
            self.push(committed);
        }
        let Committed { sequence, slot, published_ns, .. } = *committed;
        self.notifier.tell(|| News { sequence, position: 0, published_ns, inline: Some((slot, 1)) });
    }

    /// Writes a committed value to the push subscribers.
    #[inline]
    fn push(&mut self, committed: &Committed) {
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
        if sequence.get().is_multiple_of(MEASURED_ONE_IN) {
            self.counts.show_duration(self.clock.realtime_ns().saturating_sub(began_ns));
        }
    }

    #[cold]
    fn failed(&mut self, error: PublishError, now_ns: u64) -> PublishError {
        self.counts.add_error(error.name(), now_ns);
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
