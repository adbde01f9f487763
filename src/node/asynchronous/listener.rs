use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Work;
use crate::node::Listener;
use crate::subscriber::{AsyncError, Registered, Subscribed, SubscriberError, SubscriberHandle};

/// A [`Listener`] whose publishers a task of tokio awaits. Requires the cargo feature `tokio`. [`Listener::into_async`] makes one.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::Node;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let runtime_dir = dir.path().to_owned();
/// let desk = Node::builder().name("desk")?.runtime_dir(dir.path()).open()?;
/// let mut listener = desk.state_listener::<f64>("EURUSD").open()?.into_async()?;
///
/// // Usually in another process:
/// let publishing = std::thread::spawn(move || -> Result<(), fabricast::Error> {
///     let node = Node::builder();
/// #   let node = node.runtime_dir(runtime_dir);
///     let node = node.open()?;
///     let mut publisher = node.state_publisher::<f64>("EURUSD").open()?;
///     node.dial_subscriber("EURUSD", "shm:desk", Duration::from_secs(5))?;
///     publisher.publish(&1.0841)?;
///     Ok(())
/// });
///
/// let mut subscriber = listener.accept().await?.into_async()?;
/// assert_eq!(subscriber.receive().await?.value, 1.0841);
/// # publishing.join().expect("the publisher does not panic")?;
/// # Ok(())
/// # }
/// ```
///
/// A future of [`Self::accept`] may be dropped at any time. If a publisher has dialled by then, attaching to it goes on, and the next
/// call returns its subscriber. One that was not taken when this is dropped detaches.
///
/// Send, not Sync: it may be sent to another thread, and one task accepts at a time.
pub struct AsyncListener<S: Subscribed> {
    listener: Registered<Arc<Listener<S>>>,
    /// Attaching to a publisher that has dialled.
    accepting: Option<Work<Result<S, SubscriberError>>>,
}

impl<S: Subscribed> Listener<S> {
    /// Has the runtime of the present task wait for publishers. Does not block. Requires the cargo feature `tokio`.
    ///
    /// # Errors
    ///
    /// [`AsyncError`]: there is no runtime, or it is out of descriptors. The listener is then dropped.
    ///
    /// # Panics
    ///
    /// If the runtime was built without IO ([`enable_io`](tokio::runtime::Builder::enable_io)).
    #[track_caller]
    pub fn into_async(self) -> Result<AsyncListener<S>, AsyncError> {
        Ok(AsyncListener { listener: Registered::new(Arc::new(self))?, accepting: None })
    }
}

#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<S> AsyncListener<S>
where
    S: Subscribed + SubscriberHandle<Options: Send> + Send + 'static,
{
    /// Returns a subscriber of the next publisher that dials for this topic, and waits until one does. Attaching to it takes some round
    /// trips, on a thread of the runtime for work that blocks.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::accept_timeout`], and [`SubscriberError::Runtime`] when the runtime shuts down. The listener stays usable.
    pub async fn accept(&mut self) -> Result<S, SubscriberError> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<S, SubscriberError>> {
        let Self { listener, accepting } = self;
        if accepting.is_none() {
            let mut link = None;
            let take = |listener: &Arc<Listener<S>>| {
                link = listener.take_ready().transpose();
                Ok::<_, AsyncError>(link.is_some())
            };
            ready!(listener.poll_until(cx, take))?;
            if let Some(link) = link.transpose()? {
                let (node, terms) = listener.get().accepting();
                *accepting = Some(Work::begin(move || terms.attach(&node, &link))?);
            }
        }
        let Some(work) = accepting else { return Poll::Pending };
        let accepted = ready!(Pin::new(work).poll(cx));
        *accepting = None;
        Poll::Ready(accepted?)
    }
}

impl<S: Subscribed> AsyncListener<S> {
    /// Returns the listener, for its topic.
    pub fn get_ref(&self) -> &Listener<S> {
        self.listener.get()
    }
}

impl<S: Subscribed> fmt::Debug for AsyncListener<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("AsyncListener").field(self.get_ref()).finish()
    }
}
