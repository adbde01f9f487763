#[cfg(doc)]
use super::ReceiveError;
use super::handle::Readable;
use super::{Subscriber, TopicKind};
use crate::id::Sequence;
use crate::payload::Payload;
use crate::repository::log::{LogReader, LogTopic};

#[cfg(test)]
mod tests;

/// Receives the records of a log topic: all of them, in order, from where it was asked to begin.
///
/// Records that the publisher has overwritten before this subscriber came to them are an error of their own,
/// [`ReceiveError::Lapped`], once and with the exact count; the next receive goes on behind them. So what was received and what was
/// reported lost is always all that was published. A subscriber that begins with earlier records goes on to live ones without a
/// seam: it is the same ring.
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
    /// The sequence of the next record to be received or reported lost.
    pub fn next_sequence(&self) -> Sequence {
        self.core.reader.next_sequence()
    }
}

impl TopicKind for LogTopic {}

impl Readable for LogTopic {
    type Reader = LogReader;
}
