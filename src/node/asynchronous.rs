//! Opening subscribers without blocking a task.
//!
//! What blocks runs on a thread of the runtime for such work. A future that is dropped leaves it behind: what the thread opens then is
//! dropped there, and so detaches.

mod listener;

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use serde::{Serialize, de::DeserializeOwned};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

pub use self::listener::AsyncListener;
use super::persistent::{Reopen as _, ResumingOptions, persistent};
use super::{
    FeedLinesBuilder, FeedSubscriberBuilder, LinesBuilder, Node, PersistentBuilder, PersistentFeedBuilder,
    SubscriberBuilder,
};
use crate::subscriber::{
    Arbitrated, AsyncError, FeedLines, FeedSubscriber, Lines, Persistent, Subscribed, SubscriberError,
    SubscriberHandle,
};

/// Work on a thread of the runtime. It does not begin any more once this is dropped; if it has begun, its result is dropped there.
#[derive(Debug)]
struct Work<T>(JoinHandle<T>);

impl<T: Send + 'static> Work<T> {
    /// Begins.
    fn begin(work: impl FnOnce() -> T + Send + 'static) -> Result<Self, AsyncError> {
        if Handle::try_current().is_err() {
            return Err(AsyncError::NoRuntime);
        }
        Ok(Self(spawn_blocking(work)))
    }
}

impl<T> Future for Work<T> {
    type Output = Result<T, AsyncError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll(cx)) {
            Ok(done) => Ok(done),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(cancelled) => Err(AsyncError::Runtime { source: cancelled.into() }),
            },
        })
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a subscriber on a thread of the runtime.
async fn open<T: Send + 'static>(
    node: &Node,
    open: impl FnOnce(&Node) -> Result<T, SubscriberError> + Send + 'static,
) -> Result<T, SubscriberError> {
    let node = node.clone();
    Work::begin(move || open(&node))?.await?
}

#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<S> SubscriberBuilder<'_, S>
where
    S: Subscribed + SubscriberHandle<Options: ResumingOptions + Send> + Send + 'static,
{
    /// Attaches to the topic like [`Self::open`], on a thread of the runtime for work that blocks. Requires the cargo feature `tokio`.
    ///
    /// The future may be dropped at any time: the subscriber is then not opened, or detaches once it is. Until then, up to the
    /// [timeout](Self::timeout) of an answer, the thread is busy, and keeps the node.
    ///
    /// ```
    /// use fabricast::Node;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("weather")?.runtime_dir(dir.path()).open()?;
    /// let mut publisher = node.state_publisher::<String>("tokyo").open()?;
    /// let mut tokyo = node.state_subscriber::<String>("shm:weather/tokyo").open_async().await?.into_async()?;
    /// publisher.publish(&"sunny".to_owned())?;
    /// assert_eq!(tokyo.receive().await?.value, "sunny");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], and [`SubscriberError::Runtime`] without a runtime, or if it shuts down.
    pub async fn open_async(self) -> Result<S, SubscriberError> {
        let (node, opening) = self.opening()?;
        open(node, move |node| opening.open(node)).await
    }

    /// Attaches to all of these topics like [`Self::open_all`], on a thread of the runtime for work that blocks: see [`Self::open_async`].
    /// [`AsyncWaitSet`](crate::AsyncWaitSet) has an example.
    ///
    /// # Errors
    ///
    /// [`AsyncError`] without a runtime, or if it shuts down.
    pub async fn open_all_async(
        builders: impl IntoIterator<Item = Self>,
    ) -> Result<Vec<Result<S, SubscriberError>>, AsyncError> {
        let settings =
            |Self { node, place, terms, samples, .. }: Self| (node.clone(), (place, (terms, samples)));
        let (nodes, settings): (Vec<_>, Vec<_>) = builders.into_iter().map(settings).unzip();
        let open_all = move || {
            let builders = nodes.iter().zip(settings);
            let with = |(node, (place, settings))| SubscriberBuilder::with(node, place, settings);
            SubscriberBuilder::open_all(builders.map(with))
        };
        Work::begin(open_all)?.await
    }
}

#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<S> PersistentBuilder<'_, S>
where
    S: Subscribed + SubscriberHandle<Options: ResumingOptions + Send> + Send + 'static,
{
    /// Attaches to the topic like [`Self::open`], without blocking the task: see [`SubscriberBuilder::open_async`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], and [`SubscriberError::Runtime`] without a runtime, or if it shuts down.
    pub async fn open_async(self) -> Result<Persistent<S>, SubscriberError> {
        let (node, deadline, opening) = self.opening()?;
        open(node, move |node| Ok(persistent(node, opening)?.expect_within(deadline))).await
    }
}

#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<S> LinesBuilder<'_, S>
where
    S: Subscribed
        + SubscriberHandle<Options: ResumingOptions + Send>
        + Arbitrated<Item: Send>
        + Send
        + 'static,
{
    /// Attaches to the publisher of each line like [`Self::open`], without blocking the task: see [`SubscriberBuilder::open_async`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], and [`SubscriberError::Runtime`] without a runtime, or if it shuts down.
    pub async fn open_async(self) -> Result<Lines<S>, SubscriberError> {
        let (node, opening) = self.opening()?;
        open(node, move |node| opening.open(node)).await
    }
}

impl<K, R, V> FeedSubscriberBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Attaches to log and table like [`Self::open`], without blocking the task: see [`SubscriberBuilder::open_async`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], and [`SubscriberError::Runtime`] without a runtime, or if it shuts down.
    pub async fn open_async(self) -> Result<FeedSubscriber<K, R, V>, SubscriberError> {
        let deadline = self.deadline_set();
        let (node, opening) = self.opening()?;
        open(node, move |node| Ok(opening.open(node)?.expect_within(deadline))).await
    }
}

impl<K, R, V> PersistentFeedBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Attaches to the feed like [`Self::open`], without blocking the task: see [`SubscriberBuilder::open_async`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], and [`SubscriberError::Runtime`] without a runtime, or if it shuts down.
    pub async fn open_async(self) -> Result<Persistent<FeedSubscriber<K, R, V>>, SubscriberError> {
        let deadline = self.0.deadline_set();
        let (node, opening) = self.0.opening()?;
        open(node, move |node| Ok(persistent(node, opening)?.expect_within(deadline))).await
    }
}

impl<K, R, V> FeedLinesBuilder<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Attaches to the publisher of each line like [`Self::open`], without blocking the task: see [`SubscriberBuilder::open_async`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`], and [`SubscriberError::Runtime`] without a runtime, or if it shuts down.
    pub async fn open_async(self) -> Result<FeedLines<K, R, V>, SubscriberError> {
        let (node, opening) = self.opening()?;
        open(node, move |node| opening.open_feed(node)).await
    }
}
