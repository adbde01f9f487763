use std::fmt;
use std::sync::{Arc, Weak};

use crate::clock::{Clock, Timeline, namespace};
use crate::layout::clock::ClockLine;
use crate::memory::Region;

/// Tells how old the time stamps of a publisher are: those in [`Meta::published_ns`](crate::Meta::published_ns).
///
/// A subscriber of a publisher on its own host measures ages with the clock that both share, the monotonic one. Setting the
/// host's real-time clock does not change them; while the publisher follows a clock that was set, they are exact to 1 %. Any other
/// subscriber compares its host's real-time clock with the time stamp: the age is then off by the difference between the clocks of two
/// hosts, and by what was set since. That applies to publishers on other hosts, to those in a container with a time namespace of its own,
/// and to push over RDMA on one host.
///
/// It stays usable after the subscriber is dropped, and does not notice then if the publisher follows a clock that is set. Send and Sync.
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = node.state_publisher::<f64>("EURUSD").open()?;
/// publisher.publish(&1.0841)?;
///
/// let mut quotes = node.state_subscriber::<f64>("shm:quotes/EURUSD").open()?;
/// let clock = quotes.publisher_clock();
/// if let Some(quote) = quotes.try_receive()? {
///     assert!(clock.age_ns(quote.meta.published_ns) < 60_000_000_000);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PublisherClock {
    clock: Arc<dyn Clock>,
    /// The repository of a publisher with the same monotonic clock, or a landing region in which it shows that, while it is mapped.
    memory: Weak<Region>,
    /// The times that it showed last; `None` if the clocks differ.
    timeline: Option<Timeline>,
}

impl PublisherClock {
    /// The clock of the publisher of this repository, or of this landing region, if it is mapped.
    pub(super) fn new(memory: Option<&Arc<Region>>, clock: Arc<dyn Clock>) -> Self {
        let timeline = memory.and_then(|region| shared_timeline(region));
        let memory = memory.filter(|_| timeline.is_some()).map(Arc::downgrade).unwrap_or_default();
        Self { clock, memory, timeline }
    }

    /// Returns the age of a time stamp, nanoseconds; negative if it lies in the future, because a clock is wrong or time stamps were made
    /// by the program. Neither blocks nor allocates.
    pub fn age_ns(&self, published_ns: u64) -> i64 {
        match self.timeline() {
            Some(timeline) => timeline.age_ns(published_ns, self.clock.monotonic_ns()),
            None => Timeline::new(0, self.clock.realtime_ns()).age_ns(published_ns, 0),
        }
    }

    /// Returns whether the publisher shares this host's monotonic clock, so that ages do not depend on real-time clocks.
    pub fn is_shared(&self) -> bool {
        self.timeline.is_some()
    }

    /// The publisher's times; `None` if the clocks differ.
    fn timeline(&self) -> Option<Timeline> {
        let shown = self.memory.upgrade().and_then(|region| shared_timeline(&region));
        shown.or(self.timeline)
    }

    /// Reads the publisher's times once more: its memory is about to be released.
    pub(super) fn keep(&mut self) {
        self.timeline = self.timeline();
    }
}

/// The times shown in this memory, if they follow the monotonic clock of this process.
fn shared_timeline(memory: &Region) -> Option<Timeline> {
    ClockLine::read(memory).filter(|line| line.namespace == namespace()).map(|line| line.timeline)
}

impl fmt::Debug for PublisherClock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PublisherClock").field("is_shared", &self.is_shared()).finish_non_exhaustive()
    }
}
