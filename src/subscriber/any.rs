use std::sync::Arc;
use std::time::Duration;

use super::waiter::Membership;
use super::{
    GrantError, InlineValues, LogSubscriber, NoticePath, Position, PublisherClock, ReceiveError, Renewable,
    RenewableHandle, Sample, SampleRef, StateSubscriber, Subscribed, Subscriber, SubscriberHandle,
    Subscription,
};
use crate::control::Peer;
use crate::fabric::FabricError;
use crate::id::{Delivery, Epoch, Kind, Sequence, TopicName};
use crate::layout::Geometry;
use crate::memory::Region;
use crate::payload::{Decoded, Payload, Raw, Schema};
use crate::repository::SubscriberStats;
use crate::repository::log::LogStart;
use crate::repository::table::TableTopic;

/// A subscriber of a topic of any kind, for programs such as inspectors and recorders. The publisher's grant determines the kind.
/// It receives like a subscriber of that kind; match on it for methods of one kind only.
/// [`Node::any_subscriber`](crate::Node::any_subscriber) opens one.
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
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnySubscriber<T: Payload = Raw> {
    /// Of a state topic: the newest value.
    State(Box<StateSubscriber<T>>),
    /// Of a log topic: all records.
    Log(Box<LogSubscriber<T>>),
    /// Of a table topic: each key that changes, with its newest value.
    Table(Box<Subscriber<TableTopic, T>>),
}

/// Calls the subscriber inside, of either kind. This is the only place that names each kind.
macro_rules! inside {
    ($any:expr, $subscriber:ident => $done:expr) => {
        match $any {
            AnySubscriber::State($subscriber) => $done,
            AnySubscriber::Log($subscriber) => $done,
            AnySubscriber::Table($subscriber) => $done,
        }
    };
}
pub(super) use inside;

impl<T: Payload> AnySubscriber<T> {
    /// Does the same as [`Subscriber::try_receive`].
    ///
    /// # Errors
    ///
    /// Those of the same method there.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        inside!(self, subscriber => subscriber.try_receive())
    }

    /// Does the same as [`Subscriber::try_receive_ref`].
    ///
    /// # Errors
    ///
    /// Those of the same method there.
    #[inline]
    pub fn try_receive_ref(&mut self) -> Result<Option<SampleRef<'_, T>>, ReceiveError> {
        inside!(self, subscriber => subscriber.try_receive_ref())
    }

    /// Does the same as [`Subscriber::receive_timeout`].
    ///
    /// # Errors
    ///
    /// Those of the same method there.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        inside!(self, subscriber => subscriber.receive_timeout(timeout))
    }

    /// Does the same as [`Subscriber::last`].
    pub fn last(&self) -> Sequence {
        inside!(self, subscriber => subscriber.last())
    }

    /// Does the same as [`Subscriber::newest_at_start`].
    pub fn newest_at_start(&self) -> Sequence {
        inside!(self, subscriber => subscriber.newest_at_start())
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> SubscriberStats {
        inside!(self, subscriber => subscriber.stats())
    }

    /// Returns the kind of the topic.
    pub fn kind(&self) -> Kind {
        inside!(self, subscriber => subscriber.kind())
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &TopicName {
        inside!(self, subscriber => subscriber.topic())
    }

    /// Returns how it is notified of new values at the moment.
    pub fn notice_path(&self) -> NoticePath {
        inside!(self, subscriber => subscriber.notice_path())
    }

    /// Returns which values it receives from notices, without having read them in the publisher's memory: see
    /// [`Subscriber::inline_values`](crate::Subscriber::inline_values).
    pub fn inline_values(&self) -> InlineValues {
        inside!(self, subscriber => subscriber.inline_values())
    }

    /// Returns the clock of the publisher, which tells how old values are.
    pub fn publisher_clock(&self) -> PublisherClock {
        inside!(self, subscriber => subscriber.publisher_clock())
    }

    /// Returns how long values are valid; `None` for ever.
    pub fn lifespan(&self) -> Option<Duration> {
        inside!(self, subscriber => subscriber.lifespan())
    }

    /// Returns the publisher's node: see [`Subscriber::peer`].
    pub fn peer(&self) -> Option<&Peer> {
        inside!(self, subscriber => subscriber.peer())
    }

    /// Returns how values reach the subscriber.
    pub fn delivery(&self) -> Delivery {
        inside!(self, subscriber => subscriber.delivery())
    }

    /// Returns the epoch of the topic.
    pub fn epoch(&self) -> Epoch {
        inside!(self, subscriber => subscriber.epoch())
    }

    /// Returns the schema of the topic's values: [`Schema::decode`] decodes the bytes that an [`AnySubscriber<Raw>`] receives.
    pub fn schema(&self) -> &Schema {
        inside!(self, subscriber => subscriber.schema())
    }
}

impl AnySubscriber<Raw> {
    /// Does the same as [`Subscriber::try_receive_value`].
    ///
    /// # Errors
    ///
    /// Those of the same method there.
    pub fn try_receive_value(&mut self) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        inside!(self, subscriber => subscriber.try_receive_value())
    }

    /// Does the same as [`Subscriber::receive_value_timeout`].
    ///
    /// # Errors
    ///
    /// Those of the same method there.
    pub fn receive_value_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        inside!(self, subscriber => subscriber.receive_value_timeout(timeout))
    }
}

impl<T: Payload> Subscribed for AnySubscriber<T> {
    type Value = T::Owned;

    #[inline]
    fn try_next(&mut self) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        self.try_receive()
    }
}

impl<T: Payload> Renewable for AnySubscriber<T> {}

impl<T: Payload> RenewableHandle for AnySubscriber<T> {
    fn wait(&mut self, waited_ns: u64, timeout: Duration) -> Result<(), FabricError> {
        inside!(self, subscriber => subscriber.wait(waited_ns, timeout))
    }

    fn position(&self) -> Position {
        inside!(self, subscriber => subscriber.position())
    }

    fn leave(&mut self) {
        inside!(self, subscriber => subscriber.leave());
    }

    fn renew(&mut self, next: Self, is_same_epoch: bool) {
        match (self, next) {
            (Self::State(subscriber), Self::State(next)) => subscriber.renew(*next, is_same_epoch),
            (Self::Log(subscriber), Self::Log(next)) => subscriber.renew(*next, is_same_epoch),
            (Self::Table(subscriber), Self::Table(next)) => subscriber.renew(*next, is_same_epoch),
            // The next publisher's topic is of another kind.
            (subscriber, next) => *subscriber = next,
        }
    }

    fn join(&mut self, membership: Option<Arc<Membership>>) {
        inside!(self, subscriber => subscriber.join(membership));
    }
}

impl<T: Payload> SubscriberHandle for AnySubscriber<T> {
    type Payload = T;
    type Options = LogStart;
    const KIND: Option<Kind> = None;

    fn open(subscription: Subscription, start: LogStart) -> Result<Self, GrantError> {
        Ok(match subscription.granted.geometry {
            Geometry::State(_) => Self::State(Box::new(SubscriberHandle::open(subscription, ())?)),
            Geometry::Log(_) => Self::Log(Box::new(SubscriberHandle::open(subscription, start)?)),
            Geometry::Table(_) => Self::Table(Box::new(SubscriberHandle::open(subscription, ())?)),
        })
    }

    fn subscription(&mut self) -> &mut Subscription {
        inside!(self, subscriber => subscriber.subscription())
    }

    fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError> {
        inside!(self, subscriber => subscriber.headers())
    }
}
