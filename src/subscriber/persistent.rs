use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use super::deadline::{judged, within};
use super::iterate::endlessly;
use super::waiter::{Condition, Membership};
use super::{
    AnySubscriber, Change, Deadline, FeedEvent, FeedSubscriber, FeedUpdate, Position, ReceiveError,
    Renewable, Sample, Subscribed, SubscriberError, TableSubscriber,
};
use crate::clock::{Clock, saturate};
use crate::fabric::{KeyedWaker, Target};
use crate::id::Sequence;
use crate::limits;
use crate::payload::{Decoded, Raw};

/// How often a receive that waits checks whether the publisher was found.
pub(super) const SEEK_PAUSE: Duration = Duration::from_millis(1);

/// A subscriber that outlives its publishers: when its publisher dies, stops or cannot be reached, it finds the next publisher of the
/// topic at the same address, and continues. It never ends.
///
/// [`persistent`](crate::SubscriberBuilder::persistent) begins one of a state, a log, a table, or any of them, and
/// [`persistent`](crate::FeedSubscriberBuilder::persistent) one of a feed. The topic need not exist yet when it is opened. It receives
/// like the subscriber `S`, with these differences:
///
/// - [`ReceiveError::Ended`] and [`ReceiveError::Gone`] are not reported. The subscriber seeks the publisher instead, in the
///   background: at once, and then again and again after growing, random pauses, so that a crowd of subscribers does not attach at the
///   same moment. The node's [events](crate::EventSink) say when a publisher was lost and found.
/// - A connection that breaks does not mean that the publisher is lost. If the same publisher is reached at once, the subscriber
///   continues, and the only event is [`Event::Reconnected`](crate::Event::Reconnected).
/// - If the publisher that is found has the same [epoch](crate::Epoch), for example because only the connection was lost, the subscriber
///   continues after the last value received, and receives nothing twice. Records of a log that it missed are received as far as the
///   publisher still has them, and the others are reported lost. Of a table it receives the keys that have changed or are gone.
/// - If that publisher has another epoch, its values have nothing to do with the earlier ones. [`ReceiveError::Restarted`] is reported
///   once, before the first of its values: discard what earlier ones added up to. A log begins with sequence 1, and what the
///   publisher does not have from there on is reported lost; a table with all keys, a feed with the values of all keys.
/// - [`ReceiveError::Overtaken`] is reported once. The subscriber then attaches to the same publisher again and continues after the last
///   record; those that were overwritten meanwhile are reported lost.
/// - An error that another attempt is not likely to mend, for example that the topic now has another type, is reported once
///   ([`ReceiveError::NotResumed`]). The subscriber still seeks.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::{Node, ReceiveError};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut trades = node.log_subscriber::<u64>("shm:exchange/trades").persistent().open()?;
/// assert!(!trades.is_attached() && trades.open_error().is_some_and(|error| error.is_transient()));
///
/// let timeout = Duration::from_secs(5);
/// for day in 1..3 {
///     let exchange = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
///     let mut publisher = exchange.log_publisher::<u64>("trades").open()?;
///     publisher.publish(&day)?;
///     let trade = match trades.receive_timeout(timeout) {
///         Err(ReceiveError::Restarted { .. }) => trades.receive_timeout(timeout)?,
///         trade => trade?,
///     };
///     assert_eq!(trade.map(|trade| trade.value), Some(day));
/// }
/// # Ok(())
/// # }
/// ```
///
/// Send, not Sync: it may be sent to another thread, and receives on one at a time.
pub struct Persistent<S: Renewable> {
    /// The one attached, or attached last.
    subscriber: Option<S>,
    is_attached: bool,
    /// The last publisher ended the topic in order.
    has_ended: bool,
    deadline: Option<Deadline>,
    seek: Box<dyn Seek<S>>,
    /// The next subscription begins as one of another epoch does.
    begins_anew: bool,
    /// Later subscriptions go on after this value at the latest.
    resumes_after_max: Sequence,
    /// Why the first attempt failed, until it is attached.
    open_error: Option<SubscriberError>,
    /// For the first subscriber: the last one that the program made.
    setting: Option<Setting<S>>,
    /// What waits for it among others.
    membership: Option<Arc<Membership>>,
}

/// What the program wants of the first subscriber.
type Setting<S> = Box<dyn FnOnce(&mut S) + Send>;

/// Finds a subscription again. Every method returns at once.
pub(crate) trait Seek<S>: Send {
    /// Begins to seek: the subscription that had received this much ended, for this reason.
    fn begin(&mut self, lost: Position, reason: &ReceiveError);

    /// The subscription, once it is found. Returns an error that another attempt may not mend once, and continues to seek.
    fn poll(&mut self) -> Option<Result<S, SubscriberError>>;

    /// Begins to seek what was found before, as if nothing had been received.
    fn begin_anew(&mut self);

    /// Whether the connection broke, and an attempt to reach the same publisher is awaited.
    fn is_suspected(&self) -> bool;

    /// How often a publisher was lost.
    fn outages(&self) -> u64;

    /// What it seeks.
    fn target(&self) -> &Target;

    /// The node's clock.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// Wakes by this from now on, when the subscription is found.
    fn wake_with(&mut self, waker: Option<KeyedWaker>);
}

impl<S: Renewable> Persistent<S> {
    /// Creates a subscriber that is attached, or is sought already because of an error.
    pub(crate) fn new(opened: Result<S, SubscriberError>, seek: Box<dyn Seek<S>>) -> Self {
        let is_attached = opened.is_ok();
        let (subscriber, open_error) = match opened {
            Ok(subscriber) => (Some(subscriber), None),
            Err(error) => (None, Some(error)),
        };
        let (has_ended, setting) = (false, None);
        let resumes_after_max = Sequence::new(u64::MAX);
        Self {
            subscriber,
            is_attached,
            has_ended,
            deadline: None,
            seek,
            begins_anew: false,
            resumes_after_max,
            open_error,
            setting,
            membership: None,
        }
    }

    /// Sets after which time without a value that is reported, from now on.
    pub(crate) fn expect_within(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = Deadline::begin(deadline, self.seek.clock());
        self
    }

    /// Receives by another method of the subscriber, which must not wait: for values in a form that [`Self::try_receive`] does not have.
    /// Does not block. `None` while it is not attached.
    ///
    /// ```
    /// use fabricast::Node;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
    /// let mut publisher = node.state_publisher::<String>("EURUSD").open()?;
    /// publisher.publish(&"1.0841".to_owned())?;
    /// let mut quotes = node.state_subscriber::<String>("shm:quotes/EURUSD").persistent().open()?;
    /// let len = quotes.try_receive_with(|quotes| Ok(quotes.try_receive_ref()?.map(|sample| sample.bytes.len())))?;
    /// assert_eq!(len, Some(8 + 6));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`].
    pub fn try_receive_with<V>(
        &mut self,
        receive: impl FnOnce(&mut S) -> Result<Option<V>, ReceiveError>,
    ) -> Result<Option<V>, ReceiveError> {
        self.receive_by(receive)
    }

    /// Returns what it subscribes to.
    pub fn target(&self) -> &Target {
        self.seek.target()
    }

    /// Returns whether it is attached to a publisher, as far as it knows: it finds out with the next receive.
    pub fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Returns whether the last publisher ended the topic in order, and no other was found since.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns how often a publisher was lost: it stopped, died, or was not reached again soon after the connection to it broke.
    pub fn outages(&self) -> u64 {
        self.seek.outages()
    }

    /// Returns the subscriber that is attached, or was last; `None` before the first publisher was found. It has the topic's name,
    /// schema and epoch. Its [counts](crate::Subscriber::stats) are those of all publishers.
    pub fn current(&self) -> Option<&S> {
        self.subscriber.as_ref()
    }

    /// Returns the same for methods that change it, such as [`TableSubscriber::snapshot`], or for [`Liveness`](crate::Liveness). A
    /// value that it receives directly is not received again. If it reports its end, the next receive here begins to seek.
    pub fn current_mut(&mut self) -> Option<&mut S> {
        self.subscriber.as_mut()
    }

    /// Returns why the attempt to attach failed when it was opened; `None` once it has attached to a publisher.
    pub fn open_error(&self) -> Option<&SubscriberError> {
        self.open_error.as_ref()
    }

    /// Chooses which keys of a table or a feed the subscriber receives, now or, if no publisher was found yet, once the first one is. Then
    /// only the last choice is applied: a call replaces what earlier ones chose. Later subscribers take the keys over.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let node = fabricast::Node::builder().runtime_dir(dir.path()).open()?;
    /// let mut quotes = node.table_subscriber::<String, f64>("shm:quotes/fx").persistent().open()?;
    /// quotes.configure(|table| table.only_prefix("EUR"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn configure(&mut self, setting: impl FnOnce(&mut S) + Send + 'static) {
        match &mut self.subscriber {
            Some(subscriber) => setting(subscriber),
            None => self.setting = Some(Box::new(setting)),
        }
    }

    /// Attaches to a publisher that was found, of whatever epoch. Returns whether it is attached.
    pub(super) fn seek_now(&mut self) -> Result<bool, ReceiveError> {
        if !self.is_attached {
            match self.attach() {
                Ok(()) | Err(ReceiveError::Restarted { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.is_attached)
    }

    /// Has later subscriptions go on after this value at the latest: others after it were not received.
    #[inline]
    pub(super) fn resume_after_at_most(&mut self, last: Sequence) {
        self.resumes_after_max = last;
    }

    /// Leaves its publisher, and seeks it as if nothing had been received.
    pub(super) fn start_over(&mut self) {
        if self.is_attached {
            (self.is_attached, self.begins_anew) = (false, true);
            // It may have the only place that the publisher has for subscribers for which it waits.
            self.subscriber.iter_mut().for_each(S::leave);
            self.seek.begin_anew();
        }
    }

    /// Whether only the connection may be lost: an attempt to reach the same publisher is awaited.
    pub(super) fn is_reconnecting(&self) -> bool {
        !self.is_attached && self.subscriber.is_some() && self.seek.is_suspected()
    }

    /// Receives by this method of the subscriber.
    pub(super) fn receive_by<V>(
        &mut self,
        receive: impl FnOnce(&mut S) -> Result<Option<V>, ReceiveError>,
    ) -> Result<Option<V>, ReceiveError> {
        let received = self.receive_any(receive);
        if let (Ok(None), Some(deadline)) = (&received, &self.deadline) {
            self.rest_until(deadline.left_ns());
        }
        judged(&mut self.deadline, received)
    }

    fn receive_any<V>(
        &mut self,
        receive: impl FnOnce(&mut S) -> Result<Option<V>, ReceiveError>,
    ) -> Result<Option<V>, ReceiveError> {
        if !self.is_attached {
            self.attach()?;
        }
        let Some(subscriber) = self.subscriber.as_mut().filter(|_| self.is_attached) else {
            self.rest_for(limits::RECONNECT_NS);
            return Ok(None);
        };
        match receive(subscriber) {
            Err(
                end @ (ReceiveError::Ended { .. }
                | ReceiveError::Gone { .. }
                | ReceiveError::Overtaken { .. }),
            ) => {
                self.is_attached = false;
                self.has_ended = matches!(end, ReceiveError::Ended { .. });
                let position = subscriber.position();
                let last = position.last.min(self.resumes_after_max);
                self.seek.begin(Position { last, ..position }, &end);
                self.rest_for(limits::RECONNECT_NS);
                // The program asked for it. What it has lost by then is reported once it is attached again.
                if matches!(end, ReceiveError::Overtaken { .. }) { Err(end) } else { Ok(None) }
            }
            // The session reports its end soon.
            Err(ReceiveError::Fabric(error)) if error.ends_connection() => {
                self.rest_for(limits::WAITER_POLL_NS);
                Ok(None)
            }
            received => received,
        }
    }

    /// Lets a waiter wait for it, or no waiter any more.
    pub(super) fn join(&mut self, membership: Option<Arc<Membership>>) {
        self.seek.wake_with(membership.as_ref().and_then(|membership| membership.waker()));
        if let Some(subscriber) = &mut self.subscriber {
            subscriber.join(membership.clone());
        }
        self.membership = membership;
    }

    /// Tells its waiter to poll it again soon: what it waits for wakes nobody. `at_all`: even if it rests already.
    pub(super) fn rest_soon(&self, at_all: bool) {
        if let Some(membership) =
            self.membership.as_ref().filter(|membership| at_all || membership.is_ready())
        {
            membership.rest_anew(self.seek.clock().monotonic_ns().saturating_add(limits::WAITER_POLL_NS));
        }
    }

    /// Tells its waiter within how many nanoseconds the program expects a value.
    pub(super) fn rest_until(&self, left_ns: Option<u64>) {
        if let Some(membership) = &self.membership {
            membership.expect_within(left_ns);
        }
    }

    /// Tells its waiter to look again after so many nanoseconds, unless it is woken.
    fn rest_for(&self, after_ns: u64) {
        if let Some(membership) = &self.membership {
            membership.rest(Condition::At(self.seek.clock().monotonic_ns().saturating_add(after_ns)));
        }
    }

    /// Waits up to `timeout` until this receives something.
    pub(super) fn wait_for<V>(
        &mut self,
        timeout: Duration,
        receive: impl Fn(&mut Self) -> Result<Option<V>, ReceiveError>,
    ) -> Result<Option<V>, ReceiveError> {
        let clock = Arc::clone(self.seek.clock());
        let mut began_ns = None;
        loop {
            let received = receive(self);
            if !matches!(received, Ok(None) | Err(ReceiveError::Contended { .. })) {
                return received;
            }
            let now_ns = clock.monotonic_ns();
            let waited_ns = now_ns.saturating_sub(*began_ns.get_or_insert(now_ns));
            if waited_ns >= saturate(timeout) {
                return received;
            }
            let timeout = within(self.deadline.as_ref(), waited_ns, timeout);
            match self.subscriber.as_mut().filter(|_| self.is_attached) {
                Some(subscriber) => match subscriber.wait(waited_ns, timeout) {
                    // The session reports its end soon.
                    Err(error) if error.ends_connection() => clock.pause(SEEK_PAUSE),
                    waited => waited?,
                },
                None => clock.pause(SEEK_PAUSE.min(timeout.saturating_sub(Duration::from_nanos(waited_ns)))),
            }
        }
    }

    /// Attaches to a publisher that was found.
    #[cold]
    fn attach(&mut self) -> Result<(), ReceiveError> {
        let mut next = match self.seek.poll() {
            None => return Ok(()),
            Some(Err(source)) => return Err(ReceiveError::NotResumed { source: Box::new(source) }),
            Some(Ok(next)) => next,
        };
        (self.is_attached, self.has_ended, self.open_error) = (true, false, None);
        next.join(self.membership.clone());
        let Some(subscriber) = &mut self.subscriber else {
            self.setting.take().into_iter().for_each(|setting| setting(&mut next));
            self.subscriber = Some(next);
            return Ok(());
        };
        let (Position { epoch: before, last, .. }, Position { epoch, .. }) =
            (subscriber.position(), next.position());
        let begins_anew = std::mem::take(&mut self.begins_anew);
        subscriber.renew(next, epoch == before && !begins_anew);
        subscriber.join(self.membership.clone());
        if epoch == before { Ok(()) } else { Err(ReceiveError::Restarted { epoch, before, last }) }
    }
}

impl<S: Subscribed> Persistent<S> {
    /// Receives the next value, if there is one, like [`Subscriber::try_receive`](crate::Subscriber::try_receive). Does not block.
    ///
    /// # Errors
    ///
    /// Those of the same method there, except [`ReceiveError::Ended`] and [`ReceiveError::Gone`]; [`ReceiveError::Restarted`] and
    /// [`ReceiveError::NotResumed`]. The next call continues after them.
    pub fn try_receive(&mut self) -> Result<Option<Sample<S::Value>>, ReceiveError> {
        self.receive_by(S::try_next)
    }

    /// Receives the next value, waiting up to `timeout` for it, or for a publisher and it; `None` when it expires. Waits like
    /// [`Subscriber::receive_timeout`](crate::Subscriber::receive_timeout) while it is attached.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`]; `Contended` only if it lasts beyond the timeout.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Sample<S::Value>>, ReceiveError> {
        self.wait_for(timeout, Self::try_receive)
    }

    /// Returns an iterator over all further values, which waits for each without a timeout. It yields errors and continues after them,
    /// and never ends.
    pub fn samples(&mut self) -> impl Iterator<Item = Result<Sample<S::Value>, ReceiveError>> + '_ {
        endlessly(|| self.receive_timeout(Duration::MAX))
    }
}

impl<K, V> Persistent<TableSubscriber<K, V>>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Receives the next change, if there is one, like [`TableSubscriber::try_change`]. Does not block.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`].
    pub fn try_change(&mut self) -> Result<Option<Change<K, V>>, ReceiveError> {
        self.receive_by(TableSubscriber::try_change)
    }

    /// Receives the next change, waiting up to `timeout`, like [`Self::receive_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::receive_timeout`].
    pub fn change_timeout(&mut self, timeout: Duration) -> Result<Option<Change<K, V>>, ReceiveError> {
        self.wait_for(timeout, Self::try_change)
    }
}

impl<K, R, V> Persistent<FeedSubscriber<K, R, V>>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Receives the next update, if there is one, like [`FeedSubscriber::try_update`].
    ///
    /// # Errors
    ///
    /// Those of the same method there, except [`ReceiveError::Ended`] and [`ReceiveError::Gone`]; [`ReceiveError::Restarted`] and
    /// [`ReceiveError::NotResumed`].
    pub fn try_update(&mut self) -> Result<Option<FeedUpdate<K, R, V>>, ReceiveError> {
        self.receive_by(FeedSubscriber::try_update)
    }

    /// Receives the next update, waiting up to `timeout` for it, or for a publisher and it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_update`].
    pub fn update_timeout(&mut self, timeout: Duration) -> Result<Option<FeedUpdate<K, R, V>>, ReceiveError> {
        self.wait_for(timeout, Self::try_update)
    }

    /// Receives the next event, if all of it is available, like [`FeedSubscriber::try_event`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_update`].
    pub fn try_event(&mut self) -> Result<Option<FeedEvent<K, R, V>>, ReceiveError> {
        self.receive_by(FeedSubscriber::try_event)
    }

    /// Receives the next event, waiting up to `timeout` for it, or for a publisher and it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_update`].
    pub fn event_timeout(&mut self, timeout: Duration) -> Result<Option<FeedEvent<K, R, V>>, ReceiveError> {
        self.wait_for(timeout, Self::try_event)
    }

    /// Returns an iterator over all further updates, which waits for each without a timeout. It yields losses as errors and continues
    /// after them. It never ends.
    pub fn updates(&mut self) -> impl Iterator<Item = Result<FeedUpdate<K, R, V>, ReceiveError>> + '_ {
        endlessly(|| self.update_timeout(Duration::MAX))
    }

    /// Returns an iterator over all further events, like [`Self::updates`].
    pub fn events(&mut self) -> impl Iterator<Item = Result<FeedEvent<K, R, V>, ReceiveError>> + '_ {
        endlessly(|| self.event_timeout(Duration::MAX))
    }
}

impl Persistent<AnySubscriber<Raw>> {
    /// Receives like [`Self::receive_timeout`], and decodes the value with the topic's [schema](crate::Schema::decode). Allocates.
    ///
    /// # Errors
    ///
    /// Those of [`Self::receive_timeout`].
    pub fn receive_value_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        self.wait_for(timeout, |persistent| persistent.receive_by(AnySubscriber::try_receive_value))
    }
}

impl<S: Renewable> fmt::Debug for Persistent<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Persistent")
            .field("target", self.target())
            .field("is_attached", &self.is_attached)
            .finish_non_exhaustive()
    }
}
