use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::registered::{AsyncError, Registered};
use crate::subscriber::waiter::Waiter;
use crate::subscriber::{WaitSet, Waitable};

/// A [`WaitSet`] that a task of tokio awaits: any number of subscribers in one task, with three descriptors for all of them. Requires the
/// cargo feature `tokio`.
///
/// The subscribers are not changed: the task receives from those that are ready by `try_receive` and the like, until there is nothing
/// more (`Ok(None)`), as it does with a `WaitSet`.
///
/// ```
/// use fabricast::{AsyncWaitSet, Node, SubscriberBuilder};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let symbols = ["EURUSD", "GBPUSD", "USDJPY"];
/// let open = |symbol: &&str| node.state_publisher::<f64>(symbol).open();
/// let mut publishers = symbols.iter().map(open).collect::<Result<Vec<_>, _>>()?;
///
/// let all = symbols.map(|symbol| node.state_subscriber::<f64>(format!("shm:quotes/{symbol}").as_str()));
/// let opened = SubscriberBuilder::open_all_async(all).await?;
/// let mut subscribers = opened.into_iter().collect::<Result<Vec<_>, _>>()?;
/// let mut set = AsyncWaitSet::new()?;
/// for (key, subscriber) in subscribers.iter_mut().enumerate() {
///     set.add(subscriber, key);
/// }
/// publishers[1].publish(&1.27)?;
/// let mut received = Vec::new();
/// while received.is_empty() {
///     for key in set.ready().await? {
///         while let Some(sample) = subscribers[*key].try_receive()? {
///             received.push((symbols[*key], sample.value));
///         }
///     }
/// }
/// assert_eq!(received, [("GBPUSD", 1.27)]);
/// # Ok(())
/// # }
/// ```
///
/// A future of [`Self::ready`] may be dropped at any time: a subscriber stays ready until it was received from. The set keeps no
/// subscriber alive, and the other way round.
///
/// Send, not Sync: it may be sent to another thread, and one task waits at a time.
pub struct AsyncWaitSet {
    set: WaitSet,
    registered: Registered<Arc<Waiter>>,
    ready: Vec<usize>,
}

impl AsyncWaitSet {
    /// Creates a set without subscribers that the runtime of the present task watches. Takes three descriptors, and later one or two for
    /// each session of its subscribers on this host.
    ///
    /// # Errors
    ///
    /// [`AsyncError`]: there is no runtime, or the process is out of descriptors.
    ///
    /// # Panics
    ///
    /// If the runtime was built without IO ([`enable_io`](tokio::runtime::Builder::enable_io)).
    #[track_caller]
    pub fn new() -> Result<Self, AsyncError> {
        Self::from_set(WaitSet::new()?)
    }

    /// Has the runtime of the present task watch this set.
    #[track_caller]
    fn from_set(set: WaitSet) -> Result<Self, AsyncError> {
        let registered = Registered::new(Arc::clone(set.members()))?;
        Ok(Self { set, registered, ready: Vec::new() })
    }

    /// Adds a subscriber under this key: see [`WaitSet::add`].
    pub fn add(&mut self, subscriber: &mut impl Waitable, key: usize) {
        self.set.add(subscriber, key);
    }

    /// Removes a subscriber from the set that it belongs to: see [`WaitSet::remove`].
    pub fn remove(&mut self, subscriber: &mut impl Waitable) {
        self.set.remove(subscriber);
    }

    /// Waits until a subscriber is ready. Returns the keys of all that are, in ascending order, each once, and never none. Each call takes
    /// a unit of tokio's [cooperative budget](tokio::task::coop), so that subscribers that are always ready do not starve other tasks.
    /// Receive a bounded number of values of each between two calls if one of them may never run dry.
    ///
    /// # Errors
    ///
    /// [`AsyncError::Runtime`] when the runtime shuts down, [`AsyncError::Fabric`] when the operating system refuses to wait.
    pub async fn ready(&mut self) -> Result<&[usize], AsyncError> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        Ok(&self.ready)
    }

    /// Returns the set, which the runtime no longer watches, with its subscribers.
    pub fn into_inner(self) -> WaitSet {
        self.set
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AsyncError>> {
        let budget = ready!(coop::poll_proceed(cx));
        let Self { registered, ready, .. } = self;
        let arm = |waiter: &Arc<Waiter>| waiter.arm(ready).map(|()| !ready.is_empty());
        let outcome = ready!(registered.poll_until(cx, arm));
        budget.made_progress();
        Poll::Ready(outcome)
    }
}

impl WaitSet {
    /// Has the runtime of the present task wait for this set, with its subscribers.
    ///
    /// # Errors
    ///
    /// Those of [`AsyncWaitSet::new`].
    ///
    /// # Panics
    ///
    /// Like [`AsyncWaitSet::new`].
    #[track_caller]
    pub fn into_async(self) -> Result<AsyncWaitSet, AsyncError> {
        AsyncWaitSet::from_set(self)
    }
}

impl fmt::Debug for AsyncWaitSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("AsyncWaitSet").finish_non_exhaustive()
    }
}
