use std::time::Duration;

use crate::clock::saturate;
use crate::limits;

/// What subscribers of a log may ask of its publisher: that it waits for them ([`SlowPolicy::Block`](crate::SlowPolicy::Block)), or
/// disconnects them ([`SlowPolicy::Disconnect`](crate::SlowPolicy::Disconnect)), before it overwrites records that they have not read.
/// Without it the publisher refuses such subscribers, and never waits.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::{Gating, Node, SlowPolicy};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let gating = Gating::new().timeout(Duration::from_millis(20));
/// let mut trades = publishing.log_publisher::<u64>("trades").capacity(4096).gating(gating).open()?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut booking = node.log_subscriber::<u64>("shm:exchange/trades").slow(SlowPolicy::Block).open()?;
/// // As many as fit into the ring. The next one would overwrite a record that is not read.
/// let refused = (1..).find_map(|number: u64| trades.try_publish(number).err()).ok_or("never full")?;
/// assert!(refused.is_blocked());
/// assert_eq!(booking.try_receive()?.map(|trade| trade.value), Some(1));
/// assert_eq!(trades.publish(&refused.value)?.get(), refused.value);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gating {
    subscribers_max: usize,
    timeout: Duration,
    lease: Duration,
}

impl Gating {
    /// Permits [`limits::PROGRESS_SLOTS_MAX`] such subscribers, with a timeout of 5 seconds and a lease of 2.
    pub const fn new() -> Self {
        Self {
            subscribers_max: limits::PROGRESS_SLOTS_MAX,
            timeout: Duration::from_nanos(limits::GATING_TIMEOUT_NS),
            lease: Duration::from_nanos(limits::GATING_LEASE_NS),
        }
    }

    /// Sets how many such subscribers the topic may have at a time, at most [`limits::PROGRESS_SLOTS_MAX`]. Further ones are refused.
    #[must_use]
    pub const fn subscribers_max(self, subscribers_max: usize) -> Self {
        Self { subscribers_max, ..self }
    }

    /// Sets how long a publish waits for the slowest subscriber. Then it fails with
    /// [`PublishError::Blocked`](crate::PublishError::Blocked), which names that subscriber. Each record of a batch may wait so long.
    #[must_use]
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets for how long the publisher waits for a subscriber whose process shows no sign of life: it is stopped, or its host is. Then the
    /// subscriber is let go: it stays attached, and may lose records. A process that dies is noticed at once. At least
    /// [`limits::GATING_LEASE_MIN_NS`].
    ///
    /// The node's thread of the subscriber keeps the lease, so that a subscriber that works slowly keeps it too: only the timeout bounds
    /// how long it holds up a publish.
    #[must_use]
    pub const fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Whether one more than so many subscribers are permitted.
    pub(super) fn permits_more_than(&self, count: usize) -> bool {
        count < self.subscribers_max
    }

    /// How many subscribers are permitted.
    pub(super) fn max(&self) -> usize {
        self.subscribers_max
    }

    /// How long a publish waits.
    pub(super) fn timeout_ns(&self) -> u64 {
        saturate(self.timeout)
    }

    /// How long the publisher waits for a subscriber whose node does not run.
    pub(super) fn lease_ns(&self) -> u64 {
        saturate(self.lease)
    }

    /// The lease, if it is shorter than nodes can keep it.
    pub(super) fn unfit_lease(&self) -> Option<Duration> {
        Some(self.lease).filter(|_| self.lease_ns() < limits::GATING_LEASE_MIN_NS)
    }
}

impl Default for Gating {
    fn default() -> Self {
        Self::new()
    }
}
