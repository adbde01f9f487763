use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::claim::{Claim, ClaimBuffer};
use super::handover::Landing;
use super::opening::TopicParts;
use super::output::Output;
use super::topic::PublishedTopic;
use super::{FinishError, Gating, LenLimit, PublishError, PublisherError, ending};
use crate::id::{Epoch, Sequence, TopicName};
use crate::layout::{Geometry, GeometryError};
use crate::payload::{InPlace, Payload, Pod, Raw, Schema};
use crate::repository::{Recover, Writer};

/// A publisher of a topic of one kind: a [`StatePublisher`](crate::StatePublisher), a [`LogPublisher`](crate::LogPublisher) or a
/// [`TablePublisher`](crate::TablePublisher).
///
/// Publishing neither allocates, nor locks, nor calls the operating system on the `shm` fabric, and costs nothing for subscribers
/// that pull, however many there are. Three things cost more:
///
/// - It locks for a moment after a push subscriber, or one that asked for notices, has come or gone, and wakes the node's thread when
///   it leaves a slow push subscriber to that thread.
/// - It calls the operating system to wake subscribers on this host that asked for notices and sleep.
/// - While subscribers over RDMA have asked for notices, each commit sends a datagram, under a lock that it shares with the node's
///   other publishers and the node's thread. If the send queue is full, it wakes that thread.
///
/// Values are published in order; each gets the next sequence, from 1.
///
/// Dropping the publisher ends the topic: subscribers are notified, and its name is free again. That does not block, unless the
/// publisher is the last handle of its [`Node`](crate::Node): then it joins the node's thread, which may take up to 250 ms (over
/// RDMA a second more, if a peer does not receive what was sent).
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
pub struct Publisher<K: PublishedKind, T: Payload> {
    pub(super) writer: K::Writer,
    pub(super) output: Output<K::Landing>,
    pub(super) parts: K::Parts,
    payload: PhantomData<fn(&T)>,
}

/// A kind of topic that can be published: [`StateTopic`](crate::StateTopic), [`LogTopic`](crate::LogTopic) or
/// [`TableTopic`](crate::TableTopic). This trait is sealed.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait PublishedKind: Writable {}

/// The parts of a publisher for one kind of topic.
pub(crate) trait Writable: Sized {
    /// The options of this kind.
    type Options: Copy + fmt::Debug;
    /// The default options.
    const DEFAULTS: Self::Options;
    /// What writes its repositories.
    type Writer: Writer<Geometry = GeometryOf<Self>> + Recover;
    /// The writer of its subscribers' landing regions.
    type Landing: Landing<Geometry: Into<Geometry>>;

    /// What its subscribers may ask of the publisher.
    fn gating(_options: Self::Options) -> Option<Gating> {
        None
    }

    /// The geometry of a repository.
    fn geometry(options: Self::Options, payload_len_max: usize) -> Result<GeometryOf<Self>, GeometryError>;

    /// What its publisher derives from the topic's schema.
    type Parts: Send;

    /// Derives it, if values of this schema fit.
    fn parts(schema: &Schema, geometry: GeometryOf<Self>) -> Result<Self::Parts, PublisherError>;

    /// What declares the largest payload, unless the topic is part of a feed.
    const LIMIT: LenLimit = LenLimit::Value;

    /// The length of the shortest payload of this schema.
    fn len_min(schema: &Schema) -> usize {
        schema.value_len_min()
    }

    /// Publishes what is appended but not committed, as the publisher is dropped.
    fn finish(_writer: &mut Self::Writer, _output: &mut Output<Self::Landing>) {}
}

/// A kind of topic whose values can be filled in place.
pub(crate) trait Claimed: PublishedKind {
    /// Publishes the value in the first `len` bytes of the buffer, after a wait for subscribers if it may wait.
    fn publish_filled<T: Payload>(
        publisher: &mut Publisher<Self, T>,
        len: usize,
        may_wait: bool,
    ) -> Result<Sequence, PublishError>;
}

/// The geometry of the repositories of a kind of topic.
type GeometryOf<K> = <<K as Writable>::Landing as Landing>::Geometry;

impl<K: PublishedKind, T: Payload> Publisher<K, T> {
    /// Returns the topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.output.topic.name
    }

    /// Returns the epoch of the topic.
    pub fn epoch(&self) -> Epoch {
        self.output.topic.epoch
    }

    /// Returns the declared maximum of a payload, bytes.
    pub fn payload_len_max(&self) -> usize {
        self.output.topic.geometry.payload_len_max()
    }

    /// Returns the newest sequence visible to subscribers; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        self.writer.last()
    }

    /// Ends the topic like a drop, and waits until every subscriber has received the last value and the end, or is gone. Returns the last
    /// sequence. Use it before a program exits: what a push subscriber, or a subscriber on another host, has not received by then is lost.
    ///
    /// Blocks for up to `timeout`, at most [`limits::FINISH_NS_MAX`](crate::limits::FINISH_NS_MAX), after which subscribers are no longer
    /// waited for. A subscriber has received the end when its program has, by [`ReceiveError::Ended`](crate::ReceiveError::Ended). One
    /// whose program does not receive is waited for. One that pulls over RDMA and reads later than 5 seconds after the end also receives
    /// the end, after [`ReceiveError::CutOff`](crate::ReceiveError::CutOff) for what it lost. Subscribers cannot attach meanwhile.
    ///
    /// # Errors
    ///
    /// [`FinishError`] when subscribers have not received the end in time. They still can, while the node is open.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use fabricast::{FinishError, Node};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// let mut trades = node.log_publisher::<u64>("trades").open()?;
    /// let mut subscriber = node.log_subscriber::<u64>("shm:exchange/trades").open()?;
    /// trades.publish(&10)?;
    /// let receiving = std::thread::spawn(move || subscriber.samples().count());
    /// assert_eq!(trades.finish(Duration::from_secs(5))?.get(), 1);
    /// assert_eq!(receiving.join().ok(), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn finish(self, timeout: Duration) -> Result<Sequence, FinishError> {
        let ending = self.output.ending();
        drop(self);
        ending::wait(&[ending], timeout)
    }

    /// Returns the number of pull subscribers. A counted subscriber receives everything published from then on: wait for this
    /// count before publishing to be sure the value is received.
    pub fn pull_subscribers(&self) -> u64 {
        self.output.topic.pull_subscribers.value()
    }

    /// Returns the number of push subscribers, counted like those of [`Self::pull_subscribers`].
    pub fn push_subscribers(&self) -> u64 {
        self.output.topic.push_subscribers.value()
    }

    /// Creates the repository of a new topic, its publisher, and the node's part of the topic.
    pub(crate) fn open(
        parts: TopicParts<'_>,
        options: K::Options,
    ) -> Result<(Self, Arc<PublishedTopic>), PublisherError> {
        let (limit, gating) = (parts.limit, K::gating(options));
        if let Some(lease) = gating.and_then(|gating| gating.unfit_lease()) {
            return Err(PublisherError::LeaseTooShort { lease });
        }
        let parts = TopicParts { gating, ..parts };
        let schema = parts.schema::<T>(K::len_min)?;
        let geometry =
            K::geometry(options, parts.payload_len_max).map_err(|error| limit.contradicted(error))?;
        let kind_parts = K::parts(&schema, geometry)?;
        let (writer, output) = Output::open(parts, geometry, schema)?;
        let topic = Arc::clone(&output.topic);
        Ok((Self { writer, output, parts: kind_parts, payload: PhantomData }, topic))
    }
}

#[expect(private_bounds, reason = "the kinds are sealed")]
impl<K: Claimed, T> Publisher<K, Pod<T>>
where
    Pod<T>: InPlace<Value = T>,
{
    /// Claims a buffer for the next value, to fill in place, for values too large to copy. Neither blocks nor allocates.
    ///
    /// ```
    /// use fabricast::{Node, Pod};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("sensors")?.runtime_dir(dir.path()).open()?;
    /// let mut ranges = node.state_publisher::<Pod<[f64; 32]>>("lidar").open()?;
    /// let mut scan = ranges.claim();
    /// scan.iter_mut().enumerate().for_each(|(angle, range)| *range = angle as f64);
    /// assert_eq!(scan.commit()?.get(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn claim(&mut self) -> Claim<'_, T> {
        Claim::new(self, size_of::<T>())
    }
}

#[expect(private_bounds, reason = "the kinds are sealed")]
impl<K: Claimed> Publisher<K, Raw> {
    /// Claims a buffer of `len` bytes for the next value, to be filled in any order. Neither blocks nor allocates.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when `len` is over the topic's `payload_len_max`.
    ///
    /// ```
    /// use fabricast::{Node, Raw};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// let mut messages = node.log_publisher::<Raw>("messages").open()?;
    /// let mut message = messages.claim(12)?;
    /// message[..8].copy_from_slice(&7_u64.to_le_bytes());
    /// message[8..].copy_from_slice(b"fill");
    /// assert_eq!(message.commit()?.get(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn claim(&mut self, len: usize) -> Result<Claim<'_, [u8]>, PublishError> {
        let max = self.payload_len_max();
        if len > max {
            return Err(self.output.failed(PublishError::TooLong {
                len: Some(len),
                max,
                limit: LenLimit::Value,
            }));
        }
        Ok(Claim::new(self, len))
    }
}

impl<K: Claimed, T: InPlace> ClaimBuffer<T::Value> for Publisher<K, T> {
    fn filled(&self, len: usize) -> &T::Value {
        T::value(self.writer.held().split_at(len).0)
    }

    fn filled_mut(&mut self, len: usize) -> &mut T::Value {
        T::value_mut(self.writer.room().split_at_mut(len).0)
    }

    fn publish_filled(&mut self, len: usize, may_wait: bool) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        K::publish_filled(self, len, may_wait)
    }
}

impl<K: PublishedKind, T: Payload> Drop for Publisher<K, T> {
    fn drop(&mut self) {
        K::finish(&mut self.writer, &mut self.output);
    }
}

impl<K: PublishedKind, T: Payload> fmt::Debug for Publisher<K, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Publisher")
            .field("topic", self.topic())
            .field("newest", &self.newest())
            .finish_non_exhaustive()
    }
}
