use std::fmt;
use std::hash::Hash;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use super::lines::{Arbitrated, Lines};
use super::persistent::Persistent;
use super::waiter::{Membership, Waiter};
use super::{FeedLines, IdleStrategy, Renewable};
use crate::fabric::FabricError;

/// Waits for any number of subscribers at once, of any kind of topic and of any nodes and fabrics, on one thread.
///
/// Each subscriber is added under a key of the program's choice. A wait returns the keys of the subscribers that may have something new,
/// and costs as much as there are of those, however many subscribers there are: on the `shm` fabric a publisher that finds nobody waiting
/// makes no system call, and one that does sends a few bytes to a socket of the set. Receive from a subscriber that is ready until there is
/// nothing more (`Ok(None)`): only then it is waited for again. Until then each wait returns it at once, and so it does for a subscriber
/// whose topic has ended; drop or [remove](Self::remove) it. A ready subscriber may turn out to have nothing new.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::{Node, WaitSet};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let symbols = ["EURUSD", "GBPUSD", "USDJPY"];
/// let open = |symbol: &&str| node.state_publisher::<f64>(symbol).open();
/// let mut publishers = symbols.iter().map(open).collect::<Result<Vec<_>, _>>()?;
/// let open = |symbol: &&str| node.state_subscriber::<f64>(format!("shm:quotes/{symbol}").as_str()).open();
/// let mut subscribers = symbols.iter().map(open).collect::<Result<Vec<_>, _>>()?;
///
/// let mut set = WaitSet::new()?;
/// for (key, subscriber) in subscribers.iter_mut().enumerate() {
///     set.add(subscriber, key);
/// }
/// publishers[1].publish(&1.27)?;
/// let mut received = Vec::new();
/// while received.is_empty() {
///     for key in set.wait(Duration::from_secs(5))? {
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
/// The set is also a descriptor, for programs that have an event loop: after [`Self::arm`] found no subscriber ready, the descriptor
/// becomes readable when one may be.
///
/// The subscribers need not be on the thread that waits; one that finds nothing new on another thread is waited for from then on.
///
/// Send, not Sync: it may be sent to another thread, and waits on one at a time.
pub struct WaitSet {
    waiter: Arc<Waiter>,
    idle: IdleStrategy,
    ready: Vec<usize>,
}

/// What a [`WaitSet`] can wait for: any subscriber of a topic, a table or a feed, also a [`Persistent`] one, [`Lines`] or [`FeedLines`]; a
/// [`Listener`](crate::Listener), an [`EventQueue`](crate::EventQueue). This trait is sealed.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait Waitable: WaitableHandle {}

/// What a waiter needs of what it waits for.
pub(crate) trait WaitableHandle {
    /// Lets this waiter wait for it, under this key; without one, no waiter any more.
    fn enter(&mut self, waiter: Option<(&Arc<Waiter>, usize)>);
}

impl WaitSet {
    /// Creates a set without subscribers. Takes three descriptors, and later one or two for each session of its subscribers on this host.
    ///
    /// # Errors
    ///
    /// [`FabricError::System`] when the process or the host is out of descriptors.
    pub fn new() -> Result<Self, FabricError> {
        Ok(Self { waiter: Waiter::new()?, idle: IdleStrategy::Wait, ready: Vec::new() })
    }

    /// Sets how [`Self::wait`] uses its processor until a subscriber is ready; by default it sleeps at once. While it polls, each look
    /// costs as much as the set has subscribers.
    pub fn idle(self, idle: IdleStrategy) -> Self {
        Self { idle, ..self }
    }

    /// Relies on wake-ups only, for tests of them.
    #[cfg(test)]
    pub(crate) fn waiter(&self) -> &Arc<Waiter> {
        self.waiter.look_at_none();
        &self.waiter
    }

    /// Returns what waits for the subscribers.
    #[cfg(feature = "tokio")]
    pub(super) fn members(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    /// Adds a subscriber under this key; several may have the same one. It is ready at first. A subscriber belongs to one set: adding it
    /// to another one removes it from the first, and so does dropping it. Does not block. Allocates.
    pub fn add(&mut self, subscriber: &mut impl Waitable, key: usize) {
        subscriber.enter(Some((&self.waiter, key)));
    }

    /// Removes a subscriber from the set that it belongs to.
    pub fn remove(&mut self, subscriber: &mut impl Waitable) {
        subscriber.enter(None);
    }

    /// Waits until a subscriber is ready, up to `timeout`. Returns the keys of all that are, in ascending order, each once; none when the
    /// timeout expires. The timeout is rounded up to milliseconds.
    ///
    /// # Errors
    ///
    /// [`FabricError::System`] when the operating system refuses to wait.
    pub fn wait(&mut self, timeout: Duration) -> Result<&[usize], FabricError> {
        self.waiter.wait(timeout, self.idle.spin_ns(), &mut self.ready)?;
        Ok(&self.ready)
    }

    /// Returns the keys of the subscribers that are ready, like [`Self::wait`] without waiting. If there are none, the descriptor of this
    /// set becomes readable when one may be; then call this again. It may be readable although none is.
    ///
    /// ```
    /// use std::os::fd::AsFd;
    ///
    /// use fabricast::{Node, WaitSet};
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("plant")?.runtime_dir(dir.path()).open()?;
    /// let mut publisher = node.log_publisher::<u32>("alarms").open()?;
    /// let mut alarms = node.log_subscriber::<u32>("shm:plant/alarms").open()?;
    /// let mut set = WaitSet::new()?;
    /// set.add(&mut alarms, 0);
    /// publisher.publish(&7)?;
    /// loop {
    ///     if set.arm()?.is_empty() {
    ///         // The other descriptors of the program go here.
    ///         poll(&mut [PollFd::new(&set, PollFlags::IN)], None)?;
    ///     } else if let Some(alarm) = alarms.try_receive()? {
    ///         assert_eq!(alarm.value, 7);
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Self::wait`].
    pub fn arm(&mut self) -> Result<&[usize], FabricError> {
        self.waiter.arm(&mut self.ready)?;
        Ok(&self.ready)
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiter.wait_handle()
    }
}

impl fmt::Debug for WaitSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("WaitSet").finish_non_exhaustive()
    }
}

/// A new membership of this waiter.
fn membership(waiter: Option<(&Arc<Waiter>, usize)>) -> Option<Arc<Membership>> {
    waiter.map(|(waiter, key)| waiter.add(key))
}

impl<S: Renewable> Waitable for S {}

impl<S: Renewable> WaitableHandle for S {
    fn enter(&mut self, waiter: Option<(&Arc<Waiter>, usize)>) {
        self.join(membership(waiter));
    }
}

impl<S: Renewable> Waitable for Persistent<S> {}

impl<S: Renewable> WaitableHandle for Persistent<S> {
    fn enter(&mut self, waiter: Option<(&Arc<Waiter>, usize)>) {
        self.join(membership(waiter));
    }
}

impl<S: Arbitrated> Waitable for Lines<S> {}

impl<S: Arbitrated> WaitableHandle for Lines<S> {
    fn enter(&mut self, waiter: Option<(&Arc<Waiter>, usize)>) {
        self.set.enter(waiter);
    }
}

impl<K, R, V> Waitable for FeedLines<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
}

impl<K, R, V> WaitableHandle for FeedLines<K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn enter(&mut self, waiter: Option<(&Arc<Waiter>, usize)>) {
        self.set.enter(waiter);
    }
}
