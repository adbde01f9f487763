use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::Subscriber;
use super::{
    GrantError, LogSubscriber, ReceiveError, Sample, SampleRef, StateSubscriber, Subscribed,
    SubscriberHandle, Subscription,
};
use crate::fabric::FabricError;
use crate::id::{Delivery, Epoch, Kind, Sequence, TopicName};
use crate::layout::Geometry;
use crate::memory::Region;
use crate::payload::{Decoded, Payload, Raw, Schema};
use crate::repository::SubscriberStats;
use crate::repository::log::LogStart;

/// A subscriber of a topic whose kind nobody knew before it was attached, as an inspector or a recorder has it.
///
/// It attaches once, and so is counted once by the publisher: the grant says the kind. It receives as a subscriber of that kind
/// does; match on it for what that kind alone has. [`Node::any_subscriber`](crate::Node::any_subscriber) opens one.
///
/// ```
/// use fabricast::{Decoded, Node, Raw};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let mut trades = publishing.log_publisher::<(u64, String)>("trades").open()?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut subscriber = node.any_subscriber::<Raw>("shm:exchange/trades").open()?;
/// trades.publish(&(30, "EUR".to_owned()))?;
/// let sample = subscriber.try_receive_value()?.ok_or("nothing published")?;
/// assert_eq!((subscriber.kind().to_string().as_str(), sample.meta.sequence.get()), ("log", 1));
/// let Decoded::Value(value) = sample.value else { return Err("a topic of raw bytes".into()) };
/// assert_eq!(value.to_string(), r#"[30,"EUR"]"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnySubscriber<T: Payload = Raw> {
    /// Of a state topic: the newest value.
    State(Box<StateSubscriber<T>>),
    /// Of a log topic: all records.
    Log(Box<LogSubscriber<T>>),
}

/// Does the same with the subscriber inside, of whatever kind it is: here alone each kind is named.
macro_rules! inside {
    ($any:expr, $subscriber:ident => $done:expr) => {
        match $any {
            Self::State($subscriber) => $done,
            Self::Log($subscriber) => $done,
        }
    };
}

impl<T: Payload> AnySubscriber<T> {
    /// As [`Subscriber::try_receive`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        inside!(self, subscriber => subscriber.try_receive())
    }

    /// As [`Subscriber::try_receive_ref`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn try_receive_ref(&mut self) -> Result<Option<SampleRef<'_, T>>, ReceiveError> {
        inside!(self, subscriber => subscriber.try_receive_ref())
    }

    /// As [`Subscriber::receive_timeout`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        inside!(self, subscriber => subscriber.receive_timeout(timeout))
    }

    /// As [`Subscriber::last`].
    pub fn last(&self) -> Sequence {
        inside!(self, subscriber => subscriber.last())
    }

    /// As [`Subscriber::newest_at_start`].
    pub fn newest_at_start(&self) -> Sequence {
        inside!(self, subscriber => subscriber.newest_at_start())
    }

    /// What has been counted so far.
    pub fn stats(&self) -> SubscriberStats {
        inside!(self, subscriber => subscriber.stats())
    }

    /// The kind of the topic.
    pub fn kind(&self) -> Kind {
        inside!(self, subscriber => subscriber.kind())
    }

    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        inside!(self, subscriber => subscriber.topic())
    }

    /// How values travel.
    pub fn delivery(&self) -> Delivery {
        inside!(self, subscriber => subscriber.delivery())
    }

    /// The incarnation of the topic that this subscribes to.
    pub fn epoch(&self) -> Epoch {
        inside!(self, subscriber => subscriber.epoch())
    }

    /// The description of the topic's values: [`Schema::decode`] makes values of the bytes that an [`AnySubscriber<Raw>`] receives.
    pub fn schema(&self) -> &Schema {
        inside!(self, subscriber => subscriber.schema())
    }
}

impl AnySubscriber<Raw> {
    /// As [`Subscriber::try_receive_value`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_receive_value(&mut self) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        inside!(self, subscriber => subscriber.try_receive_value())
    }

    /// As [`Subscriber::receive_value_timeout`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn receive_value_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        inside!(self, subscriber => subscriber.receive_value_timeout(timeout))
    }
}

impl<T: Payload> Subscribed for AnySubscriber<T> {}

impl<T: Payload> SubscriberHandle for AnySubscriber<T> {
    type Payload = T;
    type Options = LogStart;
    const KIND: Option<Kind> = None;

    fn open(subscription: Subscription, start: LogStart) -> Result<Self, GrantError> {
        Ok(match subscription.granted().geometry {
            Geometry::State(_) => Self::State(Box::new(SubscriberHandle::open(subscription, ())?)),
            Geometry::Log(_) => Self::Log(Box::new(SubscriberHandle::open(subscription, start)?)),
        })
    }

    fn subscription(&mut self) -> &mut Subscription {
        inside!(self, subscriber => subscriber.subscription())
    }

    fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError> {
        inside!(self, subscriber => subscriber.headers())
    }
}
