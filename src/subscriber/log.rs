#[cfg(doc)]
use super::ReceiveError;
use super::handle::Readable;
use super::subscription::Source;
use super::{Subscriber, TopicKind};
use crate::id::{Delivery, Sequence};
use crate::layout::header::HOT_SEQUENCE;
use crate::payload::Payload;
use crate::repository::Reader as _;
use crate::repository::log::{LogReader, LogTopic};

#[cfg(test)]
mod tests;

/// Receives every record of a log topic, in order, from its starting position on.
///
/// When the publisher overwrites records before this subscriber reads them, one [`ReceiveError::Lapped`] reports their exact
/// number, and the next receive continues after them. Every published record is received or reported lost. A subscriber that
/// begins with earlier records reaches live ones without a gap: all are in the same ring.
///
/// ```
/// use fabricast::{Node, ReceiveError};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let mut trades = publishing.log_publisher::<u64>("trades").open()?;
/// trades.publish_batch(&[10, 20])?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut subscriber = node.log_subscriber::<u64>("shm:exchange/trades").earliest().open()?;
/// trades.publish(&30)?;
/// drop(trades);
/// let values: Vec<u64> = subscriber.samples().map(|record| Ok(record?.value)).collect::<Result<_, ReceiveError>>()?;
/// assert_eq!(values, [10, 20, 30]);
/// # Ok(())
/// # }
/// ```
pub type LogSubscriber<T> = Subscriber<LogTopic, T>;

impl<T: Payload> LogSubscriber<T> {
    /// Returns the sequence of the next record to be received or reported lost.
    pub fn next_sequence(&self) -> Sequence {
        self.core.reader.next_sequence()
    }

    /// Returns whether the publisher waits for this subscriber, or disconnects it, before it would lose a record: it has asked for that
    /// with [`slow`](crate::SubscriberBuilder::slow), and the publisher has not let it go. One load.
    pub fn is_gating(&self) -> bool {
        self.core.subscription.is_gating()
    }
}

impl TopicKind for LogTopic {}

impl Readable for LogTopic {
    type Reader = LogReader;
}

impl super::core::Core<LogReader> {
    /// Returns the newest record that the publisher had published when its memory was last read; after the end, the last one received or
    /// lost. `None` by push: what has not arrived is unknown.
    pub(super) fn newest(&self) -> Option<Sequence> {
        let memory = match &self.subscription.source {
            Source::Mapped(memory) if self.subscription.granted.delivery == Delivery::Pull => memory,
            Source::Remote(remote) => remote.mirror(),
            Source::Released(_) => return Some(self.reader.last()),
            Source::Mapped(_) | Source::Landing { .. } => return None,
        };
        Some(Sequence::new(memory.load_acquire(HOT_SEQUENCE)))
    }
}
