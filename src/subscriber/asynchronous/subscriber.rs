use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use futures_core::stream::FusedStream;
use tokio::task::coop;

use super::receive::AsyncReceive;
use super::registered::{AsyncError, Registered};
use crate::limits;
use crate::subscriber::waiter::Waiter;
use crate::subscriber::{ReceiveError, Waitable};

/// Polls in a row that find nothing although something seemed new.
const POLLS_MAX: u32 = 3;

/// A subscriber whose values a task of tokio awaits. Requires the cargo feature `tokio`.
///
/// `into_async` of any subscriber makes one: of a topic or a feed, also of [several lines](crate::Lines), and of a
/// [persistent](crate::Persistent) one. It is a [`Stream`], too. `open_async` of a builder opens a subscriber without blocking the task.
///
/// ```
/// use fabricast::{Node, ReceiveError};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = node.log_publisher::<u64>("trades").open()?;
///
/// let trades = node.log_subscriber::<u64>("shm:exchange/trades").open_async().await?;
/// let mut trades = trades.into_async()?;
/// publisher.publish_batch(&[10, 20])?;
/// drop(publisher);
/// assert_eq!(trades.receive().await?.value, 10);
/// assert_eq!(trades.receive().await?.value, 20);
/// assert!(matches!(trades.receive().await, Err(ReceiveError::Ended { .. })));
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// Every future of this type may be dropped at any time, for example by `select!` or a timeout. A value is taken in the same call of
/// `poll` that returns it: a future that was dropped before has taken none, and the next one receives it.
///
/// The subscription belongs to this value, not to its futures, which only borrow it; so they leave nothing behind. When this value is
/// dropped, the subscriber detaches as it does elsewhere. Its node keeps a landing region, and a read in flight its memory, until the
/// publisher has confirmed that it writes no more, or the adapter has completed or the session is over: what may still be written is
/// not freed.
///
/// # Fairness
///
/// Each value takes a unit of tokio's [cooperative budget](tokio::task::coop). A task that receives without a pause yields to the
/// others of its thread after 128 of them.
///
/// # Cost
///
/// On the publisher's host a value wakes the task through a socket, as it does a [`WaitSet`](crate::WaitSet), and a task that waits costs
/// nothing. A value that is there is received without a system call. Each takes three descriptors of its own, and two for the session
/// with its publisher's node; for thousands of subscribers an [`AsyncWaitSet`](crate::AsyncWaitSet) takes them once. Over RDMA a
/// subscriber is woken by notices and by reads that complete, or polls once in a millisecond. What a receive of the blocking subscriber
/// waits for inside of one call, this one waits for too: the table of a feed that is read over RDMA takes a few round trips
/// ([`FeedSubscriber::try_update`](crate::FeedSubscriber::try_update)).
///
/// Dropping the last handle of a [`Node`](crate::Node) blocks for up to 250 ms: keep another handle outside of the tasks, or drop it by
/// [`spawn_blocking`](tokio::task::spawn_blocking).
///
/// Send, not Sync: it may be sent to another thread, and a task on any of them receives.
pub struct AsyncSubscriber<S: Waitable> {
    // Dropped first: it leaves the waiter.
    subscriber: S,
    waiter: Registered<Arc<Waiter>>,
    /// The keys of ready members, of which there is one.
    keys: Vec<usize>,
    /// The waiter was armed since the last poll.
    is_armed: bool,
    /// The stream has returned the end of the topic.
    is_over: bool,
}

impl<S: Waitable> AsyncSubscriber<S> {
    /// Has the runtime of the present task wait for this subscriber. `into_async` of the subscriber does the same. Does not block.
    /// Allocates. A subscriber that belongs to a [`WaitSet`](crate::WaitSet) leaves it.
    ///
    /// # Errors
    ///
    /// [`AsyncError`]: there is no runtime, or the process is out of descriptors. The subscriber is then dropped.
    ///
    /// # Panics
    ///
    /// If the runtime was built without IO ([`enable_io`](tokio::runtime::Builder::enable_io)): tokio offers no way to ask.
    #[track_caller]
    pub fn new(mut subscriber: S) -> Result<Self, AsyncError> {
        let waiter = Registered::new(Waiter::new()?)?;
        subscriber.enter(Some((waiter.get(), 0)));
        Ok(Self { subscriber, waiter, keys: Vec::new(), is_armed: false, is_over: false })
    }

    /// Returns the subscriber, for its settings and counts.
    pub fn get_ref(&self) -> &S {
        &self.subscriber
    }

    /// Returns the subscriber, for methods that change it. What it receives itself is not received here again. Do not add it to a
    /// [`WaitSet`](crate::WaitSet): then nothing wakes a task that waits here.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.subscriber
    }

    /// Returns the subscriber, which the runtime no longer waits for. It continues after the last value received.
    pub fn into_inner(self) -> S {
        let Self { mut subscriber, .. } = self;
        subscriber.enter(None);
        subscriber
    }

    /// Receives by another method of the subscriber, which must not wait, as soon as that returns something: for values in a form that
    /// [`Self::receive`] does not have.
    ///
    /// ```
    /// use fabricast::{AnySubscriber, Decoded, Node, Raw};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::builder().name("plant")?.runtime_dir(dir.path()).open()?;
    /// # let mut publisher = node.state_publisher::<f64>("pressure").open()?;
    /// # publisher.publish(&1.5)?;
    /// let mut any = node.any_subscriber::<Raw>("shm:plant/pressure").open_async().await?.into_async()?;
    /// let pressure = any.receive_with(AnySubscriber::try_receive_value).await?;
    /// assert_eq!(pressure.value, Decoded::Value(1.5.into()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the method, except [`ReceiveError::Contended`], and [`ReceiveError::Runtime`].
    pub async fn receive_with<V>(
        &mut self,
        mut receive: impl FnMut(&mut S) -> Result<Option<V>, ReceiveError>,
    ) -> Result<V, ReceiveError> {
        poll_fn(|cx| self.poll_with(cx, &mut receive)).await
    }

    /// Receives by this method, or waits. Takes nothing unless it is ready.
    fn poll_with<V>(
        &mut self,
        cx: &mut Context<'_>,
        mut receive: impl FnMut(&mut S) -> Result<Option<V>, ReceiveError>,
    ) -> Poll<Result<V, ReceiveError>> {
        let budget = ready!(coop::poll_proceed(cx));
        if std::mem::take(&mut self.is_armed) {
            // Otherwise the subscriber wakes the task by coming to rest.
            self.waiter.get().disarm();
        }
        for _ in 0..POLLS_MAX {
            match receive(&mut self.subscriber).transpose() {
                None | Some(Err(ReceiveError::Contended { .. })) => {}
                Some(received) => {
                    budget.made_progress();
                    return Poll::Ready(received);
                }
            }
            self.is_armed = true;
            let Self { waiter, keys, .. } = self;
            let arm = |waiter: &Arc<Waiter>| waiter.arm(keys).map(|()| !keys.is_empty());
            ready!(waiter.poll_until(cx, arm))?;
        }
        // It is being overwritten, or waits for what wakes nobody.
        ready!(self.poll_again_soon(cx))?;
        Poll::Pending
    }

    /// Has the task polled again after a while. Ready only if that fails.
    fn poll_again_soon(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AsyncError>> {
        let after = Duration::from_nanos(limits::WAITER_POLL_NS);
        self.is_armed = true;
        match self.waiter.poll_after(cx, |waiter| waiter.set_timer(after)) {
            Poll::Ready(Ok(())) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            other => other,
        }
    }
}

impl<S: AsyncReceive> AsyncSubscriber<S> {
    /// Receives the next value, or of a feed the next update, and waits until there is one.
    ///
    /// # Errors
    ///
    /// Those of `try_receive`, or `try_update`, of the subscriber, except [`ReceiveError::Contended`]: it waits instead. The next call
    /// continues after an error. [`ReceiveError::Ended`], [`ReceiveError::Gone`] and, unless the subscriber is persistent or one of several
    /// lines, [`ReceiveError::Overtaken`] repeat. [`ReceiveError::Runtime`] when the runtime
    /// shuts down, which loses nothing.
    pub async fn receive(&mut self) -> Result<S::Item, ReceiveError> {
        self.receive_with(S::try_item).await
    }
}

/// Yields values, and losses as errors, after which it continues. It ends with the topic, and after [`ReceiveError::Gone`],
/// [`ReceiveError::Overtaken`] and [`ReceiveError::Runtime`], like [`samples`](crate::Subscriber::samples). The stream of a
/// [`Persistent`](crate::Persistent) subscriber and of several [`Lines`](crate::Lines) does not end.
impl<S: AsyncReceive> Stream for AsyncSubscriber<S> {
    type Item = Result<S::Item, ReceiveError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        let received = ready!(this.poll_with(cx, S::try_item));
        this.is_over = match received {
            Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. } | ReceiveError::Runtime(_)) => true,
            Err(ReceiveError::Overtaken { .. }) => !S::OUTLASTS,
            _ => false,
        };
        Poll::Ready(Some(received).filter(|received| !matches!(received, Err(ReceiveError::Ended { .. }))))
    }
}

impl<S: AsyncReceive> FusedStream for AsyncSubscriber<S> {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

/// Nothing in it is pinned.
impl<S: Waitable> Unpin for AsyncSubscriber<S> {}

impl<S: Waitable + fmt::Debug> fmt::Debug for AsyncSubscriber<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("AsyncSubscriber").field(&self.subscriber).finish()
    }
}
