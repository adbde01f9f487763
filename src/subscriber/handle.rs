use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::{GrantError, NoticePath, ReceiveError, Sample, SampleRef, Subscription};
use crate::fabric::FabricError;
use crate::id::{Delivery, Epoch, Kind, KindOptions, Sequence, TopicName};
use crate::memory::Region;
use crate::notice::NoticeCounts;
use crate::payload::{Decoded, Payload, Raw, Schema};
use crate::repository::{Reader, SubscriberStats};

/// A subscriber of a topic of one kind: a [`StateSubscriber`](crate::StateSubscriber) or a
/// [`LogSubscriber`](crate::LogSubscriber).
///
/// A receive neither allocates (beyond what decoding the value does), nor locks, nor calls the operating system
/// on the `shm` fabric. What it returns was copied to private memory and checked there.
///
/// It is `Send` and not `Sync`: it may be sent to another thread, and receives on one at a time.
///
/// Dropping the subscriber detaches it. If it is the last handle of its [`Node`](crate::Node), the drop joins the node's
/// thread, and may block for up to 250 ms (over RDMA a second more, where a peer does not take what was sent).
pub struct Subscriber<K: TopicKind, T: Payload> {
    pub(super) core: Core<K::Reader>,
    payload: PhantomData<fn() -> T>,
}

/// The values of a subscriber, one after the other: see [`Subscriber::samples`].
#[derive(Debug)]
pub struct Samples<'a, K: TopicKind, T: Payload> {
    subscriber: &'a mut Subscriber<K, T>,
    is_over: bool,
}

/// A kind of topic: [`StateTopic`](crate::StateTopic) or [`LogTopic`](crate::LogTopic). Nothing else can be.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait TopicKind: Readable {}

/// What a subscriber of a kind of topic is made of.
pub(crate) trait Readable {
    /// What reads its repositories.
    type Reader: Reader;
}

/// What subscribes to topics: a [`StateSubscriber`](crate::StateSubscriber), a [`LogSubscriber`](crate::LogSubscriber), or an
/// [`AnySubscriber`](crate::AnySubscriber). Nothing else can.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait Subscribed: SubscriberHandle {}

/// What a node and an inspector ask of a subscriber.
pub(crate) trait SubscriberHandle: Sized {
    /// The type of the values.
    type Payload: Payload;
    /// What a subscriber of this kind may choose.
    type Options: Copy + fmt::Debug + Default + Into<KindOptions>;
    /// What the topic has to be; `None` for whatever it is.
    const KIND: Option<Kind>;

    /// The subscriber of what was granted. Where it begins is settled when this returns.
    fn open(subscription: Subscription, options: Self::Options) -> Result<Self, GrantError>;

    /// Where its bytes come from, what was granted, and how it ended.
    fn subscription(&mut self) -> &mut Subscription;

    /// The repository's headers: in place, or fetched just now, which blocks for a round trip. `None` for a subscriber
    /// that has a landing region.
    fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError>;
}

impl<K: TopicKind, T: Payload> Subscriber<K, T> {
    /// The next value, if there is one: of a state topic the newest value, if it is newer than the one before; of a log the next
    /// record. Does not block.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]. Those that name a sequence passed that value over, and those that name records of a log tell which are
    /// missing before the next one: the next call goes on behind them. [`ReceiveError::Ended`] and [`ReceiveError::Gone`] come
    /// after the last value, and from then on always. A subscriber by pull over a wire cannot read what was published just before
    /// the publisher's node was gone. One that has not received the last value within
    /// 5 seconds of the end gets [`ReceiveError::CutOff`], once, and then `Ended`.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        self.core.try_receive_decoded(|bytes, _| T::decode(bytes))
    }

    /// As [`Self::try_receive`], but the value is left as bytes where it was checked: nothing is decoded, and
    /// nothing allocated.
    ///
    /// # Errors
    ///
    /// As [`Self::try_receive`], but for [`ReceiveError::Decode`].
    #[inline]
    pub fn try_receive_ref(&mut self) -> Result<Option<SampleRef<'_, T>>, ReceiveError> {
        Ok(self.core.try_receive()?.map(SampleRef::from))
    }

    /// The next value, waiting for it up to `timeout`; `None` when the time is over. Polls without pause for 20 microseconds, then
    /// ten thousand times a second; for what is being fetched over a wire it waits. One that asked for notices sleeps until one
    /// comes, or for 50 milliseconds at a time.
    ///
    /// # Errors
    ///
    /// As [`Self::try_receive`]; `Contended` only if it lasts beyond the timeout.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        self.core.receive_timeout(timeout, |bytes, _| T::decode(bytes))
    }

    /// All values from the next one on, each as [`Self::receive_timeout`] gives it without a limit of time. Losses are errors in
    /// it, and it goes on behind them. It is over when the topic has ended, and after [`ReceiveError::Gone`].
    pub fn samples(&mut self) -> Samples<'_, K, T> {
        Samples { subscriber: self, is_over: false }
    }

    /// The sequence of the last value that was received, reported as missing, or passed over; [`Sequence::NONE`] before the first.
    /// Of a log at first that of the record before the one it begins with.
    pub fn last(&self) -> Sequence {
        self.core.reader.last()
    }

    /// The newest sequence of the topic when this subscriber was granted it.
    pub fn newest_at_start(&self) -> Sequence {
        self.core.subscription.granted.newest
    }

    /// What has been counted so far.
    pub fn stats(&self) -> SubscriberStats {
        self.core.stats()
    }

    /// The kind of the topic.
    pub fn kind(&self) -> Kind {
        K::Reader::KIND
    }

    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.core.subscription.granted.topic
    }

    /// How values travel.
    pub fn delivery(&self) -> Delivery {
        self.core.subscription.granted.delivery
    }

    /// The incarnation of the topic that this subscribes to.
    pub fn epoch(&self) -> Epoch {
        self.core.subscription.granted.epoch
    }

    /// The description of the topic's values.
    pub fn schema(&self) -> &Schema {
        &self.core.subscription.granted.schema
    }

    /// The longest payload that the topic may have, bytes.
    pub fn payload_len_max(&self) -> usize {
        self.core.subscription.granted.geometry.payload_len_max()
    }

    /// How this subscriber is notified of new values, at this moment.
    pub fn notice_path(&self) -> NoticePath {
        self.core.subscription.notice_path()
    }

    /// What this process has counted on the channel of notices that this subscriber listens to, for all who do. Locks for a
    /// moment. All zeros where there is no channel.
    pub fn notice_counts(&self) -> NoticeCounts {
        self.core.subscription.notice_counts()
    }
}

impl<K: TopicKind> Subscriber<K, Raw> {
    /// As [`Self::try_receive`], with the value decoded by the topic's [schema](Schema::decode). Allocates.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_receive_value(&mut self) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        self.core.try_receive_decoded(|bytes, schema| schema.decode(bytes))
    }

    /// As [`Self::receive_timeout`], with the value decoded by the topic's [schema](Schema::decode). Allocates.
    ///
    /// # Errors
    ///
    /// As there.
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
                    self.is_over = matches!(error, ReceiveError::Gone { .. });
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl<K: TopicKind, T: Payload> Subscribed for Subscriber<K, T> {}

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
        self.core.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AnySubscriber, Listener, ListenerBuilder, LogSubscriber, LogTopic, StateSubscriber, SubscriberBuilder,
    };

    /// As their documentation says.
    #[test]
    fn subscribers_are_sent_to_other_threads_and_what_they_give_is_shared() {
        fn is_sent<T: Send + 'static>() {}
        fn is_shared<T: Send + Sync + 'static>() {}
        is_sent::<StateSubscriber<Raw>>();
        is_sent::<LogSubscriber<Raw>>();
        is_sent::<AnySubscriber<Raw>>();
        is_sent::<Samples<'static, LogTopic, Raw>>();
        is_shared::<SampleRef<'static, Raw>>();
        is_shared::<Sample<Decoded>>();
        is_shared::<Listener<AnySubscriber<Raw>>>();
        is_shared::<SubscriberBuilder<'static, LogSubscriber<Raw>>>();
        is_shared::<ListenerBuilder<'static, StateSubscriber<Raw>>>();
    }
}
