use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::claim::{Claim, Room};
use super::handover::Landing;
use super::opening::TopicParts;
use super::output::Output;
use super::topic::PublishedTopic;
use super::{PublishError, PublisherError};
use crate::id::{Epoch, Sequence, TopicName};
use crate::layout::header::StaticHeader;
use crate::layout::{Geometry, GeometryError};
use crate::memory::Region;
use crate::payload::{InPlace, Payload, Pod, Raw};

/// A publisher of a topic of one kind: a [`StatePublisher`](crate::StatePublisher) or a [`LogPublisher`](crate::LogPublisher).
///
/// Publishing neither allocates, nor locks, nor calls the operating system on the `shm` fabric, and costs nothing for subscribers
/// that pull, however many there are. Three things cost more:
///
/// - It locks for a moment after a push subscriber, or one that asked for notices, has come or gone, and wakes the node's thread when
///   it leaves a slow push subscriber to that thread.
/// - It calls the operating system to wake subscribers on this host that asked for notices and sleep.
/// - While subscribers over RDMA have asked for notices, each commit sends a datagram, under a lock that it shares with the node's
///   other publishers and the node's thread. When there is no room to send, it wakes that thread.
///
/// Values are published in order; each gets the next sequence, from 1.
///
/// Dropping the publisher ends the topic: subscribers are notified, and its name is free again. That does not block, unless
/// the publisher is the last handle of its [`Node`](crate::Node): then it joins the node's thread, which may take up to
/// 250 ms (over RDMA a second more, where a peer does not take what was sent).
pub struct Publisher<K: PublishedKind, T: Payload> {
    pub(super) writer: K::Writer,
    pub(super) output: Output<K::Landing>,
    payload: PhantomData<fn(&T)>,
}

/// A kind of topic that can be published: [`StateTopic`](crate::StateTopic) or [`LogTopic`](crate::LogTopic). Nothing else can be.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait PublishedKind: Writable {}

/// What the publishers of a kind of topic are made of.
pub(crate) trait Writable: Sized {
    /// What a publisher of this kind may choose.
    type Options: Copy + fmt::Debug;
    /// What that is unless more is said.
    const DEFAULTS: Self::Options;
    /// What writes its repositories.
    type Writer: Send;
    /// What writes the landing regions of its subscribers.
    type Landing: Landing<Geometry: Into<Geometry>>;

    /// The shape of a repository.
    fn geometry(options: Self::Options, payload_len_max: usize) -> Result<GeometryOf<Self>, GeometryError>;

    /// Makes a zeroed region an empty repository.
    fn place(region: Arc<Region>, geometry: GeometryOf<Self>, header: &StaticHeader) -> Self::Writer;

    /// The newest sequence that subscribers can see.
    fn newest(writer: &Self::Writer) -> Sequence;

    /// Room for the longest payload in private memory, to be filled.
    fn buffer(writer: &mut Self::Writer) -> &mut [u8];

    /// What the room holds.
    fn held(writer: &Self::Writer) -> &[u8];

    /// Publishes the value that was filled into so many bytes of the room, the first ones.
    fn publish_filled<T: Payload>(
        publisher: &mut Publisher<Self, T>,
        len: usize,
    ) -> Result<Sequence, PublishError>
    where
        Self: PublishedKind;

    /// Publishes what is left, because the publisher is being dropped.
    fn finish(_writer: &mut Self::Writer, _output: &mut Output<Self::Landing>) {}
}

/// Where things stand in the repositories of a kind of topic.
type GeometryOf<K> = <<K as Writable>::Landing as Landing>::Geometry;

impl<K: PublishedKind, T: Payload> Publisher<K, T> {
    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        self.output.topic().name()
    }

    /// This incarnation of the topic.
    pub fn epoch(&self) -> Epoch {
        self.output.topic().epoch()
    }

    /// The declared maximum of a payload, bytes.
    pub fn payload_len_max(&self) -> usize {
        self.output.topic().geometry().payload_len_max()
    }

    /// The newest sequence that subscribers can see; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        K::newest(&self.writer)
    }

    /// How many subscribers read the topic. One that is counted and began with the newest value sees what is published from
    /// then on: wait for this count before publishing to be sure the value is received.
    pub fn pull_subscribers(&self) -> u64 {
        self.output.topic().pull_subscribers().value()
    }

    /// How many subscribers the topic is written to, counted as those of [`Self::pull_subscribers`].
    pub fn push_subscribers(&self) -> u64 {
        self.output.topic().push_subscribers().value()
    }

    /// Makes the repository of a new topic, and its publisher; and what the node keeps of the topic.
    pub(crate) fn open(
        parts: TopicParts<'_>,
        options: K::Options,
    ) -> Result<(Self, Arc<PublishedTopic>), PublisherError> {
        let geometry = K::geometry(options, parts.payload_len_max)?;
        let (writer, output) = Output::open::<T, _>(parts, geometry, K::place)?;
        let topic = Arc::clone(output.topic());
        Ok((Self { writer, output, payload: PhantomData }, topic))
    }
}

impl<K: PublishedKind, T> Publisher<K, Pod<T>>
where
    Pod<T>: InPlace<Value = T>,
{
    /// Claims room for the next value, to be filled in place: for values that are too large to be moved about. Neither blocks nor
    /// allocates.
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

impl<K: PublishedKind> Publisher<K, Raw> {
    /// Claims room for the next value, of so many bytes, to be filled in place and in any order. Neither blocks nor allocates.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when the length is over the topic's `payload_len_max`.
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
            return Err(self.output.failed(PublishError::TooLong { len, max }));
        }
        Ok(Claim::new(self, len))
    }
}

impl<K: PublishedKind, T: InPlace> Room<T::Value> for Publisher<K, T> {
    fn filled(&self, len: usize) -> &T::Value {
        T::value(K::held(&self.writer).split_at(len).0)
    }

    fn filled_mut(&mut self, len: usize) -> &mut T::Value {
        T::value_mut(K::buffer(&mut self.writer).split_at_mut(len).0)
    }

    fn publish_filled(&mut self, len: usize) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        K::publish_filled(self, len)
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
