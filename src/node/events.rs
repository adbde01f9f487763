use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::event_log::TracingSink;
use crate::clock::{Clock, SystemClock, saturate};
use crate::event::{Event, EventSink};
use crate::fabric::{FabricError, KeyedWaker, Waker, wait};
use crate::limits;
use crate::subscriber::{Condition, Membership, Waitable, WaitableHandle, Waiter};

/// Holds the events of nodes until the program takes them, and is a descriptor that is readable while it holds any. So a program waits for
/// what happens to its publishers and subscribers with the same loop that waits for values: who attached, who was let go, which publisher
/// hangs or is gone. A [`WaitSet`](crate::WaitSet) waits for a queue as for a subscriber.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::{Event, EventQueue, Node};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let mut events = EventQueue::new()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).events(events.sink()).open()?;
/// let publisher = node.state_publisher::<f64>("EURUSD").open()?;
/// let subscriber = node.state_subscriber::<f64>("shm:quotes/EURUSD").open()?;
/// loop {
///     let event = events.next_timeout(Duration::from_secs(5))?.ok_or("nothing in time")?;
///     if let Event::Attached { topic, .. } = event {
///         assert_eq!(topic.as_str(), "EURUSD");
///         break;
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// It holds up to [`limits::EVENTS_QUEUED_MAX`] events. When more happen, it drops the oldest, and [counts](Self::dropped) them. Events go
/// to the log as well, as they do without a queue.
///
/// Send and Sync.
pub struct EventQueue {
    queue: Arc<Queue>,
    /// What waits for it among others.
    membership: Option<Arc<Membership>>,
}

/// The part of a node, which may outlive the queue.
#[derive(Debug)]
struct Sink {
    log: TracingSink,
    queue: Weak<Queue>,
}

#[derive(Debug)]
struct Queue {
    held: Mutex<Held>,
    /// Awake while events are held.
    ready: Waker,
}

#[derive(Debug, Default)]
struct Held {
    events: VecDeque<Event>,
    dropped: u64,
    /// Wakes what waits for the queue among others.
    waker: Option<KeyedWaker>,
}

impl EventQueue {
    /// Creates a queue without events. Takes a descriptor.
    ///
    /// # Errors
    ///
    /// [`FabricError::System`] when the process or the host is out of descriptors.
    pub fn new() -> Result<Self, FabricError> {
        let queue = Arc::new(Queue { held: Mutex::default(), ready: Waker::new()? });
        Ok(Self { queue, membership: None })
    }

    /// Returns the sink that takes events into this queue, for [`NodeBuilder::events`](crate::NodeBuilder::events). Several nodes may share
    /// a queue.
    pub fn sink(&self) -> Arc<dyn EventSink> {
        Arc::new(Sink { log: TracingSink::default(), queue: Arc::downgrade(&self.queue) })
    }

    /// Takes the oldest event, if there is one. Does not block.
    pub fn try_next(&mut self) -> Option<Event> {
        let mut held = self.queue.held.lock();
        let event = held.events.pop_front();
        if held.events.is_empty() {
            self.queue.ready.reset();
        }
        if let (None, Some(membership)) = (&event, &self.membership) {
            // Under the lock, so that the next event wakes it.
            membership.rest(Condition::Told);
        }
        event
    }

    /// Takes the oldest event, waiting up to `timeout` for one; `None` when it expires.
    ///
    /// # Errors
    ///
    /// [`FabricError::System`] when the operating system refuses to wait.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Event>, FabricError> {
        let deadline_ns = SystemClock.monotonic_ns().saturating_add(saturate(timeout));
        loop {
            let left_ns = deadline_ns.saturating_sub(SystemClock.monotonic_ns());
            let event = self.try_next();
            if event.is_some() || left_ns == 0 {
                return Ok(event);
            }
            wait(&[self.as_fd()], &[], Duration::from_nanos(left_ns))?;
        }
    }

    /// Returns how many events were dropped because nobody took them.
    pub fn dropped(&self) -> u64 {
        self.queue.held.lock().dropped
    }
}

impl Queue {
    fn push(&self, event: &Event) {
        let mut held = self.held.lock();
        if held.events.len() == limits::EVENTS_QUEUED_MAX {
            held.events.pop_front();
            held.dropped += 1;
        }
        held.events.push_back(event.clone());
        if held.events.len() == 1 {
            self.ready.wake();
            if let Some(waker) = &held.waker {
                waker.wake();
            }
        }
    }
}

impl EventSink for Sink {
    fn event(&self, event: &Event) {
        self.log.event(event);
        if let Some(queue) = self.queue.upgrade() {
            queue.push(event);
        }
    }
}

/// Readable while the queue holds events.
impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.ready.wait_handle()
    }
}

impl Waitable for EventQueue {}

impl WaitableHandle for EventQueue {
    fn enter(&mut self, waiter: Option<(&Arc<Waiter>, usize)>) {
        self.membership = waiter.map(|(waiter, key)| waiter.add(key));
        self.queue.held.lock().waker = self.membership.as_ref().and_then(|membership| membership.waker());
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.queue.held.lock();
        out.debug_struct("EventQueue")
            .field("len", &held.events.len())
            .field("dropped", &held.dropped)
            .finish_non_exhaustive()
    }
}
