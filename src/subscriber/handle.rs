use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::iterate::is_last;
use super::waiter::Membership;
use super::{
    GrantError, InlineValues, NoticePath, Position, PublisherClock, ReceiveError, Sample, SampleRef,
    Subscription,
};
use crate::control::Peer;
use crate::fabric::FabricError;
use crate::id::{Delivery, Epoch, Incarnation, Kind, KindOptions, Sequence, TopicName};
use crate::memory::Region;
use crate::notice::NoticeCounts;
use crate::payload::{Decoded, Payload, Raw, Schema};
use crate::repository::{Reader, SubscriberStats};

/// A subscriber of a topic of one kind: a [`StateSubscriber`](crate::StateSubscriber), a [`LogSubscriber`](crate::LogSubscriber) or a
/// [`TableSubscriber`](crate::TableSubscriber).
///
/// A receive neither allocates (beyond what decoding the value does), nor locks, nor calls the operating system
/// on the `shm` fabric. What it returns was copied to private memory and checked there.
///
/// Send, not Sync: it may be sent to another thread, and receives on one at a time.
///
/// Dropping the subscriber detaches it. If it is the last handle of its [`Node`](crate::Node), the drop joins the node's thread,
/// and may block for up to 250 ms (over RDMA a second more, if a peer does not receive what was sent).
pub struct Subscriber<K: TopicKind, T: Payload> {
    pub(super) core: Core<K::Reader>,
    payload: PhantomData<fn() -> T>,
}

/// The values of a subscriber, one after the other: see [`Subscriber::samples`].
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
#[derive(Debug)]
pub struct Samples<'a, K: TopicKind, T: Payload> {
    subscriber: &'a mut Subscriber<K, T>,
    is_over: bool,
}

/// A kind of topic: [`StateTopic`](crate::StateTopic), [`LogTopic`](crate::LogTopic) or [`TableTopic`](crate::TableTopic). This trait
/// is sealed.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait TopicKind: Readable {}

/// The parts of a subscriber for one kind of topic.
pub(crate) trait Readable {
    /// The reader of its repositories.
    type Reader: Reader;
}

/// A subscriber of one topic: [`StateSubscriber`](crate::StateSubscriber), [`LogSubscriber`](crate::LogSubscriber),
/// [`TableSubscriber`](crate::TableSubscriber) or [`AnySubscriber`](crate::AnySubscriber). This trait is sealed.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait Subscribed: SubscriberHandle + Renewable {
    /// The type of the values that it receives.
    type Value;

    /// Receives the next value, if there is one: see [`Subscriber::try_receive`].
    ///
    /// # Errors
    ///
    /// Those of the same method there.
    fn try_next(&mut self) -> Result<Option<Sample<Self::Value>>, ReceiveError>;
}

/// A subscriber that can be [`Persistent`](crate::Persistent): one of a topic ([`Subscribed`]), or a
/// [`FeedSubscriber`](crate::FeedSubscriber). This trait is sealed.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait Renewable: RenewableHandle {}

/// What a persistent subscriber needs from the one that is attached.
pub(crate) trait RenewableHandle: Sized {
    /// Waits a little for the next value: less after it has `waited_ns`, and at most until `timeout`.
    fn wait(&mut self, waited_ns: u64, timeout: Duration) -> Result<(), FabricError>;

    /// What it has received.
    fn position(&self) -> Position;

    /// Leaves its publisher. What it has received stays known.
    fn leave(&mut self);

    /// Continues with the next subscription of the same topic or feed.
    fn renew(&mut self, next: Self, is_same_epoch: bool);

    /// Lets a waiter wait for it, or no waiter any more.
    fn join(&mut self, membership: Option<Arc<Membership>>);
}

/// What a node and an inspector need from a subscriber.
pub(crate) trait SubscriberHandle: Sized {
    /// The type of the values.
    type Payload: Payload;
    /// The options of this kind.
    type Options: Copy + fmt::Debug + Default + Into<KindOptions>;
    /// The required kind of topic; `None` for any.
    const KIND: Option<Kind>;

    /// Opens a subscriber from a grant. Its starting position is fixed on return.
    fn open(subscription: Subscription, options: Self::Options) -> Result<Self, GrantError>;

    /// The source of its bytes, its grant, and its end.
    fn subscription(&mut self) -> &mut Subscription;

    /// The repository's headers: in place, or fetched now, which blocks for a round trip. `None` for a subscriber with a landing
    /// region.
    fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError>;
}

impl<K: TopicKind, T: Payload> Subscriber<K, T> {
    /// Receives the next value, if there is one: the newest value of a state topic, if not received yet, the next record of a log,
    /// or the next change of a table. Does not block.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]. An error that names a sequence has skipped that value, one that names records reports them lost; the
    /// next call continues after them. [`ReceiveError::Ended`] or [`ReceiveError::Gone`] follows the last value, and repeats on
    /// every later call. A pull subscriber over a wire cannot read what was published just before the publisher's node died. If
    /// it has not received the last value within 5 seconds of the end, it reports [`ReceiveError::CutOff`] once, and then
    /// `Ended`.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        self.core.try_receive_decoded(|bytes, _| T::decode(bytes))
    }

    /// Receives like [`Self::try_receive`], but leaves the value as checked bytes. Decodes and allocates nothing.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`], except [`ReceiveError::Decode`].
    #[inline]
    pub fn try_receive_ref(&mut self) -> Result<Option<SampleRef<'_, T>>, ReceiveError> {
        self.core.try_receive(SampleRef::from)
    }

    /// Receives the next value, waiting up to `timeout`; `None` when it expires. Spins for 20 microseconds, and then polls ten
    /// thousand times a second, or sleeps until a read over a wire completes. A subscriber with notices sleeps until one arrives,
    /// at most 50 milliseconds at a time.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`]; `Contended` only if it lasts beyond the timeout.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        self.core.receive_timeout(timeout, |bytes, _| T::decode(bytes))
    }

    /// Returns an iterator over all further values, which waits for each without a timeout. It yields losses as errors and
    /// continues after them. It ends with the topic, and after [`ReceiveError::Gone`] and [`ReceiveError::Overtaken`].
    pub fn samples(&mut self) -> Samples<'_, K, T> {
        Samples { subscriber: self, is_over: false }
    }

    /// Returns the sequence of the last value that was received, reported lost, or skipped; [`Sequence::NONE`] before the first.
    /// For a log it begins with the record before the first to be received.
    pub fn last(&self) -> Sequence {
        self.core.reader.last()
    }

    /// Returns the newest sequence of the topic at the time of the grant.
    pub fn newest_at_start(&self) -> Sequence {
        self.core.subscription.granted.at.newest
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> SubscriberStats {
        self.core.stats()
    }

    /// Returns the kind of the topic.
    pub fn kind(&self) -> Kind {
        K::Reader::KIND
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.core.subscription.granted.topic
    }

    /// Returns the publisher's node: its name, where it is, and the key that it has proven. A program that does not want to receive from
    /// it drops the subscriber.
    pub fn peer(&self) -> Option<&Peer> {
        self.core.subscription.granted.peer.as_ref()
    }

    /// Returns how values reach the subscriber.
    pub fn delivery(&self) -> Delivery {
        self.core.subscription.granted.delivery
    }

    /// Returns the epoch of the topic.
    pub fn epoch(&self) -> Epoch {
        self.core.subscription.granted.epoch
    }

    /// Returns the incarnation of the topic.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.core.subscription.granted.incarnation
    }

    /// Returns the schema of the topic's values.
    pub fn schema(&self) -> &Schema {
        &self.core.subscription.granted.schema
    }

    /// Returns the clock of the publisher, which tells how old values are.
    pub fn publisher_clock(&self) -> PublisherClock {
        self.core.subscription.publisher_clock()
    }

    /// Returns how long values are valid: see [`lifespan`](crate::PublisherBuilder::lifespan). `None` for ever.
    pub fn lifespan(&self) -> Option<Duration> {
        let lifespan_ns = self.core.subscription.granted.lifespan_ns;
        (lifespan_ns != 0).then(|| Duration::from_nanos(lifespan_ns))
    }

    /// Returns the longest payload that the topic may have, bytes.
    pub fn payload_len_max(&self) -> usize {
        self.core.subscription.granted.geometry.payload_len_max()
    }

    /// Returns how this subscriber is notified of new values at the moment.
    pub fn notice_path(&self) -> NoticePath {
        self.core.subscription.notice_path()
    }

    /// Returns which values this subscriber receives from notices, without having read them in the publisher's memory: see
    /// [`trust_fellow_subscribers`](crate::SubscriberBuilder::trust_fellow_subscribers). Does not block.
    ///
    /// ```
    /// use fabricast::{InlineValues, Node};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
    /// let publisher = node.state_publisher::<f64>("EURUSD").open()?;
    /// let quotes = node.state_subscriber::<f64>("shm:quotes/EURUSD").notices().open()?;
    /// // On one host notices bring no values.
    /// assert_eq!(quotes.inline_values(), InlineValues::None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn inline_values(&self) -> InlineValues {
        if K::Reader::HAS_INLINE { self.core.subscription.inline_values() } else { InlineValues::None }
    }

    /// Returns this process's counts on the notice channel of this subscriber, for all subscribers of the channel. Locks briefly.
    /// All zeros without a channel.
    pub fn notice_counts(&self) -> NoticeCounts {
        self.core.subscription.notice_counts()
    }
}

impl<K: TopicKind> Subscriber<K, Raw> {
    /// Receives like [`Self::try_receive`], and decodes the value with the topic's [schema](Schema::decode). Allocates.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`].
    pub fn try_receive_value(&mut self) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        self.core.try_receive_decoded(|bytes, schema| schema.decode(bytes))
    }

    /// Receives like [`Self::receive_timeout`], and decodes the value with the topic's [schema](Schema::decode). Allocates.
    ///
    /// # Errors
    ///
    /// Those of [`Self::receive_timeout`].
    pub fn receive_value_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        self.core.receive_timeout(timeout, |bytes, schema| schema.decode(bytes))
    }
}

impl<K: TopicKind, T: Payload> Iterator for Samples<'_, K, T> {
    type Item = Result<Sample<T::Owned>, ReceiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            match self.subscriber.receive_timeout(Duration::MAX) {
                Ok(None) => {}
                Ok(Some(sample)) => return Some(Ok(sample)),
                Err(ReceiveError::Ended { .. }) => self.is_over = true,
                Err(error) => {
                    self.is_over = is_last(&error);
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl<K: TopicKind, T: Payload> Subscribed for Subscriber<K, T> {
    type Value = T::Owned;

    #[inline]
    fn try_next(&mut self) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        self.try_receive()
    }
}

impl<K: TopicKind, T: Payload> Renewable for Subscriber<K, T> {}

impl<K: TopicKind, T: Payload> RenewableHandle for Subscriber<K, T> {
    fn wait(&mut self, waited_ns: u64, timeout: Duration) -> Result<(), FabricError> {
        self.core.wait(waited_ns, timeout)
    }

    fn position(&self) -> Position {
        Position { incarnation: self.incarnation(), epoch: self.epoch(), last: self.last() }
    }

    fn leave(&mut self) {
        self.core.leave();
    }

    fn renew(&mut self, mut next: Self, is_same_epoch: bool) {
        self.core.renew(&mut next.core, is_same_epoch);
    }

    fn join(&mut self, membership: Option<Arc<Membership>>) {
        self.core.subscription.join(membership);
    }
}

impl<K: TopicKind, T: Payload> SubscriberHandle for Subscriber<K, T> {
    type Payload = T;
    type Options = <K::Reader as Reader>::Options;
    const KIND: Option<Kind> = Some(K::Reader::KIND);

    fn open(subscription: Subscription, options: Self::Options) -> Result<Self, GrantError> {
        Ok(Self { core: Core::open(subscription, options)?, payload: PhantomData })
    }

    fn subscription(&mut self) -> &mut Subscription {
        &mut self.core.subscription
    }

    fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError> {
        self.core.headers()
    }
}

impl<K: TopicKind, T: Payload> fmt::Debug for Subscriber<K, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Subscriber")
            .field("kind", &self.kind())
            .field("topic", self.topic())
            .field("delivery", &self.delivery())
            .field("inline_values", &self.inline_values())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
