use std::time::Duration;

use crate::clock::saturate;

/// How a receive that waits uses its processor until there is a value. The shorter it takes to notice a value, the more of a processor
/// the wait takes.
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::{IdleStrategy, Node};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = node.state_publisher::<f64>("EURUSD").open()?;
/// let builder = node.state_subscriber::<f64>("shm:quotes/EURUSD");
/// let mut quotes = builder.idle(IdleStrategy::Spin).open()?;
/// publisher.publish(&1.0841)?;
/// let sample = quotes.receive_timeout(Duration::from_secs(5))?.ok_or("nothing in time")?;
/// assert_eq!(sample.value, 1.0841);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdleStrategy {
    /// It polls all the time and never sleeps: the least delay, for which it takes a whole processor. Give it one of its own: on a
    /// processor that it shares with the publisher it delays the values that it waits for. A pull subscriber over RDMA reads all the time.
    Spin,
    /// It polls for this long, and sleeps if no value has come by then. The default for subscribers, with 20 microseconds.
    SpinThenWait {
        /// How long it polls.
        spin: Duration,
    },
    /// It sleeps at once unless a value is there. The default for a [`WaitSet`](crate::WaitSet).
    Wait,
}

impl IdleStrategy {
    /// Returns how long a wait polls before it sleeps, ns.
    pub(crate) fn spin_ns(self) -> u64 {
        match self {
            Self::Spin => u64::MAX,
            Self::SpinThenWait { spin } => saturate(spin),
            Self::Wait => 0,
        }
    }
}

impl Default for IdleStrategy {
    fn default() -> Self {
        Self::SpinThenWait { spin: Duration::from_micros(20) }
    }
}
